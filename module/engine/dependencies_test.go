package engine_test

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// FuzzFamilies does random things to dependencies at one node. After each, what the
// jobs say and the lists of dependents agree, no job waits for a job that isn't there, and no job
// was delivered before those that it waits for. In the end no job is left.
func FuzzFamilies(f *testing.F) {
	f.Add([]byte{0, 1, 1, 1, 2, 4, 6, 8, 8})
	f.Add([]byte{0, 1, 1, 17, 33, 5, 6, 6, 8, 8, 9, 2, 3, 19, 35, 7, 10, 11, 12})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 200 {
			return
		}
		n, k, alloc := node(dawn)
		now := int64(dawn)
		blocks := alloc.Blocks()
		var known []store.ID
		waits := map[store.ID][]store.ID{} // what a job still waits for
		add := func(queue int, m engine.Members, retry, ttl int64) {
			a := engine.Add{Queue: fmt.Append(nil, "q", queue), Replicate: 1, Retry: retry, TTL: ttl, Members: m}
			if queue == 1 { // this queue's jobs run one at a time
				a.Unique = engine.Unique{Strategy: store.UniqueDuring, Busy: []uint8{store.BusyWait, store.BusyDead}[retry&1], Keyed: true, Key: []byte("k")}
			}
			id, _, err := n.AddJob(&a)
			if err != nil {
				return
			}
			known = append(known, id)
			waits[id] = slices.Clone(waitsFor(n, n.Job(&id)))
		}
		check := func() {
			ties := uint64(0)
			for _, id := range known {
				j := n.Job(&id)
				if j == nil {
					continue
				}
				f, ok := j.Family()
				if !ok {
					continue
				}
				require.False(t, f.Empty())
				ties += uint64(f.IDs())
				if f.Held() {
					require.Equal(t, store.InHeld, j.Place)
					require.Zero(t, j.QTime)
				}
				for i := range f.IDs() {
					other := f.ID(i)
					require.NotNil(t, n.Job(&other), "it waits for a job that isn't there")
				}
				if f.Flags&store.FamilyLast != 0 {
					require.Len(t, waitsFor(n, j), int(f.Count)+f.IDs())
				}
			}
			require.Equal(t, ties, n.Edges())
		}
		for i := 0; i < len(ops); i++ {
			op, arg := ops[i]%16, int(ops[i]/16)
			var id, id2 store.ID
			if len(known) > 0 {
				id, id2 = known[(arg+i)%len(known)], known[arg*i%len(known)]
			}
			n.SetNow(now)
			switch op {
			case 0:
				add(arg&1, engine.Members{Deferred: true}, int64(arg&2), 100)
			case 1, 2:
				add(arg&1, engine.Members{BlockedBy: &id, Deferred: arg == 15}, int64(arg&2), 20+int64(arg))
			case 3:
				add(arg&1, engine.Members{After: []store.ID{id, id2}, OnDead: uint8(arg % 3)}, 5, 50)
			case 4, 5:
				_, _, err := n.Release(&id, nil, op == 5, false)
				if err == nil && op == 5 {
					for _, c := range known {
						waits[c] = slices.DeleteFunc(waits[c], func(w store.ID) bool { return w == id })
					}
				}
			case 6, 7, 8:
				q := n.Queue(fmt.Append(nil, "q", arg&1))
				for _, j := range n.Fetch([]*store.Queue{q}, 1+arg/4, true, nil) {
					for _, w := range waits[j.ID] {
						require.Nil(t, n.Job(&w), "it was delivered before the other ended")
					}
					if arg&2 != 0 {
						n.Ack(&j.ID)
					}
				}
			case 9:
				n.Ack(&id)
			case 10:
				n.CancelJob(&id)
			case 11:
				n.Delete(&id)
			case 12:
				if arg&1 == 0 {
					n.Nack(&id, &engine.Failure{})
				} else {
					n.Enqueue(&id)
				}
			case 13:
				n.FastAck(&id)
			case 14:
				now += int64(arg) * 1000
				n.SetNow(now)
				n.Tick()
			case 15:
				if q := n.Queue(fmt.Append(nil, "q", arg&1)); q != nil && arg > 12 {
					k.Drop([]*store.Queue{q})
					n.Tick()
					n.Tick()
				}
			}
			n.Effects()
			check()
		}
		for _, id := range known {
			_, _, _ = n.Release(&id, nil, false, false)
		}
		for _, name := range []string{"q0", "q1", "q0:dead", "q1:dead"} {
			for range known {
				for _, queue := range []string{"q0", "q1", name} {
					for _, j := range n.Fetch([]*store.Queue{n.Queue([]byte(queue))}, len(known), true, nil) {
						n.Ack(&j.ID)
					}
				}
				n.Effects()
			}
		}
		// Each job that still waits waits for one that was delivered and not acknowledged.
		for _, id := range known {
			if j := n.Job(&id); j != nil {
				n.Ack(&id)
			}
		}
		for _, id := range known {
			n.Ack(&id)
		}
		n.Effects()
		require.Zero(t, n.Jobs())
		require.Zero(t, n.Edges())
		for _, name := range []string{"q0", "q1", "q0:dead", "q1:dead"} {
			if q := n.Queue([]byte(name)); q != nil {
				k.Drop([]*store.Queue{q})
			}
		}
		n.Tick()
		giveBack(n)
		require.LessOrEqual(t, alloc.Blocks(), blocks+5, "memory is left behind: two tables, those of locks and lanes, and what was acknowledged, may be")
	})
}

