package rm

import (
	"container/heap"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The code that runs just before a timer may stop it. Then no other timer runs in its place before
// its own time, and nothing is taken from an empty heap.
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
