package engine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// keyed makes a node of a mesh of three, with jobs in queue q that may not run beside others of
// their key. Each has a key of its own. It returns the jobs' IDs, the oldest first.
func keyed(t *testing.T, many int, steady func() int64) (n *engine.Node, peers []wire.NodeID, ids []store.ID) {
	now := int64(1_700_000_000_000)
	n, _, _ = steadyNode(now, steady)
	peers = []wire.NodeID{{1, 2, 3, 0}, {1, 2, 3, 1}}
	for i := range peers {
		n.Mesh().Up(peers[i], fmt.Sprintf("10.0.0.%d:1", i), false)
	}
	n.Locks().Trust()
	n.Locks().VotesKept(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
	n.Effects()
	for i := range many {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 600, TTL: 6000,
			Unique: engine.Unique{Strategy: store.UniqueDuring, Keyed: true, Key: fmt.Append(nil, i)}})
		require.NoError(t, err)
		ids = append(ids, id)
		n.Effects()
	}
	return n, peers, ids
}

// Jobs whose runs the other nodes must agree to are delivered in their order, however long the answers take.
func TestSlowAnswersKeepTheOrder(t *testing.T) {
	const many = 50
	for _, rtt := range []int64{20, 110, 250} {
		steady := int64(1000)
		n, _, ids := keyed(t, many, func() int64 { return steady })
		type late struct {
			at   int64
			from wire.NodeID
			text []byte
		}
		var flying []late
		var got []store.ID
		waits := false
		effects := func() {
			eachEffect(n, func(e engine.Effect) {
				switch e.Kind {
				case engine.Serve:
					got, waits = append(got, e.Job.ID), false
				case engine.Send:
					var m wire.Message
					require.NoError(t, m.Parse(n.Message(&e)))
					if m.Kind == wire.Claim {
						flying = append(flying, late{steady + rtt, e.Peer.ID, (&wire.Message{Kind: wire.Grant, Round: m.Round}).Append(nil)})
					}
				}
			})
		}
		for ms := int64(0); ms < 60_000 && len(got) < many; ms++ {
			steady = 1000 + ms
			n.SetNow(1_700_000_001_000 + ms)
			for len(flying) > 0 && flying[0].at <= steady {
				require.NoError(t, n.Receive(flying[0].from, flying[0].text))
				flying = flying[1:]
				effects()
			}
			n.Tick()
			effects()
			if !waits {
				require.Empty(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil))
				_, err := n.Wait([][]byte{[]byte("q")}, "c")
				require.NoError(t, err)
				waits = true
				effects()
			}
		}
		assert.Equal(t, ids, got, "answers after %d ms", rtt)
	}
}

// Without a majority these jobs stay in their queue, in their order. The node doesn't work through them, neither at
// once, which would take long, nor now and then. Jobs that need no votes are found behind them.
func TestJobsStayInTheirOrderWithoutAMajority(t *testing.T) {
	const many = 25_000
	steady := int64(1000)
	n, peers, _ := keyed(t, many, func() int64 { return steady })
	for i := range peers {
		n.Mesh().Down(peers[i])
	}
	q := n.Queue([]byte("q"))
	var served []store.ID
	run := func(from, to int64) {
		next := int64(0)
		for ms := from; ms < to; ms++ {
			steady = 1000 + ms
			n.SetNow(1_700_000_001_000 + ms)
			if 1_700_000_001_000+ms < next {
				continue
			}
			next = n.Tick()
			for _, e := range n.Effects() {
				if e.Kind == engine.Serve {
					served = append(served, e.Job.ID)
				}
			}
			assert.Zero(t, n.HeldBack())
		}
	}
	require.Empty(t, n.Fetch([]*store.Queue{q}, 1, true, nil))
	_, err := n.Wait([][]byte{[]byte("q")}, "c")
	require.NoError(t, err)
	run(0, 100)
	run(100, 2100)
	plain, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 600, TTL: 6000})
	require.NoError(t, err)
	run(2100, 2200)
	assert.Equal(t, []store.ID{plain}, served)
	assert.EqualValues(t, many, q.Len)

	// A job that comes back, and comes before others that were passed over, is found, too.
	for i := range 10 {
		_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 600, TTL: 6000,
			Unique: engine.Unique{Strategy: store.UniqueDuring, Keyed: true, Key: fmt.Append(nil, many+i)}})
		require.NoError(t, err)
		n.Effects()
	}
	_, err = n.Wait([][]byte{[]byte("q")}, "c")
	require.NoError(t, err)
	last, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 600, TTL: 6000})
	require.NoError(t, err)
	run(2200, 2300)
	_, err = n.Wait([][]byte{[]byte("q")}, "c")
	require.NoError(t, err)
	require.True(t, n.Nack(&plain, &engine.Failure{}))
	run(2300, 2400)
	assert.Equal(t, []store.ID{plain, last, plain}, served)
}