// A node that never had dependencies uses no memory for them. After a flush the edges are
// freed bit by bit.
func TestTiesAreFreed(t *testing.T) {
	n, _, alloc := node(dawn)
	head, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 1, TTL: 100, Members: engine.Members{Deferred: true}})
	require.NoError(t, err)
	for range 10_000 {
		_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 1, TTL: 100, Members: engine.Members{BlockedBy: &head}})
		require.NoError(t, err)
	}
	require.EqualValues(t, 10_000, n.Edges())
	n.Effects()
	n.Flush()
	for range 20 {
		n.Tick()
	}
	giveBack(n)
	require.Zero(t, n.Edges())
	require.Less(t, alloc.Blocks(), 20)
}

// A job is held back for its key, and others wait for it. They hear of its end, also
// if it ends with its queue.
func TestHeldBackJobsAreMourned(t *testing.T) {
	n, k, _ := node(dawn)
	alone := engine.Unique{Strategy: store.UniqueDuring, Keyed: true, Key: []byte("k")}
	var ids []store.ID
	for range 2 {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 100, TTL: 600, Unique: alone})
		require.NoError(t, err)
		ids = append(ids, id)
	}
	require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 2, true, nil), 1)
	require.EqualValues(t, 1, n.HeldBack())
	add := func(m engine.Members) store.ID {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("other"), Replicate: 1, Retry: 100, TTL: 600, Members: m})
		require.NoError(t, err)
		return id
	}
	dropped, run := add(engine.Members{After: ids[1:]}), add(engine.Members{After: ids[1:], OnDead: engine.OnDeadRun})
	n.Effects()
	k.Drop([]*store.Queue{n.Queue([]byte("q"))})
	n.Effects()
	for range 3 {
		n.Tick()
		n.Effects()
	}
	require.Nil(t, n.Job(&dropped))
	require.Equal(t, store.StateQueued, n.Job(&run).State)
	require.Zero(t, n.Edges())
}

// A job is unknown to all nodes only if all of them say so in answer to one question. Between
// two questions the job may have moved from a node that wasn't asked yet to one that has answered.
func TestAnswersToTwoQuestionsAreNotCountedTogether(t *testing.T) {
	now := int64(1_700_000_000_000)
	peers := []wire.NodeID{{1, 2, 3}, {4, 5, 6}}
	n, _, _ := node(now)
	parent := family(t, n, 0)
	child, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 100, TTL: 86400, Members: engine.Members{After: []store.ID{parent}}})
	require.NoError(t, err)
	n = loaded(t, now, [][]byte{bytes.Clone(n.Job(&child).Record())}) // without the parent
	for i, peer := range peers {
		n.Mesh().Up(peer, fmt.Sprintf("10.0.0.%d:1", i+1), false)
	}
	asked := func(within int64) (round uint64) {
		for range within / 500 {
			now += 500
			n.SetNow(now)
			n.Tick()
			for _, e := range n.Effects() {
				var m wire.Message
				if e.Kind == engine.Send && m.Parse(n.Message(&e)) == nil && m.Kind == wire.AskOutcome {
					round = m.Round
				}
			}
		}
		return round
	}
	unknown := func(peer wire.NodeID, round uint64) {
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.Outcome, ID: wire.JobID(parent), Count: wire.OutcomeUnknown, Round: round}).Append(nil)))
		n.Effects()
	}
	n.Effects()
	first := asked(15_000)
	second := asked(15_000)
	require.Greater(t, second, first)
	unknown(peers[0], second)
	unknown(peers[1], first)
	require.NotNil(t, n.Job(&child), "the second one's answer is of the first question")
	unknown(peers[1], second)
	require.Nil(t, n.Job(&child))
}

