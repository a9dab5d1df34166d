package engine

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Times of membership, ms (as in Disque).
const (
	DefaultNodeTimeout = 15_000
	heartbeatEvery     = 1_000
	banTime            = 60_000 // a forgotten node isn't learnt again by gossip
	doubtValid         = 2      // times the node timeout
	gossipLeast        = 3      // nodes told of in a heartbeat; a tenth of all, where that is more
)

// Health is what a node holds of another.
type Health uint8

// The healths, as wire.Peer has them.
const (
	Well      Health = iota
	Suspected        // silent for the node timeout (PFAIL)
	Failed           // by the word of a majority (FAIL)
)

// Peer is another node of the mesh.
type Peer struct {
	ID        wire.NodeID
	Node      wire.Node
	Addr      string // of its bus
	Port      int    // for clients; 0: not told yet
	Connected bool
	Heard     int64 // unix ms of its last message
	Health    Health
	Leaving   bool
	full      bool // takes no copies: its memory is short
	idles     bool // answers AskIdle
	acks      acks
	untold    int        // releases, from the first on, that it may have missed
	missed    int        // likewise ADDJOBs that wait for copies,
	added     uint64     // up to this number
	up        uint64     // members.ups when it was connected
	given     []given    // jobs that were handed over to it lately
	copied    []given    // jobs of which it sent this node a copy lately
	doubted   []store.ID // of those, the ones that may be in no queue
	choked    int64      // steady: until then it takes too little to be given jobs
	clears    uint64     // claims.cleared when it was connected
	past      passing    // see behind
	meet      bool       // we were told to meet it, and it hasn't said anything yet
	doubts    map[wire.Node]int64
	counts    []wire.Node // the nodes that it said it knows, in their order
	sum       uint64      // over them
}

// usable says whether a copy may be put there.
func (p *Peer) usable() bool {
	return p.Connected && p.Health == Well && !p.Leaving && !p.full
}

// mayReturn says of a node whose connection was lost whether it counts still: it was heard of
// within the node timeout. A copy for it is sent when it is back.
func (n *Node) mayReturn(p *Peer) bool {
	return !p.Connected && p.Health == Well && !p.Leaving && !p.full && n.now-p.Heard <= n.mesh.timeout
}

// members is the node table.
type members struct {
	by         map[wire.Node]*Peer
	lives      map[wire.NodeID]uint64 // the processes of those that jobs can be offered to
	order      []*Peer                // by name, so that a seeded run repeats
	gone       map[wire.Node]struct{} // forgotten, and not met again
	absent     []*Peer                // forgotten, with jobs that were handed over to them and may not have arrived
	acks       acks                   // telling: acknowledged jobs that name one of those are looked for
	banned     map[wire.NodeID]int64
	alone      bool                   // nobody comes in who isn't met
	quarantine map[wire.NodeID]string // who is connected, and may not come in unless they were told to meet us
	next       int64                  // the next heartbeat
	gossip     int                    // where in order the next heartbeat's gossip begins
	timeout    int64
	ups        uint64 // how often a connection was made
	changed    int64  // unix ms, when one was made or ended
	sweep      int64  // the next forgetting of stale questions
	sum        uint64 // over all nodes, this one included; 0: not known
	untold     bool   // the others are to be told of all nodes
	resets     uint32 // how often they were all forgotten at once
}

// Peers are the other nodes, in the order of their IDs; not to be changed.
func (n *Node) Peers() []*Peer { return n.mesh.order }

// Reachable counts the nodes that could take a copy now.
func (n *Node) Reachable() (c int) {
	for _, p := range n.mesh.order {
		if p.usable() {
			c++
		}
	}
	return c
}

// Self is this node's ID in binary.
func (n *Node) Self() wire.NodeID { return n.self }

func parseNodeID(text string) (id wire.NodeID) {
	// A name of another form is a bug of the caller's; it only weakens the ID.
	_, _ = hex.Decode(id[:], []byte(text))
	return id
}

