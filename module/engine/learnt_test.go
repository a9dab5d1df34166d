package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// A node that has lost its votes learns votes for one holder from two other nodes, by two tokens. The later vote
// is of a claim that failed. Its end leaves the holder what he had before.
func TestLearntVoteOfTwoClaims(t *testing.T) {
	const now = int64(1_700_000_000_000)
	name := store.AppendBareName(nil, []byte("n"))
	for first, second := range map[uint64]uint64{1 << 20: 1 << 21, 1 << 21: 1 << 20} {
		n, _, _ := node(now)
		third := wire.NodeID{9}
		for _, p := range []wire.NodeID{mate, third} {
			n.Mesh().Add(p, "10.0.0.1:1")
		}
		n.Locks().MarkIncomplete()
		receive := func(from wire.NodeID, m wire.Message) {
			require.NoError(t, n.Receive(from, m.Append(nil)))
			n.Effects()
		}
		lock := wire.Lock{Name: name, Owner: []byte("x"), Lease: 600_000, Left: 600_000}
		for p, token := range map[wire.NodeID]uint64{mate: first, third: second} {
			n.Mesh().Up(p, "10.0.0.1:1", false)
			n.Tick()
			n.Effects()
			lock.Token = uint64(now)<<20 + token
			receive(p, wire.Message{Kind: wire.LockPage, Flags: wire.Partial, Locks: []wire.Lock{lock}})
		}
		require.NotNil(t, n.Locks().Live(name))
		lock.Token = uint64(now)<<20 + max(first, second)
		receive(mate, wire.Message{Kind: wire.Unlock, Flags: wire.Fresh, Round: 1, Lock: lock})
		if assert.NotNil(t, n.Locks().Live(name), "%d, %d", first, second) {
			assert.Equal(t, uint64(now)<<20+min(first, second), n.Locks().Live(name).Token)
		}
		lock.Token = uint64(now)<<20 + min(first, second)
		receive(mate, wire.Message{Kind: wire.Unlock, Flags: wire.Fresh, Round: 2, Lock: lock})
		assert.Nil(t, n.Locks().Live(name), "that one failed, too")
	}
}

// A node that has lost its votes learns votes for one holder. One is of an older claim, with a lease that ends soon; another node
// tells of that claim with the lease to which the holder has extended it. The third is of a later claim, which fails. The vote that is
// left lasts as long as the holder counts on it, in whatever order the three come.
func TestLearntVoteIsNotShortened(t *testing.T) {
	const now = int64(1_700_000_000_000)
	name := store.AppendBareName(nil, []byte("n"))
	old, late := uint64(now)<<20+1<<20, uint64(now)<<20+1<<21
	short := wire.Lock{Name: name, Owner: []byte("x"), Token: old, Lease: 5_000, Left: 3_000}
	extended := wire.Lock{Name: name, Owner: []byte("x"), Token: old, Lease: 600_000, Left: 600_000, Flags: 8} // FlagRenewed
	failed := wire.Lock{Name: name, Owner: []byte("x"), Token: late, Lease: 5_000, Left: 4_000}
	whole := extended
	whole.Flags = 0
	for how, order := range map[string][]wire.Lock{
		"older first": {whole, failed}, "later first": {failed, whole}, "short, later, extended": {short, failed, extended}, "short, extended, later": {short, extended, failed},
		"later, short, extended": {failed, short, extended}, "extended, short, later": {extended, short, failed},
	} {
		n, peers := learner(t, now, order)
		unlock := wire.Message{Kind: wire.Unlock, Flags: wire.Fresh, Round: 1, Lock: wire.Lock{Name: name, Owner: []byte("x"), Token: late}}
		require.NoError(t, n.Receive(peers[3], unlock.Append(nil)))
		n.Effects()
		l := n.Locks().Live(name)
		if assert.NotNil(t, l, how) {
			assert.Greater(t, n.Locks().Left(l), int64(590_000), "%s: the holder has the lock for ten minutes, this vote ends in %d ms", how, n.Locks().Left(l))
		}
	}
}

// A node that has lost its votes learns three votes for one holder: one by the token that he counts on, for ten minutes, and two of later
// claims, which fail. It hears first that the last claim has failed. The vote lasts as long as the holder counts on it.
func TestLearntVoteOfThreeClaims(t *testing.T) {
	now := int64(1_700_000_000_000)
	name := store.AppendBareName(nil, []byte("n"))
	t0, t1, t2 := uint64(now)<<20+1<<20, uint64(now)<<20+2<<20, uint64(now)<<20+3<<20
	lock := func(token uint64, left int64) wire.Lock {
		return wire.Lock{Name: name, Owner: []byte("x"), Token: token, Lease: left, Left: left}
	}
	order := []wire.Lock{lock(t2, 4_000), lock(t1, 4_000), lock(t0, 600_000)}
	n, peers := learner(t, now, order)
	require.NotNil(t, n.Locks().Live(name))
	require.Greater(t, n.Locks().Left(n.Locks().Live(name)), int64(590_000))
	for _, token := range []uint64{t2, t1} {
		unlock := wire.Message{Kind: wire.Unlock, Flags: wire.Fresh, Round: 1, Lock: wire.Lock{Name: name, Owner: []byte("x"), Token: token}}
		require.NoError(t, n.Receive(peers[3], unlock.Append(nil)))
		n.Effects()
		l := n.Locks().Live(name)
		if assert.NotNil(t, l) {
			assert.Greater(t, n.Locks().Left(l), int64(590_000), "the holder has the lock for ten minutes, this vote ends in %d ms", n.Locks().Left(l))
		}
		pass(n, &now, 6_000)
	}
	assert.NotNil(t, n.Locks().Live(name), "the holder has the lock, and this node's vote is gone")
}

// learner makes a node that has lost its votes, and learns each of locks from another one of its six peers.
func learner(t *testing.T, now int64, locks []wire.Lock) (*engine.Node, []wire.NodeID) {
	t.Helper()
	n, _, _ := node(now)
	peers := []wire.NodeID{{1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {6, 6}}
	for _, p := range peers {
		n.Mesh().Add(p, "10.0.0.1:1")
	}
	n.Locks().MarkIncomplete()
	for i, lock := range locks {
		n.Mesh().Up(peers[i], "10.0.0.1:1", false)
		n.Tick()
		n.Effects()
		require.NoError(t, n.Receive(peers[i], (&wire.Message{Kind: wire.LockPage, Round: 1, Locks: []wire.Lock{lock}}).Append(nil)))
		n.Effects()
	}
	return n, peers
}
