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

// Locks. Jobs hold them for what they are unique by, owners hold those of
// LOCK.ACQUIRE; all lie in the store's table. A lock is held while its lease
// lasts, by the steady clock, or where it has none as long as its job says so.
// One that is past its lease is as good as free, and is removed when somebody
// comes by; where somebody waits for it, its deadline is watched.
//
// In a mesh what lies in the table is this node's vote (vote.go); acquisition.go says how
// votes become a lock.

const (
	lockSteps  = 10      // buckets of the table of locks looked at in one tick, at least
	lockTicks  = 30      // for larger tables: a share of the locks that there are
	lockLookMS = 50      // but not more often
	lockPassMS = 150_000 // a pass over very many takes about as long, where nothing else is to be done
	staleSteps = 500     // and where more than
	staleShare = 4       // one in so many is over
	sweepSteps = 1000    // likewise, after many jobs went at once
	lockMost   = 1500    // locks looked at in one tick: 1 ms where they are jobs'
	lockSlice  = 300     // locks ended at once,
	wakeCost   = 4       // of waking those who wait to ask for one, in locks ended
	endedSlice = 2000    // and removed that had been over for a while
	EndedMS    = 2_000   // how long one that is over is kept

	longLeaseMS = 600_000 // an at-most-once job has its lock for as long as it lives

	orphanFirstMS = 2_000  // until those who wait for a lock ask whether its job is gone, doubling
	orphanLastMS  = 60_000 // at most
)

// Flags of a lock.
const (
	// FlagAny: claimed with QUORUM any, so another may have been given it elsewhere.
	FlagAny uint8 = 1 << iota
	// FlagAlone: given while no other node was known, and so told to those that come.
	FlagAlone
	// FlagOutlives: the end of its job doesn't end it (UNIQUE window).
	FlagOutlives
	// FlagRenewed: its holder had it before it was given this token.
	FlagRenewed
	// FlagForeign: a vote of a mesh, for a job that this node need not know.
	FlagForeign
	// flagLogged: it is in the log, so its end must be too. Never saved as true.
	flagLogged
	// flagClaimed, in what is told of a lock: it may be a vote for a claim that fails yet.
	flagClaimed
	// FlagUnconfirmed: learnt from another's table. That may be older than what this node
	// has forgotten, so it stands against others, and doesn't count for its holder
	// until a majority of other votes has.
	FlagUnconfirmed

	flagsNonQuorum = FlagAny | FlagAlone
	flagsSaved     = FlagAny | FlagAlone | FlagOutlives | FlagRenewed | FlagForeign | FlagUnconfirmed
)

// deadline is a lock that somebody waits for and that ends by itself, or one that isn't to
// be asked for until then (consents.rests). Each is there once.
type deadline struct {
	at   int64 // steady, ms
	name string
	wait int64 // until it is asked whether the lock's job is gone, see Watch; 0: nobody waits for that
	pos  int
}

func (d *deadline) Sooner(than *deadline) bool { return d.at < than.at }
func (d *deadline) Position() *int             { return &d.pos }

// Await has a lock looked at, at a time (steady) or before.
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

// unawait ends that, where nothing is left to be looked at.
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

// Tokens begin with the time, ms, in their upper bits.
const TokenShift = 20

// Clients aren't shown the lowest bits of a token: what is left is below 2^53 until the year
// 2109, so that JavaScript, Lua and all else that counts in floating point keeps it whole. Two
// tokens that one node gives out differ in what is shown. In those of bare locks, which alone
// come back from clients, the lowest bits are 0.
const (
	hiddenBits = 9
	hiddenMask = 1<<hiddenBits - 1
)

// MaxShownToken is the greatest that a client may name.
const MaxShownToken = 1<<53 - 1

// nextShown is the lowest token that clients see as a greater one.
func nextShown(token uint64) uint64 { return (token | hiddenMask) + 1 }

// ShownToken is a token as clients see it.
func ShownToken(token uint64) int64 { return int64(token >> hiddenBits) }

// BareToken is the token of a bare lock that a client has seen as shown, from 1 to [MaxShownToken].
func BareToken(shown int64) uint64 { return uint64(shown) << hiddenBits }

// reserveMS is how far ahead tokens are written off in the log: one record stands for all
// that are given out until the next. That is written when half is left, so that a crash that
// loses the last two seconds of the log loses no token that was given. It isn't longer, for
// after a restart tokens begin there: ahead of the time, by which the older of two locks is
// told (settleLock).
const reserveMS = 6_000

