package engine_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// promotable makes a node with jobs of every kind in many queues, one of which is large.
func promotable(t *testing.T) (*engine.Node, *keys, []store.ID) {
	n, k, _ := node(1_700_000_000_000)
	var ids []store.ID
	add := func(queue string, change func(*engine.Add)) {
		a := engine.Add{Queue: []byte(queue), Body: []byte("b"), Replicate: 1, Retry: 100, TTL: 86400}
		change(&a)
		id, _, err := n.AddJob(&a)
		require.NoError(t, err, "%v", a)
		ids = append(ids, id)
		n.Effects()
	}
	kinds := []func(*engine.Add){
		func(a *engine.Add) {},
		func(a *engine.Add) { a.Retry = 0 },
		func(a *engine.Add) { a.Delay = 50 },
		func(a *engine.Add) { a.Retry, a.Delay = 0, 50 },
		func(a *engine.Add) { a.Deferred = true },
		func(a *engine.Add) { a.After = ids[len(ids)-1:] },
		func(a *engine.Add) {
			a.Unique = engine.Unique{Strategy: store.UniqueUntil, Keyed: true, Key: fmt.Append(nil, "k", len(ids))}
		},
		func(a *engine.Add) { a.Unique = engine.Unique{Strategy: store.UniqueDuring, Mesh: true} },
		func(a *engine.Add) { a.Retry, a.Unique = 0, engine.Unique{Strategy: store.UniqueDuring} },
	}
	for i := range 900 {
		queue := fmt.Sprint("q", i%50)
		if i%2 == 0 {
			queue = "large"
		}
		add(queue, kinds[i/2%len(kinds)])
	}
	for i := range 20 {
		name := fmt.Append(nil, "q", i)
		for _, j := range n.Fetch([]*store.Queue{n.Queue(name)}, 3, false, nil) {
			if id := j.ID; i%4 == 0 {
				n.Effects()
				n.Ack(&id)
			}
		}
		n.Effects()
	}
	n.Fetch([]*store.Queue{n.Queue([]byte("large"))}, 100, false, nil)
	n.Effects()
	return n, k, ids
}

// picture returns what a node knows of jobs, and of their queues and locks.
func picture(n *engine.Node, ids []store.ID) (lines []string) {
	queues := map[string]bool{}
	for i := range ids {
		j := n.Job(&ids[i])
		if j == nil {
			lines = append(lines, fmt.Sprint(i, " gone"))
			continue
		}
		queues[string(j.Queue.NameBytes())] = true
		locks := ""
		if j.Unique() != nil {
			locks = fmt.Sprint(n.HasLock(j, store.LockWait), n.HasLock(j, store.LockRun), n.Token(j))
		}
		lines = append(lines, fmt.Sprint(i, string(j.Queue.NameBytes()), j.State, j.Flags, j.Place, j.QTime, locks))
	}
	for i := range 60 {
		for _, name := range []string{fmt.Sprint("q", i), "large", "new"} {
			if q := n.Queue([]byte(name)); q != nil {
				lines = append(lines, fmt.Sprint(name, q.Len, q.Held.Len, q.HeldBack, q.Working.Len, q.Flags))
			}
		}
	}
	return append(lines, fmt.Sprint(len(queues), n.Queues(), n.HeldBack()))
}

