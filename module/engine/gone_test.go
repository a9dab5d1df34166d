package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// mate is another node, which the test plays.
var mate = wire.NodeID{1, 2, 3}

// said lists the messages of one kind that a node has sent since the last look.
func said(t *testing.T, n *engine.Node, kind wire.Kind) (list []wire.Message) {
	for _, e := range n.Effects() {
		if e.Kind == engine.Send {
			var m wire.Message
			require.NoError(t, m.Parse(n.Message(&e)))
			if m.Kind == kind {
				m.Queue, m.Holders = append([]byte{}, m.Queue...), append([]wire.Node{}, m.Holders...)
				list = append(list, m)
			}
		}
	}
	return list
}

// A job that the mesh gives back after a deletion is refused exactly where it was deleted.
func TestDeletedJobsAreRefused(t *testing.T) {
	const now = int64(1_700_000_000_000)
	ids := &store.IDMaker{}
	for _, tc := range []struct {
		what            string
		end             func(n *engine.Node, k *keys)
		queue           string
		later, anew     bool // later: it was created after the deletion; anew: b never had it
		once            bool
		taken, restarts bool
	}{
		{what: "its queue was deleted", end: drop("q"), queue: "q"},
		{what: "its queue was deleted before a restart", end: drop("q"), queue: "q", restarts: true},
		{what: "it is dead since", end: drop("q"), queue: "q:dead"},
		{what: "another queue was deleted", end: drop("r"), queue: "q", taken: true},
		{what: "it is newer", end: drop("q"), queue: "q", later: true, taken: true},
		{what: "it never was here", end: drop("q"), queue: "q", anew: true, taken: true},
		{what: "it has one copy", end: drop("q"), queue: "q", once: true, taken: true},
		{what: "all was flushed", end: func(n *engine.Node, _ *keys) { n.Flush() }, queue: "q"},
		{what: "all was flushed by the server", end: func(n *engine.Node, _ *keys) { n.Flushed(-1) }, queue: "q"},
		{what: "another database was flushed", end: func(n *engine.Node, _ *keys) { n.Flushed(1) }, queue: "q", taken: true},
		{what: "all was flushed, then loaded anew", queue: "q", end: func(n *engine.Node, _ *keys) {
			n.Flushed(-1)
			n.Flushed(-1)
			n.BeginLoading()
			n.EndLoading()
		}},
		{what: "the data are loaded anew", queue: "q", taken: true, end: func(n *engine.Node, _ *keys) {
			n.Flushed(-1)
			n.BeginLoading()
			n.EndLoading()
		}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			n, k, _ := node(now)
			n.Mesh().Add(mate, "10.0.0.1:1")
			n.Mesh().Up(mate, "10.0.0.1:1", false)
			give := func(kind wire.Kind, queue string, ctime uint64, flags uint8, retry uint32) store.ID {
				id := ids.Make(ctime, 7, 60, retry > 0)
				m := wire.Message{Kind: kind, Flags: flags, ID: wire.JobID(id), Holders: []wire.Node{mate.Node()}, Queue: []byte(queue),
					Job: wire.Job{CTime: ctime, Left: 60_000, Retry: retry, Repl: 2, Body: []byte("b")}}
				require.NoError(t, n.Receive(mate, m.Append(nil)))
				if kind == wire.ReplJob {
					n.Effects()
				}
				return id
			}
			for i, queue := range []string{"q", "r"} {
				give(wire.ReplJob, queue, uint64(now)*1_000_000+uint64(i), 0, 10)
			}
			tc.end(n, k)
			n.Effects()
			if tc.restarts {
				n.Tick()
				d := n.Deletions()
				n, _, _ = node(now)
				n.Mesh().Add(mate, "10.0.0.1:1")
				n.Mesh().Up(mate, "10.0.0.1:1", false)
				n.SetDeletions(d)
			}
			at, flags, retry := uint64(now)*1_000_000-1, wire.Had, uint32(10)
			if tc.later {
				at += 10
			}
			if tc.anew {
				flags = 0
			}
			if tc.once {
				retry = 0
			}
			id := give(wire.YourJob, tc.queue, at, flags, retry)
			assert.Equal(t, tc.taken, n.Job(&id) != nil)
			no := said(t, n, wire.Refused)
			if tc.taken {
				assert.Empty(t, no)
				return
			}
			require.Len(t, no, 1)
			assert.EqualValues(t, wire.Deleted, no[0].Count)
			id = give(wire.ReplJob, tc.queue, at, wire.NoReply|wire.NewBody, 10)
			assert.Nil(t, n.Job(&id), "nor comes a copy")
		})
	}
}

