package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// All nodes are killed, and then, for good, the node that added the job. Locks are as the jobs
// say, and windows last for the time that is left of them.
func TestUniqueSurvivesItsNodes(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "appendfsync always")
	job := []any{"REPLICATE", 2, "RETRY", 60, "UNIQUE", "until-processed", "KEY", "k"}
	window := []any{"REPLICATE", 1, "UNIQUE", "window", "TTL", 1000, "KEY", "k"}
	again := func(s *harness.Server, queue string, options []any) harness.Value {
		return s.Do(append([]any{"ADDJOB", queue, "other", 5000}, options...)...)
	}
	id := addUnique(t, m[0], "q", "b", job...)
	done := addUnique(t, m[0], "w", "b", window...)
	require.Equal(t, int64(1), m[0].Do("ACKJOB", done).Int())
	holders := m[0].Do("SHOW", id).Field("nodes-delivered").Strings()
	for _, s := range m {
		s.Kill()
	}
	m.restart()
	m.await(t, 3)
	m.votes(t)
	for i, s := range m {
		v := again(s, "q", job)
		assert.True(t, v.NullString(), "node %d: %v", i, v)
		v = again(s, "w", window)
		assert.True(t, v.NullString(), "node %d: %v", i, v)
	}
	assert.Less(t, m[1].Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", "w").Field("lease").Int(), int64(1_000_001))

	// The node that added the job is gone; another that holds it has it still.
	m[0].Kill()
	rest := mesh{m[1], m[2]}
	for i, s := range rest {
		v := again(s, "q", job)
		assert.True(t, v.NullString(), "node %d: %v", i, v)
	}
	holder := m[1]
	if holders[0] == m[2].Do("JOBMESH", "CLUSTER", "MYID").Str || holders[1] == m[2].Do("JOBMESH", "CLUSTER", "MYID").Str {
		holder = m[2]
	}
	require.Equal(t, int64(1), holder.Do("ACKJOB", id).Int())
	harness.Await(t, 10*time.Second, "the key to be free", func() bool {
		return again(m[1], "q", []any{"REPLICATE", 1, "UNIQUE", "until-processed", "KEY", "k"}).Kind == '+'
	})
}

// MULTI, NOHANG and COUNT with jobs for which other nodes are asked. A deferred job that is
// released into another queue takes its lock along.
func TestWhatAsksTheMesh(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	c := m[0].Dial()
	during := []any{"REPLICATE", 1, "RETRY", 60, "UNIQUE", "during-processing", "KEY"}
	ids := map[string]bool{}
	for _, key := range []any{"a", "a", "b"} {
		ids[addUnique(t, m[0], "q", "b", append(during, key)...)] = true
	}
	c.Do("MULTI")
	c.Do("GETJOB", "FROM", "q")
	v := c.Do("EXEC")
	require.Len(t, v.Elems, 1)
	assert.True(t, v.Elems[0].NullArray(), "%v", v)
	for range 2 {
		// NOHANG gives up if the machine is so busy that no node answers in a second.
		harness.Await(t, 20*time.Second, "the others to agree", func() bool {
			v = c.Do("GETJOB", "NOHANG", "COUNT", 10, "FROM", "q")
			return len(v.Elems) > 0
		})
		require.Len(t, v.Elems, 1, "%v", v)
		assert.True(t, ids[v.Elems[0].Elems[1].Str])
		delete(ids, v.Elems[0].Elems[1].Str)
	}
	assert.True(t, c.Do("GETJOB", "NOHANG", "COUNT", 10, "FROM", "q").NullArray(), "the third has the key of one that runs")
	require.Len(t, ids, 1)

	until := []any{"REPLICATE", 1, "UNIQUE", "until-processed", "KEY", "k"}
	d := addUnique(t, m[0], "from", "d", append(until, "DEFERRED")...)
	other := addUnique(t, m[0], "taken", "o", until...)
	assert.True(t, m[0].Do("RELEASEJOB", d, "QUEUE", "taken").Err("DUPLICATE "+other))
	require.Equal(t, int64(1), m[0].Do("RELEASEJOB", d, "QUEUE", "to").Int())
	harness.Await(t, 5*time.Second, "its lock to have come along", func() bool { return m[0].Do("SHOW", d).Field("lock").Str == "wait" })
	for _, s := range m {
		v := s.Do(append([]any{"ADDJOB", "to", "x", 5000}, until...)...)
		assert.True(t, v.NullString(), "%v", v)
	}
	harness.Await(t, 5*time.Second, "its key to be free where it was", func() bool {
		return m[2].Do(append([]any{"ADDJOB", "from", "x", 5000}, until...)...).Kind == '+'
	})
}

