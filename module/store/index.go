package store

import (
	"math/bits"
	"unsafe"
)

// index is a table for what is mostly looked for in vain, under names of which
// nothing is known: locks and lanes. It grows as [table] does, but a bucket is a
// cache line with the hashes of its elements: so lookups in vain, insertions and
// splits touch that line alone, where each element would be one more cache miss.
type index struct {
	alloc    Allocator
	hash     func(*entry) uint64
	segments []*[indexSegment]bucket
	blocks   []unsafe.Pointer // that the segments are in
	buckets  uint64
	depth    uint
	len      uint64
}

// bucket has its elements in the first n of its slots. What is too much is chained
// behind the last slot's, each by its entry; the others' next is nil.
type bucket struct {
	hashes [ways]uint32 // the lower halves; the last slot's is its first element's
	n      uint32
	first  [ways]*entry
}

const (
	ways         = 5
	fill         = 2 // elements a bucket, in the mean: few buckets have a chain
	lineBytes    = 64
	indexSegment = 1024
	indexBytes   = indexSegment*int(unsafe.Sizeof(bucket{})) + lineBytes // one line to align it
)

func (b *bucket) put(e *entry, hash uint64) {
	e.next = nil
	if b.n < ways {
		b.first[b.n], b.hashes[b.n] = e, uint32(hash)
		b.n++
		return
	}
	last := b.first[ways-1]
	last.next, e.next = e, last.next
}

func (t *index) init(alloc Allocator, hash func(*entry) uint64) {
	*t = index{alloc: alloc, hash: hash, buckets: minBuckets, depth: uint(bits.TrailingZeros(minBuckets))}
	t.addSegment()
}

func (t *index) addSegment() {
	p := t.alloc.Alloc(indexBytes)
	s := (*[indexSegment]bucket)(unsafe.Add(p, -uintptr(p)&(lineBytes-1)))
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
func (t *index) warm(hash uint64) { prefetch(unsafe.Pointer(t.at(t.bucketOf(hash)))) }

// find finds the first element that may have this hash and is the one.
func (t *index) find(hash uint64, is func(*entry) bool) *entry {
	b := t.at(t.bucketOf(hash))
	for i := range b.n {
		e := b.first[i]
		if b.hashes[i] == uint32(hash) && is(e) {
			return e
		}
		for e = e.chained(i); e != nil; e = e.next {
			if t.hash(e) == hash && is(e) {
				return e
			}
		}
	}
	return nil
}

// chained is what comes behind the first element of a slot. Only the last slot's is
// looked at for that.
func (e *entry) chained(slot uint32) *entry {
	if slot < ways-1 {
		return nil
	}
	return e.next
}

func (t *index) insert(e *entry, hash uint64) {
	t.at(t.bucketOf(hash)).put(e, hash)
	if t.len++; t.len >= fill*(t.buckets+step) {
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
	last := b.first[ways-1]
	switch {
	case i == b.n: // chained
		p := last
		for p.next != e {
			p = p.next
		}
		p.next = e.next
	case b.n == ways && last.next != nil: // the next of the chain takes its slot
		next := last.next
		if i == ways-1 {
			b.first[i], b.hashes[i] = next, uint32(t.hash(next))
			break
		}
		last.next, next.next = next.next, nil
		b.first[i], b.hashes[i] = next, uint32(t.hash(next))
	default:
		b.n--
		b.first[i], b.hashes[i] = b.first[b.n], b.hashes[b.n]
		b.first[b.n] = nil
	}
	t.len--
	if t.buckets > minBuckets && t.len < fill*((t.buckets-step)/2) {
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
	for i := range uint64(step) {
		low, high := t.at(from+i), t.at(to+i)
		var chain *entry
		if low.n == ways {
			last := low.first[ways-1]
			chain, last.next = last.next, nil
		}
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
	if t.buckets += step; t.buckets == 2<<t.depth {
		t.depth++
	}
	// What the next call divides was last looked at long ago. There is time until then.
	from, to = t.buckets-1<<t.depth, t.buckets
	for i := range uint64(step) {
		prefetch(unsafe.Pointer(t.at(from + i)))
		if to < uint64(len(t.segments))*indexSegment {
			prefetch(unsafe.Pointer(t.at(to + i)))
		}
	}
}

// shrink undoes the last grow.
func (t *index) shrink() {
	if t.buckets == 1<<t.depth {
		t.depth--
	}
	t.buckets -= step
	for i := range uint64(step) {
		from, into := t.at(t.buckets+i), t.at(t.buckets+i-1<<t.depth)
		for k := range from.n {
			e := from.first[k]
			rest := e.chained(k)
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
