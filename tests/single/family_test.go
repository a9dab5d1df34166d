package single

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

const notDeferred = "NOTDEFERRED The job isn't held back: it was never deferred nor blocked, or is released"

// waiting lists a queue's waiting jobs.
func waiting(c *harness.Conn, queue string) (ids []string) {
	for _, e := range c.Do("QPEEK", queue, 1_000_000).Elems {
		ids = append(ids, e.Elems[1].Str)
	}
	return ids
}

func done(t *testing.T, c *harness.Conn, queue, id string) {
	t.Helper()
	require.Equal(t, id, get(t, c, queue))
	require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
}

func waitsFor(c *harness.Conn, id string) []string {
	return c.Do("SHOW", id).Field("waits-for").Strings()
}

func dependents(c *harness.Conn, id string) []string {
	return c.Do("SHOW", id).Field("dependents").Strings()
}

// SHOW lists the jobs that wait for a job's end. If they are very many, it counts them.
func TestShowListsDependents(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	d := add(t, c, "d", "d", 0, "DEFERRED")
	assert.NotContains(t, fields(c.Do("SHOW", d)), "dependents")
	a := add(t, c, "q", "a", 0, "BLOCKEDBY", d)
	b := add(t, c, "q", "b", 0, "AFTER", d)
	assert.Equal(t, []string{a, b}, dependents(c, d))
	assert.NotContains(t, fields(c.Do("SHOW", d)), "all-dependents")
	require.Equal(t, int64(1), c.Do("RELEASEJOB", d).Int())
	assert.Equal(t, []string{a, b}, dependents(c, d), "released, it has them until it ends")
	require.Equal(t, int64(1), c.Do("CANCELJOB", a).Int())
	assert.Equal(t, []string{b}, dependents(c, d))

	many, ids := blockMany(t, c, 1500)
	assert.Equal(t, ids[:1000], dependents(c, many))
	assert.True(t, c.Do("SHOW", many).Field("all-dependents").Is(1500))
	s.Do("DEBUG", "RELOAD")
	assert.Equal(t, ids[:1000], dependents(c, many))
	require.Equal(t, int64(1), c.Do("RELEASEJOB", many, "LAST").Int())
	assert.NotContains(t, fields(c.Do("SHOW", many)), "dependents")
	assert.NotContains(t, fields(c.Do("SHOW", many)), "all-dependents")
}

// fields are the names of a map under RESP2.
func fields(v harness.Value) (names []string) {
	for i := 0; i < len(v.Elems); i += 2 {
		names = append(names, v.Elems[i].Str)
	}
	return names
}

// A deferred job is delivered to nobody, and expires at its time.
func TestDeferredIsNotDelivered(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "q", "b", 0, "DEFERRED", "TTL", 2, "RETRY", 1)
	once := add(t, c, "q", "b", 0, "deferred", "RETRY", 0, "DELAY", 1)
	for _, id := range []string{id, once} {
		assert.Equal(t, "deferred", state(c, id))
		assert.True(t, c.Do("SHOW", id).Field("next-requeue-within").Null)
	}
	assert.Equal(t, int64(0), c.Do("QLEN", "q").Int())
	add(t, c, "q", "counted", 0, "MAXLEN", 1)
	assert.True(t, c.Do("ADDJOB", "q", "b", 0, "MAXLEN", 1, "DEFERRED").Err("MAXLEN"))
	get(t, c, "q")
	assert.True(t, c.Do("GETJOB", "TIMEOUT", 1300, "FROM", "q").Null, "past its retry time and the other's delay")
	for verb, want := range map[string]int64{"ENQUEUE": 0, "NACK": 0, "DEQUEUE": 0} {
		assert.Equal(t, want, c.Do(verb, id, once).Int(), verb)
	}
	assert.True(t, c.Do("WORKING", id).Err("HELDBACK"))
	assert.Equal(t, []string{id, once}, sorted(c, id, "STATE", "deferred"))
	assert.Empty(t, c.Do("JSCAN", "STATE", "blocked").Elems[1].Elems)
	assert.Len(t, c.Do("JSCAN", "STATE", "active").Elems[1].Elems, 1)
	harness.Await(t, 5*time.Second, "it to expire", func() bool { return c.Do("SHOW", id).Null })
	assert.Equal(t, "deferred", state(c, once))
}

// sorted is JSCAN's answer, with the one ID first if it is there.
func sorted(c *harness.Conn, first string, args ...any) (ids []string) {
	for _, e := range c.Do(append([]any{"JSCAN"}, args...)...).Elems[1].Elems {
		if e.Str == first {
			ids = append([]string{first}, ids...)
		} else {
			ids = append(ids, e.Str)
		}
	}
	return ids
}

