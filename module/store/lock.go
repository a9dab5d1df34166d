package store

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math"
	"unsafe"

	"jobmesh/module/table"
)

// Space says what a lock is for. Locks of one name in different spaces are
// different locks.
type Space uint8

// The spaces.
const (
	// LockBare: a lock that belongs to no job. An owner holds it (LOCK.ACQUIRE).
	LockBare Space = 'L'
	// LockWait: while a job holds it, no other job with this key can be added.
	LockWait Space = 'W'
	// LockRun: while a job holds it, no other job with this key can be fetched.
	LockRun Space = 'R'
)

// A lock that several may hold at a time (LIMIT) has slots. Each slot is a lock by itself. Slot 0 has the lock's own name. The name of any other
// slot is slotMark, its number (16 bits, big endian), and the lock's own name.
const (
	slotMark = 'S'
	slotHead = 3

	// MaxSlots is how many slots a lock has at most.
	MaxSlots = 1 << 16
)

// AppendSlotName appends the name of one slot, 0 to MaxSlots-1, of the lock of this name.
func AppendSlotName(dst []byte, slot int, name []byte) []byte {
	if slot > 0 {
		dst = append(dst, slotMark, byte(slot>>8), byte(slot))
	}
	return append(dst, name...)
}

// SlotName takes the name of a slot apart: its number, and the name of the lock.
func SlotName(name []byte) (slot int, base []byte) {
	if len(name) > slotHead && name[0] == slotMark {
		return int(name[1])<<8 | int(name[2]), name[slotHead:]
	}
	return 0, name
}

// slotsMark stands in place of a key in the name of the lock whose slots are those of a queue.
const slotsMark = 's'

// AppendSlotsName appends the name of the lock whose slots are those of a queue (CONCURRENCY). It is no job's lock.
func AppendSlotsName(dst, queue []byte) []byte {
	if queue == nil {
		queue = []byte{}
	}
	dst = AppendLockName(dst, LockWait, queue, nil)
	dst[len(dst)-1] = slotsMark
	return dst
}

// IsSlotsName says whether a lock is one of the slots of a queue.
func IsSlotsName(name []byte) bool {
	_, base := SlotName(name)
	at := 2 + sha256.Size
	if len(base) > 2 && base[1] == 'q' {
		at = 3 + int(base[2])
	}
	return len(base) == at+1 && base[0] == byte(LockWait) && (base[1] == 'q' || base[1] == 'Q') && base[at] == slotsMark
}

// InPrefix says whether a lock is one of those whose names begin so, or a slot of such a lock.
func InPrefix(name, prefix []byte) bool {
	slot, base := SlotName(name)
	return bytes.HasPrefix(name, prefix) || slot > 0 && bytes.HasPrefix(base, prefix)
}

// SpaceOf is the space of a lock, or of one of its slots, by its name.
func SpaceOf(name []byte) Space {
	_, base := SlotName(name)
	return Space(base[0])
}

// longKey is the length, in bytes, from which the name of a lock has only the SHA-256 of a
// key or a scope.
const longKey = 256

// AppendLockName appends the name under which a lock is kept: its space, its
// scope (a queue's name; nil for the whole mesh) and its key. Different locks
// have different names.
func AppendLockName(dst []byte, space Space, scope, key []byte) []byte {
	dst = append(dst, byte(space))
	switch {
	case scope == nil:
		dst = append(dst, 'm')
	case len(scope) < longKey:
		dst = append(dst, 'q', byte(len(scope)))
		dst = append(dst, scope...)
	default:
		sum := sha256.Sum256(scope)
		dst = append(append(dst, 'Q'), sum[:]...)
	}
	if len(key) < longKey {
		return append(append(dst, 'k'), key...)
	}
	sum := sha256.Sum256(key)
	return append(append(dst, 'K'), sum[:]...)
}

// Lock is a lock that is held, or a vote for one (C: struct jm_lock). Its name and
// its owner follow it in the same allocation.
type Lock struct {
	table.Element[Lock] // in the table of locks, and in the list of all locks

	// From here to the end of the owner: the record, saved as it lies.
	Token    uint64 // the fencing token
	Until    int64  // when the lease is over, ms of the monotonic clock; 0: when its holder ends; negative: it ended at -Until
	Lease    int64  // how long the lease was asked for, ms; 0: as long as its holder lives
	Job      ID     // the job that holds it; zero: the owner holds it
	Flags    uint8  // package lock's
	format   uint8  // of the record
	Age      uint16 // [Store.LockAge] when it was made, or a later value that package lock has set; meaningless in a saved record
	nameLen  uint32
	ownerLen uint16
	By       uint16 // the node that claimed it last: the lowest bits of its short name; 0: unknown
	Era      uint32 // LockList.Epoch when it was made; meaningless in a saved record
}

