package membership

import (
	"slices"

	"jobmesh/module/wire"
)

const (
	suspectValid = 2      // how long a node's word counts that it suspects another, in node timeouts
	forgetAfter  = 10_000 // ms without a change of connections, see forgetStale
	gossipLeast  = 3      // nodes that a heartbeat tells of; a tenth of all, if that is more
)

// NextBeat is when the next heartbeats are due, unix ms; 0: at once.
func (t *Table[P]) NextBeat() int64 { return t.next }

// Tick sends heartbeats and judges silent nodes, if it is time.
func (t *Table[P]) Tick() {
	now := t.host.Now()
	if len(t.order) == 0 || now < t.next {
		return
	}
	t.next = now + HeartbeatEvery
	for _, member := range t.order {
		p := member.Base()
		if now-p.Heard > t.timeout && p.Health == Well {
			p.Health = Suspected
			t.host.Changed()
			t.host.Silent(member)
		}
		if p.Health == Suspected {
			t.judge(p)
		}
	}
	beat := t.beat
	if t.untold {
		beat, t.untold = t.BeatWhole, false
	}
	for _, p := range t.order {
		beat(p)
	}
	// The others are told of in turn. The turn moves once for all messages: if it moved with each message, a round of
	// messages to all nodes would end where it began, and each node would be told of the same ones for ever.
	t.gossip = (t.gossip + t.gossips()) % len(t.order)
	for id, until := range t.banned {
		if now >= until {
			delete(t.banned, id)
		}
	}
	t.forgetStale(now)
}

// forgetStale forgets the nodes that others have forgotten while this one was a replica. Jobs count on a node until it
// is forgotten, and then on those that may have come in its place. So forgetStale waits until all others have been
// connected for a while.
func (t *Table[P]) forgetStale(now int64) {
	if !slices.ContainsFunc(t.bases, func(p *Peer) bool { return p.forgotten }) {
		return
	}
	if slices.ContainsFunc(t.bases, func(p *Peer) bool { return !p.stale && !p.Connected }) || now-t.changed < forgetAfter {
		return
	}
	for _, p := range slices.Clone(t.order) {
		if p.Base().forgotten {
			t.remove(p)
		}
	}
}

// judge makes a suspected node failed if a majority of all nodes suspects it, this node included.
func (t *Table[P]) judge(p *Peer) {
	votes := 1
	for _, at := range p.suspects {
		if t.host.Now()-at <= suspectValid*t.timeout {
			votes++
		}
	}
	if votes < t.Majority() {
		return
	}
	p.Health = Failed
	t.host.Changed()
	m := wire.Message{Kind: wire.Failed, Peers: []wire.Peer{{ID: p.ID, Addr: p.Addr, State: uint8(Failed)}}}
	t.host.Send(&m, t.order...)
}

// Beat sends all nodes a heartbeat out of turn, since this node's state has changed.
func (t *Table[P]) Beat() {
	for _, p := range t.order {
		t.beat(p)
	}
}

// beat sends a heartbeat: this node's state, the nodes that aren't well, and some of the others.
func (t *Table[P]) beat(p P) { t.beatOf(p, t.gossips(), 0) }

// BeatWhole sends a heartbeat that names all nodes. So a node that comes to a mesh through any of its nodes counts all
// the others, including those that can't be reached.
func (t *Table[P]) BeatWhole(p P) { t.beatOf(p, len(t.order), wire.Whole) }

// beatOf sends a heartbeat that names some nodes, and all that aren't well.
func (t *Table[P]) beatOf(to P, some int, flags uint8) {
	p := to.Base()
	if !p.Connected {
		return
	}
	state := t.host.State()
	m := wire.Message{Kind: wire.Heartbeat, Flags: flags | wire.Idles | wire.Forgets, Count: uint32(state.Port), Peers: t.peers[:0], Bounds: state.Bounds}
	if state.Leaving {
		m.Flags |= wire.Leaving
	}
	if p.meet {
		m.Flags |= wire.Met
	}
	if state.Full {
		m.Flags |= wire.Full
	}
	if state.Minority {
		m.Flags |= wire.Minority
	}
	for i := range t.order {
		q := t.order[(t.gossip+i)%len(t.order)].Base()
		if q != p && !q.stale && (q.Health != Well || i < some) {
			m.Peers = append(m.Peers, wire.Peer{ID: q.ID, Addr: q.Addr, State: uint8(q.Health)})
		}
	}
	if flags&wire.Whole != 0 && p.forgets {
		for _, id := range t.Forgotten() {
			m.Peers = append(m.Peers, wire.Peer{ID: id, State: wire.Forgotten})
		}
	}
	t.host.Send(&m, to)
	t.peers = m.Peers
}

