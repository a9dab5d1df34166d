package single

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// addJobs is ADDJOBS with words, then BODIES, and so many bodies: "0", "1" …
func addJobs(c *harness.Conn, words string, bodies int) harness.Value {
	args := split("ADDJOBS " + words + " BODIES")
	for i := range bodies {
		args = append(args, i)
	}
	return c.Do(args...)
}

// idsOf returns the IDs of an answer to ADDJOBS, in which nothing else is.
func idsOf(t *testing.T, v harness.Value) (all []string) {
	t.Helper()
	require.Equal(t, byte('*'), v.Kind, "%v", v)
	for _, e := range v.Elems {
		require.Equal(t, byte('+'), e.Kind, "%v", v)
		all = append(all, e.Str)
	}
	return all
}

// fetched fetches jobs, and returns their bodies.
func fetched(c *harness.Conn, queue string, count int) (bodies []string) {
	for _, j := range c.Do("GETJOB", "NOHANG", "COUNT", count, "FROM", queue).Elems {
		bodies = append(bodies, j.Elems[2].Str)
	}
	return bodies
}

// The jobs of an ADDJOBS lie in the queue in the order of the call.
func TestAddJobs(t *testing.T) {
	c := harness.Start(t).Dial()
	v := c.Do("ADDJOBS", "q", 0, "RETRY", 7, "BODIES", "BODIES", "PAIRS", "", "ASYNC")
	require.Len(t, idsOf(t, v), 4)
	for i, id := range idsOf(t, v) {
		shown := c.Do("SHOW", id)
		assert.Equal(t, []string{"BODIES", "PAIRS", "", "ASYNC"}[i], shown.Field("body").Str)
		assert.Equal(t, int64(7), shown.Field("retry").Int())
		assert.Equal(t, "queued", shown.Field("state").Str)
	}
	assert.Equal(t, []string{"BODIES", "PAIRS", "", "ASYNC"}, fetched(c, "q", 10))
	assert.Equal(t, int64(4), c.Do("QSTAT", "q").Field("jobs-in").Int())
	require.Len(t, idsOf(t, addJobs(c, "once 0 RETRY 0", 3)), 3)
	require.Len(t, idsOf(t, addJobs(c, "later 0 DELAY 100 MAXLEN 1", 3)), 3)
	assert.Equal(t, int64(3), c.Do("QSTAT", "later").Field("delayed").Int())
	require.Len(t, idsOf(t, addJobs(c, "held 0 DEFERRED", 2)), 2)
	assert.Equal(t, int64(2), c.Do("QSTAT", "held").Field("deferred").Int())
}

// Jobs that wait for another go together when it ends.
func TestAddJobsAfterAnother(t *testing.T) {
	c := harness.Start(t).Dial()
	first := idsOf(t, addJobs(c, "first 0", 1))[0]
	require.Len(t, idsOf(t, addJobs(c, "q 0 AFTER "+first, 3)), 3)
	assert.Empty(t, fetched(c, "q", 5))
	require.Len(t, fetched(c, "first", 1), 1)
	require.Equal(t, int64(1), c.Do("ACKJOB", first).Int())
	assert.Equal(t, []string{"0", "1", "2"}, fetched(c, "q", 5))
	gone := addJobs(c, "q 0 AFTER D-00000000-AAAAAAAAAAAAAAAAAAAAAAAA-05a1", 2)
	assert.True(t, gone.Err("NOJOB"), "%v", gone)
}

