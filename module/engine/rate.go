package engine

import (
	"container/heap"
	"encoding/binary"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/table"
)

// Rates: of some queues at most n jobs are delivered in any s seconds, in the whole mesh.
//
// The allowance of s seconds is cut into blocks, at most rateBlocks of them. A node that wants to deliver claims a block: it takes a lock
// of the kind that UNIQUE window has, for s seconds and a span. Within that span from when it asked it may deliver as many jobs as the block
// has; what it doesn't deliver lapses. So between two deliveries of the same block by different claims at least s seconds pass, and no s
// seconds have more deliveries than all blocks together. Nothing has to be remembered of deliveries, or told: restarts, partitions and
// the loss of nodes are those of locks.
//
// The span is a sixteenth of s, and so a queue that is always full reaches 94 % of its rate. Where the votes take so long that a block
// lapses before a job is delivered, the next span is twice as long.

// Rate says how often jobs of a queue are delivered at most.
type Rate struct {
	Count   int64 // 1 to MaxRate; 0: there is no limit
	Seconds int64 // 1 to MaxRateSeconds
	Any     bool  // each side of a partition may deliver so many (QUORUM any)
}

// Limits are what is said of the jobs of a queue: how often they are delivered, and how many are in progress.
type Limits struct {
	Rate
	AtOnce int64 // how many are in progress at most, 1 to MaxConcurrency (concurrency.go); 0: there is no limit
}

// Limits of a rate.
const (
	MaxRate        = 1_000_000
	MaxRateSeconds = 86_400
)

// Limited says why no job of a queue can be delivered now.
type Limited uint8

// The reasons.
const (
	NotLimited    Limited = iota
	LimitedRate           // all that the rate allows has been delivered
	LimitedSlots          // as many as may be are in progress
	LimitedQuorum         // the votes of more than half of the nodes can't be had
)

// String is the reason as QSTAT has it.
func (l Limited) String() string {
	return [...]string{NotLimited: "no", LimitedRate: "rate", LimitedSlots: "slots", LimitedQuorum: "quorum"}[l]
}

const (
	rateBlocks   = 16
	rateShare    = 16     // a span is this part of the rate's seconds at least
	rateAgainMS  = 20     // between attempts to claim a block, if no vote says when one is free; up to twice as long
	rateLookMS   = 1_000  // between looks at a queue that is limited: somebody may have cleared a block's lock
	rateIdleMS   = 60_000 // a queue that wasn't asked for so long is forgotten, once its blocks are free
	rateSweep    = 100    // queues that one tick looks at for that
	rateSweepMS  = 10_000
	rateChecks   = 300        // queues that one tick compares with changed settings
	rateKeyStart = "\x00rate" // of the keys of blocks, in the scope of their queue
)

// rates are the queues with limits of which somebody wants jobs.
type rates struct {
	queues     map[string]*rate
	hashed     map[string]*rate      // those with limited slots and a very long name, by the name of their slots
	due        table.Schedule[*rate] // those that are limited
	all        table.Chain[rate]
	unchecked  int    // how many of all, from the head on, are still to be compared with the settings
	limited    int    // how many of them are limited
	generation uint32 // of the settings that were seen last
	sweep      int64  // monotonic: when idle ones are looked for next
}

// rate is what this node knows of a queue's limits, and what it may deliver. Times are monotonic ms.
type rate struct {
	queue      string
	set        Limits
	generation uint32 // of the settings that say set
	left       int64  // how many jobs this node may deliver until a time
	until      int64
	span       int64             // of the next claim
	used       bool              // the last block was used
	asking     bool              // a block is being claimed
	answered   bool              // the claim is decided, and the queue is still to be served
	again      [rateBlocks]int64 // a block that couldn't be had isn't asked for before its time
	limited    Limited
	why        Limited // why no block could be had last
	asked      int64   // when a job was wanted last
	look       int64   // when the queue is served again
	place      int     // in rates.due, -1 outside
	inAll      table.Link[rate]

	// These are about the slots of a queue with a limit of jobs in progress.
	spare         []queueSlot // this node has them, and no job does yet
	claims        []store.ID  // the tickets of those that are being claimed
	slotsAnswered int         // claims that are decided, and for which the queue is still to be served
	slotsAgain    int64       // none is claimed before
	slotTries     int         // claims in a row that found no majority
	firstSlot     int         // where the next claim begins
	slotsTaken    int         // slots before it that were looked at in a row, and are taken; 0 if all can be looked at in one go
}

