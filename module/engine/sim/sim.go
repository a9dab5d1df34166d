package sim

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"unsafe"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
	"jobmesh/module/wire"
)

// Faults say how often each thing goes wrong. Shares are of all messages, rates are
// per node and hour of simulated time.
type Faults struct {
	Loss, Duplicate float64 // shares
	Refuse          float64 // share of the messages with a job that the bus doesn't accept
	Reorder         bool    // messages of one connection may overtake each other
	MinDelay        int64   // ms
	MaxDelay        int64
	Late            int64   // ms that the second of two copies of a message is late, at most
	Resets          float64 // connections that break, losing what is under way
	Crashes         float64 // with a restart, the disk kept
	Wipes           float64 // with a restart, the disk lost; at most Config.Wiped in all
	Pauses          float64 // up to 30 s in which the node does nothing
	Partitions      float64 // of the whole mesh: two sides, or one direction
	CutSecs         int64   // that a partition lasts, at most; 0: 68
	Pressure        float64 // times in which memory is short
	Leaving         float64 // a node leaves, and comes back
	Replaced        float64 // a node dies for good, is forgotten, and a new one joins; counts as a wipe
	Promotions      float64 // a node's replica takes its place, and the others forget the node
	PauseQueue      float64 // a queue is paused for some seconds, at one node or everywhere
	Renames         float64 // a queue gets another name at a node
	Skew            int64   // ms that clocks differ at most
	Stops           float64 // clean shutdowns, with a restart
	Blackouts       float64 // of the whole mesh: all nodes stop, or crash, within a moment, and start again
	Settings        float64 // of the whole mesh: settings of queues change at a node
	Flushes         float64 // of the whole mesh: QFLUSH … MESH
	Rewrites        float64 // the log is written anew
	NodesLate       bool    // the nodes' file is written a while after it changed; a crash meanwhile leaves the old one
	Steps           float64 // a clock is set, forwards or backwards
	StepMS          int64   // so far from true time, at most
	Joins           float64 // of the whole mesh: a new node meets any node, whichever others can't be reached just then
	MaxNodes        int     // nodes join until there are so many
	ForgetSecs      int64   // until an operator has told each node to forget a dead one, at most
}

// Config is one history.
type Config struct {
	Nodes     int
	Jobs      int
	Seconds   int64 // of trouble; then all heals, and the end is awaited
	Replicate int   // 0: the default
	Fsync     Fsync
	Faults    Faults
	// AckShare is the share of deliveries that consumers acknowledge. The rest is lost
	// with a consumer that crashes.
	AckShare float64
	// Once is the share of at-most-once jobs.
	Once float64
	// Wiped is how many nodes may lose their disk: below the number of copies.
	Wiped int
	// DelaySecs is the delay of jobs, at most; 0: a tenth of them are delayed, for a moment.
	DelaySecs int64
	// RepairAfter is how long a node is away until its copies are made again, ms (0: they aren't). Then more nodes than Wiped may be
	// replaced, one after the other.
	RepairAfter int64
	// Fast is the share of acknowledgements that are FASTACKs: they may be lost.
	Fast float64
	// Async is the share of jobs that are added ASYNC: nothing is promised, unless WAITCOPIES says that they have their copies.
	Async float64
	// Converge: after all has healed nothing is acknowledged for a while, and
	// then every holder of a job must know of every other.
	Converge bool
	// Swift: nothing ever goes wrong or waits, so that copies of an acknowledged
	// job are gone at once, and no job is queued twice.
	Swift bool
	// Loyal workers acknowledge where they got a job, and never give one back.
	Loyal bool
	// Brief: the history's end isn't awaited, and nothing is judged there; for measuring.
	Brief bool
	// Bulk is how many jobs an ADDJOBS has, at most. Then each of Jobs is such a call. 0: jobs are added by ADDJOB.
	Bulk int
	// Former is how many nodes are of a former release, which doesn't know messages for several jobs.
	Former int
	// Patient clients wait for their copies without limit.
	Patient bool
	// Lazy workers ask at the first node alone, one job at a time.
	Lazy bool
	// MostExtra is the share of jobs that may be delivered more often than
	// workers gave them up; 0: any.
	MostExtra float64
	// Families is how many families are added beside the jobs: of a deferred job,
	// others that it blocks, and one after those.
	Families int
	// FamilyDeleted is the share of their members that a client deletes at some node.
	FamilyDeleted float64
	// Failing: so many of the jobs that are given back come with a delay, a reason, or as dead letters, from 0 to 1.
	Failing float64
	// Results is the share of acknowledgements with a result. If it isn't 0, clients wait for the ends of jobs, and ask workers to stop.
	Results float64
	// Terms is the share of clients that choose the term of their deliveries (GETJOB … LEASE).
	Terms float64
	// Gone is the share of clients that are gone before they hear of their job. Then workers also give jobs back by ENQUEUE.
	Gone float64
	// Named is the share of jobs that have names, and are added at several nodes.
	Named float64
	// Rate is how often jobs of each queue are delivered at most (RATE); zero: there is no limit.
	Rate engine.Rate
	// AtOnce is how many jobs of each queue are in progress at most (CONCURRENCY); 0: there is no limit.
	AtOnce int64

	// FamilyMoved: some deferred jobs are released into another queue, and some jobs that come
	// after cancelled ones become dead letters.
	FamilyMoved bool
	// PerTenSeconds is how many messages a job may cost in ten seconds; 0: any number.
	PerTenSeconds int
	// Locks are clients that take locks, beside those with jobs.
	Locks *Lockers
	// Uniques are unique jobs, beside the others.
	Uniques *Uniques
	// Crons are recurring jobs, beside the others.
	Crons *Crons
	Trace func(format string, args ...any)
}

