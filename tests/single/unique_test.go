package single

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// addUnique adds a job by options in one text, and returns its ID, or "" where the
// answer is null.
func addUnique(t *testing.T, c *harness.Conn, queue, body, options string) string {
	t.Helper()
	v := tryUnique(c, queue, body, options)
	if v.Null {
		return ""
	}
	require.Equal(t, byte('+'), v.Kind, "%s: %v", options, v)
	return v.Str
}

func tryUnique(c *harness.Conn, queue, body, options string) harness.Value {
	args := []any{"ADDJOB", queue, body, 0}
	for _, w := range strings.Fields(options) {
		args = append(args, w)
	}
	return c.Do(args...)
}

// none requires that no job can be fetched.
func none(t *testing.T, c *harness.Conn, queue string) {
	t.Helper()
	assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", queue).NullArray())
}

const until = "UNIQUE until-processed KEY k "

func TestUntilProcessedWhateverItsState(t *testing.T) {
	c := harness.Start(t).Dial()
	for name, reach := range map[string]func(q string) string{
		"waiting": func(q string) string { return addUnique(t, c, q, "b", until) },
		"delayed": func(q string) string { return addUnique(t, c, q, "b", until+"DELAY 100") },
		"being processed": func(q string) string {
			id := addUnique(t, c, q, "b", until)
			require.Equal(t, id, get(t, c, q))
			return id
		},
		"waiting for its retry": func(q string) string {
			id := addUnique(t, c, q, "b", until+"RETRY 1")
			get(t, c, q)
			harness.Await(t, 3*time.Second, "the retry", func() bool { return state(c, id) == "queued" })
			return id
		},
		"given back": func(q string) string {
			id := addUnique(t, c, q, "b", until)
			get(t, c, q)
			require.Equal(t, int64(1), c.Do("NACK", id).Int())
			return id
		},
		"dequeued": func(q string) string {
			id := addUnique(t, c, q, "b", until)
			require.Equal(t, int64(1), c.Do("DEQUEUE", id).Int())
			return id
		},
	} {
		id := reach(name)
		assert.Empty(t, addUnique(t, c, name, "other", until), name)
		assert.Equal(t, id, addUnique(t, c, name, "other", until+"ONCONFLICT return"), name)
		assert.Equal(t, int64(1), c.Do("ACKJOB", id).Int(), name)
		assert.NotEmpty(t, addUnique(t, c, name, "other", until), name)
	}
	require.NotEmpty(t, addUnique(t, c, "body", "x", "UNIQUE until-processed"))
	assert.Empty(t, addUnique(t, c, "body", "x", "UNIQUE until-processed"))
	assert.NotEmpty(t, addUnique(t, c, "body", "y", "UNIQUE until-processed"))
}

func TestAcceptedAtOnceWhenTheHolderIsGone(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	for name, end := range map[string]func(id string){
		"ACKJOB":   func(id string) { c.Do("ACKJOB", id) },
		"FASTACK":  func(id string) { c.Do("FASTACK", id) },
		"DELJOB":   func(id string) { c.Do("DELJOB", id) },
		"DEL":      func(string) { c.Do("DEL", "q") },
		"UNLINK":   func(string) { c.Do("UNLINK", "q") },
		"FLUSHALL": func(string) { c.Do("FLUSHALL") },
		"FLUSHDB":  func(string) { c.Do("FLUSHDB", "ASYNC") },
		"FLUSH":    func(string) { c.Do("JOBMESH", "FLUSH") },
		"EXPIRE":   func(string) { c.Do("PEXPIRE", "q", 1); time.Sleep(5 * time.Millisecond); c.Do("EXISTS", "q") },
		"SET":      func(string) { c.Do("SET", "q", "x"); c.Do("DEL", "q") },
		"SWAPDB":   func(string) { c.Do("SWAPDB", 0, 1) },
		"MOVE":     func(string) { c.Do("MOVE", "q", 2) },
		"RENAME":   func(string) { c.Do("RENAME", "q", "p") },
	} {
		for _, strategy := range []string{"until-processed", "before-processing", "before-and-during-processing"} {
			c.Do("FLUSHALL")
			id := addUnique(t, c, "q", "b", "KEY k UNIQUE "+strategy)
			require.Empty(t, addUnique(t, c, "q", "b", "KEY k UNIQUE "+strategy))
			end(id)
			assert.NotEmpty(t, addUnique(t, c, "q", "b", "KEY k UNIQUE "+strategy), "%s, %s", name, strategy)
		}
	}
	c.Do("FLUSHALL")
	id := addUnique(t, c, "q", "b", until+"TTL 1")
	harness.Await(t, 4*time.Second, "the job's expiry", func() bool { return c.Do("SHOW", id).Null })
	assert.NotEmpty(t, addUnique(t, c, "q", "b", until))
}

func TestDeletedQueueOfManyUniqueJobs(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	const n = 20_000
	for i := range n {
		c.Later("ADDJOB", "q", i, 0, "UNIQUE", "until-processed")
	}
	for range n {
		require.Equal(t, byte('+'), c.Receive().Kind)
	}
	c.Send("DEL", "q")
	for i := range n {
		c.Later("ADDJOB", "q", i, 0, "UNIQUE", "until-processed")
	}
	c.Receive()
	for range n {
		require.Equal(t, byte('+'), c.Receive().Kind)
	}
	c.Do("DEL", "q")
	used := number(t, s, "memory", "used_memory")
	c.Do("PING")
	harness.Await(t, 10*time.Second, "the locks' memory to come back", func() bool {
		return number(t, s, "memory", "used_memory") < used-1000*n/10 || number(t, s, "memory", "used_memory") < 12<<20
	})
}

func TestNackAndRetryKeepTheLock(t *testing.T) {
	c := harness.Start(t).Dial()
	id := addUnique(t, c, "q", "b", until)
	for range 3 {
		require.Equal(t, id, get(t, c, "q"))
		require.Equal(t, int64(1), c.Do("NACK", id).Int())
		assert.Empty(t, addUnique(t, c, "q", "b", until))
	}
	assert.Equal(t, int64(3), c.Do("SHOW", id).Field("nacks").Int())
}

func TestBeforeProcessing(t *testing.T) {
	c := harness.Start(t).Dial()
	const before = "UNIQUE before-processing KEY k "
	first := addUnique(t, c, "q", "b", before)
	assert.Empty(t, addUnique(t, c, "q", "b", before))
	assert.Equal(t, int64(1), c.Do("QLEN", "q").Int())
	require.Equal(t, first, get(t, c, "q"))
	second := addUnique(t, c, "q", "b", before)
	require.NotEmpty(t, second)
	require.Equal(t, int64(1), c.Do("NACK", first).Int())
	assert.Equal(t, int64(2), c.Do("QLEN", "q").Int(), "both exist: the first has been processed once")
	assert.Empty(t, addUnique(t, c, "q", "b", before))
	assert.Equal(t, first, get(t, c, "q"))
	assert.Empty(t, addUnique(t, c, "q", "b", before), "the second waits still")
	assert.Equal(t, second, get(t, c, "q"))
	// The key is also free when the job is served to a client that waits.
	w := s2(t, c)
	w.Send("GETJOB", "FROM", "w")
	waits(t, c, "w")
	require.NotEmpty(t, addUnique(t, c, "w", "b", before))
	require.Len(t, w.Receive().Elems, 1)
	assert.NotEmpty(t, addUnique(t, c, "w", "b", before))
}

func waits(t *testing.T, c *harness.Conn, queue string) {
	t.Helper()
	harness.Await(t, 5*time.Second, "a client that waits", func() bool {
		v := c.Do("QSTAT", queue).Field("blocked")
		return v.Kind == ':' && v.Int() > 0
	})
}

