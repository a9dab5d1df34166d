package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A default refuses nothing that nobody has said: in MULTI and scripts, on a node that is
// leaving or short of memory, and for at-most-once jobs.
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
		if len(args) == 2 {
			want = 1
		}
		harness.Await(t, 5*time.Second, "the copies elsewhere", func() bool { return copies(v.Str) == want })
		assert.True(t, m[0].Do("SHOW", v.Str).Null)
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
