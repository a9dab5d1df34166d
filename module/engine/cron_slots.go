package engine

import (
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"

	"jobmesh/module/entries"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// How the job of a slot is made, once in the whole mesh.
//
// A node that finds a slot due claims the slot's lock from a majority, as the jobs of a rate's block are claimed (rate.go). Which node does
// so first depends on the slot: the others leave it cronTurnMS, and then more. A voter refuses a slot that lies ahead of its clock, so that
// a wrong clock makes nothing too early, and one that was served.
//
// The node that has made the job, or failed to, sets the entry's mark to that slot, in the same step; and tells it until a majority has it. So
// a node that asks a majority for that slot, or an earlier one, hears that it was served. Marks merge by the greater slot. They are entries of
// each node alone: they are saved, but not compared.
//
// A node that dies before its mark has reached others may have made the job. Then another one makes the slot when the lock is over. Its job
// has the same ID, which is a hash of the entry and the slot: copies of the two merge, and a job that is known to be done isn't made. Jobs
// with RETRY 0 must not be delivered twice, so there the mark comes first: the job is made once a majority has the mark, and while the lock
// still stands. If the node dies in between, that job is never made.

const (
	cronLeaseMS  = 30_000 // of a slot's lock
	cronWaitMS   = 2_000  // between looks at a slot that waits for something
	lookCost     = 2      // of a look at an entry, in a tick's budget
	slotCost     = 25     // of a slot's step beside its effects: the options are read, and the mark is kept
	cronTurnMS   = 200    // how long each node leaves a slot to the one before it
	cronTurns    = 10     // the nodes beyond come with the last
	cronEarlyMS  = 1_000  // a voter's clock may be so far behind a slot
	cronAgainMS  = 500    // between attempts to make a slot, doubling; up to twice as long
	cronClaims   = 500    // slots whose locks a node claims at once
	cronLaterMS  = 50     // until a slot beyond those is looked at again; up to twice as long
	cronGiveUpMS = 60_000 // for how long a node tries to make a slot that memory, nodes or votes are lacking for
	marksAgainMS = 200    // until a mark is told again to nodes that haven't confirmed it
	marksPage    = 200    // marks in a message
	cronKeyStart = "\x00cron"
)

// SlotOutcome is what became of a slot.
type SlotOutcome uint8

// The outcomes.
const (
	SlotNone    SlotOutcome = iota // no slot was served
	SlotMade                       // a job was made
	SlotDropped                    // no job was made, because another one has its key
	SlotRefused                    // no job was made, because the queue doesn't take it, or something was lacking for too long
	SlotLost                       // a job with RETRY 0 was about to be made; nobody knows whether it was
	slotOutcomes
)

// String is the outcome in a word, as CRON GET shows it.
func (o SlotOutcome) String() string {
	return [slotOutcomes]string{"none", "made", "dropped", "refused", "lost"}[min(o, slotOutcomes-1)]
}

// mark is how far an entry's slots are served.
type mark struct {
	First   int64 // of the entry, see Cron
	Slot    int64 // unix seconds; 0: none
	Outcome SlotOutcome
	ID      store.ID // of the slot's job; zero: none was made
	Made    int64    // jobs, up to this slot
	Missed  int64    // slots that were left out, up to this one
}

// counts says whether m counts more than o: it is of a later slot, or says what became of one that o calls lost.
func (m *mark) counts(o *mark) bool {
	if m.Slot != o.Slot {
		return m.Slot > o.Slot
	}
	return m.Outcome != SlotLost && o.Outcome == SlotLost
}

func (m *mark) append(b []byte) []byte {
	for _, v := range [...]int64{m.First, m.Slot, m.Made, m.Missed} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return append(append(b, byte(m.Outcome)), m.ID[:]...)
}

func (r *cronReader) mark() (m mark) {
	for _, v := range [...]*int64{&m.First, &m.Slot, &m.Made, &m.Missed} {
		*v = r.number()
	}
	if raw := r.take(int64(1 + len(m.ID))); raw != nil {
		m.Outcome = SlotOutcome(raw[0])
		copy(m.ID[:], raw[1:])
	}
	r.bad = r.bad || m.Outcome >= slotOutcomes || m.Slot > MaxSlot
	return m
}

// takeMark takes the mark that an entry of this node says, if it is of this recurring job.
func (c *cron) takeMark(e *entries.Entry) {
	r := cronReader{b: e.Value}
	if m := r.mark(); !e.Deleted && !r.bad && len(r.b) == 0 && m.First == c.first {
		c.mark = m
		c.served(m.Slot)
	}
}

// crons are the recurring jobs.
type crons struct {
	entries map[string]*cron
	due     table.Schedule[*cron]
	untold  []*cron // those whose mark isn't known to a majority
	telling int     // a round of telling those goes on with this one
	kept    int     // how many of those before it stay, which are the first ones
	anyTold bool    // the round has told something
	tellAt  int64   // monotonic: when the next round begins, or goes on
	told    []markTelling
	claims  int   // how many locks of slots are being claimed
	life    int   // counts starts and promotions
	first   int64 // the greatest Cron.first that this node has given
	doubted int64 // slots up to this one may have been made though nothing here says so, see restartCrons
}

// markTelling tells a node that has come all marks, page by page.
type markTelling struct {
	to   wire.NodeID
	from string // the next name
}

// making is how far a slot's job is.
type making struct {
	turn    int64 // the slot that is being made; 0: none
	since   int64 // unix ms, by the wall clock: when it is this node's turn
	claim   *lock.Acquisition
	tries   int         // how often it couldn't be made
	early   []wire.Node // nodes whose clock hasn't reached the slot
	any     bool        // the lock was claimed from a majority of the nodes that can be reached (QUORUM any)
	granted bool        // this node has the slot's lock,
	began   int64       // monotonic: since then
	waits   bool        // for votes, for others to have the mark, or for the job's key,
	adding  bool        // which is the last of them: the ADDJOB is under way
	after   bool        // RETRY 0: the mark is set, and the job is made when a majority has it
	heard   []wire.Node // the nodes that have the mark
	telling bool        // it is in crons.untold
}

// lookAtCron looks at a recurring job at a time, unix ms by the wall clock.
func (n *Node) lookAtCron(c *cron, look int64) {
	if c.look = look; c.place >= 0 {
		heap.Fix(&n.crons.due, c.place)
	} else {
		heap.Push(&n.crons.due, c)
	}
	n.wakeForCron()
}

func (n *Node) wakeForCron() {
	if due := n.crons.due; len(due) > 0 && due[0].look < math.MaxInt64 {
		n.wake = min(n.wake, n.now+max(due[0].look-n.wall(), 1))
	}
}

// dropCron forgets a recurring job. What is under way for it has no effect any more.
func (n *Node) dropCron(c *cron) {
	if c.place >= 0 {
		heap.Remove(&n.crons.due, c.place)
	}
	if n.crons.entries[c.name] == c {
		delete(n.crons.entries, c.name)
	}
	n.leaveCronSlot(c)
}

// beginLife forgets what was under way for a recurring job before the last start, or promotion, which has ended it.
func (n *Node) beginLife(c *cron) {
	if c.life != n.crons.life {
		c.life, c.making = n.crons.life, making{}
	}
}

// leaveCronSlot forgets how far a slot's job is. What is under way for it has no effect any more.
func (n *Node) leaveCronSlot(c *cron) {
	n.beginLife(c)
	if c.claim != nil {
		n.crons.claims--
		n.locks.Abandon(c.claim)
	}
	c.making = making{heard: c.heard, telling: c.telling}
}

// stays says whether a recurring job is still that one, in the same life, and may be made here.
func (n *Node) stays(c *cron) bool {
	return n.crons.entries[c.name] == c && c.life == n.crons.life && !n.passive && !n.loading
}

// tickCrons makes the jobs of the slots that are due.
func (n *Node) tickCrons() {
	n.tellMarks()
	wall := n.wall()
	for budget := tickBudget; len(n.crons.due) > 0 && n.crons.due[0].look <= wall && budget > 0; budget-- {
		c, from := n.crons.due[0], len(n.effects)
		missed := len(c.missed)
		n.lookAtSlots(c, wall)
		if budget -= lookCost + max(0, len(c.missed)-missed); len(n.effects) > from {
			budget -= slotCost + n.cost(from)
		}
	}
	n.wakeForCron()
}

// lookAtSlots does what is due for a recurring job.
func (n *Node) lookAtSlots(c *cron, wall int64) {
	n.beginLife(c)
	switch {
	case c.reserves() && n.monotonic()-c.began >= cronLeaseMS/2:
		n.leaveCronSlot(c) // too few nodes have the mark: the job is never made
	case c.waits:
		n.lookAtCron(c, wall+cronWaitMS) // whatever it waits for makes it go on
		return
	}
	slot, look := c.plan(wall)
	if slot > 0 && n.slotDoubted(c, slot) {
		c.floor = n.crons.doubted
		slot, look = c.plan(wall)
	}
	if slot == 0 {
		n.lookAtCron(c, look)
		return
	}
	if c.turn != slot {
		n.leaveCronSlot(c)
		c.turn, c.since = slot, wall+n.turnsBefore(c, slot)*cronTurnMS
	}
	switch {
	case c.since > wall:
		n.lookAtCron(c, c.since)
	case n.mesh.Alone():
		n.makeSlot(c)
	case c.granted && n.monotonic()-c.began < cronLeaseMS/2:
		n.makeSlot(c)
	default:
		n.claimSlot(c)
	}
}

// turnsBefore is how many nodes come before this one in making a slot.
func (n *Node) turnsBefore(c *cron, slot int64) (before int64) {
	if n.mesh.Alone() {
		return 0
	}
	rank := func(node wire.Node) [sha256.Size]byte {
		b := binary.LittleEndian.AppendUint64(nil, uint64(node))
		return sha256.Sum256(append(binary.LittleEndian.AppendUint64(b, uint64(slot)), c.name...))
	}
	own := rank(n.self.Node())
	for _, p := range n.mesh.All() {
		if !p.Connected || p.Leaving || p.Minority || !n.mesh.features[p.ID].Crons {
			continue
		}
		other := rank(p.Node)
		if n.leaving || slices.Compare(other[:], own[:]) < 0 {
			before++
		}
	}
	return min(before, cronTurns)
}

// slotName is the name of a slot's lock. It is scratch memory.
func (n *Node) slotName(c *cron) []byte {
	key := append(make([]byte, 0, 32), cronKeyStart...)
	key = binary.BigEndian.AppendUint64(key, uint64(c.first))
	key = binary.BigEndian.AppendUint64(key, uint64(c.turn))
	n.scratch.lock = store.AppendLockName(n.scratch.lock[:0], store.LockWait, []byte(c.name), key)
	return n.scratch.lock
}

// slotOf reads the name of a slot's lock; false: it is the name of another lock.
func slotOf(name []byte) (entry string, first, slot int64, ok bool) {
	const tail = 1 + len(cronKeyStart) + 16
	if len(name) < 3+1+tail || name[0] != byte(store.LockWait) || name[1] != 'q' || len(name) != 3+int(name[2])+tail {
		return "", 0, 0, false
	}
	key := name[len(name)-tail:]
	if string(key[:1+len(cronKeyStart)]) != "k"+cronKeyStart {
		return "", 0, 0, false
	}
	key = key[1+len(cronKeyStart):]
	first, slot = int64(binary.BigEndian.Uint64(key)), int64(binary.BigEndian.Uint64(key[8:]))
	return string(name[3 : 3+int(name[2])]), first, slot, first >= 0 && slot >= 0 && slot <= MaxSlot
}

// claimSlot claims the lock of the slot whose turn it is.
func (n *Node) claimSlot(c *cron) {
	if n.crons.claims >= cronClaims {
		n.lookAtCron(c, n.wall()+cronLaterMS+n.below(cronLaterMS))
		return
	}
	name := n.slotName(c)
	if c.any = c.Any && !n.isOnce(c); !c.any && !n.locks.Quorate(name) {
		n.slotAgain(c)
		return
	}
	slot, id := c.turn, n.ids.Make(n.random.Uint64(), n.random.Uint64(), 0, false) // no job has it: each claim has a holder of its own
	c.waits, c.early = true, nil
	now, claim := n.locks.AcquireFor(lock.ForJob{Name: name, Job: id, Lease: cronLeaseMS, Outlives: true, Any: c.any}, func(o lock.Result) {
		if n.stays(c) && c.turn == slot {
			n.slotClaimed(c, &o)
		}
	})
	if now != nil {
		n.slotClaimed(c, now)
		return
	}
	c.claim = claim
	n.crons.claims++
}

// slotClaimed goes on with a slot when its claim is decided.
func (n *Node) slotClaimed(c *cron, o *lock.Result) {
	if c.waits = false; c.claim != nil {
		c.claim = nil
		n.crons.claims--
	}
	switch {
	case c.base() >= c.turn: // another node has served it meanwhile
		n.lookAtCron(c, n.wall())
	case o.Kind != lock.Granted:
		n.slotAgain(c)
	default:
		if c.granted, c.began = true, o.Began; c.began == 0 {
			c.began = n.monotonic()
		}
		n.makeSlot(c)
	}
}

func (n *Node) slotAgain(c *cron) {
	c.waits = false
	span := int64(cronAgainMS) << min(c.tries, 4)
	c.tries++
	n.lookAtCron(c, n.wall()+span+n.below(span))
}

// Slot is the slot for which a job is made.
type Slot struct {
	Name  string // of the entry
	At    int64  // unix seconds; 0: none, a client wants the job (CRON RUN)
	first int64
}

// slotID is the ID of a slot's job: whichever node makes the job, it is the same.
func slotID(s *Slot, a *Add) store.ID {
	b := binary.LittleEndian.AppendUint64([]byte("cron"), uint64(s.first))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.At))
	minutes := min(max(a.TTL/60, 0), 0xffff) &^ 1
	if a.Retry > 0 {
		minutes |= 1
	}
	return hashedID(append(b, s.Name...), uint16(minutes))
}

