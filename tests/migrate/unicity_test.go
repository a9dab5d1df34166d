package migrate

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// locked returns a job of Sidekiq's with the lock that sidekiq_unicity took for it.
func locked(class, kind, key, token string, more string) (resource, body string) {
	resource = "unicity:" + class + ":" + kind + ":" + key
	body = fmt.Sprintf(`{"class":%q,"args":[%q],"queue":"mail","jid":"%s", "lock_info":{"validity":296998,"resource":%q,"value":%q}%s}`,
		class, key, token, resource, token, more)
	return resource, body
}

// only returns the one job that a queue has, as SHOW describes it.
func only(t *testing.T, c *harness.Conn, queue string) harness.Value {
	t.Helper()
	v := c.Do("JSCAN", 0, "COUNT", 10000, "QUEUE", queue, "REPLY", "id")
	require.Len(t, v.Elems[1].Elems, 1)
	return c.Do("SHOW", v.Elems[1].Elems[0].Str)
}

// Each job has its lock in jobmesh too, for the time that remains, and an ACKJOB frees it.
func TestUnicityLocks(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for _, tc := range []struct{ class, kind, user, unique, key string }{
		{"Mail", "before", "7", "before-processing", "Mail:7"},
		{"Mail", "until", "", "until-processed", "Mail:"},
		{"App::V2::Mail", "before_bd", "a::before:b:", "before-and-during-processing", "App::V2::Mail:a::before:b:"},
		{"A", "until", ":x", "until-processed", "A::x"},
	} {
		for _, app := range []string{"", "app:"} {
			c.Do("FLUSHALL")
			resource, body := locked(tc.class, tc.kind, tc.user, "token-1", "")
			c.Do("SET", app+resource, "token-1", "PX", 2500)
			c.Do("LPUSH", app+"queue:mail", body)
			before := digest(t, c, "mail")
			assert.Equal(t, 1, all(t, c, "sidekiq_import", app+"queue:mail", "mail"))
			assert.Zero(t, c.Do("EXISTS", app+resource).Int(), "it has one owner")
			job := only(t, c, "mail")
			assert.Equal(t, []string{tc.unique, tc.key, "mesh", "wait"},
				[]string{job.Field("unique").Str, job.Field("key").Str, job.Field("scope").Str, job.Field("lock").Str})
			again := func() harness.Value {
				return c.Do("ADDJOB", "other", "x", 0, "UNIQUE", tc.unique, "KEY", tc.key, "SCOPE", "mesh")
			}
			assert.True(t, again().NullString())
			// A lock that goes there and back has the same key, for the same time, and the job the same bytes.
			assert.Equal(t, 1, all(t, c, "sidekiq_export", "mail", app+"queue:mail"))
			c.Do("SREM", app+"queues", "mail")
			assert.Equal(t, before, digest(t, c, "mail"))
			assert.Equal(t, 1, all(t, c, "sidekiq_import", app+"queue:mail", "mail"))
			if app == "" {
				id := c.Do("GETJOB", "FROM", "mail").Elems[0].Elems[1].Str
				assert.Equal(t, tc.kind == "until", again().NullString(), "%s: as long as the strategy says", tc.kind)
				assert.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
				assert.Equal(t, tc.kind != "until", again().NullString(), "%s", tc.kind)
			} else {
				// Without an ACKJOB the lock ends when it would have ended in Sidekiq.
				assert.True(t, again().NullString())
				harness.Await(t, 4*time.Second, "the lock's end", func() bool { return len(again().Str) == 40 })
				assert.Equal(t, body, c.Do("GETJOB", "FROM", "mail").Elems[0].Elems[2].Str)
			}
		}
	}
}

