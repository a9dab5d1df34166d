package engine_test

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Work on very many things at once is cut into slices. So no call leaves more effects of a kind
// than this: each stands for about a microsecond of the server's time.
const mostAtOnce = 1000

// counted returns a call's effects by kind, and checks that there are few enough of each.
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

// family makes a deferred job that lives for 600 s, and the jobs that it blocks.
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

// saved returns the records of all jobs as they lie on disk.
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
	n.Settle(engine.Trust{})
	n.Effects()
	return n
}

// The dependents of a job are followed bit by bit when it ends, whatever ends it. After a restart
// half way the node goes on: all dependents fall, or all are unblocked.
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

// Among very many dependents of a job, the one job that it blocks is found at once: when a node
// asks what became of the job, and when the job waits for the blocked one after LAST.
func TestABlockedJobAmongVeryManyThatDepend(t *testing.T) {
	const many = 200_000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	peer := wire.NodeID{1, 2, 3}
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	add := func(m engine.Members) store.ID {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 10, TTL: 6000, Members: m})
		require.NoError(t, err)
		n.Effects()
		return id
	}
	root := add(engine.Members{Deferred: true})
	var first store.ID
	for i := range many {
		id := add(engine.Members{After: []store.ID{root}})
		if i == 0 {
			first = id
		}
	}
	child := add(engine.Members{BlockedBy: &root})
	ask := wire.Message{Kind: wire.AskOutcome, ID: wire.JobID(root)}
	asked := spent(t, func() func() {
		n.Effects()
		return func() { require.NoError(t, n.Receive(peer, ask.Append(nil))) }
	})
	assert.Less(t, asked, time.Millisecond)
	before := false
	for _, e := range n.Effects() {
		var m wire.Message
		if e.Kind == engine.Send && m.Parse(n.Message(&e)) == nil && m.Kind == wire.Outcome {
			before = m.Flags&wire.Before != 0
		}
	}
	assert.True(t, before)
	ids, all := n.Dependents(n.Job(&root), 2)
	assert.Equal(t, []store.ID{child, first}, ids)
	assert.EqualValues(t, many+1, all)

	_, _, err := n.Release(&root, nil, true, false)
	require.NoError(t, err)
	n.Effects()
	assert.Less(t, spent(t, func() func() {
		return func() { require.Equal(t, []store.ID{child}, waitsFor(n, n.Job(&root))) }
	}), time.Millisecond)
	ids, all = n.Dependents(n.Job(&root), 1)
	assert.Equal(t, []store.ID{first}, ids)
	assert.EqualValues(t, many, all)
}

// In very many queues there are jobs of one key. A queue's job is found without a look at the other queues.
// If the key is the mesh's, the end of a run lets the next jobs go on bit by bit, and all
// of them unless a client gets one before.
func TestOneKeyInVeryManyQueues(t *testing.T) {
	for _, long := range []bool{false, true} {
		many := 50_000
		if long {
			many = 20_000
		}
		for _, mesh := range []bool{false, true} {
			t.Run(fmt.Sprintf("long names %v, mesh %v", long, mesh), func(t *testing.T) {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				now := int64(1_700_000_000_000)
				n, _, _ := node(now)
				defer debug.SetGCPercent(debug.SetGCPercent(-1))
				name := func(i int) []byte {
					b := fmt.Append(nil, "q", i)
					if long {
						b = append(b, bytes.Repeat([]byte("-"), 300)...)
					}
					return b
				}
				add := func(i int) store.ID {
					id, _, err := n.AddJob(&engine.Add{Queue: name(i), Body: []byte("b"), Replicate: 1, Retry: 1000, TTL: 6000, Unique: engine.Unique{
						Strategy: store.UniqueDuring, Mesh: mesh, Keyed: true, Key: []byte("k"),
					}})
					require.NoError(t, err)
					n.Effects()
					return id
				}
				fetch := func(i int) *store.Job {
					list := n.Fetch([]*store.Queue{n.Queue(name(i))}, 1, true, nil)
					n.Effects()
					if len(list) == 0 {
						return nil
					}
					return list[0]
				}
				// A machine that runs other things at the same time may slow down any call. One that looks at every
				// queue would take far longer.
				longest, slow := time.Duration(0), 0
				timed := func(f func()) {
					began := threadTime(t)
					f()
					n.Effects()
					took := threadTime(t) - began
					longest = max(longest, took)
					if took > 5*time.Millisecond {
						slow++
					}
				}
				tick := func() {
					now++
					n.SetNow(now)
					timed(func() { n.Tick() })
				}
				fronts := func() (count int) {
					for i := range many {
						count += int(n.Queue(name(i)).Len)
					}
					return count
				}
				first := add(0)
				require.NotNil(t, fetch(0))
				for i := range 2 * many {
					add(i % many)
				}
				least := time.Hour
				for range 20 {
					longest = 0
					timed(func() { add(many / 2) })
					least = min(least, longest)
				}
				assert.Less(t, least, 300*time.Microsecond)
				longest, slow = 0, 0
				timed(func() { n.Ack(&first) })
				if !mesh {
					assert.Equal(t, many, fronts(), "all but one had theirs before")
					return
				}
				assert.Less(t, fronts(), many/10)
				for range 5 {
					tick()
				}
				// A client gets one of them. The others needn't go on until it is done.
				before := fronts()
				var got store.ID
				for i := range many {
					if j := fetch(i); j != nil {
						got = j.ID
						break
					}
				}
				require.NotZero(t, got)
				for range 5 {
					tick()
				}
				assert.InDelta(t, before, fronts(), 1)
				timed(func() { n.Ack(&got) })
				restarted, _, _ := node(now)
				restarted.BeginLoading()
				var jobs []*store.Job
				for cursor, more := uint64(0), true; more; more = cursor != 0 {
					cursor = n.ScanJobs(cursor, &jobs)
				}
				require.GreaterOrEqual(t, len(jobs), 2*many-1)
				for _, j := range jobs {
					require.NoError(t, restarted.ApplyJob(j.Queue.NameBytes(), j.Record()))
				}
				for ticks := 0; fronts() < many && ticks < 200; ticks++ {
					for range 10 {
						tick()
					}
				}
				assert.Equal(t, many, fronts())
				assert.Less(t, longest, 20*time.Millisecond)
				assert.LessOrEqual(t, slow, 2)

				restarted.EndLoading()
				restarted.Settle(engine.Trust{})
				restarted.Effects()
				n = restarted
				for range 200 {
					tick()
				}
				assert.Equal(t, many, fronts(), "after a restart")
			})
		}
	}
}

// RELEASEJOB … LAST unblocks very many jobs bit by bit, in order, and answers when all are unblocked.
// Meanwhile all count as released: the end of one counts, and after a restart the node goes on.
func TestTheReleaseOfAJobThatBlocksVeryMany(t *testing.T) {
	const children = 5000
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted %v", crash), func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			root := family(t, n, children)
			// A job that isn't blocked by the root, but depends on it.
			_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 6000, Members: engine.Members{After: []store.ID{root}}})
			require.NoError(t, err)
			n.Effects()
			last := waitsFor(n, n.Job(&root))
			require.Empty(t, last)
			_, wait, err := n.Release(&root, nil, true, true)
			require.NoError(t, err)
			require.True(t, wait)
			n.Tie(engine.PendingRelease(root), "client")
			answers := counted(t, n)[engine.Released]
			tick := func(times int) {
				for range times {
					now++
					n.SetNow(now)
					n.Tick()
					answers += counted(t, n)[engine.Released]
				}
			}
			tick(3)
			q := n.Queue([]byte("q"))
			assert.Positive(t, q.Len)
			assert.Less(t, q.Len, uint64(children))
			assert.Zero(t, answers)
			_, _, err = n.Release(&root, nil, true, true)
			assert.ErrorIs(t, err, engine.ErrBlocked)
			left := waitsFor(n, n.Job(&root))
			require.Len(t, left, children)
			// Some end before it is their turn to be unblocked.
			for i := range 10 {
				assert.Equal(t, 1, n.CancelJob(&left[children-1-i]))
			}
			counted(t, n)
			if crash {
				n = loaded(t, now, saved(n))
				answers++ // no client is there that could be answered
			}
			tick(100)
			assert.Equal(t, 1, answers)
			q = n.Queue([]byte("q"))
			require.Equal(t, uint64(children-10), q.Len)
			for i := range children - 10 {
				jobs := n.Fetch([]*store.Queue{q}, 1, false, nil)
				require.Len(t, jobs, 1)
				id := jobs[0].ID
				require.Equal(t, left[i], id)
				require.True(t, n.Ack(&id))
				n.Effects()
			}
			jobs := n.Fetch([]*store.Queue{q}, 1, false, nil)
			require.Len(t, jobs, 1, "it comes when the last is done")
			assert.Equal(t, root, jobs[0].ID)
			n.Effects()
			assert.Zero(t, q.Len)
			require.True(t, n.Ack(&root))
			n.Effects()
			assert.Equal(t, uint64(1), q.Len)
			assert.Zero(t, n.Edges())
		})
	}
}

// However many jobs end at once, one call follows only as many dependents
// as it may, and the rest are followed in slices.
func TestTheEndOfManyJobsThatManyWaitFor(t *testing.T) {
	const roots, children = 50, 100
	for name, c := range map[string]struct {
		end  func(n *engine.Node, id *store.ID, now *int64)
		left int // jobs that are left
	}{
		"deleted":   {func(n *engine.Node, id *store.ID, _ *int64) { n.Delete(id) }, 0},
		"cancelled": {func(n *engine.Node, id *store.ID, _ *int64) { n.CancelJob(id) }, 0},
		"done": {func(n *engine.Node, id *store.ID, _ *int64) {
			_, _, _ = n.Release(id, nil, false, false)
			n.Ack(id)
		}, roots * children},
		"expired": {func(n *engine.Node, _ *store.ID, now *int64) {
			*now = 1_700_000_601_000
			n.SetNow(*now)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			var ids []store.ID
			for range roots {
				ids = append(ids, family(t, n, children))
			}
			for i := range ids {
				c.end(n, &ids[i], &now)
			}
			counted(t, n)
			ticks := 0
			for ; n.Edges() > 0 && ticks < 100; ticks++ {
				now++
				n.SetNow(now)
				n.Tick()
				counted(t, n)
			}
			assert.Greater(t, ticks, 5)
			now += 10
			n.SetNow(now)
			n.Tick()
			counted(t, n)
			assert.Zero(t, n.Edges())
			assert.Equal(t, uint64(c.left), n.Jobs())
			if c.left > 0 {
				assert.Equal(t, uint64(c.left), n.Queue([]byte("q")).Len)
			}
		})
	}
}

// ADDJOBs that wait for copies and claims that wait for a lock are answered bit by bit,
// whatever ends them all at once.
func TestVeryManyAddsAndClaimsEnd(t *testing.T) {
	const many = 3000
	for name, end := range map[string]func(n *engine.Node, now *int64){
		"replica":          func(n *engine.Node, _ *int64) { n.SetPassive(true) },
		"master once more": func(n *engine.Node, _ *int64) { n.SetPassive(true) },
		"their time":       func(_ *engine.Node, now *int64) { *now += 60_000 },
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			n.Mesh().Up(wire.NodeID{1, 2, 3}, "10.0.0.1:1", false)
			n.Locks().Trust()
			for i := range many {
				id, wait, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Timeout: 60_000, CanWait: true, Retry: 10, TTL: 6000})
				require.NoError(t, err)
				require.True(t, wait)
				n.Tie(engine.PendingAdd(id), i)
				_, pending := n.Locks().Acquire(bareName(fmt.Sprint("n", i)), []byte("a"), 1000, 60_000, i)
				require.NotNil(t, pending)
				n.Effects()
			}
			end(n, &now)
			answers, ticks := 0, 0
			look := func() {
				count := 0
				for _, e := range n.Effects() {
					if e.Kind == engine.Deny || e.Kind == engine.LockDone {
						count++
					}
				}
				assert.LessOrEqual(t, count, 150)
				answers += count
			}
			look()
			for ; answers < 2*many && ticks < 500; ticks++ {
				now++
				n.SetNow(now)
				if next := n.Tick(); n.Passive() {
					require.Equal(t, now+1, next, "there is more")
				}
				look()
				if name == "master once more" {
					n.Promote(func() bool { return false })
					look()
				}
			}
			assert.Equal(t, 2*many, answers)
			now += 1000
			n.SetNow(now)
			n.Tick()
			n.Effects()
			assert.Zero(t, n.Load().Adding)
			assert.Zero(t, n.Jobs())
			if n.Passive() {
				assert.Zero(t, n.Load().Claims)
			}
		})
	}
}

