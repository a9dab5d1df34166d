package lock

import (
	"bytes"
	"cmp"
	"math"
	"slices"

	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// dispute is a lock for which others named different holders, while this node may lack votes that it gave. Only one of
// them can have the lock, but it isn't known which one this node may have voted for. So it votes for none until the
// leases of those votes are over.
//
// Votes for jobs' locks may have no lease: no time ends them. But a node knows each job that has a lock (see
// promise.go). So when somebody wants the lock, or nobody has wanted it for long, this node asks all others whether
// they count on votes for these jobs. A job for which all say no has no lock.
type dispute struct {
	rivals   []rival
	partial  bool   // this node's own vote may be missing
	look     int64  // monotonic: then the nodes are asked even if nobody wants the lock
	asked    int64  // monotonic
	question int64  // the number of the question, which the answers repeat
	age      uint16 // like [store.Lock.Age], see Clearing
}

// rival is a holder in a dispute, as some node has named it.
type rival struct {
	lock   wire.Lock // as it was told, by its greatest token
	before []held    // of a bare lock: smaller tokens by which it has the lock, as nodes have told, ascending
	told   int64     // monotonic
	until  int64     // monotonic: when votes for it are over; 0: they have no lease
	lives  bool      // somebody counts on votes for it
	kept   bool      // it is known by this node's kept vote alone (flagKept)
	gone   []wire.Node
}

// held is a token by which a rival has a lock, or only may have it.
type held struct {
	token uint64
	kept  uint8 // FlagRenewed: it is known to have the lock by this token; 0: the acquisition may have failed
}

func heldOf(e *wire.Lock) held { return held{e.Token, e.Flags & FlagRenewed} }

// tokens are the tokens by which the rival has the lock, as nodes have told, ascending.
func (r *rival) tokens() []held { return append(slices.Clone(r.before), heldOf(&r.lock)) }

// setTokens sets the tokens; they are sorted, and there is at least one.
func (r *rival) setTokens(tokens []held) {
	last := len(tokens) - 1
	r.before = tokens[:last]
	r.lock.Token, r.lock.Flags = tokens[last].token, r.lock.Flags&^FlagRenewed|tokens[last].kept
}

// locks are what the rival has, by each of its tokens.
func (r *rival) locks(yield func(*wire.Lock) bool) {
	for _, t := range r.tokens() {
		e := r.lock
		if e.Token, e.Flags = t.token, e.Flags&^FlagRenewed|t.kept; !yield(&e) {
			return
		}
	}
}

// giveUp notes that the rival has given up its tokens up to this one; with wire.Fresh, that it never had the lock by
// this one. True: it has no token left.
func (r *rival) giveUp(token uint64, flags uint8) bool {
	fresh := flags&wire.Fresh != 0
	tokens := slices.DeleteFunc(r.tokens(), func(t held) bool {
		return t.token == token && !(fresh && t.kept != 0) || t.token < token && !fresh
	})
	if len(tokens) > 0 {
		r.setTokens(tokens)
	}
	return len(tokens) == 0
}

// dispute notes that another node names another holder than this node's table, or names a rival again. l is the lock in
// the table; nil: its holder's lease is over.
func (n *Node) dispute(l *store.Lock, e *wire.Lock) {
	if n.disputeOf(e.Name) == nil {
		n.sync.disputed.Remove(string(e.Name)) // a dispute that is over, or cleared
	}
	d := n.sync.disputed.Make(string(e.Name), dispute{age: n.store.LockAge})
	d.partial = d.partial || n.sync.partial
	if l != nil {
		n.addHolder(d, l)
	}
	n.addRival(d, e, e.Lease > 0, false)
}

// stands says whether this node's own vote in a dispute is surely for the holder that asks now. That holder keeps the
// vote; nobody else gets the lock before the others' leases are over, too.
func (n *Node) stands(d *dispute, l *store.Lock, h *Holder) bool {
	return n.IsLive(l) && h.has(l) && l.Flags&FlagUnconfirmed == 0 && !d.partial
}

// unrival notes that a rival has given up its tokens up to this one; with wire.Fresh, that it never had the lock by
// this one.
func (n *Node) unrival(name []byte, h *Holder, token uint64, flags uint8) {
	d := n.disputeOf(name)
	if d == nil {
		return
	}
	all := len(d.rivals)
	for i := all - 1; i >= 0; i-- {
		r := &d.rivals[i]
		if store.ID(r.lock.Job) == h.Job && bytes.Equal(r.lock.Owner, h.Owner) && r.giveUp(token, flags) {
			d.rivals = slices.Delete(d.rivals, i, i+1)
		}
	}
	switch {
	case len(d.rivals) == all:
	case len(d.rivals) == 1:
		n.closeDispute(string(name), d) // if the last rival has lost the lock, too, an orphan check finds out when somebody wants it
	default:
		n.decide(string(name), d)
	}
}

// clearDispute ends a dispute about a lock that is cleared up to this token, whoever has it.
func (n *Node) clearDispute(name []byte, upTo uint64) {
	if d := n.disputeOf(name); d != nil && d.upTo(upTo) {
		n.sync.disputed.Remove(string(name))
		n.disputeOver()
	}
}

// addHolder makes the holder in the table a rival.
func (n *Node) addHolder(d *dispute, l *store.Lock) {
	for _, e := range n.tell(nil, l) {
		n.addRival(d, &e, l.Until != 0, n.isKept(l))
	}
}

func (n *Node) addRival(d *dispute, e *wire.Lock, leased, kept bool) {
	r := n.newRival(e)
	if leased {
		r.until = r.told + VoteMS(e.Left)
	}
	d.look = max(d.look, n.host.Monotonic()+VoteMS(n.maxLease))
	i := slices.IndexFunc(d.rivals, func(old rival) bool { return old.lock.Job == e.Job && bytes.Equal(old.lock.Owner, e.Owner) })
	if i < 0 {
		r.kept = kept
		d.rivals = append(d.rivals, r)
		return
	}
	// The longest lease that a node tells of counts. If the rival acquired the lock twice, the end of one acquisition
	// leaves it what it has by the other.
	old := &d.rivals[i]
	tokens := old.tokens()
	at, known := slices.BinarySearchFunc(tokens, e.Token, func(t held, token uint64) int { return cmp.Compare(t.token, token) })
	if known {
		tokens[at].kept |= e.Flags & FlagRenewed
	} else {
		tokens = slices.Insert(tokens, at, heldOf(e))
	}
	last := len(tokens) - 1
	if last > 0 && (e.Job != (wire.JobID{}) || last >= beforeMost) {
		tokens[last].kept = FlagRenewed
	}
	for i := last; i > 0; i-- {
		if tokens[i].kept != 0 {
			tokens = tokens[i:] // it had the lock by this token after the smaller ones
			break
		}
	}
	if old.lock.Lease == 0 || e.Lease > 0 && old.lock.Left-(r.told-old.told) > e.Left {
		r.lock, r.told = old.lock, old.told
	}
	r.setTokens(tokens)
	r.kept = kept && old.kept
	if r.until = max(r.until, old.until); !leased || old.until == 0 {
		r.until = 0
	}
	d.rivals[i] = r
}

func (n *Node) newRival(e *wire.Lock) rival {
	lock := *e
	lock.Name, lock.Owner = bytes.Clone(e.Name), bytes.Clone(e.Owner)
	return rival{lock: lock, told: n.host.Monotonic()}
}

func (n *Node) inDispute(name []byte) bool { return n.disputeOf(name) != nil }

// disputeOf finds the dispute over a lock; nil: there is none.
func (n *Node) disputeOf(name []byte) *dispute {
	if n.sync.disputed.Len() == 0 {
		return nil
	}
	d := n.sync.disputed.Get(string(name))
	if d == nil || !d.lasts(n.host.Monotonic()) {
		return nil
	}
	for _, c := range n.clears {
		if c.ends(name, d) {
			return nil
		}
	}
	return d
}

// over says whether votes for a rival can't matter any more.
func (r *rival) over(now int64) bool { return r.until != 0 && r.until <= now }

// lasts says whether votes for any rival can matter still.
func (d *dispute) lasts(now int64) bool {
	return slices.ContainsFunc(d.rivals, func(r rival) bool { return !r.over(now) })
}

// endless says that asking can't end the dispute: a client may have the lock, or a window, which lasts longer than its
// job.
func (d *dispute) endless(now int64) bool {
	return slices.ContainsFunc(d.rivals, func(r rival) bool {
		return !r.over(now) && (r.lock.Job == (wire.JobID{}) || r.lock.Flags&FlagOutlives != 0)
	})
}

// upTo says whether no rival has a token greater than this one.
func (d *dispute) upTo(token uint64) bool {
	return !slices.ContainsFunc(d.rivals, func(r rival) bool { return r.lock.Token > token })
}

// ends says whether a Clearing ends a dispute about the lock of this name.
func (c *Clearing) ends(name []byte, d *dispute) bool {
	return !c.lost && !c.kept && int16(c.age-d.age) > 0 && store.InPrefix(name, c.prefix) && d.upTo(c.upTo)
}

// clearDisputes goes on with a Clearing's walk through the disputes, up to a cost of most. It returns the cost: 1 for
// each dispute, more for one that it ended.
func (n *Node) clearDisputes(c *Clearing, most int) (cost int) {
	for c.disputes = min(c.disputes, n.sync.disputed.Len()); c.disputes > 0 && cost < most; cost++ {
		c.disputes--
		if name, d := n.sync.disputed.At(c.disputes); c.ends([]byte(name), d) {
			n.sync.disputed.Remove(name)
			cost += 2
		} else if c.kept && n.endKeptRivals(name, d) {
			cost += clearCost
		} else if int16(c.age-d.age) > 0 {
			d.age = c.age // so it stays older than the next Clearing, however many pass it
		}
	}
	n.disputeOver()
	return cost
}

// endKeptRivals removes the rivals from a dispute that are known by kept votes alone, which are over (endKept). False: there is none.
func (n *Node) endKeptRivals(name string, d *dispute) bool {
	all := len(d.rivals)
	d.rivals = slices.DeleteFunc(d.rivals, func(r rival) bool { return r.kept })
	if len(d.rivals) == all {
		return false
	}
	if len(d.rivals) <= 1 {
		n.closeDispute(name, d)
	}
	return true
}

// tellRivals adds to a page the rivals for a lock except the holder in the table (l; nil: none), so that the page says
// all that is known. It adds their bytes to size. If they are too many, it marks the page as partial.
func (n *Node) tellRivals(page *wire.Message, size *int, d *dispute, l *store.Lock) {
	now := n.host.Monotonic()
	for i := range d.rivals {
		r := &d.rivals[i]
		if l != nil && (&Holder{store.ID(r.lock.Job), r.lock.Owner}).has(l) || r.kept && n.lacksOwn() {
			continue
		}
		if len(page.Locks)+len(r.before) >= wire.MaxLocks || *size >= 2*pageBytes {
			page.Flags |= wire.Partial
			return
		}
		for e := range r.locks {
			e.Left = max(e.Left-(now-r.told), 1)
			page.Locks = append(page.Locks, *e)
			*size += len(e.Name) + len(e.Owner) + 64
		}
	}
}

// A page's cursor is even while it is the table's. After the table it is odd: its upper bits are how many disputes,
// counted from the first one, are still to be told.

func unlisted(left int) (cursor uint64) {
	if left == 0 {
		return 0
	}
	return uint64(left)<<1 | 1
}

func isUnlisted(cursor uint64) bool { return cursor&1 != 0 }

// tellUnlisted is tellRivals for one more dispute, about a lock that nobody has in the table. It returns the next
// cursor.
func (n *Node) tellUnlisted(page *wire.Message, size *int) (next uint64) {
	left := min(int(page.Round>>1), n.sync.disputed.Len())
	if left == 0 {
		return 0
	}
	name, d := n.sync.disputed.At(left - 1)
	if d.lasts(n.host.Monotonic()) && n.Live([]byte(name)) == nil {
		n.tellRivals(page, size, d, nil)
	}
	return unlisted(left - 1)
}

// askRivals asks all nodes about the jobs in a dispute, at most once a second. False: there is no dispute, or asking
// can't end it (endless).
func (n *Node) askRivals(name []byte) bool {
	d, now := n.sync.disputed.Get(string(name)), n.host.Monotonic()
	switch {
	case d == nil || d.endless(now) || len(d.rivals) == 0:
		return false
	case d.question != 0 && now-d.asked < verifyEveryMS:
		return true
	}
	n.inquiries++
	d.asked, d.question = now, n.inquiries
	for i := range d.rivals {
		r := &d.rivals[i]
		r.gone, r.lives = nil, false
		n.verify(wire.Disputed, &wire.Lock{Name: name}, store.ID(r.lock.Job), d.question)
	}
	return true
}

// onRival handles a node's answer whether it counts on votes for a job.
func (n *Node) onRival(p *membership.Peer, m *wire.Message) {
	name := string(m.Lock.Name)
	d := n.sync.disputed.Get(name)
	if d == nil || d.endless(n.host.Monotonic()) || d.question != m.Lock.Question() || n.host.Monotonic()-d.asked >= orphanCheckMS {
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
	n.decide(name, d)
}

// decide ends a dispute once one rival is left that has the lock, or none.
func (n *Node) decide(name string, d *dispute) {
	if len(d.rivals) > 1 {
		return
	}
	if len(d.rivals) == 1 {
		r := &d.rivals[0]
		if !d.endless(n.host.Monotonic()) && !r.lives && !n.countsOnAny(r.lock.Name, store.ID(r.lock.Job)) {
			return
		}
	}
	n.closeDispute(name, d)
}

// closeDispute ends a dispute. The last rival, if there is one, is taken to have the lock. A kept vote for it stays one.
func (n *Node) closeDispute(name string, d *dispute) {
	if l := n.Live([]byte(name)); l != nil && (len(d.rivals) == 0 || !(&Holder{store.ID(d.rivals[0].lock.Job), d.rivals[0].lock.Owner}).has(l)) {
		n.addHolder(d, l) // that holder is a new rival: nobody was asked about it
		return
	}
	n.sync.disputed.Remove(name)
	for i := range d.rivals {
		r := &d.rivals[i]
		if r.lock.Left -= n.host.Monotonic() - r.told; r.kept || r.lock.Lease > 0 && r.lock.Left <= 0 {
			continue
		}
		for e := range r.locks {
			n.adopt(e)
		}
	}
	n.disputeOver()
}

// loses removes a rival that has no lock.
func (n *Node) loses(d *dispute, i int) {
	r := d.rivals[i].lock
	d.rivals = slices.Delete(d.rivals, i, i+1)
	if l := n.store.Lock(r.Name); l != nil && l.Job == store.ID(r.Job) {
		n.Remove(l)
	}
}

// endDisputes goes on with the pass that forgets rivals whose time is over. True: there is more.
func (n *Node) endDisputes(now int64) (more bool) {
	before := n.sync.disputed.Len()
	more = n.sync.disputed.Pass(disputeMost, func(name string, d *dispute) bool {
		if !d.lasts(now) {
			return false
		}
		n.endRivals(name, d, now)
		return true
	})
	if n.sync.disputed.Len() < before {
		n.disputeOver()
	}
	return more
}

// endRivals removes the rivals whose time is over from a dispute that no time ends, because a rival has no lease. About
// such a dispute it asks the other nodes now and then.
func (n *Node) endRivals(name string, d *dispute, now int64) {
	if !slices.ContainsFunc(d.rivals, func(r rival) bool { return r.until == 0 }) {
		return
	}
	d.rivals = slices.DeleteFunc(d.rivals, func(r rival) bool { return r.over(now) })
	switch {
	case len(d.rivals) == 1:
		n.closeDispute(name, d) // as if the others had given up the lock
	case now >= d.look:
		d.look = now + VoteMS(n.maxLease)
		n.askRivals([]byte(name))
	}
}

func (n *Node) disputeOver() {
	if n.sync.disputed.Len() == 0 && !n.sync.abstain {
		n.setTable(tableFull)
	}
}

// countsOnAny is [Node.countsOn] for votes by any token.
func (n *Node) countsOnAny(name []byte, id store.ID) bool {
	return n.jobs.LivesElsewhere(id) || n.countsOn(name, id, math.MaxUint64)
}
