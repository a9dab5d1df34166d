package migrate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// None of these errors changes anything.
func TestRefusals(t *testing.T) {
	s, c := start(t)
	c.Do("RPUSH", "resque:queue:mail", "a", "b")
	c.Do("RPUSH", "resque:queue:odd", "a", "b", "c")
	c.Do("SADD", "resque:queue:odd:uniqueue", "a", "b")
	c.Do("RPUSH", "resque:queue:odd:start_at", 1, 2, 3)
	c.Do("RPUSH", "resque:queue:times", "a", "b")
	c.Do("SADD", "resque:queue:times:uniqueue", "a", "b")
	c.Do("RPUSH", "resque:queue:times:start_at", "soon", 2)
	c.Do("LPUSH", "queue:mail", `{"queue":"mail"}`)
	c.Do("ZADD", "schedule", 5, `{"queue":"mail"}`)
	c.Do("RPUSH", "rq:queue:mail", 1)
	c.Do("HSET", "rq:job:1", "data", "x")
	c.Do("RPUSH", "rq:queue:text", "text")
	c.Do("SET", "rq:job:text", "x")
	c.Do("ADDJOB", "jobs", "no job of rq's", 0)
	c.Do("ADDJOB", "delayed", "\x81", 0, "DELAY", 1000)
	c.Do("UQ.PUSH", "unique", "a", "AT", 3)
	for _, key := range []string{"text", "resque:queue:text", "queue:text", "resque:queue:bad:uniqueue", "jobmesh:origin:bad", "rq:scheduled:bad"} {
		c.Do("SET", key, "x")
	}
	before := c.Do("DEBUG", "DIGEST").Str
	const countErr, fromErr, keyErr = "ERR COUNT must be between 1 and 10000", "ERR FROM must be what the call before answered", "ERR 'queue:' and a name must be in the key of the library's queue"
	for _, tc := range []struct{ line, err string }{
		{"resque_import resque:queue:mail mail COUNT 0", countErr}, {"resque_import resque:queue:mail mail COUNT 10001", countErr},
		{"resque_import resque:queue:mail mail COUNT x", countErr}, {"resque_import resque:queue:mail mail COUNT -1", countErr},
		{"resque_import resque:queue:mail mail COUNT 1.5", countErr}, {"resque_import resque:queue:mail mail COUNT 99999999999999999999", countErr},
		{"resque_import resque:queue:mail mail COUNT", syntax}, {"resque_import resque:queue:mail mail x", syntax}, {"resque_import resque:queue:mail mail ACTIVE", syntax},
		{"resque_import resque:queue:mail mail FROM x", fromErr}, {"resque_import resque:queue:mail mail FROM -1", fromErr}, {"resque_export jobs resque:queue:mail FROM -1", fromErr},
		{"sidekiq_export jobs queue:mail FROM 18446744073709551616", "ERR invalid cursor"}, {"sidekiq_export jobs queue:mail FROM 999999999999999999999", fromErr},
		{"resque_export jobs resque:queue:mail WITH RETRY 5", syntax}, {"sidekiq_import queue:mail mail FORCE", syntax}, {"sidekiq_import schedule mail QUEUE", syntax},
		{"resque_import resque:queue:mail resque:queue:mail", "ERR the two keys are one"},
		{"resque_import resque:queue:mail mail UQ JOBS", "ERR UQ goes"}, {"resque_import resque:queue:mail mail UQ WITH RETRY 5", "ERR UQ goes"},
		{"resque_import resque:queue:times mail WITH RETRY 5", "ERR UQ goes"},
		{"resque_import resque:queue:mail mail WITH RETRY x", "ERR RETRY"}, {"resque_import resque:queue:mail mail WITH NONSENSE", syntax}, {"resque_import resque:queue:mail mail WITH RETRY", syntax},
		{"resque_import resque:queue:mail mail WITH REPLICATE 2", "NOREPL"}, {"resque_import resque:queue:mail mail WITH DELAY 5 TTL 5", "ERR The specified DELAY"},
		{"resque_import resque:queue:times mail", "ERR AT must be"},
		{"resque_import resque:queue:mail text", "WRONGTYPE"}, {"resque_import resque:queue:mail unique JOBS", "WRONGTYPE"}, {"resque_import resque:queue:mail jobs UQ", "WRONGTYPE"},
		{"resque_import resque:queue:text mail", "WRONGTYPE"}, {"resque_import resque:queue:bad mail", "WRONGTYPE"}, {"resque_import jobs mail", "WRONGTYPE"}, {"resque_import resque:queue:mail bad", "WRONGTYPE"},
		{"resque_import resque:queue:odd mail", "UNEVEN resque:queue:odd holds 3 jobs, its set ':uniqueue' 2, its list ':start_at' 3: FORCE"},
		{"resque_export jobs resque:queue:odd", "UNEVEN resque:queue:odd holds 3 jobs, its set ':uniqueue' 2, its list ':start_at' 3: "},
		{"resque_export unique resque:queue:mail", "UNEVEN resque:queue:mail holds 2 jobs, its set ':uniqueue' 0, its list ':start_at' 0: "},
		{"resque_export jobs resque:queue:mail UNIQUEUE", "UNEVEN"},
		{"resque_export jobs mail", keyErr}, {"resque_export jobs myqueue:mail", keyErr}, {"resque_export jobs queue:", keyErr}, {"sidekiq_export jobs schedule", keyErr}, {"rq_export jobs rq:scheduled:mail", keyErr},
		{"rq_import mail m", keyErr},
		{"resque_export text resque:queue:new", "WRONGTYPE"}, {"resque_export jobs resque:queue:text", "WRONGTYPE"}, {"sidekiq_export jobs queue:text", "WRONGTYPE"}, {"sidekiq_export unique queue:mail", "WRONGTYPE"},
		{"sidekiq_import text mail", "WRONGTYPE"}, {"sidekiq_import schedule text QUEUE mail", "WRONGTYPE"}, {"sidekiq_import queue:mail text", "WRONGTYPE"}, {"sidekiq_import schedule bad QUEUE mail", "WRONGTYPE"},
		{"rq_import rq:queue:mail text", "WRONGTYPE"}, {"rq_import rq:queue:text mail", "WRONGTYPE"}, {"rq_import rq:scheduled:bad mail", "WRONGTYPE"},
		{"rq_export jobs rq:queue:mail", "ERR the body of D-"}, {"rq_export delayed rq:queue:mail", "ERR the body of D-"}, {"rq_export jobs rq:queue:bad", "WRONGTYPE"},
	} {
		f := strings.Fields(tc.line)
		var options []any
		for _, o := range f[3:] {
			options = append(options, o)
		}
		v := call(c, f[0], f[1], f[2], options...)
		assert.True(t, v.Err(tc.err), "%s: %v, want %s", tc.line, v, tc.err)
		if now := c.Do("DEBUG", "DIGEST").Str; now != before {
			assert.Fail(t, "a refused call has changed something", tc.line)
			before = now
		}
	}
	for _, f := range []string{"resque_import", "resque_export", "sidekiq_import", "sidekiq_export", "rq_import", "rq_export"} {
		for n, keys := range [][]any{{}, {"queue:a"}, {"a", "b", "queue:c"}} {
			v := c.Do(append([]any{"FCALL", "jobmesh_" + f, len(keys)}, keys...)...)
			assert.True(t, v.Err("ERR give two keys: "), "%s %d: %v", f, n, v)
		}
	}
	c.Do("CONFIG", "SET", "maxmemory", 1)
	assert.True(t, call(c, "resque_import", "resque:queue:mail", "mail").Err("OOM"))
	assert.True(t, call(c, "resque_export", "jobs", "resque:queue:mail").Err("OOM"))
	c.Do("CONFIG", "SET", "maxmemory", 0)
	c.Do("PAUSE", "mail", "in")
	assert.True(t, call(c, "resque_import", "resque:queue:mail", "mail").Err("PAUSED"))
	c.Do("SELECT", 1)
	c.Do("RPUSH", "resque:queue:mail", "a")
	assert.True(t, call(c, "resque_import", "resque:queue:mail", "mail").Err("WRONGDB"))
	assert.True(t, call(c, "resque_export", "mail", "resque:queue:mail").Err("WRONGDB"))
	assert.Equal(t, int64(1), c.Do("LLEN", "resque:queue:mail").Int())
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
}

