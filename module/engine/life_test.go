package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock/locktest"
	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
)

// playLife plays the scripts of a numbered scenario, which only the mesh shows.
func playLife(t *testing.T, scripts ...string) {
	for _, name := range scripts {
		locktest.Run(t, func() *locktest.World { return newWorld().World }, "testdata/"+name+".txt")
	}
}

// F8: no job dies undelivered, however long a partition lasts. The histories "failing" of the simulator check it, too.
func TestLifeF8(t *testing.T) { playLife(t, "undelivered_for_an_hour") }

// D8: dead on one side of a partition, done on the other: gone everywhere. Dead on both: there once.
func TestLifeD8(t *testing.T) { playLife(t, "dead_there_done_here", "dead_twice") }

// I7: a job has as many extras as there may be (here of a kind that this release doesn't know). A reason has no room then: it is left out, and the
// NACK counts.
func TestLifeI7(t *testing.T) {
	n, _, _ := node(dawn)
	n.BeginLoading()
	full := make([]byte, store.MaxExtras-store.ExtraSize(nil))
	s := store.New(storetest.New(), 1, dawn)
	j := s.NewJob(1, 0, store.AppendExtra(nil, 200, full))
	j.ID, j.State, j.Retry, j.Repl = s.IDMaker([4]byte{}).Make(1, 2, 600, true), store.StateQueued, 60, 1
	j.CTime, j.QTime, j.ETime = uint64(dawn)*1_000_000, dawn, dawn+600_000
	require.NoError(t, n.ApplyJob([]byte("q"), j.Record()))
	n.EndLoading()
	n.Settle(engine.Trust{Exact: true, Same: true})
	for i := range 3 {
		got := n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil)
		require.Len(t, got, 1)
		id := got[0].ID
		require.True(t, n.Nack(&id, &engine.Failure{Reason: []byte("no room")}))
		k := n.Job(&id)
		assert.EqualValues(t, i+1, k.Nacks)
		assert.Equal(t, full, k.Extra(200))
		_, known := engine.FailureOf(k)
		assert.False(t, known)
		n.Effects()
	}
}
