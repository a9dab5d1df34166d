package sim

import (
	"fmt"
	"strings"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// These rules must hold for families, whatever goes wrong:
//
//   - no job is delivered before its turn: not before the release, not before the jobs
//     that it waits for were acknowledged, and not at all with a cancelled family;
//   - no job is stranded: at the end of a history every promised job is awaited.

const blockedMost = 4 // jobs that the deferred one blocks

// family is a deferred job, the jobs that it blocks, and one that comes after those.
type family struct {
	head     *job
	blocked  []*job
	after    *job
	want     int // members that are still to be added
	last     bool
	moved    []byte // the queue that the deferred job is released into; nil: its own
	dead     bool   // the job that comes after is to be a dead letter, if the family is cancelled
	cancel   bool
	released bool // a node was told to release or cancel it
	broken   bool // a member was deleted somewhere: which jobs wait for which is up to each node
	torn     bool // a node lost some of what it had logged of a member
	node     *node

	// The blocked jobs that were promised when after was added, and when the deferred
	// job was released: after, or a deferred job that comes last, waits for these alone.
	beforeAfter, beforeLast []*job
}

// addFamily adds the deferred job; the others are added when it is promised.
func (s *Sim) addFamily() {
	n := s.up()
	if n == nil {
		return
	}
	f := &family{last: s.r.IntN(3) == 0, cancel: s.r.IntN(6) == 0, node: n, want: 1 + s.r.IntN(blockedMost)}
	if s.FamilyMoved {
		f.dead = s.r.IntN(2) == 0
		if s.r.IntN(2) == 0 {
			f.moved = fmt.Append(nil, "q", queues)
		}
	}
	s.member(f, engine.Members{Deferred: true}, func(j *job) { f.head = j })
}

// member adds a job of a family: the deferred job at the node where the family begins, the
// others at a node that has the deferred job.
func (s *Sim) member(f *family, m engine.Members, added func(*job)) {
	n := f.node
	if f.head != nil {
		if n = s.holder(f.head); n == nil {
			f.want = 0
			s.at(1000, func() { s.ready(f) })
			return
		}
	}
	a := engine.Add{
		Queue: fmt.Append(nil, "q", s.r.IntN(queues)), Body: []byte("member"), TTL: ttlSecs,
		Retry: retrySecs, Replicate: max(s.Replicate, 2), Timeout: 2000, CanWait: true, Members: m,
	}
	if !n.serves() {
		return
	}
	n.call(func() {
		id, wait, err := n.e.AddJob(&a)
		if err != nil {
			s.Refused++
			if f.head != nil {
				s.at(1000, func() { s.ready(f) })
			}
			return
		}
		s.Added++
		j := &job{id: id, copies: a.Replicate, delayed: true, family: f}
		s.jobs[id] = j
		s.order = append(s.order, j)
		added(j)
		s.trace("node %d: ADDJOB %s, of a family: %+v", n.i, id, m)
		if f.broken {
			s.givenUp(j)
		}
		if s.chance(s.FamilyDeleted) {
			s.at(s.r.Int64N(30_000), func() { s.command(n, func(e *engine.Node) { s.breakUp(e, j) }) })
		}
		if wait {
			n.e.Tie(engine.PendingAdd(id), nil)
		} else {
			s.at(0, func() { s.promised(n, id) })
		}
		s.at(3000, func() { s.grow(f) }) // promised or refused, by then
	})
}

// breakUp is DELJOB of a member: nobody counts on any job of the family any more, but
// none may be stranded.
func (s *Sim) breakUp(e *engine.Node, j *job) {
	if !e.Delete(&j.id) {
		return
	}
	s.trace("DELJOB %s, of a family", j.id)
	f := j.family
	f.broken = true
	for _, k := range append([]*job{j, f.head, f.after}, f.blocked...) {
		if k != nil {
			s.givenUp(k)
		}
	}
}

// holder finds a node that clients can reach and that has a job in StateActive.
func (s *Sim) holder(j *job) *node {
	first := s.r.IntN(len(s.nodes))
	for i := range s.nodes {
		n := s.nodes[(first+i)%len(s.nodes)]
		if !n.serves() {
			continue
		}
		if sj := n.e.Job(&j.id); sj != nil && sj.State == store.StateActive {
			return n
		}
	}
	return nil
}

func (s *Sim) grow(f *family) {
	if f.released {
		return
	}
	if !f.head.promised {
		if s.known(f.head) { // its node sleeps
			s.at(2000, func() { s.grow(f) })
		}
		return
	}
	if f.want > 0 {
		f.want--
		head := f.head.id
		s.member(f, engine.Members{BlockedBy: &head}, func(j *job) { f.blocked = append(f.blocked, j) })
		return
	}
	if f.after == nil {
		m := engine.Members{OnDead: uint8(s.r.IntN(2)) * engine.OnDeadRun}
		if f.dead {
			m.OnDead = engine.OnDeadDead
		}
		f.beforeAfter = f.promised()
		for _, j := range f.beforeAfter {
			m.After = append(m.After, j.id)
		}
		if len(m.After) > 0 {
			s.member(f, m, func(j *job) { f.after = j })
			return
		}
	}
	s.ready(f)
}

// promised are the blocked jobs that are promised by now.
func (f *family) promised() (list []*job) {
	for _, j := range f.blocked {
		if j.promised {
			list = append(list, j)
		}
	}
	return list
}

// ready releases the family, or cancels it.
func (s *Sim) ready(f *family) {
	n := s.holder(f.head)
	if n == nil || f.released {
		if !f.released && s.known(f.head) {
			s.at(2000, func() { s.ready(f) })
		}
		return
	}
	f.released, f.beforeLast = true, f.promised()
	n.call(func() {
		if f.cancel {
			gone := n.e.CancelJob(&f.head.id)
			s.trace("node %d: CANCELJOB %s: %d", n.i, f.head.id, gone)
			f.head.done = true
			for _, j := range f.blocked {
				j.done = true
			}
			if f.after != nil {
				f.after.done = true
			}
			return
		}
		_, _, err := n.e.Release(&f.head.id, f.moved, f.last, false)
		s.trace("node %d: RELEASEJOB %s into %q last %v: %v", n.i, f.head.id, f.moved, f.last, err)
	})
}

// inTurn checks that a job of a family isn't delivered before its turn, or from the wrong queue.
func (s *Sim) inTurn(n *node, j *job, sj *store.Job) {
	f := j.family
	if f == nil || s.Wiped > 0 || f.broken || f.torn {
		return
	}
	queue := string(sj.Queue.NameBytes())
	switch {
	case j == f.head && f.moved != nil && queue != string(f.moved):
		s.fail("node %d delivers %s, which was released into another queue, from %s%s", n.i, j.id, queue, s.placement(j))
	case j == f.after && f.dead && f.cancel && !strings.HasSuffix(queue, engine.DeadSuffix):
		s.fail("node %d delivers %s, a dead letter, from %s%s", n.i, j.id, queue, s.placement(j))
	case j.delivered > 1:
		return // its turn came with its first delivery, whichever jobs joined the family since
	}
	done := func(j *job) bool { return j.done }
	early := func(why string) {
		s.fail("node %d delivers %s, of a family, %s%s", n.i, j.id, why, s.placement(j))
	}
	switch {
	case !f.released:
		early("before it was released")
	case f.cancel && j != f.after:
		early("which was cancelled")
	case f.cancel:
	case j == f.head && f.last:
		for _, b := range f.beforeLast {
			if !done(b) {
				early("before the one that it waits for: " + b.id.String())
			}
		}
	case j == f.after:
		for _, b := range f.beforeAfter {
			if !done(b) {
				early("before the one that it waits for: " + b.id.String())
			}
		}
	case j != f.head && !f.last && !f.head.done:
		early("before the one that blocks it")
	}
}

// waits says whether a job may go on waiting until it expires. Either it was refused, and a
// node wasn't told to drop its copy. Or the only nodes that knew of its release, or of the end
// of the jobs that it waits for, forgot that with their disks, or by a DELJOB, which deletes
// what one node has.
func (s *Sim) waits(j *job) bool {
	if j.family == nil || j.promised && s.wiped+s.torn == 0 && !j.family.broken {
		return false
	}
	any := false
	for _, n := range s.nodes {
		sj := n.e.Job(&j.id)
		if sj == nil {
			continue
		}
		if deferred, blocked := n.e.Waits(sj); !deferred && !blocked {
			return false
		}
		any = true
	}
	return any
}