const syntax = "ERR syntax error"

// If a user lacks the right to one of the commands, nothing is done by halves.
func TestRights(t *testing.T) {
	s, c := start(t)
	s.Do("ACL", "SETUSER", "w", "on", "nopass", "~*", "+@all")
	u := s.Dial()
	require.Equal(t, "OK", u.Do("AUTH", "w", "").Str)
	forbidden := []string{"addjob", "ackjob", "qpeek", "jscan", "show", "qlen", "rpush", "lpush", "ltrim", "lrange", "zadd", "zrem", "hset", "hdel", "hgetall", "unlink", "sadd", "srem", "uq.push", "uq.rem", "uq.peek", "pexpiretime", "qconfig", "info"}
	for _, f := range forbidden {
		for _, l := range layouts() {
			c.Do("FLUSHALL")
			writeFew(c)
			if l.name == "resque" {
				c.Do("DEL", "resque:queue:mail:uniqueue", "resque:queue:mail:start_at")
			}
			total := sum(l.here, l.there)
			before := total(c)
			for _, part := range append(l.in, l.out) {
				c.Do("ACL", "SETUSER", "w", "+@all", "-"+f)
				v := call(u, part[0].(string), part[1].(string), part[2].(string), part[3:]...)
				assert.Equal(t, before, total(c), "%v without %s: %v", part, f, v)
				c.Do("ACL", "SETUSER", "w", "+@all")
				run(u, part)
				assert.Equal(t, before, total(c), "%v after %s was forbidden", part, f)
			}
			assert.Zero(t, l.here(c), "%s, %s", l.name, f)
		}
	}
}

