package cluster

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// flushedMesh flushes a queue everywhere, and returns how many jobs have gone. All nodes must have answered.
func flushedMesh(t *testing.T, s *harness.Server, queue string, options ...any) int64 {
	t.Helper()
	v := s.Do(append([]any{"QFLUSH", queue, "MESH", "TIMEOUT", 30_000}, options...)...)
	require.NotEmpty(t, v.Elems, "%v", v)
	require.Empty(t, v.Field("unanswered").Elems, "%v", v)
	return v.Field("flushed").Int()
}

// noCopies waits until no node knows any of some jobs.
func (m mesh) noCopies(t *testing.T, ids ...string) {
	t.Helper()
	for i, s := range m {
		c := s.Dial()
		for _, id := range ids {
			c.Later("SHOW", id)
		}
		var there []string
		for _, id := range ids {
			if !c.Receive().Null {
				there = append(there, id)
			}
		}
		for _, id := range there {
			harness.Await(t, 20*time.Second, fmt.Sprintf("%s to go at node %d", id, i), func() bool { return c.Do("SHOW", id).Null })
		}
	}
}

// X1: jobs that wait, are delayed, deferred, blocked, or wait for their key are gone everywhere, whichever node they are at.
func TestLifeX1(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "jobmesh.repair-after 0")
	ids := m.spread(t, 3000, "q", "RETRY", 1000)
	ids = append(ids, m.spread(t, 60, "q", "RETRY", 1000, "DELAY", 1000)...)
	deferred := m.spread(t, 3, "q", "RETRY", 1000, "DEFERRED")
	ids = append(ids, deferred...)
	ids = append(ids, m.spread(t, 6, "q", "RETRY", 1000, "BLOCKEDBY", deferred[0])...)
	others := m.spread(t, 30, "other", "RETRY", 1000)
	assert.InDelta(t, len(ids), flushedMesh(t, m[1], "q"), 6) // blocked jobs go with the one that blocks them, and may be counted by nobody
	m.noCopies(t, ids...)
	for _, s := range m {
		assert.Zero(t, s.Do("QSTAT", "q", "MESH").Field("len").Int())
		awaitCount(t, s, "other", "len", int64(len(others)))
	}
	assert.Zero(t, flushedMesh(t, m[0], "q"))
	assert.Zero(t, flushedMesh(t, m[0], "never there"))
}

// X1 with a million jobs: all three copies of each go, and the servers answer others meanwhile.
func TestLongFlushOfAMillion(t *testing.T) {
	m := start(t, 3, "jobmesh.repair-after 0")
	const n, batch = 1_000_000, 10_000
	for i := 0; i < n; i += batch {
		all, refused := promised(t, m[i/batch%3].Do(bulk("q 60000 REPLICATE 3 RETRY 10000 TTL 80000", batch)...), "")
		require.Zero(t, refused)
		require.Len(t, all, batch)
	}
	for _, s := range m {
		require.Equal(t, strconv.Itoa(n), jobs(s))
	}
	flush, other := m[1].Dial(), m[2].Dial()
	began := time.Now()
	flush.Send("QFLUSH", "q", "MESH", "TIMEOUT", 600_000)
	var answers []time.Duration
	harness.Await(t, 600*time.Second, "all copies to go", func() bool {
		asked := time.Now()
		require.Equal(t, "PONG", other.Do("PING").Str)
		answers = append(answers, time.Since(asked))
		return jobs(m[0]) == "0" && jobs(m[1]) == "0" && jobs(m[2]) == "0"
	})
	t.Logf("no copy is left after %v", time.Since(began))
	v := flush.Receive()
	assert.Equal(t, int64(n), v.Field("flushed").Int())
	assert.Empty(t, v.Field("unanswered").Elems)
	slices.Sort(answers)
	t.Logf("of %d answers meanwhile half took %v, 99 %% up to %v, the longest %v",
		len(answers), answers[len(answers)/2], answers[len(answers)*99/100], answers[len(answers)-1])
	assert.Less(t, answers[len(answers)/2], 100*time.Millisecond, "others are answered meanwhile")
}

