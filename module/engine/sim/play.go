package sim

import (
	"container/heap"
	"fmt"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

const (
	queues    = 3
	retrySecs = 8
	ttlSecs   = 7200
	healSecs  = 900 // until all must be in order again: a few of the longest waits
)

// Run plays one history. The error says what was not as it must be; the same
// seed and configuration give the same history.
func Run(seed uint64, c Config) (Report, error) {
	s := newSim(seed, c)
	s.work()
	s.trouble()
	end := s.now + c.Seconds*1000
	began := s.now
	s.run(end)
	s.heal()
	for until := s.now + healSecs*1000; s.now < until && !s.done(); {
		s.run(s.now + 10_000)
	}
	s.judge()
	s.Simulated = s.now - began
	s.PerJob = float64(s.Messages) / float64(max(s.Added, 1))
	if len(s.failures) > 0 {
		return s.Report, fmt.Errorf("seed %d: %s", seed, s.failures[0])
	}
	return s.Report, nil
}

func (s *Sim) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.trace("FAILURE: %s", text)
	s.failures = append(s.failures, fmt.Sprintf("%s (%d failures in all)", text, len(s.failures)+1))
}

func (s *Sim) run(until int64) {
	for len(s.queue) > 0 && s.queue[0].at <= until {
		e := heap.Pop(&s.queue).(event)
		s.now = e.at
		e.do()
	}
	s.now = until
}

// --- clients -----------------------------------------------------------------

func (s *Sim) work() {
	for range s.Jobs {
		s.at(2000+s.r.Int64N(s.Seconds*800), s.add)
	}
	for _, n := range s.nodes {
		s.consume(n)
	}
}

// up picks a node that clients can reach, nil where there is none.
func (s *Sim) up() *node {
	for range 20 {
		if n := s.nodes[s.r.IntN(len(s.nodes))]; !n.down && !n.paused {
			return n
		}
	}
	return nil
}

func (s *Sim) add() {
	n := s.up()
	if n == nil {
		return
	}
	a := engine.Add{
		Queue: fmt.Append(nil, "q", s.r.IntN(queues)), Body: []byte("body"), TTL: ttlSecs,
		Retry: retrySecs, Replicate: s.Replicate, Timeout: 2000, CanWait: true,
	}
	if s.r.IntN(10) == 0 {
		a.Delay = 1 + s.r.Int64N(10)
	}
	if s.chance(s.Once) {
		a.Retry, a.Replicate = 0, 1
	}
	n.call(func() {
		if a.Replicate == 0 {
			a.Replicate = n.e.Copies()
		}
		id, wait, err := n.e.AddJob(&a)
		if err != nil {
			s.Refused++
			return
		}
		s.Added++
		s.jobs[id] = &job{id: id, once: a.Retry == 0, copies: a.Replicate, expires: s.now + ttlSecs*1000}
		s.order = append(s.order, s.jobs[id])
		s.trace("node %d: ADDJOB %s", n.i, id)
		if wait {
			n.e.Adder(id, nil)
		} else {
			s.promised(id)
		}
	})
}

func (s *Sim) promised(id store.ID) {
	if j := s.jobs[id]; j != nil {
		j.promised = true
	}
}

// consume is a worker at a node: it blocks, works, acknowledges, and again.
func (s *Sim) consume(n *node) {
	life := n.life
	s.at(s.r.Int64N(1000), func() {
		if n.life != life || s.closed {
			return
		}
		if n.down || n.paused {
			s.consume(n)
			return
		}
		n.call(func() {
			names := [][]byte{fmt.Append(nil, "q", s.r.IntN(queues)), fmt.Append(nil, "q", s.r.IntN(queues))}
			var qs []*store.Queue
			for _, name := range names {
				qs = append(qs, n.e.Queue(name))
			}
			got := n.e.Fetch(qs, 1+s.r.IntN(3), nil)
			for _, j := range got {
				s.take(n, j)
			}
			if len(got) > 0 {
				s.consume(n)
				return
			}
			done := false
			w, err := n.e.Wait(names, &done)
			if err != nil {
				s.consume(n)
				return
			}
			s.at(1000+s.r.Int64N(10_000), func() {
				if n.life == life && !done {
					n.call(func() { n.e.Cancel(w) })
					s.consume(n)
				}
			})
		})
	})
}

