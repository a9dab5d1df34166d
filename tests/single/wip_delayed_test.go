package single

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// delayedJob is a job as WIP DELAYED lists it.
type delayedJob struct {
	id                       string
	due, created, deliveries int64
}

// delayedPage is one call of WIP DELAYED.
func delayedPage(t *testing.T, c *harness.Conn, queue string, args ...any) (cursor string, list []delayedJob) {
	t.Helper()
	v := c.Do(append([]any{"WIP", queue, "DELAYED"}, args...)...)
	require.Len(t, v.Elems, 2, "%v", v)
	for _, e := range v.Elems[1].Elems {
		require.Len(t, e.Elems, 4)
		list = append(list, delayedJob{e.Elems[0].Str, e.Elems[1].Int(), e.Elems[2].Int(), e.Elems[3].Int()})
	}
	return v.Elems[0].Str, list
}

// allDelayed lists a queue's delayed jobs, by pages of size jobs.
func allDelayed(t *testing.T, c *harness.Conn, queue string, size int) (list []delayedJob) {
	t.Helper()
	cursor := "0"
	for {
		next, page := delayedPage(t, c, queue, "COUNT", size, "CURSOR", cursor)
		require.LessOrEqual(t, len(page), size)
		if list, cursor = append(list, page...), next; next == "0" {
			return list
		}
		require.Len(t, page, size, "a page that others follow is full")
	}
}

func delayedIDs(list []delayedJob) (ids []string) {
	for _, d := range list {
		ids = append(ids, d.id)
	}
	return ids
}

// O1: jobs are listed in the order of the times at which they are due, whyever they wait for them.
func TestLifeO1(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	began := time.Now()
	want := map[int]string{}
	at := func(s int, id string) { want[s] = id }
	busy := []any{"UNIQUE", "until-processed", "KEY", "k"}
	at(600, add(t, c, append([]any{"q", "a", 0, "DELAY", 600}, busy...)...))
	require.Equal(t, want[600], add(t, c, append([]any{"q", "b", 0, "DELAY", 60, "ONCONFLICT", "debounce", 3600}, busy...)...))
	at(60, want[600])
	delete(want, 600)
	at(70, add(t, c, append([]any{"q", "b", 0, "ONCONFLICT", "reschedule", 70}, busy...)...))
	at(50, add(t, c, "q", "delay", 0, "DELAY", 50))
	at(20, add(t, c, "q", "at", 0, "AT", began.Unix()+20))
	at(30, add(t, c, "q", "nack", 0))
	require.Equal(t, want[30], get(t, c, "q"))
	require.Equal(t, int64(1), c.Do("NACK", want[30], "DELAY", 30, "REASON", "x").Int())
	at(40, add(t, c, "q", "backoff", 0, "BACKOFF", 40, 40))
	require.Equal(t, want[40], get(t, c, "q"))
	require.Equal(t, int64(1), c.Do("NACK", want[40]).Int())
	at(45, add(t, c, "q", "once", 0, "RETRY", 0, "DELAY", 45))
	add(t, c, "q", "works", 0)
	get(t, c, "q")
	dies(t, c, "other", "dead", "DEAD", "q")
	add(t, c, "q", "waits", 0)
	blocker := add(t, c, "q", "deferred", 0, "DEFERRED", "DELAY", 10)
	add(t, c, "q", "blocked", 0, "BLOCKEDBY", blocker)

	list := allDelayed(t, c, "q", 100)
	require.Len(t, list, len(want))
	assert.Equal(t, int64(len(want)), c.Do("QSTAT", "q").Field("delayed").Int())
	i := 0
	for s := range 100 {
		id := want[s]
		if id == "" {
			continue
		}
		d := list[i]
		i++
		require.Equal(t, id, d.id, "the one due in %d s", s)
		assert.InDelta(t, began.UnixMilli()+int64(s)*1000, d.due, 20_000)
		assert.InDelta(t, began.UnixMilli(), d.created, 20_000)
		assert.InDelta(t, c.Do("SHOW", id).Field("next-requeue-within").Int(), d.due-time.Now().UnixMilli(), 5000)
		deliveries := int64(0)
		if s == 30 || s == 40 {
			deliveries = 1
		}
		assert.Equal(t, deliveries, d.deliveries, "the one due in %d s", s)
	}
	cursor, first := delayedPage(t, c, "q")
	assert.Equal(t, "0", cursor)
	assert.Equal(t, list, first)
}

