package store

import (
	"crypto/sha256"
	"unsafe"

	"jobmesh/module/table"
)

// KeyQueue has those queued jobs of a queue that share a key and may only be worked on one, or
// a few (LIMIT), at a time (C: struct jm_key_queue). At most one of them, the front, is in the waiting list. The
// others are held back, and fetching never meets them. A queue has a per-key queue for each
// key that such a job has. The per-key queue's name follows it in the same allocation: the
// scope ('m' for the mesh, 'q' for the queue) and the key as in [AppendLockName]. The name
// doesn't contain the queue's name, so that renaming a queue leaves its per-key queues
// alone. If the scope is the mesh, a [ring] follows the name.
type KeyQueue struct {
	table.Element[KeyQueue] // in the table of per-key queues, and in the list of its queue
	Queue                   *Queue
	hash                    uint64 // of the queue's address and the name
	list                    *List  // the jobs that are held back, in the order of fetching; nil: never any
	front                   ID     // the job in the waiting list, if hasFront
	frontTime               uint64 // the front's creation time
	nameLen                 uint32
	hasFront                bool
	needsPromotion          bool // it is in Store.toPromote
	_                       [2]uint8
}

// ring links the per-key queues that have the same key of the mesh, one for each queue, so
// that they can be woken bit by bit. The first of them, which is woken next, is in the table
// of rings. A per-key queue that joins becomes the last. A ring isn't a [table.List]: it has
// no head, so a key with one per-key queue, as most have, takes no block for it.
type ring struct {
	table.Entry // chain in the table of rings
	keyQueue    *KeyQueue
	next, prev  *ring
	// Only the first one has these:
	len  uint64
	left uint64 // how many are still to be woken, from the first on
	at   uint64 // the index in Store.waking, if left isn't 0
}

const (
	keyQueueSize = int(unsafe.Sizeof(KeyQueue{}))
	listSize     = int(unsafe.Sizeof(List{}))
	ringSize     = int(unsafe.Sizeof(ring{}))
)

func keyQueueOfEntry(e *table.Entry) *KeyQueue { return (*KeyQueue)(unsafe.Pointer(e)) }

func (s *Store) initKeyQueues() {
	s.keyQueues.Init(s.alloc, func(e *table.Entry) uint64 { return keyQueueOfEntry(e).hash })
	s.toPromote, s.heldBack = s.toPromote[:0], 0
	s.rings, s.waking, s.wakesAll = table.Index{}, s.waking[:0], false
}

// keyQueueBytes is the size of a per-key queue with this name, in bytes.
func keyQueueBytes(name []byte) int {
	size := keyQueueSize + len(name)
	if name[0] == 'm' {
		size = (size+7)&^7 + ringSize
	}
	return size
}

func (l *KeyQueue) size() int { return keyQueueBytes(l.name()) }

// ring is the per-key queue's ring; nil if its scope is the queue.
func (l *KeyQueue) ring() *ring {
	if l.name()[0] != 'm' {
		return nil
	}
	return (*ring)(unsafe.Add(unsafe.Pointer(l), l.size()-ringSize))
}

func (l *KeyQueue) name() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(l), keyQueueSize)), int(l.nameLen))
}

// Head is the job that is held back and goes next: the most urgent one, and of several the oldest. It is nil if there is none.
func (l *KeyQueue) Head() *Job {
	if l.list == nil {
		return nil
	}
	return l.list.Head
}

// Front says whether the per-key queue has a front, a job that can be fetched.
func (l *KeyQueue) Front() bool { return l.hasFront }

// AppendLock appends the name of the lock of the per-key queue's key.
func (l *KeyQueue) AppendLock(dst []byte) []byte {
	name := l.name()
	if name[0] == 'm' {
		return append(append(dst, byte(LockRun), 'm'), name[1:]...)
	}
	// AppendLockName ends with a 'k' and an empty key. The per-key queue's name has its own
	// 'k' or 'K', and the key.
	dst = AppendLockName(dst, LockRun, l.Queue.NameBytes(), nil)
	return append(dst[:len(dst)-1], name[1:]...)
}

