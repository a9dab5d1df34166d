package engine

import (
	"slices"

	"jobmesh/module/lock"
	"jobmesh/module/store"
)

// Keys that several jobs may have at a time (UNIQUE … LIMIT n). The lock of such a key has n slots, and each slot is a lock by itself: see package
// lock. A job takes any free slot below its own limit, and its record says which one (store.Unique). So wherever a job's lock is named, that of its
// slot is meant.
//
// Another node may have asked for a slot of which this node's copy doesn't know: for a run, or when the job came back there. This node finds it by its
// own vote.

// votedName is the name of a job's lock as far as this node knows, if the job's record doesn't say that it has one: the slot in which this node votes
// for the job, or the one that it had last. It is scratch memory.
func (n *Node) votedName(j *store.Job, u store.Unique, space store.Space) []byte {
	base := n.keyLock(j, u, space)
	slot := n.locks.SlotOf(base, u.Limit(), u.Slot(space), &lock.Holder{Job: j.ID})
	if slot < 0 {
		slot = u.Slot(space)
	}
	n.scratch.lock = store.AppendSlotName(nil, slot, base)
	return n.scratch.lock
}

// keyLock is the name of the lock of a job's key, which may have slots. It is scratch memory.
func (n *Node) keyLock(j *store.Job, u store.Unique, space store.Space) []byte {
	n.scratch.lock = j.AppendKeyLock(n.scratch.lock[:0], u, space)
	return n.scratch.lock
}

// ofKey says whether a lock is that of a job's key, or a slot of it.
func (n *Node) ofKey(j *store.Job, space store.Space, name []byte) bool {
	u := j.Unique()
	if u == nil {
		return false
	}
	_, base := store.SlotName(name)
	n.scratch.other = j.AppendKeyLock(n.scratch.other[:0], u, space)
	return string(n.scratch.other) == string(base)
}

// inTheWay is the lock that keeps a job from a lock of this name, or from all slots of it that the job could have; nil: it looks free, or one of them
// does. A lock that the job has itself comes first, then one of whose holder this node doesn't know for certain, then the lowest.
func (n *Node) inTheWay(name []byte, id *store.ID, u store.Unique) (l *store.Lock) {
	if u.Limit() == 1 {
		return n.locks.Live(name)
	}
	free, sure := false, false
	for _, other := range n.locks.Slots(name, u.Limit(), 0) {
		switch {
		case other == nil:
			free = true
		case other.Job == *id:
			return other
		case l == nil:
			l, sure = other, (*owners)(n).Holds(other)
		case sure && !(*owners)(n).Holds(other):
			l, sure = other, false
		}
	}
	if free {
		return nil
	}
	return l
}

// KeySlot is the slot of its key that a job has; ok is false if it has none, or if only one job may have its key.
func (n *Node) KeySlot(j *store.Job) (slot int, ok bool) {
	u := j.Unique()
	if u == nil || u.Limit() == 1 {
		return 0, false
	}
	for _, space := range [...]store.Space{store.LockRun, store.LockWait} {
		if n.HasLock(j, space) {
			return u.Slot(space), true
		}
	}
	return 0, false
}

// wanted says which lock to acquire for a job: any slot, and first of all the one that it had last. The caller adds the lease.
func (n *Node) wanted(j *store.Job, u store.Unique, space store.Space) lock.ForJob {
	w := lock.ForJob{Name: slices.Clone(n.keyLock(j, u, space)), Job: j.ID, Any: u.Has(store.UniqueAny)}
	if u.Limit() == 1 {
		return w
	}
	w.Slots, w.First = u.Limit(), n.locks.FirstSlot()
	if lockToken(u, space) > 0 {
		w.First = u.Slot(space)
	}
	return w
}

// wantedAgain is wanted for a lock that is to be renewed: if the job says that it has a slot, no other will do.
func (n *Node) wantedAgain(j *store.Job, u store.Unique, space store.Space) lock.ForJob {
	w := n.wanted(j, u, space)
	if w.Slots > 1 && u.Has(hasFlag(space)) {
		w.Name, w.Slots = store.AppendSlotName(nil, u.Slot(space), w.Name), 0
	}
	return w
}

// acquired is the name of the lock that was granted, of those that were wanted.
func acquired(wanted []byte, o *lock.Result) []byte {
	if o.Slot == 0 {
		return wanted
	}
	return store.AppendSlotName(nil, o.Slot, wanted)
}

// takeLock gives a job its lock, or a free slot of it, for lease ms (0: until it is freed), where this node alone decides. If none is free, holder is the
// lock that stands against it.
func (n *Node) takeLock(j *store.Job, u store.Unique, space store.Space, lease int64) (holder *store.Lock) {
	name := n.lockName(j, u, space)
	if u.Limit() > 1 && !u.Has(hasFlag(space)) {
		w := n.wanted(j, u, space)
		name = n.locks.FreeSlot(&w)
	}
	token, holder := n.locks.Take(name, &j.ID, lease)
	if holder == nil {
		setLock(u, space, token, name)
	}
	return holder
}

// nameSlot leaves in scratch.lock, in place of the name of a key's lock, that of the first slot which a job with this limit could have; if all are
// known to be held, that of the lowest. It returns its hash.
func (n *Node) nameSlot(limit int) (hash uint64) {
	base := slices.Clone(n.scratch.lock)
	for slot, l := range n.locks.Slots(base, limit, 0) {
		if l == nil || !n.mesh.Alone() && !(*owners)(n).Holds(l) {
			n.scratch.lock = store.AppendSlotName(n.scratch.lock[:0], slot, base)
			break
		}
	}
	return n.store.LockHash(n.scratch.lock)
}

// endsDue ends the jobs that have a key's lock, or slots of it, and whose time is over. True: there was one, so the key may be free.
func (n *Node) endsDue(name []byte, limit int) (any bool) {
	var ids []store.ID
	for _, l := range n.locks.Slots(name, limit, 0) {
		if l != nil {
			ids = append(ids, l.Job)
		}
	}
	for i := range ids {
		any = n.endDue(&ids[i]) || any
	}
	return any
}