// idFor makes the ID of a job that is being added.
func (n *Node) idFor(a *Add) store.ID {
	if a.Slot != nil && a.Slot.At > 0 {
		return slotID(a.Slot, a)
	}
	if a.Name != nil {
		return NamedID(a.Name)
	}
	return n.ids.Make(n.random.Uint64(), n.random.Uint64(), a.TTL, a.Retry > 0)
}

// errSlotMade refuses the job of a slot that is there already, or was.
const errSlotMade Refusal = "ERR the slot's job was made before"

// isSlotMade says whether a job of a slot is known to have been made.
func (n *Node) isSlotMade(a *Add) bool {
	return a.Slot != nil && a.Slot.At > 0 && n.isKnown(slotID(a.Slot, a))
}

// slotMaker is the client of an ADDJOB that makes a slot's job.
type slotMaker struct {
	c  *cron
	of int64
}

// addOfCron is the ADDJOB of a recurring job.
func (n *Node) addOfCron(c *Cron, a *Add) error {
	if n.policies.AddCron == nil {
		return errSyntaxOfCron
	}
	return n.policies.AddCron(c, a)
}

// isOnce says whether the jobs of a recurring job are at-most-once now. The queue's settings may say so, and may have changed since the
// entry was set.
func (n *Node) isOnce(c *cron) bool {
	var a Add
	return c.Once || n.addOfCron(&c.Cron, &a) == nil && a.Retry == 0
}

