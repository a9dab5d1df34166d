package engine_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// A job that was released to come last waits for a job that a client works on. The queue of the second
// job goes to another database, and the job is acknowledged there. Then the first one has nothing left
// to wait for.
func TestTheEndOfOneThatIsAwayReachesTheLast(t *testing.T) {
	for _, how := range []string{"ack", "fastack", "cancel", "setack"} {
		now := int64(1_700_000_000_000)
		peer := wire.NodeID{1, 2, 3}
		n, k, _ := node(now)
		add := func(queue string, m engine.Members) store.ID { return lasting(t, n, queue, m) }
		last := add("last", engine.Members{Deferred: true})
		gone := add("away", engine.Members{BlockedBy: &last})
		away := n.Queue([]byte("away"))
		_, _, err := n.Release(&last, nil, true, false)
		require.NoError(t, err)
		n.Effects()
		pass(n, &now, 1000)
		require.Len(t, n.Fetch([]*store.Queue{away}, 1, true, nil), 1)
		n.Effects()
		move(t, n, k, away, 1)
		n.Effects()
		switch how {
		case "ack":
			n.Ack(&gone)
		case "fastack":
			n.FastAck(&gone)
		case "cancel":
			n.CancelJob(&gone)
		case "setack":
			n.Mesh().Up(peer, "10.0.0.1:1", true)
			require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.SetAck, ID: wire.JobID(gone)}).Append(nil)))
		}
		n.Effects()
		pass(n, &now, 3_600_000)
		move(t, n, k, away, 0)
		pass(n, &now, 3_600_000)
		for _, j := range n.Fetch([]*store.Queue{away}, 5, true, nil) {
			n.Ack(&j.ID) // the job came again
		}
		n.Effects()
		pass(n, &now, 3_600_000)
		if j := n.Job(&last); assert.NotNil(t, j, how) {
			assert.Equal(t, store.StateQueued, j.State, "%s: hours after its queue is back, and it is done, the other is still held back", how)
		}
	}
}

// Another node has a job that waits for a job here, and has asked about it. It is away when ACKJOB or FASTACK
// ends the job here. This node is started again. The other node must hear that the job is done: if it heard that no
// node knows the job, it would take it for undone, and drop the job that waits.
func TestTheEndOfOneThatIsAwayAndHasKin(t *testing.T) {
	for _, how := range []string{"in sight", "away", "away, said at a third node", "acked in sight", "acked away"} {
		away := strings.Contains(how, "away")
		now := int64(1_700_000_000_000)
		n, k, _ := node(now)
		peer, third := wire.NodeID{1, 2, 3}, wire.NodeID{9, 9, 9}
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		n.Mesh().Up(third, "10.0.0.2:1", true)
		n.Effects()
		id := lasting(t, n, "q", engine.Members{})
		n.Effects()
		q := n.Queue([]byte("q"))
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.AskOutcome, ID: wire.JobID(id)}).Append(nil)))
		n.Effects()
		require.Len(t, n.Fetch([]*store.Queue{q}, 1, true, nil), 1)
		n.Mesh().Down(peer)
		if away {
			move(t, n, k, q, 1)
		}
		n.Effects()
		switch how {
		case "away, said at a third node":
			require.NoError(t, n.Receive(third, (&wire.Message{Kind: wire.DelJob, Flags: wire.ByClient, ID: wire.JobID(id)}).Append(nil)))
		case "acked in sight", "acked away":
			n.Ack(&id)
		default:
			n.FastAck(&id)
		}
		n.Effects()
		pass(n, &now, 1000)
		var records [][]byte
		if away {
			move(t, n, k, q, 0)
			n.Effects()
		}
		if j := n.Job(&id); j != nil && !n.Nameless(j) {
			records = append(records, bytes.Clone(j.Record()))
		}
		n, _, _ = restarted(t, now, map[string]int{"q": 0}, map[string][][]byte{"q": records})
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		n.Mesh().Up(third, "10.0.0.2:1", true)
		n.Effects()
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.AskOutcome, ID: wire.JobID(id)}).Append(nil)))
		for _, e := range n.Effects() {
			if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.Outcome) {
				var m wire.Message
				require.NoError(t, m.Parse(n.Message(&e)))
				assert.NotEqual(t, uint32(wire.OutcomeUnknown), m.Count, "%s: nobody knows any more that it is done", how)
			}
		}
	}
}

// A job is acknowledged while a node that has a copy is down. Then its queue goes to another database,
// and somebody says FASTACK, here or at another node: the node that is down is still told of the acknowledgement.
func TestTheWordForOthersStaysWhereItIsAway(t *testing.T) {
	for _, how := range []string{"nothing", "fastack", "a peer's fastack", "a peer's ack"} {
		now := int64(1_700_000_000_000)
		n, k, _ := node(now)
		down, other := wire.NodeID{1, 2, 3}, wire.NodeID{9, 9, 9}
		n.Mesh().Up(down, "10.0.0.1:1", true)
		n.Mesh().Up(other, "10.0.0.2:1", true)
		n.Effects()
		id := lasting(t, n, "q", engine.Members{})
		n.Effects()
		q := n.Queue([]byte("q"))
		// The other node tells that it has a copy.
		require.NoError(t, n.Receive(down, (&wire.Message{Kind: wire.WillQueue, ID: wire.JobID(id)}).Append(nil)))
		n.Effects()
		require.Equal(t, 1, n.Job(&id).Holders())
		require.Len(t, n.Fetch([]*store.Queue{q}, 1, true, nil), 1)
		n.Mesh().Down(down)
		n.Effects()
		require.True(t, n.Ack(&id))
		n.Effects()
		require.Equal(t, store.StateAcked, n.Job(&id).State)
		move(t, n, k, q, 1)
		n.Effects()
		switch how {
		case "fastack":
			n.FastAck(&id)
		case "a peer's fastack":
			require.NoError(t, n.Receive(other, (&wire.Message{Kind: wire.DelJob, Flags: wire.ByClient, ID: wire.JobID(id)}).Append(nil)))
		case "a peer's ack":
			require.NoError(t, n.Receive(other, (&wire.Message{Kind: wire.SetAck, ID: wire.JobID(id), Holders: []wire.Node{other.Node()}}).Append(nil)))
		}
		n.Effects()
		pass(n, &now, 1000)
		move(t, n, k, q, 0)
		pass(n, &now, 5000)
		if j := n.Job(&id); assert.NotNil(t, j, "%s: the word for the node that is down is lost", how) {
			assert.Equal(t, store.StateAcked, j.State, how)
		}
	}
}

