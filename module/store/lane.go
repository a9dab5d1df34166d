package store

import (
	"crypto/sha256"
	"unsafe"
)

// Lane is the line of a queue's waiting jobs that may only be worked on one at a
// time (C: struct jm_lane). At most one of them, the front, is in the waiting list;
// the others are held back, and fetching never comes across them. There is a lane
// for each key that a waiting job has. Its name follows it in the same allocation:
// the scope ('m' or 'q') and the key as in [AppendLockName], but without the
// queue's name, so that renaming a queue leaves its lanes alone.
type Lane struct {
	entry            // chain in the table of lanes
	Next, Prev *Lane // neighbours in the list of its queue
	Queue      *Queue
	hash       uint64
	list       *List  // those held back, by creation time; nil: none
	front      ID     // the one in the waiting list
	frontTime  uint64 // its creation time
	nameLen    uint32
	hasFront   bool
	headless   bool // in Store.headless
	_          [2]uint8
}

const (
	laneSize = int(unsafe.Sizeof(Lane{}))
	listSize = int(unsafe.Sizeof(List{}))
)

func laneOfEntry(e *entry) *Lane { return (*Lane)(unsafe.Pointer(e)) }

func (s *Store) initLanes() {
	s.lanes.init(s.alloc, func(e *entry) uint64 { return laneOfEntry(e).hash })
	s.headless, s.heldBack = s.headless[:0], 0
}

func (l *Lane) size() int { return laneSize + int(l.nameLen) }

func (l *Lane) name() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(l), laneSize)), int(l.nameLen))
}

// Head is the oldest job that is held back, nil where none is.
func (l *Lane) Head() *Job {
	if l.list == nil {
		return nil
	}
	return l.list.Head
}

// Front says whether one of the lane's jobs can be fetched.
func (l *Lane) Front() bool { return l.hasFront }

// AppendLock appends the name of the lane's lock.
func (l *Lane) AppendLock(dst []byte) []byte {
	name := l.name()
	if name[0] == 'm' {
		return append(append(dst, byte(LockRun), 'm'), name[1:]...)
	}
	// AppendLockName's 'k' and an empty key, in whose place the key is put.
	dst = AppendLockName(dst, LockRun, l.Queue.NameBytes(), nil)
	return append(dst[:len(dst)-1], name[1:]...)
}

// laneName is the name of the lane that a unique job belongs to, in a buffer of
// the store's.
func (s *Store) laneName(j *Job, u Unique) []byte {
	name := append(s.laneBuf[:0], 'q')
	if u.Has(UniqueMesh) {
		name[0] = 'm'
	}
	if key := j.UniqueKey(u); len(key) < longKey {
		name = append(append(name, 'k'), key...)
	} else {
		sum := sha256.Sum256(key)
		name = append(append(name, 'K'), sum[:]...)
	}
	s.laneBuf = name
	return name
}

func (s *Store) findLane(q *Queue, name []byte, h uint64) *Lane {
	return laneOfEntry(s.lanes.find(h, func(e *entry) bool {
		l := laneOfEntry(e)
		return l.Queue == q && string(l.name()) == string(name)
	}))
}

// laneOf finds the lane that a job is in or before; nil where it has none.
func (s *Store) laneOf(j *Job) *Lane {
	u := j.Unique()
	if u == nil || !u.Runs() {
		return nil
	}
	name := s.laneName(j, u)
	return s.findLane(j.Queue, name, s.hashName(name))
}

func (s *Store) newLane(q *Queue, name []byte, h uint64) *Lane {
	size := laneSize + len(name)
	l := (*Lane)(s.alloc.Alloc(size))
	*l = Lane{Queue: q, hash: h, nameLen: uint32(len(name)), Next: q.Lanes}
	copy(l.name(), name)
	if q.Lanes != nil {
		q.Lanes.Prev = l
	}
	q.Lanes = l
	q.Bytes += uint64(size)
	s.lanes.insert(&l.entry, h)
	return l
}

// freeLane frees a lane without jobs. known: it is in the table.
func (s *Store) freeLane(l *Lane, known bool) {
	q := l.Queue
	if l.Prev != nil {
		l.Prev.Next = l.Next
	} else {
		q.Lanes = l.Next
	}
	if l.Next != nil {
		l.Next.Prev = l.Prev
	}
	if l.list != nil {
		s.alloc.Free(unsafe.Pointer(l.list), listSize)
		q.Bytes -= uint64(listSize)
	}
	if l.headless {
		for i, x := range s.headless {
			if x == l {
				s.headless = append(s.headless[:i], s.headless[i+1:]...)
				break
			}
		}
	}
	if known {
		s.lanes.remove(&l.entry, l.hash)
	}
	q.Bytes -= uint64(l.size())
	s.alloc.Free(unsafe.Pointer(l), l.size())
}

// behead notes that a lane has lost its front, or that its key may be free.
func (s *Store) behead(l *Lane) {
	if !l.headless {
		l.headless = true
		s.headless = append(s.headless, l)
	}
}

// AnyHeadless says whether [Store.Headless] may have something.
func (s *Store) AnyHeadless() bool { return len(s.headless) > 0 }

// HeldBack counts the jobs that attached queues hold back.
func (s *Store) HeldBack() uint64 { return s.heldBack }

