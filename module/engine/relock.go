package engine

import (
	"jobmesh/module/lock"
	"jobmesh/module/store"
)

// The locks of jobs that were loaded, or that lie in a queue which has got another name: the table of locks is
// made anew from what the jobs say.

// relock makes the locks of a queue's jobs anew, from what the jobs say, after the queue was loaded or has
// got another name. If two jobs say that they have the same lock, the first one that is met gets it.
//
// wasAway says that the queue is back from another database. Then the other nodes have votes for its keys,
// and may have been told since that a key is free.
func (n *Node) relock(q *store.Queue, wasAway bool) { n.relockSome(q, &settling{restored: !wasAway}) }

// relockSome does a part of relock. Where a node is promoted, it also makes the edges of jobs that aren't
// held ([Node.rejoinRest]). It says whether all is done.
func (n *Node) relockSome(q *store.Queue, s *settling) (done bool) {
	if q.Uniques == 0 && !s.promoted {
		return true
	}
	lists := [...]*store.Job{q.Working.Head, q.Head, q.Held.Head}
	from := 0
	if j := n.store.Lookup(&s.at); j != nil && j.Queue == q {
		switch j.Place {
		case store.InWorking:
			lists[0] = j
		case store.InWaiting:
			from, lists[1] = 1, j
		case store.InHeld:
			if j.Reason() != store.Delayed { // else it has left its place since
				from, lists[2] = 2, j
			}
		}
	}
	for _, j := range lists[from:] {
		for ; j != nil; j = j.Next {
			if s.pauseAt(j) {
				return false
			}
			n.relockJob(j, s)
		}
	}
	for l := q.KeyQueues.Head; l != nil; l = l.Next {
		for j := l.Head(); j != nil; j = j.Next {
			n.relockJob(j, s)
		}
	}
	if q.Uniques > 0 {
		n.store.WakeQueue(q)
	}
	return true
}

func (n *Node) relockJob(j *store.Job, s *settling) {
	if s.promoted && j.Place != store.InHeld {
		n.joinAgain(j)
	}
	u := j.Unique()
	if u == nil {
		return
	}
	if u.Has(store.UniqueHasWait) {
		n.restore(j, u, store.LockWait, s.restored)
	}
	if u.Has(store.UniqueHasRun) {
		n.restore(j, u, store.LockRun, s.restored)
	}
}

// restore gives a job back the lock that it says it has. If its queue has come into sight while the server
// runs (seen), by RESTORE or under another name, the other nodes are asked for a waiting lock, too: they may
// have no votes for it.
func (n *Node) restore(j *store.Job, u store.Unique, space store.Space, seen bool) {
	name := n.lockName(j, u, space)
	lease, token := u.RunTTL(), u.RunToken()
	if space == store.LockWait {
		lease, token = u.LockTTL(), u.WaitToken()
		switch {
		case u.Strategy() == store.UniqueWindow:
			// A window's lock is saved by itself, and stays with the name of its queue.
			if l := n.locks.Live(name); l == nil || l.Job != j.ID {
				u.Clear(store.UniqueHasWait)
			}
			return
		case (j.Flags&store.FlagQueuedOnce == 0 || held(j)) && !j.Uncertain():
			lease = 0 // the job isn't due yet
		case j.Delay > 0 && j.Holders() > 0 && j.State == store.StateActive && j.Place == store.InHeld:
			lease = 0 // the node that delays the job begins the lease: this node's clock may differ from what it was
		}
	}
	if token == 0 { // no lock has token 0: the value was damaged, and what this node saved couldn't be loaded
		u.Clear(hasFlag(space))
		return
	}
	future := n.locks.FromTheFuture(token)
	if l := n.store.Lock(name); l != nil && l.Job == j.ID {
		if !lock.Ended(l) {
			token = max(token, l.Token) // this node has voted since, for a run elsewhere
		}
		if space == store.LockRun && lease == 0 {
			lease = l.Lease // the lease that this node voted for
		}
	}
	if space == store.LockRun && lease == 0 && !n.mesh.Alone() {
		lease = n.runLease(j, u) // without a lease other nodes would never see the lock's end
	}
	asks := space == store.LockWait && lease > 0 && !n.mesh.Alone()
	switch {
	case asks:
		n.begins.over.Put(j.ID, n.monotonic()+lease)
	case space == store.LockWait && seen && !n.mesh.Alone():
		n.begins.over.Put(j.ID, noEnd)
	}
	switch _, holder := n.locks.Take(name, &j.ID, lease); {
	case holder == nil && future:
		setLock(u, space, n.store.Lock(name).Token, name) // else all tokens from now on would be greater than that
	case holder == nil:
		n.store.Lock(name).Token = token
	case asks: // the job may have the lock by others' votes
	case !n.locks.Outvotes(j.ID, space):
		if u.Clear(hasFlag(space)); u.Limit() > 1 && n.mesh.Alone() {
			n.takeLock(j, u, space, lease) // another slot may be free
		}
		n.log(LogState, j)
	}
}
