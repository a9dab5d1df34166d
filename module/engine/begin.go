package engine

import "jobmesh/module/store"

// A job's LOCKTTL begins when the job falls due. Until then its waiting lock has no lease, so
// the other nodes are asked to vote anew, for the lease. Where there is no majority just then,
// they would keep the key until the job is done: so they are asked again until they have voted,
// also when the lease is over by then. A vote is never shortened: a lease that another node
// has begun since, for a client that said WORKING, stays.

// beginEveryMS is how long a lease that couldn't begin waits until it is tried again.
const beginEveryMS = 1_000

// beginnings are the leases that are to begin.
type beginnings struct {
	over map[store.ID]int64 // steady: when they would be over, by the jobs that have the locks
	next int64              // steady
}

// beginLease begins the lease of a waiting lock whose job falls due.
func (n *Node) beginLease(j *store.Job, u store.Unique) {
	if !n.alone() {
		if n.begins.over == nil {
			n.begins.over = map[store.ID]int64{}
		}
		n.begins.over[j.ID] = n.steady() + u.LockTTL()
	}
	n.askToBegin(j, u, u.LockTTL())
}

func (n *Node) askToBegin(j *store.Job, u store.Unique, lease int64) {
	if _, err := n.renewLock(j, u, store.LockWait, lease, nil); err == ErrLockLost {
		u.Clear(store.UniqueHasWait)
		delete(n.begins.over, j.ID)
	}
}

// leaseBegun notes what became of a claim that renews a waiting lock.
func (n *Node) leaseBegun(id *store.ID, o *Outcome) {
	if o.Kind != NoQuorum {
		delete(n.begins.over, *id)
	}
}

// tickBegins tries again.
func (n *Node) tickBegins(now int64) {
	if len(n.begins.over) == 0 || now < n.begins.next {
		return
	}
	n.begins.next = now + beginEveryMS
	budget := claimSlice
	for id, over := range n.begins.over {
		if budget--; budget < 0 {
			n.begins.next = now
			return
		}
		j := n.store.Lookup(&id)
		if j == nil || j.State == store.StateAcked || j.Unique() == nil || n.alone() {
			delete(n.begins.over, id)
			continue
		}
		if n.byJob[id] != nil {
			continue // it is being claimed
		}
		// At this node the lease may be over already: then the lock is had once more, for as
		// long as asking takes at most.
		n.askToBegin(j, j.Unique(), max(over-now, ClaimTimeoutMS))
		n.log(LogState, j)
	}
}
