package engine

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Work in progress: the jobs that were given to a client, which is to finish each by
// a due time. A queue keeps them in the order of that time (store.Queue.Working).
// The due time also tells since when a job is worked on. If the due time was moved,
// or the client named itself, the job's TagWorker extra tells that:
//
//	8 bytes  since when, unix ms; 0: nobody has the job, the rest means nothing
//	n bytes  the client's name, or nothing
const sinceLen = 8

// MaxWorker is the longest name of a worker, in bytes.
const MaxWorker = 255

// Limits of WIP, in jobs.
const (
	MaxWIP     = 1_000_000
	MaxMeshWIP = 1_000 // of each node: it fits one message
)

// InProgress is a job that somebody works on.
type InProgress struct {
	ID         store.ID
	Due, Since int64 // unix ms
	Deliveries int   // how often it was given to a client, as far as this node knows, this time included
	Worker     string
	Node       wire.NodeID // where it is
}

// toWork moves a job to those that are worked on, from now on.
func (n *Node) toWork(j *store.Job) {
	ownTerm(j)
	at := n.retryAt(j)
	if j.Retry == 0 {
		at = n.now // the job is never queued again: QTime tells since when it is worked on
	}
	if j.Parts > 0 {
		j.ClearConfirmed() // a client here has it, and no other node
		j.SetShift(at - n.now - TermOf(j)*1000)
		n.clearWorker(j)
	}
	n.store.Work(j, at)
}

// clearWorker forgets who works on a job, in place.
func (n *Node) clearWorker(j *store.Job) {
	if j.Parts > 0 {
		clear(j.Extra(store.TagWorker))
	}
}

// since returns since when a job is worked on, unix ms.
func since(j *store.Job) int64 {
	if e := j.Extra(store.TagWorker); len(e) >= sinceLen {
		if at := int64(binary.LittleEndian.Uint64(e)); at > 0 {
			return at
		}
	}
	if j.Retry == 0 {
		return j.QTime
	}
	return j.QTime - TermOf(j)*1000 - j.Shift()
}

// Worker returns the name of the client that works on a job; empty if the client gave none, or
// no client does. A replica keeps no list of jobs in progress: there Worker returns the name
// that its master told last.
func (n *Node) Worker(j *store.Job) string {
	if j.Place != store.InWorking && !(n.passive && j.State == store.StateActive) {
		return ""
	}
	return n.workerOf(j)
}

// workerOf is Worker for a job that was loaded, and isn't in its list yet.
func (n *Node) workerOf(j *store.Job) string {
	e := j.Extra(store.TagWorker)
	if len(e) < sinceLen || binary.LittleEndian.Uint64(e) == 0 {
		return ""
	}
	return string(e[sinceLen:])
}

// SetWorker names the client that a job was just delivered to. The job may move. A job
// that has no room for the name gets none.
func (n *Node) SetWorker(j *store.Job, worker []byte) *store.Job {
	if j.Place != store.InWorking {
		return j
	}
	j = n.putWorker(j, since(j), worker)
	n.log(LogState, j)
	return j
}

func (n *Node) putWorker(j *store.Job, since int64, worker []byte) *store.Job {
	var b [sinceLen + MaxWorker]byte
	binary.LittleEndian.PutUint64(b[:], uint64(since))
	j, _ = n.setExtra(j, store.TagWorker, append(b[:sinceLen], worker[:min(len(worker), MaxWorker)]...))
	return j
}

// keepWork is called before a job's due time is moved, and keeps since when the job is
// worked on. If the job wasn't in progress here, it is from now on. The job may move.
func (n *Node) keepWork(j *store.Job) *store.Job {
	ownTerm(j)
	if j.Place != store.InWorking {
		n.clearWorker(j)
		j = n.putWorker(j, n.now, nil)
	} else if e := j.Extra(store.TagWorker); len(e) < sinceLen || binary.LittleEndian.Uint64(e) == 0 {
		j = n.putWorker(j, since(j), nil)
	}
	j.ClearConfirmed()
	n.store.Work(j, j.QTime)
	return j
}

// late says whether a job that is due stays with the client that works on it, because its
// queue is paused in input. Such a job becomes overdue.
func (n *Node) late(j *store.Job) bool {
	if j.Place != store.InWorking || j.Retry == 0 || j.Queue.Pause&PauseIn == 0 {
		return false
	}
	n.store.SetOverdue(j)
	n.arm(j)
	return true
}

