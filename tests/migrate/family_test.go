package migrate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// rqJob writes a job of rq's.
func rqJob(c *harness.Conn, id, origin string, fields ...any) {
	line := []any{"HSET", "rq:job:" + id, "data", "x\x9c\x00" + id, "created_at", "2026-01-02T03:04:05Z"}
	if origin != "" {
		line = append(line, "origin", origin)
	}
	c.Do(append(line, fields...)...)
}

// child writes a job that waits for others, as rq does.
func child(c *harness.Conn, id, origin, created string, parents ...string) {
	rqJob(c, id, origin, "status", "deferred", "created_at", created, "dependency_id", parents[0])
	for _, p := range parents {
		c.Do("SADD", "rq:job:"+p+":dependents", id)
		if origin != "" {
			c.Do("SADD", "rq:job::"+id+":dependencies", p)
			c.Do("ZADD", "rq:deferred:"+origin, "1763712000.25", id)
		}
	}
}

// states returns the states of a queue's jobs, by rq's IDs.
func states(c *harness.Conn, queue string) map[string]string {
	m := map[string]string{}
	for _, e := range c.Do("JSCAN", 0, "COUNT", 10000, "QUEUE", queue, "REPLY", "all").Elems[1].Elems {
		m[rqID(c, e.Field("body").Str)] = e.Field("state").Str
	}
	return m
}

func rqID(c *harness.Conn, body string) string {
	return c.Do("EVAL", "return cmsgpack.unpack(ARGV[1]).id", 0, body).Str
}

// idOf returns the ID in jobmesh of one of rq's jobs.
func idOf(t *testing.T, c *harness.Conn, queue, id string) string {
	t.Helper()
	for _, e := range c.Do("JSCAN", 0, "COUNT", 10000, "QUEUE", queue, "REPLY", "all").Elems[1].Elems {
		if rqID(c, e.Field("body").Str) == id {
			return e.Field("id").Str
		}
	}
	require.Fail(t, "there is no such job", id)
	return ""
}

// take fetches the next job, acknowledges it, and returns rq's ID of it.
func take(c *harness.Conn, queue string) string {
	v := c.Do("GETJOB", "NOHANG", "FROM", queue)
	if v.Null {
		return ""
	}
	c.Do("ACKJOB", v.Elems[0].Elems[1].Str)
	return rqID(c, v.Elems[0].Elems[2].Str)
}

// Running jobs are due in jobmesh when they were due in rq, in either registry.
func TestRqRunning(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for _, word := range []string{"wipqueue", "wip"} {
		c.Do("FLUSHALL")
		now := float64(time.Now().UnixMilli()) / 1000
		registry := "rq:" + word + ":mail"
		for i, id := range []string{"past", "soon", "later"} {
			rqJob(c, id, "mail", "status", "started")
			c.Do("ZADD", registry, fmt.Sprintf("%.4f", now+[]float64{-100, 1.3, 500}[i]), id)
		}
		c.Do("ZADD", registry, now, "gone")
		assert.Equal(t, [3]int64{3, 0, 1}, numbers(t, call(c, "rq_import", registry, "mail")))
		assert.Equal(t, int64(1), c.Do("QLEN", "mail").Int(), "whose time is past is queued at once")
		assert.Equal(t, int64(3), registered(c))
		assert.Equal(t, "past", take(c, "mail"))
		assert.Equal(t, "", take(c, "mail"))
		harness.Await(t, 5*time.Second, "the job that is due soon", func() bool { return c.Do("QLEN", "mail").Is(1) })
		assert.GreaterOrEqual(t, float64(time.Now().UnixMilli())/1000, now+1.29)
		// A job whose result is due by then waits to be run again. The other job isn't due yet.
		assert.Equal(t, 2, all(t, c, "rq_export", "mail", "rq:queue:mail"))
		assert.Equal(t, []string{"soon"}, c.Do("LRANGE", "rq:queue:mail", 0, -1).Strings())
		assert.InDelta(t, now+500, floatOf(t, c.Do("ZSCORE", registry, "later").Str), 1e-3)
		assert.Equal(t, int64(1), c.Do("ZCARD", registry).Int())

		// A job that goes back before it is due has the same data as before.
		c.Do("FLUSHALL")
		rqJob(c, "later", "mail", "status", "started")
		c.Do("ZADD", registry, fmt.Sprintf("%.4f", now+600), "later")
		before := c.Do("DEBUG", "DIGEST").Str
		assert.Equal(t, 1, all(t, c, "rq_import", registry, "mail"))
		assert.Equal(t, 1, all(t, c, "rq_export", "mail", "rq:queue:mail"))
		c.Do("DEL", "rq:queues")
		assert.Equal(t, before, digest(t, c, "mail"))
	}
}

