package engine

import (
	"cmp"
	"encoding/binary"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Concurrency: of some queues at most n jobs are in progress, in the whole mesh.
//
// A queue has n slots, which are those of a lock ([lock.ForJob]). A node claims one before it delivers a job, for as long as the delivery lasts, and
// gives it back when the delivery ends. So no more than n are out, whatever is lost or cut off: a slot whose node is gone is free when its lease is
// over. WORKING makes the lease begin anew, which needs the votes of a majority.
//
// A slot is held by a ticket: an ID that no job has, and that begins as that of the job for which it was claimed. A ticket belongs to one delivery.
// So a slot that an earlier delivery of the same job still has stands against the next one, as any other does. A node where a client says WORKING
// for a job of another node finds the slot by the ticket.
//
// While a job is in progress its TagSlots has the node that delivered it (8 bytes), the slot (16 bits), the token (64 bits) and the ticket. The bytes
// are cleared in place when the delivery ends.

// MaxConcurrency is how many jobs of a queue can be in progress at most, where there is a limit.
const MaxConcurrency = 65_535

const (
	slotLen       = nodeLen + 2 + 8 + len(store.ID{})
	ticketPrefix  = 16                 // bytes of a ticket that are those of the job's ID
	slotSlackMS   = 2 * lock.TimeoutMS // asking may take so long, and a delivery is over a little later than its term
	slotClaims    = 8                  // slots of a queue that are claimed at once
	slotsLook     = 1024               // slots that are looked at in one go
	slotSpreadMS  = 4                  // nodes that hear of a free slot claim it within so long
	slotAgainMost = 6                  // the pause between claims doubles so often
)

// queueSlot is a slot of a queue that this node has.
type queueSlot struct {
	slot   int
	token  uint64
	ticket store.ID
	until  int64 // monotonic: the end of its lease
}

// slotsName is the name of the lock whose slots are those of a queue. It is scratch memory.
func (n *Node) slotsName(queue []byte) []byte {
	n.scratch.lock = store.AppendSlotsName(n.scratch.lock[:0], queue)
	return n.scratch.lock
}

func (n *Node) queueSlotName(queue []byte, slot int) []byte {
	return store.AppendSlotName(nil, slot, n.slotsName(queue))
}

// slotOf is the slot that a job in progress has; ok is false if this node gave it none.
func (n *Node) slotOf(j *store.Job) (s queueSlot, ok bool) {
	if j.Parts == 0 {
		return s, false
	}
	e := j.Extra(store.TagSlots)
	if len(e) != slotLen || wire.Node(binary.BigEndian.Uint64(e)) != n.self.Node() {
		return s, false
	}
	e = e[nodeLen:]
	s.slot, s.token = int(binary.LittleEndian.Uint16(e)), binary.LittleEndian.Uint64(e[2:])
	copy(s.ticket[:], e[10:])
	return s, s.token != 0
}

// lastsAlone says whether nobody else may be given a job before a delivery by this node is over: it has a slot, or its key.
func (n *Node) lastsAlone(j *store.Job) bool {
	if j.Parts == 0 {
		return false
	}
	_, ok := n.slotOf(j)
	return ok || runs(j)
}

// SlotOf is the slot of its queue that a job in progress has; ok is false if this node gave it none.
func (n *Node) SlotOf(j *store.Job) (slot int, ok bool) {
	s, ok := n.slotOf(j)
	return s.slot, ok
}

// setSlot notes the slot of a job that is in progress. The job may move.
func (n *Node) setSlot(j *store.Job, s *queueSlot) *store.Job {
	e := binary.BigEndian.AppendUint64(make([]byte, 0, slotLen), uint64(n.self.Node()))
	e = binary.LittleEndian.AppendUint16(e, uint16(s.slot))
	e = binary.LittleEndian.AppendUint64(e, s.token)
	j, ok := n.setExtra(j, store.TagSlots, append(e, s.ticket[:]...))
	if !ok {
		return j // the slot is free when its lease is over
	}
	n.log(LogState, j)
	return j
}

// freeSlot gives back the slot of a job whose delivery is over for certain.
func (n *Node) freeSlot(j *store.Job) {
	s, ok := n.slotOf(j)
	if !ok || n.passive || n.loading {
		return
	}
	clear(j.Extra(store.TagSlots))
	n.giveBackSlot(j.Queue.NameBytes(), &s)
}

// leaveSlot ends what this node knows of a job's slot. If the term of the delivery isn't over, its client may still work, though the job is in
// another's hands by now: then the slot stays taken until its lease is over. If the term is over, the slot is free, unless the client has said
// WORKING to another node: a lease that was extended goes on to its end.
func (n *Node) leaveSlot(j *store.Job) {
	if j.Parts == 0 { // most jobs: they pay for no more than this
		return
	}
	s, ok := n.slotOf(j)
	if !ok || n.passive || n.loading {
		return
	}
	clear(j.Extra(store.TagSlots))
	if n.inHands(j) {
		return
	}
	name := n.queueSlotName(j.Queue.NameBytes(), s.slot)
	if n.mesh.Alone() {
		n.freeName(name, &s.ticket, s.token)
		return
	}
	n.locks.RollBack(name, lock.Holder{Job: s.ticket}, s.token, n.mesh.Nodes())
}

func (n *Node) giveBackSlot(queue []byte, s *queueSlot) {
	n.freeName(n.queueSlotName(queue, s.slot), &s.ticket, s.token)
}

// slotLease is how long a delivery of a job lasts that begins now, ms.
func (n *Node) slotLease(j *store.Job) int64 {
	term := TermOf(j)
	if n.term > 0 && j.Retry > 0 {
		term = n.term
	}
	if term > 0 {
		return term * 1000
	}
	return max(1, min(j.ETime-n.now, store.MaxLease))
}

// mayBegin says whether a job may be delivered now, as far as the limit of its queue's jobs in progress goes. If not, the queue is served when it may.
func (n *Node) mayBegin(q *store.Queue, j *store.Job) bool {
	r := n.rateOf(q)
	if r == nil || r.set.AtOnce == 0 {
		return true
	}
	r.asked = n.monotonic()
	return n.hasSpare(r, j) || n.claimSlots(q, r, j)
}

// hasSpare says whether this node has a slot that lasts as long as a delivery of the job. It gives others back.
func (n *Node) hasSpare(r *rate, j *store.Job) bool {
	until := n.monotonic() + n.slotLease(j)
	for len(r.spare) > 0 && r.spare[0].until < until {
		n.giveBackSlot([]byte(r.queue), &r.spare[0])
		r.spare = r.spare[1:]
	}
	return len(r.spare) > 0
}

// useSlot gives a job that is being delivered its slot. The job may move.
func (n *Node) useSlot(q *store.Queue, j *store.Job) *store.Job {
	if n.unrated(q) {
		return j
	}
	r := n.rates.queues[string(q.NameBytes())]
	if r == nil || len(r.spare) == 0 {
		return j
	}
	s := r.spare[0]
	r.spare = r.spare[1:]
	return n.setSlot(j, &s)
}

// claimSlots claims slots of a queue, one for each client that waits, and says whether a job may be delivered now. If other nodes have to be asked,
// the queue is served when they have answered.
func (n *Node) claimSlots(q *store.Queue, r *rate, j *store.Job) bool {
	now := n.monotonic()
	switch {
	case !n.asks && !n.mesh.Alone():
		return false
	case r.slotsAgain > now:
		n.setLimited(r, r.why)
		n.lookAt(r, r.slotsAgain)
		return false
	case !r.set.Any && !n.mesh.Alone() && !n.locks.Quorate(n.slotsName([]byte(r.queue))):
		n.setLimited(r, LimitedQuorum)
		n.lookAt(r, now+apartLookMS)
		return false
	}
	queue, lease := r.queue, n.slotLease(j)+slotSlackMS
	for most := max(1, min(int(n.waitersOf(q)), slotClaims)); r.claims < most; {
		ticket := n.ids.Make(n.random.Uint64(), n.random.Uint64(), 0, false)
		copy(ticket[:ticketPrefix], j.ID[:])
		o, _ := n.locks.AcquireFor(lock.ForJob{
			Name: n.slotsName([]byte(queue)), Slots: int(r.set.AtOnce), First: r.firstSlot, Job: ticket, Lease: lease, Usable: slotSlackMS, Outlives: true, Any: r.set.Any,
		}, func(o lock.Result) {
			r.claims--
			n.slotDecided(r, ticket, lease, &o)
			if n.rates.queues[queue] != r { // it was forgotten
				n.rateAnswered(queue)
				return
			}
			r.slotsAnswered++
			n.lookAt(r, n.monotonic())
		})
		if o == nil {
			r.claims++
			n.askFor(queue, 1)
			continue
		}
		o.Began = cmp.Or(o.Began, now)
		if n.slotDecided(r, ticket, lease, o); o.Kind == lock.Granted {
			n.lookAt(r, now+1) // what isn't used is given back
			return true
		}
		break
	}
	if r.claims == 0 {
		n.setLimited(r, r.why)
		n.lookAt(r, min(max(r.slotsAgain, n.slotFreeAt(r)), now+rateLookMS))
	}
	return false
}

// slotDecided follows when the claim of a slot is decided.
func (n *Node) slotDecided(r *rate, ticket store.ID, lease int64, o *lock.Result) {
	now := n.monotonic()
	if o.Kind == lock.Granted {
		s := queueSlot{slot: o.Slot, token: o.Token, ticket: ticket, until: o.Began + lease}
		if n.rates.queues[r.queue] != r {
			n.giveBackSlot([]byte(r.queue), &s)
			return
		}
		r.spare, r.slotTries = append(r.spare, s), 0
		r.why = LimitedSlots
		n.setLimited(r, NotLimited)
		return
	}
	if r.why = LimitedSlots; o.Kind != lock.Conflict && !o.IsSplit() {
		r.why = LimitedQuorum
	}
	r.slotsAgain = now + 1
	if !n.mesh.Alone() {
		span := int64(rateAgainMS) << min(r.slotTries, slotAgainMost)
		r.slotsAgain += n.below(span)
	}
	if o.Kind != lock.Conflict {
		r.slotTries++
	}
}

// slotFreeAt is when the first slot of a queue is free at the latest, as far as this node knows, monotonic ms.
func (n *Node) slotFreeAt(r *rate) (at int64) {
	at = n.monotonic() + rateLookMS
	for slot := range min(int(r.set.AtOnce), slotsLook) {
		l := n.locks.Live(n.queueSlotName([]byte(r.queue), slot))
		if l == nil {
			return n.monotonic()
		}
		at = min(at, l.Until)
	}
	return at
}

// slotFreed serves a queue one of whose slots has become free, by the slot's name.
func (n *Node) slotFreed(name []byte) {
	if len(n.rates.queues) == 0 || !store.IsSlotsName(name) {
		return
	}
	slot, base := store.SlotName(name)
	_, scope, _, hashed, _ := store.LockName(base)
	r := n.rates.queues[string(scope)]
	if hashed { // a very long name
		for _, r = range n.rates.due {
			if string(n.slotsName([]byte(r.queue))) == string(base) {
				break
			}
		}
	}
	if r == nil {
		return
	}
	r.firstSlot, r.slotsAgain = slot, 0
	if r.limited == NotLimited {
		return
	}
	at := n.monotonic() + 1
	if !n.mesh.Alone() {
		at += n.below(slotSpreadMS) // all nodes hear of it
	}
	n.lookAt(r, min(at, r.look))
}

// giveBackSpares gives slots back that no job of the queue needs now. They stay while it is being asked whether a job can have its key.
func (n *Node) giveBackSpares(r *rate) {
	if len(r.spare) == 0 {
		return
	}
	if n.runsAsked(r.queue) > 0 {
		n.lookAt(r, n.monotonic()+rateAgainMS)
		return
	}
	n.dropSpares(r)
}

func (n *Node) dropSpares(r *rate) {
	spare := r.spare
	r.spare = nil
	for i := range spare {
		n.giveBackSlot([]byte(r.queue), &spare[i])
	}
}

// extendSlot makes the lease of a job's slot begin anew (WORKING). If the job is in progress at another node, it finds the slot by the ticket, or
// takes another one. done is called when the outcome is known, at once or later: with ErrLockLost if the slot is over and all are others', and with
// notExtended if there is no majority. True: it is called later.
func (n *Node) extendSlot(j *store.Job, done func(error)) (pending bool) {
	s, own := n.slotOf(j)
	limited := false
	var set Limits
	if !n.unrated(j.Queue) {
		if r := n.rateOf(j.Queue); r != nil && r.set.AtOnce > 0 {
			limited, set = true, r.set
		}
	}
	switch {
	case j.Retry == 0 || !own && !limited:
		done(nil)
		return false
	case !own && j.Place == store.InWorking:
		done(nil) // it is in progress since before there was a limit
		return false
	case !own:
		s, own = n.findTicket(j, &set)
	}
	want := lock.ForJob{Job: s.ticket, Lease: TermOf(j)*1000 + slotSlackMS, Outlives: true, Any: set.Any}
	if own {
		want.Name = n.queueSlotName(j.Queue.NameBytes(), s.slot)
	} else {
		want.Name, want.Slots = n.slotsName(j.Queue.NameBytes()), int(set.AtOnce)
		want.Job = n.ids.Make(n.random.Uint64(), n.random.Uint64(), 0, false)
		copy(want.Job[:ticketPrefix], j.ID[:])
	}
	id, queue := j.ID, string(j.Queue.NameBytes())
	decided := func(o *lock.Result) {
		j := n.store.Lookup(&id)
		gone := j == nil || j.State == store.StateAcked
		switch {
		case o.Kind == lock.Granted:
			got := queueSlot{slot: s.slot, token: o.Token, ticket: want.Job}
			if !own {
				got.slot = o.Slot
			}
			if gone || string(j.Queue.NameBytes()) != queue || j.State == store.StateQueued && !n.mesh.Alone() {
				n.giveBackSlot([]byte(queue), &got)
			} else {
				n.setSlot(j, &got)
			}
			done(nil)
		case o.Kind == lock.Conflict:
			if now, mine := (queueSlot{}), false; !gone {
				if now, mine = n.slotOf(j); mine && now.ticket == want.Job {
					clear(j.Extra(store.TagSlots))
					n.log(LogState, j)
				}
			}
			done(ErrLockLost)
		case o.Kind == lock.Aborted:
			done(ErrReplica)
		default:
			done(notExtended{o.Because(ErrNotExtended)})
		}
	}
	now, _ := n.locks.AcquireFor(want, func(o lock.Result) { decided(&o) })
	if now != nil {
		decided(now)
		return false
	}
	return true
}

// findTicket finds the slot of a job that is in progress at another node, in the votes of this one.
func (n *Node) findTicket(j *store.Job, set *Limits) (s queueSlot, ok bool) {
	for slot := range min(int(set.AtOnce), slotsLook) {
		l := n.locks.Live(n.queueSlotName(j.Queue.NameBytes(), slot))
		if l != nil && string(l.Job[:ticketPrefix]) == string(j.ID[:ticketPrefix]) {
			return queueSlot{slot: slot, token: l.Token, ticket: l.Job}, true
		}
	}
	return s, false
}
