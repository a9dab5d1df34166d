package engine_test

import (
	"slices"
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

// Clients that wait hold a bounded number of bytes of results, each of them and all together. The rest is looked up when they are answered.
func TestResultsThatWaitsHoldAreBounded(t *testing.T) {
	now := int64(1_700_000_000_000)
	const results, each = 40, 32               // each: what one client holds
	for _, timeout := range []int64{0, 1000} { // with the second one the results are kept for longer than the clients may wait
		for _, deleted := range []bool{false, true} {
			n, _, _ := node(now)
			add := func() store.ID {
				id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600})
				require.NoError(t, err)
				n.Effects()
				return id
			}
			var ids []store.ID
			result := make([]byte, engine.MaxResult)
			for range results {
				ids = append(ids, add())
				require.True(t, n.Finish(&ids[len(ids)-1], &engine.Result{Has: true, Data: result}))
				n.Effects()
			}
			last := add()
			ids = append(ids, last)
			for i := range 6 {
				p, answer := n.WaitJobs(ids, false, timeout)
				require.Nil(t, answer)
				n.Tie(p, i)
				n.Effects()
			}
			for i := range results {
				if deleted {
					n.Delete(&ids[i])
					n.Effects()
				}
			}
			require.True(t, n.Finish(&last, &engine.Result{Has: true, Data: []byte("r")}))
			var known []int
			for calls := 0; n.WaitingForJobs() > 0; calls++ {
				require.Less(t, calls, 100)
				for _, e := range n.Effects() {
					if e.Kind == engine.AnswerMesh {
						count := 0
						for i := range e.Answer.Ends {
							assert.Equal(t, engine.OutcomeDone, e.Answer.Ends[i].Outcome)
							if e.Answer.Ends[i].HasDetail {
								count++
							}
						}
						known = append(known, count)
					}
				}
				n.SetNow(now)
				n.Tick()
			}
			for _, e := range n.Effects() {
				assert.NotEqual(t, engine.AnswerMesh, e.Kind)
			}
			want := map[bool][]int{false: {41, 41, 41, 41, 41, 41}, true: {each + 1, each + 1, each + 1, each + 1, 1, 1}}[deleted]
			if deleted && timeout > 0 {
				want = []int{1, 1, 1, 1, 1, 1}
			}
			slices.SortFunc(known, func(a, b int) int { return b - a })
			assert.Equal(t, want, known, "timeout %d, deleted %v", timeout, deleted)
			assert.Zero(t, n.HeldByWaits())
		}
	}
}

// A job that is deleted, alone, with its queue, or with all jobs, is unknown at once for those that wait for it.
func TestDeletedJobsAreToldOf(t *testing.T) {
	now := int64(1_700_000_000_000)
	for name, end := range map[string]func(*engine.Node, *keys, store.ID){
		"DELJOB":   func(n *engine.Node, _ *keys, id store.ID) { require.True(t, n.Delete(&id)) },
		"DEL":      func(n *engine.Node, k *keys, _ store.ID) { k.Drop([]*store.Queue{n.Queue([]byte("q"))}) },
		"FLUSHALL": func(n *engine.Node, _ *keys, _ store.ID) { n.Flushed(-1) },
		"FLUSH":    func(n *engine.Node, _ *keys, _ store.ID) { n.Flush() },
	} {
		n, k, _ := node(now)
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600})
		require.NoError(t, err)
		n.Effects()
		p, answer := n.WaitJobs([]store.ID{id}, false, 0)
		require.Nil(t, answer)
		n.Tie(p, "client")
		n.Effects()
		end(n, k, id)
		var told []engine.JobEnd
		for i := range int64(5) {
			for _, e := range n.Effects() {
				if e.Kind == engine.AnswerMesh {
					told = e.Answer.Ends
				}
			}
			n.SetNow(now + i)
			n.Tick()
		}
		assert.Equal(t, []engine.JobEnd{{ID: id, Outcome: engine.OutcomeUnknown}}, told, name)
	}
}
