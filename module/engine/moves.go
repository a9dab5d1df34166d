package engine

import (
	"encoding/binary"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Jobs that go to another queue: released into it, or as dead letters. Each node that has a copy does
// that by itself where it hears of it, and may hear of it late, when others already say that the job is
// queued. So a job counts its moves, and nodes that speak of queueing one that was moved say first where
// it is ([wire.MovedTo]): a copy that was moved less often follows. A queue that is renamed at one node
// moves nothing.

// deadLetter marks, in the count of a job's moves, one that made it a dead letter. It is the lowest bit, so of
// two moves that were made at once it is the one that counts.
const deadLetter = 1

// moves is the count of a job's moves, times two, and whether it is a dead letter. 0: it is where it was added.
func moves(j *store.Job) uint32 { return movesOf(j.Extras()) }

func movesOf(extras []byte) uint32 {
	if e := store.FindExtra(extras, store.TagMoved); len(e) == 4 {
		return binary.LittleEndian.Uint32(e)
	}
	return 0
}

// moveOn moves a held job to another queue, and counts that; the job may move in memory. Where it is in
// that queue, or that can't be made, nothing changes.
func (n *Node) moveOn(j *store.Job, name []byte, dead bool) (*store.Job, error) {
	if string(name) == string(j.Queue.NameBytes()) {
		return j, nil
	}
	count := moves(j)&^deadLetter + 2
	if dead {
		count |= deadLetter
	}
	return n.moveTo(j, name, count)
}

// moveTo is moveOn for a count that is known, 0: it isn't. A dead letter stands in nobody's way.
func (n *Node) moveTo(j *store.Job, name []byte, count uint32) (*store.Job, error) {
	q, err := n.queue(name)
	if err != nil {
		return j, err
	}
	if count&deadLetter != 0 {
		n.endLocks(j)
		j, _ = n.setExtra(j, store.TagUnique, nil)
	}
	if count > 0 { // a job with no room for it goes without
		j, _ = n.setExtra(j, store.TagMoved, binary.LittleEndian.AppendUint32(nil, count))
	}
	if q == j.Queue {
		return j, nil
	}
	n.touch(j.Queue)
	n.store.MoveTo(j, q)
	n.countFamily(j)
	if j.State != store.StateWaitRepl {
		n.logAnew(j)
	}
	n.touch(q)
	return j, nil
}

// moveAlong is moveOn for a job whose lock goes with it, where it is one of the
// queue. It is refused where another has the key there.
func (n *Node) moveAlong(j *store.Job, name []byte) (*store.Job, error) {
	u := j.Unique()
	if u == nil || !u.Has(store.UniqueHasWait) || u.Has(store.UniqueMesh) || u.Strategy() == store.UniqueWindow || string(name) == string(j.Queue.NameBytes()) {
		return n.moveOn(j, name, false)
	}
	n.scratch.lock = store.AppendLockName(n.scratch.lock[:0], store.LockWait, append([]byte{}, name...), j.UniqueKey(u))
	if l := n.locks.Live(n.scratch.lock); l != nil && l.Job != j.ID {
		return j, duplicate(&l.Job, j.UniqueKey(u))
	}
	n.endWait(j, u)
	j, err := n.moveOn(j, name, false)
	_, _ = n.renewLock(j, j.Unique(), store.LockWait, 0, nil) // it isn't due yet
	n.log(LogState, j)
	return j, err
}

// movedTo says where a job is that was moved.
func (n *Node) movedTo(j *store.Job) *wire.Message {
	return &wire.Message{Kind: wire.MovedTo, ID: j.ID, Count: moves(j), Queue: j.Queue.NameBytes()}
}

// onMovedTo follows another node, which has moved a job, or tells it where the job is by now. One that a client
// works on stays where that got it, until it is to be queued again.
func (n *Node) onMovedTo(p *Peer, j *store.Job, m *wire.Message) {
	mine := moves(j)
	switch {
	case m.Count < mine:
		n.send(p, n.movedTo(j))
	case m.Count == mine || n.dummy(j) || j.Place == store.InWorking && j.Flags&store.FlagAnnounced == 0:
	default:
		n.moveAfter(j, m.Queue, m.Count)
	}
}

// onNewQueue is onMovedTo for a node that sends a copy. It may have another name for the queue alone.
func (n *Node) onNewQueue(p *Peer, j *store.Job, m *wire.Message) *store.Job {
	count := movesOf(m.Job.Extras)
	switch {
	case n.dummy(j) || string(m.Queue) == string(j.Queue.NameBytes()):
	case count < moves(j):
		n.send(p, n.movedTo(j))
	default:
		return n.moveAfter(j, m.Queue, count)
	}
	return j
}

// moveAfter moves a job as another node did; here it may have been queued, and is again then. It may move in
// memory. Where the queue can't be made, this copy stays in its own.
func (n *Node) moveAfter(j *store.Job, name []byte, count uint32) *store.Job {
	if j.State == store.StateAcked {
		return j
	}
	name = append([]byte(nil), name...)
	queued := j.State == store.StateQueued
	if queued || j.State == store.StateActive {
		n.store.Hold(j)
	}
	j, _ = n.moveTo(j, name, count)
	if count&deadLetter != 0 {
		j = n.onQueuedElsewhere(j) // it waits for nothing
	}
	if queued {
		n.push(j)
		n.log(LogState, j)
		n.serve(j.Queue)
	}
	return j
}
