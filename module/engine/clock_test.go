package engine_test

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// A step of the clock, either way, makes no node fail, and heartbeats go on.
func TestClockJumpsAreNoSilence(t *testing.T) {
	for name, jump := range map[string]int64{"back": -3_600_000, "ahead": 3_600_000} {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			id := wire.NodeID{1, 2, 3}
			n.Mesh().Up(id, "10.0.0.1:1", false)
			n.Tick()
			n.Effects()
			beats := func() (c int) {
				for _, e := range n.Effects() {
					if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.Heartbeat) {
						c++
					}
				}
				return c
			}
			now += jump
			for range 5 {
				now += 1000
				n.SetNow(now)
				n.Tick()
				assert.Equal(t, 1, beats())
				assert.Equal(t, membership.Well, n.Mesh().All()[0].Health)
			}
			for range 20 {
				now += 1000
				n.SetNow(now)
				n.Tick()
				n.Effects()
			}
			assert.Equal(t, membership.Suspected, n.Mesh().All()[0].Health, "silence is still silence")
		})
	}
}

// A wall clock that is set, either way, moves nothing that was to happen: retries,
// delays and heartbeats come when the monotonic clock says so, and nothing expires.
func TestASetClockMovesNothing(t *testing.T) {
	const hour, day = int64(3_600_000), int64(86_400_000)
	for _, step := range []int64{hour, day - hour, -hour, -day, -365 * day} {
		t.Run(time.Duration(step*1e6).String(), func(t *testing.T) {
			wall, even := int64(1_700_000_000_000), int64(0)
			n, _, _ := steadyNode(wall, func() int64 { return even })
			id := wire.NodeID{1, 2, 3}
			n.Mesh().Up(id, "10.0.0.1:1", false)
			add := func(queue string, a engine.Add) store.ID {
				a.Queue, a.Body, a.Replicate = []byte(queue), []byte("b"), 1
				got, _, err := n.AddJob(&a)
				require.NoError(t, err)
				return got
			}
			length := func(queue string) uint64 {
				q := n.Queue([]byte(queue))
				return q.Len
			}
			before := add("before", engine.Add{Retry: 5, TTL: 20, Delay: 8})
			taken := add("taken", engine.Add{Retry: 5, TTL: 20})
			require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("taken"))}, 1, true, nil), 1)
			n.Tick()
			n.Effects()

			wall += step
			n.SetNow(wall)
			add("after", engine.Add{Retry: 5, TTL: 20, Delay: 8})
			due := map[string]int64{}
			beats, next := 0, int64(0)
			for even < 12_000 {
				even += 10
				wall += 10
				last := n.Now()
				n.SetNow(wall)
				require.GreaterOrEqual(t, n.Now(), last)
				if n.Now() < next {
					continue
				}
				next = n.Tick()
				for _, e := range n.Effects() {
					if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.Heartbeat) {
						beats++
					}
				}
				for _, queue := range []string{"before", "taken", "after"} {
					if due[queue] == 0 && length(queue) == 1 {
						due[queue] = even
					}
				}
			}
			// A part of the time may be used to come back to the wall clock's time.
			assert.InDelta(t, 8000, due["before"], 600)
			assert.InDelta(t, 5000, due["taken"], 600, "a retry time, with its random error")
			assert.InDelta(t, 8000, due["after"], 600)
			assert.InDelta(t, 11, beats, 2)
			assert.NotNil(t, n.Job(&before))
			assert.NotNil(t, n.Job(&taken))
			assert.InDelta(t, 15_000/128, abs(step)-abs(n.Ahead()), 1000, "the node's time comes back to the clock's")
		})
	}
}

// A step of less than a second moves nothing either: a client has a job that runs alone for its retry
// time, but for the hundredth by which clocks may be wrong.
func TestASmallStepOfTheClockMovesNothing(t *testing.T) {
	for _, step := range []int64{25, 150, 626, 999, -25, -150, -626, -999} {
		for _, every := range []int64{1, 10, 50} { // ms between two calls
			wall, even := int64(1_700_000_000_000), int64(0)
			n, _, _ := steadyNode(wall, func() int64 { return even })
			_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 5, TTL: 20})
			require.NoError(t, err)
			q := n.Queue([]byte("q"))
			require.Len(t, n.Fetch([]*store.Queue{q}, 1, true, nil), 1)
			for even < 6000 && q.Len == 0 {
				even += every
				if wall += every; even == 2000 {
					wall += step
				}
				n.SetNow(wall)
				n.Tick()
				n.Effects()
			}
			assert.InDelta(t, 5000, even, 50+float64(every), "set by %d ms, called every %d ms", step, every)
		}
	}
}

// The node's time comes back to the clock's time at the same rate, however often the node is called.
func TestABusyNodesClockComesBack(t *testing.T) {
	for _, step := range []int64{-60_000, 60_000} {
		for _, every := range []int64{1, 10, 50, 99, 120, 1000} {
			even, wall := int64(0), int64(1_700_000_000_000)
			n, _, _ := steadyNode(wall, func() int64 { return even })
			wall += step
			for n.SetNow(wall); even < 3_600_000; n.SetNow(wall) {
				even += every
				wall += every
			}
			assert.InDelta(t, 60_000-3_600_000/128, abs(n.Ahead()), 10, "set by %d ms, called every %d ms", step, every)
		}
	}
}

