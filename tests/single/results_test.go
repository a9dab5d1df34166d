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

// addTo adds a job to a queue: its body, the timeout, and options.
func addTo(t *testing.T, c *harness.Conn, queue string, rest []any) string {
	t.Helper()
	return add(t, c, append([]any{queue}, rest...)...)
}

func kept(s *harness.Server) (jobs, bytes string) {
	return s.Info("jobmesh", "jobmesh_results_kept"), s.Info("jobmesh", "jobmesh_results_bytes")
}

// A result lies in the place of the body, and goes when its time is over.
func TestResultIsKept(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "q", "a body", 0, "UNIQUE", "until-processed")
	require.Equal(t, id, get(t, c, "q"))
	require.Equal(t, int64(1), c.Do("WORKING", id, "PROGRESS", "half").Int()/c.Do("WORKING", id).Int())
	require.Equal(t, int64(1), c.Do("ACKJOB", id, "RESULT", "42", "KEEP", 100).Int())
	v := c.Do("SHOW", id)
	assert.Equal(t, "done", v.Field("state").Str)
	assert.Equal(t, "done", v.Field("outcome").Str)
	assert.Equal(t, int64(100), v.Field("kept-for").Int())
	assert.InDelta(t, time.Now().UnixMilli(), v.Field("finished").Int(), 60_000)
	assert.Equal(t, "42", v.Field("result").Str)
	assert.True(t, v.Field("body").Null)
	assert.NotContains(t, v.String(), "half")
	assert.Equal(t, []string{id}, c.Do("JSCAN", 0, "COUNT", 100, "STATE", "done").Elems[1].Strings())
	assert.Empty(t, c.Do("JSCAN", 0, "COUNT", 100, "STATE", "acked").Elems[1].Strings())
	assert.Equal(t, int64(0), c.Do("QLEN", "q").Int())
	jobs, bytes := kept(s)
	assert.Equal(t, "1 2", jobs+" "+bytes)
	assert.True(t, c.Do("WORKING", id).Err("ACKED"))
	assert.Equal(t, int64(0), c.Do("NACK", id).Int())
	assert.Equal(t, int64(0), c.Do("ENQUEUE", id).Int())
	assert.Equal(t, int64(0), c.Do("ACKJOB", id, "RESULT", "43").Int())
	assert.Equal(t, int64(0), c.Do("CANCELJOB", id).Int())
	assert.Equal(t, "42", c.Do("SHOW", id).Field("result").Str)
	assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())

	// DELJOB deletes it, and so does DEL.
	require.Equal(t, int64(1), c.Do("DELJOB", id).Int())
	assert.True(t, c.Do("SHOW", id).Null)
	other := add(t, c, "q", "b", 0)
	require.Equal(t, int64(1), c.Do("ACKJOB", other, "KEEP", 100).Int())
	v = c.Do("SHOW", other)
	assert.True(t, v.Field("result").Null && v.Field("outcome").Str == "done", "%v", v)
	require.Equal(t, int64(1), c.Do("DEL", "q").Int())
	harness.Await(t, 20*time.Second, "the outcome to be gone", func() bool { jobs, _ := kept(s); return jobs == "0" })
	assert.True(t, c.Do("SHOW", other).Null)
}

