package single

import (
	"crypto/sha256"
	"fmt"
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

// SWAPDB with equal numbers changes nothing.
func TestSwapDBWithItself(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	c := s.Dial()
	id := add(t, c, "s", "x", 0, "RETRY", 1)
	require.Equal(t, "OK", c.Do("SWAPDB", 0, 0).Str)
	c.Do("MULTI")
	c.Do("SWAPDB", 1, 1)
	c.Do("SWAPDB", 0, 0)
	require.Len(t, c.Do("EXEC").Elems, 2)
	assert.Equal(t, "queued", state(c, id))
	assert.Equal(t, int64(1), c.Do("QLEN", "s").Int())
	s.Kill()
	s.Restart()
	c = s.Dial()
	assert.False(t, c.Do("SHOW", id).Null)
	assert.Equal(t, int64(1), c.Do("DEL", "s").Int())
	assert.True(t, c.Do("SHOW", id).Null)
}

// inode is a file's.
func inode(t *testing.T, name string) uint64 {
	info, err := os.Stat(name)
	require.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

// statePath is the state file's.
func statePath(s *harness.Server) string { return filepath.Join(s.Dir, "jobmesh-nodes.state") }

// The state of jobs after a start depends on how the server ended and what it saves: the table in
// COMMANDS.md, "After a restart".
func TestAfterARestart(t *testing.T) {
	always, everysec := []string{"appendonly yes", "appendfsync always"}, []string{"appendonly yes"}
	rdb := []string{"save 3600 1000000"}
	without := "aof-use-rdb-preamble no"
	kill := func(s *harness.Server) { s.Kill() }
	// With everysec the server puts off its writes while a slow disk syncs.
	written := func(s *harness.Server) {
		s.AwaitLogged()
		s.Kill()
	}
	stop := func(s *harness.Server) { s.Stop() }
	term := func(s *harness.Server) {
		s.Signal(syscall.SIGTERM)
		s.AwaitEnd()
	}
	rewritten := func(end func(*harness.Server)) func(*harness.Server) {
		return func(s *harness.Server) {
			s.RewriteAOF()
			end(s)
		}
	}
	set := func(param, value string, end func(*harness.Server)) func(*harness.Server) {
		return func(s *harness.Server) {
			require.Equal(t, "OK", s.Do("CONFIG", "SET", param, value).Str)
			end(s)
		}
	}
	// If the data is exact, at-most-once jobs that wait are queued again. If the data says which jobs
	// were in clients' hands, these stay there.
	for name, c := range map[string]struct {
		conf         []string
		end          func(*harness.Server)
		exact, hands bool
	}{
		"always, SHUTDOWN":                  {always, stop, true, true},
		"always, kill":                      {always, kill, true, false},
		"always, rewritten, kill":           {always, rewritten(kill), true, true},
		"always, no preamble, kill":         {append(always, without), rewritten(kill), true, true},
		"always, everysec in between, kill": {always, set("appendfsync", "everysec", set("appendfsync", "always", kill)), false, false},
		"always, not while rewriting, kill": {always, set("no-appendfsync-on-rewrite", "yes", kill), false, false},
		"always, everysec, SHUTDOWN":        {always, set("appendfsync", "everysec", stop), true, true},
		"everysec, SHUTDOWN":                {everysec, stop, true, true},
		"everysec, SIGTERM":                 {everysec, term, true, true},
		"everysec, rewritten, SHUTDOWN":     {everysec, rewritten(stop), true, true},
		"everysec, no preamble, SHUTDOWN":   {append(everysec, without), rewritten(stop), true, true},
		"everysec, JOBMESH SHUTDOWN":        {everysec, func(s *harness.Server) { s.Stop("JOBMESH", "SHUTDOWN") }, true, true},
		"everysec, kill":                    {everysec, written, false, false},
		"everysec, then always, kill":       {everysec, set("appendfsync", "always", written), false, false},
		"everysec, NOSAVE":                  {everysec, func(s *harness.Server) { s.Stop("SHUTDOWN", "NOSAVE") }, true, true},
		"RDB, SHUTDOWN":                     {rdb, stop, true, true},
		"RDB, SIGTERM":                      {rdb, term, true, true},
		"RDB, JOBMESH SHUTDOWN":             {nil, func(s *harness.Server) { s.Stop("JOBMESH", "SHUTDOWN") }, true, true},
		"everysec, reloaded, SHUTDOWN": {everysec, func(s *harness.Server) {
			require.Equal(t, "OK", s.Do("DEBUG", "RELOAD").Str)
			s.Stop()
		}, true, true},
		"RDB, kill after SAVE": {rdb, func(s *harness.Server) {
			require.Equal(t, "OK", s.Do("SAVE").Str)
			s.Kill()
		}, false, true},
		"RDB, NOSAVE after SAVE": {rdb, func(s *harness.Server) {
			require.Equal(t, "OK", s.Do("SAVE").Str)
			require.Equal(t, byte('+'), s.Do("ADDJOB", "other", "b", 0).Kind)
			s.Stop("SHUTDOWN", "NOSAVE")
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.WithConfig(c.conf...))
			if strings.Contains(strings.Join(c.conf, ";"), "always") {
				harness.Await(t, 5*time.Second, "the log to be known as whole", func() bool {
					_, err := os.Stat(statePath(s))
					return err == nil
				})
			}
			d := s.Dial()
			var waiting []string
			for range 3 {
				waiting = append(waiting, add(t, d, "q", "b", 0))
			}
			again := add(t, d, "a", "b", 0)
			get(t, d, "a")
			d.Do("NACK", again)
			once, gone := add(t, d, "once", "b", 0, "RETRY", 0), add(t, d, "gone", "b", 0, "RETRY", 0)
			get(t, d, "gone")
			plain, named := add(t, d, "h", "plain", 0, "RETRY", 100), add(t, d, "h", "named", 0, "RETRY", 200)
			get(t, d, "h")
			require.Len(t, d.Do("GETJOB", "WORKER", "ada", "FROM", "h").Elems, 1)
			before := wip(t, d, "h")
			ctime := d.Do("SHOW", once).Field("ctime").Int()
			c.end(s)
			s.Restart()
			d = s.Dial()

			assert.Equal(t, int64(3), d.Do("QLEN", "q").Int())
			for _, id := range waiting {
				assert.Equal(t, id, get(t, d, "q"), "in its place")
				assert.Equal(t, int64(0), d.Do("SHOW", id).Field("additional-deliveries").Int())
			}
			assert.Equal(t, "queued", state(d, again))
			assert.Equal(t, int64(1), d.Do("SHOW", again).Field("nacks").Int())

			after := wip(t, d, "h")
			if c.hands {
				assert.Equal(t, before, after)
			} else {
				assert.Equal(t, before[1:], after)
				assert.Equal(t, plain, get(t, d, "h"), "whoever has it had it without a name")
			}
			assert.Equal(t, "active", state(d, named))

			assert.Equal(t, "active", state(d, gone))
			assert.Equal(t, int64(0), d.Do("ENQUEUE", gone).Int(), "it was delivered")
			assert.True(t, d.Do("SHOW", gone).Field("delivered").Null || d.Do("SHOW", gone).Field("delivered").Str == "")
			assert.Equal(t, ctime, d.Do("SHOW", once).Field("ctime").Int())
			if c.exact {
				assert.Equal(t, once, get(t, d, "once"))
				assert.Equal(t, int64(0), d.Do("ENQUEUE", once).Int())
				assert.NotContains(t, s.Log(), "may have been delivered")
				return
			}
			assert.Equal(t, "active", state(d, once))
			assert.Equal(t, "maybe", d.Do("SHOW", once).Field("delivered").Str)
			assert.Contains(t, s.Log(), "1 jobs with RETRY 0 may have been delivered")
			list := wip(t, d, "once")
			require.Len(t, list, 1)
			assert.Equal(t, int64(0), list[0].deliveries, "nobody is known to have had it")
			assert.Equal(t, int64(0), d.Do("NACK", once).Int())
			assert.True(t, d.Do("GETJOB", "NOHANG", "FROM", "once").NullArray())
			// A clean restart doesn't make the job certain.
			s.Stop()
			s.Restart()
			d = s.Dial()
			assert.Equal(t, "maybe", d.Do("SHOW", once).Field("delivered").Str)
			require.Equal(t, int64(1), d.Do("ENQUEUE", once).Int(), "by hand")
			assert.Equal(t, int64(0), d.Do("SHOW", once).Field("additional-deliveries").Int())
			assert.Equal(t, once, get(t, d, "once"))
			assert.Equal(t, int64(0), d.Do("ENQUEUE", once).Int())
		})
	}
}

// A replica that is promoted, by hand or by FAILOVER, follows the rules of a crash: perhaps it
// hasn't received what its master did last.
func TestAfterAPromotion(t *testing.T) {
	for _, how := range []string{"REPLICAOF", "FAILOVER"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			master := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
			c := master.Dial()
			replica := harness.Start(t, harness.WithReplicaOf(master), harness.WithConfig("appendonly yes"))
			replica.AwaitSync()
			waiting := []string{add(t, c, "q", "1", 0), add(t, c, "q", "2", 0)}
			plain, named := add(t, c, "h", "plain", 0, "RETRY", 100), add(t, c, "h", "named", 0, "RETRY", 200)
			get(t, c, "h")
			require.Len(t, c.Do("GETJOB", "WORKER", "ada", "FROM", "h").Elems, 1)
			before := wip(t, c, "h")
			once, gone := add(t, c, "once", "b", 0, "RETRY", 0), add(t, c, "gone", "b", 0, "RETRY", 0)
			get(t, c, "gone")
			require.Equal(t, int64(1), c.Do("WAIT", 1, 5000).Int())
			if how == "FAILOVER" {
				require.Equal(t, "OK", c.Do("FAILOVER").Str)
			} else {
				require.Equal(t, "OK", replica.Do("REPLICAOF", "NO", "ONE").Str)
			}
			r := replica.Dial()
			harness.Await(t, 5*time.Second, "the queues to be back", func() bool { return r.Do("QLEN", "q").Int() == 2 })
			assert.Equal(t, waiting, []string{get(t, r, "q"), get(t, r, "q")}, "in their places")
			for _, id := range waiting {
				assert.Equal(t, int64(0), r.Do("SHOW", id).Field("additional-deliveries").Int())
			}
			assert.Equal(t, plain, get(t, r, "h"))
			assert.Equal(t, before[1:], wip(t, r, "h")[1:], "which was logged")
			assert.Equal(t, "active", state(r, named))
			assert.Equal(t, int64(0), r.Do("ENQUEUE", gone).Int(), "never a second delivery")
			assert.Equal(t, "maybe", r.Do("SHOW", once).Field("delivered").Str)
			assert.Contains(t, replica.Log(), "1 jobs with RETRY 0 may have been delivered")
			// The job is uncertain for a server that reads the log, too.
			harness.Await(t, 10*time.Second, "its AOF to be written, since it doesn't end before", func() bool {
				return replica.Info("persistence", "aof_rewrite_in_progress") == "0"
			})
			replica.Stop()
			if how == "FAILOVER" {
				master.Kill() // so that it doesn't become the replica's master again
			}
			replica.Move("replicaof 127.0.0.1 "+strconv.Itoa(master.Port), "replica-priority 100")
			replica.Restart()
			r = replica.Dial()
			assert.Equal(t, "maybe", r.Do("SHOW", once).Field("delivered").Str)
			assert.Equal(t, int64(1), r.Do("ENQUEUE", once).Int())
			assert.Equal(t, once, get(t, r, "once"))
		})
	}
}