func drop(queue string) func(*engine.Node, *keys) {
	return func(n *engine.Node, k *keys) { k.Drop([]*store.Queue{n.Queue([]byte(queue))}) }
}

// Flushed jobs are counted when it is known that they aren't loaded anew.
func TestFlushedJobsAreCounted(t *testing.T) {
	const now = int64(1_700_000_000_000)
	ids := &store.IDMaker{}
	n, _, _ := node(now)
	n.Mesh().Add(mate, "10.0.0.1:1")
	for i, tc := range []struct {
		what  string
		flush func()
		want  uint64
	}{
		{"FLUSHALL", func() { n.Flushed(-1); n.Tick() }, 2},
		{"JOBMESH FLUSH", n.Flush, 2},
		{"FLUSHALL, and the process ends", func() { n.Flushed(-1); n.Ends() }, 2},
		{"DEBUG RELOAD", func() { n.Flushed(-1); n.BeginLoading(); n.EndLoading(); n.Tick() }, 0},
		{"FLUSHALL, DEBUG RELOAD", func() { n.Flushed(-1); n.Flushed(-1); n.BeginLoading(); n.EndLoading(); n.Tick() }, 2},
		{"CLUSTER RESET", n.Reset, 0},
	} {
		for range 2 {
			ctime := uint64(now)*1_000_000 + uint64(i)
			m := wire.Message{Kind: wire.ReplJob, ID: wire.JobID(ids.Make(ctime, 7, 60, true)), Holders: []wire.Node{mate.Node()}, Queue: []byte("q"),
				Job: wire.Job{CTime: ctime, Left: 60_000, Retry: 10, Repl: 2, Body: []byte("b")}}
			require.NoError(t, n.Receive(mate, m.Append(nil)))
			n.Effects()
		}
		tc.flush()
		n.Effects()
		assert.Equal(t, tc.want, n.TakeFlushed(), tc.what)
		assert.Zero(t, n.TakeFlushed(), tc.what)
	}
}

// When very many queues are deleted, the last ones are remembered.
func TestManyQueuesAreDeleted(t *testing.T) {
	const now = int64(1_700_000_000_000)
	n, k, _ := node(now)
	n.Mesh().Add(mate, "10.0.0.1:1")
	ids := &store.IDMaker{}
	var jobs []wire.Message
	for i := range 1200 {
		ctime := uint64(now)*1_000_000 + uint64(i)
		m := wire.Message{Kind: wire.ReplJob, ID: wire.JobID(ids.Make(ctime, 7, 60, true)), Holders: []wire.Node{mate.Node()}, Queue: fmt.Append(nil, i),
			Job: wire.Job{CTime: ctime, Left: 60_000, Retry: 10, Repl: 2, Body: []byte("b")}}
		require.NoError(t, n.Receive(mate, m.Append(nil)))
		n.Effects()
		drop(fmt.Sprint(i))(n, k)
		n.Tick()
		n.Effects()
		m.Kind, m.Flags = wire.YourJob, wire.Had
		jobs = append(jobs, m)
	}
	assert.LessOrEqual(t, len(n.Deletions().Queues), 512)
	assert.EqualValues(t, 1200, n.TakeDeleted())
	assert.Zero(t, n.TakeDeleted())
	for i := len(jobs) - 256; i < len(jobs); i++ {
		require.NoError(t, n.Receive(mate, jobs[i].Append(nil)))
	}
	assert.Zero(t, n.Jobs())
}

