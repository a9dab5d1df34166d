package single

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

const flushedQueues = 2000

// manyQueues makes very many queues, one of which is long.
func manyQueues(c *harness.Conn) {
	for i := range flushedQueues {
		c.Later("ADDJOB", fmt.Sprint("q", i), "body", 0)
	}
	for range flushedQueues {
		c.Later("ADDJOB", "long", "body", 0, "RETRY", 1)
	}
	for range 2 * flushedQueues {
		c.Receive()
	}
}

// all runs commands in MULTI.
func all(t *testing.T, c *harness.Conn, commands ...[]any) []harness.Value {
	t.Helper()
	c.Do("MULTI")
	for _, args := range commands {
		require.Equal(t, "QUEUED", c.Do(args...).Str, "%v", args)
	}
	v := c.Do("EXEC")
	require.Len(t, v.Elems, len(commands), "%v", v)
	return v.Elems
}

func awaitKeys(t *testing.T, s *harness.Server, keys ...string) {
	t.Helper()
	harness.Await(t, 20*time.Second, fmt.Sprintf("the keys %v and no others", keys), func() bool {
		have := s.Do("KEYS", "*").Strings()
		slices.Sort(have)
		return slices.Equal(have, keys)
	})
}

// FLUSH and RESET of very many queues answer when the keys are gone.
func TestFlushOfVeryManyQueues(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	for _, flush := range [][]any{{"JOBMESH", "FLUSH"}, {"JOBMESH", "CLUSTER", "RESET"}, {"JOBMESH", "CLUSTER", "RESET", "HARD"}} {
		manyQueues(c)
		c.Do("SET", "other", "x")
		require.Equal(t, "OK", c.Do(flush...).Str)
		assert.Equal(t, []string{"other"}, c.Do("KEYS", "*").Strings(), "%v", flush)
		assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_registered_jobs"))
	}
}

// A flush doesn't reach queues in other databases. RESTORE leaves out the jobs of such a queue,
// here, in the log and at replicas. The jobs are known when their queue is back.
func TestRestoreAfterFlush(t *testing.T) {
	homes := map[string][][]any{"SWAPDB": {{"SWAPDB", 0, 1}}, "MOVE": {{"SELECT", 1}, {"MOVE", "q", 0}}}
	for name, away := range map[string][]any{"SWAPDB": {"SWAPDB", 0, 1}, "MOVE": {"MOVE", "q", 1}} {
		t.Run(name, func(t *testing.T) {
			back := homes[name]
			s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
			replica := harness.Start(t, harness.WithReplicaOf(s))
			replica.AwaitSync()
			c := s.Dial()
			id := add(t, c, "q", "b", 0)
			dump := c.Do("DUMP", "q").Str
			c.Do(away...)
			require.Equal(t, "OK", c.Do("JOBMESH", "FLUSH").Str)
			require.Equal(t, "OK", c.Do("RESTORE", "q", 0, dump).Str)
			assert.True(t, c.Do("SHOW", id).Null)
			require.Equal(t, int64(1), c.Do("WAIT", 1, 10_000).Int())
			s.Kill()
			require.Equal(t, "OK", replica.Do("REPLICAOF", "NO", "ONE").Str)
			s.Restart()
			for where, at := range map[string]*harness.Server{"restarted": s, "promoted": replica} {
				assert.True(t, at.Do("SHOW", id).Null, where)
				c := at.Dial()
				c.Do("DEL", "q")
				for _, args := range back {
					require.NotEqual(t, byte('-'), c.Do(args...).Kind, where)
				}
				v := at.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q")
				require.Len(t, v.Elems, 1, "%s: %v", where, v)
				assert.Equal(t, id, v.Elems[0].Elems[1].Str, where)
			}
		})
	}
}

