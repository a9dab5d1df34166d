package single

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// In a server event nothing may be logged: otherwise the server would also log, and replicate, the
// command that caused the event.
func TestPromotionIsNotReplicated(t *testing.T) {
	soon := harness.WithConfig("repl-diskless-sync-delay 0", "appendonly yes")
	master := harness.Start(t, soon)
	first := harness.Start(t, soon, harness.WithReplicaOf(master))
	second := harness.Start(t, soon, harness.WithReplicaOf(master))
	below := harness.Start(t, soon, harness.WithReplicaOf(first))
	for _, s := range []*harness.Server{first, second, below} {
		s.AwaitSync()
	}
	c := master.Dial()
	add(t, c, "q", "b", 0, "UNIQUE", "during-processing")
	held := get(t, c, "q")
	waiting := add(t, c, "q", "b2", 0)
	for _, s := range []*harness.Server{first, second, below} {
		harness.Await(t, 10*time.Second, "the jobs to reach the replica", func() bool { return !s.Do("SHOW", waiting).Null })
	}
	assert.Equal(t, "OK", first.Do("REPLICAOF", "NO", "ONE").Str)
	// This command may come before the first timer.
	id := add(t, first.Dial(), "q", "b3", 0)
	assert.Equal(t, "OK", second.Do("REPLICAOF", "127.0.0.1", first.Port).Str)
	assert.Equal(t, "OK", master.Do("REPLICAOF", "127.0.0.1", first.Port).Str)
	for _, s := range []*harness.Server{second, master, below} {
		s.AwaitSync()
		harness.Await(t, 10*time.Second, "the new master's job", func() bool { return !s.Do("SHOW", id).Null })
		assert.Equal(t, "slave", s.Info("replication", "role"))
		assert.False(t, s.Do("SHOW", held).Null)
	}
	for _, s := range []*harness.Server{first, second, below, master} {
		assert.NotContains(t, strings.ToUpper(s.Appended()), "REPLICAOF")
		assert.NotContains(t, strings.ToUpper(s.Appended()), "PSYNC")
	}
	// The promotion isn't in the configuration, so it ends with the process.
	first.Kill()
	first.Restart()
	assert.Equal(t, "slave", first.Info("replication", "role"), "its redis.conf names a master")
}

// FAILOVER promotes the replica by PSYNC, and demotes the master while clients wait in
// all kinds of commands.
func TestFailoverBothWays(t *testing.T) {
	t.Parallel()
	soon := harness.WithConfig("repl-diskless-sync-delay 0", "appendonly yes")
	a := harness.Start(t, soon)
	b := harness.Start(t, soon, harness.WithReplicaOf(a))
	b.AwaitSync()
	from, to := a, b
	var ids []string
	for round := range 4 {
		c := from.Dial()
		add(t, c, "q", "b", 0, "UNIQUE", "during-processing", "KEY", round, "RETRY", 300)
		get(t, c, "q")
		ids = append(ids, add(t, c, "held", "b", 0, "RETRY", 0, "DELAY", 100))
		waiting := from.Dial()
		waiting.Send("GETJOB", "FROM", "nothing")
		lock := from.Dial()
		require.Equal(t, byte(':'), lock.Do("LOCK.ACQUIRE", "l", "o", 60000).Kind)
		lock.Send("LOCK.ACQUIRE", "l", "other", 60000, "WAIT", 60000)
		require.Equal(t, "OK", from.Do("FAILOVER").Str)
		harness.Await(t, 20*time.Second, "the replica to be the master", func() bool { return to.Info("replication", "role") == "master" })
		from.AwaitSync()
		after := add(t, to.Dial(), "q2", "b", 0)
		ids = append(ids, after)
		harness.Await(t, 10*time.Second, "the old master to follow", func() bool { return !from.Do("SHOW", after).Null })
		require.Equal(t, byte(':'), to.Do("LOCK.CLEAR", "ALL").Kind)
		waiting.Close()
		lock.Close()
		for _, s := range []*harness.Server{a, b} {
			assert.NotContains(t, strings.ToUpper(s.Appended()), "PSYNC")
			for _, id := range ids {
				assert.False(t, s.Do("SHOW", id).Null, id)
			}
		}
		from, to = to, from
	}
}