// If a lock isn't the job's own, or isn't there any more, the job comes without it.
func TestUnicityWithoutLocks(t *testing.T) {
	_, c := start(t)
	gone, a := locked("Mail", "until", "gone", "t1", "")
	taken, b := locked("Mail", "until", "taken", "t2", "")
	run, d := locked("Mail", "during", "run", "t3", "")
	odd, e := locked("mail", "sometimes", "odd", "t4", "")
	text, f := locked("Mail", "until", "list", "t5", "")
	c.Do("SET", taken, "another", "PX", 100_000)
	c.Do("SET", run, "t3", "PX", 100_000)
	c.Do("SET", odd, "t4", "PX", 100_000)
	c.Do("RPUSH", text, "t5")
	bodies := []string{a, b, d, e, f, `{"queue":"mail","lock_info":null}`, `{"queue":"mail","lock_info":{"resource":7}}`, `"lock_info"`, `{"lock_info"`,
		`{"lock_info":{"resource":"unicity:Mail","value":"x"}}`, `{"lock_info":{"resource":"unicity:","value":"x"}}`}
	for _, body := range bodies {
		c.Do("LPUSH", "queue:mail", body)
	}
	before := digest(t, c, "mail")
	assert.Equal(t, len(bodies), all(t, c, "sidekiq_import", "queue:mail", "mail"))
	for _, v := range c.Do("JSCAN", 0, "COUNT", 10000, "QUEUE", "mail", "REPLY", "all").Elems[1].Elems {
		assert.Empty(t, v.Field("unique").Str, "%v", v.Field("body"))
	}
	assert.Equal(t, int64(1), c.Do("EXISTS", taken).Int())
	assert.Zero(t, c.Do("EXISTS", gone).Int())
	assert.Equal(t, len(bodies), all(t, c, "sidekiq_export", "mail", "queue:mail"))
	c.Do("DEL", "queues")
	assert.Equal(t, before, digest(t, c, "mail"))

	// WITH UNIQUE takes precedence over what a job says: the lock stays where it is.
	c.Do("FLUSHALL")
	resource, body := locked("Mail", "until", "7", "t", "")
	c.Do("SET", resource, "t", "PX", 100_000)
	c.Do("LPUSH", "queue:mail", body)
	assert.Equal(t, 1, all(t, c, "sidekiq_import", "queue:mail", "mail", "WITH", "UNIQUE", "none"))
	assert.Empty(t, only(t, c, "mail").Field("unique").Str)
	assert.Equal(t, "t", c.Do("GET", resource).Str)
}

// The lock of a delayed job lasts at least until the job is due. If it would have lasted longer in
// Sidekiq, it does here.
func TestUnicityDelayed(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	now := float64(time.Now().UnixMilli()) / 1000
	add := func(key string, due float64, ms any) (string, string) {
		resource, body := locked("Mail", "until", key, "t-"+key, "")
		c.Do("SET", resource, "t-"+key, "PX", ms)
		c.Do("ZADD", "schedule", fmt.Sprintf("%.3f", due), body)
		return resource, body
	}
	add("short", now+1.5, 500)
	add("long", now+1.5, 5000)
	far, _ := add("far", now+1000, 300_000)
	// If the lock has no time to live, the job has it as long as the job lives.
	ever, body := locked("Mail", "until", "ever", "t-ever", "")
	c.Do("SET", ever, "t-ever")
	c.Do("ZADD", "retry", "1.5", body)
	before := map[string]int64{far: c.Do("PEXPIRETIME", far).Int(), ever: -1}
	assert.Equal(t, 3, all(t, c, "sidekiq_import", "schedule", "mail"))
	assert.Equal(t, 1, all(t, c, "sidekiq_import", "retry", "mail"))
	free := func(key string) bool {
		v := c.Do("ADDJOB", "other", "x", 0, "UNIQUE", "until-processed", "KEY", "Mail:"+key, "SCOPE", "mesh")
		if v.NullString() {
			return false
		}
		c.Do("DELJOB", v.Str)
		return true
	}
	time.Sleep(time.Until(time.UnixMilli(int64(now*1000) + 1400))) // until then no lock may end
	for _, key := range []string{"short", "long", "far", "ever"} {
		assert.False(t, free(key), key)
	}
	harness.Await(t, 4*time.Second, "the short one's end", func() bool { return free("short") })
	assert.False(t, free("long"))
	harness.Await(t, 8*time.Second, "the long one's end", func() bool { return free("long") })
	assert.GreaterOrEqual(t, float64(time.Now().UnixMilli())/1000, now+4.99, "not too early")
	assert.False(t, free("far"))
	assert.False(t, free("ever"))
	assert.Equal(t, 4, all(t, c, "sidekiq_export", "mail", "queue:mail"))
	for key, at := range before {
		assert.Equal(t, at, c.Do("PEXPIRETIME", key).Int(), key)
	}
	assert.Equal(t, int64(2), int64(len(c.Do("KEYS", "unicity:*").Elems)), "what is over doesn't begin anew")
	assert.Zero(t, c.Do("EXISTS", "jobmesh:origin:mail").Int())
}

