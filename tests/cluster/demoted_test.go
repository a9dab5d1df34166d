package cluster

import (
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
	require.Equal(t, "OK", other.Do("JOBMESH", "CLUSTER", "FORGET", was).Str)
	meet(t, other, replica)
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