// AddPeer makes a node known, as read from the nodes' file. False where it is
// known, is this node, or shares its short name with another.
func (n *Node) AddPeer(id wire.NodeID, addr string) bool {
	node := id.Node()
	if id == n.self || node == n.self.Node() || node == 0 || n.mesh.by[node] != nil {
		return false
	}
	p := &Peer{ID: id, Node: node, Addr: addr, Heard: n.now, doubts: map[wire.Node]int64{}, acks: acks{owed: true}}
	n.mesh.by[node] = p
	delete(n.mesh.gone, node)
	at, _ := slices.BinarySearchFunc(n.mesh.order, p, byNode)
	n.mesh.order = slices.Insert(n.mesh.order, at, p)
	n.mesh.sum, n.mesh.untold = 0, true
	n.effects = append(n.effects, Effect{Kind: Connect, Peer: p})
	n.nodesChanged()
	n.joins()
	if at, yes := n.mesh.quarantine[id]; yes { // it is connected already
		delete(n.mesh.banned, id)
		n.PeerUp(id, at, false)
	}
	return true
}

func byNode(a, b *Peer) int { return cmp.Compare(a.Node, b.Node) }

func (n *Node) nodesChanged() {
	n.effects = append(n.effects, Effect{Kind: NodesChanged})
	n.hurryTick()
}

// PeerUp follows a connection: the node at its other end has proved that it is
// one of the mesh. One that was forgotten a moment ago, and anybody at a node
// that was reset, waits at the door, unless it was met on purpose, or is known again since: its
// first message tells whether somebody wants it here.
func (n *Node) PeerUp(id wire.NodeID, addr string, met bool) {
	if until, yes := n.mesh.banned[id]; !met && n.peer(id) == nil && (n.mesh.alone || yes && n.now < until) {
		n.mesh.quarantine[id] = addr
		return
	}
	delete(n.mesh.quarantine, id)
	delete(n.mesh.banned, id)
	n.AddPeer(id, addr)
	p := n.mesh.by[id.Node()]
	if p == nil || p.ID != id {
		n.turnAway(id)
		return
	}
	n.mesh.alone = false
	p.meet = p.meet || met
	if addr != "" && addr != p.Addr {
		p.Addr = addr
		n.nodesChanged()
	}
	n.givenUp(p)
	n.heard(p)
	p.Connected = true
	n.mesh.ups++
	p.up, n.mesh.changed = n.mesh.ups, n.now
	n.beatWhole(p)
	n.resume(p)
	n.acquisitionsUp(p)
}

func (n *Node) turnAway(id wire.NodeID) {
	n.effects = append(n.effects, Effect{Kind: Disconnect, Peer: &Peer{ID: id, Node: id.Node()}})
}

// admit is a message of a node that isn't known.
func (n *Node) admit(id wire.NodeID, b []byte) error {
	addr, yes := n.mesh.quarantine[id]
	if !yes {
		return nil // forgotten since it was sent
	}
	delete(n.mesh.quarantine, id)
	m := &n.msg
	if err := m.Parse(b); err != nil {
		n.turnAway(id)
		return err
	}
	if m.Kind != wire.Heartbeat || m.Flags&wire.Met == 0 {
		n.turnAway(id)
		return nil
	}
	n.PeerUp(id, addr, true)
	return nil
}

// Meet makes a node known that this one was told to meet, and has reached. True
// where PeerUp is still to come.
func (n *Node) Meet(id wire.NodeID, addr string) bool {
	if at, yes := n.mesh.quarantine[id]; yes {
		n.PeerUp(id, at, true)
		return false
	}
	if p := n.peer(id); p != nil && p.Connected {
		// It may be about to turn us away.
		p.meet = true
		n.beat(p)
		return false
	}
	n.AddPeer(id, addr)
	return true
}

