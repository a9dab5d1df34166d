package engine

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// How a lock is had in a mesh.
//
// A claim asks every node for its vote, this one first. The lock is had with
// the votes of more than half of all known nodes, failed ones counted, so two
// claims can't both have it while the votes last. A node votes for one holder
// at a time, and for none by a token that isn't greater than what it has seen;
// so the tokens of one lock only grow. A vote lasts for the lease that was asked
// for and a little more, from when the claim arrived, by the voter's steady
// clock; the claimant counts from before it asked. What one node alone knows, a
// mesh of one, decides at once.
//
// A claim that can't be had any more takes its votes back everywhere, and is
// tried again with another token until its deadline. What can't be told to a
// node is owed to it, until the lease would be over anyway.

// Times of claims, ms.
const (
	// ClaimTimeoutMS is how long a claim that doesn't wait for its lock tries.
	ClaimTimeoutMS = 1_000

	attemptMS     = 300   // until who still misses a vote begins again, doubling: two may each wait for the other
	claimResendMS = 100   // until a vote that was asked for is asked for again
	claimPollMS   = 500   // until one who waits for a lock looks again, where its end may not be heard of here
	claimLookMS   = 5_000 // and where it should
	debtFirstMS   = 200
	debtLastMS    = 10_000
	debtTimeMS    = 600_000 // how long an Unlock is owed
	debtMax       = 10_000
	clockSlack    = 40 // the clocks' rates may differ from true time by 1 %: a vote lasts a fortieth longer
	graceMS       = 10

	// DefaultMaxLease is the longest lease of a bare lock.
	DefaultMaxLease = 3_600_000
)

// holder is who has a lock or wants it: a job, or where that is zero an owner.
type holder struct {
	id    store.ID
	owner []byte
}

func (h *holder) has(l *store.Lock) bool {
	return l.Job == h.id && string(l.Owner()) == string(h.owner)
}

// OutcomeKind says how a claim ended.
type OutcomeKind uint8

// The ends of claims.
const (
	// Granted: the lock is had, extended or released.
	Granted OutcomeKind = iota
	// Conflict: another has it.
	Conflict
	// NoQuorum: too few nodes could be asked in time. Nothing stays claimed.
	NoQuorum
	// NotHeld: what was to be extended or released isn't held.
	NotHeld
	// Stale: it is held by a greater token.
	Stale
	// Aborted: the node became a replica.
	Aborted
)

// Outcome is the end of a claim.
type Outcome struct {
	Kind  OutcomeKind
	Token uint64   // Granted
	Job   store.ID // Conflict: the holder, where it is a job
	Owner []byte   // and where it isn't
}

// Err is the refusal that an outcome stands for, nil for Granted and Conflict.
func (o *Outcome) Err() error {
	switch o.Kind {
	case NoQuorum:
		return ErrNoQuorum
	case NotHeld:
		return ErrNotHeld
	case Stale:
		return ErrStaleToken
	case Aborted:
		return ErrReplica
	}
	return nil
}

type claimKind uint8

const (
	take claimKind = iota
	extend
	release
)

// Claim is a claim under way.
type Claim struct {
	kind claimKind
	name []byte
	holder
	lease    int64
	usable   int64    // of the lease, that asking may take; 0: all
	anew     bool     // for a run of its own: not one that the same job has already
	doubts   uint8    // attempts after which the job that has the lock could be gone
	gone     store.ID // which is
	token    uint64   // extend, release
	flags    uint8
	wait     bool
	deadline int64 // steady
	then     func(Outcome)

	round    uint64 // of the attempt under way; 0: none
	began    int64  // steady
	proposal uint64
	fresh    bool   // the proposal is a number that was never used
	first    uint64 // the first such number of this claim
	least    uint64 // what it must be at least, as we have heard
	answers  []answer
	resend   int64 // steady
	resent   bool  // some were asked twice: who has refused may have agreed since
	retry    int64 // steady, when the next attempt is due; 0: none is
	tries    int
	last     Outcome // of the last attempt
	line     *lockLine

	at  int64 // steady: when something is to be done
	pos int   // in Node.alarms; -1: not there
}

