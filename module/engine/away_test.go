package engine_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// move moves a queue between databases, as MOVE does.
func move(t *testing.T, n *engine.Node, k *keys, q *store.Queue, db int) {
	t.Helper()
	box, name := q.Box, bytes.Clone(q.NameBytes())
	n.Unlinked(box, q)
	require.Same(t, q, n.Reclaim(box))
	k.boxes[q] = box
	require.Zero(t, n.Attached(q, name, db))
}

// lasting adds a job with a retry time of 100 s, which lives for a day.
func lasting(t *testing.T, n *engine.Node, queue string, m engine.Members) store.ID {
	t.Helper()
	id, _, err := n.AddJob(&engine.Add{Queue: []byte(queue), Replicate: 1, Retry: 100, TTL: 86400, Members: m})
	require.NoError(t, err)
	return id
}

// restarted makes a node that loads the queues, each into its database.
func restarted(t *testing.T, now int64, queues map[string]int, records map[string][][]byte) (*engine.Node, *keys, map[string]*store.Queue) {
	t.Helper()
	n, k, _ := node(now)
	n.BeginLoading()
	loaded := map[string]*store.Queue{}
	for name, db := range queues {
		q := n.NewQueueFor(nil)
		for _, rec := range records[name] {
			require.NoError(t, n.LoadRecord(q, rec))
		}
		require.NoError(t, k.Adopt(q))
		require.Zero(t, n.Attached(q, []byte(name), db))
		loaded[name] = q
	}
	n.EndLoading()
	n.Settle(engine.Trust{Exact: true})
	n.Effects()
	return n, k, loaded
}

// pass lets time pass, in steps.
func pass(n *engine.Node, now *int64, ms int64) {
	for end := *now + ms; *now < end; {
		*now += 500
		n.SetNow(*now)
		n.Tick()
		n.Effects()
	}
}

// A job whose queue lies in another database hasn't ended, as far as this node knows, and it says so to other
// nodes. If no other node knows the job either, the jobs that wait for it wait on. The same holds
// if the queue was loaded in that database, so that no node knows what is in it.
func TestAJobThatIsAwayHasNotEnded(t *testing.T) {
	for _, loaded := range []bool{false, true} {
		now := int64(1_700_000_000_000)
		peer := wire.NodeID{1, 2, 3}
		n, k, _ := node(now)
		add := func(queue string, m engine.Members) store.ID { return lasting(t, n, queue, m) }
		parent := add("away", engine.Members{})
		child := add("q", engine.Members{After: []store.ID{parent}})
		n.Effects()
		away := n.Queue([]byte("away"))
		if loaded {
			records := map[string][][]byte{
				"away": {bytes.Clone(n.Job(&parent).Record())},
				"q":    {bytes.Clone(n.Job(&child).Record())},
			}
			var queues map[string]*store.Queue
			n, k, queues = restarted(t, now, map[string]int{"away": 1, "q": 0}, records)
			away = queues["away"]
		} else {
			move(t, n, k, away, 1)
		}
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		fate := func() uint32 {
			n.Effects()
			require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.AskOutcome, ID: wire.JobID(parent)}).Append(nil)))
			for _, e := range n.Effects() {
				if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.Outcome) {
					var m wire.Message
					require.NoError(t, m.Parse(n.Message(&e)))
					return m.Count
				}
			}
			t.Fatal("no answer")
			return 0
		}
		assert.Equal(t, uint32(wire.OutcomeOpen), fate())
		for range 3 {
			pass(n, &now, 15_000)
			for round := range uint64(10) {
				require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.Outcome, ID: wire.JobID(parent), Count: wire.OutcomeUnknown, Round: round}).Append(nil)))
			}
			n.Effects()
			require.NotNil(t, n.Job(&child), "what it waits for is away (loaded there: %v)", loaded)
		}
		move(t, n, k, away, 0)
		pass(n, &now, 1000)
		assert.Equal(t, []store.ID{parent}, waitsFor(n, n.Job(&child)))
		n.Ack(&parent)
		n.Effects()
		assert.Equal(t, store.StateQueued, n.Job(&child).State)
		assert.NotEqual(t, uint32(wire.OutcomeOpen), fate())

		// Once the queue is gone, no job is in another database.
		unknown := store.ID(parent)
		unknown[20]++
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.AskOutcome, ID: wire.JobID(unknown)}).Append(nil)))
		for _, e := range n.Effects() {
			if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.Outcome) {
				var m wire.Message
				require.NoError(t, m.Parse(n.Message(&e)))
				assert.Equal(t, uint32(wire.OutcomeUnknown), m.Count)
			}
		}
	}
}

