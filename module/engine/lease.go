package engine

import (
	"errors"
	"math"
	"slices"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/table"
)

// The leases of jobs' locks. A lease begins when the lock is given, or when the job falls due. It begins anew
// when a client says WORKING, and when the job comes back into its queue.
//
// A job's LOCKTTL begins when the job falls due. Until then its waiting lock has no lease, so the other nodes
// are asked to vote anew, for the lease. Without that vote they would keep the key until the job is done. So
// they are asked again until a majority has voted, and the other nodes when they can be reached. A node that
// doesn't hear of the lease all the same is asked when its vote stands in somebody's way (EndLapsed). A vote
// is never shortened: a lease that another node has begun since, for a client that said WORKING, stays. After
// a restart a lease begins anew, and this node doesn't know whether the others have voted for it: they are
// asked then, too.

const (
	beginEveryMS = 1_000 // between tries to begin a lease
	beginPaceMS  = 50    // between slices of lock.Slice tries, if there are very many
)

// noEnd is for a lock that has no lease, and for which the others are to vote.
const noEnd = math.MaxInt64

// beginnings has the leases that are to begin, by the jobs that have the locks. The values are when the
// leases would be over (monotonic, ms), or noEnd.
type beginnings struct {
	over  table.Roster[store.ID, int64]
	open  bool                          // a pass through over isn't finished
	next  int64                         // monotonic, ms: the next pass
	apart table.Roster[store.ID, int64] // a majority has voted for these, and some nodes couldn't be reached
	ups   uint64                        // mesh.Ups when those in apart were asked for again
}

// remove forgets the beginning of a lease: the lock is over, at every node.
func (b *beginnings) remove(id store.ID) {
	b.over.Remove(id)
	b.apart.Remove(id)
}

// endsWhenDue says whether a job has a waiting lock whose lease, LOCKTTL, begins when the job is due.
func endsWhenDue(u store.Unique) bool {
	return u.LockTTL() > 0 && u.Has(store.UniqueHasWait) && u.Strategy() != store.UniqueWindow
}

// beginLease begins the lease of a waiting lock whose job falls due.
func (n *Node) beginLease(j *store.Job, u store.Unique) {
	if n.mesh.Alone() {
		if _, err := n.renewLock(j, u, store.LockWait, u.LockTTL(), Work{}); err == ErrLockLost {
			u.Clear(store.UniqueHasWait)
		}
		return
	}
	n.begins.over.Put(j.ID, n.monotonic()+u.LockTTL())
	n.askToBegin(j, u, u.LockTTL())
}

// askToBegin asks all nodes, whatever this node's own vote: the job may have its lock by others' votes. If
// the lease is over here, the lock is acquired once more, for as long as the asking takes at most. The job's
// record doesn't say so.
func (n *Node) askToBegin(j *store.Job, u store.Unique, lease int64) {
	if u.Has(store.UniqueHasWait) {
		_, _ = n.claimAnew(j, u, store.LockWait, lease, false, Work{})
		return
	}
	id, name := j.ID, slices.Clone(n.lockName(j, u, store.LockWait))
	now, _ := n.locks.AcquireFor(lock.ForJob{Name: name, Job: id, Lease: lock.TimeoutMS, Any: u.Has(store.UniqueAny)}, func(o lock.Result) { n.leaseBegun(&id, &o) })
	if now != nil {
		n.leaseBegun(&id, now)
	}
}

// leaseBegun notes how the acquisition ended that renews a waiting lock.
func (n *Node) leaseBegun(id *store.ID, o *lock.Result) {
	over := n.begins.over.Get(*id)
	if over == nil || o.Kind == lock.NoQuorum {
		return
	}
	if o.Kind == lock.Granted && slices.ContainsFunc(n.mesh.All(), func(p *Peer) bool { return !p.Connected }) {
		n.begins.apart.Put(*id, *over)
	}
	n.begins.over.Remove(*id)
}

// tickBegins asks again for leases that couldn't begin.
func (n *Node) tickBegins(now int64) {
	b := &n.begins
	if b.ups != n.mesh.Ups() && b.apart.Left() == 0 {
		b.ups = n.mesh.Ups()
		b.apart.Begin()
	}
	b.apart.Pass(lock.Slice, func(id store.ID, over *int64) bool {
		b.over.Make(id, *over)
		return false
	})
	if b.over.Len() == 0 || now < b.next {
		return
	}
	if !b.open {
		b.over.Begin()
	}
	b.open = b.over.Pass(lock.Slice, func(id store.ID, over *int64) bool {
		j := n.store.Lookup(&id)
		if j == nil || j.State == store.StateAcked || j.Unique() == nil || n.putOff(j) || n.mesh.Alone() {
			return false
		}
		if s := j.Unique().Strategy(); *over == noEnd && (!j.Unique().Has(store.UniqueHasWait) ||
			(s == store.UniqueBefore || s == store.UniqueBoth) && j.State != store.StateQueued && !held(j) && !n.awaitsFirst(j)) {
			return false // the lock is lost or given back; or this is a copy, and a delivery elsewhere may have given it back
		}
		if !n.locks.Asks(&id) { // otherwise an acquisition is under way
			lease := max(*over-now, lock.TimeoutMS)
			if *over == noEnd {
				lease = 0
			}
			n.askToBegin(j, j.Unique(), lease)
		}
		return true
	})
	if b.next = now + beginEveryMS; b.open {
		b.next = now + beginPaceMS
	}
}

