package engine

import (
	"container/heap"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/table"
)

// Clients that wait in GETJOB, and the job that a client gets.

// Waiter is a client blocked in GETJOB. The engine only keeps Client for the caller.
type Waiter struct {
	Client any
	Worker []byte // the name that the client gave itself, or nil; the caller's
	Lease  int64  // how long the client wants to have a job, seconds; 0: for the job's retry time; the caller's
	Count  int    // how many jobs the client takes at most; 0 is the same as 1
	given  []store.ID
	places []place
	active bool
	left   int    // places that it has left so far, if they are many
	number uint64 // its number among all waiters since the start
	link   table.Link[Waiter]
	noHang noHang
}

// noHang is the state of a waiter that waits only while [Node.Asking]. Such a waiter is in the
// chain (waitList.noHang) of one of its lines at a time, and then in that of the next. So when
// everything that was asked for a queue is answered, only waiters that may go are looked at.
type noHang struct {
	yes  bool
	at   int // the index of its place
	over int // how many places, up to that one, are passed because nothing is asked for them
	link table.Link[Waiter]
}

func amongNoHang(w *Waiter) *table.Link[Waiter] { return &w.noHang.link }

const (
	waitSlice   = 40   // clients released at once: the server writes to each one's socket
	takeCost    = 10   // a client that is answered costs as much as so many jobs for a client that takes several
	placeSlice  = 500  // places that are left at once
	returnSlice = 1000 // buckets of the queue table looked at in one tick for queues that have returned
	manyPlaces  = 64   // a waiter with more leaves them bit by bit
)

// waiters are the clients that wait, in the order in which they came.
type waiters struct {
	table.Chain[Waiter]
	number  uint64
	ends    []waitsEnd  // carried out one after the other
	told    []*waitList // lines for which everything asked is answered, and that have noHang waiters
	leaving []*Waiter   // wait no more, but are still in lines
}

func amongAll(w *Waiter) *table.Link[Waiter] { return &w.link }

// waitsEnd releases the waiters with numbers up to upTo.
type waitsEnd struct {
	upTo uint64
	err  error
}

// place is a waiter's position in one queue's line.
type place struct {
	list   *waitList
	waiter *Waiter
	link   table.Link[place]
}

func inList(p *place) *table.Link[place] { return &p.link }

// waitList is the line of clients waiting for one queue, first come first
// served. It belongs to the queue's name: a client can wait for a queue that
// doesn't exist yet.
type waitList struct {
	name string
	table.Chain[place]
	at          int    // in Node.lines
	number      uint64 // its number among all lines since the start
	due         int64  // when other nodes are to be asked again
	pos         int    // in Node.asking
	since       int64
	lastArrival int64
	noHang      table.Chain[Waiter] // the noHang waiters that wait for this queue's answers now
	told        bool                // it is in waiters.told
}

// Wait puts a client in line for the named queues. Names given twice count once. It returns
// ErrLeaving if this node is leaving.
func (n *Node) Wait(names [][]byte, client any) (*Waiter, error) {
	if n.leaving {
		return nil, ErrLeaving
	}
	w := &Waiter{Client: client, active: true, places: make([]place, 0, len(names))}
	for _, name := range names {
		list := n.waits[string(name)]
		if list == nil {
			n.lineSeen++
			list = &waitList{name: string(name), since: n.now, at: len(n.lines), number: n.lineSeen}
			n.waits[list.name] = list
			n.lines = append(n.lines, list)
			heap.Push(&n.asking, list)
		}
		// Only this call can have put w at the end of the line: the name was given twice.
		if list.Tail != nil && list.Tail.waiter == w {
			continue
		}
		w.places = append(w.places, place{list: list, waiter: w})
		list.Add(&w.places[len(w.places)-1], inList)
		list.lastArrival = n.now
		n.countWaiters(list)
		n.need(list)
	}
	n.blocked++
	o := &n.waiters
	o.number++
	w.number = o.number
	o.Add(w, amongAll)
	return w, nil
}

