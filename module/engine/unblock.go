package engine

import (
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// A job that isn't held back any more is unblocked. Several nodes learn that the last job that it waited for has
// ended: one of them queues the job, at once or soon, and the others wait to hear of that.

// timing says when a node queues a job that it unblocks.
type timing uint8

const (
	later      timing = iota // another node does so: this node only if it hears nothing of that
	soon                     // when the others have been told, and nobody objects
	unpromised               // as soon, but all nodes are told at once: where the job is added it may not be promised yet
	atOnce
)

// timingOf says when this node queues a job, now that the last job that it waited for has ended. The node
// where a client said so queues it at once, for that node is the first to know. The first node that holds
// both queues it soon, unless it hears meanwhile that the job is queued. Both are needed: the client's node
// may not hold the job, or may not have known yet that the other jobs that it waited for have ended.
func (n *Node) timingOf(j *store.Job, e *end) timing {
	switch {
	case j.Holders() == 0 || e.origin == origin{}:
		return atOnce
	case n.first(j, e):
		return soon
	}
	return later
}

// first says whether this node is the first of those that hold a job and hear of the end of the one that the
// job waited for last. They are the holders of that one, and the nodes that are told.
func (n *Node) first(j *store.Job, e *end) bool {
	for i := range j.Holders() {
		h, _ := j.Holder(i)
		if n.comesBefore(wire.Node(h)) && (e.job != nil && e.job.HeldBy(h) || slices.Contains(e.told, wire.Node(h))) {
			return false
		}
	}
	return true
}

// firstHolder says whether this node is the first of the connected holders of a job, see comesBefore.
func (n *Node) firstHolder(j *store.Job) bool {
	for i := range j.Holders() {
		if h, _ := j.Holder(i); n.comesBefore(wire.Node(h)) {
			return false
		}
	}
	return true
}

// comesBefore says whether another holder of a job is to queue it rather than this one: the other is
// connected, and its ID is smaller. A node that is leaving comes last, for it may be ended at any moment. If
// two nodes don't know yet that one of them is leaving, neither may be the first, and both ask soon.
func (n *Node) comesBefore(node wire.Node) bool {
	p := n.mesh.ByName(node)
	switch {
	case p == nil || !p.Connected:
		return false
	case p.Leaving != n.leaving:
		return n.leaving
	}
	return node < n.self.Node()
}

// unblock queues a job that isn't held back any more, if it is this node's turn, and the job is in sight.
func (n *Node) unblock(j *store.Job, when timing) {
	if j.State != store.StateActive {
		return // the job waits for its copies, and is queued when it has them
	}
	clearAnnounced(j)
	if left := delayFrom(j, n.now); left > 0 {
		n.setTime(j, n.now+left)
		// This node queues the job for the first time, even if it has only a copy.
		clearQueuedOnce(j)
		if when == later {
			n.setTime(j, j.QTime+n.insteadOf(j))
		} else {
			if when == soon {
				n.setTime(j, j.QTime+store.AnnounceMS) // so that this node and the one where the end was said don't queue it at one moment
			}
			n.store.Count(j, store.Delayed)
		}
		if when == atOnce && j.Holders() == 0 {
			setAnnounced(j) // otherwise another node may have unblocked it at the same moment
		}
		n.arm(j)
		n.log(LogState, j)
		if when != later {
			n.tellDelays(j)
		}
		return
	}
	if when == soon && j.Retry > 0 && j.Holders() > 0 || when != later && j.Queue.DB != 0 {
		clearQueuedOnce(j)
		n.wakeAt(j, n.now+store.AnnounceMS)
		n.log(LogState, j)
		return
	}
	if when != later && j.Queue.Pause&PauseIn != 0 && j.Retry > 0 {
		clearQueuedOnce(j)
		n.shutOut(j)
		n.log(LogState, j)
		return
	}
	if when == later {
		clearQueuedOnce(j)
		if n.setTime(j, 0); j.Retry > 0 {
			n.setTime(j, n.now+n.insteadOf(j))
		}
		n.arm(j)
		n.log(LogState, j)
		return
	}
	if when == unpromised || n.leavesFamily(j) {
		clearQueuedOnce(j)
		n.setTime(j, n.now+store.AnnounceMS)
		setAnnounced(j)
		n.arm(j)
		n.tellAllOf(j, &wire.Message{Kind: wire.WillQueue})
		n.log(LogState, j)
		return
	}
	clearQueuedOnce(j) // the others need not count this queueing
	n.tellQueues(j)
	n.requeue(j, false)
}

// leavesFamily says whether this node is leaving, and another one can queue in its place a job that is
// unblocked. A node that hears that a leaving node is about to queue a job does so itself.
func (n *Node) leavesFamily(j *store.Job) bool {
	return n.leaving && j.Retry > 0 && !n.putOff(j) && n.stayer(j) != nil
}

// tellQueues tells the other holders that this node is about to queue a job. A job that was put off by a
// conflict hasn't got its key yet, so the message only says that this node tries.
func (n *Node) tellQueues(j *store.Job) {
	m := n.queued(j, 0)
	if n.putOff(j) {
		*m = wire.Message{Kind: wire.PutOff}
	}
	n.tell(j, m)
}

// tellDelays tells the other holders that this node counts a job as delayed that it has unblocked, and queues it in time. Another node may have
// heard of the end of the last job that it waited for as well, and count it, too.
func (n *Node) tellDelays(j *store.Job) {
	if j.Holders() > 0 {
		n.tell(j, n.delays(j))
	}
}

func (n *Node) delays(j *store.Job) *wire.Message {
	return &wire.Message{Kind: wire.PutOff, Flags: wire.Delays | n.keyFlag(j), ID: j.ID, Span: max(j.QTime-n.now, 0)}
}

// onDelays leaves the first queueing of a job to a node that has unblocked it and delays it. This node queues it two seconds later, if that one
// doesn't, as if it had heard of the end of the other jobs after all others. So no job comes late, should the sender be lost.
func (n *Node) onDelays(p *Peer, j *store.Job) {
	was := held(j)
	j = n.onQueuedElsewhere(n.meet(p, j))
	switch {
	case n.standing(j) == pending: // object: this node delays the job when it is promised (family_delayed_adding)
		n.send(p, &wire.Message{Kind: wire.PutOff, Flags: wire.Objection, ID: j.ID, Span: delayFrom(j, n.now)})
	case j.State != store.StateActive || j.Retry == 0 || held(j):
	case was: // give way (family_delayed_once)
		n.unblock(j, later)
	case !n.awaitsFirst(j) || n.putOff(j) || j.Reason() != store.Delayed || rests(j): // ignore: this node isn't to queue it, or a client has it, or has given it back (family_delays_crosses_nack)
	case theirs(&n.self, &p.ID, &j.ID): // give way: both have unblocked it, and one counts it (family_acked_at_both_delayed)
		n.store.Count(j, store.NoReason)
		n.unblock(j, later)
	default: // keep and say so (family_acked_at_both_delayed)
		n.send(p, n.delays(j))
	}
}

// insteadMS is how long this node waits for another node that is to queue a job, and says nothing, before it
// asks the others. That node may have no copy, though this one believes so: its copy was deleted or refused
// there.
const insteadMS = 2_000

// insteadOf returns the time, in ms, until this node queues a job that another is to queue. It asks the
// others store.AnnounceMS before.
func (n *Node) insteadOf(j *store.Job) int64 {
	return min(insteadMS+store.AnnounceMS, int64(j.Retry)*1000) + n.jitter()
}

// leftToOthers says whether another node is to queue a job for the first time, and this one only if it hears
// nothing of that.
func leftToOthers(j *store.Job) bool {
	return j.State == store.StateActive && j.Retry > 0 && j.Place == store.InHeld && j.Reason() == store.NoReason && !held(j) &&
		j.Flags&(store.FlagQueuedOnce|store.FlagAnnounced|store.FlagDelivered) == 0
}

// onQueuedElsewhere notes that another node has queued, or given to a client, a job that is held back here:
// the job was unblocked there.
func (n *Node) onQueuedElsewhere(j *store.Job) *store.Job {
	f, ok := j.Family()
	adding := j.State == store.StateWaitRepl
	if !ok || j.State != store.StateActive && !adding || !f.Held() {
		return j
	}
	clearAnnounced(j)
	if f.Flags&(store.FamilyBlocked|store.FamilyDeferred) == store.FamilyBlocked {
		// Maybe the job that blocks it was released to come last, and waits for it.
		f.Flags = store.FamilyEarly
	} else {
		n.removeParents(f, &j.ID)
		f = store.Family{}
	}
	if j = n.setFamily(j, &f); adding {
		return j // it is queued here when it is promised
	}
	n.wakeAt(j, n.retryAt(j))
	n.log(LogState, j)
	return j
}
