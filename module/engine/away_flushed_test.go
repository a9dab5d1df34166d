package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// A queue with a job that is held back for its key goes to another database (SWAPDB), database 0 is flushed (FLUSHDB), and the node becomes a replica
// by a partial resynchronization (FAILOVER) and is promoted again.
func TestPromotionWithAHeldBackJobAway(t *testing.T) {
	n, _, _ := node(dawn)
	var ids []store.ID
	for range 2 {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("x"), Replicate: 1, Retry: 100, TTL: 6000,
			Unique: engine.Unique{Strategy: store.UniqueDuring, Busy: store.BusyWait, Keyed: true, Key: []byte("k")}})
		require.NoError(t, err)
		ids = append(ids, id)
	}
	n.Effects()
	require.EqualValues(t, 1, n.HeldBack())
	n.Swapped(0, 1)
	n.Effects()
	n.Flushed(0)
	n.Effects()
	n.SetPassive(true)
	n.Effects()
	n.Follow()
	n.Effects()
	require.NotPanics(t, func() { n.SetPassive(false) })
	n.Effects()
	n.Swapped(0, 1)
	n.Effects()
	for _, id := range ids {
		assert.NotNil(t, n.Job(&id))
	}
}

// The same with one job, that isn't held back: nothing panics, and the job comes when its queue is back.
func TestPromotionWithAUniqueJobAway(t *testing.T) {
	for _, flush := range []bool{false, true} {
		t.Run(map[bool]string{true: "flushed", false: "not flushed"}[flush], func(t *testing.T) {
			n, _, _ := node(dawn)
			id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("x"), Replicate: 1, Retry: 10, TTL: 6000,
				Unique: engine.Unique{Strategy: store.UniqueDuring, Busy: store.BusyWait, Keyed: true, Key: []byte("k")}})
			require.NoError(t, err)
			n.Effects()
			n.Swapped(0, 1)
			n.Effects()
			if flush {
				n.Flushed(0)
				n.Effects()
			}
			n.SetPassive(true)
			n.Effects()
			n.Follow()
			n.Effects()
			n.SetPassive(false)
			n.Effects()
			n.Swapped(0, 1)
			n.Effects()
			require.NotNil(t, n.Job(&id))
			var got []*store.Job
			for ms := int64(0); ms < 300_000 && len(got) == 0; ms += 100 {
				n.SetNow(dawn + ms)
				n.Tick()
				n.Effects()
				got = n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, false, nil)
				n.Effects()
			}
			assert.Len(t, got, 1, "deliveries in five minutes; held back: %d", n.HeldBack())
		})
	}
}

// A log's base has a job in database 0; then SWAPDB 0 1 and FLUSHDB. The state file of a clean shutdown has other parts of the job
// (LoadState): nothing may write to the wheel that the flush has freed.
func TestLoadStateOfAJobWhoseTimerIsGone(t *testing.T) {
	other, _, _ := node(dawn)
	id := addTo(t, other, "q", 1, 100)
	rec := append([]byte(nil), other.Job(&id).Record()...)
	got := other.Fetch([]*store.Queue{other.Queue([]byte("q"))}, 1, false, nil)
	j := other.SetWorker(got[0], []byte("ada"))
	state, parts := append([]byte(nil), j.StateRecord()...), append([]byte(nil), j.RawParts()...)

	n, k, _ := node(dawn)
	n.BeginLoading()
	q := n.NewQueueFor(nil)
	require.NoError(t, n.LoadRecord(q, rec))
	require.NoError(t, k.Adopt(q))
	n.Attached(q, []byte("q"), 0)
	n.Effects()
	n.Effects()
	n.Swapped(0, 1)
	n.Flushed(0)
	n.EndLoading()
	require.NoError(t, n.LoadState(state, parts))
	n.Settle(engine.Trust{Exact: true})
	require.NotPanics(t, func() { giveBack(n) })
}