// slotDoubted says whether the job of a slot is at-most-once, and may have been made though this node doesn't know it: it has lost the end of
// its data.
func (n *Node) slotDoubted(c *cron, slot int64) bool { return slot <= n.crons.doubted && n.isOnce(c) }

const errSyntaxOfCron Refusal = "ERR the options of a recurring job can't be read"

// makeSlot makes the job of the slot whose turn it is.
func (n *Node) makeSlot(c *cron) {
	var a Add
	if err := n.addOfCron(&c.Cron, &a); err != nil {
		n.slotServed(c, store.ID{}, err)
		return
	}
	if a.Retry == 0 && c.any { // the queue's settings have changed since: the other side of a partition may have the lock, too
		n.leaveCronSlot(c)
		n.lookAtCron(c, n.wall())
		return
	}
	if (a.Retry == 0 || !c.Any) && n.isApart(c.first) {
		n.slotAgain(c)
		return
	}
	a.Async, a.CanWait, a.Slot = true, true, &Slot{Name: c.name, At: c.turn, first: c.first}
	id := slotID(a.Slot, &a)
	if err := n.HasRoom(); err != nil { // before the mark, which says that the slot is served: it can be tried again
		n.slotServed(c, id, err)
		return
	}
	if a.Retry == 0 && !n.mesh.Alone() && !c.after {
		c.after, c.waits = true, true
		n.setMark(c, SlotLost, id)
		n.lookAtCron(c, n.wall()+cronWaitMS)
		return
	}
	if n.unsafe {
		n.slotServed(c, id, Refusal("EVICTION the server may evict queues"))
		return
	}
	answer, wait, err := n.AddJob(&a)
	if wait {
		c.waits, c.adding = true, true
		n.Tie(PendingAdd(answer), &slotMaker{c, c.turn})
		return
	}
	if err == nil && answer != id {
		err = ErrDropped // another job is it (ONCONFLICT return or replace)
	}
	n.slotServed(c, id, err)
}

