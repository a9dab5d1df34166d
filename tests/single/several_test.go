package single

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// afterPause makes clients wait in a queue that is paused for output, adds jobs to it, and ends the pause. So all jobs come
// to the clients in one step. It returns each client's answer.
func afterPause(t *testing.T, s *harness.Server, jobs int, option string, counts ...int) (answers []harness.Value) {
	t.Helper()
	c := s.Dial()
	c.Do("PAUSE", "q", "out")
	var clients []*harness.Conn
	for i, count := range counts {
		clients = append(clients, s.Dial())
		clients[i].Send("GETJOB", "WITHCOUNTERS", "WORKER", fmt.Sprint("w", i), "COUNT", count, "FROM", "q")
		awaitBlocked(t, s, i+1)
	}
	for i := range jobs {
		args := []any{"ADDJOB", "q", fmt.Sprint("b", i), 0}
		if option != "" {
			args = append(args, "UNIQUE", option, "KEY", "k")
		}
		require.Len(t, c.Do(args...).Str, 40)
	}
	c.Do("PAUSE", "q", "none")
	for _, client := range clients {
		answers = append(answers, client.Receive())
	}
	return answers
}

// bodies lists the bodies of the jobs in GETJOB's answer.
func bodies(v harness.Value) (list []string) {
	for _, e := range v.Elems {
		list = append(list, e.Elems[2].Str)
	}
	return list
}

// Clients that wait with COUNT get even shares of what comes at once.
func TestLifeG1(t *testing.T) {
	s := harness.Start(t)
	got := afterPause(t, s, 8, "", 10, 10)
	assert.Equal(t, []string{"b0", "b2", "b4", "b6"}, bodies(got[0]))
	assert.Equal(t, []string{"b1", "b3", "b5", "b7"}, bodies(got[1]))
	c := s.Dial()
	wip := c.Do("WIP", "q")
	require.Len(t, wip.Elems, 8)
	for _, e := range got[1].Elems {
		assert.Equal(t, "w1", c.Do("SHOW", e.Elems[1].Str).Field("worker").Str)
		assert.Equal(t, int64(1), c.Do("ACKJOB", e.Elems[1].Str).Int())
	}
	for _, e := range got[0].Elems {
		c.Do("ACKJOB", e.Elems[1].Str)
	}
	var clients []*harness.Conn
	for i := range 2 {
		clients = append(clients, s.Dial())
		clients[i].Send("GETJOB", "WITHCOUNTERS", "COUNT", 10, "FROM", "q")
		awaitBlocked(t, s, i+1)
	}
	require.Len(t, c.Do("ADDJOBS", "q", 0, "BODIES", "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7").Elems, 8)
	assert.Equal(t, []string{"b0", "b2", "b4", "b6"}, bodies(clients[0].Receive()))
	assert.Equal(t, []string{"b1", "b3", "b5", "b7"}, bodies(clients[1].Receive()))
	got = afterPause(t, s, 8, "", 10, 1)
	assert.Equal(t, []string{"b0", "b2", "b3", "b4", "b5", "b6", "b7"}, bodies(got[0]))
	assert.Equal(t, []string{"b1"}, bodies(got[1]))
}

// Clients that wait without COUNT get one job each.
func TestLifeG2(t *testing.T) {
	s := harness.Start(t)
	got := afterPause(t, s, 5, "", 1, 1, 1)
	for i := range got {
		assert.Equal(t, []string{fmt.Sprint("b", i)}, bodies(got[i]))
	}
	assert.Equal(t, int64(2), s.Dial().Do("QLEN", "q").Int())
}

// A client that waits with COUNT gets no more jobs of a key than may run.
func TestLifeG3(t *testing.T) {
	s := harness.Start(t)
	got := afterPause(t, s, 3, "during-processing", 10)
	require.Equal(t, []string{"b0"}, bodies(got[0]))
	c := s.Dial()
	assert.Equal(t, int64(1), c.Do("ACKJOB", got[0].Elems[0].Elems[1].Str).Int())
	assert.Equal(t, []string{"b1"}, bodies(c.Do("GETJOB", "NOHANG", "COUNT", 10, "FROM", "q")))
}

// G3, limited queues: a client that waits with COUNT gets no more jobs than the queue's limit lets it.
func TestLifeG3Limited(t *testing.T) {
	for name, limit := range map[string][]any{"slots": {"CONCURRENCY", 2}, "rate": {"RATE", 2, 3600}} {
		t.Run(name, func(t *testing.T) {
			s := harness.Start(t)
			c := s.Dial()
			require.Equal(t, "OK", c.Do(append([]any{"QCONFIG", "SET", "q"}, limit...)...).Str)
			got := afterPause(t, s, 5, "", 10, 10)
			all := append(bodies(got[0]), bodies(got[1])...)
			assert.ElementsMatch(t, []string{"b0", "b1"}, all)
			assert.Equal(t, int64(3), c.Do("QLEN", "q").Int())
			assert.Equal(t, name, c.Do("QSTAT", "q").Field("limited").Str)
		})
	}
}

// Very many jobs that come at once are given bit by bit. A client gets as many as its count, if as many are there in one of
// these bits.
func TestVeryManyAtOnce(t *testing.T) {
	s := harness.Start(t)
	got := afterPause(t, s, 1000, "", 100000, 7)
	assert.Len(t, got[1].Elems, 7)
	n := len(got[0].Elems)
	assert.Greater(t, n, 100)
	c := s.Dial()
	assert.Len(t, c.Do("GETJOB", "NOHANG", "COUNT", 1000, "FROM", "q").Elems, 1000-7-n)
}

// If such a client goes before it gets its answer, all its jobs go back to their queue.
func TestSeveralUnheard(t *testing.T) {
	s := harness.Start(t)
	c, gone := s.Dial(), s.Dial()
	cid := gone.Do("CLIENT", "ID").Int()
	c.Do("PAUSE", "q", "out")
	gone.Send("GETJOB", "COUNT", 5, "FROM", "q")
	awaitBlocked(t, s, 1)
	for _, retry := range []int{0, 100, 100} {
		add(t, c, "q", "b", 0, "RETRY", retry)
	}
	c.Do("MULTI")
	c.Do("PAUSE", "q", "none")
	c.Do("CLIENT", "KILL", "ID", cid)
	require.Len(t, c.Do("EXEC").Elems, 2)
	harness.Await(t, 2*time.Second, "the jobs to return", func() bool { return c.Do("QLEN", "q").Int() == 3 })
	assert.Equal(t, "3", s.Info("jobmesh", "jobmesh_answers_unheard"))
}
