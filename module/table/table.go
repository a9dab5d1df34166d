package table

import "unsafe"

// Allocator gives memory outside the Go heap.
type Allocator interface {
	// Alloc returns size bytes, uninitialised, aligned to 8.
	Alloc(size int) unsafe.Pointer
	// Free gives back what Alloc returned for that size.
	Free(p unsafe.Pointer, size int)
}

// Entry is how a table sees its elements: each begins with one.
type Entry struct{ Next *Entry }

// Table is a table of linear hashing (see [Buckets]) for elements that are found most often. Buckets lie
// in segments of segmentLen, allocated as needed; each bucket is the head of a chain through the elements. Its
// memory is the allocator's, so it is counted with the elements.
type Table struct {
	alloc    Allocator
	hash     func(*Entry) uint64
	segments []*[segmentLen]*Entry
	buckets  Buckets
	Len      uint64
	touched  uint64 // keeps the compiler from dropping touch's loads
}

const (
	segmentLen   = 8192
	segmentBytes = segmentLen * 8
	// step is how many buckets are split or merged at a time. The elements in
	// them were last looked at long ago, so each is a cache miss; misses of
	// several buckets overlap, where one bucket at a time would wait for each.
	step = 16
	// A multiple of step, as are segmentLen and all that is doubled from here:
	// a step never crosses a level or a segment.
	minBuckets = 64
)

func (t *Table) Init(alloc Allocator, hash func(*Entry) uint64) {
	*t = Table{alloc: alloc, hash: hash, buckets: BucketsOf(minBuckets)}
	t.addSegment()
}

func (t *Table) addSegment() {
	s := (*[segmentLen]*Entry)(t.alloc.Alloc(segmentBytes))
	*s = [segmentLen]*Entry{}
	t.segments = append(t.segments, s)
}

// Expect makes an empty table as large as so many insertions would.
func (t *Table) Expect(n uint64) {
	if t.Len > 0 || n <= t.buckets.Len {
		return
	}
	t.buckets = BucketsOf((n + step - 1) / step * step)
	for uint64(len(t.segments))*segmentLen < t.buckets.Len {
		t.addSegment()
	}
}

// Made says whether the table was begun by Init, and not dropped.
func (t *Table) Made() bool { return t.segments != nil }

// Clear makes the table as Init did. The elements aren't freed.
func (t *Table) Clear() {
	t.Drop()
	t.Init(t.alloc, t.hash)
}

// Drop frees the segments, not the elements.
func (t *Table) Drop() {
	for _, s := range t.segments {
		t.alloc.Free(unsafe.Pointer(s), segmentBytes)
	}
	t.segments = nil
}

func (t *Table) head(bucket uint64) **Entry {
	return &t.segments[bucket/segmentLen][bucket%segmentLen]
}

// Warm begins to load the bucket of a hash.
func (t *Table) Warm(hash uint64) { Prefetch(unsafe.Pointer(t.head(t.buckets.Of(hash))), 1) }

// First returns the head of the chain that a hash is in.
func (t *Table) First(hash uint64) *Entry { return *t.head(t.buckets.Of(hash)) }

func (t *Table) Insert(e *Entry, hash uint64) {
	h := t.head(t.buckets.Of(hash))
	e.Next = *h
	*h = e
	if t.Len++; t.Len >= t.buckets.Len+step {
		t.grow()
	}
}

// Remove takes out an element that is in the table.
func (t *Table) Remove(e *Entry, hash uint64) {
	p := t.head(t.buckets.Of(hash))
	for *p != e {
		p = &(*p).Next
	}
	*p = e.Next
	t.Len--
	// A margin of half keeps a table that hovers from growing and shrinking in
	// turn. Shrinking by two buckets for each that is spare, it keeps up with
	// removals.
	if t.buckets.Len > minBuckets && t.Len < (t.buckets.Len-step)/2 {
		t.shrink()
	}
}

// Replace puts an element in another's place, whose next it already has.
func (t *Table) Replace(old, by *Entry, hash uint64) {
	p := t.head(t.buckets.Of(hash))
	for *p != old {
		if *p == nil {
			return // it isn't known
		}
		p = &(*p).Next
	}
	*p = by
}

// touch loads the elements of the buckets from first to first+step, two of each.
func (t *Table) touch(first uint64) {
	var second [step]*Entry
	for i := range uint64(step) {
		if e := *t.head(first + i); e != nil {
			second[i] = e.Next
			t.touched += t.hash(e)
		}
	}
	for _, e := range second {
		if e != nil {
			t.touched += t.hash(e) + uint64(uintptr(unsafe.Pointer(e.Next)))
		}
	}
}

// grow divides the next buckets in line between themselves and as many new ones
// at the end.
func (t *Table) grow() {
	from, to := t.buckets.Splits()
	if to == uint64(len(t.segments))*segmentLen {
		t.addSegment()
	}
	t.touch(from)
	for i := range uint64(step) {
		low, high := t.head(from+i), t.head(to+i)
		e := *low
		*low, *high = nil, nil
		for e != nil {
			next := e.Next
			into := low
			if t.buckets.Goes(t.hash(e)) {
				into = high
			}
			e.Next = *into
			*into = e
			e = next
		}
	}
	t.buckets.Grow(step)
}

// shrink undoes the last grow.
func (t *Table) shrink() {
	first, home := t.buckets.Shrink(step)
	t.touch(first)
	for i := range uint64(step) {
		from, into := t.head(first+i), t.head(home+i)
		for e := *from; e != nil; {
			next := e.Next
			e.Next = *into
			*into = e
			e = next
		}
		*from = nil
	}
	// One segment is kept in reserve, for the same reason as the margin.
	if spare := len(t.segments) - 2; spare > 0 && t.buckets.Len <= uint64(spare)*segmentLen {
		last := t.segments[len(t.segments)-1]
		t.alloc.Free(unsafe.Pointer(last), segmentBytes)
		t.segments = t.segments[:len(t.segments)-1]
	}
}

// Scan returns one bucket's chain, and the next cursor: see [Buckets.Scan].
func (t *Table) Scan(cursor uint64) (chain *Entry, next uint64) {
	b, next := t.buckets.Scan(cursor)
	return *t.head(b), next
}
