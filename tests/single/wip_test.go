package single

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// progress is a job as WIP lists it.
type progress struct {
	id                     string
	due, since, deliveries int64
	worker                 string
}

func wip(t *testing.T, c *harness.Conn, args ...any) (list []progress) {
	t.Helper()
	v := c.Do(append([]any{"WIP"}, args...)...)
	require.Equal(t, byte('*'), v.Kind, "%v", v)
	for _, e := range v.Elems {
		require.Len(t, e.Elems, 5)
		list = append(list, progress{e.Elems[0].Str, e.Elems[1].Int(), e.Elems[2].Int(), e.Elems[3].Int(), e.Elems[4].Str})
	}
	return list
}

func ids(list []progress) (all []string) {
	for _, p := range list {
		all = append(all, p.id)
	}
	return all
}

func near(t *testing.T, want time.Time, ms int64) {
	t.Helper()
	assert.InDelta(t, want.UnixMilli(), ms, 1000)
}

func inProgress(s *harness.Server) string { return s.Info("jobmesh", "jobmesh_jobs_in_progress") }

// FROM can't be a worker's name, so a name is never taken for the beginning of the queues.
func TestWorkerIsNotFrom(t *testing.T) {
	c := harness.Start(t).Dial()
	c.Do("ADDJOB", "mail", "b", 0)
	for _, name := range []string{"from", "FROM", "From"} {
		assert.True(t, c.Do("GETJOB", "NOHANG", "WORKER", name, "FROM", "mail").Err("ERR WORKER can't be FROM"), name)
	}
	assert.Equal(t, []string{"from", "mail"}, c.Do("COMMAND", "GETKEYS", "GETJOB", "NOHANG", "WORKER", "w", "FROM", "from", "mail").Strings())
	assert.Len(t, c.Do("GETJOB", "NOHANG", "WORKER", "w", "FROM", "from", "mail").Elems, 1)
}

// A job is in progress from GETJOB on, with the time at which it is due, until it ends or is queued in any way.
func TestWIP(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	assert.Empty(t, wip(t, c, "none"))
	slow := add(t, c, "q", "slow", 0, "RETRY", 50)
	quick := add(t, c, "q", "quick", 0, "RETRY", 40)
	once := add(t, c, "q", "once", 0, "RETRY", 0, "TTL", 45)
	took := time.Now()
	require.Len(t, c.Do("GETJOB", "COUNT", 3, "FROM", "q").Elems, 3)
	list := wip(t, c, "q")
	require.Equal(t, []string{quick, once, slow}, ids(list), "the first that is due first")
	near(t, took.Add(40*time.Second), list[0].due)
	near(t, took.Add(45*time.Second), list[1].due)
	near(t, took.Add(50*time.Second), list[2].due)
	for _, p := range list {
		near(t, took, p.since)
		assert.Equal(t, int64(1), p.deliveries)
		assert.Empty(t, p.worker)
	}
	assert.Equal(t, []string{quick}, ids(wip(t, c, "q", "COUNT", 1)))
	assert.Empty(t, wip(t, c, "q", "OVERDUE"))
	assert.Equal(t, "3", inProgress(s))
	assert.Equal(t, int64(3), c.Do("QSTAT", "q").Field("in-progress").Int())
	assert.Equal(t, int64(0), c.Do("QSTAT", "q").Field("overdue").Int())
	assert.True(t, c.Do("SHOW", once).Field("next-requeue-within").Null, "an at-most-once job never comes back")

	// NACK takes a job out of the list. The next delivery is counted.
	require.Equal(t, int64(1), c.Do("NACK", quick).Int())
	assert.Equal(t, []string{once, slow}, ids(wip(t, c, "q")))
	require.Equal(t, quick, get(t, c, "q"))
	list = wip(t, c, "q")
	require.Equal(t, []string{quick, once, slow}, ids(list))
	assert.Equal(t, int64(2), list[0].deliveries)

	require.Equal(t, int64(1), c.Do("ENQUEUE", quick).Int())
	assert.Equal(t, []string{once, slow}, ids(wip(t, c, "q")))
	require.Equal(t, int64(1), c.Do("ACKJOB", slow).Int())
	require.Equal(t, int64(0), c.Do("ACKJOB", slow).Int(), "twice gives 1, then 0")
	assert.Equal(t, []string{once}, ids(wip(t, c, "q")))
	require.Equal(t, int64(1), c.Do("DELJOB", once).Int())
	assert.Empty(t, wip(t, c, "q"))
	assert.Equal(t, "0", inProgress(s))

	fast := get(t, c, "q")
	require.Equal(t, int64(1), c.Do("FASTACK", fast).Int())
	expiring := add(t, c, "q", "b", 0, "TTL", 1, "RETRY", 0)
	retried := add(t, c, "r", "b", 0, "RETRY", 1)
	require.Equal(t, []string{expiring, retried}, []string{get(t, c, "q"), get(t, c, "r")})
	assert.Equal(t, "2", inProgress(s))
	harness.Await(t, 5*time.Second, "the one to expire, the other to be queued again", func() bool { return inProgress(s) == "0" })
	assert.Equal(t, "queued", state(c, retried))
}

