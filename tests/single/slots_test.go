package single

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// slot acquires a slot of a lock, and returns its token and number.
func slot(t *testing.T, c *harness.Conn, name, owner string, limit int, more ...any) (token, slot int64) {
	t.Helper()
	v := c.Do(append([]any{"LOCK.ACQUIRE", name, owner, 60_000, "LIMIT", limit}, more...)...)
	require.Len(t, v.Elems, 2, "%v", v)
	require.Positive(t, v.Elems[0].Int())
	return v.Elems[0].Int(), v.Elems[1].Int()
}

// C8, on one server: a lock with LIMIT 2 has two holders, each with a slot of its own.
func TestLifeC8(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	a, of := slot(t, c, "n", "a", 2)
	assert.Zero(t, of)
	b, ofB := slot(t, c, "n", "b", 2)
	assert.EqualValues(t, 1, ofB)
	require.True(t, c.Do("LOCK.ACQUIRE", "n", "c", 60_000, "LIMIT", 2).NullString())
	require.True(t, c.Do("LOCK.ACQUIRE", "n", "c", 60_000).NullString(), "without LIMIT only slot 0 will do")

	again, of := slot(t, c, "n", "b", 2)
	assert.Equal(t, []int64{b, 1}, []int64{again, of}, "an owner renews its own slot")
	require.True(t, c.Do("LOCK.EXTEND", "n", "b", b, 1000).Err("NOTHELD"), "slot 0 is another's")
	ok(t, c.Do("LOCK.EXTEND", "n", "b", b, 90_000, "SLOT", 1))
	show := c.Do("LOCK.SHOW", "n", "SLOT", 1)
	assert.Equal(t, "b", show.Field("owner").Str)
	assert.EqualValues(t, 1, show.Field("slot").Int())
	assert.Equal(t, "n", show.Field("name").Str)
	assert.Equal(t, "a", c.Do("LOCK.SHOW", "n").Field("owner").Str)
	assert.True(t, c.Do("LOCK.SHOW", "n", "SLOT", 2).Null)

	require.True(t, c.Do("LOCK.RELEASE", "n", "b", b, "SLOT", 0).Err("NOTHELD"))
	ok(t, c.Do("LOCK.RELEASE", "n", "b", b, "SLOT", 1))
	third, of := slot(t, c, "n", "c", 2)
	assert.Greater(t, third, b)
	assert.EqualValues(t, 1, of)
	ok(t, c.Do("LOCK.RELEASE", "n", "a", a))

	// Holders need not agree on the limit.
	_, of = slot(t, c, "n", "d", 3)
	assert.Zero(t, of)
	_, of = slot(t, c, "n", "e", 3)
	assert.EqualValues(t, 2, of)
	require.True(t, c.Do("LOCK.ACQUIRE", "n", "f", 60_000, "LIMIT", 2).NullString())

	assert.Equal(t, 3, strings.Count(c.Do("LOCK.SCAN", 0).String(), "n"))
	assert.Len(t, c.Do("LOCK.SCAN", 0, "SLOT", 2).Elems[1].Elems, 1)
	assert.EqualValues(t, 1, c.Do("LOCK.CLEAR", "n", "SLOT", 2).Int())
	assert.True(t, c.Do("LOCK.SHOW", "n", "SLOT", 2).Null)
	assert.EqualValues(t, 2, c.Do("LOCK.CLEAR", "n").Int(), "all slots")
	_, _ = slot(t, c, "n1", "a", 2)
	_, _ = slot(t, c, "n1", "b", 2)
	assert.EqualValues(t, 2, c.Do("LOCK.CLEAR", "PREFIX", "n").Int())
	assert.Empty(t, c.Do("LOCK.SCAN", 0).Elems[1].Elems)
}

