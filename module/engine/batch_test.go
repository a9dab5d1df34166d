package engine_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// bulkAdder is a node with another one that takes copies and never answers.
func bulkAdder(t *testing.T) (n *engine.Node, mate wire.NodeID) {
	n, _, _ = node(1_700_000_000_000)
	mate = wire.NodeID{0x11, 0x22}
	n.Mesh().Add(mate, "10.0.0.1:1")
	n.SetFeatures(mate, engine.Features{Batches: true, Counts: true})
	n.Mesh().Up(mate, "10.0.0.1:1", false)
	n.Effects()
	require.Equal(t, 1, n.Mesh().Reachable())
	return n, mate
}

// addMany is ADDJOBS of so many jobs.
func addMany(t *testing.T, n *engine.Node, count int, a engine.Add) (*engine.Batch, bool) {
	a.Queue, a.TTL, a.Retry, a.CanWait = []byte("q"), 1000, 10, true
	b, wait, err := n.AddJobs(&a, make([][]byte, count), nil)
	require.NoError(t, err)
	return b, wait
}

// sent counts the messages of a kind in the effects.
func sent(n *engine.Node, kind wire.Kind) (count int) {
	for _, e := range n.Effects() {
		if e.Kind == engine.Send && wire.Kind(n.Message(&e)[0]) == kind {
			count++
		}
	}
	return count
}

// With ASYNC the jobs of one message are in the queue before the next one is sent. They count once for MAXLEN.
func TestMaxLenOfAsyncBatch(t *testing.T) {
	n, _ := bulkAdder(t)
	b, wait := addMany(t, n, 6000, engine.Add{Replicate: 2, Async: true, MaxLen: 5000})
	require.False(t, wait)
	added := 0
	for _, a := range b.Answers {
		if a.Err == nil {
			added++
		}
	}
	assert.Equal(t, 5000, added)
	assert.Equal(t, uint64(5000), n.Queue([]byte("q")).Waiting())
	assert.Equal(t, 4, sent(n, wire.ReplJobs))
}

// No message is so large that the bus would send it in parts.
func TestBundlesFitTheBus(t *testing.T) {
	n, _ := bulkAdder(t)
	for _, size := range []int{0, 1, 100, 1000, 30_000, 59_000} {
		bodies := make([][]byte, 200)
		for i := range bodies {
			bodies[i] = make([]byte, size)
		}
		_, _, err := n.AddJobs(&engine.Add{Queue: []byte("q"), TTL: 1000, Retry: 10, Replicate: 2, CanWait: true}, bodies, nil)
		require.NoError(t, err)
		for _, e := range n.Effects() {
			if e.Kind == engine.Send && wire.Kind(n.Message(&e)[0]) == wire.ReplJobs {
				require.LessOrEqual(t, len(n.Message(&e)), 65_528)
			}
		}
	}
}

// The client of a very large ADDJOBS goes away: its jobs are taken back bit by bit.
func TestAbandonedBatchInSlices(t *testing.T) {
	n, _ := bulkAdder(t)
	b, wait := addMany(t, n, engine.MaxBatch, engine.Add{Replicate: 2})
	require.True(t, wait)
	n.Effects()
	assert.Equal(t, engine.MaxBatch, n.Load().Adding)
	p := engine.PendingBatch(b)
	n.Deny(p)
	n.Abandon(p)
	assert.LessOrEqual(t, sent(n, wire.DelJob), 1000)
	for range 30 {
		n.SetNow(n.Now() + 1)
		n.Tick()
		assert.LessOrEqual(t, sent(n, wire.DelJob), 1000)
	}
	assert.Zero(t, n.Load().Adding)
	assert.Zero(t, n.Jobs())
}

// A node with ill will sends a job twice in one message, or one that is known already.
func TestReplJobsWithADuplicate(t *testing.T) {
	n, mate := bulkAdder(t)
	id := store.ID{1, 2, 3, 23: 1}
	m := wire.Message{Kind: wire.ReplJobs, ID: id, Queue: []byte("q"), Job: wire.Job{CTime: 5, Left: 10_000, Retry: 5, Repl: 2, Body: []byte("b")}}
	m.More = []wire.Sibling{{ID: id, CTime: 6}, {ID: id, CTime: 7}}
	for range 2 {
		require.NoError(t, n.Receive(mate, m.Append(nil)))
		n.Effects()
		assert.Equal(t, uint64(1), n.Jobs())
	}
}

// The client of an ADDJOBS whose queue is deleted meanwhile is answered soon, however many jobs it has, and the nodes that
// were sent copies are told at once.
func TestBatchOfADeletedQueueIsRefusedSoon(t *testing.T) {
	n, _ := bulkAdder(t)
	const jobs = 10_000
	b, wait := addMany(t, n, jobs, engine.Add{Replicate: 2, Timeout: 60_000})
	require.True(t, wait)
	n.Tie(engine.PendingBatch(b), b)
	n.Effects()
	n.Flush()
	began, told := n.Now(), 0
	for next := n.Now(); !b.Decided(); {
		require.Less(t, n.Now(), began+2000)
		n.SetNow(next)
		next = n.Tick()
		told += sent(n, wire.DelJob)
	}
	assert.Equal(t, jobs, told)
	for _, a := range b.Answers {
		require.Equal(t, engine.ErrReplRemoved, a.Err)
	}
}

// A body that is too long, in the middle of an ADDJOBS, is refused by itself, here and with copies elsewhere.
func TestABodyTooLongAmongOthers(t *testing.T) {
	// This reserves addresses alone: memory is used only where it is touched.
	long, err := syscall.Mmap(-1, 0, store.MaxBody+1, syscall.PROT_READ, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	require.NoError(t, err)
	defer syscall.Munmap(long)
	for _, copies := range []int64{1, 2} {
		n, _ := bulkAdder(t)
		a := engine.Add{Queue: []byte("q"), TTL: 1000, Retry: 10, CanWait: true, Replicate: int(copies), Async: true}
		b, wait, err := n.AddJobs(&a, [][]byte{[]byte("1"), long, []byte("3")}, nil)
		require.NoError(t, err)
		require.False(t, wait)
		require.Len(t, b.Answers, 3)
		assert.Equal(t, engine.Answer{Err: engine.ErrBody}, b.Answers[1])
		for _, i := range []int{0, 2} {
			assert.NoError(t, b.Answers[i].Err)
			assert.NotNil(t, n.Job(&b.Answers[i].ID))
		}
		assert.Equal(t, uint64(2), n.Queue([]byte("q")).Waiting())
	}
}

// A client that polls asks the other nodes. It doesn't if its queue is paused in output.
func TestAPausedQueueIsNotPolled(t *testing.T) {
	n, _ := bulkAdder(t)
	n.Poll([]byte("q"), 1)
	assert.Equal(t, 1, sent(n, wire.NeedJobs))
	_, err := n.SetPause([]byte("paused"), engine.PauseOut, 0)
	require.NoError(t, err)
	n.Effects()
	n.Poll([]byte("paused"), 1)
	assert.Zero(t, sent(n, wire.NeedJobs))
}
