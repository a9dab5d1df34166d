package engine

import (
	"container/heap"
	"encoding/binary"
	"math"

	"jobmesh/module/entries"
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// Pauses. A queue that is paused in input takes no jobs, one that is paused in output gives none. PAUSE says so for one node, and with
// BCAST for all nodes, by an entry (entries.go).
//
// A pause may have an end (FOR). If all nodes are to know of it, the node that made it ends it for all, by its own clock: so the pause
// is over everywhere at once, whatever the other clocks say. While that node isn't connected the others go by their own clocks.

const (
	pausesMost      = 10_000
	pausesEndedMost = 1000  // ended pauses that are noted at most, see pauseEndsAway
	pauseLookMS     = 1_000 // between looks at a pause whose time is over, and which another node is to end
)

// pauseEnd is when to look whether a queue's pause is over.
type pauseEnd struct {
	queue string
	look  int64 // unix ms
	until int64 // unix ms: when the pause of this node alone ends; 0: it has no such end
	all   bool  // that pause was told to all nodes that were connected, and so is its end
	over  bool  // this node has ended the pause of all nodes for itself, and another one is to end it for all
	place int   // in Node.pauseEnds
}

func (p *pauseEnd) Sooner(than *pauseEnd) bool { return p.look < than.look }
func (p *pauseEnd) Position() *int             { return &p.place }

// pauseEnds are the pauses that have an end.
type pauseEnds struct {
	due    table.Schedule[*pauseEnd]
	queues map[string]*pauseEnd
}

// add looks at a queue's pause at a time (unix ms), or sooner.
func (p *pauseEnds) add(queue string, at int64) *pauseEnd {
	e := p.queues[queue]
	if e == nil {
		e = &pauseEnd{queue: queue, look: at}
		if p.queues == nil {
			p.queues = map[string]*pauseEnd{}
		}
		p.queues[queue] = e
		heap.Push(&p.due, e)
	} else if at < e.look {
		e.look = at
		heap.Fix(&p.due, e.place)
	}
	return e
}

// tickPauses ends the pauses whose time is over.
func (n *Node) tickPauses() {
	p := &n.pauseEnds
	for budget := tickBudget; len(p.due) > 0 && p.due[0].look <= n.now && budget > 0; budget-- {
		e := heap.Pop(&p.due).(*pauseEnd)
		delete(p.queues, e.queue)
		from := len(n.effects)
		n.pauseDue(e)
		budget -= n.cost(from)
	}
	if len(p.due) > 0 {
		n.wake = min(n.wake, max(p.due[0].look, n.now+1))
	}
}

// pauseDue ends a queue's pause, or sees when to look again.
func (n *Node) pauseDue(e *pauseEnd) {
	name := []byte(e.queue)
	if e.until > 0 && e.until <= n.now {
		e.until = 0
		n.endOwnPause(name, e.all)
	}
	entry := n.pauseEntry(name)
	switch until := pauseUntil(entry); {
	case e.until > 0:
		n.pauseEnds.add(e.queue, e.until).until = e.until
	case until == 0:
	case until > n.now:
		n.pauseEnds.add(e.queue, until)
	case n.endsForAll(entry):
		_, _ = n.PauseEverywhere(name, 0, 0) // an end makes no queue, so it can't fail
	default:
		if n.pauseOf(entry) == 0 && !e.over {
			_, _ = n.setPause(name, 0)
			e.over = true
		}
		n.pauseEnds.add(e.queue, n.now+pauseLookMS).over = e.over
	}
}

// endOwnPause ends the pause of this node alone: what all nodes are to know counts again.
func (n *Node) endOwnPause(name []byte, all bool) {
	if all {
		_, _ = n.PauseEverywhere(name, 0, 0)
		return
	}
	mask := n.pauseOf(n.pauseEntry(name))
	_, _ = n.setPause(name, mask) // the queue is there, or it is paused by its name when it is made
	if mask == 0 {
		n.pauseEndsAway(name)
	}
}

// endsForAll says whether it is this node that ends a pause of all nodes whose time is over: it made the pause, or it is the first of the
// connected nodes while that one is away.
func (n *Node) endsForAll(e *entries.Entry) bool {
	if e.Stamp.Node == n.self.Node() {
		return true
	}
	if n.makerConnected(e) {
		return false
	}
	for _, p := range n.mesh.All() {
		if p.Connected && p.Node < n.self.Node() {
			return false
		}
	}
	return true
}

func (n *Node) makerConnected(e *entries.Entry) bool {
	p := n.mesh.ByName(e.Stamp.Node)
	return p != nil && p.Connected
}

// SetPause sets a queue's pause bits at this node, for span ms (0: without end), and returns what they are now. The queue
// is made where it is needed to remember them.
func (n *Node) SetPause(name []byte, mask uint8, span int64) (uint8, error) {
	mask, err := n.setPause(name, mask)
	if err == nil {
		n.pauseFor(name, span, false)
	}
	return mask, err
}

// pauseFor sets when the pause of this node alone ends that was just made, in ms; 0: never.
func (n *Node) pauseFor(name []byte, span int64, all bool) {
	if e := n.pauseEnds.queues[string(name)]; e != nil {
		e.until = 0
	}
	if span > 0 {
		e := n.pauseEnds.add(string(name), n.now+span)
		e.until, e.all = n.now+span, all
		n.hurryTick()
	}
}

// setPause is SetPause, and leaves the pause's end as it is.
func (n *Node) setPause(name []byte, mask uint8) (uint8, error) {
	q := n.Queue(name)
	if q == nil {
		if mask == 0 {
			return 0, nil
		}
		if n.passive {
			return 0, ErrReplica
		}
		var err error
		if q, err = n.queue(name); err != nil {
			return 0, err
		}
	}
	was := q.Pause
	q.Pause = mask
	q.ATime = n.now
	if mask != 0 {
		n.show(q)
	}
	n.takeBack(q)
	n.letIn()
	n.serve(q)
	if (was|mask)&PauseOut == 0 || n.passive || n.loading || len(n.mesh.All()) == 0 {
		return mask, nil
	}
	if mask&PauseOut != 0 {
		n.importsOf(string(name)).paused = false // clients may have waited here until a moment ago, so the others are told again
		n.wantNone(string(name))
	}
	if list := n.waits[string(name)]; list != nil {
		n.askAt(list, n.now)
		n.hurryTick()
	}
	return mask, nil
}

// PauseEverywhere is SetPause for this and all other nodes (PAUSE … BCAST), also those that are away. If the name
// is longer than an entry's can be, only nodes that are connected hear of it, as those of earlier releases do.
func (n *Node) PauseEverywhere(name []byte, mask uint8, span int64) (uint8, error) {
	if mask != 0 && !n.passive && n.pauseEntry(name) == nil {
		if n.alike.Count(EntryPause) >= pausesMost {
			return 0, ErrManyPauses
		}
		if err := n.EntryFits(len(name) + pauseTimed); err != nil {
			return 0, err
		}
	}
	mask, err := n.setPause(name, mask)
	if err != nil || n.passive {
		return mask, err
	}
	if mask == 0 {
		n.pauseEndsAway(name)
	}
	long := len(name) > entries.MaxName
	if long {
		n.pauseFor(name, span, true)
	} else {
		n.pauseFor(name, 0, false)
		value := []byte{mask}
		switch {
		case mask == 0:
			value = nil // the end is told even if this node knows of no pause: another one may
		case span > 0:
			value = binary.LittleEndian.AppendUint64(value, uint64(n.now+span))
			n.pauseEnds.add(string(name), n.now+span)
			n.hurryTick()
		}
		n.ChangeEntry(EntryPause, string(name), value)
	}
	m := wire.Message{Kind: wire.Pause, Queue: name, Count: uint32(mask)}
	n.tellWhere(&m, func(p *Peer) bool { return long || !n.knowsEntries(p) })
	return mask, nil
}

// The value of an EntryPause is a byte with the pause's bits, and if the pause has an end, 8 more with that (unix ms, little endian).
const pauseTimed = 9

// pauseOf is what all nodes are to have paused of a queue now.
func (n *Node) pauseOf(e *entries.Entry) uint8 {
	if e == nil || len(e.Value) == 0 {
		return 0
	}
	if until := pauseUntil(e); until > 0 && until <= n.now && !n.makerConnected(e) {
		return 0
	}
	return e.Value[0] & (PauseIn | PauseOut)
}

// pauseUntil is when a pause of all nodes ends, unix ms; 0: it has no end.
func pauseUntil(e *entries.Entry) int64 {
	if e == nil || len(e.Value) < pauseTimed {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(e.Value[1:]) & math.MaxInt64)
}

// PauseLeft is how much longer a queue's pause lasts, in ms; -1: it has no end; 0: the queue isn't paused.
func (n *Node) PauseLeft(name []byte, q *store.Queue) int64 {
	mask := n.PauseOf(name, q)
	until := int64(0)
	if e := n.pauseEnds.queues[string(name)]; e != nil {
		until = e.until
	}
	if entry := n.pauseEntry(name); until == 0 && n.pauseOf(entry) == mask {
		until = pauseUntil(entry)
	}
	switch {
	case mask == 0:
		return 0
	case until == 0:
		return -1
	}
	return max(1, until-n.now)
}

// PauseOf is what is paused of a queue here. q is the queue, or nil if there is none of that name.
func (n *Node) PauseOf(name []byte, q *store.Queue) uint8 {
	if q != nil {
		return q.Pause
	}
	return n.pauseOf(n.pauseEntry(name))
}

// paused says whether a queue, which need not be there, is paused in input or output.
func (n *Node) paused(name []byte, q *store.Queue, way uint8) bool {
	return n.PauseOf(name, q)&way != 0
}

// pauseEntry is what all nodes are to know of a queue's pause; nil: it isn't paused everywhere.
func (n *Node) pauseEntry(name []byte) *entries.Entry {
	if n.alike.Count(EntryPause) == 0 || len(name) > entries.MaxName {
		return nil
	}
	return n.alike.Get(EntryPause, string(name))
}

// pauseNamed pauses a queue that just got its name, if all nodes are to have it paused.
func (n *Node) pauseNamed(q *store.Queue) {
	if e := n.pauseEntry(q.NameBytes()); e != nil {
		q.Pause = n.pauseOf(e)
	}
}

// pauseAgain pauses the queues that all nodes are to have paused: the data that were loaded don't say so. A queue that isn't there is paused
// when it is made (pauseNamed).
func (n *Node) pauseAgain() {
	for e := range n.alike.AllOf(EntryPause) {
		if q := n.store.Queue([]byte(e.Name)); q != nil {
			q.Pause = n.pauseOf(e)
		}
	}
}

// pauseTold carries out a pause, or its end, that another node has told of.
func (n *Node) pauseTold(name []byte, mask uint8) {
	_, _ = n.SetPause(name, mask, 0) // if the queue can't be made there is nothing to pause
	if mask == 0 {
		n.pauseEndsAway(name)
	}
}

// pauseLoaded looks at the end of a pause that a log, or another node, has told of.
func (n *Node) pauseLoaded(e *entries.Entry) {
	if until := pauseUntil(e); until > 0 {
		n.pauseEnds.add(e.Name, until)
		n.wake = min(n.wake, max(until, n.now+1))
	}
}

// pauseEndsAway notes that a pause of all nodes has ended, for the queues of that name that lie in other databases. A pause that begins
// needs no note: such a queue is paused when it comes back (attach).
func (n *Node) pauseEndsAway(name []byte) {
	if len(n.dormant) == 0 {
		return
	}
	if n.pausesEnded == nil {
		n.pausesEnded = map[string]struct{}{}
	}
	if n.pausesEnded[string(name)] = struct{}{}; len(n.pausesEnded) >= pausesEndedMost {
		n.endPausesAway()
	}
}

// endPausesAway carries out what pauseEndsAway has noted. It is called before a queue comes or goes, and so a pause that was made later stays.
// One walk serves all notes: both the notes and the queues may be very many.
func (n *Node) endPausesAway() {
	if len(n.pausesEnded) == 0 {
		return
	}
	for q := range store.Warmed(n.dormant, 1) {
		if q.Pause == 0 {
			continue
		}
		if _, ended := n.pausesEnded[string(q.NameBytes())]; ended {
			q.Pause = 0
		}
	}
	clear(n.pausesEnded)
}