// Deferred jobs, in every form in which rq keeps them, can be released into their queues. The jobs
// that they block follow, in their own queues, in the order added.
func TestRqDeferred(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	for name, form := range map[string]struct {
		source string
		write  []any
		old    bool // the fork's: jobs that depend on others have no origin and no registry
	}{
		"set of IDs":            {"rq:deferred", []any{"SADD", "rq:deferred", "D"}, true},
		"set of queues and IDs": {"rq:deferred", []any{"SADD", "rq:deferred", "mail|D"}, true},
		"with spaces":           {"rq:deferred", []any{"SADD", "rq:deferred", "mail | D"}, true},
		"sorted set":            {"rq:deferred:mail", []any{"ZADD", "rq:deferred:mail", "1763712000.5", "D"}, false},
		"list":                  {"rq:deferred:D", []any{"RPUSH", "rq:deferred:D", "b", "a", "c"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			write := func() {
				c.Do("FLUSHALL")
				rqJob(c, "D", "mail", "status", "deferred")
				c.Do(form.write...)
				origin, other := "mail", "reports"
				if form.old {
					origin, other = "", ""
				}
				if name == "list" {
					for _, id := range []string{"a", "b", "c"} {
						rqJob(c, id, "")
					}
				} else {
					child(c, "a", origin, "2026-01-01T00:00:03Z", "D")
					child(c, "b", origin, "2026-01-01T00:00:01Z", "D")
					child(c, "c", origin, "2026-01-01T00:00:02Z", "b")
					child(c, "d", other, "2026-01-01T00:00:02Z", "D")
				}
			}
			want := map[string]string{"D": "deferred", "a": "blocked", "b": "blocked", "c": "blocked"}
			n := 5
			switch {
			case name == "list":
				n = 4
			case form.old:
				want["d"] = "blocked"
			}
			write()
			before := digest(t, c, "mail")
			in := func() { assert.Equal(t, n, all(t, c, "rq_import", form.source, "mail")) }
			in()
			assert.Equal(t, want, states(c, "mail"))
			assert.Empty(t, c.Do("KEYS", "rq:*").Elems, "nothing stays behind")
			assert.Equal(t, "", take(c, "mail"))
			assert.Equal(t, n, all(t, c, "rq_export", "mail", "rq:queue:mail"))
			c.Do("DEL", "reports")
			require.Equal(t, before, digest(t, c, "mail"), "%v", c.Do("KEYS", "*"))

			in()
			assert.Equal(t, int64(1), c.Do("RELEASEJOB", idOf(t, c, "mail", "D")).Int())
			assert.Equal(t, "D", take(c, "mail"))
			var order []string
			for id := take(c, "mail"); id != ""; id = take(c, "mail") {
				order = append(order, id)
			}
			switch {
			case name == "list":
				assert.Equal(t, []string{"b", "a", "c"}, order)
			case form.old:
				// c came after its parent, which came after D: so c's place follows from its age.
				assert.Contains(t, []string{"b,c,d,a", "b,d,a,c", "b,d,c,a"}, strings.Join(order, ","))
			default:
				assert.Equal(t, "d", take(c, "reports"), "in its own queue")
				assert.Equal(t, "b", order[0])
				assert.Len(t, order, 3)
			}
			assert.Zero(t, registered(c))

			// If D is cancelled before its release, the others go with it. If D is released, it goes back to the list.
			write()
			in()
			assert.Equal(t, int64(n), c.Do("CANCELJOB", idOf(t, c, "mail", "D")).Int())
			write()
			in()
			c.Do("RELEASEJOB", idOf(t, c, "mail", "D"))
			assert.Equal(t, n, all(t, c, "rq_export", "mail", "rq:queue:mail"))
			assert.Equal(t, []string{"D"}, c.Do("LRANGE", "rq:queue:mail", 0, -1).Strings())
		})
	}
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
}

