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

// Unique jobs in a mesh. A node that is alone decides at once who gets a key
// (unique.go). In a mesh that needs the consent of more than half of the nodes:
// the lock of an ADDJOB is claimed before there is a job, the lock of a run before
// the job is delivered. Until the answers are in, the job waits in its per-key queue, and the
// clients that could get it wait too; GETJOB … NOHANG waits for nothing else.
//
// A run's lock has a lease: RUNTTL, or the job's retry time where RUNTTL isn't given.
// So a client that is gone loses job and lock together. When a lock that is held
// elsewhere ends, this node hears of it (Unlock); now and then it also looks by itself.

// Times, ms.
const (
	backoffFirstMS = 4   // until a key that was taken elsewhere is asked for again,
	backoffLastMS  = 500 // doubling up to here
	backoffKeptMS  = 5_000
	backoffSplitMS = 8_000 // and where others get votes, too, and nobody enough
	apartLookMS    = 100   // until it is looked again whether enough nodes can be reached for a majority
	apartSlice     = 75    // queues that are served at once then: each may ask all nodes
	putOffMS       = 1_000 // until a job that was put off tries again, at a random time from half of it on
)

// uniqueMesh are what waits for other nodes.
type uniqueMesh struct {
	adds     map[store.ID]*claimedAdd
	runs     map[string]store.ID  // by the lock's name: which job is claimed for
	asked    map[string]askedRuns // by the queue's name
	looks    agenda               // at queues whose next job waits until there is an answer for another one
	backoffs map[string]*backoff  // locks that were refused: not to be asked for yet
	past     passing              // jobs up to which a queue has only jobs that aren't asked for, see beyond
	back     givenBack            // jobs whose run began at another node, and that were given back here
	apart    map[string]struct{}  // queues with such jobs, for want of a majority,
	away     []string             // first things first
}

// claimedAdd is an ADDJOB whose lock is being claimed.
type claimedAdd struct {
	client any
	denied bool // see [Node.Deny]
	claim  *lock.Acquisition
}

type backoff struct {
	until  int64 // steady, ms
	tries  int
	splits int   // how often the votes were split,
	split  int64 // and how long it took to learn of it, ms
	over   bool  // and the clients that wait have been told
}

// askedRuns is for how many of a queue's jobs the run is claimed, and since when nothing has come
// of any such claim: steady, ms.
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

// claimAdd claims the lock of a job that is being added, whose name is in
// scratch.lock, and adds it when the claim is granted. Returns as [Node.AddJob] does.
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

