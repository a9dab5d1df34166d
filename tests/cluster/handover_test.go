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

// More at-most-once jobs are asked for at once than the bus takes for a node: none of
// them is lost, and none comes twice.
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

// A node that can't take a job says so, and the one that offered it has it still.
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

// Bodies cross whatever their size, up to a limit that is said; a larger job stays
// where it is, for the clients there.
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