// A replica knows each job, its state and its worker as they were replicated last, but it doesn't
// know the queues' order. When it is promoted it has the queues.
func TestAReplicaShowsJobsAndNoQueues(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	add(t, c, "q", "waits", 0)
	r := harness.Start(t, harness.WithReplicaOf(s))
	r.AwaitSync()
	waits := add(t, c, "q", "waits too", 0)
	has := add(t, c, "w", "b", 0)
	require.Len(t, c.Do("GETJOB", "NOHANG", "WORKER", "ada", "FROM", "w").Elems, 1)
	r.AwaitStream(s)
	worker := func() string { return r.Do("SHOW", has).Field("worker").Str }
	assert.Equal(t, "ada", worker())
	assert.Equal(t, "active", r.Do("SHOW", has).Field("state").Str)
	assert.Equal(t, "queued", r.Do("SHOW", waits).Field("state").Str)
	assert.Len(t, r.Do("JSCAN", "QUEUE", "q", "STATE", "queued", "BUSYLOOP").Elems[1].Elems, 2)
	assert.True(t, r.Do("QLEN", "q").Is(0))
	require.Equal(t, int64(1), c.Do("NACK", has).Int())
	r.AwaitStream(s)
	assert.Empty(t, worker(), "she has it no more")
	get(t, c, "w")
	require.Len(t, c.Do("GETJOB", "NOHANG", "WORKER", "bob", "FROM", "q").Elems, 1)
	r.AwaitStream(s)
	assert.Empty(t, worker())
	require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
	harness.Await(t, 10*time.Second, "the queues to be there", func() bool { return r.Do("QLEN", "q").Is(1) })
	assert.Equal(t, "bob", wip(t, r.Dial(), "q")[0].worker)
}

// The module asks the server in ways that rename-command can't hide, or assumes the worst.
func TestRenamedCommands(t *testing.T) {
	t.Run("CONFIG", func(t *testing.T) {
		s := harness.Start(t, harness.WithConfig(`rename-command CONFIG ""`, "maxmemory 20mb", "maxmemory-policy allkeys-lru", "appendonly yes", "jobmesh.cluster-port "+strconv.Itoa(harness.FreePort(t))))
		assert.True(t, s.Do("ADDJOB", "q", "b", 0).Err("EVICTION"))
		assert.Contains(t, s.Do("JOBMESH", "CLUSTER", "INFO").Str, "cluster_state:ok")
	})
	t.Run("FUNCTION", func(t *testing.T) {
		s := harness.Start(t, harness.WithConfig(`rename-command FUNCTION hidden`))
		v := s.Do("JOBMESH", "LUA", "LOAD")
		assert.True(t, v.Err("NOPERM the server has no 'function|load' command, and this does the same: rename-command has hidden it"), "%v", v)
		s.Do("ACL", "SETUSER", "w", "on", "nopass", "~*", "+@all", "-info")
		c := s.Dial()
		c.Do("AUTH", "w", "")
		assert.True(t, c.Do("JOBMESH", "INFO", "server").Err("NOPERM this user has no permissions to run the 'info' command"))
	})
	t.Run("all that can be", func(t *testing.T) {
		s := harness.Start(t, harness.WithConfig(`rename-command CONFIG ""`, `rename-command UNLINK ""`, `rename-command DEL ""`, "appendonly yes", "appendfsync always", "jobmesh.cluster-port "+strconv.Itoa(harness.FreePort(t))))
		c := s.Dial()
		for _, q := range []string{"a", "b"} {
			add(t, c, q, "b", 0)
		}
		require.Equal(t, "OK", c.Do("JOBMESH", "FLUSH").Str)
		id := add(t, c, "c", "b", 0)
		s.Kill()
		s.Restart()
		c = s.Dial()
		assert.Equal(t, []string{"c"}, c.Do("KEYS", "*").Strings(), "what was flushed stays flushed")
		assert.False(t, c.Do("SHOW", id).Null)
	})
}

