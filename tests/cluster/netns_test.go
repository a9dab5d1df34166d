package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// network is a mesh of which each node has a network namespace of its own,
// plugged into one of two bridges. A node that is moved to the other one is cut
// off from those that stay: silently, as when a switch fails. The test reaches
// them all, since both bridges have its address.
type network struct {
	t      *testing.T
	prefix string // of the names of all that is made
	own    string // the test's address
	mesh
}

var networks atomic.Int64

const secret = "a secret for the tests, thirty-two"

// namespaces starts a mesh in namespaces, or skips the test where none can be
// made.
func namespaces(t *testing.T, n int, lines ...string) *network {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("network namespaces need iproute2")
	}
	serial := (os.Getpid()*8 + int(networks.Add(1))) % 10_000
	// These addresses are reserved for measurements, so no machine has them (RFC 2544).
	net := fmt.Sprintf("198.18.%d.", serial%250)
	w := &network{t: t, prefix: fmt.Sprintf("jm%d", serial), own: net + "254"}
	t.Cleanup(func() {
		for i := range n {
			_ = exec.Command("ip", "netns", "del", w.name(i)).Run()
			_ = exec.Command("ip", "link", "del", w.port(i)).Run()
		}
		for side := range 2 {
			_ = exec.Command("ip", "link", "del", w.bridge(side)).Run()
		}
	})
	// If one of these fails, the fault isn't ours: the test has no right to do it, or the
	// kernel can't.
	probe := [][]string{{"netns", "add", w.name(0)}, {"link", "add", w.bridge(0), "type", "bridge"},
		{"link", "add", w.port(0), "type", "veth", "peer", "name", "eth0", "netns", w.name(0)}}
	for _, args := range probe {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Skipf("this machine allows no network namespaces: ip %s: %s", strings.Join(args, " "), out)
		}
	}
	mac := fmt.Sprintf("02:6a:6d:00:%02x:%02x", serial>>8, serial&255)
	for side := range 2 {
		// Both bridges have the same MAC address, so that connections survive a move.
		if side > 0 {
			w.ip("link add", w.bridge(side), "type bridge")
		}
		w.ip("link set", w.bridge(side), "address", mac, "up")
	}
	w.ip("addr add", w.own+"/24 dev", w.bridge(0))
	for i := range n {
		addr := fmt.Sprint(net, i+1)
		if i > 0 {
			w.ip("netns add", w.name(i))
			w.ip("link add", w.port(i), "type veth peer name eth0 netns", w.name(i))
		}
		w.ip("-n", w.name(i), "addr add", addr+"/24 dev eth0")
		w.ip("-n", w.name(i), "link set eth0 up")
		w.ip("-n", w.name(i), "link set lo up")
		w.ip("link set", w.port(i), "up")
		w.plug(0, i, addr)
		w.mesh = append(w.mesh, harness.Start(t, harness.WithNamespace(w.name(i), addr), harness.WithConfig(append([]string{
			"jobmesh.cluster-secret \"" + secret + "\"", "jobmesh.cluster-port 17711", "jobmesh.cluster-node-timeout 2000"}, lines...)...)))
	}
	for i := range n - 1 {
		require.Equal(t, "OK", w.mesh[i+1].Do("JOBMESH", "CLUSTER", "MEET", net+"1", w.mesh[0].Port, 17711).Str)
	}
	w.await(t, n)
	return w
}

func (w *network) name(i int) string      { return fmt.Sprintf("%sn%d", w.prefix, i) }
func (w *network) port(i int) string      { return fmt.Sprintf("%sv%d", w.prefix, i) }
func (w *network) bridge(side int) string { return fmt.Sprintf("%sb%d", w.prefix, side) }

// ip runs a command of iproute2.
func (w *network) ip(words ...string) {
	w.t.Helper()
	out, err := exec.Command("ip", strings.Fields(strings.Join(words, " "))...).CombinedOutput()
	require.NoError(w.t, err, "ip %s: %s", strings.Join(words, " "), out)
}

// plug connects a node to a bridge, and the test to it.
func (w *network) plug(side, i int, addr string) {
	w.t.Helper()
	w.ip("link set", w.port(i), "master", w.bridge(side))
	w.ip("route replace", addr+"/32 dev", w.bridge(side), "src", w.own)
}

// move plugs nodes into a bridge.
func (w *network) move(side int, which ...int) {
	w.t.Helper()
	for _, i := range which {
		host, _, _ := strings.Cut(w.mesh[i].Addr(), ":")
		w.plug(side, i, host)
	}
}

// links counts the connections to other nodes that a node sees.
func links(s *harness.Server) (n int) {
	for line := range strings.Lines(s.Do("JOBMESH", "CLUSTER", "NODES").Str) {
		if strings.HasSuffix(line, " connected\n") && !strings.Contains(line, "myself") {
			n++
		}
	}
	return n
}

func TestLongTotalQueuePartitioned(t *testing.T) {
	t.Parallel()
	w := namespaces(t, nodes)
	q := newQueue(t, w.mesh, 3000, "REPLICATE", 3, "RETRY", 1)
	apart := func() {
		q.more(300)
		w.move(1, 4, 5, 6)
		for i, others := range []string{"3", "3", "3", "3", "2", "2", "2"} {
			harness.Await(t, 20*time.Second, "both sides to miss each other", func() bool {
				return w.mesh[i].Info("jobmesh", "jobmesh_reachable_nodes") == others
			})
		}
		q.more(300)
	}
	together := func() {
		w.move(0, 4, 5, 6)
		w.await(t, nodes)
	}
	// A short partition, which the connections survive, and a long one, which they don't.
	apart()
	together()
	apart()
	harness.Await(t, 20*time.Second, "the connections to be given up", func() bool { return links(w.mesh[0]) == 3 && links(w.mesh[6]) == 2 })
	q.more(300)
	together()
	q.more(300)
	q.finish()
}

// A job that is acknowledged on one side of a partition must not come back.
func TestAcknowledgedDuringAPartition(t *testing.T) {
	t.Parallel()
	w := namespaces(t, 3)
	var ids []string
	for range 200 {
		v := w.mesh[0].Do("ADDJOB", "q", "b", 0, "REPLICATE", 3, "RETRY", 60)
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		ids = append(ids, v.Str)
	}
	w.move(1, 2)
	for _, id := range ids {
		assert.Equal(t, int64(1), w.mesh[1].Do("ACKJOB", id).Int())
	}
	harness.Await(t, 20*time.Second, "the connections to be given up", func() bool { return links(w.mesh[1]) == 1 && links(w.mesh[2]) == 0 })
	assert.Equal(t, "200", jobs(w.mesh[1]), "an acknowledgement is kept until all know of it")
	w.move(0, 2)
	w.awaitNoJobs(t)
	for _, s := range w.mesh {
		assert.True(t, s.Do("GETJOB", "NOHANG", "FROM", "q").Null)
	}
}
