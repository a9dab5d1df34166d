package sim

import (
	"encoding/binary"
	"fmt"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// In a history with [Uniques].Bodies each ADDJOB of a unique job is ONCONFLICT replace or debounce, at any node, and has a body of its
// own. These rules must hold for the body that a client is given with a job, whatever goes wrong:
//
//   - it is that of an ADDJOB by the job's key, which was answered by the job's ID, or whose client doesn't know what became of it: it
//     waits still, its node has died, or it was refused after other nodes were asked. An ADDJOB that was refused at once has changed nothing;
//   - it isn't older than one that was replaced while the mesh was whole: if its ADDJOB was answered by the job's ID, then no other ADDJOB that
//     was answered by that ID before the delivery began after this answer, at a time when all nodes were connected to each other, and
//     stayed so. (A node that is away has an older body, and may deliver that.)
//   - when all has healed for a while, no other node has a later body of the job;
//   - while the mesh was whole from the delivery on, no body is replaced while a client has the job: it ends the job, and the body would never
//     be delivered. A job that was given back to two nodes at a time is left out: two clients may have it, and one of them gives it back.
//
// That one job of a key waits at most is a rule for all unique jobs.

const (
	bodiesSecs = 2   // after all has healed, until no node delivers a body that another knows to be replaced
	lateBodies = 60  // for so many seconds clients add jobs when all has healed, after a quarter of that
	jitterMS   = 500 // by which a job may come back before its retry time is over
)

// bodyAdd is such an ADDJOB.
type bodyAdd struct {
	wait         string // what its job is unique by
	began, ended int64
	whole        bool     // the mesh was whole, from its begin to its end
	refused      bool     // at once
	job          store.ID // by which it was answered; zero: it wasn't, or was refused
}

// newBody makes an ADDJOB one of those whose bodies are judged.
func (s *Sim) newBody(a *engine.Add, wait string) *bodyAdd {
	a.Body = fmt.Append(nil, "body ", len(s.uniques.bodies))
	b := &bodyAdd{wait: wait, began: s.now, whole: s.whole()}
	s.uniques.bodies[string(a.Body)] = b
	return b
}

// whole says whether no node is down, and all are connected to each other.
func (s *Sim) whole() bool {
	for _, n := range s.nodes {
		if n.down || n.paused || n.e.Mesh().Reachable() < len(s.nodes)-1 {
			return false
		}
	}
	return s.gentle() || s.healed
}

// bodyAnswered notes that an ADDJOB was answered by a job's ID.
func (s *Sim) bodyAnswered(b *bodyAdd, id store.ID) {
	if b != nil {
		b.job, b.ended, b.whole = id, s.now, b.whole && s.whole()
		if j := s.jobs[id]; b.whole && j != nil && j.unique != nil && j.unique.hands && j.given < b.began && s.now < j.given+retrySecs*1000-jitterMS {
			s.fail("%s gets the body of an ADDJOB of %d, but a client has it since %d%s", id, b.began, j.given, s.placement(j))
		}
	}
}

// bodyGiven judges the body that a client is given with a job.
func (s *Sim) bodyGiven(n *node, j *job, sj *store.Job) {
	if s.Uniques == nil || !s.Uniques.Bodies || j.unique == nil {
		return
	}
	j.unique.hands = s.whole() && !j.unique.twice
	if s.Former == 0 && s.healed && s.now > s.healedAt+bodiesSecs*1000 && s.whole() {
		for _, o := range s.nodes {
			if oj := o.e.Job(&j.id); oj != nil && oj.State != store.StateAcked && bodyChanges(oj) > bodyChanges(sj) {
				s.fail("node %d delivers %s with the body %q, but node %d has %q%s", n.i, j.id, sj.Body(), o.i, oj.Body(), s.placement(j))
				return
			}
		}
	}
	b := s.uniques.bodies[string(sj.Body())]
	switch {
	case b == nil || b.wait != j.unique.wait:
		s.fail("node %d delivers %s with the body %q, which isn't one of its key%s", n.i, j.id, sj.Body(), s.placement(j))
		return
	case b.refused, b.job != store.ID{} && b.job != j.id:
		s.fail("node %d delivers %s with the body %q, whose ADDJOB was refused, or answered by %s%s", n.i, j.id, sj.Body(), b.job, s.placement(j))
		return
	case b.job == store.ID{}:
		return
	}
	s.Bodies++
	for text, o := range s.uniques.bodies {
		if o.whole && o.job == j.id && o.began > b.ended {
			s.fail("node %d delivers %s with the body %q of %d, after it got %q at %d%s", n.i, j.id, sj.Body(), b.ended, text, o.began, s.placement(j))
			return
		}
	}
}

// bodyChanges is how often a job's body was replaced, as its copy says.
func bodyChanges(j *store.Job) uint32 {
	if e := j.Extra(store.TagBody); len(e) >= 4 {
		return binary.LittleEndian.Uint32(e)
	}
	return 0
}