// X3: a job that is added after the answer stays, at any node, though the clocks of the nodes differ.
func TestLifeX3(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	old := m.spread(t, 9, "q", "RETRY", 1000)
	for range 20 {
		for i := range m {
			flushedMesh(t, m[i], "q")
			var ids []string
			for _, s := range m {
				ids = append(ids, added(t, s.Dial(), "q", "b", 10_000, "REPLICATE", 3, "RETRY", 1000))
			}
			for k, s := range m {
				for _, id := range ids {
					require.False(t, s.Do("SHOW", id).Null, "%s at node %d", id, k)
				}
			}
		}
	}
	m.noCopies(t, old...)
	assert.Equal(t, int64(3), m[0].Do("QLEN", "q", "MESH").Field("len").Int())
}

// X4: a job in somebody's hands stays, and after a NACK it is queued, handed over and done at another node. With ALL it goes.
func TestLifeX4(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes")
	for _, all := range []bool{false, true} {
		queue := fmt.Sprint("q", all)
		m.spread(t, 30, queue, "RETRY", 1000)
		inHands := fetched(t, m[0].Dial(), queue)
		if all {
			assert.Equal(t, int64(30), flushedMesh(t, m[1], queue, "ALL"))
			m.noCopies(t, inHands)
			assert.Contains(t, m[0].Do("WORKING", inHands).Str, "CANCELLED")
			continue
		}
		assert.Equal(t, int64(29), flushedMesh(t, m[1], queue))
		for i, s := range m {
			harness.Await(t, 10*time.Second, fmt.Sprintf("the copy at node %d", i), func() bool { return !s.Do("SHOW", inHands).Null })
		}
		assert.Equal(t, int64(1000), m[0].Do("WORKING", inHands).Int())
		assert.Equal(t, int64(1), awaitCount(t, m[2], queue, "in-progress", 1).Field("in-progress").Int())

		// A later start, and another flush, leave it to its worker, too.
		m[0].Stop()
		m[0].Restart()
		m.await(t, 3)
		assert.Zero(t, flushedMesh(t, m[2], queue))
		require.Equal(t, int64(1), m[0].Do("NACK", inHands).Int())
		c := m[2].Dial()
		v := c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", queue)
		require.Len(t, v.Elems, 1, "%v", v)
		assert.Equal(t, inHands, v.Elems[0].Elems[1].Str)
		require.Equal(t, int64(1), c.Do("ACKJOB", inHands).Int())
		harness.Await(t, 10*time.Second, "the job to be forgotten", func() bool { return m[0].Do("SHOW", inHands).Null && m[1].Do("SHOW", inHands).Null })
	}
}

// X5: without MESH the jobs of this node go, everywhere, and those of other nodes stay.
func TestLifeX5(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	var own, theirs []string
	for range 20 {
		own = append(own, added(t, m[0].Dial(), "q", "b", 10_000, "REPLICATE", 3, "RETRY", 1000))
		theirs = append(theirs, added(t, m[1].Dial(), "q", "b", 10_000, "REPLICATE", 3, "RETRY", 1000))
	}
	delayed := added(t, m[0].Dial(), "q", "b", 10_000, "REPLICATE", 3, "RETRY", 1000, "DELAY", 100)
	inHands := fetched(t, m[0].Dial(), "q")
	assert.Equal(t, int64(20), m[0].Do("QFLUSH", "q").Int())
	harness.Await(t, 10*time.Second, "its jobs to go", func() bool {
		for _, s := range m {
			c := s.Dial()
			for _, id := range append(own, delayed) {
				if id != inHands && !c.Do("SHOW", id).Null {
					return false
				}
			}
		}
		return true
	})
	assert.Equal(t, int64(20), m[1].Do("QLEN", "q").Int())
	assert.Equal(t, int64(1), m[0].Do("QFLUSH", "q", "ALL").Int())
	harness.Await(t, 10*time.Second, "the job in hands to go", func() bool { return m[2].Do("SHOW", inHands).Null })
	for _, id := range theirs {
		assert.Equal(t, "queued", m[1].Do("SHOW", id).Field("state").Str)
	}
}

