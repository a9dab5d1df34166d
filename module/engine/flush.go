package engine

import (
	"container/heap"
	"encoding/binary"
	"math"
	"slices"

	"jobmesh/module/entries"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// QFLUSH: all jobs of a queue go.
//
// Without MESH this node cancels the jobs that it would queue, each everywhere, as CANCELJOB does.
//
// With MESH a creation time becomes an entry that all nodes are to know (EntryFlush), also those that are away. Each node
// drops the queue's jobs up to that time by itself, without a word for each, as it drops jobs whose time to live is over.
// It refuses such jobs when they come late, and it gives jobs that are added from then on a later creation time. A job in
// somebody's hands is spared by the node that has it: the job gets a mark (TagSpared), by which other nodes take it in
// again, and its holders are sent their copies anew.
//
// Very many jobs go bit by bit, by a walk through all jobs. Nobody is given a job that is still to go meanwhile.

// Flush is what is to go of a queue: its jobs up to a creation time.
type Flush struct {
	UpTo uint64 // jobs up to this creation time go, but not those in somebody's hands
	All  uint64 // jobs up to this one go in any case
}

const (
	flushesMost = 10_000
	flushAtOnce = 1000 // jobs of a queue that are looked at without a walk
	flushSlice  = 4000 // buckets of the table of jobs that a tick visits; a job that goes counts as flushCost, and more if its end has much to follow
	flushCost   = 4
)

// merge is what two flushes leave of a queue together.
func (f Flush) merge(o Flush) Flush { return Flush{max(f.UpTo, o.UpTo), max(f.All, o.All)} }

func (f Flush) value() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, f.UpTo), f.All)
}

// flushOf reads an entry of EntryFlush. One of a later release, in another form, flushes nothing.
func flushOf(e *entries.Entry) (f Flush) {
	if e != nil && len(e.Value) == 16 {
		f = Flush{binary.BigEndian.Uint64(e.Value), binary.BigEndian.Uint64(e.Value[8:])}
	}
	return f
}

// covers says whether a job goes by a flush, unless somebody has it in hands.
func (f Flush) covers(ctime, spared uint64) bool {
	return ctime <= f.UpTo && spared < f.UpTo || ctime <= f.All && spared < f.All
}

