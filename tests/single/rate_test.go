package single

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// within checks that no span of time has more than n of the times. They are when a client had a job, so a delivery was at most slack before.
func within(t *testing.T, times []time.Time, n int, span, slack time.Duration) {
	t.Helper()
	for i := n; i < len(times); i++ {
		if apart := times[i].Sub(times[i-n]); apart < span-slack {
			t.Fatalf("%d deliveries in %v, the last of them number %d", n+1, apart, i)
		}
	}
}

// R1: RATE 10 1 with eager workers: never more than ten in any second, and a hundred in eleven.
func TestLifeR1(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "q", "RATE", 10, 1).Str)
	assert.Equal(t, "10 1", c.Do("QCONFIG", "GET", "q").Field("rate").Str)
	for range 100 {
		add(t, c, "q", "b", 0)
	}
	got := make(chan time.Time, 100)
	began := time.Now()
	var workers sync.WaitGroup
	defer workers.Wait()
	for range 4 {
		workers.Go(func() {
			c := s.Dial()
			for {
				v := c.Do("GETJOB", "TIMEOUT", 3000, "FROM", "q")
				if v.NullArray() {
					return
				}
				got <- time.Now()
				c.Do("ACKJOB", v.Elems[0].Elems[1].Str)
			}
		})
	}
	var times []time.Time
	for range 100 {
		select {
		case at := <-got:
			times = append(times, at)
		case <-time.After(20 * time.Second):
			require.Fail(t, "no further job", "after %d", len(times))
		}
	}
	within(t, times, 10, time.Second, 50*time.Millisecond)
	assert.Less(t, time.Since(began), 12*time.Second)
	assert.GreaterOrEqual(t, time.Since(began), 9*time.Second)
}

// A queue that is limited is empty for GETJOB; the next one in the list serves. QSTAT and INFO say so.
func TestALimitedQueueIsEmpty(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "r*", "RATE", 2, 3600).Str)
	for i := range 4 {
		add(t, c, "r1", fmt.Sprint("r", i), 0)
	}
	other := add(t, c, "other", "b", 0)
	assert.Equal(t, "no", c.Do("QSTAT", "r1").Field("limited").Str)
	v := c.Do("GETJOB", "NOHANG", "COUNT", 10, "FROM", "r1", "other")
	require.Len(t, v.Elems, 3)
	require.Equal(t, other, v.Elems[1].Elems[1].Str)
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "r1").NullArray())
	assert.Equal(t, "rate", c.Do("QSTAT", "r1").Field("limited").Str)
	assert.EqualValues(t, 2, c.Do("QLEN", "r1").Int())
	assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_queues_limited"))
	assert.NotEqual(t, "0", s.Info("jobmesh", "jobmesh_rate_waited"))

	// A client that waits is served as soon as the rate lets it: here by another setting.
	w := s.Dial()
	w.Send("GETJOB", "TIMEOUT", 20_000, "FROM", "r1")
	harness.Await(t, 10*time.Second, "the client to wait", func() bool { return c.Do("QSTAT", "r1").Field("blocked").Int() == 1 })
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "r*", "RATE", 3, 3600).Str)
	require.Equal(t, "r2", w.Receive().Elems[0].Elems[2].Str)
	require.Equal(t, int64(1), c.Do("QCONFIG", "DEL", "r*").Int())
	assert.Equal(t, "no", c.Do("QSTAT", "r1").Field("limited").Str)
	require.Len(t, c.Do("GETJOB", "NOHANG", "COUNT", 10, "FROM", "r1").Elems, 1)
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_queues_limited"))

	for _, bad := range [][]any{{"RATE", 1}, {"RATE", 0, 1}, {"RATE", 1, 0}, {"RATE", 1_000_001, 1}, {"RATE", 1, 86_401}, {"RATE", "x", 1}, {"RATE", -1, 1}, {"RATE", 1, 1.5}} {
		v := c.Do(append([]any{"QCONFIG", "SET", "q"}, bad...)...)
		require.True(t, v.Err("ERR RATE must be followed by a count, 1 to 1000000, and seconds, 1 to 86400"), "%v: %v", bad, v)
	}
	assert.Empty(t, c.Do("QCONFIG", "GET", "q").Elems)
}

