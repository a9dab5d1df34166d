package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// Clients ask at once for more at-most-once jobs than the bus takes for one node. No job is lost,
// and none comes twice.
func TestAtMostOnceJobsBeyondWhatTheBusTakes(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	const jobs, clients, size = 200, 100, 300_000
	for i := range jobs {
		body := fmt.Sprintf("%06d", i) + strings.Repeat("z", size)
		require.Equal(t, byte('+'), m[0].Do("ADDJOB", "q", body, 0, "RETRY", 0, "REPLICATE", 1).Kind)
	}
	var waiting []*harness.Conn
	for range clients {
		c := m[1].Dial()
		c.Send("GETJOB", "TIMEOUT", 20000, "FROM", "q")
		waiting = append(waiting, c)
	}
	got := map[string]int{}
	count := func(jobs []harness.Value) {
		for _, job := range jobs {
			got[job.Elems[2].Str[:6]]++
			assert.Len(t, job.Elems[2].Str, 6+size)
		}
	}
	for _, c := range waiting {
		count(c.Receive().Elems)
	}
	assert.NotEmpty(t, got, "some jobs cross")
	harness.Await(t, 20*time.Second, "the other jobs", func() bool {
		for _, s := range m {
			count(s.Do("GETJOB", "NOHANG", "COUNT", 10, "FROM", "q").Elems)
		}
		return len(got) == jobs
	})
	for body, times := range got {
		assert.Equal(t, 1, times, body)
	}
}

// A node that can't take a job says so, and the node that offered the job still has it.
func TestAtMostOnceJobThatIsDeclined(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	c := m[1].Dial()
	c.Send("GETJOB", "TIMEOUT", 8000, "FROM", "q")
	harness.Await(t, 5*time.Second, "the client to wait", func() bool { return m[1].Info("jobmesh", "jobmesh_blocked_clients") == "1" })
	require.Equal(t, "OK", m[1].Do("SET", "q", "not a queue").Str)
	id := m[0].Do("ADDJOB", "q", "body", 0, "RETRY", 0, "REPLICATE", 1).Str
	harness.Await(t, 5*time.Second, "the job to be offered", func() bool {
		return m[1].Info("jobmesh", "jobmesh_messages_received") != "0" && m[0].Do("SHOW", id).Field("state").Str == "queued"
	})
	v := m[0].Do("GETJOB", "TIMEOUT", 5000, "FROM", "q")
	require.Len(t, v.Elems, 1, "%v", v)
	assert.Equal(t, id, v.Elems[0].Elems[1].Str)
}

// Bodies of every size cross, up to the limit that an error names. A larger job stays where it is,
// for the clients there.
func TestLargeBodiesCross(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	for _, size := range []int{1 << 20, 3<<20 + 1, 20 << 20} {
		for _, retry := range []int{0, 60} {
			body := strings.Repeat(fmt.Sprintf("%07d ", size), size/8)
			c := m[1].Dial()
			c.Send("GETJOB", "TIMEOUT", 20000, "FROM", "q")
			harness.Await(t, 5*time.Second, "the client to wait", func() bool { return m[1].Info("jobmesh", "jobmesh_blocked_clients") == "1" })
			v := m[0].Do("ADDJOB", "q", body, 0, "RETRY", retry, "REPLICATE", 1)
			require.Equal(t, byte('+'), v.Kind, "%v", v)
			got := c.Receive()
			require.Len(t, got.Elems, 1, "%d bytes, RETRY %d", size, retry)
			require.Equal(t, v.Str, got.Elems[0].Elems[1].Str)
			require.True(t, got.Elems[0].Elems[2].Str == body, "the body is another")
			m[1].Do("ACKJOB", v.Str)
		}
		v := m[0].Do("ADDJOB", "two", strings.Repeat("x", size), 20000, "REPLICATE", 2)
		require.Equal(t, byte('+'), v.Kind, "%d bytes: %v", size, v)
		require.Equal(t, "active", m[1].Do("SHOW", v.Str).Field("state").Str)
		m[1].Do("ACKJOB", v.Str)
	}
	m.awaitNoJobs(t)

	tooBig := strings.Repeat("x", 66977792)
	v := m[0].Do("ADDJOB", "q", tooBig, 20000, "REPLICATE", 2)
	assert.True(t, v.Err("TOOBIG the body and the queue's name have more than 66977792 bytes"), "%.100s", v.Str)
	c := m[1].Dial()
	c.Send("GETJOB", "TIMEOUT", 20000, "FROM", "q")
	harness.Await(t, 5*time.Second, "the client to wait", func() bool { return m[1].Info("jobmesh", "jobmesh_blocked_clients") == "1" })
	for _, retry := range []int{0, 60} {
		id := m[0].Do("ADDJOB", "q", tooBig, 0, "RETRY", retry, "REPLICATE", 1).Str
		next := m[0].Do("ADDJOB", "q", "small", 0, "REPLICATE", 1).Str
		got := c.Receive()
		require.Len(t, got.Elems, 1)
		require.Equal(t, next, got.Elems[0].Elems[1].Str, "the job behind it crosses")
		got = m[0].Do("GETJOB", "NOHANG", "FROM", "q")
		require.Len(t, got.Elems, 1)
		require.Equal(t, id, got.Elems[0].Elems[1].Str, "its own node's clients get it")
		c.Send("GETJOB", "TIMEOUT", 20000, "FROM", "q")
	}
}

