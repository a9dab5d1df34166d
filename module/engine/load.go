package engine

import (
	"bytes"
	"cmp"
	"math"
	"slices"

	"jobmesh/module/membership"
	"jobmesh/module/store"
)

// Trust says what is known of the time between the saving of what was loaded and now.
// At-least-once jobs that were queued are queued again whatever it says, because such a job
// may come twice. An at-most-once job may not: it is queued again only if it can't have been
// handed out after it was saved.
type Trust struct {
	// Exact: what was saved is all that there was, up to the end of the process.
	Exact bool
	// Same: it was saved by this process, and nothing has happened since (DEBUG RELOAD,
	// RESTORE of what was just dumped). So the other nodes know nothing new either.
	Same bool
	// Clean: the process before ended in order, so what was saved also says which jobs clients had, and what that process knew of
	// others' jobs ([Node.SetKnown]) is known.
	Clean bool
}

// BeginLoading stops timers and deliveries until [Node.EndLoading].
func (n *Node) BeginLoading() {
	n.loading, n.unloaded = true, n.store.Jobs()
	n.promotion = nil // a promotion begins anew
	n.deleted.flushed = 0
}

// EndLoading ends loading; the caller settles what was loaded.
func (n *Node) EndLoading() {
	n.scheduleFree() // queues that the log deleted; their deletion was noted when it was made, not now
	n.loading = false
}

// Loading says whether a data set is being loaded.
func (n *Node) Loading() bool { return n.loading }

// Settle decides for every held job what its saved state means now. It returns how many
// at-most-once jobs became uncertain by that ([store.FlagUncertain]).
//
// A job that was queued is queued again at once, in its place and with its counters. A job
// that a client had keeps the time when it is due. None of that is logged: each reader of the
// same log decides the same. If other nodes hold a job, too, they are asked first, see
// [Node.askHolders].
func (n *Node) Settle(t Trust) (uncertain int) {
	if n.passive {
		return 0
	}
	if !t.Same {
		n.dropBodies()
		n.ownBefore, n.lossAt = n.store.Locks().Floor, 0
		if !t.Exact {
			n.ownBefore, n.lossAt = 0, n.now
			n.lostEnd()
		}
	}
	s := settling{Trust: t}
	n.settleSome(&s)
	n.pauseAgain()
	n.restartCrons()
	if !t.Same {
		if t.Clean && t.Exact {
			n.shutFlushGate()
		} else {
			n.losesSight()
		}
		n.lookAtFlushes()
	}
	return s.uncertain
}

// doubtAway marks the uncertain jobs of a queue that lies in another database. The rest
// of Settle follows when the queue comes back ([Node.Attached]). The marks are made now,
// because by then it isn't known any more how far the data could be trusted.
func (n *Node) doubtAway(q *store.Queue, t Trust) (uncertain int) {
	for _, j := range notWorked(q) {
		if isOffered(j) && n.offerStands(j, t.Exact) {
			continue
		}
		if !t.Exact && doubtful(j) {
			n.becomeUncertain(j, n.now)
			uncertain++
		}
	}
	return uncertain
}

// settling is one run of Settle: three walks over the queues. It can pause at any job, and go
// on later. During a pause the node is passive, and anything may be done to it.
type settling struct {
	Trust
	restored  bool // the data came by RESTORE, and can say anything
	promoted  bool // edges are to be made again also for jobs that aren't held
	holds     bool // all jobs are to be held first, see Node.Follow
	uncertain int
	asked     []*store.Job // jobs of which other nodes may know more; empty during a pause
	ranked    int          // how many jobs there were in asked before those

	enough func() bool // whether to pause now; nil: no pause
	walk   settleWalk
	began  bool     // whether this walk has begun
	row    int      // the walk goes on with the rows below this one
	at     store.ID // the next job, in the first queue of those rows; zero: that queue's first job
	last   store.ID // the last job that was held there when the walk came to that queue
	moves  uint64   // store.Moves when the run paused
	anew   int      // how often the run began anew
	jobs   int      // jobs and queues that were seen
}

