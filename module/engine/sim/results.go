package sim

import (
	"strconv"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// Jobs are acknowledged with results, which are kept, and clients wait at random nodes for the ends of jobs. A job is done for them only if somebody
// has acknowledged it, and with one of the results that were said. When all has healed, all nodes that keep a job's outcome keep the same.
// Some workers are asked to stop.

const keepSecs = 2000 // that a result is kept: less than a job lives

// result is what a worker says with ACKJOB; nil: nothing.
func (s *Sim) result(j *job) *engine.Result {
	j.tried = true
	if !s.chance(s.Results) {
		return nil
	}
	s.said++
	text := strconv.Itoa(s.said)
	if j.results == nil {
		j.results = map[string]bool{}
	}
	j.results[text] = true
	return &engine.Result{Has: true, Data: []byte(text), HasKeep: true, Keep: keepSecs}
}

// jobWait is a client in WAITJOB.
type jobWait struct {
	ids []store.ID
}

// waitForJobs waits for the ends of some jobs, at some node.
func (s *Sim) waitForJobs() {
	n := s.up()
	if n == nil || len(s.order) == 0 {
		return
	}
	w := &jobWait{}
	for range 1 + s.r.IntN(5) {
		w.ids = append(w.ids, s.order[max(0, len(s.order)-1-s.r.IntN(30))].id)
	}
	n.call(func() {
		p, now := n.e.WaitJobs(w.ids, s.r.IntN(3) == 0, 1+s.r.Int64N(60_000))
		if now != nil {
			s.told(n, now)
			return
		}
		n.e.Tie(p, w)
		if s.r.IntN(5) > 0 {
			return
		}
		life := n.life
		s.at(s.r.Int64N(10_000), func() { // the client goes away
			if n.life == life && !n.down {
				n.call(func() { n.e.Abandon(p) })
			}
		})
	})
}

// told judges the answer to a WAITJOB.
func (s *Sim) told(n *node, ends []engine.JobEnd) {
	for i := range ends {
		e := &ends[i]
		j := s.jobs[e.ID]
		if j == nil {
			continue
		}
		s.trace("node %d: %s has ended: %v %q", n.i, e.ID, e.Outcome, e.Detail)
		if e.Outcome != engine.OutcomeWaiting && e.Outcome != engine.OutcomeUnknown {
			s.Ended++
		}
		switch e.Outcome {
		case engine.OutcomeDone:
			if !j.tried {
				s.fail("node %d says that %s is done, and nobody has acknowledged it%s", n.i, e.ID, s.placement(j))
			}
			if e.HasDetail && !j.results[string(e.Detail)] {
				s.fail("node %d says that the result of %s is %q, and nobody has said so%s", n.i, e.ID, e.Detail, s.placement(j))
			}
		case engine.OutcomeCancelled:
			if !j.stopped && j.promised {
				s.fail("node %d says that %s was cancelled, and nobody has%s", n.i, e.ID, s.placement(j))
			}
		case engine.OutcomeUnknown:
			if j.promised && !j.once && !j.done && s.disks(j) > 0 && s.Wiped == 0 {
				s.fail("node %d says that all nodes don't know %s%s", n.i, e.ID, s.placement(j))
			}
		}
	}
}

// askToStop asks the worker of some job to stop, at some node.
func (s *Sim) askToStop() {
	n := s.up()
	if n == nil || len(s.order) == 0 {
		return
	}
	j := s.order[s.r.IntN(len(s.order))]
	if j.done {
		return
	}
	s.trace("node %d: CANCELJOB %s SOFT", n.i, j.id)
	j.stopped, j.givenUp = true, true // it may be done all the same
	j.done = true
	n.call(func() { n.e.CancelSoftly(&j.id, nil) })
}

// sameResults checks that all nodes that keep a job's outcome keep the same.
func (s *Sim) sameResults() {
	for _, j := range s.order {
		var first *store.Job
		for _, n := range s.nodes {
			sj := n.e.Job(&j.id)
			if sj == nil || !sj.Kept() || n.i < s.Former {
				continue
			}
			s.Kept++
			if first == nil {
				first = sj
			} else if string(first.Body()) != string(sj.Body()) {
				s.fail("job %s has the results %q and %q%s", j.id, first.Body(), sj.Body(), s.placement(j))
			}
		}
	}
}
