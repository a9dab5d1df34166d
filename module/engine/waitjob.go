package engine

import (
	"cmp"
	"container/heap"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// WAITJOB: a client waits, at any node, until jobs have ended. Its node asks all others by Watch what they know of the jobs, in rounds, and
// again when a node connects. A node that knows a job remembers for a while who asked, and tells them by Ended when the job ends there.

const (
	watchAgainMS = 5_000     // between two rounds
	watchForMS   = 20_000    // how long a node remembers who asked
	watchSlice   = 1_000     // jobs that one tick looks at, or asks about
	endedPiece   = 256 << 10 // bytes of results in a message
	endedMost    = 2 << 20   // bytes of results that one call sends; the next ticks go on
	answerMost   = 64 << 20  // bytes of results in an answer
	detailsMost  = 16 << 20  // bytes of results that are held for one client that waits,
	detailsInAll = 64 << 20  // and for all of them
	soonestMost  = 1000      // clients whose wait one call ends, or whose job it notes as ended
)

// MaxWaitIDs is how many jobs a WAITJOB can wait for.
const MaxWaitIDs = 1000

// JobEnd is what WAITJOB answers of a job.
type JobEnd struct {
	ID        store.ID
	Outcome   Outcome
	HasDetail bool
	Detail    []byte // the result, or the reason
	until     int64  // unix ms: until when this node keeps the detail in its store; 0: it doesn't
}

// jobWaits are the WAITJOBs of this node, and the nodes that ask for those of theirs.
type jobWaits struct {
	by    map[int64]*jobWait
	ends  table.Schedule[*jobWait]             // by their deadline
	jobs  table.Roster[store.ID, *watchedJob]  // the jobs that clients wait for
	far   table.Roster[store.ID, []farWatcher] // the jobs here that other nodes ask for
	news  map[store.ID]JobEnd                  // ends of such jobs that are still to be told
	order []store.ID                           // of news
	over  []store.ID                           // jobs of which it is known how they have ended, and which waits still have to hear that
	ready []*jobWait                           // waits that are over
	owed  table.Roster[owedEnd, int64]         // what was asked, and is too large to be told at once: in which round
	doubt []store.ID                           // jobs of which a node has told that they expired for it, or went: the others are to be asked
	held  int                                  // bytes of details that waits hold
	lost  bool                                 // all jobs were forgotten at once: those that others ask for are to be looked at
	round int64                                // the number of the last round
	next  int64                                // unix ms: when the next round begins
	sweep int64                                // unix ms: when far is looked through next
}

// jobWait is a WAITJOB that waits.
type jobWait struct {
	number   int64
	client   any
	deadline int64 // unix ms
	any      bool
	isReady  bool
	jobs     []jobWaited
	place    map[store.ID]int // in jobs
	open     int              // jobs that haven't ended
	bytes    int              // of the details that it holds
	pos      int              // in jobWaits.ends
}

type jobWaited struct {
	JobEnd             // without the detail
	held   *heldDetail // nil: when the client is answered, the detail is looked up
	pos    int         // in watchedJob.waits; -1: the job has ended, or is named twice
}

// heldDetail is the detail of an end for waits that go on.
type heldDetail struct {
	data  []byte
	waits int // that hold it
}

func (w *jobWait) Sooner(than *jobWait) bool {
	if w.deadline != than.deadline {
		return w.deadline < than.deadline
	}
	return w.number < than.number
}
func (w *jobWait) Position() *int { return &w.pos }

// watchedJob is a job for which clients of this node wait.
type watchedJob struct {
	waits   []*jobWait
	end     JobEnd // what is to be told to those of waits that haven't heard it; Outcome 0: it hasn't ended
	held    *heldDetail
	round   int64 // the last one in which nodes were asked
	heard   []wire.Node
	waiting bool    // a node has said in this round that the job hasn't ended
	expired *JobEnd // what a node has found by itself; nil: none has. Other nodes may know better
	settled bool    // end is to be told to those of waits that are left (jobWaits.over)
}

// farWatcher is a node that asks for a job.
type farWatcher struct {
	node  wire.Node
	until int64 // unix ms
}

type owedEnd struct {
	id   store.ID
	node wire.Node
}

// endOf is what this node knows of a job. The detail is the job's memory.
func (n *Node) endOf(id *store.ID) JobEnd {
	end := JobEnd{ID: *id, Outcome: OutcomeWaiting}
	j := n.store.Lookup(id)
	if j == nil {
		return n.endOfUnknown(id)
	}
	if e, ok := EndingOf(j); ok {
		end.Outcome, end.HasDetail = e.Outcome, e.HasDetail
		if e.HasDetail {
			end.Detail, end.until = j.Body(), e.until
		}
		return end
	}
	switch wish, asked := CancelOf(j); {
	case j.State == store.StateAcked && cancelled(j):
		end.Outcome = OutcomeCancelled
	case j.State == store.StateAcked:
		end.Outcome = OutcomeDone
	case asked:
		end.Outcome, end.HasDetail, end.Detail = OutcomeCancelled, len(wish.Reason) > 0, wish.Reason
	case j.DeadLetter():
		end.Outcome = OutcomeDead
		if f, ok := FailureOf(j); ok && len(f.Reason) > 0 {
			end.HasDetail, end.Detail = true, f.Reason
		}
	}
	return end
}

// endOfUnknown is endOf for a job that isn't here.
func (n *Node) endOfUnknown(id *store.ID) JobEnd {
	end := JobEnd{ID: *id, Outcome: OutcomeUnknown}
	switch {
	case n.store.Done(id):
		end.Outcome = OutcomeDone
	case n.tombstones.cancelled(id):
		end.Outcome = OutcomeCancelled
	case n.maybeDormant(id), n.delegated.Has(*id), n.pendingAdds[*id] != nil, n.uniqueMesh.adds[*id] != nil:
		end.Outcome = OutcomeWaiting
	}
	return end
}

// JobEnds is what this node alone knows of some jobs: for MULTI, scripts and replicas.
func (n *Node) JobEnds(ids []store.ID) []JobEnd {
	ends := make([]JobEnd, len(ids))
	for i := range ids {
		if ends[i] = n.endOf(&ids[i]); ends[i].Outcome == OutcomeUnknown && len(n.mesh.All()) > 0 {
			ends[i].Outcome = OutcomeWaiting // another node may know it
		}
	}
	return fitting(ends)
}

// fitting leaves out the results beyond answerMost.
func fitting(ends []JobEnd) []JobEnd {
	bytes := 0
	for i := range ends {
		bytes = ends[i].fit(bytes)
		ends[i].until = 0
	}
	return ends
}

// fit leaves the detail out if there is no room for it beside so many bytes, and returns how many there are with it.
func (e *JobEnd) fit(beside int) (bytes int) {
	if bytes = beside + len(e.Detail); bytes > answerMost {
		e.HasDetail, e.Detail = false, nil
		return beside
	}
	return bytes
}

// WaitJobs waits until all of some jobs have ended, with one of them, for timeout ms at most (0: without limit). It returns the answer, or the
// answer comes as an AnswerMesh effect for the client that is tied to p.
func (n *Node) WaitJobs(ids []store.ID, one bool, timeout int64) (p Pending, now []JobEnd) {
	n.questions.last++
	w := &jobWait{number: n.questions.last, deadline: math.MaxInt64, any: one, place: make(map[store.ID]int, len(ids))}
	if timeout > 0 {
		w.deadline = n.deadlineIn(timeout)
	}
	n.jobWaits.round++
	var ask []store.ID
	for i := range ids {
		w.jobs = append(w.jobs, jobWaited{JobEnd: JobEnd{ID: ids[i], Outcome: OutcomeWaiting}, pos: -1})
		if _, twice := w.place[ids[i]]; twice {
			continue
		}
		w.place[ids[i]] = i
		if end := n.endOf(&ids[i]); n.isFinal(&end) {
			w.jobs[i].JobEnd = end.withoutDetail()
			continue
		}
		w.open++
		ask = append(ask, ids[i])
	}
	if w.isOver() {
		return p, n.endsOf(w)
	}
	for i := range w.jobs {
		if w.jobs[i].HasDetail {
			var held *heldDetail
			end := n.endOf(&ids[i]).own() // the detail may be the job's memory
			n.hold(w, i, &end, &held)
		}
	}
	for i := range ask {
		n.enterWait(w, &ask[i])
	}
	n.watch(ask)
	for i := range ask {
		n.decideEnd(ask[i])
	}
	c := &n.jobWaits
	if c.by == nil {
		c.by = map[int64]*jobWait{}
	}
	c.by[w.number] = w
	heap.Push(&c.ends, w)
	n.wake = min(n.wake, w.deadline, c.next)
	return Pending{kind: jobPending, number: w.number}, nil
}

// isFinal says whether a job's end can be told without asking other nodes.
func (n *Node) isFinal(end *JobEnd) bool {
	switch end.Outcome {
	case OutcomeWaiting:
		return false
	case OutcomeUnknown:
		return len(n.mesh.All()) == 0
	case OutcomeExpired:
		return n.mesh.Alone()
	case OutcomeDone, OutcomeCancelled: // a node that only remembers the end knows no result, and no reason
		return end.HasDetail || n.mesh.Alone() || n.store.Lookup(&end.ID) != nil
	}
	return true
}

func (e JobEnd) withoutDetail() JobEnd {
	e.Detail = nil
	return e
}

// own takes a detail out of the job's memory, but not one that is kept there: that may be large, and is looked up when it is needed.
func (e JobEnd) own() JobEnd {
	if e.Detail = slices.Clone(e.Detail); e.until > 0 {
		e.Detail = nil
	}
	return e
}

func (w *jobWait) isOver() bool { return w.open == 0 || w.any && w.open < len(w.place) }

// enterWait makes a wait one of those for a job.
func (n *Node) enterWait(w *jobWait, id *store.ID) {
	if n.jobWaits.jobs.Len() == 0 {
		n.jobWaits.next = n.now + watchAgainMS
	}
	k := *n.jobWaits.jobs.Make(*id, nil)
	if k == nil {
		k = &watchedJob{}
		n.jobWaits.jobs.Put(*id, k)
	}
	w.jobs[w.place[*id]].pos = len(k.waits)
	k.waits = append(k.waits, w)
}

// leaveWait undoes enterWait.
func (n *Node) leaveWait(w *jobWait, id *store.ID) {
	job := &w.jobs[w.place[*id]]
	at := n.jobWaits.jobs.Get(*id)
	if job.pos < 0 || at == nil {
		return
	}
	k := *at
	last := k.waits[len(k.waits)-1]
	k.waits[job.pos] = last
	last.jobs[last.place[*id]].pos = job.pos
	k.waits[len(k.waits)-1] = nil
	k.waits = k.waits[:len(k.waits)-1]
	job.pos = -1
	if len(k.waits) == 0 {
		n.jobWaits.jobs.Remove(*id)
	}
}

// watch asks the other nodes for some jobs, in the round that is under way, and looks what is known here.
func (n *Node) watch(ids []store.ID) {
	round := n.jobWaits.round
	for i := range ids {
		at := n.jobWaits.jobs.Get(ids[i])
		if at == nil {
			continue // nobody waits for it any more
		}
		k := *at
		k.round, k.heard, k.waiting = round, k.heard[:0], false
		n.takeEnd(k, n.endOf(&ids[i]))
	}
	for some := range slices.Chunk(ids, idsMost) {
		m := wire.Message{Kind: wire.Watch, Span: round}
		for i := range some {
			m.Queue = append(m.Queue, some[i][:]...)
		}
		n.tellWhere(&m, func(p *Peer) bool { return n.mesh.features[p.ID].Results })
	}
}

// takeEnd notes what a node knows of a job. The better outcome counts, whichever is heard first; of two that are the same, the one with a detail.
func (n *Node) takeEnd(k *watchedJob, end JobEnd) {
	switch end.Outcome {
	case OutcomeUnknown:
	case OutcomeWaiting:
		k.waiting = true
	case OutcomeExpired:
		if e := end.own(); k.expired == nil {
			k.expired = &e
		}
	default:
		if was := &k.end; was.Outcome == 0 || end.Outcome < was.Outcome || end.Outcome == was.Outcome && end.HasDetail && !was.HasDetail {
			k.end = end.own()
		}
	}
}

// decideEnd looks whether it is known how a job has ended. Whoever waits for it is told by the next call's end.
func (n *Node) decideEnd(id store.ID) {
	at := n.jobWaits.jobs.Get(id)
	if at == nil {
		return
	}
	k := *at
	if k.settled {
		return
	}
	known, connected := true, true // whether all known nodes have answered, and all connected ones
	for _, p := range n.mesh.All() {
		if !slices.Contains(k.heard, p.Node) {
			known = false
			connected = connected && (!p.Connected || !n.mesh.features[p.ID].Results)
		}
	}
	switch {
	case k.end.Outcome != 0 && (k.end.HasDetail && k.end.Outcome == OutcomeDone || k.end.Outcome > OutcomeCancelled || connected):
	case k.end.Outcome != 0 || k.waiting:
		return
	case k.expired != nil && connected:
		k.end = *k.expired
	case k.expired == nil && known:
		k.end = JobEnd{ID: id, Outcome: OutcomeUnknown}
	default:
		return
	}
	k.settled = true
	n.jobWaits.over = append(n.jobWaits.over, id)
}

// settleWaits tells the waits for a job how it has ended, as many as the budget has, and returns what is left of that.
func (n *Node) settleWaits(id store.ID, budget int) (left int) {
	at := n.jobWaits.jobs.Get(id)
	if at == nil || !(*at).settled {
		return budget - 1 // those who waited have gone
	}
	k := *at
	for ; len(k.waits) > 0 && budget > 0; budget-- {
		w := k.waits[len(k.waits)-1]
		at := w.place[id]
		w.jobs[at].JobEnd = k.end.withoutDetail()
		n.hold(w, at, &k.end, &k.held)
		n.leaveWait(w, &id)
		if w.open--; w.isOver() && !w.isReady {
			w.isReady = true
			n.jobWaits.ready = append(n.jobWaits.ready, w)
		}
	}
	return budget
}

// hold holds the detail of an end for a wait. It doesn't hold one that this node keeps for as long as the wait may last, nor one for which there
// is no room: they are looked up when the client is answered. A wait that this end ends always gets it. shared is what other waits hold.
func (n *Node) hold(w *jobWait, at int, end *JobEnd, shared **heldDetail) {
	c, last := &n.jobWaits, w.any || w.open == 1 && w.jobs[at].pos >= 0
	if !end.HasDetail || end.until >= w.deadline || last && end.until > 0 {
		return
	}
	if *shared == nil {
		detail := end.Detail
		if end.until > 0 {
			detail = slices.Clone(n.endOf(&end.ID).Detail)
		}
		*shared = &heldDetail{data: detail}
	}
	d, more := *shared, 0
	if d.waits == 0 {
		more = len(d.data)
	}
	if !last && (w.bytes+len(d.data) > detailsMost || c.held+more > detailsInAll) {
		return
	}
	c.held += more
	w.bytes += len(d.data)
	w.jobs[at].held = d
	d.waits++
}

// letGo undoes hold.
func (n *Node) letGo(w *jobWait) {
	for i := range w.jobs {
		d := w.jobs[i].held
		if d == nil {
			continue
		}
		if d.waits--; d.waits == 0 {
			n.jobWaits.held -= len(d.data)
		}
		w.jobs[i].held = nil
	}
}

// noteEnd notes that a job has ended, if somebody waits for it. The detail is copied. That of a job whose outcome is kept needn't be given.
func (n *Node) noteEnd(id store.ID, o Outcome, detail []byte, hasDetail bool) {
	c := &n.jobWaits
	if !n.endsAwaited() || c.jobs.Get(id) == nil && c.far.Get(id) == nil {
		return
	}
	if c.news == nil {
		c.news = map[store.ID]JobEnd{}
	}
	if _, noted := c.news[id]; !noted {
		c.order = append(c.order, id)
	}
	c.news[id] = JobEnd{ID: id, Outcome: o, HasDetail: hasDetail, Detail: slices.Clone(detail)}
}

// endsAwaited says whether somebody waits for the end of any job.
func (n *Node) endsAwaited() bool { return n.jobWaits.jobs.Len()+n.jobWaits.far.Len() > 0 }

// noteGone notes that this node doesn't know a job any more, if nothing else was noted: another node may have it, or know of its end.
func (n *Node) noteGone(id *store.ID) {
	if !n.endsAwaited() || n.passive || n.loading {
		return
	}
	if _, noted := n.jobWaits.news[*id]; !noted {
		n.noteEnd(*id, OutcomeUnknown, nil, false)
	}
}

// noteEnded is noteEnd for a job that is acknowledged or cancelled, without a result.
func (n *Node) noteEnded(j *store.Job) {
	if !n.endsAwaited() {
		return
	}
	if _, noted := n.jobWaits.news[j.ID]; noted && j.State == store.StateAcked {
		return // by something that knows more
	}
	o := OutcomeDone
	if cancelled(j) {
		o = OutcomeCancelled
	}
	n.noteEnd(j.ID, o, nil, false)
}

// anyToTell says whether [Node.tellEnds] has something to do.
func (w *jobWaits) anyToTell() bool { return len(w.order)+len(w.over)+len(w.ready) > 0 }

// tellEnds tells those that wait of the ends that were noted, and answers clients whose wait is over.
func (n *Node) tellEnds() {
	c := &n.jobWaits
	to := map[wire.Node]*endedMessage{}
	bytes := 0
	for budget := soonestMost; len(c.order) > 0 && budget > 0 && bytes < endedMost; budget-- {
		id := c.order[0]
		end := n.endNoted(id)
		c.order = c.order[1:]
		delete(c.news, id)
		if at := c.jobs.Get(id); at != nil {
			bytes += len(end.Detail)
			n.takeTold(id, *at, end)
		}
		far := c.far.Get(id)
		if far == nil {
			continue
		}
		for _, f := range *far {
			bytes += len(end.Detail)
			n.addEnded(to, f.node, 0, &end)
		}
		if end.Outcome != OutcomeDead {
			c.far.Remove(id)
		}
	}
	n.sendEnded(to)
	n.askDoubted()
	for budget := soonestMost; len(c.over) > 0 && budget > 0; {
		if budget = n.settleWaits(c.over[0], budget); budget > 0 {
			c.over = c.over[1:]
		}
	}
	for answers := waitSlice; len(c.ready) > 0 && answers > 0; {
		w := c.ready[0]
		if c.ready = c.ready[1:]; c.by[w.number] == w {
			answers -= n.answerJobWait(w)
		}
	}
	if c.anyToTell() {
		n.hurryTick()
	}
}

// endNoted is the end of a job that was noted. The detail of an outcome that is kept, and of a dead letter, is the job's memory.
func (n *Node) endNoted(id store.ID) JobEnd {
	end := n.jobWaits.news[id]
	if j := n.store.Lookup(&id); j != nil && (j.Kept() || end.Outcome == OutcomeDead) {
		if now := n.endOf(&id); now.Outcome == end.Outcome {
			return now
		}
	}
	return end
}

// endedMessage is an Ended that is being made.
type endedMessage struct {
	wire.Message
}

// addEnded adds an end to those that a node is told of. What is full is sent.
func (n *Node) addEnded(to map[wire.Node]*endedMessage, node wire.Node, round int64, end *JobEnd) {
	m := to[node]
	if m == nil {
		m = &endedMessage{wire.Message{Kind: wire.Ended, Span: round}}
		to[node] = m
	}
	m.Queue = end.append(m.Queue)
	if len(m.Queue) >= endedPiece {
		n.send(n.mesh.ByName(node), &m.Message)
		m.Queue = nil
	}
}

func (n *Node) sendEnded(to map[wire.Node]*endedMessage) {
	for _, p := range n.mesh.All() { // in an order that doesn't change
		if m := to[p.Node]; m != nil && len(m.Queue) > 0 {
			n.send(p, &m.Message)
		}
	}
}

// An end in an Ended has the job's ID, the outcome, 1 if there is a detail, and then its length (a varint) and its bytes.
func (e *JobEnd) append(b []byte) []byte {
	b = append(b, e.ID[:]...)
	b = append(b, byte(e.Outcome), 0)
	if !e.HasDetail {
		return b
	}
	b[len(b)-1] = 1
	b = binary.AppendUvarint(b, uint64(len(e.Detail)))
	return append(b, e.Detail...)
}

// readEnd reads an end, and returns what follows it.
func readEnd(b []byte) (e JobEnd, rest []byte, err error) {
	whole := len(b)
	if len(b) < idBytes+2 {
		return e, nil, fmt.Errorf("%w: an end is cut off, %d bytes are left", wire.ErrMessage, whole)
	}
	b = b[copy(e.ID[:], b):]
	e.Outcome, e.HasDetail, b = Outcome(b[0]), b[1] != 0, b[2:]
	if e.Outcome == 0 || e.Outcome >= outcomes {
		return e, nil, fmt.Errorf("%w: outcome %d of a job", wire.ErrMessage, e.Outcome)
	}
	if !e.HasDetail {
		return e, b, nil
	}
	size, used := binary.Uvarint(b)
	if used <= 0 || size > MaxResult || size > uint64(len(b)-used) {
		return e, nil, fmt.Errorf("%w: the detail of an end is cut off, or too long, %d bytes before its end", wire.ErrMessage, whole)
	}
	e.Detail = b[used : used+int(size)]
	return e, b[used+int(size):], nil
}

// onWatch answers what this node knows of some jobs, and remembers who asks for those that haven't ended.
func (n *Node) onWatch(p *Peer, m *wire.Message) error {
	if len(m.Queue)%idBytes != 0 || len(m.Queue) > idsMost*idBytes {
		return wire.ErrMessage
	}
	to, sent := map[wire.Node]*endedMessage{}, 0
	for raw := range slices.Chunk(m.Queue, idBytes) {
		id := store.ID(raw)
		end := n.endOf(&id)
		if end.Outcome == OutcomeWaiting || end.Outcome == OutcomeDead {
			n.remember(p, id)
		}
		if sent += len(end.Detail); sent > endedMost {
			n.jobWaits.owed.Put(owedEnd{id, p.Node}, m.Span)
			n.hurryTick()
			continue
		}
		n.addEnded(to, p.Node, m.Span, &end)
	}
	n.sendEnded(to)
	return nil
}

// remember notes that a node asks for a job.
func (n *Node) remember(p *Peer, id store.ID) {
	far := n.jobWaits.far.Make(id, nil)
	at := slices.IndexFunc(*far, func(f farWatcher) bool { return f.node == p.Node })
	if at < 0 {
		at = len(*far)
		*far = append(*far, farWatcher{node: p.Node})
	}
	(*far)[at].until = n.now + watchForMS
}

// onEnded takes what another node knows of jobs.
func (n *Node) onEnded(p *Peer, m *wire.Message) error {
	for rest := m.Queue; len(rest) > 0; {
		var end JobEnd
		var err error
		if end, rest, err = readEnd(rest); err != nil {
			return err
		}
		at := n.jobWaits.jobs.Get(end.ID)
		if at == nil {
			continue
		}
		k := *at
		switch {
		case m.Span == k.round && !slices.Contains(k.heard, p.Node):
			k.heard = append(k.heard, p.Node)
		case m.Span != 0: // the answer to a former round: the job may have gone to that node since
			if end.Outcome == OutcomeUnknown || end.Outcome == OutcomeWaiting {
				continue
			}
		}
		if m.Span == 0 {
			n.takeTold(end.ID, k, end)
			continue
		}
		n.takeEnd(k, end)
		n.decideEnd(end.ID)
	}
	n.askDoubted()
	return nil
}

// takeTold takes what a node tells unasked. If it has found by itself that a job expired, or doesn't know the job any more, all others are asked
// whether they know better.
func (n *Node) takeTold(id store.ID, k *watchedJob, end JobEnd) {
	if n.takeEnd(k, end); end.Outcome == OutcomeExpired || end.Outcome == OutcomeUnknown {
		n.jobWaits.doubt = append(n.jobWaits.doubt, id)
		return
	}
	n.decideEnd(id)
}

// askDoubted asks all others of jobs that have expired for one node, or aren't there any more, in a round of their own.
func (n *Node) askDoubted() {
	ids := n.jobWaits.doubt
	if len(ids) == 0 {
		return
	}
	n.jobWaits.doubt = nil
	n.jobWaits.round++
	n.watch(ids)
	for i := range ids {
		n.decideEnd(ids[i])
	}
}

// endsOf is the answer of a WAITJOB. The details are the jobs' memory, or that of waits.
func (n *Node) endsOf(w *jobWait) []JobEnd {
	ends := make([]JobEnd, len(w.jobs))
	for i := range w.jobs {
		job := &w.jobs[w.place[w.jobs[i].ID]]
		ends[i] = job.JobEnd
		if ends[i].Outcome == OutcomeDead {
			if end := n.endOf(&ends[i].ID); end.Outcome == OutcomeWaiting { // it was revived meanwhile
				ends[i] = end
			}
		}
		if !ends[i].HasDetail {
			continue
		}
		if job.held != nil {
			ends[i].Detail = job.held.data
		} else if end := n.endOf(&ends[i].ID); end.HasDetail && end.Outcome == ends[i].Outcome {
			ends[i].Detail = end.Detail
		} else {
			ends[i].HasDetail = false
		}
	}
	return fitting(ends)
}

// JobEndsSoFar is what a WAITJOB that waits would answer now.
func (n *Node) JobEndsSoFar(p Pending) []JobEnd {
	if w := n.jobWaits.by[p.number]; w != nil {
		return n.endsOf(w)
	}
	return nil
}

// answerJobWait ends a WAITJOB, and returns how much that takes of waitSlice.
func (n *Node) answerJobWait(w *jobWait) (cost int) {
	ends := n.endsOf(w)
	n.dropJobWait(w.number)
	cost = 1 + len(ends)/answerPiece
	for i := range ends {
		cost += len(ends[i].Detail) / endedPiece
	}
	n.effects = append(n.effects, Effect{Kind: AnswerMesh, Client: w.client, Answer: &MeshAnswer{Ends: ends}})
	return cost
}

func (n *Node) dropJobWait(number int64) {
	c := &n.jobWaits
	w := c.by[number]
	if w == nil {
		return
	}
	delete(c.by, number)
	heap.Remove(&c.ends, w.pos)
	for i := range w.jobs {
		n.leaveWait(w, &w.jobs[i].ID)
	}
	n.letGo(w)
}

// watchMet begins a new round: a node has connected.
func (n *Node) watchMet() {
	if n.jobWaits.jobs.Len() > 0 {
		n.jobWaits.next = n.now
		n.hurryTick()
	}
}

// tickJobWaits ends waits whose time is up, and goes on with rounds.
func (n *Node) tickJobWaits() {
	c := &n.jobWaits
	for answers := waitSlice; len(c.ends) > 0 && c.ends[0].deadline <= n.now && answers > 0; {
		answers -= n.answerJobWait(c.ends[0])
	}
	n.tickOwed()
	if c.lost {
		c.next, c.sweep, c.lost = n.now, n.now, false
	}
	if c.far.Len() > 0 {
		n.tickFar()
	}
	if c.jobs.Len() == 0 {
		return
	}
	if n.now >= c.next {
		c.next = n.now + watchAgainMS
		c.round++
		c.jobs.Begin()
	}
	var ids []store.ID
	c.jobs.Pass(watchSlice, func(id store.ID, k **watchedJob) bool {
		if !(*k).settled {
			ids = append(ids, id)
		}
		return true
	})
	n.watch(ids)
	for i := range ids {
		n.decideEnd(ids[i])
	}
	if c.jobs.Left() > 0 || c.anyToTell() {
		n.hurryTick()
	}
	n.wake = min(n.wake, c.next)
	if len(c.ends) > 0 {
		n.wake = min(n.wake, max(c.ends[0].deadline, n.now+1))
	}
}

// tickOwed goes on with answers to Watch that were too large for one call.
func (n *Node) tickOwed() {
	c := &n.jobWaits
	for sent := 0; c.owed.Len() > 0 && sent < endedMost; {
		o, round := c.owed.Next()
		end, to := n.endOf(&o.id), map[wire.Node]*endedMessage{}
		n.addEnded(to, o.node, *round, &end)
		n.sendEnded(to)
		c.owed.Remove(o)
		sent += max(len(end.Detail), 1)
	}
	if c.owed.Len() > 0 {
		n.hurryTick()
	}
}

// tickFar forgets nodes that have asked for a job, and don't any more.
func (n *Node) tickFar() {
	c := &n.jobWaits
	if n.now >= c.sweep {
		c.sweep = n.now + watchAgainMS
		c.far.Begin()
	}
	c.far.Pass(watchSlice, func(id store.ID, far *[]farWatcher) bool {
		if n.store.Lookup(&id) == nil && n.endOfUnknown(&id).Outcome == OutcomeUnknown {
			n.noteGone(&id)
		}
		*far = slices.DeleteFunc(*far, func(f farWatcher) bool { return f.until <= n.now })
		return len(*far) > 0
	})
	if c.far.Left() > 0 {
		n.hurryTick()
	}
	n.wake = min(n.wake, cmp.Or(c.sweep, n.now+1))
}

// WaitingForJobs counts the clients that wait in WAITJOB.
func (n *Node) WaitingForJobs() int { return len(n.jobWaits.by) }