// WaitForAnswers is Wait for a client that waits only while [Node.Asking] says so of the
// queues.
func (n *Node) WaitForAnswers(names [][]byte, client any) (*Waiter, error) {
	w, err := n.Wait(names, client)
	if err == nil && len(w.places) > 0 {
		w.noHang.yes = true
		n.stay(w)
	}
	return w, err
}

// stay puts a noHang waiter into the chain of the line at its place.
func (n *Node) stay(w *Waiter) {
	list := w.places[w.noHang.at].list
	list.noHang.Add(w, amongNoHang)
	n.answered(list)
}

// answered notes for sendAway a line that has noHang waiters, if nothing is asked for it any more.
func (n *Node) answered(list *waitList) {
	if list != nil && list.noHang.Len > 0 && !list.told && n.uniqueMesh.asked[list.name].jobs == 0 {
		list.told = true
		n.waiters.told = append(n.waiters.told, list)
	}
}

// sendAway releases noHang waiters for whose queues all answers are in. If they are very many,
// the next ticks release the rest.
func (n *Node) sendAway() {
	o := &n.waiters
	for clients, places := waitSlice, placeSlice; len(o.told) > 0; {
		list := o.told[0]
		w := list.noHang.Head
		switch {
		case w == nil || n.uniqueMesh.asked[list.name].jobs > 0:
			list.told = false
			o.told[0] = nil
			o.told = o.told[1:]
			continue
		case clients == 0 || places == 0:
			n.hurryTick()
			return
		}
		places--
		h := &w.noHang
		if h.over++; h.over == len(w.places) {
			clients--
			n.Cancel(w)
			n.effects = append(n.effects, Effect{Kind: Release, Waiter: w})
			continue
		}
		list.noHang.Remove(w, amongNoHang)
		h.at = (h.at + 1) % len(w.places)
		if n.uniqueMesh.asked[w.places[h.at].list.name].jobs > 0 {
			h.over = 0
		}
		n.stay(w)
	}
}

func (n *Node) countWaiters(list *waitList) {
	if q := n.store.Queue([]byte(list.name)); q != nil {
		q.Waiters = uint32(list.Len)
	}
}

// Cancel takes a waiter out of all its lines, and does nothing if the waiter has been served.
// From very many lines the waiter is taken out bit by bit; meanwhile the lines that it is
// still in skip it.
func (n *Node) Cancel(w *Waiter) {
	if !w.active {
		return
	}
	w.active = false
	n.blocked--
	o := &n.waiters
	o.Remove(w, amongAll)
	if w.noHang.yes {
		w.places[w.noHang.at].list.noHang.Remove(w, amongNoHang)
	}
	if len(w.places) > manyPlaces {
		o.leaving = append(o.leaving, w)
		n.hurryTick()
		return
	}
	for i := range w.places {
		n.leave(&w.places[i])
	}
}

// leave takes a waiter out of one line.
func (n *Node) leave(p *place) {
	list := p.list
	if list == nil {
		return
	}
	p.list = nil
	list.Remove(p, inList)
	n.countWaiters(list)
	if list.Len == 0 {
		delete(n.waits, list.name)
		n.keepFor(list.name, keepMS)
		last := len(n.lines) - 1
		n.lines[list.at] = n.lines[last]
		n.lines[list.at].at = list.at
		n.lines[last] = nil
		n.lines = n.lines[:last]
		heap.Remove(&n.asking, list.pos)
	}
}

