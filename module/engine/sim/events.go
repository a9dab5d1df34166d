package sim

import (
	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// happened looks at what an event tells. No end is told that no client has said, and without trouble no job is told to be added twice, also one with a
// name that several nodes have added. Without trouble it is told once, and once more by each node to which a job
// came that was delivered again; a node that crashes may lose the event with its cause, and tell both again.
func (s *Sim) happened(n *node, h *engine.Happening) {
	if h.Field("event") != h.Event.String() || h.Field("queue") != string(h.Queue) {
		s.fail("node %d tells the event %s of queue %q with other names in its fields: %q", n.i, h.Event, h.Queue, h.Fields)
	}
	id, _, ok := store.ParseID([]byte(h.Field("id")))
	if !ok {
		return // it is of a queue
	}
	if j := s.jobs[id]; j != nil && h.Event == engine.EventDone {
		s.Told++
		if j.told++; j.ends == 0 || s.Swift && j.told > j.ends+max(0, j.delivered-1) {
			s.fail("node %d: the end of %s is told %d times, and %d clients have said it; it was delivered %d times", n.i, id, j.told, j.ends, j.delivered)
		}
	}
	if j := s.jobs[id]; j != nil && h.Event == engine.EventAdd {
		if j.addTold++; s.Swift && j.addTold > 1 {
			s.fail("node %d: the adding of %s is told %d times", n.i, id, j.addTold)
		}
	}
	if h.Event == engine.EventDrop && h.Field("why") == engine.WhyBusy.String() {
		s.trace("node %d: drops %s", n.i, id)
		if j := s.jobs[id]; j != nil {
			s.givenUp(j)
		}
	}
}
