package engine

import (
	"encoding/binary"
	"math"

	"jobmesh/module/store"
)

// The term of a delivery: how long a client has a job before the job comes back. It is the job's retry time, or what the client said when it
// got the job (GETJOB … LEASE). That is kept in the job's TagLease, 4 bytes with the seconds, so that a later WORKING begins the same term
// anew, at whatever node it is said. When the delivery ends the bytes are cleared in place, as those of TagWorker are: so the job doesn't move in
// memory then.
//
// The other holders learn the term by Whereabouts, and don't queue their copies as long: a copy has 8 more bytes with the time (unix ms, this
// node's) until then. But they announce themselves each retry time, as always, and so hear that the delivery has ended, if they missed that
// word.

const (
	termLen  = 4
	leaseLen = termLen + 8
)

// TermOf is how long the current delivery of a job lasts, or the next one if no client has the job, in seconds. 0: the job never comes back.
func TermOf(j *store.Job) int64 {
	if s := leaseOf(j); s > 0 {
		return s
	}
	return int64(j.Retry)
}

// leaseOf is the term that a client said, in seconds; 0: none did.
func leaseOf(j *store.Job) int64 {
	if j.Parts == 0 || j.Retry == 0 {
		return 0
	}
	return readLease(j.Extra(store.TagLease))
}

func readLease(e []byte) int64 {
	if len(e) < termLen {
		return 0
	}
	return min(int64(binary.LittleEndian.Uint32(e)), MaxSeconds)
}

// lease keeps the term that a client said with a job that it is about to get. If the job has no room for that, it gets its retry time. The job
// may move.
func (n *Node) lease(j *store.Job, seconds int64) *store.Job {
	if j.Retry > 0 {
		j, _ = n.setExtra(j, store.TagLease, append(binary.LittleEndian.AppendUint32(nil, uint32(seconds)), make([]byte, leaseLen-termLen)...))
	}
	return j
}

// leaseElsewhere is until when a copy isn't queued here, because a client has the job at another node by a term that it said; 0: that isn't so.
func leaseElsewhere(j *store.Job) int64 {
	if j.Parts == 0 {
		return 0
	}
	if e := j.Extra(store.TagLease); len(e) == leaseLen {
		return int64(binary.LittleEndian.Uint64(e[termLen:]) & math.MaxInt64)
	}
	return 0
}

// boundLease cuts that time, which was loaded, to the whole term from now.
func boundLease(j *store.Job, now int64) {
	if most := now + leaseOf(j)*1000; leaseElsewhere(j) > most {
		binary.LittleEndian.PutUint64(j.Extra(store.TagLease)[termLen:], uint64(most))
	}
}

// ownTerm notes that a client has the job here.
func ownTerm(j *store.Job) {
	if j.Parts == 0 {
		return
	}
	if e := j.Extra(store.TagLease); len(e) == leaseLen {
		clear(e[termLen:])
	}
}

// waitsForLease puts a copy off once more that nobody has objected to, if a client may still have the job at another node, which isn't there.
func (n *Node) waitsForLease(j *store.Job) bool {
	left := leaseElsewhere(j) - n.now
	if left <= 0 || left > MaxSeconds*1000 {
		return false
	}
	n.setQTime(j, n.now+min(left, int64(j.Retry)*1000)+n.jitter())
	clearAnnounced(j)
	n.arm(j)
	return true
}

// endLease forgets the term of a delivery that has ended, in place.
func (n *Node) endLease(j *store.Job) {
	if j.Parts > 0 {
		clear(j.Extra(store.TagLease))
	}
}

// learnLease takes over the term of a delivery by another node, from now on. So a delivery by this node has ended, as the handing over of a job is
// one: without that the two nodes would object to each other for ever. A node that has no more than a copy tells nothing new. A node where
// the job is more than a copy knows better: by a word that crossed this one the job has come back here. The job may move.
func (n *Node) learnLease(j *store.Job, extras []byte) *store.Job {
	e := store.FindExtra(extras, store.TagLease)
	seconds := readLease(e)
	if seconds == 0 || len(e) == leaseLen && binary.LittleEndian.Uint64(e[termLen:]) != 0 || j.State != store.StateActive || j.Place != store.InHeld ||
		j.Reason() != store.NoReason || j.Retry == 0 || held(j) || n.isToQueue(j) || n.putOff(j) {
		return j
	}
	j = n.lease(j, seconds)
	n.foreignTerm(j)
	n.delegateRun(j)
	n.demote(j, 0)
	return j
}

// foreignTerm notes that the term that a copy has is that of a delivery by another node, and begins now as far as this node knows.
func (n *Node) foreignTerm(j *store.Job) {
	if seconds := leaseOf(j); seconds > 0 {
		if e := j.Extra(store.TagLease); len(e) == leaseLen {
			binary.LittleEndian.PutUint64(e[termLen:], uint64(n.now+seconds*1000))
		}
	}
}

// coverTerm makes the lock of a job's run last as long as its delivery, where the lock was asked for before it was known which client gets the
// job. granted is the lease that was asked for then, ms.
func (n *Node) coverTerm(id *store.ID, granted int64) {
	j := n.store.Lookup(id)
	if j == nil || j.Place != store.InWorking || n.mesh.Alone() {
		return
	}
	if u := j.Unique(); u != nil && u.Has(store.UniqueHasRun) {
		if lease := n.runLease(j, u); lease > granted {
			_, _ = n.renewLock(j, u, store.LockRun, lease, Work{}) // otherwise the lock ends sooner, and WORKING tells
		}
	}
}
