package engine

import "jobmesh/module/store"

// Waiter is a client blocked in GETJOB. Client is the caller's.
type Waiter struct {
	Client any
	Worker []byte // the name that the client gave itself, or nil; the caller's
	Hasty  bool   // waits only while [Node.Asking]; the caller's
	places []place
	active bool
}

// place is a waiter's position in one queue's line.
type place struct {
	list       *waitList
	waiter     *Waiter
	prev, next *place
}

// waitList is the line of clients waiting for one queue, first come first
// served. It goes by the queue's name: a client can wait for what doesn't
// exist yet.
type waitList struct {
	name        string
	head, tail  *place
	len         int
	at          int // in Node.lines
	since       int64
	lastArrival int64
}

// Wait puts a client in line for the named queues. Names given twice count once.
func (n *Node) Wait(names [][]byte, client any) (*Waiter, error) {
	if n.leaving {
		return nil, ErrLeaving
	}
	w := &Waiter{Client: client, active: true, places: make([]place, 0, len(names))}
	for _, name := range names {
		list := n.waits[string(name)]
		if list == nil {
			list = &waitList{name: string(name), since: n.now, at: len(n.lines)}
			n.waits[list.name] = list
			n.lines = append(n.lines, list)
		}
		// Only this call can have put w at the end of the line.
		if list.tail != nil && list.tail.waiter == w {
			continue
		}
		w.places = append(w.places, place{list: list, waiter: w, prev: list.tail})
		p := &w.places[len(w.places)-1]
		if list.tail != nil {
			list.tail.next = p
		} else {
			list.head = p
		}
		list.tail = p
		list.len++
		list.lastArrival = n.now
		n.countWaiters(list)
		n.need(list)
	}
	n.blocked++
	return w, nil
}

func (n *Node) countWaiters(list *waitList) {
	if q := n.store.Queue([]byte(list.name)); q != nil {
		q.Waiters = uint32(list.len)
	}
}

// Cancel takes a waiter out of all its lines; nothing where it has been served.
func (n *Node) Cancel(w *Waiter) {
	if !w.active {
		return
	}
	w.active = false
	n.blocked--
	for i := range w.places {
		p := &w.places[i]
		list := p.list
		if p.prev != nil {
			p.prev.next = p.next
		} else {
			list.head = p.next
		}
		if p.next != nil {
			p.next.prev = p.prev
		} else {
			list.tail = p.prev
		}
		list.len--
		n.countWaiters(list)
		if list.len == 0 {
			delete(n.waits, list.name)
			last := len(n.lines) - 1
			n.lines[list.at] = n.lines[last]
			n.lines[list.at].at = list.at
			n.lines = n.lines[:last]
		}
	}
}

// hand delivers a job to the client who has waited longest for its queue.
func (n *Node) hand(q *store.Queue, j *store.Job) {
	w := n.waits[string(q.NameBytes())].head.waiter
	n.Cancel(w)
	n.deliver(j)
	if w.Worker != nil {
		j = n.Employ(j, w.Worker)
	}
	n.effects = append(n.effects, Effect{Kind: Serve, Waiter: w, Job: j})
}

// serve hands waiting jobs to waiting clients.
func (n *Node) serve(q *store.Queue) {
	if n.choosing {
		n.serveLater(q)
		return
	}
	for q.Waiters > 0 && q.Head != nil && q.Pause&PauseOut == 0 && !n.passive && !n.loading {
		j := n.next(q)
		if j == nil {
			break
		}
		n.hand(q, j)
	}
	if len(n.hungry) > 0 && q.Head != nil && !n.passive && !n.loading {
		n.feed(q)
	}
}

// endWaits releases every waiting client with an error, or the null array.
func (n *Node) endWaits(err error) {
	for n.blocked > 0 {
		// Any list will do; but the order of a map's walk must not show in
		// what a seeded run does, so the waiters of all lists are released in
		// the order of the smallest name.
		var first string
		found := false
		for name := range n.waits {
			if !found || name < first {
				first, found = name, true
			}
		}
		for list := n.waits[first]; list.len > 0; {
			w := list.head.waiter
			n.Cancel(w)
			n.effects = append(n.effects, Effect{Kind: Release, Waiter: w, Err: err})
		}
	}
}

// endAdds refuses every ADDJOB that waits for its copies.
func (n *Node) endAdds(err error) {
	for len(n.waiting) > 0 {
		ad := n.waiting[len(n.waiting)-1]
		n.cleanUp(ad)
		n.deny(ad, err)
	}
}

// Waiting tells how many clients wait for a queue, and since when (unix ms)
// anybody has.
func (n *Node) Waiting(name []byte) (clients int, since, last int64) {
	if list := n.waits[string(name)]; list != nil {
		return list.len, list.since, list.lastArrival
	}
	return 0, 0, 0
}