// A promoted replica that ends in order has its queues back, too: its log names the server, although
// no job in it was uncertain.
func TestPromotedThenRestarted(t *testing.T) {
	master := harness.Start(t)
	replica := harness.Start(t, harness.WithReplicaOf(master), harness.WithConfig("appendonly yes"))
	replica.AwaitSync()
	require.Equal(t, "OK", replica.Do("REPLICAOF", "NO", "ONE").Str)
	c := replica.Dial()
	once := add(t, c, "once", "b", 0, "RETRY", 0)
	harness.Await(t, 10*time.Second, "its AOF to be written, since it doesn't end before", func() bool {
		return replica.Info("persistence", "aof_rewrite_in_progress") == "0"
	})
	replica.Stop()
	replica.Move("replicaof 127.0.0.1 "+strconv.Itoa(master.Port), "replica-priority 100")
	replica.Restart()
	assert.Equal(t, once, get(t, replica.Dial(), "once"))
}

// The state of jobs after RESTORE, and after the RESTORE is read from the log.
func TestAfterARestore(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	c := s.Dial()
	once, again := add(t, c, "q", "b", 0, "RETRY", 0), add(t, c, "q", "b", 0)
	fresh := c.Do("DUMP", "q").Str
	c.Do("DEL", "q")
	require.Equal(t, "OK", c.Do("RESTORE", "q", 0, fresh).Str)
	assert.Equal(t, int64(2), c.Do("QLEN", "q").Int(), "nothing has happened since")
	harness.Await(t, 5*time.Second, "the log to have that, too", func() bool { return strings.Contains(readAOF(t, s), "SETJOB") })
	comeBack(t, s, "kill")
	c = s.Dial()
	assert.Equal(t, int64(2), c.Do("QLEN", "q").Int())

	dump := c.Do("DUMP", "q").Str
	require.Equal(t, int64(1), c.Do("ACKJOB", once).Int())
	require.Equal(t, "OK", c.Do("RESTORE", "q", 0, dump, "REPLACE").Str)
	for range 2 {
		assert.Equal(t, []string{"active", "queued"}, []string{state(c, once), state(c, again)})
		assert.Equal(t, "maybe", c.Do("SHOW", once).Field("delivered").Str, "it was acknowledged, so somebody may have had it")
		comeBack(t, s, "kill")
		c = s.Dial()
	}
}

