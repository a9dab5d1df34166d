package single

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// resting checks that a job is in no queue, in nobody's hands, and comes back within some time, ms.
func resting(t *testing.T, c *harness.Conn, id, queue string, within int64) {
	t.Helper()
	require.Equal(t, int64(0), c.Do("QLEN", queue).Int())
	require.Empty(t, c.Do("WIP", queue).Elems)
	require.Equal(t, int64(1), c.Do("QSTAT", queue).Field("delayed").Int())
	next := c.Do("SHOW", id).Field("next-requeue-within").Int()
	require.LessOrEqual(t, next, within)
	require.Greater(t, next, within-5000)
}

// F1: a job that is given back with a delay comes back after that, at its old place, and only the NACK is counted.
func TestLifeF1(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "first", 0)
	get(t, c, "q")
	require.Equal(t, int64(1), c.Do("NACK", id, "DELAY", 2).Int())
	began := time.Now()
	resting(t, c, id, "q", 2000)
	add(t, c, "q", "second", 0)
	require.Equal(t, int64(0), c.Do("NACK", id).Int(), "it was given back")
	harness.Await(t, 10*time.Second, "the job is back", func() bool { return c.Do("QLEN", "q").Is(2) })
	assert.InDelta(t, 2, time.Since(began).Seconds(), 1)
	v := c.Do("GETJOB", "WITHCOUNTERS", "FROM", "q").Elems[0]
	assert.Equal(t, []string{"q", id, "first"}, v.Strings()[:3])
	assert.Equal(t, int64(1), v.Elems[4].Int(), "nacks")
	assert.Equal(t, int64(0), v.Elems[6].Int(), "additional deliveries")
}

// F2: the same with a restart in the middle, whatever the data are saved by.
func TestLifeF2(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		id := add(t, c, "q", "b", 0)
		get(t, c, "q")
		began := time.Now()
		require.Equal(t, int64(1), c.Do("NACK", id, "DELAY", 4, "REASON", "why").Int())
		comeBack(t, s, mode)
		c = s.Dial()
		resting(t, c, id, "q", 4000)
		v := c.Do("SHOW", id)
		assert.Equal(t, "why", v.Field("reason").Str)
		assert.Equal(t, int64(1), v.Field("nacks").Int())
		harness.Await(t, 20*time.Second, "the job is back", func() bool { return c.Do("QLEN", "q").Is(1) })
		assert.InDelta(t, 4, time.Since(began).Seconds(), 1.5)
		assert.Equal(t, int64(0), c.Do("SHOW", id).Field("additional-deliveries").Int())
	}, "aof", "rdb", "reload", "aof-rewritten")
}

// F3: what is wrong with a NACK changes nothing.
func TestLifeF3(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0)
	get(t, c, "q")
	const delay, syntax = "-ERR DELAY time must be a non negative number", "-ERR syntax error"
	for _, wrong := range []struct{ args, want string }{
		{"DELAY x", delay}, {"DELAY -1", delay}, {"DELAY 2147483648", delay}, {"DELAY 1.5.", delay}, {"DELAY", syntax}, {"bogus", "-BADID"},
		{"DELAY 1 bogus", syntax}, {"DEAD bogus", syntax}, {"REASON", syntax}, {"REASON a b", syntax}, {"DELAY 1 DELAY 2", syntax}, {"DEAD DEAD", syntax},
		{"REASON a REASON b", syntax}, {"DELAY 1 DEAD", "-ERR DELAY and DEAD exclude each other"}, {"DEAD DELAY 0", "-ERR DELAY and DEAD exclude each other"},
		{"short DELAY 1", "-BADID"}, {"DELAY 1 " + id, syntax},
	} {
		v := c.Do(split("NACK " + id + " " + wrong.args)...)
		require.True(t, v.Err(wrong.want[1:]), "%s: %v", wrong.args, v)
	}
	for _, args := range [][]any{{"NACK", "DELAY", 1}, {"NACK", "DEAD"}, {"NACK", "REASON", "x"}} {
		require.True(t, c.Do(args...).Err("ERR syntax error"), "%v", args)
	}
	require.Equal(t, int64(0), c.Do("NACK").Int())
	assert.Len(t, c.Do("WIP", "q").Elems, 1)
	assert.Equal(t, int64(0), c.Do("SHOW", id).Field("nacks").Int())
}

