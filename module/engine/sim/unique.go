package sim

import (
	"bytes"
	"fmt"
	"slices"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
)

// These rules must hold for unique jobs over the mesh, whatever goes wrong, as long as
// clocks drift no more than [LockDrift]:
//
//   - while a promised job has its key (until it is delivered, or done), no other job with that
//     key is promised, in true time, unless one was added with QUORUM any, or its LOCKTTL
//     is over;
//   - no two clients work at the same time on different jobs that run alone by the same
//     key. Each client has its job for the retry time or RUNTTL from when it was given it;
//   - with a limit on the jobs of a key, no more than that have it, and no more are worked on
//     at the same time;
//   - every ADDJOB is answered, and every promised job delivered;
//   - the fencing tokens that clients are given for the runs of a key's jobs grow;
//   - in the end, when the jobs are gone, their keys can be had at any node, and
//     no locks and acquisitions are left.

// Uniques are the unique jobs of a history.
type Uniques struct {
	Jobs, Keys int
	Limit      int     // how many jobs may have a key at a time, at most: each job says a number up to this; 0 is as 1
	Any        float64 // share of jobs with QUORUM any
	Leases     bool    // some have LOCKTTL or RUNTTL
	Harsh      bool    // some are ONBUSY drop or dead, or ONCONFLICT replace
	Deleted    float64 // share of jobs that a client deletes at some node
	Drift      float64 // see Lockers
	MaxLease   int64   // likewise; 0: the default
	PutOff     float64 // share of jobs that a conflict puts off (ONCONFLICT reschedule), in addition to one in four
	Long       bool    // a conflict or a busy key may put a job off for longer than its retry time
	Bodies     bool    // all are ONCONFLICT replace or debounce; a fifth of them are added when all has healed
}

// limit is how many jobs may have a key at a time at most.
func (u *Uniques) limit() int {
	if u == nil { // of tests of the judge
		return 1
	}
	return max(u.Limit, 1)
}

// uniqueJob is what the judge knows of a unique job.
type uniqueJob struct {
	engine.Unique
	wait, run string // what it is unique by
	pending   bool   // promised, and put off: it hasn't the lock yet
	waited    bool   // it was put off, and has got it since
	over      bool   // the waiting lock has ended
	dead      bool   // it was moved to the dead letters, or its queue has another name: it is unique by something else now
	until     int64  // true time, ms, when the waiting lock ends at the latest; 0: no such time
	n         *node
	life      int
	answered  bool
	given     bool // a client gave it back, or said that it is done
	refused   bool // its ADDJOB was refused: a client that is given it all the same may lose it at any moment
	at        int64
	body      *bodyAdd // nil: bodies aren't judged
	hands     bool     // a client has the job, by a delivery while the mesh was whole
	term      int64    // of its delivery, seconds; 0: unknown
	twice     bool     // a client has given it back to two nodes at a time, so that two clients may get it
}

// working is a client that works on a job.
type working struct {
	j     *job
	until int64
}

type uniqueWorld struct {
	waiting map[string][]*job // promised
	running map[string][]*working
	adds    []*job
	tokens  map[string]shownToken // by what is locked, and its slot: the greatest that a client was given
	bodies  map[string]*bodyAdd   // by the body
}

// shownToken is a fencing token that a client was given with a job.
type shownToken struct {
	token int64
	j     *job
	n     *node
	at    int64
}

// tokenGiven judges the token that a client is given for a run: it must not be smaller than an earlier
// one for the same lock, and no token is given for two jobs. Tokens of waiting locks aren't judged: a
// node that was apart may not know yet that its job has lost the lock, or has got it by a greater token.
func (s *Sim) tokenGiven(n *node, j *job) {
	u, sj := j.unique, n.e.Job(&j.id)
	if u.Any || sj == nil || u.Strategy != store.UniqueDuring && u.Strategy != store.UniqueBoth {
		return
	}
	name := u.run
	if sj.Unique() != nil {
		name = fmt.Sprint(u.run, " slot ", sj.Unique().Slot(store.LockRun))
	}
	got, last := shownToken{lock.ShownToken(n.e.Token(sj)), j, n, s.now}, s.uniques.tokens[name]
	switch {
	case got.token == 0:
		s.fail("node %d delivers %s without a token%s", n.i, j.id, s.placement(j))
	case got.token < last.token || got.token == last.token && last.j != j:
		s.fail("node %d delivers %s (%s) by token %d, after node %d delivered %s by %d at %d%s", n.i, j.id, u.run, got.token, last.n.i, last.j.id, last.token, last.at, s.placement(j))
	}
	s.uniques.tokens[name] = got
}

