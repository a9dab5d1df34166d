package lock

import (
	"cmp"
	"slices"

	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// One attempt of a claim: all nodes are asked, their answers counted, and it is won,
// or lost and its votes taken back.

// answer is what became of a claim at one node. why is 0 for a vote.
type answer struct {
	node  wire.Node
	why   uint32
	token uint64
	job   store.ID
	owner string
	left  int64 // wire.Abstains: for how long at most, ms, if that is known
}

// answer counts an answer, and decides what can be.
func (n *Node) answer(c *Acquisition, a answer) {
	switch {
	case c.answered(a.node):
	case c.round != 0:
		c.answers = append(c.answers, a)
		n.tally(c)
	case a.why == 0: // between two attempts of a release
		c.answers = append(c.answers, a)
	}
}

// endedByReset ends a claim that began before this node forgot all others: alone it would
// give what they may have given to somebody else.
func (n *Node) endedByReset(c *Acquisition) bool {
	if c.kind == release || c.resets == n.mesh.Resets() {
		return false
	}
	n.finishAcquisition(c, Result{Kind: NoQuorum}, true)
	return true
}

// newRound asks all nodes.
func (n *Node) newRound(c *Acquisition) {
	c.retry = 0
	n.setRound(c, 0)
	if n.endedByReset(c) {
		return
	}
	if c.kind != release && c.flags&FlagAny == 0 && !n.Quorate(c.name) {
		n.missed(c, Result{Kind: NoQuorum}, true)
		return
	}
	round := c.freeing
	if round == 0 {
		n.rounds++
		round = n.rounds
	}
	if c.kind == release {
		c.freeing = round
	}
	n.setRound(c, round)
	c.began = n.host.Monotonic()
	c.members, c.ups, c.clears = n.mesh.Sum(), n.mesh.Ups(), n.cleared
	n.dropGone(c)
	// A release keeps the answers of the nodes that have already freed the lock: it stays freed there.
	c.answers = slices.DeleteFunc(c.answers, func(a answer) bool { return c.kind != release || a.why != 0 })
	c.resend, c.resent = c.began+ResendMS, false
	n.propose(c)
	n.byRound[c.round] = c
	n.answerSelf(c)
	if n.tally(c); c.round == 0 {
		return // decided
	}
	m := c.message()
	n.mesh.SendTo(n.silent(c), m)
	n.setAlarm(c)
}

// propose chooses the token: who has the lock keeps it. A job that was put off takes a new one,
// which is greater than that of any vote that is about to be taken back (FindLeft).
func (n *Node) propose(c *Acquisition) {
	if c.kind != take {
		c.proposal = c.token
		return
	}
	l, space := n.store.Lock(c.name), store.Space(c.name[0])
	had := !c.anew && !c.putOff && n.IsLive(l) && c.has(l)
	switch {
	case had && (space != store.LockBare || c.least <= l.Token):
		c.proposal, c.fresh = max(l.Token, c.least), false
		if c.proposal > l.Token && space == store.LockRun {
			// It may be the token of a run at another node, which ends by it.
			c.proposal = n.ownToken(space, c.proposal+1)
		}
	default:
		// An attempt that fails takes a greater token of a bare lock back: its holder has the
		// lock by the one before, which is none of an earlier attempt.
		c.proposal, c.fresh = n.ownToken(space, max(n.nextToken(l), c.least)), true
		// One owner can have two claims for a bare lock at a node. Each attempt is one of its own
		// to the voters then: none takes what another one has been granted for its own earlier vote.
		if c.first == 0 || had || space == store.LockBare {
			c.first = c.proposal
		}
	}
}

// above is how far the proposal is above the first number of this claim.
func (c *Acquisition) above() uint64 {
	if c.kind != take || !c.fresh || c.proposal < c.first {
		return 0
	}
	return c.proposal - c.first
}

// asked are the flags of the vote that is asked for. A renewal carries FlagRenewed: another
// node may be claiming the lock for the same holder, and when that claim takes its votes
// back, this vote must stay.
func (c *Acquisition) asked() uint8 {
	if c.kind == extend || c.kind == take && !c.fresh {
		return c.flags | FlagRenewed
	}
	return c.flags
}

func (c *Acquisition) message() *wire.Message {
	m := &wire.Message{Kind: wire.Claim, Round: c.round, Members: c.members, Lock: wire.Lock{
		Name: c.name, Owner: c.Owner, Job: c.Job, Token: c.proposal, Lease: c.lease, Left: int64(c.above()), Flags: c.asked(),
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

// answerSelf gives this node's own answer to a claim, if it can be given yet.
func (n *Node) answerSelf(c *Acquisition) {
	if c.answered(n.self.Node()) {
		return
	}
	if a := n.voteSelf(c); a.why != voteLater {
		c.answers = append(c.answers, a)
	}
}

func (n *Node) voteSelf(c *Acquisition) answer {
	a := answer{node: n.self.Node()}
	var l *store.Lock
	if c.kind == release {
		a.why, l = n.Unvote(c.name, &c.Holder, c.proposal, 0)
	} else {
		a.why, l = n.vote(&ballot{
			name: c.name, Holder: c.Holder, token: c.proposal, above: c.above(), lease: c.lease,
			flags: c.asked(), by: nodeBits(n.self.Node()), extend: c.kind == extend, anew: c.anew,
		})
	}
	if a.why != 0 {
		m := n.denial(a.why, l)
		a.token, a.job, a.owner = m.Token, store.ID(m.Job), string(m.Owner)
	}
	n.opposed(a.why, c.name, &c.Holder)
	return a
}

// denial is the lock that stands against a claim, or the number that does.
func (n *Node) denial(why uint32, l *store.Lock) (k wire.Lock) {
	switch {
	case l == nil:
		k.Token = n.store.Locks().Floor
	case why == wire.TokenLow:
		k.Token = max(n.store.Locks().Floor, l.Token)
	case why == wire.Unconfirmed:
		k = wire.Lock{Owner: l.Owner(), Job: l.Job, Token: max(n.store.Locks().Floor, l.Token)}
	default:
		k = wire.Lock{Owner: l.Owner(), Job: l.Job, Token: l.Token}
	}
	return k
}

func (c *Acquisition) answered(node wire.Node) bool {
	return slices.ContainsFunc(c.answers, func(a answer) bool { return a.node == node })
}

// silent are the nodes that haven't answered.
func (n *Node) silent(c *Acquisition) (list []wire.Node) {
	for _, p := range n.mesh.All() {
		if !c.answered(p.Node) {
			list = append(list, p.Node)
		}
	}
	return list
}

func (n *Node) tally(c *Acquisition) {
	if n.endedByReset(c) || !n.current(c) {
		return
	}
	votes, heard, open, need := 0, 0, 0, n.votesNeeded(c)
	own := c.answered(n.self.Node())
	if !own {
		open++
	}
	for i := range c.answers {
		switch c.answers[i].why {
		case 0:
			votes++
		case wire.Unconfirmed:
			heard++
		}
	}
	for _, p := range n.mesh.All() {
		if p.Connected && !c.answered(p.Node) {
			open++
		}
	}
	if all := len(n.mesh.All()) + 1; (c.kind != take || !c.fresh) && open == 0 && votes < need && all-votes < need && votes+heard == len(c.answers) && votes+heard >= need {
		// Nobody else can have a majority without these votes, and all others have heard of
		// the lock: it was given by a smaller mesh, which has grown since.
		votes = need
	}
	if votes >= need {
		// This node's own vote may take a moment more (voteLater): who asks next is to
		// find it. It isn't waited for longer, since nothing depends on it.
		if own || n.host.Monotonic()-c.began >= ResendMS {
			n.won(c)
		}
		return
	}
	// Without hope, too, the others are heard: they know whether it is somebody
	// else's, or nobody's.
	if who, against := c.against(); open == 0 || c.kind == take && who != nil && against >= need {
		n.lostRound(c, need)
	}
}

// votesNeeded is how many votes a claim has to have.
func (n *Node) votesNeeded(c *Acquisition) int {
	if c.flags&FlagAny == 0 {
		return n.mesh.Majority()
	}
	voters := 1
	for i := range c.answers {
		if c.answers[i].why == wire.Abstains {
			voters--
		}
	}
	for _, p := range n.mesh.All() {
		if p.Connected || c.answered(p.Node) {
			voters++
		}
	}
	return membership.Majority(max(voters, 0))
}

// against is the holder that most nodes say has the lock, and how many do.
func (c *Acquisition) against() (who *answer, count int) {
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

// heldHere says whether this node's own vote stands against a claim.
func (n *Node) heldHere(c *Acquisition) bool {
	return slices.ContainsFunc(c.answers, func(a answer) bool { return a.node == n.self.Node() && a.why == wire.LockHeld })
}

// won ends a claim that has its votes, unless they came too late to be of use.
func (n *Node) won(c *Acquisition) {
	if c.kind != release && c.lease > 0 && n.host.Monotonic()-c.began >= cmp.Or(c.usable, c.lease) {
		n.Retract(c)
		n.missed(c, Result{Kind: NoQuorum}, false)
		return
	}
	n.commit(c)
	n.noteWon(c)
	n.lately[c.round%uint64(len(n.lately))] = wonClaim{round: c.round, claim: c}
	if c.kind == release {
		// The others are asked already: their answers to this round will do.
		n.Unvote(c.name, &c.Holder, c.token, wire.Committed)
		d := &pendingUnlock{round: c.round, name: c.name, Holder: c.Holder, token: c.token, flags: wire.Committed, nodes: n.silent(c)}
		for i := range c.answers {
			if a := &c.answers[i]; a.node != n.self.Node() && d.hasOlder(a.why, a.owner) {
				d.nodes = append(d.nodes, a.node)
			}
		}
		n.addPendingUnlock(d)
	}
	n.finishAcquisition(c, Result{Kind: Granted, Token: c.proposal, Kept: c.kind == take && !c.fresh, Began: c.began}, true)
}

// noteWon has this node's table tell of a lock that is had here by the votes of others: else it
// would go on voting for those who want the lock, and take each such vote for the end of it.
// Its own vote may come later, where something has to be written first (voteLater).
func (n *Node) noteWon(c *Acquisition) {
	if c.kind == release {
		return
	}
	i := slices.IndexFunc(c.answers, func(a answer) bool { return a.node == n.self.Node() })
	if i >= 0 && (c.answers[i].why == 0 || c.answers[i].why == wire.Unconfirmed) {
		return
	}
	switch l := n.Live(c.name); {
	case l == nil || c.has(l):
		n.adoptWon(c, c.lease)
	case c.Job != store.ID{}:
		n.outvoted = slices.DeleteFunc(n.outvoted, func(old *Acquisition) bool { return string(old.name) == string(c.name) })
		if len(n.outvoted) == lateMax {
			n.outvoted = slices.Delete(n.outvoted, 0, 1)
		}
		n.outvoted = append(n.outvoted, c)
	}
	if i < 0 && len(n.votes.own) < lateMax {
		n.votes.own = append(n.votes.own, c)
	}
}

// adoptWon puts a lock that was won into this node's table.
func (n *Node) adoptWon(c *Acquisition, left int64) {
	l := n.adopt(&wire.Lock{
		Name: c.name, Owner: c.Owner, Job: c.Job, Token: c.proposal, Lease: c.lease, Left: left, Flags: c.asked() &^ flagsNonQuorum,
	})
	if c.has(l) {
		l.By = nodeBits(n.self.Node())
		n.SetFlags(l, l.Flags|c.flags&FlagAny) // of two jobs that were given a key by QUORUM any, the older one stays
	}
}

// Outvotes says of a job whether it has its lock although this node's vote stands for
// another holder. Until the lease is over that one can't have a majority.
func (n *Node) Outvotes(id store.ID, space store.Space) bool {
	return slices.ContainsFunc(n.outvoted, func(c *Acquisition) bool { return c.Job == id && store.Space(c.name[0]) == space && n.isHad(c) })
}

// isHad says whether a job has its lock still by a claim that was won against this node's vote.
func (n *Node) isHad(c *Acquisition) bool {
	return (c.lease == 0 || n.host.Monotonic()-c.began < c.lease) && n.jobs.Has(c.Job, c.name, c.proposal)
}

// noteFreed does what note couldn't: this node had voted for another holder, and takes
// that vote back now.
func (n *Node) noteFreed(name []byte) {
	i := slices.IndexFunc(n.outvoted, func(c *Acquisition) bool { return string(c.name) == string(name) })
	if i < 0 || n.host.Passive() || n.Live(name) != nil {
		return
	}
	c := n.outvoted[i]
	n.outvoted = slices.Delete(n.outvoted, i, i+1)
	if n.isHad(c) {
		n.adoptWon(c, c.lease-(n.host.Monotonic()-c.began))
	}
}

// clearOutvoted has jobs know of such locks that they are cleared.
func (n *Node) clearOutvoted(cleared func(c *Acquisition) bool) {
	n.outvoted = slices.DeleteFunc(n.outvoted, func(c *Acquisition) bool {
		if !cleared(c) {
			return false
		}
		if n.isHad(c) {
			n.jobs.HasNoMore(c.Job, store.Space(c.name[0]))
		}
		return true
	})
}

// commit tells those who have a vote from another's table that it is one.
func (n *Node) commit(c *Acquisition) {
	if c.kind == release {
		return
	}
	for i := range c.answers {
		if a := &c.answers[i]; a.why != wire.Unconfirmed {
			continue
		} else if a.node == n.self.Node() {
			n.commitSelf(c)
		} else {
			n.commitTo(c, n.mesh.Of(a.node))
		}
	}
}

// commitSelf gives this node's own vote for a lock that was won without it.
func (n *Node) commitSelf(c *Acquisition) {
	n.vote(&ballot{
		name: c.name, Holder: c.Holder, token: c.proposal, lease: c.lease,
		flags: c.flags, by: nodeBits(n.self.Node()), extend: true, committed: true,
	})
}

func (n *Node) commitTo(c *Acquisition, p *membership.Peer) {
	m := c.message()
	m.Flags, m.Round = wire.Committed, 0
	n.mesh.Send(p, m)
}

// wonClaim is a claim that was won lately: whose answer comes late may have to be
// told so.
type wonClaim struct {
	round uint64
	claim *Acquisition
}

// Retract takes the votes of an attempt back. One that only renewed what its
// holder had leaves that to him: he counts on it still.
func (n *Node) Retract(c *Acquisition) {
	if c.round == 0 || c.kind != take || !c.fresh {
		return
	}
	list := n.silent(c)
	for i := range c.answers {
		// One that abstains may learn of a vote from another's table.
		if a := &c.answers[i]; (a.why == 0 || a.why == wire.Abstains || c.resent) && a.node != n.self.Node() {
			list = append(list, a.node)
		}
	}
	if line := c.line; line != nil && !line.called {
		line.called = true // it asks again in its own time
		defer func() { line.called = false }()
	}
	n.RollBack(c.name, c.Holder, c.proposal, list)
}

// lostRound judges an attempt that can't have need votes any more.
func (n *Node) lostRound(c *Acquisition, need int) {
	n.Retract(c)
	who, against := c.against()
	refused, freed, unsure, greatest, renewed := 0, 0, len(n.silent(c)), uint64(0), false
	for i := range c.answers {
		a := &c.answers[i]
		switch a.why {
		case 0:
			freed++
			continue
		case wire.Abstains, wire.Uncounted:
			unsure++
			continue
		case wire.Unconfirmed:
			// So many may have their votes from others' tables that those that are left are
			// no majority. A greater token is a new claim, for which all can vote: whoever
			// has the lock by now stands against it.
			if c.kind == take {
				c.least = max(c.least, nextShown(a.token))
			}
			continue
		case wire.LockHeld:
			if c.kind != take {
				greatest = max(greatest, a.token)
			}
		case wire.TokenLow:
			c.least = max(c.least, nextShown(a.token))
		case wire.TokenStale:
			c.least = max(c.least, a.token)
			greatest = max(greatest, a.token)
			renewed = true
		}
		refused++
	}
	switch {
	case c.kind == take && against >= need:
		// There may be no such job any more: then it is tried again.
		doubt := n.mayBeOrphan(c, who.job)
		if doubt {
			c.retries++
		}
		n.missed(c, Result{Kind: Conflict, Job: who.job, Owner: []byte(who.owner), Most: against >= n.mesh.Majority()}, !doubt)
	case c.kind == take:
		o := Result{Kind: NoQuorum, Began: c.began}
		if who != nil {
			o.Job = who.job
		}
		// A job that was put off has the time to let the other finish. And a run against which this
		// node's own vote stands, see [Node.mereVote], is asked for again when that falls.
		n.missed(c, o, who != nil && (c.putOff || c.anew && n.heldHere(c)))
	case refused+freed < need || c.kind == extend && refused < need:
		n.missed(c, Result{Kind: NoQuorum}, false)
	case c.kind == release && freed > 0 && freed+unsure >= need && against < need && !renewed:
		// It may have been held by the votes of those. Votes for another are those of a claim that failed then.
		n.missed(c, Result{Kind: NoQuorum}, false)
	case greatest > c.token:
		n.missed(c, Result{Kind: Stale}, true)
	default:
		n.missed(c, Result{Kind: NotHeld}, true)
	}
}

// missed ends an attempt. Unless that settles it (definite), there is another,
// after a random time, lest two that are in each other's way stay so.
func (n *Node) missed(c *Acquisition, o Result, definite bool) {
	if c.kind != release {
		delete(n.byRound, c.round)
	}
	n.setRound(c, 0)
	c.last = o
	now := n.host.Monotonic()
	definite = definite || o.Kind == NoQuorum && c.flags&FlagAny == 0 && !n.Quorate(c.name)
	if definite && !c.wait || now >= c.deadline {
		n.finishAcquisition(c, o, true)
		return
	}
	c.tries++
	most := 4
	if c.wait {
		most = 7 // it has the time; very many may wait where there is no majority
	}
	limit := int64(8) << min(c.tries, most)
	if o.Kind == Conflict {
		limit = min(int64(20)<<min(c.tries, 6), claimPollMS)
		if l := n.Live(c.name); l != nil && c.wait {
			n.Watch(l) // its end will call
			limit = claimLookMS
		}
	}
	c.retry = now + 1 + n.host.Below(limit)
	if c.retries > 0 && c.gone != o.Job {
		c.retry = now + ResendMS // unless it is known before
	}
	n.setAlarm(c)
}
