package membership

import "jobmesh/module/wire"

// Mesh is the other nodes for code that needs no more of each than its [Peer].
type Mesh interface {
	All() []*Peer // in the order of their IDs; don't change the slice
	ByName(node wire.Node) *Peer
	Nodes() []wire.Node // their short names, in a new slice
	Alone() bool        // this node knows no other
	Majority() int      // more than half of all nodes, this one included
	Reaches(node wire.Node) bool
	Ups() uint64
	Resets() uint32
	Untold() bool
	Sum() uint64
	CountsAll(p *Peer, sum uint64) bool
	BeatWhole(p *Peer)
	Send(p *Peer, m *wire.Message) // nil: sends nothing
	SendTo(nodes []wire.Node, m *wire.Message)
	SendAll(m *wire.Message)
}

// Mesh is the table as a [Mesh].
func (t *Table[P]) Mesh() Mesh { return mesh[P]{t} }

type mesh[P Member] struct{ *Table[P] }

func (m mesh[P]) All() []*Peer { return m.bases }

func (m mesh[P]) ByName(node wire.Node) *Peer {
	if p, yes := m.by[node]; yes {
		return p.Base()
	}
	return nil
}

func (m mesh[P]) BeatWhole(p *Peer) { m.Table.BeatWhole(m.by[p.Node]) }

func (m mesh[P]) Send(p *Peer, msg *wire.Message) {
	if p != nil {
		m.host.Send(msg, m.by[p.Node])
	}
}

func (m mesh[P]) SendTo(nodes []wire.Node, msg *wire.Message) {
	m.some = m.some[:0]
	for _, node := range nodes {
		if p, yes := m.by[node]; yes {
			m.some = append(m.some, p)
		}
	}
	m.host.Send(msg, m.some...)
}

func (m mesh[P]) SendAll(msg *wire.Message) {
	m.host.Send(msg, m.order...)
}
