package harness_test

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func TestRepliesKeepTheirTypes(t *testing.T) {
	s := harness.Start(t, harness.WithoutModule())
	c := s.Dial()
	assert.Equal(t, `+"OK"`, c.Do("SET", "k", "v").String())
	for want, args := range map[string][]any{
		`$"v"`:           {"GET", "k"},
		`$null`:          {"GET", "none"},
		`*null`:          {"BLPOP", "none", "0.01"},
		`:1`:             {"EXISTS", "k"},
		`*[$"v" $null]`:  {"MGET", "k", "none"},
		`*[]`:            {"LRANGE", "none", 0, -1},
		`$"a\r\nb\x00"`:  {"ECHO", []byte("a\r\nb\x00")},
		`*[:1 *[$"in"]]`: {"EVAL", "return {1, {'in'}}", 0},
	} {
		assert.Equal(t, want, c.Do(args...).String(), "%v", args)
	}
	assert.True(t, c.Do("GET", "none").NullString())
	assert.True(t, c.Do("BLPOP", "none", "0.01").NullArray())
	assert.True(t, c.Do("LPUSH", "k", "x").Err("WRONGTYPE"))

	three := s.Dial3()
	assert.Equal(t, "_null", three.Do("GET", "none").String())
	three.Do("HSET", "h", "f", 1)
	assert.Equal(t, `%[$"f" $"1"]`, three.Do("HGETALL", "h").String())
	assert.Equal(t, "1", three.Do("HGETALL", "h").Field("f").Str)
}

// An error, a null or a missing reply isn't taken for 0.
func TestOnlyIntegersAreNumbers(t *testing.T) {
	s := harness.Start(t, harness.WithoutModule())
	r := &recorder{TB: t}
	c, err := harness.Dial(s.Addr(), 100*time.Millisecond)
	require.NoError(t, err)
	defer c.Close()
	own := harness.For(r, c)
	assert.Equal(t, int64(0), own.Do("EXISTS", "k").Int())
	assert.True(t, own.Do("EXISTS", "k").Is(0))
	require.Empty(t, r.said.String())
	for _, args := range [][]any{{"GET", "k"}, {"SET", "k"}, {"SET", "k", "0"}, {"LRANGE", "none", 0, -1}, {"BLPOP", "none", 0}} {
		r.said.Reset()
		v := own.Do(args...)
		assert.False(t, v.Is(0), "%v", args)
		assert.NotEqual(t, int64(0), v.Int(), "%v", args)
		assert.NotEqual(t, int64(0), v.Field("none").Int(), "%v", args)
		assert.Contains(t, r.said.String(), "not an integer", "%v", args)
	}
}

func TestPipelineAndSilence(t *testing.T) {
	s := harness.Start(t, harness.WithoutModule())
	c := s.Dial()
	for i := range 3 {
		c.Send("RPUSH", "l", i)
	}
	for i := range 3 {
		assert.EqualValues(t, i+1, c.Receive().Int())
	}
	c.Send("BLPOP", "empty", 0)
	assert.True(t, c.Silent(20*time.Millisecond))
	s.Do("RPUSH", "empty", "x")
	assert.Equal(t, []string{"empty", "x"}, c.Receive().Strings())
	c.Do("QUIT")
	assert.False(t, c.Silent(time.Second), "a closed connection isn't a silent one")
	assert.Zero(t, c.Receive().Kind)
}

func TestKillAndStopKeepFolderAndPort(t *testing.T) {
	dir := t.TempDir()
	s := harness.Start(t, harness.WithoutModule(), harness.WithDir(dir), harness.WithConfig("appendonly yes", "appendfsync always"))
	assert.Equal(t, dir, s.Dir)
	port, pid := s.Port, s.PID()
	s.Do("SET", "k", "v")
	require.Equal(t, "OK", s.Do("CONFIG", "SET", "maxclients", 77).Str)
	require.Equal(t, "OK", s.Do("CONFIG", "REWRITE").Str)
	s.Kill()
	s.Restart()
	assert.Equal(t, port, s.Port)
	assert.NotEqual(t, pid, s.PID())
	assert.Equal(t, "v", s.Do("GET", "k").Str)
	assert.Equal(t, []string{"maxclients", "77"}, s.Do("CONFIG", "GET", "maxclients").Strings())
	s.Stop()
	assert.Contains(t, s.Log(), "bye bye")
	s.Restart()
	assert.Equal(t, "v", s.Client().Get(t.Context(), "k").Val())
}

func TestPause(t *testing.T) {
	s := harness.Start(t, harness.WithoutModule())
	c := s.Dial()
	s.Pause()
	c.Send("PING")
	assert.True(t, c.Silent(50*time.Millisecond))
	s.Resume()
	assert.Equal(t, "PONG", c.Receive().Str)
}