// WORKING moves the time at which a job is due, but not the time since which it is worked on.
func TestWorkingMovesTheDueTime(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	first := add(t, c, "q", "b", 0, "RETRY", 10)
	second := add(t, c, "q", "b", 0, "RETRY", 10)
	took := time.Now()
	get(t, c, "q")
	time.Sleep(1200 * time.Millisecond) // so that the first job's time differs from this moment
	get(t, c, "q")
	require.Equal(t, []string{first, second}, ids(wip(t, c, "q")))
	time.Sleep(300 * time.Millisecond) // so that the second job's time differs from that of WORKING
	for range 2 {
		require.Equal(t, int64(10), c.Do("WORKING", first).Int())
		list := wip(t, c, "q")
		require.Equal(t, []string{second, first}, ids(list), "the first has more time now")
		near(t, time.Now().Add(10*time.Second), list[1].due)
		assert.InDelta(t, took.UnixMilli(), list[1].since, 600)
	}
}

// WORKER names the client that works on a job, in SHOW and WIP.
func TestWorkerIsNamed(t *testing.T) {
	s := harness.Start(t)
	c, d := s.Dial(), s.Dial()
	id := add(t, c, "q", "b", 0)
	worker := func() string { return c.Do("SHOW", id).Field("worker").Str }
	require.Len(t, c.Do("SHOW", id).Elems, 30, "a job that nobody has tells of no worker")
	require.Len(t, c.Do("GETJOB", "NOHANG", "WORKER", "ada", "FROM", "q").Elems, 1)
	assert.Equal(t, "ada", wip(t, c, "q")[0].worker)
	assert.Equal(t, "ada", worker())
	near(t, time.Now(), wip(t, c, "q")[0].since)
	require.Equal(t, int64(1), c.Do("NACK", id).Int())
	assert.Len(t, c.Do("SHOW", id).Elems, 30, "forgotten when it left her")
	get(t, c, "q")
	assert.Empty(t, wip(t, c, "q")[0].worker, "who names nobody is nobody")
	require.Equal(t, int64(1), c.Do("NACK", id).Int())

	// A name of another length, to several jobs at once, to a client that waited.
	require.Len(t, c.Do("GETJOB", "NOHANG", "worker", "grace hopper", "FROM", "q").Elems, 1)
	assert.Equal(t, "grace hopper", worker())
	for range 3 {
		add(t, c, "many", "b", 0)
	}
	require.Len(t, c.Do("GETJOB", "COUNT", 3, "WORKER", "all", "FROM", "many").Elems, 3)
	for _, p := range wip(t, c, "many") {
		assert.Equal(t, "all", p.worker)
	}
	d.Send("GETJOB", "WORKER", "patient", "FROM", "later")
	harness.Await(t, 5*time.Second, "the client to wait", func() bool { return s.Info("jobmesh", "jobmesh_blocked_clients") == "1" })
	add(t, c, "later", "b", 0)
	require.Len(t, d.Receive().Elems, 1)
	assert.Equal(t, "patient", wip(t, c, "later")[0].worker)

	for _, args := range [][]any{{"WORKER", "", "FROM", "q"}, {"WORKER", fmt.Sprintf("%256d", 1), "FROM", "q"}} {
		assert.Equal(t, "ERR WORKER must be a name of 1 to 255 bytes", c.Do(append([]any{"GETJOB"}, args...)...).Str)
	}
	assert.Equal(t, syntax, c.Do("GETJOB", "WORKER").Str)
}

