package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// QFLUSH without ALL: a job that a client works on stays, also if it is given back while the walk goes on; and a job that comes
// into the queue after the reply (MOVEJOB, a dead letter) stays.
func TestAFlushSparesWhatComesLater(t *testing.T) {
	n, _, _ := node(dawn)
	add := func(q string) store.ID {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte(q), Body: []byte("x"), Replicate: 1, Retry: 100, TTL: 6000})
		require.NoError(t, err)
		return id
	}
	worked := add("q")
	other := add("other")
	for range 20000 {
		add("q")
	}
	got := n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, false, nil)
	require.Equal(t, worked, got[0].ID)
	n.Effects()
	_, now := n.FlushQueue([]byte("q"), false, false) // as in MULTI: the reply comes at once
	require.NotNil(t, now)
	n.Effects()
	require.True(t, n.Nack(&worked, &engine.Failure{}))
	_, err := n.Move(&other, &engine.Move{To: []byte("q")})
	require.NoError(t, err)
	n.Effects()
	for i := int64(1); i < 2000; i++ {
		n.SetNow(dawn + i)
		n.Tick()
		n.Effects()
	}
	assert.Equal(t, uint64(2), n.Jobs())
	assert.NotNil(t, n.Job(&worked), "a client worked on it")
	assert.NotNil(t, n.Job(&other), "it was moved into the queue after the answer")
}

// DEADTTL 0: the job ends instead of becoming a dead letter, and jobs_dropped counts it; also by ONDEAD dead.
func TestOnDeadWithoutDeadLetters(t *testing.T) {
	n, _, _ := node(dawn)
	parent, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("x"), Replicate: 1, Retry: 100, TTL: 6000})
	require.NoError(t, err)
	child, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("x"), Replicate: 1, Retry: 100, TTL: 6000,
		Members: engine.Members{After: []store.ID{parent}, OnDead: engine.OnDeadDead}, Policy: &engine.Policy{Set: engine.SetDeadTTL}})
	require.NoError(t, err)
	n.Effects()
	n.CancelJob(&parent)
	n.Effects()
	assert.Zero(t, n.Stats.Dead)
	assert.EqualValues(t, 1, n.Stats.Dropped)
	assert.Nil(t, n.Job(&child))
}

// BACKOFF near the end of a job's life: each NACK brings the job back at once.
func TestBackoffNearTheEndOfALife(t *testing.T) {
	n, _, _ := node(dawn)
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("x"), Replicate: 1, Retry: 300, TTL: 600,
		Policy: &engine.Policy{Set: engine.SetBackoff, Base: 60, Max: 600}})
	require.NoError(t, err)
	n.Effects()
	times := 0
	for ms := int64(0); ms < 600_000; ms += 100 {
		n.SetNow(dawn + ms)
		n.Tick()
		n.Effects()
		if got := n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, false, nil); len(got) > 0 {
			times++
			n.Nack(&id, &engine.Failure{})
			n.Effects()
		}
	}
	assert.Less(t, times, 25, "deliveries in ten minutes, by a worker that needs 100 ms")
}