// writeFew writes a little of each layout.
func writeFew(c *harness.Conn) {
	for i := range 4 {
		c.Do("LPUSH", "app:queue:mail", body(i, "mail"))
		c.Do("ZADD", "app:schedule", 3e9+float64(i), body(10+i, "mail"))
		c.Do("ZADD", "app:retry", 3e9+float64(i), body(20+i, "mail"))
		c.Do("HSET", fmt.Sprint("rq:job:", i), "data", i)
		c.Do("HSET", fmt.Sprint("rq:job:s", i), "data", i)
		c.Do("RPUSH", "rq:queue:mail", i)
		c.Do("ZADD", "rq:scheduled:mail", 3e9, fmt.Sprint("s", i))
		child(c, fmt.Sprint("k", i), "mail", "1", fmt.Sprint(i))
		c.Do("HSET", fmt.Sprint("rq:job:w", i), "data", i)
		c.Do("ZADD", "rq:wip:mail", 3e9, fmt.Sprint("w", i))
		c.Do("RPUSH", "resque:queue:mail", body(i, "mail"))
		c.Do("SADD", "resque:queue:mail:uniqueue", body(i, "mail"))
		c.Do("RPUSH", "resque:queue:mail:start_at", 1000+i)
	}
}

// resque-uniqueue's three keys have different lengths: an error, unless FORCE is given.
func TestUneven(t *testing.T) {
	_, c := start(t)
	const list = "resque:queue:mail"
	for name, damage := range map[string][]any{
		"an item removed from the list": {"LREM", list, 1, "b"}, "one pushed without the plugin": {"RPUSH", list, "b"},
		"no set": {"DEL", list + ":uniqueue"}, "no times": {"DEL", list + ":start_at"}, "a time too many": {"RPUSH", list + ":start_at", 9}, "no list": {"DEL", list},
	} {
		t.Run(name, func(t *testing.T) {
			c.Do("FLUSHALL")
			for i, item := range []string{"a", "b", "c"} {
				c.Do("RPUSH", list, item)
				c.Do("SADD", list+":uniqueue", item)
				c.Do("RPUSH", list+":start_at", 100+i)
			}
			c.Do(damage...)
			n, set, times := c.Do("LLEN", list).Int(), c.Do("SCARD", list+":uniqueue").Int(), c.Do("LLEN", list+":start_at").Int()
			before := c.Do("DEBUG", "DIGEST").Str
			want := fmt.Sprintf("UNEVEN %s holds %d jobs, its set ':uniqueue' %d, its list ':start_at' %d: ", list, n, set, times)
			for _, options := range [][]any{{}, {"UQ"}, {"JOBS"}} {
				v := call(c, "resque_import", list, "mail", options...)
				assert.True(t, v.Err(want), "%v", v)
			}
			assert.Equal(t, before, c.Do("DEBUG", "DIGEST").Str)
			items := c.Do("LRANGE", list, 0, -1).Strings()
			dropped := int64(0)
			for left := int64(1); left > 0; {
				n := numbers(t, call(c, "resque_import", list, "mail", "FORCE", "COUNT", 1))
				left, dropped = n[1], dropped+n[2]
			}
			alone := map[string]int64{"an item removed from the list": 1, "one pushed without the plugin": 1, "no list": 3}
			assert.Equal(t, alone[name], dropped, "what stood in the set alone, or twice in the list, is counted")
			var got []string
			for _, e := range c.Do("UQ.POP", "mail", "COUNT", 10).Elems {
				got = append(got, e.Elems[0].Str)
				assert.InDelta(t, time.Now().Unix(), e.Elems[1].Int(), 5)
			}
			unique := items
			if name == "one pushed without the plugin" {
				unique = items[:3]
			}
			assert.Equal(t, fmt.Sprint(unique), fmt.Sprint(got))
			assert.Equal(t, int64(0), c.Do("DBSIZE").Int(), "the companions go too")
		})
	}
}

