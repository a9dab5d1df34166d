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
// is over everywhere at once, whatever the other clocks say. While that node isn't connected each other one goes by its own clock, for
// itself alone.

const (
	pausesMost      = 10_000    // queues that are paused everywhere, and queues that are paused here for a time
	pausesEndedMost = 1000      // ended pauses that are noted at most, see pauseEndsAway
	pauseLookMS     = 1_000     // between looks at a pause whose time is over, and which another node is to end
	pauseLeftMS     = 3_600_000 // so long after its time a pause is ended for all by another node than the one that made it
)

// timedPause is a queue's pause that has an end: that of this node alone, or that of all nodes.
type timedPause struct {
	queue string
	look  int64 // unix ms: when to look whether it is over
	own   bool  // what was said last for this node alone counts here, not what all nodes are to know
	until int64 // unix ms: when the pause of this node alone ends; 0: it has no end
	over  bool  // this node has ended the pause of all nodes for itself, and another node is to end it for all
	place int   // in timedPauses.due
}

func (p *timedPause) Sooner(than *timedPause) bool { return p.look < than.look }
func (p *timedPause) Position() *int               { return &p.place }

// timedPauses are the queues whose pause has an end, here or everywhere.
type timedPauses struct {
	due    table.Schedule[*timedPause]
	queues map[string]*timedPause
}

// lookAtPause looks at a queue's pause when it ends, here or everywhere. It forgets the queue if neither pause has an end.
func (n *Node) lookAtPause(name string) {
	p := n.timed.queues[name]
	look := pauseUntil(n.pauseEntry([]byte(name)))
	if p != nil && p.until > 0 && (look == 0 || p.until < look) {
		look = p.until
	}
	switch {
	case look == 0 && p != nil:
		heap.Remove(&n.timed.due, p.place)
		delete(n.timed.queues, name)
	case look > 0:
		n.lookAtPauseAt(name, look)
	}
}

func (n *Node) lookAtPauseAt(name string, look int64) {
	p := n.timed.queues[name]
	if p == nil {
		p = &timedPause{queue: name, look: look}
		if n.timed.queues == nil {
			n.timed.queues = map[string]*timedPause{}
		}
		n.timed.queues[name] = p
		heap.Push(&n.timed.due, p)
	} else {
		p.look = look
		heap.Fix(&n.timed.due, p.place)
	}
	n.wake = min(n.wake, max(look, n.now+1))
}

// tickPauses ends the pauses whose time is over.
func (n *Node) tickPauses() {
	for budget := tickBudget; len(n.timed.due) > 0 && n.timed.due[0].look <= n.now && budget > 0; budget-- {
		from := len(n.effects)
		n.pauseDue(n.timed.due[0])
		budget -= n.cost(from)
	}
	if due := n.timed.due; len(due) > 0 {
		n.wake = min(n.wake, max(due[0].look, n.now+1))
	}
}

// pauseDue ends a queue's pauses whose time is over, and sees when to look again.
func (n *Node) pauseDue(p *timedPause) {
	name := []byte(p.queue)
	was := n.PauseOf(name, n.Queue(name))
	if p.until > 0 && p.until <= n.now {
		p.own, p.until = false, 0 // what all nodes are to know counts again
		n.setPauseAs(name)
		n.tellsPause(name, was, n.PauseOf(name, n.Queue(name)), 0)
	}
	e := n.pauseEntry(name)
	until := pauseUntil(e)
	if until == 0 || until > n.now {
		n.lookAtPause(p.queue)
		return
	}
	if n.endsForAll(e) {
		own := p.own
		n.changed(n.alike.Expire(EntryPause, p.queue, n.self.Node(), n.monotonic()))
		if !own {
			n.setPauseAs(name)
			n.tellsPause(name, was, 0, 0)
		}
		n.tellPause(name, 0)
		n.lookAtPause(p.queue)
		return
	}
	// The node that made it may be back, and say that it isn't over.
	if over := n.pauseOf(e) == 0; over != p.over {
		if p.over = over; !p.own {
			n.setPauseAs(name)
		}
	}
	look := n.now + pauseLookMS
	if p.until > 0 {
		look = min(look, p.until)
	}
	n.lookAtPauseAt(p.queue, look)
}

// setPauseAs pauses a queue as all nodes are to have it. If there is none of that name here, it may lie in another database.
func (n *Node) setPauseAs(name []byte) {
	mask := n.pauseOf(n.pauseEntry(name))
	if n.Queue(name) != nil {
		_, _ = n.setPause(name, mask) // the queue is there, so it needn't be made
	} else if mask == 0 {
		n.pauseEndsAway(name)
	}
}

