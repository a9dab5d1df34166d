package store

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"jobmesh/module/store/storetest"
)

type item struct {
	entry
	hash uint64
}

// The index against a map, with hashes of which many fall into one bucket, and some
// are equal.
func TestIndex(t *testing.T) {
	alloc := storetest.New()
	before := alloc.Blocks()
	var x index
	x.init(alloc, func(e *entry) uint64 { return (*item)(unsafe.Pointer(e)).hash })
	r := rand.New(rand.NewPCG(1, 2))
	var all []*item
	check := func() {
		require.EqualValues(t, len(all), x.len)
		seen, cursor := map[*entry]bool{}, uint64(0)
		for {
			b, next := x.scan(cursor)
			for e := range b.all {
				require.False(t, seen[e])
				seen[e] = true
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
		require.Len(t, seen, len(all))
		for _, i := range all {
			require.NotNil(t, x.find(i.hash, func(e *entry) bool { return e == &i.entry }))
		}
	}
	for round := range 6 {
		for range 20_000 {
			grows := r.IntN(10) < 7
			if round&1 != 0 {
				grows = !grows
			}
			if grows || len(all) == 0 {
				i := (*item)(alloc.Alloc(int(unsafe.Sizeof(item{}))))
				*i = item{hash: r.Uint64()}
				if r.IntN(4) == 0 {
					i.hash &= 0xff
				}
				x.insert(&i.entry, i.hash)
				all = append(all, i)
				continue
			}
			k := r.IntN(len(all))
			i := all[k]
			all[k] = all[len(all)-1]
			all = all[:len(all)-1]
			x.remove(&i.entry, i.hash)
			alloc.Free(unsafe.Pointer(i), int(unsafe.Sizeof(*i)))
		}
		check()
	}
	for _, i := range all {
		alloc.Free(unsafe.Pointer(i), int(unsafe.Sizeof(*i)))
	}
	x.drop()
	require.Equal(t, before, alloc.Blocks())
}