// When very many queues are deleted at a time, and no job is added meanwhile, the last ones are
// remembered. After a restart those of them that were deleted last stay the longest.
func TestManyQueuesAreDeletedAtOnce(t *testing.T) {
	const now, queues, last = int64(1_700_000_000_000), 728, 256
	n, k, _ := node(now)
	join := func() {
		n.Mesh().Add(mate, "10.0.0.1:1")
		n.Mesh().Up(mate, "10.0.0.1:1", false)
	}
	join()
	ids := &store.IDMaker{}
	var jobs []wire.Message
	var all []*store.Queue
	for i := range queues {
		ctime := uint64(now)*1_000_000 + uint64(i)
		m := wire.Message{Kind: wire.ReplJob, ID: wire.JobID(ids.Make(ctime, 7, 60, true)), Holders: []wire.Node{mate.Node()}, Queue: fmt.Append(nil, i),
			Job: wire.Job{CTime: ctime, Left: 60_000, Retry: 10, Repl: 2, Body: []byte("b")}}
		require.NoError(t, n.Receive(mate, m.Append(nil)))
		n.Effects()
		all = append(all, n.Queue(m.Queue))
		m.Kind, m.Flags = wire.YourJob, wire.Had
		jobs = append(jobs, m)
	}
	refused := func(upTo int) {
		t.Helper()
		for i := upTo - last; i < upTo; i++ {
			require.NoError(t, n.Receive(mate, jobs[i].Append(nil)))
			id := store.ID(jobs[i].ID)
			require.Nil(t, n.Job(&id), "job %d of %d", i, upTo)
			n.Effects()
		}
	}
	k.Drop(all[:queues-last/2])
	n.Tick()
	n.Effects()
	refused(queues - last/2)

	d := n.Deletions()
	n, k, _ = node(now)
	join()
	n.SetDeletions(d)
	for i := queues - last/2; i < queues; i++ {
		m := jobs[i]
		m.Kind, m.Flags = wire.ReplJob, 0
		require.NoError(t, n.Receive(mate, m.Append(nil)))
		n.Effects()
		k.Drop([]*store.Queue{n.Queue(m.Queue)})
	}
	n.Tick()
	n.Effects()
	refused(queues)
}

// A node that refuses very many jobs is given the job behind them, and none of them twice.
// Another node, and clients here, get those jobs.
func TestBehindVeryManyThatANodeDoesNotTake(t *testing.T) {
	const many = 2500 // more than one look passes over
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	third := wire.NodeID{9}
	for _, p := range []wire.NodeID{mate, third} {
		n.Mesh().Add(p, "10.0.0.1:1")
		n.Mesh().Up(p, "10.0.0.1:1", false)
	}
	add := func() store.ID {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 1000, TTL: 86400})
		require.NoError(t, err)
		return id
	}
	refused := map[wire.JobID]int{}
	ask := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: 100}
	var last store.ID
	given := false
	answer := func() {
		for again := true; again; {
			again = false
			for _, m := range said(t, n, wire.YourJob) {
				if store.ID(m.ID) == last {
					given = true
					continue
				}
				again = true
				refused[m.ID]++
				no := wire.Message{Kind: wire.Refused, Flags: wire.NotQueued, ID: m.ID, Count: wire.Deleted}
				require.NoError(t, n.Receive(mate, no.Append(nil)))
			}
		}
	}
	for range many {
		add()
	}
	for range 200 {
		require.NoError(t, n.Receive(mate, ask.Append(nil)))
		answer()
		now++
		n.SetNow(now)
		n.Tick()
		answer()
	}
	assert.Len(t, refused, many)
	last = add()
	for range 20 {
		answer()
		now++
		n.SetNow(now)
		n.Tick()
	}
	assert.True(t, given)
	for id, times := range refused {
		require.Equal(t, 1, times, "%s", store.ID(id))
	}
	q := n.Queue([]byte("q"))
	assert.EqualValues(t, many, q.Len)
	ask.Count = 1
	require.NoError(t, n.Receive(third, ask.Append(nil)))
	assert.Len(t, said(t, n, wire.YourJob), 1)
}

