package cluster

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// mesh is servers that know each other.
type mesh []*harness.Server

func busPort(t *testing.T) string { return strconv.Itoa(harness.FreePort(t)) }

func start(t *testing.T, n int, lines ...string) mesh {
	m := make(mesh, n)
	for i := range m {
		m[i] = node(t, lines...)
	}
	m.meet(t)
	m.votes(t)
	return m
}

func node(t *testing.T, lines ...string) *harness.Server {
	return harness.Start(t, busConfig(t, lines...))
}

// busConfig is the configuration of a node.
func busConfig(t *testing.T, lines ...string) harness.Option {
	return harness.WithConfig(append([]string{"jobmesh.cluster-port " + busPort(t), "jobmesh.cluster-node-timeout 2000"}, lines...)...)
}

// meet makes one mesh of nodes.
func (m mesh) meet(t *testing.T) {
	t.Helper()
	for _, s := range m[1:] {
		meet(t, s, m[0])
	}
	m.await(t, len(m))
}

func meet(t *testing.T, a, b *harness.Server) {
	t.Helper()
	port := b.Do("CONFIG", "GET", "jobmesh.cluster-port").Elems[1].Str
	require.Equal(t, "OK", a.Do("JOBMESH", "CLUSTER", "MEET", "127.0.0.1", b.Port, port).Str)
}

// await waits until every node can reach all the others.
func (m mesh) await(t *testing.T, n int) {
	t.Helper()
	end := time.Now().Add(15 * time.Second)
	for i, s := range m {
		harness.Await(t, 20*time.Second, "the nodes to reach each other", func() bool {
			if time.Now().After(end) {
				t.Fatalf("node %d doesn't reach all %d others:\n%s", i, n-1, s.Do("JOBMESH", "CLUSTER", "NODES").Str)
			}
			return s.Info("jobmesh", "jobmesh_reachable_nodes") == strconv.Itoa(n-1)
		})
	}
}

// dial opens a connection to each node.
func (m mesh) dial() (conns []*harness.Conn) {
	for _, s := range m {
		conns = append(conns, s.Dial())
	}
	return conns
}

func jobs(s *harness.Server) string { return s.Info("jobmesh", "jobmesh_registered_jobs") }

func (m mesh) awaitNoJobs(t *testing.T) {
	t.Helper()
	for _, s := range m {
		harness.Await(t, 20*time.Second, "all jobs to be gone", func() bool { return jobs(s) == "0" })
	}
}

func TestThreeNodes(t *testing.T) {
	m := start(t, 3)
	v := m[0].Do("ADDJOB", "q", "body", 2000, "REPLICATE", 3, "RETRY", 1)
	require.Equal(t, byte('+'), v.Kind, "%v", v)
	id := v.Str
	for _, s := range m {
		assert.Equal(t, "1", jobs(s))
	}
	assert.Len(t, m[0].Do("SHOW", id).Field("nodes-delivered").Elems, 3)
	assert.Equal(t, "active", m[1].Do("SHOW", id).Field("state").Str)
	m[0].Kill()
	got := m[1].Do("GETJOB", "TIMEOUT", 10000, "FROM", "q")
	require.Len(t, got.Elems, 1)
	assert.Equal(t, []string{"q", id, "body"}, got.Elems[0].Strings())
	assert.Equal(t, int64(1), m[2].Do("ACKJOB", id).Int())
	m[0].Restart()
	m.await(t, 3)
	m.awaitNoJobs(t)
}