// stoppedTaker starts two nodes, and a client at the second one for each queue, so that this node asks
// the first one for a job of each queue. Then the second node is stopped, and the first one adds a job
// to each queue, and offers it.
func stoppedTaker(t *testing.T, sizes []int) (m mesh, clients []*harness.Conn, ids []string) {
	t.Helper()
	m = start(t, 2, "appendonly yes", "appendfsync always")
	for i := range sizes {
		c := m[1].Dial()
		c.Send("GETJOB", "TIMEOUT", 60000, "FROM", fmt.Sprint("q", i))
		clients = append(clients, c)
	}
	harness.Await(t, 5*time.Second, "the clients to wait", func() bool {
		return m[1].Info("jobmesh", "jobmesh_blocked_clients") == fmt.Sprint(len(sizes))
	})
	last := m[1].Dial()
	last.Send("GETJOB", "TIMEOUT", 20000, "FROM", "last")
	harness.Await(t, 5*time.Second, "the last client to wait", func() bool {
		return m[1].Info("jobmesh", "jobmesh_blocked_clients") == fmt.Sprint(len(sizes)+1)
	})
	id := m[0].Do("ADDJOB", "last", "", 0, "RETRY", 0, "REPLICATE", 1).Str
	got := last.Receive() // so the first node has read all earlier requests, too
	require.Len(t, got.Elems, 1)
	require.Equal(t, int64(1), m[1].Do("ACKJOB", id).Int())
	taker := m[1].Do("JOBMESH", "CLUSTER", "MYID").Str
	harness.Await(t, 5*time.Second, "the first job to be handed over", func() bool { return jobs(m[0]) == "0" })
	// The server reads all bodies before the node is stopped: a node offers nothing to one that it
	// hasn't heard for two heartbeats, and a slow machine needs longer than that for them.
	adder := m[0].Dial()
	require.Equal(t, "OK", adder.Do("MULTI").Str)
	for i, size := range sizes {
		body := fmt.Sprint(i, strings.Repeat(" ", size))
		require.Equal(t, "QUEUED", adder.Do("ADDJOB", fmt.Sprint("q", i), body, 0, "RETRY", 0, "REPLICATE", 1).Str)
	}
	m[1].Pause()
	for _, added := range adder.Do("EXEC").Elems {
		ids = append(ids, added.Str)
	}
	require.Len(t, ids, len(sizes))
	for _, id := range ids {
		require.Equal(t, taker, m[0].Do("SHOW", id).Field("offered-to").Str)
		require.Equal(t, int64(0), m[0].Do("ENQUEUE", id).Int(), "it is offered, and nobody else's")
	}
	return m, clients, ids
}

// A node ends, or loads its data anew, while it hands at-most-once jobs over to a node that
// doesn't answer just then. For some jobs the Offer has arrived there, for others it was lost
// with the connection. Each job is delivered once, and none is uncertain.
func TestTheGiverOfAtMostOnceJobsEnds(t *testing.T) {
	for name, end := range map[string]func(s *harness.Server){
		"kill":              func(s *harness.Server) { s.Kill() },
		"rewrite, and kill": func(s *harness.Server) { s.RewriteAOF(); s.Kill() },
		"shutdown":          func(s *harness.Server) { s.Stop() },
		"kill twice":        func(s *harness.Server) { s.Kill(); s.Restart(); s.AwaitLogged(); s.Kill() },
		"reload":            nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sizes []int
			for i := range 20 {
				sizes = append(sizes, 1_200_000*(i&1))
			}
			m, clients, ids := stoppedTaker(t, sizes)
			if end == nil {
				require.Equal(t, "OK", m[0].Do("DEBUG", "RELOAD").Str)
			} else {
				end(m[0])
				m[0].Restart()
			}
			m[1].Resume()
			for i, c := range clients {
				got := c.Receive()
				require.Len(t, got.Elems, 1, "queue %d", i)
				require.Equal(t, ids[i], got.Elems[0].Elems[1].Str)
				require.Len(t, got.Elems[0].Elems[2].Str, len(fmt.Sprint(i))+sizes[i])
			}
			m.await(t, 2)
			for i, id := range ids {
				harness.Await(t, 20*time.Second, "the job to be the other node's", func() bool { return m[0].Do("SHOW", id).Null })
				for _, s := range m {
					assert.Empty(t, s.Do("GETJOB", "NOHANG", "FROM", fmt.Sprint("q", i)).Elems, "it comes twice")
				}
				require.Equal(t, int64(1), m[1].Do("ACKJOB", id).Int())
			}
			assert.Equal(t, "0", m[0].Info("jobmesh", "jobmesh_jobs_uncertain_handing_over"))
			assert.NotContains(t, m[0].Log(), "RETRY 0")
		})
	}
}