// A node that has asked for jobs of very many queues, and couldn't be given the first job of each, is
// still given a job that lies behind a thousand such jobs.
func TestVeryManyQueuesOfJobsForNobody(t *testing.T) {
	n, _, _ := node(dawn)
	other := wire.NodeID{1, 2, 3}
	n.Mesh().Add(other, "b:1")
	n.SetLife(other, 1)
	n.Mesh().Up(other, "b:1", true)
	n.Effects()
	now := int64(dawn)
	tied := func(queue string, jobs int) { // at-most-once jobs, each with one job that waits for it
		for range jobs {
			p, _, err := n.AddJob(&engine.Add{Queue: []byte(queue), Replicate: 1, Retry: 0, TTL: 3000})
			require.NoError(t, err)
			_, _, err = n.AddJob(&engine.Add{Queue: []byte("c"), Replicate: 1, Retry: 10, TTL: 3000, Members: engine.Members{After: []store.ID{p}}})
			require.NoError(t, err)
			n.Effects()
		}
	}
	asks := func(queue string, count uint32) {
		m := wire.Message{Kind: wire.NeedJobs, Queue: []byte(queue), Count: count}
		require.NoError(t, n.Receive(other, m.Append(nil)))
		n.Effects()
	}
	for i := range 100_000 {
		name := fmt.Sprint("user:", i)
		tied(name, 1)
		asks(name, 1)
		// the queue's job is done, and nobody ever uses the queue again
		for _, j := range n.Fetch([]*store.Queue{n.Queue([]byte(name))}, 1, true, nil) {
			id := j.ID
			n.Ack(&id)
			n.Effects()
		}
	}
	for range 5 { // much later: all of that is out of date
		now += 100_000
		n.SetNow(now)
		for range 50 {
			n.Tick()
			n.Effects()
		}
	}
	tied("q", 1500)
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 10, TTL: 600})
	require.NoError(t, err)
	n.Effects()
	asks("q", 1)
	for range 200 {
		now++
		n.SetNow(now)
		n.Tick()
		for _, e := range n.Effects() {
			if e.Kind == engine.Send {
				var m wire.Message
				require.NoError(t, m.Parse(n.Message(&e)))
				if m.Kind == wire.YourJob {
					require.Equal(t, wire.JobID(id), m.ID)
					return
				}
			}
		}
	}
	t.Fatal("it wasn't given in 200 ticks")
}

// Two nodes ask for jobs of a queue. The first jobs can be given to no node, and the job behind them can't be
// given to the node that asked first: the second node gets it.
func TestTheSecondInTheLineIsFed(t *testing.T) {
	now := int64(dawn)
	n, _, _ := node(now)
	other := wire.NodeID{9, 9, 9}
	for i, id := range []wire.NodeID{mate, other} {
		n.Mesh().Add(id, fmt.Sprint("10.0.0.", i, ":1"))
		n.SetLife(id, 1)
		n.Mesh().Up(id, fmt.Sprint("10.0.0.", i, ":1"), false)
	}
	n.Effects()
	given := map[wire.NodeID]int{}
	take := func() {
		for _, e := range n.Effects() {
			if e.Kind == engine.Send {
				var m wire.Message
				require.NoError(t, m.Parse(n.Message(&e)))
				if m.Kind == wire.YourJob {
					given[e.Peer.ID]++
				}
			}
		}
	}
	asks := func(id wire.NodeID) {
		m := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: 1}
		require.NoError(t, n.Receive(id, m.Append(nil)))
		take()
	}
	j, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 600, TTL: 60000})
	require.NoError(t, err)
	n.Effects()
	asks(mate)
	require.Equal(t, 1, given[mate])
	n.Job(&j).CTime += 60_000_000_000 // by another node's clock
	m := wire.Message{Kind: wire.Refused, ID: wire.JobID(j), Flags: wire.NotQueued, Count: wire.Deleted}
	for range 4000 { // at-most-once jobs that others wait for
		p, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 0, TTL: 60000})
		require.NoError(t, err)
		_, _, err = n.AddJob(&engine.Add{Queue: []byte("c"), Replicate: 1, Retry: 10, TTL: 60000, Members: engine.Members{After: []store.ID{p}}})
		require.NoError(t, err)
		n.Effects()
	}
	require.NoError(t, n.Receive(mate, m.Append(nil)))
	take()
	asks(mate)
	asks(other)
	for s := range 50_000 {
		now++
		n.SetNow(now)
		n.Tick()
		take()
		if s%8000 == 0 {
			asks(mate)
		}
		if given[other] > 0 {
			return
		}
	}
	t.Fatal("in 50 s the other node was given nothing")
}

