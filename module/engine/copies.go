package engine

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// WAITCOPIES: a client waits until its jobs have their copies. The nodes that hold them are asked whether they do, for
// all jobs at once, and again until enough have said so. Missing copies are sent.

const (
	idBytes        = len(store.ID{})
	idsMost        = 1000      // IDs in a message
	copiesFirstMS  = 20        // until nodes are asked again; doubles each time
	copiesLatestMS = 500       // the longest pause
	askCopiesSlice = 1500      // jobs that one tick asks about, for all clients
	askCopiesBytes = 1_000_000 // of bodies that one tick sends
	answerPiece    = 250       // jobs, or queues, of an answer that take as long as another client's answer
)

// copyWaits are the WAITCOPIES that wait.
type copyWaits struct {
	by   map[int64]*copiesWait       // by their number
	ends table.Schedule[*copiesWait] // by their deadline
	asks table.Schedule[*nextAsk]    // the same ones, by when nodes are asked again
}

// copiesWait is a WAITCOPIES that waits.
type copiesWait struct {
	number   int64
	client   any
	deadline int64 // unix ms
	next     int64 // unix ms: when nodes are asked again
	pause    int64 // ms, before the time after that
	at       int   // in jobs: from there on it is still to be asked
	jobs     []waitedJob
	place    map[store.ID]int // in jobs
	open     int              // jobs that haven't enough copies
	repairs  bool             // no client waits: lost copies are made again (repair.go)
	endPos   int              // in copyWaits.ends
	askPos   int              // in copyWaits.asks
}

func (w *copiesWait) Sooner(than *copiesWait) bool {
	if w.deadline != than.deadline {
		return w.deadline < than.deadline
	}
	return w.number < than.number
}
func (w *copiesWait) Position() *int { return &w.endPos }

// nextAsk is a copiesWait in copyWaits.asks.
type nextAsk copiesWait

func (a *nextAsk) Sooner(than *nextAsk) bool {
	if a.next != than.next {
		return a.next < than.next
	}
	return a.number < than.number
}
func (a *nextAsk) Position() *int { return &a.askPos }

type waitedJob struct {
	id   store.ID
	want int // nodes that are to have the job, this one included
	has  []hasCopy
	done bool

	lacks []lacking
}

// hasCopy is a node that has said that it has a job. It counts as long as that connection lasts: a node that is started again may have lost
// the job.
type hasCopy struct {
	node  wire.Node
	since uint64 // [membership.Peer].Since
}

// lacking is a node that has said that it doesn't have a job.
type lacking struct {
	node  wire.Node
	times int // since it was sent the job last
}

// KnownCopies answers how many nodes should hold each of some jobs, as far as this node knows: -1 for a job that isn't known here.
func (n *Node) KnownCopies(ids []store.ID) []int64 {
	counts := make([]int64, len(ids))
	for i := range ids {
		counts[i] = -1
		if j := n.waitable(&ids[i]); j != nil {
			counts[i] = 1 + int64(j.Holders())
		}
	}
	return counts
}

// waitable finds a job that has copies to wait for; nil: it isn't known here, or it is done.
func (n *Node) waitable(id *store.ID) *store.Job {
	if j := n.store.Lookup(id); j != nil && j.State != store.StateAcked {
		return j
	}
	return nil
}

// WaitCopies waits until each of some jobs is held by so many nodes (0: by as many as its REPLICATE says), or is gone, for timeout ms at
// most (0: without limit). It returns the answer, or the answer comes as an AnswerMesh effect for the client that is tied to p.
func (n *Node) WaitCopies(ids []store.ID, copies int, timeout int64) (p Pending, now []int64) {
	w := n.newCopiesWait(ids, timeout, func(j *store.Job) int { return cmp.Or(copies, int(j.Repl)) })
	if n.beginCopiesWait(w); w.open == 0 {
		return p, n.countsOf(w)
	}
	return Pending{kind: copiesPending, number: w.number}, nil
}

// newCopiesWait makes the wait for jobs to be held by as many nodes as want says.
func (n *Node) newCopiesWait(ids []store.ID, timeout int64, want func(*store.Job) int) *copiesWait {
	n.questions.last++
	w := &copiesWait{number: n.questions.last, deadline: math.MaxInt64, pause: copiesFirstMS, place: make(map[store.ID]int, len(ids))}
	if timeout > 0 {
		w.deadline = n.deadlineIn(timeout)
	}
	for i := range ids {
		if _, twice := w.place[ids[i]]; twice {
			w.jobs = append(w.jobs, waitedJob{id: ids[i], done: true})
			continue
		}
		job := waitedJob{id: ids[i]}
		if j := n.waitable(&ids[i]); j != nil {
			job.want = want(j)
		}
		if job.done = job.want <= 1; !job.done {
			w.open++
		}
		w.place[ids[i]] = len(w.jobs)
		w.jobs = append(w.jobs, job)
	}
	return w
}