// Unique jobs in a partition: the side of two nodes adds and runs them, the side of one refuses,
// except with QUORUM any. Afterwards the older of two jobs has the key, however many nodes gave
// it the key.
func TestUniqueInAPartition(t *testing.T) {
	t.Parallel()
	w := namespaces(t, 3)
	w.votes(t)
	add := func(i int, queue string, more ...any) harness.Value {
		return w.mesh[i].Do(append([]any{"ADDJOB", queue, "b", 2000, "REPLICATE", 1, "RETRY", 60, "UNIQUE"}, more...)...)
	}
	held := add(2, "held", "until-processed")
	require.Equal(t, byte('+'), held.Kind, "%v", held)
	run := add(2, "run", "during-processing", "SCOPE", "mesh")
	require.Equal(t, byte('+'), run.Kind, "%v", run)
	w.move(1, 2)
	for i, want := range []byte{'+', '$', '-'} {
		v := add(i, "q", "until-processed")
		assert.Equal(t, want, v.Kind, "node %d: %v", i, v)
	}
	assert.True(t, add(1, "held", "until-processed").NullString(), "the other side has it")
	assert.True(t, w.mesh[2].Do("GETJOB", "NOHANG", "FROM", "run").NullArray(), "nothing runs without a majority")
	harness.Await(t, 20*time.Second, "the silence to be noticed", func() bool { return links(w.mesh[2]) == 0 })
	tokens := map[int64]bool{}
	any := func(i int, queue string) (id string) {
		v := add(i, queue, "until-processed", "QUORUM", "any")
		require.Equal(t, byte('+'), v.Kind, "node %d: %v", i, v)
		lock := w.mesh[i].Do("LOCK.SHOW", "b", "TYPE", "waiting", "QUEUE", queue)
		tokens[lock.Field("token").Int()] = true
		since := lock.Field("since").Int()
		// Two locks from the same tick of the kernel's clock, 10 ms at most: either may be the older.
		harness.Await(t, 5*time.Second, "a tick to pass", func() bool { return time.Now().UnixMilli() > since+20 })
		return v.Str
	}
	lone1, most1 := any(2, "any"), any(0, "any")
	most2, lone2 := any(0, "any2"), any(2, "any2")
	assert.Len(t, tokens, 4, "no two sides give the same token")
	w.move(0, 2)
	w.await(t, 3)
	for _, c := range []struct {
		node, other    int
		older, younger string
	}{{2, 0, lone1, most1}, {0, 2, most2, lone2}} {
		harness.Await(t, 20*time.Second, "the younger one to have lost the key", func() bool { return w.mesh[c.other].Do("WORKING", c.younger).Err("LOCKLOST") })
		assert.Equal(t, "none", w.mesh[c.other].Do("SHOW", c.younger).Field("lock").Str)
		assert.Equal(t, int64(60), w.mesh[c.node].Do("WORKING", c.older).Int(), "the older one has it")
	}
	for i := range 3 {
		for _, queue := range []string{"q", "any", "any2", "held"} {
			v := add(i, queue, "until-processed")
			assert.True(t, v.NullString(), "node %d, %s: %v", i, queue, v)
		}
	}
	v := w.mesh[2].Do("GETJOB", "TIMEOUT", 10_000, "FROM", "run")
	require.Len(t, v.Elems, 1, "%v", v)
	assert.Equal(t, run.Str, v.Elems[0].Elems[1].Str)
}