// A2: of two jobs with one key the second is refused, as ADDJOB would refuse it.
func TestLifeA2(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	v := c.Do("ADDJOBS", "q", 0, "UNIQUE", "until-processed", "PAIRS", "k", "a", "k", "b", "l", "c")
	require.Len(t, v.Elems, 3, "%v", v)
	assert.Equal(t, byte('+'), v.Elems[0].Kind)
	assert.True(t, v.Elems[1].NullString())
	assert.Equal(t, byte('+'), v.Elems[2].Kind)
	assert.Equal(t, "k", c.Do("SHOW", v.Elems[0].Str).Field("key").Str)
	assert.Equal(t, []string{"a", "c"}, fetched(c, "q", 5))

	v = c.Do("ADDJOBS", "r", 0, "UNIQUE", "until-processed", "ONCONFLICT", "raise", "PAIRS", "k", "a", "k", "b")
	require.Len(t, v.Elems, 2)
	assert.Equal(t, byte('$'), v.Elems[1].Kind, "a text, no error reply")
	assert.True(t, strings.HasPrefix(v.Elems[1].Str, "-DUPLICATE "+v.Elems[0].Str), "%v", v)

	v = c.Do("ADDJOBS", "r", 0, "UNIQUE", "until-processed", "ONCONFLICT", "return", "PAIRS", "k", "a", "m", "b")
	require.Len(t, idsOf(t, v), 2)
	v = s.Dial3().Do("ADDJOBS", "r", 0, "UNIQUE", "until-processed", "KEY", "m", "BODIES", "a")
	assert.True(t, v.Elems[0].Null, "%v", v)

	c.Do("QCONFIG", "SET", "s*", "UNIQUE", "until-processed")
	v = c.Do("ADDJOBS", "s1", 0, "BODIES", "x", "y", "x")
	require.Len(t, v.Elems, 3)
	assert.True(t, v.Elems[2].NullString(), "the body is the key, by the queue's settings: %v", v)
	v = c.Do("ADDJOBS", "s2", 0, "PAIRS", "k", "x", "k", "y")
	assert.True(t, v.Elems[1].NullString(), "%v", v)
}

// A3: MAXLEN lets in as many as fit.
func TestLifeA3(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	addJobs(c, "q 0", 3)
	v := addJobs(c, "q 0 MAXLEN 5", 4)
	require.Len(t, v.Elems, 4, "%v", v)
	idsOf(t, harness.Value{Kind: '*', Elems: v.Elems[:2]})
	for _, e := range v.Elems[2:] {
		assert.Equal(t, "-MAXLEN Queue is already longer than the specified MAXLEN count", e.Str)
	}
	assert.Equal(t, int64(5), c.Do("QLEN", "q").Int())
	assert.Equal(t, "2", s.Info("jobmesh", "jobmesh_adds_refused"))
	assert.Equal(t, "5", s.Info("jobmesh", "jobmesh_jobs_added"))
}

// A6: in MULTI and in scripts ADDJOBS answers as elsewhere, for it need not wait on one node.
func TestLifeA6(t *testing.T) {
	c := harness.Start(t).Dial()
	c.Do("MULTI")
	require.Equal(t, "QUEUED", addJobs(c, "q 0 ASYNC", 3).Str)
	v := c.Do("EXEC")
	require.Len(t, idsOf(t, v.Elems[0]), 3)
	v = c.Do("EVAL", "return redis.call('ADDJOBS', KEYS[1], 0, 'MAXLEN', 4, 'BODIES', 'a', 'b')", 1, "q")
	require.Len(t, v.Elems, 2, "%v", v)
	assert.Equal(t, int64(4), c.Do("QLEN", "q").Int())
}

// A7: a server that is killed after the answer has all jobs, and so has its replica.
func TestLifeA7(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	r := harness.Start(t, harness.WithReplicaOf(s))
	r.AwaitSync()
	c := s.Dial()
	all := idsOf(t, addJobs(c, "q 0", 1000))
	require.Equal(t, int64(1), c.Do("WAIT", 1, 5000).Int())
	assert.Equal(t, "1000", r.Info("jobmesh", "jobmesh_registered_jobs"))
	s.Kill()
	s.Restart()
	require.Equal(t, int64(1000), s.Do("QLEN", "q").Int())
	got := s.Do("GETJOB", "COUNT", 1000, "FROM", "q")
	for i, j := range got.Elems {
		require.Equal(t, []string{"q", all[i], fmt.Sprint(i)}, j.Strings())
	}
}

