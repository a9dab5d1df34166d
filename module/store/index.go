package store

import (
	"math/bits"
	"unsafe"
)

// index is a table for what is mostly looked for in vain, under names of which
// nothing is known: locks and lanes. It grows as [table] does, but each bucket has
// the hash of its first element beside it, and there are two buckets for each
// element: so most lookups, insertions and splits touch the bucket alone, where
// each element would be one more cache miss.
type index struct {
	alloc    Allocator
	hash     func(*entry) uint64
	segments []*[indexSegment]bucket
	buckets  uint64
	depth    uint
	len      uint64
}

type bucket struct {
	hash  uint64         // the first element's
	first unsafe.Pointer // to it; one byte further where there are more behind it
}

const (
	indexSegment = 4096
	indexBytes   = indexSegment * int(unsafe.Sizeof(bucket{}))
)

func (b *bucket) more() bool { return uintptr(b.first)&1 != 0 }

func (b *bucket) head() *entry {
	if b.more() {
		return (*entry)(unsafe.Add(b.first, -1))
	}
	return (*entry)(b.first)
}

// set makes an element the first, which has its next already.
func (b *bucket) set(e *entry, hash uint64) {
	b.hash, b.first = hash, unsafe.Pointer(e)
	if e.next != nil {
		b.first = unsafe.Add(b.first, 1)
	}
}

// put makes an element the first.
func (b *bucket) put(e *entry, hash uint64) {
	e.next = b.head()
	b.set(e, hash)
}

func (t *index) init(alloc Allocator, hash func(*entry) uint64) {
	*t = index{alloc: alloc, hash: hash, buckets: minBuckets, depth: uint(bits.TrailingZeros(minBuckets))}
	t.addSegment()
}

func (t *index) addSegment() {
	s := (*[indexSegment]bucket)(t.alloc.Alloc(indexBytes))
	*s = [indexSegment]bucket{}
	t.segments = append(t.segments, s)
}

// drop frees the segments, not the elements.
func (t *index) drop() {
	for _, s := range t.segments {
		t.alloc.Free(unsafe.Pointer(s), indexBytes)
	}
	t.segments = nil
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

// first finds an element with this hash; next the one after it.
func (t *index) first(hash uint64) *entry {
	b := t.at(t.bucketOf(hash))
	e := b.head()
	if e == nil || b.hash == hash {
		return e
	}
	if !b.more() {
		return nil
	}
	return t.next(e, hash)
}

func (t *index) next(e *entry, hash uint64) *entry {
	for e = e.next; e != nil && t.hash(e) != hash; e = e.next {
	}
	return e
}

func (t *index) insert(e *entry, hash uint64) {
	t.at(t.bucketOf(hash)).put(e, hash)
	if t.len++; 2*t.len >= t.buckets+step {
		t.grow()
	}
}

// remove takes out an element that is in the index.
func (t *index) remove(e *entry, hash uint64) {
	b := t.at(t.bucketOf(hash))
	if b.head() == e {
		if next := e.next; next != nil {
			b.set(next, t.hash(next))
		} else {
			*b = bucket{}
		}
	} else {
		p := b.head()
		for p.next != e {
			p = p.next
		}
		p.next = e.next
		b.set(b.head(), b.hash)
	}
	t.len--
	if t.buckets > minBuckets && 2*t.len < (t.buckets-step)/2 {
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
		if !low.more() {
			*high = bucket{}
			if low.first != nil && low.hash>>t.depth&1 != 0 {
				*high, *low = *low, bucket{}
			}
			continue
		}
		e := low.head()
		*low, *high = bucket{}, bucket{}
		for e != nil {
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
}

// shrink undoes the last grow.
func (t *index) shrink() {
	if t.buckets == 1<<t.depth {
		t.depth--
	}
	t.buckets -= step
	for i := range uint64(step) {
		from, into := t.at(t.buckets+i), t.at(t.buckets+i-1<<t.depth)
		if from.first != nil && into.first == nil {
			*into = *from
		} else {
			for e := from.head(); e != nil; {
				next := e.next
				into.put(e, t.hash(e))
				e = next
			}
		}
		*from = bucket{}
	}
	if spare := len(t.segments) - 2; spare > 0 && t.buckets <= uint64(spare)*indexSegment {
		last := t.segments[len(t.segments)-1]
		t.alloc.Free(unsafe.Pointer(last), indexBytes)
		t.segments = t.segments[:len(t.segments)-1]
	}
}

// scan is that of [table].
func (t *index) scan(cursor uint64) (chain *entry, next uint64) {
	b := t.bucketOf(bits.Reverse64(cursor))
	width := t.depth
	if b >= 1<<t.depth || b+1<<t.depth < t.buckets {
		width++
	}
	size := uint64(1) << (64 - width)
	return t.at(b).head(), cursor&^(size-1) + size
}
