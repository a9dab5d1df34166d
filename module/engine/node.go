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

// queueVisible marks a queue that clients may see: one that has held a waiting
// job, or is paused, since it was last idle. A key may exist before, for jobs that still wait
// for their copies; for those that are counted (store.Reason) the queue is seen all the same.
const queueVisible uint8 = 1

// queueUnsettled marks a queue that was loaded or restored, and whose jobs nobody has
// looked at since (Settle): one that lies in another database waits for its return.
const queueUnsettled uint8 = 2

// queueUnlogged marks a queue that was made by this call, while it is looked whether one
// of its jobs is logged.
const queueUnlogged uint8 = 4

// queueReturned marks a queue that SWAPDB has brought, while those who wait for it haven't
// been counted nor served, see [Node.waitersOf].
const queueReturned uint8 = 8

// queueExpires marks a queue whose key may have a time to live: it was given one, or came
// with its key (RESTORE, a restart) and wasn't looked at since.
const queueExpires uint8 = 16

// Memory levels (as in Disque): shares of maxmemory.
const (
	levelExternal = 0.75 // take no new job
	levelEvict    = 0.95 // evict, refuse whatever needs memory
)

// Idle times after which an empty queue is forgotten, by memory level, in ms.
var idleLimit = [...]int64{300_000, 10_000, 2_000}

// Keyspace is where queues live: a key each.
type Keyspace interface {
	// Free says whether a queue of that name could be made: nil, or the
	// refusal (the key holds something else).
	Free(name []byte) error
	// Lives says whether a queue's key is still there for clients, and whether it has a time
	// to live. Where that is over, the call may remove the key, and by that the queue.
	Lives(q *store.Queue) (lives, expires bool)
	// Adopt puts a new queue into its key.
	Adopt(q *store.Queue) error
	// Drop removes the keys of queues that are empty or condemned, and by that the queues.
	// The slice is valid until it returns.
	Drop(queues []*store.Queue)
}

// Random is a source of random bits; a seeded one makes a run repeatable.
type Random interface{ Uint64() uint64 }

// Stats count what happened since the start.
type Stats struct {
	Added, Delivered, Acked, Deleted, Expired, Requeued, Nacked, Evicted, Refused, Abandoned int64

	// Cancelled counts jobs that a client cancelled, Dropped those that went with others which
	// ended undone, Dead those put into a dead-letter queue, for whatever reason.
	Cancelled, Dropped, Dead int64

	// Sent and Received count messages of the mesh, Exported and Imported jobs that were handed over.
	Sent, Received, Exported, Imported int64
	// At-most-once jobs that became uncertain because the node that they were being handed
	// over to was restarted, or forgotten, before it answered.
	UncertainHandingOver int64
	// Idle counts jobs that no node had, and that this one queued again, see idle.go.
	Idle int64

	// These four count, for unique jobs: conflicts at adding, bodies replaced, tries that put
	// a job off, and jobs dropped because their key was busy.
	Duplicates, Replaced, PutOff, BusyDropped int64
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

	// NodeTimeout is the silence after which a node is suspected, ms; 0 is
	// membership.DefaultTimeout.
	NodeTimeout int64
}

