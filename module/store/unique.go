package store

import (
	"encoding/binary"
	"fmt"
)

// Strategies: when a job is unique.
const (
	// UniqueBefore: from the adding until it is first delivered.
	UniqueBefore uint8 = iota + 1
	// UniqueDuring: while it is worked on.
	UniqueDuring
	// UniqueBoth: as both, by a lock each.
	UniqueBoth
	// UniqueUntil: from the adding until it is done.
	UniqueUntil
	// UniqueWindow: for a time from the adding, whatever becomes of the job.
	UniqueWindow
	strategies
)

// These say what an ADDJOB does that meets another job with its key.
const (
	ConflictDrop uint8 = iota
	ConflictRaise
	ConflictReschedule
	ConflictReturn
	ConflictReplace
	conflicts
)

// These say what becomes of a job that is to be delivered while another with its key
// is worked on.
const (
	BusyWait uint8 = iota
	BusyDrop
	BusyReschedule
	BusyDead
	busies
)

// Flags of a unique job.
const (
	// UniqueMesh: jobs of all queues with this key count, not those of its own alone.
	UniqueMesh uint8 = 1 << iota
	// UniqueKeyed: the key is given; else it is the body.
	UniqueKeyed
	// UniqueAny: without a majority of the mesh this node alone decides.
	UniqueAny
	// UniqueHasWait: the job has the lock of its waiting ([LockWait]).
	UniqueHasWait
	// UniqueHasRun: the job has the lock of being worked on ([LockRun]).
	UniqueHasRun
	// UniquePending: the job was refused its waiting lock, and tries again when it is due.
	UniquePending
	// UniqueLapsed: the time of its waiting lock is over.
	UniqueLapsed
	uniqueFlags = 1<<iota - 1
)

// MaxUniqueKey is the longest key that can be given, in bytes. (A body that is
// the key may be longer.)
const MaxUniqueKey = 4096

// Unique is the value of a job's [TagUnique]: what it is unique by, and which
// locks it has. Locks are what the jobs say: they are made anew from these.
//
//	0 format  1 strategy  2 flags  3 conflict  4 busy  5-7 zero
//	8 token of the waiting lock  16 token of the run lock  (64 bits, 0: none)
//
// and in format 1, which those have that can be put off or have a time of their own,
//
//	24 LOCKTTL, or the window's TTL  28 RUNTTL  32 conflict's delay  36 busy's delay
//	40 how often it was rescheduled  44 zero  (32 bits; times in seconds, 0: none)
//
// The key follows, where one is given.
type Unique []byte

const (
	uniqueTimed = 1
	uniqueShort = 2
	shortHead   = 24
	timedHead   = 48 // of format 1
)

// UniqueBy is what a value is made of.
type UniqueBy struct {
	Strategy, Flags, Conflict, Busy           uint8
	LockTTL, RunTTL, ConflictDelay, BusyDelay uint32 // seconds, 0: none
	Key                                       []byte // of MaxUniqueKey bytes at most; with UniqueKeyed
}

// AppendUnique appends a value without locks.
func AppendUnique(dst []byte, by *UniqueBy) []byte {
	format := uint8(uniqueShort)
	if by.LockTTL|by.RunTTL|by.ConflictDelay|by.BusyDelay != 0 || by.Conflict == ConflictReschedule || by.Busy == BusyReschedule || by.Busy == BusyDead {
		format = uniqueTimed
	}
	dst = append(dst, format, by.Strategy, by.Flags, by.Conflict, by.Busy, 0, 0, 0)
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	if format == uniqueTimed {
		for _, v := range [...]uint32{by.LockTTL, by.RunTTL, by.ConflictDelay, by.BusyDelay, 0, 0} {
			dst = binary.LittleEndian.AppendUint32(dst, v)
		}
	}
	return append(dst, by.Key...)
}

// checkUnique checks a value that comes from outside.
func checkUnique(u Unique) error {
	switch {
	case len(u) < shortHead:
		return fmt.Errorf("%w: %d bytes tell what it is unique by", ErrRecord, len(u))
	case u[0] > uniqueShort:
		return fmt.Errorf("%w: what it is unique by has format %d, this version reads %d", ErrNewer, u[0], uniqueShort)
	case u[0] == 0:
		return fmt.Errorf("%w: what it is unique by has format %d", ErrRecord, u[0])
	case len(u) < u.head() || len(u) > u.head()+MaxUniqueKey:
		return fmt.Errorf("%w: %d bytes tell what it is unique by, in format %d", ErrRecord, len(u), u[0])
	case u[1] == 0 || u[1] >= strategies:
		return fmt.Errorf("%w: unique strategy %d", ErrRecord, u[1])
	case u[2]&^uniqueFlags != 0 || u[2]&UniqueKeyed == 0 && len(u) > u.head():
		return fmt.Errorf("%w: unique flags %#x", ErrRecord, u[2])
	case u[3] >= conflicts || u[4] >= busies:
		return fmt.Errorf("%w: conflict rules %d and %d", ErrRecord, u[3], u[4])
	case int64(u.WaitToken()) < 0 || int64(u.RunToken()) < 0:
		return fmt.Errorf("%w: tokens %#x and %#x", ErrRecord, u.WaitToken(), u.RunToken())
	}
	return nil
}