// readAOF returns what the log has behind its base.
func readAOF(t *testing.T, s *harness.Server) (all string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*.incr.aof"))
	require.NoError(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		all += string(b)
	}
	return all
}

// A state file counts only once, only for the data for which it was written, and only undamaged.
func TestStateFile(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, s *harness.Server, file string, clean []byte){
		"damaged": func(t *testing.T, s *harness.Server, file string, clean []byte) {
			clean[len(clean)/2] ^= 1
			require.NoError(t, os.WriteFile(file, clean, 0o600))
		},
		"cut": func(t *testing.T, s *harness.Server, file string, clean []byte) {
			require.NoError(t, os.WriteFile(file, clean[:20], 0o600))
		},
		"another server's": func(t *testing.T, s *harness.Server, file string, clean []byte) {
			other := harness.Start(t, harness.WithConfig("appendonly yes"))
			add(t, other.Dial(), "once", "b", 0, "RETRY", 0)
			other.Stop()
			b, err := os.ReadFile(statePath(other))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, b, 0o600))
		},
		"stale": func(t *testing.T, s *harness.Server, file string, clean []byte) {
			s.Restart()
			_, err := os.Stat(file)
			require.ErrorIs(t, err, os.ErrNotExist, "it was used")
			add(t, s.Dial(), "other", "b", 0)
			s.Kill()
			require.NoError(t, os.WriteFile(file, clean, 0o600))
		},
		"missing": func(t *testing.T, s *harness.Server, file string, clean []byte) { require.NoError(t, os.Remove(file)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.WithConfig("appendonly yes"))
			c := s.Dial()
			once, again := add(t, c, "once", "b", 0, "RETRY", 0), add(t, c, "q", "b", 0)
			s.Stop()
			clean, err := os.ReadFile(statePath(s))
			require.NoError(t, err)
			change(t, s, statePath(s), clean)
			s.Restart()
			c = s.Dial()
			assert.Equal(t, "queued", state(c, again))
			assert.Equal(t, "maybe", c.Do("SHOW", once).Field("delivered").Str)
			assert.Equal(t, name == "damaged" || name == "cut", strings.Contains(s.Log(), "jobmesh-nodes.state is passed over"))
			_, err = os.Stat(statePath(s))
			assert.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}

// A copy of a running server's folder may be older than what that server did since.
func TestCopiedFolder(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	harness.Await(t, 5*time.Second, "the log to be known as whole", func() bool {
		_, err := os.Stat(statePath(s))
		return err == nil
	})
	c := s.Dial()
	once := add(t, c, "once", "b", 0, "RETRY", 0)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "appendonlydir"), os.DirFS(filepath.Join(s.Dir, "appendonlydir"))))
	b, err := os.ReadFile(statePath(s))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "jobmesh-nodes.state"), b, 0o600))
	require.Equal(t, once, get(t, c, "once"))
	copied := harness.Start(t, harness.WithDir(dir), harness.WithConfig("appendonly yes", "appendfsync always"))
	assert.Equal(t, "maybe", copied.Do("SHOW", once).Field("delivered").Str)
	assert.Contains(t, copied.Log(), "it is a copy")
}

// A node that has saved only once crashes. It comes back with what it saved: at-least-once jobs come
// again although they are done, the others don't.
func TestRDBOfALongPastShutdown(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	once, again := add(t, c, "q", "1", 0, "RETRY", 0), add(t, c, "q", "2", 0)
	s.Stop("JOBMESH", "SHUTDOWN")
	s.Restart()
	c = s.Dial()
	assert.NotContains(t, s.Log(), "come again")
	for _, id := range []string{once, again} {
		require.Equal(t, id, get(t, c, "q"))
		require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
	}
	s.Kill()
	s.Restart()
	c = s.Dial()
	assert.Equal(t, "maybe", c.Do("SHOW", once).Field("delivered").Str)
	assert.Equal(t, again, get(t, c, "q"))
	assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
	assert.Contains(t, s.Log(), "jobs acknowledged since come again")
}

// An AOF that was off lacks what happened meanwhile, until it is written anew. After a shutdown
// before that, the AOF isn't trusted.
func TestShutdownBeforeTheAOFIsWrittenAnew(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always", `save ""`))
	c := s.Dial()
	once := add(t, c, "q", "x", 0, "RETRY", 0)
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "appendonly", "no").Str)
	require.Equal(t, once, get(t, c, "q"))
	for i := range 200 { // a BGSAVE that lasts, and the rewrite waits for it
		c.Do("SET", i, "v")
	}
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "rdb-key-save-delay", 100_000).Str)
	require.Equal(t, byte('+'), c.Do("BGSAVE").Kind)
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "appendonly", "yes").Str)
	require.Equal(t, "1", s.Info("persistence", "aof_rewrite_scheduled"))
	s.Stop()
	s.Restart()
	assert.Empty(t, s.Do("GETJOB", "NOHANG", "FROM", "q").Elems, "it was delivered")

	// Once the AOF is written anew, it is trusted again.
	c = s.Dial()
	c.Do("DELJOB", once)
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "appendonly", "no").Str)
	waits := add(t, c, "q", "x", 0, "RETRY", 0)
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "appendonly", "yes").Str)
	harness.Await(t, 20*time.Second, "the AOF to be written", func() bool {
		return s.Info("persistence", "aof_rewrite_in_progress")+s.Info("persistence", "aof_rewrite_scheduled") == "00"
	})
	s.Stop()
	s.Restart()
	assert.Equal(t, waits, get(t, s.Dial(), "q"), "it was not")
}