// RELEASEJOB queues a deferred job in its queue or in another one. A second RELEASEJOB is an error.
func TestRelease(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	first := add(t, c, "q", "d", 0, "DEFERRED")
	second := add(t, c, "q", "d", 0, "DEFERRED")
	before := add(t, c, "q", "b", 0)
	require.Equal(t, int64(1), c.Do("RELEASEJOB", first).Int())
	assert.Equal(t, []string{first, before}, waiting(c, "q"), "at the place that its age gives it")
	require.Equal(t, int64(1), c.Do("RELEASEJOB", second, "QUEUE", "q2").Int())
	assert.Equal(t, []string{second}, waiting(c, "q2"))
	assert.Equal(t, "q2", c.Do("SHOW", second).Field("queue").Str)
	for _, id := range []string{first, second, before} {
		assert.Equal(t, notDeferred, c.Do("RELEASEJOB", id).Str)
	}
	assert.Equal(t, int64(2), c.Do("QLEN", "q").Int())
	assert.Equal(t, int64(1), c.Do("QLEN", "q2").Int())
	done(t, c, "q2", second)
	c.Do("SET", "string", "x")
	third := add(t, c, "q", "d", 0, "DEFERRED")
	for _, option := range []string{"BLOCKEDBY", "AFTER"} {
		held := add(t, c, "q", "d", 0, option, third)
		v := c.Do("RELEASEJOB", held)
		assert.True(t, v.Err("NOTDEFERRED The job isn't deferred but blocked: "), "%s: %v", option, v)
		assert.Equal(t, "blocked", state(c, held))
	}
	c.Do("PAUSE", "paused", "in")
	for want, args := range map[string][]any{
		"NOJOB Job not known":           {unknown},
		badID:                           {"nonsense"},
		syntax:                          {third, "QUEUE"},
		"WRONGTYPE":                     {third, "QUEUE", "string"},
		"PAUSED":                        {third, "QUEUE", "paused"},
		"ERR wrong number of arguments": {},
		"ERR syntax":                    {third, "LATER"},
	} {
		v := c.Do(append([]any{"RELEASEJOB"}, args...)...)
		assert.True(t, v.Err(want), "%v: %v", args, v)
	}
	assert.Equal(t, "deferred", state(c, third), "nothing has changed")
	assert.Equal(t, "q", c.Do("SHOW", third).Field("queue").Str)
}

// The deferred job comes first, then the jobs that it blocks, in the order added, each in its own
// queue.
func TestBlockedFollow(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	d := add(t, c, "d", "d", 0, "DEFERRED")
	var one, two []string
	for range 3 {
		one = append(one, add(t, c, "q1", "b", 0, "BLOCKEDBY", d))
		two = append(two, add(t, c, "q2", "b", 0, "BLOCKEDBY", d, "RETRY", 0))
	}
	grand := add(t, c, "q1", "c", 0, "BLOCKEDBY", one[0])
	assert.Equal(t, "blocked", state(c, one[0]))
	assert.Equal(t, []string{d}, waitsFor(c, two[2]))
	assert.True(t, c.Do("RELEASEJOB", one[0]).Err("NOTDEFERRED The job isn't deferred but blocked: "))
	none := func() {
		t.Helper()
		assert.Equal(t, []int64{0, 0}, []int64{c.Do("QLEN", "q1").Int(), c.Do("QLEN", "q2").Int()})
	}
	none()
	require.Equal(t, int64(1), c.Do("RELEASEJOB", d).Int())
	none()
	require.Equal(t, d, get(t, c, "d"))
	none()
	c.Do("NACK", d)
	none()
	done(t, c, "d", d)
	assert.Equal(t, one, waiting(c, "q1"))
	assert.Equal(t, two, waiting(c, "q2"))
	assert.Len(t, c.Do("SHOW", one[1]).Elems, 30, "ordinary jobs from now on")
	assert.Equal(t, int64(0), c.Do("SHOW", one[0]).Field("additional-deliveries").Int())
	require.Equal(t, int64(1), c.Do("ACKJOB", one[0]).Int(), "before it was delivered")
	assert.Equal(t, append(one[1:], grand), waiting(c, "q1"))
}

// Clients that wait are given the blocked jobs in the order added.
func TestBlockedAreServedInOrder(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	d := add(t, c, "d", "d", 0, "DEFERRED")
	var ids, got []string
	var conns []*harness.Conn
	for i := range 5 {
		ids = append(ids, add(t, c, "q", "b", 0, "BLOCKEDBY", d))
		conns = append(conns, s.Dial())
		conns[i].Send("GETJOB", "FROM", "q")
		harness.Await(t, 5*time.Second, "it to wait", func() bool { return s.Info("jobmesh", "jobmesh_blocked_clients") == fmt.Sprint(i+1) })
	}
	c.Do("RELEASEJOB", d)
	done(t, c, "d", d)
	for _, w := range conns {
		got = append(got, w.Receive().Elems[0].Elems[1].Str)
	}
	assert.Equal(t, ids, got)
}