func TestFederation(t *testing.T) {
	m := start(t, 2)
	c := m[1].Dial()
	c.Send("GETJOB", "FROM", "q")
	harness.Await(t, 5*time.Second, "the client to wait", func() bool { return m[1].Info("jobmesh", "jobmesh_blocked_clients") == "1" })
	once := m[0].Do("ADDJOB", "q", "b", 0, "RETRY", 0, "REPLICATE", 1)
	require.Equal(t, byte('+'), once.Kind)
	v := c.Receive()
	require.Len(t, v.Elems, 1)
	assert.Equal(t, once.Str, v.Elems[0].Elems[1].Str)
	// It is offered until the other node has confirmed it, which may come after the delivery.
	harness.Await(t, 5*time.Second, "the at-most-once job to have moved", func() bool { return m[0].Do("SHOW", once.Str).Null })
	stat := m[1].Do("QSTAT", "q")
	assert.Equal(t, []string{m[0].Do("JOBMESH", "CLUSTER", "MYID").Str}, stat.Field("import-from").Strings())
	assert.Positive(t, stat.Field("import-rate").Int())

	kept := m[0].Do("ADDJOB", "q", "b", 0, "REPLICATE", 1)
	require.Equal(t, byte('+'), kept.Kind)
	v = m[1].Do("GETJOB", "TIMEOUT", 10000, "FROM", "q")
	require.Len(t, v.Elems, 1)
	assert.Equal(t, int64(1), m[1].Do("ACKJOB", kept.Str).Int())
	harness.Await(t, 10*time.Second, "the first holder to hear of the acknowledgement", func() bool { return m[0].Do("SHOW", kept.Str).Null })
}

func TestNodesAndHello(t *testing.T) {
	m := start(t, 3)
	for _, s := range m {
		nodes := strings.Split(strings.TrimSpace(s.Do("JOBMESH", "CLUSTER", "NODES").Str), "\n")
		assert.Len(t, nodes, 3)
		assert.Contains(t, nodes[0], fmt.Sprintf(" 127.0.0.1:%d myself ", s.Port), "as its connections show it")
		assert.Equal(t, "127.0.0.1", s.Do("JOBMESH", "HELLO").Elems[2].Elems[1].Str)
		for _, line := range nodes {
			assert.Len(t, strings.Fields(line), 6, line)
		}
		hello := s.Do("JOBMESH", "HELLO")
		require.Len(t, hello.Elems, 5)
		for _, e := range hello.Elems[2:] {
			assert.Equal(t, "1", e.Elems[3].Str)
		}
		assert.Contains(t, s.Do("JOBMESH", "CLUSTER", "INFO").Str, "cluster_known_nodes:3\r\ncluster_reachable_nodes:2\r\n")
	}
	id := m[2].Do("JOBMESH", "CLUSTER", "MYID").Str
	m[2].Pause()
	flags := func(s *harness.Server) string {
		for line := range strings.Lines(s.Do("JOBMESH", "CLUSTER", "NODES").Str) {
			if strings.HasPrefix(line, id) {
				return strings.Fields(line)[2]
			}
		}
		return "gone"
	}
	for _, s := range m[:2] {
		harness.Await(t, 20*time.Second, "the silent node to be failed", func() bool { return flags(s) == "fail" })
	}
	m[2].Resume()
	for _, s := range m[:2] {
		harness.Await(t, 20*time.Second, "the node to be well again", func() bool { return flags(s) == "noflags" })
	}
	for _, s := range m[:2] {
		assert.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", id).Str)
	}
	for _, s := range m[:2] {
		assert.Equal(t, "gone", flags(s), "and it isn't let in again by itself")
		meet(t, s, m[2])
	}
	m.await(t, 3)
}

func TestMeetErrors(t *testing.T) {
	s := node(t)
	for want, args := range map[string][]any{
		"ERR Invalid TCP port specified: x":                                                 {"127.0.0.1", "x"},
		"ERR Invalid node address specified: localhost:1. Give an IP address, not a name, ": {"localhost", 1},
		"ERR Invalid node address specified: 127.0.0.1:55536":                               {"127.0.0.1", 55536},
		"ERR Wrong CLUSTER subcommand or number of arguments":                               {"127.0.0.1"},
		"ERR Invalid TCP bus port specified: 65536":                                         {"127.0.0.1", 1, 65536},
	} {
		v := s.Do(append([]any{"JOBMESH", "CLUSTER", "MEET"}, args...)...)
		assert.True(t, v.Err(want), "%v: %v", args, v)
	}
	// The address is the node's own, a Redis port's, or nobody's: the log says so.
	own := s.Do("CONFIG", "GET", "jobmesh.cluster-port").Elems[1].Str
	for port, complaint := range map[string]string{own: "itself", strconv.Itoa(s.Port): "not a jobmesh", busPort(t): "refused"} {
		require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "MEET", "127.0.0.1", 1, port).Str)
		harness.Await(t, 15*time.Second, fmt.Sprint("the log to tell of port ", port, " ", complaint), func() bool {
			return strings.Contains(s.Log(), "JOBMESH CLUSTER MEET 127.0.0.1:"+port+":")
		})
	}
	assert.NotContains(t, strings.ToLower(s.Log()), "bus: bus:")
	assert.Contains(t, s.Do("JOBMESH", "CLUSTER", "INFO").Str, "cluster_known_nodes:1\r\n")
}