// A state file is valid for the AOF of its own process, not for a backup in the AOF's place.
func TestBackupInTheAOFsPlace(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	harness.Await(t, 5*time.Second, "the state file", func() bool { _, err := os.Stat(statePath(s)); return err == nil })
	c := s.Dial()
	once := add(t, c, "q", "x", 0, "RETRY", 0)
	aof, backup := filepath.Join(s.Dir, "appendonlydir"), filepath.Join(s.Dir, "backup")
	require.NoError(t, os.CopyFS(backup, os.DirFS(aof)))
	require.Equal(t, once, get(t, c, "q"))
	s.Kill()
	require.NoError(t, os.RemoveAll(aof))
	require.NoError(t, os.Rename(backup, aof))
	s.Restart()
	assert.Empty(t, s.Do("GETJOB", "NOHANG", "FROM", "q").Elems, "it was delivered")
	assert.False(t, s.Do("SHOW", once).Null, "it is kept")
}

// A state file is valid for its process's AOF up to the length that it notes, and not for a
// shorter or another one.
func TestLogThatWasChangedByHand(t *testing.T) {
	write := func(text func(before, after string) string) func(log, before, after string) error {
		return func(log, before, after string) error { return os.WriteFile(log, []byte(text(before, after)), 0o600) }
	}
	for name, c := range map[string]struct {
		change func(log, before, after string) error
		why    string // why the log doesn't count
	}{
		"not at all":    {write(func(_, after string) string { return after }), ""},
		"cut":           {func(log, before, _ string) error { return os.Truncate(log, int64(len(before))) }, "bytes, and had"},
		"an older copy": {write(func(before, _ string) string { return before }), "bytes, and had"},
		"others at its end": {write(func(before, _ string) string {
			return before + "*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$999\r\n" + strings.Repeat("x", 999) + "\r\n"
		}), "of its last file it is another"},
		"torn by the crash": {write(func(_, after string) string { return after + "*3\r\n$3\r\nSET\r\n$1" }), ""},
	} {
		for _, rewritten := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, rewritten %v", name, rewritten), func(t *testing.T) {
				t.Parallel()
				s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
				harness.Await(t, 5*time.Second, "the state file", func() bool { _, err := os.Stat(statePath(s)); return err == nil })
				d := s.Dial()
				had, waits := add(t, d, "had", "x", 0, "RETRY", 0), add(t, d, "waits", "x", 0, "RETRY", 0)
				if rewritten {
					s.RewriteAOF()
					harness.Await(t, 5*time.Second, "the process to be named in it", func() bool { return strings.Contains(s.Appended(), "EPOCH") })
				}
				before := s.Appended()
				require.Equal(t, had, get(t, d, "had"))
				after := s.Appended()
				require.Greater(t, len(after), len(before))
				s.AwaitMark()
				s.Kill()
				files, err := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*.incr.aof"))
				require.NoError(t, err)
				require.Len(t, files, 1)
				require.NoError(t, c.change(files[0], before, after))
				s.Restart()
				d = s.Dial()
				if c.why == "" {
					assert.Equal(t, waits, get(t, d, "waits"))
					assert.NotContains(t, s.Log(), "is passed over")
				} else {
					assert.Equal(t, "maybe", d.Do("SHOW", had).Field("delivered").Str)
					assert.Equal(t, "maybe", d.Do("SHOW", waits).Field("delivered").Str)
					assert.Contains(t, s.Log(), "2 jobs with RETRY 0 may have been delivered")
					assert.Contains(t, s.Log(), c.why)
				}
				assert.Empty(t, d.Do("GETJOB", "NOHANG", "FROM", "had", "waits").Elems, "they were delivered")
			})
		}
	}
}

