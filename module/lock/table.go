package lock

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"math"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Locks. A job has locks for what it is unique by; an owner has those of LOCK.ACQUIRE. All are in the store's table. A
// lock lasts until its lease is over, by the monotonic clock; without a lease, as long as its job says so. A lock whose
// lease is over is as good as free. It is removed when somebody comes by; if somebody waits for it, its deadline is
// watched.
//
// In a mesh the table has this node's votes (vote.go). acquisition.go says how votes become a lock.

const (
	lockSteps  = 10      // buckets looked at in one tick, at least
	lockTicks  = 30      // in larger tables: one bucket for so many locks
	lockLookMS = 50      // the shortest pause between ticks that look
	lockPassMS = 150_000 // about how long a pass over very many locks takes, if there is nothing else to do
	staleSteps = 500     // buckets in one tick while many locks are over, see staleShare
	staleShare = 4       // many: one in so many of those that the last tick saw
	sweepSteps = 1000    // buckets in one tick after many jobs went at once; also the most
	lockMost   = 1500    // locks looked at in one tick: 1 ms if they are jobs' locks
	lockSlice  = 300     // locks ended in one tick
	wakeCost   = 4       // the cost of waking those that wait to ask for a lock, in locks ended
	endedSlice = 2000    // locks removed in one tick, those that had been over for a while included
	EndedMS    = 2_000   // how long a lock that is over is kept

	longLeaseMS = 600_000 // longer leases of at-most-once jobs are for as long as these live

	orphanFirstMS = 2_000  // until those that wait for a lock ask whether its job is gone; doubles each time
	orphanLastMS  = 60_000 // the longest such pause
)

// Flags of a lock.
const (
	// FlagAny: given with QUORUM any, so another node may have given it to another holder.
	FlagAny uint8 = 1 << iota
	// FlagAlone: given while the node knew no other; nodes that come are told.
	FlagAlone
	// FlagOutlives: the end of its job doesn't end it (UNIQUE window).
	FlagOutlives
	// FlagRenewed: the holder had the lock before it was given this token.
	FlagRenewed
	// FlagForeign: a vote of a mesh, for a job that this node need not know.
	FlagForeign
	// flagLogged: it is in the log, so its end must be logged, too. Never saved as true.
	flagLogged
	// flagClaimed, in what others are told of a lock: it may be a vote for an acquisition that can still fail. In the table the bit is flagKept.
	flagClaimed
	// FlagUnconfirmed: learnt from another node's table. That table may be older than what this node has forgotten. So
	// the vote stands against others, and counts for its holder only when a majority of other votes has.
	FlagUnconfirmed

	// flagKept, in the table: the vote was in what a node loaded that may have lost the end of its log, and it isn't known whether it was
	// taken back since ([Node.MarkIncomplete]). Never loaded.
	flagKept = flagClaimed

	flagsNonQuorum = FlagAny | FlagAlone
	flagsSaved     = FlagAny | FlagAlone | FlagOutlives | FlagRenewed | FlagForeign | FlagUnconfirmed
)

// deadline is a lock that somebody waits for and that ends by itself, or a lock in backoff, which isn't asked for until
// then. Each lock is there once.
type deadline struct {
	at   int64 // monotonic, ms
	name string
	wait int64 // pause until all nodes are asked whether the lock's job is gone, ms, see Watch; 0: nobody waits for that
	pos  int
}

func (d *deadline) Sooner(than *deadline) bool { return d.at < than.at }
func (d *deadline) Position() *int             { return &d.pos }

// Await makes Tick look at a lock at a time (monotonic, ms), or before.
func (n *Node) Await(name []byte, at int64) {
	switch d := n.awaited[string(name)]; {
	case d == nil:
		d = &deadline{at: at, name: string(name)}
		n.awaited[d.name] = d
		heap.Push(&n.deadlines, d)
	case at < d.at:
		d.at = at
		heap.Fix(&n.deadlines, d.pos)
	}
	n.host.WakeIn(max(at-n.host.Monotonic(), 0))
}

// unawait ends the watch of a lock, unless the lock is in backoff.
func (n *Node) unawait(name []byte) {
	switch d := n.awaited[string(name)]; {
	case d == nil:
	case n.jobs.HasBackoff(d.name):
		d.wait = 0 // it was for the holder that is gone
	default:
		heap.Remove(&n.deadlines, d.pos)
		delete(n.awaited, d.name)
	}
}

// TokenShift is how many bits of a token lie below its time: a token begins with the unix time, ms.
const TokenShift = 20

// Clients aren't shown the lowest bits of a token. The rest is below 2^53 until the year 2109, so that JavaScript, Lua
// and others that count in floating point keep it whole. Two tokens that one node gives out differ in the part that is
// shown. Only the tokens of bare locks come back from clients: their lowest bits are 0.
const (
	hiddenBits = 9
	hiddenMask = 1<<hiddenBits - 1
)

// MaxShownToken is the greatest token that a client may name.
const MaxShownToken = 1<<53 - 1

// nextShown is the lowest token above this one that clients see as a greater one.
func nextShown(token uint64) uint64 { return (token | hiddenMask) + 1 }

// ShownToken is a token as clients see it.
func ShownToken(token uint64) int64 { return int64(token >> hiddenBits) }

// BareToken is the token of a bare lock that a client sees as shown, from 1 to [MaxShownToken].
func BareToken(shown int64) uint64 { return uint64(shown) << hiddenBits }