// A10: too many jobs, and other errors of the call, add nothing.
func TestLifeA10(t *testing.T) {
	c := harness.Start(t).Dial()
	c.Do("SET", "text", "x")
	many := addJobs(c, "q 0", 10_001)
	assert.Equal(t, "ERR at most 10000 jobs at once", many.Str)

	parents := idsOf(t, addJobs(c, "p 0", 101))
	words := "waits 0 AFTER " + strings.Join(parents, " ")
	assert.Equal(t, "ERR at most 100000 waits at once: the jobs times the IDs of AFTER", addJobs(c, words, 1000).Str)
	assert.Len(t, addJobs(c, words, 900).Elems, 900)
	c.Do("PAUSE", "paused", "in")
	for words, want := range map[string]string{
		"ADDJOBS q 0 BODIES":                                       "ERR wrong number of arguments",
		"ADDJOBS q 0 ASYNC BODIES":                                 "ERR ADDJOBS ends with the jobs: BODIES body",
		"ADDJOBS q 0 ASYNC TTL 10":                                 "ERR ADDJOBS ends with the jobs: BODIES body",
		"ADDJOBS q 0 UNIQUE until-processed PAIRS k":               "ERR PAIRS needs a key and a body for each",
		"ADDJOBS q 0 UNIQUE until-processed PAIRS k b l":           "ERR PAIRS needs a key and a body for each",
		"ADDJOBS q 0 UNIQUE until-processed KEY k PAIRS k b":       "ERR KEY goes with BODIES",
		"ADDJOBS q 0 PAIRS k b":                                    "ERR KEY, SCOPE, LIMIT, LOCKTTL",
		"ADDJOBS q x BODIES b":                                     "ERR timeout is not an integer",
		"ADDJOBS q -1 BODIES b":                                    "ERR timeout is negative",
		"ADDJOBS q 0 b BODIES":                                     "ERR syntax error",
		"ADDJOBS q 0 TTL x BODIES b":                               "ERR TTL must be a number",
		"ADDJOBS q 0 REPLICATE 2 BODIES b":                         "NOREPL Not enough reachable nodes",
		"ADDJOBS paused 0 BODIES b":                                "PAUSED",
		"ADDJOBS text 0 BODIES b":                                  "WRONGTYPE",
		"ADDJOBS q 0 UNIQUE until-processed PAIRS long b short b2": "ERR KEY must have 4096 bytes at most",
	} {
		var args []any
		for _, w := range strings.Fields(words) {
			if w == "long" {
				w = strings.Repeat("x", 4097)
			}
			args = append(args, w)
		}
		v := c.Do(args...)
		assert.True(t, v.Err(want), "%s: %v", words, v)
	}
	assert.Equal(t, int64(0), c.Do("QLEN", "q").Int())
	require.Len(t, idsOf(t, addJobs(c, "q 0", 10_000)), 10_000)
}

// The server is told the command's key, and the categories that the ACL goes by.
func TestAddJobsIsDescribed(t *testing.T) {
	c := harness.Start(t).Dial()
	assert.Equal(t, []string{"q"}, c.Do("COMMAND", "GETKEYS", "ADDJOBS", "q", 0, "UNIQUE", "until-processed", "PAIRS", "k", "b").Strings())
	assert.Contains(t, c.Do("COMMAND", "DOCS", "ADDJOBS").String(), "Adds several jobs to a queue")
	c.Do("ACL", "SETUSER", "ann", "on", "nopass", "+addjobs", "~mine")
	c.Do("AUTH", "ann", "")
	require.Len(t, idsOf(t, addJobs(c, "mine 0", 2)), 2)
	v := addJobs(c, "other 0", 2)
	assert.True(t, v.Err("NOPERM"), "%v", v)
}
