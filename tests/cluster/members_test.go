package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// flags returns the flags that a node shows for another one in CLUSTER NODES.
func flags(s *harness.Server, id string) string {
	for line := range strings.Lines(s.Do("JOBMESH", "CLUSTER", "NODES").Str) {
		if strings.HasPrefix(line, id) {
			return strings.Fields(line)[2]
		}
	}
	return "unknown"
}

func reachable(s *harness.Server) string { return s.Info("jobmesh", "jobmesh_reachable_nodes") }

func awaitReachable(t *testing.T, s *harness.Server, n int) {
	t.Helper()
	harness.Await(t, 15*time.Second, strconv.Itoa(n)+" reachable nodes", func() bool { return reachable(s) == strconv.Itoa(n) })
}

func TestReset(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for _, kind := range []string{"SOFT", "HARD"} {
		was := id(m[0])
		require.Equal(t, "OK", m[0].Do("JOBMESH", "CLUSTER", "LEAVING", "yes").Str)
		require.Equal(t, "OK", m[0].Do("JOBMESH", "CLUSTER", "LEAVING", "no").Str)
		v := m[0].Do("ADDJOB", "q", "b", 0, "REPLICATE", 1)
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		c := m[0].Dial()
		c.Send("GETJOB", "FROM", "other")
		harness.Await(t, 5*time.Second, "the client to wait", func() bool { return m[0].Info("jobmesh", "jobmesh_blocked_clients") == "1" })
		require.Equal(t, "OK", m[0].Do("JOBMESH", "CLUSTER", "RESET", kind).Str)
		assert.True(t, c.Receive().NullArray(), "waiting clients are released")
		assert.Equal(t, "0", jobs(m[0]))
		assert.Equal(t, "0", m[0].Info("jobmesh", "jobmesh_registered_queues"))
		assert.Equal(t, "no", m[0].Info("jobmesh", "jobmesh_leaving"))
		assert.Equal(t, kind == "SOFT", id(m[0]) == was, "only a hard one gives a new ID")
		for _, s := range m[1:] {
			awaitReachable(t, s, 1)
			assert.NotEqual(t, "unknown", flags(s, was))
		}
		// The others still know it, and dial it again after a tenth of a second.
		require.Never(t, func() bool { return known(m[0]) != "1" }, time.Second, 50*time.Millisecond, "a node that was reset is alone until it is met")
		for _, s := range m[1:] {
			require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", was).Str)
		}
		// It doesn't matter which node meets the other.
		if kind == "SOFT" {
			meet(t, m[0], m[1])
			meet(t, m[0], m[2]) // which has forgotten it, so m[1] can't tell it
		} else {
			meet(t, m[1], m[0])
		}
		m.await(t, 3)
		for _, s := range m {
			assert.Equal(t, "3", known(s))
		}
	}
}

// A node that was forgotten is let in again as soon as an operator makes the two meet, at
// whichever of them.
func TestForgottenAndMet(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	for _, by := range []int{0, 1} {
		require.Equal(t, "OK", m[0].Do("JOBMESH", "CLUSTER", "FORGET", id(m[1])).Str)
		require.Never(t, func() bool { return known(m[0]) != "1" }, 500*time.Millisecond, 50*time.Millisecond, "it knocks in vain")
		meet(t, m[by], m[1-by])
		m.await(t, 2)
	}
}

// The bus is closed and opened, and the nodes' file written, again and again. Nothing is left
// behind, and the last ID is kept.
func TestResetsInARow(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	for range 20 {
		require.Equal(t, "OK", m[0].Do("JOBMESH", "CLUSTER", "RESET", "HARD").Str)
		require.Equal(t, "OK", m[0].Do("JOBMESH", "CLUSTER", "LEAVING", "yes").Str)
	}
	last := id(m[0])
	harness.Await(t, 10*time.Second, "its bus", func() bool {
		v := m[0].Do("JOBMESH", "CLUSTER", "MEET", "127.0.0.1", 1, ownBus(m[1]))
		if v.Kind == '-' {
			assert.True(t, v.Err("ERR this node's bus is being opened anew"), "%v", v)
		}
		return v.Str == "OK"
	})
	awaitReachable(t, m[0], 1)
	assert.NotContains(t, m[0].Log(), "works alone")
	assert.NotContains(t, m[0].Log(), "can't be written")
	m[0].Kill()
	m[0].Restart()
	assert.Equal(t, last, id(m[0]))
	assert.Equal(t, "yes", m[0].Do("JOBMESH", "CLUSTER", "LEAVING").Str)
	awaitReachable(t, m[0], 1)
}

