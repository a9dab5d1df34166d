package engine

import (
	"encoding/binary"
	"math"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// MOVEJOB: jobs that wait go to another queue. A dead letter that is moved lives again: it is what it was before it died, and its
// tries begin anew. The other holders follow, see moves.go.

// MaxMove is the greatest number of jobs that one MOVEJOB FROM moves at a node.
const MaxMove = 10_000

// Refusals of MOVEJOB.
const (
	ErrInProgress Refusal = "INPROGRESS The job is being worked on: it can be moved when it is given back"
	ErrNotHere    Refusal = "TRYAGAIN The job waits at another node, which didn't answer, or can't be asked in MULTI and scripts"
	ErrHeldAt     Refusal = "HELDBACK The job is deferred or blocked: it comes when it is released, and has no time"
	ErrDeadAt     Refusal = "ERR a dead letter gets a time only where it is to live again: say TO"
	ErrNotDead    Refusal = "NOTDEAD The job isn't dead, or where it came from isn't known: say where it is to go, by TO"
)

// Move says what a MOVEJOB does with a job.
type Move struct {
	To       []byte // the queue; nil: a dead letter goes back to where it came from
	Ranks    bool   // the job gets Priority; otherwise it keeps its own
	Priority int    // see [Add]
	HasAt    bool
	At       int64 // unix time in ms at which the job is due
}

// Move moves a job, or gives it another priority or time, and says whether anything has changed. It refuses a job that isn't known here
// (ErrNoJob), that a client works on, or had at most once (ErrInProgress), that waits at another node (ErrNotHere), that isn't dead where
// no queue is said (ErrNotDead), that can't have a time (ErrHeldAt, ErrDeadAt), a queue that takes nothing (ErrPaused) or can't be made, and
// a queue in which another job has the job's key (DUPLICATE). Nothing has changed then.
func (n *Node) Move(id *store.ID, m *Move) (moved bool, err error) {
	n.endDue(id)
	j, to := n.store.Lookup(id), m.To
	switch {
	case j == nil || j.State == store.StateAcked || j.State == store.StateWaitRepl || n.dummy(j):
		return false, ErrNoJob
	case j.Place == store.InWorking || taker(j) != 0 || j.Retry == 0 && j.Flags&(store.FlagDelivered|store.FlagOffered|store.FlagUncertain) != 0:
		return false, ErrInProgress
	case !n.standsHere(j):
		return false, ErrNotHere
	}
	if m.HasAt {
		switch {
		case held(j):
			return false, ErrHeldAt
		case j.DeadLetter() && to == nil:
			return false, ErrDeadAt
		case to == nil:
			to = slices.Clone(j.Queue.NameBytes())
		}
	}
	if to == nil {
		to = cameFrom(j.Extras())
		if to == nil || !j.DeadLetter() {
			return false, ErrNotDead
		}
		n.scratch.home = append(n.scratch.home[:0], to...)
		to = n.scratch.home
	}
	if err := n.TakesJobs(to); err != nil {
		return false, err
	}
	if j = n.store.Lookup(id); j == nil {
		return false, ErrNoJob // TakesJobs may have removed a key whose time was over
	}
	if j.DeadLetter() {
		err = n.revive(j, to, m)
		return err == nil, err
	}
	stays := string(to) == string(j.Queue.NameBytes())
	if stays && (!m.Ranks || m.Priority == j.Priority()) {
		if m.HasAt {
			n.Stats.Moved++
			n.tellsMoveBy(j, to, max(0, m.At-n.now))
			n.setDue(j, m)
		}
		return m.HasAt, nil
	}
	from, queued := n.nameToTell(j), j.State == store.StateQueued
	n.store.Hold(j)
	if stays { // the other holders learn a priority from a later move alone
		j, err = n.moveTo(j, to, moves(j)&^deadLetter+2)
	} else {
		j, err = n.moveAlong(j, to)
	}
	if err != nil {
		if queued {
			n.pushBack(j)
		}
		return false, err
	}
	n.Stats.Moved++
	j = n.dueAt(n.rank(j, m), m)
	n.tellsMove(j, from)
	n.arrive(j, queued, m.HasAt)
	return true, nil
}

// standsHere says whether it is this node's to move a job: the job waits here, or this node queues it in time, or counts it for the
// mesh (deferred and blocked jobs). If each holder could move it, the job's key could be asked for at one and be taken for granted at another.
func (n *Node) standsHere(j *store.Job) bool {
	switch {
	case j.State == store.StateQueued || j.Reason() == store.Delayed || !n.heldElsewhere(j):
		return true
	case held(j):
		return n.CountsHere(j)
	}
	return false
}

// setDue gives a job that waits here, or is delayed, the time that m says, in its queue.
func (n *Node) setDue(j *store.Job, m *Move) {
	queued := j.State == store.StateQueued
	if queued && m.At <= n.now {
		return
	}
	j, _ = n.setExtra(n.dueAt(j, m), store.TagStays, []byte{}) // no flush of before takes it
	n.delayUntilDue(j)
	n.serveBehind(j.Queue) // its key may be free
}

// dueAt keeps with a job when it is due, if m says that: at a unix time, as with ADDJOB … AT, but not beyond the time at which its life has its
// retry time left. The job may move.
func (n *Node) dueAt(j *store.Job, m *Move) *store.Job {
	if !m.HasAt {
		return j
	}
	return n.keepDue(j, n.restsFor(j, max(0, min(m.At-n.now, MaxSeconds*1000))))
}

// keepDue writes down that a job is due in span ms, as if it was added with AT. The job may move.
func (n *Node) keepDue(j *store.Job, span int64) *store.Job {
	var at []byte
	if span > 0 {
		at = binary.LittleEndian.AppendUint64(nil, uint64(n.now+span))
	}
	return n.setDelay(j, uint32((span+999)/1000), at)
}

// setDelay gives a job another delay, and another TagAt; nil: none. The job keeps its own time to live, which can't be told by these any more: it is
// noted with the job. The job may move.
func (n *Node) setDelay(j *store.Job, delay uint32, at []byte) *store.Job {
	changes := [...]extra{{store.TagAt, at}, {store.TagLife, nil}}
	some := changes[:1]
	if own, revived := lifeOf(j); own == 0 && (at != nil || j.Extra(store.TagAt) != nil) {
		life := lifeValue(lifeSeconds(j), revived)
		changes[1].value, some = life[:], changes[:]
	}
	j.Delay = delay
	j = n.setExtras(j, some...)
	n.logAnew(j)
	return j
}

// endDelay ends the delay of a job that is in a queue, or was in one, or is dead: by hand, or by a node with another clock, it may have come into a
// queue early. Otherwise this node would believe that no client can have the job, and would put the job off once more. Its TagAt stays, by which its life
// counts ([lifetime]), and means nothing else then.
func (n *Node) endDelay(j *store.Job) {
	if j.Delay > 0 && n.isEarly(j) {
		j.Delay = 0
		n.logAnew(j)
	}
}

// isEarly says whether a job is still delayed, by more than clocks may differ.
func (n *Node) isEarly(j *store.Job) bool { return delayFrom(j, n.now) > jitterMS }

// delayUntilDue delays a job that has got a time, and tells the other holders that time.
func (n *Node) delayUntilDue(j *store.Job) {
	left := delayFrom(j, n.now)
	n.delayAs(j, left, n.dueFlag(j, left))
}

// dueFlag returns the flag of a PutOff by span ms, where that is what is left of the time that a job was given: wire.Due.
func (n *Node) dueFlag(j *store.Job, span int64) uint8 {
	if delayFrom(j, n.now) == span && !n.putOff(j) && (span == 0 || j.Extra(store.TagAt) != nil) {
		return wire.Due
	}
	return 0
}

// learnDue writes down in a copy that its job is due in span ms, as another node has said. Otherwise the copy, loaded after a restart, would take
// that span for an error of its clock, or for a time at which the job is out of its queue by a pause, and come early. The job may move.
func (n *Node) learnDue(j *store.Job, span int64) *store.Job {
	if n.putOff(j) || isWithin(delayFrom(j, n.now)-span, jitterMS) {
		return j
	}
	return n.keepDue(j, span)
}

func isWithin(difference, most int64) bool { return -most <= difference && difference <= most }

// rank gives a held job that has moved its new priority, if m says one. The job may move in memory.
func (n *Node) rank(j *store.Job, m *Move) *store.Job {
	if m.Ranks {
		j, _ = n.setExtra(j, store.TagPriority, store.PriorityValue(m.Priority)) // 0 as well, so that others learn it
		n.log(LogState, j)
	}
	return j
}

// learnRank takes over the priority that another node has given a job by moving it. The job may move in memory.
func (n *Node) learnRank(j *store.Job, extras []byte) *store.Job {
	if e := store.FindExtra(extras, store.TagPriority); e != nil && j.Place == store.InHeld {
		j, _ = n.setExtra(j, store.TagPriority, e)
		n.log(LogState, j)
	}
	return j
}

// arrive tells the other holders that a job has moved, and queues it, if it was queued before, or delays it, if it has got a new time. In a mesh a
// unique job asks for its key first.
func (n *Node) arrive(j *store.Job, queued, timed bool) {
	if timed && (!queued || delayFrom(j, n.now) > 0) && !n.putOff(j) {
		n.tellChanged(j, wire.NewQueue)
		n.delayUntilDue(j)
		return
	}
	if asks := n.putOff(j) && (queued || !rests(j) && !held(j) && j.Reason() == store.Delayed); queued || asks {
		clearQueuedOnce(j) // its queueing isn't counted
		n.tellChanged(j, wire.NewQueue)
		if asks && !n.again(j, false) {
			n.log(LogState, j)
			return
		}
		n.push(j)
		n.log(LogState, j)
		n.serve(j.Queue)
		return
	}
	n.tellChanged(j, wire.NewQueue)
}

// TakesJobs refuses a queue that can't be made, or takes nothing.
func (n *Node) TakesJobs(queue []byte) error {
	q := n.Queue(queue)
	if q == nil {
		if err := n.keys.Free(queue); err != nil {
			return err
		}
	}
	if n.paused(queue, q, PauseIn) {
		return ErrPaused
	}
	return nil
}

// revive makes a dead letter what it was, in a queue, and queues it. If it is unique, another job may have its key by now: then it stays
// dead. In a mesh only the other nodes can tell for certain. So there the job lives again, and waits for its key as one that a
// conflict has put off; it is queued when it has the key.
func (n *Node) revive(j *store.Job, to []byte, m *Move) error {
	asleep := wakened(j)
	if asleep != nil && asleep.WaitsAlive() && !n.notUnique {
		if l := n.inTheWay(n.lockNameIn(j, asleep, to), &j.ID, asleep); l != nil && l.Job != j.ID && (n.mesh.Alone() || (*owners)(n).Holds(l)) {
			return duplicate(&l.Job, j.UniqueKey(asleep))
		}
		asleep.Set(store.UniquePending)
	}
	from := n.nameToTell(j)
	n.store.Hold(j)
	j, err := n.arise(j, asleep, to, moves(j)&^deadLetter+2)
	if err != nil {
		n.pushBack(j)
		return err
	}
	if ttl, _ := lifeOf(j); ttl > 0 {
		j.ETime = n.now + ttl*1000
		n.arm(j)
	}
	n.Stats.Moved++
	n.Stats.Revived++
	j = n.dueAt(n.rank(j, m), m)
	n.tellsMove(j, from)
	n.arrive(j, true, m.HasAt)
	return nil
}

// nameToTell returns the name of a job's queue, in memory of its own, for the event that the job has moved; nil: nobody wants that.
func (n *Node) nameToTell(j *store.Job) []byte {
	if !n.wants(EventMove) {
		return nil
	}
	return slices.Clone(j.Queue.NameBytes())
}

// wakened returns what a dead letter was unique by, without its locks, in new memory; nil: nothing.
func wakened(j *store.Job) store.Unique {
	asleep := store.Unique(slices.Clone(j.Extra(store.TagAsleep)))
	if len(asleep) == 0 {
		return nil
	}
	asleep.Clear(store.UniqueHasWait | store.UniqueHasRun | store.UniquePending | store.UniqueLapsed)
	return asleep
}

// lockNameIn is the name of the waiting lock of the key that a job would have in a queue. It is scratch memory.
func (n *Node) lockNameIn(j *store.Job, u store.Unique, queue []byte) []byte {
	scope := append([]byte{}, queue...) // nil would be the scope of the mesh, also for a queue whose name is empty
	if u.Has(store.UniqueMesh) {
		scope = nil
	}
	n.scratch.lock = store.AppendLockName(n.scratch.lock[:0], store.LockWait, scope, j.UniqueKey(u))
	return n.scratch.lock
}

// arise moves a dead letter that is held to a queue where it lives again, unique by asleep. Its tries are counted anew from this move on.
// If the queue can't be made, it is dead still. The job may move in memory.
func (n *Node) arise(j *store.Job, asleep store.Unique, to []byte, count uint32) (*store.Job, error) {
	q, err := n.queue(to)
	if err != nil {
		return j, err
	}
	ttl := int64(0)
	if d, ok := DeathOf(j); ok {
		ttl = d.TTL
	}
	life := lifeValue(ttl, count)
	since := life[lifeLen-4:]
	anew := func(tag store.Tag) extra {
		if j.Extra(tag) == nil {
			return extra{tag, nil}
		}
		return extra{tag, since}
	}
	if j.Deliveries > 0 {
		j.Deliveries -= uint16(min(unstarted(j), int64(j.Deliveries))) // what tells which of them don't count begins anew, too
	}
	return n.intoAs(j, q, extra{store.TagMoved, movedValue(count)}, extra{store.TagDead, nil}, extra{store.TagAsleep, nil}, extra{store.TagUnique, asleep},
		extra{store.TagLife, life[:]}, anew(store.TagTries), anew(store.TagLapses)), nil
}

// moving is a MOVEJOB that this node carries out, for a client or for another node. Very many jobs go bit by bit.
type moving struct {
	ids     []store.ID // that are still to be moved
	from    []byte     // the queue where they wait; nil: they are named, wherever they are
	to      Move
	moved   uint64
	refused error     // why the last one of those that were refused here was; nil: none was
	ask     *question // of the client that waits for the answer, or
	asker   meshAsker // the node that does
}

// meshAsker is a node that has asked a question, and the question's number there.
type meshAsker struct {
	node wire.Node
	span int64
}

const (
	moveAtOnce = 200  // jobs that one command moves without a pause
	moveInTurn = 1000 // the same in MULTI and scripts, which can't wait
)

// waitingIn lists the jobs that wait in a queue, in the order of fetching, count at most.
func (n *Node) waitingIn(queue []byte, count int) (ids []store.ID) {
	if q := n.Queue(queue); q != nil {
		for j := q.Head; j != nil && len(ids) < count; j = j.Next {
			ids = append(ids, j.ID)
		}
	}
	return ids
}

// movingFrom begins a MOVEJOB of the jobs that wait in a queue, in the order of fetching, count at most.
func (n *Node) movingFrom(queue []byte, to *Move, count int) *moving {
	return &moving{to: to.clone(), from: slices.Clone(queue), ids: n.waitingIn(queue, count)}
}

// waitsIn says whether a job waits in a queue.
func (n *Node) waitsIn(id *store.ID, queue []byte) bool {
	j := n.store.Lookup(id)
	return j != nil && j.State == store.StateQueued && string(j.Queue.NameBytes()) == string(queue)
}

// MoveSome moves the jobs that wait in a queue, in the order of fetching, count at most. If it takes longer, the answer comes as an AnswerMesh
// effect for the client that is tied to p, unless the client can't wait: then no more than moveInTurn are moved.
func (n *Node) MoveSome(from []byte, to *Move, count int, canWait bool) (p Pending, now *MeshAnswer) {
	budget := moveAtOnce
	if !canWait {
		count, budget = min(count, moveInTurn), math.MaxInt
	}
	v := n.movingFrom(from, to, count)
	if n.moveOnWith(v, &budget) || !canWait {
		return p, &MeshAnswer{Moved: v.moved}
	}
	ask := n.newQuestion(math.MaxInt64)
	ask.awaits = wire.MovedJobs
	n.moveLater(v, ask)
	return n.openQuestion(ask), nil
}

// MovedSoFar is how many jobs have been moved by a MOVEJOB that waits.
func (n *Node) MovedSoFar(p Pending) uint64 {
	if q := n.questionOf(p.number); q != nil && q.moving != nil {
		return q.moving.moved
	}
	return 0
}

// MoveMesh is MoveSome at all nodes, count jobs at each.
func (n *Node) MoveMesh(from []byte, to *Move, count int, timeout int64) (p Pending, now *MeshAnswer) {
	ask, budget := n.newQuestion(timeout), moveAtOnce
	if v := n.movingFrom(from, to, count); n.moveOnWith(v, &budget) {
		ask.got.Moved = v.moved
	} else {
		n.moveLater(v, ask)
	}
	m := &wire.Message{Kind: wire.AskMove, Count: uint32(count), Queue: appendMove(nil, from, to)}
	return n.askMesh(ask, m, wire.MovedJobs, n.mesh.All())
}

// MoveAway moves jobs that wait at other nodes (ErrNotHere): all nodes are asked. The answer is as MoveMesh's, with the reason why a job can't
// be moved at the node where it waits.
func (n *Node) MoveAway(ids []store.ID, to *Move, timeout int64) (p Pending, now *MeshAnswer) {
	ask := n.newQuestion(timeout)
	ask.got.Refused, ask.count = ErrNotHere, len(ids)
	list := make([]byte, 0, len(ids)*len(store.ID{}))
	for i := range ids {
		list = append(list, ids[i][:]...)
	}
	m := &wire.Message{Kind: wire.AskMove, Flags: wire.ByID, Count: uint32(len(ids)), Queue: appendMove(nil, list, to)}
	return n.askMesh(ask, m, wire.MovedJobs, n.mesh.All())
}

// moveOnWith moves some of the jobs, and says whether that was all.
func (n *Node) moveOnWith(v *moving, budget *int) (done bool) {
	for ; len(v.ids) > 0 && *budget > 0; v.ids = v.ids[1:] {
		from := len(n.effects)
		if v.from != nil && !n.waitsIn(&v.ids[0], v.from) {
			*budget--
			continue // it was fetched, or moved, since
		}
		switch yes, err := n.Move(&v.ids[0], &v.to); {
		case err == nil && yes:
			v.moved++
		case err != nil && err != ErrNoJob && err != ErrNotHere:
			v.refused = err
		}
		*budget -= 1 + n.cost(from)
	}
	return len(v.ids) == 0
}

// moveLater goes on with the next tick.
func (n *Node) moveLater(v *moving, ask *question) {
	if v.ask = ask; ask != nil {
		ask.moving = v
	}
	n.movings = append(n.movings, v)
	n.hurryTick()
}

// tickMoves goes on with what one call didn't move.
func (n *Node) tickMoves() {
	for budget := tickBudget; len(n.movings) > 0 && budget > 0; {
		if v := n.movings[0]; n.moveOnWith(v, &budget) {
			n.movings = n.movings[1:]
			n.hasMoved(v)
		}
	}
	if len(n.movings) > 0 {
		n.hurryTick()
	}
}

// endMoves ends all of them as they are: this node becomes a replica.
func (n *Node) endMoves() {
	for _, v := range n.movings {
		n.hasMoved(v)
	}
	n.movings = nil
}

// hasMoved answers those who wait for a MOVEJOB of this node.
func (n *Node) hasMoved(v *moving) {
	if q := v.ask; q != nil && n.questionOf(q.number) == q {
		q.got.Moved += v.moved
		if q.moving = nil; n.settled(q) {
			n.answerQuestion(q)
		}
	}
	if p := n.mesh.ByName(v.asker.node); p != nil && v.ask == nil {
		m := &wire.Message{Kind: wire.MovedJobs, Span: v.asker.span, Round: v.moved}
		if v.refused != nil {
			m.Queue = []byte(v.refused.Error())
		}
		n.send(p, m)
	}
}

// takeMoved adds what another node has moved to the answer of a question.
func (q *question) takeMoved(m *wire.Message) {
	q.got.Moved += min(m.Round, maxCount)
	if why := m.Queue; len(why) > 0 && len(why) <= maxRefusal && !slices.ContainsFunc(why, func(c byte) bool { return c < ' ' }) {
		q.got.Refused = Refusal(why)
	}
}

const maxRefusal = 1024 // bytes of another node's refusal

func (m *Move) clone() Move {
	c := *m
	c.To = slices.Clone(m.To)
	return c
}

// An AskMove has in Queue the length of the first queue's name as a varint, that name (with wire.ByID: IDs, 24 bytes each), and then parts that may be absent: moveRank and a
// byte with the new priority; moveAt and the new time as a varint; moveTo and the second queue's name, to the end.
const (
	moveTo   = 1
	moveRank = 2
	moveAt   = 3
)

func appendMove(b, from []byte, m *Move) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(from))), from...)
	if m.Ranks {
		b = append(append(b, moveRank), store.PriorityValue(m.Priority)...)
	}
	if m.HasAt {
		b = binary.AppendUvarint(append(b, moveAt), uint64(m.At))
	}
	if m.To != nil {
		b = append(append(b, moveTo), m.To...)
	}
	return b
}

