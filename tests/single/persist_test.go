package single

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func TestDebugReloadIsLossless(t *testing.T) {
	for _, aof := range []string{"no", "yes"} {
		s := harness.Start(t, harness.WithConfig("appendonly "+aof))
		c := s.Dial()
		once := add(t, c, "q", "once", 0, "RETRY", 0)
		again := add(t, c, "q", "again", 0)
		held := add(t, c, "held", "b", 0)
		delayed := add(t, c, "q", "later", 0, "DELAY", 100)
		get(t, c, "held")
		c.Do("NACK", held)
		get(t, c, "held")
		require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
		assert.Equal(t, "queued", state(c, once))
		assert.Equal(t, "queued", state(c, again))
		assert.Equal(t, "active", state(c, held))
		assert.Equal(t, "active", state(c, delayed))
		assert.Equal(t, int64(1), c.Do("SHOW", held).Field("nacks").Int())
		assert.InDelta(t, 100_000, c.Do("SHOW", delayed).Field("next-requeue-within").Int(), 2000)
		assert.Equal(t, int64(2), c.Do("QLEN", "q").Int())
		assert.Equal(t, []string{once, again}, []string{get(t, c, "q"), get(t, c, "q")})
	}
}

// saving configures how a server keeps its data over comeBack: "rdb" saves at its end, "aof…"
// keeps a log, "aof-without-preamble…" a log without an RDB at its head. The rest of a mode's
// name is for comeBack.
func saving(mode string) harness.Option {
	conf := []string{"save 3600 1000000"}
	if strings.HasPrefix(mode, "aof") {
		conf = []string{"appendonly yes", "appendfsync always"}
	}
	if strings.Contains(mode, "without-preamble") {
		conf = append(conf, "aof-use-rdb-preamble no")
	}
	return harness.WithConfig(conf...)
}

// inModes runs a test in each of the modes (see comeBack), side by side, each with a server and a client of its own.
func inModes(t *testing.T, test func(t *testing.T, s *harness.Server, c *harness.Conn, mode string), modes ...string) {
	t.Helper()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, saving(mode))
			test(t, s, s.Dial(), mode)
		})
	}
}

// handOn makes the queue q go through what a mode says: "rename" renames it to p, "restore" dumps, deletes and restores it, any other mode is
// one of comeBack. It returns the client to go on with, and the queue's name.
func handOn(t *testing.T, s *harness.Server, c *harness.Conn, mode string) (_ *harness.Conn, queue string) {
	t.Helper()
	switch mode {
	case "rename":
		require.Equal(t, "OK", c.Do("RENAME", "q", "p").Str)
		return c, "p"
	case "restore":
		dump := c.Do("DUMP", "q").Str
		c.Do("DEL", "q")
		require.Equal(t, "OK", c.Do("RESTORE", "q", 0, dump).Str)
	default:
		comeBack(t, s, mode)
		c = s.Dial()
	}
	return c, "q"
}

// comeBack ends a server and starts it again. If the mode ends with "kill", it kills the server,
// else it shuts it down. If the mode is "reload", the server only saves and loads its data. If the
// mode has "without-preamble" or "rewritten", the log is written anew before.
func comeBack(t *testing.T, s *harness.Server, mode string) {
	t.Helper()
	if strings.Contains(mode, "without-preamble") || strings.Contains(mode, "rewritten") {
		s.RewriteAOF()
	}
	switch {
	case mode == "reload":
		require.Equal(t, "OK", s.Do("DEBUG", "RELOAD").Str)
		return
	case strings.HasSuffix(mode, "kill"):
		s.Kill()
	default:
		s.Stop()
	}
	s.Restart()
}

