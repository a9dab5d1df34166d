package bus

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

// connManager knows which connections there are, and decides which ones stay. It is a single
// goroutine, so it needs no locks.
//
// For each pair of nodes only the node with the smaller ID decides. It numbers the connections
// that it accepts; the other node obeys the highest number. So the two can't disagree, however
// their dials and closes cross.
type connManager struct {
	bus   *Bus
	links map[NodeID]*link

	lastNumber uint64 // given to a connection that this node accepted
	admitted   uint64 // how many connections were let in, whichever node accepted them
	selfTwinAt time.Time
}

// link is what the connection manager knows of a peer.
type link struct {
	id     NodeID
	tally  *tally
	wanted bool // to be kept connected
	addr   string

	live     *conn
	upSince  time.Time
	instance instanceID // of the last connection
	number   uint64     // of the last connection
	replaced []instanceID
	twinAt   time.Time // when the last Duplicate event was sent

	dial    *attempt // in progress
	retryAt time.Time
	backoff time.Duration
	failure string // the last one logged

	held   *request // for a connection that came in while this node's own dial is under way
	heldTo time.Time
}

// keptInstances is how many replaced instances of a peer are remembered.
const keptInstances = 8

// twinEvery is how often it is reported at most that two nodes have one ID.
const twinEvery = time.Minute

// Goroutines send these to the connection manager.
type (
	// introduction asks, before this node sends its proof, whether the peer is welcome and
	// what to say in the proof.
	introduction struct {
		id       NodeID
		instance instanceID
		addr     string
		answer   chan reply
	}
	// request asks for a connection to become the peer's connection.
	request struct {
		conn    *conn
		attempt *attempt // nil: it was dialled by the peer
		number  uint64   // given by the peer; 0: this node decides
		lost    uint64   // the peer has lost all connections up to this number
		answer  chan reply
	}
	// failed ends a dial.
	failed struct {
		attempt *attempt
		err     error
	}
	// ended says that a connection that was let in has ended.
	ended struct{ conn *conn }
	// duplicate says that a peer with our own ID proved that it knows the secret.
	duplicate struct{ addr string }
)

// reply answers an introduction or a request.
type reply struct {
	number  uint64
	lost    uint64
	refusal *closeError
}

// The owner sends these to the connection manager.
type (
	connectOrder struct {
		id    NodeID
		addr  string
		tally *tally
	}
	meetOrder struct {
		addr   string
		ticket uint64
	}
	forgetOrder struct{ id NodeID }
)

// run serves words and orders until the bus closes. Then it closes all connections.
func (r *connManager) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(r.untilNext(time.Now()))
		select {
		case <-r.bus.ordered:
			for p := r.bus.orders.take(); p != nil; p = p.next {
				r.guard(func() { r.order(p.note) })
			}
		case word := <-r.bus.words:
			r.guard(func() { r.hear(word) })
		case <-timer.C:
		case <-r.bus.ctx.Done():
			for _, l := range r.links {
				if l.live != nil {
					l.live.close(refuse(CodeShutdown, "the node is shutting down"))
				}
			}
			return
		}
		r.guard(func() { r.tick(time.Now()) })
	}
}

func (r *connManager) guard(f func()) {
	defer func() {
		if p := recover(); p != nil {
			r.bus.panicked("connection manager", p)
		}
	}()
	f()
}

func (r *connManager) order(note any) {
	switch o := note.(type) {
	case connectOrder:
		l := r.link(o.id, o.tally)
		moved := l.addr != o.addr
		l.wanted, l.addr = true, o.addr
		if moved && l.live == nil {
			r.cancelDial(l)
			l.retryAt, l.backoff = time.Now(), 0
		}
	case meetOrder:
		r.start(&attempt{addr: o.addr, meet: true, ticket: o.ticket})
	case forgetOrder:
		l := r.links[o.id]
		if l == nil {
			return
		}
		l.wanted = false
		r.cancelDial(l)
		if l.live != nil {
			l.live.close(refuse(CodeForgotten, "forgotten"))
		}
		r.prune(l)
	}
}