// The end of a job that isn't here is noted in a job that waits for it in another database. When the
// waiting job is back, maybe after a restart, perhaps no node knows any more how the other one ended.
func TestTheEndOfAStrangerReachesOneThatIsAway(t *testing.T) {
	for _, loaded := range []bool{false, true} {
		now := int64(1_700_000_000_000)
		peer := wire.NodeID{1, 2, 3}
		n, _, _ := node(now)
		parent := lasting(t, n, "p", engine.Members{})
		child := lasting(t, n, "q", engine.Members{After: []store.ID{parent}})
		db := 0
		if loaded {
			db = 1
		}
		n, k, queues := restarted(t, now, map[string]int{"q": db}, map[string][][]byte{"q": {bytes.Clone(n.Job(&child).Record())}})
		q := queues["q"]
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		if !loaded {
			move(t, n, k, q, 1)
		}
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.SetAck, ID: wire.JobID(parent)}).Append(nil)))
		pass(n, &now, 1000)
		require.NotNil(t, q.Held.Head, "loaded there: %v", loaded)
		n, k, queues = restarted(t, now, map[string]int{"q": 1}, map[string][][]byte{"q": {bytes.Clone(q.Held.Head.Record())}})
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		move(t, n, k, queues["q"], 0)
		for range 3 {
			pass(n, &now, 5_000)
			for round := range uint64(10) {
				require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.Outcome, ID: wire.JobID(parent), Count: wire.OutcomeUnknown, Round: round}).Append(nil)))
			}
			n.Effects()
		}
		require.NotNil(t, n.Job(&child), "loaded there: %v", loaded)
		assert.Equal(t, store.StateQueued, n.Job(&child).State, "loaded there: %v", loaded)
	}
}

// A job that was released to come last waits for jobs that are in another database, whether they went
// there before its release or after it.
func TestOneThatComesLastWaitsForThoseThatAreAway(t *testing.T) {
	for _, before := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			now := int64(1_700_000_000_000)
			n, k, _ := node(now)
			add := func(queue string, m engine.Members) store.ID { return lasting(t, n, queue, m) }
			last := add("last", engine.Members{Deferred: true})
			gone, here := add("away", engine.Members{BlockedBy: &last}), add("here", engine.Members{BlockedBy: &last})
			away := n.Queue([]byte("away"))
			release := func() {
				_, _, err := n.Release(&last, nil, true, false)
				require.NoError(t, err)
				n.Effects()
			}
			if !before {
				release()
			}
			record := bytes.Clone(n.Job(&gone).Record())
			move(t, n, k, away, 1)
			if restart {
				var queues map[string]*store.Queue
				n, k, queues = restarted(t, now, map[string]int{"away": 1, "here": 0, "last": 0}, map[string][][]byte{
					"away": {record}, "here": {bytes.Clone(n.Job(&here).Record())}, "last": {bytes.Clone(n.Job(&last).Record())},
				})
				away = queues["away"]
			}
			if before {
				release()
			}
			require.True(t, n.Ack(&here))
			n.Effects()
			pass(n, &now, 60_000)
			assert.Equal(t, store.StateActive, n.Job(&last).State, "released before %v, restarted %v", !before, restart)
			move(t, n, k, away, 0)
			pass(n, &now, 1000)
			assert.Equal(t, store.StateQueued, n.Job(&gone).State)
			assert.Equal(t, store.StateActive, n.Job(&last).State)
			require.True(t, n.Ack(&gone))
			n.Effects()
			assert.Equal(t, store.StateQueued, n.Job(&last).State)
			assert.Zero(t, n.Edges())
		}
	}
}

