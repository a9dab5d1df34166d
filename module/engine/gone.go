package engine

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// A queue's end (DEL, EXPIRE) and a flush delete the copies of one node. A job that was deleted
// so doesn't come back to this node, though another node has a copy of it and clients wait here.
// This node remembers up to which creation time jobs are deleted, of each queue or of all, and
// refuses such a job from a node that says that this one had it. The sender keeps the job, and
// notes in it (TagShun) not to hand it to this node again. So nothing is lost, and a job that
// this node never had is taken, however old it is.

// Deletions is what a node remembers of that. It outlives a restart, in the nodes' file.
type Deletions struct {
	All    uint64         // creation time: of all queues, jobs up to then are deleted
	Queues []QueueDeleted // the same for single queues, in the order of their deletions
}

// QueueDeleted is the deletion of a queue.
type QueueDeleted struct {
	Name uint64 // its hash
	UpTo uint64 // creation time
}

const (
	maxDeletions = 512 // queues; then the first one that was deleted is forgotten
	pastMS       = 5_000
	pastMost     = 100_000 // queues
	walkedMost   = 20      // jobs passed over that count as one that is handed over
	barredMost   = 10_000  // keys for which jobs were passed over, see bar
	barredQueues = 8       // of one key
)

// deletions is Deletions, and what goes with it.
type deletions struct {
	Deletions
	newest  uint64 // the greatest creation time of a copy from another node
	flushed uint64 // as All, of a flush that may still be the beginning of a load; 0: none
	untold  uint64 // jobs, see TakeDeleted
}

// Deletions is what the nodes' file is to keep.
func (n *Node) Deletions() Deletions {
	return Deletions{n.deleted.All, slices.Clone(n.deleted.Queues)}
}

// SetDeletions sets what it kept.
func (n *Node) SetDeletions(d Deletions) { n.deleted.Deletions = d }

// TakeDeleted counts the jobs that were deleted with their queues since the last call, of which
// other nodes may have copies.
func (n *Node) TakeDeleted() (jobs uint64) {
	jobs, n.deleted.untold = n.deleted.untold, 0
	return jobs
}

// shared says whether other nodes may have copies of jobs that are deleted here now.
func (n *Node) shared() bool {
	return !n.passive && !n.loading && !n.mesh.Alone() && n.store.AnyParts()
}

// newestHere is a creation time that no job here is behind, unless a clock was plainly wrong.
func (n *Node) newestHere() uint64 {
	return max(n.ctime, min(n.deleted.newest, uint64(max(n.now+trustAhead, 0))*1_000_000))
}

// queueDeleted follows the end of a queue that was in a key. A deletion never counts for queues
// of other names: a job of theirs that this node has lost is to come back to it. So what other
// nodes have in a queue of another name, by RENAME or RELEASEJOB, can come back.
func (n *Node) queueDeleted(q *store.Queue) {
	if !n.shared() || !q.AnyParts() || q.Jobs() == 0 {
		return
	}
	n.deleted.untold += q.Jobs()
	if last := q.Working.Tail; last != nil {
		n.idling.deleted = max(n.idling.deleted, last.QTime)
	}
	d, last := &n.deleted, QueueDeleted{hashOf(q.NameBytes()), n.newestHere()}
	if i := d.find(last.Name); i >= 0 {
		last.UpTo = max(last.UpTo, d.Queues[i].UpTo)
		d.Queues = slices.Delete(d.Queues, i, i+1)
	} else if len(d.Queues) >= maxDeletions {
		d.Queues = slices.Delete(d.Queues, 0, 1)
	}
	d.Queues = append(d.Queues, last)
	n.nodesChanged()
}

// allDeleted notes that all jobs up to a creation time are deleted.
func (n *Node) allDeleted(at uint64) {
	d := &n.deleted
	d.All, d.flushed = max(d.All, at), 0
	d.Queues = slices.DeleteFunc(d.Queues, func(q QueueDeleted) bool { return q.UpTo <= d.All })
	n.nodesChanged()
}

// wasDeleted says of a job that isn't known here, and was once, whether it was deleted.
func (n *Node) wasDeleted(m *wire.Message) bool {
	n.scheduleFree() // a message may come before the tick
	n.flushedAll()
	return n.deletedUpTo(m.Queue, m.Job.CTime)
}

// flushedAll is for the first event behind a flush: no load has begun, so it was one.
func (n *Node) flushedAll() {
	if at := n.deleted.flushed; at > 0 {
		n.allDeleted(at)
	}
}

func (n *Node) deletedUpTo(queue []byte, ctime uint64) bool {
	d := &n.deleted
	if ctime <= d.All {
		return true
	}
	if len(d.Queues) == 0 {
		return false
	}
	for range 1 + deadMost {
		if i := d.find(hashOf(queue)); i >= 0 && ctime <= d.Queues[i].UpTo {
			return true
		}
		from, dead := bytes.CutSuffix(queue, []byte(DeadSuffix)) // it may be dead since
		if !dead {
			return false
		}
		queue = from
	}
	return false
}

// deadMost is how often a job may have gone to a dead-letter queue since its queue was deleted, as
// far as that is looked into: to hash a very long name takes its time.
const deadMost = 2

