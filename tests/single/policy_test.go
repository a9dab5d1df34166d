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

// giveBack fetches a job and gives it back, and returns for how long it rests, ms; 0: it is queued.
func giveBack(t *testing.T, c *harness.Conn, queue, id string, args ...any) int64 {
	t.Helper()
	if c.Do("QLEN", queue).Is(0) {
		require.Equal(t, int64(1), c.Do("ENQUEUE", id).Int())
	}
	require.Equal(t, id, c.Do("GETJOB", "FROM", queue).Elems[0].Elems[1].Str)
	require.Equal(t, int64(1), c.Do(append([]any{"NACK", id}, args...)...).Int())
	if v := c.Do("SHOW", id); v.Field("state").Str == "active" {
		return v.Field("next-requeue-within").Int()
	}
	return 0
}

// F5: each failure is followed by a longer rest, up to the longest. With JITTER the rests are shortened, and differ.
func TestLifeF5(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 300, "BACKOFF", 1, 8, "JITTER", 0)
	for _, want := range []float64{1, 2, 4, 8, 8, 8} {
		assert.InDelta(t, want, float64(giveBack(t, c, "q", id))/1000, 0.6)
	}
	assert.Zero(t, giveBack(t, c, "q", id, "DELAY", 0), "DELAY counts more")
	assert.InDelta(t, 100, float64(giveBack(t, c, "q", id, "DELAY", 100))/1000, 1)

	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "j", "BACKOFF", 1000, 1000, "JITTER", 50).Str)
	rests := map[int64]bool{}
	for i := range 20 {
		rest := giveBack(t, c, "j", add(t, c, "j", fmt.Sprint(i), 0, "RETRY", 300))
		assert.InDelta(t, 750_000, rest, 251_000)
		rests[rest/1000] = true
	}
	assert.Greater(t, len(rests), 10, "not all alike")
	assert.Zero(t, giveBack(t, c, "j", add(t, c, "j", "none", 0, "BACKOFF", 0, 0)), "none, in spite of the queue's")

	// The setting counts for jobs that wait already, and no more when it is gone.
	late := add(t, c, "late", "b", 0)
	c.Do("QCONFIG", "SET", "late", "BACKOFF", 100, 100, "JITTER", 0)
	assert.InDelta(t, 100, float64(giveBack(t, c, "late", late))/1000, 1)
	c.Do("QCONFIG", "UNSET", "late", "BACKOFF")
	assert.Zero(t, giveBack(t, c, "late", late))
}

// F6: the n-th NACK makes a job a dead letter.
func TestLifeF6(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	c := s.Dial()
	id := add(t, c, "q", "b", 0, "MAXNACKS", 3)
	assert.Zero(t, giveBack(t, c, "q", id))
	assert.Zero(t, giveBack(t, c, "q", id))
	s.Kill()
	s.Restart()
	c = s.Dial()
	require.Len(t, c.Do("GETJOB", "WORKER", "w", "FROM", "q").Elems, 1)
	require.Equal(t, int64(1), c.Do("NACK", id, "REASON", "bad").Int())
	v := c.Do("SHOW", id)
	for field, want := range map[string]string{"queue": "q:dead", "state": "queued", "why": "max-nacks", "reason": "bad", "failed-by": "w", "from": "q"} {
		assert.Equal(t, want, v.Field(field).Str, field)
	}
	assert.Equal(t, int64(3), v.Field("nacks").Int())
	assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_dead_max-nacks"))
}

