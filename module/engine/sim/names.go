package sim

import (
	"fmt"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// Some jobs have names, and are added at several nodes, at one moment or one after the other. Each ADDJOB of a name must answer the same ID. A job is
// promised when an ADDJOB has answered, and its copies are there: then it must not be lost, whichever of them made it. Where nothing goes wrong
// (Swift), it is queued when its delay is over, and by one node.

const (
	namedAgainMS = 4000 // within which a name is added again
	namedAskMS   = 500  // within which the other nodes answer whether they know it
)

// addNamed adds a job with a name at some nodes.
func (s *Sim) addNamed() {
	s.names++
	a := s.newAdd()
	a.Name, a.Retry = fmt.Append(nil, "name ", s.names), retrySecs
	times := 1 + s.r.IntN(4)
	for range times {
		after := int64(0)
		if s.r.IntN(2) == 0 {
			after = s.r.Int64N(namedAgainMS)
		}
		s.at(after, func() { s.sayName(a) })
	}
}

// sayName is an ADDJOB with a name at some node.
func (s *Sim) sayName(a engine.Add) {
	n := s.up()
	if n == nil {
		return
	}
	n.call(func() {
		if a.Replicate == 0 {
			a.Replicate = n.e.Copies()
		}
		id, err := n.e.AddNamed(&a)
		if err != nil {
			s.Refused++
			return
		}
		if want := engine.NamedID(a.Name); id != want {
			s.fail("node %d answers %s for a name whose ID is %s", n.i, id, want)
		}
		j := s.jobs[id]
		if j == nil {
			s.Added++
			j = &job{id: id, named: true, queue: int(a.Queue[1] - '0'), copies: a.Replicate, delayed: a.Delay > 0, notBefore: s.now + a.Delay*1000}
			s.jobs[id] = j
			s.order = append(s.order, j)
			if s.Swift {
				s.at(a.Delay*1000+namedAskMS, func() {
					s.unqueued(j, "due", func() bool { return !j.done && j.delivered == 0 && s.queued(j) == 0 })
				})
			}
		}
		s.trace("node %d: ADDJOB NAME %q: %s", n.i, a.Name, id)
		if a.Async || a.Replicate == 1 {
			if a.Replicate == 1 {
				s.at(0, func() { s.promised(n, id) }) // its copy is on disk by then
			}
			return
		}
		w := &waiting{[]store.ID{id}}
		p, now := n.e.WaitNamed(id, &a)
		if now != nil {
			s.at(0, func() { s.haveCopies(n, w, now) })
			return
		}
		n.e.Tie(p, w)
	})
}
