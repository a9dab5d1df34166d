package store_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/store"
)

// drive calls Due until no more jobs are due at that time.
func (w *world) drive(t *testing.T, now int64) (due []*store.Job, used int) {
	for {
		budget := 1000
		j := w.s.Due(now, &budget)
		used += 1000 - budget
		require.Less(t, used, 10_000_000)
		if j != nil {
			due = append(due, j)
		} else if budget > 0 {
			return due, used
		}
	}
}

func (w *world) arm(name string, etime int64) *store.Job {
	j := w.add(name)
	j.ETime = etime
	w.s.Arm(j)
	return j
}

// Nobody sees a detached queue's jobs; they are looked at once a minute, not
// once for each minute that the clock jumped over.
func TestADetachedQueueDoesNotSlowAJumpOfTheClock(t *testing.T) {
	w := newWorld(1)
	j := w.arm("q", 1000)
	q := w.s.Queue([]byte("q"))
	w.s.Detach(q)
	year := int64(365 * 86400 * 1000)
	due, used := w.drive(t, year)
	assert.Empty(t, due)
	assert.Less(t, used, 20)
	assert.Greater(t, w.s.NextWake(), year)
	assert.LessOrEqual(t, w.s.NextWake(), year+60_000)

	w.s.Attach(q, []byte("q"))
	due, _ = w.drive(t, year+60_000)
	assert.Equal(t, []*store.Job{j}, due, "it fires once the queue is back")
}

func TestAJobPutOffAfterArmingIsNotEarly(t *testing.T) {
	w := newWorld(1)
	j := w.arm("q", 10)
	j.ETime = 1000
	due, _ := w.drive(t, 999)
	assert.Empty(t, due)
	due, _ = w.drive(t, 1000)
	assert.Equal(t, []*store.Job{j}, due)
	assert.Equal(t, int64(math.MaxInt64), w.s.NextWake())
}

func TestTimesBeyondReasonAreNeitherEarlyNorLost(t *testing.T) {
	w := newWorld(1)
	w.arm("q", math.MaxInt64)
	for _, now := range []int64{1 << 40, 1<<47 - 1, 1 << 47, 1<<48 - 1, 1 << 48, math.MaxInt64} {
		due, _ := w.drive(t, now)
		require.Empty(t, due, "at %d", now)
		require.Less(t, w.s.NextWake(), int64(math.MaxInt64), "at %d", now)
	}
	soon := w.arm("q", 5)
	due, _ := w.drive(t, 4)
	assert.Empty(t, due)
	due, _ = w.drive(t, 5)
	assert.Equal(t, []*store.Job{soon}, due)
}

func TestAClockBefore1970FiresNothing(t *testing.T) {
	w := newWorld(1)
	for range 1000 {
		w.arm("q", 50_000)
	}
	for _, now := range []int64{60_000 - 20_000, -1, -5000, math.MinInt64, -5000} {
		due, _ := w.drive(t, now)
		require.Empty(t, due)
	}
	due, _ := w.drive(t, 50_000)
	assert.Len(t, due, 1000)
}

// However often the clock is set back, one call handles no more jobs than its
// budget allows, and none is lost.
func TestSettingTheClockBackAgainKeepsToTheBudget(t *testing.T) {
	w := newWorld(1)
	blocks := w.alloc.Blocks()
	w.drive(t, 1<<41)
	const n = 5000
	for range n {
		w.arm("q", 1+w.r.Int64N(1<<42))
	}
	now := int64(1 << 41)
	for i := range 20 {
		now -= 1 << 34
		budget := 1 + i
		require.Nil(t, w.s.Due(now, &budget))
		require.Zero(t, budget)
		require.LessOrEqual(t, w.s.NextWake(), now, "work is left")
	}
	seen := map[*store.Job]bool{}
	early, _ := w.drive(t, now)
	late, _ := w.drive(t, 1<<42)
	for _, j := range early {
		require.LessOrEqual(t, j.ETime, now)
		seen[j] = true
	}
	for _, j := range late {
		require.Greater(t, j.ETime, now)
		seen[j] = true
	}
	assert.Len(t, seen, n)
	for j := range seen {
		w.s.Remove(j)
	}
	w.s.RemoveQueue(w.s.Queue([]byte("q")))
	assert.Equal(t, blocks, w.alloc.Blocks(), "the former wheels are freed")
}

func TestForgetInTheMiddleOfSettingBack(t *testing.T) {
	w := newWorld(1)
	w.drive(t, 1<<41)
	for range 100 {
		w.arm("q", 1+w.r.Int64N(1<<42))
	}
	budget := 1
	w.s.Due(1<<40, &budget)
	budget = 1
	w.s.Due(1<<39, &budget)
	w.s.Forget()
	assert.Equal(t, int64(math.MaxInt64), w.s.NextWake())
	due, _ := w.drive(t, 1<<43)
	assert.Empty(t, due, "nothing of what was armed before is known")
	j := w.arm("new", 1<<43+1)
	due, _ = w.drive(t, 1<<43+1)
	assert.Equal(t, []*store.Job{j}, due)
}
