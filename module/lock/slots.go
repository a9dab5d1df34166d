package lock

import (
	"iter"
	"slices"

	"jobmesh/module/store"
)

// Locks that several may hold at a time (LIMIT n). Such a lock has n slots. Each slot is a lock by itself, with votes and tokens of its own
// ([store.AppendSlotName]). So no slot has two holders, and the lock never has more than n. Holders need not agree on n: each takes a slot below
// its own n.
//
// An acquisition asks for one slot after the other, and takes back the votes for one before it asks for the next. It begins with the slots that look
// free to this node. Where none does, a few are asked for all the same: this node may have missed that they are free.

const (
	slotProbes = 4 // slots that look taken, and are asked for all the same
	slotsAnew  = 4 // slots that are asked for at most for a job that is about to run

	// SlotLook is how many slots are looked at in one go.
	SlotLook = 4096
)

// slotSearch is what an acquisition knows of the slots of its lock.
type slotSearch struct {
	base   []byte // the lock's own name
	most   int    // how many slots it may take one of
	first  int    // where to begin
	slot   int    // the one that is asked for
	tried  []int  // those that were refused since the acquisition began, or paused
	probes int    // how many of these looked taken
	sure   []int  // those that a majority of all nodes has refused
	split  bool   // one was refused by too few: whoever is named may not have it
	lowest Result // names the holder of the lowest slot that was refused
}

// Slots are the first so many slots of a lock, beginning with slot first: each with the lock that somebody has, nil if it looks free to this node. It
// ends after SlotLook slots.
func (n *Node) Slots(base []byte, slots, first int) iter.Seq2[int, *store.Lock] {
	return func(yield func(int, *store.Lock) bool) {
		for k := range min(slots, SlotLook) {
			n.looked++
			slot := (first + k) % slots
			n.scratch.slot = store.AppendSlotName(n.scratch.slot[:0], slot, base)
			if !yield(slot, n.Live(n.scratch.slot)) {
				return
			}
		}
	}
}

// TakeLooked returns how many slots were looked at since the last call. A caller that bounds its work takes them off its budget.
func (n *Node) TakeLooked() (slots int) {
	slots, n.looked = n.looked, 0
	return slots
}

// SlotOf is the slot of a lock that a holder has, as far as this node knows, the first one from slot first on; -1: none.
func (n *Node) SlotOf(base []byte, slots, first int, h *Holder) int {
	for slot, l := range n.Slots(base, slots, first) {
		if l != nil && h.has(l) {
			return slot
		}
	}
	return -1
}

// has says whether a name is that of the lock or of one of its slots.
func (s *slotSearch) has(name string) bool {
	_, base := store.SlotName([]byte(name))
	return string(base) == string(s.base)
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

// FirstSlot is where an acquisition for an owner begins to look. Different nodes begin at different slots, so that they rarely ask for the same one
// at a time.
func (n *Node) FirstSlot() int {
	if n.mesh.Alone() {
		return 0
	}
	return int(uint64(n.self.Node()) >> 1 & (store.MaxSlots - 1))
}

// slotOf is the slot that the holder has, as far as this node knows; -1: none. A job that is about to run takes over none.
func (n *Node) slotOf(c *Acquisition) int {
	if c.anew {
		return -1
	}
	return n.SlotOf(c.slots.base, c.slots.most, 0, &c.Holder)
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
	if c.anew && !c.sure && len(s.tried) >= slotsAnew {
		return -1
	}
	for slot, l := range n.Slots(s.base, s.most, s.first) {
		if slices.Contains(s.tried, slot) {
			continue
		}
		if l == nil {
			return slot
		}
		if taken < 0 {
			taken = slot
		}
	}
	if taken < 0 || n.mesh.Alone() || !c.sure && (c.anew || s.probes >= slotProbes) {
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

// elsewhere asks for another slot after a round for one was lost, to the holder that most nodes name. sure says that so many are a majority of
// all, and split that they are too few. False: there is none to ask for.
func (n *Node) elsewhere(c *Acquisition, who *answer, sure, split bool) bool {
	s := c.slots
	if s == nil || c.retries > 0 {
		return false
	}
	s.tried, s.split = append(s.tried, s.slot), s.split || split
	if sure {
		s.sure = append(s.sure, s.slot)
	}
	if s.lowest.Kind != Conflict || s.slot <= s.lowest.Slot {
		s.lowest = Result{Kind: Conflict, Slot: s.slot, Job: who.job, Owner: []byte(who.owner)}
	}
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

// searchAnew makes an acquisition look at all slots again.
func (s *slotSearch) searchAnew() {
	s.tried, s.sure, s.probes, s.split, s.lowest = s.tried[:0], s.sure[:0], 0, false, Result{}
}

// FreeSlot is the name of the slot that the job has at a node that is alone, or of a free one; if there is none, of the lowest one.
func (n *Node) FreeSlot(w *ForJob) []byte {
	if w.Slots <= 1 {
		return w.Name
	}
	free := -1
	if w.Usable == 0 {
		free = n.SlotOf(w.Name, w.Slots, 0, &Holder{Job: w.Job})
	}
	if free < 0 {
		for slot, l := range n.Slots(w.Name, w.Slots, w.First) {
			if l == nil {
				free = slot
				break
			}
		}
	}
	return store.AppendSlotName(nil, max(free, 0), w.Name)
}

// taken is the conflict of an acquisition that finds no slot to ask for: it names the holder of the lowest slot. Most says that a majority has refused
// each slot, or that this node has its job. Nobody may have the slots that look taken: now and then one of them is checked.
func (n *Node) taken(c *Acquisition) Result {
	n.checkSlot(c)
	s := c.slots
	r := s.lowest
	most := s.most <= SlotLook
	for slot, l := range n.Slots(s.base, s.most, 0) {
		if l != nil && (r.Kind != Conflict || slot < r.Slot) {
			r = Result{Kind: Conflict, Slot: slot, Job: l.Job, Owner: slices.Clone(l.Owner())}
		}
		most = most && (slices.Contains(s.sure, slot) || l != nil && l.Job != (store.ID{}) && n.jobs.Holds(l))
	}
	return Result{Kind: Conflict, Job: r.Job, Owner: r.Owner, Most: most}
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
	for _, l := range n.Slots(c.slots.base, c.slots.most, 0) {
		if l != nil {
			n.Watch(l)
		}
	}
}
