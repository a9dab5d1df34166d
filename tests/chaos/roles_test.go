package chaos

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// Redis replicas, promoted and demoted. A replica that is promoted is a node of its own: it must
// meet the mesh, which then forgets the node in whose place it is. Clients keep away from it
// until then, since alone it would give locks by itself.

// sentinelPatience is for how long a master may be silent before Sentinel promotes a
// replica. Other faults are shorter in its plans.
const sentinelPatience = 3 * time.Second

// sentinel starts a Sentinel that watches all nodes.
func (m *mesh) sentinel() {
	lines := []string{}
	for _, n := range m.nodes {
		name := fmt.Sprint("node", n.index)
		lines = append(lines, fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 1", name, n.master.Port),
			fmt.Sprintf("sentinel down-after-milliseconds %s %d", name, sentinelPatience.Milliseconds()), "sentinel failover-timeout "+name+" 5000")
	}
	m.watch = harness.Start(m.t, harness.WithoutModule(), harness.AsSentinel(), harness.WithConfig(lines...))
}

// sentinelWaits sets for how long a master may be silent before Sentinel promotes a replica.
func (m *mesh) sentinelWaits(patience time.Duration) {
	m.t.Helper()
	for _, n := range m.nodes {
		require.Equal(m.t, "OK", m.watch.Do("SENTINEL", "SET", fmt.Sprint("node", n.index), "down-after-milliseconds", patience.Milliseconds()).Str)
	}
}

// replicas are a node's servers but for its master.
func (n *node) replicas() (all []*server) {
	for _, s := range n.servers {
		if s != n.master {
			all = append(all, s)
		}
	}
	return all
}

// synced waits until a node's replicas follow its master.
func (m *mesh) synced(n *node) {
	m.t.Helper()
	for _, s := range n.replicas() {
		m.await(30*time.Second, s, "to follow its master", func() bool {
			return s.Info("replication", "master_link_status") == "up" && s.Info("replication", "master_port") == strconv.Itoa(n.master.Port)
		})
	}
}

// adopt makes another server the node's master, and the mesh know it instead.
func (m *mesh) adopt(n *node, s *server) {
	m.t.Helper()
	n.master = s
	for _, old := range n.servers {
		if old.probe != "" {
			m.tell(s, "DELJOB", old.probe)
			old.probe = ""
		}
	}
	m.note("       node %d is server %s now", n.index, s.name)
	m.synced(n)
	m.join()
	for _, s := range n.servers {
		m.tell(s, "CONFIG", "REWRITE")
	}
}

// role waits for a server's role.
func (m *mesh) role(s *server, want string) {
	m.t.Helper()
	m.await(30*time.Second, s, "to be a "+want, func() bool { return s.Info("replication", "role") == want })
}

// byHand promotes a replica while the master is alive, and makes the master a replica. The old
// master loses what it was given after its last word to the new one.
func (m *mesh) byHand(n *node) {
	m.t.Helper()
	m.synced(n)
	was, next := n.master, n.replicas()[0]
	since := m.now()
	n.serves.Store(nil)
	require.Equal(m.t, "OK", next.Do("REPLICAOF", "NO", "ONE").Str)
	for _, s := range n.servers {
		if s != next {
			require.Equal(m.t, "OK", s.Do("REPLICAOF", "127.0.0.1", next.Port).Str)
		}
	}
	m.role(was, "slave")
	m.lose(was, since)
	m.adopt(n, next)
}

// failover hands over to a replica without a loss: FAILOVER waits until the replica has all.
func (m *mesh) failover(n *node) {
	m.t.Helper()
	m.synced(n)
	was, next := n.master, n.replicas()[0]
	n.serves.Store(nil)
	if v := was.Do("FAILOVER", "TO", "127.0.0.1", next.Port, "TIMEOUT", 5000); v.Kind == '-' {
		m.note("       FAILOVER: %v", v)
		n.serves.Store(was)
		return
	}
	m.await(30*time.Second, was, "to end its FAILOVER", func() bool { return was.Info("replication", "master_failover_state") == "no-failover" })
	if was.Info("replication", "role") == "master" {
		m.note("       FAILOVER came to nothing")
		n.serves.Store(was)
		return
	}
	m.role(next, "master")
	for _, s := range n.replicas() {
		if s != next {
			require.Equal(m.t, "OK", s.Do("REPLICAOF", "127.0.0.1", next.Port).Str)
		}
	}
	m.adopt(n, next)
}

// bySentinel kills the master, and waits until Sentinel has promoted a replica. Then it starts
// the old master again, which Sentinel makes a replica.
func (m *mesh) bySentinel(n *node) {
	m.t.Helper()
	m.synced(n)
	name := fmt.Sprint("node", n.index)
	// Sentinel can promote only replicas that it knows.
	harness.Await(m.t, 30*time.Second, "Sentinel to know the replicas", func() bool {
		return len(m.watch.Do("SENTINEL", "REPLICAS", name).Elems) == len(n.servers)-1
	})
	was, since := n.master, m.now()
	n.serves.Store(nil)
	was.Kill()
	was.state = "down"
	var next *server
	harness.Await(m.t, 60*time.Second, "Sentinel to promote a replica of node "+name, func() bool {
		m.alive()
		for _, s := range n.replicas() {
			if s.Info("replication", "role") == "master" {
				next = s
			}
		}
		return next != nil
	})
	m.launch(was)
	was.AwaitService()
	was.state = "up"
	m.lose(was, since)
	n.master = next
	m.role(was, "slave")
	m.lose(was, since)
	m.follow(since) // it may have taken so long that Sentinel promoted others too
	m.sentinelWaits(sentinelPatience)
	m.adopt(n, next)
}

// follow finds the masters that Sentinel has chosen because another fault took longer than it
// should have. From then on Sentinel chooses no more: on a busy machine it would choose while
// the mesh heals.
func (m *mesh) follow(since moment) {
	m.t.Helper()
	m.sentinelWaits(time.Hour)
	var changed []*node
	for _, n := range m.nodes {
		var next *server
		harness.Await(m.t, 60*time.Second, fmt.Sprint("node ", n.index, " to have one master"), func() bool {
			flags := m.watch.Do("SENTINEL", "MASTER", fmt.Sprint("node", n.index)).Field("flags").Str
			if strings.Contains(flags, "down") || strings.Contains(flags, "failover") {
				return false
			}
			masters := 0
			for _, s := range n.servers {
				if s.Info("replication", "role") == "master" {
					next = s
					masters++
				}
			}
			return masters == 1
		})
		if next != n.master {
			n.serves.Store(nil)
			m.lose(n.master, since)
			n.master = next
			changed = append(changed, n)
		}
	}
	for _, n := range changed { // when all are known: the masters meet
		m.adopt(n, n.master)
	}
}

// replica kills a replica, and starts it again.
func (m *mesh) replica(n *node) {
	m.t.Helper()
	s := n.replicas()[0]
	if s.state != "up" {
		return
	}
	s.Kill()
	s.state = "down"
	m.launch(s)
	s.AwaitService()
	s.state = "up"
}