// tickWaits releases some more waiters for endWaits, and takes some that were cancelled out of
// their lines.
func (n *Node) tickWaits() {
	o := &n.waiters
	for budget := waitSlice; len(o.ends) > 0; budget-- {
		w := o.Head
		if w == nil || w.number > o.ends[0].upTo {
			o.ends = o.ends[1:]
			continue
		}
		if budget <= 0 {
			n.hurryTick()
			break
		}
		n.Cancel(w)
		n.effects = append(n.effects, Effect{Kind: Release, Waiter: w, Err: o.ends[0].err})
	}
	for budget := placeSlice; len(o.leaving) > 0; {
		w := o.leaving[0]
		for ; w.left < len(w.places) && budget > 0; budget-- {
			n.leave(&w.places[w.left])
			w.left++
		}
		if budget <= 0 {
			n.hurryTick()
			break
		}
		o.leaving[0] = nil
		o.leaving = o.leaving[1:]
	}
}

// waitersOf counts the clients that wait for a queue.
func (n *Node) waitersOf(q *store.Queue) uint32 {
	if q.Flags&queueReturned != 0 {
		q.Waiters = 0
		n.welcome(q)
	}
	return q.Waiters
}

// tickReturned counts and serves the clients that wait for queues that SWAPDB has brought, some
// queues at a time.
func (n *Node) tickReturned() {
	for range returnSlice {
		if !n.returns {
			return
		}
		n.scratch.queues = n.scratch.queues[:0]
		n.returnAt = n.store.ScanQueues(n.returnAt, &n.scratch.queues)
		for _, q := range n.scratch.queues {
			if q.Flags&queueReturned != 0 {
				n.waitersOf(q)
				q.Flags &^= queueReturned
				n.serveBehind(q)
			}
		}
		n.returns = n.returnAt != 0
	}
	n.hurryTick()
}

// firstOf returns the client that has waited longest for a queue; nil: none waits.
func (n *Node) firstOf(q *store.Queue) *Waiter {
	for n.waitersOf(q) > 0 {
		p := n.waits[string(q.NameBytes())].Head
		if p.waiter.active {
			return p.waiter
		}
		n.leave(p)
	}
	return nil
}

// hand delivers a job to a client that waits, and takes no more.
func (n *Node) hand(w *Waiter, j *store.Job) {
	j = n.give(w, j)
	n.effects = append(n.effects, Effect{Kind: Serve, Waiter: w, Job: j})
}

// give delivers a job to a client. The client doesn't wait any more.
func (n *Node) give(w *Waiter, j *store.Job) *store.Job {
	n.Cancel(w)
	j = n.deliver(j, w.Lease)
	if w.Worker != nil {
		j = n.SetWorker(j, w.Worker)
	}
	return j
}

// takers are the clients that are being served from one queue, and take several jobs each (COUNT). Each client in line
// gets one job before any of them gets its second. So none hoards what the others could do. They are answered
// together, when the queue is empty or each has as many as it takes.
type takers struct {
	list []*Waiter // those that take more
	at   int       // whose turn it is
	all  []*Waiter
}

// next returns the client that gets the next job; nil: none takes more.
func (t *takers) next() *Waiter {
	if len(t.list) == 0 {
		return nil
	}
	t.at %= len(t.list)
	return t.list[t.at]
}

// took notes that a client got a job.
func (t *takers) took(w *Waiter, id *store.ID) {
	if len(w.given) == 0 {
		t.all = append(t.all, w)
		t.list = append(t.list, w)
		w.given = append(w.given, *id)
		return
	}
	if w.given = append(w.given, *id); len(w.given) < w.Count {
		t.at++
		return
	}
	t.list = slices.Delete(t.list, t.at, t.at+1)
}

// answerTakers answers the clients. The end of a job whose key was busy may have moved one of their jobs since, or
// deleted it.
func (n *Node) answerTakers(t *takers) {
	for _, w := range t.all {
		jobs := n.refetched(n.scratch.jobs[:0], w.given)
		n.scratch.jobs, w.given = jobs, nil
		for _, j := range jobs {
			n.effects = append(n.effects, Effect{Kind: Serve, Waiter: w, Job: j})
		}
		if len(jobs) == 0 {
			n.effects = append(n.effects, Effect{Kind: Release, Waiter: w})
		}
	}
}