// RELEASEJOB LAST queues the blocked jobs first. The job itself comes when they have ended.
func TestReleaseLast(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	d := add(t, c, "d", "d", 0, "DEFERRED")
	a := add(t, c, "q", "a", 0, "BLOCKEDBY", d)
	b := add(t, c, "p", "b", 0, "BLOCKEDBY", d, "TTL", 2, "RETRY", 1)
	after := add(t, c, "q", "after", 0, "AFTER", d)
	grand := add(t, c, "q", "grand", 0, "BLOCKEDBY", a)
	require.Equal(t, int64(1), c.Do("RELEASEJOB", d, "LAST", "QUEUE", "d2").Int())
	assert.True(t, c.Do("RELEASEJOB", d).Err("NOTDEFERRED The job isn't deferred but blocked: "))
	assert.Equal(t, notDeferred, c.Do("ADDJOB", "q", "late", 0, "BLOCKEDBY", d).Str)
	assert.Equal(t, "blocked", state(c, d))
	assert.Equal(t, []string{a, b}, waitsFor(c, d))
	assert.Equal(t, []string{after}, dependents(c, d), "it waits for the others, they don't for it")
	assert.Equal(t, []string{a}, waiting(c, "q"))
	assert.Equal(t, []string{b}, waiting(c, "p"))
	done(t, c, "q", a)
	assert.Equal(t, []string{grand}, waiting(c, "q"))
	assert.Equal(t, "blocked", state(c, d))
	harness.Await(t, 5*time.Second, "the other to expire", func() bool { return c.Do("QLEN", "d2").Is(1) })
	done(t, c, "d2", d)
	assert.Equal(t, []string{after, grand}, waiting(c, "q"))

	alone := add(t, c, "alone", "d", 0, "DEFERRED")
	c.Do("RELEASEJOB", alone, "LAST")
	assert.Equal(t, []string{alone}, waiting(c, "alone"))
}

// blockMany adds a deferred job to d, and to q those that it blocks.
func blockMany(t *testing.T, c *harness.Conn, many int) (d string, ids []string) {
	d = add(t, c, "d", "d", 0, "DEFERRED")
	for range many {
		c.Later("ADDJOB", "q", "b", 0, "BLOCKEDBY", d)
	}
	for range many {
		ids = append(ids, c.Receive().Str)
	}
	return d, ids
}

// A job blocks very many. RELEASEJOB LAST unblocks them in slices, and is answered when all are unblocked. The
// slices go on if the pause or the server ends meanwhile, or if the data is loaded anew.
func TestReleaseLastOfVeryMany(t *testing.T) {
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		const many = 5000
		d, ids := blockMany(t, c, many)
		if mode == "" {
			require.Equal(t, int64(1), c.Do("RELEASEJOB", d, "LAST").Int())
			require.Equal(t, int64(many), c.Do("QLEN", "q").Int())
		} else {
			// A transaction can't wait, and a server whose writes are paused unblocks no more jobs.
			ok(t, c.Do("MULTI"))
			c.Do("RELEASEJOB", d, "LAST")
			c.Do("CLIENT", "PAUSE", 60_000, "WRITE")
			v := c.Do("EXEC")
			require.Len(t, v.Elems, 2, "%v", v)
			require.Equal(t, int64(1), v.Elems[0].Int())
			require.Positive(t, c.Do("QLEN", "q").Int())
			require.Less(t, c.Do("QLEN", "q").Int(), int64(many))
			if mode != "paused" {
				comeBack(t, s, mode)
			}
			c = s.Dial()
			ok(t, c.Do("CLIENT", "UNPAUSE"))
		}
		harness.Await(t, 10*time.Second, "all to be let go", func() bool { return c.Do("QLEN", "q").Is(many) })
		require.Equal(t, ids, waiting(c, "q"))
		assert.Equal(t, ids[:1000], waitsFor(c, d))
		assert.True(t, c.Do("SHOW", d).Field("all-waits-for").Is(many))
		assert.Equal(t, "blocked", state(c, d))
		assert.Empty(t, waiting(c, "d"))
		for _, id := range ids {
			c.Later("ACKJOB", id)
		}
		for range ids {
			c.Receive()
		}
		assert.Equal(t, []string{d}, waiting(c, "d"))
	}, "", "paused", "aof-kill", "aof-rewritten-kill", "rdb", "reload")
}

