package sim

import (
	"bytes"
	"cmp"
	"fmt"
	"math"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
)

// Clients that take locks, and what must hold of them:
//
//   - no two clients hold a lock at the same true time, as long as clocks drift no more than
//     [LockDrift]. Each client counts its lease by a clock of its own, from when the votes
//     that gave it the lock were asked for (before that it may have waited for long);
//   - tokens only grow, whatever goes wrong;
//   - a client that has lost a lock to another can't extend or release it any more;
//   - an acquisition that was refused leaves no vote behind, once all has healed;
//   - after a restart a node whose log is whole has each vote that it had before;
//   - each lock can be had at each node when all has healed, and then the longest lease is
//     over: so long a node that has lost votes may abstain. Before that there may be no lock
//     at all, if nodes lose their votes more often than that;
//   - the history of a lock is linearizable (locks_test.go).

// LockDrift is how far the rate of a clock may be from that of true time.
const LockDrift = 0.01

const (
	slackMS   = 3_000  // for messages on their way, and pauses, in how long a lock may still be held
	lockersMS = 3_000  // for so long clients go on when all has healed
	servedMS  = 10_000 // in addition to the longest lease, until each lock can be had
)

// Lockers are the clients that take locks.
type Lockers struct {
	Clients, Names int
	MaxLease       int64   // ms; leases are from a twentieth of it up to it
	Drift          float64 // share by which clocks' rates differ at most; beyond LockDrift only tokens are looked at
	Limit          int     // how many may hold a lock at a time; 0 is the same as 1
	Wait           int64   // ms that clients wait for a lock, at most; 0: 4000
	Leave          float64 // share of those that wait which leave before they are answered
	Distrust       bool    // a node that restarts with its disk isn't sure that the disk has all
	// Judge is given what happened to each lock.
	Judge func(name string, history []LockOp) error
}

// LockOp is one command, as a client saw it.
type LockOp struct {
	Client       int
	Kind         string // "acquire", "extend", "release"
	Owner        string
	Token        uint64 // extend, release: sent
	Slot         int    // extend, release: of the lock
	Lease        int64
	Call, Return int64 // in the order of what happened; true time times 1024
	Began        int64 // true time, ms, from which a granted lease counts
	Lasts        int64 // true time, ms, until which there may be votes for the lease that was asked for
	Known        bool  // there was an answer
	Result       lock.ResultKind
	Got          uint64
	Excused      bool // another acquisition was under way meanwhile
}

// At is the true time of a moment of a history, ms.
func At(moment int64) int64 { return moment >> 10 }

// hold is a lock that a client has, or believes to have.
type hold struct {
	name, owner string
	slot        int
	token       uint64
	lease       int64
	end         int64 // true time until which it believes so
	given       bool  // it has asked to release it
}

type locker struct {
	s    *Sim
	i    int
	rate float64
	name int // its name, see owner
	mine *hold
	op   int
}

type lockWorld struct {
	clients []*locker
	last    map[string]*hold // of each slot of a lock, the last that was granted
	history map[string][]LockOp
	refused []refusal
	had     map[hold]bool // a lock's name and an owner to which it was given, or may have been
	moments int64
	granted int
	outages []outage // in the order of their ends
}

// outage is a time in which a node was down.
type outage struct {
	node     int
	from, to int64
}

type refusal struct {
	n           *node
	life        int
	name, owner string
}

// lockWait is an operation that waits for its answer.
type lockWait struct {
	n     *node
	life  int
	end   func(o *lock.Result)
	done  bool
	gone  bool              // its client has left
	claim *lock.Acquisition // nil: it was decided at once

	name, owner string
}

func (s *Sim) startLockers() {
	c := s.Locks
	if c == nil {
		return
	}
	s.locks = &lockWorld{last: map[string]*hold{}, had: map[hold]bool{}, history: map[string][]LockOp{}}
	for i := range c.Clients {
		l := &locker{s: s, i: i, rate: s.drift()}
		s.locks.clients = append(s.locks.clients, l)
		s.at(2000+s.r.Int64N(2000), l.idle)
	}
}

