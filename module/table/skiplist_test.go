package table

import (
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"jobmesh/module/store/storetest"
)

type ordered struct {
	Element[ordered]
	at int
}

// A list in order, and a skip list over it, against a sorted slice. A third of the elements that could have a node have
// none.
func TestSkipIndex(t *testing.T) {
	alloc := storetest.New()
	before := alloc.Blocks()
	less := func(a, b *ordered) bool { return a.at < b.at }
	var l List[ordered]
	var x SkipIndex[ordered]
	r := rand.New(rand.NewPCG(1, 2))
	in := map[int]*ordered{}
	size := int(unsafe.Sizeof(ordered{}))
	add := func(at int) {
		e := (*ordered)(alloc.Alloc(size))
		*e = ordered{at: at}
		var path SkipPath[ordered]
		l.Insert(e, x.Place(&l, e, less, &path))
		if height := SkipHeight(r.Uint64() << r.IntN(6)); height > 0 && at%3 > 0 {
			require.Equal(t, 16+8*height, x.Add(alloc, e, height, &path))
		}
		in[at] = e
	}
	remove := func(e *ordered) {
		x.Remove(alloc, e, less)
		l.Remove(e)
		delete(in, e.at)
		alloc.Free(unsafe.Pointer(e), size)
	}
	check := func() {
		var want, forward, back, nodes []int
		for at := range in {
			want = append(want, at)
		}
		slices.Sort(want)
		for e := l.Head; e != nil; e = e.Next {
			forward = append(forward, e.at)
		}
		for e := l.Tail; e != nil; e = e.Prev {
			back = append(back, e.at)
		}
		slices.Reverse(back)
		require.Equal(t, want, forward)
		require.Equal(t, want, back)
		require.EqualValues(t, len(want), l.Len)
		for level := range skipLevels {
			nodes = nodes[:0]
			var last *SkipNode[ordered]
			for n := x.Head[level]; n != nil; n = *x.after(n, level) {
				require.Same(t, in[n.Of.at], n.Of)
				nodes, last = append(nodes, n.Of.at), n
			}
			require.True(t, slices.IsSorted(nodes))
			require.Same(t, last, x.Tail[level])
		}
	}
	for round := range 8 {
		for range 2000 {
			if at := r.IntN(3000); in[at] == nil {
				add(at)
			} else if round&1 != 0 || r.IntN(4) == 0 {
				remove(in[at])
			}
		}
		check()
	}
	for l.Head != nil {
		remove(l.Head)
	}
	require.Equal(t, SkipIndex[ordered]{}, x)
	require.Equal(t, List[ordered]{}, l)
	require.Equal(t, before, alloc.Blocks())
}
