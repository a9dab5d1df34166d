package engine

import (
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Acknowledgement: telling all who may hold a copy that a job is done, until
// nobody is left who doesn't know.

// acknowledge makes a job acked here; telling others is the caller's.
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
	n.log(LogState, j)
}

// answerForAll has this node answer for all holders of a job, for it sends them copies.
func answerForAll(j *store.Job) {
	for i := range j.Holders() {
		node, _ := j.Holder(i)
		j.AnswerFor(node)
	}
}

// knownToAll is the word of a node that all know of an acknowledgement. The job is forgotten when
// those for which this node answers have said so to it: it has handed the job over to them, and
// they may have confirmed the acknowledgement before, when they had no copy. Their word for that
// counts no more, and only this node is sure to know.
func (n *Node) knownToAll(p *Peer, j *store.Job) {
	j.Confirm(uint64(p.Node))
	j.ConfirmAll(j.Answers())
	if j.Confirmed() < j.Holders() {
		n.collect(j)
		return
	}
	n.forgetJob(j, p)
}

// setAck tells one node that a job is acknowledged.
func (n *Node) setAck(p *Peer, j *store.Job) {
	m := wire.Message{Kind: wire.SetAck, Flags: ackFlags(j), ID: j.ID}
	if !n.dummy(j) {
		m.Holders = n.allHolders(j)
	}
	n.sendAck(p, &m)
}

// sendAck sends a SetAck. Each is counted, for each is answered. A node that isn't connected
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

// correct tells a node that speaks of a job as if it weren't acknowledged that it is. If it
// had confirmed the acknowledgement, it was handed the job since, and must confirm again. The
// holders that it names are told too, those that this node didn't know: nobody else tells
// them, for who hands a job over may hear of the acknowledgement from this node.
func (n *Node) correct(p *Peer, j *store.Job, holders []wire.Node) {
	known := j.Holders()
	j.Unconfirm(uint64(p.Node))
	j, _ = n.addHolder(j, p.Node)
	j, _ = n.learn(j, holders)
	n.setAck(p, j)
	for i := known; i < j.Holders(); i++ {
		if node, _ := j.Holder(i); node != uint64(p.Node) {
			n.setAck(n.mesh.Of(wire.Node(node)), j)
		}
	}
	if j.Holders() > known {
		n.log(LogState, j)
	}
}

// acks is what a node has to be told of acknowledgements when it is back.
type acks struct {
	open    int  // told by this connection, and not answered
	owed    bool // some weren't told, or not answered before the connection ended
	telling bool // it is being told, or where it was forgotten, the jobs that name it are looked for
	at      uint64
}

// tickAcks takes so much of a tick's budget, in which a bucket of the table of jobs counts as one.
const (
	ackCost  = 2   // for each job that is told, which may move for its new holder
	ackLeast = 100 // at least, where the rest is used up
)

// tickAcks tells a node that is back of the acknowledgements that it missed, some at a
// time: it could queue one of those jobs any moment. True where there is more to do.
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
		n.someAcked(&p.acks, budget, func(j *store.Job) (cost int) {
			if j.ConfirmedBy(uint64(p.Node)) || !j.HeldBy(uint64(p.Node)) && !n.mayHaveHeir(j) {
				return 0
			}
			j, _ = n.addHolder(j, p.Node)
			n.setAck(p, j)
			return ackCost
		})
		return true
	}
	return false
}

// someAcked goes on with a pass over the acknowledged jobs, which ends a.telling.
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

// acksGone follows the end of a node that has acknowledgements to confirm: nobody waits for it.
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

// acksUp follows a connection, acksDown its end.
func (n *Node) acksUp(p *Peer) {
	if p.acks.owed || len(n.dormant) > 0 {
		n.listAll() // the timers of those in other databases rest
		p.acks = acks{telling: true}
		n.hurryTick()
	}
}

func (n *Node) acksDown(p *Peer) {
	p.acks = acks{owed: p.acks.owed || p.acks.telling || p.acks.open > 0}
}

// Nameless says whether a job is known by its acknowledgement alone: nobody knows its queue.
func (n *Node) Nameless(j *store.Job) bool { return n.dummy(j) }

// KeepsCopy says whether this node holds a job itself: not one that only others are to hold,
// nor one that is known by its acknowledgement alone.
func (n *Node) KeepsCopy(j *store.Job) bool {
	ad := n.pendingAddOf(&j.ID)
	return !n.dummy(j) && (ad == nil || !ad.external)
}

// dummy says whether nothing of a job is known but that it is acknowledged.
func (n *Node) dummy(j *store.Job) bool { return j.Queue == n.store.Hidden() }