// s2 is another connection to the same server.
func s2(t *testing.T, c *harness.Conn) *harness.Conn {
	t.Helper()
	port := c.Do("CONFIG", "GET", "port").Elems[1].Str
	d, err := harness.Dial("127.0.0.1:"+port, 20*time.Second)
	require.NoError(t, err)
	t.Cleanup(d.Close)
	return d
}

const during = "UNIQUE during-processing KEY k "

func TestDuringProcessing(t *testing.T) {
	c := harness.Start(t).Dial()
	first, second := addUnique(t, c, "q", "1", during), addUnique(t, c, "q", "2", during)
	other := addUnique(t, c, "q", "3", "UNIQUE during-processing KEY other")
	plain := add(t, c, "q", "4", 0)
	require.NotEmpty(t, second)
	require.Equal(t, first, get(t, c, "q"))
	assert.Equal(t, int64(3), c.Do("QLEN", "q").Int(), "what is held back waits too")
	assert.Equal(t, int64(1), c.Do("QSTAT", "q").Field("held-back").Int())
	assert.Equal(t, "held-back", c.Do("SHOW", second).Field("lock").Str)
	assert.Equal(t, "queued", state(c, second))
	assert.Equal(t, []string{other, plain}, []string{get(t, c, "q"), get(t, c, "q")}, "the others in their order")
	none(t, c, "q")
	assert.Len(t, c.Do("GETJOB", "NOHANG", "FROM", "q", "q2").Elems, 0)
	elsewhere := add(t, c, "q2", "b", 0)
	assert.Equal(t, elsewhere, c.Do("GETJOB", "FROM", "q", "q2").Elems[0].Elems[1].Str, "the next queue serves")
	w := s2(t, c)
	w.Send("GETJOB", "FROM", "q")
	waits(t, c, "q")
	assert.True(t, w.Silent(50*time.Millisecond))
	require.Equal(t, int64(1), c.Do("ACKJOB", first).Int())
	v := w.Receive()
	require.Len(t, v.Elems, 1)
	assert.Equal(t, second, v.Elems[0].Elems[1].Str, "at once, without polling")
}

// However a job's run ends, the next of its key can go on at once.
func TestWhatEndsARun(t *testing.T) {
	c := harness.Start(t).Dial()
	for name, end := range map[string]func(id string){
		"ACKJOB":  func(id string) { c.Do("ACKJOB", id) },
		"FASTACK": func(id string) { c.Do("FASTACK", id) },
		"DELJOB":  func(id string) { c.Do("DELJOB", id) },
		"expiry": func(id string) {
			harness.Await(t, 4*time.Second, "expiry", func() bool { return c.Do("SHOW", id).Null })
		},
	} {
		options := during
		if name == "expiry" {
			options += "TTL 1 "
		}
		first, second := addUnique(t, c, name, "1", options), addUnique(t, c, name, "2", during)
		require.Equal(t, first, get(t, c, name))
		none(t, c, name)
		end(first)
		assert.Equal(t, second, get(t, c, name), name)
	}
	// A job that is given back is its key's oldest job again, and goes first.
	first, second := addUnique(t, c, "q", "1", during), addUnique(t, c, "q", "2", during)
	require.Equal(t, first, get(t, c, "q"))
	c.Do("NACK", first)
	assert.Equal(t, first, get(t, c, "q"))
	c.Do("ACKJOB", first)
	assert.Equal(t, second, get(t, c, "q"))
	// An at-most-once job stays out, and its key is free all the same.
	once, next := addUnique(t, c, "once", "1", during+"RETRY 0"), addUnique(t, c, "once", "2", during)
	require.Equal(t, once, get(t, c, "once"))
	assert.Zero(t, c.Do("ENQUEUE", once).Int())
	none(t, c, "once")
	assert.Zero(t, c.Do("NACK", once).Int())
	assert.Equal(t, next, get(t, c, "once"))
	assert.Equal(t, "none", c.Do("SHOW", once).Field("lock").Str)
	// If the first job of a key leaves the queue without having run, the next one goes on.
	third, fourth := addUnique(t, c, "r", "3", during), addUnique(t, c, "r", "4", during)
	c.Do("DEQUEUE", third)
	assert.Equal(t, fourth, get(t, c, "r"))
	c.Do("ENQUEUE", third)
	none(t, c, "r")
	c.Do("ACKJOB", fourth)
	assert.Equal(t, third, get(t, c, "r"))
	fifth := addUnique(t, c, "r", "5", during)
	c.Do("DEL", "r")
	none(t, c, "r")
	assert.True(t, c.Do("SHOW", fifth).Null)
	sixth := addUnique(t, c, "r", "6", during)
	assert.Equal(t, sixth, get(t, c, "r"), "the queue's deletion has freed the key")
}

func TestBeforeAndDuring(t *testing.T) {
	c := harness.Start(t).Dial()
	const both = "UNIQUE before-and-during-processing KEY k "
	first := addUnique(t, c, "q", "1", both)
	assert.Empty(t, addUnique(t, c, "q", "2", both))
	require.Equal(t, first, get(t, c, "q"))
	second := addUnique(t, c, "q", "2", both)
	require.NotEmpty(t, second, "one running and one waiting")
	assert.Empty(t, addUnique(t, c, "q", "3", both))
	none(t, c, "q")
	c.Do("ACKJOB", first)
	assert.Equal(t, second, get(t, c, "q"))
}

func TestConflicts(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	first := addUnique(t, c, "q", "one", until)
	behind := add(t, c, "q", "behind", 0)
	assert.True(t, tryUnique(c, "q", "two", until).NullString(), "drop")
	assert.True(t, s.Dial3().Do("ADDJOB", "q", "two", 0, "UNIQUE", "until-processed", "KEY", "k").Null)
	v := tryUnique(c, "q", "two", until+"ONCONFLICT raise")
	assert.True(t, v.Err("DUPLICATE "+first+" has the key \"k\""), "%v", v)
	assert.Equal(t, first, addUnique(t, c, "q", "two", until+"ONCONFLICT return"))
	assert.Equal(t, first, addUnique(t, c, "q", "a longer body", until+"ONCONFLICT replace"))
	assert.Equal(t, int64(2), c.Do("QLEN", "q").Int())
	assert.Equal(t, "5", s.Info("jobmesh", "jobmesh_unique_conflicts"))
	s.AwaitLogged() // a server under load may write its log later than it answers
	s.Kill()
	s.Restart()
	c = s.Dial()
	assert.Equal(t, "a longer body", c.Do("SHOW", first).Field("body").Str, "the log has it")
	c.Do("ENQUEUE", behind)
	c.Do("ENQUEUE", first)
	v = c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q")
	require.Len(t, v.Elems, 1)
	assert.Equal(t, []string{"q", first, "a longer body"}, v.Elems[0].Strings(), "its place is kept")
	assert.True(t, tryUnique(c, "q", "x", until+"ONCONFLICT replace").Err("DUPLICATE "+first), "it runs")
	delayed := addUnique(t, c, "q", "d", "UNIQUE until-processed KEY d DELAY 100")
	assert.Equal(t, delayed, addUnique(t, c, "q", "e", "UNIQUE until-processed KEY d ONCONFLICT replace"))
	assert.Equal(t, "e", c.Do("SHOW", delayed).Field("body").Str)
	// A job that is unique by its body keeps its key when its body is replaced.
	byBody := addUnique(t, c, "q", "key", "UNIQUE until-processed")
	assert.Equal(t, byBody, addUnique(t, c, "q", "new", "UNIQUE until-processed KEY key ONCONFLICT replace"))
	assert.Empty(t, addUnique(t, c, "q", "key", "UNIQUE until-processed"))
	assert.NotEmpty(t, addUnique(t, c, "q", "new", "UNIQUE until-processed"))
	long := strings.Repeat("k", 4096)
	id := addUnique(t, c, "q", "b", "UNIQUE until-processed KEY "+long)
	v = tryUnique(c, "q", "b", "ONCONFLICT raise UNIQUE until-processed KEY "+long)
	assert.True(t, v.Err("DUPLICATE "+id), "%v", v)
	assert.Less(t, len(v.Str), 300)
}

