package engine

import (
	"bytes"
	"fmt"
	"slices"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Adding a unique job. A node that is alone takes the waiting lock, makes the job, and answers at once. In a
// mesh the lock is acquired first: there is no job before a majority has voted for it. If another job has the
// key, ONCONFLICT says what becomes of the ADDJOB.

// claimedAdd is an ADDJOB whose lock is being acquired.
type claimedAdd struct {
	client any   // a *Batch, if the job is one of an ADDJOBS
	place  int32 // among the Answers of the Batch
	denied bool  // see [Node.Deny]
	claim  *lock.Acquisition
	asked  *question // what it waits for if claim is nil: another job has the key, and gets this one's body
}

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
		Limit: s.Limit, LockTTL: uint32(s.LockTTL), RunTTL: uint32(s.RunTTL), ConflictDelay: uint32(s.ConflictDelay), BusyDelay: uint32(s.BusyDelay), Key: s.Key,
	})
	return n.scratch.value
}

// waitLease returns the lease of a job's waiting lock, in ms from the job's adding on; 0: no lease, or not
// yet.
func (n *Node) waitLease(a *Add) int64 {
	if (a.Delay > 0 || a.Family()) && a.Unique.Strategy != store.UniqueWindow {
		return 0 // the lease begins when the job is due
	}
	return a.Unique.LockTTL * 1000
}

// claimAdd acquires the lock of a job that is being added, whose name is in scratch.lock, and adds the job
// when the lock is granted. It returns the same as [Node.AddJob].
func (n *Node) claimAdd(a *Add) (answer store.ID, wait bool, err error) {
	if !a.CanWait {
		n.Stats.Refused++
		return answer, false, ErrClaimWait
	}
	a = a.clone()
	return n.claimFor(a, n.idFor(a))
}

// claimFor is claimAdd for an ADDJOB that is kept, whose job is to have this ID.
func (n *Node) claimFor(a *Add, id store.ID) (answer store.ID, wait bool, err error) {
	c, began := &claimedAdd{}, n.monotonic()
	if a.batch != nil {
		c.client, c.place = a.batch, a.place
	}
	n.uniqueMesh.adds[id] = c
	decided := func(o lock.Result) (answer store.ID, wait bool, err error) {
		delete(n.uniqueMesh.adds, id)
		n.afterAdd(id)
		if unwanted(c.denied, c.client) {
			n.unclaimAdd(a, &id, &o)
			return answer, false, ErrReplTimeout
		}
		a.spend(n.monotonic() - began)
		return n.addDecided(a, id, o)
	}
	_, name := store.SlotName(n.scratch.lock)
	now, claim := n.locks.AcquireFor(lock.ForJob{
		Name: name, Slots: a.Unique.Limit, First: n.locks.FirstSlot(), Job: id, Lease: n.waitLease(a), Outlives: a.Unique.Strategy == store.UniqueWindow,
		Any: a.Unique.Any, Timeout: a.Timeout,
	}, func(o lock.Result) {
		answer, wait, err := decided(o)
		n.answerClaimed(c, id, answer, wait, err)
	})
	if now != nil {
		return decided(*now)
	}
	c.claim = claim
	return id, true, nil
}

// answerClaimed answers the client of an ADDJOB that has waited, whose job was to have this ID, or ties it to what it waits for now.
func (n *Node) answerClaimed(c *claimedAdd, id, answer store.ID, wait bool, err error) {
	switch {
	case c.client == nil:
	case err != nil:
		n.answer(c.client, c.place, id, err)
	case wait:
		n.Tie(PendingAdd(answer), c.client)
	default:
		n.answer(c.client, c.place, answer, nil)
	}
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
	j := n.newJob(a, n.extrasOf(a, where.family, true), where.elsewhere)
	j.ID = id
	if o.Kind == lock.Granted {
		j.Unique().SetWait(o.Token)
		j.Unique().SetSlot(store.LockWait, o.Slot)
	} else if other, wait, err, over := n.refused(a, j, &o.Job); over {
		n.store.FreeJob(j)
		return other, wait, err
	}
	if wait, err = n.enlist(a, j, where); err != nil {
		n.unclaimAdd(a, &id, &o)
	}
	return id, wait, err
}

// unclaimAdd frees the lock that was acquired for a job that isn't added after all. A slot's job may be here all the same, made by another
// node meanwhile, and then the lock is its own.
func (n *Node) unclaimAdd(a *Add, id *store.ID, o *lock.Result) {
	if o.Kind != lock.Granted {
		return
	}
	n.nameClaim(a)
	name := acquired(n.scratch.lock, o)
	if j := n.store.Lookup(id); j != nil && j.State != store.StateAcked && n.named(j, store.LockWait, name) && j.Unique().Has(store.UniqueHasWait) {
		return
	}
	n.freeName(name, id, o.Token)
}

