package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// While a server loads, its AOF is off. The module must not remember later that nobody listened
// then: later effects would be missing in the AOF, or be in it as an empty command, at which the
// next start would end.
func TestEffectsAreLoggedAfterLoading(t *testing.T) {
	m := start(t, 2, "appendonly yes", "appendfsync always")
	s := m[0]
	add := func() string {
		v := s.Do("ADDJOB", "q", "b", 0, "RETRY", 1, "REPLICATE", 1)
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		return v.Str
	}
	ids := []string{add()}
	s.RewriteAOF()
	for range 3 {
		s.Kill()
		s.Restart()
		// A timer queues a job again, which is logged without any command.
		got := s.Do("GETJOB", "TIMEOUT", 10000, "FROM", "q")
		require.Len(t, got.Elems, 1)
		id := got.Elems[0].Elems[1].Str
		harness.Await(t, 10*time.Second, "the job to be queued again", func() bool { return s.Do("SHOW", id).Field("state").Str == "queued" })
		ids = append(ids, add())
		assert.NotContains(t, s.Appended(), "*0\r\n", "an empty command")
		s.Kill()
		s.Restart()
		for _, id := range ids {
			assert.False(t, s.Do("SHOW", id).Null, id)
		}
	}
}

// stuck lets n clients of s add a unique job each, or acquire a lock each, and returns their
// connections. The caller has stopped a node that is needed for that.
func stuck(s *harness.Server, kind string, copies, n int) (waiting []*harness.Conn) {
	for i := range n {
		c := s.Dial()
		key := fmt.Sprint(time.Now().UnixNano(), ".", i)
		if kind == "add" {
			c.Send("ADDJOB", "q", "b", 0, "REPLICATE", copies, "RETRY", 10, "UNIQUE", "until-processed", "KEY", key)
		} else {
			c.Send("LOCK.ACQUIRE", key, "owner", 30000, "WAIT", 30000)
		}
		waiting = append(waiting, c)
	}
	return waiting
}

// Clients leave while nodes are still agreeing on their jobs or locks, and while writes are
// paused. The changes that follow from this are made, and logged, when the pause is over.
func TestClientsLeaveDuringAPause(t *testing.T) {
	for _, kind := range []string{"add", "lock"} {
		t.Run(kind, func(t *testing.T) {
			m := start(t, 3, "appendonly yes")
			stopped := m[2:] // a majority gives the lock, and a copy is missing
			if kind == "lock" {
				stopped = m[1:]
			}
			for range 4 {
				for _, s := range stopped {
					s.Pause()
				}
				waiting := stuck(m[0], kind, 3, 20)
				harness.Await(t, 10*time.Second, "the clients to wait", func() bool { return m[0].Info("clients", "blocked_clients") == "20" })
				// Another client pauses writes. The clients that wait close their connections during the pause.
				require.Equal(t, "OK", m[0].Do("CLIENT", "PAUSE", 300, "WRITE").Str)
				for _, c := range waiting {
					c.Close()
				}
				harness.Await(t, 10*time.Second, "the clients to be gone", func() bool { return m[0].Info("clients", "blocked_clients") == "0" })
				for _, s := range stopped {
					s.Resume()
				}
				m.await(t, 3)
				v := m[0].Do("ADDJOB", "other", "b", 10000, "REPLICATE", 3)
				require.Equal(t, byte('+'), v.Kind, "%v", v)
			}
		})
	}
}

// A client that CLIENT UNBLOCK refuses while writes are paused leaves no job behind, although the
// copy that was missing is confirmed before the effects that the pause holds up.
func TestRefusedAddDuringAPause(t *testing.T) {
	m := start(t, 2, "appendonly yes")
	c := m[0].Dial()
	for range 6 {
		w := m[0].Dial()
		id := w.Do("CLIENT", "ID").Int()
		m[1].Pause()
		w.Send("ADDJOB", "q", "b", 0, "REPLICATE", 2)
		harness.Await(t, 10*time.Second, "the client to wait", func() bool { return m[0].Info("clients", "blocked_clients") == "1" })
		require.Equal(t, "OK", c.Do("CLIENT", "PAUSE", 300, "WRITE").Str)
		require.Equal(t, int64(1), c.Do("CLIENT", "UNBLOCK", id).Int())
		v := w.Receive()
		require.True(t, v.Err("NOREPL"), v.String())
		m[1].Resume()
		v = c.Do("ADDJOB", "other", "b", 10000, "REPLICATE", 2) // its copy is confirmed after the other's
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		require.Equal(t, int64(0), c.Do("QLEN", "q").Int())
		w.Close()
	}
	m[0].Kill()
	m[0].Restart()
	require.Equal(t, int64(0), m[0].Do("QLEN", "q").Int())
}

