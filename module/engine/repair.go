package engine

import (
	"cmp"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// Lost copies are made again. A job has too few copies if fewer nodes have it than its REPLICATE says, without those
// that were forgotten, or are away for long. One of the nodes that have it gives it to another: the one with the
// smallest ID of those that can be reached. An at-most-once job never gets a second copy.
//
// A walk through all jobs finds the oldest of those that lack copies, and they are repaired at a bounded rate. Then
// comes the next walk, until nothing is left that can be repaired. No walk begins before a node was forgotten, or is away
// for long.

// DefaultRepairAfter is how long a node has to be away until its copies are made again, ms.
const DefaultRepairAfter = 600_000

const (
	repairSlice     = 500       // buckets of the table of jobs looked at in one tick
	repairMost      = 5000      // jobs that a walk finds for repair
	repairsASecond  = 500       // copies
	repairBytes     = 8_000_000 // of bodies, a second
	repairBeginMS   = 10_000    // after a node was forgotten: one that takes its place may tell of its copies until then
	repairAgainMS   = 60_000    // after a walk that found jobs that can't be repaired
	repairLookMS    = 1000      // how often it is looked at for how long nodes are away
	repairConfirmMS = 3000      // until a copy that isn't confirmed is sent again
	repairConfirmed = 50        // unconfirmed copies looked at in one tick
	repairOpen      = 5000      // copies that may be unconfirmed at a time
	repairBacklogMS = 200       // for so long copies that weren't sent in time may be sent at once
)

// repairing is what a node knows of copies that are to be made again.
type repairing struct {
	after   int64 // ms; 0: copies aren't made again
	look    int64 // monotonic: when it looks at the nodes next
	begin   int64 // monotonic: when a walk is to begin; 0: none is
	walking bool
	at      uint64 // cursor of the walk
	oldest  []lacking
	found   int // by the walk so far
	lack    int // by the last walk that was complete
	sent    int64
	due     int64                         // monotonic µs: when the next copy may be sent
	open    table.Roster[sentCopy, int64] // copies that aren't confirmed, and when they were sent, monotonic
}

// sentCopy is a copy that a node was sent.
type sentCopy struct {
	id   store.ID
	node wire.Node
}

// lacking is a job with too few copies.
type lacking struct {
	id    store.ID
	ctime uint64
}

// SetRepairAfter sets how long a node has to be away until its copies are made again, ms. 0: they aren't.
func (n *Node) SetRepairAfter(ms int64) {
	n.repairing.after = ms
	n.repairSoon(0)
}

// RepairAfter is what SetRepairAfter has set.
func (n *Node) RepairAfter() int64 { return n.repairing.after }

// LackingCopies is how many jobs that this node is to repair had too few copies when it looked last.
func (n *Node) LackingCopies() int { return n.repairing.lack }

// repairSoon begins a walk in some ms, unless one begins earlier.
func (n *Node) repairSoon(wait int64) {
	r := &n.repairing
	if at := n.monotonic() + wait; r.begin == 0 || at < r.begin {
		r.begin = at
	}
}

// awayFor is for how long a node hasn't been connected, ms.
func (n *Node) awayFor(p *Peer) int64 {
	if p.Connected {
		return 0
	}
	return n.monotonic() - p.downAt
}

// tickRepair looks for jobs that lack copies, and makes some.
func (n *Node) tickRepair() {
	r, now := &n.repairing, n.monotonic()
	if n.mesh.Alone() || r.after == 0 || n.leaving {
		r.walking, r.oldest, r.lack, r.begin = false, nil, 0, 0
		return
	}
	if now >= r.look {
		r.look = now + repairLookMS
		for _, p := range n.mesh.All() {
			if gone := n.awayFor(p) >= r.after; gone != p.missing {
				if p.missing = gone; gone || r.lack > 0 {
					n.repairSoon(0)
				}
			}
		}
	}
	n.confirmSome(now)
	switch {
	case r.walking:
		n.findLacking()
	case len(r.oldest) > 0 && r.open.Len() >= repairOpen: // wait until copies are confirmed
	case len(r.oldest) > 0:
		n.repairSome(now)
	case r.begin > 0 && now >= r.begin:
		r.walking, r.at, r.found, r.sent, r.begin = true, 0, 0, 0, 0
		n.hurryTick()
	}
}

// findLacking goes on with the walk.
func (n *Node) findLacking() {
	r := &n.repairing
	for range repairSlice {
		n.scratch.jobs = n.scratch.jobs[:0]
		r.at = n.store.ScanJobs(r.at, &n.scratch.jobs)
		for _, j := range n.scratch.jobs {
			if n.lackOf(j) > 0 {
				r.found++
				r.oldest = append(r.oldest, lacking{j.ID, j.CTime})
			}
		}
		if len(r.oldest) >= 2*repairMost || r.at == 0 {
			slices.SortFunc(r.oldest, func(a, b lacking) int { return cmp.Compare(a.ctime, b.ctime) })
			r.oldest = r.oldest[:min(len(r.oldest), repairMost)]
		}
		if r.at == 0 {
			r.walking, r.lack = false, r.found
			break
		}
	}
	n.hurryTick()
}

// lackOf is how many copies a job lacks, as far as this node is the one to make them.
func (n *Node) lackOf(j *store.Job) int {
	if j.Retry == 0 || j.Repl < 2 || j.State != store.StateActive && j.State != store.StateQueued {
		return 0
	}
	has := 1
	for i := range j.Holders() {
		node, _ := j.Holder(i)
		p := n.mesh.ByName(wire.Node(node))
		if p == nil || p.missing {
			continue
		}
		if p.Connected && p.Node < n.self.Node() {
			return 0 // it is up to that node
		}
		has++
	}
	return max(int(j.Repl)-has, 0)
}

// copyConfirmed notes that a node has a copy.
func (n *Node) copyConfirmed(p *Peer, id *store.ID) {
	if n.repairing.open.Len() > 0 {
		n.repairing.open.Remove(sentCopy{*id, p.Node})
	}
}

// confirmSome sends copies again that weren't confirmed. A node that is away gets its copies when it is back.
func (n *Node) confirmSome(now int64) {
	r := &n.repairing
	for range min(r.open.Len(), repairConfirmed) {
		c, at := r.open.Next()
		p, j := n.mesh.ByName(c.node), n.store.Lookup(&c.id)
		switch {
		case p == nil || j == nil || j.State == store.StateAcked || !j.HeldBy(uint64(c.node)):
			r.open.Remove(c)
		case p.Connected && now-*at >= repairConfirmMS:
			*at = now
			n.send(p, n.copyOf(j, wire.ReplJob))
		}
	}
	if r.open.Len() > 0 {
		n.wake = min(n.wake, n.now+repairConfirmMS)
	}
}

// repairSome makes copies of the oldest jobs that lack some, as many as are due by now.
func (n *Node) repairSome(now int64) {
	r := &n.repairing
	for r.due = max(r.due, (now-repairBacklogMS)*1000); len(r.oldest) > 0 && r.due <= now*1000; {
		j := n.store.Lookup(&r.oldest[0].id)
		r.oldest = r.oldest[1:]
		if j == nil {
			continue
		}
		want := n.lackOf(j)
		if want == 0 {
			continue
		}
		before := j.Holders()
		if j = n.place(j, want, 0); j.Holders() > before {
			n.spread(j)
		}
		for i := before; i < j.Holders(); i++ {
			node, _ := j.Holder(i)
			r.open.Put(sentCopy{j.ID, wire.Node(node)}, now)
		}
		made := int64(j.Holders() - before)
		n.Stats.Repaired += made
		r.sent += made
		r.due += made * max(1_000_000/repairsASecond, int64(len(j.Body()))*1_000_000/repairBytes)
		if made == 0 {
			r.due += 1_000_000 / repairsASecond / 10 // there is no node for it; others may have one
		}
	}
	switch {
	case len(r.oldest) > 0:
		n.wake = min(n.wake, n.now+max(r.due/1000-now, 1))
	case r.sent > 0:
		n.repairSoon(0)
	case r.lack > 0:
		n.repairSoon(repairAgainMS)
	}
}