// head is where the key begins.
func (u Unique) head() int {
	if u[0] == uniqueTimed {
		return timedHead
	}
	return shortHead
}

// uint32 is one of the numbers that format 1 alone has; 0 without.
func (u Unique) uint32(at int) uint32 {
	if u[0] != uniqueTimed {
		return 0
	}
	return binary.LittleEndian.Uint32(u[at:])
}

// Strategy is when the job is unique.
func (u Unique) Strategy() uint8 { return u[1] }

// Runs says whether no two such jobs are worked on at a time.
func (u Unique) Runs() bool { return u[1] == UniqueDuring || u[1] == UniqueBoth }

// Waits says whether such a job is refused while there is another.
func (u Unique) Waits() bool { return u[1] != UniqueDuring }

// Has says whether all of some flags are set.
func (u Unique) Has(flags uint8) bool { return u[2]&flags == flags }

// Set sets flags.
func (u Unique) Set(flags uint8) { u[2] |= flags }

// Clear takes flags away.
func (u Unique) Clear(flags uint8) { u[2] &^= flags }

// Conflict is what the job's adding does where it meets another.
func (u Unique) Conflict() uint8 { return u[3] }

// Busy is what becomes of it where it is to be delivered and may not.
func (u Unique) Busy() uint8 { return u[4] }

// WaitToken is the waiting lock's fencing token.
func (u Unique) WaitToken() uint64 { return binary.LittleEndian.Uint64(u[8:]) }

// RunToken is the run lock's.
func (u Unique) RunToken() uint64 { return binary.LittleEndian.Uint64(u[16:]) }

// SetWait notes that the job has the waiting lock.
func (u Unique) SetWait(token uint64) {
	u.Set(UniqueHasWait)
	u.Clear(UniqueLapsed)
	binary.LittleEndian.PutUint64(u[8:], token)
}

// SetRun notes that it has the run lock.
func (u Unique) SetRun(token uint64) {
	u.Set(UniqueHasRun)
	binary.LittleEndian.PutUint64(u[16:], token)
}

// GiveRunBack notes that nobody works on the job any more, who could have the run lock again.
func (u Unique) GiveRunBack() {
	u.Clear(UniqueHasRun)
	binary.LittleEndian.PutUint64(u[16:], 0)
}

// LockTTL is how long the waiting lock lasts, ms, from when the job is due (a
// window's from the adding); 0: as long as the job has it.
func (u Unique) LockTTL() int64 { return int64(u.uint32(24)) * 1000 }

// RunTTL is how long the run lock lasts, ms, from the delivery or the last
// WORKING; 0: as long as the job has it.
func (u Unique) RunTTL() int64 { return int64(u.uint32(28)) * 1000 }

// ConflictDelay is by how much a conflict puts the job off, ms.
func (u Unique) ConflictDelay() int64 { return int64(u.uint32(32)) * 1000 }

// BusyDelay is by how much a busy key puts the job off, ms.
func (u Unique) BusyDelay() int64 { return int64(u.uint32(36)) * 1000 }

// Tries is how often the job was put off.
func (u Unique) Tries() uint32 { return u.uint32(40) }

// CountTry counts one more, for a job that a rule puts off.
func (u Unique) CountTry() {
	if n := u.Tries(); u[0] == uniqueTimed && n < 1<<32-1 {
		binary.LittleEndian.PutUint32(u[40:], n+1)
	}
}

// Key is the given key.
func (u Unique) Key() []byte { return u[u.head():] }

// AppendKeyed appends the same value with a given key.
func (u Unique) AppendKeyed(dst, key []byte) []byte {
	at := len(dst)
	dst = append(append(dst, u[:u.head()]...), key...)
	Unique(dst[at:]).Set(UniqueKeyed)
	return dst
}

// Unique is what a job is unique by, nil where it isn't. It may be written to, and
// is valid until the job changes otherwise.
func (j *Job) Unique() Unique {
	if j.Parts == 0 {
		return nil
	}
	return j.Extra(TagUnique)
}

// UniqueKey is the key that a unique job has.
func (j *Job) UniqueKey(u Unique) []byte {
	if u.Has(UniqueKeyed) {
		return u.Key()
	}
	return j.Body()
}

// AppendLock appends the name of a unique job's lock.
func (j *Job) AppendLock(dst []byte, u Unique, space Space) []byte {
	var scope []byte
	if !u.Has(UniqueMesh) {
		scope = j.Queue.NameBytes()
	}
	return AppendLockName(dst, space, scope, j.UniqueKey(u))
}
