package lock

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"

	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// Two mechanisms keep votes true beside the acquisitions. A node that may have lost votes abstains until it has learnt
// them from the others. And a node tells nodes that connect about locks that were given without a majority. If two of
// these contradict each other, the nodes settle which one stays.

// Times and sizes, ms and bytes.
const (
	pullEveryMS      = 1_000
	pullLastMS       = 8_000 // longest pause until a table that isn't full is asked for again
	pullSmallMS      = 2_000 // likewise, for a table of one page
	verifyEveryMS    = 1_000
	mostRetries      = 5 // rounds that an acquisition adds because the holder's job may be gone
	orphanCheckMS    = 10_000
	orphanChecksMost = 1000   // entries of a kind looked at in one tick, to forget old questions
	disputeMost      = 100    // disputes looked at likewise: they may end, or be asked about
	freedMost        = 16_384 // votes in a generation of freedVotes
	pageLocks        = 128
	pageBytes        = 24 << 10
	youngMS          = 60_000 // how long a node that has just come to a mesh may still learn who is in it
	tellSteps        = 200    // buckets of the table looked at in one tick for a node that connected
)

// tableSync says how far a node's table of votes can be relied on. promise.go explains why a node abstains, and when it
// votes again.
type tableSync struct {
	abstain  bool
	voted    bool   // it has voted in this mesh, and lacks none of these votes, though it learns others again
	partial  bool   // votes that this node gave may be missing
	young    int64  // monotonic: until then, a node that comes may have given votes that this node doesn't know
	began    int64  // monotonic: when it began to abstain
	lost     Leases // the longest leases of votes that may be missing
	lostAt   int64  // monotonic: none of them was given later
	unleased bool   // votes without a lease may be missing
	token    uint64 // no vote that may be missing has a greater token, except those that Votes.Tokens covers
	tables   map[wire.Node]tableKind
	pulls    map[wire.Node]*pull
	telling  []telling
	disputed table.Roster[string, dispute]
	freed    freedVotes
	contests table.Roster[string, contest] // by lock
	clears   uint64                        // Node.cleared when it began to abstain
	forgets  uint64                        // Node.forgets when MarkIncomplete was called
}

// tableKind says which table a node has told, from its beginning to its end.
type tableKind uint8

const (
	noTable      tableKind = iota
	partTable              // votes that the node gave may be missing
	newPartTable           // likewise, but it gave them before it knew any node of the mesh
	newTable               // the node is new to the mesh
	voterTable             // likewise, but it has voted in it, and none of its votes is missing
	fullTable
)

type pull struct {
	cursor uint64
	at     int64 // monotonic: when the next page is asked for
	wait   int64 // ms, until a table that isn't full is asked for again
	kind   tableKind
	number uint8 // of the table, as it is read now: its pages have the number, see [pull.has]
	asked  bool  // a page of it was asked for
}

// telling is a walk through the table for a node that connected.
type telling struct {
	node   wire.Node
	cursor uint64
}

// MarkIncomplete makes the node abstain from votes, because its table may lack some that it gave. It abstains until no
// missing vote can matter. The node forgets the locks in its table, except those of jobs that it knows, and those with a
// lease (flagKept, see endKept). With very many locks that takes a while, as a Clearing does. The node abstains at least
// until that is done, because after that the log says that the table is whole.
func (n *Node) MarkIncomplete() {
	n.LacksVotes()
	n.sync.forgets = n.forgets
	n.beginClear(&Clearing{lost: true, upTo: store.MaxToken})
}

// endKept forgets the votes with flagKept that no other node has told of, once so many whole tables were told that one of
// them has each lock that rests on a vote of this node. Until then, or where nodes were forgotten that may have had the
// others' votes, a kept vote stands until its lease is over: a vote that is remembered is never wrong, only late. Nothing
// without a lease is kept so. Other nodes aren't told of a kept vote while this one says that its table is partial, so
// they can't prolong it.
func (n *Node) endKept() {
	if n.sync.partial && n.sync.forgets == n.forgets {
		n.beginClear(&Clearing{kept: true, upTo: store.MaxToken})
	}
}