func TestReplica(t *testing.T) {
	master := harness.Start(t, harness.WithoutModule())
	replica := harness.Start(t, harness.WithoutModule(), harness.WithReplicaOf(master))
	replica.AwaitSync()
	master.Do("SET", "k", "v")
	harness.Await(t, 20*time.Second, "the write", func() bool { return replica.Do("GET", "k").Str == "v" })
}

func TestCPUAndRSS(t *testing.T) {
	s := harness.Start(t, harness.WithoutModule())
	before := s.CPU()
	harness.Await(t, 20*time.Second, "the server's clock to advance", func() bool {
		s.Do("EVAL", "for i = 1, 300000 do end", 0)
		return s.CPU() > before
	})
	assert.Greater(t, s.RSS(), int64(1<<20))
	assert.Less(t, s.RSS(), int64(1<<30))
}

func TestPortTakenAndBinaryChosen(t *testing.T) {
	// This server finds its port taken the first time that it is started.
	dir := t.TempDir()
	script := filepath.Join(dir, "server")
	require.NoError(t, os.WriteFile(script, []byte(`#!/bin/sh
if [ ! -e `+dir+`/tried ]; then
  touch `+dir+`/tried
  echo 'bind: Address already in use' >> "$(sed -n 's/^logfile //p' "$1")"
  exit 1
fi
exec `+harness.Binary()+` "$1"
`), 0o700))
	s := harness.Start(t, harness.WithoutModule(), harness.WithBinary(script))
	assert.Equal(t, "PONG", s.Do("PING").Str)
	assert.FileExists(t, filepath.Join(dir, "tried"))
}

func TestRedisSaysThatThePortIsTaken(t *testing.T) {
	s := harness.New(t, harness.WithoutModule())
	l, err := net.Listen("tcp", s.Addr())
	require.NoError(t, err)
	defer l.Close()
	s.Launch()
	s.AwaitEnd()
	assert.Contains(t, s.Log(), "Address already in use", "the words by which Start knows it")
}

// recorder stands in for a test that is expected to fail.
type recorder struct {
	testing.TB
	cleanups []func()
	said     strings.Builder
}

func (r *recorder) Cleanup(f func())               { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, a ...any) { r.said.WriteString(format) }
func (r *recorder) Helper()                        {}
func (r *recorder) finish() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}

func TestAServerThatDiesFailsItsTest(t *testing.T) {
	// The words alone fail the test: they may come from a forked child.
	say := func(s *harness.Server, words string) {
		require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "stderr"), []byte(words), 0o600))
		s.Kill()
	}
	for name, die := range map[string]func(*harness.Server){
		"killed by another":     func(s *harness.Server) { s.Signal(9) },
		"crash report":          func(s *harness.Server) { s.Dial().Send("DEBUG", "SEGFAULT") },
		"words of Go's runtime": func(s *harness.Server) { say(s, "fatal error: out of words\n") },
		"a sanitizer's report":  func(s *harness.Server) { say(s, "==7==ERROR: AddressSanitizer: heap-use-after-free\n") },
		"another's":             func(s *harness.Server) { say(s, "record.c:7:9: runtime error: shift exponent 64 is too large\n") },
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{TB: t}
			s := harness.Start(r, harness.WithoutModule())
			die(s)
			harness.Await(t, 20*time.Second, "its end", s.Ended)
			r.finish()
			assert.Contains(t, r.said.String(), "crashed or panicked")
		})
	}
}

// The sanitizers see what C and what Go does to the server's memory.
func TestLongMisuseOfMemoryFailsItsTest(t *testing.T) {
	module := harness.Sanitized(t, "-tags", "jobmesh_misuse", "./module")
	for name, misuse := range map[string]struct {
		signal syscall.Signal
		report string
	}{
		"freed twice by C":     {syscall.SIGUSR1, "heap-use-after-free"},
		"read too far by Go":   {syscall.SIGUSR2, "heap-buffer-overflow"},
		"shifted too far in C": {syscall.SIGHUP, "runtime error: shift exponent"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{TB: t}
			s := harness.Start(r, module)
			s.Signal(misuse.signal)
			harness.Await(t, 20*time.Second, "its end", s.Ended)
			assert.Contains(t, s.Stderr(), misuse.report)
			r.finish()
			assert.Contains(t, r.said.String(), "crashed or panicked")
		})
	}
}

// A server's clock is as the test has set it, also after a restart.
func TestAServerHasAClockOfItsOwn(t *testing.T) {
	s := harness.Start(t, harness.WithoutModule(), harness.WithClock(t))
	c := s.Dial()
	ahead := func() time.Duration {
		at := c.Do("TIME").Elems
		sec, err := strconv.ParseInt(at[0].Str, 10, 64)
		require.NoError(t, err)
		return time.Until(time.Unix(sec, 0))
	}
	for _, step := range []time.Duration{0, -time.Hour, 24 * time.Hour} {
		s.SetClock(step)
		assert.InDelta(t, step.Seconds(), ahead().Seconds(), 10)
	}
	s.Stop()
	s.Restart()
	c = s.Dial()
	assert.InDelta(t, 86400, ahead().Seconds(), 10)
}