// Effects that may not be logged now are logged later, in their order.
func TestKeptEffects(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	c := s.Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 1)
	get(t, c, "q")
	require.Equal(t, "OK", c.Do("CLIENT", "PAUSE", 1500, "WRITE").Str)
	assert.True(t, s.Do("JOBMESH", "CLUSTER", "RESET").Err("TRYAGAIN"))
	assert.True(t, s.Do("JOBMESH", "CLUSTER", "LEAVING", "yes").Err("TRYAGAIN"))
	harness.Await(t, 10*time.Second, "the job to be queued again", func() bool { return state(s.Dial(), id) == "queued" })
	require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "RESET").Str)
	s.Kill()
	s.Restart()
	assert.Empty(t, s.Do("KEYS", "*").Elems)
}

// A command that brings a queue delivers nothing before the command itself is logged. A delivery
// that is logged before it would find no such job in the log and at replicas, and the job would be
// delivered again.
func TestQueueComesBackToAWaitingClient(t *testing.T) {
	ways := map[string]struct {
		db          int
		away, again []any
	}{
		"MOVE":    {1, []any{"MOVE", "q", 1}, []any{"MOVE", "q", 0}},
		"SWAPDB":  {0, []any{"SWAPDB", 0, 1}, []any{"SWAPDB", 1, 0}},
		"RENAME":  {0, []any{"RENAME", "q", "p"}, []any{"RENAME", "p", "q"}},
		"RESTORE": {0, []any{"DEL", "q"}, nil},
	}
	jobs := map[string][]any{
		"at most once": {"RETRY", 0},
		"unique":       {"RETRY", 100, "UNIQUE", "before-and-during-processing", "KEY", "7"},
	}
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always", "repl-diskless-sync-delay 0"))
	r := harness.Start(t, harness.WithReplicaOf(s))
	r.AwaitSync()
	c := s.Dial()
	d := r.Dial()
	var delivered []string
	for name, way := range ways {
		for kind, options := range jobs {
			for _, within := range []string{"", "MULTI", "EVAL"} {
				what := name + " " + within + " of a job " + kind
				id := add(t, c, append([]any{"q", "x", 0}, options...)...)
				again := way.again
				if name == "RESTORE" {
					again = []any{"RESTORE", "q", 0, c.Do("DUMP", "q").Str}
				}
				require.NotEqual(t, byte('-'), c.Do(way.away...).Kind, what)
				w := s.Dial()
				w.Send("GETJOB", "FROM", "q")
				harness.Await(t, 10*time.Second, "the client to wait", func() bool {
					return s.Info("jobmesh", "jobmesh_blocked_clients") == "1"
				})
				c.Do("SELECT", way.db)
				switch within {
				case "":
					require.NotEqual(t, byte('-'), c.Do(again...).Kind, what)
				case "MULTI":
					c.Do("MULTI")
					c.Do(again...)
					require.Len(t, c.Do("EXEC").Elems, 1, what)
				case "EVAL":
					v := c.Do(append([]any{"EVAL", "return redis.call(unpack(ARGV))", 0}, again...)...)
					require.NotEqual(t, byte('-'), v.Kind, "%s: %v", what, v)
				}
				c.Do("SELECT", 0)
				got := w.Receive()
				require.Len(t, got.Elems, 1, what)
				require.Equal(t, id, got.Elems[0].Elems[1].Str, what)
				w.Close()
				harness.Await(t, 10*time.Second, what+": the delivery to reach the replica", func() bool { return state(d, id) == "active" })
				if kind == "unique" {
					require.Equal(t, int64(1), c.Do("ACKJOB", id).Int()) // the key is free for the next
				} else {
					delivered = append(delivered, id)
				}
			}
		}
	}
	// The server crashes between the delivery of a unique job and the job's end.
	id := add(t, c, append([]any{"q", "x", 0}, jobs["unique"]...)...)
	c.Do("MOVE", "q", 1)
	w := s.Dial()
	w.Send("GETJOB", "FROM", "q")
	c.Do("SELECT", 1)
	c.Do("MOVE", "q", 0)
	c.Do("SELECT", 0)
	require.Len(t, w.Receive().Elems, 1)
	delivered = append(delivered, id)
	s.Kill()
	s.Restart()
	c = s.Dial()
	for _, id := range delivered {
		assert.Equal(t, "active", state(c, id))
	}
	assert.Empty(t, c.Do("GETJOB", "NOHANG", "FROM", "q").Elems, "delivered a second time")
}

