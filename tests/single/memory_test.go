package single

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// setRatio sets maxmemory so that the memory in use is that share of it.
func setRatio(t *testing.T, s *harness.Server, c *harness.Conn, ratio float64, level string) {
	t.Helper()
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "maxmemory", int64(float64(s.UsedMemory())/ratio)).Str)
	harness.Await(t, 5*time.Second, "memory level "+level, func() bool { return s.Info("jobmesh", "jobmesh_memory_level") == level })
}

func TestMemory(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	body := strings.Repeat("x", 100_000)
	var once []string
	for range 300 {
		once = append(once, add(t, c, "once", body, 0, "RETRY", 0))
	}
	c.Do("GETJOB", "COUNT", 200, "FROM", "once")
	again := add(t, c, "q", body, 0)
	get(t, c, "q")
	setRatio(t, s, c, 0.85, "1")
	v := c.Do("ADDJOB", "q", "b", 0)
	assert.Equal(t, byte('+'), v.Kind, "there is no other node to hold it: %v", v)
	c.Do("ACKJOB", v.Str)
	assert.Equal(t, int64(1), c.Do("NACK", again).Int(), "what is here goes on working")
	get(t, c, "q")
	used, _ := strconv.ParseFloat(s.Info("memory", "used_memory"), 64)
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "maxmemory", int64(used/0.98)).Str)
	harness.Await(t, 5*time.Second, "delivered at-most-once jobs to be evicted", func() bool { return s.Info("jobmesh", "jobmesh_jobs_evicted") != "0" })
	assert.Equal(t, int64(100), c.Do("QLEN", "once").Int(), "what waits is never evicted")
	assert.False(t, c.Do("SHOW", again).Null)
	assert.False(t, c.Do("SHOW", once[299]).Null)
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "maxmemory", int64(used/3)).Str)
	for _, cmd := range []string{"ADDJOB", "NACK", "ENQUEUE"} {
		args := []any{cmd, again}
		if cmd == "ADDJOB" {
			args = []any{"ADDJOB", "q", "b", 0}
		}
		harness.Await(t, 5*time.Second, cmd+" to be refused", func() bool {
			return c.Do(args...).Err("OOM command not allowed when used memory > 'maxmemory'.")
		})
	}
	assert.Len(t, c.Do("GETJOB", "FROM", "once").Elems, 1)
	assert.Equal(t, int64(1), c.Do("ACKJOB", again).Int())
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "maxmemory", 0).Str)
	harness.Await(t, 5*time.Second, "the limit to be gone", func() bool { return c.Do("ADDJOB", "q", "b", 0).Kind == '+' })
}

// A pause makes a queue that isn't there, so it is refused without memory. A queue that is there can be paused, for then memory may get free.
func TestPauseWithoutMemory(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	add(t, c, "q", strings.Repeat("x", 1_000_000), 0)
	used, _ := strconv.ParseFloat(s.Info("memory", "used_memory"), 64)
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "maxmemory", int64(used/2)).Str)
	harness.Await(t, 5*time.Second, "PAUSE to be refused", func() bool { return c.Do("PAUSE", "new", "all").Err("OOM") })
	assert.True(t, c.Do("PAUSE", "new", "in", "FOR", 10, "BCAST").Err("OOM"))
	assert.Equal(t, int64(0), c.Do("EXISTS", "new").Int())
	assert.Equal(t, "none", c.Do("PAUSE", "new", "state").Str)
	assert.Equal(t, "none", c.Do("PAUSE", "new", "none").Str)
	assert.Equal(t, "all", c.Do("PAUSE", "q", "all").Str)
}

func TestEvictingPolicyIsRefused(t *testing.T) {
	c := harness.Start(t).Dial()
	c.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	add(t, c, "q", "no limit, so nothing is evicted", 0)
	c.Do("CONFIG", "SET", "maxmemory", "1gb")
	harness.Await(t, 5*time.Second, "ADDJOB to be refused", func() bool {
		return c.Do("ADDJOB", "q", "b", 0).Err("EVICTION the maxmemory-policy in force may evict queues")
	})
	assert.Len(t, c.Do("GETJOB", "FROM", "q").Elems, 1)
	c.Do("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
	harness.Await(t, 5*time.Second, "ADDJOB to be accepted", func() bool { return c.Do("ADDJOB", "q", "b", 0).Kind == '+' })
}

// All memory comes back: adding and acknowledging jobs in turn must not make the server grow.
func TestMemoryComesBack(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	used := func() int64 {
		c.Do("QLEN", "q") // memory that a command frees is given back by the next command
		v, err := strconv.ParseInt(s.Info("memory", "used_memory"), 10, 64)
		require.NoError(t, err)
		return v
	}
	round := func() {
		const n = 5000
		for i := range n {
			c.Later("ADDJOB", "q", strings.Repeat("x", i%300), 0)
		}
		ids := []any{"ACKJOB"}
		for range n {
			ids = append(ids, c.Receive().Str)
		}
		require.Equal(t, int64(n), c.Do(ids...).Int())
	}
	round()
	before := used()
	for range 10 {
		round()
	}
	assert.Less(t, used(), before+1<<20)
	assert.Equal(t, "0", jobs(s))
}