// yields drops a kept vote (l; nil: none) that stands against the lock of h, if that lock is surely the later one or counts more. It returns the
// vote that is left. token and flags are those of h's lock, as told.
//
// If majorities gave both locks, they have a voter in common, which votes for a new holder only when the former lock is over there, and by
// a greater token. So the greater token is that of the later lock, and the other was over when it was given. But a vote for an acquisition that can
// still fail (flagClaimed) proves nothing, however whole the table that has it. Nor does a lock that was given without a majority: the
// majority may have given another one all the same.
func (n *Node) yields(l *store.Lock, h *Holder, token uint64, flags uint8) *store.Lock {
	if l == nil || !n.isKept(l) || h.has(l) {
		return l
	}
	weak, given := flags&flagsNonQuorum != 0, flags&flagClaimed == 0
	gives := given && !weak && token > l.Token
	if l.Flags&flagsNonQuorum != 0 {
		gives = given || weak // l's holder may lose its lock to either at any time
	}
	if !gives {
		return l
	}
	n.dropLock(l)
	return nil
}

// LacksVotes makes the node abstain as [Node.MarkIncomplete] does, but keeps all locks.
func (n *Node) LacksVotes() {
	n.sync.abstain, n.sync.voted = false, false
	n.learnLocks()
	n.sync.partial = true
	n.sync.lost, n.sync.lostAt, n.sync.unleased = n.votes.kept.Longest, n.votes.lastVote, n.votes.kept.Unleased
	n.sync.token = n.tokenIn(aheadMost + n.votes.lastVote - n.host.Monotonic())
	n.setTable(tableLacks)
}

// learnLocks makes the node abstain from votes until it has those of the others. The node is new to the mesh, unless it
// may have lost votes besides (LacksVotes).
func (n *Node) learnLocks() {
	if !n.sync.abstain {
		n.sync.abstain, n.sync.partial, n.sync.began, n.sync.clears = true, false, n.host.Monotonic(), n.cleared
		n.sync.tables = map[wire.Node]tableKind{}
		former := n.sync.pulls
		n.sync.pulls = make(map[wire.Node]*pull, len(former))
		for node, w := range former {
			if n.mesh.ByName(node) != nil {
				n.sync.pulls[node] = newPull(w)
			}
		}
	}
	n.host.WakeIn(1)
}

// Joins follows a node that this one didn't know. If this node is itself new to the mesh, others may have locks that it
// must not help anybody else to.
func (n *Node) Joins() {
	n.countOthers()
	now := n.host.Monotonic()
	if len(n.mesh.All()) == 1 {
		n.sync.young, n.sync.voted = now+youngMS, false
		n.promiseAll()
	}
	if now < n.sync.young {
		n.newToMesh()
	}
}

// newToMesh makes the node abstain, because others may have voted for locks that it doesn't know.
func (n *Node) newToMesh() {
	v := n.votes.wanted
	v.New = true
	n.votes.want(v)
	n.learnLocks()
}

// TrustLoaded ends the abstaining of a node that restarts, if all its votes were on disk before they were given, and
// the data say of the table that it is whole ([Node.IsComplete]). A node that hadn't learnt the votes of the others yet
// goes on with that. Its own votes aren't missing, so the others can learn from it meanwhile.
func (n *Node) TrustLoaded() {
	if n.table() == tableOwn && len(n.mesh.All()) > 0 {
		n.sync.abstain = false
		n.newToMesh()
		return
	}
	n.Trust()
}

// Trust ends the abstaining: the table is known to be complete.
func (n *Node) Trust() {
	n.sync.abstain, n.sync.tables = false, nil
	n.forgetFreed()
	known := tableFull
	if n.sync.disputed.Len() > 0 {
		known = tableLacks
	}
	n.setTable(known)
	n.votes.wanted.New = false
	n.sync.voted = !n.mesh.Alone()
}

// Abstains says whether the node doesn't vote, see [Node.MarkIncomplete].
func (n *Node) Abstains() bool { return n.abstains() }

func (n *Node) abstains() bool { return n.sync.abstain && len(n.mesh.All()) > 0 }

// RenewLeases begins all leases anew, because it isn't known how much of each was over.
func (n *Node) RenewLeases() {
	for l := n.store.Locks().Head; l != nil; l = l.Next {
		if !Ended(l) {
			l.Until = n.Until(n.leaseOf(l.Name(), l.Flags, l.Token, l.Lease))
			n.Note(l)
		}
	}
}