// F4: a reason is the one argument behind its word, whatever it looks like. A long one is cut off at the boundary of a character.
func TestLifeF4(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0)
	give := func(args ...any) harness.Value {
		t.Helper()
		get(t, c, "q")
		require.Equal(t, int64(1), c.Do(append([]any{"NACK", id}, args...)...).Int())
		return c.Do("SHOW", id)
	}
	for _, reason := range []string{id, "DELAY", "DEAD", "reason", "", "two words\r\n", "\x00\xff"} {
		v := give("REASON", reason).Field("reason")
		assert.Equal(t, reason == "", v.Null)
		assert.Equal(t, reason, v.Str)
	}
	long := give("reason", strings.Repeat("ä", 600)+"x").Field("reason").Str
	assert.Equal(t, strings.Repeat("ä", 512), long)
	long = give("REASON", "x"+strings.Repeat("ä", 600)).Field("reason").Str
	assert.Equal(t, "x"+strings.Repeat("ä", 511), long)
	assert.True(t, utf8.ValidString(long))
	assert.Len(t, give("REASON", strings.Repeat("\xbf", 5000)).Field("reason").Str, 1024)
	before := give("REASON", "kept")
	after := give()
	assert.Equal(t, "kept", after.Field("reason").Str, "a NACK without a reason leaves the last one")
	assert.Equal(t, before.Field("failed-at").Int(), after.Field("failed-at").Int())

	require.Len(t, c.Do("GETJOB", "WORKER", "w7", "FROM", "q").Elems, 1)
	began := time.Now()
	require.Equal(t, int64(1), c.Do("NACK", id, "REASON", "bad").Int())
	v := c.Do("SHOW", id)
	assert.Equal(t, "w7", v.Field("failed-by").Str)
	assert.InDelta(t, began.UnixMilli(), v.Field("failed-at").Int(), 5000)
}

// F12: NACK works while the queue is paused in input. A job that rests comes after the pause.
func TestLifeF12(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	ids := []string{add(t, c, "q", "a", 0), add(t, c, "q", "b", 0)}
	get(t, c, "q")
	get(t, c, "q")
	c.Do("PAUSE", "q", "in")
	require.Equal(t, int64(1), c.Do("NACK", ids[0]).Int())
	require.Equal(t, int64(1), c.Do("NACK", ids[1], "DELAY", 1).Int())
	require.Equal(t, int64(1), c.Do("QLEN", "q").Int())
	harness.Await(t, 10*time.Second, "its time to be over", func() bool { return c.Do("SHOW", ids[1]).Field("next-requeue-within").Int() > 5000 })
	require.Equal(t, int64(1), c.Do("QLEN", "q").Int())
	c.Do("PAUSE", "q", "none")
	harness.Await(t, 10*time.Second, "the job to come back", func() bool { return c.Do("QLEN", "q").Is(2) })
	v := c.Do("SHOW", ids[1])
	assert.Equal(t, int64(1), v.Field("nacks").Int())
	assert.Equal(t, int64(0), v.Field("additional-deliveries").Int())
}

// F14: the waiting lock of a job that rests stays, or is taken again; its run's lock is free.
func TestLifeF14(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	for _, strategy := range []string{"until-processed", "before-processing", "before-and-during-processing"} {
		id := add(t, c, strategy, "b", 0, "UNIQUE", strategy)
		get(t, c, strategy)
		require.Equal(t, int64(1), c.Do("NACK", id, "DELAY", 100).Int())
		v := c.Do("ADDJOB", strategy, "b", 0, "UNIQUE", strategy)
		assert.True(t, v.Null, "%s: %v", strategy, v)
		require.Equal(t, int64(1), c.Do("ENQUEUE", id).Int())
		get(t, c, strategy)
		require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
		add(t, c, strategy, "b", 0, "UNIQUE", strategy)
	}
	first := add(t, c, "run", "1", 0, "UNIQUE", "during-processing", "KEY", "k")
	second := add(t, c, "run", "2", 0, "UNIQUE", "during-processing", "KEY", "k")
	get(t, c, "run")
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "run").NullArray())
	require.Equal(t, int64(1), c.Do("NACK", first, "DELAY", 1).Int())
	require.Equal(t, second, c.Do("GETJOB", "FROM", "run").Elems[0].Elems[1].Str, "the next of the key runs at once")
	harness.Await(t, 10*time.Second, "the first to come back", func() bool { return c.Do("SHOW", first).Field("state").Str == "queued" })
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "run").NullArray())
	require.Equal(t, int64(1), c.Do("ACKJOB", second).Int())
	require.Equal(t, first, c.Do("GETJOB", "FROM", "run").Elems[0].Elems[1].Str)

	// A client that waits gets the next one when the key is free.
	third := add(t, c, "run", "3", 0, "UNIQUE", "during-processing", "KEY", "k")
	w := s.Dial()
	w.Send("GETJOB", "FROM", "run")
	awaitBlocked(t, s, 1)
	require.Equal(t, int64(1), c.Do("NACK", first, "DELAY", 100).Int())
	require.Equal(t, third, w.Receive().Elems[0].Elems[1].Str)
}

