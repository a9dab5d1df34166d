package engine

import (
	"encoding/binary"
	"math"

	"jobmesh/module/entries"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Entries are what all nodes are to know alike: settings of queues, pauses (PAUSE … BCAST), zones, and recurring jobs. A change is told to all nodes
// that are connected. Nodes that connect compare what they know, and so do all nodes now and then. Package entries says which of
// two changes wins.

// Kinds of entries. Package commands reads and writes those of settings.
const (
	EntrySettings entries.Kind = 1 // of a queue, or of the queues of a pattern
	EntryPause    entries.Kind = 2 // of a queue, see pauseTimed
	EntryZone     entries.Kind = 3 // of a node, by its ID: the name of its zone
	EntryOwn                   = entries.OwnKinds | EntrySettings

	EntryCron = entries.ManyKinds | 1        // of a recurring job, see Cron
	EntryMark = entries.OwnKinds | EntryCron // how far its slots are served, see mark
	EntryMesh = entries.OwnKinds | 4         // the data are those of a node of a mesh, see noteMesh

	EntryFlush   = entries.FewKinds | 2          // QFLUSH with MESH of a queue, while nodes were away, see lateness
	EntryFlushed = entries.OwnKinds | EntryFlush // this node has done its part of that
)

const (
	compareEveryMS = 30_000
	compareSoonMS  = 1000 // after a change, and so much later for each node
	compareEachMS  = 100
	entriesPage    = 100 // entries in a message; more only where one of the smallest parts of the table has more
	aheadMostMS    = 1000 * 365 * 24 * 3600 * 1000
)

// alike is what all nodes are to know alike, as this node knows it.
type alike struct {
	entries.Table
	compare int64  // monotonic: when nodes compare what they know next
	zone    string // of this node, as SetZone has set it
	zones   map[wire.Node]string
}

// inStep is what is known of another node's entries.
type inStep struct {
	sum    uint64 // of its entries, as it told last
	agreed int64  // monotonic: when they were last the same as this node's; 0: never
}

// Entries are what all nodes are to know alike. Change them by [Node.ChangeEntry] only.
func (n *Node) Entries() *entries.Table { return &n.alike.Table }

// ChangeEntry changes an entry, or deletes it (nil), here and at all other nodes.
func (n *Node) ChangeEntry(kind entries.Kind, name string, value []byte) {
	n.changed(n.alike.Change(kind, name, value, n.self.Node(), n.now, n.monotonic()))
}

// changed carries out and tells a change that this node has made.
func (n *Node) changed(e *entries.Entry) {
	n.noteZone(e)
	n.entryChanged(e, nil)
	n.noteCron(e)
	n.noteFlush(e)
	if !e.Kind.Own() {
		n.tellWhere(n.tellsEntries(e.Append(nil), 0), n.knowsEntries)
	}
	if e.Deleted && n.mesh.Alone() {
		n.alike.Forget(e.Kind, e.Name) // no other node has it
	}
}

// EntryFits says whether an entry of a kind with so many bytes, name and value, can be added.
func (n *Node) EntryFits(kind entries.Kind, size int) error {
	if !n.alike.Fits(kind, size) {
		return ErrManyEntries
	}
	return nil
}

// entryChanged asks for an entry to be logged, and to be carried out if package commands reads it.
func (n *Node) entryChanged(e, lost *entries.Entry) {
	n.effects = append(n.effects, Effect{Kind: LogEntry, Entry: e, Lost: lost})
	if e != nil && e.Kind.Own() {
		return // no other node has it
	}
	// Only the node that told of it is known to have it. The larger the mesh, the later the others are asked.
	soon := n.monotonic() + compareSoonMS + compareEachMS*int64(len(n.mesh.All()))
	n.alike.compare = min(n.alike.compare, soon)
	n.wakeAtEntries(n.monotonic())
}

// knowsEntries says whether a node's release has entries.
func (n *Node) knowsEntries(p *Peer) bool { return n.mesh.features[p.ID].Entries }

// tellsEntries makes a message that tells entries, and the sum of all that this node has.
func (n *Node) tellsEntries(list []byte, flags uint8) *wire.Message {
	return &wire.Message{Kind: wire.Entries, Flags: flags, Queue: list, Members: n.alike.Sum()}
}

// heardSum notes the sum of all entries that another node has.
func (n *Node) heardSum(p *Peer, sum uint64) {
	if p.entries.sum = sum; sum == n.alike.Sum() {
		p.entries.agreed = n.monotonic()
	}
}

// LoadEntry takes an entry from a log, or from a master. Nobody is told. A pause that begins is carried out by pauseAgain. Its end is
// carried out here: a queue that was made meanwhile is paused already.
func (n *Node) LoadEntry(e *entries.Entry) (took bool) {
	if took = n.alike.Load(e, n.monotonic()); !took {
		return false
	}
	n.noteZone(e)
	n.noteCron(e)
	n.noteFlush(e)
	if e.Kind == EntryPause {
		n.lookAtPause(e.Name)
	}
	if e.Kind == EntryPause && e.Deleted {
		if q := n.store.Queue([]byte(e.Name)); q != nil {
			q.Pause = 0
		}
		n.pauseEndsAway([]byte(e.Name))
	}
	return true
}

// ForceEntry takes a setting from the log of a release that had no stamps: it counts less than all that has one. Nil deletes it.
func (n *Node) ForceEntry(kind entries.Kind, name string, value []byte) {
	if value == nil {
		n.alike.Forget(kind, name)
		return
	}
	n.alike.Force(&entries.Entry{Kind: kind, Name: name, Value: value, Stamp: entries.Stamp{Node: n.self.Node()}}, n.monotonic())
}

// DropEntries forgets all entries, before others are loaded.
func (n *Node) DropEntries() { n.alike, n.crons = alike{zone: n.alike.zone}, crons{} }

// SetZone sets the zone in which this node is, such as its rack or site; empty: none. The copies of a job go to nodes of different zones,
// as far as there are such nodes.
func (n *Node) SetZone(zone string) { n.alike.zone = zone }

// Zone is what SetZone has set.
func (n *Node) Zone() string { return n.alike.zone }

// Zones counts the known nodes of each zone; those of none are left out.
func (n *Node) Zones() map[string]int {
	counts := map[string]int{}
	for node, zone := range n.alike.zones {
		if node == n.self.Node() || n.mesh.ByName(node) != nil {
			counts[zone]++
		}
	}
	return counts
}

// noteZone notes which node is in which zone.
func (n *Node) noteZone(e *entries.Entry) {
	id, err := wire.ParseNodeID(e.Name)
	switch {
	case e.Kind != EntryZone || err != nil:
	case e.Deleted:
		delete(n.alike.zones, id.Node())
	default:
		if n.alike.zones == nil {
			n.alike.zones = map[wire.Node]string{}
		}
		n.alike.zones[id.Node()] = string(e.Value)
	}
}

// tellZone tells all nodes this node's zone, if that has changed.
func (n *Node) tellZone() {
	zone := n.alike.zone
	if n.alike.zones[n.self.Node()] == zone {
		return
	}
	value := []byte(zone)
	if zone == "" {
		value = nil
	}
	n.ChangeEntry(EntryZone, n.nodeID, value)
}

// noteMesh notes in the data, which a replica has too, that they are those of a node of a mesh. A replica that is promoted knows no other node
// at first, nor does a server that is given a copy of the data: by the note it knows that others make the slots of its recurring jobs.
// The value is since when the node that wrote it has been so, unix ms.
func (n *Node) noteMesh() {
	e := n.alike.Get(EntryMesh, "")
	switch alone := n.mesh.Alone(); {
	case !alone && e == nil && n.Crons() > 0:
	case alone && e != nil && e.Stamp.Node != n.self.Node():
		n.warn("this node is alone, and its data are those of a node of a mesh: it makes no recurring jobs but those with QUORUM any, and none with RETRY 0, before it meets a node (JOBMESH CLUSTER MEET). If there is no mesh any more, delete them and set them anew (CRON DEL, CRON SET)")
	default:
		return
	}
	n.ChangeEntry(EntryMesh, "", binary.AppendUvarint(nil, uint64(n.wall())))
}

// leftMesh follows when the node was told that it is alone: its last other node was forgotten.
func (n *Node) leftMesh() {
	if n.mesh.Alone() && !n.passive && !n.loading && n.alike.Get(EntryMesh, "") != nil {
		n.ChangeEntry(EntryMesh, "", nil)
	}
}

// isApart says whether this node is alone with the data of a mesh's node, and whether a recurring job that was set first at a time, unix ms, is
// one of that mesh.
func (n *Node) isApart(first int64) bool {
	if !n.mesh.Alone() {
		return false
	}
	e := n.alike.Get(EntryMesh, "")
	if e == nil {
		return false
	}
	since, _ := binary.Uvarint(e.Value)
	return e.Stamp.Node != n.self.Node() || uint64(first) <= since
}

// elsewhere returns the nodes of list that are in no zone in which a node has a copy of the job already; all of them if
// there is none. here says whether this node keeps a copy. A node without a zone is in one of its own.
func (n *Node) elsewhere(j *store.Job, list []*Peer, here bool) []*Peer {
	zones := n.alike.zones
	if len(zones) == 0 {
		return list
	}
	taken := map[string]bool{}
	if here {
		taken[zones[n.self.Node()]] = true
	}
	for i := range j.Holders() {
		node, _ := j.Holder(i)
		taken[zones[wire.Node(node)]] = true
	}
	var other []*Peer
	for _, p := range list {
		if zone := zones[p.Node]; zone == "" || !taken[zone] {
			other = append(other, p)
		}
	}
	if len(other) == 0 {
		return list
	}
	return other
}

// tickEntries compares entries with the other nodes now and then.
func (n *Node) tickEntries() {
	n.tellZone()
	n.noteMesh()
	if n.mesh.Alone() {
		n.alike.DropTombstones()
		return
	}
	now := n.monotonic()
	if now >= n.alike.compare {
		n.alike.compare = now + compareEveryMS
		n.dropOldFlushes()
		agreed := int64(math.MaxInt64)
		for _, p := range n.mesh.All() {
			agreed = min(agreed, p.entries.agreed)
			if p.Connected {
				n.compareEntries(p)
			}
		}
		n.alike.Sweep(n.now, agreed)
	}
	n.wakeAtEntries(now)
}

func (n *Node) wakeAtEntries(now int64) {
	if !n.mesh.Alone() {
		n.wake = min(n.wake, n.now+max(n.alike.compare-now, 1))
	}
}

// compareEntries begins to compare entries with a node. If both have some, it is the node with the smaller ID that begins.
func (n *Node) compareEntries(p *Peer) {
	if !n.knowsEntries(p) || n.alike.Empty() {
		return
	}
	flags := uint8(0)
	if n.self.Node() > p.Node {
		flags = wire.NoReply
	}
	n.sendSums(p, entries.Part{}, flags)
}

// sendSums tells a node the sums of a part's parts. If some are others there, the node tells its own sums of those parts, until the
// smallest parts are reached: then it tells the entries. With NoReply it does so only if it has no entries at all.
func (n *Node) sendSums(p *Peer, part entries.Part, flags uint8) {
	sums := n.alike.Sums(part)
	b := make([]byte, 0, 8*len(sums))
	for _, s := range sums {
		b = binary.BigEndian.AppendUint64(b, s)
	}
	n.send(p, &wire.Message{Kind: wire.EntrySums, Flags: flags, Round: roundOf(part), Queue: b})
}

func roundOf(part entries.Part) uint64 { return uint64(part.Level)<<16 | uint64(part.Prefix) }

func partOf(round uint64) entries.Part {
	if round>>24 != 0 {
		return entries.Part{Level: math.MaxUint8}
	}
	return entries.Part{Level: uint8(round >> 16), Prefix: uint16(round)}
}

func (n *Node) onEntrySums(p *Peer, m *wire.Message) error {
	part, mine := partOf(m.Round), [entries.Fan]uint64{}
	if !part.Valid() || part.Level == entries.Levels || len(m.Queue) != 8*len(mine) {
		return wire.ErrMessage
	}
	mine = n.alike.Sums(part)
	var theirs uint64
	var differ []int
	recurring := false
	for i := range mine {
		sum := binary.BigEndian.Uint64(m.Queue[8*i:])
		theirs += sum
		if sum != mine[i] {
			differ = append(differ, i)
		}
	}
	if part.Level == 0 {
		n.heardSum(p, theirs)
	}
	switch {
	case m.Flags&wire.NoReply != 0 && !n.alike.Empty():
	case len(differ) == 0:
		n.send(p, n.tellsEntries(nil, wire.NoReply))
	case part.Level < entries.Levels-1:
		for _, i := range differ {
			n.sendSums(p, part.Child(i), 0)
		}
	default:
		reply, count := n.tellsEntries(nil, 0), 0
		reply.Round = roundOf(part)
		for _, i := range differ {
			leaf := n.alike.In(part.Child(i))
			if count > 0 && count+len(leaf) > entriesPage {
				n.send(p, reply)
				reply.Count, reply.Queue, count = 0, nil, 0
			}
			reply.Count |= 1 << i
			count += len(leaf)
			for _, e := range leaf {
				reply.Queue = e.Append(reply.Queue)
				recurring = recurring || e.Kind == EntryCron
			}
		}
		n.send(p, reply)
		if recurring {
			n.tellMarksTo(p)
		}
	}
	return nil
}

// onEntries learns entries, and answers with the sum of its own, unless the message is itself an answer (NoReply). Count has a bit for
// each of the smallest parts of which the sender has told all that it knows: it is told what it lacks. It is also told of entries that are
// later here.
func (n *Node) onEntries(p *Peer, m *wire.Message) error {
	part := partOf(m.Round)
	if m.Count != 0 && (!part.Valid() || part.Level != entries.Levels-1 || m.Count >= 1<<entries.Fan) {
		return wire.ErrMessage
	}
	told := map[*entries.Entry]bool{} // the entries of this node's table of which the message has one
	var later []byte                  // is sent by pages
	count, recurring := 0, false
	tell := func(e *entries.Entry) {
		later, recurring = e.Append(later), recurring || e.Kind == EntryCron
		if count++; count%entriesPage == 0 {
			n.send(p, n.tellsEntries(later, 0))
			later = nil
		}
	}
	err := entries.Parse(m.Queue, func(e *entries.Entry) error {
		if e.Kind.Own() {
			return wire.ErrMessage
		}
		if e.Stamp.MS-n.now > aheadMostMS {
			return nil // no clock has made it, and it would leave little room for later changes
		}
		took, lost := n.alike.Learn(e, n.now, n.monotonic())
		valid := n.alike.Known(e.Kind, e.Name)
		told[valid] = true
		switch {
		case took:
			n.learntEntry(e, lost)
		case lost != nil: // it is earlier
			if !valid.Saw(e) {
				n.entryChanged(nil, e)
			}
			tell(valid)
		}
		return nil
	})
	n.heardSum(p, m.Members)
	if err != nil {
		return err
	}
	for i := range entries.Fan {
		if m.Count&(1<<i) == 0 {
			continue
		}
		for _, e := range n.alike.In(part.Child(i)) {
			if !told[e] {
				tell(e)
			}
		}
	}
	switch {
	case count > 0:
		if len(later) > 0 {
			n.send(p, n.tellsEntries(later, 0))
		}
		if recurring {
			n.tellMarksTo(p)
		}
	case m.Flags&wire.NoReply == 0:
		n.send(p, n.tellsEntries(nil, wire.NoReply))
	}
	return nil
}

// learntEntry carries an entry out that another node has told of. lost is the one that it replaces.
func (n *Node) learntEntry(e, lost *entries.Entry) {
	if lost != nil && (e.Saw(lost) || lost.Deleted) {
		lost = nil
	}
	n.noteZone(e)
	n.entryChanged(e, lost)
	n.noteCron(e)
	n.noteFlush(e)
	if e.Kind == EntryPause {
		n.pauseLearnt(e)
	}
}

// EntriesInStep says whether all connected nodes are known to have the same entries as this one.
func (n *Node) EntriesInStep() bool {
	for _, p := range n.mesh.All() {
		if p.Connected && n.knowsEntries(p) && p.entries.sum != n.alike.Sum() {
			return false
		}
	}
	return true
}