func (n *Node) syncUp(p *membership.Peer) {
	if n.abstains() {
		delete(n.sync.pulls, p.Node)
		n.tickPulls(n.host.Monotonic())
	}
	if n.nonQuorum > 0 {
		n.sync.telling = slices.DeleteFunc(n.sync.telling, func(t telling) bool { return t.node == p.Node })
		n.sync.telling = append(n.sync.telling, telling{node: p.Node})
		n.host.WakeIn(1)
	}
}

func (n *Node) tickSync(now int64) {
	if n.sync.abstain {
		n.tickPulls(now)
	} else if n.sync.freed.Len() > 0 {
		n.forgetFreed()
	}
	n.sync.telling = slices.DeleteFunc(n.sync.telling, func(t telling) bool { return n.mesh.ByName(t.node) == nil })
	for i := range n.sync.telling {
		n.sendUnconfirmed(&n.sync.telling[i])
	}
	n.sync.telling = slices.DeleteFunc(n.sync.telling, func(t telling) bool { return t.cursor == 0 })
	if len(n.sync.telling) > 0 {
		n.host.WakeIn(1)
	}
}

func (n *Node) tickPulls(now int64) {
	if n.knowsEnough(now) {
		n.Trust()
		return
	}
	if !n.sync.partial {
		n.setTable(tableOwn)
	}
	for _, p := range n.mesh.All() {
		if !p.Connected || n.learntAll(p) {
			continue
		}
		w := n.sync.pulls[p.Node]
		if w == nil {
			w = newPull(nil)
			n.sync.pulls[p.Node] = w
		}
		if now >= w.at {
			w.at, w.asked = now+pullEveryMS, true
			n.mesh.Send(p, &wire.Message{Kind: wire.LockPull, Flags: wire.TableFlags(w.number), Round: w.cursor})
		}
	}
	n.host.WakeIn(pullEveryMS)
}

// learntAll says whether a node has told all that it ever will. A node that was new may have voted since.
func (n *Node) learntAll(p *membership.Peer) bool { return n.sync.tables[p.Node] == fullTable }

// sendUnconfirmed tells a node of some locks that were given without a majority.
func (n *Node) sendUnconfirmed(t *telling) {
	m := wire.Message{Kind: wire.LockPage, Flags: wire.Told}
	for range tellSteps {
		n.scratch.locks = n.scratch.locks[:0]
		t.cursor = n.store.ScanLocks(t.cursor, &n.scratch.locks)
		for _, l := range n.scratch.locks {
			if l.Flags&flagsNonQuorum != 0 && n.IsLive(l) && !n.untold(l) {
				m.Locks = n.tell(m.Locks, l)
			}
		}
		if t.cursor == 0 || len(m.Locks) >= pageLocks {
			break
		}
	}
	if len(m.Locks) > 0 {
		n.mesh.Send(n.mesh.ByName(t.node), &m)
	}
}

// untold says whether others aren't told of a lock for now, see endKept.
func (n *Node) untold(l *store.Lock) bool { return n.lacksOwn() && n.isKept(l) }

// lacksOwn says whether votes that this node gave may be missing.
func (n *Node) lacksOwn() bool { return n.sync.abstain && n.sync.partial }

// tell appends to entries what others are told about a lock: one entry, or for a vote that was raised one for each token
// that its holder may have, ascending. An entry has FlagRenewed only if the holder is known to have that token. The
// lock of a run that was given while this node was alone has no lease: others are told a lease as long as the run,
// because they may miss its end.
func (n *Node) tell(entries []wire.Lock, l *store.Lock) []wire.Lock {
	e := wire.Lock{Name: l.Name(), Owner: l.Owner(), Job: l.Job}
	claimed := uint8(0)
	if n.mayFail(l) {
		claimed = flagClaimed
	}
	vote := func(v before) {
		e.Token, e.Lease, e.Flags, e.Left = v.token, v.lease, v.flags|claimed, 0
		if v.until != 0 {
			e.Left = max(v.until-n.host.Monotonic(), 0)
		}
		entries = append(entries, e)
	}
	last := before{l.Token, l.Lease, l.Until, l.Flags & flagsSaved}
	if r := n.raisedOf(l); r != nil && len(r.before) > 0 {
		last.flags &^= FlagRenewed
		for _, b := range r.before {
			b.flags |= last.flags &^ FlagUnconfirmed
			vote(b)
		}
	}
	vote(last)
	if l.Until == 0 && l.Space() == store.LockRun && n.jobs.Holds(l) {
		e := &entries[len(entries)-1]
		e.Lease = n.jobs.RunLease(l.Job)
		e.Left = e.Lease
	}
	return entries
}

