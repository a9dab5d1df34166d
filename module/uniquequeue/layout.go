package uniquequeue

import (
	"encoding/binary"
	"unsafe"
)

// Item is a waiting item. Its bytes follow it at headLen (C: struct uq_item).
//
// A link is an address of 48 bits, and above it 16 bits of the start time. Addresses of
// processes have no more bits. So an item of 100 bytes fits into a block of 128 bytes; with
// plain fields it would need the next larger size.
type Item struct {
	chain      uint64 // the next item in its bucket; the time's low bits
	next, prev uint64 // its neighbours in the queue; the time's middle and high bits
	len        uint32
}

// Queue is the value of a key (C: struct uq_queue).
type Queue struct {
	head, tail  *Item // oldest, newest
	segments    unsafe.Pointer
	len         uint64
	bytes       uint64 // memory of items and table
	buckets     uint64 // how many are in use
	segmentLen  uint32 // how many buckets each segment has room for
	segmentsLen uint32
	segmentsCap uint32
	duplicates  uint32 // pushes of items that waited already
}

const (
	// MaxItem is the longest item, in bytes.
	MaxItem = 1<<31 - 1
	// MaxStart is the latest start time, in unix seconds: nine million years.
	MaxStart = 1<<48 - 1

	headLen   = int(unsafe.Offsetof(Item{}.len)) + 4
	queueSize = int(unsafe.Sizeof(Queue{}))

	addressBits = 48
	addressMask = 1<<addressBits - 1

	// An item of hashedLen bytes or more has its hash behind its bytes. So no long item is
	// read again to find its bucket when the table grows.
	hashedLen = 256
	hashLen   = 8
)

// Allocator gives memory outside the Go heap.
type Allocator interface {
	// Alloc returns size bytes, uninitialised, aligned to 8.
	Alloc(size int) unsafe.Pointer
	// Free gives back what Alloc returned for that size.
	Free(p unsafe.Pointer, size int)
}

// at is the item that a link leads to. It doesn't use unsafe.Add on nil, because the compiler
// takes the sum for not nil.
func at(link uint64) *Item {
	link &= addressMask
	return *(**Item)(unsafe.Pointer(&link))
}

func put(link *uint64, i *Item) {
	*link = *link&^addressMask | uint64(uintptr(unsafe.Pointer(i)))
}

// Next is the item that came after this one; nil if this is the last.
func (i *Item) Next() *Item { return at(i.next) }

// Start is the item's start time, unix seconds.
func (i *Item) Start() int64 {
	return int64(i.chain>>addressBits | i.next>>addressBits<<16 | i.prev>>addressBits<<32)
}

// init makes an item without neighbours.
func (i *Item) init(n int, start int64) {
	i.chain = uint64(start) << addressBits
	i.next = uint64(start) >> 16 << addressBits
	i.prev = uint64(start) >> 32 << addressBits
	i.len = uint32(n)
}

// Bytes are the item's bytes, without a copy; valid until the item is freed.
func (i *Item) Bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(i), headLen)), int(i.len))
}

// Size is the memory that the item takes.
func (i *Item) Size() int { return sizeOf(int(i.len)) }

func sizeOf(n int) int {
	if n >= hashedLen {
		n += hashLen
	}
	return headLen + n
}

// keptHash is the memory of a long item's hash.
func (i *Item) keptHash() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(i), headLen+int(i.len))), hashLen)
}

func (i *Item) keep(hash uint64) {
	if int(i.len) >= hashedLen {
		binary.LittleEndian.PutUint64(i.keptHash(), hash)
	}
}

// Len counts the items.
func (q *Queue) Len() uint64 { return q.len }

// Duplicates is how many pushes since the queue was made had an item that waited already; at
// most 2^32-1. It isn't saved.
func (q *Queue) Duplicates() uint32 { return q.duplicates }

// Front is the oldest item; nil if there is none.
func (q *Queue) Front() *Item { return q.head }

// Field is one field of a structure, for the comparison with C.
type Field struct {
	Name         string
	Offset, Size uintptr
}

// Layout lists the fields of the structures that C shares, under their C names.
func Layout() []Field {
	var i Item
	var q Queue
	return []Field{
		{"uq_item", 0, unsafe.Sizeof(i)},
		{"uq_item.chain", unsafe.Offsetof(i.chain), unsafe.Sizeof(i.chain)},
		{"uq_item.next", unsafe.Offsetof(i.next), unsafe.Sizeof(i.next)},
		{"uq_item.prev", unsafe.Offsetof(i.prev), unsafe.Sizeof(i.prev)},
		{"uq_item.len", unsafe.Offsetof(i.len), unsafe.Sizeof(i.len)},
		{"uq_item.bytes", uintptr(headLen), 0},
		{"uq_queue", 0, unsafe.Sizeof(q)},
		{"uq_queue.head", unsafe.Offsetof(q.head), unsafe.Sizeof(q.head)},
		{"uq_queue.tail", unsafe.Offsetof(q.tail), unsafe.Sizeof(q.tail)},
		{"uq_queue.segments", unsafe.Offsetof(q.segments), unsafe.Sizeof(q.segments)},
		{"uq_queue.len", unsafe.Offsetof(q.len), unsafe.Sizeof(q.len)},
		{"uq_queue.bytes", unsafe.Offsetof(q.bytes), unsafe.Sizeof(q.bytes)},
		{"uq_queue.buckets", unsafe.Offsetof(q.buckets), unsafe.Sizeof(q.buckets)},
		{"uq_queue.segment_len", unsafe.Offsetof(q.segmentLen), unsafe.Sizeof(q.segmentLen)},
		{"uq_queue.segments_len", unsafe.Offsetof(q.segmentsLen), unsafe.Sizeof(q.segmentsLen)},
		{"uq_queue.segments_cap", unsafe.Offsetof(q.segmentsCap), unsafe.Sizeof(q.segmentsCap)},
		{"uq_queue.duplicates", unsafe.Offsetof(q.duplicates), unsafe.Sizeof(q.duplicates)},
	}
}
