package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// addCopies adds a job that copies nodes hold. Its retry time is the default, five minutes.
func addCopies(t *testing.T, s *harness.Server, copies int) string {
	t.Helper()
	v := s.Do("ADDJOB", "q", "body", 5000, "REPLICATE", copies)
	require.Equal(t, byte('+'), v.Kind, "%v", v)
	return v.Str
}

// taken fetches a job. It waits for as long as a restart may put the job off.
func taken(t *testing.T, s *harness.Server) string {
	t.Helper()
	v := s.Do("GETJOB", "TIMEOUT", 10000, "FROM", "q")
	require.Len(t, v.Elems, 1, "no job")
	return v.Elems[0].Elems[1].Str
}

// All nodes of a mesh are restarted: each job is queued where it was, once, uncounted.
func TestMeshIsRestarted(t *testing.T) {
	for _, kill := range []bool{false, true} {
		t.Run("kill "+strconv.FormatBool(kill), func(t *testing.T) {
			t.Parallel()
			m := start(t, 3, "appendonly yes", "appendfsync always")
			id := addCopies(t, m[0], 3)
			alone := addCopies(t, m[1], 1)
			for _, s := range m {
				if kill {
					s.Kill()
				} else {
					s.Stop()
				}
			}
			for _, s := range m {
				s.Restart()
			}
			assert.Equal(t, "queued", stateAt(m[1], alone), "no other node has it: at once")
			harness.Await(t, 10*time.Second, "the job to be queued", func() bool { return stateAt(m[0], id) == "queued" })
			assert.Equal(t, int64(0), m[0].Do("SHOW", id).Field("additional-deliveries").Int())
			m.await(t, 3)
			require.Equal(t, id, taken(t, m[0]))
			for _, s := range m[1:] {
				assert.Equal(t, "active", stateAt(s, id), "queued once")
			}
			assert.Equal(t, int64(1), m[2].Do("ACKJOB", id).Int())
			assert.Equal(t, int64(1), m[1].Do("ACKJOB", alone).Int())
			m.awaitNoJobs(t)
		})
	}
}

// waits makes a client wait for a job at a node, and returns its connection.
func waits(t *testing.T, at *harness.Server) *harness.Conn {
	t.Helper()
	client := at.Dial()
	client.Send("GETJOB", "FROM", "q")
	harness.Await(t, 5*time.Second, "the client to wait", func() bool { return at.Info("jobmesh", "jobmesh_blocked_clients") == "1" })
	return client
}

// handedOver adds a job at one node, which hands it over to another. The job waits there, since the client
// for which that node asked has gone.
func handedOver(t *testing.T, from, to *harness.Server) (id string) {
	t.Helper()
	waits(t, to).Close()
	harness.Await(t, 5*time.Second, "the client to be gone", func() bool { return to.Info("jobmesh", "jobmesh_blocked_clients") == "0" })
	var ids []string
	harness.Await(t, 20*time.Second, "a job to be handed over", func() bool {
		if len(ids) == 0 || stateAt(from, ids[len(ids)-1]) == "queued" { // from didn't know yet that the other node asks
			ids = append(ids, addCopies(t, from, 2))
		}
		for _, id = range ids {
			if stateAt(to, id) == "queued" {
				return true
			}
		}
		return false
	})
	return id
}

// A job that was handed over waits at the node that took it. After that node's restart it waits there
// again at once, even if the node that handed it over was killed too.
func TestHandedOverJobsWaitAfterARestart(t *testing.T) {
	for _, both := range []bool{false, true} {
		for _, kill := range []bool{false, true} {
			t.Run(fmt.Sprintf("both %v, kill %v", both, kill), func(t *testing.T) {
				t.Parallel()
				m := start(t, 3, "appendonly yes", "appendfsync always")
				a, c := m[0], m[2]
				id := handedOver(t, a, c)
				ended := []*harness.Server{c}
				if both {
					ended = append(ended, a)
				}
				for _, s := range ended {
					if kill {
						s.Kill()
					} else {
						s.Stop()
					}
				}
				for _, s := range ended {
					s.Restart()
				}
				harness.Await(t, 20*time.Second, "the job to be queued", func() bool { return stateAt(c, id) == "queued" })
				assert.Equal(t, "active", stateAt(a, id))
			})
		}
	}
}

