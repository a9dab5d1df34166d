package engine

import (
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Acknowledgement: all nodes that may hold a copy are told that a job is done, until
// each of them knows.

// acknowledge makes a job acked here. The caller tells the others.
func (n *Node) acknowledge(j *store.Job, from *Peer) {
	if j.State == store.StateQueued {
		n.touch(j.Queue)
	}
	n.endLocks(j)
	n.endVotes(j)
	n.ended(j, cancelled(j), origin{from: from})
	n.store.Hold(j)
	n.store.Count(j, store.NoReason)
	if from != nil {
		j.AnswerNotFor(uint64(from.Node))
	}
	becomeAcked(j)
	j.ClearConfirmed()
	j.SetAttempts(0)
	n.noteEnded(j)
	n.log(LogState, j)
}

// answerForAll makes this node answer for all holders of a job (see knownToAll), for it sends them copies.
func answerForAll(j *store.Job) {
	for i := range j.Holders() {
		node, _ := j.Holder(i)
		j.AnswerFor(node)
	}
}

// knownToAll handles a node's message that all nodes know of an acknowledgement. This node forgets the job
// only when the nodes that it answers for have confirmed to this node itself. It has handed the job over
// to them, and they may have confirmed the acknowledgement to others before, when they had no copy. That
// confirmation counts no more, and only this node is sure to know.
func (n *Node) knownToAll(p *Peer, j *store.Job) {
	j.Confirm(uint64(p.Node))
	j.ConfirmAll(j.Answers())
	if j.Confirmed() < j.Holders() {
		n.collect(j)
		return
	}
	n.forgetOrKeep(j, p)
}

// setAck tells one node that a job is acknowledged.
func (n *Node) setAck(p *Peer, j *store.Job) {
	m := wire.Message{Kind: wire.SetAck, Flags: ackFlags(j), ID: j.ID}
	if p != nil && j.Parts != 0 && n.mesh.features[p.ID].Results {
		if e, ok := EndingOf(j); ok {
			m.Kind, m.Span, m.Queue = wire.SetEnd, max(0, e.until-n.now), j.Body()
			m.Job.Extras = store.AppendExtra(nil, store.TagEnd, j.Extra(store.TagEnd))
		}
		if wish := j.Extra(store.TagCancel); wish != nil && cancelled(j) {
			m.Kind = wire.SetEnd
			m.Job.Extras = store.AppendExtra(m.Job.Extras, store.TagCancel, wish)
		}
	}
	if n.dummy(j) || j.Flags&store.FlagUntold != 0 {
		m.Flags |= wire.ByClient
	}
	if !n.dummy(j) {
		m.Holders = n.allHolders(j)
	}
	n.sendAck(p, &m)
}

// sendAck sends a SetAck, and counts it, for each SetAck is answered. A node that isn't connected
// is told when it is back.
func (n *Node) sendAck(p *Peer, m *wire.Message) {
	switch {
	case p == nil:
	case p.Connected:
		p.acks.open++
	default:
		p.acks.owed = true
	}
	n.send(p, m)
}

// ackUnsent is called when the bus didn't accept a SetEnd: it isn't answered. The node is told again before long.
func (n *Node) ackUnsent(p *Peer, j *store.Job) {
	p.acks.open = max(0, p.acks.open-1)
	if at := n.now + gcFirstMS + n.below(jitterMS); j.State == store.StateAcked && !j.ConfirmedBy(uint64(p.Node)) && j.QTime > at {
		n.wakeAt(j, at)
	}
}

// correct tells a node that a job is acknowledged, when that node speaks of it as if it weren't. If the
// node had confirmed the acknowledgement, it was handed the job since, and must confirm again. The
// holders that it names, and that this node didn't know, are told too. Nobody else tells them: the
// node that handed the job to them may hear of the acknowledgement from this node.
func (n *Node) correct(p *Peer, j *store.Job, holders []wire.Node) {
	known := j.Holders()
	j.Unconfirm(uint64(p.Node))
	j, _ = n.addHolder(j, p.Node)
	j, _ = n.learn(j, holders)
	n.setAck(p, j)
	for i := known; i < j.Holders(); i++ {
		if node, _ := j.Holder(i); node != uint64(p.Node) {
			n.setAck(n.mesh.ByName(wire.Node(node)), j)
		}
	}
	if j.Holders() > known {
		n.log(LogState, j)
	}
	n.tellAgain(j)
}

// acks says whether a node has still to be told of acknowledgements, now or when it is back.
type acks struct {
	open    int  // SetAcks sent by this connection, and not answered
	owed    bool // some weren't sent, or weren't answered before the connection ended
	telling bool // a pass is under way: the node is told; or in members, jobs that name a forgotten node are looked for
	at      uint64
	bytes   int   // that the pass has sent since all SetAcks were answered,
	since   int64 // monotonic: and when it sent the first of them
}

// The cost of tickAcks in a tick's budget. A bucket of the table of jobs counts as one.
const (
	ackCost   = 1       // for each job that a node is told of, beside the message: the job may move for its new holder
	ackLeast  = 100     // the budget of a pass, at least, if the tick's is used up
	ackWindow = 4 << 20 // bytes that a pass sends without an answer: results may be large, and the bus drops what a node doesn't take
	ackWaitMS = 1_000   // how long a pass waits for an answer that may be lost
)

// tickAcks tells a node that is back of the acknowledgements that it missed, some at a
// time: it could queue one of those jobs any moment. True: there is more to do.
func (n *Node) tickAcks(budget int) bool {
	if n.mesh.acks.telling {
		n.someAcked(&n.mesh.acks, budget, func(j *store.Job) (cost int) {
			if j.Queue.DB == 0 && n.namesGone(j) {
				n.wakeAt(j, n.now)
			}
			return 0
		})
		return true
	}
	for _, p := range n.mesh.All() {
		if !p.acks.telling {
			continue
		}
		if wait := n.ackPause(p); wait > 0 {
			n.wake = min(n.wake, n.now+wait)
			continue
		}
		n.someAcked(&p.acks, budget, func(j *store.Job) (cost int) {
			if j.ConfirmedBy(uint64(p.Node)) || !j.HeldBy(uint64(p.Node)) && !n.mayHaveHeir(j) {
				return 0
			}
			effects, bytes := len(n.effects), len(n.outbox)
			j, _ = n.addHolder(j, p.Node)
			n.setAck(p, j)
			n.tellAgain(j)
			p.acks.bytes += len(n.outbox) - bytes
			return ackCost + n.cost(effects)
		})
		return true
	}
	return false
}

// ackPause returns for how long a pass waits (ms) since its node takes too little, or has still to answer what it was told before.
func (n *Node) ackPause(p *Peer) int64 {
	a, now := &p.acks, n.monotonic()
	switch {
	case a.open == 0 || a.bytes == 0 || now >= a.since+ackWaitMS:
		a.bytes, a.since = 0, now
	case a.bytes >= ackWindow:
		return max(a.since+ackWaitMS-now, p.choked-now)
	}
	return max(p.choked-now, 0)
}

// someAcked goes on with a pass over the acknowledged jobs. At the end of the pass a.telling becomes false.
func (n *Node) someAcked(a *acks, budget int, do func(j *store.Job) (cost int)) {
	for budget = max(budget, ackLeast); budget > 0; budget-- {
		n.scratch.jobs = n.scratch.jobs[:0]
		a.at = n.store.ScanAllJobs(a.at, &n.scratch.jobs)
		for _, j := range n.scratch.jobs {
			if j.State == store.StateAcked {
				budget -= do(j)
			}
		}
		if a.at == 0 {
			a.telling = false
			return
		}
	}
}

// acksGone is called when a node's membership has ended. If it had acknowledgements to confirm, no job waits for it any more.
func (n *Node) acksGone(p *Peer) {
	if p.acks.owed || p.acks.telling || p.acks.open > 0 {
		n.mesh.acks = acks{telling: true}
		n.hurryTick()
	}
}

// namesGone says whether a holder of a job was forgotten.
func (n *Node) namesGone(j *store.Job) bool {
	for i := range j.Holders() {
		node, _ := j.Holder(i)
		if n.mesh.WasForgotten(wire.Node(node)) {
			return true
		}
	}
	return false
}

// acksUp is called when a connection is made, acksDown when one has ended.
func (n *Node) acksUp(p *Peer) {
	if p.acks.owed || len(n.dormant) > 0 {
		n.listAll() // the timers of jobs in other databases don't run
		p.acks = acks{telling: true}
		n.hurryTick()
	}
}

func (n *Node) acksDown(p *Peer) {
	p.acks = acks{owed: p.acks.owed || p.acks.telling || p.acks.open > 0}
}

// Nameless says whether a job is known by its acknowledgement alone: nobody knows its queue.
func (n *Node) Nameless(j *store.Job) bool { return n.dummy(j) }

// KeepsCopy says whether this node holds a job itself. It doesn't hold a job that only others are to
// hold, nor one that is known by its acknowledgement alone.
func (n *Node) KeepsCopy(j *store.Job) bool {
	ad := n.pendingAddOf(&j.ID)
	return !n.dummy(j) && (ad == nil || !ad.external)
}

// dummy says whether this node knows of a job only that it is acknowledged.
func (n *Node) dummy(j *store.Job) bool { return j.Queue == n.store.Hidden() }

// collect tries to bring an acknowledged job to its end: every node that may have
// a copy must know.
func (n *Node) collect(j *store.Job) {
	if n.unfinished(j) && !n.hearsay(j) {
		if !cancelled(j) {
			j = n.tellsDependents(j)
		}
		n.ended(j, cancelled(j), origin{clock: true})
		if n.unfinished(j) && (n.deps.budget <= 0 || staysForDependents(j)) {
			n.followAgain(j)
			return
		}
	}
	if staysForDependents(j) {
		n.remove(j)
		return
	}
	j, done := n.keptOver(j)
	if done {
		return
	}
	if n.dummy(j) || n.mayHaveHeir(j) {
		j = n.heldByAll(j)
	}
	// Nodes that were forgotten need not know. After a restart this node can't tell them from
	// those that it has still to meet, so it waits a while. A node that knows no other, for
	// example one that was promoted, waits until it meets one.
	for i := j.Holders() - 1; i >= 0; i-- {
		node, _ := j.Holder(i)
		if n.mesh.WasForgotten(wire.Node(node)) || n.mesh.ByName(wire.Node(node)) == nil && j.Attempts() >= gcStrangers && !n.mesh.Alone() {
			n.forgetsEarly(j) // that node may come back
			j.DropHolder(node)
		}
	}
	if j.Confirmed() == j.Holders() {
		n.finish(j)
		return
	}
	for i := range j.Holders() {
		node, yes := j.Holder(i)
		if p := n.mesh.ByName(wire.Node(node)); !yes && (p == nil || !j.Kept() || n.monotonic() >= p.choked) {
			n.setAck(p, j)
		}
	}
	wait := int64(gcLastMS)
	if !n.mesh.Alone() {
		wait = min(int64(gcFirstMS)<<min(j.Attempts(), gcDoublings), gcLastMS)
		j.SetAttempts(j.Attempts() + 1)
	}
	at := n.now + wait + n.jitter()
	if e, ok := EndingOf(j); ok {
		at = min(at, e.until)
	}
	n.wakeAt(j, at)
}

// hearsay says whether a client has cancelled an acknowledged job here, and this node knows nothing
// else of it. Its holders know whether it was released, and what becomes of the jobs that it
// blocks.
func (n *Node) hearsay(j *store.Job) bool { return n.dummy(j) && cancelled(j) }

// finish forgets an acknowledged job when all nodes know that it is done.
func (n *Node) finish(j *store.Job) {
	if !n.dummy(j) {
		n.tellKnown(j)
	}
	n.forgetOrKeep(j, nil)
}

// forgetJob removes a job here, and remembers for a while that it is gone.
func (n *Node) forgetJob(j *store.Job, from *Peer) {
	if ad := n.pendingAddOf(&j.ID); ad != nil {
		n.endPendingAdd(ad)
		n.deny(ad, ErrReplRemoved)
	}
	if len(n.mesh.All()) > 0 {
		n.tombstones.add(j.ID, n.now, cancelled(j))
	}
	n.endVotes(j)
	if j.State != store.StateAcked {
		n.noteEnded(j)
		n.store.Count(j, store.NoReason)
		j.ClearConfirmed() // nobody has confirmed its end
		becomeAcked(j)     // it is as good as acknowledged
	}
	if n.gone(j, origin{from: from}) {
		n.remove(j)
	}
}

// endUnknown remembers the end of a job that isn't known here, acknowledged or cancelled,
// until all nodes have heard of it. r is its result, or the reason; nil: it has none.
func (n *Node) endUnknown(id *store.ID, cancelled bool, r *Result) {
	if j := n.lookEnding(id); j != nil {
		n.endAway(j, cancelled)
		return
	}
	if ad := n.pendingAddOf(id); ad != nil {
		n.workedUnseen(ad)
	}
	if len(n.mesh.All()) == 0 {
		return
	}
	var extras []byte
	if cancelled {
		extras = store.AppendExtra(nil, store.TagFamily, (&store.Family{Flags: store.FamilyCancelled}).Value())
	}
	j := n.store.NewJob(0, len(n.mesh.All()), extras)
	j.ID, j.CTime, j.Retry, j.Repl = *id, uint64(max(n.now, 1))*1_000_000, 1, 1
	j.ETime = n.now + max(int64(id.TTLMinutes()), 1)*60_000
	becomeDummy(j)
	n.store.RegisterNew(n.store.Hidden(), j)
	if keep := n.keepTime(nil, r); keep > 0 {
		o := OutcomeDone
		if cancelled {
			o = OutcomeCancelled
		}
		j = n.keep(j, n.endNow(o, keep, r), r.data())
	}
	n.noteEnded(j)
	n.collect(j)
}

// endAway acknowledges or cancels a job in a queue that lies in another database. The job stays there
// until all nodes know, and all its dependents are followed. So the log has the end, and this node
// tells the others again when the queue is back. All nodes are told, for the job may have been handed
// on since the queue went.
func (n *Node) endAway(j *store.Job, cancelled bool) {
	switch {
	case j.State == store.StateAcked && cancelled:
		return
	case j.State == store.StateAcked:
		n.collect(j)
		return
	case cancelled:
		n.Stats.Cancelled++
		n.tellsCancelled(j, nil)
		j = n.undone(j)
	default:
		n.endsDone(j)
		j = n.tellsDependents(j)
	}
	j = n.heldByAll(j)
	n.acknowledge(j, nil)
	n.collect(j)
}

func (n *Node) onSetAck(p *Peer, j *store.Job, m *wire.Message) {
	if j.State == store.StateWaitRepl {
		// A client has worked on it already.
		if ad := n.pendingAddOf(&j.ID); ad != nil {
			n.worked(j, ad)
		}
	}
	if n.dummy(j) {
		// Both nodes know nothing but the acknowledgement: neither may believe that
		// the other has a copy.
		n.send(p, &wire.Message{Kind: wire.GotAck, ID: m.ID})
		return
	}
	if n.leavesToWorker(j, m) {
		return
	}
	fresh := j.State != store.StateAcked
	if fresh {
		if m.Flags&wire.Cancelled != 0 {
			n.noteStopped(j)
		}
		j = n.heardEnd(j, m)
		left := m.Flags&wire.ByClient != 0 && !n.endsElsewhere(j)
		if !cancelled(j) {
			j = n.tellsDependents(j)
		}
		j = n.setWish(j, store.FindExtra(m.Job.Extras, store.TagCancel)) // this node tells others what it was told
		n.acknowledge(j, p)
		if left {
			becomeUntold(j)
		}
	}
	if fresh && len(m.Holders) == 0 {
		j = n.keepForOther(j, m)
	}
	j, tells := n.learnEnd(p, j, m)
	j, _ = n.learnLogged(j, m.Holders)
	if len(m.Holders) > 0 {
		j, _ = n.addHolder(j, p.Node)
	}
	if tells {
		j.Unconfirm(uint64(p.Node))
		n.setAck(p, j)
	} else {
		j.Confirm(uint64(p.Node))
	}
	reply := n.gotEnd(p, j)
	if j.Holders() > len(m.Holders)-1 {
		reply.Holders = n.allHolders(j)
	}
	n.send(p, &reply)
	switch {
	case len(m.Holders) == 0 && n.foremost(j, p):
		// The sender knows no holder: this node tells them.
		n.collect(n.tellsNamed(j))
	case fresh:
		// Another node tells them. This one looks again, in case that node dies.
		n.wakeAt(j, n.now+gcFirstMS+n.below(jitterMS))
	default:
		n.tellAgain(j)
	}
}

// foremost says whether this node is the first of a job's holders, without but, in the order of
// their IDs: it acts where one node is enough.
func (n *Node) foremost(j *store.Job, but *Peer) bool {
	for i := range j.Holders() {
		if node, _ := j.Holder(i); node < uint64(n.self.Node()) && node != uint64(but.Node) {
			return false
		}
	}
	return true
}

func (n *Node) onGotAck(p *Peer, j *store.Job, m *wire.Message) {
	if j.State != store.StateAcked {
		return
	}
	if n.dummy(j) {
		if m.Flags&wire.Known != 0 {
			// A holder has taken over.
			n.forgetJob(j, nil)
			return
		}
		j, _ = n.addHolder(j, p.Node)
		j.Confirm(uint64(p.Node))
		for _, q := range n.mesh.All() {
			if !j.HeldBy(uint64(q.Node)) {
				return
			}
		}
		if j.Confirmed() == j.Holders() {
			n.finish(j)
		}
		return
	}
	j, news := n.learnLogged(j, m.Holders)
	if m.Flags&wire.Known != 0 {
		j, _ = n.addHolder(j, p.Node)
	}
	switch {
	case !n.confirms(j, m):
		j.Unconfirm(uint64(p.Node))
		n.tellAgain(j)
		return
	case m.Flags&wire.ToAll != 0:
		n.knownToAll(p, j)
		return
	}
	j.Confirm(uint64(p.Node))
	switch {
	case j.Confirmed() == j.Holders():
		n.finish(j)
	case news:
		n.collect(j)
	}
}
