package table

import "math/bits"

// Buckets is the arithmetic of linear hashing (Litwin 1980), which [Table], [Index] and the table of a unique queue
// share. A table grows by splitting a few buckets after as many insertions past its load, and shrinks by merging as
// many. So no operation rehashes much, and there is never a second table to look in.
//
// An element hashes to 64 bits. In a table of n buckets, with 2^depth <= n < 2^(depth+1), bucket i has the hashes whose
// low depth bits are i. If the bucket was split already, it has those whose low depth+1 bits are i.
type Buckets struct {
	Len   uint64 // the number of buckets
	depth uint
}

// BucketsOf makes n buckets; n is at least 1.
func BucketsOf(n uint64) Buckets { return Buckets{Len: n, depth: uint(bits.Len64(n)) - 1} }

// At is the bucket of a hash.
func (b Buckets) At(hash uint64) uint64 {
	i := hash & (1<<(b.depth+1) - 1)
	if i >= b.Len {
		i &= 1<<b.depth - 1
	}
	return i
}

// Splits tells which bucket is split next, and where its new half goes. Bucket from keeps its other half; to comes
// behind the last bucket. The caller moves the elements of step buckets, and then calls [Buckets.Grow].
func (b Buckets) Splits() (from, to uint64) { return b.Len - 1<<b.depth, b.Len }

// Goes says whether an element goes to the new half, when its bucket is split.
func (b Buckets) Goes(hash uint64) bool { return hash>>b.depth&1 != 0 }

// Grow adds step buckets. All sizes are multiples of step, so one step doesn't cross a power of two.
func (b *Buckets) Grow(step uint64) {
	if b.Len += step; b.Len == 2<<b.depth {
		b.depth++
	}
}

// Shrink undoes the last Grow. It tells the first of the step buckets that are merged, and the first of those that take
// their elements.
func (b *Buckets) Shrink(step uint64) (from, into uint64) {
	if b.Len == 1<<b.depth {
		b.depth--
	}
	b.Len -= step
	return b.Len, b.Len - 1<<b.depth
}

// Scan tells which bucket a cursor means, and the next cursor. A cursor is a position in the space of bit-reversed
// hashes. There each bucket is one interval, which growing divides and shrinking joins. So a scan misses nothing that
// is there from its beginning to its end. Cursor 0 begins a scan, and ends it.
func (b Buckets) Scan(cursor uint64) (bucket, next uint64) {
	bucket = b.At(bits.Reverse64(cursor))
	width := b.depth
	if bucket >= 1<<b.depth || bucket+1<<b.depth < b.Len {
		width++
	}
	// The end of this bucket's interval; the end of the last interval wraps to 0.
	size := uint64(1) << (64 - width)
	return bucket, cursor&^(size-1) + size
}
