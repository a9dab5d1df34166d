package store

import (
	"math"
	"unsafe"

	"jobmesh/module/table"
)

// Condemning gives up all queues at once. Only the owner of their keys can remove the
// keys, one after the other. Until then a condemned queue lies in its key as if it were
// empty: no operation finds it or one of its jobs, it is saved without jobs, and a new
// queue can take its key. A queue is condemned if its state is queueAttached, and its
// flushes differ from the store's.

// condemned is a table of queues that were condemned together.
type condemned struct {
	table.Table
	flushes uint32 // Queue.flushes of its queues
	db      int32  // the database that has their keys
	cursor  uint64
}

// wasCondemned is Queue.listed of a queue that was condemned and is to be freed. It equals no
// generation: the table of jobs doesn't have the queue's jobs.
const wasCondemned = math.MaxUint32

// Flushes is the address at which C reads how often all queues were condemned (uint32_t).
func (s *Store) Flushes() unsafe.Pointer { return unsafe.Pointer(s.flushes) }

// Condemn gives up all attached queues and their jobs. Its time grows with the number of
// the tables' segments alone.
func (s *Store) Condemn() {
	if s.queues.Len > 0 {
		s.condemned = append(s.condemned, &condemned{Table: s.queues, flushes: *s.flushes})
	} else {
		s.queues.Drop()
	}
	*s.flushes++
	s.forget()
}

// CondemnEmpty gives up an attached queue that has no jobs.
func (s *Store) CondemnEmpty(q *Queue) {
	s.Detach(q)
	q.state, q.flushes = queueAttached, 0
	c := s.condemnedWith(0)
	if c == nil {
		c = &condemned{}
		c.Init(s.alloc, func(e *table.Entry) uint64 { return queueOf(e).hash })
		s.condemned = append(s.condemned, c)
	}
	c.Insert(&q.Entry, q.hash)
}

func (s *Store) condemnedWith(flushes uint32) *condemned {
	for _, c := range s.condemned {
		if c.flushes == flushes && c.db == 0 {
			return c
		}
	}
	return nil
}

// Condemned says whether a queue that lies in a key is condemned.
func (s *Store) Condemned(q *Queue) bool {
	return q.state == queueAttached && q.flushes != *s.flushes
}

// AnyCondemned says whether keys of database 0 hold condemned queues.
func (s *Store) AnyCondemned() bool {
	for _, c := range s.condemned {
		if c.db == 0 {
			return true
		}
	}
	return false
}

// NextCondemned appends condemned queues of database 0 to list until it has most of them,
// or a few more. The caller must remove their keys before the next call.
func (s *Store) NextCondemned(list []*Queue, most int) []*Queue {
	for _, c := range s.condemned {
		for c.db == 0 && len(list) < most {
			var e *table.Entry
			for e, c.cursor = c.Scan(c.cursor); e != nil; e = e.Next {
				list = append(list, queueOf(e))
			}
			if c.cursor == 0 {
				break
			}
		}
	}
	return list
}

// ScheduleFreeCondemned is [Store.ScheduleFree] for a condemned queue that has left its key.
func (s *Store) ScheduleFreeCondemned(q *Queue) {
	for i, c := range s.condemned {
		if c.flushes != q.flushes || !c.has(q) {
			continue
		}
		if c.Remove(&q.Entry, q.hash); c.Len == 0 {
			c.Drop()
			s.condemned = append(s.condemned[:i], s.condemned[i+1:]...)
		}
		break
	}
	q.state, q.listed = queueUnlinked, wasCondemned
	s.toFree = append(s.toFree, q)
}

func (c *condemned) has(q *Queue) bool {
	for e := c.First(q.hash); e != nil; e = e.Next {
		if e == &q.Entry {
			return true
		}
	}
	return false
}

// SwapCondemned follows SWAPDB. Keys of condemned queues in a database other than 0 stay
// until they are back in database 0.
func (s *Store) SwapCondemned(a, b int32) {
	for _, c := range s.condemned {
		switch c.db {
		case a:
			c.db = b
		case b:
			c.db = a
		}
	}
}

// ForgetCondemned forgets the condemned queues of a database (-1: of all), and frees none
// of them. As with [Store.Forget], they belong to the keyspace, whose owner frees them.
func (s *Store) ForgetCondemned(db int) {
	kept := s.condemned[:0]
	for _, c := range s.condemned {
		if db < 0 || int(c.db) == db {
			c.Drop()
		} else {
			kept = append(kept, c)
		}
	}
	clear(s.condemned[len(kept):])
	s.condemned = kept
}
