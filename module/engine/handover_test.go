package engine_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// offer makes a node add an at-most-once job, and offer it to one process (life) of another node.
func offer(t *testing.T, n *engine.Node, to wire.NodeID, life uint64) store.ID {
	n.SetLife(to, life)
	n.Mesh().Up(to, "10.0.0.1:1", false)
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, TTL: 86400})
	require.NoError(t, err)
	n.Effects()
	ask := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: 1}
	require.NoError(t, n.Receive(to, ask.Append(nil)))
	return id
}

// An at-most-once job is in another database for a moment (SWAPDB) while it is offered, and
// its Offer may have been lost with the connection. Some node still has the job, and the job
// isn't offered again to another process if the first one may have taken it.
func TestOfferedOutOfSight(t *testing.T) {
	const life = 7
	peer := wire.NodeID{1, 2, 3}
	for _, tc := range []struct {
		what               string
		meanwhile          func(n *engine.Node, id store.ID, round uint64)
		offered, uncertain int
		there              bool
	}{
		{what: "the offer is lost", offered: 1, there: true,
			meanwhile: func(*engine.Node, store.ID, uint64) {}},
		{what: "the offer is taken", offered: 0,
			meanwhile: func(n *engine.Node, id store.ID, round uint64) {
				n.SetLife(peer, life)
				n.Mesh().Up(peer, "10.0.0.1:1", false)
				m := wire.Message{Kind: wire.Taken, ID: wire.JobID(id), Round: round}
				require.NoError(t, n.Receive(peer, m.Append(nil)))
				n.Mesh().Down(peer)
			}},
		{what: "the node is restarted", offered: 0, uncertain: 1, there: true,
			meanwhile: func(n *engine.Node, _ store.ID, _ uint64) {
				n.SetLife(peer, life+1)
				n.Mesh().Up(peer, "10.0.0.1:1", false)
				n.Mesh().Down(peer)
			}},
		{what: "the node is forgotten, and comes back", offered: 1, uncertain: 1, there: true,
			meanwhile: func(n *engine.Node, _ store.ID, _ uint64) { n.Mesh().Forget(peer) }},
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
			id := offer(t, n, peer, life)
			first := offers()
			require.Len(t, first, 1)
			n.Mesh().Down(peer)
			n.Swapped(0, 1)
			now++
			n.SetNow(now)
			n.Tick()
			tc.meanwhile(n, id, first[0])
			n.Tick()
			n.Swapped(0, 1)
			n.Effects()
			n.Tick()
			n.Effects()
			n.SetLife(peer, life)
			n.Mesh().Up(peer, "10.0.0.1:1", true)
			again := offers()
			assert.Len(t, again, tc.offered)
			if tc.offered > 0 {
				assert.Equal(t, first, again, "the same round")
			}
			if assert.Equal(t, tc.there, n.Job(&id) != nil); tc.there && tc.offered == 0 {
				require.True(t, n.Enqueue(&id))
				assert.Empty(t, n.Job(&id).Extras())
			}
			assert.EqualValues(t, tc.uncertain, n.Stats.UncertainHandingOver)
		})
	}
}

// A node that was forgotten, and comes back, may offer a job again that it had handed over:
// the job isn't taken a second time.
func TestOfferedAgainByAForgottenNode(t *testing.T) {
	now := int64(1_700_000_000_000)
	giver, _, _ := node(now)
	taker, _, _ := node(now)
	from, to := wire.NodeID{1, 2, 3}, wire.NodeID{3, 2, 1}
	taker.Mesh().Up(from, "10.0.0.1:1", false)
	id := offer(t, giver, to, 7)
	var offer []byte
	for _, e := range giver.Effects() {
		if e.Kind == engine.Send && wire.Kind(giver.Message(&e)[0]) == wire.Offer {
			offer = append([]byte(nil), giver.Message(&e)...)
		}
	}
	require.NotNil(t, offer)
	require.NoError(t, taker.Receive(from, offer))
	require.NotNil(t, taker.Job(&id))
	require.True(t, taker.Delete(&id)) // soon the deletion is no longer remembered
	taker.Effects()
	taker.Mesh().Forget(from)
	for range 100 { // longer than the job lives, because a giver's clock may have been set back
		now += 3_600_000
		taker.SetNow(now)
		taker.Tick()
	}
	taker.Mesh().Up(from, "10.0.0.1:1", true) // CLUSTER MEET
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

// A node is restarted while an at-most-once job that it offered lies in another database.
// The taker has the job, and must remember the round until it hears that the giver's job is gone.
// If the taker had forgotten the round and were offered the job again, there would be two.
func TestOfferedOutOfSightAndRestarted(t *testing.T) {
	const life = 7
	now := int64(1_700_000_000_000)
	peer := wire.NodeID{1, 2, 3}
	settled := func(n *engine.Node) (count int) {
		for _, e := range n.Effects() {
			if e.Kind != engine.Send {
				continue
			}
			switch wire.Kind(n.Message(&e)[0]) {
			case wire.Settled:
				count++
			case wire.Offer:
				t.Error("it is offered again")
			}
		}
		return count
	}
	n, _, _ := node(now)
	id := offer(t, n, peer, life)
	taken := wire.Message{Kind: wire.Taken, ID: wire.JobID(id)}
	for _, e := range n.Effects() {
		var m wire.Message
		if e.Kind == engine.Send && m.Parse(n.Message(&e)) == nil && m.Kind == wire.Offer {
			taken.Round = m.Round
			assert.Empty(t, m.Job.Extras, "to whom it is offered is nobody else's business")
		}
	}
	record := slices.Clone(n.Job(&id).Record())

	n, k, _ := node(now)
	n.Mesh().Add(peer, "10.0.0.1:1")
	n.BeginLoading()
	q := n.NewQueueFor(nil)
	require.NoError(t, n.LoadRecord(q, record))
	require.NoError(t, k.Adopt(q))
	n.Attached(q, []byte("q"), 1)
	n.EndLoading()
	require.Zero(t, n.Settle(engine.Trust{Exact: true}))
	n.SetLife(peer, life)
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	require.NoError(t, n.Receive(peer, taken.Append(nil)))
	assert.Zero(t, settled(n), "while it is out of sight")
	n.Swapped(0, 1)
	n.Effects()
	now++
	n.SetNow(now)
	n.Tick()
	assert.Nil(t, n.Job(&id))
	assert.Zero(t, settled(n))
	require.NoError(t, n.Receive(peer, taken.Append(nil)))
	assert.Equal(t, 1, settled(n))
	assert.Zero(t, n.Stats.UncertainHandingOver)
}

// A node is a replica for a while. If it reached no master, the job that it had offered is
// still offered. Otherwise only its master knows what became of the job.
func TestOfferedAsAReplica(t *testing.T) {
	for _, follows := range []bool{false, true} {
		now := int64(1_700_000_000_000)
		peer := wire.NodeID{1, 2, 3}
		n, _, _ := node(now)
		id := offer(t, n, peer, 7)
		n.Effects()
		n.Mesh().Down(peer)
		n.SetPassive(true)
		n.Effects()
		if follows {
			n.Follow()
		}
		uncertain := n.SetPassive(false)
		assert.Equal(t, follows, uncertain == 1)
		n.Effects()
		n.Mesh().Up(peer, "10.0.0.1:1", false)
		offers := 0
		for _, e := range n.Effects() {
			if e.Kind == engine.Send && wire.Kind(n.Message(&e)[0]) == wire.Offer {
				offers++
			}
		}
		assert.Equal(t, !follows, offers == 1)
		assert.Equal(t, follows, n.Job(&id).Uncertain())
	}
}
