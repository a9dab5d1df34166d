package lock

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"strings"

	"jobmesh/module/store"
	"jobmesh/module/table"
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
// clock; the claimant counts from before it asked. A node that knows no other is
// a mesh of one: its own vote decides at once.
//
// A claim that can't succeed any more takes its votes back everywhere, and is
// tried again with another token until its deadline. A node that can't be told to
// take its vote back now is told again, until it has confirmed that it has done so.

// Times of claims, ms.
const (
	// TimeoutMS is how long a claim that doesn't wait for its lock tries.
	TimeoutMS = 1_000

	attemptMS   = 300   // until who still misses a vote, and was refused one, begins again, doubling: two may each wait for the other
	silenceMS   = 1_000 // likewise, where nobody has refused: the voters may be slow to write their votes, and would have to write another
	ResendMS    = 100   // until a vote that was asked for is asked for again, doubling where the client waits
	claimPollMS = 500   // until one who waits for a lock looks again, where its end may not be heard of here
	claimLookMS = 5_000 // and where it should

	Slice      = 200 // claims handled in one tick: each may ask all nodes
	unlockMost = 500 // messages to nodes that are told again to take a vote back, likewise

	// DefaultMaxLease is the longest lease of a bare lock.
	DefaultMaxLease = 3_600_000
)

// Holder is who has a lock or wants it: a job, or where that is zero an owner.
type Holder struct {
	Job   store.ID
	Owner []byte
}

func (h *Holder) has(l *store.Lock) bool {
	return l.Job == h.Job && string(l.Owner()) == string(h.Owner)
}

// ResultKind says how a claim ended.
type ResultKind uint8

