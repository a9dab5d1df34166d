package engine

import (
	"math"
	"unsafe"

	"jobmesh/module/store"
)

const (
	tickBudget   = 1000   // jobs handled in one tick; 2 to 3 ms where each is logged
	tickPiece    = 1024   // bytes logged or sent that count as one job
	jobCost      = 4      // a job that is logged as a whole, or was moved, counts as so many more
	reapBudget   = 2000   // jobs freed in one tick
	dropSlice    = 300    // keys of flushed queues removed at once; 1 ms
	idleSteps    = 100    // buckets of the queue table looked at in one tick
	housekeeping = 100    // ms between passes over idle queues under memory pressure
	calm         = 1_000  // ms between them otherwise
	wakeMost     = 1000   // per-key queues of keys of the mesh that are woken in one tick; about 1 ms
	slotsPerCost = 16     // slots of locks that are looked at in the time of a step
	passMost     = 10_000 // jobs that beyond passes over in one tick; 1 to 2 ms
)

// Tick does what is due, and returns when to call again (unix ms).
func (n *Node) Tick() int64 {
	n.wakes, n.passes = wakeMost, passMost
	n.locks.TakeLooked() // those of commands count in no tick
	n.lossAt = min(n.lossAt, n.now)
	n.scheduleFree()
	farewell := n.farewell
	if n.passive || n.loading || n.mesh.Alone() && n.jobWaits.jobs.Len() == 0 {
		farewell = nil
	}
	more := n.store.Reap(reapBudget, farewell)
	n.evictedFollowed()
	n.tickWaits()
	if n.passive || n.loading {
		n.tickEnding(waitSlice)
		more = n.holding > 0 && !n.loading && n.tickFollowing() || more
		if more || n.ending || len(n.waiters.ends)+len(n.waiters.leaving) > 0 {
			return n.now + 1
		}
		return n.now + calm
	}
	n.flushedAll()
	n.followAdds()
	n.tickNames()
	budget := tickBudget
	for {
		if n.deps.budget <= 0 {
			more = true // this call has followed the ends of jobs for as many dependents as one call may
			break
		}
		j := n.store.Due(n.now, &budget)
		if j == nil {
			break
		}
		from := len(n.effects)
		n.due(j)
		budget -= n.cost(from)
	}
	n.tickMinority()
	n.mesh.Tick()
	n.wake = math.MaxInt64
	if len(n.waiters.ends)+len(n.waiters.leaving) > 0 {
		n.hurryTick()
	}
	n.ask()
	n.vanished()
	n.takeSomeBack()
	n.letSomeIn()
	n.idleQueues()
	n.dropCondemned()
	n.tickFarewells()
	n.locks.TickAcquisitions()
	n.tickBegins(n.monotonic())
	n.tickLost(n.monotonic())
	n.locks.Tick()
	n.locks.TickClears()
	n.tickReturned()
	n.tickLooks()
	n.tickApart()
	n.tickDemands()
	n.serveOn()
	n.tickBundles()
	n.tickAbandoned()
	n.tickAdds()
	n.tickCopies()
	n.resumeBodies()
	n.tickGiven()
	n.tickIdle()
	n.tickDeparture()
	n.tickQuestions()
	n.tickCopyWaits()
	n.tickJobWaits()
	n.tickStopped()
	n.tickWishes()
	n.tickRepair()
	n.tickEntries()
	n.tickPauses()
	n.tickRates()
	n.tickCrons()
	n.wakeForNames()
	n.tickFlushes()
	n.tickLate()
	n.tickBounds()
	n.tickMoves()
	n.tickDead()
	n.tickCountWalk()
	n.tickReleases()
	n.tickUnblocking()
	n.tickOutcomes()
	n.tickEnds()
	n.tickEvictions()
	n.tickHandovers()
	more = n.tickAcks(budget) || more
	if n.MemoryLevel() >= 2 {
		n.evictSome()
	}
	next := n.now + calm
	if n.MemoryLevel() > 0 {
		next = n.now + housekeeping
	}
	if more || budget <= 0 {
		next = n.now + 1
	}
	if len(n.mesh.All()) > 0 {
		next = min(next, n.mesh.NextBeat()) // else a heartbeat could be late by as much as calm
	}
	next = min(next, n.wake, n.store.NextWake())
	n.wake = math.MaxInt64
	return max(next, n.now+1)
}

// cost returns how much the effects from this index on take of a tick's budget, beside their
// job. It counts each client that is answered, since the server writes to its socket; each
// message; each lock that is logged; and each tickPiece that is logged or sent. So a Claim
// counts once for each node that it goes to. The slots of locks that were looked at since the last
// call count, too.
func (n *Node) cost(from int) (cost int) {
	cost = n.locks.TakeLooked() / slotsPerCost
	for i := range n.effects[from:] {
		switch e := &n.effects[from+i]; e.Kind {
		case Serve:
			cost += tickBudget/waitSlice + len(e.Job.Record())/tickPiece
		case Promise, Deny, AnswerBatch, AnswerMesh, LockDone, Worked, Released:
			cost += tickBudget / waitSlice
		case LogJob:
			cost += jobCost + len(e.Job.Record())/tickPiece
		case LogLock, LogUnlock, LogDrop, LogEntry, Happened:
			cost++
		case LogMove:
			cost += jobCost + int(e.Job.Parts)/tickPiece
		case LogState:
			cost += int(e.Job.Parts) / tickPiece
		case Send:
			cost += 1 + (e.to-e.from)/tickPiece
		}
	}
	return cost
}

