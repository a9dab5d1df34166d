package single

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// All of the C runs under the compiler's sanitizers. A fault there ends the server, and so
// fails the test. "make sanitize" runs every other test in this way. The test is a long one, since the
// compiler builds all of Go for the sanitizers.
func TestLongSanitized(t *testing.T) {
	t.Parallel()
	module := harness.Sanitized(t, "./module")
	s := harness.Start(t, module, harness.WithConfig("appendonly yes", "aof-use-rdb-preamble no"))
	c, three := s.Dial(), s.Dial3()

	sanitizedReplies(t, s, c, three)
	sanitizedWaiting(t, s)
	sanitizedTimers(t, s, c)
	// So many jobs that the queue has an index of several levels.
	ids := many(t, c, "big", 4000)
	sanitizedSaves(t, s, c)

	replica := harness.Start(t, module, harness.WithReplicaOf(s), harness.WithConfig("repl-diskless-load swapdb"))
	sub := harness.Start(t, module, harness.WithReplicaOf(replica))
	for _, r := range []*harness.Server{replica, sub} {
		r.AwaitSync()
		assert.Equal(t, jobs(s), jobs(r))
	}

	sanitizedKeys(t, s, c, ids)
	require.Equal(t, int64(1), c.Do("WAIT", 1, 5000).Int())
	require.Equal(t, "OK", replica.Do("REPLICAOF", "NO", "ONE").Str)
	sub.Stop()
	sanitizedDamage(t, replica)

	before := jobs(s)
	s.Stop()
	s.Restart()
	assert.Equal(t, before, jobs(s))
	require.Equal(t, "OK", s.Do("CONFIG", "SET", "jobmesh.aof-enqueue-jobs-once", "yes").Str)
	require.Equal(t, "OK", s.Do("CONFIG", "REWRITE").Str)
	s.Stop("JOBMESH", "SHUTDOWN")
	s.Restart()
	assert.Equal(t, before, jobs(s))
	for _, f := range []string{"FLUSHALL", "FLUSHALL ASYNC", "JOBMESH FLUSH"} {
		c := s.Dial()
		many(t, c, "flushed", 600)
		get(t, c, "flushed")
		assert.Equal(t, "OK", c.Do(split(f)...).Str)
		awaitNoJobs(t, s)
	}
	assert.Equal(t, "0", s.Info("everything", "jobmesh_panics"))
}

func split(command string) []any {
	var args []any
	for _, word := range strings.Fields(command) {
		args = append(args, word)
	}
	return args
}

// many adds n jobs with bodies of many sizes, takes some and gives some back. The latter find
// their places by the index.
func many(t *testing.T, c *harness.Conn, queue string, n int) (ids []any) {
	t.Helper()
	for i := range n {
		c.Later("ADDJOB", queue, strings.Repeat("x", i%50), 0)
	}
	for range n {
		v := c.Receive()
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		ids = append(ids, v.Str)
	}
	require.Len(t, c.Do("GETJOB", "COUNT", n/2, "FROM", queue).Elems, n/2)
	require.Equal(t, int64(n/4), c.Do(append([]any{"NACK"}, ids[:n/4]...)...).Int())
	return ids
}