// beginCopiesWait asks for the first time, unless nothing is open.
func (n *Node) beginCopiesWait(w *copiesWait) {
	if w.open > 0 {
		n.askCopies(w, askCopiesSlice)
	}
	if w.open == 0 {
		return
	}
	c := &n.copyWaits
	if c.by == nil {
		c.by = map[int64]*copiesWait{}
	}
	c.by[w.number] = w
	heap.Push(&c.ends, w)
	heap.Push(&c.asks, (*nextAsk)(w))
}

// having counts the other nodes that have a job, as they have said.
func (n *Node) having(job *waitedJob) int {
	job.has = slices.DeleteFunc(job.has, func(h hasCopy) bool {
		p := n.mesh.ByName(h.node)
		return p == nil || !p.Connected || p.Since != h.since
	})
	return len(job.has)
}

// countCopies looks whether all jobs that were done still are. A node that has said that it has a job may have gone since.
func (n *Node) countCopies(w *copiesWait) {
	for i := range w.jobs {
		if job := &w.jobs[i]; job.done && job.want > 1 && n.waitable(&job.id) != nil && n.having(job)+1 < job.want {
			job.done = false
			w.open++
		}
	}
}

// countsOf is the answer of a WAITCOPIES.
func (n *Node) countsOf(w *copiesWait) []int64 {
	counts := make([]int64, len(w.jobs))
	for i := range w.jobs {
		if counts[i] = -1; n.waitable(&w.jobs[i].id) != nil {
			counts[i] = 1 + int64(n.having(&w.jobs[w.place[w.jobs[i].id]]))
		}
	}
	return counts
}

// askCopies asks the nodes that should have the jobs, and sends the copies that are missing, for up to budget jobs. It
// returns what is left of the budget.
func (n *Node) askCopies(w *copiesWait, budget int) int {
	ask := map[wire.Node][]byte{}
	for bytes := 0; w.at < len(w.jobs) && budget > 0 && bytes < askCopiesBytes; w.at++ {
		job := &w.jobs[w.at]
		if job.done {
			continue
		}
		budget--
		j := n.waitable(&job.id)
		if j == nil {
			job.done = true
			w.open--
			continue
		}
		n.having(job)
		if n.mayCopy(j) {
			sent := 0
			j, sent = n.sendMissing(w, job, j)
			bytes += sent * len(j.Body())
		}
		for i := range j.Holders() {
			if node, _ := j.Holder(i); !job.hasAt(wire.Node(node)) {
				ask[wire.Node(node)] = append(ask[wire.Node(node)], job.id[:]...)
			}
		}
	}
	for _, p := range n.mesh.All() {
		if !n.mesh.features[p.ID].Copies {
			continue
		}
		for some := range slices.Chunk(ask[p.Node], idsMost*idBytes) {
			n.send(p, &wire.Message{Kind: wire.AskCopies, Span: w.number, Queue: some})
		}
	}
	if w.at < len(w.jobs) {
		w.next = n.now + 1
	} else {
		w.at, w.next = 0, n.now+w.pause
		w.pause = min(2*w.pause, copiesLatestMS)
	}
	n.wake = min(n.wake, w.next, w.deadline)
	return budget
}

func (job *waitedJob) hasAt(node wire.Node) bool {
	return slices.ContainsFunc(job.has, func(h hasCopy) bool { return h.node == node })
}

// mayCopy says whether a job can be given to further nodes. An at-most-once job has one copy. A job that others wait for, or may come to wait
// for, has to be where these are: see [Node.beside].
func (n *Node) mayCopy(j *store.Job) bool {
	deferred, _ := n.Waits(j)
	return j.Retry > 0 && !deferred && n.store.Dependents(&j.ID) == nil && n.pendingAddOf(&j.ID) == nil && n.mayPlaceName(j)
}

// sendMissing sends copies of a job to further nodes, if too few should have it, and says how many. It sends the copy again to nodes that
// should have the job, and have said twice that they don't: the first time it may have been under way. The job may move.
func (n *Node) sendMissing(w *copiesWait, job *waitedJob, j *store.Job) (_ *store.Job, sent int) {
	should := n.countHolders(j, func(p *Peer) bool {
		if w.repairs {
			return !p.missing
		}
		return p.Connected
	})
	if should+1 < job.want {
		before := j.Holders()
		j = n.moreHolders(j, job.want-1-should)
		if sent = j.Holders() - before; w.repairs {
			n.Stats.Repaired += int64(sent)
		}
	}
	for i := range job.lacks {
		l := &job.lacks[i]
		if p := n.mesh.ByName(l.node); l.times >= 2 && p != nil && j.HeldBy(uint64(l.node)) && !job.hasAt(l.node) {
			l.times = 0
			m := n.copyOf(j, wire.ReplJob)
			m.Flags = wire.Again
			n.send(p, m)
			sent++
		}
	}
	return j, sent
}

