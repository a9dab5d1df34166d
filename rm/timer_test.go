package rm

import (
	"container/heap"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A timer can be stopped by what is done just before it runs: then no other takes its
// place before its time, and an empty heap is none to take from.
func TestATimerThatIsStoppedJustBeforeItRuns(t *testing.T) {
	const now = 1_000_000
	s := &Server{}
	add := func(at int64) *Timer {
		timer := &Timer{s: s, at: at}
		heap.Push(&s.timers.heap, timer)
		return timer
	}
	knock, other := add(now), add(now+10_000_000)
	assert.True(t, s.timers.isDue(now))
	knock.Stop()
	assert.Nil(t, s.timers.due(now))
	knock.Stop() // twice is once
	assert.Same(t, other, s.timers.due(now+10_000_000))
	assert.Nil(t, s.timers.due(now+10_000_000))
	early := add(now)
	assert.Nil(t, s.timers.due(now-earlyUS-1))
	assert.Same(t, early, s.timers.due(now-earlyUS))
	other.Stop()
}
