package sim

import (
	"fmt"
	"math"
	"slices"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// These rules must hold, whatever goes wrong:
//
//   - a job is promised when as many nodes have it on disk as it asks for, and not before;
//   - a promised job is on some disk until a client has acknowledged it, as
//     long as fewer nodes lose their disks than have a copy;
//   - a delayed job isn't delivered before its delay is over;
//   - an at-most-once job is delivered at most once. If it isn't delivered, though no disk was
//     lost, a node says that it is uncertain, and delivers it after ENQUEUE. While no node
//     ends, no job is uncertain;
//   - when all has healed, an acknowledged job is soon gone everywhere, and
//     doesn't come back;
//   - while any node has a copy that isn't acknowledged, an acknowledgement that a node has
//     accepted isn't forgotten by all; and an acknowledged copy stays so;
//   - where nothing goes wrong, a job is queued at one node at a time, a job that
//     is given back is queued at once, and few jobs are delivered needlessly;
//   - holders come to know of each other;
//   - each queue counts its deferred, blocked and delayed jobs correctly;
//   - a job costs a bounded number of messages in any ten seconds;
//   - memory is bounded by the number of jobs, freed memory is given back by the next event,
//     and at the end none is left.

const window = 10_000

// count counts messages, and fails if a job costs too many.
func (s *Sim) count(b []byte) {
	kind := wire.Kind(b[0])
	s.Kinds[kind]++
	if kind == wire.Heartbeat || kind == wire.Failed {
		s.Beats++
		return
	}
	if kind >= wire.Claim && kind < wire.Offer {
		s.LockMessages++
		return
	}
	s.Messages++
	s.Bytes += int64(len(b))
	if !kind.OfJob() {
		return
	}
	j := s.jobs[store.ID(b[2:26])]
	if j == nil {
		return // no client of the simulation has the job: the message names none, or the ADDJOB was refused
	}
	if kind == wire.YourJob || kind == wire.Offer {
		j.moved = s.now
	}
	if s.now-j.window >= window {
		j.window, j.messages = s.now, 0
	}
	j.messages++
	s.Busiest = max(s.Busiest, j.messages)
	if most := s.PerTenSeconds; most > 0 && j.messages == most+1 {
		s.fail("job %s costs more than %d messages in ten seconds", j.id, most)
	}
}

// bounded checks that a node has no more blocks of memory than its jobs account for. Blocks that
// the event has freed don't count, for its effects may name them (reclaim.go): many jobs can end
// in one event.
func (s *Sim) bounded(n *node) {
	// Two tables, a wheel, queues with their names, and an index of few skip-list nodes.
	// For a job with dependencies, an edge and a list of dependents.
	used := n.alloc.Blocks() - n.alloc.Pending()
	if most := 48 + 4*int(n.e.Jobs()+n.e.Locks().Count()); used > most {
		s.fail("node %d has %d blocks of memory for %d jobs", n.i, used, n.e.Jobs())
	}
}

// counted checks that a node counts its queues' jobs correctly. It takes long to look at all
// jobs, so that is done only after each countEvery-th event.
func (s *Sim) counted(n *node) {
	if s.events++; s.events%countEvery != 0 || n.e.Passive() { // a passive node counts no families
		return
	}
	var jobs []*store.Job
	for cursor := n.e.ScanJobs(0, &jobs); cursor != 0; {
		cursor = n.e.ScanJobs(cursor, &jobs)
	}
	queues, here := map[*store.Queue][store.Kept + 1]uint64{}, map[*store.Queue][store.Kept + 1]uint64{}
	var all [store.Kept + 1]uint64
	bytes := uint64(0) // of results
	for _, j := range jobs {
		r := j.Reason()
		switch deferred, blocked := n.e.Waits(j); {
		case deferred != (r == store.Deferred), blocked != (r == store.Blocked), r == store.Delayed && j.State != store.StateActive:
			s.fail("node %d counts %s as %d, and its state is %d", n.i, j.ID, r, j.State)
		}
		if (r == store.Kept) != (j.Kept() && !n.e.Nameless(j)) {
			s.fail("node %d counts %s as %d, and its outcome is kept: %v", n.i, j.ID, r, j.Kept())
		}
		if r == store.Kept {
			bytes += uint64(j.BodyLen)
		}
		q := queues[j.Queue]
		q[r]++
		queues[j.Queue] = q
		if j.CountedHere() {
			q := here[j.Queue]
			q[r]++
			here[j.Queue] = q
		}
		if (r == store.Deferred || r == store.Blocked) && !n.e.Recounting() && j.CountedHere() != n.e.CountsHere(j) {
			s.fail("whether node %d counts %s for the mesh is %v, and shouldn't be", n.i, j.ID, j.CountedHere())
		}
		all[r]++
	}
	dead := uint64(0) // that wait
	for _, j := range jobs {
		if j.Place == store.InWaiting && j.DeadLetter() {
			dead++
		}
	}
	if n.e.DeadNow() != dead {
		s.fail("node %d counts %d dead letters that wait, and there are %d", n.i, n.e.DeadNow(), dead)
	}
	for q, want := range queues {
		s.checkDelayed(n, q, int(want[store.Delayed]))
	}
	if _, kept := n.e.Results(); kept != bytes {
		s.fail("node %d counts %d bytes of results, and there are %d", n.i, kept, bytes)
	}
	for r := store.Delayed; r <= store.Kept; r++ {
		for q, want := range queues {
			if q.Counted(r) != want[r] {
				s.fail("node %d counts %d jobs of %s as %d, and there are %d", n.i, q.Counted(r), q.NameBytes(), r, want[r])
			}
			if (r == store.Deferred || r == store.Blocked) && q.CountedHere(r) != here[q][r] {
				s.fail("node %d counts %d jobs of %s as %d for the mesh, and there are %d", n.i, q.CountedHere(r), q.NameBytes(), r, here[q][r])
			}
		}
		if n.e.Counted(r) != all[r] {
			s.fail("node %d counts %d jobs as %d, and there are %d", n.i, n.e.Counted(r), r, all[r])
		}
	}
}

// checkDelayed checks that a node lists so many delayed jobs of a queue, in order, by pages.
func (s *Sim) checkDelayed(n *node, q *store.Queue, want int) {
	behind, met := store.DelayedPlace{At: math.MinInt64}, 0
	for more := true; more; {
		var list []engine.DelayedJob
		list, more = n.e.Delayed(q, behind, 3)
		for _, d := range list {
			if j := n.e.Job(&d.ID); d.Compare(&behind) <= 0 || j == nil || j.Reason() != store.Delayed || j.QTime != d.At {
				s.fail("node %d lists %s among the delayed jobs of %s at a wrong place", n.i, d.ID, q.NameBytes())
			}
			behind, met = d.DelayedPlace, met+1
		}
	}
	if met != want {
		s.fail("node %d lists %d delayed jobs of %s, and there are %d", n.i, met, q.NameBytes(), want)
	}
}

const countEvery = 97

// givenBack checks that an event begins without blocks that were freed before.
func (s *Sim) givenBack(n *node) {
	if left := n.alloc.Pending(); left > 0 {
		s.fail("node %d keeps %d blocks of memory that were freed", n.i, left)
	}
}

// disks counts the nodes that have a job on disk.
func (s *Sim) disks(j *job) (count int) {
	for _, n := range s.nodes {
		if _, yes := n.disk.jobs[j.id]; yes {
			count++
		}
	}
	return count
}

// promised notes that a client has its answer, and checks that the copies are there.
func (s *Sim) promised(n *node, id store.ID) {
	j := s.jobs[id]
	if j == nil {
		return
	}
	s.trace("node %d: promises %s", n.i, id)
	if j.promised = true; j.heardAt == 0 {
		j.heardAt = s.now
	}
	if j.flushedLate {
		s.fail("job %s was promised, and a flush that came late has ended it before%s", id, s.placement(j))
	}
	if have := s.disks(j); !j.once && !j.done && have+s.wiped+j.torn < j.copies {
		s.fail("job %s was promised on %d nodes and is on %d", j.id, j.copies, have)
	}
	if !s.Swift || j.delayed {
		return
	}
	s.unqueued(j, "promised", func() bool { return !j.done && j.delivered == 0 && s.queued(j) == 0 })
}

// unqueued fails if a job that nodes were to queue is lost a second later.
func (s *Sim) unqueued(j *job, how string, lost func() bool) {
	var look func(after ...int64)
	look = func(after ...int64) {
		if len(after) == 0 {
			s.fail("job %s was %s and isn't queued anywhere%s", j.id, how, s.placement(j))
			return
		}
		s.at(after[0], func() {
			if lost() {
				look(after[1:]...)
			}
		})
	}
	look(1000, 100, 41) // the job may be on its way to another node, and then on its way once more
}

// denied checks that a job which was refused is soon unknown, as far as the network allows it.
func (s *Sim) denied(id store.ID) {
	s.Refused++
	j := s.jobs[id]
	if j == nil || j.once || !s.gentle() {
		return // an at-most-once job may have been moved by then
	}
	const longest = 40_000 // a pause, and the message after it
	var look func()
	look = func() {
		switch {
		case !s.known(j) || j.done:
		case slices.ContainsFunc(s.nodes, func(n *node) bool { return n.paused }): // it may have stood still all the time, but for a moment
			s.at(longest, look)
		default:
			s.fail("job %s was refused and is known%s", j.id, s.placement(j))
		}
	}
	s.at(longest, look)
}

// note notes which acknowledged jobs are in no queue just after all has healed. No
// client must get these any more, for a node that holds one tells the others before
// it queues the job.
func (s *Sim) note() {
	if s.Wiped > 0 || s.Faults.MaxDelay > 200 || s.succeeding {
		return
	}
	for _, j := range s.order {
		// (A job that waited for others is queued at once where their end is heard of late.
		// A job that is being handed over is in no queue now, and in one soon.)
		moving := s.now-j.moved <= s.Faults.MaxDelay
		j.settled = j.acked && !j.once && !j.fast && j.family == nil && s.queued(j) == 0 && !moving
	}
}

// safe checks that each job that was promised, and isn't done, is on some disk.
func (s *Sim) safe() {
	for _, j := range s.order {
		if j.torn+s.wiped >= j.copies && s.disks(j) == 0 {
			s.givenUp(j) // each node that had it lost its disk, or crashed before the job was on it
		}
		if j.promised && !j.once && !j.done && s.disks(j) == 0 && (j.family == nil || s.wiped+s.torn == 0 || !s.over) {
			s.fail("job %s was promised on %d nodes, nobody has acknowledged it, and it is on none%s", j.id, j.copies, s.placement(j))
			j.done = true // once is enough
		}
		// Trouble that lasts from one look to the next can't come from a message that is on its way.
		trouble := ""
		switch {
		case s.forgotten(j):
			trouble = "its acknowledgement is forgotten by all, and a copy isn't acknowledged"
		case s.Swift && s.queued(j) > 1:
			trouble = "it is queued twice"
		case s.Swift && j.named && j.done && j.addTold == 0 && s.Faults.Leaving == 0: // a leaving node that adds a name while another does leaves the telling to that one
			trouble = "it isn't told that it was added"
		}
		if trouble != "" && j.doubtful {
			s.fail("job %s: %s%s", j.id, trouble, s.placement(j))
		}
		j.doubtful = trouble != ""
	}
}

// queued counts the nodes that have a job in their queue.
func (s *Sim) queued(j *job) (count int) {
	for _, n := range s.nodes {
		if sj := n.e.Job(&j.id); sj != nil && sj.State == store.StateQueued {
			count++
		}
	}
	return count
}

// forgotten says whether an acknowledgement that a node has accepted is unknown
// to all by now, while a copy would be delivered again.
func (s *Sim) forgotten(j *job) bool {
	if j.once || j.fast || j.givenUp || j.blurred || s.Wiped > 0 || !j.promised {
		return false // a job that was refused may leave copies that don't know of each other
	}
	known := j.acked
	for _, d := range j.dummies {
		known = known || d.n.life == d.life
	}
	if !known {
		return false
	}
	open := false
	for _, n := range s.nodes {
		if d, yes := n.disk.jobs[j.id]; yes && d.state == store.StateAcked {
			return false
		} else if yes {
			open = true
		}
		if sj := n.e.Job(&j.id); !n.down && sj != nil && sj.State == store.StateAcked {
			return false
		}
	}
	return open
}

// done says whether there is nothing left to wait for.
func (s *Sim) done() bool {
	for _, n := range s.nodes {
		if n.e.Load().Adding > 0 {
			return false // a client still waits for its copies
		}
	}
	if s.Faults.Settings > 0 && s.now < s.healedAt+compareSecs*1000 {
		return false
	}
	if s.Uniques != nil && s.Uniques.Bodies && s.now < s.healedAt+lateBodies*1000 {
		return false // clients add jobs still
	}
	if s.crons != nil && s.now < s.healedAt+(cronJudgeSecs+10)*1000 {
		return false
	}
	for _, j := range s.order {
		if j.once {
			if s.missing(j) || !s.byHand && s.undelivered(j) && s.uncertain(j) != nil {
				return false
			}
			continue
		}
		if s.waits(j) {
			continue
		}
		if j.promised && !j.done || s.known(j) {
			return false
		}
	}
	return true
}

// gentle says whether nothing is ever lost: then at most once means once.
func (s *Sim) gentle() bool {
	f := &s.Faults
	if s.Nodes > 1 && f.Stops > 0 {
		return false // a message that moves a job may be under way
	}
	return f.Loss+f.Resets+f.Crashes+f.Wipes+f.Replaced+f.Promotions+f.Partitions+f.Blackouts == 0
}

// deathless says whether no node dies or is replaced: then at most once means once,
// whatever happens to connections.
func (s *Sim) deathless() bool {
	f := &s.Faults
	return f.Crashes+f.Wipes+f.Replaced+f.Promotions+f.Blackouts+f.Stops == 0
}

// undelivered says whether an at-most-once job was promised, and no client got it though one
// could. No client can get a job that a node lost with its disk, or with the tail of its log.
func (s *Sim) undelivered(j *job) bool {
	return j.promised && j.delivered == 0 && !j.givenUp && s.wiped == 0 && len(s.dead) == 0 && j.torn == 0 && !j.blurred
}

// uncertain finds a node that says that an at-most-once job may have been delivered.
func (s *Sim) uncertain(j *job) *node {
	for _, n := range s.nodes {
		if sj := n.e.Job(&j.id); !n.down && sj != nil && sj.Uncertain() {
			return n
		}
	}
	return nil
}

// missing says whether no client got an at-most-once job, and no node says that it is uncertain.
func (s *Sim) missing(j *job) bool { return s.undelivered(j) && s.uncertain(j) == nil }

// decideUncertain is the operator, who decides about the uncertain jobs: jobs that no client got are
// queued by ENQUEUE. Unique jobs that a client got are acknowledged, for they keep their keys.
func (s *Sim) decideUncertain() {
	s.byHand = true
	for _, j := range s.order {
		n := s.uncertain(j)
		switch {
		case n == nil:
		case s.undelivered(j):
			s.trace("node %d: ENQUEUE %s", n.i, j.id)
			s.ByHand++
			n.call(func() {
				if !n.e.Enqueue(&j.id) {
					s.fail("uncertain job %s isn't queued by ENQUEUE%s", j.id, s.placement(j))
				}
			})
		case j.once && j.delivered > 0 && j.unique != nil:
			s.trace("node %d: ACKJOB %s, which is uncertain", n.i, j.id)
			j.ends++
			n.call(func() { n.e.Ack(&j.id) })
			s.uniqueGiven(j)
		}
	}
}

// known says whether a node knows a job, or has still to tell others of its end.
func (s *Sim) known(j *job) bool {
	for _, n := range s.nodes {
		if sj := n.e.Job(&j.id); sj != nil && !(sj.Kept() && sj.Confirmed() == sj.Holders()) {
			return true
		}
	}
	return false
}

func (s *Sim) judge() {
	s.safe()
	for _, n := range s.nodes {
		if l := n.e.Load(); l.Adding > 0 {
			s.fail("node %d: %d clients still wait for their copies", n.i, l.Adding)
		}
	}
	for _, j := range s.order {
		s.Extra += max(0, j.delivered-1-j.excuses)
		if j.once {
			if s.missing(j) {
				s.fail("at-most-once job %s was never delivered, and no node says that it is uncertain%s", j.id, s.placement(j))
			}
			if s.deathless() && s.uncertain(j) != nil {
				s.fail("at-most-once job %s is uncertain, and no node has ended%s", j.id, s.placement(j))
			}
			continue
		}
		if s.waits(j) {
			j.stray = true
			continue
		}
		if j.promised && j.delivered == 0 && !j.givenUp && (j.family == nil || !j.family.cancel) {
			s.fail("job %s was promised on %d nodes, and never delivered%s", j.id, j.copies, s.placement(j))
		}
		if s.known(j) {
			s.fail("job %s, acknowledged %v %d s ago, is still known%s", j.id, j.done, (s.now-j.ackedAt)/1000, s.placement(j))
		}
	}
	s.over = true
	for until := s.now + afterSecs*1000; s.now < until && !s.jobless(); {
		s.run(min(s.now+5000, until))
	}
	for _, j := range s.order {
		if !j.once && !j.stray && s.known(j) {
			s.fail("job %s has come back%s", j.id, s.placement(j))
		}
	}
	s.sameResults()
	// Past every job's expiry, and with no clients, nothing may be left; a queue stays for
	// a while after its last job.
	s.closed = true
	s.wind(s.now + (ttlSecs+idleSecs+60)*1000)
	for _, n := range s.nodes {
		if rest := n.rest(); rest != "" {
			s.fail("node %d is left with %s", n.i, rest)
		}
	}
}

// placement describes each copy of a job.
func (s *Sim) placement(j *job) (text string) {
	for _, n := range s.nodes {
		if sj := n.e.Job(&j.id); sj != nil {
			text += fmt.Sprintf("; node %d: state %d flags %#x queued again in %d ms, %d of %d holders confirmed:", n.i, sj.State, sj.Flags, sj.QTime-n.e.Now(), sj.Confirmed(), sj.Holders())
			for i := range sj.Holders() {
				h, yes := sj.Holder(i)
				text += fmt.Sprintf(" %d %v", s.index(wire.Node(h)), yes)
			}
		}
	}
	return text
}

// index is a node's number by its short name, -1 where there is none (any more).
func (s *Sim) index(h wire.Node) int {
	for _, n := range s.nodes {
		if n.id.Node() == h {
			return n.i
		}
	}
	return -1
}

// converged checks that each node that holds a copy knows every other holder.
func (s *Sim) converged() {
	for _, j := range s.order {
		if j.once || s.now-j.moved <= 2*s.Faults.MaxDelay {
			continue // a copy has just come to a node: the others are still being told of it, and that node of them
		}
		var with []*node
		for _, n := range s.nodes {
			if sj := n.e.Job(&j.id); sj != nil && sj.State != store.StateAcked {
				with = append(with, n)
			}
		}
		for _, a := range with {
			for _, b := range with {
				if a != b && !a.e.Job(&j.id).HeldBy(uint64(b.id.Node())) {
					s.fail("job %s: node %d doesn't know that node %d holds it%s", j.id, a.i, b.i, s.placement(j))
				}
			}
		}
	}
}
