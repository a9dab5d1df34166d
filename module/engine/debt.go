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
)

// debtMost is how many debts there can be; then the oldest is forgotten. The locks of jobs
// have their own number: others find out by themselves that a job is gone.
var debtMost = [debtKinds]int{ofJobs: 10_000, ofOwners: 50_000}

// The kinds of debts.
const (
	ofJobs = iota
	ofOwners
	debtKinds
)

// debtList is the debts of a kind: open ones, and parked ones, all of whose nodes are away.
type debtList struct{ open, parked []*debt }

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
	late  bool // a node had the vote still when it was told again
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
	if len(list.open)+len(list.parked) >= debtMost[kind] {
		oldest := &list.parked
		if len(*oldest) == 0 {
			oldest = &list.open
		}
		delete(n.owed, (*oldest)[0].round)
		*oldest = (*oldest)[1:]
	}
	now := n.steady()
	d.until, d.next, d.wait = now+debtTimeMS, now+debtFirstMS, debtFirstMS
	list.open = append(list.open, d)
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
	d.late = d.late || freed && d.wait > debtFirstMS
	switch {
	case len(d.nodes) > 0:
	case d.late:
		d.late, d.nodes = false, n.allPeers()
		d.wait = debtFirstMS
		d.next = n.steady() + d.wait
		n.nextDun = min(n.nextDun, d.next)
		for _, node := range d.nodes {
			n.dun(d, n.mesh.by[node])
		}
	default:
		delete(n.owed, d.round)
		d.until, n.nextDun = 0, 0
	}
}

func (n *Node) payDebts(now int64) {
	if now >= n.nextDun {
		n.nextDun = math.MaxInt64
		told := 0
		for kind := range n.debts {
			list := &n.debts[kind]
			// Few are open: most are confirmed at once.
			list.open = slices.DeleteFunc(list.open, func(d *debt) bool { return n.payDebt(list, d, now, &told) })
		}
	}
	if n.nextDun < math.MaxInt64 {
		n.wake = min(n.wake, n.now+max(n.nextDun-now, 1))
	}
}

// payDebt tells of a debt again, if it is time. True: it isn't open any more.
func (n *Node) payDebt(list *debtList, d *debt, now int64, told *int) (over bool) {
	connected := func(node wire.Node) bool { p := n.mesh.by[node]; return p != nil && p.Connected }
	if d.until <= now {
		d.nodes = slices.DeleteFunc(d.nodes, connected)
	}
	switch {
	case d.until > now && d.next > now:
	case len(d.nodes) == 0:
		delete(n.owed, d.round)
		return true
	case !slices.ContainsFunc(d.nodes, connected):
		list.parked = append(list.parked, d)
		return true
	case *told < unlockMost:
		*told += len(d.nodes)
		d.wait = min(2*d.wait, debtLastMS)
		d.next = now + d.wait
		for _, node := range d.nodes {
			n.dun(d, n.mesh.by[node])
		}
	}
	n.nextDun = min(n.nextDun, d.next, d.until)
	return false
}

// debtsUp has a node that is back told of what it is owed, some of it at once.
func (n *Node) debtsUp(p *Peer) {
	n.unpark(p)
	now, told := n.steady(), 0
	for kind := range n.debts {
		for _, d := range n.debts[kind].open {
			switch {
			case !slices.Contains(d.nodes, p.Node):
			case told < unlockMost:
				told++
				n.dun(d, p)
			default:
				d.next = now
				n.hurryTick()
			}
		}
	}
}

// forgiveDebts is for a node that is forgotten.
func (n *Node) forgiveDebts(p *Peer) {
	n.unpark(p)
	for kind := range n.debts {
		for _, d := range n.debts[kind].open {
			n.paid(d, p.Node, false)
		}
	}
}

// unpark opens the debts to a node.
func (n *Node) unpark(p *Peer) {
	now := n.steady()
	for kind := range n.debts {
		list := &n.debts[kind]
		var open []*debt
		list.parked = slices.DeleteFunc(list.parked, func(d *debt) bool {
			if !slices.Contains(d.nodes, p.Node) {
				return false
			}
			d.until, d.next, d.wait = now+debtTimeMS, now+debtLastMS, debtLastMS
			open = append(open, d)
			return true
		})
		if len(open) > 0 {
			list.open = append(open, list.open...)
		}
	}
	n.nextDun = 0
}
