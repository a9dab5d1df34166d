package engine

import (
	"bytes"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Times of the mesh, ms (disque-compat.md 3 and 4).
const (
	jitterMS     = 500   // requeueing times differ by up to half of this, either way
	refusedMS    = 1_000 // a node that refused a copy isn't asked again for the same job
	addReplicaMS = 50    // one more node is asked for a copy
	gcFirstMS    = 1_000 // between attempts to spread an acknowledgement, doubling
	gcLastMS     = 180_000
	graveMS      = 60_000 // how long a job that is gone is remembered, at least
	graveMax     = 1 << 17
	gcDoublings  = 10
	gcStrangers  = 8 // attempts, in about 4 minutes, before holders that aren't in the node table are given up
)

// adding is an ADDJOB that waits for its copies.
type adding struct {
	id       store.ID
	client   any
	need     int   // confirmations
	deadline int64 // unix ms; 0: none
	external bool  // this node keeps no copy
	at       int   // in Node.waiting

	refused []wire.Node // asked in vain, and not asked again
	forgive int64       // until then, unix ms
}

// graves remembers jobs that are acknowledged or deleted in the whole mesh, so
// that a copy that was under way can't bring them back. Two generations: a job
// is remembered for one to two grave times.
type graves struct {
	young, old map[store.ID]bool // whether it was cancelled
	turned     int64
}

func (g *graves) add(id store.ID, now int64, cancelled bool) {
	if now-g.turned >= graveMS || len(g.young) >= graveMax {
		g.young, g.old = g.old, g.young
		clear(g.young)
		g.turned = now
	}
	if g.young == nil {
		g.young = map[store.ID]bool{}
	}
	g.young[id] = cancelled
}

func (g *graves) has(id *store.ID) bool {
	if _, yes := g.young[*id]; yes {
		return true
	}
	_, yes := g.old[*id]
	return yes
}

func (g *graves) cancelled(id *store.ID) bool { return g.young[*id] || g.old[*id] }

// ack makes the message that tells of a job that is gone.
func (g *graves) ack(id *store.ID) *wire.Message {
	m := &wire.Message{Kind: wire.SetAck, ID: *id}
	if g.cancelled(id) {
		m.Flags = wire.Cancelled | wire.HeldBack
	}
	return m
}

// Receive applies a message from another node.
func (n *Node) Receive(from wire.NodeID, b []byte) error {
	p := n.peer(from)
	if p == nil {
		return n.knock(from, b)
	}
	p.meet = false
	m := &n.msg
	if err := m.Parse(b); err != nil {
		return err
	}
	if err := store.CheckExtras(m.Job.Extras); err != nil {
		return err
	}
	n.Stats.Received++
	n.heard(p)
	if n.passive || n.loading {
		if m.Kind == wire.ReplJob {
			n.refuse(p, m, wire.IsPassive)
		}
		return nil
	}
	switch m.Kind {
	case wire.ReplJob:
		n.onReplJob(p, m)
	case wire.YourJob:
		n.onYourJob(p, m)
	case wire.NeedJobs:
		n.onNeedJobs(p, m)
	case wire.Pause:
		// Where the queue can't be made there is nothing to pause.
		_, _ = n.SetPause(m.Queue, uint8(m.Count)&(PauseIn|PauseOut))
	case wire.Heartbeat:
		n.onHeartbeat(p, m)
	case wire.Failed:
		n.onFailed(m)
	case wire.AskWork:
		n.onAskWork(p, m)
	case wire.Work:
		return n.onWork(p, m)
	case wire.Claim, wire.Grant, wire.Deny, wire.Unlock, wire.Verify, wire.Verified, wire.LockPull, wire.LockPage, wire.ClearLocks, wire.LockLost:
		n.onLocks(p, m)
	case wire.Release:
		n.onRelease(p, m)
	case wire.Released:
		n.onReleased(p, m)
	case wire.AskFate:
		n.onAskFate(p, m)
	case wire.Fate:
		n.onFate(p, m)
	default:
		n.onJob(p, m)
	}
	return nil
}

// onJob handles what is said of one job.
func (n *Node) onJob(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	j := n.store.Lookup(&id)
	if j == nil {
		switch {
		case m.Kind == wire.SetAck:
			// A copy may still be under way to us.
			n.graves.add(id, n.now, m.Flags&wire.Cancelled != 0)
			n.heardOfStranger(p, id, m)
			n.send(p, &wire.Message{Kind: wire.GotAck, ID: m.ID})
		case (m.Kind == wire.WillQueue || m.Kind == wire.Queued) && n.graves.has(&id):
			n.send(p, n.graves.ack(&id))
		}
		return
	}
	if j.State == store.StateAcked {
		switch m.Kind {
		case wire.WillQueue, wire.Queued, wire.Working, wire.Enqueue:
			j, _ = n.addHolder(j, p.Node)
			n.setAck(p, j)
			return
		}
	}
	switch m.Kind {
	case wire.GotJob:
		n.onGotJob(p, j)
	case wire.Refused:
		n.onRefused(p, j, m)
	case wire.Holders:
		n.onHolders(p, j, m)
	case wire.Enqueue:
		n.onEnqueue(j, m.Span)
	case wire.WillQueue:
		n.onWillQueue(p, j)
	case wire.Queued:
		n.onQueued(p, j, m.Flags)
	case wire.Working:
		if j.State == store.StateQueued {
			n.dequeue(j)
		}
		j = n.overheard(j)
		n.entrustRun(j) // who works on it has it there
		n.yield(j)
	case wire.SetAck:
		n.onSetAck(p, j, m)
	case wire.GotAck:
		n.onGotAck(p, j, m)
	case wire.DelJob:
		// Only who has or had a copy may say so, or a client of its node.
		if j.State == store.StateAcked || j.HeldBy(uint64(p.Node)) || m.Flags&wire.ByClient != 0 {
			n.forgetJob(j, p)
		}
	}
}

// --- replication -------------------------------------------------------------

// candidate picks a node for one more copy, nil where there is none.
func (n *Node) candidate(j *store.Job, ad *adding) *Peer {
	list := n.scratch.peers[:0]
	for _, p := range n.mesh.order {
		if p.usable() && !j.HeldBy(uint64(p.Node)) && (ad == nil || !slices.Contains(ad.refused, p.Node)) {
			list = append(list, p)
		}
	}
	n.scratch.peers = list
	if len(list) == 0 {
		return nil
	}
	list = n.near(j, list)
	return list[n.random.Uint64()%uint64(len(list))]
}

// place sends copies to so many more nodes.
func (n *Node) place(j *store.Job, count int, flags uint8) *store.Job {
	first, ad := j.Holders(), n.addings[j.ID]
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
		n.send(n.mesh.by[wire.Node(node)], m)
		m.Flags &^= wire.QueueIt // one copy is queued, no more
	}
	return j
}

