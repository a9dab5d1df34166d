package single

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A queue that has delayed jobs alone is seen, and its jobs are counted and found, whatever
// becomes of the queue and of them.
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