// A job and another one that waits for it are in another database, and are acknowledged by one command.
func TestTwoThatAreAwayEndByOneCommand(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, k, _ := node(now)
	parent := lasting(t, n, "p", engine.Members{})
	child := lasting(t, n, "q", engine.Members{After: []store.ID{parent}})
	n.Effects()
	p, q := n.Queue([]byte("p")), n.Queue([]byte("q"))
	move(t, n, k, p, 1)
	move(t, n, k, q, 1)
	n.Mesh().Up(wire.NodeID{1, 2, 3}, "10.0.0.1:1", true)
	n.Effects()
	n.Ack(&parent)
	n.Ack(&child)
	n.Effects()
	pass(n, &now, 5000)
	move(t, n, k, p, 0)
	move(t, n, k, q, 0)
	pass(n, &now, 5000)
	for _, id := range []store.ID{parent, child} {
		if j := n.Job(&id); j != nil {
			require.Equal(t, store.StateAcked, j.State) // until the other node has heard of the end
		}
	}
}

// A job is acknowledged while a node is down that has a copy, and jobs that wait for it. CANCELJOB of an acknowledged
// job does nothing, also if its queue lies in another database.
func TestCancelOfOneThatIsAckedAndAway(t *testing.T) {
	for _, away := range []bool{false, true} {
		now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
		n, k := paired(now, peer)
		id := lasting(t, n, "q", engine.Members{})
		n.Effects()
		q := n.Queue([]byte("q"))
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.WillQueue, ID: wire.JobID(id)}).Append(nil)))
		n.Effects()
		require.Len(t, n.Fetch([]*store.Queue{q}, 1, true, nil), 1)
		n.Mesh().Down(peer)
		n.Effects()
		require.True(t, n.Ack(&id))
		n.Effects()
		if away {
			move(t, n, k, q, 1)
		}
		n.Effects()
		n.CancelJob(&id)
		n.Effects()
		assert.EqualValues(t, 1, n.Jobs(), "away %v: two of an ID are known", away)
		if away {
			move(t, n, k, q, 0)
		}
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		for range 20 {
			now += 500
			n.SetNow(now)
			n.Tick()
			for _, e := range n.Effects() {
				if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.SetAck) {
					var m wire.Message
					require.NoError(t, m.Parse(n.Message(&e)))
					assert.Zero(t, m.Flags&wire.Cancelled, "away %v: the other node, which hasn't heard that it is done, hears that it was cancelled, and drops what waits for it", away)
				}
			}
		}
	}
}

// A job lies in another database when another node, which has a copy, sends it again, and it is
// acknowledged. It doesn't come back with its queue, whether the queue was moved there or was loaded there.
func TestACopyOfOneThatIsAway(t *testing.T) {
	for _, loaded := range []bool{false, true} {
		now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
		n, k, id := copied(t, now, peer)
		rec, ctime := bytes.Clone(n.Job(&id).Record()), n.Job(&id).CTime
		q := n.Queue([]byte("q"))
		if loaded {
			var queues map[string]*store.Queue
			n, k, queues = restarted(t, now, map[string]int{"q": 1}, map[string][][]byte{"q": {rec}})
			n.Mesh().Up(peer, "10.0.0.1:1", true)
			q = queues["q"]
		} else {
			move(t, n, k, q, 1)
		}
		n.Effects()
		require.Nil(t, n.Job(&id))
		copied := wire.Message{Kind: wire.ReplJob, Flags: wire.QueueIt, ID: wire.JobID(id), Queue: []byte("other"), Holders: []wire.Node{peer.Node()},
			Job: wire.Job{Body: []byte("b"), CTime: ctime, Left: 86_400_000, Retry: 100, Repl: 2}}
		require.NoError(t, n.Receive(peer, copied.Append(nil)))
		n.Effects()
		require.NotNil(t, n.Job(&id))
		require.True(t, n.Ack(&id))
		n.Effects()
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.GotAck, Flags: wire.Known, ID: wire.JobID(id)}).Append(nil)))
		n.Effects()
		pass(n, &now, 1000)
		require.Nil(t, n.Job(&id), "all know")
		move(t, n, k, q, 0)
		pass(n, &now, 5000)
		assert.Nil(t, n.Job(&id), "loaded there: %v: it was acknowledged, and is back", loaded)
		assert.Empty(t, n.Fetch([]*store.Queue{q}, 1, true, nil), "loaded there: %v: and is delivered", loaded)
	}
}

