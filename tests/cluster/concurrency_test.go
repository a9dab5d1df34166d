package cluster

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// C2: never more than two jobs are in progress in the whole mesh, whichever node has them and the workers, and all are done.
func TestLifeC2(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	require.Equal(t, "OK", m[1].Do("QCONFIG", "SET", "q", "CONCURRENCY", 2).Str)
	for _, s := range m {
		c := s.Dial()
		harness.Await(t, 10*time.Second, "the setting to be known", func() bool { return c.Do("QCONFIG", "GET", "q").Field("concurrency").Str == "2" })
	}
	const jobs = 60
	for i := range jobs {
		added(t, m[i%3].Dial(), "q", fmt.Sprint(i), 5000, "REPLICATE", 1+i%3, "RETRY", 600)
	}
	var mutex sync.Mutex
	var workers sync.WaitGroup
	running, most, done := 0, 0, 0
	for i := range 10 {
		workers.Go(func() {
			c := m[i%3].Dial()
			for {
				mutex.Lock()
				over := done == jobs
				mutex.Unlock()
				if over {
					return
				}
				v := c.Do("GETJOB", "TIMEOUT", 1000, "FROM", "q")
				if v.NullArray() {
					continue
				}
				mutex.Lock()
				running++
				most = max(most, running)
				mutex.Unlock()
				time.Sleep(5 * time.Millisecond) // the work
				mutex.Lock()
				running--
				done++
				mutex.Unlock()
				c.Do("ACKJOB", v.Elems[0].Elems[1].Str)
			}
		})
	}
	workers.Wait()
	assert.LessOrEqual(t, most, 2)
	m.awaitNoJobs(t)
}

