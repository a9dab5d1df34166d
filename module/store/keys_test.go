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