// due handles a job whose time has come.
func (n *Node) due(j *store.Job) {
	switch {
	case j.ETime <= n.now:
		if n.expiresDead(j) {
			return
		}
		if j.State != store.StateAcked && j.State != store.StateWaitRepl && n.isNextToQueue(j) {
			n.Stats.Expired++
			n.tellsExpired(j)
		}
		if ad := n.pendingAddOf(&j.ID); ad != nil {
			n.cleanUp(ad)
			n.deny(ad, ErrReplRemoved)
			return
		}
		if n.expireCopy(j) {
			return
		}
		if held(j) && n.heldElsewhere(j) && !n.hearsay(j) {
			n.expireHeld(j)
			return
		}
		if n.gone(j, origin{clock: true}) {
			n.keepAlone(j, OutcomeExpired)
		}
	case j.State == store.StateWaitRepl:
		n.moreCopies(j)
	case j.State == store.StateAcked:
		// If all holders were there, the job would have been collected by now.
		n.collect(n.moved(j, n.store.Shrink(j)))
	case j.State == store.StateActive && held(j):
		n.look(j)
	case j.State == store.StateActive && j.QTime > n.now:
		if n.connecting(j) {
			n.setQTime(j, j.QTime+askAgainMS)
			n.arm(j)
			return
		}
		if leftToOthers(j) && j.Queue.Pause&PauseIn != 0 {
			n.shutOut(j)
			return
		}
		n.announce(j)
	case j.State == store.StateActive && j.QTime > 0 && j.QTime <= n.now:
		if n.late(j) {
			return
		}
		if n.asksAnew(j) {
			n.setQTime(j, n.now+askAgainMS)
			n.arm(j)
			return
		}
		unsaid := j.Flags&store.FlagAnnounced == 0 || j.Flags&store.FlagQueuedOnce == 0 && j.QTime < n.now-store.AnnounceMS
		if unsaid && j.Holders() > 0 && j.Retry > 0 {
			// This node stood still when it was to tell the others. One of them may
			// know better by now.
			n.setQTime(j, n.now+store.AnnounceMS)
			n.announce(j)
			return
		}
		if n.waitsForLease(j) {
			return
		}
		// A paused queue takes nothing back. But an at-most-once job is queued all
		// the same, for it has no second chance.
		paused := j.Queue.Pause&PauseIn != 0 && j.Retry > 0
		if !paused {
			n.expireRun(j)
		}
		if isAskedToStop(j) && comesBack(j) {
			n.stop(j)
			return
		}
		j = n.lapse(j)
		if paused {
			n.keepOut(j)
		} else if comesBack(j) && n.hasLapsed(j) { // this node's lapse, or one that another node has told
			n.giveUp(j, WhyLapses, nil)
		} else if comesBack(j) && n.isExhausted(j) {
			n.giveUp(j, WhyDeliveries, nil)
		} else if !n.requeue(j, false) && j.QTime <= n.now {
			n.setQTime(j, retryTime(n, j))
			n.arm(j)
		}
	default:
		n.arm(j)
	}
}

// endDue ends a job that a command meets by its ID or its key, if the next ticks would end it: its life is over, or it goes by a flush. Otherwise the
// command could tie to it what is to live longer. It returns whether it has ended the job. Any other job may have moved in memory then.
func (n *Node) endDue(id *store.ID) bool {
	j := n.store.Lookup(id)
	if j == nil || n.passive || n.loading {
		return false
	}
	if len(n.flushes.open) > 0 {
		if fl := n.goesBy(j); fl != nil {
			n.flushJob(fl, j)
			return true
		}
	}
	if j.ETime > n.now || j.State != store.StateQueued && j.State != store.StateActive {
		return false
	}
	n.due(j)
	return true
}

// setAside takes a job whose time to live is over out of its queue: a job is never delivered
// after that time. The next tick ends it. The caller, which looks for a job to deliver, must
// not end it: the end of a job moves others in memory, deletes some, and serves clients with
// the jobs that waited for it.
func (n *Node) setAside(j *store.Job) {
	n.store.Hold(j)
	// Should the clock be set back before the tick, the job is queued again, uncounted.
	clearQueuedOnce(j)
	setAnnounced(j)
	n.wakeAt(j, int64(j.CTime/1_000_000))
	n.hurryTick()
	n.touch(j.Queue)
}

// idleQueues forgets queues that have been empty and unpaused for a while (idleLimit), and for
// which no client waits.
func (n *Node) idleQueues() {
	limit := idleLimit[n.MemoryLevel()]
	for range idleSteps {
		n.scratch.queues = n.scratch.queues[:0]
		n.cursor = n.store.ScanQueues(n.cursor, &n.scratch.queues)
		empty := n.scratch.queues[:0]
		for _, q := range n.scratch.queues {
			if q.Waiting() > 0 || n.waitersOf(q) > 0 || q.Pause != 0 || n.now-q.ATime < limit {
				continue
			}
			n.hide(q)
			if q.Jobs() == 0 {
				empty = append(empty, q)
			}
		}
		if len(empty) > 0 {
			n.keys.Drop(empty)
		}
		if n.cursor == 0 {
			return
		}
	}
}

// dropCondemned removes the keys of some of the queues that are condemned.
func (n *Node) dropCondemned() {
	if !n.store.AnyCondemned() {
		return
	}
	n.scratch.queues = n.store.NextCondemned(n.scratch.queues[:0], dropSlice)
	n.keys.Drop(n.scratch.queues)
	if n.store.AnyCondemned() {
		n.hurryTick()
	}
}

// Flushing says whether keys of condemned queues are still there.
func (n *Node) Flushing() bool { return n.store.AnyCondemned() }

// Flushes is [store.Store.Flushes].
func (n *Node) Flushes() unsafe.Pointer { return n.store.Flushes() }
