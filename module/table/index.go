package table

import "unsafe"

// Index is a table for lookups that mostly find nothing, under names of which nothing is known: locks and per-key
// queues. It grows as [Table] does, but a bucket is two neighbouring cache lines, which have the hashes of its
// elements. So lookups that find nothing, insertions and splits touch only those lines. To touch an element would be
// one more cache miss for each.
type Index struct {
	alloc    Allocator
	hash     func(*Entry) uint64
	segments []*[indexSegment]Bucket
	blocks   []unsafe.Pointer // the memory that the segments are in
	buckets  Buckets
	Len      uint64
}

// Bucket has its elements in the first n of its slots. Elements beyond that are chained behind the element of the last
// slot, by their entries. Entries outside such a chain mean nothing, since to read or write an element costs a cache
// miss.
type Bucket struct {
	hashes  [ways]uint32 // the lower halves of the hashes; of the last slot's chain only the first element's
	n       uint32
	chained uint32 // how many elements are behind the first one of the last slot
	first   [ways]*Entry
}

const (
	ways         = 10
	fill         = 4 // elements of a bucket on average, so that few buckets have a chain
	lineBytes    = 64
	bucketBytes  = 2 * lineBytes
	indexStep    = 8 // buckets that are split or merged at a time
	indexSegment = 512
	indexBytes   = indexSegment*bucketBytes + bucketBytes // one bucket more, to align them
)

// The build fails if a Bucket has another size.
var _ = [1]struct{}{}[unsafe.Sizeof(Bucket{})-bucketBytes]

func (b *Bucket) put(e *Entry, hash uint64) {
	if b.n < ways {
		b.first[b.n], b.hashes[b.n] = e, uint32(hash)
		b.n++
		return
	}
	e.Next = b.chain(ways - 1)
	b.first[ways-1].Next = e
	b.chained++
}

// chain is the element behind the first one of a slot; nil: there is none.
func (b *Bucket) chain(slot uint32) *Entry {
	if slot < ways-1 || b.chained == 0 {
		return nil
	}
	return b.first[slot].Next
}

// All yields the elements. Nothing may be put in or taken out meanwhile.
func (b *Bucket) All(yield func(*Entry) bool) {
	for i := range b.n {
		if !yield(b.first[i]) {
			return
		}
	}
	for e := b.chain(ways - 1); e != nil; e = e.Next {
		if !yield(e) {
			return
		}
	}
}

// warm begins to load a bucket.
func (b *Bucket) warm() {
	Prefetch(unsafe.Pointer(b), bucketBytes/lineBytes)
}

func (t *Index) Init(alloc Allocator, hash func(*Entry) uint64) {
	*t = Index{alloc: alloc, hash: hash, buckets: BucketsOf(minBuckets)}
	t.addSegment()
}

func (t *Index) addSegment() {
	p := t.alloc.Alloc(indexBytes)
	s := (*[indexSegment]Bucket)(unsafe.Add(p, -uintptr(p)&(bucketBytes-1)))
	*s = [indexSegment]Bucket{}
	t.segments, t.blocks = append(t.segments, s), append(t.blocks, p)
}

func (t *Index) dropSegment() {
	last := len(t.segments) - 1
	t.alloc.Free(t.blocks[last], indexBytes)
	t.segments, t.blocks = t.segments[:last], t.blocks[:last]
}

// Made says whether Init has made the index, and Drop hasn't ended it since.
func (t *Index) Made() bool { return t.segments != nil }

// Drop frees the segments. It doesn't free the elements.
func (t *Index) Drop() {
	for len(t.segments) > 0 {
		t.dropSegment()
	}
	t.segments, t.blocks = nil, nil
}

func (t *Index) at(bucket uint64) *Bucket {
	return &t.segments[bucket/indexSegment][bucket%indexSegment]
}

