package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// adder returns a function that adds jobs of one copy to a node.
func adder(t *testing.T, n *engine.Node) func(queue string, a engine.Add) store.ID {
	return func(queue string, a engine.Add) store.ID {
		t.Helper()
		a.Queue, a.Body, a.Replicate = []byte(queue), []byte("b"), 1
		id, _, err := n.AddJob(&a)
		require.NoError(t, err)
		n.Effects()
		return id
	}
}

// Fetch returns valid pointers, although the end of a job moves others in memory. The first
// job that is fetched blocks a job which also waits for the next job that the call meets. That next job ends.
func TestFetchedJobsStayValid(t *testing.T) {
	busy := engine.Unique{Strategy: store.UniqueDuring, Keyed: true, Key: []byte("k"), Busy: store.BusyDrop}
	for _, tc := range []struct {
		name   string
		parent engine.Add
		ends   bool // parent ends during Fetch
	}{
		{"expired", engine.Add{Retry: 1, TTL: 1}, false},
		{"its key is busy", engine.Add{Retry: 100, TTL: 600, Unique: busy}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, _, _ := node(dawn)
			add := adder(t, n)
			add("running", engine.Add{Retry: 100, TTL: 600, Unique: engine.Unique{
				Strategy: store.UniqueDuring, Keyed: true, Key: []byte("k"), Mesh: true,
			}})
			parent := tc.parent
			parent.Unique.Mesh = parent.Unique.Strategy != 0
			require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("running"))}, 1, false, nil), 1)
			p := add("q2", parent)
			onDead := engine.OnDeadDrop
			if tc.ends {
				onDead = engine.OnDeadRun
			}
			l := add("l", engine.Add{Retry: 100, TTL: 600, Members: engine.Members{Deferred: true, After: []store.ID{p}, OnDead: onDead}})
			e := add("q1", engine.Add{Retry: 100, TTL: 600, Members: engine.Members{BlockedBy: &l}})
			_, _, err := n.Release(&l, nil, true, false)
			require.NoError(t, err)
			n.Effects()
			now := dawn + int64(1500)
			n.SetNow(now)
			out := n.Fetch([]*store.Queue{n.Queue([]byte("q1")), n.Queue([]byte("q2"))}, 2, false, nil)
			require.Len(t, out, 1)
			assert.Same(t, n.Job(&e), out[0])
			assert.Equal(t, tc.ends, n.Job(&p) == nil)
			n.Effects()
			n.Tick()
			assert.Nil(t, n.Job(&p))
			assert.Equal(t, tc.ends, n.Job(&l) != nil, "ONDEAD run lets it go on")
			assert.NotNil(t, n.Job(&e))
		})
	}
}

// More expired jobs than one fetch passes over lie before one job: the next calls
// get it, and the ticks end the expired jobs.
func TestManyExpiredJobsAreInTheWay(t *testing.T) {
	n, _, _ := node(dawn)
	add := adder(t, n)
	const many = 2500
	for range many {
		add("q", engine.Add{Retry: 1, TTL: 1})
	}
	live := add("q", engine.Add{Retry: 100, TTL: 600})
	n.SetNow(dawn + 1500)
	calls := 0
	for out := []*store.Job(nil); len(out) == 0; calls++ {
		require.Less(t, calls, 4)
		if out = n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, false, nil); len(out) > 0 {
			require.Equal(t, live, out[0].ID)
		}
		n.Effects()
	}
	require.EqualValues(t, many+1, n.Jobs(), "fetching ends none")
	for now := dawn + int64(1501); n.Jobs() > 1; now++ {
		require.Less(t, now, dawn+int64(1600))
		n.SetNow(now)
		n.Tick()
		n.Effects()
	}
	require.EqualValues(t, many, n.Stats.Expired)
}

// A job that was passed over because its time was up is delivered after all, uncounted,
// if the clock goes back before the tick.
func TestClockComesBackToAnExpiredJob(t *testing.T) {
	for _, retry := range []int64{0, 1} {
		n, _, _ := node(dawn)
		id := adder(t, n)("q", engine.Add{Retry: retry, TTL: 2})
		fetch := func() []*store.Job {
			return n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, false, nil)
		}
		n.SetNow(dawn + 2010)
		require.Empty(t, fetch())
		n.Effects()
		n.SetNow(dawn + 1990)
		n.Tick()
		n.SetNow(dawn + 1995)
		n.Tick()
		n.Effects()
		got := fetch()
		require.Less(t, n.Now(), dawn+int64(2000))
		require.Len(t, got, 1)
		require.Equal(t, id, got[0].ID)
		require.Zero(t, got[0].Deliveries)
	}
}

// An expired job is handed over to no other node, neither when that node asks nor when
// nodes that asked before are served.
func TestExpiredJobsAreNotHandedOver(t *testing.T) {
	for _, retry := range []int64{0, 1} {
		for _, before := range []bool{false, true} {
			n, _, _ := node(dawn)
			peer := wire.NodeID{1, 2, 3}
			n.SetLife(peer, 7)
			n.Mesh().Up(peer, "10.0.0.1:1", false)
			add := adder(t, n)
			ask := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: 10}
			_, err := n.SetPause([]byte("q"), engine.PauseOut, 0)
			require.NoError(t, err)
			late := add("q", engine.Add{Retry: retry, TTL: 1})
			live := add("q", engine.Add{Retry: retry, TTL: 600})
			if before {
				require.NoError(t, n.Receive(peer, ask.Append(nil)))
			}
			n.Effects()
			n.SetNow(dawn + 1500)
			_, err = n.SetPause([]byte("q"), 0, 0)
			require.NoError(t, err)
			if !before {
				require.NoError(t, n.Receive(peer, ask.Append(nil)))
			}
			var given []store.ID
			for _, e := range n.Effects() {
				if e.Kind != engine.Send {
					continue
				}
				var m wire.Message
				require.NoError(t, m.Parse(n.Message(&e)))
				if m.Kind == wire.YourJob || m.Kind == wire.Offer {
					given = append(given, store.ID(m.ID))
				}
			}
			require.Equal(t, []store.ID{live}, given)
			n.Tick()
			require.Nil(t, n.Job(&late))
		}
	}
}
