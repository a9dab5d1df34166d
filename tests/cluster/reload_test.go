package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// runner starts three nodes. Node 0 runs the job first. The job second, at node 1, waits for its key.
func runner(t *testing.T, lines ...string) (m mesh, first, second string) {
	t.Helper()
	m = start(t, 3, append([]string{"appendonly yes", "enable-debug-command yes"}, lines...)...)
	first, second = m.run(t, "k")
	return m, first, second
}

func (m mesh) run(t *testing.T, key string) (first, second string) {
	t.Helper()
	run := []any{"REPLICATE", 1, "RETRY", 300, "UNIQUE", "during-processing", "KEY", key}
	first = addUnique(t, m[0], "run", "first", run...)
	require.Equal(t, first, fetch(t, m[0], "run"))
	// It may go to node 0, where a client waited a moment ago; then it comes again at node 1.
	second = addUnique(t, m[1], "run", "second", append(run, "RETRY", 3)...)
	for _, s := range m {
		harness.Await(t, 10*time.Second, "all to know of the run", func() bool {
			return s.Do("LOCK.SHOW", key, "TYPE", "running", "QUEUE", "run").Field("job").Str == first
		})
	}
	return first, second
}

// A node that loads its data anew still has them: the other nodes hear of no end of a lock or
// of a job.
func TestLoadedAnew(t *testing.T) {
	for _, how := range []string{"RELOAD", "LOADAOF", "RELOAD NOFLUSH MERGE"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			m, first, second := runner(t, "appendfsync always")
			wait := []any{"REPLICATE", 1, "UNIQUE", "until-processed", "KEY", "k"}
			addUnique(t, m[0], "wait", "first", wait...)
			for _, s := range m {
				harness.Await(t, 10*time.Second, "all to know of the job", func() bool {
					return !s.Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", "wait").Null
				})
			}
			parent := addUnique(t, m[0], "parent", "body", "REPLICATE", 3)
			child := addUnique(t, m[1], "child", "body", "AFTER", parent)
			waits, copied := stateAt(m[1], child), stateAt(m[2], parent)
			for range 3 {
				args := []any{"DEBUG"}
				for _, word := range strings.Fields(how) {
					args = append(args, word)
				}
				require.Equal(t, "OK", m[0].Do(args...).Str)
				// Node 0 sends this after all messages that the load may have caused.
				acquire(t, m[0], "behind", "o", 1000, "WAIT", 5000)
				m.known(t, "behind")
				for i, s := range m {
					assert.Equal(t, first, s.Do("LOCK.SHOW", "k", "TYPE", "running", "QUEUE", "run").Field("job").Str, "node %d", i)
					assert.False(t, s.Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", "wait").Null, "node %d", i)
				}
				assert.True(t, m[1].Do(append([]any{"ADDJOB", "wait", "second", 5000}, wait...)...).NullString())
				assert.Equal(t, waits, stateAt(m[1], child))
				assert.Equal(t, copied, stateAt(m[2], parent))
			}
			assert.True(t, m[0].Do("WORKING", first).Is(300), "nobody else has the lock")
			assert.True(t, m[0].Do("ACKJOB", first).Is(1))
			assert.Equal(t, second, fetch(t, m[1], "run"))
			assert.True(t, m[2].Do("ACKJOB", parent).Is(1))
			assert.Equal(t, child, fetch(t, m[2], "child"))
		})
	}
}

// A data set that is emptied for good frees its locks at all nodes.
func TestEmptiedForGood(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for _, how := range [][]any{{"FLUSHALL"}, {"FLUSHALL", "ASYNC"}, {"FLUSHDB"}, {"JOBMESH", "FLUSH"}, {"DEL", "run"}} {
		first, second := m.run(t, fmt.Sprint(how))
		v := m[0].Do(how...)
		require.NotEqual(t, byte('-'), v.Kind, "%v: %v", how, v)
		v = m[1].Do("GETJOB", "TIMEOUT", 20_000, "FROM", "run")
		require.Len(t, v.Elems, 1, "%v: %v", how, v)
		require.Equal(t, second, v.Elems[0].Elems[1].Str, "%v", how)
		assert.True(t, m[0].Do("SHOW", first).Null, "%v", how)
		assert.True(t, m[1].Do("WORKING", second).Is(3), "%v", how)
		require.True(t, m[1].Do("ACKJOB", second).Is(1), "%v", how)
	}
}

// A flush and a load in one go: the flush counts.
func TestEmptiedThenLoaded(t *testing.T) {
	t.Parallel()
	m, _, second := runner(t)
	c := m[0].Dial()
	c.Send("FLUSHALL")
	c.Send("DEBUG", "RELOAD")
	require.Equal(t, "OK", c.Receive().Str)
	require.Equal(t, "OK", c.Receive().Str)
	assert.Equal(t, second, fetch(t, m[1], "run"))
}

