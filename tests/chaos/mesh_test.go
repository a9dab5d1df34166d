package chaos

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// nodeTimeout is jobmesh.cluster-node-timeout, maxLease jobmesh.lock-max-lease.
const (
	nodeTimeout = 2 * time.Second
	maxLease    = 5 * time.Second
)

// server is one redis-server. Only the test's own goroutine changes it.
type server struct {
	*harness.Server
	name  string
	index int // of its proxy
	addr  string
	port  int    // of its bus
	bus   int    // of its proxy, which it announces
	id    string // in the mesh
	fsync string
	state string // up, stopped or down
	probe string // a job that the log has, until the next restart
	pause moment // when the last CLIENT PAUSE is over
}

// node is a node of the mesh: one server or, in plans with replicas, that of its
// servers which is the master.
type node struct {
	index   int
	servers []*server
	master  *server
	serves  atomic.Pointer[server] // the master, for clients; nil while it isn't clear which server that is
}

// mesh is the nodes, and a diary of what was done to them.
type mesh struct {
	t       *testing.T
	plan    plan
	folder  string
	began   time.Time
	nodes   []*node
	servers []*server
	net     *network
	watch   *harness.Server // the Sentinel, if there is one

	mu     sync.Mutex
	diary  []string
	losses []loss
}

// loss is an event in which a node may have lost the last that it logged: at one moment, or
// at any time between two.
type loss struct {
	node int
	at   moment
	to   moment
}

// now is the time since the run began, by a clock that doesn't jump.
func (m *mesh) now() moment { return time.Since(m.began) }

// note writes into the diary.
func (m *mesh) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.diary = append(m.diary, fmt.Sprintf("%8.3f ", m.now().Seconds())+fmt.Sprintf(format, args...))
}

// startMesh starts the servers of a plan, and makes them meet.
func startMesh(t *testing.T, p plan, folder string) *mesh {
	m := &mesh{t: t, plan: p, folder: folder, began: time.Now(), net: newNetwork(t)}
	var clock []harness.Option
	if p.clocks {
		clock = append(clock, harness.WithClock(t))
	}
	for i, fsync := range p.fsync {
		n := &node{index: i}
		m.nodes = append(m.nodes, n)
		for k := range 1 + p.replicas[i] {
			options := clock
			if k > 0 {
				options = append(options, harness.WithReplicaOf(n.master.Server))
			}
			s := m.add(n, k, fsync, options)
			if k == 0 {
				n.master = s
			}
		}
	}
	for _, n := range m.nodes {
		for _, s := range n.servers[1:] {
			s.AwaitSync()
		}
	}
	if p.sentinel {
		m.sentinel()
	}
	m.join()
	m.whole()
	return m
}

// add starts one more server of a node.
func (m *mesh) add(n *node, k int, fsync string, options []harness.Option) *server {
	name := fmt.Sprint(n.index) + strings.Repeat("'", k)
	dir := filepath.Join(m.folder, fmt.Sprintf("node%d-%d", n.index, k))
	require.NoError(m.t, os.Mkdir(dir, 0o755))
	s := &server{name: name, index: len(m.servers), port: harness.FreePort(m.t), fsync: fsync, state: "up"}
	s.bus = m.net.add(m.t, n.index, s.port)
	s.Server = harness.Start(m.t, append([]harness.Option{harness.WithDir(dir), harness.WithConfig(
		"appendonly yes", "appendfsync "+fsync, "aof-use-rdb-preamble "+m.plan.preamble,
		"jobmesh.cluster-port "+strconv.Itoa(s.port), "jobmesh.cluster-announce 127.0.0.1:"+strconv.Itoa(s.bus),
		fmt.Sprint("jobmesh.cluster-node-timeout ", nodeTimeout.Milliseconds()),
		fmt.Sprint("jobmesh.lock-max-lease ", maxLease.Milliseconds()))}, options...)...)
	s.addr = s.Addr()
	s.id = s.Do("JOBMESH", "CLUSTER", "MYID").Str
	m.net.proxies[s.index].pid.Store(int64(s.PID()))
	n.servers = append(n.servers, s)
	m.servers = append(m.servers, s)
	return s
}

// masters are the servers that are the mesh's nodes.
func (m *mesh) masters() (all []*server) {
	for _, n := range m.nodes {
		all = append(all, n.master)
	}
	return all
}

// join makes all masters know each other and no other node, and opens them to clients.
func (m *mesh) join() {
	m.t.Helper()
	wanted := map[string]bool{}
	for _, s := range m.masters() {
		wanted[s.id] = true
	}
	for _, s := range m.masters() {
		known := map[string]bool{}
		for line := range strings.Lines(s.Do("JOBMESH", "CLUSTER", "NODES").Str) {
			id, _, _ := strings.Cut(line, " ")
			known[id] = true
		}
		for _, other := range m.masters() {
			if !known[other.id] {
				require.Equal(m.t, "OK", s.Do("JOBMESH", "CLUSTER", "MEET", "127.0.0.1", other.Port, other.bus).Str)
			}
		}
		for id := range known {
			if !wanted[id] {
				m.tell(s, "JOBMESH", "CLUSTER", "FORGET", id)
			}
		}
	}
	for _, s := range m.masters() {
		others := strconv.Itoa(len(m.nodes) - 1)
		m.await(60*time.Second, s, "to reach all others", func() bool { return s.Info("jobmesh", "jobmesh_reachable_nodes") == others })
	}
	for _, n := range m.nodes {
		n.serves.Store(n.master)
	}
}

