package engine

import (
	"encoding/binary"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Here is how a node tells the others of the jobs that were added at it, and of which jobs it knows all that became of them. A flush that comes late decides by
// both (late.go). The nodes' file keeps them over restarts.

const (
	goneMost      = 1000   // nodes whose jobs were forgotten early
	boundsMost    = 1000   // ADDJOBs under way that are looked at for a heartbeat
	boundsEveryMS = 5_000  // between writes of the nodes' file for the sake of bounds
	boundsSoonMS  = 1_000  // from a new job to that write
	sightMS       = 10_000 // heartbeats that were sent before this node lost sight of its jobs are read by then
)

// prefix is what a job's ID says of the node where the job was added.
type prefix uint32

func prefixOf(node wire.Node) prefix { return prefix(node >> 32) }

func addedAt(id *store.ID) prefix { return prefix(binary.BigEndian.Uint32(id[:4])) }

// --- what a node tells of its own jobs ----------------------------------------

// promised is what this node tells the others of the creation times of its own jobs.
type promised struct {
	seed  uint64
	kept  uint64      // the nodes' file has this time: no process of this node makes an earlier one from now on
	since int64       // monotonic: when a job was made later than that; 0: none was
	asked int64       // monotonic: when the file was last to be written for it
	last  wire.Bounds // as told last,
	at    int64       // at this time, unix ms
}

// goOnWithLine continues the creation times of the process before: those of this one are later. If that would be far ahead of the clock, which was
// wrong then, a new line of times begins, and what was told of the former one counts no more.
func (n *Node) goOnWithLine() {
	p := &n.past
	if p.Line != 0 && p.Created > 0 && p.Created/1_000_000 <= n.now+trustAhead {
		n.ctime = max(n.ctime, uint64(p.Created))
		n.told.kept = uint64(p.Created)
		return
	}
	n.newLine()
}

func (n *Node) newLine() {
	n.past.Line = int64((n.told.seed^uint64(n.now))*0x9e3779b97f4a7c15>>2 | 1)
	n.told.kept, n.told.last = 0, wire.Bounds{}
}

// bounds are what heartbeats tell of this node's own jobs. In doubt they are lower.
func (n *Node) bounds() wire.Bounds {
	t := &n.told
	if n.passive || n.loading {
		return wire.Bounds{}
	}
	if n.past.Line == 0 {
		n.newLine()
	}
	if t.last.Line != 0 && t.at == n.now && t.last.Made == n.ctime {
		return t.last
	}
	told := min(n.ctime, t.kept)
	if len(n.waiting)+len(n.bundles) > boundsMost {
		told = 0
	}
	before := func(b *Batch, id *store.ID) {
		if b != nil {
			told = min(told, b.before) // its client hears of its first jobs when the last one is decided
		} else if j := n.store.Lookup(id); j != nil {
			told = min(told, j.CTime-1)
		} else {
			told = 0
		}
	}
	if told > t.last.Told {
		for _, ad := range n.waiting {
			b, _ := ad.client.(*Batch)
			before(b, &ad.id)
		}
		for _, u := range n.bundles {
			before(u.of, nil)
		}
	}
	t.last, t.at = wire.Bounds{Line: uint64(n.past.Line), Told: max(told, t.last.Told), Made: n.ctime}, n.now
	return t.last
}

// tickBounds makes the nodes' file follow this node's creation times, so that more of them can be told.
func (n *Node) tickBounds() {
	t := &n.told
	if n.ctime <= t.kept || !slices.ContainsFunc(n.mesh.All(), n.takesBounds) {
		t.since = 0
		return
	}
	now := n.monotonic()
	if t.since == 0 {
		t.since = max(now, 1)
	}
	if now-t.since >= boundsSoonMS && (t.asked == 0 || now-t.asked >= boundsEveryMS) {
		t.since, t.asked = 0, max(now, 1)
		n.nodesChanged()
	}
}

func (n *Node) takesBounds(p *Peer) bool { return p.Connected && n.mesh.features[p.ID].Bounds }

// heardBounds takes what a node tells of its own jobs.
func (n *Node) heardBounds(p *Peer, b wire.Bounds) {
	if b.Line == 0 || !p.Connected {
		return
	}
	p.bounds, p.heard = b, true
	n.seesAgain(p.Node, b.Made)
}

// --- what a node knows of jobs --------------------------------------------------

// Known is of which jobs a node knows all that became of them at it. The nodes' file keeps it, and it counts if the process that wrote it ended in
// order.
type Known struct {
	All   bool              // it has lost nothing since there is this node
	Since map[uint32]uint64 // of those that were added at a node (the first 4 bytes of its ID): the ones with later creation times
	Gone  map[uint32]uint64 // of those that it doesn't have and that were added at a node: the ones with later creation times
}

// knows is Known, and since when.
type knows struct {
	all   bool
	since map[prefix]uint64
	gone  map[prefix]uint64
	lost  int64 // monotonic: when this node lost sight of the jobs of before; 0: before it was connected to anybody
}

// Known returns what the nodes' file is to keep.
func (n *Node) Known() Known {
	return Known{All: n.knows.all, Since: rekeyed[uint32](n.knows.since), Gone: rekeyed[uint32](n.knows.gone)}
}

// SetKnown sets what the nodes' file has kept, if it counts.
func (n *Node) SetKnown(k Known) {
	n.knows = knows{all: k.All, since: rekeyed[prefix](k.Since), gone: rekeyed[prefix](k.Gone)}
}

// rekeyed is a copy of creation times by nodes whose keys are of another type.
func rekeyed[To, From ~uint32](times map[From]uint64) map[To]uint64 {
	all := make(map[To]uint64, len(times))
	for node, at := range times {
		all[To(node)] = at
	}
	return all
}

// ownFromNow is of which jobs this node is sure when it has lost sight of all others: its own that are made from now on.
func (n *Node) ownFromNow() map[prefix]uint64 {
	return map[prefix]uint64{prefixOf(n.self.Node()): max(n.ctime, 1)}
}

// losesSight is called when clients may have got jobs and this node doesn't know it any more, or when its jobs aren't in the queues in which they were
// added: from now on it is sure only of jobs that are made later.
func (n *Node) losesSight() {
	if n.passive || n.loading {
		return // a start and a promotion end with it
	}
	n.knows = knows{since: n.ownFromNow()}
	if slices.ContainsFunc(n.mesh.All(), func(p *Peer) bool { return p.Connected }) {
		n.knows.lost = max(n.monotonic(), 1)
	}
}

// seesAgain notes that a node has told its last creation time: its later jobs were made after this node has lost sight of others.
func (n *Node) seesAgain(node wire.Node, made uint64) {
	k := &n.knows
	if k.all || k.since[prefixOf(node)] != 0 || k.lost != 0 && n.monotonic() < k.lost+sightMS {
		return
	}
	if k.since == nil {
		k.since = n.ownFromNow()
	}
	k.since[prefixOf(node)] = max(made, 1)
	n.nodesChanged()
}

// forgetsEarly is called for a job that is removed before all its holders are known to know its end: one of them may still have it when this
// node is asked about it.
func (n *Node) forgetsEarly(j *store.Job) {
	if n.passive || n.loading {
		return
	}
	k, node := &n.knows, addedAt(&j.ID)
	switch {
	case j.CTime <= k.gone[node]:
		return
	case k.gone == nil:
		k.gone = map[prefix]uint64{}
	case len(k.gone) >= goneMost && k.gone[node] == 0:
		n.losesSight()
		return
	}
	k.gone[node] = j.CTime
}

// isMissed says whether a job that is about to be removed may still be at another node that doesn't know its end. One whose life is over, and that
// was given to nobody here, has no end that this node must tell: it can say for certain that it has given the job to nobody.
func (n *Node) isMissed(j *store.Job) bool {
	if j.Holders() == 0 || n.dummy(j) {
		return false
	}
	if j.State == store.StateAcked {
		return j.Confirmed() < j.Holders()
	}
	return j.ETime > n.now || !n.isPlain(j)
}

// sureOf says whether this node knows all that became of a job at it. A job that isn't known, and was made later than the last one of its node that was
// forgotten early, is one that never came, or whose end all its holders know.
func (n *Node) sureOf(id *store.ID, ctime uint64) bool {
	if n.knows.all {
		return true
	}
	since := n.knows.since[addedAt(id)]
	return since != 0 && ctime > since
}