// reserveMS is how far ahead of the last token the log writes tokens off: one record covers all tokens that are given
// out until the next record. The next record is written when half is left. So a crash that loses the last two seconds
// of the log loses no token that was given. The span isn't longer, because after a restart tokens begin at its end.
// That is ahead of the time, and resolve tells by the tokens which of two locks is older.
const reserveMS = 6_000

// tokenIn is the least token that the clock gives in ms from now.
func (n *Node) tokenIn(ms int64) uint64 { return uint64(max(n.host.Now()+ms, 0)) << TokenShift }

// nextToken makes a fencing token that is greater than any before it for this lock (l may be nil). It begins with the
// time, so that tokens grow even if all that was remembered is lost.
func (n *Node) nextToken(l *store.Lock) uint64 {
	last := max(n.store.Locks().Floor, n.seen)
	if l != nil {
		last = max(last, l.Token)
	}
	token := max(n.tokenIn(0), nextShown(last))
	n.reserve(token)
	return token
}

// aheadMS is how far beyond the tokens that were written off before a start new ones may go, until the clock has
// reached those. Meanwhile what the log says of new tokens can be lost as well.
const aheadMS = 3_000

// TokensAhead is the greatest token that this node may give out before its clock reaches the tokens that were written
// off before it started; 0: the clock has reached them. The caller must have that on disk before the first such token
// is given. The log entries of such tokens can be lost in a crash, and then the next start would begin with the same
// token.
func (n *Node) TokensAhead() uint64 {
	from := max(n.store.Locks().Floor, n.reserved)
	if from <= n.tokenIn(0) {
		return 0
	}
	return min(from+aheadMS<<TokenShift, store.MaxToken)
}

func (n *Node) reserve(token uint64) {
	if token+reserveMS/2<<TokenShift > n.reserved {
		n.reserved = token + reserveMS<<TokenShift
		n.logEnd(nil, n.reserved)
	}
	n.seen = max(n.seen, token)
}

// keepSeen writes a token off that this node saw, so that this node's tokens are greater after a restart, too.
func (n *Node) keepSeen(token uint64) {
	if token <= n.seen && token > n.reserved {
		n.reserved = token
		n.logEnd(nil, token)
	}
}

// ownMask are the bits of a token that tell nodes apart, in the locks of runs and in those asked for with QUORUM any.
// Two nodes may each ask for a run of the same job, and must not take each other's lock for their own. And each side of
// a partition may give a lock: whatever the token guards must see that the two aren't the same.
const ownMask = 1<<16 - 1

// ownToken is the next token, from this one on, that no other node gives out for a lock of this space. For a bare lock,
// which only its owner asks for, another node hardly ever gives out the same.
func (n *Node) ownToken(space store.Space, token uint64) uint64 {
	own := uint64(n.self.Node()) & ownMask
	if space == store.LockBare {
		own &^= hiddenMask
	}
	if token&ownMask > own {
		token += ownMask + 1
	}
	token = token&^ownMask | own
	if n.firstOwn == 0 {
		n.firstOwn = token
	}
	n.reserve(token)
	return token
}

// GaveInVain says, for a token that this node gave out, and by which a job doesn't have its lock, whether nobody can have the
// lock by it: the node gave it out since its start, and since it was a replica last, and isn't asking for the lock by it now.
// (Later tokens are greater than all from before.)
func (n *Node) GaveInVain(name []byte, job store.ID, token uint64) bool {
	if n.firstOwn == 0 || token < n.firstOwn {
		return false
	}
	if list := n.asked[string(name)]; list != nil {
		for c := list.Head; c != nil; c = c.asking.Next {
			if c.Job == job && (c.first == 0 || token >= c.first) {
				return false
			}
		}
	}
	return true
}

// IsOwnToken says whether this node gave out the token of a run.
func (n *Node) IsOwnToken(token uint64) bool { return GaveOut(n.self.Node(), token) }

// GaveOut says whether node gave out the token of a run.
func GaveOut(node wire.Node, token uint64) bool { return token&ownMask == uint64(node)&ownMask }

// saw notes a token that another node knows: this node's tokens are greater from now on. It ignores a token from the
// far future, which can only be an error.
func (n *Node) saw(token uint64) {
	if token > n.seen && token < n.tokenIn(dayMS) {
		n.seen = token
	}
}

// FromTheFuture says whether neither this node nor its clock can explain a token: only an error can have made it.
func (n *Node) FromTheFuture(token uint64) bool {
	return token > max(n.store.Locks().Floor, n.seen, n.reserved) && token >= n.tokenIn(dayMS)
}

const dayMS = 86_400_000

// Live finds a lock that somebody has; nil: it is free.
func (n *Node) Live(name []byte) *store.Lock {
	l := n.store.Lock(name)
	if !n.IsLive(l) {
		return nil
	}
	return l
}

// IsLive says whether somebody still has the lock l (nil: no). Then its lease lasts, nothing clears it, and if a job of
// this node has it, that job says so, too.
func (n *Node) IsLive(l *store.Lock) bool {
	if l == nil || l.Until != 0 && l.Until <= n.host.Monotonic() {
		return false
	}
	if len(n.clears) > 0 && n.clearingOf(l) != nil {
		return false
	}
	return n.lives(l)
}