// A clock that was plainly wrong is followed at once when it is put right.
func TestAClockThatIsPutRightIsFollowed(t *testing.T) {
	even := int64(0)
	n, _, _ := steadyNode(1_000_000, func() int64 { return even })
	n.Tick()
	even += 100
	n.SetNow(1_700_000_000_000)
	assert.Equal(t, int64(1_700_000_000_000), n.Now())
	assert.Zero(t, n.Ahead())
}

// A job that was saved before the clock was set back lives and waits no longer than
// its options say.
func TestAClockSetBackBeforeTheStartProlongsNothing(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	a := engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 5, TTL: 120, Delay: 20}
	id, _, err := n.AddJob(&a)
	require.NoError(t, err)
	rec := bytes.Clone(n.Job(&id).Record())

	now -= 3_600_000
	n, _, _ = node(now)
	n.BeginLoading()
	require.NoError(t, n.ApplyJob([]byte("q"), rec))
	n.EndLoading()
	n.Settle(engine.Trust{})
	n.Effects()
	j := n.Job(&id)
	assert.LessOrEqual(t, j.QTime, now+20_000)
	assert.LessOrEqual(t, j.ETime, now+180_000)
	// A job that is added now comes after it, and its delay counts.
	a.Delay = 2
	id, _, err = n.AddJob(&a)
	require.NoError(t, err)
	assert.Greater(t, n.Job(&id).CTime, j.CTime)
	assert.Equal(t, now+2000, n.Job(&id).QTime)
}

// Unique jobs live and wait no longer either: one with a delay, and one that was put off because its key was taken.
func TestAClockSetBackBeforeTheStartProlongsNoUniqueJob(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	a := engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 5, TTL: 86400, Delay: 20, Unique: engine.Unique{Strategy: store.UniqueBefore, Keyed: true, Key: []byte("k")}}
	delayed, _, err := n.AddJob(&a)
	require.NoError(t, err)
	a.Delay, a.Unique.Conflict, a.Unique.ConflictDelay = 0, store.ConflictReschedule, 40
	putOff, _, err := n.AddJob(&a)
	require.NoError(t, err)
	require.Equal(t, store.StateActive, n.Job(&putOff).State)
	records := [][]byte{bytes.Clone(n.Job(&delayed).Record()), bytes.Clone(n.Job(&putOff).Record())}

	now -= 3_600_000
	n, _, _ = node(now)
	n.BeginLoading()
	for _, rec := range records {
		require.NoError(t, n.ApplyJob([]byte("q"), rec))
	}
	n.EndLoading()
	n.Settle(engine.Trust{Exact: true})
	n.Effects()
	assert.InDelta(t, now+20_000, n.Job(&delayed).QTime, 1001)
	assert.InDelta(t, now+40_000, n.Job(&putOff).QTime, 1001)
}

// A creation time that is far ahead, as a restored value may have it, isn't
// followed: the times of new jobs go on from the clock's time, and never come round to 0.
func TestACreationTimeFarAheadIsNotFollowed(t *testing.T) {
	now := int64(1_700_000_000_000)
	for name, load := range map[string]func(n *engine.Node, k *keys, rec []byte){
		"loaded": func(n *engine.Node, _ *keys, rec []byte) {
			n.BeginLoading()
			require.NoError(t, n.ApplyJob([]byte("q"), rec))
			n.EndLoading()
			n.Settle(engine.Trust{})
		},
		"restored": func(n *engine.Node, k *keys, rec []byte) {
			q := n.NewQueueFor(nil)
			require.NoError(t, n.LoadRecord(q, rec))
			require.NoError(t, k.Adopt(q))
			require.Zero(t, n.Attached(q, []byte("q"), 0))
			n.SettleQueue(q, engine.Trust{})
		},
	} {
		for _, ctime := range []uint64{math.MaxUint64, math.MaxUint64 - 1, uint64(now+86_400_000) * 1_000_000} {
			n, _, _ := node(now)
			a := engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 0, TTL: 120}
			id, _, err := n.AddJob(&a)
			require.NoError(t, err)
			n.Job(&id).CTime = ctime
			rec := bytes.Clone(n.Job(&id).Record())

			n, k, _ := node(now)
			load(n, k, rec)
			n.Effects()
			require.Equal(t, ctime, n.Job(&id).CTime)
			assert.True(t, n.Job(&id).Uncertain())
			assert.Equal(t, ctime, n.LastCTime(), "what is logged of those that became uncertain is for all of them")
			last := uint64(0)
			for range 3 {
				id, _, err := n.AddJob(&a)
				require.NoError(t, err)
				assert.Greater(t, n.Job(&id).CTime, last, name)
				last = n.Job(&id).CTime
			}
			assert.Less(t, last, uint64(now+1)*1_000_000, name)
		}
	}
}

func abs(v int64) int64 { return max(v, -v) }
