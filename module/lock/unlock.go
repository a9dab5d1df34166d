package lock

import (
	"math"
	"slices"

	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// A node that couldn't be told to take a vote back is told again until it confirms. A node that is away is told when it
// is back, however late: a vote's lease begins anew when its node restarts, so the vote need not be over when the lease
// is.

const (
	unlockFirstMS = 200     // until a node is told again; doubles each time
	unlockLastMS  = 10_000  // the longest pause
	unlockTimeMS  = 600_000 // how long a connected node that doesn't confirm is told
	unlockSlice   = 1000    // pending unlocks looked at in one tick
)

// unlocksMost is how many pending unlocks of each kind there can be; beyond that the oldest is forgotten. Jobs' locks
// have a limit of their own: a node whose jobs wait for such a lock asks whether the lock's job is gone (Watch).
var unlocksMost = [unlockKinds]int{ofJobs: 10_000, ofOwners: 50_000}

// The kinds of pending unlocks.
const (
	ofJobs = iota
	ofOwners
	unlockKinds
)

// unlockList is the pending unlocks of a kind. Parked ones are those all of whose nodes are away; the others are open.
// tickUnlocks looks at them bit by bit, from the front on: at all of them after a node came or went, at the open ones
// when it is time. Those that stay go to the end.
type unlockList struct{ open, parked unlockQueue }

type unlockQueue struct {
	all  []*pendingUnlock
	left int // how many, from the front on, are still to be looked at
}

func (q *unlockQueue) add(d *pendingUnlock) { q.all = append(q.all, d) }

// take takes the first one out of the queue.
func (q *unlockQueue) take() *pendingUnlock {
	d := q.all[0]
	q.all[0] = nil
	q.all = q.all[1:]
	q.left = max(q.left-1, 0)
	return d
}

// begin makes all that are in the queue be looked at.
func (q *unlockQueue) begin() { q.left = len(q.all) }

// pendingUnlock is an Unlock that some nodes haven't confirmed.
type pendingUnlock struct {
	round uint64
	name  []byte
	Holder
	token uint64
	flags uint8 // of the message
	until int64 // monotonic: a node that is connected and hasn't confirmed by then never will
	next  int64 // monotonic: when it is sent again
	wait  int64 // the pause before that, ms
	nodes []wire.Node
	ups   uint64 // Mesh.Ups when it was looked at last
	made  uint64 // Mesh.Ups when it was made
	late  bool   // a node still had the vote when it was told again
}

// EnqueueUnlock tells nodes to take a vote back, until they confirm it.
func (n *Node) EnqueueUnlock(name []byte, h Holder, token uint64, flags uint8, nodes []wire.Node) {
	d, nodes := n.enqueueUnlock(name, h, token, flags, nodes)
	n.resendUnlock(d, nodes)
}

// enqueueUnlock is EnqueueUnlock without the first message, for which it returns the nodes.
func (n *Node) enqueueUnlock(name []byte, h Holder, token uint64, flags uint8, nodes []wire.Node) (*pendingUnlock, []wire.Node) {
	n.rounds++
	n.unlearn(name, &h, token, flags&wire.Fresh != 0)
	d := &pendingUnlock{round: n.rounds, name: slices.Clone(name), Holder: Holder{Job: h.Job, Owner: slices.Clone(h.Owner)}, token: token, flags: flags, nodes: nodes}
	n.addPendingUnlock(d)
	return d, nodes
}

// NoToken is less than the token of each lock. An Unlock with it takes no vote back: a node that has a vote says so.
const NoToken = 1

// GiveBack tells all nodes to take back their votes for a run of a job that was given back here, until they confirm it; with
// NoToken it asks for them ([Jobs.EndPastRun]). times is 1 more than how often the job had come back before ([Jobs.GivenBack]); 0: that
// says nothing. It is said once. A node that hears the Unlock later, as when it was sent again, may have given the job to
// a client since.
func (n *Node) GiveBack(name []byte, job store.ID, token, times uint64) {
	d, nodes := n.enqueueUnlock(name, Holder{Job: job}, token, 0, n.mesh.Nodes())
	n.sendUnlock(d, nodes, times)
}

// addPendingUnlock adds d, unless no node is to confirm it.
func (n *Node) addPendingUnlock(d *pendingUnlock) {
	if len(d.nodes) == 0 {
		return
	}
	kind := ofJobs
	if store.SpaceOf(d.name) == store.LockBare {
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

func (n *Node) resendUnlock(d *pendingUnlock, nodes []wire.Node) { n.sendUnlock(d, nodes, 0) }

func (n *Node) sendUnlock(d *pendingUnlock, nodes []wire.Node, times uint64) {
	m := wire.Message{Kind: wire.Unlock, Flags: d.flags, Round: d.round, Lock: wire.Lock{Name: d.name, Owner: d.Owner, Job: d.Job, Token: d.token}}
	m.Lock.SetTimes(times)
	n.mesh.SendTo(nodes, &m)
}

// onUnlockAnswer handles the answer of a node that was told. A node that has an older vote for the holder stays on the
// list: that vote must go, too, as soon as it is known that the holder had this one.
func (n *Node) onUnlockAnswer(d *pendingUnlock, p *membership.Peer, m *wire.Message) {
	freed := m.Kind == wire.Grant || m.Count == wire.Unconfirmed
	switch {
	case m.Kind == wire.Deny && d.hasOlder(m.Count, string(m.Lock.Owner)):
		return
	case freed && d.flags == 0 && store.SpaceOf(d.name) == store.LockBare:
		// Only now is the token known to be right: a client can be wrong.
		d.flags = wire.Committed
		n.Unvote(d.name, &d.Holder, d.token, d.flags)
	}
	n.unlockAcknowledged(d, p.Node, freed)
	if m.Kind == wire.Deny && d.Job != (store.ID{}) {
		n.jobs.EndPastRun(d.name, d.Job, m)
	}
}

// hasOlder says whether a node's answer to a release shows that it has an older vote for the holder.
func (d *pendingUnlock) hasOlder(why uint32, owner string) bool {
	return why == wire.NotHeld && d.flags&wire.Fresh == 0 && owner != "" && owner == string(d.Owner)
}

// unlockAcknowledged notes that a node has confirmed; freed: the node had the vote.
//
// If a vote stayed for a while, another node may have learnt it meanwhile (LockPage). That can even be a node that had
// confirmed, and forgot this in a restart. So all nodes are told once more, until none that is told again has the vote.
func (n *Node) unlockAcknowledged(d *pendingUnlock, node wire.Node, freed bool) {
	d.nodes = slices.DeleteFunc(d.nodes, func(o wire.Node) bool { return o == node })
	p := n.mesh.ByName(node)
	d.late = d.late || freed && (d.wait > unlockFirstMS || p != nil && p.Since > d.made)
	if len(d.nodes) == 0 {
		n.unlockDone(d)
	}
}

// unlockDone ends a pending unlock that every node has confirmed, or tells all nodes once more.
func (n *Node) unlockDone(d *pendingUnlock) {
	if !d.late {
		delete(n.unlocksByRound, d.round)
		d.until, n.nextResend = 0, 0
		return
	}
	d.late, d.nodes = false, n.mesh.Nodes()
	n.Unvote(d.name, &d.Holder, d.token, d.flags) // this node may have learnt the vote, too
	d.wait = unlockFirstMS
	d.next = n.host.Monotonic() + d.wait
	n.nextResend = min(n.nextResend, d.next)
	n.resendUnlock(d, d.nodes)
}

// unlocksUp tells a node that is back of pending unlocks, some of them at once.
func (n *Node) unlocksUp() {
	n.reviewUnlocks()
	n.tickUnlocks(n.host.Monotonic())
}

// reviewUnlocks begins to look at all pending unlocks, because a node is back or was forgotten.
func (n *Node) reviewUnlocks() {
	for kind := range n.unlocks {
		n.unlocks[kind].parked.begin()
		n.unlocks[kind].open.begin()
	}
	n.host.WakeIn(1)
}

// tickUnlocks looks at the pending unlocks that are due.
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
			n.host.WakeIn(1)
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

// tickUnlock sends a pending unlock again, if it is time or a node is back, and puts it into the queue where it
// belongs. Nodes that were forgotten need not confirm.
func (n *Node) tickUnlock(list *unlockList, d *pendingUnlock, now int64, told *int) {
	d.nodes = slices.DeleteFunc(d.nodes, func(node wire.Node) bool {
		p := n.mesh.ByName(node)
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
			if p := n.mesh.ByName(node); p.Since > ups {
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