func TestRestart(t *testing.T) {
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		waiting := add(t, c, "q", "waiting", 0)
		retried := add(t, c, "r", "retried", 0, "RETRY", 1)
		get(t, c, "r")
		held, soon := add(t, c, "h", "held", 0, "RETRY", 1000), add(t, c, "s", "held", 0, "RETRY", 3)
		began := time.Now()
		require.Len(t, c.Do("GETJOB", "WORKER", "ada", "FROM", "h").Elems, 1)
		require.Len(t, c.Do("GETJOB", "WORKER", "ada", "FROM", "s").Elems, 1) // without WORKER a crash may forget the delivery
		acked := add(t, c, "q", "acked", 0)
		c.Do("ACKJOB", acked)
		expiring := add(t, c, "q", "x", 0, "TTL", 1)
		delayed, late := add(t, c, "d", "delayed", 0, "DELAY", 3), add(t, c, "d", "delayed", 0, "DELAY", 1000)
		delayedOnce := add(t, c, "d1", "delayed", 0, "DELAY", 3, "RETRY", 0)
		once := add(t, c, "once", "b", 0, "RETRY", 0)
		delivered := add(t, c, "once2", "b", 0, "RETRY", 0)
		get(t, c, "once2")
		nacked := add(t, c, "n", "b", 0)
		get(t, c, "n")
		c.Do("NACK", nacked)
		c.Do("PAUSE", "p", "in")
		ended := time.Now()
		harness.Await(t, 20*time.Second, "a retry", func() bool { return state(c, retried) == "queued" })
		comeBack(t, s, mode)
		c = s.Dial()
		for _, id := range []string{waiting, retried, once, nacked} {
			assert.Equal(t, "queued", state(c, id), "as it was")
		}
		assert.Equal(t, []int64{0, 1, 0}, []int64{
			c.Do("SHOW", waiting).Field("additional-deliveries").Int(),
			c.Do("SHOW", retried).Field("additional-deliveries").Int(),
			c.Do("SHOW", nacked).Field("additional-deliveries").Int(),
		}, "those that had it")
		assert.Empty(t, wip(t, c, "q"), "nobody has it")
		assert.Equal(t, "active", state(c, held))
		assert.Equal(t, "ada", c.Do("SHOW", held).Field("worker").Str)
		assert.True(t, c.Do("SHOW", acked).Null)
		assert.Equal(t, int64(1), c.Do("SHOW", nacked).Field("nacks").Int())
		assert.Equal(t, "none", c.Do("PAUSE", "p", "state").Str)
		assert.Equal(t, once, get(t, c, "once"), "not delivered before")
		for _, id := range []string{held, late} { // each is due at its own time, which began between began and ended
			most := 1000 - time.Since(ended).Seconds()
			in := float64(due(c, id)) / 1000
			assert.LessOrEqual(t, in, most+1)
			assert.GreaterOrEqual(t, in, 1000-time.Since(began).Seconds()-1)
		}
		for _, id := range []string{soon, delayed} {
			harness.Await(t, 20*time.Second, "the retry, or the delay's end", func() bool { return state(c, id) == "queued" })
			assert.GreaterOrEqual(t, time.Since(began).Seconds(), 2.0, "not before its time, which counts in whole seconds")
		}
		harness.Await(t, 20*time.Second, "expiry", func() bool { return c.Do("SHOW", expiring).Null })
		harness.Await(t, 20*time.Second, "the other delayed job", func() bool { return state(c, delayedOnce) == "queued" })
		assert.Equal(t, delayedOnce, get(t, c, "d1"))
		for _, id := range []string{once, delivered} {
			assert.Equal(t, int64(0), c.Do("ENQUEUE", id).Int(), "never a second delivery")
		}
		assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "once", "once2").NullArray())
	}, "rdb", "aof", "aof-without-preamble", "aof-kill")
}

func TestControlledRestart(t *testing.T) {
	for _, aof := range []string{"no", "yes"} {
		t.Run("appendonly "+aof, func(t *testing.T) {
			s := harness.Start(t, harness.WithConfig("appendonly "+aof))
			c := s.Dial()
			once, again := add(t, c, "q", "1", 0, "RETRY", 0), add(t, c, "q", "2", 0)
			held, gone := add(t, c, "h", "3", 0), add(t, c, "g", "4", 0, "RETRY", 0)
			get(t, c, "h")
			get(t, c, "g")
			require.Equal(t, "OK", c.Do("CONFIG", "SET", "jobmesh.aof-enqueue-jobs-once", "yes").Str)
			require.Equal(t, "OK", c.Do("CONFIG", "REWRITE").Str)
			s.Stop("JOBMESH", "SHUTDOWN")
			s.Restart()
			c = s.Dial()
			assert.Equal(t, "queued", state(c, once))
			assert.Equal(t, "queued", state(c, again))
			assert.Equal(t, "active", state(c, held))
			assert.Equal(t, "active", state(c, gone))
			assert.Equal(t, int64(0), c.Do("SHOW", again).Field("additional-deliveries").Int())
			assert.Equal(t, "no", c.Do("CONFIG", "GET", "jobmesh.aof-enqueue-jobs-once").Elems[1].Str)
			harness.Await(t, 3*time.Second, "the file to forget the option", func() bool {
				b, err := os.ReadFile(filepath.Join(s.Dir, "redis.conf"))
				return err == nil && !strings.Contains(string(b), "aof-enqueue-jobs-once yes")
			})
			assert.Equal(t, once, get(t, c, "q"))
			s.Kill()
			s.Restart()
			assert.NotEqual(t, "queued", state(s.Dial(), once), "delivered once is enough")
		})
	}
}

