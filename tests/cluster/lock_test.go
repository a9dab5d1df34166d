package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func acquire(t *testing.T, s *harness.Server, name, owner string, ttl int, more ...any) int64 {
	t.Helper()
	v := s.Do(append([]any{"LOCK.ACQUIRE", name, owner, ttl}, more...)...)
	require.Equal(t, byte(':'), v.Kind, "%v", v)
	require.Positive(t, v.Int())
	return v.Int()
}

// votes waits until nodes vote.
func (m mesh) votes(t *testing.T) {
	t.Helper()
	for _, s := range m {
		harness.Await(t, 20*time.Second, "the nodes to vote", func() bool { return s.Info("jobmesh", "jobmesh_locks_abstaining") == "no" })
	}
}

// free waits until no node knows of the lock, or still has to give back any lock.
func (m mesh) free(t *testing.T, name string) {
	t.Helper()
	for _, s := range m {
		harness.Await(t, 10*time.Second, "nothing to stay claimed", func() bool {
			return s.Do("LOCK.SHOW", name).Null && s.Info("jobmesh", "jobmesh_lock_claims") == "0"
		})
	}
}

// known waits until all nodes have voted for a lock: a client has it as soon as a majority has.
func (m mesh) known(t *testing.T, name string) {
	t.Helper()
	for _, s := range m {
		harness.Await(t, 10*time.Second, "all to know of the lock", func() bool { return !s.Do("LOCK.SHOW", name).Null })
	}
}

// A lock has one holder, only the holder extends and releases it, and when its lease is over the next
// one gets it: on three nodes, at each of them.
func TestLocksOverTheMesh(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	token := acquire(t, m[0], "n", "a", 60_000)
	m.known(t, "n")
	for _, s := range m {
		assert.True(t, s.Do("LOCK.ACQUIRE", "n", "b", 60_000).NullString())
		assert.True(t, s.Do("LOCK.EXTEND", "n", "b", token, 1000).Err("NOTHELD"))
		assert.True(t, s.Do("LOCK.EXTEND", "n", "a", token-1, 1000).Err("STALETOKEN"))
		assert.True(t, s.Do("LOCK.RELEASE", "n", "a", token-1).Err("STALETOKEN"))
		assert.True(t, s.Do("LOCK.RELEASE", "n", "b", token).Err("NOTHELD"))
		assert.Equal(t, "OK", s.Do("LOCK.EXTEND", "n", "a", token, 60_000).Str)
		assert.Equal(t, token, acquire(t, s, "n", "a", 60_000), "who has it renews it")
	}
	assert.Equal(t, "OK", m[1].Do("LOCK.RELEASE", "n", "a", token).Str)
	next := acquire(t, m[2], "n", "b", 300)
	assert.Greater(t, next, token)
	assert.True(t, m[0].Do("LOCK.EXTEND", "n", "a", token, 1000).Err("STALETOKEN"))
	m.free(t, "n")
	assert.True(t, m[2].Do("LOCK.EXTEND", "n", "b", next, 1000).Err("NOTHELD"))
	assert.Greater(t, acquire(t, m[0], "n", "c", 60_000), next)
	m.known(t, "n")
	assert.Equal(t, int64(1), m[1].Do("LOCK.CLEAR", "ALL").Int())
	m.free(t, "n")
	v := m[0].Do("EVAL", "return redis.pcall('LOCK.ACQUIRE', 'n', 'a', 1000)", 0)
	assert.True(t, v.Err("NOQUORUM A lock in a mesh"), "%v", v)
}

// A client that waits at one node gets the lock that is released at another. A client that has gone
// leaves nothing claimed.
func TestLockWaitOverTheMesh(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	token := acquire(t, m[0], "n", "a", 60_000)
	waiters := make([]*harness.Conn, 4)
	for i := range waiters {
		waiters[i] = m[1].Dial()
		waiters[i].Send("LOCK.ACQUIRE", "n", fmt.Sprint("w", i), 60_000, "WAIT", 20_000)
		harness.Await(t, 5*time.Second, "the client to wait", func() bool { return m[1].Do("LOCK.SHOW", "n").Field("waiting").Is(int64(i + 1)) })
	}
	waiters[0].Close()
	owner := "a"
	for i := 1; i < len(waiters); i++ {
		require.Equal(t, "OK", m[2].Do("LOCK.RELEASE", "n", owner, token).Str)
		began := time.Now()
		v := waiters[i].Receive()
		require.Greater(t, v.Int(), token, "%v", v)
		assert.Less(t, time.Since(began), time.Second)
		token, owner = v.Int(), fmt.Sprint("w", i)
	}
	assert.True(t, m[2].Do("LOCK.ACQUIRE", "n", "late", 60_000, "WAIT", 200).NullString())
	assert.Equal(t, "OK", m[0].Do("LOCK.RELEASE", "n", owner, token).Str)
	m.free(t, "n")
	// The end of a lease is noticed everywhere.
	acquire(t, m[0], "n", "a", 300)
	began := time.Now()
	acquire(t, m[2], "n", "b", 60_000, "WAIT", 10_000)
	assert.Less(t, time.Since(began), 2*time.Second)
}

