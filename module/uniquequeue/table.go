package uniquequeue

import (
	"unsafe"

	"jobmesh/module/table"
)

// The table of a queue's items uses linear hashing (table.Buckets). Buckets lie in segments,
// which a directory lists. A small queue has one segment, of the size that it needs.
const (
	maxSegment = 8192
	// step is how many buckets are split or merged at a time. Each costs cache misses, and
	// those of several buckets overlap.
	step = 16
	// minBuckets is a multiple of step. So are all sizes that come from it by doubling, and a
	// step never crosses a level or a segment.
	minBuckets   = 16
	minDirectory = 2
)

type (
	bucket  = *Item
	segment = unsafe.Pointer // to its first bucket
)

// segment is the directory's entry for segment n.
func (q *Queue) segment(n uint64) *segment {
	return (*segment)(unsafe.Add(q.segments, n*8))
}

// bucket finds bucket b. Only the first segment may be shorter than maxSegment, and then it is
// the only one.
func (q *Queue) bucket(b uint64) *bucket {
	return (*bucket)(unsafe.Add(*q.segment(b / maxSegment), b%maxSegment*8))
}

func (q *Queue) size() table.Buckets { return table.BucketsOf(q.buckets) }

// of is the bucket of a hash.
func (q *Queue) of(hash uint64) *bucket { return q.bucket(q.size().At(hash)) }

func (s *Queues) beginTable(q *Queue) {
	q.segments = s.alloc.Alloc(minDirectory * 8)
	q.segmentsCap, q.segmentLen, q.buckets = minDirectory, minBuckets, minBuckets
	q.bytes += minDirectory * 8
	s.addSegment(q)
}

func (s *Queues) newSegment(q *Queue, buckets uint32) segment {
	p := s.alloc.Alloc(int(buckets) * 8)
	clear(unsafe.Slice((*bucket)(p), buckets))
	q.bytes += uint64(buckets) * 8
	return p
}

func (s *Queues) freeSegment(q *Queue, p segment, buckets uint32) {
	s.alloc.Free(p, int(buckets)*8)
	q.bytes -= uint64(buckets) * 8
}

func (s *Queues) addSegment(q *Queue) {
	if q.segmentsLen == q.segmentsCap {
		old, n := q.segments, int(q.segmentsCap)
		q.segments = s.alloc.Alloc(2 * n * 8)
		copy(unsafe.Slice(q.segment(0), n), unsafe.Slice((*segment)(old), n))
		s.alloc.Free(old, n*8)
		q.segmentsCap *= 2
		q.bytes += uint64(n) * 8
	}
	*q.segment(uint64(q.segmentsLen)) = s.newSegment(q, q.segmentLen)
	q.segmentsLen++
}

// resize gives the only segment another size.
func (s *Queues) resize(q *Queue, buckets uint32) {
	old, n := *q.segment(0), q.segmentLen
	p := s.newSegment(q, buckets)
	both := min(n, buckets)
	copy(unsafe.Slice((*bucket)(p), both), unsafe.Slice((*bucket)(old), both))
	s.freeSegment(q, old, n)
	*q.segment(0), q.segmentLen = p, buckets
}

// room makes sure that there is memory for step more buckets.
func (s *Queues) room(q *Queue) {
	if q.buckets < uint64(q.segmentsLen)*uint64(q.segmentLen) {
		return
	}
	if q.segmentLen < maxSegment {
		s.resize(q, 2*q.segmentLen)
	} else {
		s.addSegment(q)
	}
}

// grow splits the next step buckets: their items are divided between them and as many new
// buckets at the end.
func (s *Queues) grow(q *Queue) {
	s.room(q)
	size := q.size()
	from, to := size.Splits()
	s.touch(q, from)
	for i := range uint64(step) {
		low, high := q.bucket(from+i), q.bucket(to+i)
		e := *low
		*low, *high = nil, nil
		for e != nil {
			next, into := at(e.chain), low
			if size.Goes(s.hashOf(e)) {
				into = high
			}
			put(&e.chain, *into)
			*into = e
			e = next
		}
	}
	size.Grow(step)
	q.buckets = size.Len
}

// touch loads the first items of step buckets from first on into the cache, so that the loads
// don't wait for each other.
func (s *Queues) touch(q *Queue, first uint64) {
	for i := range uint64(step) {
		if e := *q.bucket(first + i); e != nil {
			s.touched += e.chain
		}
	}
}

// shrink undoes the last grow: it merges the last step buckets into others.
func (s *Queues) shrink(q *Queue) {
	size := q.size()
	first, home := size.Shrink(step)
	q.buckets = size.Len
	s.touch(q, first)
	for i := range uint64(step) {
		from, into := q.bucket(first+i), q.bucket(home+i)
		for e := *from; e != nil; {
			next := at(e.chain)
			put(&e.chain, *into)
			*into = e
			e = next
		}
		*from = nil
	}
	// One segment, or half of one, is kept in reserve.
	switch last := q.segmentsLen - 1; {
	case last >= 2 && q.buckets <= uint64(last-1)*maxSegment, last == 1 && q.buckets <= maxSegment/2:
		s.freeSegment(q, *q.segment(uint64(last)), maxSegment)
		q.segmentsLen--
	case last == 0 && q.segmentLen > minBuckets && q.buckets <= uint64(q.segmentLen)/4:
		s.resize(q, q.segmentLen/2)
	}
}
