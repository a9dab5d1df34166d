package engine

import (
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Families: jobs that are held back, because they are deferred, or wait for the
// end of others. Such a job is active and in no list but that of its queue's held
// jobs, no timer queues it, and its TagFamily extra says what it waits for, on
// every node that holds it. The store's knots lead from a job to those that wait
// for it. They are made of the extras, whenever jobs become known.
//
// A job is let go where the end of the last one that it waits for becomes known,
// which is at every node that holds both; the first of these in the order of
// their IDs queues it at once, the others leave that to it, and to the retry time,
// as with any copy. Who hears that it was queued elsewhere lets it go as well.

// What becomes of a job when one that it waits for ends undone (ONDEAD).
const (
	OnDeadDrop uint8 = iota // it is deleted too
	OnDeadRun               // it is as if that one had been done
	OnDeadDead              // it goes to its queue's dead-letter queue
)

// DeadSuffix makes a queue's name that of its dead-letter queue.
const DeadSuffix = ":dead"

func deadName(q *store.Queue) []byte {
	return append(append([]byte(nil), q.NameBytes()...), DeadSuffix...)
}

const (
	releaseMost = 1_000  // jobs let go at once by the end of one; the others follow
	fateMS      = 10_000 // between questions what became of a job that isn't known here
	releaseMS   = 1_000  // how long RELEASEJOB waits for other nodes
	againMS     = 60_000 // at most, between attempts to tell a node of a release
)

// Members is what ADDJOB says of a family.
type Members struct {
	Deferred  bool
	BlockedBy *store.ID
	After     []store.ID
	OnDead    uint8
}

// Family says whether it says anything.
func (m *Members) Family() bool { return m.Deferred || m.BlockedBy != nil || len(m.After) > 0 }

// kinship is what families need beside the jobs.
type kinship struct {
	asked    map[store.ID]*asked // what is asked for, of jobs that aren't known here
	releases []*releasing
	sweep    int64
}

// asked is a question to all nodes what became of a job.
type asked struct {
	next    int64       // not again before, unix ms
	unknown []wire.Node // who didn't know
}

// held says whether a job is held back.
func held(j *store.Job) bool {
	f, ok := j.Family()
	return ok && f.Held()
}

func cancelled(j *store.Job) bool {
	f, ok := j.Family()
	return ok && f.Flags&store.FamilyCancelled != 0
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

// WaitsFor lists the jobs of which a held-back job awaits the end.
func (n *Node) WaitsFor(j *store.Job) (ids []store.ID) {
	f, ok := j.Family()
	if !ok || !f.Held() {
		return nil
	}
	for i := range f.IDs() {
		ids = append(ids, f.ID(i))
	}
	if f.Flags&store.FamilyLast != 0 {
		ids = append(ids, n.blockedBy(&j.ID, store.FamilyEarly)...)
	}
	return ids
}

// Kin is the number of copies that a family's newest job has, unless it is told: as
// many as those that it waits for.
func (n *Node) Kin(m *Members) (copies int) {
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

// kinship checks what a new job is to wait for, and makes its extra of it.
func (n *Node) kinship(m *Members) ([]byte, error) {
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
		f.Add(id)
	}
	for i := range m.After {
		id := &m.After[i]
		p := n.parent(id)
		switch {
		case p == nil && n.store.Done(id):
		case p == nil, p.State == store.StateAcked && cancelled(p):
			return nil, unknownParent(id)
		case p.State == store.StateAcked:
		default:
			f.Add(id)
		}
	}
	if v := f.Value(); v != nil {
		return store.AppendExtra(nil, store.TagFamily, v), nil
	}
	return nil, nil
}

// beside has a blocked job be where the one is that blocks it: on all those nodes.
// Were it missing on one, that could let the other go before it, after LAST.
func (n *Node) beside(a *Add, external bool) error {
	p := n.parent(a.BlockedBy)
	if p == nil || p.Holders() == 0 {
		return nil
	}
	if a.Retry == 0 {
		return ErrKinOnce
	}
	copies := 1
	for i := range p.Holders() {
		h, _ := p.Holder(i)
		q := n.mesh.by[wire.Node(h)]
		if q == nil {
			continue // forgotten
		}
		if copies++; !q.usable() {
			return ErrKinApart
		}
	}
	if external && copies > 1 {
		return ErrKinApart
	}
	a.Replicate = max(a.Replicate, copies)
	return nil
}

// afterSiblings gives a blocked job a creation time after those that were added
// before it, at whatever node, so that it comes after them.
func (n *Node) afterSiblings(id *store.ID, ctime uint64) uint64 {
	if k := n.store.Knot(id); k != nil {
		return max(ctime, n.store.Youngest(k)+1)
	}
	return ctime
}

// besideAll says whether a job that is being added is where beside wants it.
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
	for i := range p.Holders() {
		h, _ := p.Holder(i)
		if n.mesh.by[wire.Node(h)] != nil && !j.ConfirmedBy(h) {
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

// setFamily writes a job's extra; the job may move.
func (n *Node) setFamily(j *store.Job, f *store.Family) *store.Job {
	if len(f.Value()) == 0 && j.Extra(store.TagFamily) == nil {
		return j
	}
	if j.Flags&(store.FlagLogged|store.FlagDelivered) == 0 {
		// No effect names it: of thousands that are let go at once, none need be looked for.
		j, _ = n.store.SetExtra(j, store.TagFamily, f.Value())
		return j
	}
	j, _ = n.setExtra(j, store.TagFamily, f.Value())
	return j
}

// join ties a job that has become known to those that it waits for. Where one of
// them isn't, or is done, the next tick looks into it.
func (n *Node) join(j *store.Job) {
	f, ok := j.Family()
	if !ok || j.State == store.StateAcked || n.passive {
		return
	}
	open := true
	for i := range f.IDs() {
		id := f.ID(i)
		n.store.Tie(&id, j)
		p := n.store.Lookup(&id)
		open = open && p != nil && p.State != store.StateAcked
	}
	if !f.Held() || j.State == store.StateWaitRepl {
		return
	}
	j.Flags |= store.FlagAnnounced // nothing is about to be queued
	if j.QTime = 0; !open {
		j.QTime = n.now + 1
	}
	n.arm(j)
}

// rejoin is for the jobs of a queue that was out of sight.
func (n *Node) rejoin(q *store.Queue) {
	for j := q.HeldHead; j != nil; j = j.Next {
		n.join(j)
	}
}

// settleFamily is settle for jobs of families; true where there is no more to it.
func (n *Node) settleFamily(j *store.Job, t Trust) (_ *store.Job, settled bool) {
	f, ok := j.Family()
	if !ok || j.State == store.StateAcked {
		return j, false
	}
	if f.Held() && j.Retry == 0 && !t.Exact && !t.Logged {
		// It may have been let go and delivered since, and must not be again.
		return n.setFamily(j, &store.Family{}), false
	}
	n.join(j)
	return j, f.Held()
}

// look finds out what became of the jobs that one waits for, where that isn't
// plain. The job may be gone after it.
func (n *Node) look(j *store.Job) {
	id := j.ID
	for again := true; again; {
		again = false
		f, _ := j.Family()
		wait := false
		for i := range f.IDs() {
			pid := f.ID(i)
			p := n.store.Lookup(&pid)
			e := end{id: pid, job: p, source: source{clock: true}}
			switch {
			case p != nil && p.State != store.StateAcked:
				continue
			case p != nil:
				// It lets them go itself, a thousand at a time.
				p.QTime = n.now + 1
				n.arm(p)
				wait = true
				continue
			case n.store.Done(&pid):
			case len(n.mesh.order) == 0 && j.Holders() == 0:
				e.undone, e.unreleased = true, true
			default:
				n.askFate(&pid)
				wait = true
				continue
			}
			n.store.Tie(&pid, j)
			n.follow(e, -1)
			again = true
			break
		}
		if j = n.store.Lookup(&id); j == nil || !held(j) {
			return
		}
		j.QTime = 0
		if wait {
			j.QTime = n.now + fateMS + n.jitter()
		}
		n.arm(j)
	}
}

// --- the end of a job ----------------------------------------------------------

// end is how a job ended.
type end struct {
	id         store.ID
	undone     bool       // it wasn't acknowledged
	unreleased bool       // nor could it have been delivered
	job        *store.Job // nil where it isn't known here
	source
}

// source is where the end of a job became known.
type source struct {
	from  *Peer // another node told
	clock bool  // each that holds it finds out by itself; or nobody knows who did first
}

// turn says when a node queues a job that it lets go.
type turn uint8

const (
	later turn = iota // another does: not before its retry time
	soon              // when the others have been told, and nobody objects
	atOnce
)

// turnOf says when it is up to this node to queue a job, now that another has ended:
// at once where a client said so, for that node is the first to know; if it doesn't
// hold the job, soon at the first node that holds both. p is that other job, or nil.
func (n *Node) turnOf(j, p *store.Job, s source) turn {
	switch {
	case j.Holders() == 0 || s == source{}:
		return atOnce
	case s.from != nil && j.HeldBy(uint64(s.from.Node)) && !s.clock || !n.first(j, p):
		return later
	}
	return soon
}

// gone is ended for a job that is removed in whatever state.
func (n *Node) gone(j *store.Job, s source) {
	n.ended(j, j.State != store.StateAcked || cancelled(j), s)
	if n.store.Ties() > 0 {
		undone, unreleased := fateOf(j)
		n.follow(end{j.ID, undone, unreleased, j, s}, -1) // what ended has left of very many
	}
}

func fateOf(j *store.Job) (undone, unreleased bool) {
	f, ok := j.Family()
	if !ok || f.Flags&store.FamilyCancelled == 0 {
		return false, false
	}
	return true, f.Unreleased()
}

// ended follows the end of a job that is about to be removed, or is acknowledged:
// those that waited for it go on or go with it; it returns how many went. Of very
// many that can go on some are left, and [Node.unfinished] is true.
func (n *Node) ended(j *store.Job, undone bool, s source) (dropped int) {
	if n.passive || n.loading {
		return 0
	}
	most := releaseMost
	if undone {
		most = -1
	} else {
		n.store.SetDone(&j.ID)
	}
	if n.store.Ties() == 0 {
		return 0
	}
	n.store.Hold(j) // lest it be delivered, to a client that is served for one of them
	n.report(j, s)
	f, _ := j.Family()
	return n.follow(end{j.ID, undone, f.Unreleased(), j, s}, most)
}

// unfinished says whether jobs still wait for one that is acknowledged.
func (n *Node) unfinished(j *store.Job) bool {
	return j.State == store.StateAcked && n.store.Knot(&j.ID) != nil
}

// follow is ended, for up to most jobs (-1: for all), and those that fall with them.
func (n *Node) follow(e end, most int) (dropped int) {
	var fallen []store.ID
	for {
		for k := n.store.Knot(&e.id); k != nil && most != 0; k = n.store.Knot(&e.id) {
			most--
			id := n.store.First(k).Job
			n.store.Untie(&e.id, &id)
			c := n.store.Lookup(&id)
			if c == nil || c.State == store.StateAcked || n.outlive(c, &e) {
				continue
			}
			dropped++
			fallen = append(fallen, id)
			n.drop(c)
		}
		if len(fallen) == 0 {
			return dropped
		}
		e = end{id: fallen[len(fallen)-1], undone: true, unreleased: true, source: e.source}
		fallen = fallen[:len(fallen)-1]
	}
}

// drop deletes a job that falls with another.
func (n *Node) drop(j *store.Job) {
	n.Stats.Dropped++
	if ad := n.addings[j.ID]; ad != nil {
		n.cleanUp(ad)
		n.deny(ad, ErrReplRemoved)
		return
	}
	n.remove(j)
}

// outlive has a job go on without one that it waited for. False where it has to
// be dropped.
func (n *Node) outlive(j *store.Job, e *end) bool {
	f, ok := j.Family()
	if !ok || !f.Drop(&e.id) {
		return true
	}
	early := f.Flags&store.FamilyEarly != 0
	switch {
	case early:
		f.Flags &^= store.FamilyEarly // who waited for it waits no more
	case !e.undone:
	case f.Flags&store.FamilyBlocked != 0:
		if e.unreleased {
			return false
		}
	case f.OnDead == OnDeadDrop:
		return false
	case f.OnDead == OnDeadDead:
		moved := n.bequeath(j)
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
	n.letGo(j, n.turnOf(j, e.job, e.source))
	return true
}

// bequeath moves a job to its dead-letter queue; nil where that can't be made.
func (n *Node) bequeath(j *store.Job) *store.Job {
	if f, ok := j.Family(); ok {
		for i := range f.IDs() {
			id := f.ID(i)
			n.store.Untie(&id, &j.ID)
		}
	}
	n.endLocks(j) // a dead letter stands in nobody's way
	if n.moveTo(j, deadName(j.Queue)) != nil {
		return nil
	}
	n.Stats.Dead++
	return j
}

// moveTo moves a held job to another queue.
func (n *Node) moveTo(j *store.Job, name []byte) error {
	q, err := n.queue(name)
	if err != nil || q == j.Queue {
		return err
	}
	n.touch(j.Queue)
	n.store.MoveTo(j, q)
	if j.State != store.StateWaitRepl {
		n.effects = append(n.effects, Effect{Kind: LogDelete, ID: j.ID})
		n.log(LogJob, j)
	}
	n.touch(q)
	return nil
}

// moveAlong is moveTo for a job whose lock goes with it, where it is one of the
// queue. It is refused where another has the key there.
func (n *Node) moveAlong(j *store.Job, name []byte) error {
	u := j.Unique()
	if u == nil || !u.Has(store.UniqueHasWait) || u.Has(store.UniqueMesh) || u.Strategy() == store.UniqueWindow || string(name) == string(j.Queue.NameBytes()) {
		return n.moveTo(j, name)
	}
	n.scratch.lock = store.AppendLockName(n.scratch.lock[:0], store.LockWait, append([]byte{}, name...), j.UniqueKey(u))
	if l := n.liveLock(n.scratch.lock); l != nil && l.Job != j.ID {
		return duplicate(&l.Job, j.UniqueKey(u))
	}
	n.endWait(j, u)
	err := n.moveTo(j, name)
	n.renewLock(j, u, store.LockWait, 0) // it isn't due yet
	n.log(LogState, j)
	return err
}

// letGo queues a job that isn't held back any more, when it is this node's turn.
func (n *Node) letGo(j *store.Job, when turn) {
	if j.State != store.StateActive {
		return // it waits for its copies, and is queued when it has them
	}
	j.Flags &^= store.FlagAnnounced
	if at := int64(j.CTime/1_000_000) + int64(j.Delay)*1000; j.Delay > 0 && at > n.now {
		j.QTime = at
		if when == later {
			j.QTime += int64(j.Retry) * 1000
		}
		j.Flags |= store.FlagAnnounced
		n.arm(j)
		n.log(LogState, j)
		return
	}
	if when == soon && j.Retry > 0 && j.Holders() > 0 {
		j.Flags &^= store.FlagQueuedOnce
		j.QTime = n.now + store.AnnounceMS
		n.arm(j)
		n.log(LogState, j)
		return
	}
	if when == later || j.Queue.Pause&PauseIn != 0 && j.Retry > 0 {
		j.QTime = n.retryAt(j)
		n.arm(j)
		n.log(LogState, j)
		return
	}
	j.Flags &^= store.FlagQueuedOnce // others need not count it
	n.tell(j, &wire.Message{Kind: wire.Queued})
	n.requeue(j, false)
}

// first says whether this node is the first of those that hold a job and the one
// that it waited for last: at each of them the end of that is known.
func (n *Node) first(j, p *store.Job) bool {
	if p == nil {
		return true
	}
	for i := range j.Holders() {
		h, _ := j.Holder(i)
		if q := n.mesh.by[wire.Node(h)]; h < uint64(n.self.Node()) && q != nil && q.Connected && p.HeldBy(h) {
			return false
		}
	}
	return true
}

// report tells a job that was released to come last of the end of one that it
// waited for.
func (n *Node) report(j *store.Job, s source) {
	f, ok := j.Family()
	if !ok || f.Flags&store.FamilyEarly == 0 || f.IDs() == 0 {
		return
	}
	id := f.ID(0)
	if n.store.Untie(&id, &j.ID) {
		n.oneLess(id, j, s)
	}
}

// oneLess counts one of those down that a job was released to come after: j, or nil
// where that is gone.
func (n *Node) oneLess(id store.ID, j *store.Job, s source) {
	p := n.store.Lookup(&id)
	if p == nil || p.State == store.StateAcked {
		return
	}
	g, _ := p.Family()
	switch {
	case g.Flags&store.FamilyDeferred != 0:
		g.Count++ // the word of its release is still to come
	case g.Flags&store.FamilyLast == 0:
		return
	default:
		if g.Count--; g.Count == 0 {
			g.Flags &^= store.FamilyLast
		}
	}
	if p = n.setFamily(p, &g); held(p) {
		n.log(LogState, p)
		return
	}
	n.letGo(p, n.turnOf(p, j, s))
}

// overheard notes that another node has a job queued, or in a client's hands, that
// is held back here: it was let go there.
func (n *Node) overheard(j *store.Job) *store.Job {
	f, ok := j.Family()
	if !ok || j.State != store.StateActive || !f.Held() {
		return j
	}
	j.Flags &^= store.FlagAnnounced
	if f.Flags&(store.FamilyBlocked|store.FamilyDeferred) == store.FamilyBlocked {
		// Maybe the one that blocks it was released to come last, and waits for it.
		f.Flags = store.FamilyEarly
	} else {
		for i := range f.IDs() {
			id := f.ID(i)
			n.store.Untie(&id, &j.ID)
		}
		f = store.Family{}
	}
	j = n.setFamily(j, &f)
	j.QTime = n.retryAt(j)
	n.arm(j)
	n.log(LogState, j)
	return j
}

// evicted is for a job of which only this node's copy goes, while others may hold
// one: blocked jobs go with it, if it wasn't released; the others wait on, and ask.
func (n *Node) evicted(id store.ID, unreleased bool) {
	k := n.store.Knot(&id)
	if k == nil || n.passive {
		return
	}
	var all []store.ID
	for t := n.store.First(k); t != nil; t = t.Next() {
		all = append(all, t.Job)
	}
	for i := range all {
		c := n.store.Lookup(&all[i])
		if c == nil {
			continue
		}
		f, ok := c.Family()
		switch {
		case !ok || f.Flags&store.FamilyEarly != 0:
		case f.Flags&store.FamilyBlocked != 0 && unreleased:
			n.drop(c)
			n.evicted(all[i], true)
		case c.State == store.StateActive && f.Held():
			c.QTime = n.now + 1
			n.arm(c)
		}
	}
}

// tied says whether a job belongs to a family: it must not vanish from this node
// while it isn't done.
func (n *Node) tied(j *store.Job) bool {
	_, yes := j.Family()
	return yes || n.store.Knot(&j.ID) != nil
}

// buried follows the jobs that were freed with their queue.
func (n *Node) buried() {
	for _, l := range n.store.TakeLost() {
		if l.Early {
			n.oneLess(l.Of, nil, source{clock: true})
		}
		if l.Copies {
			n.evicted(l.ID, l.Unreleased)
		} else {
			n.follow(end{id: l.ID, undone: true, unreleased: l.Unreleased, source: source{clock: true}}, -1)
		}
	}
}

// --- commands --------------------------------------------------------------------

// CancelJob deletes a job everywhere, undone, and those that fall with it; it returns
// how many went here.
func (n *Node) CancelJob(id *store.ID) int {
	j := n.store.Lookup(id)
	if j == nil || j.State == store.StateAcked {
		return 0
	}
	n.Stats.Cancelled++
	if ad := n.addings[*id]; ad != nil {
		n.cleanUp(ad)
		n.deny(ad, ErrReplRemoved)
		return 1
	}
	dropped := n.ended(j, true, source{})
	if j.Holders() == 0 {
		n.remove(j)
		return 1 + dropped
	}
	// As with an acknowledgement, every holder is told until it knows.
	f, _ := j.Family()
	f.Flags |= store.FamilyCancelled
	j = n.setFamily(j, &f)
	n.acknowledge(j, nil)
	n.collect(j)
	return 1 + dropped
}

// releasing is a release that not all holders have confirmed.
type releasing struct {
	id       store.ID
	msg      wire.Message
	queue    []byte
	open     []wire.Node
	told     int // nodes that know, this one included
	client   any // nil: answered
	deadline int64
	next     int64
	wait     int64
}

// Release releases a deferred job: it is queued, in its queue or another (nil: its
// own), and those that it blocks when it is acknowledged; with last it comes
// last instead. Where wait is true the answer follows as a Released effect, for the
// client that [Node.Releaser] is given; else nodes is how many know of it.
func (n *Node) Release(id *store.ID, queue []byte, last, canWait bool) (nodes int, wait bool, err error) {
	if n.passive {
		return 0, false, ErrReplica
	}
	j := n.parent(id)
	if j == nil || j.State == store.StateAcked && cancelled(j) {
		return 0, false, ErrNoJob
	}
	if f, ok := j.Family(); !ok || j.State != store.StateActive || f.Flags&store.FamilyDeferred == 0 {
		return 0, false, ErrNotDeferred
	}
	q := j.Queue
	if queue != nil {
		if q = n.store.Queue(queue); q == nil {
			if err := n.keys.Free(queue); err != nil {
				return 0, false, err
			}
		}
	}
	if q != nil && q.Pause&PauseIn != 0 {
		return 0, false, ErrPaused
	}
	if queue != nil {
		if err := n.moveAlong(j, queue); err != nil {
			return 0, false, err
		}
	}
	r := &releasing{id: *id, queue: append([]byte(nil), queue...), told: 1, deadline: n.now + releaseMS, wait: releaseMS, next: n.now + releaseMS}
	for i := range j.Holders() {
		if h, _ := j.Holder(i); n.mesh.by[wire.Node(h)] != nil {
			r.open = append(r.open, wire.Node(h))
		}
	}
	r.msg = wire.Message{Kind: wire.Release, ID: *id, Queue: r.queue}
	if queue != nil {
		r.msg.Flags |= wire.Moved
	}
	if last {
		r.msg.Flags |= wire.Last
		r.msg.Count = n.brood(j)
	}
	any := false
	for _, h := range r.open {
		if p := n.mesh.by[h]; p != nil && p.Connected {
			any = true
			n.send(p, &r.msg)
		}
	}
	n.release(j, last, r.msg.Count, atOnce)
	if len(r.open) == 0 {
		return 1, false, nil
	}
	n.kin.releases = append(n.kin.releases, r)
	n.wake = min(n.wake, r.next)
	return 1, any && canWait, nil
}

// Releaser ties a client to a Release that waits: the answer is a Released effect.
func (n *Node) Releaser(id *store.ID, client any) {
	if r := n.releaseOf(id); r != nil {
		r.client = client
	}
}

func (n *Node) releaseOf(id *store.ID) *releasing {
	i := slices.IndexFunc(n.kin.releases, func(r *releasing) bool { return r.id == *id })
	if i < 0 {
		return nil
	}
	return n.kin.releases[i]
}

// brood counts the jobs that a deferred one blocks, and those that it did, and that
// have ended since another node knows of its release.
func (n *Node) brood(j *store.Job) uint32 {
	f, _ := j.Family()
	return f.Count + uint32(len(n.blockedBy(&j.ID, store.FamilyBlocked|store.FamilyEarly)))
}

// blockedBy lists the jobs that one blocks, or that it waits for, as flags say.
func (n *Node) blockedBy(id *store.ID, flags uint8) (ids []store.ID) {
	k := n.store.Knot(id)
	if k == nil {
		return nil
	}
	for t := n.store.First(k); t != nil; t = t.Next() {
		if c := n.store.Lookup(&t.Job); c != nil {
			if f, ok := c.Family(); ok && f.Flags&flags != 0 {
				ids = append(ids, t.Job)
			}
		}
	}
	return ids
}

// release releases a copy. With last, count is how many jobs it comes after.
func (n *Node) release(j *store.Job, last bool, count uint32, when turn) {
	id := j.ID
	f, _ := j.Family()
	f.Flags &^= store.FamilyDeferred
	// Each node counts those that it has; a node may have one more that is just being
	// added.
	if f.Count = max(count, n.brood(j)) - f.Count; last && f.Count > 0 {
		f.Flags |= store.FamilyLast
	}
	if j = n.setFamily(j, &f); held(j) {
		n.log(LogState, j)
	} else {
		n.letGo(j, when)
	}
	if !last {
		return
	}
	for _, child := range n.blockedBy(&id, store.FamilyBlocked) {
		c := n.store.Lookup(&child)
		g, _ := c.Family()
		g.Flags = g.Flags&^store.FamilyBlocked | store.FamilyEarly
		if c = n.setFamily(c, &g); held(c) {
			n.log(LogState, c)
		} else {
			n.letGo(c, when)
		}
	}
}

// --- other nodes --------------------------------------------------------------------

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
				_ = n.moveTo(j, m.Queue)
			}
			n.release(j, m.Flags&wire.Last != 0, m.Count, later)
		}
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
	if !slices.ContainsFunc(r.open, func(h wire.Node) bool { return n.mesh.by[h] != nil && n.mesh.by[h].Connected }) {
		n.answerRelease(r)
	}
	if len(r.open) == 0 {
		n.kin.releases = slices.DeleteFunc(n.kin.releases, func(x *releasing) bool { return x == r })
	}
}

func (n *Node) answerRelease(r *releasing) {
	if r.client != nil {
		n.effects = append(n.effects, Effect{Kind: Released, ID: r.id, Client: r.client, Nodes: r.told})
		r.client = nil
	}
}

// DropRelease forgets a client that has gone. The release stands.
func (n *Node) DropRelease(id *store.ID) {
	if r := n.releaseOf(id); r != nil {
		r.client = nil
	}
}

// tickFamily answers who has waited long enough, and tells of releases again.
func (n *Node) tickFamily() {
	n.kin.releases = slices.DeleteFunc(n.kin.releases, func(r *releasing) bool {
		if n.now < min(r.next, r.deadline) {
			n.wake = min(n.wake, r.next, r.deadline)
			return false
		}
		n.answerRelease(r)
		j := n.store.Lookup(&r.id)
		r.open = slices.DeleteFunc(r.open, func(h wire.Node) bool { return n.mesh.by[h] == nil })
		if j == nil || j.State == store.StateAcked || len(r.open) == 0 {
			return true // who doesn't know it hears of its end
		}
		for _, h := range r.open {
			n.send(n.mesh.by[h], &r.msg)
		}
		r.wait = min(2*r.wait, againMS)
		r.next, r.deadline = n.now+r.wait, n.now+r.wait
		n.wake = min(n.wake, r.next)
		return false
	})
	if n.now >= n.kin.sweep {
		n.kin.sweep = n.now + fateMS
		for id := range n.kin.asked {
			if n.store.Knot(&id) == nil {
				delete(n.kin.asked, id)
			}
		}
	}
}

// resumeReleases tells a node that is back of what it may have missed.
func (n *Node) resumeReleases(p *Peer) {
	for _, r := range n.kin.releases {
		if slices.Contains(r.open, p.Node) {
			n.send(p, &r.msg)
		}
	}
}

// askFate asks all nodes what became of a job.
func (n *Node) askFate(id *store.ID) {
	a := n.kin.asked[*id]
	if a == nil {
		a = &asked{}
		n.kin.asked[*id] = a
	}
	if n.now < a.next {
		return
	}
	a.next, a.unknown = n.now+fateMS-jitterMS, a.unknown[:0]
	for _, p := range n.mesh.order {
		n.send(p, &wire.Message{Kind: wire.AskFate, ID: *id})
	}
}

func (n *Node) onAskFate(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	reply := wire.Message{Kind: wire.Fate, ID: m.ID, Count: wire.FateUnknown}
	switch j := n.store.Lookup(&id); {
	case j != nil && j.State == store.StateAcked:
		reply.Count = wire.FateEnded
		reply.Flags = ackFlags(j)
	case j != nil:
		reply.Count = wire.FateOpen
	case n.store.Done(&id):
		reply.Count = wire.FateEnded
	case n.graves.cancelled(&id):
		reply.Count, reply.Flags = wire.FateEnded, wire.Cancelled|wire.HeldBack
	}
	n.send(p, &reply)
}

// onFate takes an answer. A job that no node knows ended undone, unseen.
func (n *Node) onFate(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	a := n.kin.asked[id]
	if a == nil || n.store.Lookup(&id) != nil {
		return
	}
	e := end{id: id, undone: true, unreleased: true, source: source{from: p}}
	switch m.Count {
	case wire.FateOpen:
		a.unknown = a.unknown[:0]
		return
	case wire.FateEnded:
		e.undone, e.unreleased = m.Flags&wire.Cancelled != 0, m.Flags&wire.HeldBack != 0
	default:
		if !slices.Contains(a.unknown, p.Node) {
			a.unknown = append(a.unknown, p.Node)
		}
		for _, q := range n.mesh.order {
			if !slices.Contains(a.unknown, q.Node) {
				return
			}
		}
	}
	delete(n.kin.asked, id)
	n.follow(e, -1)
}

// ackFlags are the flags of a SetAck about a job.
func ackFlags(j *store.Job) (flags uint8) {
	undone, unreleased := fateOf(j)
	if undone {
		flags |= wire.Cancelled
	}
	if unreleased {
		flags |= wire.HeldBack
	}
	return flags
}

// heardEnd notes what a SetAck says of a job here, before it is acknowledged.
func (n *Node) heardEnd(j *store.Job, m *wire.Message) *store.Job {
	if m.Flags&wire.Cancelled == 0 {
		return j
	}
	f, _ := j.Family()
	if m.Flags&wire.HeldBack == 0 {
		f = store.Family{}
	}
	f.Flags |= store.FamilyCancelled
	return n.setFamily(j, &f)
}

// heardOfStranger is for a job that isn't known here, and is acknowledged.
func (n *Node) heardOfStranger(p *Peer, id store.ID, m *wire.Message) {
	undone := m.Flags&wire.Cancelled != 0
	if !undone {
		n.store.SetDone(&id)
	}
	n.follow(end{id: id, undone: undone, unreleased: m.Flags&wire.HeldBack != 0, source: source{from: p}}, -1)
}

// near prefers nodes that hold what a job waits for: a family lives together.
func (n *Node) near(j *store.Job, list []*Peer) []*Peer {
	f, ok := j.Family()
	if !ok {
		return list
	}
	best, most := list, 0
	var kin []*Peer
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
			kin, most = append(kin[:0], p), shared
		case shared == most && most > 0:
			kin = append(kin, p)
		}
	}
	if most > 0 {
		best = kin
	}
	return best
}

// Ties counts the waits of jobs for each other.
func (n *Node) Ties() uint64 { return n.store.Ties() }
