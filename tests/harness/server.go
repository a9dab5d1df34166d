package harness

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Server is a running redis-server.
type Server struct {
	Port int
	Dir  string

	t        testing.TB
	conf     string
	cmd      *exec.Cmd
	done     chan struct{}
	waitErr  error
	expected bool // its end was asked for
	quiet    bool // panics are the test's own
}

type settings struct {
	lines  []string
	args   string
	module string
	quiet  bool
}

// Option changes how a server is started.
type Option func(*settings)

// WithConfig adds lines to redis.conf.
func WithConfig(lines ...string) Option {
	return func(s *settings) { s.lines = append(s.lines, lines...) }
}

// WithModuleArgs adds arguments to the loadmodule line.
func WithModuleArgs(args string) Option { return func(s *settings) { s.args = args } }

// WithoutModule starts a plain server.
func WithoutModule() Option { return func(s *settings) { s.module = "" } }

// WithModule loads another module than jobmesh.
func WithModule(path string) Option { return func(s *settings) { s.module = path } }

// WithPanics says that the test makes the module panic.
func WithPanics() Option { return func(s *settings) { s.quiet = true } }

// Root is the repository's top folder.
func Root(t testing.TB) string {
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		require.NotEqual(t, parent, dir, "no go.mod above the test")
		dir = parent
	}
}

// Binary is the server to test: $JOBMESH_SERVER, or redis-server.
func Binary() string {
	if b := os.Getenv("JOBMESH_SERVER"); b != "" {
		return b
	}
	return "redis-server"
}

func freePort(t testing.TB) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// New prepares a server without starting it.
func New(t testing.TB, opts ...Option) *Server {
	module := os.Getenv("JOBMESH_SO")
	if module == "" {
		module = filepath.Join(Root(t), "jobmesh.so")
	}
	set := settings{module: module}
	for _, o := range opts {
		o(&set)
	}
	if set.module != "" {
		_, err := os.Stat(set.module)
		require.NoError(t, err, "the module isn't built: run make first")
	}
	s := &Server{t: t, Dir: t.TempDir(), Port: freePort(t), quiet: set.quiet}
	s.conf = filepath.Join(s.Dir, "redis.conf")
	lines := []string{
		"bind 127.0.0.1", fmt.Sprintf("port %d", s.Port), "dir " + s.Dir, "logfile " + filepath.Join(s.Dir, "log"),
		`save ""`, "enable-debug-command yes", "enable-module-command yes", "repl-diskless-sync-delay 0", "shutdown-timeout 0",
	}
	lines = append(lines, set.lines...)
	if set.module != "" {
		lines = append(lines, strings.TrimSpace("loadmodule "+set.module+" "+set.args))
	}
	require.NoError(t, os.WriteFile(s.conf, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	t.Cleanup(s.cleanup)
	return s
}

// Start starts a server and waits until it serves.
func Start(t testing.TB, opts ...Option) *Server {
	s := New(t, opts...)
	s.Restart()
	return s
}

// Launch starts the process and doesn't wait for it to serve.
func (s *Server) Launch() {
	s.cmd = exec.Command(Binary(), s.conf)
	s.expected = false
	s.done = make(chan struct{})
	require.NoError(s.t, s.cmd.Start())
	cmd, done := s.cmd, s.done
	go func() {
		s.waitErr = cmd.Wait()
		close(done)
	}()
}

// Restart starts the server (again), with the same folder, file and port.
func (s *Server) Restart() {
	s.t.Helper()
	s.Launch()
	Await(s.t, 30*time.Second, "the server to serve", func() bool {
		select {
		case <-s.done:
			s.t.Fatalf("the server ended: %v\n%s", s.waitErr, s.logTail())
		default:
		}
		c, err := dial(s.Addr())
		if err != nil {
			return false
		}
		defer c.Close()
		return c.Do("PING").Str == "PONG"
	})
}

// Addr is host and port.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.Port) }

// PID is the process's.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Log is all that the server has logged.
func (s *Server) Log() string {
	b, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return string(b)
}

// logTail is what matters of the log: a crash report's head, or the last lines.
func (s *Server) logTail() string {
	if _, report, crashed := strings.Cut(s.Log(), "REDIS BUG REPORT START"); crashed {
		head, _, _ := strings.Cut(report, "------ INFO OUTPUT")
		return head
	}
	lines := strings.Split(s.Log(), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// Signal sends the process a signal.
func (s *Server) Signal(sig syscall.Signal) { require.NoError(s.t, s.cmd.Process.Signal(sig)) }

// Kill ends the server with SIGKILL.
func (s *Server) Kill() {
	s.expected = true
	s.Signal(syscall.SIGKILL)
	<-s.done
}

// Stop ends the server by a command, SHUTDOWN or another.
func (s *Server) Stop(args ...any) {
	s.t.Helper()
	s.expected = true
	if len(args) == 0 {
		args = []any{"SHUTDOWN"}
	}
	c := s.Dial()
	c.Send(args...)
	s.AwaitEnd()
}

// AwaitEnd waits until the process has ended.
func (s *Server) AwaitEnd() {
	s.t.Helper()
	s.expected = true
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		s.t.Fatalf("the server doesn't end\n%s", s.logTail())
	}
}

func (s *Server) cleanup() {
	if s.cmd == nil {
		return
	}
	died := false
	select {
	case <-s.done:
		died = !s.expected
	default:
		s.cmd.Process.Signal(syscall.SIGCONT)
		s.cmd.Process.Kill()
		<-s.done
	}
	log := s.Log()
	if died || strings.Contains(log, "REDIS BUG REPORT") || !s.quiet && strings.Contains(log, "panic (recovered") {
		s.t.Errorf("the server crashed or panicked (died unasked: %v)\n%s", died, s.logTail())
	} else if s.t.Failed() {
		s.t.Logf("the server's log ends:\n%s", s.logTail())
	}
}

// Info returns one field of INFO.
func (s *Server) Info(section, field string) string {
	for line := range strings.SplitSeq(s.Dial().Do("INFO", section).Str, "\r\n") {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return v
		}
	}
	return ""
}

// Await waits for a condition.
func Await(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	end := time.Now().Add(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain for %s", limit, what)
		}
		<-tick.C
	}
}
