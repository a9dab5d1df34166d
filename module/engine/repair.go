package engine

import (
	"cmp"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Lost copies are made again. When a node was forgotten, or is away for long, the nodes that have its jobs look for those
// that have too few copies without it. Each asks the other nodes that should have such a job whether they do, as
// WAITCOPIES does, and sends the copies that are missing. An at-most-once job never gets a second copy.
//
// Nodes don't agree on which of them does that. The one with the smallest ID of those that should have the job begins. It
// may not have the job: so half a minute later the next one asks, too, and then the third one.
//
// The jobs are found by a walk through all jobs, which finds the oldest ones, and are repaired at a bounded rate. Then
// comes the next walk.

// DefaultRepairAfter is how long a node has to be away until its copies are made again, ms.
const DefaultRepairAfter = 600_000

const (
	repairSlice   = 500    // buckets of the table of jobs looked at in one tick
	repairMost    = 5000   // jobs that a walk finds
	repairBatch   = 100    // jobs that are repaired at a time
	repairBatchMS = 200    // from a batch to the next, at least: 500 jobs a second
	repairBytes   = 8_000  // of their bodies for each ms of that
	repairTryMS   = 10_000 // how long the nodes of a batch are asked
	repairBeginMS = 10_000 // after a node was forgotten: one that takes its place may tell of its copies until then
	repairRankMS  = 30_000 // until the next node begins
	repairRanks   = 3      // how many nodes begin, one after the other
	repairAgainMS = 60_000 // after walks that have left jobs without copies
	repairLookMS  = 1000   // how often it is looked at for how long nodes are away
)

// repairing is what a node knows of copies that are to be made again.
type repairing struct {
	after   int64 // ms; 0: copies aren't made again
	look    int64 // monotonic: when it looks at the nodes next
	since   int64 // monotonic: when the first node begins; 0: nobody does
	again   bool  // when the last one has begun, the first one begins again
	begin   int64 // monotonic: when the next walk is to begin; 0: none is
	rank    int   // of the walk: how many nodes with smaller IDs may have looked for a job's copies before
	walking bool
	at      uint64 // cursor of the walk
	more    bool   // the walk has left out jobs, since it has found so many
	oldest  []aged
	batch   int64 // the number of the batch that is being repaired; 0: none is
	next    int64 // monotonic: when the next batch may begin
	failed  int   // jobs of the walk that still lack copies
	lack    int   // the same, of the last walk that is over
}

// aged is a job that the walk has found.
type aged struct {
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

// LackingCopies is how many jobs had too few copies when this node tried to repair them last.
func (n *Node) LackingCopies() int { return n.repairing.lack }

// repairSoon begins to look for jobs in some ms.
func (n *Node) repairSoon(wait int64) {
	r, at := &n.repairing, max(n.monotonic()+wait, 1)
	if r.again = r.since != 0; !r.again {
		r.since = at
	}
	if r.begin == 0 || at < r.begin {
		r.begin = at
	}
}

// tickRepair looks for jobs that lack copies, and has them repaired.
func (n *Node) tickRepair() {
	r, now := &n.repairing, n.monotonic()
	if n.mesh.Alone() || r.after == 0 || n.leaving {
		*r = repairing{after: r.after}
		return
	}
	if now >= r.look {
		r.look = now + repairLookMS
		for _, p := range n.mesh.All() {
			if gone := !p.Connected && now-p.downAt >= r.after; gone != p.missing {
				if p.missing = gone; gone || r.lack > 0 {
					n.repairSoon(0)
				}
			}
		}
	}
	switch {
	case r.walking:
		n.findLacking()
	case r.batch != 0: // it ends by itself
	case len(r.oldest) > 0:
		if now >= r.next {
			n.repairSome(now)
		}
		n.wake = min(n.wake, n.now+max(r.next-now, 1))
	case r.begin > 0 && now >= r.begin:
		r.walking, r.at, r.more, r.begin, r.failed = true, 0, false, 0, 0
		r.rank = int(max(min((now-r.since)/repairRankMS, repairRanks-1), 0))
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
			if n.mayLack(j) {
				r.oldest = append(r.oldest, aged{j.ID, j.CTime})
			}
		}
		if len(r.oldest) >= 2*repairMost || r.at == 0 {
			slices.SortFunc(r.oldest, func(a, b aged) int { return cmp.Compare(a.ctime, b.ctime) })
			r.more = r.more || len(r.oldest) > repairMost
			r.oldest = r.oldest[:min(len(r.oldest), repairMost)]
		}
		if r.at == 0 {
			r.walking = false
			n.walked()
			break
		}
	}
	n.hurryTick()
}

// walked decides what follows when all that a walk has found is repaired, as far as that was possible.
func (n *Node) walked() {
	r, now := &n.repairing, n.monotonic()
	if len(r.oldest) > 0 || r.batch != 0 {
		return
	}
	r.lack = r.failed
	next := r.since + int64(r.rank+1)*repairRankMS
	if r.rank+1 == repairRanks {
		if r.since = 0; r.again {
			r.again, r.since = false, now
		} else if r.lack > 0 {
			r.since = now + repairAgainMS
		}
		next = r.since
	}
	if r.more {
		next = now
	}
	if next > 0 && (r.begin == 0 || next < r.begin) {
		r.begin = next
	}
}

// mayLack says whether a job may lack copies, as one of the nodes that should have it is gone, and whether it is up to this node
// to look.
func (n *Node) mayLack(j *store.Job) bool {
	if !n.mayCopy(j) || j.Repl < 2 || j.State != store.StateActive && j.State != store.StateQueued {
		return false
	}
	gone, smaller := false, 0
	for i := range j.Holders() {
		node, _ := j.Holder(i)
		switch p := n.mesh.ByName(wire.Node(node)); {
		case p == nil || p.missing:
			gone = true
		case p.Connected && p.Node < n.self.Node():
			smaller++
		}
	}
	return gone && smaller <= n.repairing.rank
}

// repairSome has the next jobs repaired.
func (n *Node) repairSome(now int64) {
	r := &n.repairing
	var ids []store.ID
	bytes := 0
	for len(r.oldest) > 0 && len(ids) < repairBatch && bytes < repairBatchMS*repairBytes {
		id := r.oldest[0].id
		r.oldest = r.oldest[1:]
		if j := n.waitable(&id); j != nil {
			ids = append(ids, id)
			bytes += len(j.Body())
		}
	}
	r.next = now + max(repairBatchMS, int64(bytes/repairBytes))
	w := n.newCopiesWait(ids, 0, repairTryMS)
	w.repairs = true
	r.batch = w.number
	n.beginCopiesWait(w)
	if w.open == 0 {
		n.repaired(w)
	}
}

// repaired follows the end of a batch.
func (n *Node) repaired(w *copiesWait) {
	r := &n.repairing
	if r.batch != w.number {
		return
	}
	r.batch = 0
	r.failed += w.open
	n.walked()
	n.hurryTick()
}