// F7: a job whose workers vanish is given up when it was delivered as often as it may be.
func TestLifeF7(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 1, "MAXDELIVERIES", 2)
	for i := range 2 {
		require.Equal(t, id, c.Do("GETJOB", "FROM", "q").Elems[0].Elems[1].Str)
		assert.Equal(t, int64(i+1), c.Do("SHOW", id).Field("deliveries").Int())
	}
	harness.Await(t, 20*time.Second, "its second lapse", func() bool { return c.Do("QLEN", "q:dead").Is(1) })
	v := c.Do("SHOW", id)
	assert.Equal(t, "max-deliveries", v.Field("why").Str)
	assert.Equal(t, int64(0), v.Field("nacks").Int())

	// The last delivery that is given back makes it dead, too. ENQUEUE counts against no limit.
	id = add(t, c, "e", "b", 0, "MAXDELIVERIES", 2)
	giveBack(t, c, "e", id)
	require.Equal(t, id, c.Do("GETJOB", "FROM", "e").Elems[0].Elems[1].Str)
	require.Equal(t, int64(1), c.Do("ENQUEUE", id).Int())
	require.Equal(t, int64(1), c.Do("QLEN", "e").Int())
	require.Equal(t, id, c.Do("GETJOB", "FROM", "e").Elems[0].Elems[1].Str)
	require.Equal(t, int64(1), c.Do("NACK", id).Int())
	assert.Equal(t, "max-deliveries", c.Do("SHOW", id).Field("why").Str)
}

// A delivery isn't counted when the client was gone before its answer.
func TestADeliveryToNobodyIsNotCounted(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c, w := s.Dial(), s.Dial()
	c.Do("QCONFIG", "SET", "q", "MAXDELIVERIES", 1)
	w.Send("GETJOB", "FROM", "q")
	awaitBlocked(t, s, 1)
	w.Close()
	id := add(t, c, "q", "b", 0)
	harness.Await(t, 10*time.Second, "the client to be gone", func() bool { return s.Info("jobmesh", "jobmesh_blocked_clients") == "0" })
	require.Equal(t, id, c.Do("GETJOB", "FROM", "q").Elems[0].Elems[1].Str)
	assert.Equal(t, int64(1), c.Do("SHOW", id).Field("deliveries").Int())
}

// F10: with appendfsync always a crash between the delivery and the NACK forgets no delivery.
func TestLifeF10(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	c := s.Dial()
	id := add(t, c, "q", "b", 0, "MAXDELIVERIES", 2)
	require.Equal(t, id, get(t, c, "q"))
	s.Kill()
	s.Restart()
	c = s.Dial()
	assert.Equal(t, int64(1), c.Do("SHOW", id).Field("deliveries").Int())
	if c.Do("QLEN", "q").Is(0) {
		require.Equal(t, int64(1), c.Do("ENQUEUE", id).Int())
	}
	require.Equal(t, id, get(t, c, "q"))
	require.Equal(t, int64(1), c.Do("NACK", id).Int())
	assert.Equal(t, "max-deliveries", c.Do("SHOW", id).Field("why").Str)
}

// F11: a setting costs no memory for the jobs that wait already, and counts for those that fail from then on.
func TestLifeF11(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	const jobs = 100_000
	for range jobs / 10_000 {
		require.Len(t, addJobs(c, "q 0", 10_000).Elems, 10_000)
	}
	used := number(t, s, "memory", "used_memory")
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "q", "MAXNACKS", 2).Str)
	assert.Less(t, number(t, s, "memory", "used_memory")-used, int64(100_000), "less than a byte a job")
	id := get(t, c, "q")
	require.Equal(t, int64(1), c.Do("NACK", id).Int())
	require.Equal(t, id, get(t, c, "q"))
	require.Equal(t, int64(1), c.Do("NACK", id).Int())
	assert.Equal(t, "q:dead", c.Do("SHOW", id).Field("queue").Str)
}

// D2: how long a dead letter lives.
func TestLifeD2(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	dies := func(queue string, options ...any) string {
		t.Helper()
		id := add(t, c, append([]any{queue, "b", 0, "MAXNACKS", 1}, options...)...)
		get(t, c, queue)
		require.Equal(t, int64(1), c.Do("NACK", id).Int())
		return id
	}
	week := dies("week", "TTL", 5)
	short := dies("short", "TTL", 1000, "DEADTTL", 2)
	gone := dies("gone", "DEADTTL", 0)
	long := dies("long", "TTL", 3_000_000)
	assert.InDelta(t, 7*86400, c.Do("SHOW", week).Field("ttl").Int(), 60)
	assert.InDelta(t, 3_000_000, c.Do("SHOW", long).Field("ttl").Int(), 60)
	assert.True(t, c.Do("SHOW", gone).Null, "gone at once")
	assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_jobs_dropped"))
	harness.Await(t, 10*time.Second, "it to expire", func() bool { return c.Do("SHOW", short).Null })
	require.Equal(t, int64(1), c.Do("QLEN", "week:dead").Int())

	c.Do("QCONFIG", "SET", "*", "DEADTTL", 50)
	assert.InDelta(t, 50, c.Do("SHOW", dies("set")).Field("ttl").Int(), 5)
}

