package store

import (
	"cmp"
	"unsafe"

	"jobmesh/module/table"
)

// Delayed jobs in the order of their time. The held jobs that are counted as [Delayed] are the last ones of their queue's held list, and
// stand there in the order of QTime. The links of that list serve for it, so the order costs a job nothing but, for one of 16, a node of a
// skip list: 1.7 bytes on average. A queue without such jobs has 8 bytes for it.

// delayedOrder says where in a queue's held list the delayed jobs begin (C: struct jm_delayed).
type delayedOrder struct {
	first *Job // all behind it are delayed, too
	index table.SkipIndex[Job]
}

const delayedOrderSize = int(unsafe.Sizeof(delayedOrder{}))

// dueFirst is the order of delayed jobs: QTime, and that of the queue's jobs without priorities where two have the same. So jobs that are added
// for the same moment go to the end, one after the other.
func dueFirst(a, b *Job) bool {
	if a.QTime != b.QTime {
		return a.QTime < b.QTime
	}
	return older(a, b)
}

// lastUnordered is the last held job of a queue that isn't delayed; nil if there is none.
func (q *Queue) lastUnordered() *Job {
	if q.delayed != nil {
		return q.delayed.first.Prev
	}
	return q.Held.Tail
}

// Undelayed returns the first and the last of a queue's held jobs that aren't delayed; nil if there are none.
func (q *Queue) Undelayed() (first, last *Job) {
	if last = q.lastUnordered(); last != nil {
		first = q.Held.Head
	}
	return first, last
}

// enterDelayed puts a job that is in no list among the delayed jobs.
func (s *Store) enterDelayed(q *Queue, j *Job) {
	d := q.delayed
	height := s.height(j)
	if d == nil {
		d = (*delayedOrder)(s.alloc.Alloc(delayedOrderSize))
		*d = delayedOrder{}
		q.Bytes += uint64(delayedOrderSize)
		q.delayed = d
	}
	path := &d.index.Tail
	at := q.Held.Tail
	if d.first != nil && !dueFirst(at, j) {
		path = new(table.SkipPath[Job])
		if at = d.index.Place(&table.List[Job]{Head: d.first}, j, dueFirst, path); at == nil {
			at = d.first.Prev
		}
	}
	if d.first == nil || at == d.first.Prev {
		d.first = j
	}
	q.Held.Insert(j, at)
	if height > 0 {
		q.Bytes += uint64(d.index.Add(s.alloc, j, height, path))
	}
}

// leaveDelayed takes a job out of the delayed ones. It is in no list then.
func (s *Store) leaveDelayed(q *Queue, j *Job) {
	d := q.delayed
	if s.height(j) > 0 {
		q.Bytes -= uint64(d.index.Remove(s.alloc, j, dueFirst))
	}
	if d.first == j {
		d.first = j.Next
	}
	if q.Held.Remove(j); d.first == nil {
		q.delayed = nil
		q.Bytes -= uint64(delayedOrderSize)
		s.alloc.Free(unsafe.Pointer(d), delayedOrderSize)
	}
}

// replaceInDelayed puts a copy in the place of a delayed job.
func (s *Store) replaceInDelayed(q *Queue, j, by *Job) {
	if q.delayed.first == j {
		q.delayed.first = by
	}
	if s.height(j) > 0 {
		q.delayed.index.Replace(j, by, dueFirst)
	}
}

// SetTime sets the QTime of a job that nobody works on. A delayed one moves to its place in the order.
func (s *Store) SetTime(j *Job, at int64) {
	if j.Reason() != Delayed || j.QTime == at {
		j.QTime = at
		return
	}
	q := j.Queue
	s.mustKnow(q)
	s.leaveDelayed(q, j)
	j.QTime = at
	s.enterDelayed(q, j)
}

// DelayedPlace is a place in the order of a queue's delayed jobs: that of a job with this time, creation and ID, which may be gone. The zero
// place is before all.
type DelayedPlace struct {
	At    int64 // QTime, unix ms
	CTime uint64
	ID    ID
}

// DelayedPlaceOf is the place of a delayed job.
func DelayedPlaceOf(j *Job) DelayedPlace { return DelayedPlace{j.QTime, j.CTime, j.ID} }

// Compare says whether a place is before (-1) another one or behind it (1); 0: they are the same.
func (p *DelayedPlace) Compare(than *DelayedPlace) int {
	return cmp.Or(cmp.Compare(p.At, than.At), cmp.Compare(p.CTime, than.CTime), cmp.Compare(string(p.ID[:]), string(than.ID[:])))
}

// FirstDelayed is the first delayed job of a queue behind a place; nil: there is none. The others follow it, by Next.
func (q *Queue) FirstDelayed(behind DelayedPlace) *Job {
	d := q.delayed
	if d == nil {
		return nil
	}
	probe := Job{QTime: behind.At, CTime: behind.CTime, ID: behind.ID}
	var path table.SkipPath[Job]
	j := d.index.Place(&table.List[Job]{Head: d.first}, &probe, dueFirst, &path)
	if j == nil {
		j = d.first
	} else {
		j = j.Next
	}
	if j != nil && DelayedPlaceOf(j) == behind {
		j = j.Next
	}
	return j
}