func TestReschedule(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	first := addUnique(t, c, "q", "1", until)
	second := addUnique(t, c, "q", "2", until+"ONCONFLICT reschedule 1")
	require.NotEmpty(t, second)
	require.NotEqual(t, first, second)
	assert.Equal(t, int64(1), c.Do("QLEN", "q").Int())
	assert.Equal(t, int64(1), c.Do("SHOW", second).Field("tries").Int())
	assert.InDelta(t, 1000, c.Do("SHOW", second).Field("next-requeue-within").Int(), 300)
	harness.Await(t, 4*time.Second, "a second try", func() bool { return c.Do("SHOW", second).Field("tries").Int() >= 2 })
	assert.Equal(t, "put-off", c.Do("SHOW", second).Field("lock").Str)
	c.Do("DEBUG", "RELOAD")
	assert.Equal(t, "put-off", c.Do("SHOW", second).Field("lock").Str)
	c.Do("ACKJOB", first)
	harness.Await(t, 4*time.Second, "the job", func() bool { return state(c, second) == "queued" })
	assert.Equal(t, "wait", c.Do("SHOW", second).Field("lock").Str)
	assert.Equal(t, int64(0), c.Do("SHOW", second).Field("additional-deliveries").Int())
	assert.Equal(t, second, get(t, c, "q"))
	assert.Empty(t, addUnique(t, c, "q", "3", until))
}

func TestScopes(t *testing.T) {
	c := harness.Start(t).Dial()
	require.NotEmpty(t, addUnique(t, c, "q1", "b", until))
	assert.NotEmpty(t, addUnique(t, c, "q2", "b", until))
	const mesh = "UNIQUE until-processed KEY m SCOPE mesh"
	id := addUnique(t, c, "q1", "b", mesh)
	require.NotEmpty(t, id)
	assert.Empty(t, addUnique(t, c, "q2", "b", mesh))
	assert.NotEmpty(t, addUnique(t, c, "q2", "b", "UNIQUE until-processed KEY m"), "of the queue")
	assert.True(t, tryUnique(c, "q3", "b", mesh+" ONCONFLICT raise").Err("DUPLICATE "+id))
	assert.Equal(t, int64(0), c.Do("EXISTS", "q3").Int(), "a refusal makes no queue")
	// The scope of a run: the other queue's job goes on when the first one is done.
	const run = "UNIQUE during-processing KEY m SCOPE mesh"
	a, b := addUnique(t, c, "r1", "b", run), addUnique(t, c, "r2", "b", run)
	require.Equal(t, a, get(t, c, "r1"))
	none(t, c, "r2")
	w := s2(t, c)
	w.Send("GETJOB", "FROM", "r2")
	waits(t, c, "r2")
	c.Do("ACKJOB", a)
	require.Equal(t, b, w.Receive().Elems[0].Elems[1].Str)
	x, y := addUnique(t, c, "r1", "b", run), addUnique(t, c, "r2", "b", run)
	none(t, c, "r1")
	c.Do("DEL", "r2")
	harness.Await(t, 3*time.Second, "the key of a deleted queue's job", func() bool {
		return len(c.Do("GETJOB", "NOHANG", "FROM", "r1").Elems) == 1
	})
	assert.Equal(t, "run", c.Do("SHOW", x).Field("lock").Str)
	assert.True(t, c.Do("SHOW", y).Null)
}

func TestLockTTL(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	first := addUnique(t, c, "q", "1", until+"LOCKTTL 1")
	delayed := addUnique(t, c, "d", "1", until+"LOCKTTL 1 DELAY 2")
	window := addUnique(t, c, "w", "1", "KEY k UNIQUE window TTL 1")
	c.Do("ACKJOB", window)
	assert.Empty(t, addUnique(t, c, "w", "1", "KEY k UNIQUE window TTL 1"), "whether or not it is done")
	assert.Empty(t, addUnique(t, c, "q", "2", until+"LOCKTTL 1"))
	time.Sleep(1100 * time.Millisecond)
	for _, id := range []string{first, delayed} {
		lock := map[string]string{first: "none", delayed: "wait"}[id]
		assert.Equal(t, lock, c.Do("SHOW", id).Field("lock").Str, "before anybody else came by")
		assert.Equal(t, lock == "none", c.Do("SHOW", id).Field("token").Is(0))
	}
	second := addUnique(t, c, "q", "2", until+"LOCKTTL 100")
	require.NotEmpty(t, second)
	assert.NotEmpty(t, addUnique(t, c, "w", "1", "KEY k UNIQUE window TTL 1"))
	assert.Empty(t, addUnique(t, c, "d", "2", until), "it isn't due yet")
	assert.Equal(t, first, get(t, c, "q"))
	assert.True(t, c.Do("WORKING", first).Err("LOCKLOST"))
	assert.Equal(t, int64(1), c.Do("ACKJOB", first).Int())
	assert.Empty(t, addUnique(t, c, "q", "3", until), "the second's lock is the second's")
	harness.Await(t, 4*time.Second, "the delayed job", func() bool { return state(c, delayed) == "queued" })
	assert.Empty(t, addUnique(t, c, "d", "2", until), "it counts from now")
	harness.Await(t, 4*time.Second, "its lock's end", func() bool { return addUnique(t, c, "d", "2", until) != "" })
	assert.False(t, c.Do("SHOW", window).Null == false)
}

// LOCKTTL doesn't run while a job is deferred or blocked, since the job isn't due.
func TestLockTTLOfHeldBackJobs(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	const brief = until + "LOCKTTL 1 "
	deferred := addUnique(t, c, "q", "1", brief+"DEFERRED")
	moved := addUnique(t, c, "moved", "1", brief+"DEFERRED")
	blocked := addUnique(t, c, "b", "1", brief+"BLOCKEDBY "+deferred)
	after := addUnique(t, c, "a", "1", brief+"AFTER "+blocked)
	time.Sleep(1100 * time.Millisecond)
	queues := []string{"q", "moved", "b", "a"}
	refused := func() {
		t.Helper()
		for _, q := range queues {
			assert.Empty(t, addUnique(t, c, q, "2", until), q)
		}
	}
	refused()
	require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
	refused()
	c.Do("RELEASEJOB", deferred)
	c.Do("RELEASEJOB", moved, "QUEUE", "elsewhere")
	queues[1] = "elsewhere"
	refused()
	begun := func(q string) {
		t.Helper()
		ttl := c.Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", q).Field("ttl").Int()
		assert.True(t, 0 < ttl && ttl <= 1000, "%s: %d", q, ttl)
	}
	begun("q")
	begun("elsewhere")
	for i, id := range []string{deferred, blocked, after} {
		q := []string{"q", "b", "a"}[i]
		if i > 0 {
			begun(q)
		}
		harness.Await(t, 3*time.Second, "the lock's end in "+q, func() bool { return c.Do("SHOW", id).Field("lock").Str == "none" })
		require.Equal(t, id, get(t, c, q))
		c.Do("ACKJOB", id)
	}
	assert.Equal(t, "none", c.Do("SHOW", moved).Field("lock").Str)
}