// whole waits until every node reaches all others, and takes part in votes.
func (m *mesh) whole() {
	m.t.Helper()
	m.join()
	for _, s := range m.masters() {
		m.await(60*time.Second, s, "to vote", func() bool { return s.Info("jobmesh", "jobmesh_locks_abstaining") == "no" })
	}
}

// await waits for a server.
func (m *mesh) await(limit time.Duration, s *server, what string, cond func() bool) {
	m.t.Helper()
	end := time.Now().Add(limit)
	for !cond() {
		if time.Now().After(end) {
			m.t.Fatalf("waited %v in vain for node %s %s\n%s\n%s", limit, s.name, what,
				s.Do("JOBMESH", "CLUSTER", "NODES").Str, s.Do("INFO", "jobmesh").Str)
		}
		m.alive()
		time.Sleep(20 * time.Millisecond)
	}
}

// alive fails the test where a server has ended unasked.
func (m *mesh) alive() {
	m.t.Helper()
	for _, s := range m.servers {
		if s.state == "up" && s.Ended() {
			m.t.Fatalf("node %s ended unasked: its log is in %s", s.name, s.Dir)
		}
	}
}

// do carries out a step of the plan.
func (m *mesh) do(s step) {
	m.t.Helper()
	m.alive()
	m.note("%v", s)
	all := m.masters()
	var n *node
	if s.node >= 0 {
		all, n = all[s.node:s.node+1], m.nodes[s.node]
	}
	switch s.fault {
	case "kill", "killall":
		m.kill(all)
	case "shutdown", "shutdownall":
		m.shutdown(all)
	case "start", "startall":
		m.start(all)
	case "taken":
		m.taken(all[0])
	case "stop":
		all[0].Pause()
		all[0].state = "stopped"
	case "resume":
		all[0].Resume()
		all[0].state = "up"
	case "rewrite":
		m.tell(all[0], "BGREWRITEAOF")
	case "save":
		m.tell(all[0], "BGSAVE", "SCHEDULE")
	case "pause":
		all[0].pause = m.now() + s.lasts + rounding
		m.tell(all[0], "CLIENT", "PAUSE", s.lasts.Milliseconds(), s.kind)
	case "leavers":
		m.tell(all[0], "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	case "nolog":
		m.nolog(all[0], s.lasts)
	case "leave":
		m.tell(all[0], "JOBMESH", "CLUSTER", "LEAVING", "yes")
	case "stay":
		m.tell(all[0], "JOBMESH", "CLUSTER", "LEAVING", "no")
	case "clock":
		m.setClock(all[0], s.delay)
	case "cut", "deaf":
		m.net.cut(s.apart, s.fault == "deaf")
	case "slow":
		m.net.drag(s.apart, s.delay)
	case "heal":
		m.net.heal()
	case "reset":
		m.net.reset(s.node)
	case "demote":
		m.tell(all[0], "REPLICAOF", "127.0.0.1", 1) // no server is there
	case "promote":
		m.tell(all[0], "REPLICAOF", "NO", "ONE")
	case "replica":
		m.replica(n)
	case "byhand":
		m.byHand(n)
	case "failover":
		m.failover(n)
	case "sentinel":
		m.bySentinel(n)
	default:
		m.t.Fatalf("nobody knows how to %s", s.fault)
	}
}

// tell gives a server a command, if it is up. The answer may be a refusal.
func (m *mesh) tell(s *server, args ...any) {
	if s.state != "up" {
		return
	}
	c, err := harness.Dial(s.addr, 5*time.Second)
	if err != nil {
		return
	}
	defer c.Close()
	if v := c.Do(args...); v.Kind == '-' && args[0] != "RELEASEJOB" {
		m.note("       %v: %v", args, v)
	}
}

// setClock sets a server's wall clock, once the server isn't paused any more: it ends a pause
// by that clock, and while it is paused it takes no CLIENT UNPAUSE either. The server reads the
// clock only once in a while: so setClock waits for an answer, which shows that the pause is over.
func (m *mesh) setClock(s *server, ahead time.Duration) {
	m.t.Helper()
	time.Sleep(s.pause - m.now())
	if s.state == "up" && s.pause > 0 {
		m.await(10*time.Second, s, "to end its pause", func() bool { return s.Do("PING").Str == "PONG" })
	}
	s.SetClock(ahead)
}

func (m *mesh) kill(all []*server) {
	for _, s := range all {
		if s.state == "down" {
			continue
		}
		s.Kill()
		s.state = "down"
		if s.fsync != "always" {
			m.lose(s, m.now())
		}
	}
}

// lose notes that all that a server did since a moment, and just before it, may be lost.
func (m *mesh) lose(s *server, since moment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.losses = append(m.losses, loss{m.net.proxies[s.index].node, since, m.now()})
}

func (m *mesh) shutdown(all []*server) {
	for _, s := range all {
		if s.state != "up" {
			continue
		}
		s.state = "down"
		s.Stop("SHUTDOWN", "NOW", "FORCE")
	}
}

// launch starts the process of a server that is down.
func (m *mesh) launch(s *server) {
	s.Launch()
	m.net.proxies[s.index].pid.Store(int64(s.PID()))
}

// start starts servers that are down. Each must know what its log had before, and must log what
// it is given from now on.
func (m *mesh) start(all []*server) {
	m.t.Helper()
	var down []*server
	for _, s := range all {
		if s.state == "down" {
			m.launch(s)
			down = append(down, s)
		}
	}
	for _, s := range down {
		s.AwaitService()
		s.state = "up"
	}
	for _, s := range down {
		m.readsBack(s)
	}
}

// taken starts a server again while another process has the port of its bus.
func (m *mesh) taken(s *server) {
	m.t.Helper()
	m.kill([]*server{s})
	l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", s.port))
	if err != nil {
		m.t.Logf("the bus port isn't free: %v", err)
	}
	m.start([]*server{s})
	if err == nil {
		l.Close()
	}
}

// readsBack checks a server that was started again, and adds the job that it must know after
// its next start.
func (m *mesh) readsBack(s *server) {
	m.t.Helper()
	m.known(s)
	if s.Info("replication", "role") == "master" && s.Do("JOBMESH", "CLUSTER", "LEAVING").Str == "no" {
		s.probe = s.AwaitLogged()
	}
}

// known checks that a server knows the job that was in its log.
func (m *mesh) known(s *server) {
	m.t.Helper()
	if s.probe == "" {
		return
	}
	if s.Info("replication", "role") != "master" { // Sentinel has promoted another meanwhile, whose data it has now
		s.probe = ""
		return
	}
	if s.Do("SHOW", s.probe).Null {
		m.t.Fatalf("node %s was started again, and doesn't know the job %s, which was in its append-only file", s.name, s.probe)
	}
	s.Do("DELJOB", s.probe)
	s.probe = ""
}

// nolog turns the append-only file off and on again, and waits until it is whole.
func (m *mesh) nolog(s *server, d time.Duration) {
	m.t.Helper()
	m.tell(s, "CONFIG", "SET", "appendonly", "no")
	time.Sleep(d)
	m.tell(s, "CONFIG", "SET", "appendonly", "yes")
	m.await(20*time.Second, s, "to have an append-only file again", func() bool {
		return s.Info("persistence", "aof_enabled")+s.Info("persistence", "aof_rewrite_in_progress")+
			s.Info("persistence", "aof_rewrite_scheduled") == "100"
	})
}

// heal ends all faults of a round that began at since, and waits until the mesh is whole.
func (m *mesh) heal(since moment) {
	m.t.Helper()
	m.note("heal")
	for _, s := range m.servers {
		if s.state == "stopped" {
			s.Resume()
			s.state = "up"
		}
		if m.plan.clocks {
			m.setClock(s, 0)
		}
	}
	m.net.heal()
	m.start(m.servers)
	for _, s := range m.servers {
		m.tell(s, "CLIENT", "UNPAUSE")
	}
	for _, s := range m.servers { // it may have been paused or down when it was told to stay
		if s.state == "up" && s.Do("JOBMESH", "CLUSTER", "LEAVING").Str == "yes" {
			m.tell(s, "JOBMESH", "CLUSTER", "LEAVING", "no")
		}
	}
	if m.plan.sentinel {
		m.follow(since)
	}
	m.whole()
	m.note("healed")
}

// state says of each server whether it answers, and how many nodes it reaches.
func (m *mesh) state() string {
	var b strings.Builder
	for _, s := range m.servers {
		fmt.Fprintf(&b, "node %s is %s: ", s.name, s.state)
		c, err := harness.Dial(s.addr, 2*time.Second)
		if err != nil {
			fmt.Fprintln(&b, err)
			continue
		}
		// These fields say most.
		text := c.Do("INFO", "jobmesh")
		for _, name := range []string{"reachable_nodes", "locks_abstaining", "registered_jobs", "locks", "lock_claims"} {
			if _, value, ok := strings.Cut(text.Str, "jobmesh_"+name+":"); ok {
				value, _, _ = strings.Cut(value, "\r")
				fmt.Fprintf(&b, "%s %s, ", name, value)
			}
		}
		fmt.Fprintf(&b, "PING %.100v\n", c.Do("PING"))
		c.Close()
	}
	return b.String()
}

// logs checks what the servers have written.
func (m *mesh) logs() {
	m.t.Helper()
	for _, s := range m.servers {
		_, err := s.AOF()
		require.NoError(m.t, err, "node %s's append-only file, in %s", s.name, s.Dir)
		if i := strings.Index(s.Log(), "panic (recovered"); i >= 0 {
			m.t.Fatalf("node %s: %.2000s", s.name, s.Log()[i:])
		}
	}
}