func (r *rate) Sooner(than *rate) bool { return r.look < than.look }
func (r *rate) Position() *int         { return &r.place }

func inAllRates(r *rate) *table.Link[rate] { return &r.inAll }

func (r *rate) blocks() int64 { return min(r.set.Count, rateBlocks) }

// share is how many jobs a block has. All blocks together have the rate's count.
func (r *rate) share(block int64) int64 {
	n, b := r.set.Count, r.blocks()
	if block < n%b {
		return n/b + 1
	}
	return n / b
}

func (r *rate) least() int64 { return max(1, r.set.Seconds*1000/rateShare) }

// may says whether this node may deliver a job now.
func (r *rate) may(now int64) bool { return r.left > 0 && now < r.until }

// unrated says whether a queue is known to have no rate, before anything is looked up.
func (n *Node) unrated(q *store.Queue) bool {
	return !n.policies.Rated || q.Unrated == n.policies.Generation
}

// mayDeliver says whether a job of a queue may be delivered now, as far as its rate goes. If not, the queue is served when it may.
func (n *Node) mayDeliver(q *store.Queue) bool {
	r, now := n.rateOf(q), n.monotonic()
	return r == nil || r.set.Count == 0 || r.may(now) || n.claimBlock(r, now)
}

// mayHaveBlock says whether mayDeliver is worth a try: nothing of the rate may be claimed for a job that can't be delivered for another reason, because
// a block that isn't used lapses. If all blocks are taken, the queue is served when one is free. It asks nobody.
func (n *Node) mayHaveBlock(q *store.Queue) bool {
	r := n.rateOf(q)
	if r == nil || r.set.Count == 0 {
		return true
	}
	now := n.monotonic()
	r.asked = now
	return r.may(now) || n.mayClaimBlock(r) && n.hasFreeBlock(r, now)
}

// allowed says whether a job of a queue may be delivered now, as far as the queue's limits go. It asks nobody.
func (n *Node) allowed(q *store.Queue, j *store.Job) bool {
	if n.unrated(q) {
		return true
	}
	r := n.rateOf(q)
	return r == nil || (r.set.Count == 0 || r.may(n.monotonic())) && (r.set.AtOnce == 0 || n.hasSpare(r, j))
}

// rateOf finds what is known of a queue's rate; nil: it has none.
func (n *Node) rateOf(q *store.Queue) *rate {
	name := q.NameBytes()
	r := n.rates.queues[string(name)]
	if r != nil && r.generation == n.policies.Generation {
		return r
	}
	set := n.policies.LimitsOf(name)
	if r != nil && r.set == set {
		r.generation = n.policies.Generation
		return r
	}
	if r != nil {
		n.forgetRate(r) // the blocks of another rate have other names
		n.serveLater(q) // clients may have waited for the former limits, and whoever asks now isn't one of them
	}
	if set.Count == 0 && set.AtOnce == 0 {
		q.Unrated = n.policies.Generation
		return nil
	}
	r = &rate{queue: string(name), set: set, generation: n.policies.Generation, used: true, why: LimitedRate, place: -1}
	if r.span = r.least(); set.Count == 0 {
		r.why = LimitedSlots
	}
	if set.AtOnce > 0 && !n.mesh.Alone() {
		r.firstSlot = int(n.below(set.AtOnce))
	}
	if n.rates.queues == nil {
		n.rates.queues = map[string]*rate{}
	}
	n.rates.queues[r.queue] = r
	n.rates.all.Add(r, inAllRates)
	if base := r.hashedSlots(); base != "" {
		if n.rates.hashed == nil {
			n.rates.hashed = map[string]*rate{}
		}
		n.rates.hashed[base] = r
	}
	return r
}