// A flush at a node of a mesh leaves windows, also where the data are loaded anew at once. A node that
// has left the mesh ends them.
func TestWindowsAfterAFlushAndALoad(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "enable-debug-command yes")
	window := []any{"ADDJOB", "q", "b", 5000, "REPLICATE", 1, "UNIQUE", "window", "TTL", 1000, "KEY", "k"}
	require.Equal(t, byte('+'), m[0].Do(window...).Kind)
	c := m[0].Dial()
	// While writes are paused no lock is removed.
	loaded := func(flush ...any) {
		for _, args := range [][]any{{"MULTI"}, flush, {"CLIENT", "PAUSE", 600_000, "WRITE"}, {"EXEC"}, {"DEBUG", "RELOAD"}, {"CLIENT", "UNPAUSE"}} {
			v := c.Do(args...)
			require.NotEqual(t, byte('-'), v.Kind, "%v: %v", args, v)
		}
	}
	loaded("FLUSHALL")
	for i, s := range m {
		assert.True(t, s.Do(window...).NullString(), "node %d", i)
	}
	loaded("JOBMESH", "CLUSTER", "RESET")
	assert.Equal(t, byte('+'), m[0].Do("ADDJOB", "q", "b", 0, "UNIQUE", "window", "TTL", 1000, "KEY", "k").Kind)
	assert.True(t, m[1].Do(window...).NullString(), "the mesh still has it")
}

// The promise that a node makes before it votes for a long lease is found by the next
// start, whether that is in the folder where the process began or in a later dir.
func TestPromisesAfterAnotherDir(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "enable-protected-configs yes")
	acquire(t, m[0], "warm", "o", 1000)
	files := make([][]string, 2)
	for i, s := range m[:2] {
		files[i] = []string{filepath.Join(s.Dir, "jobmesh-nodes.conf")}
		for _, name := range []string{"one", "two"} {
			dir := filepath.Join(s.Dir, name)
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.Equal(t, "OK", s.Do("CONFIG", "SET", "dir", dir).Str)
			file := filepath.Join(dir, "jobmesh-nodes.conf")
			harness.Await(t, 5*time.Second, file, func() bool { _, err := os.Stat(file); return err == nil })
			files[i] = append(files[i], file)
		}
	}
	acquire(t, m[2], "n", "first", 100_000, "WAIT", 5000)
	for _, files := range files {
		for _, file := range files {
			harness.Await(t, 5*time.Second, "the promise in "+file, func() bool {
				text, err := os.ReadFile(file)
				return err == nil && strings.Contains(string(text), "\nvars longest-lease 114688 ")
			})
		}
	}
	for _, s := range m {
		s.Kill()
	}
	for _, s := range m[:2] {
		s.Restart()
	}
	m[:2].await(t, 2)
	left, err := strconv.Atoi(m[0].Info("jobmesh", "jobmesh_locks_abstaining_ms"))
	require.NoError(t, err, "it gives no votes")
	assert.Greater(t, left, 50_000)
	assert.True(t, m[0].Do("LOCK.ACQUIRE", "n", "second", 100_000).Err("NOQUORUM"))
}

// If a folder with another node's file becomes the dir, that file stays as it is. A folder that
// is gone does no harm.
func TestOtherDirs(t *testing.T) {
	t.Parallel()
	m := start(t, 2, "enable-protected-configs yes")
	other := filepath.Join(m[1].Dir, "jobmesh-nodes.conf")
	before, err := os.ReadFile(other)
	require.NoError(t, err)
	gone := filepath.Join(m[0].Dir, "gone")
	require.NoError(t, os.Mkdir(gone, 0o700))
	for _, dir := range []string{gone, m[1].Dir} {
		require.Equal(t, "OK", m[0].Do("CONFIG", "SET", "dir", dir).Str)
		require.Equal(t, "OK", m[0].Do("JOBMESH", "CLUSTER", "SAVECONFIG").Str)
	}
	require.FileExists(t, filepath.Join(gone, "jobmesh-nodes.conf"))
	require.NoError(t, os.RemoveAll(gone))
	require.Equal(t, "OK", m[0].Do("JOBMESH", "CLUSTER", "SAVECONFIG").Str)
	after, err := os.ReadFile(other)
	require.NoError(t, err)
	assert.Equal(t, strings.Fields(string(before))[0], strings.Fields(string(after))[0], "its ID")
	assert.Contains(t, m[0].Log(), "is the nodes' file of node")
	acquire(t, m[1], "n", "o", 100_000, "WAIT", 5000)
}