// F15: an at-most-once job that was delivered stays out, with any option.
func TestLifeF15(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 0)
	get(t, c, "q")
	for _, options := range [][]any{{"DELAY", 5}, {"DELAY", 5, "REASON", "x"}, {"DEAD"}, {"REASON", "x"}, {"DELAY", 0}} {
		require.Equal(t, int64(0), c.Do(append([]any{"NACK", id}, options...)...).Int(), "%v", options)
	}
	assert.Equal(t, "active", state(c, id))
	assert.Equal(t, int64(0), c.Do("QLEN", "q:dead").Int())
}

// F16: a delay never leads past the job's life: its retry time is left then, or half of what is left if that is more.
func TestLifeF16(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 60, "TTL", 300)
	get(t, c, "q")
	require.Equal(t, int64(1), c.Do("NACK", id, "DELAY", 100_000).Int())
	resting(t, c, id, "q", 240_000)
	short := add(t, c, "short", "b", 0, "RETRY", 60, "TTL", 50)
	get(t, c, "short")
	require.Equal(t, int64(1), c.Do("NACK", short, "DELAY", 20).Int())
	resting(t, c, short, "short", 20_000)
	require.Equal(t, int64(1), c.Do("ENQUEUE", short).Int())
	get(t, c, "short")
	require.Equal(t, int64(1), c.Do("NACK", short, "DELAY", 40).Int())
	resting(t, c, short, "short", 25_000)
}

// F17: ENQUEUE brings a job that rests at once.
func TestLifeF17(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0)
	get(t, c, "q")
	require.Equal(t, int64(1), c.Do("NACK", id, "DELAY", 1000).Int())
	require.Equal(t, int64(1), c.Do("ENQUEUE", id).Int())
	require.Equal(t, int64(1), c.Do("QLEN", "q").Int())
	assert.Equal(t, int64(1), c.Do("SHOW", id).Field("nacks").Int())
	assert.Equal(t, int64(1), c.Do("SHOW", id).Field("additional-deliveries").Int(), "as for any ENQUEUE")
	require.Equal(t, id, get(t, c, "q"))
}

// D1: a dead job keeps its ID, body and counters, and tells when and why it died, and where it came from.
func TestLifeD1(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		id := add(t, c, "mail", "body", 0, "TTL", 100)
		require.Len(t, c.Do("GETJOB", "WORKER", "w1", "FROM", "mail").Elems, 1)
		began := time.Now()
		require.Equal(t, int64(1), c.Do("NACK", id, "DEAD", "REASON", "no such address").Int())
		check := func(nacks int64) {
			t.Helper()
			v := c.Do("SHOW", id)
			for field, want := range map[string]string{
				"id": id, "body": "body", "queue": "mail:dead", "state": "queued", "why": "nacked", "from": "mail", "reason": "no such address", "failed-by": "w1",
			} {
				assert.Equal(t, want, v.Field(field).Str, field)
			}
			assert.Equal(t, nacks, v.Field("nacks").Int())
			assert.InDelta(t, began.UnixMilli(), v.Field("died").Int(), 10_000)
			assert.InDelta(t, 7*86400, v.Field("ttl").Int(), 60, "a week")
		}
		check(1)
		assert.Equal(t, int64(1), c.Do("QSTAT", "mail").Field("dead").Int())
		assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_jobs_dead"))
		assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_dead_nacked"))
		comeBack(t, s, mode)
		c = s.Dial()
		check(1)
		require.Equal(t, id, c.Do("GETJOB", "FROM", "mail:dead").Elems[0].Elems[1].Str)
		require.Equal(t, int64(1), c.Do("NACK", id, "DEAD").Int())
		check(2)
		assert.Equal(t, int64(0), c.Do("QLEN", "mail:dead:dead").Int(), "nothing dies twice")
		require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
	}, "aof", "rdb", "reload")
}

// The other ways into a dead-letter queue say why, too.
func TestWhyAJobIsDead(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	runs := add(t, c, "q", "1", 0, "UNIQUE", "during-processing", "KEY", "k")
	busy := add(t, c, "q", "2", 0, "UNIQUE", "during-processing", "KEY", "k", "ONBUSY", "dead")
	require.Equal(t, runs, c.Do("GETJOB", "FROM", "q").Elems[0].Elems[1].Str)
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
	v := c.Do("SHOW", busy)
	assert.Equal(t, []string{"busy", "q", "q:dead"}, []string{v.Field("why").Str, v.Field("from").Str, v.Field("queue").Str})
	parent := add(t, c, "p", "1", 0)
	child := add(t, c, "p", "2", 0, "AFTER", parent, "ONDEAD", "dead")
	require.Equal(t, int64(1), c.Do("CANCELJOB", parent).Int())
	v = c.Do("SHOW", child)
	assert.Equal(t, []string{"parent", "p", "p:dead"}, []string{v.Field("why").Str, v.Field("from").Str, v.Field("queue").Str})
}