func (s *Sim) drift() float64 {
	drift := 0.0
	switch {
	case s.Locks != nil:
		drift = s.Locks.Drift
	case s.Uniques != nil:
		drift = s.Uniques.Drift
	case s.AtOnce > 0:
		drift = LockDrift
	default:
		return 1
	}
	return 1 + drift*(2*s.r.Float64()-1)
}

// steady is the node's monotonic clock, by which leases go, ms.
func (n *node) steady() int64 { return int64(float64(n.s.now-n.born) * n.rate) }

func (s *Sim) moment() int64 {
	s.locks.moments = max(s.now<<10, s.locks.moments+1)
	return s.locks.moments
}

// ask sends a command to some node, and calls end with its outcome, nil if the node dies
// before it answers. A lease that was granted counts from began (true time, ms). False:
// there is no node to ask, or the clients have stopped.
func (l *locker) ask(op LockOp, name string, wait int64, end func(o *lock.Result, began int64)) bool {
	s := l.s
	n := s.joined()
	if n == nil || s.healed && s.now > s.healedAt+lockersMS {
		return false
	}
	full, owner := slotName(name, op.Slot), []byte(op.Owner)
	op.Client, op.Call = l.i, s.moment()
	at := len(s.locks.history[name])
	s.locks.history[name] = append(s.locks.history[name], op)
	w := &lockWait{n: n, life: n.life, name: name, owner: op.Owner}
	w.end = func(o *lock.Result) {
		w.done = true
		h := &s.locks.history[name][at]
		h.Return = s.moment()
		if o != nil {
			h.Known, h.Result, h.Got = true, o.Kind, o.Token
			h.Began = n.trueTime(o.Began)
		}
		s.trace("client %d: %s %s by %s at node %d: %v", l.i, op.Kind, name, op.Owner, n.i, o)
		if op.Kind == "acquire" && o != nil && (o.Kind == lock.Conflict || o.Kind == lock.NoQuorum) && (l.mine == nil || l.mine.owner != op.Owner) {
			s.locks.refused = append(s.locks.refused, refusal{n, n.life, name, op.Owner})
		}
		end(o, h.Began)
	}
	n.waits = append(n.waits, w)
	n.call(func() {
		var o lock.Result
		var pending *lock.Acquisition
		switch op.Kind {
		case "acquire":
			o, pending = n.e.Locks().AcquireSlot(full, owner, op.Lease, wait, max(1, s.Locks.Limit), w)
		case "extend":
			o, pending = n.e.Locks().Extend(full, owner, op.Token, op.Lease, w)
		case "release":
			o, pending = n.e.Locks().Release(full, owner, op.Token, w)
		}
		if w.claim = pending; pending == nil {
			s.at(0, func() {
				if !w.done { // the node may die at this very moment
					w.end(&o)
				}
			})
		}
	})
	if wait > 0 && w.claim != nil && s.chance(s.Locks.Leave) {
		s.at(s.r.Int64N(wait), w.leave)
	}
	return true
}

// leave is a client that goes away. It doesn't know whether it has the lock, so it
// doesn't use it; its node takes back what it was granted.
func (w *lockWait) leave() {
	n := w.n
	if w.done || n.life != w.life || !n.serves() {
		return
	}
	w.gone = true
	n.call(func() { n.e.Locks().Abandon(w.claim) })
	n.s.locks.refused = append(n.s.locks.refused, refusal{n, n.life, w.name, w.owner})
	w.end(nil)
}

// trueTime is the true time, ms, at which a node's monotonic clock said steady.
func (n *node) trueTime(steady int64) int64 {
	return n.s.now - int64(math.Ceil(float64(n.steady()-steady)/n.rate))
}