func (n *Node) forgetRate(r *rate) {
	n.setLimited(r, NotLimited)
	if r.place >= 0 {
		heap.Remove(&n.rates.due, r.place)
	}
	delete(n.rates.queues, r.queue)
	n.rates.all.Remove(r, inAllRates)
	if base := r.hashedSlots(); base != "" {
		delete(n.rates.hashed, base)
	}
	n.dropSpares(r)
	if r.answered {
		n.rateAnswered(r.queue)
	}
	for ; r.slotsAnswered > 0; r.slotsAnswered-- {
		n.rateAnswered(r.queue)
	}
}

// setLimited notes why a queue is limited.
func (n *Node) setLimited(r *rate, why Limited) {
	switch {
	case why != NotLimited && r.limited == NotLimited:
		n.rates.limited++
		if why == LimitedSlots || why == LimitedQuorum && r.set.Count == 0 {
			n.Stats.SlotsWaited++
		} else {
			n.Stats.RateWaited++
		}
		n.tellsLimit(r.queue, EventLimited, why)
	case why == NotLimited && r.limited != NotLimited:
		n.rates.limited--
		n.tellsLimit(r.queue, EventUnlimited, why)
	}
	r.limited = why
}

// lookAt serves a queue at a time, monotonic ms.
func (n *Node) lookAt(r *rate, at int64) {
	if r.look = at; r.place >= 0 {
		heap.Fix(&n.rates.due, r.place)
	} else {
		heap.Push(&n.rates.due, r)
	}
	n.wake = min(n.wake, n.now+max(at-n.monotonic(), 1))
}

// rateAnswered tells clients that wait for an answer alone (NOHANG) that it is in, after the queue was served.
func (n *Node) rateAnswered(queue string) {
	n.askForLimit(queue, -1)
	n.answered(n.waits[queue])
}

// mayClaimBlock says whether a block may be claimed: no claim is under way, and the answers can be awaited.
func (n *Node) mayClaimBlock(r *rate) bool {
	return !r.asking && !r.answered && (n.asks || n.mesh.Alone())
}

// hasFreeBlock says whether a block of a queue's rate may be free, as far as this node knows. If none is, the queue is served when one may be.
func (n *Node) hasFreeBlock(r *rate, now int64) bool {
	look := now + rateLookMS
	for block := range r.blocks() {
		free := n.blockFreeAt(r, block)
		if free <= now {
			return true
		}
		look = min(look, free)
	}
	why := r.why
	if why == LimitedSlots { // which was why before
		why = LimitedRate
	}
	n.setLimited(r, why)
	n.lookAt(r, look)
	return false
}

// blockFreeAt is when a block may be claimed, as far as this node knows, monotonic ms.
func (n *Node) blockFreeAt(r *rate, block int64) int64 {
	return max(r.again[block], n.takenUntil(n.blockName(r, block)))
}

