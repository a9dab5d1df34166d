package engine

import (
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Leaving the mesh: the node takes no jobs any more, and gives away what it has. Waiting jobs go to clients of
// other nodes. A delayed job is to be queued by this node; it is left to another node that has a copy.

const (
	departSlice   = 500    // jobs looked at in one tick
	departAgainMS = 10_000 // until those that nobody took are looked at again: a holder may be back
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
	}
	for _, p := range n.mesh.order {
		n.beat(p)
	}
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
	var jobs []*store.Job
	for again := true; again && len(jobs) < departSlice; again = d.cursor != 0 {
		d.cursor = n.store.ScanJobs(d.cursor, &jobs)
	}
	for _, j := range jobs {
		n.depart(j)
	}
	if d.cursor == 0 {
		d.next = n.now + departAgainMS
	} else {
		n.hurryTick()
	}
}

// depart has another holder queue a delayed job when its time has come. Should the word of it be lost, each
// holder queues the job after its retry time, as any copy. A unique job stays: its lock may get a lease when it is queued.
func (n *Node) depart(j *store.Job) {
	if j.State != store.StateActive || j.Reason() != store.Delayed || j.Retry == 0 || held(j) || j.Unique() != nil || j.QTime <= n.now {
		return
	}
	for _, p := range n.mesh.order {
		if p.usable() && j.HeldBy(uint64(p.Node)) {
			span := j.QTime - n.now
			n.send(p, &wire.Message{Kind: wire.Enqueue, ID: j.ID, Span: span})
			n.yield(j, span)
			return
		}
	}
}
