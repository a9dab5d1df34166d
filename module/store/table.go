package store

import (
	"math/bits"
	"unsafe"
)

// table is a linear-hashing table (Litwin 1980): it grows by splitting one
// bucket with each insertion past its load, and shrinks by merging one, so no
// operation ever rehashes much, and there is never a second table to look in.
// Buckets lie in segments of segmentLen, allocated as needed; each bucket is
// the head of a chain through the elements.
//
// An element hashes to 64 bits. Bucket i of a table of n buckets, with
// 2^depth <= n < 2^(depth+1), holds the hashes whose low depth bits (or
// depth+1 bits, where that bucket was split already) are i.
type table[T any, P element[T]] struct {
	alloc    Allocator
	segments []*[segmentLen]P
	buckets  uint64 // how many there are
	depth    uint
	len      uint64
}

// element is what a table holds: a node with a chain link and a hash.
type element[T any] interface {
	*T
	link() **T
	tableHash() uint64
}

const (
	segmentLen   = 8192
	segmentBytes = segmentLen * 8
	minBuckets   = 64
)

func (t *table[T, P]) init(alloc Allocator) {
	*t = table[T, P]{alloc: alloc, buckets: minBuckets, depth: uint(bits.TrailingZeros(minBuckets))}
	t.addSegment()
}

func (t *table[T, P]) addSegment() {
	s := (*[segmentLen]P)(t.alloc.Alloc(segmentBytes))
	*s = [segmentLen]P{}
	t.segments = append(t.segments, s)
}

// drop frees the segments, not the elements.
func (t *table[T, P]) drop() {
	for _, s := range t.segments {
		t.alloc.Free(unsafe.Pointer(s), segmentBytes)
	}
	t.segments = nil
}

func (t *table[T, P]) bucketOf(hash uint64) uint64 {
	b := hash & (1<<(t.depth+1) - 1)
	if b >= t.buckets {
		b &= 1<<t.depth - 1
	}
	return b
}

func (t *table[T, P]) head(bucket uint64) *P {
	return &t.segments[bucket/segmentLen][bucket%segmentLen]
}

// first returns the head of the chain that a hash is in.
func (t *table[T, P]) first(hash uint64) P { return *t.head(t.bucketOf(hash)) }

func (t *table[T, P]) insert(e P) {
	h := t.head(t.bucketOf(e.tableHash()))
	*e.link() = *h
	*h = e
	if t.len++; t.len > t.buckets {
		t.split()
	}
}

func (t *table[T, P]) remove(e P) {
	p := (**T)(unsafe.Pointer(t.head(t.bucketOf(e.tableHash()))))
	for *p != (*T)(e) {
		p = P(*p).link()
	}
	*p = *e.link()
	t.len--
	// A margin of half keeps a table that hovers from splitting and merging in turn.
	if t.len < t.buckets/2 && t.buckets > minBuckets {
		t.merge()
	}
}

// split divides the next bucket in line between itself and a new last one.
func (t *table[T, P]) split() {
	from, to := t.buckets-1<<t.depth, t.buckets
	if to == uint64(len(t.segments))*segmentLen {
		t.addSegment()
	}
	old := t.head(from)
	e := *old
	*old = nil
	low, high := old, t.head(to)
	*high = nil
	for e != nil {
		next := P(*e.link())
		into := low
		if e.tableHash()>>t.depth&1 != 0 {
			into = high
		}
		*e.link() = *into
		*into = e
		e = next
	}
	if t.buckets++; t.buckets == 2<<t.depth {
		t.depth++
	}
}

// merge undoes the last split.
func (t *table[T, P]) merge() {
	if t.buckets == 1<<t.depth {
		t.depth--
	}
	t.buckets--
	from, into := t.head(t.buckets), t.head(t.buckets-1<<t.depth)
	for e := *from; e != nil; {
		next := P(*e.link())
		*e.link() = *into
		*into = e
		e = next
	}
	*from = nil
	// One segment is kept in reserve, for the same reason as the margin.
	if spare := len(t.segments) - 2; spare > 0 && t.buckets <= uint64(spare)*segmentLen {
		last := t.segments[len(t.segments)-1]
		t.alloc.Free(unsafe.Pointer(last), segmentBytes)
		t.segments = t.segments[:len(t.segments)-1]
	}
}

// scan appends one bucket's elements to emit. The cursor is a position in the
// space of bit-reversed hashes: there each bucket is one interval, which
// growing divides and shrinking joins, so nothing that is there for a whole
// scan is missed. 0 begins a scan, and ends it.
func (t *table[T, P]) scan(cursor uint64, emit *[]P) uint64 {
	b := t.bucketOf(bits.Reverse64(cursor))
	for e := *t.head(b); e != nil; e = P(*e.link()) {
		*emit = append(*emit, e)
	}
	width := t.depth
	if b >= 1<<t.depth || b+1<<t.depth < t.buckets {
		width++
	}
	// The end of this bucket's interval; the last one's end wraps to 0.
	size := uint64(1) << (64 - width)
	return cursor&^(size-1) + size
}

func (j *Job) link() **Job { return &j.hashNext }

func (j *Job) tableHash() uint64 { return j.ID.hash() }

func (q *Queue) link() **Queue { return &q.hashNext }

func (q *Queue) tableHash() uint64 { return q.hash }

// hash spreads an ID. Its random part is uniform where nodes are honest; the
// rest is mixed in, and the product keeps crafted IDs from sharing low bits.
func (id *ID) hash() uint64 {
	a := *(*uint64)(unsafe.Pointer(&id[4]))
	b := *(*uint64)(unsafe.Pointer(&id[12]))
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xd6e8feb86659fd93)
	return hi ^ lo
}
