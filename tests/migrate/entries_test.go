package migrate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// deferred writes a deferred job as the fork does. If origin is empty, the job has none.
func deferred(c *harness.Conn, id, origin string, fields ...any) {
	rqJob(c, id, origin, append([]any{"status", "deferred"}, fields...)...)
}

// rqQueues returns the queues of the jobs in jobmesh, by rq's IDs.
func rqQueues(c *harness.Conn) map[string]string {
	m := map[string]string{}
	for _, e := range c.Do("JSCAN", 0, "COUNT", 10000, "REPLY", "all").Elems[1].Elems {
		m[rqID(c, e.Field("body").Str)] = e.Field("queue").Str
	}
	return m
}

// The layout that the fork's page describes: deferred jobs are in a sorted set of 'queue | ID',
// and the jobs that one blocks are in its list of 'queue/ID'. Nothing else says which job waits
// for which.
func TestRqLayoutOfTheForksPage(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	write := func() {
		c.Do("FLUSHALL")
		for _, id := range []string{"F", "B1", "B2", "B3", "G"} {
			deferred(c, id, "")
		}
		c.Do("RPUSH", "rq:deferred:F", "other/B1", "mail/B2", "a/b/B3")
		c.Do("ZADD", "rq:deferred", 1, "mail | F", 2, "other | B1", 3, "reports | G", 4, "mail | B2")
	}
	queues := map[string]string{"F": "mail", "B1": "other", "B2": "mail", "B3": "a/b"}
	for i, source := range []string{"rq:deferred", "rq:deferred:F", "rq:deferred", "rq:deferred:F"} {
		write()
		if i > 1 { // as rq itself says it, too
			for _, id := range []string{"B1", "B2"} {
				c.Do("HSET", "rq:job:"+id, "dependency_id", "F")
				c.Do("SADD", "rq:job:F:dependents", id)
			}
		}
		before := digest(t, c, "none")
		v := call(c, "rq_import", source, "mail")
		assert.Equal(t, int64(4), v.Elems[0].Int(), "%v", v)
		assert.Zero(t, v.Elems[2].Int(), "%v", v)
		assert.Zero(t, all(t, c, "rq_import", "rq:deferred", "mail", "FROM", 0), "%s: the rest of the set is another queue's", source)
		assert.Equal(t, queues, rqQueues(c), source)
		assert.Equal(t, "deferred", states(c, "mail")["F"])
		assert.Equal(t, []string{"reports | G"}, c.Do("ZRANGE", "rq:deferred", 0, -1).Strings())
		assert.Zero(t, c.Do("EXISTS", "rq:deferred:F", "rq:job:F:dependents", "rq:job:B1", "rq:job:B2", "rq:job:B3").Int())

		assert.Equal(t, 4, all(t, c, "rq_export", "mail", "rq:queue:mail"))
		for _, queue := range []string{"mail", "other", "a/b"} {
			c.Do("DEL", queue)
		}
		assert.Equal(t, before, digest(t, c, "none"), "%s: %v", source, c.Do("ZRANGE", "rq:deferred", 0, -1).Strings())

		v = call(c, "rq_import", source, "mail")
		require.Equal(t, int64(4), v.Elems[0].Int(), "%v", v)
		c.Do("RELEASEJOB", idOf(t, c, "mail", "F"))
		assert.Equal(t, "F", take(c, "mail"))
		assert.Equal(t, []string{"B1", "B2", "B3"}, []string{take(c, "other"), take(c, "mail"), take(c, "a/b")})
	}
}