// A deferred job that is cancelled, deleted or expires before its release takes the blocked jobs with
// it. After its release they stay.
func TestCancel(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	family := func(options ...any) (d string, all []string) {
		d = add(t, c, append([]any{"d", "d", 0, "DEFERRED"}, options...)...)
		b := add(t, c, "q", "b", 0, "BLOCKEDBY", d)
		return d, []string{d, b, add(t, c, "p", "c", 0, "BLOCKEDBY", b)}
	}
	gone := func(all []string) bool {
		for _, id := range all {
			if !c.Do("SHOW", id).Null {
				return false
			}
		}
		return true
	}
	d, all := family()
	assert.Equal(t, int64(3), c.Do("CANCELJOB", d).Int())
	assert.True(t, gone(all))
	assert.Equal(t, int64(0), c.Do("CANCELJOB", d).Int())
	assert.Equal(t, "2", s.Info("jobmesh", "jobmesh_jobs_dropped"))
	assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_jobs_cancelled"))
	assert.Equal(t, badID, c.Do("CANCELJOB", d, "x").Str)
	d, all = family()
	assert.Equal(t, int64(1), c.Do("DELJOB", d).Int())
	assert.True(t, gone(all))
	_, all = family("TTL", 1, "RETRY", 1)
	harness.Await(t, 5*time.Second, "them to expire", func() bool { return gone(all) })
	_, all = family()
	c.Do("DEL", "d")
	harness.Await(t, 5*time.Second, "them to go with the queue", func() bool { return gone(all) })
	d, all = family()
	assert.Equal(t, int64(2), c.Do("CANCELJOB", all[1]).Int(), "one of the middle leaves the others")
	assert.Equal(t, "deferred", state(c, d))

	// Released and done.
	d, all = family()
	c.Do("RELEASEJOB", d)
	done(t, c, "d", d)
	assert.Equal(t, int64(0), c.Do("CANCELJOB", d).Int())
	assert.Equal(t, "queued", state(c, all[1]))
	assert.Equal(t, "blocked", state(c, all[2]))
	done(t, c, "q", all[1])
	done(t, c, "p", all[2])
	// Released, and cancelled, deleted or expired before it was done: the blocked jobs go on.
	for _, end := range []string{"CANCELJOB", "DELJOB", "expiry", "DEL"} {
		d, all = family("TTL", 2, "RETRY", 2)
		c.Do("RELEASEJOB", d)
		switch end {
		case "DEL":
			c.Do("DEL", "d")
		case "expiry":
		default:
			require.Equal(t, int64(1), c.Do(end, d).Int(), end)
		}
		harness.Await(t, 5*time.Second, "the blocked one to go on", func() bool { return state(c, all[1]) == "queued" })
		assert.Equal(t, "blocked", state(c, all[2]))
		require.Equal(t, int64(2), c.Do("CANCELJOB", all[1], all[2]).Int())
	}
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
}

// The job that blocks others must be deferred or blocked itself.
func TestBlockedByNeedsADeferredJob(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	plain := add(t, c, "q", "b", 0)
	d := add(t, c, "d", "d", 0, "DEFERRED")
	c.Do("RELEASEJOB", d)
	before := s.Info("jobmesh", "jobmesh_registered_jobs")
	for want, options := range map[string][]any{
		notDeferred:             {"BLOCKEDBY", plain},
		"NOTDEFERRED":           {"BLOCKEDBY", d},
		"NOJOB no job":          {"BLOCKEDBY", unknown},
		badID:                   {"BLOCKEDBY", "x"},
		syntax:                  {"BLOCKEDBY"},
		"NOJOB Job not known":   {"BLOCKEDBY", unknown[:2] + strings.ToUpper(unknown[2:10]) + unknown[10:]},
		"NOJOB no job D-":       {"AFTER", unknown},
		"BADID Invalid":         {"AFTER", plain, "D-x"},
		"ERR syntax":            {"AFTER", plain, "x"},
		"BADID":                 {"AFTER", "ONDEAD", "run"},
		"ERR BLOCKEDBY and":     {"AFTER", plain, "BLOCKEDBY", d},
		"ERR ONDEAD is for":     {"ONDEAD", "run"},
		"ERR ONDEAD must be":    {"AFTER", plain, "ONDEAD", "jump"},
		"ERR synt":              {"ONDEAD"},
		"ERR The specified DEL": {"AFTER", plain, "TTL", 5, "DELAY", 5},
	} {
		v := c.Do(append([]any{"ADDJOB", "new", "b", 0}, options...)...)
		assert.True(t, v.Err(want), "%v: %v", options, v)
	}
	assert.Equal(t, before, s.Info("jobmesh", "jobmesh_registered_jobs"))
	assert.Equal(t, int64(0), c.Do("EXISTS", "new").Int())
	done(t, c, "d", d)
	assert.True(t, c.Do("ADDJOB", "q", "b", 0, "BLOCKEDBY", d).Err("NOJOB"), "it is done with")
	id := add(t, c, "q", "b", 0, "AFTER", d)
	assert.Equal(t, "queued", state(c, id), "it counts as done while it is remembered")
}