// tokenIn is the least token of the clock's in so many ms.
func (n *Node) tokenIn(ms int64) uint64 { return uint64(max(n.host.Now()+ms, 0)) << TokenShift }

// nextToken makes a fencing token greater than any before it for this lock (l
// may be nil). It begins with the time, so that it also grows over the loss of
// all that was remembered.
func (n *Node) nextToken(l *store.Lock) uint64 {
	last := max(n.store.Locks().Floor, n.seen)
	if l != nil {
		last = max(last, l.Token)
	}
	token := max(n.tokenIn(0), nextShown(last))
	n.reserve(token)
	return token
}

// aheadMS is how far tokens go from the last that was written off, after a start before the
// clock has come to that: what is logged of them meanwhile can be lost as well.
const aheadMS = 3_000

// TokensAhead says up to which token this node may give some out before its clock has come
// to those that were written off before it started; 0 where it has. The caller has that on
// disk before the first: what the log says of it can be lost in a crash, and the next start
// would begin with the same token.
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

// keepSeen has this node's tokens be greater than one that it saw after a restart, too.
func (n *Node) keepSeen(token uint64) {
	if token <= n.seen && token > n.reserved {
		n.reserved = token
		n.logEnd(nil, token)
	}
}

// ownMask are the bits of a token that tell nodes apart, in runs and in what is asked
// for with QUORUM any: two nodes may each claim a run of the same job, and must not
// take one's lock for the other's; and each side of a partition may give a lock, so
// that what is guarded by the token must see that it isn't the same one.
const ownMask = 1<<16 - 1

// ownToken is the next token from this one on, for a lock of that space, that no other node
// gives out. For bare locks, which nobody but their owner claims, another hardly ever does.
func (n *Node) ownToken(space store.Space, token uint64) uint64 {
	own := uint64(n.self.Node()) & ownMask
	if space == store.LockBare {
		own &^= hiddenMask
	}
	if token&ownMask > own {
		token += ownMask + 1
	}
	token = token&^ownMask | own
	n.reserve(token)
	return token
}

// IsOwnToken says of the token of a run whether this node gave it out.
func (n *Node) IsOwnToken(token uint64) bool { return GaveOut(n.self.Node(), token) }

// GaveOut says of the token of a run whether a node gave it out.
func GaveOut(node wire.Node, token uint64) bool { return token&ownMask == uint64(node)&ownMask }

// saw notes a token that another node knows: ours are greater from now on. One
// from the far future can only be an error.
func (n *Node) saw(token uint64) {
	const day = 86_400_000
	if token > n.seen && token < n.tokenIn(day) {
		n.seen = token
	}
}

// Live finds a lock that is held; nil where it is free.
func (n *Node) Live(name []byte) *store.Lock {
	l := n.store.Lock(name)
	if !n.IsLive(l) {
		return nil
	}
	return l
}

// IsLive says whether a lock (nil: none) is held still: its lease lasts, and where
// a job of this node has it that says so too.
func (n *Node) IsLive(l *store.Lock) bool {
	if l == nil || l.Until != 0 && l.Until <= n.host.Monotonic() {
		return false
	}
	if len(n.clears) > 0 && n.clearingOf(l) != nil {
		return false
	}
	return n.lives(l)
}

// lives is IsLive, but for locks that are being cleared.
func (n *Node) lives(l *store.Lock) bool {
	if l.Until != 0 && l.Until <= n.host.Monotonic() {
		return false
	}
	return l.Space() == store.LockBare || l.Flags&FlagForeign != 0 && !n.mesh.Alone() || n.jobs.Holds(l)
}

// Take gives a lock to a job, for lease ms (0: until it is freed), where no
// other holds it; then holder is nil. A job that has it already keeps its token,
// and its lease begins anew. Only this node decides; see [Node.AcquireFor].
func (n *Node) Take(name []byte, id *store.ID, lease int64) (token uint64, holder *store.Lock) {
	return n.TakeHashed(name, n.store.LockHash(name), id, lease)
}

