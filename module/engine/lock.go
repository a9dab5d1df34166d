package engine

import (
	"container/heap"

	"jobmesh/module/store"
)

// Locks. Jobs hold them for what they are unique by, owners hold those of
// LOCK.ACQUIRE; all lie in the store's table. A lock is held while its lease
// lasts, by the steady clock, or where it has none as long as its job says so.
// One that is past its lease is as good as free, and is removed when somebody
// comes by; where somebody waits for it, its deadline is watched.

const (
	lockSteps  = 20   // buckets of the table of locks looked at in one tick
	sweepSteps = 2000 // likewise, after many jobs went at once
)

// deadlines are the locks that somebody waits for and that end by themselves.
type deadlines []deadline

type deadline struct {
	at   int64 // steady, ms
	name string
}

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].at < d[j].at }
func (d deadlines) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *deadlines) Push(x any)        { *d = append(*d, x.(deadline)) }
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	*d = (*d)[:last]
	return x
}

// nextToken makes a fencing token greater than any before it for this lock (l
// may be nil). It begins with the time, so that it also grows over the loss of
// all that was remembered.
func (n *Node) nextToken(l *store.Lock) uint64 {
	last := n.store.Locks().Floor
	if l != nil {
		last = max(last, l.Token)
	}
	return max(uint64(max(n.now, 0))<<20, last+1)
}

// liveLock finds a lock that is held; nil where it is free.
func (n *Node) liveLock(name []byte) *store.Lock {
	l := n.store.Lock(name)
	if l == nil || !n.lives(l) {
		return nil
	}
	return l
}

// lives says whether a lock is held still: its lease lasts, and where a job has it
// that says so too.
func (n *Node) lives(l *store.Lock) bool {
	if l.Until != 0 && l.Until <= n.steady() {
		return false
	}
	return l.Space() == store.LockBare || l.Flags&lockForeign != 0 || n.holds(l)
}

// takeLock gives a lock to a job, for lease ms (0: until it is freed), where no
// other holds it; then holder is nil. A job that has it already keeps its token,
// and its lease begins anew. Only this node decides.
func (n *Node) takeLock(name []byte, id *store.ID, lease int64) (token uint64, holder *store.Lock) {
	l, fresh := n.store.LockOrNew(name)
	if !fresh && l.Job != *id {
		if n.lives(l) {
			return 0, l
		}
		n.removeLock(l)
		l, fresh = n.store.LockOrNew(name)
	}
	if fresh {
		l.Job, l.Token = *id, n.nextToken(nil)
	}
	l.Lease, l.Until = lease, 0
	if lease > 0 {
		l.Until = n.steady() + lease
	}
	return l.Token, nil
}

// freeLock ends a job's lock; false where another has it, or nobody.
func (n *Node) freeLock(name []byte, id *store.ID) bool {
	l := n.store.Lock(name)
	if l == nil || l.Job != *id {
		return false
	}
	n.dropLock(l)
	return true
}

// removeLock forgets a lock that is over, and has its job know.
func (n *Node) removeLock(l *store.Lock) {
	n.lapsed(l)
	n.dropLock(l)
}

// dropLock forgets a lock, and lets those go on who waited for it.
func (n *Node) dropLock(l *store.Lock) {
	n.scratch.name = append(n.scratch.name[:0], l.Name()...)
	n.store.RemoveLock(l)
	n.lockFreed(n.scratch.name)
}

// lockFreed is told that a lock has become free.
func (n *Node) lockFreed(name []byte) {
	if store.Space(name[0]) == store.LockRun {
		n.store.WakeLanes(name)
	}
}

// watchLock has [Node.Tick] see to it that a lock's end isn't missed by those
// who wait for it.
func (n *Node) watchLock(l *store.Lock) {
	if l.Until == 0 {
		return
	}
	heap.Push(&n.deadlines, deadline{l.Until, string(l.Name())})
	n.wake = min(n.wake, n.now+max(l.Until-n.steady(), 0))
}

// tickLocks ends the watched locks that are over, and removes some of the others.
func (n *Node) tickLocks() {
	if n.store.Locks().Len == 0 && len(n.deadlines) == 0 {
		return
	}
	now := n.steady()
	for len(n.deadlines) > 0 && n.deadlines[0].at <= now {
		name := heap.Pop(&n.deadlines).(deadline).name
		switch l := n.store.Lock([]byte(name)); {
		case l == nil:
		case l.Until == 0 || l.Until <= now:
			l.Flags &^= lockWatched
			if l.Until != 0 {
				n.removeLock(l)
			}
		default:
			n.watchLock(l) // it was extended
		}
	}
	if len(n.deadlines) > 0 {
		n.wake = min(n.wake, n.now+n.deadlines[0].at-now)
	}
	steps := lockSteps
	if n.sweep > 0 {
		steps = sweepSteps
	}
	for range steps {
		n.scratch.locks = n.scratch.locks[:0]
		n.lockCursor = n.store.ScanLocks(n.lockCursor, &n.scratch.locks)
		for _, l := range n.scratch.locks {
			if !n.lives(l) {
				n.removeLock(l)
			}
		}
		if n.lockCursor == 0 {
			n.sweep = max(n.sweep-1, 0)
			return
		}
	}
	if n.sweep > 0 {
		n.hurryTick()
	}
}
