package engine

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzReadCounts checks that another node's counts may have any content.
func FuzzReadCounts(f *testing.F) {
	some := Counts{Len: 1 << 40, InProgress: 2, Pause: 3}
	f.Add(some.append(some.append(nil, false), true), uint8(2))
	f.Add([]byte{}, uint8(0))
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, queues uint8) {
		list, err := readCounts(b, int(queues))
		if err != nil {
			return
		}
		require.Len(t, list, int(queues))
		for _, c := range list {
			if c != nil {
				require.LessOrEqual(t, c.Len, uint64(maxCount))
				require.LessOrEqual(t, c.Pause, uint64(3))
			}
		}
	})
}

// FuzzReadNames checks the same of names of queues.
func FuzzReadNames(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendName(appendName(nil, []byte("mail")), nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		names, err := readNames(b)
		if err != nil {
			return
		}
		var again []byte
		for _, name := range names {
			again = appendName(again, name)
		}
		require.LessOrEqual(t, len(names), namesMost)
		require.LessOrEqual(t, len(again), len(b))
	})
}

// A node of a later release may send more numbers, and one of a former release fewer.
func TestReadCounts(t *testing.T) {
	list, err := readCounts([]byte{0, 2, 7, 8, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 3, 14, 15, 16, 17, 18, 19, 98}, 3)
	require.NoError(t, err)
	assert.Equal(t, []*Counts{nil, {Len: 7, InProgress: 8}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 3, 14, 15, 16, 17, 18, 19}}, list)
	for _, b := range [][]byte{{}, {1}, {2, 1}, {0, 0}, {200}} {
		_, err := readCounts(b, 1)
		assert.Error(t, err, "%v", b)
	}
}

// Counts of several nodes are added up, but for the times and the pauses. There are as many blocked jobs, at least, as one node
// has copies of.
func TestSumOfCounts(t *testing.T) {
	var sum MeshCounts
	sum.add(&Counts{Len: 1, Deferred: 2, Blocked: 2, JobsOut: 3, Age: 10, Idle: 5, Pause: uint64(PauseIn), DeferredCopies: 3, BlockedCopies: 30})
	sum.add(&Counts{Len: 10, Deferred: 2, Blocked: 20, JobsOut: 30, Age: 4, Idle: 3, Pause: uint64(PauseOut), DeferredCopies: 3, BlockedCopies: 20})
	sum.conclude()
	assert.Equal(t, Counts{Len: 11, Deferred: 4, Blocked: 30, JobsOut: 33, Age: 10, Idle: 3, Pause: 3, DeferredCopies: 3, BlockedCopies: 30}, sum.Counts)
}