// answer is what became of a claim at one node. why is 0 for a vote.
type answer struct {
	node  wire.Node
	why   uint32
	token uint64
	job   store.ID
	owner string
}

// lockLine is those who wait for a lock at this node, first come first served.
// Only the first one asks.
type lockLine struct {
	name   string
	claims []*Claim
}

// alarms are the claims, by when something is to be done.
type alarms []*Claim

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, j int) bool { return a[i].at < a[j].at }
func (a alarms) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].pos, a[j].pos = i, j
}
func (a *alarms) Push(x any) {
	c := x.(*Claim)
	c.pos = len(*a)
	*a = append(*a, c)
}
func (a *alarms) Pop() any {
	last := len(*a) - 1
	c := (*a)[last]
	*a = (*a)[:last]
	c.pos = -1
	return c
}

// debt is an Unlock that some nodes haven't confirmed.
type debt struct {
	round uint64
	name  []byte
	holder
	token uint64
	flags uint8 // of the message
	until int64 // steady; then the votes are over anyway
	next  int64 // steady
	wait  int64 // ms
	nodes []wire.Node
}

// claims is what a node knows of claims, its own and others'.
type claims struct {
	rounds    uint64
	byRound   map[uint64]*Claim
	alarms    alarms
	lockLines map[string]*lockLine
	called    []string // locks that became free, and have a line
	debts     []*debt  // in the order of their rounds
	owed      map[uint64]*debt
	nextDun   int64 // steady: when debts are looked at
	suspects  map[string]*suspect
	nextLook  int64 // steady
	lost      map[store.ID]struct{}
	seen      uint64       // the greatest token that another node told of
	reserved  uint64       // up to here tokens are written off in the log
	weak      int          // locks with one of lockWeak
	maxLease  int64        // ms
	lately    [64]wonClaim // by round
	sync      tableSync
}

func newClaims() claims {
	return claims{
		byRound: map[uint64]*Claim{}, lockLines: map[string]*lockLine{}, owed: map[uint64]*debt{},
		suspects: map[string]*suspect{}, lost: map[store.ID]struct{}{}, maxLease: DefaultMaxLease,
	}
}

// SetMaxLease sets the longest lease that a bare lock can have, ms.
func (n *Node) SetMaxLease(ms int64) { n.maxLease = ms }

// MaxLease is the longest lease that a bare lock can have, ms.
func (n *Node) MaxLease() int64 { return n.maxLease }

// Claims counts the claims under way, and the votes that are owed back.
func (n *Node) Claims() int { return len(n.alarms) + len(n.owed) }

// Alone says whether this node decides of locks by itself, at once.
func (n *Node) Alone() bool { return n.alone() }

// alone says whether this node decides by itself.
func (n *Node) alone() bool { return len(n.mesh.order) == 0 }

// majority is more than half of all known nodes.
func (n *Node) majority() int { return (len(n.mesh.order)+1)/2 + 1 }

// quorate says whether the connections there are would do for a majority.
func (n *Node) quorate() bool {
	votes := 0
	if !n.abstains() {
		votes = 1
	}
	for _, p := range n.mesh.order {
		if p.Connected {
			votes++
		}
	}
	return votes >= n.majority()
}

func (n *Node) allPeers() (list []wire.Node) {
	for _, p := range n.mesh.order {
		list = append(list, p.Node)
	}
	return list
}

// --- asking ----------------------------------------------------------------------

// AcquireLock claims a bare lock for an owner, by its full name, for lease ms. It
// waits up to wait ms (0: not at all) for another to let go of it. Where pending
// is nil the outcome is decided, else it comes as a LockDone effect for client.
func (n *Node) AcquireLock(name, owner []byte, lease, wait int64, client any) (o Outcome, pending *Claim) {
	return n.bare(&Claim{kind: take, name: name, holder: holder{owner: owner}, lease: lease, wait: wait > 0}, wait, client)
}

