package engine

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Counts of queues over the mesh: QLEN, QSTAT and QSCAN with MESH. The sum over the nodes has each job once:
//
//   - a job that waits, or that a client has, is counted by the node where it does;
//   - a delayed job is counted by the node that will queue it;
//   - a deferred or blocked job, of which each holder has the same copy, is counted by the node where it was added, or
//     by another holder in its place ([Node.CountsHere]).
//
// All these are counters of package store, which are kept up, so a question costs the same however many jobs there are.

// Limits of QSCAN and JSCAN … MESH.
const (
	MaxMeshPage = 1_000           // queues, or jobs, in a page
	pageSteps   = 10              // buckets that a page visits for each queue that it is to have
	pageBytes   = 1 << 16         // of names, after which a page ends
	namesMost   = 2 * MaxMeshPage // in a message: the last bucket of a page may have several queues
)

// Counts are what one node counts of a queue, or what several do.
type Counts struct {
	Len, InProgress, Overdue, HeldBack uint64
	Delayed, Deferred, Blocked         uint64 // jobs that don't wait yet, and that this node counts
	Waiters                            uint64 // clients that wait
	JobsIn, JobsOut                    uint64
	Age, Idle                          uint64 // s, since the queue was made and used
	Pause                              uint64 // PauseIn, PauseOut
	DeferredCopies, BlockedCopies      uint64 // at this node, whoever counts them; of a mesh: the most at one node
	Oldest                             uint64 // s, since the first of the jobs that can be fetched was added
	Dead                               uint64 // jobs that wait in the queue's dead-letter queue
	Kept                               uint64 // jobs whose outcome is kept, at this node; of a mesh: the most at one node
	Letters                            uint64 // dead letters that wait in the queue
}

const countFields = 19

// fields are the counts in the order that Counts, the message, has them.
func (c *Counts) fields() [countFields]*uint64 {
	return [...]*uint64{
		&c.Len, &c.InProgress, &c.Overdue, &c.HeldBack, &c.Delayed, &c.Deferred, &c.Blocked,
		&c.Waiters, &c.JobsIn, &c.JobsOut, &c.Age, &c.Idle, &c.Pause, &c.DeferredCopies, &c.BlockedCopies, &c.Oldest, &c.Dead, &c.Kept, &c.Letters,
	}
}

// NodeCounts are one node's counts of a queue.
type NodeCounts struct {
	Node wire.NodeID
	Counts
}

// MeshCounts are the counts of a queue over the mesh: sums, the greatest ages, the least idle time, and what is paused at
// any node.
type MeshCounts struct {
	Name  []byte
	Known bool // by any node
	Counts
	Nodes []NodeCounts // QLEN, QSTAT: the nodes that know the queue, in the order of their IDs
}

// add adds a node's counts.
func (c *MeshCounts) add(more *Counts) {
	was, from := c.Counts, more.fields()
	for i, to := range c.fields() {
		*to += *from[i]
	}
	c.Age, c.Oldest, c.Pause = max(was.Age, more.Age), max(was.Oldest, more.Oldest), was.Pause|more.Pause
	if c.Idle = more.Idle; c.Known {
		c.Idle = min(was.Idle, more.Idle)
	}
	c.DeferredCopies, c.BlockedCopies = max(was.DeferredCopies, more.DeferredCopies), max(was.BlockedCopies, more.BlockedCopies)
	c.Kept = max(was.Kept, more.Kept)
	c.Known = true
}

// conclude is called when all nodes' counts are added. The node that counts a deferred or blocked job may be away, or may
// have lost its copy. But there are as many such jobs, at least, as one node has copies of.
func (c *MeshCounts) conclude() {
	c.Deferred, c.Blocked = max(c.Deferred, c.DeferredCopies), max(c.Blocked, c.BlockedCopies)
}