// resque-uniqueue's queue becomes a unique queue and comes back: order, times and uniqueness stay.
func TestUniqueueBecomesAUniqueQueue(t *testing.T) {
	_, c := start(t)
	const list = "resque:queue:mail"
	for i, item := range []string{"a", "b", "c"} {
		c.Do("RPUSH", list, item)
		c.Do("SADD", list+":uniqueue", item)
		c.Do("RPUSH", list+":start_at", 100+i)
	}
	c.Do("UQ.PUSH", "mail", "b", "AT", 50)
	assert.Equal(t, [3]int64{2, 0, 1}, numbers(t, call(c, "resque_import", list, "mail")), "b waits already")
	assert.True(t, c.Do("UQ.PUSH", "mail", "c").NullString())
	assert.Equal(t, `*[*[$"b" :50] *[$"a" :100] *[$"c" :102]]`, c.Do("UQ.PEEK", "mail", "COUNT", 9).String())
	// A plain queue is moved into a unique one, first by the option UQ, then because the target is one.
	c.Do("RPUSH", "resque:queue:plain", "d", "a", "d")
	assert.Equal(t, [3]int64{1, 2, 0}, numbers(t, call(c, "resque_import", "resque:queue:plain", "mail", "COUNT", 1, "UQ")))
	assert.Equal(t, [3]int64{0, 0, 2}, numbers(t, call(c, "resque_import", "resque:queue:plain", "mail")))
	// The keys of the target hold items: an item that waits there already isn't written twice.
	c.Do("RPUSH", list, "c")
	c.Do("SADD", list+":uniqueue", "c")
	c.Do("RPUSH", list+":start_at", 7)
	assert.Equal(t, [3]int64{3, 0, 1}, numbers(t, call(c, "resque_export", "mail", list)))
	assert.Equal(t, []string{"c", "b", "a", "d"}, c.Do("LRANGE", list, 0, -1).Strings())
	assert.Equal(t, []string{"7", "50", "100"}, c.Do("LRANGE", list+":start_at", 0, 2).Strings())
	assert.Equal(t, int64(4), c.Do("SCARD", list+":uniqueue").Int())
	assert.Zero(t, c.Do("EXISTS", "mail").Int())
	// A queue of jobs gives start times, too: the creation times of its jobs.
	c.Do("ADDJOB", "jobs", "e", 0)
	c.Do("ADDJOB", "jobs", "a", 0)
	assert.Equal(t, [3]int64{1, 0, 1}, numbers(t, call(c, "resque_export", "jobs", list)))
	assert.InDelta(t, time.Now().Unix(), floatOf(t, c.Do("LINDEX", list+":start_at", -1).Str), 5)
	assert.Equal(t, int64(5), c.Do("LLEN", list+":start_at").Int())
}

