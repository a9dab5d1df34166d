package harness

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sanitizerOptions leave signals to Go's runtime and the server, which have
// handlers of their own. Leaks aren't looked for, since neither of the two frees
// everything at its end.
const sanitizerOptions = "detect_leaks=0:allocator_may_return_null=1:use_sigaltstack=0:" +
	"handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0"

// Build makes a module of one of the repository's packages, which is the last
// of go build's arguments, and returns its file. Where servers run under the
// sanitizers (make sanitize), so does it.
func Build(t testing.TB, args ...string) string {
	t.Helper()
	if os.Getenv("JOBMESH_PRELOAD") != "" {
		return buildSanitized(t, args)
	}
	so := filepath.Join(t.TempDir(), "module.so")
	run(t, "go", append([]string{"build", "-buildmode=c-shared", "-o", so}, args...)...)
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
	cmd := exec.Command(name, args...)
	cmd.Dir = Root(t)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// Sanitized makes a module as [Build] does, under the C compiler's sanitizers,
// and returns the option that loads it. The test is skipped where the compiler
// has none.
func Sanitized(t testing.TB, args ...string) Option {
	t.Helper()
	cmd := exec.Command("tests/sanitize.sh", "library")
	cmd.Dir = Root(t)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 3 {
		t.Skip(strings.TrimSpace(string(exit.Stderr)))
	}
	require.NoError(t, err)
	so, library := buildSanitized(t, args), strings.TrimSpace(string(out))
	return func(s *settings) { s.module, s.preload = so, library }
}

// ForksHang is why some tests are skipped: forks of a process whose other
// threads allocate at that moment can hang under a sanitizer, whose allocator,
// unlike the server's, keeps its locks as they are in the child.
const ForksHang = "in a forked child the sanitizer's allocator may wait for threads that aren't there"

// NotSanitized skips a test where servers run under the sanitizers.
func NotSanitized(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("JOBMESH_PRELOAD") != "" {
		t.Skip(why)
	}
}

// NeedsSanitizer skips a test where the server doesn't allocate by the malloc
// that a sanitizer replaces, as one built with jemalloc inside.
func NeedsSanitizer(t testing.TB, s *Server) {
	t.Helper()
	number := func(field string) (n int) {
		n, err := strconv.Atoi(s.Info("memory", field))
		require.NoError(t, err)
		return n
	}
	// What jemalloc has handed out; under a sanitizer, next to nothing.
	if s.Info("memory", "mem_allocator") != "libc" && number("allocator_allocated") > number("used_memory")/2 {
		t.Skip("the server has a malloc of its own, which no sanitizer sees")
	}
}
