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

// waiting counts the jobs that wait in a queue at all nodes.
func (m mesh) waiting(queue string) (all int64) {
	for _, s := range m {
		all += s.Do("QLEN", queue).Int()
	}
	return all
}

// A name that is added at two nodes is one job, which is queued once, wherever the first one is and however it stands.
func TestNamesAtTwoNodes(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	one := func(name string, at int, options ...any) string {
		return added(t, m[at].Dial(), append([]any{"q", "b", 5000, "RETRY", 600, "REPLICATE", 1, "NAME", name}, options...)...)
	}
	known := func(s *harness.Server, name string) {
		t.Helper()
		harness.Await(t, 20*time.Second, "the node to be known as a holder", func() bool {
			return len(s.Do("SHOW", "NAME", name).Field("nodes-confirmed").Elems)+len(s.Do("SHOW", "NAME", name).Field("nodes-delivered").Elems) > 1
		})
	}

	x := one("x", 0)
	harness.Await(t, 20*time.Second, "the job to be queued", func() bool { return stateAt(m[0], x) == "queued" })
	require.Equal(t, x, one("x", 1))
	known(m[0], "x")
	assert.Equal(t, int64(1), m.waiting("q"), "it waits at the first node")
	require.Equal(t, x, fetched(t, m[0].Dial(), "q"))

	require.Equal(t, x, one("x", 2))
	known(m[2], "x")
	assert.Zero(t, m.waiting("q"), "a client of the first node has it")
	require.Equal(t, int64(1), m[2].Do("ACKJOB", "NAME", "x").Int())
	m.awaitNoJobs(t)

	require.Equal(t, x, one("x", 1), "it is done, as all nodes have heard")
	assert.Zero(t, m.waiting("q"))
	assert.Equal(t, "0", jobs(m[1]))

	d := one("d", 0, "DELAY", 600)
	require.Equal(t, d, one("d", 1, "DELAY", 600))
	known(m[0], "d")
	require.Equal(t, int64(1), m[0].Do("ENQUEUE", "NAME", "d").Int())
	require.Equal(t, d, fetched(t, m[1].Dial(), "q"))
	require.Equal(t, int64(1), m[0].Do("CANCELJOB", "NAME", "d").Int())
	m.awaitNoJobs(t)
	require.Equal(t, d, one("d", 2))
	assert.Zero(t, m.waiting("q"), "it was cancelled")

	// A name is cancelled before it is added.
	m[2].Do("CANCELJOB", "NAME", "revoked")
	m.awaitNoJobs(t)
	one("revoked", 0)
	assert.Zero(t, m.waiting("q"))
}

// Names that are added at all nodes at one moment: each is delivered once.
func TestNamesAtOnce(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	const names = 200
	conns := m.dial()
	for i := range names {
		for k := range conns {
			c := conns[(i+k)%len(conns)]
			c.Later("ADDJOB", "q", fmt.Sprint("body ", i), 5000, "RETRY", 600, "REPLICATE", 1+i%3, "NAME", fmt.Sprint("n", i))
		}
	}
	for _, c := range conns {
		c.Flush()
	}
	for _, c := range conns {
		for range names {
			v := c.Receive()
			require.Equal(t, byte('+'), v.Kind, "%v", v)
		}
	}
	seen := map[string]int{}
	defer func() {
		for i := range names {
			id := m[0].Do("SHOW", "NAME", fmt.Sprint("n", i)).Field("id").Str
			if len(seen) < names && seen[id] == 0 {
				for _, s := range m {
					t.Log(i, s.Do("SHOW", "NAME", fmt.Sprint("n", i)))
				}
			}
		}
	}()
	harness.Await(t, 60*time.Second, "all jobs to be delivered", func() bool {
		for _, c := range conns {
			for _, j := range c.Do("GETJOB", "NOHANG", "COUNT", 100, "FROM", "q").Elems {
				seen[j.Elems[1].Str]++
			}
		}
		return len(seen) == names
	})
	for _, c := range conns {
		assert.Empty(t, c.Do("GETJOB", "TIMEOUT", 300, "COUNT", 100, "FROM", "q").Elems)
	}
	for id, times := range seen {
		require.Equal(t, 1, times, id)
	}
	for i := range names {
		require.Equal(t, int64(1), m[i%3].Do("ACKJOB", "NAME", fmt.Sprint("n", i)).Int())
	}
	m.awaitNoJobs(t)
}

