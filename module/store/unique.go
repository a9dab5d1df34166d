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
	// UniqueBoth: both of these, with a lock for each.
	UniqueBoth
	// UniqueUntil: from the adding until it is done.
	UniqueUntil
	// UniqueWindow: for a time from the adding, whatever becomes of the job.
	UniqueWindow
	strategies
)

// Rules for an ADDJOB whose key another job has (ONCONFLICT).
const (
	ConflictDrop uint8 = iota
	ConflictRaise
	ConflictReschedule
	ConflictReturn
	ConflictReplace
	conflicts

	// ConflictDebounce is ConflictReplace, and may put the job off. It is a rule for the ADDJOB that meets another job, so no job keeps it: what
	// the job is unique by has ConflictReplace in its place, which nodes of former releases know.
	ConflictDebounce = conflicts
)

// Rules for a job that is to be delivered while another with its key is worked on (ONBUSY).
const (
	BusyWait uint8 = iota
	BusyDrop
	BusyReschedule
	BusyDead
	busies
)

// Flags of a unique job.
const (
	// UniqueMesh: the key is unique among the jobs of all queues, not only of the job's queue.
	UniqueMesh uint8 = 1 << iota
	// UniqueKeyed: the key is given. Otherwise the body is the key.
	UniqueKeyed
	// UniqueAny: the locks need no majority of the mesh (QUORUM any): more than half of the
	// nodes that are connected and vote are enough.
	UniqueAny
	// UniqueHasWait: the job has its waiting lock ([LockWait]).
	UniqueHasWait
	// UniqueHasRun: the job has its run lock ([LockRun]).
	UniqueHasRun
	// UniquePending: the job was refused its waiting lock, and tries again when it is due.
	UniquePending
	// UniqueLapsed: the time of the job's waiting lock is over.
	UniqueLapsed
	uniqueFlags = 1<<iota - 1
)

// MaxUniqueKey is the greatest length of a given key, in bytes. A body that is the key may be
// longer.
const MaxUniqueKey = 4096

// MaxLimit is how many jobs, or owners, may have a lock at a time at most (LIMIT).
const MaxLimit = 256

// Unique is the value of a job's [TagUnique]: what the job is unique by, and which locks it
// has. It decides which locks there are: after a restart the locks of jobs are made anew from
// these values.
//
//	0 format  1 strategy  2 flags  3 conflict  4 busy
//	5 LIMIT less 1  6 slot of the waiting lock  7 slot of the run lock
//	8 token of the waiting lock  16 token of the run lock  (64 bits, 0: none)
//
// Format 1 is for jobs that can be put off, or that give times of their own. It also has
//
//	24 LOCKTTL, or the window's TTL  28 RUNTTL  32 conflict's delay  36 busy's delay
//	40 how often it was rescheduled  44 zero  (32 bits; times in seconds, 0: none)
//
// The key follows, if one is given.
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
	Limit                                     int    // how many jobs may have the key at a time, up to MaxLimit; 0 is as 1
	Key                                       []byte // of MaxUniqueKey bytes at most; with UniqueKeyed
}

