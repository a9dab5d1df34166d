package store

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/store/storetest"
)

// The clock is set back again while the wheel still works off an earlier step. The wheel must not
// work off all the rest at once. The budget can't show that; the links of the jobs can.
func TestSettingTheClockBackAgainMovesNoMoreThanTheBudget(t *testing.T) {
	const n = 5000
	s := New(storetest.New(), 1, 1<<41)
	ids := s.IDMaker([4]byte{})
	q := s.NewQueue([]byte("q"), 0)
	var jobs []*Job
	for i := range uint64(n) {
		j := s.NewJob(0, 0, nil)
		j.ID, j.ETime = ids.Make(i, i, 60, true), int64(1+i<<29)
		s.RegisterNew(q, j)
		s.Arm(j)
		jobs = append(jobs, j)
	}
	for step := range int64(5) {
		before := make([]**Job, n)
		for i, j := range jobs {
			before[i] = j.timerPrev
		}
		budget := 10
		require.Nil(t, s.Due(1<<40-step<<30, &budget))
		moved := 0
		for i, j := range jobs {
			if j.timerPrev != before[i] {
				moved++
			}
		}
		// A job that moves changes its own link and one neighbour's in each list.
		assert.LessOrEqual(t, moved, 3*10, "step %d", step)
		assert.NotZero(t, moved)
	}
}
