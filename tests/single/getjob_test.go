package single

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// infoOf is the map that WITHINFO adds to the answer for a job.
func infoOf(t *testing.T, job harness.Value) harness.Value {
	t.Helper()
	require.NotEmpty(t, job.Elems)
	return job.Elems[len(job.Elems)-1]
}

// WITHINFO adds a map at the end of each job's answer: a flat array in RESP2.
func TestGetJobWithInfo(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	for kind, c := range map[byte]*harness.Conn{'*': s.Dial(), '%': s.Dial3()} {
		began := time.Now().UnixMilli()
		id := add(t, c, "q", "b", 0, "RETRY", 60, "PRIORITY", -7, "UNIQUE", "during-processing")
		check := func(job harness.Value, elements int, deliveries, nacks int64) {
			t.Helper()
			require.Len(t, job.Elems, elements)
			assert.Equal(t, []string{"q", id, "b"}, job.Strings()[:3])
			v := infoOf(t, job)
			assert.Equal(t, kind, v.Kind)
			assert.Equal(t, []string{"retry", "priority", "created", "deliveries", "nacks"}, fields(v))
			assert.Equal(t, int64(60), v.Field("retry").Int())
			assert.Equal(t, int64(-7), v.Field("priority").Int())
			assert.InDelta(t, began, v.Field("created").Int(), 5000)
			assert.Equal(t, deliveries, v.Field("deliveries").Int())
			assert.Equal(t, nacks, v.Field("nacks").Int())
		}
		check(c.Do("GETJOB", "WITHINFO", "FROM", "q").Elems[0], 4, 0, 0)
		require.Equal(t, int64(1), c.Do("NACK", id).Int())
		job := c.Do("GETJOB", "withinfo", "WITHTOKEN", "WITHCOUNTERS", "NOHANG", "FROM", "q").Elems[0]
		check(job, 10, 0, 1)
		assert.Equal(t, []string{"nacks", "additional-deliveries", "token"}, []string{job.Elems[3].Str, job.Elems[5].Str, job.Elems[7].Str})
		require.Equal(t, int64(1), c.Do("ENQUEUE", id).Int())
		check(c.Do("GETJOB", "WITHTOKEN", "WITHINFO", "FROM", "q").Elems[0], 6, 1, 1)

		// A client that waits hears the same, and so does one that waits for several.
		for deliveries, get := range [][]any{{"GETJOB", "WITHINFO", "FROM", "q"}, {"GETJOB", "WITHINFO", "COUNT", 3, "FROM", "q"}} {
			w := s.Dial()
			if kind == '%' {
				w = s.Dial3()
			}
			w.Send(get...)
			awaitBlocked(t, s, 1)
			require.Equal(t, int64(1), c.Do("ENQUEUE", id).Int())
			check(w.Receive().Elems[0], 4, int64(deliveries)+2, 1)
		}
		require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
	}
}

// WITHINFO in a transaction and in a script, for several jobs, of which one is tried once at most.
func TestGetJobWithInfoInsideATransaction(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	add(t, c, "q", "a", 0, "RETRY", 0)
	add(t, c, "q", "b", 0, "RETRY", 5)
	require.Equal(t, "OK", c.Do("MULTI").Str)
	c.Do("GETJOB", "COUNT", 9, "WITHINFO", "FROM", "q")
	jobs := c.Do("EXEC").Elems[0].Elems
	require.Len(t, jobs, 2)
	assert.Equal(t, int64(0), infoOf(t, jobs[0]).Field("retry").Int())
	assert.Equal(t, int64(5), infoOf(t, jobs[1]).Field("retry").Int())
	add(t, c, "q", "c", 0, "RETRY", 6)
	job := c.Do("EVAL", "return redis.call('GETJOB', 'WITHINFO', 'FROM', KEYS[1])[1]", 1, "q")
	assert.Equal(t, int64(6), infoOf(t, job).Field("retry").Int())
}

// due is in how many ms a job is queued again.
func due(c *harness.Conn, id string) int64 {
	return c.Do("SHOW", id).Field("next-requeue-within").Int()
}