func TestResetLeaving(t *testing.T) {
	t.Parallel()
	s := node(t)
	require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "LEAVING", "yes").Str)
	require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "RESET").Str)
	assert.Equal(t, "no", s.Do("JOBMESH", "CLUSTER", "LEAVING").Str)
	s.Kill()
	s.Restart()
	assert.Equal(t, "no", s.Do("JOBMESH", "CLUSTER", "LEAVING").Str)
	assert.True(t, s.Do("JOBMESH", "CLUSTER", "RESET", "MAYBE").Err("ERR syntax error"))
}

func TestLeaving(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	require.Equal(t, "OK", m[0].Do("JOBMESH", "CLUSTER", "LEAVING", "yes").Str)
	assert.Equal(t, "+\"yes\"", m[0].Do("JOBMESH", "CLUSTER", "LEAVING").String())
	assert.True(t, m[0].Do("JOBMESH", "CLUSTER", "LEAVING", "soon").Err("ERR Wrong argument for CLUSTER LEAVING. Use 'yes' or 'no'"))
	visible := func() {
		for _, s := range m[1:] {
			awaitReachable(t, s, 1)
			assert.Equal(t, "leaving", flags(s, id(m[0])))
			for _, e := range s.Do("JOBMESH", "HELLO").Elems[2:] {
				if e.Elems[0].Str == id(m[0]) {
					assert.Equal(t, "100", e.Elems[3].Str)
				}
			}
		}
		assert.Equal(t, "2", reachable(m[0]))
	}
	visible()
	// The job is on the two others, and queued at one of them.
	v := m[0].Do("ADDJOB", "q", "b", 5000, "REPLICATE", 2)
	require.Equal(t, byte('+'), v.Kind, "%v", v)
	assert.True(t, m[0].Do("SHOW", v.Str).Null)
	queued := func(id string, where mesh) (n int) {
		for _, s := range where {
			if s.Do("SHOW", id).Field("state").Str == "queued" {
				n++
			}
		}
		return n
	}
	harness.Await(t, 5*time.Second, "one of them to queue it", func() bool { return queued(v.Str, m[1:]) == 1 })
	assert.Equal(t, []string{"1", "1"}, []string{jobs(m[1]), jobs(m[2])})
	long := m[0].Do("ADDJOB", "q", "b", 0, "REPLICATE", 3)
	assert.True(t, long.Err("NOREPL"), "%v", long)
	assert.Contains(t, long.Str, "I'm leaving the cluster")
	assert.True(t, m[0].Do("GETJOB", "TIMEOUT", 1000, "FROM", "q").Err("LEAVING"))
	assert.Equal(t, int64(1), m[1].Do("ACKJOB", v.Str).Int())
	m.awaitNoJobs(t)
	outside(t, m)

	m[0].Kill()
	m[0].Restart()
	m[1:].await(t, 2)
	assert.Equal(t, "yes", m[0].Do("JOBMESH", "CLUSTER", "LEAVING").Str, "it survives a restart")
	awaitReachable(t, m[0], 2)
	visible()
	require.Equal(t, "OK", m[0].Do("JOBMESH", "CLUSTER", "LEAVING", "no").Str)
	m.await(t, 3)
	assert.Equal(t, "noflags", flags(m[1], id(m[0])))
}