// lives is IsLive without regard to clearing.
func (n *Node) lives(l *store.Lock) bool {
	if l.Until != 0 && l.Until <= n.host.Monotonic() {
		return false
	}
	return l.Space() == store.LockBare || l.Flags&FlagForeign != 0 && (!n.mesh.Alone() || n.outlivesMesh(l)) || n.jobs.Holds(l)
}

// outlivesMesh says whether a vote lasts to its end though all other nodes are forgotten: a client may still work on the job, and
// keeps its time. After RESET, which forgets all that was, no vote lasts.
func (n *Node) outlivesMesh(l *store.Lock) bool {
	return l.Space() == store.LockRun && l.Until != 0 && !forLife(&l.Job, l.Lease) && !n.beforeReset(l) && !n.jobs.Done(l.Job)
}

// beforeReset says whether a vote is from before the last RESET: by its token, or by its lease if it was loaded, since the tokens of such votes
// aren't looked at.
func (n *Node) beforeReset(l *store.Lock) bool {
	return n.reset.done && (l.Token <= n.reset.seen || l.Until-l.Lease <= n.reset.at)
}

// Reset follows RESET: the votes for the jobs of other nodes are over.
func (n *Node) Reset() {
	n.reset = lastReset{done: true, seen: n.seen, at: n.host.Monotonic()}
	n.Sweep()
}

// lastReset is what the node knows of its last RESET.
type lastReset struct {
	done bool
	seen uint64 // Node.seen then
	at   int64  // monotonic
}

// endedByFlush says whether a flush has ended a lock that is in the table still. A window ends with the epoch in which
// it began; a vote of a mesh stays. C has the same rule (cgo/record): such a lock is saved as one that is over,
// because a reader of what is saved doesn't know of the flush.
func (n *Node) endedByFlush(l *store.Lock) bool {
	return l.Flags&FlagOutlives != 0 && l.Era != n.store.Locks().Epoch && (l.Flags&FlagForeign == 0 || n.mesh.Alone())
}

// Take gives a lock to a job, for lease ms (0: until it is freed), and returns its token. If another has the lock, Take
// returns that lock as holder. A job that has the lock already keeps its token, and its lease begins anew. Only this
// node decides; see [Node.AcquireFor].
func (n *Node) Take(name []byte, id *store.ID, lease int64) (token uint64, holder *store.Lock) {
	return n.TakeHashed(name, n.store.LockHash(name), id, lease)
}

func (n *Node) TakeHashed(name []byte, hash uint64, id *store.ID, lease int64) (token uint64, holder *store.Lock) {
	l, fresh := n.store.LockOrNew(name, hash)
	for !fresh && (l.Job != *id || Ended(l) || n.clearingOf(l) != nil) {
		switch {
		case n.IsLive(l):
			return 0, l
		case Ended(l): // kept only for its token
			n.store.RemoveLock(l)
		default: // another lock may take its place, see noteFreed
			n.Remove(l)
		}
		l, fresh = n.store.LockOrNew(name, hash)
	}
	if fresh {
		l.Job, l.Token = *id, n.nextToken(nil)
		if n.mesh.Alone() {
			n.SetFlags(l, FlagAlone)
		}
	}
	l.Lease, l.Until = lease, n.Until(lease)
	n.Note(l)
	return l.Token, nil
}

// Free ends a job's lock, at all nodes. False: this node had no vote for it.
func (n *Node) Free(name []byte, id *store.ID) bool {
	l := n.store.Lock(name)
	if l == nil || l.Job != *id || Ended(l) {
		return false
	}
	if !n.mesh.Alone() && !n.host.Passive() && !n.host.Loading() {
		n.EnqueueUnlock(name, Holder{Job: *id}, l.Token, 0, n.mesh.Nodes())
	}
	n.Remove(l)
	return true
}

// newLock makes a lock; there must be none of that name.
func (n *Node) newLock(name, owner []byte) *store.Lock {
	l := n.store.NewLock(name, owner)
	l.Era = n.store.Locks().Epoch
	return l
}

// SetFlags replaces those flags of a lock that are saved.
func (n *Node) SetFlags(l *store.Lock, flags uint8) {
	n.countNonQuorum(l, -1)
	l.Flags = l.Flags&^flagsSaved | flags&flagsSaved
	n.countNonQuorum(l, 1)
}

func (n *Node) countNonQuorum(l *store.Lock, by int) {
	if l.Flags&flagsNonQuorum != 0 {
		n.nonQuorum += by
	}
}

// Remove forgets a lock that is over, tells its job, and lets those go on that waited for it.
func (n *Node) Remove(l *store.Lock) {
	if Ended(l) {
		return
	}
	n.countCleared(l) // while its job still says that it has it
	n.jobs.Lapsed(l)
	n.scratch.name = append(n.scratch.name[:0], l.Name()...)
	n.takeOutLock(l)
	n.IsFreed(n.scratch.name)
}

// countCleared adds a lock that is about to end to the count of the Clearing that ends it.
func (n *Node) countCleared(l *store.Lock) {
	if c := n.clearingOf(l); c != nil && n.lives(l) {
		c.cleared++
	}
}

func (n *Node) takeOutLock(l *store.Lock) {
	if l.Flags&flagLogged != 0 {
		n.logEnd(l.Name(), l.Token)
	}
	n.countNonQuorum(l, -1)
	n.unawait(l.Name())
	if n.mesh.Alone() {
		n.store.RemoveLock(l)
		return
	}
	n.markEnded(l)
}