// ACKJOB says for how long an outcome is kept, else ADDJOB, else the queue's settings; a result alone is kept for an hour.
func TestKeepIsSaidByMany(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "set", "KEEP", 7).Str)
	assert.Equal(t, "7", c.Do("QCONFIG", "GET", "set").Field("keep").Str)
	for _, k := range []struct {
		queue    string
		add, ack []any
		want     int64
	}{
		{"q", nil, nil, 0},
		{"q", nil, []any{"RESULT", "r"}, 3600},
		{"q", nil, []any{"KEEP", 5}, 5},
		{"q", []any{"KEEP", 6}, nil, 6},
		{"q", []any{"KEEP", 6}, []any{"KEEP", 5, "RESULT", "r"}, 5},
		{"q", []any{"KEEP", 6}, []any{"KEEP", 0, "RESULT", "r"}, 0},
		{"q", []any{"KEEP", 0}, []any{"RESULT", "r"}, 0},
		{"set", nil, nil, 7},
		{"set", []any{"KEEP", 6, "MAXNACKS", 3}, nil, 6},
		{"set", nil, []any{"KEEP", 0}, 0},
		{"set", nil, []any{"RESULT", "r"}, 7},
	} {
		id := addTo(t, c, k.queue, append([]any{"b", 0}, k.add...))
		require.Equal(t, int64(1), c.Do(append([]any{"ACKJOB", id}, k.ack...)...).Int())
		v := c.Do("SHOW", id)
		if k.want == 0 {
			assert.True(t, v.Null, "%v: %v", k, v)
		} else {
			assert.Equal(t, k.want, v.Field("kept-for").Int(), "%v", k)
		}
	}
	ids := c.Do("ADDJOBS", "q", 0, "KEEP", 9, "BODIES", "a", "b").Strings()
	require.Equal(t, int64(2), c.Do("ACKJOB", ids[0], ids[1], "RESULT", "KEEP").Int())
	for _, id := range ids {
		assert.Equal(t, "KEEP", c.Do("SHOW", id).Field("result").Str)
	}
	quick := add(t, c, "q", "b", 0, "KEEP", 9)
	require.Equal(t, int64(1), c.Do("FASTACK", quick).Int())
	assert.True(t, c.Do("SHOW", quick).Null)
}

// CANCELJOB, expiry, ONDEAD, ONBUSY and DEADTTL 0 leave an outcome, too, where the job or its queue says KEEP.
func TestKeptEnds(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "*", "KEEP", 100).Str)
	outcome := func(id, want string) {
		t.Helper()
		var v harness.Value
		harness.Await(t, 20*time.Second, "the end of the job", func() bool { v = c.Do("SHOW", id); return v.Null || v.Field("state").Str == "done" })
		require.False(t, v.Null, "%s is gone", want)
		assert.Equal(t, want, v.Field("outcome").Str)
	}
	cancelled := add(t, c, "q", "b", 0)
	require.Equal(t, int64(1), c.Do("CANCELJOB", cancelled, "REASON", "no more").Int())
	outcome(cancelled, "cancelled")
	assert.Equal(t, "no more", c.Do("SHOW", cancelled).Field("reason").Str)
	outcome(add(t, c, "q", "b", 0, "TTL", 1), "expired")

	parent := add(t, c, "q", "b", 0)
	child := add(t, c, "q", "b", 0, "AFTER", parent, "ONDEAD", "drop")
	require.Equal(t, int64(2), c.Do("CANCELJOB", parent).Int())
	outcome(parent, "cancelled")
	outcome(child, "dropped")

	busy := []any{"b", 0, "UNIQUE", "during-processing", "KEY", "k", "ONBUSY", "drop"}
	runs, dropped := addTo(t, c, "busy", busy), addTo(t, c, "busy", busy)
	require.Equal(t, runs, get(t, c, "busy"))
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "busy").NullArray())
	outcome(dropped, "dropped")

	none := add(t, c, "none", "b", 0, "DEADTTL", 0)
	require.Equal(t, none, get(t, c, "none"))
	require.Equal(t, int64(1), c.Do("NACK", none, "DEAD", "REASON", "bad").Int())
	outcome(none, "dropped")
	assert.Equal(t, []string{"dropped bad", "expired"}, append(harness.Ends(t, c.Do("WAITJOB", none, 0)), harness.Ends(t, c.Do("WAITJOB", add(t, c, "q", "b", 0, "TTL", 1), 0))...))

	// Not those of a flushed queue, also where one is dropped with another. But those of another queue.
	flushed, deferred := add(t, c, "flushed", "b", 0), add(t, c, "flushed", "b", 0, "DEFERRED")
	blocked, other := add(t, c, "flushed", "b", 0, "BLOCKEDBY", deferred), add(t, c, "other", "b", 0, "BLOCKEDBY", deferred)
	require.Equal(t, int64(3), c.Do("QFLUSH", "flushed").Int())
	for _, id := range []string{flushed, deferred, blocked} {
		assert.True(t, c.Do("SHOW", id).Null)
	}
	outcome(other, "dropped")
}