// addDecided goes on with an ADDJOB when its claim is decided.
func (n *Node) addDecided(a *Add, id store.ID, o lock.Result) (answer store.ID, wait bool, err error) {
	if err := o.Err(); err != nil {
		n.Stats.Refused++
		return answer, false, err
	}
	// It took a moment: what was asked may not hold any more.
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

// unclaimAdd frees the lock that was claimed for a job that isn't added after all.
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

// abandonUniqueAdd ends an ADDJOB whose client has gone while its lock was claimed.
func (n *Node) abandonUniqueAdd(id *store.ID) bool {
	c := n.uniqueMesh.adds[*id]
	if c != nil {
		delete(n.uniqueMesh.adds, *id)
		n.locks.Abandon(c.claim)
	}
	return c != nil
}

// clone keeps an ADDJOB beyond the call.
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

// claimAgain is [Node.again] where other nodes have a say: the job waits on, until
// they have answered.
//
// Any node that has a copy could get the lock, for it is the job's. So the node that put the
// job off claims it ([Node.later]), and the others come a retry time later, by the usual rule
// for copies: each announces itself, and the first node objects if it is still to queue the
// job. Otherwise the copy's node claims the lock, and announces itself once more before it
// queues the job.
func (n *Node) claimAgain(j *store.Job, u store.Unique, lease int64, nack bool) bool {
	id := j.ID
	name := slices.Clone(n.lockName(j, u, store.LockWait))
	window := u.Strategy() == store.UniqueWindow
	setAnnounced(j) // until the job is left to another node
	switch {
	case n.locks.AnyAsks(name):
		// One at a time: they would take the votes from each other.
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

// giveBack frees a waiting lock that came too late for its job. Another node may have got
// it for the job before, which is done since: a window lasts all the same.
func (n *Node) giveBack(name []byte, id *store.ID, window bool, o *lock.Result) {
	switch {
	case !window:
		n.freeName(name, id, o.Token)
	case !o.Kept:
		n.locks.RollBack(name, lock.Holder{Job: *id}, o.Token, n.mesh.Nodes())
	}
}

// claimedAgain goes on with a job that was put off when its claim is decided. True
// where it may be queued.
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

// waitOut has a job that was put off wait until it tries again: others that got a part of the
// votes do so, too, but not all at the same moment.
func (n *Node) waitOut(j *store.Job, name string) {
	span := putOffMS/2 + n.below(putOffMS)
	if r := n.uniqueMesh.backoffs[name]; r != nil {
		span += max(r.until-n.monotonic(), 0)
	}
	n.waitFor(j, span)
}

// named says whether a name is still that of a job's lock: its queue may have
// another name by now. The caller may have another job's name from lockName.
func (n *Node) named(j *store.Job, space store.Space, name []byte) bool {
	u := j.Unique()
	if u == nil {
		return false
	}
	n.scratch.other = j.AppendLock(n.scratch.other[:0], u, space)
	return string(n.scratch.other) == string(name)
}

// hasByNow says whether a job has got a lock meanwhile that was claimed for it, so
// that the claim's end isn't the lock's.
func (n *Node) hasByNow(j *store.Job, space store.Space, name []byte, token uint64) bool {
	if j == nil || j.State == store.StateAcked || !n.named(j, space, name) || !j.Unique().Has(hasFlag(space)) {
		return false
	}
	setLock(j.Unique(), space, token)
	return true
}

// --- fetching ----------------------------------------------------------------

// claimed says what is to be done with a job that could be delivered.
type claimed uint8

const (
	claimHad     claimed = iota // deliver it
	claimRefused                // it isn't in the waiting list any more: look at the next
	claimAsked                  // there is nothing to be had before somebody answers
	claimSlow                   // it isn't asked for before others, whose answers take long: look behind it
	claimApart                  // it isn't asked for before more nodes can be reached: look behind it
)

// claimRunOf is [Node.claimRun] where other nodes have a say.
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
		n.store.HoldBack(j, u) // another node has given it to a client
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
	// A claim that is decided at once is followed below, not in its callback: the callback
	// serves clients, and clients are being served already. A client counts its time from when
	// it gets the job, so the lease is longer by the time that the asking may take.
	freed, began := n.store.Freed(), n.monotonic()
	now, _ := n.locks.AcquireFor(lock.ForJob{
		Name: name, Job: id, Lease: n.runLease(j, u) + 2*lock.TimeoutMS, Usable: 2 * lock.TimeoutMS, Any: u.Has(store.UniqueAny),
	}, func(o lock.Result) {
		delete(n.uniqueMesh.runs, key)
		n.askFor(queue, -1)
		o.Began = cmp.Or(o.Began, began)
		n.runDecided(key, &id, o)
		n.store.WakeKeyQueues([]byte(key)) // others may wait in its per-key queue for what it has become
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
		// Another claim that was decided meanwhile may have moved j, or deleted it.
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

// askFor counts a claim for the run of one of a queue's jobs: 1, it begins, or -1, it is decided.
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

// isSlow says of the claims for a queue whether their answers take long.
func (n *Node) isSlow(a askedRuns) bool { return n.monotonic()-a.since >= lock.ResendMS }

// awaitsAnswer says whether the jobs of a queue wait in their order until it is known whether
// the client gets the one that is asked for. Not where the answers take long, as with nodes that
// stand still, or don't agree on who belongs to the mesh: jobs that need no consent would
// wait behind many that can't have it, each of which is asked for as long as [lock.TimeoutMS].
// Then those are found behind the others ([Node.beyond]).
func (n *Node) awaitsAnswer(queue string) bool {
	a := n.uniqueMesh.asked[queue]
	if n.isSlow(a) {
		return false
	}
	n.lookAfter(&n.uniqueMesh.looks, queue, lock.ResendMS)
	return true
}

// beyond finds the first job of a queue behind those that aren't asked for now. They stay where they
// are, so the oldest is asked for first as soon as one may be. It goes on where it was the last time,
// however many they are; where this call has passed over enough the next tick goes on.
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

// passedOver says of a job behind one that isn't asked for whether it isn't either.
func (n *Node) passedOver(j *store.Job, apart bool) bool {
	if j.Parts == 0 || j.ETime <= n.now {
		return false
	}
	u := j.Unique()
	return u != nil && u.Runs() && !u.Has(store.UniqueHasRun) && !(apart && u.Has(store.UniqueAny))
}

// passOver has a job be one of those behind which [Node.beyond] looks.
func (n *Node) passOver(j *store.Job, apart bool) {
	n.uniqueMesh.past.add(string(j.Queue.NameBytes()), past{job: j.ID, apart: apart}, n.now)
}

// notPast has a job that comes into the waiting list be found where it is before others that are passed over.
func (n *Node) notPast(j *store.Job) {
	n.uniqueMesh.past.stopAt(n, j, func(at past) bool { return n.passedOver(j, at.apart) })
	for _, p := range n.mesh.All() {
		p.past.stopAt(n, j, func(past) bool { return !n.fits(p, j) })
	}
}

// tickApart serves those who wait for jobs that weren't asked for for want of a majority, once
// there is one; of very many queues some with each tick.
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

// tickLooks serves those who wait for queues whose next jobs have waited for an answer by now.
func (n *Node) tickLooks() {
	n.tickAgenda(&n.uniqueMesh.looks, func(name string) int {
		if q := n.store.Queue([]byte(name)); q != nil && n.uniqueMesh.asked[name].jobs > 0 {
			n.serveLater(q)
		}
		return 0
	})
}

// mereVote says of a run lock that stands against a job, which doesn't wait for its key but
// would be dropped, or moved, whether it is no more than a vote: whoever asked for it may not
// have got it. Then all nodes are asked.
func (n *Node) mereVote(u store.Unique, l *store.Lock) bool {
	return u.Busy() != store.BusyWait && !n.holds(l)
}

// isBusy says of the end of a claim for a job's run whether another has the key for certain,
// and the job doesn't wait for it.
func isBusy(o *lock.Result, id *store.ID, u store.Unique) bool {
	return o.Kind == lock.Conflict && o.Most && o.Job != *id && u.Busy() != store.BusyWait
}

// hasRun notes that a job has the lock of its run.
func (n *Node) hasRun(j *store.Job, u store.Unique, name string, token uint64) {
	delete(n.uniqueMesh.backoffs, name)
	n.lost.Remove(j.ID)
	u.SetRun(token)
}

// runLease is how long a run has its lock, ms: as long as the job stays with whom
// it is given to.
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

// runDecided delivers a job whose run was consented to.
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
			u.Clear(store.UniqueHasRun) // nobody wants it any more
			n.giveUpRun([]byte(name), id, o.Token)
			return
		}
		// The key that becomes free may let other jobs go: w must not be served with one of
		// them, and j may move.
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

// giveUpRun takes back the votes for a run that doesn't begin. A client may still work on
// the job by an earlier run, and have said WORKING at another node: then that has taken
// these votes over for its own, and extended them. Those stay.
func (n *Node) giveUpRun(name []byte, id *store.ID, token uint64) {
	n.freeRun(name, id, token, wire.Fresh)
}

// freeRun has all nodes take their votes for a run back; with wire.Fresh not those that were extended since.
func (n *Node) freeRun(name []byte, id *store.ID, token uint64, flags uint8) {
	h := lock.Holder{Job: *id}
	n.locks.Unvote(name, &h, token, flags)
	n.locks.EnqueueUnlock(name, h, token, flags, n.mesh.Nodes())
	n.locks.IsFreed(slices.Clone(name))
}

// endOwnRuns takes the votes back for runs of a job that was queued when this node ended. All that
// the node logged is there, and it logs a delivery before the client gets the job: so nobody has the job
// by a run that this node claimed. The node may have ended while it asked for one, or before the others
// heard that the job was given back. Another node's claim, and votes that were extended since, stay.
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
		last = 0 // its votes are over, or it is that one
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

// backOff has a key that can't be had not be asked for, for a while. o is what came of a
// claim for it, or nil. A claim that took long gets the longest rest, so that those that
// weren't asked for meanwhile have their turn.
//
// Where several nodes claim a key at a time, and none gets enough votes, each rests for longer
// each time, until one asks alone. So that doesn't begin anew when the key becomes free.
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

// afterSplit is how long a key rests at least after the votes were split, ms.
func (r *backoff) afterSplit() int64 {
	if r.splits == 0 {
		return 0
	}
	return min(r.split<<min(r.splits-1, 10), backoffSplitMS)
}

// isBackedOff says whether a key isn't to be asked for now: it was refused just before,
// or the answers aren't in.
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

// resetBackoff ends that: the key may be free.
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

// backoffOver looks again, where a deadline was that of a rest; what isn't asked for
// for a while after it is forgotten. True: it may be asked for again.
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

// Asks says whether answers are awaited for any job.
func (n *Node) Asks() bool { return len(n.uniqueMesh.runs) > 0 }

// Asking says whether a job of one of the queues may be had when other nodes have
// answered: who doesn't want to wait waits for that alone ([Node.WaitForAnswers]).
func (n *Node) Asking(names [][]byte) bool {
	return slices.ContainsFunc(names, func(name []byte) bool { return n.uniqueMesh.asked[string(name)].jobs > 0 })
}

// --- locks that are had --------------------------------------------------------

// renewLock begins the lease of a job's lock anew, or takes it again where it is
// free: ErrLockLost where another has it, notExtended where there is no majority.
// Where other nodes have to answer first, and client isn't nil, pending says that a
// Worked effect for it will tell. A lock without a lease that the job has needs no answer.
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
		return false, ErrLockLost // else others say whether this node has only not heard of that one's end
	}
	return n.claimAnew(j, u, space, lease, contested, client)
}

// claimAnew is renewLock in a mesh, whatever this node votes for. It has the client wait where the
// lock has a lease, or the job isn't known to have it: anyway, if contested.
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
	// The caller logs, who may have a new job.
	err = n.renewed(&id, space, want.Name, now)
	if _, only := err.(notExtended); only && !asks {
		err = nil
	}
	return false, err
}

// errContested: it isn't known yet whether another job has the lock, and until then nothing changes.
var errContested = errors.New("contested")

// renewed notes what became of a claim that renews a job's lock.
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
			n.giveUpRun(name, id, o.Token) // it was extended for a client who got it elsewhere
		case space == store.LockWait && j == nil && id.AtMostOnce() && !n.tombstones.has(id):
			// It was handed over meanwhile, and took its lock along.
		case j == nil && n.livesAway(id):
			// Its queue went to another database meanwhile. The others keep the key for it.
		default:
			n.freeName(name, id, o.Token)
		}
		switch {
		case j == nil:
			return ErrNoJob
		case done:
			return ErrAcked
		}
		return ErrLockLost // it is to run anew, or was given back
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
	return notExtended{o.Because(ErrNotExtended)} // its lease goes on until it is over
}