// abandonUniqueAdd ends an ADDJOB whose client has gone while its lock was being acquired.
func (n *Node) abandonUniqueAdd(id *store.ID) bool {
	c := n.uniqueMesh.adds[*id]
	if c != nil {
		delete(n.uniqueMesh.adds, *id)
		n.afterAdd(*id)
		switch {
		case c.claim != nil:
			n.locks.Abandon(c.claim)
		case c.asked.behind:
			n.dropQuestion(c.asked.number)
		default:
			c.asked.then = nil
		}
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
	b.Name = slices.Clone(a.Name)
	b.After = slices.Clone(a.After)
	if a.BlockedBy != nil {
		id := *a.BlockedBy
		b.BlockedBy = &id
	}
	return &b
}

// refused settles the conflict of an ADDJOB, of the job j, with the job that has its key. If over is false, j is added
// all the same, and tries again later for its key.
func (n *Node) refused(a *Add, j *store.Job, holder *store.ID) (answer store.ID, wait bool, err error, over bool) {
	n.Stats.Duplicates++
	if a.Unique.Conflict != store.ConflictReschedule {
		answer, wait, err = n.conflict(a, j.ID, *holder)
		return answer, wait, err, true
	}
	u := j.Unique()
	u.Set(store.UniquePending)
	u.CountTry()
	n.Stats.PutOff++
	return answer, false, nil, false
}

// markWindow marks a window's lock that was just taken, by the name in scratch.lock, and logs it: the lock
// outlives its job, so no job tells of it then.
func (n *Node) markWindow(u store.Unique) {
	if u.Strategy() == store.UniqueWindow {
		l := n.store.Lock(n.scratch.lock)
		l.Flags |= lock.FlagOutlives
		l.Era = n.store.Locks().Epoch
		n.locks.Log(l)
	}
}

// conflict answers an ADDJOB whose key is taken. If wait is true the answer follows, for the client that is tied to the [PendingAdd] of id.
func (n *Node) conflict(a *Add, id, holder store.ID) (answer store.ID, wait bool, err error) {
	key := a.Body
	if a.Unique.Keyed {
		key = a.Unique.Key
	}
	if a.Unique.Conflict == store.ConflictDrop {
		n.leftOut(a.Queue, key, &holder)
		return answer, false, ErrDropped
	}
	ended := n.endDue(&holder) // in a mesh it had the key when that was asked for
	j := n.store.Lookup(&holder)
	if a.Sees != nil && !n.sees(a, j) {
		return answer, false, duplicate(nil, key)
	}
	if ended {
		return answer, false, duplicate(&holder, key)
	}
	switch a.Unique.Conflict {
	case store.ConflictReturn:
		// An ID is a promise: don't answer the ID of a job that isn't promised yet.
		if n.uniqueMesh.adds[holder] == nil && (j == nil || j.State != store.StateWaitRepl) {
			return holder, false, nil
		}
	case store.ConflictReplace, store.ConflictDebounce:
		return n.replaceOrAsk(a, id, holder, j, duplicate(&holder, key))
	}
	return answer, false, duplicate(&holder, key)
}

// sees says whether the client may know of the job that has its key. If j is nil, neither the job nor its
// queue is known here.
func (n *Node) sees(a *Add, j *store.Job) bool {
	if j == nil || n.dummy(j) {
		return a.Sees(nil)
	}
	return a.Sees(j.Queue.NameBytes())
}

// tellChanged sends the whole job, with its new body or queue, to its holders. So a holder that has lost its
// copy gets one again: the others count on it. From now on this node forgets the job's end only when each
// holder has confirmed it to this node itself (answerForAll): what a holder said before it got the copy
// doesn't count.
func (n *Node) tellChanged(j *store.Job, change uint8) {
	if j.Holders() == 0 {
		return
	}
	m := n.copyOf(j, wire.ReplJob)
	m.Flags = wire.NoReply | change
	n.tell(j, m)
	answerForAll(j)
}

// keepKey keeps the key of a job that is about to get another body: if the body was the key, the key is
// written down. It does the same with what a dead letter was unique by. ok is false if the key is too long for that.
func (n *Node) keepKey(j *store.Job, body []byte) (_ *store.Job, ok bool) {
	tag := keyTag(j)
	if tag == 0 || bytes.Equal(j.Body(), body) {
		return j, true
	}
	if !n.keepsKey(j, body) {
		return j, false
	}
	return n.setExtra(j, tag, store.Unique(j.Extra(tag)).AppendKeyed(nil, j.Body()))
}

// keepsKey says whether keepKey has room for a job's key.
func (n *Node) keepsKey(j *store.Job, body []byte) bool {
	return keyTag(j) == 0 || bytes.Equal(j.Body(), body) ||
		len(j.Body()) <= store.MaxUniqueKey && len(j.Extras())+len(j.Body()) <= store.MaxExtras
}

// keyTag is the extra of a job that is unique by its body, or was as long as it lived; 0: there is none.
func keyTag(j *store.Job) store.Tag {
	if j.Parts == 0 {
		return 0
	}
	for _, tag := range [...]store.Tag{store.TagUnique, store.TagAsleep} {
		if u := store.Unique(j.Extra(tag)); len(u) > 0 && !u.Has(store.UniqueKeyed) {
			return tag
		}
	}
	return 0
}

// duplicate returns the refusal that names the job that has the key. A nil id means that the client may not
// know that job.
func duplicate(id *store.ID, key []byte) error {
	who := "a job of a queue that the ACL excludes"
	if id != nil {
		who = id.String()
	}
	return Refusal(fmt.Sprintf("DUPLICATE %s has the key %s: wait until it is free, or add with another KEY", who, shown(key)))
}

const shownKey = 64 // bytes of a key, or a queue's name, that a text shows

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
	if l := n.inTheWay(n.keyLock(j, u, store.LockRun), &j.ID, u); l != nil {
		holder = l.Job.String()
	}
	n.tellLeftOut(fmt.Errorf("%s of the queue %s is dropped: %s has the key %s", j.ID.String(), shown(j.Queue.NameBytes()), holder, shown(j.UniqueKey(u))))
}

func (n *Node) tellLeftOut(line error) {
	n.effects = append(n.effects, Effect{Kind: LeftOut, Err: line})
}