// A queue comes home and goes away again in one transaction, or before the effects of its coming
// home are logged. So these are logged later, when the jobs are in another database. All the same
// the log and the replicas have the same jobs, and no at-most-once job is delivered twice.
func TestLongQueueMovesInATransaction(t *testing.T) {
	const home, away, some = "MOVE q 0", "MOVE q 1", "GETJOB NOHANG COUNT 2 FROM q" // moved from the other one
	crashes := map[string]struct {
		config []string
		exact  bool
	}{
		"always":   {[]string{"appendonly yes", "appendfsync always"}, true},
		"everysec": {[]string{"appendonly yes"}, false},
	}
	// Each trip begins in database 1, where the queue has been since before the start.
	trips := map[string][]string{
		"home":                            {"MULTI", home, "EXEC"},
		"home and away":                   {"MULTI", home, "SELECT 0", away, "EXEC"},
		"home, then away":                 {home, "SELECT 0", "MULTI", away, "EXEC"},
		"home, away and home":             {"MULTI", home, "SELECT 0", away, "SELECT 1", home, "EXEC"},
		"home, a delivery, and away":      {"MULTI", home, "SELECT 0", some, away, "EXEC"},
		"home, then a delivery, and away": {home, "SELECT 0", "MULTI", some, away, "EXEC"},
		"home, an addition, and away":     {"MULTI", home, "SELECT 0", "ADDJOB q new 0", away, "EXEC"},
		"swapped":                         {"MULTI", "SWAPDB 0 1", "EXEC"},
		"swapped and swapped back":        {"MULTI", "SWAPDB 0 1", "SWAPDB 0 1", "EXEC"},
		"home in a script, then away":     {"EVAL redis.call('MOVE','q',0) 0", "SELECT 0", "MULTI", away, "EXEC"},
	}
	for how, e := range crashes {
		for name, trip := range trips {
			t.Run(how+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := harness.Start(t, harness.WithConfig(e.config...))
				logged := func() {
					if e.exact {
						s.AwaitMark()
					} else {
						harness.Await(t, 10*time.Second, "the log to be written", func() bool { return s.Info("persistence", "aof_buffer_length") == "0" })
					}
				}
				logged()
				c := s.Dial()
				once, often := add(t, c, "q", "b", 0, "RETRY", 0), add(t, c, "q", "b", 0, "RETRY", 300)
				key := []any{"b", 0, "RETRY", 300, "UNIQUE", "until-processed", "SCOPE", "mesh", "KEY", "k"}
				loses := add(t, c, append([]any{"q"}, key...)...)
				taken := []string{add(t, c, "t", "b", 0, "RETRY", 0), add(t, c, "t", "b", 0, "RETRY", 300, "UNIQUE", "during-processing", "KEY", "t")}
				require.Len(t, c.Do("GETJOB", "NOHANG", "COUNT", 2, "FROM", "t").Elems, 2)
				require.Equal(t, int64(1), c.Do("MOVE", "q", 1).Int())
				has := add(t, c, append([]any{"other"}, key...)...)
				logged()
				s.Kill()
				s.Restart()
				logged()
				r := harness.Start(t, harness.WithReplicaOf(s))
				r.AwaitSync()

				c = s.Dial()
				c.Send("SELECT", 1)
				before := len(s.Appended())
				for _, line := range trip {
					words := strings.Fields(line)
					args := make([]any, len(words))
					for i, w := range words {
						args[i] = w
					}
					c.Send(args...)
				}
				had := map[string]bool{}
				note := func(jobs harness.Value, had map[string]bool) {
					for _, j := range jobs.Elems {
						if len(j.Elems) == 3 {
							had[j.Elems[1].Str] = true
						}
					}
				}
				for range 1 + len(trip) {
					v := c.Receive()
					require.NotEqual(t, byte('-'), v.Kind, "%v", v)
					for _, x := range v.Elems { // of EXEC
						note(x, had)
					}
				}
				require.Equal(t, strings.Contains(name, "delivery"), len(had) > 0, "%v", had)
				c.Do("SHOW", once) // a command logs the kept effects before it runs
				logged()
				if name == "home and away" {
					log := s.Appended()[before:]
					assert.Greater(t, strings.LastIndex(log, "SETJOB"), strings.LastIndex(log, "EXEC"), "it is logged behind")
				}
				r.AwaitStream(s)
				require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
				s.Kill()
				s.Restart()
				for what, x := range map[string]*harness.Server{"the server": s, "the replica": r} {
					c := x.Dial()
					c.Do("SELECT", 1)
					for _, q := range c.Do("KEYS", "*").Strings() {
						require.Equal(t, int64(1), c.Do("MOVE", q, 0).Int())
					}
					c.Do("SELECT", 0)
					more := map[string]bool{}
					note(c.Do("GETJOB", "NOHANG", "COUNT", 100, "FROM", "q", "t", "other"), more)
					for _, id := range []string{often, loses, has} {
						assert.True(t, had[id] || more[id], "%s lacks a job", what)
					}
					assert.Equal(t, e.exact && x == s && !had[once], more[once], "%s: a job that may be given once", what)
					for _, id := range taken {
						assert.False(t, more[id], "%s gives a job twice", what)
					}
					keeps := has
					if name == "swapped" {
						keeps = loses // the other job was away meanwhile
					}
					assert.Equal(t, keeps, c.Do(append(append([]any{"ADDJOB", "q"}, key...), "ONCONFLICT", "return")...).Str, "%s: who has the key", what)
					assert.NotContains(t, x.Log(), "SETJOB")
				}
			})
		}
	}
}