func (s *Sim) startUniques() {
	if s.Uniques == nil {
		return
	}
	s.uniques = &uniqueWorld{waiting: map[string][]*job{}, running: map[string][]*working{}, tokens: map[string]shownToken{}, bodies: map[string]*bodyAdd{}}
	for i := range s.Uniques.Jobs {
		if s.Uniques.Bodies && i%5 == 0 {
			s.at((s.Seconds+lateBodies/4)*1000+s.r.Int64N(lateBodies*500), s.addUnique)
			continue
		}
		s.at(2000+s.r.Int64N(s.Seconds*800), s.addUnique)
	}
}

func (s *Sim) uniqueAdd() engine.Add {
	u := engine.Unique{
		Strategy: []uint8{store.UniqueUntil, store.UniqueBefore, store.UniqueDuring, store.UniqueDuring, store.UniqueBoth}[s.r.IntN(5)],
		Conflict: []uint8{store.ConflictDrop, store.ConflictRaise, store.ConflictReturn, store.ConflictReschedule}[s.r.IntN(4)],
		Keyed:    true, Key: fmt.Append(nil, "k", s.r.IntN(s.Uniques.Keys)),
		Mesh: s.r.IntN(2) == 0, Any: s.chance(s.Uniques.Any), ConflictDelay: 1 + s.r.Int64N(5),
	}
	if s.chance(s.Uniques.PutOff) {
		u.Conflict = store.ConflictReschedule
	}
	if s.r.IntN(8) == 0 {
		u.Busy, u.BusyDelay = store.BusyReschedule, 1+s.r.Int64N(3)
	}
	if s.Uniques.Long {
		u.ConflictDelay = 1 + s.r.Int64N(4*retrySecs)
		if s.r.IntN(4) == 0 {
			u.Busy, u.BusyDelay = store.BusyReschedule, 1+s.r.Int64N(2*retrySecs)
		}
	}
	if s.Uniques.Harsh {
		switch s.r.IntN(6) {
		case 0:
			u.Busy, u.BusyDelay = store.BusyDrop, 0
		case 1:
			u.Busy, u.BusyDelay = store.BusyDead, 0
		case 2:
			u.Conflict = store.ConflictReplace
		}
	}
	if s.Uniques.Leases {
		switch s.r.IntN(5) {
		case 0:
			u.LockTTL = 1 + s.r.Int64N(20)
		case 1:
			u.RunTTL = 1 + s.r.Int64N(retrySecs)
		case 2:
			u.Strategy, u.LockTTL = store.UniqueWindow, 1+s.r.Int64N(20)
		}
	}
	if s.Uniques.Limit > 1 {
		if u.Limit = 1 + s.r.IntN(s.Uniques.Limit); u.Limit > 1 && (u.Conflict == store.ConflictReturn || u.Conflict == store.ConflictReplace) {
			u.Conflict = store.ConflictDrop
		}
	}
	if s.Uniques.Bodies {
		u.Strategy = []uint8{store.UniqueUntil, store.UniqueBefore, store.UniqueBoth}[s.r.IntN(3)]
		u.Conflict, u.Busy, u.BusyDelay = store.ConflictReplace, store.BusyWait, 0
	}
	a := engine.Add{
		Queue: fmt.Append(nil, "q", s.r.IntN(queues)), Body: []byte("unique"), TTL: ttlSecs, Retry: retrySecs,
		Replicate: 1 + s.r.IntN(max(s.Replicate, 1)), Timeout: 2000, CanWait: true, Unique: u,
	}
	if s.r.IntN(10) == 0 {
		a.Delay = 1 + s.r.Int64N(10)
	}
	if s.Uniques.Bodies && s.r.IntN(2) == 0 {
		a.Unique.Conflict, a.Delay, a.Unique.ConflictDelay = store.ConflictDebounce, 1+s.r.Int64N(8), 5+s.r.Int64N(15)
	}
	if s.wiped+s.Wiped > 0 {
		a.Replicate = max(s.Replicate, 1)
	}
	if s.chance(s.Once) && a.Unique.Strategy != store.UniqueUntil {
		a.Retry, a.Replicate = 0, 1
		a.Unique.RunTTL = 1 + s.r.Int64N(retrySecs) // otherwise a worker that dies keeps the key until the job expires
	}
	return a
}

