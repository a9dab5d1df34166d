package engine

import (
	"math"
	"slices"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/table"
)

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
		if _, err := n.renewLock(j, u, store.LockWait, u.LockTTL(), nil); err == ErrLockLost {
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
		_, _ = n.claimAnew(j, u, store.LockWait, lease, false, nil)
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
