package engine

import (
	"slices"

	"jobmesh/module/membership"
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
//
// Copies of jobs whose ID may have been told to nobody: the node that added them ended by a crash while its ADDJOB was under
// way, or its log lacks what it answered last. Nobody has such a job in a queue, and the key of a unique one is refused for its
// sake. So when that node is back as another process, this one asks all holders about the copies that came in the seconds before
// that node was heard last. And so it does, with those of the last second, when that node has been silent for the node timeout, or is
// forgotten; but only where the job is unique: a client that asked again was refused, and has added no other.

const (
	givenMS   = 5_000                     // how long before a node was heard last a job that it was given, or had others keep a copy of, is in doubt
	givenMost = 20_000                    // of so many jobs for one node, and copies; older ones wait for their retry time
	backMS    = 8_000                     // for how much longer than of a job that was given the others hear nothing of a copy: its node asks about what it has itself first
	unreadMS  = membership.HeartbeatEvery // how long before a silent node was heard last a job that it was given may not have been read, or its ADDJOB not answered
)

// given is a job that was handed over, or of which a copy came.
type given struct {
	id     store.ID
	at     int64 // unix ms
	unique bool
}

// gave notes that a job was handed over to a node.
func (p *Peer) gave(j *store.Job, now int64) { p.given = p.lately(p.given, j, now) }

// took notes that a node has this one keep a copy of a new job.
func (p *Peer) took(j *store.Job, now int64) { p.copied = p.lately(p.copied, j, now) }

// lately adds a job to those of the last seconds.
func (p *Peer) lately(list []given, j *store.Job, now int64) []given {
	limit := p.Heard - givenMS
	for len(list) > 0 && (list[0].at < limit || len(list) >= givenMost) {
		list = list[1:]
	}
	return append(list, given{j.ID, now, j.Parts != 0 && j.Unique() != nil})
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

// givenUp follows a connection, before its node is heard.
func (n *Node) givenUp(p *Peer) {
	n.doubt(p, p.given, givenMS, true)
	p.given = nil
}

// givenAnew follows a connection that leads to another process of a node than before, before givenUp.
func (n *Node) givenAnew(p *Peer) {
	n.doubt(p, p.copied, givenMS, true)
	p.copied = nil
}

// doubt has this node ask about the jobs of a list, all or the unique ones, that came there since some time before a node
// was heard last. It returns the others.
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

// givenGone has this node ask about the jobs of a node that was forgotten. Where that node was heard just
// now, it has its jobs, and nobody asks: a client there may work on them.
func (n *Node) givenGone(p *Peer) {
	if !p.Connected || n.mesh.IsAbsent(p.Base()) {
		n.givenUp(p)
		p.copied = n.doubt(p, p.copied, unreadMS, false)
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
		at := n.now + askFirstMS + 2*store.AnnounceMS + n.jitter() + int64(i)/askRate // after that node, where it had the job queued
		isCopy := taker(j) == 0
		if isCopy {
			at += delayFrom(j, n.now) // it may have come before its delay was over
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

// isCopyOf says of a job that a node added whether this one only keeps a copy, and hasn't heard that another queued it since.
func (n *Node) isCopyOf(p *Peer, j *store.Job) bool {
	return addedBy(j, &p.ID) && j.State == store.StateActive && j.Retry > 0 && j.Place == store.InHeld && j.Reason() == store.NoReason &&
		!held(j) && !n.putOff(j) && j.Deliveries == 0 && j.Nacks == 0 && j.Flags&(store.FlagQueuedOnce|store.FlagDelivered|store.FlagAnnounced) == store.FlagQueuedOnce
}