// AppendUnique appends a value without locks.
func AppendUnique(dst []byte, by *UniqueBy) []byte {
	format, conflict, delay := uint8(uniqueShort), by.Conflict, by.ConflictDelay
	if conflict == ConflictDebounce {
		conflict, delay = ConflictReplace, 0
	}
	if by.LockTTL|by.RunTTL|delay|by.BusyDelay != 0 || conflict == ConflictReschedule || by.Busy == BusyReschedule || by.Busy == BusyDead {
		format = uniqueTimed
	}
	dst = append(dst, format, by.Strategy, by.Flags, conflict, by.Busy, uint8(max(by.Limit, 1)-1), 0, 0)
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	if format == uniqueTimed {
		for _, v := range [...]uint32{by.LockTTL, by.RunTTL, delay, by.BusyDelay, 0, 0} {
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
	case u[6] > u[5] || u[7] > u[5]:
		return fmt.Errorf("%w: slots %d and %d of a lock that has %d", ErrRecord, u[6], u[7], u.Limit())
	case int64(u.WaitToken()) < 0 || int64(u.RunToken()) < 0:
		return fmt.Errorf("%w: tokens %#x and %#x", ErrRecord, u.WaitToken(), u.RunToken())
	}
	return nil
}

// head is the length of what comes before the key, in bytes.
func (u Unique) head() int {
	if u[0] == uniqueTimed {
		return timedHead
	}
	return shortHead
}

// uint32 is one of the numbers that only format 1 has; 0 in the other format.
func (u Unique) uint32(at int) uint32 {
	if u[0] != uniqueTimed {
		return 0
	}
	return binary.LittleEndian.Uint32(u[at:])
}

// Strategy says when the job is unique (UniqueBefore …).
func (u Unique) Strategy() uint8 { return u[1] }

// Runs says whether the job needs a run lock: no two jobs with its key are worked on at a time.
func (u Unique) Runs() bool { return u[1] == UniqueDuring || u[1] == UniqueBoth }

// Waits says whether the job needs a waiting lock: it conflicts with a job that has the lock.
func (u Unique) Waits() bool { return u[1] != UniqueDuring }

// WaitsAlive says whether the job needs a waiting lock only as long as it lives: a window's lock stays for its time, whatever becomes of
// the job.
func (u Unique) WaitsAlive() bool { return u.Waits() && u.Strategy() != UniqueWindow }

// Has says whether all these flags are set.
func (u Unique) Has(flags uint8) bool { return u[2]&flags == flags }

// Set sets these flags.
func (u Unique) Set(flags uint8) { u[2] |= flags }

// Clear clears these flags.
func (u Unique) Clear(flags uint8) { u[2] &^= flags }

// Limit is how many jobs may have the key at a time, 1 to MaxLimit: so many slots the lock has for this job.
func (u Unique) Limit() int { return int(u[5]) + 1 }

// Slot is the slot of its lock that the job has, or had last, or 0.
func (u Unique) Slot(space Space) int { return int(u[slotAt(space)]) }

// SetSlot notes which slot the job has, below Limit.
func (u Unique) SetSlot(space Space, slot int) { u[slotAt(space)] = uint8(slot) }

func slotAt(space Space) int {
	if space == LockRun {
		return 7
	}
	return 6
}

// Conflict is the rule for adding the job while another has its key (ConflictDrop …).
func (u Unique) Conflict() uint8 { return u[3] }

// Busy is the rule for a job that is to be delivered while its key is busy (BusyWait …).
func (u Unique) Busy() uint8 { return u[4] }

// WaitToken is the waiting lock's fencing token; 0: none.
func (u Unique) WaitToken() uint64 { return binary.LittleEndian.Uint64(u[8:]) }

// RunToken is the run lock's fencing token; 0: none.
func (u Unique) RunToken() uint64 { return binary.LittleEndian.Uint64(u[16:]) }

// SetWait notes that the job has the waiting lock, by this token.
func (u Unique) SetWait(token uint64) {
	u.Set(UniqueHasWait)
	u.Clear(UniqueLapsed)
	binary.LittleEndian.PutUint64(u[8:], token)
}

// SetRun notes that the job has the run lock, by this token.
func (u Unique) SetRun(token uint64) {
	u.Set(UniqueHasRun)
	binary.LittleEndian.PutUint64(u[16:], token)
}

// GiveRunBack notes that the job has no run lock, and that nobody works on it any more who
// could get the lock again.
func (u Unique) GiveRunBack() {
	u.Clear(UniqueHasRun)
	binary.LittleEndian.PutUint64(u[16:], 0)
}

// LockTTL is how long the waiting lock lasts, in ms, from when the job is due (with
// UniqueWindow, from its adding). 0: as long as the job has the lock.
func (u Unique) LockTTL() int64 { return int64(u.uint32(24)) * 1000 }

// RunTTL is how long the run lock lasts, in ms, from the delivery or the last WORKING. 0: as
// long as the job has the lock.
func (u Unique) RunTTL() int64 { return int64(u.uint32(28)) * 1000 }

// ConflictDelay is by how much a conflict puts the job off, in ms.
func (u Unique) ConflictDelay() int64 { return int64(u.uint32(32)) * 1000 }

// BusyDelay is by how much a busy key puts the job off, in ms.
func (u Unique) BusyDelay() int64 { return int64(u.uint32(36)) * 1000 }

// Tries is how often the job was put off.
func (u Unique) Tries() uint32 { return u.uint32(40) }

// CountTry adds 1 to Tries, when a rule puts the job off. It does nothing in format 2.
func (u Unique) CountTry() {
	if n := u.Tries(); u[0] == uniqueTimed && n < 1<<32-1 {
		binary.LittleEndian.PutUint32(u[40:], n+1)
	}
}

// Key is the given key; empty if none is given.
func (u Unique) Key() []byte { return u[u.head():] }

// AppendKeyed appends the same value to dst, but with this key given.
func (u Unique) AppendKeyed(dst, key []byte) []byte {
	at := len(dst)
	dst = append(append(dst, u[:u.head()]...), key...)
	Unique(dst[at:]).Set(UniqueKeyed)
	return dst
}

// Unique is what a job is unique by; nil if it isn't unique. The caller may write to it. It
// is valid until the job changes otherwise.
func (j *Job) Unique() Unique {
	if j.Parts == 0 {
		return nil
	}
	return j.Extra(TagUnique)
}

// UniqueKey is the key of a unique job: the given one, or the body.
func (j *Job) UniqueKey(u Unique) []byte {
	if u.Has(UniqueKeyed) {
		return u.Key()
	}
	return j.Body()
}

// AppendLock appends the name of a unique job's lock: that of its slot.
func (j *Job) AppendLock(dst []byte, u Unique, space Space) []byte {
	if u[5] > 0 {
		dst = AppendSlotName(dst, u.Slot(space), nil)
	}
	return j.AppendKeyLock(dst, u, space)
}

// AppendKeyLock appends the name of the lock of a unique job's key, which may have slots.
func (j *Job) AppendKeyLock(dst []byte, u Unique, space Space) []byte {
	var scope []byte
	if !u.Has(UniqueMesh) {
		scope = j.Queue.NameBytes()
	}
	return AppendLockName(dst, space, scope, j.UniqueKey(u))
}