// If another job has the lock in jobmesh, the job stays, and nothing is changed.
func TestUnicityConflict(t *testing.T) {
	_, c := start(t)
	resource, body := locked("Mail", "until", "7", "t", "")
	c.Do("SET", resource, "t", "PX", 100_000)
	c.Do("LPUSH", "queue:mail", body)
	id := c.Do("ADDJOB", "other", "x", 0, "UNIQUE", "until-processed", "KEY", "Mail:7", "SCOPE", "mesh").Str
	before := c.Do("DEBUG", "DIGEST").Str
	v := call(c, "sidekiq_import", "queue:mail", "mail")
	assert.True(t, v.Err("DUPLICATE "+id+" has the key"), "%v", v)
	assert.Equal(t, before, c.Do("DEBUG", "DIGEST").Str)
	c.Do("ACKJOB", id)
	assert.Equal(t, 1, all(t, c, "sidekiq_import", "queue:mail", "mail"))
	// The job goes back. If somebody has taken the lock there meanwhile, they keep it.
	c.Do("SET", resource, "theirs")
	assert.Equal(t, 1, all(t, c, "sidekiq_export", "mail", "queue:mail"))
	assert.Equal(t, "theirs", c.Do("GET", resource).Str)
	// A job that was delivered takes its lock again if it goes back to wait.
	resource, body = locked("Mail", "before", "8", "t", "")
	c.Do("SET", resource, "t", "PX", 100_000)
	c.Do("LPUSH", "queue:m", body)
	assert.Equal(t, 1, all(t, c, "sidekiq_import", "queue:m", "m"))
	c.Do("GETJOB", "FROM", "m")
	assert.Equal(t, 1, all(t, c, "sidekiq_export", "m", "queue:m", "ACTIVE"))
	assert.Equal(t, "t", c.Do("GET", resource).Str)
}

