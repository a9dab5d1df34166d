package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func added(t *testing.T, c *harness.Conn, args ...any) string {
	t.Helper()
	v := c.Do(append([]any{"ADDJOB"}, args...)...)
	require.Equal(t, byte('+'), v.Kind, "%v: %v", args, v)
	return v.Str
}

func fetched(t *testing.T, c *harness.Conn, queue string) string {
	t.Helper()
	v := c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", queue)
	require.Len(t, v.Elems, 1)
	return v.Elems[0].Elems[1].Str
}

func stateAt(s *harness.Server, id string) string { return s.Do("SHOW", id).Field("state").Str }

// others returns the nodes that hold a job, and those that don't. It leaves out the node but.
func (m mesh) others(id string, but *harness.Server) (with, without mesh) {
	for _, s := range m {
		switch {
		case s == but:
		case s.Do("SHOW", id).Null:
			without = append(without, s)
		default:
			with = append(with, s)
		}
	}
	return with, without
}

// WIP … MESH asks all nodes, shows each job once, and names the nodes that didn't answer.
func TestWIPOfTheMesh(t *testing.T) {
	m := start(t, 3)
	var want []string
	for i, s := range m {
		id := added(t, s.Dial(), "q", "b", 2000, "RETRY", 100+i, "REPLICATE", 3)
		require.Equal(t, id, s.Do("GETJOB", "WORKER", fmt.Sprint("worker", i), "FROM", "q").Elems[0].Elems[1].Str)
		want = append(want, id)
	}
	// Two nodes both have it in progress: it is with the one that expects its result last.
	require.Equal(t, int64(100), m[1].Do("WORKING", want[0]).Int())
	var v harness.Value
	var jobs []harness.Value
	with := m[1].Do("JOBMESH", "CLUSTER", "MYID").Str
	harness.Await(t, 5*time.Second, "the first job to be with the one that said WORKING", func() bool { // the others may not have heard yet
		v = m[2].Do("WIP", "q", "MESH")
		jobs = v.Field("jobs").Elems
		return len(jobs) == 3 && jobs[0].Elems[5].Str == with
	})
	assert.Empty(t, v.Field("unanswered").Elems)
	for i, e := range jobs {
		assert.Equal(t, want[i], e.Elems[0].Str)
	}
	assert.Equal(t, "worker1", jobs[1].Elems[4].Str)
	assert.InDelta(t, time.Now().Add(102*time.Second).UnixMilli(), jobs[2].Elems[1].Int(), 3000)
	assert.Len(t, m[0].Do("WIP", "q", "MESH", "COUNT", 1).Field("jobs").Elems, 1)
	assert.Empty(t, m[0].Do("WIP", "q", "MESH", "OVERDUE").Field("jobs").Elems)

	// A node that is stopped doesn't answer. A node that is dead isn't asked.
	stopped, dead := with, m[0].Do("JOBMESH", "CLUSTER", "MYID").Str
	m[1].Pause()
	began := time.Now()
	v = m[2].Do("WIP", "q", "MESH", "TIMEOUT", 300)
	harness.Took(t, began, 300*time.Millisecond)
	assert.Equal(t, []string{stopped}, v.Field("unanswered").Strings())
	m[1].Resume()
	m[0].Kill()
	harness.Await(t, 10*time.Second, "it to be missed", func() bool {
		return slices.Contains(m[2].Do("WIP", "q", "MESH", "TIMEOUT", 5000).Field("unanswered").Strings(), dead)
	})
}

