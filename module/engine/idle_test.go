package engine_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// twoNodes are two nodes that hear each other.
type twoNodes struct {
	t     *testing.T
	now   int64
	nodes [2]*engine.Node
	asks  map[wire.JobID]int // questions about idle copies
	most  int                // the most such questions in one event
}

func newTwoNodes(t *testing.T) *twoNodes {
	m := &twoNodes{t: t, now: dawn, asks: map[wire.JobID]int{}}
	for i, id := range []string{"1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222"} {
		m.nodes[i], _, _ = node(m.now)
		m.nodes[i].SetNodeID(id)
	}
	for i, n := range m.nodes {
		n.Tick()
		n.Mesh().Up(m.nodes[1-i].Self(), "10.0.0.1:1", true)
	}
	m.deliver()
	return m
}

// deliver brings all messages.
func (m *twoNodes) deliver() {
	for any := true; any; {
		any = false
		for i, n := range m.nodes {
			var sent [][]byte
			asks := 0
			for _, e := range n.Effects() {
				if e.Kind != engine.Send {
					continue
				}
				b := bytes.Clone(n.Message(&e))
				sent = append(sent, b)
				if wire.Kind(b[0]) == wire.AskIdle {
					var ask wire.Message
					require.NoError(m.t, ask.Parse(b))
					m.asks[ask.ID]++
					asks++
				}
			}
			m.most = max(m.most, asks)
			for _, b := range sent {
				m.nodes[1-i].SetNow(m.now)
				require.NoError(m.t, m.nodes[1-i].Receive(n.Self(), b))
				any = true
			}
		}
	}
}

// pass lets ms pass, with a tick every so many ms.
func (m *twoNodes) pass(ms, every int64) {
	for end := m.now + ms; m.now < end; {
		m.now += every
		for _, n := range m.nodes {
			n.SetNow(m.now)
			n.Tick()
		}
		m.deliver()
	}
}

// Nodes ask bit by bit about very many copies of jobs that wait elsewhere, and the less often the longer these wait. The
// jobs stay where they are.
func TestVeryManyIdleCopies(t *testing.T) {
	const many = 5000
	m := newTwoNodes(t)
	a, b := m.nodes[0], m.nodes[1]
	m.pass(2000, 100)
	for range many {
		_, _, err := a.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 3600, TTL: 86400})
		require.NoError(t, err)
		m.deliver()
	}
	require.EqualValues(t, many, b.Jobs())
	m.pass(30_000, 10)
	assert.LessOrEqual(t, m.most, 60)
	assert.Greater(t, len(m.asks), many*9/10)
	sum := 0
	for _, times := range m.asks {
		sum += times
	}
	assert.Less(t, sum, 3*many)
	assert.EqualValues(t, many, a.Queue([]byte("q")).Len)
	assert.Zero(t, b.Queue([]byte("q")).Len)
	assert.Zero(t, a.Stats.Idle+b.Stats.Idle)
}

// A job that all nodes leave to each other comes once, and is counted by one node alone.
func TestIdleJobComesOnce(t *testing.T) {
	m := newTwoNodes(t)
	a, b := m.nodes[0], m.nodes[1]
	m.pass(2000, 100)
	id, _, err := a.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 3600, TTL: 86400})
	require.NoError(t, err)
	m.deliver()
	// Each node hears that the other has the job.
	for i, n := range m.nodes {
		w := wire.Message{Kind: wire.Working, ID: wire.JobID(id)}
		require.NoError(t, n.Receive(m.nodes[1-i].Self(), w.Append(nil)))
	}
	n := func() uint64 { return a.Queue([]byte("q")).Len + b.Queue([]byte("q")).Len }
	m.deliver()
	require.Zero(t, n())
	m.pass(9_000, 10)
	require.Zero(t, n())
	m.pass(10_000, 10)
	require.EqualValues(t, 1, n())
	assert.EqualValues(t, 1, a.Stats.Idle+b.Stats.Idle)
	for _, x := range m.nodes {
		if q := x.Queue([]byte("q")); q.Len == 1 {
			require.Len(t, x.Fetch([]*store.Queue{q}, 1, false, nil), 1)
			j := x.Job(&id)
			assert.Zero(t, j.Deliveries+j.Nacks)
		}
	}
	m.pass(60_000, 50)
	assert.Zero(t, n())
}