// A replica is promoted bit by bit. The result is the same as in one go, whatever is done to
// its queues in between, and whether or not it has followed a master.
func TestPromotionBitByBit(t *testing.T) {
	rename := func(t *testing.T, n *engine.Node, k *keys, from, to string) {
		q := n.Queue([]byte(from))
		box := k.boxes[q]
		n.Unlinked(box, q)
		require.Same(t, q, n.Reclaim(box))
		q.Box = box
		n.Attached(q, []byte(to), 0)
	}
	events := map[string]func(*testing.T, *engine.Node, *keys){
		"nothing": func(*testing.T, *engine.Node, *keys) {},
		"rename":  func(t *testing.T, n *engine.Node, k *keys) { rename(t, n, k, "large", "new") },
		"rename another": func(t *testing.T, n *engine.Node, k *keys) {
			rename(t, n, k, "q7", "new")
		},
		"delete": func(t *testing.T, n *engine.Node, k *keys) {
			for _, name := range []string{"q3", "large", "q49"} {
				q := n.Queue([]byte(name))
				n.Unlinked(k.boxes[q], q)
				delete(k.boxes, q)
			}
		},
		"swap": func(_ *testing.T, n *engine.Node, _ *keys) {
			n.Swapped(0, 1)
			n.Swapped(1, 0)
		},
		"demote": func(_ *testing.T, n *engine.Node, _ *keys) { n.SetPassive(true) },
		"follow": func(_ *testing.T, n *engine.Node, _ *keys) {
			n.SetPassive(true)
			n.Follow()
		},
	}
	for name, event := range events {
		for _, follows := range []bool{false, true} {
			t.Run(fmt.Sprint(name, follows), func(t *testing.T) {
				passive := func() (*engine.Node, *keys, []store.ID) {
					n, k, ids := promotable(t)
					n.SetPassive(true)
					if follows {
						n.Follow()
					}
					n.Effects()
					return n, k, ids
				}
				n, k, ids := passive()
				event(t, n, k)
				n.Effects()
				uncertain := n.SetPassive(false)
				n.Effects()
				want := picture(n, ids)
				at := 0 // the event comes before this call
				for came := true; came; at++ {
					n, k, again := passive()
					require.Equal(t, ids, again)
					came = false
					calls, doubts := 0, 0
					for {
						if calls == at {
							event(t, n, k)
							n.Effects()
							came = true
						}
						calls++
						done, d := n.Promote(func() bool { return true })
						n.Effects()
						if done {
							doubts = d
							break
						}
						require.True(t, n.Passive())
						n.Tick()
						n.Effects()
					}
					if !came {
						break
					}
					if name == "delete" { // some became uncertain before they were deleted
						assert.GreaterOrEqual(t, doubts, uncertain)
					} else {
						assert.Equal(t, uncertain, doubts)
					}
					for i, line := range picture(n, ids) {
						require.Equal(t, want[i], line, "event before call %d of %d", at, calls)
					}
				}
				assert.Greater(t, at, 10)
			})
		}
	}
}

// A client that was served goes, and the server becomes a replica before it notices: the
// replica changes nothing of the job, because its master tells it of the job.
func TestUndeliverAtAReplica(t *testing.T) {
	n, _, _ := node(dawn)
	_, err := n.Wait([][]byte{[]byte("q")}, "c1")
	require.NoError(t, err)
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 0, TTL: 600})
	require.NoError(t, err)
	served := false
	for _, e := range n.Effects() {
		served = served || e.Kind == engine.Serve
	}
	require.True(t, served)
	n.SetPassive(true)
	n.Effects()
	n.Follow()
	n.Tick()
	n.Effects()
	n.Undeliver(engine.DeliveryOf(n.Job(&id))) // as later() in package commands does
	for _, e := range n.Effects() {
		require.NotEqual(t, engine.LogState, e.Kind, "a replica logs a change of its own")
	}
	require.Zero(t, n.Queue([]byte("q")).Len)
}

// A node is told of the end of a job that it doesn't know, becomes a replica, and hears from its master that the
// job waits there. It has the job in its queue when it is promoted.
func TestAJobOfWhichAReplicaKnewOnlyTheEnd(t *testing.T) {
	now := int64(1_700_000_000_000)
	other, _, _ := node(now)
	id, _, err := other.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 100, TTL: 86400})
	require.NoError(t, err)
	record := slices.Clone(other.Job(&id).Record())

	n, _, _ := votingMesh(t, now, 2)
	n.Ack(&id)
	require.NotNil(t, n.Job(&id), "it tells the others")
	n.Effects()
	n.SetPassive(true)
	n.Follow()
	require.NoError(t, n.ApplyJob([]byte("q"), record))
	n.SetPassive(false)
	n.Effects()
	require.Equal(t, "q", string(n.Job(&id).Queue.NameBytes()))
	now += 300_000
	n.SetNow(now)
	n.Tick()
	assert.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil), 1)
}