// A server is killed when an AOF rewrite has just begun, or has just succeeded, and the state file
// still names the files before. The log counts, unless it may lack anything. For that moment the
// test puts a state file back that was replaced meanwhile: by a link, so that its inode stays.
func TestKilledBeforeTheStateFileFollowsARewrite(t *testing.T) {
	const anotherSet, anotherBase = "the AOF's files aren't those that it names", "the AOF's base isn't what the rewrite wrote"
	type files struct {
		dir       string // the AOF's folder
		before    int64  // bytes of the file that was written, before the last delivery
		olderBase string // content of a base that this process wrote before
	}
	find := func(t *testing.T, dir, pattern string, n int) []string {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		require.Len(t, found, n)
		return found
	}
	incrs := func(t *testing.T, dir string, n int) []string { return find(t, dir, "*.incr.aof", n) }
	read := func(t *testing.T, name string) string {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(b)
	}
	replace := func(t *testing.T, name, text string) { // by a file of another inode
		require.NoError(t, os.WriteFile(name+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(name+".new", name))
	}
	rewritten := func(s *harness.Server) bool {
		return s.Info("persistence", "aof_rewrite_in_progress")+s.Info("persistence", "aof_rewrite_scheduled") == "00"
	}
	for name, c := range map[string]struct {
		ended bool                        // the rewrite has succeeded
		live  func(c *harness.Conn)       // before the server is killed
		then  func(t *testing.T, f files) // after that
		why   string                      // why the log doesn't count
	}{
		"begun":          {false, nil, func(t *testing.T, f files) { require.NoError(t, os.Truncate(incrs(t, f.dir, 2)[1], 0)) }, ""},
		"begun, went on": {false, nil, nil, anotherSet},
		"begun, and the log is cut": {false, nil, func(t *testing.T, f files) {
			require.NoError(t, os.Truncate(incrs(t, f.dir, 2)[1], 0))
			require.NoError(t, os.Truncate(incrs(t, f.dir, 2)[0], f.before))
		}, "bytes, and had"},
		"ended": {true, nil, nil, ""},
		"ended, and the manifest has the former files": {true, nil, func(t *testing.T, f files) {
			manifest := filepath.Join(f.dir, "appendonly.aof.manifest")
			base, rest, _ := strings.Cut(read(t, manifest), "\n")
			replace(t, manifest, base+"\nfile appendonly.aof.2.incr.aof seq 2 type h startoffset 0\n"+rest)
		}, ""},
		"ended, and the log is cut": {true, nil, func(t *testing.T, f files) { require.NoError(t, os.Truncate(incrs(t, f.dir, 1)[0], f.before)) }, "bytes, and had"},
		"ended, and the log is a copy": {true, nil, func(t *testing.T, f files) {
			log := incrs(t, f.dir, 1)[0]
			replace(t, log, read(t, log))
		}, anotherSet},
		"ended, and the log is another": {true, nil, func(t *testing.T, f files) {
			log := incrs(t, f.dir, 1)[0]
			text := read(t, log)[:f.before] + "*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$999\r\n" + strings.Repeat("x", 999) + "\r\n"
			require.NoError(t, os.WriteFile(log, []byte(text), 0o600))
		}, "of its last file it is another"},
		"ended, and the base is older": {true, nil, func(t *testing.T, f files) { replace(t, find(t, f.dir, "*.base.rdb", 1)[0], f.olderBase) }, anotherBase},
		"ended, and so has the next":   {true, func(c *harness.Conn) { require.Equal(t, byte('+'), c.Do("BGREWRITEAOF").Kind) }, nil, anotherSet},
		"ended, and the AOF was off": {true, func(c *harness.Conn) {
			ok(t, c.Do("CONFIG", "SET", "appendonly", "no"))
			c.Do("GETJOB", "NOHANG", "FROM", "waits")
			ok(t, c.Do("CONFIG", "SET", "appendonly", "yes"))
		}, nil, anotherSet},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always", `save ""`))
			d, f := s.Dial(), files{dir: filepath.Join(s.Dir, "appendonlydir")}
			for i := range 30 { // a rewrite that lasts for three seconds
				d.Do("SET", i, "v")
			}
			had, waits := add(t, d, "had", "x", 0, "RETRY", 0), add(t, d, "waits", "x", 0, "RETRY", 0)
			s.RewriteAOF()
			f.olderBase = read(t, find(t, f.dir, "*.base.rdb", 1)[0])
			delayed := add(t, d, "waits", "x", 0, "RETRY", 0, "DELAY", 1000)
			begin := func() {
				before := inode(t, statePath(s))
				ok(t, d.Do("CONFIG", "SET", "rdb-key-save-delay", 100_000))
				require.Equal(t, byte('+'), d.Do("BGREWRITEAOF").Kind)
				harness.Await(t, 5*time.Second, "the log to go on in another file", func() bool {
					return inode(t, statePath(s)) != before && strings.Contains(read(t, incrs(t, f.dir, 2)[1]), "EPOCH")
				})
			}
			link := func(written string) {
				info, err := os.Stat(written)
				require.NoError(t, err)
				f.before = info.Size()
				require.Equal(t, had, get(t, d, "had"))
				harness.Await(t, 5*time.Second, "the log's length to be noted", func() bool {
					info, err := os.Stat(written)
					require.NoError(t, err)
					return s.Mark() == info.Size()
				})
				require.NoError(t, os.Link(statePath(s), statePath(s)+".before"))
			}
			during := delayed
			if c.ended {
				begin()
				during = add(t, d, "waits", "x", 0, "RETRY", 0)
				link(incrs(t, f.dir, 2)[1])
				require.False(t, rewritten(s))
				harness.Await(t, 20*time.Second, "the rewrite", func() bool { return rewritten(s) })
				ok(t, d.Do("CONFIG", "SET", "rdb-key-save-delay", 0))
				if c.live != nil {
					c.live(d)
					harness.Await(t, 20*time.Second, "another rewrite", func() bool { return rewritten(s) })
				}
			} else {
				link(incrs(t, f.dir, 1)[0])
				begin()
			}
			s.Kill()
			require.NoError(t, os.Rename(statePath(s)+".before", statePath(s)))
			if c.then != nil {
				c.then(t, f)
			}
			s.Restart()
			d = s.Dial()
			if c.why == "" {
				assert.NotContains(t, s.Log(), "is passed over")
				assert.Equal(t, waits, get(t, d, "waits"))
				for _, id := range []string{delayed, during} {
					assert.NotEqual(t, "maybe", d.Do("SHOW", id).Field("delivered").Str)
				}
			} else {
				assert.Contains(t, s.Log(), c.why)
			}
			assert.Empty(t, d.Do("GETJOB", "NOHANG", "FROM", "had").Elems, "it was delivered")
			if c.why != "" {
				assert.Empty(t, d.Do("GETJOB", "NOHANG", "FROM", "waits").Elems, "it may have been")
			}
		})
	}
}

// The same, with the real moment: the server is killed as soon as it says that the rewrite is done.
func TestKilledAtTheEndOfARewrite(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	for range 12 {
		id, before := s.Do("ADDJOB", "q", "b", 0, "RETRY", 0).Str, len(s.Log())
		require.Equal(t, byte('+'), s.Do("BGREWRITEAOF").Kind)
		for until := time.Now().Add(10 * time.Second); !strings.Contains(s.Log()[before:], "rewrite finished successfully"); {
			require.True(t, time.Now().Before(until), "the rewrite")
		}
		s.Kill()
		s.Restart()
		require.Equal(t, "queued", s.Do("SHOW", id).Field("state").Str)
	}
}

// The same, at a moment that is too short to be met: the rewrite has ended, and the server is
// killed before it wrote anything to the new file, so only the base says whose log it is.
func TestKilledBeforeARewrittenLogGoesOn(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always", `save ""`))
	waits := add(t, s.Dial(), "q", "x", 0, "RETRY", 0)
	s.RewriteAOF()
	log := filepath.Join(s.Dir, "appendonlydir", "appendonly.aof.2.incr.aof")
	harness.Await(t, 5*time.Second, "the log's length to be noted", func() bool {
		info, err := os.Stat(log)
		return err == nil && info.Size() > 0 && s.Mark() == info.Size()
	})
	s.Kill()
	require.NoError(t, os.Truncate(log, 0))
	state, err := os.ReadFile(statePath(s))
	require.NoError(t, err)
	var none [8]byte
	sum := sha256.Sum256(none[:])
	mark := append(none[:], sum[:]...)
	require.NoError(t, os.WriteFile(statePath(s), append(state[:len(state)-len(mark)], mark...), 0o600))
	s.Restart()
	assert.NotContains(t, s.Log(), "is passed over")
	assert.Equal(t, waits, get(t, s.Dial(), "q"))
}

