package engine

import (
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Votes that stand for nothing any more: of a lock whose job is gone everywhere, or has it no
// more, the vote falls, and so do votes on which nobody counts.

// suspect is a lock whose job this node doesn't know, or knows not to have it, and who else
// says so.
type suspect struct {
	id    store.ID
	asked int64 // steady
	gone  []wire.Node
}

// suspectLock finds out about a lock that stood in somebody's way, where its end
// may have been missed: it asks all nodes for its job, at most once a second.
func (n *Node) suspectLock(l *store.Lock) {
	if l.Flags&lockOutlives == 0 {
		n.suspectJob(l.Name(), l.Job)
	}
}

// suspectJob is suspectLock for one of which this node may know by others alone.
func (n *Node) suspectJob(name []byte, id store.ID) {
	if id == (store.ID{}) || n.mayHold(name, id) {
		return
	}
	now := n.steady()
	s := n.suspects[string(name)]
	if s != nil && s.id == id && now-s.asked < verifyEveryMS {
		return
	}
	n.suspects[string(name)] = &suspect{id: id, asked: now}
	n.verify(name, id, 0)
}

// verify asks all nodes for a job, or with a token whether they count on votes for it of up
// to that token.
func (n *Node) verify(name []byte, id store.ID, token uint64) {
	m := wire.Message{Kind: wire.Verify, ID: wire.JobID(id), Lock: wire.Lock{Name: name, Token: token}}
	for _, p := range n.mesh.order {
		n.send(p, &m)
	}
}

// hasAll says whether all other nodes are among these.
func (n *Node) hasAll(nodes []wire.Node) bool {
	return !slices.ContainsFunc(n.mesh.order, func(p *Peer) bool { return !slices.Contains(nodes, p.Node) })
}

// doubts says whether the job may be gone by whose lock a claim was refused: nobody
// has told yet that there is one, of those who are asked and can all answer.
func (n *Node) doubts(c *Claim, id store.ID) bool {
	if id == (store.ID{}) || c.doubts == mostDoubts || c.doubts > 0 && c.gone != id {
		return false
	}
	if c.gone == id {
		return true // the others are finding that out, too
	}
	if !slices.ContainsFunc(c.answers, func(a answer) bool { return a.node == n.self.Node() && a.why == wire.LockHeld }) {
		n.suspectJob(c.name, id) // else it has been already
	}
	s := n.suspects[string(c.name)]
	return s != nil && s.id == id && !slices.ContainsFunc(n.mesh.order, func(p *Peer) bool { return !p.Connected })
}

// jobLives says whether this node knows a job that may have locks: one that isn't
// done, or that a claim is under way for.
func (n *Node) jobLives(id store.ID) bool {
	if j := n.store.Lookup(&id); j != nil && j.State != store.StateAcked {
		return true
	}
	return n.byJob[id] != nil
}

// mayHold says whether a job may have the lock of this name, for all that this node knows.
func (n *Node) mayHold(name []byte, id store.ID) bool {
	if !n.jobLives(id) {
		return false
	}
	j := n.store.Lookup(&id)
	if j == nil || n.byJob[id] != nil || store.Space(name[0]) != store.LockWait || !n.named(j, store.LockWait, name) {
		return true // another node may know of a run
	}
	// A job claims its waiting lock before it is queued first, and never again.
	return j.Unique().Has(store.UniqueHasWait) || n.putOff(j)
}

// jobDone says whether this node knows that a job is done.
func (n *Node) jobDone(id store.ID) bool {
	j := n.store.Lookup(&id)
	return j != nil && j.State == store.StateAcked || j == nil && n.graves.has(&id)
}

func (n *Node) onVerify(p *Peer, m *wire.Message) {
	answer := wire.Message{Kind: wire.Verified, ID: m.ID, Count: wire.JobGone, Lock: wire.Lock{Name: m.Lock.Name, Token: m.Lock.Token}}
	id := store.ID(m.ID)
	lives := n.mayHold(m.Lock.Name, id)
	if token := m.Lock.Token; token > 0 {
		lives = n.countsOn(m.Lock.Name, id, token)
		if n.mayVoteFor(m.Lock.Name, id) {
			answer.Lock.Job = m.ID
		}
		n.keepSeen(token)
	}
	switch {
	case lives:
		answer.Count = wire.JobLives
	case n.jobDone(id):
		answer.Count = wire.JobDone
	}
	n.send(p, &answer)
}

func (n *Node) onVerified(p *Peer, m *wire.Message) {
	if m.Lock.Token > 0 {
		n.onLeft(p, m)
		return
	}
	s := n.suspects[string(m.Lock.Name)]
	if s == nil || s.id != store.ID(m.ID) {
		return
	}
	if m.Count != wire.JobGone && m.Count != wire.JobDone || n.mayHold(m.Lock.Name, s.id) {
		delete(n.suspects, string(m.Lock.Name))
		n.undoubted(m.Lock.Name, s.id, true)
		return
	}
	if m.Count == wire.JobGone && !slices.Contains(s.gone, p.Node) {
		s.gone = append(s.gone, p.Node)
	}
	if m.Count == wire.JobGone && !n.hasAll(s.gone) {
		return
	}
	delete(n.suspects, string(m.Lock.Name))
	n.undoubted(m.Lock.Name, s.id, false)
	if l := n.store.Lock(m.Lock.Name); l != nil && l.Job == s.id && l.Flags&lockOutlives == 0 {
		n.removeLock(l)
	}
}

// leftover is votes that a job may have though it has no lock, and who says that nobody
// counts on them.
//
// A job that was put off may be claimed for by each node that has a copy of it. An attempt
// takes back only the votes that it was given first: another claim for the same job may have
// been won by the others. So where none is won, and where a claimant crashes, votes stay. Those for
// a job that is gone fall when they are in somebody's way (suspect), but this one lives. Of two
// such jobs with the same key each could have half of the votes for good. So a node whose
// claim has failed asks all nodes whether they count on votes of up to its last token. One
// that says no claims by a greater token from then on (saw, propose): what it wins later isn't
// harmed. When all have said no, the votes are taken back.
type leftover struct {
	name  []byte
	token uint64
	asked int64 // steady
	told  []wire.Node
	votes int // of those who told, and those that they may have given
}

// findLeft looks for votes that are left for a job that was put off again.
func (n *Node) findLeft(c *Claim) {
	if c.proposal == 0 {
		return // nobody was asked
	}
	n.leftovers[c.id] = &leftover{name: c.name, token: c.proposal, asked: n.steady()}
	n.verify(c.name, c.id, c.proposal)
}

// countsOn says whether this node may count on votes for a job, of tokens up to this one. It
// may where the job isn't put off any more.
func (n *Node) countsOn(name []byte, id store.ID, token uint64) bool {
	if j := n.store.Lookup(&id); j != nil && j.State != store.StateAcked && !n.putOff(j) {
		return true
	}
	if l := n.byJob[id]; l != nil {
		for c := l.head; c != nil; c = c.ofJob.next {
			if string(c.name) == string(name) && c.round != 0 && c.proposal <= token {
				return true
			}
		}
	}
	return false
}

// mayVoteFor says whether this node votes for a job, or may have done so and lacks the vote now:
// the lock can stand by it.
func (n *Node) mayVoteFor(name []byte, id store.ID) bool {
	l := n.liveLock(name)
	return l != nil && l.Job == id || n.abstainsFrom(name) || n.inDispute(name)
}

// onLeft takes leftover votes back when nobody counts on them. Where they are more than half
// they may be a lock of which nobody knows after a crash, and the next claim has it by them.
func (n *Node) onLeft(p *Peer, m *wire.Message) {
	h := holder{id: store.ID(m.ID)}
	left := n.leftovers[h.id]
	if left == nil || left.token != m.Lock.Token || string(left.name) != string(m.Lock.Name) || slices.Contains(left.told, p.Node) {
		return
	}
	if m.Count != wire.JobGone {
		delete(n.leftovers, h.id)
		return
	}
	left.told = append(left.told, p.Node)
	if m.Lock.Job == m.ID {
		left.votes++
	}
	if !n.hasAll(left.told) {
		return
	}
	delete(n.leftovers, h.id)
	if n.mayVoteFor(left.name, h.id) {
		left.votes++
	}
	if j := n.store.Lookup(&h.id); j == nil || !n.putOff(j) || left.votes >= n.majority() {
		return
	}
	n.unvote(left.name, &h, left.token, 0)
	n.owe(left.name, h, left.token, 0, n.allPeers())
}

// undoubted goes on with the claims for a lock of whose job it is known now whether
// it lives.
func (n *Node) undoubted(name []byte, id store.ID, lives bool) {
	var list []*Claim
	if l := n.byName[string(name)]; l != nil {
		for c := l.head; c != nil; c = c.ofName.next {
			list = append(list, c)
		}
	}
	for _, c := range list {
		switch {
		case c.then == nil:
		case c.round != 0 && !lives:
			c.gone = id
		case c.round != 0 || c.doubts == 0 || c.last.Kind != Conflict || c.last.Job != id:
		case lives:
			n.finishClaim(c, c.last, true)
		default:
			c.gone, c.retry = id, n.steady()+1
			n.setAlarm(c)
		}
	}
}

// tickSuspects forgets questions that somebody hasn't answered, disputes that are
// over, and losses of jobs that are gone.
func (n *Node) tickSuspects(now int64) {
	if len(n.suspects)+len(n.leftovers)+len(n.lost)+len(n.sync.disputed) == 0 || now < n.nextLook {
		return
	}
	n.nextLook = now + suspectMS
	for name, s := range n.suspects {
		if now-s.asked >= suspectMS {
			delete(n.suspects, name)
		}
	}
	for id, left := range n.leftovers {
		if now-left.asked >= suspectMS {
			delete(n.leftovers, id)
		}
	}
	for name, until := range n.sync.disputed {
		if until <= now {
			delete(n.sync.disputed, name)
			if len(n.sync.disputed) == 0 && !n.sync.abstain {
				n.setTable(tableFull)
			}
		}
	}
	for id := range n.lost {
		if n.store.Lookup(&id) == nil {
			delete(n.lost, id)
		}
	}
}
