package single

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// deadNow says how many dead letters wait at a node.
func deadNow(s *harness.Server) string { return s.Info("jobmesh", "jobmesh_jobs_dead_now") }

// Dead letters are counted while they wait, over restarts too, and other jobs of their queue aren't.
func TestDeadNow(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		letters := func(queue string, want int64) {
			t.Helper()
			assert.Equal(t, want, c.Do("QSTAT", queue).Field("dead-letters").Int())
			assert.Equal(t, want, c.Do("QSTAT", queue, "MESH").Field("dead-letters").Int())
		}
		assert.Equal(t, "0", deadNow(s))
		var ids []string
		for range 5 {
			ids = append(ids, dies(t, c, "w", "dead", "DEAD", "q")) // one by one
		}
		add(t, c, "q", "lives", 0)
		add(t, c, "q", "lives", 0, "PRIORITY", 4)
		assert.Equal(t, "5", deadNow(s))
		letters("q", 5)
		c, queue := handOn(t, s, c, mode)
		assert.Equal(t, "5", deadNow(s))
		letters(queue, 5)
		require.Equal(t, int64(7), c.Do("QLEN", queue).Int())

		require.Equal(t, int64(1), c.Do("MOVEJOB", ids[0], "TO", "p2").Int(), "it lives again")
		letters(queue, 4)
		letters("p2", 0)
		require.Equal(t, int64(1), c.Do("CANCELJOB", ids[1]).Int())
		letters(queue, 3)
		require.Len(t, c.Do("GETJOB", "COUNT", 2, "FROM", queue).Elems, 2)
		letters(queue, 2)
		require.Equal(t, int64(1), c.Do("NACK", ids[2]).Int())
		letters(queue, 3)
		assert.Equal(t, "3", deadNow(s))
		require.Equal(t, int64(3), c.Do("MOVEJOB", "FROM", queue).Int(), "dead letters alone")
		assert.Equal(t, "0", deadNow(s))
		assert.True(t, c.Do("SHOW", ids[4]).Field("state").Str == "queued")
	}, "aof", "aof-kill", "rdb", "reload", "rename", "restore")
}

// A promoted replica counts its dead letters, and a queue that is deleted or lies in another database takes its own away.
func TestDeadNowElsewhere(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	r := harness.Start(t, harness.WithReplicaOf(s))
	r.AwaitSync()
	c := s.Dial()
	for i := range 3 {
		dies(t, c, "q"+strconv.Itoa(i), "dead")
	}
	c.Do("MOVE", "q0:dead", 1)
	assert.Equal(t, "2", deadNow(s))
	c.Do("SELECT", 1)
	c.Do("MOVE", "q0:dead", 0)
	c.Do("SELECT", 0)
	assert.Equal(t, "3", deadNow(s))
	r.AwaitStream(s)
	require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
	harness.Await(t, 20*time.Second, "the promoted node to have its queues", func() bool { return deadNow(r) == "3" })
	c.Do("DEL", "q1:dead")
	assert.Equal(t, "2", deadNow(s))
	c.Do("FLUSHALL")
	assert.Equal(t, "0", deadNow(s))
}
