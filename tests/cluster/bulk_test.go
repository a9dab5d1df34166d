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

// bulk is the words of an ADDJOBS, then BODIES, and so many bodies: "0", "1" …
func bulk(words string, bodies int) (args []any) {
	for _, w := range strings.Fields("ADDJOBS " + words + " BODIES") {
		args = append(args, w)
	}
	for i := range bodies {
		args = append(args, i)
	}
	return args
}

// promised returns the IDs in an answer to ADDJOBS, and how many jobs are refused with an error that begins so.
func promised(t *testing.T, v harness.Value, refusal string) (ids []string, refused int) {
	t.Helper()
	require.Equal(t, byte('*'), v.Kind, "%v", v)
	for _, e := range v.Elems {
		if e.Kind == '+' {
			ids = append(ids, e.Str)
			continue
		}
		require.True(t, strings.HasPrefix(e.Str, refusal), "%v", e)
		refused++
	}
	return ids, refused
}

// A1: the copies of 1000 jobs are awaited once. That takes less than a tenth of the time of 1000 calls.
func TestLifeA1(t *testing.T) {
	m := start(t, 3)
	c := m[0].Dial()
	const n = 1000
	began := time.Now()
	for i := range n {
		require.Equal(t, byte('+'), c.Do("ADDJOB", "one", i, 5000, "REPLICATE", 3).Kind)
	}
	single := time.Since(began)
	began = time.Now()
	v := c.Do(bulk("q 5000 REPLICATE 3", n)...)
	together := time.Since(began)
	all, refused := promised(t, v, "")
	require.Zero(t, refused)
	require.Len(t, all, n)
	assert.Less(t, together, single/10, "1000 ADDJOBs took %v", single)
	for _, id := range all[n-3:] {
		assert.Len(t, m[0].Do("SHOW", id).Field("nodes-delivered").Elems, 3)
	}
	for _, s := range m[1:] {
		assert.Equal(t, fmt.Sprint(2*n), jobs(s))
	}
	got := m[0].Do("GETJOB", "COUNT", n, "FROM", "q")
	for i, j := range got.Elems {
		require.Equal(t, []string{"q", all[i], fmt.Sprint(i)}, j.Strings())
	}
}

// A3: jobs that wait for their copies count for MAXLEN.
func TestLifeA3(t *testing.T) {
	m := start(t, 2)
	all, refused := promised(t, m[0].Do(bulk("q 5000 REPLICATE 2 MAXLEN 3", 5)...), "-MAXLEN")
	assert.Len(t, all, 3)
	assert.Equal(t, 2, refused)
}

// A4: a holder stops in the middle. Another node takes its part, if there is one.
func TestLifeA4(t *testing.T) {
	m := start(t, 4)
	for _, s := range m[1:] {
		s.Pause()
		all, refused := promised(t, m[0].Do(bulk("q 10000 REPLICATE 3", 300)...), "")
		assert.Len(t, all, 300)
		assert.Zero(t, refused)
		s.Resume()
		m.await(t, 4)
	}
	assert.Equal(t, int64(900), m[0].Do("QLEN", "q").Int())
}

// A4: if there is no other node, the jobs that weren't confirmed are refused at the timeout. No worker ever gets one of them.
func TestLifeA4NoOther(t *testing.T) {
	m := start(t, 3)
	c := m[0].Dial()
	args := bulk("q 1500 REPLICATE 3 RETRY 1", 0)
	const n = 8000
	for range n {
		args = append(args, strings.Repeat("x", 200))
	}
	// The node stops somewhere in the middle: before, between, or after the messages with the copies.
	var all []string
	refused := 0
	for round := range int64(4) {
		before := m[0].Do("QLEN", "q").Int()
		c.Send(args...)
		if round >= 2 {
			harness.Await(t, 5*time.Second, "some jobs to be confirmed", func() bool { return m[0].Do("QLEN", "q").Int() > before })
		}
		m[2].Pause()
		some, not := promised(t, c.Receive(), "-NOREPL")
		all, refused = append(all, some...), refused+not
		m[2].Resume()
		m.await(t, 3)
	}
	t.Logf("%d promised, %d refused", len(all), refused)
	require.Equal(t, 4*n, len(all)+refused)
	known := map[string]bool{}
	for _, id := range all {
		known[id] = true
	}
	got := 0
	for {
		v := m[0].Do("GETJOB", "NOHANG", "COUNT", 1000, "FROM", "q")
		if len(v.Elems) == 0 {
			break
		}
		ack := []any{"ACKJOB"}
		for _, j := range v.Elems {
			require.True(t, known[j.Elems[1].Str], "a job is delivered whose client was refused")
			ack = append(ack, j.Elems[1].Str)
		}
		got += len(v.Elems)
		require.Equal(t, int64(len(v.Elems)), m[0].Do(ack...).Int())
	}
	assert.GreaterOrEqual(t, got, len(all))
	m.awaitNoJobs(t)
}