// Report counts what happened in a history.
type Report struct {
	Added, Refused, Delivered, Acked, Duplicates int
	Messages, Bytes                              int64 // of jobs and queues
	Beats                                        int64 // heartbeats, and verdicts on nodes
	Kinds                                        [96]int64
	LockMessages                                 int64
	Granted                                      int     // locks
	Flushed                                      int     // jobs, by QFLUSH
	FlushedLate                                  int     // those of nodes that were away
	Ended, Kept                                  int     // ends that WAITJOB told, and outcomes that were kept at the end
	Told                                         int     // ends of jobs, by events
	ByHand                                       int     // uncertain jobs that the operator queued
	Extra                                        int     // deliveries that no worker's failure explains
	Bodies                                       int     // deliveries of which it is known when their bodies were given
	Busiest                                      int     // messages of one job in ten seconds
	Simulated                                    int64   // ms
	PerJob                                       float64 // messages, without questions for jobs of a queue, and what nodes tell each other at contact of what all are to know
	LargestNode                                  int     // bytes of the store's memory, at most
}

// job is what the judge knows of a job.
type job struct {
	id        store.ID
	queue     int
	once      bool
	copies    int
	promised  bool
	delivered int
	done      bool // some node has accepted an acknowledgement
	fast      bool // by FASTACK
	worked    int  // WORKINGs
	ends      int  // ACKJOBs and FASTACKs
	told      int  // events of its end
	addTold   int  // events of its adding
	named     bool
	delayed   bool
	notBefore int64 // its delay is over then
	moved     int64 // when it was last handed over
	given     int64 // and when to a client
	settled   bool  // acknowledged before all healed, and in no queue since
	excuses   int   // how often a worker gave it up
	dummies   []dummy
	doubtful  bool  // at the last look, something about it wasn't in order
	acked     bool  // some node has accepted an ACKJOB, and no node that did has lost its disk or the end of its log
	ackedAt   int64 // when
	ackedBy   []int
	window    int64 // when the current ten seconds of messages began
	messages  int   // since

	blurred bool            // a node lost some of what it had logged of it, maybe which nodes have copies
	torn    int             // copies that were lost with the tail of a log
	givenUp bool            // deleted or dropped: nobody awaits its delivery
	tried   bool            // some worker has said ACKJOB
	results map[string]bool // that were said
	stopped bool            // its worker was asked to stop
	stray   bool            // it waited for its turn at the end of the history, and may still get it, see Sim.waits

	family *family    // nil: none
	unique *uniqueJob // likewise
	probe  *probing

	heardAt     int64 // when its producer heard that it is added; 0: it hasn't
	flushedLate bool  // a flush that reached its node later has ended it
}

// dummy is an acknowledgement at a node that doesn't know the job. Its memory ends
// with its life.
type dummy struct {
	n    *node
	life int
}