// A thousand jobs wait for one whose queue lies in another database. That job is acknowledged, and the server is
// killed right after the answer, with its whole log: no waiting job is lost. In a mesh no other
// node can tell how the job ended.
func TestEndedAfterTheEndOfOneThatIsAway(t *testing.T) {
	for _, mesh := range []bool{false, true} {
		for _, away := range []bool{false, true} {
			now := int64(1_700_000_000_000)
			peer := wire.NodeID{1, 2, 3}
			n, k, _ := node(now)
			if mesh {
				n.Mesh().Up(peer, "10.0.0.1:1", true)
			}
			n.Effects()
			add := func(queue string, m engine.Members) store.ID {
				defer n.Effects()
				return lasting(t, n, queue, m)
			}
			parent := add("p", engine.Members{})
			var children []store.ID
			for range 1000 {
				children = append(children, add("q", engine.Members{After: []store.ID{parent}}))
			}
			p := n.Queue([]byte("p"))
			require.Len(t, n.Fetch([]*store.Queue{p}, 1, true, nil), 1)
			if mesh {
				n.Mesh().Down(peer)
			}
			n.Effects()
			dbs := map[string]int{"p": 0, "q": 0}
			if away {
				move(t, n, k, p, 1)
				dbs["p"] = 1
			}
			n.Effects()
			n.Ack(&parent)
			n.Effects() // they are logged, and the client is answered
			// These records are in the log, or in an RDB, now.
			records := map[string][][]byte{}
			for i := range children {
				records["q"] = append(records["q"], bytes.Clone(n.Job(&children[i]).Record()))
			}
			for j := p.Held.Head; j != nil; j = j.Next {
				records["p"] = append(records["p"], bytes.Clone(j.Record()))
			}
			for j := p.Working.Head; j != nil; j = j.Next {
				records["p"] = append(records["p"], bytes.Clone(j.Record()))
			}
			if len(records["p"]) == 0 {
				delete(dbs, "p")
			}
			n, _, _ = restarted(t, now, dbs, records)
			if mesh {
				n.Mesh().Add(peer, "10.0.0.1:1")
			}
			n.Effects()
			for i := range 1000 {
				if mesh && i == 500 {
					n.Mesh().Up(peer, "10.0.0.1:1", true)
				}
				now += 60
				n.SetNow(now)
				n.Tick()
				fated(t, n, peer)
			}
			queued := 0
			for i := range children {
				if j := n.Job(&children[i]); j != nil && j.State == store.StateQueued {
					queued++
				}
			}
			assert.Equal(t, len(children), queued, "mesh %v, away %v", mesh, away)
		}
	}
}

// Another node hands over a job (YOURJOB) that lies in another database here, where it was loaded. A server that
// has loaded the queue, too, and reads this server's log, must come to the same state.
func TestTheLogOfACopyOfOneThatIsAway(t *testing.T) {
	now := int64(1_700_000_000_000)
	peer := wire.NodeID{1, 2, 3}
	n, _, _ := node(now)
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 100, TTL: 86400})
	require.NoError(t, err)
	n.Effects()
	rec, ctime := bytes.Clone(n.Job(&id).Record()), n.Job(&id).CTime
	type server struct {
		n *engine.Node
		k *keys
		q *store.Queue
	}
	load := func() (s server) {
		var queues map[string]*store.Queue
		s.n, s.k, queues = restarted(t, now, map[string]int{"q": 1}, map[string][][]byte{"q": {rec}})
		s.q = queues["q"]
		return s
	}
	m, r := load(), load()
	r.n.SetPassive(true)
	r.n.Follow()
	r.n.Effects()
	follow := func() {
		for _, e := range m.n.Effects() {
			switch e.Kind {
			case engine.LogJob:
				require.NoError(t, r.n.ApplyJob(e.Job.Queue.NameBytes(), bytes.Clone(e.Job.Record())))
			case engine.LogState:
				require.NoError(t, r.n.ApplyState(bytes.Clone(e.Job.StateRecord()), bytes.Clone(e.Job.RawParts())))
			case engine.LogMove:
				require.NoError(t, r.n.ApplyMove(e.Job.Queue.NameBytes(), bytes.Clone(e.Job.StateRecord()), bytes.Clone(e.Job.RawParts())))
			case engine.LogDelete:
				id := e.ID
				r.n.ApplyDelete(&id)
			}
		}
		r.n.Effects()
	}
	m.n.Mesh().Up(peer, "10.0.0.1:1", true)
	follow()
	copied := wire.Message{Kind: wire.ReplJob, Flags: wire.QueueIt, ID: wire.JobID(id), Queue: []byte("other"), Holders: []wire.Node{peer.Node()},
		Job: wire.Job{Body: []byte("b"), CTime: ctime, Left: 86_400_000, Retry: 100, Repl: 2}}
	require.NoError(t, m.n.Receive(peer, copied.Append(nil)))
	follow()
	stranger := id
	stranger[20]++
	m.n.Ack(&stranger) // no node knows this ID: from then on the table has all jobs
	follow()
	m.n.Ack(&id)
	follow()
	require.NoError(t, m.n.Receive(peer, (&wire.Message{Kind: wire.GotAck, Flags: wire.Known, ID: wire.JobID(id)}).Append(nil)))
	follow()
	move(t, m.n, m.k, m.q, 0)
	move(t, r.n, r.k, r.q, 0)
	follow()
	assert.Equal(t, m.n.Job(&id) == nil, r.n.Job(&id) == nil, "the replica has a job that its master hasn't")
}

// Jobs that wait for a job that is done, and whose queues lie in
// another database, don't hold up those in this database, however many they are.
func TestOneInSightBehindManyThatAreAway(t *testing.T) {
	for _, many := range []int{100, 400} {
		now := int64(1_700_000_000_000)
		n, k, _ := node(now)
		add := func(queue string, m engine.Members) store.ID {
			defer n.Effects()
			return lasting(t, n, queue, m)
		}
		parent := add("p", engine.Members{})
		for range many {
			add("away", engine.Members{After: []store.ID{parent}})
		}
		last := add("q", engine.Members{After: []store.ID{parent}})
		move(t, n, k, n.Queue([]byte("away")), 1)
		n.Effects()
		n.Ack(&parent)
		n.Effects()
		pass(n, &now, 60_000)
		j := n.Job(&last)
		require.NotNil(t, j)
		assert.Equal(t, store.StateQueued, j.State, "%d are away: a minute after the end of what it waits for, it is held back", many)
	}
}

