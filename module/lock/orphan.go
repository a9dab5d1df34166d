package lock

import (
	"math"
	"slices"

	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Votes that stand for nothing any more. A vote falls if the lock's job is gone everywhere, or is known not to have the
// lock any more. Votes on which nobody counts fall, too.

// orphanCheck is a question about a lock whose job this node doesn't know, with the nodes that don't know it either. A
// vote that is given meanwhile ends the check: answers to a question are older than a vote that is given after it.
type orphanCheck struct {
	id        store.ID
	lapse     bool  // asks only whether the lock is over: the job is known to live
	asked     int64 // monotonic
	question  int64 // the number of the question, which the answers repeat
	voted     bool  // this node has voted since it asked
	gone      []wire.Node
	confirmed bool // the node that acquired the run is in gone, and has lost no data since
}

// orphanCheckOf finds the check of a lock; nil: there is none.
func (n *Node) orphanCheckOf(name []byte) *orphanCheck {
	if n.orphanChecks.Len() == 0 {
		return nil // the usual case; it doesn't copy the name
	}
	return n.orphanChecks.Get(string(name))
}

// CheckOrphan finds out about a lock that stood in somebody's way, and whose end this node may have missed. It asks all
// nodes about the lock's job, at most once a second.
func (n *Node) CheckOrphan(l *store.Lock) {
	if endsWithHolder(l) {
		n.checkOrphanVote(l.Name(), l.Job, l.Until == 0)
	}
}

// endsWithHolder says whether a vote falls when nobody has its job any more. A window doesn't. Nobody has a slot of a queue if no job has its ticket,
// as after a crash of the node that has asked for it.
func endsWithHolder(l *store.Lock) bool {
	return l.Flags&FlagOutlives == 0 || store.IsSlotsName(l.Name())
}

// holderLives says whether this node knows a job that may have the lock of this name.
func (n *Node) holderLives(name []byte, id store.ID) bool {
	if store.IsSlotsName(name) {
		return n.jobs.HasSlot(name, id)
	}
	return n.jobs.Lives(id)
}

// lookForOrphan is CheckOrphan now and then for a vote without a lease, or with a very long one, that stands in nobody's way. If the word of the job's end was lost
// the vote would stay for good, and such votes would be more and more. A vote for a job that is only at other nodes is asked about as
// well, so few are: one a second, or less in a large mesh.
func (n *Node) lookForOrphan(l *store.Lock, now int64) {
	if now < n.orphanLook || n.Lazy || n.mesh.Alone() || n.host.Now()-BegunAt(l.Token) < orphanAgeMS || !n.orphaned(l) {
		return
	}
	n.orphanLook = now + max(orphanLookMS, orphanEachMS*int64(len(n.mesh.All())))
	n.CheckOrphan(l)
}

const (
	orphanAgeMS  = 60_000 // since the token of the vote was made
	orphanLookMS = 1_000  // between two such questions, at least
	orphanEachMS = 100    // for each node that is asked
)

// checkOrphanJob is CheckOrphan for a lock that this node may know only from other nodes.
func (n *Node) checkOrphanJob(name []byte, id store.ID) { n.checkOrphanVote(name, id, false) }

// checkOrphanVote is CheckOrphan by name and job; endless: this node has a vote for the lock that has no end.
func (n *Node) checkOrphanVote(name []byte, id store.ID, endless bool) {
	if id == (store.ID{}) {
		return
	}
	lapse := n.holderLives(name, id) && !n.jobs.Over(name, id)
	if lapse && (!endless || !n.jobs.MayBeLapsed(name, id)) {
		return
	}
	now := n.host.Monotonic()
	s := n.orphanCheckOf(name)
	if s != nil && s.id == id && (s.lapse && lapse || now-s.asked < verifyEveryMS) {
		return
	}
	n.inquiries++
	n.orphanChecks.Put(string(name), orphanCheck{id: id, lapse: lapse, asked: now, question: n.inquiries})
	flags := uint8(0)
	if endless {
		flags = wire.Endless
	}
	n.verify(flags, &wire.Lock{Name: name}, id, n.inquiries)
}

// verify asks all nodes whether a lock's job lives; with a token, whether they count on votes for it up to that token;
// with wire.Disputed, whether they count on any. question is the question's number, which the answers repeat.
func (n *Node) verify(flags uint8, l *wire.Lock, id store.ID, question int64) {
	m := wire.Message{Kind: wire.Verify, Flags: flags, ID: wire.JobID(id), Lock: *l}
	m.Lock.SetQuestion(question)
	n.mesh.SendAll(&m)
}

// hasAll says whether nodes includes all other nodes of the mesh.
func (n *Node) hasAll(nodes []wire.Node) bool {
	return !slices.ContainsFunc(n.mesh.All(), func(p *membership.Peer) bool { return !slices.Contains(nodes, p.Node) })
}

// mayBeOrphan says whether the job whose lock refused an acquisition may be gone: all nodes are connected and asked
// about it, and none has said yet that it lives.
func (n *Node) mayBeOrphan(c *Acquisition, id store.ID) bool {
	if id == (store.ID{}) || c.retries == mostRetries || c.retries > 0 && c.gone != id {
		return false
	}
	if c.gone == id {
		return true // the others are finding that out, too
	}
	if !n.heldHere(c) {
		n.checkOrphanJob(c.name, id) // otherwise opposed has done so
	}
	s := n.orphanCheckOf(c.name)
	return s != nil && s.id == id && !slices.ContainsFunc(n.mesh.All(), func(p *membership.Peer) bool { return !p.Connected })
}

func (n *Node) onVerify(p *membership.Peer, m *wire.Message) {
	l := &m.Lock
	answer := wire.Message{Kind: wire.Verified, ID: m.ID, Count: wire.JobGone, Lock: wire.Lock{Name: l.Name, Token: l.Token}}
	answer.Lock.SetQuestion(l.Question())
	id := store.ID(m.ID)
	over := l.Token == 0 && n.jobs.Over(l.Name, id)
	lives := n.holderLives(l.Name, id)
	switch {
	case m.Flags&wire.Disputed != 0:
		answer.Flags, over, lives = wire.Disputed, false, n.countsOnAny(l.Name, id)
	case l.Token > 0:
		lives = n.countsOn(l.Name, id, l.Token)
		if n.mayVoteFor(l.Name, id) {
			answer.Lock.Job = m.ID
		}
		n.keepSeen(l.Token)
	}
	switch {
	case over:
		answer.Count = wire.JobDone
	case lives:
		answer.Count = wire.JobLives
	case n.jobs.Done(id):
		answer.Count = wire.JobDone
	}
	if answer.Count == wire.JobGone && store.SpaceOf(l.Name) == store.LockRun {
		answer.Lock.Lease = n.host.WholeFor()
	}
	n.mesh.Send(p, &answer)
	if m.Flags&wire.Endless != 0 && !over {
		n.jobs.EndLapsed(l.Name, id)
	}
}

func (n *Node) onVerified(p *membership.Peer, m *wire.Message) {
	if m.Flags&wire.Disputed != 0 {
		n.onRival(p, m)
		return
	}
	if m.Lock.Token > 0 {
		n.onLeft(p, m)
		return
	}
	s := n.orphanCheckOf(m.Lock.Name)
	if s == nil || s.lapse || s.id != store.ID(m.ID) || s.question != m.Lock.Question() {
		return
	}
	if s.voted || m.Count != wire.JobDone && (m.Count != wire.JobGone || n.holderLives(m.Lock.Name, s.id) && !n.jobs.Over(m.Lock.Name, s.id)) {
		n.orphanChecks.Remove(string(m.Lock.Name))
		n.orphanKnown(m.Lock.Name, s.id, true)
		return
	}
	l := n.store.Lock(m.Lock.Name)
	if m.Count == wire.JobGone {
		if !slices.Contains(s.gone, p.Node) {
			s.gone = append(s.gone, p.Node)
		}
		s.confirmed = s.confirmed || l != nil && n.claimedBy(l, p.Node) && m.Lock.Lease > n.host.Now()-BegunAt(l.Token)+WholeSpareMS
		if !n.hasAll(s.gone) {
			return
		}
	}
	lives := m.Count == wire.JobGone && !s.confirmed && n.mayRun(l)
	n.orphanChecks.Remove(string(m.Lock.Name))
	n.orphanKnown(m.Lock.Name, s.id, lives)
	if !lives && l != nil && l.Job == s.id && endsWithHolder(l) {
		n.Remove(l)
	}
}

// WholeSpareMS is by how much longer than the time since a run began a node must have lost no data, ms: clocks differ.
const WholeSpareMS = 2_000

// claimedBy says whether node gave out the run whose lock this is.
func (n *Node) claimedBy(l *store.Lock, node wire.Node) bool {
	return l.Space() == store.LockRun && GaveOut(node, l.Token)
}

// mayRun says whether a client may work on a job that no node knows, because the node that gave it the job was
// forgotten, or has lost data since. The client keeps its time all the same. At-most-once jobs that have their
// locks for as long as they live don't count.
func (n *Node) mayRun(l *store.Lock) bool {
	if l == nil || l.Space() != store.LockRun || l.Lease == 0 || forLife(&l.Job, l.Lease) {
		return false
	}
	return !n.claimedBy(l, n.self.Node()) || n.host.WholeFor() <= n.host.Now()-BegunAt(l.Token)+WholeSpareMS
}

// leftover is votes that a job may have although it has no lock, with the nodes that say that they don't count on them.
//
// Each node that has a copy of a job that was put off may ask for its lock. A round takes back only the votes that it
// was given first, since another acquisition for the same job may have won by the others. So votes stay if none wins,
// or if a proposer crashes. Votes for a job that is gone fall when they are in somebody's way (CheckOrphan), but this
// job lives. Two such jobs with the same key could each have half of the votes for good. So a node whose acquisition
// has failed asks all nodes whether they count on votes up to its last token. A node that answers "no" proposes
// only greater tokens from then on (saw, propose), so a lock that it wins later isn't harmed. When all have answered
// "no", the votes are taken back.
type leftover struct {
	name  []byte
	token uint64
	asked int64 // monotonic
	told  []wire.Node
	votes int // how many nodes may have voted for the job
}

// FindLeft looks for votes that are left for a job that was put off again.
func (n *Node) FindLeft(c *Acquisition) {
	if c.proposal == 0 {
		return // no node was asked
	}
	n.leftovers.Put(c.Job, leftover{name: c.name, token: c.proposal, asked: n.host.Monotonic()})
	n.verify(0, &wire.Lock{Name: c.name, Token: c.proposal}, c.Job, 0)
}

// countsOn says whether this node may count on votes for a job, by tokens up to this one. It may if the job isn't put
// off any more, or if a round for it is under way.
func (n *Node) countsOn(name []byte, id store.ID, token uint64) bool {
	if n.jobs.CountsOn(id) {
		return true
	}
	if l := n.byJob[id]; l != nil {
		for c := l.Head; c != nil; c = c.ofJob.Next {
			if string(c.name) == string(name) && c.round != 0 && c.proposal <= token {
				return true
			}
		}
	}
	return false
}

// mayVoteFor says whether the lock can rest on this node's vote for a job: the vote is here, or the node may have given
// it and lost it.
func (n *Node) mayVoteFor(name []byte, id store.ID) bool {
	l := n.Live(name)
	return l != nil && l.Job == id || n.abstainsFrom(name) || n.inDispute(name)
}

// onLeft takes leftover votes back when nobody counts on them. If they are more than half of all votes, they may be a
// lock of which nobody knows after a crash: they stay, and the next acquisition has the lock by them.
func (n *Node) onLeft(p *membership.Peer, m *wire.Message) {
	h := Holder{Job: store.ID(m.ID)}
	left := n.leftovers.Get(h.Job)
	if left == nil || left.token != m.Lock.Token || string(left.name) != string(m.Lock.Name) || slices.Contains(left.told, p.Node) {
		return
	}
	if m.Count != wire.JobGone {
		n.leftovers.Remove(h.Job)
		return
	}
	left.told = append(left.told, p.Node)
	if m.Lock.Job == m.ID {
		left.votes++
	}
	if !n.hasAll(left.told) {
		return
	}
	n.leftovers.Remove(h.Job)
	if n.mayVoteFor(left.name, h.Job) {
		left.votes++
	}
	if !n.jobs.IsPutOff(h.Job) || left.votes >= n.mesh.Majority() {
		return
	}
	n.Unvote(left.name, &h, left.token, 0)
	n.EnqueueUnlock(left.name, h, left.token, 0, n.mesh.Nodes())
}

// verdict says whether the job that has a lock lives. It is for the acquisitions that asked before that was known (at,
// monotonic).
type verdict struct {
	id    store.ID
	lives bool
	at    int64
	left  int // acquisitions, from the first of the lock on, that it is still to be applied to
}

// orphanKnown tells the acquisitions of a lock whether the lock's job lives. If they are very many, some hear it a
// little later.
func (n *Node) orphanKnown(name []byte, id store.ID, lives bool) {
	n.verdicts.Put(string(name), verdict{id: id, lives: lives, at: n.host.Monotonic(), left: math.MaxInt})
	n.applyVerdicts()
}

// applyVerdicts goes on with that, the newest verdict first.
func (n *Node) applyVerdicts() {
	from := n.host.Mark()
	for budget := Slice; n.verdicts.Len() > 0; budget, from = budget-n.acquisitionCost(from), n.host.Mark() {
		if budget <= 0 {
			n.host.WakeIn(1)
			return
		}
		name, v := n.verdicts.At(n.verdicts.Len() - 1)
		l := n.byName[name]
		if l == nil || v.left == 0 {
			n.verdicts.Remove(name)
			continue
		}
		v.left = min(v.left, l.Len) - 1
		c := l.Head
		l.Remove(c, ofName) // moves it to the end
		l.Add(c, ofName)
		n.applyVerdict(c, v)
	}
}

// refuted ends an acquisition that is about to ask again, if the holder's job is known to live and that verdict hasn't
// been applied to it yet.
func (n *Node) refuted(c *Acquisition) bool {
	if c.retries == 0 || n.verdicts.Len() == 0 {
		return false
	}
	if v := n.verdicts.Get(string(c.name)); v != nil && v.lives {
		n.applyVerdict(c, v)
	}
	return c.then == nil
}

func (n *Node) applyVerdict(c *Acquisition, v *verdict) {
	switch {
	case c.began > v.at: // its answers are newer
	case c.round != 0 && !v.lives:
		c.gone = v.id
	case c.round != 0 || c.retries == 0 || c.last.Kind != Conflict || c.last.Job != v.id:
	case v.lives && c.slots != nil:
		n.finishAcquisition(c, n.taken(c), true)
	case v.lives:
		n.finishAcquisition(c, c.last, true)
	default:
		c.gone, c.retry = v.id, n.host.Monotonic()+1
		n.setAlarm(c)
	}
}

// tickOrphanChecks forgets questions that some node hasn't answered, and disputes and contests that are over.
func (n *Node) tickOrphanChecks(now int64) {
	any := n.orphanChecks.Len()+n.leftovers.Len()+n.sync.disputed.Len()+n.sync.contests.Len() > 0
	if any && now >= n.nextLook {
		n.nextLook = now + orphanCheckMS
		n.orphanChecks.Begin()
		n.leftovers.Begin()
		n.sync.disputed.Begin()
		n.sync.contests.Begin()
	}
	more := n.orphanChecks.Pass(orphanChecksMost, func(_ string, s *orphanCheck) bool { return now-s.asked < orphanCheckMS })
	more = n.leftovers.Pass(orphanChecksMost, func(_ store.ID, left *leftover) bool { return now-left.asked < orphanCheckMS }) || more
	more = n.sync.contests.Pass(disputeMost, func(name string, _ *contest) bool {
		n.closeContest([]byte(name))
		return true
	}) || more
	if n.endDisputes(now) || more {
		n.host.WakeIn(1)
	}
}