// D3: a job whose life is over becomes a dead letter, where that is wanted.
func TestLifeD3(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	waits := add(t, c, "q", "waits", 0, "TTL", 1, "ONEXPIRE", "dead")
	drops := add(t, c, "q", "drops", 0, "TTL", 1)
	works := add(t, c, "w", "works", 0, "TTL", 1, "RETRY", 2, "ONEXPIRE", "dead")
	once := add(t, c, "once", "once", 0, "TTL", 1, "RETRY", 0, "ONEXPIRE", "dead")
	given := add(t, c, "given", "given", 0, "TTL", 1, "RETRY", 0, "ONEXPIRE", "dead")
	require.Equal(t, works, get(t, c, "w"))
	require.Equal(t, given, get(t, c, "given"))
	for queue, id := range map[string]string{"q:dead": waits, "once:dead": once, "w:dead": works} {
		harness.Await(t, 20*time.Second, queue+" to have a job", func() bool { return c.Do("QLEN", queue).Is(1) })
		v := c.Do("SHOW", id)
		assert.Equal(t, "expired", v.Field("why").Str)
		assert.Equal(t, strings.TrimSuffix(queue, ":dead"), v.Field("from").Str)
	}
	harness.Await(t, 20*time.Second, "the others to be gone", func() bool { return c.Do("SHOW", drops).Null && c.Do("SHOW", given).Null })
	require.Equal(t, int64(1), c.Do("ACKJOB", works).Int(), "its worker ends it there")
	require.Equal(t, int64(0), c.Do("QLEN", "w:dead").Int())
	assert.Equal(t, "3", s.Info("jobmesh", "jobmesh_dead_expired"))
}

// D4: nothing dies twice, whatever the settings say.
func TestLifeD4(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	c.Do("QCONFIG", "SET", "*", "MAXNACKS", 1, "MAXDELIVERIES", 1, "BACKOFF", 100, 100, "ONEXPIRE", "dead", "DEADTTL", 3)
	id := add(t, c, "q", "b", 0)
	get(t, c, "q")
	require.Equal(t, int64(1), c.Do("NACK", id).Int())
	for range 3 {
		require.Equal(t, id, get(t, c, "q:dead"))
		require.Equal(t, int64(1), c.Do("NACK", id).Int())
		require.Equal(t, int64(1), c.Do("QLEN", "q:dead").Int())
	}
	harness.Await(t, 10*time.Second, "it to expire for good", func() bool { return c.Do("SHOW", id).Null })
	assert.Equal(t, int64(0), c.Do("QLEN", "q:dead:dead").Int())
}

// DEAD names the dead-letter queue.
func TestDeadNamesTheQueue(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	c.Do("QCONFIG", "SET", "a*", "DEAD", "graves", "MAXNACKS", 1)
	for _, of := range []struct{ queue, dead string }{{"a1", "graves"}, {"a2", "graves"}, {"b", "b:dead"}} {
		id := add(t, c, of.queue, "b", 0)
		get(t, c, of.queue)
		require.Equal(t, int64(1), c.Do("NACK", id, "DEAD").Int())
		assert.Equal(t, of.dead, c.Do("SHOW", id).Field("queue").Str)
	}
	c.Do("QCONFIG", "SET", "self", "DEAD", "self")
	for queue, options := range map[string][]any{"own": {"DEAD", "mine"}, "self": nil} {
		id := add(t, c, append([]any{queue, "b", 0}, options...)...)
		get(t, c, queue)
		require.Equal(t, int64(1), c.Do("NACK", id, "DEAD").Int())
		want := map[string]string{"own": "mine", "self": "self:dead"}[queue]
		assert.Equal(t, want, c.Do("SHOW", id).Field("queue").Str)
	}
}