// delivered is a blocked worker being served.
func (s *Sim) delivered(n *node, w *engine.Waiter, j *store.Job) {
	*w.Client.(*bool) = true
	s.take(n, j)
	s.consume(n)
}

func (s *Sim) take(n *node, sj *store.Job) {
	j := s.jobs[sj.ID]
	if j == nil {
		s.fail("node %d delivers a job that nobody added: %s", n.i, sj.ID)
		return
	}
	s.Delivered++
	j.delivered++
	s.trace("node %d: delivers %s (%d)", n.i, j.id, j.delivered)
	if j.delivered > 1 {
		s.Duplicates++
		if j.once {
			s.fail("at-most-once job %s was delivered %d times", j.id, j.delivered)
		}
	}
	if j.acked && s.healed && s.now-j.ackedAt > 60_000 {
		s.fail("job %s came back %d s after its acknowledgement", j.id, (s.now-j.ackedAt)/1000)
	}
	share := s.AckShare
	if s.healed {
		share = 1
	}
	if !s.chance(share) {
		return // the worker dies with it
	}
	if !s.healed && s.r.IntN(10) == 0 && !j.once {
		s.at(s.r.Int64N(1000), func() { s.command(n, func(e *engine.Node) { e.Enqueue(&j.id, true) }) })
		return
	}
	if s.r.IntN(10) == 0 {
		s.at(s.r.Int64N(1000), func() {
			s.command(n, func(e *engine.Node) {
				// That it is too late, or the job gone, is for the worker to know.
				_, _ = e.Working(&j.id)
			})
		})
	}
	s.at(s.r.Int64N(2000), func() { s.ack(j, n) })
}

// command runs something at a node, or at another where that is down.
func (s *Sim) command(n *node, f func(*engine.Node)) {
	if n.down || n.paused || s.r.IntN(4) == 0 {
		if n = s.up(); n == nil {
			return
		}
	}
	n.call(func() { f(n.e) })
}

func (s *Sim) ack(j *job, n *node) {
	if n.down || n.paused || s.r.IntN(4) == 0 {
		if n = s.up(); n == nil {
			s.at(1000, func() { s.ack(j, s.nodes[0]) })
			return
		}
	}
	n.call(func() {
		known := n.e.Ack(&j.id)
		s.trace("node %d: ACKJOB %s known %v", n.i, j.id, known)
		if known && !j.acked {
			j.acked, j.ackedAt = true, s.now
			s.Acked++
		}
		if known {
			j.ackedBy = append(j.ackedBy, n.i)
		}
	})
}

// --- trouble -----------------------------------------------------------------

// every has something happen at random, so many times an hour.
func (s *Sim) every(perHour float64, do func()) {
	if perHour <= 0 {
		return
	}
	var next func()
	next = func() {
		s.at(int64(s.r.ExpFloat64()*3_600_000/perHour)+1, func() {
			if s.healed {
				return
			}
			do()
			next()
		})
	}
	next()
}

func (s *Sim) trouble() {
	f := &s.Faults
	for _, n := range s.nodes {
		s.every(f.Crashes, func() { s.crash(n, false) })
		s.every(f.Wipes, func() {
			if s.wiped < s.Wiped {
				s.crash(n, true)
			}
		})
		s.every(f.Pauses, func() { s.pause(n) })
		s.every(f.Resets, func() { s.drop(n, s.nodes[s.r.IntN(len(s.nodes))]) })
		s.every(f.Pressure, func() {
			n.e.SetMemory(0.8)
			s.at(s.r.Int64N(20_000), func() { n.e.SetMemory(0) })
		})
		s.every(f.Leaving, func() {
			if !n.down && !n.paused {
				n.call(func() { n.e.SetLeaving(true) })
				s.at(s.r.Int64N(20_000), func() {
					if !n.down {
						n.call(func() { n.e.SetLeaving(false) })
					}
				})
			}
		})
	}
	s.every(f.Partitions, s.partition)
}

func (s *Sim) crash(n *node, wipe bool) {
	if n.down {
		return
	}
	s.trace("node %d: crashes, disk lost: %v", n.i, wipe)
	n.down = true
	n.life++
	if wipe {
		s.wiped++
		clear(n.disk)
		n.order = nil
		// What only this node knew of acknowledgements is gone.
		for _, j := range s.order {
			for _, by := range j.ackedBy {
				if by == n.i && s.now-j.ackedAt < 1_000_000 {
					j.acked = false
				}
			}
		}
	}
	for _, other := range s.nodes {
		s.drop(n, other)
	}
	s.at(100+s.r.Int64N(20_000), func() { s.restart(n) })
}

