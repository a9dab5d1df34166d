package sim

import (
	"fmt"

	"jobmesh/module/engine"
)

// Queues are flushed on the whole mesh at random nodes. A job that was added before may go. A job that was added after the answer stays.

// flushing is a QFLUSH that waits for its answer.
type flushing struct {
	queue    int
	answered bool
}

const flushMS = 5_000 // that a client waits for the answer

// flush flushes a queue.
func (s *Sim) flush() {
	n := s.joined()
	if n == nil {
		return
	}
	f := &flushing{queue: s.r.IntN(queues)}
	s.trace("node %d: QFLUSH q%d MESH", n.i, f.queue)
	n.call(func() {
		p, now := n.e.FlushMesh(fmt.Append(nil, "q", f.queue), s.r.IntN(4) == 0, flushMS)
		s.flushings[f.queue]++
		s.mayGo(f)
		s.at(flushMS+2*s.Faults.Skew, func() {
			if !f.answered { // its node has ended
				s.flushings[f.queue]--
				s.mayGo(f)
			}
		})
		if now != nil {
			s.flushed(f, now)
		} else {
			n.e.Tie(p, f)
		}
	})
}

// mayGo notes that the jobs of a queue may go by a flush.
func (s *Sim) mayGo(f *flushing) {
	for _, j := range s.order {
		if j.queue == f.queue && !j.done {
			j.givenUp, j.done = true, true
		}
	}
}

// flushed takes the answer.
func (s *Sim) flushed(f *flushing, a *engine.MeshAnswer) {
	s.trace("q%d: %d flushed, %d unanswered", f.queue, a.Flushed, len(a.Unanswered))
	s.Flushed += int(a.Flushed)
	f.answered = true
	s.flushings[f.queue]--
	s.mayGo(f)
}
