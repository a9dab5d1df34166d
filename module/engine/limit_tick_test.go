package engine_test

import (
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Jobs of a key with LIMIT 256 cost a tick no more than others: looking at their slots counts.
func TestATickThatEndsJobsWithManySlots(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, limit := range []int{1, 256} {
		now := int64(1_700_000_000_000)
		n, _, _ := steadyNode(now, func() int64 { return now })
		peer := wire.NodeID{0: 'b', 5: 'c'}
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		n.SetFeatures(peer, engine.Features{Results: true, Limits: true, Slots: true})
		n.Effects()
		const count = 3000
		for i := range count {
			id := store.ID{0: 'b', 8: 1, 23: 3}
			binary.BigEndian.PutUint32(id[10:], uint32(i))
			u := store.AppendUnique(nil, &store.UniqueBy{
				Strategy: store.UniqueBoth, Flags: store.UniqueKeyed, Busy: store.BusyWait, Conflict: store.ConflictDrop, Limit: limit, Key: binary.BigEndian.AppendUint32(nil, uint32(i/200)),
			})
			m := wire.Message{Kind: wire.ReplJob, Flags: wire.NoReply, ID: wire.JobID(id), Holders: []wire.Node{peer.Node()}, Queue: []byte("q"), Job: wire.Job{
				CTime: uint64(now) * 1_000_000, Left: 60_000, Retry: 3600, Repl: 2, Body: []byte("b"), Extras: store.AppendExtra(nil, store.TagUnique, u),
			}}
			require.NoError(t, n.Receive(peer, m.Append(nil)))
			n.Effects()
		}
		now += 61_000
		n.SetNow(now)
		worst := time.Duration(0)
		for ticks := 0; n.Jobs() > 0; ticks++ {
			require.Less(t, ticks, 5000)
			began := threadTime(t)
			n.Tick()
			worst = max(worst, threadTime(t)-began)
			n.Effects()
			now++
			n.SetNow(now)
		}
		t.Logf("LIMIT %d: %v at most", limit, worst)
		assert.Less(t, worst, 15*time.Millisecond, "LIMIT %d", limit)
	}
}