// outside adds at-most-once jobs at the first node, which keeps none. Each is delivered once, at
// another node.
func outside(t *testing.T, m mesh) {
	t.Helper()
	before := jobs(m[0])
	want := map[string]bool{}
	for _, delay := range []int{0, 1} {
		for range 20 {
			v := m[0].Do("ADDJOB", "once", "b", 5000, "REPLICATE", 1, "RETRY", 0, "DELAY", delay)
			require.Equal(t, byte('+'), v.Kind, "%v", v)
			assert.True(t, m[0].Do("SHOW", v.Str).Null)
			want[v.Str] = true
		}
	}
	left := len(want)
	harness.Await(t, 15*time.Second, "the jobs to come out", func() bool {
		for _, s := range m[1:] {
			for _, job := range s.Do("GETJOB", "NOHANG", "COUNT", 100, "FROM", "once").Elems {
				id := job.Elems[1].Str
				assert.True(t, want[id], "%s comes out once", id)
				want[id] = false
				left--
				s.Do("ACKJOB", id)
			}
		}
		return left <= 0
	})
	m[1:].awaitNoJobs(t)
	assert.Equal(t, before, jobs(m[0]))
	for _, s := range m {
		assert.True(t, s.Do("GETJOB", "NOHANG", "FROM", "once").Null)
	}
}

func TestMemoryShort(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	old := m[0].Do("ADDJOB", "q", "b", 0, "REPLICATE", 1, "RETRY", 60)
	require.Equal(t, byte('+'), old.Kind)
	m.short(t, 0)
	v := m[0].Do("ADDJOB", "out", "b", 5000, "REPLICATE", 2)
	require.Equal(t, byte('+'), v.Kind, "%v", v)
	assert.True(t, m[0].Do("SHOW", v.Str).Null)
	for _, s := range m[1:] {
		assert.False(t, s.Do("SHOW", v.Str).Null)
	}
	refused := m[0].Do("ADDJOB", "out", "b", 100, "REPLICATE", 3)
	assert.True(t, refused.Err("NOREPL"), "%v", refused)
	assert.Contains(t, refused.Str, "I'm out of memory")
	assert.Equal(t, int64(1), m[2].Do("ACKJOB", v.Str).Int())
	outside(t, m)

	memory(t, m[0], 1.5, "2")
	for _, cmd := range [][]any{{"ADDJOB", "q", "b", 100}, {"NACK", old.Str}, {"ENQUEUE", old.Str}} {
		assert.True(t, m[0].Do(cmd...).Err("OOM command not allowed"), "%v", cmd)
	}
	got := m[0].Do("GETJOB", "FROM", "q")
	require.Len(t, got.Elems, 1, "what is there can be had")
	assert.Equal(t, int64(1), m[0].Do("ACKJOB", old.Str).Int())
	m.awaitNoJobs(t)
	require.Equal(t, "OK", m[0].Do("CONFIG", "SET", "maxmemory", 0).Str)
	m.await(t, 3)
	v = m[1].Do("ADDJOB", "q", "b", 5000)
	assert.Equal(t, byte('+'), v.Kind, "%v", v)
	assert.Equal(t, "1", jobs(m[0]))
}

// logged returns the end of a server's AOF, and INFO's section about it.
func logged(s *harness.Server) string {
	text := s.Do("INFO", "persistence").Str
	files, _ := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*.incr.aof"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		text += fmt.Sprintf("%s: %q %v\n", filepath.Base(f), b[max(0, len(b)-1000):], err)
	}
	return text
}

func TestMeshIsFoundAgain(t *testing.T) {
	t.Parallel()
	m := start(t, 3, durable...)
	ids := []string{id(m[0]), id(m[1]), id(m[2])}
	job := m[0].Do("ADDJOB", "q", "b", 5000, "REPLICATE", 3, "RETRY", 60)
	require.Equal(t, byte('+'), job.Kind)
	for name, which := range map[string]mesh{"one": m[1:2], "all": m} {
		which.kill()
		which.restart()
		m.await(t, 3)
		for i, s := range m {
			assert.Equal(t, ids[i], id(s), "%s: node %d", name, i)
			assert.Equal(t, "3", known(s), "%s: node %d", name, i)
			assert.Equal(t, "1", jobs(s), "%s: node %d\n%s", name, i, logged(s))
		}
	}
	// The same after an orderly end. The first node knows at which ports the others serve clients before it hears from them.
	for _, s := range m {
		s.Stop()
	}
	m[:1].restart()
	for i, s := range m[1:] {
		assert.Contains(t, m[0].Do("JOBMESH", "CLUSTER", "NODES").Str, fmt.Sprintf("%s 127.0.0.1:%d ", ids[i+1], s.Port))
	}
	m[1:].restart()
	m.await(t, 3)
	assert.Len(t, m[2].Do("SHOW", job.Str).Field("nodes-delivered").Elems, 3)
	assert.Equal(t, int64(1), m[2].Do("ACKJOB", job.Str).Int())
	m.awaitNoJobs(t)
}

