package cluster

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// awaitWaits waits until so many clients wait in WAITJOB.
func awaitWaits(t *testing.T, s *harness.Server, clients int) {
	t.Helper()
	harness.Await(t, 20*time.Second, "the clients", func() bool { return s.Info("jobmesh", "jobmesh_wait_clients") == strconv.Itoa(clients) })
}

// addTo adds a job with copies everywhere, unless options say otherwise.
func addTo(t *testing.T, c *harness.Conn, options ...any) string {
	t.Helper()
	v := c.Do(append([]any{"ADDJOB", "q", "a body", 20_000}, options...)...)
	require.Equal(t, byte('+'), v.Kind, "%v", v)
	return v.Str
}

// fetchJob gets the job of the queue q at a node.
func fetchJob(t *testing.T, c *harness.Conn, id string) {
	t.Helper()
	v := c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
	require.Len(t, v.Elems, 1)
	require.Equal(t, id, v.Elems[0].Elems[1].Str)
}

// outcome is what SHOW says of a job's end: "" if it isn't kept there.
func outcome(s *harness.Server, id string) string {
	v := s.Do("SHOW", id)
	if v.Null || v.Field("state").Str != "done" {
		return ""
	}
	return v.Field("outcome").Str + " " + v.Field("result").Str
}

// W1: a client at C waits for a job of A that is fetched and acknowledged at B.
func TestLifeW1(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	a, b, c := m[0].Dial(), m[1].Dial(), m[2].Dial()
	for _, copies := range []int{1, 3} {
		id := addTo(t, a, "REPLICATE", copies, "RETRY", 600)
		c.Send("WAITJOB", id, 20_000)
		awaitWaits(t, m[2], 1)
		fetchJob(t, b, id)
		require.Equal(t, int64(1), b.Do("ACKJOB", id, "RESULT", "42").Int())
		assert.Equal(t, []string{"done 42"}, harness.Ends(t, c.Receive()))
		for _, s := range m {
			assert.Equal(t, []string{"done 42"}, harness.Ends(t, s.Do("WAITJOB", id, 20_000)))
		}
	}
	once := addTo(t, a, "RETRY", 0)
	fetchJob(t, b, once)
	require.Equal(t, int64(1), b.Do("ACKJOB", once, "RESULT", "43").Int())
	for _, s := range m {
		assert.Equal(t, []string{"done 43"}, harness.Ends(t, s.Do("WAITJOB", once, 20_000)))
	}

	// Acknowledged where the job isn't known: a holder keeps the result.
	far := addTo(t, a, "REPLICATE", 1, "RETRY", 600)
	require.Equal(t, int64(0), c.Do("ACKJOB", far, "RESULT", "44").Int())
	assert.Equal(t, []string{"done 44"}, harness.Ends(t, b.Do("WAITJOB", far, 20_000)))
	harness.Await(t, 20*time.Second, "the result at the holder", func() bool { return outcome(m[0], far) == "done 44" })
	assert.Equal(t, []string{"unknown"}, harness.Ends(t, b.Do("WAITJOB", "D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1", 20_000)))
}

// W2 over a mesh: without KEEP a job that was acknowledged is done, or unknown, but not waiting.
func TestWaitAfterTheFact(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	id := addTo(t, m[0].Dial(), "REPLICATE", 3, "RETRY", 600)
	require.Equal(t, int64(1), m[1].Do("ACKJOB", id).Int())
	for _, s := range m {
		assert.Equal(t, []string{"done"}, harness.Ends(t, s.Do("WAITJOB", id, 20_000)))
	}
}

// W4 over a mesh: a dead letter, and an expired job, of which a node without a copy hears.
func TestWaitForTheDead(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	a, c := m[0].Dial(), m[2].Dial()
	id := addTo(t, a, "REPLICATE", 1, "RETRY", 600)
	fetchJob(t, a, id)
	c.Send("WAITJOB", id, 20_000)
	awaitWaits(t, m[2], 1)
	require.Equal(t, int64(1), a.Do("NACK", id, "DEAD", "REASON", "bad").Int())
	assert.Equal(t, []string{"dead bad"}, harness.Ends(t, c.Receive()))
	for _, keep := range []int{0, 100} {
		short := addTo(t, a, "REPLICATE", 2, "RETRY", 1, "TTL", 2, "KEEP", keep)
		assert.Equal(t, []string{"expired"}, harness.Ends(t, c.Do("WAITJOB", short, 30_000)), "KEEP %d", keep)
	}
}

// W5: the holder is started again during the wait.
func TestLifeW5(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "appendfsync always")
	c := m[2].Dial()
	id := addTo(t, m[0].Dial(), "REPLICATE", 1, "RETRY", 600)
	c.Send("WAITJOB", id, 60_000)
	awaitWaits(t, m[2], 1)
	m[0].Kill()
	m[0].Restart()
	m.await(t, 3)
	require.Equal(t, int64(1), m[0].Do("ACKJOB", id, "RESULT", "r").Int())
	assert.Equal(t, []string{"done r"}, harness.Ends(t, c.Receive()))
}