// slotAnswered goes on with a slot whose job had to wait for its key.
func (n *Node) slotAnswered(m *slotMaker, id store.ID, err error) {
	if c := m.c; n.stays(c) && c.turn == m.of {
		if _, at, made := SlotOfJob(n.store.Lookup(&id)); err == nil && (!made || at != m.of) {
			err = ErrDropped
		}
		n.slotServed(c, id, err)
	}
}

// slotServed follows when it is known what became of the slot whose turn it is.
func (n *Node) slotServed(c *cron, id store.ID, err error) {
	c.waits, c.adding = false, false
	outcome := SlotMade
	switch {
	case err == nil:
		n.Stats.CronMade++
	case err == errSlotMade:
	case err == ErrDropped || strings.HasPrefix(err.Error(), "DUPLICATE"):
		n.Stats.CronDropped++
		outcome, id = SlotDropped, store.ID{}
	case isPassing(err) && !c.after && n.wall()-c.since < cronGiveUpMS:
		n.slotAgain(c)
		return
	default:
		n.Stats.CronRefused++
		outcome, id = SlotRefused, store.ID{}
	}
	n.setMark(c, outcome, id)
	n.lookAtCron(c, n.wall())
}

// isPassing says whether what refused a job may soon be over.
func isPassing(err error) bool {
	text := err.Error()
	return strings.HasPrefix(text, "OOM") || strings.HasPrefix(text, "NOREPL") || strings.HasPrefix(text, "NOQUORUM") || strings.HasPrefix(text, "LEAVING")
}