// A deferred job is released at one node, and acknowledged at another. The jobs that it blocks are
// queued then, each once.
func TestFamilyOverNodes(t *testing.T) {
	m := start(t, 3)
	d := added(t, m[0].Dial(), "d", "d", 2000, "DEFERRED", "REPLICATE", 3)
	var all []string
	for i := range 6 {
		all = append(all, added(t, m[i%3].Dial(), "q", "b", 2000, "BLOCKEDBY", d))
	}
	for _, s := range m {
		assert.Equal(t, "deferred", stateAt(s, d))
		assert.Equal(t, "blocked", stateAt(s, all[0]))
	}
	assert.Equal(t, int64(3), m[1].Do("RELEASEJOB", d).Int(), "all three know of it when it is answered")
	assert.True(t, m[2].Do("RELEASEJOB", d).Err("NOTDEFERRED"))
	require.Equal(t, d, fetched(t, m[2].Dial(), "d"))
	for _, s := range m {
		assert.Equal(t, int64(0), s.Do("QLEN", "q").Int())
	}
	require.Equal(t, int64(1), m[0].Do("ACKJOB", d).Int())
	harness.Await(t, 5*time.Second, "all to be queued, each once", func() bool {
		return m[0].Do("QLEN", "q").Int()+m[1].Do("QLEN", "q").Int()+m[2].Do("QLEN", "q").Int() == 6
	})
	time.Sleep(300 * time.Millisecond) // in which another node might queue one of them again
	assert.Equal(t, int64(6), m[0].Do("QLEN", "q").Int()+m[1].Do("QLEN", "q").Int()+m[2].Do("QLEN", "q").Int())
	assert.Equal(t, int64(6), m[0].Do("QLEN", "q").Int(), "where the acknowledgement was given")
	c := m[0].Dial()
	for _, id := range all {
		require.Equal(t, id, fetched(t, c, "q"))
		c.Do("ACKJOB", id)
	}
	m.awaitNoJobs(t)

	// LAST.
	d = added(t, m[0].Dial(), "d", "d", 2000, "DEFERRED", "REPLICATE", 3)
	a, b := added(t, m[1].Dial(), "q", "a", 2000, "BLOCKEDBY", d), added(t, m[2].Dial(), "q", "b", 2000, "BLOCKEDBY", d)
	require.Equal(t, int64(3), m[0].Do("RELEASEJOB", d, "LAST", "QUEUE", "d2").Int())
	require.Equal(t, []string{a, b}, []string{fetched(t, c, "q"), fetched(t, c, "q")})
	require.Equal(t, int64(1), m[1].Do("ACKJOB", a).Int())
	time.Sleep(300 * time.Millisecond) // in which a node might unblock it
	for _, s := range m {
		assert.Equal(t, "blocked", stateAt(s, d))
		assert.Equal(t, "d2", s.Do("SHOW", d).Field("queue").Str)
	}
	require.Equal(t, int64(1), m[2].Do("ACKJOB", b).Int())
	require.Equal(t, d, fetched(t, m[1].Dial(), "d2"))
	m[0].Do("ACKJOB", d)
	m.awaitNoJobs(t)

	// Cancelled at one node, gone at all.
	d = added(t, m[0].Dial(), "d", "d", 2000, "DEFERRED", "REPLICATE", 3)
	added(t, m[1].Dial(), "q", "a", 2000, "BLOCKEDBY", d)
	run := added(t, m[2].Dial(), "q", "b", 2000, "AFTER", d, "ONDEAD", "run")
	require.Equal(t, int64(2), m[1].Do("CANCELJOB", d).Int())
	require.Equal(t, run, fetched(t, m[1].Dial(), "q"))
	m[0].Do("ACKJOB", run)
	m.awaitNoJobs(t)
}

// A job waits for two that are acknowledged at one moment, at two nodes. It comes at once, or
// when the nodes have told each other, and not with its retry time.
func TestDependentOfJobsThatEndAtTwoNodesAtOnce(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for i := range 20 {
		one := added(t, m[0].Dial(), "q", "1", 2000, "REPLICATE", 3)
		two := added(t, m[0].Dial(), "q", "2", 2000, "REPLICATE", 3)
		child := added(t, m[0].Dial(), "child", "b", 2000, "AFTER", one, two, "REPLICATE", 3)
		a, b := m[i%3].Dial(), m[(i+1)%3].Dial()
		a.Send("ACKJOB", one)
		b.Send("ACKJOB", two)
		require.Equal(t, int64(1), a.Receive().Int())
		require.Equal(t, int64(1), b.Receive().Int())
		v := m[2].Dial().Do("GETJOB", "TIMEOUT", 10_000, "FROM", "child")
		require.Len(t, v.Elems, 1, "round %d: %v", i, v)
		require.Equal(t, child, v.Elems[0].Elems[1].Str)
		m[2].Do("ACKJOB", child)
	}
	m.awaitNoJobs(t)
}

