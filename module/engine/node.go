package engine

import (
	"encoding/hex"
	"math"

	"jobmesh/module/lock"
	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// Defaults and limits of ADDJOB (as in Disque).
const (
	DefaultTTL   = 86400      // seconds, from when a job is due
	HeldTTL      = 30 * 86400 // seconds, of a deferred job, and of one that waits for others
	MaxRetry     = 300        // seconds; the default is a tenth of TTL, at most this
	MaxSeconds   = math.MaxInt32
	MaxReplicate = 65535
)

// MaxBodyElsewhere is how many bytes a job's body and its queue's name may have
// together to be sent to another node: [wire.MaxMessage], less what else belongs to the
// job. A larger one stays on the node where it was added.
const MaxBodyElsewhere = wire.MaxMessage - 128<<10

// The build fails where the two limits of a job's extras aren't the same.
var _, _ = [wire.MaxExtras - store.MaxExtras]struct{}{}, [store.MaxExtras - wire.MaxExtras]struct{}{}

// Pause bits of a queue (PAUSE).
const (
	PauseIn  uint8 = 1
	PauseOut uint8 = 2
)

// queueVisible marks a queue that has held a waiting job, or was paused, since it was last
// idle: clients see it. Its key may exist earlier, for jobs that still wait for their copies.
// A queue with counted jobs (store.Reason), or jobs in progress, is visible without the mark.
const queueVisible uint8 = 1

// queueUnsettled marks a queue that was loaded or restored, and whose jobs aren't settled yet
// ([Node.Settle]). A queue in another database is settled when it returns.
const queueUnsettled uint8 = 2

// queueUnlogged marks a new queue while logQueues checks whether one of its jobs is logged.
const queueUnlogged uint8 = 4

// queueReturned marks a queue that SWAPDB has brought to database 0, until the clients that
// wait for it are counted and served, see [Node.waitersOf].
const queueReturned uint8 = 8

// queueExpires marks a queue whose key may have a time to live: the key was given one, or the
// queue came with its key (RESTORE, a restart), and the key wasn't looked at since.
const queueExpires uint8 = 16

// Memory levels (as in Disque): shares of maxmemory.
const (
	levelExternal = 0.75 // take no new job
	levelEvict    = 0.95 // evict, refuse whatever needs memory
)

// Idle times after which an empty queue is forgotten, by memory level, in ms.
var idleLimit = [...]int64{300_000, 10_000, 2_000}

// Keyspace has the keys of the queues. Each queue lives in a key of its own.
type Keyspace interface {
	// Free returns nil if a queue of that name could be made, else the
	// refusal (the key holds something else).
	Free(name []byte) error
	// Lives says whether a queue's key is still there for clients, and whether it has a time
	// to live. If that time is over, the call may remove the key, and the queue with it.
	Lives(q *store.Queue) (lives, expires bool)
	// Adopt puts a new queue into its key.
	Adopt(q *store.Queue) error
	// Drop removes the keys of queues that are empty or condemned, and the queues with them.
	// The slice is valid until Drop returns.
	Drop(queues []*store.Queue)
}

// Random is a source of random bits; a seeded one makes a run repeatable.
type Random interface{ Uint64() uint64 }

// Stats count what happened since the start. Over a mesh one node counts each job's end, and its adding: the one that tells the event. On a node that knows no other, Added is the sum of Acked, Cancelled, Flushed, Expired, Dropped, Deleted and
// Evicted, and of the jobs that are still there and haven't ended, but for those that went by FLUSHALL or FLUSHDB.
type Stats struct {
	Added, Delivered, Acked, Deleted, Expired, Requeued, Nacked, Evicted, Refused, Abandoned int64

	// Cancelled counts jobs that a client cancelled, but for those that went by QFLUSH. Dropped counts jobs that were dropped because
	// another job ended undone, because their key was busy, or instead of becoming or staying dead letters. Dead counts jobs put into a dead-letter queue, for whatever reason.
	// SoftCancelled counts jobs whose workers were asked to stop (CANCELJOB … SOFT).
	Cancelled, Dropped, Dead int64
	SoftCancelled            int64
	DeadFor                  [whys]int64 // Dead, by the reason
	// Lapsed counts deliveries whose retry time ended while somebody had the job. FailedPutOff counts jobs that failed and come again later.
	// Flushed counts jobs that went by QFLUSH.
	// FlushedLate counts those of them that went by a flush which was said while this node was away.
	Lapsed, FailedPutOff, Flushed, FlushedLate int64
	// Moved counts jobs that were moved to another queue, and Revived those of them that were dead letters.
	Moved, Revived int64

	// These four count, for recurring jobs: jobs made, slots left out because they were missed, jobs dropped because another
	// one had their key, and slots for which no job could be made.
	CronMade, CronMissed, CronDropped, CronRefused int64

	// NamesKnown counts the ADDJOBs that added nothing, because the job of their name is known.
	NamesKnown int64

	// RateWaited counts how often a queue's jobs had to wait for its rate.
	RateWaited int64
	// SlotsWaited counts how often a queue's jobs had to wait until fewer were in progress.
	SlotsWaited int64

	// Sent and Received count messages of the mesh. Exported and Imported count jobs that were
	// handed over to other nodes, and by other nodes.
	Sent, Received, Exported, Imported int64
	// UncertainHandingOver counts at-most-once jobs that became uncertain because the node that
	// they were being handed over to was restarted, or forgotten, before it answered.
	UncertainHandingOver int64
	// Repaired counts copies that this node made in the place of lost ones, see repair.go.
	Repaired int64
	// Idle counts jobs that all nodes left to each other, and that this one queued again, see idle.go.
	Idle int64

	// These five count, for unique jobs: conflicts at adding, bodies replaced, delays that began anew (debounce), tries that put
	// a job off, and jobs dropped because their key was busy.
	Duplicates, Replaced, Debounced, PutOff, BusyDropped int64
}

// Config is what a node is made of.
type Config struct {
	Alloc  store.Allocator
	Keys   Keyspace
	Random Random
	NodeID string // 40 lower-case hex digits
	Now    int64  // unix ms

	// Monotonic is a clock, ms, that never jumps and goes on while the process is
	// stopped: durations are measured by it (clock.go). Nil: the time that SetNow tells.
	Monotonic func() int64

	// Policies are what settings say of failing jobs. Nil: nothing.
	Policies *Policies

	// NodeTimeout is the silence after which a node is suspected, ms; 0 is
	// membership.DefaultTimeout.
	NodeTimeout int64
}

// Node is the state of one node. Only one thread may call its methods.
type Node struct {
	Stats      Stats
	store      *store.Store
	memory     *reclaimer // the store's allocator
	keys       Keyspace
	policies   *Policies
	random     Random
	nodeID     string
	ids        *store.IDMaker
	now        int64
	clock      clock
	ctime      uint64
	doubted    uint64 // the greatest creation time of the jobs that Settle has made uncertain
	effects    []Effect
	events     wanted
	self       wire.NodeID
	port       int
	mesh       members
	tombstones tombstones
	deleted    deletions
	offers     table.Roster[store.ID, offered]
	taken      table.Roster[handoverRound, taken]

	hasViews    bool // whether a job's outcome may be kept as this node alone has found it
	jobWaits    jobWaits
	stopped     stopped
	wished      wished
	mostBody    int // bytes of a body and its queue's name that can be sent to another node
	pendingAdds map[store.ID]*pendingAdd
	waiting     []*pendingAdd                // the values of pendingAdds
	bundles     []*bundle                    // jobs of ADDJOBS that aren't all decided, in the order in which they were added
	abandoned   []*Batch                     // those whose client has gone, and whose jobs aren't all taken back
	batch       *Batch                       // scratch memory for the next one
	touched     *store.Queue                 // the queue that the last Touched effect of this call names
	outlasting  table.Roster[store.ID, life] // jobs that were delivered shortly before their end, see outlast
	turn        int                          // the index in waiting that vanished has looked at last
	vanishedAt  int64                        // monotonic: when vanished looks next
	added       uint64                       // the number of the newest pendingAdd
	imports     table.Roster[string, imports]
	demands     table.Roster[string, demand]
	barred      map[string][]store.ID // keyed by the name of a lock, see bar
	toServe     agenda                // queues with jobs that weren't given to nodes that want some
	toTell      agenda                // queues with jobs that the other nodes are to be told of, see spare
	skipped     int64                 // the sum of the jumps of the node's time, ms
	msg         wire.Message          // being received
	out         wire.Message          // being sent
	outbox      []byte                // the messages of the effects
	outboxIdle  int                   // calls since it was as large as it is for the last time
	sent        bool                  // the effects were taken, so the outbox may be reused
	waits       map[string]*waitList
	lines       []*waitList               // the values of waits
	asking      table.Schedule[*waitList] // the same lines, ordered by when they next ask other nodes
	resumed     int                       // lines[:resumed] are to ask soon, see askAnew and askMet
	lineSeen    uint64                    // the number of the newest line
	anew        uint32                    // how often askAnew was called
	renews      bool                      // they are to ask all nodes, whenever they did so last
	met         uint64                    // how many connections were made
	waiters     waiters
	blocked     int
	unpaused    table.Roster[string, struct{}]   // queues that are no longer paused, and still have overdue jobs
	shut        table.Roster[store.ID, struct{}] // jobs that were to be queued while their queue was paused
	shutSweep   int64                            // when all of shut is looked at next, unix ms
	visible     int64
	unlinked    []unlinked
	made        []*store.Queue      // queues that n.queue made since the effects were last taken
	farewells   []farewell          // locks of jobs that were forgotten, still to be freed
	unloaded    uint64              // the number of jobs when loading began; 0: they have been flushed since
	dormant     []*store.Queue      // queues in other databases than 0
	pausesEnded map[string]struct{} // the names of queues that all nodes had paused, see pauseEndsAway
	timed       timedPauses
	overfull    map[string]int64 // queues with more dead letters than they keep, and how many they keep
	crons       crons
	nameAsks    nameAsks
	imported    importedIDs
	rates       rates
	promotion   *settling // the promotion under way, see Promote
	untold      int       // jobs that the promotion has made uncertain so far
	followed    bool      // see Follow
	past        Past
	holding     int   // the jobs of queues in rows below this one are still to be held, see tickFollowing
	recount     bool  // lacking isn't known
	lacking     bool  // see unlisted
	wake        int64 // the earliest deadline armed since the caller last asked
	passes      int   // how many more jobs [Node.beyond] passes over before the next tick
	wakes       int   // how many more per-key queues of keys of the mesh are woken before the next tick
	ratio       float64
	leaving     bool
	minority    bool // see tickMinority
	departure   departure
	idling      idleness
	lazy        bool // set by scripts alone (export_test.go): no question finds what the rules have missed, so a script shows a rule by itself
	unsafe      bool
	verbose     bool  // see SetVerbose
	warned      int64 // monotonic: when warn last did
	passive     bool
	ending      bool // see endAdds
	resetting   bool // this node forgets the others; they go on
	loading     bool
	cursor      uint64 // of the pass over idle queues
	returns     bool   // there may be queues marked queueReturned
	returnAt    uint64 // the cursor of the pass over those

	asksUntil  int64 // unix ms; see connecting
	askedUntil int64 // until then this node may still ask about jobs that were loaded, unix ms
	questions  questions
	replaced   bool // whether this process has had a job whose body replaces another
	copyWaits  copyWaits
	repairing  repairing
	alike      alike
	flushes    flushes
	lateOnes   lateFlushes
	knows      knows
	told       promised
	movings    []*moving
	countWalk  countWalk
	deps       dependencies
	locks      *lock.Node
	jobLocks
	uniqueMesh     uniqueMesh
	unserved       []string // queues whose jobs are still to be offered to waiting clients
	unservedDemand []string // queues whose jobs other nodes may wait for, until the event is done
	choosing       bool     // a job for a client is being chosen
	hearing        bool     // see Hear
	asks           bool     // the client being served can wait for other nodes
	term           int64    // how long the client being served wants to have its job, seconds; 0: for the job's retry time
	expiresInHands bool     // SetExpiresInHands
	notUnique      bool     // jobmesh.unique is off
	evict          uint64   // cursor of the pass over evictable jobs
	endSteps       int      // what evictForEnd may still do,
	endStepsAt     int64    // at this time
	scratch        struct {
		jobs    []*store.Job
		ids     []store.ID
		queues  []*store.Queue
		nodes   []wire.Node
		locks   []*store.Lock
		name    []byte
		lock    []byte
		other   []byte
		value   []byte
		extras  []byte
		failure []byte
		death   []byte
		dead    []byte
		home    []byte
		peers   []*Peer
		gossip  []wire.Peer
		run     []*store.Job
		more    []wire.Sibling
	}
}

// New makes an empty node.
func New(c Config) *Node {
	memory, seed := newReclaimer(c.Alloc), c.Random.Uint64()
	n := &Node{
		store:  store.New(memory, seed, c.Now),
		memory: memory,
		keys:   c.Keys,
		random: c.Random,
		now:    c.Now,
		clock:  clock{monotonic: c.Monotonic, wall: c.Now},
		waits:  map[string]*waitList{},
		wake:   math.MaxInt64,
		wakes:  wakeMost,
		passes: passMost,

		pendingAdds: map[store.ID]*pendingAdd{},
		barred:      map[string][]store.ID{},
		overfull:    map[string]int64{},
		deps:        dependencies{ending: map[store.ID]bool{}, passed: map[store.ID]store.ID{}, budget: followMost},
	}
	if n.policies = c.Policies; n.policies == nil {
		n.policies = &Policies{Generation: 1}
	}
	n.questions.last, n.told.seed = firstQuestion(seed), seed
	n.jobWaits.round, n.deps.rounds = n.questions.last, uint64(n.questions.last)
	n.mostBody = MaxBodyElsewhere
	n.mesh = members{Table: membership.New((*host)(n), c.NodeTimeout), lives: map[wire.NodeID]uint64{}, features: map[wire.NodeID]Features{}}
	if c.Monotonic != nil {
		n.clock.even = c.Monotonic()
	}
	n.locks = lock.New((*lockHost)(n), (*owners)(n), n.mesh.Mesh(), n.store, uint64(n.questions.last))
	n.uniqueMesh, n.asks = newUniqueMesh(), true
	n.lossAt = math.MaxInt64 // the first tick sets it to its own time
	n.locks.SetVotes(lock.Votes{Longest: lock.LeasesUpTo(-1), Unleased: true})
	n.ids = n.store.IDMaker([4]byte{})
	n.SetNodeID(c.NodeID)
	return n
}

// StartsNew tells the node that it has its first ID, and that no data are loaded: there was nothing yet that it can have
// lost. So it can be sure of all that it doesn't know. It may be loaded data afterwards.
func (n *Node) StartsNew() {
	n.lossAt = 0
	n.knows = knows{all: true}
}

// SetNodeID renames the node (CLUSTER RESET HARD); id is 40 lower-case hex digits.
func (n *Node) SetNodeID(id string) {
	n.nodeID = id
	n.self = wire.NodeID{}
	_, _ = hex.Decode(n.self[:], []byte(id)) // a malformed name is the caller's bug; it only weakens the ID
	n.locks.SetSelf(n.self)
	n.mesh.SetSelf(n.self) // the bus begins anew
	for i := range n.ids.Node {
		n.ids.Node[i] = hexDigit(id[2*i])<<4 | hexDigit(id[2*i+1])
	}
	n.losesSight() // of the jobs that were added under the former name
}

func hexDigit(c byte) byte {
	if c >= 'a' {
		return c - 'a' + 10
	}
	return c - '0'
}

// SetPort sets this node's port for clients. Other nodes are told it.
func (n *Node) SetPort(port int) { n.port = port }

// NodeID returns the node's name.
func (n *Node) NodeID() string { return n.nodeID }

// monotonic returns the time by which leases are measured, ms.
func (n *Node) monotonic() int64 {
	if n.clock.monotonic == nil {
		return n.now
	}
	return n.clock.monotonic()
}

// Now returns the node's time as of the last [Node.SetNow], unix ms.
func (n *Node) Now() int64 { return n.now }

// SetMemory sets used memory as a share of maxmemory; 0: there is no limit.
func (n *Node) SetMemory(ratio float64) { n.ratio = ratio }

// MemoryLevel returns 2 above 95 % of maxmemory, 1 above 75 %, else 0.
func (n *Node) MemoryLevel() int {
	switch {
	case n.ratio > levelEvict:
		return 2
	case n.ratio > levelExternal:
		return 1
	}
	return 0
}

// SetUnsafe tells whether the server may lose what it takes: it may evict queues, or can't write its files. If so, this node takes no copies,
// and at-most-once jobs aren't handed over to it.
func (n *Node) SetUnsafe(yes bool) { n.unsafe = yes }

// Passive says whether the node only follows another one, as a Redis replica.
func (n *Node) Passive() bool { return n.passive }

// SetPassive(true) makes the node a follower, which does nothing by itself. SetPassive(false)
// ends that: the node's jobs are settled as after a crash, and uncertain is what
// [Node.Settle] returns.
func (n *Node) SetPassive(yes bool) (uncertain int) {
	if !yes {
		_, uncertain = n.Promote(nil)
		return uncertain
	}
	n.endFlushes()
	n.lateOnes = lateFlushes{}
	n.endMoves()
	n.dropBodies()
	n.passive, n.followed, n.promotion = true, n.passive && n.followed, nil
	n.holding = 0
	n.store.DropEdges()
	n.deps.dropped = true
	n.deps.asked = table.Roster[store.ID, asked]{}
	clear(n.deps.ending)
	clear(n.deps.passed)
	n.deps.ends, n.deps.evictions, n.deps.unblocking = nil, nil, nil
	for i := range n.deps.releases.Len() {
		_, r := n.deps.releases.At(i)
		n.answerRelease(r)
	}
	n.deps.releases = table.Roster[store.ID, releasing]{}
	n.mesh.Leave() // the bus is closed
	n.farewells = nil
	n.endWaits(nil)
	n.endAdds()
	n.locks.EndClears()
	n.locks.Follow()
	n.nodesChanged() // the file must not say any more for how long the node votes
	return 0
}

// Promote ends the role of a follower bit by bit. It calls enough now and then, and returns when
// that is true; with nil it returns when all is done. The caller calls Promote again until it is
// done. Between the calls the node is passive, and whatever may be done to a passive node may be
// done to it. When all is done, uncertain is what [Node.Settle] returns.
func (n *Node) Promote(enough func() bool) (done bool, uncertain int) {
	if !n.passive {
		return true, 0
	}
	if n.promotion == nil {
		budget := waitSlice
		if enough == nil {
			budget = math.MaxInt
		}
		if n.tickEnding(budget); n.ending {
			return false, 0
		}
		n.holding = 0
		n.ownBefore, n.lossAt = 0, n.now
		n.lostEnd()
		// A node that followed no master has jobs in all lists, not only held ones.
		n.promotion = &settling{promoted: n.store.AnyParts(), holds: n.followed}
	}
	s := n.promotion
	s.enough = enough
	n.passive = false
	defer func() { n.passive = !done }() // also if it panics: a node that isn't through must not vote
	done = n.settleSome(s)
	n.untold += s.uncertain
	s.uncertain = 0
	if !done {
		return false, 0
	}
	uncertain, n.untold, n.promotion = n.untold, 0, nil
	// The table of locks is the master's, and its latest changes may be missing. The votes
	// that this node gave before it followed aren't in it.
	n.locks.Follow()
	n.locks.RenewLeases()
	n.locks.LacksVotes()
	if n.followed {
		n.past.Promoted = n.now
		n.nodesChanged()
		for _, p := range n.mesh.All() {
			p.copies = telling{}
		}
	}
	n.pauseAgain()
	n.restartCrons()
	n.losesSight()
	n.lookAtFlushes()
	return true, uncertain
}

// Past is what a node remembers of its own past beside its data. The nodes' file keeps it, because the node may be
// started again before the others have heard all that follows from it. Times are unix ms; 0: never.
type Past struct {
	Promoted int64 // when the node was promoted last in the place of its master
	Inexact  int64 // when it was started, or promoted, last with data whose end may be missing
	Line     int64 // which line of creation times its jobs have, see [wire.Bounds],
	Created  int64 // and the last of these times
}

// Past returns what this node remembers of its past.
func (n *Node) Past() Past {
	n.past.Created = int64(n.ctime)
	return n.past
}

// SetPast sets what the nodes' file has kept.
func (n *Node) SetPast(p Past) {
	n.past = p
	n.goOnWithLine()
}

// PastKept tells the node that the nodes' file has what [Node.Past] returned.
func (n *Node) PastKept(p Past) {
	if p.Line == n.past.Line {
		n.told.kept = max(n.told.kept, uint64(p.Created))
	}
}

// lostEnd notes that the end of the data may be missing. It can have told of nodes that got a job, or of slots that were served.
func (n *Node) lostEnd() {
	n.past.Inexact = n.now
	if n.store.Jobs() > 0 || n.Crons() > 0 {
		n.nodesChanged()
	}
}

// Follow tells a passive node that it has its master's data now. From here on, like any
// replica, it can't know which jobs are still queued: the master gives jobs to clients, and
// this node may not hear of that before it is promoted. So all jobs are held, bit by bit, as if
// they had been loaded, and the promotion settles them anew. A node that was passive for a
// moment, and reached no master, goes on where it was.
func (n *Node) Follow() {
	if n.passive {
		// Nor does it know what became of an offer.
		n.offers = table.Roster[store.ID, offered]{}
		n.followed, n.holding = true, math.MaxInt
	}
}

// tickFollowing holds some more jobs of a node that follows a master, so that it shows none that
// could be fetched. It says whether more are left. A promotion doesn't rely on it.
func (n *Node) tickFollowing() (more bool) {
	budget := followSlice
	for row, q := range n.store.QueuesBelow(n.holding) {
		n.holding = row
		if !n.store.HoldAll(q, func() bool { budget--; return budget <= 0 }) {
			n.holding++
		}
		if budget--; budget <= 0 {
			return n.holding > 0
		}
	}
	n.holding = 0
	return false
}

const followSlice = 4000 // jobs and queues that one tick holds

// Jobs counts the registered jobs, in any state.
func (n *Node) Jobs() uint64 { return n.store.Jobs() }

// Queues counts the queues that clients can see.
func (n *Node) Queues() int64 { return n.visible }

// Blocked counts the waiting clients.
func (n *Node) Blocked() int { return n.blocked }

// Job finds a job; nil if it isn't known, or its queue's key is gone for clients, see [Node.Queue].
func (n *Node) Job(id *store.ID) *store.Job {
	j := n.store.Lookup(id)
	if j != nil && !n.Lives(j.Queue) {
		return nil
	}
	return j
}

// Queue finds a queue; nil if there is none of that name, or its key's time to live is over: for
// clients that key is gone, though the server may remove it only later.
//
// Whatever puts a new job into a queue finds the queue by this function. A job that is in the queue
// already goes with it.
func (n *Node) Queue(name []byte) *store.Queue {
	q := n.store.Queue(name)
	if q != nil && q.Flags&queueExpires != 0 && !n.Lives(q) {
		return nil
	}
	return q
}

// Lives says whether a queue's key is there for clients. If its time to live is over, the call
// may remove the queue.
func (n *Node) Lives(q *store.Queue) bool {
	if q.Flags&queueExpires == 0 {
		return true
	}
	lives, expires := n.keys.Lives(q)
	if lives && !expires {
		q.Flags &^= queueExpires
	}
	return lives
}

// MayExpire notes that a queue's key may have a time to live. From now on, finding the queue
// looks its key up, too.
func (n *Node) MayExpire(q *store.Queue) { q.Flags |= queueExpires }

// Visible says whether clients see the queue (QSTAT, QSCAN).
func (n *Node) Visible(q *store.Queue) bool {
	return q.Flags&queueVisible != 0 || q.AnyCounted() || q.Working.Head != nil
}

func (n *Node) show(q *store.Queue) {
	if q.Flags&queueVisible == 0 {
		q.Flags |= queueVisible
		q.Created, q.JobsIn, q.JobsOut = n.now, 0, 0
		n.visible++
	}
}

func (n *Node) hide(q *store.Queue) {
	if q.Flags&queueVisible != 0 {
		q.Flags &^= queueVisible
		n.visible--
	}
}

// queue finds or makes a queue.
func (n *Node) queue(name []byte) (*store.Queue, error) {
	if n.loading || n.passive {
		// The log, or the master, removes queues whose time is over.
		if q := n.store.Queue(name); q != nil {
			return q, nil
		}
	} else if q := n.Queue(name); q != nil {
		return q, nil
	} else if n.store.Queue(name) != nil {
		return nil, ErrQueueOver
	}
	if err := n.keys.Free(name); err != nil {
		return nil, err
	}
	q := n.store.NewQueue(name, n.now)
	if err := n.keys.Adopt(q); err != nil {
		n.store.RemoveQueue(q)
		return nil, err
	}
	n.unsettle(q)
	n.pauseAnew(q)
	n.welcome(q)
	if !n.loading && !n.passive {
		n.made = append(n.made, q)
	}
	return q, nil
}

// unsettle marks a queue that comes from a log or a master.
func (n *Node) unsettle(q *store.Queue) {
	if n.loading || n.passive {
		q.Flags |= queueUnsettled
	}
}

// welcome counts the clients that wait for a queue that just got its name.
func (n *Node) welcome(q *store.Queue) {
	if len(n.waits) > 0 {
		if w := n.waits[string(q.NameBytes())]; w != nil {
			q.Waiters = uint32(w.Len)
		}
	}
}

func (n *Node) arm(j *store.Job) {
	n.store.Arm(j)
	if at := j.Awake(); at < n.wake {
		n.wake = at
	}
}

// EarliestArmed returns the earliest deadline set since the last call, unix ms;
// a caller whose timer is later must set it anew.
func (n *Node) EarliestArmed() int64 {
	at := n.wake
	n.wake = math.MaxInt64
	return at
}

func retryTime(n *Node, j *store.Job) int64 {
	if j.Retry == 0 {
		return 0
	}
	term := int64(j.Retry)
	if j.Extra(store.TagLease) != nil && leaseElsewhere(j) == 0 {
		term = TermOf(j)
	}
	return n.now + term*1000
}

// hurryTick makes the next tick come at once.
func (n *Node) hurryTick() { n.wake = min(n.wake, n.now+1) }

// NextRequeue returns when a job will be queued again, unix ms; 0: never. The time of a
// queued job, and of one that a paused queue doesn't take back, moves on by itself,
// one retry time after the other.
func (n *Node) NextRequeue(j *store.Job) int64 {
	at := max(j.QTime, leaseElsewhere(j))
	if j.State == store.StateActive && j.Retry == 0 && j.Flags&store.FlagDelivered != 0 {
		return 0 // QTime is when the job was delivered
	}
	if (j.State == store.StateQueued || j.Overdue()) && j.Retry > 0 && at <= n.now {
		step := TermOf(j) * 1000
		at += (n.now - at + step) / step * step
	}
	return at
}

// ScanJobs is [store.Store.ScanJobs].
func (n *Node) ScanJobs(cursor uint64, emit *[]*store.Job) uint64 {
	return n.store.ScanJobs(cursor, emit)
}

// ScanQueues is [store.Store.ScanQueues].
func (n *Node) ScanQueues(cursor uint64, emit *[]*store.Queue) uint64 {
	return n.store.ScanQueues(cursor, emit)
}

// Load counts what a node holds beside its jobs. At a node at rest all counts are 0.
type Load struct{ Adding, Imports, Hungry, Claims int }

// Load counts what the node holds beside its jobs.
func (n *Node) Load() Load {
	return Load{Adding: n.adding(), Imports: n.imports.Len(), Hungry: n.demands.Len(), Claims: n.locks.Acquisitions() + n.uniqueMesh.count()}
}