// shortIDs returns the nodes' names as errors show them.
func (m mesh) shortIDs(t *testing.T) (ids []string) {
	t.Helper()
	for _, s := range m {
		id := s.Do("JOBMESH", "CLUSTER", "MYID").Str
		require.Len(t, id, 40)
		ids = append(ids, id[:8])
	}
	return ids
}

// listed is a regular expression for the items of a list, in any order.
func listed(items ...string) string {
	any := "(" + strings.Join(items, "|") + ")"
	return any + strings.Repeat(", "+any, len(items)-1)
}

// With one node of three down all goes on. With two down no lock is given, and nothing is held
// afterwards.
func TestLocksWithNodesDown(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "appendfsync always")
	held := acquire(t, m[0], "held", "a", 60_000)
	m.known(t, "held")
	ids := m.shortIDs(t)
	m[0].Kill()
	v := m[1].Do("LOCK.ACQUIRE", "held", "b", 60_000)
	assert.True(t, v.NullString(), "the others know of it: %v", v)
	assert.Equal(t, "OK", m[2].Do("LOCK.EXTEND", "held", "a", held, 60_000).Str)
	token := acquire(t, m[1], "n", "a", 60_000)
	assert.Equal(t, "OK", m[2].Do("LOCK.RELEASE", "n", "a", token).Str)
	m[2].Kill()
	harness.Await(t, 5*time.Second, "the connections to be given up", func() bool { return links(m[1]) == 0 })
	began := time.Now()
	v = m[1].Do("LOCK.ACQUIRE", "n", "b", 60_000)
	assert.Less(t, time.Since(began), 500*time.Millisecond, "at once, where nobody can be asked")
	assert.True(t, v.Err("NOQUORUM"), "%v", v)
	assert.Regexp(t, ": 2 of 3 can't be reached: "+listed(ids[0], ids[2])+`\. Try again`, v.Str)
	assert.True(t, m[1].Do("LOCK.ACQUIRE", "n", "b", 60_000, "WAIT", 300).Err("NOQUORUM"))
	assert.True(t, m[1].Do("LOCK.EXTEND", "held", "a", held, 60_000).Err("NOQUORUM"))
	assert.True(t, m[1].Do("LOCK.CLEAR", "held").Err("NOQUORUM"))
	assert.True(t, m[1].Do("LOCK.SHOW", "n").Null)
	mesh{m[0], m[2]}.restart()
	m.await(t, 3)
	m.votes(t)
	m.free(t, "n")
	assert.True(t, m[0].Do("LOCK.ACQUIRE", "held", "b", 60_000).NullString(), "it is remembered")
	assert.Equal(t, "OK", m[2].Do("LOCK.RELEASE", "held", "a", held).Str)
	assert.Greater(t, acquire(t, m[1], "n", "b", 60_000), token)
}

// The nodes are there, but don't answer: acquisitions are refused at their timeout.
func TestLocksWithNodesStopped(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "jobmesh.cluster-node-timeout 10000")
	ids := m.shortIDs(t)
	m[1].Pause()
	token := acquire(t, m[0], "n", "a", 60_000)
	assert.Equal(t, "OK", m[0].Do("LOCK.RELEASE", "n", "a", token).Str)
	m[2].Pause()
	began := time.Now()
	v := m[0].Do("LOCK.ACQUIRE", "n", "b", 60_000)
	assert.True(t, v.Err("NOQUORUM"), "%v", v)
	assert.Regexp(t, ": 2 of 3 haven't answered: "+listed(ids[1], ids[2])+`\. Try again`, v.Str)
	harness.Took(t, began, time.Second)
	assert.True(t, m[0].Do("LOCK.ACQUIRE", "n", "b", 60_000, "WAIT", 200).Err("NOQUORUM"))
	m[1].Resume()
	m[2].Resume()
	m.free(t, "n")
	assert.Greater(t, acquire(t, m[1], "n", "c", 60_000), token)
}

