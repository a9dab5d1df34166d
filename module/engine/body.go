package engine

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// The later one of two bodies of a job counts. Each change of a body (ONCONFLICT replace and debounce, NACK with BODY) is counted in an extra of the
// job, its version. The greatest version counts everywhere, so a body that was replaced doesn't come back, whichever node the job comes
// back at. A node that missed a change learns it from whatever carries the job (learnBody). A message that says where the job is, or is
// to be queued, carries no body: it says the version (Whereabouts), and the two nodes compare theirs (compareBodies). A job whose body was
// never replaced has no version, and one that nobody else has needs none.

// version is how often a job's body was changed, and where it was last. The zero version is that of the body with which the job was added.
type version struct {
	count uint32
	node  wire.Node // decides between two changes that were made at once
}

// A TagBody has the count, 4 bytes, and the node, 8 bytes.
const versionLen = 4 + 8

// versionOf reads the version of a body from its job's extras.
func versionOf(extras []byte) (v version) {
	if e := store.FindExtra(extras, store.TagBody); len(e) == versionLen {
		v = version{binary.LittleEndian.Uint32(e), wire.Node(binary.LittleEndian.Uint64(e[4:]))}
	}
	return v
}

// bodyVersion is the version of a job's body.
func bodyVersion(j *store.Job) (v version) {
	if j.Parts == 0 {
		return v
	}
	return versionOf(j.Extras())
}

func (v version) after(than version) bool {
	return cmp.Or(cmp.Compare(v.count, than.count), cmp.Compare(v.node, than.node)) > 0
}

// next is the version of a body that a node gives the job now.
func (v version) next(node wire.Node) version {
	return version{v.count + min(1, math.MaxUint32-v.count), node}
}

// setVersion writes down the version of a job's body. A job that has no room for it goes without. The job may move.
func (n *Node) setVersion(j *store.Job, v version) *store.Job {
	n.replaced = true
	e := binary.LittleEndian.AppendUint32(nil, v.count)
	j, _ = n.setExtra(j, store.TagBody, binary.LittleEndian.AppendUint64(e, uint64(v.node)))
	return j
}

// countBody counts that this node has given a job another body. The caller logs the job, which may move.
func (n *Node) countBody(j *store.Job) *store.Job {
	v := bodyVersion(j)
	if v == (version{}) && n.isOnlyHere(j) {
		return j // nobody else has its former body
	}
	return n.setVersion(j, v.next(n.self.Node()))
}

// learnBody takes over the body of a copy that another node has sent, if it is the later one. given: it is meant to be the job's body from
// now on, which also counts where neither is later. (A job may have no room for a version. A node of a former release counts nothing: the body
// that it gives a job is taken, and counted in its place.) The job may move.
func (n *Node) learnBody(p *Peer, j *store.Job, m *wire.Message, given bool) *store.Job {
	mine, theirs := bodyVersion(j), versionOf(m.Job.Extras)
	same, former := bytes.Equal(j.Body(), m.Job.Body), !n.mesh.features[p.ID].Bodies
	switch {
	case j.State != store.StateActive && j.State != store.StateQueued || n.dummy(j):
		return j
	case theirs.after(mine):
	case same || !given:
		return j
	case former && (theirs == mine || m.Flags&wire.NewBody != 0 && m.Kind == wire.ReplJob):
		theirs = mine.next(p.Node)
	case theirs != mine:
		return j
	}
	j, ok := n.keepKey(j, m.Job.Body)
	if !ok {
		return j // nobody replaces such a body
	}
	if !same {
		j = n.moved(j, n.store.Rewrite(j, m.Job.Body, j.Extras()))
	}
	if theirs != mine {
		j = n.setVersion(j, theirs)
	}
	if same {
		n.log(LogState, j)
	} else {
		n.logAnew(j)
		n.touch(j.Queue)
	}
	return j
}

// compareBodies is for a node that has said, in extras, which version of a job's body it has. If that is an older one, it is sent this
// node's. If it is a later one, it is told this node's version, and so sends the body.
func (n *Node) compareBodies(p *Peer, j *store.Job, extras []byte) {
	mine, theirs := bodyVersion(j), versionOf(extras)
	if theirs != (version{}) {
		p.says = j.ID
	}
	switch {
	case !n.mesh.features[p.ID].Bodies:
	case mine.after(theirs):
		n.sendBody(j, []*Peer{p}, silentMS)
	case theirs.after(mine):
		n.send(p, n.whereaboutsOf(j))
	}
}

// doubtsBody is for a message that says that a node queues a job, or is to. A node that has a version says that before. One that hasn't may
// have missed that the body was replaced, and is told.
func (n *Node) doubtsBody(p *Peer, j *store.Job) {
	if p.says != j.ID && bodyVersion(j) != (version{}) && n.mesh.features[p.ID].Bodies {
		n.sendWhere(p, j)
	}
}

// noteBody is for a job that was loaded: if its body replaces another, this process doesn't know which holders may lack it. So all are told.
func (n *Node) noteBody(j *store.Job) {
	if bodyVersion(j) == (version{}) {
		return
	}
	n.replaced = true
	for _, p := range n.mesh.All() {
		n.beginVersions(p)
	}
}

// dropBodies forgets which nodes are to be told versions.
func (n *Node) dropBodies() {
	for _, p := range n.mesh.All() {
		p.versions = telling{}
	}
}

// beginVersions begins to tell a node the version of the body of each job that it holds and that this node has, too. That is done each time it is
// connected: it may have missed a body meanwhile, or in the last moment before, or have been started again without the end of its log.
func (n *Node) beginVersions(p *Peer) {
	if p.versions = (telling{open: n.replaced && n.mesh.features[p.ID].Bodies}); p.versions.open {
		n.hurryTick()
	}
}

// tellVersions goes on with that, for one node in a tick, when the node has been sent the bodies that it is known to lack. It asks for others.
func (n *Node) tellVersions() {
	for _, p := range n.mesh.All() {
		t := &p.versions
		if !t.open || !p.Connected || p.bodies.Left() > 0 {
			continue
		}
		for steps, some := copiesSlice, untoldSlice; steps > 0 && some > 0; steps-- {
			n.scratch.jobs = n.scratch.jobs[:0]
			t.at = n.store.ScanJobs(t.at, &n.scratch.jobs)
			for _, j := range n.scratch.jobs {
				if (j.State == store.StateActive || j.State == store.StateQueued) && bodyVersion(j) != (version{}) && j.HeldBy(uint64(p.Node)) {
					n.sendWhere(p, j)
					some--
				}
			}
			if t.at == 0 {
				t.open = false
				break
			}
		}
		n.hurryTick()
		return
	}
}
