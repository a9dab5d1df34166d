package engine

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unicode/utf8"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Jobs that fail. A worker gives its job back by NACK. It may say why, when the job is to come again, or that it isn't to come
// again. A job that comes again later rests: it is active, in nobody's hands, and counted as delayed. It is this node that queues
// it in time, as with a new job that is delayed; the other holders leave it alone until its retry time is over after that.

// Failure is what a worker says of a job that it gives back.
type Failure struct {
	HasDelay bool
	Delay    int64  // ms until the job comes again, 0: at once. Without HasDelay the policy tells
	Dead     bool   // the job doesn't come again: it becomes a dead letter
	Reason   []byte // nil: none was given. One longer than MaxReason is cut off there
	HasBody  bool
	Body     []byte // the job comes back with it; see [Node.TakesBody]
}

// MaxReason is the greatest length of a failure's reason that is kept, in bytes.
const MaxReason = 1024

// A failure's TagFailure has 8 bytes for its time (unix ms), a byte with the length of the worker's name, that name, and the
// reason. The later failure counts.
const failureHead = 9

// PastFailure is what is known of a job's last failure.
type PastFailure struct {
	At     int64 // unix ms
	Worker []byte
	Reason []byte
}

// FailureOf returns what is known of a job's last failure. The slices are the job's memory. ok is false if nothing is known.
func FailureOf(j *store.Job) (f PastFailure, ok bool) { return failureOf(j.Extra(store.TagFailure)) }

// reasonOf returns the reason of a job's last failure, in memory of its own; nil: none was given.
func reasonOf(j *store.Job) []byte {
	if f, ok := FailureOf(j); ok && len(f.Reason) > 0 {
		return slices.Clone(f.Reason)
	}
	return nil
}

func failureOf(e []byte) (f PastFailure, ok bool) {
	if len(e) < failureHead || len(e) < failureHead+int(e[8]) {
		return f, false
	}
	end := failureHead + int(e[8])
	return PastFailure{At: int64(binary.LittleEndian.Uint64(e)), Worker: e[failureHead:end], Reason: e[end:]}, true
}

// Nack gives a job back as failed, for NACK. It returns false if the job isn't known, is in a queue, or stays out of it: a job
// with RETRY 0 that was delivered, one that is held back, or one that was given back already and comes again later.
func (n *Node) Nack(id *store.ID, f *Failure) bool {
	j := n.store.Lookup(id)
	if j == nil {
		return false
	}
	if j.Retry == 0 && j.State == store.StateActive {
		// The job stays out of its queue, but nobody works on it any more.
		_, slotted := n.slotOf(j)
		n.freeSlot(j)
		running := j.Flags&store.FlagDelivered != 0 && runs(j)
		if running {
			u := j.Unique()
			n.endRun(j, u)
			u.GiveRunBack()
		}
		if slotted || running {
			n.log(LogState, j)
		}
	}
	if isAskedToStop(j) && (j.Place == store.InWorking || comesBack(j)) {
		n.stop(j)
		return true
	}
	if !comesBack(j) || rests(j) {
		return false
	}
	if f.HasBody {
		if n.putOff(j) {
			return false // it waits for its key, so no client has it
		}
		var ok bool
		if j, ok = n.giveBody(j, f.Body); !ok {
			return false
		}
	}
	p := n.policyOf(j)
	var deliveries, nacks int64
	if p.counts() {
		j = n.countTry(j, 0, 1)
		p = n.policyOf(j) // the job may have moved
		deliveries, nacks = tries(j)
	}
	why := Why(0)
	switch {
	case j.DeadLetter():
	case f.Dead:
		why = WhyNacked
	case p.MaxNacks > 0 && nacks >= p.MaxNacks:
		why = WhyNacks
	case p.MaxDeliveries > 0 && deliveries >= p.MaxDeliveries:
		why = WhyDeliveries
	}
	if why != 0 {
		n.giveUpBy(&p, j, why, n.failureOf(j, f.Reason))
		return true
	}
	if f.Reason != nil {
		j, _ = n.setExtra(j, store.TagFailure, n.failureOf(j, f.Reason)) // where the job has no room for that, nothing is kept
	}
	span := f.Delay
	if !f.HasDelay && p.Base > 0 {
		span = n.backoff(&p, int(nacks))
	}
	if span = n.restsFor(j, span); span > 0 {
		n.rest(j, span)
		return true
	}
	return n.requeue(j, true)
}

// TakesBody says why a job can't have a new body; nil: it can, or it isn't known here.
func (n *Node) TakesBody(id *store.ID, body []byte) error {
	j := n.store.Lookup(id)
	switch {
	case len(body) > store.MaxBody:
		return ErrBody
	case j == nil || n.dummy(j):
		return nil
	case j.Holders() > 0 && len(body)+len(j.Queue.NameBytes()) > n.mostBody:
		return ErrTooBig
	case !n.keepsKey(j, body):
		return ErrBodyIsKey
	}
	return nil
}

