package sim

import (
	"bytes"
	"slices"
	"unsafe"

	"jobmesh/module/engine"
	"jobmesh/module/entries"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// A node's disk: its log, as Redis writes it for the module (persist.go and lock.go in
// package commands), and the nodes' file.

// Fsync says when a node's log entries are certainly on disk (appendfsync).
type Fsync uint8

const (
	// Always: before anything is answered or sent.
	Always Fsync = iota
	// EverySec: within a second. A crash loses the tail, a clean stop doesn't.
	EverySec
)

const (
	lagMS       = 1000 // how far the disk is behind with EverySec, at most
	longLog     = 2000 // a log with more entries is written anew
	nodesLateMS = 200  // how long the nodes' file can take to be written, with Faults.NodesLate
)

type entryKind uint8

const (
	jobEntry    entryKind = iota // LOADJOB: queue, record
	stateEntry                   // SETJOB: record, parts
	moveEntry                    // SETJOB: record, parts, queue
	lessEntry                    // SETJOB: the ID of a job that it doesn't wait for any more
	deleteEntry                  // DELJOB
	lockEntry                    // SETLOCK: record
	unlockEntry                  // DELLOCK: what lock.UnlockParts reads
	queueEntry                   // MAKEQUEUE
	renameEntry                  // RENAME: from, to
	dropEntry                    // UNLINK of an empty queue
	doubtEntry                   // JOBMESH EPOCH: at-most-once jobs became uncertain at a start
	sharedEntry                  // QCONFIG RESTORE: entries
)

// entry is one effect in a log.
type entry struct {
	kind entryKind
	at   int64
	id   store.ID

	a, b, c []byte

	now  int64  // doubtEntry: when, by the node's clock
	last uint64 // and for jobs with creation times up to this
}

// saved is a job as the log has it.
type saved struct {
	queue []byte
	state uint8
}

// disk is a log that begins with what was saved when it was last written anew.
type disk struct {
	queues   []savedQueue
	locks    [][]byte
	floor    uint64
	complete uint64
	entries  []byte
	log      []entry

	jobs  map[store.ID]saved // the jobs that the log comes to
	nodes []wire.NodeID      // the nodes' file
	gone  []wire.NodeID      // there: the nodes that were forgotten
	votes lock.Votes         // likewise
	past  engine.Past        // likewise, what it says of creation times
	known engine.Known       // what the process that ended cleanly knew of jobs
	clean bool               // the state file says that the last process ended cleanly,
	held  [][2][]byte        // and which jobs were in somebody's hands: state and parts
}

type savedQueue struct {
	name []byte
	recs [][]byte
}

// recordOf reads a job's ID and state from its record (cgo/record).
func recordOf(rec []byte) (id store.ID, state uint8) {
	const idAt = int(unsafe.Offsetof(store.Job{}.ID) - unsafe.Offsetof(store.Job{}.Format))
	copy(id[:], rec[idAt:])
	return id, rec[1]
}

func (d *disk) write(e entry) {
	d.log = append(d.log, e)
	d.note(&e)
}

// log writes an entry, and passes it on to the node's replica.
func (n *node) log(e entry) {
	e.at = n.s.now
	n.disk.write(e)
	if n.replica != nil {
		n.replica.hear(e)
	}
}

// note updates d.jobs by an entry.
func (d *disk) note(e *entry) {
	switch e.kind {
	case jobEntry:
		_, state := recordOf(e.b)
		d.jobs[e.id] = saved{e.a, state}
	case stateEntry, moveEntry:
		if k, known := d.jobs[e.id]; known {
			if _, k.state = recordOf(e.a); e.kind == moveEntry {
				k.queue = e.c
			}
			d.jobs[e.id] = k
		}
	case deleteEntry:
		delete(d.jobs, e.id)
	case renameEntry:
		for id, k := range d.jobs {
			if bytes.Equal(k.queue, e.a) {
				d.jobs[id] = saved{e.b, k.state}
			}
		}
	case dropEntry:
		for id, k := range d.jobs {
			if bytes.Equal(k.queue, e.a) {
				delete(d.jobs, id)
			}
		}
	}
}

// wipe loses all but the nodes' file: without that file it would be another node.
func (d *disk) wipe() {
	*d = disk{jobs: map[store.ID]saved{}, nodes: d.nodes, votes: d.votes, past: d.past}
}

// cut loses the entries that were logged after a time, and returns them.
func (d *disk) cut(after int64) (lost []entry) {
	i := len(d.log)
	for i > 0 && d.log[i-1].at > after {
		i--
	}
	if i == len(d.log) {
		return nil
	}
	lost = slices.Clone(d.log[i:])
	d.log = d.log[:i]
	d.sum()
	return lost
}

// sum computes d.jobs anew from the whole log.
func (d *disk) sum() {
	clear(d.jobs)
	for _, q := range d.queues {
		for _, rec := range q.recs {
			id, state := recordOf(rec)
			d.jobs[id] = saved{q.name, state}
		}
	}
	for i := range d.log {
		d.note(&d.log[i])
	}
}

// logEffect writes an effect to the log, if it belongs there.
func (n *node) logEffect(e *engine.Effect) {
	d := &n.disk
	switch j := e.Job; e.Kind {
	case engine.LogJob, engine.LogState, engine.LogMove:
		old, known := d.jobs[j.ID]
		if !known && e.Kind != engine.LogJob {
			n.s.fail("node %d logs a change of job %s, which the log hasn't", n.i, j.ID)
		}
		if known && old.state == store.StateAcked && j.State != store.StateAcked {
			n.s.fail("node %d: job %s was acknowledged, and is in state %d now", n.i, j.ID, j.State)
		}
		switch e.Kind {
		case engine.LogJob:
			n.log(entry{kind: jobEntry, id: j.ID, a: slices.Clone(j.Queue.NameBytes()), b: slices.Clone(j.Record())})
		case engine.LogMove:
			n.log(entry{kind: moveEntry, id: j.ID, a: slices.Clone(j.StateRecord()), b: slices.Clone(j.RawParts()), c: slices.Clone(j.Queue.NameBytes())})
		default:
			n.log(entry{kind: stateEntry, id: j.ID, a: slices.Clone(j.StateRecord()), b: slices.Clone(j.RawParts())})
		}
	case engine.LogDrop:
		n.log(entry{kind: lessEntry, id: e.ID, a: slices.Clone(n.e.Message(e))})
	case engine.LogDelete:
		n.log(entry{kind: deleteEntry, id: e.ID})
	case engine.LogQueue:
		n.log(entry{kind: queueEntry, a: slices.Clone(e.Queue.NameBytes())})
	case engine.LogLock:
		rec := slices.Clone(n.e.Message(e))
		if _, err := store.ParseLock(rec); err != nil {
			n.s.fail("node %d logs a lock that can't be read: %v", n.i, err)
			return
		}
		n.log(entry{kind: lockEntry, a: rec})
	case engine.LogEntry:
		if e.Entry != nil {
			n.log(entry{kind: sharedEntry, a: e.Entry.Append(nil)})
		}
	case engine.LogUnlock:
		n.log(entry{kind: unlockEntry, a: slices.Clone(n.e.Message(e))})
	}
}

// rewrite begins the log anew with what the node has in memory, as BGREWRITEAOF does.
// After that all of it is on disk.
func (n *node) rewrite() { n.saveTo(&n.disk) }

// saveTo makes a log begin with what the node has in memory.
func (n *node) saveTo(d *disk) {
	d.queues, d.locks, d.log = nil, nil, d.log[:0]
	at := map[*store.Queue]int{}
	n.eachQueue(func(q *store.Queue) {
		at[q] = len(d.queues)
		d.queues = append(d.queues, savedQueue{name: slices.Clone(q.NameBytes())})
	})
	known := 0
	var jobs []*store.Job
	seen := map[store.ID]bool{}
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		jobs = jobs[:0]
		cursor = n.e.ScanJobs(cursor, &jobs)
		for _, j := range jobs {
			i, yes := at[j.Queue]
			if !yes || j.State == store.StateWaitRepl || seen[j.ID] {
				continue
			}
			seen[j.ID] = true
			d.queues[i].recs = append(d.queues[i].recs, slices.Clone(j.Record()))
			// That a job was delivered isn't logged.
			if k, logged := n.disk.jobs[j.ID]; !logged || (k.state == store.StateAcked) != (j.State == store.StateAcked) || !bytes.Equal(k.queue, j.Queue.NameBytes()) {
				n.s.fail("node %d: job %s is in state %d of queue %q, and the log says %d of %q", n.i, j.ID, j.State, j.Queue.NameBytes(), k.state, k.queue)
			}
			known++
		}
	}
	if known != len(n.disk.jobs) {
		n.s.fail("node %d has %d jobs to save, and its log has %d", n.i, known, len(n.disk.jobs))
	}
	d.entries = n.e.Entries().Text()
	t := n.e.Locks().Table()
	d.floor, d.complete = t.Floor, t.Complete
	for l := t.Head; l != nil; l = l.Next {
		d.locks = append(d.locks, slices.Clone(l.Record()))
	}
}