// A lock that is left when all jobs are imported has no job. It is listed, and lapses.
func TestUnicityOrphans(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for i := range 300 {
		resource, body := locked("Mail", "until", fmt.Sprint(i), fmt.Sprint("t", i), "")
		c.Do("SET", "a*p:"+resource, fmt.Sprint("t", i), "PX", 100_000)
		c.Do("LPUSH", "a*p:queue:mail", body)
	}
	c.Do("SET", "a*p:unicity:App::Mail:during_bd:x", "t", "PX", 50_000)
	c.Do("SET", "a*p:unicity:Mail:until:orphan", "t", "PX", 1000)
	c.Do("SET", "ap:unicity:Mail:until:of another", "t")
	c.Do("SET", "a*p:unicity:no lock", "t")
	c.Do("RPUSH", "a*p:unicity:Mail:until:no string", "t")
	list := func() map[string]string {
		found, from := map[string]string{}, "0"
		for {
			v := c.Do("FCALL_RO", "jobmesh_sidekiq_locks", 1, "a*p:unicity:", "COUNT", 50, "FROM", from)
			require.Len(t, v.Elems, 2, "%v", v)
			for _, e := range v.Elems[0].Elems {
				found[e.Elems[0].Str] = e.Elems[1].Str
				assert.InDelta(t, 50_000, e.Elems[2].Int(), 50_000)
			}
			if from = v.Elems[1].Str; from == "0" {
				return found
			}
		}
	}
	assert.Len(t, list(), 302)
	assert.Equal(t, 300, all(t, c, "sidekiq_import", "a*p:queue:mail", "mail"))
	assert.Equal(t, map[string]string{"a*p:unicity:App::Mail:during_bd:x": "during_bd", "a*p:unicity:Mail:until:orphan": "until"}, list())
	harness.Await(t, 5*time.Second, "the end of the lock that is left", func() bool { return len(list()) == 1 })
	for _, keys := range [][]any{{0}, {1, "queue:mail"}, {2, "unicity:", "b"}} {
		assert.True(t, c.Do(append([]any{"FCALL_RO", "jobmesh_sidekiq_locks"}, keys...)...).Err("ERR give one key"))
	}
	assert.True(t, c.Do("FCALL_RO", "jobmesh_sidekiq_locks", 1, "unicity:", "x").Err(syntax))
}

// Jobs are made unique by WITH UNIQUE, or by the queue's settings.
func TestUniqueImports(t *testing.T) {
	s, c := start(t)
	fill := func() {
		c.Do("FLUSHALL")
		c.Do("RPUSH", "resque:queue:mail", "a", "b", "a", "c", "b")
	}
	bodies := func() (list []string) {
		for _, e := range c.Do("QPEEK", "mail", 99).Elems {
			list = append(list, e.Elems[2].Str)
		}
		return list
	}
	move := func(options ...any) harness.Value {
		return call(c, "resque_import", "resque:queue:mail", "mail", options...)
	}
	for _, settings := range []bool{false, true} {
		with := func(options ...any) []any {
			c.Do("QCONFIG", "DEL", "mail")
			if settings {
				require.Equal(t, "OK", c.Do(append([]any{"QCONFIG", "SET", "mail"}, options...)...).Str)
				return nil
			}
			return append([]any{"WITH"}, options...)
		}
		for _, rule := range [][]any{{}, {"ONCONFLICT", "drop"}, {"onconflict", "Return"}} {
			fill()
			v := move(with(append([]any{"UNIQUE", "until-processed"}, rule...)...)...)
			assert.Equal(t, [3]int64{3, 0, 2}, numbers(t, v), "%v", rule)
			assert.Equal(t, []string{"a", "b", "c"}, bodies())
			assert.Equal(t, "until-processed", c.Do("SHOW", c.Do("QPEEK", "mail", 1).Elems[0].Elems[1].Str).Field("unique").Str)
			assert.Equal(t, 3, all(t, c, "resque_export", "mail", "resque:queue:mail"))
			c.Do("QCONFIG", "DEL", "mail")
			assert.Len(t, c.Do("ADDJOB", "mail", "a", 0, "UNIQUE", "until-processed").Str, 40, "its lock went with it")
		}
		fill()
		assert.Equal(t, [3]int64{2, 3, 0}, numbers(t, move(with("UNIQUE", "before-processing", "ONCONFLICT", "raise")...)))
		options := with("UNIQUE", "before-processing", "ONCONFLICT", "raise")
		assert.True(t, move(options...).Err("DUPLICATE D-"))
		assert.Equal(t, []string{"a", "c", "b"}, c.Do("LRANGE", "resque:queue:mail", 0, -1).Strings())
		fill()
		assert.Equal(t, [3]int64{5, 0, 0}, numbers(t, move(with("UNIQUE", "window", "TTL", 60, "ONCONFLICT", "reschedule", 5)...)))
		assert.Equal(t, []string{"a", "b", "c"}, bodies(), "the others try again later")
		fill()
		before := c.Do("DEBUG", "DIGEST").Str
		v := move(with("UNIQUE", "until-processed", "KEY", "onconflict", "ONCONFLICT", "REPLACE")...)
		assert.True(t, v.Err("ERR ONCONFLICT replace is not for moving"), "%v", v)
		assert.Equal(t, before, c.Do("DEBUG", "DIGEST").Str)
		// Jobs that are held back for their key are moved out with ACTIVE.
		fill()
		assert.Equal(t, [3]int64{5, 0, 0}, numbers(t, move(with("UNIQUE", "during-processing", "KEY", "k")...)))
		c.Do("QCONFIG", "DEL", "mail")
		id := c.Do("GETJOB", "FROM", "mail").Elems[0].Elems[1].Str
		assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "mail").NullArray())
		assert.Equal(t, [3]int64{0, 0, 0}, numbers(t, call(c, "resque_export", "mail", "resque:queue:mail")), "they stay with the one that runs")
		assert.Equal(t, 5, all(t, c, "resque_export", "mail", "resque:queue:mail", "ACTIVE"))
		assert.Equal(t, []string{"a", "b", "a", "c", "b"}, c.Do("LRANGE", "resque:queue:mail", 0, -1).Strings())
		assert.Zero(t, c.Do("ACKJOB", id).Int())
	}
	// WITH takes precedence over the settings.
	c.Do("QCONFIG", "SET", "mail", "UNIQUE", "until-processed", "ONCONFLICT", "replace")
	fill()
	assert.Equal(t, [3]int64{5, 0, 0}, numbers(t, move("WITH", "unique", "None")))
	fill()
	assert.Equal(t, [3]int64{3, 0, 2}, numbers(t, move("WITH", "ONCONFLICT", "drop", "RETRY", 7)))
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
}

