package engine

import (
	"bytes"
	"math"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// dispute is a lock of which others told different holders, while this node may lack votes that
// it gave: only one of them can have it, but which one this node may have voted for isn't known.
// So it votes for none until the leases of those votes are over.
//
// Votes for jobs' locks may have none. But a job that has a lock is known to a node (see votes.go).
// So when somebody wants the lock, this node asks all others whether they count on votes for
// these jobs. A job for which all say no has no lock.
type dispute struct {
	until    int64   // steady
	rivals   []rival // nil where that isn't asked: a client has the lock, or a window lasts longer than its job
	asked    int64   // steady
	question int64   // its number, which the answers give back
}

// rival is a job that has the lock, as somebody told.
type rival struct {
	lock  wire.Lock // as it was told
	told  int64     // steady, when
	lives bool      // somebody counts on votes for it
	gone  []wire.Node
}

// dispute notes that others tell of another holder than this node's table.
func (n *Node) dispute(l *store.Lock, e *wire.Lock) {
	until := func(left int64, leased bool) int64 {
		if !leased {
			left = n.maxLease
		}
		return n.steady() + voteMS(left)
	}
	d := n.sync.disputed[string(e.Name)]
	if d == nil {
		d = &dispute{}
		if n.sync.disputed == nil {
			n.sync.disputed = map[string]*dispute{}
		}
		n.sync.disputed[string(e.Name)] = d
		if mine := n.entryOf(l); mayAsk(&mine) {
			d.rivals = []rival{n.newRival(&mine)}
		}
	}
	d.until = max(d.until, until(n.LockLeft(l), l.Until != 0), until(e.Left, e.Lease > 0))
	switch i := slices.IndexFunc(d.rivals, func(r rival) bool { return r.lock.Job == e.Job }); {
	case !mayAsk(e):
		d.rivals = nil
	case i >= 0:
		d.rivals[i] = n.newRival(e)
	case len(d.rivals) > 0:
		d.rivals = append(d.rivals, n.newRival(e))
	}
}

func (n *Node) newRival(e *wire.Lock) rival {
	lock := *e
	lock.Name, lock.Owner = bytes.Clone(e.Name), bytes.Clone(e.Owner)
	return rival{lock: lock, told: n.steady()}
}

// mayAsk says of a lock whether it ends with its job.
func mayAsk(e *wire.Lock) bool { return e.Job != wire.JobID{} && e.Flags&lockOutlives == 0 }

func (n *Node) inDispute(name []byte) bool {
	if len(n.sync.disputed) == 0 {
		return false
	}
	d := n.sync.disputed[string(name)]
	return d != nil && d.until > n.steady()
}

// disputes says whether there are names of which others told different things.
func (n *Node) disputes() bool {
	now := n.steady()
	for _, d := range n.sync.disputed {
		if d.until > now {
			return true
		}
	}
	return false
}

// askRivals asks all nodes for the jobs that dispute a lock, at most once a second. False: it
// is not between jobs.
func (n *Node) askRivals(name []byte) bool {
	d, now := n.sync.disputed[string(name)], n.steady()
	switch {
	case d == nil || len(d.rivals) == 0:
		return false
	case d.question != 0 && now-d.asked < verifyEveryMS:
		return true
	}
	n.inquiries++
	d.asked, d.question = now, n.inquiries
	for i := range d.rivals {
		r := &d.rivals[i]
		r.gone, r.lives = nil, false
		n.verify(wire.Disputed, &wire.Lock{Name: name, Left: d.question}, store.ID(r.lock.Job))
	}
	return true
}

// onRival hears whether a node counts on votes for a job.
func (n *Node) onRival(p *Peer, m *wire.Message) {
	name := string(m.Lock.Name)
	d := n.sync.disputed[name]
	if d == nil || d.question != m.Lock.Left {
		return
	}
	i := slices.IndexFunc(d.rivals, func(r rival) bool { return r.lock.Job == m.ID })
	if i < 0 {
		return
	}
	switch r := &d.rivals[i]; m.Count {
	case wire.JobLives:
		r.lives = true
	case wire.JobGone:
		if !slices.Contains(r.gone, p.Node) {
			r.gone = append(r.gone, p.Node)
		}
		if n.hasAll(r.gone) && !n.countsOnAny(m.Lock.Name, store.ID(m.ID)) {
			n.loses(d, i)
		}
	case wire.JobDone:
		n.loses(d, i)
	}
	if len(d.rivals) > 1 || len(d.rivals) == 1 && !d.rivals[0].lives {
		return
	}
	delete(n.sync.disputed, name)
	for i := range d.rivals {
		r := &d.rivals[i]
		if r.lock.Left -= n.steady() - r.told; r.lock.Lease == 0 || r.lock.Left > 0 {
			n.adopt(&r.lock)
		}
	}
	n.disputeOver()
}

// loses has a rival be none any more: it has no lock.
func (n *Node) loses(d *dispute, i int) {
	r := d.rivals[i].lock
	d.rivals = slices.Delete(d.rivals, i, i+1)
	if l := n.store.Lock(r.Name); l != nil && l.Job == store.ID(r.Job) {
		n.removeLock(l)
	}
}

// endDisputes forgets those whose time is over.
func (n *Node) endDisputes(now int64) {
	for name, d := range n.sync.disputed {
		if d.until <= now {
			delete(n.sync.disputed, name)
			n.disputeOver()
		}
	}
}

func (n *Node) disputeOver() {
	if len(n.sync.disputed) == 0 && !n.sync.abstain {
		n.setTable(tableFull)
	}
}

// countsOnAny is [Node.countsOn] for votes of whatever token.
func (n *Node) countsOnAny(name []byte, id store.ID) bool {
	_, left := n.entrusted[id]
	return left || n.countsOn(name, id, math.MaxUint64)
}