// ExtendLock begins a bare lock's lease anew, where owner holds it by token.
// Its answer comes as that of AcquireLock does.
func (n *Node) ExtendLock(name, owner []byte, token uint64, lease int64, client any) (o Outcome, pending *Claim) {
	return n.bare(&Claim{kind: extend, name: name, holder: holder{owner: owner}, token: token, lease: lease}, 0, client)
}

// ReleaseLock frees a bare lock, where owner holds it by token. Its answer comes
// as that of AcquireLock does.
func (n *Node) ReleaseLock(name, owner []byte, token uint64, client any) (o Outcome, pending *Claim) {
	return n.bare(&Claim{kind: release, name: name, holder: holder{owner: owner}, token: token}, 0, client)
}

func (n *Node) bare(c *Claim, wait int64, client any) (o Outcome, pending *Claim) {
	if n.passive {
		return Outcome{Kind: Aborted}, nil
	}
	c.name, c.owner = slices.Clone(c.name), slices.Clone(c.owner)
	if wait <= 0 {
		wait = ClaimTimeoutMS
	}
	c.deadline = n.steady() + min(wait, math.MaxInt64/4)
	decided, blocked := false, false
	c.then = func(end Outcome) {
		o, decided = end, true
		if blocked {
			n.effects = append(n.effects, Effect{Kind: LockDone, Client: client, Outcome: &end})
		}
	}
	n.startClaim(c)
	blocked = true
	if decided {
		return o, nil
	}
	return o, c
}

// claimLock claims a lock for a job, as takeLock does, with the other nodes'
// consent: for lease ms (0: until freeLock), trying for timeout ms. flags are
// LockOutlives, or none; with any, a majority of those nodes that can be reached
// is enough (QUORUM any). then is called with the outcome, maybe before claimLock
// returns: Granted, Conflict with the holder's ID, NoQuorum or Aborted. A claim
// that ends otherwise than Granted leaves nothing. In a mesh of one it is decided
// at once; who must not allocate there calls takeLock where [Node.alone] says so.
//
// While a claim is under way its job need not be known yet; from then's return
// on it must be, or be freed, lest others find that the lock has no job.
func (n *Node) claimLock(name []byte, id *store.ID, lease int64, flags uint8, any bool, timeout int64, then func(Outcome)) *Claim {
	return n.claimFor(name, id, lease, 0, flags, any, timeout, then)
}

// claimFor is claimLock; where usable isn't 0 it is for a run: asking may take no
// more than usable ms of the lease, and one that the same job has elsewhere stands
// against it.
func (n *Node) claimFor(name []byte, id *store.ID, lease, usable int64, flags uint8, any bool, timeout int64, then func(Outcome)) *Claim {
	if n.passive {
		then(Outcome{Kind: Aborted})
		return nil
	}
	if n.alone() && !n.abstains() {
		token, l := n.takeLock(name, id, lease)
		if l != nil {
			then(Outcome{Kind: Conflict, Job: l.Job})
			return nil
		}
		l = n.store.Lock(name)
		n.setFlags(l, l.Flags|flags)
		then(Outcome{Kind: Granted, Token: token})
		return nil
	}
	c := &Claim{kind: take, name: slices.Clone(name), holder: holder{id: *id}, lease: lease, usable: usable, anew: usable > 0, flags: flags & LockOutlives, deadline: n.steady() + timeout, then: then}
	if any {
		c.flags |= lockAny
	}
	n.startClaim(c)
	return c
}

// AbandonClaim ends a claim whose client has gone: nothing stays claimed.
func (n *Node) AbandonClaim(c *Claim) {
	if c == nil || c.then == nil {
		return
	}
	n.retract(c)
	n.finishClaim(c, Outcome{Kind: NoQuorum}, false)
}

