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

// Very many jobs go in slices. A client that waits is given none of them, and a replica and the log follow (which the server writes at once: with
// everysec it may wait for the disk).
func TestLongQueueFlushOfVeryMany(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync no"))
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

// A flush is of the queue that had the name. One that gets the name while very many jobs go keeps its own.
func TestAFlushSparesAQueueThatIsRenamed(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "other", "b", 0)
	waitingJobs(t, c, "q", 30_000)
	v := all(t, c, []any{"QFLUSH", "q"}, []any{"RENAME", "other", "q"})
	require.Equal(t, int64(30_000), v[0].Int())
	harness.Await(t, 20*time.Second, "the jobs to go", func() bool { return s.Info("jobmesh", "jobmesh_registered_jobs") == "1" })
	waitingJobs(t, c, "q", 30_000)
	v = all(t, c, []any{"QFLUSH", "q"}, []any{"RENAME", "q", "other"}, []any{"ADDJOB", "other", "later", 0})
	harness.Await(t, 20*time.Second, "the jobs to go under their new name", func() bool { return c.Do("QLEN", "other").Is(1) })
	assert.True(t, s.Do("SHOW", id).Null, "it waited in q")
	assert.False(t, s.Do("SHOW", v[2].Str).Null)
}

// An ADDJOB that meets a job by its key isn't tied to it when that job is about to end: its life was over during CLIENT PAUSE, or QFLUSH has
// answered already.
func TestAddedBesideAJobThatIsAboutToEnd(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	for _, conflict := range []string{"return", "replace", "drop", "raise"} {
		add(t, c, "q", "old", 0, "RETRY", 1, "TTL", 2, "UNIQUE", "until-processed", "KEY", "k")
		require.Equal(t, "OK", c.Do("CLIENT", "PAUSE", 2500, "WRITE").Str)
		id := add(t, c, "q", "new", 0, "UNIQUE", "until-processed", "KEY", "k", "ONCONFLICT", conflict)
		require.Equal(t, "new", c.Do("SHOW", id).Field("body").Str, conflict)
		require.Equal(t, id, waitFor(t, c, "q"), conflict)
		require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
	}
	bodies := []any{"ADDJOBS", "f", 0, "UNIQUE", "until-processed", "PAIRS"}
	for i := range 10_000 {
		bodies = append(bodies, i, "old")
	}
	for _, conflict := range []string{"return", "replace", "drop", "raise"} {
		require.Len(t, c.Do(bodies...).Elems, 10_000)
		v := all(t, c, []any{"QFLUSH", "f"}, []any{"ADDJOB", "f", "new", 0, "UNIQUE", "until-processed", "KEY", 9999, "ONCONFLICT", conflict})
		harness.Await(t, 20*time.Second, "the jobs to go", func() bool { return c.Do("QLEN", "f").Is(1) })
		require.Equal(t, "new", c.Do("SHOW", v[1].Str).Field("body").Str, conflict)
		require.Equal(t, int64(1), c.Do("ACKJOB", v[1].Str).Int())
	}
}

// A job that ends as it is named as a parent, and becomes a dead letter, changes nothing of the new job's own key.
func TestAddedBehindAUniqueJobThatDies(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	p := add(t, c, "parents", "p", 0, "RETRY", 1, "TTL", 1, "ONEXPIRE", "dead", "UNIQUE", "until-processed", "KEY", "pk")
	require.Equal(t, "OK", c.Do("CLIENT", "PAUSE", 1500, "WRITE").Str)
	add(t, c, "q", "x", 0, "UNIQUE", "until-processed", "KEY", "k", "ONCONFLICT", "raise", "AFTER", p)
	require.True(t, c.Do("ADDJOB", "q", "y", 0, "UNIQUE", "until-processed", "KEY", "k", "ONCONFLICT", "raise").Err("DUPLICATE"))
}
