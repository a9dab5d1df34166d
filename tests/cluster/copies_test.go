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

// async adds jobs in a pipeline, with ASYNC.
func async(t *testing.T, c *harness.Conn, count int, options ...any) (ids []string) {
	t.Helper()
	for i := range count {
		c.Later(append([]any{"ADDJOB", "q", fmt.Sprint("body ", i), 0, "ASYNC"}, options...)...)
	}
	for range count {
		v := c.Receive()
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		ids = append(ids, v.Str)
	}
	return ids
}

// waitCopies is WAITCOPIES with these IDs, then other words.
func waitCopies(c *harness.Conn, ids []string, words ...any) harness.Value {
	args := []any{"WAITCOPIES"}
	for _, id := range ids {
		args = append(args, id)
	}
	return c.Do(append(args, words...)...)
}

// counts are the numbers in an answer of WAITCOPIES, and how often each is there; -1 for null.
func counts(t *testing.T, v harness.Value) map[int64]int {
	t.Helper()
	require.Equal(t, byte('*'), v.Kind, "%v", v)
	all := map[int64]int{}
	for _, e := range v.Elems {
		if e.NullString() || e.Null {
			all[-1]++
		} else {
			all[e.Int()]++
		}
	}
	return all
}

// A8: a barrier after a pipeline of ASYNC adds. A node that is stopped lacks its share at the timeout, and has it when it is back.
func TestLifeA8(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	c := m[0].Dial()
	ids := async(t, c, 2000, "REPLICATE", 3, "RETRY", 600)
	assert.Equal(t, map[int64]int{3: 2000}, counts(t, waitCopies(c, ids, 10_000)))
	for _, s := range m {
		assert.Equal(t, "2000", jobs(s))
	}

	m[2].Pause()
	more := async(t, c, 50, "REPLICATE", 3, "RETRY", 600)
	began := time.Now()
	assert.Equal(t, map[int64]int{2: 50}, counts(t, waitCopies(c, more, 400)))
	harness.Took(t, began, 400*time.Millisecond)
	assert.Equal(t, map[int64]int{2: 50}, counts(t, waitCopies(c, more, 0, "COPIES", 2)))
	c.Send("WAITCOPIES", more[0], more[1], 20_000)
	m[2].Resume()
	assert.Equal(t, map[int64]int{3: 2}, counts(t, c.Receive()))
	assert.Equal(t, map[int64]int{3: 50}, counts(t, waitCopies(c, more, 20_000)))
}

// A9: a job that isn't known here, or is done, is null. The others are counted, in their order.
func TestLifeA9(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	c := m[0].Dial()
	ids := async(t, c, 3, "REPLICATE", 2, "RETRY", 600)
	unknown := "D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"
	require.Equal(t, int64(1), c.Do("ACKJOB", ids[1]).Int())
	v := waitCopies(c, []string{ids[0], unknown, ids[1], ids[2], ids[0]}, 5000)
	require.Len(t, v.Elems, 5)
	assert.True(t, v.Elems[0].Is(2) && v.Elems[3].Is(2) && v.Elems[4].Is(2), "%v", v)
	assert.True(t, v.Elems[1].Null && v.Elems[2].Null, "%v", v)

	// A job that ends meanwhile isn't waited for.
	c.Send("WAITCOPIES", ids[0], 20_000, "COPIES", 9)
	m.blocked(t, 0, 1)
	require.Equal(t, int64(1), m[0].Do("ACKJOB", ids[0]).Int())
	assert.Equal(t, map[int64]int{-1: 1}, counts(t, c.Receive()))

	once := async(t, c, 1, "RETRY", 0, "REPLICATE", 1)
	assert.Equal(t, map[int64]int{1: 1}, counts(t, waitCopies(c, once, 100, "COPIES", 2)), "an at-most-once job gets no second copy")
	assert.Equal(t, map[int64]int{1: 1}, counts(t, waitCopies(c, once, 0)))
	for _, wrong := range [][]any{{"x", 0}, {ids[2], "x"}, {ids[2]}, {ids[2], 0, "COPIES"}, {ids[2], 0, "COPIES", 0}, {ids[2], 0, "COPIES", 70000}, {ids[2], -1}, {ids[2], 0, "NO", 1}, {5}} {
		assert.Equal(t, byte('-'), c.Do(append([]any{"WAITCOPIES"}, wrong...)...).Kind, "%v", wrong)
	}
}

