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

// from panics, where tests are built with the tag check, if a job isn't in one of some states.
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

// becomeNew begins with a job that has just been made here: it is active, and in no queue.
func becomeNew(j *store.Job) { j.State = store.StateActive }

// becomeCopy begins with a copy of another node's job. To the others its first queueing here is an additional one.
func becomeCopy(j *store.Job) { j.State, j.Flags = store.StateActive, store.FlagQueuedOnce }

// becomeDummy begins with what stands for a job that this node doesn't have, and of whose end the others are to hear.
func becomeDummy(j *store.Job) { j.State = store.StateAcked }

// becomePending has a new job wait for its copies: it is promised to nobody.
func becomePending(j *store.Job) {
	from(j, store.StateActive)
	j.State = store.StateWaitRepl
}

// becomePromised follows the last copy that a job waited for.
func becomePromised(j *store.Job) {
	from(j, store.StateWaitRepl)
	j.State = store.StateActive
}

// becomeUnqueued takes a job that was saved as queued, and is in no list yet, for one that is known.
func becomeUnqueued(j *store.Job) {
	from(j, store.StateQueued)
	j.State = store.StateActive
}

// becomeAcked ends a job's life. Only those that have to hear of it keep it.
func becomeAcked(j *store.Job) { j.State = store.StateAcked }

// becomeUncertain takes an at-most-once job for one that was given to a client at a time (unix ms), and says that it
// isn't known. No timer queues it again.
func becomeUncertain(j *store.Job, at int64) {
	j.State = store.StateActive
	j.Flags = j.Flags&^store.FlagOffered | store.FlagDelivered | store.FlagUncertain
	j.QTime = at
}

// becomeCertain has an uncertain job be one that nobody has, by a client's word.
func becomeCertain(j *store.Job) {
	from(j, store.StateActive)
	j.Flags &^= store.FlagDelivered | store.FlagUncertain | store.FlagQueuedOnce
}

// becomeOffered has an at-most-once job, which is out of its queue, be on its way to another node.
func becomeOffered(j *store.Job, at int64) {
	from(j, store.StateActive)
	j.Flags = j.Flags&^(store.FlagAnnounced|store.FlagUncertain) | store.FlagDelivered | store.FlagOffered
	j.QTime = at
}

// becomeOfferedAgain goes on with an offer whose end isn't known.
func becomeOfferedAgain(j *store.Job) {
	from(j, store.StateActive)
	j.Flags = j.Flags&^store.FlagUncertain | store.FlagOffered
}

// becomeUnoffered takes it back, where it is certain that it is nowhere else.
func becomeUnoffered(j *store.Job) { j.Flags &^= store.FlagOffered | store.FlagDelivered }

// becomeQueued follows a job into its queue, or its per-key queue: it isn't delivered, and its next queueing counts.
func becomeQueued(j *store.Job) {
	from(j, store.StateQueued)
	j.Flags = j.Flags&^store.FlagDelivered | store.FlagQueuedOnce
}

// becomeDelivered follows a job to a client, which may have it from now on.
func becomeDelivered(j *store.Job) {
	from(j, store.StateActive)
	j.Flags = j.Flags&^store.FlagAnnounced | store.FlagDelivered
}

// becomeLeft leaves a job to another node: a delivery by this one is no reason to object any more, nor is this node to
// queue it first.
func becomeLeft(j *store.Job) { j.Flags = j.Flags&^store.FlagDelivered | store.FlagQueuedOnce }

// becomeReturning has the others be asked about a job, which came from a queue or nobody has, at a time: its next queueing isn't counted.
func becomeReturning(j *store.Job) {
	from(j, store.StateActive)
	j.Flags |= store.FlagReturning
}

// notReturning follows such a job into its queue; and a job of RETRY 0 that is known not to be delivered.
func notReturning(j *store.Job) { j.Flags &^= store.FlagReturning }

// setDelivered notes that a client may have a job, at this node or another.
func setDelivered(j *store.Job) { j.Flags |= store.FlagDelivered }

// clearDelivered notes that none has.
func clearDelivered(j *store.Job) { j.Flags &^= store.FlagDelivered }

// setAnnounced notes that the other holders know that a job's time draws near, or need not know.
func setAnnounced(j *store.Job) { j.Flags |= store.FlagAnnounced }

// clearAnnounced has them be told before it is queued.
func clearAnnounced(j *store.Job) { j.Flags &^= store.FlagAnnounced }

// setQueuedOnce notes that a job has been in a queue, here or elsewhere: its next queueing counts.
func setQueuedOnce(j *store.Job) { j.Flags |= store.FlagQueuedOnce }

// clearQueuedOnce has this node queue a job for the first time: that isn't counted.
func clearQueuedOnce(j *store.Job) { j.Flags &^= store.FlagQueuedOnce }

// setLogged notes that an effect of this call logs a job as it will be then.
func setLogged(j *store.Job) { j.Flags |= store.FlagLogged }

// clearLogged notes that none does.
func clearLogged(j *store.Job) { j.Flags &^= store.FlagLogged }

// setTime sets a job's QTime, unix ms, which means something else in each state (DESIGN.md); 0: never. Whoever
// changes what a job's timer depends on arms it then ([Node.arm]).
func setTime(j *store.Job, at int64) { j.QTime = at }

// wakeAt has a job be looked at at a time, unix ms; 0: never.
func (n *Node) wakeAt(j *store.Job, at int64) {
	j.QTime = at
	n.arm(j)
}

// setQTime sets when a job is queued again; what is worked on keeps its order.
func (n *Node) setQTime(j *store.Job, at int64) {
	if j.Place == store.InWorking {
		n.store.Work(j, at)
	} else {
		j.QTime = at
	}
}