// A node that comes back without its table doesn't vote until it has the others' tables, or the
// longest lease is over.
func TestLostTable(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "jobmesh.lock-max-lease 8000")
	// Each node has voted for a long lease, and waits as long when it may have lost votes.
	acquire(t, m[0], "before", "a", 8000)
	m.known(t, "before")
	// The lock is held by the votes of two nodes. The third node is down.
	m[2].Kill()
	token := acquire(t, m[0], "n", "a", 8000)
	m[1].Kill()
	began := time.Now() // a loaded machine may take a while to start them
	mesh{m[1], m[2]}.restart()
	harness.Await(t, 10*time.Second, "the nodes to meet again", func() bool { return links(m[1]) == 2 && links(m[2]) == 2 })
	assert.Equal(t, "yes", m[1].Info("jobmesh", "jobmesh_locks_abstaining"))
	assert.Equal(t, "yes", m[2].Info("jobmesh", "jobmesh_locks_abstaining"))
	harness.During(time.Until(began.Add(6*time.Second)), func() {
		for i, s := range m {
			v := s.Do("LOCK.ACQUIRE", "n", "b", 1000)
			require.True(t, v.Err("NOQUORUM") || v.Null, "node %d gave the lock twice: %v", i, v)
		}
	})
	m.votes(t)
	assert.Greater(t, time.Since(began), 7*time.Second, "the longest lease")
	assert.Greater(t, acquire(t, m[1], "n", "b", 1000, "WAIT", 3000), token)

	// With the tables of both others a node votes at once, and knows the locks that it knew.
	token = acquire(t, m[0], "m", "a", 8000)
	m.known(t, "m")
	m[1].Kill()
	m[1].Restart()
	mesh{m[1]}.votes(t)
	assert.Equal(t, token, m[1].Do("LOCK.SHOW", "m").Field("token").Int())
	// A vote that it has learnt from others stands against other owners at once, and counts
	// for the holder once a majority without it has agreed.
	assert.Equal(t, "OK", m[2].Do("LOCK.EXTEND", "m", "a", token, 8000).Str)
	m[0].Kill()
	v := m[2].Do("LOCK.ACQUIRE", "m", "b", 1000)
	assert.True(t, v.NullString(), "%v", v)
	assert.Equal(t, "OK", m[1].Do("LOCK.EXTEND", "m", "a", token, 8000).Str)
}

// The holder's node is stopped for longer than the lease.
func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	token := acquire(t, m[0], "n", "a", 500)
	m[0].Pause()
	next := acquire(t, m[1], "n", "b", 60_000, "WAIT", 10_000)
	assert.Greater(t, next, token)
	m[0].Resume()
	assert.True(t, m[0].Do("LOCK.EXTEND", "n", "a", token, 1000).Err("STALETOKEN"))
	assert.True(t, m[0].Do("LOCK.RELEASE", "n", "a", token).Err("STALETOKEN"))
	assert.True(t, m[0].Do("LOCK.ACQUIRE", "n", "a", 1000).NullString())
	assert.Equal(t, "OK", m[0].Do("LOCK.RELEASE", "n", "b", next).Str)
}

// In a partition the side of two nodes gives locks, the side of one refuses.
func TestLocksInAPartition(t *testing.T) {
	t.Parallel()
	w := namespaces(t, 3)
	w.votes(t)
	held := acquire(t, w.mesh[2], "held", "a", 60_000)
	w.known(t, "held")
	w.move(1, 2)
	token := acquire(t, w.mesh[0], "n", "a", 60_000)
	v := w.mesh[2].Do("LOCK.ACQUIRE", "n", "b", 60_000)
	assert.True(t, v.Err("NOQUORUM"), "%v", v)
	v = w.mesh[2].Do("LOCK.EXTEND", "held", "a", held, 60_000)
	assert.True(t, v.Err("NOQUORUM"), "%v", v)
	v = w.mesh[1].Do("LOCK.ACQUIRE", "held", "b", 1000)
	assert.True(t, v.NullString(), "%v", v)
	assert.Equal(t, "OK", w.mesh[1].Do("LOCK.RELEASE", "held", "a", held).Str)
	next := acquire(t, w.mesh[1], "held", "b", 60_000)
	assert.Greater(t, next, held)
	w.move(0, 2)
	w.await(t, 3)
	// Where the silence wasn't noticed, TCP takes a while until it sends again.
	harness.Await(t, 20*time.Second, "the others to be heard", func() bool {
		v = w.mesh[2].Do("LOCK.ACQUIRE", "n", "b", 60_000)
		return !v.Err("NOQUORUM")
	})
	assert.True(t, v.NullString(), "%v", v)
	v = w.mesh[2].Do("LOCK.EXTEND", "held", "a", held, 60_000)
	assert.True(t, v.Err("STALETOKEN"), "%v", v)
	assert.Equal(t, "OK", w.mesh[2].Do("LOCK.RELEASE", "n", "a", token).Str)
}

