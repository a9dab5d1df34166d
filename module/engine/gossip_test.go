package engine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// Each node is told of each other node before long, however many there are.
func TestGossipTellsOfAll(t *testing.T) {
	for peers := 2; peers <= 40; peers++ {
		const begin = 1_000_000
		n, _, _ := node(begin)
		for i := range peers {
			n.Mesh().Up(wire.NodeID{0: byte(i + 2), 19: 1}, fmt.Sprintf("10.0.0.%d:1", i), false)
		}
		n.Effects()
		told := map[wire.NodeID]map[wire.NodeID]bool{}
		for round := range peers/3 + 3 {
			n.SetNow(begin + int64(round)*1000)
			n.Tick()
			effects := n.Effects()
			for i := range effects {
				if effects[i].Kind != engine.Send {
					continue
				}
				var m wire.Message
				require.NoError(t, m.Parse(n.Message(&effects[i])))
				if m.Flags&wire.Whole != 0 {
					continue // those heartbeats tell of all nodes at once
				}
				to := effects[i].Peer.ID
				if told[to] == nil {
					told[to] = map[wire.NodeID]bool{}
				}
				for _, p := range m.Peers {
					told[to][p.ID] = true
				}
			}
		}
		for to, of := range told {
			assert.Len(t, of, peers-1, "%d nodes: what %x heard", peers+1, to[:1])
		}
		assert.Len(t, told, peers)
	}
}

// A forgotten node is let in again only if an operator makes the two meet (CLUSTER MEET).
func TestKnocking(t *testing.T) {
	n, _, _ := node(1_000_000)
	id := wire.NodeID{0: 7}
	heartbeat := func(flags uint8) []byte {
		m := wire.Message{Kind: wire.Heartbeat, Flags: flags}
		return m.Append(nil)
	}
	away := func() (c int) {
		for _, e := range n.Effects() {
			if e.Kind == engine.Disconnect {
				c++
			}
		}
		return c
	}
	n.Mesh().Up(id, "10.0.0.7:1", false)
	require.Len(t, n.Mesh().All(), 1)
	for name, forget := range map[string]func(){"forgotten": func() { n.Mesh().Forget(id) }, "reset": n.Reset} {
		forget()
		assert.Equal(t, 1, away(), name)
		n.Mesh().Down(id)
		n.Mesh().Up(id, "10.0.0.7:1", false)
		require.NoError(t, n.Receive(id, heartbeat(0)))
		assert.Equal(t, 1, away(), name)
		assert.Empty(t, n.Mesh().All(), name)
		n.Mesh().Down(id)
		n.Mesh().Up(id, "10.0.0.7:1", false)
		require.NoError(t, n.Receive(id, heartbeat(wire.Met)))
		assert.Zero(t, away(), name)
		require.Len(t, n.Mesh().All(), 1, name)
		assert.Equal(t, 1, n.Mesh().Reachable(), name)
		// CLUSTER MEET is said at this node.
		forget()
		n.Mesh().Down(id)
		n.Mesh().Up(id, "10.0.0.7:1", false)
		n.Effects()
		assert.False(t, n.Mesh().Meet(id, "10.0.0.7:1"), "its connection is up")
		assert.Equal(t, 1, n.Mesh().Reachable(), name)
		assert.Zero(t, away(), name)
	}
}

// A forgotten node is connected, but not let in, and its first message is still to come. When another node tells of it, it is in.
func TestOneAtTheDoorComesInByGossip(t *testing.T) {
	now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
	n, _ := paired(now, peer)
	n.Mesh().Forget(peer)
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	require.Empty(t, n.Mesh().All())
	require.True(t, n.Mesh().Add(peer, "10.0.0.1:1"))
	require.Len(t, n.Mesh().All(), 1)
	assert.True(t, n.Mesh().All()[0].Connected)
	n.Mesh().Down(peer)
	assert.False(t, n.Mesh().All()[0].Connected)

	n.Mesh().Forget(peer)
	require.True(t, n.Mesh().Meet(peer, "10.0.0.1:1")) // and the other node connects
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	assert.True(t, n.Mesh().All()[0].Connected)
}
