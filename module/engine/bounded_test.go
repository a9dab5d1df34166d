package engine_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Work on very many at once is cut into slices: no call leaves more than so many effects
// of a kind, for each stands for about a microsecond of the server's time.
const mostAtOnce = 1000

// counted counts a call's effects by kind.
func counted(t *testing.T, n *engine.Node) map[engine.EffectKind]int {
	t.Helper()
	count := map[engine.EffectKind]int{}
	for _, e := range n.Effects() {
		count[e.Kind]++
	}
	for kind, c := range count {
		require.LessOrEqual(t, c, mostAtOnce, "effects of kind %d", kind)
	}
	return count
}

// family makes a deferred job that lives for 600 s, and those that it blocks.
func family(t *testing.T, n *engine.Node, count int) (root store.ID) {
	root, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600, Members: engine.Members{Deferred: true}})
	require.NoError(t, err)
	for range count {
		_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 6000, Members: engine.Members{BlockedBy: &root}})
		require.NoError(t, err)
		n.Effects()
	}
	return root
}

// saved is all jobs as they lie on disk.
func saved(n *engine.Node) (records [][]byte) {
	var jobs []*store.Job
	for cursor := uint64(0); ; {
		jobs = jobs[:0]
		cursor = n.ScanJobs(cursor, &jobs)
		for _, j := range jobs {
			records = append(records, bytes.Clone(j.Record()))
		}
		if cursor == 0 {
			return records
		}
	}
}

func loaded(t *testing.T, now int64, records [][]byte) *engine.Node {
	n, _, _ := node(now)
	n.BeginLoading()
	for _, rec := range records {
		require.NoError(t, n.ApplyJob([]byte("q"), rec))
	}
	n.EndLoading()
	n.Settle(engine.Trust{Logged: true})
	n.Effects()
	return n
}

// The end of a job for which very many wait is followed bit by bit, whatever ends it. A
// restart half way goes on: those that fall all fall, those that are let go all are.
func TestTheEndOfAJobThatVeryManyWaitFor(t *testing.T) {
	const children = 5000
	for name, end := range map[string]func(n *engine.Node, root *store.ID, now *int64){
		"expires":   func(n *engine.Node, root *store.ID, now *int64) { *now += 601_000 },
		"cancelled": func(n *engine.Node, root *store.ID, now *int64) { n.CancelJob(root) },
		"deleted":   func(n *engine.Node, root *store.ID, now *int64) { n.Delete(root) },
	} {
		for _, released := range []bool{false, true} {
			for _, crash := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, released %v, restarted %v", name, released, crash), func(t *testing.T) {
					now := int64(1_700_000_000_000)
					n, _, _ := node(now)
					root := family(t, n, children)
					if released {
						_, _, err := n.Release(&root, nil, false, false)
						require.NoError(t, err)
					}
					n.Effects()
					before := n.Jobs()
					end(n, &root, &now)
					counted(t, n)
					for range 3 {
						now++
						n.SetNow(now)
						n.Tick()
						counted(t, n)
					}
					assert.NotNil(t, n.Job(&root), "it stays until all are followed")
					if !released {
						assert.Less(t, n.Jobs(), before)
						assert.NotZero(t, n.Jobs())
					}
					if crash {
						n = loaded(t, now, saved(n))
					}
					ticks := 0
					for ; n.Job(&root) != nil && ticks < 200; ticks++ {
						now += 10
						n.SetNow(now)
						n.Tick()
						counted(t, n)
					}
					for range 50 {
						now += 10
						n.SetNow(now)
						n.Tick()
						counted(t, n)
					}
					assert.Nil(t, n.Job(&root))
					if released {
						assert.Equal(t, uint64(children), n.Jobs())
						assert.Equal(t, uint64(children), n.Queue([]byte("q")).Len)
					} else {
						assert.Zero(t, n.Jobs())
					}
				})
			}
		}
	}
}

