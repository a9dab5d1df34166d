package harness

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	host     string
	prefix   []string // of the command that starts it
	binary   string
	more     []string // arguments behind redis.conf
	preload  string
	clock    string // a library with the wall clock, see [WithClock]
	conf     string
	lines    []string // of redis.conf, the port's aside
	cmd      *exec.Cmd
	done     chan struct{}
	waitErr  error
	expected bool // its end was asked for
	quiet    bool // panics are the test's own
}

type settings struct {
	lines   []string
	args    string
	module  string
	host    string
	prefix  []string
	binary  string
	preload string
	clock   string
	dir     string
	quiet   bool
	more    []string
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

// WithDir makes the server work in a folder of the caller's, which stays.
func WithDir(dir string) Option { return func(s *settings) { s.dir = dir } }

// WithBinary starts another server than [Binary].
func WithBinary(path string) Option { return func(s *settings) { s.binary = path } }

// WithNamespace makes the server run in a network namespace, at an address that the
// test can reach.
func WithNamespace(name, addr string) Option {
	return func(s *settings) {
		s.host, s.prefix = addr, []string{"ip", "netns", "exec", name}
		s.lines = append(s.lines, "protected-mode no")
	}
}

// AsSentinel makes the server a Sentinel.
func AsSentinel() Option {
	return func(s *settings) { s.module, s.more = "", []string{"--sentinel"} }
}

// WithReplicaOf makes the server a replica of another.
func WithReplicaOf(master *Server) Option {
	return WithConfig("replicaof 127.0.0.1 " + strconv.Itoa(master.Port))
}

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

// Module is the module to test: $JOBMESH_SO, or the one that make has built.
func Module(t testing.TB) string {
	if so := os.Getenv("JOBMESH_SO"); so != "" {
		return so
	}
	return filepath.Join(Root(t), "jobmesh.so")
}

// FreePort returns a port that nobody listens on. The port 10,000 above it, which Redis
// and the module use for their buses, is free too. Both lie below the ports that the
// kernel gives to connections, so that a server that is restarted finds them free again.
// No other test gets the port meanwhile, not even in another process.
func FreePort(t testing.TB) int {
	const lowest, buses, bus = 11_000, 21_000, 10_000
	free := func(port int) bool {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		return err == nil && l.Close() == nil
	}
	for range 1000 {
		port := lowest + rand.IntN(buses-lowest)
		if reserve(t, port) && free(port) && free(port+bus) {
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// reserve locks a file that is named after the port until the end of the test.
func reserve(t testing.TB, port int) bool {
	folder := filepath.Join(os.TempDir(), "jobmesh-test-ports")
	require.NoError(t, os.MkdirAll(folder, 0o777))
	f, err := os.OpenFile(filepath.Join(folder, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return false // another user's
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		f.Close()
		return false
	}
	t.Cleanup(func() { f.Close() })
	return true
}

// New prepares a server without starting it.
func New(t testing.TB, opts ...Option) *Server {
	set := settings{module: Module(t), host: "127.0.0.1", binary: Binary(), preload: os.Getenv("JOBMESH_PRELOAD")}
	for _, o := range opts {
		o(&set)
	}
	if set.module != "" {
		_, err := os.Stat(set.module)
		require.NoError(t, err, "the module isn't built: run make first")
	}
	if set.dir == "" {
		set.dir = folder(t)
	}
	s := &Server{t: t, Dir: set.dir, host: set.host, prefix: set.prefix, binary: set.binary, more: set.more, preload: set.preload, clock: set.clock, quiet: set.quiet}
	s.conf = filepath.Join(s.Dir, "redis.conf")
	s.lines = []string{
		"bind " + set.host, "dir " + s.Dir, "logfile " + filepath.Join(s.Dir, "log"),
		`save ""`, "enable-debug-command yes", "enable-module-command yes", "repl-diskless-sync-delay 0", "shutdown-timeout 0",
	}
	s.lines = append(s.lines, set.lines...)
	if set.module != "" {
		s.lines = append(s.lines, strings.TrimSpace("loadmodule "+set.module+" "+set.args))
	}
	s.usePort(FreePort(t))
	t.Cleanup(s.cleanup)
	return s
}

// usePort writes redis.conf, a real file so that CONFIG REWRITE works.
func (s *Server) usePort(port int) {
	s.Port = port
	text := fmt.Sprintf("port %d\n%s\n", port, strings.Join(s.lines, "\n"))
	require.NoError(s.t, os.WriteFile(s.conf, []byte(text), 0o600))
}

// Move changes a line of a stopped server's redis.conf, and its port.
func (s *Server) Move(old, line string) {
	s.t.Helper()
	i := slices.Index(s.lines, old)
	require.GreaterOrEqual(s.t, i, 0, "redis.conf has no line %q", old)
	s.lines[i] = line
	s.usePort(FreePort(s.t))
}

// LoadInstead makes a stopped server load another module from its next start on.
func (s *Server) LoadInstead(module string) {
	s.t.Helper()
	i := slices.IndexFunc(s.lines, func(l string) bool { return strings.HasPrefix(l, "loadmodule ") })
	require.GreaterOrEqual(s.t, i, 0, "the server loads no module")
	s.lines[i] = "loadmodule " + module
	s.usePort(s.Port)
}

// Start starts a server and waits until it serves.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s := New(t, opts...)
	s.start(5)
	return s
}

// Launch starts the process and doesn't wait for it to serve.
func (s *Server) Launch() {
	s.t.Helper()
	// Go's runtime and the sanitizers report to stderr, not to Redis's log.
	errs, err := os.OpenFile(s.stderrPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(s.t, err)
	defer errs.Close()
	line := append(append(slices.Clone(s.prefix), s.binary, s.conf), s.more...)
	cmd, done := exec.Command(line[0], line[1:]...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = errs, errs
	if env := s.environment(); env != nil {
		cmd.Env = append(os.Environ(), env...)
	}
	require.NoError(s.t, cmd.Start())
	s.cmd, s.done, s.expected = cmd, done, false
	go func() {
		s.waitErr = cmd.Wait()
		close(done)
	}()
}

// Restart starts the server (again), with the same folder, file and port.
func (s *Server) Restart() {
	s.t.Helper()
	s.start(0)
}

// start launches the server and waits until it serves. If another process has taken the
// port meanwhile, it tries up to others other ports.
func (s *Server) start(others int) {
	s.t.Helper()
	logged := len(s.Log())
	s.Launch()
	if !s.serves(others > 0, logged) {
		s.usePort(FreePort(s.t))
		s.start(others - 1)
	}
}

// AwaitService waits until a server that was launched serves.
func (s *Server) AwaitService() {
	s.t.Helper()
	s.serves(false, 0)
}

// serves waits until the server serves. It returns false if the server's port was taken
// and others allows another port.
func (s *Server) serves(others bool, logged int) bool {
	s.t.Helper()
	taken := false
	Await(s.t, 30*time.Second, "the server to serve", func() bool {
		if s.Ended() {
			if taken = others && strings.Contains(s.Log()[logged:], "Address already in use"); taken {
				return true
			}
			s.expected = true // this failure reports it
			s.t.Fatalf("the server ended: %v\n%s", s.waitErr, s.logTail())
		}
		c, err := dial(s.Addr())
		if err != nil {
			return false
		}
		defer c.Close()
		return c.Do("PING").Str == "PONG"
	})
	return !taken
}

// AwaitSync waits until a replica has what its master has.
func (s *Server) AwaitSync() {
	s.t.Helper()
	Await(s.t, 30*time.Second, "the replica to have all", func() bool { return s.Info("replication", "master_link_status") == "up" })
}

// Addr is host and port.
func (s *Server) Addr() string { return net.JoinHostPort(s.host, strconv.Itoa(s.Port)) }

// PID is the process's ID.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Log is all that the server has logged.
func (s *Server) Log() string {
	b, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return string(b)
}

// Appended is all that the server's AOF has behind its base.
func (s *Server) Appended() string {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*.incr.aof"))
	require.NoError(s.t, err)
	var all strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(s.t, err)
		all.Write(b)
	}
	return all.String()
}

func (s *Server) stderrPath() string { return filepath.Join(s.Dir, "stderr") }

// Stderr is all that the server has printed beside its log: what Go's runtime
// or a sanitizer says before it ends the process.
func (s *Server) Stderr() string {
	b, _ := os.ReadFile(s.stderrPath())
	return string(b)
}

// logTail is the part of the log that matters: the last words of Go's runtime or of a
// sanitizer, or a crash report's head, or the last lines.
func (s *Server) logTail() string {
	if text := s.Stderr(); lastWords(text) {
		return text[:min(len(text), 8000)]
	}
	if _, report, crashed := strings.Cut(s.Log(), "REDIS BUG REPORT START"); crashed {
		head, _, _ := strings.Cut(report, "------ INFO OUTPUT")
		return head
	}
	lines := strings.Split(s.Log(), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// Signal sends the process a signal.
func (s *Server) Signal(sig syscall.Signal) { require.NoError(s.t, s.cmd.Process.Signal(sig)) }

// Pause stops the process with SIGSTOP: connections stay, nothing answers.
func (s *Server) Pause() { s.Signal(syscall.SIGSTOP) }

// Resume ends a [Server.Pause].
func (s *Server) Resume() { s.Signal(syscall.SIGCONT) }

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

// AwaitStream waits until a replica has heard all that its master has said so far.
func (s *Server) AwaitStream(master *Server) {
	s.t.Helper()
	Await(s.t, 20*time.Second, "the replica to have heard all", func() bool {
		return s.Info("replication", "slave_repl_offset") == master.Info("replication", "master_repl_offset")
	})
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

// Ended says whether the process has ended, asked or unasked.
func (s *Server) Ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

func (s *Server) cleanup() {
	if s.cmd == nil {
		return
	}
	died := s.Ended() && !s.expected
	if !s.Ended() {
		s.killForks()
		s.cmd.Process.Signal(syscall.SIGCONT)
		s.cmd.Process.Kill()
		<-s.done
	}
	log := s.Log()
	if died || lastWords(s.Stderr()) || strings.Contains(log, "ASSERTION FAILED") || strings.Contains(log, "REDIS BUG REPORT") || !s.quiet && strings.Contains(log, "panic (recovered") {
		s.t.Errorf("the server crashed or panicked (died unasked: %v)\n%s", died, s.logTail())
	} else if s.t.Failed() {
		s.t.Logf("the server's log ends:\n%s", s.logTail())
	}
}

// lastWords says whether a process's stderr has the last words of Go's runtime in it, or a
// sanitizer's report. They may come from a forked child.
func lastWords(stderr string) bool {
	if strings.HasPrefix(stderr, "panic: ") {
		return true
	}
	for _, words := range []string{"\npanic: ", "fatal error: ", "ERROR: AddressSanitizer", "AddressSanitizer: CHECK failed", "runtime error: "} {
		if strings.Contains(stderr, words) {
			return true
		}
	}
	return false
}

// UsedMemory is the memory in use that counts against maxmemory, in bytes. It doesn't count
// the buffer of the log, which a slow disk makes large for a while.
func (s *Server) UsedMemory() int64 {
	s.t.Helper()
	info := s.Do("INFO", "memory").Str
	number := func(field string) int64 {
		n, err := strconv.ParseInt(infoField(info, field), 10, 64)
		require.NoError(s.t, err, field)
		return n
	}
	return number("used_memory") - number("mem_not_counted_for_evict")
}

// Info returns one field of INFO.
func (s *Server) Info(section, field string) string {
	return infoField(s.Do("INFO", section).Str, field)
}

func infoField(info, field string) string {
	for line := range strings.SplitSeq(info, "\r\n") {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return v
		}
	}
	return ""
}

// Await waits for a condition. The longer it has waited, the longer it pauses between two looks: a
// tenth of the time, and at most 50 ms. So it costs little beside what is tested.
func Await(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	began := time.Now()
	for !cond() {
		waited := time.Since(began)
		if waited > limit {
			t.Fatalf("waited %v in vain for %s", limit, what)
		}
		time.Sleep(min(max(waited/10, 2*time.Millisecond), 50*time.Millisecond))
	}
}

// During calls a function again and again until the time is over, every 20 ms. The function checks what
// must be true for all of the time.
func During(d time.Duration, check func()) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		check()
	}
}

// Took asserts that what began at a time took as long as it should: at most 50 ms less,
// since a client and the server count from different moments, and at most 2 s more, since
// a busy machine may run neither of them for that long.
func Took(t testing.TB, began time.Time, should time.Duration) {
	t.Helper()
	took := time.Since(began)
	if took < should-50*time.Millisecond || took > should+2*time.Second {
		t.Errorf("it took %v, not %v", took, should)
	}
}

// folder makes a folder for a server's files, which goes with the test. A child of a server that was killed may still write there for a moment.
func folder(t testing.TB) string {
	dir, err := os.MkdirTemp("", "jobmesh-test-")
	require.NoError(t, err)
	t.Cleanup(func() {
		Await(t, 20*time.Second, dir+" to be removed", func() bool { return os.RemoveAll(dir) == nil })
	})
	return dir
}
