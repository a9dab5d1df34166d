package engine

import (
	"slices"

	"jobmesh/module/lock"
	"jobmesh/module/store"
)

// Unique jobs. A job's record (store.Unique) says which locks the job has. The waiting lock refuses the
// adding of another job with the same key. The run lock holds other jobs with the key back while a client
// works on this one. The table of locks is made anew from the jobs. A lock is free if its job doesn't say
// that it has the lock, or isn't known any more: nothing has to be reaped.
//
// Three places ask for locks: [Node.AddJob] (unique_add.go), [Node.again] for a job that was put off by a
// conflict (reschedule.go), and [Node.claimRun] for one that is about to be delivered (run_lock.go). A node that
// is alone answers each at once; in a mesh more than half of the nodes have to vote.
//
// This file has what a job and this node know of the job's locks, and how the locks end.

// Unique has the options of uniqueness of a job that is being added.
type Unique struct {
	Strategy       uint8 // store.UniqueBefore …; 0: not at all
	Conflict, Busy uint8 // store.ConflictDrop …, store.BusyWait …
	Mesh, Any      bool
	Keyed          bool // Key is the job's key; otherwise its body is
	Key            []byte
	Limit          int   // how many jobs may have the key at a time, up to store.MaxLimit; 0 is as 1
	LockTTL        int64 // seconds; 0: as long as the job has the lock. For a window: its TTL
	RunTTL         int64 // seconds; 0: as long as the job has the lock
	ConflictDelay  int64 // seconds; of debounce: after its creation the job is due by then
	BusyDelay      int64 // seconds
}

// Refusals of unique jobs.
const (
	// ErrDropped isn't an error to the client, which asked to leave the job out in this case.
	ErrDropped  Refusal = "DUPLICATE another job has the key"
	ErrLockLost Refusal = "LOCKLOST the job's lock is over, and another has it: stop, or acknowledge what is done"
)

// uniqueMesh has the jobs and keys that wait for other nodes.
type uniqueMesh struct {
	adds     map[store.ID]*claimedAdd
	behind   map[store.ID]*addLine // by the job: its changes that wait for the end of its ADDJOB
	ended    []store.ID            // jobs whose ADDJOB has ended, and whose changes follow
	runs     map[string]store.ID   // by the lock's name: the job for whose run the lock is being acquired
	asked    map[string]askedRuns  // by the queue's name
	looks    agenda                // when to look at queues whose next job waits for the answer about another one
	backoffs map[string]*backoff   // of locks that were refused: not to be asked for yet
	past     passing               // jobs up to which a queue has only jobs that aren't asked for, see beyond
	back     givenBack             // jobs whose run began at another node, and that were given back here
	apart    map[string]struct{}   // queues with jobs that aren't asked for, for want of a majority
	away     []string              // the same queues, in the order in which they are served
}

func newUniqueMesh() uniqueMesh {
	return uniqueMesh{adds: map[store.ID]*claimedAdd{}, behind: map[store.ID]*addLine{}, runs: map[string]store.ID{}, asked: map[string]askedRuns{}, backoffs: map[string]*backoff{}, apart: map[string]struct{}{}}
}

func (c *uniqueMesh) count() int {
	return len(c.adds) + len(c.behind) + len(c.runs) + len(c.asked) + len(c.backoffs) + len(c.apart)
}

// SetUnique turns uniqueness off, for tests that have other subjects, or on again. Jobs that
// were added while it was off aren't unique.
func (n *Node) SetUnique(yes bool) { n.notUnique = !yes }

// lockName is the name of a job's lock, valid until the next one is asked for.
func (n *Node) lockName(j *store.Job, u store.Unique, space store.Space) []byte {
	if u.Limit() > 1 && !u.Has(hasFlag(space)) {
		return n.votedName(j, u, space)
	}
	n.scratch.lock = j.AppendLock(n.scratch.lock[:0], u, space)
	return n.scratch.lock
}