// Counts returns what this node counts of a queue. known is false if clients see no such queue here.
func (n *Node) Counts(name []byte) (c Counts, known bool) {
	clients, since, last := n.Waiting(name)
	q := n.Queue(name)
	if q != nil && !n.Visible(q) {
		q = nil
	}
	var dead uint64
	if d := n.Queue(n.deadQueueFor(name)); d != nil {
		if dead = d.Waiting(); dead > 0 && q == nil && clients == 0 {
			since, last = d.Created, d.ATime
		}
	}
	if q == nil && clients == 0 && dead == 0 {
		return c, false
	}
	if q != nil {
		since, last = q.Created, q.ATime
		c = Counts{
			Len: q.Waiting(), InProgress: q.Working.Len, Overdue: uint64(q.Overdue), HeldBack: q.HeldBack,
			Delayed: q.Counted(store.Delayed), Deferred: q.CountedHere(store.Deferred), Blocked: q.CountedHere(store.Blocked),
			JobsIn: q.JobsIn, JobsOut: q.JobsOut, Pause: uint64(q.Pause & (PauseIn | PauseOut)),
			DeferredCopies: q.Counted(store.Deferred), BlockedCopies: q.Counted(store.Blocked), Kept: q.Counted(store.Kept), Letters: q.Dead(),
		}
		if j := q.Oldest(); j != nil {
			c.Oldest = uint64(max(0, n.now-int64(j.CTime/1_000_000)) / 1000)
		}
	}
	c.Waiters, c.Dead = uint64(clients), dead
	c.Age, c.Idle = uint64(max(0, n.now-since)/1000), uint64(max(0, n.now-last)/1000)
	return c, true
}

// CountsHere says whether this node counts a deferred or blocked job, of which other nodes have the same copy. The node
// where the job was added does, if it has a copy. Otherwise the first holder does, by short name. Holders that this node
// doesn't know are left out: they were forgotten, and this node may be their heir.
//
// The rule leaves out whether the others are connected. So the two sides of a partition don't both count a job, and a
// connection that comes or goes changes no count. The price is that the sum lacks such jobs while the node that counts
// them is away; see [MeshCounts.conclude].
func (n *Node) CountsHere(j *store.Job) bool {
	if n.isOwn(j) {
		return true
	}
	for i := range j.Holders() {
		h, _ := j.Holder(i)
		if p := n.mesh.ByName(wire.Node(h)); p != nil && (addedBy(j, &p.ID) || p.Node < n.self.Node()) {
			return false
		}
	}
	return true
}

// countHere marks a job exactly if it is deferred or blocked and this node counts it. Everything that changes what
// CountsHere says of such a job calls countHere; [Node.countAgain] does so for nodes that come and go.
func (n *Node) countHere(j *store.Job) {
	if j.Reason() >= store.Deferred {
		n.store.CountHere(j, n.CountsHere(j))
	}
}

// countWalk is a walk through all jobs that calls countHere for each.
type countWalk struct {
	open bool
	at   uint64 // the cursor
}

// countSlice is how many buckets of jobs a tick visits for it.
const countSlice = 400

// countAgain is called when a node has become known, or was forgotten: some deferred and blocked jobs are counted by
// another node than before. That is rare, so a walk through the jobs may find them, in the next ticks.
func (n *Node) countAgain() {
	if n.store.Counted(store.Deferred)+n.store.Counted(store.Blocked) > 0 || len(n.dormant) > 0 {
		n.countWalk = countWalk{open: true}
		n.hurryTick()
	}
}

// Recounting says whether such a walk isn't over yet.
func (n *Node) Recounting() bool { return n.countWalk.open }

// tickCountWalk goes on with countAgain.
func (n *Node) tickCountWalk() {
	if !n.countWalk.open {
		return
	}
	for range countSlice {
		n.scratch.jobs = n.scratch.jobs[:0]
		n.countWalk.at = n.store.ScanAllJobs(n.countWalk.at, &n.scratch.jobs)
		for _, j := range n.scratch.jobs {
			n.countHere(j)
		}
		if n.countWalk.at == 0 {
			n.countWalk.open = false
			return
		}
	}
	n.hurryTick()
}

// AskCounts asks the mesh for the counts of a queue, for QLEN and QSTAT. See askMesh.
func (n *Node) AskCounts(name []byte, timeout int64) (p Pending, now *MeshAnswer) {
	q := n.newQuestion(timeout)
	q.single = true
	q.got.Queues = []MeshCounts{{Name: slices.Clone(name)}}
	return n.askMesh(q, n.countQueues(q), wire.Counts, n.mesh.All())
}

// countQueues adds this node's counts, and makes the question to the others.
func (n *Node) countQueues(q *question) *wire.Message {
	var names []byte
	for i := range q.got.Queues {
		c := &q.got.Queues[i]
		if own, known := n.Counts(c.Name); known {
			c.note(q, n.self, &own)
		}
		names = appendName(names, c.Name)
	}
	return &wire.Message{Kind: wire.AskCounts, Queue: names}
}

