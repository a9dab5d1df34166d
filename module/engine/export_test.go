package engine

import "jobmesh/module/store"

// LockLost says whether a job has lost a lock, and no client was told.
func (n *Node) LockLost(id *store.ID) bool { return n.lockLost(id) }

// FreedVotes counts the votes that were taken back while the node learns, and that it remembers.
func (n *Node) FreedVotes() int { return n.locks.Sizes().Freed }

// MembersSum is the sum that a claim carries for the nodes that it counts, here of the nodes that
// this node counts.
func (n *Node) MembersSum() uint64 { return n.mesh.Sum() }

// Asked counts the jobs about which other nodes are asked what became of them.
func (n *Node) Asked() int { return n.deps.asked.Len() }

// LockCursor is the position of the pass that looks for locks that are over.
func (n *Node) LockCursor() uint64 { return n.locks.Sizes().Cursor }

// Doubted counts what the node remembers of locks whose jobs may be gone: questions, and jobs that
// have lost locks.
func (n *Node) Doubted() [2]int { return [2]int{n.locks.Sizes().Asked, n.lost.Len()} }

// Delegated counts the jobs that this node has delegated to other nodes.
func (n *Node) Delegated() int { return n.delegated.Len() }

// Disputed counts the locks of which others told different holders.
func (n *Node) Disputed() int { return n.locks.Sizes().Disputed }

// SetLazy keeps the node from asking others what the rules have missed, so that a script shows what each rule does by
// itself. No setting of the node does that: the questions come again and again, and put everything right.
func (n *Node) SetLazy(yes bool) { n.lazy, n.locks.Lazy = yes, yes }

// CronValue is what an entry says of a recurring job, and ReadCron reads it.
func CronValue(c *Cron) []byte { return c.value() }

func ReadCron(b []byte) (Cron, error) { return parseCron(b) }

// MarkOf is the mark of a recurring job as a message of marks has it, and SlotName the name of a slot's lock.
func MarkOf(n *Node, name string) []byte {
	return n.crons.entries[name].mark.append(appendText(nil, []byte(name)))
}

// MarkAt is MarkOf for another slot.
func MarkAt(n *Node, name string, slot int64) []byte {
	m := n.crons.entries[name].mark
	m.First, m.Slot = n.crons.entries[name].first, slot
	return m.append(appendText(nil, []byte(name)))
}

// SetMark serves a slot.
func SetMark(n *Node, name string, slot int64) {
	c := n.crons.entries[name]
	c.turn = slot
	n.setMark(c, SlotMade, store.ID{})
}

// CountMarks counts the marks of a message.
func CountMarks(b []byte) (count int) {
	for r := (cronReader{b: b}); len(r.b) > 0 && !r.bad; count++ {
		r.text()
		r.mark()
	}
	return count
}

func SlotName(n *Node, name string, slot int64) []byte {
	c := *n.crons.entries[name]
	c.turn = slot
	return n.slotName(&c)
}

// SetPolicies replaces what New was given.
func (n *Node) SetPolicies(p *Policies) { n.policies = p }

// ReadEnding reads a TagEnd.
var ReadEnding = readEnding

// ReadEnds reads the ends in an Ended.
func ReadEnds(b []byte) (ends []JobEnd) {
	for len(b) > 0 {
		var e JobEnd
		e, b, _ = readEnd(b)
		ends = append(ends, e)
	}
	return ends
}

// HeldByWaits returns how many bytes of results are held for clients that wait.
func (n *Node) HeldByWaits() int { return n.jobWaits.held }