// When a pause ends, very many clients could be served at once. They are served bit by bit,
// in the order in which they came.
func TestVeryManyClientsAreServed(t *testing.T) {
	const many = 2000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	q := []byte("q")
	_, err := n.SetPause(q, engine.PauseOut, 0)
	require.NoError(t, err)
	var ids []store.ID
	for i := range many {
		_, err := n.Wait([][]byte{q}, i)
		require.NoError(t, err)
		id, _, err := n.AddJob(&engine.Add{Queue: q, Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600})
		require.NoError(t, err)
		ids = append(ids, id)
		n.Effects()
	}
	_, err = n.SetPause(q, 0, 0)
	require.NoError(t, err)
	served := 0
	look := func() {
		count := 0
		for _, e := range n.Effects() {
			if e.Kind == engine.Serve {
				require.Equal(t, served, e.Waiter.Client)
				require.Equal(t, ids[served], e.Job.ID)
				served++
				count++
			}
		}
		assert.LessOrEqual(t, count, 100)
	}
	look()
	assert.Positive(t, served)
	for ticks := 0; served < many && ticks < 200; ticks++ {
		now++
		n.SetNow(now)
		n.Tick()
		look()
	}
	assert.Equal(t, many, served)
	assert.Zero(t, n.Blocked())
}

// If only this node's copy of a job goes, and other nodes have copies, its dependents are also followed
// bit by bit: those that fall with it, at whatever depth, and those
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
			n.Mesh().Up(wire.NodeID{1, 2, 3}, "10.0.0.1:1", false)
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
			// met counts the jobs that have fallen, or are about to ask.
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
				assert.Zero(t, n.Edges())
			} else {
				assert.Equal(t, uint64(children), n.Jobs())
				assert.Equal(t, uint64(children), n.Edges())
			}
		})
	}
}

// Very many jobs wait for a job of which this node hears only that it was cancelled. They ask bit
// by bit what became of it, both when another node says so and when a client here has cancelled it.
func TestVeryManyAskAboutACancelledJob(t *testing.T) {
	const children = 5000
	b := wire.NodeID{1, 2, 3}
	receive := func(n *engine.Node, m *wire.Message) { require.NoError(t, n.Receive(b, m.Append(nil))) }
	for name, cancel := range map[string]func(n *engine.Node, root *store.ID){
		"told": func(n *engine.Node, root *store.ID) {
			receive(n, &wire.Message{Kind: wire.SetAck, Flags: wire.Cancelled, ID: wire.JobID(*root)})
		},
		"here": func(n *engine.Node, root *store.ID) {
			n.CancelJob(root)
			counted(t, n)
			require.NotNil(t, n.Job(root), "until the other node has heard of it")
			receive(n, &wire.Message{Kind: wire.GotAck, ID: wire.JobID(*root)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			n.Mesh().Up(b, "10.0.0.1:1", false)
			add := func(m engine.Members) store.ID {
				id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 10, TTL: 6000, Members: m})
				require.NoError(t, err)
				n.Effects()
				return id
			}
			root := add(engine.Members{})
			due := map[store.ID]int64{}
			for range children {
				due[add(engine.Members{After: []store.ID{root}})] = 0
			}
			require.True(t, n.Delete(&root))
			n.Effects()
			tick := func() {
				now++
				n.SetNow(now)
				n.Tick()
				counted(t, n)
			}
			for range 20 {
				tick()
			}
			for id := range due {
				due[id] = n.Job(&id).QTime // it has asked
				require.Greater(t, due[id], now+5000)
			}
			look := func() {
				before := len(due)
				for id, old := range due {
					if n.Job(&id).QTime != old {
						delete(due, id)
					}
				}
				assert.LessOrEqual(t, before-len(due), mostAtOnce)
			}
			cancel(n, &root)
			counted(t, n)
			look()
			for range 50 {
				tick()
				look()
			}
			assert.Empty(t, due)
			assert.Nil(t, n.Job(&root))
		})
	}
}

// Very many waiting clients are released bit by bit, and so is a client
// that waits for very many queues. A client that comes meanwhile isn't released.
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
	for range 200 {
		now++
		n.SetNow(now)
		n.Tick()
		released += counted(t, n)[engine.Release]
	}
	assert.Equal(t, queues+1, released)
	assert.Equal(t, 1, n.Blocked())
	clients, _, _ := n.Waiting([]byte("q1"))
	assert.Zero(t, clients)

	// A client that has left very many lines gets no job from them, though it is still in some.
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

// When very many queues come back from another database, the clients that wait for them are served bit by bit: each
// once, and in the order in which they came. The clients that wait are known from the start.
func TestVeryManyQueuesReturn(t *testing.T) {
	const queues = 5000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	name := func(i int) []byte { return []byte(fmt.Sprint("q", i)) }
	add := func(i int) store.ID {
		id, _, err := n.AddJob(&engine.Add{Queue: name(i), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600})
		require.NoError(t, err)
		return id
	}
	wait := func(i int) *engine.Waiter {
		w, err := n.Wait([][]byte{name(i)}, i)
		require.NoError(t, err)
		return w
	}
	first := map[int]store.ID{}
	for i := range queues {
		first[i] = add(i)
		n.Effects()
	}
	n.Swapped(0, 1)
	assert.Zero(t, n.Queues())
	gone := []*engine.Waiter{wait(0), wait(1)}
	for i := 1; i < queues; i++ {
		wait(i)
	}
	n.Cancel(gone[0])
	n.Effects()
	n.Swapped(1, 0)
	assert.EqualValues(t, queues, n.Queues())
	assert.Zero(t, counted(t, n)[engine.Serve], "SWAPDB isn't logged yet")
	n.Cancel(gone[1])
	served := map[int]bool{}
	look := func() (count int) {
		for _, e := range n.Effects() {
			if e.Kind == engine.Serve {
				i := e.Waiter.Client.(int)
				require.False(t, served[i], "%d is served twice", i)
				require.Equal(t, first[i], e.Job.ID)
				served[i] = true
				count++
			}
		}
		return count
	}
	second := add(2)
	assert.Equal(t, 1, look(), "who waits for a queue that nobody has looked at yet")
	assert.Equal(t, store.StateQueued, n.Job(&second).State)
	for range 400 {
		now++
		n.SetNow(now)
		n.Tick()
		assert.LessOrEqual(t, look(), 100)
	}
	assert.Len(t, served, queues-1)
	assert.False(t, served[0])
	assert.Zero(t, n.Blocked())
	require.NotNil(t, n.Queue(name(0)))
	assert.EqualValues(t, 1, n.Queue(name(0)).Len)
}

// The lines of waiting clients ask other nodes bit by bit, and only the lines whose time has come ask.
func TestVeryManyLinesAsk(t *testing.T) {
	const queues = 3000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	peer := wire.NodeID{1, 2, 3}
	n.Mesh().Up(peer, "10.0.0.1:1", false)
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
	play(120_000) // until the intervals between questions are longest: 50 s, for so many lines
	asked = 0
	play(60_000)
	assert.InDelta(t, queues*60/50, asked, queues/2)
	// All lines soon ask a node that is back.
	asked = 0
	n.Mesh().Down(peer)
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	asked += counted(t, n)[engine.Send]
	play(500)
	assert.GreaterOrEqual(t, asked, queues)
}

// The keys of very many queues that are flushed go bit by bit, while their jobs are already
// unknown. A new queue of the same name stays, and so does its job.
func TestVeryManyQueuesAreFlushed(t *testing.T) {
	const queues = 5000
	now := int64(1_700_000_000_000)
	for name, flush := range map[string]func(*engine.Node){"flush": (*engine.Node).Flush, "reset": (*engine.Node).Reset} {
		t.Run(name, func(t *testing.T) {
			n, k, alloc := node(now)
			follower, fk, _ := node(now)
			add := func(n *engine.Node, i int) store.ID {
				id, _, err := n.AddJob(&engine.Add{Queue: []byte(fmt.Sprint("q", i)), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600, Unique: engine.Unique{Strategy: store.UniqueDuring}})
				require.NoError(t, err)
				n.Effects()
				return id
			}
			empty := alloc.Blocks()
			for i := range queues {
				add(n, i)
				add(n, i)
				add(follower, i)
			}
			follower.SetPassive(true)
			flush(n)
			logged := 0
			for _, e := range n.Effects() {
				if e.Kind == engine.LogFlush {
					logged++
				}
			}
			assert.Equal(t, 1, logged)
			follower.ApplyFlush()
			late := add(n, queues-1)
			for _, n := range []*engine.Node{n, follower} {
				assert.True(t, n.Flushing())
				assert.LessOrEqual(t, n.Jobs(), uint64(1))
				assert.LessOrEqual(t, n.Queues(), int64(1))
				assert.Zero(t, n.HeldBack())
				assert.Nil(t, n.Queue([]byte("q1")))
			}
			left := len(k.boxes)
			assert.Greater(t, left, queues/2)
			ticks := 0
			for ; n.Flushing() && ticks < 1000; ticks++ {
				now++
				n.SetNow(now)
				n.Tick()
				follower.SetNow(now)
				follower.Tick()
				counted(t, n)
			}
			assert.Greater(t, ticks, 3)
			assert.LessOrEqual(t, k.most, mostAtOnce)
			assert.Len(t, k.boxes, 1)
			assert.NotNil(t, n.Job(&late))
			assert.Equal(t, uint64(1), n.Queue([]byte(fmt.Sprint("q", queues-1))).Len)
			assert.Len(t, fk.boxes, queues, "a follower's keys go with its master's")
			follower.SetPassive(false)
			for follower.Flushing() {
				now++
				n.SetNow(now)
				follower.SetNow(now)
				follower.Tick()
			}
			assert.Empty(t, fk.boxes)
			n.FastAck(&late)
			n.Flush()
			for range 100 {
				now++
				n.SetNow(now)
				n.Tick()
			}
			giveBack(n)
			assert.Less(t, alloc.Blocks(), empty+50, "all is given back")
		})
	}
}

// When very many jobs are gone at once, their locks are freed at other nodes bit by bit.
func TestTheLocksOfVeryManyJobs(t *testing.T) {
	const jobs = 5000
	for name, end := range map[string]func(n *engine.Node, k *keys){
		"DEL":      func(n *engine.Node, k *keys) { k.Drop([]*store.Queue{n.Queue([]byte("q"))}) },
		"flush":    func(n *engine.Node, _ *keys) { n.Flush() },
		"FLUSHALL": func(n *engine.Node, _ *keys) { n.Flushed(-1) },
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, k, _ := node(now)
			for i := range jobs {
				_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: fmt.Append(nil, i), Replicate: 1, Retry: 10, TTL: 600, Unique: engine.Unique{Strategy: store.UniqueBefore}})
				require.NoError(t, err)
				n.Effects()
			}
			for i := range byte(2) {
				n.Mesh().Up(wire.NodeID{1, 2, 3, i}, fmt.Sprintf("10.0.0.%d:1", i), false)
			}
			n.Effects()
			end(n, k)
			sent, ticks := counted(t, n)[engine.Send], 0
			for ; sent < 2*jobs && ticks < 200; ticks++ {
				now++
				n.SetNow(now)
				n.Tick()
				sent += counted(t, n)[engine.Send]
			}
			assert.GreaterOrEqual(t, sent, 2*jobs, "both nodes are told of each lock")
			assert.Greater(t, ticks, 5)
		})
	}
}

