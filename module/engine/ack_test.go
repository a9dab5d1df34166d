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

// A node whose connection breaks before it has answered a SetAck is told again as soon as it is
// back. Its answer to another SetAck, about a job that this node remembers only as gone, doesn't
// count for the first one.
func TestOneAnswerIsNotTakenForAnother(t *testing.T) {
	for _, answered := range []bool{false, true} {
		now := int64(1_700_000_000_000)
		n, _, _ := node(now)
		peer := wire.NodeID{1, 2, 3}
		n.Mesh().Up(peer, "10.0.0.1:1", false)
		add := func(n *engine.Node) store.ID {
			id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 10, TTL: 600})
			require.NoError(t, err)
			n.Effects()
			return id
		}
		receive := func(kind wire.Kind, id store.ID) {
			require.NoError(t, n.Receive(peer, (&wire.Message{Kind: kind, ID: id}).Append(nil)))
		}
		acks := func() (count int) {
			for _, e := range n.Effects() {
				if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.SetAck) {
					count++
				}
			}
			return count
		}
		id := add(n)
		n.Ack(&id)
		require.Equal(t, 1, acks())

		other, _, _ := node(now + 1)
		other.Mesh().Up(peer, "10.0.0.1:1", false)
		add(other) // the nodes are given the same random bits
		gone := add(other)
		require.NotEqual(t, id, gone)
		rec := bytes.Clone(other.Job(&gone).Record())
		receive(wire.SetAck, gone)
		receive(wire.WillQueue, gone)
		require.Equal(t, 1, acks(), "it is gone")
		require.NoError(t, n.ApplyJob([]byte("q"), rec)) // meanwhile a backup of the job comes
		receive(wire.GotAck, gone)
		if answered {
			receive(wire.GotAck, id)
		}
		n.Effects()

		n.Mesh().Down(peer)
		n.Mesh().Up(peer, "10.0.0.1:1", false)
		n.Effects()
		told := 0
		for range 100 {
			now++
			n.SetNow(now)
			n.Tick()
			told += acks()
		}
		if answered {
			assert.Zero(t, told)
		} else {
			assert.Equal(t, 1, told)
		}
	}
}

// After a restart a node knows of a job that was acknowledged, and is gone, as far as the log
// tells. Another node may have a job that waits for it, and would take it for undone.
func TestAfterALoadWhatIsDoneIsKnown(t *testing.T) {
	now := int64(1_700_000_000_000)
	peer := wire.NodeID{1, 2, 3}
	for name, c := range map[string]struct {
		acked bool
		fate  uint32
	}{"acknowledged": {true, wire.OutcomeEnded}, "deleted": {false, wire.OutcomeUnknown}} {
		n, _, _ := node(now)
		n.Mesh().Up(peer, "10.0.0.1:1", false)
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 10, TTL: 600})
		require.NoError(t, err, name)
		added := bytes.Clone(n.Job(&id).Record())
		if c.acked {
			n.Ack(&id)
		}
		state := bytes.Clone(n.Job(&id).StateRecord())

		n, _, _ = node(now)
		n.BeginLoading()
		require.NoError(t, n.ApplyJob([]byte("q"), added), name)
		require.NoError(t, n.LoadState(state, nil), name)
		n.ApplyDelete(&id)
		n.EndLoading()
		n.Settle(engine.Trust{})
		n.Mesh().Up(peer, "10.0.0.1:1", false)
		n.Effects()
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.AskOutcome, ID: id}).Append(nil)), name)
		var m wire.Message
		for _, e := range n.Effects() {
			if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.Outcome) {
				require.NoError(t, m.Parse(n.Message(&e)), name)
			}
		}
		assert.Equal(t, wire.Outcome, m.Kind, name)
		assert.Equal(t, c.fate, m.Count, name)
	}
}

// A node that was away when very many jobs ended with results is told of them bit by bit, however large the results are: no more than it has answered,
// and nothing for a while if the bus takes no more. In the end it is told of all.
func TestResultsAreToldBitByBit(t *testing.T) {
	const many, size = 300, 100 << 10
	now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
	n, _ := paired(now, peer)
	n.SetFeatures(peer, engine.Features{Results: true})
	ids := make([]store.ID, many)
	for i := range ids {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 3600, TTL: 86400})
		require.NoError(t, err)
		ids[i] = id
		n.Effects()
	}
	n.Mesh().Down(peer)
	result := make([]byte, size)
	for i := range ids {
		require.True(t, n.Finish(&ids[i], &engine.Result{Has: true, Data: result, HasKeep: true, Keep: 86400}))
		n.Effects()
	}
	for range 3600 { // the other is away for an hour
		now += 1000
		n.SetNow(now)
		n.Tick()
		n.Effects()
	}
	n.Mesh().Up(peer, "10.0.0.1:1", true)
	n.SetFeatures(peer, engine.Features{Results: true})
	n.Effects()
	var flying []store.ID
	told := map[store.ID]bool{}
	ticks := func(count int) (bytes int) {
		for range count {
			now++
			n.SetNow(now)
			n.Tick()
			sent := 0
			for _, e := range n.Effects() {
				if e.Kind != engine.Send {
					continue
				}
				if text := n.Message(&e); wire.Kind(text[0]) == wire.SetEnd {
					sent += len(text)
					var m wire.Message
					require.NoError(t, m.Parse(text))
					flying = append(flying, store.ID(m.ID))
				}
			}
			require.LessOrEqual(t, sent, 2<<20, "in a tick")
			bytes += sent
		}
		return bytes
	}
	answer := func() {
		for _, id := range flying {
			told[id] = true
			require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.GotAck, ID: id, Flags: wire.Known}).Append(nil)))
			n.Effects()
		}
		flying = nil
	}
	first := ticks(300)
	assert.Greater(t, first, 3<<20)
	assert.Less(t, first, 6<<20)
	answer()
	assert.Greater(t, ticks(100), 3<<20)
	// The bus doesn't take one of them.
	lost := flying[0]
	flying = flying[1:]
	id := wire.JobID(lost)
	n.Unsent(peer, wire.SetEnd, &id)
	answer()
	assert.Zero(t, ticks(100))
	for range 100 {
		ticks(100)
		answer()
	}
	assert.Len(t, told, many)
	assert.True(t, told[lost])
}
