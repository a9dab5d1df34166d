package table

import "unsafe"

// Allocator gives memory outside Go's heap.
type Allocator interface {
	// Alloc returns size bytes, uninitialised, aligned to 8.
	Alloc(size int) unsafe.Pointer
	// Free gives back memory that Alloc returned for that size.
	Free(p unsafe.Pointer, size int)
}

// Entry is the part of an element that the table uses: each element begins with one.
type Entry struct{ Next *Entry }

// Table is a table of linear hashing (see [Buckets]) for lookups that mostly find something. Its buckets are in
// segments of segmentLen, which are allocated as needed. Each bucket is the head of a chain through the elements. The
// memory of the table is the allocator's, so it is counted with that of the elements.
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
	// step is how many buckets are split or merged at a time. Their elements were last looked at long ago, so each
	// costs a cache miss. The misses of several buckets overlap; one bucket at a time would wait for each miss.
	step = 16
	// minBuckets is a multiple of step; so are segmentLen and all sizes that doubling gives. So one step doesn't cross
	// a power of two, or a segment.
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

// Expect makes an empty table as large as n insertions would.
func (t *Table) Expect(n uint64) {
	if t.Len > 0 || n <= t.buckets.Len {
		return
	}
	t.buckets = BucketsOf((n + step - 1) / step * step)
	for uint64(len(t.segments))*segmentLen < t.buckets.Len {
		t.addSegment()
	}
}

// Made says whether Init has made the table, and Drop hasn't ended it since.
func (t *Table) Made() bool { return t.segments != nil }

// Clear makes the table empty, as Init did. It doesn't free the elements.
func (t *Table) Clear() {
	t.Drop()
	t.Init(t.alloc, t.hash)
}

// Drop frees the segments. It doesn't free the elements.
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
func (t *Table) Warm(hash uint64) { Prefetch(unsafe.Pointer(t.head(t.buckets.At(hash))), 1) }

// First returns the first element of the bucket of a hash; the others follow by Entry.Next.
func (t *Table) First(hash uint64) *Entry { return *t.head(t.buckets.At(hash)) }

// Insert puts in e, which is in no table. hash is the hash of e.
func (t *Table) Insert(e *Entry, hash uint64) {
	h := t.head(t.buckets.At(hash))
	e.Next = *h
	*h = e
	if t.Len++; t.Len >= t.buckets.Len+step {
		t.grow()
	}
}

// Remove takes out an element that is in the table.
func (t *Table) Remove(e *Entry, hash uint64) {
	p := t.head(t.buckets.At(hash))
	for *p != e {
		p = &(*p).Next
	}
	*p = e.Next
	t.Len--
	// A margin of half the buckets keeps a table whose size hovers from growing and shrinking in turn. The table
	// shrinks by two buckets for each element that goes, so it keeps up with removals.
	if t.buckets.Len > minBuckets && t.Len < (t.buckets.Len-step)/2 {
		t.shrink()
	}
}

// Replace puts by in the place of old. by has the Next of old already. Replace does nothing if old isn't in the table.
func (t *Table) Replace(old, by *Entry, hash uint64) {
	p := t.head(t.buckets.At(hash))
	for *p != old {
		if *p == nil {
			return // old isn't in the table
		}
		p = &(*p).Next
	}
	*p = by
}

// touch loads the first two elements of each bucket from first to first+step, so that their cache misses overlap.
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

// grow splits the next buckets: each shares its elements with a new one at the end.
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
	// One segment is kept in reserve, for the same reason as the margin in Remove.
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