// A client that waits gets the first slot that is free, in the order of arrival, whichever slot that is.
func TestSlotWait(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	tokens := map[string]int64{}
	for i := range 3 {
		owner := fmt.Sprint("o", i)
		tokens[owner], _ = slot(t, c, "n", owner, 3)
	}
	waiters := make([]*harness.Conn, 3)
	for i := range waiters {
		waiters[i] = s.Dial()
		waiters[i].Send("LOCK.ACQUIRE", "n", fmt.Sprint("w", i), 60_000, "LIMIT", 3, "WAIT", 20_000)
		harness.Await(t, 5*time.Second, "the client to wait", func() bool { return c.Do("LOCK.SHOW", "n").Field("waiting").Is(int64(i + 1)) })
	}
	waiters[1].Close()
	harness.Await(t, 5*time.Second, "its end to be noticed", func() bool { return c.Do("LOCK.SHOW", "n", "SLOT", 2).Field("waiting").Is(2) })
	ok(t, c.Do("LOCK.RELEASE", "n", "o2", tokens["o2"], "SLOT", 2))
	assert.EqualValues(t, 2, waiters[0].Receive().Elems[1].Int())
	ok(t, c.Do("LOCK.EXTEND", "n", "o1", tokens["o1"], 100, "SLOT", 1)) // the end of its time
	assert.EqualValues(t, 1, waiters[2].Receive().Elems[1].Int())
	require.True(t, c.Do("LOCK.ACQUIRE", "n", "late", 60_000, "WAIT", 50, "LIMIT", 3).NullString())
}

// Slots that are held are held after a restart.
func TestSlotsAreSaved(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		_, _ = slot(t, c, "n", "a", 2)
		b, _ := slot(t, c, "n", "b", 2)
		if mode == "aof kill" {
			s.AwaitLogged()
		}
		comeBack(t, s, mode)
		c = s.Dial()
		require.True(t, c.Do("LOCK.ACQUIRE", "n", "c", 60_000, "LIMIT", 2).NullString())
		ok(t, c.Do("LOCK.RELEASE", "n", "b", b, "SLOT", 1))
		next, of := slot(t, c, "n", "c", 2)
		assert.EqualValues(t, 1, of)
		assert.Greater(t, next, b)
	}, "aof", "aof kill", "rdb", "reload")
}

func TestLimitAndSlotAreChecked(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	for _, bad := range []any{0, 257, -1, "x", 1.5} {
		require.True(t, c.Do("LOCK.ACQUIRE", "n", "a", 1000, "LIMIT", bad).Err("ERR LIMIT must be between 1 and 256"), "%v", bad)
	}
	for _, bad := range []any{-1, 256, "x"} {
		require.True(t, c.Do("LOCK.EXTEND", "n", "a", 1, 1000, "SLOT", bad).Err("ERR SLOT must be between 0 and 255"), "%v", bad)
		require.True(t, c.Do("LOCK.RELEASE", "n", "a", 1, "SLOT", bad).Err("ERR SLOT must be between 0 and 255"), "%v", bad)
	}
	for _, bad := range []string{"LOCK.ACQUIRE n a 1000 LIMIT", "LOCK.ACQUIRE n a 1000 LIMIT 2 LIMIT 2", "LOCK.ACQUIRE n a 1000 SLOT 1", "LOCK.RELEASE n a 1 LIMIT 1", "LOCK.EXTEND n a 1 1000 SLOT", "LOCK.RELEASE n a 1 WAIT 1"} {
		require.True(t, words(c, bad).Err("ERR syntax error"), bad)
	}
	require.True(t, c.Do("LOCK.CLEAR", "ALL", "SLOT", 1).Err("ERR SLOT goes with one name"))
	require.True(t, c.Do("LOCK.SHOW", "n", "SLOT", 65536).Err("ERR SLOT must be between 0 and 65535"))
	token, of := slot(t, c, "n", "a", 1)
	assert.Zero(t, of)
	ok(t, c.Do("LOCK.RELEASE", "n", "a", token))
}