// An AOF that was written anew while its server was a replica has the data that is in no key. If
// the module can't learn that the AOF begins without an RDB, the AOF lacks this data, and the server
// logs it when it is promoted.
func TestWhatIsInNoKeyIsInAReplicasAOF(t *testing.T) {
	log := []string{"appendonly yes", "appendfsync always", "aof-use-rdb-preamble no", "repl-diskless-sync-delay 0"}
	hold := func(t *testing.T, s *harness.Server) int64 {
		require.Equal(t, "OK", s.Do("QCONFIG", "SET", "mail:*", "RETRY", 30).Str)
		token := s.Do("LOCK.ACQUIRE", "nightly", "ann", 600_000)
		require.Equal(t, byte(':'), token.Kind, "%v", token)
		return token.Int()
	}
	rewritten := func(t *testing.T, more ...string) (*harness.Server, int64) {
		s := harness.Start(t, harness.WithConfig(append(more, log...)...))
		token := hold(t, s)
		require.Equal(t, "OK", s.Do("REPLICAOF", "127.0.0.1", harness.FreePort(t)).Str)
		s.RewriteAOF()
		return s, token
	}
	promoted := func(t *testing.T, s *harness.Server) {
		require.Equal(t, "OK", s.Do("REPLICAOF", "NO", "ONE").Str)
		harness.Await(t, 10*time.Second, "both to be logged", func() bool {
			log := s.Appended()
			return strings.Contains(log, "SETLOCK") && strings.Contains(log, "QCONFIG")
		})
	}
	for name, replica := range map[string]func(t *testing.T) (s *harness.Server, token int64){
		"after a full synchronization": func(t *testing.T) (*harness.Server, int64) {
			master := harness.Start(t)
			token := hold(t, master)
			s := harness.Start(t, harness.WithConfig(log...))
			require.Equal(t, "OK", s.Do("REPLICAOF", "127.0.0.1", master.Port).Str)
			s.AwaitSync()
			harness.Await(t, 20*time.Second, "the AOF to be written anew", func() bool {
				return s.Info("persistence", "aof_rewrite_in_progress") == "0" && s.Info("persistence", "aof_enabled") == "1"
			})
			return s, token
		},
		"after a rewrite": func(t *testing.T) (*harness.Server, int64) { return rewritten(t) },
		"nobody tells": func(t *testing.T) (*harness.Server, int64) {
			s, token := rewritten(t, `rename-command CONFIG ""`)
			promoted(t, s)
			return s, token
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, token := replica(t)
			s.Kill()
			s.Restart()
			assert.Equal(t, token, s.Do("LOCK.SHOW", "nightly").Field("token").Int())
			assert.True(t, s.Do("LOCK.ACQUIRE", "nightly", "bob", 600_000).NullString(), "ann has it")
			assert.NotEmpty(t, s.Do("QCONFIG", "LIST").Elems)
		})
	}
}

