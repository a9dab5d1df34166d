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

// How a node acquires a lock in a mesh.
//
// An acquisition asks every node for its vote, this one first. It wins the lock with the votes of more than half of all
// known nodes, failed ones counted. So two acquisitions can't both win while the votes last. A node votes for one
// holder at a time, and never for a new holder by a token that isn't greater than those of its votes for this lock before: so the tokens
// of one lock only grow. A vote lasts for the lease that was asked for and a little more. The voter counts from when the
// Claim arrived, by its monotonic clock; the proposer counts from before it asked. A node that knows no other is a mesh
// of one: its own vote decides at once.
//
// A round that can't succeed any more takes its votes back everywhere. Another one follows with another token, until
// the deadline. A node that can't be told now to take its vote back is told again until it confirms.

// Times of acquisitions, ms.
const (
	// TimeoutMS is how long an acquisition that doesn't wait for its lock goes on.
	TimeoutMS = 1_000

	attemptMS   = 300   // how long a round waits for votes if a node has refused; doubles each round, as two acquisitions may wait for each other
	silenceMS   = 1_000 // the same if no node has refused: the voters may be slow to write their votes, and would have to write another
	ResendMS    = 100   // until nodes that haven't answered are asked again; doubles if the client waits
	claimPollMS = 500   // longest pause until one that waits for a lock asks again, if this node may not hear of the lock's end
	claimLookMS = 5_000 // the same, if this node hears of it

	Slice      = 200 // acquisitions handled in one tick: each may ask all nodes
	unlockMost = 500 // Unlock messages sent again in one tick

	// DefaultMaxLease is the longest lease of a bare lock, ms.
	DefaultMaxLease = 3_600_000
)

// Holder has a lock, or wants it: a job, or if Job is zero an owner.
type Holder struct {
	Job   store.ID
	Owner []byte
}

func (h *Holder) has(l *store.Lock) bool {
	return l.Job == h.Job && string(l.Owner()) == string(h.Owner)
}

// ResultKind says how an acquisition ended.
type ResultKind uint8

// The outcomes of acquisitions.
const (
	// Granted: the holder has the lock, or has extended or released it.
	Granted ResultKind = iota
	// Conflict: another holder has it.
	Conflict
	// NoQuorum: too few nodes answered in time. No lock is taken.
	NoQuorum
	// NotHeld: the lock that was to be extended or released isn't held.
	NotHeld
	// Stale: the holder has it by a greater token.
	Stale
	// Aborted: the node became a replica.
	Aborted
)

// Result is the outcome of an acquisition.
type Result struct {
	Kind  ResultKind
	Token uint64   // Granted
	Kept  bool     // Granted: its holder had the lock before, by this token
	Began int64    // monotonic: when the votes were asked for. Granted: the lease counts from then
	Job   store.ID // Conflict: the holder, if it is a job; NoQuorum: a job that has some votes
	Owner []byte   // Conflict: the holder, if it is no job
	Slot  int      // Granted: which slot of the lock the holder has
	Most  bool     // Conflict: more than half of all nodes say so, even if fewer would do (QUORUM any)
	Why   string   // NoQuorum: the reason, as far as it is known
}

// Err is the error for the outcome; nil for Granted and Conflict.
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

// IsSplit says whether the acquisition failed while another job has some votes, too.
func (o *Result) IsSplit() bool { return o.Kind == NoQuorum && o.Job != store.ID{} }

// Because is the refusal, with the reason for the missing quorum if it is known.
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

