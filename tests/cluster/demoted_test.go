package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A master that was made a replica follows what becomes of its jobs, also of those
// that it held back for their key: an acknowledged job keeps neither body nor key.
func TestDemotedNodeFollowsItsJobs(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	old, other := m[0], m[1]
	replica := harness.Start(t, harness.WithReplicaOf(old), harness.WithConfig("jobmesh.cluster-port "+busPort(t), "jobmesh.cluster-node-timeout 2000"))
	replica.AwaitSync()
	for range 4 {
		v := old.Do("ADDJOB", "q", "the key", 5000, "REPLICATE", 2, "RETRY", 5, "UNIQUE", "during-processing")
		require.Equal(t, byte('+'), v.Kind, "%v", v)
	}
	require.Equal(t, int64(4), old.Do("QLEN", "q").Int())
	// A master that has said more than its replica has heard needs a full resync.
	require.Equal(t, "OK", old.Do("CLIENT", "PAUSE", 20_000, "WRITE").Str)
	replica.AwaitStream(old)
	was := id(old)
	require.Equal(t, "OK", replica.Do("REPLICAOF", "NO", "ONE").Str)
	require.Equal(t, "OK", old.Do("REPLICAOF", "127.0.0.1", replica.Port).Str)
	old.AwaitSync()
	require.Equal(t, "OK", old.Do("CLIENT", "UNPAUSE").Str)
	require.Equal(t, "1", replica.Info("stats", "sync_partial_ok"))
	harness.Await(t, 5*time.Second, "the replica to have nothing in its queues", func() bool { return old.Do("QLEN", "q").Int() == 0 })
	// In this order: a node that forgets the last one that it knows is alone, and new to the mesh when it meets another.
	meet(t, other, replica)
	harness.Await(t, 10*time.Second, "the new node to hear of the old one", func() bool { return flags(replica, was) != "unknown" })
	for _, s := range (mesh{other, replica}) {
		require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", was).Str)
	}
	mesh{other, replica}.await(t, 2)
	for range 4 {
		v := replica.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
		require.Len(t, v.Elems, 1, "%v", v)
		require.Equal(t, int64(1), replica.Do("ACKJOB", v.Elems[0].Elems[1].Str).Int())
	}
	harness.Await(t, 20*time.Second, "the replica to follow", func() bool {
		return replica.Do("WAIT", 1, 5000).Is(1) && old.Do("JSCAN", 0, "STATE", "queued", "STATE", "active").Elems[1].Elems == nil
	})
	assert.NotContains(t, old.Log(), "panic")
}

// promoted kills a node, and promotes a replica in its place, which the others meet. If forget is true, they forget the
// old node. promoted calls before while the replica follows, and between when the old node has ended.
func (m mesh) promoted(t *testing.T, old *harness.Server, forget bool, before, between func()) (heir *harness.Server) {
	t.Helper()
	heir = harness.Start(t, harness.WithReplicaOf(old), harness.WithConfig("appendonly yes", "jobmesh.cluster-port "+busPort(t), "jobmesh.cluster-node-timeout 2000"))
	heir.AwaitSync()
	before()
	heir.AwaitStream(old)
	was, now := id(old), mesh{heir}
	old.Kill()
	between()
	require.Equal(t, "OK", heir.Do("REPLICAOF", "NO", "ONE").Str)
	for _, s := range m {
		if s != old {
			if forget {
				require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", was).Str)
			}
			meet(t, s, heir)
			now = append(now, s)
		}
	}
	for _, s := range now {
		awaitReachable(t, s, len(now)-1)
	}
	return heir
}