// Jobs in clients' hands stay there over a restart, with their times and workers. After a crash
// that holds for the jobs whose delivery was logged. The others are queued at once.
func TestInProgressSurvives(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"aof-kill", "aof", "rdb"} {
		t.Run(mode, func(t *testing.T) {
			s := harness.Start(t, saving(mode))
			c := s.Dial()
			plain := add(t, c, "q", "plain", 0, "RETRY", 2)
			named := add(t, c, "q", "named", 0, "RETRY", 4)
			require.Len(t, c.Do("GETJOB", "NOHANG", "FROM", "q").Elems, 1)
			took := time.Now()
			require.Len(t, c.Do("GETJOB", "NOHANG", "WORKER", "ada", "FROM", "q").Elems, 1)
			time.Sleep(time.Second) // so that the remembered time differs from that of the restart
			comeBack(t, s, mode)
			c = s.Dial()
			list := wip(t, c, "q")
			if mode == "aof-kill" {
				require.Equal(t, []string{named}, ids(list), "deliveries are not logged, but with a worker's name")
				require.Equal(t, plain, get(t, c, "q"))
				took = time.Now()
			} else {
				require.Equal(t, []string{plain, named}, ids(list))
				assert.Equal(t, "", list[0].worker)
				near(t, took.Add(2*time.Second), list[0].due)
				near(t, took, list[0].since)
				list = list[1:]
			}
			assert.Equal(t, "ada", list[0].worker)
			assert.InDelta(t, list[0].due-4000, list[0].since, 1)
			require.Equal(t, int64(1), c.Do("ENQUEUE", named).Int())
			require.Equal(t, named, get(t, c, "q"), "put back by hand")
			v := c.Do("GETJOB", "TIMEOUT", 6000, "FROM", "q")
			require.Len(t, v.Elems, 1)
			assert.Equal(t, plain, v.Elems[0].Elems[1].Str, "by its retry time")
			near(t, took.Add(2*time.Second), time.Now().UnixMilli())
		})
	}
}