func (r *connManager) hear(word any) {
	switch w := word.(type) {
	case introduction:
		w.answer <- r.introduce(w)
	case *request:
		if v, decided := r.decide(w); decided {
			w.answer <- v
		}
	case failed:
		r.failed(w)
	case ended:
		r.ended(w.conn)
	case duplicate:
		if now := time.Now(); now.Sub(r.selfTwinAt) >= twinEvery {
			r.selfTwinAt = now
			r.reportTwin(r.bus.cfg.ID, w.addr)
		}
	}
}

func (r *connManager) link(id NodeID, t *tally) *link {
	l := r.links[id]
	if l == nil {
		if t == nil {
			t = &tally{}
		}
		l = &link{id: id, tally: t}
		r.links[id] = l
	}
	return l
}

// prune drops a link that isn't wanted and has no connection, live or held.
func (r *connManager) prune(l *link) {
	if !l.wanted && l.live == nil && l.held == nil {
		delete(r.links, l.id)
	}
}

func (r *connManager) introduce(w introduction) reply {
	l := r.links[w.id]
	if l == nil {
		return reply{}
	}
	if l.live != nil && !l.live.closing() && l.isReplaced(w.instance) {
		return reply{refusal: r.refuseTwin(l, w.addr)}
	}
	if l.instance != w.instance {
		return reply{}
	}
	if l.live != nil && !l.live.closing() {
		return reply{lost: l.number - 1}
	}
	return reply{lost: l.number}
}

// decide answers a request. If decided is false, it holds the request, and answers it later.
func (r *connManager) decide(p *request) (v reply, decided bool) {
	if a := p.attempt; a != nil && !a.meet {
		if l := r.links[a.id]; l == nil || l.dial != a {
			return reply{refusal: refuse(CodeForgotten, "no longer wanted")}, true
		}
	}
	l := r.link(p.conn.id, nil)
	defer r.prune(l)
	if live := l.live; live != nil && !live.closing() {
		if refusal := r.challenge(l, live, p); refusal != nil {
			return reply{refusal: refusal}, true
		}
		if live.instance != p.conn.instance {
			l.replaced = append(l.replaced, live.instance)
			if len(l.replaced) > keptInstances {
				l.replaced = slices.Delete(l.replaced, 0, 1)
			}
		}
		live.close(refuse(CodeReplaced, "replaced by a newer connection"))
	} else if p.number != 0 && p.conn.instance == l.instance && p.number <= l.number {
		return reply{refusal: refuse(CodeDuplicate, "there was a newer connection")}, true
	}
	// If both nodes dial at once, the dial of the node with the smaller ID wins, here this
	// node's own. So wait for that one. Otherwise chance would decide, and the losing connection
	// would be cut off when it has hardly begun.
	if p.number == 0 && p.attempt == nil && l.live == nil && l.dial != nil && l.dial.reached.Load() {
		if l.held != nil {
			l.held.answer <- reply{refusal: refuse(CodeDuplicate, "a newer connection waits already")}
		}
		l.held, l.heldTo = p, time.Now().Add(r.bus.cfg.HandshakeTimeout/4)
		return reply{}, false
	}
	return r.admit(l, p), true
}

// challenge says why the live connection must stay. It returns nil if the new one replaces it.
func (r *connManager) challenge(l *link, live *conn, p *request) *closeError {
	if live.instance != p.conn.instance {
		// The peer has restarted. But if this instance was replaced by another before, both
		// are running.
		if l.isReplaced(p.conn.instance) {
			return r.refuseTwin(l, p.conn.up.Remote)
		}
		return nil
	}
	if p.number != 0 {
		if p.number > live.number {
			return nil
		}
	} else if p.lost >= live.number {
		return nil // the peer knows that the live one is gone; this node hasn't noticed yet
	}
	return refuse(CodeDuplicate, "there is a connection already")
}

func (r *connManager) admit(l *link, p *request) reply {
	c := p.conn
	c.number = p.number
	if c.number == 0 {
		r.lastNumber++
		c.number = r.lastNumber
	}
	r.admitted++
	c.serial, c.tally = r.admitted, l.tally
	l.live, l.instance, l.number, l.upSince = c, c.instance, c.number, time.Now()
	l.failure = ""
	if p.attempt != nil && l.dial == p.attempt {
		l.dial = nil
	}
	if l.held != nil && l.held != p {
		l.held.answer <- reply{refusal: refuse(CodeDuplicate, "there is a connection already")}
	}
	l.held = nil
	l.tally.connections.Add(1)
	l.tally.heard.Store(int64(r.bus.now()))
	return reply{number: c.number}
}

