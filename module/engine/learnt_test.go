package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// A node that has lost its votes learns one holder's from two others, by two tokens: the later
// is of a claim that failed, whose end leaves the holder what he had before.
func TestLearntVoteOfTwoClaims(t *testing.T) {
	const now = int64(1_700_000_000_000)
	name := store.AppendBareName(nil, []byte("n"))
	for first, second := range map[uint64]uint64{1 << 20: 1 << 21, 1 << 21: 1 << 20} {
		n, _, _ := node(now)
		third := wire.NodeID{9}
		for _, p := range []wire.NodeID{mate, third} {
			n.AddPeer(p, "10.0.0.1:1")
		}
		n.DistrustLocks()
		receive := func(from wire.NodeID, m wire.Message) {
			require.NoError(t, n.Receive(from, m.Append(nil)))
			n.Effects()
		}
		lock := wire.Lock{Name: name, Owner: []byte("x"), Lease: 600_000, Left: 600_000}
		for p, token := range map[wire.NodeID]uint64{mate: first, third: second} {
			n.PeerUp(p, "10.0.0.1:1", false)
			n.Tick()
			n.Effects()
			lock.Token = uint64(now)<<20 + token
			receive(p, wire.Message{Kind: wire.LockPage, Flags: wire.Partial, Locks: []wire.Lock{lock}})
		}
		require.NotNil(t, n.Lock(name))
		lock.Token = uint64(now)<<20 + max(first, second)
		receive(mate, wire.Message{Kind: wire.Unlock, Flags: wire.Fresh, Round: 1, Lock: lock})
		if assert.NotNil(t, n.Lock(name), "%d, %d", first, second) {
			assert.Equal(t, uint64(now)<<20+min(first, second), n.Lock(name).Token)
		}
		lock.Token = uint64(now)<<20 + min(first, second)
		receive(mate, wire.Message{Kind: wire.Unlock, Flags: wire.Fresh, Round: 2, Lock: lock})
		assert.Nil(t, n.Lock(name), "that one failed, too")
	}
}