// A lock that a node has given while it was alone also holds in the mesh that it meets later. If
// two nodes have given it, the older holder keeps it.
func TestLockBeforeTheMesh(t *testing.T) {
	t.Parallel()
	m := mesh{node(t), node(t), node(t)}
	older, younger := "a", "b"
	first := acquire(t, m[0], "n", older, 60_000)
	second := acquire(t, m[1], "n", younger, 60_000)
	if second < first {
		// The clocks of two nodes that don't know each other differ by a few milliseconds.
		older, younger, first, second = younger, older, second, first
	}
	for _, s := range m[1:] {
		meet(t, s, m[0])
	}
	m.await(t, 3)
	m.votes(t)
	for _, s := range m {
		harness.Await(t, 5*time.Second, "the older one to win", func() bool { return s.Do("LOCK.SHOW", "n").Field("token").Is(first) })
		assert.True(t, s.Do("LOCK.ACQUIRE", "n", "c", 1000).NullString())
		assert.False(t, s.Do("LOCK.EXTEND", "n", younger, second, 1000).Str == "OK")
		assert.Equal(t, "OK", s.Do("LOCK.EXTEND", "n", older, first, 60_000).Str)
	}
}

// Two meshes that meet while both have given the same locks refuse those until the leases are
// over, and give all others.
func TestLongMeshesWithTheSameLocksMeet(t *testing.T) {
	for _, half := range []int{2, 3} {
		t.Run(fmt.Sprint(half), func(t *testing.T) {
			t.Parallel()
			one, other := start(t, half), start(t, half)
			var a, b int64
			for i := range 300 {
				a = acquire(t, one[0], fmt.Sprint("n", i), "a", 600_000, "WAIT", 10_000)
				b = acquire(t, other[0], fmt.Sprint("n", i), "b", 600_000, "WAIT", 10_000)
			}
			only := acquire(t, one[0], "only", "a", 600_000, "WAIT", 10_000)
			meet(t, one[0], other[1])
			m := append(slices.Clone(one), other...)
			m.await(t, 2*half)
			m.votes(t)
			for i, s := range m {
				acquire(t, s, fmt.Sprint("free", i), "c", 600_000, "WAIT", 10_000)
				assert.True(t, s.Do("LOCK.ACQUIRE", "only", "c", 1000).NullString())
				for _, name := range []string{"n0", "n299"} {
					v := s.Do("LOCK.ACQUIRE", name, "c", 1000)
					assert.True(t, v.NullString() || v.Err("NOQUORUM"), "%v", v)
				}
			}
			// The lock that only one half has given goes on. A lock that both halves have given goes on for
			// neither holder until the other has released it. Once it is cleared, it can be had at once.
			assert.Equal(t, "OK", one[0].Do("LOCK.EXTEND", "only", "a", only, 600_000).Str)
			assert.Equal(t, "OK", other[0].Do("LOCK.RELEASE", "only", "a", only).Str)
			acquire(t, other[1], "only", "c", 1000, "WAIT", 5000)
			assert.NotEqual(t, "OK", one[0].Do("LOCK.EXTEND", "n299", "a", a, 600_000).Str)
			one[0].Do("LOCK.RELEASE", "n299", "a", a)
			assert.Equal(t, "OK", other[0].Do("LOCK.EXTEND", "n299", "b", b, 600_000).Str)
			assert.Equal(t, "OK", other[0].Do("LOCK.RELEASE", "n299", "b", b).Str)
			acquire(t, m[0], "n299", "c", 1000, "WAIT", 5000)
			m[half].Do("LOCK.CLEAR", "n0")
			acquire(t, m[1], "n0", "c", 1000, "WAIT", 5000)
		})
	}
}

