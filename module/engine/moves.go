package engine

import (
	"encoding/binary"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Jobs that go to another queue: released into it, or as dead letters. Each node that has a copy moves it by
// itself when it hears of that, and may hear of it late, when others already say that the job is queued. So a
// job counts its moves, and a node that speaks of queueing a job that was moved says first where the job is
// ([wire.Whereabouts]): a copy that was moved less often follows. Renaming a queue at one node moves no job.

// deadLetter is a mark in the count of a job's moves: the last move made it a dead letter. It is the lowest
// bit, so of two moves that were made at once the one with the mark counts.
const deadLetter = store.MarkDead

// moves returns the count of a job's moves, times two, plus deadLetter if it is a dead letter. 0: it is where
// it was added.
func moves(j *store.Job) uint32 { return movesOf(j.Extras()) }

func movesOf(extras []byte) uint32 {
	if e := store.FindExtra(extras, store.TagMoved); len(e) == 4 {
		return binary.LittleEndian.Uint32(e)
	}
	return 0
}

// movedValue makes a TagMoved. Its size is constant, so where this is inlined it takes nothing of Go's heap.
func movedValue(count uint32) []byte {
	return binary.LittleEndian.AppendUint32(make([]byte, 0, 4), count)
}

// moveOn moves a held job to another queue, and counts that; the job may move in memory. If the job is in
// that queue, or the queue can't be made, nothing changes.
func (n *Node) moveOn(j *store.Job, name []byte) (*store.Job, error) {
	if string(name) == string(j.Queue.NameBytes()) {
		return j, nil
	}
	return n.moveTo(j, name, moves(j)&^deadLetter+2)
}

// moveTo is moveOn with the count that the job gets; 0: the count stays. A dead letter loses its locks: it
// stands in nobody's way.
func (n *Node) moveTo(j *store.Job, name []byte, count uint32) (*store.Job, error) {
	q, err := n.queue(name)
	if err != nil {
		return j, err
	}
	if count&deadLetter != 0 {
		n.endLocks(j)
		j, _ = n.setExtra(j, store.TagUnique, nil)
		n.noteEnd(j.ID, OutcomeDead, nil, false)
	}
	if count > 0 { // a job with no room for the count goes without
		j, _ = n.setExtra(j, store.TagMoved, movedValue(count))
	}
	return n.into(j, q), nil
}

// into moves a held job to a queue, if it isn't there. Its counts, its locks and its time stay.
func (n *Node) into(j *store.Job, q *store.Queue) *store.Job {
	if q == j.Queue {
		return j
	}
	delayed := j.Reason() == store.Delayed
	n.touch(j.Queue)
	n.store.MoveTo(j, q)
	n.joinsQueue(j, delayed)
	return j
}

// intoAs is into for a job whose extras change, as by setExtras: its record is made anew once for both. The job may move in memory.
func (n *Node) intoAs(j *store.Job, q *store.Queue, changes ...extra) *store.Job {
	if q == j.Queue {
		return n.setExtras(j, changes...)
	}
	delayed := j.Reason() == store.Delayed
	n.touch(j.Queue)
	j = n.moved(j, n.store.MoveAs(j, q, n.extrasWith(j, changes)))
	n.joinsQueue(j, delayed)
	return j
}

// joinsQueue follows a job to another queue. delayed says whether it is counted as delayed.
func (n *Node) joinsQueue(j *store.Job, delayed bool) {
	n.outliveFlush(j)
	n.countFamily(j)
	if delayed {
		n.store.Count(j, store.Delayed)
	}
	if j.State != store.StateWaitRepl {
		n.logMove(j)
	}
	n.touch(j.Queue)
}

// moveAlong is moveOn for a job that takes its waiting lock along, if that is a lock of the queue. It is
// refused if another job has the key there. In a mesh the job asks for that key before it is queued, as one that
// a conflict has put off.
func (n *Node) moveAlong(j *store.Job, name []byte) (*store.Job, error) {
	u := j.Unique()
	if u == nil || !u.Has(store.UniqueHasWait) || u.Has(store.UniqueMesh) || u.Strategy() == store.UniqueWindow || string(name) == string(j.Queue.NameBytes()) {
		return n.moveOn(j, name)
	}
	if l := n.inTheWay(n.lockNameIn(j, u, name), &j.ID, u); l != nil && l.Job != j.ID {
		return j, duplicate(&l.Job, j.UniqueKey(u))
	}
	n.endWait(j, u)
	j, err := n.moveOn(j, name)
	if n.mesh.Alone() {
		_, _ = n.renewLock(j, j.Unique(), store.LockWait, 0, Work{}) // the job isn't due yet
	} else {
		j.Unique().Set(store.UniquePending) // only the others can tell whether another job has the key there
	}
	n.log(LogState, j)
	return j, err
}

// keyIsAsked notes in a copy that the node that has moved a job asks for the job's key in the new queue. If this node is to queue the job
// before it hears that the job has the key, it asks, too. extras are what that node says of the job; it may say nothing of the key.
func (n *Node) keyIsAsked(j *store.Job, extras []byte) {
	u := j.Unique()
	if u == nil || !u.WaitsAlive() || u.Has(store.UniqueMesh) {
		return
	}
	if theirs := store.Unique(store.FindExtra(extras, store.TagUnique)); theirs != nil && !theirs.Has(store.UniquePending) {
		return
	}
	u.Clear(store.UniqueHasWait)
	u.Set(store.UniquePending)
	n.log(LogState, j)
}

// ariseAfter is moveAfter for a dead letter that another node has revived, and queues.
func (n *Node) ariseAfter(j *store.Job, name []byte, count uint32, extras []byte, left int64, queued bool) *store.Job {
	asleep := wakened(j)
	if asleep != nil && asleep.WaitsAlive() {
		asleep.Set(store.UniquePending) // as in revive
	}
	j, err := n.arise(j, asleep, name, count)
	if err != nil {
		if queued {
			n.pushBack(j)
		}
		return j
	}
	n.endLease(j)
	j = n.learnRank(n.learnWords(j, extras), extras)
	if left > 0 {
		j.ETime = n.now + min(left, MaxSeconds*1000)
	}
	n.demote(j, 0)
	return j
}

// movedTo returns the message that says where a moved job is.
func (n *Node) movedTo(j *store.Job) *wire.Message {
	return &wire.Message{Kind: wire.MovedTo, ID: j.ID, Count: moves(j), Queue: j.Queue.NameBytes()}
}

// whereabouts tells nodes where a job is, if it was moved, and what else they are to know of it.
func (n *Node) whereabouts(j *store.Job) sending {
	if tells(j) {
		return sending{n: n, m: n.whereaboutsOf(j)}
	}
	return sending{n: n, m: n.movedTo(j)}
}

func (n *Node) sendWhere(p *Peer, j *store.Job) {
	where := n.whereabouts(j)
	where.to(p)
}

// onMovedTo follows another node, which has moved a job, or tells that node where the job is by now. A job
// that a client works on stays where the client got it, until it is to be queued again.
func (n *Node) onMovedTo(p *Peer, j *store.Job, m *wire.Message) {
	mine := moves(j)
	switch {
	case m.Count < mine:
		n.sendWhere(p, j)
	case m.Count == mine || n.dummy(j) || n.survives(p, j, m.Count, m.Job.Extras) || j.Place == store.InWorking && j.Flags&store.FlagAnnounced == 0:
	default:
		n.moveAfter(j, m.Queue, m.Count, m.Job.Extras, m.Span)
	}
}

// onNewQueue is onMovedTo for a node that sends a copy. That node may only have another name for the queue.
func (n *Node) onNewQueue(p *Peer, j *store.Job, m *wire.Message) *store.Job {
	count := movesOf(m.Job.Extras)
	switch {
	case n.dummy(j) || string(m.Queue) == string(j.Queue.NameBytes()) && count == moves(j):
	case j.Place == store.InWorking && j.Flags&store.FlagAnnounced == 0 && count&deadLetter == 0: // it follows when it is to be queued again
	case count < moves(j):
		n.sendWhere(p, j)
	default:
		if count&deadLetter != 0 && !j.DeadLetter() && m.Job.Nacks > j.Nacks && m.Job.Deliveries == j.Deliveries {
			n.freeSlot(j) // a NACK of this delivery, as in nackedElsewhere
		}
		return n.moveAfter(j, m.Queue, count, m.Job.Extras, m.Job.Left)
	}
	return j
}

// expiryMS is how much earlier than here a job's life may be over at another node, by whose clock the job then becomes a dead letter.
const expiryMS = 60_000

// survives is for a job that another node has moved. It says whether the job stays here all the same: it became a dead letter by the other node's
// clock (ONEXPIRE dead), and by this node's it has a good part of its life left. A clock that is wrong takes no more than its own node's copies, as
// those that expire without becoming dead letters. So this node counts a move back, and says where the job is. If several do, the word of one that has
// the job as more than a copy counts (expires_dead_clock).
func (n *Node) survives(p *Peer, j *store.Job, count uint32, extras []byte) bool {
	if count&deadLetter == 0 || count < moves(j) || whyOf(extras) != WhyExpired || j.DeadLetter() || n.dummy(j) ||
		j.State != store.StateActive && j.State != store.StateQueued || j.ETime <= n.now+expiryMS {
		return false
	}
	count = count&^deadLetter + 2
	if n.isNextToQueue(j) || j.Reason() == store.Delayed {
		count += 2
	}
	j, counted := n.setExtra(j, store.TagMoved, movedValue(count))
	if counted { // otherwise the other node would answer that it has moved the job
		n.log(LogState, j)
		n.send(p, n.whereaboutsOf(j))
	}
	return true
}

// afterMove follows the message of another node that it has moved a job, when the copy here has followed (moved), or not. If this node has the
// job in a queue, one of the two keeps it. If it delays the job, it goes on.
func (n *Node) afterMove(p *Peer, j *store.Job, m *wire.Message, moved bool) {
	switch {
	case j.Place == store.InWorking:
		return
	case j.State == store.StateQueued:
		n.send(p, n.queued(j, 0))
	case moved && j.Place == store.InHeld && j.Reason() == store.NoReason:
		n.postponeBy(j, m.Span)
	}
	n.learnCounts(j, m)
}

// findOut says whether all holders find out by themselves that a job is to be a dead letter. The one that would have queued it does so then. Otherwise it
// is the one where that was said, or happened.
func findOut(why Why) bool { return why == WhyExpired || why == WhyParent }

// moveAfter moves a job as another node did; a job that was queued here is queued again then. extras say how the job failed, and left
// what is left of its life, ms; 0: that isn't known. The job may move in memory. If the queue can't be made, this copy stays in its own.
func (n *Node) moveAfter(j *store.Job, name []byte, count uint32, extras []byte, left int64) *store.Job {
	if j.State == store.StateAcked {
		return j
	}
	name = append([]byte(nil), name...)
	queued, worked, delayed := j.State == store.StateQueued, j.Place == store.InWorking, j.Reason() == store.Delayed && j.Retry > 0
	switch {
	case n.inHands(j): // the client works on, and may not hear of this: its slot and its key stay taken until their leases are over (dead_letter_in_hands_slot)
		n.leaveSlot(j)
		n.delegateRun(j)
	case worked:
		n.expireRun(j)
	}
	if queued || j.State == store.StateActive {
		n.store.Hold(j)
	}
	if j.DeadLetter() && count&deadLetter == 0 && count > moves(j) {
		return n.ariseAfter(j, name, count, extras, left, queued)
	}
	stays := string(name) == string(j.Queue.NameBytes())
	j, err := n.moveTo(j, name, count)
	if j = n.learnRank(j, extras); err == nil && !stays && count&deadLetter == 0 {
		n.keyIsAsked(j, extras)
	}
	if count&deadLetter != 0 {
		n.endLease(j)
		j = n.onQueuedElsewhere(j) // a dead letter waits for nothing
		if err == nil {
			j = n.learnDeath(j, extras, left)
		}
		switch {
		case worked:
			n.demote(j, 0) // a client that works on it has it from before
		case delayed && !findOut(whyOf(extras)):
			n.demote(j, 0) // the other node has queued it (dead_letter_of_delayed)
		}
	}
	switch {
	case !queued:
	case n.putOff(j) && !n.again(j, false):
		n.log(LogState, j)
	default:
		n.push(j)
		n.log(LogState, j)
		n.serve(j.Queue)
	}
	return j
}
