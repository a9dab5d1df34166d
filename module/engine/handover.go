package engine

import (
	"encoding/binary"
	"math"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Handing over at-most-once jobs. There is one copy of such a job, so it moves, and
// neither a refusal, nor a broken connection, nor a restart may lose or double it.
//
//	giver                           taker
//	log "offered", to whom
//	        ------- Offer ------->
//	                                log the job, queue it
//	        <------ Taken --------
//	log "gone"
//	        ------ Settled ------>  forget that it was taken
//
// While a job is offered the giver keeps it, and gives it to nobody. It takes the job
// back only where it is certain that the taker never had it: the bus didn't accept the
// Offer, or the taker answers Declined. Otherwise it repeats the Offer, with the same
// round: when the connection is back, or after a while without an answer. The taker
// remembers each round that it took until it is Settled, so a repeated Offer doesn't
// make a second job, whatever became of the first; and it repeats Taken.
//
// The giver's log has the offer (offerOf) before the Offer leaves, and that the job is
// gone before Settled does. So a giver that was restarted, and has all that it logged
// (Trust.Exact), goes on with the same round.
//
// Nodes may ask meanwhile what became of the job (TagAskers). They must hear of its end, but the giver
// forgets the job. So Taken says how many of these nodes the taker knows. If it doesn't know all of
// them, the giver repeats the Offer at once, which names them. The taker notes them. If it knows the
// job's end by then, it tells the giver, and the giver tells those nodes.
//
// The taker's memory ends with its process (its life). If the taker was restarted before it
// answered, or was forgotten, or if the giver's log may lack the end of the offer, nobody can
// know any more whether the taker had the job. Then the job becomes uncertain
// (store.FlagUncertain): it is in no queue, and is kept until its time is over or somebody
// decides by ENQUEUE or DELJOB. A Taken that comes late removes it. If a forgotten taker comes
// back in the same life, the giver offers it the job again. A late Declined can't come: it would
// have been lost with the connection.
const (
	offerAgainMS  = 5_000 // by the monotonic clock; how long an answer is waited for, doubling
	takenAgainMS  = 1_000
	handoverLast  = 60_000
	takenMost     = 1 << 16 // rounds that are remembered though their jobs have expired
	handoverSteps = 100     // entries that a tick looks at
	chokedMS      = 200     // how long a node that takes too little is given no jobs
)

// offered is a job that was offered to a node.
type offered struct {
	to          wire.Node
	life, round uint64
	next, wait  int64  // monotonic: when the Offer is repeated
	until       int64  // monotonic: then the job has expired
	unanswered  int    // Offers sent by one connection,
	up          uint64 // that of this Peer.Since
	repeated    bool
	askers      int  // how many nodes that asked about the job the last Offer names
	accepted    bool // the node took the job while that was out of sight here
	doubted     bool // the job is uncertain, for the node was forgotten
}

// offerLen is the length of an offered job's TagOffer extra: to whom (a short name), in
// which life of that node, and in which round, 8 bytes each. An uncertain job keeps it.
const offerLen = 3 * 8

// offerOf reads an offer from a job.
func offerOf(j *store.Job) (o offered, ok bool) {
	e := j.Extra(store.TagOffer)
	if len(e) != offerLen {
		return o, false
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(e[8*i:]) }
	return offered{to: wire.Node(word(0)), life: word(1), round: word(2)}, true
}

// noteOffer writes an offer into a job, which may move. If the job has no room for it, it is
// offered without: after a restart of this node it is uncertain.
func (n *Node) noteOffer(j *store.Job, o *offered) *store.Job {
	var b [offerLen]byte
	for i, word := range [...]uint64{uint64(o.to), o.life, o.round} {
		binary.LittleEndian.PutUint64(b[8*i:], word)
	}
	j, _ = n.setExtra(j, store.TagOffer, b[:])
	return j
}

// dropOffer forgets an offer. The job may move.
func (n *Node) dropOffer(j *store.Job) *store.Job {
	n.offers.Remove(j.ID)
	if j.Extra(store.TagOffer) != nil {
		j, _ = n.setExtra(j, store.TagOffer, nil)
	}
	return j
}

// isOffered says whether a job is offered. An acknowledgement ends that: the taker's client
// may bring it here before the taker's answer comes.
func isOffered(j *store.Job) bool {
	return j.Flags&store.FlagOffered != 0 && j.State == store.StateActive
}

// OfferedTo is the short name of the node that a job is offered to, or was offered to
// before it became uncertain; 0: none.
func (n *Node) OfferedTo(j *store.Job) uint64 {
	if !isOffered(j) && !j.Uncertain() {
		return 0
	}
	o, _ := offerOf(j)
	return uint64(o.to)
}

// handoverRound names one round in which a job is handed over.
type handoverRound struct {
	id     store.ID
	number uint64
}

// taken is a round in which this node got the job, and which isn't settled.
type taken struct {
	from       wire.Node
	until      int64  // monotonic: then the job has expired, at the giver too
	next, wait int64  // monotonic: when Taken is repeated
	up         uint64 // Peer.Since of the connection by which Taken was sent last
	askers     uint8  // how many nodes that asked about the job the giver has named
}

// SetLife tells, before [membership.Table.Up], which process of a node the connection leads to: a
// number that differs after a restart. 0: the node can't be offered jobs.
func (n *Node) SetLife(id wire.NodeID, life uint64) {
	if life == 0 {
		delete(n.mesh.lives, id)
		return
	}
	if p := n.mesh.ByID(id); p != nil && n.mesh.lives[id] != life {
		n.givenAnew(p)
		p.past = passing{} // at-most-once jobs that were passed over for it may be offered to it now
	}
	n.mesh.lives[id] = life
}

// offer begins to hand a waiting job over.
func (n *Node) offer(j *store.Job, p *Peer) {
	o := offered{to: p.Node, life: n.mesh.lives[p.ID], round: n.random.Uint64(), wait: offerAgainMS}
	now := n.monotonic()
	o.next, o.until = now+o.wait, now+j.ETime-n.now
	n.store.Hold(j)
	j = n.noteOffer(j, &o)
	n.becomeOffered(j, n.now)
	n.arm(j)
	n.log(LogState, j) // before the Offer leaves
	n.offers.Put(j.ID, o)
	n.sendOffer(j, p, n.offers.Get(j.ID))
}

func (n *Node) sendOffer(j *store.Job, p *Peer, o *offered) {
	m := n.copyOf(j, wire.Offer)
	m.Holders, m.Round = nil, o.round
	n.scratch.extras = store.AppendExtrasBut(n.scratch.extras[:0], j.Extras(), store.TagOffer)
	m.Job.Extras = n.scratch.extras
	if o.up != p.Since {
		o.up, o.unanswered = p.Since, 0
	}
	o.unanswered++
	o.askers = promisedDependents(m.Job.Extras)
	n.send(p, m)
}

// inRound says whether a job is offered in a round, or is uncertain since.
func inRound(j *store.Job, number uint64) bool {
	o, noted := offerOf(j)
	if isOffered(j) {
		return !noted || o.round == number
	}
	return j.Uncertain() && j.State == store.StateActive && noted && o.round == number
}

// otherLife says whether the node that a job is offered to was restarted since.
func (n *Node) otherLife(o *offered) bool {
	p := n.mesh.ByName(o.to)
	if p == nil {
		return false
	}
	life := n.mesh.lives[p.ID]
	return life != o.life && (life != 0 || p.Connected)
}

// review ends an offer that is over, or whose end nobody can know. It returns the job if
// the offer still waits for its answer, else nil.
func (n *Node) review(id *store.ID, o *offered) *store.Job {
	j := n.store.Lookup(id)
	if n.otherLife(o) {
		o.life = 0
	}
	switch {
	case j == nil && n.outOfSight() && n.monotonic() < o.until:
		// It may be in another database. The rest is decided when it is back.
	case j == nil || !inRound(j, o.round):
		n.offers.Remove(*id)
	case o.accepted && promisedDependents(j.Extras()) == 0:
		n.offerTaken(j)
	case o.life == 0:
		if !o.doubted {
			n.doubtOffer(j)
		}
		n.offers.Remove(*id)
	case o.doubted:
	case n.mesh.ByName(o.to) == nil:
		o.doubted = true
		n.doubtOffer(j)
	default:
		return j
	}
	return nil
}

// doubtOffer makes an offered job uncertain.
func (n *Node) doubtOffer(j *store.Job) {
	n.Stats.UncertainHandingOver++
	n.becomeUncertain(j, n.now)
	n.store.Work(j, j.QTime)
	n.arm(j)
	n.touch(j.Queue)
	n.log(LogState, j)
}

// reopen ends the doubt about an offer whose node was forgotten and is back in the same
// life: that node remembers whether it has taken the job.
func (n *Node) reopen(id *store.ID, o *offered) {
	j := n.store.Lookup(id)
	if !o.doubted || j == nil || !j.Uncertain() || !inRound(j, o.round) || n.otherLife(o) {
		return
	}
	o.doubted = false
	n.store.Hold(j)
	becomeOfferedAgain(j)
	n.arm(j)
	n.touch(j.Queue)
	n.log(LogState, j)
}

// offerTaken ends an offer: the job isn't here any more.
func (n *Node) offerTaken(j *store.Job) {
	n.offers.Remove(j.ID)
	id := j.ID
	n.delegate(j)
	n.delegated.Add(id) // also if it has no locks: a node that asks about it has to ask again
	n.remove(j)
	n.evicted(id, false) // jobs that came to wait for it meanwhile
}

// tellsTakers notes all nodes as holders of a job that is offered or uncertain, so that all are told of its end: another node
// may have it by now, and may have handed it on. It does the same for a job of which this node may not know all holders. The
// job may move.
func (n *Node) tellsTakers(j *store.Job) *store.Job {
	if isOffered(j) || j.Uncertain() && j.State == store.StateActive || n.mayLackHolders(j) {
		j = n.heldByAll(j)
	}
	return j
}

// mayLackHolders says whether a job may have holders of which this node doesn't know: it had the job before it crashed, since
// the knowledge of a holder may be lost with its last second, or it may have missed a word of the node where the job was added
// (missedCreator).
func (n *Node) mayLackHolders(j *store.Job) bool {
	if n.mesh.Alone() {
		return false
	}
	return n.past.Inexact > 0 && maybeMadeBefore(j, n.past.Inexact) || n.missedCreator(j)
}

// isOnlyHere says whether no other node has a job, as far as this one can be certain of that.
func (n *Node) isOnlyHere(j *store.Job) bool { return j.Holders() == 0 && !n.mayLackHolders(j) }

// missedCreator says whether a job was added at a node that keeps no copy, and whose connection has ended since. That node tells the
// holders of each other, and forgets the job when it is promised: so nobody repeats a word that was lost with the connection.
func (n *Node) missedCreator(j *store.Job) bool {
	if j.Retry == 0 || n.isOwn(j) {
		return false
	}
	p := n.creator(j)
	switch {
	case p == nil:
		return n.unheard(j) // that node may have been forgotten since
	case j.HeldBy(uint64(p.Node)):
		return false
	}
	return maybeMadeBefore(j, n.now-(n.monotonic()-p.downAt))
}

// unoffer takes an offered job back. It is certain that no other node has the job.
func (n *Node) unoffer(j *store.Job) {
	j = n.dropOffer(j)
	becomeUnoffered(j)
	n.Stats.Exported--
	n.pushAgain(j, false)
}

// onOffer takes an at-most-once job, once.
func (n *Node) onOffer(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	r := handoverRound{id, m.Round}
	if t := n.taken.Get(r); t != nil {
		if n.takeDependents(p, m) {
			t.askers = uint8(promisedDependents(m.Job.Extras))
		}
		n.sendTaken(p, r, t.askers) // the answer was lost, or comes late
		return
	}
	if n.passive || n.loading {
		n.refuse(p, m, wire.IsPassive)
		return
	}
	told := uint8(promisedDependents(m.Job.Extras))
	if n.tombstones.has(&id) {
		n.takeDependents(p, m)
		n.sendTaken(p, r, told) // it is done, or deleted: no node is to have it
		return
	}
	var askers []byte
	if j := n.lookEnded(&id); j != nil {
		askers = slices.Clone(j.Extra(store.TagAskers))
		ad := n.pendingAddOf(&id)
		switch o := n.offers.Get(id); {
		case ad != nil:
			// The node that was sent the copy gives it back, before it confirms.
			if n.achieved(j, ad); n.tombstones.has(&id) {
				n.takeDependents(p, m)
				n.sendTaken(p, r, told) // its client was refused before
				return
			}
		case o != nil && isOffered(j):
			// So the node that this one offered it to has had it, and handed it on.
			if q := n.mesh.ByName(o.to); q != nil {
				n.send(q, &wire.Message{Kind: wire.Settled, ID: m.ID, Round: o.round})
			}
			n.offerTaken(j)
		case j.Uncertain() && j.State == store.StateActive:
			n.offerTaken(j) // there is only one copy, and the sender has it for certain
		default:
			n.takeDependents(p, m)
			n.sendTaken(p, r, told) // there is only one copy, and this node has it
			return
		}
	}
	j := n.accept(p, m)
	if j == nil {
		return
	}
	j = n.noteDependents(j, askers)
	now := n.monotonic()
	n.taken.Put(r, taken{from: p.Node, until: now + j.ETime - n.now, next: now + takenAgainMS, wait: takenAgainMS, up: p.Since, askers: told})
	n.sendTaken(p, r, told)
	n.Stats.Imported++
	n.hasCome(p, m)
	clearQueuedOnce(j)
	n.requeue(j, false)
}

func (n *Node) sendTaken(p *Peer, r handoverRound, askers uint8) {
	n.send(p, &wire.Message{Kind: wire.Taken, Flags: askers, ID: r.id, Round: r.number})
}

// promisedDependents counts the nodes that asked about a job, by its extras: at most 255, as in Taken.
func promisedDependents(extras []byte) int {
	return min(len(store.FindExtra(extras, store.TagAskers))/nodeLen, math.MaxUint8)
}

// takeDependents notes the nodes that asked the giver about a job while it offered the job to this node.
// If the job is done, the giver hears that, and tells those nodes. False: the job is out of sight.
func (n *Node) takeDependents(p *Peer, m *wire.Message) bool {
	id, askers := store.ID(m.ID), store.FindExtra(m.Job.Extras, store.TagAskers)
	switch j := n.lookEnded(&id); {
	case len(askers) == 0:
	case n.passive || n.loading || j == nil && n.maybeDormant(&id):
		return false
	case j == nil && (n.tombstones.has(&id) || n.store.Done(&id)):
		n.sendAck(p, n.tombstones.ack(&id))
	case j == nil:
	case j.State == store.StateAcked:
		n.correct(p, j, nil)
	default:
		n.log(LogState, n.noteDependents(j, askers))
	}
	return true
}

// noteDependents adds nodes to those that asked about a job. The job may move.
func (n *Node) noteDependents(j *store.Job, askers []byte) *store.Job {
	if len(askers) > 0 {
		n.noteAsked(j)
	}
	for ; len(askers) >= nodeLen; askers = askers[nodeLen:] {
		if p := n.mesh.ByName(wire.Node(binary.BigEndian.Uint64(askers))); p != nil && !noted(j, store.TagAskers, p) {
			j, _ = n.noteNode(j, store.TagAskers, p)
		}
	}
	return j
}

func (n *Node) onTaken(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	o := n.offers.Get(id)
	if o != nil && (o.to != p.Node || o.round != m.Round) {
		o = nil
	}
	switch j := n.store.Lookup(&id); {
	case j == nil && o != nil && n.outOfSight():
		// The log can't say yet that the job is gone, so the taker has to go on
		// remembering the round.
		o.accepted = true
		return
	case j != nil && inRound(j, m.Round):
		if askers := promisedDependents(j.Extras()); o != nil && isOffered(j) && askers > int(m.Flags) {
			if askers > o.askers {
				o.repeated = true
				n.sendOffer(j, p, o)
			}
			return
		}
		if was, _ := offerOf(j); o != nil || was.to == p.Node {
			n.offerTaken(j)
		}
	}
	// This goes out also for a round that isn't known any more: it won't be offered again.
	n.send(p, &wire.Message{Kind: wire.Settled, ID: m.ID, Round: m.Round})
}

func (n *Node) onDeclined(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	o := n.offers.Get(id)
	if o == nil || o.to != p.Node || o.round != m.Round || o.up != p.Since {
		return
	}
	// A later Offer of the round may have been taken: its answer is on its way.
	if o.unanswered--; o.unanswered > 0 {
		return
	}
	if j := n.review(&id, o); j != nil {
		n.sated(p, string(j.Queue.NameBytes()))
		n.unoffer(j)
	}
}

func (n *Node) onSettled(m *wire.Message) { n.taken.Remove(handoverRound{m.ID, m.Round}) }

// Unsent is called when the bus didn't accept a message: the node is certain never to
// get it. The caller need not call it for messages without a job.
func (n *Node) Unsent(to wire.NodeID, kind wire.Kind, job *wire.JobID) {
	p := n.mesh.ByID(to)
	if p == nil || n.passive {
		return
	}
	p.choked = n.monotonic() + chokedMS
	id := store.ID(*job)
	if kind == wire.ReplJobs {
		n.unsentAll(p, &id)
		return
	}
	j := n.store.Lookup(&id)
	if j == nil {
		return
	}
	switch kind {
	case wire.Offer:
		o := n.offers.Get(id)
		if o == nil || o.to != p.Node {
			break
		}
		o.unanswered--
		// That a repeated Offer wasn't sent says nothing about the first one.
		if !o.repeated && isOffered(j) {
			n.starvesStill(p, j.Queue)
			n.unoffer(j)
		}
	case wire.YourJob:
		n.starvesStill(p, j.Queue)
		n.unexport(j)
	case wire.SetEnd:
		n.ackUnsent(p, j)
	case wire.Cancel:
		n.tellWishes()
	case wire.ReplJob:
		if ad := n.pendingAddOf(&id); ad != nil && j.HeldBy(uint64(p.Node)) {
			ad.unsent = append(ad.unsent, p.Node)
		}
	}
}

// unexport queues an at-least-once job again: it was handed over to another node, and
// that node hasn't queued it.
func (n *Node) unexport(j *store.Job) {
	if j.State != store.StateActive || j.Place != store.InHeld || j.Retry == 0 || j.Flags&store.FlagDelivered == 0 || held(j) {
		return
	}
	n.Stats.Exported--
	clearDelivered(j)
	clearAnnounced(j)
	n.pushAgain(j, false)
}

// takes says whether a job may be handed over to a node, or with nil to some node. An at-most-once job stays while others wait for it, here or
// at a node that has asked about it lately. Those that asked before go with it (TagAskers): the taker tells them of its end.
func (n *Node) takes(p *Peer, j *store.Job) bool {
	if len(j.Body())+len(j.Queue.NameBytes()) > n.mostBody {
		return false
	}
	if p != nil && shunned(j, p) {
		return false
	}
	if j.Retry > 0 {
		return true
	}
	return (p == nil || n.mesh.lives[p.ID] != 0) && !(n.store.Edges() > 0 && n.hasEdges(j)) && (j.Extra(store.TagAskers) == nil || !n.askedLately(j))
}

// reviewHandovers is called when a node is connected again, or its membership has ended: all
// offers and rounds are looked at soon, some of them at once. The rounds in which a forgotten
// node gave jobs stay known: if it comes back, it may offer them again.
func (n *Node) reviewHandovers() {
	n.offers.Begin()
	n.taken.Begin()
	n.reviewOn()
}

// reviewOn goes on with reviewHandovers. It returns what is left of a tick's budget.
func (n *Node) reviewOn() (budget int) {
	now := n.monotonic()
	budget = tickBudget
	for n.offers.Left() > 0 && budget > 0 && !n.passive && !n.loading { // otherwise the jobs aren't known
		n.offers.Pass(1, func(id store.ID, o *offered) bool {
			budget -= n.offerAgain(id, o, now)
			return true
		})
	}
	for n.taken.Left() > 0 && budget > 0 {
		budget--
		n.taken.Pass(1, func(r handoverRound, t *taken) bool { return n.takenAgain(r, t, now) })
	}
	if n.offers.Left()+n.taken.Left() > 0 {
		n.hurryTick()
	}
	return budget
}

// tickHandovers repeats the Offers and Takens that weren't answered, a few at a time.
func (n *Node) tickHandovers() {
	now, budget := n.monotonic(), n.reviewOn()
	for steps := handoverSteps; steps > 0 && budget > 0 && n.offers.Len() > 0; steps-- {
		id, o := n.offers.Next()
		budget -= n.offerAgain(id, o, now)
	}
	for range min(n.taken.Len(), handoverSteps, max(budget, 0)) {
		if r, t := n.taken.Next(); !n.takenAgain(r, t, now) {
			n.taken.Remove(r)
		}
	}
}

// offerAgain reviews an offer, and repeats it when its time has come or the connection is new. It
// returns its cost in a tick's budget.
func (n *Node) offerAgain(id store.ID, o *offered, now int64) (cost int) {
	p := n.mesh.ByName(o.to)
	back := p != nil && p.Connected && p.Since != o.up
	from := len(n.effects)
	if back {
		n.reopen(&id, o)
	}
	if j := n.review(&id, o); j != nil && p.Connected && (back || now >= o.next) {
		if !back {
			o.wait = min(2*o.wait, handoverLast)
		}
		o.next, o.repeated = now+o.wait, true
		n.sendOffer(j, p, o)
	}
	return max(1, len(n.effects)-from) + n.cost(from)
}

// takenAgain repeats a Taken under the same conditions. False: the round is to be forgotten.
func (n *Node) takenAgain(r handoverRound, t *taken, now int64) (keep bool) {
	p := n.mesh.ByName(t.from)
	back := p != nil && p.Connected && p.Since != t.up
	switch {
	case now >= t.until && n.taken.Len() > takenMost:
		// A giver that was restarted with a clock that was set back may believe that the
		// job hasn't expired. So rounds are forgotten only when there are very many.
		return false
	case p != nil && (back || now >= t.next):
		if !back {
			t.wait = min(2*t.wait, handoverLast)
		}
		t.next, t.up = now+t.wait, p.Since
		n.sendTaken(p, r, t.askers)
	}
	return true
}

// offerStands is for a loaded job that is offered. It says whether the offer still waits for its
// answer. It does so if this process made the offer, or if the data are exact: then no Settled
// can have been sent since they were saved.
func (n *Node) offerStands(j *store.Job, exact bool) bool {
	n.hurryTick()
	if o := n.offers.Get(j.ID); o != nil && inRound(j, o.round) {
		o.doubted = false
		return true
	}
	if exact {
		n.resumeOffer(j, false)
	}
	return exact
}

// resumeOffer goes on with an offer as the job's extra has it. If it is doubtful, the next tick makes
// the job uncertain.
func (n *Node) resumeOffer(j *store.Job, doubtful bool) {
	o, _ := offerOf(j) // if the job has none, it is an offer in no life
	if doubtful {
		o.life = 0
	}
	o.wait, o.next, o.until = offerAgainMS, n.monotonic(), n.monotonic()+j.ETime-n.now
	o.repeated = true
	n.offers.Put(j.ID, o)
}

// resettle is for a queue that was out of sight: it looks at the jobs that are offered, and at those
// that are due. The next tick decides about them: what is logged before the command that brought the
// queue back is lost.
func (n *Node) resettle(q *store.Queue) {
	for j := q.Held.Head; j != nil; j = j.Next {
		if !isOffered(j) {
			if j.QTime > 0 && j.QTime <= n.now {
				n.arm(j)
			}
			continue
		}
		if !n.offerStands(j, false) {
			n.resumeOffer(j, true)
		}
		n.arm(j)
	}
}