// W2: after the end the outcome is known for the time of KEEP; without, as long as the node remembers the acknowledgement.
func TestLifeW2(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	kept, not := add(t, c, "q", "b", 0), add(t, c, "q", "b", 0)
	require.Equal(t, int64(1), c.Do("ACKJOB", kept, "RESULT", "r", "KEEP", 60).Int())
	require.Equal(t, int64(1), c.Do("ACKJOB", not).Int())
	assert.Equal(t, []string{"done r", "done"}, harness.Ends(t, c.Do("WAITJOB", kept, not, 0)))
	assert.Equal(t, []string{"unknown"}, harness.Ends(t, c.Do("WAITJOB", "D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1", 0)))
}

// W3: at the timeout a job is waiting. ANY ends with the first.
func TestLifeW3(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c, waiter := s.Dial(), s.Dial()
	a, b, d := add(t, c, "q", "b", 0), add(t, c, "q", "b", 0), add(t, c, "q", "b", 0)
	assert.Equal(t, []string{"waiting", "waiting"}, harness.Ends(t, c.Do("WAITJOB", a, b, 50)))
	waiter.Send("WAITJOB", a, b, d, b, 0, "ANY")
	awaitWaits(t, s, 1)
	require.Equal(t, int64(1), c.Do("ACKJOB", b, "RESULT", "r").Int())
	assert.Equal(t, []string{"waiting", "done r", "waiting", "done r"}, harness.Ends(t, waiter.Receive()))
	waiter.Send("WAITJOB", a, d, 0)
	awaitWaits(t, s, 1)
	require.Equal(t, int64(1), c.Do("ACKJOB", a).Int())
	require.Equal(t, int64(1), c.Do("CANCELJOB", d).Int())
	assert.Equal(t, []string{"done", "cancelled"}, harness.Ends(t, waiter.Receive()))
	awaitWaits(t, s, 0)

	// CLIENT UNBLOCK answers as the timeout does.
	e := add(t, c, "q", "b", 0)
	number := waiter.Do("CLIENT", "ID").Int()
	waiter.Send("WAITJOB", e, b, 0)
	awaitWaits(t, s, 1)
	require.Equal(t, int64(1), c.Do("CLIENT", "UNBLOCK", number).Int())
	assert.Equal(t, []string{"waiting", "done r"}, harness.Ends(t, waiter.Receive()))

	for _, bad := range []struct {
		want string
		args []any
	}{
		{"BADID", []any{"x", 0}}, {"BADID", []any{0, 0}}, {"BADID", []any{e, "x", 0}}, {"ERR syntax error", []any{e, e}},
		{"ERR timeout is negative", []any{e, -1}}, {"ERR syntax error", []any{e, 0, "SOME"}}, {"ERR syntax error", []any{e, 0, "ANY", "ANY"}},
	} {
		assert.True(t, c.Do(append([]any{"WAITJOB"}, bad.args...)...).Err(bad.want), "%v", bad)
	}
	many := []any{"WAITJOB"}
	for range 1001 {
		many = append(many, e)
	}
	assert.True(t, c.Do(append(many, 0)...).Err("ERR at most 1000 IDs at once"))
	assert.Len(t, c.Do(append(many[:1001], 1)...).Elems, 1000)
}

// awaitWaits waits until so many clients wait in WAITJOB.
func awaitWaits(t *testing.T, s *harness.Server, clients int) {
	t.Helper()
	harness.Await(t, 20*time.Second, "the clients", func() bool { return s.Info("jobmesh", "jobmesh_wait_clients") == strconv.Itoa(clients) })
}