// A node that was away is told bit by bit which votes it is to take back, however late
// it is back. The oldest votes for jobs are forgotten; this doesn't touch the votes for owners.
func TestANodeIsToldOfVeryManyVotesToBeTakenBack(t *testing.T) {
	const jobs, owners = 11_000, 3000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	var ids []store.ID
	for i := range jobs {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: fmt.Append(nil, i), Replicate: 1, Retry: 10, TTL: 6000, Unique: engine.Unique{Strategy: store.UniqueBefore}})
		require.NoError(t, err)
		ids = append(ids, id)
		n.Effects()
	}
	peer := wire.NodeID{1, 2, 3}
	n.Mesh().Add(peer, "10.0.0.1:1")
	for i := range owners {
		n.Locks().Unhear(bareName(fmt.Sprint("n", i)), []byte("a"), &lock.Result{Kind: lock.Granted, Token: uint64(i + 1)})
		n.Effects()
	}
	for i := range ids {
		n.FastAck(&ids[i])
		n.Effects()
	}
	for range 700 {
		now += 1000
		n.SetNow(now)
		n.Tick()
		n.Effects()
	}
	told := map[string]bool{}
	look := func() {
		before := len(told)
		for _, e := range n.Effects() {
			if m := n.Message(&e); e.Kind == engine.Send && m[0] == byte(wire.Unlock) {
				told[string(m)] = true
			}
		}
		assert.LessOrEqual(t, len(told)-before, mostAtOnce)
	}
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	look()
	assert.NotEmpty(t, told)
	for range 50 {
		now++
		n.SetNow(now)
		n.Tick()
		look()
	}
	assert.Len(t, told, 10_000+owners)
}

// Questions what became of jobs are forgotten bit by bit when no job waits for their answers
// any more.
func TestVeryManyQuestionsAreForgotten(t *testing.T) {
	const many = 5000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	n.Mesh().Up(wire.NodeID{1, 2, 3}, "10.0.0.1:1", false)
	tick := func() {
		now += 10
		n.SetNow(now)
		n.Tick()
		n.Effects()
	}
	for range many {
		add := func(m engine.Members) store.ID {
			id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 10, TTL: 6000, Members: m})
			require.NoError(t, err)
			return id
		}
		id := add(engine.Members{})
		add(engine.Members{After: []store.ID{id}})
		n.Delete(&id)
		n.Effects()
	}
	for range 30 {
		tick()
	}
	require.Equal(t, many, n.Asked())
	n.Flush()
	n.Effects()
	for ticks := 0; n.Asked() > 0 && ticks < 5000; ticks++ {
		before := n.Asked()
		tick()
		assert.LessOrEqual(t, before-n.Asked(), mostAtOnce)
	}
	assert.Zero(t, n.Asked())
}

// With very many locks whose jobs may be gone, a node forgets bit by bit what it remembers of
// them: questions, and jobs that lost a lock. When this node's copy of a unique
// job has expired, the node knows for ten seconds that others have the job.
func TestVeryManyDoubtsAreForgotten(t *testing.T) {
	const many = 5000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	b := wire.NodeID{1, 2, 3}
	n.Mesh().Up(b, "10.0.0.1:1", false)
	n.Locks().Trust()
	n.Locks().VotesKept(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
	n.Effects()
	receive := func(m *wire.Message) {
		require.NoError(t, n.Receive(b, m.Append(nil)))
		n.Effects()
	}
	id := func(kind byte, i int) (id store.ID) {
		id = store.ID{kind, 23: 3}
		copy(id[4:], fmt.Sprintf("%018d", i))
		return id
	}
	for i := range many {
		receive(&wire.Message{Kind: wire.ReplJob, Flags: wire.NoReply, ID: wire.JobID(id(1, i)), Holders: []wire.Node{b.Node()}, Queue: []byte("q"), Job: wire.Job{
			CTime: uint64(now) * 1_000_000, Left: 5000, Retry: 3600, Repl: 2, Body: []byte("b"),
			Extras: store.AppendExtra(nil, store.TagUnique, store.AppendUnique(nil, &store.UniqueBy{Strategy: store.UniqueUntil, Flags: store.UniqueKeyed, Key: fmt.Append(nil, "k", i)})),
		}})
		name := store.AppendLockName(nil, store.LockWait, []byte("other"), fmt.Append(nil, i))
		receive(&wire.Message{Kind: wire.LockLost, ID: wire.JobID(id(1, i)), Lock: wire.Lock{Name: name}})
		for kind := range byte(2) { // the second claim finds that the first one's job has the lock
			receive(&wire.Message{Kind: wire.Claim, Round: uint64(2*i) + uint64(kind), Members: n.MembersSum(), Lock: wire.Lock{
				Name: name, Job: wire.JobID(id(2+kind, i)), Token: uint64(now)<<20 + uint64(kind),
			}})
		}
	}
	tick := func(by int64) {
		now += by
		n.SetNow(now)
		n.Tick()
		n.Effects()
	}
	require.Equal(t, [2]int{many, many}, n.Doubted())
	tick(1)
	now += 5000
	for range 50 {
		tick(1)
	}
	require.Zero(t, n.Jobs())
	require.Equal(t, [2]int{many, many}, n.Doubted())
	gone := now
	for now < gone+30_000 {
		before := n.Doubted()
		tick(10)
		for i, left := range n.Doubted() {
			assert.LessOrEqual(t, before[i]-left, mostAtOnce)
		}
		if now <= gone+9_900 {
			require.Equal(t, many, n.Delegated())
		}
	}
	assert.Zero(t, n.Doubted())
	assert.Zero(t, n.Delegated())
}

// Very many ADDJOBs of one key wait to hear whether the job that has it lives. When that is known, they go on bit
// by bit, and none is left out: they are refused, or ask again.
func TestVeryManyAddsOfOneKeyInDoubt(t *testing.T) {
	const many = 2000
	for name, count := range map[string]uint32{"lives": wire.JobLives, "gone": wire.JobGone} {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			b := wire.NodeID{1, 2, 3}
			n.Mesh().Up(b, "10.0.0.1:1", false)
			n.Locks().Trust()
			n.Locks().VotesKept(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
			asked := map[string]bool{}
			round, question := uint64(0), int64(0)
			refused := 0
			look := func() {
				before, claimed := refused, 0
				for _, e := range n.Effects() {
					if e.Kind == engine.Deny {
						refused++
					}
					if e.Kind != engine.Send {
						continue
					}
					var m wire.Message
					require.NoError(t, m.Parse(n.Message(&e)))
					switch m.Kind {
					case wire.Claim:
						round = m.Round
						asked[string(m.Lock.Job[:])] = true
						claimed++
					case wire.Verify:
						question = m.Lock.Left
					}
				}
				assert.LessOrEqual(t, refused-before, 150)
				assert.LessOrEqual(t, claimed, mostAtOnce)
			}
			receive := func(m wire.Message) {
				require.NoError(t, n.Receive(b, m.Append(nil)))
				look()
			}
			held := wire.Lock{Name: store.AppendLockName(nil, store.LockWait, []byte("q"), []byte("k")), Job: wire.JobID{9, 23: 1}, Token: uint64(now) << 20}
			receive(wire.Message{Kind: wire.Claim, Round: 1, Members: n.MembersSum(), Lock: held})
			require.NotNil(t, n.Locks().Live(held.Name))
			for i := range many {
				id, wait, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600, CanWait: true, Unique: engine.Unique{Strategy: store.UniqueUntil, Keyed: true, Key: []byte("k")}})
				require.NoError(t, err)
				require.True(t, wait)
				n.Tie(engine.PendingAdd(id), i)
				look()
				receive(wire.Message{Kind: wire.Deny, Count: wire.LockHeld, Round: round, Lock: held})
			}
			require.Len(t, asked, many)
			require.NotZero(t, question)
			require.Zero(t, refused)
			clear(asked)
			receive(wire.Message{Kind: wire.Verified, ID: held.Job, Count: count, Lock: wire.Lock{Name: held.Name, Left: question}})
			for range 80 {
				now++
				n.SetNow(now)
				n.Tick()
				look()
			}
			if count == wire.JobLives {
				assert.Equal(t, many, refused)
				assert.Empty(t, asked)
				assert.Zero(t, n.Locks().Acquisitions())
			} else {
				assert.Zero(t, refused)
				assert.Len(t, asked, many)
			}
		})
	}
}

// inDispute makes a node with locks of which two other nodes told different holders: b said that x has
// it for 5 s, and c that y has it for 50 s.
func inDispute(t *testing.T, now int64, many int, steady func() int64) (n *engine.Node, b wire.NodeID) {
	n, _, _ = steadyNode(now, steady)
	b = wire.NodeID{1, 2, 3}
	c := wire.NodeID{3, 2, 1}
	n.Mesh().Add(b, "b:1")
	n.Mesh().Add(c, "c:1")
	n.Locks().SetVotes(lock.Votes{Longest: lock.LeasesUpTo(60_000)})
	n.Locks().MarkIncomplete()
	n.Mesh().Up(b, "10.0.0.1:1", false)
	n.Mesh().Up(c, "10.0.0.2:1", false)
	n.Effects()
	tell := func(from wire.NodeID, owner string, lease int64) {
		for i := 0; i < many; i += 100 {
			m := wire.Message{Kind: wire.LockPage, Flags: wire.Partial, Round: uint64(i + 1)}
			for k := i; k < i+100; k++ {
				m.Locks = append(m.Locks, wire.Lock{Name: bareName(fmt.Sprint(k)), Owner: []byte(owner), Token: uint64(now) << 20, Lease: lease, Left: lease})
			}
			require.NoError(t, n.Receive(from, m.Append(nil)))
			n.Effects()
		}
	}
	tell(b, "x", 5_000)
	tell(c, "y", 50_000)
	require.Equal(t, many, n.Disputed())
	return n, b
}

// Very many disputes are cleared bit by bit. From the beginning they count as over,
// and a dispute that comes up anew isn't cleared.
func TestVeryManyDisputesAreCleared(t *testing.T) {
	const many = 20_000
	now := int64(1_700_000_000_000)
	n, b := inDispute(t, now, many, func() int64 { return now })
	_, pending, err := n.Locks().Clear(bareName(""), true, true)
	require.NoError(t, err)
	require.NotNil(t, pending)
	n.Effects()
	left := n.Disputed()
	require.GreaterOrEqual(t, left, many-mostAtOnce)
	m := wire.Message{Kind: wire.LockPage, Flags: wire.Partial, Round: 1}
	for _, owner := range []string{"x", "y"} {
		m.Locks = append(m.Locks, wire.Lock{Name: bareName("0"), Owner: []byte(owner), Token: uint64(now+1) << 20, Lease: 50_000, Left: 50_000})
	}
	require.NoError(t, n.Receive(b, m.Append(nil)))
	n.Effects()
	for ticks := 0; n.Disputed() > 1; ticks++ {
		require.Less(t, ticks, 100)
		before := n.Disputed()
		now += 10
		n.SetNow(now)
		n.Tick()
		n.Effects()
		require.LessOrEqual(t, before-n.Disputed(), mostAtOnce)
	}
	assert.Equal(t, 1, n.Disputed())
}