// dropLock removes a lock whose place another one takes, which may have a smaller token. Its end is logged:
// otherwise a reader of the log skips the new lock, since the greater token stands.
func (n *Node) dropLock(l *store.Lock) {
	if l.Flags&flagLogged != 0 {
		n.logEnd(l.Name(), l.Token)
	}
	n.countNonQuorum(l, -1)
	n.unraised(l.Name())
	n.store.RemoveLock(l)
}

// markEnded marks a lock as over, see [Ended].
func (n *Node) markEnded(l *store.Lock) { l.Flags, l.Until = 0, -max(n.host.Monotonic(), 1) }

// Ended says whether a lock is over and kept only for its token. If that token became the floor at once, acquisitions
// of other locks that are under way would be below the floor. Until is then the negative of the time when the lock
// ended.
func Ended(l *store.Lock) bool { return l.Until < 0 }

// IsFreed follows a lock that has become free: it lets those go on that wait for it.
func (n *Node) IsFreed(name []byte) {
	n.noteFreed(name)
	n.closeContest(name)
	n.jobs.Freed(name)
	n.callLine(name)
}

// Until is when a lease that begins now is over, in a mesh when the vote for it is (monotonic, ms); 0: it has no end.
func (n *Node) Until(lease int64) int64 {
	switch {
	case lease == 0:
		return 0
	case n.mesh.Alone():
		return n.host.Monotonic() + lease
	}
	return n.host.Monotonic() + VoteMS(lease)
}

// Watch makes [Node.Tick] see the end of a lock for those that wait for it.
func (n *Node) Watch(l *store.Lock) {
	wait := int64(orphanFirstMS)
	if d := n.awaited[string(l.Name())]; d != nil && d.wait > 0 {
		wait = d.wait // it is watched already
	}
	n.watchFor(l, wait)
}

// watchFor is Watch; after wait ms, if not before, Tick also checks whether the lock's job is gone.
func (n *Node) watchFor(l *store.Lock, wait int64) {
	if l.Until == 0 {
		return
	}
	at := l.Until
	if n.orphaned(l) {
		at = min(at, n.host.Monotonic()+wait)
	}
	n.Await(l.Name(), at)
	n.awaited[string(l.Name())].wait = wait
}

// orphaned says whether those that wait for a lock must ask now and then whether any node knows its job, since this one
// doesn't. The Unlock may never come: the node that has to send it may have been restarted, or have too many pending
// unlocks.
func (n *Node) orphaned(l *store.Lock) bool {
	return endsWithHolder(l) && l.Job != (store.ID{}) && !n.holderLives(l.Name(), l.Job)
}

// Tick ends the watched locks that are over, and removes some of the others that are over.
func (n *Node) Tick() {
	if n.store.Locks().Len == 0 {
		n.sweep = 0 // there is nothing left that could be swept
		if len(n.deadlines) == 0 {
			return
		}
	}
	now := n.host.Monotonic()
	live := 0
	for ; len(n.deadlines) > 0 && n.deadlines[0].at <= now && live < lockSlice; live++ {
		d := heap.Pop(&n.deadlines).(*deadline)
		name := d.name
		delete(n.awaited, name)
		if n.jobs.BackoffOver([]byte(name)) {
			live += wakeCost - 1
		}
		switch l := n.store.Lock([]byte(name)); {
		case l == nil:
		case l.Until == 0: // it had a lease until another node told of its lock
			n.store.WakeKeyQueues(l.Name())
		case l.Until <= now:
			n.Remove(l)
		default: // it was extended
			if n.orphaned(l) {
				n.CheckOrphan(l)
			}
			n.watchFor(l, min(max(2*d.wait, orphanFirstMS), orphanLastMS))
		}
	}
	if len(n.deadlines) > 0 {
		n.host.WakeIn(max(n.deadlines[0].at-now, 1))
	}
	// The pass comes back to each vote without a lease long before the vote's promise is over.
	again := max(lockLookMS, lockPassMS*sweepSteps/int64(n.store.Locks().Len+1))
	if since := now - n.lockLook; n.sweep == 0 && !n.stale && since < lockLookMS {
		n.host.WakeIn(again - since)
		return // ticks in quick succession have other work to go on with
	}
	n.lockLook = now
	n.host.WakeIn(again)
	steps := max(lockSteps, int(min(n.store.Locks().Len/lockTicks, sweepSteps)))
	switch {
	case n.sweep > 0:
		steps = sweepSteps
	case n.stale:
		steps = staleSteps
	}
	seen, over := 0, 0
	for ; steps > 0 && seen < lockMost && live < lockSlice && over < endedSlice; steps-- {
		n.scratch.locks = n.scratch.locks[:0]
		n.lockCursor = n.store.ScanLocks(n.lockCursor, &n.scratch.locks)
		seen += len(n.scratch.locks)
		for _, l := range n.scratch.locks {
			switch {
			case Ended(l):
				if now+l.Until >= EndedMS {
					n.store.RemoveLock(l)
					over++
				}
			case !n.IsLive(l):
				n.Remove(l)
				over++
				live++
			case unleased(l.Space(), &l.Job, l.Flags, l.Lease):
				n.votes.unleased = max(n.votes.unleased, now+promiseKeptMS)
				n.lookForOrphan(l, now)
			case l.Lease > longLeaseMS && l.Flags&FlagOutlives != 0 && endsWithHolder(l):
				n.lookForOrphan(l, now)
			}
		}
		if n.lockCursor == 0 {
			n.sweep = max(n.sweep-1, 0)
			break
		}
	}
	// If many of these are over, so are many that this tick hasn't come to.
	n.stale = over >= lockSteps && over >= seen/staleShare
	if n.sweep > 0 && n.lockCursor != 0 || n.stale {
		n.host.WakeIn(1)
	}
}