// O2: pages list each job that stays once, whatever happens to the others meanwhile. Many of the jobs are due in the same ms.
func TestLifeO2(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	at := time.Now().Unix() + 1000
	stay, gone := map[string]bool{}, []string{}
	for i := range 100 {
		id := add(t, c, "q", fmt.Sprint(i), 0, "AT", at+int64(i/20))
		if i%3 == 0 {
			gone = append(gone, id)
		} else {
			stay[id] = true
		}
	}
	whole := allDelayed(t, c, "q", 100)
	require.Len(t, whole, 100)
	assert.True(t, slices.IsSortedFunc(whole, func(a, b delayedJob) int { return int(a.due - b.due) }))
	for _, size := range []int{1, 7, 99, 101} {
		assert.Equal(t, whole, allDelayed(t, c, "q", size))
	}
	var met []string
	cursor := "0"
	for n := 0; ; n++ {
		next, page := delayedPage(t, c, "q", "COUNT", 7, "CURSOR", cursor)
		met = append(met, delayedIDs(page)...)
		if cursor = next; cursor == "0" {
			break
		}
		last := page[len(page)-1].id
		delete(stay, last) // the cursor's own job goes
		for _, id := range []string{last, gone[2*n], gone[2*n+1]} {
			switch n % 3 {
			case 0:
				c.Do("CANCELJOB", id)
			case 1:
				c.Do("ENQUEUE", id)
			default:
				c.Do("MOVEJOB", id, "TO", "p")
			}
		}
	}
	times := map[string]int{}
	for _, id := range met {
		times[id]++
	}
	for id := range stay {
		assert.Equal(t, 1, times[id], id)
	}
	_, from := delayedPage(t, c, "q", "CURSOR", at*1000+2000)
	want := slices.DeleteFunc(allDelayed(t, c, "q", 100), func(d delayedJob) bool { return d.due < at*1000+2000 })
	assert.NotEmpty(t, want)
	assert.Equal(t, want, from)
	_, from = delayedPage(t, c, "q", "CURSOR", at*1000+2001)
	assert.Equal(t, at*1000+3000, from[0].due)
}

