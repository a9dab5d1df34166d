package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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

// server is one of the mesh's servers. Only the test's own goroutine changes it.
type server struct {
	*harness.Server
	name  string
	addr  string
	bus   int
	fsync string
	state string // up, stopped or down
	probe string // a job that the log has, until the next restart
}

// mesh is the servers, with a diary of what was done to them.
type mesh struct {
	t       *testing.T
	folder  string
	began   time.Time
	servers []*server

	mu     sync.Mutex
	diary  []string
	losses []loss
}

// loss is an event in which a server can have lost the last that it logged.
type loss struct {
	node int
	at   time.Duration
}

// now is the time since the run began, by a clock that doesn't jump.
func (m *mesh) now() time.Duration { return time.Since(m.began) }

// note writes into the diary.
func (m *mesh) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.diary = append(m.diary, fmt.Sprintf("%8.3f ", m.now().Seconds())+fmt.Sprintf(format, args...))
}

// startMesh starts the servers of a plan, and has them meet.
func startMesh(t *testing.T, p plan, folder string) *mesh {
	m := &mesh{t: t, folder: folder, began: time.Now()}
	for i, fsync := range p.fsync {
		dir := filepath.Join(folder, fmt.Sprint("node", i))
		require.NoError(t, os.Mkdir(dir, 0o755))
		s := &server{name: fmt.Sprint(i), bus: harness.FreePort(t), fsync: fsync, state: "up"}
		s.Server = harness.Start(t, harness.WithDir(dir), harness.WithConfig(
			"appendonly yes", "appendfsync "+fsync, "aof-use-rdb-preamble "+p.preamble,
			"jobmesh.cluster-port "+strconv.Itoa(s.bus),
			fmt.Sprint("jobmesh.cluster-node-timeout ", nodeTimeout.Milliseconds()),
			fmt.Sprint("jobmesh.lock-max-lease ", maxLease.Milliseconds())))
		s.addr = s.Addr()
		m.servers = append(m.servers, s)
	}
	for _, s := range m.servers[1:] {
		require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "MEET", "127.0.0.1", m.servers[0].Port, m.servers[0].bus).Str)
	}
	m.whole()
	return m
}

// whole waits until every node reaches all others, and takes part in votes.
func (m *mesh) whole() {
	m.t.Helper()
	others := strconv.Itoa(len(m.servers) - 1)
	for _, s := range m.servers {
		m.await(60*time.Second, s, "to reach all others", func() bool { return s.Info("jobmesh", "jobmesh_reachable_nodes") == others })
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
	all := m.servers
	if s.node >= 0 {
		all = all[s.node : s.node+1]
	}
	switch s.fault {
	case "kill", "killall":
		m.kill(all)
	case "shutdown", "shutdownall":
		m.shutdown(all)
	case "start", "startall":
		m.start(all)
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
		m.tell(all[0], "CLIENT", "PAUSE", s.lasts.Milliseconds(), s.kind)
	case "leavers":
		m.tell(all[0], "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
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
	if v := c.Do(args...); v.Kind == '-' {
		m.note("       %v: %v", args, v)
	}
}

func (m *mesh) kill(all []*server) {
	for _, s := range all {
		if s.state == "down" {
			continue
		}
		s.Kill()
		s.state = "down"
		m.lose(s)
	}
}

// lose notes that a server was ended with what it may not have written yet.
func (m *mesh) lose(s *server) {
	if s.fsync == "always" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, other := range m.servers {
		if other == s {
			m.losses = append(m.losses, loss{i, m.now()})
		}
	}
}

func (m *mesh) shutdown(all []*server) {
	for _, s := range all {
		if s.state != "up" {
			continue
		}
		s.state = "down"
		s.Stop()
	}
}

// start starts servers that are down. Each has to know what its log had before,
// and to log what it is given from now on.
func (m *mesh) start(all []*server) {
	m.t.Helper()
	var down []*server
	for _, s := range all {
		if s.state == "down" {
			s.Launch()
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

// readsBack checks a server that was started anew, and adds the job that it has to
// know after its next start.
func (m *mesh) readsBack(s *server) {
	m.t.Helper()
	if s.probe != "" {
		if s.Do("SHOW", s.probe).Null {
			m.t.Fatalf("node %s was started again, and doesn't know the job %s, which was in its append-only file", s.name, s.probe)
		}
		s.Do("DELJOB", s.probe)
	}
	s.probe = s.AwaitLogged()
}

// heal ends all faults, and waits until the mesh is whole.
func (m *mesh) heal() {
	m.t.Helper()
	m.note("heal")
	for _, s := range m.servers {
		if s.state == "stopped" {
			s.Resume()
			s.state = "up"
		}
	}
	m.start(m.servers)
	for _, s := range m.servers {
		m.tell(s, "CLIENT", "UNPAUSE")
	}
	m.whole()
	m.note("healed")
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