// boundWait begins the lease of a job that became uncertain before it was due: the job doesn't fall due any
// more.
func (n *Node) boundWait(j *store.Job) {
	u := j.Unique()
	if u == nil || !endsWhenDue(u) {
		return
	}
	l := n.locks.Live(n.lockName(j, u, store.LockWait))
	if l == nil || l.Job != j.ID || l.Until != 0 {
		return
	}
	n.bound(l, u.LockTTL())
	n.locks.Log(l)
	n.locks.Await(l.Name(), l.Until)
	if !n.mesh.Alone() {
		n.begins.over.Put(j.ID, l.Until)
	}
}

// extend makes the lease of a job's lock begin anew (WORKING), see [Node.renewLock]. No strategy has two
// locks that last while the job is worked on.
func (n *Node) extend(j *store.Job, w Work) (pending bool, err error) {
	if j.Parts == 0 {
		return false, nil
	}
	u := j.Unique()
	if u == nil || n.notUnique {
		return false, nil
	}
	switch {
	case n.lockLost(&j.ID):
		err = ErrLockLost
	case mayRun(j, u):
		lease := u.RunTTL()
		if !n.mesh.Alone() {
			lease = n.runLease(j, u)
		}
		pending, err = n.renewLock(j, u, store.LockRun, lease, w)
	case u.Strategy() == store.UniqueUntil && !u.Has(store.UniquePending):
		pending, err = n.renewLock(j, u, store.LockWait, u.LockTTL(), w)
	}
	if err == ErrLockLost {
		n.endLoss(j)
	}
	return pending, err
}

// renewLock makes the lease of a job's lock begin anew, or takes the lock again if it is free. The error is
// ErrLockLost if another job has the lock, and notExtended if there is no majority. If other nodes have to
// answer first, and a client can wait, pending is true, and a Worked effect for it will tell. If the
// job has the lock, and there is no lease, no answer is needed.
func (n *Node) renewLock(j *store.Job, u store.Unique, space store.Space, lease int64, w Work) (pending bool, err error) {
	if n.mesh.Alone() {
		if n.takeLock(j, u, space, lease) != nil {
			return false, ErrLockLost
		}
		return false, nil
	}
	l := n.locks.Live(n.lockName(j, u, space))
	if u.Limit() > 1 && !u.Has(hasFlag(space)) {
		l = n.inTheWay(n.keyLock(j, u, space), &j.ID, u)
	}
	contested := l != nil && l.Job != j.ID && !n.locks.Outvotes(j.ID, space)
	if contested && (w.Client == nil || l.Flags&lock.FlagForeign == 0 || u.Has(store.UniqueAny) || j.State == store.StateQueued) {
		return false, ErrLockLost // otherwise other nodes tell whether this one only hasn't heard of that lock's end
	}
	return n.claimAnew(j, u, space, lease, contested, w)
}

// claimAnew is renewLock in a mesh, whatever this node votes for. The client waits if there is a lease, if
// the job isn't known to have the lock, or if the lock is contested.
func (n *Node) claimAnew(j *store.Job, u store.Unique, space store.Space, lease int64, contested bool, w Work) (pending bool, err error) {
	asks := contested || lease > 0 || !u.Has(hasFlag(space))
	id, want := j.ID, n.wantedAgain(j, u, space)
	want.Lease = lease
	now, _ := n.locks.AcquireFor(want, func(o lock.Result) {
		end := n.renewed(&id, space, acquired(want.Name, &o), &o)
		if j := n.store.Lookup(&id); j != nil && (end == nil || end == ErrLockLost) {
			n.log(LogState, j)
			if pending && end != nil {
				n.endLoss(j)
			}
		}
		if j := n.store.Lookup(&id); j != nil && contested && pending && end != ErrLockLost && j.State != store.StateAcked {
			n.workGoesOn(j)
		}
		if pending {
			if end == nil {
				n.noteProgress(&id, w.Progress)
			}
			n.effects = append(n.effects, Effect{Kind: Worked, Client: w.Client, Err: end})
		}
	})
	if now == nil {
		if pending = w.Client != nil && asks; pending && contested {
			return true, errContested
		}
		return pending, nil
	}
	// The caller logs, since the job may be new to it.
	err = n.renewed(&id, space, acquired(want.Name, now), now)
	if _, only := err.(notExtended); only && !asks {
		err = nil
	}
	return false, err
}

// errContested says that it isn't known yet whether another job has the lock. Until it is, nothing changes.
var errContested = errors.New("contested")

