package engine_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// A job that was released to come last waits also for a blocked job whose copy comes to its node
// after the release: that job's own end must be heard there, and no other job's end counts for it.
func TestACopyThatComesAfterTheReleaseIsCounted(t *testing.T) {
	n, _, _ := node(1_700_000_000_000)
	peer := wire.NodeID{1, 2, 3}
	add := engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600, Members: engine.Members{Deferred: true}}
	head, _, err := n.AddJob(&add)
	require.NoError(t, err)
	add.Members = engine.Members{BlockedBy: &head}
	first, _, err := n.AddJob(&add)
	require.NoError(t, err)
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	_, _, err = n.Release(&head, nil, true, false)
	require.NoError(t, err)

	second := first
	second[5]++
	j := n.Job(&first)
	copied := wire.Message{Kind: wire.ReplJob, Flags: wire.NoReply, ID: second, Queue: []byte("q"), Job: wire.Job{
		CTime: j.CTime + 1, Left: 600_000, Retry: 10, Repl: 1, Body: []byte("b"), Extras: bytes.Clone(j.Extras()),
	}}
	require.NoError(t, n.Receive(peer, copied.Append(nil)))
	require.NotNil(t, n.Job(&second))
	ended := func(id wire.JobID) (deferred, blocked bool) {
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.SetAck, ID: id}).Append(nil)))
		n.Effects()
		return n.Waits(n.Job(&head))
	}
	_, waits := ended(second)
	assert.True(t, waits, "for the first")
	_, waits = ended(first)
	assert.False(t, waits)
}
