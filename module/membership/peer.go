package membership

import (
	"slices"

	"jobmesh/module/wire"
)

// Health is a node's opinion of another.
type Health uint8

// The healths, with the numbers that wire.Peer uses.
const (
	Well      Health = iota
	Suspected        // silent for the node timeout (PFAIL)
	Failed           // a majority has said so (FAIL)
)

// Peer is another node of the mesh. Only its table changes it.
type Peer struct {
	ID        wire.NodeID
	Node      wire.Node
	Addr      string // of its bus
	Port      int    // for clients; 0: not known yet
	Connected bool
	Heard     int64 // unix ms of its last message
	Health    Health
	Leaving   bool
	Full      bool   // takes no copies, because its memory is short
	Idles     bool   // answers wire.AskIdle
	Minority  bool   // can't get the votes of more than half of the nodes for runs
	Since     uint64 // [Table.Ups] when it was connected

	forgets   bool                // knows what wire.Forgotten is
	stale     bool                // known since before this node was a replica, and not connected since
	forgotten bool                // meanwhile others have forgotten it
	meet      bool                // an operator told this node to meet it, and it hasn't said anything yet
	suspects  map[wire.Node]int64 // the nodes that suspect it, and when they said so, unix ms
	counts    []wire.Node         // the nodes that it knows, as it said, in their order
	sum       uint64              // over counts, see sumOf
}

// Stale says whether the node was known before this one was a replica, and nobody has told of it since.
func (p *Peer) Stale() bool { return p.stale }

// Base is the Peer itself, so a type that embeds a Peer is a [Member].
func (p *Peer) Base() *Peer { return p }

// Usable says whether the node can be given a copy now.
func (p *Peer) Usable() bool { return p.Connected && p.takes() }

// takes says whether the node takes copies when it is connected.
func (p *Peer) takes() bool { return p.Health == Well && !p.Leaving && !p.Full }

// Lacks says whether the peer has told which nodes it knows, and node isn't among them.
func (p *Peer) Lacks(node wire.Node) bool {
	_, yes := slices.BinarySearch(p.counts, node)
	return !yes && len(p.counts) > 0
}

// NoteFull notes that the node has refused a copy, because its memory is short. Its next heartbeat says whether it
// still is.
func (p *Peer) NoteFull() { p.Full = true }