// W6: while the only holder is down the job waits.
func TestLifeW6(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "appendfsync always")
	id := addTo(t, m[0].Dial(), "REPLICATE", 1, "RETRY", 600)
	require.Equal(t, int64(1), m[0].Do("ACKJOB", id, "RESULT", "r").Int())
	m[0].Kill()
	c := m[2].Dial()
	assert.Equal(t, []string{"waiting"}, harness.Ends(t, c.Do("WAITJOB", id, 1000)))
	c.Send("WAITJOB", id, 60_000)
	awaitWaits(t, m[2], 1)
	m[0].Restart()
	assert.Equal(t, []string{"done r"}, harness.Ends(t, c.Receive()))
}

// W7 over a mesh: all holders keep an outcome, and all forget it when its time is over, also one that was away at the end.
func TestOutcomesGoEverywhere(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "appendfsync always")
	a := m[0].Dial()
	id := addTo(t, a, "REPLICATE", 3, "RETRY", 600)
	require.Equal(t, int64(1), m[1].Do("ACKJOB", id, "RESULT", "r", "KEEP", 6).Int())
	for _, s := range m {
		harness.Await(t, 5*time.Second, "the result", func() bool { return outcome(s, id) == "done r" })
	}
	m.awaitNoJobs(t)

	away := addTo(t, a, "REPLICATE", 3, "RETRY", 600)
	m[2].Kill()
	require.Equal(t, int64(1), a.Do("ACKJOB", away, "RESULT", "r", "KEEP", 1).Int())
	harness.Await(t, 20*time.Second, "the result to go", func() bool { return outcome(m[0], away) == "" })
	m[2].Restart()
	m.await(t, 3)
	m.awaitNoJobs(t)
}

// W9: done twice, with two results, on two sides of a partition: afterwards there is one, everywhere.
func TestLifeW9(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for i := range 3 {
		id := addTo(t, m[0].Dial(), "REPLICATE", 3, "RETRY", 600)
		m[i].Pause() // it stands for the one side; the others for the other
		other := m[(i+1)%3]
		require.Equal(t, int64(1), other.Do("ACKJOB", id, "RESULT", "theirs").Int())
		cut := make(chan harness.Value)
		go func() {
			c, err := harness.Dial(m[i].Addr(), time.Minute)
			if err != nil {
				close(cut)
				return
			}
			cut <- c.Do("ACKJOB", id, "RESULT", "mine")
		}()
		time.Sleep(200 * time.Millisecond) // so that its command comes before the others' words, mostly
		m[i].Resume()
		<-cut
		var all [3]string
		harness.Await(t, 20*time.Second, "one result", func() bool {
			for k, s := range m {
				all[k] = outcome(s, id)
			}
			return all[0] != "" && all[0] == all[1] && all[1] == all[2]
		})
	}
}

// W11: clients that have gone cost nothing any more.
func TestLifeW11(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	a, b := m[0], m[1]
	c := a.Dial()
	ids := make([]any, 1000)
	for i := range ids {
		ids[i] = addTo(t, c, "ASYNC", "REPLICATE", 1, "RETRY", 600)
	}
	wait := append(append([]any{"WAITJOB"}, ids...), 0)
	var before, used [2]int64 // of both nodes, when the first have gone, and the last
	for round := range 3 {
		var clients []*harness.Conn
		for range 100 { // 100,000 waits
			w := b.Dial()
			w.Send(wait...)
			clients = append(clients, w)
		}
		awaitWaits(t, b, 100)
		for _, w := range clients {
			w.Close()
		}
		awaitWaits(t, b, 0)
		if round == 0 {
			before = [2]int64{a.UsedMemory(), b.UsedMemory()}
		}
	}
	harness.Await(t, 60*time.Second, "the memory to be as before", func() bool {
		used = [2]int64{a.UsedMemory(), b.UsedMemory()}
		return used[0] < before[0]+500_000 && used[1] < before[1]+500_000
	})
	last := b.Dial()
	last.Send(append(append([]any{"WAITJOB"}, ids[:3]...), 0)...)
	awaitWaits(t, b, 1)
	for i, id := range ids[:3] {
		require.Equal(t, int64(1), c.Do("ACKJOB", id, "RESULT", fmt.Sprint(i)).Int())
	}
	assert.Equal(t, []string{"done 0", "done 1", "done 2"}, harness.Ends(t, last.Receive()))
}

// K2: CANCELJOB of a job that is worked on: its worker hears of it at each holder.
func TestLifeK2(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	id := addTo(t, m[0].Dial(), "REPLICATE", 3, "RETRY", 3)
	fetchJob(t, m[0].Dial(), id)
	require.Equal(t, int64(1), m[1].Do("CANCELJOB", id).Int())
	for _, s := range m {
		harness.Await(t, 3*time.Second, "the word", func() bool { return s.Do("WORKING", id).Err("CANCELLED") })
	}
	for _, s := range m {
		harness.Await(t, 20*time.Second, "the retry time to be over", func() bool { return s.Do("WORKING", id).Err("NOJOB") })
	}
}

