package sim

import (
	"slices"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// Limits of jobs in progress, and what must hold of them: at no true time are more jobs of a queue in progress than may be (a job that several clients
// have is one job). A job is in progress from
// its delivery until a client says that it is done, or gives it back, to whatever node, or until the term of the delivery is over by the client's
// clock, which begins anew with each WORKING that was answered. A job that was once acknowledged or given back, at whatever node, isn't looked at any
// more: the word of that may come to the node that delivers it again, late, and ends that delivery.

// termMS is how long a delivery lasts at least, ms: holders let retry times differ a little at random, and clocks drift.
func termMS(sj *store.Job) int64 {
	term := engine.TermOf(sj) * 1000
	return term - 260 - int64(float64(term)*LockDrift)
}

// inProgress is a delivery.
type inProgress struct {
	job   store.ID
	until int64 // true time: its term is over
}

// takesSlot notes a delivery.
func (s *Sim) takesSlot(n *node, sj *store.Job) {
	if s.AtOnce == 0 || s.left[sj.ID] > 0 {
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
	now := slices.DeleteFunc(s.progress[queue], func(old inProgress) bool {
		if old.job == p.job { // a duplicate: it is one job
			p.until = max(p.until, old.until)
		}
		return old.job == p.job || old.until <= s.now
	})
	s.progress[queue] = append(now, p)
	if len(now) >= int(s.AtOnce) {
		s.fail("node %d: job %s of %s is in progress, and so are %d others: %v", n.i, p.job, queue, len(now), now)
	}
}

// keepsSlot notes a WORKING that was said at a time.
func (s *Sim) keepsSlot(n *node, id store.ID, said int64) {
	sj := n.e.Job(&id)
	if s.AtOnce == 0 || s.left[id] > 0 || sj == nil || sj.Retry == 0 || sj.State != store.StateActive || sj.Place != store.InWorking {
		return
	}
	queue := string(sj.Queue.NameBytes())
	until := said + termMS(sj)
	list := s.progress[queue]
	if i := slices.IndexFunc(list, func(p inProgress) bool { return p.job == id }); i >= 0 && list[i].until > s.now {
		list[i].until = max(list[i].until, until)
	} else if until > s.now {
		s.inProgress(n, queue, inProgress{id, until})
	}
}

// leavesSlot notes that a client has done with a job, or gives it back.
func (s *Sim) leavesSlot(id store.ID) {
	if s.AtOnce == 0 {
		return
	}
	if s.left == nil {
		s.left = map[store.ID]int64{}
	}
	s.left[id] = s.now
	for queue, list := range s.progress {
		s.progress[queue] = slices.DeleteFunc(list, func(p inProgress) bool { return p.job == id })
	}
}