func TestRefusalsLeaveNoLock(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	add(t, c, "full", "b", 0)
	c.Do("SET", "text", "x")
	c.Do("PAUSE", "paused", "in")
	for queue, options := range map[string]string{
		"full": "MAXLEN 1", "text": "SCOPE mesh", "paused": "", "q": "REPLICATE 2",
	} {
		v := tryUnique(c, queue, "b", until+options)
		assert.Equal(t, byte('-'), v.Kind, "%s: %v", queue, v)
	}
	c.Do("PAUSE", "paused", "none")
	for _, queue := range []string{"full", "paused", "q"} {
		assert.NotEmpty(t, addUnique(t, c, queue, "b", until), queue)
	}
	assert.NotEmpty(t, addUnique(t, c, "q", "b", until+"SCOPE mesh"))
	c.Do("FLUSHALL")
	c.Do("CONFIG", "SET", "maxmemory", 1) // memory of what was flushed is still being given back
	c.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	assert.True(t, tryUnique(c, "q", "b", until).Err("OOM"))
	c.Do("CONFIG", "SET", "maxmemory", 0)
	assert.NotEmpty(t, addUnique(t, c, "q", "b", until))
}

// locks returns what SHOW says of the locks of jobs.
func locks(c *harness.Conn, ids ...string) (out []string) {
	for _, id := range ids {
		out = append(out, c.Do("SHOW", id).Field("lock").Str)
	}
	return out
}

func TestLocksOverARestart(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"rdb", "aof", "aof-without-preamble", "aof-kill", "reload"} {
		t.Run(mode, func(t *testing.T) {
			s := harness.Start(t, saving(mode))
			c := s.Dial()
			waiting := addUnique(t, c, "q", "b", until)
			before := addUnique(t, c, "b", "b", "UNIQUE before-processing KEY k RETRY 200")
			running := addUnique(t, c, "r", "1", during+"RETRY 300")
			held := addUnique(t, c, "r", "2", during+"RETRY 100")
			get(t, c, "b")
			v := c.Do("GETJOB", "WITHTOKEN", "FROM", "r").Elems[0]
			require.Equal(t, running, v.Elems[1].Str)
			token := v.Elems[4].Int()
			done := addUnique(t, c, "done", "b", until)
			c.Do("ACKJOB", done)
			c.Do("QCONFIG", "SET", "s*", "UNIQUE", "until-processed")
			want := []string{"wait", "none", "run"}
			require.Equal(t, want, locks(c, waiting, before, running))
			comeBack(t, s, mode)
			if mode == "reload" {
				assert.Equal(t, int64(1), c.Do("QSTAT", "r").Field("held-back").Int())
			}
			c = s.Dial()
			assert.Equal(t, want, locks(c, waiting, before, running))
			assert.Equal(t, token, c.Do("SHOW", running).Field("token").Int())
			assert.Empty(t, addUnique(t, c, "q", "b", until))
			assert.NotEmpty(t, addUnique(t, c, "b", "b", "UNIQUE before-processing KEY k"))
			assert.NotEmpty(t, addUnique(t, c, "done", "b", until))
			c.Do("ENQUEUE", held)
			none(t, c, "r")
			assert.Equal(t, int64(1), c.Do("ACKJOB", running).Int())
			assert.Equal(t, held, get(t, c, "r"))
			assert.Equal(t, "until-processed", c.Do("QCONFIG", "GET", "sx").Field("unique").Str)
			addUnique(t, c, "sx", "b", "")
			assert.Empty(t, addUnique(t, c, "sx", "b", ""))
		})
	}
}

func TestReplicaPromoted(t *testing.T) {
	master := harness.Start(t)
	c := master.Dial()
	early := addUnique(t, c, "q", "b", until)
	c.Do("QCONFIG", "SET", "early", "UNIQUE", "until-processed")
	replica := harness.Start(t, harness.WithReplicaOf(master))
	r := replica.Dial()
	replica.AwaitSync()
	late := addUnique(t, c, "q", "b", "UNIQUE until-processed KEY late")
	running, held := addUnique(t, c, "r", "1", during), addUnique(t, c, "r", "2", during)
	require.Equal(t, running, get(t, c, "r"))
	c.Do("QCONFIG", "SET", "late", "UNIQUE", "until-processed")
	require.Equal(t, int64(1), c.Do("WAIT", 1, 5000).Int())
	assert.True(t, r.Do("QCONFIG", "SET", "x", "TTL", 1).Err("READONLY"))
	master.Kill()
	require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
	assert.Equal(t, []string{"wait", "wait", "run"}, locks(r, early, late, running))
	assert.Empty(t, addUnique(t, r, "q", "b", until))
	r.Do("ENQUEUE", held)
	none(t, r, "r")
	r.Do("ACKJOB", running)
	assert.Equal(t, held, get(t, r, "r"))
	for _, q := range []string{"early", "late"} {
		addUnique(t, r, q, "b", "")
		assert.Empty(t, addUnique(t, r, q, "b", ""), q)
	}
}

// A rule that replaces another leaves nothing of it behind: not in the saved settings, which couldn't be loaded
// then, and not for jobs.
func TestSettingsInPlaceOfOthers(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	for _, args := range []string{
		"q UNIQUE before-and-during-processing ONCONFLICT reschedule 5 ONBUSY reschedule 6", "q ONCONFLICT drop ONBUSY wait", "w UNIQUE window TTL 1", "w UNIQUE until-processed",
	} {
		line := []any{"QCONFIG", "SET"}
		for _, word := range strings.Fields(args) {
			line = append(line, word)
		}
		require.Equal(t, "OK", c.Do(line...).Str, args)
	}
	assert.Equal(t, "drop", c.Do("QCONFIG", "GET", "q").Field("onconflict").Str)
	assert.Equal(t, "wait", c.Do("QCONFIG", "GET", "q").Field("onbusy").Str)
	id := addUnique(t, c, "w", "b", "")
	settings := c.Do("QCONFIG", "LIST").String()
	require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
	assert.Equal(t, settings, c.Do("QCONFIG", "LIST").String())
	assert.Equal(t, id, addUnique(t, c, "w", "b", "ONCONFLICT return"))
	time.Sleep(1100 * time.Millisecond) // the window's TTL, after which nothing must happen
	assert.Empty(t, addUnique(t, c, "w", "b", ""))
}

