package cluster

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// cronField is a field of CRON GET.
func cronField(s *harness.Server, name, field string) harness.Value {
	return s.Do("CRON", "GET", name).Field(field)
}

func (m mesh) awaitCron(t *testing.T, name, field string, least int64) {
	t.Helper()
	for _, s := range m {
		harness.Await(t, 60*time.Second, fmt.Sprint(field, " of ", name), func() bool {
			v := cronField(s, name, field)
			return v.Kind == ':' && v.Int() >= least
		})
	}
}

// drain takes all jobs of a queue from all nodes, and returns their slots by their IDs.
func (m mesh) drain(t *testing.T, queue string) map[string]int64 {
	t.Helper()
	made := map[string]int64{}
	for _, s := range m {
		c := s.Dial()
		for {
			v := c.Do("GETJOB", "TIMEOUT", 500, "COUNT", 100, "FROM", queue)
			if v.NullArray() {
				break
			}
			for _, j := range v.Elems {
				id := j.Elems[1].Str
				_, twice := made[id]
				assert.False(t, twice, "%s was delivered twice", id)
				made[id] = c.Do("SHOW", id).Field("slot").Int()
				require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
			}
		}
	}
	return made
}

// eachOnce checks that slots have one job each, and that none is missing from the first to the last.
func eachOnce(t *testing.T, made map[string]int64, first, last int64) {
	t.Helper()
	var slots []int64
	for _, slot := range made {
		slots = append(slots, slot)
	}
	slices.Sort(slots)
	var want []int64
	for slot := first; slot <= last; slot++ {
		want = append(want, slot)
	}
	assert.Equal(t, want, slots)
}

// T1: EVERY 1 on three nodes: one job for each slot, and all nodes take part.
func TestLifeT1(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	first := m[0].Do("CRON", "SET", "each", "EVERY", 1, "MISSED", "all", "JOB", "q", "body", "RETRY", 300).Int()
	m.awaitCron(t, "each", "made", 20)
	require.True(t, m[1].Do("CRON", "PAUSE", "each").Is(1))
	for _, s := range m {
		harness.Await(t, 10*time.Second, "the pause to be known", func() bool { return cronField(s, "each", "paused").Str == "yes" })
	}
	harness.Await(t, 20*time.Second, "the nodes to agree", func() bool {
		state := m[0].Do("CRON", "GET", "each").String()
		return state == m[1].Do("CRON", "GET", "each").String() && state == m[2].Do("CRON", "GET", "each").String()
	})
	last := cronField(m[0], "each", "last").Int()
	eachOnce(t, m.drain(t, "q"), first, last)
	makers := 0
	for _, s := range m {
		if s.Info("jobmesh", "jobmesh_cron_made") != "0" {
			makers++
		}
	}
	assert.Equal(t, 3, makers)
	m.awaitNoJobs(t)
}

// T2: nodes are killed and started again, one after the other: no slot twice, none missing.
func TestLifeT2(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "appendfsync always")
	m.votes(t)
	first := m[0].Do("CRON", "SET", "each", "EVERY", 1, "MISSED", "all", "JOB", "q", "body", "RETRY", 300, "TTL", 3600).Int()
	for round := range 3 {
		m.awaitCron(t, "each", "made", int64(3+8*round))
		s := m[round]
		s.Kill()
		others := slices.Concat(m[:round], m[round+1:])
		others.awaitCron(t, "each", "made", int64(8+8*round))
		s.Restart()
	}
	m.awaitCron(t, "each", "made", 28)
	require.True(t, m[1].Do("CRON", "PAUSE", "each").Is(1))
	harness.Await(t, 30*time.Second, "the nodes to agree", func() bool {
		state := m[0].Do("CRON", "GET", "each").String()
		return cronField(m[0], "each", "paused").Str == "yes" && state == m[1].Do("CRON", "GET", "each").String() && state == m[2].Do("CRON", "GET", "each").String()
	})
	eachOnce(t, m.drain(t, "q"), first, cronField(m[0], "each", "last").Int())
}

// T3: a node whose clock is ahead makes no slot early, as the others don't vote for it.
func TestLifeT3(t *testing.T) {
	t.Parallel()
	m := mesh{harness.Start(t, busConfig(t), harness.WithClock(t)), node(t), node(t)}
	m.meet(t)
	m.await(t, 3)
	m.votes(t)
	m[1].Do("CRON", "SET", "e", "EVERY", 3, "JOB", "q", "body", "RETRY", 300)
	m.awaitCron(t, "e", "made", 0)
	m[0].SetClock(30 * time.Second)
	c := m[1].Dial()
	for range 4 {
		v := c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
		require.False(t, v.NullArray())
		at := time.Now()
		slot := c.Do("SHOW", v.Elems[0].Elems[1].Str).Field("slot").Int()
		assert.LessOrEqual(t, slot, at.Unix(), "by the clocks of the majority")
		c.Do("ACKJOB", v.Elems[0].Elems[1].Str)
	}
}