// While the keys of flushed queues are still there, their jobs are gone already: for clients,
// in each file that is saved, at each replica. Jobs that are added after the flush stay.
func TestAnEndInTheMiddleOfAFlush(t *testing.T) {
	aof, rdb := "appendonly yes", "appendonly no"
	kill := func(s *harness.Server) *harness.Server {
		s.Kill()
		s.Restart()
		return s
	}
	for name, c := range map[string]struct {
		conf []string
		end  func(t *testing.T, s, replica *harness.Server) *harness.Server
	}{
		"none": {[]string{aof}, func(t *testing.T, s, _ *harness.Server) *harness.Server {
			require.Equal(t, "OK", s.Do("CLIENT", "UNPAUSE").Str)
			return s
		}},
		"kill": {[]string{aof, "appendfsync always"}, func(t *testing.T, s, _ *harness.Server) *harness.Server { return kill(s) }},
		"AOF rewritten, kill": {[]string{aof}, func(t *testing.T, s, _ *harness.Server) *harness.Server {
			s.RewriteAOF()
			return kill(s)
		}},
		"AOF rewritten without preamble, kill": {[]string{aof, "aof-use-rdb-preamble no"}, func(t *testing.T, s, _ *harness.Server) *harness.Server {
			s.RewriteAOF()
			return kill(s)
		}},
		"RDB saved, kill": {[]string{rdb}, func(t *testing.T, s, _ *harness.Server) *harness.Server {
			s.Save()
			return kill(s)
		}},
		"DEBUG RELOAD": {[]string{rdb, "enable-debug-command yes"}, func(t *testing.T, s, _ *harness.Server) *harness.Server {
			require.Equal(t, "OK", s.Do("DEBUG", "RELOAD").Str)
			require.Equal(t, "OK", s.Do("CLIENT", "UNPAUSE").Str)
			return s
		}},
		"its replica goes on": {[]string{aof}, func(t *testing.T, s, replica *harness.Server) *harness.Server {
			s.Kill()
			require.Equal(t, "OK", replica.Do("REPLICAOF", "NO", "ONE").Str)
			return replica
		}},
		"a replica that came in the middle goes on": {[]string{aof}, func(t *testing.T, s, _ *harness.Server) *harness.Server {
			late := harness.Start(t, harness.WithReplicaOf(s), harness.WithConfig(aof))
			late.AwaitSync()
			s.Kill()
			require.Equal(t, "OK", late.Do("REPLICAOF", "NO", "ONE").Str)
			return late
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.WithConfig(append(c.conf, "repl-diskless-sync-delay 0")...))
			replica := harness.Start(t, harness.WithReplicaOf(s), harness.WithConfig("appendonly yes"))
			replica.AwaitSync()
			d := s.Dial()
			manyQueues(d)
			// While writes are paused the rest of the keys stay.
			id := all(t, d, []any{"JOBMESH", "FLUSH"}, []any{"ADDJOB", "q7", "new", 0}, []any{"ADDJOB", "long", "new", 0}, []any{"CLIENT", "PAUSE", 600_000, "WRITE"})[1].Str
			left := d.Do("DBSIZE").Int()
			require.Greater(t, left, int64(1000), "keys are left")
			require.Less(t, left, int64(flushedQueues-100), "some are gone")
			harness.Await(t, 20*time.Second, "the replica to follow", func() bool { return !replica.Do("SHOW", id).Null && replica.Do("DBSIZE").Is(left) })
			for _, x := range []*harness.Server{s, replica} {
				assert.Equal(t, "2", x.Info("jobmesh", "jobmesh_registered_jobs"))
				assert.Len(t, x.Do("JSCAN", 0, "COUNT", 10_000).Elems[1].Elems, 2)
			}
			for _, name := range d.Do("KEYS", "q*").Strings() {
				want := int64(0)
				if name == "q7" {
					want = 1
				}
				require.Equal(t, want, d.Do("QLEN", name).Int(), name)
			}
			s = c.end(t, s, replica)
			awaitKeys(t, s, "long", "q7")
			assert.Equal(t, "queued", state(s.Dial(), id))
			assert.Equal(t, "2", s.Info("jobmesh", "jobmesh_registered_jobs"))
			assert.Equal(t, int64(1), s.Do("QLEN", "long").Int())
			if name == "none" {
				awaitKeys(t, replica, "long", "q7")
				assert.False(t, replica.Do("SHOW", id).Null)
				s = kill(s)
				awaitKeys(t, s, "long", "q7")
			}
		})
	}
}