// Warm begins to load the bucket of a hash that is looked up soon.
func (t *Index) Warm(hash uint64) { t.at(t.buckets.At(hash)).warm() }

// Find returns an element with this hash for which is() says yes; nil: there is none. It may also call is() for an
// element of which only the lower half of the hash is the same.
func (t *Index) Find(hash uint64, is func(*Entry) bool) *Entry {
	b := t.at(t.buckets.At(hash))
	for i := range b.n {
		e := b.first[i]
		if b.hashes[i] == uint32(hash) && is(e) {
			return e
		}
		for e = b.chain(i); e != nil; e = e.Next {
			if t.hash(e) == hash && is(e) {
				return e
			}
		}
	}
	return nil
}

// Insert puts in e, which is in no table. hash is the hash of e.
func (t *Index) Insert(e *Entry, hash uint64) {
	t.at(t.buckets.At(hash)).put(e, hash)
	if t.Len++; t.Len >= fill*(t.buckets.Len+indexStep) {
		t.grow()
	}
}

// Remove takes out an element that is in the index.
func (t *Index) Remove(e *Entry, hash uint64) {
	b := t.at(t.buckets.At(hash))
	i := uint32(0)
	for i < b.n && b.first[i] != e {
		i++
	}
	switch {
	case i == b.n: // it is chained
		p := b.first[ways-1]
		for p.Next != e {
			p = p.Next
		}
		p.Next = e.Next
		b.chained--
	case b.chained > 0: // the next of the chain takes its slot
		last := b.first[ways-1]
		next := last.Next
		if i < ways-1 {
			last.Next = next.Next
		}
		b.first[i], b.hashes[i] = next, uint32(t.hash(next))
		b.chained--
	default:
		b.n--
		b.first[i], b.hashes[i] = b.first[b.n], b.hashes[b.n]
		b.first[b.n] = nil
	}
	t.Len--
	if t.buckets.Len > minBuckets && t.Len < fill*((t.buckets.Len-indexStep)/2) {
		t.shrink()
	}
}

// grow splits the next buckets: each shares its elements with a new one at the end.
func (t *Index) grow() {
	from, to := t.buckets.Splits()
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
			if t.buckets.Goes(uint64(h)) {
				high.put(e, uint64(h))
				continue
			}
			low.first[kept], low.hashes[kept] = e, h
			kept++
		}
		clear(low.first[kept:])
		low.n = kept
		for e := chain; e != nil; {
			next, h := e.Next, t.hash(e)
			if t.buckets.Goes(h) {
				high.put(e, h)
			} else {
				low.put(e, h)
			}
			e = next
		}
	}
	t.buckets.Grow(indexStep)
	// Bring the buckets that the next call splits into the cache. They were last looked at long ago, and there is time
	// until then.
	from, to = t.buckets.Splits()
	for i := range uint64(indexStep) {
		t.at(from + i).warm()
		if to < uint64(len(t.segments))*indexSegment {
			t.at(to + i).warm()
		}
	}
}

// shrink undoes the last grow.
func (t *Index) shrink() {
	first, home := t.buckets.Shrink(indexStep)
	for i := range uint64(indexStep) {
		from, into := t.at(first+i), t.at(home+i)
		for k := range from.n {
			e := from.first[k]
			rest := from.chain(k)
			into.put(e, uint64(from.hashes[k]))
			for e = rest; e != nil; {
				next := e.Next
				into.put(e, t.hash(e))
				e = next
			}
		}
		*from = Bucket{}
	}
	// One segment is kept in reserve, as by [Table].
	if spare := len(t.segments) - 2; spare > 0 && t.buckets.Len <= uint64(spare)*indexSegment {
		t.dropSegment()
	}
}

// Scan returns one bucket, and the next cursor: see [Buckets.Scan].
func (t *Index) Scan(cursor uint64) (b *Bucket, next uint64) {
	i, next := t.buckets.Scan(cursor)
	return t.at(i), next
}
