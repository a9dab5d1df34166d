package engine

import (
	"container/heap"
	"maps"
	"math"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// QFLUSH: a node cancels the jobs of a queue that it would queue, each everywhere, as CANCELJOB does. With MESH all nodes that are
// connected do so.
//
// Very many jobs go bit by bit, by a walk through all jobs. Nobody is given a job that is still to go meanwhile. A flush is of the queue
// that had the name, also under a new name, and not of one that gets that name later. Whatever comes into the queue after it began, or is given back
// by a client, stays: the flush notes the IDs of these jobs. Times don't tell which jobs these are, because the clocks of other nodes differ.

const (
	flushAtOnce = 1000 // jobs that are looked at without a walk, in a millisecond
	flushSlice  = 4000 // buckets of the table of jobs that a tick visits; a job that goes counts as flushCost, and more if its end has much to follow
	flushCost   = 4
)

// flushing is a flush that this node carries out.
type flushing struct {
	queue   string                // the queue's name when its last job went
	all     bool                  // those in somebody's hands go, too
	began   bool                  // the walk that is under way is for it, too
	jobs    uint64                // that have gone
	spared  map[store.ID]struct{} // jobs that came into the queue, or were given back, since it began
	clients []int64
	askers  []flushAsker
}

// flushAsker is a node that waits for a flush, and how many jobs had gone before it asked.
type flushAsker struct {
	meshAsker
	before uint64
}

// flushKind names a flush under way. A queue has one with ALL, and one without, at most.
type flushKind struct {
	number uint32 // [store.Queue.Flush]
	all    bool
}

// flushes are the flushes that this node carries out.
type flushes struct {
	open    map[flushKind]*flushing
	last    uint32 // the number of the newest one
	walking bool
	now     *flushing // the flush of the job whose end is being followed
	at      uint64    // cursor of the walk
	left    int       // of flushAtOnce,
	since   int64     // in this millisecond
}

// FlushQueue is QFLUSH without MESH. With all it also cancels the jobs in somebody's hands here. If it takes longer, the answer comes as an
// AnswerMesh effect for the client that is tied to p, unless the client can't wait. Then now has the count of the jobs, which go in the
// next ticks.
func (n *Node) FlushQueue(name []byte, all, canWait bool) (p Pending, now *MeshAnswer) {
	if !canWait {
		c, _ := n.Counts(name)
		now = &MeshAnswer{Flushed: c.Len + c.Delayed + c.Deferred + c.Blocked}
		if all {
			now.Flushed += c.InProgress
		}
	}
	fl, done := n.beginFlush(string(name), all)
	switch {
	case now != nil:
	case done:
		now = &MeshAnswer{Flushed: fl.jobs}
	default:
		ask := n.newQuestion(math.MaxInt64)
		ask.awaits = wire.Flushed
		n.awaitFlush(ask, fl)
		return n.openQuestion(ask), nil
	}
	return p, now
}

// FlushMesh is QFLUSH with MESH. The answer is returned, or comes as an AnswerMesh effect, in timeout ms at most; then a node that isn't
// through yet counts as unanswered.
func (n *Node) FlushMesh(name []byte, all bool, timeout int64) (p Pending, now *MeshAnswer) {
	ask := n.newQuestion(timeout)
	ask.note = n.noteBounds(string(name))
	if fl, done := n.beginFlush(string(name), all); done {
		ask.got.Flushed = fl.jobs
	} else {
		n.awaitFlush(ask, fl)
	}
	m := &wire.Message{Kind: wire.AskFlush, Queue: name}
	if all {
		m.Flags = wire.All
	}
	n.noteAway(ask.note, func(p *Peer) bool { return !n.canAsk(p, wire.AskFlush) })
	ask.word = &wire.Message{Kind: m.Kind, Span: ask.number, Queue: slices.Clone(name), Flags: m.Flags}
	return n.askMesh(ask, m, wire.Flushed, n.mesh.All())
}

// awaitFlush makes a question wait for this node's own part.
func (n *Node) awaitFlush(ask *question, fl *flushing) {
	fl.clients = append(fl.clients, ask.number)
	ask.flush, ask.flushed = fl, fl.jobs
}

// FlushedSoFar is how many jobs have gone by a QFLUSH that waits.
func (n *Node) FlushedSoFar(p Pending) uint64 {
	if q := n.questionOf(p.number); q != nil && q.flush != nil {
		return q.flush.jobs - q.flushed
	}
	return 0
}

// A flush for another node begins before that node answers its client: jobs that are promised after the answer stay. So the word to
// begin (AskFlush) counts for flushReadyMS from when this node said that it is ready for it, and the asking node, which hears that, doesn't answer for longer than
// that after it has sent the word. A message that was held up on its way does nothing.
const (
	flushReadyMS   = 1_000
	flushHoldMS    = 1_500 // longer than flushReadyMS by any clock
	flushReadyMost = 1_000 // flushes that one node may be about to begin here
)

// onFlushReady gives the word to begin.
func (n *Node) onFlushReady(p *Peer, m *wire.Message) {
	q := n.questionOf(m.Span)
	if q == nil || q.awaits != wire.Flushed || !slices.Contains(q.open, p) {
		return
	}
	q.holds = n.monotonic() + flushHoldMS
	q.deadline = max(q.deadline, n.deadlineIn(flushHoldMS))
	heap.Fix(&n.questions.due, q.pos)
	n.send(p, q.word)
}

// isReadyFor says whether a word to begin comes in time.
func (p *Peer) isReadyFor(span, now int64) bool {
	at, yes := p.ready[span]
	delete(p.ready, span)
	return yes && now-at <= flushReadyMS
}

// becomeReady notes that a word to begin may come.
func (p *Peer) becomeReady(span, now int64) bool {
	if len(p.ready) >= flushReadyMost {
		maps.DeleteFunc(p.ready, func(_, at int64) bool { return now-at > flushReadyMS })
	}
	if len(p.ready) >= flushReadyMost {
		return false
	}
	if p.ready == nil {
		p.ready = map[int64]int64{}
	}
	p.ready[span] = now
	return true
}

// onAskFlush flushes a queue for another node.
func (n *Node) onAskFlush(p *Peer, m *wire.Message) {
	switch now := n.monotonic(); {
	case m.Flags&wire.Soon != 0:
		if p.becomeReady(m.Span, now) {
			n.send(p, &wire.Message{Kind: wire.FlushReady, Span: m.Span})
		}
		return
	case n.mesh.features[p.ID].Bounds && !p.isReadyFor(m.Span, now):
		return
	}
	fl, done := n.beginFlush(string(m.Queue), m.Flags&wire.All != 0)
	if !done {
		fl.askers = append(fl.askers, flushAsker{meshAsker{p.Node, m.Span}, fl.jobs})
		return
	}
	n.send(p, &wire.Message{Kind: wire.Flushed, Span: m.Span, Round: fl.jobs})
}

// beginFlush begins a flush. It is done at once if the queue has few jobs, or isn't there. One of the same kind that is under way becomes
// this one: all jobs that it spared go, too.
func (n *Node) beginFlush(name string, all bool) (fl *flushing, done bool) {
	q := n.store.Queue([]byte(name))
	if q == nil {
		return &flushing{}, true
	}
	kind := n.flushOf(q, all)
	before := uint64(0)
	if fl = n.flushes.open[kind]; fl == nil {
		fl = &flushing{queue: name, all: all}
		n.flushes.open[kind] = fl
	} else {
		fl.spared, fl.began, before = nil, false, fl.jobs
	}
	n.hurryTick()
	if n.flushes.since != n.now {
		n.flushes.left, n.flushes.since = flushAtOnce, n.now
	}
	if q.Jobs() > uint64(n.flushes.left) {
		return fl, false
	}
	n.flushes.left -= int(q.Jobs())
	var ids []store.ID
	eachJob(q, func(j *store.Job) { ids = append(ids, j.ID) })
	for i := range ids {
		if j := n.store.Lookup(&ids[i]); j != nil && n.goes(j, fl) {
			n.flushJob(fl, j)
		}
	}
	n.endFlush(kind, fl)
	return &flushing{jobs: fl.jobs - before}, true
}

// flushOf names a queue's flush of a kind. If the queue has none of any kind under way, it gets a number.
func (n *Node) flushOf(q *store.Queue, all bool) flushKind {
	w := &n.flushes
	if w.open == nil {
		w.open = map[flushKind]*flushing{}
	}
	if w.open[flushKind{q.Flush, true}] == nil && w.open[flushKind{q.Flush, false}] == nil {
		if w.last++; w.last == 0 {
			w.last = 1
		}
		q.Flush = w.last
	}
	return flushKind{q.Flush, all}
}

// goes says whether a job goes by a flush of its queue.
func (n *Node) goes(j *store.Job, fl *flushing) bool {
	if j.State == store.StateAcked || n.dummy(j) {
		return false
	}
	if _, spared := fl.spared[j.ID]; spared {
		return false
	}
	return n.countsWaiting(j) || n.waitsLate(j) || fl.all && j.Place == store.InWorking || n.pendingAddOf(&j.ID) != nil
}

// flushesOf calls do for the flushes of a job's queue that are under way.
func (n *Node) flushesOf(j *store.Job, do func(*flushing)) {
	if len(n.flushes.open) == 0 || j.Queue.Flush == 0 {
		return
	}
	for _, all := range [...]bool{true, false} {
		if fl := n.flushes.open[flushKind{j.Queue.Flush, all}]; fl != nil {
			do(fl)
		}
	}
}

// goesBy finds the flush under way by which a job goes; nil: it stays.
func (n *Node) goesBy(j *store.Job) (by *flushing) {
	n.flushesOf(j, func(fl *flushing) {
		if by == nil && n.goes(j, fl) {
			by = fl
		}
	})
	return by
}

func (fl *flushing) spare(j *store.Job) {
	if fl.spared == nil {
		fl.spared = map[store.ID]struct{}{}
	}
	fl.spared[j.ID] = struct{}{}
}

// outliveFlush keeps a job that has just come into its queue from going by a flush under way.
func (n *Node) outliveFlush(j *store.Job) {
	n.flushesOf(j, func(fl *flushing) { fl.spare(j) })
}

// outliveUnlessGoing is outliveFlush for a job that is about to wait here. It is kept from those flushes by which it wouldn't go now.
func (n *Node) outliveUnlessGoing(j *store.Job) {
	n.flushesOf(j, func(fl *flushing) {
		if !n.goes(j, fl) {
			fl.spare(j)
		}
	})
}

// outliveAsGivenBack is outliveUnlessGoing for a job that is about to be queued, or put off, if the flush left it to a client, here or at another node.
func (n *Node) outliveAsGivenBack(j *store.Job) {
	if j.Place == store.InWorking || j.Flags&store.FlagQueuedOnce != 0 && j.State == store.StateActive {
		n.outliveUnlessGoing(j)
	}
}

// countsWaiting says whether this node counts a job that other nodes may have copies of, as one that waits, or doesn't wait yet.
func (n *Node) countsWaiting(j *store.Job) bool {
	return j.State == store.StateQueued || j.Reason() == store.Delayed || (j.Reason() == store.Deferred || j.Reason() == store.Blocked) && n.CountsHere(j)
}

// isToGo says whether a waiting job is still to go by a flush, or may go by one: nobody is given it.
func (n *Node) isToGo(j *store.Job) bool {
	return len(n.flushes.open) > 0 && n.goesBy(j) != nil || n.lateOnes.any && n.mayGoLate(j)
}

// flushJob cancels a job.
func (n *Node) flushJob(fl *flushing, j *store.Job) {
	fl.jobs++
	if name := j.Queue.NameBytes(); fl.queue != string(name) {
		fl.queue = string(name)
	}
	n.flushes.now = fl
	n.CancelJob(&j.ID)
	n.flushes.now = nil
}

// goesNow says whether a job that is dropped with one that is flushed would go by the same flush itself: it is one of its own queue.
func (n *Node) goesNow(j *store.Job) bool {
	return n.flushes.now != nil && n.goesBy(j) == n.flushes.now
}

// countDropped counts a job that is dropped with one that is flushed, if it would go itself.
func (n *Node) countDropped(j *store.Job) {
	if n.goesNow(j) {
		n.flushes.now.jobs++
	}
}

// endFlushes ends all flushes as they are: this node becomes a replica.
func (n *Node) endFlushes() {
	for kind, fl := range n.flushes.open {
		n.endFlush(kind, fl)
	}
	n.flushes = flushes{last: n.flushes.last}
}

// tickFlushes goes on with the walk.
func (n *Node) tickFlushes() {
	w := &n.flushes
	if len(w.open) == 0 {
		return
	}
	if !w.walking {
		w.walking, w.at = true, 0
		for _, fl := range w.open {
			fl.began = true
		}
	}
	for budget := flushSlice; budget > 0 && n.deps.budget > 0; budget-- {
		n.scratch.jobs = n.scratch.jobs[:0]
		w.at = n.store.ScanJobs(w.at, &n.scratch.jobs)
		var ids []store.ID
		for _, j := range n.scratch.jobs {
			if n.goesBy(j) != nil {
				ids = append(ids, j.ID)
			}
		}
		for i := range ids {
			if j := n.store.Lookup(&ids[i]); j != nil {
				if fl := n.goesBy(j); fl != nil {
					from := len(n.effects)
					n.flushJob(fl, j)
					budget -= flushCost * (1 + n.cost(from))
				}
			}
		}
		if w.at == 0 {
			n.flushWalked()
			break
		}
	}
	if len(w.open) > 0 {
		n.hurryTick()
	}
}

// flushWalked ends the flushes for which the walk was.
func (n *Node) flushWalked() {
	n.flushes.walking = false
	for kind, fl := range n.flushes.open {
		if fl.began {
			n.endFlush(kind, fl)
		}
	}
}

// endFlush answers those who wait for a flush that is done.
func (n *Node) endFlush(kind flushKind, fl *flushing) {
	delete(n.flushes.open, kind)
	n.tellsFlush(fl)
	for _, a := range fl.askers {
		if p := n.mesh.ByName(a.node); p != nil {
			n.send(p, &wire.Message{Kind: wire.Flushed, Span: a.span, Round: fl.jobs - a.before})
		}
	}
	for _, number := range fl.clients {
		q := n.questionOf(number)
		if q == nil {
			continue
		}
		q.got.Flushed += fl.jobs - q.flushed
		if q.flush = nil; n.settled(q) {
			n.answerQuestion(q)
		}
	}
	if q := n.store.Queue([]byte(fl.queue)); q != nil {
		n.serveBehind(q)
	}
}