// --- what is logged and loaded -------------------------------------------------

// Log logs a lock that has changed (SETLOCK). From then on its vote is known, see confirm.
func (n *Node) Log(l *store.Lock) {
	n.confirm(l)
	n.write(l)
}

// write logs a lock as it is now.
func (n *Node) write(l *store.Lock) {
	kept := l.Flags & flagKept
	l.Flags &^= flagLogged | flagKept
	n.host.LogLock(l)
	l.Flags |= flagLogged | kept
}

// confirm notes that a vote is known: it was given, changed or told since the node began to recover. So it hasn't flagKept any more,
// and the Clearing of MarkIncomplete, which may not have come to it yet, passes it by.
func (n *Node) confirm(l *store.Lock) {
	l.Flags &^= flagKept
	for _, c := range n.clears {
		if c.lost && int16(c.age-l.Age) > 0 {
			l.Age = c.age
		}
	}
}

// logEnd logs the end of a lock that had this token (DELLOCK). Without a name it logs that no token up to this one may
// be given out again. With the name [tableMark] it logs what is known of the table as a whole.
func (n *Node) logEnd(name []byte, token uint64) {
	n.host.LogUnlock(name, token)
}

// These say what is known of a table as a whole. After a restart a node believes only a log that says so and that names
// this node: a Redis replica has its master's log.
const (
	tableLacks uint64 = iota // votes that this node gave may be missing
	tableFull                // it has all votes that this node gave, and those that it had to learn
	tableOwn                 // it has all votes that this node gave, but is still to learn those of others

	tableBits = 2
)

// tableMark is no lock's name: those begin with a [store.Space].
var tableMark = []byte("table")

// marked is the mark of this node's table, if that is known of it.
func (n *Node) marked(known uint64) uint64 {
	if known == tableLacks {
		return 0
	}
	return uint64(n.self.Node())>>(tableBits+1)<<tableBits | known
}

// table is what is known of the table as a whole.
func (n *Node) table() uint64 {
	if mark := n.store.Locks().Complete; mark == n.marked(mark&(1<<tableBits-1)) {
		return mark & (1<<tableBits - 1)
	}
	return tableLacks
}

// setTable notes, and logs, what is known of the table as a whole.
func (n *Node) setTable(known uint64) {
	if mark := n.marked(known); n.store.Locks().Complete != mark {
		n.store.Locks().Complete = mark
		n.logEnd(tableMark, mark)
	}
}

// IsComplete says whether the loaded data said that the table has all votes that this node gave.
func (n *Node) IsComplete() bool { return n.table() != tableLacks }

// EndVote takes this node's vote of this very token back. The process before had taken it back when its data were saved.
func (n *Node) EndVote(name []byte, token uint64) {
	if l := n.Live(name); l != nil && l.Token == token {
		n.Remove(l)
	}
}

// UnlockParts takes the bytes of a LogUnlock effect apart.
func UnlockParts(b []byte) (name []byte, token uint64) {
	return b[8:], binary.LittleEndian.Uint64(b)
}

// Apply applies a SETLOCK, or a lock from an RDB. The lock's lease begins anew; a window has what is left of it.
// Applying a lock twice does no harm. Errors wrap [store.ErrRecord].
func (n *Node) Apply(rec []byte) error {
	r, err := store.ParseLock(rec)
	if err != nil {
		return err
	}
	if r.Ended {
		n.ApplyFloor(r.Token)
		return nil
	}
	old, age := n.store.Lock(r.Name), n.store.LockAge
	if old != nil && old.Token > r.Token {
		return nil
	}
	if old != nil {
		age = old.Age // after DEBUG RELOAD it is still being cleared
		n.countNonQuorum(old, -1)
		n.store.RemoveLock(old)
	}
	left := n.leaseOf(r.Name, r.Flags, r.Token, r.Lease)
	if left < 0 {
		n.ApplyFloor(r.Token)
		return nil
	}
	l := n.newLock(r.Name, r.Owner)
	l.Job, l.Token, l.Lease, l.Age = r.Job, r.Token, r.Lease, age
	n.SetFlags(l, r.Flags)
	l.Flags |= flagLogged
	l.Until = n.Until(left)
	n.Note(l)
	return nil
}

// leaseOf is the lease of a lock that begins anew, ms: all of it, but for a window what is left of it; negative: the
// window is over.
func (n *Node) leaseOf(name []byte, flags uint8, token uint64, lease int64) int64 {
	if flags&FlagOutlives == 0 || store.IsSlotsName(name) {
		return lease
	}
	if lease = min(lease, BegunAt(token)+lease-n.host.Now()); lease <= 0 {
		return -1
	}
	return lease
}

