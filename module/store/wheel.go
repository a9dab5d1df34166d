package store

import (
	"math"
	"math/bits"
	"unsafe"
)

// wheel is a hierarchical timer wheel (Varghese and Lauck 1987) of intrusive
// lists: arming and disarming take a few stores. Level l has 64 slots of 64^l ms
// each. A job lies at the level of the highest 6-bit digit in which its
// deadline differs from base, so slots at and below base's own are empty, and
// the lowest level that holds anything holds what comes first.
//
// Moving a slot's jobs down a level is work in proportion to their number, so
// it is done within the budget that [Store.Due] is given.
type wheel struct {
	base     int64 // unix ms up to which all is handed out or in due
	slots    *slots
	draining []*slots // the slots of before the clock was set back, each time
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
	// backlash is how far the clock may step back before the wheel is set anew;
	// until then it waits for the clock to catch up.
	backlash = 1000
	// latest is the latest time the wheel takes for real, in the year 6429: a
	// level's room before its end, so that what lies further still has a slot.
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

// use makes empty slots the wheel's.
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

// place puts an unlinked job where it belongs for a deadline.
func (w *wheel) place(j *Job, deadline int64) {
	if deadline <= w.base {
		linkTimer(j, w.due)
		return
	}
	if deadline-w.base > farthest || (deadline^w.base)>>(6*wheelLevels) != 0 {
		// The last slot of the top level; it will be looked at again.
		deadline = w.base | farthest
	}
	level := (63 - bits.LeadingZeros64(uint64(deadline^w.base))) / 6
	slot := int(deadline>>(6*level)) & (wheelSlots - 1)
	w.occupied[level] |= 1 << slot
	linkTimer(j, &w.slots[level*wheelSlots+slot])
}

// next finds the first slot in use: its level, index and start. Slots that
// were emptied since are struck out on the way.
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

// Arm sets, or sets anew, the job's timer to its awake time.
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

// postponement is when a due job of a queue that nobody sees is looked at again, ms: by so
// much it may be late when the queue is back. A million such jobs cost 1 % of a core.
const postponement = 5_000

// Due returns the next job whose time has come, disarmed; nil where there is
// none, or where the budget, one per job handled, is used up. No job comes
// before its awake time as now tells it, however the clock jumps.
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
				// From now, not from base: else a clock that jumps ahead
				// would bring it up once for every minute jumped over.
				w.place(j, now+postponement)
				continue
			}
			if later := j.Awake(); later > now {
				w.place(j, later) // put off since it was armed
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
		// Both lists are empty here, so the slot's whole list moves as it is.
		*to, *from = *from, nil
		(*to).timerPrev = to
	}
	return nil
}

// NextWake is when Due is worth calling again, unix ms; math.MaxInt64 where no
// timer is armed.
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

// setBack starts a new wheel at an earlier time; the jobs of the old one, due
// ones too, move over bit by bit.
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

// drain moves the jobs of the latest former wheel over, as far as the budget goes.
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