// takeBack makes a queue that is no longer paused in input take back its overdue jobs: by the
// next ticks, within their budget.
func (n *Node) takeBack(q *store.Queue) {
	if q.Overdue > 0 && q.Pause&PauseIn == 0 {
		n.unpaused.Put(string(q.NameBytes()), struct{}{})
		n.takeSomeBack()
	}
}

// takeSomeBack goes on with takeBack. A queue that is paused again keeps the jobs that are
// still overdue. A queue's list begins with the jobs that are due first, so a walk meets again
// the jobs that an earlier walk has armed, until Tick has handled them. Such jobs are few: a
// walk arms no more jobs than a tick handles.
func (n *Node) takeSomeBack() {
	for budget := tickBudget; budget > 0 && n.unpaused.Len() > 0; budget-- {
		name, _ := n.unpaused.Next()
		q := n.store.Queue([]byte(name))
		if q == nil || q.Pause&PauseIn != 0 {
			n.unpaused.Remove(name)
			continue
		}
		j := q.Working.Head
		for ; j != nil && q.Overdue > 0 && budget > 0; j = j.Next {
			if budget--; n.store.ClearOverdue(j) {
				n.arm(j)
			}
		}
		if j == nil || q.Overdue == 0 {
			n.unpaused.Remove(name)
		}
	}
	if n.unpaused.Len() > 0 {
		n.hurryTick()
	}
}

// shutOut makes a job that was to be queued wait until its queue is no longer paused, or its retry time is over.
func (n *Node) shutOut(j *store.Job) {
	n.setQTime(j, retryTime(n, j))
	n.arm(j)
	n.shut.Put(j.ID, struct{}{})
}

// keepOut is shutOut for a job whose time has come. If other nodes have left its first queueing to this one, it
// tells them that it doesn't queue the job for now: their queues may not be paused.
func (n *Node) keepOut(j *store.Job) {
	if j.State == store.StateActive && j.Place == store.InHeld && j.Reason() == store.NoReason && j.Holders() > 0 && !n.putOff(j) &&
		j.Flags&(store.FlagAnnounced|store.FlagQueuedOnce|store.FlagDelivered) == store.FlagAnnounced {
		clearAnnounced(j) // when the pause is over, this node asks anew
		n.tell(j, &wire.Message{Kind: wire.PutOff, Flags: wire.KeptOut})
	}
	n.shutOut(j)
}

// letIn begins to check which jobs that were shut out may be queued now. The next ticks go on with that.
func (n *Node) letIn() {
	if n.shut.Len() > 0 {
		n.shut.Begin()
		n.letSomeIn()
	}
}

// shutSweepMS is how often all jobs that were shut out are looked at, ms.
const shutSweepMS = 60_000

// letSomeIn goes on with letIn, within a tick's budget.
func (n *Node) letSomeIn() {
	if n.shut.Len() > 0 && n.now >= n.shutSweep {
		n.shutSweep = n.now + shutSweepMS
		n.shut.Begin() // the pass forgets jobs that are gone
	}
	more := n.shut.Pass(tickBudget, func(id store.ID, _ *struct{}) bool {
		j := n.store.Lookup(&id)
		switch {
		case j == nil && n.lookDormant(&id) != nil:
			return true // its queue lies in another database
		case j == nil || j.State != store.StateActive || j.Place == store.InWorking || held(j):
			return false
		case j.Queue.Pause&PauseIn != 0:
			return true
		}
		if !n.putOff(j) {
			clearAnnounced(j) // the others are told first
		}
		n.wakeAt(j, n.now)
		return false
	})
	if more {
		n.hurryTick()
	}
}

// WIP lists up to count jobs of a queue that are being worked on, the first that is due
// first; with overdue only those whose time has passed. q may be nil.
func (n *Node) WIP(q *store.Queue, count int, overdue bool) (list []InProgress) {
	if q == nil {
		return nil
	}
	for j := q.Working.Head; j != nil && len(list) < count; j = j.Next {
		due := j.Due()
		if overdue && due > n.now {
			break
		}
		given := 1 + int(j.Nacks) + int(Additional(j))
		if j.Uncertain() {
			given--
		}
		list = append(list, InProgress{
			ID: j.ID, Due: due, Since: since(j), Deliveries: given, Worker: n.Worker(j), Node: n.self,
		})
	}
	return list
}

// InProgress counts the jobs that are being worked on, and how many of them are
// past the time that they were due.
func (n *Node) InProgress() (jobs, overdue uint64) { return n.store.Working() }

