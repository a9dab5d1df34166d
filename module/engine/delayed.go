package engine

import (
	"encoding/binary"
	"fmt"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// WIP with DELAYED: the jobs of a queue that this node queues in time, in the order of that time. Package store keeps them so
// (store.DelayedPlace).

// DelayedJob is such a job.
type DelayedJob struct {
	store.DelayedPlace
	Deliveries int         // how often the job was given to a client and came back, as far as its node knows
	Node       wire.NodeID // the node that queues it
}

// Created is when the job was added, unix ms.
func (d *DelayedJob) Created() int64 { return int64(d.CTime / 1_000_000) }

// Delayed lists up to count delayed jobs of a queue behind a place, the first that is due first. more says whether others follow. q may be nil.
func (n *Node) Delayed(q *store.Queue, behind store.DelayedPlace, count int) (list []DelayedJob, more bool) {
	if q == nil {
		return nil, false
	}
	j := q.FirstDelayed(behind)
	for ; j != nil && len(list) < count; j = j.Next {
		list = append(list, DelayedJob{store.DelayedPlaceOf(j), int(j.Nacks) + int(Additional(j)), n.self})
	}
	return list, j != nil
}

// AskDelayed is Delayed for the whole mesh. count is at most [MaxMeshWIP]. See askMesh.
func (n *Node) AskDelayed(name []byte, behind store.DelayedPlace, count int, timeout int64) (p Pending, now *MeshAnswer) {
	q := n.newQuestion(timeout)
	q.count = count
	q.got.takeDelayed(n.Delayed(n.Queue(name), behind, count))
	m := wire.Message{Kind: wire.AskDelayed, Count: uint32(count), Queue: append(appendPlace(nil, &behind), name...)}
	return n.askMesh(q, &m, wire.DelayedJobs, n.mesh.All())
}

// takeDelayed adds the page of one node. Nothing is known of the node's jobs behind a page that more follow.
func (a *MeshAnswer) takeDelayed(list []DelayedJob, more bool) {
	a.Delayed = append(a.Delayed, list...)
	if !more || len(list) == 0 {
		return
	}
	if last := &list[len(list)-1].DelayedPlace; !a.More || last.Compare(&a.known) < 0 {
		a.More, a.known = true, *last
	}
}

// chooseDelayed makes a page of up to count jobs of those of the nodes. If two nodes are to queue a job, it is listed as due at the earlier
// time.
func (a *MeshAnswer) chooseDelayed(count int) {
	jobs := a.Delayed
	slices.SortStableFunc(jobs, func(a, b DelayedJob) int { return a.Compare(&b.DelayedPlace) })
	if a.More {
		jobs = slices.DeleteFunc(jobs, func(j DelayedJob) bool { return j.Compare(&a.known) > 0 })
	}
	seen := map[store.ID]bool{}
	jobs = slices.DeleteFunc(jobs, func(j DelayedJob) bool {
		was := seen[j.ID]
		seen[j.ID] = true
		return was
	})
	if len(jobs) > count {
		jobs, a.More = jobs[:count], true
	}
	a.Delayed = jobs
}

// placeLen is the length of a place in a message: the job's ID, its creation time, and its time, big endian.
const placeLen = idBytes + 16

func appendPlace(b []byte, p *store.DelayedPlace) []byte {
	b = append(b, p.ID[:]...)
	b = binary.BigEndian.AppendUint64(b, p.CTime)
	return binary.BigEndian.AppendUint64(b, uint64(p.At))
}

// readPlace reads a place from the beginning of b, and returns what follows it.
func readPlace(b []byte) (p store.DelayedPlace, rest []byte, err error) {
	if len(b) < placeLen {
		return p, nil, fmt.Errorf("%w: a place among delayed jobs has %d bytes, and not %d", wire.ErrMessage, len(b), placeLen)
	}
	b = b[copy(p.ID[:], b):]
	p.CTime, p.At = binary.BigEndian.Uint64(b), int64(binary.BigEndian.Uint64(b[8:]))
	if p.At < 0 {
		return p, nil, fmt.Errorf("%w: a delayed job's time is %d ms", wire.ErrMessage, p.At)
	}
	return p, b[16:], nil
}

// onAskDelayed answers with a page of this node's delayed jobs: 1 if more follow, else 0; then each job's place, and its deliveries (varint).
// Times are as this node's clock has them, so a place stays the same in each answer.
func (n *Node) onAskDelayed(p *Peer, m *wire.Message) error {
	behind, name, err := readPlace(m.Queue)
	if err != nil {
		return err
	}
	list, more := n.Delayed(n.Queue(name), behind, int(min(m.Count, MaxMeshWIP)))
	b := []byte{0}
	if more {
		b[0] = 1
	}
	for i := range list {
		b = binary.AppendUvarint(appendPlace(b, &list[i].DelayedPlace), uint64(list[i].Deliveries))
	}
	n.send(p, &wire.Message{Kind: wire.DelayedJobs, Span: m.Span, Queue: b})
	return nil
}

// readDelayed reads such an answer.
func readDelayed(b []byte) (list []DelayedJob, more bool, err error) {
	if len(b) == 0 || b[0] > 1 {
		return nil, false, fmt.Errorf("%w: a list of delayed jobs has no beginning", wire.ErrMessage)
	}
	more, b = b[0] == 1, b[1:]
	for len(b) > 0 {
		var d DelayedJob
		if d.DelayedPlace, b, err = readPlace(b); err != nil {
			return nil, false, err
		}
		count, used := binary.Uvarint(b)
		if used <= 0 || count > maxReturns || len(list) == MaxMeshWIP {
			return nil, false, fmt.Errorf("%w: a list of delayed jobs is cut off, or too long, at job %d", wire.ErrMessage, len(list))
		}
		d.Deliveries, b = int(count), b[used:]
		list = append(list, d)
	}
	return list, more, nil
}

// maxReturns is how often a job can have come back, as far as it is counted: NACKs and additional deliveries.
const maxReturns = 2 * (1<<16 - 1)

// readDelayedFrom reads the answer of a node.
func (q *question) readDelayedFrom(p *Peer, m *wire.Message) error {
	list, more, err := readDelayed(m.Queue)
	if err != nil {
		return err
	}
	for i := range list {
		list[i].Node = p.ID
	}
	q.got.takeDelayed(list, more)
	return nil
}