func TestQueueSettings(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	ok := func(args ...any) {
		t.Helper()
		require.Equal(t, "OK", c.Do(append([]any{"QCONFIG", "SET"}, args...)...).Str)
	}
	ok("emails:*", "UNIQUE", "until-processed", "KEY", "one", "RETRY", 7, "TTL", 100, "MAXLEN", 5, "DELAY", 0)
	id := addUnique(t, c, "emails:a", "b", "")
	assert.Equal(t, int64(7), c.Do("SHOW", id).Field("retry").Int())
	assert.Equal(t, int64(100), c.Do("SHOW", id).Field("ttl").Int())
	assert.Empty(t, addUnique(t, c, "emails:a", "other", ""), "a producer that knows nothing of it")
	assert.NotEmpty(t, addUnique(t, c, "emails:a", "b", "KEY two"), "an explicit key wins")
	assert.NotEmpty(t, addUnique(t, c, "emails:a", "b", "UNIQUE none"))
	assert.Equal(t, id, addUnique(t, c, "emails:a", "b", "ONCONFLICT return"))
	assert.Equal(t, int64(9), c.Do("SHOW", addUnique(t, c, "emails:a", "b", "KEY three RETRY 9")).Field("retry").Int())
	addUnique(t, c, "emails:a", "b", "UNIQUE none")
	assert.True(t, tryUnique(c, "emails:a", "b", "UNIQUE none").Err("MAXLEN"))
	ok("emails:x", "RETRY", 3)
	assert.Equal(t, int64(3), c.Do("SHOW", addUnique(t, c, "emails:x", "b", "")).Field("retry").Int())
	assert.NotEmpty(t, addUnique(t, c, "emails:x", "b", ""), "its own name's settings take the place of a pattern's")
	ok("emails:long:*", "UNIQUE", "until-processed", "ONCONFLICT", "return")
	first := addUnique(t, c, "emails:long:1", "b", "")
	assert.Equal(t, first, addUnique(t, c, "emails:long:1", "b", ""), "the longest pattern")
	ok("emails:*:free", "EXCLUDE", "yes")
	assert.NotEmpty(t, addUnique(t, c, "emails:long:free", "b", ""))
	assert.NotEmpty(t, addUnique(t, c, "emails:long:free", "b", ""), "an exclusion wins over a pattern")
	for _, queue := range []string{"emails:long:free", "plain:free"} {
		ok("plain:free", "EXCLUDE", "yes")
		require.NotEmpty(t, addUnique(t, c, queue, "b", until))
		free := addUnique(t, c, queue, "b", until)
		require.NotEmpty(t, free, "%s: and over what a producer says", queue)
		assert.NotContains(t, c.Do("SHOW", free).String(), `"unique"`, queue)
		assert.Equal(t, `*[$"exclude" $"yes"]`, c.Do("QCONFIG", "GET", queue).String(), queue)
		assert.True(t, tryUnique(c, queue, "b", "UNIQUE never").Err("ERR UNIQUE must be"), "%s: it is checked all the same", queue)
	}
	assert.Equal(t, int64(1), c.Do("QCONFIG", "DEL", "plain:free").Int())
	ok("emails:own:free", "UNIQUE", "until-processed")
	addUnique(t, c, "emails:own:free", "b", "")
	assert.Empty(t, addUnique(t, c, "emails:own:free", "b", ""), "a name over patterns")
	// A producer's own strategy leaves out settings of the queue that don't fit it.
	ok("both", "UNIQUE", "before-and-during-processing", "ONBUSY", "drop", "LOCKTTL", 9, "RUNTTL", 9, "SCOPE", "mesh", "QUORUM", "any")
	assert.NotEmpty(t, addUnique(t, c, "both", "b", "UNIQUE during-processing"))
	assert.NotEmpty(t, addUnique(t, c, "both", "c", "UNIQUE until-processed"))

	v := c.Do("QCONFIG", "GET", "emails:a")
	assert.Equal(t, `*[$"unique" $"until-processed" $"key" $"one" $"retry" $"7" $"ttl" $"100" $"delay" $"0" $"maxlen" $"5"]`, v.String())
	assert.Equal(t, `*[$"retry" $"7"]`, c.Do("QCONFIG", "GET", "emails:a", "retry", "scope").String())
	assert.Equal(t, byte('%'), s.Dial3().Do("QCONFIG", "GET", "emails:a").Kind)
	assert.Empty(t, c.Do("QCONFIG", "GET", "nothing").Elems)
	assert.Len(t, c.Do("QCONFIG", "LIST").Elems, 12)
	assert.Equal(t, int64(1), c.Do("QCONFIG", "UNSET", "emails:*", "key", "maxlen").Int())
	assert.Equal(t, int64(0), c.Do("QCONFIG", "UNSET", "emails:*", "key").Int())
	assert.NotEmpty(t, addUnique(t, c, "emails:a", "a body of its own", ""))
	assert.Equal(t, int64(1), c.Do("QCONFIG", "DEL", "emails:*").Int())
	assert.Equal(t, int64(0), c.Do("QCONFIG", "DEL", "emails:*").Int())
	assert.NotEmpty(t, addUnique(t, c, "emails:a", "a body of its own", ""))
	c.Do("FLUSHALL")
	assert.NotEmpty(t, c.Do("QCONFIG", "LIST").Elems, "settings are no data of a database")
	// MULTI and scripts
	c.Do("MULTI")
	c.Do("QCONFIG", "SET", "m", "TTL", 5)
	require.Len(t, c.Do("EXEC").Elems, 1)
	assert.Equal(t, "5", c.Do("QCONFIG", "GET", "m", "ttl").Field("ttl").Str)

	before := c.Do("QCONFIG", "LIST").String()
	for _, bad := range []string{
		"SET q", "SET q UNIQUE", "SET q UNIQUE never", "SET q TTL 0", "SET q TTL x", "SET q NOPE 1", "SET q MAXLEN 1 KEY", "SET q EXCLUDE maybe",
		"SET q UNIQUE during-processing LOCKTTL 5", "SET q UNIQUE until-processed ONBUSY drop", "SET q DELAY 10 TTL 10", "SET q UNIQUE window", "SET q UNIQUE window TTL 0",
		"SET both UNIQUE until-processed", "SET q RETRY 0 REPLICATE 2", "GET q nope", "UNSET q nope", "SET " + strings.Repeat("q", 1025) + " TTL 5", "RESTORE x", "NOPE",
	} {
		args := []any{"QCONFIG"}
		for _, w := range strings.Fields(bad) {
			args = append(args, w)
		}
		assert.Equal(t, byte('-'), c.Do(args...).Kind, bad)
	}
	assert.Equal(t, before, c.Do("QCONFIG", "LIST").String(), "a refused command has changed something")
}

func TestUniqueOff(t *testing.T) {
	c := harness.Start(t, harness.WithConfig("jobmesh.unique off")).Dial()
	ids := []string{addUnique(t, c, "q", "b", until), addUnique(t, c, "q", "b", until), addUnique(t, c, "r", "b", during), addUnique(t, c, "r", "b", during)}
	assert.NotContains(t, ids, "")
	assert.Len(t, c.Do("GETJOB", "COUNT", 10, "FROM", "r").Elems, 2)
	assert.Equal(t, "no", c.Do("CONFIG", "GET", "jobmesh.unique").Elems[1].Str)
	assert.Equal(t, byte('-'), c.Do("CONFIG", "SET", "jobmesh.unique", "maybe").Kind)
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "jobmesh.unique", "yes").Str)
	assert.NotEmpty(t, addUnique(t, c, "q", "b", until), "what was added meanwhile holds no lock")
	assert.Empty(t, addUnique(t, c, "q", "b", until))
	for _, id := range ids {
		assert.Empty(t, c.Do("SHOW", id).Field("unique").Str)
	}
	assert.True(t, tryUnique(c, "q", "b", "UNIQUE x").Err("ERR UNIQUE"))
}

func TestAsyncMultiAndScripts(t *testing.T) {
	c := harness.Start(t).Dial()
	require.NotEmpty(t, addUnique(t, c, "q", "b", until+"ASYNC"))
	assert.Empty(t, addUnique(t, c, "q", "b", until+"ASYNC"))
	c.Do("MULTI")
	c.Do("ADDJOB", "m", "b", 0, "UNIQUE", "until-processed")
	c.Do("ADDJOB", "m", "b", 0, "UNIQUE", "until-processed", "ONCONFLICT", "raise")
	v := c.Do("EXEC")
	assert.Equal(t, byte('+'), v.Elems[0].Kind)
	assert.True(t, v.Elems[1].Err("DUPLICATE"))
	v = c.Do("EVAL", `local a = redis.call('ADDJOB', 'l', 'b', 0, 'UNIQUE', 'until-processed'); return {a.ok, redis.call('ADDJOB', 'l', 'b', 0, 'UNIQUE', 'until-processed')}`, 0)
	require.NotEmpty(t, v.Elems, "%v", v)
	assert.Len(t, v.Elems[0].Str, 40)
	if len(v.Elems) > 1 {
		assert.True(t, v.Elems[1].Null)
	}
}