// settleWalk is what a walk does.
type settleWalk int

const (
	walkMark   settleWalk = iota // notes which queues are to be settled, and holds their jobs
	walkRelock                   // makes the locks of their jobs anew
	walkSettle                   // settles their jobs
	walksOver
)

const (
	pauseEvery = 64 // jobs are settled between looks at the time
	anewMost   = 3  // if the run begins anew more often, it pauses no more
)

func (s *settling) pause() bool {
	s.jobs++
	return s.enough != nil && s.anew <= anewMost && s.jobs%pauseEvery == 0 && s.enough()
}

// pauseAt is pause before a job, which it notes in s.at.
func (s *settling) pauseAt(j *store.Job) bool {
	yes := s.pause()
	if yes {
		s.at = j.ID
	}
	return yes
}

// settleSome goes on with a Settle, and says whether it is done.
func (n *Node) settleSome(s *settling) (done bool) {
	defer n.askHolders(s)
	defer func() { s.moves = n.store.Moves() }()
	if s.began && s.moves != n.store.Moves() {
		s.began, s.walk = false, walkMark // queues have come or gone: all begins anew, and finds most done
		s.anew++
	}
	for ; s.walk < walksOver; s.walk++ {
		if !s.began {
			s.began, s.row, s.at = true, math.MaxInt, store.ID{}
		}
		for row, q := range n.store.QueuesBelow(s.row) {
			done := true
			switch s.walk {
			case walkMark:
				q.Flags |= queueUnsettled
				if s.holds {
					done = n.store.HoldAll(q, s.pause)
				} else {
					done = n.store.UncountDelayed(q, s.pause)
				}
			case walkRelock:
				done = !q.AnyParts() || n.relockSome(q, s)
			case walkSettle:
				if q.Flags&queueUnsettled != 0 {
					done = n.settleQueue(q, s)
				}
			}
			if s.row = row + 1; !done {
				return false
			}
			if s.row, s.at = row, (store.ID{}); s.pause() {
				return false
			}
		}
		s.began = false
	}
	if s.holds {
		n.listAll() // jobs move, for which the tables have to know them
	}
	for _, q := range n.dormant {
		if s.holds {
			n.store.HoldAll(q, func() bool { return false })
			q.Flags |= queueUnsettled
		}
		n.addEdges(q)
		if q.Flags&queueUnsettled != 0 {
			s.uncertain += n.doubtAway(q, s.Trust)
		}
	}
	return true
}

func (n *Node) eachQueue(do func(*store.Queue)) {
	for q := range store.Warmed(n.store.AllQueues(), 2) {
		do(q)
	}
}

// SettleQueue is Settle for one queue (RESTORE).
func (n *Node) SettleQueue(q *store.Queue, t Trust) (uncertain int) {
	if n.passive || n.loading || q.DB != 0 {
		return 0
	}
	s := settling{Trust: t, restored: true}
	n.settleQueue(q, &s)
	n.askHolders(&s)
	return s.uncertain
}

// settleQueue settles a queue's held jobs, and says whether all are settled. Each stays in the
// list of held jobs, or goes to another list.
func (n *Node) settleQueue(q *store.Queue, s *settling) (done bool) {
	before := q.Waiting()
	next := n.heldIn(q, &s.at)
	if next == nil || n.heldIn(q, &s.last) == nil {
		var last *store.Job
		if next, last = q.Undelayed(); last != nil {
			s.last = last.ID
		}
	}
	for j := next; j != nil; j = next {
		if j.Reason() == store.Delayed { // these are behind those that are to be settled, and were settled
			next = nil
			break
		}
		if s.pauseAt(j) {
			break
		}
		next = j.Next
		last := j.ID == s.last
		if n.settle(j, s); last {
			next = nil
		}
	}
	if more := q.Waiting() - before; more > 0 {
		n.show(q)
		q.ATime = n.now
		q.JobsIn += more
		n.touch(q)
	}
	if next != nil {
		return false
	}
	if n.Visible(q) {
		n.show(q)
	}
	q.Flags &^= queueUnsettled
	if !s.restored && q.Waiting() == 0 && q.Jobs() == 0 && q.KeyQueues.Len == 0 && q.Pause == 0 && n.waitersOf(q) == 0 {
		// A queue that was flushed, and not removed yet, is saved as an empty one.
		n.hide(q)
		n.store.CondemnEmpty(q)
		n.hurryTick()
		return true
	}
	n.serveBehind(q) // later: this may be inside of RESTORE, which isn't logged yet, or at the end of loading
	return true
}