// Node is one node.
type Node struct {
	Stats      Stats
	store      *store.Store
	memory     *reclaimer // of the store
	keys       Keyspace
	random     Random
	nodeID     string
	ids        *store.IDMaker
	now        int64
	clock      clock
	ctime      uint64
	doubted    uint64 // the greatest creation time of those that Settle has made uncertain
	effects    []Effect
	self       wire.NodeID
	port       int
	mesh       members
	tombstones tombstones
	deleted    deletions
	offers     table.Roster[store.ID, offered]
	taken      table.Roster[handoverRound, taken]

	mostBody    int // bytes of a body that can be sent to another node
	pendingAdds map[store.ID]*pendingAdd
	waiting     []*pendingAdd // the same, in an order
	turn        int           // in waiting
	added       uint64        // the number of the last that came to waiting
	imports     table.Roster[string, imports]
	demands     table.Roster[string, demand]
	barred      map[string][]store.ID // by the names of locks, see bar
	toServe     agenda                // queues with jobs that weren't given to nodes that wait for some
	toTell      agenda                // those of which the others are to be told that they do
	skipped     int64                 // ms that time has jumped, in all
	msg         wire.Message          // being received
	out         wire.Message          // being sent
	outbox      []byte                // the messages of the effects
	sent        bool                  // the effects were taken: the outbox may be reused
	waits       map[string]*waitList
	lines       []*waitList               // the same, in an order
	asking      table.Schedule[*waitList] // the same, in the order of when they ask other nodes
	resumed     int                       // lines from 0 on that are to ask soon, for a node is back
	lineSeen    uint64                    // lines since the start
	anew        uint32                    // how often they were all to ask anew
	waiters     waiters
	blocked     int
	unpaused    table.Roster[string, struct{}]   // queues that aren't paused any more, and have overdue jobs still
	shut        table.Roster[store.ID, struct{}] // jobs that were to be queued while their queue was paused
	shutSweep   int64                            // unix ms: they are looked at next
	visible     int64
	unlinked    []unlinked
	made        []*store.Queue          // by n.queue, since the effects were last taken
	farewells   []farewell              // locks of jobs that were forgotten, still to be freed
	unloaded    uint64                  // jobs when loading began; 0: they have been flushed since
	dormant     []*store.Queue          // that lie in another database than 0
	promotion   *settling               // under way, see Promote
	untold      int                     // jobs that it made uncertain
	followed    bool                    // see Follow
	promoted    int64                   // unix ms; 0: it wasn't, since it was started
	holding     int                     // it has yet to hold the jobs of queues in rows below, see tickFollowing
	recount     bool                    // lacking isn't known
	lacking     bool                    // see unlisted
	loaded      map[store.ID]*store.Job // in dormant queues; until Settle, see LoadState
	wake        int64                   // the earliest deadline armed since the caller last asked
	passes      int                     // how many more jobs [Node.beyond] passes over before the next tick
	wakes       int                     // how many more per-key queues of keys of the mesh are woken before the next tick
	ratio       float64
	leaving     bool
	departure   departure
	idling      idleness
	lazy        bool // for tests: nodes ask each other nothing to find what the rules have missed
	unsafe      bool
	verbose     bool // see SetVerbose
	passive     bool
	ending      bool // see endAdds
	loading     bool
	cursor      uint64 // of the pass over idle queues
	returns     bool   // there may be queues that have returned
	returnAt    uint64 // the cursor of the pass over those

	asksUntil  int64 // unix ms; see connecting
	askedUntil int64 // unix ms: until then jobs that were loaded may still be asked about
	questions  questions
	deps       dependencies
	locks      *lock.Node
	jobLocks
	uniqueMesh     uniqueMesh
	unserved       []string // queues with jobs that nobody has looked at for those who wait
	unservedDemand []string // queues with jobs that other nodes may wait for, until the event is done
	choosing       bool     // a job is being looked for that a client can have
	hearing        bool     // see Hear
	asks           bool     // the client being served can wait for other nodes
	expiresInHands bool     // SetExpiresInHands
	notUnique      bool     // jobmesh.unique is off
	flushEpoch     uint32   // of windows; a flush ends it
	evict          uint64   // of the pass over evictable jobs
	scratch        struct {
		jobs   []*store.Job
		ids    []store.ID
		queues []*store.Queue
		nodes  []wire.Node
		locks  []*store.Lock
		name   []byte
		lock   []byte
		other  []byte
		value  []byte
		extras []byte
		peers  []*Peer
		gossip []wire.Peer
	}
}

// New makes an empty node.
func New(c Config) *Node {
	memory := newReclaimer(c.Alloc)
	n := &Node{
		store:  store.New(memory, c.Random.Uint64(), c.Now),
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
		deps:        dependencies{ending: map[store.ID]bool{}, passed: map[store.ID]store.ID{}, budget: followMost},
	}
	n.mostBody = MaxBodyElsewhere
	n.mesh = members{Table: membership.New((*host)(n), c.NodeTimeout), lives: map[wire.NodeID]uint64{}}
	if c.Monotonic != nil {
		n.clock.even = c.Monotonic()
	}
	n.locks = lock.New((*lockHost)(n), (*owners)(n), n.mesh.Mesh(), n.store)
	n.uniqueMesh, n.asks = newUniqueMesh(), true
	n.lossAt = math.MaxInt64 // it is now, at the first tick
	n.locks.SetVotes(lock.Votes{Longest: lock.LeasesUpTo(-1), Unleased: true})
	n.ids = n.store.IDMaker([4]byte{})
	n.SetNodeID(c.NodeID)
	return n
}

// SetNodeID renames the node (CLUSTER RESET HARD); id is 40 lower-case hex digits.
func (n *Node) SetNodeID(id string) {
	n.nodeID = id
	n.self = wire.NodeID{}
	_, _ = hex.Decode(n.self[:], []byte(id)) // a name of another form is a bug of the caller's; it only weakens the ID
	n.locks.SetSelf(n.self)
	n.mesh.SetSelf(n.self) // the bus begins anew
	for i := range n.ids.Node {
		n.ids.Node[i] = hexDigit(id[2*i])<<4 | hexDigit(id[2*i+1])
	}
}

func hexDigit(c byte) byte {
	if c >= 'a' {
		return c - 'a' + 10
	}
	return c - '0'
}

// SetPort tells the node's own port for clients, which others are told.
func (n *Node) SetPort(port int) { n.port = port }

// NodeID returns the node's name.
func (n *Node) NodeID() string { return n.nodeID }

// monotonic is the time that leases are measured by, ms.
func (n *Node) monotonic() int64 {
	if n.clock.monotonic == nil {
		return n.now
	}
	return n.clock.monotonic()
}

// Now is the node's time when it was last told the wall clock's, unix ms.
func (n *Node) Now() int64 { return n.now }

// SetMemory tells used memory over maxmemory, 0 where there is no limit.
func (n *Node) SetMemory(ratio float64) { n.ratio = ratio }

