package engine

import (
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Handing over at-most-once jobs. There is one copy of such a job, so it moves, and
// neither a refusal, nor a broken connection, nor a restart may lose it where that can
// be helped, or make it two.
//
//	giver                           taker
//	log "offered"
//	        ------- Offer ------->
//	                                log the job, queue it
//	        <------ Taken --------
//	log "gone"
//	        ------ Settled ------>  forget that it was taken
//
// While it is offered the giver keeps the job, and gives it to nobody. It takes the job
// back only where it is certain that the taker never had it: the bus didn't accept the
// Offer, or the taker answers Declined. Otherwise it repeats the Offer, with the same
// round: when the connection is back, or after a while without an answer. The taker
// remembers each round that it took until it is Settled, so a repeated Offer doesn't
// make a second job, whatever became of the first; and it repeats Taken.
//
// That memory ends with the taker's process (its life). A giver whose taker was
// restarted, or forgotten, before it answered can't know whether the job was
// delivered, and removes it. So does a giver that was itself restarted: its log has the
// job as offered before the Offer leaves. Both mean that a job can be lost with a node
// that dies within this exchange, and never that there are two.
const (
	offerAgainMS  = 5_000 // steady; how long an answer is waited for, doubling
	takenAgainMS  = 1_000
	handoverLast  = 60_000
	handoverSteps = 100 // entries that a tick looks at
	chokedMS      = 200 // how long a node that takes too little is given no jobs
)

// offered is a job that was offered to a node.
type offered struct {
	to          wire.Node
	life, round uint64
	next, wait  int64 // steady: when it is repeated
	until       int64 // steady: the job has expired
	repeated    bool
	accepted    bool // it was taken while it was out of sight
}

// round is one handing over of a job.
type round struct {
	id     store.ID
	number uint64
}

// taken is a round in which this node got the job, and which isn't settled.
type taken struct {
	from       wire.Node
	until      int64 // steady: the job has expired, at the giver too
	next, wait int64 // steady: when Taken is repeated
}

// ledger is a map that is walked in an order of its own, so that a seeded run repeats.
type ledger[K comparable, V any] struct {
	at   map[K]int
	list []struct {
		key   K
		value V
	}
	turn int
}

func (l *ledger[K, V]) get(k K) *V {
	if i, yes := l.at[k]; yes {
		return &l.list[i].value
	}
	return nil
}

func (l *ledger[K, V]) put(k K, v V) {
	if old := l.get(k); old != nil {
		*old = v
		return
	}
	if l.at == nil {
		l.at = map[K]int{}
	}
	l.at[k] = len(l.list)
	l.list = append(l.list, struct {
		key   K
		value V
	}{k, v})
}

func (l *ledger[K, V]) drop(k K) {
	i, yes := l.at[k]
	if !yes {
		return
	}
	last := len(l.list) - 1
	l.list[i] = l.list[last]
	l.at[l.list[i].key] = i
	delete(l.at, k)
	l.list = l.list[:last]
}

// next walks on by one entry; not to be called where there is none.
func (l *ledger[K, V]) next() (K, *V) {
	l.turn = (l.turn + 1) % len(l.list)
	e := &l.list[l.turn]
	return e.key, &e.value
}

// SetLife tells, before PeerUp, which process of a node the connection leads to: a
// number that differs after a restart. 0: the node can't be offered jobs.
func (n *Node) SetLife(id wire.NodeID, life uint64) {
	if life == 0 {
		delete(n.mesh.lives, id)
		return
	}
	n.mesh.lives[id] = life
}

// offer begins to hand a waiting job over.
func (n *Node) offer(j *store.Job, p *Peer) {
	o := offered{to: p.Node, life: n.mesh.lives[p.ID], round: n.random.Uint64(), wait: offerAgainMS}
	now := n.steady()
	o.next, o.until = now+o.wait, now+j.ETime-n.now
	n.store.Hold(j)
	j.Flags = j.Flags&^store.FlagAnnounced | store.FlagDelivered | store.FlagOffered
	j.QTime = n.now
	n.arm(j)
	n.log(LogState, j) // before the Offer leaves
	n.offers.put(j.ID, o)
	n.sendOffer(j, p, o.round)
}

func (n *Node) sendOffer(j *store.Job, p *Peer, number uint64) {
	m := n.copyOf(j, wire.Offer)
	m.Holders, m.Round = nil, number
	n.send(p, m)
}

// offeredJob finds a job that is offered in a round.
func (n *Node) offeredJob(id *store.ID, p *Peer, number uint64) *store.Job {
	o := n.offers.get(*id)
	if o == nil || o.to != p.Node || o.round != number {
		return nil
	}
	return n.stillOffered(id)
}

// stillOffered finds a job that is offered; one that was deleted meanwhile isn't. One
// that isn't known may be in another database: its offer stands until it is seen again.
func (n *Node) stillOffered(id *store.ID) *store.Job {
	j := n.store.Lookup(id)
	if j != nil && j.Flags&store.FlagOffered != 0 {
		return j
	}
	if o := n.offers.get(*id); o != nil && (j != nil || !n.outOfSight() || n.steady() >= o.until) {
		n.offers.drop(*id)
	}
	return nil
}

// given ends an offer: the job isn't here any more.
func (n *Node) given(j *store.Job) {
	n.offers.drop(j.ID)
	id := j.ID
	n.entrust(j)
	n.remove(j)
	n.evicted(id, false) // jobs that came to wait for it meanwhile
}

// unoffer takes an offered job back, which is certain not to be anywhere else.
func (n *Node) unoffer(j *store.Job) {
	n.offers.drop(j.ID)
	j.Flags &^= store.FlagOffered | store.FlagDelivered
	n.Stats.Exported--
	j.Queue.JobsOut--
	j.Queue.JobsIn--
	n.push(j)
	n.log(LogState, j)
	n.serve(j.Queue)
}

// lose gives up an offered job of which nobody can know whether it was delivered.
func (n *Node) lose(j *store.Job) {
	n.Stats.LostHandingOver++
	n.given(j)
}

// onOffer takes an at-most-once job, once.
func (n *Node) onOffer(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	r := round{id, m.Round}
	if n.taken.get(r) != nil {
		n.sendTaken(p, r) // the answer was lost, or comes late
		return
	}
	if n.passive || n.loading {
		n.refuse(p, m, wire.IsPassive)
		return
	}
	if n.graves.has(&id) {
		n.sendTaken(p, r) // it is done, or deleted: nobody is to have it
		return
	}
	if j := n.store.Lookup(&id); j != nil {
		ad := n.addings[id]
		switch o := n.offers.get(id); {
		case ad != nil:
			// The node that we gave it to gives it back, before it confirms.
			n.achieved(j, ad)
		case o != nil && j.Flags&store.FlagOffered != 0:
			// So the one that we offered it to has had it, and gave it on.
			if q := n.mesh.by[o.to]; q != nil {
				n.send(q, &wire.Message{Kind: wire.Settled, ID: m.ID, Round: o.round})
			}
			n.given(j)
		default:
			n.sendTaken(p, r) // there is but one, and we have it
			return
		}
	}
	j := n.accept(p, m)
	if j == nil {
		return
	}
	now := n.steady()
	n.taken.put(r, taken{from: p.Node, until: now + j.ETime - n.now, next: now + takenAgainMS, wait: takenAgainMS})
	n.sendTaken(p, r)
	n.Stats.Imported++
	n.imported(p, m.Queue)
	j.Flags &^= store.FlagQueuedOnce
	n.requeue(j, false)
}

func (n *Node) sendTaken(p *Peer, r round) {
	n.send(p, &wire.Message{Kind: wire.Taken, ID: r.id, Round: r.number})
}

func (n *Node) onTaken(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	if j := n.offeredJob(&id, p, m.Round); j != nil {
		n.given(j)
	} else if o := n.offers.get(id); o != nil && o.to == p.Node && o.round == m.Round {
		o.accepted = true // out of sight; it must not be offered again
	}
	// Also of a round that isn't known any more: it won't be offered again.
	n.send(p, &wire.Message{Kind: wire.Settled, ID: m.ID, Round: m.Round})
}

func (n *Node) onDeclined(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	j := n.offeredJob(&id, p, m.Round)
	if j == nil {
		return
	}
	n.sated(p, j.Queue)
	n.unoffer(j)
}

func (n *Node) onSettled(m *wire.Message) { n.taken.drop(round{m.ID, m.Round}) }

// Unsent follows a message that the bus didn't accept: the node is certain never to
// get it. Of messages without a job it need not be told.
func (n *Node) Unsent(to wire.NodeID, kind wire.Kind, job *wire.JobID) {
	p := n.peer(to)
	if p == nil {
		return
	}
	p.choked = n.steady() + chokedMS
	id := store.ID(*job)
	j := n.store.Lookup(&id)
	if j == nil {
		return
	}
	switch kind {
	case wire.Offer:
		// A repeated one says nothing of the first.
		if o := n.offers.get(id); o != nil && o.to == p.Node && !o.repeated && j.Flags&store.FlagOffered != 0 {
			n.unoffer(j)
		}
	case wire.YourJob:
		n.unexport(j)
	case wire.ReplJob:
		if ad := n.addings[id]; ad != nil && j.HeldBy(uint64(p.Node)) {
			ad.unsent = append(ad.unsent, p.Node)
		}
	}
}

// unexport queues an at-least-once job again that another node was to have in its
// queue, and hasn't.
func (n *Node) unexport(j *store.Job) {
	if j.State != store.StateActive || j.Place != store.InHeld || j.Retry == 0 || j.Flags&store.FlagDelivered == 0 || held(j) {
		return
	}
	n.Stats.Exported--
	j.Queue.JobsOut--
	j.Queue.JobsIn--
	j.Flags &^= store.FlagDelivered | store.FlagAnnounced
	n.push(j)
	n.log(LogState, j)
	n.serve(j.Queue)
}

// takes says whether a job may be handed over to a node, or with nil to some node.
func (n *Node) takes(p *Peer, j *store.Job) bool {
	if len(j.Body())+len(j.Queue.NameBytes()) > n.mostBody {
		return false
	}
	return j.Retry > 0 || (p == nil || n.mesh.lives[p.ID] != 0) && !(n.store.Ties() > 0 && n.tied(j))
}

// resumeHandovers follows a connection that is back.
func (n *Node) resumeHandovers(p *Peer) {
	for i := len(n.offers.list) - 1; i >= 0; i-- { // an entry that goes is replaced by the last
		e := &n.offers.list[i]
		if e.value.to != p.Node {
			continue
		}
		j := n.stillOffered(&e.key)
		switch {
		case j == nil:
			if e.value.life != n.mesh.lives[p.ID] {
				n.offers.drop(e.key) // it is lost when it is seen again, if ever
			}
		case e.value.life != n.mesh.lives[p.ID]:
			n.lose(j)
		default:
			e.value.repeated = true
			n.sendOffer(j, p, e.value.round)
		}
	}
	for i := range n.taken.list {
		if e := &n.taken.list[i]; e.value.from == p.Node {
			n.sendTaken(p, e.key)
		}
	}
}

// forgetHandovers follows a node that is one of the mesh no more. The rounds in which it
// gave jobs stay known until these expire: should it come back, it may offer them again.
func (n *Node) forgetHandovers(node wire.Node) {
	for i := len(n.offers.list) - 1; i >= 0; i-- {
		if e := n.offers.list[i]; e.value.to == node {
			if j := n.stillOffered(&e.key); j != nil {
				n.lose(j)
			} else {
				n.offers.drop(e.key) // it is lost when it is seen again, if ever
			}
		}
	}
}

// tickHandovers repeats what wasn't answered, a few at a time.
func (n *Node) tickHandovers() {
	now := n.steady()
	for range min(len(n.offers.list), handoverSteps) {
		id, o := n.offers.next()
		j := n.stillOffered(&id)
		if j == nil {
			if len(n.offers.list) == 0 {
				break
			}
			continue
		}
		if p := n.mesh.by[o.to]; now >= o.next && p != nil && p.Connected {
			o.wait = min(2*o.wait, handoverLast)
			o.next, o.repeated = now+o.wait, true
			n.sendOffer(j, p, o.round)
		}
	}
	for range min(len(n.taken.list), handoverSteps) {
		r, t := n.taken.next()
		switch p := n.mesh.by[t.from]; {
		case now >= t.until:
			n.taken.drop(r)
			if len(n.taken.list) == 0 {
				return
			}
		case now >= t.next && p != nil:
			t.wait = min(2*t.wait, handoverLast)
			t.next = now + t.wait
			n.sendTaken(p, r)
		}
	}
}

// settleOffered decides what becomes of a loaded job that was offered; false where it
// isn't such a one. A reload within one life changes nothing.
func (n *Node) settleOffered(j *store.Job) bool {
	if j.Flags&store.FlagOffered == 0 {
		return false
	}
	switch o := n.offers.get(j.ID); {
	case o == nil:
		n.lose(j)
	case o.accepted:
		n.given(j)
	default:
		n.arm(j)
	}
	return true
}

// resettle is settleOffered for the jobs of a queue that was out of sight.
func (n *Node) resettle(q *store.Queue) {
	var ids []store.ID // what becomes of one can take others away
	for j := q.HeldHead; j != nil; j = j.Next {
		if j.Flags&store.FlagOffered != 0 {
			ids = append(ids, j.ID)
		}
	}
	for i := range ids {
		if j := n.store.Lookup(&ids[i]); j != nil {
			n.settleOffered(j)
		}
	}
}