// named says whether a name is still that of a job's lock: the job's queue may have another name by now. If the job
// hasn't the lock, it is any slot that the job could have. It doesn't use scratch.lock, where the caller may have the
// name of another job's lock.
func (n *Node) named(j *store.Job, space store.Space, name []byte) bool {
	u := j.Unique()
	if u == nil {
		return false
	}
	if u.Limit() > 1 && !u.Has(hasFlag(space)) {
		return n.ofKey(j, space, name)
	}
	n.scratch.other = j.AppendLock(n.scratch.other[:0], u, space)
	return string(n.scratch.other) == string(name)
}

func hasFlag(space store.Space) uint8 {
	if space == store.LockRun {
		return store.UniqueHasRun
	}
	return store.UniqueHasWait
}

// setLock notes that a job has a lock: that of this name, by this token.
func setLock(u store.Unique, space store.Space, token uint64, name []byte) {
	slot, _ := store.SlotName(name)
	u.SetSlot(space, slot)
	if space == store.LockRun {
		u.SetRun(token)
	} else {
		u.SetWait(token)
	}
}

func lockToken(u store.Unique, space store.Space) uint64 {
	if space == store.LockRun {
		return u.RunToken()
	}
	return u.WaitToken()
}

// Holds says whether the job that has a lock says so too. A lock that outlives its job counts until the next
// flush.
func (o *owners) Holds(l *store.Lock) bool {
	if l.Flags&lock.FlagOutlives != 0 {
		return l.Era == o.store.Locks().Epoch
	}
	j := o.store.Lookup(&l.Job)
	if j == nil {
		return false
	}
	u := j.Unique()
	if u == nil || !u.Has(hasFlag(l.Space())) {
		return false
	}
	return o.node().named(j, l.Space(), l.Name())
}

// knownHeld says whether a lock is held for certain: by a job that this node has.
func (n *Node) knownHeld(name []byte) bool {
	l := n.locks.Live(name)
	return l != nil && (*owners)(n).Holds(l)
}

// hasByNow says whether a job has got a lock meanwhile by other means than the acquisition that ends with
// token. Then the end of that acquisition isn't the lock's end: the job gets the token.
func (n *Node) hasByNow(j *store.Job, space store.Space, name []byte, token uint64) bool {
	if j == nil || j.State == store.StateAcked || !n.named(j, space, name) || !j.Unique().Has(hasFlag(space)) {
		return false
	}
	setLock(j.Unique(), space, token, name)
	return true
}

// HasLock says whether a job still has a lock, as far as this node knows. The job's flag may be stale: a lock
// whose lease is over is removed only when somebody looks at it.
func (n *Node) HasLock(j *store.Job, space store.Space) bool {
	u := j.Unique()
	if u == nil || !u.Has(hasFlag(space)) || n.lockLost(&j.ID) {
		return false
	}
	l := n.store.Lock(n.lockName(j, u, space))
	switch {
	case l != nil && l.Job == j.ID:
		return n.locks.IsLive(l)
	case n.locks.IsLive(l):
		return n.locks.Outvotes(j.ID, space)
	case u.Strategy() == store.UniqueWindow:
		return lock.BegunAt(u.WaitToken())+u.LockTTL() > n.now
	}
	return true // the job has the lock by the votes of others
}

// Token returns the fencing token of the lock that a job has: that of its run lock if it has both, 0 if it
// has none.
func (n *Node) Token(j *store.Job) uint64 {
	switch {
	case n.HasLock(j, store.LockRun):
		return j.Unique().RunToken()
	case n.HasLock(j, store.LockWait):
		// Another node may have asked for the lock since, and given the job to a client by that token.
		token := j.Unique().WaitToken()
		if l := n.store.Lock(n.lockName(j, j.Unique(), store.LockWait)); l != nil && l.Job == j.ID {
			token = max(token, l.Token)
		}
		return token
	}
	return 0
}

