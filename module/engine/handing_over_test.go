package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// A node that was offered an at-most-once job is forgotten: the job is uncertain then, and not on its way. INFO doesn't count it as handed over until its
// life is over, a day later.
func TestAnUncertainJobIsNotOnItsWay(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	b := wire.NodeID{1, 1}
	n.Mesh().Add(b, "10.0.0.1:1")
	n.SetLife(b, 7)
	n.SetFeatures(b, engine.Features{})
	n.Mesh().Up(b, "10.0.0.1:1", false)
	n.Effects()
	_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 0, TTL: 86400, CanWait: true})
	require.NoError(t, err)
	n.Effects()
	need := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: 1}
	require.NoError(t, n.Receive(b, need.Append(nil)))
	n.Effects()
	require.Equal(t, 1, n.HandingOver())
	n.Mesh().Down(b)
	n.Mesh().Forget(b)
	n.Effects()
	for range 1000 {
		now += 100
		n.SetNow(now)
		n.Tick()
		n.Effects()
	}
	assert.Zero(t, n.HandingOver())
}
