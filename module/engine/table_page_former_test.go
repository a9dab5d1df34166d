package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/wire"
)

// b is of a former release, and gives its pages no number. A node that lost votes asks for a page again if the answer takes more than a second, so the last page of a table comes twice. The first page was told
// while its sender lacked votes itself: the table counts as a part, although the sender was whole when it told the last page, twice.
func TestTheLastPageOfAFormerReleaseComesTwice(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	b, c, d, e := wire.NodeID{1, 1}, wire.NodeID{2, 2}, wire.NodeID{3, 3}, wire.NodeID{4, 4}
	for _, p := range []wire.NodeID{b, c, d, e} {
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
		m.Kind, m.Flags = wire.LockPage, m.Flags|wire.TableFlags(number)
		require.NoError(t, n.Receive(p, m.Append(nil)))
	}
	// pulls counts the questions for a page of b.
	pulls := func(cursor uint64) (count int) {
		for _, f := range n.Effects() {
			if f.Kind != engine.Send || f.Peer.ID != b {
				continue
			}
			var m wire.Message
			require.NoError(t, m.Parse(n.Message(&f)))
			if m.Kind == wire.LockPull {
				number = 0 // a former release
				if m.Round == cursor {
					count++
				}
			}
		}
		return count
	}
	tell(d, wire.Message{})
	tell(e, wire.Message{})
	n.Effects()
	const second = 130
	tell(b, wire.Message{Flags: wire.Partial, Round: second}) // b lacks votes that it gave
	asked := pulls(second)
	for range 12 { // the line to b is slow
		now += 100
		n.SetNow(now)
		n.Tick()
		asked += pulls(second)
	}
	require.Equal(t, 2, asked, "the second page is asked for twice")
	require.True(t, n.Locks().Abstains())
	tell(b, wire.Message{}) // b has learnt its votes meanwhile
	require.True(t, n.Locks().Abstains(), "the first page lacks them")
	tell(b, wire.Message{})
	assert.True(t, n.Locks().Abstains(), "the first page lacks them still")
}
