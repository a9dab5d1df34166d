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