// Thirty clients at three nodes ask for a lock at the same time: exactly one gets it.
func TestLockRaceOverTheMesh(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for round := range 20 {
		conns := make([]*harness.Conn, 30)
		for i := range conns {
			conns[i] = m[i%3].Dial()
		}
		for i, c := range conns {
			c.Send("LOCK.ACQUIRE", fmt.Sprint("n", round), i, 60_000)
		}
		got := 0
		for _, c := range conns {
			v := c.Receive()
			assert.True(t, v.Kind == ':' || v.Null, "%v", v)
			if v.Kind == ':' {
				got++
			}
		}
		assert.Equal(t, 1, got, "round %d", round)
	}
}

// Very many locks are freed in slices at each node. Once LOCK.CLEAR is answered, all nodes vote
// anew for any of them.
func TestClearVeryManyLocksOverTheMesh(t *testing.T) {
	t.Parallel()
	const many, clients = 3000, 30
	m := start(t, 3)
	conns := make([]*harness.Conn, clients)
	for i := range conns {
		conns[i] = m[0].Dial()
	}
	for i := range many {
		c := conns[i%clients]
		c.Send("LOCK.ACQUIRE", fmt.Sprint("n", i), "old", 3_600_000)
	}
	for i := range many {
		require.Positive(t, conns[i%clients].Receive().Int())
	}
	m.known(t, fmt.Sprint("n", many-1))
	require.Equal(t, int64(many), m[0].Do("LOCK.CLEAR", "ALL").Int())
	var taken []string
	for i := many - 50; i < many; i++ {
		name := fmt.Sprint("n", i)
		acquire(t, m[0], name, "new", 3_600_000)
		taken = append(taken, name)
	}
	slices.Sort(taken)
	for _, s := range m {
		harness.Await(t, 10*time.Second, "those alone to be held", func() bool {
			got := []string{}
			for cursor := "0"; ; {
				v := s.Do("LOCK.SCAN", cursor, "COUNT", 10_000)
				got = append(got, v.Elems[1].Strings()...)
				if cursor = v.Elems[0].Str; cursor == "0" {
					break
				}
			}
			slices.Sort(got)
			return slices.Equal(taken, slices.Compact(got))
		})
	}
}

// A node that was a replica for a moment has lost its votes, so it doesn't tell the others that
// its table is complete.
func TestLocksOfANodeThatWasAReplica(t *testing.T) {
	t.Parallel()
	other := node(t)
	m := mesh{node(t, "appendonly yes", "appendfsync always"), node(t, "appendonly yes", "appendfsync always"), node(t)}
	for _, s := range m[1:] {
		meet(t, s, m[0])
	}
	m.await(t, 3)
	m.votes(t)
	m[0].Kill()
	token := acquire(t, m[2], "n", "a", 600_000, "WAIT", 10_000)
	harness.Await(t, 5*time.Second, "both votes", func() bool { return !m[1].Do("LOCK.SHOW", "n").Null })
	require.Equal(t, "OK", m[1].Do("REPLICAOF", "127.0.0.1", other.Port).Str)
	harness.Await(t, 20*time.Second, "the node to follow", func() bool { return m[1].Info("replication", "master_link_status") == "up" })
	m[2].Kill()
	require.Equal(t, "OK", m[1].Do("REPLICAOF", "NO", "ONE").Str)
	mesh{m[0], m[2]}.restart()
	m.await(t, 3)
	for range 3 {
		v := m[0].Do("LOCK.ACQUIRE", "n", "b", 600_000, "WAIT", 1000)
		require.True(t, v.Err("NOQUORUM"), "the lock %d was given to another: %v", token, v)
	}
	assert.Equal(t, "yes", m[1].Info("jobmesh", "jobmesh_locks_abstaining"))
	assert.Equal(t, "yes", m[2].Info("jobmesh", "jobmesh_locks_abstaining"))
}