func TestAHundredClientsAtOnce(t *testing.T) {
	s := harness.Start(t)
	const clients = 100
	answers := make([]harness.Value, clients)
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for i := range clients {
		c := s.Dial()
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			ready.Done()
			<-start
			answers[i] = tryUnique(c, "q", fmt.Sprint(i), until)
		}()
	}
	ready.Wait()
	close(start)
	done.Wait()
	ids := 0
	for _, v := range answers {
		if v.Kind == '+' {
			ids++
		} else {
			assert.True(t, v.Null)
		}
	}
	assert.Equal(t, 1, ids)
}

func TestCountGivesOneOfAKey(t *testing.T) {
	c := harness.Start(t).Dial()
	for i := range 5 {
		addUnique(t, c, "q", fmt.Sprint(i), during)
	}
	plain := add(t, c, "q", "p", 0)
	v := c.Do("GETJOB", "COUNT", 10, "FROM", "q")
	require.Len(t, v.Elems, 2)
	assert.Equal(t, plain, v.Elems[1].Elems[1].Str)
	assert.Equal(t, int64(4), c.Do("QSTAT", "q").Field("held-back").Int())
	assert.Empty(t, c.Do("QPEEK", "q", 10).Elems, "QPEEK shows what can be fetched")
}

func TestDeadWorker(t *testing.T) {
	c := harness.Start(t).Dial()
	first, second := addUnique(t, c, "q", "1", during+"RETRY 1"), addUnique(t, c, "q", "2", during+"RETRY 100")
	require.Equal(t, first, get(t, c, "q"))
	v := c.Do("GETJOB", "TIMEOUT", 4000, "FROM", "q")
	require.Len(t, v.Elems, 1)
	assert.Equal(t, first, v.Elems[0].Elems[1].Str, "the key and the job come back together, and it is the oldest")
	none(t, c, "q")
	assert.Equal(t, int64(1), c.Do("SHOW", first).Field("additional-deliveries").Int())
	c.Do("ACKJOB", first)
	assert.Equal(t, second, get(t, c, "q"))
}

func TestRunTTL(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	first, second := addUnique(t, c, "q", "1", during+"RUNTTL 1"), addUnique(t, c, "q", "2", during+"RUNTTL 100")
	third := addUnique(t, c, "q", "3", during)
	require.Equal(t, first, get(t, c, "q"))
	for range 3 {
		time.Sleep(500 * time.Millisecond) // half of RUNTTL
		require.Equal(t, int64(300), c.Do("WORKING", first).Int(), "the heartbeat extends the lock with the job")
		none(t, c, "q")
	}
	v := c.Do("GETJOB", "TIMEOUT", 4000, "FROM", "q")
	require.Len(t, v.Elems, 1, "without it another may run, and is served at the lock's end")
	assert.Equal(t, second, v.Elems[0].Elems[1].Str)
	assert.True(t, c.Do("WORKING", first).Err("LOCKLOST"), "the first is told")
	assert.Equal(t, int64(1), c.Do("ACKJOB", first).Int(), "it is done all the same")
	none(t, c, "q")
	assert.Equal(t, "run", c.Do("SHOW", second).Field("lock").Str, "and doesn't free the other's lock")
	c.Do("ACKJOB", second)
	assert.Equal(t, third, get(t, c, "q"))
}

func TestOnBusy(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	c.Do("CONFIG", "SET", "notify-keyspace-events", "KEd")
	sub := s.Dial()
	sub.Do("SUBSCRIBE", "__keyspace@0__:q")
	first := addUnique(t, c, "q", "1", during)
	require.Equal(t, first, get(t, c, "q"))
	dropped := addUnique(t, c, "q", "2", during+"ONBUSY drop")
	later := addUnique(t, c, "q", "3", during+"ONBUSY reschedule 1")
	dead := addUnique(t, c, "q", "4", during+"ONBUSY dead")
	none(t, c, "q")
	assert.True(t, c.Do("SHOW", dropped).Null)
	event := ""
	for range 6 { // four jobs are added, and one is delivered, before
		event = sub.Receive().Strings()[2]
	}
	assert.Equal(t, "drop", event)
	assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_unique_dropped"))
	assert.Equal(t, "active", state(c, later))
	assert.Equal(t, int64(1), c.Do("SHOW", later).Field("tries").Int())
	assert.Equal(t, dead, get(t, c, "q:dead"))
	assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_unique_dead"))
	assert.Empty(t, c.Do("SHOW", dead).Field("unique").Str, "a dead letter is unique by nothing")
	c.Do("ACKJOB", first)
	v := c.Do("GETJOB", "WITHCOUNTERS", "TIMEOUT", 4000, "FROM", "q")
	require.Len(t, v.Elems, 1)
	assert.Equal(t, later, v.Elems[0].Elems[1].Str, "the same job")
	assert.Equal(t, int64(0), v.Elems[0].Elems[6].Int())
}

// A job that was dropped, or went to the dead-letter queue, is dropped, or there, after a restart too.
func TestOnBusyAfterARestart(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	c := s.Dial()
	first := addUnique(t, c, "q", "1", during)
	get(t, c, "q")
	dropped := addUnique(t, c, "q", "2", during+"ONBUSY drop")
	dead := addUnique(t, c, "q", "4", during+"ONBUSY dead")
	none(t, c, "q")
	s.Kill()
	s.Restart()
	c = s.Dial()
	assert.True(t, c.Do("SHOW", dropped).Null)
	assert.Equal(t, "q:dead", c.Do("SHOW", dead).Field("queue").Str)
	assert.Equal(t, "run", c.Do("SHOW", first).Field("lock").Str)
}

func TestTokens(t *testing.T) {
	c := harness.Start(t).Dial()
	token := func(queue string, more ...any) int64 {
		v := c.Do(append(append([]any{"GETJOB", "WITHTOKEN"}, more...), "FROM", queue)...).Elems[0]
		require.Equal(t, "token", v.Elems[len(v.Elems)-2].Str)
		return v.Elems[len(v.Elems)-1].Int()
	}
	add(t, c, "plain", "b", 0)
	assert.Zero(t, token("plain"))
	addUnique(t, c, "before", "b", "UNIQUE before-processing")
	assert.Zero(t, token("before"), "it has no lock any more")
	var last int64
	for _, options := range []string{until, during, "UNIQUE before-and-during-processing KEY k"} {
		for range 3 {
			id := addUnique(t, c, "q", "b", options)
			now := token("q", "WITHCOUNTERS")
			assert.Greater(t, now, last)
			assert.Equal(t, now, c.Do("SHOW", id).Field("token").Int())
			last = now
			c.Do("ACKJOB", id)
		}
	}
	w := s2(t, c)
	w.Send("GETJOB", "WITHTOKEN", "FROM", "w")
	waits(t, c, "w")
	addUnique(t, c, "w", "b", during)
	assert.Greater(t, w.Receive().Elems[0].Elems[4].Int(), last)
}

