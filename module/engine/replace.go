package engine

import (
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// ONCONFLICT replace and debounce: an ADDJOB whose key another job has gives that job its body, and with debounce the job's delay begins
// anew. That is up to the node where the job waits. A node with a mere copy doesn't know what others do with theirs, so it asks them (Do). The
// node that does it sends the new body to the other holders (NewCopy), and answers when they have it: so a crash of that node loses the
// body no more than that of a new job. Nothing is remembered of a question that has no answer in time, but it may be carried out
// later.
//
// A job can't be changed before its own ADDJOB has ended, by which it may still be taken back. So a change of such a job waits for that end, in
// the order in which the changes have come (addLine): else a burst of several producers would lose its last body.

// change is what becomes of a job whose key is wanted by an ADDJOB.
type change struct {
	body  []byte
	span  int64 // ms from now until it is due, if it is delayed; 0: its time stays
	bound int64 // ms from its creation until it is due, at the latest
}

// changeOf is what an ADDJOB makes of the job that has its key.
func (n *Node) changeOf(a *Add) change {
	c := change{body: a.Body}
	if a.Unique.Conflict == store.ConflictDebounce {
		if c.span, c.bound = a.Delay*1000, a.Unique.ConflictDelay*1000; a.At > 0 { // a part of a second
			c.span = max(1, a.At-n.now)
		}
	}
	return c
}

// replaceOrAsk carries out ONCONFLICT replace and debounce. j is what this node has of the job that has the key; nil: nothing. It returns the
// same as [Node.conflict]; refusal is the error where nobody can do it.
func (n *Node) replaceOrAsk(a *Add, id, holder store.ID, j *store.Job, refusal error) (answer store.ID, wait bool, err error) {
	c := n.changeOf(a)
	switch {
	case a.CanWait && n.mustAwait(holder):
		n.awaitAdd(a.clone(), id, holder, refusal)
	case j != nil && n.replaceable(j, &c):
		q := n.replace(j, &c, addWaits(a))
		if q == nil || a.Async || !a.CanWait {
			return holder, false, nil
		}
		impatient := addWaits(a) < silentMS
		n.awaitQuestion(a, id, q, func() (store.ID, bool, error) {
			if (impatient || n.passive) && len(q.got.Unanswered) > 0 {
				return holder, false, ErrReplTimeout
			}
			return holder, false, nil
		})
	case !a.CanWait || a.Sees != nil || n.uniqueMesh.adds[holder] != nil || j != nil && n.standing(j) != elsewhere:
		return answer, false, refusal
	case len(a.Body) > n.mostBody:
		return answer, false, ErrTooBig
	default:
		n.nameClaim(a)
		m := &wire.Message{Kind: wire.Do, ID: holder, Queue: a.Body, Lock: wire.Lock{Name: n.scratch.lock, Job: holder}}
		m.Lock.SetDebounce(c.span, c.bound)
		m.Lock.SetWaits(addPatience(a))
		q, began := n.newQuestion(addWaits(a)), n.monotonic()
		q.most, a = n.deadlineIn(addPatience(a)), a.clone()
		if n.sendQuestion(q, m, wire.Did, n.mesh.All()); n.settled(q) {
			return answer, false, refusal // no node can be asked
		}
		n.openQuestion(q)
		n.awaitQuestion(a, id, q, func() (store.ID, bool, error) {
			switch {
			case q.got.Done:
				return holder, false, nil
			case q.waited && !n.passive:
				return n.reclaimAdd(a, id, began, refusal)
			}
			return holder, false, refusal
		})
	}
	return id, true, nil
}

// addWaits is for how long an ADDJOB waits for other nodes to replace a body, ms.
func addWaits(a *Add) int64 {
	if a.Timeout > 0 {
		return min(a.Timeout, silentMS)
	}
	return silentMS
}

// addPatience is for how long an ADDJOB waits where it knows that there will be an answer, ms.
func addPatience(a *Add) int64 {
	if a.Timeout > 0 {
		return min(a.Timeout, MaxSeconds*1000)
	}
	return MaxSeconds * 1000
}

// awaitQuestion makes an ADDJOB, whose job has this ID and isn't added, wait for the answer to an open question. decide returns the same as
// [Node.conflict].
func (n *Node) awaitQuestion(a *Add, id store.ID, q *question, decide func() (store.ID, bool, error)) {
	c := &claimedAdd{asked: q}
	if a.batch != nil {
		c.client, c.place = a.batch, a.place
	}
	n.uniqueMesh.adds[id] = c
	q.then = func() {
		delete(n.uniqueMesh.adds, id)
		answer, wait, err := id, false, error(ErrReplTimeout)
		if !unwanted(c.denied, c.client) {
			answer, wait, err = decide()
		}
		n.answerClaimed(c, id, answer, wait, err)
	}
}

// addLine is the changes of one job that wait for the end of its own ADDJOB, in their order.
type addLine struct {
	asks    []*question // some may be answered already
	serving bool        // the first one, which is out of asks, is being carried out
}

// isAdding says whether the ADDJOB of a job waits at this node, for votes or copies. One that waits for another job doesn't count, since
// two that have heard of each other's votes would wait for each other.
func (n *Node) isAdding(id store.ID) bool {
	c := n.uniqueMesh.adds[id]
	return c != nil && c.claim != nil || n.pendingAdds[id] != nil
}

// mustAwait says whether a change of a job has to wait: for the job's ADDJOB, or for the changes that have waited for that, and come first.
func (n *Node) mustAwait(id store.ID) bool {
	line := n.uniqueMesh.behind[id]
	return n.isAdding(id) || line != nil && !line.serving
}

// awaitAdd makes an ADDJOB, which is kept, wait for the end of that of the job that has its key.
func (n *Node) awaitAdd(a *Add, id, holder store.ID, refusal error) {
	q, began := n.behindAdd(holder, addPatience(a)), n.monotonic()
	n.awaitQuestion(a, id, q, func() (store.ID, bool, error) {
		switch {
		case n.passive:
			return id, false, ErrReplica
		case q.behind: // its time is over
			return id, false, refusal
		case n.store.Lookup(&holder) == nil:
			return n.reclaimAdd(a, id, began, refusal)
		}
		a.spend(n.monotonic() - began)
		return n.conflict(a, id, holder)
	})
}

// reclaimAdd asks anew for the key of an ADDJOB that has waited for another one since began: that one hasn't got the key, or was taken back, or
// only other nodes keep its job. It returns the same as [Node.conflict].
func (n *Node) reclaimAdd(a *Add, id store.ID, began int64, refusal error) (store.ID, bool, error) {
	if !a.spend(n.monotonic() - began) {
		return id, false, refusal
	}
	n.nameClaim(a)
	return n.claimFor(a, id)
}

// spend takes time that has passed (ms) off the time for which an ADDJOB waits, and says whether any is left. It leaves 1 ms at least: 0 would be no
// limit.
func (a *Add) spend(ms int64) (left bool) {
	if a.Timeout == 0 {
		return true
	}
	left = ms < a.Timeout
	a.Timeout = max(1, a.Timeout-ms)
	return left
}

// behindAdd makes a question that is answered when the ADDJOB of a job has ended, or, with behind, in so many ms.
func (n *Node) behindAdd(id store.ID, ms int64) *question {
	q := n.newQuestion(ms)
	q.awaits, q.behind = wire.Did, true
	n.openQuestion(q)
	line := n.uniqueMesh.behind[id]
	if line == nil {
		line = &addLine{}
		n.uniqueMesh.behind[id] = line
	}
	line.asks = append(line.asks, q)
	return q
}

// afterAdd notes that the ADDJOB of a job has ended, or gone on. The changes that wait for that follow in the next tick: the job is logged, and
// promised, before.
func (n *Node) afterAdd(id store.ID) {
	if len(n.uniqueMesh.behind) > 0 && n.uniqueMesh.behind[id] != nil {
		n.uniqueMesh.ended = append(n.uniqueMesh.ended, id)
		n.hurryTick()
	}
}

// followAdds carries out changes that have waited for the ADDJOBs of their jobs. The next ticks go on with those that are over the budget.
func (n *Node) followAdds() {
	u := &n.uniqueMesh
	for budget := tickBudget; len(u.ended) > 0; {
		id := u.ended[0]
		line := u.behind[id]
		switch {
		case line == nil || n.isAdding(id):
		case len(line.asks) == 0:
			delete(u.behind, id)
		case budget <= 0:
			n.hurryTick()
			return
		default:
			q, from := line.asks[0], len(n.effects)
			line.asks = line.asks[1:]
			if n.questionOf(q.number) == q {
				q.behind, line.serving = false, true
				n.answerQuestion(q)
				line.serving = false
			}
			budget -= 1 + n.cost(from)
			continue
		}
		u.ended = u.ended[1:]
	}
	u.ended = nil
}

// replaceable says whether this node can give a job another body: it waits here, or is delayed here, and nobody works on it, or may. A copy
// doesn't tell what other nodes do with theirs.
func (n *Node) replaceable(j *store.Job, c *change) bool {
	delayed := j.Flags&store.FlagQueuedOnce == 0 // a copy never counts as delayed
	waits := j.State == store.StateQueued ||
		j.State == store.StateActive && j.Place == store.InHeld && j.Flags&store.FlagDelivered == 0 && (delayed || j.Holders() == 0)
	return waits && !n.dummy(j) && n.TakesBody(&j.ID, c.body) == nil
}

// replace carries out a change, and tells the other holders. It returns the open question to those of them that say when they have the new
// body, for ms at most; nil: there are none. The job may move.
func (n *Node) replace(j *store.Job, c *change, ms int64) *question {
	n.Stats.Replaced++
	j = n.debounce(j, c) // first: with its PutOff the holders hear of the version that they have
	j, _ = n.setBody(j, c.body)
	var to []*Peer
	heirs := n.mayHaveHeir(j)
	for _, p := range n.mesh.All() {
		if heirs || j.HeldBy(uint64(p.Node)) {
			to = append(to, p)
		}
	}
	answerForAll(j)
	return n.sendBody(j, to, ms)
}

// debounce begins the delay of a job anew. A job that is due already, or failed, or waits for its key, keeps its time, and so does one with
// no room for a new one. The job may move.
func (n *Node) debounce(j *store.Job, c *change) *store.Job {
	if c.span == 0 || len(j.Extras())+store.ExtraSize(make([]byte, 8)) > store.MaxExtras || j.Reason() != store.Delayed || delayFrom(j, n.now) == 0 || rests(j) || n.putOff(j) {
		return j
	}
	at := max(n.now, min(n.now+c.span, int64(j.CTime/1_000_000)+c.bound))
	if at == firstDue(j) {
		return j
	}
	n.Stats.Debounced++
	j = n.dueAt(j, &Move{HasAt: true, At: at})
	n.tellsDebounced(j)
	n.delay(j, delayFrom(j, n.now))
	return j
}

const (
	maxUntold   = 10_000  // jobs that are noted for a node that missed their new bodies
	untoldSlice = 100     // of them that a tick tells
	untoldBytes = 1 << 20 // or so many bytes of bodies
	untoldAgain = 5_000   // ms, after which a node that stayed connected is told again
)

// sendBody sends a job with its new body to nodes, and asks those that understand that to say when they have it, see [Node.replace]. It notes those
// that can't be told, or don't say so in time: they are told later ([Node.resumeBodies]).
func (n *Node) sendBody(j *store.Job, to []*Peer, ms int64) (q *question) {
	var asked []*Peer
	m := n.copyOf(j, wire.ReplJob)
	m.Flags = wire.NoReply | wire.NewBody
	s := sending{n: n, m: m}
	for _, p := range to {
		switch {
		case !p.Connected:
			n.missesBody(p, j.ID)
		case n.canAsk(p, wire.NewCopy):
			asked = append(asked, p)
		default:
			s.to(p)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	m.Kind, m.Flags, m.Round = wire.NewCopy, 0, uint64(m.Span)
	q = n.newQuestion(ms)
	id := j.ID
	q.body = &id
	n.sendQuestion(q, m, wire.Did, asked)
	n.openQuestion(q)
	return q
}

// hasDone follows when a Do or a NewCopy is answered, or its time is up.
func (n *Node) hasDone(q *question) {
	if q.body != nil {
		for i := range q.got.Unanswered {
			n.missesBody(n.mesh.ByID(q.got.Unanswered[i]), *q.body)
		}
	}
	if q.then != nil {
		q.then()
	}
}

// missesBody notes that a node that may hold a job lacks its new body.
func (n *Node) missesBody(p *Peer, id store.ID) {
	if p != nil && p.bodies.Len() < maxUntold {
		p.bodies.Put(id, struct{}{})
	}
}

// resumeBodies goes on telling nodes that are back, or have stayed connected, of the bodies that they missed. If the body has no version, only
// the node where the job waits still does so: elsewhere the body may be newer.
func (n *Node) resumeBodies() {
	for _, p := range n.mesh.All() {
		if p.Connected && p.bodies.Len() > 0 && p.bodies.Left() == 0 && n.monotonic() >= p.again {
			p.bodies.Begin()
			p.again = n.monotonic() + untoldAgain
		}
		for i, bytes := 0, 0; p.Connected && p.bodies.Left() > 0; i++ {
			if i == untoldSlice || bytes >= untoldBytes {
				n.hurryTick()
				break
			}
			p.bodies.Pass(1, func(id store.ID, _ *struct{}) bool {
				if j := n.store.Lookup(&id); j != nil && j.HeldBy(uint64(p.Node)) && (bodyVersion(j) != (version{}) || n.replaceable(j, &change{body: j.Body()})) {
					bytes += len(j.Body())
					n.sendBody(j, []*Peer{p}, silentMS)
				}
				return false
			})
		}
	}
	n.tellVersions()
}

// onDo gives a job another body for another node.
func (n *Node) onDo(p *Peer, m *wire.Message) {
	id, c := store.ID(m.ID), change{body: m.Queue}
	c.span, c.bound = m.Lock.Debounce()
	if n.mustAwait(id) {
		n.doBehindAdd(p, m)
		return
	}
	n.endDue(&id)
	j := n.store.Lookup(&id)
	did := wire.Message{Kind: wire.Did, Span: m.Span}
	if j == nil || !n.named(j, store.LockWait, m.Lock.Name) || !j.Unique().Has(store.UniqueHasWait) || j.Queue.Pause&PauseIn != 0 ||
		n.unsafe || !n.replaceable(j, &c) || n.HasRoom() != nil {
		n.send(p, &did)
		return
	}
	did.Flags = wire.Done
	q := n.replace(j, &c, silentMS/2)
	if q == nil {
		n.send(p, &did)
		return
	}
	asker := p.Node
	q.then = func() {
		if p := n.mesh.ByName(asker); p != nil && !n.passive {
			n.send(p, &did)
		}
	}
}

// doBehindAdd carries out a Do when the ADDJOB of its job has ended. The asker hears that there will be an answer.
func (n *Node) doBehindAdd(p *Peer, m *wire.Message) {
	do, asker := *m, p.Node
	do.Queue, do.Lock.Name = slices.Clone(m.Queue), slices.Clone(m.Lock.Name)
	n.send(p, &wire.Message{Kind: wire.Did, Flags: wire.Waits, Span: m.Span})
	ms := min(m.Lock.Waits(), MaxSeconds*1000)
	if ms == 0 {
		ms = silentMS // a node of a former release asks
	}
	q := n.behindAdd(m.ID, ms)
	q.then = func() {
		switch p := n.mesh.ByName(asker); {
		case p == nil || n.passive:
		case q.behind: // the asker has waited long enough
			n.send(p, &wire.Message{Kind: wire.Did, Span: do.Span})
		default:
			n.onDo(p, &do)
		}
	}
}

// onNewCopy takes a job's new body, and its time, from the node where it waits. A job whose ADDJOB still waits here doesn't take it, and
// nothing is answered: so that node sends it again.
func (n *Node) onNewCopy(p *Peer, m *wire.Message) {
	did, id := wire.Message{Kind: wire.Did, Span: m.Span}, store.ID(m.ID)
	m.Kind, m.Flags, m.Span = wire.ReplJob, wire.NoReply|wire.NewBody, int64(min(m.Round, MaxUnix))
	if j := n.store.Lookup(&id); j != nil && j.State == store.StateActive && !n.dummy(j) && !bodyVersion(j).after(versionOf(m.Job.Extras)) && j.Flags&store.FlagQueuedOnce != 0 && j.Delay != m.Job.Delay {
		n.setDelay(j, m.Job.Delay, store.FindExtra(m.Job.Extras, store.TagAt))
	}
	n.onReplJob(p, m)
	if j := n.store.Lookup(&id); j != nil && j.State == store.StateWaitRepl {
		return // (body_pending)
	}
	n.send(p, &did)
}