// W4: a job that is given up is dead, with the reason. One whose life is over is expired.
func TestLifeW4(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c, waiter := s.Dial(), s.Dial()
	id := add(t, c, "q", "b", 0, "MAXNACKS", 1)
	waiter.Send("WAITJOB", id, 0)
	awaitWaits(t, s, 1)
	get(t, c, "q")
	require.Equal(t, int64(1), c.Do("NACK", id, "REASON", "bad").Int())
	assert.Equal(t, []string{"dead bad"}, harness.Ends(t, waiter.Receive()))
	assert.Equal(t, []string{"dead bad"}, harness.Ends(t, c.Do("WAITJOB", id, 0)))
	require.Equal(t, int64(1), c.Do("MOVEJOB", id).Int())
	assert.Equal(t, []string{"waiting"}, harness.Ends(t, c.Do("WAITJOB", id, 50)))
	short := add(t, c, "q", "b", 0, "TTL", 1)
	assert.Equal(t, []string{"expired"}, harness.Ends(t, c.Do("WAITJOB", short, 0)))
}

// W7: an outcome goes when its time is over, and memory is as before.
func TestLifeW7(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	id, none := add(t, c, "q", "b", 0), add(t, c, "q", "b", 0)
	large := s.Dial()
	require.Equal(t, int64(1), large.Do("ACKJOB", none, "RESULT", strings.Repeat("r", 500_000), "KEEP", 0).Int()) // buffers grow, and stay
	large.Close()
	large = s.Dial()
	before := s.UsedMemory()
	require.Equal(t, int64(1), large.Do("ACKJOB", id, "RESULT", strings.Repeat("r", 500_000), "KEEP", 2).Int())
	large.Close() // its buffer goes, too
	jobs, bytes := kept(s)
	assert.Equal(t, "1 500000", jobs+" "+bytes)
	harness.Await(t, 20*time.Second, "the outcome to be gone", func() bool { jobs, bytes = kept(s); return jobs == "0" })
	assert.Equal(t, "0", bytes)
	assert.True(t, c.Do("SHOW", id).Null)
	harness.Await(t, 20*time.Second, "the memory to be free", func() bool { return s.UsedMemory() < before+100_000 })
	assert.Equal(t, []string{"done"}, harness.Ends(t, c.Do("WAITJOB", id, 0)), "the node remembers the acknowledgement")
}

// W8: results outlive a restart, for the rest of their time.
func TestLifeW8(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		long, short := add(t, c, "q", "b", 0, "TTL", 5), add(t, c, "q", "b", 0)
		gone := add(t, c, "q", "b", 0, "KEEP", 500)
		require.Equal(t, int64(1), c.Do("ACKJOB", long, "RESULT", "long", "KEEP", 100_000).Int())
		require.Equal(t, int64(1), c.Do("ACKJOB", short, "RESULT", "short", "KEEP", 4).Int())
		require.Equal(t, int64(1), c.Do("CANCELJOB", gone, "REASON", "why").Int())
		finished := c.Do("SHOW", long).Field("finished").Int()
		comeBack(t, s, mode)
		c = s.Dial()
		v := c.Do("SHOW", long)
		assert.Equal(t, "long", v.Field("result").Str)
		assert.Equal(t, finished, v.Field("finished").Int())
		assert.Equal(t, "cancelled", c.Do("SHOW", gone).Field("outcome").Str)
		assert.Equal(t, []string{"cancelled why"}, harness.Ends(t, c.Do("WAITJOB", gone, 0)))
		harness.Await(t, 20*time.Second, "the outcome to be gone", func() bool { return c.Do("SHOW", short).Null })
		jobs, bytes := kept(s)
		assert.Equal(t, "2 7", jobs+" "+bytes)
		assert.Equal(t, "done", state(c, long), "its own TTL is over by now")
	}, "aof", "aof kill", "aof-rewritten", "aof-without-preamble", "rdb", "reload")
}

