package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A default makes no ADDJOB fail that doesn't name the option: in MULTI and scripts, on a node
// that is leaving or short of memory, and for at-most-once jobs.
func TestDefaultsRefuseNothing(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	c := m[0].Dial()
	copies := func(id string) (n int) {
		for _, s := range m {
			if !s.Do("SHOW", id).Null {
				n++
			}
		}
		return n
	}
	c.Do("MULTI")
	c.Do("ADDJOB", "q", "b", 0)
	c.Do("ADDJOB", "q", "b", 0, "RETRY", 0)
	v := c.Do("EXEC")
	require.Len(t, v.Elems, 2, "%v", v)
	require.Equal(t, byte('+'), v.Elems[0].Kind, "%v", v)
	require.Equal(t, byte('+'), v.Elems[1].Kind, "%v", v)
	harness.Await(t, 5*time.Second, "the copies to follow", func() bool { return copies(v.Elems[0].Str) == 3 })
	assert.Equal(t, 1, copies(v.Elems[1].Str))
	v = c.Do("EVAL", "return redis.call('ADDJOB', 'q', 'b', '0')", 0)
	require.Contains(t, v.Str, "D-", "%v", v)
	harness.Await(t, 5*time.Second, "the copies to follow", func() bool { return copies(v.Str) == 3 })
	v = c.Do("EVAL", "return redis.call('ADDJOB', 'q', 'b', '0', 'REPLICATE', '2')", 0)
	assert.Contains(t, v.Str, "NOREPL", "what was said isn't left out: %v", v)

	require.Equal(t, "OK", c.Do("JOBMESH", "CLUSTER", "LEAVING", "yes").Str)
	for _, args := range [][]any{{}, {"RETRY", 0}, {"ASYNC"}} {
		v = c.Do(append([]any{"ADDJOB", "q", "b", 0}, args...)...)
		require.Equal(t, byte('+'), v.Kind, "leaving, %v: %v", args, v)
		want := 2
		switch len(args) {
		case 2:
			want = 1
		case 1:
			want = 3 // an ASYNC job is promised by this node's own copy
		}
		harness.Await(t, 5*time.Second, "the copies elsewhere", func() bool { return copies(v.Str) == want })
		assert.Equal(t, want < 3, m[0].Do("SHOW", v.Str).Null)
	}
	c.Do("MULTI")
	c.Do("ADDJOB", "q", "b", 0)
	v = c.Do("EXEC")
	require.Len(t, v.Elems, 1)
	require.Equal(t, byte('+'), v.Elems[0].Kind, "leaving, in MULTI: %v", v)
	require.Equal(t, "OK", c.Do("JOBMESH", "CLUSTER", "LEAVING", "no").Str)

	c.Do("SET", "filler", string(make([]byte, 20<<20)))
	used := m[0].UsedMemory()
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "maxmemory", used*100/85).Str)
	harness.Await(t, 5*time.Second, "memory to be short, and others to hold the job", func() bool {
		v = c.Do("ADDJOB", "q", "b", 0)
		require.Equal(t, byte('+'), v.Kind, "short of memory: %v", v)
		return c.Do("SHOW", v.Str).Null
	})
	m[1].Kill()
	m[2].Kill()
	harness.Await(t, 20*time.Second, "the others to be missed, and the job to stay here", func() bool {
		v = c.Do("ADDJOB", "q", "b", 100)
		return v.Kind == '+' && !c.Do("SHOW", v.Str).Null
	})
}