// When a copy or an acknowledgement comes of a job that is in another database, it takes the
// place of that job: of no ID two jobs are known.
func TestNoTwoOfAnIDWhereOneIsAway(t *testing.T) {
	for _, how := range []string{"a copy", "an acknowledgement", "a copy in the log", "a deletion in the log"} {
		now := int64(1_700_000_000_000)
		peer := wire.NodeID{1, 2, 3}
		n, _, _ := node(now)
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 100, TTL: 86400})
		require.NoError(t, err)
		n.Effects()
		rec := bytes.Clone(n.Job(&id).Record())
		copied := wire.Message{Kind: wire.ReplJob, Flags: wire.QueueIt, ID: wire.JobID(id), Queue: []byte("q"),
			Job: wire.Job{Body: []byte("b"), CTime: n.Job(&id).CTime, Left: 86_400_000, Retry: 100, Repl: 2}}
		n.Swapped(0, 1)
		n.Effects()
		require.Nil(t, n.Job(&id))
		known := 1
		switch how {
		case "a copy":
			require.NoError(t, n.Receive(peer, copied.Append(nil)))
		case "an acknowledgement":
			n.Ack(&id) // the other nodes are told
		case "a copy in the log":
			require.NoError(t, n.ApplyJob([]byte("q"), rec))
		default:
			n.ApplyDelete(&id)
			known = 0
		}
		n.Effects()
		assert.EqualValues(t, known, n.Jobs(), how)
		for range 2 {
			n.Swapped(0, 1)
			n.Effects()
			pass(n, &now, 1000)
		}
		assert.EqualValues(t, known, n.Jobs(), how)
		if j := n.Job(&id); how == "a copy" && assert.NotNil(t, j, how) {
			assert.Equal(t, store.StateQueued, j.State)
			assert.Equal(t, "q", string(j.Queue.NameBytes()))
		}
	}
}

// A queue is in another database while its server becomes a replica, and is promoted again.
// Its at-most-once jobs may have been delivered meanwhile.
func TestAJobThatIsAwayWhileAnotherIsMaster(t *testing.T) {
	for _, home := range []bool{false, true} { // back before the promotion
		n, k, _ := node(1_700_000_000_000)
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, TTL: 86400})
		require.NoError(t, err)
		again, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 100, TTL: 86400})
		require.NoError(t, err)
		n.Effects()
		q := n.Queue([]byte("q"))
		move(t, n, k, q, 1)
		n.SetPassive(true)
		n.Follow()
		n.Effects()
		if home {
			move(t, n, k, q, 0)
		}
		assert.Equal(t, 1, n.SetPassive(false))
		if !home {
			move(t, n, k, q, 0)
		}
		n.Effects()
		assert.True(t, n.Job(&id).Uncertain())
		assert.Equal(t, store.StateQueued, n.Job(&again).State)
		got := n.Fetch([]*store.Queue{q}, 5, true, nil)
		require.Len(t, got, 1)
		assert.Equal(t, again, got[0].ID)
	}
}

// Queues that SWAPDB takes away while their server is a replica are settled when they are back and the
// server has been promoted meanwhile. A replica has all its jobs held.
func TestQueuesThatASwapTakesFromAReplica(t *testing.T) {
	for _, home := range []bool{false, true} { // back before the promotion
		n, _, _ := node(1_700_000_000_000)
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 100, TTL: 86400})
		require.NoError(t, err)
		n.Effects()
		n.SetPassive(true)
		n.Follow()
		n.Swapped(0, 1)
		if home {
			n.Swapped(0, 1)
		}
		n.Effects()
		n.SetPassive(false)
		if !home {
			assert.Zero(t, n.Queues())
			n.Swapped(0, 1)
		}
		n.Effects()
		assert.EqualValues(t, 1, n.Queues())
		got := n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil)
		if assert.Len(t, got, 1, "home before the promotion: %v", home) {
			assert.Equal(t, id, got[0].ID)
		}
	}
}

