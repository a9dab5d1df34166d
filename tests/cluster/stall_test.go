package cluster

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A node whose bus port is taken when it starts takes part in the mesh by dialling,
// says what is wrong, and listens once the port is free.
func TestBusPortTakenAtStart(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	addr := "127.0.0.1:" + m[1].Do("CONFIG", "GET", "jobmesh.cluster-port").Elems[1].Str
	require.Equal(t, "OK", m[1].Do("JOBMESH", "CLUSTER", "SAVECONFIG").Str)
	m[1].Kill()
	taken, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	defer taken.Close()
	m[1].Restart()
	m.await(t, 2)
	info := func() string { return m[1].Do("JOBMESH", "CLUSTER", "INFO").Str }
	assert.Contains(t, info(), "cluster_bus:not listening, ")
	assert.Contains(t, m[0].Do("JOBMESH", "CLUSTER", "INFO").Str, "cluster_bus:listening\r\n")
	v := m[1].Do("ADDJOB", "q", "body", 5000, "REPLICATE", 2)
	assert.Equal(t, byte('+'), v.Kind, "%v", v)
	require.NoError(t, taken.Close())
	harness.Await(t, 10*time.Second, "the node to listen", func() bool { return strings.Contains(info(), "cluster_bus:listening\r\n") })
	assert.Equal(t, 1, strings.Count(m[1].Log(), "can't listen"), "one line, however often it was tried")
	harness.Await(t, 10*time.Second, "the log to tell", func() bool { return strings.Contains(m[1].Log(), "listening on "+addr+" at last") })
	// It can be dialled again: only the restarted one knows the other's address from its file.
	c := node(t)
	meet(t, c, m[1])
	append(m, c).await(t, 3)
}

// Messages that have arrived go before timers: a job that was acknowledged in time at
// another node, while this one stood still, isn't delivered again.
func TestAcknowledgedWhileTheNodeStandsStill(t *testing.T) {
	t.Parallel()
	m := start(t, 2, "jobmesh.cluster-node-timeout 60000")
	for range 4 {
		v := m[0].Do("ADDJOB", "q", "body", 5000, "REPLICATE", 2, "RETRY", 2)
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		id := v.Str
		got := m[0].Do("GETJOB", "FROM", "q")
		require.Len(t, got.Elems, 1)
		c := m[0].Dial()
		c.Send("GETJOB", "TIMEOUT", 3500, "FROM", "q")
		harness.Await(t, 5*time.Second, "a client to wait", func() bool { return m[0].Info("jobmesh", "jobmesh_blocked_clients") == "1" })
		m[0].Pause()
		time.Sleep(300 * time.Millisecond)
		require.Equal(t, int64(1), m[1].Do("ACKJOB", id).Int())
		time.Sleep(2700 * time.Millisecond) // the retry time passes while the node stands still
		m[0].Resume()
		v = c.Receive()
		require.True(t, v.NullArray(), "an acknowledged job was delivered again: %v", v)
		m.awaitNoJobs(t)
	}
}

// The commands of this node's own clients go before timers, too.
func TestAcknowledgedHereWhileTheNodeStandsStill(t *testing.T) {
	t.Parallel()
	s := node(t)
	for range 4 {
		id := s.Do("ADDJOB", "q", "body", 0, "RETRY", 1).Str
		require.Len(t, s.Do("GETJOB", "FROM", "q").Elems, 1)
		waits, acks := s.Dial(), s.Dial()
		waits.Send("GETJOB", "TIMEOUT", 2500, "FROM", "q")
		harness.Await(t, 5*time.Second, "a client to wait", func() bool { return s.Info("jobmesh", "jobmesh_blocked_clients") == "1" })
		s.Pause()
		acks.Send("ACKJOB", id)
		time.Sleep(1500 * time.Millisecond) // the retry time passes
		s.Resume()
		require.Equal(t, int64(1), acks.Receive().Int())
		v := waits.Receive()
		require.True(t, v.NullArray(), "an acknowledged job was delivered again: %v", v)
	}
}

// While no other node answers, a client that doesn't want to wait gets the jobs that need no
// consent, or hears within a second or two that there are none, however many others there are.
func TestNohangWhileNobodyAnswers(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "jobmesh.cluster-node-timeout 60000")
	for i := range 5 {
		v := m[0].Do("ADDJOB", "q", "body", 5000, "REPLICATE", 1, "UNIQUE", "during-processing", "KEY", fmt.Sprint(i))
		require.Equal(t, byte('+'), v.Kind, "%v", v)
	}
	plain := m[0].Do("ADDJOB", "q", "plain", 5000, "REPLICATE", 1).Str
	m[1].Pause()
	m[2].Pause()
	poll := func() harness.Value {
		c := m[0].Dial()
		defer c.Close()
		began := time.Now()
		c.Send("GETJOB", "NOHANG", "FROM", "q")
		v := c.Receive()
		assert.Less(t, time.Since(began), 5*time.Second)
		return v
	}
	v := poll()
	require.Len(t, v.Elems, 1, "%v", v)
	assert.Equal(t, plain, v.Elems[0].Elems[1].Str)
	for range 3 {
		assert.True(t, poll().NullArray())
	}
	m[1].Resume()
	m[2].Resume()
	harness.Await(t, 20*time.Second, "the others to answer", func() bool { return !poll().NullArray() })
}