// O3: whatever changes a job's time changes its place.
func TestLifeO3(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	now := time.Now().Unix()
	var ids []string
	for i := range 5 {
		ids = append(ids, add(t, c, "q", "b", 0, "AT", now+int64(100*(i+1)), "UNIQUE", "until-processed", "KEY", i))
	}
	check := func(order ...int) {
		t.Helper()
		var want []string
		for _, i := range order {
			want = append(want, ids[i])
		}
		assert.Equal(t, want, delayedIDs(allDelayed(t, c, "q", 2)))
	}
	check(0, 1, 2, 3, 4)
	require.Equal(t, int64(1), c.Do("MOVEJOB", ids[0], "AT", now+350).Int())
	check(1, 2, 0, 3, 4)
	require.Equal(t, int64(1), c.Do("MOVEJOB", ids[4], "AT", now+50).Int())
	check(4, 1, 2, 0, 3)
	require.Equal(t, ids[1], add(t, c, "q", "c", 0, "UNIQUE", "until-processed", "KEY", 1, "DELAY", 900, "ONCONFLICT", "debounce", 5000))
	check(4, 2, 0, 3, 1)
	require.Equal(t, int64(1), c.Do("ENQUEUE", ids[2]).Int())
	check(4, 0, 3, 1)
	require.Equal(t, ids[2], get(t, c, "q"))
	require.Equal(t, int64(1), c.Do("NACK", ids[2], "DELAY", 370).Int())
	check(4, 0, 2, 3, 1)
	require.Equal(t, int64(1), c.Do("CANCELJOB", ids[0]).Int())
	require.Equal(t, int64(1), c.Do("MOVEJOB", ids[3], "TO", "p").Int())
	check(4, 2, 1)
	assert.Equal(t, []string{ids[3]}, delayedIDs(allDelayed(t, c, "p", 9)))
	soon := add(t, c, "q", "b", 0, "DELAY", 1)
	assert.Equal(t, soon, allDelayed(t, c, "q", 9)[0].id)
	require.Equal(t, soon, c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q").Elems[0].Elems[1].Str)
	check(4, 2, 1)
}

// O4: restarts, other names and a promotion keep the list.
func TestLifeO4(t *testing.T) {
	t.Parallel()
	fill := func(t *testing.T, c *harness.Conn) []delayedJob {
		now := time.Now().Unix()
		for i := range 60 {
			id := add(t, c, "q", "b", 0, "AT", now+1000+int64(i*37%60))
			if i%3 > 0 {
				continue
			}
			require.Equal(t, int64(1), c.Do("ENQUEUE", id).Int())
			require.Equal(t, id, get(t, c, "q"))
			require.Equal(t, int64(1), c.Do("NACK", id, "DELAY", 1000+i*53%60).Int())
		}
		return allDelayed(t, c, "q", 100)
	}
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		want := fill(t, c)
		c, queue := handOn(t, s, c, mode)
		assert.Equal(t, want, allDelayed(t, c, queue, 7))
		for _, d := range want {
			require.Equal(t, int64(1), c.Do("ENQUEUE", d.id).Int())
		}
		assert.Empty(t, allDelayed(t, c, queue, 7))
		assert.Len(t, order(c, queue), 60)
	}, "aof", "aof-kill", "aof-rewritten", "rdb", "reload", "rename", "restore")
	t.Run("replica", func(t *testing.T) {
		t.Parallel()
		s := harness.Start(t)
		r := harness.Start(t, harness.WithReplicaOf(s))
		r.AwaitSync()
		want := fill(t, s.Dial())
		r.AwaitStream(s)
		c := r.Dial()
		assert.Empty(t, allDelayed(t, c, "q", 7))
		require.Equal(t, "OK", c.Do("REPLICAOF", "NO", "ONE").Str)
		harness.Await(t, 20*time.Second, "the promoted node to have its jobs", func() bool { return c.Do("QSTAT", "q").Field("delayed").Is(60) })
		assert.Equal(t, want, allDelayed(t, c, "q", 7))
	})
}

// O7 on a server: the order costs a queue of delayed jobs as much as is written down, and other jobs nothing. (How long a page of a million
// takes is measured by make bench BENCH=-slowest.)
func TestLifeO7(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	const jobs = 20_000
	bodies := make([]any, jobs/4)
	for i := range bodies {
		bodies[i] = "0123456789"
	}
	usage := func(queue string) int64 { return c.Do("MEMORY", "USAGE", queue, "SAMPLES", 0).Int() }
	for _, delay := range []int{0, 500, 400, 600, 500} {
		queue := "delayed"
		if delay == 0 {
			queue = "waits"
		}
		for range map[bool]int{true: 4, false: 1}[delay == 0] {
			v := c.Do(append([]any{"ADDJOBS", queue, 0, "DELAY", delay, "BODIES"}, bodies...)...)
			require.Len(t, v.Elems, len(bodies))
		}
	}
	delayed, waits := usage("delayed"), usage("waits")
	assert.InDelta(t, waits, delayed-168, 0.3*jobs, "waiting jobs have a skip list of as many nodes")
	list := allDelayed(t, c, "delayed", 1000)
	require.Len(t, list, jobs)
	assert.True(t, slices.IsSortedFunc(list, func(a, b delayedJob) int { return int(a.due - b.due) }))
	require.Equal(t, int64(jobs), c.Do("QFLUSH", "delayed").Int())
	harness.Await(t, 20*time.Second, "the jobs to go", func() bool {
		return c.Do("QSTAT", "delayed").NullArray() || c.Do("QSTAT", "delayed").Field("delayed").Is(0)
	})
	add(t, c, "delayed", "0123456789", 0)
	add(t, c, "another", "0123456789", 0)
	assert.InDelta(t, usage("another"), usage("delayed"), 60, "nothing of the order is left; one job of 16 has a node of 24 bytes or more")
}

