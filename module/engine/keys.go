package engine

import (
	"slices"
	"unsafe"

	"jobmesh/module/store"
)

// unlinked is a queue that has just lost its key: the key was deleted, or it was renamed and
// takes the queue back at once. The next tick gives up the queues that weren't taken back.
type unlinked struct {
	box  unsafe.Pointer
	q    *store.Queue
	live uint64 // jobs that hadn't ended
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
	n.touched = nil // the key may come back with this queue, or another may take its memory
	if len(n.made) > 0 {
		n.made = slices.DeleteFunc(n.made, func(made *store.Queue) bool { return made == q })
	}
	if n.store.Condemned(q) {
		q.Box = nil
		n.store.ScheduleFreeCondemned(q)
		n.hurryTick()
		return
	}
	live := q.Jobs() - q.Counted(store.Kept)
	n.let(q)
	q.Box = nil
	n.unlinked = append(n.unlinked, unlinked{box, q, live})
}

// let makes a queue's jobs unknown, whether it was visible or dormant.
func (n *Node) let(q *store.Queue) {
	if q.DB != 0 {
		n.forgetDormant(q)
		return
	}
	n.cover(q)
	n.store.Detach(q)
}

// cover is the engine's part of let: it hides a queue and forgets who waits for it.
func (n *Node) cover(q *store.Queue) {
	n.hide(q)
	n.unwait(q)
}

// unwait is cover, but when the queue comes back it is as visible as it is now.
func (n *Node) unwait(q *store.Queue) {
	q.Flags &^= queueReturned
	q.Waiters = 0
	if q.AnyParts() && q.Uniques > 0 {
		n.sweepLocks() // the locks of its jobs are free
	}
}

// sweepLocks begins two passes over all locks, bit by bit: the second meets what is
// inserted behind the first.
func (n *Node) sweepLocks() {
	n.locks.Sweep()
}

func (n *Node) forgetDormant(q *store.Queue) {
	n.endPausesAway()
	for i, d := range n.dormant {
		if d == q {
			n.setDormant(append(n.dormant[:i], n.dormant[i+1:]...))
			return
		}
	}
}

// Reclaim finds the queue that was in a value before its key was renamed or
// moved. If that queue was condemned, Reclaim makes an empty one in its place.
func (n *Node) Reclaim(box unsafe.Pointer) *store.Queue {
	for i := len(n.unlinked) - 1; i >= 0; i-- {
		if l := n.unlinked[i]; l.box == box {
			n.unlinked = append(n.unlinked[:i], n.unlinked[i+1:]...)
			l.q.Box = box
			return l.q
		}
	}
	return n.NewQueueFor(box)
}

// Restored is [Node.Attached] for a queue that RESTORE has made. A job that is in another queue,
// in whatever database, is dropped from this one. Otherwise the job's place would depend on
// which of the two queues comes to database 0 first, and on which jobs a server had listed.
func (n *Node) Restored(q *store.Queue, name []byte, db int) (dropped int) {
	if db != 0 {
		n.scheduleFree() // as in Attached
		n.listAll()
		if dropped = n.store.List(q); !n.loading && !n.passive {
			n.addEdges(q)
		}
	}
	return dropped + n.Attached(q, name, db)
}

// Attached makes a queue and its jobs known, under a name, after it was loaded,
// restored, renamed or moved. In another database than 0 it lies dormant. It
// returns how many jobs were dropped because their IDs are known already.
//
// It delivers nothing: the command that brings the queue isn't logged yet, and a reader of the
// log would not find a job that is logged before that command. The next tick serves the clients
// that wait.
func (n *Node) Attached(q *store.Queue, name []byte, db int) (dropped int) {
	// The queue that this one replaces may have had jobs with the same IDs: they must not
	// stand in the way.
	n.scheduleFree()
	dormant := q.DB != 0
	q.DB = int32(db)
	n.unsettle(q)
	anew := string(q.NameBytes()) != string(name)
	if anew {
		q.Pause, q.Unrated = 0, 0
	}
	if q.Jobs() > 0 {
		n.losesSight() // its jobs are in another queue than others believe, or came from a dump
	}
	if db != 0 {
		n.endPausesAway()
		n.setDormant(append(n.dormant, q))
		n.store.Rename(q, name)
		if !n.loading && !n.passive && !n.store.Listed(q) {
			n.addEdges(q) // Settle does it for queues that are being loaded
		}
		return 0
	}
	n.store.Rename(q, name)
	if anew {
		n.pauseAnew(q)
	}
	if !dormant {
		n.listAll()
	}
	n.welcome(q)
	dropped = n.attach(q, dormant)
	if !n.loading && !n.passive {
		n.serveBehind(q)
	}
	return dropped
}