// When its time is over, a job is put back. While its queue is paused in input, the job stays with
// its worker, as overdue, and is put back when the pause ends.
func TestOverdue(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	late := add(t, c, "q", "late", 0, "RETRY", 1)
	add(t, c, "q", "not yet", 0, "RETRY", 100)
	took := time.Now()
	require.Len(t, c.Do("GETJOB", "COUNT", 2, "FROM", "q").Elems, 2)
	require.Equal(t, "in", c.Do("PAUSE", "q", "in").Str)
	harness.Await(t, 5*time.Second, "it to be overdue", func() bool { return s.Info("jobmesh", "jobmesh_jobs_overdue") == "1" })
	time.Sleep(1500 * time.Millisecond) // longer than the retry time, once more
	list := wip(t, c, "q", "OVERDUE")
	require.Equal(t, []string{late}, ids(list))
	near(t, took.Add(time.Second), list[0].due)
	near(t, took, list[0].since)
	assert.Equal(t, int64(1), c.Do("QSTAT", "q").Field("overdue").Int())
	assert.Equal(t, int64(2), c.Do("QSTAT", "q").Field("in-progress").Int())
	require.Equal(t, "none", c.Do("PAUSE", "q", "none").Str)
	harness.Await(t, 5*time.Second, "it to be put back", func() bool { return state(c, late) == "queued" })
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_jobs_overdue"))
	assert.Equal(t, int64(1), c.Do("SHOW", late).Field("additional-deliveries").Int(), "counted, never merely forgotten")

	// Renamed or deleted meanwhile.
	require.Equal(t, late, get(t, c, "q"))
	c.Do("PAUSE", "q", "in")
	harness.Await(t, 5*time.Second, "it to be overdue", func() bool { return s.Info("jobmesh", "jobmesh_jobs_overdue") == "1" })
	c.Do("RENAME", "q", "p") // the pause is of the former name
	harness.Await(t, 5*time.Second, "it to be put back", func() bool { return state(c, late) == "queued" })
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_jobs_overdue"))
	require.Equal(t, late, get(t, c, "p"))
	c.Do("PAUSE", "p", "in")
	harness.Await(t, 5*time.Second, "it to be overdue", func() bool { return s.Info("jobmesh", "jobmesh_jobs_overdue") == "1" })
	assert.Equal(t, []string{late}, ids(wip(t, c, "p", "OVERDUE")))
	assert.Equal(t, int64(10), c.Do("WORKING", late).Int()*10)
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_jobs_overdue"), "who is late and says so has time again")
	c.Do("DEL", "p")
	assert.Equal(t, "0", inProgress(s))
}

func TestWIPErrors(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	c.Do("SET", "s", "x")
	for want, args := range map[string][]any{
		"ERR wrong number of arguments for 'wip' command": {},
		syntax:                              {"q", "LATE"},
		"ERR COUNT must be between 1 and 1": {"q", "COUNT", 0},
		"ERR COUNT must be between 1 and 1000000, with MESH 1000":           {"q", "COUNT", 1001, "MESH"},
		"ERR TIMEOUT is for MESH: nobody else is asked without":             {"q", "TIMEOUT", 5},
		"ERR timeout is negative":                                           {"q", "MESH", "TIMEOUT", -1},
		"ERR timeout is not an integer or out of range":                     {"q", "MESH", "TIMEOUT", "x"},
		"WRONGTYPE Operation against a key holding the wrong kind of value": {"s"},
	} {
		v := c.Do(append([]any{"WIP"}, args...)...)
		assert.True(t, v.Err(want), "%v: %v", args, v)
	}
	// A node alone has nobody to ask.
	id := add(t, c, "q", "b", 0)
	get(t, c, "q")
	v := c.Do("WIP", "q", "MESH")
	require.Len(t, v.Field("jobs").Elems, 1)
	assert.Equal(t, id, v.Field("jobs").Elems[0].Elems[0].Str)
	assert.Equal(t, c.Do("JOBMESH", "CLUSTER", "MYID").Str, v.Field("jobs").Elems[0].Elems[5].Str)
	assert.Empty(t, v.Field("unanswered").Elems)
	c.Do("MULTI")
	c.Do("WIP", "q", "MESH")
	c.Do("WIP", "q")
	v = c.Do("EXEC")
	assert.True(t, v.Elems[0].Err("ERR MESH has to wait"), "%v", v)
	assert.Len(t, v.Elems[1].Elems, 1)
}

// Very many jobs are in progress. WIP costs as much as the jobs that it lists.
func TestWIPOfMany(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	const many = 20_000
	for i := range many {
		c.Later("ADDJOB", "q", "b", 0, "RETRY", strconv.Itoa(1000+i%100))
	}
	for range many {
		c.Receive()
	}
	require.Len(t, c.Do("GETJOB", "COUNT", many, "FROM", "q").Elems, many)
	list := wip(t, c, "q", "COUNT", many)
	require.Len(t, list, many)
	for i := 1; i < many; i++ {
		require.LessOrEqual(t, list[i-1].due, list[i].due)
	}
	assert.Len(t, wip(t, c, "q"), 100)
}