// Acquisition is an acquisition, extension or release of a lock that is under way.
type Acquisition struct {
	kind acquisitionKind
	name []byte
	Holder
	lease    int64
	usable   int64    // how much of the lease asking may take, ms; 0: all of it
	anew     bool     // for a new run: a lock that the same job has already stands against it
	sure     bool     // its conflict counts only if a majority says so of each slot: all slots are asked for
	putOff   bool     // for a job that was put off: it counts on no vote that it may have
	retries  uint8    // rounds that found a holder whose job may be gone
	gone     store.ID // that job, once it is known to be gone
	token    uint64   // extend, release
	flags    uint8
	wait     bool
	deadline int64 // monotonic
	then     func(Result)

	round    uint64 // of the round under way; 0: none
	freeing  uint64 // release: the number of all its rounds, since a node that freed the lock in an earlier one counts
	began    int64  // monotonic: when the round began
	members  uint64 // Mesh.Sum when it asked
	forgets  uint64 // Node.forgets when it asked
	clears   uint64 // Node.cleared when it asked
	resets   uint32 // Mesh.Resets when it began
	ups      uint64 // Mesh.Ups when it last asked
	proposal uint64
	fresh    bool   // the proposal is a token that was never used before
	first    uint64 // the first such token of this acquisition
	least    uint64 // the next proposal must be at least this, by other nodes' answers
	answers  []answer
	resend   int64 // monotonic
	resent   bool  // some nodes were asked twice: one that refused first may have voted since
	retry    int64 // monotonic: when the next round is due; 0: none is
	tries    int
	last     Result // of the last round
	line     *lockLine
	slots    *slotSearch // nil: the lock itself is asked for, not any slot of it

	at  int64 // monotonic: when its next step is due
	pos int   // in Node.alarms; -1: not there

	inOpen table.Link[Acquisition] // among those with a round under way
	inLine table.Link[Acquisition] // among those that wait for the lock
	ofJob  table.Link[Acquisition] // among the acquisitions for a job that have an alarm
	ofName table.Link[Acquisition] // among the acquisitions of a job's lock that have an alarm
	asking table.Link[Acquisition] // among those of the lock with a round under way
}

// lockLine is the acquisitions that wait for a lock at this node, first come first served. Only the first one asks.
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

// acquisitionIndex finds lists of acquisitions by a key. It has no empty lists.
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

// Acquisitions counts the acquisitions under way, and the pending unlocks.
func (n *Node) Acquisitions() int { return len(n.alarms) + len(n.unlocksByRound) }

// Quorate says whether this node and those that are connected are enough for a majority, for a lock of this name. A
// node that abstains from such locks doesn't count itself.
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

// Acquire asks for a bare lock for an owner, by its full name, for lease ms. It waits up to wait ms (0: not at all)
// until another holder gives it up. If pending is nil, o is the outcome; else the outcome comes as a LockDone effect
// for client.
func (n *Node) Acquire(name, owner []byte, lease, wait int64, client any) (o Result, pending *Acquisition) {
	return n.AcquireSlot(name, owner, lease, wait, 1, client)
}

// AcquireSlot is Acquire for any of so many slots of a lock, 1 to [store.MaxSlots]. An owner that has a slot, as far as this node knows, renews that
// one.
func (n *Node) AcquireSlot(name, owner []byte, lease, wait int64, slots int, client any) (o Result, pending *Acquisition) {
	return n.acquireBare(&Acquisition{kind: take, name: name, Holder: Holder{Owner: owner}, lease: lease, wait: wait > 0}, slots, wait, client)
}

// Extend begins the lease of a bare lock anew, for lease ms, if owner has the lock by token. The outcome comes as
// Acquire's does.
func (n *Node) Extend(name, owner []byte, token uint64, lease int64, client any) (o Result, pending *Acquisition) {
	return n.acquireBare(&Acquisition{kind: extend, name: name, Holder: Holder{Owner: owner}, token: token, lease: lease}, 1, 0, client)
}

// Release frees a bare lock, if owner has it by token. The outcome comes as Acquire's does.
func (n *Node) Release(name, owner []byte, token uint64, client any) (o Result, pending *Acquisition) {
	return n.acquireBare(&Acquisition{kind: release, name: name, Holder: Holder{Owner: owner}, token: token}, 1, 0, client)
}