// attach is Attached in database 0, for a queue that has its name. It serves no clients.
func (n *Node) attach(q *store.Queue, dormant bool) (dropped int) {
	n.pauseNamed(q)
	dropped = n.store.Reattach(q)
	if dormant && q.AnyParts() {
		n.rejoin(q)
	}
	q.ATime = n.now
	n.takeBack(q)
	if q.Flags&queueVisible != 0 { // SWAPDB took it away, see unwait
		n.visible++
	} else if q.Waiting() > 0 || q.Pause != 0 {
		n.show(q)
	}
	if n.loading || n.passive {
		return dropped
	}
	if q.AnyParts() {
		n.relock(q, dormant)
		if dormant {
			n.resettle(q)
		}
	}
	if dormant && q.Flags&queueUnsettled != 0 {
		// Its uncertain jobs were marked when it was loaded.
		n.SettleQueue(q, Trust{Exact: true})
	}
	if dormant && n.shut.Len() > 0 {
		n.shut.Begin() // the queue's pause may have ended while it was away
		n.hurryTick()
	}
	return dropped
}

// serveBehind serves the clients and nodes that wait for a queue, after this command or event.
func (n *Node) serveBehind(q *store.Queue) {
	if q.Head != nil && (n.waitersOf(q) > 0 || n.demands.Len() > 0) {
		n.serveLater(q)
	}
}

// outOfSight says whether there are queues whose jobs aren't known for the time being.
func (n *Node) outOfSight() bool { return len(n.dormant)+len(n.unlinked) > 0 }

func (n *Node) setDormant(list []*store.Queue) {
	n.dormant = list
	n.recount = true
}

// maybeDormant says whether a job that isn't known may be in a queue that lies in another database.
// Such a job is not known to have ended. The answer may be true for a job that is in no queue,
// see [Node.unlisted].
func (n *Node) maybeDormant(id *store.ID) bool { return n.store.Detached(id) || n.unlisted() }

// lookDormant finds a job in a queue that lies in another database; nil if it is in none. If the
// table of jobs lacks such jobs, they are put into it, once.
func (n *Node) lookDormant(id *store.ID) *store.Job {
	if len(n.dormant) == 0 {
		return nil
	}
	n.listAll()
	if j := n.store.LookupDetached(id); j != nil && j.Queue.DB != 0 {
		return j
	}
	return nil // also if the job's queue has just lost its key
}

// lookEnded finds a job that is known, or one in another database that is acknowledged: this node
// still answers from it that the job is done.
func (n *Node) lookEnded(id *store.ID) *store.Job {
	j := n.store.Lookup(id)
	if j == nil {
		if j = n.lookDormant(id); j != nil && j.State != store.StateAcked {
			return nil
		}
	}
	return j
}

// lookEnding finds a job that is to end, in a queue that lies in another database. A job that
// isn't promised yet is removed at once, and lookEnding returns nil.
func (n *Node) lookEnding(id *store.ID) *store.Job {
	j := n.lookDormant(id)
	if j != nil && j.State == store.StateWaitRepl {
		n.store.Oust(id)
		return nil
	}
	return j
}

// oust removes a job from a queue that isn't attached, if one has it.
func (n *Node) oust(id *store.ID) {
	n.listAll()
	n.store.Oust(id)
}

// unlisted says whether the table of jobs lacks those of a queue that lies in another
// database: the queue was loaded there, or database 0 was flushed since the queue went. To look
// for a job in such a queue would take time for each job in it.
func (n *Node) unlisted() bool {
	if n.recount {
		n.recount = false
		n.lacking = false
		for q := range store.Warmed(n.dormant, 1) {
			n.lacking = n.lacking || !n.store.Listed(q)
		}
	}
	return n.lacking
}

// listAll puts the jobs of all queues that lie in other databases into the table. RESTORE
// leaves out the jobs that are in the table already, and every server must leave out the same
// ones: this one, which saw the queue go there, and a server that loaded the queue there.
func (n *Node) listAll() {
	if !n.unlisted() {
		return
	}
	for _, q := range n.dormant {
		n.store.List(q)
	}
	n.recount = true
}

// Ends notes which queues were deleted, as the next tick would: the process ends before that.
func (n *Node) Ends() {
	n.scheduleFree()
	n.flushedAll()
}

