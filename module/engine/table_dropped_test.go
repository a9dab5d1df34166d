package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/wire"
)

// A node that lost votes asks b for its table. b drops the questions of half a minute, as a node does that loads its data (DEBUG RELOAD), or to which
// too much waits to be sent. The connection stays. From then on b answers each question at once: the table's twenty pages come soon.
func TestQuestionsForATableThatWereDropped(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	b, d, e := wire.NodeID{1, 1}, wire.NodeID{2, 2}, wire.NodeID{3, 3}
	for _, p := range []wire.NodeID{b, d, e} {
		n.Mesh().Add(p, "10.0.0.1:1")
	}
	n.Locks().SetVotes(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
	n.Effects()
	n.Locks().MarkIncomplete()
	for _, p := range []wire.NodeID{b, d, e} {
		n.Mesh().Up(p, "10.0.0.1:1", false)
	}
	n.Effects()
	number := uint8(0) // of the last question to b
	tell := func(p wire.NodeID, m wire.Message) {
		m.Kind, m.Flags = wire.LockPage, wire.TableFlags(number)
		require.NoError(t, n.Receive(p, m.Append(nil)))
	}
	// pulls returns the cursors of the questions to b.
	pulls := func() (cursors []uint64) {
		for _, f := range n.Effects() {
			if f.Kind != engine.Send || f.Peer.ID != b {
				continue
			}
			var m wire.Message
			require.NoError(t, m.Parse(n.Message(&f)))
			if m.Kind == wire.LockPull {
				number, cursors = wire.TableNumber(m.Flags), append(cursors, m.Round)
			}
		}
		return cursors
	}
	const last = 20
	began, asked := now, 0
	for now < began+600_000 {
		now += 100
		n.SetNow(now)
		n.Tick()
		for todo := pulls(); len(todo) > 0; todo = pulls() {
			for _, cursor := range todo {
				if asked++; now < began+30_000 {
					continue // b drops it
				}
				next := cursor + 1
				if next == last {
					next = 0
				}
				tell(b, wire.Message{Round: next})
				if next == 0 {
					t.Logf("b's last page after %d s, %d questions", (now-began)/1000, asked)
					assert.Less(t, now, began+45_000)
					return
				}
			}
		}
	}
	t.Errorf("b's last page hasn't come after %d s, %d questions", (now-began)/1000, asked)
}