// Sim is a history being played.
type Sim struct {
	Config
	Report
	names      int                     // how many were given
	flushings  [queues]int             // QFLUSHes of each queue that wait for their answer
	flushes    [queues]int64           // when the last one began
	acked      map[store.ID]bool       // some client has done with these jobs, if there is AtOnce
	progress   map[string][]inProgress // of each queue, if there is AtOnce
	deliveries map[string][]int64      // when jobs of each queue were delivered, if there is a Rate
	now        int64
	seq        uint64
	queue      events
	flying     int        // messages under way, without those that are always under way
	spare      []*message // to be used again
	r          *rand.Rand
	nodes      []*node
	byID       map[wire.NodeID]*node
	jobs       map[store.ID]*job
	order      []*job
	cut        func(from, to *node) bool
	settings   settings
	healed     bool
	healedAt   int64
	holding    bool // workers acknowledge nothing
	over       bool // all jobs are done: none may come back
	closed     bool // no more clients
	wiped      int
	byHand     bool          // the operator has settled what is uncertain
	torn       int           // crashes that lost some of the log
	dead       []wire.NodeID // nodes that were replaced
	succeeding bool          // an operator puts a promoted replica in its place
	failures   []string
	seed       uint64
	locks      *lockWorld
	uniques    *uniqueWorld
	crons      *cronWorld
	events     int // see counted
	said       int // results
}

type node struct {
	s       *Sim
	i       int
	id      wire.NodeID
	text    string
	e       *engine.Node
	late    int64 // jobs that have gone by late flushes in this life
	alloc   *storetest.Alloc
	keys    *keyspace
	disk    disk
	life    int // grows with each start: what belongs to an earlier life is void
	down    bool
	dead    bool // for good: another has its place
	paused  bool
	skew    int64
	setAt   int64 // when its clock was set last
	tickAt  int64
	links   map[*node]*link
	side    bool           // of the partition there is
	met     map[*node]bool // nodes that it was told to meet, and hasn't reached yet
	rate    float64        // of its monotonic clock
	born    int64          // when that clock began
	ended   int64          // when the last life did
	unsure  bool           // what the disk has of locks may not be all
	unsaved bool           // the nodes' file is being written
	keeps   int            // counts what was to be remembered of votes,
	kept    int            // and which of it is on disk: nothing older comes after it
	votes   []vote         // that it had given when the last life ended
	waits   []*lockWait
	replica *node   // follows its log; nil: there is none
	behind  []entry // of a replica: what it has still to hear
	shut    bool    // no clients are let in: it was promoted, and has met nobody yet
	became  int64   // when it was promoted; 0: it wasn't
}

// link is a connection, as one side sees it: what is sent on an old one is lost.
type link struct {
	up     bool
	buffer []*message // that a paused node has still to read
	last   int64      // when the last message arrives: none overtakes it
}

type keyspace struct {
	n     *node
	boxes map[*store.Queue]unsafe.Pointer
}

// box is the value in a queue's key.
type box struct{ q *store.Queue }

func (k *keyspace) Free([]byte) error { return nil }

// Adopt puts a queue into its key. If the key held another queue, which is given up, that queue leaves the key.
func (k *keyspace) Adopt(q *store.Queue) error {
	for old := range k.boxes {
		if bytes.Equal(old.NameBytes(), q.NameBytes()) {
			k.unlink(old)
		}
	}
	b := unsafe.Pointer(&box{q})
	k.boxes[q], q.Box = b, b
	return nil
}

func (k *keyspace) Lives(*store.Queue) (lives, expires bool) { return true, false }

func (k *keyspace) Drop(queues []*store.Queue) {
	for _, q := range queues {
		if !k.n.e.Loading() && !k.n.e.Passive() {
			k.n.log(entry{kind: dropEntry, a: slices.Clone(q.NameBytes())})
		}
		k.unlink(q)
	}
}

func (k *keyspace) unlink(q *store.Queue) {
	b := k.boxes[q]
	delete(k.boxes, q)
	k.n.e.Unlinked(b, q)
}

// make makes a queue that is being loaded.
func (k *keyspace) make() *store.Queue {
	b := &box{}
	b.q = k.n.e.NewQueueFor(unsafe.Pointer(b))
	k.boxes[b.q] = unsafe.Pointer(b)
	return b.q
}