// Calls are bounded, in items and in bytes.
func TestBatches(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for i := range 1200 {
		c.Later("RPUSH", "resque:queue:mail", i)
	}
	for range 1200 {
		c.Receive()
	}
	assert.Equal(t, [3]int64{1000, 200, 0}, numbers(t, call(c, "resque_import", "resque:queue:mail", "mail")))
	assert.Equal(t, [3]int64{200, 0, 0}, numbers(t, call(c, "resque_import", "resque:queue:mail", "mail", "count", 10000)))
	assert.Equal(t, [3]int64{0, 0, 0}, numbers(t, call(c, "resque_import", "resque:queue:mail", "mail")))
	assert.Equal(t, [3]int64{7, 1193, 0}, numbers(t, call(c, "resque_export", "mail", "resque:queue:mail", "COUNT", 7)))
	c.Do("FLUSHALL")
	big := strings.Repeat("x", 1<<20)
	for range 150 {
		c.Do("LPUSH", "queue:mail", big)
	}
	assert.Equal(t, [3]int64{100, 50, 0}, numbers(t, call(c, "sidekiq_import", "queue:mail", "mail")), "a chunk is finished, no other is begun")
	assert.Equal(t, [3]int64{50, 0, 0}, numbers(t, call(c, "sidekiq_import", "queue:mail", "mail")))
	assert.Equal(t, [3]int64{100, 50, 0}, numbers(t, call(c, "sidekiq_export", "mail", "queue:mail")))
	c.Do("FLUSHALL")
	for i := range 250 {
		c.Do("ADDJOB", "mail", fmt.Sprint(i, big[:1<<19]), 0, "DELAY", 1000)
	}
	// The scan for delayed jobs ends a page early on a busy machine, and so does the call.
	moved := numbers(t, call(c, "sidekiq_export", "mail", "queue:mail"))
	assert.Equal(t, [2]int64{1, 0}, [2]int64{moved[1], moved[2]}, "of delayed jobs, too")
	assert.LessOrEqual(t, moved[0], int64(100))
	assert.EqualValues(t, 250-moved[0], all(t, c, "sidekiq_export", "mail", "queue:mail"))
	assert.Equal(t, int64(250), c.Do("ZCARD", "schedule").Int())
}

// An error ends a batch. The items that were moved count, and the next call answers the error.
func TestErrorInTheMiddle(t *testing.T) {
	_, c := start(t)
	for i := range 10 {
		c.Do("RPUSH", "resque:queue:mail", i)
		c.Do("ZADD", "schedule", 1, fmt.Sprintf(`{"queue":"mail","n":%d}`, i))
	}
	assert.Equal(t, [3]int64{6, 4, 0}, numbers(t, call(c, "resque_import", "resque:queue:mail", "mail", "WITH", "MAXLEN", 6)))
	assert.True(t, call(c, "resque_import", "resque:queue:mail", "mail", "WITH", "MAXLEN", 6).Err("MAXLEN"))
	assert.True(t, call(c, "sidekiq_import", "schedule", "mail", "WITH", "MAXLEN", 6).Err("MAXLEN"))
	assert.Equal(t, int64(10), c.Do("ZCARD", "schedule").Int())
	assert.Equal(t, []string{"6", "7", "8", "9"}, c.Do("LRANGE", "resque:queue:mail", 0, -1).Strings())
	assert.Equal(t, int64(6), c.Do("QLEN", "mail").Int())
	c.Do("SET", "rq:job:x", "text")
	c.Do("HSET", "rq:job:1", "data", 1)
	c.Do("RPUSH", "rq:queue:q", 1, "x", 1)
	assert.Equal(t, [3]int64{1, 2, 0}, numbers(t, call(c, "rq_import", "rq:queue:q", "q")))
	assert.True(t, call(c, "rq_import", "rq:queue:q", "q").Err("WRONGTYPE"))
}

// Jobs have RETRY and TTL as the options say. Without TTL they don't expire.
func TestOptionsOfJobs(t *testing.T) {
	_, c := start(t)
	c.Do("RPUSH", "resque:queue:a", "x")
	c.Do("RPUSH", "resque:queue:b", "x")
	call(c, "resque_import", "resque:queue:a", "a")
	call(c, "resque_import", "resque:queue:b", "b", "WITH", "RETRY", 7, "TTL", 99)
	show := func(queue string) harness.Value { return c.Do("SHOW", c.Do("QPEEK", queue, 1).Elems[0].Elems[1].Str) }
	a, b := show("a"), show("b")
	assert.InDelta(t, 2147483647, a.Field("ttl").Int(), 5)
	assert.Equal(t, int64(300), a.Field("retry").Int())
	assert.InDelta(t, 99, b.Field("ttl").Int(), 5)
	assert.Equal(t, int64(7), b.Field("retry").Int())
}