// keyQueueName is the name of a unique job's per-key queue. It lies in s.nameBuf, and is valid
// until that is used again.
func (s *Store) keyQueueName(j *Job, u Unique) []byte {
	name := append(s.nameBuf[:0], 'q')
	if u.Has(UniqueMesh) {
		name[0] = 'm'
	}
	if key := j.UniqueKey(u); len(key) < longKey {
		name = append(append(name, 'k'), key...)
	} else {
		sum := sha256.Sum256(key)
		name = append(append(name, 'K'), sum[:]...)
	}
	s.nameBuf = name
	return name
}

func (s *Store) hashKeyQueue(q *Queue, name []byte) uint64 {
	return mix(s.hashName(name)^uint64(uintptr(unsafe.Pointer(q))), 0x589965cc75374cc3)
}

func (s *Store) findKeyQueue(q *Queue, name []byte) *KeyQueue {
	return keyQueueOfEntry(s.keyQueues.Find(s.hashKeyQueue(q, name), func(e *table.Entry) bool {
		l := keyQueueOfEntry(e)
		return l.Queue == q && string(l.name()) == string(name)
	}))
}

// keyQueueOf finds the per-key queue of a job's key in the job's queue; nil if there is none.
func (s *Store) keyQueueOf(j *Job) *KeyQueue {
	u := j.Unique()
	if u == nil || !u.Runs() {
		return nil
	}
	return s.findKeyQueue(j.Queue, s.keyQueueName(j, u))
}

func (s *Store) newKeyQueue(q *Queue, name []byte) *KeyQueue {
	size := keyQueueBytes(name)
	l := (*KeyQueue)(s.alloc.Alloc(size))
	*l = KeyQueue{Queue: q, hash: s.hashKeyQueue(q, name), nameLen: uint32(len(name))}
	copy(l.name(), name)
	q.KeyQueues.Insert(l, nil)
	q.Bytes += uint64(size)
	s.enterKeyQueue(l)
	return l
}

// enterKeyQueue puts a per-key queue into the table, and into its ring if it has one.
func (s *Store) enterKeyQueue(l *KeyQueue) {
	l.needsPromotion = false
	s.keyQueues.Insert(&l.Entry, l.hash)
	if r := l.ring(); r != nil {
		*r = ring{keyQueue: l}
		s.join(r)
	}
}

// freeKeyQueue frees a per-key queue without jobs. known says whether it is in the table.
func (s *Store) freeKeyQueue(l *KeyQueue, known bool) {
	q := l.Queue
	q.KeyQueues.Remove(l)
	if l.list != nil {
		s.alloc.Free(unsafe.Pointer(l.list), listSize)
		q.Bytes -= uint64(listSize)
	}
	if l.needsPromotion {
		for i, x := range s.toPromote {
			if x == l {
				s.toPromote = append(s.toPromote[:i], s.toPromote[i+1:]...)
				break
			}
		}
	}
	if known {
		s.keyQueues.Remove(&l.Entry, l.hash)
		if r := l.ring(); r != nil {
			s.leaveRing(r)
		}
	}
	q.Bytes -= uint64(l.size())
	s.alloc.Free(unsafe.Pointer(l), l.size())
}

// setToPromote notes that a per-key queue has lost its front, or that its key may be free, so
// that [Store.NextToPromote] looks at it.
func (s *Store) setToPromote(l *KeyQueue) {
	if !l.needsPromotion {
		l.needsPromotion = true
		s.toPromote = append(s.toPromote, l)
	}
}

// AnyToPromote says whether [Store.NextToPromote] may find a per-key queue.
func (s *Store) AnyToPromote() bool { return len(s.toPromote)+len(s.waking) > 0 }

// HeldBack counts the jobs that attached queues hold back.
func (s *Store) HeldBack() uint64 { return s.heldBack }

// countHeld adds more, which may be negative, to the number of jobs that a queue holds back.
func (s *Store) countHeld(q *Queue, more int64) {
	q.HeldBack += uint64(more)
	if q.state == queueAttached {
		s.heldBack += uint64(more)
	}
}

// NextToPromote returns a per-key queue that has jobs and no front: it has lost its front, or
// its key may have become free ([Store.WakeKeyQueues]). It returns each once. It returns nil
// if there is none, or if *most is used up. Each look at a per-key queue in a ring takes 1
// from *most.
func (s *Store) NextToPromote(most *int) *KeyQueue {
	for len(s.toPromote) > 0 {
		last := len(s.toPromote) - 1
		l := s.toPromote[last]
		s.toPromote = s.toPromote[:last]
		l.needsPromotion = false
		if l.lacksFront() {
			return l
		}
	}
	for len(s.waking) > 0 && *most > 0 {
		*most--
		first := s.waking[len(s.waking)-1]
		s.setLeft(first, first.left-1)
		s.advance(first)
		if first.keyQueue.lacksFront() {
			return first.keyQueue
		}
	}
	return nil
}