func (s *Sim) trace(format string, args ...any) {
	if s.Trace != nil {
		s.Trace("%9.3f "+format, append([]any{float64(s.now) / 1000}, args...)...)
	}
}

func (s *Sim) chance(share float64) bool { return share > 0 && s.r.Float64() < share }

// newSim makes the nodes; they meet the first one.
func newSim(seed uint64, c Config) *Sim {
	s := &Sim{
		Config: c, seed: seed, r: rand.New(rand.NewPCG(seed, 0x5eed)), now: 1_700_000_000_000,
		byID: map[wire.NodeID]*node{}, jobs: map[store.ID]*job{},
		cut: func(_, _ *node) bool { return false },
	}
	for i := range c.Nodes {
		s.nodes = append(s.nodes, s.newNode(i))
	}
	for _, n := range s.nodes {
		n.start()
	}
	for _, n := range s.nodes[1:] {
		n.call(func() { n.e.Mesh().Add(s.nodes[0].id, addr(0)) })
	}
	return s
}

func (s *Sim) newNode(i int) *node {
	n := &node{s: s, i: i, links: map[*node]*link{}, met: map[*node]bool{}, rate: s.drift()}
	n.disk.wipe()
	for k := range n.id {
		n.id[k] = byte(s.r.Uint32())
	}
	n.text = n.id.String()
	if f := s.Faults.Skew; f > 0 {
		n.skew = s.r.Int64N(2*f) - f
	}
	s.byID[n.id] = n
	return n
}

func addr(i int) string { return fmt.Sprintf("10.0.0.%d:1", i) }

// start begins a life, with what the disk has: in the order in which the module does
// it (shell.go, persist.go and lock.go in package commands).
func (n *node) start() {
	s := n.s
	n.boot()
	n.call(func() {
		n.recall()
		if n.life > 1 {
			n.restart()
		} else {
			n.e.SetKnown(engine.Known{All: true})
		}
		for _, id := range s.dead {
			n.e.Mesh().Forget(id)
		}
	})
	for _, p := range n.e.Mesh().All() {
		n.connect(s.byID[p.ID])
	}
	n.tickSoon(1)
	if s.Faults.Promotions > 0 {
		n.followed()
	}
}

// recall reads the nodes' file.
func (n *node) recall() {
	for _, id := range n.disk.nodes {
		n.e.Mesh().Add(id, addr(n.s.byID[id].i))
	}
	for _, id := range n.disk.gone {
		n.e.Mesh().RestoreForgotten(id)
	}
	n.e.Locks().SetVotes(n.disk.votes)
	n.e.SetPast(n.disk.past)
}

// boot begins a life with nothing.
func (n *node) boot() {
	s := n.s
	n.life++
	n.down, n.paused, n.unsaved, n.late = false, false, false, 0
	n.tickAt, n.born = never, s.now
	n.alloc = storetest.New()
	n.keys = &keyspace{n: n, boxes: map[*store.Queue]unsafe.Pointer{}}
	n.e = engine.New(engine.Config{
		Alloc: n.alloc, Keys: n.keys, Random: rand.NewPCG(s.r.Uint64(), uint64(n.life)),
		NodeID: n.text, Now: n.clock(), NodeTimeout: 5000, Monotonic: n.steady, Policies: s.policies(),
	})
	n.e.SetRepairAfter(s.RepairAfter)
	n.e.SetEvents(engine.AllEvents, 0)
	if most := s.maxLease(); most > 0 {
		n.e.Locks().SetMaxLease(most)
	}
}

// restart loads what was saved, and decides how far that can be trusted.
func (n *node) restart() {
	if len(n.e.Mesh().All()) > 0 {
		n.e.Locks().MarkIncomplete()
	}
	whole := !n.unsure && (n.s.Fsync == Always || n.disk.clean)
	n.e.BeginLoading()
	n.load()
	clean := n.disk.clean && !n.unsure
	n.disk.clean, n.disk.held = false, nil // it counts for one start
	n.e.EndLoading()
	if n.e.Locks().Abstains() {
		if whole && n.e.Locks().IsComplete() {
			n.e.Locks().TrustLoaded()
		} else {
			n.e.Locks().MarkIncomplete()
		}
	}
	if clean {
		n.e.SetKnown(n.disk.known)
	}
	if n.e.Settle(engine.Trust{Exact: whole, Clean: clean}) > 0 {
		n.log(entry{kind: doubtEntry, now: n.e.Now(), last: n.e.LastCTime()})
	}
	if n.s.uniques != nil {
		n.putOffAgain()
	}
	if whole && !n.e.Locks().Abstains() {
		n.checkVotes()
	}
}