// unlearn prevents that a vote which is taken back is learnt from an older page. That covers votes that others take
// back, and those that this node takes back: another node's table has this node's own votes, too.
func (n *Node) unlearn(name []byte, h *Holder, token uint64, fresh bool) {
	if n.abstains() || n.mayLearn() {
		n.sync.freed.add(freedKey(&wire.Lock{Name: name, Job: wire.JobID(h.Job), Owner: h.Owner, Token: token}), fresh)
	}
}

// mayLearn says whether the node may begin any moment to learn votes, when a new node comes. A vote that was taken back here just
// before can still be in another node's table then.
func (n *Node) mayLearn() bool { return n.host.Monotonic() < n.sync.young }

// forgetFreed forgets which votes were taken back, if the node doesn't learn, and needn't soon.
func (n *Node) forgetFreed() {
	if !n.sync.abstain && !n.mayLearn() {
		n.sync.freed = freedVotes{}
	}
}

// freedVotes are votes that were taken back while the node learns; the value says whether only a fresh vote was meant
// (wire.Fresh). A page that is older may still have them. There are two generations, so that a vote need not be kept for as long as the node learns. A vote
// that is forgotten here may be learnt again: it stands against others until its lease is over.
type freedVotes struct {
	table.Generations[[16]byte, bool]
}

func (f *freedVotes) add(key [16]byte, fresh bool) {
	if f.Young() >= freedMost {
		f.Turn()
	}
	f.Put(key, fresh)
}

// freedKey names a vote by its token, too: the same holder may have another vote, by an older token.
func freedKey(k *wire.Lock) [16]byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %x %s\x00%s", k.Token, k.Job, k.Name, k.Owner))
	return [16]byte(sum[:16])
}

// onPull answers with a page of the table.
func (n *Node) onPull(p *membership.Peer, m *wire.Message) {
	if n.mesh.Untold() {
		// A node that votes by this table must count the nodes that this node counts. The heartbeat that tells of a new
		// node is still to come, and the connection may end before.
		n.mesh.BeatWhole(p)
	}
	page := wire.Message{Kind: wire.LockPage, Flags: wire.TableFlags(wire.TableNumber(m.Flags)), Round: m.Round, Lock: wire.Lock{Token: min(max(n.store.Locks().Floor, n.seen), store.MaxToken)}}
	if n.abstains() && n.sync.partial {
		page.Flags |= wire.Partial
	}
	if n.abstains() && n.votes.wanted.New {
		page.Flags |= wire.Newcomer
		if n.sync.voted {
			page.Flags |= wire.Voter
		}
	}
	// If most locks are over, a page has few locks, or none. Its Round says that there is more.
	for size, steps := 0, sweepSteps; steps > 0 && len(page.Locks) < pageLocks && size < pageBytes; steps-- {
		if isUnlisted(page.Round) {
			page.Round = n.tellUnlisted(&page, &size)
		} else if page.Round = n.tellListed(&page, &size); page.Round == 0 {
			page.Round = unlisted(n.sync.disputed.Len())
		}
		if page.Round == 0 {
			break
		}
	}
	n.mesh.Send(p, &page)
}

// tellListed adds a bucket of the table to a page, and returns the cursor to the next.
func (n *Node) tellListed(page *wire.Message, size *int) (next uint64) {
	n.scratch.locks = n.scratch.locks[:0]
	next = n.store.ScanLocks(page.Round, &n.scratch.locks)
	for _, l := range n.scratch.locks {
		if before := len(page.Locks); n.IsLive(l) && !n.untold(l) && before+beforeMost < wire.MaxLocks {
			page.Locks = n.tell(page.Locks, l)
			*size += l.Size() * (len(page.Locks) - before)
			if d := n.disputeOf(l.Name()); d != nil {
				n.tellRivals(page, size, d, l)
			}
		}
	}
	return next
}

// newPull begins to read a node's table. If it was read by this connection before, former is that; else nil.
func newPull(former *pull) *pull {
	w := &pull{wait: pullEveryMS}
	if former != nil {
		w.number = former.number
	}
	w.begin()
	return w
}

