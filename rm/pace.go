package rm

import "runtime"

// pace keeps Go's monitor thread at rest while commands pour in.
//
// The runtime takes the main thread for one goroutine that runs without end:
// nothing is ever scheduled on its processor but the callback itself. After 10
// ms of that the monitor begins to interrupt it, every 70 µs: it takes the
// processor away while the thread is in C, so that the next command must queue
// for another, or sends it a signal while it is in Go. That, and the monitor
// itself, was 4 to 6 % of the server's time. A goroutine that yields counts as
// scheduled anew.
type pace struct {
	last  int64 // unix ms of the last yield
	calls int   // commands since then
}

const (
	// The monitor looks every 10 ms when it finds nothing to do.
	breathMS = 8
	// Yielding takes 10 to 20 µs: where commands are rarer than this, in a
	// breath, being interrupted costs less.
	breathCalls = 16
)

// breathe is called after each command, when nothing is half done: other
// goroutines may get to run on this thread's processor.
func (p *pace) breathe(now int64) {
	if p.calls++; p.calls < breathCalls || now-p.last < breathMS && now >= p.last {
		return
	}
	p.last, p.calls = now, 0
	runtime.Gosched()
}
