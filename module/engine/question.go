package engine

import (
	"container/heap"
	"math"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// A question is a command with MESH, which asks all nodes and answers its client when they have answered, or when its
// time is up: WIP (wip.go, delayed.go), QLEN, QSTAT and QSCAN (counts.go), JSCAN (listing.go), QFLUSH (flush.go), MOVEJOB (movejob.go). ADDJOB asks so, too (replace.go).

// MeshAnswer is what the nodes of a mesh have answered to a question.
type MeshAnswer struct {
	Work       []InProgress  // WIP: each job once
	Delayed    []DelayedJob  // WIP with DELAYED: a page
	More       bool          // the same: other jobs follow
	Jobs       []MeshJob     // JSCAN
	Copies     []int64       // WAITCOPIES: how many nodes hold each job, in the order of the question; -1: it isn't known here
	Ends       []JobEnd      // WAITJOB: how each job has ended, in the order of the question
	Queues     []MeshCounts  // QLEN, QSTAT, QSCAN: the queues that were asked for, in that order
	Flushed    uint64        // QFLUSH: jobs that have gone
	Moved      uint64        // MOVEJOB: jobs that have moved
	Refused    error         // MOVEJOB: why a job couldn't be moved
	Done       bool          // Do: a node has done it
	Next       uint64        // QSCAN, JSCAN: the next cursor; 0: the scan is over
	Unanswered []wire.NodeID // nodes that aren't connected, can't be asked, or didn't answer in time

	known store.DelayedPlace // WIP with DELAYED and More: all delayed jobs of the nodes that have answered are known up to here
}

// question is a question that waits for answers.
type question struct {
	number   int64
	client   any
	deadline int64         // unix ms
	awaits   wire.Kind     // of the answers
	open     []*Peer       // nodes that haven't answered yet
	count    int           // WIP: the most jobs. MOVEJOB of IDs: how many
	single   bool          // QLEN, QSTAT: each node's counts are wanted, too
	page     wire.Node     // QSCAN: whose queues are listed
	flush    *flushing     // QFLUSH: this node's own part, until it is done
	flushed  uint64        // the jobs that had gone by it before
	word     *wire.Message // QFLUSH: what makes other nodes begin
	holds    int64         // QFLUSH: monotonic: one may begin until then
	note     *flushNote
	moving   *moving   // MOVEJOB: the same
	then     func()    // ADDJOB: what follows the answer; nil: nobody waits for it
	body     *store.ID // ADDJOB: the job whose new body is told to others; nil: they are asked to give it one
	behind   bool      // ADDJOB: it waits for the end of another one at this node, see [Node.behindAdd]
	most     int64     // ADDJOB: the deadline once a node has said that it waits for that (waited)
	waited   bool
	got      MeshAnswer
	pos      int // in questions.due
}

func (q *question) Sooner(than *question) bool {
	if q.deadline != than.deadline {
		return q.deadline < than.deadline
	}
	return q.number < than.number
}
func (q *question) Position() *int { return &q.pos }

// questions are the open questions of this node.
type questions struct {
	last int64                          // the number of the last one, or of the last WAITCOPIES or WAITJOB
	open table.Roster[int64, *question] // by their number. A pass begins when a node has gone, which answers no more
	due  table.Schedule[*question]      // the same ones, by their deadline
}

// firstQuestion is where a process begins to number its questions, its rounds of Watch, and those of its locks. seed is random. An answer may come late, for
// the node that gives it has much to do, or asks others first, and sends it to whatever process of the asking node is connected then. So no two processes use
// the same numbers: else it would answer a question that it doesn't know.
func firstQuestion(seed uint64) int64 { return int64(seed * 0x9e3779b97f4a7c15 >> 24) }

const questionSlice = 1000 // questions that a tick looks at after a node has gone

// newQuestion makes a question that is answered in timeout ms at most.
func (n *Node) newQuestion(timeout int64) *question {
	n.questions.last++
	return &question{number: n.questions.last, deadline: n.deadlineIn(timeout)}
}

// deadlineIn is the time, unix ms, at which so many ms are over.
func (n *Node) deadlineIn(timeout int64) int64 { return n.now + min(timeout, math.MaxInt64-n.now) }

// askMesh sends a question to nodes, and notes those that can't be asked. If no answer is to come, it returns the answer
// (now); otherwise the answer comes as an AnswerMesh effect for the client that is tied to p.
func (n *Node) askMesh(q *question, m *wire.Message, awaits wire.Kind, to []*Peer) (p Pending, now *MeshAnswer) {
	n.sendQuestion(q, m, awaits, to)
	if n.settled(q) {
		n.makeAnswer(q)
		return p, &q.got
	}
	return n.openQuestion(q), nil
}

// openQuestion notes a question that is to be answered later.
func (n *Node) openQuestion(q *question) Pending {
	n.questions.open.Put(q.number, q)
	heap.Push(&n.questions.due, q)
	n.wake = min(n.wake, q.deadline)
	return Pending{kind: meshPending, number: q.number}
}

func (n *Node) sendQuestion(q *question, m *wire.Message, awaits wire.Kind, to []*Peer) {
	q.awaits, m.Span = awaits, q.number
	s := sending{n: n, m: m}
	for _, p := range to {
		switch {
		case !n.canAsk(p, m.Kind):
			q.got.Unanswered = append(q.got.Unanswered, p.ID)
		case m.Kind == wire.AskCounts && len(q.got.Queues) == 0: // a page without names has nothing to count
		default:
			q.open = append(q.open, p)
			if m.Kind == wire.AskFlush && n.mesh.features[p.ID].Bounds {
				soon := *m
				soon.Flags |= wire.Soon
				n.send(p, &soon)
				continue
			}
			s.to(p)
		}
	}
}

// canAsk says whether a node can be asked a question of this kind.
func (n *Node) canAsk(p *Peer, kind wire.Kind) bool {
	switch f := n.mesh.features[p.ID]; {
	case !p.Connected:
		return false
	case kind == wire.AskWork:
		return true
	case kind == wire.AskFlush:
		return f.Flushes
	case kind == wire.AskJobs:
		return f.Jobs
	case kind == wire.AskDelayed:
		return f.Delays
	case kind == wire.AskMove:
		return f.Failures
	case kind == wire.Do || kind == wire.NewCopy:
		return f.Replaces
	default:
		return f.Counts
	}
}

// mayAnswer says whether a node that was asked is still there.
func (n *Node) mayAnswer(p *Peer) bool { return p.Connected && n.mesh.ByName(p.Node) == p }

// questionOf finds a question that isn't answered yet; nil: there is none.
func (n *Node) questionOf(number int64) *question {
	if q := n.questions.open.Get(number); q != nil {
		return *q
	}
	return nil
}

// dropQuestion forgets a question that is answered, or whose client has gone.
func (n *Node) dropQuestion(number int64) {
	if q := n.questionOf(number); q != nil {
		n.questions.open.Remove(number)
		heap.Remove(&n.questions.due, q.pos)
	}
}

// onAnswer takes a node's answer. An answer that no question waits for is ignored.
func (n *Node) onAnswer(p *Peer, m *wire.Message) error {
	q := n.questionOf(m.Span)
	if q == nil || q.awaits != m.Kind {
		return nil
	}
	at := slices.Index(q.open, p)
	if at < 0 {
		return nil
	}
	if m.Kind == wire.Did && m.Flags&wire.Waits != 0 {
		q.waited, q.deadline = true, max(q.deadline, q.most)
		heap.Fix(&n.questions.due, q.pos)
		return nil
	}
	if err := n.take(q, p, m); err != nil {
		return err
	}
	q.open = slices.Delete(q.open, at, at+1)
	if m.Kind == wire.Queues {
		n.askPage(q)
	}
	if q.got.Done {
		q.open = q.open[:0] // the others have nothing to do
	}
	if n.settled(q) {
		n.answerQuestion(q)
	}
	return nil
}

// settled says whether a question has all answers that are to come: none of the nodes that were asked is left to answer, and this node's
// own part is done.
func (n *Node) settled(q *question) bool {
	return q.flush == nil && q.moving == nil && !q.behind && (len(q.open) == 0 || !n.holds(q) && !slices.ContainsFunc(q.open, n.mayAnswer))
}

// holds says whether some node that was asked may still begin a flush.
func (n *Node) holds(q *question) bool { return q.holds > n.monotonic() }

// take adds a node's answer to the others.
func (n *Node) take(q *question, p *Peer, m *wire.Message) error {
	switch m.Kind {
	case wire.Work:
		return n.takeWork(q, p, m)
	case wire.Queues:
		return n.takePage(q, p, m)
	case wire.Jobs:
		return q.takeJobs(p, m)
	case wire.DelayedJobs:
		return q.readDelayedFrom(p, m)
	case wire.Flushed:
		q.got.Flushed += min(m.Round, maxCount)
		return nil
	case wire.MovedJobs:
		q.takeMoved(m)
		return nil
	case wire.Did:
		q.got.Done = m.Flags&wire.Done != 0
		return nil
	}
	return q.takeCounts(p.ID, m.Queue)
}

// tickQuestions answers questions whose time is up, and those for which no node is left to answer. Where these are very many, the
// next ticks go on.
func (n *Node) tickQuestions() {
	o, answers := &n.questions, waitSlice
	for len(o.due) > 0 && o.due[0].deadline <= n.now && answers > 0 {
		if q := o.due[0]; n.holds(q) && len(q.open) > 0 { // the clock was set
			n.holdOpen(q)
			continue
		}
		answers -= n.answerQuestion(o.due[0])
	}
	for looks := questionSlice; o.open.Left() > 0 && looks > 0 && answers > 0; looks-- {
		o.open.Pass(1, func(_ int64, q **question) bool {
			switch {
			case n.settled(*q):
				answers -= n.answerQuestion(*q)
			case n.holds(*q):
				n.holdOpen(*q)
			}
			return true
		})
	}
	if o.open.Left() > 0 {
		n.hurryTick()
	}
	if len(o.due) > 0 {
		n.wake = min(n.wake, max(o.due[0].deadline, n.now+1))
	}
}

// holdOpen makes a question end when no node can begin a flush any more, at the earliest, and then if no node is left to answer.
func (n *Node) holdOpen(q *question) {
	at := n.deadlineIn(q.holds - n.monotonic())
	if q.deadline < at || q.flush == nil && !slices.ContainsFunc(q.open, n.mayAnswer) {
		q.deadline = at
		heap.Fix(&n.questions.due, q.pos)
	}
}

// answerQuestion ends a question, and returns how much that takes of waitSlice.
func (n *Node) answerQuestion(q *question) (cost int) {
	cost = 1 + (len(q.got.Queues)+len(q.got.Work)+len(q.got.Jobs)+len(q.got.Delayed))/answerPiece
	n.dropQuestion(q.number)
	n.makeAnswer(q)
	if q.awaits == wire.Did {
		n.hasDone(q)
		return cost
	}
	n.effects = append(n.effects, Effect{Kind: AnswerMesh, Client: q.client, Answer: &q.got})
	return cost
}

// makeAnswer makes the answer from what was gathered.
func (n *Node) makeAnswer(q *question) {
	if q.awaits == wire.Work {
		q.got.Work = chooseJobs(q.got.Work, q.count)
	}
	if q.awaits == wire.DelayedJobs {
		q.got.chooseDelayed(q.count)
	}
	for i := range q.got.Queues {
		q.got.Queues[i].conclude()
	}
	for _, p := range q.open {
		q.got.Unanswered = append(q.got.Unanswered, p.ID)
	}
	switch q.awaits { // only the node of the page was asked
	case wire.Queues:
		n.cantAnswer(q, wire.AskCounts)
	case wire.Jobs:
		n.cantAnswer(q, wire.AskJobs)
	}
	if q.moving != nil {
		q.got.Moved += q.moving.moved
	}
	if q.awaits == wire.MovedJobs && q.count > 0 {
		q.got.Moved = min(q.got.Moved, uint64(q.count)) // a job that waited at two nodes is one (moved_at_twice)
	}
	if q.flush != nil {
		q.got.Flushed += q.flush.jobs - q.flushed
	}
	if q.note != nil {
		n.noteAway(q.note, func(p *Peer) bool { return slices.Contains(q.got.Unanswered, p.ID) })
	}
	if q.flush != nil || q.moving != nil {
		q.got.Unanswered = append(q.got.Unanswered, n.self)
	}
}

// cantAnswer notes the nodes that can't be asked such a question.
func (n *Node) cantAnswer(q *question, kind wire.Kind) {
	for _, p := range n.mesh.All() {
		if !n.canAsk(p, kind) && !slices.Contains(q.open, p) {
			q.got.Unanswered = append(q.got.Unanswered, p.ID)
		}
	}
}