// A node comes to the mesh through a part of it that is cut off. It counts the other part too, so
// together with the cut-off part it is no majority. If a node is forgotten at one node alone, that
// one gets no locks, and its refusals name the nodes that have not forgotten.
func TestJoinThroughAMinority(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m[2].Pause()
	token := acquire(t, m[0], "n", "a", 600_000, "WAIT", 10_000)
	m[0].Pause()
	m[1].Pause()
	m[2].Resume()
	harness.Await(t, 20*time.Second, "the others to be given up", func() bool { return links(m[2]) == 0 })
	m = append(m, node(t))
	meet(t, m[3], m[2])
	harness.Await(t, 5*time.Second, "the two to meet", func() bool { return links(m[3]) == 1 && links(m[2]) == 1 })
	harness.Await(t, 5*time.Second, "the new one to know all", func() bool { return m[3].Info("jobmesh", "jobmesh_known_nodes") == "4" })
	for _, s := range m[2:] {
		v := s.Do("LOCK.ACQUIRE", "n", "b", 600_000, "WAIT", 1000)
		assert.True(t, v.Err("NOQUORUM"), "%v", v)
	}
	m[0].Resume()
	m[1].Resume()
	m.await(t, 4)
	m.votes(t)
	assert.Equal(t, "OK", m[0].Do("LOCK.EXTEND", "n", "a", token, 600_000).Str)
	assert.True(t, m[3].Do("LOCK.ACQUIRE", "n", "b", 1000).NullString())

	gone := m[2].Do("JOBMESH", "CLUSTER", "MYID").Str
	m[2].Kill()
	require.Equal(t, "OK", m[0].Do("JOBMESH", "CLUSTER", "FORGET", gone).Str)
	ids := mesh{m[1], m[3]}.shortIDs(t)
	why := regexp.MustCompile("2 of 3 know nodes that this one has forgotten .FORGET them there too.: " + listed(ids...) + `\. Try again`)
	harness.Await(t, 10*time.Second, "both others to say that they count it", func() bool {
		v := m[0].Do("LOCK.ACQUIRE", "m", "b", 1000)
		require.True(t, v.Err("NOQUORUM"), "the others count it: %v", v)
		return why.MatchString(v.Str)
	})
	acquire(t, m[1], "k", "b", 60_000, "WAIT", 2000)
	for _, i := range []int{1, 3} {
		require.Equal(t, "OK", m[i].Do("JOBMESH", "CLUSTER", "FORGET", gone).Str)
	}
	acquire(t, m[0], "m", "b", 60_000, "WAIT", 2000)
	for _, i := range []int{0, 1, 3} {
		assert.Equal(t, "3", m[i].Info("jobmesh", "jobmesh_known_nodes"))
	}
}

// After a restart of all nodes locks are given at once if every vote was written: by a clean
// shutdown, or by an AOF with appendfsync always. Locks that were held are still held.
func TestLocksAfterTheRestartOfAll(t *testing.T) {
	t.Parallel()
	clean := func(s *harness.Server) { s.Stop("SHUTDOWN") }
	for name, c := range map[string]struct {
		end   func(*harness.Server)
		lines []string
	}{
		"clean, no AOF":   {func(s *harness.Server) { s.Stop("SHUTDOWN", "SAVE") }, nil},
		"clean, everysec": {clean, []string{"appendonly yes", "appendfsync everysec"}},
		"killed, always":  {(*harness.Server).Kill, []string{"appendonly yes", "appendfsync always"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := start(t, 3, c.lines...)
			token := acquire(t, m[0], "held", "a", 600_000)
			m.known(t, "held")
			v := m[1].Do("ADDJOB", "q", "b", 2000, "REPLICATE", 1, "UNIQUE", "until-processed", "KEY", "k")
			require.Equal(t, byte('+'), v.Kind, "%v", v)
			for _, s := range m {
				c.end(s)
			}
			began := time.Now()
			m.restart()
			for _, s := range m {
				require.Equal(t, "no", s.Info("jobmesh", "jobmesh_locks_abstaining"))
				require.Contains(t, s.Do("JOBMESH", "CLUSTER", "INFO").Str, "cluster_locks:voting")
			}
			m.await(t, 3)
			acquire(t, m[0], "n", "a", 60_000, "WAIT", 2000)
			assert.True(t, m[2].Do("LOCK.ACQUIRE", "held", "b", 60_000).NullString(), "it is remembered")
			assert.Equal(t, "OK", m[1].Do("LOCK.EXTEND", "held", "a", token, 60_000).Str)
			v = m[2].Do("ADDJOB", "q", "b", 2000, "REPLICATE", 1, "UNIQUE", "until-processed", "KEY", "k")
			assert.True(t, v.Err("CONFLICT") || v.NullString() || v.Kind == '-' && !v.Err("NOQUORUM"), "%v", v)
			assert.Less(t, time.Since(began), 10*time.Second)
		})
	}
}

