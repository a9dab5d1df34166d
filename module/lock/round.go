package lock

import (
	"cmp"
	"slices"

	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// A round of an acquisition: ask all nodes and count their answers. The round wins, or it loses and its votes are taken
// back.

// answer is one node's answer in a round. why is 0 for a vote.
type answer struct {
	node  wire.Node
	why   uint32
	token uint64
	job   store.ID
	owner string
	left  int64 // wire.Abstains: for how long at most, ms; 0: that isn't known
}

// answer counts an answer, and decides the round if that is possible.
func (n *Node) answer(c *Acquisition, a answer) {
	switch {
	case c.answered(a.node):
	case c.round != 0:
		c.answers = append(c.answers, a)
		n.tally(c)
	case a.why == 0: // between two rounds of a release
		c.answers = append(c.answers, a)
	}
}

// endedByReset ends an acquisition that began before this node forgot all others (RESET). Alone, this node would give a
// lock that the others may have given to somebody else.
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
	if !n.nextSlot(c) {
		n.missed(c, n.taken(c), true)
		return
	}
	n.beginRound(c)
}

// beginRound asks all nodes for the lock, or the slot, of the acquisition's name.
func (n *Node) beginRound(c *Acquisition) {
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
	// A release keeps the answers of nodes that have already freed the lock: it stays freed there.
	c.answers = slices.DeleteFunc(c.answers, func(a answer) bool { return c.kind != release || a.why != 0 })
	c.resend, c.resent = c.began+ResendMS, false
	n.propose(c)
	n.byRound[c.round] = c
	n.answerSelf(c)
	if n.tally(c); c.round != round {
		return // decided, or another slot is asked for
	}
	m := c.message()
	n.mesh.SendTo(n.silent(c), m)
	n.setAlarm(c)
}

// propose chooses the token. The present holder keeps its token. A job that was put off takes a new one, which is
// greater than that of any vote that is about to be taken back (FindLeft). So does the owner of a bare lock if the vote
// here may be for an acquisition that can still fail, another one of that owner: votes that were prolonged for this one
// would stay when both fail.
func (n *Node) propose(c *Acquisition) {
	if c.kind != take {
		c.proposal = c.token
		return
	}
	l, space := n.store.Lock(c.name), store.SpaceOf(c.name)
	had := !c.anew && !c.putOff && n.IsLive(l) && c.has(l) && (space != store.LockBare || n.Renewed(l) || !n.mayFail(l))
	switch {
	case had && (space != store.LockBare || c.least <= l.Token):
		c.proposal, c.fresh = max(l.Token, c.least), false
		if c.proposal > l.Token && space == store.LockRun {
			// least may be the token by which the job runs at another node (TokenStale). When that run ends, the votes
			// with its token are taken back. This run must keep its votes then, so its token is another one.
			c.proposal = n.ownToken(space, c.proposal+1)
		}
	default:
		// If a round for a bare lock fails, it takes back only the greater token. The holder keeps the lock by the
		// token before, which is none of an earlier round.
		c.proposal, c.fresh = n.ownToken(space, max(n.nextToken(l), c.least)), true
		// One owner can have two acquisitions of a bare lock at one node. So to the voters each round is an acquisition
		// of its own: none mistakes a vote that the other was given for its own earlier vote.
		if c.first == 0 || had || space == store.LockBare {
			c.first = c.proposal
		}
	}
}

// above is how far the proposal is above the first new token of this acquisition.
func (c *Acquisition) above() uint64 {
	if c.kind != take || !c.fresh || c.proposal < c.first {
		return 0
	}
	return c.proposal - c.first
}

// asked are the flags of the vote that is asked for. A renewal carries FlagRenewed: another node may be acquiring the
// lock for the same holder, and when that acquisition takes its votes back, this vote must stay.
func (c *Acquisition) asked() uint8 {
	if c.kind == extend || c.kind == take && !c.fresh {
		return c.flags | FlagRenewed
	}
	return c.flags
}