func (n *Node) TakeHashed(name []byte, hash uint64, id *store.ID, lease int64) (token uint64, holder *store.Lock) {
	l, fresh := n.store.LockOrNew(name, hash)
	for !fresh && (l.Job != *id || Ended(l) || n.clearingOf(l) != nil) {
		switch {
		case n.IsLive(l):
			return 0, l
		case Ended(l): // it is kept for its token
			n.store.RemoveLock(l)
		default: // in its place may come another, see noteFreed
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

// Free ends a job's lock, at all nodes; false where this one had no vote for it.
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
	l.Era = n.host.Epoch()
	return l
}

// SetFlags replaces a lock's flags, but those that are of the moment.
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

// Remove forgets a lock that is over, has its job know, and lets those go on
// who waited for it.
func (n *Node) Remove(l *store.Lock) {
	if Ended(l) {
		return
	}
	n.countCleared(l) // while its job says that it has it
	n.jobs.Lapsed(l)
	n.scratch.name = append(n.scratch.name[:0], l.Name()...)
	n.takeOutLock(l)
	n.IsFreed(n.scratch.name)
}

// countCleared counts a lock that is about to end for the Clearing that ends it.
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

// dropLock frees a lock in whose place another comes that may have a smaller token. Its
// end is logged: who reads the log passes such a one over where the greater token stands.
func (n *Node) dropLock(l *store.Lock) {
	if l.Flags&flagLogged != 0 {
		n.logEnd(l.Name(), l.Token)
	}
	n.countNonQuorum(l, -1)
	n.unraised(l.Name())
	n.store.RemoveLock(l)
}

// markEnded has a lock be over, see [ended].
func (n *Node) markEnded(l *store.Lock) { l.Flags, l.Until = 0, -max(n.host.Monotonic(), 1) }

// Ended says whether a lock is over, and only kept for its token: were that merged
// into the floor at once, claims for other locks that are under way would be below.
// Until is the negative time of its end.
func Ended(l *store.Lock) bool { return l.Until < 0 }

// IsFreed is told that a lock has become free.
func (n *Node) IsFreed(name []byte) {
	n.noteFreed(name)
	n.settleContest(name)
	n.jobs.Freed(name)
	n.callLine(name)
}

// Until is the end of a lease that begins now, in a mesh that of the vote for it.
func (n *Node) Until(lease int64) int64 {
	switch {
	case lease == 0:
		return 0
	case n.mesh.Alone():
		return n.host.Monotonic() + lease
	}
	return n.host.Monotonic() + VoteMS(lease)
}

// Watch has [Node.Tick] see to it that a lock's end isn't missed by those
// who wait for it.
func (n *Node) Watch(l *store.Lock) {
	wait := int64(orphanFirstMS)
	if d := n.awaited[string(l.Name())]; d != nil && d.wait > 0 {
		wait = d.wait // it is watched already
	}
	n.watchFor(l, wait)
}

// watchFor is Watch that looks after wait ms whether the lock's job is gone.
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

// orphaned says whether those who wait for a lock's end are to ask now and then whether its job, which
// isn't known here, is known at all. The Unlock may never come: the node that owes it may have been
// started anew, or owe too many.
func (n *Node) orphaned(l *store.Lock) bool {
	return l.Flags&FlagOutlives == 0 && l.Job != (store.ID{}) && !n.jobs.Lives(l.Job)
}

// Tick ends the watched locks that are over, and removes some of the others.
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
	// The pass comes to a vote without a lease again long before its promise is over.
	again := max(lockLookMS, lockPassMS*sweepSteps/int64(n.store.Locks().Len+1))
	if since := now - n.lockLook; n.sweep == 0 && !n.stale && since < lockLookMS {
		n.host.WakeIn(again - since)
		return // ticks that follow each other have other work to go on with
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
			}
		}
		if n.lockCursor == 0 {
			n.sweep = max(n.sweep-1, 0)
			break
		}
	}
	// Where many are over, so are many of those that this tick hasn't come to.
	n.stale = over >= lockSteps && over >= seen/staleShare
	if n.sweep > 0 && n.lockCursor != 0 || n.stale {
		n.host.Hurry()
	}
}

// --- what is logged and loaded -------------------------------------------------

// Log logs a lock as it is now (SETLOCK).
func (n *Node) Log(l *store.Lock) {
	l.Flags &^= flagLogged
	n.host.LogLock(l)
	l.Flags |= flagLogged
}

// logEnd logs the end of a lock that had this token (DELLOCK); without a name,
// that no token up to this one may be given out again; under the name [tableMark] what is
// known of the table as a whole.
func (n *Node) logEnd(name []byte, token uint64) {
	n.host.LogUnlock(name, token)
}

