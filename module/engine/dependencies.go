package engine

import (
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// Dependencies: jobs that are held back, because they are deferred, or wait for the end of others. Such a job
// is active, is in no list but that of its queue's held jobs, and no timer queues it. Its TagFamily extra
// says what it waits for, on every node that holds it. The store's lists of dependents lead from a job to
// those that wait for it. They are made of the extras, whenever jobs become known.
//
// A job is unblocked where the end of the last job that it waits for becomes known, which is at every node
// that holds both. The node where a client ended that one queues the job at once. The first of the others, in
// the order of their IDs, queues it soon, unless it hears that it is queued; the rest leave it to the retry
// time, as with any copy (timingOf). A node that hears that the job was queued elsewhere unblocks it as well.
//
// This file has how a job gets its dependencies; outcome.go has what follows from a job's end, unblock.go
// which node then queues those that waited, and release.go the release of deferred jobs.

// The values of ONDEAD say how a job goes on when one that it waits for ends undone.
const (
	OnDeadDrop uint8 = iota // it is deleted too
	OnDeadRun               // it goes on as if that one had been done
	OnDeadDead              // it goes to its queue's dead-letter queue
)

// Members has the options of ADDJOB about dependencies.
type Members struct {
	Deferred  bool       // no client gets it before it is released
	BlockedBy *store.ID  // a deferred job; nil: none
	After     []store.ID // it waits for the end of these; at most [store.MaxFamilyIDs]
	OnDead    uint8      // OnDeadDrop …: what becomes of it when one of After ends undone
}

// Family says whether any of these options is given.
func (m *Members) Family() bool { return m.Deferred || m.BlockedBy != nil || len(m.After) > 0 }

// dependencies is what a node knows about dependencies, beside the jobs.
type dependencies struct {
	rounds   uint64                             // how many questions were sent
	asked    table.Roster[store.ID, asked]      // questions to all nodes, by the jobs that they are about
	askers   table.Generations[store.ID, int64] // when a node asked last what became of an at-most-once job here, see askedLately
	sweep    int64                              // unix ms, when asked is looked through next
	releases table.Roster[store.ID, releasing]
	tell     int64                 // unix ms, when releases is looked through next
	ends     []end                 // of jobs that aren't here; their dependents are still to be followed
	ending   map[store.ID]bool     // the jobs of ends
	passed   map[store.ID]store.ID // by a job here whose end is being followed: the last dependent passed over, as it is out of sight
	dropped  bool                  // all edges were dropped once: queues out of sight lack theirs

	evictions  []eviction // that aren't over; the newest goes on first
	unblocking []*unblocking

	// budget is how many more dependents this call follows; [Node.Effects], which ends each call, renews it.
	// The next ticks follow those that are left. A job that waits for very many others counts as several,
	// because the list of those is written anew (familyPiece).
	budget int
}

// familyPiece is how many entries in the list of what a job waits for count as one of dependencies.budget.
const familyPiece = 32

// held says whether a job is held back.
func held(j *store.Job) bool {
	f, ok := j.Family()
	return ok && f.Held()
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

// Waits says whether a job is deferred, or blocked by what it waits for.
func (n *Node) Waits(j *store.Job) (deferred, blocked bool) {
	f, ok := j.Family()
	if !ok || j.State != store.StateActive || !f.Held() {
		return false, false
	}
	deferred = f.Flags&store.FamilyDeferred != 0
	return deferred, !deferred
}

// WaitsFor lists the jobs whose end a held-back job awaits, up to about most of them, and counts them all.
// First come those that it was added to wait for, then those that it was released to come after.
func (n *Node) WaitsFor(j *store.Job, most int) (ids []store.ID, all uint64) {
	f, ok := j.Family()
	if !ok || !f.Held() {
		return nil, 0
	}
	for i := range f.IDs() {
		ids = append(ids, f.ID(i))
	}
	if f.Flags&store.FamilyLast == 0 {
		return ids, uint64(len(ids))
	}
	ids, all = append(ids, n.blockedBy(&j.ID, most)...), uint64(len(ids))
	if k := n.store.Dependents(&j.ID); k != nil {
		all += k.Blocked
	}
	return ids, max(all, uint64(len(ids)))
}

// Dependents lists the jobs that wait for the end of one, up to most of them, and counts them all. First come
// those that it blocks, then the others; both oldest first.
func (n *Node) Dependents(j *store.Job, most int) (ids []store.ID, all uint64) {
	k := n.store.Dependents(&j.ID)
	if k == nil {
		return nil, 0
	}
	all = k.Len
	first := k.Head
	if f, ok := j.Family(); ok && f.Flags&(store.FamilyLast|store.FamilyUnblocking) != 0 {
		all -= k.Blocked // it waits for these, see [Node.WaitsFor]
		first = k.Others()
	}
	for t := first; t != nil && len(ids) < most && uint64(len(ids)) < all; t = t.Next {
		if c := n.store.Lookup(&t.Job); c != nil {
			if f, ok := c.Family(); !ok || n.store.Early(&f) {
				continue
			}
		}
		ids = append(ids, t.Job)
	}
	return ids, all
}

// DependencyCopies returns how many copies a job with these dependencies gets if its ADDJOB doesn't say: as
// many as the jobs that it waits for have.
func (n *Node) DependencyCopies(m *Members) (copies int) {
	look := func(id *store.ID) {
		if p := n.parent(id); p != nil {
			copies = max(copies, int(p.Repl))
		}
	}
	if m.BlockedBy != nil {
		look(m.BlockedBy)
		if p := n.parent(m.BlockedBy); p != nil {
			copies = max(copies, p.Holders()+1)
		}
	}
	for i := range m.After {
		look(&m.After[i])
	}
	return copies
}

// dependenciesOf checks what a new job is to wait for, and encodes that as the job's extra. It leaves out
// jobs that are done.
func (n *Node) dependenciesOf(m *Members) ([]byte, error) {
	f := store.Family{OnDead: m.OnDead}
	if m.Deferred {
		f.Flags = store.FamilyDeferred
	}
	if id := m.BlockedBy; id != nil {
		p := n.parent(id)
		if p == nil {
			return nil, unknownParent(id)
		}
		if g, ok := p.Family(); p.State != store.StateActive || !ok || !g.Unreleased() {
			return nil, ErrNotDeferred
		}
		f.Flags |= store.FamilyBlocked
		f.Name(*id)
	}
	ids := n.scratch.ids[:0]
	for i := range m.After {
		id := &m.After[i]
		p := n.parent(id)
		switch {
		case p == nil && n.store.Done(id):
		case p == nil, p.State == store.StateAcked && cancelled(p):
			return nil, unknownParent(id)
		case p.State == store.StateAcked:
		default:
			ids = append(ids, *id)
		}
	}
	if n.scratch.ids = ids; len(ids) > 0 {
		f.Name(ids...)
	}
	if v := f.Value(); v != nil {
		return store.AppendExtra(nil, store.TagFamily, v), nil
	}
	return nil, nil
}

// beside makes sure that a blocked job gets a copy on every node that holds the job that blocks it. A node
// without that copy could let the blocking job go before the blocked one, after LAST.
func (n *Node) beside(a *Add, external bool) error {
	p := n.parent(a.BlockedBy)
	switch {
	case p == nil || p.Holders() == 0 && !external:
		return nil
	case external:
		return ErrKinApart
	}
	if a.Retry == 0 {
		return ErrKinOnce
	}
	copies := 1
	for _, q := range n.mesh.All() {
		if !n.mayHold(q, p) {
			continue
		}
		if copies++; !q.Usable() && !(a.CanWait && !a.Async && n.mesh.MayReturn(q.Base())) {
			return ErrKinApart
		}
	}
	if external && copies > 1 {
		return ErrKinApart
	}
	a.Replicate = max(a.Replicate, copies)
	return nil
}

// mayHold says whether a node may hold a job, as far as is known here. If a holder was forgotten, any node
// may: a replica may have been promoted in the holder's place. Any node may, too, if this one was promoted
// since the job was made: its master may have heard of holders that came after this node's copy, and this
// node not.
func (n *Node) mayHold(p *Peer, j *store.Job) bool {
	if n.past.Promoted > 0 && maybeMadeBefore(j, n.past.Promoted) && j.Holders() > 0 {
		return true
	}
	for i := range j.Holders() {
		if h, _ := j.Holder(i); h == uint64(p.Node) || n.mesh.ByName(wire.Node(h)) == nil {
			return true
		}
	}
	return false
}

// afterSiblings gives a blocked job a creation time after that of the blocked jobs that were added before it,
// at whatever node, so that it comes after them.
func (n *Node) afterSiblings(id *store.ID, ctime uint64) uint64 {
	if k := n.store.Dependents(id); k != nil {
		return max(ctime, k.Youngest()+1)
	}
	return ctime
}

// tellApart answers a copy of a blocked job. If this node knows holders of the blocking job that have no copy
// of the blocked one, the sender doesn't know them all. It hears of them before it counts this copy.
func (n *Node) tellApart(p *Peer, j *store.Job) {
	f, ok := j.Family()
	if !ok || f.Flags&store.FamilyBlocked == 0 {
		return
	}
	id := f.ID(0)
	q := n.store.Lookup(&id)
	if q == nil || q.State == store.StateAcked || !q.HeldBy(uint64(p.Node)) {
		return
	}
	for i := range q.Holders() {
		if h, _ := q.Holder(i); !j.HeldBy(h) {
			n.send(p, n.copyOf(q, wire.Holders))
			return
		}
	}
}

// besideAll says whether all nodes at which beside wants a job have confirmed it, while the job is being
// added.
func (n *Node) besideAll(j *store.Job) bool {
	f, ok := j.Family()
	if !ok || f.Flags&store.FamilyBlocked == 0 {
		return true
	}
	id := f.ID(0)
	p := n.store.Lookup(&id)
	if p == nil {
		return true
	}
	for _, q := range n.mesh.All() {
		if n.mayHold(q, p) && !j.ConfirmedBy(uint64(q.Node)) {
			return false
		}
	}
	return true
}

// parent finds a job that clients may know of.
func (n *Node) parent(id *store.ID) *store.Job {
	if p := n.store.Lookup(id); p != nil && !n.dummy(p) && p.State != store.StateWaitRepl {
		return p
	}
	return nil
}

func unknownParent(id *store.ID) error {
	return Refusal("NOJOB no job " + id.String() + " is known to this node (any more): one can only wait for a job at a node that holds it, and SHOW's nodes-delivered tells which do")
}

// setFamily writes a job's TagFamily extra; the job may move in memory.
func (n *Node) setFamily(j *store.Job, f *store.Family) *store.Job {
	if len(f.Value()) == 0 && j.Extra(store.TagFamily) == nil {
		return j
	}
	if j.Flags&(store.FlagLogged|store.FlagDelivered) == 0 {
		// No effect names the job, so the effects need not be searched for it: thousands of jobs may be
		// unblocked at once.
		j, _ = n.store.SetExtra(j, store.TagFamily, f.Value())
	} else {
		j, _ = n.setExtra(j, store.TagFamily, f.Value())
	}
	n.countFamily(j)
	return j
}

// countFamily makes the store count a job as deferred or blocked exactly while it is. Everything that changes
// what [Node.Waits] says of a job calls countFamily.
func (n *Node) countFamily(j *store.Job) {
	switch deferred, blocked := n.Waits(j); {
	case deferred:
		n.store.Count(j, store.Deferred)
		n.countHere(j)
	case blocked:
		n.store.Count(j, store.Blocked)
		n.countHere(j)
	case j.Reason() != store.Delayed:
		n.store.Count(j, store.NoReason)
	}
}

// join adds the edges from the jobs that j waits for to j, which has become known. If one of those isn't
// known, or is done, the next tick looks into it.
func (n *Node) join(j *store.Job) {
	f, ok := j.Family()
	if !ok || j.State == store.StateAcked || n.passive {
		return
	}
	open := true
	for i := range f.IDs() {
		id := f.ID(i)
		n.store.AddEdge(&id, j)
		p := n.store.Lookup(&id)
		open = open && p != nil && p.State != store.StateAcked
	}
	if f.Flags&store.FamilyUnblocking != 0 {
		n.resumeUnblocking(j)
	}
	if !f.Held() || j.State == store.StateWaitRepl {
		return
	}
	n.countFamily(j)
	setAnnounced(j) // it isn't about to be queued
	if n.setTime(j, 0); !open {
		n.setTime(j, n.now+1)
	}
	n.arm(j)
	n.lookLater(j)
}

// rejoin adds the edges of the jobs of a queue that was out of sight.
func (n *Node) rejoin(q *store.Queue) {
	n.joinAll(q.Held.Head)
	if n.deps.dropped {
		n.rejoinRest(q)
	}
}

// rejoinRest adds the edges of a queue's jobs that aren't held, after all edges were dropped. These jobs wait
// for nobody, but another may wait for them, after LAST.
func (n *Node) rejoinRest(q *store.Queue) {
	if !q.AnyParts() {
		return
	}
	n.joinAll(q.Head)
	n.joinAll(q.Working.Head)
	for l := q.KeyQueues.Head; l != nil; l = l.Next {
		n.joinAll(l.Head())
	}
}

func (n *Node) joinAll(j *store.Job) {
	for j != nil {
		next := j.Next // j may become delayed
		n.joinAgain(j)
		j = next
	}
}

// joinAgain adds the edges of a job that had lost them, or was out of sight, and finds out what the job
// missed.
func (n *Node) joinAgain(j *store.Job) {
	n.join(j)
	n.catchUp(j)
}

// settleFamily is settle for jobs with dependencies. settled is true if nothing else is to be done with the
// job.
func (n *Node) settleFamily(j *store.Job, t Trust) (_ *store.Job, settled bool) {
	f, ok := j.Family()
	if !ok || j.State == store.StateAcked {
		return j, false
	}
	if f.Held() && j.Retry == 0 && (!t.Exact || j.Uncertain()) {
		// It may have been unblocked and delivered since, and must not be delivered again.
		return n.notHeld(j), false
	}
	n.joinAgain(j)
	return j, f.Held()
}

// addEdges adds the edges of the jobs of a queue that lies in another database, and does nothing else with
// them. When these jobs are back they find out the end of a job that they wait for, so the one that they wait
// for stays until then (see [Node.follow]).
func (n *Node) addEdges(q *store.Queue) {
	if !q.AnyParts() {
		return
	}
	eachJob(q, func(j *store.Job) {
		if f, ok := j.Family(); ok && j.State != store.StateAcked {
			for i := range f.IDs() {
				id := f.ID(i)
				n.store.AddEdge(&id, j)
			}
		}
	})
}

// catchUp lets the next tick look at a job that was out of sight when the job that blocks it was released to
// come last.
func (n *Node) catchUp(j *store.Job) {
	if n.passed(j) != nil {
		n.wakeAt(j, n.now+1)
	}
}

// passed returns the job that blocks j, if it was released to come last and has unblocked all others;
// otherwise nil.
func (n *Node) passed(j *store.Job) *store.Job {
	f, ok := j.Family()
	if !ok || j.State != store.StateActive || f.Flags&store.FamilyBlocked == 0 || f.IDs() == 0 {
		return nil
	}
	id := f.ID(0)
	p := n.store.Lookup(&id)
	if p == nil || p.State == store.StateAcked {
		return nil
	}
	if g, _ := p.Family(); g.Flags&(store.FamilyLast|store.FamilyUnblocking) != store.FamilyLast {
		return nil
	}
	return p
}

// hasEdges says whether a job has dependencies or dependents. Such a job must not vanish from this node while
// it isn't done.
func (n *Node) hasEdges(j *store.Job) bool {
	_, yes := j.Family()
	return yes || n.store.Dependents(&j.ID) != nil
}

// removeParents ends a job's wait for all of its parents.
func (n *Node) removeParents(f store.Family, child *store.ID) {
	for i := range f.IDs() {
		parent := f.ID(i)
		n.removeEdge(&parent, child)
	}
}

// removeEdge ends a job's wait for another, and says whether it waited. When nobody waits for the other any
// more, that one can be given to any node.
func (n *Node) removeEdge(parent, child *store.ID) (was bool) {
	was = n.store.RemoveEdge(parent, child)
	if was && n.demands.Len() > 0 && n.store.Dependents(parent) == nil {
		n.lookAnew(parent)
	}
	return was
}

// blockedBy lists the jobs that one blocks, or that it was released to come after. It looks at the first of
// them, as many as most, and leaves out those that aren't here.
func (n *Node) blockedBy(id *store.ID, most int) (ids []store.ID) {
	k := n.store.Dependents(id)
	if k == nil {
		return nil
	}
	for child := range k.EachBlocked() {
		if most--; most < 0 {
			break
		}
		if c := n.store.Lookup(child); c != nil && blocked(c) {
			ids = append(ids, *child)
		}
	}
	return ids
}

// blocked says whether a job is blocked, or was until the one that blocked it was released to
// come last.
func blocked(j *store.Job) bool {
	f, ok := j.Family()
	return ok && f.Flags&(store.FamilyBlocked|store.FamilyEarly) != 0
}

// near returns the nodes of list that hold most of the jobs that j waits for, so that these jobs and j lie
// together. If none holds any, it returns the whole list.
func (n *Node) near(j *store.Job, list []*Peer) []*Peer {
	f, ok := j.Family()
	if !ok {
		return list
	}
	best, most := list, 0
	var closest []*Peer
	for _, p := range list {
		shared := 0
		for i := range f.IDs() {
			id := f.ID(i)
			if q := n.store.Lookup(&id); q != nil && q.HeldBy(uint64(p.Node)) {
				shared++
			}
		}
		switch {
		case shared > most:
			closest, most = append(closest[:0], p), shared
		case shared == most && most > 0:
			closest = append(closest, p)
		}
	}
	if most > 0 {
		best = closest
	}
	return best
}

// Edges counts the edges: each is one job's wait for another.
func (n *Node) Edges() uint64 { return n.store.Edges() }