// Where votes may be lost, the nodes wait for the longest lease that they gave, not for
// the longest that there may be, and say so: in the log, in CLUSTER INFO, in refusals.
func TestLocksAfterTheLossOfAllVotes(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "appendfsync everysec")
	acquire(t, m[0], "n", "a", 8000, "WAIT", 5000)
	m.known(t, "n")
	for _, s := range m {
		s.Kill()
	}
	began := time.Now()
	m.restart()
	m.await(t, 3)
	ids := m.shortIDs(t)
	why := regexp.MustCompile("3 of 3 nodes don't vote yet, as they may have lost votes that they gave, or are new: " +
		listed(ids[0]+` for up to \d+ s`, ids[2]+` for up to \d+ s`) + `, this one for up to \d+ s\. Try again`)
	// On a busy machine the others don't answer in time at first.
	harness.Await(t, 5*time.Second, "an answer that tells of all nodes", func() bool {
		v := m[1].Do("LOCK.ACQUIRE", "n", "b", 1000)
		require.True(t, v.Err("NOQUORUM"), "%v", v)
		return why.MatchString(v.Str)
	})
	for _, s := range m {
		info := s.Do("JOBMESH", "CLUSTER", "INFO").Str
		assert.Contains(t, info, "cluster_locks:abstaining\r\ncluster_locks_abstaining_ms:")
		assert.Contains(t, info, "cluster_locks_abstaining_because:it may have lost votes that it gave, for up to ")
		harness.Await(t, 3*time.Second, "the log to tell", func() bool { return strings.Contains(s.Log(), "this node doesn't vote for locks: ") })
	}
	m.votes(t)
	acquire(t, m[1], "n", "b", 1000, "WAIT", 3000)
	assert.Less(t, time.Since(began), 20*time.Second)
	for _, s := range m {
		harness.Await(t, 3*time.Second, "the log to tell", func() bool { return strings.Contains(s.Log(), "this node votes for locks again") })
	}
}

// A log isn't trusted if a vote may have been given before it was written: if the AOF was off for
// a moment, appendfsync had another value, or a rewrite could hold up its sync.
func TestLogsThatLackVotes(t *testing.T) {
	t.Parallel()
	for name, config := range map[string][2]string{
		"off":        {"appendonly", "no"},
		"everysec":   {"appendfsync", "everysec"},
		"on rewrite": {"no-appendfsync-on-rewrite", "yes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := start(t, 3, "appendonly yes", "appendfsync always")
			before := m[0].Do("CONFIG", "GET", config[0]).Elems[1].Str
			m[2].Pause()
			require.Equal(t, "OK", m[0].Do("CONFIG", "SET", config[0], config[1]).Str)
			token := acquire(t, m[0], "n", "a", 600_000, "WAIT", 10_000)
			if config[0] != "appendonly" {
				require.Equal(t, "OK", m[0].Do("CONFIG", "SET", config[0], before).Str)
			}
			m[0].Kill()
			m[1].Pause()
			m[2].Resume()
			m[0].Restart()
			harness.Await(t, 20*time.Second, "the two to meet again", func() bool { return links(m[0]) == 1 && links(m[2]) == 1 })
			for range 2 {
				v := m[2].Do("LOCK.ACQUIRE", "n", "b", 600_000, "WAIT", 1000)
				require.True(t, v.Err("NOQUORUM") || v.Null, "the lock %d was given to another: %v", token, v)
			}
			assert.Equal(t, "yes", m[0].Info("jobmesh", "jobmesh_locks_abstaining"))
			m[1].Resume()
		})
	}
}

// Before a node gives the first vote with a longer lease, or without a lease, it writes to the
// nodes' file that it gives such votes.
func TestPromisedLeasesAreKept(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	acquire(t, m[0], "n", "a", 100_000, "WAIT", 5000)
	for _, s := range m {
		text, err := os.ReadFile(filepath.Join(s.Dir, "jobmesh-nodes.conf"))
		require.NoError(t, err)
		assert.Contains(t, string(text), "\nvars longest-lease 114688 unleased no new no leases 114688,5120,5120 sum ")
	}
	v := m[0].Do("ADDJOB", "q", "b", 5000, "REPLICATE", 1, "UNIQUE", "until-processed", "KEY", "k")
	require.Equal(t, byte('+'), v.Kind, "%v", v)
	text, err := os.ReadFile(filepath.Join(m[1].Dir, "jobmesh-nodes.conf"))
	require.NoError(t, err)
	assert.Contains(t, string(text), " unleased yes new no leases 114688,5120,5120 sum ")
}