// Dependents of ordinary jobs: of several jobs, of jobs that are done, and of jobs that are in
// other queues.
func TestRqDependents(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for _, id := range []string{"p1", "p2"} {
		rqJob(c, id, "mail", "status", "queued")
		c.Do("RPUSH", "rq:queue:"+map[string]string{"p1": "mail", "p2": "two"}[id], id)
	}
	c.Do("HSET", "rq:job:p2", "origin", "two")
	rqJob(c, "failed", "mail", "status", "failed")
	rqJob(c, "done", "mail", "status", "finished")
	child(c, "one", "mail", "1", "p1", "done", "has gone")
	child(c, "both", "mail", "2", "p1", "p2")
	child(c, "never", "mail", "3", "p1", "failed")
	child(c, "anyway", "mail", "4", "p1")
	c.Do("HSET", "rq:job:anyway", "allow_dependency_failures", 1)
	c.Do("SADD", "rq:job:p1:dependents", "nobody")
	assert.Equal(t, [3]int64{3, 0, 1}, numbers(t, call(c, "rq_import", "rq:queue:mail", "mail")), "nobody is counted as dropped")
	assert.Equal(t, map[string]string{"p1": "queued", "one": "blocked", "anyway": "blocked"}, states(c, "mail"))
	assert.ElementsMatch(t, []string{"both", "never"}, c.Do("SMEMBERS", "rq:job:p1:dependents").Strings())
	assert.Equal(t, []string{"both", "never"}, c.Do("ZRANGE", "rq:deferred:mail", 0, -1).Strings())
	v := call(c, "rq_import", "rq:deferred:mail", "mail")
	assert.Equal(t, [3]int64{0, 0, 0}, numbers(t, v), "what they wait for isn't here")
	assert.Equal(t, 2, all(t, c, "rq_import", "rq:queue:two", "two"))
	assert.Equal(t, "blocked", states(c, "mail")["both"])
	assert.Len(t, c.Do("SHOW", idOf(t, c, "mail", "both")).Field("waits-for").Elems, 2)
	// All jobs go back, each once. A job that waits for two goes with the first of them.
	assert.Equal(t, 2, all(t, c, "rq_export", "two", "rq:queue:two"))
	assert.Equal(t, 3, all(t, c, "rq_export", "mail", "rq:queue:mail"))
	assert.Zero(t, registered(c))
	assert.ElementsMatch(t, []string{"one", "both", "never", "anyway"}, c.Do("SMEMBERS", "rq:job:p1:dependents").Strings())
	assert.Equal(t, []string{"both"}, c.Do("SMEMBERS", "rq:job:p2:dependents").Strings())
	assert.Equal(t, int64(4), c.Do("ZCARD", "rq:deferred:mail").Int())
	assert.ElementsMatch(t, []string{"p1", "p2"}, c.Do("SMEMBERS", "rq:job::both:dependencies").Strings())
	assert.Zero(t, c.Do("EXISTS", "jobmesh:family:rq:").Int())

	// Here they run one after the other, and a failure of p1's counts for none but one.
	assert.Equal(t, 3, all(t, c, "rq_import", "rq:queue:mail", "mail"))
	assert.Equal(t, 2, all(t, c, "rq_import", "rq:queue:two", "two"))
	assert.Equal(t, "p1", take(c, "mail"))
	assert.Equal(t, []string{"one", "anyway", ""}, []string{take(c, "mail"), take(c, "mail"), take(c, "mail")})
	assert.Equal(t, "p2", take(c, "two"))
	assert.Equal(t, "both", take(c, "mail"))
	// The job whose other parent has failed comes when that parent is finished.
	assert.Equal(t, [3]int64{0, 0, 0}, numbers(t, call(c, "rq_import", "rq:deferred:mail", "mail")))
	c.Do("HSET", "rq:job:failed", "status", "finished")
	assert.Equal(t, 1, all(t, c, "rq_import", "rq:deferred:mail", "mail"))
	assert.Equal(t, "never", take(c, "mail"))

	// A job that depends on no other can be released. A job that is over isn't deferred.
	c.Do("FLUSHALL")
	rqJob(c, "alone", "mail", "status", "deferred")
	child(c, "orphan", "mail", "1", "has gone")
	rqJob(c, "over", "mail", "status", "finished")
	c.Do("ZADD", "rq:deferred:mail", 1, "alone", 2, "over", 3, "nobody")
	v = call(c, "rq_import", "rq:deferred:mail", "mail")
	assert.Equal(t, [3]int64{2, 1, 1}, numbers(t, v))
	assert.True(t, call(c, "rq_import", "rq:deferred:mail", "mail", "FROM", v.Elems[3].Str).Err("NOJOB rq:deferred:mail names jobs that are not there, by 'nobody': ZREM"))
	c.Do("ZREM", "rq:deferred:mail", "nobody")
	assert.Equal(t, map[string]string{"alone": "deferred", "orphan": "deferred"}, states(c, "mail"))
	assert.Equal(t, int64(1), c.Do("EXISTS", "rq:job:over").Int())
	assert.Equal(t, 2, all(t, c, "rq_export", "mail", "rq:queue:mail"))
	assert.Equal(t, []string{"alone", "orphan"}, c.Do("ZRANGE", "rq:deferred:mail", 0, -1).Strings())
}