// Late is the outcome of a claim whose time is over now.
func (c *Claim) Late() Outcome {
	if c.round != 0 && c.last.Kind != Conflict {
		return Outcome{Kind: NoQuorum}
	}
	return c.last
}

func (n *Node) startClaim(c *Claim) {
	c.pos = -1
	c.last.Kind = NoQuorum
	if c.wait {
		line := n.lockLines[string(c.name)]
		if line == nil {
			line = &lockLine{name: string(c.name)}
			n.lockLines[line.name] = line
		}
		c.line = line
		line.claims = append(line.claims, c)
		// Who has the lock already renews it, out of turn.
		if l := n.liveLock(c.name); len(line.claims) > 1 && !(l != nil && c.has(l)) {
			c.last.Kind = Conflict
			n.setAlarm(c)
			return
		}
	} else if n.lineFirst(c) {
		n.finishClaim(c, Outcome{Kind: Conflict}, true)
		return
	}
	n.attempt(c)
}

// lineFirst says whether a claim that doesn't wait must leave a lock to those who
// do: it is free, and about to be given to the first of them.
func (n *Node) lineFirst(c *Claim) bool {
	return c.kind == take && n.alone() && len(n.lockLines) > 0 && n.lockLines[string(c.name)] != nil && n.liveLock(c.name) == nil
}

// attempt asks all nodes.
func (n *Node) attempt(c *Claim) {
	c.retry, c.round = 0, 0
	if c.kind != release && c.flags&lockAny == 0 && !n.quorate() {
		n.missed(c, Outcome{Kind: NoQuorum}, true)
		return
	}
	n.rounds++
	c.round, c.began = n.rounds, n.steady()
	// What a release has freed already stays freed.
	c.answers = slices.DeleteFunc(c.answers, func(a answer) bool { return c.kind != release || a.why != 0 })
	c.resend, c.resent = c.began+claimResendMS, false
	n.propose(c)
	n.byRound[c.round] = c
	if !c.answered(n.self.Node()) {
		c.answers = append(c.answers, n.voteSelf(c))
	}
	if n.tally(c); c.round == 0 {
		return // decided
	}
	m := c.message()
	for _, node := range n.silent(c) {
		n.send(n.mesh.by[node], m)
	}
	n.setAlarm(c)
}

// propose chooses the token: who has the lock keeps it.
func (n *Node) propose(c *Claim) {
	if c.kind != take {
		c.proposal = c.token
		return
	}
	l := n.store.Lock(c.name)
	switch {
	case !c.anew && n.isLive(l) && c.has(l):
		c.proposal, c.fresh = max(l.Token, c.least), false
	default:
		c.proposal, c.fresh = max(n.nextToken(l), c.least), true
		if c.anew {
			c.proposal = n.ownToken(c.proposal)
		}
		if c.first == 0 {
			c.first = c.proposal
		}
	}
}

// above is how far the proposal is above the first number of this claim.
func (c *Claim) above() uint64 {
	if c.kind != take || !c.fresh || c.proposal < c.first {
		return 0
	}
	return c.proposal - c.first
}

// asked are the flags of the vote that is asked for. Of a lock that its holder has
// already another node may be claiming it for him: that one's retreat mustn't end it.
func (c *Claim) asked() uint8 {
	if c.kind == take && !c.fresh {
		return c.flags | lockKept
	}
	return c.flags
}

func (c *Claim) message() *wire.Message {
	m := &wire.Message{Kind: wire.Claim, Round: c.round, Lock: wire.Lock{
		Name: c.name, Owner: c.owner, Job: c.id, Token: c.proposal, Lease: c.lease, Left: int64(c.above()), Flags: c.asked(),
	}}
	switch {
	case c.anew:
		m.Flags = wire.Fresh
	case c.kind == extend:
		m.Flags = wire.Extend
	case c.kind == release:
		m.Kind = wire.Unlock
	}
	return m
}