// Replies of every kind, small and large, and calls within calls.
func sanitizedReplies(t *testing.T, s *harness.Server, c, three *harness.Conn) {
	node := c.Do("JOBMESH", "CLUSTER", "MYID").Str
	for _, conn := range []*harness.Conn{c, three} {
		id := add(t, conn, "q", "body", 0, "MAXLEN", 100, "RETRY", 0)
		for _, command := range []string{
			"JOBMESH HELLO", "JOBMESH INFO", "JOBMESH CLUSTER NODES", "JOBMESH CLUSTER INFO", "JOBMESH CLUSTER SAVECONFIG",
			"JOBMESH CLUSTER FORGET " + node, "JOBMESH CLUSTER LEAVING", "JOBMESH CLUSTER WHAT", "JOBMESH", "ADDJOB", "ADDJOB q b x",
			"ADDJOB q b 0 TTL 1 DELAY 1", "ACKJOB bad", "SHOW " + unknown, "SHOW " + id, "QPEEK q 5", "QPEEK q -5", "QPEEK none 1", "QSTAT q",
			"QSTAT none", "QLEN q", "QSCAN BUSYLOOP", "JSCAN BUSYLOOP REPLY all STATE queued", "PAUSE q in", "ADDJOB q b 0", "PAUSE q none",
			"GETJOB NOHANG WITHCOUNTERS FROM q other", "GETJOB NOHANG FROM q", "WORKING " + id, "WORKING " + unknown, "NACK " + id, "LOADJOB q x",
			"SETJOB x", "COMMAND", "COMMAND DOCS", "COMMAND GETKEYS GETJOB FROM a b", "INFO everything", "INFO jobmesh", "DEBUG DIGEST",
			"CONFIG GET jobmesh.*", "CONFIG SET jobmesh.aof-enqueue-jobs-once maybe", "MODULE LIST", "MODULE UNLOAD jobmesh", "MEMORY STATS",
			"MEMORY DOCTOR", "FASTACK " + id, "DELJOB " + id, "SET text x", "ADDJOB text b 0", "GETJOB NOHANG FROM text",
		} {
			assert.NotZero(t, conn.Do(split(command)...), command)
		}
		conn.Do("MULTI")
		conn.Do("ADDJOB", "q", "b", 0)
		conn.Do("GETJOB", "FROM", "q", "other")
		assert.Len(t, conn.Do("EXEC").Elems, 2)
		assert.Len(t, conn.Do("EVAL", "redis.call('ADDJOB','q','b',0) return redis.call('GETJOB','FROM','q')", 0).Elems, 1)
		assert.NotZero(t, conn.Do("EVAL", "redis.setresp(3) return redis.call('QSTAT','q')", 0))
	}
	// More operations, text and arguments than a frame keeps.
	ids := many(t, c, "large", 5000)
	assert.Len(t, c.Do("JSCAN", "BUSYLOOP", "REPLY", "ALL", "QUEUE", "large").Elems[1].Elems, 5000)
	assert.Equal(t, int64(5000), c.Do(append([]any{"ACKJOB"}, ids...)...).Int())
	body := strings.Repeat("x", 1<<20)
	id := add(t, c, strings.Repeat("long-name", 10), body, 0)
	assert.Equal(t, body, three.Do("SHOW", id).Field("body").Str)
	c.Do("FLUSHALL")
	awaitNoJobs(t, s)
}

// Clients that wait: served, out of time, unblocked, killed, and gone while
// their answer was on its way.
func sanitizedWaiting(t *testing.T, s *harness.Server) {
	waiting := func(command string, end func(c, w *harness.Conn, id int64)) {
		c, w := s.Dial(), s.Dial()
		id := w.Do("CLIENT", "ID").Int()
		w.Send(split(command)...)
		awaitBlocked(t, s, 1)
		end(c, w, id)
		awaitBlocked(t, s, 0)
	}
	waiting("GETJOB FROM w v", func(c, w *harness.Conn, _ int64) {
		add(t, c, "v", "b", 0)
		assert.Len(t, w.Receive().Elems, 1)
	})
	waiting("GETJOB TIMEOUT 50 FROM w v", func(_, w *harness.Conn, _ int64) { assert.True(t, w.Receive().NullArray()) })
	waiting("GETJOB FROM w", func(c, w *harness.Conn, id int64) {
		c.Do("CLIENT", "UNBLOCK", id, "ERROR")
		assert.True(t, w.Receive().Err("UNBLOCKED"))
	})
	waiting("GETJOB FROM w", func(c, w *harness.Conn, id int64) {
		c.Do("CLIENT", "UNBLOCK", id)
		assert.True(t, w.Receive().NullArray())
	})
	waiting("GETJOB FROM w", func(_, w *harness.Conn, _ int64) { w.Close() })
	waiting("GETJOB FROM w", func(c, w *harness.Conn, id int64) {
		c.Do("MULTI")
		c.Do("ADDJOB", "w", "b", 0)
		c.Do("CLIENT", "KILL", "ID", id)
		assert.Len(t, c.Do("EXEC").Elems, 2)
	})
	waiting("GETJOB FROM renamed", func(c, w *harness.Conn, _ int64) {
		c.Do("RENAME", "w", "renamed")
		assert.Len(t, w.Receive().Elems, 1)
	})
	waiting("GETJOB FROM w", func(c, w *harness.Conn, _ int64) {
		c.Do("JOBMESH", "FLUSH")
		assert.True(t, w.Receive().NullArray())
	})
	awaitNoJobs(t, s)
}