func (l *link) isReplaced(i instanceID) bool { return slices.Contains(l.replaced, i) }

func (r *connManager) refuseTwin(l *link, addr string) *closeError {
	if now := time.Now(); now.Sub(l.twinAt) >= twinEvery {
		l.twinAt = now
		r.reportTwin(l.id, addr)
	}
	return refuse(CodeIDInUse, "another running node has the ID %v", l.id)
}

func (r *connManager) reportTwin(id NodeID, addr string) {
	r.bus.report.always("warning", "two running nodes have the ID %v, one of them at %s", id, addr)
	r.bus.deliver(&item{note: &Duplicate{ID: id, Addr: addr}})
}

func (r *connManager) failed(w failed) {
	a := w.attempt
	l := r.links[a.id]
	if a.meet || l == nil || l.dial != a {
		return
	}
	l.dial = nil
	text := w.err.Error()
	l.tally.lastError.Store(&text)
	duplicate := asClose(w.err).code == CodeDuplicate
	if text != l.failure && l.live == nil && !duplicate {
		l.failure = text
		r.bus.report.always("notice", "can't connect to %v at %s: %s", l.id, l.addr, text)
	}
	r.later(l)
	if l.held != nil {
		r.release(l)
	}
}

func (r *connManager) ended(c *conn) {
	l := r.links[c.id]
	reason := c.reason
	text := reason.Error()
	c.tally.lastError.Store(&text)
	if c.announced {
		r.bus.deliver(&item{conn: c, note: &Down{ID: c.id, Err: reason}})
	}
	if c.announced && !errors.Is(reason, ErrReplaced) {
		r.bus.report.limited("down "+c.id.String(), "notice", "connection to %v at %s ended: %s", c.id, c.up.Remote, text)
	}
	if l == nil || l.live != c {
		return
	}
	l.live = nil
	if time.Since(l.upSince) > r.bus.cfg.RedialMax {
		l.backoff = 0 // the connection has lasted: it doesn't fail again and again
	}
	r.later(l)
	r.prune(l)
}

// later sets the time of the next dial. The wait is RedialMin after the first failure, and
// doubles up to RedialMax. Up to half of it is taken off at random, so that nodes don't dial in
// step.
func (r *connManager) later(l *link) {
	wait := r.bus.cfg.RedialMin
	if l.backoff > 0 {
		wait = min(2*l.backoff, r.bus.cfg.RedialMax)
	}
	l.backoff = wait
	l.retryAt = time.Now().Add(wait/2 + rand.N(wait/2+1))
}

// cancelDial ends a dial in progress, and admits a connection that waits for it.
func (r *connManager) cancelDial(l *link) {
	if l.dial != nil {
		l.dial.cancel()
		l.dial = nil
	}
	if l.held != nil {
		r.release(l)
	}
}

// release admits the connection that is held.
func (r *connManager) release(l *link) {
	p := l.held
	l.held = nil
	p.answer <- r.admit(l, p)
}

// tick starts the dials that are due, and admits held connections that have waited long enough.
func (r *connManager) tick(now time.Time) {
	for _, l := range r.links {
		if l.held != nil && !now.Before(l.heldTo) {
			r.release(l)
		}
		if l.dialable() && !now.Before(l.retryAt) {
			l.dial = &attempt{id: l.id, addr: l.addr}
			r.start(l.dial)
		}
	}
}

func (l *link) dialable() bool { return l.wanted && l.live == nil && l.dial == nil }

func (r *connManager) untilNext(now time.Time) time.Duration {
	next := time.Hour
	for _, l := range r.links {
		if l.held != nil {
			next = min(next, l.heldTo.Sub(now))
		}
		if l.dialable() {
			next = min(next, l.retryAt.Sub(now))
		}
	}
	return max(next, 0)
}

func (r *connManager) start(a *attempt) {
	a.ctx, a.cancel = context.WithCancel(r.bus.ctx)
	r.bus.workers.Go(func() { r.bus.dial(a) })
}

// decides says whether this node decides which connection stays, rather than the peer.
func decides(ours, theirs NodeID) bool { return bytes.Compare(ours[:], theirs[:]) < 0 }
