package engine

import (
	"jobmesh/module/entries"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Pauses. A queue that is paused in input takes no jobs, one that is paused in output gives none. PAUSE says so for one node, and with
// BCAST for all nodes, by an entry (entries.go).

const (
	pausesMost      = 10_000
	pausesEndedMost = 1000 // ended pauses that are noted at most, see pauseEnds
)

// SetPause sets a queue's pause bits and returns what they are now. The queue
// is made where it is needed to remember them.
func (n *Node) SetPause(name []byte, mask uint8) (uint8, error) {
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

// PauseEverywhere sets a queue's pause bits here and at all other nodes (PAUSE … BCAST), also at those that are away. It returns them. If the name
// is longer than an entry's can be, only nodes that are connected hear of it, as those of earlier releases do.
func (n *Node) PauseEverywhere(name []byte, mask uint8) (uint8, error) {
	if mask != 0 && !n.passive && n.pauseEntry(name) == nil {
		if n.alike.Count(EntryPause) >= pausesMost {
			return 0, ErrManyPauses
		}
		if err := n.EntryFits(len(name) + 1); err != nil {
			return 0, err
		}
	}
	mask, err := n.SetPause(name, mask)
	if err != nil || n.passive {
		return mask, err
	}
	if mask == 0 {
		n.pauseEnds(name)
	}
	long := len(name) > entries.MaxName
	if !long {
		value := []byte{mask}
		if mask == 0 {
			value = nil // the end is told even if this node knows of no pause: another one may
		}
		n.ChangeEntry(EntryPause, string(name), value)
	}
	m := wire.Message{Kind: wire.Pause, Queue: name, Count: uint32(mask)}
	n.tellWhere(&m, func(p *Peer) bool { return long || !n.knowsEntries(p) })
	return mask, nil
}

// pauseOf is what all nodes are to know of a queue's pause.
func pauseOf(e *entries.Entry) uint8 {
	if e == nil || len(e.Value) == 0 {
		return 0
	}
	return e.Value[0] & (PauseIn | PauseOut)
}

// PauseOf is what is paused of a queue here. q is the queue, or nil if there is none of that name.
func (n *Node) PauseOf(name []byte, q *store.Queue) uint8 {
	if q != nil {
		return q.Pause
	}
	return pauseOf(n.pauseEntry(name))
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
		q.Pause = pauseOf(e)
	}
}

// pauseAgain pauses the queues that all nodes are to have paused: the data that were loaded don't say so. A queue that isn't there is paused
// when it is made (pauseNamed).
func (n *Node) pauseAgain() {
	for e := range n.alike.AllOf(EntryPause) {
		if q := n.store.Queue([]byte(e.Name)); q != nil {
			q.Pause = pauseOf(e)
		}
	}
}

// pauseTold carries out a pause, or its end, that another node has told of.
func (n *Node) pauseTold(name []byte, mask uint8) {
	_, _ = n.SetPause(name, mask) // if the queue can't be made there is nothing to pause
	if mask == 0 {
		n.pauseEnds(name)
	}
}

// pauseEnds notes that a pause of all nodes has ended, for the queues of that name that lie in other databases. A pause that begins
// needs no note: such a queue is paused when it comes back (attach).
func (n *Node) pauseEnds(name []byte) {
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

// endPausesAway carries out what pauseEnds has noted. It is called before a queue comes or goes, and so a pause that was made later stays.
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