// load reads the log of a node that starts. The effects of each entry are dropped: its
// consequences were logged when the entry was written.
func (n *node) load() {
	d := &n.disk
	must := n.mustLoad
	for _, q := range d.queues {
		sq := n.keys.make()
		for _, rec := range q.recs {
			must(n.e.LoadRecord(sq, rec))
		}
		if dropped := n.e.Attached(sq, q.name, 0); dropped > 0 {
			n.s.fail("node %d: %d jobs of queue %s are left out, because others have their IDs", n.i, dropped, q.name)
		}
	}
	n.learnEntries(d.entries)
	n.e.Locks().ApplyFloor(d.floor)
	n.e.Locks().ApplyMark(d.complete)
	for _, rec := range d.locks {
		must(n.e.Locks().Apply(rec))
	}
	n.e.Effects()
	for i := range d.log {
		n.apply(&d.log[i])
		n.e.Effects()
	}
	for _, h := range d.held {
		must(n.e.ApplyState(h[0], h[1]))
	}
	n.e.Effects()
}

// mustLoad fails if a node can't read what it, or its master, has written.
func (n *node) mustLoad(err error) {
	if err != nil {
		n.s.fail("node %d can't load what was saved: %v", n.i, err)
	}
}

// apply carries an entry out.
func (n *node) apply(e *entry) {
	switch e.kind {
	case jobEntry:
		n.mustLoad(n.e.ApplyJob(e.a, e.b))
	case stateEntry:
		n.mustLoad(n.e.ApplyState(e.a, e.b))
	case moveEntry:
		n.mustLoad(n.e.ApplyMove(e.c, e.a, e.b))
	case lessEntry:
		n.mustLoad(n.e.ApplyDrop(&e.id, (*store.ID)(e.a)))
	case deleteEntry:
		n.e.ApplyDelete(&e.id)
	case lockEntry:
		n.mustLoad(n.e.Locks().Apply(e.a))
	case unlockEntry:
		name, token := lock.UnlockParts(e.a)
		n.e.Locks().ApplyEnd(name, token)
	case queueEntry:
		n.mustLoad(n.e.ApplyQueue(e.a))
	case renameEntry:
		if !n.moveQueue(e.a, e.b) {
			n.s.fail("node %d: RENAME %s %s can't be done again by its log", n.i, e.a, e.b)
		}
	case dropEntry:
		if q := n.e.Queue(e.a); q != nil {
			n.keys.Drop([]*store.Queue{q})
		}
	case doubtEntry:
		n.e.Doubt(e.now, e.last)
	case sharedEntry:
		n.learnEntries(e.a)
	}
}

