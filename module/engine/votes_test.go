package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// keeper is a node of three, and its answers to claims.
type keeper struct {
	t       *testing.T
	n       *engine.Node
	now     int64
	granted bool // whether it has granted a claim since it was last asked
	keeps   bool // whether it wants its votes written down
}

var keeperPeers = []wire.NodeID{{1, 2, 3}, {2, 2, 3}}

func (k *keeper) look() {
	for _, e := range k.n.Effects() {
		k.keeps = k.keeps || e.Kind == engine.KeepVotes
		if e.Kind == engine.Send {
			var m wire.Message
			require.NoError(k.t, m.Parse(k.n.Message(&e)))
			k.granted = k.granted || m.Kind == wire.Grant
		}
	}
}

func (k *keeper) receive(m *wire.Message) {
	require.NoError(k.t, k.n.Receive(keeperPeers[0], m.Append(nil)))
	k.look()
}

// claim asks the node for its vote.
func (k *keeper) claim(l wire.Lock) bool {
	k.granted = false
	l.Token = uint64(k.now) << 20
	k.receive(&wire.Message{Kind: wire.Claim, Round: uint64(k.now), Members: k.n.MembersSum(), Lock: l})
	return k.granted
}

// kept tells the node that v is on disk, and says whether the node votes then.
func (k *keeper) kept(v lock.Votes) bool {
	k.n.Locks().VotesKept(v)
	k.look()
	return k.granted
}

// tick lets time go by until what the node wants written down satisfies until, and returns what it
// wanted before.
func (k *keeper) tick(until func(lock.Votes) bool) (before lock.Votes) {
	for range 10_000 {
		before = k.n.Locks().Votes()
		k.now += 1000
		k.n.SetNow(k.now)
		k.keeps = false
		k.n.Tick()
		if k.look(); k.keeps && until(k.n.Locks().Votes()) {
			return before
		}
	}
	k.t.Fatal("that is never wanted")
	return before
}

// A node writes down what it remembers of its votes outside the main thread. When it wants less to be
// written than before, the disk may say less from that moment on. Then no vote relies on more, until something is on
// disk that the node wanted after it wanted more again.
func TestVotesRelyOnWhatIsOnDiskForSure(t *testing.T) {
	job := store.ID{1, 2, 3}
	for name, tc := range map[string]struct {
		votes lock.Votes
		less  func(lock.Votes) bool
		lock  wire.Lock
	}{
		"lease": {
			lock.Votes{Longest: lock.LeasesUpTo(3_670_016)},
			func(v lock.Votes) bool { return v.Longest.Max() < 3_600_000 },
			wire.Lock{Name: bareName("l"), Owner: []byte("ann"), Lease: 3_600_000},
		},
		"without a lease": {
			lock.Votes{Longest: lock.LeasesUpTo(5120), Unleased: true},
			func(v lock.Votes) bool { return !v.Unleased },
			wire.Lock{Name: store.AppendLockName(nil, store.LockWait, []byte("q"), []byte("k")), Job: wire.JobID(job)},
		},
	} {
		for _, early := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				k := &keeper{t: t, now: dawn}
				k.n, _, _ = node(k.now)
				for _, id := range keeperPeers {
					k.n.Mesh().Add(id, "x:1")
				}
				k.n.Locks().SetVotes(tc.votes)
				for _, id := range keeperPeers {
					k.n.Mesh().Up(id, "x:1", false)
				}
				k.n.Locks().Trust()
				k.look()
				before := k.tick(tc.less)
				require.False(t, tc.less(before))
				less := k.n.Locks().Votes() // this is now being written
				if early {
					k.kept(before) // this was written before
				}
				k.keeps = false
				require.False(t, k.claim(tc.lock))
				require.True(t, k.keeps, "more is to be remembered again")
				more := k.n.Locks().Votes()
				require.False(t, tc.less(more))
				assert.False(t, k.kept(less))
				assert.True(t, k.kept(more))
				assert.True(t, k.claim(tc.lock), "at once, from now on")
			})
		}
	}
}

// A node that meets its first neighbour notes that it is new to the mesh. It has learnt the
// neighbour's votes before this note is on disk. It doesn't vote until the disk says that it isn't new.
func TestANewNodeVotesWhenThatIsOverOnDisk(t *testing.T) {
	k := &keeper{t: t, now: dawn}
	k.n, _, _ = node(k.now)
	k.n.Locks().SetVotes(lock.Votes{Longest: lock.LeasesUpTo(5120)})
	k.n.Mesh().Up(keeperPeers[0], "x:1", false)
	k.tick(func(v lock.Votes) bool { return v.New })
	fresh := k.n.Locks().Votes() // this is now being written
	k.receive(&wire.Message{Kind: wire.LockPage})
	require.False(t, k.n.Locks().Abstains())
	lock := wire.Lock{Name: bareName("l"), Owner: []byte("ann"), Lease: 1000}
	require.False(t, k.claim(lock))
	assert.False(t, k.kept(fresh))
	assert.True(t, k.kept(k.n.Locks().Votes()))
}

// After a crash of all nodes a long lease of one kind of locks holds up no locks of another kind.
func TestALongLeaseHoldsUpLocksOfItsKindAlone(t *testing.T) {
	job := store.ID{1, 2, 3}
	k := &keeper{t: t, now: dawn}
	k.n, _, _ = node(k.now)
	for _, id := range keeperPeers {
		k.n.Mesh().Add(id, "x:1")
	}
	k.n.Locks().SetVotes(lock.Votes{Longest: lock.Leases{5120, 5120, 86_400_000}})
	k.n.Locks().MarkIncomplete()
	for _, id := range keeperPeers {
		k.n.Mesh().Up(id, "x:1", false)
	}
	k.look()
	k.now += 6000
	k.n.SetNow(k.now)
	k.n.Tick()
	k.look()
	require.NotNil(t, k.n.Locks().Abstaining())
	assert.True(t, k.claim(wire.Lock{Name: bareName("l"), Owner: []byte("ann"), Lease: 1000}))
	assert.True(t, k.claim(wire.Lock{Name: store.AppendLockName(nil, store.LockRun, []byte("q"), []byte("k")), Job: wire.JobID(job), Lease: 1000}))
	assert.False(t, k.claim(wire.Lock{Name: store.AppendLockName(nil, store.LockWait, []byte("q"), []byte("k")), Job: wire.JobID(job), Lease: 1000}))
}