// Hear calls receive, which takes in all messages that have arrived from other nodes. Clients are
// served only after all of them: if this node stood still, one message may hand a job over to it, and
// a later one acknowledge that job. receive may call Receive, SetNow and Effects for each message.
func (n *Node) Hear(receive func()) {
	defer func() { n.hearing = false }()
	n.hearing = true
	receive()
	n.hearing = false
	n.serveOn()
}

// serve hands waiting jobs to waiting clients; to very many of them bit by bit.
func (n *Node) serve(q *store.Queue) {
	if n.choosing || n.waitersOf(q) > 0 || n.demands.Len() > 0 {
		budget := busySteps
		n.serveWaiting(q, &budget)
	}
}

// serveWithin is serve with a budget for the jobs that are moved out of the way.
func (n *Node) serveWithin(q *store.Queue, budget *int) {
	if n.choosing || n.waitersOf(q) > 0 || n.demands.Len() > 0 {
		n.serveWaiting(q, budget)
	}
}

// serveWaiting is serve where somebody may be waiting.
func (n *Node) serveWaiting(q *store.Queue, budget *int) {
	if n.choosing || n.hearing {
		n.serveLater(q)
		return
	}
	var several takers
	more := false
	for served := 0; q.Head != nil && q.Pause&PauseOut == 0 && !n.passive && !n.loading; {
		if served >= waitSlice*takeCost {
			more = true
			break
		}
		w := n.firstOf(q)
		waits := w != nil
		if !waits {
			if w = several.next(); w == nil {
				break
			}
		}
		n.term = w.Lease
		j := n.next(q, budget)
		n.term = 0
		if j == nil {
			break
		}
		served += 1 + len(j.Record())/tickPiece
		if waits {
			served += takeCost - 1
		}
		switch {
		case waits && !w.active:
			// An acquisition that was decided meanwhile has served w. Then j is for the next waiter.
		case w.Count <= 1:
			n.hand(w, j)
		default:
			several.took(w, &n.give(w, j).ID)
		}
	}
	n.answerTakers(&several)
	if more {
		n.serveLater(q)
		return
	}
	if n.demands.Len() > 0 && q.Head != nil && !n.passive && !n.loading {
		n.serveDemandLater(q)
	}
}

// endWaits releases every client that waits by now with err, or with the null array if err is
// nil. If they are very many, the next ticks release the rest; one of the rest may still be
// given a job.
func (n *Node) endWaits(err error) {
	if n.blocked > 0 {
		n.waiters.ends = append(n.waiters.ends, waitsEnd{n.waiters.number, err})
		n.tickWaits()
	}
}

// endAdds refuses every ADDJOB that waits for its copies, answers every WAITCOPIES and every question, and ends every acquisition, as when
// the node becomes a replica. If they are very many, the next ticks do the rest. But the votes
// that others gave for those acquisitions are taken back at once: a moment later no node hears
// this one any more.
func (n *Node) endAdds() {
	if !n.ending {
		n.locks.BeginEnd()
	}
	n.endSpares()
	n.ending = true
	n.locks.ForgetPending()
	n.begins = beginnings{}
	n.tickEnding(waitSlice)
}

// Farewell does at once all that endAdds does, for a process that ends. Its changes aren't saved.
// Its messages count: by them other nodes delete copies, and take votes back.
func (n *Node) Farewell() {
	n.endAdds()
	for n.ending {
		n.tickEnding(waitSlice)
	}
}