func (n *node) learnEntries(b []byte) {
	n.mustLoad(entries.Parse(b, func(e *entries.Entry) error {
		n.e.LoadEntry(e)
		return nil
	}))
}

// endCleanly writes the state file of a clean shutdown.
func (n *node) endCleanly() {
	d := &n.disk
	d.clean, d.known = true, n.e.Known()
	n.eachQueue(func(q *store.Queue) {
		for j := q.Working.Head; j != nil; j = j.Next {
			if j.Retry > 0 {
				d.held = append(d.held, [2][]byte{slices.Clone(j.StateRecord()), slices.Clone(j.RawParts())})
			}
		}
	})
}

func (n *node) eachQueue(do func(*store.Queue)) {
	var queues []*store.Queue
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		cursor = n.e.ScanQueues(cursor, &queues)
	}
	for i, q := range queues {
		if !slices.Contains(queues[:i], q) {
			do(q)
		}
	}
}

// moveQueue gives a queue another name. It returns false if there is no such queue, or the name isn't free.
func (n *node) moveQueue(from, to []byte) bool {
	q := n.e.Queue(from)
	if q == nil || n.e.Queue(to) != nil {
		return false
	}
	box := q.Box
	n.e.Unlinked(box, q)
	n.e.Attached(n.e.Reclaim(box), to, 0)
	return true
}