// scheduleFree gives up the unlinked queues.
func (n *Node) scheduleFree() {
	for _, l := range n.unlinked {
		if l.live > 0 {
			n.losesSight()
		}
		n.queueDeleted(l.q)
		if !n.passive && !n.loading {
			n.Stats.Deleted += int64(l.live)
		}
		n.store.ScheduleFree(l.q)
	}
	n.unlinked = n.unlinked[:0]
}

// Flushed forgets what a database holds (-1: all), just before the server frees
// its values.
func (n *Node) Flushed(db int) {
	n.scheduleFree()
	n.flushedAll() // no load has begun since the data were emptied before
	n.store.ForgetCondemned(db)
	if db <= 0 {
		n.losesSight()
		if n.shared() && n.store.Jobs() > 0 {
			n.deleted.flushed, n.deleted.flushedJobs = n.newestHere(), n.store.Jobs()
			n.idling.deleted = n.now + flushedMS
		}
		n.farewellAll() // bit by bit, later: the server may load the same data anew
		n.forgetAll(n.store.Forget)
		n.hurryTick()
	}
	kept := n.dormant[:0]
	for _, q := range n.dormant {
		switch {
		case db < 0:
		case int(q.DB) == db:
			// The table still knows its jobs: take them away from the value.
			n.queueDeleted(q)
			n.takeOut(q)
		default:
			kept = append(kept, q)
		}
	}
	n.setDormant(kept)
}

// forgetAll makes the store forget all queues and jobs, by calling forget.
func (n *Node) forgetAll(forget func()) {
	forget()
	n.recount = true
	n.made = n.made[:0]
	n.deps.dropped, n.jobWaits.lost = true, true
	n.locks.Flushed()
	n.visible, n.cursor, n.evict = 0, 0, 0
}

// takeOut leaves a value empty, and gives up the queue that was in it.
func (n *Node) takeOut(q *store.Queue) {
	*(**store.Queue)(q.Box) = nil
	q.Box = nil
	n.store.ScheduleFree(q)
}

// Swapped follows SWAPDB: queues that leave database 0 become dormant, and those that come to it
// are attached. The server allows equal numbers, and reports them, too; then nothing changes places.
func (n *Node) Swapped(a, b int) {
	if a == b {
		return
	}
	if b == 0 {
		a, b = b, a
	}
	n.scheduleFree() // as in Attached
	n.losesSight()
	n.endPausesAway()
	n.store.SwapCondemned(int32(a), int32(b))
	var out []*store.Queue
	away := store.Warmed(n.dormant, 1)
	if a == 0 {
		out = n.store.DetachAll(func(q *store.Queue) {
			n.unwait(q)
			q.DB = int32(b)
			n.unsettle(q)
		})
		n.visible = 0
		away = n.store.Returning(n.dormant)
	}
	awaited := len(n.waits)+n.demands.Len() > 0
	// Until all are back, those that are back already count as dormant too: no harm.
	var kept []*store.Queue
	for q := range away {
		switch {
		case int(q.DB) == b && a == 0:
			q.DB = 0
			n.unsettle(q)
			if awaited {
				q.Flags |= queueReturned
			}
			n.attach(q, true)
			continue
		case int(q.DB) == b:
			q.DB = int32(a)
		case int(q.DB) == a:
			q.DB = int32(b)
		}
		kept = append(kept, q)
	}
	if len(kept) > 0 {
		out = append(kept, out...)
	}
	n.setDormant(out)
	if awaited {
		n.returns, n.returnAt = true, 0
		n.hurryTick()
	}
}

// Flush removes every queue and job (DEBUG FLUSHALL); waiting clients get the
// null array. From now on no job is known. The keys of very many queues go with the
// next ticks; [Node.Flushing] says whether some are still there.
func (n *Node) Flush() {
	if n.shared() && n.store.Jobs() > 0 {
		n.deleted.untoldFlush += n.store.Jobs()
		n.allDeleted(n.newestHere())
		n.idling.deleted = n.now + flushedMS
	}
	n.losesSight()
	n.condemn()
	n.dropCondemned()
	// The ends of keys say nothing of jobs in queues that were moved to another database, nor
	// of jobs in no queue. Without this effect readers of the log, and replicas, would take a
	// restored job for one that they still have.
	n.effect(LogFlush)
	n.endWaits(nil)
}

// ApplyFlush carries out JOBMESH FLUSHED from the log or the master. The ends of the keys
// follow in the log. Keys that are left at the log's end go once this node works by itself.
func (n *Node) ApplyFlush() { n.condemn() }

func (n *Node) condemn() {
	n.scheduleFree()
	n.forgetAll(n.store.Condemn)
}