// A node that has lost all its files, and so its ID, is a new node.
func TestNodeComesBackWithNothing(t *testing.T) {
	t.Parallel()
	m := start(t, 3, durable...)
	was := id(m[2])
	job := m[0].Do("ADDJOB", "q", "b", 5000, "REPLICATE", 3, "RETRY", 1)
	require.Equal(t, byte('+'), job.Kind)
	m[2].Kill()
	files, err := filepath.Glob(filepath.Join(m[2].Dir, "*"))
	require.NoError(t, err)
	for _, f := range files {
		if base := filepath.Base(f); base != "redis.conf" && base != "log" && base != "stderr" {
			require.NoError(t, os.RemoveAll(f))
		}
	}
	m[2].Restart()
	assert.NotEqual(t, was, id(m[2]))
	assert.Equal(t, "0", jobs(m[2]))
	says(t, m[0], "another node answers at the address")
	assert.Equal(t, "1", known(m[2]), "nobody takes it for the old one")
	// Its jobs are safe at the others meanwhile.
	got := m[1].Do("GETJOB", "TIMEOUT", 10000, "FROM", "q")
	require.Len(t, got.Elems, 1)
	for _, s := range m[:2] {
		assert.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", was).Str)
	}
	meet(t, m[2], m[0])
	m.await(t, 3)
	assert.Equal(t, int64(0), m[2].Do("ACKJOB", job.Str).Int(), "it never heard of the job, but passes the word on")
	m.awaitNoJobs(t)
	for _, s := range m {
		assert.Equal(t, "3", known(s))
	}
}

func TestNodeComesBackElsewhere(t *testing.T) {
	t.Parallel()
	m := start(t, 3, durable...)
	was, job := id(m[2]), m[0].Do("ADDJOB", "q", "b", 5000, "REPLICATE", 3, "RETRY", 60)
	require.Equal(t, byte('+'), job.Kind)
	bus := ownBus(m[2])
	m[2].Kill()
	m[2].Move("jobmesh.cluster-port "+bus, "jobmesh.cluster-port "+busPort(t))
	m[2].Restart()
	m.await(t, 3)
	assert.Equal(t, was, id(m[2]))
	for _, s := range m[:2] {
		harness.Await(t, 10*time.Second, "its new address to be known", func() bool {
			return strings.Contains(s.Do("JOBMESH", "CLUSTER", "NODES").Str, was+" 127.0.0.1:"+strconv.Itoa(m[2].Port)+" noflags")
		})
		assert.Equal(t, "3", known(s))
	}
	assert.Equal(t, int64(1), m[2].Do("ACKJOB", job.Str).Int())
	m.awaitNoJobs(t)
	// A node that is restarted knows the new address too.
	m[0].Kill()
	m[0].Restart()
	m.await(t, 3)
}

// The answers of FORGET, DEL and FLUSHALL hold after a SHUTDOWN that follows at once.
func TestShutdownRightAfter(t *testing.T) {
	t.Parallel()
	for range 3 {
		m := start(t, 4)
		for i := range 4 {
			v := m[0].Do("ADDJOB", []string{"deleted", "flushed"}[i%2], "b", 5000, "REPLICATE", 4, "RETRY", 1000)
			require.Equal(t, byte('+'), v.Kind, "%v", v)
		}
		two, three := id(m[2]), id(m[3])
		c := m[0].Dial()
		c.Send("DEL", "deleted")
		c.Send("JOBMESH", "CLUSTER", "FORGET", two)
		c.Send("JOBMESH", "CLUSTER", "FORGET", three)
		for range 3 {
			require.NotEqual(t, byte('-'), c.Receive().Kind)
		}
		m[0].Stop()
		text, err := os.ReadFile(filepath.Join(m[0].Dir, "jobmesh-nodes.conf"))
		require.NoError(t, err)
		assert.Contains(t, string(text), "\nforgotten "+two)
		assert.Contains(t, string(text), "\nforgotten "+three)
		assert.Contains(t, string(text), "\ndeleted ", "the node knows that the queue was deleted")
	}
}