// giveBody gives a job another body, here and at the other holders. ok is false if the job can't keep its key. The job may move.
func (n *Node) giveBody(j *store.Job, body []byte) (_ *store.Job, ok bool) {
	same := bytes.Equal(j.Body(), body)
	if j, ok = n.setBody(j, body); ok {
		if same {
			j = n.countBody(j)
			n.log(LogState, j)
		}
		n.tellChanged(j, wire.NewBody) // also where it is the same: other holders may have another one
	}
	return j, ok
}

// setBody is giveBody at this node alone.
func (n *Node) setBody(j *store.Job, body []byte) (_ *store.Job, ok bool) {
	if j, ok = n.keepKey(j, body); ok && !bytes.Equal(j.Body(), body) {
		j = n.countBody(n.moved(j, n.store.Rewrite(j, body, j.Extras())))
		n.logAnew(j)
		n.touch(j.Queue)
	}
	return j, ok
}

// comesBack says whether a job can be put back into its queue.
func comesBack(j *store.Job) bool {
	return j.State == store.StateActive && (j.Retry > 0 || j.Flags&store.FlagDelivered == 0) && !held(j)
}

// rests says whether a job failed, and this node queues it in time.
func rests(j *store.Job) bool { return j.Reason() == store.Delayed && savedResting(j) }

// restLeft is how much is left, in ms, of the time for which a job that failed rests at another node. This node knows it by QTime, which is
// a retry time later ([Node.onResting]).
func (n *Node) restLeft(j *store.Job) int64 {
	if j.Nacks > 0 && j.State == store.StateActive && j.Place == store.InHeld && j.Flags&store.FlagDelivered == 0 {
		if left := j.QTime - retryTime(n, j); left > jitterMS {
			return left
		}
	}
	return 0
}

// savedResting is rests for a job that was loaded, and isn't in its list yet.
func savedResting(j *store.Job) bool {
	return j.Nacks > 0 && j.State == store.StateActive && j.Flags&(store.FlagQueuedOnce|store.FlagDelivered) == 0 && j.QTime > 0
}

// failureOf makes the TagFailure of a job that fails now: when and why, and which worker had it. It is scratch memory.
func (n *Node) failureOf(j *store.Job, reason []byte) []byte {
	worker := n.Worker(j)
	e := binary.LittleEndian.AppendUint64(n.scratch.failure[:0], uint64(n.now))
	e = append(e, byte(len(worker)))
	e = append(e, worker...)
	e = append(e, cutReason(reason)...)
	n.scratch.failure = e
	return e
}

// cutReason cuts a reason off at MaxReason, at the boundary of a character.
func cutReason(reason []byte) []byte {
	if len(reason) <= MaxReason {
		return reason
	}
	end := MaxReason
	for back := 0; back < utf8.UTFMax && end > 0 && !utf8.RuneStart(reason[end]); back++ {
		end--
	}
	if !utf8.RuneStart(reason[end]) {
		end = MaxReason // it isn't UTF-8
	}
	return reason[:end]
}

// restsFor returns for how long a job that is given back can rest, ms: not beyond the time at which its life has its retry time left.
// Once less than that is left, it rests for half of what is left at most: it is still tried a few times. 0: it is queued at once.
func (n *Node) restsFor(j *store.Job, span int64) int64 {
	if span == 0 {
		return 0
	}
	n.endOutlast(j)
	left := j.ETime - n.now
	return max(0, min(span, max(left-int64(j.Retry)*1000, left/2)))
}

// rest gives a job back that failed, and queues it in span ms. Its run's lock is free meanwhile; a waiting lock stays, or is taken again.
func (n *Node) rest(j *store.Job, span int64) {
	n.countNack(j, j.Extra(store.TagFailure))
	n.Stats.FailedPutOff++
	n.tellsPutOff(j, span)
	n.leaveTo(j)
	n.clearWorker(j)
	n.endLease(j)
	clearDelivered(j)
	n.restAgain(j, span)
	n.retake(j, false)
	n.tellResting(j, span)
	n.serveBehind(j.Queue) // its key may be free
}

// restAgain keeps a job that nobody has out of its queue for span ms. Its queueing isn't counted then.
func (n *Node) restAgain(j *store.Job, span int64) {
	clearQueuedOnce(j)
	n.waitFor(j, span)
}

// countNack counts a NACK of a job, and ends what its delivery had begun. failure is a TagFailure, which says why if it is of this moment.
func (n *Node) countNack(j *store.Job, failure []byte) {
	n.tellsNack(j, failure)
	n.freeSlot(j)
	n.endRunElsewhere(j, true)
	n.endOutlast(j)
	clearAnnounced(j) // the announcement isn't why the job is queued, see onQueued
	j.Nacks = saturated(j.Nacks, 1)
	n.Stats.Nacked++
}

// tellResting tells the other holders that a job rests here.
func (n *Node) tellResting(j *store.Job, span int64) {
	if j.Holders() > 0 {
		m := wire.Message{Kind: wire.PutOff, Flags: n.keyFlag(j) | wire.CountNack, Span: span}
		m.SetReturns(j.Nacks, j.Deliveries)
		n.tell(j, &m)
	}
}

