package single

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// No more jobs of a queue with CONCURRENCY are in progress than that; whoever waits is served when one is done, given back, or lapses.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 2).Str)
	assert.Equal(t, "2", c.Do("QCONFIG", "GET", "q").Field("concurrency").Str)
	var ids []string
	for i := range 6 {
		ids = append(ids, add(t, c, "q", fmt.Sprint(i), 0, "RETRY", 60))
	}
	other := add(t, c, "other", "b", 0)
	v := c.Do("GETJOB", "NOHANG", "COUNT", 10, "FROM", "q", "other")
	require.Len(t, v.Elems, 3)
	assert.Equal(t, other, v.Elems[1].Elems[1].Str)
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
	assert.Equal(t, "slots", c.Do("QSTAT", "q").Field("limited").Str)
	assert.NotEqual(t, "0", s.Info("jobmesh", "jobmesh_slots_waited"))
	slots := []int64{c.Do("SHOW", ids[0]).Field("queue-slot").Int(), c.Do("SHOW", ids[1]).Field("queue-slot").Int()}
	assert.ElementsMatch(t, []int64{0, 1}, slots)

	w := s.Dial()
	wait := func() {
		t.Helper()
		w.Send("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
		harness.Await(t, 10*time.Second, "the client to wait", func() bool { return c.Do("QSTAT", "q").Field("blocked").Int() == 1 })
	}
	wait()
	require.EqualValues(t, 1, c.Do("ACKJOB", ids[0]).Int())
	require.Equal(t, ids[2], w.Receive().Elems[0].Elems[1].Str)
	wait()
	require.EqualValues(t, 1, c.Do("NACK", ids[1]).Int())
	require.Equal(t, ids[1], w.Receive().Elems[0].Elems[1].Str)
	wait()
	require.EqualValues(t, 1, c.Do("NACK", ids[1], "DELAY", 1000).Int())
	require.Equal(t, ids[3], w.Receive().Elems[0].Elems[1].Str)
	wait()
	require.EqualValues(t, 1, c.Do("DELJOB", ids[3]).Int())
	require.Equal(t, ids[4], w.Receive().Elems[0].Elems[1].Str)
	require.EqualValues(t, 60, c.Do("WORKING", ids[4]).Int())
	wait()
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 3).Str)
	require.Equal(t, ids[5], w.Receive().Elems[0].Elems[1].Str)

	for _, bad := range []any{0, 65536, -1, "x"} {
		require.True(t, c.Do("QCONFIG", "SET", "q", "CONCURRENCY", bad).Err("ERR CONCURRENCY must be between 1 and 65535"), "%v", bad)
	}
}

// C3: a worker dies; its slot is free when the job comes back. An at-most-once job has its slot until it is done with.
func TestLifeC3(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
	first := add(t, c, "q", "1", 0, "RETRY", 1)
	require.Equal(t, first, get(t, c, "q"))
	second := add(t, c, "q", "2", 0, "RETRY", 0)
	require.Equal(t, first, waitFor(t, c, "q"), "after its retry time, and the second doesn't go before it")
	require.EqualValues(t, 1, c.Do("ACKJOB", first).Int())
	require.Equal(t, second, waitFor(t, c, "q"))
	third := add(t, c, "q", "3", 0)
	require.True(t, c.Do("GETJOB", "TIMEOUT", 1500, "FROM", "q").NullArray())
	require.EqualValues(t, 0, c.Do("NACK", second).Int())
	require.Equal(t, third, waitFor(t, c, "q"))
}

// C4, on one server: WORKING keeps the slot.
func TestLifeC4(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
	first := add(t, c, "q", "1", 0, "RETRY", 10)
	require.Equal(t, first, get(t, c, "q"))
	second := add(t, c, "q", "2", 0, "RETRY", 5)
	w := s.Dial()
	w.Send("GETJOB", "TIMEOUT", 60_000, "FROM", "q")
	for range 4 { // longer than its retry time in all
		harness.Await(t, 10*time.Second, "a part of its retry time to be over", func() bool { return c.Do("SHOW", first).Field("next-requeue-within").Int() < 7000 })
		require.True(t, w.Silent(time.Millisecond))
		require.EqualValues(t, 10, c.Do("WORKING", first).Int())
	}
	require.EqualValues(t, 1, c.Do("ACKJOB", first).Int())
	require.Equal(t, second, w.Receive().Elems[0].Elems[1].Str)
}

// C9: two slots, and keys that only one job may have at a time: one job of each key runs.
func TestLifeC9(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 2)
	a1 := add(t, c, "q", "1", 0, "UNIQUE", "during-processing", "KEY", "a")
	a2 := add(t, c, "q", "2", 0, "UNIQUE", "during-processing", "KEY", "a")
	b := add(t, c, "q", "3", 0, "UNIQUE", "during-processing", "KEY", "b")
	b2 := add(t, c, "q", "4", 0, "UNIQUE", "during-processing", "KEY", "b")
	last := add(t, c, "q", "5", 0)
	v := c.Do("GETJOB", "NOHANG", "COUNT", 5, "FROM", "q")
	require.Len(t, v.Elems, 2)
	assert.ElementsMatch(t, []string{a1, b}, []string{v.Elems[0].Elems[1].Str, v.Elems[1].Elems[1].Str})
	c.Do("ACKJOB", a1)
	require.Equal(t, a2, waitFor(t, c, "q"))
	c.Do("ACKJOB", b)
	c.Do("ACKJOB", a2)
	v = c.Do("GETJOB", "TIMEOUT", 5000, "COUNT", 5, "FROM", "q")
	require.Len(t, v.Elems, 2)
	assert.ElementsMatch(t, []string{b2, last}, []string{v.Elems[0].Elems[1].Str, v.Elems[1].Elems[1].Str})
}

// C10: when the limit becomes lower, no job is delivered before fewer are in progress.
func TestLifeC10(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 5)
	for i := range 12 {
		add(t, c, "q", fmt.Sprint(i), 0)
	}
	var out []string
	for _, e := range c.Do("GETJOB", "NOHANG", "COUNT", 12, "FROM", "q").Elems {
		out = append(out, e.Elems[1].Str)
	}
	require.Len(t, out, 5)
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 2)
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
	for range 20 { // whichever is acknowledged, there are never more than before
		if len(out) == 0 {
			break
		}
		c.Do("ACKJOB", out[0])
		out = out[1:]
		for _, e := range c.Do("GETJOB", "NOHANG", "COUNT", 12, "FROM", "q").Elems {
			out = append(out, e.Elems[1].Str)
		}
		require.LessOrEqual(t, len(out), 5)
	}
	require.Empty(t, out)
	assert.Zero(t, c.Do("QLEN", "q").Int())
}

// Slots are known after a restart: those that are out stay out.
func TestSlotsOfAQueueAfterARestart(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
		first, second := add(t, c, "q", "1", 0, "RETRY", 100), add(t, c, "q", "2", 0)
		require.Equal(t, first, get(t, c, "q"))
		if mode == "aof kill" {
			s.AwaitLogged()
		}
		comeBack(t, s, mode)
		c = s.Dial()
		require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
		require.EqualValues(t, 100, c.Do("WORKING", first).Int())
		require.EqualValues(t, 1, c.Do("ACKJOB", first).Int())
		require.Equal(t, second, waitFor(t, c, "q"))
	}, "aof", "aof kill", "rdb", "reload")
}