// W10: a job that comes after a kept one runs at once.
func TestLifeW10(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0)
	require.Equal(t, int64(1), c.Do("ACKJOB", id, "KEEP", 100_000).Int())
	for range 20_000 { // what the node remembers of acknowledgements without KEEP
		c.Send("ADDJOB", "o", "b", 0)
	}
	for range 20_000 {
		c.Send("ACKJOB", c.Receive().Str)
	}
	for range 20_000 {
		require.True(t, c.Receive().Is(1))
	}
	after := add(t, c, "after", "b", 0, "AFTER", id)
	assert.Equal(t, after, get(t, c, "after"))
}

// W12: MULTI answers at once what is known.
func TestLifeW12(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	done, waits := add(t, c, "q", "b", 0), add(t, c, "q", "b", 0)
	require.Equal(t, int64(1), c.Do("ACKJOB", done, "RESULT", "r").Int())
	c.Do("MULTI")
	c.Do("WAITJOB", done, waits, 0)
	assert.Equal(t, []string{"done r", "waiting"}, harness.Ends(t, c.Do("EXEC").Elems[0]))
	script := "return redis.call('WAITJOB', KEYS[1], 0)"
	assert.Equal(t, []string{"done r"}, harness.Ends(t, c.Do("EVAL", script, 1, done)))
}

// W13: a key is free at the ACKJOB, though the outcome is kept. A window stays, also over a restart.
func TestLifeW13(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		until := []any{"b", 0, "UNIQUE", "until-processed", "KEEP", 100}
		window := []any{"w", 0, "UNIQUE", "window", "TTL", 1000, "KEEP", 100}
		first, once := addTo(t, c, "q", until), addTo(t, c, "q", window)
		require.True(t, c.Do(append([]any{"ADDJOB", "q"}, until...)...).Null)
		require.Equal(t, int64(2), c.Do("ACKJOB", first, once, "RESULT", "a result").Int())
		addTo(t, c, "q", until)
		comeBack(t, s, mode)
		c = s.Dial()
		assert.True(t, c.Do(append([]any{"ADDJOB", "q"}, window...)...).Null)
		assert.Equal(t, "a result", c.Do("SHOW", once).Field("result").Str)
	}, "aof kill", "reload")
}

// W14: what is wrong with the options acknowledges nothing.
func TestLifeW14(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0)
	for _, bad := range []struct {
		want string
		args []any
	}{
		{"ERR RESULT must have 524288 bytes at most", []any{id, "RESULT", strings.Repeat("r", 524_289)}},
		{"ERR KEEP must be a non negative number", []any{id, "KEEP", -1}},
		{"ERR KEEP must be a non negative number", []any{id, "KEEP", "x", "RESULT", "r"}},
		{"ERR KEEP must be a non negative number", []any{id, "KEEP", 2147483648}},
		{"ERR syntax error", []any{"RESULT", "r"}},
		{"ERR syntax error", []any{id, "RESULT"}},
		{"ERR syntax error", []any{id, "RESULT", "r", "x"}},
		{"ERR syntax error", []any{id, "RESULT", "r", "RESULT", "r"}},
		{"BADID", []any{"short", "RESULT", "r"}},
	} {
		v := c.Do(append([]any{"ACKJOB"}, bad.args...)...)
		assert.True(t, v.Err(bad.want), "%v", v)
	}
	assert.True(t, c.Do("ADDJOB", "q", "b", 0, "KEEP", -1).Err("ERR KEEP must be a non negative number"))
	assert.Equal(t, "queued", state(c, id))
	require.Equal(t, int64(1), c.Do("ACKJOB", id, "RESULT", strings.Repeat("r", 524_288)).Int())
	assert.Len(t, c.Do("SHOW", id).Field("result").Str, 524_288)
	assert.Equal(t, int64(0), c.Do("ACKJOB").Int())
}