// O8: wrong options are refused.
func TestLifeO8(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "q", "b", 0, "DELAY", 100)
	for _, bad := range []struct{ args, err string }{
		{"CURSOR 0", "ERR CURSOR is for DELAYED"}, {"COUNT 5 CURSOR 7", "ERR CURSOR is for DELAYED"},
		{"DELAYED CURSOR x", "ERR invalid cursor"}, {"DELAYED CURSOR -1", "ERR invalid cursor"}, {"DELAYED CURSOR 1.2", "ERR invalid cursor"},
		{"DELAYED CURSOR 1.2.3", "ERR invalid cursor"}, {"DELAYED CURSOR 1..", "ERR invalid cursor"}, {"DELAYED CURSOR 99999999999999999999", "ERR invalid cursor"},
		{"DELAYED CURSOR 1.-2." + id, "ERR invalid cursor"}, {"DELAYED CURSOR 1.2." + id + "x", "ERR invalid cursor"}, {"DELAYED MESH CURSOR .", "ERR invalid cursor"},
		{"DELAYED OVERDUE", "ERR OVERDUE is for jobs in progress"}, {"OVERDUE MESH DELAYED", "ERR OVERDUE is for jobs in progress"},
		{"DELAYED CURSOR", "ERR syntax error"}, {"DELAYED x", "ERR syntax error"}, {"DELAYED COUNT 0", "ERR COUNT must be"},
		{"DELAYED COUNT 1000001", "ERR COUNT must be"}, {"DELAYED MESH COUNT 1001", "ERR COUNT must be"}, {"DELAYED TIMEOUT 5", "ERR TIMEOUT is for MESH"},
	} {
		var args []any
		for _, a := range strings.Fields("WIP q " + bad.args) {
			args = append(args, a)
		}
		v := c.Do(args...)
		assert.True(t, v.Err(bad.err), "%s: %v", bad.args, v)
	}
	for _, good := range []string{"DELAYED", "delayed cursor 0 count 1", "COUNT 1000000 DELAYED", "DELAYED CURSOR 1.18446744073709551615." + id} {
		var args []any
		for _, a := range strings.Fields("WIP q " + good) {
			args = append(args, a)
		}
		assert.Equal(t, id, c.Do(args...).Elems[1].Elems[0].Elems[0].Str, good)
	}
	v := c.Do("WIP", "q", "DELAYED", "MESH")
	assert.Equal(t, "0", v.Field("cursor").Str)
	require.Len(t, v.Field("jobs").Elems, 1)
	assert.Equal(t, []string{id, c.Do("JOBMESH", "CLUSTER", "MYID").Str}, []string{v.Field("jobs").Elems[0].Elems[0].Str, v.Field("jobs").Elems[0].Elems[4].Str})
	assert.Empty(t, v.Field("unanswered").Elems)
	c.Do("MULTI")
	c.Do("WIP", "q", "DELAYED")
	c.Do("WIP", "q", "DELAYED", "MESH")
	v = c.Do("EXEC")
	assert.Equal(t, id, v.Elems[0].Elems[1].Elems[0].Elems[0].Str)
	assert.True(t, v.Elems[1].Err("ERR MESH has to wait"), "%v", v)
	assert.Equal(t, id, c.Do("EVAL", "return redis.call('WIP', KEYS[1], 'DELAYED')[2][1][1]", 1, "q").Str)
	assert.Equal(t, byte('%'), s.Dial3().Do("WIP", "q", "DELAYED", "MESH").Kind)
}

// O9: other keys, no queue, and no right.
func TestLifeO9(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c, u := s.Dial(), limitedUser(t, s)
	c.Do("SET", "text", "x")
	for _, mesh := range [][]any{nil, {"MESH"}} {
		assert.True(t, c.Do(append([]any{"WIP", "text", "DELAYED"}, mesh...)...).Err("WRONGTYPE"))
		assert.True(t, u.Do(append([]any{"WIP", "q", "DELAYED"}, mesh...)...).Err("NOPERM"))
	}
	assert.Equal(t, "*[$\"0\" *[]]", strings.ReplaceAll(c.Do("WIP", "none", "DELAYED").String(), "\n", ""))
	add(t, u, "a1", "b", 0, "DELAY", 100)
	assert.Len(t, u.Do("WIP", "a1", "DELAYED").Elems[1].Elems, 1)
}