func (s *Sim) addUnique() {
	n := s.joined()
	if n == nil {
		return
	}
	a := s.uniqueAdd()
	scope := "mesh"
	if !a.Unique.Mesh {
		scope = string(a.Queue)
	}
	u := &uniqueJob{Unique: a.Unique, wait: scope + " " + string(a.Unique.Key), n: n, life: n.life, at: s.now}
	u.run = u.wait
	if u.LockTTL > 0 {
		u.until = s.now + (a.Delay+u.LockTTL)*1000
		if u.Strategy == store.UniqueWindow || s.Uniques.Bodies { // another ADDJOB may give the job an earlier time
			u.until = s.now + u.LockTTL*1000
		}
	}
	if s.Uniques.Bodies {
		u.body = s.newBody(&a, u.wait)
	}
	n.call(func() {
		id, wait, err := n.e.AddJob(&a)
		if err != nil {
			s.Refused++
			if u.body != nil {
				u.body.refused = true
			}
			return
		}
		if !wait {
			s.bodyAnswered(u.body, id)
		}
		if s.jobs[id] != nil {
			return // it is the ID of the job that has the key
		}
		s.Added++
		j := &job{id: id, once: a.Retry == 0, copies: a.Replicate, delayed: true, notBefore: s.now + a.Delay*1000, unique: u}
		if s.Uniques.Bodies {
			j.notBefore = 0 // another ADDJOB may give it another time
		}
		s.jobs[id] = j
		s.order = append(s.order, j)
		s.uniques.adds = append(s.uniques.adds, j)
		s.trace("node %d: ADDJOB %s unique %d by %s any %v LOCKTTL %d RUNTTL %d conflict %d", n.i, id, u.Strategy, u.wait, u.Any, u.LockTTL, u.RunTTL, u.Conflict)
		if wait {
			n.e.Tie(engine.PendingAdd(id), j)
		} else {
			s.at(0, func() { s.uniquePromised(n, j, id) })
		}
		if s.chance(s.Uniques.Deleted) {
			s.at(s.r.Int64N(20_000), func() { s.command(n, func(e *engine.Node) { s.delete(e, j) }) })
		}
	})
}

// delete is DELJOB: other nodes may still have the job, and deliver it, but nobody
// counts on it any more.
func (s *Sim) delete(e *engine.Node, j *job) {
	if !e.Delete(&j.id) {
		return
	}
	s.trace("DELJOB %s", j.id)
	s.givenUp(j)
	if u := j.unique; u != nil {
		u.answered = true
	}
}

// givenUp notes that a job needn't be delivered any more, and doesn't stand against other jobs.
func (s *Sim) givenUp(j *job) {
	j.done, j.givenUp = true, true
	if j.unique != nil {
		j.unique.over = true
		s.uniqueGiven(j)
	}
}

// deadLetter notes that a job has become a dead letter, which is unique by nothing.
func (s *Sim) deadLetter(j *job) {
	j.unique.over, j.unique.dead = true, true
	s.uniqueGiven(j)
}

// uniquePromised is called when a unique job's ADDJOB is answered with an ID.
func (s *Sim) uniquePromised(n *node, j *job, id store.ID) {
	u := j.unique
	u.answered = true
	s.bodyAnswered(u.body, id)
	if id != j.id {
		s.trace("node %d: instead of %s it is %s", n.i, j.id, id)
		return
	}
	s.promised(n, id)
	for _, n := range s.nodes { // it may not be where it was added
		if sj := n.e.Job(&id); sj != nil && sj.Unique() != nil {
			u.pending = u.pending || sj.Unique().Has(store.UniquePending)
		}
	}
	if u.Strategy != store.UniqueDuring && !u.pending {
		s.hasWait(j)
	}
}

// hasWait notes that a job has its waiting lock, and checks that no other job has it.
func (s *Sim) hasWait(j *job) {
	u := j.unique
	list := slices.DeleteFunc(s.uniques.waiting[u.wait], func(o *job) bool { return !s.waitLocked(o) })
	if s.waitLocked(j) && !u.Any {
		others := 0
		for _, o := range list {
			if o == j || o.unique.Any || s.disks(o) == 0 {
				continue
			}
			if others++; others >= s.Uniques.limit() {
				s.fail("jobs %s and %s both have %s, as %d in all%s%s", o.id, j.id, u.wait, others+1, s.placement(o), s.placement(j))
			}
		}
	}
	s.uniques.waiting[u.wait] = append(list, j)
}

// waitLocked says whether a promised job must have its waiting lock.
func (s *Sim) waitLocked(j *job) bool {
	u := j.unique
	switch {
	case u.until > 0 && s.now >= u.until-u.LockTTL*20: // 2 %
		return false
	case u.dead, u.pending:
		return false
	case u.Strategy == store.UniqueWindow:
		return s.Faults.Steps == 0 // what is left of it after a restart goes by the wall clock
	}
	return !u.over && !j.done
}