// A queue lies in another database while the server loads. Its jobs get their state when it comes
// home, by what was known of the data when it was loaded.
func TestQueuesInOtherDatabasesAreSettled(t *testing.T) {
	home := map[string]func(c *harness.Conn){
		"MOVE": func(c *harness.Conn) {
			c.Do("SELECT", 1)
			require.Equal(t, int64(1), c.Do("MOVE", "q", 0).Int())
			c.Do("SELECT", 0)
		},
		"SWAPDB": func(c *harness.Conn) { require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str) },
	}
	for name, bring := range home {
		t.Run(name+", the AOF is exact", func(t *testing.T) {
			s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
			harness.Await(t, 5*time.Second, "the state file", func() bool { _, err := os.Stat(statePath(s)); return err == nil })
			c := s.Dial()
			var ids []string
			for range 2 {
				ids = append(ids, add(t, c, "q", "b", 0, "RETRY", 300), add(t, c, "q", "b", 0, "RETRY", 0))
			}
			ids = append(ids, add(t, c, "q", "key", 0, "UNIQUE", "until-processed"))
			late := add(t, c, "q", "b", 0, "DELAY", 1)
			require.Equal(t, int64(1), c.Do("MOVE", "q", 1).Int())
			s.Kill()
			s.Restart()
			c = s.Dial()
			bring(c)
			assert.Equal(t, int64(len(ids)), c.Do("QLEN", "q").Int())
			for _, id := range ids {
				assert.Equal(t, id, get(t, c, "q"))
			}
			assert.Equal(t, late, c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q").Elems[0].Elems[1].Str)
		})
		t.Run(name+", the data is older", func(t *testing.T) {
			s := harness.Start(t, harness.WithConfig(`save ""`))
			c := s.Dial()
			once, often := add(t, c, "q", "b", 0, "RETRY", 0), add(t, c, "q", "b", 0)
			require.Equal(t, int64(1), c.Do("MOVE", "q", 1).Int())
			require.Equal(t, "OK", c.Do("SAVE").Str)
			bring(c)
			require.Equal(t, once, get(t, c, "q"))
			s.Kill()
			s.Restart()
			c = s.Dial()
			bring(c)
			for range 2 {
				assert.Equal(t, often, get(t, c, "q"))
				assert.Empty(t, c.Do("GETJOB", "NOHANG", "FROM", "q").Elems, "it was delivered")
				c.Do("NACK", often)
				require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
			}
		})
		t.Run(name+", restored there", func(t *testing.T) {
			s := harness.Start(t)
			c := s.Dial()
			once := add(t, c, "q", "b", 0, "RETRY", 0)
			dump := c.Do("DUMP", "q").Str
			require.Equal(t, once, get(t, c, "q"))
			require.Equal(t, int64(1), c.Do("ACKJOB", once).Int())
			c.Do("DEL", "q")
			c.Do("SELECT", 1)
			require.Equal(t, "OK", c.Do("RESTORE", "q", 0, []byte(dump)).Str)
			c.Do("SELECT", 0)
			bring(c)
			assert.Empty(t, c.Do("GETJOB", "NOHANG", "FROM", "q").Elems)
			require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
			assert.Empty(t, c.Do("GETJOB", "NOHANG", "FROM", "q").Elems, "it was delivered")
		})
	}
}

// A delayed at-most-once job that was delivered while the AOF was off is delayed in it, and
// isn't delivered again.
func TestDelayedJobsOfAnOlderLog(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync everysec"))
	d := s.Dial()
	had := add(t, d, "q", "x", 0, "RETRY", 0, "DELAY", 4)
	require.Equal(t, "OK", d.Do("CONFIG", "SET", "appendonly", "no").Str)
	v := d.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q")
	require.Equal(t, had, v.Elems[0].Elems[1].Str)
	s.Kill()
	s.Restart()
	d = s.Dial()
	assert.True(t, d.Do("GETJOB", "TIMEOUT", 5000, "FROM", "q").Null)
	assert.Equal(t, "maybe", d.Do("SHOW", had).Field("delivered").Str)
	assert.Equal(t, int64(1), d.Do("ENQUEUE", had).Int(), "by hand")
	assert.Equal(t, had, get(t, d, "q"))
}

// A dump is restored in another database, where no client is given its at-most-once jobs. When its
// queue comes home, they may already have been delivered from the first queue.
func TestRestoreInAnotherDatabase(t *testing.T) {
	for name, home := range map[string][]any{"SWAPDB": {"SWAPDB", 0, 1}, "MOVE": {"MOVE", "q", 0}} {
		t.Run(name, func(t *testing.T) {
			c := harness.Start(t).Dial()
			once, often := add(t, c, "q", "b", 0, "RETRY", 0), add(t, c, "q", "b", 0, "RETRY", 300)
			dump := c.Do("DUMP", "q").Str
			c.Do("SELECT", 1)
			require.Equal(t, "OK", c.Do("RESTORE", "q", 0, dump).Str)
			c.Do("SELECT", 0)
			require.Len(t, c.Do("GETJOB", "NOHANG", "COUNT", 2, "FROM", "q").Elems, 2)
			require.Equal(t, int64(2), c.Do("ACKJOB", once, often).Int())
			require.Equal(t, int64(1), c.Do("DEL", "q").Int())
			c.Do("SELECT", 1)
			require.NotEqual(t, byte('-'), c.Do(home...).Kind)
			c.Do("SELECT", 0)
			v := c.Do("GETJOB", "NOHANG", "COUNT", 2, "FROM", "q")
			for _, j := range v.Elems {
				assert.NotEqual(t, once, j.Elems[1].Str, "it was delivered, and acknowledged")
			}
		})
	}
}

// A server with appendfsync always is killed as soon as it has answered, again and again. From the
// first answer on its state file says that the log has all.
func TestKilledRightAfterTheStart(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	for range 30 {
		id := s.Do("ADDJOB", "q", "b", 0, "RETRY", 0).Str
		s.Kill()
		s.Restart()
		require.Equal(t, "queued", s.Do("SHOW", id).Field("state").Str)
	}
}