// A job with AFTER waits until all the jobs that it names have ended.
func TestAfter(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		p := []string{add(t, c, "p", "0", 0), add(t, c, "p", "1", 0, "RETRY", 0)}
		id := add(t, c, "q", "b", 0, "AFTER", p[0], p[1], "RETRY", 1)
		assert.Equal(t, "blocked", state(c, id))
		assert.Equal(t, p, waitsFor(c, id))
		get(t, c, "p")
		get(t, c, "p")
		c.Do("ACKJOB", p[order[0]])
		time.Sleep(1200 * time.Millisecond) // longer than the retry time
		assert.Equal(t, "blocked", state(c, id), "one is not enough, whatever the retry time says")
		assert.Equal(t, []string{p[order[1]]}, waitsFor(c, id))
		c.Do("FASTACK", p[order[1]])
		done(t, c, "q", id)
	}
	// One already acknowledged; one named twice; the option given twice.
	x, y := add(t, c, "p", "x", 0), add(t, c, "p", "y", 0)
	done(t, c, "p", x)
	id := add(t, c, "q", "b", 0, "AFTER", x, "AFTER", y, y, "TTL", 100)
	assert.Equal(t, []string{y}, waitsFor(c, id))
	done(t, c, "p", y)
	done(t, c, "q", id)
	// With DEFERRED the job waits for both: for the others, and for its release.
	x = add(t, c, "p", "x", 0)
	id = add(t, c, "q", "b", 0, "DEFERRED", "AFTER", x)
	assert.Equal(t, "deferred", state(c, id))
	done(t, c, "p", x)
	assert.Equal(t, "deferred", state(c, id))
	c.Do("RELEASEJOB", id)
	done(t, c, "q", id)
	// With DELAY it isn't queued before its delay is over either.
	x = add(t, c, "p", "x", 0)
	id = add(t, c, "q", "b", 0, "AFTER", x, "DELAY", 1)
	done(t, c, "p", x)
	assert.Equal(t, "active", state(c, id))
	assert.Len(t, c.Do("GETJOB", "TIMEOUT", 3000, "FROM", "q").Elems, 1)
}

// If a job ends without being done, ONDEAD says what happens to a job that waits for it.
func TestAfterADeath(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	for _, end := range []string{"CANCELJOB", "DELJOB", "expiry"} {
		p := add(t, c, "p", "p", 0, "TTL", 1, "RETRY", 1)
		run := add(t, c, "run", "b", 0, "AFTER", p, "ONDEAD", "RUN")
		drop := add(t, c, "drop", "b", 0, "AFTER", p, "ONDEAD", "drop")
		def := add(t, c, "drop", "b", 0, "AFTER", p)
		next := add(t, c, "drop", "b", 0, "AFTER", def)
		dead := add(t, c, "q", "b", 0, "AFTER", p, "ONDEAD", "dead")
		if end != "expiry" {
			c.Do(end, p)
		}
		harness.Await(t, 5*time.Second, "it to end", func() bool { return c.Do("SHOW", p).Null })
		done(t, c, "run", run)
		for _, id := range []string{drop, def, next} {
			assert.True(t, c.Do("SHOW", id).Null)
		}
		done(t, c, "q:dead", dead)
	}
	assert.Equal(t, "9", s.Info("jobmesh", "jobmesh_jobs_dropped"))
	assert.Equal(t, "3", s.Info("jobmesh", "jobmesh_jobs_dead"))
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_registered_jobs"))
}

// An ID must exist before it can be named, so there are no cycles. A job can wait for the ends of a
// limited number of others.
func TestNoCycles(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	p := add(t, c, "p", "b", 0)
	args := []any{"ADDJOB", "q", "b", 0, "AFTER"}
	for range 1001 {
		args = append(args, p)
	}
	assert.Equal(t, "ERR a job can wait for 1000 others at most", c.Do(args...).Str)
	require.Equal(t, byte('+'), c.Do(args[:len(args)-1]...).Kind)
	// A long chain of jobs is cancelled without a deep recursion.
	id := add(t, c, "q", "b", 0, "DEFERRED")
	first := id
	for range 5000 {
		id = add(t, c, "q", "b", 0, "BLOCKEDBY", id)
	}
	// They go 300 at a time, and the reply counts those that go at once.
	assert.Equal(t, int64(301), c.Do("CANCELJOB", first).Int())
	harness.Await(t, 10*time.Second, "the others to go", func() bool { return s.Info("jobmesh", "jobmesh_registered_jobs") == "2" })
}

