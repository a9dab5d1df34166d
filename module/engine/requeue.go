package engine

import (
	"bytes"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Queueing again: when a job comes back, and which node of those that hold it
// queues it.

// retryAt is when a job is queued again if nothing happens, with a random error
// where several nodes hold it. 0 where it never is.
func (n *Node) retryAt(j *store.Job) int64 {
	at := retryTime(n, j)
	if at > 0 && j.Holders() > 0 {
		at += n.jitter()
		if runs(j) {
			at += jitterMS / 2 // who works on it has all of its time alone
		}
	}
	return at
}

// jitter is a random error, ms, that keeps nodes from acting at one moment.
func (n *Node) jitter() int64 { return n.below(jitterMS) - jitterMS/2 }

// below is a random time shorter than span, ms.
func (n *Node) below(span int64) int64 { return int64(n.random.Uint64() % uint64(span)) }

// postpone starts a job's retry time anew.
func (n *Node) postpone(j *store.Job) { n.postponeBy(j, 0) }

// postponeBy has a job's retry time begin in span ms.
func (n *Node) postponeBy(j *store.Job, span int64) {
	if j.Retry == 0 || j.State == store.StateWaitRepl || j.State == store.StateAcked || held(j) {
		return
	}
	n.setQTime(j, n.retryAt(j)+span)
	clearAnnounced(j)
	notReturning(j)
	n.arm(j)
	n.log(LogState, j)
}

// announce tells the other holders that the job is about to be queued here. Where nodes have come or gone
// since it was made, this node may not have heard of all holders: then all nodes are told.
func (n *Node) announce(j *store.Job) {
	setAnnounced(j)
	n.arm(j)
	m := wire.Message{Kind: wire.WillQueue, ID: j.ID}
	if j.Returning() && (j.Flags&store.FlagDelivered == 0 || taker(j) != 0) {
		m.Flags = wire.WasQueued | wire.CountFlags(j.Nacks) | wire.DeliveriesFlags(j.Deliveries)
	}
	if !n.unheard(j) {
		n.tell(j, &m)
		return
	}
	n.tellAllOf(j, &m)
}

// unheard says whether another node may have become a holder of a job without this one's hearing of it.
func (n *Node) unheard(j *store.Job) bool {
	return int64(j.CTime/1_000_000) < n.mesh.ChangedAt()+unheardMS
}

// unheardMS is how far the clock of the node that made a job may be ahead.
const unheardMS = 60_000

// onWillQueue objects where the job must not be queued by that node now.
func (n *Node) onWillQueue(p *Peer, j *store.Job, flags uint8) {
	j = n.onQueuedElsewhere(n.meet(p, j))
	// It was handed to that node, which asks for itself; or handed on to that one, or that one was promoted in
	// the place of the one that was handed the job. If the job was handed to others since, these object themselves.
	away := taker(j) == p.Node || flags&wire.WasQueued != 0 && taker(j) != 0
	switch {
	case j.State == store.StateWaitRepl:
		// It isn't promised yet. It is queued here when it is.
		n.send(p, &wire.Message{Kind: wire.PutOff, Flags: wire.Objection, ID: j.ID})
	case j.State == store.StateQueued:
		n.tell(j, n.queued(j, 0))
	case taker(j) == 0 && nackedElsewhere(j, flags):
		// Its client gave it back at that node, whose word of it was lost.
		n.learnNacks(j, flags)
		n.leaveJob(j, store.AnnounceMS)
	case !away && j.State == store.StateActive && j.Flags&store.FlagDelivered != 0 && (j.QTime > n.now+store.AnnounceMS || j.QTime > n.now && runs(j)):
		// A client has it: our retry time is the one that counts.
		n.send(p, &wire.Message{Kind: wire.Queued, Flags: wire.InHands, ID: j.ID})
	case n.mayLeave(j) && (j.QTime > n.now || n.nextTick(j)) && n.leavesTo(p, j):
		// Both mean to queue it at one moment, this node maybe in the tick that comes next. One of them
		// leaves it, lest both give it to clients.
		n.leaveJob(j, store.AnnounceMS)
	case n.mayLeave(j) && (j.QTime > n.now && j.QTime <= n.now+store.AnnounceMS || n.nextTick(j)) && j.Queue.Pause&PauseIn == 0:
		// The other objects: the first may have heard of its word before it meant to queue the job itself.
		n.send(p, &wire.Message{Kind: wire.PutOff, Flags: wire.Objection | n.keyFlag(j), ID: j.ID, Span: max(j.QTime-n.now, 0)})
	case p.Leaving && !n.leaving && flags&wire.WasQueued == 0 && n.mayQueueInstead(j):
		// That node may be ended before it has queued the job, and leaves it to this one.
		n.setQTime(j, n.now+store.AnnounceMS)
		n.announce(j)
	case leftToOthers(j) && j.Queue.Pause&PauseIn == 0:
		n.leaveJob(j, store.AnnounceMS)
	case j.State == store.StateActive && j.Retry > 0 && j.Flags&store.FlagAnnounced == 0 && !held(j) && j.QTime > n.now && j.QTime <= n.now+2*store.AnnounceMS:
		// This node would queue it a moment later, before it has heard that the other has.
		n.setQTime(j, j.QTime+store.AnnounceMS)
		n.arm(j)
	case away:
	case n.isToQueue(j) && !n.wonElsewhere(j) && j.Queue.Pause&PauseIn == 0:
		n.send(p, &wire.Message{Kind: wire.PutOff, Flags: wire.Objection | n.keyFlag(j), ID: j.ID, Span: max(j.QTime-n.now, 0)})
	}
}

// nackedElsewhere says of a job that a client has here whether the node that sent a WillQueue with these
// flags knows of a NACK that this one hasn't heard of. Where the two count other additional deliveries, that
// NACK says nothing of this client: the job came back here when its retry time was over, and was given out again.
func nackedElsewhere(j *store.Job, flags uint8) bool {
	return j.State == store.StateActive && j.Flags&store.FlagDelivered != 0 && j.Retry > 0 &&
		flags&wire.WasQueued != 0 && wire.Ahead(flags, j.Nacks) > 0 && wire.SameDeliveries(flags, j.Deliveries)
}

// learnNacks has a job count the NACKs that another node counts.
func (n *Node) learnNacks(j *store.Job, flags uint8) {
	if ahead := wire.Ahead(flags, j.Nacks); ahead > 0 {
		j.Nacks = saturated(j.Nacks, ahead)
		n.log(LogState, j)
	}
}

// inHandsAway says whether a client may work on a job whose queue lies in another database.
func (n *Node) inHandsAway(id *store.ID) bool {
	j := n.lookAway(id)
	return j != nil && j.State == store.StateActive && j.Flags&store.FlagDelivered != 0 && taker(j) == 0 && j.QTime > n.now
}

// mayLeave says of a job that this node is about to queue, or has announced, whether it may leave
// it to another that announces it. One that waits for its key is that node's which gets the lock.
func (n *Node) mayLeave(j *store.Job) bool {
	return j.State == store.StateActive && j.Retry > 0 && j.Flags&store.FlagAnnounced != 0 && !held(j) &&
		(!n.awaitsFirst(j) || j.QTime <= n.now+store.AnnounceMS && !n.putOff(j))
}

// leavesTo says of a job that this node and another have announced whether this one leaves it to that one. A node that is leaving the
// mesh does, for it may be ended at any moment.
func (n *Node) leavesTo(p *Peer, j *store.Job) bool {
	if p.Leaving != n.leaving {
		return n.leaving
	}
	return theirs(&n.self, &p.ID, &j.ID)
}

// mayQueueInstead says of a job that a leaving node has announced whether this node can queue its copy in that one's place. The key of a
// job that is put off is what that node asks for.
func (n *Node) mayQueueInstead(j *store.Job) bool {
	return j.State == store.StateActive && j.Retry > 0 && j.Flags&store.FlagAnnounced == 0 && !held(j) && !n.putOff(j) && j.Queue.Pause&PauseIn == 0
}

// onPutOff leaves a job that was put off to the node that did it, until its retry time is over
// after that. Two nodes may have put it off at once: then the one with the smaller ID keeps it,
// lest both leave it to each other, or both go on trying.
func (n *Node) onPutOff(p *Peer, j *store.Job, span int64, flags uint8) {
	if flags&wire.Objection != 0 && j.State == store.StateQueued {
		n.send(p, n.queued(j, 0)) // it was queued at another's word, and no more announced
		return
	}
	if flags&wire.Objection != 0 && n.isNewInHands(j) { // the objection is late
		n.send(p, &wire.Message{Kind: wire.Queued, Flags: wire.InHands, ID: j.ID})
		return
	}
	if flags&wire.KeptOut != 0 {
		n.onKeptOut(j)
		return
	}
	if flags&wire.GotKey != 0 {
		n.gotKey(j)
	} else if n.hadKey(j) {
		n.tellGotKey(p, j)
		return
	}
	if j.State == store.StateWaitRepl || n.putOff(j) && n.isToQueue(j) && n.self.Node() < p.Node {
		return
	}
	n.leaveJob(j, span)
}

// hadKey says whether this node knows that a job which was put off by a conflict has got its key since. That stays so:
// a node that waits for the key was away meanwhile, and nobody is to leave the job to it.
func (n *Node) hadKey(j *store.Job) bool {
	u := j.Unique()
	return u != nil && j.Retry > 0 && u.Tries() > 0 && !u.Has(store.UniquePending) && j.State != store.StateWaitRepl && !held(j)
}

// tellGotKey answers such a node.
func (n *Node) tellGotKey(p *Peer, j *store.Job) {
	m := n.queued(j, 0)
	switch {
	case j.State == store.StateQueued:
	case j.Flags&store.FlagDelivered != 0 && j.QTime > n.now:
		m.Flags = wire.InHands
	default:
		m.Kind, m.Flags = wire.PutOff, wire.GotKey
		if n.awaitsFirst(j) {
			m.Span = j.QTime - n.now
		}
	}
	n.send(p, m)
}

// onKeptOut takes a job's first queueing back from the node to which it was left. It is as where a job was just
// let go, and another node is to queue it: this one asks in two seconds, and whoever has it by then objects.
func (n *Node) onKeptOut(j *store.Job) {
	if j.State == store.StateActive && j.Retry > 0 && j.Place == store.InHeld && j.Reason() == store.NoReason && !held(j) &&
		j.Flags&(store.FlagAnnounced|store.FlagDelivered) == 0 && j.Deliveries == 0 && j.Nacks == 0 {
		n.unblock(j, later)
	}
}

// isToQueue says whether this node is the one that is to queue a job for the first time, and has
// announced it, or need not; a unique one, which may wait for its key, later than another could
// that announces itself now.
func (n *Node) isToQueue(j *store.Job) bool {
	if j.Flags&store.FlagAnnounced == 0 {
		return false
	}
	if j.Unique() == nil && j.Flags&store.FlagQueuedOnce == 0 && n.nextTick(j) {
		return true
	}
	return n.awaitsFirst(j) && (j.Unique() == nil || j.QTime > n.now+store.AnnounceMS)
}

// nextTick says of a job that this node has announced whether the next tick queues it. Where the node
// stood still for longer, it announces the job anew.
func (n *Node) nextTick(j *store.Job) bool {
	return j.State == store.StateActive && j.QTime <= n.now && j.QTime >= n.now-store.AnnounceMS && !held(j) && j.Queue.Pause&PauseIn == 0
}

// awaitsFirst says whether this node is the one that is to queue a job for the first time,
// when its delay is over. Another may be one, too, and is told before (FlagAnnounced).
func (n *Node) awaitsFirst(j *store.Job) bool {
	return j.State == store.StateActive && j.Flags&store.FlagQueuedOnce == 0 && (j.Flags&store.FlagAnnounced != 0 || j.Reason() == store.Delayed) &&
		j.QTime > n.now && !held(j)
}

// nobodyHas says whether a job awaits its first queueing, so that no client can have it. One that
// was delivered more than once, or given back, had been with a client, here or elsewhere, who may
// still work on it. So may one whose delay is over, and that is put off: because its key was being
// worked on it had been in a queue, and because of a conflict another node may have queued it since.
func (n *Node) nobodyHas(j *store.Job) bool {
	if !n.awaitsFirst(j) || j.Deliveries > 0 || j.Nacks > 0 {
		return false
	}
	u := j.Unique()
	return u == nil || delayFrom(j, n.now) > 0 || j.Holders() == 0 && (u.Has(store.UniquePending) || u.Tries() == 0)
}

// wonElsewhere says whether a job that was put off may have its lock by another node's claim,
// as where a client said ENQUEUE there: that node queues it.
func (n *Node) wonElsewhere(j *store.Job) bool {
	if !n.putOff(j) || n.locks.Asks(&j.ID) {
		return false
	}
	l := n.locks.Live(n.lockName(j, j.Unique(), store.LockWait))
	return l != nil && l.Job == j.ID
}

// onWorking leaves a job to another node, whose client says that it works on it. Where that
// one hadn't given it to anybody, nobody can have it before its delay is over.
func (n *Node) onWorking(p *Peer, j *store.Job, flags uint8) {
	if n.isAway(p, j) {
		return
	}
	var span int64
	if flags&wire.InHands == 0 {
		if n.nobodyHas(j) {
			return
		}
		span = delayFrom(j, n.now)
	}
	n.prolong(j)
	if u := j.Unique(); u != nil && j.State == store.StateQueued {
		n.endsWaiting(j, u) // a client had it before it came back
	}
	if flags&wire.InHands != 0 { // else that node may wait for the key still
		n.gotKey(j)
	}
	n.leaveJob(j, span)
}

// leaveJob leaves a job to another node, whose client works on it, or which has put it
// off by span ms.
func (n *Node) leaveJob(j *store.Job, span int64) {
	if j.State == store.StateQueued {
		n.dequeue(j)
	}
	j = n.onQueuedElsewhere(j)
	n.delegateRun(j) // who works on it has it there
	if n.inHands(j) {
		n.notIdle(j, j.QTime)
	}
	n.demote(j, span)
}

// isAway notes of a job that isn't promised yet that a node has it in its queue or with a client, which
// didn't reach this one to ask. False: it is promised.
func (n *Node) isAway(p *Peer, j *store.Job) bool {
	ad := n.pendingAddOf(&j.ID)
	if ad == nil || j.State != store.StateWaitRepl {
		return false
	}
	ad.away = true
	n.onQueuedElsewhere(n.meet(p, j))
	return true
}

func (n *Node) onQueued(p *Peer, j *store.Job, flags uint8) {
	if n.isAway(p, j) {
		return
	}
	j = n.onQueuedElsewhere(n.meet(p, j))
	given, missed := flags&(wire.Kept|wire.InHands) == wire.Kept|wire.InHands, false
	switch {
	case flags&(wire.Kept|wire.InHands) == wire.InHands && n.isNewInHands(j):
		return // the objection to a WillQueue comes late: a client has it here, too, and the sender has heard, or will, that it came back here
	case flags&wire.Kept != 0 && !given && n.inHands(j):
		// A client here got the job before we heard that the other node keeps it in its queue. Nobody is to get it there, too.
		n.send(p, keptInHands(j))
		return
	case given && wire.Ahead(flags, j.Nacks) < 0:
		// The job was given back here since: whoever has it here has it by that.
		if given, missed = false, true; n.inHands(j) {
			return
		}
	}
	if given {
		n.learnNacks(j, flags)
	}
	// The sender didn't know yet that the job has come back here. It gives way when it hears of that, whether it has the job still queued or
	// has given it to a client: so this node doesn't give way to what it said before.
	ahead := wire.Ahead(flags, j.Nacks+j.Deliveries)
	crossed := flags&(wire.Kept|wire.InHands) == 0 && ahead < 0
	switch {
	case ahead <= 0 && flags&^wire.CountFlags(15) == 0 && n.isNewInHands(j):
		// The sender has it in its queue as well, by nothing that this node doesn't know.
		n.send(p, keptInHands(j))
		return
	case ahead <= 0: // what it counted is counted
	case flags&(wire.CountNack|wire.CountMore) != 0:
		// It is ahead by more than one where a word was lost.
		if flags&wire.CountNack != 0 {
			j.Nacks = saturated(j.Nacks, ahead)
		} else {
			j.Deliveries = saturated(j.Deliveries, ahead)
		}
		n.log(LogState, j) // it may stay here as it is, and the counts say who is behind
	}
	n.gotKey(j)
	if j.State == store.StateQueued {
		// A job that was given back since its WILLQUEUE stays queued whoever objects to that:
		// the objector isn't to queue it, and yields when it hears of the NACK.
		stale := crossed || flags&wire.InHands != 0 && j.Flags&store.FlagAnnounced == 0
		if !given && (stale || !theirs(&n.self, &p.ID, &j.ID)) {
			// We keep it queued, and they must know. A client there may have got it since they had it queued:
			// then they say so.
			m := n.queued(j, 0)
			switch {
			case missed: // it takes its client for the one that has the job still, and would say so again
				m.Flags |= wire.CountNack
			case flags&wire.InHands == 0:
				m.Flags = wire.Kept
			}
			n.send(p, m)
			return
		}
		n.dequeue(j)
	}
	n.delegateRun(j) // its client here may not know
	if n.inHands(j) && flags&wire.CountNack == 0 {
		n.notIdle(j, j.QTime) // nor has it given the job back
	}
	n.demote(j, 0)
}

// queued is the word that this node has a job in its queue, or that it comes into it now, with what a Queued may say beside.
func (n *Node) queued(j *store.Job, flags uint8) *wire.Message {
	return &wire.Message{Kind: wire.Queued, Flags: flags | wire.CountFlags(j.Nacks+j.Deliveries), ID: j.ID}
}

// inHands says whether a client of this node has a job, and its retry time isn't over.
func (n *Node) inHands(j *store.Job) bool {
	return j.Place == store.InWorking && j.Retry > 0 && j.QTime > n.now
}

// isNewInHands is inHands, but for a job that this node is about to queue again.
func (n *Node) isNewInHands(j *store.Job) bool {
	return n.inHands(j) && j.Flags&store.FlagAnnounced == 0
}

// keptInHands is the word that a client here keeps a job that the receiver has in its queue.
func keptInHands(j *store.Job) *wire.Message {
	return &wire.Message{Kind: wire.Queued, Flags: wire.Kept | wire.InHands | wire.CountFlags(j.Nacks), ID: j.ID}
}

// demote leaves a job to another node, which has it in a queue or with a client, or is to
// queue it in span ms. This node isn't the one to queue it first any more. A delivery by this
// node is no reason to object any more: two nodes that both object would put the job off for ever.
func (n *Node) demote(j *store.Job, span int64) {
	if j.Retry > 0 {
		becomeLeft(j)
		n.clearWorker(j)
		n.leaveTo(j)
		n.store.Hold(j)
		if !held(j) {
			n.store.Count(j, store.NoReason)
		}
	}
	n.postponeBy(j, span)
}

// meet notes a holder that a message came from; it and the others are told of
// each other where it was new.
func (n *Node) meet(p *Peer, j *store.Job) *store.Job {
	j, added := n.addHolder(j, p.Node)
	if added {
		n.spread(j)
	}
	return j
}

// spread tells all holders who the others are.
func (n *Node) spread(j *store.Job) {
	n.tell(j, n.copyOf(j, wire.Holders))
	n.log(LogState, j)
}

// onHolders learns of further holders, and answers with those that the sender
// doesn't know. Where each knows some that the other doesn't, all are told: the
// sender has told of its own, and we have of ours, but nobody yet of both.
func (n *Node) onHolders(p *Peer, j *store.Job, m *wire.Message) {
	j, news := n.learnLogged(j, m.Holders)
	// Both lists have all the others but one, its owner.
	more := j.HeldBy(uint64(p.Node)) && j.Holders() > len(m.Holders)-1
	switch {
	case news && more:
		n.spread(j)
	case more:
		n.send(p, n.copyOf(j, wire.Holders))
	}
	if news && j.State == store.StateQueued {
		// One that was handed the job may have it queued as well.
		n.tell(j, n.queued(j, 0))
	}
}

// theirs breaks the tie between two nodes that have queued a job: the one whose
// ID, combined with the job's, is greater keeps it, so no node always wins.
func theirs(mine, other *wire.NodeID, id *store.ID) bool {
	var a, b wire.NodeID
	for i := range a {
		salt := id[4+i%18]
		a[i], b[i] = mine[i]^salt, other[i]^salt
	}
	return bytes.Compare(b[:], a[:]) > 0
}
