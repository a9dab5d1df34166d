package engine

import (
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Leaving the mesh: the node takes no jobs any more, and gives away those that it has. Waiting jobs go to clients of
// other nodes. A delayed job that this node is to queue is left to another node that has a copy. Until that node has said
// that it has taken the job, the job stays with this node: the message can be lost, and that node may have lost its copy.
// A job with RETRY 0 stays until it is due: there is no copy, and a node that is offered the job queues it at once.

const (
	departSlice   = 500   // jobs that are left to others in one tick
	departSteps   = 1000  // buckets of the table looked at in one tick, whatever is in them
	departAgainMS = 5_000 // until the jobs that no node has taken are looked at again
)

// departure is the pass over all jobs of a node that is leaving.
type departure struct {
	cursor uint64 // of the scan; 0 begins
	next   int64  // when the next pass begins, unix ms
}

// Leaving says whether the node is leaving the mesh.
func (n *Node) Leaving() bool { return n.leaving }

// SetLeaving starts or ends leaving. Clients that wait are sent away, and other nodes are asked to queue the
// delayed jobs of which they have copies.
func (n *Node) SetLeaving(yes bool) {
	n.leaving, n.departure = yes, departure{}
	if yes {
		n.endWaits(ErrLeaving)
	} else {
		n.askAnew() // other nodes gave this one no jobs meanwhile
	}
	n.mesh.Beat()
	n.hurryTick()
}

// tickDeparture leaves some delayed jobs to other nodes.
func (n *Node) tickDeparture() {
	d := &n.departure
	if !n.leaving || n.passive || n.loading || n.store.Counted(store.Delayed) == 0 {
		return
	}
	if n.now < d.next {
		n.wake = min(n.wake, d.next)
		return
	}
	jobs := n.scratch.jobs[:0]
	for steps := departSteps; steps > 0 && len(jobs) < departSlice; steps-- {
		if d.cursor = n.store.ScanJobs(d.cursor, &jobs); d.cursor == 0 {
			break
		}
	}
	n.scratch.jobs = jobs
	for _, j := range jobs {
		n.depart(j)
	}
	if d.cursor == 0 {
		d.next = n.now + departAgainMS
	} else {
		n.hurryTick()
	}
}

// depart asks another holder to queue a delayed job when its time has come. The job stays with this node until that holder
// answers PutOff: then it is put off here. That answer can be lost as well, so this node announces the job before it queues
// it, as the holder does. A unique job that a conflict has put off stays, because this node asks for its key. A job whose
// time is near stays, too.
func (n *Node) depart(j *store.Job) {
	if j.State != store.StateActive || j.Reason() != store.Delayed || j.Retry == 0 || held(j) || j.Unique() != nil && j.Unique().Tries() > 0 || j.QTime <= n.now+2*store.AnnounceMS {
		return
	}
	if p := n.stayer(j); p != nil && n.monotonic() >= p.choked {
		clearAnnounced(j)
		n.arm(j)
		n.send(p, &wire.Message{Kind: wire.Enqueue, Flags: wire.Leaves, ID: j.ID, Span: j.QTime - n.now})
	}
}

// stayer returns the first holder of a job that can queue it in place of this node, which is leaving; nil: there is none.
func (n *Node) stayer(j *store.Job) *Peer {
	for _, p := range n.mesh.All() {
		if p.Usable() && j.HeldBy(uint64(p.Node)) {
			return p
		}
	}
	return nil
}

// onDeparting takes a delayed job that a node leaves to this one, and tells that node so. If the first answer was lost,
// another holder may have taken the job, too: so it is announced before it is queued. The time is written down with the job: this node may never have
// heard why the job is delayed, and must know it after a restart.
func (n *Node) onDeparting(p *Peer, j *store.Job, span int64) {
	if (j.Nacks > 0 || j.Deliveries > 0) && j.Place == store.InHeld && j.Reason() == store.NoReason && comesBack(j) {
		n.restAgain(j, max(span, 1))
	} else {
		n.onEnqueue(j, max(span, 1), 0)
	}
	switch {
	case n.awaitsFirst(j):
		if !savedResting(j) {
			j = n.learnDue(j, j.QTime-n.now)
		}
		clearAnnounced(j)
		n.arm(j)
		n.send(p, &wire.Message{Kind: wire.PutOff, ID: j.ID, Span: j.QTime - n.now})
	case j.State == store.StateQueued:
		n.send(p, n.queued(j, 0))
	case n.inHands(j):
		n.send(p, &wire.Message{Kind: wire.Queued, Flags: wire.InHands, ID: j.ID})
	}
}

// onDepartingUnknown answers if this node has no copy of such a job: the sender asks another holder then.
func (n *Node) onDepartingUnknown(p *Peer, id *store.ID) {
	switch {
	case n.tombstones.has(id) || n.store.Done(id):
		n.sendAck(p, n.tombstones.ack(id))
	case !n.maybeDormant(id):
		n.send(p, &wire.Message{Kind: wire.Refused, ID: *id, Count: wire.Deleted})
	}
}
