package sim

import (
	"slices"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// Limits of jobs in progress, and what must hold of them: at no true time are more deliveries of a queue's jobs in progress than may be. A delivery is
// in progress until any client acknowledges its job or gives it back, at whatever node, or until its term is over by the client's clock. Its term
// begins anew with each WORKING that was answered. Deliveries of a job after its acknowledgement don't count: the mesh ends them when it hears of it.

// inProgress is a delivery.
type inProgress struct {
	job   store.ID
	until int64 // true time: its term is over
}

// termMS is how long a delivery lasts at least in true time, ms: clocks drift.
func termMS(sj *store.Job) int64 {
	term := engine.TermOf(sj) * 1000
	return term - int64(float64(term)*LockDrift)
}

// takesSlot notes a delivery.
func (s *Sim) takesSlot(n *node, sj *store.Job) {
	if s.AtOnce == 0 || s.acked[sj.ID] {
		return
	}
	until := s.now + termMS(sj)
	if sj.Retry == 0 {
		until = s.now + max(0, sj.ETime-n.clock())
	}
	s.inProgress(n, string(sj.Queue.NameBytes()), inProgress{sj.ID, until})
}

func (s *Sim) inProgress(n *node, queue string, p inProgress) {
	if s.progress == nil {
		s.progress = map[string][]inProgress{}
	}
	others := slices.DeleteFunc(s.progress[queue], func(old inProgress) bool { return old.until <= s.now })
	s.progress[queue] = append(others, p)
	if len(others) >= int(s.AtOnce) {
		s.fail("node %d: job %s of %s is in progress, and so are %d others: %v", n.i, p.job, queue, len(others), others)
	}
}

// keepsSlot notes a WORKING that was said at a time, and answered with yes. Its job is in progress, wherever the node has it: only a job that rests
// after it was given back, or waits for its first delivery, is in nobody's hands.
func (s *Sim) keepsSlot(n *node, id store.ID, said int64) {
	sj := n.e.Job(&id)
	if s.AtOnce == 0 || s.acked[id] || sj == nil || sj.Retry == 0 || sj.Place == store.InHeld {
		return
	}
	queue := string(sj.Queue.NameBytes())
	until := said + termMS(sj)
	list := s.progress[queue]
	for i := len(list) - 1; i >= 0; i-- {
		if p := &list[i]; p.job == id && p.until > s.now {
			p.until = max(p.until, until)
			return
		}
	}
	if until > s.now {
		s.inProgress(n, queue, inProgress{id, until})
	}
}

// leavesSlot notes that a client has done with a job, or gives it back.
func (s *Sim) leavesSlot(id store.ID, done bool) {
	if s.AtOnce == 0 {
		return
	}
	if s.acked == nil {
		s.acked = map[store.ID]bool{}
	}
	s.acked[id] = s.acked[id] || done
	for queue, list := range s.progress {
		s.progress[queue] = slices.DeleteFunc(list, func(p inProgress) bool { return p.job == id })
	}
}