// A flush ends windows, and frees the locks of its jobs, in each file that is saved before the locks
// are removed, and at each replica. A window that begins after the flush stays.
func TestAFlushEndsLocksInWhatIsSaved(t *testing.T) {
	aof := []string{"appendonly yes", "appendfsync always"}
	unpause := func(s *harness.Server) { require.Equal(t, "OK", s.Do("CLIENT", "UNPAUSE").Str) }
	kill := func(s *harness.Server) *harness.Server {
		s.Kill()
		s.Restart()
		return s
	}
	promote := func(s, replica *harness.Server) *harness.Server {
		s.Kill()
		require.Equal(t, "OK", replica.Do("REPLICAOF", "NO", "ONE").Str)
		return replica
	}
	reload := func(t *testing.T, s *harness.Server) *harness.Server {
		require.Equal(t, "OK", s.Do("DEBUG", "RELOAD").Str)
		unpause(s)
		return s
	}
	rewritten := func(t *testing.T, s *harness.Server) *harness.Server {
		s.RewriteAOF()
		return kill(s)
	}
	for name, c := range map[string]struct {
		conf  []string
		flush []any
		end   func(t *testing.T, s *harness.Server) *harness.Server
	}{
		"FLUSHALL, DEBUG RELOAD":      {nil, []any{"FLUSHALL"}, reload},
		"FLUSHDB, DEBUG RELOAD":       {nil, []any{"FLUSHDB"}, reload},
		"JOBMESH FLUSH, DEBUG RELOAD": {nil, []any{"JOBMESH", "FLUSH"}, reload},
		"RESET, DEBUG RELOAD":         {nil, []any{"JOBMESH", "CLUSTER", "RESET"}, reload},
		"FLUSHALL, DEBUG LOADAOF": {aof, []any{"FLUSHALL"}, func(t *testing.T, s *harness.Server) *harness.Server {
			require.Equal(t, "OK", s.Do("DEBUG", "LOADAOF").Str)
			unpause(s)
			return s
		}},
		"FLUSHALL, RDB saved, kill": {nil, []any{"FLUSHALL"}, func(t *testing.T, s *harness.Server) *harness.Server {
			s.Save()
			return kill(s)
		}},
		"FLUSHALL, AOF rewritten, kill":                  {aof, []any{"FLUSHALL"}, rewritten},
		"FLUSHALL, AOF rewritten without preamble, kill": {append([]string{"aof-use-rdb-preamble no"}, aof...), []any{"FLUSHALL"}, rewritten},
		"FLUSHALL, a new replica goes on": {nil, []any{"FLUSHALL"}, func(t *testing.T, s *harness.Server) *harness.Server {
			replica := harness.Start(t, harness.WithReplicaOf(s))
			replica.AwaitSync()
			return promote(s, replica)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.WithConfig(append(c.conf, "enable-debug-command yes", "repl-diskless-sync-delay 0")...))
			d := s.Dial()
			addMany := func() { // the locks of so many jobs aren't all looked at in one tick
				for i := range 1000 {
					d.Later("ADDJOB", "q", "b", 0, "UNIQUE", "window", "TTL", 1000, "KEY", i)
					d.Later("ADDJOB", "until", "b", 0, "UNIQUE", "until-processed", "KEY", i)
				}
				for range 2 * 1000 {
					v := d.Receive()
					require.Equal(t, byte('+'), v.Kind, "%v", v)
				}
			}
			addMany()
			later := []any{"ADDJOB", "q", "b", 0, "UNIQUE", "window", "TTL", 1000, "KEY", "later"}
			// While writes are paused no lock is removed.
			all(t, d, c.flush, later, []any{"CLIENT", "PAUSE", 600_000, "WRITE"})
			s = c.end(t, s)
			d = s.Dial()
			assert.True(t, d.Do(later...).NullString(), "a window that began after the flush")
			addMany()
		})
	}
	t.Run("a replica saves, and goes on", func(t *testing.T) {
		t.Parallel()
		s := harness.Start(t, harness.WithConfig("repl-diskless-sync-delay 0"))
		replica := harness.Start(t, harness.WithReplicaOf(s))
		replica.AwaitSync()
		const window = "UNIQUE window TTL 1000 KEY k"
		d := s.Dial()
		require.NotEmpty(t, addUnique(t, d, "q", "b", window))
		id := all(t, d, []any{"FLUSHALL"}, []any{"ADDJOB", "q", "b", 0}, []any{"CLIENT", "PAUSE", 600_000, "WRITE"})[1].Str
		harness.Await(t, 20*time.Second, "the replica to follow", func() bool { return !replica.Do("SHOW", id).Null })
		replica.Save()
		s = promote(s, kill(replica))
		assert.NotEmpty(t, addUnique(t, s.Dial(), "q", "b", window))
	})
}