// isPast says of a lock that was just renewed whether its job has it no more: it isn't worked on, or was delivered meanwhile.
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

// freeName frees a job's lock at all nodes, also where this one has no vote for it.
func (n *Node) freeName(name []byte, id *store.ID, token uint64) {
	if l := n.store.Lock(name); l != nil && l.Job == *id && l.Token > token && l.Space() == store.LockRun && !n.mesh.Alone() && !lock.Ended(l) {
		return // by now it is that of another run of the job
	}
	if n.locks.Free(name, id) || n.mesh.Alone() || n.passive || n.loading {
		return
	}
	if token > 0 {
		n.locks.EnqueueUnlock(name, lock.Holder{Job: *id}, token, 0, n.mesh.Nodes())
	}
	n.locks.IsFreed(slices.Clone(name))
}

// delegate leaves a job's locks to the other nodes that hold it: here it is about
// to be forgotten, and lives on.
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

// endFresh frees a job's locks, but for votes that its holder has had extended since: at
// another node somebody may be working on it.
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

// leaveVotes has a job's end leave the votes for it alone.
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

// boundRun gives a run lock without a lease, which was given while its node was alone, the lease
// that nodes of a mesh give. The job isn't worked on at this node, which may not hear of the
// run's end.
func (n *Node) boundRun(l *store.Lock, j *store.Job, u store.Unique) {
	if l.Until == 0 {
		n.bound(l, n.runLease(j, u))
	}
}