func TestOptionWithoutFinalSaveKeepsAtMostOnce(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("save 3600 1000000"))
	c := s.Dial()
	once, again := add(t, c, "q", "1", 0, "RETRY", 0), add(t, c, "q", "2", 0)
	require.Equal(t, "OK", c.Do("SAVE").Str)
	require.Equal(t, once, get(t, c, "q"))
	c.Do("CONFIG", "SET", "jobmesh.aof-enqueue-jobs-once", "yes")
	c.Do("CONFIG", "REWRITE")
	s.Kill()
	s.Restart()
	c = s.Dial()
	assert.Equal(t, "active", state(c, once), "the file doesn't know that it was delivered")
	assert.Equal(t, "queued", state(c, again))
}

func TestTruncatedAOF(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	c := s.Dial()
	var ids []string
	for i := range 50 {
		ids = append(ids, add(t, c, "q", fmt.Sprint("body", i), 0))
	}
	s.Kill()
	files, err := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*.incr.aof"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	info, err := os.Stat(files[0])
	require.NoError(t, err)
	require.NoError(t, os.Truncate(files[0], info.Size()-10))
	s.Restart()
	c = s.Dial()
	for _, id := range ids[:49] {
		assert.Equal(t, "queued", state(c, id))
	}
	assert.True(t, c.Do("SHOW", ids[49]).Null)
}

// A damaged or newer value is refused with a log line that names it.
func TestDamagedRDB(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("save 3600 1000000", "rdbcompression no", "rdbchecksum no"))
	c := s.Dial()
	add(t, c, "named-queue", strings.Repeat("findme", 20), 0)
	s.Stop("SHUTDOWN", "SAVE")
	file := filepath.Join(s.Dir, "dump.rdb")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	// The record's format byte lies 72 bytes before the body.
	at := strings.Index(string(data), "findme") - 72
	require.Equal(t, byte(2), data[at])
	for value, complaint := range map[byte]string{9: "job record of a newer format", 1: "damaged job record"} {
		data[at] = value
		require.NoError(t, os.WriteFile(file, data, 0o600))
		require.NoError(t, os.Remove(filepath.Join(s.Dir, "log")))
		s.Launch()
		s.AwaitEnd()
		assert.Contains(t, s.Log(), `key "named-queue": its value of type jobmesh-q`)
		assert.Contains(t, s.Log(), complaint)
		assert.NotContains(t, s.Log(), "REDIS BUG REPORT")
	}
}

// A master becomes a replica by a partial resynchronization, and doesn't know the queues' order
// any more. When it is promoted again it never delivers an at-most-once job that the other one may
// have given to a client, whether or not it has heard of that.
func TestDemotedAndPromotedAgain(t *testing.T) {
	master := harness.Start(t)
	c := master.Dial()
	replica := harness.Start(t, harness.WithReplicaOf(master))
	r := replica.Dial()
	replica.AwaitSync()
	once := []string{add(t, c, "once", "heard of", 0, "RETRY", 0), add(t, c, "once", "not heard of", 0, "RETRY", 0)}
	for i := range 4 {
		addUnique(t, c, "u", fmt.Sprint(i), "KEY k RETRY 60 UNIQUE during-processing")
	}
	busy := get(t, c, "u")
	require.Equal(t, int64(1), c.Do("WAIT", 1, 5000).Int())
	require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
	require.Equal(t, "OK", c.Do("REPLICAOF", "127.0.0.1", replica.Port).Str)
	master.AwaitSync()
	require.Equal(t, "1", replica.Info("stats", "sync_partial_ok"))
	harness.Await(t, 5*time.Second, "the replica to have nothing in its queues", func() bool { return c.Do("QLEN", "u").Int() == 0 })
	given := add(t, r, "given", "b", 0, "RETRY", 0)
	require.Equal(t, given, get(t, r, "given"))
	r.Do("ACKJOB", busy)
	for range 3 {
		v := r.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "u")
		require.Len(t, v.Elems, 1, "%v", v)
		r.Do("ACKJOB", v.Elems[0].Elems[1].Str)
	}
	require.Equal(t, int64(1), r.Do("WAIT", 1, 5000).Int())
	assert.Equal(t, "3", master.Info("jobmesh", "jobmesh_registered_jobs"), "those that run once alone")
	replica.Kill()
	require.Equal(t, "OK", c.Do("REPLICAOF", "NO", "ONE").Str)
	last := add(t, c, "once", "last", 0, "RETRY", 0)
	require.Equal(t, last, get(t, c, "once"), "the server has settled, and the others may have been delivered")
	assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "once", "given").NullArray(), "never a second delivery")
	assert.Equal(t, int64(0), c.Do("ENQUEUE", given).Int())
	for _, id := range once {
		assert.Equal(t, "active", state(c, id), "it may have been delivered")
	}
	assert.NotEmpty(t, addUnique(t, c, "u", "x", "KEY k UNIQUE until-processed"))
}

