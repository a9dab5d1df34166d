package engine

import (
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// Names that producers give (ADDJOB … NAME). The ID of such a job is a hash of its name, so each node finds the job by the name, without an
// index. The invariant: a node that remembers a name's job, also its end, adds no other one.
//
// At a node that doesn't know the job it is added as with ASYNC, and its client waits as in WAITCOPIES. So it is never taken back: a second
// ADDJOB of the name, here or at another node, may have answered its ID meanwhile. In a mesh the node asks all others first (AskName), as if it
// was about to queue a copy that has been idle: a node that knows the job objects to that, or says how the job has ended. The job is queued
// when all have answered that they don't know it, or after askNameMS; before that no other node is sent a copy. A node that knows it sends a copy of
// its job, and answers so: then the copy takes the place of this job, and is left to that node. If two nodes add the name at once, their IDs choose
// between them, as if both had the job in a queue, and the one that goes on sends its job to the other when its own question is over. So there is one body, queue and set of
// options wherever the nodes can hear each other.
//
// A question is over when the job here is known to be this node's, or is the other node's copy. Until then the job's record says that it is open (TagAsks), so a
// restart, or a promotion, begins it anew instead of queueing the job (askNameAgain). A job that was left to another node, and whose copy hasn't come, is asked for
// again and again (stayLeft), until this node queues its own when the retry time is over.
//
// The end of such a job is told to all nodes, not only to its holders: it is the name that they remember.

// MaxName is how many bytes a name has at most.
const MaxName = 255

// askNameMS is how long a job with a name waits for the other nodes' answers. A job that is to be queued within store.AnnounceMS counts as
// announced, so this is no longer than that.
//
// The job counts as added, and the event is told, when that is over: at the one node that has added it.
const askNameMS = store.AnnounceMS

// ErrNamedTimeout answers an ADDJOB whose job hasn't its copies in time.
const ErrNamedTimeout Refusal = "NOREPL Timeout reached before so many nodes have confirmed their copies: the job stays, and the same ADDJOB can be said again"

// NamedID is the ID of the job with a name. The name says nothing of the job's life, so the ID has the longest time to live that there
// is, and says that the job has a retry time.
func NamedID(name []byte) store.ID { return hashedID(append([]byte("name"), name...), 0xffff) }

// hashedID makes an ID that is the same at all nodes. minutes is the TTL in it, see [store.ID].
func hashedID(what []byte, minutes uint16) (id store.ID) {
	sum := sha256.Sum256(what)
	copy(id[:], sum[:])
	binary.BigEndian.PutUint16(id[len(id)-2:], minutes)
	return id
}

// NameOf is the name that a job's producer has given it; nil: none.
func NameOf(j *store.Job) []byte {
	if j.Parts == 0 {
		return nil
	}
	return j.Extra(store.TagName)
}

// askDelayedMS is for how long at most a job with a name and a longer delay waits for answers, see [Node.askName].
const askDelayedMS = 4 * askNameMS

// askLeftMS is the time between questions for the copy of a job that was left to another node.
const askLeftMS = 5_000

// nameAsks are the jobs with names about which other nodes are asked.
type nameAsks struct {
	open map[store.ID]*nameAsk
	ends table.Schedule[*nameAsk] // the same ones, by due
	from int64                    // unix ms: the first tick after a start or a promotion that began questions anew; 0: it is still to come
}

type nameAsk struct {
	id     store.ID
	asked  []*Peer // those that haven't answered
	left   *Peer   // the job is left to this node, which adds it, too, and sends its copy when its own question is over; nil: it isn't
	again  bool    // that node was asked once more
	stays  bool    // the copy that is to take the job's place hasn't come in time; what has become of the ADDJOB is counted then
	anew   bool    // the node was started, or promoted, meanwhile, and asks when it is connected
	yield  []*Peer // nodes that add the job, too, leave it to this one, and wait for its copy
	copies int     // how many other nodes are to have the job
	placed bool    // these were sent their copies, though the question is open
	waits  []int64 // clients that wait for the copies, by the numbers of their copiesWait
	due    int64   // unix ms: when copies are sent, or at last when the question ends
	until  int64   // unix ms: when it ends
	pos    int     // in nameAsks.ends
}

func (a *nameAsk) Sooner(than *nameAsk) bool { return a.due < than.due }
func (a *nameAsk) Position() *int            { return &a.pos }

// answered notes that a node has answered, and says whether all have.
func (a *nameAsk) answered(p *Peer) (all bool) {
	a.asked = slices.DeleteFunc(a.asked, func(q *Peer) bool { return q == p })
	return len(a.asked) == 0
}

func (a *nameAsks) begin(ask *nameAsk) {
	a.end(&ask.id) // its job has gone with its queue
	if a.open == nil {
		a.open = map[store.ID]*nameAsk{}
	}
	a.open[ask.id] = ask
	heap.Push(&a.ends, ask)
}

// end ends a question, and says whether it was open.
func (a *nameAsks) end(id *store.ID) bool {
	ask := a.open[*id]
	if ask == nil {
		return false
	}
	delete(a.open, *id)
	heap.Remove(&a.ends, ask.pos)
	return true
}

// AddNamed adds a job that has a name, as with ASYNC, and answers its ID. If the name's job is known here, or known to have ended, nothing
// is added.
func (n *Node) AddNamed(a *Add) (id store.ID, err error) {
	switch waits := !a.Async && a.Replicate > 1; {
	case n.passive:
		return id, ErrReplica
	case waits && !a.CanWait:
		n.Stats.Refused++
		return id, ErrReplWait
	case waits && !a.Default:
		if err := n.unreachable(a, a.Replicate-1, false); err != nil {
			n.Stats.Refused++
			return id, err
		}
	}
	if id = NamedID(a.Name); n.remembers(&id) {
		n.Stats.NamesKnown++
		return id, nil
	}
	async := a.Async
	a.Async = true
	_, _, err = n.AddJob(a)
	a.Async = async
	return id, err
}

// WaitNamed waits for the copies of a job that AddNamed has answered, as WaitCopies does: for as many as REPLICATE says, or without it for a
// moment for as many as the job is to have.
func (n *Node) WaitNamed(id store.ID, a *Add) (p Pending, now []int64) {
	copies, timeout := a.Replicate, a.Timeout
	if a.Default {
		if copies = 0; a.Timeout > 0 {
			timeout = min(silentMS, a.Timeout)
		} else {
			timeout = silentMS
		}
	}
	p, now = n.WaitCopies([]store.ID{id}, copies, timeout)
	if ask := n.nameAsks.open[id]; ask != nil && now == nil {
		ask.waits = append(ask.waits, p.number)
	}
	return p, now
}

// remembers says whether this node knows a job, or that it has ended.
func (n *Node) remembers(id *store.ID) bool {
	n.endDue(id)
	return n.isKnown(*id) || n.store.Done(id) || n.lookDormant(id) != nil
}

// enlistNamed asks the other nodes about a new job with a name, and lets it wait for the answers. Where there is none to ask, it sends its copies, and queues it.
func (n *Node) enlistNamed(j *store.Job, elsewhere int) {
	if n.askName(j, elsewhere) {
		n.delayNew(j, max(askNameMS, delayFrom(j, n.now)))
		return
	}
	if elsewhere > 0 {
		j = n.place(j, elsewhere, wire.NoReply) // the copies aren't promised
	}
	n.Stats.Added++
	n.queueNew(j)
}

// mayPlaceName says whether copies of a job may be sent: if it has a name, it is known whether another node has the name's job, or the others have had time
// to say so. If it was left to a node that can't be reached now, this node's job may be all that there is.
func (n *Node) mayPlaceName(j *store.Job) bool {
	ask := n.nameAsks.open[j.ID]
	return ask == nil || ask.placed || ask.stays && n.mayHaveHeir(j)
}

// placeNamed sends the copies of a job with a name that is this node's; nil: it is another one's. It may move. The clients that wait for the copies go on.
func (n *Node) placeNamed(ask *nameAsk) {
	if ask == nil || ask.placed {
		return
	}
	ask.placed = true
	if j := n.store.Lookup(&ask.id); j != nil && n.isNamedHere(j) {
		before := j.Holders()
		j = n.place(j, ask.copies-n.countHolders(j, func(p *Peer) bool { return p.Connected }), wire.NoReply)
		if before > 0 && j.Holders() > before {
			n.spread(j)
		}
		if delayFrom(j, n.now) > 0 || j.Queue.Pause&PauseIn != 0 { // else it is queued now, which logs it
			setAsksName(j, false)
			n.log(LogState, j)
		}
	}
	for _, number := range ask.waits {
		if w := n.copiesWaitOf(number); w != nil {
			n.askCopies(w, askCopiesSlice)
			heap.Fix(&n.copyWaits.asks, w.askPos)
		}
	}
	ask.waits = nil
}

// isNamedHere says whether a job with a name, about which this node asks, is this node's, here or with a client.
func (n *Node) isNamedHere(j *store.Job) bool {
	return waitsForName(j) || j.State == store.StateQueued || j.Place == store.InWorking
}

// nameAdded counts a job that this node has added, and tells that. No other node has it.
func (n *Node) nameAdded(j *store.Job) {
	n.Stats.Added++
	if n.wants(EventAdd) {
		n.tellAdded(j)
	}
}

// endNameAsk ends a question about a job with a name. If the job is still this node's, here or with a client, this node has added it. Otherwise another
// node has, or it had ended before. If that one's copy hasn't come, the question stays open.
func (n *Node) endNameAsk(id *store.ID) *nameAsk {
	ask := n.nameAsks.open[*id]
	switch j := n.store.Lookup(id); {
	case j != nil && n.isNamedHere(j):
		n.closeName(id)
		if !ask.stays {
			n.nameAdded(j)
		}
		n.sendNamed(j, ask.yield...)
		return ask
	case j != nil && asksName(j) && j.State == store.StateActive && j.Place == store.InHeld && j.Flags&store.FlagDelivered == 0:
		n.stayLeft(ask)
	default:
		n.nameKnown(id)
	}
	return nil
}

// stayLeft is for a job that was left to another node, whose copy hasn't come: the connection may have ended meanwhile, or that node was started anew. It is
// asked for again later, see [Node.tickNames].
func (n *Node) stayLeft(ask *nameAsk) {
	if !ask.stays {
		ask.stays = true
		n.Stats.NamesKnown++
	}
	ask.asked = nil
	n.waitForNames(ask, askLeftMS)
}

// waitForNames keeps a question open for so many ms from now.
func (n *Node) waitForNames(ask *nameAsk, ms int64) {
	ask.due, ask.until = n.now+ms, n.now+ms
	heap.Fix(&n.nameAsks.ends, ask.pos)
}

// closeName ends a question, and says whether it was open.
func (n *Node) closeName(id *store.ID) bool {
	if !n.nameAsks.end(id) {
		return false
	}
	if j := n.store.Lookup(id); j != nil {
		setAsksName(j, false)
	}
	return true
}

// nameKnown ends a question about a job with a name that another node knows.
func (n *Node) nameKnown(id *store.ID) {
	if ask := n.nameAsks.open[*id]; ask != nil && n.closeName(id) && !ask.stays {
		n.Stats.NamesKnown++
	}
}

// nameEnds is for a job that a client ends, or puts into its queue. If other nodes are still asked about its name, it counts as added before. The question
// is returned as by endNameAsk.
func (n *Node) nameEnds(id *store.ID) *nameAsk {
	if len(n.nameAsks.open) == 0 || n.nameAsks.open[*id] == nil {
		return nil
	}
	if j := n.store.Lookup(id); j != nil && n.isNamedHere(j) {
		return n.endNameAsk(id)
	}
	n.nameKnown(id)
	return nil
}

// nameQueued is for a job that comes into its queue here. If it was left to another node, whose copy hasn't come, this node goes on with its own: the job's time is over.
func (n *Node) nameQueued(j *store.Job) {
	if ask := n.nameAsks.open[j.ID]; ask != nil && ask.stays {
		n.closeName(&j.ID)
		n.sendNamed(j, ask.yield...)
	}
}

// asksName says whether a job's record says that the question about its name is open.
func asksName(j *store.Job) bool {
	e := j.Extra(store.TagAsks)
	return len(e) == 1 && e[0] == 1
}

// setAsksName notes that in the job's record, if it has room for that. The caller logs it.
func setAsksName(j *store.Job, open bool) {
	if e := j.Extra(store.TagAsks); len(e) == 1 {
		if e[0] = 0; open {
			e[0] = 1
		}
	}
}

// askName asks all nodes whether they know a new job. It returns false if there is none to ask. A job with a longer delay can wait longer for answers:
// as long as the question is open, this node knows that another one that asks adds the job at the same moment.
// copies is how many other nodes are to have it.
func (n *Node) askName(j *store.Job, copies int) bool {
	ask := &nameAsk{id: j.ID, copies: copies, due: n.now + askNameMS, until: n.now + min(max(askNameMS, delayFrom(j, n.now)), askDelayedMS)}
	if !n.askAll(ask) {
		return false
	}
	n.openName(ask, j)
	return true
}

// askAll asks all nodes about a job. It returns false if there is none to ask.
func (n *Node) askAll(ask *nameAsk) bool {
	s := sending{n: n, m: &wire.Message{Kind: wire.AskName, ID: ask.id}}
	for _, p := range n.mesh.All() {
		if p.Connected && n.mesh.features[p.ID].Names {
			ask.asked = append(ask.asked, p)
			s.to(p)
		}
	}
	return len(ask.asked) > 0
}

// openName begins a question. The caller logs the job.
func (n *Node) openName(ask *nameAsk, j *store.Job) {
	n.nameAsks.begin(ask)
	setAsksName(j, true)
	n.wake = min(n.wake, ask.due)
}

// stillAsksName says whether the question about the name of a job that was loaded may be open. If a job is queued before its question is over, its record can
// say so for longer.
func stillAsksName(j *store.Job) bool {
	return j.State == store.StateActive && j.Flags&store.FlagDelivered == 0 && (j.Flags&store.FlagQueuedOnce != 0 || j.Nacks == 0 && j.Deliveries == 0)
}

// askNameAgain is for a job that was loaded, or whose node was promoted, and whose question was open. It is asked again as soon as the node is connected, and the job waits as a new
// one does. One that was left to another node stays so. What has become of that one's ADDJOB is counted, here or there. It says whether the job waits for the answers.
func (n *Node) askNameAgain(j *store.Job, same bool) bool {
	left := j.Flags&store.FlagQueuedOnce != 0
	if !same || n.nameAsks.open[j.ID] == nil {
		ask := &nameAsk{id: j.ID, copies: int(j.Repl) - 1, due: n.now + askFirstMS, until: n.now + askFirstMS, anew: !left, stays: left}
		n.openName(ask, j)
		n.nameAsks.from = 0
	}
	if left {
		return false
	}
	ask := n.nameAsks.open[j.ID]
	wait := ask.until - n.now
	if ask.anew {
		wait += askWaitMS + askNameMS
	}
	n.delayed(j, max(wait, delayFrom(j, n.now)))
	return true
}

// tickAnew asks the other nodes, if they are connected, or have had time for that: a long promotion takes none of it. The job is queued where there is none
// to ask, or when the answers have come.
func (n *Node) tickAnew(ask *nameAsk) {
	ask.until = max(ask.until, n.nameAsks.from+askFirstMS)
	if n.now < ask.until || n.now < ask.until+askWaitMS && (n.mesh.Alone() || slices.ContainsFunc(n.mesh.All(), func(p *Peer) bool { return !p.Connected && p.Health != membership.Failed })) {
		ask.due = n.now + askAgainMS
		heap.Fix(&n.nameAsks.ends, ask.pos)
		return
	}
	ask.anew = false
	j := n.store.Lookup(&ask.id)
	if j == nil || !waitsForName(j) {
		n.placeNamed(n.endNameAsk(&ask.id))
		return
	}
	if !n.askAll(ask) {
		n.answeredName(ask, j)
		return
	}
	n.waitForNames(ask, askNameMS)
	n.wakeAt(j, n.now+max(askNameMS, delayFrom(j, n.now)))
}

// asksAnew says whether a job that was loaded waits until its question is asked, see [Node.tickAnew].
func (n *Node) asksAnew(j *store.Job) bool {
	if len(n.nameAsks.open) == 0 {
		return false
	}
	ask := n.nameAsks.open[j.ID]
	return ask != nil && ask.anew && waitsForName(j)
}

// tickNames ends questions whose time is over. The jobs' timers queue the jobs, after that; where very many questions end at a time, the next
// ticks go on, and some jobs are queued before. The copies of a job with a longer delay are sent, while its question is open.
func (n *Node) tickNames() {
	ends := &n.nameAsks.ends
	if n.nameAsks.from == 0 {
		n.nameAsks.from = n.now
	}
	for budget := tickBudget; len(*ends) > 0 && (*ends)[0].due <= n.now && budget > 0; {
		ask, from := (*ends)[0], len(n.effects)
		if ask.anew {
			n.tickAnew(ask)
			budget -= 1 + n.cost(from)
			continue
		}
		if ask.due < ask.until {
			ask.due = ask.until
			heap.Fix(ends, ask.pos)
		} else {
			ask = n.nameTimeOver(ask)
		}
		n.placeNamed(ask)
		budget -= 1 + n.cost(from)
	}
}

// nameTimeOver is endNameAsk for a question whose time is over. The copy of a job that was left to another node is asked for again: of all nodes, since a replica may
// have been promoted in that node's place.
func (n *Node) nameTimeOver(ask *nameAsk) *nameAsk {
	left := ask.stays
	ended := n.endNameAsk(&ask.id)
	if left && n.nameAsks.open[ask.id] == ask {
		n.askAll(ask)
		if ask.left != nil {
			ask.asked = nil // a node that doesn't know it says nothing about the one that the job was left to
		}
	}
	return ended
}

// wakeForNames sees to it that tickNames is called in time.
func (n *Node) wakeForNames() {
	if ends := n.nameAsks.ends; len(ends) > 0 {
		n.wake = min(n.wake, ends[0].due)
	}
}

// waitsForName says whether a job waits here for the other nodes' answers, and nothing else has become of it.
func waitsForName(j *store.Job) bool {
	return j.State == store.StateActive && j.Reason() == store.Delayed && j.Flags&store.FlagAnnounced != 0 &&
		j.Flags&(store.FlagQueuedOnce|store.FlagDelivered) == 0
}

// addsNow says whether this node has just added a job with a name, and doesn't know yet whether others know it.
func (n *Node) addsNow(j *store.Job) bool { return waitsForName(j) && n.nameAsks.open[j.ID] != nil }

// onAskName answers whether this node knows a job. If it does, it also says what it would say to a WillQueue: so the sender learns how the
// job stands, or how it has ended, and this node learns that the sender has a copy.
//
// One of the two nodes goes on with the job. If both left it to the other, it would come when the retry time after its delay is over. So this node
// gives way only where it answers that it doesn't know the job: if both add it, and the sender's ID is the one that is chosen. Leaving nodes
// are no exception: two nodes may not agree at that moment on which of them is leaving.
func (n *Node) onAskName(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	answer := &wire.Message{Kind: wire.Named, ID: id, Flags: wire.Known}
	switch j := n.lookEnded(&id); {
	case j == nil && (n.tombstones.has(&id) || n.store.Done(&id)):
		n.sendAck(p, n.tombstones.ack(&id))
	case j == nil && n.lookDormant(&id) == nil:
		answer.Flags = 0
	case j == nil: // its queue lies in another database
	case j.State == store.StateAcked:
		n.correct(p, j, nil)
	default:
		ask := n.nameAsks.open[id]
		adding := ask != nil && waitsForName(j)
		if adding && theirs(&n.self, &p.ID, &id) { // both add the job at this moment, and the sender queues it: it hears no objection (names_cross, names_cross_delayed)
			answer.Flags = 0
			n.leaveJob(n.meet(p, j), max(delayFrom(j, n.now), store.AnnounceMS))
			n.send(p, answer)
			if n.yields(ask, p); !slices.Contains(ask.asked, p) {
				n.askAgain(ask)
			}
			return
		}
		switch {
		case adding, ask != nil && ask.stays && !n.isNamedHere(j) && !n.leftTo(ask, p): // the sender leaves it to this node, and is sent this node's, or the one that this node waits for, when it is known which of them counts
			answer.Flags |= wire.OfName
			if !slices.Contains(ask.yield, p) {
				ask.yield = append(ask.yield, p)
			}
		case ask != nil && !n.isNamedHere(j): // another node adds it at this moment, and answers for itself, or it is the sender itself, started anew (names_left_both_restarted)
			answer.Flags = 0
		}
		n.onWillQueue(p, j, m)
		if j = n.store.Lookup(&id); answer.Flags == wire.Known && j != nil && (j.State == store.StateActive || j.State == store.StateQueued) {
			n.sendNamed(j, p)
		}
	}
	n.send(p, answer)
}

// leftTo says whether a job was left to a node. After a restart that isn't known, and the nodes' IDs tell, as they did before.
func (n *Node) leftTo(ask *nameAsk, p *Peer) bool {
	return ask.left == p || ask.left == nil && theirs(&n.self, &p.ID, &ask.id)
}

// sendNamed sends a job with a name to nodes that have asked about that.
func (n *Node) sendNamed(j *store.Job, to ...*Peer) {
	if len(to) == 0 {
		return
	}
	s := sending{n: n, m: n.copyOf(j, wire.ReplJob)}
	s.m.Flags = wire.NoReply | wire.OfName
	for _, p := range to {
		s.to(p)
	}
}

// yields keeps a question open, until a node has sent its copy of a job that both add at this moment, and that this one leaves to it.
func (n *Node) yields(ask *nameAsk, p *Peer) {
	if ask.left = p; ask.stays {
		return // it is asked for again already
	}
	ask.anew = false
	n.waitForNames(ask, askDelayedMS)
	if j := n.store.Lookup(&ask.id); j != nil && !asksName(j) {
		setAsksName(j, true)
		n.log(LogState, j)
	}
}

// askAgain asks the node once more that a job was left to: it was asked before it added the job, and knew nothing of it.
func (n *Node) askAgain(ask *nameAsk) {
	if !ask.again {
		ask.again = true
		n.send(ask.left, &wire.Message{Kind: wire.AskName, ID: ask.id})
	}
}

// takeNamed is for a copy that comes with the answer of a node that knows the job of a name about which this node asks. The copy takes the place of the job that was added
// here, of which no other node has heard more than its name. It says whether it did.
func (n *Node) takeNamed(p *Peer, j *store.Job, m *wire.Message) bool {
	if n.nameAsks.open[j.ID] == nil || j.State != store.StateActive || j.Place != store.InHeld || j.Flags&store.FlagDelivered != 0 || m.Job.Retry == 0 {
		return false
	}
	q, err := n.queue(m.Queue)
	if err != nil {
		return false // its key holds something else here
	}
	holders := slices.Clone(n.allHolders(j))
	if n.unlog(j) {
		n.effect(LogDelete).ID = j.ID
	}
	n.touch(j.Queue)
	n.store.Remove(j)
	j, _ = n.learnLogged(n.acceptInto(m, q), holders)
	p.took(j, n.now)
	n.touch(q)
	ask := n.nameAsks.open[j.ID]
	n.nameKnown(&j.ID)
	n.sendNamed(j, ask.yield...)
	n.placeNamed(ask)
	return true
}

// onNamed leaves a job to a node that knows it, or queues it when all nodes have answered that they don't.
func (n *Node) onNamed(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	ask := n.nameAsks.open[id]
	if ask == nil {
		return
	}
	j := n.store.Lookup(&id)
	switch known := m.Flags&wire.Known != 0; {
	case (ask.left != nil || ask.stays) && !known:
		switch {
		case ask.left == p:
			n.askAgain(ask)
		case ask.left == nil:
			n.notLeft(ask, p, j)
		}
		return
	case j != nil && known && m.Flags&wire.OfName != 0: // both add it at this moment, and the sender's follows (names_cross)
		if waitsForName(j) {
			n.leaveJob(n.meet(p, j), delayFrom(j, n.now))
		}
		n.yields(ask, p)
		return
	case j == nil || !waitsForName(j):
		n.placeNamed(n.endNameAsk(&id))
		return
	case ask.anew: // late: this node asks all when it is connected
		return
	case known: // a node of a former release, which sends no copy
		n.nameKnown(&id)
		j = n.meet(p, j)
		n.leaveJob(j, delayFrom(j, n.now))
		return
	}
	if ask.answered(p) {
		n.answeredName(ask, j)
	}
}

// notLeft is for a job that was left to a node that couldn't be reached, or to one of before a restart, when a node has answered that it doesn't know the
// name. If no node does, and all that may hold the job were asked, the job is this node's (names_left_holder_back).
func (n *Node) notLeft(ask *nameAsk, p *Peer, j *store.Job) {
	if len(ask.asked) == 0 || !ask.answered(p) || j == nil || !comesBack(j) || j.Place != store.InHeld || n.mayHaveHeir(j) ||
		delayFrom(j, n.now) > 0 || j.Queue.Pause&PauseIn != 0 {
		return
	}
	clearQueuedOnce(j)
	n.requeue(j, false)
}

// answeredName is for a job that waits for answers, when all have come, and no node knows it.
func (n *Node) answeredName(ask *nameAsk, j *store.Job) {
	id := ask.id
	if n.mayHaveHeir(j) { // a node that can't be asked holds it: that one may have given the job to a client
		n.leaveJob(j, delayFrom(j, n.now))
		n.endNameAsk(&id)
		return
	}
	n.placeNamed(n.endNameAsk(&id))
	if j = n.store.Lookup(&id); delayFrom(j, n.now) == 0 && j.Queue.Pause&PauseIn == 0 {
		n.requeue(j, false)
	}
}

// namedAwayMS is for how long a node may have been silent that is told of the end of a job with a name when it is back. The ends of all such
// jobs are kept for it meanwhile, so this bounds how many they are.
const namedAwayMS = 600_000

// tellsNamed is for a job whose end this node is to tell the others. If it has a name, all nodes are told of its end as if they had a copy, for a node that was cut off
// may have added the name, too. The job may move.
func (n *Node) tellsNamed(j *store.Job) *store.Job {
	if NameOf(j) == nil {
		return j
	}
	for _, p := range n.mesh.All() {
		if p.Connected || n.now-p.Heard < namedAwayMS {
			j, _ = n.addHolder(j, p.Node)
		}
	}
	return j
}
