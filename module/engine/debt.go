package engine

import (
	"math"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Nodes that couldn't be told that a vote is to be taken back are told until they confirm it.
// One that is away is told when it is back, however late: the lease of a vote begins anew
// where a node restarts, so it isn't over with the lease.

const (
	debtFirstMS = 200     // until it is told again, doubling
	debtLastMS  = 10_000  // at most
	debtTimeMS  = 600_000 // how long a node is told that is connected and doesn't confirm
	debtSlice   = 1000    // debts looked at in one tick
)

// debtMost is how many debts there can be; then the oldest is forgotten. The locks of jobs
// have their own number: a node whose jobs wait for such a lock asks whether its job is gone
// (watchLock).
var debtMost = [debtKinds]int{ofJobs: 10_000, ofOwners: 50_000}

// The kinds of debts.
const (
	ofJobs = iota
	ofOwners
	debtKinds
)

// debtList is the debts of a kind: open ones, and parked ones, all of whose nodes are away.
// They are looked at bit by bit, from the front on, where nodes have come or gone, and the open
// ones where it is time. Those that stay go to the end.
type debtList struct{ open, parked debtQueue }

type debtQueue struct {
	all  []*debt
	left int // of the first ones, that are to be looked at
}

func (q *debtQueue) add(d *debt) { q.all = append(q.all, d) }

// take takes the first one out.
func (q *debtQueue) take() *debt {
	d := q.all[0]
	q.all[0] = nil
	q.all = q.all[1:]
	q.left = max(q.left-1, 0)
	return d
}

// begin has all that are there be looked at.
func (q *debtQueue) begin() { q.left = len(q.all) }

// debt is an Unlock that some nodes haven't confirmed.
type debt struct {
	round uint64
	name  []byte
	holder
	token uint64
	flags uint8 // of the message
	until int64 // steady; who is connected and hasn't confirmed then never will
	next  int64 // steady
	wait  int64 // ms
	nodes []wire.Node
	ups   uint64 // members.ups when it was looked at last
	made  uint64 // members.ups when it was made
	late  bool   // a node had the vote still when it was told again
}

// owe tells nodes to take a vote back, until they confirm it.
func (n *Node) owe(name []byte, h holder, token uint64, flags uint8, nodes []wire.Node) {
	n.rounds++
	n.unlearn(name, &h, token, flags&wire.Fresh != 0)
	d := &debt{round: n.rounds, name: slices.Clone(name), holder: holder{id: h.id, owner: slices.Clone(h.owner)}, token: token, flags: flags, nodes: nodes}
	n.owes(d)
	for _, node := range nodes {
		n.dun(d, n.mesh.by[node])
	}
}

// owes notes a debt.
func (n *Node) owes(d *debt) {
	if len(d.nodes) == 0 {
		return
	}
	kind := ofJobs
	if store.Space(d.name[0]) == store.LockBare {
		kind = ofOwners
	}
	list := &n.debts[kind]
	if len(list.open.all)+len(list.parked.all) >= debtMost[kind] {
		oldest := &list.parked
		if len(oldest.all) == 0 {
			oldest = &list.open
		}
		delete(n.owed, oldest.take().round)
	}
	now := n.steady()
	d.until, d.next, d.wait, d.ups = now+debtTimeMS, now+debtFirstMS, debtFirstMS, n.mesh.ups
	d.made = d.ups
	list.open.add(d)
	n.owed[d.round] = d
	n.nextDun = min(n.nextDun, d.next)
	n.wake = min(n.wake, n.now+debtFirstMS)
}

func (n *Node) dun(d *debt, p *Peer) {
	n.send(p, &wire.Message{Kind: wire.Unlock, Flags: d.flags, Round: d.round, Lock: wire.Lock{Name: d.name, Owner: d.owner, Job: d.id, Token: d.token}})
}

// onPaid hears from a node that was told. One that has an older vote of the holder's is told
// again, for that is to go as soon as it is known that he had this one.
func (n *Node) onPaid(d *debt, p *Peer, m *wire.Message) {
	freed := m.Kind == wire.Grant || m.Count == wire.Unproven
	switch {
	case m.Kind == wire.Deny && d.hasOlder(m.Count, string(m.Lock.Owner)):
		return
	case freed && d.flags == 0 && store.Space(d.name[0]) == store.LockBare:
		// A client's word alone may be wrong.
		d.flags = wire.Proven
		n.unvote(d.name, &d.holder, d.token, d.flags)
	}
	n.paid(d, p.Node, freed)
	if m.Kind == wire.Deny && d.id != (store.ID{}) {
		n.endPastRun(d.name, d.id, m)
	}
}

// hasOlder says whether a node that gave such an answer to a release has a vote by which the
// holder had the lock before.
func (d *debt) hasOlder(why uint32, owner string) bool {
	return why == wire.NotHeld && d.flags&wire.Fresh == 0 && owner != "" && owner == string(d.owner)
}

// paid notes that a node has confirmed; freed says that it had the vote.
//
// A vote that stayed for a while may have been learnt meanwhile (LockPage), also by a node
// that had confirmed, and forgot that in a restart. So all are told once more, until none
// that is told again has it.
func (n *Node) paid(d *debt, node wire.Node, freed bool) {
	d.nodes = slices.DeleteFunc(d.nodes, func(o wire.Node) bool { return o == node })
	p := n.mesh.by[node]
	d.late = d.late || freed && (d.wait > debtFirstMS || p != nil && p.up > d.made)
	if len(d.nodes) == 0 {
		n.emptied(d)
	}
}

// emptied is for a debt that no node is left to confirm.
func (n *Node) emptied(d *debt) {
	if !d.late {
		delete(n.owed, d.round)
		d.until, n.nextDun = 0, 0
		return
	}
	d.late, d.nodes = false, n.allPeers()
	n.unvote(d.name, &d.holder, d.token, d.flags) // this node, too, may have learnt it
	d.wait = debtFirstMS
	d.next = n.steady() + d.wait
	n.nextDun = min(n.nextDun, d.next)
	for _, node := range d.nodes {
		n.dun(d, n.mesh.by[node])
	}
}

// debtsUp has a node that is back told of what it is owed, some of it at once.
func (n *Node) debtsUp() {
	n.reviewDebts()
	n.payDebts(n.steady())
}

// reviewDebts follows a node that is back, or forgotten: all debts are looked at soon.
func (n *Node) reviewDebts() {
	for kind := range n.debts {
		n.debts[kind].parked.begin()
		n.debts[kind].open.begin()
	}
	n.hurryTick()
}

// payDebts goes on with what is to be looked at.
func (n *Node) payDebts(now int64) {
	if now >= n.nextDun {
		n.nextDun = math.MaxInt64
		for kind := range n.debts {
			n.debts[kind].open.begin()
		}
	}
	budget, told := debtSlice, 0
	for kind := range n.debts {
		list := &n.debts[kind]
		for ; list.parked.left > 0 && budget > 0 && told < unlockMost; budget-- {
			d := list.parked.take()
			d.until, d.next, d.wait = now+debtTimeMS, now, debtLastMS
			n.payDebt(list, d, now, &told)
		}
		for ; list.open.left > 0 && budget > 0 && told < unlockMost; budget-- {
			n.payDebt(list, list.open.take(), now, &told)
		}
		if list.parked.left+list.open.left > 0 {
			n.hurryTick()
		}
	}
	if n.nextDun < math.MaxInt64 {
		n.wake = min(n.wake, n.now+max(n.nextDun-now, 1))
	}
}

// reachable says whether one of a debt's nodes is connected.
func (n *Node) reachable(d *debt) bool {
	return slices.ContainsFunc(d.nodes, n.reaches)
}

// payDebt tells of a debt again, if it is time or a node is back, and puts it where it belongs.
// Nodes that were forgotten are owed nothing.
func (n *Node) payDebt(list *debtList, d *debt, now int64, told *int) {
	d.nodes = slices.DeleteFunc(d.nodes, func(node wire.Node) bool {
		p := n.mesh.by[node]
		return p == nil || p.Connected && d.until <= now
	})
	ups := d.ups
	d.ups = n.mesh.ups
	if len(d.nodes) == 0 && d.until > now {
		n.emptied(d)
		*told += len(d.nodes)
		ups = d.ups
	}
	switch {
	case len(d.nodes) == 0:
		delete(n.owed, d.round)
		return
	case d.until > now && d.next > now:
		for _, node := range d.nodes {
			if p := n.mesh.by[node]; p.up > ups {
				*told++
				n.dun(d, p)
			}
		}
	case !n.reachable(d):
		list.parked.add(d)
		return
	default:
		*told += len(d.nodes)
		d.wait = min(2*d.wait, debtLastMS)
		d.next = now + d.wait
		for _, node := range d.nodes {
			n.dun(d, n.mesh.by[node])
		}
	}
	list.open.add(d)
	n.nextDun = min(n.nextDun, d.next, d.until)
}