// countHeld counts jobs that a queue holds back, or no more.
func (s *Store) countHeld(q *Queue, more int64) {
	q.HeldBack += uint64(more)
	if q.state == queueAttached {
		s.heldBack += uint64(more)
	}
}

// Headless takes one of the lanes that have lost their front since, or whose key
// may have become free ([Store.WakeLanes]), and still have jobs; nil where
// there is none.
func (s *Store) Headless() *Lane {
	for len(s.headless) > 0 {
		last := len(s.headless) - 1
		l := s.headless[last]
		s.headless = s.headless[:last]
		l.headless = false
		if l.Queue.state == queueAttached && !l.hasFront && l.Head() != nil {
			return l
		}
	}
	return nil
}

// WakeLanes makes the lanes of a lock's name headless, where they have no front.
func (s *Store) WakeLanes(lock []byte) {
	if s.lanes.len == 0 || len(lock) < 3 {
		return
	}
	// The lane's name is the lock's without its space and its queue.
	skip := 2
	switch lock[1] {
	case 'q':
		skip = 3 + int(lock[2])
	case 'Q':
		skip = 2 + sha256.Size
	}
	if len(lock) <= skip {
		return
	}
	name := append(s.laneBuf[:0], 'q')
	if lock[1] == 'm' {
		name[0] = 'm'
	}
	name = append(name, lock[skip:]...)
	s.laneBuf = name
	h := s.hashName(name)
	s.lanes.find(h, func(e *entry) bool {
		l := laneOfEntry(e)
		if !l.hasFront && string(l.name()) == string(name) {
			s.lockBuf = l.AppendLock(s.lockBuf[:0])
			if string(s.lockBuf) == string(lock) {
				s.behead(l)
			}
		}
		return false // all queues' lanes of the name
	})
}

// WakeQueue does the same for all of a queue's lanes.
func (s *Store) WakeQueue(q *Queue) {
	for l := q.Lanes; l != nil; l = l.Next {
		if !l.hasFront {
			s.behead(l)
		}
	}
}

// PushLane is [Store.Push] for a job that runs alone: it goes to its lane, or to
// the waiting list as the lane's front where free says that its key is, and no
// older one waits.
func (s *Store) PushLane(j *Job, u Unique, free bool) {
	q := j.Queue
	s.withdraw(q, j)
	j.State = StateQueued
	name := s.laneName(j, u)
	h := s.hashName(name)
	l := s.findLane(q, name, h)
	if l == nil {
		l = s.newLane(q, name, h)
	}
	if l.hasFront && j.CTime <= l.frontTime {
		// One that comes back goes before the one that took its turn.
		if f := s.find(&l.front); f != nil && older(j, f) {
			s.take(q, &q.List, f)
			l.hasFront = false
			s.keep(l, f)
			free = true
		}
	}
	if free && !l.hasFront && (l.Head() == nil || older(j, l.Head())) {
		s.lead(l, j)
		return
	}
	s.keep(l, j)
	if free && !l.hasFront {
		s.Promote(l)
	} else if !l.hasFront && l.list.Len == 1 {
		s.behead(l) // somebody may have to see to the lock's end
	}
}

// lead puts a job that is in no list into the waiting list, as its lane's front.
func (s *Store) lead(l *Lane, j *Job) {
	j.Place = InWaiting
	s.insert(l.Queue, &l.Queue.List, j)
	l.hasFront, l.front, l.frontTime = true, j.ID, j.CTime
}

// keep holds a job that is in no list back.
func (s *Store) keep(l *Lane, j *Job) {
	q := l.Queue
	if l.list == nil {
		l.list = (*List)(s.alloc.Alloc(listSize))
		*l.list = List{}
		q.Bytes += uint64(listSize)
	}
	j.Place = InLane
	s.insert(q, l.list, j)
	s.countHeld(q, 1)
}

// Promote makes the oldest job that a lane without front holds back its front, and
// returns it.
func (s *Store) Promote(l *Lane) *Job {
	j := l.Head()
	s.take(l.Queue, l.list, j)
	s.countHeld(l.Queue, -1)
	s.lead(l, j)
	return j
}

// HoldBack moves a job that can be fetched, but whose key is taken, from the
// waiting list to its lane.
func (s *Store) HoldBack(j *Job, u Unique) {
	q := j.Queue
	l := s.laneOf(j)
	if l == nil {
		name := s.laneName(j, u)
		l = s.newLane(q, name, s.hashName(name))
	}
	s.take(q, &q.List, j)
	if l.front == j.ID {
		l.hasFront = false
	}
	s.keep(l, j)
	if !l.hasFront {
		s.behead(l)
	}
}

// left is told of a job with extras that has been taken out of the waiting list.
func (s *Store) left(j *Job) {
	l := s.laneOf(j)
	if l == nil || !l.hasFront || l.front != j.ID {
		return
	}
	l.hasFront = false
	if l.Head() == nil {
		s.freeLane(l, true)
	} else {
		s.behead(l)
	}
}

// leaveLane takes a job out of its lane. A lane that isn't in the table any more
// (see [Store.Forget]) is to be given.
func (s *Store) leaveLane(j *Job, l *Lane, known bool) {
	if l == nil {
		l = s.laneOf(j)
	}
	s.take(l.Queue, l.list, j)
	s.countHeld(l.Queue, -1)
	if l.list.Len == 0 && !l.hasFront {
		s.freeLane(l, known)
	}
}
