package engine

import (
	"container/heap"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// Times and amounts of federation (as in Disque).
const (
	importWindow   = 5_000 // ms; a node that gave a job within it is asked directly
	rateBucket     = 1_000
	broadcastFirst = 2_000
	broadcastLast  = 30_000
	broadcastSome  = 4_000  // instead of broadcastMost, where few clients wait
	broadcastEach  = 220    // ms for each message, for the interval grows with the number of lines and nodes
	broadcastMost  = 50_000 // less than demandMS, after which nodes forget who asked
	directFirst    = 25
	directLast     = 2_000
	askLeast       = 5
	askMost        = 100
	demandMS       = 60_000 // how long a node that asked in vain is remembered
	pollFirst      = 100    // between questions for clients that don't wait, doubling while they are in vain
	pollLast       = 2_000
	claimedMS      = 100   // until a line looks again, while runs of its queue's jobs are being acquired
	keepMS         = 2_000 // how long jobs that came stay for a client that was here a moment ago
	spareMS        = 250   // how long they stay while a client of another node waits
	spareEvery     = 20    // until that client's node gets the next one
	pausedMS       = 500   // between looks whether a queue for which clients wait is still paused in output
)

// imports is what a node knows about getting a queue's jobs from other nodes. Times are unix ms.
type imports struct {
	from           []responder // in order of their first response
	bucket         int64       // when the current bucket began
	prev, cur      int64
	last           int64       // the last import
	asked, nextAll int64       // next direct and broadcast questions may go out then
	direct, all    int         // questions since the last success
	poll           int64       // the next question for a client that doesn't wait
	polls          int         // of those since the last success
	keep           int64       // until then jobs that came stay for clients that were here a moment ago
	told           int64       // when a node that gave a job was told last that nobody waits here
	spareTold      int64       // when all were told last that jobs lie here (demandTime)
	lies           int64       // since when jobs that came lie here, if some do
	spares         []wire.Node // nodes that have told that jobs lie there, and weren't asked since
	paused         bool        // all were told that nobody here can be given jobs
	anew           uint32      // Node.anew, as seen last
	met            uint64      // Node.met, when all were asked last
}

type responder struct {
	node wire.Node
	at   int64
}

// rate is how many jobs a second came in lately; 0 after 5 s without any.
func (i *imports) rate(now int64) int64 {
	if i == nil || i.last == 0 || now-i.last > importWindow {
		return 0
	}
	span := max(50, now-i.bucket+rateBucket)
	return ((i.prev+i.cur)*1000 + span - 1) / span
}

func (i *imports) count(now int64) {
	if now-i.bucket > rateBucket {
		i.prev, i.cur, i.bucket = i.cur, 0, now
	}
	i.cur++
	i.last = now
}

// demand lists the nodes that asked for jobs of a queue that had none, first come first served.
type demand struct{ line []demandOf }

type demandOf struct {
	node   wire.Node
	credit uint32
	until  int64
}

// Imports tells which nodes gave jobs of a queue in the last 5 s, and how many jobs a second came.
func (n *Node) Imports(name []byte) (from []wire.NodeID, rate int64) {
	imp := n.imports.Get(string(name))
	if imp == nil {
		return nil, 0
	}
	for _, r := range imp.from {
		if p := n.mesh.ByName(r.node); p != nil && n.now-r.at <= importWindow {
			from = append(from, p.ID)
		}
	}
	return from, imp.rate(n.now)
}

func (n *Node) importsOf(name string) *imports {
	return n.imports.Make(name, imports{bucket: n.now, anew: n.anew})
}

// spares says how many jobs of a queue, up to count, may go to a node that asks now. Jobs that came from other nodes
// stay for clients here: for those that wait, for two seconds for those that were here a moment ago, and for five seconds
// for those that poll. After that, the client that a job came for has gone. A client that waits at another node gets such
// a job sooner, one at a time, and the next one a little later. A client that polls there doesn't: jobs would go round
// between nodes whose clients poll in turn. (A node that asked before is told first that the jobs are here, see spare:
// its client may have gone as well.)
func (n *Node) spares(name string, count uint32, polls bool) uint32 {
	imp := n.imports.Get(name)
	switch {
	case imp.rate(n.now) == 0:
		return count
	case n.waits[name] != nil:
		return 0
	case n.now >= imp.keep:
		return count
	case polls || n.now < imp.lies+spareMS:
		return 0
	}
	imp.lies = max(imp.lies, n.now-spareMS+spareEvery) // clients here may get the next one meanwhile
	return min(count, 1)
}

// keepFor makes jobs that came stay so long for clients that aren't here just now.
func (n *Node) keepFor(name string, ms int64) {
	if imp := n.imports.Get(name); imp != nil {
		imp.keep = max(imp.keep, n.now+ms)
	}
}

// need asks other nodes for jobs that clients wait for here. While the queue is paused in output it asks for none: the
// jobs would lie here, though clients wait elsewhere. A pause begins and ends in many ways (PAUSE, DEL, RENAME,
// a flush, SWAPDB), so need looks at the queue again and again; PAUSE itself calls it at once.
func (n *Node) need(list *waitList) {
	if len(n.mesh.All()) == 0 || n.leaving || n.passive || n.loading {
		return
	}
	imp := n.importsOf(list.name)
	if n.givesNothing([]byte(list.name)) {
		if imp.met != n.met {
			imp.met, imp.paused = n.met, false
		}
		n.wantNone(list.name)
		n.askAt(list, n.now+max(pausedMS, int64(len(n.lines))/10))
		return
	}
	if n.claimsFor(list.name, list.Len) {
		n.askAt(list, n.now+claimedMS)
		return
	}
	if imp.paused || imp.anew != n.anew {
		imp.paused, imp.anew, imp.nextAll = false, n.anew, 0 // the others believe that nobody waits here
	}
	m := wire.Message{Kind: wire.NeedJobs, Queue: []byte(list.name)}
	if n.now < imp.nextAll { // otherwise all nodes are asked below
		m.Count = uint32(min(list.Len, askMost))
		for _, node := range imp.spares {
			if p := n.mesh.ByName(node); p != nil {
				n.send(p, &m)
			}
		}
	}
	imp.spares = imp.spares[:0]
	if n.now >= imp.asked {
		imp.from = slices.DeleteFunc(imp.from, func(r responder) bool { return n.now-r.at > importWindow })
		if len(imp.from) > 0 {
			m.Count = uint32(min(max(imp.rate(n.now)/int64(len(imp.from)), askLeast), askMost))
			for _, r := range imp.from {
				n.send(n.mesh.ByName(r.node), &m)
			}
			imp.asked = n.now + min(int64(directFirst)<<min(imp.direct, 10), directLast)
			imp.direct++
		}
	}
	switch m.Count = uint32(min(list.Len, askMost)); {
	case n.now >= imp.nextAll:
		n.tellAll(&m)
		imp.nextAll = n.now + min(max(int64(broadcastFirst)<<min(imp.all, 10), n.broadcastShare()), n.broadcastLeast())
		imp.all++
		imp.met = n.met
	case imp.met != n.met:
		n.tellWhere(&m, func(p *Peer) bool { return p.met > imp.met })
		imp.met = n.met
	}
	at := imp.nextAll
	if len(imp.from) > 0 {
		at = min(at, imp.asked)
	}
	n.askAt(list, max(at, n.now+1))
}

// broadcastLeast is after how long, at the latest, a line asks all nodes anew, ms. Nodes remember which nodes asked, so a line would hardly
// ever have to ask again. But a question finds what they have forgotten or missed. The more lines and nodes there are, the less often each
// line asks.
func (n *Node) broadcastLeast() int64 {
	if n.lazy {
		return broadcastLast
	}
	return min(max(n.broadcastShare(), broadcastSome), broadcastMost)
}

// broadcastShare is how much time the messages of all lines' next questions are to take, ms.
func (n *Node) broadcastShare() int64 { return broadcastEach * int64(len(n.lines)*len(n.mesh.All())) }

// givesNothing says whether a queue is paused in output here.
func (n *Node) givesNothing(name []byte) bool {
	return n.paused(name, n.store.Queue(name), PauseOut)
}

// wantNone tells all nodes, once in a pause, that nobody here can be given jobs of a queue.
func (n *Node) wantNone(name string) {
	if imp := n.importsOf(name); !imp.paused {
		imp.paused = true
		n.tellAll(&wire.Message{Kind: wire.NeedJobs, Queue: []byte(name)})
	}
}

// claimsFor says whether this node is acquiring the runs of so many jobs of a queue that each of
// the clients may get one. If it asked the others meanwhile, they would give it their next jobs,
// when nobody waits here any more. Acquisitions whose answers take long don't count.
func (n *Node) claimsFor(queue string, clients int) bool {
	a := n.uniqueMesh.asked[queue]
	return a.jobs >= clients && !n.isSlow(a)
}

// askAt sets when a line asks next.
func (n *Node) askAt(list *waitList, at int64) {
	list.due = at
	heap.Fix(&n.asking, list.pos)
	n.wake = min(n.wake, list.due)
}

// Poll asks other nodes for up to count jobs of a queue: a client that doesn't wait found none
// here. The jobs that come are for the next client that asks. So clients that poll get jobs at
// whatever node they ask. While the queue is paused, or known here to be limited, it asks for none.
func (n *Node) Poll(name []byte, count int) {
	if len(n.mesh.All()) == 0 || n.leaving || n.passive || n.loading || n.waits[string(name)] != nil || n.claimsFor(string(name), 1) {
		return
	}
	if n.givesNothing(name) || n.policies.Rated && n.LimitOf(name) != NotLimited { // jobs that came would only lie here
		return
	}
	imp := n.importsOf(string(name))
	if n.now < imp.poll {
		return
	}
	keep := int64(keepMS)
	if n.now < imp.keep {
		keep = importWindow // this isn't the only time that somebody asks here
	}
	imp.keep = n.now + keep
	imp.poll = n.now + min(int64(pollFirst)<<min(imp.polls, 10), pollLast)
	imp.polls++
	imp.paused = false
	m := wire.Message{Kind: wire.NeedJobs, Flags: wire.Polls, Queue: name, Count: uint32(min(count, askMost))}
	n.tellAll(&m)
}

// onNeedJobs gives the jobs that there are, or remembers the node that asked. Large jobs are given
// bit by bit: the node is remembered with what is left of its credit.
func (n *Node) onNeedJobs(p *Peer, m *wire.Message) {
	name := string(m.Queue)
	count := min(m.Count, askMost)
	if count == 0 {
		n.sated(p, name)
		if m.Flags&wire.Spare != 0 {
			n.onSpare(p, name)
		}
		return
	}
	q, spared := n.Queue(m.Queue), uint32(0)
	waiting, polls := q != nil && q.Head != nil, m.Flags&wire.Polls != 0
	if waiting {
		spared = n.spares(name, count, polls)
	}
	if spared > 0 && q.Pause&PauseOut == 0 && n.monotonic() >= p.choked {
		count = spared
		// Half is kept for clients here.
		if q.Len < 2*uint64(count) {
			count = uint32(max(q.Len/2, 1))
		}
		budget := tickBudget
		for ; count > 0 && budget > 0; count-- {
			j, passedOver := n.movable(q, p)
			budget -= passedOver / walkedMost
			if j == nil {
				n.starves(name, p, count) // a job that it can have may lie further behind
				n.serveDemandAgain(name)
				break
			}
			budget -= n.exportCost(j, p)
		}
		if count > 0 && budget <= 0 {
			n.starves(name, p, count)
			n.serveLater(q)
		}
		n.touch(q)
		return
	}
	n.starves(name, p, count)
	switch {
	case waiting && spared > 0:
		n.serveDemandAgain(name)
	case waiting && !polls:
		n.spareLater(name)
	}
}

// starves remembers how many jobs of a queue a node still waits for.
func (n *Node) starves(name string, p *Peer, credit uint32) {
	h := n.demands.Make(name, demand{})
	for i := range h.line {
		if h.line[i].node == p.Node {
			h.line[i].credit, h.line[i].until = credit, n.demandTime()+demandMS
			return
		}
	}
	h.line = append(h.line, demandOf{p.Node, credit, n.demandTime() + demandMS})
}

// starvesStill notes that a node still waits for a job: it didn't get the one that it was given.
func (n *Node) starvesStill(p *Peer, q *store.Queue) {
	credit := uint32(1)
	if h := n.demands.Get(string(q.NameBytes())); h != nil {
		if i := slices.IndexFunc(h.line, func(x demandOf) bool { return x.node == p.Node }); i >= 0 {
			credit += h.line[i].credit
		}
	}
	n.starves(string(q.NameBytes()), p, credit)
	n.serveDemandLater(q)
}

// serveDemandLater gives a queue's jobs to the nodes that wait for some, but only when the event
// is done: a job that is handed over moves in memory, and the caller may go on with it.
func (n *Node) serveDemandLater(q *store.Queue) {
	name := q.NameBytes()
	if last := len(n.unservedDemand) - 1; last >= 0 && n.unservedDemand[last] == string(name) || n.demands.Get(string(name)) == nil {
		return
	}
	n.unservedDemand = append(n.unservedDemand, string(name))
}

// serveDemands does what serveDemandLater has put off. The next tick goes on with what is over the
// budget, first with the queues that got nothing of the budget.
func (n *Node) serveDemands() {
	budget := tickBudget
	var cut *store.Queue
	for i := 0; i < len(n.unservedDemand); i++ {
		q := n.store.Queue([]byte(n.unservedDemand[i]))
		switch {
		case q == nil || n.passive || n.loading:
		case budget <= 0:
			n.serveLater(q)
		case n.serveDemand(q, &budget):
			cut = q
		}
	}
	if cut != nil {
		n.serveLater(cut)
	}
	n.unservedDemand = n.unservedDemand[:0]
}

// serveDemand gives a queue's jobs to the nodes that wait for some, each one in turn. It says
// whether it stopped for the budget.
func (n *Node) serveDemand(q *store.Queue, budget *int) (more bool) {
	name := string(q.NameBytes())
	h := n.demands.Get(name)
	if h == nil || q.Pause&PauseOut != 0 {
		return false
	}
	// Jobs that came from other nodes stay for a while: the node that they would go to may have asked
	// for a client that has gone as well, and they would go round. That node is told that they are here.
	imp := n.imports.Get(name)
	stay := imp.rate(n.now) > 0
	var passed []demandOf // nodes to which none of the jobs can be given
	for len(h.line) > 0 && *budget > 0 {
		first := h.line[0]
		h.line = slices.Delete(h.line, 0, 1)
		p := n.mesh.ByName(first.node)
		if p == nil || !p.Connected || p.Leaving || n.demandTime() >= first.until || first.credit == 0 {
			continue
		}
		if n.mesh.IsAbsent(p.Base()) { // the job would lie there
			passed = append(passed, first)
			n.serveDemandAgain(name)
			continue
		}
		j, passedOver := n.movable(q, p)
		*budget -= passedOver / walkedMost
		stays := j != nil && stay && n.came(j)
		if j == nil || stays || n.monotonic() < p.choked {
			passed = append(passed, first)
			if q.Head != nil {
				n.serveDemandAgain(name)
			}
			if stays {
				n.spareLater(name)
			}
			if stays || q.Head == nil {
				break
			}
			continue
		}
		*budget -= n.exportCost(j, p)
		if first.credit--; first.credit > 0 {
			h.line = append(h.line, first)
		}
	}
	more = len(h.line) > 0 && *budget <= 0
	h.line = append(passed, h.line...)
	if len(h.line) == 0 {
		n.demands.Remove(name)
	}
	return more
}

// came says whether a job has come from another node, for clients here. The ID of a job with a name, or of a recurring job, doesn't say where it was
// added; so this node remembers which of these have come, for longer than that matters.
func (n *Node) came(j *store.Job) bool {
	return !n.isOwn(j) && (!hashed(j.Extras()) || n.imported.Has(j.ID))
}

// hashed says, by a job's extras, whether its ID may be a hash, which doesn't say where the job was added.
func hashed(extras []byte) bool {
	return store.FindExtra(extras, store.TagName) != nil || store.FindExtra(extras, store.TagCron) != nil
}

// importedIDs are jobs with such IDs that have come from other nodes.
type importedIDs struct {
	table.Recent[store.ID]
}

const (
	importedMS  = 60_000
	importedMax = 1 << 16 // jobs of a generation
)

func (r *importedIDs) note(id store.ID, now int64) {
	r.TurnDue(now, importedMS, importedMax)
	r.Add(id)
}

// isOwn says whether a job was added at this node, as far as its ID says.
func (n *Node) isOwn(j *store.Job) bool { return addedBy(j, &n.self) }

// addedBy says whether a job was added at a node, which its ID names by its first bytes.
func addedBy(j *store.Job, node *wire.NodeID) bool { return [4]byte(j.ID[:4]) == [4]byte(node[:4]) }

// creator returns the other node where a job was added; nil: it isn't known.
func (n *Node) creator(j *store.Job) *Peer {
	for _, p := range n.mesh.All() {
		if addedBy(j, &p.ID) {
			return p
		}
	}
	return nil
}

// serveDemandAgain serves the nodes that wait for a queue's jobs after 5 s. By then jobs that came from other nodes
// need not stay any more, and the reason why a job wasn't given may be over. A client that has waited for long at
// one of those nodes doesn't ask again before.
func (n *Node) serveDemandAgain(name string) { n.lookAfter(&n.toServe, name, importWindow+1) }

// serveDemandsSoon does that now, for a node is heard again.
func (n *Node) serveDemandsSoon() { n.lookNow(&n.toServe) }

// spareLater tells the others, after spareMS, of jobs that came from other nodes and still lie here.
func (n *Node) spareLater(name string) { n.lookAfter(&n.toTell, name, spareMS) }

// tickDemands does what serveDemandAgain and spareLater have put off.
func (n *Node) tickDemands() {
	n.tickAgenda(&n.toServe, func(name string) int {
		if q := n.store.Queue([]byte(name)); q != nil {
			n.serveLater(q)
		}
		return 0
	})
	n.tickAgenda(&n.toTell, func(name string) int {
		if imp := n.imports.Get(name); imp != nil && n.spare(name, imp) {
			return len(n.mesh.All())
		}
		return 0
	})
}

// spare tells all nodes that jobs of a queue lie here for which nobody waits, and says whether it did. Nodes where a
// client waits ask for them, and the others ask when a client comes: so a job goes only to where a client waits now,
// and doesn't go round. If no node that wants jobs has asked since the nodes were told last, all of them know already.
func (n *Node) spare(name string, imp *imports) bool {
	q, h := n.store.Queue([]byte(name)), n.demands.Get(name)
	if q == nil || q.Head == nil || q.Pause&PauseOut != 0 || h == nil || n.waits[name] != nil ||
		!slices.ContainsFunc(h.line, func(x demandOf) bool { return x.until-demandMS >= imp.spareTold }) {
		return false
	}
	if n.now < imp.lies+spareMS {
		n.spareLater(name)
		return false
	}
	imp.spareTold = n.demandTime()
	imp.nextAll = 0 // the others believe that nobody waits here
	n.tellAll(&wire.Message{Kind: wire.NeedJobs, Flags: wire.Spare, Queue: []byte(name)})
	return true
}

// onSpare notes a node at which jobs of a queue lie: this node asks it when the next client waits here, or at once if
// one does. If no client has waited here for long, all nodes are asked for the next one anyway.
func (n *Node) onSpare(p *Peer, name string) {
	imp := n.imports.Get(name)
	if imp == nil {
		return
	}
	if !slices.Contains(imp.spares, p.Node) {
		imp.spares = append(imp.spares, p.Node)
	}
	if list := n.waits[name]; list != nil {
		n.need(list)
	}
}

// sated takes a node out of those that wait for jobs of a queue, until it asks again.
func (n *Node) sated(p *Peer, name string) {
	if h := n.demands.Get(name); h != nil {
		h.line = slices.DeleteFunc(h.line, func(x demandOf) bool { return x.node == p.Node })
	}
}

// movable finds the first waiting job that can be handed over to a node, and how many jobs it passed
// over. An at-most-once job that others wait for can't be handed over, for they wait here. Nor can a
// job whose key is being worked on, or one that is larger than a message may be.
func (n *Node) movable(q *store.Queue, p *Peer) (_ *store.Job, steps int) {
	var next *store.Job
	first, steps := n.behind(q, p)
	for j := first; j != nil && steps < busySteps; j = next {
		next = j.Next
		if j.ETime <= n.now {
			n.setAside(j)
			if steps++; steps == busySteps {
				n.serveLater(q) // there may be others behind so many
			}
			continue
		}
		steps++
		if !n.fits(p, j) {
			continue // if its key is busy, the next fetch here decides what becomes of it
		}
		u := j.Unique()
		if u == nil || u.Busy() != store.BusyWait || n.runLock(j, u) == nil {
			return j, steps - 1
		}
		n.store.HoldBack(j, u)
	}
	return nil, steps
}

// export hands a waiting job over: an at-most-once job moves, another stays
// here as a copy that waits for its retry time.
func (n *Node) export(j *store.Job, p *Peer) {
	n.Stats.Exported++
	j.Queue.JobsOut++
	j.Queue.ATime = n.now
	if j.Retry == 0 {
		n.offer(j, p)
		return
	}
	n.store.Hold(j)
	setDelivered(j)
	known := j.Holders()
	j, added := n.addHolder(j, p.Node)
	j.ClearConfirmed()
	j.Confirm(uint64(p.Node))
	j.AnswerFor(uint64(p.Node))
	m := n.copyOf(j, wire.YourJob)
	if !added {
		m.Flags = wire.Had
	}
	n.send(p, m)
	p.gave(j, n.now)
	if added && known > 0 {
		n.spread(j)
	}
	n.postpone(j)
}

// exportCost is export, and returns its cost in a tick's budget.
func (n *Node) exportCost(j *store.Job, p *Peer) int {
	from := len(n.effects)
	n.export(j, p)
	return 1 + n.cost(from)
}

// onYourJob queues a job that another node hands over.
func (n *Node) onYourJob(p *Peer, m *wire.Message) {
	id := store.ID(m.ID)
	if n.tombstones.has(&id) {
		n.sendAck(p, n.tombstones.ack(&id))
		return
	}
	j := n.lookEnded(&id)
	if j != nil && m.Job.Retry == 0 {
		ad := n.pendingAddOf(&id)
		if ad == nil {
			return // there is only one copy, and this node has it
		}
		// The node that was sent the copy gives it back, before it confirms.
		if n.achieved(j, ad); n.tombstones.has(&id) {
			n.sendAck(p, n.tombstones.ack(&id)) // its client was refused before
			return
		}
		j = nil
	}
	if j == nil {
		if m.Flags&wire.Had != 0 && m.Job.Retry > 0 && n.wasDeleted(m) {
			n.refuse(p, m, wire.Deleted)
			return
		}
		if j = n.accept(p, m); j == nil {
			return
		}
	} else {
		if j.State == store.StateAcked {
			n.correct(p, j, m.Holders)
			return
		}
		n.nameKnown(&id)
		j, _ = n.learnLogged(j, m.Holders)
		j = n.learnBody(p, n.learnWords(j, m.Job.Extras), m, !n.inHands(j))
		if ad := n.pendingAddOf(&id); ad != nil {
			ad.elsewhere = false // it is queued here when it is promised
		}
		if n.inHands(j) && m.Job.Nacks <= j.Nacks {
			// A client here works on it, and hasn't given it back elsewhere: our retry time counts. The queue got nothing.
			n.send(p, &wire.Message{Kind: wire.Queued, Flags: wire.InHands, ID: j.ID})
			return
		}
		if n.survives(p, j, movesOf(m.Job.Extras), m.Job.Extras) {
			return // the sender hears that, and leaves the job to this node
		}
		n.onNewQueue(p, j, m)
		if j = n.store.Lookup(&id); j == nil || j.State == store.StateAcked { // it may have moved in memory, or be gone: clients were served
			return
		}
		n.gotKey(j)
	}
	n.Stats.Imported++
	n.hasCome(p, m)
	if u := j.Unique(); u != nil && u.Has(store.UniqueHasRun) {
		return // a client here works on it: our retry time counts
	}
	n.learnCounts(j, m)
	if j = n.onQueuedElsewhere(j); j.State == store.StateActive {
		n.outliveUnlessGoing(j)
		clearQueuedOnce(j)
		if m.Job.Nacks > 0 || m.Job.Deliveries > 0 {
			// The job came back, maybe at two nodes at once, and the other one may have handed
			// it over too. Each node that has it says so, so that one of them yields. The sender
			// hears it as well: the two may have handed the job to each other.
			n.tellQueued(j, 0)
		}
		n.requeue(j, false)
	}
}

// learnCounts takes over the NACKs and additional deliveries that the sender of a copy has counted, and this node hasn't.
// Otherwise a client that is given the job here would lose it to the sender: this node would believe that this client
// gave the job back there.
func (n *Node) learnCounts(j *store.Job, m *wire.Message) {
	if m.Job.Nacks > j.Nacks || m.Job.Deliveries > j.Deliveries {
		j.Nacks, j.Deliveries = max(j.Nacks, m.Job.Nacks), max(j.Deliveries, m.Job.Deliveries)
		n.log(LogState, j)
	}
}

func (n *Node) hasCome(p *Peer, m *wire.Message) {
	name := m.Queue
	if hashed(m.Job.Extras) {
		n.imported.note(m.ID, n.now)
	}
	imp := n.importsOf(string(name))
	imp.count(n.now)
	if q := n.store.Queue(name); q == nil || q.Head == nil {
		imp.lies = n.now
	}
	nobody := n.waits[string(name)] == nil && n.now >= imp.keep || n.givesNothing(name)
	if nobody && n.now >= imp.told+rateBucket {
		imp.told = n.now
		n.send(p, &wire.Message{Kind: wire.NeedJobs, Queue: name})
	}
	imp.asked, imp.direct, imp.poll, imp.polls = 0, 0, 0, 0
	// The others may remember less of the clients that wait here, or nothing. So all are asked again when importWindow is over, at
	// the latest: by then those that gave jobs aren't asked directly any more.
	imp.nextAll, imp.all = min(imp.nextAll, n.now+importWindow), 0
	if list := n.waits[string(name)]; list != nil {
		list.due = n.now
		heap.Fix(&n.asking, list.pos)
		if list.Len > 1 { // one job isn't enough for all
			n.hurryTick()
		}
	}
	for i := range imp.from {
		if imp.from[i].node == p.Node {
			imp.from[i].at = n.now
			return
		}
	}
	imp.from = append(imp.from, responder{p.Node, n.now})
}

// Sooner says whether a line asks other nodes before another one does; of two at the same time, the older line comes first.
func (l *waitList) Sooner(than *waitList) bool {
	return l.due < than.due || l.due == than.due && l.number < than.number
}

// Position is the line's place in Node.asking.
func (l *waitList) Position() *int { return &l.pos }

const (
	askSlice   = 200  // lines that ask other nodes in one tick
	sweepSlice = 1000 // queues looked at in one tick for what is stale
)

// askAnew makes each line ask all nodes next, also one to which its first client comes later: some nodes remember no more
// that clients wait here.
func (n *Node) askAnew() {
	n.resumed, n.renews = len(n.lines), true
	n.anew++
}

// askMet makes each line ask a node that was connected, or is heard again, also one to which its first client comes later: that node may
// not remember that clients wait here.
func (n *Node) askMet(p *Peer) {
	n.met++
	p.met = n.met
	n.resumed = len(n.lines)
	n.askSome()
}

// askSome makes the lines of waiting clients ask whose time has come.
func (n *Node) askSome() {
	if len(n.mesh.All()) == 0 || n.leaving || n.passive || n.loading {
		return
	}
	budget := askSlice
	// A line that is taken out is replaced by the last: none is left out.
	for n.resumed = min(n.resumed, len(n.lines)); n.resumed > 0 && budget > 0; budget-- {
		n.resumed--
		list := n.lines[n.resumed]
		if imp := n.imports.Get(list.name); imp != nil && n.renews {
			imp.asked, imp.nextAll, imp.paused = min(imp.asked, n.now), 0, false
			imp.last, imp.bucket = min(imp.last, n.now), min(imp.bucket, n.now)
		}
		n.need(list)
	}
	for ; len(n.asking) > 0 && n.asking[0].due <= n.now && budget > 0; budget-- {
		n.need(n.asking[0])
	}
	if n.resumed > 0 {
		n.hurryTick()
	} else {
		n.renews = false
	}
	if len(n.asking) > 0 {
		n.wake = min(n.wake, max(n.asking[0].due, n.now+1))
	}
}

// ask calls askSome, and forgets imports and demands that are stale, bit by bit.
func (n *Node) ask() {
	n.askSome()
	if n.now >= n.mesh.sweep {
		n.mesh.sweep = n.now + demandMS/2
		n.imports.Begin()
		n.demands.Begin()
	}
	more := n.imports.Pass(sweepSlice, func(name string, imp *imports) bool {
		return n.now-imp.last <= broadcastLast || n.now < imp.poll || n.waits[name] != nil
	})
	more = n.demands.Pass(sweepSlice, func(_ string, h *demand) bool {
		h.line = slices.DeleteFunc(h.line, func(x demandOf) bool { return n.demandTime() >= x.until })
		return len(h.line) > 0
	}) || more
	if more {
		n.hurryTick()
	}
}

// demandTime is the clock by which nodes that asked in vain are remembered, ms. It
// stands still while the process does.
func (n *Node) demandTime() int64 { return n.now - n.skipped }
