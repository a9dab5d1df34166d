package engine

import "jobmesh/module/store"

// Trust says how far the saved queue positions of what was loaded can be
// believed. Jobs may have been delivered after they were saved, and the saved
// data not know it; an at-most-once job is only queued where that is ruled out.
type Trust struct {
	// Exact: nothing was delivered since (DEBUG RELOAD, a final save that the
	// operator wants queued).
	Exact bool
	// Queued: queued jobs are queued at once, as the operator asked
	// (aof-enqueue-jobs-once); at-most-once ones only with Exact.
	Queued bool
	// Logged: a log that holds every queueing of a delayed job, so one that
	// isn't due yet has surely not been delivered.
	Logged bool
}

// BeginLoading stops timers and deliveries until [Node.EndLoading].
func (n *Node) BeginLoading() { n.loading = true }

// EndLoading ends loading; the caller settles what was loaded.
func (n *Node) EndLoading() { n.loading = false }

// Loading says whether a data set is being loaded.
func (n *Node) Loading() bool { return n.loading }

// Settle decides for every held job what its saved state means now.
func (n *Node) Settle(t Trust) {
	if n.passive {
		return
	}
	var queues []*store.Queue
	var cursor uint64
	for {
		queues = queues[:0]
		cursor = n.store.ScanQueues(cursor, &queues)
		for _, q := range queues {
			n.relock(q)
		}
		if cursor == 0 {
			break
		}
	}
	for {
		queues = queues[:0]
		cursor = n.store.ScanQueues(cursor, &queues)
		for _, q := range queues {
			n.SettleQueue(q, t)
		}
		if cursor == 0 {
			return
		}
	}
}

// SettleQueue is Settle for one queue (RESTORE).
func (n *Node) SettleQueue(q *store.Queue, t Trust) {
	if n.passive || n.loading || q.DB != 0 {
		return
	}
	var next *store.Job
	last := q.HeldTail
	for j := q.HeldHead; j != nil; j = next {
		next = j.Next
		n.settle(j, t)
		if j == last {
			break
		}
	}
	n.serve(q)
}

func (n *Node) settle(j *store.Job, t Trust) {
	if j.CTime > n.ctime {
		n.ctime = j.CTime
	}
	if n.settleOffered(j) {
		return
	}
	j, settled := n.settleFamily(j, t)
	if settled {
		return
	}
	atMostOnce := j.Retry == 0
	switch j.State {
	case store.StateQueued:
		j.State = store.StateActive
		if t.Exact || t.Queued && !atMostOnce {
			n.push(j)
			return
		}
		// Known, not queued, as in Disque: it may be in somebody's hands.
		if atMostOnce {
			j.Flags |= store.FlagDelivered
		}
		n.toWork(j)
	case store.StateActive:
		delayed := j.Flags&store.FlagQueuedOnce == 0
		if atMostOnce && j.Flags&store.FlagDelivered == 0 && !t.Exact && !(t.Logged && delayed && j.QTime > n.now) {
			j.Flags |= store.FlagDelivered
			j.QTime = n.now
		}
		// The clock of a worker that has the job starts anew with the server.
		if !atMostOnce && !delayed && !t.Exact {
			j.QTime = n.retryAt(j)
			if j.Parts > 0 {
				j.SetShift(j.QTime - retryTime(n, j))
			}
		}
		if j.Flags&store.FlagDelivered != 0 {
			n.store.Work(j, j.QTime)
		}
	}
	if j.State == store.StateAcked {
		j.QTime = n.now + gcFirstMS
	}
	n.arm(j)
}

// ApplyJob is LOADJOB: a job as it was on the node that logged it. It can be
// applied twice.
func (n *Node) ApplyJob(name, rec []byte) error {
	j, err := n.store.JobFromRecord(rec)
	if err != nil {
		return err
	}
	if old := n.store.Lookup(&j.ID); old != nil {
		n.store.FreeJob(j)
		return n.ApplyState(rec, nil)
	}
	q, err := n.queue(name)
	if err != nil {
		n.store.FreeJob(j)
		return err
	}
	if !n.store.Register(q, j) {
		n.store.FreeJob(j)
		return nil
	}
	n.touch(q)
	return nil
}

// ApplyDelete is DELJOB from the log or the master: the job is gone, whatever its state
// was. What follows from that was logged by its author.
func (n *Node) ApplyDelete(id *store.ID) {
	if j := n.store.Lookup(id); j != nil {
		n.touch(j.Queue)
		n.discard(j)
	}
}

// ApplyState is SETJOB: the changed state of a job, and who else holds it. Unknown jobs are passed over.
func (n *Node) ApplyState(rec, holders []byte) error {
	j, err := n.store.ApplyState(rec, holders)
	if err != nil || j == nil {
		return err
	}
	n.touch(j.Queue)
	return nil
}
