package engine

import (
	"cmp"
	"encoding/binary"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Results. A job's outcome can be kept for a time after its end. Such a job stays acknowledged, in its queue, until that time is over; its
// body is its result then, or the reason of its end. All holders keep it: the SetAck that tells them of the end becomes a SetEnd, which
// also has the outcome. They confirm it as any acknowledgement, which ends the telling, and not the keeping.
//
// If two sides of a partition ended a job, the holders agree on one outcome (better).

// Outcome says how a job has ended. The first four numbers are saved, and sent.
type Outcome uint8

// The outcomes.
const (
	OutcomeDone      Outcome = iota + 1 // it was acknowledged
	OutcomeCancelled                    // by CANCELJOB
	OutcomeExpired                      // its life was over
	OutcomeDropped                      // by ONBUSY, ONDEAD or DEADTTL 0
	OutcomeDead                         // it is a dead letter, which may be revived
	OutcomeWaiting                      // it hasn't ended, as far as is known
	OutcomeUnknown                      // nobody knows it
	outcomes
)

var outcomeNames = [outcomes]string{
	OutcomeDone: "done", OutcomeCancelled: "cancelled", OutcomeExpired: "expired", OutcomeDropped: "dropped", OutcomeDead: "dead",
	OutcomeWaiting: "waiting", OutcomeUnknown: "unknown",
}

// String is the outcome as SHOW and WAITJOB have it; of a later release's outcome, "unknown".
func (o Outcome) String() string {
	if o == 0 || o >= outcomes {
		return "unknown"
	}
	return outcomeNames[o]
}

// Limits of results.
const (
	MaxResult   = 1 << 19 // bytes
	DefaultKeep = 3600    // seconds that a result is kept, unless somebody says otherwise
)

// Result is what a client says with ACKJOB.
type Result struct {
	Has     bool   // whether there is a result
	Data    []byte // at most MaxResult bytes
	HasKeep bool
	Keep    int64 // seconds, 0 to MaxSeconds. Without HasKeep the job or its queue's settings tell
}

// Ending is the outcome of a job that has ended, as it is kept.
type Ending struct {
	Outcome   Outcome
	At        int64 // unix ms
	For       int64 // seconds for which it is kept
	HasDetail bool  // whether the job's body is its result, or the reason of its end
	until     int64 // unix ms, by this node's clock
	node      wire.Node
	own       bool // this node found the end by itself, and other nodes may know better: a job that expired, or was dropped with another
}

// The flags of a TagEnd.
const (
	endHasDetail = 1 << iota
	endOwn
)

// A TagEnd of a job that hasn't ended has the seconds for which its outcome is to be kept (32 bits, little endian). Of one that has, it has when
// it ended and until when that is kept (unix ms), the seconds (32 bits), the outcome, flags, and the node where it ended.
func (e *Ending) append(b []byte) []byte {
	flags := byte(0)
	if e.HasDetail {
		flags |= endHasDetail
	}
	if e.own {
		flags |= endOwn
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(e.At))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.until))
	b = binary.LittleEndian.AppendUint32(b, uint32(e.For))
	b = append(b, byte(e.Outcome), flags)
	return binary.BigEndian.AppendUint64(b, uint64(e.node))
}

func readEnding(b []byte) (e Ending, ok bool) {
	if len(b) < store.EndLen {
		return e, false
	}
	return Ending{
		At: int64(binary.LittleEndian.Uint64(b)), until: int64(binary.LittleEndian.Uint64(b[8:])), For: int64(binary.LittleEndian.Uint32(b[16:])),
		Outcome: Outcome(b[20]), HasDetail: b[21]&endHasDetail != 0, own: b[21]&endOwn != 0, node: wire.Node(binary.BigEndian.Uint64(b[22:])),
	}, true
}

// EndingOf returns the outcome of a job that has ended; ok is false if it is none, or its outcome isn't kept.
func EndingOf(j *store.Job) (e Ending, ok bool) {
	if !j.Kept() {
		return e, false
	}
	return readEnding(j.Extra(store.TagEnd))
}

// ownView says whether the outcome of a job is kept as this node alone has found it.
func ownView(j *store.Job) bool {
	e, ok := EndingOf(j)
	return ok && e.own
}

// lookToEnd finds a job that a client ends. It forgets what this node alone has found of the job's end: the client knows better, and the other
// nodes, which may have the job, are to hear of it as of the end of any job that isn't known here.
func (n *Node) lookToEnd(id *store.ID) *store.Job {
	j := n.store.Lookup(id)
	if j != nil && !n.mesh.Alone() && ownView(j) {
		n.remove(j)
		return nil
	}
	return j
}

// same says whether two nodes keep the same outcome.
func (e *Ending) same(than *Ending) bool {
	return e.Outcome == than.Outcome && e.At == than.At && e.node == than.node && e.own == than.own
}

