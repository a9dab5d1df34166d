package engine

import (
	"math"
	"math/bits"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// A node remembers some things of its votes beside the log, so that a node whose log may lack some
// that it gave knows how long they can matter.
//
// Why two majorities have a voter in common that knows of both, though nodes restart:
// a vote that was given and is lost must not be given again while the lock may be held
// by it. A node that may have lost votes (partial) gives none until one of these is so:
//
//   - Its log is whole: each vote was on disk before it was given, or was written by a
//     clean shutdown. Then none is lost. The log says whose table it is: another
//     node's, which came by REPLICAOF, stands for nothing.
//   - So many others have told it their whole tables that each majority it can have
//     been one of has one of them. Whole tables have what their nodes voted for, and so
//     each lock that this node can have voted for.
//   - For votes with a lease: since the last one that it can have given, the longest
//     lease is over that it has promised, and remembers durably from before the first
//     vote of that length ([Votes]). Then all claimants count on none of them any more:
//     they count from before they asked.
//     No vote by a smaller token follows: one that was ahead of the node's clock by more than the
//     time of the shortest promise is remembered as durably ([Votes.Tokens]), as those are of a node
//     that was started just before.
//   - For votes without a lease, of jobs that wait and of at-most-once jobs that run,
//     time proves nothing. They are there because of a job, and a job that has a lock is
//     known to a node: to the one that claimed the lock, which notes it also where it
//     abstained itself (won), and that gives it to its own table again from the job when
//     it restarts (relock). So they are over, or known, once each known node has told its
//     table, though it be partial; a node that is gone for good has to be forgotten. A job
//     that no node knows any more has no lock. (An at-most-once job that got its lock in the
//     last second before its own node crashed may lose it, together with its delivery, unless
//     each write of the AOF was on disk at once.)
//
// A node that is new to a mesh has lost nothing, but could make a majority with others
// that are new, out of the sight of those who have voted. So it abstains until more
// than half of the nodes that aren't new themselves have told it their tables. (One that
// is new, and may lack votes that it gave before, as the only node that it knew, is new.)
// From then on they know it, and refuse claims that don't count it (countsAll). If two nodes
// come to different parts of a mesh that is cut, at most one of them finds so many: otherwise
// each would help the half that it came to.

// Votes is what a node remembers durably of the votes that it gave.
type Votes struct {
	Longest  int64  // ms: no vote with a lease had a longer one; negative: that isn't known
	Unleased bool   // votes without a lease may be lasting
	New      bool   // it is new to its mesh, and has given none there: the first waits until that is false on disk
	Tokens   uint64 // none was given for a greater token that was more than aheadMost ahead of the clock

	lowered uint64 // how often less was wanted before
}

// atLeast is what a disk says for sure that has one of two texts.
func (v Votes) atLeast(w Votes) Votes {
	switch {
	case v.Longest < 0:
		v.Longest = w.Longest // a node that doesn't know waits for the longest lease that there is
	case w.Longest >= 0:
		v.Longest = min(v.Longest, w.Longest)
	}
	v.Unleased, v.New, v.Tokens = v.Unleased && w.Unleased, v.New || w.New, min(v.Tokens, w.Tokens)
	return v
}

const (
	aheadMost      = 5_000   // ms: of the tokens of votes that are lost, less than how long the node abstains
	leastPromise   = 5_120   // ms: the shortest lease that is promised, a whole step
	promiseKeptMS  = 600_000 // how long a promise outlives its last vote
	promiseLookMS  = 10_000
	lateMax        = 200
	lateMS         = 10_000
	promiseAgainMS = 1_000 // until it is asked again for a promise to be kept
)

// promise is the state of [Votes].
//
// A vote is given only where the disk covers it, whichever text is there by now: the one
// that is known to be written (kept), or one that is being written beside the main thread,
// which can say less. So nothing that isn't wanted any more is relied on from that moment
// on, until a text is kept that was made after it was wanted again (sure).
type promise struct {
	kept     Votes      // on disk, as far as is known
	sure     Votes      // on disk for sure
	lowered  uint64     // counts the times that less was wanted than before
	began    int64      // steady
	until    [240]int64 // by leaseStep: steady, when votes of that length are over and the promise is, too
	unleased int64      // likewise, for votes without a lease; the greatest number: the node was alone since
	wanted   Votes
	asked    Votes // what the caller was last asked to keep
	askedAt  int64 // steady
	late     []lateClaim
	own      []*Claim // that were won before this node could vote for them
	look     int64    // steady
	lastVote int64    // steady: none was given later
}

// leaseStep is the step of a length, and stepLease the longest lease of a step: four for
// each doubling.
func leaseStep(lease int64) int {
	v := uint64(max(lease, leastPromise) - 1)
	top := bits.Len64(v) - 3
	return 4*top + int(v>>top)&3
}

func stepLease(step int) int64 { return int64(5+step&3) << (step >> 2) }

// SetVotes tells a node that starts what it remembers, once it knows the nodes that it
// knew before: those aren't new to it, nor it to them. A node for which it isn't called
// doesn't know what it voted for.
func (n *Node) SetVotes(v Votes) {
	p, now := &n.votes, n.steady()
	n.sync.young = 0
	v.lowered = 0
	n.ApplyFloor(v.Tokens)
	*p = promise{kept: v, sure: v, wanted: v, began: now, lastVote: now}
	if v.Longest > 0 {
		p.until[leaseStep(v.Longest)] = now + voteMS(v.Longest) + promiseKeptMS
	}
	if v.Unleased {
		p.unleased = now + promiseKeptMS
	}
}

// Votes is what is to be remembered by now; where that isn't known, not at all.
func (n *Node) Votes() Votes {
	v := n.votes.wanted
	v.lowered = n.votes.lowered
	return v
}

// want changes what is to be remembered.
func (p *promise) want(v Votes) {
	// Where the longest lease isn't known, nothing is written.
	if v.Longest >= 0 && v.atLeast(p.wanted) != p.wanted {
		p.lowered++
		p.sure = p.sure.atLeast(v)
	}
	p.wanted = v
}

// lags says whether something else is on disk, or may be, than what is wanted.
func (p *promise) lags() bool { return p.wanted != p.kept || p.wanted != p.sure }

// VotesKept tells that this, which is from [Node.Votes], is remembered, on disk, and nothing
// that was taken from there before will be: claims that waited for it are answered.
func (n *Node) VotesKept(v Votes) {
	p, sure := &n.votes, v
	if v.lowered != p.lowered {
		sure = v.atLeast(p.sure) // a later text says less
	}
	v.lowered, sure.lowered = 0, 0
	p.kept, p.asked, p.sure = v, sure, sure
	if n.passive || n.loading {
		return
	}
	own := n.votes.own // those that are won come first
	n.votes.own = nil
	for _, c := range own {
		n.proveSelf(c)
	}
	late := n.votes.late
	n.votes.late = nil
	for i := range late {
		if p := n.mesh.by[late[i].node]; p != nil && n.steady()-late[i].at < lateMS {
			// It was parsed before.
			_ = n.Receive(p.ID, late[i].message)
		}
	}
	n.countAnew()
}

// lateClaim is a claim that waits for what is remembered to be written.
type lateClaim struct {
	node    wire.Node
	round   uint64
	token   uint64
	at      int64 // steady
	message []byte
}

// answerLate has a claim answered later. False where too many are.
func (n *Node) answerLate(p *Peer, m *wire.Message) bool {
	late := &n.votes.late
	if slices.ContainsFunc(*late, func(l lateClaim) bool { return l.node == p.Node && l.round == m.Round }) {
		return true // it was asked again
	}
	if len(*late) >= lateMax {
		return false
	}
	*late = append(*late, lateClaim{p.Node, m.Round, m.Lock.Token, n.steady(), m.Append(nil)})
	return true
}

// longestVote is the longest lease of votes that may be given, ms.
func (n *Node) longestVote() int64 {
	if n.votes.sure.Longest < 0 {
		return n.maxLease
	}
	return n.votes.sure.Longest
}

// unleased says whether a vote for a job lasts as long as the job needs it, or so long
// that its lease is of no use to a node that has lost it.
func unleased(space store.Space, id *store.ID, flags uint8, lease int64) bool {
	return *id != (store.ID{}) && flags&lockOutlives == 0 &&
		(lease == 0 || space == store.LockRun && id.AtMostOnce() && lease > longLeaseMS)
}

// promised says whether a vote may be given: what is remembered covers it. If not, the
// caller is asked to remember more, which takes a moment.
func (n *Node) promised(name []byte, id *store.ID, token uint64, flags uint8, lease int64) bool {
	covered, p := n.covers(name, id, flags, lease), &n.votes
	if token > n.tokenIn(aheadMost) && token > p.sure.Tokens && p.sure.Longest >= 0 {
		p.wanted.Tokens = max(p.wanted.Tokens, min(token+aheadMS<<tokenShift, store.MaxToken))
		n.askToKeep(n.steady())
		covered = false
	}
	if p.sure.New && !p.wanted.New { // what is remembered may be that it has given none
		n.askToKeep(n.steady())
		return false
	}
	return covered
}

// covers is promised for a node that has voted before.
func (n *Node) covers(name []byte, id *store.ID, flags uint8, lease int64) bool {
	now, p := n.steady(), &n.votes
	if unleased(store.Space(name[0]), id, flags, lease) {
		p.unleased = now + promiseKeptMS
		if p.sure.Unleased {
			return true
		}
		p.wanted.Unleased = true
		n.askToKeep(now)
		return false
	}
	step := leaseStep(lease)
	p.until[step] = max(p.until[step], now+voteMS(lease)+promiseKeptMS)
	if lease <= n.longestVote() {
		return true
	}
	p.wanted.Longest = max(p.wanted.Longest, stepLease(step))
	n.askToKeep(now)
	return false
}

func (n *Node) askToKeep(now int64) {
	if p := &n.votes; p.asked != p.wanted || now-p.askedAt >= promiseAgainMS {
		p.asked, p.askedAt = p.wanted, now
		n.effects = append(n.effects, Effect{Kind: KeepVotes})
	}
}

// tickVotes takes promises back that are over, and repeats what isn't kept yet.
func (n *Node) tickVotes(now int64) {
	p := &n.votes
	known := p.kept.Longest >= 0 || now >= p.began+voteMS(n.maxLease)
	if now >= p.look && known && !n.sync.abstain && len(n.mesh.order) > 0 {
		p.look = now + promiseLookMS
		p.want(p.need(now))
	}
	if p.lags() && p.wanted.Longest >= 0 {
		n.askToKeep(now)
	}
}

// need is what has to be remembered of the votes that were given, and can matter still.
func (p *promise) need(now int64) Votes {
	v := Votes{Unleased: p.unleased > now, New: p.wanted.New, Longest: leastPromise, Tokens: p.wanted.Tokens}
	for step := len(p.until) - 1; step >= 0; step-- {
		if p.until[step] > now {
			v.Longest = max(v.Longest, stepLease(step))
			break
		}
	}
	return v
}

// noteLock notes a lock that is no vote yet, for there is nobody to vote for it: it becomes one
// where the node meets another.
func (n *Node) noteLock(l *store.Lock) {
	p := &n.votes
	switch {
	case !n.alone():
	case unleased(l.Space(), &l.Job, l.Flags, l.Lease):
		p.unleased = math.MaxInt64
	case l.Until > 0:
		until := &p.until[leaseStep(l.Lease)]
		*until = max(*until, l.Until+voteMS(l.Lease)-l.Lease+promiseKeptMS)
	}
}

// promiseAll has the locks remembered that the table has, as votes: the node isn't alone any
// more. They were noted one by one, for to look at all takes long.
func (n *Node) promiseAll() {
	p, now := &n.votes, n.steady()
	p.lastVote = now
	p.unleased = min(p.unleased, now+promiseKeptMS)
	need := p.need(now)
	if p.kept.Longest >= 0 || need.Longest > n.longestVote() {
		p.wanted.Longest = max(p.wanted.Longest, need.Longest)
	}
	p.wanted.Unleased = p.wanted.Unleased || need.Unleased
	if p.lags() && p.kept.Longest >= 0 {
		n.askToKeep(now)
	}
}

// leasesOver is when no vote with a lease that this node may have given, and lost, is
// of use any more (steady).
func (n *Node) leasesOver() int64 {
	longest := n.sync.lost
	if longest < 0 {
		longest = n.maxLease
	}
	return n.sync.lostAt + voteMS(longest)
}

// abstainsFrom says whether the node doesn't vote for a lock.
func (n *Node) abstainsFrom(name []byte) bool {
	return n.abstains() && !(len(name) > 0 && n.leasesKnown() && store.Space(name[0]) == store.LockBare && n.steady() >= n.leasesOver())
}

// leasesKnown says whether all that the node lacks are votes that it gave itself.
func (n *Node) leasesKnown() bool { return n.sync.partial && !n.votes.wanted.New }

// Abstaining tells why the node doesn't vote, or not for all locks.
type Abstaining struct {
	New     bool        // it is new to the mesh
	Lacks   bool        // it may have lost votes
	Jobs    bool        // it doesn't vote for jobs' locks alone
	Left    int64       // ms, until it votes at the latest, for jobs' locks where all have told; 0: that depends on other nodes
	Awaited []wire.Node // who has yet to tell its table
}

// Abstaining is why the node abstains; nil where it doesn't.
func (n *Node) Abstaining() *Abstaining {
	if !n.abstains() {
		return nil
	}
	now := n.steady()
	a := &Abstaining{New: n.votes.wanted.New, Lacks: n.sync.partial}
	if left := n.leasesOver() - now; a.Lacks && !a.New {
		a.Left, a.Jobs = max(left, 0), left <= 0
	}
	for _, p := range n.mesh.order {
		if t := n.sync.tables[p.Node]; t == noTable || (t == partTable || t == newPartTable) && !a.Jobs {
			a.Awaited = append(a.Awaited, p.Node)
		}
	}
	return a
}