// A replica with very many jobs is promoted bit by bit. Meanwhile commands that write are refused,
// and all else goes on. In the end every job is where it belongs.
func TestPromotionOfVeryManyJobs(t *testing.T) {
	const jobs = 100_000
	s := harness.Start(t)
	c := s.Dial()
	for i := range jobs / 1000 {
		for range 1000 {
			c.Later("ADDJOB", fmt.Sprint("q", i), "body", 0, "RETRY", i%2*300)
		}
		for range 1000 {
			require.Equal(t, byte('+'), c.Receive().Kind)
		}
	}
	r := harness.Start(t, harness.WithReplicaOf(s))
	rc := r.Dial()
	refused := ""
	for range 10 { // a promotion may be over before this process runs again
		r.AwaitSync()
		rc.Send("REPLICAOF", "NO", "ONE")
		rc.Send("ADDJOB", "new", "body", 0)
		rc.Send("PING")
		rc.Send("QLEN", "q1")
		require.Equal(t, "OK", rc.Receive().Str)
		if v := rc.Receive(); v.Kind == '-' {
			refused = v.Str
		}
		assert.Equal(t, "PONG", rc.Receive().Str)
		assert.Equal(t, byte(':'), rc.Receive().Kind)
		if refused != "" {
			break
		}
		require.Equal(t, "OK", rc.Do("REPLICAOF", "127.0.0.1", s.Port).Str)
	}
	require.Regexp(t, "^LOADING ", refused)
	harness.Await(t, 20*time.Second, "the promotion", func() bool { return rc.Do("ADDJOB", "new", "body", 0).Kind == '+' })
	for i := range jobs / 1000 {
		want := int64(i % 2 * 1000)
		require.Equal(t, want, rc.Do("QLEN", fmt.Sprint("q", i)).Int(), "jobs that are at most once may have been delivered")
	}
	assert.Len(t, rc.Do("WIP", "q0", "COUNT", jobs).Elems, 1000)
	assert.Equal(t, fmt.Sprint(jobs+1), r.Info("jobmesh", "jobmesh_registered_jobs"))
	require.Len(t, rc.Do("GETJOB", "NOHANG", "COUNT", 1000, "FROM", "q1").Elems, 1000)
}

// Unique jobs lie in another database when the data of database 0 are flushed, and their node fails over to its replica and is promoted again. Back in
// database 0 they come, one after the other.
func TestFailoverWithUniqueJobsInAnotherDatabase(t *testing.T) {
	t.Parallel()
	soon := harness.WithConfig("repl-diskless-sync-delay 0", "appendonly yes")
	a := harness.Start(t, soon)
	b := harness.Start(t, soon, harness.WithReplicaOf(a))
	b.AwaitSync()
	c := a.Dial()
	first := add(t, c, "q", "x", 0, "RETRY", 300, "UNIQUE", "during-processing", "KEY", "k")
	second := add(t, c, "q", "x", 0, "RETRY", 300, "UNIQUE", "during-processing", "KEY", "k")
	require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
	require.Equal(t, "OK", c.Do("FLUSHDB").Str)
	require.Equal(t, "OK", c.Do("FAILOVER").Str)
	harness.Await(t, 20*time.Second, "the replica to be the master", func() bool { return b.Info("replication", "role") == "master" })
	a.AwaitSync()
	c = a.Dial()
	require.Equal(t, "OK", c.Do("REPLICAOF", "NO", "ONE").Str)
	harness.Await(t, 20*time.Second, "the old master to take jobs", func() bool { return c.Do("ADDJOB", "other", "b", 0).Kind == '+' })
	require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
	for _, id := range []string{first, second} {
		v := c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q")
		require.Len(t, v.Elems, 1)
		assert.Equal(t, id, v.Elems[0].Elems[1].Str)
		require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
	}
}