// note adds a node's counts to those of the queue.
func (c *MeshCounts) note(q *question, node wire.NodeID, counts *Counts) {
	c.add(counts)
	if q.single {
		at, _ := slices.BinarySearchFunc(c.Nodes, node, func(c NodeCounts, id wire.NodeID) int { return slices.Compare(c.Node[:], id[:]) })
		c.Nodes = slices.Insert(c.Nodes, at, NodeCounts{node, *counts})
	}
}

// onAskCounts answers with this node's counts.
func (n *Node) onAskCounts(p *Peer, m *wire.Message) error {
	names, err := readNames(m.Queue)
	if err != nil {
		return err
	}
	var b []byte
	for _, name := range names {
		c, known := n.Counts(name)
		b = c.append(b, known)
	}
	n.send(p, &wire.Message{Kind: wire.Counts, Span: m.Span, Queue: b})
	return nil
}

// append appends the counts to a list: how many numbers there are, and the numbers. A queue that isn't known has none.
func (c *Counts) append(b []byte, known bool) []byte {
	if !known {
		return append(b, 0)
	}
	b = append(b, countFields)
	for _, v := range c.fields() {
		b = binary.AppendUvarint(b, *v)
	}
	return b
}

// takeCounts adds a node's counts of the queues that were asked for.
func (q *question) takeCounts(node wire.NodeID, b []byte) error {
	list, err := readCounts(b, len(q.got.Queues))
	if err != nil {
		return err
	}
	for i := range list {
		if c := list[i]; c != nil {
			q.got.Queues[i].note(q, node, c)
		}
	}
	return nil
}

// maxCount is the greatest number in a message. It leaves room for sums.
const maxCount = 1 << 48

// readCounts reads the list in a Counts message, which has so many queues. nil stands for a queue that isn't known there.
func readCounts(b []byte, queues int) (list []*Counts, err error) {
	whole := len(b)
	number := func(most uint64) (v uint64) {
		v, used := binary.Uvarint(b)
		if used <= 0 || v > most {
			err = fmt.Errorf("%w: a list of counts is cut off, or has a number out of range, at byte %d of %d", wire.ErrMessage, whole-len(b), whole)
			return 0
		}
		b = b[used:]
		return v
	}
	for range queues {
		n := number(uint64(len(b)))
		if err != nil {
			return nil, err
		}
		if n == 0 {
			list = append(list, nil)
			continue
		}
		c := &Counts{}
		fields := c.fields()
		for i := range n {
			if v := number(1<<64 - 1); i < countFields {
				*fields[i] = min(v, maxCount)
			}
			if err != nil {
				return nil, err
			}
		}
		c.Pause &= uint64(PauseIn | PauseOut)
		list = append(list, c)
	}
	if err == nil && len(b) > 0 {
		err = fmt.Errorf("%w: %d bytes follow a list of counts", wire.ErrMessage, len(b))
	}
	return list, err
}

// --- names ---------------------------------------------------------------------

// A scan over the mesh lists the queues of one node after the other, in the order of their IDs. The upper half of its
// cursor is that of the node's table, whose lower half is 0 below 2^32 queues ([table.Buckets.Scan]). The lower half is
// the beginning of the node's ID.
const cursorNode = 1<<32 - 1

// nodeOf is how a cursor names a node.
func nodeOf(node wire.Node) uint64 { return uint64(node) >> 32 }

// AskQueues asks the mesh for the next queues of a scan, and for their counts. It asks for about count of them, at most
// [MaxMeshPage]. See askMesh.
func (n *Node) AskQueues(cursor uint64, count int, timeout int64) (p Pending, now *MeshAnswer) {
	q := n.newQuestion(timeout)
	cursor = n.choosePage(q, cursor)
	if p := n.mesh.ByName(q.page); p != nil && n.canAsk(p, wire.AskQueues) {
		return n.askMesh(q, &wire.Message{Kind: wire.AskQueues, Count: uint32(count), Round: cursor}, wire.Queues, []*Peer{p})
	}
	if q.page == n.self.Node() {
		q.list(n.page(cursor, count))
	}
	return n.askMesh(q, n.countQueues(q), wire.Counts, n.mesh.All())
}

