package uniquequeue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"unsafe"
)

// Queues has the operations on queues, and what all queues share.
type Queues struct {
	alloc   Allocator
	seed    maphash.Seed // random: nobody can craft items that share a bucket
	touched uint64       // keeps the compiler from dropping touch's loads
}

// New makes a Queues.
func New(alloc Allocator) *Queues { return &Queues{alloc: alloc, seed: maphash.MakeSeed()} }

// NewQueue makes an empty queue.
func (s *Queues) NewQueue() *Queue {
	q := (*Queue)(s.alloc.Alloc(queueSize))
	*q = Queue{}
	s.beginTable(q)
	return q
}

func (s *Queues) hash(item []byte) uint64 { return maphash.Bytes(s.seed, item) }

func (s *Queues) hashOf(i *Item) uint64 {
	if int(i.len) >= hashedLen {
		return binary.LittleEndian.Uint64(i.keptHash())
	}
	return s.hash(i.Bytes())
}

// Push puts an item at the end of a queue. If the same item waits already, Push leaves that one
// and its time as they are, counts a duplicate, and returns false. The item must have at most
// [MaxItem] bytes, and its start time must be between 0 and [MaxStart].
func (s *Queues) Push(q *Queue, item []byte, start int64) bool {
	hash := s.hash(item)
	head := q.of(hash)
	if find(*head, item) != nil {
		if q.duplicates < math.MaxUint32 {
			q.duplicates++
		}
		return false
	}
	if len(item) > MaxItem || start < 0 || start > MaxStart {
		panic(fmt.Sprintf("unique: an item of %d bytes that starts at %d", len(item), start))
	}
	i := (*Item)(s.alloc.Alloc(sizeOf(len(item))))
	if uintptr(unsafe.Pointer(i)) > addressMask {
		panic("unique: an address of more than 48 bits")
	}
	i.init(len(item), start)
	copy(i.Bytes(), item)
	i.keep(hash)

	put(&i.chain, *head)
	*head = i
	put(&i.prev, q.tail)
	if q.tail != nil {
		put(&q.tail.next, i)
	} else {
		q.head = i
	}
	q.tail = i
	q.bytes += uint64(i.Size())
	if q.len++; q.len >= q.buckets+step {
		s.grow(q)
	}
	return true
}

func find(chain *Item, item []byte) *Item {
	for i := chain; i != nil; i = at(i.chain) {
		if int(i.len) == len(item) && string(i.Bytes()) == string(item) {
			return i
		}
	}
	return nil
}

// Find finds a waiting item; nil if it doesn't wait.
func (s *Queues) Find(q *Queue, item []byte) *Item { return find(*q.of(s.hash(item)), item) }

// Take takes an item out of its queue. The caller must then free the item: it gives the item's
// memory, [Item.Size] bytes, back to the allocator.
func (s *Queues) Take(q *Queue, i *Item) {
	head := q.of(s.hashOf(i))
	if *head == i {
		*head = at(i.chain)
	} else {
		e := *head
		for at(e.chain) != i {
			e = at(e.chain)
		}
		put(&e.chain, at(i.chain))
	}
	next, prev := at(i.next), at(i.prev)
	if prev != nil {
		put(&prev.next, next)
	} else {
		q.head = next
	}
	if next != nil {
		put(&next.prev, prev)
	} else {
		q.tail = prev
	}
	q.bytes -= uint64(i.Size())
	// The margin of half keeps the table from growing and shrinking in turn while the number
	// of items hardly changes.
	if q.len--; q.buckets > minBuckets && q.len < (q.buckets-step)/2 {
		s.shrink(q)
	}
}

// Copy makes another queue of the same items.
func (s *Queues) Copy(q *Queue) *Queue {
	to := s.NewQueue()
	for i := q.head; i != nil; i = i.Next() {
		s.Push(to, i.Bytes(), i.Start())
	}
	return to
}

// ErrDamaged is the error of a saved queue that can't be read. The errors that wrap it say what
// is wrong.
var ErrDamaged = errors.New("damaged unique queue")

// Source is a saved queue that is being read ([jobmesh/rm.Reader]). Load checks all that comes
// from it: it may be a damaged file or a hostile RESTORE.
type Source interface {
	Uint() uint64
	Bytes(use func([]byte) error) error
	Err() error
}

// Load reads what cgo/unique saves: the number of items, then the start time and the bytes of
// each. With an error, which may wrap [ErrDamaged], it also returns the queue as far as it was
// read; the caller must free that.
func (s *Queues) Load(r Source) (*Queue, error) {
	q := s.NewQueue()
	n := r.Uint()
	if err := r.Err(); err != nil {
		return q, err
	}
	if n == 0 {
		return q, fmt.Errorf("%w: it is empty", ErrDamaged)
	}
	for k := range n {
		start := r.Uint()
		if start > MaxStart {
			return q, fmt.Errorf("%w: item %d starts at %d", ErrDamaged, k, start)
		}
		err := r.Bytes(func(item []byte) error {
			switch {
			case len(item) > MaxItem:
				return fmt.Errorf("%w: item %d has %d bytes", ErrDamaged, k, len(item))
			case !s.Push(q, item, int64(start)):
				return fmt.Errorf("%w: item %d is there twice", ErrDamaged, k)
			}
			return nil
		})
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			return q, err
		}
	}
	return q, nil
}
