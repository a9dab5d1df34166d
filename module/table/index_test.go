package table

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"jobmesh/module/store/storetest"
)

type item struct {
	Entry
	hash uint64
}

// The index against a map, with hashes of which many fall into one bucket, and some
// are equal.
func TestIndex(t *testing.T) {
	alloc := storetest.New()
	before := alloc.Blocks()
	var x Index
	x.Init(alloc, func(e *Entry) uint64 { return (*item)(unsafe.Pointer(e)).hash })
	r := rand.New(rand.NewPCG(1, 2))
	var all []*item
	check := func() {
		require.EqualValues(t, len(all), x.Len)
		seen, cursor := map[*Entry]bool{}, uint64(0)
		for {
			b, next := x.Scan(cursor)
			for e := range b.All {
				require.False(t, seen[e])
				seen[e] = true
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
		require.Len(t, seen, len(all))
		for _, i := range all {
			require.NotNil(t, x.Find(i.hash, func(e *Entry) bool { return e == &i.Entry }))
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
				x.Insert(&i.Entry, i.hash)
				all = append(all, i)
				continue
			}
			k := r.IntN(len(all))
			i := all[k]
			all[k] = all[len(all)-1]
			all = all[:len(all)-1]
			x.Remove(&i.Entry, i.hash)
			alloc.Free(unsafe.Pointer(i), int(unsafe.Sizeof(*i)))
		}
		check()
	}
	for _, i := range all {
		alloc.Free(unsafe.Pointer(i), int(unsafe.Sizeof(*i)))
	}
	x.Drop()
	require.Equal(t, before, alloc.Blocks())
}