// maxLease is jobmesh.lock-max-lease, 0 for the default.
func (s *Sim) maxLease() int64 {
	switch {
	case s.Locks != nil:
		return s.Locks.MaxLease
	case s.Uniques != nil:
		return s.Uniques.MaxLease
	// After promotions nodes wait for the longest lease that others may have given.
	case s.Rate.Count > 0:
		return 3 * s.Rate.Seconds * 1000
	case s.AtOnce > 0:
		return 3 * retrySecs * 1000
	}
	return 0
}

func (n *node) clock() int64 { return n.s.now + n.skew }

// call runs one event of the engine and carries out its effects.
func (n *node) call(f func()) {
	n.begin()
	f()
	n.carryOut()
	if at := n.e.EarliestArmed(); at != math.MaxInt64 {
		n.tickSoon(at - n.e.Now())
	}
}

func (n *node) begin() {
	n.e.SetNow(n.clock())
	n.s.givenBack(n)
}

func (n *node) tickSoon(delay int64) {
	at := n.s.now + max(delay, 1)
	if at >= n.tickAt {
		return
	}
	n.tickAt = at
	n.s.schedule(at-n.s.now, n)
}

const never = math.MaxInt64

// happen is a tick, if it is still due.
func (n *node) happen() {
	if n.down || n.tickAt != n.s.now {
		return
	}
	n.tickAt = never
	if n.paused {
		n.tickSoon(100)
		return
	}
	n.begin()
	next := n.e.Tick()
	n.carryOut()
	n.tickSoon(next - n.e.Now())
}

func (n *node) carryOut() {
	effects := n.e.Effects()
	late := n.e.Stats.FlushedLate > n.late
	n.s.FlushedLate, n.late = n.s.FlushedLate+int(n.e.Stats.FlushedLate-n.late), n.e.Stats.FlushedLate
	for i := range effects {
		e := &effects[i]
		if late && e.Kind == engine.Happened {
			n.s.flushedLate(n, e.Client.(*engine.Happening))
		}
		switch e.Kind {
		case engine.LogJob, engine.LogState, engine.LogMove, engine.LogDrop, engine.LogDelete, engine.LogQueue, engine.LogLock, engine.LogUnlock, engine.LogEntry:
			n.logEffect(e)
			if e.Kind == engine.LogJob && n.s.crons != nil {
				n.s.slotLogged(n, e.Job)
			}
			n.s.mayDie(e.Job)
			if j := e.Job; j != nil && n.s.uniques != nil && bytes.HasSuffix(j.Queue.NameBytes(), []byte(engine.DeadSuffix)) {
				if k := n.s.jobs[j.ID]; k != nil && k.unique != nil {
					n.s.deadLetter(k)
				}
			}
		case engine.Happened:
			n.s.happened(n, e.Client.(*engine.Happening))
		case engine.Serve:
			n.s.delivered(n, e.Waiter, e.Job)
		case engine.Release:
			if done := e.Waiter.Client.(*bool); !*done {
				*done = true
				if !n.e.Passive() {
					n.s.consume(n)
				}
			}
		case engine.Promise:
			switch c := e.Client.(type) {
			case *job:
				n.s.uniquePromised(n, c, e.ID)
			case *probing:
				c.promised = true
			default:
				n.s.promised(n, e.ID)
			}
		case engine.AnswerMesh:
			switch w := e.Client.(type) {
			case *waiting:
				n.s.haveCopies(n, w, e.Answer.Copies)
			case *flushing:
				n.s.flushed(w, e.Answer)
			case *jobWait:
				n.s.told(n, e.Answer.Ends)
			}
		case engine.AnswerBatch:
			n.s.answered(n, e.Client.(*engine.Batch))
		case engine.Deny:
			if j, yes := e.Client.(*job); yes {
				j.unique.answered, j.unique.over, j.unique.refused = true, true, true
				n.s.uniqueGiven(j) // a client that works on it loses the job and its lock
				n.s.trace("node %d: refuses %s: %v", n.i, e.ID, e.Err)
			}
			n.s.denied(e.ID)
		case engine.Send:
			n.dispatch(e.Peer.ID, n.e.Message(e))
		case engine.Connect:
			n.connect(n.s.byID[e.Peer.ID])
		case engine.Disconnect:
			other := n.s.byID[e.Peer.ID]
			n.s.at(0, func() { n.s.drop(n, other) })
		case engine.NodesChanged:
			n.saveNodes()
		case engine.KeepVotes:
			n.keepVotes()
		default:
			n.lockEffect(e)
		}
	}
	if len(n.disk.log) > longLog {
		n.rewrite()
	}
	n.s.LargestNode = max(n.s.LargestNode, n.alloc.Bytes)
	n.s.bounded(n)
	n.s.counted(n)
}