// Above 95 % of maxmemory outcomes make room for jobs.
func TestResultsAreEvicted(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	for i := range 200 {
		require.Equal(t, int64(1), c.Do("ACKJOB", add(t, c, "q", "b", 0), "RESULT", strings.Repeat("r", 100_000)).Int(), "%d", i)
	}
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "maxmemory", fmt.Sprint(s.UsedMemory()-5_000_000)).Str)
	harness.Await(t, 20*time.Second, "room", func() bool { return c.Do("ADDJOB", "q", "b", 0).Kind == '+' })
	jobs, _ := kept(s)
	left, _ := strconv.Atoi(jobs)
	assert.Less(t, left, 200)
	assert.Greater(t, left, 50)
}

// K2: CANCELJOB ends a job that is worked on. Its worker hears that for as long as its retry time would have lasted.
func TestLifeK2(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	id, once := add(t, c, "q", "b", 0, "RETRY", 2), add(t, c, "once", "b", 0, "RETRY", 0)
	get(t, c, "q")
	get(t, c, "once")
	require.Equal(t, int64(2), c.Do("CANCELJOB", id, once).Int())
	assert.True(t, c.Do("WORKING", id).Err("CANCELLED The job was cancelled: stop"))
	assert.True(t, c.Do("WORKING", once).Err("CANCELLED"))
	harness.Await(t, 20*time.Second, "the retry time to be over", func() bool { return c.Do("WORKING", id).Err("NOJOB") })
	assert.True(t, c.Do("WORKING", once).Err("CANCELLED"))
	waits := add(t, c, "q", "b", 0)
	require.Equal(t, int64(1), c.Do("CANCELJOB", waits).Int())
	assert.True(t, c.Do("WORKING", waits).Err("NOJOB"))
}

// K3: SOFT leaves a job to its worker. ACKJOB makes it done; NACK, or silence, makes it cancelled. Its key is free only then.
func TestLifeK3(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	unique := []any{"b", 0, "UNIQUE", "during-processing", "KEY", "k", "RETRY", 3, "KEEP", 100}
	for _, how := range []string{"ACKJOB", "NACK", "silence"} {
		id, next := addTo(t, c, "q", unique), addTo(t, c, "q", unique)
		require.Equal(t, id, get(t, c, "q"))
		require.Equal(t, int64(1), c.Do("CANCELJOB", id, "SOFT", "REASON", "too late").Int())
		require.Equal(t, int64(1), c.Do("CANCELJOB", id, "soft", "reason", "too late").Int())
		v := c.Do("SHOW", id)
		assert.Equal(t, "active", v.Field("state").Str)
		assert.InDelta(t, time.Now().UnixMilli(), v.Field("cancel-asked").Int(), 60_000)
		assert.Equal(t, "too late", v.Field("cancel-reason").Str)
		assert.True(t, c.Do("WORKING", id).Err("CANCELLED"))
		if how != "silence" {
			assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray(), "the key is busy")
			require.Equal(t, int64(1), c.Do(how, id).Int())
		}
		var got string
		harness.Await(t, 20*time.Second, "the next job", func() bool {
			if v := c.Do("GETJOB", "NOHANG", "FROM", "q"); !v.NullArray() {
				got = v.Elems[0].Elems[1].Str
			}
			return got != ""
		})
		assert.Equal(t, next, got)
		want := map[string][]string{"ACKJOB": {"done"}}[how]
		if want == nil {
			want = []string{"cancelled too late"}
		}
		assert.Equal(t, want, harness.Ends(t, c.Do("WAITJOB", id, 0)))
		require.Equal(t, int64(1), c.Do("ACKJOB", next).Int())
	}
	assert.Equal(t, "6", s.Info("jobmesh", "jobmesh_jobs_soft_cancelled"))

	// A job that nobody works on is cancelled at once.
	for _, options := range [][]any{nil, {"DELAY", 100}, {"DEFERRED"}} {
		id := addTo(t, c, "idle", append([]any{"b", 0}, options...))
		require.Equal(t, int64(1), c.Do("CANCELJOB", id, "SOFT").Int())
		assert.True(t, c.Do("SHOW", id).Null)
	}
	once := add(t, c, "once", "b", 0, "RETRY", 0)
	get(t, c, "once")
	require.Equal(t, int64(1), c.Do("CANCELJOB", once, "SOFT").Int())
	require.Equal(t, int64(1), c.Do("NACK", once).Int())
	assert.True(t, c.Do("SHOW", once).Null)
	for _, bad := range [][]any{{"SOFT"}, {once, "SOFT", "SOFT"}, {once, "REASON"}, {once, "SOFT", once}} {
		assert.True(t, c.Do(append([]any{"CANCELJOB"}, bad...)...).Err("ERR syntax error"))
	}
}