func (l *KeyQueue) lacksFront() bool {
	return l.Queue.state == queueAttached && !l.hasFront && l.Head() != nil
}

// WakeKeyQueues tells the per-key queues of a lock's key that the lock, or this slot of it, may be
// free: [Store.NextToPromote] returns those that have jobs and no front.
func (s *Store) WakeKeyQueues(lock []byte) {
	slot, lock := SlotName(lock)
	if s.keyQueues.Len == 0 || len(lock) < 3 || Space(lock[0]) != LockRun {
		return
	}
	// The per-key queue's name is the lock's without its space and its queue.
	skip := 2
	switch lock[1] {
	case 'm':
	case 'q':
		skip = 3 + int(lock[2])
	case 'Q':
		skip = 2 + sha256.Size
	default:
		return // no job's lock has such a name
	}
	if len(lock) <= skip {
		return
	}
	name := append(s.nameBuf[:0], 'q')
	if lock[1] == 'm' {
		name[0] = 'm'
	}
	name = append(name, lock[skip:]...)
	s.nameBuf = name
	if lock[1] == 'm' {
		if first := s.firstOfRing(name); first != nil {
			s.setLeft(first, first.len)
			s.wakesAll = s.wakesAll || slot > 0
		}
		return
	}
	if q := s.lockQueue(lock); q != nil {
		if l := s.findKeyQueue(q, name); l != nil && !l.hasFront {
			s.setToPromote(l)
		}
	}
}

// Taken notes that l's key isn't free: the other per-key queues in its ring aren't woken any
// more. They are if a slot above 0 was freed: their jobs may have a greater limit.
func (s *Store) Taken(l *KeyQueue) {
	if !s.wakesAll && l.ring() != nil && len(s.waking) > 0 {
		s.setLeft(s.firstOfRing(l.name()), 0)
	}
}

// --- rings -------------------------------------------------------------------

func ringOfEntry(e *table.Entry) *ring { return (*ring)(unsafe.Pointer(e)) }

func (r *ring) hash(s *Store) uint64 { return s.hashName(r.keyQueue.name()) }

func (s *Store) firstOfRing(name []byte) *ring {
	if s.rings.Len == 0 {
		return nil
	}
	return ringOfEntry(s.rings.Find(s.hashName(name), func(e *table.Entry) bool { return string(ringOfEntry(e).keyQueue.name()) == string(name) }))
}

// join puts a per-key queue into its ring, as the last one.
func (s *Store) join(r *ring) {
	first := s.firstOfRing(r.keyQueue.name())
	if first == nil {
		if !s.rings.Made() {
			s.rings.Init(s.alloc, func(e *table.Entry) uint64 { return ringOfEntry(e).hash(s) })
		}
		r.next, r.prev, r.len = r, r, 1
		s.rings.Insert(&r.Entry, r.hash(s))
		return
	}
	first.len++
	r.next, r.prev = first, first.prev
	first.prev.next, first.prev = r, r
}

func (s *Store) leaveRing(r *ring) {
	first := s.firstOfRing(r.keyQueue.name())
	if first.left == first.len {
		s.setLeft(first, first.left-1)
	}
	first.len--
	switch {
	case r.next == r:
		s.rings.Remove(&r.Entry, r.hash(s))
	case r == first:
		s.advance(r)
	}
	r.prev.next, r.next.prev = r.next, r.prev
}

// advance makes the second one of a ring the first.
func (s *Store) advance(first *ring) {
	next := first.next
	if next == first {
		return
	}
	h := first.hash(s)
	s.rings.Remove(&first.Entry, h)
	next.len, next.left, next.at = first.len, first.left, first.at
	if next.left > 0 {
		s.waking[next.at] = next
	}
	s.rings.Insert(&next.Entry, h)
}

// setLeft sets how many of a ring are still to be woken.
func (s *Store) setLeft(first *ring, left uint64) {
	switch last := len(s.waking) - 1; {
	case left > 0 && first.left == 0:
		first.at = uint64(len(s.waking))
		s.waking = append(s.waking, first)
	case left == 0 && first.left > 0:
		s.waking[first.at] = s.waking[last]
		s.waking[first.at].at = first.at
		s.waking = s.waking[:last]
		s.wakesAll = s.wakesAll && last > 0
	}
	first.left = left
}