// claimBlock claims a block of a queue's rate, and says whether a job may be delivered now. If other nodes have to be asked, the queue
// is served when they have answered.
func (n *Node) claimBlock(r *rate, now int64) bool {
	if !n.mayClaimBlock(r) {
		return false
	}
	if r.used {
		r.span = r.least()
	} else {
		r.span = min(2*r.span, r.set.Seconds*1000)
	}
	lease := r.set.Seconds*1000 + r.span
	first := n.below(r.blocks())
	for k := range r.blocks() {
		block := (first + k) % r.blocks()
		if n.blockFreeAt(r, block) > now {
			continue
		}
		name := n.blockName(r, block)
		if !r.set.Any && !n.mesh.Alone() && !n.locks.Quorate(name) {
			n.setLimited(r, LimitedQuorum)
			n.lookAt(r, now+apartLookMS)
			return false
		}
		id := n.ids.Make(n.random.Uint64(), n.random.Uint64(), 0, false) // no job has it: each claim has a holder of its own
		queue, span := r.queue, r.span
		o, _ := n.locks.AcquireFor(lock.ForJob{Name: name, Job: id, Lease: lease, Outlives: true, Any: r.set.Any}, func(o lock.Result) {
			if n.rates.queues[queue] != r { // it was forgotten
				n.rateAnswered(queue)
				return
			}
			r.asking, r.answered = false, true
			n.blockDecided(r, block, span, &o)
			n.lookAt(r, n.monotonic())
		})
		if o == nil {
			r.asking = true
			n.askForLimit(queue, 1)
			return false
		}
		if o.Began == 0 {
			o.Began = now
		}
		if n.blockDecided(r, block, span, o); r.may(now) {
			return true
		}
	}
	n.hasFreeBlock(r, now) // none is: the queue is served when one may be
	return false
}

// blockDecided follows when the claim of a block is decided.
func (n *Node) blockDecided(r *rate, block, span int64, o *lock.Result) {
	now := n.monotonic()
	switch r.why = LimitedRate; o.Kind {
	case lock.Granted:
		r.left, r.until, r.used = r.share(block), o.Began+span, false
		n.setLimited(r, NotLimited)
		return
	case lock.Conflict:
	default:
		r.why = LimitedQuorum
	}
	r.again[block] = now + rateAgainMS + n.below(rateAgainMS)
}

// takenUntil is until when a block is taken, as far as this node knows, monotonic ms; 0: it is free.
func (n *Node) takenUntil(name []byte) int64 {
	if l := n.locks.Live(name); l != nil {
		return l.Until
	}
	return 0
}

// blockName is the name of a block's lock. It is scratch memory.
func (n *Node) blockName(r *rate, block int64) []byte {
	key := append(make([]byte, 0, 32), rateKeyStart...)
	key = binary.AppendUvarint(key, uint64(r.set.Count))
	key = binary.AppendUvarint(key, uint64(r.set.Seconds))
	key = append(key, byte(block))
	n.scratch.lock = store.AppendLockName(n.scratch.lock[:0], store.LockWait, []byte(r.queue), key)
	return n.scratch.lock
}

// spend counts a delivery of a queue's job.
func (n *Node) spend(q *store.Queue) {
	if n.unrated(q) {
		return
	}
	if r := n.rates.queues[string(q.NameBytes())]; r != nil && r.set.Count > 0 {
		r.left, r.used = r.left-1, true
	}
}

// checkRates goes on with a pass over the queues that follows a change of the settings: those whose limits have changed are served.
func (n *Node) checkRates(now int64) {
	rs := &n.rates
	if rs.generation != n.policies.Generation {
		rs.generation, rs.unchecked = n.policies.Generation, rs.all.Len
	}
	for budget := rateChecks; budget > 0; budget-- {
		if rs.unchecked = min(rs.unchecked, rs.all.Len); rs.unchecked == 0 {
			return
		}
		rs.unchecked--
		r := rs.all.Head
		rs.all.Remove(r, inAllRates) // moves it to the end
		rs.all.Add(r, inAllRates)
		switch {
		case r.place < 0 || r.generation == rs.generation:
		case n.policies.LimitsOf([]byte(r.queue)) == r.set:
			r.generation = rs.generation
		default:
			n.lookAt(r, now)
		}
	}
	n.hurryTick()
}