// T4: the side with a majority makes all slots, the other side none. (With QUORUM any both do: the simulator's history "recurring apart".)
func TestLifeT4(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	first := m[0].Do("CRON", "SET", "each", "EVERY", 1, "MISSED", "all", "JOB", "q", "body", "RETRY", 300).Int()
	m.awaitCron(t, "each", "made", 2)
	m[2:].stop()
	made := cronField(m[0], "each", "made").Int()
	m[:2].awaitCron(t, "each", "made", made+8)
	m[2:].resume()
	m.awaitCron(t, "each", "made", made+10)

	m[1:].stop()
	harness.Await(t, 20*time.Second, "the other nodes to be away", func() bool { return m[0].Info("jobmesh", "jobmesh_reachable_nodes") == "0" })
	made, at := cronField(m[0], "each", "made").Int(), time.Now()
	harness.Await(t, 20*time.Second, "some slots to pass", func() bool { return time.Since(at) > 3*time.Second })
	assert.Equal(t, made, cronField(m[0], "each", "made").Int(), "a node that is alone has no majority")
	m[1:].resume()
	m.awaitCron(t, "each", "made", made+5)
	m[0].Do("CRON", "PAUSE", "each")
	harness.Await(t, 20*time.Second, "the nodes to agree", func() bool {
		state := m[0].Do("CRON", "GET", "each").String()
		return cronField(m[0], "each", "paused").Str == "yes" && state == m[1].Do("CRON", "GET", "each").String() && state == m[2].Do("CRON", "GET", "each").String()
	})
	eachOnce(t, m.drain(t, "q"), first, cronField(m[0], "each", "last").Int())
}

// T5 over a mesh: all nodes are down over three slots. Of an entry with skip none of them is made, with last the newest, with all each, once in the mesh.
func TestLifeT5(t *testing.T) {
	t.Parallel()
	var m mesh
	// The next slot is a moment's away from a full hour, so no further one comes while the test runs.
	ahead := time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + 10*time.Minute))
	for range 3 {
		s := harness.Start(t, busConfig(t, durable...), harness.WithClock(t))
		s.SetClock(ahead)
		m = append(m, s)
	}
	m.meet(t)
	m.votes(t)
	made := map[string]int64{"skip": 0, "last": 1, "all": 3}
	var next int64
	for missed := range made {
		next = m[0].Do("CRON", "SET", missed, "LINE", "@hourly", "MISSED", missed, "JOB", missed, "body", "RETRY", 300, "TTL", 3600).Int()
		m.awaitCron(t, missed, "next", next)
	}
	for _, s := range m {
		s.Stop()
		s.SetClock(ahead + 3*time.Hour)
	}
	m.restart()
	m.await(t, 3)
	for missed, want := range made {
		m.awaitCron(t, missed, "made", want)
		m.awaitCron(t, missed, "missed-slots", 3-want)
		var slots []int64
		for _, slot := range m.drain(t, missed) {
			slots = append(slots, slot)
		}
		slices.Sort(slots)
		var all []int64
		for i := 3 - want; i < 3; i++ {
			all = append(all, next+i*3600)
		}
		assert.Equal(t, all, slots, missed)
		for _, s := range m {
			v := s.Do("CRON", "GET", missed)
			assert.Equal(t, []int64{want, 3 - want}, []int64{v.Field("made").Int(), v.Field("missed-slots").Int()}, missed)
		}
	}
	m.awaitNoJobs(t)
}

// T8: what is set again, or deleted, at a node that the others don't reach counts when they meet.
func TestLifeT8(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	for _, name := range []string{"set", "deleted"} {
		m[0].Do("CRON", "SET", name, "EVERY", 86400, "JOB", "q", "first")
		m.awaitCron(t, name, "made", 0)
	}
	m[1:].stop()
	m[0].Do("CRON", "SET", "set", "EVERY", 1, "JOB", "q", "second", "RETRY", 300)
	require.True(t, m[0].Do("CRON", "DEL", "deleted").Is(1))
	m[1:].resume()
	for _, s := range m {
		harness.Await(t, 30*time.Second, "the change to be known", func() bool {
			return cronField(s, "set", "body").Str == "second" && s.Do("CRON", "GET", "deleted").Null
		})
	}
	v := m[1].Dial().Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
	require.False(t, v.NullArray())
	assert.Equal(t, "second", v.Elems[0].Elems[2].Str)
}