// Such jobs don't hold up the jobs that wait for another job either, which
// was deleted with its queue.
func TestOtherFamiliesBehindManyThatAreAway(t *testing.T) {
	for _, many := range []int{100, 400} {
		now := int64(1_700_000_000_000)
		n, k, _ := node(now)
		add := func(queue string, m engine.Members) store.ID {
			defer n.Effects()
			return lasting(t, n, queue, m)
		}
		parent, other := add("p", engine.Members{}), add("p2", engine.Members{})
		for range many {
			add("away", engine.Members{After: []store.ID{parent}})
		}
		var rest []store.ID
		for range 400 {
			rest = append(rest, add("q", engine.Members{After: []store.ID{other}, OnDead: engine.OnDeadRun}))
		}
		move(t, n, k, n.Queue([]byte("away")), 1)
		n.Effects()
		n.Ack(&parent)
		n.Effects()
		pass(n, &now, 5_000)
		p2 := n.Queue([]byte("p2"))
		n.Unlinked(p2.Box, p2) // DEL
		n.Effects()
		pass(n, &now, 60_000)
		waiting := 0
		for i := range rest {
			if j := n.Job(&rest[i]); j != nil && j.State != store.StateQueued {
				waiting++
			}
		}
		assert.Zero(t, waiting, "%d of another family are away: a minute after the end of what these wait for, they are held back", many)
	}
}

// A node whose copy of a deferred job lies in another database doesn't
// confirm the release, so that it is told again when it has the copy back.
func TestReleaseOfOneThatIsAway(t *testing.T) {
	for _, away := range []bool{false, true} {
		now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
		other, ko := paired(now, peer) // has the copy, which is to lie in another database
		id, _, err := other.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 100, TTL: 86400, Members: engine.Members{Deferred: true}})
		require.NoError(t, err)
		other.Effects()
		q := other.Queue([]byte("q"))
		if away {
			move(t, other, ko, q, 1)
		}
		other.Effects()
		require.NoError(t, other.Receive(peer, (&wire.Message{Kind: wire.Release, ID: wire.JobID(id)}).Append(nil)))
		stopsTelling := false
		for _, e := range other.Effects() {
			stopsTelling = stopsTelling || e.Kind == engine.Send && other.Message(&e)[0] == byte(wire.Released)
		}
		if away {
			move(t, other, ko, q, 0)
		}
		other.Effects()
		other.Mesh().Down(peer)
		pass(other, &now, 400_000)
		j := other.Job(&id)
		require.NotNil(t, j)
		assert.False(t, stopsTelling && j.State != store.StateQueued, "away %v: the node that knows of the release stops telling (RELEASED), and this one holds its copy back", away)
	}
}

// fated answers each question what became of a job as a node that doesn't know the job.
func fated(t *testing.T, n *engine.Node, peer wire.NodeID) {
	var sent [][]byte
	for _, e := range n.Effects() {
		if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.AskOutcome) {
			sent = append(sent, bytes.Clone(n.Message(&e)))
		}
	}
	for _, b := range sent {
		var m wire.Message
		require.NoError(t, m.Parse(b))
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.Outcome, ID: m.ID, Count: wire.OutcomeUnknown, Round: m.Round}).Append(nil)))
	}
}

// paired makes a node that is connected with another one.
func paired(now int64, peer wire.NodeID) (*engine.Node, *keys) {
	n, k, _ := node(now)
	n.Mesh().Up(peer, "10.0.0.1:1", true)
	n.Effects()
	return n, k
}

// copied makes a node with a job in queue q that is to have a copy at another node.
func copied(t *testing.T, now int64, peer wire.NodeID) (*engine.Node, *keys, store.ID) {
	t.Helper()
	n, k := paired(now, peer)
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 100, TTL: 86400})
	require.NoError(t, err)
	n.Effects()
	return n, k, id
}

// A job is acknowledged while a node that has a copy can't be reached. Its queue goes to another
// database. When that node is back, it has queued its copy, and hands it over, or says that it has it
// queued. It must hear that the job is done, and the job isn't delivered here again.
func TestACopyOfOneThatIsAckedAndAway(t *testing.T) {
	for _, kind := range []wire.Kind{wire.YourJob, wire.ReplJob, wire.WillQueue, wire.Queued, wire.Holders} {
		for _, away := range []string{"in sight", "away", "restarted there"} {
			now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
			n, k, id := copied(t, now, peer)
			ctime := n.Job(&id).CTime
			q := n.Queue([]byte("q"))
			require.Len(t, n.Fetch([]*store.Queue{q}, 1, true, nil), 1)
			n.Effects()
			n.Mesh().Down(peer)
			n.Effects()
			require.True(t, n.Ack(&id))
			n.Effects()
			require.Equal(t, store.StateAcked, n.Job(&id).State)
			rec := bytes.Clone(n.Job(&id).Record())
			switch away {
			case "away":
				move(t, n, k, q, 1)
			case "restarted there":
				n, _, _ = restarted(t, now, map[string]int{"q": 1}, map[string][][]byte{"q": {rec}})
				n.Mesh().Add(peer, "10.0.0.1:1")
			}
			n.Effects()
			pass(n, &now, 200_000)
			n.Mesh().Up(peer, "10.0.0.1:1", true)
			n.Effects()
			m := wire.Message{Kind: kind, ID: wire.JobID(id), Queue: []byte("q"), Holders: []wire.Node{peer.Node()},
				Job: wire.Job{Body: []byte("b"), CTime: ctime, Left: 86_000_000, Retry: 100, Repl: 2, Deliveries: 1}}
			if kind == wire.YourJob {
				m.Flags = wire.Had
			}
			require.NoError(t, n.Receive(peer, m.Append(nil)))
			told := false
			for range 10 {
				for _, e := range n.Effects() {
					if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.SetAck) {
						told = true
					}
				}
				now += 500
				n.SetNow(now)
				n.Tick()
			}
			assert.True(t, told, "%d %s: the other node isn't told that it is done", kind, away)
			if q := n.Queue([]byte("q")); q != nil {
				assert.Empty(t, n.Fetch([]*store.Queue{q}, 1, true, nil), "%d %s: it was acknowledged here, and is delivered here", kind, away)
			}
		}
	}
}