// The server's own commands find an empty queue in the key of a queue that was flushed. They do the
// same at a replica, and when the log is read.
func TestLongKeysOfFlushedQueues(t *testing.T) {
	for name, c := range map[string]struct {
		do   string // with the names of keys that are left in k
		keys []string
	}{
		"DEL and SET":  {`redis.call('DEL', k[1]) redis.call('SET', k[2], 'x') redis.call('RENAME', k[2], 'x')`, []string{"x"}},
		"RENAME":       {`redis.call('SET', 'x', 'x') redis.call('RENAME', k[1], 'x') redis.call('ADDJOB', 'x', 'b', 0) redis.call('RENAME', k[2], k[3]) redis.call('DEL', k[3])`, []string{"x"}},
		"RENAME aside": {`redis.call('ADDJOB', k[1], 'b', 0) redis.call('RENAME', k[1], 'x')`, []string{"x"}},
		"RESTORE":      {`local d = redis.call('DUMP', k[1]) redis.call('RESTORE', 'x', 0, d) redis.call('RESTORE', k[1], 0, d, 'REPLACE') redis.call('DEL', k[1]) redis.call('ADDJOB', 'x', 'b', 0)`, []string{"x"}},
		"EXPIRE":       {`redis.call('PEXPIRE', k[1], 1) redis.call('PEXPIRE', k[2], 100000) redis.call('ADDJOB', k[2], 'b', 0) redis.call('RENAME', k[2], 'x')`, []string{"x"}},
		"MOVE":         {`redis.call('MOVE', k[1], 1) redis.call('SELECT', 1) redis.call('MOVE', k[1], 0) redis.call('SELECT', 0) redis.call('ADDJOB', k[1], 'b', 0) redis.call('RENAME', k[1], 'x')`, []string{"x"}},
		"SWAPDB":       {`redis.call('SWAPDB', 0, 1) redis.call('ADDJOB', 'x', 'b', 0) redis.call('SWAPDB', 1, 0) redis.call('SWAPDB', 1, 0) redis.call('FLUSHDB') redis.call('SWAPDB', 0, 1)`, nil},
		"FLUSHDB":      {`redis.call('FLUSHDB') redis.call('ADDJOB', 'x', 'b', 0)`, []string{"x"}},
		"FLUSHALL":     {`redis.call('FLUSHALL', 'ASYNC') redis.call('ADDJOB', 'x', 'b', 0)`, []string{"x"}},
		"again":        {`redis.call('ADDJOB', k[1], 'b', 0) redis.call('JOBMESH', 'FLUSH') redis.call('ADDJOB', 'x', 'b', 0) redis.call('ADDJOB', k[1], 'b', 0) redis.call('DEL', k[1])`, []string{"x"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.WithConfig("appendonly yes", "repl-diskless-sync-delay 0"))
			replica := harness.Start(t, harness.WithReplicaOf(s))
			replica.AwaitSync()
			d := s.Dial()
			manyQueues(d)
			v := d.Do("EVAL", "redis.call('JOBMESH', 'FLUSH') local k = redis.call('KEYS', '*') "+c.do+" return #k", 0)
			require.Greater(t, v.Int(), int64(1000), "%v", v)
			awaitKeys(t, s, c.keys...)
			awaitKeys(t, replica, c.keys...)
			jobs := s.Info("jobmesh", "jobmesh_registered_jobs")
			harness.Await(t, 10*time.Second, "as many jobs at the replica", func() bool { return replica.Info("jobmesh", "jobmesh_registered_jobs") == jobs })
			s.Kill()
			s.Restart()
			awaitKeys(t, s, c.keys...)
			// A tick frees the jobs that a deletion in the log has removed.
			harness.Await(t, 10*time.Second, "as many jobs as before", func() bool { return s.Info("jobmesh", "jobmesh_registered_jobs") == jobs })
			assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
		})
	}
}

// A promoted replica removes the keys of empty queues bit by bit. A job can be added under such a
// key at once: it isn't removed with the queue that was there before.
func TestAJobTakesTheKeyOfAnEmptyQueue(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("repl-diskless-sync-delay 0"))
	replica := harness.Start(t, harness.WithReplicaOf(s), harness.WithConfig("appendonly yes", "appendfsync always", "replica-read-only no"))
	replica.AwaitSync()
	harness.Await(t, 10*time.Second, "the AOF to begin", func() bool {
		return replica.Info("persistence", "aof_rewrite_in_progress")+replica.Info("persistence", "aof_rewrite_scheduled") == "00"
	})
	for _, q := range []string{"q", "other"} {
		require.Equal(t, int64(1), s.Do("ACKJOB", s.Do("ADDJOB", q, "body", 0).Str).Int())
	}
	harness.Await(t, 10*time.Second, "the replica to follow", func() bool {
		return replica.Do("DBSIZE").Is(2) && replica.Info("jobmesh", "jobmesh_registered_jobs") == "0"
	})
	id := all(t, replica.Dial(), []any{"REPLICAOF", "NO", "ONE"}, []any{"ADDJOB", "q", "body", 0})[1].Str
	awaitKeys(t, replica, "q")
	s.Kill() // by its configuration the other one would follow it again
	replica.Kill()
	replica.Restart()
	assert.Equal(t, "queued", state(replica.Dial(), id))
}
