package store

import (
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
	// LockBare: asked for by itself (LOCK.ACQUIRE), and held by an owner.
	LockBare Space = 'L'
	// LockWait: no other job with this key can be added.
	LockWait Space = 'W'
	// LockRun: no other job with this key can be fetched.
	LockRun Space = 'R'
)

// longKey is the length from which a key is known by its SHA-256 alone.
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
	table.Entry       // chain in the table of locks
	Next, Prev  *Lock // neighbours in the list of all locks

	// From here to the end of the owner: the record, saved as it lies.
	Token    uint64 // the fencing token
	Until    int64  // when the lease is over, by the steady clock, ms; 0: with its holder; negative: it was, then
	Lease    int64  // how long it was asked for, ms; 0: as long as its holder
	Job      ID     // the job that holds it; zero: the owner does
	Flags    uint8  // the engine's
	format   uint8  // of the record
	Age      uint16 // [Store.LockAge] when it was made, or what the engine made of it; of no meaning where it is saved
	nameLen  uint32
	ownerLen uint16
	By       uint16 // the node that claimed it last: the lowest bits of its short name; 0: it isn't known
	Era      uint32 // the engine's
}

// LockList is where C finds all locks (struct jm_lock_list).
type LockList struct {
	Head, Tail *Lock
	Len, Bytes uint64
	Floor      uint64 // no token that was given out and forgotten is greater
	Complete   uint64 // what is known of the table as a whole, in a mesh: package engine's
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

// Locks are all locks there are. They stay when everything else is forgotten.
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

// WarmLock begins to look for a lock by its hash, for who has something else to do first.
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
	all := s.lockList
	l.Prev = all.Tail
	if all.Tail != nil {
		all.Tail.Next = l
	} else {
		all.Head = l
	}
	all.Tail = l
	all.Len++
	all.Bytes += uint64(l.Size())
	s.locks.Insert(&l.Entry, h)
	return l
}

// RemoveLock frees a lock, and remembers its token in the floor.
func (s *Store) RemoveLock(l *Lock) {
	s.lockList.Floor = max(s.lockList.Floor, l.Token)
	s.ReplaceLock(l)
}

// ReplaceLock frees a lock that another of the same name, with a greater token,
// takes the place of.
func (s *Store) ReplaceLock(l *Lock) {
	all := s.lockList
	if s.lockWalk == l {
		s.lockWalk = l.Next
	}
	if l.Prev != nil {
		l.Prev.Next = l.Next
	} else {
		all.Head = l.Next
	}
	if l.Next != nil {
		l.Next.Prev = l.Prev
	} else {
		all.Tail = l.Prev
	}
	all.Len--
	all.Bytes -= uint64(l.Size())
	s.locks.Remove(&l.Entry, s.hashName(l.Name()))
	s.alloc.Free(unsafe.Pointer(l), l.Size())
}

// Scan is [Store.ScanJobs] for locks.
func (s *Store) ScanLocks(cursor uint64, emit *[]*Lock) uint64 {
	b, next := s.locks.Scan(cursor)
	for e := range b.All {
		*emit = append(*emit, lockOf(e))
	}
	return next
}

// BeginLockWalk begins a walk through all locks, which may change meanwhile. There is one
// at a time.
func (s *Store) BeginLockWalk() { s.lockWalk = s.lockList.Head }

// WalkLock is the next lock of the walk, oldest first; nil at the end. Those that are made
// meanwhile are met, too.
func (s *Store) WalkLock() *Lock {
	l := s.lockWalk
	if l != nil {
		s.lockWalk = l.Next
	}
	return l
}

// Limits of a lock.
const (
	MaxLockName = 4097 // bytes of a lock's name, its space included
	MaxOwner    = 1024 // bytes of an owner
	MaxToken    = math.MaxInt64
	MaxLease    = math.MaxInt64 / 4 // ms
)

// LockRecord is a lock that was saved or logged; its slices point into what was read.
type LockRecord struct {
	Name, Owner []byte
	Token       uint64
	Lease       int64
	Job         ID
	Flags       uint8
	Ended       bool // only its token counts still
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
	// One that is over need never have had a holder: its end can be heard of first.
	case !r.Ended && (l.Job == ID{}) != (Space(text[0]) == LockBare):
		return r, fmt.Errorf("%w: a lock %.40q with the wrong kind of holder", ErrRecord, text[:l.nameLen])
	}
	r.Name, r.Owner = text[:l.nameLen:l.nameLen], text[l.nameLen:]
	return r, nil
}

// Record is the lock as it is saved; valid as long as the lock.
func (l *Lock) Record() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(l), lockRecordAt)), l.Size()-lockRecordAt)
}

// LockName takes a lock's name apart: its scope (nil: the whole mesh) and its
// key. A long scope or key is known by its SHA-256 only: scopeHashed and hashed say so.
func LockName(name []byte) (space Space, scope, key []byte, scopeHashed, hashed bool) {
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

// AppendBareName appends the name of a lock by itself. It is kept in full.
func AppendBareName(dst, key []byte) []byte { return append(append(dst, byte(LockBare)), key...) }

// Size is the memory a lock takes.
func (l *Lock) Size() int { return lockSize + int(l.nameLen) + int(l.ownerLen) }

// Name is the lock's name ([AppendLockName]); valid as long as the lock.
func (l *Lock) Name() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(l), lockSize)), int(l.nameLen))
}

// Owner is who holds the lock where no job does; valid as long as the lock.
func (l *Lock) Owner() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(l), lockSize+int(l.nameLen))), int(l.ownerLen))
}

// Space is what the lock is for.
func (l *Lock) Space() Space { return Space(l.Name()[0]) }
