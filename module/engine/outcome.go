package engine

import (
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// How a job ended, and what follows for those that waited for it: they go on, or are dropped with it. If this
// node doesn't know the job any more, it asks the other nodes.

const (
	followMost = 300    // jobs that one call unblocks or drops; the others follow later
	outcomeMS  = 10_000 // ms between questions what became of a job that isn't known here
)

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

// timing says when a node queues a job that it unblocks.
type timing uint8

const (
	later      timing = iota // another node does so: this node only if it hears nothing of that
	soon                     // when the others have been told, and nobody objects
	unpromised               // as soon, but all nodes are told at once: where the job is added it may not be promised yet
	atOnce
)

// timingOf says when this node queues a job, now that the last job that it waited for has ended. The node
// where a client said so queues it at once, for that node is the first to know. The first node that holds
// both queues it soon, unless it hears meanwhile that the job is queued. Both are needed: the client's node
// may not hold the job, or may not have known yet that the other jobs that it waited for have ended.
func (n *Node) timingOf(j *store.Job, e *end) timing {
	switch {
	case j.Holders() == 0 || e.origin == origin{}:
		return atOnce
	case n.first(j, e):
		return soon
	}
	return later
}

func cancelled(j *store.Job) bool {
	f, ok := j.Family()
	return ok && f.Flags&store.FamilyCancelled != 0
}

func outcomeOf(j *store.Job) (undone, unreleased bool) {
	f, ok := j.Family()
	if !ok || f.Flags&store.FamilyCancelled == 0 {
		return false, false
	}
	return true, f.Unreleased()
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
		if j.State == store.StateQueued {
			n.touch(j.Queue)
		}
		n.endLocks(j)
		n.store.Hold(j)
		n.store.Count(j, store.NoReason)
		becomeAcked(j)
		j.SetAttempts(0)
	}
	j = n.setFamily(j, &f)
	n.followAgain(j)
	n.log(LogState, j)
}