// heldIn finds a job that is held in a queue, and not delayed; nil if it isn't, or not any more.
func (n *Node) heldIn(q *store.Queue, id *store.ID) *store.Job {
	if j := n.store.Lookup(id); j != nil && j.Queue == q && j.Place == store.InHeld && j.Reason() != store.Delayed {
		return j
	}
	return nil
}

func hasRun(j *store.Job) bool {
	u := j.Unique()
	return u != nil && u.Has(store.UniqueHasRun)
}

// withinTerms bounds the times of a job that was loaded. Otherwise a clock that was set back
// before would prolong the job's life, its delay, and the time for which a client has it, here or elsewhere.
func (n *Node) withinTerms(j *store.Job) {
	const minute = 60_000                               // the precision of an ID's time to live
	delay, retry := int64(j.Delay)*1000, TermOf(j)*1000 // a copy waits for both
	if !j.DeadLetter() && !j.Kept() {                   // a dead letter, and an outcome, live longer than the job's own time to live
		j.ETime = min(j.ETime, n.now+max(timeToLive(j), 2*retry)+minute)
	}
	boundLease(j, n.now)
	switch once := j.Flags&store.FlagQueuedOnce != 0; {
	case j.QTime <= n.now+delay+retry+jitterMS:
	case savedResting(j), once && retry > 0 && mayRestElsewhere(j):
		n.setTime(j, min(j.QTime, max(n.now, j.ETime-retry)))
	case once && retry > 0:
		n.setTime(j, n.now+retry)
	case !once && j.Unique() != nil: // it may be put off for longer
		u := j.Unique()
		n.setTime(j, min(j.QTime, n.now+max(delay, u.ConflictDelay(), u.BusyDelay())+putOffMS))
	case delay > 0 && !once:
		n.setTime(j, n.now+delay)
	}
}

// mayRestElsewhere says whether a job that was loaded is a copy of one that was given back, and may rest at another node for longer than its
// retry time. That node's PutOff, which is the only word of it, has changed nothing but QTime.
func mayRestElsewhere(j *store.Job) bool {
	return j.Nacks > 0 && j.Holders() > 0 && j.State == store.StateActive && j.Flags&store.FlagDelivered == 0
}

