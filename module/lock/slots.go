package lock

import (
	"slices"

	"jobmesh/module/store"
)

// Locks that several may hold at a time (LIMIT n). Such a lock has n slots. Each slot is a lock by itself, with votes and tokens of its own
// ([store.AppendSlotName]). So no slot has two holders, and the lock never has more than n. Holders need not agree on n: each takes a slot below
// its own n.
//
// An acquisition asks for one slot after the other, and takes back the votes for one before it asks for the next. It begins with the slots that look
// free to this node. Where none does, a few are asked for all the same: this node may have missed that they are free.

// MaxLimit is how many may hold a lock at a time at most (LIMIT).
const MaxLimit = 256

const (
	slotProbes = 4    // slots that look taken, and are asked for all the same
	slotsAnew  = 4    // slots that are asked for at most for a job that is about to run
	slotLook   = 4096 // slots that are looked at in one go
)

// slotSearch is what an acquisition knows of the slots of its lock.
type slotSearch struct {
	base   []byte // the lock's own name
	most   int    // how many slots it may take one of
	first  int    // where to begin
	slot   int    // the one that is asked for
	tried  []int  // those that were refused since the acquisition began, or paused
	probes int    // how many of these looked taken
}

// lineName is the name by which those wait that want a lock or one of its slots.
func (c *Acquisition) lineName() []byte {
	if c.slots != nil {
		return c.slots.base
	}
	return c.name
}

// limitTo makes an acquisition ask for any of so many slots. It begins with the first one that looks free from first on.
func (c *Acquisition) limitTo(slots, first int) {
	if slots > 1 {
		c.slots = &slotSearch{base: c.name, most: slots, first: first % slots}
	}
}

// firstSlot is where an acquisition for an owner begins to look. Different nodes begin at different slots, so that they rarely ask for the same one
// at a time.
func (n *Node) firstSlot() int {
	if n.mesh.Alone() {
		return 0
	}
	return int(uint64(n.self.Node()) >> 1 & (store.MaxSlots - 1))
}

// slotOf is the slot that the holder has, as far as this node knows; -1: none. A job that is about to run, or was put off, takes over none.
func (n *Node) slotOf(c *Acquisition) int {
	if c.Job != (store.ID{}) {
		return -1
	}
	for slot := range c.slots.most {
		n.scratch.slot = store.AppendSlotName(n.scratch.slot[:0], slot, c.slots.base)
		if l := n.Live(n.scratch.slot); l != nil && c.has(l) {
			return slot
		}
	}
	return -1
}

// hasAlready says whether the holder has the lock already, or a slot of it, so that the acquisition renews that.
func (n *Node) hasAlready(c *Acquisition) bool {
	if c.slots != nil {
		return n.slotOf(c) >= 0
	}
	l := n.Live(c.name)
	return l != nil && c.has(l)
}

// nextSlot chooses the slot that is asked for next. False: none is left to ask for.
func (n *Node) nextSlot(c *Acquisition) bool {
	s := c.slots
	if c.retries > 0 || s == nil {
		return true // whether the holder's job is gone is being found out
	}
	slot := n.slotOf(c)
	if slot < 0 || slices.Contains(s.tried, slot) {
		slot = n.findSlot(c)
	}
	if slot < 0 {
		return false
	}
	if slot != s.slot {
		n.askForSlot(c, slot)
	}
	return true
}

// findSlot finds a slot that looks free, or one that is to be asked for all the same; -1: there is none.
func (n *Node) findSlot(c *Acquisition) int {
	s, taken := c.slots, -1
	if c.anew && len(s.tried) >= slotsAnew {
		return -1
	}
	for k := range min(s.most, slotLook) {
		slot := (s.first + k) % s.most
		if slices.Contains(s.tried, slot) {
			continue
		}
		n.scratch.slot = store.AppendSlotName(n.scratch.slot[:0], slot, s.base)
		if n.Live(n.scratch.slot) == nil {
			return slot
		}
		if taken < 0 {
			taken = slot
		}
	}
	if taken < 0 || c.anew || n.mesh.Alone() || s.probes >= slotProbes {
		return -1
	}
	s.probes++
	return taken
}

// askForSlot makes an acquisition ask for a slot. What it knows of another one doesn't count any more.
func (n *Node) askForSlot(c *Acquisition, slot int) {
	indexed := c.pos >= 0 && c.Job != (store.ID{})
	if indexed {
		n.byName.remove(string(c.name), c, ofName)
	}
	c.name, c.slots.slot = store.AppendSlotName(nil, slot, c.slots.base), slot
	c.proposal, c.first, c.least, c.fresh, c.gone = 0, 0, 0, false, store.ID{}
	if indexed {
		n.byName.add(string(c.name), c, ofName)
	}
}

// elsewhere asks for another slot after a round for one was lost. False: there is none to ask for.
func (n *Node) elsewhere(c *Acquisition) bool {
	if c.slots == nil || c.kind != take || c.retries > 0 {
		return false
	}
	c.slots.tried = append(c.slots.tried, c.slots.slot)
	slot := n.findSlot(c)
	if slot < 0 {
		return false
	}
	delete(n.byRound, c.round)
	n.setRound(c, 0)
	n.askForSlot(c, slot)
	n.beginRound(c)
	return true
}

// freeSlot is a slot that is free at a node that is alone, with its name; if there is none, the lowest one.
func (n *Node) freeSlot(w ForJob) (name []byte, slot int) {
	if w.Slots <= 1 {
		return w.Name, 0
	}
	for k := range min(w.Slots, slotLook) {
		slot = (w.First + k) % w.Slots
		if name = store.AppendSlotName(nil, slot, w.Name); n.Live(name) == nil {
			return name, slot
		}
	}
	return w.Name, 0
}

// taken is the conflict of an acquisition that finds no slot to ask for: it names the holder of the lowest slot. Nobody may have the slots that look
// taken: now and then one of them is checked.
func (n *Node) taken(c *Acquisition) Result {
	n.checkSlot(c)
	for slot := range min(c.slots.most, slotLook) {
		n.scratch.slot = store.AppendSlotName(n.scratch.slot[:0], slot, c.slots.base)
		if l := n.Live(n.scratch.slot); l != nil {
			return Result{Kind: Conflict, Job: l.Job, Owner: slices.Clone(l.Owner())}
		}
	}
	return Result{Kind: Conflict}
}

// checkSlot is CheckOrphan for one of the slots in an acquisition's way, at most once a second.
func (n *Node) checkSlot(c *Acquisition) {
	now := n.host.Monotonic()
	if now < n.slotLook {
		return
	}
	n.slotLook = now + verifyEveryMS
	slot := int(n.host.Below(int64(c.slots.most)))
	n.scratch.slot = store.AppendSlotName(n.scratch.slot[:0], slot, c.slots.base)
	if l := n.Live(n.scratch.slot); l != nil {
		n.CheckOrphan(l)
	}
}

// watchSlots makes Tick see the ends of the slots for which an acquisition waits.
func (n *Node) watchSlots(c *Acquisition) {
	for slot := range min(c.slots.most, slotLook) {
		n.scratch.slot = store.AppendSlotName(n.scratch.slot[:0], slot, c.slots.base)
		if l := n.Live(n.scratch.slot); l != nil {
			n.Watch(l)
		}
	}
}