// A node that was down learns what happened to a job elsewhere meanwhile: the job is in a queue,
// in a client's hands, or done.
func TestHoldersAreAskedAfterARestart(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, id string, b *harness.Server)
		done      bool
	}{
		"queued": {func(t *testing.T, id string, b *harness.Server) {
			require.Equal(t, int64(1), b.Do("ENQUEUE", id).Int())
		}, false},
		"in somebody's hands": {func(t *testing.T, id string, b *harness.Server) {
			require.Equal(t, int64(1), b.Do("ENQUEUE", id).Int())
			require.Equal(t, id, taken(t, b))
		}, false},
		"done": {func(t *testing.T, id string, b *harness.Server) {
			require.Equal(t, int64(1), b.Do("ACKJOB", id).Int())
		}, true},
	} {
		for _, end := range []string{"SHUTDOWN", "kill"} {
			t.Run(name+", "+end, func(t *testing.T) {
				t.Parallel()
				m := start(t, 3, "appendonly yes")
				id := addCopies(t, m[0], 3)
				harness.Await(t, 5*time.Second, "the log to be written", func() bool {
					return m[0].Info("persistence", "aof_pending_bio_fsync") == "0"
				})
				if end == "kill" {
					m[0].Kill()
				} else {
					m[0].Stop()
				}
				c.meanwhile(t, id, m[1])
				m[0].Restart()
				v := m[0].Do("GETJOB", "TIMEOUT", 3000, "FROM", "q")
				if name == "queued" && len(v.Elems) > 0 {
					// The other node has handed it over, and doesn't have it in its queue any more.
					assert.Equal(t, "active", stateAt(m[1], id))
				} else {
					assert.Empty(t, v.Elems, "it must not be delivered here")
				}
				if c.done {
					m.awaitNoJobs(t)
					return
				}
				assert.Equal(t, int64(0), m[0].Do("SHOW", id).Field("nacks").Int())
				assert.Equal(t, int64(1), m[2].Do("ACKJOB", id).Int())
				m.awaitNoJobs(t)
			})
		}
	}
}

// A node doesn't wait for the answers of holders that are down.
func TestHoldersThatAreAwayAreNotWaitedFor(t *testing.T) {
	m := start(t, 3, "appendonly yes")
	id := addCopies(t, m[0], 3)
	for _, s := range m {
		s.Stop()
	}
	m[0].Restart()
	began := time.Now()
	require.Equal(t, id, taken(t, m[0]))
	assert.Less(t, time.Since(began), 5*time.Second)
	assert.Equal(t, int64(0), m[0].Do("SHOW", id).Field("additional-deliveries").Int())
}

// Very many jobs are asked about at a rate, the oldest first, while the node serves.
func TestManyJobsComeBack(t *testing.T) {
	const jobs = 20_000
	m := start(t, 2, "appendonly yes")
	c := m[0].Dial()
	for range jobs / 1000 {
		for range 1000 {
			c.Later("ADDJOB", "q", "body", 0, "REPLICATE", 2, "ASYNC")
		}
		for range 1000 {
			require.Equal(t, byte('+'), c.Receive().Kind)
		}
	}
	harness.Await(t, 20*time.Second, "the copies", func() bool { return m[1].Info("jobmesh", "jobmesh_registered_jobs") == strconv.Itoa(jobs) })
	m[0].Stop()
	m[0].Restart()
	began := time.Now()
	harness.Await(t, 20*time.Second, "all to be queued", func() bool { return m[0].Do("QLEN", "q").Int() == jobs })
	assert.Greater(t, time.Since(began), jobs/40*time.Millisecond, "not all at once")
	sent, err := strconv.Atoi(m[0].Info("jobmesh", "jobmesh_messages_sent"))
	require.NoError(t, err)
	assert.Less(t, sent, 3*jobs)
	assert.Equal(t, int64(0), m[1].Do("QLEN", "q").Int())
}

