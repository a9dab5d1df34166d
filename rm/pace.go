package rm

import "runtime"

// pace keeps Go's monitor thread idle while many commands arrive.
//
// To the runtime the main thread is one goroutine that runs without end: on its processor
// nothing is ever scheduled but the callback itself. After 10 ms the monitor begins to
// interrupt it, every 70 µs. If the thread is in C, the monitor takes the processor away,
// and the next command must queue for another one. If the thread is in Go, the monitor
// sends it a signal. Both, with the monitor itself, took 4 to 6 % of the server's time. A
// goroutine that yields counts as newly scheduled.
type pace struct {
	last  int64 // unix ms of the last yield
	calls int   // commands since then
}

const (
	// The monitor checks every 10 ms when it finds nothing to do.
	breathMS = 8
	// Yielding takes 10 to 20 µs. With fewer commands than this in breathMS, being
	// interrupted costs less.
	breathCalls = 16
)

// breathe yields from time to time, so that other goroutines can run on this thread's
// processor. It is called after each command, when nothing is half done.
func (p *pace) breathe(now int64) {
	if p.calls++; p.calls < breathCalls || now-p.last < breathMS && now >= p.last {
		return
	}
	p.last, p.calls = now, 0
	runtime.Gosched()
}