// A server that was a replica for a moment, and reached no master, goes on as before.
func TestDemotedForAMoment(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	once := add(t, c, "once", "b", 0, "RETRY", 0)
	require.Equal(t, "OK", c.Do("REPLICAOF", "127.0.0.1", 1).Str)
	require.Equal(t, "OK", c.Do("REPLICAOF", "NO", "ONE").Str)
	require.Equal(t, once, get(t, c, "once"))
}

// A job that was released with LAST waits on for the jobs that are queued or worked on, even if the
// server forgets for a moment which job waits for which.
func TestLastIsLastAfterAMoment(t *testing.T) {
	replica := []string{"REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "ADDJOB z z 0"}
	move := func(queue string, from, to int) []string {
		return []string{fmt.Sprint("SELECT ", from), fmt.Sprint("MOVE ", queue, " ", to), "SELECT 0"}
	}
	for what, commands := range map[string][]string{
		"as a replica":                   replica,
		"as a replica, and out of sight": slices.Concat(move("b", 0, 1), replica, move("b", 1, 0)),
		"beside FLUSHDB":                 slices.Concat(move("b", 0, 1), move("l", 0, 1), []string{"FLUSHDB"}, move("l", 1, 0), move("b", 1, 0)),
	} {
		t.Run(what, func(t *testing.T) {
			c := harness.Start(t).Dial()
			last := add(t, c, "l", "last", 0, "DEFERRED")
			first := add(t, c, "b", "first", 0, "BLOCKEDBY", last)
			second := add(t, c, "b", "second", 0, "BLOCKEDBY", last)
			require.Equal(t, int64(1), c.Do("RELEASEJOB", last, "LAST").Int())
			require.Equal(t, first, get(t, c, "b"))
			for _, line := range commands {
				require.NotEqual(t, byte('-'), words(c, line).Kind, line)
			}
			waits := c.Do("SHOW", last).Field("waits-for").Strings()
			assert.ElementsMatch(t, []string{first, second}, waits)
			c.Do("ACKJOB", first)
			require.Equal(t, second, get(t, c, "b"))
			assert.Empty(t, c.Do("GETJOB", "NOHANG", "FROM", "l").Elems)
			c.Do("ACKJOB", second)
			v := c.Do("GETJOB", "TIMEOUT", 5000, "FROM", "l")
			require.Len(t, v.Elems, 1)
			assert.Equal(t, last, v.Elems[0].Elems[1].Str)
		})
	}
}

func TestReplica(t *testing.T) {
	t.Parallel()
	for _, diskless := range []string{"no", "yes"} {
		t.Run("diskless "+diskless, func(t *testing.T) {
			master := harness.Start(t, harness.WithConfig("repl-diskless-sync "+diskless))
			c := master.Dial()
			early := add(t, c, "q", "early", 0, "RETRY", 1)
			onceEarly := add(t, c, "once", "b", 0, "RETRY", 0)
			replica := harness.Start(t, harness.WithConfig(fmt.Sprint("replicaof 127.0.0.1 ", master.Port)))
			r := replica.Dial()
			replica.AwaitSync()
			late := add(t, c, "q", "late", 0, "RETRY", 1)
			gone := add(t, c, "q", "gone", 0)
			c.Do("ACKJOB", gone)
			get(t, c, "once")
			nacked := add(t, c, "n", "b", 0)
			get(t, c, "n")
			c.Do("NACK", nacked)
			require.Equal(t, int64(1), c.Do("WAIT", 1, 5000).Int())
			for _, id := range []string{early, late} {
				assert.False(t, r.Do("SHOW", id).Null, "the replica knows the job")
			}
			assert.True(t, r.Do("SHOW", gone).Null)
			assert.Equal(t, int64(1), r.Do("SHOW", nacked).Field("nacks").Int())
			assert.True(t, r.Do("ADDJOB", "q", "b", 0).Err("READONLY"))
			assert.True(t, r.Do("GETJOB", "NOHANG", "FROM", "q").Err("READONLY"))
			assert.True(t, r.Do("JOBMESH", "FLUSH").Err("READONLY"))
			assert.True(t, r.Do("JOBMESH", "CLUSTER", "RESET").Err("READONLY"))
			// A passive node doesn't queue by itself.
			c.Do("DEQUEUE", early)
			master.Kill()
			require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
			harness.Await(t, 5*time.Second, "the promoted node to take over", func() bool { return state(r, early) == "queued" && state(r, late) == "queued" })
			assert.Equal(t, int64(0), r.Do("ENQUEUE", onceEarly).Int(), "never a second delivery")
			assert.Equal(t, byte('+'), r.Do("ADDJOB", "q", "b", 0).Kind)
		})
	}
}

// Writes go on while a replica attaches: none may fall between the snapshot
// and the stream.
func TestReplicaAttachesUnderLoad(t *testing.T) {
	master := harness.Start(t)
	c := master.Dial()
	for i := range 2000 {
		add(t, c, "q", i, 0)
	}
	replica := harness.Start(t)
	r := replica.Dial()
	require.Equal(t, "OK", r.Do("REPLICAOF", "127.0.0.1", master.Port).Str)
	up := func() bool { return replica.Info("replication", "master_link_status") == "up" }
	n := 0
	harness.Await(t, 20*time.Second, "the replica", func() bool {
		for range 50 {
			id := add(t, c, "q", n, 0)
			if n++; n%3 == 0 {
				c.Do("ACKJOB", id)
			}
		}
		return up()
	})
	require.Equal(t, int64(1), c.Do("WAIT", 1, 5000).Int())
	ids := func(c *harness.Conn) map[string]bool {
		seen := map[string]bool{}
		for _, e := range c.Do("JSCAN", "BUSYLOOP").Elems[1].Elems {
			seen[e.Str] = true
		}
		return seen
	}
	assert.Equal(t, ids(c), ids(r))
}

// Each command counts as a change, on which "save 1 1" relies, even if there is no log and no
// replica.
func TestChangesAreCounted(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	changes := func() string { return s.Info("persistence", "rdb_changes_since_last_save") }
	before := changes()
	id := add(t, c, "q", "b", 0)
	afterAdd := changes()
	assert.NotEqual(t, before, afterAdd)
	get(t, c, "q")
	afterGet := changes()
	assert.NotEqual(t, afterAdd, afterGet)
	c.Do("ACKJOB", id)
	assert.NotEqual(t, afterGet, changes())
	c.Do("ACKJOB", id)
	c.Do("GETJOB", "NOHANG", "FROM", "q")
}

func TestConfiguration(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("jobmesh.cluster-config-file other.conf"))
	assert.Equal(t, "other.conf", s.Do("CONFIG", "GET", "jobmesh.cluster-config-file").Elems[1].Str)
	_, err := os.Stat(filepath.Join(s.Dir, "other.conf"))
	assert.NoError(t, err)
	assert.Equal(t, byte('-'), s.Do("CONFIG", "SET", "jobmesh.aof-enqueue-jobs-once", "maybe").Kind)
	s = harness.Start(t, harness.WithModuleArgs("cluster-config-file by-arg.conf jobmesh.aof-enqueue-jobs-once yes"))
	assert.Equal(t, "by-arg.conf", s.Do("CONFIG", "GET", "jobmesh.cluster-config-file").Elems[1].Str)
	for _, args := range []string{"nonsense 1", "aof-enqueue-jobs-once", "aof-enqueue-jobs-once maybe", "cluster-config-file a/b"} {
		s := harness.New(t, harness.WithModuleArgs(args))
		s.Launch()
		s.AwaitEnd()
		assert.Contains(t, s.Log(), "jobmesh can't be loaded", args)
	}
}

