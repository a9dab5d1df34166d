package single

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func number(t *testing.T, s *harness.Server, section, field string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s.Info(section, field), 10, 64)
	require.NoError(t, err, "%s %s", section, field)
	return n
}

// pipeline adds, fetches and acknowledges n jobs.
func pipeline(t *testing.T, c *harness.Conn, n int, body string) {
	t.Helper()
	for range n {
		c.Later("ADDJOB", "q", body, 0)
	}
	for range n {
		require.Equal(t, byte('+'), c.Receive().Kind)
	}
	finish(t, c, n, "FROM", "q")
}

// finish fetches n jobs, each by a GETJOB of its own with these options, and acknowledges
// them, in pipelines.
func finish(t *testing.T, c *harness.Conn, n int, options ...any) {
	t.Helper()
	for range n {
		c.Later(append([]any{"GETJOB", "NOHANG"}, options...)...)
	}
	ids := make([]string, n)
	for i := range ids {
		v := c.Receive()
		require.Len(t, v.Elems, 1)
		ids[i] = v.Elems[0].Elems[1].Str
	}
	for _, id := range ids {
		c.Later("ACKJOB", id)
	}
	for range n {
		require.Equal(t, int64(1), c.Receive().Int())
	}
}

// No Go runs in a forked child, here for the type of queues. If it did, one save in two would
// hang beside goroutines that are as busy as these.
func TestLongSavesEndWhileGoIsBusy(t *testing.T) {
	harness.NotSanitized(t, harness.ForksHang)
	so := harness.Build(t, "-tags", "jobmesh_busy", "./module")
	s := harness.Start(t, harness.WithModule(so), harness.WithConfig("appendonly yes", "aof-use-rdb-preamble no"))
	c := s.Dial()
	for i := range 200 {
		add(t, c, fmt.Sprint("q", i%20), "body", 0)
	}
	s.SaveOften(60)
	for range 3 {
		r := harness.Start(t, harness.WithModule(so), harness.WithReplicaOf(s))
		r.AwaitSync()
		assert.Equal(t, "200", jobs(r))
	}
}

// Data that lasts lies in Redis' memory, not on the Go heap.
func TestJobsLieInRedisMemory(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	const n, size = 20_000, 1000
	pipeline(t, c, 100, "warm")
	used, heap := number(t, s, "memory", "used_memory"), number(t, s, "jobmesh", "jobmesh_go_heap_bytes")
	body := strings.Repeat("x", size)
	for i := range n {
		c.Later("ADDJOB", fmt.Sprint("q", i%1000), body, 0)
	}
	for range n {
		require.Equal(t, byte('+'), c.Receive().Kind)
	}
	assert.Greater(t, number(t, s, "memory", "used_memory")-used, int64(n*size))
	assert.Less(t, number(t, s, "jobmesh", "jobmesh_go_heap_bytes")-heap, int64(1<<20))
	assert.Greater(t, c.Do("MEMORY", "USAGE", "q0", "SAMPLES", 0).Int(), int64(n/1000*size))
}

// A command crosses from C to Go once, and leaves no garbage. The first jobs fill pools and
// buffers. After that no command calls back into C, except every 64th ADDJOB, which looks at the
// server's memory, and a command that fills a pool. No command allocates in Go: the calls and
// allocations that are left are INFO's and the timers'.
func TestOneCrossingNoAllocation(t *testing.T) {
	harness.NotSanitized(t, "the pool, which saves crossings, is for names alone")
	s := harness.Start(t)
	c := s.Dial()
	const rounds, n = 20, 1000
	body := strings.Repeat("x", 100)
	pipeline(t, c, n, body)
	calls, allocs := number(t, s, "jobmesh", "jobmesh_go_calls_to_c"), number(t, s, "jobmesh", "jobmesh_go_allocations")
	for range rounds {
		pipeline(t, c, n, body)
	}
	assert.Less(t, number(t, s, "jobmesh", "jobmesh_go_calls_to_c")-calls, int64(rounds*n*3/20))
	assert.Less(t, number(t, s, "jobmesh", "jobmesh_go_allocations")-allocs, int64(rounds*n*3/100))
}
