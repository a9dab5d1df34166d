package single

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A queue that has only delayed jobs is seen, and its jobs are counted and found, whatever happens
// to the queue and to the jobs.
func TestDelayedJobsAreSeen(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	var ids []string
	for range 4 {
		ids = append(ids, c.Do("ADDJOB", "later", "b", 0, "DELAY", 1000).Str)
	}
	seen := func(queue string, n int) {
		t.Helper()
		stat := c.Do("QSTAT", queue)
		if n == 0 {
			assert.True(t, stat.Null || stat.Field("delayed").Is(0), "%v", stat)
			assert.Empty(t, c.Do("JSCAN", 0, "BUSYLOOP", "STATE", "delayed").Elems[1].Elems)
			return
		}
		require.False(t, stat.Null)
		assert.Equal(t, int64(n), stat.Field("delayed").Int())
		assert.Equal(t, int64(0), stat.Field("len").Int())
		assert.Contains(t, c.Do("QSCAN", 0, "BUSYLOOP").Elems[1].Strings(), queue)
		assert.Len(t, c.Do("JSCAN", 0, "BUSYLOOP", "STATE", "delayed").Elems[1].Elems, n)
	}
	seen("later", 4)
	assert.Equal(t, "active", c.Do("SHOW", ids[0]).Field("state").Str)
	require.Equal(t, int64(1), c.Do("ENQUEUE", ids[0]).Int())
	assert.Equal(t, int64(3), c.Do("QSTAT", "later").Field("delayed").Int())
	require.Len(t, c.Do("GETJOB", "FROM", "later").Elems, 1)
	require.Equal(t, int64(2), c.Do("ACKJOB", ids[0], ids[1]).Int())
	seen("later", 2)
	require.Equal(t, "OK", c.Do("RENAME", "later", "other").Str)
	seen("other", 2)
	for range 2 {
		require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
	}
	seen("other", 2)
	dump := c.Do("DUMP", "other").Str
	require.Equal(t, int64(1), c.Do("DEL", "other").Int())
	require.Equal(t, "OK", c.Do("RESTORE", "again", 0, dump).Str)
	seen("again", 2)
	s.AwaitLogged()
	s.Kill()
	s.Restart()
	c = s.Dial()
	seen("again", 2)
	s.Stop()
	s.Restart()
	c = s.Dial()
	seen("again", 2)
	require.Equal(t, int64(2), c.Do("DELJOB", ids[2], ids[3]).Int())
	seen("again", 0)

	c.Do("ADDJOB", "soon", "b", 0, "DELAY", 1)
	harness.Await(t, 10*time.Second, "the job is due", func() bool { return c.Do("QLEN", "soon").Is(1) })
	assert.Equal(t, int64(0), c.Do("QSTAT", "soon").Field("delayed").Int())
}