// ADDJOB waits for copies whoever made them, and the job stays where they don't come.
func TestNamesAndCopies(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	add := func(at int, timeout int, replicate int, name string) harness.Value {
		return m[at].Do("ADDJOB", "q", "b", timeout, "RETRY", 600, "REPLICATE", replicate, "DELAY", 600, "NAME", name)
	}
	id := add(0, 5000, 1, "x").Str
	require.Equal(t, id, add(1, 5000, 3, "x").Str)
	for _, s := range m {
		assert.Equal(t, "1", jobs(s))
	}
	assert.Equal(t, int64(3), m[0].Do("WAITCOPIES", "NAME", "x", 5000, "COPIES", 3).Elems[0].Int())

	m[2].Pause()
	v := add(0, 300, 3, "y")
	require.True(t, v.Err("NOREPL Timeout reached before so many nodes"), "%v", v)
	y := m[0].Do("SHOW", "NAME", "y").Field("id").Str
	require.NotEmpty(t, y, "it stays")
	c := m[1].Dial()
	c.Send("ADDJOB", "q", "b", 0, "RETRY", 600, "REPLICATE", 3, "DELAY", 600, "NAME", "z")
	harness.Await(t, 20*time.Second, "the job to be there", func() bool { return m[1].Do("SHOW", "NAME", "z").Field("name").Str == "z" })
	c.Close()
	gone := m[1].Dial()
	gone.Send("ADDJOB", "q", "b", 0, "RETRY", 600, "REPLICATE", 3, "DELAY", 600, "NAME", "u")
	harness.Await(t, 20*time.Second, "the client to wait", func() bool { return m[1].Do("SHOW", "NAME", "u").Field("name").Str == "u" })
	m[2].Resume()
	assert.Equal(t, byte('+'), gone.Receive().Kind)
	require.Equal(t, y, add(0, 20_000, 3, "y").Str)
	require.Equal(t, byte('+'), add(0, 20_000, 3, "z").Kind)
	for _, name := range []string{"y", "z", "u"} {
		assert.Equal(t, int64(1), m[2].Do("CANCELJOB", "NAME", name).Int(), name)
	}
	assert.True(t, m[0].Do("EVAL", "return redis.call('ADDJOB', KEYS[1], 'b', 0, 'REPLICATE', 2, 'NAME', 'm')", 1, "q").Err("NOREPL"))
	assert.True(t, m[0].Do("SHOW", "NAME", "m").NullString())
	assert.Equal(t, byte('+'), m[0].Do("EVAL", "return redis.call('ADDJOB', KEYS[1], 'b', 0, 'NAME', 'm')", 1, "q").Kind)
}

// A node dies with its client's answer; the client says the same ADDJOB at another node. The job is delivered once, if a copy was left.
func TestNamesWhenANodeDies(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "appendfsync always")
	id := added(t, m[0].Dial(), "q", "b", 5000, "RETRY", 600, "REPLICATE", 3, "NAME", "x")
	require.Equal(t, id, fetched(t, m[0].Dial(), "q"))
	m[0].Kill()
	require.Equal(t, id, added(t, m[1].Dial(), "q", "b", 5000, "RETRY", 600, "REPLICATE", 2, "NAME", "x"))
	assert.Zero(t, m[1:].waiting("q"))
	require.Equal(t, int64(1), m[2].Do("ACKJOB", "NAME", "x").Int())
	m[0].Restart()
	m.awaitNoJobs(t)
	require.Equal(t, id, added(t, m[0].Dial(), "q", "b", 5000, "RETRY", 600, "NAME", "x"))
	assert.Zero(t, m.waiting("q"))
}

// Each node's names are told, and counted, as added once, and their ends, also said at a node that doesn't know the job.
func TestNamesAreCountedOnce(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "jobmesh.events all")
	sum := func(counter string) (n int) {
		for _, s := range m {
			v, err := strconv.Atoi(s.Info("jobmesh", "jobmesh_"+counter))
			require.NoError(t, err)
			n += v
		}
		return n
	}
	add := func(at int, name string, options ...any) string {
		return added(t, m[at].Dial(), append([]any{"q", "body", 5000, "RETRY", 600, "REPLICATE", 1, "NAME", name}, options...)...)
	}
	for i, options := range [][]any{nil, {"DELAY", 600}} {
		id := add(0, string('x'+rune(i)), options...)
		harness.Await(t, 20*time.Second, "the job to be told", func() bool { return m.told(id)["add"] == 1 })
		for at := range m {
			require.Equal(t, id, add(at, string('x'+rune(i)), options...))
		}
		harness.Await(t, 20*time.Second, "the others to count it as known", func() bool { return sum("names_known") == 3*(i+1) })
		assert.Equal(t, i+1, sum("jobs_added"))
		assert.Equal(t, 1, m.told(id)["add"])
	}
	// A job of one node is ended at another, which doesn't know it.
	plain := addTo(t, m[0].Dial(), "RETRY", 600, "REPLICATE", 1)
	m[1].Do("CANCELJOB", plain)
	harness.Await(t, 20*time.Second, "its end", func() bool { return sum("jobs_cancelled") == 1 })
	worked := addTo(t, m[0].Dial(), "RETRY", 600, "REPLICATE", 1)
	for _, id := range []string{m[0].Do("GETJOB", "FROM", "q").Elems[0].Elems[1].Str, m[0].Do("GETJOB", "TIMEOUT", 100, "FROM", "q").Elems[0].Elems[1].Str} {
		m[2].Do("ACKJOB", id)
	}
	harness.Await(t, 20*time.Second, "their ends", func() bool { return sum("jobs_acked") == 2 })
	copied := addTo(t, m[0].Dial(), "RETRY", 600, "REPLICATE", 3)
	m[1].Do("ACKJOB", copied)
	harness.Await(t, 20*time.Second, "all to forget it", func() bool {
		for _, s := range m {
			if !s.Do("SHOW", copied).Null {
				return false
			}
		}
		return true
	})
	assert.Equal(t, 3, sum("jobs_acked"))
	assert.Equal(t, map[string]int{"add": 1, "deliver": 1, "done": 1}, m.told(worked))
	assert.Equal(t, map[string]int{"add": 1, "done": 1}, m.told(copied))
	assert.Equal(t, map[string]int{"add": 1, "cancel": 1}, m.told(plain))
}
