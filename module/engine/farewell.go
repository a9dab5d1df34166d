package engine

import (
	"bytes"

	"jobmesh/module/lock"
	"jobmesh/module/store"
)

// The locks of jobs that were deleted with their queue, or all at once (FLUSHALL). These jobs don't end one by
// one, so the other nodes are told here that the locks are free.

// farewell is a lock whose job was forgotten together with all others.
type farewell struct {
	name  []byte
	id    store.ID
	token uint64
}

const (
	farewellCost  = reapBudget / farewellSlice // cost of a farewell, in reaped jobs
	farewellMost  = 20_000                     // locks that FLUSHALL looks at: that takes 3 ms
	farewellNoted = 4                          // a lock that is noted counts as this many
	farewellSlice = 250                        // locks that are freed at once: each is a message to every node
)

// farewell tells those that wait for a job that was deleted with its queue, and frees its locks in a mesh. The waiting lock stays if
// other nodes have copies of the job, or may have. If the job is known again (RESTORE), both locks stay: they belong to
// that job.
func (n *Node) farewell(j *store.Job) (cost int) {
	n.noteGone(&j.ID)
	u := j.Unique()
	if u == nil || n.mesh.Alone() {
		return 0 // the pass over the locks finds those whose job is gone
	}
	if other := n.store.Lookup(&j.ID); other != nil && other != j {
		return farewellCost
	}
	n.endRun(j, u)
	if n.isOnlyHere(j) {
		n.endWait(j, u)
	}
	return farewellCost
}

// farewellAll notes the locks of all jobs, which are about to be forgotten at once. The locks are freed bit
// by bit, from the next tick on, and not now: the server also empties its data to load them anew in the same
// call (DEBUG RELOAD, DEBUG LOADAOF), and a job that comes back still has its locks. If there are very many
// locks it looks at some only; the others are found when they are in somebody's way.
func (n *Node) farewellAll() {
	if n.mesh.Alone() || n.passive {
		return
	}
	if n.loading {
		// Some releases of the server empty the data after they have begun to load: those locks are noted.
		// They aren't for a flush that is an entry of the log: the other nodes were told of it when it
		// happened.
		was := n.unloaded
		if n.unloaded = 0; was == 0 || n.store.Jobs() != was {
			return
		}
	}
	most := farewellMost
	for l := n.store.Locks().Head; l != nil && most > 0; l = l.Next {
		most--
		j := n.store.Lookup(&l.Job)
		if j == nil || lock.Ended(l) {
			continue
		}
		most -= farewellNoted - 1
		u, space := j.Unique(), l.Space()
		if u == nil || !u.Has(hasFlag(space)) {
			continue
		}
		if space == store.LockRun || u.Strategy() != store.UniqueWindow && n.isOnlyHere(j) {
			n.farewells = append(n.farewells, farewell{bytes.Clone(l.Name()), j.ID, lockToken(u, space)})
		}
	}
}

// tickFarewells frees some of the locks that farewellAll noted, but not those that their
// jobs have again.
func (n *Node) tickFarewells() {
	for budget := farewellSlice; budget > 0 && len(n.farewells) > 0; budget-- {
		f := n.farewells[0]
		n.farewells = n.farewells[1:] // first: freeName may let an acquisition go on that comes back here
		if !n.hasAgain(&f) {
			n.freeName(f.name, &f.id, f.token)
		}
	}
	if len(n.farewells) == 0 {
		n.farewells = nil
	} else {
		n.hurryTick()
	}
}

// hasAgain says whether the job of a farewell is known and says that it has the lock.
func (n *Node) hasAgain(f *farewell) bool {
	j := n.store.Lookup(&f.id)
	if j == nil {
		return false
	}
	u := j.Unique()
	return u != nil && u.Has(hasFlag(store.SpaceOf(f.name)))
}
