package sim

import (
	"fmt"
	"slices"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// Recurring jobs are set while a history goes on, and paused when all has healed. These rules must hold, whatever goes wrong:
//
//   - the job of a slot has one ID, whichever nodes make it;
//   - no slot is made before its time, by the clocks of a majority;
//   - with MISSED all, which all have here, each slot is made between the first and the last, unless a disk was lost. Slots of at-most-once
//     jobs may be lost where nodes end;
//   - where nothing goes wrong, each slot is made by one node.
//
// That at-most-once jobs are delivered once is checked for all jobs.

// Crons are recurring jobs.
type Crons struct {
	Entries int     // how many are set
	Every   int64   // seconds
	Once    float64 // the share of those with RETRY 0
	Any     float64 // the share of those with QUORUM any
	Days    bool    // they are lines that come hourly, for long histories
}

const (
	cronPauseSecs = 60  // after all has healed, until they are paused: a node that has just ended may have a slot's lock for 30 s
	cronJudgeSecs = 160 // until the nodes are compared; slots that were missed are made meanwhile
)

// cronEntry is a recurring job.
type cronEntry struct {
	name  string
	queue int
	once  bool
	any   bool
	next  int64 // its first slot
	slots map[int64]store.ID
}

type cronWorld struct {
	entries map[string]*cronEntry
	order   []*cronEntry
}

// startCrons sets the recurring jobs.
func (s *Sim) startCrons() {
	if s.Crons == nil {
		return
	}
	s.crons = &cronWorld{entries: map[string]*cronEntry{}}
	for i := range s.Crons.Entries {
		s.at(3000+s.r.Int64N(s.Seconds*200), func() { s.setCron(i) })
	}
}

func (s *Sim) setCron(i int) {
	n := s.joined()
	if n == nil || len(s.nodes) > 1 && n.e.Mesh().Reachable() == 0 {
		s.at(1000, func() { s.setCron(i) })
		return
	}
	e := &cronEntry{name: fmt.Sprint("cron", i), queue: s.r.IntN(queues), once: s.chance(s.Crons.Once), any: s.chance(s.Crons.Any), slots: map[int64]store.ID{}}
	n.call(func() {
		c := engine.Cron{Every: s.Crons.Every, Missed: engine.MissedAll, Once: e.once, Any: e.any, Queue: fmt.Append(nil, "q", e.queue), Body: []byte("recurring")}
		if s.Crons.Days {
			c.Every, c.Line, c.Zone = 0, fmt.Sprint(s.r.IntN(60), " * * * *"), "Europe/Berlin"
		}
		next, err := n.e.SetCron(e.name, c)
		if err != nil {
			s.fail("node %d: CRON SET: %v", n.i, err)
			return
		}
		e.next = next
		s.trace("node %d: CRON SET %s, from %d on", n.i, e.name, next)
	})
	s.crons.entries[e.name] = e
	s.crons.order = append(s.crons.order, e)
}

// addCron makes the ADDJOB of a recurring job.
func (s *Sim) addCron(c *engine.Cron, a *engine.Add) error {
	*a = engine.Add{Queue: c.Queue, Body: c.Body, TTL: ttlSecs, Retry: retrySecs, Replicate: max(s.Replicate, 1)}
	if c.Once {
		a.Retry, a.Replicate = 0, 1
	}
	return nil
}

// slotLogged follows when a node logs a job that may be a slot's.
func (s *Sim) slotLogged(n *node, sj *store.Job) {
	name, slot, recurring := engine.SlotOfJob(sj)
	if !recurring || s.jobs[sj.ID] != nil {
		return
	}
	e := s.crons.entries[string(name)]
	if e == nil {
		s.fail("node %d has a job of %q, which nobody has set", n.i, name)
		return
	}
	if other, made := e.slots[slot]; made {
		s.fail("slot %d of %s has two jobs: %s and %s", slot, name, other, sj.ID)
		return
	}
	e.slots[slot] = sj.ID
	s.Added++
	s.trace("node %d: slot %d of %s is %s", n.i, slot, name, sj.ID)
	j := &job{id: sj.ID, queue: e.queue, once: e.once, copies: 1}
	s.jobs[sj.ID] = j
	s.order = append(s.order, j)
	if s.keepsAll() {
		id := sj.ID
		s.at(0, func() { s.promised(n, id) })
	}
	early := 0
	for _, other := range s.nodes {
		// A vote is given up to a second early, and counts for half a lease, though the voter's clock is set back meanwhile.
		if s.now+other.skew < slot*1000-1100 && s.now-other.setAt > 15_000 {
			early++
		}
	}
	if !e.any && 2*early > len(s.nodes) {
		s.fail("node %d made slot %d of %s %d ms before its time", n.i, slot, name, slot*1000-s.now)
	}
}

// keepsAll says whether nothing that was logged is ever lost.
func (s *Sim) keepsAll() bool {
	f := &s.Faults
	return s.Fsync == Always && f.Wipes == 0 && f.Replaced == 0 && f.Promotions == 0
}

// healCrons ends the recurring jobs.
func (s *Sim) healCrons() {
	if s.crons == nil {
		return
	}
	s.at(cronPauseSecs*1000, func() {
		n := s.nodes[0]
		n.call(func() {
			for _, e := range s.crons.order {
				n.e.PauseCron(e.name, true)
			}
		})
	})
	s.at(cronJudgeSecs*1000, s.judgeCrons)
}

func (s *Sim) judgeCrons() {
	for _, e := range s.crons.order {
		c, ok := s.nodes[0].e.CronNamed(e.name)
		if !ok {
			if s.keepsAll() {
				s.fail("%s is gone", e.name)
			}
			continue
		}
		for _, n := range s.nodes[1:] {
			other, _ := n.e.CronNamed(e.name)
			if s.Faults.Loss == 0 && (other.Last != c.Last || other.Made != c.Made || other.Paused != c.Paused) {
				s.fail("node %d says of %s that %d were made, the last at %d, and node 0 says %d, the last at %d", n.i, e.name, other.Made, other.Last, c.Made, c.Last)
			}
		}
		var slots []int64
		for slot := range e.slots {
			slots = append(slots, slot)
		}
		slices.Sort(slots)
		if !s.keepsAll() || e.once && !s.deathless() {
			continue
		}
		period := c.Every
		if c.Line != "" {
			period = 3600
		}
		if s.Faults.Steps == 0 && (len(slots) == 0 || slots[0] != e.next || slots[len(slots)-1] < s.healedAt/1000-period) {
			s.fail("%s has slots %v, from %d on", e.name, slots, e.next)
		}
		for i := 1; i < len(slots); i++ {
			if slots[i] != slots[i-1]+period {
				s.fail("%s has no job for the slots between %d and %d", e.name, slots[i-1], slots[i])
			}
		}
	}
	made := int64(0)
	for _, n := range s.nodes {
		made += n.e.Stats.CronMade
	}
	jobs := int64(0)
	for _, e := range s.crons.order {
		jobs += int64(len(e.slots))
	}
	if s.Swift && s.deathless() && made != jobs {
		s.fail("%d jobs were made for %d slots", made, jobs)
	}
}
