package sim

import (
	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// happened looks at what an event tells.
func (s *Sim) happened(n *node, h *engine.Happening) {
	if h.Field("event") != h.Event.String() || h.Field("queue") != string(h.Queue) {
		s.fail("node %d tells the event %s of queue %q with other names in its fields: %q", n.i, h.Event, h.Queue, h.Fields)
	}
	id, _, ok := store.ParseID([]byte(h.Field("id")))
	if !ok {
		return // it is of a queue
	}
	if h.Event == engine.EventDrop && h.Field("why") == engine.WhyBusy.String() {
		s.trace("node %d: drops %s", n.i, id)
		if j := s.jobs[id]; j != nil {
			s.givenUp(j)
		}
	}
}