// A queue whose key was deleted just before SWAPDB, in the same transaction, doesn't keep out
// a copy of the queue, with the same jobs, that the swap brings.
func TestASwapBringsACopyOfAQueueThatWasJustDeleted(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, k, _ := node(now)
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 100, TTL: 86400})
	require.NoError(t, err)
	n.Effects()
	q := n.Queue([]byte("q"))
	other := n.NewQueueFor(nil)
	require.NoError(t, n.LoadRecord(other, bytes.Clone(n.Job(&id).Record())))
	require.NoError(t, k.Adopt(other))
	require.Zero(t, n.Attached(other, []byte("q"), 1))
	n.Effects()
	n.Unlinked(q.Box, q)
	n.Swapped(0, 1)
	n.Effects()
	pass(n, &now, 1000)
	if j := n.Job(&id); assert.NotNil(t, j) {
		assert.Same(t, other, j.Queue)
	}
}

// A job that becomes due while its queue is in another database is queued within seconds when the
// queue is back.
func TestDueWhileAway(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 100, Delay: 1, TTL: 86400})
	require.NoError(t, err)
	pass := func(ms int64) {
		for range ms / 100 {
			now += 100
			n.SetNow(now)
			n.Tick()
			n.Effects()
		}
	}
	n.Swapped(0, 1)
	pass(2_000)
	n.Swapped(0, 1)
	pass(5_000)
	assert.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil), 1)
}

// Another node's answer about a copy counts, even if it comes while the queue is in another database. When the queue is back,
// the ADDJOB that waits for the copy is answered, or asks another node if that one refused.
func TestACopyIsAnsweredWhileItsJobIsAway(t *testing.T) {
	for _, kind := range []wire.Kind{wire.GotJob, wire.Refused} {
		for _, away := range []bool{false, true} {
			now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
			n, k := paired(now, peer)
			id, pending, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, CanWait: true, Retry: 100, TTL: 86400})
			require.NoError(t, err)
			require.True(t, pending)
			n.Tie(engine.PendingAdd(id), "client")
			n.Effects()
			q := n.Queue([]byte("q"))
			if away {
				move(t, n, k, q, 1)
			}
			require.NoError(t, n.Receive(peer, (&wire.Message{Kind: kind, ID: wire.JobID(id)}).Append(nil)))
			if away {
				move(t, n, k, q, 0)
			}
			promised, asked := false, false
			for range 700 { // 7 s
				for _, e := range n.Effects() {
					promised = promised || e.Kind == engine.Promise
					asked = asked || e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.ReplJob)
				}
				now += 10
				n.SetNow(now)
				n.Tick()
			}
			assert.Equal(t, kind == wire.GotJob, promised, "kind %d, away %v", kind, away)
			assert.Equal(t, kind == wire.Refused, asked, "kind %d, away %v", kind, away)
		}
	}
}