// putOff says whether a job was put off by a conflict and still is. The job is new, or about to be queued
// again.
func (n *Node) putOff(j *store.Job) bool {
	if j.Parts == 0 {
		return false
	}
	u := j.Unique()
	return u != nil && u.Has(store.UniquePending)
}

// runs says whether a job must not be worked on beside others with its key.
func runs(j *store.Job) bool {
	u := j.Unique()
	return u != nil && u.Runs()
}

// mayRun says whether a client that says WORKING may have a job's run lock, or take the lock back if its
// lease is over. A job with RETRY 0 stays out of its queue after a NACK: then nobody works on it, though it
// was delivered.
func mayRun(j *store.Job, u store.Unique) bool {
	switch {
	case !u.Runs():
		return false
	case j.Retry > 0 || u.Has(store.UniqueHasRun):
		return true
	case handedOver(j):
		return false // the lock belongs to the node that may have taken the job
	case j.Uncertain():
		return true
	}
	return j.Flags&store.FlagDelivered != 0 && u.RunToken() > 0
}

// handedOver says whether another node may have taken a job from this one, and given it to a client. It is
// true only for a job with RETRY 0 that is unique while it is worked on.
func handedOver(j *store.Job) bool {
	u := j.Unique()
	if j.Retry > 0 || u == nil || !u.Runs() || u.Has(store.UniqueHasRun) {
		return false
	}
	_, offered := offerOf(j)
	return offered || isOffered(j)
}

// endsByDelivery says whether a job's strategy ends its waiting lock when the job is delivered.
func endsByDelivery(u store.Unique) bool {
	return u.Strategy() == store.UniqueBefore || u.Strategy() == store.UniqueBoth
}

// logsDelivery says whether the delivery of a job changes what locks it has.
func logsDelivery(j *store.Job) bool {
	if j.Parts == 0 {
		return false
	}
	u := j.Unique()
	return u != nil && u.Strategy() <= store.UniqueBoth
}

// accepted settles the locks of a job that came from another node. The job brings its waiting lock along; a
// run lock stays with the node that gave the job to a client.
func (n *Node) accepted(j *store.Job) {
	if u := j.Unique(); u != nil {
		u.Clear(store.UniqueHasRun)
	}
}

// Lapsed notes in a job that its lock is over.
func (o *owners) Lapsed(l *store.Lock) {
	if lock.Ended(l) || l.Flags&lock.FlagOutlives != 0 || l.Space() == store.LockBare || !o.Holds(l) {
		return
	}
	j := o.store.Lookup(&l.Job)
	if l.Space() == store.LockWait && l.Until > 0 && l.Until <= o.node().monotonic() {
		j.Unique().Set(store.UniqueLapsed)
	}
	o.node().hasNoMore(j, l.Space())
}

func (n *Node) hasNoMore(j *store.Job, space store.Space) {
	j.Unique().Clear(hasFlag(space))
	if space == store.LockWait {
		n.begins.over.Remove(j.ID) // begins.apart stays: nodes that were apart must still hear of the lease
	}
	if !n.passive && !n.loading {
		n.log(LogState, j)
	}
}

// endWait frees a job's waiting lock, if it has one. A window's lock stays.
func (n *Node) endWait(j *store.Job, u store.Unique) {
	if u.Has(store.UniqueHasWait) && u.Strategy() != store.UniqueWindow {
		name := n.lockName(j, u, store.LockWait)
		u.Clear(store.UniqueHasWait)
		n.begins.remove(j.ID)
		n.freeName(name, &j.ID, u.WaitToken())
	}
}

// endRun frees a job's run lock, if it has one.
func (n *Node) endRun(j *store.Job, u store.Unique) {
	if u.Has(store.UniqueHasRun) {
		name := n.lockName(j, u, store.LockRun)
		u.Clear(store.UniqueHasRun)
		n.freeName(name, &j.ID, u.RunToken())
	}
}

