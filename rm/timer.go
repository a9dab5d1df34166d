package rm

import (
	"container/heap"
	"math"
	"sync/atomic"
	"time"

	"jobmesh/cgo/api"
)

// Timer calls a function once, later.
type Timer struct {
	s   *Server
	at  int64  // µs since the module was loaded
	seq uint64 // keeps timers of the same time in order
	pos int    // in the heap; -1: not there
	run func(*Ctx)
}

// timers measures time by a monotonic clock, which nobody sets. The server's own timers
// expire by the wall clock: if that is set back by an hour, they stand still for an hour.
// So the server has at most one timer, the alarm for the first of these timers. A goroutine
// checks whether the alarm is overdue.
type timers struct {
	begin time.Time
	heap  timerHeap
	seq   uint64
	alarm uint64 // the server's timer
	id    uintptr
	end   int64        // end of the slice of time in which this alarm runs timers, µs since begin
	rings atomic.Int64 // when the alarm should fire, µs since begin; [never]: there is no alarm
	woken atomic.Bool  // watchTimers has asked for another alarm
}

const (
	never      = math.MaxInt64
	earlyUS    = 500     // µs: a timer may be early by this, since the alarm's unit is 1 ms
	timerSlice = 500     // µs after which timers that are due wait for the next turn
	timerWatch = 250     // ms between two checks of watchTimers
	overdueUS  = 100_000 // µs: an alarm this late has missed its time
	longestMS  = 1 << 40 // longer than any server runs
)

func (t *timers) init() {
	t.begin = time.Now()
	t.rings.Store(never)
}

// Steady is a monotonic clock: the time since the module was loaded. Changes of the wall
// clock don't affect it.
func (s *Server) Steady() time.Duration { return time.Since(s.timers.begin) }

// Now is the time of the server's wall clock, unix ms.
func (s *Server) Now() int64 { return api.Now() }

// After calls run in ms milliseconds, measured by the monotonic clock.
func (s *Server) After(ms int64, run func(*Ctx)) *Timer {
	s.timers.seq++
	t := &Timer{s: s, at: s.Steady().Microseconds() + min(max(ms, 0), longestMS)*1000, seq: s.timers.seq, run: run}
	heap.Push(&s.timers.heap, t)
	s.setAlarm()
	return t
}

// Stop cancels the timer. It does nothing if the timer has fired.
func (t *Timer) Stop() {
	if t.pos >= 0 {
		heap.Remove(&t.s.timers.heap, t.pos)
	}
}

// setAlarm makes the server call Timer when the first timer is due, or before.
func (s *Server) setAlarm() {
	t := &s.timers
	if len(t.heap) == 0 || t.rings.Load() <= t.heap[0].at {
		return
	}
	s.dropAlarm()
	at := t.heap[0].at
	t.rings.Store(at)
	t.id++
	t.alarm = api.StartTimer(s.ctx, (max(at-s.Steady().Microseconds(), 0)+999)/1000, t.id)
}

func (s *Server) dropAlarm() {
	if s.timers.rings.Load() != never {
		s.timers.rings.Store(never)
		api.StopTimer(s.ctx, s.timers.alarm)
	}
}

// Timer implements api.Handler. It runs one timer in each call.
func (s *Server) Timer(f *api.Frame, id uintptr) (more bool) {
	t := &s.timers
	now := s.Steady().Microseconds()
	if at := t.rings.Load(); id == t.id && at != never {
		t.rings.Store(never)
		t.end = now + timerSlice
		if now < at-earlyUS {
			// The server calls all alarms that are due at the time when it began to call
			// them. If the wall clock is set back meanwhile, each alarm that is set here is
			// due at once, and the server is caught in this for as long as the step was.
			s.Post(func(*Server) { s.setAlarm() })
			return false
		}
	}
	if !t.isDue(now) || now > t.end {
		s.setAlarm()
		return false
	}
	// The next alarm must be set even if run panics.
	defer s.setAlarm()
	c := s.ctxFor(f, aTurn)
	// Sending may stop a timer, also the one that is due.
	s.sendLate(c)
	if due := t.due(now); due != nil {
		due.run(c)
	}
	return true
}

// isDue says whether the first timer is due at now, µs since begin.
func (t *timers) isDue(now int64) bool { return len(t.heap) > 0 && t.heap[0].at <= now+earlyUS }

// due takes the first timer off the heap if it is due, and returns nil otherwise.
func (t *timers) due(now int64) *Timer {
	if !t.isDue(now) {
		return nil
	}
	return heap.Pop(&t.heap).(*Timer)
}

// watchTimers checks the alarm outside the main thread.
func (s *Server) watchTimers() {
	s.Go(func() {
		t := &s.timers
		for range time.Tick(timerWatch * time.Millisecond) {
			at := t.rings.Load()
			if at == never || s.Steady().Microseconds() < at+overdueUS || !t.woken.CompareAndSwap(false, true) {
				continue
			}
			s.Post(func(*Server) {
				t.woken.Store(false)
				// The main thread may just have been busy. Then setting the alarm again
				// does no harm.
				s.dropAlarm()
				s.setAlarm()
			})
		}
	})
}

// timerHeap is a heap by time.
type timerHeap []*Timer

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}
func (h *timerHeap) Push(x any) {
	t := x.(*Timer)
	t.pos = len(*h)
	*h = append(*h, t)
}
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.pos = -1
	return t
}