// A queue with a job of each kind goes to another database. Meanwhile another node queues its copies, or its client works on one.
// When the queue is back, the other nodes are asked about the job that waited before a client gets it. The job of which
// no node has spoken waits as before, and the job that a client has stays with it.
func TestOneThatAnotherNodeQueuedWhileItWasAway(t *testing.T) {
	for _, said := range []wire.Message{{Kind: wire.WillQueue}, {Kind: wire.Queued, Flags: wire.CountMore}, {Kind: wire.Working, Flags: wire.InHands}} {
		for _, answer := range []wire.Message{{Kind: wire.Queued, Flags: wire.InHands}, {}} {
			now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
			n, k, given := copied(t, now, peer)
			q := n.Queue([]byte("q"))
			require.Len(t, n.Fetch([]*store.Queue{q}, 1, true, nil), 1)
			add := func() store.ID {
				id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 100, TTL: 86400})
				require.NoError(t, err)
				n.Effects()
				return id
			}
			id, other := add(), add()
			move(t, n, k, q, 1)
			for _, of := range []store.ID{given, id} {
				said.ID = wire.JobID(of)
				require.NoError(t, n.Receive(peer, said.Append(nil)))
				n.Effects()
			}
			require.Nil(t, n.Job(&given))
			move(t, n, k, q, 0)
			n.Effects()
			assert.Equal(t, store.InWorking, n.Job(&given).Place)
			assert.Equal(t, store.StateQueued, n.Job(&other).State)
			assert.Equal(t, store.StateActive, n.Job(&id).State)
			asked := false
			for range 30 {
				now += 100
				n.SetNow(now)
				n.Tick()
				for _, e := range n.Effects() {
					if e.Kind != engine.Send || n.Message(&e)[0] != byte(wire.WillQueue) {
						continue
					}
					var m wire.Message
					require.NoError(t, m.Parse(n.Message(&e)))
					require.Equal(t, wire.JobID(id), m.ID)
					assert.Equal(t, store.StateActive, n.Job(&id).State, "asked before it is queued")
					if asked = true; answer.Kind != 0 {
						answer.ID = m.ID
						require.NoError(t, n.Receive(peer, answer.Append(nil)))
					}
				}
			}
			assert.True(t, asked)
			state := store.StateQueued
			if answer.Kind != 0 {
				state = store.StateActive
			}
			assert.Equal(t, state, n.Job(&id).State)
			assert.Zero(t, n.Job(&id).Deliveries)
			assert.Equal(t, store.InWorking, n.Job(&given).Place)
		}
	}
}

// As above, for a waiting job that the server has loaded into the other database: the other nodes are asked about it when its queue is back.
func TestOneThatAnotherNodeQueuedSinceItWasLoadedAway(t *testing.T) {
	now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
	n, _, id := copied(t, now, peer)
	n, k, queues := restarted(t, now, map[string]int{"q": 1}, map[string][][]byte{"q": {bytes.Clone(n.Job(&id).Record())}})
	n.Mesh().Up(peer, "10.0.0.1:1", true)
	require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.Queued, Flags: wire.CountMore, ID: wire.JobID(id)}).Append(nil)))
	n.Effects()
	move(t, n, k, queues["q"], 0)
	asked := false
	for range 30 {
		now += 100
		n.SetNow(now)
		n.Tick()
		for _, e := range n.Effects() {
			if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.WillQueue) {
				asked = true
				assert.Equal(t, store.StateActive, n.Job(&id).State, "asked before it is queued")
			}
		}
	}
	assert.True(t, asked)
	assert.Equal(t, store.StateQueued, n.Job(&id).State)
}

// Queues are restored, one each second, while another known node isn't connected. The restored jobs are asked
// about. A job whose retry time is over still comes again in time.
func TestRestoredQueuesDontPutOffOtherJobs(t *testing.T) {
	now, peer := int64(dawn), wire.NodeID{1, 2, 3}
	n, k := paired(now, peer)
	add := func(queue string, retry int64) store.ID {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte(queue), Body: []byte("b"), Replicate: 2, Async: true, Retry: retry, TTL: 86400})
		require.NoError(t, err)
		n.Effects()
		return id
	}
	id, dumped := add("q", 10), add("d", 3600)
	n.Mesh().Down(peer)
	rec := bytes.Clone(n.Job(&dumped).Record())
	d := n.Queue([]byte("d"))
	n.Unlinked(k.boxes[d], d)
	n.Tick()
	require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil), 1)
	n.Effects()
	for end := now + 15_000; now < end && n.Job(&id).State != store.StateQueued; {
		if (now-int64(dawn))%1000 == 0 {
			if q := n.Queue([]byte("r")); q != nil {
				n.Unlinked(k.boxes[q], q)
				delete(k.boxes, q)
				n.Tick()
			}
			q := n.NewQueueFor(nil)
			require.NoError(t, n.LoadRecord(q, rec))
			require.NoError(t, k.Adopt(q))
			n.Restored(q, []byte("r"), 0)
			n.SettleQueue(q, engine.Trust{})
			require.Equal(t, store.StateActive, n.Job(&dumped).State, "it is asked about")
		}
		now += 10
		n.SetNow(now)
		n.Tick()
		n.Effects()
	}
	assert.Equal(t, store.StateQueued, n.Job(&id).State)
}

