package engine

import (
	"math"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// The commands on jobs that are known here: GETJOB, ACKJOB, DELJOB, ENQUEUE, DEQUEUE, WORKING and PAUSE; and what is done
// when memory is short.

// push puts a job into its queue, without counting or logging.
func (n *Node) push(j *store.Job) {
	if j.Parts != 0 && j.HasAny(ofDelivery) {
		n.clearWorker(j)
		n.endLease(j)
		n.leaveSlot(j)
	}
	if len(n.nameAsks.open) > 0 {
		n.nameQueued(j)
	}
	n.pushLeft(j)
}

// ofDelivery are the extras in which a job says something of its delivery.
const ofDelivery store.Tags = 1<<store.TagWorker | 1<<store.TagLease | 1<<store.TagSlots

// pushLeft is push for a job that says nothing of a delivery any more.
func (n *Node) pushLeft(j *store.Job) {
	q := j.Queue
	notReturning(j) // nor uncertain: the job is known not to be delivered
	n.pushBack(j)
	n.endDelay(j)
	n.wakeAt(j, n.retryAt(j))
	n.show(q)
	q.ATime = n.now
	q.JobsIn++
	n.touch(q)
	if n.policies.DeadMaxed && j.DeadLetter() {
		n.boundDead(q)
	}
}

// requeue puts an active job into its queue, and says whether it did. Any queueing but a
// job's first, and that of a returning job, counts as a NACK or as an additional delivery.
func (n *Node) requeue(j *store.Job, nack bool) bool {
	switch {
	case !comesBack(j):
		return false
	case isDying(j):
		n.giveUp(j, dyingOf(j), nil)
		return true
	case isAskedToStop(j):
		n.stop(j)
		return true
	}
	if n.putOff(j) {
		if nack {
			n.endRunElsewhere(j, true)
		}
		if !n.again(j, nack) {
			return false
		}
	}
	if nack {
		n.countNack(j, j.Extra(store.TagFailure))
	} else if !j.Returning() && j.Flags&store.FlagQueuedOnce != 0 {
		j.Deliveries = saturated(j.Deliveries, 1)
		n.Stats.Requeued++
		n.tellsRequeued(j, "")
	}
	again, returns, early := j.Flags&store.FlagQueuedOnce != 0, j.Returning(), n.isEarly(j)
	if again || nack || j.Flags&store.FlagDelivered != 0 {
		n.retake(j, returns || !again && !nack)
	}
	n.push(j)
	n.log(LogState, j)
	switch {
	case nack:
		n.tellQueued(j, wire.CountNack)
	case again && !returns:
		n.tellQueued(j, wire.CountMore)
	case again, early: // the copies would wait until its delay is over, and longer
		n.tellQueued(j, 0)
	}
	n.serve(j.Queue)
	return true
}

// saturated returns v plus more, or the greatest uint16 if that is less.
func saturated(v uint16, more int) uint16 { return uint16(min(int(v)+more, math.MaxUint16)) }

// deliver takes a queued job out to be handed to a client. The retry time, or the client's lease
// (in seconds, 0: none), starts now. It returns where the job is then.
func (n *Node) deliver(j *store.Job, lease int64) *store.Job {
	q := j.Queue
	if n.wants(EventDeliver) {
		n.tellDelivery(j)
	}
	n.spend(q)
	j = n.useSlot(q, j)
	if lease > 0 {
		j = n.lease(j, lease)
	}
	n.toWork(j)
	outlasts := n.outlast(j)
	if n.lost.Len() > 0 {
		n.endLoss(j)
	}
	becomeDelivered(j)
	n.arm(j)
	q.ATime = n.now
	q.JobsOut++
	n.Stats.Delivered++
	n.touch(q)
	// An at-least-once job may come again after a crash, so its delivery isn't logged. An
	// at-most-once job must never, so its delivery is logged before the client hears of it.
	// A delivery that changes the locks of a unique job is logged, too: locks are state.
	// So is one that makes the job live longer, or that has a lease: the job's next time can't be told without it.
	if j.Retry == 0 || outlasts || lease > 0 || logsDelivery(j) {
		n.log(LogState, j)
	}
	if lease > 0 && j.Retry > 0 && !outlasts {
		n.tellWhereabouts(j) // outlast has told it
	}
	if n.limit(j) > 0 {
		return n.countTry(j, 1, 0)
	}
	return j
}

// Fetch takes up to count jobs from the queues, one from each in turn,
// as in Disque, and appends them to out. Nil queues are passed over. If the client
// can wait, other nodes are asked about jobs to which they have to consent.
func (n *Node) Fetch(queues []*store.Queue, count int, canWait bool, out []*store.Job) []*store.Job {
	return n.FetchFor(queues, count, canWait, 0, out)
}

// FetchFor is Fetch for a client that wants to have its jobs for lease seconds; 0: for their retry times.
func (n *Node) FetchFor(queues []*store.Queue, count int, canWait bool, lease int64, out []*store.Job) []*store.Job {
	if n.passive {
		return out
	}
	n.asks, n.term = canWait, lease
	defer func() { n.asks, n.term = true, 0 }()
	if count != 1 {
		return n.fetchSome(queues, count, out)
	}
	for _, q := range queues {
		if j := n.fetch(q); j != nil {
			return append(out, j)
		}
	}
	return out
}

// fetch takes a job from a queue; nil if there is none. The job's address is valid until the
// next job is looked for.
func (n *Node) fetch(q *store.Queue) *store.Job {
	if q == nil || q.Head == nil || q.Pause&PauseOut != 0 {
		return nil
	}
	budget, lease := busySteps, n.term
	j := n.next(q, &budget)
	if j != nil {
		j = n.deliver(j, lease)
	}
	return j
}

// fetchSome is Fetch for any number of jobs.
func (n *Node) fetchSome(queues []*store.Queue, count int, out []*store.Job) []*store.Job {
	first, freed := len(out), n.store.Freed()
	ids := n.scratch.ids[:0]
	for again := true; again && count > 0; {
		again = false
		for _, q := range queues {
			if count == 0 {
				break
			}
			j := n.fetch(q)
			if j == nil {
				continue
			}
			out = append(out, j)
			ids = append(ids, j.ID)
			count--
			again = true
		}
	}
	n.scratch.ids = ids
	if n.store.Freed() != freed {
		out = n.refetched(out[:first], ids)
	}
	return out
}

// refetched finds the jobs that were just delivered by their IDs, and appends them to out. The
// end of a job whose key was busy may have moved one of them since, or deleted it.
func (n *Node) refetched(out []*store.Job, ids []store.ID) []*store.Job {
	for i := range ids {
		if j := n.store.Lookup(&ids[i]); j != nil && j.Place == store.InWorking {
			out = append(out, j)
		}
	}
	return out
}

// Delivery names one delivery of a job: each later one has other counters.
type Delivery struct {
	id                store.ID
	deliveries, nacks uint16
}

// DeliveryOf names the delivery of a job that was just given to a client.
func DeliveryOf(j *store.Job) Delivery { return Delivery{j.ID, j.Deliveries, j.Nacks} }

// Undeliver takes back a job that was meant for a client that has gone. Nothing happens if the
// job was delivered again, queued or ended since, or if this node has become a replica: then
// its master says which client has the job.
func (n *Node) Undeliver(d Delivery) {
	j := n.store.Lookup(&d.id)
	if n.passive || j == nil || j.State != store.StateActive || DeliveryOf(j) != d || j.Flags&store.FlagDelivered == 0 {
		return
	}
	n.Stats.Abandoned++
	n.Stats.Delivered--
	n.tellsRequeued(j, "unheard")
	n.endOutlast(j)
	n.freeSlot(j)
	clearDelivered(j)
	if n.limit(j) > 0 {
		j = n.countTry(j, -1, 0)
	}
	n.retake(j, false)
	n.pushAgain(j, leaseOf(j) > 0) // with a lease the others leave their copies alone for it
}

// pushAgain puts a job back into its queue that has left it, though no client or node has got it: that it came in isn't counted again. tells says whether the
// other holders hear it. A job of which that is wished is cancelled instead (cancel_soft_refused, cancel_soft_undeliver).
func (n *Node) pushAgain(j *store.Job, tells bool) {
	j.Queue.JobsOut--
	if isAskedToStop(j) {
		n.stop(j)
		return
	}
	j.Queue.JobsIn--
	n.push(j)
	n.log(LogState, j)
	if tells {
		n.tellQueued(j, 0)
	}
	n.serve(j.Queue)
}

// Ack acknowledges a job. It returns false if the job isn't known, or is acknowledged already.
func (n *Node) Ack(id *store.ID) bool { return n.Finish(id, nil) }

// FastAck acknowledges a job without making sure that other nodes learn of it. But it leaves a
// job with dependents to [Node.Ack]: if that job's end were forgotten, they would count it as
// undone. It also leaves a job to Ack that is acknowledged already, because other nodes may
// still have to be told. It returns false if the job isn't known, or is acknowledged already.
func (n *Node) FastAck(id *store.ID) bool {
	j := n.store.Lookup(id)
	if j != nil && (n.hasDependents(j) || j.State == store.StateAcked) {
		return n.Ack(id)
	}
	m := wire.Message{Kind: wire.DelJob, Flags: wire.ByClient, ID: *id}
	if j == nil {
		if j = n.lookEnding(id); j != nil {
			if n.hasDependents(j) || j.State == store.StateAcked {
				n.endAway(j, false)
				return false
			}
			n.endsDone(j)
			m.Flags |= wire.EndTold
			n.forgetJob(j, nil)
		}
		n.tellAll(&m)
		return false
	}
	n.nameEnds(id)
	n.endsDone(j)
	j = n.tellsTakers(j)
	m.Flags |= wire.EndTold
	n.tell(j, &m)
	n.forgetJob(j, nil)
	return true
}

// Delete removes this node's copy of a job. An acknowledged or cancelled job stays while it has
// holders: it is no copy any more, but tells them of its end until they know. Delete returns
// false if the job isn't known.
func (n *Node) Delete(id *store.ID) bool {
	j := n.store.Lookup(id)
	if j == nil {
		return false
	}
	if j.State == store.StateAcked && j.Holders() > 0 {
		if j.Kept() {
			n.keptDeleted(j)
		}
		return true
	}
	if j.State != store.StateAcked { // else its end has counted it
		n.nameEnds(id)
		n.Stats.Deleted++
	}
	if n.inHands(j) {
		n.idling.deleted = max(n.idling.deleted, j.QTime)
		n.losesSight()
	}
	if ad := n.pendingAddOf(id); ad != nil {
		n.cleanUp(ad)
		n.deny(ad, ErrReplRemoved)
		return true
	}
	if isOffered(j) {
		n.cancel(j, OutcomeCancelled, nil) // there is only one copy, and the other node may have it
		return true
	}
	if n.isOnlyHere(j) {
		if n.gone(j, origin{}) {
			n.remove(j)
		}
		return true
	}
	f, _ := j.Family()
	gone, unreleased := j.ID, f.Unreleased()
	n.leaveLocks(j)
	n.losesOne(j)
	n.remove(j)
	n.evicted(gone, unreleased)
	return true
}

// Enqueue puts a job back into its queue, for ENQUEUE.
func (n *Node) Enqueue(id *store.ID) bool { return n.enqueue(id, false) }

// EnqueueUnstarted is Enqueue for a client that has the job, and hasn't begun with it: the delivery doesn't count. The returns of a job, by which
// nodes tell which word about it is the later one, never become fewer; so it is counted how many of them don't count.
func (n *Node) EnqueueUnstarted(id *store.ID) bool { return n.enqueue(id, true) }

// maxUnstarted is how often at most the delivery of a job that is given back unstarted doesn't count. The counts have 16 bits.
const maxUnstarted = 60_000

func (n *Node) enqueue(id *store.ID, uncounted bool) bool {
	n.endDue(id)
	j := n.store.Lookup(id)
	if j == nil {
		return false
	}
	if ask := n.nameEnds(id); ask != nil {
		n.placeNamed(ask)
		j = n.store.Lookup(id)
	}
	if uncounted && unstarted(j) < maxUnstarted && comesBack(j) && j.Flags&store.FlagQueuedOnce != 0 && !j.Returning() && !n.putOff(j) && !rests(j) && !isDying(j) {
		j = n.count(j, store.TagLapses, 0, 1)
	}
	if j.Uncertain() && j.State == store.StateActive {
		// ENQUEUE is said by hand, by somebody who knows that no client has the job.
		j = n.dropOffer(j)
		becomeCertain(j)
	}
	if j.State == store.StateActive && j.Retry > 0 && !held(j) {
		n.freeSlot(j)
		n.endRunElsewhere(j, j.Flags&store.FlagQueuedOnce != 0 && !j.Returning()) // requeue does the same for a NACK
		if rests(j) {
			setQueuedOnce(j) // it has been in a queue, and the others are to hear that it is again
		}
	}
	return n.requeue(j, false)
}

// Dequeue takes a job out of its queue without delivering it.
func (n *Node) Dequeue(id *store.ID) bool {
	n.endDue(id)
	j := n.store.Lookup(id)
	if j == nil || j.State != store.StateQueued {
		return false
	}
	n.dequeue(j)
	n.notIdle(j, j.QTime)
	return true
}

func (n *Node) dequeue(j *store.Job) {
	n.setTime(j, n.NextRequeue(j))
	n.store.Hold(j)
	clearAnnounced(j)
	n.arm(j)
	j.Queue.ATime = n.now
	n.touch(j.Queue)
	n.log(LogState, j)
}

// Working postpones the next delivery of a job by its retry time, or by the lease of its delivery, which it
// returns in seconds, and extends its life and its lock. A job that is still to be queued for
// the first time is left as it is, because no client has it. If other nodes have to agree to
// the extension, and a client can wait, pending is true, and a Worked effect for it will
// tell whether they did. After ErrNotExtended, which comes with the reason, the delivery is
// postponed all the same; after any other error it isn't. The job's progress is kept when there is
// no error.
func (n *Node) Working(id *store.ID, w Work) (retry int64, pending bool, err error) {
	slotted := false
	if j := n.store.Lookup(id); j != nil && (j.Parts > 0 || !n.unrated(j.Queue)) && n.worksOn(j) {
		// First the slot of its queue, then the lock of its key. A client that can't wait isn't told of either.
		waits, later, term, queued := w.Client != nil, false, TermOf(j), j.State == store.StateQueued
		id := *id
		slotted, pending = true, n.extendSlot(j, func(end error) {
			if !later {
				err = end
				return
			}
			if !waits {
				n.dropUnusedSlot(&id)
				return
			}
			more := false
			if end == nil {
				if _, more, end = n.work(&id, w); end == nil && !more {
					n.noteProgress(&id, w.Progress)
				}
			} else if n.goesOnWithoutSlot(&id, end) {
				_, _, _ = n.work(&id, Work{})
			}
			if !more {
				n.dropUnusedSlot(&id)
				n.effects = append(n.effects, Effect{Kind: Worked, Client: w.Client, Err: end})
			}
		})
		switch later = true; {
		case pending && waits:
			return term, true, nil
		case pending && queued:
			return 0, false, ErrLockLost // its time was over, and it isn't known whether it can have a slot
		case err != nil && !n.goesOnWithoutSlot(&id, err):
			return 0, false, err
		}
	}
	missed := err
	if retry, pending, err = n.work(id, w); err == nil {
		err = missed
	}
	if err == nil && !pending {
		n.noteProgress(id, w.Progress)
	}
	if slotted && !pending {
		n.dropUnusedSlot(id)
	}
	return retry, pending, err
}

// worksOn says whether WORKING makes a job one that is in progress, or finds it so: it is in nobody's hands if it waits for its first
// delivery, or rests.
func (n *Node) worksOn(j *store.Job) bool {
	return (j.State == store.StateActive || j.State == store.StateQueued) && j.Retry > 0 && !held(j) && !n.nobodyHas(j) && !rests(j)
}

// goesOnWithoutSlot says whether WORKING postpones the next delivery of a job though its slot wasn't extended, for want of a majority. A job
// that is in its queue again stays there: its time is over, and nothing keeps others from its slot.
func (n *Node) goesOnWithoutSlot(id *store.ID, err error) bool {
	_, only := err.(notExtended)
	j := n.store.Lookup(id)
	return only && (j == nil || j.State != store.StateQueued)
}

func (n *Node) work(id *store.ID, w Work) (retry int64, pending bool, err error) {
	j := n.store.Lookup(id)
	switch {
	case j == nil && n.wasStopped(id):
		return 0, false, ErrCancelled
	case j == nil || n.dummy(j) || ownView(j):
		return 0, false, ErrNoJob
	case j.State == store.StateAcked && cancelled(j), isAskedToStop(j):
		return 0, false, ErrCancelled
	case j.State == store.StateAcked:
		return 0, false, ErrAcked
	case held(j):
		return 0, false, ErrHeldBack
	}
	if n.expiresInHands && j.ETime-n.now < lifetime(j)/2 {
		return 0, false, ErrTooLate
	}
	if n.nobodyHas(j) || rests(j) {
		return TermOf(j), false, nil
	}
	if j.Retry > 0 || j.State == store.StateActive {
		if handedOver(j) {
			return 0, false, ErrElsewhere // the client that works on the job has its lock from that node
		}
		freed := n.store.Freed()
		pending, err = n.extend(j, w)
		if n.store.Freed() != freed {
			// Asking for the lock may have followed the ends of other jobs, which may have moved this one, or ended it.
			if j = n.store.Lookup(id); j == nil || j.State == store.StateAcked {
				return 0, false, ErrNoJob
			}
		}
		if err == errContested {
			return TermOf(j), true, nil // [Node.claimAnew] goes on with it
		}
		if _, only := err.(notExtended); err != nil && !only {
			return 0, false, err
		}
		if j.Retry == 0 && j.Unique() != nil {
			n.log(LogState, j) // the job may have its lock back; with RETRY above 0 it is logged with its new QTime
		}
	}
	retry = TermOf(j)
	n.workGoesOn(j)
	return retry, pending, err
}

// workGoesOn postpones the next delivery of a job that a client has by its retry time, or the lease of its delivery.
func (n *Node) workGoesOn(j *store.Job) {
	wasQueued := j.State == store.StateQueued
	if wasQueued {
		// No client has an at-most-once job that is queued, so nobody works on it:
		// leave it where it can be delivered from.
		if j.Retry == 0 {
			return
		}
		n.dequeue(j)
	}
	if j.Retry > 0 && j.State == store.StateActive {
		m := wire.Message{Kind: wire.Working, Flags: wire.InHands}
		left := int64(0)
		if j.Flags&store.FlagDelivered == 0 && !wasQueued && j.Holders() > 0 {
			m.Flags, left = 0, max(delayFrom(j, n.now), n.restLeft(j))
		} else {
			setDelivered(j) // the client has the job, though it may have been queued again since
		}
		elsewhere := m.Flags == 0
		if left == 0 {
			j = n.keepWork(j) // also if the client got it before it was queued again, or at another node
			setQueuedOnce(j)
			setDelivered(j)
		}
		if u := j.Unique(); u != nil && wasQueued {
			n.endsWaiting(j, u) // it waits no more
		}
		n.prolong(j)
		n.postponeBy(j, left)
		m.Flags |= wire.CountNack
		m.SetReturns(j.Nacks, j.Deliveries)
		if elsewhere {
			n.notIdle(j, j.QTime) // the node that gave it to the client now leaves it to this one, but an older message of that node may still come
		}
		n.tell(j, &m)
	}
}

// SetExpiresInHands chooses Disque's rule for the time to live: a job expires even while a
// client works on it, and isn't postponed any more once half of its time to live is over.
// Without that rule a job lives on as long as its worker says WORKING in time ([Node.Working]).
func (n *Node) SetExpiresInHands(yes bool) { n.expiresInHands = yes }

// prolong makes a job that a client works on live for two terms of its delivery from now: one for the
// work, and one in which the job can be given to another client.
func (n *Node) prolong(j *store.Job) {
	if !n.expiresInHands {
		j.ETime = max(j.ETime, n.now+2*TermOf(j)*1000)
	}
}

// outlast makes a job that was just delivered live until it is due. If its life ends then, it
// isn't given to another client. The other holders are told, since the client may say WORKING to any of them. If one isn't
// told, its copy goes at its own time, see [Node.expireCopy].
func (n *Node) outlast(j *store.Job) (did bool) {
	if j.Retry == 0 || j.ETime >= j.QTime || n.expiresInHands {
		return false
	}
	n.liveUntil(j, j.QTime)
	if j.Holders() > 0 {
		n.tell(j, &wire.Message{Kind: wire.Working, Flags: wire.InHands | wire.Lasts, ID: j.ID})
	}
	return true
}

// liveUntil makes a job live until a later time than its own end, unix ms, and remembers that end.
func (n *Node) liveUntil(j *store.Job, until int64) {
	end := j.ETime
	if l := n.outlasting.Get(j.ID); l != nil && l.until == end {
		end = l.end
	}
	if n.outlasting.Len() < outlastingMost {
		n.outlasting.Put(j.ID, life{end: end, until: until})
	}
	j.ETime = until
}

const outlastingMost = 100_000 // jobs whose own end is remembered while a client works on them beyond it

// life is the end of a job's own life, and the later one that a delivery has given it; unix ms.
type life struct{ end, until int64 }

// endOutlast takes that back when the client gives the job back, here or elsewhere, or was gone before it got the job: otherwise a job that
// always fails would live as long as clients try.
func (n *Node) endOutlast(j *store.Job) {
	if n.outlasting.Len() == 0 {
		return
	}
	if l := n.outlasting.Get(j.ID); l != nil {
		if j.ETime == l.until { // no client has said WORKING since
			j.ETime = l.end
		}
		n.outlasting.Remove(j.ID)
	}
}

// outlastsElsewhere makes a copy live until the job is due at the node that has just given it to a client, and not longer: if the
// job's life ends then, this node must not queue the copy.
func (n *Node) outlastsElsewhere(j *store.Job) {
	if until := n.now + TermOf(j)*1000 - jitterMS/2; j.ETime < until && !n.expiresInHands {
		n.liveUntil(j, until)
		n.arm(j)
		n.log(LogState, j)
	}
}

// expireCopy removes this node's copy of a job whose time to live is over, if another node may
// hold the job, too. A client may work on it there, or have acknowledged it, and the message of
// that was lost. So its dependents ask what became of it. Its locks stay if such a client has
// extended them, or if this node only keeps a copy. False: the job is to end here.
func (n *Node) expireCopy(j *store.Job) bool {
	if j.State != store.StateActive && j.State != store.StateQueued || j.Retry == 0 || n.expiresInHands || held(j) || !n.heldElsewhere(j) {
		return false
	}
	f, _ := j.Family()
	id, unreleased := j.ID, f.Unreleased()
	if j.State == store.StateActive && j.Place == store.InHeld && j.Flags&(store.FlagAnnounced|store.FlagQueuedOnce) != store.FlagAnnounced {
		n.delegate(j)
	} else {
		n.endFresh(j)
	}
	n.losesOne(j)
	n.keepAlone(j, OutcomeExpired)
	n.evicted(id, unreleased)
	return true
}

// expireHeld is expireCopy for a job that is held back. It may live on at another node, by whose clock it isn't over, and be released there. So jobs that
// come after it ask what became of it: none goes on, or becomes a dead letter, by this node's clock alone (parent_expires_clock). Nor does its key become
// free by one node's clock, for a client of another node may work on it: the key is that of an orphan when the last copy is gone.
func (n *Node) expireHeld(j *store.Job) {
	f, _ := j.Family()
	id, unreleased := j.ID, f.Unreleased()
	if n.CountsHere(j) && !n.heldElsewhere(j) {
		n.endFresh(j)
	} else {
		n.leaveLocks(j)
	}
	n.losesOne(j)
	n.keepAlone(j, OutcomeExpired)
	n.evicted(id, unreleased)
}

// heldElsewhere says whether another node of the mesh may hold a job, too.
func (n *Node) heldElsewhere(j *store.Job) bool {
	for i := range j.Holders() {
		if node, _ := j.Holder(i); n.mesh.ByName(wire.Node(node)) != nil {
			return true
		}
	}
	return false
}

// timeToLive returns a job's TTL in ms. ETime goes by this node's clock, CTime by the creator's.
// If their difference doesn't fit the TTL in minutes that the ID has, the ID's counts. It fits, too, where it is less by a part of a second of an
// AT, or by what good clocks differ.
func timeToLive(j *store.Job) int64 {
	const minute, slack = 60_000, 2_000
	ttl, told := j.ETime-int64(j.CTime/1_000_000), int64(j.ID.TTLMinutes())*minute
	if told >= 65534*minute || told-minute-slack <= ttl && ttl < told+2*minute {
		return ttl
	}
	return told
}

// lifetime is a job's own time to live in ms, from when it was due on if its ADDJOB said that time (AT), else from its creation on. A job that was
// given another time since, or was revived, has it in its TagLife.
func lifetime(j *store.Job) int64 {
	if own, _ := lifeOf(j); own > 0 {
		return own * 1000
	}
	ttl := timeToLive(j)
	if j.Parts != 0 && j.Extra(store.TagAt) != nil {
		ttl -= max(0, firstDue(j)-int64(j.CTime/1_000_000))
	}
	return max(0, ttl)
}

// HasRoom returns ErrOOM above 95 % of maxmemory, unless some jobs could be evicted:
// acknowledged jobs, and at-most-once jobs that were delivered.
func (n *Node) HasRoom() error {
	if n.MemoryLevel() < 2 {
		return nil
	}
	if n.evictSome() == 0 {
		n.Stats.Refused++
		return ErrOOM
	}
	return nil
}

// evictSteps bounds one pass; at some tens of nanoseconds a job it stays well
// under a millisecond.
const evictSteps = 2000

// evictForEnd makes room for the end of a job that isn't known here, which no client is refused: for each one
// that comes two go. A command may have very many IDs, so all together have evictSteps; ticks evict more.
func (n *Node) evictForEnd() {
	if n.MemoryLevel() < 2 || n.passive || n.loading {
		return
	}
	if n.endStepsAt != n.now {
		n.endStepsAt, n.endSteps = n.now, evictSteps
	}
	_, n.endSteps = n.evictUpTo(2, n.endSteps)
}

// evictSome evicts some jobs, if it finds any.
func (n *Node) evictSome() (evicted int) {
	evicted, _ = n.evictUpTo(16, evictSteps)
	return evicted
}

// evictUpTo evicts so many jobs, in so many steps; left is how many it didn't take. It walks on where the last
// pass ended, so that few evictable jobs among many are found all the same.
func (n *Node) evictUpTo(most, steps int) (evicted, left int) {
	for left = steps; left > 0; left-- {
		n.scratch.jobs = n.scratch.jobs[:0]
		n.evict = n.store.ScanJobs(n.evict, &n.scratch.jobs)
		for _, j := range n.scratch.jobs {
			if j.State == store.StateAcked || j.State == store.StateActive && j.Retry == 0 && j.Flags&(store.FlagDelivered|store.FlagOffered|store.FlagUncertain) == store.FlagDelivered {
				if n.hasEdges(j) && !n.isBareEnd(j) || n.owesDependents(j) {
					continue // otherwise it might be known nowhere how the job ended
				}
				if j.State != store.StateAcked { // that one has been counted by its end
					n.Stats.Evicted++
				}
				freed := n.store.Freed()
				n.remove(j)
				evicted++
				if n.store.Freed() != freed+1 {
					break // another job has gone or moved: the rest of the list may be stale
				}
			}
		}
		if evicted >= most {
			break
		}
	}
	return evicted, left
}

// isBareEnd says whether nothing but the end of a job is known here, for which no job here waits.
func (n *Node) isBareEnd(j *store.Job) bool { return n.dummy(j) && n.store.Dependents(&j.ID) == nil }

// losesOne is for a job of which this node's copy goes, while others live on. If a job here was
// released with LAST, to come after j, it asks the other nodes about j later.
func (n *Node) losesOne(j *store.Job) {
	f, ok := j.Family()
	if !ok || !n.store.Early(&f) {
		return
	}
	id := f.ID(0)
	if n.removeEdge(&id, &j.ID) {
		n.lookLater(n.store.Lookup(&id))
	}
}
