package store

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"

	"jobmesh/module/store/storetest"
)

// From a job's ID a client can work out the key of the hash that is in it. It must not be able to
// make queue names that share a bucket by that key.
func TestAnIDTellsNothingAboutNames(t *testing.T) {
	const seed = 0x1234567890abcdef
	s := New(storetest.New(), seed, 0)
	id := s.IDMaker([4]byte{}).Make(99, 99, 60, true)
	learnt := unscramble(binary.LittleEndian.Uint64(id[14:])) ^ 1
	assert.NotEqual(t, uint64(seed), learnt)

	// Names whose second word cancels the hash of the first, where the key is known.
	crafted := func(key, n uint64) []byte {
		length := uint64(16)
		h := mix(key^length*0x9e3779b97f4a7c15^n, 0xa0761d6478bd642f)
		b := binary.LittleEndian.AppendUint64(nil, n)
		return binary.LittleEndian.AppendUint64(b, h)
	}
	count := func(key uint64) int {
		seen := map[uint64]bool{}
		for n := range uint64(1000) {
			seen[s.hashName(crafted(key, n))] = true
		}
		return len(seen)
	}
	assert.Equal(t, 1, count(s.keys.name), "the attack itself works")
	assert.Equal(t, 1000, count(learnt))
	assert.Equal(t, 1000, count(seed))
	assert.NotEqual(t, s.keys.height, learnt)
}

// Clients choose the IDs that they acknowledge or cancel. They know the IDs of some jobs, and so the key in them. Still the IDs
// that they can make lie all over the table.
func TestNobodyFillsABucketWithIDs(t *testing.T) {
	s := New(storetest.New(), 7, 0)
	m := s.IDMaker([4]byte{1, 2, 3, 4})
	known := m.Make(99, 99, 86400, true)
	learnt := unscramble(binary.LittleEndian.Uint64(known[14:])) ^ 1
	const n, buckets = 1000, 1024
	spread := func(id func(i uint64) ID) int {
		seen := map[uint64]bool{}
		for i := range uint64(n) {
			x := id(i)
			seen[s.hashID(&x)%buckets] = true
		}
		return len(seen)
	}
	for name, make := range map[string]func(id *ID, i uint64){
		"node":    func(id *ID, i uint64) { binary.LittleEndian.PutUint32(id[:], uint32(i)) },
		"random":  func(id *ID, i uint64) { binary.LittleEndian.PutUint64(id[4:], i) },
		"seal":    func(id *ID, i uint64) { binary.LittleEndian.PutUint16(id[12:], uint16(i)) },
		"counter": func(id *ID, i uint64) { binary.LittleEndian.PutUint64(id[14:], scramble(i*buckets^learnt)) },
		"ttl":     func(id *ID, i uint64) { binary.LittleEndian.PutUint16(id[22:], uint16(i)) },
	} {
		for from, base := range map[string]ID{"of a job": known, "empty": {}} {
			got := spread(func(i uint64) ID { id := base; make(&id, i); return id })
			assert.Greater(t, got, buckets/2, "IDs that differ in the %s, %s", name, from) // 638 of 1024, if by chance
		}
	}
	assert.Equal(t, n, spread(func(i uint64) ID { return m.Make(i, i, 86400, true) }), "jobs that are made one after the other have buckets of their own")
	first, second := m.Make(1, 1, 86400, true), m.Make(2, 2, 60, false)
	assert.Equal(t, s.Number(&first)+1, s.Number(&second))
}

// A job counts as acknowledged only if it was: an ID that a client has made from a job's ID doesn't make it so.
func TestNobodyMakesAnotherJobDone(t *testing.T) {
	s := New(storetest.New(), 7, 0)
	id := s.IDMaker([4]byte{1, 2, 3, 4}).Make(99, 99, 86400, true)
	for i := range 1 << 16 {
		forged := id
		forged[4] ^= 1
		binary.LittleEndian.PutUint16(forged[12:], uint16(i)) // one of them has the seal
		s.SetDone(&forged)
		if i%doneMost == doneMost-1 {
			assert.False(t, s.Done(&id))
		}
	}
	s.SetDone(&id)
	assert.True(t, s.Done(&id))
}
