package membership

import (
	"slices"

	"jobmesh/module/wire"
)

// Health is what a node holds of another.
type Health uint8

// The healths, as wire.Peer has them.
const (
	Well      Health = iota
	Suspected        // silent for the node timeout (PFAIL)
	Failed           // by the word of a majority (FAIL)
)

// Peer is another node of the mesh. Only its table changes it.
type Peer struct {
	ID        wire.NodeID
	Node      wire.Node
	Addr      string // of its bus
	Port      int    // for clients; 0: not told yet
	Connected bool
	Heard     int64 // unix ms of its last message
	Health    Health
	Leaving   bool
	Full      bool   // takes no copies: its memory is short
	Idles     bool   // answers wire.AskIdle
	Since     uint64 // Table.Ups when it was connected

	forgets   bool                // knows what wire.Forgotten is
	stale     bool                // known from before this node was a replica, and not connected since
	forgotten bool                // and others have forgotten it meanwhile
	meet      bool                // we were told to meet it, and it hasn't said anything yet
	suspects  map[wire.Node]int64 // the nodes that suspect it, and when they said so, unix ms
	counts    []wire.Node         // the nodes that it said it knows, in their order
	sum       uint64              // over them
}

// Base is the Peer itself: a type that embeds one is a [Member].
func (p *Peer) Base() *Peer { return p }

// Usable says whether a copy may be put there.
func (p *Peer) Usable() bool { return p.Connected && p.takes() }

// takes says whether it takes copies when it is connected.
func (p *Peer) takes() bool { return p.Health == Well && !p.Leaving && !p.Full }

// Lacks says whether it has told which nodes it knows, and this one isn't among them.
func (p *Peer) Lacks(node wire.Node) bool {
	_, yes := slices.BinarySearch(p.counts, node)
	return !yes && len(p.counts) > 0
}

// NoteFull notes that a node has refused a copy, since its memory is short. Its next heartbeat says whether it still is.
func (p *Peer) NoteFull() { p.Full = true }