// sparedUpTo is up to which flush a job is spared; 0: it never was.
func sparedUpTo(extras []byte) uint64 {
	if v := store.FindExtra(extras, store.TagSpared); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

// flushing is a flush that this node carries out.
type flushing struct {
	Flush
	began   bool // the walk that is under way is for it, too
	jobs    uint64
	clients []int64      // questions of this node that wait for it
	askers  []flushAsker // nodes that wait for it
}

// flushAsker is a node that has asked for a flush, and the number of its question.
type flushAsker struct {
	node wire.Node
	span int64
}

// flushKey names a flush that is under way. own: it is one without MESH.
type flushKey struct {
	queue string
	own   bool
}

// flushes are the flushes that this node carries out.
type flushes struct {
	open    map[flushKey]*flushing
	walking bool
	now     *flushing // the flush of the job whose end is being followed
	at      uint64    // cursor of the walk
	again   bool      // the walk has left out a job that is being handed over
	next    int64     // monotonic: when the next walk may begin
}

// FlushQueue is QFLUSH without MESH: it cancels the jobs of a queue that this node would queue. With all it also cancels those in
// somebody's hands here. If it takes longer, the answer comes as an AnswerMesh effect for the client that is tied to p, unless
// the client can't wait. Then now has the count of the jobs, which go in the next ticks.
func (n *Node) FlushQueue(name []byte, all, canWait bool) (p Pending, now *MeshAnswer) {
	key := flushKey{string(name), true}
	f := Flush{UpTo: n.newestHere()}
	if all {
		f.All = f.UpTo
	}
	q := n.store.Queue(name)
	if q == nil {
		return p, &MeshAnswer{}
	}
	if !canWait {
		c, _ := n.Counts(name)
		count := c.Len + c.HeldBack + c.Delayed + c.Deferred + c.Blocked
		if all {
			count += c.InProgress
		}
		now = &MeshAnswer{Flushed: count}
	}
	fl := n.beginFlush(key, f)
	switch {
	case now != nil:
	case n.flushes.open[key] != fl:
		now = &MeshAnswer{Flushed: fl.jobs}
	default:
		ask := n.newQuestion(math.MaxInt64)
		ask.awaits, ask.flush = wire.Flushed, fl
		fl.clients = append(fl.clients, ask.number)
		return n.openQuestion(ask), nil
	}
	return p, now
}

// flushPlan is a QFLUSH with MESH, before its creation time is known.
type flushPlan struct {
	name     string
	all      bool
	upTo     uint64
	deadline int64 // unix ms: of the question that follows
}

const (
	flushPlanMS  = 500
	flushTrustMS = 60_000 // a node whose newest job is from so far ahead has a wrong clock
)

// FlushMesh is QFLUSH with MESH. First it asks all nodes that are connected up to which creation time they have jobs: clocks differ. Then it
// tells all nodes, and asks those that are connected how many jobs have gone there. The answer is returned, or comes as an AnswerMesh
// effect, in timeout ms at most; then a node that isn't through yet counts as unanswered.
func (n *Node) FlushMesh(name []byte, all bool, timeout int64) (p Pending, now *MeshAnswer, err error) {
	if n.mesh.Alone() {
		p, now = n.FlushQueue(name, all, true)
		return p, now, nil
	}
	for _, o := range n.mesh.All() {
		if o.Connected && !n.mesh.features[o.ID].Flushes {
			return p, nil, oldNode(o)
		}
	}
	known := n.alike.Get(EntryFlush, string(name)) != nil
	switch {
	case len(name) > entries.MaxName:
		return p, nil, ErrFlushName
	case !known && n.alike.Count(EntryFlush) >= flushesMost:
		return p, nil, ErrManyFlushes
	case !known:
		if err := n.EntryFits(len(name) + len(Flush{}.value())); err != nil {
			return p, nil, err
		}
	}
	ask := n.newQuestion(timeout)
	ask.plan = &flushPlan{name: string(name), all: all, deadline: ask.deadline}
	ask.deadline = min(ask.deadline, n.deadlineIn(flushPlanMS)) // nodes that haven't answered by then aren't waited for
	p, now = n.askMesh(ask, &wire.Message{Kind: wire.AskFlush, Flags: wire.Newest}, wire.Flushed, n.mesh.All())
	return p, now, nil
}

// flushPlanned carries a planned flush out.
func (n *Node) flushPlanned(ask *question) {
	plan := ask.plan
	if ask.deadline = plan.deadline; n.questionOf(ask.number) == ask {
		heap.Fix(&n.questions.due, ask.pos)
	}
	ask.plan, ask.open, ask.got.Unanswered = nil, nil, nil
	// By this node's clock the flush holds for the jobs of nodes that aren't connected, too.
	f := Flush{UpTo: max(plan.upTo, n.newestHere(), uint64(max(n.now, 0))*1_000_000+999_999)}
	if plan.all {
		f.All = f.UpTo
	}
	f = f.merge(n.alike.flushes[plan.name])
	e := n.changeEntry(EntryFlush, plan.name, f.value())
	fl := n.beginFlush(flushKey{plan.name, false}, f)
	if n.flushes.open[flushKey{plan.name, false}] == fl {
		fl.clients = append(fl.clients, ask.number)
		ask.flush = fl
	} else {
		ask.got.Flushed = fl.jobs
	}
	n.sendQuestion(ask, &wire.Message{Kind: wire.AskFlush, Queue: e.Append(nil)}, wire.Flushed, n.mesh.All())
}

// takeFlushed takes an answer to either of the two questions.
func (n *Node) takeFlushed(q *question, m *wire.Message) {
	if q.plan != nil {
		q.plan.upTo = max(q.plan.upTo, min(m.Round, uint64(max(n.now+flushTrustMS, 0))*1_000_000))
	} else {
		q.got.Flushed += min(m.Round, maxCount)
	}
}

// FlushedSoFar is how many jobs have gone by a QFLUSH that waits.
func (n *Node) FlushedSoFar(p Pending) uint64 {
	if q := n.questionOf(p.number); q != nil && q.flush != nil {
		return q.flush.jobs
	}
	return 0
}

// onAskFlush learns a flush, and answers how many jobs have gone here when it is done.
func (n *Node) onAskFlush(p *Peer, m *wire.Message) error {
	if m.Flags&wire.Newest != 0 {
		n.send(p, &wire.Message{Kind: wire.Flushed, Flags: wire.Newest, Span: m.Span, Round: n.newestHere()})
		return nil
	}
	var e *entries.Entry
	err := entries.Parse(m.Queue, func(one *entries.Entry) error { e = one; return nil })
	if err != nil || e == nil || e.Kind != EntryFlush {
		return wire.ErrMessage
	}
	var fl *flushing
	if took, lost := n.alike.Learn(e, n.now, n.monotonic()); took {
		fl = n.learntEntry(e, lost)
	} else {
		fl = n.flushes.open[flushKey{e.Name, false}]
	}
	switch {
	case fl == nil && n.tooFarAhead(flushOf(e)):
	case fl == nil || n.flushes.open[flushKey{e.Name, false}] != fl:
		if fl == nil {
			fl = &flushing{}
		}
		n.send(p, &wire.Message{Kind: wire.Flushed, Span: m.Span, Round: fl.jobs})
	default:
		fl.askers = append(fl.askers, flushAsker{p.Node, m.Span})
	}
	return nil
}

// tooFarAhead says whether a flush comes from a node whose clock is more than a day ahead. This node couldn't give its jobs later
// creation times, so it leaves out such a flush.
func (n *Node) tooFarAhead(f Flush) bool { return f.UpTo >= uint64(max(n.now+trustAhead, 0))*1_000_000 }

// noteFlush notes what an entry says, which this node has learnt or loaded. If this node knew more of the queue it changes the entry.
// It says whether there is anything new.
func (n *Node) noteFlush(e *entries.Entry) (news bool) {
	f := flushOf(e)
	if e.Deleted {
		delete(n.alike.flushes, e.Name)
		if key := (flushKey{e.Name, false}); n.flushes.open[key] != nil {
			n.endFlush(key, n.flushes.open[key])
		}
		return false
	}
	if n.tooFarAhead(f) {
		return false
	}
	was := n.alike.flushes[e.Name]
	f = f.merge(was)
	if n.alike.flushes == nil {
		n.alike.flushes = map[string]Flush{}
	}
	n.alike.flushes[e.Name] = f
	n.followCTime(f.UpTo, trustAhead)
	if n.passive || n.loading {
		return false
	}
	if f != flushOf(n.alike.Get(EntryFlush, e.Name)) {
		n.ChangeEntry(EntryFlush, e.Name, f.value())
	}
	return f != was
}

// forgetFlushes forgets the flushes whose entries have passed.
func (n *Node) forgetFlushes() {
	if n.alike.Count(EntryFlush) == len(n.alike.flushes) {
		return
	}
	for name := range n.alike.flushes {
		if n.alike.Get(EntryFlush, name) == nil {
			delete(n.alike.flushes, name)
		}
	}
}

// learntFlush carries a flush out that another node has told of; nil: there is nothing new to carry out.
func (n *Node) learntFlush(e *entries.Entry) *flushing {
	if !n.noteFlush(e) {
		return nil
	}
	return n.beginFlush(flushKey{e.Name, false}, n.alike.flushes[e.Name])
}

// flushAgain begins to carry out all flushes that all nodes are to know: data were loaded, or are this node's since it is no
// replica any more.
func (n *Node) flushAgain() {
	for name, f := range n.alike.flushes {
		if q := n.store.Queue([]byte(name)); q != nil && q.Jobs() > 0 {
			n.openFlush(flushKey{name, false}, f)
		}
	}
}

// unflushed is for a queue that just got its name together with its jobs (RENAME, RESTORE, MOVE, SWAPDB). These were not flushed, or are
// wanted back, and they may be as old as those that were. So the flush is forgotten everywhere.
func (n *Node) unflushed(q *store.Queue) {
	if len(n.alike.flushes) == 0 || n.passive || n.loading || q.Jobs() == 0 {
		return
	}
	if name := string(q.NameBytes()); n.alike.Get(EntryFlush, name) != nil {
		n.ChangeEntry(EntryFlush, name, nil)
	}
}

func (n *Node) openFlush(key flushKey, f Flush) *flushing {
	if n.flushes.open == nil {
		n.flushes.open = map[flushKey]*flushing{}
	}
	fl := n.flushes.open[key]
	if fl == nil {
		fl = &flushing{}
		n.flushes.open[key] = fl
	}
	fl.Flush, fl.began = fl.merge(f), false
	n.hurryTick()
	return fl
}

// beginFlush begins a flush. It is done at once if the queue has few jobs.
func (n *Node) beginFlush(key flushKey, f Flush) *flushing {
	fl := n.openFlush(key, f)
	q := n.store.Queue([]byte(key.queue))
	if q != nil && q.Jobs() > flushAtOnce {
		return fl
	}
	ids := n.scratch.ids[:0]
	if q != nil {
		eachJob(q, func(j *store.Job) { ids = append(ids, j.ID) })
	}
	n.scratch.ids = nil // the end of a job may need it
	again := n.flushes.again
	n.flushes.again = false
	for i := range ids {
		if j := n.store.Lookup(&ids[i]); j != nil {
			n.flushJob(key, fl, j)
		}
	}
	n.scratch.ids = ids[:0]
	if !n.flushes.again {
		n.endFlush(key, fl)
	}
	n.flushes.again = n.flushes.again || again
	return fl
}

// flushOfJob finds the flush under way by which a job goes.
func (n *Node) flushOfJob(j *store.Job) (key flushKey, fl *flushing) {
	if j.State == store.StateAcked || n.dummy(j) {
		return key, nil
	}
	for _, own := range [...]bool{false, true} {
		if fl := n.flushes.open[flushKey{string(j.Queue.NameBytes()), own}]; fl != nil && fl.covers(j.CTime, sparedUpTo(j.Extras())) {
			return flushKey{string(j.Queue.NameBytes()), own}, fl
		}
	}
	return key, nil
}

// endFlushes ends all flushes as they are: this node becomes a replica.
func (n *Node) endFlushes() {
	for key, fl := range n.flushes.open {
		n.endFlush(key, fl)
	}
	n.flushes = flushes{}
}

// goesBy is flushOfJob without the key.
func (n *Node) goesBy(j *store.Job) *flushing {
	_, fl := n.flushOfJob(j)
	return fl
}

// isToGo says whether a waiting job is still to go by a flush: nobody is given it.
func (n *Node) isToGo(j *store.Job) bool {
	return len(n.flushes.open) > 0 && n.goesBy(j) != nil
}

// flushJob lets a job go by a flush, if it does, or spares it.
func (n *Node) flushJob(key flushKey, fl *flushing, j *store.Job) {
	if n.goesBy(j) != fl {
		return
	}
	counted := n.countsFlushed(j)
	if j.Place == store.InWorking {
		if j.CTime > fl.All {
			if !key.own {
				n.spareInHands(j, fl.UpTo)
			}
			return
		}
		counted = true
	}
	ad := n.pendingAddOf(&j.ID)
	switch {
	case key.own:
		if counted || ad != nil {
			fl.jobs++
			n.CancelJob(&j.ID)
		}
		return
	case isOffered(j):
		n.flushes.again = true // another node may have it in hands; its answer comes
		return
	case ad != nil:
		n.cleanUp(ad)
		n.deny(ad, ErrReplRemoved)
		return
	case j.State == store.StateWaitRepl:
		n.revoke(j)
		return
	}
	if counted {
		fl.jobs++
		n.Stats.Cancelled++
	}
	n.flushes.now = fl
	defer func() { n.flushes.now = nil }()
	if n.gone(j, origin{clock: true}) {
		n.remove(j)
	}
}

// countDropped counts a job that is dropped with one that is flushed, if it would go itself.
func (n *Node) countDropped(j *store.Job) {
	if fl := n.flushes.now; fl != nil && n.goesBy(j) == fl && n.countsFlushed(j) {
		fl.jobs++
	}
}

// countsFlushed says whether this node counts a job, of which other nodes may have copies, when it is flushed.
func (n *Node) countsFlushed(j *store.Job) bool {
	return j.State == store.StateQueued || j.Reason() == store.Delayed || j.Reason() > store.Delayed && n.CountsHere(j)
}

// spareInHands marks a job that somebody has in hands, and sends the other holders their copies anew: they may have dropped these.
func (n *Node) spareInHands(j *store.Job, upTo uint64) {
	j = n.markSpared(j, upTo)
	if j.Retry == 0 || sparedUpTo(j.Extras()) < upTo {
		return
	}
	m := n.copyOf(j, wire.ReplJob)
	m.Flags = wire.Again | wire.NoReply
	n.tell(j, m)
}

// markSpared notes up to which flush a job is spared. The job may move. A job with no room for that goes without.
func (n *Node) markSpared(j *store.Job, upTo uint64) *store.Job {
	if sparedUpTo(j.Extras()) < upTo {
		j, _ = n.setExtra(j, store.TagSpared, binary.BigEndian.AppendUint64(nil, upTo))
		n.log(LogState, j)
	}
	return j
}

// learnSpared takes over the mark of a job that another node spares.
func (n *Node) learnSpared(j *store.Job, m *wire.Message) *store.Job {
	if len(m.Job.Extras) == 0 {
		return j
	}
	return n.markSpared(j, sparedUpTo(m.Job.Extras))
}

// isFlushed says whether a job that comes from another node has gone by a flush.
func (n *Node) isFlushed(m *wire.Message) bool {
	if len(n.alike.flushes) == 0 {
		return false
	}
	f, ok := n.alike.flushes[string(m.Queue)]
	return ok && f.covers(m.Job.CTime, sparedUpTo(m.Job.Extras))
}

// tickFlushes goes on with the walk.
func (n *Node) tickFlushes() {
	w := &n.flushes
	if len(w.open) == 0 {
		return
	}
	if !w.walking {
		if left := w.next - n.monotonic(); left > 0 {
			n.wake = min(n.wake, n.now+left)
			return
		}
		w.walking, w.at, w.again = true, 0, false
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
			j := n.store.Lookup(&ids[i])
			if j == nil {
				continue
			}
			if key, fl := n.flushOfJob(j); fl != nil {
				from := len(n.effects)
				n.flushJob(key, fl, j)
				budget -= flushCost * (1 + n.cost(from))
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
	w := &n.flushes
	w.walking = false
	if w.again {
		w.next = n.monotonic() + flushAgainMS
		return
	}
	for key, fl := range w.open {
		if fl.began {
			n.endFlush(key, fl)
		}
	}
}

const flushAgainMS = 100

// endFlush answers those who wait for a flush that is done.
func (n *Node) endFlush(key flushKey, fl *flushing) {
	delete(n.flushes.open, key)
	for _, a := range fl.askers {
		if p := n.mesh.ByName(a.node); p != nil {
			n.send(p, &wire.Message{Kind: wire.Flushed, Span: a.span, Round: fl.jobs})
		}
	}
	for _, number := range fl.clients {
		q := n.questionOf(number)
		if q == nil {
			continue
		}
		q.got.Flushed += fl.jobs
		if q.flush = nil; n.settled(q) || !slices.ContainsFunc(q.open, n.mayAnswer) {
			n.answerQuestion(q)
		}
	}
	if q := n.store.Queue([]byte(key.queue)); q != nil {
		n.serveBehind(q)
	}
}
