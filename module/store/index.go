package store

import (
	"math/bits"
	"unsafe"
)

// index is a table for what is mostly looked for in vain, under names of which
// nothing is known: locks and per-key queues. It grows as [table] does, but a bucket is two
// neighbouring cache lines with the hashes of its elements: so lookups in vain,
// insertions and splits touch those alone, where each element would be one more miss.
type index struct {
	alloc    Allocator
	hash     func(*entry) uint64
	segments []*[indexSegment]bucket
	blocks   []unsafe.Pointer // that the segments are in
	buckets  uint64
	depth    uint
	len      uint64
}

// bucket has its elements in the first n of its slots. Elements for which there is no
// slot are chained behind the last slot's, by their entries, which mean nothing in other
// buckets: to look at an element, or to write to it, costs a cache miss.
type bucket struct {
	hashes  [ways]uint32 // the lower halves; the last slot's is its first element's
	n       uint32
	chained uint32 // how many are behind the last slot's
	first   [ways]*entry
}

const (
	ways         = 10
	fill         = 4 // elements a bucket, in the mean: few buckets have a chain
	lineBytes    = 64
	bucketBytes  = 2 * lineBytes
	indexStep    = 8 // buckets that are split or merged at a time
	indexSegment = 512
	indexBytes   = indexSegment*bucketBytes + bucketBytes // one bucket to align it
)

// The build fails where a bucket has another size.
var _ = [1]struct{}{}[unsafe.Sizeof(bucket{})-bucketBytes]

func (b *bucket) put(e *entry, hash uint64) {
	if b.n < ways {
		b.first[b.n], b.hashes[b.n] = e, uint32(hash)
		b.n++
		return
	}
	e.next = b.chain(ways - 1)
	b.first[ways-1].next = e
	b.chained++
}

// chain is what comes behind the first element of a slot.
func (b *bucket) chain(slot uint32) *entry {
	if slot < ways-1 || b.chained == 0 {
		return nil
	}
	return b.first[slot].next
}

// all yields the elements; none may be put in or taken out meanwhile.
func (b *bucket) all(yield func(*entry) bool) {
	for i := range b.n {
		if !yield(b.first[i]) {
			return
		}
	}
	for e := b.chain(ways - 1); e != nil; e = e.next {
		if !yield(e) {
			return
		}
	}
}

// warm begins to load a bucket.
func (b *bucket) warm() {
	prefetch(unsafe.Pointer(b), bucketBytes/lineBytes)
}

func (t *index) init(alloc Allocator, hash func(*entry) uint64) {
	*t = index{alloc: alloc, hash: hash, buckets: minBuckets, depth: uint(bits.TrailingZeros(minBuckets))}
	t.addSegment()
}

func (t *index) addSegment() {
	p := t.alloc.Alloc(indexBytes)
	s := (*[indexSegment]bucket)(unsafe.Add(p, -uintptr(p)&(bucketBytes-1)))
	*s = [indexSegment]bucket{}
	t.segments, t.blocks = append(t.segments, s), append(t.blocks, p)
}

func (t *index) dropSegment() {
	last := len(t.segments) - 1
	t.alloc.Free(t.blocks[last], indexBytes)
	t.segments, t.blocks = t.segments[:last], t.blocks[:last]
}

// drop frees the segments, not the elements.
func (t *index) drop() {
	for len(t.segments) > 0 {
		t.dropSegment()
	}
	t.segments, t.blocks = nil, nil
}

func (t *index) at(bucket uint64) *bucket {
	return &t.segments[bucket/indexSegment][bucket%indexSegment]
}

func (t *index) bucketOf(hash uint64) uint64 {
	b := hash & (1<<(t.depth+1) - 1)
	if b >= t.buckets {
		b &= 1<<t.depth - 1
	}
	return b
}

// warm begins to load the bucket of a hash that will be looked for soon.
func (t *index) warm(hash uint64) { t.at(t.bucketOf(hash)).warm() }