// better says whether an outcome counts more than another one of the same job. All nodes agree on that: a job that was done is done; of two
// results the earlier counts, and of two from the same millisecond that of the node with the smaller ID.
func (e *Ending) better(than *Ending) bool {
	if e.own != than.own {
		return than.own
	}
	return cmp.Or(cmp.Compare(e.Outcome, than.Outcome), cmp.Compare(e.At, than.At), cmp.Compare(e.node, than.node)) < 0
}

// keepTime returns for how many seconds the outcome of a job is to be kept that is about to end. r is what ACKJOB says; nil: nothing.
func (n *Node) keepTime(j *store.Job, r *Result) int64 {
	if r != nil && r.HasKeep {
		return r.Keep
	}
	if j != nil {
		if keep, ok := KeepOf(j); ok {
			return keep
		}
		if n.policies.Keeping {
			if p := n.policies.Of(j.Queue.NameBytes()); p != nil && p.Set&SetKeep != 0 {
				return p.Keep
			}
		}
	}
	if r != nil && r.Has {
		return DefaultKeep
	}
	return 0
}

// KeepOf returns for how many seconds the outcome of a job is to be kept, if its ADDJOB said so.
func KeepOf(j *store.Job) (seconds int64, ok bool) {
	if j.Parts == 0 {
		return 0, false
	}
	e := j.Extra(store.TagEnd)
	if len(e) != store.KeepLen {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint32(e)), true
}

// Finish is [Node.Ack] for a client that says what the job's result is, or for how long its outcome is to be kept.
func (n *Node) Finish(id *store.ID, r *Result) bool {
	j := n.lookToEnd(id)
	if j == nil {
		n.evictForEnd()
		n.endUnknown(id, false, r)
		return false
	}
	if ad := n.pendingAddOf(id); ad != nil {
		n.worked(j, ad)
	}
	keep := n.keepTime(j, r)
	counted := j.State != store.StateAcked
	switch {
	case counted:
		n.nameEnds(id)
		n.endsDone(j)
		if !n.mesh.Alone() {
			j = n.tellsNamed(n.tellsTakers(n.tellsDependents(j)))
		}
		if j.Holders() == 0 && keep == 0 {
			if j.Parts > 0 || n.store.Edges() > 0 {
				n.ended(j, false, origin{})
			}
			if n.store.Dependents(id) == nil {
				n.forgetJob(j, nil) // there is nobody to tell
				return true
			}
		}
		n.acknowledge(j, nil)
		if keep > 0 {
			j = n.keep(j, n.endNow(OutcomeDone, keep, r), r.data())
		}
		n.tellCreator(j)
	case keep > 0 && r != nil && !j.Kept() && !cancelled(j): // the first word had no result
		j = n.keep(j, n.endNow(OutcomeDone, keep, r), r.data())
		j.ClearConfirmed()
	}
	n.collect(j)
	return counted
}

func (r *Result) data() []byte {
	if r == nil {
		return nil
	}
	return r.Data
}

// endNow is the outcome of a job that ends now, and is kept for so many seconds.
func (n *Node) endNow(o Outcome, keep int64, r *Result) *Ending {
	return &Ending{Outcome: o, At: n.now, For: keep, until: n.now + keep*1000, node: n.self.Node(), HasDetail: r != nil && r.Has}
}

// keep keeps the outcome of an acknowledged job. detail is its result, or the reason of its end. Where its key has no room beside that,
// nothing is kept. The job may move.
func (n *Node) keep(j *store.Job, e *Ending, detail []byte) *store.Job {
	n.store.Count(j, store.NoReason)
	j, ok := n.keepKey(j, detail)
	if !ok {
		return j
	}
	if e.Outcome == OutcomeDone && cancelled(j) {
		f, _ := j.Family()
		f.Flags &^= store.FamilyCancelled
		j = n.setFamily(j, &f)
	}
	b := n.scratch.extras[:0]
	for rest := j.Extras(); len(rest) > 0; {
		tag, value, more := store.NextExtra(rest)
		switch rest = more; tag {
		case store.TagFamily, store.TagAskers, store.TagUnique, store.TagCancel, store.TagName:
			b = store.AppendExtra(b, tag, value)
		}
	}
	b = store.AppendExtra(b, store.TagEnd, e.append(nil))
	n.scratch.extras = b
	j = n.moved(j, n.store.Rewrite(j, detail, b))
	j.ETime = max(j.ETime, e.until+keepSlack)
	n.noteEnd(j.ID, e.Outcome, nil, false)
	if !n.dummy(j) {
		n.store.Count(j, store.Kept)
		n.logAnew(j)
		n.touch(j.Queue)
	}
	n.arm(j)
	return j
}

// keepSlack keeps a job from expiring before the time of its outcome is over, ms.
const keepSlack = 60_000

