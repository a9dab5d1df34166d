package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// A delayed job that another node has this one queue counts here as delayed, until it is queued.
func TestDelayedJobOfAnotherNodeIsCounted(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	n.AddPeer(mate, "10.0.0.1:1")
	n.PeerUp(mate, "10.0.0.1:1", false)
	m := wire.Message{Kind: wire.ReplJob, Flags: wire.QueueIt, ID: wire.JobID((&store.IDMaker{}).Make(1, 7, 60, true)), Span: 5000,
		Holders: []wire.Node{mate.Node()}, Queue: []byte("q"),
		Job: wire.Job{CTime: uint64(now) * 1_000_000, Left: 60_000, Retry: 10, Delay: 5, Repl: 2, Body: []byte("b")}}
	require.NoError(t, n.Receive(mate, m.Append(nil)))
	n.Effects()
	assert.EqualValues(t, 1, n.Counted(store.Delayed))
	assert.True(t, n.Visible(n.Queue([]byte("q"))))
	now += 5001
	n.SetNow(now)
	n.Tick()
	n.Effects()
	assert.Zero(t, n.Counted(store.Delayed))
	assert.EqualValues(t, 1, n.Queued())
}