// tickEnding goes on with endAdds, for as many clients and acquisitions as budget says.
func (n *Node) tickEnding(budget int) {
	for ; n.ending && budget > 0; budget-- {
		switch {
		case !n.unbundleSome(true, 1): // one after the other
		case len(n.copyWaits.ends) > 0:
			budget -= n.answerCopies(n.copyWaits.ends[0]) - 1
		case len(n.waiting) > 0:
			ad := n.waiting[len(n.waiting)-1]
			n.cleanUp(ad)
			n.deny(ad, ErrReplica)
		case len(n.questions.due) > 0:
			budget -= n.answerQuestion(n.questions.due[0]) - 1
		case n.locks.EndOne():
		default:
			n.ending = false
		}
	}
	if n.ending {
		n.hurryTick()
	}
}

// Waiting returns how many clients wait for a queue, since when there has been one, and when
// the last one came (unix ms).
func (n *Node) Waiting(name []byte) (clients int, since, last int64) {
	if list := n.waits[string(name)]; list != nil {
		return list.Len, list.since, list.lastArrival
	}
	return 0, 0, 0
}

const busySteps = 1000 // jobs that one fetch moves out of the way, see next

// next returns the job that a client gets from a queue, with the locks that the job needs, or nil. The caller
// delivers the job. Each job that makes way for others uses up some of budget, and more where other nodes are
// asked for its locks. When budget is used up, the next ticks go on.
func (n *Node) next(q *store.Queue, budget *int) *store.Job {
	passing, apart, limited := false, false, !n.unrated(q)
	for from := len(n.effects); *budget > 0; from = len(n.effects) {
		if q.Head != nil && limited && q.Head.ETime > n.now && !n.mayHaveBlock(q) {
			return nil
		}
		j := q.Head
		if passing {
			j = n.beyond(q, apart)
		}
		if j != nil && j.ETime <= n.now {
			n.setAside(j)
			*budget--
			continue
		}
		if j != nil && n.isToGo(j) {
			if n.makesWay(j) {
				*budget--
				continue
			}
			return nil // when the flush is done its clients are served
		}
		if limited && j != nil && !(n.mayBegin(q, j) && n.mayDeliver(q)) {
			return nil
		}
		if j == nil || j.Parts == 0 {
			return j
		}
		id, freed := j.ID, n.store.Freed()
		c := n.choose(j)
		if limited && c != claimHad && c != claimAsked {
			n.dropSpareOf(q, &id)
		}
		switch c {
		case claimHad:
			if n.store.Freed() == freed {
				return j
			}
			// The end of another job may have moved this one, or deleted it.
			if j = n.store.Lookup(&id); j != nil && j.State == store.StateQueued {
				return j
			}
		case claimAsked:
			return nil
		case claimSlow, claimApart:
			if passing {
				n.passOver(j, apart)
			} else {
				passing, apart = true, c == claimApart
			}
		}
		*budget -= 1 + n.cost(from)
	}
	n.serveLater(q)
	return nil
}

// choose calls claimRun. No client is served meanwhile: it could be the client for which the job is chosen,
// if that one waits for another queue as well.
func (n *Node) choose(j *store.Job) claimed {
	n.choosing = true
	defer func() { n.choosing = false }()
	return n.claimRun(j)
}

// serveLater asks the next tick to serve the clients that wait for a queue.
func (n *Node) serveLater(q *store.Queue) {
	name := string(q.NameBytes())
	if last := len(n.unserved) - 1; last < 0 || n.unserved[last] != name {
		n.unserved = append(n.unserved, name)
	}
	n.hurryTick()
}

// serveOn goes on with queues in which very many jobs had to make way, or were given to clients.
func (n *Node) serveOn() {
	names := n.unserved
	n.unserved = nil
	for budget := tickBudget; len(names) > 0 && budget > 0; names = names[1:] {
		from, again := len(n.effects), len(n.unserved)
		if q := n.store.Queue([]byte(names[0])); q != nil {
			n.serve(q)
		}
		budget -= 1 + n.cost(from) + (len(n.unserved)-again)*busySteps
	}
	if n.unserved = append(names, n.unserved...); len(n.unserved) > 0 {
		n.hurryTick()
	}
}