// blocked waits until so many clients are blocked at a node.
func (m mesh) blocked(t *testing.T, i, want int) {
	t.Helper()
	harness.Await(t, 10*time.Second, "clients to be blocked", func() bool { return m[i].Info("clients", "blocked_clients") == fmt.Sprint(want) })
}

// Copies go to other nodes where holders are gone, and more where more are asked for. In MULTI the answer is what is known.
func TestMissingCopiesAreSent(t *testing.T) {
	t.Parallel()
	m := start(t, 4)
	c := m[0].Dial()
	ids := async(t, c, 40, "REPLICATE", 3, "RETRY", 600)
	require.Equal(t, map[int64]int{3: 40}, counts(t, waitCopies(c, ids, 10_000)))
	require.Equal(t, map[int64]int{4: 40}, counts(t, waitCopies(c, ids, 10_000, "COPIES", 4)))
	m[1].Kill()
	harness.Await(t, 10*time.Second, "the node to be missed", func() bool { return links(m[0]) == 2 })
	more := async(t, c, 40, "REPLICATE", 3, "RETRY", 600)
	assert.Equal(t, map[int64]int{3: 40}, counts(t, waitCopies(c, more, 10_000)))
	assert.Equal(t, map[int64]int{3: 40}, counts(t, waitCopies(c, ids, 10_000, "COPIES", 3)))
	m[2].Kill()
	harness.Await(t, 10*time.Second, "the node to be missed", func() bool { return links(m[0]) == 1 })
	assert.Equal(t, map[int64]int{2: 40}, counts(t, waitCopies(c, more, 300)))
	c.Do("MULTI")
	c.Do("WAITCOPIES", more[0], 1000)
	assert.Equal(t, map[int64]int{3: 1}, counts(t, c.Do("EXEC").Elems[0]), "as far as the node knows")

	// A client that is unblocked, or goes away.
	id := c.Do("CLIENT", "ID").Int()
	c.Send("WAITCOPIES", more[0], 0)
	m.blocked(t, 0, 1)
	require.True(t, m[0].Do("CLIENT", "UNBLOCK", id).Is(1))
	v := c.Receive()
	require.Len(t, v.Elems, 1)
	assert.Contains(t, []int64{1, 2}, v.Elems[0].Int(), "the other holder may not have answered yet")
	c.Send("WAITCOPIES", more[0], 0)
	m.blocked(t, 0, 1)
	c.Close()
	m.blocked(t, 0, 0)

	// The jobs are done once, though they have more holders than they were to have.
	w := m[3].Dial()
	harness.Await(t, 20*time.Second, "all jobs to be done", func() bool {
		ack := []any{"ACKJOB"}
		for _, j := range w.Do("GETJOB", "COUNT", 100, "TIMEOUT", 1000, "FROM", "q").Elems {
			ack = append(ack, j.Elems[1].Str)
		}
		if len(ack) > 1 {
			w.Do(ack...)
		}
		return m[0].Do("QLEN", "q").Int() == 0 && m[3].Do("QLEN", "q").Int() == 0
	})
	m[1].Restart()
	m[2].Restart()
	m.await(t, 4)
	m.awaitNoJobs(t)
}

// Alone a job has one copy, and no other can come until there is a node.
func TestWaitCopiesAlone(t *testing.T) {
	t.Parallel()
	s := node(t)
	c := s.Dial()
	ids := async(t, c, 5)
	assert.Equal(t, map[int64]int{1: 5}, counts(t, waitCopies(c, ids, 0)))
	assert.Equal(t, map[int64]int{1: 5}, counts(t, waitCopies(c, ids, 50, "COPIES", 2)))
	many := make([]string, 10_001)
	for i := range many {
		many[i] = ids[0]
	}
	assert.True(t, waitCopies(c, many, 0).Err("ERR at most 10000 IDs"))
	c.Send("WAITCOPIES", ids[0], 20_000, "COPIES", 2)
	other := node(t)
	mesh{s, other}.blocked(t, 0, 1)
	meet(t, other, s)
	assert.Equal(t, map[int64]int{2: 1}, counts(t, c.Receive()))
	require.NotEmpty(t, strings.TrimSpace(jobs(other)))
}