// Where only this node's copy of a job goes, as other nodes have copies, those that wait
// for it are met bit by bit as well: those that fall with it, at whatever depth, and those
// that have to ask what became of it.
func TestTheEvictionOfAJobThatVeryManyWaitFor(t *testing.T) {
	const children = 5000
	for name, c := range map[string]struct {
		wait func(root, last *store.ID) engine.Members
		fall bool
	}{
		"blocked":   {func(root, _ *store.ID) engine.Members { return engine.Members{BlockedBy: root} }, true},
		"in a line": {func(_, last *store.ID) engine.Members { return engine.Members{BlockedBy: last, Deferred: true} }, true},
		"after":     {func(root, _ *store.ID) engine.Members { return engine.Members{After: []store.ID{*root}} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			n.PeerUp(wire.NodeID{1, 2, 3}, "10.0.0.1:1", false)
			add := func(m engine.Members) store.ID {
				id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 10, TTL: 6000, Members: m})
				require.NoError(t, err)
				n.Effects()
				return id
			}
			root := add(engine.Members{Deferred: true})
			last := root
			var ids []store.ID
			for range children {
				last = add(c.wait(&root, &last))
				ids = append(ids, last)
			}
			require.Positive(t, n.Job(&root).Holders())
			// met counts those that have fallen, or are about to ask.
			met := func() (count int) {
				for i := range ids {
					if j := n.Job(&ids[i]); j == nil || j.QTime != 0 {
						count++
					}
				}
				return count
			}
			require.Zero(t, met())
			require.True(t, n.Delete(&root))
			counted(t, n)
			assert.Nil(t, n.Job(&root))
			before := 0
			for ticks := 0; ticks < 100 && before < children; ticks++ {
				now++
				n.SetNow(now)
				count := met()
				assert.LessOrEqual(t, count-before, mostAtOnce)
				assert.Greater(t, count, before)
				before = count
				n.Tick()
				counted(t, n)
			}
			assert.Equal(t, children, before)
			if c.fall {
				assert.Zero(t, n.Jobs())
				assert.Zero(t, n.Ties())
			} else {
				assert.Equal(t, uint64(children), n.Jobs())
				assert.Equal(t, uint64(children), n.Ties())
			}
		})
	}
}

// Clients that wait are released bit by bit, where there are very many of them, and so
// are those who wait for very many queues; whoever comes meanwhile isn't one of them.
func TestVeryManyWaitsEnd(t *testing.T) {
	const queues = 5000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	var names [][]byte
	for i := range queues {
		name := []byte(fmt.Sprint("q", i))
		names = append(names, name)
		_, err := n.Wait([][]byte{name}, i)
		require.NoError(t, err)
	}
	_, err := n.Wait(names, "all")
	require.NoError(t, err)
	n.Effects()
	n.Flush()
	released := counted(t, n)[engine.Release]
	assert.Positive(t, released)
	late, err := n.Wait(names[:1], "late")
	require.NoError(t, err)
	for range 100 {
		now++
		n.SetNow(now)
		n.Tick()
		released += counted(t, n)[engine.Release]
	}
	assert.Equal(t, queues+1, released)
	assert.Equal(t, 1, n.Blocked())
	clients, _, _ := n.Waiting([]byte("q1"))
	assert.Zero(t, clients)

	// Who has left very many lines gets nothing from them, though he stands in some still.
	n.Cancel(late)
	all, err := n.Wait(names, "all")
	require.NoError(t, err)
	second, err := n.Wait(names, "second")
	require.NoError(t, err)
	n.Cancel(all)
	id, _, err := n.AddJob(&engine.Add{Queue: names[9], Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600})
	require.NoError(t, err)
	for _, e := range n.Effects() {
		if e.Kind == engine.Serve {
			assert.Same(t, second, e.Waiter)
			assert.Equal(t, id, e.Job.ID)
			second = nil
		}
	}
	assert.Nil(t, second, "served")
	assert.Zero(t, n.Blocked())
}

// Lines of waiting clients ask other nodes bit by bit, and only those whose time it is.
func TestVeryManyLinesAsk(t *testing.T) {
	const queues = 3000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	peer := wire.NodeID{1, 2, 3}
	n.PeerUp(peer, "10.0.0.1:1", false)
	for i := range queues {
		_, err := n.Wait([][]byte{[]byte(fmt.Sprint("q", i))}, i)
		require.NoError(t, err)
	}
	n.Effects()
	asked := 0
	play := func(ms int64) {
		for end := now + ms; now < end; {
			next := n.Tick()
			asked += counted(t, n)[engine.Send]
			now = max(next, now+1)
			n.SetNow(now)
		}
	}
	play(120_000) // until the questions have their longest spans, 30 s
	asked = 0
	play(60_000)
	assert.InDelta(t, 2*queues, asked, queues/2)
	// A node that is back is asked by all, soon.
	asked = 0
	n.PeerDown(peer)
	n.PeerUp(peer, "10.0.0.1:1", false)
	asked += counted(t, n)[engine.Send]
	play(500)
	assert.GreaterOrEqual(t, asked, queues)
}
