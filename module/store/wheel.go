package store

import (
	"math"
	"math/bits"
	"unsafe"
)

// wheel is a hierarchical timer wheel (Varghese and Lauck 1987) of intrusive lists: arming
// and disarming take a few stores. Level l has 64 slots of 64^l ms each. A job lies at the
// level of the highest 6-bit digit in which its deadline differs from base. So on each level
// the slots up to base's own are empty, and the lowest level that has any jobs has those that
// come first.
//
// Moving a slot's jobs down a level takes time in proportion to their number. So it is done
// within the budget of [Store.Due].
type wheel struct {
	base     int64 // unix ms; jobs with deadlines up to this are handed out, or in due
	slots    *slots
	draining []*slots // the slots that were in use before each setting back of the clock
	drainAt  int      // how far the last of them is drained
	due      **Job    // jobs whose deadline has come
	pending  **Job    // jobs on their way down a level
	occupied [wheelLevels]uint64
	armed    uint64
}

const (
	wheelLevels = 8
	wheelSlots  = 64
	// farthest is how far ahead the wheel can hold a job: 8900 years.
	farthest = 1<<(6*wheelLevels) - 1
	// backlash is how far the clock may step back, in ms, before the wheel is set anew. After
	// a smaller step the wheel waits for the clock to catch up.
	backlash = 1000
	// latest is the latest time of the clock that the wheel accepts, in the year 6429. The wheel
	// reaches further than that, so that later deadlines still have a slot.
	latest = 1 << 47
)

// The lists of due and pending jobs lie behind the slots, so that setting the
// clock back moves all of them at once.
type slots [pendingList + 1]*Job

const (
	dueList     = wheelLevels * wheelSlots
	pendingList = dueList + 1
	slotsBytes  = (pendingList + 1) * 8
)

func (w *wheel) init(alloc Allocator, now int64) {
	*w = wheel{base: sane(now)}
	w.use(newSlots(alloc))
}

// use gives the wheel these slots, which must be empty.
func (w *wheel) use(s *slots) {
	w.slots, w.due, w.pending = s, &s[dueList], &s[pendingList]
	w.occupied = [wheelLevels]uint64{}
}

func sane(now int64) int64 { return min(max(now, 0), latest) }

func newSlots(alloc Allocator) *slots {
	s := (*slots)(alloc.Alloc(slotsBytes))
	*s = slots{}
	return s
}

func (w *wheel) drop(alloc Allocator) {
	alloc.Free(unsafe.Pointer(w.slots), slotsBytes)
	for _, d := range w.draining {
		alloc.Free(unsafe.Pointer(d), slotsBytes)
	}
}

// linkTimer puts a job into a slot's list. Its timerPrev points at what points at it: so
// unlinkTimer needs no slot, and a slot is one pointer. A [table.List] would need both.
func linkTimer(j *Job, head **Job) {
	j.timerNext, j.timerPrev = *head, head
	if *head != nil {
		(*head).timerPrev = &j.timerNext
	}
	*head = j
}

func unlinkTimer(j *Job) {
	*j.timerPrev = j.timerNext
	if j.timerNext != nil {
		j.timerNext.timerPrev = j.timerPrev
	}
	j.timerPrev = nil
}

// place puts an unlinked job into the slot for a deadline, or into due if that has come.
func (w *wheel) place(j *Job, deadline int64) {
	if deadline <= w.base {
		linkTimer(j, w.due)
		return
	}
	if deadline-w.base > farthest || (deadline^w.base)>>(6*wheelLevels) != 0 {
		// The last slot of the top level. Its jobs are placed anew when its time comes.
		deadline = w.base | farthest
	}
	level := (63 - bits.LeadingZeros64(uint64(deadline^w.base))) / 6
	slot := int(deadline>>(6*level)) & (wheelSlots - 1)
	w.occupied[level] |= 1 << slot
	linkTimer(j, &w.slots[level*wheelSlots+slot])
}

