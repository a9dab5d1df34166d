package engine

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// Unique jobs in a mesh. A node that is alone decides at once who gets a key (unique.go). In a mesh more than
// half of the nodes have to vote for it. The lock of an ADDJOB is acquired before there is a job, and the
// lock of a run before the job is delivered. Until the answers are in, the job waits in its per-key queue,
// and the clients that could get it wait too; GETJOB … NOHANG waits for nothing else.
//
// A run's lock has a lease: RUNTTL, or the job's retry time if RUNTTL isn't given. So a client that is gone
// loses job and lock together. When a lock that is held elsewhere ends, this node hears of it (Unlock). It
// also looks by itself now and then.

// Times, ms.
const (
	backoffFirstMS = 4   // first backoff of a key that was taken elsewhere,
	backoffLastMS  = 500 // which doubles up to here
	backoffKeptMS  = 5_000
	backoffSplitMS = 8_000 // the longest backoff after split votes: several nodes got some, and none a majority
	apartLookMS    = 100   // between looks whether enough nodes can be reached for a majority
	apartSlice     = 75    // queues that are served at once when there is a majority again: each may ask all nodes
	putOffMS       = 1_000 // between tries for a job that was put off, plus or minus half of it at random
)

// uniqueMesh has the jobs and keys that wait for other nodes.
type uniqueMesh struct {
	adds     map[store.ID]*claimedAdd
	runs     map[string]store.ID  // by the lock's name: the job for whose run the lock is being acquired
	asked    map[string]askedRuns // by the queue's name
	looks    agenda               // when to look at queues whose next job waits for the answer about another one
	backoffs map[string]*backoff  // of locks that were refused: not to be asked for yet
	past     passing              // jobs up to which a queue has only jobs that aren't asked for, see beyond
	back     givenBack            // jobs whose run began at another node, and that were given back here
	apart    map[string]struct{}  // queues with jobs that aren't asked for, for want of a majority
	away     []string             // the same queues, in the order in which they are served
}

// claimedAdd is an ADDJOB whose lock is being acquired.
type claimedAdd struct {
	client any
	denied bool // see [Node.Deny]
	claim  *lock.Acquisition
}

type backoff struct {
	until  int64 // monotonic, ms
	tries  int
	splits int   // how often the votes were split
	split  int64 // how long it took to learn of the last split, ms
	over   bool  // it is over, and the jobs that wait for the key were woken
}

// askedRuns counts the jobs of a queue whose run locks are being acquired. since is the monotonic time, in
// ms, since when none of these acquisitions has been decided.
type askedRuns struct {
	jobs  int
	since int64
}

func newUniqueMesh() uniqueMesh {
	return uniqueMesh{adds: map[store.ID]*claimedAdd{}, runs: map[string]store.ID{}, asked: map[string]askedRuns{}, backoffs: map[string]*backoff{}, apart: map[string]struct{}{}}
}

func (c *uniqueMesh) count() int {
	return len(c.adds) + len(c.runs) + len(c.asked) + len(c.backoffs) + len(c.apart)
}

// --- adding ------------------------------------------------------------------

// claimAdd acquires the lock of a job that is being added, whose name is in scratch.lock, and adds the job
// when the lock is granted. It returns the same as [Node.AddJob].
func (n *Node) claimAdd(a *Add) (answer store.ID, wait bool, err error) {
	if !a.CanWait {
		n.Stats.Refused++
		return answer, false, ErrClaimWait
	}
	a = a.clone()
	id := n.ids.Make(n.random.Uint64(), n.random.Uint64(), a.TTL, a.Retry > 0)
	c, began := &claimedAdd{}, n.monotonic()
	n.uniqueMesh.adds[id] = c
	decided := func(o lock.Result) (answer store.ID, wait bool, err error) {
		delete(n.uniqueMesh.adds, id)
		if c.denied {
			n.unclaimAdd(a, &id, &o)
			return answer, false, ErrReplTimeout
		}
		if a.Timeout > 0 {
			a.Timeout = max(1, a.Timeout-(n.monotonic()-began))
		}
		return n.addDecided(a, id, o)
	}
	now, claim := n.locks.AcquireFor(lock.ForJob{
		Name: n.scratch.lock, Job: id, Lease: n.waitLease(a), Outlives: a.Unique.Strategy == store.UniqueWindow,
		Any: a.Unique.Any, Timeout: a.Timeout,
	}, func(o lock.Result) {
		answer, wait, err := decided(o)
		switch {
		case c.client == nil:
		case err != nil:
			n.effects = append(n.effects, Effect{Kind: Deny, ID: id, Client: c.client, Err: err})
		case wait:
			n.pendingAdds[id].client = c.client
		default:
			n.effects = append(n.effects, Effect{Kind: Promise, ID: answer, Client: c.client})
		}
	})
	if now != nil {
		return decided(*now)
	}
	c.claim = claim
	return id, true, nil
}

