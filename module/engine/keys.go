package engine

import (
	"unsafe"

	"jobmesh/module/store"
)

// limbo holds queues whose key has just let go of them: deleted, or renamed
// and about to be taken back. The next tick buries those that weren't.
type limbo struct {
	box unsafe.Pointer
	q   *store.Queue
}

// NewQueueFor makes a queue for a value that is being loaded; it gets its name
// by [Node.Attached].
func (n *Node) NewQueueFor(box unsafe.Pointer) *store.Queue {
	q := n.store.AllocQueue(n.now)
	q.Box = box
	q.Flags |= queueUnsettled
	return q
}

// LoadRecord adds a saved job to a queue that isn't attached yet.
func (n *Node) LoadRecord(q *store.Queue, rec []byte) error {
	j, err := n.store.JobFromRecord(rec)
	if err != nil {
		return err
	}
	n.store.LoadInto(q, j)
	return nil
}

// Unlinked takes a queue out of its key's value. Its jobs are no longer known.
func (n *Node) Unlinked(box unsafe.Pointer, q *store.Queue) {
	n.let(q)
	q.Box = nil
	n.limbo = append(n.limbo, limbo{box, q})
}

// let makes a queue's jobs unknown, whether it was visible or dormant.
func (n *Node) let(q *store.Queue) {
	if q.DB != 0 {
		n.forgetDormant(q)
		return
	}
	n.hide(q)
	q.Waiters = 0
	if q.Uniques > 0 {
		n.sweepLocks() // those of its jobs are free
	}
	n.store.Detach(q)
}

// sweepLocks has all locks looked at soon, bit by bit. Two passes: what is
// inserted behind the first one's back is met by the second.
func (n *Node) sweepLocks() {
	if n.store.Locks().Len > 0 {
		n.sweep = 2
		n.hurryTick()
	}
}

func (n *Node) forgetDormant(q *store.Queue) {
	for i, d := range n.dormant {
		if d == q {
			n.dormant = append(n.dormant[:i], n.dormant[i+1:]...)
			return
		}
	}
}

// Reclaim finds the queue that was in a value before its key was renamed or
// moved; nil where there is none.
func (n *Node) Reclaim(box unsafe.Pointer) *store.Queue {
	for i := len(n.limbo) - 1; i >= 0; i-- {
		if l := n.limbo[i]; l.box == box {
			n.limbo = append(n.limbo[:i], n.limbo[i+1:]...)
			l.q.Box = box
			return l.q
		}
	}
	return nil
}

// Attached makes a queue and its jobs known, under a name, after it was loaded,
// restored, renamed or moved. In another database than 0 it lies dormant. It
// returns how many jobs were dropped because their IDs are known already.
//
// It delivers nothing: the command that brings the queue isn't logged yet, and what is
// logged of a job before that finds no such job. The next tick serves those who wait.
func (n *Node) Attached(q *store.Queue, name []byte, db int) (dropped int) {
	// What this one replaces must not stand in the way of the same IDs.
	n.bury()
	dormant := q.DB != 0
	q.DB = int32(db)
	n.unsettle(q)
	if db != 0 {
		n.dormant = append(n.dormant, q)
		n.store.Rename(q, name)
		return 0
	}
	dropped = n.store.Attach(q, name)
	if dormant {
		n.rejoin(q)
	}
	q.ATime = n.now
	n.welcome(q)
	if q.Waiting() > 0 || q.Pause != 0 {
		n.show(q)
	}
	if !n.loading && !n.passive {
		n.relock(q)
		if dormant {
			n.resettle(q)
			if q.Flags&queueUnsettled != 0 {
				// Its uncertain jobs were marked when it was loaded.
				n.SettleQueue(q, Trust{Exact: true})
			}
		}
		n.serveBehind(q)
	}
	return dropped
}

// serveBehind serves those who wait for a queue, behind the command or event that this is.
func (n *Node) serveBehind(q *store.Queue) {
	if q.Head != nil && (q.Waiters > 0 || n.hungry.len() > 0) {
		n.serveLater(q)
	}
}

// outOfSight says whether there are queues whose jobs aren't known for the time being.
func (n *Node) outOfSight() bool { return len(n.dormant)+len(n.limbo) > 0 }

// bury gives up the queues in limbo.
func (n *Node) bury() {
	for _, l := range n.limbo {
		n.store.Bury(l.q)
	}
	n.limbo = n.limbo[:0]
}

// Flushed forgets what a database holds (-1: all), just before its values are
// freed by their owner.
func (n *Node) Flushed(db int) {
	n.bury()
	if db <= 0 {
		n.farewellAll()
		n.store.Forget()
		n.kin.untied = true
		n.era++
		n.sweepLocks()
		n.visible, n.cursor, n.evict = 0, 0, 0
	}
	kept := n.dormant[:0]
	for _, q := range n.dormant {
		switch {
		case db < 0:
		case int(q.DB) == db:
			// The table still knows its jobs: take them away from the value.
			n.takeOut(q)
		default:
			kept = append(kept, q)
		}
	}
	n.dormant = kept
}

// farewellAll is farewell for all jobs, before they are forgotten at once. Of very many
// locks, those that are left are found when they are in somebody's way.
func (n *Node) farewellAll() {
	if n.alone() || n.passive || n.loading {
		return
	}
	var next *store.Lock
	for l, most := n.store.Locks().Head, debtMax; l != nil && most > 0; l = next {
		next = l.Next
		if j := n.store.Lookup(&l.Job); j != nil && !ended(l) {
			most--
			n.farewell(j)
		}
	}
}

// takeOut leaves a value empty and buries what it had.
func (n *Node) takeOut(q *store.Queue) {
	*(**store.Queue)(q.Box) = nil
	q.Box = nil
	n.store.Bury(q)
}

// Swapped follows SWAPDB: queues fall dormant, others wake. The server allows equal
// numbers, and reports them too; then nothing changes places.
func (n *Node) Swapped(a, b int) {
	if a == b {
		return
	}
	if b == 0 {
		a, b = b, a
	}
	var out, in []*store.Queue
	if a == 0 {
		var cursor uint64
		for {
			cursor = n.store.ScanQueues(cursor, &out)
			if cursor == 0 {
				break
			}
		}
	}
	kept := n.dormant[:0]
	for _, q := range n.dormant {
		switch int(q.DB) {
		case b:
			q.DB = int32(a)
		case a:
			q.DB = int32(b)
		}
		if q.DB == 0 {
			in = append(in, q)
		} else {
			kept = append(kept, q)
		}
	}
	n.dormant = kept
	for _, q := range out {
		n.let(q)
		q.DB = int32(b)
		n.dormant = append(n.dormant, q)
	}
	for _, q := range in {
		q.DB = 1 // until then
		n.Attached(q, append([]byte(nil), q.NameBytes()...), 0)
	}
}

// Flush removes every queue and job (DEBUG FLUSHALL); waiting clients get the
// null array.
func (n *Node) Flush() {
	var all []*store.Queue
	var cursor uint64
	for {
		cursor = n.store.ScanQueues(cursor, &all)
		if cursor == 0 {
			break
		}
	}
	for _, q := range all {
		n.keys.Drop(q)
	}
	n.era++
	n.sweepLocks()
	n.endWaits(nil)
}
