package single

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// The wall clock is set while clients wait, and while jobs are delayed or in workers' hands.
// Everything happens when it would have happened.
func TestTheClockIsSet(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour, -24 * 365 * time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.WithClock(t), harness.WithConfig("appendonly yes", "appendfsync always"))
			c := s.Dial()
			waiting := map[string]*harness.Conn{}
			begin := time.Now()
			ask := func(what string, args ...any) {
				waiting[what] = s.Dial()
				waiting[what].Send(args...)
			}
			hears := func(what string, after time.Duration) harness.Value {
				t.Helper()
				v := waiting[what].Receive()
				assert.InDelta(t, after.Seconds(), time.Since(begin).Seconds(), 1.2, "%s: %v", what, v)
				return v
			}
			require.NotEqual(t, byte('-'), c.Do("LOCK.ACQUIRE", "n", "me", 600_000).Kind)
			add(t, c, "delayed before", "b", 0, "DELAY", 2, "TTL", 20)
			retried := add(t, c, "retried", "b", 0, "RETRY", 3)
			require.Equal(t, retried, get(t, c, "retried"))
			ask("a job that was delayed", "GETJOB", "TIMEOUT", 20_000, "FROM", "delayed before")
			ask("a job that comes back", "GETJOB", "TIMEOUT", 20_000, "FROM", "retried")
			ask("nothing", "GETJOB", "TIMEOUT", 2000, "FROM", "none")
			ask("a lock", "LOCK.ACQUIRE", "n", "other", 1000, "WAIT", 2000)
			awaitBlocked(t, s, 3)
			s.SetClock(step)
			add(t, c, "delayed after", "b", 0, "DELAY", 4, "TTL", 20)
			kept := add(t, c, "kept", "b", 0, "DELAY", 7)
			ask("a job that was delayed behind the clock's back", "GETJOB", "TIMEOUT", 20_000, "FROM", "delayed after")

			assert.Len(t, hears("a job that was delayed", 2*time.Second).Elems, 1)
			assert.True(t, hears("nothing", 2*time.Second).NullArray())
			assert.True(t, hears("a lock", 2*time.Second).NullString())
			assert.Len(t, hears("a job that comes back", 3*time.Second).Elems, 1)
			assert.Len(t, hears("a job that was delayed behind the clock's back", 4*time.Second).Elems, 1)

			s.Stop()
			s.Restart()
			// The log is replayed by another clock than it was written by. The job waits for its delay
			// again, and no longer.
			ask("a job from before the restart", "GETJOB", "TIMEOUT", 20_000, "FROM", "kept")
			v := waiting["a job from before the restart"].Receive()
			require.Len(t, v.Elems, 1)
			assert.Equal(t, kept, v.Elems[0].Elems[1].Str)
			assert.Less(t, time.Since(begin), 16*time.Second)
		})
	}
}

// The server calls all timers that are due by the time at which it began to call them. Just then
// its clock is set back by an hour. The server must not stay in that loop.
func TestTheClockIsSetBackWhileTimersRun(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithClock(t))
	c := s.Dial()
	// The clock is set back at each of the moments at which the server reads it.
	for reads := range 60 {
		s.SetClockAfter(time.Hour, reads+1, 0)
		c.Send("GETJOB", "TIMEOUT", 1, "FROM", "q")
		require.True(t, c.Receive().NullArray(), "the server answers no more")
	}
}