// tickRates serves the queues that have waited long enough, and forgets those of which nobody wants jobs any more. If the settings have
// changed it serves all queues that were limited by former limits.
func (n *Node) tickRates() {
	now := n.monotonic()
	n.checkRates(now)
	for budget := tickBudget; len(n.rates.due) > 0 && n.rates.due[0].look <= now && budget > 0; budget-- {
		r := heap.Pop(&n.rates.due).(*rate)
		from, answered, claims := len(n.effects), r.answered, r.slotsAnswered
		r.answered = false
		if q := n.store.Queue([]byte(r.queue)); q != nil {
			n.serve(q)
		}
		n.giveBackSpares(r)
		if answered {
			n.rateAnswered(r.queue)
		}
		for ; claims > 0 && r.slotsAnswered > 0; claims-- {
			r.slotsAnswered--
			n.rateAnswered(r.queue)
		}
		if r.place < 0 && !r.asking && len(r.claims) == 0 { // nobody wants a job any more, or all who did have one
			n.setLimited(r, NotLimited)
		}
		budget -= n.cost(from)
	}
	if len(n.rates.due) > 0 {
		n.wake = min(n.wake, n.now+max(n.rates.due[0].look-now, 1))
	}
	if len(n.rates.queues) == 0 || now < n.rates.sweep {
		return
	}
	n.rates.sweep = now + rateSweepMS
	looked := 0
	for _, r := range n.rates.queues {
		if looked++; looked > rateSweep {
			n.rates.sweep = now + 1
			break
		}
		if !r.asking && len(r.claims) == 0 && len(r.spare) == 0 && (now-r.asked > max(rateIdleMS, 2*r.set.Seconds*1000) || r.generation != n.policies.Generation && r.limited == NotLimited) {
			n.forgetRate(r)
		}
	}
}

// LacksRates returns the ID of a node that is known to deliver jobs without regard to rates, as a former release does; "": there is none.
func (n *Node) LacksRates() string { return n.withoutFeature(func(f Features) bool { return f.Rates }) }

// LacksSlots is LacksRates for locks with slots, and for limits of jobs in progress.
func (n *Node) LacksSlots() string { return n.withoutFeature(func(f Features) bool { return f.Slots }) }

// LacksLimits is LacksRates for keys that several jobs may have at a time.
func (n *Node) LacksLimits() string {
	return n.withoutFeature(func(f Features) bool { return f.Limits })
}

// withoutFeature returns the ID of a node that is known to lack a feature; "": there is none.
func (n *Node) withoutFeature(has func(Features) bool) string {
	for _, p := range n.mesh.All() {
		if f, told := n.mesh.features[p.ID]; told && !has(f) {
			return p.ID.String()
		}
	}
	return ""
}

// PoliciesChanged tells the node that the settings have changed: queues that were limited by the former ones are served.
func (n *Node) PoliciesChanged() {
	if len(n.rates.due) > 0 {
		n.hurryTick()
	}
}

// LimitOf says why no job of a queue can be delivered now. A queue of which nobody has wanted a job isn't limited.
func (n *Node) LimitOf(queue []byte) Limited {
	r, now := n.rates.queues[string(queue)], n.monotonic()
	switch {
	case r == nil || r.generation != n.policies.Generation:
		return NotLimited
	case r.set.AtOnce > 0 && r.limited != NotLimited:
		return r.limited
	case r.set.AtOnce > 0 && len(r.spare) == 0 && !r.set.Any && !n.mesh.Alone() && !n.locks.Quorate(n.slotsName(queue)):
		return LimitedQuorum
	case r.set.AtOnce > 0 && len(r.spare) == 0 && n.slotFreeAt(r) > now:
		return LimitedSlots
	case r.set.Count == 0 || r.may(now):
		return NotLimited
	case r.why == LimitedQuorum || !r.set.Any && !n.mesh.Alone() && !n.locks.Quorate(n.blockName(r, 0)):
		return LimitedQuorum
	case r.limited != NotLimited:
		return r.limited
	}
	for block := range r.blocks() {
		if n.takenUntil(n.blockName(r, block)) <= now {
			return NotLimited
		}
	}
	return LimitedRate
}

// LimitedQueues counts the queues of which no job can be delivered now, though somebody wants one.
func (n *Node) LimitedQueues() int { return n.rates.limited }