// Heartbeats change nothing that is saved.
func TestQuietMeshIsNotDirty(t *testing.T) {
	m := start(t, 2) // that a node votes from now on is saved
	sent := func() int64 {
		n, err := strconv.ParseInt(m[0].Info("jobmesh", "jobmesh_messages_received"), 10, 64)
		require.NoError(t, err)
		return n
	}
	require.Equal(t, "OK", m[0].Do("SAVE").Str)
	before := sent()
	harness.Await(t, 15*time.Second, "some heartbeats", func() bool { return sent() >= before+3 })
	assert.Equal(t, "0", m[0].Info("persistence", "rdb_changes_since_last_save"))
}

// A server that might evict queues holds no copies: others do.
func TestNoCopiesWhereQueuesMayBeEvicted(t *testing.T) {
	m := start(t, 3)
	require.Equal(t, "OK", m[1].Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", "1gb").Str)
	harness.Await(t, 10*time.Second, "copies to be placed elsewhere", func() bool {
		v := m[0].Do("ADDJOB", "q", "b", 2000, "REPLICATE", 2)
		return v.Kind == '+' && m[1].Do("SHOW", v.Str).Null && !m[2].Do("SHOW", v.Str).Null
	})
	harness.Await(t, 10*time.Second, "the node to be known as full", func() bool {
		return m[0].Do("ADDJOB", "q", "b", 2000, "REPLICATE", 3).Err("NOREPL Not enough reachable nodes")
	})
}

// MULTI and scripts can't wait for copies: such a job is refused there, unless
// it needs none or doesn't wait for them.
func TestAddInMultiAndLua(t *testing.T) {
	m := start(t, 2)
	c := m[0].Dial()
	script := "return redis.pcall('ADDJOB', 'q', 'b', 0, unpack(ARGV))"
	for _, leaving := range []string{"no", "yes"} {
		require.Equal(t, "OK", c.Do("JOBMESH", "CLUSTER", "LEAVING", leaving).Str)
		require.Equal(t, "OK", c.Do("MULTI").Str)
		c.Do("ADDJOB", "q", "b", 0, "REPLICATE", 2)
		c.Do("ADDJOB", "q", "b", 0, "REPLICATE", 1, "ASYNC")
		c.Do("ADDJOB", "q", "b", 0)
		v := c.Do("EXEC")
		require.Len(t, v.Elems, 3)
		assert.True(t, v.Elems[0].Err("NOREPL"), "%v", v)
		assert.Equal(t, byte('+'), v.Elems[1].Kind, "%v", v)
		assert.Equal(t, byte('+'), v.Elems[2].Kind, "%v", v)
		assert.True(t, c.Do("EVAL", script, 0, "REPLICATE", 2).Err("NOREPL"))
		assert.Equal(t, byte('+'), c.Do("EVAL", script, 0, "REPLICATE", 1, "ASYNC").Kind)
	}
}

// An at-most-once job has one copy, whatever the defaults are.
func TestOneCopyOfWhatComesAtMostOnce(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	require.Equal(t, "OK", m[0].Do("QCONFIG", "SET", "set", "REPLICATE", 3).Str)
	require.Equal(t, "OK", m[0].Do("QCONFIG", "SET", "once", "RETRY", 0).Str)
	for _, add := range [][]any{
		{"ADDJOB", "metrics", "tick", 0, "RETRY", 0},
		{"ADDJOB", "metrics", "tick", 0, "RETRY", 0, "ASYNC"},
		{"EVAL", "return redis.call('ADDJOB', 'metrics', 'tick', 0, 'RETRY', 0)", 0},
		{"ADDJOB", "set", "tick", 0, "RETRY", 0},
		{"ADDJOB", "once", "tick", 0},
	} {
		v := m[0].Do(add...)
		require.Equal(t, byte('+'), v.Kind, "%v: %v", add, v)
		assert.True(t, m[0].Do("SHOW", v.Str).Field("repl").Is(1), "%v", add)
		for _, s := range m[1:] {
			assert.True(t, s.Do("SHOW", v.Str).Null, "%v", add)
		}
	}
	assert.True(t, m[0].Do("ADDJOB", "q", "b", 0, "RETRY", 0, "REPLICATE", 2).Err("ERR With RETRY set to 0"))
	assert.True(t, m[0].Do("ADDJOB", "once", "b", 0, "REPLICATE", 2).Err("ERR With RETRY set to 0"))
	v := m[0].Do("ADDJOB", "set", "b", 5000)
	assert.True(t, m[0].Do("SHOW", v.Str).Field("repl").Is(3))
}

// An acknowledgement of a job that isn't known here is kept until all nodes have heard of it,
// as a job without a queue and a body. SHOW shows it. JSCAN, which lists jobs, doesn't.
func TestAcknowledgementOfAnUnknownJob(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	c := m[0].Dial()
	job, other := c.Do("ADDJOB", "", "b", 5000).Str, id(m[1])
	m[1].Pause()
	const unknown = "D-ffffffff-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"
	assert.Equal(t, int64(0), c.Do("ACKJOB", unknown).Int())
	v := c.Do("SHOW", unknown)
	assert.Equal(t, "acked", v.Field("state").Str)
	assert.True(t, v.Field("queue").NullString())
	assert.True(t, v.Field("body").NullString())
	assert.Equal(t, []string{other}, v.Field("nodes-delivered").Strings(), "those that are to be told")
	assert.Equal(t, "2", jobs(m[0]))
	for _, args := range [][]any{{}, {"QUEUE", ""}, {"STATE", "queued", "STATE", "acked"}} {
		assert.Equal(t, []string{job}, c.Do(append([]any{"JSCAN", "BUSYLOOP"}, args...)...).Elems[1].Strings(), "%v", args)
	}
	m[1].Resume()
	harness.Await(t, 20*time.Second, "all to know", func() bool { return c.Do("SHOW", unknown).Null })
}

// SHOW's nodes-delivered and nodes-confirmed count the node itself where it holds the job.
func TestHoldersInShow(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	ids, c, waiting := []string{id(m[0]), id(m[1]), id(m[2])}, m[0].Dial(), m[0].Dial()
	m[2].Pause()
	shown := func(state string, confirmed int) (v harness.Value) {
		t.Helper()
		harness.Await(t, 1500*time.Millisecond, fmt.Sprintf("%d to confirm a job that is %s", confirmed, state), func() bool {
			found := c.Do("JSCAN", "BUSYLOOP", "STATE", state).Elems[1].Strings()
			if len(found) != 1 {
				return false
			}
			v = c.Do("SHOW", found[0])
			return len(v.Field("nodes-confirmed").Elems) == confirmed
		})
		return v
	}
	waiting.Send("ADDJOB", "q", "b", 0, "REPLICATE", 3)
	v := shown("wait-repl", 2)
	assert.ElementsMatch(t, ids, v.Field("nodes-delivered").Strings())
	assert.ElementsMatch(t, ids[:2], v.Field("nodes-confirmed").Strings())
	m[2].Resume()
	job := waiting.Receive().Str
	assert.Empty(t, c.Do("SHOW", job).Field("nodes-confirmed").Elems)

	m[2].Pause()
	assert.Equal(t, int64(1), c.Do("ACKJOB", job).Int())
	assert.ElementsMatch(t, ids[:2], shown("acked", 2).Field("nodes-confirmed").Strings())
	m[2].Resume()
	m.awaitNoJobs(t)

	// A node that is leaving holds no copy of a job that it adds at others.
	require.Equal(t, "OK", c.Do("JOBMESH", "CLUSTER", "LEAVING", "yes").Str)
	m[2].Pause()
	waiting.Send("ADDJOB", "q", "b", 0, "REPLICATE", 2)
	v = shown("wait-repl", 1)
	assert.ElementsMatch(t, ids[1:], v.Field("nodes-delivered").Strings())
	assert.Equal(t, ids[1:2], v.Field("nodes-confirmed").Strings())
	m[2].Resume()
	assert.Equal(t, byte('+'), waiting.Receive().Kind)
}
