package engine

import "jobmesh/module/store"

// This file follows the jobs that wait for another job, if only this node's copy of that job goes, or if it goes with its queue.
// Other nodes may still have that job.

// eviction is the walk through the dependents of a job of which only this node's copy went, or of which this
// node knows no more than that it was cancelled.
type eviction struct {
	id         store.ID
	unreleased bool
	last       store.ID // the dependent that was met last, and waits on; zero: none
}

// evicted handles the dependents of a job of which only this node's copy goes, while others may hold one.
// Blocked jobs go with it, if it wasn't released; the other dependents wait on, and ask. If unreleased is
// false all ask. The job isn't here any more. If very many wait, some are left for the next ticks.
func (n *Node) evicted(id store.ID, unreleased bool) {
	before := len(n.deps.evictions)
	n.evictLater(id, unreleased)
	for len(n.deps.evictions) > before && n.deps.budget > 0 {
		n.evictOn()
	}
}

// evictLater leaves an eviction to [Node.tickEvictions].
func (n *Node) evictLater(id store.ID, unreleased bool) {
	if n.passive || n.store.Dependents(&id) == nil {
		return
	}
	n.deps.evictions = append(n.deps.evictions, eviction{id: id, unreleased: unreleased})
	n.hurryTick()
}

// tickEvictions goes on with evictions. If the server ends meanwhile, the dependents that are left find out
// as for any job that isn't known.
func (n *Node) tickEvictions() {
	for len(n.deps.evictions) > 0 && n.deps.budget > 0 {
		n.evictOn()
	}
	if len(n.deps.evictions) > 0 {
		n.hurryTick()
	}
}

// evictOn goes on with the newest eviction, until it is over, a job is dropped for which others wait, or the
// budget is used up.
func (n *Node) evictOn() {
	at := len(n.deps.evictions) - 1
	e := n.deps.evictions[at]
	n.deps.evictions = n.deps.evictions[:at]
	for n.deps.budget > 0 {
		n.deps.budget--
		k := n.store.Dependents(&e.id)
		if k == nil || n.store.Lookup(&e.id) != nil {
			return // nobody waits any more, or a copy has come since
		}
		t := n.store.After(k, &e.last)
		if t == nil {
			return
		}
		id := t.Job
		c := n.store.Lookup(&id)
		f, ok := store.Family{}, false
		if c != nil {
			f, ok = c.Family()
		}
		if !ok || f.Flags&store.FamilyEarly != 0 || f.Flags&store.FamilyBlocked == 0 || !e.unreleased {
			if ok && f.Flags&store.FamilyEarly == 0 && c.State == store.StateActive && f.Held() {
				n.wakeAt(c, n.now+1)
			}
			e.last = id
			continue
		}
		n.leaveLocks(c)
		n.drop(c)
		if n.store.Dependents(&id) != nil {
			n.deps.evictions = append(n.deps.evictions, e, eviction{id: id, unreleased: true})
			return
		}
	}
	n.deps.evictions = append(n.deps.evictions, e)
}

// evictedFollowed follows the ends of jobs that were freed with their queue.
func (n *Node) evictedFollowed() {
	// last has the jobs that were released to come after some of those, most often one job. ended has how
	// many of those have ended, for each.
	var last []store.ID
	var ended []uint32
	for _, l := range n.store.TakeLost() {
		if l.Early {
			if len(last) == 0 || last[len(last)-1] != l.Of {
				last, ended = append(last, l.Of), append(ended, 0)
			}
			if !l.Copies || l.Ended {
				ended[len(ended)-1]++
			}
		}
		if l.Copies && !l.Ended {
			n.evictLater(l.ID, l.Unreleased)
		} else {
			n.endLater(end{id: l.ID, undone: !l.Ended || l.Undone, unreleased: l.Unreleased, origin: origin{clock: true}})
		}
	}
	for i := range last {
		if ended[i] > 0 {
			n.countDown(last[i], ended[i], nil, origin{clock: true})
		}
		n.lookLater(n.store.Lookup(&last[i]))
	}
}