// saveNodes writes the nodes' file, beside the main thread.
func (n *node) saveNodes() {
	if n.unsaved {
		return
	}
	save := func() {
		n.disk.nodes = n.disk.nodes[:0]
		for _, p := range n.e.Mesh().All() {
			n.disk.nodes = append(n.disk.nodes, p.ID)
		}
		n.disk.gone = n.e.Mesh().Forgotten()
		p := n.e.Past()
		n.disk.past = engine.Past{Line: p.Line, Created: p.Created}
		n.e.PastKept(p)
		if v := n.e.Locks().Votes(); !v.Longest.Known() {
			// A node that is a replica, or was promoted, doesn't know for how long it votes, and the file says so. No text that
			// was made before is written over it.
			n.disk.votes, n.kept = v, n.keeps
		}
	}
	if !n.s.Faults.NodesLate {
		save()
		return
	}
	n.unsaved = true
	life := n.life
	n.s.at(1+n.s.r.Int64N(nodesLateMS), func() {
		if n.life == life && !n.down {
			n.unsaved = false
			save()
		}
	})
}

// keepVotes writes down what is remembered of votes, which takes a while.
func (n *node) keepVotes() {
	n.keeps++
	v, life, at := n.e.Locks().Votes(), n.life, n.keeps
	n.s.at(1+n.s.r.Int64N(50), func() {
		if n.life == life && !n.down && at > n.kept {
			n.kept = at
			n.disk.votes = v
			n.call(func() { n.e.Locks().VotesKept(v) })
		}
	})
}

// --- network -----------------------------------------------------------------

// knows says whether the table of n has another node. n makes no connection to a node that
// was forgotten, or has another ID by now.
func (n *node) knows(to *node) bool {
	return slices.ContainsFunc(n.e.Mesh().All(), func(p *engine.Peer) bool { return p.ID == to.id })
}

// serves says whether clients are served, when they have found the node.
func (n *node) serves() bool { return n.open() && !n.paused }

// open says whether the node's bus is.
func (n *node) open() bool { return !n.down && !n.e.Passive() }

func (n *node) reaches(to *node) bool {
	return n.open() && to.open() && !n.s.cut(n, to) && !n.s.cut(to, n)
}

// connect keeps trying, as the bus does.
func (n *node) connect(to *node) {
	life := n.life
	if l := n.links[to]; l != nil && l.up {
		return
	}
	delay := n.s.delay() * 2
	n.s.at(delay, func() {
		if n.life != life || n.down || n.links[to] != nil && n.links[to].up || !n.knows(to) {
			return
		}
		if !n.reaches(to) || to.paused || n.paused {
			n.s.at(200+n.s.r.Int64N(300), func() {
				if n.life == life {
					n.connect(to)
				}
			})
			return
		}
		n.links[to], to.links[n] = &link{up: true}, &link{up: true}
		met := n.met[to]
		delete(n.met, to)
		n.call(func() { n.hello(to); n.e.Mesh().Up(to.id, addr(to.i), met) })
		to.call(func() { to.hello(n); to.e.Mesh().Up(n.id, addr(n.i), false) })
	})
}

