package engine

import (
	"encoding/binary"

	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// CANCELJOB … SOFT leaves a job that somebody works on to its worker: it keeps its locks, and the worker hears of the wish by WORKING. The job is
// done if it is acknowledged, and cancelled where it would be queued again. The wish is an extra of the job. The other holders are told it
// by Cancel, and by each message that tells how the job failed.
//
// A plain CANCELJOB ends the job. For a while the nodes that held it answer its worker's WORKING by ErrCancelled.

// Wish is what is known of a CANCELJOB … SOFT.
type Wish struct {
	At     int64 // unix ms
	Reason []byte
}

// A TagCancel has 8 bytes for its time (unix ms), and the reason. The later wish counts.
const wishHead = 8

// CancelOf returns the wish to cancel a job that somebody works on. The reason is the job's memory. ok is false if there is none.
func CancelOf(j *store.Job) (w Wish, ok bool) {
	if j.Parts == 0 || j.State == store.StateAcked {
		return w, false
	}
	return wishOf(j.Extra(store.TagCancel))
}

func wishOf(e []byte) (w Wish, ok bool) {
	if len(e) < wishHead || len(e) > wishHead+MaxReason {
		return w, false
	}
	return Wish{At: int64(binary.LittleEndian.Uint64(e)), Reason: e[wishHead:]}, true
}

func isAskedToStop(j *store.Job) bool {
	_, asked := CancelOf(j)
	return asked
}

// CancelSoftly is CancelJob for a job that nobody works on. A job that somebody may work on is left to its worker, who is asked to stop; it counts
// as one that was cancelled. reason is why; nil: none was given. Of a longer one than MaxReason the rest is cut off.
func (n *Node) CancelSoftly(id *store.ID, reason []byte) int {
	n.endDue(id) // otherwise the wish would be tied to a job that is over
	reason = cutReason(reason)
	j := n.lookToEnd(id)
	wish := append(binary.LittleEndian.AppendUint64(nil, uint64(n.now)), reason...)
	switch {
	case j == nil:
		n.cancelAway(id, wish)
		n.tellAll(&wire.Message{Kind: wire.Cancel, ID: *id, Job: wire.Job{Extras: store.AppendExtra(nil, store.TagCancel, wish)}})
		return 0
	case j.State == store.StateAcked:
		return 0
	case n.pendingAddOf(id) != nil:
		return n.CancelFor(id, reason)
	case n.nobodyWorksOn(j):
		if n.isOnlyHere(j) {
			wish = nil
		}
		return n.cancelFor(id, reason, wish) // a holder may know of a worker, see leavesToWorker
	}
	j, ok := n.setExtra(j, store.TagCancel, wish)
	if !ok {
		if j, ok = n.setExtra(j, store.TagCancel, wish[:wishHead]); !ok { // the job has no room for the wish
			return n.CancelFor(id, reason)
		}
	}
	n.Stats.SoftCancelled++
	n.wishes(j)
	n.tellWish(j)
	return 1
}

// tellWish tells the nodes that may have a job of the wish to cancel it.
func (n *Node) tellWish(j *store.Job) {
	m := n.cancelOf(j)
	if isOffered(j) || j.Uncertain() {
		n.tellAll(m)
	} else {
		n.tell(j, m)
	}
}

// cancelAway is CancelSoftly for a job in a queue that lies in another database. If somebody may work on it, its wish is obeyed when the queue is
// back.
func (n *Node) cancelAway(id *store.ID, wish []byte) {
	j := n.lookEnding(id)
	switch {
	case j == nil || j.State == store.StateAcked:
		return
	case n.nobodyWorksOn(j):
		n.noteEnd(*id, OutcomeCancelled, wish[wishHead:], len(wish) > wishHead)
		n.endAway(j, true)
		return
	}
	j, ok := n.setExtra(j, store.TagCancel, wish)
	if !ok {
		j, ok = n.setExtra(j, store.TagCancel, wish[:wishHead])
	}
	if ok {
		n.wishes(j)
	}
}

// setWish makes the wish to cancel a job another one, or none (nil). The job may move.
func (n *Node) setWish(j *store.Job, wish []byte) *store.Job {
	if wish != nil || j.Parts > 0 && j.Extra(store.TagCancel) != nil {
		j, _ = n.setExtra(j, store.TagCancel, wish)
	}
	return j
}

// leavesToWorker says whether a SetAck is that of a CANCELJOB … SOFT at a node which knew of no worker, for it missed WORKING, while a client of this
// node has the job. Here it is a wish like any other, and no answer: the sender tells again until the job has ended here.
func (n *Node) leavesToWorker(j *store.Job, m *wire.Message) bool {
	if m.Flags&wire.Cancelled == 0 || j.State != store.StateActive || j.Place != store.InWorking || store.FindExtra(m.Job.Extras, store.TagCancel) == nil {
		return false
	}
	return isAskedToStop(n.learnWish(j, m.Job.Extras))
}

// nobodyWorksOn says whether no client can have a job, as far as this node can know.
func (n *Node) nobodyWorksOn(j *store.Job) bool {
	switch {
	case j.State == store.StateQueued, held(j), j.Reason() == store.Delayed, n.nobodyHas(j):
		return true
	case j.Place == store.InWorking, isOffered(j), j.Uncertain():
		return false
	}
	return j.Holders() == 0 && j.Flags&store.FlagDelivered == 0 // after DEQUEUE
}

// wishes logs a wish, and tells those that wait for the job.
func (n *Node) wishes(j *store.Job) {
	n.log(LogState, j)
	n.noteWish(j)
	w, _ := CancelOf(j)
	n.noteEnd(j.ID, OutcomeCancelled, w.Reason, len(w.Reason) > 0)
}

// wished are the jobs here of which it is wished that they are cancelled. Their other holders are told again whenever a node is connected, for it may have
// missed the wish, and the worker may be there; and when the bus didn't accept a Cancel.
type wished struct {
	table.Roster[store.ID, struct{}]
	tells bool  // the pass that is under way tells. Any pass forgets the jobs that have ended
	sweep int64 // unix ms: the next pass that doesn't tell
}

const (
	wishedMost = 10_000 // jobs whose holders are told again; of others a holder hears when it speaks of the job ([Node.answerWish])
	wishSlice  = 50     // of them that a tick looks at; each may be told to all nodes
)

func (n *Node) noteWish(j *store.Job) {
	if n.wished.Len() < wishedMost {
		n.wished.Put(j.ID, struct{}{})
	}
}

// tellWishes begins to tell the wishes again.
func (n *Node) tellWishes() {
	if n.wished.Len() > 0 {
		n.wished.tells = true
		n.wished.Begin()
		n.hurryTick()
	}
}

// tickWishes goes on with that, when no node is choked.
func (n *Node) tickWishes() {
	w := &n.wished
	if w.Len() > 0 && w.Left() == 0 && n.now >= w.sweep {
		w.sweep, w.tells = n.now+tombstoneMS, false
		w.Begin()
	}
	if w.Left() == 0 {
		return
	}
	for _, p := range n.mesh.All() {
		if wait := p.choked - n.monotonic(); w.tells && p.Connected && wait > 0 {
			n.wake = min(n.wake, n.now+wait)
			return
		}
	}
	if w.Pass(wishSlice, func(id store.ID, _ *struct{}) bool {
		j := n.store.Lookup(&id)
		if j == nil || !isAskedToStop(j) {
			return false
		}
		if w.tells {
			n.tellWish(j)
		}
		return true
	}) {
		n.hurryTick()
	}
}

// answerWish tells a node of the wish to cancel a job, if it says of the job what a node says that doesn't know of the wish: that it queues the job, puts it
// off, or that a client goes on with it. It may have missed the wish.
func (n *Node) answerWish(p *Peer, j *store.Job, kind wire.Kind) {
	switch kind {
	case wire.WillQueue, wire.Queued, wire.Working, wire.PutOff:
		if isAskedToStop(j) {
			n.send(p, n.cancelOf(j))
		}
	}
}

// cancelOf makes the message that tells the wish to cancel a job.
func (n *Node) cancelOf(j *store.Job) *wire.Message {
	return &wire.Message{Kind: wire.Cancel, ID: j.ID, Job: wire.Job{Extras: store.AppendExtra(nil, store.TagCancel, j.Extra(store.TagCancel))}}
}

// onCancel learns the wish to cancel a job.
func (n *Node) onCancel(p *Peer, j *store.Job, m *wire.Message) {
	switch {
	case j.State == store.StateAcked:
		n.correct(p, j, nil)
		return
	case n.dummy(j) || j.State == store.StateWaitRepl:
		return
	}
	n.obey(n.learnWish(j, m.Job.Extras))
}

// learnWish takes over a wish that is later than what this node knows. The job may move.
func (n *Node) learnWish(j *store.Job, extras []byte) *store.Job {
	before, _ := CancelOf(j)
	j = n.learnLater(j, store.TagCancel, extras)
	if now, asked := CancelOf(j); asked && now.At != before.At {
		n.wishes(j)
	}
	return j
}

// obey cancels a job of which that is wished, if nobody works on it. It says whether it did.
func (n *Node) obey(j *store.Job) bool {
	if !isAskedToStop(j) || !n.nobodyWorksOn(j) {
		return false
	}
	n.stop(j)
	return true
}

// stop cancels a job of which that is wished, and which comes back from its worker.
func (n *Node) stop(j *store.Job) {
	w, _ := CancelOf(j)
	var reason []byte
	if len(w.Reason) > 0 {
		reason = append(reason, w.Reason...)
	}
	n.Stats.Cancelled++
	n.tellsCancelled(j, reason)
	n.cancel(n.setWish(j, nil), OutcomeCancelled, reason) // the end counts, wherever else a client has the job
}

// stopped are the jobs that were cancelled while somebody may have worked on them.
type stopped struct {
	table.Roster[store.ID, int64] // until when their workers hear of it, unix ms
	sweep                         int64
}

const (
	stoppedMost = 50_000
	stoppedOnce = 300 // seconds for which the worker of an at-most-once job hears of it
)

// noteStopped is called before a job is cancelled.
func (n *Node) noteStopped(j *store.Job) {
	if j.State != store.StateActive || j.Place != store.InWorking && (j.Place != store.InHeld || j.Reason() != store.NoReason) || n.stopped.Len() >= stoppedMost {
		return
	}
	term := TermOf(j)
	if j.Retry == 0 {
		term = stoppedOnce
	}
	n.stopped.Put(j.ID, n.now+term*1000)
}

// wasStopped says whether the worker of a job that isn't known any more is to hear that it was cancelled.
func (n *Node) wasStopped(id *store.ID) bool {
	until := n.stopped.Get(*id)
	return until != nil && *until > n.now
}

// tickStopped forgets jobs whose workers' time is over.
func (n *Node) tickStopped() {
	if n.stopped.Len() == 0 {
		return
	}
	if n.now >= n.stopped.sweep {
		n.stopped.sweep = n.now + tombstoneMS
		n.stopped.Begin()
	}
	if n.stopped.Pass(tickBudget, func(_ store.ID, until *int64) bool { return *until > n.now }) {
		n.hurryTick()
	}
}