// endsWaiting frees the waiting lock of a job that is delivered, if its strategy ends that lock then.
func (n *Node) endsWaiting(j *store.Job, u store.Unique) {
	if !endsByDelivery(u) {
		return
	}
	if u.Has(store.UniqueHasWait) || n.mesh.Alone() {
		n.endWait(j, u)
		return
	}
	// Another node took the lock again, when the job was given back there.
	if l := n.locks.Live(n.lockName(j, u, store.LockWait)); l != nil && l.Job == j.ID && !n.locks.AsksFor(&j.ID, string(l.Name())) {
		n.freeName(slices.Clone(l.Name()), &j.ID, l.Token)
	}
}

// endLocks frees all locks of a job, and its queue's slot, that is done, or is about to be forgotten.
func (n *Node) endLocks(j *store.Job) {
	if j.Parts == 0 {
		return
	}
	n.freeSlot(j)
	if u := j.Unique(); u != nil {
		n.endWait(j, u)
		n.endRun(j, u)
		n.begins.remove(j.ID)
	}
}

// endVotes takes back this node's votes for a job that is done, whether or not the job's record here says
// that it has the locks. The node where the job had them may forget that it has to send this node an unlock.
// A vote that outlives its job stays.
func (n *Node) endVotes(j *store.Job) {
	if j.Parts == 0 || n.mesh.Alone() || n.passive || n.loading {
		return
	}
	u := j.Unique()
	if u == nil {
		return
	}
	for _, space := range [...]store.Space{store.LockWait, store.LockRun} {
		base := n.keyLock(j, u, space)
		if u.Limit() > 1 {
			base = slices.Clone(base) // removing a lock takes the memory
		}
		for slot, l := range n.locks.Slots(base, u.Limit(), 0) {
			if u.Has(hasFlag(space)) && slot == u.Slot(space) {
				continue // endLocks frees it at all nodes
			}
			if l != nil && l.Job == j.ID && l.Flags&lock.FlagOutlives == 0 {
				n.locks.Remove(l)
			}
		}
	}
}

// freeName frees a job's lock at all nodes, even if this one has no vote for it.
func (n *Node) freeName(name []byte, id *store.ID, token uint64) {
	if l := n.store.Lock(name); l != nil && l.Job == *id && l.Token > token && l.Space() == store.LockRun && !n.mesh.Alone() && !lock.Ended(l) {
		return // by now the lock is that of another run of the job
	}
	if n.locks.Free(name, id) || n.mesh.Alone() || n.passive || n.loading {
		return
	}
	if token > 0 {
		n.locks.EnqueueUnlock(name, lock.Holder{Job: *id}, token, 0, n.mesh.Nodes())
	}
	n.locks.IsFreed(slices.Clone(name))
}

// leaveTo frees the run lock of a job that another node works on now.
func (n *Node) leaveTo(j *store.Job) {
	if j.Parts == 0 {
		return
	}
	n.leaveSlot(j)
	if u := j.Unique(); u != nil {
		n.endRun(j, u)
	}
}

// discard frees a job's locks, and forgets the job.
func (n *Node) discard(j *store.Job) {
	n.noteGone(&j.ID)
	n.endLocks(j)
	n.store.Remove(j)
}

// revoke forgets a job that was promised to nobody; its window ends too.
func (n *Node) revoke(j *store.Job) {
	if u := j.Unique(); u != nil && u.Strategy() == store.UniqueWindow && u.Has(store.UniqueHasWait) {
		n.freeName(n.lockName(j, u, store.LockWait), &j.ID, u.WaitToken())
	}
	n.losesOne(j) // it may have been counted by a release meanwhile
	n.discard(j)
}

// HeldBack counts the jobs that are held back in all queues.
func (n *Node) HeldBack() uint64 { return n.store.HeldBack() }
