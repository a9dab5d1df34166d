package engine

import (
	"math"
	"slices"

	"jobmesh/module/wire"
)

// What is owed to nodes that couldn't be told: that a vote is to be taken back.

const (
	debtFirstMS = 200     // until it is told again, doubling
	debtLastMS  = 10_000  // at most
	debtTimeMS  = 600_000 // how long it is owed
	debtMax     = 10_000  // debts at once; the oldest is forgotten
)

// debt is an Unlock that some nodes haven't confirmed.
type debt struct {
	round uint64
	name  []byte
	holder
	token uint64
	flags uint8 // of the message
	until int64 // steady; then the votes are over anyway
	next  int64 // steady
	wait  int64 // ms
	nodes []wire.Node
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

// owes notes a debt. It isn't over with the lease: that of a node that restarts
// begins anew.
func (n *Node) owes(d *debt) {
	if len(d.nodes) == 0 {
		return
	}
	if len(n.debts) >= debtMax {
		delete(n.owed, n.debts[0].round)
		n.debts = n.debts[1:]
	}
	now := n.steady()
	d.until, d.next, d.wait = now+debtTimeMS, now+debtFirstMS, debtFirstMS
	n.debts = append(n.debts, d)
	n.owed[d.round] = d
	n.nextDun = min(n.nextDun, d.next)
	n.wake = min(n.wake, n.now+debtFirstMS)
}

func (n *Node) dun(d *debt, p *Peer) {
	n.send(p, &wire.Message{Kind: wire.Unlock, Flags: d.flags, Round: d.round, Lock: wire.Lock{Name: d.name, Owner: d.owner, Job: d.id, Token: d.token}})
}

// paid notes that a node has confirmed.
func (n *Node) paid(d *debt, node wire.Node) {
	d.nodes = slices.DeleteFunc(d.nodes, func(o wire.Node) bool { return o == node })
	if len(d.nodes) == 0 {
		delete(n.owed, d.round)
		d.until, n.nextDun = 0, 0
	}
}

func (n *Node) payDebts(now int64) {
	if len(n.debts) == 0 || now < n.nextDun {
		return
	}
	n.nextDun = math.MaxInt64
	// Few are left, but for nodes that are down: most are confirmed at once.
	n.debts = slices.DeleteFunc(n.debts, func(d *debt) bool {
		if d.until <= now {
			delete(n.owed, d.round)
			return true
		}
		if d.next <= now {
			d.wait = min(2*d.wait, debtLastMS)
			d.next = now + d.wait
			for _, node := range d.nodes {
				n.dun(d, n.mesh.by[node])
			}
		}
		n.nextDun = min(n.nextDun, d.next, d.until)
		return false
	})
	if len(n.debts) > 0 {
		n.wake = min(n.wake, n.now+max(n.nextDun-now, 1))
	}
}
