package engine

import (
	"slices"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// The invariant: while all nodes are connected, each job with a longer retry time is in some node's queue or with a client,
// or some node means to queue it, or all find out within half a minute that it isn't so, and one of them queues it.
//
// A copy is idle where its node leaves the job to others until its retry time is over. A lost message, a node that ended at
// the wrong moment, or two nodes that leave the job to each other can make all copies of a job idle. So a node asks
// about a copy that has been idle for ten seconds, and for twenty, forty, and so on. It asks the other holders and the node that
// added the job, and then all others. Each node whose copy is idle too, or that doesn't know the job, says so. Only when all have
// said so, the job is queued, after the usual WillQueue.
// A node that can't be sure says nothing: it has lost data since, or heard of the job a moment ago.

const (
	idleMS      = 10_000    // a copy is asked about if it has been idle for so long, and so much of its retry time is left
	quietMS     = 5_000     // an answer says that this node has heard nothing of the job for so long
	idleWaitMS  = 2_000     // how long the answers are waited for
	idlePassMS  = 5_000     // between passes over all jobs
	idleTickMS  = 50        // between the slices of a pass
	idleBuckets = 1000      // buckets of the table of jobs that a slice looks at
	idleAsks    = 50        // jobs asked about in a slice, which is 1,000 in a second
	idleMost    = 10_000    // jobs, at most, for which answers are awaited
	heldMost    = 100_000   // jobs, at most, that are remembered as not idle
	flushedMS   = 3_600_000 // how long clients are thought to work on jobs that were flushed
)

// idleness is what a node knows of idle copies.
type idleness struct {
	cursor  uint64                        // of the pass over all jobs; 0: no pass is under way
	began   int64                         // monotonic: when the pass under way began, or the last one
	before  int64                         // and the pass before that
	next    int64                         // monotonic: the next slice
	open    map[store.ID]*idle            // jobs that the others were asked about
	line    []*idle                       // the same, the first asked first; and some that are open no more
	held    table.Roster[store.ID, int64] // until then (unix ms) a copy isn't idle. A restart forgets them
	heldAll int64                         // until then no copy is idle: there were too many for held
	deleted int64                         // unix ms: until then clients may work on jobs that were deleted here
	asks    uint64
}

// notIdle notes that a copy isn't idle until a time, unix ms: a client took the job out of its queue, or may work on it, though this
// node leaves the job to others.
func (n *Node) notIdle(j *store.Job, until int64) {
	if d := &n.idling; d.held.Len() < heldMost || d.held.Get(j.ID) != nil {
		d.held.Put(j.ID, until)
	} else {
		d.heldAll = max(d.heldAll, until)
	}
}

// idle is a job that other nodes were asked about: first those that are thought to have a copy, then the rest.
type idle struct {
	id     store.ID
	number uint64 // of the question
	at     int64  // monotonic
	open   []wire.Node
	said   []wire.Node
}

// idleFor is how long a copy has been idle, ms; 0: it isn't idle, or this node can't be sure.
func (n *Node) idleFor(j *store.Job) int64 {
	if j.State != store.StateActive || j.Retry == 0 || j.Place != store.InHeld || j.Reason() != store.NoReason || held(j) || n.putOff(j) ||
		j.Flags&store.FlagAnnounced != 0 || j.Returning() || j.Queue.Pause&PauseIn != 0 {
		return 0
	}
	left := j.QTime - n.now
	since := int64(j.Retry)*1000 - left
	if left < idleMS || since <= 0 || (*lockHost)(n).WholeFor() <= since || n.now < n.idling.heldAll || n.runIsLocked(j) {
		return 0
	}
	if until := n.idling.held.Get(j.ID); until != nil && n.now < *until {
		return 0
	}
	return since
}

// runIsLocked says whether this node has a vote for a unique job's run: then a client may have the job, and nobody else gets it.
func (n *Node) runIsLocked(j *store.Job) bool {
	u := j.Unique()
	if u == nil {
		return false
	}
	l := n.runLock(j, u)
	return l != nil && l.Job == j.ID
}

// tickIdle asks about some idle copies.
func (n *Node) tickIdle() {
	d, now := &n.idling, n.monotonic()
	n.endAskIdle(now)
	if n.lazy || n.leaving || !n.allThere() || !n.store.AnyParts() || n.store.Jobs() == 0 {
		return
	}
	if now < d.next {
		n.wake = min(n.wake, n.now+d.next-now)
		return
	}
	if d.cursor == 0 {
		if d.began == 0 {
			d.began = now
		}
		d.before, d.began = d.began, now
		d.held.Begin()
	}
	d.held.Pass(idleBuckets, func(id store.ID, until *int64) bool { return n.now < *until && n.store.Lookup(&id) != nil })
	jobs := n.scratch.jobs[:0]
	asks := idleAsks
	for range idleBuckets {
		jobs = jobs[:0]
		d.cursor = n.store.ScanJobs(d.cursor, &jobs)
		for _, j := range jobs {
			if since := n.idleFor(j); isTurn(since, now-d.before) && len(d.open) < idleMost && n.mayAsk(j) {
				n.askIdle(j, since)
				asks--
			}
		}
		if d.cursor == 0 || asks <= 0 {
			break
		}
	}
	n.scratch.jobs = jobs
	d.next = now + idleTickMS
	if d.cursor == 0 {
		d.next = now + idlePassMS
	}
	n.wake = min(n.wake, n.now+d.next-now)
}

// isTurn says whether a copy that has been idle for since ms is asked about: within the last span ms that time has become
// idleMS, or twice as long, or four times, …
func isTurn(since, span int64) bool {
	at := int64(idleMS)
	for at <= since-span {
		at *= 2
	}
	return at <= since
}

// allThere says whether there are other nodes, and all of them are connected, aren't absent, and answer such questions.
func (n *Node) allThere() bool {
	return len(n.mesh.All()) > 0 && !slices.ContainsFunc(n.mesh.All(), func(p *Peer) bool { return !p.Connected || !p.Idles || n.mesh.IsAbsent(p.Base()) })
}

// mayAsk says whether all nodes that may have a job are known: its holders, and the node that added it.
func (n *Node) mayAsk(j *store.Job) bool {
	for i := range j.Holders() {
		if node, _ := j.Holder(i); n.mesh.ByName(wire.Node(node)) == nil {
			return false
		}
	}
	if _, _, recurring := SlotOfJob(j); recurring || NameOf(j) != nil {
		return true // its ID doesn't say where it was added, but that node has a copy
	}
	return n.isOwn(j) || slices.ContainsFunc(n.mesh.All(), func(p *Peer) bool { return addedBy(j, &p.ID) })
}

// askIdle asks the other holders of a job, and the node that added it; if there are none, all nodes.
func (n *Node) askIdle(j *store.Job, since int64) {
	d := &n.idling
	d.asks++
	q := &idle{id: j.ID, number: d.asks, at: n.monotonic()}
	if d.open == nil {
		d.open = map[store.ID]*idle{}
	}
	d.open[j.ID] = q
	d.line = append(d.line, q)
	if !n.askOf(q, j, since, func(p *Peer) bool { return j.HeldBy(uint64(p.Node)) || addedBy(j, &p.ID) }) {
		n.askOf(q, j, since, func(*Peer) bool { return true })
	}
}

// askOf asks some nodes; false: there are none.
func (n *Node) askOf(q *idle, j *store.Job, since int64, some func(p *Peer) bool) bool {
	// A node that doesn't know the job must have lost nothing since it was added.
	m := wire.Message{Kind: wire.AskIdle, ID: j.ID, Span: max(since, n.now-int64(j.CTime/1_000_000)), Round: q.number}
	for _, p := range n.mesh.All() {
		if some(p) {
			q.open = append(q.open, p.Node)
			n.send(p, &m)
		}
	}
	return len(q.open) > 0
}

// onAskIdle answers Idle if this node's copy is idle too, or if it has no copy and has lost nothing since the job was added.
func (n *Node) onAskIdle(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	j := n.store.Lookup(&id)
	switch {
	case j == nil && (n.tombstones.has(&id) || n.store.Done(&id)):
		n.sendAck(p, n.tombstones.ack(&id))
		return
	case j == nil:
		if n.maybeDormant(&id) || n.pendingAddOf(&id) != nil || (*lockHost)(n).WholeFor() <= m.Span+lock.WholeSpareMS || n.now < n.idling.deleted {
			return
		}
	case j.State == store.StateAcked:
		n.correct(p, j, nil)
		return
	case n.idleFor(j) < quietMS || !n.mayAsk(j):
		// The asker may not have heard of all holders, and has to tell them when the job ends there.
		n.send(p, n.copyOf(n.meet(p, j), wire.Holders))
		return
	}
	if n.idling.open[id] != nil {
		// Both nodes ask. Only one of them goes on, so that not both queue the job at the same moment.
		if !theirs(&n.self, &p.ID, &id) {
			return
		}
		delete(n.idling.open, id)
	}
	n.send(p, &wire.Message{Kind: wire.Idle, ID: m.ID, Round: m.Round})
}

// onIdle takes such an answer. When all nodes have given it, the job is queued here soon, unless a node objects.
func (n *Node) onIdle(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	q := n.idling.open[id]
	if q == nil || q.number != m.Round || n.monotonic() > q.at+idleWaitMS {
		return
	}
	at := slices.Index(q.open, p.Node)
	if at < 0 {
		return
	}
	q.open, q.said = slices.Delete(q.open, at, at+1), append(q.said, p.Node)
	j := n.store.Lookup(&id)
	since := int64(0)
	if j != nil {
		since = n.idleFor(j)
	}
	switch {
	case since < idleMS || !n.mayAsk(j) || !n.allThere():
		delete(n.idling.open, id)
	case len(q.open) > 0:
	case n.askOf(q, j, since, func(p *Peer) bool { return !slices.Contains(q.said, p.Node) }):
		q.at = n.monotonic()
	default:
		delete(n.idling.open, id)
		n.Stats.Idle++
		becomeReturning(j) // nobody has it, so it isn't counted as an additional delivery
		n.setQTime(j, n.now+2*store.AnnounceMS+n.jitter())
		n.arm(j)
	}
}

// endAskIdle forgets the questions that some nodes haven't answered in time.
func (n *Node) endAskIdle(now int64) {
	d := &n.idling
	for len(d.line) > 0 && now > d.line[0].at+idleWaitMS {
		if q := d.line[0]; d.open[q.id] == q {
			delete(d.open, q.id)
		}
		d.line = d.line[1:]
	}
}
