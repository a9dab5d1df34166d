package engine

import (
	"cmp"
	"iter"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// ADDJOBS: jobs that are added with the same options. Each is promised or refused by itself, and the client is answered
// when all are decided.
//
// A job here goes the same way as one of ADDJOB: add.go makes it, and replicate.go waits for its copies. The difference
// is that copies of many jobs travel in one message (ReplJobs), and are confirmed by one (GotJobs). Jobs that wait for
// such an answer are a bundle. While all goes well a bundle is whole: its jobs have no pendingAdd of their own, and no
// timer. Whatever else happens, to one of its jobs or in 50 ms without the answers, ends that (unbundle): from then on
// each job has its pendingAdd, and replicate.go alone decides.

// MaxBatch is how many jobs an ADDJOBS may have.
const MaxBatch = 10_000

// bundleBytes bounds a ReplJobs. The bus sends a message beyond 64 KiB in parts. Such a message could be overtaken by
// what is said later about one of its jobs, as that the job is taken back.
const bundleBytes = 60_000

// Bytes that a ReplJobs needs besides names and bodies, at most: for all jobs, for each holder, and for each job.
const (
	bundleHead   = 128
	bundleHolder = 8
	bundleJob    = 40
)

// Batch is an ADDJOBS: what becomes of its jobs, in their order.
type Batch struct {
	Client  any // see [Node.Tie]
	Answers []Answer
	open    int         // answers that aren't known yet; one more while the jobs are being added
	denied  bool        // no job must be promised any more, see [Node.Deny]
	back    int         // how many of the Answers abandonBatch has looked at
	holders []wire.Node // the nodes that were chosen for copies: further jobs get theirs at the same ones
	before  uint64      // a creation time before those of its jobs
}

// Decided says whether all answers are known.
func (b *Batch) Decided() bool { return b.open == 0 }

// Answer is what ADDJOB would answer for one job of a Batch: an ID if Err is nil. [ErrDropped] stands for null. While the
// answer isn't known, Err is ErrReplTimeout. The ID is that of the job then, and zero where the job is refused.
type Answer struct {
	ID  store.ID
	Err error
}

// bundle is jobs of a Batch that wait for the answers to one ReplJobs.
type bundle struct {
	of         *Batch
	from, to   int    // the jobs are those of the Answers from from to to, to excluded, that have an ID
	count      int    // of the jobs
	first      uint64 // the number in the first one's ID, see [store.Store.Number]; the others' numbers follow
	whole      bool   // no job has a pendingAdd
	need       int    // as in pendingAdd, like the next three
	least      int
	deadline   int64
	began      int64
	look       int64 // unix ms: when the bundle doesn't stay whole any longer
	number     uint64
	confirmers []wire.Node // nodes that hold all copies
}

// AddJobs adds jobs that differ in their bodies alone, and in their keys if keys isn't nil. a has all else; its Body and Key
// are ignored. err refuses the call as a whole: then nothing is done. If wait is true, the answer follows as an
// effect, for the client that is tied to [PendingBatch]. Else the Batch has all answers, and is valid until the next call.
func (n *Node) AddJobs(a *Add, bodies, keys [][]byte) (b *Batch, wait bool, err error) {
	most := a.MaxLen
	a.Body, a.MaxLen = nil, 0
	where, err := n.addable(a)
	a.MaxLen = most
	if err != nil {
		return nil, false, err
	}
	b = n.newBatch(len(bodies))
	// Clients that wait with COUNT get their shares of all these jobs, so they are served when all are added.
	n.Hear(func() {
		if unique := a.Unique.Strategy != 0 && !n.notUnique; unique || where.external || where.elsewhere > n.Mesh().Reachable() || a.Family() {
			n.addEach(b, a, bodies, keys)
		} else {
			err = n.addPlain(b, a, bodies, where)
		}
	})
	if err != nil {
		return nil, false, err
	}
	a.Body, a.batch = nil, nil
	if b.open--; b.open == 0 {
		return b, false, nil
	}
	n.batch = nil // it is the waiting client's now
	return b, true, nil
}

// newBatch begins a Batch in scratch memory.
func (n *Node) newBatch(jobs int) *Batch {
	if n.batch == nil {
		n.batch = &Batch{}
	}
	b := n.batch
	*b = Batch{Answers: slices.Grow(b.Answers[:0], jobs)[:jobs], open: 1, before: n.ctime}
	return b
}

// addEach adds each job as ADDJOB does. The jobs may be unique, or a family, or have all copies elsewhere, or have to wait for
// nodes whose connection was just lost.
func (n *Node) addEach(b *Batch, a *Add, bodies, keys [][]byte) {
	pending := 0 // jobs that wait for copies or votes, and are in the queue then
	for i, body := range bodies {
		a.Body = body
		if keys != nil {
			a.Unique.Keyed, a.Unique.Key = true, keys[i]
		}
		if pending > 0 && a.MaxLen > 0 && n.isFull(a, n.Queue(a.Queue), pending) {
			n.refuseIn(b, i, ErrMaxLen)
			continue
		}
		a.batch, a.place = b, int32(i)
		b.Answers[i] = Answer{Err: ErrReplTimeout}
		b.open++
		id, wait, err := n.AddJob(a)
		b.Answers[i].ID = id
		switch {
		case !wait:
			b.open--
			b.Answers[i].Err = err
		case queuedWhenAdded(a):
			pending++
		}
	}
}

// queuedWhenAdded says whether a job comes into its queue when it is added, and so counts for MAXLEN.
func queuedWhenAdded(a *Add) bool { return a.Delay == 0 && !a.Family() }

// isFull says whether a queue, nil if there is none, has as many jobs as MAXLEN allows, with the pending ones.
func (n *Node) isFull(a *Add, q *store.Queue, pending int) bool {
	if q != nil {
		pending += int(q.Waiting())
	}
	return int64(pending) >= a.MaxLen
}

func (n *Node) refuseIn(b *Batch, i int, err error) {
	b.Answers[i] = Answer{Err: err}
	n.Stats.Refused++
}

// addPlain adds jobs that are neither unique nor a family, and of which this node keeps a copy.
func (n *Node) addPlain(b *Batch, a *Add, bodies [][]byte, where placement) (err error) {
	q := where.queue
	if q == nil {
		if q, err = n.queue(a.Queue); err != nil {
			n.Stats.Refused++
			return err
		}
	}
	run, extras := run{b: b, a: a, elsewhere: where.elsewhere}, slices.Clone(n.extrasOf(a, nil, false))
	for i, body := range bodies {
		switch {
		case len(body) > store.MaxBody:
			err = ErrBody
		case where.elsewhere > 0 && len(body)+len(a.Queue) > n.mostBody:
			err = ErrTooBig
		case a.MaxLen > 0 && n.isFull(a, q, run.pending):
			err = ErrMaxLen
		default:
			err = nil
		}
		if err != nil {
			n.refuseIn(b, i, err)
			continue
		}
		a.Body = body
		j := n.newJob(a, extras, where.elsewhere)
		n.register(a, j, q)
		b.Answers[i] = Answer{ID: j.ID}
		if where.elsewhere == 0 {
			n.queueNew(j)
			continue
		}
		if n.ship(&run, i, j); queuedWhenAdded(a) {
			run.pending++
		}
	}
	n.sendRun(&run)
	return nil
}

// run is jobs of a Batch, whose copies are still to be sent.
type run struct {
	b         *Batch
	a         *Add
	elsewhere int
	from, to  int // the jobs are those of the Answers from from to to, to excluded, that have an ID
	bytes     int
	pending   int // jobs of the Batch that aren't in the queue yet, and will be
}

// ship adds a job to a run, which is sent before if it is full.
func (n *Node) ship(r *run, i int, j *store.Job) {
	if len(n.scratch.run) == 0 {
		r.from, r.bytes = i, bundleHead+len(r.a.Queue)+bundleHolder*r.elsewhere
	}
	need := bundleJob + len(r.a.Body)
	if len(n.scratch.run) > 0 && r.bytes+need > bundleBytes {
		n.sendRun(r)
		r.from, r.bytes = i, bundleHead+len(r.a.Queue)+bundleHolder*r.elsewhere
	}
	r.bytes, r.to = r.bytes+need, i+1
	n.scratch.run = append(n.scratch.run, j)
}

// sendRun sends the copies of a run. The jobs are queued, if the call doesn't wait for the copies.
func (n *Node) sendRun(r *run) {
	jobs := n.scratch.run
	n.scratch.run = jobs[:0]
	switch {
	case len(jobs) == 0:
		return
	case r.a.Async:
		n.placeRun(r, jobs, wire.NoReply)
		for _, j := range jobs {
			n.queueNew(j)
		}
		r.pending = 0
		return
	case len(jobs) == 1:
		r.b.Answers[r.from].Err = ErrReplTimeout
		r.b.open++
		r.a.batch, r.a.place = r.b, int32(r.from)
		n.startPendingAdd(jobs[0], r.a, false, r.elsewhere)
		return
	}
	for i := r.from; i < r.to; i++ {
		if a := &r.b.Answers[i]; a.ID != (store.ID{}) {
			a.Err = ErrReplTimeout
		}
	}
	r.b.open += len(jobs)
	for _, j := range jobs {
		becomePending(j)
		n.setTime(j, 0)
	}
	n.placeRun(r, jobs, 0)
	n.bundle(r, jobs)
}

// placeRun sends the copies of jobs to the nodes that the Batch has chosen, or chooses now.
func (n *Node) placeRun(r *run, jobs []*store.Job, flags uint8) {
	b := r.b
	for len(b.holders) < r.elsewhere {
		p := n.candidate(jobs[0], nil)
		if p == nil {
			break
		}
		jobs[0], _ = n.addHolder(jobs[0], p.Node)
		b.holders = append(b.holders, p.Node)
	}
	for i := range jobs {
		for _, h := range b.holders {
			jobs[i], _ = n.addHolder(jobs[i], h)
		}
	}
	m := n.copyOf(jobs[0], wire.ReplJobs)
	m.Flags = flags
	n.scratch.more = n.scratch.more[:0]
	for _, j := range jobs[1:] {
		n.scratch.more = append(n.scratch.more, wire.Sibling{ID: j.ID, CTime: j.CTime, Body: j.Body()})
	}
	m.More = n.scratch.more
	s := sending{n: n, m: m}
	for _, h := range b.holders {
		if p := n.mesh.ByName(h); n.takesBatches(p) && len(jobs) > 1 {
			s.to(p)
		}
	}
	for _, h := range b.holders {
		if p := n.mesh.ByName(h); !n.takesBatches(p) || len(jobs) == 1 {
			for _, j := range jobs {
				m := n.copyOf(j, wire.ReplJob)
				m.Flags = flags
				n.send(p, m)
			}
		}
	}
}

// takesBatches says whether a node understands ReplJobs.
func (n *Node) takesBatches(p *Peer) bool { return n.mesh.features[p.ID].Batches }

// bundle makes a bundle of jobs whose copies were sent.
func (n *Node) bundle(r *run, jobs []*store.Job) {
	n.added++
	u := &bundle{
		of: r.b, from: r.from, to: r.to, count: len(jobs), first: n.store.Number(&jobs[0].ID), whole: true,
		need: r.elsewhere, least: r.elsewhere, began: n.now, look: n.now + addReplicaMS, number: n.added,
	}
	if r.a.Default {
		u.least = 0
	}
	if r.a.Timeout > 0 {
		u.deadline = n.now + r.a.Timeout
		u.look = min(u.look, u.deadline)
	}
	n.bundles = append(n.bundles, u)
	n.wake = min(n.wake, u.look)
}

// bundleOf finds the bundle with a job, or returns nil. It goes by the number in the ID, so for another node's job it may
// find any.
func (n *Node) bundleOf(id *store.ID) *bundle {
	number := n.store.Number(id)
	i, _ := slices.BinarySearchFunc(n.bundles, number, func(u *bundle, number uint64) int {
		return cmp.Compare(u.first+uint64(u.count), number+1) // the first bundle that ends behind the number
	})
	if i < len(n.bundles) && n.bundles[i].first <= number {
		return n.bundles[i]
	}
	return nil
}

// jobs yields the places of a bundle's jobs among the Answers.
func (u *bundle) jobs() iter.Seq2[int, store.ID] {
	return func(yield func(int, store.ID) bool) {
		for i := u.from; i < u.to; i++ {
			if id := u.of.Answers[i].ID; id != (store.ID{}) && !yield(i, id) {
				return
			}
		}
	}
}

// unbundle gives each job of a bundle its pendingAdd, and its timer.
func (n *Node) unbundle(u *bundle) {
	u.whole = false
	adds := make([]pendingAdd, u.count)
	for i, id := range u.jobs() {
		ad := &adds[0]
		adds = adds[1:]
		n.alone(u, i, id, ad)
	}
}

// alone is unbundle for one job.
func (n *Node) alone(u *bundle, i int, id store.ID, ad *pendingAdd) {
	*ad = pendingAdd{
		id: id, client: u.of, place: int32(i), need: u.need, least: u.least, deadline: u.deadline, began: u.began,
		at: len(n.waiting), number: u.number,
	}
	n.pendingAdds[id] = ad
	n.waiting = append(n.waiting, ad)
	j := n.store.Lookup(&id)
	if j == nil {
		j = n.lookDormant(&id)
	}
	if j == nil || j.State != store.StateWaitRepl {
		return // vanished finds it
	}
	for _, node := range u.confirmers {
		j.Confirm(uint64(node))
	}
	n.setTime(j, max(u.look, n.now))
	n.arm(j)
}

// unbundleSome does so with some bundles: those whose time has come, or all. It returns false if budget, in jobs, is used up.
func (n *Node) unbundleSome(all bool, budget int) bool {
	for _, u := range n.bundles {
		switch {
		case !u.whole:
		case budget <= 0:
			return false
		case all || u.look <= n.now:
			budget -= u.count
			n.unbundle(u)
		default:
			n.wake = min(n.wake, u.look)
		}
	}
	return true
}

// unbundleFor does so with the bundles of which a node has copies. They were made in the last moments, before its connection ended.
func (n *Node) unbundleFor(p *Peer) {
	for _, u := range n.bundles {
		if u.whole && slices.Contains(u.of.holders, p.Node) {
			n.unbundle(u)
		}
	}
}

// adding counts the jobs that wait for their copies.
func (n *Node) adding() int {
	count := len(n.waiting)
	for _, u := range n.bundles {
		if u.whole {
			count += u.count
		}
	}
	return count
}

// tickBundles ends the bundles that have waited too long.
func (n *Node) tickBundles() {
	if len(n.bundles) > 0 && !n.unbundleSome(false, tickBudget) {
		n.hurryTick()
	}
}

// onReplJobs takes copies of several jobs.
func (n *Node) onReplJobs(p *Peer, m *wire.Message) {
	if q := n.takesAll(m); q != nil {
		first := m.ID
		n.acceptFor(p, m, q)
		for i := range m.More {
			s := &m.More[i]
			m.ID, m.Job.CTime, m.Job.Body = s.ID, s.CTime, s.Body
			n.acceptFor(p, m, q)
		}
		if m.Flags&wire.NoReply == 0 {
			n.send(p, &wire.Message{Kind: wire.GotJobs, ID: first, Count: uint32(1 + len(m.More))})
		}
		return
	}
	m.Kind = wire.ReplJob
	n.onReplJob(p, m)
	for i := range m.More {
		s := &m.More[i]
		m.ID, m.Job.CTime, m.Job.Body = s.ID, s.CTime, s.Body
		n.onReplJob(p, m)
	}
}

// takesAll returns the queue of copies of several jobs, if this node takes all of them and knows none. Otherwise each is
// handled by itself.
func (n *Node) takesAll(m *wire.Message) *store.Queue {
	q, refusal := n.roomFor(m)
	if refusal != 0 || m.Flags&^wire.NoReply != 0 || n.isKnown(store.ID(m.ID)) {
		return nil
	}
	for i := range m.More {
		if n.isKnown(store.ID(m.More[i].ID)) {
			return nil
		}
	}
	return q
}

// isKnown says whether this node knows a job, or that it is gone.
func (n *Node) isKnown(id store.ID) bool { return n.tombstones.has(&id) || n.lookEnded(&id) != nil }

// acceptFor takes a copy that takesAll has looked at.
func (n *Node) acceptFor(p *Peer, m *wire.Message, q *store.Queue) {
	if j := n.acceptInto(m, q); j != nil {
		p.took(j, n.now)
		n.tellApart(p, j)
	}
}

// onGotJobs counts the copies of a bundle that a node has confirmed.
func (n *Node) onGotJobs(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	u := n.bundleOf(&id)
	if u == nil || int(m.Count) != u.count || !slices.Contains(u.of.holders, p.Node) {
		return
	}
	for _, first := range u.jobs() {
		if first != id {
			return
		}
		break
	}
	if u.whole && u.of.denied {
		n.unbundle(u)
	}
	if !u.whole {
		for _, id := range u.jobs() {
			n.onJob(p, &wire.Message{Kind: wire.GotJob, ID: id})
		}
		return
	}
	if slices.Contains(u.confirmers, p.Node) {
		return
	}
	if u.confirmers = append(u.confirmers, p.Node); len(u.confirmers) >= u.need {
		n.allAchieved(u)
	}
}

// allAchieved promises all jobs of a whole bundle: the copies are where they must be.
func (n *Node) allAchieved(u *bundle) {
	u.whole = false
	for i, id := range u.jobs() {
		j := n.store.Lookup(&id)
		if j == nil || j.State != store.StateWaitRepl {
			n.alone(u, i, id, &pendingAdd{}) // its queue is gone
			continue
		}
		becomePromised(j)
		n.queueNew(j)
		n.decide(u.of, i, id, nil)
	}
}

// answer tells the client of an ADDJOB what became of the job, or notes it in the Batch that the job belongs to.
func (n *Node) answer(client any, place int32, id store.ID, err error) {
	if b, of := client.(*Batch); of {
		n.decide(b, int(place), id, err)
		return
	}
	if s, of := client.(*slotMaker); of {
		n.slotAnswered(s, id, err)
		return
	}
	kind := Promise
	if err != nil {
		kind = Deny
	}
	n.effects = append(n.effects, Effect{Kind: kind, ID: id, Client: client, Err: err})
}

// decide notes what became of a job of a Batch. The client is answered with the last one.
func (n *Node) decide(b *Batch, i int, id store.ID, err error) {
	b.Answers[i] = Answer{id, err}
	if b.open--; b.open == 0 {
		n.dropBundles(b)
		n.effects = append(n.effects, Effect{Kind: AnswerBatch, Client: b})
	}
}

func (n *Node) dropBundles(b *Batch) {
	n.bundles = slices.DeleteFunc(n.bundles, func(u *bundle) bool { return u.of == b })
}

// unwanted says whether the client of an ADDJOB, or of the ADDJOBS that a job belongs to, has gone.
func unwanted(denied bool, client any) bool {
	b, of := client.(*Batch)
	return denied || of && b.denied
}

// abandonBatch takes back the jobs of a Batch that aren't decided. If they are very many, the next ticks do the rest.
func (n *Node) abandonBatch(b *Batch) {
	b.denied = true
	n.abandoned = append(n.abandoned, b)
	n.tickAbandoned()
}

// tickAbandoned goes on with abandonBatch.
func (n *Node) tickAbandoned() {
	for budget := tickBudget; len(n.abandoned) > 0; {
		b := n.abandoned[0]
		for ; b.back < len(b.Answers); b.back++ {
			if budget <= 0 {
				n.hurryTick()
				return
			}
			from := len(n.effects)
			n.takeOneBack(&b.Answers[b.back])
			budget -= 1 + n.cost(from)
		}
		n.dropBundles(b)
		n.abandoned = n.abandoned[1:]
	}
}

func (n *Node) takeOneBack(a *Answer) {
	if a.Err != ErrReplTimeout || a.ID == (store.ID{}) {
		return
	}
	if ad := n.pendingAddOf(&a.ID); ad != nil {
		n.cleanUp(ad)
	} else {
		n.abandonUniqueAdd(&a.ID)
	}
}

// prefer chooses one of the nodes in list for a copy of a job: one that holds other jobs of its Batch already, or else p.
func (b *Batch) prefer(list []*Peer, p *Peer) *Peer {
	for _, q := range list {
		if slices.Contains(b.holders, q.Node) {
			return q
		}
	}
	b.holders = append(b.holders, p.Node)
	return p
}

// refuseAll refuses the copies of several jobs.
func (n *Node) refuseAll(p *Peer, m *wire.Message, reason uint32) {
	m.Kind = wire.ReplJob
	n.refuse(p, m, reason)
	for i := range m.More {
		m.ID = m.More[i].ID
		n.refuse(p, m, reason)
	}
}

// unsentAll notes that the bus didn't accept the message with the jobs of a bundle, of which the first one's ID is given.
func (n *Node) unsentAll(p *Peer, first *store.ID) {
	if u := n.bundleOf(first); u != nil { // else all are decided, or nobody waits for the copies
		if u.whole {
			n.unbundle(u)
		}
		for _, id := range u.jobs() {
			j := n.store.Lookup(&id)
			if ad := n.pendingAdds[id]; ad != nil && j != nil && j.HeldBy(uint64(p.Node)) {
				ad.unsent = append(ad.unsent, p.Node)
			}
		}
	}
}