// Contradictions and nonsense: each has its documented error, and changes nothing.
func TestUniqueErrors(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	add(t, c, "q", "b", 0)
	before := c.Do("DEBUG", "DIGEST").Str
	for options, want := range map[string]string{
		"UNIQUE":                                syntax,
		"UNIQUE sometimes":                      "ERR UNIQUE must be",
		"UNIQUE window":                         "ERR UNIQUE window must be followed by TTL",
		"UNIQUE window KEY k":                   "ERR UNIQUE window must be followed by TTL",
		"UNIQUE window TTL":                     "ERR UNIQUE window must be followed by TTL",
		"UNIQUE window TTL 0":                   "ERR UNIQUE window must be followed by TTL",
		"UNIQUE window TTL 5 LOCKTTL 5":         "ERR LOCKTTL contradicts",
		"UNIQUE window TTL 5 RUNTTL 5":          "ERR RUNTTL and ONBUSY",
		until + "RUNTTL 5":                      "ERR RUNTTL and ONBUSY",
		until + "ONBUSY drop":                   "ERR RUNTTL and ONBUSY",
		"UNIQUE before-processing RUNTTL 1":     "ERR RUNTTL and ONBUSY",
		during + "LOCKTTL 5":                    "ERR LOCKTTL and ONCONFLICT",
		during + "ONCONFLICT raise":             "ERR LOCKTTL and ONCONFLICT",
		"KEY k":                                 "ERR KEY, SCOPE",
		"UNIQUE none KEY k":                     "ERR KEY, SCOPE",
		"SCOPE mesh":                            "ERR KEY, SCOPE",
		"QUORUM any":                            "ERR KEY, SCOPE",
		until + "SCOPE galaxy":                  "ERR SCOPE must be",
		until + "LOCKTTL 0":                     "ERR LOCKTTL must be",
		until + "LOCKTTL x":                     "ERR LOCKTTL must be",
		until + "LOCKTTL 2147483648":            "ERR LOCKTTL must be",
		during + "RUNTTL -1":                    "ERR RUNTTL must be",
		until + "ONCONFLICT explode":            "ERR ONCONFLICT must be",
		until + "ONCONFLICT reschedule":         "ERR ONCONFLICT must be",
		until + "ONCONFLICT reschedule x":       "ERR ONCONFLICT must be",
		during + "ONBUSY reschedule 0":          "ERR ONBUSY must be",
		during + "ONBUSY sing":                  "ERR ONBUSY must be",
		until + "QUORUM all":                    "ERR QUORUM must be",
		until + "TTL 5 ONCONFLICT reschedule 5": "ERR The specified reschedule",
		"UNIQUE until-processed KEY " + strings.Repeat("k", 4097):   "ERR KEY must have 4096 bytes at most",
		"UNIQUE until-processed KEY " + strings.Repeat("k", 64<<10): "ERR KEY must have 4096 bytes at most",
	} {
		v := tryUnique(c, "q", "b", options)
		assert.True(t, v.Err(want), "%.60s: %v", options, v)
	}
	assert.Equal(t, before, c.Do("DEBUG", "DIGEST").Str)
	assert.Equal(t, "1", jobs(s))
	for _, key := range []string{"", "\x00\r\n", strings.Repeat("k", 4096), strings.Repeat("k", 255), strings.Repeat("k", 256)} {
		args := []any{"ADDJOB", "any", "b", 0, "UNIQUE", "until-processed", "KEY", key}
		assert.Equal(t, byte('+'), c.Do(args...).Kind)
		assert.True(t, c.Do(args...).Null)
	}
	huge := strings.Repeat("b", 1<<20)
	assert.Equal(t, byte('+'), c.Do("ADDJOB", "any", huge, 0, "UNIQUE", "until-processed").Kind, "a body as key can be of any size")
	assert.True(t, c.Do("ADDJOB", "any", huge, 0, "UNIQUE", "until-processed").Null)
}

// Locks follow their jobs through the keyspace.
func TestLocksFollowTheJobs(t *testing.T) {
	c := harness.Start(t).Dial()
	id := addUnique(t, c, "a", "b", until)
	running, held := addUnique(t, c, "a", "1", during+"RETRY 100"), addUnique(t, c, "a", "2", during)
	get(t, c, "a")
	v := c.Do("GETJOB", "FROM", "a")
	require.Equal(t, running, v.Elems[0].Elems[1].Str)
	require.Equal(t, "OK", c.Do("RENAME", "a", "b").Str)
	assert.Empty(t, addUnique(t, c, "b", "b", until), "under its new name")
	none(t, c, "b")
	assert.Equal(t, int64(1), c.Do("QSTAT", "b").Field("held-back").Int())
	inA := addUnique(t, c, "a", "b", until)
	assert.NotEmpty(t, inA)
	c.Do("ACKJOB", running)
	assert.Equal(t, held, get(t, c, "b"))
	c.Do("NACK", id)
	dump := c.Do("DUMP", "b").Str
	c.Do("DEL", "b")
	require.Equal(t, "OK", c.Do("RESTORE", "b", 0, []byte(dump)).Str)
	assert.Empty(t, addUnique(t, c, "b", "b", until))
	assert.Equal(t, []string{"wait", "run"}, locks(c, id, held))
	c.Do("DEL", "b")
	other := addUnique(t, c, "b", "b", until)
	require.NotEmpty(t, other)
	c.Do("RENAME", "b", "c")
	require.Equal(t, "OK", c.Do("RESTORE", "d", 0, []byte(dump)).Str)
	assert.Equal(t, "wait", c.Do("SHOW", id).Field("lock").Str, "another queue")
	c.Do("MOVE", "d", 3)
	assert.NotEmpty(t, addUnique(t, c, "d", "b", until))
	c.Do("DEL", "d")
	c.Do("SELECT", 3)
	c.Do("MOVE", "d", 0)
	c.Do("SELECT", 0)
	assert.Empty(t, addUnique(t, c, "d", "b", until))
	c.Do("SWAPDB", 0, 3)
	assert.NotEmpty(t, addUnique(t, c, "d", "b", until))
	c.Do("SWAPDB", 0, 3)
	assert.Equal(t, "wait", c.Do("SHOW", id).Field("lock").Str)
	// A restored value says that its jobs have locks. If others have these, that is corrected.
	e := addUnique(t, c, "e", "b", until)
	dump = c.Do("DUMP", "e").Str
	c.Do("RENAME", "e", "f")
	c.Do("DEL", "f")
	mine := addUnique(t, c, "e", "b", "UNIQUE until-processed KEY k SCOPE mesh")
	require.NotEmpty(t, mine)
	require.Equal(t, "OK", c.Do("RESTORE", "e", 0, []byte(dump), "REPLACE").Str)
	assert.Equal(t, "wait", c.Do("SHOW", e).Field("lock").Str)
}

// A hundred thousand held-back jobs stand in front, and don't slow GETJOB down.
func TestManyHeldBack(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	const n = 100_000
	for i := range n {
		c.Later("ADDJOB", "q", i, 0, "UNIQUE", "during-processing", "KEY", "k")
		if i%1000 == 999 {
			for range 1000 {
				require.Equal(t, byte('+'), c.Receive().Kind)
			}
		}
	}
	first := get(t, c, "q")
	plain := add(t, c, "q", "p", 0)
	began := time.Now()
	assert.Equal(t, plain, get(t, c, "q"))
	for range 100 {
		none(t, c, "q")
	}
	assert.Less(t, time.Since(began), time.Second)
	c.Do("ACKJOB", first)
	assert.NotEmpty(t, get(t, c, "q"))
	assert.Equal(t, int64(n-2), c.Do("QLEN", "q").Int())
	assert.Equal(t, fmt.Sprint(n-2), s.Info("jobmesh", "jobmesh_held_back"))
	assert.Greater(t, c.Do("MEMORY", "USAGE", "q", "SAMPLES", 0).Int(), int64(n*100))
	require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
	assert.Equal(t, int64(n-2), c.Do("QLEN", "q").Int())
	require.Equal(t, int64(1), c.Do("UNLINK", "q").Int())
	harness.Await(t, 10*time.Second, "the jobs to be reaped", func() bool { return jobs(s) == "0" })
	c.Do("FLUSHALL", "ASYNC")
}