// followAgain sets the time at which an acknowledged job is looked at again for which others wait: soon, or
// after outcomeMS if all that are left are out of sight. Those that come back also look into it themselves.
func (n *Node) followAgain(j *store.Job) {
	setTime(j, n.now+1)
	if n.deps.budget > 0 {
		setTime(j, n.now+outcomeMS)
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
	for i := range f.IDs() {
		id := f.ID(i)
		n.removeEdge(&id, &j.ID) // it waits for nothing now, and no job comes after it
	}
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

// leaving says whether a job only stays until its dependents are followed.
func leaving(j *store.Job) bool {
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
			if n.store.Dependents(&id) == nil || n.pendingAdds[id] != nil {
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
	n.Stats.Dropped++
	if ad := n.pendingAdds[j.ID]; ad != nil {
		n.cleanUp(ad)
		n.deny(ad, ErrReplRemoved)
		return
	}
	n.remove(j)
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
		moved := n.toDeadLetter(j)
		if moved == nil {
			return false
		}
		j, f = moved, store.Family{}
	}
	if f.IDs() == 0 {
		f.Flags &^= store.FamilyBlocked
	}
	j = n.setFamily(j, &f)
	if early || held(j) {
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

// DeadSuffix, appended to a queue's name, makes the name of its dead-letter queue.
const DeadSuffix = ":dead"

func deadName(q *store.Queue) []byte {
	return append(append([]byte(nil), q.NameBytes()...), DeadSuffix...)
}

// toDeadLetter moves a job to its dead-letter queue. It returns nil if there can't be such a queue.
func (n *Node) toDeadLetter(j *store.Job) *store.Job {
	if f, ok := j.Family(); ok {
		for i := range f.IDs() {
			id := f.ID(i)
			n.removeEdge(&id, &j.ID)
		}
	}
	j, err := n.moveOn(j, deadName(j.Queue), true)
	if err != nil {
		return nil
	}
	n.Stats.Dead++
	return j
}

// unblock queues a job that isn't held back any more, if it is this node's turn, and the job is in sight.
func (n *Node) unblock(j *store.Job, when timing) {
	if j.State != store.StateActive {
		return // the job waits for its copies, and is queued when it has them
	}
	clearAnnounced(j)
	if left := delayFrom(j, n.now); left > 0 {
		setTime(j, n.now+left)
		// This node queues the job for the first time, even if it has only a copy.
		clearQueuedOnce(j)
		if when == later {
			setTime(j, j.QTime+n.insteadOf(j))
		} else {
			n.store.Count(j, store.Delayed)
			if when == soon {
				setTime(j, j.QTime+store.AnnounceMS) // so that this node and the one where the end was said don't queue it at one moment
			}
		}
		if when == atOnce && j.Holders() == 0 {
			setAnnounced(j) // otherwise another node may have unblocked it at the same moment
		}
		n.arm(j)
		n.log(LogState, j)
		return
	}
	if when == soon && j.Retry > 0 && j.Holders() > 0 || when != later && j.Queue.DB != 0 {
		clearQueuedOnce(j)
		n.wakeAt(j, n.now+store.AnnounceMS)
		n.log(LogState, j)
		return
	}
	if when != later && j.Queue.Pause&PauseIn != 0 && j.Retry > 0 {
		clearQueuedOnce(j)
		n.shutOut(j)
		n.log(LogState, j)
		return
	}
	if when == later {
		clearQueuedOnce(j)
		if setTime(j, 0); j.Retry > 0 {
			setTime(j, n.now+n.insteadOf(j))
		}
		n.arm(j)
		n.log(LogState, j)
		return
	}
	if when == unpromised || n.leavesFamily(j) {
		clearQueuedOnce(j)
		setTime(j, n.now+store.AnnounceMS)
		setAnnounced(j)
		n.arm(j)
		n.tellAllOf(j, &wire.Message{Kind: wire.WillQueue})
		n.log(LogState, j)
		return
	}
	clearQueuedOnce(j) // the others need not count this queueing
	n.tellQueues(j)
	n.requeue(j, false)
}

// leavesFamily says whether this node is leaving, and another one can queue in its place a job that is
// unblocked. A node that hears that a leaving node is about to queue a job does so itself.
func (n *Node) leavesFamily(j *store.Job) bool {
	return n.leaving && j.Retry > 0 && !n.putOff(j) && n.stayer(j) != nil
}

// tellQueues tells the other holders that this node is about to queue a job. A job that was put off by a
// conflict hasn't got its key yet, so the message only says that this node tries.
func (n *Node) tellQueues(j *store.Job) {
	m := n.queued(j, 0)
	if n.putOff(j) {
		*m = wire.Message{Kind: wire.PutOff}
	}
	n.tell(j, m)
}

// insteadMS is how long this node waits for another node that is to queue a job, and says nothing, before it
// asks the others. That node may have no copy, though this one believes so: its copy was deleted or refused
// there.
const insteadMS = 2_000

// insteadOf returns the time, in ms, until this node queues a job that another is to queue. It asks the
// others store.AnnounceMS before.
func (n *Node) insteadOf(j *store.Job) int64 {
	return min(insteadMS+store.AnnounceMS, int64(j.Retry)*1000) + n.jitter()
}

// leftToOthers says whether another node is to queue a job for the first time, and this one only if it hears
// nothing of that.
func leftToOthers(j *store.Job) bool {
	return j.State == store.StateActive && j.Retry > 0 && j.Place == store.InHeld && j.Reason() == store.NoReason && !held(j) &&
		j.Flags&(store.FlagQueuedOnce|store.FlagAnnounced|store.FlagDelivered) == 0
}

// firstHolder says whether this node is the first of the connected holders of a job, see comesBefore.
func (n *Node) firstHolder(j *store.Job) bool {
	for i := range j.Holders() {
		if h, _ := j.Holder(i); n.comesBefore(wire.Node(h)) {
			return false
		}
	}
	return true
}

// comesBefore says whether another holder of a job is to queue it rather than this one: the other is
// connected, and its ID is smaller. A node that is leaving comes last, for it may be ended at any moment. If
// two nodes don't know yet that one of them is leaving, neither may be the first, and both ask soon.
func (n *Node) comesBefore(node wire.Node) bool {
	p := n.mesh.ByName(node)
	switch {
	case p == nil || !p.Connected:
		return false
	case p.Leaving != n.leaving:
		return n.leaving
	}
	return node < n.self.Node()
}

// first says whether this node is the first of those that hold a job and hear of the end of the one that the
// job waited for last. They are the holders of that one, and the nodes that are told.
func (n *Node) first(j *store.Job, e *end) bool {
	for i := range j.Holders() {
		h, _ := j.Holder(i)
		if n.comesBefore(wire.Node(h)) && (e.job != nil && e.job.HeldBy(h) || slices.Contains(e.told, wire.Node(h))) {
			return false
		}
	}
	return true
}

// onQueuedElsewhere notes that another node has queued, or given to a client, a job that is held back here:
// the job was unblocked there.
func (n *Node) onQueuedElsewhere(j *store.Job) *store.Job {
	f, ok := j.Family()
	adding := j.State == store.StateWaitRepl
	if !ok || j.State != store.StateActive && !adding || !f.Held() {
		return j
	}
	clearAnnounced(j)
	if f.Flags&(store.FamilyBlocked|store.FamilyDeferred) == store.FamilyBlocked {
		// Maybe the job that blocks it was released to come last, and waits for it.
		f.Flags = store.FamilyEarly
	} else {
		for i := range f.IDs() {
			id := f.ID(i)
			n.removeEdge(&id, &j.ID)
		}
		f = store.Family{}
	}
	if j = n.setFamily(j, &f); adding {
		return j // it is queued here when it is promised
	}
	n.wakeAt(j, n.retryAt(j))
	n.log(LogState, j)
	return j
}

// eviction is the walk through the dependents of a job of which only this node's copy went, or of which this
// node knows no more than that it was cancelled.
type eviction struct {
	id         store.ID
	unreleased bool
	last       store.ID // the dependent that was met last, and waits on; zero: none
}

// evicted handles the dependents of a job of which only this node's copy goes, while others may hold one.
// Blocked jobs go with it, if it wasn't released; the other dependents wait on, and ask. If unreleased is
// false all ask. The job isn't here any more. If very many wait, some are left for the next ticks.
func (n *Node) evicted(id store.ID, unreleased bool) {
	before := len(n.deps.evictions)
	n.evictLater(id, unreleased)
	for len(n.deps.evictions) > before && n.deps.budget > 0 {
		n.evictOn()
	}
}

// evictLater leaves an eviction to [Node.tickEvictions].
func (n *Node) evictLater(id store.ID, unreleased bool) {
	if n.passive || n.store.Dependents(&id) == nil {
		return
	}
	n.deps.evictions = append(n.deps.evictions, eviction{id: id, unreleased: unreleased})
	n.hurryTick()
}

// tickEvictions goes on with evictions. If the server ends meanwhile, the dependents that are left find out
// as for any job that isn't known.
func (n *Node) tickEvictions() {
	for len(n.deps.evictions) > 0 && n.deps.budget > 0 {
		n.evictOn()
	}
	if len(n.deps.evictions) > 0 {
		n.hurryTick()
	}
}

// evictOn goes on with the newest eviction, until it is over, a job is dropped for which others wait, or the
// budget is used up.
func (n *Node) evictOn() {
	at := len(n.deps.evictions) - 1
	e := n.deps.evictions[at]
	n.deps.evictions = n.deps.evictions[:at]
	for n.deps.budget > 0 {
		n.deps.budget--
		k := n.store.Dependents(&e.id)
		if k == nil || n.store.Lookup(&e.id) != nil {
			return // nobody waits any more, or a copy has come since
		}
		t := n.store.After(k, &e.last)
		if t == nil {
			return
		}
		id := t.Job
		c := n.store.Lookup(&id)
		f, ok := store.Family{}, false
		if c != nil {
			f, ok = c.Family()
		}
		if !ok || f.Flags&store.FamilyEarly != 0 || f.Flags&store.FamilyBlocked == 0 || !e.unreleased {
			if ok && f.Flags&store.FamilyEarly == 0 && c.State == store.StateActive && f.Held() {
				n.wakeAt(c, n.now+1)
			}
			e.last = id
			continue
		}
		n.drop(c)
		if n.store.Dependents(&id) != nil {
			n.deps.evictions = append(n.deps.evictions, e, eviction{id: id, unreleased: true})
			return
		}
	}
	n.deps.evictions = append(n.deps.evictions, e)
}

// evictedFollowed follows the ends of jobs that were freed with their queue.
func (n *Node) evictedFollowed() {
	// last has the jobs that were released to come after some of those, most often one job. ended has how
	// many of those have ended, for each.
	var last []store.ID
	var ended []uint32
	for _, l := range n.store.TakeLost() {
		if l.Early {
			if len(last) == 0 || last[len(last)-1] != l.Of {
				last, ended = append(last, l.Of), append(ended, 0)
			}
			if !l.Copies || l.Ended {
				ended[len(ended)-1]++
			}
		}
		if l.Copies && !l.Ended {
			n.evictLater(l.ID, l.Unreleased)
		} else {
			n.endLater(end{id: l.ID, undone: !l.Ended || l.Undone, unreleased: l.Unreleased, origin: origin{clock: true}})
		}
	}
	for i := range last {
		if ended[i] > 0 {
			n.countDown(last[i], ended[i], nil, origin{clock: true})
		}
		n.lookLater(n.store.Lookup(&last[i]))
	}
}

// CancelJob deletes a job everywhere, undone, and the jobs that are dropped with it. It returns how many were
// deleted here. If this node doesn't know the job, it tells the other nodes.
func (n *Node) CancelJob(id *store.ID) int {
	j := n.store.Lookup(id)
	switch {
	case j == nil:
		n.endUnknown(id, true)
		return 0
	case j.State == store.StateAcked:
		return 0
	}
	n.Stats.Cancelled++
	if ad := n.pendingAdds[*id]; ad != nil {
		n.cleanUp(ad)
		n.deny(ad, ErrReplRemoved)
		return 1
	}
	return n.cancel(j)
}

// cancel ends a job that is promised, and isn't done, as [Node.CancelJob] says.
func (n *Node) cancel(j *store.Job) int {
	j = n.tellsTakers(j)
	dropped := n.ended(j, true, origin{})
	if j.Holders() == 0 && n.store.Dependents(&j.ID) == nil {
		n.remove(j)
		return 1 + dropped
	}
	// As with an acknowledgement, every holder is told until it knows.
	j = n.undone(j)
	n.acknowledge(j, nil)
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

// look finds out what became of the jobs that j waits for, where that isn't plain. The job may be gone
// afterwards.
func (n *Node) look(j *store.Job) {
	id := j.ID
	lacks := n.lacks(j)
	switch {
	case lacks && len(n.mesh.All()) == 0:
		n.allEnded(j)
		return
	case lacks:
		n.askOutcome(&id)
	}
	n.countIDs(j)
	f, _ := j.Family()
	wait := false
	var over []end // of jobs that aren't here
	for i := range f.IDs() {
		pid := f.ID(i)
		p := n.lookEnded(&pid)
		e := end{id: pid, origin: origin{clock: true}}
		switch {
		case p != nil && p.Queue.DB != 0:
			e.undone, e.unreleased = outcomeOf(p)
		case p != nil && p.State != store.StateAcked:
			if n.passed(j) == p {
				n.unblockOne(j, n.timingOf(j, &end{job: p, origin: origin{clock: true}}))
				return
			}
			continue
		case p != nil:
			// That job unblocks its dependents itself, bit by bit.
			n.wakeAt(p, n.now+1)
			wait = true
			continue
		case n.store.Done(&pid):
		case len(n.mesh.All()) == 0 && n.maybeDormant(&pid):
			wait = true
			continue
		case len(n.mesh.All()) == 0 && j.Holders() == 0:
			e.undone, e.unreleased = true, true
		default:
			n.askOutcome(&pid)
			wait = true
			continue
		}
		if e.undone && (f.OnDead != OnDeadRun || f.Flags&store.FamilyBlocked != 0) {
			over = append(over[:0], e) // j doesn't go on
			break
		}
		over = append(over, e)
	}
	if n.goOn(j, over) {
		wait = true
	}
	if j = n.store.Lookup(&id); j == nil || !held(j) {
		return
	}
	setTime(j, 0)
	if wait || lacks {
		setTime(j, n.now+outcomeMS+n.jitter())
	}
	n.arm(j)
}

// goOn follows the ends of jobs that aren't here, and for which j waited. If j goes on without several, they
// are taken out at once. It says whether some jobs still wait for one of them.
func (n *Node) goOn(j *store.Job, over []end) (left bool) {
	switch len(over) {
	case 0:
	case 1:
		n.store.AddEdge(&over[0].id, j)
	default:
		ids := make([]store.ID, len(over))
		for i := range over {
			ids[i] = over[i].id
			n.removeEdge(&ids[i], &j.ID)
		}
		n.outlive(j, &end{origin: origin{clock: true}}, ids...)
	}
	for _, e := range over {
		if n.store.Dependents(&e.id) != nil && !n.followUnknown(e) {
			left = true
		}
	}
	return left
}

// asked is a question to all nodes what became of a job.
type asked struct {
	next    int64       // unix ms: it isn't asked again before
	round   uint64      // of the question that was sent last
	unknown []wire.Node // nodes that answered that they don't know the job
}

// tickOutcomes forgets questions whose answers nobody waits for.
func (n *Node) tickOutcomes() {
	if n.now >= n.deps.sweep {
		n.deps.sweep = n.now + outcomeMS
		n.deps.asked.Begin()
	}
	more := n.deps.asked.Pass(followMost, func(id store.ID, _ *asked) bool {
		return n.store.Dependents(&id) != nil || n.lacks(n.store.Lookup(&id))
	})
	if more {
		n.hurryTick()
	}
}

// askOutcome asks all nodes what became of a job.
func (n *Node) askOutcome(id *store.ID) {
	a := n.deps.asked.Make(*id, asked{})
	if n.now < a.next {
		return
	}
	n.deps.rounds++
	a.next, a.round, a.unknown = n.now+outcomeMS-jitterMS, n.deps.rounds, a.unknown[:0]
	n.tellAll(&wire.Message{Kind: wire.AskOutcome, ID: *id, Round: a.round})
}

func (n *Node) onAskOutcome(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	reply := wire.Message{Kind: wire.Outcome, ID: m.ID, Count: wire.OutcomeUnknown, Round: m.Round}
	switch j := n.lookEnded(&id); {
	case j != nil && n.hearsay(j):
		reply.Count = wire.OutcomeOpen // as far as is known here
	case j != nil && j.State == store.StateAcked:
		reply.Count = wire.OutcomeEnded
		reply.Flags = ackFlags(j)
	case j != nil:
		reply.Count = wire.OutcomeOpen
		if j.State != store.StateWaitRepl && !noted(j, store.TagAskers, p) {
			j, _ = n.noteNode(j, store.TagAskers, p)
			n.log(LogState, j)
		}
	case n.store.Done(&id):
		reply.Count = wire.OutcomeEnded
	case n.tombstones.cancelled(&id):
		reply.Count, reply.Flags = wire.OutcomeEnded, wire.Cancelled|wire.HeldBack
	case n.maybeDormant(&id), n.delegated.Has(id):
		reply.Count = wire.OutcomeOpen // as far as is known here
	}
	if n.comesAfter(&id) {
		reply.Flags |= wire.Before
	}
	n.send(p, &reply)
}

// onOutcome takes an answer. A job that no node knows counts as ended undone, and unreleased.
func (n *Node) onOutcome(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	a := n.deps.asked.Get(id)
	if a == nil {
		return
	}
	if j := n.store.Lookup(&id); j != nil {
		n.onLast(p, j, a, m)
		return
	}
	e := end{id: id, undone: true, unreleased: true, origin: origin{from: p}}
	switch m.Count {
	case wire.OutcomeOpen:
		a.unknown = a.unknown[:0]
		return
	case wire.OutcomeEnded:
		e.undone, e.unreleased = m.Flags&wire.Cancelled != 0, m.Flags&wire.HeldBack != 0
	default:
		if !n.allUnknown(a, p, m) || n.maybeDormant(&id) {
			return
		}
	}
	n.deps.asked.Remove(id)
	n.followUnknown(e)
}

// allUnknown notes that a node doesn't know the job, and says whether no node does. An answer to an earlier
// round doesn't count: the job may have moved to that node since, from one that has answered this round.
func (n *Node) allUnknown(a *asked, p *Peer, m *wire.Message) bool {
	if m.Round != a.round {
		return false
	}
	if !slices.Contains(a.unknown, p.Node) {
		a.unknown = append(a.unknown, p.Node)
	}
	for _, q := range n.mesh.All() {
		if !slices.Contains(a.unknown, q.Node) {
			return false
		}
	}
	return true
}

// A job that was released to come last counts the jobs that it comes after. It hears of their ends by those
// copies of them that this node holds. If a copy was deleted here, or never came, the count doesn't reach 0
// by itself. So once none is left here, this node asks the others whether they have any.

// lacks says whether a job (nil: none) waits for others of which this node has no copy.
func (n *Node) lacks(j *store.Job) bool {
	if j == nil || j.State != store.StateActive {
		return false
	}
	f, ok := j.Family()
	return ok && f.Flags&store.FamilyLast != 0 && f.Count > 0 && !n.comesAfter(&j.ID)
}

// lookLater sets a time to look into what a job lacks, if it lacks anything.
func (n *Node) lookLater(j *store.Job) {
	if n.lacks(j) {
		n.wakeAt(j, n.now+outcomeMS+n.jitter())
	}
}

// comesAfter says whether jobs that one blocks, or was released to come after, are
// here, or may be in a queue that is out of sight.
func (n *Node) comesAfter(id *store.ID) bool {
	k := n.store.Dependents(id)
	if k == nil {
		return false
	}
	most := comesAfterMost
	for child := range k.EachBlocked() {
		if most--; most < 0 {
			return true // most likely; the edges of those that aren't here any more go in the next ticks
		}
		switch c := n.store.Lookup(child); {
		case c == nil:
			if n.maybeDormant(child) {
				return true
			}
		case c.State != store.StateAcked && blocked(c):
			return true
		}
	}
	return false
}

// comesAfterMost is how many jobs comesAfter looks at.
const comesAfterMost = 1000

// onLast takes an answer about a job that lacks others: if no node has any of them, all have ended.
func (n *Node) onLast(p *Peer, j *store.Job, a *asked, m *wire.Message) {
	switch {
	case !n.lacks(j):
		n.deps.asked.Remove(j.ID)
		return
	case m.Flags&wire.Before != 0:
		a.unknown = a.unknown[:0]
		return
	case !n.allUnknown(a, p, m):
		return
	}
	n.deps.asked.Remove(j.ID)
	n.allEnded(j)
}

// allEnded ends the wait of a job that was released to come last: all that it lacks have ended.
func (n *Node) allEnded(j *store.Job) {
	f, _ := j.Family()
	f.Count, f.Flags = 0, f.Flags&^store.FamilyLast
	if j = n.setFamily(j, &f); held(j) {
		n.log(LogState, j)
		return
	}
	n.unblock(j, n.timingOf(j, &end{origin: origin{clock: true}}))
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

// heardOfStranger handles the end, by a SetAck, of a job that isn't known here.
func (n *Node) heardOfStranger(p *Peer, id store.ID, m *wire.Message) {
	undone := m.Flags&wire.Cancelled != 0
	switch {
	case !undone:
		n.store.SetDone(&id)
	case len(m.Holders) == 0 && m.Flags&wire.HeldBack == 0:
		n.evicted(id, false) // the sender knows no more than that it was cancelled
		return
	}
	n.followUnknown(end{id: id, undone: undone, unreleased: m.Flags&wire.HeldBack != 0, told: m.Holders, origin: origin{from: p}})
}