// D11: where the key of the dead-letter queue holds something else, the job is tried again later, with one line in the log.
func TestLifeD11(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	c.Do("SET", "q:dead", "x")
	var ids []string
	for range 3 {
		ids = append(ids, add(t, c, "q", "b", 0))
		get(t, c, "q")
		require.Equal(t, int64(1), c.Do("NACK", ids[len(ids)-1], "DEAD").Int())
	}
	next := c.Do("SHOW", ids[0]).Field("next-requeue-within").Int()
	assert.InDelta(t, 60_000, next, 5000)
	assert.Equal(t, 1, strings.Count(s.Log(), "can't become a dead letter"), "one line")
	require.Equal(t, int64(1), c.Do("DEL", "q:dead").Int())
	s.AwaitLogged()
	s.Kill()
	s.Restart()
	c = s.Dial()
	require.Equal(t, int64(3), c.Do("ENQUEUE", ids[0], ids[1], ids[2]).Int())
	require.Equal(t, int64(3), c.Do("QLEN", "q:dead").Int())
	assert.Equal(t, "nacked", c.Do("SHOW", ids[0]).Field("why").Str)
}

// D13: NACK DEAD of five jobs, one of which isn't known.
func TestLifeD13(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	args := []any{"NACK"}
	for range 5 {
		args = append(args, add(t, c, "q", "b", 0))
		get(t, c, "q")
	}
	require.Equal(t, int64(1), c.Do("ACKJOB", args[3]).Int())
	require.Equal(t, int64(4), c.Do(append(args, "DEAD")...).Int())
	require.Equal(t, int64(4), c.Do("QLEN", "q:dead").Int())
}

// The same for a job of ONDEAD dead, and for one of ONEXPIRE dead, which lives on meanwhile, and isn't tried in each tick.
func TestDyingWhereTheDeadQueueCannotBe(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	c.Do("SET", "q:dead", "x")
	parent := add(t, c, "p", "b", 0)
	child := add(t, c, "q", "child", 0, "AFTER", parent, "ONDEAD", "dead")
	expires := add(t, c, "q", "expires", 0, "TTL", 1, "RETRY", 1, "ONEXPIRE", "dead")
	require.Equal(t, int64(1), c.Do("CANCELJOB", parent).Int())
	require.Equal(t, "q", c.Do("SHOW", child).Field("queue").Str)
	harness.Await(t, 10*time.Second, "its life to be over", func() bool { return c.Do("SHOW", expires).Field("next-requeue-within").Int() > 50_000 })
	before, err := s.AOF()
	require.NoError(t, err)
	time.Sleep(300 * time.Millisecond) // in which nothing happens to it
	after, err := s.AOF()
	require.NoError(t, err)
	assert.Less(t, len(after)-len(before), 5)
	require.Equal(t, int64(1), c.Do("DEL", "q:dead").Int())
	require.Equal(t, int64(2), c.Do("ENQUEUE", child, expires).Int())
	assert.Equal(t, []string{"parent", "expired"}, []string{c.Do("SHOW", child).Field("why").Str, c.Do("SHOW", expires).Field("why").Str})
	require.Equal(t, int64(2), c.Do("QLEN", "q:dead").Int())
}

// WORKING changes nothing of a job that was put off: nobody has it.
func TestWorkingOnAJobThatWasPutOff(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 10)
	get(t, c, "q")
	require.Equal(t, int64(1), c.Do("NACK", id, "DELAY", 1000).Int())
	require.Equal(t, int64(10), c.Do("WORKING", id).Int())
	resting(t, c, id, "q", 1_000_000)
}

// The TTL of a job that dies and is revived again and again stays what it was.
func TestTheTTLStaysOverRevivals(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := dies(t, c, "q", "b", "TTL", 20)
	for range 4 {
		require.Equal(t, int64(1), c.Do("MOVEJOB", id).Int())
		assert.LessOrEqual(t, c.Do("SHOW", id).Field("ttl").Int(), int64(20))
		time.Sleep(600 * time.Millisecond) // the job must grow older
		require.Equal(t, id, get(t, c, "q"))
		require.Equal(t, int64(1), c.Do("NACK", id, "DEAD").Int())
	}
}