// Options that are wrong, in ADDJOB, ADDJOBS and QCONFIG.
func TestPoliciesThatAreRefused(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	backoff, jitter := "ERR BACKOFF must be followed by base and max", "ERR JITTER must be between 0 and 100, behind BACKOFF base max"
	for words, want := range map[string]string{
		"BACKOFF 1 x": backoff, "BACKOFF 2 1": backoff, "BACKOFF 0 1": backoff, "BACKOFF -1 1": backoff, "BACKOFF 1 2147483648": backoff,
		"BACKOFF 1 2 JITTER 101": jitter, "BACKOFF 1 2 JITTER x": jitter, "JITTER 5": jitter, "MAXNACKS 5 JITTER 5": jitter,
		"MAXNACKS -1": "ERR MAXNACKS must be between 0 and 65535", "MAXNACKS 65536": "ERR MAXNACKS", "MAXDELIVERIES 65536": "ERR MAXDELIVERIES must be between 0 and 65535",
		"DEADTTL -1": "ERR DEADTTL must be a non negative number", "DEADTTL 2147483648": "ERR DEADTTL", "ONEXPIRE keep": "ERR ONEXPIRE must be drop or dead",
		"DEAD " + strings.Repeat("d", 1025): "ERR DEAD must name another queue, in 1 to 1024 bytes",
	} {
		options := split(words)
		for _, v := range []harness.Value{
			c.Do(append([]any{"ADDJOB", "q", "b", 0}, options...)...), c.Do(append([]any{"QCONFIG", "SET", "q"}, options...)...),
			c.Do(append(append([]any{"ADDJOBS", "q", 0}, options...), "BODIES", "b")...),
		} {
			assert.True(t, v.Err(want), "%s: %v", words, v)
		}
	}
	for words, want := range map[string]string{
		"DEAD q": "ERR DEAD must name another queue", "RETRY 0 BACKOFF 1 1": "ERR BACKOFF, MAXNACKS and MAXDELIVERIES need a RETRY time", "MAXNACKS 1 RETRY 0": "ERR BACKOFF, MAXNACKS",
		"BACKOFF 1": "ERR BACKOFF must be", "MAXNACKS": "ERR syntax error", "BACKOFF 1 2 JITTER": "ERR JITTER",
	} {
		v := c.Do(split("ADDJOB q b 0 " + words)...)
		assert.True(t, v.Err(want), "%s: %v", words, v)
	}
	assert.Equal(t, int64(0), c.Do("QLEN", "q").Int())
	assert.Empty(t, c.Do("QCONFIG", "LIST").Elems)
	add(t, c, "q", "b", 0, "RETRY", 0, "MAXNACKS", 0, "BACKOFF", 0, 0, "DEADTTL", 5, "ONEXPIRE", "dead")
}

// QCONFIG shows policies, and a restart and a mesh keep them (their form is that of all settings).
func TestPoliciesAreShown(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "q", "BACKOFF", 5, 600, "MAXNACKS", 10, "MAXDELIVERIES", 20, "DEAD", "graves", "DEADTTL", 86400, "ONEXPIRE", "dead").Str)
	check := func() {
		t.Helper()
		v := c.Do("QCONFIG", "GET", "q")
		for name, want := range map[string]string{"backoff": "5 600 jitter 20", "maxnacks": "10", "maxdeliveries": "20", "dead": "graves", "deadttl": "86400", "onexpire": "dead"} {
			assert.Equal(t, want, v.Field(name).Str, name)
		}
	}
	check()
	s.AwaitLogged()
	s.Kill()
	s.Restart()
	c = s.Dial()
	check()
	require.Equal(t, int64(1), c.Do("QCONFIG", "UNSET", "q", "DEAD", "MAXNACKS").Int())
	v := c.Do("QCONFIG", "GET", "q")
	assert.Equal(t, "", v.Field("dead").Str)
	assert.Equal(t, "20", v.Field("maxdeliveries").Str)
}

// A user who may not add to a queue can't name it as the dead-letter queue.
func TestDeadNeedsTheRightToTheQueue(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := limitedUser(t, s)
	assert.True(t, c.Do("ADDJOB", "aq", "b", 0, "DEAD", "theirs").Err("NOPERM"))
	assert.Equal(t, byte('+'), c.Do("ADDJOB", "aq", "b", 0, "DEAD", "adead").Kind)
}
