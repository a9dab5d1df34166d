package engine

import (
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// How a job ended, and what follows for those that waited for it: they go on, or are dropped with it.

const followMost = 300 // jobs that one call unblocks or drops; the others follow later

// end is how a job ended.
type end struct {
	id         store.ID
	undone     bool        // it wasn't acknowledged
	unreleased bool        // and it couldn't have been delivered
	job        *store.Job  // nil where it isn't known here
	told       []wire.Node // if job is nil: the nodes that are told of the end too, as far as is known
	origin
}

// origin is where the end of a job became known. Zero: a client of this node ended the job.
type origin struct {
	from  *Peer // another node that told this one
	clock bool  // each node that holds the job finds out by itself; or nobody knows which did first
}

// gone does what ended does, for a job that is to be removed, in whatever state. It returns true if the job
// may be removed. Otherwise very many wait for it, and it stays, as one that is acknowledged or cancelled,
// until all of them are followed; then [Node.collect] removes it.
func (n *Node) gone(j *store.Job, s origin) bool {
	if n.hearsay(j) {
		n.evictLater(j.ID, false)
		return true
	}
	undone := j.State != store.StateAcked || cancelled(j)
	n.ended(j, undone, s)
	if n.passive || n.loading || n.store.Dependents(&j.ID) == nil {
		return true
	}
	n.leaves(j, undone)
	return false
}

// leaves marks a job whose dependents haven't all been followed yet. The mark is logged: a restart goes on
// from there.
func (n *Node) leaves(j *store.Job, undone bool) {
	f, _ := j.Family()
	f.Flags |= store.FamilyLeaves
	if undone {
		f.Flags |= store.FamilyCancelled
	}
	if j.State != store.StateAcked {
		n.endsHere(j)
		j.SetAttempts(0)
	}
	j = n.setFamily(j, &f)
	n.followAgain(j)
	n.log(LogState, j)
}

// endsHere makes a job one that has ended, as far as this node is concerned, and frees its locks.
func (n *Node) endsHere(j *store.Job) {
	if j.State == store.StateQueued {
		n.touch(j.Queue)
	}
	n.endLocks(j)
	n.store.Hold(j)
	n.store.Count(j, store.NoReason)
	becomeAcked(j)
}

// followAgain sets the time at which an acknowledged job is looked at again for which others wait: soon, or
// after outcomeMS if all that are left are out of sight. Those that come back also look into it themselves.
func (n *Node) followAgain(j *store.Job) {
	n.setTime(j, n.now+1)
	if n.deps.budget > 0 {
		n.setTime(j, n.now+outcomeMS)
	}
	j.ETime = max(j.ETime, j.QTime)
	n.arm(j)
}

// ended follows the end of a job that is about to be removed, or is acknowledged: those that waited for it go
// on, or are dropped with it. It returns how many were dropped. If very many wait, it follows only some of
// them; the others still wait for the job.
func (n *Node) ended(j *store.Job, undone bool, s origin) (dropped int) {
	if n.passive || n.loading {
		return 0
	}
	if !undone {
		n.store.SetDone(&j.ID)
	}
	if n.store.Edges() == 0 {
		return 0
	}
	n.store.Hold(j) // otherwise a client that is served for one of its dependents could get it
	n.report(j, undone, s)
	f, _ := j.Family()
	n.removeParents(f, &j.ID) // it waits for nothing now, and no job comes after it
	e := end{id: j.ID, undone: undone, unreleased: f.Unreleased(), job: j, origin: s}
	dropped = n.follow(e)
	if j.Queue.DB != 0 && n.store.Dependents(&e.id) != nil {
		n.endLater(e) // its timer rests until its queue is back
	}
	return dropped
}

// tellsDependents adds to the holders of a job the nodes that hold one that waits for it. So they are told of
// its end until they have confirmed it, as those that hold a copy. They are the nodes that asked (TagAskers),
// and the holders of the jobs that wait here. They may have no copy of the job, and would ask. But this node
// could be lost before, or forget the end in a restart, and a job whose end nobody knows counts as undone. If
// very many wait, the nodes of the later ones follow with those. The job is about to be acknowledged, and may
// move.
func (n *Node) tellsDependents(j *store.Job) *store.Job {
	if !n.hasDependents(j) {
		return j
	}
	for _, node := range slices.Collect(listed(j, store.TagAskers)) {
		if n.mesh.ByName(node) != nil {
			j, _ = n.addHolder(j, node)
		}
	}
	k := n.store.Dependents(&j.ID)
	if k == nil {
		return j
	}
	t := k.Head
	for range n.deps.budget {
		if t == nil {
			break
		}
		if c := n.store.Lookup(&t.Job); c != nil {
			for i := range c.Holders() {
				h, _ := c.Holder(i)
				p, added := n.mesh.ByName(wire.Node(h)), false
				if p == nil {
					continue
				}
				if j, added = n.addHolder(j, p.Node); added && !noted(j, store.TagAskers, p) {
					j, _ = n.noteNode(j, store.TagAskers, p) // so that the job isn't evicted before
				}
			}
		}
		t = t.Next
	}
	return j
}

// hasDependents says whether jobs wait for this one that other nodes may hold.
func (n *Node) hasDependents(j *store.Job) bool {
	return len(n.mesh.All()) > 0 && (n.store.Edges() > 0 && n.store.Dependents(&j.ID) != nil || j.Extra(store.TagAskers) != nil)
}

// owesDependents says whether a node with a job that waits for this one has yet to hear of this one's end.
func (n *Node) owesDependents(j *store.Job) bool {
	for node := range listed(j, store.TagAskers) {
		if n.mesh.ByName(node) != nil && !(j.State == store.StateAcked && j.ConfirmedBy(uint64(node))) {
			return true
		}
	}
	return false
}

// unfinished says whether jobs still wait for one that is acknowledged.
func (n *Node) unfinished(j *store.Job) bool {
	return j.State == store.StateAcked && n.store.Dependents(&j.ID) != nil
}

// staysForDependents says whether a job only stays until its dependents are followed.
func staysForDependents(j *store.Job) bool {
	f, ok := j.Family()
	return ok && j.State == store.StateAcked && f.Flags&store.FamilyLeaves != 0
}

// follow does what ended does, for as many dependents as the budget allows. It also follows the dependents of
// the jobs that it drops. A dropped job for which others still wait then stays, as in [Node.leaves]. A job
// also stays if one waits for it that is out of sight: nothing else would tell that one, when it is back, how
// the job ended.
func (n *Node) follow(e end) (dropped int) {
	var fallen []store.ID
	for {
		past := n.deps.passed[e.id] // zero: none
		delete(n.deps.passed, e.id)
		here, through := n.store.Lookup(&e.id) != nil, false
		for k := n.store.Dependents(&e.id); k != nil && n.deps.budget > 0; k = n.store.Dependents(&e.id) {
			n.deps.budget--
			t := n.store.After(k, &past)
			if t == nil {
				through = true
				break
			}
			id := t.Job
			c := n.store.Lookup(&id)
			if c == nil && here && n.maybeDormant(&id) {
				past = id
				continue
			}
			n.removeEdge(&e.id, &id)
			if c == nil {
				n.outliveAway(&id, &e)
				continue
			}
			if c.State == store.StateAcked {
				continue
			}
			n.countIDs(c)
			if n.outlive(c, &e, e.id) {
				continue
			}
			dropped++
			if n.store.Dependents(&id) != nil {
				fallen = append(fallen, id)
			}
			if n.store.Dependents(&id) == nil || n.pendingAddOf(&id) != nil {
				n.drop(c)
			}
		}
		if past != (store.ID{}) && !through && n.store.Dependents(&e.id) != nil {
			n.deps.passed[e.id] = past // the next call goes on there: those behind it may be in sight
		}
		for len(fallen) > 0 {
			id := fallen[len(fallen)-1]
			if n.store.Dependents(&id) != nil && n.deps.budget > 0 && !(through && id == e.id) {
				break
			}
			fallen = fallen[:len(fallen)-1]
			c := n.store.Lookup(&id)
			switch {
			case c == nil && n.store.Dependents(&id) != nil:
				n.endLater(end{id: id, undone: true, unreleased: true, origin: e.origin})
			case c == nil:
			case n.store.Dependents(&id) == nil:
				n.drop(c)
			default:
				n.fallsWith(c)
				n.leaves(c, true)
			}
		}
		if len(fallen) == 0 {
			return dropped
		}
		e = end{id: fallen[len(fallen)-1], undone: true, unreleased: true, origin: e.origin}
	}
}

// followUnknown is follow for a job that isn't here. It returns true if nobody waits for that job any more.
func (n *Node) followUnknown(e end) bool {
	if n.deps.ending[e.id] {
		return false // its end is being followed
	}
	n.follow(e)
	if n.store.Dependents(&e.id) == nil {
		return true
	}
	n.endLater(e)
	return false
}

// endLater leaves it to [Node.tickEnds] to follow the end of a job that isn't here.
func (n *Node) endLater(e end) {
	if !n.deps.ending[e.id] {
		e.job, e.told = nil, slices.Clone(e.told)
		n.deps.ending[e.id] = true
		n.deps.ends = append(n.deps.ends, e)
	}
	n.hurryTick()
}

// tickEnds follows the ends of jobs that aren't here. If the server ends meanwhile, those that waited for
// them find out as for any job that isn't known.
func (n *Node) tickEnds() {
	ends := n.deps.ends
	n.deps.ends = nil
	for len(ends) > 0 && n.deps.budget > 0 {
		if n.follow(ends[0]); n.store.Dependents(&ends[0].id) != nil && n.deps.budget <= 0 {
			break // otherwise those that are left are out of sight: there is nothing to go on with
		}
		delete(n.deps.ending, ends[0].id)
		if j := n.lookEnded(&ends[0].id); j != nil && j.Queue.DB != 0 {
			n.collect(j)
		}
		ends = ends[1:]
	}
	if n.deps.ends = append(ends, n.deps.ends...); len(n.deps.ends) > 0 {
		n.hurryTick()
	}
}

// drop deletes a job because one that it waited for has ended.
func (n *Node) drop(j *store.Job) {
	n.fallsWith(j)
	if ad := n.pendingAddOf(&j.ID); ad != nil {
		n.cleanUp(ad)
		n.deny(ad, ErrReplRemoved)
		return
	}
	n.keepAlone(j, OutcomeDropped)
}

// fallsWith counts a job that is about to be dropped with one that it waited for, and tells that. Each holder finds out by itself.
func (n *Node) fallsWith(j *store.Job) {
	n.countDropped(j)
	if j.State != store.StateWaitRepl && n.CountsHere(j) {
		n.Stats.Dropped++
		n.tellsDropped(j, WhyParent.String())
	}
}

// countIDs subtracts from the budget what it takes to look at, or rewrite, the list of jobs that j waits for.
func (n *Node) countIDs(j *store.Job) {
	f, _ := j.Family()
	n.deps.budget -= f.IDs() / familyPiece
}

// outlive lets a job go on without some that it waited for, and which ended as e says. ids are in the order
// in which the job names them. It returns false if the job has to be dropped.
func (n *Node) outlive(j *store.Job, e *end, ids ...store.ID) bool {
	f, ok := j.Family()
	if !ok || !f.Drop(ids...) {
		return true
	}
	early, adding := f.Flags&store.FamilyEarly != 0, f.Flags&store.FamilyAdding != 0
	blocked := f.Flags&store.FamilyBlocked != 0
	switch {
	case early:
		f.Flags &^= store.FamilyEarly // the job that was to come after it waits no more
	case !e.undone:
	case f.Flags&store.FamilyBlocked != 0:
		if e.unreleased {
			return false
		}
	case f.OnDead == OnDeadDrop:
		return false
	case f.OnDead == OnDeadDead:
		p := n.policyOf(j)
		if p.buriesNone() {
			return false
		}
		n.removeParents(f, &j.ID)
		var err error
		counts := n.CountsHere(j)
		if j, err = n.bury(j, WhyParent, &p, nil); err != nil {
			if j.State != store.StateActive {
				return false
			}
			n.stayDying(n.setFamily(j, &store.Family{}), WhyParent, err)
			return true
		}
		n.arm(j)
		if counts { // each holder finds out by itself
			n.hasDied(j, WhyParent)
		}
		f = store.Family{}
	}
	if f.IDs() == 0 {
		f.Flags &^= store.FamilyBlocked
	}
	j = n.setFamily(j, &f)
	switch {
	case !early && held(j) && len(ids) == 1 && j.Queue.DB == 0:
		n.logDrop(j, &ids[0])
		return true
	case early || held(j):
		n.log(LogState, j)
		return true
	}
	when := n.timingOf(j, e)
	if blocked && !n.heardRelease(e.job) {
		when = n.timingOf(j, &end{job: e.job, origin: origin{clock: true}})
	}
	if adding && when != later {
		when = unpromised
	}
	n.unblock(j, when)
	return true
}

// heardRelease says whether this node knows of the release of a job that has ended. It returns true for nil:
// the job isn't here. If the job is still deferred here, a client of another node may have released it to
// come last. Then those that it blocks were unblocked there before, and some may have ended: this node queues
// none of them before it has asked the others.
func (n *Node) heardRelease(j *store.Job) bool {
	if j == nil {
		return true
	}
	f, _ := j.Family()
	return f.Flags&store.FamilyDeferred == 0
}

// outliveAway lets a job that is out of sight go on without one that isn't here any more: when it is back
// nobody may know how that one ended. A job that can't go on finds out when it is back.
func (n *Node) outliveAway(id *store.ID, e *end) {
	j := n.lookDormant(id)
	if j == nil || j.State == store.StateAcked {
		return
	}
	f, _ := j.Family()
	switch {
	case !e.undone, f.Flags&store.FamilyEarly != 0:
	case f.Flags&store.FamilyBlocked != 0:
		if e.unreleased {
			return
		}
	case f.OnDead != OnDeadRun:
		return
	}
	n.countIDs(j)
	n.outlive(j, e, e.id)
}

// CancelJob is CancelFor without a reason.
func (n *Node) CancelJob(id *store.ID) int { return n.CancelFor(id, nil) }

// CancelFor deletes a job everywhere, undone, and the jobs that are dropped with it. It returns how many were
// deleted here. If this node doesn't know the job, it tells the other nodes. reason is
// why; nil: none was given. Of a longer one than MaxReason the rest is cut off.
func (n *Node) CancelFor(id *store.ID, reason []byte) int { return n.cancelFor(id, reason, nil) }

// cancelFor is CancelFor, and with a wish also CancelSoftly, for a job that nobody is known to work on here: the wish goes with the word of the
// end to other holders, which may know better. Without one the end counts there, too, whoever works on the job.
func (n *Node) cancelFor(id *store.ID, reason, wish []byte) int {
	j := n.lookToEnd(id)
	switch {
	case j == nil:
		var r *Result
		if reason != nil {
			r = &Result{Has: true, Data: cutReason(reason), HasKeep: true, Keep: DefaultKeep}
		}
		n.evictForEnd()
		n.endUnknown(id, true, r)
		return 0
	case j.State == store.StateAcked:
		return 0
	}
	n.nameEnds(id)
	if n.flushes.now != nil {
		n.Stats.Flushed++
	} else {
		n.Stats.Cancelled++
	}
	if ad := n.pendingAddOf(id); ad != nil {
		n.cleanUp(ad)
		n.deny(ad, ErrReplRemoved)
		return 1
	}
	n.tellsCancelled(j, cutReason(reason))
	return n.cancel(n.setWish(j, wish), OutcomeCancelled, cutReason(reason))
}

// cancel ends a job that is promised, and isn't done, as [Node.CancelJob] says. Its outcome is kept if the job or its queue says so, but not
// that of a flushed one. reason is why; nil: no reason is known.
func (n *Node) cancel(j *store.Job, o Outcome, reason []byte) int {
	n.noteStopped(j)
	j = n.tellsNamed(n.tellsTakers(j))
	dropped := n.ended(j, true, origin{})
	keep := int64(0)
	if n.flushes.now == nil {
		keep = n.keepTime(j, nil)
	}
	if j.Holders() == 0 && n.store.Dependents(&j.ID) == nil && keep == 0 {
		n.noteEnd(j.ID, o, reason, reason != nil)
		n.remove(j)
		return 1 + dropped
	}
	// As with an acknowledgement, every holder is told until it knows.
	j = n.undone(j)
	n.acknowledge(j, nil)
	n.noteEnd(j.ID, o, reason, reason != nil)
	if keep > 0 {
		j = n.keep(j, n.endNow(o, keep, &Result{Has: reason != nil}), reason)
	}
	if n.unfinished(j) {
		n.wakeAt(j, n.now+1)
	} else {
		n.collect(j)
	}
	return 1 + dropped
}

// undone marks a job that is about to be acknowledged, or forgotten, as not done. The job may move.
func (n *Node) undone(j *store.Job) *store.Job {
	f, _ := j.Family()
	f.Flags |= store.FamilyCancelled
	return n.setFamily(j, &f)
}

// ackFlags are the flags of a SetAck about a job.
func ackFlags(j *store.Job) (flags uint8) {
	undone, unreleased := outcomeOf(j)
	if undone {
		flags |= wire.Cancelled
	}
	if unreleased {
		flags |= wire.HeldBack
	}
	return flags
}

// heardEnd notes what a SetAck says of the end of a job, before the job is acknowledged here. A SetAck that
// names no holder is from a node that knows nothing of the job but its end.
func (n *Node) heardEnd(j *store.Job, m *wire.Message) *store.Job {
	if m.Flags&wire.Cancelled == 0 {
		return j
	}
	f, _ := j.Family()
	if m.Flags&wire.HeldBack == 0 && len(m.Holders) > 0 && !n.store.Early(&f) {
		f = store.Family{} // not if another was released to come after this one: that one is to hear
	}
	f.Flags |= store.FamilyCancelled
	return n.setFamily(j, &f)
}