// A job that was handed over to a node, and waits there, waits in the queue of the replica that is promoted in the node's
// place, also after the replica is restarted.
func TestHandedOverJobsWaitAtAPromotedReplica(t *testing.T) {
	t.Parallel()
	m := start(t, 2, "appendonly yes")
	job := ""
	heir := m.promoted(t, m[1], true, func() { job = handedOver(t, m[0], m[1]) }, func() {})
	queued := func() bool { return stateAt(heir, job) == "queued" }
	harness.Await(t, 20*time.Second, "the job to be queued", queued)
	heir.Stop()
	heir.Restart()
	harness.Await(t, 20*time.Second, "the job to be queued again", queued)
}

// A replica is promoted, and started again before it meets anybody. It tells the others of its copies all the same.
func TestPromotedReplicaIsRestartedBeforeItMeetsOthers(t *testing.T) {
	t.Parallel()
	m := start(t, 2, "appendonly yes")
	heir := node(t, "appendonly yes")
	require.Equal(t, "OK", heir.Do("REPLICAOF", "127.0.0.1", m[1].Port).Str) // not in its configuration, which the restart reads
	heir.AwaitSync()
	job := added(t, m[0].Dial(), "q", "b", 2000, "RETRY", 300, "REPLICATE", 2)
	heir.AwaitStream(m[1])
	m[1].Kill()
	require.Equal(t, "OK", heir.Do("REPLICAOF", "NO", "ONE").Str)
	harness.Await(t, 10*time.Second, "the replica to be promoted", func() bool { return heir.Do("ADDJOB", "other", "b", 0).Kind == '+' })
	harness.Await(t, 10*time.Second, "its first append-only file", func() bool {
		return heir.Info("persistence", "aof_rewrite_in_progress")+heir.Info("persistence", "aof_rewrite_scheduled") == "00"
	})
	heir.Stop()
	heir.Restart()
	meet(t, m[0], heir)
	harness.Await(t, 10*time.Second, "the node to hear of the copy", func() bool {
		return slices.ContainsFunc(m[0].Do("SHOW", job).Field("nodes-delivered").Elems, func(v harness.Value) bool { return v.Str == id(heir) })
	})
}

// A replica is promoted and told in the same moment whom it meets, as scripts of operators do.
func TestPromotedReplicaIsIntroducedAtOnce(t *testing.T) {
	t.Parallel()
	m, heir := start(t, 1), node(t)
	require.Equal(t, "OK", heir.Do("REPLICAOF", "127.0.0.1", m[0].Port).Str)
	heir.AwaitSync()
	c, port := heir.Dial(), m[0].Do("CONFIG", "GET", "jobmesh.cluster-port").Elems[1].Str
	assert.Contains(t, heir.Do("JOBMESH", "CLUSTER", "MEET", "127.0.0.1", m[0].Port, port).Str, "a replica meets nobody")
	c.Later("REPLICAOF", "NO", "ONE")
	c.Later("JOBMESH", "CLUSTER", "MEET", "127.0.0.1", m[0].Port, port)
	require.Equal(t, "OK", c.Receive().Str)
	require.Equal(t, "OK", c.Receive().Str)
	harness.Await(t, 10*time.Second, "the nodes to meet", func() bool { return heir.Info("jobmesh", "jobmesh_reachable_nodes") == "1" })
}

// A job has copies at two nodes. In the place of one of them a replica is promoted, and nobody but the replica knows that it
// has a copy. It hears all the same that the job was released, is done, or was cancelled, also from a node that it meets later.
func TestWordsReachAPromotedReplica(t *testing.T) {
	ends := []string{"ACKJOB", "FASTACK", "CANCELJOB", "RELEASEJOB"}
	for _, how := range []string{"forgotten", "known", "met later"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			m := start(t, 2, "appendonly yes")
			c, jobs := m[0].Dial(), map[string]string{}
			end := func() {
				for _, verb := range ends {
					if verb != "FASTACK" || how != "met later" { // a FASTACK is told only once
						c.Do(verb, jobs[verb])
					}
				}
			}
			heir := m.promoted(t, m[1], how == "forgotten", func() {
				for _, verb := range ends {
					jobs[verb] = added(t, c, "q", "b", 2000, "RETRY", 300, "REPLICATE", 2, "DEFERRED")
				}
			}, func() {
				if how == "met later" {
					end()
				}
			})
			if how != "met later" {
				end()
			}
			for verb, job := range jobs {
				switch {
				case verb == "FASTACK" && how == "met later":
				case verb == "RELEASEJOB":
					harness.Await(t, 10*time.Second, verb, func() bool { return stateAt(heir, job) == "active" })
				default:
					harness.Await(t, 10*time.Second, verb, func() bool { s := stateAt(heir, job); return s == "" || s == "acked" })
				}
			}
		})
	}
}