// A job unblocks thousands: they come in order, and bit by bit.
func TestManyBlocked(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	const many = 10_000
	d, ids := blockMany(t, c, many)
	c.Do("RELEASEJOB", d)
	get(t, c, "d")
	require.Equal(t, int64(1), c.Do("ACKJOB", d).Int())
	s.Kill()
	s.Restart()
	c = s.Dial()
	harness.Await(t, 10*time.Second, "all to be let go", func() bool { return len(c.Do("JSCAN", "COUNT", 100_000, "STATE", "blocked").Elems[1].Elems) == 0 })
	harness.Await(t, 5*time.Second, "the one that they waited for to be forgotten", func() bool { return c.Do("SHOW", d).Null })
	assert.Equal(t, fmt.Sprint(many), s.Info("jobmesh", "jobmesh_registered_jobs"))
	for _, id := range ids {
		c.Later("ENQUEUE", id)
	}
	for range ids {
		c.Receive()
	}
	assert.Equal(t, ids, waiting(c, "q"))
}

// Families come through restarts as they are.
func TestFamiliesAreSaved(t *testing.T) {
	for _, mode := range []string{"rdb", "aof", "aof-without-preamble", "aof-kill", "reload", "replica"} {
		t.Run(mode, func(t *testing.T) {
			s := harness.Start(t, saving(mode))
			var r *harness.Server
			if mode == "replica" {
				r = harness.Start(t, harness.WithReplicaOf(s))
				r.AwaitSync()
			}
			c := s.Dial()
			plain := add(t, c, "d", "d", 0, "DEFERRED")
			b := add(t, c, "q", "b", 0, "BLOCKEDBY", plain)
			released := add(t, c, "r", "d", 0, "DEFERRED", "RETRY", 1)
			a := add(t, c, "q", "a", 0, "BLOCKEDBY", released)
			c.Do("RELEASEJOB", released, "QUEUE", "r2")
			last := add(t, c, "l", "d", 0, "DEFERRED")
			early := []string{add(t, c, "e", "1", 0, "BLOCKEDBY", last, "RETRY", 1), add(t, c, "e", "2", 0, "BLOCKEDBY", last, "RETRY", 1)}
			c.Do("RELEASEJOB", last, "LAST")
			done(t, c, "e", early[0])
			free := add(t, c, "f", "d", 0, "DEFERRED")
			freed := add(t, c, "f2", "b", 0, "BLOCKEDBY", free, "RETRY", 1)
			c.Do("RELEASEJOB", free)
			done(t, c, "f", free)
			p := []string{add(t, c, "p", "1", 0, "RETRY", 1), add(t, c, "p", "2", 0, "RETRY", 1)}
			after := add(t, c, "q", "after", 0, "AFTER", p[0], p[1])
			done(t, c, "p", p[0])
			switch mode {
			case "replica":
				require.Equal(t, int64(1), c.Do("WAIT", 1, 5000).Int())
				s.Kill()
				require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
				s = r
			default:
				comeBack(t, s, mode)
			}
			c = s.Dial()
			for id, want := range map[string]string{plain: "deferred", b: "blocked", a: "blocked", last: "blocked", after: "blocked"} {
				assert.Equal(t, want, state(c, id))
			}
			assert.Equal(t, []string{p[1]}, waitsFor(c, after))
			assert.Equal(t, []string{early[1]}, waitsFor(c, last))
			fetch := func(queue, id string) {
				t.Helper()
				v := c.Do("GETJOB", "TIMEOUT", 5000, "FROM", queue)
				require.Len(t, v.Elems, 1)
				require.Equal(t, id, v.Elems[0].Elems[1].Str)
				require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
			}
			fetch("r2", released)
			fetch("q", a)
			fetch("p", p[1])
			fetch("q", after)
			fetch("e", early[1])
			fetch("l", last)
			fetch("f2", freed)
			require.Equal(t, int64(1), c.Do("RELEASEJOB", plain).Int())
			fetch("d", plain)
			fetch("q", b)
			assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_registered_jobs"))
		})
	}
}