// gossips is how many nodes a heartbeat tells of, besides those that aren't well.
func (t *Table[P]) gossips() int { return max(gossipLeast, len(t.order)/10) }

// OnHeartbeat takes what a node says of itself and of others.
func (t *Table[P]) OnHeartbeat(from P, m *wire.Message) {
	p := from.Base()
	if leaving := m.Flags&wire.Leaving != 0; leaving != p.Leaving {
		p.Leaving = leaving
		t.host.Changed()
	}
	understood := p.forgets
	p.Full, p.Idles, p.forgets, p.Minority = m.Flags&wire.Full != 0, m.Flags&wire.Idles != 0, m.Flags&wire.Forgets != 0, m.Flags&wire.Minority != 0
	if p.forgets && !understood && len(t.gone) > 0 {
		t.BeatWhole(from) // the first one, when it was connected, didn't name the forgotten nodes
	}
	if m.Flags&wire.Whole != 0 {
		p.counts = append(p.counts[:0], p.Node)
		for i := range m.Peers {
			if m.Peers[i].State != wire.Forgotten {
				p.counts = append(p.counts, m.Peers[i].ID.Node())
			}
		}
		// The list leaves out only its receiver, which is this node.
		p.counts = append(p.counts, t.self.Node())
		slices.Sort(p.counts)
		p.counts = slices.Compact(p.counts)
		p.sum = sumOf(p.counts)
	}
	if port := int(m.Count); port != p.Port && port <= 65535 {
		p.Port = port
		t.host.Changed()
	}
	for i := range m.Peers {
		t.heardOf(&m.Peers[i], p, m.Flags&wire.Whole != 0)
	}
}

// heardOf takes what a node says of a third one, in a heartbeat that names all nodes (whole) or some.
func (t *Table[P]) heardOf(g *wire.Peer, from *Peer, whole bool) {
	if g.ID == t.self {
		return
	}
	well := Health(g.State) == Well
	member, known := t.by[g.ID.Node()]
	if g.State == wire.Forgotten {
		if known && member.Base().stale && member.Base().ID == g.ID {
			member.Base().forgotten = true
		}
		return
	}
	if !known {
		if t.banned[g.ID] <= t.host.Now() && (well && g.Addr != "" || whole) {
			t.Add(g.ID, g.Addr)
		}
		return
	}
	q := member.Base()
	t.present(q) // the sender counts it
	if well {
		delete(q.suspects, from.Node)
		if !q.Connected && g.Addr != "" && g.Addr != q.Addr {
			// The node came up at another address, and couldn't tell this one, whose address had changed, too.
			q.Addr = g.Addr
			t.host.Changed()
			t.host.Connect(member)
		}
		return
	}
	q.suspects[from.Node] = t.host.Now()
	if q.Health == Suspected {
		t.judge(q)
	}
}

// OnFailed takes the word of a majority that a node has failed. If this node has heard of that node lately, it judges
// by itself.
func (t *Table[P]) OnFailed(m *wire.Message) {
	member, known := t.by[m.Peers[0].ID.Node()]
	if !known {
		return
	}
	if p := member.Base(); p.Health != Failed && t.host.Now()-p.Heard > t.timeout/2 {
		p.Health = Failed
		t.host.Changed()
	}
}

// CountsAll says whether a peer that asks for a vote counts all nodes that this one knows; sum is the sum over the
// nodes that the peer counts ([Table.Sum]). If each voter insists on that, the majorities of two proposers have a voter
// in common. This holds although a node that has come to the mesh may not have heard of all others yet, nor all others
// of it.
func (t *Table[P]) CountsAll(p *Peer, sum uint64) bool {
	if sum == t.Sum() {
		return true
	}
	if sum != p.sum {
		return false // the heartbeat that names the nodes it knows is on its way, or lost
	}
	return !slices.ContainsFunc(t.order, func(q P) bool {
		_, yes := slices.BinarySearch(p.counts, q.Base().Node)
		return !yes
	})
}

// Sum is a sum over the nodes that this one tells of, itself included.
func (t *Table[P]) Sum() uint64 {
	if t.sum == 0 {
		list := []wire.Node{t.self.Node()}
		for _, p := range t.bases {
			if !p.stale {
				list = append(list, p.Node)
			}
		}
		slices.Sort(list)
		t.sum = sumOf(list)
	}
	return t.sum
}

// sumOf is FNV-1a over the short names of nodes, in their order. Nobody gains by two lists with the same sum: a node
// that may speak to this one at all can tell it any list.
func sumOf(list []wire.Node) uint64 {
	sum := uint64(14695981039346656037)
	for _, node := range list {
		for shift := 56; shift >= 0; shift -= 8 {
			sum = (sum ^ uint64(node)>>shift&0xff) * 1099511628211
		}
	}
	return max(sum, 1)
}
