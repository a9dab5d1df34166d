package engine

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"jobmesh/module/entries"
	"jobmesh/module/schedule"
	"jobmesh/module/store"
)

// Recurring jobs (CRON). An entry makes a job for each of its slots, the moments at which it is due. All nodes know the entry
// (entries.go), and any of them makes a slot's job: slots.go says which one, so that each slot has one job. This file has what is said
// of a recurring job, and when its slots are due.

// Missed says what becomes of the slots that nobody made in time.
type Missed uint8

// The ways.
const (
	MissedLast Missed = iota // the newest is made, the others are left out
	MissedSkip               // all are left out
	MissedAll                // each is made, but of more than missedMost the newest only
)

const (
	cronMost     = 100_000        // entries
	missedMost   = 100            // slots that MissedAll makes up for
	lateSeconds  = 60             // a slot is missed that is later than this, or than the time to the next one
	missedYears  = 100            // slots that are missed by more aren't counted: that clock is wrong
	MaxCronName  = 255            // bytes
	MaxSlot      = MaxUnix / 1000 // unix seconds, of a slot, and of FROM and UNTIL
	cronBodyMost = entries.MaxValue - 1024
)

// Cron is what is said of a recurring job. Times are unix seconds where nothing else is said.
type Cron struct {
	Every, Offset int64  // Every is 0 if there is a Line
	Line, Zone    string // Zone is empty for UTC
	Missed        Missed
	From, Until   int64 // no slot is before or after these; 0: there is no such bound
	Paused        bool
	Any           bool // a majority of the nodes that can be reached may make slots (QUORUM any)
	Once          bool // the jobs are at-most-once, whatever the queue's settings say, see isOnce
	Queue, Body   []byte
	Options       [][]byte // of ADDJOB

	first int64 // unix ms: when the entry was first set. The IDs of its jobs depend on it
	begin int64 // unix ms: when it was set or resumed last. Slots until then aren't made
}

// Errors about recurring jobs.
const (
	ErrManyCrons Refusal = "ERR there are 100000 entries already: delete some"
	ErrLongCron  Refusal = "ERR body, options, line and the queue's name must have 31744 bytes at most, all together: put a larger body elsewhere"
	ErrCronBytes Refusal = "ERR the recurring jobs have 32 MB together already: delete some"
	ErrNoSlot    Refusal = "ERR the line never comes"
	ErrNoneLeft  Refusal = "ERR no slot lies between now, FROM and UNTIL"
)

// schedule is when the slots are.
func (c *Cron) schedule() (schedule.Schedule, error) {
	if c.Line == "" {
		return schedule.Every(c.Every, c.Offset), nil
	}
	return schedule.Line(c.Line, c.Zone)
}

// The value of an EntryCron.
const (
	cronFormat = 1

	cronPaused = 1
	cronAny    = 2
	cronOnce   = 4
)

func (c *Cron) value() []byte {
	flags := byte(0)
	for bit, on := range map[byte]bool{cronPaused: c.Paused, cronAny: c.Any, cronOnce: c.Once} {
		if on {
			flags |= bit
		}
	}
	b := []byte{cronFormat, flags, byte(c.Missed)}
	for _, v := range [...]int64{c.first, c.begin, c.Every, c.Offset, c.From, c.Until} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	for _, text := range [...][]byte{[]byte(c.Line), []byte(c.Zone), c.Queue, c.Body} {
		b = appendText(b, text)
	}
	b = binary.AppendUvarint(b, uint64(len(c.Options)))
	for _, o := range c.Options {
		b = appendText(b, o)
	}
	return b
}

