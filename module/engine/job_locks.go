package engine

import (
	"encoding/binary"

	"jobmesh/module/lock"
	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// How jobs and their locks meet. Package lock asks here what a job says of its locks, and tells the node here
// what is left to do for the job.

// Locks returns the locks that this node votes for, or has. Its methods that change something are events: see
// [Node.Effects].
func (n *Node) Locks() *lock.Node { return n.locks }

// jobLocks is what a node knows of jobs and their locks, beside what the jobs' records say.
type jobLocks struct {
	begins    beginnings
	delegated table.Recent[store.ID]           // jobs that live on at other nodes, see delegate; remembered for keepLostMS at least
	lost      table.Roster[store.ID, struct{}] // jobs that have lost a lock to another job, of which no client was told yet
	lookLost  int64                            // monotonic, ms: when lost and delegated are looked through next
	lossAt    int64                            // unix ms: what this node knew before may be lost; 0: nothing is lost
	ownBefore uint64                           // what this node loaded has all runs that it acquired by tokens up to this one; 0: that isn't known
}

const (
	keepLostMS = 10_000
	lostMost   = 1000 // losses that are looked at in one tick
)

// lockLost says whether a job has lost a lock to another job, and the client that works on it wasn't told
// yet.
func (n *Node) lockLost(id *store.ID) bool { return n.lost.Get(*id) != nil }

// endLoss follows when a client was told of a lost lock, or when another client is given the job. From then
// on the votes tell whether the key is still taken. The job doesn't say any more that it has the lock. If the
// job has votes for a run, the job's end gives them back.
func (n *Node) endLoss(j *store.Job) {
	if !n.lockLost(&j.ID) {
		return
	}
	n.lost.Remove(j.ID)
	if u := j.Unique(); u != nil && u.Strategy() == store.UniqueUntil {
		u.Clear(store.UniqueHasWait)
		n.log(LogState, j)
	}
}

// tickLost forgets the losses of jobs that are gone. It also forgets in time which jobs live on at other
// nodes, and which ones outlasted their end.
func (n *Node) tickLost(now int64) {
	if n.lost.Len()+n.delegated.Len()+n.outlasting.Len() > 0 && now >= n.lookLost {
		n.lookLost = now + keepLostMS
		n.delegated.Turn()
		n.lost.Begin()
		n.outlasting.Begin()
	}
	if n.outlasting.Pass(lostMost, func(id store.ID, l *life) bool {
		j := n.store.Lookup(&id)
		return j != nil && j.ETime == l.until
	}) {
		n.hurryTick()
	}
	if n.lost.Pass(lostMost, func(id store.ID, _ *struct{}) bool { return n.store.Lookup(&id) != nil }) {
		n.hurryTick()
	}
}

// livesAway says whether a job lies in a queue of another database, where its timers rest, and isn't done.
func (n *Node) livesAway(id *store.ID) bool {
	j := n.lookDormant(id)
	return j != nil && j.State != store.StateAcked && j.ETime > n.now && (j.State != store.StateWaitRepl || n.pendingAddOf(id) != nil)
}

// owners is how package lock sees the jobs of a node ([lock.Jobs]). unique.go, backoff.go and delegate.go have some
// of its methods, where the rest of their story is.
type owners Node

func (o *owners) node() *Node { return (*Node)(o) }

// Has says whether a job has a lock of this name, by this token.
func (o *owners) Has(id store.ID, name []byte, token uint64) bool {
	n, space := o.node(), store.SpaceOf(name)
	j := n.store.Lookup(&id)
	if j == nil || !n.named(j, space, name) {
		return false
	}
	u := j.Unique()
	return u.Has(hasFlag(space)) && lockToken(u, space) == token
}

// HasNoMore notes in a job that it has lost its lock.
func (o *owners) HasNoMore(id store.ID, space store.Space) {
	if j := o.store.Lookup(&id); j != nil {
		o.node().hasNoMore(j, space)
	}
}

// Loses notes that a job has lost a lock to another.
func (o *owners) Loses(id store.ID) {
	if o.Knows(id) {
		o.lost.Put(id, struct{}{})
	}
}

// Knows says whether this node has the job.
func (o *owners) Knows(id store.ID) bool { return o.store.Lookup(&id) != nil }

// Lives says whether this node knows a job that may have locks: one that isn't done, one for which a lock is
// being acquired, or one that has just gone to another node. Without the last a node that was asked before
// the job came, and one that was asked after it went, would both say that the job is gone.
func (o *owners) Lives(id store.ID) bool {
	if j := o.store.Lookup(&id); j != nil && j.State != store.StateAcked {
		return true
	}
	return o.node().livesOn(&id) || o.locks.Asks(&id)
}

// LivesElsewhere says whether a job has just gone to another node, and isn't known to be done.
func (o *owners) LivesElsewhere(id store.ID) bool { return o.delegated.Has(id) && !o.Done(id) }

// Done says whether this node knows that a job is done. What it alone has found of the job's end doesn't count: a client of another
// node may work on the job, and have its locks.
func (o *owners) Done(id store.ID) bool {
	j := o.node().lookEnded(&id)
	return j != nil && j.State == store.StateAcked && !ownView(j) || j == nil && o.tombstones.has(&id)
}

// CountsOn says whether this node may count on votes for a job: if the job isn't done, and isn't put off any
// more.
func (o *owners) CountsOn(id store.ID) bool {
	if j := o.store.Lookup(&id); j != nil {
		return j.State != store.StateAcked && !o.node().putOff(j)
	}
	return o.node().livesAway(&id)
}

// IsPutOff says whether a job is here and waits for its key.
func (o *owners) IsPutOff(id store.ID) bool {
	j := o.store.Lookup(&id)
	return j != nil && o.node().putOff(j)
}

// Over says whether this node knows that a job had the lock of this name, and never has it again: then the
// others need not be asked. That is known for the waiting lock of an at-most-once job, which is at no other
// node, and for a dead letter.
func (o *owners) Over(name []byte, id store.ID) bool {
	n := o.node()
	j := n.store.Lookup(&id)
	if j == nil || j.State == store.StateAcked || n.locks.Asks(&id) {
		return false
	}
	u := j.Unique()
	if u == nil { // a dead letter. Only the node where it waits can know that nobody has revived it
		return j.State == store.StateQueued || j.Extra(store.TagAsleep) == nil
	}
	if store.SpaceOf(name) != store.LockWait || j.Retry > 0 || j.Uncertain() || isOffered(j) || u.Has(store.UniqueHasWait) || n.putOff(j) || !n.named(j, store.LockWait, name) {
		return false
	}
	// The job was delivered. If the delivery is taken back, the job acquires the lock anew first.
	return endsByDelivery(u) && j.Flags&store.FlagDelivered != 0
}

// MayBeLapsed says whether a job's waiting lock may be over though this node has a vote for it
// without end: the job here is a copy, and another node may know more. If the lock is over as far
// as this node knows, MayBeLapsed makes all votes for it end, and says false.
func (o *owners) MayBeLapsed(name []byte, id store.ID) bool {
	if o.EndLapsed(name, id) {
		return false
	}
	j := o.store.Lookup(&id)
	return j != nil && j.State == store.StateActive && j.Place == store.InHeld && j.Holders() > 0 &&
		j.Flags&store.FlagQueuedOnce != 0 && !held(j) && j.Unique() != nil && j.Unique().LockTTL() > 0
}

// EndLapsed makes all votes for a job's waiting lock end if the lock is over by what this node knows, and
// says whether it is.
//
// A waiting lock can be over though its job lives: LOCKTTL ends it. A node that was apart, and wasn't told of
// the lease, keeps a vote without end. When such a vote stands in somebody's way, all nodes are asked with
// wire.Endless. A node where the lease is over acquires the lock once more, for a moment, so that the votes
// get an end. If a majority has voted for a later lease, these votes have an end already, and keep it.
func (o *owners) EndLapsed(name []byte, id store.ID) bool {
	n := o.node()
	j := n.store.Lookup(&id)
	if j == nil || j.State != store.StateActive && j.State != store.StateQueued || n.locks.Asks(&id) || isOffered(j) || n.putOff(j) || held(j) {
		return false
	}
	u := j.Unique()
	if u == nil || u.Has(store.UniqueHasWait) || !u.Has(store.UniqueLapsed) || u.LockTTL() == 0 || !n.named(j, store.LockWait, name) {
		return false
	}
	n.begins.over.Make(id, n.monotonic())
	n.hurryTick()
	return true
}

// RunLease returns the lease of a job's run lock, in ms.
func (o *owners) RunLease(id store.ID) int64 {
	j := o.store.Lookup(&id)
	return o.node().runLease(j, j.Unique())
}

// Freed lets the jobs go on that wait for a lock, which is free now.
func (o *owners) Freed(name []byte) {
	if store.SpaceOf(name) == store.LockRun {
		o.store.WakeKeyQueues(name)
		_, key := store.SlotName(name)
		o.node().unbar(key)
		return
	}
	o.node().slotFreed(name)
}

// BeforeAsking frees locks of jobs that were forgotten all at once, and tells the other nodes.
func (o *owners) BeforeAsking() {
	if len(o.farewells) > 0 && !o.loading {
		o.node().tickFarewells()
	}
}

// lockHost is the node as package lock sees it ([lock.Host]). Monotonic, Below and Receive are in everyday use in the
// engine, under its own names.
type lockHost Node

func (h *lockHost) node() *Node { return (*Node)(h) }

// Now is the node's time, unix ms.
func (h *lockHost) Now() int64 { return h.now }

// Monotonic is the time that leases are measured by, ms.
func (h *lockHost) Monotonic() int64 { return h.node().monotonic() }

// WakeIn asks for a call of Tick in ms.
func (h *lockHost) WakeIn(ms int64) { h.wake = min(h.wake, h.now+ms) }

// Below returns a random number of ms that is less than span.
func (h *lockHost) Below(span int64) int64 { return h.node().below(span) }

// Passive says whether the node follows a master.
func (h *lockHost) Passive() bool { return h.passive }

// Loading says whether data are being loaded.
func (h *lockHost) Loading() bool { return h.loading }

// WholeFor returns for how long this node has lost nothing, ms.
func (h *lockHost) WholeFor() int64 {
	if h.lossAt == 0 {
		return store.MaxLease
	}
	return min(max(h.now-h.lossAt, 0), store.MaxLease)
}

// Mark returns how many effects there are.
func (h *lockHost) Mark() int { return len(h.effects) }

// Cost returns what the effects since mark take of a tick's budget, if the whole budget is whole.
func (h *lockHost) Cost(mark, whole int) int { return h.node().cost(mark) * whole / tickBudget }

// LogLock logs a lock as it is now (SETLOCK).
func (h *lockHost) LogLock(l *store.Lock) {
	at := len(h.outbox)
	h.outbox = append(h.outbox, l.Record()...)
	h.effects = append(h.effects, Effect{Kind: LogLock, from: at, to: len(h.outbox)})
}

// LogUnlock logs the end of a lock (DELLOCK); [lock.UnlockParts] reads it.
func (h *lockHost) LogUnlock(name []byte, token uint64) {
	at := len(h.outbox)
	h.outbox = binary.LittleEndian.AppendUint64(h.outbox, token)
	h.outbox = append(h.outbox, name...)
	h.effects = append(h.effects, Effect{Kind: LogUnlock, from: at, to: len(h.outbox)})
}

// KeepVotes asks the caller to write down what is remembered of votes.
func (h *lockHost) KeepVotes() { h.effects = append(h.effects, Effect{Kind: KeepVotes}) }

// Done answers a client's LOCK command.
func (h *lockHost) Done(client any, r *lock.Result) {
	h.effects = append(h.effects, Effect{Kind: LockDone, Client: client, Outcome: r})
}

// Cleared answers a client's LOCK.CLEAR.
func (h *lockHost) Cleared(client any, locks int, err error) {
	h.effects = append(h.effects, Effect{Kind: Cleared, Client: client, Nodes: locks, Err: err})
}

// Receive takes a message that was put off.
func (h *lockHost) Receive(from wire.NodeID, message []byte) error {
	return h.node().Receive(from, message)
}

var _ membership.Host[*Peer] = (*host)(nil)
