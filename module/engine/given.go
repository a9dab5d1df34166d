package engine

import (
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Jobs that were handed over (YourJob) and may never have arrived: their node died or stands still, or the
// connection ended, before they were read, or before its log had them. Nobody has such a job in a
// queue, and it would wait for its retry time. So when that node is connected again, this one asks
// all holders about them, as before any queueing. One that has the job objects. So it does when that node
// is forgotten, and wasn't there any more: it doesn't come back under this ID, and a replica that was
// promoted in its place has only the jobs that had reached it. And so it does when that node has been silent for
// the node timeout: those that it was given before its last word have most likely arrived, and wait for their retry time.

const (
	givenMS   = 5_000              // how long before a node was heard last a job that it was given is in doubt
	givenMost = 20_000             // of so many jobs for one node; older ones wait for their retry time
	absentMS  = 2 * heartbeatEvery // a node that is connected, and silent for longer, may have died: it is given no jobs
	unreadMS  = heartbeatEvery     // how long before a silent node was heard last a job that it was given may not have been read
)

// given is a job that was handed over.
type given struct {
	id store.ID
	at int64 // unix ms
}

// gave notes that a job was handed over to a node.
func (p *Peer) gave(j *store.Job, now int64) {
	limit, list := p.Heard-givenMS, p.given
	for len(list) > 0 && (list[0].at < limit || len(list) >= givenMost) {
		list = list[1:]
	}
	p.given = append(list, given{j.ID, now})
}

// taker is the node to which this one has handed a job over, which it has given to nobody since: so
// only that node can tell whether a client has it. 0: there is none.
func taker(j *store.Job) wire.Node {
	if j.State != store.StateActive || j.Retry == 0 || j.Flags&store.FlagDelivered == 0 {
		return 0
	}
	for i := range j.Holders() {
		if node, yes := j.Holder(i); yes {
			return wire.Node(node)
		}
	}
	return 0
}

// isAbsent says whether a node may be gone, though it is connected. It says something at each heartbeat.
func (n *Node) isAbsent(p *Peer) bool { return n.now-p.Heard > absentMS }

// givenUp follows a connection, before its node is heard.
func (n *Node) givenUp(p *Peer) {
	n.doubt(p, givenMS)
	p.given = nil
}

// doubt has this node ask about the jobs that a node was given since some time before it was heard last.
func (n *Node) doubt(p *Peer, before int64) {
	var older []given
	for _, g := range p.given {
		switch {
		case g.at < p.Heard-before:
			older = append(older, g)
		case len(p.doubted) < givenMost:
			p.doubted = append(p.doubted, g.id)
		}
	}
	p.given = older
	if len(p.doubted) > 0 {
		n.hurryTick()
	}
}

// givenSilent follows a node's silence for the node timeout.
func (n *Node) givenSilent(p *Peer) {
	n.doubt(p, unreadMS)
	n.askAbsent(p)
}

// givenGone has this node ask about the jobs of a node that was forgotten. Where that node was heard just
// now, it has its jobs, and nobody asks: a client there may work on them.
func (n *Node) givenGone(p *Peer) {
	if !p.Connected || n.isAbsent(p) {
		n.givenUp(p)
	}
	n.askAbsent(p)
}

// askAbsent has tickGiven ask about a node's jobs in doubt, although it isn't there.
func (n *Node) askAbsent(p *Peer) {
	if len(p.doubted) > 0 && !slices.Contains(n.mesh.absent, p) {
		n.mesh.absent = append(n.mesh.absent, p)
		n.hurryTick()
	}
}

// tickGiven has jobs that may not have arrived be queued here soon, unless somebody objects.
func (n *Node) tickGiven() {
	budget := tickBudget
	for _, p := range n.mesh.order {
		if p.Connected {
			n.askGiven(p, &budget)
		}
	}
	n.mesh.absent = slices.DeleteFunc(n.mesh.absent, func(p *Peer) bool {
		n.askGiven(p, &budget)
		return len(p.doubted) == 0
	})
}

// askGiven is tickGiven for the jobs of one node.
func (n *Node) askGiven(p *Peer, budget *int) {
	for i := 0; len(p.doubted) > 0 && *budget > 0; i++ {
		id := p.doubted[0]
		p.doubted = p.doubted[1:]
		*budget--
		j := n.store.Lookup(&id)
		at := n.now + askFirstMS + 2*store.AnnounceMS + n.jitter() + int64(i)/askRate // after that node, where it had the job queued
		if j == nil || taker(j) != p.Node || j.QTime <= at {
			continue
		}
		j.Flags = j.Flags&^store.FlagAnnounced | store.FlagReturning
		n.setQTime(j, at)
		n.arm(j)
	}
	if len(p.doubted) == 0 {
		p.doubted = nil
	} else {
		n.hurryTick()
	}
}
