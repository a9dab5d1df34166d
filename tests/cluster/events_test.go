package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// stream is the stream of events of a server, as XRANGE answers it.
func stream(s *harness.Server) string { return s.Do("XRANGE", "jobmesh:events", "-", "+").String() }

// told counts the events of a job or a queue over all nodes.
func (m mesh) told(of string) map[string]int {
	counts := map[string]int{}
	for _, s := range m {
		for _, v := range s.Do("XRANGE", "jobmesh:events", "-", "+").Elems {
			id, queue := v.Elems[1].Field("id"), v.Elems[1].Field("queue")
			if id.Str == of || id.Str == "" && queue.Str == of {
				counts[v.Elems[1].Field("event").Str]++
			}
		}
	}
	return counts
}

// E5: events that come of timers and of other nodes' messages reach a Redis replica, and the log, as they are.
func TestLifeE5(t *testing.T) {
	t.Parallel()
	lines := []string{"jobmesh.events all", "appendonly yes", "appendfsync always", "repl-diskless-sync-delay 0"}
	m := start(t, 2, lines...)
	r := harness.Start(t, harness.WithConfig(append(lines, "jobmesh.cluster-port "+busPort(t))...), harness.WithReplicaOf(m[1]))
	r.AwaitSync()
	a, b := m[0].Dial(), m[1].Dial()
	// A timer.
	lapsed := b.Do("ADDJOB", "timed", "body", 0, "RETRY", 1, "REPLICATE", 1).Str
	require.Len(t, b.Do("GETJOB", "FROM", "timed").Elems, 1)
	harness.Await(t, 20*time.Second, "the lapse", func() bool { return m.told(lapsed)["requeue"] == 1 })
	assert.Equal(t, map[string]int{"add": 1, "deliver": 1, "lapse": 1, "requeue": 1}, m.told(lapsed))
	// A message, at a server whose writes are paused: it is told when the pause is over.
	b.Send("GETJOB", "TIMEOUT", 60_000, "FROM", "q")
	harness.Await(t, 20*time.Second, "the client", func() bool { return m[1].Info("jobmesh", "jobmesh_blocked_clients") == "1" })
	require.Equal(t, "OK", m[1].Do("CLIENT", "PAUSE", 100_000, "WRITE").Str)
	id := a.Do("ADDJOB", "q", "body", 0, "RETRY", 600, "REPLICATE", 1).Str
	time.Sleep(300 * time.Millisecond)
	paused := m.told(id)
	require.Equal(t, "OK", m[1].Do("CLIENT", "UNPAUSE").Str)
	require.Len(t, b.Receive().Elems, 1)
	harness.Await(t, 20*time.Second, "the delivery to be told", func() bool { return m.told(id)["deliver"] == 1 })
	assert.Equal(t, map[string]int{"add": 1}, paused)
	// The end, which B is told of.
	require.Equal(t, int64(1), a.Do("ACKJOB", id).Int())
	harness.Await(t, 20*time.Second, "B to know", func() bool { return m[1].Do("SHOW", id).Null || m[1].Do("SHOW", id).Field("state").Str == "acked" })
	assert.Equal(t, map[string]int{"add": 1, "deliver": 1, "done": 1}, m.told(id))
	want := stream(m[1])
	harness.Await(t, 20*time.Second, "the replica to have the events", func() bool { return stream(r) == want })
	for _, s := range append(m, r) {
		assert.NotContains(t, s.Log(), "CRITICAL")
		assert.NotContains(t, s.Appended(), "*0\r\n")
	}
	m[1].Kill()
	m[1].Restart()
	assert.True(t, strings.HasPrefix(stream(m[1]), strings.TrimSuffix(want, "]")), "what comes after the start follows")
}

// E7: three nodes hold a job, and each event is told once, wherever the client says what.
func TestLifeE7(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "jobmesh.events all")
	a, b, c := m[0].Dial(), m[1].Dial(), m[2].Dial()
	once := map[string]int{"add": 1, "deliver": 1, "done": 1}
	ended := func(id string) {
		t.Helper()
		for _, s := range m {
			harness.Await(t, 20*time.Second, "the node to know", func() bool { return s.Do("SHOW", id).Null || s.Do("SHOW", id).Field("state").Str == "acked" })
		}
	}
	for _, copies := range []int{3, 1} {
		for _, end := range []string{"ACKJOB", "FASTACK"} {
			for _, at := range []*harness.Conn{a, b, c} { // with one copy the job isn't known at one of them, at least
				id := addTo(t, a, "REPLICATE", copies, "RETRY", 600)
				fetchJob(t, b, id)
				at.Do(end, id)
				ended(id)
				harness.Await(t, 20*time.Second, "the end to be told", func() bool { return m.told(id)["done"] > 0 })
				assert.Equal(t, once, m.told(id), "%d copies, %s", copies, end)
			}
		}
		id := addTo(t, a, "REPLICATE", copies, "RETRY", 600)
		c.Do("CANCELJOB", id)
		ended(id)
		harness.Await(t, 20*time.Second, "the end to be told", func() bool { return m.told(id)["cancel"] > 0 })
		assert.Equal(t, map[string]int{"add": 1, "cancel": 1}, m.told(id))
	}
	id := addTo(t, a, "REPLICATE", 3, "RETRY", 600, "TTL", 1)
	for _, s := range m {
		harness.Await(t, 20*time.Second, "the job to expire", func() bool { return s.Do("SHOW", id).Null })
	}
	assert.Equal(t, map[string]int{"add": 1, "expire": 1}, m.told(id))
	parent := addTo(t, a, "REPLICATE", 3, "RETRY", 600)
	child := addTo(t, a, "REPLICATE", 3, "RETRY", 600, "AFTER", parent)
	a.Do("CANCELJOB", parent)
	for _, s := range m {
		harness.Await(t, 20*time.Second, "the child to go", func() bool { return s.Do("SHOW", child).Null || s.Do("SHOW", child).Field("state").Str == "acked" })
	}
	assert.Equal(t, map[string]int{"add": 1, "drop": 1}, m.told(child))
}
