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
		if n.lastsAlone(j) {
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
		m.Flags = wire.WasQueued
		m.SetReturns(j.Nacks, j.Deliveries)
	}
	if !n.unheard(j) {
		n.tell(j, &m)
		return
	}
	n.tellAllOf(j, &m)
}

// unheard says whether another node may have become a holder of a job, and this one hasn't heard of it.
func (n *Node) unheard(j *store.Job) bool {
	return maybeMadeBefore(j, n.mesh.ChangedAt())
}

// unheardMS is how far the clock of the node that made a job may be ahead.
const unheardMS = 60_000

// maybeMadeBefore says whether a job may have been made before a time of this node's clock, in Unix ms.
func maybeMadeBefore(j *store.Job, at int64) bool {
	return int64(j.CTime/1_000_000) < at+unheardMS
}

// Another holder of a job says that it will queue the job (onWillQueue), has queued it (onQueued), has put it off
// (onPutOff), or has a client that works on it (onWorking). Each of these functions finds out how the job stands here,
// and chooses a case by that and the word. The comment on a case says what this node does, and why, and names a script of testdata
// that shows it. DESIGN.md, section 3.3, has all cases as a table.

// standing is how a job stands at this node.
type standing uint8

const (
	elsewhere standing = iota // none of the others: this node has a copy, and no more
	pending                   // promised to nobody yet
	queued                    // in its queue
	inHands                   // with a client, whose retry time isn't over
	returning                 // the same, but this node has announced that it queues the job again
)

// standing says how a job stands here.
func (n *Node) standing(j *store.Job) standing {
	switch {
	case j.State == store.StateWaitRepl:
		return pending
	case j.State == store.StateQueued:
		return queued
	case !n.inHands(j):
		return elsewhere
	case j.Flags&store.FlagAnnounced != 0:
		return returning
	}
	return inHands
}

// turn is how near this node is to queueing a job that is in no queue here. The first that fits counts.
type turn uint8

const (
	distant        turn = iota // none of the others
	delivered                  // a client has the job, at this node or at one that it was handed to: this node's retry time counts
	announced                  // this node has announced the job, or needn't, and queues it within AnnounceMS, or in the next tick
	announcedEarly             // the same, but it queues the job later, and not for the first time
	queuesFirst                // this node is the one to queue the job for the first time, later, and no other node has got its key
	othersFirst                // another node is the one to queue the job for the first time
	announcesSoon              // this node announces the job within AnnounceMS
)

// turnOf says how near this node is to queueing a job. handed: this node has handed the job over, and it is the taker that
// asks, so neither the delivery nor a first queueing counts.
func (n *Node) turnOf(j *store.Job, handed bool) turn {
	within := func(ms int64) bool { return j.QTime > n.now && j.QTime <= n.now+ms }
	switch {
	case !handed && j.State == store.StateActive && j.Flags&store.FlagDelivered != 0 && (j.QTime > n.now+store.AnnounceMS || j.QTime > n.now && n.lastsAlone(j)):
		return delivered
	case n.mayLeave(j) && (within(store.AnnounceMS) || n.nextTick(j)):
		return announced
	case n.mayLeave(j) && j.QTime > n.now:
		return announcedEarly
	case !handed && n.isToQueue(j) && !n.wonElsewhere(j):
		return queuesFirst
	case leftToOthers(j) && j.Queue.Pause&PauseIn == 0:
		return othersFirst
	case j.State == store.StateActive && j.Retry > 0 && j.Flags&store.FlagAnnounced == 0 && !held(j) && within(2*store.AnnounceMS):
		return announcesSoon
	}
	return distant
}