// bound gives a lock a lease that begins now. The caller logs it.
func (n *Node) bound(l *store.Lock, lease int64) {
	l.Lease, l.Until = lease, n.locks.Until(lease)
	n.locks.Note(l)
}

// delegateRun leaves a job's run lock to another node, where its client works on.
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

// expireRun ends the run of a job whose retry time is over, as far as this node knows:
// its client may have said WORKING to another, and that one's word be lost or late.
// So a lock that was extended is left to its lease, here and at the other nodes.
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

// endRunElsewhere frees the run lock that a job got at another node: its client
// gives it back here.
func (n *Node) endRunElsewhere(j *store.Job) {
	if !runs(j) || n.mesh.Alone() {
		return
	}
	if l := n.locks.Live(n.lockName(j, j.Unique(), store.LockRun)); l != nil && l.Job == j.ID {
		n.freeName(slices.Clone(l.Name()), &j.ID, l.Token)
		return
	}
	// This node was away when the run began. Others may have voted for it, and one of them may be handed the
	// job now. Nobody has the run by so low a token: all say by which one they voted, and for how long yet.
	if j.Retry > 0 {
		n.uniqueMesh.back.add(j.ID, pastRuns{at: n.monotonic()}, n.now)
		n.locks.EnqueueUnlock(n.lockName(j, j.Unique(), store.LockRun), lock.Holder{Job: j.ID}, 1, 0, n.mesh.Nodes())
	}
}

