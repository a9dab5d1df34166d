package engine

import (
	"fmt"

	"jobmesh/module/store"
)

// The states of a job. This file alone writes State, QTime and Flags of a job, beside package store, which writes
// them as a job changes its list (Push, Work, Hold, PushKeyQueue, …); a test looks for other writers. DESIGN.md, section 2, has the table of
// states and events, and what each flag means.
//
// States go one way, but for a queued job, which may become active again:
//
//	(new) ─ becomePending ─▶ wait-repl ─ becomePromised ─▶ active ⇄ queued
//	(new) ─────────────────────────────────────────────▶ active
//	wait-repl, active, queued ─ becomeAcked ─▶ acked

// from panics if a job is in none of the states. It checks only where tests are built with the tag check.
func from(j *store.Job, states ...uint8) {
	if !checked {
		return
	}
	for _, s := range states {
		if j.State == s {
			return
		}
	}
	panic(fmt.Sprintf("job %v is in state %d", j.ID, j.State))
}

// becomeNew makes a job active that was just made here, and is in no queue.
func becomeNew(j *store.Job) { j.State = store.StateActive }

// becomeCopy makes a copy of another node's job active. To the others its first queueing here is an
// additional one.
func becomeCopy(j *store.Job) { j.State, j.Flags = store.StateActive, store.FlagQueuedOnce }

// becomeDummy makes a dummy, which stands for a job that this node doesn't have, and of whose end the others
// are to hear.
func becomeDummy(j *store.Job) { j.State = store.StateAcked }

// becomePending makes a new job wait for its copies: it is promised to nobody.
func becomePending(j *store.Job) {
	from(j, store.StateActive)
	j.State = store.StateWaitRepl
}

// becomePromised ends a job's wait for copies: it has the last one that it needs.
func becomePromised(j *store.Job) {
	from(j, store.StateWaitRepl)
	j.State = store.StateActive
}

// becomeUnqueued makes a job active that was saved as queued, and is in no list yet.
func becomeUnqueued(j *store.Job) {
	from(j, store.StateQueued)
	j.State = store.StateActive
}

// becomeAcked ends a job's life. The job is kept only while others have to hear of its end.
func becomeAcked(j *store.Job) {
	if j.State != store.StateAcked {
		j.Flags &^= store.FlagUntold // it meant FlagAnnounced
	}
	j.State = store.StateAcked
}

// becomeUntold notes of an acknowledged job that this node has neither counted nor told its end.
func becomeUntold(j *store.Job) {
	from(j, store.StateAcked)
	j.Flags |= store.FlagUntold
}

// becomeUncertain marks an at-most-once job that may have been given to a client, and nobody knows. at (unix
// ms) is when that may have been. No timer queues the job again.
func (n *Node) becomeUncertain(j *store.Job, at int64) {
	j.State = store.StateActive
	j.Flags = j.Flags&^store.FlagOffered | store.FlagDelivered | store.FlagUncertain
	n.setTime(j, at)
}

// becomeCertain ends the doubt about an uncertain job: by a client's word nobody has it.
func becomeCertain(j *store.Job) {
	from(j, store.StateActive)
	j.Flags &^= store.FlagDelivered | store.FlagUncertain | store.FlagQueuedOnce
}

// becomeOffered marks an at-most-once job, which is out of its queue, as on its way to another node since at
// (unix ms).
func (n *Node) becomeOffered(j *store.Job, at int64) {
	from(j, store.StateActive)
	j.Flags = j.Flags&^(store.FlagAnnounced|store.FlagUncertain) | store.FlagDelivered | store.FlagOffered
	n.setTime(j, at)
}

// becomeOfferedAgain goes on with an offer whose end isn't known.
func becomeOfferedAgain(j *store.Job) {
	from(j, store.StateActive)
	j.Flags = j.Flags&^store.FlagUncertain | store.FlagOffered
}

// becomeUnoffered takes an offer back, if it is certain that the job is nowhere else.
func becomeUnoffered(j *store.Job) { j.Flags &^= store.FlagOffered | store.FlagDelivered }

// becomeQueued follows a job into its queue, or its per-key queue: it isn't delivered, and its next queueing counts.
func becomeQueued(j *store.Job) {
	from(j, store.StateQueued)
	if checked && isAskedToStop(j) {
		panic(fmt.Sprintf("job %v is queued, though it is to be cancelled when it comes back", j.ID))
	}
	j.Flags = j.Flags&^store.FlagDelivered | store.FlagQueuedOnce
}

// becomeDelivered follows a job to a client, which may have it from now on.
func becomeDelivered(j *store.Job) {
	from(j, store.StateActive)
	j.Flags = j.Flags&^store.FlagAnnounced | store.FlagDelivered
}

// becomeLeft leaves a job to another node. This node's delivery is no reason to object any more, and this
// node isn't the one to queue the job first.
func becomeLeft(j *store.Job) { j.Flags = j.Flags&^store.FlagDelivered | store.FlagQueuedOnce }

// becomeReturning marks a job that was in a queue, or that nobody has. The others are asked about it before
// it is queued, and that queueing isn't counted.
func becomeReturning(j *store.Job) {
	from(j, store.StateActive)
	j.Flags |= store.FlagReturning
}

// notReturning clears the mark when such a job is queued. FlagUncertain is the same bit: it clears that, too,
// for a job with RETRY 0 that is known not to be delivered.
func notReturning(j *store.Job) { j.Flags &^= store.FlagReturning }

// setDelivered notes that a client may have a job, at this node or another.
func setDelivered(j *store.Job) { j.Flags |= store.FlagDelivered }

// clearDelivered notes that no client has the job.
func clearDelivered(j *store.Job) { j.Flags &^= store.FlagDelivered }

// setAnnounced notes that the other holders know that a job's time draws near, or need not know.
func setAnnounced(j *store.Job) { j.Flags |= store.FlagAnnounced }

// clearAnnounced notes that the other holders are to be told before the job is queued.
func clearAnnounced(j *store.Job) { j.Flags &^= store.FlagAnnounced }

// setQueuedOnce notes that a job has been in a queue, here or elsewhere: its next queueing counts.
func setQueuedOnce(j *store.Job) { j.Flags |= store.FlagQueuedOnce }

// clearQueuedOnce notes that this node is to queue a job for the first time: that isn't counted.
func clearQueuedOnce(j *store.Job) { j.Flags &^= store.FlagQueuedOnce }

// setLogged notes that an effect of this call logs a job, as it is at the end of the call.
func setLogged(j *store.Job) { j.Flags |= store.FlagLogged }

// clearLogged notes that no effect logs the job.
func clearLogged(j *store.Job) { j.Flags &^= store.FlagLogged }

// setTime sets a job's QTime, unix ms; 0: never. QTime means something else in each state (DESIGN.md). A
// caller that changes what a job's timer depends on arms the timer then ([Node.arm]). The order of delayed jobs stays right.
func (n *Node) setTime(j *store.Job, at int64) { n.store.SetTime(j, at) }

// wakeAt sets the time at which a job is looked at, unix ms; 0: never.
func (n *Node) wakeAt(j *store.Job, at int64) {
	n.setTime(j, at)
	n.arm(j)
}

// setQTime is setTime for a job that somebody may work on: the list of those jobs stays in order, too.
func (n *Node) setQTime(j *store.Job, at int64) {
	if j.Place == store.InWorking {
		n.store.Work(j, at)
	} else {
		n.setTime(j, at)
	}
}