// A server turns into a replica, and back, while clients wait for other nodes. The REPLICAOF
// must not be in the log, since the next start would carry it out.
func TestUndoneReplicaofIsNotLogged(t *testing.T) {
	m := start(t, 3, "appendonly yes", "appendfsync always")
	var ids []string
	for range 5 {
		v := m[0].Do("ADDJOB", "keep", "b", 1000)
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		ids = append(ids, v.Str)
	}
	m[2].Pause()
	nobody := harness.FreePort(t)
	var waiting []*harness.Conn
	for i := range 3 {
		c := m[0].Dial()
		c.Send("ADDJOB", "q", "b", 20000, "REPLICATE", 3, "UNIQUE", "until-processed", "KEY", i)
		waiting = append(waiting, c)
	}
	harness.Await(t, 10*time.Second, "the clients to wait for copies", func() bool { return m[0].Info("jobmesh", "jobmesh_locks") == "3" && jobs(m[0]) == "8" })
	require.Equal(t, byte('+'), m[0].Do("REPLICAOF", "127.0.0.1", nobody).Kind)
	for _, c := range waiting {
		assert.Equal(t, byte('-'), c.Receive().Kind, "who waits is told")
	}
	require.Equal(t, byte('+'), m[0].Do("REPLICAOF", "NO", "ONE").Kind)
	later := m[0].Do("ADDJOB", "keep", "later", 0, "ASYNC")
	require.Equal(t, byte('+'), later.Kind, "%v", later)
	assert.NotContains(t, strings.ToUpper(m[0].Appended()), "REPLICAOF")
	m[2].Resume()
	m[0].Kill()
	m[0].Restart()
	assert.Equal(t, "master", m[0].Info("replication", "role"))
	for _, id := range append(ids, later.Str) {
		assert.False(t, m[0].Do("SHOW", id).Null, id)
	}
}

// FAILOVER pauses writes, demotes the master while its clients wait for other nodes,
// and promotes the replica, which the nodes then meet.
func TestFailoverWhileClientsWait(t *testing.T) {
	m := start(t, 3, "appendonly yes", "repl-diskless-sync-delay 0")
	replica := harness.Start(t, harness.WithConfig("jobmesh.cluster-port "+busPort(t), "appendonly yes"), harness.WithReplicaOf(m[0]))
	replica.AwaitSync()
	v := m[0].Do("ADDJOB", "keep", "b", 5000, "REPLICATE", 2)
	require.Equal(t, byte('+'), v.Kind, "%v", v)
	m[2].Pause()
	waiting := stuck(m[0], "add", 3, 20)
	harness.Await(t, 10*time.Second, "the clients to wait for copies", func() bool { return m[0].Info("jobmesh", "jobmesh_locks") == "20" && jobs(m[0]) == "21" })
	require.Equal(t, "OK", m[0].Do("FAILOVER").Str)
	harness.Await(t, 20*time.Second, "the replica to be the master", func() bool { return replica.Info("replication", "role") == "master" })
	for _, c := range waiting {
		assert.Equal(t, byte('-'), c.Receive().Kind)
	}
	m[2].Resume()
	m[0].AwaitSync()
	for _, s := range []*harness.Server{m[0], replica} {
		assert.NotContains(t, strings.ToUpper(s.Appended()), "PSYNC")
		assert.NotContains(t, strings.ToUpper(s.Appended()), "REPLICAOF")
		assert.False(t, s.Do("SHOW", v.Str).Null)
	}
}

// A job is handed over to a node whose writes are paused, since it is about to change places with its
// replica. Once it is the replica, it refuses the job. So a client at another node gets the job at
// once, before anybody has forgotten the node.
func TestFailoverRefusesJobsThatArrivedMeanwhile(t *testing.T) {
	m := start(t, 3, "repl-diskless-sync-delay 0")
	replica := harness.Start(t, harness.WithConfig("jobmesh.cluster-port "+busPort(t)), harness.WithReplicaOf(m[1]))
	replica.AwaitSync()
	waits := m[1].Dial()
	waits.Send("GETJOB", "FROM", "q")
	once := m[1].Dial()
	once.Send("GETJOB", "FROM", "once")
	harness.Await(t, 10*time.Second, "the clients to wait", func() bool { return m[1].Info("clients", "blocked_clients") == "2" })
	time.Sleep(300 * time.Millisecond) // the other nodes have heard of them
	replica.Pause()
	require.Equal(t, "OK", m[1].Do("FAILOVER").Str)
	added := m[0].Do("ADDJOB", "q", "b", 5000, "RETRY", 300)
	require.Equal(t, byte('+'), added.Kind, "%v", added)
	atMostOnce := m[0].Do("ADDJOB", "once", "b", 5000, "RETRY", 0)
	require.Equal(t, byte('+'), atMostOnce.Kind, "%v", atMostOnce)
	require.Equal(t, int64(0), m[0].Do("QLEN", "q").Int(), "it isn't handed over")
	time.Sleep(300 * time.Millisecond)
	replica.Resume()
	harness.Await(t, 20*time.Second, "the replica to be the master", func() bool { return replica.Info("replication", "role") == "master" })
	assert.Equal(t, byte('-'), waits.Receive().Kind)
	assert.Equal(t, byte('-'), once.Receive().Kind)
	for _, queue := range []string{"q", "once"} {
		got := m[2].Do("GETJOB", "TIMEOUT", 15_000, "FROM", queue) // an offer that arrived during the failover is repeated after 5 s
		require.Len(t, got.Elems, 1, "%s: %v", queue, got)
	}
	for _, s := range append(m, replica) {
		assert.NotContains(t, s.Log(), "panic")
	}
}

// The child that rewrites an AOF without an RDB at its head also writes the data that lie in no key.
// So the new file has them also if writes are paused, and nothing can be logged behind it.
func TestRewriteWithoutPreambleDuringAPause(t *testing.T) {
	m := start(t, 1, "appendonly yes", "aof-use-rdb-preamble no")
	require.Equal(t, byte(':'), m[0].Do("LOCK.ACQUIRE", "l", "owner", 600000).Kind)
	require.Equal(t, "OK", m[0].Do("CLIENT", "PAUSE", 500, "WRITE").Str)
	m[0].RewriteAOF()
	m[0].Kill()
	m[0].Restart()
	assert.False(t, m[0].Do("LOCK.SHOW", "l").Null)
}
