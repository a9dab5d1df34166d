package membership

import (
	"cmp"
	"maps"
	"slices"

	"jobmesh/module/wire"
)

// Times of membership, ms (as in Disque).
const (
	DefaultTimeout = 15_000
	HeartbeatEvery = 1_000
	banTime        = 60_000 // how long gossip doesn't bring a forgotten node back
	absentMS       = 2 * HeartbeatEvery
	goneMost       = 1000 // forgotten nodes that are remembered
)

// Member is what a table stores for each node: a pointer to a Peer, or to a struct that embeds one.
type Member interface {
	comparable
	Base() *Peer
}

// Host is the node that has the table.
type Host[P Member] interface {
	Now() int64       // unix ms
	New(p Peer) P     // makes a node that wasn't known
	State() State     // what heartbeats tell of this node
	Changed()         // writes the nodes' file soon
	Connect(p P)      // keeps a connection to it
	Disconnect(p P)   // ends that: it is no node of the mesh any more
	TurnAway(p *Peer) // ends the connection of a node that isn't let in
	Send(m *wire.Message, to ...P)

	Added(p P)     // the node is known now
	Returning(p P) // it is connected, and is about to count as heard
	Up(p P)        // it is connected, and was told of all nodes
	Down(p P)      // it isn't connected any more
	Silent(p P)    // it is suspected
	Back(p P)      // it is heard again, after it was absent
	Gone(p P)      // it was forgotten
}

// State is what heartbeats tell of the node itself.
type State struct {
	Port    int // for clients
	Leaving bool
	Full    bool // it takes no copies

	// Minority: it can't get the votes of more than half of the nodes for runs.
	Minority bool

	Bounds wire.Bounds // of the jobs that were added at it
}

// Table is the nodes that a node knows.
type Table[P Member] struct {
	host       Host[P]
	self       wire.NodeID
	by         map[wire.Node]P
	order      []P // by name, so that a seeded run repeats
	bases      []*Peer
	gone       map[wire.Node]wire.NodeID // forgotten, and not met again; their IDs by short name
	banned     map[wire.NodeID]int64     // until when gossip doesn't bring a forgotten node back, unix ms
	alone      bool                      // since a RESET: no node comes in that isn't met
	quarantine map[wire.NodeID]string    // connected nodes that come in only if they were told to meet this one; with their addresses
	timeout    int64                     // ms
	next       int64                     // when the next heartbeats are due, unix ms
	gossip     int                       // where in order the gossip of the next heartbeats begins
	some       []P                       // reused by SendTo
	peers      []wire.Peer               // reused by heartbeats
	sum        uint64                    // over all nodes, this one included; 0: to be computed
	untold     bool                      // the others have yet to be told of all nodes
	ups        uint64
	changed    int64
	resets     uint32
}

// New makes an empty table. A timeout of 0 ms is DefaultTimeout.
func New[P Member](host Host[P], timeout int64) Table[P] {
	t := Table[P]{host: host, by: map[wire.Node]P{}, gone: map[wire.Node]wire.NodeID{}, banned: map[wire.NodeID]int64{}, quarantine: map[wire.NodeID]string{}}
	if t.timeout = timeout; timeout <= 0 {
		t.timeout = DefaultTimeout
	}
	return t
}

// SetSelf sets the node's own ID. It empties the quarantine: nodes there came under the former ID.
func (t *Table[P]) SetSelf(id wire.NodeID) {
	t.self, t.sum = id, 0
	t.EndQuarantine()
}

// SetTimeout sets the silence after which a node is suspected, ms.
func (t *Table[P]) SetTimeout(ms int64) { t.timeout = ms }

// All are the other nodes, in the order of their IDs. The caller must not change the slice.
func (t *Table[P]) All() []P { return t.order }

// Nodes are their short names, in a new slice.
func (t *Table[P]) Nodes() []wire.Node {
	list := make([]wire.Node, len(t.order))
	for i, p := range t.bases {
		list[i] = p.Node
	}
	return list
}

// Alone says whether this node knows no other.
func (t *Table[P]) Alone() bool { return len(t.order) == 0 }

// Majority is more than half of all nodes, this one included.
func (t *Table[P]) Majority() int { return Majority(len(t.order) + 1) }

// Majority is more than half of so many.
func Majority(all int) int { return all/2 + 1 }

// ByName is the node with a short name; the zero P if it isn't known.
func (t *Table[P]) ByName(node wire.Node) P { return t.by[node] }

// ByID is the node with an ID; the zero P if it isn't known.
func (t *Table[P]) ByID(id wire.NodeID) (p P) {
	if p, yes := t.by[id.Node()]; yes && p.Base().ID == id {
		return p
	}
	return p
}

// Ups is how many connections were made so far.
func (t *Table[P]) Ups() uint64 { return t.ups }

// ChangedAt is when a connection was made or ended last, unix ms.
func (t *Table[P]) ChangedAt() int64 { return t.changed }

