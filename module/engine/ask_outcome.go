package engine

import (
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// A job waits for one that this node doesn't know: this node asks the others what became of that one. A job that
// no node knows counts as ended undone.

const outcomeMS = 10_000 // ms between questions what became of a job that isn't known here

// look finds out what became of the jobs that j waits for, where that isn't plain. The job may be gone
// afterwards.
func (n *Node) look(j *store.Job) {
	id := j.ID
	lacks := n.lacks(j)
	switch {
	case lacks && len(n.mesh.All()) == 0:
		n.allEnded(j)
		return
	case lacks:
		n.askOutcome(&id)
	}
	n.countIDs(j)
	f, _ := j.Family()
	wait := false
	var over []end // of jobs that aren't here
	for i := range f.IDs() {
		pid := f.ID(i)
		p := n.lookEnded(&pid)
		if p != nil && ownView(p) && !n.mesh.Alone() { // others may know better, and are asked
			n.remove(p)
			p = nil
		}
		e := end{id: pid, origin: origin{clock: true}}
		switch {
		case p != nil && p.Queue.DB != 0:
			e.undone, e.unreleased = outcomeOf(p)
		case p != nil && p.State != store.StateAcked:
			if n.passed(j) == p {
				n.unblockOne(j, n.timingOf(j, &end{job: p, origin: origin{clock: true}}))
				return
			}
			continue
		case p != nil:
			// That job unblocks its dependents itself, bit by bit.
			n.wakeAt(p, n.now+1)
			wait = true
			continue
		case n.store.Done(&pid):
		case len(n.mesh.All()) == 0 && n.maybeDormant(&pid):
			wait = true
			continue
		case len(n.mesh.All()) == 0 && n.othersForgotten(j):
			e.undone, e.unreleased = true, true
		default:
			n.askOutcome(&pid)
			wait = true
			continue
		}
		if e.undone && (f.OnDead != OnDeadRun || f.Flags&store.FamilyBlocked != 0) {
			over = append(over[:0], e) // j doesn't go on
			break
		}
		over = append(over, e)
	}
	if n.goOn(j, over) {
		wait = true
	}
	if j = n.store.Lookup(&id); j == nil || !held(j) {
		return
	}
	n.setTime(j, 0)
	if wait || lacks {
		n.setTime(j, n.now+outcomeMS+n.jitter())
	}
	n.arm(j)
}

// othersForgotten says whether all other holders of a job were forgotten. A promoted replica hasn't forgotten those that it has still to meet.
func (n *Node) othersForgotten(j *store.Job) bool {
	for i := range j.Holders() {
		if node, _ := j.Holder(i); !n.mesh.WasForgotten(wire.Node(node)) {
			return false
		}
	}
	return true
}

// goOn follows the ends of jobs that aren't here, and for which j waited. If j goes on without several, they
// are taken out at once. It says whether some jobs still wait for one of them.
func (n *Node) goOn(j *store.Job, over []end) (left bool) {
	switch len(over) {
	case 0:
	case 1:
		n.store.AddEdge(&over[0].id, j)
	default:
		ids := make([]store.ID, len(over))
		for i := range over {
			ids[i] = over[i].id
			n.removeEdge(&ids[i], &j.ID)
		}
		n.outlive(j, &end{origin: origin{clock: true}}, ids...)
	}
	for _, e := range over {
		if n.store.Dependents(&e.id) != nil && !n.followUnknown(e) {
			left = true
		}
	}
	return left
}

// asked is a question to all nodes what became of a job.
type asked struct {
	next    int64       // unix ms: it isn't asked again before
	round   uint64      // of the question that was sent last
	unknown []wire.Node // nodes that answered that they don't know the job
}

// A node where a job waits for one that it doesn't know asks again every outcomeMS. One that hasn't asked for askedMS has no such job any
// more, or can't be reached.
const (
	askedMS   = 3 * outcomeMS
	askedMost = 1 << 16 // jobs of a generation
)

// noteAsked notes that a node asked what became of an at-most-once job, or may have.
func (n *Node) noteAsked(j *store.Job) {
	if j.Retry == 0 {
		n.deps.askers.TurnDue(n.demandTime(), askedMS, askedMost)
		n.deps.askers.Put(j.ID, n.demandTime())
	}
}

// askedLately says whether a node has asked so lately what became of an at-most-once job that one may still wait for it there.
func (n *Node) askedLately(j *store.Job) bool {
	at, yes := n.deps.askers.Get(j.ID)
	return yes && n.demandTime()-at < askedMS
}

// tickOutcomes forgets questions whose answers nobody waits for.
func (n *Node) tickOutcomes() {
	if n.now >= n.deps.sweep {
		n.deps.sweep = n.now + outcomeMS
		n.deps.asked.Begin()
	}
	more := n.deps.asked.Pass(followMost, func(id store.ID, _ *asked) bool {
		return n.store.Dependents(&id) != nil || n.lacks(n.store.Lookup(&id))
	})
	if more {
		n.hurryTick()
	}
}

// askOutcome asks all nodes what became of a job.
func (n *Node) askOutcome(id *store.ID) {
	a := n.deps.asked.Make(*id, asked{})
	if n.now < a.next {
		return
	}
	n.deps.rounds++
	a.next, a.round, a.unknown = n.now+outcomeMS-jitterMS, n.deps.rounds, a.unknown[:0]
	n.tellAll(&wire.Message{Kind: wire.AskOutcome, ID: *id, Round: a.round})
}

func (n *Node) onAskOutcome(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	reply := wire.Message{Kind: wire.Outcome, ID: m.ID, Count: wire.OutcomeUnknown, Round: m.Round}
	j := n.lookEnded(&id)
	if j != nil && ownView(j) {
		j = nil // other nodes may know better
	}
	switch {
	case j != nil && n.hearsay(j):
		reply.Count = wire.OutcomeOpen // as far as is known here
	case j != nil && j.State == store.StateAcked:
		reply.Count = wire.OutcomeEnded
		reply.Flags = ackFlags(j)
	case j != nil:
		reply.Count = wire.OutcomeOpen
		if j.State != store.StateWaitRepl && !noted(j, store.TagAskers, p) {
			j, _ = n.noteNode(j, store.TagAskers, p)
			n.log(LogState, j)
		}
		n.noteAsked(j)
	case n.store.Done(&id):
		reply.Count = wire.OutcomeEnded
	case n.tombstones.cancelled(&id):
		reply.Count, reply.Flags = wire.OutcomeEnded, wire.Cancelled|wire.HeldBack
	case n.maybeDormant(&id), n.delegated.Has(id):
		reply.Count = wire.OutcomeOpen // as far as is known here
	}
	if n.comesAfter(&id) {
		reply.Flags |= wire.Before
	}
	n.send(p, &reply)
}

// onOutcome takes an answer. A job that no node knows counts as ended undone, and unreleased.
func (n *Node) onOutcome(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	a := n.deps.asked.Get(id)
	if a == nil {
		return
	}
	if j := n.store.Lookup(&id); j != nil {
		n.onLast(p, j, a, m)
		return
	}
	e := end{id: id, undone: true, unreleased: true, origin: origin{from: p}}
	switch m.Count {
	case wire.OutcomeOpen:
		a.unknown = a.unknown[:0]
		return
	case wire.OutcomeEnded:
		e.undone, e.unreleased = m.Flags&wire.Cancelled != 0, m.Flags&wire.HeldBack != 0
	default:
		if !n.allUnknown(a, p, m) || n.maybeDormant(&id) {
			return
		}
	}
	n.deps.asked.Remove(id)
	n.followUnknown(e)
}

// allUnknown notes that a node doesn't know the job, and says whether no node does. An answer to an earlier
// round doesn't count: the job may have moved to that node since, from one that has answered this round.
func (n *Node) allUnknown(a *asked, p *Peer, m *wire.Message) bool {
	if m.Round != a.round {
		return false
	}
	if !slices.Contains(a.unknown, p.Node) {
		a.unknown = append(a.unknown, p.Node)
	}
	for _, q := range n.mesh.All() {
		if !slices.Contains(a.unknown, q.Node) {
			return false
		}
	}
	return true
}

// heardOfStranger handles the end, by a SetAck, of a job that isn't known here.
func (n *Node) heardOfStranger(p *Peer, id store.ID, m *wire.Message) {
	undone := m.Flags&wire.Cancelled != 0
	switch {
	case !undone:
		n.store.SetDone(&id)
	case len(m.Holders) == 0 && m.Flags&wire.HeldBack == 0:
		n.evicted(id, false) // the sender knows no more than that it was cancelled
		return
	}
	n.followUnknown(end{id: id, undone: undone, unreleased: m.Flags&wire.HeldBack != 0, told: m.Holders, origin: origin{from: p}})
}