// A job is acknowledged, more jobs wait for it than one call follows, and its queue is deleted in the
// same transaction. All of them still go on, because the job was done.
func TestAnAcknowledgedJobsQueueIsDeleted(t *testing.T) {
	n, k, _ := node(dawn)
	p, _, err := n.AddJob(&engine.Add{Queue: []byte("p"), Replicate: 1, Retry: 10, TTL: 600})
	require.NoError(t, err)
	for range 1000 {
		_, _, err := n.AddJob(&engine.Add{Queue: []byte("c"), Replicate: 1, Retry: 10, TTL: 600, Members: engine.Members{After: []store.ID{p}}})
		require.NoError(t, err)
	}
	n.Effects()
	require.True(t, n.Ack(&p))
	n.Effects()
	k.Drop([]*store.Queue{n.Queue([]byte("p"))})
	n.Effects()
	for i := range 100 {
		n.SetNow(dawn + int64(i))
		n.Tick()
		n.Effects()
	}
	require.EqualValues(t, 1000, n.Queue([]byte("c")).Waiting(), "dropped: %d", n.Stats.Dropped)
}

// A job that is deleted undone isn't taken for acknowledged: not a job that ONBUSY drop deletes,
// and not a copy of a job whose ADDJOB was refused at another node.
func TestDeletedUndoneIsNotDone(t *testing.T) {
	busy := engine.Unique{Strategy: store.UniqueDuring, Keyed: true, Key: []byte("k"), Busy: store.BusyDrop}
	for name, begin := range map[string]func(*testing.T, *engine.Node) (p store.ID, end func()){
		"its key is busy": func(t *testing.T, n *engine.Node) (store.ID, func()) {
			add := adder(t, n)
			add("q", engine.Add{Retry: 10, TTL: 600, Unique: busy})
			return add("q", engine.Add{Retry: 10, TTL: 600, Unique: busy}), func() {
				require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 2, false, nil), 1)
				require.EqualValues(t, 1, n.Stats.BusyDropped)
			}
		},
		"its ADDJOB was refused": func(t *testing.T, n *engine.Node) (store.ID, func()) {
			n.Mesh().Add(mate, "10.0.0.1:1")
			n.Mesh().Up(mate, "10.0.0.1:1", false)
			p := (&store.IDMaker{}).Make(1, 7, 60, true)
			m := wire.Message{Kind: wire.ReplJob, ID: p, Holders: []wire.Node{mate.Node()}, Queue: []byte("q"),
				Job: wire.Job{CTime: uint64(dawn) * 1_000_000, Left: 600_000, Retry: 10, Repl: 2, Body: []byte("b")}}
			require.NoError(t, n.Receive(mate, m.Append(nil)))
			n.Effects()
			return p, func() {
				m := wire.Message{Kind: wire.DelJob, Flags: wire.PassOn, ID: p}
				require.NoError(t, n.Receive(mate, m.Append(nil)))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, _, _ := node(dawn)
			p, end := begin(t, n)
			child := adder(t, n)("c", engine.Add{Retry: 10, TTL: 600, Members: engine.Members{After: []store.ID{p}}})
			end()
			n.Effects()
			require.Nil(t, n.Job(&p))
			require.Nil(t, n.Job(&child), "ONDEAD drop")
			_, _, err := n.AddJob(&engine.Add{Queue: []byte("c"), Replicate: 1, Retry: 10, TTL: 600, Members: engine.Members{After: []store.ID{p}}})
			require.ErrorContains(t, err, "NOJOB")
		})
	}
}

// waitsFor lists all jobs that a held-back job waits for.
func waitsFor(n *engine.Node, j *store.Job) []store.ID {
	ids, _ := n.WaitsFor(j, math.MaxInt)
	return ids
}
