package engine_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
	"jobmesh/module/wire"
)

// Whatever a restored value says, if the node accepts it, the node also accepts what it saves of the job later: otherwise no server could load
// its own data. And no token in it makes the tokens of other locks greater than what anybody can read.
func TestWhatIsSavedOfARestoredJobCanBeLoaded(t *testing.T) {
	reader := store.New(storetest.New(), 1, 0)
	box := reader.NewQueue([]byte("q"), 0)
	rapid.Check(t, func(t *rapid.T) {
		now := int64(dawn)
		n, k, _ := node(now)
		mate := wire.NodeID{1, 2, 3}
		mesh := rapid.Bool().Draw(t, "mesh")
		if mesh {
			n, k = paired(now, mate)
		}
		retry := rapid.SampledFrom([]int64{0, 5, 300}).Draw(t, "retry")
		strategy := rapid.SampledFrom([]uint8{0, store.UniqueBefore, store.UniqueDuring, store.UniqueUntil, store.UniqueBoth}).Draw(t, "strategy")
		maker, _, _ := node(now)
		id, _, err := maker.AddJob(&engine.Add{
			Queue: []byte("q"), Replicate: 1, Retry: retry, TTL: 86400, Delay: rapid.SampledFrom([]int64{0, 100}).Draw(t, "delay"),
			Unique: engine.Unique{Strategy: strategy, Keyed: true, Key: []byte("k")},
		})
		require.NoError(t, err)
		j := maker.Job(&id)
		if strategy > 0 {
			token := rapid.SampledFrom([]uint64{0, 7, 1 << 62, math.MaxInt64 - 1, math.MaxInt64})
			j.Unique().SetWait(token.Draw(t, "wait"))
			j.Unique().SetRun(token.Draw(t, "run"))
		}
		rec := bytes.Clone(j.Record())
		if rapid.Bool().Draw(t, "held") {
			copied, err := reader.JobFromRecord(rec)
			require.NoError(t, err)
			require.True(t, reader.Register(box, copied))
			copied, _ = reader.AddHolder(copied, uint64(mate.Node()))
			rec = bytes.Clone(copied.Record())
			reader.Remove(copied)
		}
		if n := rapid.IntRange(0, 3).Draw(t, "extras"); n > 0 {
			made, err := reader.JobFromRecord(rec)
			require.NoError(t, err)
			require.True(t, reader.Register(box, made))
			for range n {
				tag := rapid.SampledFrom([]store.Tag{store.TagMoved, store.TagFailure, store.TagDead, store.TagAsleep, store.TagPolicy, store.TagTries, store.TagLife, store.TagPriority, store.TagWorker, store.TagLease, store.TagLapses, store.TagMaxLapses}).Draw(t, "tag")
				value := rapid.SliceOfN(rapid.Uint8(), 0, 45).Draw(t, "value")
				if tag == store.TagAsleep && strategy > 0 && rapid.Bool().Draw(t, "real") {
					value = bytes.Clone(j.Unique())
				}
				if tag == store.TagMoved && rapid.Bool().Draw(t, "dead") {
					value = []byte{3, 0, 0, 0}
				}
				made, _ = reader.SetExtra(made, tag, value)
			}
			rec = bytes.Clone(made.Record())
			reader.Remove(made)
		}
		rec[1], rec[2] = rapid.Uint8Range(0, 3).Draw(t, "state"), rapid.Uint8().Draw(t, "flags")

		q := n.NewQueueFor(nil)
		if n.LoadRecord(q, rec) != nil {
			return
		}
		require.NoError(t, k.Adopt(q))
		require.Zero(t, n.Restored(q, []byte("q"), 0))
		check := func() {
			n.Effects()
			if j := n.Job(&id); j != nil {
				again, err := reader.JobFromRecord(bytes.Clone(j.Record()))
				require.NoError(t, err)
				reader.FreeJob(again)
			}
			for l := n.Locks().Table().Head; l != nil; l = l.Next {
				_, err := store.ParseLock(bytes.Clone(l.Record()))
				require.NoError(t, err)
				require.Less(t, l.Token, uint64(1<<62))
			}
		}
		trust := func(of string) engine.Trust {
			return engine.Trust{Exact: rapid.Bool().Draw(t, of+" exact"), Same: rapid.Bool().Draw(t, of+" same")}
		}
		n.SettleQueue(q, trust("first"))
		check()
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 7:
				to := rapid.SampledFrom([][]byte{nil, []byte("q"), []byte("x")}).Draw(t, "to")
				_, _ = n.Move(&id, &engine.Move{To: to, Ranks: rapid.Bool().Draw(t, "ranks"), Priority: 3})
			case 0:
				n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, false, nil)
			case 1:
				n.Enqueue(&id)
			case 2:
				n.Nack(&id, &engine.Failure{Delay: 1000, HasDelay: true, Reason: []byte("r")})
			case 3:
				n.Nack(&id, &engine.Failure{Dead: true})
			case 4:
				now += 10_000
				n.SetNow(now)
				n.Tick()
			case 5:
				n.BeginLoading()
				n.EndLoading()
				n.Settle(trust("again"))
			case 6:
				_, _, err := n.AddJob(&engine.Add{Queue: []byte("other"), Replicate: 1, Retry: 5, TTL: 100, Unique: engine.Unique{Strategy: store.UniqueUntil, Keyed: true, Key: []byte("z")}})
				_ = err
			}
			check()
		}
	})
}
