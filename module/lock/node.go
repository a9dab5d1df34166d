package lock

import (
	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// Host is the node that has the locks: its clocks, its log, and whoever waits for answers.
type Host interface {
	Now() int64       // unix ms
	Monotonic() int64 // ms, by a clock that nobody sets: leases are measured by it
	WakeIn(ms int64)  // Tick is to be called then, if not before
	Hurry()           // Tick is to be called as soon as possible: there is more to do
	Below(span int64) int64
	Passive() bool // the node follows a master, and changes nothing by itself
	Loading() bool
	Epoch() uint32   // how often all queues were flushed: a window ends by that
	WholeFor() int64 // for how long this node has lost nothing, ms

	Mark() int                // where what is left to be done is now,
	Cost(mark, whole int) int // and what share of a tick has come since, of so many parts

	LogLock(l *store.Lock)
	LogUnlock(name []byte, token uint64)
	KeepVotes() // what Votes has is to be written down, and VotesKept told of it
	Done(client any, r *Result)
	Cleared(client any, locks int, err error)
	Receive(from wire.NodeID, message []byte) error // a message that this package has put off
}

// Jobs are the owners of all locks but bare ones. Each says of its own whether it has its locks.
type Jobs interface {
	Holds(l *store.Lock) bool // the lock's job says so, too; or its window isn't over
	Lapsed(l *store.Lock)     // the lock is over: its job is to know
	Has(id store.ID, name []byte, token uint64) bool
	HasNoMore(id store.ID, space store.Space)
	Loses(id store.ID) // it has lost a lock to another, by the word of the mesh

	Knows(id store.ID) bool                    // whether it is done or not
	Lives(id store.ID) bool                    // it may have locks: it isn't done, or has just gone to another node
	LivesElsewhere(id store.ID) bool           // it has just gone to another node
	Done(id store.ID) bool                     // it is known to be done
	CountsOn(id store.ID) bool                 // it may count on votes that it has, whatever their tokens
	IsPutOff(id store.ID) bool                 // it is known, and waits for its key
	Over(name []byte, id store.ID) bool        // it had the lock of this name, and never has it again
	MayBeLapsed(name []byte, id store.ID) bool // its lock may be over, though this node has a vote without end for it
	EndLapsed(name []byte, id store.ID) bool   // its lock is over: all votes for it are to end
	RunLease(id store.ID) int64                // how long its run has its lock, ms

	// EndPastRun hears by an answer that a vote for a run of the job stands against another one.
	EndPastRun(name []byte, id store.ID, m *wire.Message)

	Freed(name []byte)            // the lock is free: those go on who waited for it
	BackoffOver(name []byte) bool // it may be time to ask for the lock again; true: for somebody
	ResetBackoff(name []byte)     // likewise, for it has become free elsewhere
	HasBackoff(name string) bool  // there is one for the lock
	BeforeAsking()                // others are about to be asked: what they are to hear before is to be sent
}

// Node is a node's part in the locks of its mesh: its votes, and what it asks the others for. Who may have a lock
// is said by the votes alone.
type Node struct {
	host  Host
	jobs  Jobs
	mesh  membership.Mesh
	store *store.Store
	self  wire.NodeID

	deadlines  table.Schedule[*deadline]
	awaited    map[string]*deadline // the same, by their names
	sweep      int                  // passes over the locks still to be made in haste
	lockCursor uint64               // of the pass over locks that are over
	lockLook   int64                // monotonic: when that went on last
	stale      bool                 // many of them were, in the last tick
	clearsAt   map[wire.Node]uint64 // cleared, when a node was connected
	scratch    struct {
		locks []*store.Lock
		name  []byte
	}

	rounds         uint64                   // of acquisitions, and pending unlocks
	open           table.Chain[Acquisition] // those with an attempt under way
	uncounted      int                      // so many of them, from the head on, are to be counted anew
	forgets        uint64                   // how often a node was forgotten
	byRound        map[uint64]*Acquisition
	alarms         table.Schedule[*Acquisition] // by when something is to be done
	byJob          acquisitionIndex[store.ID]   // the claims in alarms that are for jobs
	byName         acquisitionIndex[string]     // likewise, by their locks
	lockLines      map[string]*lockLine
	clears         []*Clearing // first things first
	clearLine      []*Clearing // those that wait until fewer are under way
	called         []string    // locks that became free, and have a line
	unlocks        [unlockKinds]unlockList
	unlocksByRound map[uint64]*pendingUnlock
	nextResend     int64 // steady: when pending unlocks are looked at
	orphanChecks   table.Roster[string, orphanCheck]
	verdicts       table.Roster[string, verdict] // by lock
	inquiries      int64                         // how many there were: the number of a question
	leftovers      table.Roster[store.ID, leftover]
	nextLook       int64        // steady
	seen           uint64       // the greatest token that another node told of
	reserved       uint64       // up to here tokens are written off in the log
	nonQuorum      int          // locks with one of flagsNonQuorum
	maxLease       int64        // ms
	lately         [64]wonClaim // by round
	sync           tableSync
	votes          promise
	raised         table.Roster[string, raised] // by lock
	outvoted       []*Acquisition               // were won for jobs while this node's vote stood against them

	asked      acquisitionIndex[string] // the claims in open, by their locks
	cleared    uint64                   // how many Clear there were
	pastClears [pastClears]pastClear
}

// New makes a node without locks. Its table lies in a store that the caller shares.
func New(host Host, jobs Jobs, mesh membership.Mesh, s *store.Store) *Node {
	return &Node{
		host: host, jobs: jobs, mesh: mesh, store: s,
		awaited: map[string]*deadline{}, clearsAt: map[wire.Node]uint64{},
		byRound: map[uint64]*Acquisition{}, byJob: acquisitionIndex[store.ID]{}, byName: acquisitionIndex[string]{}, asked: acquisitionIndex[string]{}, lockLines: map[string]*lockLine{}, unlocksByRound: map[uint64]*pendingUnlock{},
		maxLease: DefaultMaxLease,
	}
}

// SetSelf tells the node's ID. What was known of the table as a whole is so still.
func (n *Node) SetSelf(id wire.NodeID) {
	known := n.table()
	n.self = id
	n.setTable(known)
}

// Sweep has all locks looked at soon, bit by bit: jobs went that may have had some. It takes two passes: what is
// inserted behind the first one's back is met by the second.
func (n *Node) Sweep() {
	if n.store.Locks().Len > 0 {
		n.sweep = 2
		n.host.Hurry()
	}
}

// Asks says whether locks are asked for, for a job.
func (n *Node) Asks(id *store.ID) bool { return n.byJob[*id] != nil }

// AsksFor says whether this very lock is asked for, for a job.
func (n *Node) AsksFor(id *store.ID, name string) bool {
	if l := n.byJob[*id]; l != nil {
		for c := l.Head; c != nil; c = c.ofJob.Next {
			if string(c.name) == name {
				return true
			}
		}
	}
	return false
}

// AnyAsks says whether a lock is asked for, for any job.
func (n *Node) AnyAsks(name []byte) bool { return n.byName[string(name)] != nil }

// LinesWait says whether there are locks that became free, for which somebody waits: [Node.ServeLines] has those ask.
func (n *Node) LinesWait() bool { return len(n.called) > 0 }

// BeginEnd begins the end of all acquisitions, as when the node becomes a replica: the votes that others gave are taken
// back at once, for a moment later nobody hears this node any more. [Node.EndOne] does the rest.
func (n *Node) BeginEnd() {
	for _, c := range n.alarms {
		n.Retract(c)
	}
}

// ForgetPending forgets votes that others are to take back, and what was heard of jobs.
func (n *Node) ForgetPending() {
	n.unlocks = [unlockKinds]unlockList{}
	clear(n.unlocksByRound)
	n.verdicts = table.Roster[string, verdict]{}
}

// EndOne ends one acquisition; false: there is none left.
func (n *Node) EndOne() bool {
	if len(n.alarms) > 0 {
		n.finishAcquisition(n.alarms[0], Result{Kind: Aborted}, true)
		return true
	}
	n.called = n.called[:0] // all lines are gone
	return false
}

// Sizes is how much a node remembers of locks beside its table. All of it is forgotten when it can't matter any more.
type Sizes struct {
	Freed    int // votes that were taken back while the node learns
	Disputed int // locks of which others told different holders
	Asked    int // locks whose jobs may be gone
	Watched  int // locks that are looked at when their time is over
	Sweep    int // passes over the table still to be made
	Cursor   uint64
}

// Sizes counts that.
func (n *Node) Sizes() Sizes {
	return Sizes{n.sync.freed.Len(), n.sync.disputed.Len(), n.orphanChecks.Len(), len(n.deadlines), n.sweep, n.lockCursor}
}