// setMark notes that the slot whose turn it is was served, and tells the other nodes.
func (n *Node) setMark(c *cron, outcome SlotOutcome, id store.ID) {
	m := c.mark
	if m.Slot != c.turn {
		m.Missed += c.skipped
		n.Stats.CronMissed += c.skipped
		c.skipped = 0
	}
	m.First, m.Slot, m.Outcome, m.ID = c.first, c.turn, outcome, id
	if outcome == SlotMade {
		m.Made++
	}
	n.takeMark(c, &m)
	if n.mesh.Alone() {
		return
	}
	if c.heard = nil; !c.telling {
		c.telling = true
		n.crons.untold = append(n.crons.untold, c)
	}
	n.tellMark(c)
	n.tellSoon()
}

// takeMark saves a mark.
func (n *Node) takeMark(c *cron, m *mark) {
	c.mark = *m
	c.served(m.Slot)
	n.ChangeEntry(EntryMark, c.name, m.append(nil))
}

// tellMark tells a mark to the nodes that aren't known to have it.
func (n *Node) tellMark(c *cron) {
	m := &wire.Message{Kind: wire.Marks, Queue: c.mark.append(appendText(nil, []byte(c.name)))}
	n.tellWhere(m, func(p *Peer) bool { return n.mesh.features[p.ID].Crons && !slices.Contains(c.heard, p.Node) })
}

// tellMarks goes on with telling marks: those that no majority has, and all to nodes that have come.
func (n *Node) tellMarks() {
	cs := &n.crons
	for i := range cs.told {
		n.tellAllMarks(&cs.told[i])
	}
	if cs.told = slices.DeleteFunc(cs.told, func(t markTelling) bool { return t.from == "" }); len(cs.told) > 0 {
		n.hurryTick()
	}
	n.tellUntold()
}