// In a mesh nodes have to agree on a lock, for which functions can't wait. So imports are refused
// before anything is changed.
func TestUniqueMesh(t *testing.T) {
	t.Parallel()
	_, _, c := startTwo(t)
	resource, body := locked("Mail", "until", "7", "t", "")
	c.Do("SET", resource, "t", "PX", 100_000)
	c.Do("LPUSH", "queue:locked", body)
	c.Do("LPUSH", "queue:mail", "x", "y")
	c.Do("RPUSH", "resque:queue:mail", "x", "y")
	c.Do("HSET", "rq:job:1", "data", "x")
	c.Do("RPUSH", "rq:queue:mail", "1")
	c.Do("QCONFIG", "SET", "unique", "UNIQUE", "until-processed")
	before := c.Do("DEBUG", "DIGEST").Str
	refused := func(function, from, to string, options ...any) {
		t.Helper()
		v := call(c, function, from, to, options...)
		assert.True(t, v.Err("NOQUORUM the lock "), "%v", v)
		assert.Equal(t, before, c.Do("DEBUG", "DIGEST").Str)
	}
	for function, from := range map[string]string{"sidekiq_import": "queue:mail", "resque_import": "resque:queue:mail", "rq_import": "rq:queue:mail"} {
		refused(function, from, "unique")
		refused(function, from, "mail", "WITH", "KEY", "unique", "UNIQUE", "Before-Processing")
		refused(function, from, "mail", "WITH", "UNIQUE", "window", "TTL", 5, "QUORUM", "any")
	}
	refused("sidekiq_import", "queue:locked", "mail")
	// Jobs that need no lock are moved. So are jobs that are imported WITH UNIQUE none.
	assert.Equal(t, 2, all(t, c, "resque_import", "resque:queue:mail", "unique", "WITH", "UNIQUE", "none"))
	assert.Equal(t, 2, all(t, c, "sidekiq_import", "queue:mail", "mail", "WITH", "UNIQUE", "during-processing"))
	assert.Equal(t, 1, all(t, c, "sidekiq_import", "queue:locked", "mail", "WITH", "UNIQUE", "none"))
	assert.Equal(t, 3, all(t, c, "sidekiq_export", "mail", "queue:mail"))
}