// DEBUG LOADAOF runs while the AOF is written anew. A job that waits since the load also waits after
// a clean restart. For that the AOF is written once more.
func TestLoadAOFWhileItIsWrittenAnew(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always", `save ""`))
	c := s.Dial()
	for i := range 20 {
		c.Do("SET", i, "v")
	}
	id := add(t, c, "q", "b", 0, "RETRY", 1000)
	require.Equal(t, id, get(t, c, "q"))
	rewrites, err := strconv.Atoi(s.Info("persistence", "aof_rewrites"))
	require.NoError(t, err)
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "rdb-key-save-delay", 50_000).Str)
	require.Equal(t, byte('+'), c.Do("BGREWRITEAOF").Kind)
	require.Equal(t, "OK", c.Do("DEBUG", "LOADAOF").Str)
	require.Equal(t, "queued", state(c, id), "its delivery was in no log")
	require.Equal(t, "1", s.Info("persistence", "aof_rewrite_in_progress"))
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "rdb-key-save-delay", 0).Str)
	harness.Await(t, 20*time.Second, "the AOF to be written twice", func() bool {
		return s.Info("persistence", "aof_rewrites") == strconv.Itoa(rewrites+2) && s.Info("persistence", "aof_rewrite_in_progress") == "0"
	})
	s.Stop()
	s.Restart()
	assert.Equal(t, "queued", state(s.Dial(), id))
}

// DEBUG LOADAOF reads what the server itself has just written. So no job becomes uncertain, and the
// state file stays valid.
func TestAtMostOnceJobsAfterLOADAOF(t *testing.T) {
	for _, fsync := range []string{"always", "everysec"} {
		t.Run(fsync, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync "+fsync))
			c := s.Dial()
			waits, delayed := add(t, c, "q", "b", 0, "RETRY", 0), add(t, c, "q", "b", 0, "RETRY", 0, "DELAY", 1000)
			given := add(t, c, "p", "b", 0, "RETRY", 0)
			require.Equal(t, given, get(t, c, "p"))
			require.Equal(t, "OK", c.Do("DEBUG", "LOADAOF").Str)
			assert.Equal(t, "queued", state(c, waits))
			assert.NotEqual(t, "maybe", c.Do("SHOW", delayed).Field("delivered").Str)
			assert.Equal(t, int64(0), c.Do("QLEN", "p").Int(), "what was delivered doesn't come again")
			if fsync != "always" {
				return
			}
			later := add(t, c, "q", "b", 0, "RETRY", 0)
			s.Kill()
			s.Restart()
			for _, id := range []string{waits, later} {
				assert.Equal(t, "queued", s.Do("SHOW", id).Field("state").Str)
			}
		})
	}
}

// An at-most-once job has become uncertain before it was due. It will not be due any more: so its
// LOCKTTL begins with the restart, and again with each later restart.
func TestLockTTLOfUncertainJobs(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync everysec"))
	c := s.Dial()
	lock := func(key string, more ...any) string {
		return add(t, c, append([]any{"q", "b", 0, "RETRY", 0, "UNIQUE", "until-processed", "KEY", key, "LOCKTTL", 2}, more...)...)
	}
	lock("now")
	lock("delayed", "DELAY", 100)
	lock("blocked", "BLOCKEDBY", lock("deferred", "DEFERRED"))
	s.AwaitLogged()
	for range 2 {
		s.Kill()
		s.Restart()
		for _, key := range []string{"now", "delayed", "deferred", "blocked"} {
			harness.Await(t, 20*time.Second, "the end of the lock of "+key, func() bool {
				return s.Do("LOCK.SHOW", key, "TYPE", "waiting", "QUEUE", "q").Null
			})
		}
		s.AwaitLogged()
	}
}

// RESTORE leaves out jobs that lie in another database. Each server leaves out the same jobs: one that
// saw them go, one that has loaded them there, one that reads the log, and the replica.
func TestRestoreOfWhatLiesInAnotherDatabase(t *testing.T) {
	// Each of these leads to a server that hasn't seen the jobs go; after returns one that must
	// have the same data then.
	for how, other := range map[string]func(t *testing.T, s *harness.Server, c *harness.Conn) (after func() *harness.Server){
		"reloaded": func(t *testing.T, s *harness.Server, c *harness.Conn) func() *harness.Server {
			require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
			return func() *harness.Server { s.Stop("SHUTDOWN"); s.Restart(); return s }
		},
		"flushed": func(t *testing.T, s *harness.Server, c *harness.Conn) func() *harness.Server {
			require.Equal(t, "OK", c.Do("FLUSHDB").Str)
			return func() *harness.Server { s.Stop("SHUTDOWN"); s.Restart(); return s }
		},
		"rewritten": func(t *testing.T, s *harness.Server, c *harness.Conn) func() *harness.Server {
			s.RewriteAOF()
			return func() *harness.Server { s.Kill(); s.Restart(); return s }
		},
		"replica": func(t *testing.T, s *harness.Server, c *harness.Conn) func() *harness.Server {
			r := harness.Start(t, harness.WithConfig("appendonly yes"), harness.WithReplicaOf(s))
			r.AwaitSync()
			return func() *harness.Server {
				r.AwaitStream(s)
				s.Kill()
				require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
				harness.Await(t, 20*time.Second, "the promotion", func() bool { return r.Do("ADDJOB", "p", "b", 0).Kind == '+' })
				return r
			}
		},
	} {
		for _, gone := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, and deleted there %v", how, gone), func(t *testing.T) {
				t.Parallel()
				s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
				c := s.Dial()
				id := add(t, c, "q", "b", 0)
				dump := c.Do("DUMP", "q").Str
				require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
				after := other(t, s, c)
				c.Do("RESTORE", "q", 0, dump, "REPLACE")
				if gone {
					c.Do("SELECT", 1)
					require.Equal(t, int64(1), c.Do("DEL", "q").Int())
				}
				has := func(s *harness.Server) string {
					c := s.Dial()
					here := fmt.Sprint(c.Do("SHOW", id).Null, c.Do("QLEN", "q"))
					c.Do("SELECT", 1)
					return here + fmt.Sprint(c.Do("EXISTS", "q"))
				}
				before := has(s)
				assert.Equal(t, before, has(after()))
			})
		}
	}
}