// PeerDown follows the loss of a connection.
func (n *Node) PeerDown(id wire.NodeID) {
	delete(n.mesh.quarantine, id)
	if p := n.peer(id); p != nil {
		p.Connected, n.mesh.changed = false, n.now
		n.acksDown(p)
		n.acquisitionsDown()
	}
}

func (n *Node) peer(id wire.NodeID) *Peer {
	if p := n.mesh.by[id.Node()]; p != nil && p.ID == id {
		return p
	}
	return nil
}

// reaches says whether a node is known, and connected.
func (n *Node) reaches(node wire.Node) bool {
	p := n.mesh.by[node]
	return p != nil && p.Connected
}

// reachesAll is reaches for several.
func (n *Node) reachesAll(nodes []wire.Node) bool {
	return !slices.ContainsFunc(nodes, func(node wire.Node) bool { return !n.reaches(node) })
}

// heard is any sign of life.
func (n *Node) heard(p *Peer) {
	back := p.Connected && n.isAbsent(p)
	p.Heard = n.now
	if p.Health != Well {
		p.Health = Well
		n.nodesChanged()
	}
	clear(p.doubts)
	if back { // neither of the two was given jobs meanwhile
		n.serveDemandsSoon()
		n.askAgain()
	}
}

// Forget takes a node out of the table (CLUSTER FORGET). Gossip doesn't bring
// it back for a minute. Jobs no longer count on it.
func (n *Node) Forget(id wire.NodeID) bool {
	p := n.peer(id)
	if id != n.self {
		n.mesh.banned[id] = n.now + banTime // also one that gossip under way still tells of
	}
	if p == nil {
		return false
	}
	delete(n.mesh.by, p.Node)
	n.mesh.order = slices.DeleteFunc(n.mesh.order, func(q *Peer) bool { return q == p })
	n.mesh.gone[p.Node] = struct{}{}
	n.mesh.sum, n.mesh.untold = 0, true
	n.effects = append(n.effects, Effect{Kind: Disconnect, Peer: p})
	n.nodesChanged()
	n.forgetVoter(p)
	n.reviewHandovers()
	n.acksGone(p)
	n.givenGone(p)
	return true
}

// Reset forgets all nodes, jobs and queues (CLUSTER RESET); the caller renames
// the node for a hard one.
//
// Claims that began before end without a majority: alone this node would give what the
// others may have given to somebody else.
func (n *Node) Reset() {
	n.mesh.resets++
	if n.shared() {
		n.allDeleted(n.newestHere()) // Flush won't: it is alone then
	}
	for len(n.mesh.order) > 0 {
		n.Forget(n.mesh.order[0].ID)
	}
	clear(n.mesh.banned)
	// Others remember it still: that doesn't make it one of theirs again. This
	// isn't saved, lest a node that dies before its file names whom it met since
	// be lost to them.
	n.mesh.alone = true
	n.SetLeaving(false)
	n.Flush()
}

// beatAll sends heartbeats, and judges the silent.
func (n *Node) beatAll() {
	if len(n.mesh.order) == 0 || n.now < n.mesh.next {
		return
	}
	n.mesh.next = n.now + heartbeatEvery
	for _, p := range n.mesh.order {
		if n.now-p.Heard > n.mesh.timeout && p.Health == Well {
			p.Health = Suspected
			n.nodesChanged()
			n.givenSilent(p)
		}
		if p.Health == Suspected {
			n.judge(p)
		}
	}
	beat := n.beat
	if n.mesh.untold {
		beat, n.mesh.untold = n.beatWhole, false
	}
	for _, p := range n.mesh.order {
		beat(p)
	}
	// The others are told of in turn. Were the turn to move with each message, a
	// round through all would end where it began, and each be told of the same ones
	// for ever.
	n.mesh.gossip = (n.mesh.gossip + n.gossips()) % len(n.mesh.order)
	for id, until := range n.mesh.banned {
		if n.now >= until {
			delete(n.mesh.banned, id)
		}
	}
}