// C4: WORKING keeps the slot, at the node that delivered the job and at another one.
func TestLifeC4(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	m[0].Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
	harness.Await(t, 10*time.Second, "the setting to be known", func() bool { return m[1].Do("QCONFIG", "GET", "q").Field("concurrency").Str == "1" })
	c := m[0].Dial()
	first := added(t, c, "q", "1", 5000, "REPLICATE", 3, "RETRY", 10)
	require.Equal(t, first, c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q").Elems[0].Elems[1].Str)
	second := added(t, c, "q", "2", 5000, "REPLICATE", 1, "RETRY", 5)
	w := m[0].Dial()
	w.Send("GETJOB", "TIMEOUT", 60_000, "FROM", "q")
	for i := range 4 { // longer than its retry time in all
		at := m[i%2]
		harness.Await(t, 10*time.Second, "a part of its retry time to be over", func() bool { return at.Do("SHOW", first).Field("next-requeue-within").Int() < 7000 })
		require.True(t, w.Silent(time.Millisecond))
		require.EqualValues(t, 10, at.Do("WORKING", first).Int())
	}
	require.EqualValues(t, 1, m[1].Do("ACKJOB", first).Int())
	require.Equal(t, second, w.Receive().Elems[0].Elems[1].Str)
}

// C5: the side of a partition that has no majority delivers nothing, and says why. With QUORUM any it goes on by itself.
func TestLifeC5(t *testing.T) {
	t.Parallel()
	limitsNeedAMajority(t, "CONCURRENCY", 3)
}

// oneSlot makes a mesh of three where one job of the queue may be in progress.
func oneSlot(t *testing.T, config ...string) mesh {
	t.Helper()
	m := start(t, 3, config...)
	m.votes(t)
	require.Equal(t, "OK", m[0].Do("QCONFIG", "SET", "q", "CONCURRENCY", 1).Str)
	for _, s := range m {
		harness.Await(t, 10*time.Second, "the setting to be known", func() bool { return s.Do("QCONFIG", "GET", "q").Field("concurrency").Str == "1" })
	}
	return m
}

// A worker is late: its job is in its queue again, and another job has the only slot. No node lets it go on.
func TestConcurrencyLateWorking(t *testing.T) {
	t.Parallel()
	m := oneSlot(t)
	c := m[0].Dial()
	first := added(t, c, "q", "1", 5000, "REPLICATE", 2, "RETRY", 2)
	require.Equal(t, first, c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q").Elems[0].Elems[1].Str)
	second := added(t, c, "q", "2", 5000, "REPLICATE", 1, "RETRY", 100, "PRIORITY", 5)
	v := c.Do("GETJOB", "TIMEOUT", 30_000, "FROM", "q")
	require.Equal(t, second, v.Elems[0].Elems[1].Str)
	for range 3 {
		require.True(t, c.Do("WORKING", first).Err("LOCKLOST"), "the slot is another's")
	}
	c.Do("MULTI")
	c.Do("WORKING", first)
	require.True(t, c.Do("EXEC").Elems[0].Err("LOCKLOST"), "nor a client that can't wait")
	require.EqualValues(t, 1, c.Do("ACKJOB", second).Int())
	harness.Await(t, 10*time.Second, "the slot to be free", func() bool { return c.Do("WORKING", first).Int() == 2 })
}

// A node is killed while it asks for the slot of an at-most-once job. Nobody has the slot, though others have voted for it.
func TestConcurrencyClaimCrashes(t *testing.T) {
	t.Parallel()
	m := oneSlot(t, "appendonly yes", "appendfsync always")
	id := added(t, m[0].Dial(), "q", "1", 5000, "RETRY", 0)
	m[1].Pause()
	m[2].Pause()
	w := m[0].Dial()
	w.Send("GETJOB", "FROM", "q")
	harness.Await(t, 10*time.Second, "the claims to be sent", func() bool { return len(m[0].Do("LOCK.SCAN", 0, "TYPE", "waiting").Elems[1].Elems) > 0 })
	m[0].Kill()
	m[1].Resume()
	m[2].Resume()
	harness.Await(t, 10*time.Second, "the others to have voted", func() bool { return len(m[1].Do("LOCK.SCAN", 0, "TYPE", "waiting").Elems[1].Elems) > 0 })
	m[0].Restart()
	m.await(t, 3)
	v := m[0].Dial().Do("GETJOB", "TIMEOUT", 60_000, "FROM", "q")
	require.False(t, v.NullArray(), "nobody has a job of the queue")
	require.Equal(t, id, v.Elems[0].Elems[1].Str)
	// Its slot is somebody's now: others who are in need of one don't take it for such a vote.
	second := added(t, m[1].Dial(), "q", "2", 5000, "RETRY", 0, "REPLICATE", 1)
	require.True(t, m[1].Dial().Do("GETJOB", "TIMEOUT", 5000, "FROM", "q").NullArray())
	require.EqualValues(t, 1, m[0].Do("ACKJOB", id).Int())
	v = m[1].Dial().Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
	require.Equal(t, second, v.Elems[0].Elems[1].Str)
}

// A client polls (NOHANG) at a node without jobs, while the only slot is taken at another. Its node gets one job, finds the queue limited, and asks for
// no more, so the others stay where workers may wait for them. When the slot is free the client gets a job by polling on.
func TestConcurrencyPolls(t *testing.T) {
	t.Parallel()
	m := oneSlot(t)
	c, polls := m[0].Dial(), m[1].Dial()
	for range 30 {
		added(t, c, "q", "body", 5000, "REPLICATE", 1, "RETRY", 600)
	}
	id := c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q").Elems[0].Elems[1].Str
	poll := func() harness.Value { return polls.Do("GETJOB", "NOHANG", "FROM", "q") }
	harness.Await(t, 20*time.Second, "the queue to be limited at the other node", func() bool {
		return poll().NullArray() && m[1].Do("QSTAT", "q").Field("limited").Str == "slots"
	})
	came := polls.Do("QLEN", "q").Int()
	for began := time.Now(); time.Since(began) < 3*time.Second; {
		require.True(t, poll().NullArray(), "the slot is taken")
	}
	assert.LessOrEqual(t, polls.Do("QLEN", "q").Int(), came+1, "one may have been under way")
	require.EqualValues(t, 1, c.Do("ACKJOB", id).Int())
	harness.Await(t, 30*time.Second, "a poll to get a job", func() bool { return len(poll().Elems) == 1 })
}