// A dump from before a job left for another node doesn't make it come twice.
func TestRestoreOfWhatWasHandedOver(t *testing.T) {
	m := start(t, 2)
	id := m[0].Do("ADDJOB", "q", "body", 0, "RETRY", 0, "REPLICATE", 1).Str
	dump := m[0].Do("DUMP", "q").Str
	require.Equal(t, id, taken(t, m[1]))
	harness.Await(t, 5*time.Second, "the job to have moved", func() bool { return m[0].Do("SHOW", id).Null })
	require.Equal(t, "OK", m[0].Do("RESTORE", "q", 0, dump, "REPLACE").Str)
	assert.Equal(t, "active", stateAt(m[0], id))
	assert.Equal(t, "maybe", m[0].Do("SHOW", id).Field("delivered").Str)
	assert.True(t, m[0].Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
}

// A node whose log was cut by hand may have lost votes that it gave. It gives none until it knows
// the others' votes.
func TestVotesOfALogThatWasCut(t *testing.T) {
	m := start(t, 2, "appendonly yes", "appendfsync always")
	before := len(m[1].Appended())
	require.Positive(t, m[0].Do("LOCK.ACQUIRE", "l", "ann", 600_000).Int())
	m[1].AwaitMark()
	for _, s := range m {
		s.Kill()
	}
	logs, err := filepath.Glob(filepath.Join(m[1].Dir, "appendonlydir", "*.incr.aof"))
	require.NoError(t, err)
	require.Len(t, logs, 1)
	require.NoError(t, os.Truncate(logs[0], int64(before)))
	m[1].Restart()
	assert.Equal(t, "yes", m[1].Info("jobmesh", "jobmesh_locks_abstaining"))
	harness.Await(t, 5*time.Second, "the log to say so", func() bool {
		return strings.Contains(m[1].Log(), "this node doesn't vote for locks: it may have lost votes that it gave")
	})
	assert.Contains(t, m[1].Log(), "bytes, and had")
	m[0].Restart()
	assert.Equal(t, "no", m[0].Info("jobmesh", "jobmesh_locks_abstaining"), "its log is whole")
	harness.Await(t, 10*time.Second, "it to have heard", func() bool { return m[1].Info("jobmesh", "jobmesh_locks_abstaining") == "no" })
	m.await(t, 2)
	assert.True(t, m[1].Do("LOCK.ACQUIRE", "l", "bob", 600_000).NullString(), "ann has it")
}

// A job was handed over to a node that was killed before it had read the job. The job is queued when
// that node is back, and not only after its retry time.
func TestHandedOverJobThatDidNotArrive(t *testing.T) {
	t.Parallel()
	m := start(t, 2, "appendonly yes", "appendfsync always")
	a, c := m[0], m[1]
	var id string
	for again := true; again; again = !c.Do("SHOW", id).Null { // it was read before c stood still
		waits(t, c)
		harness.Await(t, 20*time.Second, "a job to be handed over", func() bool {
			c.Pause()
			id = addCopies(t, a, 1)
			if stateAt(a, id) == "active" {
				return true
			}
			c.Resume() // a hadn't heard yet that c asks
			harness.Await(t, 20*time.Second, "that job to be handed over", func() bool { return stateAt(c, id) == "active" })
			waits(t, c)
			return false
		})
		c.Kill()
		c.Restart()
	}
	at := a
	harness.Await(t, 20*time.Second, "the job to be queued", func() bool {
		if stateAt(c, id) == "queued" {
			at = c // it was handed over once more
		}
		return stateAt(at, id) == "queued"
	})
	assert.Equal(t, int64(0), at.Do("SHOW", id).Field("additional-deliveries").Int())
}

// A job was handed over, and a client works on it. The node that handed it over is restarted. Before it has asked the others,
// DEBUG RELOAD makes it load its data once more. It asks all the same, and leaves the job to the client.
func TestReloadWhileHoldersAreAsked(t *testing.T) {
	t.Parallel()
	m := start(t, 2, "appendonly yes", "enable-debug-command yes")
	a, c := m[0], m[1]
	id := handedOver(t, a, c)
	require.Equal(t, id, taken(t, c))
	a.Stop()
	a.Restart()
	harness.Await(t, 10*time.Second, "the node to ask soon", func() bool {
		v := a.Do("SHOW", id).Field("next-requeue-within").Int()
		return v > 0 && v < 5000
	})
	require.Equal(t, "OK", a.Do("DEBUG", "RELOAD").Str)
	assert.Never(t, func() bool { return stateAt(a, id) == "queued" }, 3*time.Second, 50*time.Millisecond)
}