// An at-most-once job for which another job waits is given to a client. Its queue goes to another database, and the
// job is acknowledged there. It is never delivered again, so no client will acknowledge it again: the other job goes on at once.
func TestAckOfAnAtMostOnceJobThatIsAway(t *testing.T) {
	for _, away := range []bool{false, true} {
		for _, how := range []string{"ack", "fastack"} {
			now := int64(1_700_000_000_000)
			n, k, _ := node(now)
			parent, _, err := n.AddJob(&engine.Add{Queue: []byte("p"), Replicate: 1, Retry: 0, TTL: 3600})
			require.NoError(t, err)
			n.Effects()
			child := lasting(t, n, "q", engine.Members{After: []store.ID{parent}})
			n.Effects()
			p := n.Queue([]byte("p"))
			require.Len(t, n.Fetch([]*store.Queue{p}, 1, true, nil), 1)
			n.Effects()
			if away {
				move(t, n, k, p, 1)
			}
			n.Effects()
			if how == "ack" {
				n.Ack(&parent)
			} else {
				n.FastAck(&parent)
			}
			n.Effects()
			pass(n, &now, 5000)
			require.Equal(t, store.StateQueued, n.Job(&child).State, "away %v, %s", away, how)
			assert.Zero(t, p.Jobs(), "away %v, %s: nobody needs the other any more", away, how)
			if away {
				move(t, n, k, p, 0)
			}
			pass(n, &now, 4_000_000)
			assert.NotNil(t, n.Job(&child), "away %v, %s: it was dropped, though what it waited for was acknowledged", away, how)
		}
	}
}

// A job whose queue lies in another database is acknowledged while a node that has a copy is down. That node is told
// when it is back. If this server was killed meanwhile, it tells it when the queue is back. The job goes when that node
// knows, wherever the queue is.
func TestAckOfOneThatIsAwayAndHasACopyElsewhere(t *testing.T) {
	for _, how := range []string{"in sight", "away", "away, and killed"} {
		now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
		n, k, id := copied(t, now, peer)
		q := n.Queue([]byte("q"))
		require.Len(t, n.Fetch([]*store.Queue{q}, 1, true, nil), 1)
		n.Mesh().Down(peer)
		n.Effects()
		if how != "in sight" {
			move(t, n, k, q, 1)
		}
		n.Effects()
		n.Ack(&id)
		n.Effects()
		if how == "away, and killed" {
			var records [][]byte
			for j := q.Held.Head; j != nil; j = j.Next {
				records = append(records, bytes.Clone(j.Record()))
			}
			var queues map[string]*store.Queue
			n, k, queues = restarted(t, now, map[string]int{"q": 1}, map[string][][]byte{"q": records})
			n.Mesh().Add(peer, "10.0.0.1:1")
			n.Effects()
			q = queues["q"]
			move(t, n, k, q, 0)
		}
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		told := false
		for range 10 {
			for _, e := range n.Effects() {
				told = told || e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.SetAck)
			}
			now += 500
			n.SetNow(now)
			n.Tick()
		}
		assert.True(t, told, "%s: nobody tells the other node that it is done", how)
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.GotAck, Flags: wire.Known, ID: wire.JobID(id)}).Append(nil)))
		n.Effects()
		assert.Zero(t, q.Jobs(), how)
	}
}

// Another node acknowledges a job that lies in another database here. The job stays until that node says by DELJOB
// that all nodes know.
func TestAckElsewhereOfOneThatIsAway(t *testing.T) {
	now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
	n, k := paired(now, peer)
	id := lasting(t, n, "q", engine.Members{})
	q := n.Queue([]byte("q"))
	move(t, n, k, q, 1)
	n.Effects()
	require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.SetAck, ID: wire.JobID(id), Holders: []wire.Node{peer.Node()}}).Append(nil)))
	var reply wire.Message
	for _, e := range n.Effects() {
		if e.Kind == engine.Send {
			require.NoError(t, reply.Parse(bytes.Clone(n.Message(&e))))
		}
	}
	assert.Equal(t, wire.GotAck, reply.Kind)
	assert.Equal(t, uint8(wire.Known), reply.Flags)
	require.NotNil(t, q.Held.Head)
	assert.Equal(t, store.StateAcked, q.Held.Head.State)
	require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.DelJob, ID: wire.JobID(id)}).Append(nil)))
	n.Effects()
	assert.Zero(t, q.Jobs())
}

// A job that was acknowledged, and whose queue stays in another database beyond the job's time to live, ends when the
// queue is back.
func TestTheTimeOfOneThatIsAckedAndAway(t *testing.T) {
	now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
	n, k := paired(now, peer)
	id := lasting(t, n, "q", engine.Members{})
	q := n.Queue([]byte("q"))
	n.Mesh().Down(peer)
	move(t, n, k, q, 1)
	n.Effects()
	n.Ack(&id)
	n.Effects()
	require.EqualValues(t, 1, q.Jobs())
	pass(n, &now, 90_000_000)
	move(t, n, k, q, 0)
	pass(n, &now, 6000)
	assert.Zero(t, q.Jobs())
}

