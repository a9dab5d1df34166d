package engine

import (
	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// Peer is another node of the mesh, with what this one has noted about it.
type Peer struct {
	membership.Peer

	acks     acks
	copies   telling    // of this node's copies, where it was promoted
	untold   int        // how many releases, from the first on, it may have missed
	missed   int        // likewise ADDJOBs that wait for copies,
	added    uint64     // up to this number
	given    []given    // jobs that were handed over to it lately
	copied   []given    // jobs of which it sent this node a copy lately
	doubted  []store.ID // jobs that were in given or copied, and may be in no queue
	choked   int64      // monotonic: until then it takes too little to be given jobs
	past     passing    // see behind
	entries  inStep
	downAt   int64                            // monotonic: when its connection ended, or when it became known
	met      uint64                           // the number of its last connection, see askMet
	missing  bool                             // it is away for so long that its copies are made again
	bodies   table.Roster[store.ID, struct{}] // jobs whose new bodies it may have missed,
	again    int64                            // monotonic: when those are told again
	says     store.ID                         // the job of which it has told last which version of the body it has
	versions telling                          // of the versions of bodies
	bounds   wire.Bounds                      // of the jobs that were added at it, as its last heartbeat has told them
	heard    bool                             // bounds came over the present connection
	ready    map[int64]int64                  // flushes that it may begin here, by their question there: monotonic, when this node said so
	flushes  bool                             // it has told the flushes that it knows of over the present connection, or can't
}

// members are the other nodes.
type members struct {
	membership.Table[*Peer]
	lives    map[wire.NodeID]uint64   // the processes of those that jobs can be offered to
	features map[wire.NodeID]Features // none is set for a node that was never connected
	absent   []*Peer                  // silent or forgotten nodes, with jobs in doubt (Peer.doubted)
	acks     acks                     // telling: acknowledged jobs that name a forgotten node are looked for
	sweep    int64                    // unix ms: when stale questions are forgotten next
}

// Features are what a node understands, beside what the nodes of all releases do.
type Features struct {
	Batches bool // messages for several jobs: ReplJobs
	Counts  bool // questions for counts: AskCounts and AskQueues
	Copies  bool // questions for copies: AskCopies
	Entries bool // what all nodes are to know alike: Entries and EntrySums
	Jobs    bool // questions for lists of jobs: AskJobs
	Flushes bool // flushes of the whole mesh: AskFlush

	Failures bool // how jobs failed: Whereabouts, and PutOff with CountNack
	Rates    bool // rates
	Results  bool // kept outcomes, and who waits for the end of jobs: SetEnd, GotEnd, Watch, Ended and Cancel
	Crons    bool // recurring jobs
	Returns  bool // how often a job has come back, in full: wire.Returns
	Names    bool // names that producers give, and messages to all subscribers: AskName and Publish
	Slots    bool // locks with slots, and limits of jobs in progress
	Limits   bool // keys that several jobs may have at a time
	Delays   bool // questions for delayed jobs: AskDelayed
	Replaces bool // bodies that are replaced at any node: Do, Did and NewCopy
	Bodies   bool // versions of bodies
	Bounds   bool // flushes that reach a node later: wire.Bounds, AskGiven, Given and Flushes; and those that ask first: FlushReady
}

// SetFeatures tells, before [membership.Table.Up], what a node understands.
func (n *Node) SetFeatures(id wire.NodeID, f Features) { n.mesh.features[id] = f }

// Mesh is the table of the other nodes. Its methods that change something are events: see [Node.Effects].
func (n *Node) Mesh() *membership.Table[*Peer] { return &n.mesh.Table }

// Self is this node's ID in binary.
func (n *Node) Self() wire.NodeID { return n.self }

// Reset forgets all nodes, jobs and queues (CLUSTER RESET); the caller renames
// the node for a hard one.
//
// Acquisitions that began before end without a majority: alone, this node would give locks that the
// others may have given to another client.
func (n *Node) Reset() {
	if n.shared() {
		n.allDeleted(n.newestHere()) // Flush won't: it is alone then
	}
	n.resetting = true
	n.mesh.Reset()
	n.locks.Reset()
	n.resetting = false
	n.past.Promoted = 0
	n.leftMesh()
	n.SetLeaving(false)
	n.Flush()
}

// host is the node as its table of the other nodes sees it: what follows when one of them comes or goes.
type host Node

func (h *host) node() *Node { return (*Node)(h) }

// Now is the node's time, unix ms.
func (h *host) Now() int64 { return h.now }

// New makes the Peer of a node. That node may have missed acknowledgements.
func (h *host) New(p membership.Peer) *Peer {
	return &Peer{Peer: p, acks: acks{owed: true}, downAt: h.node().monotonic()}
}

// State is what the others are told of this node.
func (h *host) State() membership.State {
	return membership.State{Port: h.port, Leaving: h.leaving, Full: h.node().MemoryLevel() > 0 || h.unsafe, Minority: h.minority, Bounds: h.node().bounds()}
}

// Changed asks for the nodes' file to be written.
func (h *host) Changed() { h.node().nodesChanged() }

// Connect asks for a connection to a node, which is kept up from now on.
func (h *host) Connect(p *Peer) { h.effects = append(h.effects, Effect{Kind: Connect, Peer: p}) }

// Disconnect asks for the end of a node's connection.
func (h *host) Disconnect(p *Peer) { h.effects = append(h.effects, Effect{Kind: Disconnect, Peer: p}) }

// TurnAway ends the connection of a node that isn't one of the mesh.
func (h *host) TurnAway(p *membership.Peer) { h.Disconnect(&Peer{Peer: *p}) }

// Send sends nodes a message.
func (h *host) Send(m *wire.Message, to ...*Peer) {
	s := sending{n: h.node(), m: m}
	for _, p := range to {
		s.to(p)
	}
}

// Added is called when a node has become known.
func (h *host) Added(*Peer) {
	h.locks.Joins()
	h.node().countAgain()
}

// Returning is called when a connection is made, before its node is heard.
func (h *host) Returning(p *Peer) { h.node().givenUp(p) }

// Up is called when a connection is made: its node is told what it may have missed.
func (h *host) Up(p *Peer) {
	h.node().resume(p)
	h.node().askLateAgain()
	h.node().tellFlushes(p)
	h.locks.Up(p.Base())
	h.node().compareEntries(p)
	h.node().tellMarksTo(p)
	h.node().mayRepair()
	h.node().watchMet()
}

// Down is called when a connection has ended.
func (h *host) Down(p *Peer) {
	if p.copies.open || h.now-p.copies.done < copiesLostMS {
		p.copies = telling{} // what was told last may not have arrived
	}
	p.downAt = h.node().monotonic()
	h.node().askLateAgain()
	h.questions.open.Begin()
	h.node().hurryTick()
	h.node().acksDown(p)
	h.locks.Down()
}

// Silent is called when a node has been silent for the node timeout.
func (h *host) Silent(p *Peer) { h.node().givenSilent(p) }

// Back is called when a node that was absent is heard again: meanwhile neither node gave jobs to the other.
func (h *host) Back(p *Peer) {
	h.node().serveDemandsSoon()
	h.node().askMet(p)
}

// Gone is called when a node's membership has ended. Jobs no longer count on it.
func (h *host) Gone(p *Peer) {
	n := h.node()
	n.locks.Gone(p.Base())
	n.questions.open.Begin()
	n.hurryTick()
	n.reviewHandovers()
	n.acksGone(p)
	n.givenGone(p)
	n.countAgain()
	n.repairSoon(repairBeginMS)
	if n.alike.zones[p.Node] != "" && !n.passive && !n.loading && !n.resetting {
		n.ChangeEntry(EntryZone, p.ID.String(), nil)
	}
	n.leftMesh()
}

func (n *Node) nodesChanged() {
	n.effects = append(n.effects, Effect{Kind: NodesChanged})
	n.hurryTick()
}

// send queues a message for a node. Without a connection the message is lost.
func (n *Node) send(p *Peer, m *wire.Message) {
	s := sending{n: n, m: m}
	s.to(p)
}

// sending is one message for several nodes: its bytes are made once, when the first of them is connected. If it has wire.Returns, they are
// made again without that for the nodes of former releases.
type sending struct {
	n           *Node
	m           *wire.Message
	whole, less bytesOf
}

// bytesOf is where the bytes of a message are in the outbox. end is 0 if they aren't made yet.
type bytesOf struct{ begin, end int }

func (s *sending) to(p *Peer) {
	if p == nil || !p.Connected {
		return
	}
	n, m := s.n, s.m
	if !n.mesh.features[p.ID].Results {
		switch m.Kind {
		case wire.Cancel:
			return
		case wire.GotEnd: // with ToAll
			n.send(p, &wire.Message{Kind: wire.DelJob, ID: m.ID})
			return
		}
	}
	if (m.Kind == wire.PutOff && m.Flags&wire.CountNack != 0 || m.Kind == wire.Whereabouts) && !n.mesh.features[p.ID].Failures {
		if plain := withoutFailure(m); plain != nil {
			n.send(p, plain)
		}
		return
	}
	b := &s.whole
	told, bounds := m.Returns.Told, m.Bounds
	if told && !n.mesh.features[p.ID].Returns {
		b, m.Returns.Told = &s.less, false
	}
	if bounds.Line != 0 && !n.mesh.features[p.ID].Bounds {
		b, m.Bounds = &s.less, wire.Bounds{}
	}
	if b.end == 0 {
		b.begin = len(n.outbox)
		n.outbox = m.Append(n.outbox)
		b.end = len(n.outbox)
	}
	m.Returns.Told, m.Bounds = told, bounds
	n.Stats.Sent++
	n.effects = append(n.effects, Effect{Kind: Send, Peer: p, from: b.begin, to: b.end})
}

// withoutFailure makes the message for a node of a former release, which knows nothing of failures. nil: there is nothing to tell it.
func withoutFailure(m *wire.Message) *wire.Message {
	plain := *m
	switch {
	case m.Kind == wire.PutOff:
		plain.Flags &= wire.GotKey // that node takes the count for other flags
	case m.Count == 0: // the job wasn't moved
		return nil
	default:
		plain.Kind = wire.MovedTo
	}
	return &plain
}

// Message returns the bytes of a Send, LogLock, LogUnlock or LogDrop effect; valid until the next call.
func (n *Node) Message(e *Effect) []byte { return n.outbox[e.from:e.to] }

const (
	outboxMost = 2 << 20 // bytes of the outbox that are kept for the next messages
	outboxCalm = 1_000   // calls after which a larger one is given up if no call needs a quarter of it
)

// emptyOutbox is called when the messages of the effects are sent.
func (n *Node) emptyOutbox() {
	n.sent, n.outboxIdle = false, n.outboxIdle+1
	if len(n.outbox) > cap(n.outbox)/4 || cap(n.outbox) <= outboxMost {
		n.outboxIdle = 0
	}
	if n.outbox = n.outbox[:0]; n.outboxIdle >= outboxCalm {
		n.outbox, n.outboxIdle = nil, 0
	}
}

// tellWhere sends a message to those nodes that are wanted.
func (n *Node) tellWhere(m *wire.Message, wanted func(*Peer) bool) {
	s := sending{n: n, m: m}
	for _, p := range n.mesh.All() {
		if wanted(p) {
			s.to(p)
		}
	}
}

// tellAll sends a message to all nodes.
func (n *Node) tellAll(m *wire.Message) {
	s := sending{n: n, m: m}
	for _, p := range n.mesh.All() {
		s.to(p)
	}
}
