package engine

import (
	"fmt"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// JSCAN with MESH: the jobs of one node after the other, each at the node that counts it (counts.go).

// MeshJob is a job of such a page.
type MeshJob struct {
	ID    store.ID
	Queue []byte
	State uint8 // StateDelayed, too
	Node  wire.NodeID
}

// JobFilter says which jobs are listed.
type JobFilter struct {
	Queue   []byte
	ByQueue bool  // only those of Queue
	States  uint8 // a bit for each state; 0: all
}

// AskJobs asks the mesh for the next jobs of a scan, about count of them, at most [MaxMeshPage]. See askMesh.
func (n *Node) AskJobs(cursor uint64, count int, f JobFilter, timeout int64) (p Pending, now *MeshAnswer) {
	q := n.newQuestion(timeout)
	cursor = n.choosePage(q, cursor)
	var to []*Peer
	if p := n.mesh.ByName(q.page); p != nil && n.canAsk(p, wire.AskJobs) {
		to = []*Peer{p}
	} else if q.page == n.self.Node() {
		jobs, next := n.jobPage(cursor, count, f)
		for _, j := range jobs {
			q.got.Jobs = append(q.got.Jobs, MeshJob{j.ID, slices.Clone(j.Queue.NameBytes()), n.listedState(j), n.self})
		}
		q.turnPage(next)
	}
	m := &wire.Message{Kind: wire.AskJobs, Count: uint32(count), Round: cursor, Queue: f.Queue, Members: uint64(f.States)}
	if f.ByQueue {
		m.Flags = wire.OneQueue
	}
	return n.askMesh(q, m, wire.Jobs, to)
}

// listedState is a job's state in a list of the mesh.
func (n *Node) listedState(j *store.Job) uint8 {
	if j.Reason() == store.Delayed {
		return StateDelayed
	}
	return n.StateOf(j)
}

// jobPage lists jobs that this node counts, from a cursor on, until there are about count of them.
func (n *Node) jobPage(cursor uint64, count int, f JobFilter) (jobs []*store.Job, next uint64) {
	return nextPage(n, cursor, count, n.store.ScanJobs, func(j *store.Job) *store.Queue { return j.Queue }, func(j *store.Job) bool {
		counts := n.countsWaiting(j) || j.Place == store.InWorking || j.State == store.StateWaitRepl && n.pendingAddOf(&j.ID) != nil ||
			f.States>>StateDone&1 != 0 && j.Kept() && n.CountsHere(j) // only if they are asked for: a former release doesn't know them
		return counts && (f.States == 0 || f.States>>n.listedState(j)&1 != 0) && (!f.ByQueue || string(j.Queue.NameBytes()) == string(f.Queue))
	})
}

// onAskJobs answers with a page of this node's jobs. Each has its ID, its state, and the varint length of its queue's name before the name.
func (n *Node) onAskJobs(p *Peer, m *wire.Message) {
	jobs, next := n.jobPage(m.Round, int(m.Count), JobFilter{m.Queue, m.Flags&wire.OneQueue != 0, uint8(m.Members)})
	var b []byte
	for _, j := range jobs {
		b = append(append(b, j.ID[:]...), n.listedState(j))
		b = appendName(b, j.Queue.NameBytes())
	}
	n.send(p, &wire.Message{Kind: wire.Jobs, Span: m.Span, Queue: b, Round: next})
}

// takeJobs takes a page of a node's jobs.
func (q *question) takeJobs(p *Peer, m *wire.Message) error {
	b := m.Queue
	for len(b) > 0 {
		if len(b) <= idBytes || b[idBytes] >= states || len(q.got.Jobs) == namesMost {
			return fmt.Errorf("%w: a list of jobs is cut off, or too long, at byte %d of %d", wire.ErrMessage, len(m.Queue)-len(b), len(m.Queue))
		}
		j := MeshJob{ID: store.ID(b), State: b[idBytes], Node: p.ID}
		name, rest, err := readName(b[idBytes+1:])
		if err != nil {
			return err
		}
		j.Queue, b = slices.Clone(name), rest
		q.got.Jobs = append(q.got.Jobs, j)
	}
	q.turnPage(m.Round)
	return nil
}
