package engine

import (
	"cmp"
	"slices"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// The run lock of a job that is about to be delivered. A node that is alone takes the lock at once. In a mesh
// more than half of the nodes have to vote for it: until the answers are in, the job waits in its per-key queue,
// and the clients that could get it wait too; GETJOB … NOHANG waits for nothing else.
//
// In a mesh a run lock has a lease: RUNTTL, or how long the delivery lasts if RUNTTL isn't given. So a client that is
// gone loses job and lock together.

// claimed says how to go on with a job that could be delivered.
type claimed uint8

const (
	claimHad     claimed = iota // deliver it
	claimRefused                // it isn't in the waiting list any more: look at the next
	claimAsked                  // no job can be had before another node answers
	claimSlow                   // the job isn't asked for before others, whose answers take long: look behind it
	claimApart                  // the job isn't asked for before more nodes can be reached: look behind it
)

const (
	apartLookMS = 100 // ms between looks whether enough nodes can be reached for a majority
	apartSlice  = 75  // queues that are served at once when there is a majority again: each may ask all nodes
)

// askedRuns counts the acquisitions for a queue's jobs: of run locks, and of limits, which are blocks of its rate and slots. since is the monotonic
// time, in ms, since when none of them has been decided.
type askedRuns struct {
	jobs   int // all of them
	limits int
	since  int64
}

// runs is how many are of run locks. A job that may be delivered by the queue's limits must still be asked for.
func (a askedRuns) runs() int { return a.jobs - a.limits }

// claimRun takes the run lock of a job that is about to be delivered, and ends its waiting lock.
func (n *Node) claimRun(j *store.Job) claimed {
	u := j.Unique()
	if u == nil {
		return claimHad
	}
	switch {
	case !u.Runs() || n.notUnique:
	case !n.mesh.Alone():
		if t := n.claimRunOf(j, u); t != claimHad {
			return t
		}
	default:
		if n.takeLock(j, u, store.LockRun, u.RunTTL()) != nil {
			n.busy(j, u)
			return claimRefused
		}
		n.hasRun(j, "")
	}
	n.endsWaiting(j, u)
	return claimHad
}

// claimRunOf is [Node.claimRun] in a mesh.
func (n *Node) claimRunOf(j *store.Job, u store.Unique) claimed {
	name := n.keyLock(j, u, store.LockRun)
	l := n.inTheWay(name, &j.ID, u)
	switch {
	case l != nil && l.Job == j.ID && u.Has(store.UniqueHasRun):
		return claimHad
	case l != nil && l.Job != j.ID && !n.mereVote(u, l):
		n.busy(j, u)
		return claimRefused
	case l != nil && l.Job == j.ID:
		n.store.HoldBack(j, u) // another node has given the job to a client
		return claimRefused
	case !n.asks:
		return claimAsked
	}
	key, queue, id := string(name), string(j.Queue.NameBytes()), j.ID
	if _, asked := n.uniqueMesh.runs[key]; asked {
		n.store.HoldBack(j, u)
		return claimRefused
	}
	if !u.Has(store.UniqueAny) && !n.locks.Quorate(name) {
		if _, yes := n.uniqueMesh.apart[queue]; !yes {
			n.uniqueMesh.apart[queue] = struct{}{}
			n.uniqueMesh.away = append(n.uniqueMesh.away, queue)
		}
		return claimApart
	}
	if n.uniqueMesh.asked[queue].runs() >= max(1, int(n.waitersOf(j.Queue))) {
		if n.awaitsAnswer(queue) {
			return claimAsked
		}
		return claimSlow
	}
	// An acquisition that is decided at once is followed below, not in its callback: the callback serves
	// clients, and clients are being served already. A client counts its time from when it gets the job, so
	// the lease is longer by the time that the asking may take.
	freed, began, lease := n.store.Freed(), n.monotonic(), n.runLease(j, u)
	if n.term > 0 && j.Retry > 0 {
		lease = n.runLeaseFor(j, u, n.term)
	}
	now, _ := n.locks.AcquireFor(lock.ForJob{
		Name: name, Slots: u.Limit(), First: n.locks.FirstSlot(), Sure: u.Busy() != store.BusyWait,
		Job: id, Lease: lease + 2*lock.TimeoutMS, Usable: 2 * lock.TimeoutMS, Any: u.Has(store.UniqueAny),
	}, func(o lock.Result) {
		delete(n.uniqueMesh.runs, key)
		n.askFor(queue, -1)
		o.Began = cmp.Or(o.Began, began)
		n.runDecided(key, &id, lease, o)
		n.store.WakeKeyQueues([]byte(key)) // other jobs may wait in per-key queues for the outcome
		if q := n.store.Queue([]byte(queue)); q != nil && o.Kind != lock.Aborted {
			n.serve(q)
		}
		n.answered(n.waits[queue])
	})
	if now == nil {
		n.uniqueMesh.runs[key] = id
		n.askFor(queue, 1)
	}
	if n.store.Freed() != freed {
		// Another acquisition that was decided meanwhile may have moved j, or deleted it.
		if j = n.store.Lookup(&id); j == nil || j.State != store.StateQueued {
			if now != nil && now.Kind == lock.Granted {
				n.giveUpRun(acquired([]byte(key), now), &id, now.Token)
			}
			return claimRefused
		}
		u = j.Unique()
	}
	switch {
	case now == nil:
		n.store.HoldBack(j, u)
	case now.Kind == lock.Granted:
		setLock(u, store.LockRun, now.Token, acquired([]byte(key), now))
		n.hasRun(j, key)
		return claimHad
	case isBusy(now, &id, u):
		n.busy(j, u)
	default:
		n.store.HoldBack(j, u)
		n.backOff(key, now)
	}
	return claimRefused
}

// askFor counts the acquisitions of run locks for a queue's jobs: by is 1 when one begins, -1 when one is
// decided.
func (n *Node) askFor(queue string, by int) {
	a := n.uniqueMesh.asked[queue]
	if a.jobs == 0 || by < 0 {
		a.since = n.monotonic()
	}
	if a.jobs += by; a.jobs == 0 {
		delete(n.uniqueMesh.asked, queue)
		return
	}
	n.uniqueMesh.asked[queue] = a
}

// askForLimit is askFor for a block of a queue's rate, or a slot.
func (n *Node) askForLimit(queue string, by int) {
	n.askFor(queue, by)
	if a, open := n.uniqueMesh.asked[queue]; open {
		a.limits += by
		n.uniqueMesh.asked[queue] = a
	}
}

// isSlow says whether the answers about a queue's jobs take long.
func (n *Node) isSlow(a askedRuns) bool { return n.monotonic()-a.since >= lock.ResendMS }

// awaitsAnswer says whether the jobs of a queue wait in their order until it is known whether the client gets
// the one that is asked for. They don't if the answers take long, as with nodes that stand still, or that
// don't agree on which nodes belong to the mesh. If they did, jobs that need no votes would wait behind many
// that can't get them, each of which is asked for as long as [lock.TimeoutMS]. In that case jobs are found
// behind those that are asked for ([Node.beyond]).
func (n *Node) awaitsAnswer(queue string) bool {
	a := n.uniqueMesh.asked[queue]
	if n.isSlow(a) {
		return false
	}
	n.lookAfter(&n.uniqueMesh.looks, queue, lock.ResendMS)
	return true
}

// busy does what ONBUSY says with a job whose key is being worked on.
func (n *Node) busy(j *store.Job, u store.Unique) {
	switch u.Busy() {
	case store.BusyDrop:
		n.Stats.BusyDropped++
		n.Stats.Dropped++
		n.leftOutBusy(j, u)
		n.tellsDropped(j, WhyBusy.String())
		n.cancel(j, OutcomeDropped, nil)
	case store.BusyReschedule:
		n.reschedule(j, u, u.BusyDelay())
	case store.BusyDead:
		n.giveUp(j, WhyBusy, nil)
	default:
		n.store.HoldBack(j, u)
	}
}

// mereVote says whether a run lock that stands against a job may be no more than a vote: the node that asked
// for the lock may not have got it. Then all nodes are asked. This matters only for a job that doesn't wait
// for its key but would be dropped or moved.
func (n *Node) mereVote(u store.Unique, l *store.Lock) bool {
	return u.Busy() != store.BusyWait && !(*owners)(n).Holds(l)
}

// isBusy says whether the acquisition of a job's run lock has ended because another job has the key for
// certain, and the job doesn't wait for the key.
func isBusy(o *lock.Result, id *store.ID, u store.Unique) bool {
	return o.Kind == lock.Conflict && o.Most && o.Job != *id && u.Busy() != store.BusyWait
}

// hasRun follows when a job has got its run lock. name is that of its key.
func (n *Node) hasRun(j *store.Job, name string) {
	delete(n.uniqueMesh.backoffs, name)
	n.lost.Remove(j.ID)
}

// runLease returns the lease of a job's run lock, in ms: RUNTTL or the term of the delivery, whichever is shorter, or
// without either the time until the job's expiry. So the lock lasts at most as long as the job stays with the
// client that gets it.
func (n *Node) runLease(j *store.Job, u store.Unique) int64 { return n.runLeaseFor(j, u, TermOf(j)) }

// runLeaseFor is runLease for a delivery that lasts so many seconds; 0: without end.
func (n *Node) runLeaseFor(j *store.Job, u store.Unique, seconds int64) int64 {
	switch term := seconds * 1000; {
	case u.RunTTL() > 0 && term > 0:
		return min(u.RunTTL(), term)
	case u.RunTTL() > 0:
		return u.RunTTL()
	case term > 0:
		return term
	}
	return max(1, min(j.ETime-n.now, store.MaxLease)) // a restored job may live for ever
}

// runDecided goes on when the acquisition of a job's run lock is decided: it delivers the job if the lock was
// granted. key is the lock of the job's key; lease is that of the lock that it got, ms.
func (n *Node) runDecided(key string, id *store.ID, lease int64, o lock.Result) {
	j, name := n.store.Lookup(id), acquired([]byte(key), &o)
	here := j != nil && j.State == store.StateQueued && j.ETime > n.now && n.named(j, store.LockRun, name)
	switch {
	case o.Kind == lock.Granted && !here:
		// A WORKING that has come since owns these votes now, and extends them. Don't take them back.
		if !n.hasByNow(j, store.LockRun, name, o.Token) && !n.locks.AsksFor(id, string(name)) {
			n.giveUpRun(name, id, o.Token)
		}
	case o.Kind == lock.Granted:
		u := j.Unique()
		setLock(u, store.LockRun, o.Token, name)
		n.hasRun(j, key)
		q := j.Queue
		w := n.firstOf(q)
		if w != nil {
			n.term = w.Lease
		}
		allowed := n.allowed(q, j)
		n.term = 0
		if w == nil || q.Pause&PauseOut != 0 || n.passive || n.loading || !allowed || n.isToGo(j) {
			u.Clear(store.UniqueHasRun) // no client wants the job any more, the queue's limits forbid it, or a flush takes the job
			n.giveUpRun(name, id, o.Token)
			if !allowed {
				n.serveLater(q)
			}
			return
		}
		// When the key becomes free other jobs may go on: w must not be served with one of them, and j may
		// move.
		choosing := n.choosing
		n.choosing = true
		n.endsWaiting(j, u)
		n.choosing = choosing
		if j = n.store.Lookup(id); j == nil || j.State != store.StateQueued {
			return
		}
		if !w.active {
			n.serveLater(j.Queue)
			return
		}
		n.hand(w, j)
		n.coverTerm(id, lease)
	case here && isBusy(&o, id, j.Unique()):
		n.busy(j, j.Unique())
	default:
		n.backOff(key, &o)
	}
}

// giveUpRun takes back the votes for a run that doesn't begin. A client may still work on the job by an
// earlier run, and have said WORKING at another node. Then that node has taken these votes over, and extended
// them. Those votes stay.
func (n *Node) giveUpRun(name []byte, id *store.ID, token uint64) {
	n.freeRun(name, id, token, wire.Fresh)
}

// freeRun makes all nodes take back their votes for a run. With wire.Fresh the votes that were extended since
// stay.
func (n *Node) freeRun(name []byte, id *store.ID, token uint64, flags uint8) {
	h := lock.Holder{Job: *id}
	n.locks.Unvote(name, &h, token, flags)
	n.locks.EnqueueUnlock(name, h, token, flags, n.mesh.Nodes())
	n.locks.IsFreed(slices.Clone(name))
}

// Asks says whether this node awaits answers about the run of any job, or the rate of any queue.
func (n *Node) Asks() bool { return len(n.uniqueMesh.asked) > 0 }

// Asking says whether a job of one of the queues may be had when other nodes have answered. A client that
// doesn't want to wait waits for that alone ([Node.WaitForAnswers]).
func (n *Node) Asking(names [][]byte) bool {
	return slices.ContainsFunc(names, func(name []byte) bool { return n.uniqueMesh.asked[string(name)].jobs > 0 })
}

// beyond finds the first job of a queue behind those that aren't asked for now. These stay where they are, so
// the oldest is asked for first as soon as one may be. The search goes on where it was the last time, however
// many they are. When this call has passed over enough, the next tick goes on.
func (n *Node) beyond(q *store.Queue, apart bool) *store.Job {
	name := string(q.NameBytes())
	at, _ := n.uniqueMesh.past.Get(name)
	j := q.Head
	if last := n.store.Lookup(&at.job); last != nil && last.Queue == q && last.Place == store.InWaiting && at.apart == apart {
		j = last.Next
	}
	was := n.passes
	for at.apart = apart; j != nil && n.passes > 0 && n.passedOver(j, apart); j = j.Next {
		at.job = j.ID
		n.passes--
	}
	if n.passes < was {
		n.uniqueMesh.past.add(name, at, n.now)
	}
	if j != nil && n.passes == 0 {
		n.serveLater(q)
		return nil
	}
	return j
}

// passedOver says whether a job isn't asked for now, if one before it isn't.
func (n *Node) passedOver(j *store.Job, apart bool) bool {
	if j.Parts == 0 || j.ETime <= n.now {
		return false
	}
	u := j.Unique()
	return u != nil && awaitsRun(u) && !(apart && u.Has(store.UniqueAny))
}

// needsMajority says whether a job can't run before more than half of the nodes have voted for that.
func needsMajority(u store.Unique) bool {
	return awaitsRun(u) && !u.Has(store.UniqueAny)
}

// awaitsRun says whether a job has to take a run lock before it is delivered.
func awaitsRun(u store.Unique) bool {
	return u.Runs() && !u.Has(store.UniqueHasRun)
}

// runName stands for the name of any run lock.
var runName = []byte{byte(store.LockRun)}

// tickMinority tells the others when this node begins or ceases to be in the minority: they don't give it jobs that
// couldn't run here.
func (n *Node) tickMinority() {
	if is := !n.mesh.Alone() && !n.locks.Quorate(runName); is != n.minority {
		n.minority = is
		n.mesh.Beat()
	}
}

// passOver adds a job to those behind which [Node.beyond] looks.
func (n *Node) passOver(j *store.Job, apart bool) {
	n.uniqueMesh.past.add(string(j.Queue.NameBytes()), past{job: j.ID, apart: apart}, n.now)
}

// notPast lets a job that comes into the waiting list be found if it is before others that are passed over.
func (n *Node) notPast(j *store.Job) {
	n.uniqueMesh.past.stopAt(n, j, func(at past) bool { return n.passedOver(j, at.apart) })
	for _, p := range n.mesh.All() {
		p.past.stopAt(n, j, func(past) bool { return !n.fits(p, j) })
	}
}

// tickApart serves the clients that wait for jobs that weren't asked for, for want of a majority, once there
// is one. If there are very many queues it serves some with each tick.
func (n *Node) tickApart() {
	switch c := &n.uniqueMesh; {
	case len(c.apart) == 0:
	case !n.mesh.Alone() && !n.locks.Quorate(runName):
		n.wake = min(n.wake, n.now+apartLookMS)
	default:
		some := c.away[:min(apartSlice, len(c.away))]
		c.away = c.away[len(some):]
		for _, name := range some {
			delete(c.apart, name)
		}
		n.unserved = append(n.unserved, some...)
		n.hurryTick()
	}
}

// tickLooks serves the clients of queues whose next jobs have waited for an answer long enough by now.
func (n *Node) tickLooks() {
	n.tickAgenda(&n.uniqueMesh.looks, func(name string) int {
		if q := n.store.Queue([]byte(name)); q != nil && n.uniqueMesh.asked[name].jobs > 0 {
			n.serveLater(q)
		}
		return 0
	})
}