// The lease of a GETJOB is how long its client has the job. It counts for one delivery.
func TestGetJobWithALease(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 100, "TTL", 100_000)
	job := c.Do("GETJOB", "LEASE", 1, "WITHINFO", "FROM", "q").Elems[0]
	assert.Equal(t, int64(1), infoOf(t, job).Field("retry").Int())
	harness.Await(t, 10*time.Second, "the job to come back", func() bool { return state(c, id) == "queued" })
	assert.Equal(t, int64(1), c.Do("SHOW", id).Field("additional-deliveries").Int())
	job = c.Do("GETJOB", "WITHINFO", "FROM", "q").Elems[0]
	assert.Equal(t, int64(100), infoOf(t, job).Field("retry").Int(), "the next delivery")
	assert.InDelta(t, 100_000, due(c, id), 2000)
	assert.Equal(t, int64(100), c.Do("WORKING", id).Int())

	for _, give := range [][]any{{"NACK", id}, {"ENQUEUE", id}, {"NACK", id, "DELAY", 0}} {
		require.Equal(t, int64(1), c.Do(give...).Int())
		require.Len(t, c.Do("GETJOB", "lease", 5000, "WORKER", "w", "FROM", "q").Elems, 1)
		assert.InDelta(t, 5_000_000, due(c, id), 2000)
		wip := c.Do("WIP", "q").Elems[0].Elems
		assert.Equal(t, int64(5_000_000), wip[1].Int()-wip[2].Int(), "when it is due, and since when it is worked on")
		require.Equal(t, int64(1), c.Do(give...).Int())
		get(t, c, "q")
		assert.InDelta(t, 100_000, due(c, id), 2000)
	}

	// A longer lease than what is left of the job's life.
	short := add(t, c, "short", "b", 0, "RETRY", 5, "TTL", 10)
	require.Len(t, c.Do("GETJOB", "LEASE", 1000, "FROM", "short").Elems, 1)
	assert.InDelta(t, 1000, c.Do("SHOW", short).Field("ttl").Int(), 2)
	assert.Equal(t, int64(1000), c.Do("WORKING", short).Int())
	assert.InDelta(t, 2000, c.Do("SHOW", short).Field("ttl").Int(), 2)

	// A client that waits; and one that is gone, whose lease doesn't stay.
	require.Equal(t, int64(1), c.Do("NACK", id).Int())
	get(t, c, "q")
	for _, get := range [][]any{{"GETJOB", "LEASE", 7, "FROM", "q"}, {"GETJOB", "COUNT", 5, "LEASE", 7, "FROM", "q"}} {
		w := s.Dial()
		w.Send(get...)
		awaitBlocked(t, s, 1)
		require.Equal(t, int64(1), c.Do("NACK", id).Int())
		require.Len(t, w.Receive().Elems, 1)
		assert.InDelta(t, 7000, due(c, id), 2000)
		assert.Equal(t, int64(7), c.Do("WORKING", id).Int())
	}

	once := add(t, c, "once", "b", 0, "RETRY", 0)
	job = c.Do("GETJOB", "LEASE", 1, "WITHINFO", "FROM", "once").Elems[0]
	assert.Equal(t, int64(0), infoOf(t, job).Field("retry").Int())
	assert.Equal(t, int64(0), c.Do("WORKING", once).Int())

	const lease = "ERR LEASE must be a number of seconds > 0, at most 2147483647"
	for _, bad := range []any{0, -1, 2147483648, "x", "", "1.5"} {
		require.Equal(t, lease, c.Do("GETJOB", "LEASE", bad, "FROM", "q").Str)
	}
	require.Equal(t, "ERR syntax error", c.Do("GETJOB", "LEASE").Str)
	add(t, c, "long", "b", 0)
	require.Len(t, c.Do("GETJOB", "LEASE", 2147483647, "FROM", "long").Elems, 1)
	require.True(t, c.Do("GETJOB", "NOHANG", "LEASE", 5, "FROM", "nothing").NullArray())
}

// A job in progress keeps its lease over a restart, and WORKING begins it anew.
func TestLeasesAreSaved(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		long := add(t, c, "q", "long", 0, "RETRY", 10, "TTL", 1000)
		require.Len(t, c.Do("GETJOB", "LEASE", 5000, "FROM", "q").Elems, 1)
		unique := add(t, c, "q", "unique", 0, "RETRY", 1000, "UNIQUE", "during-processing")
		require.Len(t, c.Do("GETJOB", "LEASE", 8, "FROM", "q").Elems, 1)
		comeBack(t, s, mode)
		c = s.Dial()
		assert.InDelta(t, 5_000_000, due(c, long), 10_000)
		assert.LessOrEqual(t, due(c, unique), int64(8000))
		assert.Len(t, c.Do("WIP", "q").Elems, 2)
		assert.Equal(t, int64(5000), c.Do("WORKING", long).Int())
		assert.Equal(t, int64(8), c.Do("WORKING", unique).Int())
		harness.Await(t, 20*time.Second, "the job to come back", func() bool { return state(c, unique) == "queued" })
		require.Equal(t, unique, get(t, c, "q"))
		assert.Equal(t, int64(1000), c.Do("WORKING", unique).Int())
	}, "aof", "aof-kill", "aof-rewritten", "rdb", "reload")
}

// A job whose client was gone before the answer has no lease at its next delivery.
func TestUndeliveredLease(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	w := s.Dial()
	w.Send("GETJOB", "LEASE", 50, "FROM", "q")
	awaitBlocked(t, s, 1)
	c.Send("MULTI") // the client goes in the moment in which the job comes
	c.Send("ADDJOB", "q", "b", 0, "RETRY", 1000)
	c.Send("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	c.Send("EXEC")
	for range 3 {
		c.Receive()
	}
	v := c.Receive()
	require.Len(t, v.Elems, 2)
	id := v.Elems[0].Str
	harness.Await(t, 10*time.Second, "the job is queued", func() bool { return state(c, id) == "queued" })
	require.Equal(t, id, get(t, c, "q"))
	assert.Equal(t, int64(1000), c.Do("WORKING", id).Int())
}
