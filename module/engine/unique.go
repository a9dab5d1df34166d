package engine

import (
	"bytes"
	"fmt"
	"slices"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Unique jobs. A job's record (store.Unique) says which locks the job has. The waiting lock refuses the
// adding of another job with the same key. The run lock holds other jobs with the key back while a client
// works on this one. The table of locks is made anew from the jobs. A lock is free if its job doesn't say
// that it has the lock, or isn't known any more: nothing has to be reaped.
//
// Three places ask for locks: [Node.AddJob], [Node.again] for a job that was put off by a conflict, and
// [Node.claimRun] for one that is about to be delivered. A node that is alone answers each at once;
// unique_mesh.go has what a mesh does.

// Unique has the options of uniqueness of a job that is being added.
type Unique struct {
	Strategy       uint8 // store.UniqueBefore …; 0: not at all
	Conflict, Busy uint8 // store.ConflictDrop …, store.BusyWait …
	Mesh, Any      bool
	Keyed          bool // Key is the job's key; otherwise its body is
	Key            []byte
	LockTTL        int64 // seconds; 0: as long as the job has the lock. For a window: its TTL
	RunTTL         int64 // seconds; 0: as long as the job has the lock
	ConflictDelay  int64 // seconds
	BusyDelay      int64 // seconds
}

// Refusals of unique jobs.
const (
	// ErrDropped isn't an error to the client, which asked to leave the job out in this case.
	ErrDropped  Refusal = "DUPLICATE another job has the key"
	ErrLockLost Refusal = "LOCKLOST the job's lock is over, and another has it: stop, or acknowledge what is done"
)

const (
	shownKey  = 64   // bytes of a key, or a queue's name, that a text shows
	busySteps = 1000 // jobs that one fetch moves out of the way, see next
)

// duplicate returns the refusal that names the job that has the key. A nil id means that the client may not
// know that job.
func duplicate(id *store.ID, key []byte) error {
	who := "a job of a queue that the ACL excludes"
	if id != nil {
		who = id.String()
	}
	return Refusal(fmt.Sprintf("DUPLICATE %s has the key %s: wait until it is free, or add with another KEY", who, shown(key)))
}

// shown quotes bytes that a client sent, for a text. It shortens them to shownKey.
func shown(b []byte) string {
	if len(b) > shownKey {
		return fmt.Sprintf("%+q…", b[:shownKey])
	}
	return fmt.Sprintf("%+q", b)
}

// SetVerbose turns LeftOut effects on or off: it takes time to make their texts.
func (n *Node) SetVerbose(yes bool) { n.verbose = yes }

// leftOut reports, for the server's log, a job that isn't added because its key is taken.
func (n *Node) leftOut(queue, key []byte, holder *store.ID) {
	if n.verbose {
		n.tellLeftOut(fmt.Errorf("a new job of the queue %s is dropped: %s has the key %s", shown(queue), holder.String(), shown(key)))
	}
}

// leftOutBusy is leftOut for a job that is deleted when it should be delivered.
func (n *Node) leftOutBusy(j *store.Job, u store.Unique) {
	if !n.verbose {
		return
	}
	holder := "another node's job" // this node may not know which
	if l := n.locks.Live(n.lockName(j, u, store.LockRun)); l != nil {
		holder = l.Job.String()
	}
	n.tellLeftOut(fmt.Errorf("%s of the queue %s is dropped: %s has the key %s", j.ID.String(), shown(j.Queue.NameBytes()), holder, shown(j.UniqueKey(u))))
}

func (n *Node) tellLeftOut(line error) {
	n.effects = append(n.effects, Effect{Kind: LeftOut, Err: line})
}

// SetUnique turns uniqueness off, for tests that have other subjects, or on again. Jobs that
// were added while it was off aren't unique.
func (n *Node) SetUnique(yes bool) { n.notUnique = !yes }

// lockName is the name of a job's lock, valid until the next one is asked for.
func (n *Node) lockName(j *store.Job, u store.Unique, space store.Space) []byte {
	n.scratch.lock = j.AppendLock(n.scratch.lock[:0], u, space)
	return n.scratch.lock
}

// holds says whether the job that has a lock says so too. A lock that outlives its job counts until the next
// flush.
func (n *Node) holds(l *store.Lock) bool {
	if l.Flags&lock.FlagOutlives != 0 {
		return l.Era == n.flushEpoch
	}
	j := n.store.Lookup(&l.Job)
	if j == nil {
		return false
	}
	u := j.Unique()
	if u == nil || !u.Has(hasFlag(l.Space())) {
		return false
	}
	return n.named(j, l.Space(), l.Name())
}

func hasFlag(space store.Space) uint8 {
	if space == store.LockRun {
		return store.UniqueHasRun
	}
	return store.UniqueHasWait
}

// lapsed notes in a job that its lock is over.
func (n *Node) lapsed(l *store.Lock) {
	if lock.Ended(l) || l.Flags&lock.FlagOutlives != 0 || l.Space() == store.LockBare || !n.holds(l) {
		return
	}
	j := n.store.Lookup(&l.Job)
	if l.Space() == store.LockWait && l.Until > 0 && l.Until <= n.monotonic() {
		j.Unique().Set(store.UniqueLapsed)
	}
	n.hasNoMore(j, l.Space())
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

// --- adding ------------------------------------------------------------------

// nameClaim leaves the name of a job's waiting lock in scratch.lock, and returns its hash. The lock's slot in
// the table is a cache miss away, so it is fetched now, while the job is made.
func (n *Node) nameClaim(a *Add) (hash uint64) {
	s := &a.Unique
	scope, key := a.Queue, a.Body
	if s.Keyed {
		key = s.Key
	}
	if s.Mesh {
		scope = nil
	} else if scope == nil {
		scope = []byte{}
	}
	n.scratch.lock = store.AppendLockName(n.scratch.lock[:0], store.LockWait, scope, key)
	hash = n.store.LockHash(n.scratch.lock)
	n.store.WarmLock(hash)
	return hash
}

// attributes encodes the options of uniqueness of an ADDJOB, in scratch memory.
func (n *Node) attributes(a *Add) store.Unique {
	s := &a.Unique
	flags := uint8(0)
	if s.Mesh {
		flags |= store.UniqueMesh
	}
	if s.Any {
		flags |= store.UniqueAny
	}
	if s.Keyed {
		flags |= store.UniqueKeyed
	}
	n.scratch.value = store.AppendUnique(n.scratch.value[:0], &store.UniqueBy{
		Strategy: s.Strategy, Flags: flags, Conflict: s.Conflict, Busy: s.Busy,
		LockTTL: uint32(s.LockTTL), RunTTL: uint32(s.RunTTL), ConflictDelay: uint32(s.ConflictDelay), BusyDelay: uint32(s.BusyDelay), Key: s.Key,
	})
	return n.scratch.value
}

// allExtras joins the extras of a job that is being added, in scratch memory.
func (n *Node) allExtras(family []byte, u store.Unique) []byte {
	n.scratch.extras = store.AppendExtra(append(n.scratch.extras[:0], family...), store.TagUnique, u)
	return n.scratch.extras
}

// waitLease returns the lease of a job's waiting lock, in ms from the job's adding on; 0: no lease, or not
// yet.
func (n *Node) waitLease(a *Add) int64 {
	if (a.Delay > 0 || a.Family()) && a.Unique.Strategy != store.UniqueWindow {
		return 0 // the lease begins when the job is due
	}
	return a.Unique.LockTTL * 1000
}

// refused settles the conflict of an ADDJOB with the job that has its key. If over is false, the job is added
// all the same, and tries again later for its key.
func (n *Node) refused(a *Add, u store.Unique, holder *store.ID) (answer store.ID, err error, over bool) {
	n.Stats.Duplicates++
	if a.Unique.Conflict != store.ConflictReschedule {
		answer, err = n.conflict(a, *holder)
		return answer, err, true
	}
	u.Set(store.UniquePending)
	u.CountTry()
	n.Stats.PutOff++
	return answer, nil, false
}

// begun marks a window's lock that was just taken, by the name in scratch.lock, and logs it: the lock
// outlives its job, so no job tells of it then.
func (n *Node) begun(u store.Unique) {
	if u.Strategy() == store.UniqueWindow {
		l := n.store.Lock(n.scratch.lock)
		l.Flags |= lock.FlagOutlives
		l.Era = n.flushEpoch
		n.locks.Log(l)
	}
}

// conflict answers an ADDJOB whose key is taken.
func (n *Node) conflict(a *Add, holder store.ID) (answer store.ID, err error) {
	key := a.Body
	if a.Unique.Keyed {
		key = a.Unique.Key
	}
	if a.Unique.Conflict == store.ConflictDrop {
		n.leftOut(a.Queue, key, &holder)
		return answer, ErrDropped
	}
	j := n.store.Lookup(&holder)
	if a.Sees != nil && !n.sees(a, j) {
		return answer, duplicate(nil, key)
	}
	switch a.Unique.Conflict {
	case store.ConflictReturn:
		// An ID is a promise: don't answer the ID of a job that isn't promised yet.
		if n.uniqueMesh.adds[holder] == nil && (j == nil || j.State != store.StateWaitRepl) {
			return holder, nil
		}
	case store.ConflictReplace:
		if j != nil && n.replace(j, a) {
			return holder, nil
		}
	}
	return answer, duplicate(&holder, key)
}

// sees says whether the client may know of the job that has its key. If j is nil, neither the job nor its
// queue is known here.
func (n *Node) sees(a *Add, j *store.Job) bool {
	if j == nil || n.dummy(j) {
		return a.Sees(nil)
	}
	return a.Sees(j.Queue.NameBytes())
}

// replace gives a job that still waits a new body. It returns false, and changes nothing, if somebody works
// on the job, or may: a copy doesn't tell what other nodes do with theirs.
func (n *Node) replace(j *store.Job, a *Add) bool {
	delayed := j.Flags&store.FlagQueuedOnce == 0 // a copy never counts as delayed
	waits := j.State == store.StateQueued ||
		j.State == store.StateActive && j.Place == store.InHeld && j.Flags&store.FlagDelivered == 0 && (delayed || j.Holders() == 0)
	if !waits || n.dummy(j) {
		return false
	}
	j, ok := n.keepKey(j, a.Body)
	if !ok {
		return false
	}
	moved := n.store.Rewrite(j, a.Body, j.Extras())
	n.moved(j, moved)
	j = moved
	n.Stats.Replaced++
	n.logAnew(j)
	n.touch(j.Queue)
	n.tellChanged(j, wire.NewBody)
	return true
}

// tellChanged sends a job's new body or queue to its holders. A holder that doesn't know the job takes a
// copy: if the job stayed forgotten there, it would be taken for done.
func (n *Node) tellChanged(j *store.Job, change uint8) {
	m := n.copyOf(j, wire.ReplJob)
	m.Flags = wire.NoReply | change
	n.tell(j, m)
	answerForAll(j)
}

// keepKey keeps the key of a job that is about to get another body: if the body was the key, the key is
// written down. ok is false if the key is too long for that.
func (n *Node) keepKey(j *store.Job, body []byte) (_ *store.Job, ok bool) {
	u := j.Unique()
	if u == nil || u.Has(store.UniqueKeyed) || bytes.Equal(j.Body(), body) {
		return j, true
	}
	if len(j.Body()) > store.MaxUniqueKey {
		return j, false
	}
	return n.setExtra(j, store.TagUnique, u.AppendKeyed(nil, j.Body()))
}

// onNewBody replaces a job's body as another node did.
func (n *Node) onNewBody(j *store.Job, body []byte) *store.Job {
	if j.State != store.StateActive && j.State != store.StateQueued || n.dummy(j) || bytes.Equal(j.Body(), body) {
		return j
	}
	j, ok := n.keepKey(j, body)
	if !ok {
		return j // nobody replaces such a body
	}
	moved := n.store.Rewrite(j, body, j.Extras())
	n.moved(j, moved)
	n.logAnew(moved)
	return moved
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

// gotKey handles the word of another node that it has a job queued, or with a client, or has got its key. If
// the job was put off, this node doesn't ask for the key again.
func (n *Node) gotKey(j *store.Job) {
	if !n.putOff(j) {
		return
	}
	u := j.Unique()
	name := n.lockName(j, u, store.LockWait)
	if n.locks.AsksFor(&j.ID, string(name)) {
		return // the votes of this acquisition may be those of the other node by now: see claimedAgain
	}
	u.Clear(store.UniquePending)
	if l := n.locks.Live(name); l != nil && l.Job == j.ID && u.Strategy() != store.UniqueWindow {
		u.SetWait(l.Token)
	}
}

// again tries once more to take the waiting lock of a job that was put off. It returns true if the job may be
// queued now; otherwise the job is put off anew. nack says whether a NACK is to queue it.
func (n *Node) again(j *store.Job, nack bool) bool {
	u := j.Unique()
	left := delayFrom(j, n.now)
	if !n.notUnique {
		lease := u.LockTTL()
		if left > 0 && u.Strategy() != store.UniqueWindow {
			lease = 0
		}
		if !n.mesh.Alone() {
			return n.claimAgain(j, u, lease, nack)
		}
		token, holder := n.locks.Take(n.lockName(j, u, store.LockWait), &j.ID, lease)
		if holder != nil {
			n.Stats.Duplicates++
			n.reschedule(j, u, u.ConflictDelay())
			return false
		}
		u.SetWait(token)
		n.begun(u)
	}
	u.Clear(store.UniquePending)
	if left > 0 {
		n.later(j, left)
		return false
	}
	return true
}

// reschedule puts a job off, and counts that. The job stays the same, and this isn't an additional delivery.
func (n *Node) reschedule(j *store.Job, u store.Unique, span int64) {
	u.CountTry()
	n.Stats.PutOff++
	n.later(j, span)
}

// later queues a job in span ms, as if it was new and delayed. It is this node that queues it: the other
// holders leave it alone until its retry time is over after that.
func (n *Node) later(j *store.Job, span int64) {
	clearQueuedOnce(j)
	n.waitFor(j, span)
	n.tell(j, &wire.Message{Kind: wire.PutOff, Flags: n.keyFlag(j), Span: span})
}

// keyFlag returns the flag of a PutOff: GotKey if the job is unique and this node doesn't wait for its key.
func (n *Node) keyFlag(j *store.Job) uint8 {
	if j.Unique() == nil || n.putOff(j) {
		return 0
	}
	return wire.GotKey
}

// waitFor keeps a job out of its queue for span ms. The other holders aren't told before it is queued then.
func (n *Node) waitFor(j *store.Job, span int64) {
	n.store.Hold(j)
	n.store.Count(j, store.Delayed)
	setAnnounced(j)
	n.wakeAt(j, n.now+span)
	n.log(LogState, j)
	n.touch(j.Queue)
}

// --- fetching ----------------------------------------------------------------

// next returns the job that a client gets from a queue, with the locks that the job needs, or nil. The caller
// delivers the job. Each job that makes way for others uses up some of budget, and more where other nodes are
// asked for its locks. When budget is used up, the next ticks go on.
func (n *Node) next(q *store.Queue, budget *int) *store.Job {
	passing, apart := false, false
	for from := len(n.effects); *budget > 0; from = len(n.effects) {
		j := q.Head
		if passing {
			j = n.beyond(q, apart)
		}
		if j != nil && j.ETime <= n.now {
			n.setAside(j)
			*budget--
			continue
		}
		if j == nil || j.Parts == 0 {
			return j
		}
		id, freed := j.ID, n.store.Freed()
		switch c := n.choose(j); c {
		case claimHad:
			if n.store.Freed() == freed {
				return j
			}
			// The end of another job may have moved this one, or deleted it.
			if j = n.store.Lookup(&id); j != nil && j.State == store.StateQueued {
				return j
			}
		case claimAsked:
			return nil
		case claimSlow, claimApart:
			if passing {
				n.passOver(j, apart)
			} else {
				passing, apart = true, c == claimApart
			}
		}
		*budget -= 1 + n.cost(from)
	}
	n.serveLater(q)
	return nil
}

// choose calls claimRun. No client is served meanwhile: it could be the client for which the job is chosen,
// if that one waits for another queue as well.
func (n *Node) choose(j *store.Job) claimed {
	n.choosing = true
	defer func() { n.choosing = false }()
	return n.claimRun(j)
}

// serveLater asks the next tick to serve the clients that wait for a queue.
func (n *Node) serveLater(q *store.Queue) {
	name := string(q.NameBytes())
	if last := len(n.unserved) - 1; last < 0 || n.unserved[last] != name {
		n.unserved = append(n.unserved, name)
	}
	n.hurryTick()
}

// serveOn goes on with queues in which very many jobs had to make way, or were given to clients.
func (n *Node) serveOn() {
	names := n.unserved
	n.unserved = nil
	for budget := tickBudget; len(names) > 0 && budget > 0; names = names[1:] {
		from, again := len(n.effects), len(n.unserved)
		if q := n.store.Queue([]byte(names[0])); q != nil {
			n.serve(q)
		}
		budget -= 1 + n.cost(from) + (len(n.unserved)-again)*busySteps
	}
	if n.unserved = append(names, n.unserved...); len(n.unserved) > 0 {
		n.hurryTick()
	}
}

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
		token, holder := n.locks.Take(n.lockName(j, u, store.LockRun), &j.ID, u.RunTTL())
		if holder != nil {
			n.busy(j, u)
			return claimRefused
		}
		n.hasRun(j, u, "", token)
	}
	n.endsWaiting(j, u)
	return claimHad
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

// busy does what ONBUSY says with a job whose key is being worked on.
func (n *Node) busy(j *store.Job, u store.Unique) {
	switch u.Busy() {
	case store.BusyDrop:
		n.Stats.BusyDropped++
		n.leftOutBusy(j, u)
		n.effects = append(n.effects, Effect{Kind: Dropped, ID: j.ID, Queue: j.Queue})
		n.cancel(j)
	case store.BusyReschedule:
		n.reschedule(j, u, u.BusyDelay())
	case store.BusyDead:
		n.deadLetter(j, u)
	default:
		n.store.HoldBack(j, u)
	}
}

// deadLetter moves a job to the dead-letter queue, where it isn't unique any more. If there can't be such a
// queue, the job is put off instead.
func (n *Node) deadLetter(j *store.Job, u store.Unique) {
	const wait = 60_000
	name := deadName(j.Queue)
	if _, err := n.queue(name); err != nil {
		n.reschedule(j, u, wait)
		return
	}
	n.Stats.Dead++
	n.store.Hold(j)
	j, _ = n.moveOn(j, name, true) // no error: the queue can be made
	n.tellChanged(j, wire.NewQueue)
	n.push(j)
	n.serve(j.Queue)
}

// pushUnique is [store.Store.Push] for a unique job. A job whose run ends by this frees its key. A job that
// runs alone takes its place in its per-key queue.
func (n *Node) pushUnique(j *store.Job, u store.Unique) {
	if n.fallsDue(j, u) {
		n.beginLease(j, u)
	}
	if !u.Runs() || u.Busy() != store.BusyWait {
		n.endRun(j, u)
		n.store.Push(j)
		return
	}
	holder := n.locks.Live(n.lockName(j, u, store.LockRun))
	if first := n.store.PushKeyQueue(j, u, holder == nil || holder.Job == j.ID && u.Has(store.UniqueHasRun)); first != nil && first != j {
		n.notPast(first)
	}
	n.endRun(j, u)
}

// fallsDue says whether a job that was delayed or held back is queued for the first time. From now on its
// waiting lock ends by itself.
func (n *Node) fallsDue(j *store.Job, u store.Unique) bool {
	if !endsWhenDue(u) {
		return false
	}
	// FlagQueuedOnce isn't enough. The lease has begun already if the job was delayed at the node that handed
	// it over. And this node may have thought that another one queues a job that was put off. The lock tells.
	l := n.store.Lock(n.lockName(j, u, store.LockWait))
	switch {
	case l != nil && l.Job == j.ID && l.Until > 0:
		return false // even if the lease is over by now, and no tick has seen that yet
	case n.locks.IsLive(l) && l.Job == j.ID:
		return true
	}
	return j.Flags&store.FlagQueuedOnce == 0 && j.Delay > 0
}

// accepted settles the locks of a job that came from another node. The job brings its waiting lock along; a
// run lock stays with the node that gave the job to a client.
func (n *Node) accepted(j *store.Job) {
	if u := j.Unique(); u != nil {
		u.Clear(store.UniqueHasRun)
	}
}

// spanOf is how long a copy's first queueing is put off, ms.
func (n *Node) spanOf(j *store.Job) int64 {
	switch isNew := j.State == store.StateWaitRepl || j.QTime == 0; {
	case n.putOff(j) && isNew:
		return max(delayFrom(j, n.now), j.Unique().ConflictDelay())
	case n.putOff(j), n.isToQueue(j):
		return max(delayFrom(j, n.now), j.QTime-n.now)
	}
	return delayLeft(j, n.now)
}

// settleKeyQueues lets the next job go on in each per-key queue that has lost its first job, or whose key has
// become free. Where very many queues have per-key queues of one mesh-wide key, some follow with the next
// ticks, unless the key is taken before.
//
// The waiting clients are served after all per-key queues have gone on, so that the oldest job comes first.
// They are served once for each queue: many per-key queues of one queue may go on at a time, and each search
// for a job that can be had may take as long as busySteps allow.
func (n *Node) settleKeyQueues() {
	for budget := busySteps; n.store.AnyToPromote() && !n.passive && !n.loading; {
		queues := n.promoteKeyQueues(n.scratch.queues[:0])
		n.scratch.queues = nil // in use
		for _, q := range queues {
			if budget > 0 {
				n.serveWithin(q, &budget)
				budget--
			} else {
				n.serveLater(q)
			}
		}
		n.scratch.queues = queues[:0]
		if len(queues) == 0 {
			break
		}
	}
	if n.store.AnyToPromote() {
		n.hurryTick()
	}
}

// promoteKeyQueues lets the per-key queues go on. It appends the queues in which a job has gone on.
func (n *Node) promoteKeyQueues(queues []*store.Queue) []*store.Queue {
	for {
		l := n.store.NextToPromote(&n.wakes)
		if l == nil {
			break
		}
		n.scratch.lock = l.AppendLock(n.scratch.lock[:0])
		if n.isBackedOff(n.scratch.lock) {
			n.store.Taken(l)
			continue
		}
		holder, first := n.locks.Live(n.scratch.lock), l.Head()
		if holder != nil && (holder.Job == first.ID || !n.mereVote(first.Unique(), holder)) {
			n.store.Taken(l)
			if holder.Until == 0 {
				n.findEnd(holder)
			}
			n.locks.Watch(holder)
			continue
		}
		n.notPast(n.store.Promote(l))
		if last := len(queues) - 1; last < 0 || queues[last] != l.Queue {
			queues = append(queues, l.Queue)
		}
	}
	return queues
}

// findEnd looks for the end of a run lock that has no lease and for which others wait.
func (n *Node) findEnd(l *store.Lock) {
	if !(*owners)(n).Lives(l.Job) {
		// This node may have missed the end of the lock's job.
		n.locks.CheckOrphan(l)
		n.backOff(string(l.Name()), nil)
		return
	}
	// The lock's job may be one of those that wait.
	if j := n.store.Lookup(&l.Job); j != nil {
		if u := j.Unique(); u != nil && !u.Has(store.UniqueHasRun) {
			n.boundRun(l, j, u)
			n.locks.Log(l)
		}
	}
}

// --- ends --------------------------------------------------------------------

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

// endLocks frees all locks of a job that is done, or is about to be forgotten.
func (n *Node) endLocks(j *store.Job) {
	if j.Parts == 0 {
		return
	}
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
		if u.Has(hasFlag(space)) {
			continue // endLocks frees it at all nodes
		}
		if l := n.locks.Live(n.lockName(j, u, space)); l != nil && l.Job == j.ID && l.Flags&lock.FlagOutlives == 0 {
			n.locks.Remove(l)
		}
	}
}

// leaveTo frees the run lock of a job that another node works on now.
func (n *Node) leaveTo(j *store.Job) {
	if j.Parts == 0 {
		return
	}
	if u := j.Unique(); u != nil {
		n.endRun(j, u)
	}
}

// discard frees a job's locks, and forgets the job.
func (n *Node) discard(j *store.Job) {
	n.endLocks(j)
	n.store.Remove(j)
}

// farewell frees the locks of a job that was deleted with its queue, in a mesh. The waiting lock stays if
// other nodes have copies of the job. If the job is known again (RESTORE), both locks stay: they belong to
// that job.
func (n *Node) farewell(j *store.Job) (cost int) {
	u := j.Unique()
	if u == nil {
		return 0
	}
	if other := n.store.Lookup(&j.ID); other != nil && other != j {
		return farewellCost
	}
	n.endRun(j, u)
	if j.Holders() == 0 {
		n.endWait(j, u)
	}
	return farewellCost
}

const (
	farewellCost  = reapBudget / farewellSlice // cost of a farewell, in reaped jobs
	farewellMost  = 20_000                     // locks that FLUSHALL looks at: that takes 3 ms
	farewellNoted = 4                          // a lock that is noted counts as this many
	farewellSlice = 250                        // locks that are freed at once: each is a message to every node
)

// farewell is a lock whose job was forgotten together with all others.
type farewell struct {
	name  []byte
	id    store.ID
	token uint64
}

// farewellAll notes the locks of all jobs, which are about to be forgotten at once. The locks are freed bit
// by bit, from the next tick on, and not now: the server also empties its data to load them anew in the same
// call (DEBUG RELOAD, DEBUG LOADAOF), and a job that comes back still has its locks. If there are very many
// locks it looks at some only; the others are found when they are in somebody's way.
func (n *Node) farewellAll() {
	if n.mesh.Alone() || n.passive {
		return
	}
	if n.loading {
		// Some releases of the server empty the data after they have begun to load: those locks are noted.
		// They aren't for a flush that is an entry of the log: the other nodes were told of it when it
		// happened.
		was := n.unloaded
		if n.unloaded = 0; was == 0 || n.store.Jobs() != was {
			return
		}
	}
	most := farewellMost
	for l := n.store.Locks().Head; l != nil && most > 0; l = l.Next {
		most--
		j := n.store.Lookup(&l.Job)
		if j == nil || lock.Ended(l) {
			continue
		}
		most -= farewellNoted - 1
		u, space := j.Unique(), l.Space()
		if u == nil || !u.Has(hasFlag(space)) {
			continue
		}
		if space == store.LockRun || u.Strategy() != store.UniqueWindow && j.Holders() == 0 {
			n.farewells = append(n.farewells, farewell{bytes.Clone(l.Name()), j.ID, lockToken(u, space)})
		}
	}
}

// tickFarewells frees some of the locks that farewellAll noted, but not those that their
// jobs have again.
func (n *Node) tickFarewells() {
	for budget := farewellSlice; budget > 0 && len(n.farewells) > 0; budget-- {
		f := n.farewells[0]
		n.farewells = n.farewells[1:] // first: freeName may let an acquisition go on that comes back here
		if !n.hasAgain(&f) {
			n.freeName(f.name, &f.id, f.token)
		}
	}
	if len(n.farewells) == 0 {
		n.farewells = nil
	} else {
		n.hurryTick()
	}
}

// hasAgain says whether the job of a farewell is known and says that it has the lock.
func (n *Node) hasAgain(f *farewell) bool {
	j := n.store.Lookup(&f.id)
	if j == nil {
		return false
	}
	u := j.Unique()
	return u != nil && u.Has(hasFlag(store.Space(f.name[0])))
}

// revoke forgets a job that was promised to nobody; its window ends too.
func (n *Node) revoke(j *store.Job) {
	if u := j.Unique(); u != nil && u.Strategy() == store.UniqueWindow && u.Has(store.UniqueHasWait) {
		n.freeName(n.lockName(j, u, store.LockWait), &j.ID, u.WaitToken())
	}
	n.losesOne(j) // it may have been counted by a release meanwhile
	n.discard(j)
}

// retake takes the waiting lock again for a job that comes back into its queue, unless another job has the
// lock by now. The delivery has ended the lock, but no other job is to wait beside this one as long as this
// one waits to be processed again. LOCKTTL begins anew. It doesn't if the job has waited all the time
// (waited): it wasn't given to a client, here or at the node from which it comes.
func (n *Node) retake(j *store.Job, waited bool) {
	if j.Parts == 0 {
		return
	}
	u := j.Unique()
	if u == nil || n.notUnique || !endsByDelivery(u) || u.Has(store.UniquePending) {
		return
	}
	if u.Has(store.UniqueHasWait) && (n.mesh.Alone() || j.Holders() == 0) {
		return // it wasn't delivered. Where there are copies, the record may be old
	}
	name := slices.Clone(n.lockName(j, u, store.LockWait))
	if n.mesh.Alone() {
		if token, holder := n.locks.Take(name, &j.ID, u.LockTTL()); holder == nil {
			u.SetWait(token)
		}
		return
	}
	id, lease := j.ID, u.LockTTL()
	if l := n.locks.Live(name); waited && lease > 0 && l != nil && l.Job == id && l.Until > 0 {
		lease = min(lease, max(1, lock.LeaseOf(l.Until-n.monotonic())))
	}
	now, _ := n.locks.AcquireFor(lock.ForJob{Name: name, Job: id, Lease: lease, Any: u.Has(store.UniqueAny)}, func(o lock.Result) {
		if n.retaken(&id, name, &o) {
			n.log(LogState, n.store.Lookup(&id))
		}
	})
	if now != nil {
		n.retaken(&id, name, now)
	}
}

// retaken notes whether a job that came back has its waiting lock again. A job that is delivered by now, or
// done, doesn't keep the lock. It says whether the job changed.
func (n *Node) retaken(id *store.ID, name []byte, o *lock.Result) bool {
	j := n.store.Lookup(id)
	waits := j != nil && (j.State == store.StateQueued || j.State == store.StateActive && j.Place != store.InWorking) && n.named(j, store.LockWait, name)
	switch {
	case o.Kind == lock.Granted && waits:
		j.Unique().SetWait(o.Token)
	case o.Kind == lock.Granted && j == nil && n.livesAway(id):
		return false // its queue went to another database meanwhile
	case o.Kind == lock.Granted:
		n.freeName(name, id, o.Token)
		return false
	case o.Kind == lock.Conflict && waits:
		j.Unique().Clear(store.UniqueHasWait)
	default:
		return false
	}
	return true
}

// extend makes the lease of a job's lock begin anew (WORKING), see [Node.renewLock]. No strategy has two
// locks that last while the job is worked on.
func (n *Node) extend(j *store.Job, client any) (pending bool, err error) {
	if j.Parts == 0 {
		return false, nil
	}
	u := j.Unique()
	if u == nil || n.notUnique {
		return false, nil
	}
	switch {
	case n.lockLost(&j.ID):
		err = ErrLockLost
	case mayRun(j, u):
		lease := u.RunTTL()
		if !n.mesh.Alone() {
			lease = n.runLease(j, u)
		}
		pending, err = n.renewLock(j, u, store.LockRun, lease, client)
	case u.Strategy() == store.UniqueUntil && !u.Has(store.UniquePending):
		pending, err = n.renewLock(j, u, store.LockWait, u.LockTTL(), client)
	}
	if err == ErrLockLost {
		n.endLoss(j)
	}
	return pending, err
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

// --- after a load or a rename -----------------------------------------------

// relock makes the locks of a queue's jobs anew, from what the jobs say, after the queue was loaded or has
// got another name. If two jobs say that they have the same lock, the first one that is met gets it.
//
// wasAway says that the queue is back from another database. Then the other nodes have votes for its keys,
// and may have been told since that a key is free.
func (n *Node) relock(q *store.Queue, wasAway bool) { n.relockSome(q, &settling{restored: !wasAway}) }

// relockSome does a part of relock. Where a node is promoted, it also makes the edges of jobs that aren't
// held ([Node.rejoinRest]). It says whether all is done.
func (n *Node) relockSome(q *store.Queue, s *settling) (done bool) {
	if q.Uniques == 0 && !s.promoted {
		return true
	}
	lists := [...]*store.Job{q.Working.Head, q.Head, q.Held.Head}
	from := 0
	if j := n.store.Lookup(&s.at); j != nil && j.Queue == q {
		switch j.Place {
		case store.InWorking:
			lists[0] = j
		case store.InWaiting:
			from, lists[1] = 1, j
		case store.InHeld:
			from, lists[2] = 2, j
		}
	}
	for _, j := range lists[from:] {
		for ; j != nil; j = j.Next {
			if s.pauseAt(j) {
				return false
			}
			n.relockJob(j, s)
		}
	}
	for l := q.KeyQueues.Head; l != nil; l = l.Next {
		for j := l.Head(); j != nil; j = j.Next {
			n.relockJob(j, s)
		}
	}
	if q.Uniques > 0 {
		n.store.WakeQueue(q)
	}
	return true
}

func (n *Node) relockJob(j *store.Job, s *settling) {
	if s.promoted && j.Place != store.InHeld {
		n.joinAgain(j)
	}
	u := j.Unique()
	if u == nil {
		return
	}
	if u.Has(store.UniqueHasWait) {
		n.restore(j, u, store.LockWait, s.restored)
	}
	if u.Has(store.UniqueHasRun) {
		n.restore(j, u, store.LockRun, s.restored)
	}
}

// restore gives a job back the lock that it says it has. If its queue has come into sight while the server
// runs (seen), by RESTORE or under another name, the other nodes are asked for a waiting lock, too: they may
// have no votes for it.
func (n *Node) restore(j *store.Job, u store.Unique, space store.Space, seen bool) {
	name := n.lockName(j, u, space)
	lease, token := u.RunTTL(), u.RunToken()
	if space == store.LockWait {
		lease, token = u.LockTTL(), u.WaitToken()
		switch {
		case u.Strategy() == store.UniqueWindow:
			// A window's lock is saved by itself, and stays with the name of its queue.
			if l := n.locks.Live(name); l == nil || l.Job != j.ID {
				u.Clear(store.UniqueHasWait)
			}
			return
		case (j.Flags&store.FlagQueuedOnce == 0 || held(j)) && !j.Uncertain():
			lease = 0 // the job isn't due yet
		case j.Delay > 0 && j.Holders() > 0 && j.State == store.StateActive && j.Place == store.InHeld:
			lease = 0 // the node that delays the job begins the lease: this node's clock may differ from what it was
		}
	}
	if token == 0 { // no lock has token 0: the value was damaged, and what this node saved couldn't be loaded
		u.Clear(hasFlag(space))
		return
	}
	if l := n.store.Lock(name); l != nil && l.Job == j.ID {
		if !lock.Ended(l) {
			token = max(token, l.Token) // this node has voted since, for a run elsewhere
		}
		if space == store.LockRun && lease == 0 {
			lease = l.Lease // the lease that this node voted for
		}
	}
	if space == store.LockRun && lease == 0 && !n.mesh.Alone() {
		lease = n.runLease(j, u) // without a lease other nodes would never see the lock's end
	}
	asks := space == store.LockWait && lease > 0 && !n.mesh.Alone()
	switch {
	case asks:
		n.begins.over.Put(j.ID, n.monotonic()+lease)
	case space == store.LockWait && seen && !n.mesh.Alone():
		n.begins.over.Put(j.ID, noEnd)
	}
	switch _, holder := n.locks.Take(name, &j.ID, lease); {
	case holder == nil:
		n.store.Lock(name).Token = token
	case asks: // the job may have the lock by others' votes
	case !n.locks.Outvotes(j.ID, space):
		u.Clear(hasFlag(space))
		n.log(LogState, j)
	}
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

// HeldBack counts the jobs that are held back in all queues.
func (n *Node) HeldBack() uint64 { return n.store.HeldBack() }