// begin begins to read the table anew.
func (w *pull) begin() {
	w.cursor, w.kind, w.number, w.asked = 0, fullTable, w.number%wire.MaxTableNumber+1, false
}

// has says whether a page is one of the table as it is read now. A question is repeated if the answer takes long, so a page may come more than once. It
// begins where an earlier page ended, so what the cursor has passed is known whichever of the answers comes first. But the last page, once more, would
// count as the only page of a table that is read anew. A node of a former release gives its pages no number: of those the ones that come before the new
// reading has begun don't count.
func (w *pull) has(m *wire.Message) bool {
	number := wire.TableNumber(m.Flags)
	return number == w.number || number == 0 && w.asked
}

// onPage learns votes from another node's table.
func (n *Node) onPage(p *membership.Peer, m *wire.Message) {
	told := m.Flags&wire.Told != 0
	w := n.sync.pulls[p.Node]
	if !told && (!n.abstains() || w == nil || !w.has(m)) {
		return
	}
	since := n.sync.clears
	if told {
		since = n.clearsAt[p.Node]
	}
	for i := range m.Locks {
		e := &m.Locks[i]
		if len(e.Name) == 0 || e.Token == 0 || (e.Job == wire.JobID{}) != (store.SpaceOf(e.Name) == store.LockBare) {
			continue
		}
		n.saw(e.Token)
		if n.clearedSince(since, e.Name, e.Token) {
			continue // the page is older
		}
		if told {
			n.resolve(p, e)
		} else if fresh, gone := n.sync.freed.Get(freedKey(e)); !gone || fresh && e.Flags&FlagRenewed != 0 {
			n.learnLock(p, e, m.Flags&wire.Partial != 0)
		}
	}
	if told {
		return
	}
	n.store.Locks().Floor = max(n.store.Locks().Floor, m.Lock.Token)
	switch m.Flags & (wire.Partial | wire.Newcomer | wire.Voter) {
	case wire.Partial:
		w.kind = partTable
	case wire.Partial | wire.Newcomer:
		w.kind = min(w.kind, newPartTable)
	case wire.Newcomer:
		w.kind = min(w.kind, newTable)
	case wire.Newcomer | wire.Voter:
		w.kind = min(w.kind, voterTable)
	}
	if m.Round != 0 && m.Round == w.cursor {
		return // a page that came before: the next one is asked for
	}
	longest := int64(pullLastMS)
	if w.cursor == 0 { // a single page costs little, and the sender may soon have all votes
		longest = pullSmallMS
	}
	if w.cursor, w.at = m.Round, n.host.Monotonic(); m.Round == 0 {
		n.sync.tables[p.Node] = w.kind
		w.at, w.wait = w.at+w.wait, min(2*w.wait, longest)
		w.begin()
	}
	n.tickPulls(n.host.Monotonic())
}

// learnLock learns a vote from another node. If two nodes have voted for different holders, this node can have voted
// for only one of them. So it votes for neither until both leases are over, unless it is sure of its own vote. If the
// sender's own table is incomplete (partial), ignore a vote that the sender has only learnt, if this node knows the
// lock already by that token or a greater one. Otherwise two such nodes would keep the lock alive by telling each
// other.
func (n *Node) learnLock(p *membership.Peer, e *wire.Lock, partial bool) {
	l, h := n.Live(e.Name), Holder{store.ID(e.Job), e.Owner}
	if !partial {
		l = n.yields(l, &h, e.Token, e.Flags)
	}
	if l != nil && !h.has(l) {
		unsure := n.isKept(l) && e.Flags&(flagsNonQuorum|flagClaimed) == flagClaimed // neither is known to have it
		if (l.Flags|e.Flags)&flagsNonQuorum != 0 && !unsure {
			n.resolve(p, e)
		} else {
			n.dispute(l, e)
		}
		return
	}
	if l != nil && partial && e.Flags&FlagUnconfirmed != 0 && e.Token <= l.Token {
		return
	}
	if n.inDispute(e.Name) {
		n.dispute(l, e)
		if l == nil {
			return
		}
	}
	n.adopt(e)
}