// judge makes a suspect failed where a majority of all nodes, this one
// included, suspects it.
func (n *Node) judge(p *Peer) {
	votes := 1
	for _, at := range p.doubts {
		if n.now-at <= doubtValid*n.mesh.timeout {
			votes++
		}
	}
	if votes < (len(n.mesh.order)+1)/2+1 {
		return
	}
	p.Health = Failed
	n.nodesChanged()
	m := wire.Message{Kind: wire.Failed, Peers: []wire.Peer{{ID: p.ID, Addr: p.Addr, State: uint8(Failed)}}}
	for _, q := range n.mesh.order {
		n.send(q, &m)
	}
}

// beat sends a heartbeat: our state, what we suspect, and some of the others.
func (n *Node) beat(p *Peer) { n.beatOf(p, n.gossips(), 0) }

// beatWhole sends a heartbeat that names all nodes. So whoever comes to a mesh through
// any node of it counts all the others, those that can't be reached included.
func (n *Node) beatWhole(p *Peer) { n.beatOf(p, len(n.mesh.order), wire.Whole) }

// beatOf sends a heartbeat that names so many nodes, and all that aren't well.
func (n *Node) beatOf(p *Peer, some int, flags uint8) {
	if !p.Connected {
		return
	}
	m := wire.Message{Kind: wire.Heartbeat, Flags: flags | wire.Idles, Count: uint32(n.port)}
	if n.leaving {
		m.Flags |= wire.Leaving
	}
	if p.meet {
		m.Flags |= wire.Met
	}
	if n.MemoryLevel() > 0 || n.unsafe {
		m.Flags |= wire.Full
	}
	all := n.mesh.order
	for i := range all {
		q := all[(n.mesh.gossip+i)%len(all)]
		if q != p && (q.Health != Well || i < some) {
			m.Peers = append(m.Peers, wire.Peer{ID: q.ID, Addr: q.Addr, State: uint8(q.Health)})
		}
	}
	n.send(p, &m)
	n.scratch.gossip = m.Peers
}

// gossips is how many nodes a heartbeat tells of, beside those that aren't well.
func (n *Node) gossips() int { return max(gossipLeast, len(n.mesh.order)/10) }

// onHeartbeat takes a node's word on itself and on others.
func (n *Node) onHeartbeat(p *Peer, m *wire.Message) {
	if leaving := m.Flags&wire.Leaving != 0; leaving != p.Leaving {
		p.Leaving = leaving
		n.nodesChanged()
	}
	p.full, p.idles = m.Flags&wire.Full != 0, m.Flags&wire.Idles != 0
	if m.Flags&wire.Whole != 0 {
		p.counts = append(p.counts[:0], p.Node)
		for i := range m.Peers {
			p.counts = append(p.counts, m.Peers[i].ID.Node())
		}
		// The list leaves out the receiver alone.
		p.counts = append(p.counts, n.self.Node())
		slices.Sort(p.counts)
		p.counts = slices.Compact(p.counts)
		p.sum = sumOf(p.counts)
	}
	if port := int(m.Count); port != p.Port && port <= 65535 {
		p.Port = port
		n.nodesChanged()
	}
	for i := range m.Peers {
		g := &m.Peers[i]
		if g.ID == n.self {
			continue
		}
		q := n.mesh.by[g.ID.Node()]
		if q == nil {
			if n.mesh.banned[g.ID] <= n.now && (Health(g.State) == Well && g.Addr != "" || m.Flags&wire.Whole != 0) {
				n.AddPeer(g.ID, g.Addr)
			}
			continue
		}
		if Health(g.State) == Well {
			delete(q.doubts, p.Node)
			continue
		}
		q.doubts[p.Node] = n.now
		if q.Health == Suspected {
			n.judge(q)
		}
	}
}