// lockersLose ends the operations that were under way at a node that died.
func (n *node) lockersLose() {
	waits := n.waits
	n.waits = nil
	for _, w := range waits {
		if !w.done {
			w.end(nil)
		}
	}
}

func (n *node) lockEffect(e *engine.Effect) {
	switch e.Kind {
	case engine.Worked:
		answer, err := e.Client.(func(error)), e.Err
		n.s.at(0, func() { answer(err) })
	case engine.LockDone:
		w, o := e.Client.(*lockWait), *e.Outcome
		n.s.at(0, func() {
			switch {
			case !w.done:
				w.end(&o)
			case w.gone && n.life == w.life:
				n.call(func() { n.e.Locks().Unhear(slotName(w.name, o.Slot), []byte(w.owner), &o) })
			}
		})
	}
}

func (l *locker) lease() int64 {
	most := l.s.Locks.MaxLease
	return most/20 + l.s.r.Int64N(most*19/20)/(1+l.s.r.Int64N(8))
}

// idle is a client without a lock.
func (l *locker) idle() {
	s := l.s
	if s.closed || s.healed && s.now > s.healedAt+lockersMS {
		return
	}
	l.op++
	name, owner := fmt.Sprint("n", s.r.IntN(s.Locks.Names)), l.owner()
	wait := int64(0)
	if s.r.IntN(2) == 0 {
		wait = 1 + s.r.Int64N(cmp.Or(s.Locks.Wait, 4000))
	}
	h := &hold{name: name, owner: owner, lease: l.lease()}
	asked := l.ask(LockOp{Kind: "acquire", Owner: owner, Lease: h.lease}, name, wait, func(o *lock.Result, began int64) {
		if o == nil || o.Kind != lock.Granted {
			if o == nil {
				l.name++
				s.locks.had[hold{name: name, owner: owner}] = true
			}
			l.later(500, l.idle)
			return
		}
		h.slot, h.token, h.end = o.Slot, o.Token, began+int64(float64(h.lease)/l.rate)
		l.mine = h
		s.grant(h)
		l.work()
	})
	if !asked {
		l.later(500, l.idle)
	}
}

func (l *locker) later(most int64, f func()) { l.s.at(1+l.s.r.Int64N(most), f) }

// work is a client with a lock: it extends it, gives it back, or sleeps too long.
func (l *locker) work() {
	s, h := l.s, l.mine
	left := max(h.end-s.now, 1)
	switch s.r.IntN(6) {
	case 0, 1:
		l.later(left, func() { l.extend("extend") })
	case 2: // the owner asks again
		l.later(left, func() { l.extend("acquire") })
	case 3, 4:
		l.later(left, l.release)
	default: // a pause past the end; then it uses what it believes to have
		s.at(left+s.r.Int64N(2*h.lease), func() {
			if s.r.IntN(2) == 0 {
				l.extend("extend")
			} else {
				l.release()
			}
		})
	}
}

func (l *locker) extend(kind string) {
	s, h := l.s, l.mine
	stale, lease := s.superseded(h), l.lease()
	asked := l.ask(LockOp{Kind: kind, Owner: h.owner, Token: h.token, Slot: h.slotOf(kind), Lease: lease}, h.name, 0, func(o *lock.Result, began int64) {
		if o == nil || o.Kind != lock.Granted {
			if o != nil && o.Kind == lock.NoQuorum && s.now < h.end {
				l.work()
				return
			}
			l.mine = nil
			l.name++
			l.later(500, l.idle)
			return
		}
		if kind == "extend" && stale {
			s.fail("client %d extends lock %s by token %d after another was given it", l.i, h.name, h.token)
		}
		if kind == "acquire" && (o.Token != h.token || o.Slot != h.slot) {
			again := *h
			again.token, again.slot = o.Token, o.Slot
			h = &again
			l.mine = h
			h.lease, h.end = lease, began+int64(float64(lease)/l.rate)
			s.grant(h)
		} else {
			h.lease, h.end = lease, began+int64(float64(lease)/l.rate)
		}
		l.work()
	})
	if !asked {
		l.mine = nil
		l.name++
		l.later(500, l.idle)
	}
}