// knowsEnough says whether no vote that the node doesn't know can matter any more.
func (n *Node) knowsEnough(now int64) bool {
	if n.isRecovering() {
		return false
	}
	full, voters, news, voted, others := 0, 0, 0, len(n.mesh.All()), len(n.mesh.All())
	for _, p := range n.mesh.All() {
		switch n.sync.tables[p.Node] {
		case fullTable:
			full++
		case voterTable:
			voters++
			fallthrough
		case newTable:
			news++
			voted--
		case newPartTable:
			voted--
		}
	}
	enough := others - n.mesh.Majority() + 2
	if n.votes.wanted.New {
		// A node that hasn't told its table may not be new, and may have voted together with nodes that this one has
		// never heard of. But a table is told on a connection that tells of those nodes first. More than half of the
		// nodes that have voted include one of each majority of them. They also include one of those that told any
		// other new node, and that one refuses a Claim that doesn't count both new nodes. A node that voted while it
		// was alone has voted with nobody else.
		if voted > 0 && 2*full <= voted {
			return false
		}
		if !n.sync.partial {
			return full+news >= enough || now >= n.sync.began+VoteMS(n.maxLease)
		}
	}
	// This node may lack votes that it gave itself. Enough others have all votes that they gave: each majority that this
	// node was one of has one of them.
	full += voters
	if full < enough && now >= n.allLeasesOver() && (!n.sync.unleased || n.allTold()) {
		n.passLost()
		return true
	}
	if full < enough {
		return false
	}
	n.endKept()
	return true
}

// allTold says whether each known node has told its table.
func (n *Node) allTold() bool {
	return !slices.ContainsFunc(n.mesh.All(), func(p *membership.Peer) bool { return n.sync.tables[p.Node] == noTable })
}

// passLost makes tokens be greater than those of lost votes, which are over.
func (n *Node) passLost() {
	if n.sync.partial && n.sync.lost != (Leases{}) {
		n.store.Locks().Floor = max(n.store.Locks().Floor, n.sync.token)
	}
}

// adopt puts another node's vote into this node's table.
func (n *Node) adopt(e *wire.Lock) *store.Lock {
	l := n.store.Lock(e.Name)
	h := Holder{store.ID(e.Job), e.Owner}
	until := int64(0)
	if e.Lease > 0 {
		until = n.Until(min(max(e.Left, 1), e.Lease))
	}
	switch live := n.IsLive(l); {
	case live && !h.has(l):
		return l
	case live && h.has(l):
		switch kept := e.Flags&FlagRenewed != 0; {
		case n.learnBefore(l, e, until):
		case kept && e.Token >= l.Token:
			n.unraised(e.Name)
			n.SetFlags(l, l.Flags|FlagRenewed)
			l.Token = e.Token
		case e.Token == l.Token: // it is known
		case e.Token > l.Token || l.Flags&FlagRenewed == 0:
			// As if this node had voted for both tokens: the vote falls back to the older one.
			n.learnRaised(l, e, until)
			n.SetFlags(l, l.Flags|FlagRenewed)
		}
		if l.Until != 0 && (until == 0 || until > l.Until) {
			l.Until, l.Lease = until, e.Lease
		}
	default:
		if l != nil {
			if !h.has(l) {
				n.jobs.Lapsed(l)
			}
			n.dropLock(l)
		}
		l = n.newLock(e.Name, e.Owner)
		l.Job, l.Token, l.Lease, l.Until = h.Job, e.Token, e.Lease, until
		flags := e.Flags &^ FlagUnconfirmed
		if l.Job != (store.ID{}) {
			flags |= FlagForeign
		}
		if n.SetFlags(l, flags); e.Flags&flagsNonQuorum == 0 {
			l.Flags |= FlagUnconfirmed
		}
	}
	n.Log(l)
	return l
}