// A node's own acquisition of a run has failed, and its votes were taken back. Voters have learnt the vote from each other
// just before it was taken back there, as nodes of a young mesh do when a new node comes. The node hears of that when it asks
// again, and tells the voters once more: otherwise the job would wait for its own run until the lease is over.
func TestOwnFailedRunIsTakenBack(t *testing.T) {
	steady := int64(1000)
	n, peers, ids := keyed(t, 1, func() int64 { return steady })
	learnt, lease := map[wire.NodeID]uint64{}, int64(0)
	var failed uint64
	var answers []func()
	served := false
	effects := func() {
		eachEffect(n, func(e engine.Effect) {
			switch e.Kind {
			case engine.Serve:
				served = true
			case engine.Send:
				var m wire.Message
				require.NoError(t, m.Parse(n.Message(&e)))
				from, round, token := e.Peer.ID, m.Round, m.Lock.Token
				answer := wire.Message{Kind: wire.Grant, Round: round}
				switch {
				case m.Kind == wire.Claim && failed == 0:
					lease = m.Lock.Lease
					return // nobody answers the first one
				case m.Kind == wire.Unlock && failed == 0:
					failed = token
				}
				switch {
				case m.Kind == wire.Claim && learnt[from] != 0:
					answer = wire.Message{Kind: wire.Deny, Round: round, Count: wire.LockHeld,
						Lock: wire.Lock{Job: ids[0], Token: learnt[from], Lease: lease, Left: lock.VoteMS(lease) - 500}}
				case m.Kind == wire.Unlock && learnt[from] == token:
					delete(learnt, from)
				case m.Kind != wire.Claim && m.Kind != wire.Unlock:
					return
				}
				text := answer.Append(nil)
				answers = append(answers, func() { require.NoError(t, n.Receive(from, text)) })
			}
		})
	}
	require.Empty(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil))
	_, err := n.Wait([][]byte{[]byte("q")}, "c")
	require.NoError(t, err)
	effects()
	taught := false
	for ms := int64(0); ms < 20_000 && !served; ms++ {
		steady = 1000 + ms
		n.SetNow(1_700_000_001_000 + ms)
		n.Tick()
		effects()
		for len(answers) > 0 {
			answer := answers[0]
			answers = answers[1:]
			answer()
			effects()
		}
		if failed != 0 && !taught {
			taught, learnt[peers[0]], learnt[peers[1]] = true, failed, failed // each from the other one, a moment after its answer
		}
	}
	require.True(t, taught, "both have learnt the vote")
	assert.True(t, served, "the job's own failed run keeps it from running")
}

// A node learns votes for runs of one job, from nodes that voted for one acquisition after the other. All these acquisitions have
// failed, and the votes are taken back, in whatever order: nothing is left.
func TestLearntRunsAreTakenBack(t *testing.T) {
	orders := [][]int{{0, 1}, {1, 0}, {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	tokens := []uint64{70_001, 140_001, 210_001}
	for _, learn := range orders {
		for _, free := range orders {
			if len(learn) != len(free) {
				continue
			}
			t.Run(fmt.Sprint("learnt ", learn, ", taken back ", free), func(t *testing.T) {
				steady := int64(1000)
				n, _, _ := steadyNode(1_700_000_000_000, func() int64 { return steady })
				peers := []wire.NodeID{{1, 2, 3, 0}, {1, 2, 3, 2}, {1, 2, 3, 4}}
				for i := range peers {
					n.Mesh().Up(peers[i], fmt.Sprintf("10.0.0.%d:1", i), false)
				}
				require.True(t, n.Locks().Abstains(), "it is new to the mesh")
				n.Tick()
				n.Effects()
				run, job := []byte("Rmkkey"), wire.JobID{7, 23: 1}
				for i, which := range learn {
					page := wire.Message{Kind: wire.LockPage, Lock: wire.Lock{Token: tokens[which]}, Flags: wire.Newcomer,
						Locks: []wire.Lock{{Name: run, Job: job, Token: tokens[which], Lease: 300_000, Left: 300_000}}}
					require.NoError(t, n.Receive(peers[i], page.Append(nil)))
				}
				require.NotNil(t, n.Locks().Live(run))
				assert.False(t, n.Locks().Renewed(n.Locks().Live(run)), "no page says that a client works on the job")
				for i, which := range free {
					require.NotNil(t, n.Locks().Live(run), "the others stay")
					unlock := wire.Message{Kind: wire.Unlock, Flags: wire.Fresh, Round: uint64(i + 1), Lock: wire.Lock{Name: run, Job: job, Token: tokens[which]}}
					require.NoError(t, n.Receive(peers[0], unlock.Append(nil)))
				}
				assert.Nil(t, n.Locks().Live(run))
			})
		}
	}
}

// eachEffect does something with each effect of a node, and keeps its votes as a server would, until none is left.
func eachEffect(n *engine.Node, do func(engine.Effect)) {
	for again := true; again; {
		again = false
		for _, e := range n.Effects() {
			if e.Kind == engine.KeepVotes {
				again = true
			} else {
				do(e)
			}
		}
		if again {
			n.Locks().VotesKept(n.Locks().Votes())
		}
	}
}
