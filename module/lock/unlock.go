package lock

import (
	"math"
	"slices"

	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Nodes that couldn't be told that a vote is to be taken back are told until they confirm it.
// One that is away is told when it is back, however late: the lease of a vote begins anew
// where a node restarts, so it isn't over with the lease.

const (
	unlockFirstMS = 200     // until it is told again, doubling
	unlockLastMS  = 10_000  // at most
	unlockTimeMS  = 600_000 // how long a node is told that is connected and doesn't confirm
	unlockSlice   = 1000    // pending unlocks looked at in one tick
)

// unlocksMost is how many pending unlocks there can be; then the oldest is forgotten. The locks of jobs
// have their own number: a node whose jobs wait for such a lock asks whether its job is gone
// (Watch).
var unlocksMost = [unlockKinds]int{ofJobs: 10_000, ofOwners: 50_000}

// The kinds of pending unlocks.
const (
	ofJobs = iota
	ofOwners
	unlockKinds
)

// unlockList is the pending unlocks of a kind: open ones, and parked ones, all of whose nodes are away.
// They are looked at bit by bit, from the front on, where nodes have come or gone, and the open
// ones where it is time. Those that stay go to the end.
type unlockList struct{ open, parked unlockQueue }

type unlockQueue struct {
	all  []*pendingUnlock
	left int // of the first ones, that are to be looked at
}

func (q *unlockQueue) add(d *pendingUnlock) { q.all = append(q.all, d) }

// take takes the first one out.
func (q *unlockQueue) take() *pendingUnlock {
	d := q.all[0]
	q.all[0] = nil
	q.all = q.all[1:]
	q.left = max(q.left-1, 0)
	return d
}

// begin has all that are there be looked at.
func (q *unlockQueue) begin() { q.left = len(q.all) }

// pendingUnlock is an Unlock that some nodes haven't confirmed.
type pendingUnlock struct {
	round uint64
	name  []byte
	Holder
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

// EnqueueUnlock tells nodes to take a vote back, until they confirm it.
func (n *Node) EnqueueUnlock(name []byte, h Holder, token uint64, flags uint8, nodes []wire.Node) {
	n.rounds++
	n.unlearn(name, &h, token, flags&wire.Fresh != 0)
	d := &pendingUnlock{round: n.rounds, name: slices.Clone(name), Holder: Holder{Job: h.Job, Owner: slices.Clone(h.Owner)}, token: token, flags: flags, nodes: nodes}
	n.addPendingUnlock(d)
	n.resendUnlock(d, nodes)
}

// addPendingUnlock notes a pending unlock.
func (n *Node) addPendingUnlock(d *pendingUnlock) {
	if len(d.nodes) == 0 {
		return
	}
	kind := ofJobs
	if store.Space(d.name[0]) == store.LockBare {
		kind = ofOwners
	}
	list := &n.unlocks[kind]
	if len(list.open.all)+len(list.parked.all) >= unlocksMost[kind] {
		oldest := &list.parked
		if len(oldest.all) == 0 {
			oldest = &list.open
		}
		delete(n.unlocksByRound, oldest.take().round)
	}
	now := n.host.Monotonic()
	d.until, d.next, d.wait, d.ups = now+unlockTimeMS, now+unlockFirstMS, unlockFirstMS, n.mesh.Ups()
	d.made = d.ups
	list.open.add(d)
	n.unlocksByRound[d.round] = d
	n.nextResend = min(n.nextResend, d.next)
	n.host.WakeIn(unlockFirstMS)
}

func (n *Node) resendUnlock(d *pendingUnlock, nodes []wire.Node) {
	n.mesh.SendTo(nodes, &wire.Message{Kind: wire.Unlock, Flags: d.flags, Round: d.round, Lock: wire.Lock{Name: d.name, Owner: d.Owner, Job: d.Job, Token: d.token}})
}

// onUnlockAnswer hears from a node that was told. One that has an older vote of the holder's is told
// again, for that is to go as soon as it is known that he had this one.
func (n *Node) onUnlockAnswer(d *pendingUnlock, p *membership.Peer, m *wire.Message) {
	freed := m.Kind == wire.Grant || m.Count == wire.Unconfirmed
	switch {
	case m.Kind == wire.Deny && d.hasOlder(m.Count, string(m.Lock.Owner)):
		return
	case freed && d.flags == 0 && store.Space(d.name[0]) == store.LockBare:
		// A client's word alone may be wrong.
		d.flags = wire.Committed
		n.Unvote(d.name, &d.Holder, d.token, d.flags)
	}
	n.unlockAcknowledged(d, p.Node, freed)
	if m.Kind == wire.Deny && d.Job != (store.ID{}) {
		n.jobs.EndPastRun(d.name, d.Job, m)
	}
}

// hasOlder says whether a node that gave such an answer to a release has a vote by which the
// holder had the lock before.
func (d *pendingUnlock) hasOlder(why uint32, owner string) bool {
	return why == wire.NotHeld && d.flags&wire.Fresh == 0 && owner != "" && owner == string(d.Owner)
}

// unlockAcknowledged notes that a node has confirmed; freed says that it had the vote.
//
// A vote that stayed for a while may have been learnt meanwhile (LockPage), also by a node
// that had confirmed, and forgot that in a restart. So all are told once more, until none
// that is told again has it.
func (n *Node) unlockAcknowledged(d *pendingUnlock, node wire.Node, freed bool) {
	d.nodes = slices.DeleteFunc(d.nodes, func(o wire.Node) bool { return o == node })
	p := n.mesh.Of(node)
	d.late = d.late || freed && (d.wait > unlockFirstMS || p != nil && p.Since > d.made)
	if len(d.nodes) == 0 {
		n.unlockDone(d)
	}
}

// unlockDone is for a pending unlock that no node is left to confirm.
func (n *Node) unlockDone(d *pendingUnlock) {
	if !d.late {
		delete(n.unlocksByRound, d.round)
		d.until, n.nextResend = 0, 0
		return
	}
	d.late, d.nodes = false, n.mesh.Nodes()
	n.Unvote(d.name, &d.Holder, d.token, d.flags) // this node, too, may have learnt it
	d.wait = unlockFirstMS
	d.next = n.host.Monotonic() + d.wait
	n.nextResend = min(n.nextResend, d.next)
	n.resendUnlock(d, d.nodes)
}

// unlocksUp has a node that is back told of what it is owed, some of it at once.
func (n *Node) unlocksUp() {
	n.reviewUnlocks()
	n.tickUnlocks(n.host.Monotonic())
}

// reviewUnlocks follows a node that is back, or forgotten: all pending unlocks are looked at soon.
func (n *Node) reviewUnlocks() {
	for kind := range n.unlocks {
		n.unlocks[kind].parked.begin()
		n.unlocks[kind].open.begin()
	}
	n.host.Hurry()
}

// tickUnlocks goes on with what is to be looked at.
func (n *Node) tickUnlocks(now int64) {
	if now >= n.nextResend {
		n.nextResend = math.MaxInt64
		for kind := range n.unlocks {
			n.unlocks[kind].open.begin()
		}
	}
	budget, told := unlockSlice, 0
	for kind := range n.unlocks {
		list := &n.unlocks[kind]
		for ; list.parked.left > 0 && budget > 0 && told < unlockMost; budget-- {
			d := list.parked.take()
			d.until, d.next, d.wait = now+unlockTimeMS, now, unlockLastMS
			n.tickUnlock(list, d, now, &told)
		}
		for ; list.open.left > 0 && budget > 0 && told < unlockMost; budget-- {
			n.tickUnlock(list, list.open.take(), now, &told)
		}
		if list.parked.left+list.open.left > 0 {
			n.host.Hurry()
		}
	}
	if n.nextResend < math.MaxInt64 {
		n.host.WakeIn(max(n.nextResend-now, 1))
	}
}

// reachable says whether one of a pending unlock's nodes is connected.
func (n *Node) reachable(d *pendingUnlock) bool {
	return slices.ContainsFunc(d.nodes, n.mesh.Reaches)
}

// tickUnlock tells of a pending unlock again, if it is time or a node is back, and puts it where it belongs.
// Nodes that were forgotten are owed nothing.
func (n *Node) tickUnlock(list *unlockList, d *pendingUnlock, now int64, told *int) {
	d.nodes = slices.DeleteFunc(d.nodes, func(node wire.Node) bool {
		p := n.mesh.Of(node)
		return p == nil || p.Connected && d.until <= now
	})
	ups := d.ups
	d.ups = n.mesh.Ups()
	if len(d.nodes) == 0 && d.until > now {
		n.unlockDone(d)
		*told += len(d.nodes)
		ups = d.ups
	}
	switch {
	case len(d.nodes) == 0:
		delete(n.unlocksByRound, d.round)
		return
	case d.until > now && d.next > now:
		for _, node := range d.nodes {
			if p := n.mesh.Of(node); p.Since > ups {
				*told++
				n.resendUnlock(d, []wire.Node{node})
			}
		}
	case !n.reachable(d):
		list.parked.add(d)
		return
	default:
		*told += len(d.nodes)
		d.wait = min(2*d.wait, unlockLastMS)
		d.next = now + d.wait
		n.resendUnlock(d, d.nodes)
	}
	list.open.add(d)
	n.nextResend = min(n.nextResend, d.next, d.until)
}