// resolve compares a lock that was given without a majority with what this node knows. All nodes that compare the
// same two locks reach the same result. A lock that needed a majority wins. Between two others the older one wins, by
// their tokens; how many nodes voted for each doesn't count, because only its proposer knows that. If the tokens are
// equal, the smaller holder wins. A lock that a mesh gave doesn't lose to a vote for an acquisition that can still fail.
// So a node says that a lock is lost only if it knows that the winner was given.
func (n *Node) resolve(p *membership.Peer, e *wire.Lock) {
	l := n.Live(e.Name)
	h := Holder{store.ID(e.Job), e.Owner}
	if e.Flags&FlagOutlives == 0 && n.jobs.Done(h.Job) {
		return // the node that tells of it will hear that the job is done
	}
	l = n.yields(l, &h, e.Token, e.Flags)
	if l == nil || h.has(l) {
		n.adopt(e)
		return
	}
	weak := func(flags uint8) int {
		if flags&flagsNonQuorum != 0 {
			return 1
		}
		return 0
	}
	loses := cmp.Or(cmp.Compare(weak(e.Flags), weak(l.Flags)), cmp.Compare(e.Token, l.Token), bytes.Compare(e.Job[:], l.Job[:]), bytes.Compare(e.Owner, l.Owner())) < 0
	switch {
	case loses && e.Flags&flagClaimed == 0:
		loser := Holder{l.Job, slices.Clone(l.Owner())}
		n.dropLock(l)
		n.tellLost(&loser, e.Name)
		n.adopt(e)
		return
	case loses: // p must say first whether its lock was given
	case n.mayFail(l):
		c := contest{node: p.Node, lock: *e, told: n.host.Monotonic(), clears: n.cleared}
		c.lock.Name, c.lock.Owner = slices.Clone(e.Name), slices.Clone(e.Owner)
		n.sync.contests.Put(string(e.Name), c)
		return
	default:
		n.tellLost(&h, e.Name)
	}
	n.mesh.Send(p, &wire.Message{Kind: wire.LockPage, Flags: wire.Told, Locks: n.tell(nil, l)})
}

// contest is a lock that a node told of, while this node's vote for another holder stands against it. The acquisition
// of that holder can still fail. If the vote ends, the lock is learnt after all. If the other holder is known to have
// the lock, this one is lost.
type contest struct {
	node   wire.Node
	lock   wire.Lock
	told   int64  // monotonic
	clears uint64 // Node.cleared then
}

// mayFail says whether a lock in the table may be only a vote for an acquisition that can still fail. It can't if it
// was given at once, if its job has it, or if this node acquired it and isn't asking for it any more.
func (n *Node) mayFail(l *store.Lock) bool {
	switch {
	case l.Flags&FlagAlone != 0 || l.Flags&FlagOutlives == 0 && n.jobs.Holds(l):
		return false
	case l.By != nodeBits(n.self.Node()):
		return true
	}
	if list := n.asked[string(l.Name())]; list != nil {
		for c := list.Head; c != nil; c = c.asking.Next {
			if c.kind == take && c.fresh && c.has(l) {
				return true
			}
		}
	}
	return false
}

// closeContest ends the contest about a lock, if it can be decided by now.
func (n *Node) closeContest(name []byte) {
	if n.sync.contests.Len() == 0 {
		return // the usual case; it doesn't copy the name
	}
	c := n.sync.contests.Get(string(name))
	if c == nil || n.host.Passive() {
		return
	}
	if l := n.Live(name); l != nil && n.mayFail(l) && !c.over(n.host.Monotonic()) {
		return
	}
	n.sync.contests.Remove(string(name))
	if c.over(n.host.Monotonic()) || n.mesh.Alone() || n.mayBeCleared(c.clears, name, c.lock.Token) {
		return
	}
	c.lock.Left -= n.host.Monotonic() - c.told
	if p := n.mesh.ByName(c.node); p != nil {
		n.resolve(p, &c.lock)
	}
}

// over says whether the lease is over that was told.
func (c *contest) over(now int64) bool { return c.lock.Lease > 0 && now-c.told >= c.lock.Left }

// uncontest notes that a holder has given up a lock, by tokens up to this one.
func (n *Node) uncontest(name []byte, h *Holder, token uint64) {
	if n.sync.contests.Len() == 0 {
		return
	}
	if c := n.sync.contests.Get(string(name)); c != nil && store.ID(c.lock.Job) == h.Job && string(c.lock.Owner) == string(h.Owner) && c.lock.Token <= token {
		n.sync.contests.Remove(string(name))
	}
}

// tellLost tells all nodes that a job has lost a lock: they may have the job, or the lock in a contest.
func (n *Node) tellLost(h *Holder, name []byte) {
	n.jobs.Loses(h.Job)
	n.uncontest(name, h, store.MaxToken)
	m := wire.Message{Kind: wire.LockLost, ID: h.Job, Lock: wire.Lock{Name: name, Owner: h.Owner}}
	n.mesh.SendAll(&m)
}