// FLUSHALL looks only at some of the votes that a node has for other nodes' jobs, if there are very many.
func TestAFlushWhereOthersHaveVeryManyLocks(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	const votes = 600_000
	n, _, _ := node(dawn)
	n.Mesh().Add(mate, "10.0.0.1:1")
	n.Mesh().Up(mate, "10.0.0.1:1", true)
	n.Locks().Trust()
	n.Locks().SetVotes(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
	n.Effects()
	ids := &store.IDMaker{}
	for i := range uint64(votes) {
		m := wire.Message{Kind: wire.Claim, Round: i + 1, Members: n.MembersSum(), Lock: wire.Lock{
			Name: store.AppendLockName(nil, store.LockWait, nil, fmt.Append(nil, i)), Job: wire.JobID(ids.Make(i, i, 60, true)), Token: uint64(dawn)<<20 + (i+1)<<10}}
		require.NoError(t, n.Receive(mate, m.Append(nil)))
		n.Effects()
	}
	require.EqualValues(t, votes, n.Locks().Count())
	began := threadTime(t)
	n.Flushed(-1)
	require.Less(t, threadTime(t)-began, 5*time.Millisecond)
}

// A dispute that very many clearings of other locks have passed is ended by a clearing of its own lock.
func TestADisputeThatVeryManyClearingsPass(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _ := inDispute(t, now, 100, func() int64 { return now })
	clear := func(prefix string) {
		_, _, err := n.Locks().Clear(bareName(prefix), true, true)
		require.NoError(t, err)
		n.Effects()
	}
	for range 1<<15 + 10 {
		clear("others")
	}
	require.Equal(t, 100, n.Disputed())
	clear("")
	assert.Zero(t, n.Disputed())
}

// held makes a node alone with so many bare locks, whose owner is ann.
func held(t *testing.T, locks int) *engine.Node {
	n, _, _ := node(dawn)
	for i := range locks {
		o, _ := n.Locks().Acquire(bareName(fmt.Sprint(i)), []byte("ann"), 3_600_000, 0, nil)
		require.Equal(t, lock.Granted, o.Kind)
		n.Effects()
	}
	return n
}

// Very many clients clear locks by prefixes, and very many locks are held: the lookup of a lock takes no longer.
func TestVeryManyClearings(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	n := held(t, 50_000)
	for i := range 8000 {
		_, pending, err := n.Locks().Clear(bareName(fmt.Sprint("other", i)), true, true)
		require.NoError(t, err)
		pending.Client = i
		n.Effects()
	}
	took := time.Hour
	for range 20 {
		began := threadTime(t)
		for i := range 1000 {
			require.NotNil(t, n.Locks().Live(bareName(fmt.Sprint(i))))
		}
		took = min(took, threadTime(t)-began)
	}
	require.Less(t, took, 5*time.Millisecond)
}

// A lock that is taken while very many others are being cleared isn't cleared by an earlier command.
func TestALockThatIsTakenWhileVeryManyAreCleared(t *testing.T) {
	n := held(t, 100_000)
	for i := range 36_000 {
		prefix := "other"
		if i == 2000 { // the commands before are under way when the last one comes
			prefix = "lock"
		}
		_, pending, err := n.Locks().Clear(bareName(prefix), true, true)
		require.NoError(t, err)
		require.NotNil(t, pending)
		n.Effects()
	}
	for _, who := range []struct {
		owner string
		kind  lock.ResultKind
	}{{"bob", lock.Granted}, {"cid", lock.Conflict}} {
		o, _ := n.Locks().Acquire(bareName("lock"), []byte(who.owner), 3_600_000, 0, nil)
		require.Equal(t, who.kind, o.Kind, who.owner)
	}
}

// While many locks are being cleared, a further LOCK.CLEAR waits for its turn. Until then it
// frees nothing and the other nodes aren't told. After it the client is answered. A clearing that can't
// wait doesn't.
func TestAClearingWaitsForItsTurn(t *testing.T) {
	const locks = 10_000
	for _, how := range []string{"cleared", "heard", "at once", "no majority", "a replica"} {
		t.Run(how, func(t *testing.T) {
			n := held(t, locks)
			if how != "at once" {
				n.Mesh().Add(mate, "10.0.0.1:1")
				n.Mesh().Up(mate, "10.0.0.1:1", false)
				n.Locks().Trust()
				n.Effects()
			}
			begin := func(prefix string, client any) {
				_, pending, err := n.Locks().Clear(bareName(prefix), true, true)
				require.NoError(t, err)
				require.NotNil(t, pending)
				pending.Client = client
			}
			for i := range 20 {
				begin(fmt.Sprint("other", i), nil)
				n.Effects()
			}
			require.NotNil(t, n.Locks().Live(bareName("5")))
			if how == "heard" {
				m := wire.Message{Kind: wire.ClearLocks, Flags: wire.Prefix, Lock: wire.Lock{Name: bareName(""), Token: n.Locks().Live(bareName("5")).Token}}
				require.NoError(t, n.Receive(mate, m.Append(nil)))
			} else {
				begin("", "client")
			}
			require.NotNil(t, n.Locks().Live(bareName("5")), "it isn't its turn")
			cleared, told := -1, 0
			var failed error
			look := func() {
				for _, e := range n.Effects() {
					var m wire.Message
					switch {
					case e.Kind == engine.Cleared:
						require.Equal(t, "client", e.Client)
						cleared, failed = e.Nodes, e.Err
					case e.Kind == engine.Send:
						if require.NoError(t, m.Parse(n.Message(&e))); m.Kind == wire.ClearLocks && len(m.Lock.Name) == 1 {
							told++
						}
					}
				}
			}
			look()
			require.Zero(t, told)
			switch how {
			case "at once":
				count, pending, err := n.Locks().Clear(bareName("1"), true, false)
				require.NoError(t, err)
				require.Nil(t, pending)
				require.EqualValues(t, 1111, count)
				require.NotNil(t, n.Locks().Live(bareName("5")))
			case "no majority":
				n.Mesh().Down(mate)
			case "a replica":
				n.SetPassive(true)
			}
			for range 400 {
				n.SetNow(n.Now() + 1)
				n.Tick()
				look()
			}
			switch how {
			case "cleared":
				assert.Equal(t, locks, cleared)
				assert.Equal(t, 1, told)
			case "heard":
				assert.NotNil(t, n.Locks().Live(bareName("6")), "it was taken later")
				assert.Nil(t, n.Locks().Live(bareName("5")))
			case "at once":
				assert.Equal(t, locks-1111, cleared)
			default:
				assert.Error(t, failed)
				assert.NotNil(t, n.Locks().Live(bareName("5")))
				assert.Zero(t, told)
			}
		})
	}
}

// Very many locks in dispute are told page by page, all of them,
// also those that have no holder in the table, and they are forgotten bit by bit.
func TestVeryManyLocksInDispute(t *testing.T) {
	const many = 10_000
	now, looks := int64(1_700_000_000_000), 0
	n, b := inDispute(t, now, many, func() int64 { looks++; return now })
	pull := func() (told map[string]int) {
		told = map[string]int{}
		for round, pages := uint64(0), 0; pages == 0 || round != 0; pages++ {
			m := wire.Message{Kind: wire.LockPull, Round: round}
			looks = 0
			require.NoError(t, n.Receive(b, m.Append(nil)))
			require.Less(t, looks, 4*mostAtOnce)
			for _, e := range n.Effects() {
				var p wire.Message
				if e.Kind == engine.Send && p.Parse(n.Message(&e)) == nil && p.Kind == wire.LockPage {
					round = p.Round
					for i := range p.Locks {
						told[string(p.Locks[i].Name)+" "+string(p.Locks[i].Owner)]++
					}
				}
			}
			require.Less(t, pages, 1000)
		}
		return told
	}
	tick := func(ms int64) {
		for end := now + ms; now < end; {
			now += 10
			n.SetNow(now)
			before := n.Disputed()
			n.Tick()
			n.Effects()
			assert.LessOrEqual(t, before-n.Disputed(), mostAtOnce)
		}
	}
	assert.Len(t, pull(), 2*many)
	tick(20_000)
	require.Equal(t, many, n.Disputed())
	require.Zero(t, n.Locks().Table().Len)
	for range 2 {
		assert.Len(t, pull(), 2*many)
	}
	tick(50_000)
	assert.Zero(t, n.Disputed())
	assert.Empty(t, pull())
}

// Very many releases that other nodes haven't confirmed are answered bit by bit when their time is over,
// and told again bit by bit when the node is back that has to know of them.
func TestVeryManyReleases(t *testing.T) {
	const many = 3000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	peer := wire.NodeID{1, 2, 3}
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	for i := range many {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 10, TTL: 6000, Members: engine.Members{Deferred: true}})
		require.NoError(t, err)
		_, wait, err := n.Release(&id, nil, false, true)
		require.NoError(t, err)
		require.True(t, wait)
		n.Tie(engine.PendingRelease(id), i)
		n.Effects()
	}
	answered, told := 0, map[string]bool{}
	look := func() {
		before := answered
		sent := 0
		for _, e := range n.Effects() {
			switch e.Kind {
			case engine.Released:
				answered++
			case engine.Send:
				if m := n.Message(&e); m[0] == byte(wire.Release) {
					told[string(m)] = true
					sent++
				}
			}
		}
		assert.LessOrEqual(t, answered-before, 150)
		assert.LessOrEqual(t, sent, mostAtOnce)
	}
	tick := func(times int) {
		for range times {
			now++
			n.SetNow(now)
			n.Tick()
			look()
		}
	}
	now += 1000
	tick(100)
	assert.Equal(t, many, answered)
	assert.Len(t, told, many)

	n.Mesh().Down(peer)
	n.Effects()
	clear(told)
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	look()
	tick(20)
	assert.Len(t, told, many)
}

// A page of the table of locks is cut off when very many locks in a row are over.
func TestATableOfLocksThatAreOverIsTold(t *testing.T) {
	const jobs = 10_000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	for i := range jobs {
		_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: fmt.Append(nil, i), Replicate: 1, Retry: 10, TTL: 600, Unique: engine.Unique{Strategy: store.UniqueUntil}})
		require.NoError(t, err)
		n.Effects()
	}
	peer := wire.NodeID{1, 2, 3}
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	n.Flushed(0)
	n.Effects()
	pages := 0
	for page := (wire.Message{Kind: wire.LockPull}); pages == 0 || page.Round != 0; pages++ {
		pull := wire.Message{Kind: wire.LockPull, Round: page.Round}
		require.NoError(t, n.Receive(peer, pull.Append(nil)))
		for _, e := range n.Effects() {
			if m := n.Message(&e); e.Kind == engine.Send && m[0] == byte(wire.LockPage) {
				require.NoError(t, page.Parse(m))
			}
		}
		require.Less(t, pages, 1000)
	}
	assert.Greater(t, pages, 2)
}

// Ticks that follow each other quickly, for other work, don't each look at a share of all locks.
func TestHurriedTicksDontLookAtAllLocks(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	for i := range 5000 {
		o, _ := n.Locks().Acquire(bareName(fmt.Sprint("n", i)), []byte("a"), 600_000, 0, nil)
		require.Equal(t, lock.Granted, o.Kind)
		n.Effects()
	}
	looks := 0
	for range 1000 {
		before := n.LockCursor()
		now++
		n.SetNow(now)
		n.Tick()
		n.Effects()
		if n.LockCursor() != before {
			looks++
		}
	}
	assert.InDelta(t, 20, looks, 2)
}