func (n *Node) settle(j *store.Job, s *settling) {
	if isAskedToStop(j) {
		n.noteWish(j)
	}
	if s.restored {
		n.sawCTime(j.CTime)
	} else {
		n.followCTime(j.CTime, trustAhead) // the clock may have been set back since
	}
	n.withinTerms(j)
	if j.Retry == 0 && j.Extra(store.TagAskers) != nil {
		n.noteAsked(j)
	}
	if isOffered(j) && n.offerStands(j, s.Exact && !s.restored) {
		n.arm(j)
		return
	}
	if s.Exact && !s.Same && !s.restored {
		n.endOwnRuns(j)
	}
	if !s.Same {
		n.noteBody(j)
	}
	if asksName(j) && !stillAsksName(j) {
		setAsksName(j, false)
	}
	j, settled := n.settleFamily(j, s.Trust)
	if settled {
		return
	}
	// The nodes' file may be older than the data: a holder that it doesn't name is asked, too, if it comes.
	elsewhere := (!s.Same || n.now < n.askedUntil) && j.Holders() > 0
	switch {
	case isOffered(j) || !s.Exact && doubtful(j):
		s.uncertain++
		n.doubted = max(n.doubted, j.CTime)
		n.becomeUncertain(j, n.now)
		n.boundWait(j)
		n.store.Work(j, j.QTime)
	case j.State == store.StateQueued && elsewhere && j.Retry > 0:
		becomeUnqueued(j)
		becomeReturning(j)
		setQueuedOnce(j)
		s.asked = append(s.asked, j)
		return
	case j.State == store.StateQueued:
		becomeUnqueued(j)
		n.pushBack(j)
	case taker(j) != 0: // it was handed over: nobody works on it here
		if p := n.mesh.ByName(taker(j)); p != nil {
			p.gave(j, n.now) // when that node connects, holders are asked whether the job arrived
		}
	case j.State == store.StateActive && j.Flags&store.FlagDelivered != 0:
		at := j.QTime
		if j.Retry > 0 && !s.Same && (at == 0 || hasRun(j)) {
			// The lease of the job's run begins anew, and goes by a clock that doesn't jump. If the
			// wall clock was set meanwhile, the run must not end before the worker's time is over.
			j = n.putWorker(j, since(j), []byte(n.workerOf(j)))
			was := at
			if at = max(at, n.retryAt(j)); was > 0 && !n.expiresInHands && j.ETime < at+int64(j.Retry)*1000 {
				j.ETime += at - was // what is left of the job's life after it is due stays as long as it was
			}
		}
		n.store.Work(j, at)
	case j.State == store.StateAcked:
		n.settleEnded(j)
	case asksName(j) && n.askNameAgain(j, s.Same):
		return
	case n.wasShutOut(j):
		n.setTime(j, n.now)
	case n.delayedHere(j):
		n.store.Count(j, store.Delayed)
		if j.Holders() == 0 {
			setAnnounced(j) // no other node need be told, see awaitsFirst
		}
	}
	if elsewhere && j.State == store.StateActive && j.Retry > 0 && j.QTime < n.now+askFirstMS {
		s.asked = append(s.asked, j) // its time came while the node was down, or comes now
		return
	}
	n.arm(j)
}

// wasShutOut says whether a job that was loaded was kept out by a pause in input: without the pause
// this node would have queued it for the first time by then. The pause isn't saved.
func (n *Node) wasShutOut(j *store.Job) bool {
	if j.State != store.StateActive || j.Retry == 0 || j.QTime <= n.now || j.Flags&(store.FlagQueuedOnce|store.FlagDelivered) != 0 || held(j) || delayFrom(j, n.now) > 0 || savedResting(j) {
		return false
	}
	u := j.Unique()
	return u == nil || u.Tries() == 0 && !u.Has(store.UniquePending)
}

// delayedHere says whether a job that was loaded, and wasn't delivered, is delayed, and this node
// is to queue it in time. Other nodes with a copy would queue it a retry time later, or, if they let it go too, insteadMS.
func (n *Node) delayedHere(j *store.Job) bool {
	if j.State != store.StateActive || j.QTime == 0 || j.Flags&store.FlagQueuedOnce != 0 {
		return false
	}
	if savedResting(j) {
		return true
	}
	if u := j.Unique(); u != nil && u.Tries() > 0 && j.Holders() == 0 {
		return true // it was put off, because a job with its key was being worked on
	}
	if j.Delay == 0 && !n.putOff(j) {
		return false
	}
	return j.Holders() == 0 || j.QTime < firstDue(j)+min(int64(j.Retry)*1000, insteadMS)/2
}

// pushBack puts a job into its queue without counting that. From then on no client has the job:
// if it is taken out without a delivery, it isn't in progress after a restart.
func (n *Node) pushBack(j *store.Job) {
	n.outliveAsGivenBack(j)
	if j.Parts == 0 {
		n.store.Push(j)
	} else if u := j.Unique(); u == nil {
		n.store.Push(j)
	} else {
		n.pushUnique(j, u)
	}
	becomeQueued(j)
	if j.Place == store.InWaiting && j.Next != nil {
		n.notPast(j)
	}
}