// LockList is the list of all locks, which C walks through (struct jm_lock_list).
type LockList struct {
	table.List[Lock]
	Bytes    uint64
	Floor    uint64 // no token that was given and then forgotten is greater
	Complete uint64 // what is known of the table as a whole, in a mesh (package lock)
	Epoch    uint32 // each flush of all queues ends an epoch, and the windows that began in it (package lock)
	Others   uint32 // how many other nodes this one knows (package lock)
}

const (
	lockFormat     = 1
	lockSize       = int(unsafe.Sizeof(Lock{}))
	lockRecordAt   = int(unsafe.Offsetof(Lock{}.Token))
	lockRecordHead = lockSize - lockRecordAt
	lockListSize   = int(unsafe.Sizeof(LockList{}))
)

func lockOf(e *table.Entry) *Lock { return (*Lock)(unsafe.Pointer(e)) }

func (s *Store) initLocks() {
	s.lockList = (*LockList)(s.alloc.Alloc(lockListSize))
	*s.lockList = LockList{}
	s.locks.Init(s.alloc, func(e *table.Entry) uint64 { return s.hashName(lockOf(e).Name()) })
}

// Locks is the list of all locks. They stay when [Store.Forget] drops everything else.
func (s *Store) Locks() *LockList { return s.lockList }

// Lock finds a lock; nil where there is none of that name.
func (s *Store) Lock(name []byte) *Lock { return s.findLock(name, s.hashName(name)) }

func (s *Store) findLock(name []byte, h uint64) *Lock {
	return lockOf(s.locks.Find(h, func(e *table.Entry) bool { return string(lockOf(e).Name()) == string(name) }))
}

// NewLock makes a lock; there must be none of that name.
func (s *Store) NewLock(name, owner []byte) *Lock {
	return s.newLock(name, owner, s.hashName(name))
}

// LockHash is the hash of a lock's name.
func (s *Store) LockHash(name []byte) uint64 { return s.hashName(name) }

// WarmLock begins to load the memory that a look-up of a lock by its hash reads. The caller
// can do something else before it looks the lock up.
func (s *Store) WarmLock(hash uint64) { s.locks.Warm(hash) }

// LockOrNew finds a lock by its name and hash, or makes one without owner.
func (s *Store) LockOrNew(name []byte, hash uint64) (l *Lock, fresh bool) {
	if l = s.findLock(name, hash); l != nil {
		return l, false
	}
	return s.newLock(name, nil, hash), true
}

func (s *Store) newLock(name, owner []byte, h uint64) *Lock {
	l := (*Lock)(s.alloc.Alloc(lockSize + len(name) + len(owner)))
	*l = Lock{format: lockFormat, Age: s.LockAge, nameLen: uint32(len(name)), ownerLen: uint16(len(owner))}
	copy(l.Name(), name)
	copy(l.Owner(), owner)
	s.lockList.Insert(l, s.lockList.Tail)
	s.lockList.Bytes += uint64(l.Size())
	s.locks.Insert(&l.Entry, h)
	return l
}

// RemoveLock frees a lock, and raises the floor to its token.
func (s *Store) RemoveLock(l *Lock) {
	s.lockList.Floor = max(s.lockList.Floor, l.Token)
	s.ReplaceLock(l)
}

// ReplaceLock frees a lock that is replaced by another with the same name and a greater
// token. So the floor need not be raised.
func (s *Store) ReplaceLock(l *Lock) {
	if s.lockWalk == l {
		s.lockWalk = l.Next
	}
	s.lockList.Remove(l)
	s.lockList.Bytes -= uint64(l.Size())
	s.locks.Remove(&l.Entry, s.hashName(l.Name()))
	s.alloc.Free(unsafe.Pointer(l), l.Size())
}

// ScanLocks is [Store.ScanJobs] for locks.
func (s *Store) ScanLocks(cursor uint64, emit *[]*Lock) uint64 {
	b, next := s.locks.Scan(cursor)
	for e := range b.All {
		*emit = append(*emit, lockOf(e))
	}
	return next
}

// BeginLockWalk begins a walk through all locks, which may change meanwhile. There is one
// walk at a time: a new one ends the former.
func (s *Store) BeginLockWalk() { s.lockWalk = s.lockList.Head }