// endsForAll says whether it is this node that ends a pause of all nodes whose time is over: it made the pause, or it is the first of the
// connected nodes, and the one that made the pause was forgotten, or is away for very long.
func (n *Node) endsForAll(e *entries.Entry) bool {
	if e.Stamp.Node == n.self.Node() {
		return true
	}
	if p := n.mesh.ByName(e.Stamp.Node); p != nil && (p.Connected || n.now-pauseUntil(e) < pauseLeftMS) {
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
	if err := n.timedFits(name, span); err != nil {
		return 0, err
	}
	was := n.PauseOf(name, n.Queue(name))
	mask, err := n.setPause(name, mask)
	if err != nil {
		return mask, err
	}
	n.tellsPause(name, was, mask, span)
	n.ownPause(name, true)
	if span > 0 {
		n.lookAtPauseAt(string(name), n.now+span)
		p := n.timed.queues[string(name)]
		p.own, p.until = true, n.now+span
	}
	n.lookAtPause(string(name))
	return mask, nil
}

// ownPause notes whether what was said last for this node alone counts here, if the pause of all nodes has an end: else that is known by
// itself. The pause that was said for this node before ends.
func (n *Node) ownPause(name []byte, own bool) {
	p := n.timed.queues[string(name)]
	if p == nil && own && pauseUntil(n.pauseEntry(name)) > 0 {
		n.lookAtPause(string(name))
		p = n.timed.queues[string(name)]
	}
	if p != nil {
		p.own, p.until, p.over = own, 0, false
	}
}

// timedFits refuses a pause with an end where there are too many, or the name is too long to remember it.
func (n *Node) timedFits(name []byte, span int64) error {
	switch {
	case span == 0 || n.timed.queues[string(name)] != nil:
		return nil
	case len(name) > entries.MaxName:
		return ErrLongPause
	case len(n.timed.queues) >= 2*pausesMost:
		return ErrManyTimedPauses
	}
	return nil
}

// setPause sets a queue's pause bits, and leaves the pause's end as it is.
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
		if err := n.EntryFits(EntryPause, len(name)+pauseTimed); err != nil {
			return 0, err
		}
	}
	if err := n.timedFits(name, span); err != nil {
		return 0, err
	}
	was := n.PauseOf(name, n.Queue(name))
	mask, err := n.setPause(name, mask)
	if err != nil || n.passive {
		return mask, err
	}
	n.tellsPause(name, was, mask, span)
	if mask == 0 {
		n.pauseEndsAway(name)
	}
	if len(name) <= entries.MaxName {
		value := []byte{mask}
		switch {
		case mask == 0:
			value = nil // the end is told even if this node knows of no pause: another one may
		case span > 0:
			value = binary.LittleEndian.AppendUint64(value, uint64(n.now+span))
		}
		n.ChangeEntry(EntryPause, string(name), value)
	}
	n.ownPause(name, false)
	n.lookAtPause(string(name))
	n.tellPause(name, mask)
	return mask, nil
}

// tellPause tells a pause to nodes that don't know of entries, or to all if no entry can have the name.
func (n *Node) tellPause(name []byte, mask uint8) {
	m := wire.Message{Kind: wire.Pause, Queue: name, Count: uint32(mask)}
	n.tellWhere(&m, func(p *Peer) bool { return len(name) > entries.MaxName || !n.knowsEntries(p) })
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
	if n.PauseOf(name, q) == 0 {
		return 0
	}
	until := pauseUntil(n.pauseEntry(name))
	if p := n.timed.queues[string(name)]; p != nil && p.own {
		until = p.until
	}
	if until == 0 {
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

// pauseNamed pauses a queue that just got its name, or came back, if all nodes are to have it paused. It gets no pause of another queue
// that had the name before.
func (n *Node) pauseNamed(q *store.Queue) {
	if e := n.pauseEntry(q.NameBytes()); e != nil {
		q.Pause = n.pauseOf(e)
	}
}

// pauseAnew is pauseNamed for a queue that is new, or had another name: a pause of this node alone is of the queue that had the name before.
func (n *Node) pauseAnew(q *store.Queue) {
	q.Pause = n.pauseOf(n.pauseEntry(q.NameBytes()))
	if name := string(q.NameBytes()); n.timed.queues[name] != nil {
		n.ownPause(q.NameBytes(), false)
		n.lookAtPause(name)
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

// pauseTold carries out a pause, or its end, that a node without entries has told of, or that is of a queue with a very long name.
func (n *Node) pauseTold(name []byte, mask uint8) {
	n.ownPause(name, false)
	_, _ = n.setPause(name, mask) // if the queue can't be made there is nothing to pause
	if mask == 0 {
		n.pauseEndsAway(name)
	}
	n.lookAtPause(string(name))
}

// pauseLearnt carries out an entry about a pause that another node has told of. The end of a pause whose time is over leaves what was said
// last for this node alone.
func (n *Node) pauseLearnt(e *entries.Entry) {
	name := []byte(e.Name)
	if p := n.timed.queues[e.Name]; p == nil || !p.own || !e.Expired() {
		n.ownPause(name, false)
		_, _ = n.setPause(name, n.pauseOf(e))
		if e.Deleted {
			n.pauseEndsAway(name)
		}
	}
	n.lookAtPause(e.Name)
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