// next finds the first slot in use: its level, index and start time. On the way it clears
// the bits in occupied of slots that have become empty.
func (w *wheel) next() (level, slot int, start int64, ok bool) {
	for level = range wheelLevels {
		here := int(w.base>>(6*level)) & (wheelSlots - 1)
		for {
			// Bits above our own position; shifting by 64 gives 0.
			ahead := w.occupied[level] >> here >> 1
			if ahead == 0 {
				break
			}
			slot = here + 1 + bits.TrailingZeros64(ahead)
			if w.slots[level*wheelSlots+slot] != nil {
				window := int64(1) << (6 * (level + 1))
				return level, slot, w.base&^(window-1) + int64(slot)<<(6*level), true
			}
			w.occupied[level] &^= 1 << slot
		}
	}
	return 0, 0, 0, false
}

// Arm sets the job's timer, or sets it anew, to [Job.Awake].
func (s *Store) Arm(j *Job) {
	if j.timerPrev != nil {
		unlinkTimer(j)
	} else {
		s.wheel.armed++
	}
	s.wheel.place(j, j.Awake())
}

// Disarm stops the job's timer.
func (s *Store) Disarm(j *Job) {
	if j.timerPrev != nil {
		unlinkTimer(j)
		s.wheel.armed--
	}
}

// postponement is after how many ms a due job is looked at again if its queue isn't attached.
// Such a job may be as late as this when the queue is back. A million of them cost 1 % of a
// core.
const postponement = 5_000

// Due returns the next job whose time has come, and disarms it. It returns nil if there is
// none, or if the budget is used up: each job that it handles takes 1. However the clock
// jumps, Due returns no job before now has reached the job's Awake.
func (s *Store) Due(now int64, budget *int) *Job {
	w := &s.wheel
	now = sane(now)
	if now < w.base {
		if w.base-now <= backlash {
			return nil
		}
		s.setBack(now)
	}
	for *budget > 0 {
		if len(w.draining) > 0 {
			s.drain(budget)
			continue
		}
		if j := *w.pending; j != nil {
			*budget--
			unlinkTimer(j)
			w.place(j, j.Awake())
			continue
		}
		if j := *w.due; j != nil {
			*budget--
			unlinkTimer(j)
			if j.Queue.state != queueAttached {
				// From now, not from base. Otherwise, after the clock has jumped ahead, the
				// job would come up once for each postponement within the jump.
				w.place(j, now+postponement)
				continue
			}
			if later := j.Awake(); later > now {
				w.place(j, later) // it was put off after it was armed
				continue
			}
			w.armed--
			return j
		}
		level, slot, start, ok := w.next()
		if !ok || start > now {
			w.base = max(w.base, now)
			return nil
		}
		w.base = start
		w.occupied[level] &^= 1 << slot
		from, to := &w.slots[level*wheelSlots+slot], w.pending
		if level == 0 {
			to = w.due
		}
		// due and pending are empty here, so the slot's whole list moves as it is.
		*to, *from = *from, nil
		(*to).timerPrev = to
	}
	return nil
}

// NextWake is when Due is to be called again, in unix ms; math.MaxInt64 if no timer is armed.
func (s *Store) NextWake() int64 {
	w := &s.wheel
	if len(w.draining) > 0 || *w.pending != nil || *w.due != nil {
		return w.base
	}
	if w.armed == 0 {
		return math.MaxInt64
	}
	if _, _, start, ok := w.next(); ok {
		return start
	}
	return math.MaxInt64
}

// setBack starts a new wheel at an earlier time. The jobs of the old one, also those that are
// due, move over bit by bit (drain).
func (s *Store) setBack(now int64) {
	w := &s.wheel
	w.base = now
	if w.armed == 0 {
		w.occupied = [wheelLevels]uint64{}
		return
	}
	w.draining, w.drainAt = append(w.draining, w.slots), 0
	w.use(newSlots(s.alloc))
}

// drain moves jobs from the last of draining to the wheel, as far as the budget goes.
func (s *Store) drain(budget *int) {
	w := &s.wheel
	last := len(w.draining) - 1
	from := w.draining[last]
	for ; w.drainAt < len(from); w.drainAt++ {
		for j := from[w.drainAt]; j != nil; j = from[w.drainAt] {
			if *budget == 0 {
				return
			}
			*budget--
			unlinkTimer(j)
			w.place(j, j.Awake())
		}
	}
	s.alloc.Free(unsafe.Pointer(from), slotsBytes)
	w.draining, w.drainAt = w.draining[:last], 0
}