// slotOf is the slot that a command names.
func (h *hold) slotOf(kind string) int {
	if kind == "acquire" {
		return 0 // any
	}
	return h.slot
}

// key names a slot of a lock.
func (h *hold) key() string { return string(slotName(h.name, h.slot)) }

// slotName is the full name of a slot of a lock.
func slotName(name string, slot int) []byte {
	return store.AppendSlotName(nil, slot, store.AppendBareName(nil, []byte(name)))
}

// owner is the name under which a client takes its next lock. Every second client keeps its name until it gets one.
func (l *locker) owner() string {
	if l.i%2 == 0 {
		return fmt.Sprint("c", l.i, ".", l.op)
	}
	return fmt.Sprint("c", l.i, ".", l.name)
}

func (l *locker) release() {
	s, h := l.s, l.mine
	stale := s.superseded(h)
	h.given = true
	l.mine = nil
	l.name++
	l.ask(LockOp{Kind: "release", Owner: h.owner, Token: h.token, Slot: h.slot}, h.name, 0, func(o *lock.Result, _ int64) {
		if o != nil && o.Kind == lock.Granted && stale {
			s.fail("client %d releases lock %s by token %d after another was given it", l.i, h.name, h.token)
		}
	})
	l.later(500, l.idle)
}

// superseded says whether another client has been given a client's lock.
func (s *Sim) superseded(h *hold) bool {
	last := s.locks.last[h.key()]
	return last != nil && last.owner != h.owner && last.token > h.token
}

// grant notes that a client is told that it has a lock, and checks that it may have it.
func (s *Sim) grant(h *hold) {
	s.locks.had[hold{name: h.name, owner: h.owner}] = true
	s.locks.granted++
	old := s.locks.last[h.key()]
	s.locks.last[h.key()] = h
	if old == nil {
		return
	}
	// An owner can have two slots, if a node that it asked didn't know of the first one; then it may renew either.
	if h.token < old.token || h.token == old.token && h.owner != old.owner {
		s.fail("lock %s: token %d for %s after %d for %s", h.name, h.token, h.owner, old.token, old.owner)
	}
	if s.Locks.Drift <= LockDrift && old.owner != h.owner && !old.given && s.now < old.end && s.now < h.end {
		s.fail("lock %s: %s has it, and %s counts on it for another %d ms", h.name, h.owner, old.owner, old.end-s.now)
	}
}

// noLeftovers checks that acquisitions that were refused have left no votes, if the node
// that made them lives.
func (s *Sim) noLeftovers() {
	if s.locks == nil {
		return
	}
	for _, r := range s.locks.refused {
		if r.n.life != r.life || r.n.down || s.locks.had[hold{name: r.name, owner: r.owner}] {
			continue
		}
		for slot := range max(1, s.Locks.Limit) {
			for _, n := range s.nodes {
				if l := n.e.Locks().Live(slotName(r.name, slot)); l != nil && string(l.Owner()) == r.owner {
					s.fail("lock %s was refused to %s, and node %d has a vote for it, slot %d", r.name, r.owner, n.i, slot)
				}
			}
		}
	}
}