// The node that at-most-once jobs are handed over to is killed before it answers. The jobs are
// uncertain then: the log, INFO and SHOW say so, and ENQUEUE queues them.
func TestTheTakerOfAtMostOnceJobsEnds(t *testing.T) {
	t.Parallel()
	m, _, ids := stoppedTaker(t, []int{100, 100_000})
	m[1].Kill()
	for _, id := range ids {
		require.Equal(t, int64(0), m[0].Do("ENQUEUE", id).Int(), "the node may have had it")
	}
	m[1].Restart()
	harness.Await(t, 10*time.Second, "the log to say so", func() bool {
		return strings.Contains(m[0].Log(), "2 jobs with RETRY 0 were being handed over")
	})
	assert.Equal(t, "2", m[0].Info("jobmesh", "jobmesh_jobs_uncertain_handing_over"))
	said := func() {
		t.Helper()
		for i, id := range ids {
			v := m[0].Do("SHOW", id)
			assert.Equal(t, "maybe", v.Field("delivered").Str)
			assert.Equal(t, m[1].Do("JOBMESH", "CLUSTER", "MYID").Str, v.Field("offered-to").Str)
			wip := m[0].Do("WIP", fmt.Sprint("q", i)).Elems
			require.Len(t, wip, 1)
			assert.Equal(t, id, wip[0].Elems[0].Str)
			assert.Equal(t, int64(0), wip[0].Elems[3].Int())
			assert.Empty(t, m[0].Do("GETJOB", "NOHANG", "FROM", fmt.Sprint("q", i)).Elems)
		}
	}
	said()
	m[0].Kill()
	m[0].Restart()
	m.await(t, 2)
	said()
	require.Equal(t, int64(1), m[0].Do("ENQUEUE", ids[0]).Int())
	got := m[0].Do("GETJOB", "NOHANG", "FROM", "q0")
	require.Len(t, got.Elems, 1)
	assert.Equal(t, ids[0], got.Elems[0].Elems[1].Str)
	assert.Zero(t, m[0].Do("SHOW", ids[0]).Field("offered-to").Kind, "not any more")
	require.Equal(t, int64(1), m[0].Do("DELJOB", ids[1]).Int())
}

// A job that was handed over still has its locks, also by the votes of its first node. That node
// doesn't lose its votes by a restart, so no other job gets the key.
func TestVotesOutliveTheirJobsCopyInTheLog(t *testing.T) {
	for name, end := range map[string]func(s *harness.Server){
		"kill":              func(s *harness.Server) { s.Kill() },
		"shutdown":          func(s *harness.Server) { s.Stop() },
		"rewrite, and kill": func(s *harness.Server) { s.RewriteAOF(); s.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := start(t, 3, "appendonly yes", "appendfsync always")
			m[2].Kill() // so the votes of the two others are all that there are
			add := func() harness.Value {
				return m[0].Do("ADDJOB", "q", "b", 1000, "UNIQUE", "until-processed", "KEY", "k", "RETRY", 0, "REPLICATE", 1)
			}
			var id string
			harness.Await(t, 10*time.Second, "the job to be added", func() bool {
				v := add()
				id = v.Str
				return v.Kind == '+'
			})
			v := m[1].Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
			require.Len(t, v.Elems, 1, "%v", v)
			require.Equal(t, id, v.Elems[0].Elems[1].Str)
			harness.Await(t, 10*time.Second, "the job to have moved", func() bool { return m[0].Do("SHOW", id).Null })
			show := func() harness.Value { return m[0].Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", "q") }
			require.Equal(t, id, show().Field("job").Str)
			end(m[0])
			m[0].Restart()
			require.Equal(t, "no", m[0].Info("jobmesh", "jobmesh_locks_abstaining"), "its log is whole")
			assert.Equal(t, id, show().Field("job").Str)

			m[1].Pause() // the client there works on
			m[2].Restart()
			harness.Await(t, 20*time.Second, "an answer that two nodes have a say in", func() bool {
				v = add()
				return v.Kind == '+' || strings.Contains(v.Str, ": 1 of 3 ")
			})
			assert.True(t, v.Err("NOQUORUM"), "the first node has voted for the first job: %v", v)
			m[1].Resume()
			require.Equal(t, int64(1), m[1].Do("ACKJOB", id).Int())
			harness.Await(t, 20*time.Second, "the key to be free", func() bool { return add().Kind == '+' })
		})
	}
}
