package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A job is acknowledged or cancelled at another node while its queue lies in another database at
// the node where it waits. It doesn't come back with the queue.
func TestEndsReachJobsThatAreAway(t *testing.T) {
	m := start(t, 3)
	c := m[0].Dial()
	for _, verb := range []string{"ACKJOB", "FASTACK", "CANCELJOB"} {
		for _, who := range []string{"holder", "stranger"} {
			for _, swap := range []bool{false, true} {
				id := added(t, c, "q", "b", 2000, "RETRY", 100, "REPLICATE", 2)
				require.Equal(t, "queued", stateAt(m[0], id))
				with, without := m.others(id, m[0])
				at := with
				if who == "stranger" {
					at = without
				}
				take := func(from, to int) {
					if swap {
						require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
						return
					}
					c.Do("SELECT", from)
					require.Equal(t, int64(1), c.Do("MOVE", "q", to).Int())
					c.Do("SELECT", 0)
				}
				take(0, 1)
				size := func() int {
					c.Do("SELECT", 1)
					defer c.Do("SELECT", 0)
					return len(c.Do("DUMP", "q").Str)
				}
				before := size()
				at[0].Do(verb, id)
				harness.Await(t, 10*time.Second, verb+" at a "+who+" to reach it", func() bool { return size() < before-len("b") })
				take(1, 0)
				assert.True(t, c.Do("SHOW", id).Null, "%s at a %s, swapped: %v", verb, who, swap)
				assert.Equal(t, int64(0), c.Do("QLEN", "q").Int())
			}
		}
	}
}

// A job is acknowledged while the other node that has a copy is down. The job's queue goes to another database,
// before or after that, and the job's node is restarted. When the other node is back it hears of the end,
// wherever the queue is, and the job isn't delivered again.
func TestTheOtherCopyOfOneThatIsAckedAndAway(t *testing.T) {
	for _, how := range []string{"in sight", "away", "away when it is acknowledged"} {
		t.Run(how, func(t *testing.T) {
			m := start(t, 2, "appendonly yes", "appendfsync always")
			id := added(t, m[0].Dial(), "q", "b", 2000, "RETRY", 3, "REPLICATE", 2)
			require.Equal(t, id, fetch(t, m[0], "q"))
			m[1].Kill()
			c := m[0].Dial()
			if how == "away when it is acknowledged" {
				require.Equal(t, int64(1), c.Do("MOVE", "q", 1).Int())
			}
			c.Do("ACKJOB", id)
			if how == "away" {
				require.Equal(t, int64(1), c.Do("MOVE", "q", 1).Int())
			}
			m[0].Stop()
			m[0].Restart()
			m[1].Restart()
			m.await(t, 2)
			harness.Await(t, 10*time.Second, "the other node to hear of the end", func() bool {
				require.True(t, m[0].Do("GETJOB", "NOHANG", "FROM", "q").Null, "it is delivered again")
				v := m[1].Do("SHOW", id)
				return v.Null || v.Field("state").Str == "acked"
			})
		})
	}
}

// The queue of a job with a key goes to another database at its node. The other nodes of the mesh keep
// it: no other job gets the key.
func TestKeyOfAJobThatIsAway(t *testing.T) {
	t.Parallel()
	for _, copies := range []int{1, 2} {
		m := start(t, 3)
		c := m[0].Dial()
		first := added(t, c, "q", "b", 2000, "REPLICATE", copies, "RETRY", 300, "UNIQUE", "until-processed", "KEY", "k")
		v := m[1].Do("ADDJOB", "q", "b", 2000, "REPLICATE", 1, "UNIQUE", "until-processed", "KEY", "k")
		require.True(t, v.Null, "%v", v)
		require.Equal(t, int64(1), c.Do("MOVE", "q", 1).Int())
		v = m[1].Do("ADDJOB", "q", "b", 2000, "REPLICATE", 1, "UNIQUE", "until-processed", "KEY", "k", "ONCONFLICT", "raise")
		c1 := m[0].Dial()
		c1.Do("SELECT", 1)
		require.Equal(t, int64(1), c1.Do("MOVE", "q", 0).Int())
		assert.Equal(t, byte('-'), v.Kind, "copies %d: %s has the key, %v gets it too", copies, first, v)
	}
}