// served checks that by now each lock can be had at each node, and given back.
func (s *Sim) served() {
	if s.locks == nil {
		return
	}
	longest := float64(s.Locks.MaxLease) * 3 / 2 / (1 - s.Locks.Drift) // what is remembered of votes is in steps
	s.run(max(s.now, s.healedAt+lockersMS+int64(longest)+servedMS))
	for _, n := range s.nodes {
		for i := range s.Locks.Names * max(1, s.Locks.Limit) {
			name, owner := slotName(fmt.Sprint("n", i%s.Locks.Names), i/s.Locks.Names), []byte("probe")
			o := s.asked(n, func(w *lockWait) (lock.Result, *lock.Acquisition) {
				return n.e.Locks().Acquire(name, owner, s.Locks.MaxLease, 0, w)
			})
			if o == nil || o.Kind != lock.Granted {
				s.fail("node %d: lock n%d can't be had any more: %+v; the node has%s", n.i, i, o, n.lockText())
				continue
			}
			token := o.Token
			o = s.asked(n, func(w *lockWait) (lock.Result, *lock.Acquisition) { return n.e.Locks().Release(name, owner, token, w) })
			if o == nil || o.Kind != lock.Granted {
				s.fail("node %d: lock n%d can't be given back: %+v", n.i, i, o)
			}
		}
	}
}

// asked asks a node, and returns the outcome; nil: there was none in time.
func (s *Sim) asked(n *node, ask func(w *lockWait) (lock.Result, *lock.Acquisition)) (o *lock.Result) {
	w := &lockWait{n: n, life: n.life, end: func(end *lock.Result) { o = end }}
	n.call(func() {
		if now, pending := ask(w); pending == nil {
			o = &now
		}
	})
	for until := s.now + 2*lock.TimeoutMS; o == nil && s.now < until; {
		s.run(s.now + 10)
	}
	return o
}

// lasts is until when, at the latest, there may be votes for a lock that was granted at a time.
// While a node is down the lease of its vote doesn't run, and the lease begins anew when the node
// starts (COMMANDS.md, Restarts). So a node that went down before the lease was over has the
// vote for a whole lease after it has started, however late that is.
func (s *Sim) lasts(granted, lease int64) (latest int64) {
	first := granted + 4*lease + slackMS
	ends := map[int]int64{}
	for _, o := range s.locks.outages {
		end := max(ends[o.node], first)
		if o.from <= end {
			ends[o.node] = max(end, o.to+lease+lease/10+slackMS)
		}
	}
	latest = first
	for _, end := range ends {
		latest = max(latest, end)
	}
	return latest
}

// judgeLocks looks at what is left at the end, and at each lock's history.
func (s *Sim) judgeLocks() {
	if s.locks == nil {
		return
	}
	for _, n := range s.nodes {
		if c := n.e.Locks().Acquisitions(); c > 0 {
			s.fail("node %d is left with %d claims", n.i, c)
		}
		if k := n.e.Locks().Count(); k > 0 {
			s.fail("node %d is left with %d locks:%s", n.i, k, n.lockText())
		}
	}
	if s.locks.granted == 0 && s.Faults.Wipes == 0 && !s.Locks.Distrust {
		s.fail("no lock was ever given")
	}
	if s.Locks.Judge == nil {
		return
	}
	for i := range s.Locks.Names {
		name := fmt.Sprint("n", i)
		history := s.locks.history[name]
		for k := range history {
			op := &history[k]
			if op.Return == 0 {
				op.Return = math.MaxInt64
				op.Lasts = s.lasts(At(op.Call)+60_000, op.Lease)
			} else {
				op.Lasts = s.lasts(At(op.Return), op.Lease)
			}
		}
		for k := range history {
			op := &history[k]
			for m := range history {
				o := &history[m]
				end := o.Return
				if o.Result != lock.Granted {
					end += 5000 << 10 // until its votes are taken back
				}
				if o.Kind == "acquire" && o.Owner != op.Owner && o.Call < op.Return && (end > op.Call || end < 0) {
					op.Excused = true
				}
			}
		}
		if err := s.Locks.Judge(name, history); err != nil {
			s.fail("lock %s: %v", name, err)
		}
	}
}

// lockText describes a node's locks.
func (n *node) lockText() (text string) {
	for l := n.e.Locks().Table().Head; l != nil; l = l.Next {
		text += fmt.Sprintf(" %q by %s%s token %d, flags %#x, over in %d ms;", l.Name(), l.Owner(), l.Job, l.Token, l.Flags, l.Until-n.steady())
	}
	return text
}