// Clients that wait for locks ask less and less often while nodes don't answer.
func TestClaimsThatWaitAskLessAndLessOften(t *testing.T) {
	const claims = 100
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	for i := range byte(2) {
		n.Mesh().Up(wire.NodeID{1, 2, 3, i}, fmt.Sprintf("10.0.0.%d:1", i), false)
	}
	n.Locks().Trust()
	n.Locks().VotesKept(lock.Votes{Longest: lock.LeasesUpTo(3_600_000)})
	for i := range claims {
		_, pending := n.Locks().Acquire(bareName(fmt.Sprint("n", i)), []byte("a"), 60_000, 60_000, i)
		require.NotNil(t, pending)
		n.Effects()
	}
	asked := 0
	for end := now + 30_000; now < end; {
		next := n.Tick()
		for _, e := range n.Effects() {
			if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.Claim) {
				asked++
			}
		}
		now = max(next, now+1)
		n.SetNow(now)
	}
	assert.Less(t, asked, 100*claims)
}

// When a node is back, very many ADDJOBs that wait for it send it their copies bit by bit.
func TestVeryManyAddsGoOnWhereTheirNodeIsBack(t *testing.T) {
	const many = 3000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	peer := wire.NodeID{1, 2, 3}
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	add := func(i int, retry int64) {
		id, wait, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, CanWait: true, Timeout: 60_000, Retry: retry, TTL: 6000})
		require.NoError(t, err)
		require.True(t, wait)
		n.Tie(engine.PendingAdd(id), i)
		n.Effects()
	}
	for i := range many {
		add(i, 10*int64(i%2))
	}
	n.Mesh().Down(peer)
	n.Effects()
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	sent, denied := map[string]bool{}, map[any]bool{}
	look := func() {
		count := 0
		for _, e := range n.Effects() {
			switch {
			case e.Kind == engine.Deny:
				denied[e.Client] = true
				count++
			case e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.ReplJob):
				sent[string(n.Message(&e))] = true
				count++
			}
		}
		assert.LessOrEqual(t, count, mostAtOnce/2)
	}
	look()
	assert.Less(t, len(denied), many/2)
	add(many, 0) // this one is added when the node is back, so it isn't refused
	for range 100 {
		now++
		n.SetNow(now)
		n.Tick()
		look()
	}
	assert.Len(t, denied, many/2)
	assert.NotContains(t, denied, many)
	assert.Len(t, sent, many/2)
}

// A job that comes last, behind another such job with very many before it, counts
// the ends of its own jobs even before it is its turn to unblock them.
func TestLastBehindAnotherThatVeryManyComeBefore(t *testing.T) {
	n, _, _ := node(1_700_000_000_000)
	add := func(m engine.Members) store.ID {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600, Members: m})
		require.NoError(t, err)
		n.Effects()
		return id
	}
	big, small := add(engine.Members{Deferred: true}), add(engine.Members{Deferred: true})
	for range 2000 {
		add(engine.Members{BlockedBy: &big})
	}
	before := add(engine.Members{BlockedBy: &small})
	for _, head := range []store.ID{big, small} {
		_, _, err := n.Release(&head, nil, true, false)
		require.NoError(t, err)
		n.Effects()
	}
	n.Ack(&before)
	n.Effects()
	assert.Equal(t, store.StateQueued, n.Job(&small).State)
}

// Large jobs that another node asks for, or was offered before its connection broke, are
// copied bit by bit, and that node gets all of them.
func TestLargeJobsAreHandedOverBitByBit(t *testing.T) {
	const size, count = 100 << 10, 60
	for name, c := range map[string]struct {
		retry int64
		first bool // the node asks before there are any jobs
	}{
		"at least once":               {retry: 10},
		"at most once":                {},
		"at least once, asked before": {retry: 10, first: true},
		"at most once, asked before":  {first: true},
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			peer := wire.NodeID{1, 2, 3}
			n.SetLife(peer, 7)
			n.Mesh().Up(peer, "10.0.0.1:1", false)
			n.Effects()
			need := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: count}
			ask := func() {
				require.NoError(t, n.Receive(peer, need.Append(nil)))
			}
			given := map[byte]int{} // by the byte that the body is made of
			look := func() (sent int) {
				for _, e := range n.Effects() {
					if e.Kind != engine.Send {
						continue
					}
					m := n.Message(&e)
					if kind := wire.Kind(m[0]); kind == wire.YourJob || kind == wire.Offer {
						given[m[len(m)/2]]++
						sent += len(m)
					}
				}
				require.LessOrEqual(t, sent, 1<<20+2*size)
				return sent
			}
			tick := func() {
				for range 100 {
					now++
					n.SetNow(now)
					n.Tick()
					look()
				}
			}
			if c.first {
				ask()
				look()
				_, err := n.SetPause([]byte("q"), engine.PauseOut, 0)
				require.NoError(t, err)
			}
			for i := range 2 * count {
				body := bytes.Repeat([]byte{byte(i)}, size)
				_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: body, Replicate: 1, Retry: c.retry, TTL: 6000})
				require.NoError(t, err)
				look()
			}
			require.Empty(t, given)
			if c.first {
				_, err := n.SetPause([]byte("q"), 0, 0)
				require.NoError(t, err)
			} else {
				ask()
			}
			assert.NotZero(t, look(), "some at once")
			tick()
			assert.Len(t, given, count)
			for _, times := range given {
				assert.Equal(t, 1, times)
			}
			if c.retry > 0 {
				return
			}
			n.Mesh().Down(peer)
			n.Effects()
			n.Mesh().Up(peer, "10.0.0.1:1", false)
			assert.NotZero(t, look(), "some at once")
			tick()
			assert.Len(t, given, count)
			for _, times := range given {
				assert.Equal(t, 2, times)
			}
		})
	}
}

// Claims under way are counted anew bit by bit when a node comes, goes or is forgotten, and
// when this node may vote at last. No claim is lost, and none is asked for twice.
func TestVeryManyClaimsAreCountedAnew(t *testing.T) {
	const many = 3000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	var peers []wire.NodeID
	for i := range byte(4) {
		peers = append(peers, wire.NodeID{1, 2, 3, i})
		n.Mesh().Up(peers[i], fmt.Sprintf("10.0.0.%d:1", i), false)
	}
	n.Locks().Trust()
	n.Locks().VotesKept(lock.Votes{})
	n.Effects()
	rounds, asked := map[string]uint64{}, map[string]int{} // of peers[1]
	votes, won := 0, 0
	look := func() {
		count := 0
		for _, e := range n.Effects() {
			count++
			switch {
			case e.Kind == engine.LogLock:
				votes++
			case e.Kind == engine.LockDone && e.Outcome.Kind == lock.Granted:
				won++
			case e.Kind == engine.Send && e.Peer.ID == peers[1] && n.Message(&e)[0] == byte(wire.Claim):
				var m wire.Message
				require.NoError(t, m.Parse(n.Message(&e)))
				rounds[string(m.Lock.Name)] = m.Round
				asked[string(m.Lock.Name)]++
			}
		}
		assert.LessOrEqual(t, count, 2*mostAtOnce)
	}
	tick := func(times int, by int64) {
		for range times {
			now += by
			n.SetNow(now)
			n.Tick()
			look()
		}
	}
	for i := range many {
		_, pending := n.Locks().Acquire(bareName(fmt.Sprint("n", i)), []byte("a"), 60_000, 600_000, i)
		require.NotNil(t, pending)
		look()
	}
	require.Len(t, asked, many)
	require.Zero(t, votes, "it is to be written first for how long they can last")
	n.Locks().VotesKept(lock.Votes{Longest: lock.LeasesUpTo(3_600_000)})
	look()
	assert.Less(t, votes, many/2)
	tick(20, 0)
	assert.Equal(t, many, votes)

	clear(asked)
	n.Mesh().Down(peers[1])
	look()
	n.Mesh().Up(peers[1], "10.0.0.1:1", false)
	look()
	assert.NotEmpty(t, asked)
	assert.Less(t, len(asked), many/2)
	tick(20, 0)
	assert.Len(t, asked, many)
	for _, times := range asked {
		require.Equal(t, 1, times)
	}

	// Two of five nodes voted for each lock: this one and peers[0]. Two nodes are forgotten,
	// peers[0] among them: the one vote that is left is no majority of three.
	before := map[string]uint64{}
	for name, round := range rounds {
		grant := wire.Message{Kind: wire.Grant, Round: round}
		require.NoError(t, n.Receive(peers[0], grant.Append(nil)))
		before[name] = round
		look()
	}
	n.Mesh().Forget(peers[0])
	look()
	n.Mesh().Forget(peers[3])
	look()
	old := 0
	for name, round := range before {
		if rounds[name] == round {
			old++
		}
		deny := wire.Message{Kind: wire.Deny, Round: round, Count: wire.Abstains}
		require.NoError(t, n.Receive(peers[1], deny.Append(nil)))
		look()
	}
	assert.Greater(t, old, many/2, "that were not begun anew yet")
	tick(200, 5)
	assert.Zero(t, won)
	for name, round := range before {
		assert.NotEqual(t, round, rounds[name])
	}
	for _, round := range rounds {
		grant := wire.Message{Kind: wire.Grant, Round: round}
		require.NoError(t, n.Receive(peers[1], grant.Append(nil)))
		look()
	}
	tick(200, 5)
	assert.Equal(t, many, won)
}

// At-most-once jobs that were being handed over when a connection broke are offered again bit by
// bit, each once, and the other node says bit by bit which it took. Jobs that were offered to a node that is
// forgotten become uncertain bit by bit. If the node is back before that is done, the rest are offered again.
func TestVeryManyHandoversGoOn(t *testing.T) {
	const many = 5000
	now := int64(1_700_000_000_000)
	giver, _, _ := node(now)
	peer := wire.NodeID{1, 2, 3}
	giver.SetLife(peer, 7)
	giver.Mesh().Up(peer, "10.0.0.1:1", false)
	var ids []store.ID
	for range many {
		id, _, err := giver.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, TTL: 6000})
		require.NoError(t, err)
		ids = append(ids, id)
		giver.Effects()
	}
	sent := map[wire.Kind]map[store.ID]int{wire.Offer: {}, wire.Taken: {}}
	rounds := map[store.ID]uint64{}
	var offers [][]byte
	look := func(n *engine.Node) {
		count := 0
		for _, e := range n.Effects() {
			count++
			if e.Kind != engine.Send {
				continue
			}
			b := n.Message(&e)
			if to := sent[wire.Kind(b[0])]; to != nil {
				var m wire.Message
				require.NoError(t, m.Parse(b))
				to[store.ID(m.ID)]++
				rounds[store.ID(m.ID)] = m.Round
				offers = append(offers, bytes.Clone(b))
			}
		}
		assert.LessOrEqual(t, count, mostAtOnce+10)
	}
	tick := func(n *engine.Node, times int) {
		for range times {
			now++
			n.SetNow(now)
			n.Tick()
			look(n)
		}
	}
	for tries := 0; len(rounds) < many && tries < 1000; tries++ {
		need := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: 1000}
		require.NoError(t, giver.Receive(peer, need.Append(nil)))
		look(giver)
		tick(giver, 1)
	}
	require.Len(t, rounds, many)
	taker, _, _ := node(now)
	taker.Mesh().Up(peer, "10.0.0.1:1", false)
	for _, m := range offers[:many] {
		require.NoError(t, taker.Receive(peer, m))
		look(taker)
	}

	clear(sent[wire.Taken])
	taker.Mesh().Down(peer)
	taker.Mesh().Up(peer, "10.0.0.1:1", false)
	look(taker)
	assert.NotEmpty(t, sent[wire.Taken])
	tick(taker, 20)
	assert.Len(t, sent[wire.Taken], many)
	assert.Equal(t, uint64(many), taker.Queue([]byte("q")).Len)

	// Some of the answers come first.
	clear(sent[wire.Offer])
	giver.Mesh().Down(peer)
	giver.Mesh().Up(peer, "10.0.0.1:1", false)
	look(giver)
	assert.Less(t, len(sent[wire.Offer]), many/2)
	taken := 0
	for id, round := range rounds {
		if sent[wire.Offer][id] == 0 && taken < 500 {
			m := wire.Message{Kind: wire.Taken, ID: wire.JobID(id), Round: round}
			require.NoError(t, giver.Receive(peer, m.Append(nil)))
			taken++
			look(giver)
		}
	}
	tick(giver, 20)
	assert.Len(t, sent[wire.Offer], many-taken)
	for _, times := range sent[wire.Offer] {
		require.Equal(t, 1, times)
	}

	uncertain := func() (count int) {
		for i := range ids {
			if j := giver.Job(&ids[i]); j != nil && j.Uncertain() {
				count++
			}
		}
		return count
	}
	giver.Mesh().Forget(peer)
	look(giver)
	assert.NotZero(t, uncertain())
	assert.Less(t, uncertain(), many/2)
	giver.SetLife(peer, 7)
	giver.Mesh().Up(peer, "10.0.0.1:1", true)
	look(giver)
	tick(giver, 20)
	assert.Zero(t, uncertain())
	giver.Mesh().Forget(peer)
	look(giver)
	tick(giver, 20)
	assert.Equal(t, many-taken, uncertain())
	assert.Equal(t, uint64(many-taken), giver.Jobs())
}

