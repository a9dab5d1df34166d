package store

import (
	"fmt"
	"unsafe"
)

// Priorities. The most urgent of a queue's waiting jobs are first, and among equals the oldest. They are in one list all the same. A
// queue that ever had a job with a priority remembers where each priority ends in that list. So a job that belongs at such an end goes
// there at once.

// MaxPriority is the greatest priority, and the least is -MaxPriority. Jobs with a greater one go first.
const MaxPriority = 100

// levels are the priorities that a queue's waiting jobs have, the greatest first. This many of [level] follow.
type levels struct{ len, room uint32 }

// level is the last of the waiting jobs that have this priority.
type level struct {
	last     *Job
	priority int8
	_        [7]uint8
}

const (
	levelsHead = int(unsafe.Sizeof(levels{}))
	levelSize  = int(unsafe.Sizeof(level{}))
	firstRoom  = 4
)

func (v *levels) all() []level {
	return unsafe.Slice((*level)(unsafe.Add(unsafe.Pointer(v), levelsHead)), int(v.room))[:v.len]
}

func (v *levels) size() int { return levelsHead + int(v.room)*levelSize }

// Priority is the job's priority, from -MaxPriority to MaxPriority; 0 unless somebody has said otherwise.
func (j *Job) Priority() int {
	if j.Parts == 0 {
		return 0
	}
	return PriorityIn(j.Extras())
}

// PriorityIn is [Job.Priority] for extras that no job has yet.
func PriorityIn(extras []byte) int {
	if e := FindExtra(extras, TagPriority); len(e) == 1 {
		return int(int8(e[0]))
	}
	return 0
}

// PriorityValue is the value of TagPriority.
func PriorityValue(priority int) []byte { return []byte{byte(int8(priority))} }

func checkPriority(e []byte) error {
	if len(e) != 1 || int8(e[0]) < -MaxPriority || int8(e[0]) > MaxPriority {
		return fmt.Errorf("%w: the priority % x", ErrRecord, e)
	}
	return nil
}

// urgent is the order of a queue in which jobs have priorities.
func urgent(a, b *Job) bool {
	if x, y := a.Priority(), b.Priority(); x != y {
		return x > y
	}
	return older(a, b)
}

// order is the order in which a queue's jobs are fetched.
func (q *Queue) order() func(a, b *Job) bool {
	if q.AnyPriorities() {
		return urgent
	}
	return older
}

// Before says whether a job is fetched before another one of its queue, if both wait.
func (j *Job) Before(other *Job) bool { return j.Queue.order()(j, other) }

// Oldest is the oldest job that can be fetched; nil if there is none.
func (q *Queue) Oldest() *Job {
	oldest := q.Head
	if q.levels != nil && oldest != nil {
		for _, v := range q.levels.all() {
			if first := v.last.Next; first != nil && older(first, oldest) { // the oldest of the next priority
				oldest = first
			}
		}
	}
	return oldest
}

// enterLevel makes a job that is about to be put into the waiting list the last one of its priority, if it belongs there. It returns
// the job behind which it belongs then, nil if it is the first one of all. ok is false if others of its priority go behind it.
func (s *Store) enterLevel(q *Queue, j *Job) (at *Job, ok bool) {
	if q.levels == nil {
		s.makeLevels(q, firstRoom)
		if q.Tail != nil { // they came before the first job with a priority
			q.levels.len = 1
			q.levels.all()[0] = level{last: q.Tail}
		}
	}
	p, i := j.Priority(), 0
	all := q.levels.all()
	for ; i < len(all) && int(all[i].priority) > p; i++ {
		at = all[i].last
	}
	if i < len(all) && int(all[i].priority) == p {
		if older(j, all[i].last) {
			return nil, false
		}
		at, all[i].last = all[i].last, j
		return at, true
	}
	if q.levels.len == q.levels.room {
		s.makeLevels(q, 2*q.levels.room)
	}
	q.levels.len++
	all = q.levels.all()
	copy(all[i+1:], all[i:])
	all[i] = level{last: j, priority: int8(p)}
	return at, true
}

// makeLevels gives a queue's levels a block with more room.
func (s *Store) makeLevels(q *Queue, room uint32) {
	old := q.levels
	v := (*levels)(s.alloc.Alloc(levelsHead + int(room)*levelSize))
	*v = levels{room: room}
	q.Bytes += uint64(v.size())
	if q.levels = v; old != nil {
		v.len = old.len
		copy(v.all(), old.all())
		s.freeLevels(q, old)
	}
}

func (s *Store) freeLevels(q *Queue, v *levels) {
	q.Bytes -= uint64(v.size())
	s.alloc.Free(unsafe.Pointer(v), v.size())
}

// leaveLevel notes that a job is about to be taken out of the waiting list.
func (q *Queue) leaveLevel(j *Job) {
	all := q.levels.all()
	for i := range all {
		if all[i].last != j {
			continue
		}
		if j.Prev != nil && j.Prev.Priority() == int(all[i].priority) {
			all[i].last = j.Prev
			return
		}
		copy(all[i:], all[i+1:])
		all[len(all)-1] = level{} // so that no room keeps the address of a job that is freed
		q.levels.len--
		return
	}
}

// replaceInLevel notes that a waiting job has other memory.
func (q *Queue) replaceInLevel(j, k *Job) {
	if q.levels == nil {
		return
	}
	all := q.levels.all()
	for i := range all {
		if all[i].last == j {
			all[i].last = k
		}
	}
}