// Sidekiq's sets hold jobs of all queues. A batch passes over jobs of other queues, and goes on
// behind them.
func TestSetsOfManyQueues(t *testing.T) {
	_, c := start(t)
	for i := range 30 {
		queue := []string{"a", "b", "c"}[i%3]
		c.Do("ZADD", "retry", 3e9+float64(i), fmt.Sprintf(`{"queue":%q,"n":%d}`, queue, i))
	}
	from, moved, calls := "0", int64(0), 0
	for {
		v := call(c, "sidekiq_import", "retry", "mail", "QUEUE", "b", "COUNT", 4, "FROM", from)
		moved += numbers(t, v)[0]
		from = v.Elems[3].Str
		if calls++; v.Elems[1].Int() == 0 {
			break
		}
	}
	assert.Equal(t, int64(10), moved)
	assert.Equal(t, 8, calls)
	assert.Equal(t, int64(20), c.Do("ZCARD", "retry").Int())
	assert.Equal(t, int64(10), c.Do("HLEN", "jobmesh:origin:mail").Int())
	assert.InDelta(t, 3e9+29+604800, c.Do("EXPIRETIME", "jobmesh:origin:mail").Int(), 5)
	assert.Equal(t, 10, all(t, c, "sidekiq_export", "mail", "queue:b"))
	assert.Equal(t, int64(30), c.Do("ZCARD", "retry").Int())
	assert.Zero(t, c.Do("EXISTS", "jobmesh:origin:mail").Int())
}

// Delayed jobs wait for their time in jobmesh, and go back to their sets.
func TestDelayed(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	now := float64(time.Now().UnixMilli()) / 1000
	score := func(at float64) string { return fmt.Sprintf("%.6f", at) }
	c.Do("ZADD", "schedule", score(now+2.6), `{"queue":"mail","n":1}`, score(now+1000.125), `{"queue":"mail","n":2}`, "inf", `{"queue":"mail","n":3}`)
	c.Do("ZADD", "retry", "-inf", `{"queue":"mail","n":4}`, "1e300", `{"queue":"mail","n":5}`)
	assert.Equal(t, 3, all(t, c, "sidekiq_import", "schedule", "mail"))
	assert.Equal(t, 2, all(t, c, "sidekiq_import", "retry", "mail"))
	assert.Equal(t, `{"queue":"mail","n":4}`, c.Do("GETJOB", "FROM", "mail").Elems[0].Elems[2].Str, "at once")
	v := c.Do("GETJOB", "TIMEOUT", 15000, "FROM", "mail")
	assert.Equal(t, `{"queue":"mail","n":1}`, v.Elems[0].Elems[2].Str)
	assert.GreaterOrEqual(t, float64(time.Now().UnixMilli())/1000, now+2.6, "not before its time")
	// These two are in a worker's hands. They aren't moved without ACTIVE.
	native := c.Do("ADDJOB", "mail", `{"queue":"mail","n":6}`, 0, "DELAY", 50).Str
	require.Len(t, native, 40)
	assert.Equal(t, 4, all(t, c, "sidekiq_export", "mail", "queue:mail"))
	assert.Equal(t, int64(2), registered(c))
	assert.Zero(t, c.Do("LLEN", "queue:mail").Int())
	assert.Equal(t, []string{`{"queue":"mail","n":6}`, `{"queue":"mail","n":2}`, `{"queue":"mail","n":3}`}, c.Do("ZRANGE", "schedule", 0, -1).Strings())
	assert.InDelta(t, now+50, floatOf(t, c.Do("ZSCORE", "schedule", `{"queue":"mail","n":6}`).Str), 8)
	assert.InDelta(t, now+1000.125, floatOf(t, c.Do("ZSCORE", "schedule", `{"queue":"mail","n":2}`).Str), 1e-6)
	assert.Equal(t, []string{`{"queue":"mail","n":5}`}, c.Do("ZRANGE", "retry", 0, -1).Strings())
	assert.Equal(t, 2, all(t, c, "sidekiq_export", "mail", "queue:mail", "ACTIVE"))
	assert.Equal(t, int64(4), c.Do("ZCARD", "schedule").Int(), "n 1 came from there")
	assert.Equal(t, int64(2), c.Do("ZCARD", "retry").Int())
	// Resque has no place for delayed jobs: they stay.
	c.Do("ADDJOB", "other", "later", 0, "DELAY", 50)
	c.Do("ADDJOB", "other", "now", 0)
	assert.Equal(t, 1, all(t, c, "resque_export", "other", "resque:queue:other", "ACTIVE"))
	assert.Equal(t, int64(1), registered(c))
}

func floatOf(t *testing.T, s string) (f float64) {
	_, err := fmt.Sscan(s, &f)
	require.NoError(t, err, s)
	return f
}