// A blocked job is on all nodes that hold the one that blocks it: so also on a replica that was promoted in the
// place of such a node. Without it the replica could queue the other job first, after RELEASEJOB LAST.
func TestBlockedJobsGoToAPromotedReplica(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes")
	c, first := m[0].Dial(), ""
	heir := m.promoted(t, m[1], true, func() {
		require.Equal(t, "OK", m[2].Do("JOBMESH", "CLUSTER", "LEAVING", "yes").Str)
		harness.Await(t, 5*time.Second, "the word of it", func() bool { return flags(m[0], id(m[2])) == "leaving" })
		first = added(t, c, "q", "first", 2000, "RETRY", 300, "REPLICATE", 2, "DEFERRED")
		require.Equal(t, "OK", m[2].Do("JOBMESH", "CLUSTER", "LEAVING", "no").Str)
	}, func() {})
	require.NotEmpty(t, stateAt(heir, first))
	for range 6 {
		blocked := added(t, c, "q", "blocked", 2000, "RETRY", 300, "BLOCKEDBY", first)
		require.NotEmpty(t, stateAt(heir, blocked), "the heir lacks a job that the one blocks that it has")
	}
}

// A node was a replica while another one was replaced. The others have forgotten that one, and were started again since. They
// tell the node so all the same when it comes back, and it forgets the other one too, whether they had forgotten the node or not.
func TestForgottenNodesAreKnownAfterRestarts(t *testing.T) {
	t.Parallel()
	for name, forgotten := range map[string]bool{"forgotten itself": true, "not forgotten": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forgottenAfterRestarts(t, forgotten)
		})
	}
}

func forgottenAfterRestarts(t *testing.T, forgotten bool) {
	m := start(t, 4)
	back, gone, rest := m[0], m[3], m[1:3]
	goneID, backID := id(gone), id(back)
	require.Equal(t, "OK", back.Do("REPLICAOF", "127.0.0.1", rest[0].Port).Str)
	harness.Await(t, 10*time.Second, "the replica to follow", func() bool { return back.Info("replication", "master_link_status") == "up" })
	gone.Kill()
	for _, s := range rest {
		require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", goneID).Str)
		if forgotten {
			require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", backID).Str)
		}
	}
	for _, s := range rest {
		s.Stop()
		s.Restart()
	}
	for i, s := range rest {
		harness.Await(t, 15*time.Second, "the nodes to meet again", func() bool { return flags(s, id(rest[1-i])) == "noflags" && links(s) == 1 })
	}
	require.Equal(t, "OK", back.Do("REPLICAOF", "NO", "ONE").Str)
	port := back.Do("CONFIG", "GET", "jobmesh.cluster-port").Elems[1].Str
	harness.Await(t, 10*time.Second, "the nodes to meet", func() bool {
		return rest[0].Do("JOBMESH", "CLUSTER", "MEET", "127.0.0.1", back.Port, port).Str == "OK"
	})
	harness.Await(t, 5*time.Second, "the node to be back", func() bool { return known(rest[1]) == "3" })
	assert.Equal(t, "stale", flags(back, goneID))
	harness.Await(t, 30*time.Second, "the node to forget the other one", func() bool { return flags(back, goneID) == "unknown" })
}
