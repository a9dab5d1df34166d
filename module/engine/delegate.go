package engine

import (
	"math"
	"slices"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// The locks of a job that other nodes have, too. A client of another node may work on the job: so a node whose
// own delivery is over, or that forgets the job, leaves such a client its lock. If this node knows that a run
// is over, it has the votes for that run taken back when they stand against the job's next run.

// delegate leaves a job's locks to the other nodes that hold the job: it is about to be forgotten here, and
// lives on there.
func (n *Node) delegate(j *store.Job) {
	u := j.Unique()
	if u == nil {
		return
	}
	for _, space := range [...]store.Space{store.LockWait, store.LockRun} {
		if l := n.store.Lock(n.lockName(j, u, space)); l != nil && l.Job == j.ID && !lock.Ended(l) {
			n.toOthers(l)
		}
	}
	u.Clear(store.UniqueHasWait | store.UniqueHasRun)
	n.delegated.Add(j.ID)
}

// toOthers makes a lock one that this node only votes for: it is left to the other nodes.
func (n *Node) toOthers(l *store.Lock) {
	n.locks.SetFlags(l, l.Flags|lock.FlagForeign)
	n.locks.Log(l)
}

// leaveLocks is delegate for a job of which only this node's copy goes, if another node has the job, or may have it.
func (n *Node) leaveLocks(j *store.Job) {
	if j.State != store.StateAcked && j.State != store.StateWaitRepl && (j.Retry > 0 && n.heldElsewhere(j) || n.mayLackHolders(j)) {
		n.delegate(j)
	}
}

// endFresh frees a job's locks, except votes that were extended since for their holder: somebody may work on
// the job at another node.
func (n *Node) endFresh(j *store.Job) {
	n.leaveSlot(j)
	u := j.Unique()
	if u == nil || n.mesh.Alone() || u.Strategy() == store.UniqueWindow {
		return
	}
	for _, space := range [...]store.Space{store.LockWait, store.LockRun} {
		if !u.Has(hasFlag(space)) {
			continue
		}
		name := slices.Clone(n.lockName(j, u, space))
		token := lockToken(u, space)
		u.Clear(hasFlag(space))
		if l := n.locks.Live(name); l != nil && l.Job == j.ID && n.locks.Renewed(l) {
			n.toOthers(l)
			continue
		}
		n.locks.RollBack(name, lock.Holder{Job: j.ID}, token, n.mesh.Nodes())
	}
}

// leaveVotes keeps the end of a job from freeing locks that were left to other nodes (lock.FlagForeign).
func (n *Node) leaveVotes(j *store.Job) {
	u := j.Unique()
	if u == nil {
		return
	}
	for _, space := range [...]store.Space{store.LockWait, store.LockRun} {
		if l := n.store.Lock(n.lockName(j, u, space)); l != nil && l.Job == j.ID && l.Flags&lock.FlagForeign != 0 {
			u.Clear(hasFlag(space))
		}
	}
}

// boundRun gives a run lock without a lease the lease that nodes of a mesh give. The lock was given while its
// node was alone. The job isn't worked on at this node, which may not hear of the run's end.
func (n *Node) boundRun(l *store.Lock, j *store.Job, u store.Unique) {
	if l.Until == 0 {
		n.bound(l, n.runLease(j, u))
	}
}

// bound gives a lock a lease that begins now, in ms. The caller logs it.
func (n *Node) bound(l *store.Lock, lease int64) {
	l.Lease, l.Until = lease, n.locks.Until(lease)
	n.locks.Note(l)
}

// delegateRun leaves a job's run lock to another node, where the job's client works on.
func (n *Node) delegateRun(j *store.Job) {
	if u := j.Unique(); u != nil && u.Has(store.UniqueHasRun) && !n.mesh.Alone() {
		if l := n.store.Lock(n.lockName(j, u, store.LockRun)); l != nil && l.Job == j.ID && !lock.Ended(l) {
			n.boundRun(l, j, u)
			n.toOthers(l)
		}
		u.Clear(store.UniqueHasRun)
	}
}

// expireRun ends the run of a job whose retry time is over, as far as this node knows. The job's client may
// have said WORKING to another node, whose message may be lost or late. So a lock that was extended is left
// to its lease, here and at the other nodes.
func (n *Node) expireRun(j *store.Job) {
	n.leaveSlot(j)
	if !runs(j) || n.mesh.Alone() || !j.Unique().Has(store.UniqueHasRun) {
		return
	}
	u := j.Unique()
	name := slices.Clone(n.lockName(j, u, store.LockRun))
	l := n.locks.Live(name)
	if l != nil && l.Job == j.ID && n.locks.Renewed(l) {
		n.delegateRun(j)
		return
	}
	u.Clear(store.UniqueHasRun)
	n.locks.EnqueueUnlock(name, lock.Holder{Job: j.ID}, u.RunToken(), wire.Fresh, n.mesh.Nodes())
	if l != nil && l.Job == j.ID && l.Token <= u.RunToken() {
		n.locks.Remove(l)
	}
}

// endRunElsewhere frees the run lock that a job got at another node: the job's client gives it back here. counted says whether that
// counts as a return of the job.
//
// This node may not know the run's votes: it was away when the run began, the Claim isn't here yet, or another node has extended
// the run by a token of its own (WORKING). So it says how often the job had come back. A node whose client has the job, and that counts
// the same, takes the votes for its own run back (GivenBack). A voter that has a vote by another token answers with
// that token, and with the time that the vote has left: EndPastRun takes back the votes that are older than this NACK.
func (n *Node) endRunElsewhere(j *store.Job, counted bool) {
	if !runs(j) {
		return
	}
	if n.mesh.Alone() {
		if l := n.locks.Live(n.lockName(j, j.Unique(), store.LockRun)); l != nil && l.Job == j.ID && l.Flags&lock.FlagForeign != 0 {
			n.locks.Remove(l) // the vote for a client of a node that is forgotten
		}
		return
	}
	times := uint64(0)
	if counted {
		times = returns(j) + 1
	}
	name := slices.Clone(n.lockName(j, j.Unique(), store.LockRun))
	if j.Retry > 0 {
		n.uniqueMesh.back.add(j.ID, pastRuns{at: n.monotonic()}, n.now)
	}
	if l := n.locks.Live(name); l != nil && l.Job == j.ID {
		n.locks.GiveBack(name, j.ID, l.Token, times)
		n.locks.Remove(l)
	} else if j.Retry > 0 {
		n.locks.GiveBack(name, j.ID, lock.NoToken, times)
	}
}

// returns is how often a job has come back as far as this node knows.
func returns(j *store.Job) uint64 { return uint64(j.Nacks) + uint64(j.Deliveries) }

// GivenBack follows the word of another node that a job was given back there, after it had come back so often as that node
// knew. If a client of this node has the job, and the job has come back as often here, it is that delivery which is over. If this
// node counts more, the client got the job after that.
//
// A sender that knew a run, by token, tells all nodes of that one itself. Then this node's own run is over if that one is later
// (unique_nack_third), or if it began with a WORKING that was said here for a delivery of another node
// (unique_working_nack). Otherwise the job was in two queues, and was delivered here by itself (unique_nack_late).
func (o *owners) GivenBack(name []byte, id store.ID, token, times uint64) {
	n := o.node()
	j := n.store.Lookup(&id)
	switch {
	case j == nil || !n.inHands(j) || returns(j) != times || !runs(j) || !n.ofKey(j, store.LockRun, name) || j.Unique().RunToken() == token:
	case token == lock.NoToken || j.Unique().RunToken() < token || n.idling.held.Get(id) != nil:
		n.endRun(j, j.Unique())
	}
}

// pastRuns are the runs of a job that began before the job was given back here, at a node that didn't know
// them.
type pastRuns struct {
	at    int64  // when it was given back: monotonic, ms
	ended uint64 // the token of the last run for which all nodes were told to take their votes back
}

// over says whether a vote for a run was given before the job was given back, and not extended since. It goes
// by how much of the vote's time is over, and allows for a voter's clock that runs slower than ours. It
// doesn't go by tokens: they come from the time of day, which may differ at the node where a later run
// begins.
func (p *pastRuns) over(vote *wire.Lock, now int64) bool {
	since := now - p.at
	return vote.Left > 0 && lock.VoteMS(vote.Lease)-vote.Left > since+since/lock.ClockSlack
}

// givenBack remembers pastRuns by job.
type givenBack struct {
	table.Generations[store.ID, pastRuns]
}

const (
	givenBackMS   = 600_000 // how long a job is remembered at least
	givenBackMost = 10_000  // jobs that are remembered
)

func (g *givenBack) add(id store.ID, past pastRuns, now int64) {
	g.TurnDue(now, givenBackMS, givenBackMost)
	g.Put(id, past)
}

// EndPastRun follows a denial that names a vote for a run of the very job that was asked for. If that run
// began before the job was given back here, all nodes take the vote back. If this node asked for it, and the job is queued
// here, nobody has the job by that run: all nodes take back a vote that wasn't extended since. (If this node was started
// anew since, it must have all that it logged, see [Node.endOwnRuns].) Such a vote stays where a node learns the votes of
// others while they take them back.
func (o *owners) EndPastRun(name []byte, id store.ID, m *wire.Message) {
	n, k := o.node(), &m.Lock
	if m.Count != wire.LockHeld && m.Count != wire.TokenStale || store.ID(k.Job) != id || store.SpaceOf(name) != store.LockRun {
		return
	}
	past, yes := n.uniqueMesh.back.Get(id)
	flags := uint8(0)
	switch {
	case yes && past.ended == k.Token:
		return // the nodes were told
	case yes && past.over(k, n.monotonic()):
	case (k.Token <= n.ownBefore || n.locks.GaveInVain(name, id, k.Token)) && n.locks.IsOwnToken(k.Token) && n.isQueued(&id) && !n.hadRun(name, &id, k.Token):
		if flags = wire.Fresh; !yes {
			past.at = math.MinInt64 / 2 // the job wasn't given back
		}
	default:
		return
	}
	past.ended = k.Token
	n.uniqueMesh.back.add(id, past, n.now)
	n.freeRun(name, &id, k.Token, flags) // the acquisition's Claim may have come here, too, after the NACK
}

// hadRun says whether a client may have got a job that is queued here by this run of its own, which was then left to another
// node (delegateRun): the client may still work.
func (n *Node) hadRun(name []byte, id *store.ID, token uint64) bool {
	if l := n.locks.Live(name); l != nil && l.Job == *id && l.Token == token {
		return true
	}
	u := n.store.Lookup(id).Unique()
	return u != nil && u.RunToken() == token
}

// isQueued says whether a job is in its queue, and has no run lock.
func (n *Node) isQueued(id *store.ID) bool {
	j := n.store.Lookup(id)
	return j != nil && j.State == store.StateQueued && !hasRun(j)
}

// endOwnRuns takes back the votes for runs of a job that was queued when this node ended. The node has all
// that it logged, and it logs a delivery before the client gets the job. So nobody has the job by a run that
// this node acquired. The node may have ended while it asked for such a run, or before the others heard that
// the job was given back. The votes of another node's acquisition, and votes that were extended since, stay.
func (n *Node) endOwnRuns(j *store.Job) {
	if j.State != store.StateQueued || !runs(j) || n.mesh.Alone() {
		return
	}
	u := j.Unique()
	name := n.lockName(j, u, store.LockRun)
	voted, last := uint64(0), u.RunToken()
	if l := n.locks.Live(name); l != nil && l.Job == j.ID {
		if l.Token == last && l.Flags&lock.FlagForeign != 0 {
			return // the job had this run, which was left to another node: its client may still work (unique_run_left_restarted)
		}
		voted = l.Token
	}
	if last == voted || lock.BegunAt(last)+lock.VoteMS(n.runLease(j, u)+2*lock.TimeoutMS) <= n.now {
		last = 0 // its votes are over, or it is the token in voted
	}
	if voted|last == 0 || u.Has(store.UniqueHasRun) || n.locks.AsksFor(&j.ID, string(name)) {
		return
	}
	name = slices.Clone(name)
	if voted > 0 && n.locks.IsOwnToken(voted) {
		n.giveUpRun(name, &j.ID, voted)
	}
	if last > 0 && n.locks.IsOwnToken(last) {
		n.giveUpRun(j.AppendLock(nil, u, store.LockRun), &j.ID, last)
	}
}