// hello tells n what a connection to another node has shown.
func (n *node) hello(other *node) {
	n.e.SetLife(other.id, uint64(other.life))
	n.e.SetFeatures(other.id, engine.Features{Batches: other.i >= n.s.Former, Counts: true, Entries: true, Copies: true, Flushes: true, Jobs: true, Failures: other.i >= n.s.Former, Rates: true, Slots: true, Limits: true, Crons: true, Names: true, Delays: other.i >= n.s.Former, Results: min(n.i, other.i) >= n.s.Former, Returns: min(n.i, other.i) >= n.s.Former, Replaces: min(n.i, other.i) >= n.s.Former, Bodies: min(n.i, other.i) >= n.s.Former, Bounds: min(n.i, other.i) >= n.s.Former})
}

// drop ends a connection: both sides learn of it, and try again.
func (s *Sim) drop(a, b *node) {
	for _, side := range [...][2]*node{{a, b}, {b, a}} {
		n, other := side[0], side[1]
		l := n.links[other]
		if l == nil || !l.up {
			continue
		}
		delete(n.links, other)
		if n.down {
			continue
		}
		n.call(func() { n.e.Mesh().Down(other.id) })
		life := n.life
		s.at(50+s.r.Int64N(200), func() {
			if n.life == life && !n.down {
				n.connect(other)
			}
		})
	}
}

func (s *Sim) delay() int64 {
	f := &s.Faults
	if f.MaxDelay <= f.MinDelay {
		return max(f.MinDelay, 1)
	}
	return f.MinDelay + s.r.Int64N(f.MaxDelay-f.MinDelay)
}

// dispatch gives a message to the bus, which may refuse one with a job because too much waits.
func (n *node) dispatch(id wire.NodeID, b []byte) {
	s, kind := n.s, wire.Kind(b[0])
	job := kind == wire.Offer || kind == wire.YourJob || kind == wire.ReplJob || kind == wire.ReplJobs || kind == wire.SetEnd
	if !job || s.Faults.Refuse == 0 || s.healed || !s.chance(s.Faults.Refuse) {
		n.transmit(id, b)
		return
	}
	life, about := n.life, wire.JobID(b[2:])
	s.at(0, func() {
		if n.life == life && !n.down {
			n.call(func() { n.e.Unsent(id, kind, &about) })
		}
	})
}

func (n *node) transmit(id wire.NodeID, b []byte) {
	s, to := n.s, n.s.byID[id]
	l := n.links[to]
	s.count(b)
	if s.Trace != nil && b[0] >= byte(wire.Claim) && (!wire.Kind(b[0]).OfJob() || wire.Kind(b[0]) < wire.Whereabouts) {
		var m wire.Message
		if m.Parse(b) == nil {
			s.trace("node %d to %d: message %d flags %d round %d of lock %q, why %d, for %s, token %d lease %d", n.i, to.i, b[0], b[1], m.Round, m.Lock.Name, m.Count, store.ID(m.Lock.Job), m.Lock.Token, m.Lock.Lease)
		}
	} else if s.Trace != nil && wire.Kind(b[0]).OfJob() {
		s.trace("node %d to %d: message %d flags %d of %s", n.i, to.i, b[0], b[1], store.ID(b[2:26]))
	}
	if l == nil || !l.up {
		return
	}
	copies := 1
	if !s.healed && s.chance(s.Faults.Loss) {
		copies = 0
	}
	if !s.healed && s.chance(s.Faults.Duplicate) && !isMove(b) {
		copies++
	}
	for i := range copies {
		at := s.now + s.delay()
		if i > 0 && s.Faults.Late > 0 {
			at += s.r.Int64N(s.Faults.Late)
		}
		if i == 0 && (!s.Faults.Reorder || s.healed || isMove(b)) {
			at = max(at, l.last)
			l.last = at
		}
		s.carry(at, n, to, l, b)
	}
}

// isMove says whether a message moves an at-most-once job. The transport promises that it
// neither doubles such a message nor lets others overtake it.
func isMove(b []byte) bool {
	kind := wire.Kind(b[0])
	if kind == wire.Settled || kind == wire.Declined {
		return true // they end what a repeated Offer could begin anew
	}
	if kind != wire.YourJob && kind != wire.ReplJob && kind != wire.Offer {
		return false
	}
	var m wire.Message
	return m.Parse(b) == nil && m.Job.Retry == 0
}