// X6: the keys of unique jobs that are flushed are free, at all nodes.
func TestLifeX6(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for _, mesh := range []bool{true, false} {
		for i := range 10 {
			added(t, m[0].Dial(), "q", fmt.Sprint(i), 10_000, "REPLICATE", 2, "RETRY", 1000, "UNIQUE", "until-processed", "SCOPE", "mesh")
		}
		if mesh {
			assert.Equal(t, int64(10), flushedMesh(t, m[2], "q"))
		} else {
			assert.Equal(t, int64(10), m[0].Do("QFLUSH", "q").Int())
		}
		for i := range 10 {
			harness.Await(t, 10*time.Second, "the key to be free", func() bool {
				v := m[1].Do("ADDJOB", "q", fmt.Sprint(i), 10_000, "REPLICATE", 2, "RETRY", 1000, "UNIQUE", "until-processed", "SCOPE", "mesh")
				return v.Kind == '+'
			})
		}
		assert.Equal(t, int64(10), flushedMesh(t, m[2], "q"))
	}
}

// X7: what a flushed deferred job blocks in another queue goes with it; what waits for a flushed one does as its ONDEAD says.
func TestLifeX7(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	deferred := added(t, m[0].Dial(), "q", "b", 10_000, "REPLICATE", 3, "RETRY", 1000, "DEFERRED")
	blocked := added(t, m[0].Dial(), "p", "b", 10_000, "REPLICATE", 3, "RETRY", 1000, "BLOCKEDBY", deferred)
	parent := added(t, m[0].Dial(), "q", "b", 10_000, "REPLICATE", 3, "RETRY", 1000)
	runs := added(t, m[0].Dial(), "p", "b", 10_000, "REPLICATE", 3, "RETRY", 1000, "AFTER", parent, "ONDEAD", "run")
	drops := added(t, m[0].Dial(), "p", "b", 10_000, "REPLICATE", 3, "RETRY", 1000, "AFTER", parent, "ONDEAD", "drop")
	assert.Equal(t, int64(2), flushedMesh(t, m[1], "q"))
	harness.Await(t, 10*time.Second, "the dependents to follow", func() bool {
		for _, s := range m {
			if !s.Do("SHOW", blocked).Null || !s.Do("SHOW", drops).Null {
				return false
			}
		}
		return true
	})
	v := m[2].Do("GETJOB", "TIMEOUT", 20_000, "FROM", "p")
	require.Len(t, v.Elems, 1)
	assert.Equal(t, runs, v.Elems[0].Elems[1].Str)
}

// X2: a node is away while a queue is flushed. It comes back with copies of the jobs, and delivers none of them. (Jobs that it would itself have
// queued stay: see QFLUSH in COMMANDS.md.)
func TestLifeX2(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "jobmesh.repair-after 0")
	var ids []string
	for range 60 {
		ids = append(ids, added(t, m[0].Dial(), "q", "b", 10_000, "REPLICATE", 3, "RETRY", 5))
	}
	own := added(t, m[2].Dial(), "own", "b", 10_000, "REPLICATE", 1, "RETRY", 1000)
	m[2].AwaitLogged()
	away := id(m[2])
	m[2].Kill()
	v := m[1].Do("QFLUSH", "q", "MESH", "TIMEOUT", 10_000)
	require.Equal(t, []string{away}, v.Field("unanswered").Strings(), "%v", v)
	require.Equal(t, int64(len(ids)), v.Field("flushed").Int())
	m[:2].noCopiesWaiting(t, "q")
	m[2].Restart()
	m.await(t, 3)
	m.noCopies(t, ids...)
	for _, s := range m {
		assert.True(t, s.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
	}
	assert.Equal(t, own, fetched(t, m[2].Dial(), "own"))
}

// noCopiesWaiting checks that nothing waits in a queue at any of these nodes.
func (m mesh) noCopiesWaiting(t *testing.T, queue string) {
	t.Helper()
	for _, s := range m {
		require.Zero(t, s.Do("QLEN", queue).Int())
	}
}
