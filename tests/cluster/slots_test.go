package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// C8: a lock with LIMIT 2 has two holders in the whole mesh. It works while a node is down.
func TestLifeC8(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	take := func(s *harness.Server, owner string) (token, slot int64, got bool) {
		t.Helper()
		v := s.Do("LOCK.ACQUIRE", "n", owner, 60_000, "LIMIT", 2)
		if v.NullString() {
			return 0, 0, false
		}
		require.Len(t, v.Elems, 2, "%v", v)
		return v.Elems[0].Int(), v.Elems[1].Int(), true
	}
	held := func(slot int64) { // all nodes have voted before another asks: a vote for that one would stand against it
		t.Helper()
		for _, s := range m {
			harness.Await(t, 10*time.Second, "the slot to be known", func() bool { return !s.Do("LOCK.SHOW", "n", "SLOT", slot).Null })
		}
	}
	_, ofA, got := take(m[0], "a")
	require.True(t, got)
	held(ofA)
	tokenB, ofB, got := take(m[1], "b")
	require.True(t, got)
	held(ofB)
	require.ElementsMatch(t, []int64{0, 1}, []int64{ofA, ofB})
	for _, s := range m {
		_, _, got := take(s, "c")
		require.False(t, got)
	}
	again, of, got := take(m[2], "b")
	require.True(t, got)
	assert.Equal(t, ofB, of, "its owner renews it at any node")
	require.GreaterOrEqual(t, again, tokenB)
	tokenB = again

	// A client that waits at another node gets the slot that becomes free.
	w := m[0].Dial()
	w.Send("LOCK.ACQUIRE", "n", "w", 60_000, "LIMIT", 2, "WAIT", 20_000)
	harness.Await(t, 10*time.Second, "the client to wait", func() bool { return m[0].Do("LOCK.SHOW", "n", "SLOT", ofB).Field("waiting").Is(1) })
	require.Equal(t, "OK", m[2].Do("LOCK.RELEASE", "n", "b", tokenB, "SLOT", ofB).Str)
	v := w.Receive()
	require.Len(t, v.Elems, 2, "%v", v)
	assert.Equal(t, ofB, v.Elems[1].Int())
	assert.Greater(t, v.Elems[0].Int(), tokenB)

	// One may have had b's vote still when it was asked for w's, and then has neither: two votes of three are enough. But none of the two nodes that go on
	// may have b's vote: the third one was told of the release, and says so to the others again only when it goes on, too.
	harness.Await(t, 10*time.Second, "a majority to know of its lock, and all of the release", func() bool {
		owners := map[string]int{}
		for i, s := range m {
			owner := s.Do("LOCK.SHOW", "n", "SLOT", ofB).Field("owner").Str
			if owners[owner]++; owner == "b" && i < 2 {
				return false
			}
		}
		return owners["w"] >= 2
	})
	m[2].Pause()
	defer m[2].Resume()
	m[0].Do("LOCK.RELEASE", "n", "w", v.Elems[0].Int(), "SLOT", ofB) // it may be that only the stopped node has the very vote that counted
	harness.Await(t, 10*time.Second, "the slot to be free", func() bool {
		_, of, got = take(m[1], "d")
		return got
	})
	assert.Equal(t, ofB, of, "a node is down")
	_, _, got = take(m[0], "e")
	require.False(t, got)
	m[2].Resume()

	assert.EqualValues(t, 2, m[0].Do("LOCK.CLEAR", "n").Int())
	for _, s := range m {
		harness.Await(t, 10*time.Second, "all slots to be clear", func() bool {
			return s.Do("LOCK.SHOW", "n").Null && s.Do("LOCK.SHOW", "n", "SLOT", 1).Null
		})
	}
	for i, s := range m {
		_, _, got := take(s, fmt.Sprint("after", i))
		require.Equal(t, i < 2, got)
	}
}