// endKeep ends the keeping of a job's outcome. What is left tells other nodes of its end, if they don't know of it yet. The job may move.
func (n *Node) endKeep(j *store.Job) *store.Job {
	n.store.Count(j, store.NoReason)
	b := store.AppendExtrasBut(n.scratch.extras[:0], j.Extras(), store.TagEnd)
	n.scratch.extras = b
	body := j.Body()
	if store.FindExtra(b, store.TagUnique) == nil {
		body = nil
	}
	j = n.moved(j, n.store.Rewrite(j, body, b))
	n.touch(j.Queue)
	n.logAnew(j)
	return j
}

// keptOver looks whether the time of a kept outcome is over, and says whether the job is done with: it is gone, or has nothing to do
// before that time.
func (n *Node) keptOver(j *store.Job) (_ *store.Job, done bool) {
	e, ok := EndingOf(j)
	switch over := ok && e.until <= n.now; {
	case !ok:
		return j, false
	case over && e.own:
		n.remove(j) // nobody else is told: other nodes may have the job
		return nil, true
	case over && j.Confirmed() == j.Holders() && !n.unfinished(j):
		n.forgetJob(j, nil)
		return nil, true
	case over:
		return n.endKeep(j), false
	case e.own:
		n.wakeAt(j, e.until)
		return j, true
	}
	return j, false
}

// forgetOrKeep forgets an acknowledged job of which all nodes know that it is done, or keeps its outcome until that time is over.
func (n *Node) forgetOrKeep(j *store.Job, from *Peer) {
	if e, ok := EndingOf(j); ok && e.until > n.now && !n.dummy(j) {
		j.ConfirmAll(0)
		n.wakeAt(j, e.until)
		n.log(LogState, j)
		return
	}
	n.forgetJob(j, from)
}

// keepAlone keeps the outcome of a job that this node would forget, as it finds by itself: other nodes may know better, and aren't told. What
// they say of the job counts more ([Node.forgetView]). Where nothing is to be kept, the job is removed.
func (n *Node) keepAlone(j *store.Job, o Outcome) {
	reason, keep := reasonOf(j), int64(0)
	if (j.State == store.StateActive || j.State == store.StateQueued) && !n.dummy(j) {
		n.noteEnd(j.ID, o, reason, reason != nil)
		if n.store.Dependents(&j.ID) == nil && !n.goesNow(j) { // otherwise these ask other nodes
			keep = n.keepTime(j, nil)
		}
	}
	if keep == 0 {
		n.remove(j)
		return
	}
	n.endsHere(j)
	f, _ := j.Family()
	n.removeParents(f, &j.ID) // it waits for none of them
	for j.Holders() > 0 {
		node, _ := j.Holder(0)
		j.DropHolder(node)
	}
	n.hasViews = true
	e := n.endNow(o, keep, nil)
	e.own, e.HasDetail = true, reason != nil
	j = n.setFamily(j, &store.Family{Flags: store.FamilyCancelled})
	j = n.keep(j, e, reason)
	n.wakeAt(j, e.until)
}

// forgetView forgets what this node alone has found of the end of a job of which another node speaks. An ADDJOB that says the name of such a job again,
// at another node, doesn't speak of that job: it is answered with the outcome, as at this node.
func (n *Node) forgetView(m *wire.Message) {
	id := store.ID(m.ID)
	j := n.store.Lookup(&id)
	if j == nil || !ownView(j) {
		return
	}
	if e, _ := EndingOf(j); m.Kind == wire.ReplJob && NameOf(j) != nil && int64(m.Job.CTime/1_000_000) >= e.At {
		return
	}
	switch m.Kind {
	case wire.AskOutcome, wire.AskName, wire.GotAck, wire.GotEnd, wire.DelJob, wire.SetEnd:
	default:
		n.remove(j)
	}
}

// heardEnding reads the outcome in a SetEnd or GotEnd.
func (n *Node) heardEnding(m *wire.Message) (e Ending, ok bool) {
	e, ok = readEnding(store.FindExtra(m.Job.Extras, store.TagEnd))
	if !ok || e.Outcome == 0 || e.Outcome > OutcomeDropped || len(m.Queue) > MaxResult {
		return e, false
	}
	e.For = min(e.For, MaxSeconds)
	e.until = n.now + min(m.Span, e.For*1000)
	return e, true
}

