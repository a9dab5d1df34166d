package sim

import (
	"fmt"

	"jobmesh/module/engine"
	"jobmesh/module/store"
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
		s.flushes[f.queue] = s.now
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

// flushedLate judges the end of a job by a flush that has reached its node later. Its producer had heard of the job when the last flush began,
// and no client ever got the job.
func (s *Sim) flushedLate(n *node, h *engine.Happening) {
	id, _, ok := store.ParseID([]byte(h.Field("id")))
	j := s.jobs[id]
	if !ok || j == nil || h.Event != engine.EventCancel || h.Field("why") != "flush" {
		return
	}
	s.trace("node %d: %s goes by a late flush", n.i, id)
	j.flushedLate = true
	switch {
	case j.heardAt == 0 || j.heardAt >= s.flushes[j.queue]:
		s.fail("node %d: job %s goes by a flush that began %d ms before its producer heard of it%s", n.i, id, j.heardAt-s.flushes[j.queue], s.placement(j))
	case j.delivered > 0:
		s.fail("node %d: job %s goes by a late flush, and was delivered %d times%s", n.i, id, j.delivered, s.placement(j))
	}
}