// An entry of any key can name a job in each of these forms.
func TestRqFormsOfEntries(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for _, form := range []string{"J", "mail|J", "mail | J", "mail/J", "J:4c2f"} {
		for name, place := range map[string]struct {
			source string
			write  []any
		}{
			"the fork's set":        {"rq:deferred", []any{"SADD", "rq:deferred"}},
			"the fork's sorted set": {"rq:deferred", []any{"ZADD", "rq:deferred", 7}},
			"a registry":            {"rq:deferred:mail", []any{"ZADD", "rq:deferred:mail", 7}},
			"running":               {"rq:wip:mail", []any{"ZADD", "rq:wip:mail", 4e9}},
			"the fork's running":    {"rq:wipqueue:mail", []any{"ZADD", "rq:wipqueue:mail", 4e9}},
			"scheduled":             {"rq:scheduled:mail", []any{"ZADD", "rq:scheduled:mail", 4e9}},
			"a queue":               {"rq:queue:mail", []any{"RPUSH", "rq:queue:mail"}},
			"dependents":            {"rq:queue:mail", []any{"SADD", "rq:job:P:dependents"}},
		} {
			c.Do("FLUSHALL")
			deferred(c, "J", "mail")
			want := 1
			if name == "dependents" {
				rqJob(c, "P", "mail")
				c.Do("RPUSH", "rq:queue:mail", "P")
				want = 2
			}
			c.Do(append(place.write, form)...)
			assert.Equal(t, want, all(t, c, "rq_import", place.source, "mail"), "%s in %s", form, name)
			assert.Equal(t, "mail", rqQueues(c)["J"], "%s in %s", form, name)
			assert.Equal(t, []string{"jobmesh:family:rq:"}, append([]string{"jobmesh:family:rq:"}, c.Do("KEYS", "rq:*").Strings()...), "%s in %s", form, name)
			assert.Equal(t, want, all(t, c, "rq_export", "mail", "rq:queue:mail"), "%s in %s", form, name)
			assert.Zero(t, registered(c))
			assert.Equal(t, int64(1), c.Do("EXISTS", "rq:job:J").Int())
			if name == "running" {
				assert.Equal(t, []string{form}, c.Do("ZRANGE", place.source, 0, -1).Strings(), "as it was written")
			}
		}
	}
	// If an entry can be read in several ways, a job of exactly that ID counts first, then the reading
	// whose queue is the job's origin.
	c.Do("FLUSHALL")
	deferred(c, "b/J", "z")
	deferred(c, "J", "a/b")
	c.Do("SADD", "rq:deferred", "a/b/J")
	assert.Equal(t, 1, all(t, c, "rq_import", "rq:deferred", "m", "QUEUE", "a/b"))
	assert.Equal(t, map[string]string{"J": "m"}, rqQueues(c))
}

