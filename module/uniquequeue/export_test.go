package uniquequeue

import (
	"fmt"
	"unsafe"
)

// Free gives back an item that was taken.
func (i *Item) Free(a Allocator) { a.Free(unsafe.Pointer(i), i.Size()) }

// Free does what C does to a value in the server.
func (s *Queues) Free(q *Queue) {
	for i := q.head; i != nil; {
		next := i.Next()
		i.Free(s.alloc)
		i = next
	}
	for n := range uint64(q.segmentsLen) {
		s.alloc.Free(*q.segment(n), int(q.segmentLen)*8)
	}
	s.alloc.Free(q.segments, int(q.segmentsCap)*8)
	s.alloc.Free(unsafe.Pointer(q), queueSize)
}

// Check compares the list, the table and the counters.
func (s *Queues) Check(q *Queue) error {
	listed, size, last := map[*Item]bool{}, uint64(0), (*Item)(nil)
	for i := q.head; i != nil; i = i.Next() {
		if at(i.prev) != last {
			return fmt.Errorf("%q has a wrong neighbour", i.Bytes())
		}
		listed[i] = true
		size += uint64(i.Size())
		last = i
	}
	size += uint64(q.segmentsLen)*uint64(q.segmentLen)*8 + uint64(q.segmentsCap)*8
	if q.tail != last || uint64(len(listed)) != q.len || size != q.bytes {
		return fmt.Errorf("%d items of %d, %d bytes of %d", len(listed), q.len, size, q.bytes)
	}
	if q.buckets%step != 0 || q.buckets > uint64(q.segmentsLen)*uint64(q.segmentLen) || q.len > q.buckets+step {
		return fmt.Errorf("%d buckets for %d items", q.buckets, q.len)
	}
	for b := range q.buckets {
		for i := *q.bucket(b); i != nil; i = at(i.chain) {
			if !listed[i] || q.of(s.hash(i.Bytes())) != q.bucket(b) || s.hashOf(i) != s.hash(i.Bytes()) {
				return fmt.Errorf("%q is in bucket %d", i.Bytes(), b)
			}
			delete(listed, i)
		}
	}
	if len(listed) > 0 {
		return fmt.Errorf("%d items are in no bucket", len(listed))
	}
	return nil
}