// The fork's set holds jobs of all queues, and is walked in steps.
func TestRqDeferredOfManyQueues(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	const n = 3000
	many(t, c, n, func(i int) []any {
		return []any{"HSET", fmt.Sprint("rq:job:", i), "data", i, "origin", []string{"a", "b", "c"}[i%3]}
	})
	many(t, c, n, func(i int) []any {
		member := fmt.Sprint(i)
		if i%2 == 0 {
			member = fmt.Sprint([]string{"a", "b", "c"}[i%3], "|", i)
		}
		return []any{"SADD", "rq:deferred", member}
	})
	before := digest(t, c, "mail")
	assert.Equal(t, n/3, all(t, c, "rq_import", "rq:deferred", "mail", "QUEUE", "b"))
	assert.Equal(t, int64(n-n/3), c.Do("SCARD", "rq:deferred").Int())
	assert.Equal(t, n/3, all(t, c, "rq_import", "rq:deferred", "a"))
	assert.Equal(t, int64(2*n/3), registered(c))
	assert.Equal(t, n/3, all(t, c, "rq_export", "mail", "rq:queue:b"))
	assert.Equal(t, n/3, all(t, c, "rq_export", "a", "rq:queue:a"))
	c.Do("DEL", "a")
	assert.Equal(t, before, digest(t, c, "mail"))
}

