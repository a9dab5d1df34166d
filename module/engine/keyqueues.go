package engine

import (
	"slices"

	"jobmesh/module/store"
)

// The per-key queues: jobs that are queued, and wait until no other job with their key is worked on. When a lock
// that is held elsewhere ends, this node hears of it (Unlock). It also looks by itself now and then (findEnd).

// pushUnique is [store.Store.Push] for a unique job. A job whose run ends by this frees its key. A job that
// runs alone takes its place in its per-key queue.
func (n *Node) pushUnique(j *store.Job, u store.Unique) {
	if n.fallsDue(j, u) {
		n.beginLease(j, u)
	}
	if !u.Runs() || u.Busy() != store.BusyWait {
		n.endRun(j, u)
		n.store.Push(j)
		return
	}
	holder := n.inTheWay(n.keyLock(j, u, store.LockRun), &j.ID, u)
	if first := n.store.PushKeyQueue(j, u, holder == nil || holder.Job == j.ID && u.Has(store.UniqueHasRun)); first != nil && first != j {
		n.notPast(first)
	}
	n.endRun(j, u)
}

// fallsDue says whether a job's LOCKTTL begins now that the job is queued. It does once: when a job that was
// delayed, held back or put off is queued for the first time, at whatever node.
func (n *Node) fallsDue(j *store.Job, u store.Unique) bool {
	if !endsWhenDue(u) {
		return false
	}
	// This node's vote tells: it has an end if the lease has begun. FlagQueuedOnce is wrong both ways. It isn't
	// set for a job that was delayed and queued at another node, and was then handed over to this one. It is set
	// for a copy, also while another node still delays the job or puts it off.
	l := n.store.Lock(n.lockName(j, u, store.LockWait))
	switch {
	case l != nil && l.Job == j.ID && l.Until > 0:
		return false // even if the lease is over by now, and no tick has seen that yet
	case n.locks.IsLive(l) && l.Job == j.ID:
		return true
	}
	return j.Flags&store.FlagQueuedOnce == 0 && j.Delay > 0 // the job has its lock by other nodes' votes alone
}

// advanceKeyQueues lets the next job go on in each per-key queue that has lost its first job, or whose key has
// become free. Where very many queues have per-key queues of one mesh-wide key, some follow with the next
// ticks, unless the key is taken before.
//
// The waiting clients are served after all per-key queues have gone on, so that the oldest job comes first.
// They are served once for each queue: many per-key queues of one queue may go on at a time, and each search
// for a job that can be had may take as long as busySteps allow.
func (n *Node) advanceKeyQueues() {
	for budget := busySteps; n.store.AnyToPromote() && !n.passive && !n.loading; {
		queues := n.promoteKeyQueues(n.scratch.queues[:0])
		n.scratch.queues = nil // in use
		for _, q := range queues {
			if budget > 0 {
				n.serveWithin(q, &budget)
				budget--
			} else {
				n.serveLater(q)
			}
		}
		n.scratch.queues = queues[:0]
		if len(queues) == 0 {
			break
		}
	}
	if n.store.AnyToPromote() {
		n.hurryTick()
	}
}

// promoteKeyQueues lets the per-key queues go on. It appends the queues in which a job has gone on.
func (n *Node) promoteKeyQueues(queues []*store.Queue) []*store.Queue {
	for {
		l := n.store.NextToPromote(&n.wakes)
		if l == nil {
			break
		}
		n.scratch.lock = l.AppendLock(n.scratch.lock[:0])
		if n.isBackedOff(n.scratch.lock) {
			n.store.Taken(l)
			continue
		}
		first := l.Head()
		holder := n.inTheWay(n.scratch.lock, &first.ID, first.Unique())
		if holder != nil && (holder.Job == first.ID || !n.mereVote(first.Unique(), holder)) {
			n.store.Taken(l)
			for _, holder := range n.locks.Slots(slices.Clone(n.scratch.lock), first.Unique().Limit(), 0) {
				if holder == nil {
					continue
				}
				if holder.Until == 0 {
					n.findEnd(holder)
				}
				n.locks.Watch(holder)
			}
			continue
		}
		n.notPast(n.store.Promote(l))
		if last := len(queues) - 1; last < 0 || queues[last] != l.Queue {
			queues = append(queues, l.Queue)
		}
	}
	return queues
}

// findEnd looks for the end of a run lock that has no lease and for which others wait.
func (n *Node) findEnd(l *store.Lock) {
	if !(*owners)(n).Lives(l.Job) {
		// This node may have missed the end of the lock's job.
		n.locks.CheckOrphan(l)
		_, key := store.SlotName(l.Name())
		n.backOff(string(key), nil)
		return
	}
	// The lock's job may be one of those that wait.
	if j := n.store.Lookup(&l.Job); j != nil {
		if u := j.Unique(); u != nil && !u.Has(store.UniqueHasRun) {
			n.boundRun(l, j, u)
			n.locks.Log(l)
		}
	}
}