// These say what is known of a table as a whole. Only a log that says so is believed after a
// restart, and only by the node that it names: a Redis replica has its master's.
const (
	tableLacks uint64 = iota // votes that this node gave may be missing
	tableFull                // it has all of them, and those that it had to learn
	tableOwn                 // it has all of them, but is still to learn those of others

	tableBits = 2
)

// tableMark is no lock's name, which begin with a space.
var tableMark = []byte("table")

// marked is what is noted of a table that is so, of this node.
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

// IsComplete says whether what was loaded said that it was all that this node
// had voted for.
func (n *Node) IsComplete() bool { return n.table() != tableLacks }

// UnlockParts takes the bytes of a LogUnlock effect apart.
func UnlockParts(b []byte) (name []byte, token uint64) {
	return b[8:], binary.LittleEndian.Uint64(b)
}

// Apply is SETLOCK, and a lock in an RDB: its lease begins anew, but that of a
// window, which has what is left of it. It can be applied twice. Errors wrap
// [store.ErrRecord].
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
		age = old.Age // by DEBUG RELOAD: it is being cleared still
		n.countNonQuorum(old, -1)
		n.store.RemoveLock(old)
	}
	left := n.leaseOf(r.Flags, r.Token, r.Lease)
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

// LeaseOf is the lease of a lock that is to begin anew: all of it, but for a window
// what is left of it, negative where it is over.
func (n *Node) leaseOf(flags uint8, token uint64, lease int64) int64 {
	if flags&FlagOutlives == 0 {
		return lease
	}
	if lease = min(lease, BegunAt(token)+lease-n.host.Now()); lease <= 0 {
		return -1
	}
	return lease
}

// ApplyEnd is DELLOCK.
func (n *Node) ApplyEnd(name []byte, token uint64) {
	switch {
	case string(name) == string(tableMark):
		n.ApplyMark(token)
		return
	case len(name) == 0 && token <= tableOwn: // a former release's, who didn't say whose table it is
		n.ApplyMark(tableLacks)
		return
	}
	if l := n.store.Lock(name); l != nil && l.Token <= token {
		n.countNonQuorum(l, -1)
		n.store.RemoveLock(l)
	}
	n.ApplyFloor(token)
}

// ApplyMark is what was saved of the table as a whole.
func (n *Node) ApplyMark(mark uint64) { n.store.Locks().Complete = mark }

// ApplyFloor has no token up to this one given out again.
func (n *Node) ApplyFloor(token uint64) {
	if token <= store.MaxToken {
		n.store.Locks().Floor = max(n.store.Locks().Floor, token)
		n.reserved = max(n.reserved, token)
	}
}

// Drop forgets all locks, as before another table is loaded in their place.
func (n *Node) Drop() {
	n.ApplyMark(tableLacks)
	for l := n.store.Locks().Head; l != nil; l = n.store.Locks().Head {
		n.countNonQuorum(l, -1)
		n.store.RemoveLock(l)
	}
}

// LogReserved logs anew which tokens are written off, for a log that was written anew:
// what is saved of the table doesn't say so.
func (n *Node) LogReserved() {
	if n.reserved > 0 {
		n.logEnd(nil, n.reserved)
	}
}

// Relog logs all locks anew, for a log that begins without them.
func (n *Node) Relog() {
	for l := n.store.Locks().Head; l != nil; l = l.Next {
		if !Ended(l) {
			n.Log(l)
		}
	}
	n.logEnd(nil, max(n.store.Locks().Floor, n.reserved))
	n.logEnd(tableMark, n.store.Locks().Complete)
}

// --- looking ---------------------------------------------------------------------

// Count counts the locks in the table, those that are over included.
func (n *Node) Count() uint64 { return n.store.Locks().Len }

// Lock finds a lock that is held, by its full name, as far as this node knows.
func (n *Node) Lock(name []byte) *store.Lock { return n.Live(name) }

// Table is where C finds all locks.
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

// BegunAt is when a token was made, unix ms: it begins with that.
func BegunAt(token uint64) int64 { return int64(token >> TokenShift) }

// Waiters counts the clients that wait for a lock at this node.
func (n *Node) Waiters(name []byte) int {
	if line := n.lockLines[string(name)]; line != nil {
		return line.claims.Len
	}
	return 0
}

// Scan is [store.Store.Scan], for those that are held.
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

