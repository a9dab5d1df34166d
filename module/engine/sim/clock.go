package sim

import (
	"fmt"
	"slices"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// Simulated time: a queue of events in the order of their times.

// occurrence is something that happens at a time.
type occurrence interface{ happen() }

type event struct {
	at  int64
	seq uint64 // of two at one time, the one that was scheduled first happens first
	occurrence
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// events is a heap, the first on top.
type events []event

func (e *events) push(x event) {
	*e = append(*e, x)
	h := *e
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !x.before(&h[parent]) {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = x
}

func (e *events) pop() event {
	h := *e
	top, last := h[0], len(h)-1
	x := h[last]
	h[last] = event{}
	h = h[:last]
	*e = h
	if last == 0 {
		return top
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && h[child+1].before(&h[child]) {
			child++
		}
		if !h[child].before(&x) {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = x
	return top
}

// action is an occurrence that is a function.
type action func()

func (f action) happen() { f() }

// at schedules a call in delay ms.
func (s *Sim) at(delay int64, do func()) { s.schedule(delay, action(do)) }

func (s *Sim) schedule(delay int64, o occurrence) {
	s.seq++
	s.queue.push(event{s.now + max(delay, 0), s.seq, o})
}

func (s *Sim) run(until int64) {
	for len(s.queue) > 0 && s.queue[0].at <= until {
		e := s.queue.pop()
		s.now = e.at
		e.happen()
	}
	s.now = until
}

// sleep lets time pass in which nobody does anything and no message moves, as when
// all machines are suspended: each node finds at its next step how late it is.
func (s *Sim) sleep(ms int64) {
	s.now += ms
	for i := range s.queue {
		s.queue[i].at += ms
	}
	for _, n := range s.nodes {
		if n.tickAt != never {
			n.tickAt += ms
		}
		for _, l := range n.links {
			l.last += ms
		}
	}
}

// --- messages under way --------------------------------------------------------

// message is a message under way.
type message struct {
	from, to *node
	link     *link // the sender's to the receiver, when the message was sent
	life     int   // the receiver's, likewise
	b        []byte
}

// carry schedules a copy of a message.
func (s *Sim) carry(at int64, from, to *node, l *link, b []byte) {
	var m *message
	if last := len(s.spare) - 1; last >= 0 {
		m, s.spare = s.spare[last], s.spare[:last]
	} else {
		m = &message{}
	}
	m.from, m.to, m.link, m.life, m.b = from, to, l, to.life, append(m.b[:0], b...)
	if !idle(b) {
		s.flying++
	}
	s.schedule(at-s.now, m)
}

// idle says whether a message is one of those that nodes exchange when there is nothing
// to do.
func idle(b []byte) bool {
	switch wire.Kind(b[0]) {
	case wire.Heartbeat, wire.Failed, wire.NeedJobs, wire.Pause:
		return true
	}
	return false
}

// happen is the arrival of a message.
func (m *message) happen() {
	n, to, l := m.from, m.to, m.link
	s := n.s
	switch {
	case to.life != m.life || n.links[to] != l || !l.up || s.cut(n, to):
	case to.paused || len(l.buffer) > 0:
		l.buffer = append(l.buffer, m) // the buffer of the receiver's kernel
		if len(l.buffer) == 1 {
			s.at(100, func() { s.drain(to, l) })
		}
		return
	default:
		to.call(func() {
			if err := to.e.Receive(n.id, m.b); err != nil {
				s.fail("node %d can't read node %d's message: %v", to.i, n.i, err)
			}
		})
	}
	if !idle(m.b) {
		s.flying--
	}
	// The bytes are overwritten: the engine must not use them after the call.
	for i := range m.b {
		m.b[i] = 0xdb
	}
	m.link = nil
	s.spare = append(s.spare, m)
}

// drain delivers the messages that waited for a paused node, in order.
func (s *Sim) drain(to *node, l *link) {
	if to.paused {
		s.at(100, func() { s.drain(to, l) })
		return
	}
	waiting := l.buffer
	l.buffer = nil
	to.call(func() {
		to.e.Hear(func() {
			for _, m := range waiting {
				m.happen()
			}
		})
	})
}

// --- the end ---------------------------------------------------------------------

const (
	stepMS  = 1_000  // for so long a mesh that has nothing to do is played,
	sleepMS = 59_000 // and for so long it sleeps then
)

// wind lets time pass until a time, or until nothing is left that could still change. A
// mesh that has nothing to do but wait sleeps most of the time.
func (s *Sim) wind(until int64) {
	for s.now < until && !s.spent() {
		s.run(min(s.now+stepMS, until))
		if s.now < until && s.still() {
			s.sleep(min(sleepMS, until-s.now))
		}
	}
}

// still says whether no node has anything under way.
func (s *Sim) still() bool {
	return s.flying == 0 && !slices.ContainsFunc(s.nodes, func(n *node) bool { return n.e.Load() != (engine.Load{}) })
}

// spent says whether no jobs, queues, locks and acquisitions are left, in memory, on disk
// or under way: so nothing can happen any more.
func (s *Sim) spent() bool {
	return s.flying == 0 && !slices.ContainsFunc(s.nodes, func(n *node) bool { return n.e.Locks().Count() > 0 || n.rest() != "" })
}

// jobless says whether no job is anywhere: so none can come back.
func (s *Sim) jobless() bool {
	return s.flying == 0 && !slices.ContainsFunc(s.nodes, func(n *node) bool {
		return n.e.Jobs() > 0 || len(n.disk.jobs) > 0 || n.e.Load().Adding > 0
	})
}

// rest describes what a node has left; empty: nothing.
func (n *node) rest() string {
	switch l := n.e.Load(); {
	case n.e.Jobs() > 0:
		return fmt.Sprintf("%d jobs", n.e.Jobs())
	case l != (engine.Load{}):
		return fmt.Sprintf("%+v", l)
	case n.e.Queues() > 0:
		return fmt.Sprintf("%d queues", n.e.Queues())
	case len(n.disk.jobs) > 0:
		return fmt.Sprintf("%d jobs on disk", len(n.disk.jobs))
	// These stay: tables, the indexes of locks and per-key queues, a wheel, the notes of jobs that
	// are done. They are as many as were ever needed, each of a size of its own.
	case n.alloc.Blocks() > 16:
		return fmt.Sprintf("%d blocks of memory", n.alloc.Blocks())
	}
	return ""
}
