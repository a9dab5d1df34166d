package engine

import (
	"bytes"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Requeueing: when a job comes back, and which of its holders queues it.

// retryAt is when a job is queued again if nothing happens, unix ms; 0: never. If
// several nodes hold the job, the time has a random error.
func (n *Node) retryAt(j *store.Job) int64 {
	at := retryTime(n, j)
	if at > 0 && j.Holders() > 0 {
		at += n.jitter()
		if runs(j) {
			at += jitterMS / 2 // so that a client has the whole retry time alone
		}
	}
	return at
}

// jitter is a random error, ms, that keeps nodes from acting at the same moment.
func (n *Node) jitter() int64 { return n.below(jitterMS) - jitterMS/2 }

// below is a random time shorter than span, ms.
func (n *Node) below(span int64) int64 { return int64(n.random.Uint64() % uint64(span)) }

// postpone begins a job's retry time anew.
func (n *Node) postpone(j *store.Job) { n.postponeBy(j, 0) }

// postponeBy begins a job's retry time anew, in span ms.
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

// announce tells the other holders that the job is about to be queued here. If connections came or went
// since the job was made, this node may not have heard of all holders: then it tells all nodes.
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

// unheard says whether another node may have become a holder of a job, and this one hasn't heard of it.
func (n *Node) unheard(j *store.Job) bool {
	return int64(j.CTime/1_000_000) < n.mesh.ChangedAt()+unheardMS
}

// unheardMS is how far the clock of the node that made a job may be ahead.
const unheardMS = 60_000

// onWillQueue objects if the sender must not queue the job now.
func (n *Node) onWillQueue(p *Peer, j *store.Job, flags uint8) {
	j = n.onQueuedElsewhere(n.meet(p, j))
	// This node handed the job to the sender, which asks for itself. Or the job was handed on to the sender, or the sender
	// was promoted in the place of the node that was handed the job. If others were handed the job since, they object themselves.
	away := taker(j) == p.Node || flags&wire.WasQueued != 0 && taker(j) != 0
	switch {
	case j.State == store.StateWaitRepl:
		// It isn't promised yet. It is queued here when it is.
		n.send(p, &wire.Message{Kind: wire.PutOff, Flags: wire.Objection, ID: j.ID})
	case j.State == store.StateQueued:
		n.tell(j, n.queued(j, 0))
	case taker(j) == 0 && nackedElsewhere(j, flags):
		// The client gave the job back at the sender, whose message about that was lost.
		n.learnNacks(j, flags)
		n.leaveJob(j, store.AnnounceMS)
	case !away && j.State == store.StateActive && j.Flags&store.FlagDelivered != 0 && (j.QTime > n.now+store.AnnounceMS || j.QTime > n.now && runs(j)):
		// A client has it: our retry time is the one that counts.
		n.send(p, &wire.Message{Kind: wire.Queued, Flags: wire.InHands, ID: j.ID})
	case n.mayLeave(j) && (j.QTime > n.now || n.nextTick(j)) && n.leavesTo(p, j):
		// Both nodes are about to queue the job, this one maybe in the next tick. One of them leaves it
		// to the other, so that not both give it to clients.
		n.leaveJob(j, store.AnnounceMS)
	case n.mayLeave(j) && (j.QTime > n.now && j.QTime <= n.now+store.AnnounceMS || n.nextTick(j)) && j.Queue.Pause&PauseIn == 0:
		// The other one objects: its WillQueue may have come before the first one was about to queue the job itself.
		n.send(p, &wire.Message{Kind: wire.PutOff, Flags: wire.Objection | n.keyFlag(j), ID: j.ID, Span: max(j.QTime-n.now, 0)})
	case p.Leaving && !n.leaving && flags&wire.WasQueued == 0 && n.mayQueueInstead(j):
		// The sender may be ended before it has queued the job, and leaves it to this node.
		n.setQTime(j, n.now+store.AnnounceMS)
		n.announce(j)
	case leftToOthers(j) && j.Queue.Pause&PauseIn == 0:
		n.leaveJob(j, store.AnnounceMS)
	case j.State == store.StateActive && j.Retry > 0 && j.Flags&store.FlagAnnounced == 0 && !held(j) && j.QTime > n.now && j.QTime <= n.now+2*store.AnnounceMS:
		// Without this, the node would queue the job a moment later, before it has heard that the sender has.
		n.setQTime(j, j.QTime+store.AnnounceMS)
		n.arm(j)
	case away:
	case n.isToQueue(j) && !n.wonElsewhere(j) && j.Queue.Pause&PauseIn == 0:
		n.send(p, &wire.Message{Kind: wire.PutOff, Flags: wire.Objection | n.keyFlag(j), ID: j.ID, Span: max(j.QTime-n.now, 0)})
	}
}

// nackedElsewhere is for a job that a client has here. It says whether the sender of a WillQueue with these flags
// knows a NACK that this node hasn't heard of. If the two nodes count different additional deliveries, that NACK
// says nothing about this client: the job came back here when its retry time was over, and was delivered again.
func nackedElsewhere(j *store.Job, flags uint8) bool {
	return j.State == store.StateActive && j.Flags&store.FlagDelivered != 0 && j.Retry > 0 &&
		flags&wire.WasQueued != 0 && wire.Ahead(flags, j.Nacks) > 0 && wire.SameDeliveries(flags, j.Deliveries)
}

// learnNacks adds the NACKs that another node has counted, and this one hasn't.
func (n *Node) learnNacks(j *store.Job, flags uint8) {
	if ahead := wire.Ahead(flags, j.Nacks); ahead > 0 {
		j.Nacks = saturated(j.Nacks, ahead)
		n.log(LogState, j)
	}
}

// inHandsDormant says whether a client may work on a job whose queue lies in another database.
func (n *Node) inHandsDormant(id *store.ID) bool {
	j := n.lookDormant(id)
	return j != nil && j.State == store.StateActive && j.Flags&store.FlagDelivered != 0 && taker(j) == 0 && j.QTime > n.now
}

// mayLeave says whether this node may leave a job, which it has announced or needn't, to another node
// that announces it. A job that waits for its key belongs to the node that gets the lock.
func (n *Node) mayLeave(j *store.Job) bool {
	return j.State == store.StateActive && j.Retry > 0 && j.Flags&store.FlagAnnounced != 0 && !held(j) &&
		(!n.awaitsFirst(j) || j.QTime <= n.now+store.AnnounceMS && !n.putOff(j))
}

// leavesTo is for a job that this node and another have both announced. It says whether this one leaves the job to the other. A node that
// is leaving the mesh does so, for it may be ended at any moment.
func (n *Node) leavesTo(p *Peer, j *store.Job) bool {
	if p.Leaving != n.leaving {
		return n.leaving
	}
	return theirs(&n.self, &p.ID, &j.ID)
}

// mayQueueInstead is for a job that a leaving node has announced. It says whether this node can queue its copy in that node's place. It
// can't if the job is put off: then the leaving node asks for the job's key.
func (n *Node) mayQueueInstead(j *store.Job) bool {
	return j.State == store.StateActive && j.Retry > 0 && j.Flags&store.FlagAnnounced == 0 && !held(j) && !n.putOff(j) && j.Queue.Pause&PauseIn == 0
}

// onPutOff leaves a job to the node that has put it off by span ms, until a retry time after that is
// over. Two nodes may have put it off at once: then the one with the smaller ID keeps it, so that they
// neither leave it to each other nor both go on trying.
func (n *Node) onPutOff(p *Peer, j *store.Job, span int64, flags uint8) {
	if flags&wire.Objection != 0 && j.State == store.StateQueued {
		n.send(p, n.queued(j, 0)) // a message of another node queued it meanwhile, so it isn't announced any more
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

// hadKey says whether this node knows that a job, which a conflict had put off, has got its key since. That is final:
// a node that still waits for the key was away meanwhile, and the job must not be left to it.
func (n *Node) hadKey(j *store.Job) bool {
	u := j.Unique()
	return u != nil && j.Retry > 0 && u.Tries() > 0 && !u.Has(store.UniquePending) && j.State != store.StateWaitRepl && !held(j)
}

// tellGotKey tells a node that still waits for a job's key that the job has got it.
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

// onKeptOut takes a job's first queueing back from the node that it was left to. The job is then like one that was
// just unblocked and that another node is to queue: this node asks in two seconds, and a node that has it by then objects.
func (n *Node) onKeptOut(j *store.Job) {
	if j.State == store.StateActive && j.Retry > 0 && j.Place == store.InHeld && j.Reason() == store.NoReason && !held(j) &&
		j.Flags&(store.FlagAnnounced|store.FlagDelivered) == 0 && j.Deliveries == 0 && j.Nacks == 0 {
		n.unblock(j, later)
	}
}

// isToQueue says whether this node is the one to queue a job for the first time, and has announced
// that or need not. A unique job may wait for its key, so its time must also be later than the time at
// which another node could queue it that announces it now.
func (n *Node) isToQueue(j *store.Job) bool {
	if j.Flags&store.FlagAnnounced == 0 {
		return false
	}
	if j.Unique() == nil && j.Flags&store.FlagQueuedOnce == 0 && n.nextTick(j) {
		return true
	}
	return n.awaitsFirst(j) && (j.Unique() == nil || j.QTime > n.now+store.AnnounceMS)
}

// nextTick says whether the next tick queues a job that this node has announced. If the node stood
// still past the job's time for longer than AnnounceMS, it announces the job anew.
func (n *Node) nextTick(j *store.Job) bool {
	return j.State == store.StateActive && j.QTime <= n.now && j.QTime >= n.now-store.AnnounceMS && !held(j) && j.Queue.Pause&PauseIn == 0
}

// awaitsFirst says whether this node is to queue a job for the first time, when its delay
// is over. Another node may be to do so, too, and is told before (FlagAnnounced).
func (n *Node) awaitsFirst(j *store.Job) bool {
	return j.State == store.StateActive && j.Flags&store.FlagQueuedOnce == 0 && (j.Flags&store.FlagAnnounced != 0 || j.Reason() == store.Delayed) &&
		j.QTime > n.now && !held(j)
}

// nobodyHas says whether no client can have a job, for it awaits its first queueing. If the job was
// delivered more than once, or given back, it was with a client, here or elsewhere, which may still
// work on it. A client may also have a job whose delay is over and that is put off. If its key was
// being worked on, it was in a queue before; if there was a conflict, another node may have queued it since.
func (n *Node) nobodyHas(j *store.Job) bool {
	if !n.awaitsFirst(j) || j.Deliveries > 0 || j.Nacks > 0 {
		return false
	}
	u := j.Unique()
	return u == nil || delayFrom(j, n.now) > 0 || j.Holders() == 0 && (u.Has(store.UniquePending) || u.Tries() == 0)
}

// wonElsewhere says whether a job that is put off may have got its lock by another node's acquisition,
// for example after ENQUEUE at that node. Then that node queues the job.
func (n *Node) wonElsewhere(j *store.Job) bool {
	if !n.putOff(j) || n.locks.Asks(&j.ID) {
		return false
	}
	l := n.locks.Live(n.lockName(j, j.Unique(), store.LockWait))
	return l != nil && l.Job == j.ID
}

// onWorking leaves a job to another node, whose client says that it works on the job. If that
// node hadn't given the job to a client, no client can have it before its delay is over.
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
	if flags&wire.InHands != 0 { // otherwise that node may still wait for the key
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
	n.delegateRun(j) // a client that works on it has it there
	if n.inHands(j) {
		n.notIdle(j, j.QTime)
	}
	n.demote(j, span)
}

// isAway is for a job that isn't promised yet: it notes that another node, which couldn't reach this one to
// ask, has the job in its queue or with a client. It returns false if the job isn't pending.
func (n *Node) isAway(p *Peer, j *store.Job) bool {
	ad := n.pendingAddOf(&j.ID)
	if ad == nil || j.State != store.StateWaitRepl {
		return false
	}
	ad.elsewhere = true
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
		return // a late objection to a WillQueue: a client has the job here, too, and the sender has heard, or will hear, that it came back here
	case flags&wire.Kept != 0 && !given && n.inHands(j):
		// A client here got the job before this node heard that the sender keeps it in its queue. No client must get it there, too.
		n.send(p, keptInHands(j))
		return
	case given && wire.Ahead(flags, j.Nacks) < 0:
		// The job was given back here since: a client that has it here got it after that.
		if given, missed = false, true; n.inHands(j) {
			return
		}
	}
	if given {
		n.learnNacks(j, flags)
	}
	// crossed: the sender didn't know yet that the job has come back here. It gives way when it hears of that, whether it still has the job
	// queued or has given it to a client. So this node doesn't give way to the older message.
	ahead := wire.Ahead(flags, j.Nacks+j.Deliveries)
	crossed := flags&(wire.Kept|wire.InHands) == 0 && ahead < 0
	switch {
	case ahead <= 0 && flags&^wire.CountFlags(15) == 0 && n.isNewInHands(j):
		// The sender has the job in its queue as well, and counts nothing that this node doesn't know.
		n.send(p, keptInHands(j))
		return
	case ahead <= 0: // this node has counted the same already
	case flags&(wire.CountNack|wire.CountMore) != 0:
		// The sender is ahead by more than one if a message was lost.
		if flags&wire.CountNack != 0 {
			j.Nacks = saturated(j.Nacks, ahead)
		} else {
			j.Deliveries = saturated(j.Deliveries, ahead)
		}
		n.log(LogState, j) // the job may stay here as it is, and the counts say which node is behind
	}
	n.gotKey(j)
	if j.State == store.StateQueued {
		// A job that was given back since its WillQueue stays queued, whichever node objects to that
		// WillQueue: the objecting node isn't to queue it, and yields when it hears of the NACK.
		stale := crossed || flags&wire.InHands != 0 && j.Flags&store.FlagAnnounced == 0
		if !given && (stale || !theirs(&n.self, &p.ID, &j.ID)) {
			// This node keeps the job queued, and the sender must know. A client there may have got it since
			// the sender queued it: then the sender says so.
			m := n.queued(j, 0)
			switch {
			case missed: // the sender believes that its client still has the job, and would say so again
				m.Flags |= wire.CountNack
			case flags&wire.InHands == 0:
				m.Flags = wire.Kept
			}
			n.send(p, m)
			return
		}
		n.dequeue(j)
	}
	n.delegateRun(j) // a client that has the job here may not know
	if n.inHands(j) && flags&wire.CountNack == 0 {
		n.notIdle(j, j.QTime) // and hasn't given the job back
	}
	n.demote(j, 0)
}

// queued makes the message that this node has a job in its queue, or queues it now. flags is what a Queued may say besides.
func (n *Node) queued(j *store.Job, flags uint8) *wire.Message {
	return &wire.Message{Kind: wire.Queued, Flags: flags | wire.CountFlags(j.Nacks+j.Deliveries), ID: j.ID}
}

// inHands says whether a client of this node has a job, and its retry time isn't over.
func (n *Node) inHands(j *store.Job) bool {
	return j.Place == store.InWorking && j.Retry > 0 && j.QTime > n.now
}

// isNewInHands is inHands, but false if this node is about to queue the job again.
func (n *Node) isNewInHands(j *store.Job) bool {
	return n.inHands(j) && j.Flags&store.FlagAnnounced == 0
}

// keptInHands makes the message that a client here keeps a job that the receiver has in its queue.
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

// meet notes the sender of a message as a holder. If it is new, all holders are told of
// each other.
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

// onHolders learns further holders, and answers with those that the sender doesn't
// know. If each of the two nodes knows some that the other doesn't, all holders are
// told: each of the two has told them of its own list, but nobody yet of both.
func (n *Node) onHolders(p *Peer, j *store.Job, m *wire.Message) {
	j, news := n.learnLogged(j, m.Holders)
	// Each node's list has all holders that it knows, except itself.
	more := j.HeldBy(uint64(p.Node)) && j.Holders() > len(m.Holders)-1
	switch {
	case news && more:
		n.spread(j)
	case more:
		n.send(p, n.copyOf(j, wire.Holders))
	}
	if news && j.State == store.StateQueued {
		// A new holder may have been handed the job, and have it queued as well.
		n.tell(j, n.queued(j, 0))
	}
}

// theirs breaks the tie between two nodes that have queued a job: the node whose
// ID, combined with the job's, is greater keeps it, so no node always wins. True: it
// is the other node.
func theirs(mine, other *wire.NodeID, id *store.ID) bool {
	var a, b wire.NodeID
	for i := range a {
		salt := id[4+i%18]
		a[i], b[i] = mine[i]^salt, other[i]^salt
	}
	return bytes.Compare(b[:], a[:]) > 0
}