// tellUntold tells the nodes that are connected those of the marks that they aren't known to have, until a majority has each. It goes through
// a page of them in a tick. A round that finds nothing to tell is the last one, until there is another mark, or a node comes.
func (n *Node) tellUntold() {
	cs, now := &n.crons, n.monotonic()
	if len(cs.untold) == 0 {
		cs.tellAt = math.MaxInt64
	}
	if now < cs.tellAt {
		n.wakeForMarks()
		return
	}
	var peers []*Peer
	for _, p := range n.mesh.All() {
		if p.Connected && n.mesh.features[p.ID].Crons {
			peers = append(peers, p)
		}
	}
	if len(peers) == 0 {
		cs.tellAt = math.MaxInt64
		return
	}
	messages := make([]wire.Message, len(peers))
	for end := min(cs.telling+marksPage, len(cs.untold)); cs.telling < end; cs.telling++ {
		c := cs.untold[cs.telling]
		n.beginLife(c)
		if c.telling = cs.entries[c.name] == c && 1+len(c.heard) < n.mesh.Majority(); !c.telling {
			continue
		}
		cs.untold[cs.kept] = c
		cs.kept++
		for i, p := range peers {
			if !slices.Contains(c.heard, p.Node) {
				messages[i].Queue = c.mark.append(appendText(messages[i].Queue, []byte(c.name)))
			}
		}
	}
	for i, p := range peers {
		if m := &messages[i]; len(m.Queue) > 0 {
			m.Kind, cs.anyTold = wire.Marks, true
			n.send(p, m)
		}
	}
	switch {
	case cs.telling < len(cs.untold):
		n.hurryTick()
		return
	case cs.anyTold:
		cs.tellAt = now + marksAgainMS
	default:
		cs.tellAt = math.MaxInt64
	}
	clear(cs.untold[cs.kept:])
	cs.untold, cs.telling, cs.kept, cs.anyTold = cs.untold[:cs.kept], 0, 0, false
	n.wakeForMarks()
}

func (n *Node) wakeForMarks() {
	if cs := &n.crons; len(cs.untold) > 0 && cs.tellAt < math.MaxInt64 {
		n.wake = min(n.wake, n.now+max(cs.tellAt-n.monotonic(), 1))
	}
}

// tellSoon has marks told again soon that aren't known to a majority.
func (n *Node) tellSoon() {
	n.crons.tellAt = min(n.crons.tellAt, n.monotonic()+marksAgainMS)
	n.wakeForMarks()
}

// tellMarksTo begins to tell all marks to a node that has come, or that has just been told of recurring jobs: before that it knew nothing to which
// the marks belong.
func (n *Node) tellMarksTo(p *Peer) {
	if n.mesh.features[p.ID].Crons && n.alike.Count(EntryMark) > 0 {
		n.crons.told = slices.DeleteFunc(n.crons.told, func(t markTelling) bool { return t.to == p.ID })
		n.crons.told = append(n.crons.told, markTelling{p.ID, "\x00"})
		n.hurryTick()
	}
	n.tellSoon()
}

func (n *Node) tellAllMarks(t *markTelling) {
	p := n.mesh.ByID(t.to)
	from := t.from
	if t.from = ""; p == nil || !p.Connected {
		return
	}
	m, count := &wire.Message{Kind: wire.Marks, Flags: wire.NoReply}, 0
	for e := range n.alike.From(EntryMark, from) {
		if count == marksPage {
			t.from = e.Name
			break
		}
		if c := n.crons.entries[e.Name]; c != nil {
			m.Queue = c.mark.append(appendText(m.Queue, []byte(c.name)))
			count++
		}
	}
	n.send(p, m)
}

// onMarks learns marks, and answers with this node's own, unless the message is itself an answer (NoReply).
func (n *Node) onMarks(p *Peer, m *wire.Message) error {
	r := cronReader{b: m.Queue}
	answer := &wire.Message{Kind: wire.Marks, Flags: wire.NoReply}
	marks := map[*cron]mark{} // of several marks of a recurring job the last one counts
	for count := 0; len(r.b) > 0; count++ {
		name, told := r.text(), r.mark()
		if r.bad || count == marksPage {
			return wire.ErrMessage
		}
		if c := n.crons.entries[string(name)]; c != nil && c.first == told.First && told.Slot > 0 {
			marks[c] = told
		}
	}
	for _, c := range slices.SortedFunc(maps.Keys(marks), func(a, b *cron) int { return strings.Compare(a.name, b.name) }) {
		told := marks[c]
		n.learnMark(p, c, &told)
		answer.Queue = c.mark.append(appendText(answer.Queue, []byte(c.name)))
	}
	if m.Flags&wire.NoReply == 0 && len(answer.Queue) > 0 {
		n.send(p, answer)
	}
	return nil
}