// Commands on unique jobs leave no garbage, and have no more crossings than those on others.
func TestUniqueJobs(t *testing.T) {
	harness.NotSanitized(t, "the pool, which saves crossings, is for names alone")
	s := harness.Start(t)
	c := s.Dial()
	c.Do("QCONFIG", "SET", "set*", "UNIQUE", "until-processed")
	const rounds, n = 10, 1000
	round := func() {
		for _, q := range []string{"until-processed", "during-processing", "before-and-during-processing", "setting"} {
			for i := range n {
				if q == "setting" {
					c.Send("ADDJOB", q, i, 0)
				} else {
					c.Send("ADDJOB", q, "b", 0, "UNIQUE", q, "KEY", i)
				}
			}
			for range n {
				require.Equal(t, byte('+'), c.Receive().Kind)
			}
			finish(t, c, n, "WITHTOKEN", "FROM", q)
		}
	}
	round()
	calls, allocs := number(t, s, "jobmesh", "jobmesh_go_calls_to_c"), number(t, s, "jobmesh", "jobmesh_go_allocations")
	for range rounds {
		round()
	}
	const ops = rounds * n * 12
	assert.Less(t, number(t, s, "jobmesh", "jobmesh_go_calls_to_c")-calls, int64(ops/10))
	assert.Less(t, number(t, s, "jobmesh", "jobmesh_go_allocations")-allocs, int64(ops/100))
}

// The run of a job with RETRY 0 ends by RUNTTL, as other runs do. While another job has the key, the
// worker learns that from WORKING. When the key is free, WORKING takes it back, unless the worker has
// given the job back.
func TestRunTTLAtMostOnce(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	lock := func(id string) string { return c.Do("SHOW", id).Field("lock").Str }
	first := addUnique(t, c, "q", "1", during+"RUNTTL 1 RETRY 0")
	second := addUnique(t, c, "q", "2", during+"RUNTTL 100 RETRY 0")
	require.Equal(t, first, get(t, c, "q"))
	v := c.Do("GETJOB", "TIMEOUT", 4000, "FROM", "q")
	require.Len(t, v.Elems, 1, "the second runs at the lock's end")
	assert.Equal(t, second, v.Elems[0].Elems[1].Str)
	answer := c.Do("WORKING", first)
	assert.True(t, answer.Err("LOCKLOST"), "another has the key: %v", answer)
	c.Do("NACK", second)
	assert.Zero(t, c.Do("WORKING", first).Int())
	assert.Equal(t, "run", lock(first))
	harness.Await(t, 4*time.Second, "the end of what was taken back", func() bool { return lock(first) == "none" })
	assert.Zero(t, c.Do("WORKING", second).Int())
	assert.Equal(t, "none", lock(second), "it was given back")
}

// A job that comes back to be processed again is unique while it waits, as at first, unless another
// was added meanwhile. This holds after a restart, too.
func TestUniqueAgainWhenItComesBack(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"before-processing", "before-and-during-processing"} {
		t.Run(strategy, func(t *testing.T) {
			s := harness.Start(t, harness.WithConfig("appendonly yes"))
			c := s.Dial()
			unique := "RETRY 1 UNIQUE " + strategy + " KEY k"
			id := addUnique(t, c, "q", "b", unique)
			for _, how := range []string{"NACK", "retry time", "ENQUEUE"} {
				require.Equal(t, id, get(t, c, "q"), how)
				assert.NotEqual(t, "wait", c.Do("SHOW", id).Field("lock").Str, how)
				if how != "retry time" {
					require.Equal(t, int64(1), c.Do(how, id).Int())
				}
				harness.Await(t, 5*time.Second, how, func() bool { return state(c, id) == "queued" })
				assert.Equal(t, "wait", c.Do("SHOW", id).Field("lock").Str, how)
				assert.Empty(t, addUnique(t, c, "q", "b", unique), how)
			}
			s.AwaitLogged()
			s.Kill()
			s.Restart()
			c = s.Dial()
			assert.Empty(t, addUnique(t, c, "q", "b", unique), "after a restart")
			require.Equal(t, id, get(t, c, "q"))
			other := addUnique(t, c, "q", "b", unique)
			require.NotEmpty(t, other, "while it is processed")
			require.Equal(t, int64(1), c.Do("NACK", id).Int())
			assert.Contains(t, []string{"wait", "held-back"}, c.Do("SHOW", other).Field("lock").Str)
			assert.NotEqual(t, "wait", c.Do("SHOW", id).Field("lock").Str)
			assert.Equal(t, int64(2), c.Do("QLEN", "q").Int())
		})
	}
}

// From the moment on at which loglevel is verbose, the log names each job that is dropped for its
// key, when it is added or when it is to be delivered.
func TestDroppedJobsAreLogged(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	const drop = "UNIQUE until-processed KEY \xff"
	first := addUnique(t, c, "q", "b", drop)
	require.True(t, c.Do("ADDJOB", "q", "b", 0, "UNIQUE", "until-processed", "KEY", "\xff").Null)
	assert.NotContains(t, s.Log(), "is dropped")
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "loglevel", "verbose").Str)
	require.True(t, c.Do("ADDJOB", "q", "b", 0, "UNIQUE", "until-processed", "KEY", "\xff").Null)
	assert.Contains(t, s.Log(), `a new job of the queue "q" is dropped: `+first+` has the key "\xff"`)
	long := strings.Repeat("k", 65)
	runs := addUnique(t, c, "run", "b", "UNIQUE during-processing ONBUSY drop KEY "+long)
	require.Equal(t, runs, get(t, c, "run"))
	second := addUnique(t, c, "run", "b", "UNIQUE during-processing ONBUSY drop KEY "+long)
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "run").Null)
	assert.Contains(t, s.Log(), second+` of the queue "run" is dropped: `+runs+` has the key "`+long[:64]+`"…`)
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "loglevel", "notice").Str)
	before := strings.Count(s.Log(), "is dropped")
	require.True(t, c.Do("ADDJOB", "q", "b", 0, "UNIQUE", "until-processed", "KEY", "\xff").Null)
	assert.Equal(t, before, strings.Count(s.Log(), "is dropped"))
}

// A worker frees the key of an until-processed job whose run has failed, as sidekiq_unicity does:
// the job comes back without its lock, and another can be added.
func TestUntilProcessedFreedByAFailedRun(t *testing.T) {
	c := harness.Start(t).Dial()
	again := func(body string) harness.Value {
		return c.Do("ADDJOB", "q", body, 0, "RETRY", 600, "UNIQUE", "until-processed", "KEY", "k")
	}
	id := again("1").Str
	require.Len(t, c.Do("GETJOB", "FROM", "q").Elems, 1)
	require.NotEqual(t, byte('+'), again("2").Kind)
	require.Equal(t, int64(1), c.Do("LOCK.CLEAR", "NAME", "k", "TYPE", "waiting", "QUEUE", "q").Int())
	require.Equal(t, int64(1), c.Do("NACK", id).Int())
	assert.Equal(t, "none", c.Do("SHOW", id).Field("lock").Str)
	assert.Equal(t, byte('+'), again("2").Kind)
	assert.Equal(t, int64(2), c.Do("QLEN", "q").Int())
}
