package engine

import (
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// Times of the mesh, ms (as in Disque).
const (
	jitterMS     = 500   // requeueing times differ by up to half of this, either way
	refusedMS    = 1_000 // for so long a node that refused a copy isn't asked again for the same job
	addReplicaMS = 50    // after so long without enough copies one more node is asked for one
	gcFirstMS    = 1_000 // between attempts to spread an acknowledgement, doubling
	gcLastMS     = 180_000
	tombstoneMS  = 60_000 // how long a job that is gone is remembered, at least, unless more than tombstoneMax end in that time
)

const (
	tombstoneMax = 1 << 17 // jobs of a generation of tombstones
	gcDoublings  = 10
	gcStrangers  = 5 // attempts, in about half a minute, before holders that aren't in the node table are given up
)

// pendingAdd is an ADDJOB that waits for its copies.
type pendingAdd struct {
	id        store.ID
	client    any   // a *Batch, if the job is one of an ADDJOBS
	place     int32 // among the Answers of the Batch
	denied    bool  // the job must not be promised any more, see [Node.Deny]
	external  bool  // this node keeps no copy
	deps      bool  // the copies have store.FamilyAdding
	elsewhere bool  // another node has it in a queue, or with a client
	need      int   // confirmations by other nodes
	deadline  int64 // unix ms; 0: none
	at        int   // index in Node.waiting
	number    uint64

	refused []wire.Node // asked in vain, and not asked again until forgive
	forgive int64       // unix ms
	unsent  []wire.Node // holders whose copy the bus didn't accept, or whose connection was lost before
	began   int64       // unix ms
	least   int         // confirmations that are enough after silentMS, if the ADDJOB didn't say how many
}

// tombstones remembers jobs that are acknowledged or deleted in the whole mesh, so
// that a copy that was under way can't bring them back. There are two generations, so a
// job is remembered for one to two times tombstoneMS, or until tombstoneMax others have ended.
type tombstones struct {
	table.Generations[store.ID, bool]        // whether it was cancelled
	cancels                           [2]int // cancelled jobs of the young generation, and of the old one
}

func (g *tombstones) add(id store.ID, now int64, cancelled bool) {
	if g.TurnDue(now, tombstoneMS, tombstoneMax) {
		g.cancels = [2]int{0, g.cancels[0]}
	}
	if g.cancels != [2]int{} { // mostly no job was cancelled, and a job that was stays so
		cancelled = cancelled || g.cancelled(&id)
	}
	if cancelled {
		g.cancels[0]++
	}
	g.Put(id, cancelled)
}

func (g *tombstones) has(id *store.ID) bool {
	_, yes := g.Get(*id)
	return yes
}

func (g *tombstones) cancelled(id *store.ID) bool {
	was, _ := g.Get(*id)
	return was
}

// ack makes the message that a job is gone.
func (g *tombstones) ack(id *store.ID) *wire.Message {
	m := &wire.Message{Kind: wire.SetAck, ID: *id}
	if g.cancelled(id) {
		m.Flags = wire.Cancelled | wire.HeldBack
	}
	return m
}

// Receive applies a message from another node.
func (n *Node) Receive(from wire.NodeID, b []byte) error {
	p := n.mesh.ByID(from)
	if p == nil {
		return n.mesh.Admit(from, &n.msg, b)
	}
	m := &n.msg
	if err := m.Parse(b); err != nil {
		return err
	}
	if err := store.CheckExtras(m.Job.Extras); err != nil {
		return err
	}
	n.Stats.Received++
	n.mesh.Said(p)
	if n.passive || n.loading {
		switch m.Kind {
		case wire.ReplJob, wire.YourJob:
			n.refuse(p, m, wire.IsPassive)
		case wire.ReplJobs:
			n.refuseAll(p, m, wire.IsPassive)
		case wire.Offer:
			n.onOffer(p, m)
		}
		return nil
	}
	if n.hasViews && m.Kind.OfJob() {
		n.forgetView(m)
	}
	switch m.Kind {
	case wire.ReplJob:
		n.onReplJob(p, m)
	case wire.ReplJobs:
		n.onReplJobs(p, m)
	case wire.GotJobs:
		n.onGotJobs(p, m)
	case wire.YourJob:
		n.onYourJob(p, m)
	case wire.Offer:
		n.onOffer(p, m)
	case wire.Taken:
		n.onTaken(p, m)
	case wire.Declined:
		n.onDeclined(p, m)
	case wire.Settled:
		n.onSettled(m)
	case wire.NeedJobs:
		n.onNeedJobs(p, m)
	case wire.Pause:
		n.pauseTold(m.Queue, uint8(m.Count)&(PauseIn|PauseOut))
	case wire.Heartbeat:
		was := p.Minority
		n.mesh.OnHeartbeat(p, m)
		n.heardBounds(p, m.Bounds)
		if was && !p.Minority { // it can be given the jobs that were passed over
			p.past = passing{}
			n.serveDemandsSoon()
		}
	case wire.Failed:
		n.mesh.OnFailed(m)
	case wire.AskWork:
		n.onAskWork(p, m)
	case wire.AskJobs:
		n.onAskJobs(p, m)
	case wire.AskDelayed:
		return n.onAskDelayed(p, m)
	case wire.AskFlush:
		n.onAskFlush(p, m)
	case wire.FlushReady:
		n.onFlushReady(p, m)
	case wire.AskMove:
		return n.onAskMove(p, m)
	case wire.Do:
		n.onDo(p, m)
	case wire.NewCopy:
		n.onNewCopy(p, m)
	case wire.Work, wire.Counts, wire.Queues, wire.Flushed, wire.Jobs, wire.MovedJobs, wire.Did, wire.DelayedJobs:
		return n.onAnswer(p, m)
	case wire.AskCopies:
		return n.onAskCopies(p, m)
	case wire.Copies:
		return n.onCopies(p, m)
	case wire.Watch:
		return n.onWatch(p, m)
	case wire.Ended:
		return n.onEnded(p, m)
	case wire.Entries:
		return n.onEntries(p, m)
	case wire.EntrySums:
		return n.onEntrySums(p, m)
	case wire.AskCounts:
		return n.onAskCounts(p, m)
	case wire.AskQueues:
		n.onAskQueues(p, m)
	case wire.Marks:
		return n.onMarks(p, m)
	case wire.AskGiven:
		return n.onAskGiven(p, m)
	case wire.Given:
		n.onGiven(p, m)
	case wire.Flushes:
		return n.onFlushes(p, m)
	case wire.Publish:
		return n.onPublish(m)
	case wire.AskName:
		n.onAskName(p, m)
	case wire.Named:
		n.onNamed(p, m)
	case wire.Claim:
		if !n.slotRefused(p, m) {
			n.locks.Receive(p.Base(), m)
		}
	case wire.Deny:
		n.slotDenied(p, m)
		n.locks.Receive(p.Base(), m)
	case wire.Grant, wire.Unlock, wire.Verify, wire.Verified, wire.LockPull, wire.LockPage, wire.ClearLocks, wire.LockLost:
		n.locks.Receive(p.Base(), m)
	case wire.Release:
		n.onRelease(p, m)
	case wire.Released:
		n.onReleased(p, m)
	case wire.AskOutcome:
		n.onAskOutcome(p, m)
	case wire.Outcome:
		n.onOutcome(p, m)
	case wire.AskIdle:
		n.onAskIdle(p, m)
	case wire.Idle:
		n.onIdle(p, m)
	default:
		n.onJob(p, m)
	}
	return nil
}

// onJob handles a message about one job.
func (n *Node) onJob(p *Peer, m *wire.Message) {
	switch m.Kind { // with the outcome in Job.Extras they are the same
	case wire.SetEnd:
		m.Kind = wire.SetAck
	case wire.GotEnd:
		m.Kind = wire.GotAck
	}
	id := store.ID(m.ID)
	j := n.lookEnded(&id)
	if j == nil && (m.Kind == wire.SetAck || m.Kind == wire.DelJob) {
		j = n.lookEnding(&id)
	}
	if m.Kind == wire.GotAck {
		if p.acks.open = max(0, p.acks.open-1); p.acks.open == 0 && p.acks.telling {
			n.hurryTick()
		}
	}
	if j == nil {
		switch {
		case m.Kind == wire.SetAck:
			// A copy may still be under way to this node.
			if ad := n.pendingAddOf(&id); ad != nil {
				n.workedUnseen(ad)
			}
			n.tombstones.add(id, n.now, m.Flags&wire.Cancelled != 0)
			n.heardOfStranger(p, id, m)
			n.send(p, &wire.Message{Kind: wire.GotAck, ID: m.ID})
		case m.Kind == wire.WillQueue && n.inHandsDormant(&id):
			n.send(p, &wire.Message{Kind: wire.Queued, Flags: wire.InHands, ID: m.ID})
		case (m.Kind == wire.WillQueue || m.Kind == wire.Queued) && (n.tombstones.has(&id) || n.store.Done(&id)):
			// The job was acknowledged here, and is gone: all nodes knew, or its queue was deleted before.
			n.sendAck(p, n.tombstones.ack(&id))
		case m.Kind == wire.Enqueue && m.Flags&wire.Leaves != 0:
			n.onDepartingUnknown(p, &id)
		default:
			n.heardAway(p, &id, m)
		}
		return
	}
	if j.State == store.StateAcked {
		switch m.Kind {
		case wire.WillQueue, wire.Queued, wire.Working, wire.PutOff, wire.Enqueue, wire.Holders:
			n.correct(p, j, m.Holders)
			return
		}
	}
	n.answerWish(p, j, m.Kind)
	switch m.Kind {
	case wire.GotJob:
		n.onGotJob(p, j)
	case wire.Refused:
		n.onRefused(p, j, m)
	case wire.Holders:
		n.onHolders(p, j, m)
	case wire.Enqueue:
		if m.Flags&wire.Leaves != 0 {
			n.onDeparting(p, j, m.Span)
		} else {
			n.onEnqueue(j, m.Span, m.Flags)
		}
	case wire.WillQueue:
		if j.State != store.StateQueued && j.Parts != 0 && moves(j) > 0 { // otherwise it is told together with Queued
			n.sendWhere(p, j)
		} else {
			n.doubtsBody(p, j)
		}
		n.onWillQueue(p, j, m)
	case wire.MovedTo:
		n.onMovedTo(p, j, m)
	case wire.Whereabouts:
		n.onWhereabouts(p, j, m)
	case wire.Queued:
		n.doubtsBody(p, j)
		n.onQueued(p, j, m)
	case wire.Working:
		n.onWorking(p, j, m)
	case wire.PutOff:
		n.doubtsBody(p, j)
		n.onPutOff(p, j, m)
	case wire.Cancel:
		n.onCancel(p, j, m)
	case wire.SetAck:
		n.onSetAck(p, j, m)
	case wire.GotAck:
		n.onGotAck(p, j, m)
	case wire.DelJob:
		n.onDelJob(p, j, m.Flags)
	}
}

// heardAway notes a message about a job whose queue lies in another database, so that it counts when
// the queue is back. If the job is queued here, and another node queues it too or a client there works
// on it, the job becomes a returning one: when the queue is back, this node asks the others before it
// queues the job again, as after a restart. Otherwise both nodes would give it to clients.
func (n *Node) heardAway(p *Peer, id *store.ID, m *wire.Message) {
	j := n.lookDormant(id)
	if j == nil {
		return
	}
	switch m.Kind {
	case wire.GotJob:
		if j.State == store.StateWaitRepl {
			j.Confirm(uint64(p.Node)) // the next look at its ADDJOB finds it
		}
	case wire.Refused:
		if j.State == store.StateWaitRepl {
			j.DropHolder(uint64(p.Node))
		}
	case wire.WillQueue, wire.Queued, wire.Working:
		if ad := n.pendingAddOf(id); ad != nil && m.Kind != wire.WillQueue {
			ad.elsewhere = true
		}
		if j.State != store.StateQueued || j.Retry == 0 {
			return
		}
		j, _ = n.addHolder(j, p.Node)
		n.store.Hold(j)
		if j.State == store.StateQueued { // it was loaded there
			becomeUnqueued(j)
		}
		clearAnnounced(j)
		becomeReturning(j)
		n.wakeAt(j, n.now)
		n.log(LogState, j)
	}
}

// onDelJob forgets a job: all nodes know that it is done, or a client or the node that added it deletes it.
func (n *Node) onDelJob(p *Peer, j *store.Job, flags uint8) {
	acked, byClient := j.State == store.StateAcked, flags&wire.ByClient != 0
	left := !acked && byClient && flags&(wire.EndTold|wire.PassOn) == 0 && !n.endsElsewhere(j)
	switch {
	case acked && byClient:
		j.Confirm(uint64(p.Node)) // the acknowledgement stays, for the others
	case acked && j.Kept():
		j.Confirm(uint64(p.Node)) // the sender doesn't know of the outcome, so others may not
	case acked:
		n.knownToAll(p, j)
	case !byClient && !j.HeldBy(uint64(p.Node)):
		// Only a node that has or had a copy may say so, or a client (ByClient).
	case flags&wire.PassOn != 0:
		// This node may have handed the job to one that the sender doesn't know as a holder.
		n.tellBut(p, j, &wire.Message{Kind: wire.DelJob, Flags: wire.PassOn})
		n.forgetJob(n.undone(j), p) // it was promised to nobody
	case n.pendingAddOf(&j.ID) == nil && (byClient && n.hasDependents(j) || !byClient && j.Holders() > 1):
		// ByClient: as in FastAck, the end of a job with dependents mustn't be forgotten. Otherwise this node may have
		// confirmed the acknowledgement before it was handed the job. So may the nodes that it handed the job to, and
		// nobody else would tell them.
		j = n.tellsDependents(j)
		n.acknowledge(j, p)
		if left {
			becomeUntold(j)
		}
		j.Confirm(uint64(p.Node))
		n.collect(j)
	default:
		if ad := n.pendingAddOf(&j.ID); ad != nil && byClient {
			n.worked(j, ad) // a client has had it, and done it (fastack_pending)
		}
		n.forgetJob(j, p)
	}
}
