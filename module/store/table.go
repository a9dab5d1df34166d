package store

import (
	"math/bits"
	"unsafe"
)

// entry is how a table sees its elements: each begins with one.
type entry struct{ next *entry }

// table is a linear-hashing table (Litwin 1980): it grows by splitting a few
// buckets after as many insertions past its load, and shrinks by merging as
// many, so no operation ever rehashes much, and there is never a second table
// to look in. Buckets lie in segments of segmentLen, allocated as needed; each
// bucket is the head of a chain through the elements.
//
// An element hashes to 64 bits. In a table of n buckets, with
// 2^depth <= n < 2^(depth+1), bucket i holds the hashes whose low depth bits
// (or depth+1 bits, where that bucket was split already) are i.
type table struct {
	alloc    Allocator
	hash     func(*entry) uint64
	segments []*[segmentLen]*entry
	buckets  uint64 // how many there are
	depth    uint
	len      uint64
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

func (t *table) init(alloc Allocator, hash func(*entry) uint64) {
	*t = table{alloc: alloc, hash: hash, buckets: minBuckets, depth: uint(bits.TrailingZeros(minBuckets))}
	t.addSegment()
}

func (t *table) addSegment() {
	s := (*[segmentLen]*entry)(t.alloc.Alloc(segmentBytes))
	*s = [segmentLen]*entry{}
	t.segments = append(t.segments, s)
}

// expect makes an empty table as large as so many insertions would.
func (t *table) expect(n uint64) {
	if t.len > 0 || n <= t.buckets {
		return
	}
	t.buckets = (n + step - 1) / step * step
	t.depth = uint(bits.Len64(t.buckets)) - 1
	for uint64(len(t.segments))*segmentLen < t.buckets {
		t.addSegment()
	}
}

// drop frees the segments, not the elements.
func (t *table) drop() {
	for _, s := range t.segments {
		t.alloc.Free(unsafe.Pointer(s), segmentBytes)
	}
	t.segments = nil
}

func (t *table) bucketOf(hash uint64) uint64 {
	b := hash & (1<<(t.depth+1) - 1)
	if b >= t.buckets {
		b &= 1<<t.depth - 1
	}
	return b
}

func (t *table) head(bucket uint64) **entry {
	return &t.segments[bucket/segmentLen][bucket%segmentLen]
}

// warm begins to load the bucket of a hash.
func (t *table) warm(hash uint64) { prefetch(unsafe.Pointer(t.head(t.bucketOf(hash))), 1) }

// first returns the head of the chain that a hash is in.
func (t *table) first(hash uint64) *entry { return *t.head(t.bucketOf(hash)) }

func (t *table) insert(e *entry, hash uint64) {
	h := t.head(t.bucketOf(hash))
	e.next = *h
	*h = e
	if t.len++; t.len >= t.buckets+step {
		t.grow()
	}
}

// remove takes out an element that is in the table.
func (t *table) remove(e *entry, hash uint64) {
	p := t.head(t.bucketOf(hash))
	for *p != e {
		p = &(*p).next
	}
	*p = e.next
	t.len--
	// A margin of half keeps a table that hovers from growing and shrinking in
	// turn. Shrinking by two buckets for each that is spare, it keeps up with
	// removals.
	if t.buckets > minBuckets && t.len < (t.buckets-step)/2 {
		t.shrink()
	}
}

// replace puts an element in another's place, whose next it already has.
func (t *table) replace(old, by *entry, hash uint64) {
	p := t.head(t.bucketOf(hash))
	for *p != old {
		if *p == nil {
			return // it isn't known
		}
		p = &(*p).next
	}
	*p = by
}

// touch loads the elements of the buckets from first to first+step, two of each.
func (t *table) touch(first uint64) {
	var second [step]*entry
	for i := range uint64(step) {
		if e := *t.head(first + i); e != nil {
			second[i] = e.next
			t.touched += t.hash(e)
		}
	}
	for _, e := range second {
		if e != nil {
			t.touched += t.hash(e) + uint64(uintptr(unsafe.Pointer(e.next)))
		}
	}
}

// grow divides the next buckets in line between themselves and as many new ones
// at the end.
func (t *table) grow() {
	from, to := t.buckets-1<<t.depth, t.buckets
	if to == uint64(len(t.segments))*segmentLen {
		t.addSegment()
	}
	t.touch(from)
	for i := range uint64(step) {
		low, high := t.head(from+i), t.head(to+i)
		e := *low
		*low, *high = nil, nil
		for e != nil {
			next := e.next
			into := low
			if t.hash(e)>>t.depth&1 != 0 {
				into = high
			}
			e.next = *into
			*into = e
			e = next
		}
	}
	if t.buckets += step; t.buckets == 2<<t.depth {
		t.depth++
	}
}

// shrink undoes the last grow.
func (t *table) shrink() {
	if t.buckets == 1<<t.depth {
		t.depth--
	}
	t.buckets -= step
	t.touch(t.buckets)
	for i := range uint64(step) {
		from, into := t.head(t.buckets+i), t.head(t.buckets+i-1<<t.depth)
		for e := *from; e != nil; {
			next := e.next
			e.next = *into
			*into = e
			e = next
		}
		*from = nil
	}
	// One segment is kept in reserve, for the same reason as the margin.
	if spare := len(t.segments) - 2; spare > 0 && t.buckets <= uint64(spare)*segmentLen {
		last := t.segments[len(t.segments)-1]
		t.alloc.Free(unsafe.Pointer(last), segmentBytes)
		t.segments = t.segments[:len(t.segments)-1]
	}
}

// scan returns one bucket's chain, and the next cursor. The cursor is a
// position in the space of bit-reversed hashes: there each bucket is one
// interval, which growing divides and shrinking joins, so nothing that is there
// for a whole scan is missed. 0 begins a scan, and ends it.
func (t *table) scan(cursor uint64) (chain *entry, next uint64) {
	b := t.bucketOf(bits.Reverse64(cursor))
	width := t.depth
	if b >= 1<<t.depth || b+1<<t.depth < t.buckets {
		width++
	}
	// The end of this bucket's interval; the last one's wraps to 0.
	size := uint64(1) << (64 - width)
	return *t.head(b), cursor&^(size-1) + size
}

func jobOf(e *entry) *Job     { return (*Job)(unsafe.Pointer(e)) }
func queueOf(e *entry) *Queue { return (*Queue)(unsafe.Pointer(e)) }