// K4: the wish outlives a restart.
func TestLifeK4(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		id := add(t, c, "q", "b", 0, "RETRY", 1000)
		require.Len(t, c.Do("GETJOB", "WORKER", "ann", "FROM", "q").Elems, 1)
		require.Equal(t, int64(1), c.Do("CANCELJOB", id, "SOFT").Int())
		comeBack(t, s, mode)
		c = s.Dial()
		assert.True(t, c.Do("WORKING", id).Err("CANCELLED"))
		require.Equal(t, int64(1), c.Do("NACK", id).Int())
		assert.True(t, c.Do("SHOW", id).Null)
	}, "aof kill", "rdb", "reload")
}

// K5: a worker that waits for its own job by another connection hears of the wish at once.
func TestLifeK5(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c, waiter := s.Dial(), s.Dial()
	id := add(t, c, "q", "b", 0)
	get(t, c, "q")
	waiter.Send("WAITJOB", id, 0)
	awaitWaits(t, s, 1)
	require.Equal(t, int64(1), c.Do("CANCELJOB", id, "SOFT", "REASON", "enough").Int())
	assert.Equal(t, []string{"cancelled enough"}, harness.Ends(t, waiter.Receive()))
}

// The wish to cancel a job reaches it in another database, too. A job that nobody works on is cancelled there.
func TestCancelSoftlyAway(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		runs, waits := add(t, c, "q", "b", 0, "RETRY", 1000), add(t, c, "q", "b", 0, "RETRY", 1000)
		require.Equal(t, runs, c.Do("GETJOB", "WORKER", "ann", "FROM", "q").Elems[0].Elems[1].Str)
		require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
		assert.Equal(t, int64(0), c.Do("CANCELJOB", runs, waits, "SOFT", "REASON", "why").Int())
		require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
		comeBack(t, s, mode)
		c = s.Dial()
		assert.True(t, c.Do("WORKING", runs).Err("CANCELLED"))
		assert.Equal(t, "why", c.Do("SHOW", runs).Field("cancel-reason").Str)
		harness.Await(t, 20*time.Second, "the other to be gone", func() bool { return c.Do("SHOW", waits).Null })
		require.Equal(t, int64(1), c.Do("NACK", runs).Int())
		assert.True(t, c.Do("SHOW", runs).Null)
	}, "aof kill", "reload")
}

// Large results that are there already are answered as they are, also in MULTI and after a wait.
func TestWaitForLargeResults(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c, waiter := s.Dial(), s.Dial()
	wait, result := []any{"WAITJOB"}, strings.Repeat("r", 524_288)
	for range 8 {
		id := add(t, c, "q", "b", 0)
		require.Equal(t, int64(1), c.Do("ACKJOB", id, "RESULT", result).Int())
		wait = append(wait, id)
	}
	last := add(t, c, "q", "b", 0)
	wait = append(wait, last, 0)
	waiter.Send(wait...)
	awaitWaits(t, s, 1)
	require.Equal(t, int64(1), c.Do("ACKJOB", last, "RESULT", result).Int())
	c.Do("MULTI")
	c.Do(wait...)
	for _, v := range []harness.Value{waiter.Receive(), c.Do("EXEC").Elems[0], c.Do(wait...)} {
		require.Len(t, v.Elems, 9)
		for _, end := range v.Elems {
			require.True(t, end.Elems[1].Str == "done" && end.Elems[2].Str == result)
		}
	}
}