// A thousand jobs wait for one whose queue lies in another database. However that job ends, they go on or fall as they
// would if the queue were here. The job goes when the other node knows.
func TestTheEndOfOneThatIsAwayIsFollowed(t *testing.T) {
	for _, how := range []string{"cancel", "fastack", "setack", "setack cancelled", "deljob"} {
		now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
		n, k := paired(now, peer)
		parent := lasting(t, n, "p", engine.Members{})
		var drop, run []store.ID
		for range 500 {
			drop = append(drop, lasting(t, n, "q", engine.Members{After: []store.ID{parent}}))
			run = append(run, lasting(t, n, "q", engine.Members{After: []store.ID{parent}, OnDead: engine.OnDeadRun}))
			n.Effects()
		}
		p := n.Queue([]byte("p"))
		move(t, n, k, p, 1)
		n.Effects()
		hear := func(m wire.Message) {
			m.ID = wire.JobID(parent)
			require.NoError(t, n.Receive(peer, m.Append(nil)))
			n.Effects()
		}
		goOn := len(drop)
		switch how {
		case "cancel":
			n.CancelJob(&parent)
			goOn = 0
		case "fastack":
			n.FastAck(&parent)
		case "setack":
			hear(wire.Message{Kind: wire.SetAck, Holders: []wire.Node{peer.Node()}})
		case "setack cancelled":
			hear(wire.Message{Kind: wire.SetAck, Flags: wire.Cancelled, Holders: []wire.Node{peer.Node()}})
			goOn = 0
		case "deljob":
			hear(wire.Message{Kind: wire.DelJob, Flags: wire.ByClient})
		}
		n.Effects()
		pass(n, &now, 5000)
		queued := func(ids []store.ID) (count int) {
			for i := range ids {
				if j := n.Job(&ids[i]); j != nil && j.State == store.StateQueued {
					count++
				}
			}
			return count
		}
		assert.Equal(t, len(run), queued(run), how)
		assert.Equal(t, goOn, queued(drop), how)
		assert.EqualValues(t, len(run)+goOn, n.Queue([]byte("q")).Jobs(), how)
		hear(wire.Message{Kind: wire.GotAck})
		assert.Zero(t, p.Jobs(), how)
	}
}

// An at-most-once job is acknowledged, and its queue goes to another database. Another node that offers the job hears that it
// can forget it, and the job isn't delivered again.
func TestAnOfferOfOneThatIsAckedAndAway(t *testing.T) {
	for _, away := range []bool{false, true} {
		now := int64(1_700_000_000_000)
		peer := wire.NodeID{1, 2, 3}
		n, k, _ := node(now)
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, TTL: 86400})
		require.NoError(t, err)
		n.Effects()
		ctime := n.Job(&id).CTime
		q := n.Queue([]byte("q"))
		require.Len(t, n.Fetch([]*store.Queue{q}, 1, true, nil), 1)
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.AskOutcome, ID: wire.JobID(id)}).Append(nil)))
		n.Mesh().Down(peer)
		n.Effects()
		n.Ack(&id)
		n.Effects()
		if away {
			move(t, n, k, q, 1)
		}
		pass(n, &now, 200_000)
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		n.Effects()
		m := wire.Message{Kind: wire.Offer, ID: wire.JobID(id), Queue: []byte("q"), Round: 7,
			Job: wire.Job{Body: []byte("b"), CTime: ctime, Left: 86_000_000, Repl: 1}}
		require.NoError(t, n.Receive(peer, bytes.Clone(m.Append(nil))))
		taken := false
		for _, e := range n.Effects() {
			taken = taken || e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.Taken)
		}
		assert.True(t, taken, "away %v", away)
		if q := n.Queue([]byte("q")); q != nil {
			assert.Empty(t, n.Fetch([]*store.Queue{q}, 1, true, nil), "away %v", away)
		}
	}
}

// Many jobs wait for a job whose queue lies in another database, and some of them lie there, too. The job is acknowledged,
// and its queue comes back in the same MULTI. The ends of other jobs are still followed, and
// the node comes to rest.
func TestEndsAreNotHeldUpByOneThatIsBack(t *testing.T) {
	for _, back := range []bool{false, true} {
		now := int64(1_700_000_000_000)
		n, k, _ := node(now)
		add := func(queue string, m engine.Members) store.ID {
			defer n.Effects()
			return lasting(t, n, queue, m)
		}
		parent := add("p", engine.Members{})
		for range 1000 {
			add("q", engine.Members{After: []store.ID{parent}})
		}
		add("r", engine.Members{After: []store.ID{parent}})
		p, r := n.Queue([]byte("p")), n.Queue([]byte("r"))
		other := add("o", engine.Members{})
		var children []store.ID
		for range 1000 {
			children = append(children, add("s", engine.Members{After: []store.ID{other}}))
		}
		o := n.Queue([]byte("o"))
		move(t, n, k, r, 1)
		move(t, n, k, p, 1)
		move(t, n, k, o, 1)
		n.Effects()
		n.Ack(&parent)
		n.Effects()
		if back {
			move(t, n, k, p, 0)
		}
		n.Effects()
		n.Ack(&other)
		n.Effects()
		pass(n, &now, 60_000)
		queued := 0
		for i := range children {
			if j := n.Job(&children[i]); j != nil && j.State == store.StateQueued {
				queued++
			}
		}
		assert.Equal(t, len(children), queued, "back %v: of those that waited for another job, so many are queued a minute after it was acknowledged", back)
		soon := 0
		for range 1000 {
			n.SetNow(now)
			next := n.Tick()
			n.Effects()
			if next <= now+1 {
				soon++
			}
			now = next
		}
		assert.Less(t, soon, 100, "back %v: of 1000 ticks so many ask for the next one at once", back)
	}
}

// Another node has a copy of a job that waits for a job here, and is down when the second one is acknowledged. Memory gets short here,
// and this node is started again. The other node must hear that the job that its copy waits for is done.
func TestTheWordForKinStaysOfOneThatWasAway(t *testing.T) {
	for _, away := range []bool{false, true} {
		now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
		n, k := paired(now, peer)
		id := lasting(t, n, "q", engine.Members{})
		child := lasting(t, n, "c", engine.Members{After: []store.ID{id}})
		n.Effects()
		q := n.Queue([]byte("q"))
		// The other node tells that it has a copy of the waiting job.
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.Holders, ID: wire.JobID(child), Holders: []wire.Node{peer.Node()}}).Append(nil)))
		n.Effects()
		require.Equal(t, 1, n.Job(&child).Holders())
		require.Len(t, n.Fetch([]*store.Queue{q}, 1, true, nil), 1)
		n.Mesh().Down(peer)
		if away {
			move(t, n, k, q, 1)
		}
		n.Effects()
		n.Ack(&id)
		n.Effects()
		pass(n, &now, 1000)
		if away {
			move(t, n, k, q, 0)
			n.Effects()
		}
		n.SetMemory(0.99)
		for range 10 {
			pass(n, &now, 500)
		}
		n.SetMemory(0)
		var records [][]byte
		if j := n.Job(&id); j != nil {
			records = append(records, bytes.Clone(j.Record()))
		}
		assert.NotEmpty(t, records, "away %v: the word was evicted", away)
		n, _, _ = restarted(t, now, map[string]int{"q": 0}, map[string][][]byte{"q": records})
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		n.Effects()
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.AskOutcome, ID: wire.JobID(id)}).Append(nil)))
		for _, e := range n.Effects() {
			if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.Outcome) {
				var m wire.Message
				require.NoError(t, m.Parse(n.Message(&e)))
				assert.NotEqual(t, uint32(wire.OutcomeUnknown), m.Count, "away %v: nobody knows any more that it is done: the other node drops its copy", away)
			}
		}
	}
}

