package harness

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sanitizerOptions leave signals to Go's runtime and the server, which have handlers
// of their own. The sanitizer needn't be the first library that is preloaded, since
// tests/sanitize.c is. It doesn't look for leaks, since neither Go's runtime nor the
// server frees everything at its end.
const sanitizerOptions = "detect_leaks=0:verify_asan_link_order=0:allocator_may_return_null=1:use_sigaltstack=0:" +
	"handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0"

// Build makes a module of one of the repository's packages, which is the last of go
// build's arguments, and returns its file. If servers run under the sanitizers (make
// sanitize), the module is built for them.
func Build(t testing.TB, args ...string) string {
	t.Helper()
	if os.Getenv("JOBMESH_PRELOAD") != "" {
		return buildSanitized(t, args)
	}
	return build(t, Root(t), filepath.Join(t.TempDir(), "module.so"), args...)
}

// BuildFormer makes the module as it was at a commit of the repository, and returns its file. It skips the test where the history isn't there.
func BuildFormer(t testing.TB, commit string) string {
	t.Helper()
	NotSanitized(t, "a former release is built without sanitizers")
	dir := t.TempDir()
	archive := filepath.Join(dir, "source.tar")
	git := exec.Command("git", "archive", "-o", archive, commit)
	git.Dir = Root(t)
	if out, err := git.CombinedOutput(); err != nil {
		t.Skipf("the source of %s isn't there: %v %s", commit, err, out)
	}
	run(t, "tar", "-x", "-f", archive, "-C", dir)
	return build(t, dir, filepath.Join(dir, "jobmesh.so"), "-trimpath", "./module")
}

// build makes a module, the file so, of the source in a folder.
func build(t testing.TB, dir, so string, args ...string) string {
	runIn(t, dir, "go", append([]string{"build", "-buildmode=c-shared", "-o", so}, args...)...)
	require.NoError(t, os.Chmod(so, 0o755))
	return so
}

func buildSanitized(t testing.TB, args []string) string {
	so := filepath.Join(t.TempDir(), "module.so")
	run(t, "tests/sanitize.sh", append([]string{"build", so}, args...)...)
	return so
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	runIn(t, Root(t), name, args...)
}

func runIn(t testing.TB, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// Sanitized makes a module as [Build] does, under the C compiler's sanitizers,
// and returns the option that loads it. It skips the test if the compiler has no
// sanitizers, or the server can't run under them.
func Sanitized(t testing.TB, args ...string) Option {
	t.Helper()
	cmd := exec.Command("tests/sanitize.sh", "preload", t.TempDir())
	cmd.Dir = Root(t)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 3 {
		t.Skip(strings.TrimSpace(string(exit.Stderr)))
	}
	require.NoError(t, err)
	libraries := strings.TrimSpace(string(out))
	if why := unfit(t, func(s *settings) { s.preload = libraries }); why != "" {
		t.Skip(why)
	}
	so := buildSanitized(t, args)
	return func(s *settings) { s.module, s.preload = so, libraries }
}

// ForksHang is why some tests are skipped under a sanitizer. If other threads of a process
// allocate while it forks, the child can hang: the sanitizer's allocator, unlike the
// server's, keeps its locks in the child as they are.
const ForksHang = "in a forked child the sanitizer's allocator may wait for threads that aren't there"

// NotSanitized skips a test if servers run under the sanitizers.
func NotSanitized(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("JOBMESH_PRELOAD") != "" {
		t.Skip(why)
	}
}

// unfit says why a sanitizer can't see a server's memory. It returns "" if it can.
func unfit(t testing.TB, preload Option) string {
	s := New(t, WithoutModule(), preload)
	s.Launch()
	// The test must not fail because of this server's log, or of its end.
	defer func() {
		s.cmd.Process.Kill()
		<-s.done
		s.cmd = nil
	}()
	ready := func() bool {
		c, err := dial(s.Addr())
		if err == nil {
			defer c.Close()
		}
		return err == nil && c.Do("PING").Str == "PONG"
	}
	Await(t, 20*time.Second, "the server, or its end", func() bool { return s.Ended() || ready() })
	if s.Ended() {
		return "the server doesn't run with the sanitizer's malloc"
	}
	number := func(field string) (n int) {
		n, err := strconv.Atoi(s.Info("memory", field))
		require.NoError(t, err)
		return n
	}
	// allocator_allocated is what jemalloc has handed out. It is next to nothing if malloc is
	// replaced.
	if s.Info("memory", "mem_allocator") != "libc" && number("allocator_allocated") > number("used_memory")/2 {
		return "the server has a malloc of its own inside, which no sanitizer sees"
	}
	return ""
}
