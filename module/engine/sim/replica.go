package sim

import (
	"maps"
	"slices"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// Replicas follow their nodes' logs, and take their places.

const (
	replicaLagMS = 40  // how far a replica is behind its master, at most
	lookMS       = 500 // how often the operator of a promotion looks how far it is
)

// followed gives a node a replica that has all that the node has, as after a full synchronization.
// If the node has a replica already, that one is used again and keeps its ID.
func (n *node) followed() {
	r := n.replica
	if r == nil {
		r = n.s.newNode(n.i)
		n.replica = r
	}
	r.boot()
	r.skew, r.behind = n.skew, nil
	n.saveTo(&r.disk)
	r.disk.sum()
	r.call(func() {
		r.recall()
		r.e.SetPassive(true)
		r.e.BeginLoading()
		r.load()
		r.e.EndLoading()
		r.e.Follow()
	})
	r.tickSoon(1)
}

// hear makes a replica carry out an entry of its master's log, a little later.
func (r *node) hear(e entry) {
	r.behind = append(r.behind, e)
	life := r.life
	r.s.at(r.s.r.Int64N(replicaLagMS+1), func() {
		if r.life == life && len(r.behind) > 0 {
			r.heard(1)
		}
	})
}

// heard carries out the first count entries that a replica has still to hear.
func (r *node) heard(count int) {
	for _, e := range r.behind[:count] {
		e.at = r.s.now
		r.disk.write(e)
		r.call(func() {
			r.apply(&e)
			r.e.Effects() // its master has logged what follows
		})
	}
	r.behind = r.behind[count:]
}

// promote lets a node's replica take the node's place. An operator makes the replica meet the
// others, and they forget the node when they know the new one. Either the node has ended for
// good, or the two change places (FAILOVER).
func (s *Sim) promote(n *node) {
	r := n.replica
	if n.paused || r == nil || s.succeeding || !s.agrees(n) {
		return
	}
	failover := !n.down && s.r.IntN(2) == 0
	s.trace("node %d: its replica is promoted, as %s, in place of %s; FAILOVER %v", n.i, r.text, n.text, failover)
	r.became = s.now
	if !n.down {
		n.end(n.unsure)
	}
	heard := len(r.behind)
	if !failover && s.r.IntN(2) == 0 {
		heard = s.r.IntN(heard + 1)
	}
	r.heard(heard)
	if len(r.behind) > 0 {
		s.trace("node %d: the replica lacks the last %d entries of the log", n.i, len(r.behind))
		s.tear(r.behind, maps.Clone(n.disk.jobs), r.disk.jobs)
	}
	for _, j := range s.order {
		if _, yes := n.disk.jobs[j.id]; yes && !j.promised {
			j.torn++ // the node that adds the job may count this node and its replica as two holders
		}
	}
	if s.locks != nil {
		s.locks.outages = append(s.locks.outages, outage{n.i, n.ended, s.now})
	}
	n.replica, r.behind = nil, nil
	s.nodes[n.i] = r
	r.life++ // so it carries out no more entries of its old master
	r.side, r.shut = n.side, true
	s.dead = slices.DeleteFunc(s.dead, func(id wire.NodeID) bool { return id == r.id })
	if failover {
		n.demote()
		r.replica = n
	} else {
		n.dead = true
	}
	uncertain := 0
	r.call(func() { uncertain = r.e.SetPassive(false) })
	if uncertain > 0 {
		r.log(entry{kind: doubtEntry, now: r.e.Now(), last: r.e.LastCTime()})
	}
	r.tickSoon(1)
	if !failover {
		r.followed()
	}
	for _, p := range r.e.Mesh().All() {
		r.connect(s.byID[p.ID])
	}
	s.succeeding = true
	s.succeed(n.id, n.i)
}

// demote makes a node, whose clients have been sent away, a replica that has all that its master has.
func (n *node) demote() {
	n.down = false
	n.call(func() {
		n.e.SetPassive(true)
		for _, p := range n.e.Mesh().All() {
			n.e.Mesh().Down(p.ID)
		}
		n.e.Follow()
	})
	n.tickAt = never
	n.tickSoon(1)
}

// succeed is what the operator does: the new node meets the others; its clients are let in; each
// other node forgets the old one, once it knows the new one.
func (s *Sim) succeed(old wire.NodeID, i int) {
	fresh, done := s.nodes[i], true
	for _, n := range s.nodes {
		switch known := slices.ContainsFunc(n.e.Mesh().All(), func(p *engine.Peer) bool { return p.ID == old }); {
		case n.down:
			done = done && !slices.Contains(n.disk.nodes, old)
		case n.paused:
			done = done && !known
		case n != fresh && (!n.knows(fresh) || !fresh.knows(n)):
			if done = false; !fresh.down && !fresh.paused {
				s.meet(fresh, n)
			}
		case known && s.r.IntN(2) == 0:
			s.trace("node %d: forgets %v", n.i, old)
			n.call(func() { n.e.Mesh().Forget(old) })
			done = false // it looks again: another may have heard of the old one meanwhile
		default:
			done = done && !known
		}
	}
	if fresh.shut && !fresh.down && !fresh.e.Mesh().Alone() {
		fresh.shut = false
		s.consume(fresh)
	}
	if s.succeeding = fresh.shut || !done; !s.succeeding {
		s.dead = append(s.dead, old)
		return
	}
	s.at(lookMS, func() { s.succeed(old, i) })
}
