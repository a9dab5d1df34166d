package engine_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// A delayed job that another node lets this node queue counts here as delayed, until it is queued.
func TestDelayedJobOfAnotherNodeIsCounted(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	n.Mesh().Add(mate, "10.0.0.1:1")
	n.Mesh().Up(mate, "10.0.0.1:1", false)
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

// A delayed job is counted by the node that queues it when its delay is over. A node that hears that the job is
// queued elsewhere stops counting it.
func TestDelayedJobIsQueuedElsewhere(t *testing.T) {
	n, _, _ := node(dawn)
	n.Mesh().Add(mate, "10.0.0.1:1")
	n.Mesh().Up(mate, "10.0.0.1:1", false)
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 2, Retry: 10, TTL: 600, Delay: 60, Async: true})
	require.NoError(t, err)
	n.Effects()
	require.EqualValues(t, 1, n.Counted(store.Delayed))
	m := wire.Message{Kind: wire.Queued, ID: id} // a client has said ENQUEUE there
	require.NoError(t, n.Receive(mate, m.Append(nil)))
	n.Effects()
	assert.Zero(t, n.Counted(store.Delayed))
	record := bytes.Clone(n.Job(&id).Record())
	n = loaded(t, dawn, [][]byte{record})
	assert.Zero(t, n.Counted(store.Delayed))
}

// A delayed job that waits for nothing any more is counted by the node that is
// to queue it, also after that node's restart. This is the node where a client ended the last job that it waited for, or else the
// first of the nodes that hear of the end.
func TestLetGoDelayedJobIsCountedAfterARestart(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, n *engine.Node, p *store.ID){
		"here": func(t *testing.T, n *engine.Node, p *store.ID) { require.True(t, n.Ack(p)) },
		"elsewhere": func(t *testing.T, n *engine.Node, p *store.ID) {
			third := wire.NodeID{0xee, 1}
			n.Mesh().Add(third, "10.0.0.2:1")
			n.Mesh().Up(third, "10.0.0.2:1", false)
			m := wire.Message{Kind: wire.SetAck, ID: *p, Holders: []wire.Node{third.Node()}}
			require.NoError(t, n.Receive(third, m.Append(nil)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, _, _ := node(dawn)
			high := wire.NodeID{0xff, 1} // this node is the first of two
			n.Mesh().Add(high, "10.0.0.1:1")
			n.Mesh().Up(high, "10.0.0.1:1", false)
			maker := &store.IDMaker{}
			p, c := maker.Make(1, 7, 60, true), maker.Make(2, 7, 60, true)
			give := func(id store.ID, delay uint32, extras []byte) {
				m := wire.Message{Kind: wire.ReplJob, ID: id, Holders: []wire.Node{high.Node()}, Queue: []byte("q"),
					Job: wire.Job{CTime: uint64(dawn) * 1_000_000, Left: 600_000, Retry: 10, Delay: delay, Repl: 2, Body: []byte("b"), Extras: extras}}
				require.NoError(t, n.Receive(high, m.Append(nil)))
				n.Effects()
			}
			give(p, 0, nil)
			f := store.Family{}
			f.Name(p)
			give(c, 60, store.AppendExtra(nil, store.TagFamily, f.Value()))
			require.EqualValues(t, 1, n.Counted(store.Blocked))
			end(t, n, &p)
			n.Effects()
			require.EqualValues(t, 1, n.Counted(store.Delayed))
			n = loaded(t, dawn, [][]byte{bytes.Clone(n.Job(&c).Record())})
			assert.EqualValues(t, 1, n.Counted(store.Delayed))
		})
	}
}
