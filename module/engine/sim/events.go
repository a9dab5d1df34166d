package sim

import (
	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// happened looks at what an event tells. However the nodes are cut off from each other, at most one of them tells the end that a client says.
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
		if j.told++; j.told > j.ends {
			s.fail("node %d: the end of %s is told %d times, and %d clients have said it", n.i, id, j.told, j.ends)
		}
	}
	if h.Event == engine.EventDrop && h.Field("why") == engine.WhyBusy.String() {
		s.trace("node %d: drops %s", n.i, id)
		if j := s.jobs[id]; j != nil {
			s.givenUp(j)
		}
	}
}