// A queue whose pause ends takes back its overdue jobs bit by bit, and all of them: also
// if it was paused again, has another name, or some of its jobs were done meanwhile.
func TestVeryManyOverdueJobsComeBack(t *testing.T) {
	const many = 5000
	for name, meanwhile := range map[string]func(n *engine.Node, ids []store.ID){
		"nothing": func(*engine.Node, []store.ID) {},
		"done": func(n *engine.Node, ids []store.ID) {
			for i := range 100 {
				require.True(t, n.Ack(&ids[many-1-i]))
				_, _, err := n.Working(&ids[i], engine.Work{})
				require.NoError(t, err)
			}
		},
		"paused again": func(n *engine.Node, _ []store.ID) {
			_, err := n.SetPause([]byte("q"), engine.PauseIn, 0)
			require.NoError(t, err)
			for range 20 {
				n.Tick()
				n.Effects()
			}
			require.NotZero(t, n.Queue([]byte("q")).Overdue)
			_, err = n.SetPause([]byte("q"), engine.PauseOut, 0)
			require.NoError(t, err)
		},
		"renamed": func(n *engine.Node, _ []store.ID) {
			q := n.Queue([]byte("q"))
			box := q.Box
			n.Unlinked(box, q)
			n.Effects()
			require.Same(t, q, n.Reclaim(box))
			n.Attached(q, []byte("other"), 0)
		},
		"swapped": func(n *engine.Node, _ []store.ID) {
			n.Swapped(0, 1)
			n.Effects()
			for range 5 {
				n.Tick()
				n.Effects()
			}
			n.Swapped(0, 1)
		},
		"flushed": func(n *engine.Node, _ []store.ID) { n.Flush() },
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			var ids []store.ID
			for range many {
				id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600})
				require.NoError(t, err)
				ids = append(ids, id)
				n.Effects()
			}
			require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, many, false, nil), many)
			n.Effects()
			_, err := n.SetPause([]byte("q"), engine.PauseIn, 0)
			require.NoError(t, err)
			overdue := func() int { _, o := n.InProgress(); return int(o) }
			now += 11_000
			for ticks := 0; overdue() < many && ticks < 100; ticks++ {
				now++
				n.SetNow(now)
				n.Tick()
				n.Effects()
			}
			require.Equal(t, many, overdue())
			before := many
			look := func() {
				n.Effects()
				assert.LessOrEqual(t, before-overdue(), mostAtOnce)
				before = overdue()
			}
			_, err = n.SetPause([]byte("q"), 0, 0)
			require.NoError(t, err)
			look()
			assert.Less(t, before, many)
			now++
			n.SetNow(now)
			n.Tick()
			look()
			meanwhile(n, ids)
			n.Effects()
			before = overdue()
			step := int64(1)
			if name == "swapped" {
				step = 2000 // a job that was due while its queue was in another database is looked at again after a minute
			}
			for range 50 {
				now += step
				n.SetNow(now)
				next := n.Tick()
				look()
				if before > 0 {
					require.Equal(t, now+1, next)
				}
			}
			assert.Zero(t, overdue())
			working, _ := n.InProgress()
			switch name {
			case "flushed":
				assert.Zero(t, n.Jobs())
			case "renamed":
				assert.Equal(t, uint64(many), n.Queue([]byte("other")).Len)
			case "done":
				assert.GreaterOrEqual(t, uint64(100), working)
				assert.Equal(t, uint64(many-100), n.Queue([]byte("q")).Len+working)
			default:
				assert.Equal(t, uint64(many), n.Queue([]byte("q")).Len)
			}
		})
	}
}

// A node that meets its first other node doesn't look at all locks to learn how long they
// can last as votes. Nevertheless the lengths that it has remembered cover them.
func TestVeryManyLocksBecomeVotes(t *testing.T) {
	const many = 3000
	bare := func(n *engine.Node, i int) {
		o, _ := n.Locks().Acquire(bareName(fmt.Sprint("n", i)), []byte("a"), int64(60_000+i), 0, nil)
		require.Equal(t, lock.Granted, o.Kind)
	}
	unique := func(u engine.Unique) func(n *engine.Node, i int) {
		return func(n *engine.Node, i int) {
			_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: fmt.Append(nil, i), Replicate: 1, Retry: 10, TTL: 6000, Unique: u})
			require.NoError(t, err)
		}
	}
	for name, c := range map[string]struct {
		take     func(n *engine.Node, i int)
		longest  int64
		unleased bool
	}{
		"nothing": {func(*engine.Node, int) {}, 0, false},
		"bare":    {bare, 60_000 + many - 1, false},
		"jobs":    {unique(engine.Unique{Strategy: store.UniqueBefore}), 0, true},
		"leased":  {unique(engine.Unique{Strategy: store.UniqueBefore, LockTTL: 90}), 90_000, false},
	} {
		for _, how := range []string{"taken", "loaded", "promoted"} {
			t.Run(name+", "+how, func(t *testing.T) {
				now, looks := int64(1_700_000_000_000), 0
				steady := func() int64 { looks++; return now }
				n, _, _ := steadyNode(now, steady)
				n.Locks().SetVotes(lock.Votes{})
				for i := range many {
					c.take(n, i)
					n.Effects()
				}
				if how != "taken" {
					var locks [][]byte
					for l := n.Locks().Table().Head; l != nil; l = l.Next {
						locks = append(locks, bytes.Clone(l.Record()))
					}
					records := saved(n)
					n, _, _ = steadyNode(now, steady)
					n.Locks().SetVotes(lock.Votes{})
					n.SetPassive(how == "promoted")
					n.BeginLoading()
					for _, rec := range locks {
						require.NoError(t, n.Locks().Apply(rec))
					}
					for _, rec := range records {
						require.NoError(t, n.ApplyJob([]byte("q"), rec))
					}
					n.EndLoading()
					if how == "loaded" {
						n.Settle(engine.Trust{})
					} else {
						n.SetPassive(false)
					}
					n.Effects()
				}
				require.Equal(t, c.longest > 0 || c.unleased, n.Locks().Count() == many)
				looks = 0
				n.Mesh().Up(wire.NodeID{1, 2, 3}, "10.0.0.1:1", false)
				n.Effects()
				assert.Less(t, looks, 100)
				if how == "promoted" { // its master may have given longer ones
					assert.False(t, n.Locks().Votes().Longest.Known())
					assert.True(t, n.Locks().Votes().Unleased)
					return
				}
				assert.GreaterOrEqual(t, n.Locks().Votes().Longest.Max(), c.longest)
				assert.LessOrEqual(t, n.Locks().Votes().Longest.Max(), max(5120, c.longest*5/4))
				assert.Equal(t, c.unleased, n.Locks().Votes().Unleased)
			})
		}
	}
}

// A tick looks at some of very many locks, whatever share of all locks that is.
func TestATickLooksAtSomeOfVeryManyLocks(t *testing.T) {
	now, looks := int64(1_700_000_000_000), 0
	n, _, _ := steadyNode(now, func() int64 { looks++; return now })
	for i := range 100_000 {
		o, _ := n.Locks().Acquire(bareName(fmt.Sprint("n", i)), []byte("a"), 600_000, 0, nil)
		require.Equal(t, lock.Granted, o.Kind)
		n.Effects()
	}
	most, rounds := 0, 0
	for ticks := 0; rounds == 0 && ticks < 1000; ticks++ {
		now += 50
		n.SetNow(now)
		looks = 0
		n.Tick()
		n.Effects()
		most = max(most, looks)
		if n.LockCursor() == 0 {
			rounds++
		}
	}
	assert.Equal(t, 1, rounds)
	assert.Less(t, most, 4000) // twice for each
	assert.Greater(t, most, 1000)
}