// K3 over a mesh: the wish is said at another node than that of the worker.
func TestCancelSoftlyElsewhere(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	a, b, c := m[0].Dial(), m[1].Dial(), m[2].Dial()
	for _, copies := range []int{1, 3} { // one: C doesn't know the job
		for _, word := range []string{"ACKJOB", "NACK"} {
			id := addTo(t, a, "REPLICATE", copies, "RETRY", 600, "KEEP", 100)
			fetchJob(t, a, id)
			require.Equal(t, int64(copies/3), c.Do("CANCELJOB", id, "SOFT", "REASON", "why").Int())
			harness.Await(t, 20*time.Second, "the wish", func() bool { return a.Do("WORKING", id).Err("CANCELLED") })
			require.Equal(t, int64(1), a.Do(word, id).Int())
			want := "cancelled why"
			if word == "ACKJOB" {
				want = "done"
			}
			harness.Await(t, 20*time.Second, "the outcome, at a node that was asked to stop", func() bool { // until it hears more, that is all it knows
				return harness.Ends(t, b.Do("WAITJOB", id, 20_000))[0] == want
			})
		}
		// Where it waits, it is cancelled at once.
		id := addTo(t, a, "REPLICATE", copies, "RETRY", 600)
		c.Do("CANCELJOB", id, "SOFT")
		harness.Await(t, 20*time.Second, "the end", func() bool { return a.Do("SHOW", id).Null })
	}
	m.awaitQueue(t, 0)
}

func (m mesh) awaitQueue(t *testing.T, want int) {
	t.Helper()
	for _, s := range m {
		harness.Await(t, 20*time.Second, "the queue", func() bool { return s.Do("QLEN", "q").Int() == int64(want) })
	}
}

// K6: CANCELJOB at a node without a copy: the job is gone everywhere, also from a node that was down.
func TestLifeK6(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "appendfsync always")
	here := addTo(t, m[0].Dial(), "REPLICATE", 1, "RETRY", 600)
	away := addTo(t, m[0].Dial(), "REPLICATE", 1, "RETRY", 600)
	m[2].Do("CANCELJOB", here)
	harness.Await(t, 20*time.Second, "the end", func() bool { return m[0].Do("SHOW", here).Null })
	kept := addTo(t, m[0].Dial(), "REPLICATE", 1, "RETRY", 600, "KEEP", 600)
	m[2].Do("CANCELJOB", kept, "REASON", "why")
	harness.Await(t, 20*time.Second, "the outcome at the holder", func() bool { return outcome(m[0], kept) == "cancelled " })
	assert.Equal(t, "why", m[0].Do("SHOW", kept).Field("reason").Str)
	assert.Equal(t, []string{"cancelled why"}, harness.Ends(t, m[1].Do("WAITJOB", kept, 20_000)))
	m[0].Do("DELJOB", kept)
	m[0].Kill()
	m[2].Do("CANCELJOB", away)
	m[0].Restart()
	m.await(t, 3)
	harness.Await(t, 20*time.Second, "the end", func() bool { return m[0].Do("SHOW", away).Null })
	m.awaitNoJobs(t)
}

// A restart takes nothing from what SHOW says of a unique job whose outcome is kept, and QSTAT and QSCAN go on showing its queue, at all holders.
func TestOutcomesOfUniqueJobsAfterARestart(t *testing.T) {
	t.Parallel()
	m := start(t, 2, "appendonly yes", "appendfsync always")
	id := addTo(t, m[0].Dial(), "REPLICATE", 2, "RETRY", 600, "UNIQUE", "until-processed", "KEEP", 5000)
	fetchJob(t, m[0].Dial(), id)
	require.Equal(t, int64(1), m[0].Do("ACKJOB", id, "RESULT", "r").Int())
	harness.Await(t, 20*time.Second, "the outcome at the other holder", func() bool { return outcome(m[1], id) == "done r" })
	look := func(when string) {
		for i, s := range m {
			v := s.Do("SHOW", id)
			for field, want := range map[string]string{"outcome": "done", "result": "r", "unique": "until-processed", "key": "a body", "scope": "queue", "lock": "none"} {
				assert.Equal(t, want, v.Field(field).Str, "%s: %s at node %d", when, field, i)
			}
			if v = s.Do("QSTAT", "q"); assert.False(t, v.Null, "%s: QSTAT at node %d", when, i) {
				assert.Equal(t, int64(1), v.Field("kept").Int(), "%s: node %d", when, i)
			}
			assert.Equal(t, []string{"q"}, s.Do("QSCAN").Elems[1].Strings(), "%s: QSCAN at node %d", when, i)
		}
	}
	look("before")
	m[0].Kill()
	m[0].Restart()
	m.await(t, 2)
	look("after a crash")
	m[1].Do("DEBUG", "RELOAD")
	look("after DEBUG RELOAD")
}