// A client that waits is served when its queue's limits change or end, also where another client's command is the first that sees the new ones.
func TestLimitsChangeBeforeAnotherAsks(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	for i, set := range [][]any{{"QCONFIG", "SET", "q*", "RATE", 5, 3600}, {"QCONFIG", "SET", "q*", "CONCURRENCY", 5}, {"QCONFIG", "DEL", "q*"}} {
		q := fmt.Sprint("q", i)
		require.Equal(t, "OK", c.Do("QCONFIG", "SET", "q*", "RATE", 1, 3600, "CONCURRENCY", 1).Str)
		for range 3 {
			add(t, c, q, "b", 0)
		}
		require.Len(t, c.Do("GETJOB", "NOHANG", "COUNT", 10, "FROM", q).Elems, 1)
		w := s.Dial()
		w.Send("GETJOB", "TIMEOUT", 20_000, "FROM", q)
		harness.Await(t, 10*time.Second, "the client to wait", func() bool { return c.Do("QSTAT", q).Field("blocked").Int() == 1 })
		c.Send("MULTI")
		c.Send("QCONFIG", "DEL", "q*")
		c.Send(set...)
		c.Send("GETJOB", "NOHANG", "FROM", q)
		c.Send("EXEC")
		for range 4 {
			c.Receive()
		}
		require.Len(t, c.Receive().Elems[2].Elems, 1, "%v", set)
		require.Len(t, w.Receive().Elems, 1, "%v", set)
	}
}

// R3: an allowance that was used stays used over a restart.
func TestLifeR3(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		c.Do("QCONFIG", "SET", "q", "RATE", 1, 5)
		first, second := add(t, c, "q", "1", 0), add(t, c, "q", "2", 0)
		began := time.Now()
		require.Equal(t, first, get(t, c, "q"))
		if mode == "aof kill" {
			s.AwaitLogged()
		}
		comeBack(t, s, mode)
		c = s.Dial()
		require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
		if next := waitFor(t, c, "q"); mode == "aof kill" {
			require.Equal(t, first, next, "its delivery isn't in the log")
		} else {
			require.Equal(t, second, next)
		}
		assert.GreaterOrEqual(t, time.Since(began), 5*time.Second)
		assert.Less(t, time.Since(began), 8*time.Second)
	}, "aof", "aof kill", "rdb", "reload")
}

// R6: a queue that is paused in output claims nothing, and neither does an empty one.
func TestLifeR6(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	c.Do("QCONFIG", "SET", "*", "RATE", 10, 100)
	add(t, c, "q", "b", 0)
	c.Do("PAUSE", "q", "out")
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q", "none").NullArray())
	blocks := func() int {
		return strings.Count(c.Do("LOCK.SCAN", 0, "TYPE", "waiting", "COUNT", 100).String(), "rate")
	}
	assert.Zero(t, blocks())
	c.Do("PAUSE", "q", "none")
	get(t, c, "q")
	assert.Equal(t, 1, blocks())
}

// Redeliveries count, and deliveries in MULTI and scripts.
func TestRateCountsEachDelivery(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	c.Do("QCONFIG", "SET", "q", "RATE", 20, 3600)
	id := add(t, c, "q", "b", 0)
	for i := range 20 {
		switch i % 3 {
		case 0:
			require.Equal(t, id, get(t, c, "q"))
		case 1:
			v := c.Do("EVAL", "return redis.call('GETJOB', 'NOHANG', 'FROM', 'q')", 0)
			require.Len(t, v.Elems, 1, "%v", v)
		default:
			c.Do("MULTI")
			c.Do("GETJOB", "FROM", "q")
			require.Len(t, c.Do("EXEC").Elems[0].Elems, 1)
		}
		require.Equal(t, int64(1), c.Do("NACK", id).Int())
	}
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
}