// onWillQueue objects if the sender must not queue the job now. The message may also be an AskName: its sender has just added the job, and may be
// to queue it after a long delay, see [Node.onAskName]. So this node keeps its turn, and its times.
func (n *Node) onWillQueue(p *Peer, j *store.Job, m *wire.Message) {
	asks := m.Kind == wire.AskName
	j = n.onQueuedElsewhere(n.meet(p, j))
	switch n.standing(j) {
	case pending: // object: this node queues the job when it is promised (added_let_go)
		n.send(p, &wire.Message{Kind: wire.PutOff, Flags: wire.Objection, ID: j.ID})
		return
	case queued: // say so, to all (requeue)
		n.tellQueued(j, 0)
		return
	}
	if n.waitsLate(j) { // object: this node is about to queue or to cancel it (flush_late_given_meanwhile)
		n.send(p, &wire.Message{Kind: wire.PutOff, Flags: wire.Objection, ID: j.ID})
		return
	}
	if !asks && n.addsNow(j) {
		// Give way: the sender has had the job for longer than this node, and will say so (names_announced).
		setAsksName(j, true) // until then
		n.leaveJob(j, max(delayFrom(j, n.now), store.AnnounceMS))
		return
	}
	if taker(j) == 0 && nackedElsewhere(j, m) {
		// Give way: the client gave the job back at the sender, whose message about that was lost (nack_unheard).
		n.learnNacks(j, m)
		n.freeSlot(j)
		n.leaveJob(j, store.AnnounceMS)
		return
	}
	// This node handed the job to the sender, which asks for itself. Or the job was handed on to the sender, or the sender
	// was promoted in the place of the node that was handed the job. If others were handed the job since, they object themselves.
	handed := taker(j) == p.Node || m.Flags&wire.WasQueued != 0 && taker(j) != 0
	switch t := n.turnOf(j, handed); t {
	case delivered: // object: the retry time of the delivery is the one that counts (in_hands_late)
		n.send(p, &wire.Message{Kind: wire.Queued, Flags: wire.InHands, ID: j.ID})
	case announced, announcedEarly:
		switch {
		case !asks && n.leavesTo(p, j): // give way: only one of two nodes may queue the job (willqueue_crossing)
			n.leaveJob(j, store.AnnounceMS)
		case t == announced: // object: the sender may have asked before it heard that this node is about to queue the job (objection_late)
			n.object(p, j)
		}
	case queuesFirst: // object: the job waits for its time, or its key, here (delayed_wrong_clock)
		n.object(p, j)
	default:
		switch {
		case asks: // ignore: the sender leaves the job to this node's copy, or to the node that adds it, too
		case p.Leaving && !n.leaving && m.Flags&wire.WasQueued == 0 && n.mayQueueInstead(j):
			// Announce it instead: the sender may be ended before it has queued the job (leaving_retry).
			n.setQTime(j, n.now+store.AnnounceMS)
			n.announce(j)
		case t == othersFirst: // give way: the sender is the one that this node has left the job to (release_and_end)
			n.leaveJob(j, store.AnnounceMS)
		case t == announcesSoon: // wait for the sender's Queued, which would else come after this node has announced the job, too (working)
			n.setQTime(j, j.QTime+store.AnnounceMS)
			n.arm(j)
		}
	}
}

// object tells the sender of a WillQueue that this node queues the job, or asks for its key. If its queue is paused in input,
// this node doesn't queue the job, and says nothing.
func (n *Node) object(p *Peer, j *store.Job) {
	if j.Queue.Pause&PauseIn == 0 {
		span := max(j.QTime-n.now, 0)
		n.send(p, &wire.Message{Kind: wire.PutOff, Flags: wire.Objection | n.keyFlag(j) | n.dueFlag(j, span), ID: j.ID, Span: span})
	}
}

// aheadBy is by how much the sender of a message counts more NACKs of a job than this node does, or more returns ([wire.CountFlags] says
// which). Below 0 the sender has missed some. It is wrong for a sender of a former release, which counts modulo 16, if the two are further
// apart than 7.
func aheadBy(m *wire.Message, j *store.Job) int {
	mine, theirs := int(j.Nacks), int(m.Returns.Nacks)
	if !m.CountsNacks() {
		mine, theirs = mine+int(j.Deliveries), theirs+int(m.Returns.Deliveries)
	}
	if !m.Returns.Told {
		return wire.Ahead(m.Flags, uint16(mine))
	}
	return theirs - mine
}

// nackedElsewhere is for a job that a client has here. It says whether the sender of a WillQueue
// knows a NACK that this node hasn't heard of. If the two nodes count different additional deliveries, that NACK
// says nothing about this client: the job came back here when its retry time was over, and was delivered again.
func nackedElsewhere(j *store.Job, m *wire.Message) bool {
	if j.State != store.StateActive || j.Flags&store.FlagDelivered == 0 || j.Retry == 0 || m.Flags&wire.WasQueued == 0 || aheadBy(m, j) <= 0 {
		return false
	}
	if !m.Returns.Told {
		return wire.SameDeliveries(m.Flags, j.Deliveries)
	}
	return m.Returns.Deliveries == j.Deliveries
}

