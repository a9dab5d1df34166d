package single

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// GETJOB COUNT fetches a job, and then meets one whose time to live is over. By the end of that one
// the first job moves in memory. Setting the first job's worker must not write to its old place.
func TestFetchedJobMovesByTheEndOfAnother(t *testing.T) {
	t.Parallel()
	for _, worker := range []bool{false, true} {
		t.Run(fmt.Sprint("worker ", worker), func(t *testing.T) {
			s := harness.Start(t, harness.WithConfig("appendonly yes"))
			c := s.Dial()
			p := add(t, c, "q2", "parent", 0, "TTL", 1, "RETRY", 1)
			l := add(t, c, "l", "last", 0, "DEFERRED", "AFTER", p, "ONDEAD", "drop", "RETRY", 100)
			e := add(t, c, "q1", "early", 0, "BLOCKEDBY", l, "RETRY", 100)
			require.NotEqual(t, byte('-'), c.Do("RELEASEJOB", l, "LAST").Kind)
			require.Equal(t, "queued", state(c, e))

			// The server stands still. Then it reads the client's command before it looks at its timers.
			fetch := []any{"GETJOB", "COUNT", 2, "FROM", "q1", "q2"}
			if worker {
				fetch = []any{"GETJOB", "WORKER", "a-worker-with-a-name", "COUNT", 2, "FROM", "q1", "q2"}
			}
			c.Send("DEBUG", "SLEEP", "1.5")
			c.Send(fetch...)
			c.Receive()
			r := c.Receive()
			require.Len(t, r.Elems, 1, "%v", r)
			require.Equal(t, e, r.Elems[0].Elems[1].Str)

			// These jobs would be given the memory that was freed.
			bodies := map[string]string{}
			for n := range 300 {
				for range 6 {
					body := fmt.Sprintf("%0*d", n+1, len(bodies))
					bodies[add(t, c, "f", body, 0, "RETRY", 100)] = body
				}
			}
			bad := 0
			for id, body := range bodies {
				if v := c.Do("SHOW", id); v.Null || v.Field("body").Str != body {
					bad++
				}
			}
			assert.Zero(t, bad, "jobs that share their memory with another")
			v := c.Do("SHOW", e)
			assert.Equal(t, "early", v.Field("body").Str)
			if worker {
				assert.Equal(t, "a-worker-with-a-name", v.Field("worker").Str)
			}
			assert.EqualValues(t, 1, c.Do("ACKJOB", e).Int())
			assert.EqualValues(t, len(bodies), c.Do("QLEN", "f").Int())
			assert.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
			assert.EqualValues(t, len(bodies), c.Do("QLEN", "f").Int())
		})
	}
}

// A client waits for two queues. When the pause of the first one ends, an expired job is at its head.
// By the end of that job a job of the second queue is unblocked. The client gets one job, and the
// other stays queued, even if it is an at-most-once job.
func TestWaiterIsServedOnceWhereAJobExpires(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c, w := s.Dial(), s.Dial()
	c.Do("PAUSE", "q1", "out")
	p := add(t, c, "q1", "parent", 0, "TTL", 1, "RETRY", 1)
	once := add(t, c, "q1", "once", 0, "RETRY", 0)
	dependent := add(t, c, "q2", "dependent", 0, "AFTER", p, "ONDEAD", "run")
	w.Send("GETJOB", "TIMEOUT", 10000, "FROM", "q1", "q2")
	awaitBlocked(t, s, 1)
	c.Send("DEBUG", "SLEEP", "1.5")
	c.Send("PAUSE", "q1", "none")
	c.Receive()
	c.Receive()
	r := w.Receive()
	require.Len(t, r.Elems, 1, "%v", r)
	got := []string{r.Elems[0].Elems[1].Str}
	r = c.Do("GETJOB", "TIMEOUT", 5000, "FROM", "q1", "q2")
	require.Len(t, r.Elems, 1, "the other job is with nobody")
	got = append(got, r.Elems[0].Elems[1].Str)
	assert.ElementsMatch(t, []string{once, dependent}, got)
}