// A rate begins anew where its locks are cleared, and for a queue that gets a name with a rate by RENAME.
func TestRatesBeginAnew(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	c.Do("QCONFIG", "SET", "q", "RATE", 2, 3600)
	for i := range 12 {
		add(t, c, []string{"q", "other"}[i%2], "b", 0)
	}
	some := func() int {
		v := c.Do("GETJOB", "NOHANG", "COUNT", 10, "FROM", "q")
		return len(v.Elems)
	}
	require.Equal(t, 2, some())
	require.Equal(t, 0, some())
	for _, l := range c.Do("LOCK.SCAN", 0, "TYPE", "waiting", "COUNT", 100).Elems[1].Elems {
		require.Equal(t, int64(1), c.Do("LOCK.CLEAR", l.Elems[1].Str, "TYPE", "waiting", "QUEUE", "q").Int())
	}
	require.Equal(t, 2, some())
	require.Equal(t, 0, some())
	get(t, c, "other") // it has no rate
	c.Do("DEL", "q")
	require.Equal(t, "OK", c.Do("FLUSHALL").Str)
	for range 6 {
		add(t, c, "other", "b", 0)
	}
	get(t, c, "other")
	require.Equal(t, "OK", c.Do("RENAME", "other", "q").Str)
	require.Equal(t, 2, some())
	require.Equal(t, 0, some())
}

// R5: while a queue is limited, and its jobs and a client wait, the jobs of another queue cost the server no more time than before. The two are
// measured by turns, and the best of each compared: what disturbs the machine only adds.
func TestLifeR5(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	for i := range 20 {
		add(t, c, "slow", fmt.Sprint(i), 0)
	}
	add(t, c, "free", "stays", 0, "DELAY", 3600) // so that the queue stays
	const cycle = `for i = 1, 2000 do
		redis.call('ADDJOB', 'free', 'b', 0)
		local got = redis.call('GETJOB', 'NOHANG', 'FROM', 'free')
		redis.call('ACKJOB', got[1][2])
	end`
	cpu := func() float64 {
		user, err := strconv.ParseFloat(s.Info("cpu", "used_cpu_user_main_thread"), 64)
		require.NoError(t, err)
		system, err := strconv.ParseFloat(s.Info("cpu", "used_cpu_sys_main_thread"), 64)
		require.NoError(t, err)
		return user + system
	}
	w := s.Dial()
	best := map[bool]float64{}
	for round := range 24 {
		limited := round%2 == 1
		if limited {
			require.Equal(t, "OK", c.Do("QCONFIG", "SET", "slow", "RATE", 1, 3600).Str)
			c.Do("GETJOB", "NOHANG", "FROM", "slow")
			w.Send("GETJOB", "TIMEOUT", 600_000, "FROM", "slow")
			harness.Await(t, 10*time.Second, "the client to wait", func() bool { return c.Do("QSTAT", "slow").Field("blocked").Int() == 1 })
		}
		before := cpu()
		require.False(t, c.Do("EVAL", cycle, 0).Err("ERR"))
		if took := cpu() - before; round > 1 && (best[limited] == 0 || took < best[limited]) {
			best[limited] = took
		}
		if limited {
			require.EqualValues(t, 1, c.Do("QCONFIG", "DEL", "slow").Int())
			require.Len(t, w.Receive().Elems, 1, "it is served when there is no limit")
			for range 2 {
				add(t, c, "slow", "b", 0)
			}
		}
	}
	t.Logf("CPU of 2000 cycles: %.1f ms without, %.1f ms with a limited queue", best[false]*1000, best[true]*1000)
	assert.Less(t, best[true], best[false]*1.15)
}