// While an ADDJOB waits for copies, its queue is moved to another database. A holder asks, gets no answer, queues its copy
// and says so. When the queue is back, the job is left to that node.
func TestOneThatIsAddedAndThatAnotherNodeQueuedWhileItWasAway(t *testing.T) {
	now := int64(dawn)
	n, k, _ := node(now)
	b, c := wire.NodeID{1, 2, 3}, wire.NodeID{0xf1, 2, 4}
	for _, id := range []wire.NodeID{b, c} {
		n.Mesh().Add(id, "x:1")
		n.Mesh().Up(id, "x:1", true)
	}
	id, wait, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 3, Retry: 100, TTL: 86400, CanWait: true})
	require.NoError(t, err)
	require.True(t, wait)
	n.Tie(engine.PendingAdd(id), "client")
	n.Effects()
	receive := func(from wire.NodeID, m wire.Message) {
		m.ID = wire.JobID(id)
		require.NoError(t, n.Receive(from, m.Append(nil)))
		n.Effects()
	}
	receive(b, wire.Message{Kind: wire.GotJob})
	q := n.Queue([]byte("q"))
	move(t, n, k, q, 1)
	receive(b, wire.Message{Kind: wire.WillQueue})
	receive(b, wire.Message{Kind: wire.Queued, Flags: wire.CountMore})
	receive(b, wire.Message{Kind: wire.Working, Flags: wire.InHands})
	move(t, n, k, q, 0)
	n.Effects()
	receive(c, wire.Message{Kind: wire.GotJob})
	pass(n, &now, 2000)
	got := n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil)
	require.Empty(t, got, "a client of another node works on it")
}

// A move of a queue ends its pause: a job that the paused queue kept out is queued when the queue is
// back from another database.
func TestAJobThatWasKeptOutIsQueuedWhenItsQueueIsBack(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, k, _ := node(now)
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 600, TTL: 86400, Delay: 1})
	require.NoError(t, err)
	_, err = n.SetPause([]byte("q"), engine.PauseIn, 0)
	require.NoError(t, err)
	pass(n, &now, 3000)
	require.Equal(t, store.StateActive, n.Job(&id).State)

	q := n.Queue([]byte("q"))
	move(t, n, k, q, 1)
	pass(n, &now, 120_000) // meanwhile the node looks at all jobs that were kept out
	q.Pause = 0
	move(t, n, k, q, 0)
	pass(n, &now, 1000)
	assert.Equal(t, store.StateQueued, n.Job(&id).State)
}

// A restored value may say that a job has its locks, but not by which tokens, and that the job lives for ever. Such a job gets
// no lock, because a server couldn't load that lock: all that this node saves would be lost.
func TestARestoredJobWithoutATokenHasNoLock(t *testing.T) {
	now := int64(dawn)
	n, _, _ := node(now)
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 0, TTL: 86400, Unique: engine.Unique{Strategy: store.UniqueBoth, Keyed: true, Key: []byte("k")}})
	require.NoError(t, err)
	j := n.Job(&id)
	for _, token := range []uint64{0, 7} {
		j.Unique().SetWait(token)
		j.Unique().SetRun(token)
		j.ETime = math.MaxInt64
		rec := bytes.Clone(j.Record())
		for _, mesh := range []bool{false, true} {
			n, k, _ := node(now)
			if mesh {
				n, k = paired(now, wire.NodeID{1, 2, 3})
			}
			q := n.NewQueueFor(nil)
			require.NoError(t, n.LoadRecord(q, rec))
			require.NoError(t, k.Adopt(q))
			require.Zero(t, n.Restored(q, []byte("q"), 0))
			n.SettleQueue(q, engine.Trust{Exact: true})
			n.Effects()
			count := 0
			for l := n.Locks().Table().Head; l != nil; l = l.Next {
				_, err := store.ParseLock(bytes.Clone(l.Record()))
				require.NoError(t, err, "token %d, mesh %v", token, mesh)
				count++
			}
			assert.Equal(t, token > 0, count > 0)
		}
	}
}
