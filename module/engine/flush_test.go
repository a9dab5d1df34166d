package engine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// addTo adds a plain job.
func addTo(t *testing.T, n *engine.Node, q string, copies int, retry int64) store.ID {
	t.Helper()
	id, _, err := n.AddJob(&engine.Add{Queue: []byte(q), Body: []byte("x"), Replicate: copies, Async: copies > 1, Retry: retry, TTL: 6000})
	require.NoError(t, err)
	return id
}

// ticks lets time go by, a ms in each tick.
func ticks(n *engine.Node, from, ms int64) {
	for i := int64(1); i <= ms; i++ {
		n.SetNow(from + i)
		n.Tick()
		n.Effects()
	}
}

// RENAME other q while QFLUSH q goes on: other's jobs came later, and stay.
func TestAFlushIsOfTheQueueThatHadTheName(t *testing.T) {
	n, k, _ := node(dawn)
	other := addTo(t, n, "other", 1, 100)
	for range 20000 {
		addTo(t, n, "q", 1, 100)
	}
	n.Effects()
	p, now := n.FlushQueue([]byte("q"), false, true)
	require.Nil(t, now)
	n.Tie(p, "client")
	n.Effects()
	// RENAME other q: q's key is overwritten, other's gets the name
	q := n.Queue([]byte("q"))
	n.Unlinked(k.boxes[q], q)
	o := n.Queue([]byte("other"))
	box := k.boxes[o]
	n.Unlinked(box, o)
	require.Same(t, o, n.Reclaim(box))
	n.Attached(o, []byte("q"), 0)
	n.Effects()
	require.NotNil(t, n.Job(&other))
	ticks(n, dawn, 2000)
	assert.NotNil(t, n.Job(&other), "it came into the queue after QFLUSH")
}

// RENAME q p while QFLUSH q goes on: the jobs go all the same, and no job that is added meanwhile.
func TestAFlushFollowsARenamedQueue(t *testing.T) {
	n, k, _ := node(dawn)
	for range 20000 {
		addTo(t, n, "q", 1, 100)
	}
	n.Effects()
	p, now := n.FlushQueue([]byte("q"), false, true)
	require.Nil(t, now)
	n.Tie(p, "client")
	n.Effects()
	q := n.Queue([]byte("q"))
	box := k.boxes[q]
	n.Unlinked(box, q)
	require.Same(t, q, n.Reclaim(box))
	n.Attached(q, []byte("p"), 0)
	later, again := addTo(t, n, "p", 1, 100), addTo(t, n, "q", 1, 100)
	n.Effects()
	ticks(n, dawn, 2000)
	assert.NotNil(t, n.Job(&later))
	assert.NotNil(t, n.Job(&again))
	assert.EqualValues(t, 2, n.Jobs())
}

// DEL q, RESTORE q (another queue's dump) while QFLUSH q goes on.
func TestAFlushSparesARestoredQueue(t *testing.T) {
	n, k, _ := node(dawn)
	other := addTo(t, n, "other", 1, 100)
	rec := append([]byte(nil), n.Job(&other).Record()...)
	for range 20000 {
		addTo(t, n, "q", 1, 100)
	}
	n.Effects()
	n.Ack(&other)
	_, _ = n.FlushQueue([]byte("q"), false, true)
	n.Effects()
	q := n.Queue([]byte("q"))
	n.Unlinked(k.boxes[q], q)
	r := n.NewQueueFor(nil)
	require.NoError(t, n.LoadRecord(r, rec))
	require.NoError(t, k.Adopt(r))
	n.Restored(r, []byte("q"), 0)
	n.SettleQueue(r, engine.Trust{})
	n.Effects()
	require.NotNil(t, n.Job(&other))
	ticks(n, dawn, 2000)
	assert.NotNil(t, n.Job(&other), "it came into the queue after QFLUSH")
}