// An ADDJOB waits for a copy, and its queue goes to another database. A worker that got the copy
// acknowledges the job, here or at another node: the client that added the job hears that it is promised.
func TestAnAddThatIsAwayAndAckedIsAnswered(t *testing.T) {
	for _, how := range []string{"ack", "setack"} {
		now := int64(1_700_000_000_000)
		peer := wire.NodeID{1, 2, 3}
		n, k := paired(now, peer)
		id, pending, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, CanWait: true, Retry: 100, TTL: 86400})
		require.NoError(t, err)
		require.True(t, pending)
		n.Tie(engine.PendingAdd(id), "client")
		n.Effects()
		move(t, n, k, n.Queue([]byte("q")), 1)
		if how == "ack" {
			n.Ack(&id)
		} else {
			require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.SetAck, ID: wire.JobID(id), Holders: []wire.Node{peer.Node()}}).Append(nil)))
		}
		answered := false
		for _, e := range n.Effects() {
			answered = answered || e.Kind == engine.Promise && e.Client == "client" && e.ID == id
		}
		assert.True(t, answered, how)
	}
}

// The queue of a unique job lies in another database. A node that has a vote for the job asks about it. It must hear that the
// job lives, or, once the job is acknowledged, that it is done, which another node doesn't know yet. If it heard "gone",
// it would have to wait for all other nodes.
func TestVerifyOfAJobThatIsAway(t *testing.T) {
	for _, done := range []bool{false, true} {
		for _, away := range []bool{false, true} {
			now := int64(1_700_000_000_000)
			n, k, _ := node(now)
			id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 100, TTL: 86400,
				Unique: engine.Unique{Strategy: store.UniqueUntil, Keyed: true, Key: []byte("k")}})
			require.NoError(t, err)
			peer, down := wire.NodeID{1, 2, 3}, wire.NodeID{9, 9, 9}
			n.Mesh().Up(peer, "10.0.0.1:1", true)
			n.Mesh().Up(down, "10.0.0.2:1", true)
			n.Effects()
			require.NoError(t, n.Receive(down, (&wire.Message{Kind: wire.WillQueue, ID: wire.JobID(id)}).Append(nil))) // that node has a copy
			n.Mesh().Down(down)
			q := n.Queue([]byte("q"))
			if away {
				move(t, n, k, q, 1)
			}
			expected := uint32(wire.JobLives)
			if done {
				n.Ack(&id)
				expected = wire.JobDone
			}
			n.Effects()
			require.EqualValues(t, 1, q.Jobs())
			assert.Equal(t, expected, verified(t, n, peer, id, 0), "done %v, away %v", done, away)
		}
	}
}

// A job whose queue lies in another database is acknowledged while a node is cut off that has the job in its queue. This node is
// restarted then. The other node must hear of the end as soon as it is back, as without the restart, and as when the queue
// is here, because it gives the job to the next client without a question.
func TestAckOfOneThatIsAwayAndRestarted(t *testing.T) {
	for _, how := range []string{"in sight, restarted", "away", "away, restarted"} {
		now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
		n, k, id := copied(t, now, peer)
		q := n.Queue([]byte("q"))
		require.Len(t, n.Fetch([]*store.Queue{q}, 1, true, nil), 1)
		n.Mesh().Down(peer)
		db := 0
		if how != "in sight, restarted" {
			db = 1
			move(t, n, k, q, 1)
		}
		n.Effects()
		n.Ack(&id)
		n.Effects()
		if how != "away" {
			var records [][]byte
			for j := q.Held.Head; j != nil; j = j.Next {
				records = append(records, bytes.Clone(j.Record()))
			}
			require.Len(t, records, 1)
			n, _, _ = restarted(t, now, map[string]int{"q": db}, map[string][][]byte{"q": records})
			n.Mesh().Add(peer, "10.0.0.1:1")
			n.Effects()
		}
		pass(n, &now, 10_000)
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		assert.True(t, toldEnd(n, &now, 10_000, peer), "%s: nobody tells the other node that it is done", how)
	}
}

// A node that was promoted in a master's place has the acknowledgements that its master still had to tell others. It tells them
// when it meets the mesh, also if that is a minute later.
func TestAcksOfANodeThatMeetsTheMeshLate(t *testing.T) {
	for _, late := range []int64{5_000, 60_000} {
		now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
		n, _, id := copied(t, now, peer)
		require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil), 1)
		n.Mesh().Down(peer)
		n.Effects()
		n.Ack(&id)
		n.Effects()
		rec := bytes.Clone(n.Job(&id).Record())
		n, _, _ = restarted(t, now, map[string]int{"q": 0}, map[string][][]byte{"q": {rec}})
		n.SetPassive(true)
		n.Follow()
		pass(n, &now, 2000)
		n.SetPassive(false)
		pass(n, &now, late)
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		assert.True(t, toldEnd(n, &now, 30_000, peer), "met %d s after the promotion: the node that has a copy isn't told that it is done", late/1000)
	}
}

