package lock

import (
	"math"
	"slices"

	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Voting: how this node answers Claims, and what becomes of its votes.

const (
	ClockSlack = 40 // the clocks' rates may differ from true time by 1 %: a vote lasts a fortieth longer
	graceMS    = 10 // ms; and by so much more, however short the lease
)

// VoteMS is how long a vote for a lease lasts, ms. The clocks of the proposer and of its client may be slower than this
// node's.
func VoteMS(lease int64) int64 { return lease + lease/ClockSlack + graceMS }

// LeaseOf is the lease of a vote that lasts so long, ms: the inverse of [VoteMS].
func LeaseOf(vote int64) int64 { return (vote - graceMS) * ClockSlack / (ClockSlack + 1) }

// ballot is what a node is asked to vote for.
type ballot struct {
	name []byte
	Holder
	token     uint64
	above     uint64 // how far the token is above the first one of this acquisition
	lease     int64
	flags     uint8
	by        uint16 // the proposer, see [store.Lock]
	extend    bool   // vote only if the holder has the lock by this token
	committed bool   // a majority has agreed
	anew      bool   // don't vote if the holder has the lock, unless by an earlier round of this acquisition
}

// earlier says whether the holder has its vote by this very acquisition, in an earlier round or in this one. Another
// node may be acquiring the lock for the same holder at the same time: its tokens lie in between. After a restart the
// voter doesn't know any more which node asked (By is 0), but nobody else asks for this very token.
func (b *ballot) earlier(l *store.Lock) bool {
	return b.token-l.Token <= b.above && b.by == l.By || b.token == l.Token && l.By == 0
}

// nodeBits are the bits of a node's short name by which votes tell proposers apart.
func nodeBits(node wire.Node) uint16 { return uint16(node) }

// voteLater is no answer: something must be written down before the node can vote ([Node.VotesKept]).
const voteLater = math.MaxUint32

// vote gives this node's vote, or says why not (wire.LockHeld …) and which lock stands against it.
func (n *Node) vote(b *ballot) (why uint32, l *store.Lock) {
	if d := n.disputeOf(b.name); n.abstainsFrom(b.name) || d != nil && !n.stands(d, n.store.Lock(b.name), &b.Holder) {
		return wire.Abstains, nil
	}
	if n.abstains() {
		n.passLost() // it abstains, but not from this lock any more
	}
	n.clearFirst(b.name)
	n.closeContest(b.name) // before the vote replaces one that is over
	l = n.store.Lock(b.name)
	flags := b.flags & (FlagAny | FlagOutlives | FlagRenewed)
	if b.Job != (store.ID{}) {
		flags |= FlagForeign
	}
	live := n.IsLive(l)
	var before store.Lock // a copy of a live lock, without its name and owner
	if live {
		before = *l
	}
	switch {
	case live && !b.has(l):
		return wire.LockHeld, l
	case live && b.token < l.Token:
		return wire.TokenStale, l
	case live && b.anew && !b.earlier(l):
		return wire.LockHeld, l
	case live && b.token > l.Token && b.extend:
		return wire.NotHeld, nil
	case live && l.Flags&FlagUnconfirmed != 0 && !b.committed && (b.extend || b.token == l.Token || b.token <= n.store.Locks().Floor):
		return wire.Unconfirmed, l
	case !live && b.extend:
		return wire.NotHeld, nil
	case !live && (b.token < nextShown(n.store.Locks().Floor) || l != nil && b.token < nextShown(l.Token)):
		return wire.TokenLow, l
	case !n.mesh.Alone() && !n.promised(b.name, &b.Job, b.token, b.flags, b.lease):
		return voteLater, nil
	case live:
		if b.flags&FlagRenewed != 0 {
			n.unraised(b.name) // its holder counts on this very token
		}
		switch earlier := b.earlier(l); {
		case earlier:
			n.raiseAgain(l, b.token)
		case b.token > l.Token && l.Space() == store.LockBare && b.flags&FlagRenewed == 0:
			n.raise(l, b.token)
			flags |= FlagRenewed
		default:
			l.Token = b.token
			flags |= FlagRenewed // its holder had the lock before, but not by an earlier round of this acquisition
		}
		flags |= l.Flags & (FlagRenewed | FlagAlone)
	default:
		if l != nil {
			if !b.has(l) {
				n.jobs.Lapsed(l) // its job may never hear otherwise that it has lost the lock
			}
			n.countNonQuorum(l, -1)
			n.store.ReplaceLock(l) // the new entry replaces it in the log, too
		}
		l = n.newLock(b.name, b.Owner)
		l.Job, l.Token = b.Job, b.token
	}
	if n.mesh.Alone() {
		flags |= FlagAlone
	}
	n.SetFlags(l, flags)
	n.confirm(l)
	l.By = b.by
	// A vote is never shortened: its holder may fail to get the other votes, and then counts on what it had before.
	// (Until is 0 in a new vote.)
	switch until := n.Until(b.lease); {
	case until > l.Until || n.mesh.Alone():
		l.Lease, l.Until = b.lease, until
	case live && !b.anew && l.Space() == store.LockRun:
		l.Lease = max(1, LeaseOf(l.Until-n.host.Monotonic())) // the lease and what is left of it tell when the run was prolonged: see pastRuns.over in package engine
	}
	n.Note(l)
	if s := n.orphanCheckOf(b.name); s != nil {
		s.voted = true
	}
	n.votes.lastVote = n.host.Monotonic()
	// A proposer asks again if the first answer takes long, because the vote is still being written to a slow disk. The
	// second answer must not cost another write. The log has all of the vote but its end, and when it is loaded the
	// lease begins anew.
	again := live && b.flags&FlagRenewed == 0 && l.Flags&flagLogged != 0 &&
		l.Token == before.Token && l.Lease == before.Lease && l.Flags == before.Flags && l.By == before.By
	if !again {
		n.Log(l)
	}
	return 0, l
}

// opposed checks the lock that stands against an acquisition: this node may have missed its end. It also checks a lock
// in dispute, for which this node votes for nobody.
func (n *Node) opposed(why uint32, name []byte, h *Holder) {
	if why == wire.Abstains && n.inDispute(name) && n.askRivals(name) {
		return
	}
	if why == wire.LockHeld || why == wire.Abstains {
		if l := n.Live(name); l != nil && (why == wire.LockHeld || !h.has(l)) {
			n.CheckOrphan(l)
		}
	}
}

// Unvote takes a vote back. With wire.Fresh it takes back only a vote that was made for this token. With wire.Committed
// it also takes back a bare lock's vote that the holder had before this token.
func (n *Node) Unvote(name []byte, h *Holder, token uint64, flags uint8) (why uint32, l *store.Lock) {
	why, l = n.unvoteOwn(name, h, token, flags)
	n.unrival(name, h, token, flags)
	n.uncontest(name, h, token)
	return why, l
}

func (n *Node) unvoteOwn(name []byte, h *Holder, token uint64, flags uint8) (why uint32, l *store.Lock) {
	n.unlearn(name, h, token, flags&wire.Fresh != 0)
	l = n.store.Lock(name)
	switch {
	case !n.IsLive(l):
		n.endedBefore(name, l, token)
		return wire.NotHeld, nil
	case !h.has(l):
		return wire.LockHeld, l
	case l.Token > token:
		n.unraise(l, token, flags)
		return wire.TokenStale, l
	case l.Token < token && (flags&wire.Fresh != 0 || l.Space() == store.LockRun):
		return wire.NotHeld, nil // another node may have given out that run
	case l.Token < token && flags&wire.Committed == 0 && l.Space() == store.LockBare:
		return wire.NotHeld, l // a client can name any token
	case flags&wire.Fresh != 0 && n.fallBack(l):
		return 0, nil
	case flags&wire.Fresh != 0 && l.Flags&FlagRenewed != 0:
		return wire.NotHeld, nil
	}
	soft := l.Flags&FlagUnconfirmed != 0
	if flags&wire.Fresh != 0 {
		defer n.calmLine(name)()
	}
	if n.Remove(l); soft {
		return wire.Unconfirmed, nil
	}
	return 0, nil
}

// endedBefore keeps the token of a lock whose end arrives before its Claim. The Claim is still under way, and would
// make a vote that nobody takes back. l is the lock of that name in the table; it is nil, or over.
func (n *Node) endedBefore(name []byte, l *store.Lock, token uint64) {
	n.saw(token) // the token may come from a client of this node
	switch {
	case n.mesh.Alone() || token > n.seen || token <= n.store.Locks().Floor || l != nil && l.Token >= token:
		return // a Claim by that token is refused anyway, or there can be none
	case l == nil:
		l = n.newLock(name, nil)
	default:
		n.Remove(l)
		if l = n.store.Lock(name); n.IsLive(l) {
			return // this node has the lock, by others' votes (noteFreed)
		}
	}
	l.Token = token
	n.markEnded(l)
}

// Receive handles a message about locks. Its slices need to be valid only during the call.
func (n *Node) Receive(p *membership.Peer, m *wire.Message) {
	k := &m.Lock
	n.saw(k.Token)
	if len(k.Name) == 0 && m.Kind != wire.Grant && m.Kind != wire.Deny && m.Kind != wire.LockPull && m.Kind != wire.LockPage {
		return
	}
	switch m.Kind {
	case wire.Claim:
		if k.Token == 0 || k.Lease < 0 || k.Lease > store.MaxLease || (k.Job == wire.JobID{}) != (store.SpaceOf(k.Name) == store.LockBare) {
			return
		}
		if k.Flags&FlagAny == 0 && !n.mesh.CountsAll(p, m.Members) {
			n.mesh.BeatWhole(p) // perhaps p only lacks what this node knows
			if m.Round != 0 {
				n.reply(p, m, wire.Uncounted, nil)
			}
			return
		}
		why, l := n.vote(&ballot{
			name: k.Name, Holder: Holder{Job: store.ID(k.Job), Owner: k.Owner}, token: k.Token, above: k.Above(), lease: k.Lease, flags: k.Flags, by: nodeBits(p.Node),
			extend: m.Flags&(wire.Extend|wire.Committed) != 0, committed: m.Flags&wire.Committed != 0, anew: m.Flags&wire.Fresh != 0,
		})
		if why == voteLater {
			if why = wire.Abstains; m.Round != 0 && n.answerLate(p, m) {
				return
			}
		}
		if m.Round != 0 {
			n.reply(p, m, why, l)
		}
		n.opposed(why, k.Name, &Holder{Job: store.ID(k.Job), Owner: k.Owner})
	case wire.Unlock:
		n.jobs.ResetBackoff(k.Name)
		if times := k.Times(); times > 0 && m.Round != 0 { // the sender's own word, not one that is passed on
			n.jobs.GivenBack(k.Name, store.ID(k.Job), k.Token, times-1)
		}
		if m.Flags&wire.Fresh != 0 { // nobody would take back a vote that is given after this
			n.votes.late = slices.DeleteFunc(n.votes.late, func(l lateClaim) bool { return l.node == p.Node && l.token == k.Token })
		}
		if store.SpaceOf(k.Name) == store.LockRun && n.IsOwnToken(k.Token) {
			n.endedElsewhere(k.Name, k.Token)
		}
		why, l := n.Unvote(k.Name, &Holder{Job: store.ID(k.Job), Owner: k.Owner}, k.Token, m.Flags)
		if m.Round != 0 {
			n.reply(p, m, why, l)
			n.passUnlock(p, m)
		}
	case wire.Grant, wire.Deny:
		n.onAnswer(p, m)
	case wire.Verify:
		n.onVerify(p, m)
	case wire.Verified:
		n.onVerified(p, m)
	case wire.LockPull:
		n.onPull(p, m)
	case wire.LockPage:
		n.onPage(p, m)
	case wire.ClearLocks:
		n.onClear(m)
	case wire.LockLost:
		n.jobs.Loses(store.ID(m.ID))
		n.uncontest(k.Name, &Holder{store.ID(m.ID), k.Owner}, store.MaxToken)
	}
}

// endedElsewhere notes that another node ends a run that this node acquired. Its Unlock may have overtaken this node's Claim on
// the way to a third node, whose vote would stay.
func (n *Node) endedElsewhere(name []byte, token uint64) {
	for i := range n.lately {
		if won := &n.lately[i]; won.claim != nil && won.claim.proposal == token && string(won.claim.name) == string(name) {
			won.ended = true
		}
	}
}

// passUnlock sends the Unlock to nodes that the sender doesn't know yet. A node that has just come may have learnt the
// vote from another's table, and would keep it.
func (n *Node) passUnlock(p *membership.Peer, m *wire.Message) {
	for _, q := range n.mesh.All() {
		if p.Lacks(q.Node) {
			n.mesh.Send(q, &wire.Message{Kind: wire.Unlock, Flags: m.Flags, Lock: m.Lock})
		}
	}
}

func (n *Node) reply(p *membership.Peer, asked *wire.Message, why uint32, l *store.Lock) {
	m := &wire.Message{Kind: wire.Grant, Round: asked.Round}
	if why != 0 {
		m.Kind, m.Count, m.Lock = wire.Deny, why, n.denial(why, l)
	}
	if a := n.Abstaining(); why == wire.Abstains && a != nil {
		m.Lock.Left = a.LeftFor(asked.Lock.Name)
	}
	if again := why == wire.LockHeld || why == wire.TokenStale && asked.Kind == wire.Unlock; again && l != nil && l.Job == store.ID(asked.Lock.Job) && l.Space() == store.LockRun && l.Until > 0 {
		m.Lock.Lease, m.Lock.Left = l.Lease, max(1, l.Until-n.host.Monotonic()) // another run of the job has it: see EndPastRun
	}
	n.mesh.Send(p, m)
}

func (n *Node) onAnswer(p *membership.Peer, m *wire.Message) {
	if d := n.unlocksByRound[m.Round]; d != nil {
		n.onUnlockAnswer(d, p, m)
		return
	}
	c := n.byRound[m.Round]
	if c == nil {
		// It is decided. If it failed, the votes for it are pending unlocks already.
		if won := &n.lately[m.Round%uint64(len(n.lately))]; won.round == m.Round && won.claim != nil && won.claim.kind != release {
			switch c := won.claim; {
			case m.Kind == wire.Grant && won.ended:
				n.EnqueueUnlock(c.name, c.Holder, c.proposal, 0, []wire.Node{p.Node})
			case m.Kind == wire.Deny && m.Count == wire.Unconfirmed:
				n.commitTo(c, p)
			}
		}
		return
	}
	a := answer{node: p.Node}
	if m.Kind == wire.Deny {
		if m.Count == wire.Uncounted {
			n.mesh.BeatWhole(p)
		}
		a.why, a.token, a.job, a.owner = max(m.Count, 1), m.Lock.Token, store.ID(m.Lock.Job), string(m.Lock.Owner)
		a.left = m.Lock.Left
		n.jobs.EndPastRun(c.name, c.Job, m)
	}
	n.answer(c, a)
}

// Up follows a new connection to p. Down follows the end of one.
func (n *Node) Up(p *membership.Peer) {
	n.clearsAt[p.Node] = n.cleared
	n.dropLate(p)
	n.countAnew()
	n.unlocksUp()
	n.syncUp(p)
}

func (n *Node) Down() { n.countAnew() }

// Gone follows a node that was forgotten: its votes don't count any more.
func (n *Node) Gone(p *membership.Peer) {
	n.countOthers()
	delete(n.clearsAt, p.Node)
	n.reviewUnlocks()
	n.forgets++
	n.countAnew()
}

// setRound sets which round of an acquisition is under way; 0: none.
func (n *Node) setRound(c *Acquisition, round uint64) {
	if c.round != 0 {
		n.open.Remove(c, inOpen)
		n.asked.remove(string(c.name), c, asking)
	}
	if c.round = round; round != 0 {
		n.open.Add(c, inOpen)
		n.asked.add(string(c.name), c, asking)
	}
}

// countAnew begins a pass over the acquisitions that have a round under way, after a change that can decide them: of
// the connected nodes, or of what this node may vote for. The pass tallies each of them after that change. One
// that is tallied before, for another reason, is tallied right.
func (n *Node) countAnew() {
	n.uncounted = n.open.Len
	n.countSome()
}

// countSome goes on with that pass.
func (n *Node) countSome() {
	if n.host.Passive() || n.host.Loading() {
		return
	}
	from := n.host.Mark()
	for budget := Slice; ; budget, from = budget-n.acquisitionCost(from), n.host.Mark() {
		if n.uncounted = min(n.uncounted, n.open.Len); n.uncounted == 0 {
			return
		}
		if budget <= 0 {
			n.host.WakeIn(1)
			return
		}
		n.uncounted--
		c := n.open.Head
		n.open.Remove(c, inOpen) // moves it to the end
		n.open.Add(c, inOpen)
		if n.current(c) {
			n.answerSelf(c)
			n.tally(c)
		}
		if c.round == 0 || c.ups == n.mesh.Ups() {
			continue
		}
		for _, p := range n.mesh.All() {
			if p.Since > c.ups && !c.answered(p.Node) {
				n.mesh.Send(p, c.message())
				c.resent = true
			}
		}
		c.ups = n.mesh.Ups()
	}
}

// dropGone removes the answers of forgotten nodes from an acquisition. True: a node was forgotten since the acquisition
// asked.
func (n *Node) dropGone(c *Acquisition) bool {
	if c.forgets == n.forgets {
		return false
	}
	c.forgets = n.forgets
	c.answers = slices.DeleteFunc(c.answers, func(a answer) bool { return a.node != n.self.Node() && n.mesh.ByName(a.node) == nil })
	return true
}

// current says whether a round still counts the nodes that there are, and votes that there are. After a node was
// forgotten the round ends, because fewer votes would be enough now; but not if it needs no majority of all nodes
// (FlagAny). After the lock was cleared the round ends, because its votes are gone, or about to be.
func (n *Node) current(c *Acquisition) bool {
	if c.round == 0 {
		return true
	}
	forgot := n.dropGone(c) && c.flags&FlagAny == 0
	if c.kind == release || !forgot && !n.mayBeCleared(c.clears, c.name, c.proposal) {
		return true
	}
	n.Retract(c)
	n.missed(c, Result{Kind: NoQuorum}, false)
	return false
}