// An entry that can't be moved stays, and an error names it: an entry of a job that isn't there, an
// entry of another form, a key of another type, a field that can't be read.
func TestRqNothingVanishes(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for name, tc := range map[string]struct {
		source string
		write  [][]any
		err    string
	}{
		"no job in the set":        {"rq:deferred", [][]any{{"SADD", "rq:deferred", "mail | X"}}, "NOJOB rq:deferred names jobs that are not there, by 'mail | X': SREM"},
		"no job in the sorted set": {"rq:deferred", [][]any{{"ZADD", "rq:deferred", 1, "mail|X"}}, "NOJOB rq:deferred names jobs that are not there, by 'mail|X': ZREM"},
		"no job in a registry":     {"rq:deferred:mail", [][]any{{"ZADD", "rq:deferred:mail", 1, "X"}}, "NOJOB rq:deferred:mail names jobs"},
		"no job in the list":       {"rq:deferred:F", [][]any{{"RPUSH", "rq:deferred:F", "mail/B", "mail/X"}}, "NOJOB rq:deferred:F has the entry 'mail/X', and that job is not there: LREM"},
		"the list of nobody":       {"rq:deferred:X", [][]any{{"RPUSH", "rq:deferred:X", "mail/B"}}, "ERR there is no rq:job:X, for which"},
		"the list of one that ran": {"rq:deferred:F", [][]any{{"RPUSH", "rq:deferred:F", "B"}, {"HSET", "rq:job:F", "status", "finished"}}, "ERR rq:job:F is not deferred but 'finished': import it"},
		"a list for a set":         {"rq:deferred", [][]any{{"RPUSH", "rq:deferred", "mail|F"}}, "WRONGTYPE"},
		"another form":             {"rq:deferred", [][]any{{"SADD", "rq:deferred", "mail;F"}}, "ERR rq:deferred has the entry 'mail;F', a form that is not known, for rq:job:F: write"},
		"another form in a queue":  {"rq:queue:mail", [][]any{{"RPUSH", "rq:queue:mail", `["F"]`}}, `ERR rq:queue:mail has the entry '["F"]', a form`},
		"another form in the list": {"rq:deferred:F", [][]any{{"RPUSH", "rq:deferred:F", "mail,B"}}, "ERR rq:deferred:F has the entry 'mail,B', a form"},
		"another form of a child":  {"rq:queue:mail", [][]any{{"RPUSH", "rq:queue:mail", "F"}, {"SADD", "rq:job:F:dependents", "mail,B"}}, "ERR rq:job:F:dependents has the entry 'mail,B', a form"},
		"dependents in a list":     {"rq:queue:mail", [][]any{{"RPUSH", "rq:queue:mail", "F"}, {"RPUSH", "rq:job:F:dependents", "B"}}, "WRONGTYPE rq:job:F:dependents holds a list"},
		"dependencies in a list":   {"rq:queue:mail", [][]any{{"RPUSH", "rq:queue:mail", "F"}, {"RPUSH", "rq:job::F:dependencies", "B"}}, "WRONGTYPE rq:job::F:dependencies holds a list"},
		"a job in a string":        {"rq:queue:mail", [][]any{{"RPUSH", "rq:queue:mail", "S"}, {"SET", "rq:job:S", "x"}}, "WRONGTYPE rq:job:S holds a string"},
		"a parent in a string":     {"rq:deferred:mail", [][]any{{"ZADD", "rq:deferred:mail", 1, "B"}, {"HSET", "rq:job:B", "dependency_id", "S"}, {"SET", "rq:job:S", "x"}}, "WRONGTYPE rq:job:S holds a string"},
		"odd JSON":                 {"rq:deferred:mail", [][]any{{"ZADD", "rq:deferred:mail", 1, "B"}, {"HSET", "rq:job:B", "dependency_ids", `["F`}}, "ERR dependency_ids of rq:job:B isn't a list of IDs"},
		"JSON of numbers":          {"rq:deferred:mail", [][]any{{"ZADD", "rq:deferred:mail", 1, "B"}, {"HSET", "rq:job:B", "dependency_ids", `[7]`}}, "ERR dependency_ids of rq:job:B isn't a list of IDs"},
		"JSON of an object":        {"rq:deferred:mail", [][]any{{"ZADD", "rq:deferred:mail", 1, "B"}, {"HSET", "rq:job:B", "dependency_ids", `{"F":1}`}}, "ERR dependency_ids of rq:job:B isn't a list of IDs"},
		"a blocked job of two":     {"rq:deferred:F", [][]any{{"RPUSH", "rq:deferred:F", "B"}, {"HSET", "rq:job:B", "dependency_id", "P"}, {"HSET", "rq:job:P", "data", 1}}, "ERR rq:job:B is in rq:deferred:F, and waits for other jobs that are not here: import these first"},
	} {
		c.Do("FLUSHALL")
		deferred(c, "F", "mail")
		deferred(c, "B", "mail")
		for _, line := range tc.write {
			c.Do(line...)
		}
		before := c.Do("DEBUG", "DIGEST").Str
		v := call(c, "rq_import", tc.source, "mail")
		assert.True(t, v.Err(tc.err), "%s: %v", name, v)
		assert.Zero(t, registered(c), name)
		if c.Do("TYPE", "mail").Str == "jobmesh-q" {
			c.Do("DEL", "mail")
		}
		assert.Equal(t, before, c.Do("DEBUG", "DIGEST").Str, name)
	}

	// Entries that can be moved are moved first. An entry that is there twice counts as dropped.
	c.Do("FLUSHALL")
	for _, id := range []string{"F", "B", "G", "H"} {
		deferred(c, id, "mail")
	}
	c.Do("RPUSH", "rq:deferred:F", "mail/B", "B", "mail/B")
	c.Do("ZADD", "rq:deferred", 1, "mail | G", 2, "mail | X", 3, "mail | F", 4, "mail | Y", 5, "mail | H")
	v := call(c, "rq_import", "rq:deferred", "mail")
	assert.Equal(t, [3]int64{4, 2, 2}, numbers(t, v))
	v = call(c, "rq_import", "rq:deferred", "mail", "FROM", v.Elems[3].Str)
	assert.True(t, v.Err("NOJOB rq:deferred names jobs that are not there, by 'mail | X', 'mail | Y': ZREM"), "%v", v)
	assert.Equal(t, []string{"mail | X", "mail | Y"}, c.Do("ZRANGE", "rq:deferred", 0, -1).Strings())
}