// Very many runs that couldn't be claimed while there was
// no majority are claimed bit by bit once there is one.
func TestVeryManyRunsAreClaimedAfterAPartition(t *testing.T) {
	const many = 2000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	peers := []wire.NodeID{{1, 2, 3, 0}, {1, 2, 3, 1}}
	up := func() {
		for i := range peers {
			n.Mesh().Up(peers[i], fmt.Sprintf("10.0.0.%d:1", i), false)
			n.Effects()
		}
	}
	up()
	n.Locks().Trust()
	n.Locks().VotesKept(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
	n.Effects()
	for i := range peers {
		n.Mesh().Down(peers[i])
		n.Effects()
	}
	for i := range many {
		q := fmt.Append(nil, "q", i)
		_, err := n.Wait([][]byte{q}, i)
		require.NoError(t, err)
		_, _, err = n.AddJob(&engine.Add{Queue: q, Body: q, Replicate: 1, Retry: 10, TTL: 6000, Unique: engine.Unique{Strategy: store.UniqueDuring}})
		require.NoError(t, err)
		n.Effects()
	}
	up()
	now += 600 // all may be asked for again
	claimed := map[string]bool{}
	for range 60 {
		n.SetNow(now)
		n.Tick()
		before := len(claimed)
		for _, e := range n.Effects() {
			if m := n.Message(&e); e.Kind == engine.Send && wire.Kind(m[0]) == wire.Claim {
				var c wire.Message
				require.NoError(t, c.Parse(m))
				claimed[string(c.Lock.Name)] = true
			}
		}
		assert.LessOrEqual(t, len(claimed)-before, 100)
		now++
	}
	assert.Len(t, claimed, many)
}

// A vote without a lease among very many others is remembered as long as it lasts, even if
// nothing else makes the node look at its locks: the pass over them comes to it again long
// before the promise would be over.
func TestAVoteWithoutALeaseAmongVeryMany(t *testing.T) {
	const many = 300_000
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	n.Locks().SetVotes(lock.Votes{})
	_, _, err := n.AddJob(&engine.Add{
		Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 100, TTL: 86400, Unique: engine.Unique{Strategy: store.UniqueBefore},
	})
	require.NoError(t, err)
	for i := range many {
		o, _ := n.Locks().Acquire(bareName(fmt.Sprint(i)), []byte("a"), 3_600_000, 0, nil)
		require.Equal(t, lock.Granted, o.Kind)
		n.Effects()
	}
	began, last, passes := now, n.LockCursor(), 0
	for passes < 2 {
		now = n.Tick()
		n.SetNow(now)
		n.Effects()
		if n.LockCursor() < last {
			passes++
		}
		last = n.LockCursor()
	}
	assert.Less(t, (now-began)/2, int64(180_000))

	// A lock that was given while the node was alone is a vote from the moment when the node meets another one.
	now += 601_000
	n.SetNow(now)
	n.Mesh().Up(wire.NodeID{1, 2, 3}, "10.0.0.1:1", false)
	assert.True(t, n.Locks().Votes().Unleased)
}

// votingMesh makes a node that votes, with the others of its mesh. claims takes its effects, counts
// them, and returns the rounds of the claims that the node sends to the first of the others.
func votingMesh(t *testing.T, now int64, others int) (n *engine.Node, peers []wire.NodeID, claims func() (rounds []uint64, count map[engine.EffectKind]int)) {
	n, _, _ = node(now)
	for i := range others {
		peers = append(peers, wire.NodeID{1, 2, 3, byte(i)})
		n.Mesh().Up(peers[i], fmt.Sprintf("10.0.0.%d:1", i), false)
	}
	n.Locks().Trust()
	n.Locks().VotesKept(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
	n.Effects()
	return n, peers, func() (rounds []uint64, count map[engine.EffectKind]int) {
		count = map[engine.EffectKind]int{}
		for _, e := range n.Effects() {
			count[e.Kind]++
			if e.Kind == engine.Send && e.Peer.ID == peers[0] && wire.Kind(n.Message(&e)[0]) == wire.Claim {
				var m wire.Message
				require.NoError(t, m.Parse(n.Message(&e)))
				rounds = append(rounds, m.Round)
			}
		}
		return rounds, count
	}
}

// runs adds jobs to a queue that may not run beside others of their keys. Each has its own key.
func runs(t *testing.T, n *engine.Node, queue string, count int) {
	for range count {
		_, _, err := n.AddJob(&engine.Add{
			Queue: []byte(queue), Body: fmt.Append(nil, n.Stats.Added), Replicate: 1, Retry: 10, TTL: 6000, Unique: engine.Unique{Strategy: store.UniqueDuring},
		})
		require.NoError(t, err)
	}
}

func answered(t *testing.T, n *engine.Node, peers []wire.NodeID, m *wire.Message) {
	for _, p := range peers {
		require.NoError(t, n.Receive(p, m.Append(nil)))
	}
}

// An answer to a claim for a run costs the same however many clients wait for the queue: it may
// release only clients that wait for nothing but answers.
func TestAnAnswerWhereVeryManyClientsWait(t *testing.T) {
	grant := func(clients int) time.Duration {
		n, peers, claims := votingMesh(t, dawn, 2)
		for i := range clients {
			_, err := n.Wait([][]byte{[]byte("q")}, i)
			require.NoError(t, err)
			n.Effects()
		}
		return spent(t, func() func() {
			runs(t, n, "q", 1)
			rounds, _ := claims()
			require.Len(t, rounds, 1)
			return func() {
				answered(t, n, peers[:1], &wire.Message{Kind: wire.Grant, Round: rounds[0]})
				_, count := claims()
				require.Equal(t, 1, count[engine.Serve])
			}
		})
	}
	assert.Less(t, grant(300_000), 5*grant(100))
}

// Clients that wait only for answers are released bit by bit once these have come, and none before the answers for
// all its queues have.
func TestVeryManyClientsWhoWaitForAnswers(t *testing.T) {
	const many = 5000
	now := int64(dawn)
	n, peers, claims := votingMesh(t, now, 2)
	names := [][]byte{[]byte("empty"), []byte("q"), []byte("r")}
	rounds := map[string][]uint64{}
	for _, queue := range []string{"q", "r"} {
		runs(t, n, queue, 1)
		assert.Empty(t, n.Fetch([]*store.Queue{n.Queue([]byte(queue))}, 1, true, nil))
		rounds[queue], _ = claims()
	}
	for i := range many {
		require.True(t, n.Asking(names))
		_, err := n.WaitForAnswers(names, i)
		require.NoError(t, err)
		_, count := claims()
		require.Zero(t, count[engine.Release])
	}
	one, err := n.WaitForAnswers(names[1:2], "one")
	require.NoError(t, err)
	gone, err := n.WaitForAnswers(names, "gone")
	require.NoError(t, err)
	n.Cancel(gone)
	grant := func(queue string) {
		require.Len(t, rounds[queue], 1)
		answered(t, n, peers, &wire.Message{Kind: wire.Grant, Round: rounds[queue][0]})
	}
	ticks := func(first []*engine.Waiter) (released int) {
		for range 300 {
			before := released
			for _, e := range n.Effects() {
				if e.Kind == engine.Release {
					if released++; len(first) > 0 {
						require.Contains(t, first, e.Waiter)
					}
				}
			}
			require.LessOrEqual(t, released-before, 40)
			now++
			n.SetNow(now)
			n.Tick()
		}
		return released
	}
	_, err = n.Wait(names, "stays")
	require.NoError(t, err)
	n.Effects()
	grant("q") // one of all clients gets the job
	assert.Equal(t, 1, ticks([]*engine.Waiter{one}))
	grant("r")
	assert.Equal(t, many-2, ticks(nil))
	assert.Equal(t, 1, n.Blocked())
}

// When a pause ends for a queue that very many clients wait for, one call has very many runs to claim.
// It claims them bit by bit.
func TestVeryManyRunsAreClaimedWhereAPauseEnds(t *testing.T) {
	const many = 2000
	now := int64(dawn)
	n, _, claims := votingMesh(t, now, 4)
	_, err := n.SetPause([]byte("q"), engine.PauseOut, 0)
	require.NoError(t, err)
	for i := range many {
		runs(t, n, "q", 1)
		_, err := n.Wait([][]byte{[]byte("q")}, i)
		require.NoError(t, err)
		n.Effects()
	}
	_, err = n.SetPause([]byte("q"), 0, 0)
	require.NoError(t, err)
	claimed := 0
	for range 50 {
		rounds, count := claims()
		claimed += len(rounds)
		assert.LessOrEqual(t, count[engine.Send], mostAtOnce)
		now++
		n.SetNow(now)
		n.Tick()
	}
	assert.Equal(t, many, claimed)
}

// When very many jobs fall due, or come back, at one moment, other nodes are asked for their
// locks, or told of them, bit by bit.
func TestVeryManyJobsWithLocksAreDue(t *testing.T) {
	const many, others = 2000, 4
	for name, c := range map[string]struct {
		delay  int64
		unique engine.Unique
		serve  bool // serve the jobs to clients, one after the other
	}{
		"LOCKTTL begins":         {5, engine.Unique{Strategy: store.UniqueUntil, LockTTL: 60}, false},
		"before-processing":      {0, engine.Unique{Strategy: store.UniqueBefore}, true},
		"both, and their runs":   {0, engine.Unique{Strategy: store.UniqueBoth}, true},
		"during, and their runs": {0, engine.Unique{Strategy: store.UniqueDuring}, true},
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(dawn)
			n, peers, claims := votingMesh(t, now, others)
			settle := func() { // the others grant everything at once
				for {
					rounds, _ := claims()
					if len(rounds) == 0 {
						return
					}
					for _, round := range rounds {
						answered(t, n, peers, &wire.Message{Kind: wire.Grant, Round: round})
					}
				}
			}
			for i := range many {
				_, _, err := n.AddJob(&engine.Add{
					Queue: []byte("q"), Body: fmt.Append(nil, i), Replicate: 1, Retry: 10, TTL: 6000, Delay: c.delay, Unique: c.unique, CanWait: true,
				})
				require.NoError(t, err)
				settle()
				if c.serve {
					if len(n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil)) == 0 {
						_, err := n.Wait([][]byte{[]byte("q")}, i)
						require.NoError(t, err)
					}
					settle()
				}
			}
			q := n.Queue([]byte("q"))
			require.EqualValues(t, many, n.Jobs())
			require.Zero(t, q.Len)
			now += 4_990
			if c.serve {
				now += 5_000
			}
			n.SetNow(now)
			n.Tick()
			n.Effects()
			for ticks := 0; q.Len < many; ticks++ {
				require.Less(t, ticks, 2000)
				now++
				n.SetNow(now)
				n.Tick()
				rounds, count := claims()
				assert.LessOrEqual(t, count[engine.Send], 3*mostAtOnce/2) // and the votes that are to be taken back
				for _, round := range rounds {
					answered(t, n, peers, &wire.Message{Kind: wire.Grant, Round: round})
				}
			}
		})
	}
}

// Very many votes are to be taken back at two nodes that are away. One node is forgotten, so its votes needn't be
// taken back; this is noted bit by bit. The other node is still told of each.
func TestANodeThatIsForgottenIsOwedVeryManyVotes(t *testing.T) {
	const many = 20_000
	now := int64(dawn)
	n, peers, _ := votingMesh(t, now, 2)
	for i := range peers {
		n.Mesh().Down(peers[i])
	}
	told := map[string]bool{}
	look := func() {
		for _, e := range n.Effects() {
			if m := n.Message(&e); e.Kind == engine.Send && wire.Kind(m[0]) == wire.Unlock {
				told[string(m)] = true
			}
		}
	}
	ticks := func(count int, step int64) {
		for range count {
			look()
			before := n.Locks().Acquisitions()
			now += step
			n.SetNow(now)
			n.Tick()
			require.LessOrEqual(t, before-n.Locks().Acquisitions(), mostAtOnce)
			look()
		}
	}
	for i := range many {
		n.Locks().Unhear(bareName(fmt.Sprint("n", i)), []byte("a"), &lock.Result{Kind: lock.Granted, Token: uint64(i + 1)})
		n.Effects()
	}
	ticks(100, 100)
	n.Mesh().Forget(peers[1])
	require.Equal(t, many, n.Locks().Acquisitions())
	ticks(100, 1)
	require.Equal(t, many, n.Locks().Acquisitions())
	n.Mesh().Up(peers[0], "10.0.0.0:1", false)
	ticks(100, 1)
	assert.Len(t, told, many)
	n.Mesh().Down(peers[0])
	ticks(100, 1)
	n.Mesh().Forget(peers[0])
	require.Equal(t, many, n.Locks().Acquisitions())
	ticks(100, 1)
	assert.Zero(t, n.Locks().Acquisitions())
}

// The list of jobs that a job waits for is rewritten when one of them ends. So a dependent that waits for very many
// counts as several of the dependents that one call follows. Only the end is logged, and not the list.
func TestTheEndOfAJobForWhichJobsWaitThatWaitForMany(t *testing.T) {
	const many = 300
	n, _, _ := node(dawn)
	add := adder(t, n)
	var parents, children []store.ID
	for range many {
		parents = append(parents, add("p", engine.Add{Retry: 10, TTL: 600}))
	}
	for range many {
		children = append(children, add("c", engine.Add{Retry: 10, TTL: 600, Members: engine.Members{After: parents}}))
	}
	followed := func() (drops int) {
		for _, e := range n.Effects() {
			switch e.Kind {
			case engine.LogState:
				require.Equal(t, "p", string(e.Job.Queue.NameBytes()))
			case engine.LogDrop:
				drops++
			}
		}
		return drops
	}
	n.Effects()
	require.True(t, n.Ack(&parents[0]))
	most, all := 0, 0
	for i := range many {
		drops := followed()
		most, all = max(most, drops), all+drops
		n.SetNow(dawn + int64(i))
		n.Tick()
	}
	assert.Less(t, most, 60)
	assert.Equal(t, many, all)
	for _, c := range children {
		require.Equal(t, many-1, len(waitsFor(n, n.Job(&c))))
	}
}