// doubtful says whether a job that was loaded from inexact data is at-most-once, and may have
// been handed out after it was saved.
func doubtful(j *store.Job) bool {
	return j.Retry == 0 &&
		(j.State == store.StateQueued || isOffered(j) || j.State == store.StateActive && j.Flags&store.FlagDelivered == 0)
}

// notHeld makes a job wait for nothing: it was held back when it was saved, and may have been
// unblocked since. It returns where the job is now.
func (n *Node) notHeld(j *store.Job) *store.Job {
	return n.setFamily(j, &store.Family{})
}

// Doubt repeats in the data of a log, or of a replica, what Settle did with the same data
// and an inexact Trust. That Settle was at the time at (unix ms), and its jobs have creation
// times up to last. Without Doubt the next node to load the log would take for exact what wasn't.
func (n *Node) Doubt(at int64, last uint64) {
	n.eachQueue(func(q *store.Queue) { n.doubtQueue(q, at, last) })
	for _, q := range n.dormant {
		n.doubtAway(q, Trust{})
	}
}

// DoubtQueue is Doubt for a queue that RESTORE has brought in a log or a stream. The node
// that carried RESTORE out knows better of some jobs, and logs them after it, see [Node.LogAgain].
func (n *Node) DoubtQueue(q *store.Queue) {
	if q.DB != 0 {
		n.doubtAway(q, Trust{})
		return
	}
	n.doubtQueue(q, n.now, math.MaxUint64)
}

func (n *Node) doubtQueue(q *store.Queue, at int64, last uint64) {
	for _, j := range notWorked(q) {
		if j.CTime > last {
			continue
		}
		if held(j) {
			j = n.notHeld(j)
		}
		if doubtful(j) {
			n.store.Hold(j)
			n.becomeUncertain(j, at)
		}
	}
}

// notWorked lists a queue's at-most-once jobs that aren't being worked on.
func notWorked(q *store.Queue) (list []*store.Job) {
	pick := func(j *store.Job) {
		for ; j != nil; j = j.Next {
			if j.Retry == 0 {
				list = append(list, j)
			}
		}
	}
	pick(q.Head)
	pick(q.Held.Head)
	for l := q.KeyQueues.Head; l != nil; l = l.Next {
		pick(l.Head())
	}
	return list
}

// NotDelivered lists a queue's at-most-once jobs that are known not to be delivered here.
func (n *Node) NotDelivered(q *store.Queue) (ids []store.ID) {
	for _, j := range notWorked(q) {
		if j.Flags&store.FlagDelivered == 0 || isOffered(j) {
			ids = append(ids, j.ID)
		}
	}
	return ids
}

// LogAgain logs the state of those jobs that are still known.
func (n *Node) LogAgain(ids []store.ID) {
	for i := range ids {
		if j := n.store.Lookup(&ids[i]); j != nil {
			n.log(LogState, j)
		}
	}
}

// LastCTime returns the greatest creation time known here, ms*1e6. It isn't less than that of
// any job that Settle has made uncertain.
func (n *Node) LastCTime() uint64 { return max(n.ctime, n.doubted) }

const (
	askFirstMS = 1_000 // from loading to the first queueing that others are asked about: connections are made meanwhile
	askWaitMS  = 1_000 // how much longer to wait for connections that aren't made yet
	askAgainMS = 50    // between looks whether they are made
	askRate    = 20    // jobs asked about in one millisecond
)