// countsAll says whether a peer that claims a lock counts all nodes that this one
// knows: sum is that of the nodes that it counts. If each voter asks for that, the
// majorities of two claimants have a voter in common, though a node that has come to
// the mesh may not have heard of all others yet, nor all others of it.
func (n *Node) countsAll(p *Peer, sum uint64) bool {
	if sum == n.membersSum() {
		return true
	}
	if sum != p.sum {
		return false // its last word on the nodes that it knows is on its way, or lost
	}
	return !slices.ContainsFunc(n.mesh.order, func(q *Peer) bool {
		_, yes := slices.BinarySearch(p.counts, q.Node)
		return !yes
	})
}

// membersSum is a sum over the nodes that this one counts, itself included.
func (n *Node) membersSum() uint64 {
	if n.mesh.sum == 0 {
		list := []wire.Node{n.self.Node()}
		for _, p := range n.mesh.order {
			list = append(list, p.Node)
		}
		slices.Sort(list)
		n.mesh.sum = sumOf(list)
	}
	return n.mesh.sum
}

// sumOf is FNV-1a over the short names of nodes, in their order. Nobody gains by two
// lists of one sum: who may speak to a node at all can tell it any list.
func sumOf(list []wire.Node) uint64 {
	sum := uint64(14695981039346656037)
	for _, node := range list {
		for shift := 56; shift >= 0; shift -= 8 {
			sum = (sum ^ uint64(node)>>shift&0xff) * 1099511628211
		}
	}
	return max(sum, 1)
}

// onFailed takes a majority's word; a node that we have heard of lately is
// judged by us alone.
func (n *Node) onFailed(m *wire.Message) {
	p := n.mesh.by[m.Peers[0].ID.Node()]
	if p != nil && p.Health != Failed && n.now-p.Heard > n.mesh.timeout/2 {
		p.Health = Failed
		n.nodesChanged()
	}
}

// send queues a message for a node; it is lost where there is no connection.
func (n *Node) send(p *Peer, m *wire.Message) {
	if p == nil || !p.Connected {
		return
	}
	at := len(n.outbox)
	n.outbox = m.Append(n.outbox)
	n.Stats.Sent++
	n.effects = append(n.effects, Effect{Kind: Send, Peer: p, from: at, to: len(n.outbox)})
}

// Message is the bytes of a Send effect; valid until the next call.
func (n *Node) Message(e *Effect) []byte { return n.outbox[e.from:e.to] }

// tellAll sends a message to all nodes.
func (n *Node) tellAll(m *wire.Message) {
	for _, p := range n.mesh.order {
		n.send(p, m)
	}
}

// tell sends a message to a job's other holders, and to all nodes where another may have a copy. A node
// without one ignores it.
func (n *Node) tell(j *store.Job, m *wire.Message) {
	m.ID = j.ID
	if n.mayHaveHeir(j) {
		n.tellAllOf(j, m)
		return
	}
	if saysWhere(j, m) {
		n.tell(j, n.movedTo(j))
	}
	for i := range j.Holders() {
		node, _ := j.Holder(i)
		n.send(n.mesh.by[wire.Node(node)], m)
	}
}

// tellAllOf says something of a job to all nodes.
func (n *Node) tellAllOf(j *store.Job, m *wire.Message) {
	m.ID = j.ID
	if saysWhere(j, m) {
		n.tellAll(n.movedTo(j))
	}
	n.tellAll(m)
}

// saysWhere says whether those that a message goes to have to hear before in which queue its job is.
func saysWhere(j *store.Job, m *wire.Message) bool {
	return j.Parts != 0 && (m.Kind == wire.WillQueue || m.Kind == wire.Queued) && moves(j) > 0
}

// tellBut is tell, but for one of the holders.
func (n *Node) tellBut(but *Peer, j *store.Job, m *wire.Message) {
	m.ID = j.ID
	for i := range j.Holders() {
		if node, _ := j.Holder(i); node != uint64(but.Node) {
			n.send(n.mesh.by[wire.Node(node)], m)
		}
	}
}

