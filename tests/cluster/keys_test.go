package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A job that waits for its copies is in no log, but the key of its queue is: RENAME of
// that queue has the same outcome at the replica, and when the log is read.
func TestKeyOfAQueueWhoseJobWaitsForItsCopies(t *testing.T) {
	strict := "propagation-error-behavior panic"
	m := start(t, 3, "appendonly yes", "appendfsync always", strict)
	replica := harness.Start(t, harness.WithConfig("appendonly yes", strict), harness.WithReplicaOf(m[0]))
	replica.AwaitSync()
	c := m[0].Dial()
	old := c.Do("ADDJOB", "y", "replaced", 5000, "REPLICATE", 1)
	require.Equal(t, byte('+'), old.Kind, "%v", old)
	for _, s := range m[1:] {
		s.Pause()
	}
	w := m[0].Dial()
	w.Send("ADDJOB", "x", "pending", 60_000, "REPLICATE", 3)
	harness.Await(t, 5*time.Second, "the queue's key", func() bool { return c.Do("EXISTS", "x").Is(1) })
	require.Equal(t, "OK", c.Do("RENAME", "x", "y").Str)
	require.True(t, c.Do("SHOW", old.Str).Null)
	harness.Await(t, 5*time.Second, "the replica to do the same", func() bool { return replica.Do("SHOW", old.Str).Null })
	for _, s := range m[1:] {
		s.Resume()
	}
	id := w.Receive()
	require.Equal(t, byte('+'), id.Kind, "%v", id)
	assert.Equal(t, "y", c.Do("SHOW", id.Str).Field("queue").Str)
	m[0].Kill()
	m[0].Restart()
	assert.True(t, m[0].Do("SHOW", old.Str).Null, "the job of the queue that was replaced is back")
	assert.Equal(t, "y", m[0].Do("SHOW", id.Str).Field("queue").Str)
	assert.Equal(t, []string{"y"}, m[0].Do("KEYS", "*").Strings())
	replica.AwaitSync()
	harness.Await(t, 5*time.Second, "the replica's keys", func() bool { return assert.ObjectsAreEqual([]string{"y"}, replica.Do("KEYS", "*").Strings()) })
	assert.NotContains(t, m[0].Log(), "CRITICAL")
}

// A copy, or a job that is handed over, comes to a node where the time to live of the queue's key is
// over. The job is in a new queue there, and stays.
func TestCopyBehindTheEndOfAQueuesTime(t *testing.T) {
	m := start(t, 2)
	a, b := m[0].Dial(), m[1].Dial()
	b.Do("DEBUG", "SET-ACTIVE-EXPIRE", "0")
	expire := func(queue string) {
		require.Equal(t, byte('+'), b.Do("ADDJOB", queue, "old", 0, "REPLICATE", 1).Kind)
		require.Equal(t, int64(1), b.Do("PEXPIRE", queue, 1).Int())
		b.Do("DEBUG", "SLEEP", "0.01")
	}
	expire("q")
	id := a.Do("ADDJOB", "q", "copied", 5000, "REPLICATE", 2, "RETRY", 1000)
	require.Equal(t, byte('+'), id.Kind, "%v", id)
	assert.Equal(t, int64(1), b.Do("EXISTS", "q").Int())
	assert.False(t, b.Do("SHOW", id.Str).Null, "the copy was promised")

	expire("handed")
	w := m[1].Dial()
	w.Send("GETJOB", "FROM", "handed")
	id = a.Do("ADDJOB", "handed", "over", 0, "REPLICATE", 1, "RETRY", 0)
	require.Equal(t, byte('+'), id.Kind, "%v", id)
	got := w.Receive()
	require.Len(t, got.Elems, 1)
	assert.Equal(t, id.Str, got.Elems[0].Elems[1].Str)
	assert.Equal(t, int64(1), b.Do("EXISTS", "handed").Int())
	assert.False(t, b.Do("SHOW", id.Str).Null)
}
