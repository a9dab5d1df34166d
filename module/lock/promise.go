package lock

import (
	"math"
	"math/bits"
	"slices"

	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// A node remembers some facts about its votes outside the log. So a node whose log may lack votes that it gave knows
// how long those votes can matter.
//
// Why two majorities have a voter in common that knows of both, though nodes restart: a vote that was given and lost
// must not be given again while somebody may have the lock by it. A node that may have lost votes (partial) gives none
// until one of these is so:
//
//   - Its log is whole: each vote was on disk before it was given, or a clean shutdown wrote it. Then no vote is lost.
//     The log says whose table it is. Another node's table, which came by REPLICAOF, counts for nothing.
//   - So many others have told it their whole tables that each majority in which it can have voted includes one of
//     them. A whole table has all that its node voted for. So together they have each lock that this node can have
//     voted for.
//   - For votes with a lease, for each kind of lock ([Leases]): the longest lease that the node has promised for that
//     kind is over, counted from the last vote that it can have given. The node remembers that length durably from
//     before the first vote of that length ([Votes]). Then no proposer counts on any of these votes any more, since it
//     counts from before it asked. Later votes must have greater tokens than the lost ones (Floor). The lost tokens
//     were at most aheadMost ahead of the node's clock, so the node knows a token that none of them exceeds. Before a
//     node votes by a token that is further ahead, that token is on disk ([Votes.Tokens]). So are the tokens that a
//     node gives out itself just after a start, before its clock has reached those of the run before
//     ([Node.TokensAhead]).
//   - For votes without a lease, of jobs that wait and of at-most-once jobs that run, time proves nothing. But the node
//     that acquired such a lock has its job, and has the lock in its own table: it notes the lock also if it abstained
//     itself (noteWon), and makes it anew from the job when it restarts (relock in package engine). So once each known
//     node has told its table, even a partial one, the node knows each of these locks that somebody still has. A node
//     that is gone for good has to be forgotten (FORGET). A job that no node knows any more has no lock. (An
//     at-most-once job that got its lock in the last second before its own node crashed may lose it, together with its
//     delivery, unless each write of the AOF was on disk at once.)
//
// The node keeps meanwhile those of its votes that it still has, if they have leases (endKept): FORGET of the others ends the
// abstaining, too, and then those votes are all that stands against a second holder.
//
// A node that is new to a mesh has lost nothing. But together with other new nodes it could make a majority, of which
// the nodes that have voted know nothing. So it abstains until more than half of the nodes that aren't new themselves
// have told it their tables. (A node also counts as new if it may lack votes that it gave before, when it knew no other
// node.) From then on those nodes know it, and refuse a Claim that doesn't count it (CountsAll). If two nodes come to
// different parts of a mesh that is partitioned, at most one of them hears from so many. Otherwise each would help the
// part that it came to.

// Votes is what a node remembers durably about the votes that it gave.
type Votes struct {
	Longest  Leases // no vote with a lease had a longer one
	Unleased bool   // some votes without a lease may not be over
	New      bool   // it is new to its mesh and has given no vote there: the first vote waits until New is false on disk
	Tokens   uint64 // of the votes whose tokens were more than aheadMost ahead of the clock, none has a greater token

	lowered uint64 // promise.lowered when [Node.Votes] made this
}

// Leases is the longest lease of each kind of lock, ms: of bare locks, of jobs that run, and of jobs that wait, whose
// windows count. So long leases of one kind don't hold up locks of another. Negative: they aren't known.
type Leases [3]int64

// kinds are the kinds of locks in their order in Leases.
var kinds = [...]store.Space{store.LockBare, store.LockRun, store.LockWait}

func kindOf(space store.Space) int { return max(slices.Index(kinds[:], space), 0) }

// LeasesUpTo is one length for all kinds of locks.
func LeasesUpTo(ms int64) Leases { return Leases{ms, ms, ms} }

// Known says whether the leases are known.
func (l Leases) Known() bool { return l[0] >= 0 }

// Max is the longest lease of all kinds, ms.
func (l Leases) Max() int64 { return slices.Max(l[:]) }

// each joins two Leases kind by kind.
func (l Leases) each(m Leases, f func(a, b int64) int64) Leases {
	for k := range l {
		l[k] = f(l[k], m[k])
	}
	return l
}

func shorter(a, b int64) int64 { return min(a, b) }
func longer(a, b int64) int64  { return max(a, b) }

// atLeast is what the disk says for sure if it has one of two texts, v or w.
func (v Votes) atLeast(w Votes) Votes {
	switch {
	case !v.Longest.Known():
		v.Longest = w.Longest // a node that doesn't know waits for the longest lease that there is
	case w.Longest.Known():
		v.Longest = v.Longest.each(w.Longest, shorter)
	}
	v.Unleased, v.New, v.Tokens = v.Unleased && w.Unleased, v.New || w.New, min(v.Tokens, w.Tokens)
	return v
}

const (
	aheadMost      = 5_000   // ms: how far ahead of the clock the tokens of lost votes may be that aren't remembered; less than how long the node abstains
	leastPromise   = 5_120   // ms: the shortest lease that is promised, a whole step
	promiseKeptMS  = 600_000 // how long a promise outlives its last vote, ms
	promiseLookMS  = 10_000
	lateMax        = 200
	lateMS         = 10_000
	promiseAgainMS = 1_000 // pause until the caller is asked again to keep a promise
)

// promise is the state of [Votes].
//
// A vote is given only if the disk covers it, whichever text is on disk by now. That is the text that is known to be
// written (kept), or one that is being written beside the main thread, which can say less. So a fact that isn't wanted
// any more isn't relied on from that moment. It is relied on again once a text is kept that was made after the fact was
// wanted again (sure).
type promise struct {
	kept     Votes                  // on disk, as far as is known
	sure     Votes                  // on disk for sure
	lowered  uint64                 // how often less was wanted than before
	began    int64                  // monotonic
	until    [len(kinds)][240]int64 // monotonic, by kind and leaseStep: when votes of that length are over, and the promise, too
	unleased int64                  // likewise, for votes without a lease; math.MaxInt64: one was noted while the node was alone
	wanted   Votes
	asked    Votes // what the caller was last asked to keep
	askedAt  int64 // monotonic
	late     []lateClaim
	own      []*Acquisition // won before this node could vote for them
	look     int64          // monotonic
	lastVote int64          // monotonic: no vote was given later
}

// leaseStep is the step of a lease, and stepLease the longest lease of a step, ms. There are four steps for each
// doubling.
func leaseStep(lease int64) int {
	v := uint64(max(lease, leastPromise) - 1)
	top := bits.Len64(v) - 3
	return 4*top + int(v>>top)&3
}

func stepLease(step int) int64 { return int64(5+step&3) << (step >> 2) }

// SetVotes tells a node that starts what it remembers. The caller has told it before which nodes it knew: those aren't
// new to it, nor it to them. Without SetVotes a node doesn't know what it voted for.
func (n *Node) SetVotes(v Votes) {
	p, now := &n.votes, n.host.Monotonic()
	n.sync.young = 0
	v.lowered = 0
	n.ApplyFloor(v.Tokens)
	*p = promise{kept: v, sure: v, wanted: v, began: now, lastVote: now}
	for k, lease := range v.Longest {
		if lease > 0 {
			p.until[k][leaseStep(lease)] = now + VoteMS(lease) + promiseKeptMS
		}
	}
	if v.Unleased {
		p.unleased = now + promiseKeptMS
	}
}

// Follow makes the node forget for how long it votes, when it becomes a replica, and again when it is promoted: its table is
// its master's. Nobody tells a replica which leases its master gives, and the last votes may not have reached it.
func (n *Node) Follow() {
	n.firstOwn = 0
	n.SetVotes(Votes{Longest: LeasesUpTo(-1), Unleased: true, Tokens: n.votes.kept.Tokens})
}

// Votes is what is to be remembered now. If its Longest isn't known, nothing is to be written.
func (n *Node) Votes() Votes {
	v := n.votes.wanted
	v.lowered = n.votes.lowered
	return v
}

// want changes what is to be remembered.
func (p *promise) want(v Votes) {
	// Nothing is written while the longest lease isn't known.
	if v.Longest.Known() && v.atLeast(p.wanted) != p.wanted {
		p.lowered++
		p.sure = p.sure.atLeast(v)
	}
	p.wanted = v
}

// lags says whether the disk has, or may have, something else than what is wanted.
func (p *promise) lags() bool { return p.wanted != p.kept || p.wanted != p.sure }

// VotesKept tells the node that v, which it got from [Node.Votes], is on disk, and that no older one will be written
// over it. The node then answers the Claims that waited for this.
func (n *Node) VotesKept(v Votes) {
	p, sure := &n.votes, v
	if v.lowered != p.lowered {
		sure = v.atLeast(p.sure) // a later text says less
	}
	v.lowered, sure.lowered = 0, 0
	p.kept, p.asked, p.sure = v, sure, sure
	if n.host.Passive() || n.host.Loading() {
		return
	}
	own := n.votes.own // acquisitions that were won come first
	n.votes.own = nil
	for _, c := range own {
		n.commitSelf(c)
	}
	late := n.votes.late
	n.votes.late = nil
	for i := range late {
		if p := n.mesh.ByName(late[i].node); p != nil && n.host.Monotonic()-late[i].at < lateMS {
			// It was parsed before.
			_ = n.host.Receive(p.ID, late[i].message)
		}
	}
	n.countAnew()
}

// lateClaim is a Claim whose answer waits until the disk has what is to be remembered.
type lateClaim struct {
	node    wire.Node
	round   uint64
	token   uint64
	at      int64 // monotonic
	message []byte
}

// answerLate keeps a Claim to be answered later. False: too many are kept.
func (n *Node) answerLate(p *membership.Peer, m *wire.Message) bool {
	late := &n.votes.late
	if slices.ContainsFunc(*late, func(l lateClaim) bool { return l.node == p.Node && l.round == m.Round }) {
		return true // it was asked again
	}
	if len(*late) >= lateMax {
		return false
	}
	*late = append(*late, lateClaim{p.Node, m.Round, m.Lock.Token, n.host.Monotonic(), m.Append(nil)})
	return true
}

// dropLate drops the Claims of a node that wait for the disk, when a new connection begins: the answer would be for the former one. If
// the node still wants the lock, it asks again.
func (n *Node) dropLate(p *membership.Peer) {
	n.votes.late = slices.DeleteFunc(n.votes.late, func(l lateClaim) bool { return l.node == p.Node })
}

// longestVotes are the longest leases of votes that may be given.
func (n *Node) longestVotes() Leases {
	if !n.votes.sure.Longest.Known() {
		return LeasesUpTo(n.maxLease)
	}
	return n.votes.sure.Longest
}

// unleased says whether a vote for a job lasts as long as the job needs it, or has such a long lease that the lease is
// of no use to a node that has lost the vote.
func unleased(space store.Space, id *store.ID, flags uint8, lease int64) bool {
	return *id != (store.ID{}) && flags&FlagOutlives == 0 &&
		(lease == 0 || space == store.LockRun && forLife(id, lease))
}

// forLife says whether a run's lock has a lease for as long as its at-most-once job lives. Other jobs' long leases are those of their deliveries.
func forLife(id *store.ID, lease int64) bool { return lease > longLeaseMS && id.AtMostOnce() }

// promised says whether the disk covers a vote, so that it may be given. If not, it asks the caller to remember more,
// which takes a moment.
func (n *Node) promised(name []byte, id *store.ID, token uint64, flags uint8, lease int64) bool {
	covered, p := n.covers(name, id, flags, lease), &n.votes
	if token > n.tokenIn(aheadMost) && token > p.sure.Tokens && p.sure.Longest.Known() {
		p.wanted.Tokens = max(p.wanted.Tokens, min(token+aheadMS<<TokenShift, store.MaxToken))
		n.askToKeep(n.host.Monotonic())
		covered = false
	}
	if p.sure.New && !p.wanted.New { // the disk may say that it has given none
		n.askToKeep(n.host.Monotonic())
		return false
	}
	return covered
}

// covers says whether the disk covers the lease of a vote. If not, it asks the caller to remember more.
func (n *Node) covers(name []byte, id *store.ID, flags uint8, lease int64) bool {
	now, p := n.host.Monotonic(), &n.votes
	if unleased(store.SpaceOf(name), id, flags, lease) {
		p.unleased = now + promiseKeptMS
		if p.sure.Unleased {
			return true
		}
		p.wanted.Unleased = true
		n.askToKeep(now)
		return false
	}
	step, kind := leaseStep(lease), kindOf(store.SpaceOf(name))
	until := &p.until[kind][step]
	*until = max(*until, now+VoteMS(lease)+promiseKeptMS)
	if lease <= n.longestVotes()[kind] {
		return true
	}
	if !p.wanted.Longest.Known() {
		p.wanted.Longest = n.longestVotes()
	}
	p.wanted.Longest[kind] = max(p.wanted.Longest[kind], stepLease(step))
	n.askToKeep(now)
	return false
}

func (n *Node) askToKeep(now int64) {
	if p := &n.votes; p.asked != p.wanted || now-p.askedAt >= promiseAgainMS {
		p.asked, p.askedAt = p.wanted, now
		n.host.KeepVotes()
	}
}

// tickVotes drops promises that are over, and asks again for what isn't on disk yet.
func (n *Node) tickVotes(now int64) {
	p := &n.votes
	known := p.kept.Longest.Known() || now >= p.began+VoteMS(n.maxLease)
	if now >= p.look && known && !n.sync.abstain && len(n.mesh.All()) > 0 {
		p.look = now + promiseLookMS
		p.want(p.need(now))
	}
	if p.lags() && p.wanted.Longest.Known() {
		n.askToKeep(now)
	}
}

// need is what has to be remembered about the votes that were given and can still matter.
func (p *promise) need(now int64) Votes {
	v := Votes{Unleased: p.unleased > now, New: p.wanted.New, Longest: LeasesUpTo(leastPromise), Tokens: p.wanted.Tokens}
	for kind := range p.until {
		until := &p.until[kind]
		for step := len(until) - 1; step >= 0; step-- {
			if until[step] > now {
				v.Longest[kind] = max(leastPromise, stepLease(step))
				break
			}
		}
	}
	return v
}

// Note notes a lock that is no vote yet, because the node knows no other. It becomes a vote when the node meets one.
func (n *Node) Note(l *store.Lock) {
	p := &n.votes
	switch {
	case !n.mesh.Alone():
	case unleased(l.Space(), &l.Job, l.Flags, l.Lease):
		p.unleased = math.MaxInt64
	case l.Until > 0:
		until := &p.until[kindOf(l.Space())][leaseStep(l.Lease)]
		*until = max(*until, l.Until+VoteMS(l.Lease)-l.Lease+promiseKeptMS)
	}
}

// promiseAll asks to remember the locks of the table as votes, since the node isn't alone any more. Note has noted them
// one by one, because a look at all of them takes long.
func (n *Node) promiseAll() {
	p, now := &n.votes, n.host.Monotonic()
	p.lastVote = now
	p.unleased = min(p.unleased, now+promiseKeptMS)
	need := p.need(now)
	if more := need.Longest.each(n.longestVotes(), longer); p.kept.Longest.Known() || more != n.longestVotes() {
		if !p.wanted.Longest.Known() {
			p.wanted.Longest = n.longestVotes()
		}
		p.wanted.Longest = p.wanted.Longest.each(need.Longest, longer)
	}
	p.wanted.Unleased = p.wanted.Unleased || need.Unleased
	if p.lags() && p.kept.Longest.Known() {
		n.askToKeep(now)
	}
}

// leasesOver is when no vote with a lease can matter any more that this node may have given for a kind of lock, and
// lost (monotonic, ms).
func (n *Node) leasesOver(kind int) int64 {
	longest := n.sync.lost[kind]
	if !n.sync.lost.Known() {
		longest = n.maxLease
	}
	return n.sync.lostAt + VoteMS(longest)
}

// allLeasesOver is leasesOver for locks of all kinds.
func (n *Node) allLeasesOver() (at int64) {
	for kind := range kinds {
		at = max(at, n.leasesOver(kind))
	}
	return at
}

// abstainsFrom says whether the node doesn't vote for a lock of this name. If the node lacks only votes that it gave
// itself, it votes for a kind of lock again once none of these votes can matter.
func (n *Node) abstainsFrom(name []byte) bool {
	if !n.abstains() {
		return false
	}
	if len(name) == 0 || !n.leasesKnown() {
		return true
	}
	space := store.SpaceOf(name)
	if n.host.Monotonic() < n.leasesOver(kindOf(space)) {
		return true
	}
	return space != store.LockBare && (n.isRecovering() || n.sync.unleased && !n.allTold())
}

// leasesKnown says whether the node lacks only votes that it gave itself.
func (n *Node) leasesKnown() bool { return n.sync.partial && !n.votes.wanted.New }

// Abstaining tells why the node doesn't vote, or not for all locks.
type Abstaining struct {
	New     bool        // it is new to the mesh
	Lacks   bool        // it may have lost votes
	Jobs    bool        // it doesn't vote for jobs' locks, but for the others
	Left    int64       // ms, until it votes at the latest; for jobs' locks, if all nodes have told their tables; 0: that depends on other nodes
	Lefts   Leases      // Left by the kind of lock
	Awaited []wire.Node // nodes that have yet to tell their tables
}

// LeftFor is Left for the lock of that name, ms.
func (a *Abstaining) LeftFor(name []byte) int64 {
	if len(name) == 0 {
		return a.Left
	}
	return a.Lefts[kindOf(store.SpaceOf(name))]
}

// Abstaining tells why the node abstains; nil: it doesn't.
func (n *Node) Abstaining() *Abstaining {
	if !n.abstains() {
		return nil
	}
	now := n.host.Monotonic()
	a := &Abstaining{New: n.votes.wanted.New, Lacks: n.sync.partial}
	if a.Lacks && !a.New {
		for kind := range kinds {
			a.Lefts[kind] = max(n.leasesOver(kind)-now, 0)
		}
		a.Left = a.Lefts.Max()
		a.Jobs = a.Left == 0
	}
	for _, p := range n.mesh.All() {
		if t := n.sync.tables[p.Node]; t == noTable || (t == partTable || t == newPartTable) && !a.Jobs {
			a.Awaited = append(a.Awaited, p.Node)
		}
	}
	return a
}