func (c *Acquisition) message() *wire.Message {
	m := &wire.Message{Kind: wire.Claim, Round: c.round, Members: c.members, Lock: wire.Lock{
		Name: c.name, Owner: c.Owner, Job: c.Job, Token: c.proposal, Lease: c.lease, Flags: c.asked(),
	}}
	m.Lock.SetAbove(c.above())
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

// answerSelf adds this node's own answer to a round, if it can be given yet.
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

// denial describes the lock that stands against an acquisition, or the token that does.
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
		// Nobody else can have a majority without these votes, and all others have heard of the lock: a smaller mesh
		// gave it, and has grown since.
		votes = need
	}
	if votes >= need {
		// This node may still have to write something down before it votes (voteLater). Wait up to ResendMS for its
		// vote, so that the next acquisition finds it. Don't wait longer, since nothing depends on it.
		if own || n.host.Monotonic()-c.began >= ResendMS {
			n.won(c)
		}
		return
	}
	// Even if the votes can't be enough any more, wait for the other answers: they tell whether another holder has the
	// lock, or nobody.
	if who, against := c.against(); open == 0 || c.kind == take && who != nil && against >= need {
		n.lostRound(c, need)
	}
}

// votesNeeded is how many votes an acquisition needs.
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

// against is the holder that most nodes name, and how many name it.
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

// heldHere says whether this node's own vote stands against an acquisition.
func (n *Node) heldHere(c *Acquisition) bool {
	return slices.ContainsFunc(c.answers, func(a answer) bool { return a.node == n.self.Node() && a.why == wire.LockHeld })
}

// won ends an acquisition that has its votes, unless they came too late to be of use.
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
		// The others are asked already: their answers to this round count for the pending unlock.
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

// noteWon puts a lock that this node has won by other nodes' votes into its own table. Otherwise this node would go on
// voting for others that want the lock, and would take each such vote for the end of the lock. Its own vote may come
// later, if something has to be written first (voteLater).
func (n *Node) noteWon(c *Acquisition) {
	if c.kind == release {
		return
	}
	i := slices.IndexFunc(c.answers, func(a answer) bool { return a.node == n.self.Node() })
	if i >= 0 && (c.answers[i].why == 0 || c.answers[i].why == wire.Unconfirmed) {
		return
	}
	switch l := n.yields(n.Live(c.name), &c.Holder, store.MaxToken, c.flags&FlagAny); {
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
		n.SetFlags(l, l.Flags|c.flags&FlagAny) // of two jobs that got a key by QUORUM any, the older one keeps it (resolve)
	}
}

// Outvotes says whether a job has its lock although this node has voted for another holder. That holder can't have a
// majority until the job's lease is over.
func (n *Node) Outvotes(id store.ID, space store.Space) bool {
	return slices.ContainsFunc(n.outvoted, func(c *Acquisition) bool { return c.Job == id && store.SpaceOf(c.name) == space && n.isHad(c) })
}

// isHad says whether a job still has the lock that it won against this node's vote.
func (n *Node) isHad(c *Acquisition) bool {
	return (c.lease == 0 || n.host.Monotonic()-c.began < c.lease) && n.jobs.Has(c.Job, c.name, c.proposal)
}

// noteFreed does what noteWon couldn't: this node had voted for another holder, and takes that vote back now.
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

// clearOutvoted tells jobs that such locks of theirs are cleared.
func (n *Node) clearOutvoted(cleared func(c *Acquisition) bool) {
	n.outvoted = slices.DeleteFunc(n.outvoted, func(c *Acquisition) bool {
		if !cleared(c) {
			return false
		}
		if n.isHad(c) {
			n.jobs.HasNoMore(c.Job, store.SpaceOf(c.name))
		}
		return true
	})
}

// commit tells nodes that learnt a vote from another's table to count it as their own.
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
			n.commitTo(c, n.mesh.ByName(a.node))
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

// wonClaim is an acquisition that was won lately. A node that answers late may still have to be told: that others vote for it,
// too (commitTo), or that another node has ended the run (endedElsewhere).
type wonClaim struct {
	round uint64
	claim *Acquisition
	ended bool
}

