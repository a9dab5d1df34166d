package engine

import (
	"encoding/binary"
	"iter"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// The holders of a job: the other nodes that may have a copy, as its record has them, and what they are told.

// tell sends a message to a job's other holders, or to all nodes if one that isn't known as a holder may have
// a copy. A node without a copy ignores the message.
func (n *Node) tell(j *store.Job, m *wire.Message) {
	m.ID = j.ID
	if j.Holders() == 0 {
		return
	}
	if n.mayHaveHeir(j) {
		n.tellAllOf(j, m)
		return
	}
	s := sending{n: n, m: m}
	if !saysWhere(j, m) {
		for i := range j.Holders() {
			node, _ := j.Holder(i)
			s.to(n.mesh.ByName(wire.Node(node)))
		}
		return
	}
	where := n.whereabouts(j)
	for i := range j.Holders() {
		node, _ := j.Holder(i)
		p := n.mesh.ByName(wire.Node(node))
		where.to(p)
		s.to(p)
	}
}

// tellAllOf sends a message about a job to all nodes.
func (n *Node) tellAllOf(j *store.Job, m *wire.Message) {
	m.ID = j.ID
	if !saysWhere(j, m) {
		n.tellAll(m)
		return
	}
	where, s := n.whereabouts(j), sending{n: n, m: m}
	for _, p := range n.mesh.All() {
		where.to(p)
		s.to(p)
	}
}

// saysWhere says whether the receivers of a message must first hear in which queue its job is, for it has moved, how it failed, how far it
// is, or how long its delivery lasts.
func saysWhere(j *store.Job, m *wire.Message) bool {
	switch m.Kind {
	case wire.WillQueue, wire.Queued, wire.PutOff:
		return j.Parts != 0 && (moves(j) > 0 || tells(j))
	case wire.Working:
		return leaseOf(j) > 0
	}
	return false
}

// tellWhereabouts tells the other holders what they hear before most messages about a job, and nothing else: where it is, what was said of
// it, how often it was tried, and how long its delivery lasts.
func (n *Node) tellWhereabouts(j *store.Job) { n.tell(j, n.whereabouts(j).m) }

// tellBut sends a message to a job's other holders, except one.
func (n *Node) tellBut(but *Peer, j *store.Job, m *wire.Message) {
	m.ID = j.ID
	s := sending{n: n, m: m}
	for i := range j.Holders() {
		if node, _ := j.Holder(i); node != uint64(but.Node) {
			s.to(n.mesh.ByName(wire.Node(node)))
		}
	}
}

// allHolders lists a job's holders, this node at the end. The list is in scratch memory.
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

// learnLogged is learn for a job that the log has: the holders are logged, and still known after a restart.
func (n *Node) learnLogged(j *store.Job, holders []wire.Node) (_ *store.Job, news bool) {
	if j, news = n.learn(j, holders); news {
		n.log(LogState, j)
	}
	return j, news
}

// mayHaveHeir says whether one of a job's holders isn't known here, or isn't connected: a replica may have
// been promoted in its place, which has a copy too. If the job is acknowledged, only holders that haven't
// confirmed count.
func (n *Node) mayHaveHeir(j *store.Job) bool {
	for i := range j.Holders() {
		if node, yes := j.Holder(i); !n.mesh.Reaches(wire.Node(node)) && !(yes && j.State == store.StateAcked) {
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
	if added {
		n.countHere(k)
	}
	return n.moved(j, k), added
}

// heldByAll notes all known nodes as holders: any of them may have a copy. The job may move.
func (n *Node) heldByAll(j *store.Job) *store.Job {
	for _, p := range n.mesh.All() {
		j, _ = n.addHolder(j, p.Node)
	}
	return j
}

// nodeLen is the length, in bytes, of a node's short name in an extra that lists nodes.
const nodeLen = 8

// noteNode adds a node to those that an extra of a job lists; false: the job has no room for it.
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

// extra is an extra that is to be set, or with a nil value removed.
type extra struct {
	tag   store.Tag
	value []byte
}

// setExtras is setExtra for several extras, of which each is set where there is room for it beside those before. The values may be the job's
// own memory.
func (n *Node) setExtras(j *store.Job, changes ...extra) *store.Job {
	return n.moved(j, n.store.Rewrite(j, j.Body(), n.extrasWith(j, changes)))
}

// extrasWith makes a job's extras with changes, as setExtras does. They are scratch memory.
func (n *Node) extrasWith(j *store.Job, changes []extra) []byte {
	all, changed := n.scratch.extras[:0], store.Tags(0)
	for _, c := range changes {
		changed |= 1 << c.tag
	}
	for rest := j.Extras(); len(rest) > 0; {
		tag, value, more := store.NextExtra(rest)
		if rest = more; !changed.Has(tag) {
			all = store.AppendExtra(all, tag, value)
		}
	}
	for _, c := range changes {
		if with := store.ExtraSize(c.value); c.value != nil && len(all)+with <= store.MaxExtras {
			all = store.AppendExtra(all, c.tag, c.value)
		}
	}
	n.scratch.extras = all
	return all
}

// setExtra sets one of a job's extras. The job may move, as in addHolder. False: the
// job has no room for it.
func (n *Node) setExtra(j *store.Job, tag store.Tag, value []byte) (*store.Job, bool) {
	k, ok := n.store.SetExtra(j, tag, value)
	return n.moved(j, k), ok
}