// A vote without a lease doesn't end by time. If two of three nodes have lost theirs, they give
// locks of jobs again only when the third node, which has the job, can be asked. They give other
// locks when the longest lease is over.
func TestLostVotesWithoutALease(t *testing.T) {
	for name, c := range map[string]struct {
		hold  func(t *testing.T, m mesh) (id string)
		other func(s *harness.Server) harness.Value // asks for the same lock, and must not get it
	}{
		"of a job that waits": {
			func(t *testing.T, m mesh) string {
				id := addUnique(t, m[0], "q", "b", "REPLICATE", 1, "UNIQUE", "until-processed", "KEY", "k")
				require.Equal(t, id, taken(t, m[0]))
				return id
			},
			func(s *harness.Server) harness.Value {
				return s.Do("ADDJOB", "q", "b", 1000, "REPLICATE", 1, "UNIQUE", "until-processed", "KEY", "k")
			},
		},
		"of an at-most-once run": {
			func(t *testing.T, m mesh) string {
				id := addUnique(t, m[0], "q", "b", "REPLICATE", 1, "RETRY", 0, "UNIQUE", "during-processing", "KEY", "k")
				require.Equal(t, id, taken(t, m[0]))
				return id
			},
			func(s *harness.Server) harness.Value {
				if s.Do("QLEN", "q").Int() == 0 {
					s.Do("ADDJOB", "q", "b", 1000, "REPLICATE", 1, "RETRY", 0, "UNIQUE", "during-processing", "KEY", "k")
				}
				return s.Do("GETJOB", "TIMEOUT", 1500, "FROM", "q")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := start(t, 3, "jobmesh.lock-max-lease 1000")
			locks := func(when string) {
				harness.Await(t, 30*time.Second, "locks to be given "+when, func() bool { return m[1].Do("LOCK.ACQUIRE", "free", "o", 300).Kind == ':' })
			}
			locks("at first")
			id := c.hold(t, m)
			for _, s := range m { // a majority is enough for the lock
				harness.Await(t, 10*time.Second, "all to have voted", func() bool {
					return !s.Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", "q").Null || !s.Do("LOCK.SHOW", "k", "TYPE", "running", "QUEUE", "q").Null
				})
			}
			short := m.shortIDs(t)[0]
			m[0].Pause()
			lost := mesh{m[1], m[2]}
			for _, s := range lost {
				s.Kill() // their votes were in memory alone
			}
			lost.restart()
			locks("again")
			v := c.other(m[1])
			assert.True(t, v.NullArray() || v.Err("NOQUORUM") && strings.Contains(v.Str, short), "%v", v)
			for _, s := range lost {
				harness.Await(t, 5*time.Second, "the log to say so", func() bool {
					return strings.Contains(s.Log(), "it may have lost votes for locks of jobs, until these nodes have told theirs, or are forgotten: "+short)
				})
			}
			m[0].Resume()
			m.votes(t)
			v = c.other(m[1])
			assert.True(t, v.Null, "the other has it: %v", v)
			require.Equal(t, int64(1), m[0].Do("ACKJOB", id).Int())
			harness.Await(t, 10*time.Second, "the lock to be had", func() bool { return !c.other(m[1]).Null })
		})
	}
}

// A node that may have lost votes forgets very many locks bit by bit. If it is killed in between,
// the locks that are left still don't count, and a holder keeps its lock.
func TestLongKilledWhileItForgetsLocks(t *testing.T) {
	const locks = 30_000
	s := node(t, "appendonly yes")
	c := s.Dial()
	for k := range locks / 1000 {
		for i := range 1000 {
			c.Later("LOCK.ACQUIRE", fmt.Sprint("n", 1000*k+i), "me", 3_600_000)
		}
		for range 1000 {
			require.Equal(t, byte(':'), c.Receive().Kind)
		}
	}
	m := mesh{s, node(t, "appendonly yes"), node(t, "appendonly yes")}
	for _, other := range m[1:] {
		meet(t, other, s)
	}
	m.await(t, 3)
	m.votes(t)
	require.Equal(t, byte(':'), s.Do("LOCK.ACQUIRE", "held", "ann", 600_000, "WAIT", 5000).Kind)
	forgotten := func() int { return strings.Count(s.Appended(), "DELLOCK") }
	before := forgotten()
	for range 3 {
		s.Kill()
		s.Restart()
		harness.Await(t, 10*time.Second, "locks to be forgotten", func() bool { return forgotten() > before })
	}
	s.Kill()
	t.Logf("%d of %d were forgotten", forgotten()-before, locks)
	s.Restart()
	m.await(t, 3)
	m.votes(t)
	for _, x := range m {
		assert.NotEqual(t, byte(':'), x.Do("LOCK.ACQUIRE", "held", "bob", 60_000, "WAIT", 100).Kind)
	}
	assert.Equal(t, byte(':'), s.Do("LOCK.ACQUIRE", "held", "ann", 60_000, "WAIT", 5000).Kind)
}