func (n *Node) learnMark(p *Peer, c *cron, told *mark) {
	n.beginLife(c)
	switch {
	case told.counts(&c.mark):
		c.heard = append(c.heard[:0], p.Node)
		n.takeMark(c, told)
		c.skipped = 0
		if c.turn > 0 && c.turn <= told.Slot && (c.adding || !c.after) {
			n.leaveCronSlot(c)
		}
		if !c.Paused && !c.waits {
			n.lookAtCron(c, n.wall())
		}
	case !c.mark.counts(told) && !slices.Contains(c.heard, p.Node):
		c.heard = append(c.heard, p.Node)
	}
	if c.reserves() && 1+len(c.heard) >= n.mesh.Majority() {
		n.makeReserved(c)
	}
}

// reserves says whether an at-most-once job waits for others to have its mark. Its ADDJOB is begun once only.
func (c *cron) reserves() bool { return c.after && c.waits && !c.adding }

// makeReserved makes an at-most-once job, whose mark a majority has.
func (n *Node) makeReserved(c *cron) {
	c.waits = false
	if c.mark.Slot == c.turn && c.mark.Outcome == SlotLost && c.granted && n.monotonic()-c.began < cronLeaseMS/2 {
		n.makeSlot(c)
		return
	}
	n.leaveCronSlot(c)
	n.lookAtCron(c, n.wall())
}

// slotRefused answers a Claim for the lock of a slot that lies ahead of this node's clock, or was served. False: the claim is for something
// else, or isn't refused.
func (n *Node) slotRefused(p *Peer, m *wire.Message) bool {
	name, first, slot, ok := slotOf(m.Lock.Name)
	if !ok {
		return false
	}
	why, left := uint32(0), int64(0)
	c := n.crons.entries[name]
	switch {
	case slot*1000 > n.wall()+cronEarlyMS:
		why, left = wire.NotYet, slot*1000-n.wall()
	case c == nil:
		if e := n.alike.Known(EntryCron, name); e != nil && e.Deleted {
			why = wire.Served
		}
	case c.first > first || c.first == first && (c.base() >= slot || n.slotDoubted(c, slot)):
		if why = wire.Served; c.first == first && c.mark.Slot >= slot {
			n.send(p, &wire.Message{Kind: wire.Marks, Flags: wire.NoReply, Queue: c.mark.append(appendText(nil, []byte(name)))})
		}
	}
	if why != 0 && m.Round != 0 {
		n.send(p, &wire.Message{Kind: wire.Deny, Count: why, Round: m.Round, Lock: wire.Lock{Name: m.Lock.Name, Left: left}})
	}
	return why != 0
}

// slotDenied looks at a Deny before the claim does: a slot that too many nodes call early isn't asked for again before its time.
func (n *Node) slotDenied(p *Peer, m *wire.Message) {
	if m.Count != wire.NotYet {
		return
	}
	name, first, slot, ok := slotOf(m.Lock.Name)
	c := n.crons.entries[name]
	if !ok || c == nil || c.first != first || c.turn != slot || c.claim == nil || slices.Contains(c.early, p.Node) {
		return
	}
	if c.early = append(c.early, p.Node); len(n.mesh.All())+1-len(c.early) < n.mesh.Majority() {
		n.leaveCronSlot(c)
		n.lookAtCron(c, n.wall()+min(m.Lock.Left, 5_000))
	}
}

// restartCrons follows a start, or a promotion. If that was with data whose end may be missing, so may marks be, and the at-most-once jobs of
// the slots until then may have been made. A later start with whole data lacks them, too. Entries aren't gone through here, for they
// may be very many: each follows when it is looked at next, see beginLife.
func (n *Node) restartCrons() {
	n.crons.doubted = min(n.past.Inexact, n.wall()) / 1000 // a clock that was ahead isn't believed
	n.crons.untold, n.crons.telling, n.crons.kept, n.crons.claims = nil, 0, 0, 0
	n.crons.life++
	n.wakeForCron()
}

// A job's TagCron has 8 bytes for its slot (unix seconds; 0: none) and the name of its entry.
const slotHead = 8

func (s *Slot) value() []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(s.At)), s.Name...)
}

// SlotOfJob is the recurring job that a job was made for, and the slot (unix seconds; 0: a client wanted it). False: the job is no such one.
func SlotOfJob(j *store.Job) (name []byte, slot int64, ok bool) {
	if j == nil || j.Parts == 0 {
		return nil, 0, false
	}
	e := j.Extra(store.TagCron)
	if len(e) <= slotHead || len(e) > slotHead+MaxCronName {
		return nil, 0, false
	}
	at := binary.LittleEndian.Uint64(e)
	return e[slotHead:], int64(min(at, MaxSlot)), true
}