// askHolders sets the jobs in s.asked to be queued soon, so that their other holders are asked
// before, by WillQueue as with any queueing. A holder objects if it has the job queued or with
// a client, or knows that the job is done. The oldest go first, askRate in a millisecond, so
// that a million jobs don't flood the mesh.
func (n *Node) askHolders(s *settling) {
	if len(s.asked) == 0 {
		return
	}
	slices.SortFunc(s.asked, func(a, b *store.Job) int {
		return cmp.Or(cmp.Compare(a.CTime, b.CTime), bytes.Compare(a.ID[:], b.ID[:]))
	})
	for i, j := range s.asked {
		at := n.now + askFirstMS + n.jitter() + int64(s.ranked+i)/askRate
		if !j.Returning() {
			at += jitterMS // after the node that had it queued
		}
		clearAnnounced(j)
		n.setQTime(j, at)
		n.arm(j)
	}
	s.ranked += len(s.asked)
	s.asked = s.asked[:0]
	until := n.now + askFirstMS + askWaitMS
	if !s.restored {
		n.asksUntil = until // RESTORE ends no connections, and must not put off other jobs
	}
	n.askedUntil = max(n.askedUntil, until+int64(s.ranked)/askRate+store.AnnounceMS)
}

// connecting says whether a job whose holders are to be asked has to wait for connections:
// this node has just started, and another one that may be there, and may hold the job, isn't
// connected yet.
func (n *Node) connecting(j *store.Job) bool {
	if n.now >= n.asksUntil {
		return false
	}
	return j.Holders() > 0 && slices.ContainsFunc(n.mesh.All(), func(p *Peer) bool { return !p.Connected && p.Health != membership.Failed })
}

// ApplyJob carries out LOADJOB: it adds a job as it was on the node that logged it. It can be
// applied twice.
func (n *Node) ApplyJob(name, rec []byte) error {
	j, err := n.store.JobFromRecord(rec)
	if err != nil {
		return err
	}
	if old := n.store.Lookup(&j.ID); old != nil && n.dummy(old) {
		// This dummy is from when this node was a master, and was told of the end of a job that it
		// didn't know. Its master has the job by now, so the job must be in a queue.
		n.discard(old)
	} else if old != nil {
		n.store.FreeJob(j)
		return n.ApplyState(rec, nil)
	}
	q, err := n.queue(name)
	if err != nil {
		n.store.FreeJob(j)
		return err
	}
	n.oust(&j.ID) // from another database: the node that logged this entry put this job in its place
	if !n.store.Register(q, j) {
		n.store.FreeJob(j)
		return nil
	}
	n.touch(q)
	return nil
}

// ApplyDormantJob is ApplyJob for a queue that lies in another database than 0: q is the one
// in the key of that name there, nil if there is no such key. The job is known when the
// queue comes to database 0.
func (n *Node) ApplyDormantJob(db int, q *store.Queue, name, rec []byte) error {
	j, err := n.store.JobFromRecord(rec)
	if err != nil {
		return err
	}
	if q, err = n.queueAway(db, q, name); err != nil {
		n.store.FreeJob(j)
		return err
	}
	if !n.store.Listed(q) {
		n.store.LoadInto(q, j)
	} else if !n.store.Register(q, j) {
		n.store.FreeJob(j)
	}
	return nil
}

// queueAway makes a queue in another database than 0, unless q is one already.
func (n *Node) queueAway(db int, q *store.Queue, name []byte) (*store.Queue, error) {
	if q != nil && !n.store.Condemned(q) {
		return q, nil
	}
	q = n.store.AllocQueue(n.now)
	n.store.Rename(q, name)
	q.DB = int32(db)
	if err := n.keys.Adopt(q); err != nil {
		n.store.DropQueue(q)
		return nil, err
	}
	n.unsettle(q)
	n.setDormant(append(n.dormant, q))
	return q, nil
}

// ApplyQueue carries out MAKEQUEUE: a queue, maybe without jobs, has this key in database 0.
// It can be applied twice.
func (n *Node) ApplyQueue(name []byte) error {
	_, err := n.queue(name)
	return err
}

// ApplyDormantQueue is ApplyQueue for another database than 0, see [Node.ApplyDormantJob].
func (n *Node) ApplyDormantQueue(db int, q *store.Queue, name []byte) error {
	_, err := n.queueAway(db, q, name)
	return err
}