// A job waits for another that is behind it in the registry, and comes with it. The walk leaves out
// nothing that is between the two.
func TestRqRegistryOfFamilies(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	const n = 40
	for i := range n {
		deferred(c, fmt.Sprint("p", i), "mail")
		child(c, fmt.Sprint("c", i), "mail", "1", fmt.Sprint("p", i))
		c.Do("ZADD", "rq:deferred:mail", i, fmt.Sprint("c", i), n+i, fmt.Sprint("p", i))
	}
	for from, left := "0", int64(1); left > 0; {
		v := call(c, "rq_import", "rq:deferred:mail", "mail", "COUNT", 7, "FROM", from)
		require.Len(t, v.Elems, 4, "%v", v)
		left, from = v.Elems[1].Int(), v.Elems[3].Str
		require.Zero(t, v.Elems[2].Int())
	}
	assert.Equal(t, int64(2*n), registered(c))
	assert.Empty(t, c.Do("KEYS", "rq:*").Elems)
}

// A job that others wait for isn't dropped because of its key.
func TestRqDroppedFamilies(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for _, id := range []string{"a", "p", "x"} {
		rqJob(c, id, "mail")
	}
	child(c, "k", "mail", "1", "p")
	c.Do("RPUSH", "rq:queue:mail", "a", "x", "p")
	options := []any{"WITH", "UNIQUE", "until-processed", "KEY", "one"}
	assert.Equal(t, [3]int64{1, 1, 1}, numbers(t, call(c, "rq_import", "rq:queue:mail", "mail", options...)))
	before := c.Do("DEBUG", "DIGEST").Str
	v := call(c, "rq_import", "rq:queue:mail", "mail", options...)
	assert.True(t, v.Err("DUPLICATE rq:job:p has the key of another job, and others wait for it"), "%v", v)
	assert.Equal(t, before, c.Do("DEBUG", "DIGEST").Str)
	assert.Equal(t, 2, all(t, c, "rq_import", "rq:queue:mail", "mail", "WITH", "UNIQUE", "none"))
	// A job that waits for another can be dropped itself, and is counted as dropped.
	c.Do("FLUSHALL")
	rqJob(c, "p", "mail")
	child(c, "k", "mail", "1", "p")
	c.Do("RPUSH", "rq:queue:mail", "p")
	assert.Equal(t, [3]int64{1, 0, 1}, numbers(t, call(c, "rq_import", "rq:queue:mail", "mail", options...)))
	assert.Empty(t, c.Do("KEYS", "rq:*").Elems)
}