// CANCELJOB at a node that has no copy of the job reaches the nodes that have one. There the jobs
// that depend on it are cancelled too.
func TestCancelledWhereNoCopyIs(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for _, opt := range [][]any{{"RETRY", 60}, {"RETRY", 0}, {"RETRY", 0, "DELAY", 600}, {"RETRY", 60, "DEFERRED"}, {"RETRY", 0, "DEFERRED"}} {
		opt = append([]any{"REPLICATE", 1}, opt...)
		job := added(t, m[0].Dial(), append([]any{"q", "b", 2000}, opt...)...)
		run := added(t, m[0].Dial(), "after", "b", 2000, "REPLICATE", 1, "AFTER", job, "ONDEAD", "run")
		added(t, m[0].Dial(), "after", "b", 2000, "REPLICATE", 1, "AFTER", job)
		if opt[len(opt)-1] == "DEFERRED" {
			added(t, m[0].Dial(), "after", "b", 2000, "REPLICATE", 1, "BLOCKEDBY", job, "RETRY", opt[3])
		}
		require.Equal(t, int64(0), m[2].Do("CANCELJOB", job).Int(), "%v", opt)
		require.Equal(t, run, fetched(t, m[0].Dial(), "after"), "%v", opt)
		m[0].Do("ACKJOB", run)
		m.awaitNoJobs(t)
	}
}

// A node refuses commands on a deferred job that it doesn't hold. A blocked job is refused
// unless each node that holds the deferred one takes a copy.
func TestFamilyRefusals(t *testing.T) {
	m := start(t, 3, "appendonly yes", "appendfsync always")
	c := m[0].Dial()
	d := added(t, c, "d", "d", 2000, "DEFERRED", "REPLICATE", 2)
	with, without := m.others(d, m[0])
	require.Len(t, without, 1)
	for _, args := range [][]any{{"BLOCKEDBY", d}, {"AFTER", d}} {
		v := without[0].Do(append([]any{"ADDJOB", "q", "b", 2000}, args...)...)
		assert.True(t, v.Err("NOJOB no job "+d), "%v", v)
	}
	assert.True(t, without[0].Do("RELEASEJOB", d).Err("NOJOB"))
	assert.True(t, c.Do("ADDJOB", "q", "b", 2000, "BLOCKEDBY", d, "RETRY", 0, "REPLICATE", 1).Err("ERR a blocked job has to be on all nodes"))
	b := added(t, c, "q", "b", 2000, "BLOCKEDBY", d, "REPLICATE", 1)
	assert.False(t, with[0].Do("SHOW", b).Null, "it is where the other is, whatever it was told")
	assert.True(t, without[0].Do("SHOW", b).Null)
	with[0].Kill()
	harness.Await(t, 10*time.Second, "it to be missed", func() bool {
		return c.Do("ADDJOB", "q", "b", 200, "BLOCKEDBY", d).Err("NOREPL")
	})
	// The node may also know refused jobs, since it has to tell the other one that their copies are gone.
	// These are in no queue.
	assert.Len(t, c.Do("JSCAN", 0, "COUNT", 1000, "BUSYLOOP", "QUEUE", "q").Elems[1].Elems, 1)
	require.Equal(t, int64(1), c.Do("RELEASEJOB", d).Int(), "one node knows of it; the other is told when it is back")
	with[0].Restart()
	harness.Await(t, 10*time.Second, "the other to be told", func() bool { return stateAt(with[0], d) == "active" })
}

