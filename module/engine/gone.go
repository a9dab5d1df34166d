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

// A queue's end (DEL, EXPIRE) and a flush delete the copies of one node. A job that was deleted in this way
// doesn't come back to this node, though another node has a copy of it and clients wait here. This node
// remembers up to which creation time jobs are deleted, for each queue or for all. It refuses such a job from
// a node that says that this one had it. The sender keeps the job, and notes in it (TagShun) not to hand it
// to this node again. So nothing is lost, and a job that this node never had is taken, however old it is.

// Deletions is what a node remembers of such deletions. It outlives a restart, in the nodes' file.
type Deletions struct {
	All    uint64         // creation time: jobs of all queues up to then are deleted
	Queues []QueueDeleted // the same for single queues, in the order of their deletions
}

// QueueDeleted is the deletion of a queue.
type QueueDeleted struct {
	Name uint64 // hash of the queue's name
	UpTo uint64 // creation time: the queue's jobs up to then are deleted
}

const (
	maxDeletions = 512 // queues; if there are more, the one that was deleted first is forgotten
	pastMS       = 5_000
	pastMost     = 100_000 // queues, see passing
	walkedMost   = 20      // so many jobs passed over count as one that is handed over
	barredMost   = 10_000  // keys for which jobs were passed over, see bar
	barredQueues = 8       // queues of one key, see bar
)

// deletions has Deletions, and what isn't kept in the nodes' file.
type deletions struct {
	Deletions
	newest      uint64 // the greatest creation time of a copy from another node
	flushed     uint64 // as All, for a flush that may still be the beginning of a load; 0: none
	flushedJobs uint64 // how many jobs that flush deleted
	untold      uint64 // deleted jobs that weren't reported yet, see TakeDeleted
	untoldFlush uint64 // likewise flushed jobs, see TakeFlushed
}

// Deletions returns what the nodes' file is to keep.
func (n *Node) Deletions() Deletions {
	return Deletions{n.deleted.All, slices.Clone(n.deleted.Queues)}
}

// SetDeletions sets what the nodes' file has kept.
func (n *Node) SetDeletions(d Deletions) { n.deleted.Deletions = d }

// TakeDeleted counts the jobs that were deleted with their queues since the last call, of which
// other nodes may have copies.
func (n *Node) TakeDeleted() (jobs uint64) {
	jobs, n.deleted.untold = n.deleted.untold, 0
	return jobs
}

// TakeFlushed counts the jobs that were flushed since the last call, of which other nodes may have copies. Jobs
// that are loaded anew (DEBUG RELOAD) aren't among them.
func (n *Node) TakeFlushed() (jobs uint64) {
	jobs, n.deleted.untoldFlush = n.deleted.untoldFlush, 0
	return jobs
}

// shared says whether other nodes may have copies of jobs that are deleted here now.
func (n *Node) shared() bool {
	return !n.passive && !n.loading && !n.mesh.Alone() && n.store.AnyParts()
}

// newestHere returns a creation time that no job here is later than, unless a clock was plainly wrong.
func (n *Node) newestHere() uint64 {
	return max(n.ctime, min(n.deleted.newest, uint64(max(n.now+trustAhead, 0))*1_000_000))
}

// queueDeleted notes the end of a queue that was in a key. A deletion never counts for queues of other names:
// a job of theirs that this node has lost is to come back. So a job that other nodes have in a queue of
// another name, by RENAME or RELEASEJOB, can come back.
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

// wasDeleted says whether a job that isn't known here, but was once, was deleted.
func (n *Node) wasDeleted(m *wire.Message) bool {
	n.scheduleFree() // a message may come before the tick
	n.flushedAll()
	return n.deletedUpTo(m.Queue, m.Job.CTime) || n.deletedUpTo(cameFrom(m.Job.Extras), m.Job.CTime)
}

// flushedAll is for the first event after the data were emptied: no load has begun, so that was a flush.
func (n *Node) flushedAll() {
	if at := n.deleted.flushed; at > 0 {
		n.deleted.untoldFlush += n.deleted.flushedJobs
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
		from, dead := bytes.CutSuffix(queue, []byte(DeadSuffix)) // the job may have become a dead letter since
		if !dead {
			return false
		}
		queue = from
	}
	return false
}

// deadMost is how many moves of a job to a dead-letter queue, since its queue was deleted, are looked into:
// it takes time to hash a very long name.
const deadMost = 2

