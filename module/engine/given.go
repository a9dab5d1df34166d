package engine

import (
	"slices"

	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Jobs that this node has handed over (YourJob) may never have arrived: the taker died or stands
// still, or the connection ended, before it had read them, or before its log had them. No node
// has such a job in a queue, and it would wait for its retry time. So this node asks all holders
// about these jobs, as before any queueing, and a holder that has the job objects. It asks
//   - when the taker is connected again;
//   - when the taker is forgotten, and wasn't there any more: it doesn't come back under this ID,
//     and a replica that was promoted in its place has only the jobs that had reached it;
//   - when the taker has been silent for the node timeout, about the jobs that it was given since
//     a second before it was heard last. Those that it was given earlier have most likely arrived,
//     and wait for their retry time.
//
// This node may also have copies of jobs whose IDs no client was told: the node that added them
// crashed while its ADDJOB was under way, or its log lacks what it answered last. No node has such
// a job in a queue, and if it is unique, other jobs with its key are refused. So this node asks all
// holders about these copies
//   - when that node is back as another process, about copies that came in the seconds before that
//     node was heard last;
//   - when that node has been silent for the node timeout, or is forgotten, about copies of unique
//     jobs that came in its last second: a client that asked again was refused, and has added no
//     other job.

const (
	givenMS   = 5_000                     // a job is in doubt if it was given, or its copy came, at most so many ms before the other node was heard last
	givenMost = 20_000                    // jobs for one node, and copies from it, that are remembered; older ones wait for their retry time
	backMS    = 8_000                     // ms by which copies are asked about later than jobs that were given: the node that added them first asks about its own
	unreadMS  = membership.HeartbeatEvery // ms before a silent node was heard last in which it may not have read a job, or not have answered an ADDJOB
)

// given is a job that was handed over, or of which a copy came.
type given struct {
	id     store.ID
	at     int64 // unix ms
	unique bool
}

// gave notes that a job was handed over to a node.
func (p *Peer) gave(j *store.Job, now int64) { p.given = p.lately(p.given, j, now) }

// took notes that a node has sent this one a copy of a new job.
func (p *Peer) took(j *store.Job, now int64) { p.copied = p.lately(p.copied, j, now) }

// lately adds a job to a list. It drops jobs that came more than givenMS before the node was heard
// last, and the oldest of more than givenMost.
func (p *Peer) lately(list []given, j *store.Job, now int64) []given {
	limit := p.Heard - givenMS
	for len(list) > 0 && (list[0].at < limit || len(list) >= givenMost) {
		list = list[1:]
	}
	return append(list, given{j.ID, now, j.Parts != 0 && j.Unique() != nil})
}

// HandingOver counts the jobs that may still be on their way to another node: those that were handed over in the last five seconds, and at-most-once
// jobs that were offered, and of which the other node hasn't said yet that it has them; not those that are uncertain, for that node was forgotten. If this node is forgotten by the others just then, they don't take them.
func (n *Node) HandingOver() int {
	count := 0
	for i := range n.offers.Len() {
		if _, o := n.offers.At(i); !o.doubted {
			count++
		}
	}
	for _, p := range n.mesh.All() {
		for i := len(p.given) - 1; i >= 0 && p.given[i].at > n.now-givenMS; i-- {
			count++
		}
	}
	return count
}

// taker returns the node to which this one has handed a job over, if this one has given the job to
// no client since. So only the taker can tell whether a client has the job. 0: there is no taker.
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

// givenUp follows a connection to a node, before that node is heard.
func (n *Node) givenUp(p *Peer) {
	n.doubt(p, p.given, givenMS, true)
	p.given = nil
}

// givenAnew follows a connection that leads to another process of a node than before. It is called
// before givenUp.
func (n *Node) givenAnew(p *Peer) {
	n.doubt(p, p.copied, givenMS, true)
	p.copied = nil
}

// doubt makes this node ask about the jobs of a list that came at most before ms before a node was
// heard last: all of them, or only the unique ones. It returns the others.
func (n *Node) doubt(p *Peer, list []given, before int64, all bool) (others []given) {
	for _, g := range list {
		switch {
		case g.at < p.Heard-before || !all && !g.unique:
			others = append(others, g)
		case len(p.doubted) < 2*givenMost:
			p.doubted = append(p.doubted, g.id)
		}
	}
	if len(p.doubted) > 0 {
		n.hurryTick()
	}
	return others
}

// givenSilent follows a node's silence for the node timeout.
func (n *Node) givenSilent(p *Peer) {
	p.given = n.doubt(p, p.given, unreadMS, true)
	p.copied = n.doubt(p, p.copied, unreadMS, false)
	n.askAbsent(p)
}

// givenGone makes this node ask about the jobs of a node that was forgotten. If that node was heard
// just now, it has its jobs, and this node doesn't ask: a client there may work on them.
func (n *Node) givenGone(p *Peer) {
	if !p.Connected || n.mesh.IsAbsent(p.Base()) {
		n.givenUp(p)
		p.copied = n.doubt(p, p.copied, unreadMS, false)
	}
	n.askAbsent(p)
}

// askAbsent makes tickGiven ask about a node's jobs in doubt, although that node isn't there.
func (n *Node) askAbsent(p *Peer) {
	if len(p.doubted) > 0 && !slices.Contains(n.mesh.absent, p) {
		n.mesh.absent = append(n.mesh.absent, p)
		n.hurryTick()
	}
}

// tickGiven sets jobs in doubt to be queued here soon, unless another node objects.
func (n *Node) tickGiven() {
	budget := tickBudget
	for _, p := range n.mesh.All() {
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
		if j == nil || taker(j) != p.Node && !n.isCopyOf(p, j) {
			continue
		}
		at := n.now + askFirstMS + 2*store.AnnounceMS + n.jitter() + int64(i)/askRate // after that node, if it had the job queued
		isCopy := taker(j) == 0
		if isCopy {
			at += delayFrom(j, n.now) // the copy may have come before the job's delay was over
			if p.Connected {
				at += backMS
			}
		}
		if j.QTime <= at {
			continue
		}
		if clearAnnounced(j); !isCopy {
			becomeReturning(j)
		}
		n.setQTime(j, at)
		n.arm(j)
		if isCopy {
			n.log(LogState, j) // this node may end, too, before it asks
		}
	}
	if len(p.doubted) == 0 {
		p.doubted = nil
	} else {
		n.hurryTick()
	}
}

// isCopyOf says whether a job was added at node p, and this node only keeps a copy of it, and hasn't
// heard that another node has queued it since.
func (n *Node) isCopyOf(p *Peer, j *store.Job) bool {
	return addedBy(j, &p.ID) && j.State == store.StateActive && j.Retry > 0 && j.Place == store.InHeld && j.Reason() == store.NoReason &&
		!held(j) && !n.putOff(j) && j.Deliveries == 0 && j.Nacks == 0 && j.Flags&(store.FlagQueuedOnce|store.FlagDelivered|store.FlagAnnounced) == store.FlagQueuedOnce
}
