package engine_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// limitedQueues makes a node with queues that have a limit. Each has a job that was wanted and can't be had now.
func limitedQueues(t *testing.T, count int, limits engine.Limits) *engine.Node {
	n, _, _ := node(1000)
	n.SetPolicies(&engine.Policies{Generation: 1, Rated: true, LimitsOf: func([]byte) engine.Limits { return limits }})
	for i := range count {
		name := fmt.Append(nil, i)
		for range 2 {
			_, _, err := n.AddJob(&engine.Add{Queue: name, Replicate: 1, TTL: 100_000, Retry: 50_000})
			require.NoError(t, err)
		}
		require.Len(t, n.Fetch([]*store.Queue{n.Queue(name)}, 2, true, nil), 1)
		n.Effects()
	}
	require.Equal(t, count, n.LimitedQueues())
	return n
}

// The settings change while very many queues are limited. No tick takes long, and the queue whose limits have changed is served soon.
func TestSettingsChangeWithManyLimitedQueues(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const count, changes = 60_000, 7
	limits := engine.Limits{Rate: engine.Rate{Count: 1, Seconds: 3600}}
	n := limitedQueues(t, count, limits)
	changed := fmt.Append(nil, count-1)
	_, err := n.Wait([][]byte{changed}, new(bool))
	require.NoError(t, err)
	var took []time.Duration
	for i := range changes {
		n.SetPolicies(&engine.Policies{Generation: uint32(i + 2), Rated: true, LimitsOf: func(queue []byte) engine.Limits {
			if i == changes-1 && string(queue) == string(changed) {
				return engine.Limits{}
			}
			return limits
		}})
		n.PoliciesChanged()
		began := threadTime(t)
		n.Tick()
		took = append(took, threadTime(t)-began)
		n.Effects()
	}
	t.Log(took)
	assert.Less(t, median(took), 5*time.Millisecond)
	ticks := 0
	for ; n.Queue(changed).Len > 0; ticks++ {
		require.Less(t, ticks, 500)
		n.Tick()
		n.Effects()
	}
	t.Log("ticks:", ticks)
	assert.Equal(t, count-1, n.LimitedQueues())
}

// A slot of a queue with a very long name becomes free: the queue is found by the hash that the slot's name has.
func TestFreedSlotOfALongName(t *testing.T) {
	n, _, _ := node(1000)
	limits := engine.Limits{AtOnce: 1}
	n.SetPolicies(&engine.Policies{Generation: 1, Rated: true, LimitsOf: func([]byte) engine.Limits { return limits }})
	for _, name := range []string{strings.Repeat("a", 300), strings.Repeat("b", 300)} {
		for range 2 {
			_, _, err := n.AddJob(&engine.Add{Queue: []byte(name), Replicate: 1, TTL: 1000, Retry: 500})
			require.NoError(t, err)
		}
		got := n.Fetch([]*store.Queue{n.Queue([]byte(name))}, 1, true, nil)
		require.Len(t, got, 1)
		_, err := n.Wait([][]byte{[]byte(name)}, new(bool))
		require.NoError(t, err)
		n.Effects()
		id := got[0].ID
		n.SetNow(n.Now() + 10)
		n.Tick()
		n.Effects()
		require.EqualValues(t, 1, n.Queue([]byte(name)).Len)
		n.Ack(&id)
		n.SetNow(n.Now() + 2)
		n.Tick()
		n.Effects()
		assert.Zero(t, n.Queue([]byte(name)).Len)
	}
}

// A client gives back a job with RETRY 0, which stays out of its queue. That the job has no slot any more is logged.
func TestSlotOfAnAtMostOnceJobIsGivenBack(t *testing.T) {
	n, _, _ := node(1000)
	n.SetPolicies(&engine.Policies{Generation: 1, Rated: true, LimitsOf: func([]byte) engine.Limits { return engine.Limits{AtOnce: 1} }})
	_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, TTL: 1000})
	require.NoError(t, err)
	got := n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil)
	require.Len(t, got, 1)
	_, slotted := n.SlotOf(got[0])
	require.True(t, slotted)
	n.Effects()
	id := got[0].ID
	n.Nack(&id, &engine.Failure{})
	logged := false
	for _, e := range n.Effects() {
		if e.Kind == engine.LogState && e.Job.ID == id {
			logged = true
			_, slotted := n.SlotOf(e.Job)
			assert.False(t, slotted)
		}
	}
	assert.True(t, logged)
}