// Clients that poll, with NOHANG, in MULTI and in scripts, get the jobs of other nodes, each
// once.
func TestPollersGetJobsOfOtherNodes(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for how, poll := range map[string]func(c *harness.Conn, queue string) harness.Value{
		"nohang": func(c *harness.Conn, queue string) harness.Value {
			return c.Do("GETJOB", "NOHANG", "FROM", "none", queue)
		},
		"count": func(c *harness.Conn, queue string) harness.Value {
			return c.Do("GETJOB", "NOHANG", "COUNT", 3, "FROM", queue)
		},
		"multi": func(c *harness.Conn, queue string) harness.Value {
			c.Do("MULTI")
			c.Do("GETJOB", "FROM", queue)
			return c.Do("EXEC").Elems[0]
		},
	} {
		want := map[string]bool{}
		for i := range 20 {
			v := m[0].Do("ADDJOB", how, "b", 0, "RETRY", []int{0, 60}[i%2], "REPLICATE", 1)
			require.Equal(t, byte('+'), v.Kind, "%v", v)
			want[v.Str] = true
		}
		clients := []*harness.Conn{m[1].Dial(), m[2].Dial()}
		at := 0
		harness.Await(t, 30*time.Second, how+": all jobs", func() bool {
			at++
			for _, e := range poll(clients[at%2], how).Elems {
				id := e.Elems[1].Str
				require.True(t, want[id], "%s: %s isn't expected, or comes twice", how, id)
				delete(want, id)
				require.Equal(t, int64(1), clients[at%2].Do("ACKJOB", id).Int())
			}
			return len(want) == 0
		})
	}
	m.awaitNoJobs(t)
}

// V5: a client that polls every 100 ms at a node gets the jobs that are added at another one within two polls, once each.
func TestLifeV5(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	c := m[1].Dial()
	poll := func() harness.Value { return c.Do("GETJOB", "NOHANG", "FROM", "q") }
	for i := range 20 {
		require.True(t, poll().Null)
		v := m[0].Do("ADDJOB", "q", "b", 1000, "RETRY", []int{0, 60}[i%2], "REPLICATE", 1)
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		polls := 0
		harness.Await(t, 10*time.Second, "the job", func() bool {
			got := poll()
			polls++
			if len(got.Elems) == 1 {
				require.Equal(t, v.Str, got.Elems[0].Elems[1].Str)
				return true
			}
			time.Sleep(100 * time.Millisecond) // the client's pause
			return false
		})
		require.LessOrEqual(t, polls, 3, "the first one may come before the job is there")
		require.Equal(t, int64(1), c.Do("ACKJOB", v.Str).Int())
	}
	m.awaitNoJobs(t)
}

// V6: a client that polled once doesn't come again. The job goes to one that waits at a third node.
func TestLifeV6(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for _, retry := range []int{0, 600} {
		q := fmt.Sprint("q", retry)
		require.True(t, m[1].Do("GETJOB", "NOHANG", "FROM", q).Null)
		v := m[0].Do("ADDJOB", q, "b", 1000, "RETRY", retry, "REPLICATE", 1)
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		harness.Await(t, 5*time.Second, "the job to come to the poller's node", func() bool { return m[1].Do("QLEN", q).Is(1) })
		got := m[2].Do("GETJOB", "TIMEOUT", 10_000, "FROM", q)
		require.Len(t, got.Elems, 1)
		require.Equal(t, v.Str, got.Elems[0].Elems[1].Str)
		require.Equal(t, int64(1), m[2].Do("ACKJOB", v.Str).Int())
	}
	m.awaitNoJobs(t)
}

