package cluster

import (
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