// addDecided goes on with an ADDJOB when the acquisition of its lock is decided.
func (n *Node) addDecided(a *Add, id store.ID, o lock.Result) (answer store.ID, wait bool, err error) {
	if err := o.Err(); err != nil {
		n.Stats.Refused++
		return answer, false, err
	}
	// The acquisition took a moment: conditions that were checked before may not hold any more.
	where, err := n.addable(a)
	if err != nil {
		n.unclaimAdd(a, &id, &o)
		return answer, false, err
	}
	j := n.newJob(a, n.allExtras(where.family, n.attributes(a)), where.elsewhere)
	j.ID = id
	if o.Kind == lock.Granted {
		j.Unique().SetWait(o.Token)
	} else if other, err, over := n.refused(a, j.Unique(), &o.Job); over {
		n.store.FreeJob(j)
		return other, false, err
	}
	if wait, err = n.enlist(a, j, where); err != nil {
		n.unclaimAdd(a, &id, &o)
	}
	return id, wait, err
}

// unclaimAdd frees the lock that was acquired for a job that isn't added after all.
func (n *Node) unclaimAdd(a *Add, id *store.ID, o *lock.Result) {
	if o.Kind == lock.Granted {
		n.nameClaim(a)
		n.freeName(n.scratch.lock, id, o.Token)
	}
}

// knownHeld says whether a lock is held for certain: by a job that this node has.
func (n *Node) knownHeld(name []byte) bool {
	l := n.locks.Live(name)
	return l != nil && n.holds(l)
}

// abandonUniqueAdd ends an ADDJOB whose client has gone while its lock was being acquired.
func (n *Node) abandonUniqueAdd(id *store.ID) bool {
	c := n.uniqueMesh.adds[*id]
	if c != nil {
		delete(n.uniqueMesh.adds, *id)
		n.locks.Abandon(c.claim)
	}
	return c != nil
}

// clone copies an ADDJOB, so that it can be kept beyond the call.
func (a *Add) clone() *Add {
	b := *a
	b.Queue, b.Body, b.Unique.Key = slices.Clone(a.Queue), slices.Clone(a.Body), slices.Clone(a.Unique.Key)
	if b.Queue == nil {
		b.Queue = []byte{}
	}
	b.After = slices.Clone(a.After)
	if a.BlockedBy != nil {
		id := *a.BlockedBy
		b.BlockedBy = &id
	}
	return &b
}

// claimAgain is [Node.again] in a mesh: the job waits on until the other nodes have answered.
//
// Each node that has a copy could acquire the lock, for the lock is the job's. So the node that put the job
// off acquires it ([Node.later]). The others come a retry time later, by the usual rule for copies: each
// announces itself, and the first node objects if it is still to queue the job. If nobody objects, the node
// of the copy acquires the lock, and announces itself once more before it queues the job.
func (n *Node) claimAgain(j *store.Job, u store.Unique, lease int64, nack bool) bool {
	id := j.ID
	name := slices.Clone(n.lockName(j, u, store.LockWait))
	window := u.Strategy() == store.UniqueWindow
	setAnnounced(j) // until the job is left to another node
	switch {
	case n.locks.AnyAsks(name):
		// Only one acquisition at a time: several would take the votes from each other.
		n.later(j, u.ConflictDelay()+n.below(putOffMS))
		return false
	case n.isBackedOff(name):
		n.waitOut(j, string(name))
		return false
	}
	var now *lock.Result
	var claim *lock.Acquisition
	now, claim = n.locks.AcquireFor(lock.ForJob{
		Name: name, Job: id, Lease: lease, Outlives: window, PutOff: true, Any: u.Has(store.UniqueAny),
	}, func(o lock.Result) {
		j := n.store.Lookup(&id)
		if j != nil && n.putOff(j) && j.State == store.StateActive && n.named(j, store.LockWait, name) {
			if o.Kind == lock.NoQuorum {
				n.locks.FindLeft(claim)
			}
			if n.claimedAgain(j, &o, nack) {
				n.requeue(j, nack)
			}
		} else if o.Kind == lock.Granted && !n.hasByNow(j, store.LockWait, name, o.Token) {
			n.giveBack(name, &id, window, &o)
		}
	})
	if now != nil {
		return n.claimedAgain(j, now, nack)
	}
	n.waitFor(j, lock.TimeoutMS+putOffMS)
	return false
}