// ApplyEnd applies a DELLOCK, see logEnd.
func (n *Node) ApplyEnd(name []byte, token uint64) {
	switch {
	case string(name) == string(tableMark):
		n.ApplyMark(token)
		return
	case len(name) == 0 && token <= tableOwn: // a former release didn't say whose table it is
		n.ApplyMark(tableLacks)
		return
	}
	if l := n.store.Lock(name); l != nil && l.Token <= token {
		n.countNonQuorum(l, -1)
		n.store.RemoveLock(l)
	}
	n.ApplyFloor(token)
}

// ApplyMark applies what was saved of the table as a whole.
func (n *Node) ApplyMark(mark uint64) { n.store.Locks().Complete = mark }

// ApplyFloor makes sure that no token up to this one is given out again.
func (n *Node) ApplyFloor(token uint64) {
	if token <= store.MaxToken {
		n.store.Locks().Floor = max(n.store.Locks().Floor, token)
		n.reserved = max(n.reserved, token)
	}
}

// Drop forgets all locks, before another table is loaded in their place.
func (n *Node) Drop() {
	n.ApplyMark(tableLacks)
	for l := n.store.Locks().Head; l != nil; l = n.store.Locks().Head {
		n.countNonQuorum(l, -1)
		n.store.RemoveLock(l)
	}
}

// LogReserved logs again which tokens are written off, after the log was rewritten: what is saved of the table doesn't
// say so.
func (n *Node) LogReserved() {
	if n.reserved > 0 {
		n.logEnd(nil, n.reserved)
	}
}

// Relog logs all locks again, for a log that begins without them.
func (n *Node) Relog() {
	for l := n.store.Locks().Head; l != nil; l = l.Next {
		switch {
		case Ended(l):
		case n.endedByFlush(l):
			n.logEnd(l.Name(), l.Token)
		default:
			n.write(l)
		}
	}
	n.logEnd(nil, max(n.store.Locks().Floor, n.reserved))
	n.logEnd(tableMark, n.store.Locks().Complete)
}

// --- looking ---------------------------------------------------------------------

// Count counts the locks in the table, including those that are over.
func (n *Node) Count() uint64 { return n.store.Locks().Len }

// Lock finds a lock that somebody has, by its full name, as far as this node knows; nil: it is free.
func (n *Node) Lock(name []byte) *store.Lock { return n.Live(name) }

// Table is the list of all locks, for C.
func (n *Node) Table() *store.LockList { return n.store.Locks() }

// Left is how much of a lock's lease is left, ms; -1: it has none.
func (n *Node) Left(l *store.Lock) int64 {
	if l.Until == 0 {
		return -1
	}
	return max(l.Until-n.host.Monotonic(), 0)
}

// Since is when a lock was taken, unix ms.
func Since(l *store.Lock) int64 { return BegunAt(l.Token) }

// BegunAt is when a token was made, unix ms: a token begins with that.
func BegunAt(token uint64) int64 { return int64(token >> TokenShift) }

// Waiters counts the acquisitions that wait at this node for a lock, or for any slot of it.
func (n *Node) Waiters(name []byte) int {
	_, base := store.SlotName(name)
	if line := n.lockLines[string(base)]; line != nil {
		return line.claims.Len
	}
	return 0
}

// Scan is [store.Store.ScanLocks] for locks that somebody has.
func (n *Node) Scan(cursor uint64, emit *[]*store.Lock) uint64 {
	n.scratch.locks = n.scratch.locks[:0]
	next := n.store.ScanLocks(cursor, &n.scratch.locks)
	for _, l := range n.scratch.locks {
		if n.IsLive(l) {
			*emit = append(*emit, l)
		}
	}
	return next
}

// --- clearing --------------------------------------------------------------------

// Clear frees locks, whoever has them, at all nodes that can be reached: the lock of this full name, or with prefix all
// whose full names begin so. If no majority can be reached it frees nothing. cleared is how many of them were held,
// as far as this node knew. Counting very many locks takes a while. Then, if the caller can wait, pending isn't nil, and the
// count comes as a Cleared effect for its Client. The locks are free at once, unless many others are being cleared:
// then they are free after those, and before the effect.
func (n *Node) Clear(name []byte, prefix, canWait bool) (cleared int64, pending *Clearing, err error) {
	if err := n.mayClear(name); err != nil {
		return 0, nil, err
	}
	if c := (&Clearing{prefix: slices.Clone(name), own: true}); prefix && canWait && n.clearLater(c) {
		return 0, c, nil
	}
	if !prefix {
		n.tellClear(name, 0)
		return n.clearOne(name, store.MaxToken), nil, nil
	}
	n.tellClear(name, wire.Prefix)
	c := n.clearAll(name, store.MaxToken)
	if canWait && len(n.clears) > 0 {
		return 0, c, nil
	}
	for len(n.clears) > 0 {
		n.clearSome(math.MaxInt)
	}
	return c.cleared, nil, nil
}

// ClearSlots is Clear for all slots of the lock of this full name.
func (n *Node) ClearSlots(name []byte) (cleared int64, err error) {
	if err := n.mayClear(name); err != nil {
		return 0, err
	}
	n.tellClear(name, wire.AllSlots)
	return n.clearSlots(name, store.MaxToken), nil
}

func (n *Node) clearSlots(name []byte, upTo uint64) (cleared int64) {
	for slot := range store.MaxLimit {
		cleared += n.clearOne(store.AppendSlotName(nil, slot, name), upTo)
	}
	return cleared
}