// A queue that has only deferred and blocked jobs is seen, and its jobs are counted and found,
// whatever happens to the queue and to the jobs.
func TestDeferredAndBlockedJobsAreSeen(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	on := func(s *harness.Server, queue string, want ...int64) { // len, delayed, deferred, blocked
		t.Helper()
		c := s.Dial()
		defer c.Close()
		stat := c.Do("QSTAT", queue)
		require.False(t, stat.Null, queue)
		assert.Contains(t, c.Do("QSCAN", 0, "BUSYLOOP").Elems[1].Strings(), queue)
		for i, field := range []string{"len", "delayed", "deferred", "jobs-blocked"} {
			assert.Equal(t, want[i], stat.Field(field).Int(), "%s of %s", field, queue)
		}
		for i, state := range []string{"queued", "delayed", "deferred", "blocked"} {
			assert.Len(t, c.Do("JSCAN", 0, "BUSYLOOP", "QUEUE", queue, "STATE", state).Elems[1].Elems, int(want[i]), "%s in %s", state, queue)
			var all int64
			for _, q := range c.Do("QSCAN", 0, "BUSYLOOP").Elems[1].Strings() {
				all += c.Do("QSTAT", q).Field([]string{"len", "delayed", "deferred", "jobs-blocked"}[i]).Int()
			}
			info := "jobmesh_jobs_" + []string{"waiting", "delayed", "deferred", "blocked"}[i]
			assert.Equal(t, all, number(t, s, "jobmesh", info), info)
		}
	}
	seen := func(queue string, want ...int64) {
		t.Helper()
		on(s, queue, want...)
	}
	deferred := add(t, c, "first", "b", 0, "DEFERRED")
	seen("first", 0, 0, 1, 0)
	blocked := add(t, c, "then", "b", 0, "BLOCKEDBY", deferred)
	seen("then", 0, 0, 0, 1)
	after := add(t, c, "after", "b", 0, "AFTER", blocked, "ONDEAD", "dead")
	late := add(t, c, "after", "b", 0, "AFTER", blocked, "DELAY", 1000)
	add(t, c, "after", "b", 0, "AFTER", blocked, "DEFERRED")
	add(t, c, "then", "b", 0, "DEFERRED", "RETRY", 0)
	all := func() {
		t.Helper()
		seen("first", 0, 0, 1, 0)
		seen("then", 0, 0, 1, 1)
		seen("after", 0, 0, 1, 2)
	}
	all()
	for range 2 {
		require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
	}
	all()
	require.Equal(t, "OK", c.Do("RENAME", "after", "other").Str)
	seen("other", 0, 0, 1, 2)
	require.Equal(t, "OK", c.Do("RENAME", "other", "after").Str)
	s.AwaitLogged()
	s.Kill()
	s.Restart()
	seen("after", 0, 0, 1, 2)
	s.Stop()
	s.Restart()
	c = s.Dial()
	seen("first", 0, 0, 1, 0)
	seen("after", 0, 0, 1, 2)
	require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
	seen("after", 0, 0, 1, 2)

	replica := harness.Start(t, harness.WithReplicaOf(s))
	r := replica.Dial()
	harness.Await(t, 20*time.Second, "the replica", func() bool { return r.Do("SHOW", after).Field("state").Str == "blocked" })
	require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
	harness.Await(t, 20*time.Second, "its promotion", func() bool { return !r.Do("PAUSE", "none", "none").Err("LOADING") })
	on(replica, "first", 0, 0, 1, 0)
	on(replica, "after", 0, 0, 1, 2)

	require.Equal(t, int64(1), c.Do("RELEASEJOB", deferred).Int())
	seen("first", 1, 0, 0, 0)
	require.Equal(t, int64(1), c.Do("ACKJOB", deferred).Int())
	require.Equal(t, int64(3), c.Do("CANCELJOB", blocked).Int())
	assert.True(t, c.Do("SHOW", late).Null, "dropped")
	v := c.Do("QSTAT", "after")
	assert.Zero(t, v.Field("len").Int()+v.Field("jobs-in").Int(), "nothing waited in it")
	assert.Equal(t, int64(1), v.Field("dead").Int())
	seen("after:dead", 1, 0, 0, 0)

	deferred = add(t, c, "moves", "b", 0, "DEFERRED", "DELAY", 1000)
	dump := c.Do("DUMP", "moves").Str
	require.Equal(t, int64(1), c.Do("DEL", "moves").Int())
	require.Equal(t, "OK", c.Do("RESTORE", "again", 0, dump).Str)
	seen("again", 0, 0, 1, 0)
	require.Equal(t, int64(1), c.Do("RELEASEJOB", deferred, "QUEUE", "there").Int())
	seen("there", 0, 1, 0, 0)
	require.Equal(t, "OK", c.Do("FLUSHALL").Str)
	assert.Empty(t, c.Do("QSCAN", 0, "BUSYLOOP").Elems[1].Elems)
	for _, info := range []string{"waiting", "delayed", "deferred", "blocked"} {
		assert.Zero(t, number(t, s, "jobmesh", "jobmesh_jobs_"+info), info)
	}
}

// A queue whose jobs are all in progress, or put off by ONBUSY, is seen after a restart, too, and
// its counts are as they were.
func TestBusyQueuesAreSeenAfterARestart(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	c := s.Dial()
	for range 2 {
		require.Equal(t, byte('+'), c.Do("ADDJOB", "q", "b", 0, "RETRY", 600, "UNIQUE", "during-processing", "KEY", "k", "ONBUSY", "reschedule", 100).Kind)
	}
	require.Equal(t, byte('+'), c.Do("ADDJOB", "p", "b", 0, "RETRY", 600).Kind)
	require.Len(t, c.Do("GETJOB", "WORKER", "w", "COUNT", 2, "FROM", "q", "p").Elems, 2)
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
	seen := func() {
		t.Helper()
		for queue, delayed := range map[string]int64{"q": 1, "p": 0} {
			v := c.Do("QSTAT", queue)
			require.False(t, v.Null, queue)
			assert.Equal(t, int64(1), v.Field("in-progress").Int())
			assert.Equal(t, delayed, v.Field("delayed").Int())
			assert.Contains(t, c.Do("QSCAN", 0, "BUSYLOOP").Elems[1].Strings(), queue)
		}
		assert.Len(t, c.Do("JSCAN", 0, "BUSYLOOP", "STATE", "delayed").Elems[1].Elems, 1)
		assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_jobs_delayed"))
	}
	seen()
	require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
	seen()
	for _, end := range []func(){func() { s.Stop() }, s.Kill} {
		end()
		s.Restart()
		c = s.Dial()
		seen()
	}
}

// A job that is held back for its run says so, whether it has the lock of its waiting or not.
func TestHeldBackIsShown(t *testing.T) {
	c := harness.Start(t).Dial()
	for _, strategy := range []string{"during-processing", "before-and-during-processing"} {
		add := func() string {
			return c.Do("ADDJOB", "q", "b", 0, "RETRY", 600, "UNIQUE", strategy, "KEY", strategy).Str
		}
		add()
		require.Len(t, c.Do("GETJOB", "FROM", "q").Elems, 1)
		id := add()
		require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
		assert.Equal(t, "held-back", c.Do("SHOW", id).Field("lock").Str, strategy)
	}
}