// The queue of a unique job lies in another database. A node in dispute about its lock votes for neither holder, and
// asks which nodes count on votes for the job. This node says that it does, as when the queue is here.
func TestRivalThatIsAway(t *testing.T) {
	for _, away := range []bool{false, true} {
		now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
		n, k, _ := node(now)
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 100, TTL: 86400,
			Unique: engine.Unique{Strategy: store.UniqueUntil, Keyed: true, Key: []byte("k")}})
		require.NoError(t, err)
		n.Mesh().Up(peer, "10.0.0.1:1", true)
		if away {
			move(t, n, k, n.Queue([]byte("q")), 1)
		}
		n.Effects()
		assert.Equal(t, uint32(wire.JobLives), verified(t, n, peer, id, wire.Disputed), "away %v", away)
	}
}

// A client says WORKING for a job whose lock has a lease. While the other node is asked, the queue goes to another database. The
// other node keeps the key for the job, as it does if the queue goes a moment later.
func TestRenewalOfOneThatGoesAway(t *testing.T) {
	for _, early := range []bool{false, true} {
		now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
		n, k := paired(now, peer)
		n.Locks().Trust()
		round, freed, id := uint64(0), false, store.ID{}
		look := func() {
			for _, e := range n.Effects() {
				if e.Kind != engine.Send {
					continue
				}
				var m wire.Message
				require.NoError(t, m.Parse(n.Message(&e)))
				if m.Kind == wire.Claim {
					round = m.Round
				}
				freed = freed || m.Kind == wire.Unlock && store.ID(m.Lock.Job) == id
			}
		}
		grant := func() {
			require.NotZero(t, round)
			require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.Grant, Round: round}).Append(nil)))
			round = 0
		}
		id, pending, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 100, TTL: 86400, CanWait: true,
			Unique: engine.Unique{Strategy: store.UniqueUntil, Keyed: true, Key: []byte("k"), LockTTL: 500}})
		require.NoError(t, err)
		require.True(t, pending)
		look()
		n.Tie(engine.PendingAdd(id), "client")
		n.Locks().VotesKept(n.Locks().Votes())
		look()
		grant()
		look()
		require.NotNil(t, n.Job(&id))
		require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil), 1)
		look()
		_, pending, err = n.Working(&id, engine.Work{Client: "client"})
		require.NoError(t, err)
		require.True(t, pending)
		look()
		if early {
			move(t, n, k, n.Queue([]byte("q")), 1)
		}
		grant()
		look()
		if !early {
			move(t, n, k, n.Queue([]byte("q")), 1)
		}
		for range 20 {
			look()
			now += 100
			n.SetNow(now)
			n.Tick()
		}
		assert.False(t, freed, "early %v: the other node is told to free the key of a job that lives", early)
	}
}

// A job is acknowledged while the node that has a copy is gone for good, and forgotten. A replica of that node is promoted in its
// place, has the copy in its queue, and joins. It is told that the job is done, wherever the job's queue lies here.
func TestHeirOfOneThatIsAckedAndAway(t *testing.T) {
	for _, away := range []bool{false, true} {
		now, peer, heir := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}, wire.NodeID{4, 5, 6}
		n, k, id := copied(t, now, peer)
		n.Mesh().Up(wire.NodeID{7, 7, 7}, "10.0.0.3:1", true) // so that the node isn't alone
		q := n.Queue([]byte("q"))
		require.Len(t, n.Fetch([]*store.Queue{q}, 1, true, nil), 1)
		n.Mesh().Down(peer)
		if away {
			move(t, n, k, q, 1)
		}
		n.Effects()
		n.Ack(&id)
		pass(n, &now, 1_000)
		n.Mesh().Up(heir, "10.0.0.2:1", true)
		n.Mesh().Forget(peer)
		assert.True(t, toldEnd(n, &now, 400_000, heir), "away %v: the node with a copy isn't told that the job is done", away)
	}
}

// A client works on a job here, and the queue goes to another database. The other node that has a copy announces that it queues it:
// it must hear that a client has the job, as when the queue is here.
func TestInHandsAndAway(t *testing.T) {
	for _, away := range []bool{false, true} {
		now, peer := int64(1_700_000_000_000), wire.NodeID{1, 2, 3}
		n, k, id := copied(t, now, peer)
		pass(n, &now, 90_000) // of the retry time of 100 s
		q := n.Queue([]byte("q"))
		require.Len(t, n.Fetch([]*store.Queue{q}, 1, true, nil), 1)
		if away {
			move(t, n, k, q, 1)
		}
		n.Effects()
		require.NoError(t, n.Receive(peer, (&wire.Message{Kind: wire.WillQueue, ID: wire.JobID(id)}).Append(nil)))
		objects := false
		for _, e := range n.Effects() {
			objects = objects || e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.Queued)
		}
		assert.True(t, objects, "away %v", away)
	}
}

// toldEnd lets time pass, and says whether the node tells another one meanwhile that a job is done.
func toldEnd(n *engine.Node, now *int64, ms int64, to wire.NodeID) (told bool) {
	for end := *now + ms; *now < end; {
		for _, e := range n.Effects() {
			told = told || e.Kind == engine.Send && e.Peer.ID == to && n.Message(&e)[0] == byte(wire.SetAck)
		}
		*now += 500
		n.SetNow(*now)
		n.Tick()
	}
	return told
}

// verified asks a node about a job that waits in queue q for key k, and returns its answer.
func verified(t *testing.T, n *engine.Node, from wire.NodeID, id store.ID, flags uint8) (count uint32) {
	t.Helper()
	name := store.AppendLockName(nil, store.LockWait, []byte("q"), []byte("k"))
	require.NoError(t, n.Receive(from, (&wire.Message{Kind: wire.Verify, Flags: flags, ID: wire.JobID(id), Lock: wire.Lock{Name: name, Left: 1}}).Append(nil)))
	for _, e := range n.Effects() {
		if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.Verified) {
			var m wire.Message
			require.NoError(t, m.Parse(n.Message(&e)))
			count = m.Count
		}
	}
	return count
}