// putOffAgain is for jobs that were put off, and have got their key since. Nodes may have lost that with the
// ends of their logs. If no node that is up knows that a job has got its key, another job may have the key.
func (n *node) putOffAgain() {
	for _, j := range n.s.order {
		if u := j.unique; u == nil || u.pending || !u.waited || !j.blurred || n.s.knowsKey(j) {
			continue
		}
		n.s.trace("node %d: that %s has got its key is forgotten", n.i, j.id)
		j.unique.pending = true
	}
}

// knowsKey says whether a node that is up knows that a job has its waiting lock, or has a vote for that.
func (s *Sim) knowsKey(j *job) bool {
	for _, n := range s.nodes {
		sj := n.e.Job(&j.id)
		if n.down || sj == nil || sj.Unique() == nil {
			continue
		}
		l := n.e.Locks().Live(sj.AppendLock(nil, sj.Unique(), store.LockWait))
		if sj.Unique().Has(store.UniqueHasWait) || l != nil && l.Job == j.id {
			return true
		}
	}
	return false
}

// uniqueTaken is called when a client is given a job.
func (s *Sim) uniqueTaken(n *node, j *job) {
	u := j.unique
	if u == nil || u.dead {
		return
	}
	s.tokenGiven(n, j)
	if sj := n.e.Job(&j.id); sj != nil {
		u.term = engine.TermOf(sj)
	}
	if u.pending {
		u.pending, u.waited = false, true
		s.hasWait(j)
	}
	if u.Strategy == store.UniqueBefore || u.Strategy == store.UniqueBoth {
		u.over = true
	}
	s.begins(n, j, s.now)
}

// begins notes that a client works on a job that runs alone, from a time on, and checks that no client
// works on another job by the same key.
func (s *Sim) begins(n *node, j *job, at int64) {
	u := j.unique
	if u.Strategy != store.UniqueDuring && u.Strategy != store.UniqueBoth {
		return
	}
	list := slices.DeleteFunc(s.uniques.running[u.run], func(w *working) bool { return s.now >= w.until || w.j.done })
	others := map[*job]bool{}
	for _, w := range list {
		if w.j == j || w.j.unique.Any || u.Any || s.Faults.Skew > 0 && s.healed {
			continue
		}
		if others[w.j] = true; len(others) >= s.Uniques.limit() {
			s.fail("node %d has %s worked on, and %s, which has %s, is worked on for another %d ms, as one of %d%s%s", n.i, j.id, w.j.id, u.run, w.until-s.now, len(others)+1, s.placement(w.j), s.placement(j))
		}
	}
	if !u.refused {
		list = append(list, &working{j, at + s.lease(u)})
	}
	s.uniques.running[u.run] = list
}

// lease is how long, at least, a client has a job for itself, ms. If clocks are set, a node's time
// comes back to the wall clock's. Then the job's time may end early by up to a hundredth of it,
// whichever job is given the key next.
func (s *Sim) lease(u *uniqueJob) int64 {
	seconds := int64(retrySecs)
	if u.term > 0 {
		seconds = u.term
	}
	if u.RunTTL > 0 {
		seconds = min(u.RunTTL, seconds)
	}
	if s.Faults.Steps > 0 {
		return seconds * 990
	}
	return seconds * 1000
}

// uniqueGiven notes that a client gives a job back, or says that it is done.
func (s *Sim) uniqueGiven(j *job) {
	if u := j.unique; u != nil {
		u.given, u.hands = true, false
		s.uniques.running[u.run] = slices.DeleteFunc(s.uniques.running[u.run], func(w *working) bool { return w.j == j })
		if u.Strategy == store.UniqueUntil {
			u.over = u.over || j.done
		}
	}
}

// uniqueWorked notes that a WORKING that was said at a time has succeeded. A job with RETRY 0 is given
// to no other client. So it has its lock from then on even if that was over, unless it was given back.
func (s *Sim) uniqueWorked(n *node, j *job, at int64) {
	u := j.unique
	if u == nil {
		return
	}
	for _, w := range s.uniques.running[u.run] {
		if w.j == j {
			w.until = max(w.until, at+min(s.lease(u), retrySecs*990)) // the node may not have heard of the client's own term
			return
		}
	}
	if j.once && !u.given {
		s.begins(n, j, at)
	}
}