// Queues of jobs that depend on others are renamed, moved, copied, deleted, restored, swapped, flushed.
func TestKeyspaceOfFamilies(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	d := add(t, c, "d", "d", 0, "DEFERRED")
	b := add(t, c, "q", "b", 0, "BLOCKEDBY", d)
	require.Equal(t, "OK", c.Do("RENAME", "q", "renamed").Str)
	require.Equal(t, "OK", c.Do("RENAME", "d", "d2").Str)
	c.Do("RELEASEJOB", d)
	// The blocked job lies in another database when its turn comes. It is unblocked when it is back.
	require.Equal(t, int64(1), c.Do("MOVE", "renamed", 1).Int())
	done(t, c, "d2", d)
	c.Do("SELECT", 1)
	require.Equal(t, int64(1), c.Do("MOVE", "renamed", 0).Int())
	c.Do("SELECT", 0)
	harness.Await(t, 5*time.Second, "it to be let go", func() bool { return state(c, b) == "queued" })
	done(t, c, "renamed", b)

	// A dump knows what its jobs waited for.
	d = add(t, c, "d", "d", 0, "DEFERRED")
	b = add(t, c, "q", "b", 0, "BLOCKEDBY", d)
	dump := c.Do("DUMP", "q").Str
	c.Do("DEL", "q")
	require.Equal(t, "OK", c.Do("RESTORE", "q", 0, dump).Str)
	assert.Equal(t, "blocked", state(c, b))
	c.Do("RELEASEJOB", d)
	done(t, c, "d", d)
	done(t, c, "q", b)
	// Restored when the job that it waited for was cancelled.
	d = add(t, c, "d", "d", 0, "DEFERRED")
	b = add(t, c, "q", "b", 0, "BLOCKEDBY", d)
	dump = c.Do("DUMP", "q").Str
	require.Equal(t, int64(2), c.Do("CANCELJOB", d).Int())
	c.Do("DEL", "q")
	require.Equal(t, "OK", c.Do("RESTORE", "q", 0, dump).Str)
	harness.Await(t, 5*time.Second, "it to go, too", func() bool { return c.Do("SHOW", b).Null })

	c.Do("DEL", "d", "q")
	d = add(t, c, "d", "d", 0, "DEFERRED")
	for range 100 {
		add(t, c, "q", "b", 0, "BLOCKEDBY", d)
	}
	require.Equal(t, "OK", c.Do("SWAPDB", 0, 2).Str)
	assert.True(t, c.Do("RELEASEJOB", d).Err("NOJOB"))
	require.Equal(t, "OK", c.Do("SWAPDB", 0, 2).Str)
	require.Equal(t, int64(1), c.Do("RELEASEJOB", d).Int())
	c.Do("FLUSHALL")
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_registered_jobs"))
	d = add(t, c, "d", "d", 0, "DEFERRED")
	b = add(t, c, "q", "b", 0, "BLOCKEDBY", d)
	c.Do("RELEASEJOB", d)
	done(t, c, "d", d)
	done(t, c, "q", b)
}

// Families are made, released and cancelled in MULTI and in scripts.
func TestFamiliesInTransactions(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	v := c.Do("EVAL", `local d = redis.call('ADDJOB', 'd', 'b', 0, 'DEFERRED').ok
		local b = redis.call('ADDJOB', 'q', 'b', 0, 'BLOCKEDBY', d).ok
		return {redis.call('RELEASEJOB', d), d, b}`, 0)
	require.Len(t, v.Elems, 3, "%v", v)
	assert.Equal(t, int64(1), v.Elems[0].Int())
	c.Do("MULTI")
	c.Do("ACKJOB", v.Elems[1].Str)
	c.Do("CANCELJOB", v.Elems[2].Str)
	e := c.Do("EXEC")
	assert.Equal(t, []int64{1, 1}, []int64{e.Elems[0].Int(), e.Elems[1].Int()})
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_registered_jobs"))
}

// A job that is unblocked into a queue that is paused in input waits until the pause ends.
func TestLetGoIntoAPausedQueue(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	p := add(t, c, "p", "p", 0)
	id := add(t, c, "q", "b", 0, "AFTER", p, "RETRY", 1)
	once := add(t, c, "q", "b", 0, "AFTER", p, "RETRY", 0)
	c.Do("PAUSE", "q", "in")
	done(t, c, "p", p)
	assert.Equal(t, []string{once}, waiting(c, "q"), "one that has no second chance is let in")
	time.Sleep(1300 * time.Millisecond) // longer than the retry time
	assert.Equal(t, "active", state(c, id))
	c.Do("PAUSE", "q", "none")
	harness.Await(t, 5*time.Second, "it to be queued", func() bool { return state(c, id) == "queued" })
}

// A transaction acknowledges a job and deletes its queue. More jobs wait for it than one command
// unblocks. All of them go on.
func TestAcknowledgedAndItsQueueDeleted(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	parent := add(t, c, "p", "b", 0)
	for i := range 1000 {
		add(t, c, "q", fmt.Sprint(i), 0, "AFTER", parent)
	}
	require.Equal(t, parent, get(t, c, "p"))
	c.Do("MULTI")
	c.Do("ACKJOB", parent)
	c.Do("DEL", "p")
	c.Do("EXEC")
	harness.Await(t, 10*time.Second, "all to go on", func() bool { return c.Do("QLEN", "q").Int() == 1000 })
}