// Resets is how often all nodes were forgotten at once.
func (t *Table[P]) Resets() uint32 { return t.resets }

// Untold says whether the others have yet to be told of a node that came or went.
func (t *Table[P]) Untold() bool { return t.untold }

// WasForgotten says whether a node was forgotten and hasn't been met again.
func (t *Table[P]) WasForgotten(node wire.Node) bool {
	_, yes := t.gone[node]
	return yes
}

// Reaches says whether a node is known, and connected.
func (t *Table[P]) Reaches(node wire.Node) bool {
	p, yes := t.by[node]
	return yes && p.Base().Connected
}

// ReachesAll is Reaches for several.
func (t *Table[P]) ReachesAll(nodes []wire.Node) bool {
	return !slices.ContainsFunc(nodes, func(node wire.Node) bool { return !t.Reaches(node) })
}

// Reachable counts the nodes that could take a copy now.
func (t *Table[P]) Reachable() (c int) {
	for _, p := range t.order {
		if p.Base().Usable() {
			c++
		}
	}
	return c
}

// MayReturn says whether a node without a connection still counts, because it was heard of within the node timeout. A
// copy for it is sent when it is back.
func (t *Table[P]) MayReturn(p *Peer) bool {
	return !p.Connected && p.takes() && t.host.Now()-p.Heard <= t.timeout
}

// IsAbsent says whether a node may be gone although it is connected. A node says something at each heartbeat, and this
// one hasn't.
func (t *Table[P]) IsAbsent(p *Peer) bool { return t.host.Now()-p.Heard > absentMS }

// Add makes a node known. False: the node is known already, is this node, or has the short name of another.
func (t *Table[P]) Add(id wire.NodeID, addr string) bool {
	node := id.Node()
	if _, known := t.by[node]; known || id == t.self || node == t.self.Node() || node == 0 {
		return false
	}
	p := t.host.New(Peer{ID: id, Node: node, Addr: addr, Heard: t.host.Now(), suspects: map[wire.Node]int64{}})
	t.by[node] = p
	delete(t.gone, node)
	at, _ := slices.BinarySearchFunc(t.order, node, func(q P, node wire.Node) int { return cmp.Compare(q.Base().Node, node) })
	t.order, t.bases = slices.Insert(t.order, at, p), slices.Insert(t.bases, at, p.Base())
	t.sum, t.untold = 0, true
	t.host.Connect(p)
	t.host.Changed()
	t.host.Added(p)
	if at, yes := t.quarantine[id]; yes { // it is connected already
		delete(t.banned, id)
		t.Up(id, at, false)
	}
	return true
}

// Up follows a connection whose other end has proved that it is a node of the mesh. A node that was forgotten a moment
// ago waits in quarantine; at a node that was reset, any unknown node does. It doesn't wait if it was met on purpose,
// or is known again since. Its first message tells whether somebody wants it here.
func (t *Table[P]) Up(id wire.NodeID, addr string, met bool) {
	var nobody P
	if until, yes := t.banned[id]; !met && t.ByID(id) == nobody && (t.alone || yes && t.host.Now() < until) {
		t.quarantine[id] = addr
		return
	}
	delete(t.quarantine, id)
	delete(t.banned, id)
	t.Add(id, addr)
	member := t.ByID(id)
	if member == nobody {
		t.turnAway(id)
		return
	}
	p := member.Base()
	t.alone = false
	p.meet = p.meet || met
	if addr != "" && addr != p.Addr {
		p.Addr = addr
		t.host.Changed()
	}
	t.host.Returning(member)
	t.Heard(member)
	p.Connected = true
	t.present(p)
	t.ups++
	p.Since, t.changed = t.ups, t.host.Now()
	t.BeatWhole(member)
	t.host.Up(member)
}

// present notes that a node is one of the mesh, as far as anybody knows: it is connected, or another node counts it.
func (t *Table[P]) present(p *Peer) {
	if p.stale {
		p.stale, p.forgotten, t.sum, t.untold = false, false, 0, true
		t.host.Changed()
	}
}

// Restore is Add for a node of the nodes' file: port is for its clients, 0 if it isn't known. stale says that the node was
// so ([Peer.Stale]) when the file was written.
func (t *Table[P]) Restore(id wire.NodeID, addr string, port int, stale bool) {
	if !t.Add(id, addr) {
		return
	}
	p := t.by[id.Node()].Base()
	p.Port = port
	if stale && !p.Connected {
		p.stale, t.sum = true, 0
	}
}

// Forgotten are the nodes that were forgotten and haven't been met again, in the order of their short names. The nodes' file
// keeps them, so that a node that comes back hears of them also from nodes that were started again since ([Table.RestoreForgotten]).
func (t *Table[P]) Forgotten() (ids []wire.NodeID) {
	for _, node := range slices.Sorted(maps.Keys(t.gone)) {
		ids = append(ids, t.gone[node])
	}
	return ids
}