// Queued counts the jobs that wait in this node's queues.
func (n *Node) Queued() uint64 { return n.store.Waiting() }

// DeadNow counts the dead letters that wait in this node's queues.
func (n *Node) DeadNow() uint64 { return n.store.Dead() }

// Counted counts the jobs that, for a given reason, don't wait in this node's queues yet.
func (n *Node) Counted(r store.Reason) uint64 { return n.store.Counted(r) }

// --- the whole mesh --------------------------------------------------------------

// AskWIP is WIP for the whole mesh. count is at most [MaxMeshWIP]. See askMesh.
func (n *Node) AskWIP(name []byte, count int, overdue bool, timeout int64) (p Pending, now *MeshAnswer) {
	q := n.newQuestion(timeout)
	q.count = count
	q.got.Work = n.WIP(n.Queue(name), count, overdue)
	m := wire.Message{Kind: wire.AskWork, Count: uint32(count), Queue: name}
	if overdue {
		m.Flags = wire.Overdue
	}
	return n.askMesh(q, &m, wire.Work, n.mesh.All())
}

// chooseJobs chooses up to count jobs of those that the nodes have in progress. It has each job once, from the node
// with the latest due time, because that node gave the job to a client last.
func chooseJobs(jobs []InProgress, count int) []InProgress {
	slices.SortFunc(jobs, func(a, b InProgress) int {
		return cmp.Or(slices.Compare(a.ID[:], b.ID[:]), cmp.Compare(b.Due, a.Due))
	})
	jobs = slices.CompactFunc(jobs, func(a, b InProgress) bool { return a.ID == b.ID })
	slices.SortFunc(jobs, func(a, b InProgress) int {
		return cmp.Or(cmp.Compare(a.Due, b.Due), slices.Compare(a.ID[:], b.ID[:]))
	})
	return jobs[:min(len(jobs), count)]
}

// onAskWork answers with the jobs that are worked on here. Times are relative to now,
// because clocks differ.
func (n *Node) onAskWork(p *Peer, m *wire.Message) {
	list := n.WIP(n.Queue(m.Queue), int(min(m.Count, MaxMeshWIP)), m.Flags&wire.Overdue != 0)
	var b []byte
	for i := range list {
		w := &list[i]
		b = append(b, w.ID[:]...)
		b = binary.AppendVarint(b, w.Due-n.now)
		b = binary.AppendVarint(b, n.now-w.Since)
		b = binary.AppendUvarint(b, uint64(w.Deliveries))
		b = append(b, byte(len(w.Worker)))
		b = append(b, w.Worker...)
	}
	n.send(p, &wire.Message{Kind: wire.Work, Span: m.Span, Queue: b})
}

// takeWork adds the jobs that a node has in progress.
func (n *Node) takeWork(q *question, p *Peer, m *wire.Message) error {
	jobs, err := readWork(m.Queue, n.now)
	for k := range jobs {
		jobs[k].Node = p.ID
	}
	if err == nil {
		q.got.Work = append(q.got.Work, jobs...)
	}
	return err
}

// readWork reads the list in a Work message.
func readWork(b []byte, now int64) (list []InProgress, err error) {
	whole := len(b)
	number := func() int64 {
		v, used := binary.Varint(b)
		if used <= 0 || v > math.MaxInt64/4 || v < math.MinInt64/4 {
			err = fmt.Errorf("%w: a time in a list of jobs in progress, %d bytes before its end", wire.ErrMessage, len(b))
			return 0
		}
		b = b[used:]
		return v
	}
	for len(b) > 0 && err == nil {
		var w InProgress
		if len(b) < len(w.ID) || len(list) == MaxMeshWIP {
			return nil, fmt.Errorf("%w: a list of jobs in progress is cut off, or too long, at byte %d of %d", wire.ErrMessage, whole-len(b), whole)
		}
		b = b[copy(w.ID[:], b):]
		w.Due, w.Since = now+number(), now-number()
		count, used := binary.Uvarint(b)
		if used <= 0 || count > 3*math.MaxUint16 || len(b) == used || len(b)-used-1 < int(b[used]) {
			return nil, fmt.Errorf("%w: a job in progress is cut off at byte %d of %d", wire.ErrMessage, whole-len(b), whole)
		}
		w.Deliveries = int(count)
		end := used + 1 + int(b[used])
		w.Worker, b = string(b[used+1:end]), b[end:]
		list = append(list, w)
	}
	return list, err
}
