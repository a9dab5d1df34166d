package sim

import (
	"fmt"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// addBulk is a client that adds jobs by ADDJOBS. Some clients go away before they are answered: what isn't decided then must
// be nowhere. The jobs of some calls are so large that their copies travel in several messages.
func (s *Sim) addBulk() {
	n := s.up()
	if n == nil {
		return
	}
	a := s.newAdd()
	bodies := make([][]byte, 1+s.r.IntN(s.Bulk))
	for i := range bodies {
		bodies[i] = fmt.Append(nil, "body", i)
	}
	if s.r.IntN(10) == 0 {
		for i := range bodies {
			bodies[i] = make([]byte, s.r.IntN(40_000))
		}
	}
	n.call(func() {
		if a.Replicate == 0 {
			a.Replicate = n.e.Copies()
		}
		b, wait, err := n.e.AddJobs(&a, bodies, nil)
		if err != nil {
			s.Refused += len(bodies)
			return
		}
		s.trace("node %d: ADDJOBS of %d", n.i, len(bodies))
		if a.Async {
			var ids []store.ID
			for _, answer := range b.Answers {
				ids = append(ids, answer.ID)
			}
			s.barrier(n, ids)
		}
		for i, answer := range b.Answers {
			id := answer.ID
			s.Added++
			s.jobs[id] = &job{id: id, once: a.Retry == 0, copies: a.Replicate, delayed: a.Delay > 0}
			s.order = append(s.order, s.jobs[id])
			switch {
			case answer.Err == nil && !a.Async:
				s.at(0, func() { s.promised(n, id) }) // its copy is on disk by then
			case answer.Err != nil && (!wait || answer.Err != engine.ErrReplTimeout):
				s.fail("job %d of an ADDJOBS is refused: %v", i, answer.Err)
			}
		}
		if !wait {
			return
		}
		p, life := engine.PendingBatch(b), n.life
		n.e.Tie(p, nil)
		if s.r.IntN(10) > 0 {
			return
		}
		s.at(s.r.Int64N(2*s.Faults.MaxDelay+60), func() {
			if n.life != life || b.Decided() {
				return
			}
			s.trace("node %d: the client of an ADDJOBS goes away", n.i)
			n.call(func() {
				n.e.Deny(p)
				n.e.Abandon(p)
			})
			for _, answer := range b.Answers {
				if answer.Err != nil {
					s.denied(answer.ID)
				}
			}
		})
	})
}

// waiting is a client that waits for the copies of jobs that were added with ASYNC.
type waiting struct {
	ids []store.ID
}

// barrier is WAITCOPIES, of a client that added jobs with ASYNC. A job that has its copies then is promised as others are.
func (s *Sim) barrier(n *node, ids []store.ID) {
	if s.r.IntN(2) == 0 {
		return
	}
	w := &waiting{ids}
	life := n.life
	s.at(s.r.Int64N(20), func() {
		if n.life != life || n.down || n.e.Passive() {
			return
		}
		n.call(func() {
			p, now := n.e.WaitCopies(w.ids, 0, 3000)
			if now != nil {
				s.at(0, func() { s.haveCopies(n, w, now) }) // they are on disk by then
				return
			}
			n.e.Tie(p, w)
		})
	})
}

// haveCopies takes the answer to a barrier.
func (s *Sim) haveCopies(n *node, w *waiting, counts []int64) {
	for i, id := range w.ids {
		if j := s.jobs[id]; j != nil && counts[i] >= int64(j.copies) {
			s.promised(n, id)
		}
	}
}

// answered judges the answers to an ADDJOBS.
func (s *Sim) answered(n *node, b *engine.Batch) {
	for _, a := range b.Answers {
		if a.Err == nil {
			s.promised(n, a.ID)
		} else {
			s.denied(a.ID)
		}
	}
}