// An rq list can hold IDs of jobs that are gone, or that expire. A job that comes back can find
// another job in its place.
func TestRqJobs(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	c.Do("HSET", "rq:job:a", "data", "x\x00\xff", "status", "queued")
	c.Do("HSET", "rq:job:b", "data", "y")
	c.Do("PEXPIRE", "rq:job:b", 100_000)
	c.Do("HSET", "rq:job:c", "data", "z")
	c.Do("PEXPIRE", "rq:job:c", 1050)
	c.Do("RPUSH", "rq:queue:mail", "a", "gone", "b", "c")
	assert.Equal(t, [3]int64{3, 0, 1}, numbers(t, call(c, "rq_import", "rq:queue:mail", "mail")))
	assert.Zero(t, c.Do("EXISTS", "rq:job:a", "rq:job:b", "rq:queue:mail").Int())
	peek := c.Do("QPEEK", "mail", 3)
	unpack := "local r = cmsgpack.unpack(ARGV[1]) return {r.id, r.hash.data, tostring(r.expires), tostring(r.due)}"
	assert.Equal(t, []string{"a", "x\x00\xff", "nil", "nil"}, c.Do("EVAL", unpack, 0, peek.Elems[0].Elems[2].Str).Strings())
	assert.InDelta(t, 100, c.Do("SHOW", peek.Elems[1].Elems[1].Str).Field("ttl").Int(), 2, "the job lives as long as rq's would")
	c.Do("HSET", "rq:job:a", "data", "a newer one")
	assert.True(t, call(c, "rq_export", "mail", "rq:queue:mail").Err("ERR rq:job:a exists already"))
	c.Do("DEL", "rq:job:a")
	time.Sleep(1100 * time.Millisecond) // c's time is over, and its job, which counts in seconds, is still there
	v := call(c, "rq_export", "mail", "rq:queue:mail")
	assert.Equal(t, [3]int64{2, 0, 1}, numbers(t, v), "c's time was over")
	assert.Equal(t, []string{"a", "b"}, c.Do("LRANGE", "rq:queue:mail", 0, -1).Strings())
	assert.InDelta(t, 100_000, c.Do("PTTL", "rq:job:b").Int(), 3000)
	assert.Equal(t, []string{"rq:queue:mail"}, c.Do("SMEMBERS", "rq:queues").Strings())
	assert.Zero(t, registered(c))
}

// Producers, workers and a move at the same time.
func TestLiveMove(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	const producers, each = 4, 500
	var wg sync.WaitGroup
	for p := range producers {
		w := s.Dial()
		wg.Go(func() {
			for i := range each {
				w.Do("RPUSH", "resque:queue:mail", fmt.Sprint(p, ":", i))
			}
		})
	}
	produced := make(chan struct{})
	go func() { wg.Wait(); close(produced) }()
	results := make(chan map[string]int)
	for range 2 {
		w := s.Dial()
		go func() {
			seen := map[string]int{}
			for {
				v := w.Do("GETJOB", "TIMEOUT", 3000, "COUNT", 10, "FROM", "mail")
				if v.Null {
					break
				}
				for _, e := range v.Elems {
					seen[e.Elems[2].Str]++
					w.Do("ACKJOB", e.Elems[1].Str)
				}
			}
			results <- seen
		}()
	}
	moved := 0
	for over := false; !over; {
		select {
		case <-produced:
			over = true
		default:
		}
		moved += all(t, c, "resque_import", "resque:queue:mail", "mail")
	}
	seen := <-results
	for k, n := range <-results {
		seen[k] += n
	}
	assert.Equal(t, producers*each, moved)
	assert.Len(t, seen, producers*each)
	for k, n := range seen {
		assert.Equal(t, 1, n, k)
	}
	assert.Zero(t, registered(c))
}