// countHolders counts the other nodes that should have a job, are known, and are wanted.
func (n *Node) countHolders(j *store.Job, wanted func(*Peer) bool) (count int) {
	for i := range j.Holders() {
		node, _ := j.Holder(i)
		if p := n.mesh.ByName(wire.Node(node)); p != nil && wanted(p) {
			count++
		}
	}
	return count
}

// moreHolders sends copies of a job that is promised to so many more nodes, or fewer if there aren't so many. The job may
// move.
func (n *Node) moreHolders(j *store.Job, count int) *store.Job {
	before := j.Holders()
	if j = n.place(j, count, wire.NoReply); j.Holders() > before {
		n.spread(j)
	}
	return j
}

// onAskCopies answers which of some jobs this node holds.
func (n *Node) onAskCopies(p *Peer, m *wire.Message) error {
	if len(m.Queue)%idBytes != 0 || len(m.Queue) > idsMost*idBytes {
		return wire.ErrMessage
	}
	var has, lacks []byte
	for raw := range slices.Chunk(m.Queue, idBytes) {
		if id := store.ID(raw); n.waitable(&id) != nil {
			has = append(has, raw...)
		} else {
			lacks = append(lacks, raw...)
		}
	}
	n.send(p, &wire.Message{Kind: wire.Copies, Span: m.Span, Count: uint32(len(has) / idBytes), Queue: append(has, lacks...)})
	return nil
}

// onCopies notes which jobs another node holds: the first ones of the message, as many as Count says. It hasn't the others.
func (n *Node) onCopies(p *Peer, m *wire.Message) error {
	if len(m.Queue)%idBytes != 0 || int64(m.Count) > int64(len(m.Queue)/idBytes) {
		return wire.ErrMessage
	}
	w := n.copiesWaitOf(m.Span)
	if w == nil {
		return nil
	}
	has := int(m.Count)
	for raw := range slices.Chunk(m.Queue, idBytes) {
		has--
		at, known := w.place[store.ID(raw)]
		if !known {
			continue
		}
		job := &w.jobs[at]
		switch {
		case job.hasAt(p.Node):
		case has < 0:
			job.lackedBy(p.Node)
		default:
			if job.has = append(job.has, hasCopy{p.Node, p.Since}); !job.done && n.having(job)+1 >= job.want {
				job.done = true
				w.open--
			}
		}
	}
	if w.open == 0 {
		n.countCopies(w)
	}
	if w.open == 0 {
		n.answerCopies(w)
	}
	return nil
}

func (job *waitedJob) lackedBy(node wire.Node) {
	i := slices.IndexFunc(job.lacks, func(l lacking) bool { return l.node == node })
	if i < 0 {
		i = len(job.lacks)
		job.lacks = append(job.lacks, lacking{node: node})
	}
	job.lacks[i].times++
}

// CopiesSoFar is what a WAITCOPIES that waits would answer now.
func (n *Node) CopiesSoFar(p Pending) []int64 {
	if w := n.copiesWaitOf(p.number); w != nil {
		return n.countsOf(w)
	}
	return nil
}

// answerCopies ends a WAITCOPIES, and returns how much that takes of waitSlice.
func (n *Node) answerCopies(w *copiesWait) (cost int) {
	cost = 1 + len(w.jobs)/answerPiece
	if n.dropCopiesWait(w.number); w.repairs {
		n.repaired(w)
		return cost
	}
	n.effects = append(n.effects, Effect{Kind: AnswerMesh, Client: w.client, Answer: &MeshAnswer{Copies: n.countsOf(w)}})
	return cost
}

// copiesWaitOf finds a WAITCOPIES that waits; nil: there is none.
func (n *Node) copiesWaitOf(number int64) *copiesWait { return n.copyWaits.by[number] }

func (n *Node) dropCopiesWait(number int64) {
	c := &n.copyWaits
	w := c.by[number]
	if w == nil {
		return
	}
	delete(c.by, number)
	heap.Remove(&c.ends, w.endPos)
	heap.Remove(&c.asks, w.askPos)
}

// tickCopyWaits asks again, and answers clients whose time is up. Where very many are due, the next ticks go on.
func (n *Node) tickCopyWaits() {
	c, answers := &n.copyWaits, waitSlice
	for len(c.ends) > 0 && c.ends[0].deadline <= n.now && answers > 0 {
		answers -= n.answerCopies(c.ends[0])
	}
	for budget := askCopiesSlice; len(c.asks) > 0 && c.asks[0].next <= n.now && answers > 0 && budget > 0; {
		w, from := (*copiesWait)(c.asks[0]), len(n.effects)
		budget = n.askCopies(w, budget) - n.cost(from)
		if w.open == 0 {
			n.countCopies(w)
		}
		if w.open == 0 {
			answers -= n.answerCopies(w)
		} else {
			heap.Fix(&c.asks, w.askPos)
		}
	}
	if len(c.ends) > 0 {
		n.wake = min(n.wake, max(min(c.asks[0].next, c.ends[0].deadline), n.now+1))
	}
}
