package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// A node that is new to a mesh learns b's table, whose line is slow: the last page is asked for twice. When it has come once the node votes. Then it meets c, and
// learns both tables anew, for b may have voted since. The second answer to the old question isn't b's table.
func TestAPageOfATableThatWasLearntBefore(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	b, c := wire.NodeID{1, 1}, wire.NodeID{2, 2}
	keep := func() {
		n.Locks().VotesKept(n.Locks().Votes())
		n.Effects()
	}
	n.Mesh().Add(b, "10.0.0.1:1")
	keep()
	n.Mesh().Up(b, "10.0.0.1:1", false)
	number := uint8(1) // of the last question to b
	pulls := func(cursor uint64) (count int) {
		for _, f := range n.Effects() {
			if f.Kind != engine.Send || f.Peer.ID != b {
				continue
			}
			var m wire.Message
			require.NoError(t, m.Parse(n.Message(&f)))
			if m.Kind == wire.LockPull {
				number = wire.TableNumber(m.Flags)
				if m.Round == cursor {
					count++
				}
			}
		}
		return count
	}
	tell := func(p wire.NodeID, m wire.Message) {
		m.Kind, m.Flags = wire.LockPage, wire.TableFlags(number)
		require.NoError(t, n.Receive(p, m.Append(nil)))
	}
	require.True(t, n.Locks().Abstains())
	require.Equal(t, 1, pulls(0))
	const second = 130
	tell(b, wire.Message{Round: second})
	asked := pulls(second)
	for range 12 {
		now += 100
		n.SetNow(now)
		n.Tick()
		asked += pulls(second)
	}
	require.Equal(t, 2, asked)
	tell(b, wire.Message{}) // the answer to the first of the two
	former := number
	keep()
	require.False(t, n.Locks().Abstains(), "it knows the table of b")
	n.Mesh().Add(c, "10.0.0.2:1")
	n.Mesh().Up(c, "10.0.0.2:1", false)
	require.True(t, n.Locks().Abstains(), "it learns both tables")
	asked = pulls(0)
	now += 10
	n.SetNow(now)
	n.Tick()
	asked += pulls(0)
	require.Equal(t, 1, asked, "b's table is asked for from its beginning")
	number = 1
	tell(c, wire.Message{})
	require.True(t, n.Locks().Abstains())
	number = former
	tell(b, wire.Message{}) // the answer to the second of the two
	assert.True(t, n.Locks().Abstains(), "b hasn't told the first page of its table, which may have votes of since")
}