// An ADDJOB of a unique job waits for its copies, which the other nodes refuse. Its queue goes to another database, and the
// ADDJOB is refused. The key is free then, at every node.
func TestKeyOfARefusedAddThatIsAway(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	c := m[0].Dial()
	added(t, c, "q", "other", 2000, "REPLICATE", 1)
	for _, n := range m[1:] {
		n.Do("PAUSE", "q", "in")
	}
	adder := m[0].Dial()
	adder.Send("ADDJOB", "q", "b", 600_000, "REPLICATE", 2, "RETRY", 300, "UNIQUE", "until-processed", "KEY", "k")
	harness.Await(t, 10*time.Second, "the lock", func() bool {
		return m[1].Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", "q").Kind != '$' && !m[1].Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", "q").Null
	})
	harness.Await(t, 10*time.Second, "the job to wait for its copies", func() bool { return jobs(m[0]) == "2" })
	require.Equal(t, int64(1), c.Do("MOVE", "q", 1).Int())
	v := adder.Receive()
	require.Equal(t, byte('-'), v.Kind, "%v", v)
	for _, n := range m[1:] {
		n.Do("PAUSE", "q", "none")
	}
	harness.Await(t, 10*time.Second, "the key to be free", func() bool {
		return m[1].Do("ADDJOB", "q", "c", 5000, "REPLICATE", 1, "UNIQUE", "until-processed", "KEY", "k").Kind == '+'
	})
}

// A job of before-processing gives its key back when a client gets it. A copy that lay in another database then, and
// comes back with its queue, doesn't take the key again.
func TestAQueueThatIsBackTakesNoKeyThatWasGivenBack(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	options := []any{"REPLICATE", 3, "RETRY", 600, "UNIQUE", "before-processing", "KEY", "k"}
	id := addUnique(t, m[0], "q", "first", options...)
	require.Equal(t, int64(1), m[1].Do("MOVE", "q", 1).Int())
	require.Equal(t, id, fetch(t, m[0], "q"))
	harness.Await(t, 5*time.Second, "the key is free", func() bool {
		for _, s := range m {
			if s.Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", "q").Field("job").Str != "" {
				return false
			}
		}
		return true
	})
	c := m[1].Dial()
	c.Do("SELECT", 1)
	require.Equal(t, int64(1), c.Do("MOVE", "q", 0).Int())
	require.Never(t, func() bool { // the other nodes would be asked within a second
		return m[2].Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", "q").Field("job").Str != ""
	}, 3*time.Second, 100*time.Millisecond)
	v := m[0].Do(append([]any{"ADDJOB", "q", "second", 5000}, options...)...)
	assert.False(t, v.NullString(), "the key is refused, though nobody waits with it")
}

// A job that waits in a queue of database 1, and that another node queues meanwhile, is given once: also after a crash.
func TestHeardAwayIsLogged(t *testing.T) {
	t.Parallel()
	m := start(t, 2, "appendonly yes", "appendfsync always")
	v := m[0].Do("ADDJOB", "q", "body", 5000, "REPLICATE", 2, "RETRY", 2)
	id := v.Str
	v = m[0].Do("ADDJOB", "q", "unique", 5000, "REPLICATE", 2, "RETRY", 2, "UNIQUE", "during-processing", "KEY", "k")
	id2 := v.Str
	t.Log(id, id2)
	require.Equal(t, int64(1), m[0].Do("MOVE", "q", 1).Int())
	harness.Await(t, 10*time.Second, "the other node queues it", func() bool { return m[1].Do("QLEN", "q").Int() == 2 })
	t.Log(fetch(t, m[1], "q"), fetch(t, m[1], "q"))
	aof, _ := m[0].AOF()
	for _, l := range aof[max(0, len(aof)-12):] {
		t.Logf("%.120q", l)
	}
	m[0].Kill()
	m[0].Restart()
	time.Sleep(time.Second)
	c := m[0].Dial()
	c.Do("SELECT", 1)
	t.Log("moved back", c.Do("MOVE", "q", 0).String())
	for range 6 {
		for i, s := range m {
			t.Log(i, s.Do("SHOW", id).Field("state").String(), s.Do("SHOW", id2).Field("state").String(), s.Do("QLEN", "q").String())
		}
		time.Sleep(time.Second)
	}
	t.Log(m[0].Log())
}
