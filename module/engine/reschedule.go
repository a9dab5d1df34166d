package engine

import (
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Jobs that were put off. ONCONFLICT reschedule adds a job whose key is taken, and puts it off: it tries again
// later for its waiting lock, and is queued when it has it. ONBUSY reschedule puts off a job that was to be
// delivered while another job with its key is worked on.

const putOffMS = 1_000 // ms between tries for a job that was put off, plus or minus half of it at random

// gotKey handles the word of another node that it has a job queued, or with a client, or has got its key. If
// the job was put off, this node doesn't ask for the key again.
func (n *Node) gotKey(j *store.Job) {
	if !n.putOff(j) {
		return
	}
	u := j.Unique()
	name := n.lockName(j, u, store.LockWait)
	if n.locks.AsksFor(&j.ID, string(name)) {
		return // the votes of this acquisition may be those of the other node by now: see claimedAgain
	}
	u.Clear(store.UniquePending)
	if l := n.locks.Live(name); l != nil && l.Job == j.ID && u.Strategy() != store.UniqueWindow {
		setLock(u, store.LockWait, l.Token, l.Name())
	}
}

// again tries once more to take the waiting lock of a job that was put off. It returns true if the job may be
// queued now; otherwise the job is put off anew. nack says whether a NACK is to queue it.
func (n *Node) again(j *store.Job, nack bool) bool {
	u := j.Unique()
	left := delayFrom(j, n.now)
	if !n.notUnique {
		lease := u.LockTTL()
		if left > 0 && u.Strategy() != store.UniqueWindow {
			lease = 0
		}
		if !n.mesh.Alone() {
			return n.claimAgain(j, u, lease, nack)
		}
		if n.takeLock(j, u, store.LockWait, lease) != nil {
			n.Stats.Duplicates++
			n.reschedule(j, u, conflictDelay(u))
			return false
		}
		n.lockName(j, u, store.LockWait) // for markWindow
		n.markWindow(u)
	}
	u.Clear(store.UniquePending)
	if left > 0 {
		n.delay(j, left)
		return false
	}
	return true
}

// claimAgain is [Node.again] in a mesh: the job waits on until the other nodes have answered.
//
// Each node that has a copy could acquire the lock, for the lock is the job's. So the node that put the job
// off acquires it ([Node.later]). The others come a retry time later, by the usual rule for copies: each
// announces itself, and the first node objects if it is still to queue the job. If nobody objects, the node
// of the copy acquires the lock, and announces itself once more before it queues the job.
func (n *Node) claimAgain(j *store.Job, u store.Unique, lease int64, nack bool) bool {
	id := j.ID
	want := n.wanted(j, u, store.LockWait)
	name := want.Name
	window := u.Strategy() == store.UniqueWindow
	setAnnounced(j) // until the job is left to another node
	switch {
	case n.locks.AnyAsks(name, u.Limit()):
		// Only one acquisition at a time: several would take the votes from each other.
		n.delay(j, conflictDelay(u)+n.below(putOffMS))
		return false
	case n.isBackedOff(name):
		n.waitOut(j, string(name))
		return false
	}
	var now *lock.Result
	var claim *lock.Acquisition
	want.Lease, want.Outlives, want.PutOff = lease, window, true
	now, claim = n.locks.AcquireFor(want, func(o lock.Result) {
		j, name := n.store.Lookup(&id), acquired(name, &o)
		if j != nil && n.putOff(j) && j.State == store.StateActive && n.named(j, store.LockWait, name) {
			if o.Kind == lock.NoQuorum {
				n.locks.FindLeft(claim)
			}
			if n.claimedAgain(j, &o, nack) {
				n.requeue(j, nack)
			}
		} else if o.Kind == lock.Granted && !n.hasByNow(j, store.LockWait, name, o.Token) {
			n.giveBack(name, &id, window, &o)
		}
	})
	if now != nil {
		return n.claimedAgain(j, now, nack)
	}
	n.waitFor(j, lock.TimeoutMS+putOffMS)
	return false
}

// claimedAgain goes on with a job that was put off when the acquisition of its lock is decided. It returns
// true if the job may be queued.
func (n *Node) claimedAgain(j *store.Job, o *lock.Result, nack bool) bool {
	u := j.Unique()
	name := string(n.keyLock(j, u, store.LockWait))
	if o.Kind == lock.Granted {
		setLock(u, store.LockWait, o.Token, acquired([]byte(name), o))
		u.Clear(store.UniquePending)
		delete(n.uniqueMesh.backoffs, name)
	}
	left := delayFrom(j, n.now)
	switch {
	case n.passive:
	case j.Flags&store.FlagAnnounced == 0:
		n.log(LogState, j) // the job was left to another node meanwhile, or a client works on it
	case o.Kind == lock.Conflict:
		n.Stats.Duplicates++
		n.reschedule(j, u, conflictDelay(u))
	case o.Kind != lock.Granted:
		if j.Retry > 0 && j.Holders() > 0 {
			setQueuedOnce(j) // as far as is known: others may have a majority
		}
		if o.IsSplit() {
			n.backOff(name, o)
		}
		n.waitOut(j, name)
	case left > 0:
		n.delay(j, left)
	case !nack && j.Retry > 0 && j.Queue.Pause&PauseIn != 0:
		n.delay(j, retryTime(n, j)-n.now) // as any job that falls due while its queue is paused
		n.shut.Put(j.ID, struct{}{})
	case nack || j.Flags&store.FlagQueuedOnce == 0 || j.Holders() == 0 || j.Retry == 0:
		n.tellQueued(j, 0)
		return true
	default: // another node may have got the lock at the same moment
		n.waitFor(j, store.AnnounceMS+jitterMS/2+n.jitter())
		clearAnnounced(j)
		n.arm(j)
	}
	return false
}

// conflictDelay is how long a job whose key is taken waits between tries, ms. A dead letter that lives again waits though its ADDJOB didn't
// say that.
func conflictDelay(u store.Unique) int64 {
	const revived = 5_000
	if span := u.ConflictDelay(); span > 0 {
		return span
	}
	return revived
}

// waitOut puts a job off once more until it tries again. The time is random: other nodes that got a part of
// the votes try again, too, and not all are to do so at the same moment.
func (n *Node) waitOut(j *store.Job, name string) {
	span := putOffMS/2 + n.below(putOffMS)
	if r := n.uniqueMesh.backoffs[name]; r != nil {
		span += max(r.until-n.monotonic(), 0)
	}
	n.waitFor(j, span)
}

// giveBack frees a waiting lock that came too late for its job. A window lasts all the same if another node
// got it before for the job, which is done since.
func (n *Node) giveBack(name []byte, id *store.ID, window bool, o *lock.Result) {
	switch {
	case !window:
		n.freeName(name, id, o.Token)
	case !o.Kept:
		n.locks.RollBack(name, lock.Holder{Job: *id}, o.Token, n.mesh.Nodes())
	}
}

// reschedule puts a job off, and counts that. The job stays the same, and this isn't an additional delivery.
func (n *Node) reschedule(j *store.Job, u store.Unique, span int64) {
	u.CountTry()
	n.Stats.PutOff++
	n.delay(j, span)
}

// delay queues a job in span ms, as if it was new and delayed. It is this node that queues it: the other
// holders leave it alone until its retry time is over after that.
func (n *Node) delay(j *store.Job, span int64) { n.delayAs(j, span, 0) }

// delayAs is delay with further flags of the PutOff.
func (n *Node) delayAs(j *store.Job, span int64, flags uint8) {
	n.restAgain(j, span)
	n.tell(j, &wire.Message{Kind: wire.PutOff, Flags: n.keyFlag(j) | flags, Span: span})
}

// keyFlag returns the flag of a PutOff: GotKey if the job is unique and this node doesn't wait for its key.
func (n *Node) keyFlag(j *store.Job) uint8 {
	if j.Unique() == nil || n.putOff(j) {
		return 0
	}
	return wire.GotKey
}

// waitFor keeps a job out of its queue for span ms. The other holders aren't told before it is queued then.
func (n *Node) waitFor(j *store.Job, span int64) {
	n.outliveAsGivenBack(j)
	n.store.Hold(j)
	setAnnounced(j)
	n.wakeAt(j, n.now+span)
	n.store.Count(j, store.Delayed)
	n.log(LogState, j)
	n.touch(j.Queue)
}

// spanOf is how long a copy's first queueing is put off, ms.
func (n *Node) spanOf(j *store.Job) int64 {
	switch isNew := j.State == store.StateWaitRepl || j.QTime == 0; {
	case n.putOff(j) && isNew:
		return max(delayFrom(j, n.now), conflictDelay(j.Unique()))
	case n.putOff(j), n.isToQueue(j):
		return max(delayFrom(j, n.now), j.QTime-n.now)
	case j.State == store.StateActive && j.Place == store.InHeld && j.Retry > 0 && !held(j):
		// Another node is to queue the job, and this one only if that node doesn't: a retry time later. The receiver, too.
		if left := j.QTime - n.now - int64(j.Retry)*1000; left > jitterMS {
			return max(delayLeft(j, n.now), left)
		}
	}
	return delayLeft(j, n.now)
}