// A job that is delayed, one that comes again, one that expires; and a key that expires.
func sanitizedTimers(t *testing.T, s *harness.Server, c *harness.Conn) {
	late, again := add(t, c, "t", "b", 0, "DELAY", 1), add(t, c, "u", "b", 0, "RETRY", 1)
	expiring := add(t, c, "v", "b", 0, "TTL", 1)
	add(t, c, "key", "b", 0)
	c.Do("PEXPIRE", "key", 20)
	get(t, c, "u")
	harness.Await(t, 10*time.Second, "what is due", func() bool {
		return state(c, late) == "queued" && state(c, again) == "queued" && c.Do("SHOW", expiring).Null && c.Do("EXISTS", "key").Is(0)
	})
	assert.Equal(t, int64(2), c.Do("ACKJOB", late, again).Int())
	awaitNoJobs(t, s)
}

// All ways to write values and to read them, in this process and in children.
func sanitizedSaves(t *testing.T, s *harness.Server, c *harness.Conn) {
	s.SaveOften(1)
	require.Equal(t, "OK", c.Do("SAVE").Str)
	digest := c.Do("DEBUG", "DIGEST-VALUE", "big").Strings()
	assert.Equal(t, digest, c.Do("DEBUG", "DIGEST-VALUE", "big").Strings())
	for _, reload := range []string{"RELOAD", "LOADAOF"} {
		before := jobs(s)
		require.Equal(t, "OK", c.Do("DEBUG", reload).Str)
		assert.Equal(t, before, jobs(s))
	}
}

// sanitizedKeys does everything else that happens to keys, also with values that a client
// makes up.
func sanitizedKeys(t *testing.T, s *harness.Server, c *harness.Conn, ids []any) {
	assert.Greater(t, c.Do("MEMORY", "USAGE", "big", "SAMPLES", 0).Int(), int64(4000*120))
	add(t, c, "small", "body", 0)
	big := []byte(c.Do("DUMP", "big").Str)
	assert.Equal(t, "OK", c.Do("RESTORE", "copy", 0, big).Str)
	for _, command := range []string{"RENAME big large", "MOVE large 1", "SWAPDB 0 1", "SWAPDB 0 1", "SWAPDB 1 0", "DEBUG DIGEST"} {
		assert.NotEqual(t, byte('-'), c.Do(split(command)...).Kind, command)
	}
	assert.NotEqual(t, int64(0), c.Do("QLEN", "large").Int()+c.Do("ENQUEUE", ids[len(ids)-1]).Int())
	for _, unlink := range []string{"UNLINK large", "DEL copy", "DEL small", "FLUSHALL ASYNC"} {
		assert.NotEqual(t, byte('-'), c.Do(split(unlink)...).Kind, unlink)
	}
	awaitNoJobs(t, s)
	assert.Equal(t, "OK", c.Do("RESTORE", "big", 0, big).Str)
	assert.Equal(t, "OK", c.Do("RESTORE", "big", 0, big, "REPLACE").Str)
	c.Do("SET", "big", "overwritten")
	assert.Equal(t, "OK", c.Do("RESTORE", "kept", 0, big).Str)
}

// Damaged values. The server takes them since it doesn't check checksums here. So it keeps no
// AOF, and has no replica: these would refuse the values.
func sanitizedDamage(t *testing.T, s *harness.Server) {
	c := s.Dial()
	c.Do("FLUSHALL")
	add(t, c, "small", "body", 0)
	small := []byte(c.Do("DUMP", "small").Str)
	c.Do("DEL", "small")
	require.Equal(t, "OK", c.Do("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1).Str)
	accepted := 0
	for i := range small {
		for _, flip := range []byte{1, 0x80, 0xff} {
			bad := append([]byte(nil), small...)
			bad[i] ^= flip
			if c.Do("RESTORE", fmt.Sprint("bad", i, flip), 0, bad).Str == "OK" {
				accepted++
			}
		}
		c.Do("RESTORE", fmt.Sprint("cut", i), 0, small[:i])
	}
	assert.NotZero(t, accepted, "bytes that may be anything, as the body's")
	c.Do("FLUSHALL", "ASYNC")
	awaitNoJobs(t, s)
}
