package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/store"
)

// FuzzReadDelayed checks that another node's list of delayed jobs may have any content.
func FuzzReadDelayed(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0})
	f.Add(append(append([]byte{1}, make([]byte, placeLen)...), 0x83, 1))
	f.Add(append(append([]byte{0}, make([]byte, placeLen)...), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, _, err := readDelayed(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(list), MaxMeshWIP)
		for _, d := range list {
			require.GreaterOrEqual(t, d.At, int64(0))
			require.LessOrEqual(t, d.Deliveries, maxReturns)
		}
	})
}

func TestReadDelayed(t *testing.T) {
	want := DelayedJob{DelayedPlace: store.DelayedPlace{At: 7, CTime: 8_000_000, ID: store.ID{9}}, Deliveries: 3}
	list, more, err := readDelayed(append(appendPlace([]byte{1}, &want.DelayedPlace), 3))
	require.NoError(t, err)
	assert.True(t, more)
	assert.Equal(t, []DelayedJob{want}, list)
	assert.Equal(t, int64(8), want.Created())
	negative := store.DelayedPlace{At: -1}
	for _, b := range [][]byte{{}, {2}, {0, 1}, appendPlace([]byte{0}, &want.DelayedPlace), append(appendPlace([]byte{0}, &negative), 0), append(appendPlace([]byte{0}, &want.DelayedPlace), 0xff, 0xff, 0x7f)} {
		_, _, err := readDelayed(b)
		assert.Error(t, err, "%v", b)
	}
}

// A page of the mesh leaves out no job, and its cursor none either, however the nodes' pages end.
func TestPagesOfDelayedJobs(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		nodes := make([][]DelayedJob, 1+r.IntN(4))
		all := map[store.ID]bool{}
		for i := range nodes {
			at := int64(0)
			for k := range r.IntN(30) {
				at += r.Int64N(3)
				d := DelayedJob{DelayedPlace: store.DelayedPlace{At: at, CTime: uint64(k), ID: store.ID{byte(i), byte(k)}}}
				nodes[i], all[d.ID] = append(nodes[i], d), true
			}
		}
		if len(nodes) > 1 && len(nodes[0]) > 0 { // two nodes have one job
			nodes[1] = append([]DelayedJob{nodes[0][0]}, nodes[1]...)
			nodes[1][0].At = 0
		}
		behind := store.DelayedPlace{At: -1}
		met := map[store.ID]int{}
		for range 500 {
			count := 1 + r.IntN(8)
			var a MeshAnswer
			for _, list := range nodes {
				for len(list) > 0 && list[0].Compare(&behind) <= 0 {
					list = list[1:]
				}
				a.takeDelayed(list[:min(count, len(list))], len(list) > count)
			}
			a.chooseDelayed(count)
			require.LessOrEqual(t, len(a.Delayed), count)
			for _, d := range a.Delayed {
				met[d.ID]++
				require.Positive(t, d.Compare(&behind))
				behind = d.DelayedPlace
			}
			if !a.More {
				break
			}
			require.NotEmpty(t, a.Delayed, "a page that others follow has jobs")
		}
		require.Len(t, met, len(all))
		for id, times := range met {
			require.LessOrEqual(t, times, 2, "%v", id)
			require.True(t, times == 1 || id == nodes[0][0].ID)
		}
	}
}