func (s *Sim) restart(n *node) {
	if !n.down {
		return
	}
	s.trace("node %d: restarts with %d jobs", n.i, len(n.disk))
	clear(n.links)
	n.start()
	s.consume(n)
}

func (s *Sim) pause(n *node) {
	if n.down || n.paused {
		return
	}
	s.trace("node %d: pauses", n.i)
	n.paused = true
	life := n.life
	s.at(100+s.r.Int64N(30_000), func() {
		if n.life == life {
			n.paused = false
		}
	})
}

func (s *Sim) partition() {
	side := make([]bool, len(s.nodes))
	for i := range side {
		side[i] = s.r.IntN(2) == 0
	}
	oneWay := s.r.IntN(3) == 0
	s.trace("partition, one way: %v", oneWay)
	s.cut = func(from, to *node) bool { return side[from.i] != side[to.i] && (!oneWay || side[from.i]) }
	for _, a := range s.nodes {
		for _, b := range s.nodes {
			if side[a.i] && !side[b.i] {
				s.at(s.r.Int64N(8000), func() { s.drop(a, b) })
			}
		}
	}
	s.at(8000+s.r.Int64N(60_000), func() { s.cut = func(_, _ *node) bool { return false } })
}

func (s *Sim) heal() {
	s.trace("all heals")
	s.healed = true
	s.cut = func(_, _ *node) bool { return false }
	for _, n := range s.nodes {
		if n.down {
			s.restart(n)
		}
		n.paused = false
		n.skew = s.nodes[0].skew
		n.call(func() {
			n.e.SetMemory(0)
			n.e.SetLeaving(false)
		})
	}
}

// --- judgement ---------------------------------------------------------------

// done says whether there is nothing left to wait for.
func (s *Sim) done() bool {
	for _, j := range s.order {
		if !j.once && j.promised && !j.acked {
			return false
		}
	}
	for _, n := range s.nodes {
		if n.e.Jobs() > 0 {
			return false
		}
	}
	return true
}

func (s *Sim) judge() {
	for _, j := range s.order {
		if j.promised && !j.once && j.delivered == 0 {
			s.fail("job %s was promised on %d nodes, and never delivered%s", j.id, j.copies, s.whereabouts(j))
		}
		if j.acked {
			for _, n := range s.nodes {
				if n.e.Job(&j.id) != nil {
					s.fail("job %s, acknowledged %d s ago, is still known%s", j.id, (s.now-j.ackedAt)/1000, s.whereabouts(j))
					break
				}
			}
		}
	}
	s.converged()
	// Past every job's expiry, and with no clients, nothing may be left.
	s.closed = true
	s.run(s.now + (ttlSecs+60)*1000)
	for _, n := range s.nodes {
		if jobs := n.e.Jobs(); jobs > 0 {
			s.fail("node %d still has %d jobs after all have expired", n.i, jobs)
		}
		if l := n.e.Load(); l != (engine.Load{}) {
			s.fail("node %d is left with %+v", n.i, l)
		}
	}
}

// whereabouts tells of each copy of a job.
func (s *Sim) whereabouts(j *job) (text string) {
	for _, n := range s.nodes {
		if sj := n.e.Job(&j.id); sj != nil {
			text += fmt.Sprintf("; node %d: state %d flags %#x queued again in %d ms, %d of %d holders confirmed", n.i, sj.State, sj.Flags, sj.QTime-n.clock(), sj.Confirmed(), sj.Holders())
		}
	}
	return text
}

// converged: whoever holds a copy is known to, or knows, every other holder.
func (s *Sim) converged() {
	for _, j := range s.order {
		var with []*node
		for _, n := range s.nodes {
			if n.e.Job(&j.id) != nil {
				with = append(with, n)
			}
		}
		for _, a := range with {
			for _, b := range with {
				if a != b && !a.e.Job(&j.id).HeldBy(uint64(b.id.Node())) && !b.e.Job(&j.id).HeldBy(uint64(a.id.Node())) {
					s.fail("job %s: nodes %d and %d hold it and don't know of each other", j.id, a.i, b.i)
				}
			}
		}
	}
}