// giveBack frees a waiting lock that came too late for its job. A window lasts all the same if another node
// got it before for the job, which is done since.
func (n *Node) giveBack(name []byte, id *store.ID, window bool, o *lock.Result) {
	switch {
	case !window:
		n.freeName(name, id, o.Token)
	case !o.Kept:
		n.locks.RollBack(name, lock.Holder{Job: *id}, o.Token, n.mesh.Nodes())
	}
}

// claimedAgain goes on with a job that was put off when the acquisition of its lock is decided. It returns
// true if the job may be queued.
func (n *Node) claimedAgain(j *store.Job, o *lock.Result, nack bool) bool {
	u := j.Unique()
	name := string(n.lockName(j, u, store.LockWait))
	if o.Kind == lock.Granted {
		u.SetWait(o.Token)
		u.Clear(store.UniquePending)
		delete(n.uniqueMesh.backoffs, name)
	}
	left := delayFrom(j, n.now)
	switch {
	case n.passive:
	case j.Flags&store.FlagAnnounced == 0:
		n.log(LogState, j) // the job was left to another node meanwhile, or a client works on it
	case o.Kind == lock.Conflict:
		n.Stats.Duplicates++
		n.reschedule(j, u, u.ConflictDelay())
	case o.Kind != lock.Granted:
		if j.Retry > 0 && j.Holders() > 0 {
			setQueuedOnce(j) // as far as is known: others may have a majority
		}
		if o.IsSplit() {
			n.backOff(name, o)
		}
		n.waitOut(j, name)
	case left > 0:
		n.later(j, left)
	case !nack && j.Retry > 0 && j.Queue.Pause&PauseIn != 0:
		n.later(j, retryTime(n, j)-n.now) // as any job that falls due while its queue is paused
		n.shut.Put(j.ID, struct{}{})
	case nack || j.Flags&store.FlagQueuedOnce == 0 || j.Holders() == 0 || j.Retry == 0:
		n.tell(j, n.queued(j, 0))
		return true
	default: // another node may have got the lock at the same moment
		n.waitFor(j, store.AnnounceMS+jitterMS/2+n.jitter())
		clearAnnounced(j)
		n.arm(j)
	}
	return false
}

// waitOut puts a job off once more until it tries again. The time is random: other nodes that got a part of
// the votes try again, too, and not all are to do so at the same moment.
func (n *Node) waitOut(j *store.Job, name string) {
	span := putOffMS/2 + n.below(putOffMS)
	if r := n.uniqueMesh.backoffs[name]; r != nil {
		span += max(r.until-n.monotonic(), 0)
	}
	n.waitFor(j, span)
}

// named says whether a name is still that of a job's lock: the job's queue may have another name by now. It
// doesn't use scratch.lock, where the caller may have the name of another job's lock.
func (n *Node) named(j *store.Job, space store.Space, name []byte) bool {
	u := j.Unique()
	if u == nil {
		return false
	}
	n.scratch.other = j.AppendLock(n.scratch.other[:0], u, space)
	return string(n.scratch.other) == string(name)
}

// hasByNow says whether a job has got a lock meanwhile by other means than the acquisition that ends with
// token. Then the end of that acquisition isn't the lock's end: the job gets the token.
func (n *Node) hasByNow(j *store.Job, space store.Space, name []byte, token uint64) bool {
	if j == nil || j.State == store.StateAcked || !n.named(j, space, name) || !j.Unique().Has(hasFlag(space)) {
		return false
	}
	setLock(j.Unique(), space, token)
	return true
}

// --- fetching ----------------------------------------------------------------

// claimed says how to go on with a job that could be delivered.
type claimed uint8

const (
	claimHad     claimed = iota // deliver it
	claimRefused                // it isn't in the waiting list any more: look at the next
	claimAsked                  // no job can be had before another node answers
	claimSlow                   // the job isn't asked for before others, whose answers take long: look behind it
	claimApart                  // the job isn't asked for before more nodes can be reached: look behind it
)