// A5: a client goes away. Its jobs that aren't decided are nowhere.
func TestLifeA5(t *testing.T) {
	m := start(t, 3)
	m[2].Pause()
	c := m[0].Dial()
	c.Send(bulk("q 0 REPLICATE 3", 200)...)
	harness.Await(t, 10*time.Second, "the copies at the other node", func() bool { return jobs(m[1]) == "200" })
	c.Close()
	harness.Await(t, 10*time.Second, "the jobs to be taken back", func() bool { return jobs(m[0]) == "0" && jobs(m[1]) == "0" })
	m[2].Resume()
	m.await(t, 3)
	m.awaitNoJobs(t)
}

// CLIENT UNBLOCK answers at once: what isn't confirmed is refused, and taken back.
func TestUnblockedAddJobs(t *testing.T) {
	m := start(t, 2)
	m[1].Pause()
	c := m[0].Dial()
	id := c.Do("CLIENT", "ID").Int()
	c.Send(bulk("q 0 REPLICATE 2", 3)...)
	harness.Await(t, 10*time.Second, "the client to be blocked", func() bool { return m[0].Do("CLIENT", "UNBLOCK", id).Int() == 1 })
	_, refused := promised(t, c.Receive(), "-NOREPL Timeout")
	assert.Equal(t, 3, refused)
	m[1].Resume()
	m.await(t, 2)
	m.awaitNoJobs(t)
}

// A6: where a client can't wait, ADDJOBS needs ASYNC, or adds with ASYNC if REPLICATE isn't given.
func TestLifeA6(t *testing.T) {
	m := start(t, 3)
	c := m[0].Dial()
	c.Do("MULTI")
	c.Do(bulk("q 0 REPLICATE 2", 2)...)
	c.Do(bulk("q 0 REPLICATE 2 ASYNC", 2)...)
	c.Do(bulk("q 0", 2)...)
	v := c.Do("EXEC")
	require.Len(t, v.Elems, 3)
	assert.True(t, v.Elems[0].Err("NOREPL a job for several nodes has to wait"), "%v", v.Elems[0])
	two, _ := promised(t, v.Elems[1], "")
	three, _ := promised(t, v.Elems[2], "")
	assert.Len(t, two, 2)
	assert.Len(t, three, 2)
	assert.Equal(t, int64(4), m[0].Do("QLEN", "q").Int())
	harness.Await(t, 10*time.Second, "the copies", func() bool {
		return len(m[0].Do("SHOW", two[1]).Field("nodes-delivered").Elems) == 2 && len(m[0].Do("SHOW", three[1]).Field("nodes-delivered").Elems) == 3
	})
}

// Unique jobs of one call ask for their keys at the same time.
func TestAddJobsUniqueInAMesh(t *testing.T) {
	m := start(t, 3)
	args := []any{"ADDJOBS", "q", 5000, "UNIQUE", "until-processed", "SCOPE", "mesh", "REPLICATE", 2, "PAIRS", "twice", "first", "twice", "second"}
	for i := range 100 {
		args = append(args, fmt.Sprint("k", i), i)
	}
	v := m[0].Do(args...)
	require.Len(t, v.Elems, 102, "%v", v)
	nulls := 0
	for _, e := range v.Elems {
		if e.NullString() {
			nulls++
		}
	}
	assert.Equal(t, 1, nulls)
	assert.Equal(t, int64(101), m[0].Do("QLEN", "q").Int())
	again := m[1].Do("ADDJOBS", "q", 5000, "UNIQUE", "until-processed", "SCOPE", "mesh", "PAIRS", "k1", "x", "new", "y")
	require.Len(t, again.Elems, 2, "%v", again)
	assert.True(t, again.Elems[0].NullString(), "%v", again)
	assert.Equal(t, byte('+'), again.Elems[1].Kind)
}