// learnNacks adds the NACKs that another node has counted, and this one hasn't. The message is one that counts NACKs.
func (n *Node) learnNacks(j *store.Job, m *wire.Message) {
	if ahead := aheadBy(m, j); ahead > 0 {
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

// onPutOff leaves a job to the node that has put it off by the message's span, until a retry time after that is
// over. The same message is also the objection to a WillQueue of this node.
func (n *Node) onPutOff(p *Peer, j *store.Job, m *wire.Message) {
	flags := m.Flags
	if flags&wire.CountNack != 0 {
		n.onResting(p, j, m)
		return
	}
	if flags&wire.Delays != 0 {
		n.onDelays(p, j)
		return
	}
	s, objects := n.standing(j), flags&wire.Objection != 0
	switch {
	case objects && s == queued: // keep and say so: the client gave the job back meanwhile (given_back_meanwhile)
		n.send(p, n.queued(j, 0))
		return
	case objects && s == inHands: // keep and say so: a client has got the job meanwhile (objection_late)
		n.send(p, &wire.Message{Kind: wire.Queued, Flags: wire.InHands, ID: j.ID})
		return
	case flags&wire.KeptOut != 0: // take back: the sender's queue is paused (family_kept_out)
		n.onKeptOut(j)
		return
	case flags&wire.GotKey != 0:
		n.gotKey(j)
	case n.hadKey(j): // keep and say so: the sender was away when the job got its key (unique_putoff_away)
		n.tellGotKey(p, j)
		return
	}
	switch {
	case s == pending: // ignore: this node queues the job when it is promised (added_put_off_elsewhere)
	case n.putOff(j) && n.isToQueue(j) && n.self.Node() < p.Node: // ignore: both have put it off, and one must go on (unique_putoff_cross)
	case flags&wire.Due != 0 && !objects && n.wasGivenTime(j) && !theirs(&n.self, &p.ID, &j.ID): // keep and say so: it was given a time at both, and one must go on (moved_at_twice)
		n.send(p, &wire.Message{Kind: wire.PutOff, Flags: wire.Due | n.keyFlag(j), ID: j.ID, Span: j.QTime - n.now})
	default:
		if flags&wire.Due != 0 { // (moved_at_copy_restarted)
			j = n.learnDue(j, m.Span)
		}
		n.endLease(j)
		n.leaveJob(j, m.Span) // give way (unique_putoff)
	}
}

// wasGivenTime says whether this node is the one to queue a job at a time that the job was given (AT).
func (n *Node) wasGivenTime(j *store.Job) bool {
	return n.isToQueue(j) && j.QTime > n.now && n.dueFlag(j, j.QTime-n.now) != 0
}

// hadKey says whether this node knows that a job, which a conflict had put off, has got its key since. That is final:
// a node that still waits for the key was away meanwhile, and the job must not be left to it.
func (n *Node) hadKey(j *store.Job) bool {
	u := j.Unique()
	return u != nil && j.Retry > 0 && u.Tries() > 0 && !u.Has(store.UniquePending) && j.State != store.StateWaitRepl && !held(j)
}

// tellGotKey tells a node that still waits for a job's key that the job has got it.
func (n *Node) tellGotKey(p *Peer, j *store.Job) {
	m := &wire.Message{Kind: wire.Queued, Flags: wire.InHands, ID: j.ID}
	switch {
	case j.State == store.StateQueued: // (unique_putoff_away_back)
		m = n.queued(j, 0)
	case j.Flags&store.FlagDelivered != 0 && j.QTime > n.now: // (unique_putoff_away)
	default: // (unique_putoff_away, added_put_off_elsewhere)
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
func (n *Node) onWorking(p *Peer, j *store.Job, m *wire.Message) {
	flags := m.Flags
	if n.isAway(p, j) { // (added_apart_told)
		return
	}
	if flags&wire.Lasts != 0 { // nothing else changes (copy_outlasts)
		n.outlastsElsewhere(j)
		return
	}
	if flags&wire.CountNack != 0 && aheadBy(m, j) < 0 {
		// The sender hasn't heard yet of a NACK, which counts more than the client's WORKING: else both nodes would leave the
		// job to each other (working_crosses_nack).
		switch s := n.standing(j); {
		case rests(j): // the same (working_crosses_nack_delay)
			n.tellResting(j, max(j.QTime-n.now, 0))
			return
		case s == queued: // keep and say so
			n.send(p, n.queued(j, wire.CountNack))
			return
		case s == inHands: // ignore: by the NACK another client has the job here
			return
		}
	}
	var span int64
	if flags&wire.InHands == 0 {
		if n.nobodyHas(j) || rests(j) { // ignore: the job awaits its first queueing here (working_delayed), or rests
			return
		}
		span = max(delayFrom(j, n.now), n.restLeft(j)) // which is over where the job was queued, see endDelay (working_enqueued_early)
	}
	n.prolong(j)
	if u := j.Unique(); u != nil && j.State == store.StateQueued {
		n.endsWaiting(j, u) // a client had it before it came back (unique_late_working)
	}
	if flags&wire.InHands != 0 { // otherwise that node may still wait for the key
		n.gotKey(j)
		n.endDelay(j)
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

// onQueued leaves a job to another node, which has it in its queue or with a client, unless this node is the one
// to keep it.
//
// The word says where the sender has the job: in its queue (neither flag); with a client (InHands), which objects to a
// WillQueue; in its queue, which answers a Queued (Kept); with a client, which answers that (both). It also counts
// how often the job has come back, as far as the sender knows. ahead is by how much that is more than this node knows: a
// word that is behind crossed one of this node, to which the sender gives way.
func (n *Node) onQueued(p *Peer, j *store.Job, m *wire.Message) {
	if n.isAway(p, j) { // (added_apart_told)
		return
	}
	j = n.onQueuedElsewhere(n.meet(p, j))
	flags := m.Flags
	s, word, ahead := n.standing(j), flags&keptInHands, aheadBy(m, j)
	withClient := s == inHands || s == returning
	switch {
	case word == wire.InHands && s == inHands:
		// Ignore a late objection: the job came back here, and the sender has heard, or will hear, of that (in_hands_late).
		return
	case word == wire.Kept && withClient,
		flags&^wire.CountFlags(15) == 0 && ahead <= 0 && s == inHands,
		n.clientKeeps(j, m):
		// Keep and say so: a client here got the job before this node heard of the sender's queue, and no client must
		// get it there, too (given_back_where_it_waits, enqueue_beside_queued, returns_behind).
		n.send(p, keptWithClient(j))
		return
	case word == keptInHands && ahead < 0 && withClient:
		// Ignore: the job was given back here since, and the client has got it after that (given_back_where_it_waits).
		return
	case word == keptInHands && ahead >= 0: // learn the NACKs that were missed here (given_back_unheard)
		n.learnNacks(j, m)
	}
	n.endDelay(j)
	n.learnReturns(j, m) // the job may stay here as it is, and the counts say which node is behind
	n.gotKey(j)
	if s == queued {
		if n.keeps(p, j, word, ahead) {
			n.send(p, n.keeping(j, word))
			return
		}
		n.dequeue(j)
	}
	if flags&wire.CountNack != 0 {
		n.endOutlast(j) // (nack_elsewhere_beyond_ttl)
	}
	n.delegateRun(j) // a client that has the job here may not know
	switch {
	case flags&wire.CountNack != 0 && ahead >= 0:
		if ahead > 0 { // otherwise the job was in two queues, and a client got it here after that NACK
			n.freeSlot(j)
		}
		n.idling.held.Remove(j.ID) // a client that said WORKING here may have given the job back (working_crosses_nack)
	case withClient && flags&wire.CountNack == 0:
		n.notIdle(j, j.QTime) // and hasn't given the job back
	}
	counted := false // the others are to hear what this node has counted for the delivery that ends
	if flags&(wire.CountMore|wire.CountNack|keptInHands) == wire.CountMore && j.Place == store.InWorking {
		if j.QTime <= n.now+2*store.AnnounceMS {
			j = n.lapse(j) // the sender was the first to find its time over (lapses)
		}
		counted = j.Parts > 0 && (j.Extra(store.TagTries) != nil || j.Extra(store.TagLapses) != nil)
	}
	if word&wire.InHands == 0 {
		n.endLease(j)
	}
	n.demote(j, 0)
	if counted {
		n.tellWhereabouts(j)
	}
}

// keptInHands are the flags of a Queued by a node whose client keeps a job that the receiver has in its queue.
const keptInHands = wire.Kept | wire.InHands

// keptWithClient makes such a Queued.
func keptWithClient(j *store.Job) *wire.Message {
	m := &wire.Message{Kind: wire.Queued, Flags: keptInHands, ID: j.ID}
	m.SetReturns(j.Nacks, j.Deliveries)
	return m
}

// clientKeeps says whether the client that has a job here keeps it, though the sender of a Queued has queued it because its retry time
// was over there: the sender has missed returns that this node counts, and knows of no NACK that this one hasn't heard of. The flags
// of a former release don't say so much. It isn't so for a NACK, even if the sender is behind: the client may have given back there what it
// got here.
func (n *Node) clientKeeps(j *store.Job, m *wire.Message) bool {
	return m.Flags&(keptInHands|wire.CountNack) == 0 && m.Returns.Told && aheadBy(m, j) < 0 && m.Returns.Nacks <= j.Nacks && n.standing(j) == inHands
}

// keeps says whether this node keeps a job in its queue of which another has said Queued, with word and ahead as in onQueued. The other
// gives way when it hears of what it had missed, or loses the same comparison.
func (n *Node) keeps(p *Peer, j *store.Job, word uint8, ahead int) bool {
	switch {
	case word == keptInHands && ahead >= 0: // give way: a client there has the job, and the sender has missed nothing (enqueue_beside_queued)
		return false
	case word == 0 && ahead < 0: // keep: the sender didn't know yet that the job has come back here (nack_crosses_handover)
		return true
	case word&wire.InHands != 0 && j.Flags&store.FlagAnnounced == 0: // keep: the job came back by a NACK after the WillQueue to which the sender objects (given_back_meanwhile)
		return true
	}
	return !theirs(&n.self, &p.ID, &j.ID) // give way to the greater ID (requeue)
}

// keeping makes the answer to a Queued with word by a node that keeps the job in its queue.
func (n *Node) keeping(j *store.Job, word uint8) *wire.Message {
	switch word {
	case keptInHands: // the sender believes that its client still has the job, and would say so again (given_back_where_it_waits)
		return n.queued(j, wire.CountNack)
	case wire.InHands: // a client there may have got the job since the sender queued it: then the sender says so (given_back_meanwhile)
		return n.queued(j, 0)
	}
	return &wire.Message{Kind: wire.Queued, Flags: wire.Kept, ID: j.ID}
}

// learnReturns adds the returns that another node has counted, and this one hasn't: more than one if a message was lost. Then the two
// count as many. The message says of which kind the last one was. The others are taken to be of that kind, too, but no count becomes greater
// than the sender's. (A former release doesn't say how many of each kind it counts.)
func (n *Node) learnReturns(j *store.Job, m *wire.Message) {
	ahead := aheadBy(m, j)
	if ahead <= 0 || m.Flags&(wire.CountNack|wire.CountMore) == 0 { // this node has counted the same already, or isn't told
		return
	}
	missedNacks, missedDeliveries := ahead, ahead // at most
	if m.Returns.Told {
		missedNacks, missedDeliveries = max(0, int(m.Returns.Nacks)-int(j.Nacks)), max(0, int(m.Returns.Deliveries)-int(j.Deliveries))
	}
	nacks := min(ahead, missedNacks)
	if m.Flags&wire.CountNack == 0 {
		nacks = ahead - min(ahead, missedDeliveries)
	}
	j.Nacks, j.Deliveries = saturated(j.Nacks, nacks), saturated(j.Deliveries, ahead-nacks)
	n.log(LogState, j)
}

// queued makes the message that this node has a job in its queue, or queues it now. flags is what a Queued may say besides.
func (n *Node) queued(j *store.Job, flags uint8) *wire.Message {
	m := &wire.Message{Kind: wire.Queued, Flags: flags, ID: j.ID}
	m.SetReturns(j.Nacks, j.Deliveries)
	return m
}

// tellQueued sends that message to the job's other holders, if there are any.
func (n *Node) tellQueued(j *store.Job, flags uint8) {
	if j.Holders() > 0 {
		n.tell(j, n.queued(j, flags))
	}
}

// inHands says whether a client of this node has a job, and its retry time isn't over.
func (n *Node) inHands(j *store.Job) bool {
	return j.Place == store.InWorking && j.Retry > 0 && j.QTime > n.now
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
		n.tellQueued(j, 0)
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