func (n *Node) acquireBare(c *Acquisition, slots int, wait int64, client any) (o Result, pending *Acquisition) {
	if n.host.Passive() {
		return Result{Kind: Aborted}, nil
	}
	c.name, c.Owner = slices.Clone(c.name), slices.Clone(c.Owner)
	c.limitTo(slots, n.FirstSlot())
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

// acquire begins an acquisition. It returns the outcome if that is known at once. Otherwise it returns nil, and calls
// later with the outcome, unless the acquisition is abandoned.
func (n *Node) acquire(c *Acquisition, later func(Result)) (now *Result) {
	c.then = func(o Result) { now = &o }
	if n.startAcquisition(c); now == nil {
		c.then = later
	}
	return now
}

// ForJob says which lock to acquire for a job, and how.
type ForJob struct {
	Name     []byte
	Slots    int // any of so many slots is as good; 0: the lock of this name alone
	First    int // the slot to begin with
	Job      store.ID
	Lease    int64 // ms; 0: until Free
	Usable   int64 // not 0: it is for a run, and asking may take no more than this of the lease, ms
	Sure     bool  // a conflict is of use only with Result.Most: all slots are asked for
	Outlives bool  // the lock gets FlagOutlives
	PutOff   bool  // the job was put off: a new token is proposed, whatever votes the job may have
	Any      bool  // a majority of the nodes that can be reached is enough (QUORUM any)
	Timeout  int64 // how long to try, ms; 0: TimeoutMS
}

// AcquireFor acquires a lock for a job as [Node.Take] does, but asks the other nodes. For a run, a lock that the same
// job has elsewhere stands against it. now is the outcome: Granted, Conflict with the holder's ID, NoQuorum or Aborted.
// If now is nil, later is called with the outcome. An acquisition that ends otherwise than Granted leaves no lock. In a
// mesh of one it is decided at once; a caller there that must not allocate calls Take instead.
//
// The job need not be known while the acquisition is under way. Once the outcome is known the job must be known, or its
// lock be freed. Otherwise others find that the lock has no job.
func (n *Node) AcquireFor(w ForJob, later func(Result)) (now *Result, pending *Acquisition) {
	if n.host.Passive() {
		return &Result{Kind: Aborted}, nil
	}
	w.Lease = min(w.Lease, store.MaxLease) // a job may live longer, and what asking takes is added
	flags := uint8(0)
	if w.Outlives {
		flags = FlagOutlives
	}
	if n.mesh.Alone() && !n.abstains() {
		name := n.FreeSlot(&w)
		token, l := n.Take(name, &w.Job, w.Lease)
		if l != nil {
			return &Result{Kind: Conflict, Job: l.Job}, nil
		}
		l = n.store.Lock(name)
		if n.SetFlags(l, l.Flags|flags); w.Outlives { // no job tells of it
			l.Era = n.store.Locks().Epoch
			n.Log(l)
		}
		o := &Result{Kind: Granted, Token: token}
		if w.Slots > 1 {
			o.Slot, _ = store.SlotName(name)
		}
		return o, nil
	}
	if w.Any {
		flags |= FlagAny
	}
	c := &Acquisition{
		kind: take, name: slices.Clone(w.Name), Holder: Holder{Job: w.Job}, lease: w.Lease, usable: w.Usable, anew: w.Usable > 0, sure: w.Sure, putOff: w.PutOff,
		flags: flags, deadline: n.host.Monotonic() + cmp.Or(w.Timeout, TimeoutMS),
	}
	c.limitTo(w.Slots, w.First)
	if now = n.acquire(c, later); now != nil {
		return now, nil
	}
	return nil, c
}

// Unhear takes back a bare lock that was granted to a client who has gone before it could be told. Another client with
// the same owner may have been granted the lock, too, at any node and by the same token: then the lock is that
// client's. So Unhear takes nothing back for a grant that only renewed the lock, and leaves the votes that were renewed
// since.
func (n *Node) Unhear(name, owner []byte, o *Result) {
	if o.Kind != Granted || o.Kept || n.host.Passive() {
		return
	}
	n.RollBack(name, Holder{Owner: owner}, o.Token, n.mesh.Nodes())
}

// RollBack takes back the votes for a token, here and at other nodes, except votes that were renewed since.
func (n *Node) RollBack(name []byte, h Holder, token uint64, nodes []wire.Node) {
	n.Unvote(name, &h, token, wire.Fresh)
	n.EnqueueUnlock(name, h, token, wire.Fresh, nodes)
}

// Abandon ends an acquisition whose client has gone. It leaves no lock.
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

// Late is the outcome of an acquisition whose deadline has passed.
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
		line := n.lockLines[string(c.lineName())]
		if line == nil {
			line = &lockLine{name: string(c.lineName())}
			n.lockLines[line.name] = line
		}
		c.line = line
		line.claims.Add(c, inLine)
		// An acquisition by the present holder is a renewal, and doesn't wait for its turn.
		if line.claims.Len > 1 && !n.hasAlready(c) {
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

// lineFirst says whether an acquisition that doesn't wait must leave the lock to those that do: the lock is free, and
// the first of them is about to get it.
func (n *Node) lineFirst(c *Acquisition) bool {
	if c.slots != nil {
		line := n.lockLines[string(c.slots.base)]
		return n.mesh.Alone() && line != nil && line.called && !n.hasAlready(c)
	}
	return c.kind == take && n.mesh.Alone() && len(n.lockLines) > 0 && n.lockLines[string(c.name)] != nil && n.Live(c.name) == nil
}

// finishAcquisition ends an acquisition. If tell is false, nobody is told the outcome.
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
	if c.slots != nil {
		o.Slot = c.slots.slot
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

// whyNoQuorum names the possible reasons why the last round failed: nodes that don't vote, and until when, nodes that
// can't be reached, and nodes that haven't answered.
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
		if a.Awaited == nil {
			text = "this one until fewer nodes are new to the mesh"
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

// shortName is the beginning of a node's ID.
func shortName(node wire.Node) string { return fmt.Sprintf("%016x", uint64(node))[:8] }

func forUpTo(ms int64) string { return fmt.Sprintf(" for up to %d s", (ms+999)/1000) }

// callLine lets the first in a lock's line ask, once the current call has ended.
func (n *Node) callLine(name []byte) {
	if len(n.lockLines) == 0 {
		return
	}
	_, base := store.SlotName(name)
	if line := n.lockLines[string(base)]; line != nil {
		n.call(line)
	}
}

func (n *Node) call(line *lockLine) {
	if !line.called {
		line.called = true
		n.called = append(n.called, line.name)
	}
}

// calmLine is for a vote that ends because its acquisition has failed, not because its holder gave the lock up. The first in
// the lock's line was refused before and asks again after its pause, not at once: otherwise two such acquisitions would end
// each other's votes, and ask all nodes, as fast as messages travel. The caller ends the vote before it calls what calmLine returns.
func (n *Node) calmLine(name []byte) (ended func()) {
	_, base := store.SlotName(name)
	line := n.lockLines[string(base)]
	if line == nil || line.called {
		return func() {}
	}
	c := line.claims.Head
	if c.round != 0 || c.tries == 0 {
		return func() {}
	}
	line.called = true
	return func() {
		line.called = false
		if at := n.host.Monotonic() + 1 + n.pause(c); c.retry == 0 || at < c.retry {
			c.retry = at
			n.setAlarm(c)
		}
	}
}

// ServeLines lets those ask whose turn has come.
func (n *Node) ServeLines() {
	from := n.host.Mark()
	for budget := Slice; len(n.called) > 0 && !n.host.Loading(); budget, from = budget-n.acquisitionCost(from), n.host.Mark() {
		if budget <= 0 {
			n.host.WakeIn(1)
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
		// Another node may have given the lock to somebody at the same moment, and this node doesn't know it yet. An
		// acquisition that finds the lock taken keeps its place in line.
		c.tries = 0
		n.newRound(c)
	}
}

// setAlarm makes TickAcquisitions look at an acquisition when its next step is due.
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

// acquisitionCost is how much of Slice an acquisition takes: more if its client was answered.
func (n *Node) acquisitionCost(from int) int { return 1 + n.host.Cost(from, Slice) }

// TickAcquisitions takes the steps of acquisitions, unlocks, learning, promises and orphan checks that are due.
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
			if c.wait { // very many may wait
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

// patience is how long a round waits for votes, ms.
func (c *Acquisition) patience() int64 {
	ms := int64(silenceMS)
	if slices.ContainsFunc(c.answers, func(a answer) bool { return a.why != 0 }) {
		ms = attemptMS
	}
	return ms << min(c.tries, 10)
}
