package engine

import (
	"bytes"
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
// may not have the job: so half a minute later, or when it is done with its own jobs, the next one asks, too, and so on. So a node has a
// round for the jobs of which it is the first node, one for those of which it is the second, and as many more as its jobs need.
//
// A round is made of walks through all jobs. Each finds the oldest jobs that no walk of the round has found before. These
// are repaired at a bounded rate; then comes the next walk. If jobs are left without their copies, the rounds are repeated
// after a while, for the jobs that have too few holders even as far as this node knows.

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
	repairStartMS = 60_000 // after a node was started: by then it is connected with the others
	repairRankMS  = 30_000 // from the beginning of a round to that of the next, at least
	repairRanks   = 3      // rounds at least: so that a job lacks no copies that were asked for when another node was away
	repairAgainMS = 60_000 // from the last round to the first, at least, if jobs still lack copies
	repairLookMS  = 1000   // how often it is looked at for how long nodes are away
)

// repairing is what a node knows of copies that are to be made again.
type repairing struct {
	after   int64 // ms; 0: copies aren't made again
	started bool  // the rounds began since this node was started, or isn't alone
	look    int64 // monotonic: when it looks at the nodes next
	since   int64 // monotonic: when the first round begins; 0: none does
	again   bool  // when the last round is over, the first one begins again
	anew    int64 // monotonic: when the first round begins again, or once this round is over; 0: it doesn't
	repeats bool  // the rounds are only for jobs that lacked copies before
	rank    int   // of the round: how many nodes with smaller IDs should have a job
	ranks   int   // how many rounds there are, as far as the walks have found
	begin   int64 // monotonic: when the next walk is to begin; 0: none is
	walking bool
	at      uint64 // cursor of the walk
	past    aged   // the last job that the walks of this round have found
	more    bool   // the walk has left out jobs, since it has found so many
	oldest  []aged
	batch   int64 // the number of the batch that is being repaired; 0: none is
	next    int64 // monotonic: when the next batch may begin
	failed  int   // jobs of all rounds so far that still lack copies
	before  int   // the same, of the rounds before this one
	short   int   // jobs that the walk has found to have too few holders
	lack    int   // jobs that lack copies, as this node knew last
}

// aged is a job that the walk has found.
type aged struct {
	id    store.ID
	ctime uint64
}

