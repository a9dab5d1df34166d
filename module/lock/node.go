package lock

import (
	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// Host is the node that has the locks: its clocks, its log, its connections, and its clients that wait for answers.
type Host interface {
	Now() int64       // unix ms
	Monotonic() int64 // ms, by a clock that nobody sets; leases go by it
	WakeIn(ms int64)  // calls Tick in ms, or before; in 1 ms if there is more to do
	Below(span int64) int64
	Passive() bool // the node follows a master, and changes nothing by itself
	Loading() bool
	WholeFor() int64 // for how long this node has lost no data, ms

	Mark() int                // the present position in the effects, for Cost
	Cost(mark, whole int) int // the cost of the effects since mark, as parts of a tick that has whole parts

	LogLock(l *store.Lock)
	LogUnlock(name []byte, token uint64)
	KeepVotes() // writes down what Votes returns, then calls VotesKept
	Done(client any, r *Result)
	Cleared(client any, locks int, err error)
	Receive(from wire.NodeID, message []byte) error // takes a message that this package has put off
}

// Jobs are the holders of all locks but bare ones. Each job says itself which locks it has.
type Jobs interface {
	Holds(l *store.Lock) bool // the lock's job says so, too; or its window isn't over
	Lapsed(l *store.Lock)     // tells the lock's job that the lock is over
	Has(id store.ID, name []byte, token uint64) bool
	HasNoMore(id store.ID, space store.Space)
	Loses(id store.ID) // the job has lost a lock to another, as the mesh has settled

	Knows(id store.ID) bool                    // this node has the job, done or not
	Lives(id store.ID) bool                    // it may have locks: it isn't done, or has just gone to another node
	HasSlot(name []byte, ticket store.ID) bool // a slot of a queue may be that of a job here, see [store.IsSlotsName]
	LivesElsewhere(id store.ID) bool           // it has just gone to another node
	Done(id store.ID) bool                     // it is known to be done
	CountsOn(id store.ID) bool                 // it may count on votes for it, by any token
	IsPutOff(id store.ID) bool                 // it is here, and waits for its key
	Over(name []byte, id store.ID) bool        // it had the lock of this name, and never has it again
	MayBeLapsed(name []byte, id store.ID) bool // its lock may be over, though this node has a vote without end for it
	EndLapsed(name []byte, id store.ID) bool   // its lock is over as far as this node knows: ends all votes for it
	RunLease(id store.ID) int64                // how long its run has its lock, ms

	// GivenBack says that a job was given back at another node ([Node.GiveBack]), after it had come back so many times. If a client
	// of this node has the job by a run of another token, and the job has come back as often, that run is over.
	GivenBack(name []byte, id store.ID, token, times uint64)
	// EndPastRun takes an answer that names a vote for a run of the job, which stands against another run or an Unlock.
	EndPastRun(name []byte, id store.ID, m *wire.Message)

	Freed(name []byte)            // the lock is free: lets those go on that wait for it
	BackoffOver(name []byte) bool // it may be time to ask for the lock again; true: somebody is to ask
	ResetBackoff(name []byte)     // ends the lock's backoff: the lock has become free elsewhere
	HasBackoff(name string) bool  // the lock is in backoff: it isn't asked for yet
	BeforeAsking()                // sends what the others must hear before they are asked
}

// Node is a node's part in the locks of its mesh: its votes, and what it asks the others for. The votes alone decide
// who may have a lock.
type Node struct {
	host  Host
	jobs  Jobs
	mesh  membership.Mesh
	store *store.Store
	self  wire.NodeID

	deadlines  table.Schedule[*deadline]
	awaited    map[string]*deadline // the same, by the names of their locks
	sweep      int                  // hurried passes over the locks that are still to be made
	lockCursor uint64               // of the pass over the table that removes locks which are over
	lockLook   int64                // monotonic: when that pass went on last
	orphanLook int64                // monotonic: from then on that pass may ask about a vote again, see lookForOrphan
	slotLook   int64                // monotonic: likewise for a slot that stands in somebody's way, see taken
	Lazy       bool                 // set by scripts alone, which show a rule by itself: lookForOrphan finds nothing
	stale      bool                 // in the last tick many of the locks were over
	clearsAt   map[wire.Node]uint64 // the value of cleared when a node was connected
	looked     int                  // slots that were looked at, see TakeLooked
	scratch    struct {
		locks []*store.Lock
		name  []byte
		slot  []byte // the name of a slot that is looked at
	}

	rounds         uint64                   // counts rounds of acquisitions, and pending unlocks
	open           table.Chain[Acquisition] // those with a round under way
	uncounted      int                      // how many of them, from the head on, are to be tallied again
	forgets        uint64                   // how often a node was forgotten
	byRound        map[uint64]*Acquisition
	alarms         table.Schedule[*Acquisition] // by when their next step is due
	byJob          acquisitionIndex[store.ID]   // the acquisitions in alarms that are for jobs
	byName         acquisitionIndex[string]     // the same, by their locks
	lockLines      map[string]*lockLine
	clears         []*Clearing // under way, the oldest first
	clearLine      []*Clearing // those that wait until fewer are under way
	called         []string    // names of locks that became free, and have a line
	unlocks        [unlockKinds]unlockList
	unlocksByRound map[uint64]*pendingUnlock
	nextResend     int64 // monotonic: when pending unlocks are looked at
	orphanChecks   table.Roster[string, orphanCheck]
	verdicts       table.Roster[string, verdict] // by lock
	inquiries      int64                         // counts questions to other nodes; numbers the next one
	leftovers      table.Roster[store.ID, leftover]
	nextLook       int64  // monotonic
	firstOwn       uint64 // the first token that this node gave out since its start, or since it was a replica
	seen           uint64 // the greatest token that this node gave out, or another told of
	reset          lastReset
	reserved       uint64       // tokens up to this one are written off in the log
	nonQuorum      int          // locks with one of flagsNonQuorum
	maxLease       int64        // ms
	lately         [64]wonClaim // by round
	sync           tableSync
	votes          promise
	raised         table.Roster[string, raised] // by lock
	outvoted       []*Acquisition               // won for jobs while this node's own vote stood against them

	asked      acquisitionIndex[string] // the acquisitions in open, by their locks
	cleared    uint64                   // how many Clears this node has heard of
	pastClears [pastClears]pastClear
}

// New makes a node without locks. Its table lies in a store that the caller shares. Its rounds have greater numbers than first, which no other process of the
// node has used: a node that had to write its vote down first may answer to the next process.
func New(host Host, jobs Jobs, mesh membership.Mesh, s *store.Store, first uint64) *Node {
	return &Node{
		host: host, jobs: jobs, mesh: mesh, store: s, rounds: first,
		awaited: map[string]*deadline{}, clearsAt: map[wire.Node]uint64{},
		byRound: map[uint64]*Acquisition{}, byJob: acquisitionIndex[store.ID]{}, byName: acquisitionIndex[string]{}, asked: acquisitionIndex[string]{}, lockLines: map[string]*lockLine{}, unlocksByRound: map[uint64]*pendingUnlock{},
		maxLease: DefaultMaxLease,
	}
}

// SetSelf sets the node's ID, and keeps what is known of the table as a whole.
func (n *Node) SetSelf(id wire.NodeID) {
	known := n.table()
	n.self = id
	n.setTable(known)
}

// Sweep makes the node look at all locks soon, bit by bit, since jobs are gone that may have had some. That takes two
// passes: a lock that comes behind the first pass is met by the second.
func (n *Node) Sweep() {
	if n.store.Locks().Len > 0 {
		n.sweep = 2
		n.host.WakeIn(1)
	}
}

// Flushed follows a flush of all queues, which ends windows ([Node.endedByFlush]), and leaves behind locks of jobs that
// are gone.
func (n *Node) Flushed() {
	n.store.Locks().Epoch++
	n.Sweep()
}

// countOthers notes how many other nodes there are, for C.
func (n *Node) countOthers() { n.store.Locks().Others = uint32(len(n.mesh.All())) }

// Asks says whether an acquisition for the job is under way.
func (n *Node) Asks(id *store.ID) bool { return n.byJob[*id] != nil }

// AsksFor says whether an acquisition of this very lock for the job is under way, or of any slot of it.
func (n *Node) AsksFor(id *store.ID, name string) bool {
	if l := n.byJob[*id]; l != nil {
		for c := l.Head; c != nil; c = c.ofJob.Next {
			if string(c.name) == name || c.slots != nil && c.slots.has(name) {
				return true
			}
		}
	}
	return false
}

// AnyAsks says whether an acquisition of the lock, or of one of so many slots of it, for any job is under way.
func (n *Node) AnyAsks(name []byte, slots int) bool {
	for slot := range slots {
		n.scratch.slot = store.AppendSlotName(n.scratch.slot[:0], slot, name)
		if n.byName[string(n.scratch.slot)] != nil {
			return true
		}
	}
	return false
}

// LinesWait says whether locks became free for which somebody waits: [Node.ServeLines] lets them ask.
func (n *Node) LinesWait() bool { return len(n.called) > 0 }

// BeginEnd begins the end of all acquisitions, as when the node becomes a replica. It takes the votes of other nodes
// back at once, because a moment later nobody hears this node any more. [Node.EndOne] does the rest.
func (n *Node) BeginEnd() {
	for _, c := range n.alarms {
		n.Retract(c)
	}
}

// ForgetPending forgets pending unlocks, and what was heard of jobs.
func (n *Node) ForgetPending() {
	n.unlocks = [unlockKinds]unlockList{}
	clear(n.unlocksByRound)
	n.verdicts = table.Roster[string, verdict]{}
}

// EndOne ends one acquisition. False: there is none left.
func (n *Node) EndOne() bool {
	if len(n.alarms) > 0 {
		n.finishAcquisition(n.alarms[0], Result{Kind: Aborted}, true)
		return true
	}
	n.called = n.called[:0] // no line has members any more
	return false
}

// Sizes is how much a node remembers of locks outside its table. A node forgets all of it once it can't matter any
// more.
type Sizes struct {
	Freed    int // votes that were taken back while the node learns
	Disputed int // locks for which others named different holders
	Asked    int // locks whose jobs may be gone
	Watched  int // locks that are looked at when their time is over
	Sweep    int // passes over the table that are still to be made
	Cursor   uint64
}

// Sizes counts what the node remembers.
func (n *Node) Sizes() Sizes {
	return Sizes{n.sync.freed.Len(), n.sync.disputed.Len(), n.orphanChecks.Len(), len(n.deadlines), n.sweep, n.lockCursor}
}