func parseMove(b []byte) (from []byte, m Move, ok bool) {
	size, used := binary.Uvarint(b)
	if used <= 0 || size > uint64(len(b)-used) || size > math.MaxInt32 {
		return nil, m, false
	}
	from, b = b[used:used+int(size)], b[used+int(size):]
	if len(b) > 1 && b[0] == moveRank {
		m.Ranks, m.Priority = true, int(int8(b[1]))
		if b = b[2:]; m.Priority < -store.MaxPriority || m.Priority > store.MaxPriority {
			return nil, m, false
		}
	}
	if len(b) > 1 && b[0] == moveAt {
		at, used := binary.Uvarint(b[1:])
		if used <= 0 || at > MaxUnix {
			return nil, m, false
		}
		m.HasAt, m.At, b = true, int64(at), b[1+used:]
	}
	switch {
	case len(b) == 0:
		return from, m, true
	case b[0] == moveTo:
		m.To = append([]byte{}, b[1:]...)
		return from, m, true
	}
	return nil, m, false
}

// onAskMove moves jobs for another node.
func (n *Node) onAskMove(p *Peer, m *wire.Message) error {
	from, to, ok := parseMove(m.Queue)
	if !ok {
		return wire.ErrMessage
	}
	v := &moving{to: to, asker: meshAsker{p.Node, m.Span}}
	if m.Flags&wire.ByID == 0 {
		v.from = slices.Clone(from)
		v.ids = n.waitingIn(v.from, min(int(m.Count), MaxMove))
	} else {
		const size = len(store.ID{})
		if len(from)%size != 0 || len(from) > MaxMove*size {
			return wire.ErrMessage
		}
		for ; len(from) > 0; from = from[size:] {
			v.ids = append(v.ids, store.ID(from))
		}
	}
	if budget := moveAtOnce; n.moveOnWith(v, &budget) {
		n.hasMoved(v)
	} else {
		n.moveLater(v, nil)
	}
	return nil
}
