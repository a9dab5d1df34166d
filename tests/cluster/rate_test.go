package cluster

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// R2: the rate holds for all nodes together, whichever node has the jobs and the workers, and is reached.
func TestLifeR2(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	require.Equal(t, "OK", m[1].Do("QCONFIG", "SET", "q", "RATE", 20, 2).Str)
	for _, s := range m {
		c := s.Dial()
		harness.Await(t, 10*time.Second, "the setting to be known", func() bool { return c.Do("QCONFIG", "GET", "q").Field("rate").Str == "20 2" })
	}
	const jobs = 100
	for i := range jobs {
		added(t, m[i%2].Dial(), "q", "b", 5000, "REPLICATE", 1+i%3, "RETRY", 100)
	}
	var times []time.Time
	var mutex sync.Mutex
	var workers sync.WaitGroup
	began := time.Now()
	for i := range 6 {
		workers.Go(func() {
			c := m[i%3].Dial()
			for {
				v := c.Do("GETJOB", "TIMEOUT", 5000, "FROM", "q")
				if v.NullArray() {
					return
				}
				mutex.Lock()
				times = append(times, time.Now())
				mutex.Unlock()
				c.Do("ACKJOB", v.Elems[0].Elems[1].Str)
			}
		})
	}
	workers.Wait()
	slices.SortFunc(times, time.Time.Compare)
	require.Len(t, times, jobs)
	for i := 20; i < len(times); i++ {
		require.GreaterOrEqual(t, times[i].Sub(times[i-20]), 1900*time.Millisecond, "delivery %d", i)
	}
	assert.Less(t, times[jobs-1].Sub(began), 20*time.Second)
	m.awaitNoJobs(t)
}

// R4: the side of a partition that has no majority delivers nothing, and says why. With QUORUM any it goes on by itself.
func TestLifeR4(t *testing.T) {
	t.Parallel()
	limitsNeedAMajority(t, "RATE", 10, 1)
}

// limitsNeedAMajority has one node of three alone, with jobs in a queue with this setting, and in one that needs no majority.
func limitsNeedAMajority(t *testing.T, setting ...any) {
	t.Helper()
	m := start(t, 3)
	m.votes(t)
	m[0].Do(append([]any{"QCONFIG", "SET", "q"}, setting...)...)
	m[0].Do(append(append([]any{"QCONFIG", "SET", "any"}, setting...), "QUORUM", "any")...)
	c := m[0].Dial()
	added(t, c, "q", "b", 5000, "REPLICATE", 1)
	added(t, c, "any", "b", 5000, "REPLICATE", 1)
	m[1:].stop()
	defer m[1:].resume()
	harness.Await(t, 20*time.Second, "the other nodes to be away", func() bool { return m[0].Info("jobmesh", "jobmesh_reachable_nodes") == "0" })
	assert.True(t, c.Do("GETJOB", "TIMEOUT", 1500, "FROM", "q").NullArray())
	assert.Equal(t, "quorum", c.Do("QSTAT", "q").Field("limited").Str)
	require.Len(t, c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "any").Elems, 1)
	c.Send("GETJOB", "TIMEOUT", 30_000, "FROM", "q")
	m[1:].resume()
	v := c.Receive()
	require.NotEmpty(t, v.Elems, "when there is a majority again")

	// The side with a majority goes on.
	added(t, m[1].Dial(), "q", "b", 5000, "REPLICATE", 1)
	m[:1].stop()
	defer m[:1].resume()
	for _, s := range m[1:] {
		harness.Await(t, 20*time.Second, "the node to be missed", func() bool { return s.Info("jobmesh", "jobmesh_reachable_nodes") == "1" })
	}
	v = m[2].Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
	require.NotEmpty(t, v.Elems)
	assert.NotEqual(t, "quorum", m[2].Do("QSTAT", "q").Field("limited").Str)
}

// In MULTI nothing is to be had where other nodes have to be asked; NOHANG waits for their answers alone.
func TestRatesInATransaction(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	m.votes(t)
	m[0].Do("QCONFIG", "SET", "q", "RATE", 1, 100)
	c := m[0].Dial()
	for i := range 2 {
		added(t, c, "q", fmt.Sprint(i), 5000, "REPLICATE", 1)
	}
	c.Do("MULTI")
	c.Do("GETJOB", "FROM", "q")
	require.True(t, c.Do("EXEC").Elems[0].NullArray())
	require.Len(t, c.Do("GETJOB", "NOHANG", "FROM", "q").Elems, 1)
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
}

// A job that must not run beside others of its key, in a queue with a limit: the limit's votes and the run's are asked for one after the other,
// though a single client waits, or polls.
func TestUniqueJobsOfALimitedQueue(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	c := m[0].Dial()
	for queue, limit := range map[string][]any{"slots": {"CONCURRENCY", 5}, "rate": {"RATE", 100, 2}} {
		require.Equal(t, "OK", c.Do(append([]any{"QCONFIG", "SET", queue}, limit...)...).Str)
		for i := range 4 {
			for _, strategy := range []string{"during-processing", "before-and-during-processing"} {
				added(t, c, queue, fmt.Sprint(i), 5000, "UNIQUE", strategy, "KEY", fmt.Sprint(strategy, i), "RETRY", 600)
			}
		}
		added(t, c, queue, "plain", 5000, "RETRY", 600)
		for range 5 {
			v := c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", queue)
			require.Len(t, v.Elems, 1, "%s: %s", queue, v)
			c.Do("ACKJOB", v.Elems[0].Elems[1].Str)
		}
		for range 4 {
			harness.Await(t, 20*time.Second, "a job for a client that polls", func() bool {
				v := c.Do("GETJOB", "NOHANG", "FROM", queue)
				if v.NullArray() {
					return false
				}
				c.Do("ACKJOB", v.Elems[0].Elems[1].Str)
				return true
			})
		}
	}
	m.awaitNoJobs(t)
}
