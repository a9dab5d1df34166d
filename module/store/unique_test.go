package store

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A value has room for times only if it can have some. Both forms are read alike, also the longer
// one with no time in it.
func TestUniqueValueWithAndWithoutTimes(t *testing.T) {
	key := []byte("user:7")
	for _, tc := range []struct {
		name                     string
		conflict, busy           uint8
		lock, run, delay, delay2 uint32
		size                     int
	}{
		{"plain", ConflictDrop, BusyWait, 0, 0, 0, 0, 24},
		{"raise and drop", ConflictRaise, BusyDrop, 0, 0, 0, 0, 24},
		{"LOCKTTL", ConflictDrop, BusyWait, 5, 0, 0, 0, 48},
		{"RUNTTL", ConflictDrop, BusyWait, 0, 6, 0, 0, 48},
		{"put off by a conflict", ConflictReschedule, BusyWait, 0, 0, 0, 0, 48},
		{"put off while busy", ConflictDrop, BusyReschedule, 0, 0, 0, 0, 48},
		{"delays", ConflictReschedule, BusyReschedule, 0, 0, 7, 8, 48},
		{"put off where there is no dead queue", ConflictDrop, BusyDead, 0, 0, 0, 0, 48},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := Unique(AppendUnique(nil, &UniqueBy{UniqueBoth, UniqueKeyed | UniqueMesh, tc.conflict, tc.busy, tc.lock, tc.run, tc.delay, tc.delay2, MaxLimit, key}))
			require.NoError(t, checkUnique(u))
			require.Len(t, u, tc.size+len(key))
			u.SetWait(1 << 60)
			u.SetRun(1<<60 + 1)
			u.SetSlot(LockRun, MaxLimit-1)
			u.CountTry()
			long := tc.size == 48
			tries := uint32(0)
			if long {
				tries = 1
			}
			keyed := u.AppendKeyed(nil, []byte("another"))
			require.NoError(t, checkUnique(keyed))
			for _, u := range []Unique{u, keyed} {
				assert.Equal(t, []int64{int64(tc.lock), int64(tc.run), int64(tc.delay), int64(tc.delay2)},
					[]int64{u.LockTTL() / 1000, u.RunTTL() / 1000, u.ConflictDelay() / 1000, u.BusyDelay() / 1000})
				assert.Equal(t, tries, u.Tries())
				assert.Equal(t, []int{MaxLimit, 0, MaxLimit - 1}, []int{u.Limit(), u.Slot(LockWait), u.Slot(LockRun)})
				assert.Equal(t, []uint64{1 << 60, 1<<60 + 1}, []uint64{u.WaitToken(), u.RunToken()})
				assert.True(t, u.Has(UniqueKeyed|UniqueMesh|UniqueHasWait|UniqueHasRun))
			}
			assert.Equal(t, key, u.Key())
			assert.Equal(t, "another", string(Unique(keyed).Key()))
			// Cut off, a value is refused.
			unkeyed := append(Unique(nil), u[:tc.size]...)
			unkeyed.Clear(UniqueKeyed)
			require.NoError(t, checkUnique(unkeyed))
			require.ErrorIs(t, checkUnique(unkeyed[:tc.size-1]), ErrRecord)
			unkeyed[5] = 2 // LIMIT 3: slot 255 is none of its slots
			require.ErrorIs(t, checkUnique(unkeyed), ErrRecord)
		})
	}

	long := append(Unique{1, UniqueUntil, UniqueKeyed}, make([]byte, 45)...)
	long = append(long, key...)
	require.NoError(t, checkUnique(long))
	assert.Equal(t, key, long.Key())
	assert.Zero(t, long.LockTTL()+long.RunTTL()+long.ConflictDelay()+long.BusyDelay())
	binary.LittleEndian.PutUint32(long[24:], 9)
	assert.EqualValues(t, 9000, long.LockTTL())

	for format, err := range map[uint8]error{0: ErrRecord, 3: ErrNewer} {
		long[0] = format
		require.ErrorIs(t, checkUnique(long), err)
	}
}