// find is where a queue is among those that were deleted; -1: nowhere.
func (d *Deletions) find(name uint64) int {
	return slices.IndexFunc(d.Queues, func(q QueueDeleted) bool { return q.Name == name })
}

// hashOf is the same after a restart, and nobody can make two names that share one.
func hashOf(name []byte) uint64 {
	sum := sha256.Sum256(name)
	return binary.LittleEndian.Uint64(sum[:])
}

// shun notes that a node has deleted a job and doesn't take it; false where there is no room.
func (n *Node) shun(j *store.Job, p *Peer) (_ *store.Job, ok bool) {
	return n.noteNode(j, store.TagShun, p)
}

// shunned says whether a node is known not to take a job, for it has deleted it.
func shunned(j *store.Job, p *Peer) bool { return noted(j, store.TagShun, p) }

// past is a job up to which a queue has jobs alone that a node isn't given.
type past struct {
	job   store.ID
	until int64 // unix ms; then all are looked at again
	apart bool  // see [Node.beyond]
}

// passing remembers where that is, by queue. One that wasn't asked for lately is forgotten.
type passing struct {
	table.Generations[string, past]
	turned int64
}

func (g *passing) add(queue string, at past, now int64) {
	if now-g.turned >= pastMS || g.Young() >= pastMost {
		g.Turn()
		g.turned = now
	}
	g.Put(queue, at)
}

// stopAt has a job in the waiting list not be passed over that is before the last one that is.
func (g *passing) stopAt(n *Node, j *store.Job, isPassed func(past) bool) {
	if g.Len() == 0 {
		return
	}
	name := string(j.Queue.NameBytes())
	at, yes := g.Get(name)
	if !yes || isPassed(at) {
		return
	}
	if last := n.store.Lookup(&at.job); last != nil && j.CTime <= last.CTime {
		at.job = store.ID{}
		if j.Prev != nil {
			at.job = j.Prev.ID
		}
		g.add(name, at, n.now)
	}
}

// behind finds the first waiting job that a node can be given. It passes over some at a time,
// steps of them; where there are more the next tick goes on.
func (n *Node) behind(q *store.Queue, p *Peer) (j *store.Job, steps int) {
	j = q.Head
	if j == nil || p.past.Len() == 0 && n.fits(p, j) {
		return j, 0
	}
	name := string(q.NameBytes())
	at, _ := p.past.Get(name)
	if last := n.store.Lookup(&at.job); last != nil && last.Queue == q && last.Place == store.InWaiting && n.now < at.until {
		j = last.Next
	} else {
		at = past{until: n.now + pastMS}
	}
	for ; j != nil && steps < busySteps && !n.fits(p, j); j = j.Next {
		at.job = j.ID
		steps++
	}
	if steps > 0 {
		p.past.add(name, at, n.now)
	}
	if steps == busySteps {
		n.serveLater(q)
	}
	return j, steps
}

// fits says whether a node can be given a waiting job, and its key isn't being worked on while it
// doesn't wait for that. A job that wasn't given is looked at again when it fits: at once where it is its key that
// becomes free ([Node.unbar]), or the last one that waits for it that goes ([Node.untie]), else within 5 to 10 s
// ([Node.serveDemandAgain]).
func (n *Node) fits(p *Peer, j *store.Job) bool {
	if !n.takes(p, j) {
		return false
	}
	u := j.Unique()
	if u == nil || u.Busy() == store.BusyWait {
		return true
	}
	l := n.runLock(j, u)
	if l != nil {
		n.bar(l, j)
	}
	return l == nil
}

// runLock is the lock of a run of a job's key, this job's or another one's; nil: none runs, or runs don't count for the job.
func (n *Node) runLock(j *store.Job, u store.Unique) *store.Lock {
	if !u.Runs() {
		return nil
	}
	return n.locks.Live(n.lockName(j, u, store.LockRun))
}

// bar remembers that a job isn't given to other nodes before a lock is free, of each queue the first one.
func (n *Node) bar(l *store.Lock, j *store.Job) {
	ids := n.barred[string(l.Name())]
	for i := range ids {
		switch first := n.store.Lookup(&ids[i]); {
		case first == nil || first.Place != store.InWaiting || first.Queue == j.Queue && j.CTime < first.CTime:
			ids[i] = j.ID
			return
		case first.Queue == j.Queue:
			return
		}
	}
	if len(ids) == barredQueues {
		return
	}
	if len(n.barred) == barredMost {
		clear(n.barred)
	}
	n.barred[string(l.Name())] = append(ids, j.ID)
	if l.Until > 0 {
		n.locks.Await(l.Name(), l.Until)
	}
}

// unbar has those jobs be looked at again: the lock is free.
func (n *Node) unbar(name []byte) {
	ids := n.barred[string(name)]
	if len(ids) == 0 {
		return
	}
	delete(n.barred, string(name))
	for i := range ids {
		n.lookAnew(&ids[i])
	}
}

// lookAnew has a waiting job be given to a node that waits for it, if it can be now.
func (n *Node) lookAnew(id *store.ID) {
	if j := n.store.Lookup(id); j != nil && j.Place == store.InWaiting {
		n.notPast(j)
		n.serveDemandLater(j.Queue)
	}
}
