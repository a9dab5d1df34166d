package engine

import (
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"slices"

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
// when all have answered that they don't know it, or after askNameMS. A node that knows it answers so: then this job is a copy of that
// one, and is left to that node. If two nodes add the name at once, their IDs choose between them, as if both had the job in a queue.
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

// freshNameMS is for how long after its creation a copy that this node leaves to another isn't known to it, when another node asks: it may be
// of a job about which several nodes ask at this moment.
const freshNameMS = 4 * askNameMS

// nameAsks are the jobs with names about which other nodes are asked.
type nameAsks struct {
	open map[store.ID]*nameAsk
	ends table.Schedule[*nameAsk] // the same ones, by until
}

type nameAsk struct {
	id    store.ID
	asked []*Peer // those that haven't answered
	until int64   // unix ms
	pos   int     // in nameAsks.ends
}

func (a *nameAsk) Sooner(than *nameAsk) bool { return a.until < than.until }
func (a *nameAsk) Position() *int            { return &a.pos }

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
	if !a.Default {
		return n.WaitCopies([]store.ID{id}, a.Replicate, a.Timeout)
	}
	timeout := int64(silentMS)
	if a.Timeout > 0 {
		timeout = min(timeout, a.Timeout)
	}
	return n.WaitCopies([]store.ID{id}, 0, timeout)
}

// remembers says whether this node knows a job, or that it has ended.
func (n *Node) remembers(id *store.ID) bool {
	n.endDue(id)
	return n.isKnown(*id) || n.store.Done(id) || n.lookDormant(id) != nil
}

// enlistNamed asks the other nodes about a new job with a name, sends its copies, and queues it, or lets it wait for the answers.
func (n *Node) enlistNamed(j *store.Job, elsewhere int) {
	asks := n.askName(j) // first, so that no node answers that it knows the copy which it is sent
	if elsewhere > 0 {
		j = n.place(j, elsewhere, wire.NoReply) // the copies aren't promised
	}
	if asks {
		n.delayNew(j, max(askNameMS, delayFrom(j, n.now)))
		return
	}
	n.Stats.Added++
	n.queueNew(j)
}

// nameAdded counts a job that this node has added, and tells that. No other node has it.
func (n *Node) nameAdded(j *store.Job) {
	n.Stats.Added++
	if n.wants(EventAdd) {
		n.tellAdded(j)
	}
}

// endNameAsk ends a question about a job with a name. If the job is still this node's, here or with a client, this node has added it. Otherwise another
// node has, or it had ended before.
func (n *Node) endNameAsk(id *store.ID) {
	n.nameAsks.end(id)
	if j := n.store.Lookup(id); j != nil && (waitsForName(j) || j.State == store.StateQueued || j.Place == store.InWorking) {
		n.nameAdded(j)
	} else {
		n.Stats.NamesKnown++
	}
}

// nameKnown ends a question about a job with a name that another node knows.
func (n *Node) nameKnown(id *store.ID) {
	if n.nameAsks.end(id) {
		n.Stats.NamesKnown++
	}
}

// nameEnds is for a job that a client ends, or puts into its queue. If other nodes are still asked about its name, it counts as added before.
func (n *Node) nameEnds(id *store.ID) {
	if len(n.nameAsks.open) > 0 && n.nameAsks.open[*id] != nil {
		n.endNameAsk(id)
	}
}

// askName asks all nodes whether they know a new job. It returns false if there is none to ask. A job with a longer delay can wait longer for answers:
// as long as the question is open, this node knows that another one that asks adds the job at the same moment.
func (n *Node) askName(j *store.Job) bool {
	ask := &nameAsk{id: j.ID, until: n.now + min(max(askNameMS, delayFrom(j, n.now)), freshNameMS)}
	s := sending{n: n, m: &wire.Message{Kind: wire.AskName, ID: j.ID}}
	for _, p := range n.mesh.All() {
		if p.Connected && n.mesh.features[p.ID].Names {
			ask.asked = append(ask.asked, p)
			s.to(p)
		}
	}
	if len(ask.asked) == 0 {
		return false
	}
	n.nameAsks.begin(ask)
	n.wake = min(n.wake, ask.until)
	return true
}

// tickNames ends questions whose time is over. The jobs' timers queue the jobs, after that; where very many questions end at a time, the next
// ticks go on, and some jobs are queued before.
func (n *Node) tickNames() {
	for budget := tickBudget; len(n.nameAsks.ends) > 0 && n.nameAsks.ends[0].until <= n.now && budget > 0; {
		from := len(n.effects)
		n.endNameAsk(&n.nameAsks.ends[0].id)
		budget -= 1 + n.cost(from)
	}
}

// wakeForNames sees to it that tickNames is called in time.
func (n *Node) wakeForNames() {
	if ends := n.nameAsks.ends; len(ends) > 0 {
		n.wake = min(n.wake, ends[0].until)
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
		adding := n.addsNow(j)
		if adding && theirs(&n.self, &p.ID, &id) { // both add the job at this moment, and the sender queues it: it hears no objection (names_cross, names_cross_delayed)
			answer.Flags = 0
			n.leaveJob(n.meet(p, j), max(delayFrom(j, n.now), store.AnnounceMS))
			break
		}
		if !adding && n.isFresh(j) { // another node adds it at this moment, and answers for itself
			answer.Flags = 0
		}
		n.onWillQueue(p, j, m)
	}
	n.send(p, answer)
}

// isFresh says whether a job was added a moment ago, and this node leaves it to another.
func (n *Node) isFresh(j *store.Job) bool {
	return j.State == store.StateActive && j.Place == store.InHeld && j.Reason() == store.NoReason && j.Flags&store.FlagDelivered == 0 &&
		j.Deliveries == 0 && j.Nacks == 0 && int64(j.CTime/1_000_000) > n.now-freshNameMS
}

// onNamed leaves a job to a node that knows it, or queues it when all nodes have answered that they don't.
func (n *Node) onNamed(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	ask := n.nameAsks.open[id]
	if ask == nil {
		return
	}
	j := n.store.Lookup(&id)
	if j == nil || !waitsForName(j) {
		n.endNameAsk(&id)
		return
	}
	if m.Flags&wire.Known != 0 {
		n.nameKnown(&id)
		j = n.meet(p, j)
		n.leaveJob(j, delayFrom(j, n.now))
		return
	}
	if ask.asked = slices.DeleteFunc(ask.asked, func(q *Peer) bool { return q == p }); len(ask.asked) > 0 {
		return
	}
	if n.mayHaveHeir(j) { // a node that answered holds a copy for one that can't be asked: that one may have given the job to a client
		n.nameKnown(&id)
		n.leaveJob(j, delayFrom(j, n.now))
		return
	}
	n.endNameAsk(&id)
	if delayFrom(j, n.now) == 0 && j.Queue.Pause&PauseIn == 0 {
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