// A job is acknowledged, and its queue deleted, while the job that waits for it lies in another
// database. The latter is queued when it is back, whatever has happened to the server meanwhile.
func TestAcknowledgedAndItsQueueDeletedWhileAnotherIsAway(t *testing.T) {
	for _, mode := range []string{"", "rdb", "aof", "aof-without-preamble", "aof-rewritten", "aof-kill", "aof-at-once-kill", "reload", "replica", "twice"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			save := mode
			if mode == "twice" {
				save = "rdb"
			}
			s := harness.Start(t, saving(save))
			c := s.Dial()
			parent := add(t, c, "p", "b", 0)
			child := add(t, c, "q", "b", 0, "AFTER", parent)
			require.Equal(t, int64(1), c.Do("MOVE", "q", 1).Int())
			away := func() int {
				c.Do("SELECT", 1)
				defer c.Do("SELECT", 0)
				return len(c.Do("DUMP", "q").Str)
			}
			waiting := away()
			var r *harness.Server
			switch mode {
			case "replica":
				r = harness.Start(t, harness.WithReplicaOf(s))
				r.AwaitSync()
			case "twice": // so that the server doesn't know what is in the queue
				comeBack(t, s, mode)
				c = s.Dial()
			}
			require.Equal(t, parent, get(t, c, "p"))
			require.Equal(t, int64(1), c.Do("ACKJOB", parent).Int())
			require.Equal(t, int64(1), c.Do("DEL", "p").Int())
			if mode != "aof-at-once-kill" {
				harness.Await(t, 5*time.Second, "it to wait no more", func() bool { return away() < waiting-len(parent)/2 })
			}
			switch mode {
			case "":
			case "replica":
				r.AwaitStream(s)
				require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
				s = r
			default:
				comeBack(t, s, mode)
			}
			c = s.Dial()
			c.Do("SELECT", 1)
			harness.Await(t, 5*time.Second, "it to be moved", func() bool { return c.Do("MOVE", "q", 0).Is(1) })
			c.Do("SELECT", 0)
			harness.Await(t, 5*time.Second, "it to be queued", func() bool { return state(c, child) == "queued" })
			assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_jobs_dropped"))
			assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
		})
	}
}

// Many jobs that wait for many others: each end is logged by itself, and not with all that are left to wait for. A restart in the middle, and a
// replica, know the same.
func TestFanInIsLoggedBitByBit(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always", "auto-aof-rewrite-percentage 0"))
	r := harness.Start(t, harness.WithReplicaOf(s))
	r.AwaitSync()
	c := s.Dial()
	const parents, children = 200, 50
	ids := idsOf(t, addJobs(c, "p 0", parents))
	idsOf(t, addJobs(c, "c 0 AFTER "+strings.Join(ids, " "), children))
	aof := func() (size int64) {
		names, err := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*"))
		require.NoError(t, err)
		for _, name := range names {
			info, err := os.Stat(name)
			require.NoError(t, err)
			size += info.Size()
		}
		return size
	}
	before := aof()
	end := func(from, to int) {
		for _, id := range ids[from:to] {
			require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
		}
	}
	end(0, parents/2)
	left := func(s *harness.Server) {
		t.Helper()
		c := s.Dial()
		defer c.Close()
		all := c.Do("JSCAN", 0, "BUSYLOOP", "QUEUE", "c").Elems[1].Strings()
		require.Len(t, all, children)
		for _, id := range all {
			assert.Equal(t, ids[parents/2:], waitsFor(c, id))
		}
	}
	harness.Await(t, 10*time.Second, "all ends to be followed", func() bool {
		return len(waitsFor(c, c.Do("JSCAN", 0, "BUSYLOOP", "QUEUE", "c").Elems[1].Strings()[0])) == parents/2
	})
	left(s)
	require.Equal(t, int64(1), c.Do("WAIT", 1, 5000).Int())
	left(r)
	assert.Less(t, aof()-before, int64(parents/2*children*200+100_000), "some bytes for each end and each job that waits for it")
	s.Kill()
	s.Restart()
	c = s.Dial()
	left(s)
	end(parents/2, parents)
	harness.Await(t, 10*time.Second, "all to be queued", func() bool { return c.Do("QLEN", "c").Is(children) })
}

// A job that is dropped, and whose outcome is kept, waits for none of its other parents any more.
func TestDroppedAndKeptWaitsForNobody(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	stays := c.Do("ADDJOB", "q", "stays", 0, "RETRY", 0).Str
	goes := c.Do("ADDJOB", "q", "goes", 0, "RETRY", 0).Str
	child := c.Do("ADDJOB", "q", "child", 0, "KEEP", 1000, "AFTER", stays, goes).Str
	require.Equal(t, []string{child}, dependents(c, stays))
	require.Equal(t, int64(2), c.Do("CANCELJOB", goes).Int())
	require.Equal(t, "dropped", c.Do("SHOW", child).Field("outcome").Str)
	assert.NotContains(t, fields(c.Do("SHOW", stays)), "dependents")
}