// WalkLock is the next lock of the walk, oldest first; nil at the end. The walk also meets
// locks that are made before it has ended.
func (s *Store) WalkLock() *Lock {
	l := s.lockWalk
	if l != nil {
		s.lockWalk = l.Next
	}
	return l
}

// Limits of a lock.
const (
	MaxLockName = 4100 // bytes of a lock's name, its space and its slot included
	MaxOwner    = 1024 // bytes of an owner
	MaxToken    = math.MaxInt64
	MaxLease    = math.MaxInt64 / 4 // ms
)

// LockRecord is a lock that was saved or logged. Its slices point into the bytes that
// [ParseLock] has read.
type LockRecord struct {
	Name, Owner []byte
	Token       uint64
	Lease       int64
	Job         ID
	Flags       uint8
	Ended       bool // the lock is over; only its token still counts
}

// ParseLock reads what [Lock.Record] wrote. Its errors wrap [ErrRecord].
func ParseLock(b []byte) (r LockRecord, err error) {
	if len(b) < lockRecordHead {
		return r, fmt.Errorf("%w: a lock of %d bytes", ErrRecord, len(b))
	}
	var l Lock
	copy(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&l), lockRecordAt)), lockRecordHead), b)
	r = LockRecord{Token: l.Token, Lease: l.Lease, Job: l.Job, Flags: l.Flags, Ended: l.Until < 0}
	text := b[lockRecordHead:]
	switch {
	case l.format != lockFormat:
		return r, fmt.Errorf("%w: a lock of format %d, known is %d", ErrRecord, l.format, lockFormat)
	case uint64(l.nameLen)+uint64(l.ownerLen) != uint64(len(text)), l.nameLen == 0, l.nameLen > MaxLockName, l.ownerLen > MaxOwner:
		return r, fmt.Errorf("%w: a lock's name of %d and owner of %d bytes in %d", ErrRecord, l.nameLen, l.ownerLen, len(text))
	case l.Token == 0 || l.Token > MaxToken || l.Lease < 0 || l.Lease > MaxLease:
		return r, fmt.Errorf("%w: a lock's token %d, lease %d", ErrRecord, l.Token, l.Lease)
	// A lock that is over may lack a holder: its end can be heard of first.
	case !r.Ended && (l.Job == ID{}) != (SpaceOf(text[:l.nameLen]) == LockBare):
		return r, fmt.Errorf("%w: a lock %.40q with the wrong kind of holder", ErrRecord, text[:l.nameLen])
	}
	r.Name, r.Owner = text[:l.nameLen:l.nameLen], text[l.nameLen:]
	return r, nil
}

// Record is the lock as it is saved; valid as long as the lock.
func (l *Lock) Record() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(l), lockRecordAt)), l.Size()-lockRecordAt)
}

// LockName takes a lock's name apart, whatever its slot ([SlotName]): its space, its scope (nil: the whole mesh) and its key.
// scopeHashed says that scope is only the SHA-256 of a long one, and hashed says so of key.
func LockName(name []byte) (space Space, scope, key []byte, scopeHashed, hashed bool) {
	_, name = SlotName(name)
	space, rest := Space(name[0]), name[1:]
	if space == LockBare {
		return space, nil, rest, false, false
	}
	take := func(n int) (b []byte) {
		n = min(n, len(rest))
		b, rest = rest[:n:n], rest[n:]
		return b
	}
	switch string(take(1)) {
	case "q":
		scope = []byte{}
		if n := take(1); len(n) > 0 {
			scope = take(int(n[0]))
		}
	case "Q":
		scope, scopeHashed = take(sha256.Size), true
	}
	hashed = string(take(1)) == "K"
	return space, scope, rest, scopeHashed, hashed
}

// AppendBareName appends the name of a bare lock. A long key is kept in full.
func AppendBareName(dst, key []byte) []byte { return append(append(dst, byte(LockBare)), key...) }

// Size is the memory a lock takes.
func (l *Lock) Size() int { return lockSize + int(l.nameLen) + int(l.ownerLen) }

// Name is the lock's name ([AppendLockName]); valid as long as the lock.
func (l *Lock) Name() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(l), lockSize)), int(l.nameLen))
}

// Owner is the holder of a bare lock, empty for others; valid as long as the lock.
func (l *Lock) Owner() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(l), lockSize+int(l.nameLen))), int(l.ownerLen))
}

// Space is what the lock is for.
func (l *Lock) Space() Space { return SpaceOf(l.Name()) }