// Clients that wait at other nodes get jobs of an ADDJOBS.
func TestAddJobsServesOtherNodes(t *testing.T) {
	m := start(t, 3)
	far := []*harness.Conn{m[1].Dial(), m[2].Dial()}
	for i, c := range far {
		c.Send("GETJOB", "FROM", "q")
		harness.Await(t, 5*time.Second, "the client to wait", func() bool { return m[i+1].Info("jobmesh", "jobmesh_blocked_clients") == "1" })
	}
	all, _ := promised(t, m[0].Do(bulk("q 5000 REPLICATE 2", 10)...), "")
	require.Len(t, all, 10)
	for _, c := range far {
		v := c.Receive()
		require.Len(t, v.Elems, 1)
		assert.Contains(t, all, v.Elems[0].Elems[1].Str)
	}
}

// A node that shuts down while an ADDJOBS waits takes its jobs back.
func TestShutdownTakesAddJobsBack(t *testing.T) {
	m := start(t, 3)
	m[2].Pause()
	c := m[0].Dial()
	c.Send(bulk("q 0 REPLICATE 3", 50)...)
	harness.Await(t, 10*time.Second, "the copies at the other node", func() bool { return jobs(m[1]) == "50" })
	m[0].Stop()
	m[2].Resume()
	harness.Await(t, 20*time.Second, "the jobs to be taken back", func() bool { return jobs(m[1]) == "0" && jobs(m[2]) == "0" })
}

// A node that becomes a replica takes the jobs back that wait. While writes are paused nothing is decided, and the call goes on
// after that.
func TestAddJobsAndRoles(t *testing.T) {
	m := start(t, 3)
	m[2].Pause()
	c := m[0].Dial()
	c.Send(bulk("q 0 REPLICATE 3", 20)...)
	harness.Await(t, 10*time.Second, "the copies at the other node", func() bool { return jobs(m[1]) == "20" })
	m[0].Do("CLIENT", "PAUSE", 1000, "WRITE")
	m[2].Resume()
	all, refused := promised(t, c.Receive(), "")
	assert.Len(t, all, 20)
	assert.Zero(t, refused)
	m.await(t, 3)

	m[2].Pause()
	c.Send(bulk("r 0 REPLICATE 3", 20)...)
	harness.Await(t, 10*time.Second, "the copies at the other node", func() bool { return jobs(m[1]) == "40" })
	master := harness.Start(t)
	m[0].Do("REPLICAOF", "127.0.0.1", master.Port)
	v := c.Receive() // the server itself answers blocked clients
	assert.True(t, v.Err("UNBLOCKED"), "%v", v)
	harness.Await(t, 10*time.Second, "the jobs to be taken back", func() bool { return jobs(m[1]) == "20" })
	m[2].Resume()
	harness.Await(t, 20*time.Second, "the jobs to be taken back", func() bool { return jobs(m[2]) == "20" })
}

// CANCELJOB and DELJOB take very many IDs, of jobs at several nodes, known there or not. Each counts as if it was named alone.
func TestManyAreCancelledAndDeleted(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "jobmesh.repair-after 0")
	command := func(s *harness.Server, words []any, ids ...[]string) harness.Value {
		for _, some := range ids {
			for _, id := range some {
				words = append(words, id)
			}
		}
		return s.Do(words...)
	}
	const n = 1500
	here, elsewhere := m.spread(t, n, "q", "RETRY", 1000), m.spread(t, n, "q", "RETRY", 1000, "DELAY", 1000)
	assert.Equal(t, int64(n), command(m[1], []any{"CANCELJOB"}, here).Int())
	m.noCopies(t, here...)
	one := m[0].Dial()
	var alone []string // known to one node
	for range n {
		one.Later("ADDJOB", "alone", "b", 0, "REPLICATE", 1)
	}
	for range n {
		alone = append(alone, one.Receive().Str)
	}
	v := command(m[2], []any{"CANCELJOB"}, alone, elsewhere[:n/2], here[:1])
	assert.Equal(t, int64(n/2), v.Int(), "the node knows these")
	m.noCopies(t, alone...)
	m.noCopies(t, elsewhere[:n/2]...)
	rest := elsewhere[n/2:]
	for _, s := range m {
		assert.Equal(t, int64(len(rest)), command(s, []any{"DELJOB"}, rest, alone).Int())
	}
	m.noCopies(t, rest...)
	assert.Equal(t, byte('-'), command(m[0], []any{"CANCELJOB", "no-id"}, rest).Kind)
}