func appendText(b, text []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

var errDamagedCron = errors.New("damaged entry of a recurring job")

// reader takes bytes apart. After the first error it returns zeros.
type cronReader struct {
	b   []byte
	bad bool
}

func (r *cronReader) number() int64 {
	v, n := binary.Uvarint(r.b)
	if r.bad || n <= 0 || v > math.MaxInt64/4 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return int64(v)
}

func (r *cronReader) take(n int64) []byte {
	if r.bad || n > int64(len(r.b)) {
		r.bad = true
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *cronReader) text() []byte { return r.take(r.number()) }

// parseCron reads what value made. The slices are b's.
func parseCron(b []byte) (c Cron, err error) {
	r := cronReader{b: b}
	head := r.take(3)
	if r.bad || head[0] != cronFormat || Missed(head[2]) > MissedAll {
		return c, errDamagedCron
	}
	c.Paused, c.Any, c.Once, c.Missed = head[1]&cronPaused != 0, head[1]&cronAny != 0, head[1]&cronOnce != 0, Missed(head[2])
	for _, v := range [...]*int64{&c.first, &c.begin, &c.Every, &c.Offset, &c.From, &c.Until} {
		*v = r.number()
	}
	c.Line, c.Zone = string(r.text()), string(r.text())
	c.Queue, c.Body = r.text(), r.text()
	for n := r.number(); n > 0 && !r.bad; n-- {
		c.Options = append(c.Options, r.text())
	}
	if c.Line == "" && (c.Every < 1 || c.Every > schedule.MaxEvery || c.Offset >= c.Every) || r.bad || len(r.b) > 0 {
		return c, errDamagedCron
	}
	if max(c.first, c.begin) > MaxUnix || max(c.From, c.Until) > MaxSlot { // the ms of a slot must fit
		return c, errDamagedCron
	}
	return c, nil
}

// cron is a recurring job as this node follows it.
type cron struct {
	Cron
	name  string
	slots schedule.Schedule
	mark  mark

	cursor  int64   // each slot up to this one was made, or is missed
	missed  []int64 // missed slots that are still to be made, the oldest first
	skipped int64   // missed slots that are left out since the mark
	planned int64   // unix ms: when that was looked at last
	floor   int64   // slots up to this one aren't made, because the process before may have made their at-most-once jobs, see slotDoubted

	making
	life  int   // the crons.life in which that began
	look  int64 // unix ms, by the wall clock: when it is looked at next
	place int   // in crons.due, -1 outside
}

func (c *cron) Sooner(than *cron) bool { return c.look < than.look }
func (c *cron) Position() *int         { return &c.place }

// base is the slot, or a moment, after which slots are made.
func (c *cron) base() int64 {
	return max(c.mark.Slot, c.begin/1000, c.From-1, c.floor)
}

// next is the first slot after a moment; 0: there is none.
func (c *cron) next(after int64) int64 {
	slot, ok := c.slots.Next(max(after, c.From-1))
	if !ok || c.Until > 0 && slot > c.Until {
		return 0
	}
	return slot
}

// keeps is how many missed slots are made up for.
func (c *cron) keeps() int {
	switch c.Missed {
	case MissedSkip:
		return 0
	case MissedAll:
		return missedMost
	}
	return 1
}

// plan finds the slot that is to be made now. If there is none, slot is 0, and look is when to look again, unix ms.
func (c *cron) plan(now int64) (slot, look int64) {
	if base := c.base(); c.cursor < base || now < c.planned-1000 { // a clock that was set ahead, and back, has found slots missed that aren't
		c.cursor, c.missed, c.skipped = base, nil, 0
	}
	c.planned = now
	c.miss(now)
	if len(c.missed) > 0 {
		return c.missed[0], 0
	}
	switch next := c.next(c.cursor); {
	case next == 0:
		return 0, math.MaxInt64
	case next*1000 > now:
		return 0, next * 1000
	default:
		return next, 0
	}
}

// miss notes which slots are missed, those that are late. However many they are, it doesn't go through all, or longer than missedYears.
func (c *cron) miss(now int64) {
	period := int64(lateSeconds) // slots of lines are a minute apart at least
	if every, yes := c.slots.IsEvery(); yes {
		period = min(period, every)
	}
	late := (now - period*1000 - 1) / 1000 // the last second whose slot is late
	if c.Until > 0 {
		late = min(late, c.Until)
	}
	after := max(c.cursor, c.From-1, late-missedYears*366*86400)
	if next, ok := c.slots.Next(after); !ok || next > late {
		return
	}
	missed, all := c.slots.Newest(after, late, c.keeps())
	c.cursor = late
	c.missed = append(c.missed, missed...)
	c.skipped += all - int64(len(missed))
	if more := len(c.missed) - c.keeps(); more > 0 {
		c.missed = slices.Clone(c.missed[more:])
		c.skipped += int64(more)
	}
}

// served notes that a slot was made, or is left out.
func (c *cron) served(slot int64) {
	for len(c.missed) > 0 && c.missed[0] <= slot {
		c.missed = c.missed[1:]
	}
	c.cursor = max(c.cursor, slot)
}

// noteCron follows a change of an entry.
func (n *Node) noteCron(e *entries.Entry) {
	switch e.Kind {
	case EntryCron:
		n.noteCronEntry(e)
	case EntryMark:
		if c := n.crons.entries[e.Name]; c != nil {
			c.takeMark(e)
		}
	}
}

func (n *Node) noteCronEntry(e *entries.Entry) {
	old := n.crons.entries[e.Name]
	if old != nil {
		n.dropCron(old)
	}
	if e.Deleted {
		if n.alike.Get(EntryMark, e.Name) != nil && !n.passive && !n.loading {
			n.ChangeEntry(EntryMark, e.Name, nil)
		}
		return
	}
	def, err := parseCron(e.Value)
	if err != nil {
		n.warn("the entry %.64q of a recurring job can't be read, so no job is made of it at this node: a newer release may have set it", e.Name)
		return
	}
	c := &cron{Cron: def, name: e.Name, place: -1}
	if c.slots, err = def.schedule(); err != nil {
		n.warn("no job is made of %.64q at this node: %v", e.Name, err)
		return
	}
	if m := n.alike.Get(EntryMark, e.Name); m != nil {
		c.takeMark(m)
	}
	if n.crons.entries == nil {
		n.crons.entries = map[string]*cron{}
	}
	n.crons.entries[e.Name] = c
	if c.life = n.crons.life; !c.Paused {
		n.lookAtCron(c, n.wall()) // the next tick finds its slot
	}
}

// SetCron sets a recurring job, and returns its next slot. Slots before now aren't made.
func (n *Node) SetCron(name string, c Cron) (next int64, err error) {
	c.begin = n.wall()
	slots, err := c.schedule()
	if err != nil {
		return 0, Refusal("ERR " + err.Error())
	}
	if _, ok := slots.Next(c.begin / 1000); !ok {
		return 0, ErrNoSlot
	}
	if next = (&cron{Cron: c, slots: slots}).next(c.begin / 1000); next == 0 {
		return 0, ErrNoneLeft
	}
	known := n.alike.Known(EntryCron, name)
	switch old, err := cronIn(known); {
	case known == nil || known.Deleted || err != nil:
		if n.alike.Count(EntryCron) >= cronMost {
			return 0, ErrManyCrons
		}
		// The jobs of an entry that was deleted have other IDs, however soon this one follows, and though a node that is alone
		// may have forgotten it, and the clock was set back.
		c.first = max(c.begin, n.crons.first+1)
		if known != nil {
			c.first = max(c.first, known.Stamp.MS+1)
		}
		n.crons.first = c.first
	default:
		c.first = old.first
	}
	value := c.value()
	if len(value) > cronBodyMost {
		return 0, ErrLongCron
	}
	if n.EntryFits(EntryCron, len(name)+len(value)) != nil {
		return 0, ErrCronBytes
	}
	n.ChangeEntry(EntryCron, name, value)
	return next, nil
}

// cronIn is what an entry says.
func cronIn(e *entries.Entry) (Cron, error) {
	if e == nil || e.Deleted {
		return Cron{}, errDamagedCron
	}
	return parseCron(e.Value)
}

// DeleteCron deletes a recurring job. False: there is none of that name.
func (n *Node) DeleteCron(name string) bool {
	if n.alike.Get(EntryCron, name) == nil {
		return false
	}
	n.ChangeEntry(EntryCron, name, nil)
	return true
}

// PauseCron begins or ends the pause of a recurring job. Slots of the pause aren't made later. False: there is none of that name, or nothing
// changes.
func (n *Node) PauseCron(name string, paused bool) bool {
	c, err := cronIn(n.alike.Get(EntryCron, name))
	if err != nil || c.Paused == paused {
		return false
	}
	if c.Paused = paused; !paused {
		c.begin = n.wall()
	}
	n.ChangeEntry(EntryCron, name, c.value())
	return true
}

// CronState is a recurring job as clients see it.
type CronState struct {
	Cron
	Next    int64 // the next slot, unix seconds; 0: there is none
	Last    int64 // the last slot that was served; 0: none was
	ID      store.ID
	Outcome SlotOutcome // of the last slot
	Made    int64       // jobs
	LeftOut int64       // missed slots that weren't made
}

// CronNamed describes a recurring job; false: there is none of that name, or this node can't read it.
func (n *Node) CronNamed(name string) (s CronState, ok bool) {
	c := n.crons.entries[name]
	if c == nil {
		return s, false
	}
	s = CronState{Cron: c.Cron, Last: c.mark.Slot, ID: c.mark.ID, Outcome: c.mark.Outcome, Made: c.mark.Made, LeftOut: c.mark.Missed + c.skipped}
	if !c.Paused {
		s.Next = c.next(max(c.base(), n.wall()/1000))
	}
	return s, true
}

// CronSlots are the next slots of a recurring job, count at most.
func (n *Node) CronSlots(name string, count int) (slots []int64, ok bool) {
	c := n.crons.entries[name]
	if c == nil {
		return nil, false
	}
	after := max(c.base(), n.wall()/1000)
	for len(slots) < count {
		slot := c.next(after)
		if slot == 0 {
			break
		}
		slots, after = append(slots, slot), slot
	}
	return slots, true
}

// Crons counts the recurring jobs.
func (n *Node) Crons() int { return n.alike.Count(EntryCron) }

// LacksCrons returns the ID of a node that is known to make no recurring jobs, as a former release does; "": there is none.
func (n *Node) LacksCrons() string {
	return n.withoutFeature(func(f Features) bool { return f.Crons })
}

// wall is the time of the wall clock, unix ms: slots are moments of the calendar.
func (n *Node) wall() int64 { return n.now - n.clock.ahead }
