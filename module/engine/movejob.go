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
	ErrNotDead    Refusal = "NOTDEAD The job isn't dead, or where it came from isn't known: say where it is to go, by TO"
)

// Move says what a MOVEJOB does with a job.
type Move struct {
	To       []byte // the queue; nil: a dead letter goes back to where it came from
	Ranks    bool   // the job gets Priority; otherwise it keeps its own
	Priority int    // see [Add]
}

// Move moves a job, or gives it another priority. It refuses a job that isn't known here (ErrNoJob), that
// a client works on, or had at most once (ErrInProgress), that isn't dead where no queue is said (ErrNotDead), a queue that takes nothing
// (ErrPaused) or can't be made, and a queue in which another job has the job's key (DUPLICATE). Nothing has changed then.
func (n *Node) Move(id *store.ID, m *Move) error {
	j, to := n.store.Lookup(id), m.To
	switch {
	case j == nil || j.State == store.StateAcked || j.State == store.StateWaitRepl:
		return ErrNoJob
	case j.Place == store.InWorking || taker(j) != 0 || j.Retry == 0 && j.Flags&(store.FlagDelivered|store.FlagOffered|store.FlagUncertain) != 0:
		return ErrInProgress
	}
	if to == nil {
		if to = slices.Clone(cameFrom(j.Extras())); !isDead(j) || to == nil {
			return ErrNotDead
		}
	}
	if err := n.TakesJobs(to); err != nil {
		return err
	}
	if j = n.store.Lookup(id); j == nil {
		return ErrNoJob // TakesJobs may have removed a key whose time was over
	}
	if isDead(j) {
		return n.revive(j, to, m)
	}
	stays := string(to) == string(j.Queue.NameBytes())
	if stays && (!m.Ranks || m.Priority == j.Priority()) {
		return nil
	}
	queued := j.State == store.StateQueued
	n.store.Hold(j)
	var err error
	if stays { // the other holders learn a priority from a later move alone
		j, err = n.moveTo(j, to, moves(j)&^deadLetter+2)
	} else {
		j, err = n.moveAlong(j, to)
	}
	if err != nil {
		if queued {
			n.pushBack(j)
		}
		return err
	}
	n.Stats.Moved++
	n.arrive(n.rank(j, m), queued)
	return nil
}

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

// arrive tells the other holders that a job has moved, and queues it, if it was queued before. In a mesh a unique job asks for its key first.
func (n *Node) arrive(j *store.Job, queued bool) {
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
	if asleep != nil && asleep.Waits() && asleep.Strategy() != store.UniqueWindow && !n.notUnique {
		if l := n.locks.Live(n.lockNameIn(j, asleep, to)); l != nil && l.Job != j.ID && (n.mesh.Alone() || (*owners)(n).Holds(l)) {
			return duplicate(&l.Job, j.UniqueKey(asleep))
		}
		asleep.Set(store.UniquePending)
	}
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
	n.arrive(n.rank(j, m), true)
	return nil
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

// lockNameIn is the name of the waiting lock that a job would have in a queue. It is scratch memory.
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
	if _, err := n.queue(to); err != nil {
		return j, err
	}
	tries := []byte(nil)
	if j.Extra(store.TagTries) != nil {
		tries = binary.LittleEndian.AppendUint32(nil, count)
	}
	ttl := int64(0)
	if d, ok := DeathOf(j); ok {
		ttl = d.TTL
	}
	life := binary.LittleEndian.AppendUint32(nil, uint32(ttl))
	j = n.setExtras(j, extra{store.TagMoved, movedValue(count)}, extra{store.TagDead, nil}, extra{store.TagAsleep, nil}, extra{store.TagUnique, asleep},
		extra{store.TagLife, binary.LittleEndian.AppendUint32(life, count)}, extra{store.TagTries, tries})
	return n.moveTo(j, to, 0)
}

// MoveFrom moves the jobs that wait in a queue, in the order of fetching, count at most, and returns how many.
func (n *Node) MoveFrom(from []byte, m *Move, count int) (moved int) {
	q := n.Queue(from)
	if q == nil {
		return 0
	}
	ids := n.scratch.ids[:0]
	for j := q.Head; j != nil && len(ids) < count; j = j.Next {
		ids = append(ids, j.ID)
	}
	n.scratch.ids = nil // serving clients needs some, too
	for i := range ids {
		if n.Move(&ids[i], m) == nil {
			moved++
		}
	}
	n.scratch.ids = ids[:0]
	return moved
}

// MoveMesh is MoveFrom at all nodes, count jobs at each. The answer is returned, or comes as an AnswerMesh effect.
func (n *Node) MoveMesh(from []byte, m *Move, count int, timeout int64) (p Pending, now *MeshAnswer) {
	ask := n.newQuestion(timeout)
	ask.got.Moved = uint64(n.MoveFrom(from, m, count))
	w := &wire.Message{Kind: wire.AskMove, Count: uint32(count), Queue: appendMove(nil, from, m)}
	return n.askMesh(ask, w, wire.MovedJobs, n.mesh.All())
}

// An AskMove has in Queue the length of the first queue's name as a varint, that name, and then parts that may be absent: moveRank and a
// byte with the new priority; moveTo and the second queue's name, to the end.
const (
	moveTo   = 1
	moveRank = 2
)

func appendMove(b, from []byte, m *Move) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(from))), from...)
	if m.Ranks {
		b = append(append(b, moveRank), store.PriorityValue(m.Priority)...)
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
	from, move, ok := parseMove(m.Queue)
	if !ok {
		return wire.ErrMessage
	}
	moved := n.MoveFrom(slices.Clone(from), &move, min(int(m.Count), MaxMove))
	n.send(p, &wire.Message{Kind: wire.MovedJobs, Span: m.Span, Round: uint64(moved)})
	return nil
}