// find finds the first element that may have this hash and is the one.
func (t *index) find(hash uint64, is func(*entry) bool) *entry {
	b := t.at(t.bucketOf(hash))
	for i := range b.n {
		e := b.first[i]
		if b.hashes[i] == uint32(hash) && is(e) {
			return e
		}
		for e = b.chain(i); e != nil; e = e.next {
			if t.hash(e) == hash && is(e) {
				return e
			}
		}
	}
	return nil
}

func (t *index) insert(e *entry, hash uint64) {
	t.at(t.bucketOf(hash)).put(e, hash)
	if t.len++; t.len >= fill*(t.buckets+indexStep) {
		t.grow()
	}
}

// remove takes out an element that is in the index.
func (t *index) remove(e *entry, hash uint64) {
	b := t.at(t.bucketOf(hash))
	i := uint32(0)
	for i < b.n && b.first[i] != e {
		i++
	}
	switch {
	case i == b.n: // chained
		p := b.first[ways-1]
		for p.next != e {
			p = p.next
		}
		p.next = e.next
		b.chained--
	case b.chained > 0: // the next of the chain takes its slot
		last := b.first[ways-1]
		next := last.next
		if i < ways-1 {
			last.next = next.next
		}
		b.first[i], b.hashes[i] = next, uint32(t.hash(next))
		b.chained--
	default:
		b.n--
		b.first[i], b.hashes[i] = b.first[b.n], b.hashes[b.n]
		b.first[b.n] = nil
	}
	t.len--
	if t.buckets > minBuckets && t.len < fill*((t.buckets-indexStep)/2) {
		t.shrink()
	}
}

// grow divides the next buckets in line between themselves and as many new ones
// at the end.
func (t *index) grow() {
	from, to := t.buckets-1<<t.depth, t.buckets
	if to == uint64(len(t.segments))*indexSegment {
		t.addSegment()
	}
	for i := range uint64(indexStep) {
		low, high := t.at(from+i), t.at(to+i)
		chain := low.chain(ways - 1)
		low.chained = 0
		kept := uint32(0)
		for k := range low.n {
			e, h := low.first[k], low.hashes[k]
			if h>>t.depth&1 != 0 {
				high.put(e, uint64(h))
				continue
			}
			low.first[kept], low.hashes[kept] = e, h
			kept++
		}
		clear(low.first[kept:])
		low.n = kept
		for e := chain; e != nil; {
			next, h := e.next, t.hash(e)
			if h>>t.depth&1 != 0 {
				high.put(e, h)
			} else {
				low.put(e, h)
			}
			e = next
		}
	}
	if t.buckets += indexStep; t.buckets == 2<<t.depth {
		t.depth++
	}
	// Bring the buckets that the next call divides into the cache: they were last looked at
	// long ago, and there is time until then.
	from, to = t.buckets-1<<t.depth, t.buckets
	for i := range uint64(indexStep) {
		t.at(from + i).warm()
		if to < uint64(len(t.segments))*indexSegment {
			t.at(to + i).warm()
		}
	}
}

// shrink undoes the last grow.
func (t *index) shrink() {
	if t.buckets == 1<<t.depth {
		t.depth--
	}
	t.buckets -= indexStep
	for i := range uint64(indexStep) {
		from, into := t.at(t.buckets+i), t.at(t.buckets+i-1<<t.depth)
		for k := range from.n {
			e := from.first[k]
			rest := from.chain(k)
			into.put(e, uint64(from.hashes[k]))
			for e = rest; e != nil; {
				next := e.next
				into.put(e, t.hash(e))
				e = next
			}
		}
		*from = bucket{}
	}
	// One segment is kept in reserve, as by [table].
	if spare := len(t.segments) - 2; spare > 0 && t.buckets <= uint64(spare)*indexSegment {
		t.dropSegment()
	}
}

// scan is that of [table].
func (t *index) scan(cursor uint64) (b *bucket, next uint64) {
	n := t.bucketOf(bits.Reverse64(cursor))
	width := t.depth
	if n >= 1<<t.depth || n+1<<t.depth < t.buckets {
		width++
	}
	size := uint64(1) << (64 - width)
	return t.at(n), cursor&^(size-1) + size
}