// claimRunOf is [Node.claimRun] in a mesh.
func (n *Node) claimRunOf(j *store.Job, u store.Unique) claimed {
	name := n.lockName(j, u, store.LockRun)
	l := n.locks.Live(name)
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
	if n.uniqueMesh.asked[queue].jobs >= max(1, int(n.waitersOf(j.Queue))) {
		if n.awaitsAnswer(queue) {
			return claimAsked
		}
		return claimSlow
	}
	// An acquisition that is decided at once is followed below, not in its callback: the callback serves
	// clients, and clients are being served already. A client counts its time from when it gets the job, so
	// the lease is longer by the time that the asking may take.
	freed, began := n.store.Freed(), n.monotonic()
	now, _ := n.locks.AcquireFor(lock.ForJob{
		Name: name, Job: id, Lease: n.runLease(j, u) + 2*lock.TimeoutMS, Usable: 2 * lock.TimeoutMS, Any: u.Has(store.UniqueAny),
	}, func(o lock.Result) {
		delete(n.uniqueMesh.runs, key)
		n.askFor(queue, -1)
		o.Began = cmp.Or(o.Began, began)
		n.runDecided(key, &id, o)
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
				n.giveUpRun([]byte(key), &id, now.Token)
			}
			return claimRefused
		}
		u = j.Unique()
	}
	switch {
	case now == nil:
		n.store.HoldBack(j, u)
	case now.Kind == lock.Granted:
		n.hasRun(j, u, key, now.Token)
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
	return u != nil && u.Runs() && !u.Has(store.UniqueHasRun) && !(apart && u.Has(store.UniqueAny))
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
	case !n.mesh.Alone() && !n.locks.Quorate(nil):
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

// mereVote says whether a run lock that stands against a job may be no more than a vote: the node that asked
// for the lock may not have got it. Then all nodes are asked. This matters only for a job that doesn't wait
// for its key but would be dropped or moved.
func (n *Node) mereVote(u store.Unique, l *store.Lock) bool {
	return u.Busy() != store.BusyWait && !n.holds(l)
}

// isBusy says whether the acquisition of a job's run lock has ended because another job has the key for
// certain, and the job doesn't wait for the key.
func isBusy(o *lock.Result, id *store.ID, u store.Unique) bool {
	return o.Kind == lock.Conflict && o.Most && o.Job != *id && u.Busy() != store.BusyWait
}

// hasRun notes that a job has its run lock.
func (n *Node) hasRun(j *store.Job, u store.Unique, name string, token uint64) {
	delete(n.uniqueMesh.backoffs, name)
	n.lost.Remove(j.ID)
	u.SetRun(token)
}

// runLease returns the lease of a job's run lock, in ms: RUNTTL or the retry time, whichever is shorter, or
// without either the time until the job's expiry. So the lock lasts at most as long as the job stays with the
// client that gets it.
func (n *Node) runLease(j *store.Job, u store.Unique) int64 {
	switch retry := int64(j.Retry) * 1000; {
	case u.RunTTL() > 0 && retry > 0:
		return min(u.RunTTL(), retry)
	case u.RunTTL() > 0:
		return u.RunTTL()
	case retry > 0:
		return retry
	}
	return max(1, min(j.ETime-n.now, store.MaxLease)) // a restored job may live for ever
}

// runDecided goes on when the acquisition of a job's run lock is decided: it delivers the job if the lock was
// granted.
func (n *Node) runDecided(name string, id *store.ID, o lock.Result) {
	j := n.store.Lookup(id)
	here := j != nil && j.State == store.StateQueued && j.ETime > n.now && n.named(j, store.LockRun, []byte(name))
	switch {
	case o.Kind == lock.Granted && !here:
		// A WORKING that has come since owns these votes now, and extends them. Don't take them back.
		if !n.hasByNow(j, store.LockRun, []byte(name), o.Token) && !n.locks.AsksFor(id, name) {
			n.giveUpRun([]byte(name), id, o.Token)
		}
	case o.Kind == lock.Granted:
		u := j.Unique()
		n.hasRun(j, u, name, o.Token)
		q := j.Queue
		w := n.firstOf(q)
		if w == nil || q.Pause&PauseOut != 0 || n.passive || n.loading {
			u.Clear(store.UniqueHasRun) // no client wants the job any more
			n.giveUpRun([]byte(name), id, o.Token)
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
	case here && isBusy(&o, id, j.Unique()):
		n.busy(j, j.Unique())
	default:
		n.backOff(name, &o)
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

// endOwnRuns takes back the votes for runs of a job that was queued when this node ended. The node has all
// that it logged, and it logs a delivery before the client gets the job. So nobody has the job by a run that
// this node acquired. The node may have ended while it asked for such a run, or before the others heard that
// the job was given back. The votes of another node's acquisition, and votes that were extended since, stay.
func (n *Node) endOwnRuns(j *store.Job) {
	if j.State != store.StateQueued || !runs(j) || n.mesh.Alone() {
		return
	}
	u := j.Unique()
	name := n.lockName(j, u, store.LockRun)
	voted, last := uint64(0), u.RunToken()
	if l := n.locks.Live(name); l != nil && l.Job == j.ID {
		voted = l.Token
	}
	if last == voted || lock.BegunAt(last)+lock.VoteMS(n.runLease(j, u)+2*lock.TimeoutMS) <= n.now {
		last = 0 // its votes are over, or it is the token in voted
	}
	if voted|last == 0 || u.Has(store.UniqueHasRun) || n.locks.AsksFor(&j.ID, string(name)) {
		return
	}
	name = slices.Clone(name)
	for _, token := range [...]uint64{voted, last} {
		if token > 0 && n.locks.IsOwnToken(token) {
			n.giveUpRun(name, &j.ID, token)
		}
	}
}

// backOff keeps this node from asking for a key for a while, after it couldn't be had. o is how the
// acquisition ended, or nil. An acquisition that took long gets the longest backoff, so that jobs that
// weren't asked for meanwhile have their turn.
//
// If several nodes ask for a key at a time, and none gets enough votes, each backs off for longer each time,
// until one asks alone. When the key becomes free, the count of such splits doesn't begin anew.
func (n *Node) backOff(name string, o *lock.Result) {
	r := n.uniqueMesh.backoffs[name]
	if r == nil {
		r = &backoff{}
		n.uniqueMesh.backoffs[name] = r
	}
	now := n.monotonic()
	span := min(int64(backoffFirstMS)<<min(r.tries, 10), backoffLastMS)
	switch r.tries++; {
	case o == nil:
	case o.IsSplit():
		r.splits, r.split = r.splits+1, max(now-o.Began, backoffFirstMS)
	case o.Kind == lock.Conflict:
		r.splits = max(r.splits-1, 0)
	case o.Began > 0 && now-o.Began >= lock.ResendMS:
		span = backoffLastMS
	}
	span = max(span, r.afterSplit())
	span += n.below(span)
	r.until, r.over = now+span, false
	n.locks.Await([]byte(name), r.until)
}

// afterSplit is how long a key is backed off at least after the votes were split, ms.
func (r *backoff) afterSplit() int64 {
	if r.splits == 0 {
		return 0
	}
	return min(r.split<<min(r.splits-1, 10), backoffSplitMS)
}

// isBackedOff says whether a key isn't to be asked for now: it was refused just before, or this node still
// awaits answers.
func (n *Node) isBackedOff(name []byte) bool {
	if len(n.uniqueMesh.runs)+len(n.uniqueMesh.backoffs) == 0 {
		return false
	}
	if _, yes := n.uniqueMesh.runs[string(name)]; yes {
		return true
	}
	r := n.uniqueMesh.backoffs[string(name)]
	return r != nil && r.until > n.monotonic()
}

// resetBackoff ends a key's backoff, since the key may be free. After split votes it picks a new time at
// random instead.
func (n *Node) resetBackoff(name []byte) {
	r := n.uniqueMesh.backoffs[string(name)]
	if r == nil {
		return
	}
	r.tries = 0
	if span := r.afterSplit(); span > 0 {
		now := n.monotonic()
		at := now + n.below(span)
		if r.until > now {
			at = min(at, r.until)
		}
		r.until, r.over = at, false
		n.locks.Await(name, at)
		return
	}
	r.until, r.over = 0, true
	n.store.WakeKeyQueues(name)
}

// backoffOver looks at a key's backoff when a deadline has passed. It returns true if the key may be asked
// for again. A backoff is forgotten if the key isn't asked for within backoffKeptMS of its end.
func (n *Node) backoffOver(name []byte) (woken bool) {
	r := n.uniqueMesh.backoffs[string(name)]
	now := n.monotonic()
	switch {
	case r == nil:
	case r.until > now:
		n.locks.Await(name, r.until)
	case !r.over:
		r.over = true
		n.store.WakeKeyQueues(name)
		n.locks.Await(name, now+backoffKeptMS)
		return true
	case now-r.until >= backoffKeptMS:
		delete(n.uniqueMesh.backoffs, string(name))
	default:
		n.locks.Await(name, r.until+backoffKeptMS)
	}
	return false
}

// Asks says whether this node awaits answers about the run of any job.
func (n *Node) Asks() bool { return len(n.uniqueMesh.runs) > 0 }

// Asking says whether a job of one of the queues may be had when other nodes have answered. A client that
// doesn't want to wait waits for that alone ([Node.WaitForAnswers]).
func (n *Node) Asking(names [][]byte) bool {
	return slices.ContainsFunc(names, func(name []byte) bool { return n.uniqueMesh.asked[string(name)].jobs > 0 })
}

// --- renewing and freeing locks ------------------------------------------------

// renewLock makes the lease of a job's lock begin anew, or takes the lock again if it is free. The error is
// ErrLockLost if another job has the lock, and notExtended if there is no majority. If other nodes have to
// answer first, and client isn't nil, pending is true, and a Worked effect for the client will tell. If the
// job has the lock, and there is no lease, no answer is needed.
func (n *Node) renewLock(j *store.Job, u store.Unique, space store.Space, lease int64, client any) (pending bool, err error) {
	name := n.lockName(j, u, space)
	if n.mesh.Alone() {
		token, holder := n.locks.Take(name, &j.ID, lease)
		if holder != nil {
			return false, ErrLockLost
		}
		setLock(u, space, token)
		return false, nil
	}
	l := n.locks.Live(name)
	contested := l != nil && l.Job != j.ID && !n.locks.Outvotes(j.ID, space)
	if contested && (client == nil || l.Flags&lock.FlagForeign == 0 || u.Has(store.UniqueAny) || j.State == store.StateQueued) {
		return false, ErrLockLost // otherwise other nodes tell whether this one only hasn't heard of that lock's end
	}
	return n.claimAnew(j, u, space, lease, contested, client)
}

// claimAnew is renewLock in a mesh, whatever this node votes for. The client waits if there is a lease, if
// the job isn't known to have the lock, or if the lock is contested.
func (n *Node) claimAnew(j *store.Job, u store.Unique, space store.Space, lease int64, contested bool, client any) (pending bool, err error) {
	name := slices.Clone(n.lockName(j, u, space))
	asks := contested || lease > 0 || !u.Has(hasFlag(space))
	id, want := j.ID, lock.ForJob{Name: name, Job: j.ID, Lease: lease, Any: u.Has(store.UniqueAny)}
	now, _ := n.locks.AcquireFor(want, func(o lock.Result) {
		end := n.renewed(&id, space, want.Name, &o)
		if j := n.store.Lookup(&id); j != nil && (end == nil || end == ErrLockLost) {
			n.log(LogState, j)
			if pending && end != nil {
				n.endLoss(j)
			}
		}
		if j := n.store.Lookup(&id); j != nil && contested && pending && end != ErrLockLost && j.State != store.StateAcked {
			n.workGoesOn(j)
		}
		if pending {
			n.effects = append(n.effects, Effect{Kind: Worked, Client: client, Err: end})
		}
	})
	if now == nil {
		if pending = client != nil && asks; pending && contested {
			return true, errContested
		}
		return pending, nil
	}
	// The caller logs, since the job may be new to it.
	err = n.renewed(&id, space, want.Name, now)
	if _, only := err.(notExtended); only && !asks {
		err = nil
	}
	return false, err
}

// errContested says that it isn't known yet whether another job has the lock. Until it is, nothing changes.
var errContested = errors.New("contested")

// renewed notes how the acquisition ended that renews a job's lock.
func (n *Node) renewed(id *store.ID, space store.Space, name []byte, o *lock.Result) error {
	if space == store.LockWait {
		n.leaseBegun(id, o)
	}
	j := n.store.Lookup(id)
	done := j == nil || j.State == store.StateAcked
	if done || !n.named(j, space, name) || isPast(j, space) {
		switch {
		case o.Kind != lock.Granted || !done && j.Unique() != nil && j.Unique().Has(hasFlag(space)):
		case space == store.LockRun && !done:
			n.giveUpRun(name, id, o.Token) // it was extended for a client that got the job elsewhere
		case space == store.LockWait && j == nil && id.AtMostOnce() && !n.tombstones.has(id):
			// The job was handed over meanwhile, and took its lock along.
		case j == nil && n.livesAway(id):
			// The job's queue went to another database meanwhile. The other nodes keep the key for the job.
		default:
			n.freeName(name, id, o.Token)
		}
		switch {
		case j == nil:
			return ErrNoJob
		case done:
			return ErrAcked
		}
		return ErrLockLost // the job is to run anew, or was given back
	}
	switch u := j.Unique(); o.Kind {
	case lock.Granted:
		setLock(u, space, o.Token)
		return nil
	case lock.Conflict:
		u.Clear(hasFlag(space))
		(*owners)(n).Loses(*id)
		return ErrLockLost
	case lock.Aborted:
		return ErrReplica
	}
	return notExtended{o.Because(ErrNotExtended)} // the lock's lease goes on until it is over
}

// isPast says whether a job no longer has the lock that was just renewed for it: it isn't worked on, or it
// was delivered meanwhile.
func isPast(j *store.Job, space store.Space) bool {
	u := j.Unique()
	if space == store.LockRun {
		return j.State == store.StateQueued || !mayRun(j, u)
	}
	return endsByDelivery(u) && j.Place == store.InWorking && !u.Has(store.UniqueHasWait)
}

func setLock(u store.Unique, space store.Space, token uint64) {
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

// delegate leaves a job's locks to the other nodes that hold the job: it is about to be forgotten here, and
// lives on there.
func (n *Node) delegate(j *store.Job) {
	u := j.Unique()
	if u == nil {
		return
	}
	for _, space := range [...]store.Space{store.LockWait, store.LockRun} {
		if l := n.store.Lock(n.lockName(j, u, space)); l != nil && l.Job == j.ID && !lock.Ended(l) {
			n.locks.SetFlags(l, l.Flags|lock.FlagForeign)
			n.locks.Log(l)
		}
	}
	u.Clear(store.UniqueHasWait | store.UniqueHasRun)
	n.delegated.Add(j.ID)
}

// endFresh frees a job's locks, except votes that were extended since for their holder: somebody may work on
// the job at another node.
func (n *Node) endFresh(j *store.Job) {
	u := j.Unique()
	if u == nil || n.mesh.Alone() || u.Strategy() == store.UniqueWindow {
		return
	}
	for _, space := range [...]store.Space{store.LockWait, store.LockRun} {
		if !u.Has(hasFlag(space)) {
			continue
		}
		name := slices.Clone(n.lockName(j, u, space))
		token := lockToken(u, space)
		u.Clear(hasFlag(space))
		if l := n.locks.Live(name); l != nil && l.Job == j.ID && l.Flags&lock.FlagRenewed != 0 {
			n.locks.SetFlags(l, l.Flags|lock.FlagForeign)
			n.locks.Log(l)
			continue
		}
		n.locks.RollBack(name, lock.Holder{Job: j.ID}, token, n.mesh.Nodes())
	}
}

// leaveVotes keeps the end of a job from freeing locks that were left to other nodes (lock.FlagForeign).
func (n *Node) leaveVotes(j *store.Job) {
	u := j.Unique()
	if u == nil {
		return
	}
	for _, space := range [...]store.Space{store.LockWait, store.LockRun} {
		if l := n.store.Lock(n.lockName(j, u, space)); l != nil && l.Job == j.ID && l.Flags&lock.FlagForeign != 0 {
			u.Clear(hasFlag(space))
		}
	}
}

// boundRun gives a run lock without a lease the lease that nodes of a mesh give. The lock was given while its
// node was alone. The job isn't worked on at this node, which may not hear of the run's end.
func (n *Node) boundRun(l *store.Lock, j *store.Job, u store.Unique) {
	if l.Until == 0 {
		n.bound(l, n.runLease(j, u))
	}
}

// bound gives a lock a lease that begins now, in ms. The caller logs it.
func (n *Node) bound(l *store.Lock, lease int64) {
	l.Lease, l.Until = lease, n.locks.Until(lease)
	n.locks.Note(l)
}

// delegateRun leaves a job's run lock to another node, where the job's client works on.
func (n *Node) delegateRun(j *store.Job) {
	if u := j.Unique(); u != nil && u.Has(store.UniqueHasRun) && !n.mesh.Alone() {
		if l := n.store.Lock(n.lockName(j, u, store.LockRun)); l != nil && l.Job == j.ID && !lock.Ended(l) {
			n.boundRun(l, j, u)
			n.locks.SetFlags(l, l.Flags|lock.FlagForeign)
			n.locks.Log(l)
		}
		u.Clear(store.UniqueHasRun)
	}
}

// expireRun ends the run of a job whose retry time is over, as far as this node knows. The job's client may
// have said WORKING to another node, whose message may be lost or late. So a lock that was extended is left
// to its lease, here and at the other nodes.
func (n *Node) expireRun(j *store.Job) {
	if !runs(j) || n.mesh.Alone() || !j.Unique().Has(store.UniqueHasRun) {
		return
	}
	u := j.Unique()
	name := slices.Clone(n.lockName(j, u, store.LockRun))
	l := n.locks.Live(name)
	if l != nil && l.Job == j.ID && l.Flags&lock.FlagRenewed != 0 {
		n.delegateRun(j)
		return
	}
	u.Clear(store.UniqueHasRun)
	n.locks.EnqueueUnlock(name, lock.Holder{Job: j.ID}, u.RunToken(), wire.Fresh, n.mesh.Nodes())
	if l != nil && l.Job == j.ID && l.Token <= u.RunToken() {
		n.locks.Remove(l)
	}
}

// endRunElsewhere frees the run lock that a job got at another node: the job's client gives it back here.
func (n *Node) endRunElsewhere(j *store.Job) {
	if !runs(j) || n.mesh.Alone() {
		return
	}
	if l := n.locks.Live(n.lockName(j, j.Unique(), store.LockRun)); l != nil && l.Job == j.ID {
		n.freeName(slices.Clone(l.Name()), &j.ID, l.Token)
		return
	}
	// This node was away when the run began. Other nodes may have voted for it, and one of them may be handed
	// the job now. No run has so low a token, so each voter answers with the token of its vote, and with the
	// time that is left.
	if j.Retry > 0 {
		n.uniqueMesh.back.add(j.ID, pastRuns{at: n.monotonic()}, n.now)
		n.locks.EnqueueUnlock(n.lockName(j, j.Unique(), store.LockRun), lock.Holder{Job: j.ID}, 1, 0, n.mesh.Nodes())
	}
}

// pastRuns are the runs of a job that began before the job was given back here, at a node that didn't know
// them.
type pastRuns struct {
	at    int64  // when it was given back: monotonic, ms
	ended uint64 // the token of the last run for which all nodes were told to take their votes back
}

// over says whether a vote for a run was given before the job was given back, and not extended since. It goes
// by how much of the vote's time is over, and allows for a voter's clock that runs slower than ours. It
// doesn't go by tokens: they come from the time of day, which may differ at the node where a later run
// begins.
func (p *pastRuns) over(vote *wire.Lock, now int64) bool {
	since := now - p.at
	return vote.Left > 0 && lock.VoteMS(vote.Lease)-vote.Left > since+since/lock.ClockSlack
}

// givenBack remembers pastRuns by job.
type givenBack struct {
	table.Generations[store.ID, pastRuns]
	turned int64
}

const (
	givenBackMS   = 600_000 // how long a job is remembered at least
	givenBackMost = 10_000  // jobs that are remembered
)

func (g *givenBack) add(id store.ID, past pastRuns, now int64) {
	if now-g.turned >= givenBackMS || g.Young() >= givenBackMost {
		g.Turn()
		g.turned = now
	}
	g.Put(id, past)
}

// endPastRun follows a denial that names a vote for a run of the very job that was asked for. If that run
// began before the job was given back here, all nodes take the vote back. If this node asked for it before it
// was started anew, and has all that it logged, nobody has the job by that run ([Node.endOwnRuns]): all nodes
// take back a vote that wasn't extended since.
func (n *Node) endPastRun(name []byte, id store.ID, m *wire.Message) {
	k := &m.Lock
	if m.Count != wire.LockHeld && m.Count != wire.TokenStale || store.ID(k.Job) != id || store.Space(name[0]) != store.LockRun {
		return
	}
	past, yes := n.uniqueMesh.back.Get(id)
	flags := uint8(0)
	switch {
	case yes && past.ended == k.Token:
		return // the nodes were told
	case yes && past.over(k, n.monotonic()):
	case k.Token <= n.ownBefore && n.locks.IsOwnToken(k.Token) && n.isQueued(&id):
		if flags = wire.Fresh; !yes {
			past.at = math.MinInt64 / 2 // the job wasn't given back
		}
	default:
		return
	}
	past.ended = k.Token
	n.uniqueMesh.back.add(id, past, n.now)
	n.freeRun(name, &id, k.Token, flags) // the acquisition's Claim may have come here, too, after the NACK
}

// isQueued says whether a job is in its queue, and has no run lock.
func (n *Node) isQueued(id *store.ID) bool {
	j := n.store.Lookup(id)
	return j != nil && j.State == store.StateQueued && !hasRun(j)
}

// runs says whether a job must not be worked on beside others with its key.
func runs(j *store.Job) bool {
	u := j.Unique()
	return u != nil && u.Runs()
}