// choosePage finds the node that a cursor is about, and returns the cursor of that node's table.
func (n *Node) choosePage(q *question, cursor uint64) uint64 {
	nodes := append(n.mesh.Nodes(), n.self.Node())
	slices.SortFunc(nodes, func(a, b wire.Node) int { return cmp.Compare(nodeOf(a), nodeOf(b)) })
	for i, node := range nodes {
		if nodeOf(node) < cursor&cursorNode {
			continue
		}
		q.page = node
		if i+1 < len(nodes) {
			q.got.Next = nodeOf(nodes[i+1])
		}
		break
	}
	if nodeOf(q.page) != cursor&cursorNode {
		cursor = 0 // the scan begins, or the node of the cursor was forgotten
	}
	return cursor &^ cursorNode
}

// list notes a page of a node's queues, and where that node's next page begins; 0: it has none.
func (q *question) list(names [][]byte, next uint64) {
	for _, name := range names {
		q.got.Queues = append(q.got.Queues, MeshCounts{Name: slices.Clone(name)})
	}
	q.turnPage(next)
}

// turnPage notes where the next page of the same node begins; 0: it has none.
func (q *question) turnPage(next uint64) {
	if next != 0 {
		q.got.Next = next&^cursorNode | nodeOf(q.page)
	}
}

// page lists names of this node's queues from a cursor on, until there are about count of them.
func (n *Node) page(cursor uint64, count int) (names [][]byte, next uint64) {
	queues, next := nextPage(n, cursor, count, n.store.ScanQueues, func(q *store.Queue) *store.Queue { return q }, n.Visible)
	for _, q := range queues {
		names = append(names, q.NameBytes())
	}
	return names, next
}

// nextPage lists elements of a table from a cursor on, until there are about count that are wanted, or the names of their queues are long. A
// queue whose key is gone for clients isn't listed, nor are its jobs.
func nextPage[T any](n *Node, cursor uint64, count int, scan func(uint64, *[]T) uint64, queue func(T) *store.Queue, wanted func(T) bool) (list []T, next uint64) {
	count = min(count, MaxMeshPage)
	next = cursor
	var found []T
	bytes := 0
	for step := 0; step < count*pageSteps && len(list) < count && bytes < pageBytes; step++ {
		found = found[:0]
		next = scan(next, &found)
		for _, x := range found {
			if q := queue(x); wanted(x) && n.Lives(q) {
				list = append(list, x)
				bytes += len(q.NameBytes())
			}
		}
		if next == 0 {
			break
		}
	}
	return list, next
}

// onAskQueues answers with a page of the names of this node's queues.
func (n *Node) onAskQueues(p *Peer, m *wire.Message) {
	names, next := n.page(m.Round, int(m.Count))
	var b []byte
	for _, name := range names {
		b = appendName(b, name)
	}
	n.send(p, &wire.Message{Kind: wire.Queues, Span: m.Span, Queue: b, Round: next})
}

// takePage takes a page of a node's queues.
func (n *Node) takePage(q *question, p *Peer, m *wire.Message) error {
	names, err := readNames(m.Queue)
	if err == nil {
		q.list(names, m.Round)
	}
	return err
}

// askPage asks all nodes for the counts of a page's queues.
func (n *Node) askPage(q *question) {
	n.sendQuestion(q, n.countQueues(q), wire.Counts, n.mesh.All())
}

func appendName(b, name []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(name)))
	return append(b, name...)
}

// readNames reads a list of queues' names, which point into it.
func readNames(b []byte) (names [][]byte, err error) {
	whole := len(b)
	for len(b) > 0 {
		name, rest, err := readName(b)
		if err != nil || len(names) == namesMost {
			return nil, fmt.Errorf("%w: a list of names is cut off, or too long, at byte %d of %d", wire.ErrMessage, whole-len(b), whole)
		}
		names, b = append(names, name), rest
	}
	return names, nil
}

// readName reads one name, and returns what follows it.
func readName(b []byte) (name, rest []byte, err error) {
	size, used := binary.Uvarint(b)
	if used <= 0 || size > uint64(len(b)-used) {
		return nil, nil, fmt.Errorf("%w: a name is cut off", wire.ErrMessage)
	}
	end := used + int(size)
	return b[used:end], b[end:], nil
}
