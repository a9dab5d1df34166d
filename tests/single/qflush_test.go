package single

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// waitingJobs adds so many jobs to a queue.
func waitingJobs(t *testing.T, c *harness.Conn, queue string, jobs int) {
	t.Helper()
	const call = 1000
	for left := jobs; left > 0; left -= call {
		args := []any{"ADDJOBS", queue, 0, "BODIES"}
		for i := range min(left, call) {
			args = append(args, fmt.Sprint(i))
		}
		require.Len(t, c.Do(args...).Elems, min(left, call))
	}
}

func TestQueueFlush(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c, c3 := s.Dial(), s.Dial3()
	waitingJobs(t, c, "q", 10)
	require.Equal(t, byte('+'), c.Do("ADDJOB", "q", "delayed", 0, "DELAY", 100).Kind)
	require.Equal(t, byte('+'), c.Do("ADDJOB", "q", "once", 0, "RETRY", 0).Kind)
	waitingJobs(t, c, "other", 3)
	inHands := c.Do("GETJOB", "FROM", "q").Elems[0].Elems[1].Str
	c.Do("PAUSE", "q", "in")
	assert.Equal(t, int64(11), c.Do("QFLUSH", "q").Int())
	assert.Zero(t, c.Do("QFLUSH", "q").Int())
	assert.Zero(t, c.Do("QFLUSH", "none").Int())
	v := c.Do("QSTAT", "q")
	assert.Zero(t, v.Field("len").Int()+v.Field("delayed").Int())
	assert.Equal(t, int64(1), v.Field("in-progress").Int())
	assert.Equal(t, "in", v.Field("pause").Str)
	assert.Equal(t, int64(3), c.Do("QLEN", "other").Int())
	c.Do("PAUSE", "q", "none")

	// The job in hands comes back, and goes with ALL.
	require.Equal(t, int64(1), c.Do("NACK", inHands).Int())
	assert.Equal(t, inHands, c.Do("GETJOB", "FROM", "q").Elems[0].Elems[1].Str)
	assert.Equal(t, int64(1), c.Do("QFLUSH", "q", "ALL").Int())
	assert.Contains(t, c.Do("WORKING", inHands).Str, "CANCELLED")

	// A node that is alone is a mesh of one.
	waitingJobs(t, c, "q", 5)
	for _, conn := range []*harness.Conn{c, c3} {
		v = conn.Do("QFLUSH", "q", "MESH", "TIMEOUT", 500)
		assert.Len(t, v.Field("unanswered").Elems, 0)
	}
	waitingJobs(t, c, "q", 5)
	assert.Equal(t, int64(5), c3.Do("QFLUSH", "q", "ALL", "MESH").Field("flushed").Int())

	for _, bad := range [][]any{{"QFLUSH"}, {"QFLUSH", "q", "SOME"}, {"QFLUSH", "q", "TIMEOUT", 1}, {"QFLUSH", "q", "MESH", "TIMEOUT"}, {"QFLUSH", "q", "MESH", "TIMEOUT", -1},
		{"QFLUSH", "q", "MESH", "TIMEOUT", "x"}, {"QFLUSH", "q", "MESH", "ALL", "q"}} {
		assert.Equal(t, byte('-'), c.Do(bad...).Kind, "%v", bad)
	}
	require.Equal(t, "OK", c.Do("SET", "text", "x").Str)
	assert.Contains(t, c.Do("QFLUSH", "text").Str, "WRONGTYPE")
	assert.Contains(t, c.Do("QFLUSH", "text", "MESH").Str, "WRONGTYPE")
}

// In MULTI and scripts the reply tells how many jobs go, also if they are very many; they are seen by nobody from then on.
func TestQueueFlushInMultiAndScripts(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	for _, jobs := range []int{10, 30_000} {
		waitingJobs(t, c, "q", jobs)
		v := all(t, c, []any{"QFLUSH", "q"}, []any{"GETJOB", "NOHANG", "FROM", "q"}, []any{"ADDJOB", "q", "new", 0})
		assert.Equal(t, int64(jobs), v[0].Int())
		assert.True(t, v[1].Null, "%v", v[1])
		got := c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
		require.Len(t, got.Elems, 1)
		assert.Equal(t, v[2].Str, got.Elems[0].Elems[1].Str)
		c.Do("ACKJOB", v[2].Str)
		waitingJobs(t, c, "q", jobs)
		assert.Equal(t, int64(jobs), c.Do("EVAL", "return redis.call('QFLUSH', KEYS[1])", 1, "q").Int())
		harness.Await(t, 20*time.Second, "all to go", func() bool { return c.Do("QLEN", "q").Int() == 0 })
		assert.Contains(t, c.Do("EVAL", "return redis.call('QFLUSH', KEYS[1], 'MESH')", 1, "q").Str, "MESH has to wait")
	}
}

// Very many jobs go in slices. A client that waits is given none of them, and a replica and the log follow.
func TestQueueFlushOfVeryMany(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	replica := harness.Start(t, harness.WithReplicaOf(s))
	replica.AwaitSync()
	c, other := s.Dial(), s.Dial()
	waitingJobs(t, c, "q", 100_000)
	c.Send("QFLUSH", "q")
	other.Send("GETJOB", "TIMEOUT", 60_000, "FROM", "q")
	require.Equal(t, int64(100_000), c.Receive().Int())
	id := c.Do("ADDJOB", "q", "new", 0).Str
	assert.Equal(t, id, other.Receive().Elems[0].Elems[1].Str)
	harness.Await(t, 20*time.Second, "the replica to follow", func() bool { return replica.Info("jobmesh", "jobmesh_registered_jobs") == "1" })
	s.Kill()
	s.Restart()
	assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_registered_jobs"))
	assert.Equal(t, byte('-'), replica.Do("QFLUSH", "q").Kind)

	// A client that goes away while it waits, or is unblocked, ends nothing.
	c = s.Dial()
	waitingJobs(t, c, "q", 50_000)
	gone := s.Dial()
	gone.Send("QFLUSH", "q")
	gone.Close()
	harness.Await(t, 20*time.Second, "all to go", func() bool { return c.Do("QLEN", "q").Int() == 0 })
}