// Clear frees locks, whoever holds them, at all nodes that can be reached:
// that of this full name, or with prefix all whose full names begin so. Where no majority
// can be reached nothing is done. cleared is how many this node knew to be held. Counting
// very many locks takes a while; then, if the caller can wait, pending says that the count
// comes as a Cleared effect for its Client. The locks are free at once, unless many others are
// being cleared: then they are free when those have been, and before the effect.
func (n *Node) Clear(name []byte, prefix, canWait bool) (cleared int64, pending *Clearing, err error) {
	if err := n.mayClear(name); err != nil {
		return 0, nil, err
	}
	if c := (&Clearing{prefix: slices.Clone(name), own: true}); prefix && canWait && n.clearLater(c) {
		return 0, c, nil
	}
	n.tellClear(name, prefix)
	if !prefix {
		return n.clearOne(name, store.MaxToken), nil, nil
	}
	c := n.clearAll(name, store.MaxToken)
	if canWait && len(n.clears) > 0 {
		return 0, c, nil
	}
	for len(n.clears) > 0 {
		n.clearSome(math.MaxInt)
	}
	return c.cleared, nil, nil
}

// mayClear says why locks of this name, or of all that begin so, can't be cleared now.
func (n *Node) mayClear(name []byte) error {
	switch {
	case n.host.Passive():
		return ErrReplica
	case !n.Quorate(name):
		return (&Result{Kind: NoQuorum, Why: n.whyNoQuorum(&Acquisition{name: name})}).Err()
	}
	return nil
}

// tellClear tells the other nodes of a Clear that begins here.
func (n *Node) tellClear(name []byte, prefix bool) {
	// A lock that is given from now on has a greater token, unless its node's clock is behind.
	n.seen = max(n.seen, n.store.Locks().Floor, n.tokenIn(0))
	m := wire.Message{Kind: wire.ClearLocks, Lock: wire.Lock{Name: name, Token: min(n.seen, store.MaxToken)}}
	if prefix {
		m.Flags = wire.Prefix
	}
	n.mesh.SendAll(&m)
	n.noteClear(name, prefix, m.Lock.Token)
}

// onClear hears of another node's Clear. Locks by a greater token than that one knew of
// were given after it was answered, and stay.
func (n *Node) onClear(m *wire.Message) {
	name, upTo := m.Lock.Name, m.Lock.Token
	if upTo == 0 {
		upTo = store.MaxToken // a former release's
	}
	if m.Flags&wire.Prefix == 0 {
		n.noteClear(name, false, upTo)
		n.clearOne(name, upTo)
		return
	}
	if !n.clearLater(&Clearing{prefix: slices.Clone(name), upTo: upTo}) {
		n.noteClear(name, true, upTo)
		n.clearAll(name, upTo)
	}
}

// pastClear is a Clear that has begun.
type pastClear struct {
	name   []byte
	prefix bool
	upTo   uint64 // it was for locks up to this token
}

// pastClears are so many that are remembered. They end attempts that count on votes which
// are taken back, and locks that are told by older pages.
const pastClears = 64

func (n *Node) noteClear(name []byte, prefix bool, upTo uint64) {
	n.pastClears[n.cleared%pastClears] = pastClear{slices.Clone(name), prefix, upTo}
	n.cleared++
}

// clearedSince says whether a lock by this token has been cleared since so many Clear had begun.
func (n *Node) clearedSince(count uint64, name []byte, token uint64) bool {
	for count = max(count, n.cleared-min(n.cleared, pastClears)); count < n.cleared; count++ {
		c := &n.pastClears[count%pastClears]
		if token <= c.upTo && bytes.HasPrefix(name, c.name) && (c.prefix || len(name) == len(c.name)) {
			return true
		}
	}
	return false
}

// mayBeCleared is clearedSince where one that is too long ago to be remembered counts as well.
func (n *Node) mayBeCleared(count uint64, name []byte, token uint64) bool {
	return n.cleared-count > pastClears || n.clearedSince(count, name, token)
}

// clearOne is Clear for one lock up to this token, and this node alone.
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

// Clearing is a Clear for all names that begin alike, which takes a while where
// there are very many locks. From its beginning on they are as good as free (IsLive), and
// one that is taken anew doesn't belong to it: it is younger. Should the server end
// meanwhile, those that are left are held, as if it had ended before.
type Clearing struct {
	Client  any // the caller's; nil: nobody is to be told
	prefix  []byte
	upTo    uint64 // it is for locks up to this token,
	age     uint16 // and before this age
	own     bool   // it is this node's, which tells the others when it begins
	lost    bool   // and not for those of jobs that are known here, see MarkIncomplete
	begun   bool
	cleared int64

	disputes int // those before this one in their order are yet to be looked at
}