func (n *Node) voteSelf(c *Claim) answer {
	a := answer{node: n.self.Node()}
	var l *store.Lock
	if c.kind == release {
		a.why, l = n.unvote(c.name, &c.holder, c.proposal, 0)
	} else {
		a.why, l = n.vote(&ballot{c.name, c.holder, c.proposal, c.above(), c.lease, c.asked(), c.kind == extend, false, c.anew})
	}
	if a.why != 0 {
		m := n.denial(a.why, l)
		a.token, a.job, a.owner = m.Token, store.ID(m.Job), string(m.Owner)
	}
	if a.why == wire.LockHeld {
		n.suspectLock(l)
	}
	return a
}

// denial is the lock that stands against a claim, or the number that does.
func (n *Node) denial(why uint32, l *store.Lock) (k wire.Lock) {
	switch {
	case l == nil:
		k.Token = n.store.Locks().Floor
	case why == wire.TokenLow:
		k.Token = max(n.store.Locks().Floor, l.Token)
	default:
		k = wire.Lock{Owner: l.Owner(), Job: l.Job, Token: l.Token}
	}
	return k
}

// answer counts an answer, and decides what can be.
func (n *Node) answer(c *Claim, a answer) {
	if !c.answered(a.node) {
		c.answers = append(c.answers, a)
		n.tally(c)
	}
}

func (n *Node) tally(c *Claim) {
	votes, open, need := 0, 0, n.votesNeeded(c)
	for i := range c.answers {
		if c.answers[i].why == 0 {
			votes++
		}
	}
	for _, p := range n.mesh.order {
		if p.Connected && !c.answered(p.Node) {
			open++
		}
	}
	if votes >= need {
		n.won(c)
		return
	}
	// Without hope, too, the others are heard: they know whether it is somebody
	// else's, or nobody's.
	if who, against := c.against(); open == 0 || c.kind == take && who != nil && against >= need {
		n.lostRound(c, need)
	}
}

// against is the holder that most nodes say has the lock, and how many do.
func (c *Claim) against() (who *answer, count int) {
	for i := range c.answers {
		a := &c.answers[i]
		if a.why != wire.LockHeld {
			continue
		}
		same := 0
		for k := range c.answers {
			if b := &c.answers[k]; b.why == wire.LockHeld && b.job == a.job && b.owner == a.owner {
				same++
			}
		}
		if same > count {
			who, count = a, same
		}
	}
	return who, count
}

// votesNeeded is how many votes a claim has to have.
func (n *Node) votesNeeded(c *Claim) int {
	if c.flags&lockAny == 0 {
		return n.majority()
	}
	voters := 1
	for i := range c.answers {
		if c.answers[i].why == wire.Abstains {
			voters--
		}
	}
	for _, p := range n.mesh.order {
		if p.Connected || c.answered(p.Node) {
			voters++
		}
	}
	return max(voters, 0)/2 + 1
}

func (c *Claim) answered(node wire.Node) bool {
	return slices.ContainsFunc(c.answers, func(a answer) bool { return a.node == node })
}

// won ends a claim that has its votes, unless they came too late to be of use.
func (n *Node) won(c *Claim) {
	if c.kind != release && c.lease > 0 && n.steady()-c.began >= cmp.Or(c.usable, c.lease) {
		n.retract(c)
		n.missed(c, Outcome{Kind: NoQuorum}, false)
		return
	}
	n.prove(c)
	n.lately[c.round%uint64(len(n.lately))] = wonClaim{c.round, c}
	if c.kind == release {
		// The others are asked already: their answers to this round will do.
		n.owes(&debt{round: c.round, name: c.name, holder: c.holder, token: c.token, nodes: n.silent(c)})
	}
	n.finishClaim(c, Outcome{Kind: Granted, Token: c.proposal}, true)
}