// onResting leaves a job to another node, where it failed and rests for the span of a message, which counts how often the job has come
// back, as far as the sender knows.
func (n *Node) onResting(p *Peer, j *store.Job, m *wire.Message) {
	if n.isAway(p, j) {
		return
	}
	j = n.onQueuedElsewhere(n.meet(p, j))
	ahead := aheadBy(m, j)
	n.learnReturns(j, m)
	if m.Flags&wire.GotKey != 0 {
		n.gotKey(j)
	}
	switch {
	case ahead < 0 && n.standing(j) == queued: // keep and say so: the job has come back here since
		n.send(p, n.queued(j, wire.CountNack))
		return
	case ahead <= 0 && rests(j) && (ahead < 0 || !theirs(&n.self, &p.ID, &j.ID)): // ignore: it rests at both, and one of the two queues it
		return
	}
	n.endOutlast(j)
	if j.State == store.StateQueued {
		n.dequeue(j)
	}
	if ahead > 0 {
		n.freeSlot(j)
	}
	n.delegateRun(j) // a client that has the job here may not know
	n.idling.held.Remove(j.ID)
	n.endLease(j)
	n.demote(j, m.Span)
}

// tellings are the extras that tell of a job's failures and its progress, of the priority that a move may have changed, of how long a
// delivery lasts, and which version of the body there is.
var tellings = [...]store.Tag{store.TagFailure, store.TagDead, store.TagAsleep, store.TagTries, store.TagPriority, store.TagProgress, store.TagLease, store.TagLapses, store.TagCancel, store.TagBody}

// tells says whether a job has such extras.
func tells(j *store.Job) bool {
	return j.Parts != 0 && slices.ContainsFunc(tellings[:], func(tag store.Tag) bool {
		return j.Extra(tag) != nil && (tag != store.TagPriority || moves(j) > 0) && (tag != store.TagLease || leaseOf(j) > 0)
	})
}

// whereaboutsOf makes the message that says where a job is, how it failed, and how far it is. Its extras are scratch memory.
func (n *Node) whereaboutsOf(j *store.Job) *wire.Message {
	b := n.scratch.extras[:0]
	for _, tag := range tellings {
		if e := j.Extra(tag); e != nil {
			b = store.AppendExtra(b, tag, e)
		}
	}
	n.scratch.extras = b
	m := n.movedTo(j)
	m.Kind, m.Span, m.Job.Extras = wire.Whereabouts, max(1, j.ETime-n.now), b
	return m
}

// onWhereabouts learns how a job failed, how far it is, and how long a client has it, and follows it to the queue where it is.
func (n *Node) onWhereabouts(p *Peer, j *store.Job, m *wire.Message) {
	if n.dummy(j) || j.State == store.StateAcked {
		return
	}
	n.compareBodies(p, j, m.Job.Extras)
	exhausted := j.State == store.StateQueued && n.isExhausted(j)
	j = n.learnLease(n.learnWords(j, m.Job.Extras), m.Job.Extras)
	if j = n.learnWish(j, m.Job.Extras); n.obey(j) {
		return
	}
	// The sender may tell of the delivery that has just ended after this node has found the job's time over, and has queued the job.
	switch {
	case j.State != store.StateQueued:
	case n.hasLapsed(j): // (lapses)
		n.giveUp(j, WhyLapses, nil)
		return
	case !exhausted && j.Flags&store.FlagAnnounced != 0 && n.isExhausted(j): // not where it was queued by hand (deliveries_told_late)
		n.giveUp(j, WhyDeliveries, nil)
		return
	}
	n.onMovedTo(p, j, m)
}

// learnWords takes over what workers have said of a job that is later than what this node knows, and how often the job was tried. The job may move.
func (n *Node) learnWords(j *store.Job, extras []byte) *store.Job {
	if len(extras) == 0 || n.dummy(j) {
		return j
	}
	return n.learnLater(n.learnLater(n.learnTries(j, extras), store.TagFailure, extras), store.TagProgress, extras)
}

// learnLater takes over an extra that is later than this node's. If both are from the same time, the one with the greater bytes counts.
func (n *Node) learnLater(j *store.Job, tag store.Tag, extras []byte) *store.Job {
	e, mine := store.FindExtra(extras, tag), j.Extra(tag)
	theirs, ok := saidAt(tag, e)
	if !ok {
		return j
	}
	if at, ok := saidAt(tag, mine); ok && (at > theirs || at == theirs && bytes.Compare(mine, e) >= 0) {
		return j
	}
	j, _ = n.setExtra(j, tag, e)
	n.log(LogState, j)
	return j
}

// saidAt returns when a worker said what an extra tells of its job, unix ms. ok is false if nothing was said.
func saidAt(tag store.Tag, e []byte) (at int64, ok bool) {
	switch tag {
	case store.TagProgress:
		p, ok := progressOf(e)
		return p.At, ok
	case store.TagCancel:
		w, ok := wishOf(e)
		return w.At, ok
	}
	f, ok := failureOf(e)
	return f.At, ok
}