// Whatever rq's keys hold, each job that they named is in jobmesh, or is in rq and still named, or
// was counted as dropped because of its key. Calls come to an end.
func TestRqWhateverIsThere(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	ids := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	queues := []string{"mail", "other", "x/y"}
	sources := []string{"rq:wip:mail", "rq:wipqueue:other", "rq:scheduled:mail", "rq:queue:mail", "rq:queue:other", "rq:queue:x/y", "rq:deferred", "rq:deferred:mail", "rq:deferred:other"}
	for _, id := range ids {
		sources = append(sources, "rq:deferred:"+id)
	}
	entry := func() string {
		id := pick(append([]string{"gone", ""}, ids...)...)
		switch queue := pick(queues...); r.IntN(7) {
		case 0:
			return queue + "|" + id
		case 1:
			return queue + " | " + id
		case 2:
			return queue + "/" + id
		case 3:
			return pick(id, id+":run", queue+","+id, "/"+id, id+"|")
		}
		return id
	}
	for round := range 150 {
		c.Do("FLUSHALL")
		for _, id := range ids {
			if r.IntN(8) == 0 {
				continue
			}
			c.Do("HSET", "rq:job:"+id, "data", id)
			for _, field := range [][2]string{
				{"origin", pick(queues...)}, {"status", pick("deferred", "queued", "started", "finished", "failed", "")},
				{"dependency_id", pick(ids...)}, {"dependency_ids", pick(`["a"]`, `["b","c"]`, "[]", "null", `["a`, `[1]`, `{}`, "7")},
			} {
				if r.IntN(3) == 0 {
					c.Do("HSET", "rq:job:"+id, field[0], field[1])
				}
			}
		}
		for range 5 + r.IntN(25) {
			switch key := pick(append(sources, "rq:job:"+pick(ids...)+":dependents", "rq:job::"+pick(ids...)+":dependencies")...); {
			case r.IntN(30) == 0:
				c.Do(pick("RPUSH", "SADD"), key, entry())
			case strings.HasPrefix(key, "rq:queue:") || len(key) == len("rq:deferred:a") && strings.HasPrefix(key, "rq:deferred:"):
				c.Do("RPUSH", key, entry())
			case strings.HasPrefix(key, "rq:job:") || key == "rq:deferred" && round%2 == 0:
				c.Do("SADD", key, entry())
			default:
				c.Do("ZADD", key, r.IntN(100), entry())
			}
		}
		// named returns the jobs in rq that a key with entries names in any form.
		named := func() map[string]bool {
			var text strings.Builder
			for _, key := range c.Do("KEYS", "rq:*").Strings() {
				for _, read := range [][]any{{"LRANGE", key, 0, -1}, {"SMEMBERS", key}, {"ZRANGE", key, 0, -1}} {
					if v := c.Do(read...); v.Kind != '-' && !strings.HasSuffix(key, ":dependencies") {
						text.WriteString(";" + strings.Join(v.Strings(), ";"))
					}
				}
			}
			m := map[string]bool{}
			words := strings.FieldsFunc(text.String(), func(r rune) bool { return strings.ContainsRune(" ;,:/|", r) })
			for _, id := range ids {
				m[id] = slices.Contains(words, id) && c.Do("TYPE", "rq:job:"+id).Str == "hash"
			}
			return m
		}
		before := named()
		over := map[string]bool{}
		for _, id := range ids {
			over[id] = slices.Contains([]string{"started", "finished", "failed"}, c.Do("HGET", "rq:job:"+id, "status").Str)
		}
		for range 3 {
			for _, source := range sources {
				from := "0"
				for calls := 0; ; calls++ {
					require.Less(t, calls, 100, "seed %d round %d: %s doesn't end", seed, round, source)
					v := call(c, "rq_import", source, pick("mail", "here"), "COUNT", 1+r.IntN(9), "FROM", from)
					if v.Kind == '-' {
						code, _, _ := strings.Cut(v.Str, " ")
						require.True(t, code == strings.ToUpper(code) && !strings.Contains(v.Str, "user_function"), "seed %d round %d: %s: %v", seed, round, source, v)
						break
					}
					if from = v.Elems[3].Str; v.Elems[1].Int() == 0 {
						break
					}
				}
			}
		}
		here, after := rqQueues(c), named()
		for _, id := range ids {
			_, moved := here[id]
			there := c.Do("EXISTS", "rq:job:"+id).Is(1)
			if before[id] {
				require.True(t, moved != there, "seed %d round %d: %s is lost or doubled", seed, round, id)
				// The entry of a job that is over is dropped. The job's result stays where it was.
				require.True(t, moved || after[id] || over[id], "seed %d round %d: nothing names %s any more", seed, round, id)
			}
		}
	}
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
}

// A dependent that ran, or was cancelled, waits for nothing, although the set still has it. A job
// that the set has in two forms comes only once.
func TestRqDependentsThatAreOver(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	rqJob(c, "p", "mail")
	c.Do("RPUSH", "rq:queue:mail", "p")
	for _, status := range []string{"finished", "failed", "started", "canceled", "stopped"} {
		rqJob(c, status, "mail", "status", status)
		c.Do("SADD", "rq:job:p:dependents", status)
	}
	deferred(c, "k", "mail")
	c.Do("SADD", "rq:job:p:dependents", "k", "mail|k")
	assert.Equal(t, [3]int64{2, 0, 6}, numbers(t, call(c, "rq_import", "rq:queue:mail", "mail")))
	assert.Equal(t, map[string]string{"p": "queued", "k": "blocked"}, states(c, "mail"))
	assert.Equal(t, int64(5), c.Do("EXISTS", "rq:job:finished", "rq:job:failed", "rq:job:started", "rq:job:canceled", "rq:job:stopped").Int())
	assert.Zero(t, c.Do("EXISTS", "rq:job:p:dependents").Int())
}