// QFLUSH q ALL of very many delayed jobs goes on; a job is added after its reply (MULTI), and a client gets it. QFLUSH q, without ALL,
// must leave that job to its client.
func TestAFlushWithALLAndOneWithout(t *testing.T) {
	n, _, _ := node(dawn)
	for range 20000 {
		_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("x"), Replicate: 1, Retry: 100, TTL: 60000, Delay: 5000})
		require.NoError(t, err)
	}
	n.Effects()
	_, now := n.FlushQueue([]byte("q"), true, false)
	require.NotNil(t, now)
	n.Effects()
	ticks(n, dawn, 1)
	id := addTo(t, n, "q", 1, 100)
	n.Effects()
	got := n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, false, nil)
	n.Effects()
	require.Len(t, got, 1)
	require.Equal(t, id, got[0].ID)
	n.FlushQueue([]byte("q"), false, false)
	n.Effects()
	ticks(n, dawn+1, 2000)
	assert.NotNil(t, n.Job(&id), "a client works on it, and QFLUSH without ALL leaves such jobs")
}

// Clients wait at a while a flushes its own jobs; b hands a job of its own over, which QFLUSH without MESH leaves.
func TestAFlushSparesWhatOtherNodesHandOver(t *testing.T) {
	for _, retry := range []int64{100, 0} {
		t.Run(fmt.Sprint("retry ", retry), func(t *testing.T) {
			m := newTwoNodes(t)
			a, b := m.nodes[0], m.nodes[1]
			a.SetLife(b.Self(), 1)
			b.SetLife(a.Self(), 1)
			m.pass(2000, 100)
			id := addTo(t, b, "q", 1, retry)
			m.deliver()
			m.pass(10, 1)
			for range 20000 {
				addTo(t, a, "q", 1, 100)
			}
			m.deliver()
			_, now := a.FlushQueue([]byte("q"), false, false)
			require.NotNil(t, now)
			m.deliver()
			require.NotNil(t, b.Job(&id))
			_, err := a.Wait([][]byte{[]byte("q")}, "client")
			require.NoError(t, err)
			m.deliver()
			t.Log("at a:", a.Job(&id) != nil)
			served := false
			for i := 0; i < 2000; i++ {
				m.now++
				for x, n := range m.nodes {
					n.SetNow(m.now)
					n.Tick()
					_ = x
				}
				m.deliver()
				if j := a.Job(&id); j != nil && j.Flags&store.FlagDelivered != 0 && j.Place == store.InWorking {
					served = true
				}
			}
			j := a.Job(&id)
			t.Log("served", served, "a:", j != nil, "b:", b.Job(&id) != nil)
			assert.True(t, served, "b's job went to a, whose client waits")
		})
	}
}

// b's clock is ten seconds ahead, and a has a copy of a job of b's. QFLUSH at a has answered (MULTI), and goes on. A job that is added at a after that,
// and promised to its client, stays.
func TestAFlushAndAClockThatIsAhead(t *testing.T) {
	m := newTwoNodes(t)
	a, b := m.nodes[0], m.nodes[1]
	m.pass(2000, 100)
	b.SetNow(m.now + 10_000)
	addTo(t, b, "other", 2, 100)
	m.deliver()
	a.SetNow(m.now)
	for range 20000 {
		addTo(t, a, "q", 1, 100)
	}
	a.Effects()
	_, now := a.FlushQueue([]byte("q"), false, false)
	require.NotNil(t, now)
	a.Effects()
	for i := range int64(3) {
		a.SetNow(m.now + i)
		a.Tick()
		a.Effects()
	}
	id := addTo(t, a, "q", 1, 100)
	a.Effects()
	require.NotNil(t, a.Job(&id))
	for i := range int64(2000) {
		a.SetNow(m.now + 3 + i)
		a.Tick()
		a.Effects()
	}
	assert.NotNil(t, a.Job(&id), "it was added after the reply of QFLUSH")
}
