package engine

import (
	"cmp"
	"encoding/binary"
	"slices"

	"jobmesh/module/lock"
	"jobmesh/module/store"
)

// Concurrency: of some queues at most n jobs are in progress, in the whole mesh.
//
// A queue has n slots, which are those of a lock ([lock.ForJob]). A node claims one before it delivers a job, for as long as the delivery lasts, and
// gives it back when the delivery ends. So no more than n are out, whatever is lost or cut off: a slot whose node is gone is free when its lease is
// over. WORKING makes the lease begin anew, which needs the votes of a majority.
//
// A slot is held by a ticket: an ID that no job has, and that begins as that of the job for which it was claimed. No other job gets the slot. A ticket belongs to one delivery.
// So a slot that an earlier delivery of the same job still has stands against the next one, as any other does. A node where a client says WORKING
// for a job of another node finds the slot by the ticket. The node that has a job with a ticket may extend the slot, and give it back, whatever the
// node's ID was when the slot was claimed: a replica that is promoted has another one.
//
// While a job is in progress its TagSlots has the node that wrote it (8 bytes), the slot (16 bits), the token (64 bits) and the ticket. With token 0
// the job is in progress without a slot, which it has lost or couldn't get: each WORKING asks for one. The bytes are cleared in place when the
// delivery ends. So a job in progress whose bytes are all 0, or that has none, was delivered when there was no limit. TagSlots isn't sent to other
// nodes.

// MaxConcurrency is how many jobs of a queue can be in progress at most, where there is a limit.
const MaxConcurrency = 65_535