// RestoreForgotten is for a forgotten node of the nodes' file. Gossip may bring the node back.
func (t *Table[P]) RestoreForgotten(id wire.NodeID) {
	if _, known := t.by[id.Node()]; !known && len(t.gone) < goneMost {
		t.gone[id.Node()] = id
	}
}

func (t *Table[P]) turnAway(id wire.NodeID) { t.host.TurnAway(&Peer{ID: id, Node: id.Node()}) }

// Admit takes a message from a node that isn't known. A node in quarantine comes in if the message is a heartbeat that
// says that it was told to meet this one. Otherwise it is turned away.
//
// Errors: those of Message.Parse.
func (t *Table[P]) Admit(id wire.NodeID, m *wire.Message, b []byte) error {
	addr, yes := t.quarantine[id]
	if !yes {
		return nil // forgotten since it was sent
	}
	delete(t.quarantine, id)
	if err := m.Parse(b); err != nil {
		t.turnAway(id)
		return err
	}
	if m.Kind != wire.Heartbeat || m.Flags&wire.Met == 0 {
		t.turnAway(id)
		return nil
	}
	t.Up(id, addr, true)
	return nil
}

// EndQuarantine forgets the nodes in quarantine: their connections end.
func (t *Table[P]) EndQuarantine() { clear(t.quarantine) }

// Leave follows the end of all connections, as when the node becomes a replica. Meanwhile the mesh may go on without
// the node, and with others. So when the node is back it tells only of nodes that it meets again, or that those count. It still
// counts the others until somebody forgets them: an operator here, or one at a node that it meets.
func (t *Table[P]) Leave() {
	t.EndQuarantine()
	clear(t.banned) // a node that was forgotten before may be one of the mesh again
	clear(t.gone)
	for _, p := range t.bases {
		p.stale = true
	}
	t.sum = 0
}

// Meet makes a node known that this one was told to meet, and has reached. True: Up is still to come.
func (t *Table[P]) Meet(id wire.NodeID, addr string) bool {
	if at, yes := t.quarantine[id]; yes {
		t.Up(id, at, true)
		return false
	}
	var nobody P
	if p := t.ByID(id); p != nobody && p.Base().Connected {
		// The other node may be about to turn this one away.
		p.Base().meet = true
		t.beat(p)
		return false
	}
	t.Add(id, addr)
	return true
}

// Down follows the loss of a connection.
func (t *Table[P]) Down(id wire.NodeID) {
	delete(t.quarantine, id)
	var nobody P
	if p := t.ByID(id); p != nobody {
		p.Base().Connected, t.changed = false, t.host.Now()
		t.host.Down(p)
	}
}

// Said follows a message from a node.
func (t *Table[P]) Said(p P) {
	p.Base().meet = false
	t.Heard(p)
}

// Heard follows any sign of life from a node.
func (t *Table[P]) Heard(member P) {
	p := member.Base()
	back := p.Connected && t.IsAbsent(p)
	p.Heard = t.host.Now()
	if p.Health != Well {
		p.Health = Well
		t.host.Changed()
	}
	clear(p.suspects)
	if back {
		t.host.Back(member)
	}
}

// Forget takes a node out of the table (CLUSTER FORGET). Gossip doesn't bring it back for a minute. False: the node
// wasn't known.
func (t *Table[P]) Forget(id wire.NodeID) bool {
	var nobody P
	member := t.ByID(id)
	if id != t.self {
		t.banned[id] = t.host.Now() + banTime // also if it isn't known: gossip under way may still tell of it
	}
	if member == nobody {
		return false
	}
	t.remove(member)
	return true
}

// remove takes a node out of the table.
func (t *Table[P]) remove(member P) {
	p := member.Base()
	delete(t.by, p.Node)
	at := slices.Index(t.order, member)
	t.order, t.bases = slices.Delete(t.order, at, at+1), slices.Delete(t.bases, at, at+1)
	for node := range t.gone { // others have to do where so many were forgotten
		if len(t.gone) < goneMost {
			break
		}
		delete(t.gone, node)
	}
	t.gone[p.Node] = p.ID
	t.sum, t.untold = 0, true
	t.host.Disconnect(member)
	t.host.Changed()
	t.host.Gone(member)
}

// Reset forgets all nodes (CLUSTER RESET). From then on no node comes in that isn't met.
func (t *Table[P]) Reset() {
	t.resets++
	for len(t.order) > 0 {
		t.Forget(t.order[0].Base().ID)
	}
	clear(t.banned)
	// Others still remember this node, but that must not make it one of theirs again. alone isn't saved: otherwise a
	// node that dies before its file names the nodes that it has met since would be lost to them.
	t.alone = true
}

// TimeJumped follows a step of the clock, or a pause of the whole process. It keeps that from looking like the silence
// of all nodes.
func (t *Table[P]) TimeJumped() {
	now := t.host.Now()
	t.next = 0
	for _, member := range t.order {
		p := member.Base()
		p.Heard = now
		for node := range p.suspects {
			p.suspects[node] = now
		}
	}
	for id := range t.banned {
		t.banned[id] = now + banTime
	}
}