// judgeUniques checks that every ADDJOB was answered, and that the keys can be had now
// that all jobs are gone.
func (s *Sim) judgeUniques() {
	if s.uniques == nil {
		return
	}
	for _, j := range s.uniques.adds {
		if u := j.unique; !u.answered && u.n.life == u.life && !u.n.down {
			s.fail("node %d: ADDJOB %s was never answered", u.n.i, j.id)
		}
	}
	for k := range s.Uniques.Keys {
		for q := range s.queues() {
			for _, mesh := range []bool{false, true} {
				s.probe(k, q, mesh)
			}
		}
	}
	s.run(s.now + 120_000)
	for _, n := range s.nodes {
		if c := n.e.Load(); c != (engine.Load{}) {
			s.fail("node %d is left with %+v", n.i, c)
		}
		if k := n.e.Locks().Count(); k > 0 {
			s.fail("node %d is left with %d locks:%s", n.i, k, n.lockText())
		}
	}
}

type probing struct{ promised, got bool }

// probe adds a job by a key, and fetches it.
func (s *Sim) probe(key, q int, mesh bool) {
	n := s.nodes[s.r.IntN(len(s.nodes))]
	name := fmt.Appendf(nil, "q%d", q)
	a := engine.Add{
		Queue: name, Body: []byte("probe"), TTL: ttlSecs, Retry: retrySecs, Replicate: 1, Timeout: 2000, CanWait: true,
		Unique: engine.Unique{Strategy: store.UniqueBoth, Conflict: store.ConflictRaise, Keyed: true, Key: fmt.Append(nil, "k", key), Mesh: mesh},
	}
	var p *probing
	var id store.ID
	why := error(nil)
	for range 10 {
		p, id = &probing{}, store.ID{}
		n.call(func() {
			var wait bool
			if id, wait, why = n.e.AddJob(&a); why != nil {
				return
			}
			if p.promised = !wait; wait {
				n.e.Tie(engine.PendingAdd(id), p)
			}
			s.jobs[id] = &job{id: id, probe: p}
		})
		if s.run(s.now + 4000); p.promised {
			break
		}
	}
	if !p.promised {
		s.fail("node %d: the key k%d of %s (mesh %v) can't be had any more: %v", n.i, key, name, mesh, why)
		return
	}
	var w *engine.Waiter
	n.call(func() {
		if got := n.e.Fetch([]*store.Queue{n.e.Queue(name)}, 1, true, nil); len(got) > 0 {
			p.got = true
		} else {
			w, _ = n.e.Wait([][]byte{name}, new(bool)) // no node is leaving, so there is no error
		}
	})
	for i := 0; i < 20 && !p.got; i++ {
		s.run(s.now + 1000)
	}
	if w != nil {
		n.call(func() { n.e.Cancel(w) })
	}
	if !p.got {
		s.fail("node %d: a job by the key k%d of %s (mesh %v) isn't delivered any more%s", n.i, key, name, mesh, s.placement(s.jobs[id]))
		return
	}
	if j := s.jobs[id]; j != nil {
		j.ends++
	}
	n.call(func() { n.e.Ack(&id) })
	s.run(s.now + 2000)
}

// rename is RENAME of a queue at one node, to a name that is free there: jobs that are
// unique in the queue are so by its new name.
func (s *Sim) rename(n *node) {
	if !n.serves() {
		return
	}
	from, to := fmt.Appendf(nil, "q%d", s.r.IntN(s.queues())), fmt.Appendf(nil, "q%d", s.r.IntN(s.queues()))
	n.call(func() {
		if !n.moveQueue(from, to) {
			return
		}
		s.trace("node %d: RENAME %s %s", n.i, from, to)
		for id, d := range n.disk.jobs {
			if j := s.jobs[id]; bytes.Equal(d.queue, from) && j != nil && j.unique != nil && !j.unique.Mesh {
				s.deadLetter(j)
			}
		}
		for _, j := range s.order { // a job that isn't promised yet isn't on disk
			sj := n.e.Job(&j.id)
			if sj != nil && sj.State == store.StateWaitRepl && bytes.Equal(sj.Queue.NameBytes(), to) && j.unique != nil && !j.unique.Mesh {
				s.deadLetter(j)
			}
		}
		n.log(entry{kind: renameEntry, a: from, b: to})
	})
}

// queues is how many queues there are names for.
func (s *Sim) queues() int {
	if s.Faults.Renames > 0 || s.FamilyMoved {
		return queues + 1
	}
	return queues
}

// term is the LEASE that a client says, in seconds; 0: none.
func (s *Sim) term() int64 {
	if !s.chance(s.Terms) {
		return 0
	}
	return 3 + s.r.Int64N(3*retrySecs)
}