// learnEnd takes over the outcome that another node tells of an acknowledged job, if that counts more than this node's. tells is true if this
// node's counts more, so that the other is to hear of it. The job may move.
func (n *Node) learnEnd(p *Peer, j *store.Job, m *wire.Message) (_ *store.Job, tells bool) {
	theirs, ok := n.heardEnding(m)
	mine, kept := EndingOf(j)
	ok = ok && !saidElsewhere(m, &theirs)
	switch {
	case !ok:
		return j, kept && len(m.Holders) > 0 && n.mesh.features[p.ID].Results
	case !kept && (theirs.Outcome == OutcomeDone || cancelled(j)) && theirs.until > n.now, kept && theirs.better(&mine):
		theirs.own = false
		j = n.keep(j, &theirs, m.Queue)
		j.ClearConfirmed()
		n.wakeAt(j, n.now+gcFirstMS+n.below(jitterMS)) // the node that told it tells the others, too; this one looks, in case that one dies
		return j, false
	}
	return j, kept && mine.better(&theirs)
}

// saidElsewhere says whether a SetEnd is of a CANCELJOB at a node that doesn't know the job.
func saidElsewhere(m *wire.Message, e *Ending) bool {
	return e.Outcome == OutcomeCancelled && len(m.Holders) == 0
}

// keepForOther keeps the outcome of a job whose end was said at a node that doesn't know it, if the job or its queue says so: that node doesn't
// know for how long. It also tells those that wait why the job was cancelled. The job may move.
func (n *Node) keepForOther(j *store.Job, m *wire.Message) *store.Job {
	theirs, ok := n.heardEnding(m)
	o := OutcomeDone
	switch {
	case cancelled(j):
		o = OutcomeCancelled
	case ok:
		return j // its result is kept as long as that node says
	}
	if ok = ok && saidElsewhere(m, &theirs) && theirs.HasDetail; ok {
		n.noteEnd(j.ID, o, m.Queue, true)
	}
	keep := n.keepTime(j, nil)
	if keep == 0 {
		return j
	}
	r := &Result{}
	if ok {
		r.Has, r.Data = true, m.Queue
	}
	return n.keep(j, n.endNow(o, keep, r), r.Data)
}

// gotEnd makes the answer to a SetAck or SetEnd: with this node's outcome, where it keeps one and the other node knows of such.
func (n *Node) gotEnd(p *Peer, j *store.Job) wire.Message {
	m := wire.Message{Kind: wire.GotAck, ID: j.ID, Flags: wire.Known}
	if j.Kept() && n.mesh.features[p.ID].Results {
		m.Kind = wire.GotEnd
		m.Job.Extras = store.AppendExtra(nil, store.TagEnd, j.Extra(store.TagEnd))
	}
	return m
}

// tellAgain begins anew to tell of the end of a job whose outcome is only kept by now, if a holder may not know of it.
func (n *Node) tellAgain(j *store.Job) {
	if j.Kept() && j.Confirmed() < j.Holders() && j.QTime > n.now+gcLastMS {
		n.wakeAt(j, n.now+gcFirstMS+n.below(jitterMS))
	}
}

// tellKnown tells the holders of a job that all of them know of its end. Those that may keep its outcome are told which outcome all know: one that
// has learnt a better one since goes on telling that.
func (n *Node) tellKnown(j *store.Job) {
	if !j.Kept() {
		n.tell(j, &wire.Message{Kind: wire.DelJob})
		return
	}
	m := wire.Message{Kind: wire.GotEnd, ID: j.ID, Flags: wire.ToAll}
	m.Job.Extras = store.AppendExtra(nil, store.TagEnd, j.Extra(store.TagEnd))
	n.tell(j, &m)
}

// confirms says whether a GotAck or GotEnd confirms the outcome that this node keeps of a job. A node that knows the job by another outcome is
// told again.
func (n *Node) confirms(j *store.Job, m *wire.Message) bool {
	theirs, ok := readEnding(store.FindExtra(m.Job.Extras, store.TagEnd))
	mine, kept := EndingOf(j)
	return !ok || !kept || theirs.same(&mine)
}

// settleEnded settles an acknowledged job that was loaded. The time of its outcome is bounded, in case the clock was set back before.
func (n *Node) settleEnded(j *store.Job) {
	n.setTime(j, n.now+gcFirstMS)
	e, ok := EndingOf(j)
	if !ok {
		return
	}
	e.until = min(e.until, n.now+e.For*1000)
	e.append(j.Extra(store.TagEnd)[:0])
	j.ETime = min(j.ETime, max(n.now+timeToLive(j), e.until+keepSlack))
	n.hasViews = n.hasViews || e.own
	n.store.Count(j, store.Kept)
	if j.Confirmed() == j.Holders() {
		n.setTime(j, e.until)
	}
}

// keptDeleted ends the keeping of an outcome that a client has deleted at this node. If all nodes know of the job's end, it is gone.
func (n *Node) keptDeleted(j *store.Job) {
	if j.Confirmed() == j.Holders() {
		n.remove(j)
		return
	}
	n.collect(n.endKeep(j))
}

// Results counts the jobs whose outcome is kept, and the bytes of their results.
func (n *Node) Results() (jobs, bytes uint64) {
	return n.store.Counted(store.Kept), n.store.KeptBytes()
}