// A timer that replicates during CLIENT PAUSE would end the server.
func TestClientPause(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 1)
	expiring := add(t, c, "q2", "b", 0, "TTL", 1)
	get(t, c, "q")
	require.Equal(t, "OK", c.Do("CLIENT", "PAUSE", 2500, "WRITE").Str)
	reader := s.Dial()
	paused := time.Now()
	harness.Await(t, 6*time.Second, "what was due during the pause", func() bool {
		return state(reader, id) == "queued" && reader.Do("SHOW", expiring).Null
	})
	assert.GreaterOrEqual(t, time.Since(paused), 2400*time.Millisecond, "not before the pause is over")
}

// Locks and settings are in no key. An AOF that was written anew has them as soon as the server
// uses it, so that nothing need be logged behind it. The server leaves no key for this purpose.
func TestWhatIsInNoKeyIsInARewrittenAOF(t *testing.T) {
	const plain, preamble = "aof-use-rdb-preamble no", "aof-use-rdb-preamble yes"
	switched := func(args ...any) func(*harness.Server) {
		return func(s *harness.Server) {
			ok(t, s.Do(append([]any{"CONFIG", "SET"}, args...)...))
			harness.Await(t, 20*time.Second, "the AOF to be written", func() bool {
				return s.Info("persistence", "aof_rewrite_in_progress")+s.Info("persistence", "aof_rewrite_scheduled") == "00" &&
					s.Info("persistence", "aof_last_bgrewrite_status") == "ok"
			})
			ok(t, s.Do("CONFIG", "REWRITE"))
		}
	}
	// A pause of writes keeps everything from being logged behind the rewritten file.
	paused := func(s *harness.Server) {
		ok(t, s.Do("CLIENT", "PAUSE", 100_000, "WRITE"))
		s.RewriteAOF()
	}
	rewritten := func(s *harness.Server) { s.RewriteAOF() }
	for name, c := range map[string]struct {
		conf []string
		do   func(*harness.Server)
	}{
		"commands":               {[]string{"appendonly yes", plain}, paused},
		"RDB":                    {[]string{"appendonly yes", preamble}, paused},
		"commands, nobody tells": {[]string{"appendonly yes", plain, `rename-command CONFIG ""`}, rewritten},
		"RDB, nobody tells":      {[]string{"appendonly yes", preamble, `rename-command CONFIG ""`}, rewritten},
		"commands, all at once":  {[]string{preamble}, switched("aof-use-rdb-preamble", "no", "appendonly", "yes")},
		"RDB, all at once":       {[]string{plain}, switched("aof-use-rdb-preamble", "yes", "appendonly", "yes")},
		"commands, and again":    {[]string{"appendonly yes", plain}, func(s *harness.Server) { s.RewriteAOF(); paused(s) }},
		"RDB, commands before": {[]string{"appendonly yes", plain}, func(s *harness.Server) {
			s.RewriteAOF()
			ok(t, s.Do("CONFIG", "SET", "aof-use-rdb-preamble", "yes"))
			paused(s)
		}},
		"commands, RDB before": {[]string{"appendonly yes", preamble}, func(s *harness.Server) {
			s.RewriteAOF()
			ok(t, s.Do("CONFIG", "SET", "aof-use-rdb-preamble", "no"))
			paused(s)
		}},
		"commands, a user has that key": {[]string{"appendonly yes", plain}, func(s *harness.Server) { ok(t, s.Do("SET", "in no key 0", "mine")); paused(s) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.WithConfig(append(c.conf, "appendfsync always")...))
			token := acquire(t, s.Dial(), "n", "a", 60_000)
			ended := acquire(t, s.Dial(), "ended", "a", 60_000)
			ok(t, s.Do("LOCK.RELEASE", "ended", "a", ended))
			ok(t, s.Do("QCONFIG", "SET", "q", "retry", 7))
			c.do(s)
			keys := s.Do("DBSIZE").Int()
			s.Kill()
			s.Restart()
			assert.Equal(t, token, s.Do("LOCK.SHOW", "n").Field("token").Int())
			assert.True(t, s.Do("LOCK.SHOW", "ended").Null)
			assert.Contains(t, s.Do("QCONFIG", "GET", "q").String(), "retry")
			assert.Equal(t, keys, s.Do("DBSIZE").Int(), s.Do("KEYS", "*").String())
			assert.Greater(t, acquire(t, s.Dial(), "other", "a", 60_000), ended)
		})
	}
}
