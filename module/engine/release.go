package engine

import (
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// The release of deferred jobs: every node that has one is told until it knows.

const (
	releaseMS = 1_000  // how long RELEASEJOB waits for other nodes
	againMS   = 60_000 // at most, between attempts to tell a node of a release
)

// releasing is a release that not all holders have confirmed.
type releasing struct {
	id     store.ID
	msg    wire.Message
	open   []wire.Node // who hasn't
	told   int         // nodes that know, this one included
	client any         // nil: answered
	expiry int64       // unix ms, of the job
	next   int64       // unix ms: then the client is answered, and who is open is told again
	wait   int64       // ms, until next
}

// Release releases a deferred job: it is queued, in its queue or another (nil: its
// own), and those that it blocks when it is acknowledged; with last it comes
// last instead. Where wait is true the answer follows as a Released effect, for the
// client that [Node.Releaser] is given; else nodes is how many know of it. Refused are
// jobs that aren't known here (ErrNoJob) or not deferred (ErrNotDeferred), a queue that
// takes nothing (ErrPaused) or can't be made, one in which another has the job's key
// (DUPLICATE), and all on a replica (ErrReplica): then nothing has changed.
func (n *Node) Release(id *store.ID, queue []byte, last, canWait bool) (nodes int, wait bool, err error) {
	if n.passive {
		return 0, false, ErrReplica
	}
	j := n.parent(id)
	if j == nil || j.State == store.StateAcked && cancelled(j) {
		return 0, false, ErrNoJob
	}
	if f, ok := j.Family(); !ok || j.State != store.StateActive || f.Flags&store.FamilyDeferred == 0 {
		return 0, false, ErrNotDeferred
	}
	q := j.Queue
	if queue != nil {
		if q = n.store.Queue(queue); q == nil {
			if err := n.keys.Free(queue); err != nil {
				return 0, false, err
			}
		}
	}
	if q != nil && q.Pause&PauseIn != 0 {
		return 0, false, ErrPaused
	}
	if queue != nil {
		if err := n.moveAlong(j, queue); err != nil {
			return 0, false, err
		}
	}
	r := &releasing{id: *id, told: 1, expiry: j.ETime, next: n.now + releaseMS, wait: releaseMS}
	for i := range j.Holders() {
		if h, _ := j.Holder(i); n.mesh.by[wire.Node(h)] != nil {
			r.open = append(r.open, wire.Node(h))
		}
	}
	r.msg = wire.Message{Kind: wire.Release, ID: *id, Queue: slices.Clone(queue)}
	if queue != nil {
		r.msg.Flags |= wire.Moved
	}
	if last {
		r.msg.Flags |= wire.Last
		r.msg.Count = n.brood(j)
	}
	reached := false
	for _, h := range r.open {
		if p := n.mesh.by[h]; p != nil && p.Connected {
			reached = true
			n.send(p, &r.msg)
		}
	}
	n.release(j, last, r.msg.Count, atOnce)
	if len(r.open) == 0 {
		return 1, false, nil
	}
	n.kin.releases = append(n.kin.releases, r)
	n.wake = min(n.wake, r.next)
	return 1, reached && canWait, nil
}

// Releaser ties a client to a Release that waits: the answer is a Released effect.
func (n *Node) Releaser(id *store.ID, client any) {
	if r := n.releaseOf(id); r != nil {
		r.client = client
	}
}

// DropRelease forgets a client that has gone. The release stands.
func (n *Node) DropRelease(id *store.ID) {
	if r := n.releaseOf(id); r != nil {
		r.client = nil
	}
}

func (n *Node) releaseOf(id *store.ID) *releasing {
	i := slices.IndexFunc(n.kin.releases, func(r *releasing) bool { return r.id == *id })
	if i < 0 {
		return nil
	}
	return n.kin.releases[i]
}

// release releases a copy. With last, count is how many jobs it comes after.
func (n *Node) release(j *store.Job, last bool, count uint32, when turn) {
	id := j.ID
	f, _ := j.Family()
	f.Flags &^= store.FamilyDeferred
	// Each node counts those that it has; a node may have one more that is just being
	// added.
	if f.Count = max(count, n.brood(j)) - f.Count; last && f.Count > 0 {
		f.Flags |= store.FamilyLast
	}
	if j = n.setFamily(j, &f); held(j) {
		n.log(LogState, j)
	} else {
		n.letGo(j, when)
	}
	if !last {
		return
	}
	defer func() { n.lookLater(n.store.Lookup(&id)) }()
	for _, child := range n.blockedBy(&id, store.FamilyBlocked) {
		c := n.store.Lookup(&child)
		g, _ := c.Family()
		g.Flags = g.Flags&^store.FamilyBlocked | store.FamilyEarly
		if c = n.setFamily(c, &g); held(c) {
			n.log(LogState, c)
		} else {
			n.letGo(c, when)
		}
	}
}

// brood counts the jobs that a deferred one blocks, and those that it did, and that
// have ended since another node knows of its release.
func (n *Node) brood(j *store.Job) uint32 {
	f, _ := j.Family()
	return f.Count + uint32(len(n.blockedBy(&j.ID, store.FamilyBlocked|store.FamilyEarly)))
}

// report tells a job that was released to come last of the end of one that it
// waited for.
func (n *Node) report(j *store.Job, s source) {
	f, ok := j.Family()
	if !ok || f.Flags&store.FamilyEarly == 0 || f.IDs() == 0 {
		return
	}
	id := f.ID(0)
	if n.store.Untie(&id, &j.ID) {
		n.oneLess(id, j, s)
	}
}

// oneLess counts one of those down that a job was released to come after: j, or nil
// where that is gone.
func (n *Node) oneLess(id store.ID, j *store.Job, s source) {
	p := n.store.Lookup(&id)
	if p == nil || p.State == store.StateAcked {
		return
	}
	g, _ := p.Family()
	switch {
	case g.Flags&store.FamilyDeferred != 0:
		g.Count++ // the word of its release is still to come
	case g.Flags&store.FamilyLast == 0:
		return
	default:
		if g.Count--; g.Count == 0 {
			g.Flags &^= store.FamilyLast
		}
	}
	if p = n.setFamily(p, &g); held(p) {
		n.log(LogState, p)
		n.lookLater(p)
		return
	}
	n.letGo(p, n.turnOf(p, j, s))
}

// onRelease takes another node's word that a job is released.
func (n *Node) onRelease(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	reply := wire.Message{Kind: wire.Released, ID: m.ID}
	j := n.store.Lookup(&id)
	if j != nil && !n.dummy(j) {
		reply.Count = 1
		if f, ok := j.Family(); ok && j.State == store.StateActive && f.Flags&store.FamilyDeferred != 0 {
			if m.Flags&wire.Moved != 0 {
				// Where the queue can't be made, this copy stays in its own.
				_ = n.moveTo(j, m.Queue)
			}
			n.release(j, m.Flags&wire.Last != 0, m.Count, later)
		}
	}
	n.send(p, &reply)
}

func (n *Node) onReleased(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	r := n.releaseOf(&id)
	if r == nil {
		return
	}
	i := slices.Index(r.open, p.Node)
	if i < 0 {
		return
	}
	r.open = slices.Delete(r.open, i, i+1)
	if m.Count > 0 {
		r.told++
	}
	if !slices.ContainsFunc(r.open, func(h wire.Node) bool { return n.mesh.by[h] != nil && n.mesh.by[h].Connected }) {
		n.answerRelease(r)
	}
	if len(r.open) == 0 {
		n.kin.releases = slices.DeleteFunc(n.kin.releases, func(x *releasing) bool { return x == r })
	}
}

func (n *Node) answerRelease(r *releasing) {
	if r.client != nil {
		n.effects = append(n.effects, Effect{Kind: Released, ID: r.id, Client: r.client, Nodes: r.told})
		r.client = nil
	}
}

// tickReleases answers who has waited long enough, and tells of releases again.
func (n *Node) tickReleases() {
	n.kin.releases = slices.DeleteFunc(n.kin.releases, func(r *releasing) bool {
		if n.now < r.next {
			n.wake = min(n.wake, r.next)
			return false
		}
		n.answerRelease(r)
		// Even where the job has ended here: a FASTACK is told once, and who hasn't heard
		// of either would hold it back until its expiry.
		r.open = slices.DeleteFunc(r.open, func(h wire.Node) bool { return n.mesh.by[h] == nil })
		j := n.store.Lookup(&r.id)
		if len(r.open) == 0 || n.now >= r.expiry || j != nil && cancelled(j) || n.graves.cancelled(&r.id) {
			return true
		}
		for _, h := range r.open {
			n.send(n.mesh.by[h], &r.msg)
		}
		r.wait = min(2*r.wait, againMS)
		r.next = n.now + r.wait
		n.wake = min(n.wake, r.next)
		return false
	})
}

// resumeReleases tells a node that is back of what it may have missed.
func (n *Node) resumeReleases(p *Peer) {
	for _, r := range n.kin.releases {
		if slices.Contains(r.open, p.Node) {
			n.send(p, &r.msg)
		}
	}
}
