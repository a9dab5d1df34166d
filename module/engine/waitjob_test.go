package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// Clients that wait for one job are told of its end a part at a time, one call after another, and not one round after another.
func TestManyClientsWaitForOneJob(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	const clients = 4500
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600})
	require.NoError(t, err)
	n.Effects()
	for i := range clients {
		p, answer := n.WaitJobs([]store.ID{id}, false, 0)
		require.Nil(t, answer)
		n.Tie(p, i)
		n.Effects()
	}
	require.True(t, n.Finish(&id, &engine.Result{Has: true, Data: []byte("r"), HasKeep: true, Keep: 100}))
	told := map[any]bool{}
	for calls := 0; len(told) < clients; calls++ {
		require.Less(t, calls, clients, "a client waits on")
		for _, e := range n.Effects() {
			if e.Kind == engine.AnswerMesh {
				assert.Equal(t, []engine.JobEnd{{ID: id, Outcome: engine.OutcomeDone, HasDetail: true, Detail: []byte("r")}}, e.Answer.Ends)
				told[e.Client] = true
			}
		}
		n.SetNow(now)
		n.Tick()
	}
	assert.Zero(t, n.WaitingForJobs())
}

// A job that ends for many clients with large results is told of without holding more than one answer may have.
func TestOutcomesOfManyJobsAreToldBitByBit(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	var ids []store.ID
	for range 50 {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600})
		require.NoError(t, err)
		ids = append(ids, id)
	}
	n.Effects()
	p, answer := n.WaitJobs(ids, false, 0)
	require.Nil(t, answer)
	n.Tie(p, "client")
	n.Effects()
	result := make([]byte, engine.MaxResult)
	for i := range ids {
		require.True(t, n.Finish(&ids[i], &engine.Result{Has: true, Data: result}))
	}
	n.Effects()
	known := func() (count int) {
		for _, e := range n.JobEndsSoFar(p) {
			if e.HasDetail {
				count++
			}
		}
		return count
	}
	first := known()
	assert.Greater(t, first, 0)
	assert.Less(t, first, 10)
	for calls := 0; n.WaitingForJobs() > 0; calls++ {
		require.Less(t, calls, 100)
		n.SetNow(now)
		n.Tick()
		for _, e := range n.Effects() {
			if e.Kind == engine.AnswerMesh {
				require.Len(t, e.Answer.Ends, len(ids))
				for i := range e.Answer.Ends {
					assert.Len(t, e.Answer.Ends[i].Detail, engine.MaxResult)
				}
			}
		}
	}
}
