package store

import (
	"crypto/sha256"
	"unsafe"
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
	entry            // chain in the table of locks
	Next, Prev *Lock // neighbours in the list of all locks
	hash       uint64
	Token      uint64 // the fencing token
	Until      int64  // when the lease is over, by the steady clock, ms; 0: with its holder
	Lease      int64  // how long it was asked for, ms; 0: as long as its holder
	Job        ID     // the job that holds it; zero: the owner does
	Flags      uint8  // the engine's
	_          [3]uint8
	nameLen    uint32
	ownerLen   uint32
	Era        uint32 // the engine's
}

// LockList is where C finds all locks (struct jm_lock_list).
type LockList struct {
	Head, Tail *Lock
	Len, Bytes uint64
	Floor      uint64 // no token that was given out and forgotten is greater
}

const (
	lockSize     = int(unsafe.Sizeof(Lock{}))
	lockListSize = int(unsafe.Sizeof(LockList{}))
)

func lockOf(e *entry) *Lock { return (*Lock)(unsafe.Pointer(e)) }

func (s *Store) initLocks() {
	s.lockList = (*LockList)(s.alloc.Alloc(lockListSize))
	*s.lockList = LockList{}
	s.locks.init(s.alloc, func(e *entry) uint64 { return lockOf(e).hash })
}

// Locks are all locks there are. They stay when everything else is forgotten.
func (s *Store) Locks() *LockList { return s.lockList }

// Lock finds a lock; nil where there is none of that name.
func (s *Store) Lock(name []byte) *Lock { return s.findLock(name, s.hashName(name)) }

func (s *Store) findLock(name []byte, h uint64) *Lock {
	for e := s.locks.first(h); e != nil; e = s.locks.next(e, h) {
		if l := lockOf(e); string(l.Name()) == string(name) {
			return l
		}
	}
	return nil
}

// NewLock makes a lock; there must be none of that name.
func (s *Store) NewLock(name, owner []byte) *Lock {
	return s.newLock(name, owner, s.hashName(name))
}

// WarmLock begins to look for a lock, for who has something else to do first. It is
// the next that [Store.LockOrNew] is asked for, and the name stays as it is till then.
func (s *Store) WarmLock(name []byte) {
	s.warm.name, s.warm.hash = name, s.hashName(name)
	s.locks.warm(s.warm.hash)
}

// LockOrNew finds a lock, or makes one without owner.
func (s *Store) LockOrNew(name []byte) (l *Lock, fresh bool) {
	h := s.warm.hash
	if unsafe.SliceData(s.warm.name) != unsafe.SliceData(name) || len(s.warm.name) != len(name) {
		h = s.hashName(name)
	}
	s.warm.name = nil
	if l = s.findLock(name, h); l != nil {
		return l, false
	}
	return s.newLock(name, nil, h), true
}

func (s *Store) newLock(name, owner []byte, h uint64) *Lock {
	l := (*Lock)(s.alloc.Alloc(lockSize + len(name) + len(owner)))
	*l = Lock{hash: h, nameLen: uint32(len(name)), ownerLen: uint32(len(owner))}
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
	s.locks.insert(&l.entry, l.hash)
	return l
}

// RemoveLock frees a lock, and remembers its token in the floor.
func (s *Store) RemoveLock(l *Lock) {
	all := s.lockList
	all.Floor = max(all.Floor, l.Token)
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
	s.locks.remove(&l.entry, l.hash)
	s.alloc.Free(unsafe.Pointer(l), l.Size())
}

// ScanLocks is [Store.ScanJobs] for locks.
func (s *Store) ScanLocks(cursor uint64, emit *[]*Lock) uint64 {
	e, next := s.locks.scan(cursor)
	for ; e != nil; e = e.next {
		*emit = append(*emit, lockOf(e))
	}
	return next
}

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