const (
	ticketPrefix  = 16                 // bytes of a ticket that are those of the job's ID
	slotSlackMS   = 2 * lock.TimeoutMS // asking may take so long, and a delivery is over a little later than its term
	slotClaims    = 8                  // slots of a queue that are claimed at once
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

// hashedSlots is the name of a queue's slots, if it has only a hash of the queue's name, which is very long; "": it has the name, or no slots are
// limited.
func (r *rate) hashedSlots() string {
	if r.set.AtOnce == 0 {
		return ""
	}
	name := store.AppendSlotsName(nil, []byte(r.queue)) // scratch.lock may be in use
	if _, _, _, hashed, _ := store.LockName(name); !hashed {
		return ""
	}
	return string(name)
}

func (n *Node) queueSlotName(queue []byte, slot int) []byte {
	return store.AppendSlotName(nil, slot, n.slotsName(queue))
}

// slotOf is the slot that a job in progress has; ok is false if it has none.
func (n *Node) slotOf(j *store.Job) (s queueSlot, ok bool) {
	if j.Parts == 0 {
		return s, false
	}
	e := j.Extra(store.TagSlots)
	if len(e) != store.SlotsLen {
		return s, false
	}
	e = e[nodeLen:]
	s.slot, s.token = int(binary.LittleEndian.Uint16(e)), binary.LittleEndian.Uint64(e[2:])
	copy(s.ticket[:], e[10:])
	return s, s.token != 0 && s.token <= store.MaxToken && s.ticket != store.ID{}
}

// lacksSlot says whether a job is in progress without a slot, and has to get one.
func (n *Node) lacksSlot(j *store.Job) bool {
	if j.Parts == 0 {
		return false
	}
	e := j.Extra(store.TagSlots)
	_, ok := n.slotOf(j)
	return len(e) == store.SlotsLen && binary.BigEndian.Uint64(e) != 0 && !ok
}

// clearSlots ends what a job says of slots, in place.
func clearSlots(j *store.Job) { clear(j.Extra(store.TagSlots)) }

// lastsAlone says whether nobody else may be given a job before a delivery by this node is over: it has a slot, or its key.
func (n *Node) lastsAlone(j *store.Job) bool {
	if j.Parts == 0 {
		return false
	}
	_, ok := n.slotOf(j)
	return ok || runs(j)
}

// SlotOf is the slot of its queue that a job in progress has; ok is false if it has none, as far as this node knows.
func (n *Node) SlotOf(j *store.Job) (slot int, ok bool) {
	s, ok := n.slotOf(j)
	return s.slot, ok
}

// setSlot notes the slot of a job that is in progress, or with a slot that has no token, that the job has to get one. The job may move.
func (n *Node) setSlot(j *store.Job, s *queueSlot) *store.Job {
	e := binary.BigEndian.AppendUint64(make([]byte, 0, store.SlotsLen), uint64(n.self.Node()))
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
	if j.Parts == 0 || n.passive || n.loading {
		return
	}
	s, ok := n.slotOf(j)
	if clearSlots(j); ok {
		n.giveBackSlot(j.Queue.NameBytes(), &s)
	}
}

// leaveSlot ends what this node knows of a job's slot. If the term of the delivery isn't over, its client may still work, though the job is in
// another's hands by now: then the slot stays taken until its lease is over. If the term is over, the slot is free, unless the client has said
// WORKING to another node: a lease that was extended goes on to its end.
func (n *Node) leaveSlot(j *store.Job) {
	if j.Parts == 0 || n.passive || n.loading { // most jobs: they pay for no more than this
		return
	}
	s, ok := n.slotOf(j)
	if clearSlots(j); !ok || n.inHands(j) {
		return
	}
	name := n.queueSlotName(j.Queue.NameBytes(), s.slot)
	if n.mesh.Alone() {
		n.freeName(name, &s.ticket, s.token)
		return
	}
	n.rollBackSlot(name, &s)
}

// rollBackSlot takes back the votes for a slot, except those that were extended since.
func (n *Node) rollBackSlot(name []byte, s *queueSlot) {
	n.locks.RollBack(name, lock.Holder{Job: s.ticket}, s.token, n.mesh.Nodes())
}

// dropUnusedSlot gives back the slot that a WORKING has got for a job that is in its queue, or rests, after all.
func (n *Node) dropUnusedSlot(id *store.ID) {
	j := n.store.Lookup(id)
	if j == nil || n.worksOn(j) && j.State != store.StateQueued {
		return
	}
	if _, ok := n.slotOf(j); ok {
		n.leaveSlot(j)
		n.log(LogState, j)
		n.log(LogState, j)
	}
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

// hasSpare says whether this node has a slot for a job, which lasts as long as its delivery. It gives back one that doesn't. A slot that was claimed for
// another job doesn't count: a node where a client says WORKING for that one would take it for that job's.
func (n *Node) hasSpare(r *rate, j *store.Job) bool {
	i := r.spareOf(&j.ID)
	if i < 0 || r.spare[i].until >= n.monotonic()+n.slotLease(j) {
		return i >= 0
	}
	s := r.spare[i]
	r.spare = slices.Delete(r.spare, i, i+1)
	n.giveBackSlot([]byte(r.queue), &s)
	return false
}

// spareOf is which of a queue's spare slots was claimed for a job; -1: none.
func (r *rate) spareOf(id *store.ID) int {
	return slices.IndexFunc(r.spare, func(s queueSlot) bool { return isTicketOf(&s.ticket, id) })
}

// useSlot gives a job that is being delivered its slot. The job may move.
func (n *Node) useSlot(q *store.Queue, j *store.Job) *store.Job {
	if n.unrated(q) {
		return j
	}
	n.leaveSlot(j) // a WORKING may have got one, and not have taken the job out of the queue
	r := n.rates.queues[string(q.NameBytes())]
	if r == nil {
		return j
	}
	i := r.spareOf(&j.ID)
	switch {
	case i >= 0:
		s := r.spare[i]
		r.spare = slices.Delete(r.spare, i, i+1)
		return n.setSlot(j, &s)
	case r.set.AtOnce == 0:
		return j
	case checked:
		panic("engine: a job of a queue with CONCURRENCY is delivered without a slot")
	}
	return n.setSlot(j, &queueSlot{}) // mayBegin has let it pass: WORKING asks for a slot
}

// newTicket makes a ticket for a job. It says whether the job is an at-most-once job: see [owners.HasSlot].
func (n *Node) newTicket(j *store.Job) store.ID {
	t := n.ids.Make(n.random.Uint64(), n.random.Uint64(), 0, j.Retry > 0)
	copy(t[:ticketPrefix], j.ID[:])
	return t
}

// isTicketOf says whether a ticket was made for a job.
func isTicketOf(ticket, id *store.ID) bool {
	return string(ticket[:ticketPrefix]) == string(id[:ticketPrefix])
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
	queue := r.queue
	for _, c := range n.slotsToClaim(q, r, j) {
		first := r.firstSlot
		o, _ := n.locks.AcquireFor(lock.ForJob{
			Name: n.slotsName([]byte(queue)), Slots: int(r.set.AtOnce), First: first, Job: c.ticket, Lease: c.lease, Usable: slotSlackMS, Outlives: true, Any: r.set.Any,
		}, func(o lock.Result) {
			r.claims = slices.DeleteFunc(r.claims, func(t store.ID) bool { return t == c.ticket })
			n.slotDecided(r, &c, first, &o)
			if n.rates.queues[queue] != r { // it was forgotten
				n.rateAnswered(queue)
				return
			}
			r.slotsAnswered++
			n.lookAt(r, n.monotonic())
		})
		if o == nil {
			r.claims = append(r.claims, c.ticket)
			n.askForLimit(queue, 1)
			continue
		}
		o.Began = cmp.Or(o.Began, now)
		if n.slotDecided(r, &c, first, o); o.Kind == lock.Granted {
			n.lookAt(r, now+1)      // what isn't used is given back
			return n.hasSpare(r, j) // else it is another job's: that of j is still being claimed
		}
		break
	}
	if len(r.claims) == 0 {
		n.setLimited(r, r.why)
		free := now // some slots are still to be looked at
		if r.slotsTaken == 0 || r.slotsTaken >= int(r.set.AtOnce) {
			free = n.slotFreeAt(r)
		}
		r.slotsAgain = min(max(r.slotsAgain, free), now+rateLookMS) // a client that polls doesn't look at all slots each time
		n.lookAt(r, r.slotsAgain)
	}
	return false
}

// slotClaim is the claim of a slot for a job.
type slotClaim struct {
	ticket store.ID
	lease  int64 // ms
}

// slotsToClaim are the claims that a queue lacks, one for each client that waits: for the first jobs of the queue, from j on, for which none is
// under way.
func (n *Node) slotsToClaim(q *store.Queue, r *rate, j *store.Job) (claims []slotClaim) {
	most := max(1, min(int(n.waitersOf(q)), slotClaims))
	for k := 0; j != nil && k < most && len(r.claims)+len(claims) < most; k, j = k+1, j.Next {
		if r.spareOf(&j.ID) < 0 && !slices.ContainsFunc(r.claims, func(t store.ID) bool { return isTicketOf(&t, &j.ID) }) {
			claims = append(claims, slotClaim{n.newTicket(j), n.slotLease(j) + slotSlackMS})
		}
	}
	return claims
}

// slotDecided follows when the claim of a slot, from slot first on, is decided.
func (n *Node) slotDecided(r *rate, c *slotClaim, first int, o *lock.Result) {
	now := n.monotonic()
	most := int(r.set.AtOnce)
	if o.Kind == lock.Granted {
		s := queueSlot{slot: o.Slot, token: o.Token, ticket: c.ticket, until: o.Began + c.lease}
		if n.rates.queues[r.queue] != r {
			n.giveBackSlot([]byte(r.queue), &s)
			return
		}
		r.spare, r.slotTries, r.slotsTaken = append(r.spare, s), 0, 0
		r.firstSlot = (o.Slot + 1) % most
		r.why = LimitedSlots
		n.setLimited(r, NotLimited)
		return
	}
	if o.Kind == lock.Conflict && most > lock.SlotLook && first == r.firstSlot {
		// The next claim looks at the slots behind these, until all were seen.
		if r.slotsTaken >= most {
			r.slotsTaken = 0
		}
		r.firstSlot, r.slotsTaken = (first+lock.SlotLook)%most, r.slotsTaken+lock.SlotLook
	}
	if r.why = LimitedSlots; o.Kind != lock.Conflict && !o.IsSplit() {
		r.why = LimitedQuorum
	}
	r.slotsAgain = now + 1
	if !n.mesh.Alone() {
		span := int64(rateAgainMS) << min(r.slotTries, slotAgainMost)
		r.slotsAgain += n.below(span)
	}
	switch {
	case o.Kind != lock.Conflict:
		r.slotTries++
	case most == 1: // all nodes were asked, though it may have looked taken here; if it does, slotFreed tells when it isn't any more
		r.slotsAgain = max(r.slotsAgain, min(n.slotFreeAt(r), now+rateLookMS))
	}
}

// slotFreeAt is when the first slot of a queue is free at the latest, as far as this node knows, monotonic ms.
func (n *Node) slotFreeAt(r *rate) (at int64) {
	at = n.monotonic() + rateLookMS
	for _, l := range n.locks.Slots(n.slotsName([]byte(r.queue)), int(r.set.AtOnce), r.firstSlot) {
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
		r = n.rates.hashed[string(base)]
	}
	if r == nil {
		return
	}
	r.firstSlot, r.slotsAgain, r.slotsTaken = slot, 0, 0
	if r.limited == NotLimited {
		return
	}
	at := n.monotonic() + 1
	if !n.mesh.Alone() {
		at += n.below(slotSpreadMS) // all nodes hear of it
	}
	n.lookAt(r, min(at, r.look))
}

// giveBackSpares gives slots back that no job of the queue needs now. They stay while it is being asked whether a job can have its key, or the queue
// a block of its rate.
func (n *Node) giveBackSpares(r *rate) {
	if len(r.spare) == 0 || r.asking {
		return
	}
	if n.uniqueMesh.asked[r.queue].runs() > 0 {
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

// dropSpareOf gives back the slot of a job that isn't delivered, unless it is being asked whether the job can have its key: another job may need it.
func (n *Node) dropSpareOf(q *store.Queue, id *store.ID) {
	r := n.rates.queues[string(q.NameBytes())]
	if r == nil || n.locks.Asks(id) {
		return
	}
	if i := r.spareOf(id); i >= 0 {
		s := r.spare[i]
		r.spare = slices.Delete(r.spare, i, i+1)
		n.giveBackSlot([]byte(r.queue), &s)
	}
}

// endSpares takes back the slots that no job has yet, when the node becomes a replica or ends.
func (n *Node) endSpares() {
	for _, r := range n.rates.queues {
		for i := range r.spare {
			n.rollBackSlot(n.queueSlotName([]byte(r.queue), r.spare[i].slot), &r.spare[i])
		}
		r.spare = nil
	}
}

// workingSlot is a WORKING that asks for the slot of its job.
type workingSlot struct {
	id    store.ID
	queue string
	had   store.ID // the ticket that the job had when it was asked for; 0: none
	any   bool     // any slot of the queue is asked for
	done  func(error)
}

// extendSlot makes the lease of a job's slot begin anew (WORKING). If the job is in progress at another node, it finds the slot by the ticket. A job
// that has no slot any more takes any that is free: it has come back into its queue or got another one, or the slot has lapsed. done is called when
// the outcome is known, at once or later: with ErrLockLost if the slot is over and all are others', and with notExtended if there is no majority.
// True: it is called later.
func (n *Node) extendSlot(j *store.Job, done func(error)) (pending bool) {
	set, limited := n.slotLimit(j.Queue)
	s, own := n.slotOf(j)
	switch {
	case j.Retry == 0 || !own && !limited:
		done(nil)
		return false
	case !own && j.Place == store.InWorking && !n.lacksSlot(j):
		done(nil) // it is in progress since before there was a limit
		return false
	}
	w := &workingSlot{id: j.ID, queue: string(j.Queue.NameBytes()), done: done}
	if own {
		w.had = s.ticket
	} else if s, own = n.findTicket(j, &set); !own {
		return n.takeSlot(j, w, 0)
	}
	want := lock.ForJob{Name: n.queueSlotName(j.Queue.NameBytes(), s.slot), Job: s.ticket}
	return n.askSlot(j, w, &want, s.slot)
}

// slotLimit is the limit of jobs in progress of a queue; limited is false if there is none.
func (n *Node) slotLimit(q *store.Queue) (set Limits, limited bool) {
	if n.unrated(q) {
		return set, false
	}
	if r := n.rateOf(q); r != nil {
		set = r.set
	}
	return set, set.AtOnce > 0
}

// takeSlot asks for any slot, from slot first on.
func (n *Node) takeSlot(j *store.Job, w *workingSlot, first int) (pending bool) {
	set, limited := n.slotLimit(j.Queue)
	if !limited {
		if _, has := n.slotOf(j); has {
			clearSlots(j)
			n.log(LogState, j)
		}
		w.done(nil)
		return false
	}
	w.any = true
	want := lock.ForJob{Name: n.slotsName(j.Queue.NameBytes()), Slots: int(set.AtOnce), First: first % int(set.AtOnce), Job: n.newTicket(j)}
	return n.askSlot(j, w, &want, 0)
}

// askSlot asks for a slot.
func (n *Node) askSlot(j *store.Job, w *workingSlot, want *lock.ForJob, slot int) (pending bool) {
	set, _ := n.slotLimit(j.Queue)
	want.Lease, want.Outlives, want.Any = TermOf(j)*1000+slotSlackMS, true, set.Any
	ticket := want.Job
	got := func(o *lock.Result) bool {
		s := queueSlot{slot: slot, token: o.Token, ticket: ticket}
		if w.any {
			s.slot = o.Slot
		}
		return n.slotAsked(w, &s, o)
	}
	now, _ := n.locks.AcquireFor(*want, func(o lock.Result) { got(&o) })
	return now == nil || got(now)
}

// slotAsked follows when it is decided whether a WORKING has its slot. True: another one is asked for.
func (n *Node) slotAsked(w *workingSlot, s *queueSlot, o *lock.Result) (pending bool) {
	j := n.store.Lookup(&w.id)
	gone := j == nil || j.State == store.StateAcked
	var now queueSlot
	has := false
	if !gone {
		now, has = n.slotOf(j)
	}
	// Meanwhile another WORKING may have got a slot for it, or it was delivered anew: then that slot is the one that counts.
	other := !gone && (string(j.Queue.NameBytes()) != w.queue || has && now.ticket != w.had && now.ticket != s.ticket)
	switch {
	case o.Kind != lock.Granted:
	case j != nil && gone, j == nil && !n.livesOn(&w.id):
		n.giveBackSlot([]byte(w.queue), s)
	case gone || other: // it may be the one by which a client of another node works
		n.rollBackSlot(n.queueSlotName([]byte(w.queue), s.slot), s)
	}
	switch {
	case o.Kind == lock.Aborted:
		w.done(ErrReplica)
	case gone:
		w.done(nil)
	case other:
		return n.extendSlot(j, w.done)
	case o.Kind == lock.Granted:
		n.setSlot(j, s)
		w.done(nil)
	case o.Kind == lock.Conflict && !w.any:
		return n.takeSlot(j, w, s.slot)
	case o.Kind == lock.Conflict:
		if has || j.Place == store.InWorking {
			n.losesSlot(j)
		}
		w.done(ErrLockLost)
	default:
		if !has {
			n.losesSlot(j) // it is in progress all the same
		}
		w.done(notExtended{o.Because(ErrNotExtended)})
	}
	return false
}

// losesSlot notes that a job has no slot, and has to get one while somebody works on it.
func (n *Node) losesSlot(j *store.Job) {
	if j.State == store.StateActive {
		n.setSlot(j, &queueSlot{})
	}
}

// findTicket finds the slot of a job that is in progress at another node, in the votes of this one.
func (n *Node) findTicket(j *store.Job, set *Limits) (s queueSlot, ok bool) {
	for slot, l := range n.locks.Slots(n.slotsName(j.Queue.NameBytes()), int(set.AtOnce), 0) {
		if l != nil && isTicketOf(&l.Job, &j.ID) {
			return queueSlot{slot: slot, token: l.Token, ticket: l.Job}, true
		}
	}
	return s, false
}

// HasSlot says whether a slot may be that of a job of this node, or is about to be. An at-most-once job is at one node alone. So if no node has a job
// with its ticket, nobody has the slot: a node has claimed it, and ended before it delivered the job. The lease of another job's slot ends soon, and
// its client may work on though the node has left the slot.
func (o *owners) HasSlot(name []byte, ticket store.ID) bool {
	n := o.node()
	if !ticket.AtMostOnce() || n.locks.Asks(&ticket) || len(n.dormant) > 0 {
		return true
	}
	_, base := store.SlotName(name)
	_, queue, _, hashed, _ := store.LockName(base)
	if hashed { // a very long name
		return true
	}
	if r := n.rates.queues[string(queue)]; r != nil && slices.ContainsFunc(r.spare, func(s queueSlot) bool { return s.ticket == ticket }) {
		return true
	}
	q := n.store.Queue(queue)
	if q == nil {
		return false
	}
	look := lock.SlotLook
	for j := q.Working.Head; j != nil && look > 0; j, look = j.Next, look-1 {
		if s, ok := n.slotOf(j); ok && s.ticket == ticket {
			return true
		}
	}
	return look == 0
}