// A queue's first jobs are to be dropped when a client here wants them, because their keys are busy. Another node asks
// for jobs of the queue: these first jobs aren't looked at anew for each job that it is given.
func TestBusyJobsBeforeThoseThatAreHandedOver(t *testing.T) {
	for _, how := range []string{"asks", "waits"} {
		t.Run(how, func(t *testing.T) {
			n, _, _ := node(dawn)
			add := func(queue string, key int, busy uint8) {
				a := engine.Add{Queue: []byte(queue), Body: []byte("b"), Replicate: 1, Retry: 600, TTL: 60000}
				if key >= 0 {
					a.Unique = engine.Unique{Strategy: store.UniqueDuring, Mesh: true, Busy: busy, Keyed: true, Key: fmt.Append(nil, "key", key)}
				}
				_, _, err := n.AddJob(&a)
				require.NoError(t, err)
				n.Effects()
			}
			for i := range 990 {
				add("run", i, store.BusyWait)
				require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("run"))}, 1, true, nil), 1)
				n.Effects()
			}
			for i := range 990 {
				add("q", i, store.BusyDrop)
			}
			other := wire.NodeID{1, 2, 3}
			need := func() time.Duration {
				m := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: 100}
				b := m.Append(nil)
				from := time.Now()
				require.NoError(t, n.Receive(other, b))
				return time.Since(from)
			}
			meet := func() {
				n.Mesh().Add(other, "b:1")
				n.Mesh().Up(other, "b:1", true)
				n.Effects()
			}
			if how == "asks" {
				for range 2000 {
					add("q", -1, 0)
				}
				meet()
				took := time.Hour
				for range 8 {
					took = min(took, need())
					n.Effects()
				}
				require.Less(t, took, 5*time.Millisecond)
				return
			}
			meet()
			need()
			n.Effects()
			for range 300 { // they come in one event, as after a pause or by a release
				a := engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 600, TTL: 60000}
				_, _, err := n.AddJob(&a)
				require.NoError(t, err)
			}
			before, from := n.Queue([]byte("q")).Len, time.Now()
			n.Effects()
			require.Less(t, time.Since(from), 20*time.Millisecond)
			require.Less(t, n.Queue([]byte("q")).Len, before)
		})
	}
}

// A thousand jobs whose keys are busy, and which are to be dropped, don't keep the jobs
// behind them from the clients of other nodes.
func TestAFreeJobBehindBusyOnes(t *testing.T) {
	for _, busy := range []int{900, 1000} {
		t.Run(fmt.Sprint(busy), func(t *testing.T) {
			now := int64(dawn)
			n, _, _ := node(now)
			add := func(queue string, unique bool, how uint8) (id store.ID) {
				a := engine.Add{Queue: []byte(queue), Body: []byte("b"), Replicate: 1, Retry: 6000, TTL: 60000}
				if unique {
					a.Unique = engine.Unique{Strategy: store.UniqueDuring, Mesh: true, Busy: how, Keyed: true, Key: []byte("k")}
				}
				id, _, err := n.AddJob(&a)
				require.NoError(t, err)
				n.Effects()
				return id
			}
			add("run", true, store.BusyWait)
			require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("run"))}, 1, true, nil), 1)
			n.Effects()
			for range busy {
				add("q", true, store.BusyDrop)
			}
			free := add("q", false, 0)
			other := wire.NodeID{1, 2, 3}
			n.Mesh().Add(other, "b:1")
			n.Mesh().Up(other, "b:1", true)
			n.Effects()
			given := false
			for range 300 {
				m := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: 1}
				require.NoError(t, n.Receive(other, m.Append(nil)))
				for range 20 {
					for _, e := range n.Effects() {
						given = given || e.Kind == engine.LogState && e.Job.ID == free
					}
					now += 50
					n.SetNow(now)
					n.Tick()
				}
			}
			require.True(t, given, "in 300 s it isn't given to the other node")
		})
	}
}

// A queue's name with very many :dead at its end costs no more than another name when a job comes back that was here once.
func TestNamesOfDeadQueuesAreBounded(t *testing.T) {
	n, k, _ := node(dawn)
	b := wire.NodeID{1, 2, 3}
	n.Mesh().Add(b, "x:1")
	n.Mesh().Up(b, "x:1", true)
	_, _, err := n.AddJob(&engine.Add{Queue: []byte("other"), Replicate: 2, Async: true, Retry: 100, TTL: 86400})
	require.NoError(t, err)
	n.Effects()
	drop("other")(n, k)
	n.Tick()
	n.Effects()
	require.NotEmpty(t, n.Deletions().Queues)
	m := wire.Message{Kind: wire.YourJob, Flags: wire.Had, ID: wire.JobID((&store.IDMaker{}).Make(1, 7, 60, true)), Queue: []byte(strings.Repeat(":dead", 40_000)),
		Holders: []wire.Node{b.Node()}, Job: wire.Job{CTime: (dawn + 1000) * 1_000_000, Left: 100_000, Retry: 10, Repl: 2, Body: []byte("x")}}
	text := m.Append(nil)
	from := time.Now()
	require.NoError(t, n.Receive(b, text))
	require.Less(t, time.Since(from), 100*time.Millisecond)
}
