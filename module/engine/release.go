package engine

import (
	"math"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// The release of deferred jobs: every node that has a copy is told until it knows.

const (
	releaseMS = 1_000  // ms that RELEASEJOB waits for other nodes
	againMS   = 60_000 // longest time, ms, between attempts to tell a node of a release
)

// releasing is a release that not all holders have confirmed.
type releasing struct {
	id     store.ID
	msg    wire.Message
	open   []wire.Node // the nodes that haven't confirmed
	told   int         // nodes that know, this one included
	client any         // nil: answered, or gone
	expiry int64       // when the job expires, unix ms
	next   int64       // unix ms: then the client is answered, and the nodes in open are told again
	wait   int64       // ms, until next
}

// Release releases a deferred job: it is queued, in its queue or in another (nil: its own). The jobs that it
// blocks are unblocked when it is acknowledged. With last they are unblocked now, and it comes last; if there
// are very many, some follow a little later, in order.
//
// If wait is true the answer follows as a Released effect, for the client that is tied to [PendingRelease];
// otherwise nodes is how many nodes know of the release. It refuses jobs that aren't known here (ErrNoJob) or
// aren't deferred (ErrNotDeferred, ErrBlocked), a queue that takes nothing (ErrPaused) or can't be made, a
// queue in which another job has the job's key (DUPLICATE), and everything on a replica (ErrReplica). After a
// refusal nothing has changed.
func (n *Node) Release(id *store.ID, queue []byte, last, canWait bool) (nodes int, wait bool, err error) {
	if n.passive {
		return 0, false, ErrReplica
	}
	if queue != nil {
		_ = n.Queue(queue) // before the job is looked up, for this may remove the job
	}
	n.endDue(id)
	j := n.parent(id)
	if j == nil || j.State == store.StateAcked && cancelled(j) {
		return 0, false, ErrNoJob
	}
	if f, ok := j.Family(); !ok || j.State != store.StateActive || f.Flags&store.FamilyDeferred == 0 {
		if _, blocked := n.Waits(j); blocked {
			return 0, false, ErrBlocked
		}
		return 0, false, ErrNotDeferred
	}
	switch {
	case queue == nil && j.Queue.Pause&PauseIn != 0:
		return 0, false, ErrPaused
	case queue != nil:
		if err := n.TakesJobs(queue); err != nil {
			return 0, false, err
		}
		if j, err = n.moveAlong(j, queue); err != nil {
			return 0, false, err
		}
	}
	r := releasing{id: *id, told: 1, expiry: j.ETime, next: n.now + releaseMS, wait: releaseMS}
	for i := range j.Holders() {
		h, _ := j.Holder(i)
		r.open = append(r.open, wire.Node(h))
	}
	if n.mayHaveHeir(j) || n.mayLackHolders(j) {
		r.open = n.mesh.Nodes()
	}
	r.msg = wire.Message{Kind: wire.Release, ID: *id, Queue: slices.Clone(queue)}
	if queue != nil {
		r.msg.Flags |= wire.Moved
	}
	if last {
		r.msg.Flags |= wire.Last
		r.msg.Count = n.countChildren(j)
	}
	if f, _ := j.Family(); f.IDs() > 0 {
		r.msg.Flags |= wire.StillHeld
	}
	reached := false
	for _, h := range r.open {
		if p := n.mesh.ByName(h); p != nil && p.Connected {
			reached = true
			n.send(p, &r.msg)
		}
	}
	n.release(j, last, r.msg.Count, atOnce)
	wait = canWait && (reached || n.unblockingOf(id) != nil)
	if len(r.open) == 0 && !wait {
		return 1, false, nil
	}
	n.deps.releases.Put(*id, r)
	n.deps.tell = min(n.deps.tell, r.next)
	n.wake = min(n.wake, r.next)
	return 1, wait, nil
}

func (n *Node) releaseOf(id *store.ID) *releasing { return n.deps.releases.Get(*id) }

// release releases this node's copy. With last, count is how many jobs it comes after.
func (n *Node) release(j *store.Job, last bool, count uint32, when timing) {
	id := j.ID
	f, _ := j.Family()
	f.Flags &^= store.FamilyDeferred
	ended := f.Count > 0
	// Each node counts the blocked jobs that it has; a node may have one more that is just being added.
	if f.Count = max(count, n.countChildren(j)) - f.Count; last && f.Count > 0 {
		f.Flags |= store.FamilyLast
	}
	k := n.store.Dependents(&id)
	first := last && k != nil && k.Blocked > 0
	if first && (len(n.deps.unblocking) > 0 || k.Len > uint64(max(n.deps.budget, 0))) { // this call may not unblock all
		f.Flags |= store.FamilyUnblocking
	}
	if j = n.setFamily(j, &f); held(j) {
		n.log(LogState, j)
	} else {
		if last && f.Count == 0 && ended && when == later {
			when = soon // the last of them ended before this word came: this may be the node where that end was known first
		}
		n.unblock(j, when)
	}
	switch {
	case first:
		n.deps.unblocking = append(n.deps.unblocking, &unblocking{id: id, when: when, told: true})
		n.tickUnblocking()
	case last:
		n.lookLater(n.store.Lookup(&id))
	}
}

// unblocking is a job that was released to come last, while the jobs that it blocked are being unblocked,
// oldest first. If it blocked very many, some are left for the next ticks; meanwhile the job has
// [store.FamilyUnblocking], so that a restart goes on with it.
type unblocking struct {
	id   store.ID
	when timing
	told bool // the field when is set
}

func (n *Node) unblockingOf(id *store.ID) *unblocking {
	for _, l := range n.deps.unblocking {
		if l.id == *id {
			return l
		}
	}
	return nil
}

// resumeUnblocking goes on with a job that was loaded, and whose unblocking isn't over.
func (n *Node) resumeUnblocking(j *store.Job) {
	if n.unblockingOf(&j.ID) == nil {
		n.deps.unblocking = append(n.deps.unblocking, &unblocking{id: j.ID})
		n.hurryTick()
	}
}

// tickUnblocking unblocks jobs, as many as the budget allows.
func (n *Node) tickUnblocking() {
	for len(n.deps.unblocking) > 0 && n.unblockSome(n.deps.unblocking[0]) {
		id := n.deps.unblocking[0].id
		n.deps.unblocking = n.deps.unblocking[1:]
		n.allUnblocked(&id)
	}
	if len(n.deps.unblocking) > 0 {
		n.hurryTick()
	}
}

// unblockSome unblocks the jobs that one job blocked. It returns true when all are unblocked.
func (n *Node) unblockSome(l *unblocking) (all bool) {
	for {
		k := n.store.Dependents(&l.id)
		if k == nil {
			return true
		}
		if n.deps.budget <= 0 {
			return false
		}
		t := k.Walk()
		if t == nil {
			return true
		}
		n.deps.budget--
		c := n.store.Lookup(&t.Job)
		if c == nil {
			continue
		}
		if f, _ := c.Family(); f.Flags&store.FamilyBlocked == 0 {
			continue
		}
		when := l.when
		if !l.told {
			when = n.timingOf(c, &end{job: n.store.Lookup(&l.id), origin: origin{clock: true}})
		}
		n.unblockOne(c, when)
	}
}

// unblockOne unblocks a job because the one that blocks it was released to come last.
func (n *Node) unblockOne(c *store.Job, when timing) {
	f, _ := c.Family()
	if f.Flags&store.FamilyAdding != 0 && when != later {
		when = unpromised
	}
	f.Flags = f.Flags&^(store.FamilyBlocked|store.FamilyAdding) | store.FamilyEarly
	if c = n.setFamily(c, &f); held(c) {
		n.log(LogState, c)
	} else {
		n.unblock(c, when)
	}
}

// allUnblocked goes on with a release when all that it unblocks are unblocked.
func (n *Node) allUnblocked(id *store.ID) {
	if j := n.store.Lookup(id); j != nil {
		if f, _ := j.Family(); f.Flags&store.FamilyUnblocking != 0 {
			f.Flags &^= store.FamilyUnblocking
			j = n.setFamily(j, &f)
			n.log(LogState, j)
		}
		n.lookLater(j)
	}
	if r := n.releaseOf(id); r != nil && !n.expects(r) {
		n.answerRelease(r)
		if len(r.open) == 0 {
			n.deps.releases.Remove(*id)
		}
	}
}

// countChildren counts the jobs that a deferred one blocks: those still here, plus those that ended before
// this node heard of the release.
func (n *Node) countChildren(j *store.Job) uint32 {
	f, _ := j.Family()
	if k := n.store.Dependents(&j.ID); k != nil {
		return f.Count + uint32(k.Blocked)
	}
	return f.Count
}

// report tells a job that was released to come last of the end of one that it waited for. The end may come
// here before the word of that release. So a job that is done counts although it is blocked here, for it was
// unblocked elsewhere.
func (n *Node) report(j *store.Job, undone bool, s origin) {
	f, ok := j.Family()
	if !ok || !n.store.Early(&f) && (undone || f.Flags&store.FamilyBlocked == 0 || f.IDs() != 1) {
		return
	}
	id := f.ID(0)
	if n.removeEdge(&id, &j.ID) {
		n.countDown(id, 1, j, s)
	}
}

// countDown subtracts some from the count of the jobs that a job (id) was released to come after. j is the
// one that ended, or nil if several are gone; then the caller looks into what is left.
func (n *Node) countDown(id store.ID, some uint32, j *store.Job, s origin) {
	p := n.store.Lookup(&id)
	if p == nil || p.State == store.StateAcked {
		return
	}
	g, _ := p.Family()
	switch {
	case g.Flags&store.FamilyDeferred != 0:
		g.Count += some // the word of its release is still to come
	case g.Flags&store.FamilyLast == 0:
		return
	default:
		if g.Count -= min(some, g.Count); g.Count == 0 {
			g.Flags &^= store.FamilyLast
		}
	}
	if p = n.setFamily(p, &g); held(p) {
		n.log(LogState, p)
		if j != nil {
			n.lookLater(p)
		}
		return
	}
	n.unblock(p, n.timingOf(p, &end{job: j, origin: s}))
}

// comesLate adds one to the count of the job that was released to come after a copy that has just come, for
// the copy's end will be counted down. The copy may be in the count already, which then doesn't reach 0 by
// itself, see [Node.lacks]. That is better than a count that is too low, which would let the job go too
// early.
func (n *Node) comesLate(j *store.Job) {
	f, ok := j.Family()
	if !ok || !n.store.Early(&f) {
		return
	}
	id := f.ID(0)
	p := n.store.Lookup(&id)
	if p == nil || p.State == store.StateAcked {
		return
	}
	if g, _ := p.Family(); g.Flags&store.FamilyLast != 0 {
		g.Count++
		n.log(LogState, n.setFamily(p, &g))
	}
}

// onRelease takes another node's word that a job is released.
func (n *Node) onRelease(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	reply := wire.Message{Kind: wire.Released, ID: m.ID}
	j := n.store.Lookup(&id)
	if j != nil && !n.dummy(j) {
		reply.Count = 1
		if f, ok := j.Family(); ok && j.State == store.StateActive && f.Flags&store.FamilyDeferred != 0 {
			if m.Flags&wire.Moved != 0 {
				// Where the queue can't be made, this copy stays in its own.
				from := j.Queue
				if j, _ = n.moveOn(j, m.Queue); j.Queue != from {
					n.keyIsAsked(j, nil)
				}
			}
			when := later
			if m.Flags&wire.StillHeld != 0 && n.firstHolder(j) {
				when = soon // the jobs that it waited for may have ended here, and the sender may not know them
			}
			n.release(j, m.Flags&wire.Last != 0, m.Count, when)
		}
	}
	if j == nil && n.lookDormant(&id) != nil {
		return // the sender tells again, until the job's queue is back
	}
	n.send(p, &reply)
}

func (n *Node) onReleased(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	r := n.releaseOf(&id)
	if r == nil {
		return
	}
	i := slices.Index(r.open, p.Node)
	if i < 0 {
		return
	}
	r.open = slices.Delete(r.open, i, i+1)
	if m.Count > 0 {
		r.told++
	}
	if !n.expects(r) {
		n.answerRelease(r)
	}
	if len(r.open) == 0 && r.client == nil {
		n.deps.releases.Remove(id)
	}
}

// expects says whether something that a release's client waits for may come soon.
func (n *Node) expects(r *releasing) bool {
	return n.unblockingOf(&r.id) != nil || slices.ContainsFunc(r.open, n.mesh.Reaches)
}

func (n *Node) answerRelease(r *releasing) {
	if r.client != nil {
		n.effects = append(n.effects, Effect{Kind: Released, ID: r.id, Client: r.client, Nodes: r.told})
		r.client = nil
	}
}

// releaseCost returns what a release that was looked at takes of a tick's budget. Its effects begin at from.
func (n *Node) releaseCost(from int) int { return 1 + len(n.effects) - from + n.cost(from) }

// tickReleases answers the clients that have waited long enough, and tells nodes of releases again.
func (n *Node) tickReleases() {
	budget := tickBudget
	for _, p := range n.mesh.All() {
		n.tellReleases(p, &budget)
	}
	if n.deps.releases.Left() == 0 && n.now >= n.deps.tell {
		n.deps.tell = math.MaxInt64
		n.deps.releases.Begin()
	}
	for n.deps.releases.Left() > 0 && budget > 0 {
		from := len(n.effects)
		n.deps.releases.Pass(1, func(_ store.ID, r *releasing) bool { return n.tickRelease(r) })
		budget -= n.releaseCost(from)
	}
	if n.deps.releases.Left() > 0 {
		n.hurryTick()
	}
	n.wake = min(n.wake, n.deps.tell)
}

// tickRelease is tickReleases for one release. It returns false if the release is over.
func (n *Node) tickRelease(r *releasing) (keep bool) {
	if n.now >= r.next {
		waits := r.client != nil && n.unblockingOf(&r.id) != nil
		if !waits {
			n.answerRelease(r)
		}
		// The nodes are told even if the job has ended here: a FASTACK is told once, and a node that has
		// heard of neither would hold the job back until its expiry.
		if r.client == nil && slices.ContainsFunc(r.open, func(h wire.Node) bool { return n.mesh.ByName(h) == nil }) {
			r.open = n.mesh.Nodes() // a replica may have been promoted in the place of one that was forgotten
		}
		j := n.store.Lookup(&r.id)
		if !waits && (len(r.open) == 0 || n.now >= r.expiry || j != nil && cancelled(j) || n.tombstones.cancelled(&r.id)) {
			return false
		}
		for _, h := range r.open {
			n.send(n.mesh.ByName(h), &r.msg)
		}
		r.wait = min(2*r.wait, againMS)
		r.next = n.now + r.wait
	}
	n.deps.tell = min(n.deps.tell, r.next)
	return true
}

// resumeReleases tells a node that is back of the releases that it may have missed. If there are very many,
// some follow a little later.
func (n *Node) resumeReleases(p *Peer) {
	p.untold = n.deps.releases.Len()
	budget := tickBudget
	n.tellReleases(p, &budget)
}

// tellReleases goes on with what resumeReleases has begun. If the last release took the place of one that is
// over, the node is told of it twice.
func (n *Node) tellReleases(p *Peer, budget *int) {
	p.untold = min(p.untold, n.deps.releases.Len())
	for ; p.untold > 0 && *budget > 0; p.untold-- {
		from := len(n.effects)
		if _, r := n.deps.releases.At(p.untold - 1); slices.Contains(r.open, p.Node) || !n.mesh.ReachesAll(r.open) {
			n.send(p, &r.msg)
		}
		*budget -= n.releaseCost(from)
	}
	if p.untold > 0 {
		n.hurryTick()
	}
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

// comesAfterMost is how many jobs comesAfter looks at.
const comesAfterMost = 1000

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