// find returns a queue's index among those that were deleted; -1: it isn't there.
func (d *Deletions) find(name uint64) int {
	return slices.IndexFunc(d.Queues, func(q QueueDeleted) bool { return q.Name == name })
}

// hashOf returns the same after a restart, and nobody can make two names that share a hash.
func hashOf(name []byte) uint64 {
	sum := sha256.Sum256(name)
	return binary.LittleEndian.Uint64(sum[:])
}

// shun notes that a node has deleted a job and doesn't take it. ok is false if there is no room for that.
func (n *Node) shun(j *store.Job, p *Peer) (_ *store.Job, ok bool) {
	return n.noteNode(j, store.TagShun, p)
}

// shunned says whether a node is known not to take a job because it has deleted it.
func shunned(j *store.Job, p *Peer) bool { return noted(j, store.TagShun, p) }

// past is a job up to which a queue has only jobs that a node isn't given, or that aren't asked for.
type past struct {
	job   store.ID
	until int64 // unix ms; from then on all are looked at again
	apart bool  // see [Node.beyond]
}

// passing remembers a past for each queue. A queue that wasn't asked for lately is forgotten.
type passing struct {
	table.Generations[string, past]
}

func (g *passing) add(queue string, at past, now int64) {
	g.TurnDue(now, pastMS, pastMost)
	g.Put(queue, at)
}

// stopAt keeps a job of the waiting list from being passed over unseen: if it is before the last job that is
// passed over, the search goes on at this job the next time. isPassed says whether the job itself is to be
// passed over.
func (g *passing) stopAt(n *Node, j *store.Job, isPassed func(past) bool) {
	if g.Len() == 0 {
		return
	}
	name := string(j.Queue.NameBytes())
	at, yes := g.Get(name)
	if !yes || isPassed(at) {
		return
	}
	if last := n.store.Lookup(&at.job); last != nil && last.Queue == j.Queue && !last.Before(j) {
		at.job = store.ID{}
		if j.Prev != nil {
			at.job = j.Prev.ID
		}
		g.add(name, at, n.now)
	}
}

// behind finds the first waiting job that a node can be given, and returns how many it passed over (steps).
// It passes over at most busySteps at a time; where there are more the next tick goes on.
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

// fits says whether a node can be given a waiting job. It can't while the job's key is being worked on, if
// the job doesn't wait for its key, nor where the job's run couldn't get the votes that it needs. A job that
// wasn't given is looked at again when it fits: at once if its key becomes free ([Node.unbar]), or if the last
// one that waits for it goes ([Node.removeEdge]), otherwise within 5 to 10 s ([Node.serveDemandAgain]).
func (n *Node) fits(p *Peer, j *store.Job) bool {
	if !n.takes(p, j) || n.isToGo(j) {
		return false
	}
	u := j.Unique()
	if u == nil {
		return true
	}
	if p.Minority && needsMajority(u) {
		return false
	}
	if j.Retry == 0 && endsByDelivery(u) && n.locks.Asks(&j.ID) {
		return false // it takes its waiting lock again, and the votes would find no job
	}
	if u.Busy() == store.BusyWait {
		return true
	}
	l := n.runLock(j, u)
	if l != nil {
		n.bar(l, j)
	}
	return l == nil
}

// runLock returns the lock of a run of a job's key, this job's or another one's. It returns nil if none runs,
// or if runs don't count for the job.
func (n *Node) runLock(j *store.Job, u store.Unique) *store.Lock {
	if !u.Runs() {
		return nil
	}
	return n.inTheWay(n.keyLock(j, u, store.LockRun), &j.ID, u)
}

// bar remembers that a job isn't given to other nodes before a lock is free. For each queue it remembers the
// first such job.
func (n *Node) bar(l *store.Lock, j *store.Job) {
	_, key := store.SlotName(l.Name())
	ids := n.barred[string(key)]
	for i := range ids {
		switch first := n.store.Lookup(&ids[i]); {
		case first == nil || first.Place != store.InWaiting || first.Queue == j.Queue && j.Before(first):
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
	n.barred[string(key)] = append(ids, j.ID)
	if l.Until > 0 {
		n.locks.Await(l.Name(), l.Until)
	}
}

// unbar looks again at the jobs that bar remembers for a lock: the lock is free.
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

// lookAnew looks again, when this event is done, whether a waiting job can be given to a node that waits for
// it.
func (n *Node) lookAnew(id *store.ID) {
	if j := n.store.Lookup(id); j != nil && j.Place == store.InWaiting {
		n.notPast(j)
		n.serveDemandLater(j.Queue)
	}
}