// prove tells those who have a vote from another's table that it is one.
func (n *Node) prove(c *Claim) {
	if c.kind == release {
		return
	}
	for i := range c.answers {
		if a := &c.answers[i]; a.why != wire.Unproven {
			continue
		} else if a.node == n.self.Node() {
			n.vote(&ballot{c.name, c.holder, c.proposal, 0, c.lease, c.flags, true, true, false})
		} else {
			n.proveTo(c, n.mesh.by[a.node])
		}
	}
}

func (n *Node) proveTo(c *Claim, p *Peer) {
	m := c.message()
	m.Flags, m.Round = wire.Proven, 0
	n.send(p, m)
}

// wonClaim is a claim that was won lately: whose answer comes late may have to be
// told so.
type wonClaim struct {
	round uint64
	claim *Claim
}

// silent are the nodes that haven't answered.
func (n *Node) silent(c *Claim) (list []wire.Node) {
	for _, p := range n.mesh.order {
		if !c.answered(p.Node) {
			list = append(list, p.Node)
		}
	}
	return list
}

// retract takes the votes of an attempt back. One that only renewed what its
// holder had leaves that to him: he counts on it still.
func (n *Node) retract(c *Claim) {
	if c.round == 0 || c.kind != take || !c.fresh {
		return
	}
	n.unvote(c.name, &c.holder, c.proposal, wire.Fresh)
	list := n.silent(c)
	for i := range c.answers {
		// One that abstains may learn of a vote from another's table.
		if a := &c.answers[i]; (a.why == 0 || a.why == wire.Abstains || c.resent) && a.node != n.self.Node() {
			list = append(list, a.node)
		}
	}
	n.owe(c.name, c.holder, c.proposal, wire.Fresh, list)
}

// lostRound judges an attempt that can't have need votes any more.
func (n *Node) lostRound(c *Claim, need int) {
	n.retract(c)
	who, against := c.against()
	refused, freed, greatest := 0, 0, uint64(0)
	for i := range c.answers {
		a := &c.answers[i]
		switch a.why {
		case 0:
			freed++
			continue
		case wire.Abstains, wire.Unproven:
			continue
		case wire.LockHeld:
			if c.kind != take {
				greatest = max(greatest, a.token)
			}
		case wire.TokenLow:
			c.least = max(c.least, a.token+1)
		case wire.TokenStale:
			c.least = max(c.least, a.token)
			greatest = max(greatest, a.token)
		}
		refused++
	}
	switch {
	case c.kind == take && against >= need:
		// There may be no such job any more: then it is tried again.
		doubt := n.doubts(c, who.job)
		if doubt {
			c.doubts++
		}
		n.missed(c, Outcome{Kind: Conflict, Job: who.job, Owner: []byte(who.owner)}, !doubt)
	case c.kind == take:
		n.missed(c, Outcome{Kind: NoQuorum}, false)
	case refused+freed < need || c.kind == extend && refused < need:
		n.missed(c, Outcome{Kind: NoQuorum}, false)
	case greatest > c.token:
		n.missed(c, Outcome{Kind: Stale}, true)
	case c.kind == release && freed > 0 && freed+len(n.silent(c)) >= need:
		n.missed(c, Outcome{Kind: NoQuorum}, false) // it may have been held by the votes of those
	default:
		n.missed(c, Outcome{Kind: NotHeld}, true)
	}
}

// missed ends an attempt. Unless that settles it (definite), there is another,
// after a random time, lest two that are in each other's way stay so.
func (n *Node) missed(c *Claim, o Outcome, definite bool) {
	if c.round != 0 {
		delete(n.byRound, c.round)
		c.round = 0
	}
	c.last = o
	now := n.steady()
	definite = definite || o.Kind == NoQuorum && c.flags&lockAny == 0 && !n.quorate()
	if definite && !c.wait || now >= c.deadline {
		n.finishClaim(c, o, true)
		return
	}
	c.tries++
	limit := int64(8) << min(c.tries, 4)
	if o.Kind == Conflict {
		limit = min(int64(20)<<min(c.tries, 6), claimPollMS)
		if l := n.liveLock(c.name); l != nil && c.wait {
			n.watchLock(l) // its end will call
			limit = claimLookMS
		}
	}
	c.retry = now + 1 + int64(n.random.Uint64()%uint64(limit))
	if c.doubts > 0 && c.gone != o.Job {
		c.retry = now + claimResendMS // unless it is known before
	}
	n.setAlarm(c)
}