// A node that was lost a moment ago counts as reachable until the node timeout is over. An ADDJOB
// with REPLICATE waits for it, if its timeout allows. One without REPLICATE waits for no silent node.
func TestLostNodesAreWaitedFor(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "jobmesh.cluster-node-timeout 4000")
	for _, opt := range [][]any{{"REPLICATE", 3}, {"REPLICATE", 2, "RETRY", 60}} {
		down := m[1:2]
		if opt[1] == 2 {
			down = m[1:]
		}
		for _, s := range down {
			s.Kill()
		}
		harness.Await(t, 5*time.Second, "the connections to be given up", func() bool { return links(m[0]) == 2-len(down) })
		c := m[0].Dial()
		c.Send(append([]any{"ADDJOB", "q", "b", 20_000}, opt...)...)
		assert.True(t, m[0].Do("ADDJOB", "q", "b", 200, "REPLICATE", 3, "ASYNC").Err("NOREPL Not enough reachable nodes"), "that waits for nobody")
		assert.True(t, m[0].Do("ADDJOB", "q", "b", 200, "REPLICATE", 3).Err("NOREPL Timeout reached"), "as long as it has time")
		began := time.Now()
		v := m[0].Do("ADDJOB", "q", "b", 0)
		require.Equal(t, byte('+'), v.Kind, "without REPLICATE: %v", v)
		assert.Less(t, time.Since(began), 3*time.Second)
		for _, s := range down {
			s.Restart()
		}
		v = c.Receive()
		require.Equal(t, byte('+'), v.Kind, "%v: %v", opt, v)
		assert.GreaterOrEqual(t, len(m[0].Do("SHOW", v.Str).Field("nodes-delivered").Elems), opt[1], "%v", opt)
		harness.Await(t, 10*time.Second, "the others to be back", func() bool { return links(m[0]) == 2 })
	}

	// A silent node.
	m[2].Pause()
	began := time.Now()
	v := m[0].Do("ADDJOB", "q", "b", 0)
	require.Equal(t, byte('+'), v.Kind, "%v", v)
	assert.Less(t, time.Since(began), 3*time.Second)
	assert.False(t, m[1].Do("SHOW", v.Str).Null, "the other has a copy")
	// A client that asks for three copies waits, and is refused when three aren't possible any more.
	v = m[0].Do("ADDJOB", "q", "b", 0, "REPLICATE", 3)
	assert.True(t, v.Err("NOREPL Not enough reachable nodes"), "%v", v)
	assert.Greater(t, time.Since(began), 3*time.Second, "the node timeout")
	m[2].Resume()
}

// FLUSHALL flushes one node alone, and the log says so. The log doesn't say so of a load, which brings the
// jobs back.
func TestFlushOfOneNodeIsLogged(t *testing.T) {
	t.Parallel()
	m := start(t, 2, "appendonly yes", "enable-debug-command yes")
	v := m[0].Do("ADDJOB", "q", "b", 2000, "REPLICATE", 2)
	require.Equal(t, byte('+'), v.Kind, "%v", v)
	for _, how := range []string{"RELOAD", "LOADAOF"} {
		require.Equal(t, "OK", m[0].Do("DEBUG", how).Str)
		assert.False(t, m[0].Do("SHOW", v.Str).Null)
	}
	acquire(t, m[0], "behind", "o", 1000, "WAIT", 5000) // ticks have followed
	assert.NotContains(t, m[0].Log(), "are flushed at this node alone")
	require.Equal(t, "OK", m[0].Do("FLUSHALL").Str)
	harness.Await(t, 10*time.Second, "the log", func() bool { return strings.Contains(m[0].Log(), "1 jobs are flushed at this node alone") })
	assert.False(t, m[1].Do("SHOW", v.Str).Null)
	require.Equal(t, "OK", m[1].Do("SET", "k", "v").Str)
	require.Equal(t, "OK", m[0].Do("FLUSHALL").Str)
	acquire(t, m[0], "after", "o", 1000, "WAIT", 5000)
	assert.Equal(t, 1, strings.Count(m[0].Log(), "are flushed at this node alone"))
}