// renewed notes how the acquisition ended that renews a job's lock.
func (n *Node) renewed(id *store.ID, space store.Space, name []byte, o *lock.Result) error {
	if space == store.LockWait {
		n.leaseBegun(id, o)
	}
	j := n.store.Lookup(id)
	done := j == nil || j.State == store.StateAcked
	if done || !n.named(j, space, name) || isPast(j, space) {
		switch {
		case o.Kind != lock.Granted || !done && j.Unique() != nil && j.Unique().Has(hasFlag(space)):
		case space == store.LockRun && !done:
			n.giveUpRun(name, id, o.Token) // it was extended for a client that got the job elsewhere
		case space == store.LockWait && j == nil && id.AtMostOnce() && !n.tombstones.has(id):
			// The job was handed over meanwhile, and took its lock along.
		case j == nil && n.livesOn(id):
			n.leaveVote(name, id)
		default:
			n.freeName(name, id, o.Token)
		}
		switch {
		case j == nil:
			return ErrNoJob
		case done:
			return ErrAcked
		}
		return ErrLockLost // the job is to run anew, or was given back
	}
	switch u := j.Unique(); o.Kind {
	case lock.Granted:
		setLock(u, space, o.Token, name)
		return nil
	case lock.Conflict:
		u.Clear(hasFlag(space))
		(*owners)(n).Loses(*id)
		return ErrLockLost
	case lock.Aborted:
		return ErrReplica
	}
	return notExtended{o.Because(ErrNotExtended)} // the lock's lease goes on until it is over
}

// livesOn says whether a job that isn't here any more lives on: its queue went to another database, or only this node's copy was deleted. The
// votes that are its own stay.
func (n *Node) livesOn(id *store.ID) bool { return n.livesAway(id) || (*owners)(n).LivesElsewhere(*id) }

// leaveVote leaves this node's vote for such a job to the other nodes, if they have the job.
func (n *Node) leaveVote(name []byte, id *store.ID) {
	if l := n.store.Lock(name); l != nil && l.Job == *id && (*owners)(n).LivesElsewhere(*id) {
		n.toOthers(l)
	}
}

// isPast says whether a job no longer has the lock that was just renewed for it: it isn't worked on, or it
// was delivered meanwhile.
func isPast(j *store.Job, space store.Space) bool {
	u := j.Unique()
	if space == store.LockRun {
		return j.State == store.StateQueued || !mayRun(j, u)
	}
	return endsByDelivery(u) && j.Place == store.InWorking && !u.Has(store.UniqueHasWait)
}

// retake takes the waiting lock again for a job that comes back into its queue, unless another job has the
// lock by now. The delivery has ended the lock, but no other job is to wait beside this one as long as this
// one waits to be processed again. LOCKTTL begins anew. It doesn't if the job has waited all the time
// (waited): it wasn't given to a client, here or at the node from which it comes.
func (n *Node) retake(j *store.Job, waited bool) {
	if j.Parts == 0 {
		return
	}
	u := j.Unique()
	if u == nil || n.notUnique || !endsByDelivery(u) || u.Has(store.UniquePending) {
		return
	}
	if u.Has(store.UniqueHasWait) && (n.mesh.Alone() || j.Holders() == 0) {
		return // it wasn't delivered. Where there are copies, the record may be old
	}
	if n.mesh.Alone() {
		n.takeLock(j, u, store.LockWait, u.LockTTL())
		return
	}
	id, lease := j.ID, u.LockTTL()
	if l := n.locks.Live(n.lockName(j, u, store.LockWait)); waited && lease > 0 && l != nil && l.Job == id && l.Until > 0 {
		lease = min(lease, max(1, lock.LeaseOf(l.Until-n.monotonic())))
	}
	want := n.wanted(j, u, store.LockWait)
	want.Lease = lease
	now, _ := n.locks.AcquireFor(want, func(o lock.Result) {
		if n.retaken(&id, acquired(want.Name, &o), &o) {
			n.log(LogState, n.store.Lookup(&id))
		}
	})
	if now != nil {
		n.retaken(&id, acquired(want.Name, now), now)
	}
}

// retaken notes whether a job that came back has its waiting lock again. A job that is delivered by now, or
// done, doesn't keep the lock. It says whether the job changed.
func (n *Node) retaken(id *store.ID, name []byte, o *lock.Result) bool {
	j := n.store.Lookup(id)
	waits := j != nil && (j.State == store.StateQueued || j.State == store.StateActive && j.Place != store.InWorking) && n.ofKey(j, store.LockWait, name)
	switch {
	case o.Kind == lock.Granted && waits:
		setLock(j.Unique(), store.LockWait, o.Token, name)
	case o.Kind == lock.Granted && j == nil && n.livesOn(id):
		n.leaveVote(name, id)
		return false
	case o.Kind == lock.Granted:
		n.freeName(name, id, o.Token)
		return false
	case o.Kind == lock.Conflict && waits:
		j.Unique().Clear(store.UniqueHasWait)
	default:
		return false
	}
	return true
}