// ApplyDelete carries out DELJOB from the log or the master: the job is gone, whatever its
// state was. The node that logged the entry has also logged the consequences. The end of a
// vote is an entry of its own (DELLOCK), and a vote whose end isn't logged outlasts the job. So
// with the job only those of its locks end that are no votes in a mesh.
func (n *Node) ApplyDelete(id *store.ID) {
	if j := n.store.Lookup(id); j != nil {
		n.touch(j.Queue)
		if j.State == store.StateAcked && !cancelled(j) {
			n.store.SetDone(id) // a node with a job that waits for it may ask
		}
		n.leaveVotes(j)
		n.discard(j)
		return
	}
	if j := n.lookDormant(id); j != nil && j.State == store.StateAcked && !cancelled(j) {
		n.store.SetDone(id)
	}
	n.oust(id)
}

// LoadState is ApplyState before Settle, also for jobs in other databases than 0.
func (n *Node) LoadState(rec, holders []byte) error {
	j, err := n.store.ApplyState(rec, holders)
	if err != nil || j != nil || len(n.dormant) == 0 {
		return err
	}
	n.listAll()
	_, err = n.store.ApplyState(rec, holders)
	return err
}

// DormantInHands calls do for the jobs in other databases than 0 that a client was given, and that
// come again unless they are acknowledged.
func (n *Node) DormantInHands(do func(*store.Job)) {
	n.eachAway(func(j *store.Job) {
		if j.Retry > 0 && j.State == store.StateActive && j.Flags&store.FlagDelivered != 0 {
			do(j)
		}
	})
}

func (n *Node) eachAway(do func(*store.Job)) {
	for _, q := range n.dormant {
		eachJob(q, do)
	}
}

// eachJob walks all lists of a queue.
func eachJob(q *store.Queue, do func(*store.Job)) {
	walk := func(j *store.Job) {
		for ; j != nil; j = j.Next {
			do(j)
		}
	}
	walk(q.Head)
	walk(q.Working.Head)
	walk(q.Held.Head)
	for l := q.KeyQueues.Head; l != nil; l = l.Next {
		walk(l.Head())
	}
}

// ApplyDrop carries out the form of SETJOB that says that a job doesn't wait for another any more. Unknown jobs are passed over.
func (n *Node) ApplyDrop(id, other *store.ID) error {
	j := n.store.Lookup(id)
	if j == nil && n.unlisted() {
		n.listAll()
		j = n.store.Lookup(id)
	}
	if j == nil {
		j = n.store.LookupDetached(id)
	}
	if j == nil {
		return nil
	}
	f, ok := j.Family()
	if !ok || !f.Drop(*other) {
		return nil
	}
	j, _ = n.store.SetExtra(j, store.TagFamily, f.Value())
	if j.Queue.DB == 0 {
		n.touch(j.Queue)
	}
	return nil
}

// ApplyState carries out SETJOB: it changes a job's state, and its holders. The job may be in
// another database, when the end of a job that it waited for became known. Unknown jobs are passed
// over.
func (n *Node) ApplyState(rec, holders []byte) error {
	_, err := n.applyState(rec, holders)
	return err
}

func (n *Node) applyState(rec, holders []byte) (*store.Job, error) {
	j, err := n.store.ApplyState(rec, holders)
	if j == nil && err == nil && n.unlisted() {
		n.listAll()
		j, err = n.store.ApplyState(rec, holders)
	}
	if j != nil && j.Queue.DB == 0 {
		n.touch(j.Queue)
	}
	return j, err
}

// ApplyMove carries out SETJOB with a queue's name: it is ApplyState, and moves the job to that queue in database 0.
func (n *Node) ApplyMove(queue, rec, holders []byte) error {
	j, err := n.applyState(rec, holders)
	if err != nil {
		return err
	}
	q, err := n.queue(queue)
	if err != nil || j == nil || j.Queue == q {
		return err
	}
	n.store.MoveTo(j, q)
	n.touch(q)
	return nil
}