// compare orders jobs by their age, the oldest first.
func (a aged) compare(b aged) int {
	return cmp.Or(cmp.Compare(a.ctime, b.ctime), bytes.Compare(a.id[:], b.id[:]))
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

// repairSoon begins the rounds in some ms. If one is under way, they begin again after it: what a node has taken along that has gone just now
// mustn't wait for the later rounds.
func (n *Node) repairSoon(wait int64) {
	r := &n.repairing
	at := max(n.monotonic()+wait, 1)
	if r.walking || r.more || r.batch != 0 || len(r.oldest) > 0 {
		if r.anew == 0 || at < r.anew {
			r.anew = at
		}
		return
	}
	if r.since != 0 && !r.repeats && r.rank == 0 {
		at = min(at, r.since) // they are to begin anyway
	}
	r.first(at)
}

// first begins the rounds at a time.
func (r *repairing) first(at int64) {
	r.since, r.begin, r.rank, r.ranks, r.failed, r.repeats, r.anew = at, at, 0, repairRanks, 0, false, 0
}

// mayRepair is called when a node has come that may take copies. Unlike repairSoon it lets the rounds go on that are under way: such a
// node may come and go.
func (n *Node) mayRepair() {
	switch r := &n.repairing; {
	case r.lack == 0:
	case r.rank == 0:
		n.repairSoon(0)
	default:
		r.again = true
	}
}

// tickRepair looks for jobs that lack copies, and has them repaired.
func (n *Node) tickRepair() {
	r, now := &n.repairing, n.monotonic()
	if n.mesh.Alone() || r.after == 0 || n.leaving {
		*r = repairing{after: r.after}
		return
	}
	if !r.started { // it may have been stopped before all were repaired
		r.started = true
		n.repairSoon(repairStartMS)
	}
	if now >= r.look {
		r.look = now + repairLookMS
		for _, p := range n.mesh.All() {
			if gone := !p.Connected && now-p.downAt >= r.after; gone != p.missing {
				if p.missing = gone; gone {
					n.repairSoon(0)
				} else {
					n.mayRepair()
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
		if !r.more {
			r.past, r.before = aged{}, r.failed
		}
		r.walking, r.at, r.more, r.begin, r.short = true, 0, false, 0, 0
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
			may, short := n.mayLack(j)
			if short {
				r.short++
			}
			if a := (aged{j.ID, j.CTime}); may && a.compare(r.past) > 0 {
				r.oldest = append(r.oldest, a)
			}
		}
		if len(r.oldest) >= 2*repairMost || r.at == 0 {
			slices.SortFunc(r.oldest, aged.compare)
			r.more = r.more || len(r.oldest) > repairMost
			r.oldest = r.oldest[:min(len(r.oldest), repairMost)]
		}
		if r.at == 0 {
			r.walking, r.lack = false, r.before+r.short
			if last := len(r.oldest) - 1; last >= 0 {
				r.past = r.oldest[last]
			}
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
	if r.more {
		r.begin = now
		return
	}
	if r.anew > 0 {
		r.first(max(now, r.anew))
		return
	}
	if r.rank++; r.rank < r.ranks {
		r.begin = max(now, r.since+int64(r.rank)*repairRankMS)
		return
	}
	took := now - r.since
	r.lack = r.failed
	switch r.rank, r.ranks, r.since, r.failed = 0, repairRanks, 0, 0; {
	case r.again:
		r.again, r.repeats, r.since = false, false, now
	case r.lack > 0:
		r.repeats, r.since = true, now+max(repairAgainMS, took)
	}
	r.begin = r.since
}

// mayLack says whether a job may lack copies, as one of the nodes that should have it is gone, and whether it is up to this node
// to look in this round. short says whether it has too few holders as far as this node knows.
func (n *Node) mayLack(j *store.Job) (may, short bool) {
	r := &n.repairing
	if j.Repl < 2 || j.State != store.StateActive && j.State != store.StateQueued {
		return false, false
	}
	gone, smaller, have := false, 0, 1
	for i := range j.Holders() {
		node, _ := j.Holder(i)
		p := n.mesh.ByName(wire.Node(node))
		if p == nil || p.missing {
			gone = true
			continue
		}
		if have++; p.Connected && p.Node < n.self.Node() {
			smaller++
		}
	}
	if !gone || !n.mayCopy(j) {
		return false, false
	}
	if short = have < int(j.Repl); short || !r.repeats {
		r.ranks = max(r.ranks, smaller+1)
	}
	if smaller != r.rank {
		return false, false
	}
	return short || !r.repeats, short
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
	w := n.newCopiesWait(ids, repairTryMS, func(j *store.Job) int { return min(n.copiesPossible(j), int(j.Repl)) })
	w.repairs = true
	r.batch = w.number
	n.beginCopiesWait(w)
	if w.open == 0 {
		n.repaired(w)
	}
}

// copiesPossible is how many nodes can hold a job just now: this node, its holders that are connected, and others that take copies.
func (n *Node) copiesPossible(j *store.Job) int {
	can := 1
	for _, p := range n.mesh.All() {
		if j.HeldBy(uint64(p.Node)) && p.Connected || p.Usable() && !shunned(j, p) {
			can++
		}
	}
	return can
}

// repaired follows the end of a batch.
func (n *Node) repaired(w *copiesWait) {
	r := &n.repairing
	if r.batch != w.number {
		return
	}
	r.batch = 0
	for i := range w.jobs {
		job := &w.jobs[i]
		if j := n.waitable(&job.id); j != nil && (!job.done || job.want < int(j.Repl)) {
			r.failed++
		}
	}
	n.walked()
	n.hurryTick()
}