// A family of a thousand on three nodes with REPLICATE 2 survives the death of the node where it
// was made: just created, released, half acknowledged.
func TestFamilyOfAThousand(t *testing.T) {
	const size = 1000
	for _, phase := range []string{"created", "released", "half"} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			m := start(t, 3)
			c := m[0].Dial()
			var d string
			harness.Await(t, 20*time.Second, "a job at two nodes: where one is slow to answer, the third is asked for a copy too", func() bool {
				d = added(t, c, "d", "d", 2000, "DEFERRED", "REPLICATE", 2, "RETRY", 2)
				if len(c.Do("SHOW", d).Field("nodes-delivered").Elems) == 2 {
					return true
				}
				c.Do("CANCELJOB", d)
				return false
			})
			var all []string
			for range size {
				c.Send("ADDJOB", "q", "b", 5000, "BLOCKEDBY", d, "REPLICATE", 2, "RETRY", 2)
				v := c.Receive()
				require.Equal(t, byte('+'), v.Kind, "%v", v)
				all = append(all, v.Str)
			}
			after := added(t, c, "last", "b", 5000, "AFTER", all[0], all[size-1], "RETRY", 2)
			with, _ := m.others(d, m[0])
			require.Len(t, with, 1)
			other := with[0]
			assert.Equal(t, "blocked", stateAt(other, all[size-1]))
			seen := map[string]bool{}
			work := func(s *harness.Server, most int) {
				w := s.Dial()
				end := time.Now().Add(60 * time.Second)
				for len(seen) < most {
					require.True(t, time.Now().Before(end), "%d of %d", len(seen), most)
					// On a slow machine the second copy of some is at the third node: a client that waits asks there.
					got := w.Do("GETJOB", "TIMEOUT", 500, "COUNT", 50, "FROM", "q").Elems
					for _, e := range got {
						id := e.Elems[1].Str
						require.Contains(t, all, id)
						w.Later("ACKJOB", id)
						seen[id] = true
					}
					for range got {
						w.Receive()
					}
				}
			}
			first := func(s *harness.Server) {
				assert.Equal(t, int64(0), s.Do("QLEN", "q").Int())
				require.Equal(t, d, fetched(t, s.Dial(), "d"))
				assert.Equal(t, int64(0), s.Do("QLEN", "q").Int())
				require.Equal(t, int64(1), s.Do("ACKJOB", d).Int())
			}
			switch phase {
			case "created":
				m[0].Kill()
				require.Equal(t, int64(1), other.Do("RELEASEJOB", d).Int())
				first(other)
			case "released":
				require.Equal(t, int64(2), c.Do("RELEASEJOB", d).Int())
				m[0].Kill()
				first(other)
			case "half":
				require.Equal(t, int64(2), c.Do("RELEASEJOB", d).Int())
				first(m[0])
				work(m[0], size/2)
				m[0].Kill()
			}
			work(other, size)
			require.Equal(t, after, fetched(t, other.Dial(), "last"))
			require.Equal(t, int64(1), other.Do("ACKJOB", after).Int())
		})
	}
}

// A job blocks very many. Its release unblocks them in slices, at each node that holds them, the last
// ones some slices later. None is left out, and the job itself comes last.
func TestReleaseLastOfVeryManyOverTheMesh(t *testing.T) {
	t.Parallel()
	const many = 1500
	m := start(t, 2)
	c := m[0].Dial()
	d := added(t, c, "d", "d", 5000, "DEFERRED", "REPLICATE", 2)
	var all []string
	for range many {
		c.Later("ADDJOB", "q", "b", 5000, "BLOCKEDBY", d, "REPLICATE", 2)
	}
	for range many {
		v := c.Receive()
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		all = append(all, v.Str)
	}
	require.Equal(t, int64(2), c.Do("RELEASEJOB", d, "LAST").Int())
	require.Equal(t, int64(many), c.Do("QLEN", "q").Int())
	seen := 0
	for seen < many {
		v := c.Do("GETJOB", "TIMEOUT", 10_000, "COUNT", 100, "FROM", "q")
		require.NotEmpty(t, v.Elems)
		for _, e := range v.Elems {
			require.Equal(t, all[seen], e.Elems[1].Str)
			seen++
			c.Send("ACKJOB", e.Elems[1].Str)
		}
		for range v.Elems {
			require.Equal(t, int64(1), c.Receive().Int())
		}
		if seen < many {
			require.Equal(t, "blocked", stateAt(m[0], d))
		}
	}
	require.Equal(t, d, fetched(t, c, "d"))
	require.Equal(t, int64(1), c.Do("ACKJOB", d).Int())
}

// The end of a job that has one copy is told to the nodes where another job waits for it. So they know
// it even if the only node that could tell is killed.
func TestParentsNodeIsKilled(t *testing.T) {
	for _, ack := range []string{"ACKJOB", "FASTACK"} {
		t.Run(ack, func(t *testing.T) {
			t.Parallel()
			m := start(t, 3, "appendonly yes", "appendfsync always")
			c := m[0].Dial()
			one := added(t, c, "p", "b", 2000, "REPLICATE", 1)
			all := added(t, c, "p", "b", 2000, "REPLICATE", 3)
			child := added(t, c, "q", "b", 2000, "REPLICATE", 3, "RETRY", 2, "AFTER", one, "AFTER", all)
			require.Equal(t, int64(1), c.Do(ack, one).Int())
			m[0].Kill()
			m[0].Restart()
			m.await(t, 3)
			for _, s := range m {
				harness.Await(t, 20*time.Second, "the end to be known", func() bool {
					v := s.Do("SHOW", child)
					require.False(t, v.Null, "it was dropped")
					return !slices.Contains(v.Field("waits-for").Strings(), one)
				})
			}
			m[0].Kill()
			require.Equal(t, int64(1), m[1].Do("ACKJOB", all).Int())
			require.Equal(t, child, fetched(t, m[1].Dial(), "q"))
		})
	}
}
