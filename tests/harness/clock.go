package harness

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// WithClock gives the server a wall clock of its own, which [Server.SetClock] sets. All C
// code that asks for the time gets the time of this clock, in the server and in the module.
// Monotonic clocks, and Go's clocks, are the machine's.
func WithClock(t testing.TB) Option {
	t.Helper()
	so := filepath.Join(t.TempDir(), "clock.so")
	run(t, "gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", so, "tests/clock.c")
	return func(s *settings) { s.clock = so }
}

func (s *Server) clockPath() string { return filepath.Join(s.Dir, "clock") }

// SetClock sets the wall clock of a server that was made with [WithClock]: ahead is how far
// it is ahead of the machine's clock, or behind it if negative. The clock steps at once, and
// stays so over restarts.
func (s *Server) SetClock(ahead time.Duration) {
	s.t.Helper()
	s.writeClock(ahead, 0, 0)
}

// SetClockAfter sets the wall clock as [Server.SetClock] does. When the server has read the clock so
// many times, it is set once more.
func (s *Server) SetClockAfter(ahead time.Duration, reads int, then time.Duration) {
	s.t.Helper()
	s.writeClock(ahead, reads, then)
}

func (s *Server) writeClock(ahead time.Duration, reads int, then time.Duration) {
	s.t.Helper()
	require.NotEmpty(s.t, s.clock, "the server has the machine's clock: start it WithClock")
	f, err := os.OpenFile(s.clockPath(), os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(s.t, err)
	defer f.Close()
	// The file is written in place, since the server has mapped it.
	var b []byte
	for _, n := range []int64{int64(ahead), int64(reads), int64(then)} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	_, err = f.WriteAt(b, 0)
	require.NoError(s.t, err)
}

// environment is what the server's process gets beside the test's own environment; nil if nothing.
func (s *Server) environment() (env []string) {
	preload := s.preload
	if s.clock != "" {
		if _, err := os.Stat(s.clockPath()); err != nil {
			s.SetClock(0)
		}
		// It comes before a sanitizer's own wrappers of the same functions.
		preload = strings.TrimSpace(s.clock + " " + preload)
		env = append(env, "JOBMESH_CLOCK="+s.clockPath())
	}
	if preload != "" {
		env = append(env, "LD_PRELOAD="+preload)
	}
	if s.preload != "" {
		env = append(env, "ASAN_OPTIONS="+sanitizerOptions, "UBSAN_OPTIONS=print_stacktrace=1")
	}
	return env
}