// MemoryLevel is 0, 1 above 75 % of maxmemory, 2 above 95 %.
func (n *Node) MemoryLevel() int {
	switch {
	case n.ratio > levelEvict:
		return 2
	case n.ratio > levelExternal:
		return 1
	}
	return 0
}

// SetUnsafe says that the server may evict queues: no copies are taken then.
func (n *Node) SetUnsafe(yes bool) { n.unsafe = yes }

// Passive says whether the node only follows another one, as a Redis replica.
func (n *Node) Passive() bool { return n.passive }

// SetPassive makes the node a follower, which does nothing by itself, or ends
// that: then what it holds is settled as after a crash. It returns what Settle does.
func (n *Node) SetPassive(yes bool) (uncertain int) {
	if !yes {
		_, uncertain = n.Promote(nil)
		return uncertain
	}
	n.passive, n.followed, n.promotion = true, n.passive && n.followed, nil
	n.holding = 0
	n.store.DropEdges()
	n.deps.untied = true
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
	return 0
}

// Promote ends the role of a follower bit by bit. It returns when enough, which it asks now and
// then, says so (nil: when all is done), and is to be called again until it is done. In between
// the node is passive, and whatever may be done to a passive node may be done to it. uncertain
// is what Settle returns, when all is done.
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
		n.loaded, n.holding = nil, 0
		n.ownBefore, n.lossAt, n.inexactAt = 0, n.now, n.now
		// Where there was no master, jobs are in all lists.
		n.promotion = &settling{promoted: n.store.AnyParts(), holds: n.followed}
	}
	s := n.promotion
	s.enough = enough
	n.passive = false
	done = n.settleSome(s)
	n.untold += s.uncertain
	s.uncertain = 0
	if n.passive = !done; !done {
		return false, 0
	}
	uncertain, n.untold, n.promotion = n.untold, 0, nil
	// The table is its master's, of which the last may be missing; what this node had
	// voted for before isn't in it.
	n.locks.RenewLeases()
	n.locks.LacksVotes()
	if n.followed {
		n.promoted = n.now
	}
	return true, uncertain
}

// Follow tells a passive node that it has what its master has. From here on it knows of
// no queue position more than any replica does: the master gives jobs to clients, and
// this node may not hear of it before it is promoted. So all jobs are held, bit by bit, as if
// they had been loaded, and [Node.Settle] decides anew. A node that was passive for a moment,
// and reached no master, goes on where it was.
func (n *Node) Follow() {
	if n.passive {
		// Nor of what became of an offer.
		n.offers = table.Roster[store.ID, offered]{}
		n.followed, n.holding = true, math.MaxInt
	}
}

// tickFollowing goes on with holding the jobs of a node that follows a master, so that it shows
// none that could be fetched; true where there are more. A promotion doesn't rely on it.
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

// Job finds a job; nil where it isn't known, or its queue is none to clients, see [Node.Queue].
func (n *Node) Job(id *store.ID) *store.Job {
	j := n.store.Lookup(id)
	if j != nil && !n.Lives(j.Queue) {
		return nil
	}
	return j
}

// Queue finds a queue; nil where there is none of that name, or its key's time is over: for
// clients that key is gone, though the server may remove it only later.
//
// All that comes into a queue is looked up by this. A job that is in a queue already goes with it.
func (n *Node) Queue(name []byte) *store.Queue {
	q := n.store.Queue(name)
	if q != nil && q.Flags&queueExpires != 0 && !n.Lives(q) {
		return nil
	}
	return q
}

// Lives says whether a queue's key is there for clients. Where its time is over, the call may
// remove the queue.
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

// MayExpire notes that a queue's key may have a time to live. From now on a caller that looks
// the queue up looks its key up, too.
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
		// The log, or the master, removes what is over.
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

// welcome ties a queue that just got its name to the clients waiting for it.
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
	return n.now + int64(j.Retry)*1000
}

// hurryTick has the next tick come at once.
func (n *Node) hurryTick() { n.wake = min(n.wake, n.now+1) }

// NextRequeue is when a job will be queued again, unix ms; 0 never. The time of a
// queued job, and of one that a paused queue doesn't take back, moves on by itself,
// one retry time after the other.
func (n *Node) NextRequeue(j *store.Job) int64 {
	at := j.QTime
	if j.State == store.StateActive && j.Retry == 0 && j.Flags&store.FlagDelivered != 0 {
		return 0 // it is when the job was delivered
	}
	if (j.State == store.StateQueued || j.Overdue()) && j.Retry > 0 && at <= n.now {
		step := int64(j.Retry) * 1000
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

// Load is what a node holds beside its jobs. A node at rest has none.
type Load struct{ Adding, Imports, Hungry, Claims int }

// Load counts it.
func (n *Node) Load() Load {
	return Load{Adding: len(n.pendingAdds), Imports: n.imports.Len(), Hungry: n.demands.Len(), Claims: n.locks.Acquisitions() + n.uniqueMesh.count()}
}