// A family is moved as a whole or not at all. A large family ends its batch.
func TestRqFamilies(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for i := range 3 {
		rqJob(c, fmt.Sprint("p", i), "mail")
		c.Do("RPUSH", "rq:queue:mail", fmt.Sprint("p", i))
	}
	many(t, c, 1500, func(i int) []any {
		return []any{"HSET", fmt.Sprint("rq:job:k", i), "data", i, "origin", "kin", "created_at", fmt.Sprintf("%05d", i), "dependency_id", fmt.Sprint("p", i%2)}
	})
	many(t, c, 1500, func(i int) []any { return []any{"SADD", fmt.Sprintf("rq:job:p%d:dependents", i%2), fmt.Sprint("k", i)} })
	before := digest(t, c, "mail")
	refused := func(err string, options ...any) {
		t.Helper()
		v := call(c, "rq_import", "rq:queue:mail", "mail", options...)
		assert.True(t, v.Err(err), "%v", v)
		assert.Zero(t, registered(c))
		assert.Equal(t, before, digest(t, c, "mail"), err)
	}
	c.Do("SET", "kin", "x")
	before = c.Do("DEBUG", "DIGEST").Str
	refused("WRONGTYPE")
	c.Do("DEL", "kin")
	before = c.Do("DEBUG", "DIGEST").Str
	refused("ERR MAXLEN", "WITH", "MAXLEN", "x")
	refused("BADID", "WITH", "AFTER", "x")
	assert.Equal(t, [3]int64{1502, 1, 0}, numbers(t, call(c, "rq_import", "rq:queue:mail", "mail")), "both families are over a thousand")
	assert.Equal(t, [3]int64{1, 0, 0}, numbers(t, call(c, "rq_import", "rq:queue:mail", "mail")))
	c.Do("HSET", "rq:job:k7", "data", "in the way")
	moved, _, err := step(c, "rq_export", "mail", "rq:queue:mail")
	assert.ErrorContains(t, err, "ERR rq:job:k7 exists already")
	assert.Equal(t, int64(751), moved)
	assert.Equal(t, int64(752), registered(c))
	c.Do("DEL", "rq:job:k7")
	assert.Equal(t, 752, all(t, c, "rq_export", "mail", "rq:queue:mail"))
	c.Do("DEL", "rq:queues", "kin")
	assert.Equal(t, before, digest(t, c, "mail"))
	kin := c.Do("SCARD", "rq:job:p0:dependents").Int()
	more := func(first, n int) {
		many(t, c, n, func(i int) []any {
			return []any{"HSET", fmt.Sprint("rq:job:x", first+i), "data", i, "origin", "kin", "dependency_id", "p0"}
		})
		many(t, c, n, func(i int) []any { return []any{"SADD", "rq:job:p0:dependents", fmt.Sprint("x", first+i)} })
	}
	more(0, 10_001-int(kin))
	before = c.Do("DEBUG", "DIGEST").Str
	refused("ERR more than 10000 jobs wait for rq:job:p0")
	c.Do("SREM", "rq:job:p0:dependents", "x0")
	v := call(c, "rq_import", "rq:queue:mail", "mail")
	assert.Equal(t, int64(10_001), numbers(t, v)[0], "10000 are not more than 10000")
}

// A job waits for very many. The cost of each of these doesn't grow with their number, and the job
// comes as soon as those that are left are few enough to wait for.
func TestADependentOfVeryManyParents(t *testing.T) {
	const parents = 1500
	s, c := start(t)
	var names []string
	for i := range parents {
		id := fmt.Sprint("p", i)
		names = append(names, id)
		rqJob(c, id, "m")
		c.Do("RPUSH", "rq:queue:m", id)
	}
	child(c, "y", "m", "2026-01-02T03:04:05Z", names...)
	c.Do("CONFIG", "RESETSTAT")
	for left, moved := int64(1), int64(0); left > 0; {
		v := c.Do("FCALL", "jobmesh_rq_import", 2, "rq:queue:m", "m", "COUNT", 1000)
		require.Len(t, v.Elems, 4, "%v", v)
		moved += v.Elems[0].Int()
		require.Positive(t, v.Elems[0].Int(), "%v", v)
		left = v.Elems[1].Int()
		if left == 0 {
			assert.EqualValues(t, parents, moved)
		}
	}
	calls := map[string]int{}
	for line := range strings.SplitSeq(s.Do("INFO", "commandstats").Str, "\r\n") {
		var n int
		if name, rest, ok := strings.Cut(line, ":calls="); ok {
			_, err := fmt.Sscanf(rest, "%d", &n)
			require.NoError(t, err)
			calls[strings.TrimPrefix(name, "cmdstat_")] = n
		}
	}
	assert.Less(t, calls["show"], 3*parents, "%v", calls)
	assert.Less(t, calls["hget"], 10*parents, "%v", calls)

	registry := func() int64 {
		v := c.Do("FCALL", "jobmesh_rq_import", 2, "rq:deferred:m", "m")
		require.Len(t, v.Elems, 4, "%v", v)
		return v.Elems[0].Int()
	}
	assert.Zero(t, registry(), "it can't wait for as many")
	assert.Equal(t, "y", c.Do("ZRANGE", "rq:deferred:m", 0, -1).Elems[0].Str)
	got := c.Do("GETJOB", "COUNT", 600, "FROM", "m").Elems
	require.Len(t, got, 600)
	for _, e := range got {
		c.Do("ACKJOB", e.Elems[1].Str)
	}
	assert.EqualValues(t, 1, registry())
	assert.Equal(t, "blocked", states(c, "m")["y"])
	assert.Zero(t, c.Do("EXISTS", "rq:job:y", "rq:deferred:m").Int())
}