// allHolders lists a job's holders, this node at the end, in scratch memory.
func (n *Node) allHolders(j *store.Job) []wire.Node {
	list := n.scratch.nodes[:0]
	for i := range j.Holders() {
		node, _ := j.Holder(i)
		list = append(list, wire.Node(node))
	}
	n.scratch.nodes = append(list, n.self.Node())
	return n.scratch.nodes
}

// learn notes holders that a message names; news says that some were unknown.
func (n *Node) learn(j *store.Job, holders []wire.Node) (_ *store.Job, news bool) {
	for _, h := range holders {
		added := false
		j, added = n.addHolder(j, h)
		news = news || added
	}
	return j, news
}

// learnLogged is learn for a job that the log has: after a restart the holders are known still.
func (n *Node) learnLogged(j *store.Job, holders []wire.Node) (_ *store.Job, news bool) {
	if j, news = n.learn(j, holders); news {
		n.log(LogState, j)
	}
	return j, news
}

// mayHaveHeir says whether one of a job's holders isn't known here, or isn't connected: a replica may have
// been promoted in its place, which has a copy too. Of an acknowledged job those count that haven't confirmed.
func (n *Node) mayHaveHeir(j *store.Job) bool {
	for i := range j.Holders() {
		if node, yes := j.Holder(i); !n.reaches(wire.Node(node)) && !(yes && j.State == store.StateAcked) {
			return true
		}
	}
	return false
}

// addHolder notes a holder; the job may move, in which case effects that name it follow.
func (n *Node) addHolder(j *store.Job, node wire.Node) (*store.Job, bool) {
	if node == n.self.Node() || node == 0 {
		return j, false
	}
	k, added := n.store.AddHolder(j, uint64(node))
	return n.moved(j, k), added
}

// heldByAll notes all known nodes as holders: any of them may have a copy. The job may move.
func (n *Node) heldByAll(j *store.Job) *store.Job {
	for _, p := range n.mesh.order {
		j, _ = n.addHolder(j, p.Node)
	}
	return j
}

// nodeLen is the length of a node's short name in an extra that lists some.
const nodeLen = 8

// noteNode adds a node to those that an extra of a job lists; false where there is no room.
func (n *Node) noteNode(j *store.Job, tag store.Tag, p *Peer) (_ *store.Job, ok bool) {
	nodes := append([]byte(nil), j.Extra(tag)...)
	return n.setExtra(j, tag, binary.BigEndian.AppendUint64(nodes, uint64(p.Node)))
}

// listed are the nodes that an extra of a job lists. The job mustn't change meanwhile.
func listed(j *store.Job, tag store.Tag) iter.Seq[wire.Node] {
	return func(yield func(wire.Node) bool) {
		for nodes := j.Extra(tag); len(nodes) >= nodeLen; nodes = nodes[nodeLen:] {
			if !yield(wire.Node(binary.BigEndian.Uint64(nodes))) {
				return
			}
		}
	}
}

// noted says whether an extra of a job lists a node.
func noted(j *store.Job, tag store.Tag, p *Peer) bool {
	for node := range listed(j, tag) {
		if node == p.Node {
			return true
		}
	}
	return false
}

// setExtra sets one of a job's extras; the job may move, as in addHolder. False
// where it has no room for it.
func (n *Node) setExtra(j *store.Job, tag store.Tag, value []byte) (*store.Job, bool) {
	k, ok := n.store.SetExtra(j, tag, value)
	return n.moved(j, k), ok
}

// moved has what is to be logged of a job follow it to where it is now. A client gets it
// as it was when it was handed out: an acknowledged one moves without its body.
func (n *Node) moved(from, to *store.Job) *store.Job {
	if from != to {
		for i := range n.effects {
			if e := &n.effects[i]; e.Job == from && e.Kind != Serve {
				e.Job = to
			}
		}
	}
	return to
}