// copyOf makes the message that carries a job. The list of holders has the
// sender in it where that keeps a copy.
func (n *Node) copyOf(j *store.Job, kind wire.Kind) *wire.Message {
	m := &n.out
	list := n.allHolders(j)
	if ad := n.addings[j.ID]; ad != nil && ad.external {
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
	return m
}

// delayLeft is how much of a new job's delay is left, in ms.
func delayLeft(j *store.Job, now int64) int64 {
	if j.Delay == 0 || j.Flags&store.FlagQueuedOnce != 0 {
		return 0
	}
	return max(0, int64(j.CTime/1_000_000)+int64(j.Delay)*1000-now)
}

// startAdding begins the replication that an ADDJOB waits for.
func (n *Node) startAdding(j *store.Job, a *Add, external bool, elsewhere int) {
	j.State = store.StateWaitRepl
	ad := &adding{id: j.ID, need: elsewhere, external: external}
	if a.Timeout > 0 {
		ad.deadline = n.now + a.Timeout
	}
	n.addings[j.ID] = ad
	n.order(ad)
	j = n.place(j, elsewhere, n.externalFlags(j, ad))
	n.step(j, ad)
}

// externalFlags: an at-most-once job that this node doesn't keep is queued by
// the one that gets it at once, rather than at a word that might be lost
// (disque-compat.md 9.1, B5 and B6).
func (n *Node) externalFlags(j *store.Job, ad *adding) uint8 {
	if ad.external && j.Retry == 0 {
		return wire.QueueIt
	}
	return 0
}

func (n *Node) order(ad *adding) {
	ad.at = len(n.waiting)
	n.waiting = append(n.waiting, ad)
}

func (n *Node) endAdding(ad *adding) {
	delete(n.addings, ad.id)
	last := len(n.waiting) - 1
	n.waiting[ad.at] = n.waiting[last]
	n.waiting[ad.at].at = ad.at
	n.waiting = n.waiting[:last]
}

// vanished ends the ADDJOBs whose job is gone with its queue. A few of them are
// looked at each time.
func (n *Node) vanished() {
	for range min(len(n.waiting), 100) {
		n.turn = (n.turn + 1) % len(n.waiting)
		ad := n.waiting[n.turn]
		if n.store.Lookup(&ad.id) == nil {
			n.endAdding(ad)
			n.deny(ad, ErrReplRemoved)
			if len(n.waiting) == 0 {
				return
			}
		}
	}
}

// step arms the next look at a job that is being replicated.
func (n *Node) step(j *store.Job, ad *adding) {
	j.QTime = n.now + addReplicaMS
	if ad.deadline > 0 && ad.deadline < j.QTime {
		j.QTime = ad.deadline
	}
	n.arm(j)
}

// Adder ties a client to an ADDJOB that waits: the answer comes as a Promise or
// Deny effect.
func (n *Node) Adder(id store.ID, client any) {
	if c := n.consents.adds[id]; c != nil {
		c.client = client
		return
	}
	n.addings[id].client = client
}

// AbandonAdd ends an ADDJOB whose client has gone: nothing was promised.
func (n *Node) AbandonAdd(id *store.ID) {
	if ad := n.addings[*id]; ad != nil {
		n.cleanUp(ad)
	} else {
		n.abandonClaim(id)
	}
}

// cleanUp takes all copies of a job back that was promised to nobody.
func (n *Node) cleanUp(ad *adding) {
	j := n.store.Lookup(&ad.id)
	n.endAdding(ad)
	if j == nil {
		return
	}
	m := wire.Message{Kind: wire.DelJob}
	if ad.external {
		m.Flags = wire.ByClient // we aren't one of the holders, who are believed without
	}
	n.tell(j, &m)
	n.graves.add(j.ID, n.now, false)
	n.discard(j)
}

func (n *Node) deny(ad *adding, err error) {
	n.Stats.Refused++
	n.effects = append(n.effects, Effect{Kind: Deny, ID: ad.id, Client: ad.client, Err: err})
}

// moreCopies is the timer's look at a job that is being replicated.
func (n *Node) moreCopies(j *store.Job) {
	ad := n.addings[j.ID]
	switch {
	case ad == nil:
		n.discard(j) // nobody waits for it any more
		return
	case ad.deadline > 0 && n.now >= ad.deadline:
		n.cleanUp(ad)
		n.deny(ad, ErrReplTimeout)
		return
	}
	if n.now >= ad.forgive {
		ad.refused = ad.refused[:0]
	}
	// A second copy of an at-most-once job would be delivered as well.
	if j.Retry > 0 || j.Holders() == 0 {
		j = n.oneMore(j, ad)
	}
	n.step(j, ad)
}

// oneMore has one more node hold a copy, and tells the others: whoever it is that
// sees the job acknowledged must know of all copies.
func (n *Node) oneMore(j *store.Job, ad *adding) *store.Job {
	before := j.Holders()
	if j = n.place(j, 1, n.externalFlags(j, ad)); j.Holders() > before {
		m := n.copyOf(j, wire.Holders)
		for i := range before {
			node, _ := j.Holder(i)
			n.send(n.mesh.by[wire.Node(node)], m)
		}
	}
	return j
}

// resume sends again what a node may have missed while it wasn't connected. A
// copy of an at-most-once job isn't: the node may have had it, seen it worked on
// and crashed since, and would deliver it again. Its client hears that we don't know.
func (n *Node) resume(p *Peer) {
	for i := len(n.waiting) - 1; i >= 0; i-- { // cleanUp puts the last one in the place of another
		ad := n.waiting[i]
		j := n.store.Lookup(&ad.id)
		if j == nil || !j.HeldBy(uint64(p.Node)) {
			continue
		}
		if j.Retry == 0 {
			n.cleanUp(ad)
			n.deny(ad, ErrReplUnknown)
			continue
		}
		n.send(p, n.copyOf(j, wire.ReplJob))
	}
	n.resumeReleases(p)
	for _, list := range n.lines {
		if imp := n.imports[list.name]; imp != nil {
			imp.nextAll = 0
		}
		n.need(list)
	}
}

func (n *Node) onGotJob(p *Peer, j *store.Job) {
	ad := n.addings[j.ID]
	if j.State != store.StateWaitRepl || ad == nil || !j.Confirm(uint64(p.Node)) {
		return
	}
	if j.Confirmed() >= ad.need && n.besideAll(j) {
		n.achieved(j, ad)
	}
}

// onRefused asks another node at once.
func (n *Node) onRefused(p *Peer, j *store.Job, m *wire.Message) {
	switch m.Count {
	case wire.NoMemory:
		p.full = true
	case wire.IsLeaving:
		p.Leaving = true
	}
	if !j.DropHolder(uint64(p.Node)) {
		return
	}
	if ad := n.addings[j.ID]; ad != nil && j.State == store.StateWaitRepl {
		// It may have refused this queue alone: others can still be given to it. But
		// nodes that all refuse must not be asked in a circle.
		if len(ad.refused) == 0 {
			ad.forgive = n.now + refusedMS
		}
		ad.refused = append(ad.refused, p.Node)
		n.oneMore(j, ad)
	}
}

// achieved keeps the promise: the job is where it must be, its client hears. The
// job may be gone or elsewhere in memory after it.
func (n *Node) achieved(j *store.Job, ad *adding) {
	n.endAdding(ad)
	promise := Effect{Kind: Promise, ID: j.ID, Client: ad.client}
	if ad.external {
		if j.Retry > 0 {
			n.handOver(j)
		}
		n.entrust(j)
		n.discard(j)
		n.effects = append(n.effects, promise)
		return
	}
	j.ClearConfirmed()
	j.State = store.StateActive
	n.begin(j)
	n.effects = append(n.effects, promise)
}

// worked keeps the promise where somebody has worked on the job already: it is
// where it needs to be (9.1, B17). It isn't queued for that; what follows is its
// acknowledgement, also where this node was to keep no copy.
func (n *Node) worked(j *store.Job, ad *adding) {
	n.endAdding(ad)
	j.ClearConfirmed()
	j.State, j.QTime = store.StateActive, 0
	n.log(LogJob, j)
	n.effects = append(n.effects, Effect{Kind: Promise, ID: j.ID, Client: ad.client})
}

// tellCreator tells the node where a job was added of its acknowledgement,
// where that keeps no copy: its client may still wait for others to have one
// (9.1, B17).
func (n *Node) tellCreator(j *store.Job) {
	if bytes.Equal(j.ID[:4], n.self[:4]) {
		return
	}
	for _, p := range n.mesh.order {
		if bytes.Equal(j.ID[:4], p.ID[:4]) && !j.HeldBy(uint64(p.Node)) {
			n.setAck(p, j)
		}
	}
}

// handOver has one of the nodes that hold a job queue it.
func (n *Node) handOver(j *store.Job) {
	var sure []*Peer
	for i := range j.Holders() {
		if node, yes := j.Holder(i); yes {
			if p := n.mesh.by[wire.Node(node)]; p != nil && p.Connected {
				sure = append(sure, p)
			}
		}
	}
	// With none connected, the holders queue it after its retry time.
	if len(sure) > 0 {
		p := sure[n.random.Uint64()%uint64(len(sure))]
		n.send(p, &wire.Message{Kind: wire.Enqueue, ID: j.ID, Span: int64(j.Delay) * 1000})
	}
}

// begin queues a new job, or schedules it.
func (n *Node) begin(j *store.Job) {
	if held(j) {
		n.join(j)
		n.log(LogJob, j)
		n.touch(j.Queue)
		return
	}
	if n.putOff(j) {
		j.QTime = n.now + j.Unique().ConflictDelay()
		j.Flags |= store.FlagAnnounced
		n.arm(j)
		n.log(LogJob, j)
		n.touch(j.Queue)
		return
	}
	if j.Delay > 0 {
		j.QTime = int64(j.CTime/1_000_000) + int64(j.Delay)*1000
		j.Flags |= store.FlagAnnounced
		n.arm(j)
		n.log(LogJob, j)
		n.touch(j.Queue)
		return
	}
	// The first queueing of a new job is silent: the log has it as queued.
	n.push(j)
	n.log(LogJob, j)
	n.serve(j.Queue)
}

func (n *Node) refuse(p *Peer, m *wire.Message, reason uint32) {
	if m.Flags&wire.NoReply == 0 {
		n.send(p, &wire.Message{Kind: wire.Refused, ID: m.ID, Count: reason})
	}
}

// onReplJob takes a copy to hold.
func (n *Node) onReplJob(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	if n.graves.has(&id) {
		n.send(p, n.graves.ack(&id))
		return
	}
	j := n.store.Lookup(&id)
	if j == nil {
		j = n.accept(p, m)
		if j == nil {
			return
		}
		if m.Flags&wire.QueueIt != 0 {
			n.onEnqueue(j, m.Span)
		}
	} else {
		j, _ = n.learn(j, m.Holders)
		if j.State == store.StateAcked {
			n.setAck(p, j)
			return
		}
		if m.Flags&wire.NewBody != 0 {
			n.onNewBody(j, m.Job.Body)
		}
	}
	if m.Flags&wire.NoReply == 0 {
		n.send(p, &wire.Message{Kind: wire.GotJob, ID: m.ID})
	}
}

// accept makes a copy known here, active; nil where it is refused.
func (n *Node) accept(p *Peer, m *wire.Message) *store.Job {
	switch {
	// A job that is handed over has left its node already.
	case (n.MemoryLevel() > 0 || n.unsafe) && m.Kind == wire.ReplJob:
		n.refuse(p, m, wire.NoMemory)
		return nil
	case n.leaving && m.Kind == wire.ReplJob:
		n.refuse(p, m, wire.IsLeaving)
		return nil
	}
	q := n.store.Queue(m.Queue)
	if q == nil {
		var err error
		if q, err = n.queue(m.Queue); err != nil {
			n.refuse(p, m, wire.WrongType)
			return nil
		}
	}
	if q.Pause&PauseIn != 0 && m.Kind == wire.ReplJob {
		n.refuse(p, m, wire.IsPaused)
		return nil
	}
	w := &m.Job
	j := n.store.NewJob(len(w.Body), max(len(m.Holders), 1), w.Extras)
	copy(j.Body(), w.Body)
	n.sawCTime(w.CTime)
	j.ID, j.CTime, j.ETime = m.ID, w.CTime, n.now+min(w.Left, MaxSeconds*1000)
	j.Retry, j.Delay, j.Repl = w.Retry, w.Delay, w.Repl
	j.Nacks, j.Deliveries = w.Nacks, w.Deliveries
	j.State = store.StateActive
	// A copy's first queueing is known to the others as an additional one.
	j.Flags = store.FlagQueuedOnce
	n.store.RegisterNew(q, j)
	n.accepted(j)
	j, _ = n.learn(j, m.Holders)
	if j.Retry > 0 {
		j.QTime = n.retryAt(j) + m.Span
	}
	n.arm(j)
	n.join(j)
	n.log(LogJob, j)
	return j
}

// onEnqueue queues a copy for its first time, or schedules that.
func (n *Node) onEnqueue(j *store.Job, span int64) {
	if j.State != store.StateActive {
		return
	}
	j.Flags &^= store.FlagQueuedOnce
	if held(j) {
		return // its turn comes
	}
	if span > 0 {
		n.store.Hold(j)
		j.QTime = n.now + span
		j.Flags |= store.FlagAnnounced
		n.arm(j)
		n.log(LogState, j)
		return
	}
	n.requeue(j, false)
}

// --- queueing again ----------------------------------------------------------

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
func (n *Node) jitter() int64 { return int64(n.random.Uint64()%jitterMS) - jitterMS/2 }

// postpone starts a job's retry time anew.
func (n *Node) postpone(j *store.Job) {
	if j.Retry == 0 || j.State == store.StateWaitRepl || j.State == store.StateAcked || held(j) {
		return
	}
	n.setQTime(j, n.retryAt(j))
	j.Flags &^= store.FlagAnnounced
	n.arm(j)
	n.log(LogState, j)
}

// setQTime sets when a job is queued again; what is worked on keeps its order.
func (n *Node) setQTime(j *store.Job, at int64) {
	if j.Place == store.InWorking {
		n.store.Work(j, at)
	} else {
		j.QTime = at
	}
}

// announce tells the other holders that the job is about to be queued here.
func (n *Node) announce(j *store.Job) {
	j.Flags |= store.FlagAnnounced
	n.arm(j)
	n.tell(j, &wire.Message{Kind: wire.WillQueue})
}

func (n *Node) onWillQueue(p *Peer, j *store.Job) {
	j = n.overheard(n.meet(p, j))
	switch {
	case j.State == store.StateQueued:
		n.tell(j, &wire.Message{Kind: wire.Queued})
	case j.State == store.StateActive && j.Flags&store.FlagDelivered != 0 && (j.QTime > n.now+store.AnnounceMS || j.QTime > n.now && runs(j)):
		// A client has it: our retry time is the one that counts.
		n.send(p, &wire.Message{Kind: wire.Queued, ID: j.ID})
	}
}

func (n *Node) onQueued(p *Peer, j *store.Job, flags uint8) {
	if j.State == store.StateWaitRepl {
		return
	}
	j = n.overheard(n.meet(p, j))
	if flags&wire.CountNack != 0 {
		j.Nacks = saturated(j.Nacks)
	}
	if flags&wire.CountMore != 0 {
		j.Deliveries = saturated(j.Deliveries)
	}
	if j.State == store.StateQueued {
		if !theirs(&n.self, &p.ID, &j.ID) {
			// We keep it queued, and they must know (9.1, B34).
			n.send(p, &wire.Message{Kind: wire.Queued, ID: j.ID})
			return
		}
		n.dequeue(j)
	}
	n.entrustRun(j) // its client here may not know
	n.yield(j)
}

// yield leaves a job to another node, which has it in a queue or with a client.
// What was delivered here is no reason to object any more: two nodes that both
// do would put the job off for ever.
func (n *Node) yield(j *store.Job) {
	if j.Retry > 0 {
		j.Flags &^= store.FlagDelivered
		n.dismiss(j)
		n.leaveTo(j)
		n.store.Hold(j)
	}
	n.postpone(j)
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
// doesn't know.
func (n *Node) onHolders(p *Peer, j *store.Job, m *wire.Message) {
	j, news := n.learn(j, m.Holders)
	if news {
		n.log(LogState, j)
	}
	// Both lists have all the others but one, its owner.
	if j.HeldBy(uint64(p.Node)) && j.Holders() > len(m.Holders)-1 {
		n.send(p, n.copyOf(j, wire.Holders))
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

// --- acknowledgement ---------------------------------------------------------

// acknowledge makes a job acked here; telling others is the caller's.
func (n *Node) acknowledge(j *store.Job, from *Peer) {
	if j.State == store.StateQueued {
		n.touch(j.Queue)
	}
	n.endLocks(j)
	n.ended(j, cancelled(j), source{from: from})
	n.store.Hold(j)
	j.State = store.StateAcked
	j.ClearConfirmed()
	j.SetAttempts(0)
	n.log(LogState, j)
}

// setAck tells one node that a job is acknowledged.
func (n *Node) setAck(p *Peer, j *store.Job) {
	m := wire.Message{Kind: wire.SetAck, Flags: ackFlags(j), ID: j.ID}
	if !n.dummy(j) {
		m.Holders = n.allHolders(j)
	}
	n.send(p, &m)
}

// dummy says whether nothing of a job is known but that it is acknowledged.
func (n *Node) dummy(j *store.Job) bool { return j.Queue == n.store.Hidden() }

// collect tries to bring an acknowledged job to its end: everybody who may have
// a copy must know.
func (n *Node) collect(j *store.Job) {
	if n.unfinished(j) {
		n.ended(j, cancelled(j), source{clock: true})
		if n.unfinished(j) {
			j.QTime = n.now + 1
			n.arm(j)
			return
		}
	}
	if n.dummy(j) {
		for _, p := range n.mesh.order {
			j, _ = n.addHolder(j, p.Node)
		}
	}
	// Nodes that were forgotten need not know (9.1, B22 and B23). After a restart
	// we can't tell them from those that we are still to meet, so we wait a while.
	for i := j.Holders() - 1; i >= 0; i-- {
		node, _ := j.Holder(i)
		_, yes := n.mesh.gone[wire.Node(node)]
		if yes || n.mesh.by[wire.Node(node)] == nil && j.Attempts() >= gcStrangers {
			j.DropHolder(node)
		}
	}
	if j.Confirmed() == j.Holders() {
		n.finish(j)
		return
	}
	for i := range j.Holders() {
		if node, yes := j.Holder(i); !yes {
			n.setAck(n.mesh.by[wire.Node(node)], j)
		}
	}
	wait := min(int64(gcFirstMS)<<min(j.Attempts(), gcDoublings), gcLastMS)
	j.SetAttempts(j.Attempts() + 1)
	j.QTime = n.now + wait + n.jitter()
	n.arm(j)
}

// finish forgets an acknowledged job of which everybody knows.
func (n *Node) finish(j *store.Job) {
	if !n.dummy(j) {
		n.tell(j, &wire.Message{Kind: wire.DelJob})
	}
	n.forgetJob(j, nil)
}

// forgetJob removes a job here, and remembers for a while that it is gone.
func (n *Node) forgetJob(j *store.Job, from *Peer) {
	if ad := n.addings[j.ID]; ad != nil {
		n.endAdding(ad)
		n.deny(ad, ErrReplRemoved)
	}
	if len(n.mesh.order) > 0 {
		n.graves.add(j.ID, n.now, cancelled(j))
	}
	if j.State != store.StateAcked {
		j.State = store.StateAcked // as good as
	}
	n.gone(j, source{from: from})
	n.remove(j)
}

// ackUnknown remembers an acknowledgement of a job that isn't known here, until
// all nodes have heard of it. At-most-once jobs have no other copies.
func (n *Node) ackUnknown(id *store.ID) {
	if len(n.mesh.order) == 0 || n.leaving || id.AtMostOnce() || n.graves.has(id) {
		return
	}
	j := n.store.NewJob(0, len(n.mesh.order), nil)
	j.ID, j.CTime, j.Retry, j.Repl = *id, uint64(max(n.now, 1))*1_000_000, 1, 1
	j.ETime = n.now + max(int64(id.TTLMinutes()), 1)*60_000
	j.State = store.StateAcked
	n.store.RegisterNew(n.store.Hidden(), j)
	n.collect(j)
}

func (n *Node) onSetAck(p *Peer, j *store.Job, m *wire.Message) {
	if j.State == store.StateWaitRepl {
		// Somebody has worked on it already (9.1, B17).
		if ad := n.addings[j.ID]; ad != nil {
			n.worked(j, ad)
		}
	}
	if n.dummy(j) {
		// Two who know nothing but the acknowledgement: neither may take the
		// other's word for a copy (B33).
		n.send(p, &wire.Message{Kind: wire.GotAck, ID: m.ID})
		return
	}
	fresh := j.State != store.StateAcked
	if fresh {
		j = n.heardEnd(j, m)
		if !cancelled(j) {
			n.Stats.Acked++
		}
		n.acknowledge(j, p)
	}
	j, _ = n.learn(j, m.Holders)
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
		j.QTime = n.now + gcFirstMS + int64(n.random.Uint64()%jitterMS)
		n.arm(j)
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
		for _, q := range n.mesh.order {
			if !j.HeldBy(uint64(q.Node)) {
				return
			}
		}
		if j.Confirmed() == j.Holders() {
			n.finish(j)
		}
		return
	}
	j, news := n.learn(j, m.Holders)
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