// If rq gives an ID again, it is another job's.
func TestRqIDsGivenAgain(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	write := func() {
		rqJob(c, "p", "mail")
		child(c, "k", "mail", "1", "p")
		c.Do("RPUSH", "rq:queue:mail", "p")
		assert.Equal(t, 2, all(t, c, "rq_import", "rq:queue:mail", "mail"))
	}
	write()
	assert.Equal(t, []string{"p", "k"}, []string{take(c, "mail"), take(c, "mail")})
	write()
	assert.Equal(t, 2, all(t, c, "rq_export", "mail", "rq:queue:mail"), "both go, the one that waits with the other")
	assert.Equal(t, []string{"k"}, c.Do("SMEMBERS", "rq:job:p:dependents").Strings())

	// Two jobs with one ID can't be in rq at the same time: the second one stays in jobmesh.
	c.Do("FLUSHALL")
	write()
	rqJob(c, "k", "mail")
	c.Do("SADD", "rq:job:q:dependents", "k")
	rqJob(c, "q", "mail")
	c.Do("RPUSH", "rq:queue:mail", "q")
	assert.Equal(t, 2, all(t, c, "rq_import", "rq:queue:mail", "mail"))
	assert.Equal(t, [3]int64{2, 1, 0}, numbers(t, call(c, "rq_export", "mail", "rq:queue:mail")))
	assert.True(t, call(c, "rq_export", "mail", "rq:queue:mail").Err("ERR rq:job:k exists already"))
	assert.Equal(t, int64(2), registered(c))
}

// A sorted set of Sidekiq's can hold equal jobs only once. Other equal jobs that are delayed in
// jobmesh stay until they are due.
func TestEqualDelayedJobs(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	const twin = `{"class":"Mail","queue":"mail"}`
	for _, delay := range []int{1, 2, 1000} {
		c.Do("ADDJOB", "mail", twin, 0, "DELAY", delay)
	}
	c.Do("ZADD", "retry", 1, twin)
	assert.Equal(t, 1, all(t, c, "sidekiq_import", "retry", "mail"))
	assert.Equal(t, 2, all(t, c, "sidekiq_export", "mail", "queue:mail"), "one to each set")
	assert.Equal(t, int64(2), registered(c))
	c.Do("ZADD", "retry", 1, twin)
	harness.Await(t, 10*time.Second, "a twin to be due", func() bool { return c.Do("QLEN", "mail").Int() > 0 })
	assert.Equal(t, 1, all(t, c, "sidekiq_export", "mail", "queue:mail"))
	assert.Equal(t, []string{twin}, c.Do("LRANGE", "queue:mail", 0, -1).Strings())
	assert.Equal(t, int64(1), registered(c))
}

// Options are checked even if there is nothing to move.
func TestOptionsOfEmptySources(t *testing.T) {
	_, c := start(t)
	c.Do("ZADD", "others", 1, `{"queue":"another"}`)
	for function, sources := range map[string][]string{
		"resque_import": {"resque:queue:none"}, "sidekiq_import": {"queue:none", "schedule", "others"},
		"rq_import": {"rq:queue:none", "rq:scheduled:none", "rq:wip:none", "rq:deferred", "rq:deferred:none"},
	} {
		for _, source := range sources {
			for options, err := range map[string]string{
				"RETRY x": "ERR RETRY", "NONSENSE": syntax, "RETRY": syntax, "DELAY 5 TTL 5": "ERR The specified DELAY",
				"UNIQUE none KEY": syntax, "RUNTTL 5": "ERR KEY, SCOPE", "REPLICATE 2": "NOREPL", "REPLICATE 0": "ERR REPLICATE",
				"REPLICATE 2 RETRY 0": "ERR With RETRY", "ONDEAD run": "ERR ONDEAD is for AFTER", "BLOCKEDBY x": "BADID", "AFTER x": "BADID",
				"UNIQUE before-processing RUNTTL 5": "ERR RUNTTL", "UNIQUE until-processed ONCONFLICT replace": "ERR ONCONFLICT replace",
				"KEY": syntax, "ONDEAD run RETRY": "ERR RETRY", "RETRY 5": "", "DEFERRED": "", "UNIQUE until-processed KEY onconflict": "", "MAXLEN 1": "", "DELAY 5": "",
			} {
				line := []any{"WITH"}
				for word := range strings.FieldsSeq(options) {
					line = append(line, word)
				}
				v := call(c, function, source, "new", line...)
				if err != "" {
					assert.True(t, v.Err(err), "%s %s: %v", source, options, v)
				} else {
					assert.Equal(t, [3]int64{}, numbers(t, v), "%s %s", source, options)
				}
			}
		}
	}
	assert.Zero(t, registered(c))
	assert.Zero(t, c.Do("EXISTS", "new").Int())
}
