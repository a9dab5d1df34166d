package store

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/store/storetest"
)

// Adding a job takes the same time whatever its priority: the queue knows where each priority ends. It forgets a priority with its
// last job.
func TestAQueueKnowsWhereItsPrioritiesEnd(t *testing.T) {
	s := New(storetest.New(), 1, 0)
	q := s.NewQueue([]byte("q"), 0)
	plain := q.Bytes
	made := uint64(0)
	add := func(priority int) *Job {
		var extras []byte
		if priority != 0 {
			extras = AppendExtra(nil, TagPriority, PriorityValue(priority))
		}
		j := s.NewJob(0, 0, extras)
		made++
		j.ID, j.CTime, j.Retry = ID{byte(made), byte(made >> 8)}, made, 1
		s.RegisterNew(q, j)
		s.Push(j)
		return j
	}
	add(0)
	assert.Nil(t, q.levels, "no job has a priority")
	for p := -MaxPriority; p <= MaxPriority; p++ {
		add(p)
	}
	for p := MaxPriority; p >= -MaxPriority; p-- {
		j := add(p)
		require.Same(t, j, q.levels.all()[MaxPriority-p].last)
	}
	require.Len(t, q.levels.all(), 2*MaxPriority+1)
	last := MaxPriority
	for j := q.Head; j != nil; j = j.Next {
		require.LessOrEqual(t, j.Priority(), last)
		last = j.Priority()
	}
	for n := 1; q.Head != nil; n++ { // whatever goes, the oldest of those that are left is known
		for j := q.Head; j != nil; j = j.Next {
			require.False(t, older(j, q.Oldest()))
		}
		if n%3 == 0 {
			s.Remove(q.Oldest())
		} else {
			s.Remove(q.Head)
		}
	}
	assert.Empty(t, q.levels.all())
	s.freeLevels(q, q.levels)
	q.levels = nil
	assert.Equal(t, plain, q.Bytes)
}

func TestPrioritiesFromOutside(t *testing.T) {
	for value, fine := range map[string]bool{"": false, "\x00": true, "\x64": true, "\x65": false, "\x9c": true, "\x9b": false, "\x01\x01": false} {
		err := CheckExtras(AppendExtra(nil, TagPriority, []byte(value)))
		if fine {
			assert.NoError(t, err)
		} else {
			assert.ErrorIs(t, err, ErrRecord, "% x", value)
		}
	}
}

func TestSlotsFromOutside(t *testing.T) {
	slot := func(token, ticket string) string { return "nodenode\x01\x00" + token + ticket }
	none, one, tooMuch := string(make([]byte, 8)), "\x01"+string(make([]byte, 7)), "\x00\x00\x00\x00\x00\x00\x00\x80"
	nobody, ticket := string(make([]byte, 24)), string(make([]byte, 23))+"\x01"
	for value, fine := range map[string]bool{
		"": false, nobody: false, slot(none, nobody): true, slot(one, ticket): true, slot(one, ticket) + "x": false,
		slot(one, nobody): false, slot(none, ticket): false, slot(tooMuch, ticket): false,
	} {
		err := CheckExtras(AppendExtra(nil, TagSlots, []byte(value)))
		if fine {
			assert.NoError(t, err, "% x", value)
		} else {
			assert.ErrorIs(t, err, ErrRecord, "% x", value)
		}
	}
}