const (
	clearBudget = 3000 // locks looked at at once by a Clearing
	clearCost   = 10   // where one is freed, it counts as so many
	clearBegun  = 30   // where a Clearing begins that waited, likewise
	clearsMost  = 8    // Clearings under way: each lock that is looked up is compared with all
)

// clearAll begins a Clearing; in a small table it is over then.
func (n *Node) clearAll(prefix []byte, upTo uint64) *Clearing {
	return n.beginClear(&Clearing{prefix: slices.Clone(prefix), upTo: upTo})
}

func (n *Node) beginClear(c *Clearing) *Clearing {
	n.addClear(c)
	n.clearSome(clearBudget)
	return c
}

func (n *Node) addClear(c *Clearing) {
	if !c.lost {
		n.clearOutvoted(func(claim *Acquisition) bool {
			return claim.proposal <= c.upTo && bytes.HasPrefix(claim.name, c.prefix)
		})
	}
	n.store.LockAge++
	c.age = n.store.LockAge
	n.clears = append(n.clears, c)
}

// clearLater has a Clearing wait for its turn, where as many as may be are under way: no lock
// is freed by it before. False: it may begin now.
func (n *Node) clearLater(c *Clearing) bool {
	if len(n.clears) < clearsMost && len(n.clearLine) == 0 {
		return false
	}
	n.clearLine = append(n.clearLine, c)
	n.host.Hurry()
	return true
}

// nextClear begins the first Clearing that waits.
func (n *Node) nextClear() {
	c := n.clearLine[0]
	n.clearLine[0], n.clearLine = nil, n.clearLine[1:]
	if !c.own {
		n.noteClear(c.prefix, true, c.upTo)
	} else if err := n.mayClear(c.prefix); err != nil {
		n.toldCleared(c, err)
		return
	} else {
		n.tellClear(c.prefix, true)
		c.upTo = store.MaxToken
	}
	n.addClear(c)
}

// TickClears goes on with what is being cleared, and begins what waits for that.
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
		n.host.Hurry()
	}
}

// clearingOf is the Clearing that a lock is about to be freed by; nil: none.
func (n *Node) clearingOf(l *store.Lock) *Clearing {
	for _, c := range n.clears {
		if n.isClearedBy(l, c) {
			return c
		}
	}
	return nil
}

// isClearedBy says whether a lock is one that a Clearing is for.
func (n *Node) isClearedBy(l *store.Lock, c *Clearing) bool {
	return int16(c.age-l.Age) > 0 && l.Token <= c.upTo && bytes.HasPrefix(l.Name(), c.prefix) &&
		!(c.lost && l.Job != (store.ID{}) && n.jobs.Knows(l.Job))
}

// clearFirst ends a lock that is being cleared, before somebody takes it anew.
func (n *Node) clearFirst(name []byte) {
	if len(n.clears) == 0 {
		return
	}
	if l := n.store.Lock(name); l != nil && n.clearingOf(l) != nil {
		n.Remove(l)
	}
}

// clearSome goes on with what is being cleared, and returns what is left of the budget.
func (n *Node) clearSome(budget int) int {
	for ; len(n.clears) > 0; n.clears = n.clears[1:] {
		c := n.clears[0]
		if !c.begun {
			c.begun, c.disputes = true, n.sync.disputed.Len()
			n.store.BeginLockWalk()
		}
		if budget -= n.clearDisputes(c, budget); budget <= 0 {
			n.host.Hurry()
			return 0
		}
		for l := n.store.WalkLock(); l != nil; l = n.store.WalkLock() {
			switch {
			case int16(c.age-l.Age) <= 0:
			case !Ended(l) && n.isClearedBy(l, c):
				budget -= clearCost
				n.Remove(l) // which counts it
			default:
				if bytes.HasPrefix(l.Name(), c.prefix) {
					n.clearRaised(l, c.upTo)
				}
				l.Age = c.age
			}
			if budget--; budget <= 0 {
				n.host.Hurry()
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

// EndClears ends what clients have cleared, as when the node becomes a replica.
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

// isRecovering says whether locks that MarkIncomplete is about are in the table still.
func (n *Node) isRecovering() bool {
	return slices.ContainsFunc(n.clears, func(c *Clearing) bool { return c.lost })
}