// A job that is in a queue isn't restored into another queue, in whatever databases the queues are.
// Otherwise the job would be there twice, and servers would differ in which of the two they keep.
func TestRestoreIntoAnotherDatabase(t *testing.T) {
	for how, end := range map[string]func(s *harness.Server, c *harness.Conn) *harness.Server{
		"restarted": func(s *harness.Server, c *harness.Conn) *harness.Server { s.Stop("SHUTDOWN"); s.Restart(); return s },
		"killed":    func(s *harness.Server, c *harness.Conn) *harness.Server { s.Kill(); s.Restart(); return s },
		"reloaded": func(s *harness.Server, c *harness.Conn) *harness.Server {
			require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
			s.Stop("SHUTDOWN")
			s.Restart()
			return s
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
			c := s.Dial()
			id := add(t, c, "q", "b", 0)
			dump := c.Do("DUMP", "q").Str
			in := func(db int, args ...any) {
				c.Do("SELECT", db)
				v := c.Do(args...)
				require.NotEqual(t, byte('-'), v.Kind, "%v: %v", args, v)
				c.Do("SELECT", 0)
			}
			in(1, "RESTORE", "r", 0, dump)
			in(0, "MOVE", "q", 2)
			s.RewriteAOF()
			in(3, "RESTORE", "r", 0, dump)
			in(1, "MOVE", "r", 0)
			in(2, "MOVE", "q", 0)
			assert.Equal(t, int64(0), c.Do("QLEN", "r").Int())
			assert.Equal(t, int64(1), c.Do("QLEN", "q").Int())
			in(0, "DEL", "r")
			in(3, "MOVE", "r", 0)
			c = end(s, c).Dial()
			assert.Equal(t, int64(0), c.Do("QLEN", "r").Int())
			assert.Equal(t, id, get(t, c, "q"))
		})
	}
}

// JOBMESH SHUTDOWN of a server whose data can't be saved. The server goes on, with all jobs.
func TestShutdownThatCannotSave(t *testing.T) {
	for _, command := range [][]any{{"JOBMESH", "SHUTDOWN"}, {"SHUTDOWN", "REWRITE-AOF"}} {
		s := harness.Start(t, harness.WithConfig("jobmesh.disque-compat yes"))
		c := s.Dial()
		id := add(t, c, "q", "b", 0)
		require.Equal(t, "OK", c.Do("CONFIG", "SET", "save", "").Str)
		dump := filepath.Join(s.Dir, "dump.rdb")
		require.NoError(t, os.MkdirAll(filepath.Join(dump, "in the way"), 0o700))
		v := c.Do(command...)
		assert.True(t, v.Err("ERR the data can't be saved, so the server goes on: "), "%v", v)
		require.NoError(t, os.RemoveAll(dump))
		assert.Equal(t, int64(1), c.Do("QLEN", "q").Int())
		s.Stop(command...)
		s.Restart()
		require.Equal(t, id, get(t, s.Dial(), "q"))
	}
}

// JOBMESH SHUTDOWN while the server makes its first AOF, saves in the background, or writes
// its AOF anew: it ends after that, and the next start has all jobs.
func TestShutdownWhileTheServerWrites(t *testing.T) {
	t.Parallel()
	for name, write := range map[string][]any{
		"first AOF": {"CONFIG", "SET", "appendonly", "yes"}, "AOF anew": {"BGREWRITEAOF"}, "RDB": {"BGSAVE"},
	} {
		t.Run(name, func(t *testing.T) {
			appendonly := "no"
			if name == "AOF anew" {
				appendonly = "yes"
			}
			s := harness.Start(t, harness.WithConfig("appendonly "+appendonly))
			c := s.Dial()
			for i := range 100 {
				require.Equal(t, "OK", c.Do("SET", i, "v").Str)
			}
			require.Equal(t, "OK", c.Do("CONFIG", "SET", "save", "", "rdb-key-save-delay", 10_000).Str)
			first := add(t, c, "q", "1", 0, "RETRY", 0)
			require.NotEqual(t, byte('-'), c.Do(write...).Kind)
			harness.Await(t, 5*time.Second, "it to write", func() bool {
				return s.Info("persistence", "aof_rewrite_in_progress") == "1" || s.Info("persistence", "rdb_bgsave_in_progress") == "1"
			})
			require.Equal(t, "OK", c.Do("JOBMESH", "SHUTDOWN").Str)
			second := add(t, c, "q", "2", 0, "RETRY", 0)
			s.AwaitEnd()
			assert.Contains(t, s.Log(), "JOBMESH SHUTDOWN waits for the end of the save or the AOF rewrite that is under way")
			if name == "first AOF" {
				s.Move("appendonly no", "appendonly yes")
			}
			s.Restart()
			c = s.Dial()
			assert.Equal(t, []string{first, second}, []string{get(t, c, "q"), get(t, c, "q")})
		})
	}
}

// A client waits for a job, and is gone before it is given the job. So the job waits, also after a restart.
func TestUndeliveredAndRestarted(t *testing.T) {
	for _, how := range []string{"stop", "kill"} {
		t.Run(how, func(t *testing.T) {
			s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
			c, w := s.Dial(), s.Dial()
			id := w.Do("CLIENT", "ID").Int()
			w.Send("GETJOB", "FROM", "q")
			harness.Await(t, 5*time.Second, "the client to wait", func() bool {
				return s.Info("jobmesh", "jobmesh_blocked_clients") == "1"
			})
			c.Do("MULTI")
			c.Do("ADDJOB", "q", "b", 0, "RETRY", 300)
			c.Do("CLIENT", "KILL", "ID", id)
			reply := c.Do("EXEC")
			require.Len(t, reply.Elems, 2)
			job := reply.Elems[0].Str
			harness.Await(t, 5*time.Second, "the job to wait again", func() bool { return state(c, job) == "queued" })
			if how == "stop" {
				s.Stop()
			} else {
				s.Kill()
			}
			s.Restart()
			c = s.Dial()
			assert.Equal(t, "queued", state(c, job), "it waited, and nobody had it")
			assert.Equal(t, int64(1), c.Do("QLEN", "q").Int())
			assert.Empty(t, c.Do("WIP", "q").Elems)
		})
	}
}
