package engine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// keyed makes a node of a mesh of three, with jobs in queue q that may not run beside others of
// their key. Each has a key of its own. It returns the jobs' IDs, the oldest first.
func keyed(t *testing.T, many int, steady func() int64) (n *engine.Node, peers []wire.NodeID, ids []store.ID) {
	now := int64(1_700_000_000_000)
	n, _, _ = steadyNode(now, steady)
	peers = []wire.NodeID{{1, 2, 3, 0}, {1, 2, 3, 1}}
	for i := range peers {
		n.Mesh().Up(peers[i], fmt.Sprintf("10.0.0.%d:1", i), false)
	}
	n.Locks().Trust()
	n.Locks().VotesKept(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
	n.Effects()
	for i := range many {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 600, TTL: 6000,
			Unique: engine.Unique{Strategy: store.UniqueDuring, Keyed: true, Key: fmt.Append(nil, i)}})
		require.NoError(t, err)
		ids = append(ids, id)
		n.Effects()
	}
	return n, peers, ids
}

// Jobs whose runs the other nodes must agree to are delivered in their order, however long the answers take.
func TestSlowAnswersKeepTheOrder(t *testing.T) {
	const many = 50
	for _, rtt := range []int64{20, 110, 250} {
		steady := int64(1000)
		n, _, ids := keyed(t, many, func() int64 { return steady })
		type late struct {
			at   int64
			from wire.NodeID
			text []byte
		}
		var flying []late
		var got []store.ID
		waits := false
		effects := func() {
			for again := true; again; {
				again = false
				for _, e := range n.Effects() {
					switch e.Kind {
					case engine.KeepVotes:
						again = true
					case engine.Serve:
						got, waits = append(got, e.Job.ID), false
					case engine.Send:
						var m wire.Message
						require.NoError(t, m.Parse(n.Message(&e)))
						if m.Kind == wire.Claim {
							flying = append(flying, late{steady + rtt, e.Peer.ID, (&wire.Message{Kind: wire.Grant, Round: m.Round}).Append(nil)})
						}
					}
				}
				if again {
					n.Locks().VotesKept(n.Locks().Votes())
				}
			}
		}
		for ms := int64(0); ms < 60_000 && len(got) < many; ms++ {
			steady = 1000 + ms
			n.SetNow(1_700_000_001_000 + ms)
			for len(flying) > 0 && flying[0].at <= steady {
				require.NoError(t, n.Receive(flying[0].from, flying[0].text))
				flying = flying[1:]
				effects()
			}
			n.Tick()
			effects()
			if !waits {
				require.Empty(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil))
				_, err := n.Wait([][]byte{[]byte("q")}, "c")
				require.NoError(t, err)
				waits = true
				effects()
			}
		}
		assert.Equal(t, ids, got, "answers after %d ms", rtt)
	}
}

// Without a majority these jobs stay in their queue, in their order. The node doesn't work through them, neither at
// once, which would take long, nor now and then. Jobs that need no votes are found behind them.
func TestJobsStayInTheirOrderWithoutAMajority(t *testing.T) {
	const many = 25_000
	steady := int64(1000)
	n, peers, _ := keyed(t, many, func() int64 { return steady })
	for i := range peers {
		n.Mesh().Down(peers[i])
	}
	q := n.Queue([]byte("q"))
	var served []store.ID
	run := func(from, to int64) {
		next := int64(0)
		for ms := from; ms < to; ms++ {
			steady = 1000 + ms
			n.SetNow(1_700_000_001_000 + ms)
			if 1_700_000_001_000+ms < next {
				continue
			}
			next = n.Tick()
			for _, e := range n.Effects() {
				if e.Kind == engine.Serve {
					served = append(served, e.Job.ID)
				}
			}
			assert.Zero(t, n.HeldBack())
		}
	}
	require.Empty(t, n.Fetch([]*store.Queue{q}, 1, true, nil))
	_, err := n.Wait([][]byte{[]byte("q")}, "c")
	require.NoError(t, err)
	run(0, 100)
	run(100, 2100)
	plain, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 600, TTL: 6000})
	require.NoError(t, err)
	run(2100, 2200)
	assert.Equal(t, []store.ID{plain}, served)
	assert.EqualValues(t, many, q.Len)

	// A job that comes back, and comes before others that were passed over, is found, too.
	for i := range 10 {
		_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 600, TTL: 6000,
			Unique: engine.Unique{Strategy: store.UniqueDuring, Keyed: true, Key: fmt.Append(nil, many+i)}})
		require.NoError(t, err)
		n.Effects()
	}
	_, err = n.Wait([][]byte{[]byte("q")}, "c")
	require.NoError(t, err)
	last, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 600, TTL: 6000})
	require.NoError(t, err)
	run(2200, 2300)
	_, err = n.Wait([][]byte{[]byte("q")}, "c")
	require.NoError(t, err)
	require.True(t, n.Enqueue(&plain, true))
	run(2300, 2400)
	assert.Equal(t, []store.ID{plain, last, plain}, served)
}