// finishClaim ends a claim. Where tell is false nobody hears of it.
func (n *Node) finishClaim(c *Claim, o Outcome, tell bool) {
	if c.round != 0 {
		delete(n.byRound, c.round)
		c.round = 0
	}
	if c.pos >= 0 {
		heap.Remove(&n.alarms, c.pos)
	}
	if c.kind == release && o.Kind == NoQuorum {
		n.owe(c.name, c.holder, c.token, 0, n.allPeers())
	}
	then := c.then
	c.then = nil
	if line := c.line; line != nil {
		first := line.claims[0] == c
		line.claims = slices.DeleteFunc(line.claims, func(o *Claim) bool { return o == c })
		switch {
		case len(line.claims) == 0:
			delete(n.lockLines, line.name)
		case first:
			n.called = append(n.called, line.name)
		}
	}
	if tell {
		then(o)
	}
}

// callLine has the first of a lock's line ask, once the call is over.
func (n *Node) callLine(name []byte) {
	if len(n.lockLines) == 0 {
		return
	}
	if line := n.lockLines[string(name)]; line != nil {
		n.called = append(n.called, line.name)
	}
}

// serveLines has those ask whose turn has come.
func (n *Node) serveLines() {
	for len(n.called) > 0 {
		name := n.called[0]
		n.called = n.called[1:]
		line := n.lockLines[name]
		if line == nil || n.passive || n.loading {
			continue
		}
		c := line.claims[0]
		if c.round != 0 {
			continue
		}
		// What another node gave to somebody at the same moment isn't known yet:
		// who finds it taken keeps his place.
		c.tries = 0
		n.attempt(c)
	}
}

// setAlarm has tickClaims look at a claim when something is to be done.
func (n *Node) setAlarm(c *Claim) {
	at := c.deadline
	if c.round != 0 {
		at = min(at, c.resend)
	} else if c.retry != 0 {
		at = min(at, c.retry)
	}
	c.at = at
	if c.pos < 0 {
		heap.Push(&n.alarms, c)
	} else {
		heap.Fix(&n.alarms, c.pos)
	}
	n.wake = min(n.wake, n.now+max(at-n.steady(), 1))
}

// tickClaims does what is due.
func (n *Node) tickClaims() {
	now := n.steady()
	for len(n.alarms) > 0 && n.alarms[0].at <= now {
		c := n.alarms[0]
		switch {
		case now >= c.deadline:
			o := c.Late()
			if c.round != 0 {
				n.retract(c)
			}
			n.finishClaim(c, o, true)
		case c.round != 0 && now-c.began >= attemptMS<<min(c.tries, 10):
			n.lostRound(c, n.votesNeeded(c))
		case c.round != 0:
			m := c.message()
			for _, node := range n.silent(c) {
				n.send(n.mesh.by[node], m)
			}
			c.resend, c.resent = now+claimResendMS, true
			n.setAlarm(c)
		default:
			n.attempt(c)
		}
	}
	n.payDebts(now)
	n.tickSync(now)
	n.tickSuspects(now)
	if len(n.alarms) > 0 {
		n.wake = min(n.wake, n.now+max(n.alarms[0].at-now, 1))
	}
}

// endClaims ends all claims, as when the node becomes a replica.
func (n *Node) endClaims() {
	for len(n.alarms) > 0 {
		n.finishClaim(n.alarms[0], Outcome{Kind: Aborted}, true)
	}
	n.called = n.called[:0]
	n.debts = nil
	clear(n.owed)
}