// collect tries to bring an acknowledged job to its end: everybody who may have
// a copy must know.
func (n *Node) collect(j *store.Job) {
	if n.unfinished(j) && !n.hearsay(j) {
		if !cancelled(j) {
			j = n.tellsDependents(j)
		}
		n.ended(j, cancelled(j), origin{clock: true})
		if n.unfinished(j) && (n.deps.budget <= 0 || leaving(j)) {
			n.followAgain(j)
			return
		}
	}
	if leaving(j) {
		n.remove(j)
		return
	}
	if n.dummy(j) || n.mayHaveHeir(j) {
		j = n.heldByAll(j)
	}
	// Nodes that were forgotten need not know. After a restart
	// we can't tell them from those that we are still to meet, so we wait a while; a node that
	// knows nobody, as one that was promoted, waits until it meets somebody.
	for i := j.Holders() - 1; i >= 0; i-- {
		node, _ := j.Holder(i)
		if n.mesh.WasForgotten(wire.Node(node)) || n.mesh.Of(wire.Node(node)) == nil && j.Attempts() >= gcStrangers && !n.mesh.Alone() {
			j.DropHolder(node)
		}
	}
	if j.Confirmed() == j.Holders() {
		n.finish(j)
		return
	}
	for i := range j.Holders() {
		if node, yes := j.Holder(i); !yes {
			n.setAck(n.mesh.Of(wire.Node(node)), j)
		}
	}
	wait := int64(gcLastMS)
	if !n.mesh.Alone() {
		wait = min(int64(gcFirstMS)<<min(j.Attempts(), gcDoublings), gcLastMS)
		j.SetAttempts(j.Attempts() + 1)
	}
	n.wakeAt(j, n.now+wait+n.jitter())
}

// hearsay says of an acknowledged job that a client has cancelled it here, where nothing more
// is known of it: whether it was released, and what becomes of those that it blocks, those
// know that hold it.
func (n *Node) hearsay(j *store.Job) bool { return n.dummy(j) && cancelled(j) }

// finish forgets an acknowledged job of which everybody knows.
func (n *Node) finish(j *store.Job) {
	if !n.dummy(j) {
		n.tell(j, &wire.Message{Kind: wire.DelJob})
	}
	n.forgetJob(j, nil)
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
		n.store.Count(j, store.NoReason)
		becomeAcked(j) // as good as
	}
	if n.gone(j, origin{from: from}) {
		n.remove(j)
	}
}

// endUnknown remembers the end of a job that isn't known here, acknowledged or cancelled,
// until all nodes have heard of it.
func (n *Node) endUnknown(id *store.ID, cancelled bool) {
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
	n.collect(j)
}

// endAway acknowledges or cancels a job in a queue that lies in another database. It stays there until
// all nodes know, and all that wait for it are followed: so the log has the end, and this node tells
// it again when the queue is back. All nodes are told, for the job may have been handed on since
// the queue went.
func (n *Node) endAway(j *store.Job, cancelled bool) {
	switch {
	case j.State == store.StateAcked && cancelled:
		return
	case j.State == store.StateAcked:
		n.collect(j)
		return
	case cancelled:
		j = n.undone(j)
	default:
		j = n.tellsDependents(j)
	}
	j = n.heldByAll(j)
	n.acknowledge(j, nil)
	n.collect(j)
}

func (n *Node) onSetAck(p *Peer, j *store.Job, m *wire.Message) {
	if j.State == store.StateWaitRepl {
		// Somebody has worked on it already.
		if ad := n.pendingAdds[j.ID]; ad != nil {
			n.worked(j, ad)
		}
	}
	if n.dummy(j) {
		// Two who know nothing but the acknowledgement: neither may take the
		// other's word for a copy.
		n.send(p, &wire.Message{Kind: wire.GotAck, ID: m.ID})
		return
	}
	fresh := j.State != store.StateAcked
	if fresh {
		j = n.heardEnd(j, m)
		if !cancelled(j) {
			n.Stats.Acked++
			j = n.tellsDependents(j)
		}
		n.acknowledge(j, p)
	}
	j, _ = n.learnLogged(j, m.Holders)
	if len(m.Holders) > 0 {
		j, _ = n.addHolder(j, p.Node)
	}
	j.Confirm(uint64(p.Node))
	reply := wire.Message{Kind: wire.GotAck, ID: j.ID, Flags: wire.Known}
	if j.Holders() > len(m.Holders)-1 {
		reply.Holders = n.allHolders(j)
	}
	n.send(p, &reply)
	switch {
	case len(m.Holders) == 0 && n.foremost(j, p):
		// The sender knows no holder: telling them is up to us.
		n.collect(j)
	case fresh:
		// Another does it; we look after it in case that one dies.
		n.wakeAt(j, n.now+gcFirstMS+n.below(jitterMS))
	}
}

// foremost picks one of all holders of a job but one, to act where one is enough.
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
	j.Confirm(uint64(p.Node))
	switch {
	case j.Confirmed() == j.Holders():
		n.finish(j)
	case news:
		n.collect(j)
	}
}