// WakeQueue is [Store.WakeKeyQueues] for all per-key queues of a queue.
func (s *Store) WakeQueue(q *Queue) {
	for l := q.KeyQueues.Head; l != nil; l = l.Next {
		if !l.hasFront {
			s.setToPromote(l)
		}
	}
}

// PushKeyQueue is [Store.Push] for a unique job that may only run alone. free says whether
// its key is free. If it is, and no job that goes before it waits for the key, the job becomes the front of
// its per-key queue and goes to the waiting list. Otherwise it is held back. PushKeyQueue
// returns the job that has come into the waiting list, if any.
func (s *Store) PushKeyQueue(j *Job, u Unique, free bool) (first *Job) {
	q := j.Queue
	s.withdraw(q, j)
	j.State = StateQueued
	name := s.keyQueueName(j, u)
	l := s.findKeyQueue(q, name)
	if l == nil {
		l = s.newKeyQueue(q, name)
	}
	before := q.order()
	if l.hasFront && (j.CTime <= l.frontTime || q.AnyPriorities()) {
		// A job that comes back goes before a younger one that became the front meanwhile, and an urgent one before others.
		if f := s.find(&l.front); f != nil && before(j, f) {
			s.take(q, &q.List, f)
			l.hasFront = false
			s.keep(l, f)
			free = true
		}
	}
	if free && !l.hasFront && (l.Head() == nil || before(j, l.Head())) {
		s.lead(l, j)
		return j
	}
	s.keep(l, j)
	if free && !l.hasFront {
		return s.Promote(l)
	}
	if !l.hasFront && l.list.Len == 1 {
		s.setToPromote(l) // the engine may have to watch for the lock's end
	}
	return nil
}

// lead puts a job that is in no list into the waiting list, as its per-key queue's front.
func (s *Store) lead(l *KeyQueue, j *Job) {
	j.Place = InWaiting
	s.insert(l.Queue, &l.Queue.List, j)
	l.hasFront, l.front, l.frontTime = true, j.ID, j.CTime
}

// keep holds back a job that is in no list.
func (s *Store) keep(l *KeyQueue, j *Job) {
	q := l.Queue
	if l.list == nil {
		l.list = (*List)(s.alloc.Alloc(listSize))
		*l.list = List{}
		q.Bytes += uint64(listSize)
	}
	j.Place = InKeyQueue
	s.insert(q, l.list, j)
	s.countHeld(q, 1)
}

// Promote makes the job that is held back and goes next the front, and returns it. The per-key queue
// must have no front.
func (s *Store) Promote(l *KeyQueue) *Job {
	j := l.Head()
	s.take(l.Queue, l.list, j)
	s.countHeld(l.Queue, -1)
	s.lead(l, j)
	return j
}

// HoldBack moves a job whose key is taken from the waiting list to its per-key queue.
func (s *Store) HoldBack(j *Job, u Unique) {
	q := j.Queue
	l := s.keyQueueOf(j)
	if l == nil {
		l = s.newKeyQueue(q, s.keyQueueName(j, u))
	}
	s.take(q, &q.List, j)
	if l.front == j.ID {
		l.hasFront = false
	}
	s.keep(l, j)
	if !l.hasFront {
		s.setToPromote(l)
	}
}

// left updates the per-key queue of a job that has just left the waiting list.
func (s *Store) left(j *Job) {
	l := s.keyQueueOf(j)
	if l == nil || !l.hasFront || l.front != j.ID {
		return
	}
	l.hasFront = false
	if l.Head() == nil {
		s.freeKeyQueue(l, true)
	} else {
		s.setToPromote(l)
	}
}

// leaveKeyQueue takes a job that is held back out of its per-key queue l. If l is nil, the
// table finds it. known says whether it is in the table: after [Store.Forget] it isn't, and l
// must be given.
func (s *Store) leaveKeyQueue(j *Job, l *KeyQueue, known bool) {
	if l == nil {
		l = s.keyQueueOf(j)
	}
	s.take(l.Queue, l.list, j)
	s.countHeld(l.Queue, -1)
	if l.list.Len == 0 && !l.hasFront {
		s.freeKeyQueue(l, known)
	}
}