// T9: NEXT, GET and LIST are alike at all nodes.
func TestLifeT9(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m[0].Do("CRON", "SET", "line", "LINE", "*/5 1-4 * * sat,7", "ZONE", "America/New_York", "JOB", "q", "body")
	m[1].Do("CRON", "SET", "every", "EVERY", 1, "MISSED", "skip", "JOB", "q2", "body")
	m.awaitCron(t, "every", "made", 3)
	m[2].Do("CRON", "PAUSE", "every")
	for _, command := range [][]any{{"CRON", "NEXT", "line", "COUNT", 5}, {"CRON", "GET", "line"}, {"CRON", "GET", "every"}, {"CRON", "LIST"}} {
		harness.Await(t, 20*time.Second, "the nodes to agree", func() bool {
			v := m[0].Do(command...).String()
			return v == m[1].Do(command...).String() && v == m[2].Do(command...).String()
		})
	}
	assert.Len(t, m[2].Do("CRON", "LIST").Elems, 2)
}

// T11: in a mesh the key is claimed from other nodes.
func TestLifeT11(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	m[0].Do("CRON", "SET", "e", "EVERY", 1, "JOB", "q", "body", "RETRY", 300, "UNIQUE", "until-processed", "KEY", "e")
	m.awaitCron(t, "e", "made", 1)
	for _, s := range m {
		harness.Await(t, 30*time.Second, "a slot to be dropped", func() bool { return cronField(s, "e", "last-outcome").Str == "dropped" })
	}
	c := m[1].Dial()
	v := c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q")
	require.False(t, v.NullArray())
	c.Do("ACKJOB", v.Elems[0].Elems[1].Str)
	m.awaitCron(t, "e", "made", 2)
}

// An at-most-once job of a slot is made by one node, once a majority knows that it may have been made.
func TestCronOnce(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	first := m[0].Do("CRON", "SET", "once", "EVERY", 1, "MISSED", "all", "JOB", "q", "body", "RETRY", 0).Int()
	m.awaitCron(t, "once", "made", 8)
	m[1].Do("CRON", "PAUSE", "once")
	harness.Await(t, 20*time.Second, "the nodes to agree", func() bool {
		state := m[0].Do("CRON", "GET", "once").String()
		return cronField(m[0], "once", "paused").Str == "yes" && state == m[1].Do("CRON", "GET", "once").String() && state == m[2].Do("CRON", "GET", "once").String()
	})
	eachOnce(t, m.drain(t, "q"), first, cronField(m[0], "once", "last").Int())
}

// A node that comes later learns the entries and how far they are.
func TestCronNewNode(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	m[0].Do("CRON", "SET", "e", "EVERY", 1, "MISSED", "all", "JOB", "q", "body", "RETRY", 300)
	m.awaitCron(t, "e", "made", 3)
	m[0].Do("CRON", "PAUSE", "e")
	m = append(m, node(t))
	meet(t, m[0], m[2])
	m.await(t, 3)
	harness.Await(t, 60*time.Second, "the new node to know", func() bool {
		return m[2].Do("CRON", "GET", "e").String() == m[0].Do("CRON", "GET", "e").String()
	})
}

// Slots of at-most-once jobs that no node has memory for are made when there is memory again.
func TestCronOnceWaitsForMemory(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	first := m[0].Do("CRON", "SET", "c", "EVERY", 1, "MISSED", "all", "JOB", "q", "b", "RETRY", 0).Int()
	m.awaitCron(t, "c", "made", 2)
	for _, s := range m {
		memory(t, s, 1.1, "2")
	}
	now := func() int64 {
		at, err := strconv.ParseInt(m[0].Do("TIME").Elems[0].Str, 10, 64)
		require.NoError(t, err)
		return at
	}
	full := now()
	harness.Await(t, 20*time.Second, "slots to pass", func() bool { return now() > full+3 })
	for _, s := range m {
		require.Equal(t, "OK", s.Do("CONFIG", "SET", "maxmemory", 0).Str)
	}
	made := cronField(m[0], "c", "made").Int()
	m.awaitCron(t, "c", "made", made+5)
	require.Equal(t, int64(1), m[0].Do("CRON", "PAUSE", "c").Int())
	harness.Await(t, 20*time.Second, "the nodes to agree", func() bool {
		state := m[0].Do("CRON", "GET", "c").String()
		return cronField(m[0], "c", "paused").Str == "yes" && state == m[1].Do("CRON", "GET", "c").String() && state == m[2].Do("CRON", "GET", "c").String()
	})
	eachOnce(t, m.drain(t, "q"), first, cronField(m[0], "c", "last").Int())
	for _, s := range m {
		assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_cron_refused"))
	}
}