// mayClear says why locks of this name, or of all names that begin so, can't be cleared now; nil: they can.
func (n *Node) mayClear(name []byte) error {
	switch {
	case n.host.Passive():
		return ErrReplica
	case !n.Quorate(name):
		return (&Result{Kind: NoQuorum, Why: n.whyNoQuorum(&Acquisition{name: name})}).Err()
	}
	return nil
}

// tellClear tells the other nodes about a Clear that begins here.
func (n *Node) tellClear(name []byte, which uint8) {
	// A lock that is given from now on has a greater token, unless its node's clock is behind.
	n.seen = max(n.seen, n.store.Locks().Floor, n.tokenIn(0))
	m := wire.Message{Kind: wire.ClearLocks, Lock: wire.Lock{Name: name, Token: min(n.seen, store.MaxToken)}}
	m.Flags = which
	n.mesh.SendAll(&m)
	n.noteClear(name, which, m.Lock.Token)
}

// onClear follows another node's Clear. Locks with a greater token than that node knew were given after the Clear was
// answered, and stay.
func (n *Node) onClear(m *wire.Message) {
	name, upTo := m.Lock.Name, m.Lock.Token
	if upTo == 0 {
		upTo = store.MaxToken // from a former release
	}
	switch {
	case m.Flags&wire.Prefix != 0:
	case m.Flags&wire.AllSlots != 0:
		n.noteClear(name, wire.AllSlots, upTo)
		n.clearSlots(name, upTo)
		return
	default:
		n.noteClear(name, 0, upTo)
		n.clearOne(name, upTo)
		return
	}
	if !n.clearLater(&Clearing{prefix: slices.Clone(name), upTo: upTo}) {
		n.noteClear(name, wire.Prefix, upTo)
		n.clearAll(name, upTo)
	}
}

// pastClear is a Clear that has begun.
type pastClear struct {
	name  []byte
	which uint8  // wire.Prefix, wire.AllSlots, or 0
	upTo  uint64 // it clears locks up to this token
}

// has says whether it clears the lock of this name.
func (c *pastClear) has(name []byte) bool {
	switch c.which {
	case wire.Prefix:
		return store.InPrefix(name, c.name)
	case wire.AllSlots:
		_, name = store.SlotName(name)
	}
	return bytes.Equal(name, c.name)
}

// pastClears is how many Clears a node remembers. They end rounds that count on votes which are taken back, and locks
// that older pages still have.
const pastClears = 64

func (n *Node) noteClear(name []byte, which uint8, upTo uint64) {
	n.pastClears[n.cleared%pastClears] = pastClear{slices.Clone(name), which, upTo}
	n.cleared++
}

// clearedSince says whether a lock by this token was cleared by a Clear that began after the first count ones.
func (n *Node) clearedSince(count uint64, name []byte, token uint64) bool {
	for count = max(count, n.cleared-min(n.cleared, pastClears)); count < n.cleared; count++ {
		c := &n.pastClears[count%pastClears]
		if token <= c.upTo && c.has(name) {
			return true
		}
	}
	return false
}

// mayBeCleared is clearedSince, but says yes if count is too long ago to be remembered.
func (n *Node) mayBeCleared(count uint64, name []byte, token uint64) bool {
	return n.cleared-count > pastClears || n.clearedSince(count, name, token)
}

// clearOne clears one lock up to this token, at this node alone.
func (n *Node) clearOne(name []byte, upTo uint64) (cleared int64) {
	n.clearOutvoted(func(c *Acquisition) bool { return c.proposal <= upTo && bytes.Equal(c.name, name) })
	n.clearDispute(name, upTo)
	l := n.store.Lock(name)
	if l == nil {
		return 0
	}
	if l.Token > upTo {
		n.clearRaised(l, upTo)
		return 0
	}
	if n.IsLive(l) {
		cleared++
	}
	n.Remove(l)
	return cleared
}

// Clearing clears all locks whose names begin alike, which takes a while if there are very many. From its beginning on
// they are as good as free (IsLive). A lock that is taken anew is younger, and not part of it. If the server ends
// meanwhile, the locks that are left are held, as if it had ended before the Clearing.
type Clearing struct {
	Client  any // the caller's; nil: nobody is told the count
	prefix  []byte
	upTo    uint64 // it clears locks up to this token,
	age     uint16 // and older than this age
	own     bool   // this node's: it tells the others when it begins
	lost    bool   // of MarkIncomplete: it spares the locks of jobs that this node knows, and those with a lease
	kept    bool   // it clears those with flagKept
	begun   bool
	cleared int64

	disputes int // how many disputes, counted from the first, are still to be looked at
}

const (
	clearBudget = 3000 // locks that Clearings look at in one go
	clearCost   = 10   // the cost of a lock that is freed, in locks looked at
	clearBegun  = 30   // the cost of beginning a Clearing that waited, likewise
	clearsMost  = 8    // Clearings under way: each lookup of a lock compares it with all
)

// clearAll begins a Clearing; in a small table it ends at once.
func (n *Node) clearAll(prefix []byte, upTo uint64) *Clearing {
	return n.beginClear(&Clearing{prefix: slices.Clone(prefix), upTo: upTo})
}

func (n *Node) beginClear(c *Clearing) *Clearing {
	n.addClear(c)
	n.clearSome(clearBudget)
	return c
}

