package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// An at-most-once job is out of sight for a moment (SWAPDB) while it is offered, and
// its Offer may have been lost with the connection. It isn't left with nobody, and
// isn't offered where it may have been taken before.
func TestOfferedOutOfSight(t *testing.T) {
	const life = 7
	peer := wire.NodeID{1, 2, 3}
	for _, tc := range []struct {
		what          string
		meanwhile     func(n *engine.Node, id store.ID, round uint64)
		offered, lost int
		there         bool
	}{
		{what: "the offer is lost", offered: 1, there: true,
			meanwhile: func(*engine.Node, store.ID, uint64) {}},
		{what: "the offer is taken", offered: 0,
			meanwhile: func(n *engine.Node, id store.ID, round uint64) {
				n.SetLife(peer, life)
				n.PeerUp(peer, "10.0.0.1:1", false)
				m := wire.Message{Kind: wire.Taken, ID: wire.JobID(id), Round: round}
				require.NoError(t, n.Receive(peer, m.Append(nil)))
				n.PeerDown(peer)
			}},
		{what: "the node is restarted", offered: 0, lost: 1,
			meanwhile: func(n *engine.Node, _ store.ID, _ uint64) {
				n.SetLife(peer, life+1)
				n.PeerUp(peer, "10.0.0.1:1", false)
				n.PeerDown(peer)
			}},
		{what: "the node is forgotten", offered: 0, lost: 1,
			meanwhile: func(n *engine.Node, _ store.ID, _ uint64) { n.Forget(peer) }},
	} {
		t.Run(tc.what, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			offers := func() (rounds []uint64) {
				for _, e := range n.Effects() {
					if e.Kind != engine.Send {
						continue
					}
					var m wire.Message
					require.NoError(t, m.Parse(n.Message(&e)))
					if m.Kind == wire.Offer {
						rounds = append(rounds, m.Round)
					}
				}
				return rounds
			}
			n.SetLife(peer, life)
			n.PeerUp(peer, "10.0.0.1:1", false)
			id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, TTL: 86400})
			require.NoError(t, err)
			n.Effects()
			ask := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: 1}
			require.NoError(t, n.Receive(peer, ask.Append(nil)))
			first := offers()
			require.Len(t, first, 1)
			n.PeerDown(peer)
			n.Swapped(0, 1)
			now++
			n.SetNow(now)
			n.Tick()
			tc.meanwhile(n, id, first[0])
			n.Tick()
			n.Swapped(0, 1)
			n.Effects()
			n.SetLife(peer, life)
			n.PeerUp(peer, "10.0.0.1:1", false)
			again := offers()
			assert.Len(t, again, tc.offered)
			if tc.offered > 0 {
				assert.Equal(t, first, again, "the same round")
			}
			assert.Equal(t, tc.there, n.Job(&id) != nil)
			assert.EqualValues(t, tc.lost, n.Stats.LostHandingOver)
		})
	}
}

// A node that is forgotten, and comes back, may offer a job again that it was rid of:
// that doesn't make it two.
func TestOfferedAgainByAForgottenNode(t *testing.T) {
	now := int64(1_700_000_000_000)
	giver, _, _ := node(now)
	taker, _, _ := node(now)
	from, to := wire.NodeID{1, 2, 3}, wire.NodeID{3, 2, 1}
	giver.SetLife(to, 7)
	giver.PeerUp(to, "10.0.0.2:1", false)
	taker.PeerUp(from, "10.0.0.1:1", false)
	id, _, err := giver.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, TTL: 86400})
	require.NoError(t, err)
	giver.Effects()
	ask := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: 1}
	require.NoError(t, giver.Receive(to, ask.Append(nil)))
	var offer []byte
	for _, e := range giver.Effects() {
		if e.Kind == engine.Send && wire.Kind(giver.Message(&e)[0]) == wire.Offer {
			offer = append([]byte(nil), giver.Message(&e)...)
		}
	}
	require.NotNil(t, offer)
	require.NoError(t, taker.Receive(from, offer))
	require.NotNil(t, taker.Job(&id))
	require.True(t, taker.Delete(&id)) // and soon that is remembered no more
	taker.Effects()
	taker.Forget(from)
	for range 100 {
		now += 60_000
		taker.SetNow(now)
		taker.Tick()
	}
	taker.PeerUp(from, "10.0.0.1:1", true) // CLUSTER MEET
	taker.Effects()
	require.NoError(t, taker.Receive(from, offer))
	assert.Nil(t, taker.Job(&id))
	answers := 0
	for _, e := range taker.Effects() {
		if e.Kind == engine.Send && wire.Kind(taker.Message(&e)[0]) == wire.Taken {
			answers++
		}
	}
	assert.Equal(t, 1, answers)
}