// In a mesh a job that is moved out is gone from all nodes.
func TestMesh(t *testing.T) {
	t.Parallel()
	a, b, c := startTwo(t)
	c.Do("LPUSH", "queue:mail", "x")
	c.Do("JOBMESH", "CLUSTER", "LEAVING", "yes")
	assert.True(t, call(c, "sidekiq_import", "queue:mail", "mail").Err("LEAVING"), "it would keep no copy")
	c.Do("JOBMESH", "CLUSTER", "LEAVING", "no")
	c.Do("CONFIG", "SET", "maxmemory", fmt.Sprint(int(floatOf(t, a.Info("memory", "used_memory"))*1.2)))
	harness.Await(t, 5*time.Second, "the memory to be short", func() bool { return a.Info("jobmesh", "jobmesh_memory_level") == "1" })
	assert.True(t, call(c, "sidekiq_import", "queue:mail", "mail").Err("OOM this node"), "nor here")
	c.Do("CONFIG", "SET", "maxmemory", 0)
	harness.Await(t, 5*time.Second, "the memory to be enough", func() bool { return a.Info("jobmesh", "jobmesh_memory_level") == "0" })
	assert.Equal(t, "x", c.Do("LPOP", "queue:mail").Str)
	for i := range 300 {
		c.Do("LPUSH", "queue:mail", i)
		c.Do("ZADD", "schedule", 3e9+float64(i), fmt.Sprintf(`{"queue":"mail","n":%d}`, i))
	}
	before := digest(t, c, "mail")
	c.Do("SADD", "queues", "mail")
	assert.Equal(t, 300, all(t, c, "sidekiq_import", "queue:mail", "mail"))
	assert.Equal(t, 300, all(t, c, "sidekiq_import", "schedule", "mail"))
	bc := b.Dial()
	harness.Await(t, 20*time.Second, "the copies", func() bool { return registered(bc) == 600 })
	assert.Equal(t, 600, all(t, c, "sidekiq_export", "mail", "queue:mail"))
	harness.Await(t, 30*time.Second, "all nodes to forget them", func() bool { return registered(bc) == 0 && registered(c) == 0 })
	c.Do("DEL", "queues")
	assert.Equal(t, before, digest(t, c, "mail"))
}

// Calls with random keys and options: errors have codes, no error comes from the Lua itself, and
// the server lives.
func TestRandomCalls(t *testing.T) {
	s, c := start(t)
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	pick := func(list ...string) any { return list[r.IntN(len(list))] }
	keys := []string{"resque:queue:mail", "queue:mail", "schedule", "retry", "rq:queue:mail", "rq:scheduled:mail", "rq:wip:mail", "rq:wipqueue:mail", "rq:deferred", "rq:deferred:mail", "rq:deferred:1", "mail", "u", "jobs", "text", "", "queue:", "a:queue:scheduled:b", "resque:queue:mail:uniqueue", "jobmesh:origin:mail", "queue:\x00\n%s"}
	options := []string{"COUNT", "FROM", "FORCE", "UQ", "JOBS", "ACTIVE", "UNIQUEUE", "QUEUE", "mail", "WITH", "TTL", "RETRY", "DELAY", "MAXLEN", "REPLICATE", "UNIQUE", "until-processed", "KEY", "ONCONFLICT", "return", "reschedule", "0", "1", "5", "-1", "1e3", "9007199254740993", "", "waiting", "\x00", "%d"}
	restore := func() {
		c.Do("FLUSHALL")
		writeFew(c)
		c.Do("SET", "text", "x")
		c.Do("LPUSH", "queue:mail", "", "\xc1", `{"queue":{}}`, `[[[[`)
		c.Do("ZADD", "schedule", "-inf", "", "inf", "\xc1", 5, `{"queue":7}`)
		c.Do("ADDJOB", "jobs", "\x82\xa2id\xa1x\xa4hash\x80", 0)
		c.Do("ADDJOB", "jobs", "\x82\xa2id\xa1x\xa4hash\x81\xa1a\xc0", 0, "DELAY", 7)
		c.Do("ADDJOB", "mail", "", 0, "DELAY", 9)
		c.Do("UQ.PUSH", "u", "", "AT", 0)
		c.Do("SADD", "rq:deferred", "mail|1", "s1", "|", "\x00")
		c.Do("RPUSH", "rq:deferred:1", "2", "1", "s2", "")
		c.Do("SADD", "rq:job:2:dependents", "2", "3")
		c.Do("HSET", "rq:job:3", "dependency_ids", `["2",7,{"a":[]}]`)
		c.Do("ADDJOB", "mail", "\x83\xa2id\xa1x\xa4hash\x81\xa1a\xa1b\xa7parents\x91\x07", 0, "DEFERRED")
	}
	for i := range 6000 {
		if i%100 == 0 {
			restore()
		}
		args := []any{"FCALL", "jobmesh_" + fmt.Sprint(pick("resque", "sidekiq", "rq", "rq"), pick("_import", "_export")), 2, pick(keys...), pick(keys...)}
		for range r.IntN(5) {
			args = append(args, pick(options...))
		}
		v := c.Do(args...)
		require.NotZero(t, v.Kind, "seed %d: %q", seed, args)
		if v.Kind == '-' {
			code, _, _ := strings.Cut(v.Str, " ")
			require.True(t, code == strings.ToUpper(code) && !strings.Contains(v.Str, "user_function"), "seed %d: %q: %v", seed, args, v)
		} else {
			numbers(t, v)
		}
	}
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
}