func (n *Node) addClear(c *Clearing) {
	if !c.lost && !c.kept {
		n.clearOutvoted(func(claim *Acquisition) bool {
			return claim.proposal <= c.upTo && store.InPrefix(claim.name, c.prefix)
		})
	}
	n.store.LockAge++
	c.age = n.store.LockAge
	n.clears = append(n.clears, c)
}

// clearLater makes a Clearing wait for its turn, if as many as allowed are under way. It frees no lock before its turn.
// False: it may begin now.
func (n *Node) clearLater(c *Clearing) bool {
	if len(n.clears) < clearsMost && len(n.clearLine) == 0 {
		return false
	}
	n.clearLine = append(n.clearLine, c)
	n.host.WakeIn(1)
	return true
}

// nextClear begins the first Clearing that waits.
func (n *Node) nextClear() {
	c := n.clearLine[0]
	n.clearLine[0], n.clearLine = nil, n.clearLine[1:]
	if !c.own {
		n.noteClear(c.prefix, wire.Prefix, c.upTo)
	} else if err := n.mayClear(c.prefix); err != nil {
		n.toldCleared(c, err)
		return
	} else {
		n.tellClear(c.prefix, wire.Prefix)
		c.upTo = store.MaxToken
	}
	n.addClear(c)
}

// TickClears goes on with the Clearings under way, and begins those that wait.
func (n *Node) TickClears() {
	for budget := clearBudget; budget > 0; {
		for ; len(n.clearLine) > 0 && len(n.clears) < clearsMost && budget > 0; budget -= clearBegun {
			n.nextClear()
		}
		if len(n.clears) == 0 {
			break
		}
		budget = n.clearSome(budget)
	}
	if len(n.clears)+len(n.clearLine) > 0 {
		n.host.WakeIn(1)
	}
}

// clearingOf is the Clearing that is about to free a lock; nil: none.
func (n *Node) clearingOf(l *store.Lock) *Clearing {
	for _, c := range n.clears {
		if n.isClearedBy(l, c) {
			return c
		}
	}
	return nil
}

// isClearedBy says whether a Clearing frees a lock.
func (n *Node) isClearedBy(l *store.Lock, c *Clearing) bool {
	return int16(c.age-l.Age) > 0 && l.Token <= c.upTo && store.InPrefix(l.Name(), c.prefix) &&
		!(c.lost && (l.Until != 0 || n.isOfKnownJob(l))) && !(c.kept && l.Flags&flagKept == 0)
}

func (n *Node) isOfKnownJob(l *store.Lock) bool { return l.Job != (store.ID{}) && n.jobs.Knows(l.Job) }

// isKept says whether a lock has flagKept, or is about to get it.
func (n *Node) isKept(l *store.Lock) bool {
	return l.Flags&flagKept != 0 || slices.ContainsFunc(n.clears, func(c *Clearing) bool { return c.lost && int16(c.age-l.Age) > 0 }) && !n.isOfKnownJob(l)
}

// clearFirst ends a lock that is being cleared, before somebody takes it again.
func (n *Node) clearFirst(name []byte) {
	if len(n.clears) == 0 {
		return
	}
	if l := n.store.Lock(name); l != nil && n.clearingOf(l) != nil {
		n.Remove(l)
	}
}

// clearSome goes on with the Clearings, and returns what is left of the budget.
func (n *Node) clearSome(budget int) int {
	for ; len(n.clears) > 0; n.clears = n.clears[1:] {
		c := n.clears[0]
		if !c.begun {
			c.begun, c.disputes = true, n.sync.disputed.Len()
			n.store.BeginLockWalk()
		}
		if budget -= n.clearDisputes(c, budget); budget <= 0 {
			n.host.WakeIn(1)
			return 0
		}
		for l := n.store.WalkLock(); l != nil; l = n.store.WalkLock() {
			switch {
			case int16(c.age-l.Age) <= 0:
			case !Ended(l) && n.isClearedBy(l, c):
				budget -= clearCost
				n.Remove(l) // which counts it
			default:
				switch {
				case c.lost && !Ended(l) && !n.isOfKnownJob(l):
					l.Flags |= flagKept
				case !c.lost && !c.kept && store.InPrefix(l.Name(), c.prefix):
					n.clearRaised(l, c.upTo)
				}
				l.Age = c.age
			}
			if budget--; budget <= 0 {
				n.host.WakeIn(1)
				return 0
			}
		}
		n.toldCleared(c, nil)
	}
	return budget
}

func (n *Node) toldCleared(c *Clearing, err error) {
	if c.Client != nil {
		n.host.Cleared(c.Client, int(c.cleared), err)
	}
}

// EndClears ends the Clearings, as when the node becomes a replica; clients get ErrReplica. That of MarkIncomplete goes
// on.
func (n *Node) EndClears() {
	for _, c := range n.clearLine {
		n.toldCleared(c, ErrReplica)
	}
	n.clearLine = nil
	n.clears = slices.DeleteFunc(n.clears, func(c *Clearing) bool {
		if !c.lost {
			n.toldCleared(c, ErrReplica)
		}
		return !c.lost
	})
}

// isRecovering says whether MarkIncomplete's Clearing is still under way.
func (n *Node) isRecovering() bool {
	return slices.ContainsFunc(n.clears, func(c *Clearing) bool { return c.lost })
}