// A job that was deleted at a node with its queue, or with all of them, doesn't come back to it
// from a node that has a copy, though clients wait: also after a restart. The other node keeps
// the job. Newer jobs, and jobs that were never at the node, come.
func TestDeletedJobsDoNotComeBack(t *testing.T) {
	t.Parallel()
	for what, end := range map[string][]any{"DEL": {"DEL", "q"}, "FLUSHALL": {"FLUSHALL"}, "FLUSHDB": {"FLUSHDB"}, "FLUSH": {"JOBMESH", "FLUSH"}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := start(t, 2, "appendonly yes")
			add := func(body string, replicate int) string {
				v := m[1].Do("ADDJOB", "q", body, 5000, "REPLICATE", replicate, "RETRY", 1000)
				require.Equal(t, byte('+'), v.Kind, "%v", v)
				return v.Str
			}
			first, second := add("deleted", 2), add("deleted", 2)
			require.Equal(t, "2", jobs(m[0]))
			add("never there", 1)
			require.False(t, m[0].Do(end...).Err(""))
			harness.Await(t, 10*time.Second, "the end of the jobs", func() bool { return jobs(m[0]) == "0" })
			take := func(s *harness.Server) string {
				v := s.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
				require.Len(t, v.Elems, 1, "%v", v)
				return v.Elems[0].Elems[2].Str
			}
			assert.Equal(t, "never there", take(m[0]))
			harness.Await(t, 10*time.Second, "the log", func() bool { return strings.Contains(m[0].Log(), "and don't hand them to this node") })
			harness.Await(t, 10*time.Second, "the nodes' file", func() bool {
				text, err := os.ReadFile(filepath.Join(m[0].Dir, "jobmesh-nodes.conf"))
				return err == nil && strings.Contains(string(text), "\ndeleted ")
			})
			m[0].AwaitLogged()
			m[0].Kill()
			m[0].Restart()
			m.await(t, 2)
			add("new", 1)
			assert.Equal(t, "new", take(m[0]))
			assert.True(t, m[0].Do("SHOW", first).Null)
			assert.Equal(t, "queued", m[1].Do("SHOW", second).Field("state").Str)
			for range 2 {
				assert.Equal(t, "deleted", take(m[1]))
			}
		})
	}
}

// The log tells of queues that were deleted at one node alone, once a minute at most.
func TestDeletedQueuesOfOneNodeAreLogged(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	for _, q := range []string{"a", "b", "c"} {
		for range 2 {
			v := m[0].Do("ADDJOB", q, "b", 5000, "REPLICATE", 2)
			require.Equal(t, byte('+'), v.Kind, "%v", v)
		}
		require.True(t, m[0].Do("DEL", q).Is(1))
		harness.Await(t, 10*time.Second, "the log", func() bool {
			return strings.Contains(m[0].Log(), "2 jobs are deleted with their queues at this node alone")
		})
	}
	harness.Await(t, 10*time.Second, "the end of the jobs", func() bool { return jobs(m[0]) == "0" })
	assert.Equal(t, 1, strings.Count(m[0].Log(), "at this node alone"))
	assert.Equal(t, "6", jobs(m[1]))
}

// The deletion is remembered as it was, although the log is played again.
func TestDeletedQueueAfterTheLogIsPlayed(t *testing.T) {
	t.Parallel()
	m := start(t, 2, "appendonly yes", "appendfsync always")
	add := func(body string, replicate int) {
		v := m[1].Do("ADDJOB", "q", body, 5000, "REPLICATE", replicate, "RETRY", 1000)
		require.Equal(t, byte('+'), v.Kind, "%v", v)
	}
	add("deleted", 2)
	require.Equal(t, int64(1), m[0].Do("DEL", "q").Int())
	harness.Await(t, 10*time.Second, "the nodes' file", func() bool {
		text, err := os.ReadFile(filepath.Join(m[0].Dir, "jobmesh-nodes.conf"))
		return err == nil && strings.Contains(string(text), "\ndeleted ")
	})
	m[0].Stop()
	m[0].Restart()
	m.await(t, 2)
	add("new", 1)
	for _, want := range []string{"new", "deleted"} {
		s := m[0]
		if want == "deleted" {
			s = m[1]
		}
		v := s.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
		require.Len(t, v.Elems, 1, "%v", v)
		assert.Equal(t, want, v.Elems[0].Elems[2].Str)
	}
}