// A job that comes back, and waits for very many jobs of which many have ended, is rewritten once.
func TestManyHaveEndedWhenOneComesBack(t *testing.T) {
	const many = 1000
	for _, tc := range []struct {
		name           string
		onDead         uint8
		acked, deleted int // of the jobs that it waits for
		queue          string
	}{
		{"done", engine.OnDeadDrop, 300, 0, "c"},
		{"done or not, it goes on", engine.OnDeadRun, 150, 150, "c"},
		{"one isn't done, it falls", engine.OnDeadDrop, 299, 1, ""},
		{"one isn't done, it goes to the dead", engine.OnDeadDead, 299, 1, "c:dead"},
		{"all are done", engine.OnDeadDrop, many, 0, "c"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, k, _ := node(dawn)
			add := adder(t, n)
			var parents []store.ID
			for range many {
				parents = append(parents, add("p", engine.Add{Retry: 10, TTL: 600}))
			}
			c := add("c", engine.Add{Retry: 10, TTL: 600, Members: engine.Members{After: parents, OnDead: tc.onDead}})
			record := bytes.Clone(n.Job(&c).Record())
			k.Drop([]*store.Queue{n.Queue([]byte("c"))}) // DUMP, DEL
			n.Effects()
			n.Tick()
			ended := tc.acked + tc.deleted
			for i, p := range parents[many-ended:] {
				if i < tc.acked {
					n.Ack(&p)
				} else {
					n.CancelJob(&p)
				}
				n.Effects()
			}
			q := n.NewQueueFor(unsafe.Pointer(new([8]byte))) // RESTORE
			require.NoError(t, n.LoadRecord(q, record))
			n.Restored(q, []byte("c"), 0)
			n.SettleQueue(q, engine.Trust{Exact: true, Same: true})
			n.Effects()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for i := range 5 {
				n.SetNow(dawn + int64(i) + 1)
				n.Tick()
				n.Effects()
			}
			runtime.ReadMemStats(&after)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(3_000_000))
			j := n.Job(&c)
			if tc.queue == "" {
				require.Nil(t, j)
				return
			}
			assert.Equal(t, tc.queue, string(j.Queue.NameBytes()))
			left := waitsFor(n, j)
			assert.Equal(t, j.State == store.StateQueued, len(left) == 0)
			if tc.queue == "c" {
				assert.Equal(t, many-ended, len(left))
			}
		})
	}
}

// A node that comes is told of very many acknowledged jobs bit by bit, also while the timers of those jobs are due: both kinds
// of work share a tick's budget. In the end the node has heard of all of them.
func TestANodeIsToldOfVeryManyAcks(t *testing.T) {
	const many = 20_000
	now, peer, other, fresh := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}, wire.NodeID{5, 5, 5}, wire.NodeID{4, 5, 6}
	n, _ := paired(now, peer)
	n.Mesh().Up(other, "10.0.0.5:1", true)
	n.Effects()
	ids := make([]store.ID, many)
	for i := range ids {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 3600, TTL: 86400})
		require.NoError(t, err)
		ids[i] = id
		n.Effects()
	}
	n.Mesh().Down(peer)
	n.Mesh().Down(other)
	for i := range ids {
		require.True(t, n.Ack(&ids[i]))
		n.Effects()
	}
	now += 2000
	n.SetNow(now)
	n.Mesh().Up(fresh, "10.0.0.2:1", true)
	told, most := map[wire.JobID]bool{}, 0
	for range 500 {
		sent := 0
		for _, e := range n.Effects() {
			if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.SetAck) {
				var m wire.Message
				require.NoError(t, m.Parse(n.Message(&e)))
				told[m.ID] = true
				sent++
			}
		}
		most = max(most, sent)
		now++
		n.SetNow(now)
		n.Tick()
	}
	assert.LessOrEqual(t, most, mostAtOnce)
	assert.Len(t, told, many)
}

// lastOf makes a job that is released to come last after count others, which are queued.
func lastOf(t *testing.T, count int) (*engine.Node, *keys, store.ID, int64) {
	now := int64(dawn)
	n, k, _ := node(now)
	p, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 10, TTL: 6000, Members: engine.Members{Deferred: true}})
	require.NoError(t, err)
	n.Effects()
	for range count {
		_, _, err := n.AddJob(&engine.Add{Queue: []byte("c"), Replicate: 1, Retry: 10, TTL: 6000, Members: engine.Members{BlockedBy: &p}})
		require.NoError(t, err)
		n.Effects()
	}
	_, _, err = n.Release(&p, nil, true, false)
	require.NoError(t, err)
	n.Effects()
	for range count/300 + 10 {
		now++
		n.SetNow(now)
		n.Tick()
		n.Effects()
	}
	require.EqualValues(t, count, n.Queue([]byte("c")).Len)
	return n, k, p, now
}

// The queue of very many jobs that another comes after is deleted: no tick takes long, and the job is queued in the end.
func TestQueueOfThoseThatOneComesAfterIsDeleted(t *testing.T) {
	const count = 20_000
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n, k, p, now := lastOf(t, count)
	k.Drop([]*store.Queue{n.Queue([]byte("c"))})
	n.Effects()
	for range 2*count/1000 + 20 {
		now += 1000
		n.SetNow(now)
		began := threadTime(t)
		n.Tick()
		n.Effects()
		if n.Job(&p).State == store.StateQueued {
			break
		}
		assert.Less(t, threadTime(t)-began, 20*time.Millisecond) // 5 ms on a machine at rest
	}
	require.Equal(t, store.StateQueued, n.Job(&p).State)
}

// SHOW lists some of the jobs that such a job waits for, and counts them all.
func TestThoseThatOneComesAfterAreListed(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n, _, p, _ := lastOf(t, 200_000)
	began := threadTime(t)
	ids, all := n.WaitsFor(n.Job(&p), 1000)
	assert.Less(t, threadTime(t)-began, 5*time.Millisecond)
	assert.Len(t, ids, 1000)
	assert.EqualValues(t, 200_000, all)
}

// manyAsk: so many clients wait, by WAITCOPIES or a question with MESH, for 5 s at most.
func manyAsk(t *testing.T, clients int, copies bool) (n *engine.Node, mate wire.NodeID, pending []engine.Pending) {
	n, mate = bulkAdder(t)
	n.SetFeatures(mate, engine.Features{Batches: true, Counts: true, Copies: true})
	const jobs = 1000
	b, _ := addMany(t, n, jobs, engine.Add{Replicate: 2, Async: true})
	n.Effects()
	for i := range clients {
		var p engine.Pending
		if copies {
			var now []int64
			p, now = n.WaitCopies([]store.ID{b.Answers[i%jobs].ID}, 0, 5000)
			require.Nil(t, now)
		} else {
			var now *engine.MeshAnswer
			p, now = n.AskCounts([]byte("q"), 5000)
			require.Nil(t, now)
		}
		n.Tie(p, i)
		n.Effects()
		pending = append(pending, p)
	}
	return n, mate, pending
}

// Very many clients wait for copies, or for the answers of other nodes, and that ends for all of them at one moment. They are answered bit
// by bit, each once, but those that have gone aren't. While they wait a tick costs little.
func TestVeryManyClientsWaitForOtherNodes(t *testing.T) {
	const many = 20_000
	for name, tc := range map[string]struct {
		copies, questions bool
		end               func(n *engine.Node, mate wire.NodeID, count func())
	}{
		"their time is up":      {true, true, func(n *engine.Node, _ wire.NodeID, _ func()) { n.SetNow(n.Now() + 4000) }},
		"the other node goes":   {false, true, func(n *engine.Node, mate wire.NodeID, _ func()) { n.Mesh().Down(mate) }},
		"the node is a replica": {true, false, func(n *engine.Node, _ wire.NodeID, _ func()) { n.SetPassive(true) }},
		"a replica, and promoted": {true, true, func(n *engine.Node, mate wire.NodeID, count func()) {
			n.SetPassive(true)
			n.Mesh().Down(mate)
			for done := false; !done; {
				count()
				done, _ = n.Promote(func() bool { return true })
			}
		}},
		"CLUSTER RESET": {true, false, func(n *engine.Node, _ wire.NodeID, _ func()) { n.Reset() }},
	} {
		for _, copies := range []bool{true, false} {
			if copies && !tc.copies || !copies && !tc.questions {
				continue
			}
			t.Run(fmt.Sprintf("%s, copies %v", name, copies), func(t *testing.T) {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				n, mate, pending := manyAsk(t, many, copies)
				answered := map[any]int{}
				most := 0
				count := func() {
					here := 0
					for _, e := range n.Effects() {
						if e.Kind == engine.AnswerMesh {
							answered[e.Client]++
							here++
						}
					}
					most = max(most, here)
				}
				for i := range many / 10 {
					n.Abandon(pending[10*i])
				}
				took := make([]time.Duration, 50)
				for i := range took {
					n.SetNow(n.Now() + 1)
					began := threadTime(t)
					n.Tick()
					took[i] = threadTime(t) - began
					counted(t, n)
				}
				slices.Sort(took)
				assert.Less(t, took[25], 2*time.Millisecond) // a few 100 µs on a machine at rest
				tc.end(n, mate, count)
				count()
				for ticks := 0; len(answered) < many*9/10 && ticks < 3000; ticks++ {
					n.SetNow(n.Now() + 1)
					n.Tick()
					count()
				}
				for range 20 {
					n.SetNow(n.Now() + 1)
					n.Tick()
					count()
				}
				assert.LessOrEqual(t, most, mostAtOnce)
				assert.Len(t, answered, many*9/10)
				for client, times := range answered {
					require.Equal(t, 1, times)
					require.NotZero(t, client.(int)%10, "it has gone")
				}
				for _, p := range pending {
					assert.Nil(t, n.CopiesSoFar(p))
				}
			})
		}
	}
}

// A process that ends answers all of them at once.
func TestVeryManyWaitForCopiesWhenTheProcessEnds(t *testing.T) {
	n, _, _ := manyAsk(t, 5000, true)
	n.Farewell()
	answers := 0
	for _, e := range n.Effects() {
		if e.Kind == engine.AnswerMesh {
			answers++
		}
	}
	assert.Equal(t, 5000, answers)
}

// Other clients are answered in time while a few ask about very many jobs.
func TestWaitCopiesEndsInTimeAmongVeryManyAsks(t *testing.T) {
	n, mate := bulkAdder(t)
	n.SetFeatures(mate, engine.Features{Batches: true, Counts: true, Copies: true})
	const jobs = 10_000
	b, _ := addMany(t, n, jobs, engine.Add{Replicate: 2, Async: true})
	ids := make([]store.ID, jobs)
	for i := range ids {
		ids[i] = b.Answers[i].ID
	}
	for range 20 {
		n.WaitCopies(ids, 0, 0)
	}
	p, now := n.WaitCopies(ids[:1], 0, 100)
	require.Nil(t, now)
	n.Tie(p, "client")
	n.Effects()
	for range 110 {
		n.SetNow(n.Now() + 1)
		n.Tick()
		for _, e := range n.Effects() {
			if e.Kind == engine.AnswerMesh && e.Client == "client" {
				return
			}
		}
	}
	t.Error("it isn't answered")
}

// Very many jobs with names wait for the answer of a node that stands still. Their questions end bit by bit.
func TestNamesEndBitByBit(t *testing.T) {
	const many = 100_000
	n, _, _ := node(dawn)
	other := wire.NodeID{1, 2, 3}
	n.Mesh().Add(other, "b:1")
	n.SetFeatures(other, engine.Features{Names: true})
	n.Mesh().Up(other, "b:1", true)
	n.SetEvents(engine.AllEvents, 0)
	for i := range many {
		_, err := n.AddNamed(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Name: fmt.Append(nil, i), Replicate: 1, Retry: 60, TTL: 600, Default: true})
		require.NoError(t, err)
		n.Effects()
	}
	most, all := 0, 0
	for ms := int64(500); ms < 1500; ms++ {
		n.SetNow(dawn + ms)
		n.Tick()
		told := 0
		for _, e := range n.Effects() {
			if e.Kind == engine.Happened {
				told++
			}
		}
		most, all = max(most, told), all+told
	}
	assert.Less(t, most, 5000, "events that one tick tells")
	assert.GreaterOrEqual(t, all, many)
}