// vote is a vote that a node has given.
type vote struct {
	name  []byte
	job   store.ID
	owner string
	token uint64
	flags uint8
}

// Flags of votes, as package lock has them.
const (
	voteWeak     = 0x03 // non-quorum: given without a majority
	voteOutlives = 0x04 // a window, which ends while the node is down
	voteKept     = 0x08 // renewed: its holder had the lock before this token
	voteSoft     = 0x80 // unconfirmed: learnt from another's table
)

// noteVotes notes the votes of a node that ends, and doesn't abstain.
func (n *node) noteVotes() {
	n.votes = n.votes[:0]
	if n.e == nil || n.e.Locks().Abstains() {
		return
	}
	outvoted := n.outvoted()
	for l := n.e.Locks().Table().Head; l != nil; l = l.Next {
		if n.e.Locks().Live(l.Name()) == l && l.Flags&(voteOutlives|voteSoft) == 0 && !outvoted[string(l.Name())] {
			n.votes = append(n.votes, vote{bytes.Clone(l.Name()), l.Job, string(l.Owner()), l.Token, l.Flags})
		}
	}
}

// outvoted returns the locks that jobs of this node have by the votes of others, against this
// node's own vote. After a restart the node votes for these jobs.
func (n *node) outvoted() map[string]bool {
	names := map[string]bool{}
	for _, j := range n.s.order {
		sj := n.e.Job(&j.id)
		if j.unique == nil || sj == nil || sj.Unique() == nil {
			continue
		}
		for space, has := range map[store.Space]uint8{store.LockWait: store.UniqueHasWait, store.LockRun: store.UniqueHasRun} {
			name := sj.AppendLock(nil, sj.Unique(), space)
			if l := n.e.Locks().Live(name); sj.Unique().Has(has) && l != nil && l.Job != j.id {
				names[string(name)] = true
			}
		}
	}
	return names
}

// isOwnRun says whether a vote was for a run that this node acquired, of a job that its log has in
// the queue. No client has the job by that run, so the vote is taken back.
func (n *node) isOwnRun(v *vote) bool {
	const ownBits = 1<<16 - 1 // of a run's token: which node gave it out
	j := n.e.Job(&v.job)
	return store.SpaceOf(v.name) == store.LockRun && v.flags&voteKept == 0 && v.token&ownBits == uint64(n.id.Node())&ownBits &&
		j != nil && (j.State == store.StateQueued || j.Returning()) && !j.Unique().Has(store.UniqueHasRun)
}

// aloneAtFirst returns the flag of a vote that this node may have had without its log: a promoted replica knows no other node at first, so the locks that
// its jobs brought along count as given by it alone, until it is started anew. A majority gave them before.
func (n *node) aloneAtFirst(v *vote) uint8 {
	if lock.BegunAt(v.token) < n.became {
		return lock.FlagAlone
	}
	return 0
}

// checkVotes compares the votes that were noted with those that the log has brought back.
func (n *node) checkVotes() {
	for _, v := range n.votes {
		switch l := n.e.Locks().Live(v.name); {
		case l == nil && n.isOwnRun(&v):
		case l == nil:
			n.s.fail("node %d has lost its vote for %q by a restart, of job %s or %q by token %d", n.i, v.name, v.job, v.owner, v.token)
		case l.Job != v.job || string(l.Owner()) != v.owner:
			n.s.fail("node %d has another vote for %q since a restart: of job %s or %q, it was that of %s or %q by token %d", n.i, v.name, l.Job, l.Owner(), v.job, v.owner, v.token)
		case l.Token < v.token, (l.Flags^v.flags)&voteWeak&^n.aloneAtFirst(&v) != 0:
			n.s.fail("node %d: its vote for %q, of job %s or %q, has token %d and flags %#x since a restart, and had %d and %#x", n.i, v.name, v.job, v.owner, l.Token, l.Flags, v.token, v.flags)
		}
	}
}