// Retract takes back the votes of the round under way. A round that only renewed the lock keeps its votes: the holder
// still counts on them.
func (n *Node) Retract(c *Acquisition) {
	if c.round == 0 || c.kind != take || !c.fresh {
		return
	}
	list := n.silent(c)
	for i := range c.answers {
		// A node that abstains may learn the vote from another's table.
		if a := &c.answers[i]; (a.why == 0 || a.why == wire.Abstains || c.resent) && a.node != n.self.Node() {
			list = append(list, a.node)
		}
	}
	if line := c.line; line != nil && !line.called {
		line.called = true // it asks again when its retry is due
		defer func() { line.called = false }()
	}
	n.RollBack(c.name, c.Holder, c.proposal, list)
}

// lostRound judges a round that can't have need votes any more.
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
			// So many nodes may have learnt their votes from others' tables that the rest is no majority. A greater
			// token makes it a new acquisition, for which all can vote. If somebody has the lock by now, that holder
			// stands against it.
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
	case c.kind == take && who != nil && !(c.anew && who.job == c.Job) && n.elsewhere(c, who, against >= n.mesh.Majority(), against < need):
	case c.kind == take && against >= need && (c.slots == nil || c.anew || !c.slots.split):
		// The holder's job may be gone. Then try again.
		doubt := n.mayBeOrphan(c, who.job)
		o := Result{Kind: Conflict, Job: who.job, Owner: []byte(who.owner), Most: against >= n.mesh.Majority()}
		switch {
		case doubt:
			c.retries++
		case c.slots != nil:
			o = n.taken(c)
		}
		n.missed(c, o, !doubt)
	case c.kind == take:
		o := Result{Kind: NoQuorum, Began: c.began}
		if who != nil {
			o.Job = who.job
		}
		// A job that was put off has the time to let the other finish. A run that this node's own vote stands against
		// is asked for again when that vote falls (mereVote in package engine). So both end here.
		n.missed(c, o, who != nil && (c.putOff || c.anew && n.heldHere(c)))
	case refused+freed < need || c.kind == extend && refused < need:
		n.missed(c, Result{Kind: NoQuorum}, false)
	case c.kind == release && freed > 0 && freed+unsure >= need && against < need && !renewed:
		// The nodes that freed the lock, and those that are unsure, may have been the holder's majority. Then votes for
		// another holder are those of an acquisition that failed.
		n.missed(c, Result{Kind: NoQuorum}, false)
	case greatest > c.token:
		n.missed(c, Result{Kind: Stale}, true)
	default:
		n.missed(c, Result{Kind: NotHeld}, true)
	}
}

// pause is a random time, ms, until an acquisition that didn't get its majority asks again. It grows with each try.
func (n *Node) pause(c *Acquisition) int64 {
	most := 4
	if c.wait {
		most = 7 // it has the time; very many may wait where there is no majority
	}
	return n.host.Below(int64(8) << min(c.tries, most))
}

// missed ends a round. Unless the outcome is definite, another round follows after a random time, so that two
// acquisitions don't stay in each other's way.
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
	if c.slots != nil && c.retries == 0 {
		c.slots.searchAnew()
	}
	c.tries++
	c.retry = now + 1
	if o.Kind != Conflict {
		c.retry += n.pause(c)
	} else if c.slots != nil && c.wait {
		n.watchSlots(c) // the end of any makes it ask
		c.retry += n.host.Below(claimLookMS)
	} else if l := n.Live(c.name); l != nil && c.wait {
		n.Watch(l) // the lock's end makes it ask
		c.retry += n.host.Below(claimLookMS)
	} else {
		c.retry += n.host.Below(min(int64(20)<<min(c.tries, 6), claimPollMS))
	}
	if c.retries > 0 && c.gone != o.Job {
		c.retry = now + ResendMS // at the latest: the orphan check may end before
	}
	n.setAlarm(c)
}