// The ends of claims.
const (
	// Granted: the lock is had, extended or released.
	Granted ResultKind = iota
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

// Result is the end of a claim.
type Result struct {
	Kind  ResultKind
	Token uint64   // Granted
	Kept  bool     // Granted: its holder had the lock before, by this token
	Began int64    // steady, when the votes were asked for. Granted: the lease counts from then
	Job   store.ID // Conflict: the holder, where it is a job; NoQuorum: one that has some votes
	Owner []byte   // Conflict: where it is none
	Most  bool     // Conflict: more than half of all nodes say so, also where fewer are asked (QUORUM any)
	Why   string   // NoQuorum: what is known of it
}

// Err is the refusal that an outcome stands for, nil for Granted and Conflict.
func (o *Result) Err() error {
	switch o.Kind {
	case NoQuorum:
		return o.Because(ErrNoQuorum)
	case NotHeld:
		return ErrNotHeld
	case Stale:
		return ErrStaleToken
	case Aborted:
		return ErrReplica
	}
	return nil
}

// IsSplit says of a claim that failed whether others have got votes, too.
func (o *Result) IsSplit() bool { return o.Kind == NoQuorum && o.Job != store.ID{} }

// Because is a refusal for want of a quorum, with what is known of why.
func (o *Result) Because(r Refusal) Refusal {
	if o.Why == "" {
		return r
	}
	what, _, _ := strings.Cut(string(r), "; ")
	return Refusal(what + ": " + o.Why + ". Try again, or see JOBMESH CLUSTER INFO and NODES")
}

type acquisitionKind uint8

const (
	take acquisitionKind = iota
	extend
	release
)

// Acquisition is a claim under way.
type Acquisition struct {
	kind acquisitionKind
	name []byte
	Holder
	lease    int64
	usable   int64    // of the lease, that asking may take; 0: all
	anew     bool     // for a run of its own: not one that the same job has already
	putOff   bool     // for a job that was put off: it counts on no vote that it may have
	retries  uint8    // attempts after which the job that has the lock could be gone
	gone     store.ID // which is
	token    uint64   // extend, release
	flags    uint8
	wait     bool
	deadline int64 // steady
	then     func(Result)

	round    uint64 // of the attempt under way; 0: none
	freeing  uint64 // release: the round of all attempts, as what an earlier one has freed counts
	began    int64  // steady
	members  uint64 // a sum over the nodes that it counts
	forgets  uint64 // claims.forgets when it asked
	clears   uint64 // claims.cleared when it asked
	resets   uint32 // members.resets when it began
	ups      uint64 // members.ups when it asked last
	proposal uint64
	fresh    bool   // the proposal is a number that was never used
	first    uint64 // the first such number of this claim
	least    uint64 // what it must be at least, as we have heard
	answers  []answer
	resend   int64 // steady
	resent   bool  // some were asked twice: who has refused may have agreed since
	retry    int64 // steady, when the next attempt is due; 0: none is
	tries    int
	last     Result // of the last attempt
	line     *lockLine

	at  int64 // steady: when something is to be done
	pos int   // in Node.alarms; -1: not there

	inOpen table.Link[Acquisition] // among those with an attempt under way
	inLine table.Link[Acquisition] // among those who wait for a lock
	ofJob  table.Link[Acquisition] // among the claims for a job that have an alarm
	ofName table.Link[Acquisition] // among those for a job's lock
	asking table.Link[Acquisition] // among those for a lock with an attempt under way
}

// lockLine is those who wait for a lock at this node, first come first served.
// Only the first one asks.
type lockLine struct {
	name   string
	claims table.Chain[Acquisition]
	called bool // it is in Node.called
}

func inOpen(c *Acquisition) *table.Link[Acquisition] { return &c.inOpen }
func inLine(c *Acquisition) *table.Link[Acquisition] { return &c.inLine }
func ofJob(c *Acquisition) *table.Link[Acquisition]  { return &c.ofJob }
func ofName(c *Acquisition) *table.Link[Acquisition] { return &c.ofName }
func asking(c *Acquisition) *table.Link[Acquisition] { return &c.asking }

// acquisitionIndex finds lists of claims by a key. A list that is empty isn't in it.
type acquisitionIndex[K comparable] map[K]*table.Chain[Acquisition]

func (x acquisitionIndex[K]) add(key K, c *Acquisition, links func(*Acquisition) *table.Link[Acquisition]) {
	l := x[key]
	if l == nil {
		l = &table.Chain[Acquisition]{}
		x[key] = l
	}
	l.Add(c, links)
}

func (x acquisitionIndex[K]) remove(key K, c *Acquisition, links func(*Acquisition) *table.Link[Acquisition]) {
	l := x[key]
	if l.Remove(c, links); l.Len == 0 {
		delete(x, key)
	}
}

func (c *Acquisition) Sooner(than *Acquisition) bool { return c.at < than.at }
func (c *Acquisition) Position() *int                { return &c.pos }

// SetMaxLease sets the longest lease that a bare lock can have, ms.
func (n *Node) SetMaxLease(ms int64) { n.maxLease = ms }

// MaxLease is the longest lease that a bare lock can have, ms.
func (n *Node) MaxLease() int64 { return n.maxLease }

// Acquisitions counts the claims under way, and the votes that are owed back.
func (n *Node) Acquisitions() int { return len(n.alarms) + len(n.unlocksByRound) }

// Quorate says whether the connections there are would do for a majority, for a lock of
// this name.
func (n *Node) Quorate(name []byte) bool {
	votes := 0
	if !n.abstainsFrom(name) {
		votes = 1
	}
	for _, p := range n.mesh.All() {
		if p.Connected {
			votes++
		}
	}
	return votes >= n.mesh.Majority()
}

// Acquire claims a bare lock for an owner, by its full name, for lease ms. It
// waits up to wait ms (0: not at all) for another to let go of it. Where pending
// is nil the outcome is decided, else it comes as a LockDone effect for client.
func (n *Node) Acquire(name, owner []byte, lease, wait int64, client any) (o Result, pending *Acquisition) {
	return n.acquireBare(&Acquisition{kind: take, name: name, Holder: Holder{Owner: owner}, lease: lease, wait: wait > 0}, wait, client)
}

// Extend begins a bare lock's lease anew, of lease ms, where owner holds it by token.
// Its answer comes as that of Acquire does.
func (n *Node) Extend(name, owner []byte, token uint64, lease int64, client any) (o Result, pending *Acquisition) {
	return n.acquireBare(&Acquisition{kind: extend, name: name, Holder: Holder{Owner: owner}, token: token, lease: lease}, 0, client)
}

// Release frees a bare lock, where owner holds it by token. Its answer comes
// as that of Acquire does.
func (n *Node) Release(name, owner []byte, token uint64, client any) (o Result, pending *Acquisition) {
	return n.acquireBare(&Acquisition{kind: release, name: name, Holder: Holder{Owner: owner}, token: token}, 0, client)
}

func (n *Node) acquireBare(c *Acquisition, wait int64, client any) (o Result, pending *Acquisition) {
	if n.host.Passive() {
		return Result{Kind: Aborted}, nil
	}
	c.name, c.Owner = slices.Clone(c.name), slices.Clone(c.Owner)
	if wait <= 0 {
		wait = TimeoutMS
	}
	c.deadline = n.host.Monotonic() + min(wait, math.MaxInt64/4)
	now := n.acquire(c, func(end Result) {
		n.host.Done(client, &end)
	})
	if now != nil {
		return *now, nil
	}
	return o, c
}

// acquire begins a claim. It returns the outcome if that is known at once. Otherwise it
// returns nil, and calls later with the outcome, unless the claim is abandoned.
func (n *Node) acquire(c *Acquisition, later func(Result)) (now *Result) {
	c.then = func(o Result) { now = &o }
	if n.startAcquisition(c); now == nil {
		c.then = later
	}
	return now
}

// ForJob is a lock that is claimed for a job.
type ForJob struct {
	Name     []byte
	Job      store.ID
	Lease    int64 // ms; 0: until Free
	Usable   int64 // not 0: it is for a run, and asking may take no more than this of the lease, ms
	Outlives bool  // it is to be FlagOutlives
	PutOff   bool  // the job was put off: it is claimed by a new token, whatever votes it may have
	Any      bool  // a majority of those nodes that can be reached is enough (QUORUM any)
	Timeout  int64 // ms, how long to try; 0: TimeoutMS
}

// AcquireFor claims a lock for a job, as Take does, with the other nodes' consent.
// For a run, one that the same job has elsewhere stands against it. The outcome is now,
// or where that is nil, later is called with it: Granted, Conflict with the holder's ID,
// NoQuorum or Aborted. A claim that ends otherwise than Granted leaves nothing. In a mesh
// of one it is decided at once; who must not allocate there calls Take where
// [Node.alone] says so.
//
// While a claim is under way its job need not be known yet; once the outcome is it must
// be, or be freed, lest others find that the lock has no job.
func (n *Node) AcquireFor(w ForJob, later func(Result)) (now *Result, pending *Acquisition) {
	if n.host.Passive() {
		return &Result{Kind: Aborted}, nil
	}
	flags := uint8(0)
	if w.Outlives {
		flags = FlagOutlives
	}
	if n.mesh.Alone() && !n.abstains() {
		token, l := n.Take(w.Name, &w.Job, w.Lease)
		if l != nil {
			return &Result{Kind: Conflict, Job: l.Job}, nil
		}
		l = n.store.Lock(w.Name)
		n.SetFlags(l, l.Flags|flags)
		return &Result{Kind: Granted, Token: token}, nil
	}
	if w.Any {
		flags |= FlagAny
	}
	c := &Acquisition{
		kind: take, name: slices.Clone(w.Name), Holder: Holder{Job: w.Job}, lease: w.Lease, usable: w.Usable, anew: w.Usable > 0, putOff: w.PutOff,
		flags: flags, deadline: n.host.Monotonic() + cmp.Or(w.Timeout, TimeoutMS),
	}
	if now = n.acquire(c, later); now != nil {
		return now, nil
	}
	return nil, c
}

// Unhear takes a bare lock back that was granted to a client who has gone before
// it could be told. Another client with the same owner may have been granted the lock
// too, at any node and by the same token: then the lock is that client's. So Unhear
// takes nothing back for a grant that only renewed the lock, and it leaves the votes that
// were renewed since.
func (n *Node) Unhear(name, owner []byte, o *Result) {
	if o.Kind != Granted || o.Kept || n.host.Passive() {
		return
	}
	n.RollBack(name, Holder{Owner: owner}, o.Token, n.mesh.Nodes())
}

// RollBack takes the votes for a token back, here and at other nodes, but those that
// its holder has had renewed.
func (n *Node) RollBack(name []byte, h Holder, token uint64, nodes []wire.Node) {
	n.Unvote(name, &h, token, wire.Fresh)
	n.EnqueueUnlock(name, h, token, wire.Fresh, nodes)
}

// Abandon ends a claim whose client has gone: nothing stays claimed.
func (n *Node) Abandon(c *Acquisition) {
	if c == nil || c.then == nil {
		return
	}
	if !n.host.Passive() { // the table is the master's
		n.dropGone(c)
		n.Retract(c)
	}
	n.finishAcquisition(c, Result{Kind: NoQuorum}, false)
}

// Late is the outcome of a claim whose time is over now.
func (c *Acquisition) Late() Result {
	if o := c.last; c.round == 0 || o.Kind == Conflict || o.IsSplit() {
		return o
	}
	return Result{Kind: NoQuorum}
}

func (n *Node) startAcquisition(c *Acquisition) {
	n.jobs.BeforeAsking()
	c.pos, c.resets = -1, n.mesh.Resets()
	c.last.Kind = NoQuorum
	if c.wait {
		line := n.lockLines[string(c.name)]
		if line == nil {
			line = &lockLine{name: string(c.name)}
			n.lockLines[line.name] = line
		}
		c.line = line
		line.claims.Add(c, inLine)
		// A claim of the present holder is a renewal, and doesn't wait for its turn.
		if l := n.Live(c.name); line.claims.Len > 1 && !(l != nil && c.has(l)) {
			c.last.Kind = Conflict
			n.setAlarm(c)
			return
		}
	} else if n.lineFirst(c) {
		n.finishAcquisition(c, Result{Kind: Conflict}, true)
		return
	}
	n.newRound(c)
}

// lineFirst says whether a claim that doesn't wait must leave a lock to those who
// do: it is free, and about to be given to the first of them.
func (n *Node) lineFirst(c *Acquisition) bool {
	return c.kind == take && n.mesh.Alone() && len(n.lockLines) > 0 && n.lockLines[string(c.name)] != nil && n.Live(c.name) == nil
}

// finishAcquisition ends a claim. Where tell is false nobody hears of it.
func (n *Node) finishAcquisition(c *Acquisition, o Result, tell bool) {
	delete(n.byRound, cmp.Or(c.round, c.freeing))
	n.setRound(c, 0)
	if c.pos >= 0 {
		heap.Remove(&n.alarms, c.pos)
		if c.Job != (store.ID{}) {
			n.byJob.remove(c.Job, c, ofJob)
			n.byName.remove(string(c.name), c, ofName)
		}
	}
	if c.kind == release && o.Kind == NoQuorum {
		flags := uint8(0)
		if slices.ContainsFunc(c.answers, func(a answer) bool { return a.why == 0 }) {
			flags = wire.Committed
			n.Unvote(c.name, &c.Holder, c.token, flags)
		}
		n.EnqueueUnlock(c.name, c.Holder, c.token, flags, n.mesh.Nodes())
	}
	then := c.then
	c.then = nil
	if line := c.line; line != nil {
		first := line.claims.Head == c
		line.claims.Remove(c, inLine)
		switch {
		case line.claims.Len == 0:
			delete(n.lockLines, line.name)
		case first:
			n.call(line)
		}
	}
	if tell {
		if o.Kind == NoQuorum {
			o.Why = n.whyNoQuorum(c)
		}
		then(o)
	}
}

// whyNoQuorum tells what of the last attempt may have been the reason: which nodes don't
// vote, and until when, can't be reached, or haven't answered.
func (n *Node) whyNoQuorum(c *Acquisition) string {
	var parts, abstain, apart, silent, more []string
	asked := c.proposal != 0
	for i := range c.answers {
		switch a := &c.answers[i]; {
		case a.node == n.self.Node():
		case a.why == wire.Abstains && a.left > 0:
			abstain = append(abstain, shortName(a.node)+forUpTo(a.left))
		case a.why == wire.Abstains:
			abstain = append(abstain, shortName(a.node)+" until it has heard from others")
		case a.why == wire.Uncounted:
			more = append(more, shortName(a.node))
		}
	}
	switch a := n.Abstaining(); {
	case !n.abstainsFrom(c.name):
		if asked && !c.answered(n.self.Node()) {
			parts = append(parts, "this node has yet to write down for how long it votes")
		}
	case a.LeftFor(c.name) > 0:
		abstain = append(abstain, "this one"+forUpTo(a.LeftFor(c.name)))
	default:
		text := "this one until it has heard from"
		for _, node := range a.Awaited {
			text += " " + shortName(node)
		}
		abstain = append(abstain, text)
	}
	for _, p := range n.mesh.All() {
		switch {
		case !p.Connected:
			apart = append(apart, shortName(p.Node))
		case asked && !c.answered(p.Node):
			silent = append(silent, shortName(p.Node))
		}
	}
	tell := func(nodes []string, format string) {
		const most = 8
		count, all := len(nodes), len(n.mesh.All())+1
		if count > most {
			nodes = append(nodes[:most:most], fmt.Sprintf("%d more", count-most))
		}
		if count > 0 {
			parts = append(parts, fmt.Sprintf(format, count, all)+": "+strings.Join(nodes, ", "))
		}
	}
	tell(abstain, "%d of %d nodes don't vote yet, as they may have lost votes that they gave, or are new")
	tell(apart, "%d of %d can't be reached")
	tell(silent, "%d of %d haven't answered")
	tell(more, "%d of %d know nodes that this one has forgotten (FORGET them there too)")
	return strings.Join(parts, "; ")
}

// shortName is how a node's ID begins.
func shortName(node wire.Node) string { return fmt.Sprintf("%016x", uint64(node))[:8] }

func forUpTo(ms int64) string { return fmt.Sprintf(" for up to %d s", (ms+999)/1000) }

// callLine has the first of a lock's line ask, once the call is over.
func (n *Node) callLine(name []byte) {
	if len(n.lockLines) == 0 {
		return
	}
	if line := n.lockLines[string(name)]; line != nil {
		n.call(line)
	}
}

func (n *Node) call(line *lockLine) {
	if !line.called {
		line.called = true
		n.called = append(n.called, line.name)
	}
}

// ServeLines has those ask whose turn has come.
func (n *Node) ServeLines() {
	from := n.host.Mark()
	for budget := Slice; len(n.called) > 0 && !n.host.Loading(); budget, from = budget-n.acquisitionCost(from), n.host.Mark() {
		if budget <= 0 {
			n.host.Hurry()
			return
		}
		name := n.called[0]
		n.called = n.called[1:]
		line := n.lockLines[name]
		if line == nil || n.host.Passive() {
			continue
		}
		line.called = false
		c := line.claims.Head
		if c.round != 0 {
			continue
		}
		// Another node may have given the lock to somebody at the same moment, and this
		// node doesn't know it yet. A claim that finds the lock taken keeps its place in line.
		c.tries = 0
		n.newRound(c)
	}
}

// setAlarm has TickAcquisitions look at a claim when something is to be done.
func (n *Node) setAlarm(c *Acquisition) {
	at := c.deadline
	if c.round != 0 {
		at = min(at, c.resend)
	} else if c.retry != 0 {
		at = min(at, c.retry)
	}
	c.at = at
	if c.pos < 0 {
		heap.Push(&n.alarms, c)
		if c.Job != (store.ID{}) {
			n.byJob.add(c.Job, c, ofJob)
			n.byName.add(string(c.name), c, ofName)
		}
	} else {
		heap.Fix(&n.alarms, c.pos)
	}
	n.host.WakeIn(max(at-n.host.Monotonic(), 1))
}

// acquisitionCost is what a claim takes of Slice: the more where its client was answered.
func (n *Node) acquisitionCost(from int) int { return 1 + n.host.Cost(from, Slice) }

// TickAcquisitions does what is due.
func (n *Node) TickAcquisitions() {
	n.countSome()
	n.applyVerdicts()
	now := n.host.Monotonic()
	from := n.host.Mark()
	for budget := Slice; len(n.alarms) > 0 && n.alarms[0].at <= now && budget > 0; budget, from = budget-n.acquisitionCost(from), n.host.Mark() {
		c := n.alarms[0]
		switch {
		case !n.current(c):
		case now >= c.deadline:
			o := c.Late()
			if c.round != 0 {
				n.Retract(c)
			}
			n.finishAcquisition(c, o, true)
		case c.round != 0 && now-c.began >= c.patience():
			n.lostRound(c, n.votesNeeded(c))
		case c.round != 0:
			if n.tally(c); c.round == 0 || c.then == nil {
				continue
			}
			m := c.message()
			n.mesh.SendTo(n.silent(c), m)
			again := int64(ResendMS)
			if c.wait { // there may be very many
				again = max(again, min(now-c.began, c.began+c.patience()-now))
			}
			c.resend, c.resent, c.ups = now+again, true, n.mesh.Ups()
			n.setAlarm(c)
		case n.refuted(c):
		default:
			n.newRound(c)
		}
	}
	n.tickUnlocks(now)
	n.tickSync(now)
	n.tickVotes(now)
	n.tickOrphanChecks(now)
	if len(n.alarms) > 0 {
		n.host.WakeIn(max(n.alarms[0].at-now, 1))
	}
}

// patience is how long an attempt waits for votes, ms.
func (c *Acquisition) patience() int64 {
	ms := int64(silenceMS)
	if slices.ContainsFunc(c.answers, func(a answer) bool { return a.why != 0 }) {
		ms = attemptMS
	}
	return ms << min(c.tries, 10)
}
