package store

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unsafe"
)

// The order of a queue: creation time, then ID, which is the same on every node.
func less(a, b *Job) bool {
	if a.CTime != b.CTime {
		return a.CTime < b.CTime
	}
	return bytes.Compare(a.ID[:], b.ID[:]) < 0
}

// height is the number of index levels that point at a job: none for 15 of 16,
// then one more with a chance of 1 in 4. It comes from the ID and a seed, so a
// run can be repeated and nobody can craft IDs that make the index useless.
func (s *Store) height(j *Job) int {
	r := scramble(binary.LittleEndian.Uint64(j.ID[4:]) ^ s.keys.height)
	if r&15 != 0 {
		return 0
	}
	return min(1+bits.TrailingZeros64(r>>4|1<<40)/2, maxLevel)
}

func (t *Tower) next(level int) **Tower {
	return (**Tower)(unsafe.Add(unsafe.Pointer(t), towerSize+8*level))
}

// after is where level's next tower behind t is written, t nil being the head.
func (q *Queue) after(t *Tower, level int) **Tower {
	if t == nil {
		return &q.index[level]
	}
	return t.next(level)
}

// before finds, on each level, the last tower before a job; nil is the head.
func (q *Queue) before(j *Job) (preds [maxLevel]*Tower) {
	var t *Tower
	for level := maxLevel - 1; level >= 0; level-- {
		for {
			next := *q.after(t, level)
			if next == nil || !less(next.job, j) {
				break
			}
			t = next
		}
		preds[level] = t
	}
	return preds
}

// insertWaiting puts a job into the waiting list. New jobs go to the end at
// once; those that come back find their place by the index.
func (s *Store) insertWaiting(q *Queue, j *Job) {
	height := s.height(j)
	q.Len++
	if q.Tail == nil || less(q.Tail, j) {
		j.Prev, j.Next = q.Tail, nil
		if q.Tail != nil {
			q.Tail.Next = j
		} else {
			q.Head = j
		}
		q.Tail = j
		if height > 0 {
			s.addTower(q, j, height, &q.indexTail)
		}
		return
	}
	preds := q.before(j)
	var at *Job // the last job before j
	if preds[0] != nil {
		at = preds[0].job
	} else if less(q.Head, j) {
		at = q.Head
	}
	if at != nil {
		for at.Next != nil && less(at.Next, j) {
			at = at.Next
		}
		j.Prev, j.Next = at, at.Next
		at.Next = j
	} else {
		j.Prev, j.Next = nil, q.Head
		q.Head = j
	}
	// There is a next one: j doesn't go to the end.
	j.Next.Prev = j
	if height > 0 {
		s.addTower(q, j, height, &preds)
	}
}

func (s *Store) addTower(q *Queue, j *Job, height int, preds *[maxLevel]*Tower) {
	size := towerSize + 8*height
	t := (*Tower)(s.alloc.Alloc(size))
	*t = Tower{job: j, level: uint32(height)}
	q.Bytes += uint64(size)
	j.Flags |= FlagIndexed
	for level := range height {
		place := q.after(preds[level], level)
		*t.next(level) = *place
		*place = t
		if *t.next(level) == nil {
			q.indexTail[level] = t
		}
	}
}

func (s *Store) removeWaiting(q *Queue, j *Job) {
	if j.Flags&FlagIndexed != 0 {
		var preds [maxLevel]*Tower
		t := q.index[0]
		if t.job != j {
			preds = q.before(j)
			t = *q.after(preds[0], 0)
		}
		for level := range int(t.level) {
			*q.after(preds[level], level) = *t.next(level)
			if q.indexTail[level] == t {
				q.indexTail[level] = preds[level]
			}
		}
		s.freeTower(q, t)
		j.Flags &^= FlagIndexed
	}
	q.Len--
	if j.Prev != nil {
		j.Prev.Next = j.Next
	} else {
		q.Head = j.Next
	}
	if j.Next != nil {
		j.Next.Prev = j.Prev
	} else {
		q.Tail = j.Prev
	}
}

func (s *Store) freeTower(q *Queue, t *Tower) {
	size := towerSize + 8*int(t.level)
	q.Bytes -= uint64(size)
	s.alloc.Free(unsafe.Pointer(t), size)
}

func insertHeld(q *Queue, j *Job) {
	q.Held++
	j.Prev, j.Next = q.HeldTail, nil
	if q.HeldTail != nil {
		q.HeldTail.Next = j
	} else {
		q.HeldHead = j
	}
	q.HeldTail = j
}

func removeHeld(q *Queue, j *Job) {
	q.Held--
	if j.Prev != nil {
		j.Prev.Next = j.Next
	} else {
		q.HeldHead = j.Next
	}
	if j.Next != nil {
		j.Next.Prev = j.Prev
	} else {
		q.HeldTail = j.Prev
	}
}
