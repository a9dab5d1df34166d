package engine_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/wire"
)

// letterTo is a message under way.
type letterTo struct {
	from, to int
	bytes    []byte
}

type handMesh struct {
	t     *testing.T
	now   int64
	ids   []string
	nodes []*engine.Node
	self  []wire.NodeID
	sent  []letterTo
	slow  map[int]bool // writing the nodes' file takes long
	done  map[any]*lock.Result
}

// do runs an event at a node, and notes what follows.
func (m *handMesh) do(i int, f func(n *engine.Node)) {
	n := m.nodes[i]
	n.SetNow(m.now)
	f(n)
	keeps := false
	for _, e := range n.Effects() {
		switch e.Kind {
		case engine.Send:
			m.sent = append(m.sent, letterTo{i, slices.Index(m.self, e.Peer.ID), slices.Clone(n.Message(&e))})
		case engine.KeepVotes:
			keeps = true
		case engine.LockDone:
			o := *e.Outcome
			m.done[e.Client] = &o
		}
	}
	if keeps && !m.slow[i] {
		m.do(i, func(n *engine.Node) { n.Locks().VotesKept(n.Locks().Votes()) })
	}
}

// deliver brings the messages between two nodes; others stay under way.
func (m *handMesh) deliver(from, to int) (kinds []wire.Kind) {
	batch := m.sent
	m.sent = nil
	for _, l := range batch {
		if l.from != from || l.to != to {
			m.sent = append(m.sent, l)
			continue
		}
		kinds = append(kinds, wire.Kind(l.bytes[0]))
		m.do(to, func(n *engine.Node) { require.NoError(m.t, n.Receive(m.self[from], l.bytes)) })
	}
	return kinds
}

func (m *handMesh) start(i int) {
	n, _, _ := namedNode(m.ids[i], m.now, nil)
	m.nodes[i] = n
	for k, id := range m.self {
		if k != i {
			m.do(i, func(n *engine.Node) { n.Mesh().Add(id, "10.0.0.1:1") })
		}
	}
}

func (m *handMesh) connect(a, b int) {
	m.do(a, func(n *engine.Node) { n.Mesh().Up(m.self[b], "10.0.0.1:1", false) })
	m.do(b, func(n *engine.Node) { n.Mesh().Up(m.self[a], "10.0.0.1:1", false) })
}

// A node votes late, since its disk is slow. Meanwhile the node that asked was started anew, and asks for another lock. It doesn't take the late vote
// for one for that lock.
func TestLateVoteForAFormerProcess(t *testing.T) {
	m := &handMesh{t: t, now: 1_700_000_000_000, slow: map[int]bool{}, done: map[any]*lock.Result{}, nodes: make([]*engine.Node, 3)}
	for _, c := range "abc" {
		id := strings.Repeat(string(c), 40)
		m.ids = append(m.ids, id)
		self, err := wire.ParseNodeID(id)
		require.NoError(t, err)
		m.self = append(m.self, self)
	}
	const a, b, c = 0, 1, 2
	for i := range m.ids {
		m.start(i)
		longest := int64(3_600_000)
		if i == b {
			longest = 60_000 // b has promised no longer votes yet
		}
		m.do(i, func(n *engine.Node) {
			n.Locks().SetVotes(lock.Votes{Longest: lock.LeasesUpTo(longest), Unleased: true})
			n.Locks().Trust()
		})
	}
	m.connect(a, b)
	m.connect(a, c)
	m.connect(b, c)
	for len(m.sent) > 0 {
		l := m.sent[0]
		m.deliver(l.from, l.to)
	}
	acquire := func(i int, name, owner string, lease int64) {
		m.do(i, func(n *engine.Node) {
			o, pending := n.Locks().Acquire(bareName(name), []byte(owner), lease, 0, owner)
			if pending == nil {
				m.done[owner] = &o
			}
		})
	}
	// The owner x has the lock y, by the votes of a and b.
	acquire(b, "y", "x", 30_000)
	m.sent = slices.DeleteFunc(m.sent, func(l letterTo) bool { return l.to == c }) // lost
	m.deliver(b, a)
	m.deliver(a, b)
	require.NotNil(t, m.done["x"])
	require.Equal(t, lock.Granted, m.done["x"].Kind)
	m.sent = nil

	// a asks for another lock, for an hour. b must write that down before it votes.
	m.slow[b] = true
	acquire(a, "z", "other", 3_600_000)
	m.deliver(a, b)
	require.Empty(t, m.deliver(b, a), "it waits for its disk")

	// a crashes, and is back in a second. It has lost the end of its log.
	m.sent = nil
	for _, i := range []int{b, c} {
		m.do(i, func(n *engine.Node) { n.Mesh().Down(m.self[a]) })
	}
	m.now += 1000
	m.start(a)
	m.do(a, func(n *engine.Node) {
		n.Locks().SetVotes(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
		n.Locks().MarkIncomplete()
	})
	m.connect(a, b)
	m.connect(a, c)
	m.sent = slices.DeleteFunc(m.sent, func(l letterTo) bool { k := wire.Kind(l.bytes[0]); return k == wire.LockPull || k == wire.LockPage }) // under way
	acquire(a, "y", "second", 30_000)

	// b has written its file, and then hears the claims.
	m.slow[b] = false
	m.do(b, func(n *engine.Node) { n.Locks().VotesKept(n.Locks().Votes()) })
	t.Log("from b:", m.deliver(b, a))
	t.Log("to c:", m.deliver(a, c), "from c:", m.deliver(c, a))
	m.deliver(a, b)
	m.deliver(b, a)
	if o := m.done["second"]; o != nil {
		assert.NotEqual(t, lock.Granted, o.Kind, "x has that lock")
	}
	assert.NotNil(t, m.nodes[b].Locks().Live(bareName("y")))
	assert.Equal(t, "x", string(m.nodes[b].Locks().Live(bareName("y")).Owner()))
}
