package engine_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// outvoted is a node of three that has won the lock of a job's run by the votes of the other two,
// while its own vote stands for a job of one of them.
type outvoted struct {
	t     *testing.T
	n     *engine.Node
	now   int64
	peers [2]wire.NodeID
	other wire.Lock // the lock that it voted for
	job   store.ID
	round uint64 // of the claim that was sent last
}

func newOutvoted(t *testing.T) *outvoted {
	o := &outvoted{t: t, now: 1_700_000_000_000, peers: [2]wire.NodeID{{1, 2, 3, 1}, {1, 2, 3, 2}}}
	o.n, _, _ = node(o.now)
	for i, id := range o.peers {
		o.n.Mesh().Up(id, []string{"10.0.0.1:1", "10.0.0.2:1"}[i], false)
	}
	o.n.Locks().Trust()
	o.n.Locks().VotesKept(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
	o.look()
	o.job = o.add("q")
	_, err := o.n.Wait([][]byte{[]byte("q")}, "x")
	require.NoError(t, err)
	o.n.Fetch([]*store.Queue{o.n.Queue([]byte("q"))}, 1, true, nil)
	o.look()
	require.NotZero(t, o.round)
	for _, id := range o.peers {
		deny := wire.Message{Kind: wire.Deny, Round: o.round, Count: wire.Unconfirmed, Lock: wire.Lock{Token: 7}}
		require.NoError(t, o.n.Receive(id, deny.Append(nil)))
		o.look()
	}
	require.Nil(t, o.n.Locks().Live(o.other.Name))
	o.other.Job, o.other.Token = wire.JobID(o.foreign()), o.other.Token+1<<20
	claim := wire.Message{Kind: wire.Claim, Round: 99, Members: o.n.MembersSum(), Lock: o.other}
	require.NoError(t, o.n.Receive(o.peers[0], claim.Append(nil)))
	o.look()
	require.NotNil(t, o.n.Locks().Live(o.other.Name))
	o.advance(100)
	o.grant()
	require.True(t, o.n.HasLock(o.n.Job(&o.job), store.LockRun))
	require.Equal(t, store.ID(o.other.Job), o.n.Locks().Live(o.other.Name).Job)
	return o
}

func (o *outvoted) add(queue string) store.ID {
	id, _, err := o.n.AddJob(&engine.Add{
		Queue: []byte(queue), Body: []byte("b"), Replicate: 1, Retry: 100, TTL: 86400,
		Unique: engine.Unique{Strategy: store.UniqueDuring, Busy: store.BusyWait},
	})
	require.NoError(o.t, err)
	o.look()
	return id
}

// foreign is the ID of a job that the node doesn't know.
func (o *outvoted) foreign() store.ID { return store.ID{9, 9, 9} }

func (o *outvoted) look() {
	for _, e := range o.n.Effects() {
		if e.Kind == engine.Send && o.n.Message(&e)[0] == byte(wire.Claim) {
			var m wire.Message
			require.NoError(o.t, m.Parse(o.n.Message(&e)))
			o.round, o.other = m.Round, wire.Lock{Name: bytes.Clone(m.Lock.Name), Lease: m.Lock.Lease, Token: m.Lock.Token}
		}
	}
}

func (o *outvoted) advance(ms int) {
	for range ms {
		o.now++
		o.n.SetNow(o.now)
		o.n.Tick()
		o.look()
	}
}

// grant makes the other nodes vote for the last claim.
func (o *outvoted) grant() {
	job := o.foreign()
	for _, id := range o.peers {
		grant := wire.Message{Kind: wire.Grant, Round: o.round}
		require.NoError(o.t, o.n.Receive(id, grant.Append(nil)))
		o.look()
	}
	o.other.Job = wire.JobID(job)
}

// takenBack makes the other job's node take its claim back.
func (o *outvoted) takenBack() {
	l := o.n.Locks().Live(o.other.Name)
	unlock := wire.Message{Kind: wire.Unlock, Lock: wire.Lock{Name: o.other.Name, Job: wire.JobID(l.Job), Token: l.Token}}
	require.NoError(o.t, o.n.Receive(o.peers[0], unlock.Append(nil)))
	o.look()
}

// The node's table tells of the lock once its vote for the other job is taken back.
func TestALockThatWasWonAgainstTheOwnVote(t *testing.T) {
	o := newOutvoted(t)
	o.takenBack()
	if l := o.n.Locks().Live(o.other.Name); assert.NotNil(t, l) {
		assert.Equal(t, o.job, l.Job)
	}
}

// The table also tells of the lock if it was renewed meanwhile: the renewal is a claim of its own.
func TestALockThatWasWonAgainstTheOwnVoteIsRenewed(t *testing.T) {
	o := newOutvoted(t)
	_, pending, err := o.n.Working(&o.job, engine.Work{Client: "c"})
	require.NoError(t, err)
	require.True(t, pending)
	o.look()
	o.grant()
	o.takenBack()
	if l := o.n.Locks().Live(o.other.Name); assert.NotNil(t, l) {
		assert.Equal(t, o.job, l.Job)
	}
}

// LOCK.CLEAR frees the lock, although the table tells of another holder.
func TestALockThatWasWonAgainstTheOwnVoteIsCleared(t *testing.T) {
	for _, prefix := range []bool{false, true} {
		o := newOutvoted(t)
		name := o.other.Name
		if prefix {
			name = name[:2]
		}
		cleared, _, err := o.n.Locks().Clear(name, prefix, false)
		require.NoError(t, err)
		assert.EqualValues(t, 1, cleared)
		o.look()
		assert.Nil(t, o.n.Locks().Live(o.other.Name), "prefix: %v", prefix)
		assert.False(t, o.n.HasLock(o.n.Job(&o.job), store.LockRun))
	}
}

// A node that has forgotten all others knows no job of theirs, so its own job has the lock.
func TestALockThatWasWonAgainstTheOwnVoteOfOneThatIsAlone(t *testing.T) {
	o := newOutvoted(t)
	for _, id := range o.peers {
		o.n.Mesh().Forget(id)
	}
	o.look()
	o.add("q")
	got := o.n.Fetch([]*store.Queue{o.n.Queue([]byte("q"))}, 1, true, nil)
	assert.Empty(t, got, "a job runs that may not run beside another")
	assert.True(t, o.n.HasLock(o.n.Job(&o.job), store.LockRun))
}

// The name of a lock that is taken isn't overwritten by the name of another lock.
func TestALockIsTakenInPlaceOfOneThatWasVotedFor(t *testing.T) {
	o := newOutvoted(t)
	q := o.n.Queue([]byte("q"))
	box := q.Box
	o.n.Unlinked(box, q)
	o.look()
	require.Same(t, q, o.n.Reclaim(box))
	o.n.Attached(q, []byte("otherwise"), 0)
	o.look()
	for _, id := range o.peers {
		o.n.Mesh().Forget(id)
	}
	o.n.Locks().Reset() // the vote is over
	o.look()
	id := o.add("q")
	require.Len(t, o.n.Fetch([]*store.Queue{o.n.Queue([]byte("q"))}, 1, true, nil), 1)
	if l := o.n.Locks().Live(o.other.Name); assert.NotNil(t, l) {
		assert.Equal(t, id, l.Job)
	}
	for l := o.n.Locks().Table().Head; l != nil; l = l.Next {
		assert.Same(t, l, o.n.Locks().Live(bytes.Clone(l.Name())), "%q", l.Name())
	}
}

// The job still has the lock when its queue is back from another database.
func TestALockThatWasWonAgainstTheOwnVoteGoesBySwap(t *testing.T) {
	o := newOutvoted(t)
	o.n.Swapped(0, 1)
	o.look()
	o.n.Swapped(0, 1)
	o.look()
	assert.True(t, o.n.HasLock(o.n.Job(&o.job), store.LockRun))
	o.takenBack()
	if l := o.n.Locks().Live(o.other.Name); assert.NotNil(t, l) {
		assert.Equal(t, o.job, l.Job)
	}
}
