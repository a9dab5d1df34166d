package engine

import (
	"encoding/binary"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Replication: which nodes get the copies of a job, and when the job is promised.

// silentMS is how long an ADDJOB that doesn't say how many copies it wants waits for nodes that
// don't answer.
const silentMS = 1_000

// copiesSlice bounds what one tick tells of the copies of a node that was promoted.
const copiesSlice = 400

// An ADDJOB whose job is gone with its queue is found within a second: so many are looked at in so many ms.
const (
	vanishedLooks   = 1000
	vanishedEveryMS = 100
)

// copiesLostMS is how long before the end of a connection what was told may not have arrived.
const copiesLostMS = 10_000

// candidate picks a node for one more copy, nil if there is none. It picks a connected node, or if
// there is none and a client waits, one that may be back any moment.
func (n *Node) candidate(j *store.Job, ad *pendingAdd) *Peer {
	list := n.scratch.peers[:0]
	for lost := range 2 {
		for _, p := range n.mesh.All() {
			ready := lost == 0 && p.Usable() || lost == 1 && n.mesh.MayReturn(p.Base())
			if ready && !shunned(j, p) && !j.HeldBy(uint64(p.Node)) && (ad == nil || !slices.Contains(ad.refused, p.Node)) {
				list = append(list, p)
			}
		}
		if len(list) > 0 || ad == nil || ad.number == 0 {
			break
		}
	}
	n.scratch.peers = list
	if len(list) == 0 {
		return nil
	}
	list = n.elsewhere(j, n.near(j, list), ad == nil || !ad.external)
	p := list[n.random.Uint64()%uint64(len(list))]
	if ad != nil {
		if b, of := ad.client.(*Batch); of {
			return b.prefer(list, p)
		}
	}
	return p
}

// place sends copies to count more nodes, or to fewer where there aren't so many. The job may move.
func (n *Node) place(j *store.Job, count int, flags uint8) *store.Job {
	first, ad := j.Holders(), n.pendingAdds[j.ID]
	for ; count > 0; count-- {
		p := n.candidate(j, ad)
		if p == nil {
			break
		}
		j, _ = n.addHolder(j, p.Node)
	}
	m := n.copyOf(j, wire.ReplJob)
	m.Flags = flags
	for i := first; i < j.Holders(); i++ {
		node, _ := j.Holder(i)
		p := n.mesh.ByName(wire.Node(node))
		if ad != nil && !p.Connected {
			ad.unsent = append(ad.unsent, p.Node)
		}
		n.send(p, m)
		m.Flags &^= wire.QueueIt // one copy is queued, no more
	}
	return j
}

// copyOf makes the message that carries a job, in scratch memory. Its list of holders includes
// this node if that keeps a copy.
func (n *Node) copyOf(j *store.Job, kind wire.Kind) *wire.Message {
	m := &n.out
	list := n.allHolders(j)
	if ad := n.pendingAdds[j.ID]; ad != nil && ad.external {
		list = list[:len(list)-1]
	}
	*m = wire.Message{
		Kind: kind, ID: j.ID, Holders: list, Queue: j.Queue.NameBytes(),
		Span: n.spanOf(j),
		Job: wire.Job{
			CTime: j.CTime, Left: max(1, j.ETime-n.now), Retry: j.Retry, Delay: j.Delay,
			Repl: j.Repl, Nacks: j.Nacks, Deliveries: j.Deliveries, Body: j.Body(), Extras: j.Extras(),
		},
	}
	for _, own := range [...]store.Tag{store.TagSlots, store.TagAsks} {
		if m.Job.Extras != nil && j.Extra(own) != nil {
			m.Job.Extras = store.AppendExtrasBut(nil, m.Job.Extras, own)
		}
	}
	return m
}

// delayLeft is how much of a new job's delay is left, in ms.
func delayLeft(j *store.Job, now int64) int64 {
	if j.Delay == 0 || j.Flags&store.FlagQueuedOnce != 0 {
		return 0
	}
	return delayFrom(j, now)
}

// delayFrom is how much of a job's delay is left, in ms.
// The clock that told its creation time may have been ahead of this one.
func delayFrom(j *store.Job, now int64) int64 {
	return min(max(0, firstDue(j)-now), int64(j.Delay)*1000)
}

// firstDue is when a job's delay is over, unix ms: it counts from the job's creation, or its ADDJOB has said that time (AT).
func firstDue(j *store.Job) int64 {
	if j.Parts != 0 {
		if e := j.Extra(store.TagAt); len(e) == 8 {
			return int64(min(binary.LittleEndian.Uint64(e), MaxUnix))
		}
	}
	return int64(j.CTime/1_000_000) + int64(j.Delay)*1000
}

// pendingAddOf returns the pending add of a job, or nil. Mostly there are none, and the map
// isn't asked then. A job of a whole bundle gets one by the call.
func (n *Node) pendingAddOf(id *store.ID) *pendingAdd {
	if len(n.waiting)+len(n.bundles) == 0 {
		return nil
	}
	if u := n.bundleOf(id); u != nil && u.whole {
		n.unbundle(u)
	}
	return n.pendingAdds[*id]
}

// startPendingAdd begins the replication that an ADDJOB waits for.
func (n *Node) startPendingAdd(j *store.Job, a *Add, external bool, elsewhere int) {
	becomePending(j)
	n.countFamily(j)
	ad := &pendingAdd{id: j.ID, need: elsewhere, external: external, began: n.now, least: elsewhere}
	if a.batch != nil {
		ad.client, ad.place = a.batch, a.place
	}
	if f, _ := j.Family(); f.Held() {
		f.Flags |= store.FamilyAdding
		j, ad.deps = n.setFamily(j, &f), true
	}
	if a.Default && !external {
		ad.least = 0
	} else if a.Default {
		ad.least = 1
	}
	if a.Timeout > 0 {
		ad.deadline = n.now + a.Timeout
	}
	n.pendingAdds[j.ID] = ad
	n.order(ad)
	j = n.place(j, elsewhere, n.externalFlags(j, ad))
	n.step(j, ad)
}

// externalFlags returns the flags of a new job's ReplJob. If this node doesn't keep an at-most-once
// job, the node that gets it queues it at once: an Enqueue that follows later might be lost.
func (n *Node) externalFlags(j *store.Job, ad *pendingAdd) uint8 {
	if ad.external && j.Retry == 0 {
		return wire.QueueIt
	}
	return 0
}

func (n *Node) order(ad *pendingAdd) {
	n.added++
	ad.at, ad.number = len(n.waiting), n.added
	n.waiting = append(n.waiting, ad)
}

func (n *Node) endPendingAdd(ad *pendingAdd) {
	delete(n.pendingAdds, ad.id)
	n.afterAdd(ad.id)
	last := len(n.waiting) - 1
	n.waiting[ad.at] = n.waiting[last]
	n.waiting[ad.at].at = ad.at
	n.waiting = n.waiting[:last]
}

// vanished ends the ADDJOBs whose job is gone with its queue. Where it finds one it looks for more at once.
func (n *Node) vanished() {
	if len(n.waiting) == 0 {
		return
	}
	if left := n.vanishedAt - n.monotonic(); left > 0 {
		n.wake = min(n.wake, n.now+left)
		return
	}
	found := false
	for looks, budget := min(len(n.waiting), vanishedLooks), tickBudget; looks > 0 && budget > 0 && len(n.waiting) > 0; looks-- {
		n.turn = (n.turn + 1) % len(n.waiting)
		ad := n.waiting[n.turn]
		if n.store.Lookup(&ad.id) == nil {
			found = true
			from := len(n.effects)
			n.cleanUp(ad)
			n.deny(ad, ErrReplRemoved)
			budget -= 1 + n.cost(from)
		}
	}
	if found {
		n.hurryTick()
	} else {
		n.vanishedAt = n.monotonic() + vanishedEveryMS
		n.wake = min(n.wake, n.now+vanishedEveryMS)
	}
}

// step sets the time of the next look at a pending job.
func (n *Node) step(j *store.Job, ad *pendingAdd) {
	n.setTime(j, n.now+addReplicaMS)
	if ad.deadline > 0 && ad.deadline < j.QTime {
		n.setTime(j, ad.deadline)
	}
	n.arm(j)
}

// cleanUp takes back all copies of a job that was promised to nobody. If the job is gone with its queue, nobody knows any more which
// nodes were sent a copy.
func (n *Node) cleanUp(ad *pendingAdd) {
	j := n.store.Lookup(&ad.id)
	n.endPendingAdd(ad)
	n.tombstones.add(ad.id, n.now, true)
	m := wire.Message{Kind: wire.DelJob, Flags: wire.PassOn, ID: wire.JobID(ad.id)}
	if ad.external || j == nil {
		m.Flags |= wire.ByClient // this node isn't a holder; holders are believed without the flag
	}
	owed := n.owesEnd(j, ad)
	if j != nil {
		n.tell(j, &m)
		n.revoke(j)
	} else {
		n.tellAll(&m)
	}
	if owed {
		n.endUnknown(&ad.id, true, nil)
	}
}

// owesEnd is for a job whose copies are taken back; nil: it is gone. It says whether a node may have been sent a copy, and can't be told now.
// When that node is back it is told that the job was cancelled: otherwise its copy would be queued there, though the job's locks are
// free. There are at most as many such jobs as ADDJOBs that waited when a connection ended.
func (n *Node) owesEnd(j *store.Job, ad *pendingAdd) bool {
	return !n.passive && !n.loading && slices.ContainsFunc(n.mesh.All(), func(p *Peer) bool {
		return !p.Connected && (j == nil || j.HeldBy(uint64(p.Node)) && !slices.Contains(ad.unsent, p.Node))
	})
}

func (n *Node) deny(ad *pendingAdd, err error) {
	n.Stats.Refused++
	n.answer(ad.client, ad.place, ad.id, err)
}

// moreCopies looks at a job that waits for its copies, when its timer is due.
func (n *Node) moreCopies(j *store.Job) {
	ad := n.pendingAddOf(&j.ID)
	switch {
	case ad == nil:
		n.revoke(j) // nobody waits for it any more
		return
	case ad.deadline > 0 && n.now >= ad.deadline:
		n.cleanUp(ad)
		n.deny(ad, ErrReplTimeout)
		return
	}
	if n.now-ad.began >= silentMS && j.Confirmed() >= ad.least {
		ad.need = min(ad.need, j.Confirmed())
	}
	if j.Confirmed() >= ad.need && n.besideAll(j) {
		n.achieved(j, ad)
		return
	}
	if n.attainable(j) < ad.need {
		n.cleanUp(ad)
		n.deny(ad, ErrNoRepl)
		return
	}
	if n.now >= ad.forgive {
		ad.refused = ad.refused[:0]
	}
	for _, node := range ad.unsent {
		n.sendUnsent(j, ad, n.mesh.ByName(node))
	}
	// A second copy of an at-most-once job would be delivered as well.
	if j.Retry > 0 || j.Holders() == 0 {
		j = n.oneMore(j, ad)
	}
	n.step(j, ad)
}

// attainable counts the nodes that have confirmed their copy of a pending job, or may still get one.
func (n *Node) attainable(j *store.Job) (c int) {
	for _, p := range n.mesh.All() {
		if p.Usable() || n.mesh.MayReturn(p.Base()) || j.ConfirmedBy(uint64(p.Node)) {
			c++
		}
	}
	return c
}

// sendUnsent sends a copy for the first time to a node in ad.unsent, if that is connected now. It
// says whether the node was in that list.
func (n *Node) sendUnsent(j *store.Job, ad *pendingAdd, p *Peer) bool {
	if p == nil || !slices.Contains(ad.unsent, p.Node) {
		return false
	}
	if !p.Connected {
		return true
	}
	ad.unsent = slices.DeleteFunc(slices.Clone(ad.unsent), func(node wire.Node) bool { return node == p.Node })
	if j.HeldBy(uint64(p.Node)) && !j.ConfirmedBy(uint64(p.Node)) {
		m := n.copyOf(j, wire.ReplJob)
		m.Flags = n.externalFlags(j, ad)
		n.send(p, m)
	}
	return true
}

// oneMore sends a copy to one more node, and tells the other holders: each node that
// may see the job acknowledged must know all copies.
func (n *Node) oneMore(j *store.Job, ad *pendingAdd) *store.Job {
	before := j.Holders()
	if j = n.place(j, 1, n.externalFlags(j, ad)); j.Holders() > before {
		m := n.copyOf(j, wire.Holders)
		for i := range before {
			node, _ := j.Holder(i)
			n.send(n.mesh.ByName(wire.Node(node)), m)
		}
	}
	return j
}

// resume sends again what a node may have missed while it wasn't connected. It doesn't send
// the copy of an at-most-once job again: the node may have got it, delivered it and crashed
// since, and would deliver it again. The client of that ADDJOB gets ErrReplUnknown.
// If very many ADDJOBs wait, some follow in the next ticks.
func (n *Node) resume(p *Peer) {
	n.unbundleFor(p)
	p.missed, p.added = len(n.waiting), n.added
	budget := tickBudget
	n.resumeAdds(p, &budget)
	n.resumeReleases(p)
	n.reviewHandovers()
	n.acksUp(p)
	if n.past.Promoted > 0 && p.copies.done == 0 {
		p.copies.open = true
		n.hurryTick()
	}
	n.askMet(p)
	p.bodies.Begin()
	n.beginVersions(p)
	p.says = store.ID{}
	n.tellWishes()
}

// telling is a walk through all jobs for one node.
type telling struct {
	open bool
	done int64 // unix ms, when all was told; 0: it wasn't
	at   uint64
}

// tickCopies is for a node that was promoted in another's place. It goes on telling the holders of jobs that this node has a
// copy, too. They know only that the other node had one. When they forget that node, they must know that this one has to
// hear of a job's end, even if it isn't connected just then.
func (n *Node) tickCopies() {
	if n.past.Promoted == 0 {
		return
	}
	for _, p := range n.mesh.All() {
		if !p.copies.open || !p.Connected {
			continue
		}
		for budget := copiesSlice; budget > 0; budget-- {
			n.scratch.jobs = n.scratch.jobs[:0]
			p.copies.at = n.store.ScanAllJobs(p.copies.at, &n.scratch.jobs)
			for _, j := range n.scratch.jobs {
				if (j.State == store.StateActive || j.State == store.StateQueued) && maybeMadeBefore(j, n.past.Promoted) && j.HeldBy(uint64(p.Node)) {
					n.send(p, n.copyOf(j, wire.Holders))
					budget -= ackCost
				}
			}
			if p.copies.at == 0 {
				p.copies = telling{done: n.now}
				break
			}
		}
		n.hurryTick()
		return
	}
}

// resumeAdds is resume for ADDJOBs. It walks through n.waiting from p.missed down. When an ADDJOB ends,
// the last one of the list takes its place. That one was visited before, and is visited twice; or it
// came after the node did (number), and the node hasn't missed it.
func (n *Node) resumeAdds(p *Peer, budget *int) {
	for p.missed = min(p.missed, len(n.waiting)); p.missed > 0 && *budget > 0 && p.Connected; *budget-- {
		p.missed--
		ad, from := n.waiting[p.missed], len(n.effects)
		j := n.store.Lookup(&ad.id)
		switch {
		case ad.number > p.added || j == nil || !j.HeldBy(uint64(p.Node)):
		case n.sendUnsent(j, ad, p):
		case j.Retry == 0:
			n.cleanUp(ad)
			n.deny(ad, ErrReplUnknown)
		default:
			n.send(p, n.copyOf(j, wire.ReplJob))
		}
		*budget -= 2*(len(n.effects)-from) + n.cost(from)
		p.missed = min(p.missed, len(n.waiting))
	}
	if p.missed > 0 && p.Connected {
		n.hurryTick()
	}
}

// tickAdds goes on with resumeAdds for all nodes.
func (n *Node) tickAdds() {
	if len(n.uniqueMesh.ended) > 0 {
		n.hurryTick() // for followAdds
	}
	budget := tickBudget
	for _, p := range n.mesh.All() {
		n.resumeAdds(p, &budget)
	}
}

// onGotJob counts a copy that a node has confirmed. If the job is active here, the message says that
// the job is promised at the node that adds it.
func (n *Node) onGotJob(p *Peer, j *store.Job) {
	if j.State == store.StateActive {
		n.isAdded(j)
		return
	}
	ad := n.pendingAddOf(&j.ID)
	if j.State != store.StateWaitRepl || ad == nil || !j.Confirm(uint64(p.Node)) {
		return
	}
	if j.Confirmed() >= ad.need && n.besideAll(j) {
		n.achieved(j, ad)
	}
}

// onRefused drops a holder that refused its copy, and asks another node at once. A job that was
// handed over is queued here again.
func (n *Node) onRefused(p *Peer, j *store.Job, m *wire.Message) {
	switch m.Count {
	case wire.NoMemory:
		p.NoteFull()
	case wire.IsLeaving:
		p.Leaving = true
	}
	if m.Flags&wire.NotQueued == 0 && taker(j) == p.Node {
		return // the node was handed the job since: its answer to that follows, and counts
	}
	if m.Flags&wire.NotQueued != 0 && m.Flags&wire.Had != 0 && m.Count != wire.Deleted && j.HeldBy(uint64(p.Node)) {
		// The node refused without looking whether it has the copy that this node believes it has: its writes were paused when it became
		// a replica, or the copy lies in another database. It stays a holder, for a node that has that copy, or is promoted with it, must
		// hear of the job's end.
		j.Unconfirm(uint64(p.Node))
	} else if !j.DropHolder(uint64(p.Node)) {
		return
	}
	n.countHere(j)
	if m.Count == wire.Deleted && m.Flags&wire.NotQueued == 0 {
		j, _ = n.shun(j, p)
		n.log(LogState, j)
	}
	if m.Flags&wire.NotQueued != 0 {
		marked := false
		if m.Count == wire.Deleted {
			j, marked = n.shun(j, p)
		}
		q := j.Queue
		if marked {
			n.starvesStill(p, q) // it may take the next job
		} else {
			n.sated(p, string(q.NameBytes()))
		}
		n.unexport(j)
		return
	}
	if ad := n.pendingAddOf(&j.ID); ad != nil && j.State == store.StateWaitRepl {
		// The node may have refused this queue alone, and can still be given jobs of others. But
		// where all nodes refuse, they must not be asked in a circle.
		if len(ad.refused) == 0 {
			ad.forgive = n.now + refusedMS
		}
		ad.refused = append(ad.refused, p.Node)
		n.oneMore(j, ad)
	} else if n.leaving {
		n.log(LogState, j)
		n.depart(j) // that node had no copy to queue, another may have one
	}
}

// achieved promises a job to its client: the copies are where they must be. If the job can't be
// promised any more, it is deleted instead, here and elsewhere. Afterwards the job may be gone, or
// have moved in memory.
func (n *Node) achieved(j *store.Job, ad *pendingAdd) {
	if unwanted(ad.denied, ad.client) {
		n.cleanUp(ad)
		return
	}
	n.endPendingAdd(ad)
	id := j.ID
	switch {
	case !ad.deps:
	case held(j) || ad.elsewhere || n.putOff(j) || delayFrom(j, n.now) > 0:
		n.tell(j, &wire.Message{Kind: wire.GotJob})
		j = n.isAdded(j)
	case !ad.external:
		n.tellQueued(j, 0) // the holders may not have heard yet that it waits for nothing
	}
	if (ad.external || ad.elsewhere) && n.wants(EventAdd) { // else queueNew tells it
		n.tellAdded(j)
	}
	if ad.external {
		if j.Retry > 0 && !ad.elsewhere {
			n.handOver(j, ad)
		}
		n.delegate(j)
		n.discard(j)
		n.answer(ad.client, ad.place, id, nil)
		return
	}
	j.ClearConfirmed()
	becomePromised(j)
	if ad.elsewhere {
		n.setTime(j, n.retryAt(j))
		setQueuedOnce(j)
		n.arm(j)
		n.log(LogJob, j)
	} else {
		n.queueNew(j)
	}
	n.answer(ad.client, ad.place, id, nil)
}

// isAdded notes that the ADDJOB of a job with dependencies waits no more. The job may move.
func (n *Node) isAdded(j *store.Job) *store.Job {
	f, _ := j.Family()
	if f.Flags&store.FamilyAdding == 0 {
		return j
	}
	f.Flags &^= store.FamilyAdding
	return n.setFamily(j, &f)
}

// worked promises a pending job that a client has worked on already: so the job is
// where it needs to be. It doesn't queue the job. The job's acknowledgement follows,
// also if this node was to keep no copy.
func (n *Node) worked(j *store.Job, ad *pendingAdd) {
	answerForAll(j) // copies may be on their way
	j.ClearConfirmed()
	becomePromised(j)
	n.setTime(j, 0)
	if n.wants(EventAdd) {
		n.tellAdded(j)
	}
	n.log(LogJob, j)
	n.workedUnseen(ad)
}

// workedUnseen is worked for a job that isn't known here: it went to another database with its queue, unlogged.
func (n *Node) workedUnseen(ad *pendingAdd) {
	n.endPendingAdd(ad)
	n.answer(ad.client, ad.place, ad.id, nil)
}

// tellCreator tells the node where a job was added that the job is acknowledged, if
// that node keeps no copy: its client may still wait for copies at other nodes.
func (n *Node) tellCreator(j *store.Job) {
	if n.isOwn(j) {
		return
	}
	if p := n.creator(j); p != nil && !j.HeldBy(uint64(p.Node)) {
		n.setAck(p, j)
	}
}

// handOver asks one of a job's holders to queue it. If the copies were held back when they were sent
// (WasHeld), other holders may be about to unblock theirs. If this node knows that the job waits for
// nothing by now (Unblocked), the holder unblocks its own copy, and tells the others.
func (n *Node) handOver(j *store.Job, ad *pendingAdd) {
	var sure []*Peer
	for i := range j.Holders() {
		if node, yes := j.Holder(i); yes {
			if p := n.mesh.ByName(wire.Node(node)); p != nil && p.Connected {
				sure = append(sure, p)
			}
		}
	}
	// With none connected, the holders queue it after its retry time.
	if len(sure) > 0 {
		p := sure[n.random.Uint64()%uint64(len(sure))]
		m := wire.Message{Kind: wire.Enqueue, ID: j.ID, Span: n.spanOf(j)}
		if ad.deps {
			if m.Flags = wire.WasHeld; !held(j) {
				m.Flags |= wire.Unblocked
			}
		}
		n.send(p, &m)
	}
}

// queueNew queues a new job, or schedules it.
func (n *Node) queueNew(j *store.Job) {
	if n.wants(EventAdd) {
		n.tellAdded(j)
	}
	var after int64 // ms
	switch {
	case held(j):
		n.join(j)
		n.log(LogJob, j)
		n.touch(j.Queue)
		return
	case n.putOff(j):
		after = j.Unique().ConflictDelay()
	case j.Delay > 0:
		after = delayFrom(j, n.now)
	default:
		// The first queueing of a new job is silent: the log has it as queued.
		n.push(j)
		n.log(LogJob, j)
		n.serve(j.Queue)
		return
	}
	n.delayNew(j, after)
}

// delayNew queues a new job in so many ms.
func (n *Node) delayNew(j *store.Job, after int64) {
	n.delayed(j, after)
	n.log(LogJob, j)
	n.touch(j.Queue)
}

// delayed makes a job wait for its first queueing here in so many ms.
func (n *Node) delayed(j *store.Job, after int64) {
	n.setTime(j, n.now+after)
	setAnnounced(j)
	n.store.Count(j, store.Delayed)
	n.arm(j)
}

func (n *Node) refuse(p *Peer, m *wire.Message, reason uint32) {
	switch {
	case m.Kind == wire.Offer:
		n.send(p, &wire.Message{Kind: wire.Declined, ID: m.ID, Count: reason, Round: m.Round})
	case m.Flags&wire.NoReply == 0:
		reply := wire.Message{Kind: wire.Refused, ID: m.ID, Count: reason}
		if m.Kind == wire.YourJob {
			reply.Flags = wire.NotQueued | m.Flags&wire.Had
		}
		n.send(p, &reply)
	}
}

// onReplJob takes a copy, or a change to one.
func (n *Node) onReplJob(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	if n.tombstones.has(&id) {
		n.sendAck(p, n.tombstones.ack(&id))
		return
	}
	j := n.lookEnded(&id)
	if j == nil {
		// While a holder is away, a changed copy goes to all nodes, for a replica may have been promoted in
		// that holder's place. Only holders take it: a copy that the others don't know isn't acknowledged.
		if m.Flags&(wire.NewBody|wire.NewQueue) != 0 && (!slices.Contains(m.Holders, n.self.Node()) || n.wasDeleted(m)) {
			return
		}
		if m.Flags&wire.Again != 0 && n.wasDeleted(m) {
			n.refuse(p, m, wire.Deleted)
			return
		}
		j = n.accept(p, m)
		if j == nil {
			return
		}
		switch {
		case m.Flags&wire.QueueIt != 0:
			n.onEnqueue(j, m.Span, 0)
		case m.Flags&(wire.NewBody|wire.NewQueue) == 0:
			p.took(j, n.now)
		}
		n.tellApart(p, j)
	} else {
		if j.State == store.StateAcked {
			n.correct(p, j, m.Holders)
			return
		}
		if m.Flags&wire.OfName != 0 && n.takeNamed(p, j, m) {
			return
		}
		j, _ = n.learnLogged(j, m.Holders)
		j = n.learnWords(j, m.Job.Extras)
		if !n.inHands(j) { // otherwise the counts still have to tell whether the client gave the job back elsewhere
			n.learnCounts(j, m)
		}
		if m.Flags == 0 && (j.State == store.StateQueued || j.Flags&store.FlagDelivered != 0 && j.QTime > n.now) {
			n.send(p, n.queued(j, 0)) // so that the sender doesn't queue the job when it is promised
		}
		j = n.learnBody(p, j, m, m.Flags&wire.NewBody != 0)
		if m.Flags&wire.NewQueue != 0 && !n.survives(p, j, movesOf(m.Job.Extras), m.Job.Extras) {
			was := moves(j)
			n.onNewQueue(p, j, m)
			if j = n.store.Lookup(&id); j == nil {
				return // it was served, and is done
			}
			n.afterMove(p, j, m, moves(j) != was)
		}
	}
	if m.Flags&wire.NoReply == 0 {
		n.send(p, &wire.Message{Kind: wire.GotJob, ID: m.ID})
	}
}

// accept makes a copy known here as an active job. It returns nil if it refuses the copy.
func (n *Node) accept(p *Peer, m *wire.Message) *store.Job {
	q, refusal := n.roomFor(m)
	if refusal != 0 {
		n.refuse(p, m, refusal)
		return nil
	}
	return n.acceptInto(m, q)
}

// roomFor returns the queue for a copy, or the reason why this node doesn't take the copy.
func (n *Node) roomFor(m *wire.Message) (q *store.Queue, refusal uint32) {
	copies := m.Kind != wire.YourJob && m.Kind != wire.Offer // a client of this node waits for a job that is handed over, so it is refused only where it could be lost
	switch {
	case copies && n.MemoryLevel() > 0 || n.unsafe && m.Kind != wire.YourJob:
		return nil, wire.NoMemory
	case copies && n.leaving:
		return nil, wire.IsLeaving
	}
	q, err := n.queue(m.Queue)
	switch {
	case err != nil:
		return nil, wire.WrongType
	case q.Pause&PauseIn != 0 && copies && !heldBackBlocked(m):
		return nil, wire.IsPaused
	}
	return q, 0
}

// acceptInto makes a copy known that roomFor has found a queue for. It returns nil if the job is known already.
func (n *Node) acceptInto(m *wire.Message, q *store.Queue) *store.Job {
	w := &m.Job
	j := n.store.NewJob(len(w.Body), max(len(m.Holders), 1), w.Extras)
	copy(j.Body(), w.Body)
	n.sawCTime(w.CTime)
	n.deleted.newest = max(n.deleted.newest, w.CTime)
	j.ID, j.CTime, j.ETime = m.ID, w.CTime, n.now+min(w.Left, MaxSeconds*1000)
	j.Retry, j.Delay, j.Repl = w.Retry, w.Delay, w.Repl
	j.Nacks, j.Deliveries = w.Nacks, w.Deliveries
	becomeCopy(j)
	n.replaced = n.replaced || bodyVersion(j) != (version{})
	n.foreignTerm(j)
	n.oust(&j.ID)
	if !n.store.Register(q, j) {
		n.store.FreeJob(j)
		return nil
	}
	n.outliveFlush(j)
	n.accepted(j)
	j, _ = n.learn(j, m.Holders)
	if j.Retry > 0 {
		n.setTime(j, n.retryAt(j)+m.Span)
	}
	n.arm(j)
	n.join(j)
	n.comesLate(j)
	n.log(LogJob, j)
	return j
}

// heldBackBlocked says whether a copy is of a job that is blocked by another. Such a job comes into no queue before the other has
// ended or is released, and it has to be on all nodes that have the other (see [Node.beside]). So a pause doesn't keep it out.
func heldBackBlocked(m *wire.Message) bool {
	f, _ := store.FamilyOf(m.Job.Extras)
	return f.Flags&store.FamilyBlocked != 0 && f.Held()
}

// onEnqueue queues a copy for the first time, or schedules that for span ms later. A copy stays as it is if it
// was queued before, here or elsewhere, by a node that couldn't ask the one where the job was added.
func (n *Node) onEnqueue(j *store.Job, span int64, flags uint8) {
	if j.State != store.StateActive || j.Flags&store.FlagDelivered != 0 || j.Deliveries > 0 || j.Nacks > 0 {
		return
	}
	switch {
	case flags&wire.Unblocked != 0:
		j = n.onQueuedElsewhere(j)
	case flags&wire.WasHeld != 0 && !held(j):
		return // it was unblocked by the rules for all holders, here or elsewhere
	}
	n.outliveUnlessGoing(j)
	clearQueuedOnce(j)
	if held(j) {
		return // its turn comes
	}
	if span > 0 {
		n.store.Hold(j)
		n.setTime(j, n.now+span)
		n.store.Count(j, store.Delayed)
		setAnnounced(j)
		n.arm(j)
		n.log(LogState, j)
		if flags&wire.Unblocked != 0 {
			n.tellDelays(j)
		}
		return
	}
	if flags&wire.Unblocked != 0 {
		n.tellQueues(j)
	}
	n.requeue(j, false)
}
