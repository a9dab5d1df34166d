package engine_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// served takes the effects, and returns the clients that are given jobs, and the queues and bodies of these jobs.
func served(n *engine.Node) (clients []any, bodies []string) {
	for _, e := range n.Effects() {
		if e.Kind == engine.Serve {
			clients, bodies = append(clients, e.Waiter.Client), append(bodies, string(e.Job.Queue.NameBytes())+" "+string(e.Job.Body()))
		}
	}
	return clients, bodies
}

// A job is unblocked, given to a client, and ends, while the same command has further IDs. Its
// client gets it, and the next client gets another job. A new job doesn't take its memory meanwhile.
func TestServedAndEndedInOneCall(t *testing.T) {
	for name, end := range map[string]func(*engine.Node, *store.ID){
		"ack":     func(n *engine.Node, id *store.ID) { n.Ack(id) },
		"fastack": func(n *engine.Node, id *store.ID) { n.FastAck(id) },
		"delete":  func(n *engine.Node, id *store.ID) { n.Delete(id) },
		"cancel":  func(n *engine.Node, id *store.ID) { n.CancelJob(id) },
	} {
		t.Run(name, func(t *testing.T) {
			n, _, _ := node(dawn)
			add := func(queue, body string, after ...store.ID) store.ID {
				id, _, err := n.AddJob(&engine.Add{Queue: []byte(queue), Body: []byte(body), Replicate: 1, TTL: 1000, Members: engine.Members{After: after, OnDead: engine.OnDeadRun}})
				require.NoError(t, err)
				return id
			}
			first, second := add("parents", ""), add("parents", "")
			a, b := add("kids", "aaaa", first), add("kids", "bbbb", second)
			for _, client := range []int{1, 2} {
				_, err := n.Wait([][]byte{[]byte("kids")}, client)
				require.NoError(t, err)
			}
			n.Effects()
			for _, id := range []store.ID{first, a, second} {
				end(n, &id)
			}
			c := add("other", "cccc")
			clients, bodies := served(n)
			assert.Equal(t, []any{1, 2}, clients)
			assert.Equal(t, []string{"kids aaaa", "kids bbbb"}, bodies)
			assert.Nil(t, n.Job(&a))
			assert.NotNil(t, n.Job(&b))
			assert.NotNil(t, n.Job(&c))
			giveBack(n)
		})
	}
}

// A job falls due, is given to a client, and is evicted, all in one tick.
func TestServedAndEvictedInOneTick(t *testing.T) {
	n, _, alloc := node(dawn)
	empty := alloc.Bytes
	body := bytes.Repeat([]byte("b"), 100_000)
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: body, Replicate: 1, TTL: 1000, Delay: 2})
	require.NoError(t, err)
	_, err = n.Wait([][]byte{[]byte("q")}, 1)
	require.NoError(t, err)
	n.Effects()
	n.SetMemory(0.97)
	n.SetNow(dawn + 2001)
	n.Tick()
	require.Nil(t, n.Job(&id), "it is evicted")
	_, bodies := served(n)
	assert.Equal(t, []string{"q " + string(body)}, bodies)
	giveBack(n)
	assert.Less(t, alloc.Bytes, empty+len(body))
}

// A queue goes before effects that name it are taken. The memory of the queue and its job is given
// back later.
func TestTouchedQueueThatHasGone(t *testing.T) {
	n, k, alloc := node(dawn)
	empty := alloc.Blocks()
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("a queue"), Replicate: 1, TTL: 1000})
	require.NoError(t, err)
	require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("a queue"))}, 1, false, nil), 1)
	n.Effects()
	n.SetMemory(0.97)
	require.NoError(t, n.HasRoom())
	require.Nil(t, n.Job(&id), "it is evicted")
	assert.True(t, n.HasEffects())
	k.Drop([]*store.Queue{n.Queue([]byte("a queue"))})
	n.Tick()
	var touched []string
	for _, e := range n.Effects() {
		if e.Kind == engine.Touched {
			touched = append(touched, string(e.Queue.NameBytes()))
		}
	}
	assert.Equal(t, []string{"a queue"}, touched)
	assert.False(t, n.HasEffects())
	giveBack(n)
	assert.LessOrEqual(t, alloc.Blocks(), empty+2)
}
