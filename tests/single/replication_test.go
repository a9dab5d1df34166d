package single

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// In a server event nothing may be logged: the server would log, and replicate, the
// command that caused it too.
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
	// The first command may come before any timer does.
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
	// A promotion that is in no configuration ends with the process.
	first.Kill()
	first.Restart()
	assert.Equal(t, "slave", first.Info("replication", "role"), "its redis.conf names a master")
}

// FAILOVER promotes the replica by PSYNC, and demotes the master while clients wait in
// all kinds of commands.
func TestFailoverBothWays(t *testing.T) {
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

// What the module asks the server it asks so that no rename-command hides the answer,
// or takes the worst.
func TestRenamedCommands(t *testing.T) {
	t.Run("CONFIG", func(t *testing.T) {
		s := harness.Start(t, harness.WithConfig(`rename-command CONFIG ""`, "maxmemory 20mb", "maxmemory-policy allkeys-lru", "appendonly yes", "jobmesh.cluster-port "+strconv.Itoa(harness.FreePort(t))))
		assert.True(t, s.Do("ADDJOB", "q", "b", 0).Err("EVICTION"))
		assert.Contains(t, s.Do("JOBMESH", "CLUSTER", "INFO").Str, "cluster_state:ok")
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

// A command that brings a queue delivers nothing before it is logged itself: in its log,
// and at its replicas, a delivery that came before would meet no such job, and the job
// would be delivered again.
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
	// The unique job of a crash between the delivery and its end.
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