// pastRuns are the runs of a job that began before it was given back here, at a node that didn't know them.
type pastRuns struct {
	at    int64  // when that was: steady, ms
	ended uint64 // the token of the last one that all were told to take back
}

// over says of a vote for a run whether it was given before, and not prolonged since: by how much of its time
// is over. The voter's clock may run slower than ours. Tokens don't count: they are of the time of day, which can be
// another one at the node where a run begins after it.
func (p *pastRuns) over(vote *wire.Lock, now int64) bool {
	since := now - p.at
	return vote.Left > 0 && lock.VoteMS(vote.Lease)-vote.Left > since+since/lock.ClockSlack
}

// givenBack remembers such runs.
type givenBack struct {
	table.Generations[store.ID, pastRuns]
	turned int64
}

const (
	givenBackMS   = 600_000 // how long at least that is remembered
	givenBackMost = 10_000  // of so many jobs
)

func (g *givenBack) add(id store.ID, past pastRuns, now int64) {
	if now-g.turned >= givenBackMS || g.Young() >= givenBackMost {
		g.Turn()
		g.turned = now
	}
	g.Put(id, past)
}

// endPastRun follows a denial that names a vote for a run of the very job that was asked for. Where that run
// began before the job was given back here, all take the vote back. Where this node claimed it before it was
// started anew, and has all that it logged, nobody has the job by it ([Node.endOwnRuns]): all take back a
// vote that wasn't extended since.
func (n *Node) endPastRun(name []byte, id store.ID, m *wire.Message) {
	k := &m.Lock
	if m.Count != wire.LockHeld && m.Count != wire.TokenStale || store.ID(k.Job) != id || store.Space(name[0]) != store.LockRun {
		return
	}
	past, yes := n.uniqueMesh.back.Get(id)
	flags := uint8(0)
	switch {
	case yes && past.ended == k.Token:
		return // they were told
	case yes && past.over(k, n.monotonic()):
	case k.Token <= n.ownBefore && n.locks.IsOwnToken(k.Token) && n.isQueued(&id):
		if flags = wire.Fresh; !yes {
			past.at = math.MinInt64 / 2 // it wasn't given back
		}
	default:
		return
	}
	past.ended = k.Token
	n.uniqueMesh.back.add(id, past, n.now)
	n.freeRun(name, &id, k.Token, flags) // the claim may have come here, too, after the NACK
}

// isQueued says whether a job is in its queue, and has no run.
func (n *Node) isQueued(id *store.ID) bool {
	j := n.store.Lookup(id)
	return j != nil && j.State == store.StateQueued && !hasRun(j)
}

// runs says whether a job may not be worked on beside others.
func runs(j *store.Job) bool {
	u := j.Unique()
	return u != nil && u.Runs()
}
