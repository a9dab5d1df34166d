package wire

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
)

// Kind is the kind of a message.
type Kind uint8

// The kinds. A number, once released, keeps its meaning.
const (
	// ReplJob gives the receiver a copy of a job to hold. The answer is GotJob or Refused.
	ReplJob Kind = iota + 1
	// GotJob: the sender holds the copy.
	GotJob
	// Refused: the sender doesn't hold the copy. Count is the reason (NoMemory …).
	Refused
	// Holders tells which nodes may hold a copy by now.
	Holders
	// Enqueue asks a holder to queue its copy, Span from now.
	Enqueue
	// WillQueue: the sender is about to queue the job, unless somebody objects.
	WillQueue
	// Queued: the sender has the job in its queue, or in a client's hands.
	Queued
	// Working: the job is being worked on, so its next queueing is put off.
	Working
	// SetAck: the job is acknowledged. The answer is GotAck.
	SetAck
	// GotAck: the sender knows that the job is acknowledged.
	GotAck
	// DelJob: the job can be forgotten.
	DelJob
	// NeedJobs asks for Count jobs of a queue, now or when some come. Count 0: for none.
	NeedJobs
	// YourJob hands a job over to be queued at the receiver.
	YourJob
	// Pause sets a queue's pause bits to Count.
	Pause
	// Heartbeat tells the sender's state, its port for clients (Count), and what
	// it knows of other nodes.
	Heartbeat
	// Failed: a majority suspects a node, the only one in Peers.
	Failed
	// AskWork asks for up to Count jobs of a queue that are being worked on: those that are
	// due first. Span is any number. The answer is Work, with the same Span.
	AskWork
	// Work lists such jobs, ordered by when they are due. The list is in Queue, in a form that
	// package engine defines.
	Work

	// Claim asks for the receiver's vote for a lock. The answer is Grant or Deny, with the
	// same Round.
	Claim
	// Grant: the vote is given, or, as the answer to Unlock, taken back.
	Grant
	// Deny: the vote isn't given, or not taken back. Count is the reason (LockHeld …). Lock is
	// the lock that stands against it.
	Deny
	// Unlock asks the receiver to take back its vote for a holder. It is answered like Claim,
	// unless Round is 0.
	Unlock
	// Verify asks whether the job that has a lock lives. With a token it asks whether the
	// receiver counts on votes for the job up to that token; with Disputed, on any vote. The
	// answer is Verified.
	Verify
	// Verified: Count is the answer (JobLives …).
	Verified
	// LockPull asks for a page of the receiver's locks, from the cursor Round on.
	LockPull
	// LockPage has some of the sender's locks. Round is the next cursor, 0 at the end.
	LockPage
	// ClearLocks asks the receiver to forget locks by name, up to the token of Lock
	// (LOCK.CLEAR).
	ClearLocks
	// LockLost: the job has lost a lock to another holder, which got it meanwhile. With the
	// zero ID, the lock's owner has lost it.
	LockLost
	// Release: the job isn't deferred any more. With Moved it is in the queue named. With Last
	// it comes after the Count jobs that it blocked. The answer is Released.
	Release
	// Released: the sender knows of the release. With Count 0 it doesn't know the job.
	Released
	// AskOutcome asks for the outcome of a job. The answer is Outcome, with the same Round.
	AskOutcome
	// Outcome: Count is the outcome of the job (OutcomeUnknown …).
	Outcome
	// Offer hands an at-most-once job over. The answer is Taken or Declined, with the same
	// Round. The sender may repeat an Offer.
	Offer
	// Taken: the sender has the job of that round, or had it. The answer is Settled.
	Taken
	// Declined: the sender never had the job of that round, and doesn't take it. Count is the
	// reason, as in Refused.
	Declined
	// Settled: the round won't be offered again.
	Settled
	// PutOff: the job waits for its key, or with CountNack it failed and comes again later. The sender is
	// going to queue it, or to try again, Span from now. The other nodes leave the job to the sender until
	// a retry time after that.
	PutOff
	// MovedTo: the job is in the queue named. Count is two times the number of its moves, plus
	// 1 for a dead letter, which is unique by nothing. A copy with a smaller count moves too.
	MovedTo
	// AskIdle asks whether the receiver leaves a job to others, as the sender has done for some
	// time. The answer is Idle, with the same Round, or none. A receiver that doesn't know the
	// job answers only if it has lost no data for Span.
	AskIdle
	// Idle: the sender doesn't know the job, or has a copy that it leaves to others.
	Idle
	// ReplJobs is a ReplJob for several jobs (ADDJOBS), which differ only in their IDs, creation times and
	// bodies. The first one is in ID and Job, the others are in More. If the receiver holds a copy of each, the
	// answer is GotJobs, else it answers each job as a ReplJob.
	ReplJobs
	// GotJobs: the sender holds the copies of a ReplJobs, Count in all. ID is that of the first.
	GotJobs
	// AskCounts asks how many jobs of some queues the receiver counts. The names are in Queue, in a
	// form that package engine defines. Span is any number. The answer is Counts, with the same Span.
	AskCounts
	// Counts lists the counts of those queues, in the order of the question. The list is in Queue.
	Counts
	// AskQueues asks for a page of the names of the receiver's queues, about Count of them, from
	// the cursor Round on. Span is any number. The answer is Queues, with the same Span.
	AskQueues
	// Queues has such names, in Queue. Round is the next cursor, 0 at the end.
	Queues
	// Entries tells entries that all nodes are to know alike (package entries), in Queue. If Count
	// isn't 0, the sender has told all of a part that Round and Count name, and is to be told what
	// it lacks. Package engine defines the part's form. Members is the sum of all entries that the
	// sender has. The answer is an Entries with NoReply, or one that tells what is later.
	Entries
	// EntrySums compares such entries: it has sums of parts of the sender's, in Queue. Round says of
	// which. The answer is Entries, or an EntrySums for each part that differs.
	EntrySums
	// AskCopies asks which of some jobs the receiver has. The IDs are in Queue, one behind the other.
	// Span is any number. The answer is Copies, with the same Span.
	AskCopies
	// Copies has the IDs of those jobs, in Queue: first Count that the sender has, then those that it hasn't.
	Copies
	// AskFlush asks the receiver to cancel the jobs of a queue that it would queue. Span is any number. The answer is Flushed, with the
	// same Span, when that is done.
	AskFlush
	// Flushed: the sender has cancelled Round jobs.
	Flushed
	// AskJobs asks for a page of the jobs that the receiver counts, about Count of them, from the cursor Round on. Members has a bit
	// for each state that is wanted; 0: all are. With OneQueue only jobs of the queue named are wanted. Span is any number. The answer
	// is Jobs, with the same Span.
	AskJobs
	// Jobs lists such jobs, in Queue, in a form that package engine defines. Round is the next cursor, 0 at the end.
	Jobs
	// Whereabouts is a MovedTo that also says how a job failed. Job has no more than Extras: those that tell it. Span is what is left of the
	// job's life. Count is 0 for a job that was never moved.
	Whereabouts
	// AskMove asks the receiver to move jobs: the first that wait in a queue, Count at most; or with ByID those of some IDs that wait at the
	// receiver. Queue says which and where to, in a form that package engine defines. Span is any number. The answer is MovedJobs, with the
	// same Span.
	AskMove
	// MovedJobs: the sender has moved Round jobs. Queue is empty, or the reason why it can't move a job that it has.
	MovedJobs
	// SetEnd is a SetAck for a job whose outcome is kept: for Span, with the result or reason in Queue. Job has no more than Extras: the outcome.
	// The answer is GotEnd, or GotAck by a node that doesn't keep it.
	SetEnd
	// GotEnd is a GotAck with the outcome that the sender keeps, in the Extras of Job.
	GotEnd
	// Watch asks what the receiver knows of the end of some jobs, and asks it to tell when they end. The IDs are in Queue, one behind the other.
	// Span is any number but 0. The answer is Ended, or several, with the same Span.
	Watch
	// Ended tells what the sender knows of the end of jobs, in Queue, in a form that package engine defines. With Span 0 nobody asked.
	Ended
	// Cancel asks the worker of a job to stop. Job has no more than Extras: when that was wished, and why.
	Cancel
	// Marks tells how far the slots of recurring jobs are served, in Queue, in a form that package engine defines. The answer has NoReply:
	// it tells how far they are served as far as its sender knows.
	Marks
)

// Further kinds.
const (
	// Do asks the receiver to give a job another body, the one in Queue, and maybe another time, if the job waits there: an ADDJOB of another job
	// with its key has said so (ONCONFLICT). Lock has the name of the lock by which the job has that key, the job, and in Lease and Left what
	// becomes of its time, see [Lock.Debounce], and in Token for how long its sender waits, see [Lock.Waits]. Span is any number. The answer is
	// Did, with the same Span.
	Do Kind = iota + 66
	// Did: the sender has dealt with a Do, or a NewCopy.
	Did
	// NewCopy is a ReplJob with NewBody, and with the job's new time. The answer is Did, with the same Span, which is any number. Round is the
	// Span of the ReplJob.
	NewCopy
	_
	// AskName asks what the receiver knows of a job whose name was given by its producer, and which the sender is about to queue. The
	// answer is Named, behind what the receiver would say to a WillQueue.
	AskName
	// Named: with Known the sender knows the job, so the receiver leaves its own to it.
	Named
	// Publish: publish a message at the receiver. Queue has the channel after its length (varint), and then the message.
	Publish
	// AskDelayed asks for up to Count delayed jobs of a queue that the receiver is to queue, the first that is due first. Queue has a place in
	// their order, in a form that package engine defines, and then the queue's name: only jobs behind that place are wanted. Span is any number.
	// The answer is DelayedJobs, with the same Span.
	AskDelayed
	// DelayedJobs lists such jobs, in Queue, in a form that package engine defines.
	DelayedJobs
	// AskGiven asks whether the receiver is sure that nobody was ever given some jobs, which a flush is to end. Queue has their queue and then
	// the jobs, in a form that package engine defines. Members is a sum over the nodes that the sender counts. Span is any number. The answer is
	// Given, with the same Span.
	AskGiven
	// Given has a byte for each of those jobs, in Queue: 1 if the sender is sure, and leaves the job to the receiver for a while.
	Given
	// Flushes tells the flushes of the last day that the sender knows of, in Queue: entries, as in Entries.
	Flushes
	// FlushReady is the answer to an AskFlush with Soon: an AskFlush without it, which has the same Span, is carried out if it comes soon.
	FlushReady
	kinds
)

// Flags of messages.
const (
	NoReply   uint8 = 1 << iota // ReplJob, Entries, Marks: no answer is wanted
	QueueIt                     // ReplJob: queue the copy, Span from now
	CountNack                   // Queued, PutOff: count a NACK; Working: the flags have how many the sender counts, see [CountFlags]
	CountMore                   // Queued: count an additional delivery
	Known                       // GotAck: the sender had a copy; Named: it knows the job
	Leaving                     // Heartbeat: the sender is leaving the mesh
	Full                        // Heartbeat: the sender takes no copies, its memory is short
	ByClient                    // DelJob: a client asked for it (FASTACK); SetAck, SetEnd: a client said so at a node that doesn't know the job, and the sender hasn't told the event of its end
)

// Met, in a Heartbeat: an operator told the sender to meet the receiver.
const Met = ByClient

// Whole, in a Heartbeat: it names all nodes that the sender knows.
const Whole = NoReply

// Idles, in a Heartbeat: the sender answers AskIdle.
const Idles = QueueIt

// Forgets, in a Heartbeat: the sender understands a Peer in the state Forgotten.
const Forgets = CountMore

// Minority, in a Heartbeat: the sender can't get votes for runs from more than half of the nodes, so jobs that need a lock to
// run would lie there.
const Minority = Known

// Forgotten is the state of a Peer that an operator told the sender to forget. It is used only in a Heartbeat with Whole, to a receiver that
// has said Forgets.
const Forgotten = 3

// Flags of single kinds.
const (
	Overdue   = NoReply   // AskWork: only jobs whose time has passed
	EndTold   = Known     // DelJob with ByClient: the sender knew the job, so it has told the event of its end
	PassOn    = NoReply   // DelJob: the receiver tells the other holders that it knows of
	Follows   = QueueIt   // Flushes: there are more
	Last      = QueueIt   // Release: the job comes after those that it blocked
	Moved     = NoReply   // Release: the job was moved to another queue
	Cancelled = CountNack // SetAck, Outcome: the job was cancelled, not done
	HeldBack  = CountMore // SetAck, Outcome: it was cancelled before it could be queued
	Before    = Known     // Outcome: the job was released to come last, and the sender holds jobs that it waits for
	NotQueued = QueueIt   // Refused: it answers a YourJob, so the job isn't queued at the sender
	InHands   = QueueIt   // Queued, Working: a client of the sender has the job; it isn't in the sender's queue
	Lasts     = NoReply   // Working: the sender has just given the job to a client, and the job's life would end before it is due
	Kept      = NoReply   // Queued: the answer to a Queued, by the node that keeps the job; with InHands, the answer to Kept, see [CountFlags]
	WasQueued = QueueIt   // WillQueue: the sender had the job in its queue before it was started again, or promoted; see [CountFlags] and [DeliveriesFlags]
	WasHeld   = QueueIt   // Enqueue: the job was held back when its copies were sent, and a holder may be about to unblock it
	Unblocked = Known     // Enqueue: the job waits for nothing by now
	Leaves    = NoReply   // Enqueue: the sender is leaving, and keeps the job until the receiver has said PutOff or Queued
	Objection = QueueIt   // PutOff: it objects to the receiver's WillQueue
	GotKey    = NoReply   // PutOff: the job is unique, and doesn't wait for its key, or no longer
	Due       = CountMore // PutOff: the job has got a time, Span from now, as if it was added with that delay; not with CountNack
	KeptOut   = Known     // PutOff: the sender was to queue the job for the first time, but its queue is paused: nodes that left the job to it may queue it
	Delays    = Leaving   // PutOff: the sender is to queue the job for the first time, when its delay is over; what it waited for has ended
	StillHeld = Known     // Release: at the node that released it, the job still waits for others
	Had       = Known     // YourJob: the receiver has a copy, as far as the sender knows; Refused: it answers such a YourJob
	Spare     = QueueIt   // NeedJobs with Count 0: the sender has jobs of the queue, for which nobody waits there
	All       = NoReply   // AskFlush: jobs that clients work on go, too
	Soon      = QueueIt   // AskFlush: nothing is to be done yet. The answer is FlushReady
	OneQueue  = NoReply   // AskJobs
	ByID      = NoReply   // AskMove: Queue has IDs in the place of the first queue
	ToAll     = NoReply   // GotEnd: all holders have confirmed this outcome, and the sender forgets the job, or keeps it
	Polls     = NoReply   // NeedJobs: for a client that doesn't wait
	Waits     = QueueIt   // Did, as an answer to Do that another follows: the job's own ADDJOB waits at the sender, and has to end before
	Done      = NoReply   // Did: the job has the new body, and the nodes with a copy that can be reached have it, too
)

// Values of Count in an Outcome.
const (
	OutcomeUnknown = iota // the sender doesn't know
	OutcomeOpen           // the job isn't done yet
	OutcomeEnded          // the job is done; with Cancelled: it isn't, and won't be
)

// Returns is how often a job has come back, as far as the sender of a message knows. Messages that count it in their flags (CountFlags) end
// with it, where the receiver takes it: nodes of former releases refuse it.
type Returns struct {
	Nacks, Deliveries uint16 // NACKs, additional deliveries
	Told              bool   // the message has them
}

// SetReturns puts how often a job has come back into a message, in full and into its flags.
func (m *Message) SetReturns(nacks, deliveries uint16) {
	m.Returns = Returns{Nacks: nacks, Deliveries: deliveries, Told: true}
	count := nacks
	if !m.CountsNacks() {
		count += deliveries
	}
	m.Flags |= CountFlags(count)
	if m.Kind == WillQueue {
		m.Flags |= DeliveriesFlags(deliveries)
	}
}

// CountsNacks says whether the count in a message's flags is of NACKs alone, see [CountFlags].
func (m *Message) CountsNacks() bool {
	return m.Kind == WillQueue || m.Kind == Working || m.Kind == Queued && m.Flags&(Kept|InHands) == Kept|InHands
}

// CountFlags puts a count, modulo 16, into the upper four flags of a message. In a WillQueue with WasQueued, and in a Queued with Kept and
// InHands, and in a Working with CountNack, it is how many NACKs the sender counts for the job. In a Queued with neither flag, and in a PutOff with CountNack, it is how often the job has come back as far
// as the sender knows: the NACKs and the additional deliveries together.
func CountFlags(count uint16) uint8 { return uint8(count) << 4 }

// Ahead is by how much the count in a message's flags is greater than count, from -8 to 7. The flags have the count modulo 16. The counts
// of two nodes are mostly close to each other, so the smallest possible difference is taken. It is wrong where they are further apart:
// [Returns] has them in full.
func Ahead(flags uint8, count uint16) int { return int(int8(flags&0xF0-CountFlags(count)) >> 4) }

// DeliveriesFlags puts a number, modulo 4, into the flags of a WillQueue with WasQueued: how many additional deliveries the sender counts
// for the job.
func DeliveriesFlags(deliveries uint16) uint8 { return uint8(deliveries) & 3 << 2 }

// SameDeliveries says whether the flags of such a message have this number, modulo 4.
func SameDeliveries(flags uint8, deliveries uint16) bool {
	return flags&DeliveriesFlags(3) == DeliveriesFlags(deliveries)
}

// Bounds is what a Heartbeat tells of the creation times of the jobs that were added at its sender. It is told only to a receiver that takes it.
type Bounds struct {
	Line uint64 // within a line of times they only grow, over restarts as well; 0: the message has no Bounds
	Told uint64 // jobs of this line up to this creation time were promised before the message was sent, or won't ever be
	Made uint64 // no job up to then was made that wasn't made before the message was sent
}

// Flags of messages about locks.
const (
	Extend    uint8 = 1 << iota // Claim: only if the holder has the lock by this very token
	Fresh                       // Unlock: only a vote that was made for this token, and not extended since; Claim: not if the job has the lock by another claim
	Partial                     // LockPage: the sender's table isn't complete
	Told                        // LockPage: nobody asked; the receiver settles contradictions
	Prefix                      // ClearLocks: all names that begin with this one
	Committed                   // Claim: a majority has agreed, no answer is wanted; Unlock: the holder had the lock by this token
)

// Disputed, in a Verify and its answer: the sender of the Verify may have voted for this job, or for another.
const Disputed = Extend

// Endless, in a Verify: the sender's vote for the job has no end.
const Endless = Fresh

// Newcomer, in a LockPage: the sender is new to the mesh, and learns the votes of others.
const Newcomer = Fresh

// Voter, in a LockPage with Newcomer: the sender has voted in this mesh before a node came that it learns from, and none of
// its votes is missing.
const Voter = Prefix

// MaxTableNumber is the greatest number by which a node tells the pages of one reading of a table from those of another (LockPull, LockPage). It
// counts on from 1 after that.
const MaxTableNumber = 7

// TableFlags puts such a number into the upper three flags of a LockPull, or a LockPage.
func TableFlags(number uint8) uint8 { return number << 5 }

// TableNumber is the number in the flags of such a message; 0: it has none, for a node of a former release has sent it, or nobody asked.
func TableNumber(flags uint8) uint8 { return flags >> 5 }

// AllSlots, in a ClearLocks: all slots of the lock, not only slot 0. A node of a former release has locks without slots.
const AllSlots = Committed

// Reasons of Deny.
const (
	LockHeld    = iota + 1 // another holder has the lock
	TokenLow               // a greater token may have been given for the lock before
	NotHeld                // nobody has the lock
	TokenStale             // the holder has the lock by a greater token
	Abstains               // the sender doesn't vote: its table may lack votes that it gave
	Unconfirmed            // the sender learnt this vote from another node's table: it only counts against other holders
	Uncounted              // the sender knows nodes that the claim doesn't count
	NotYet                 // the lock is of a recurring job's slot that lies ahead of the sender's clock. Lock has the name, and in Left how far ahead, ms
	Served                 // the lock is of a slot that was served, as far as the sender knows
)

// Values of Count in a Verified.
const (
	JobLives = iota + 1
	JobGone  // the sender doesn't know the job
	JobDone  // the job is acknowledged, or cancelled, or doesn't have the lock any more
)

// NewBody, in a ReplJob: the job's body replaces the former one (ONCONFLICT replace, NACK with BODY).
const NewBody = Known

// Again, in a ReplJob: the receiver should have the job already, and has said that it doesn't. It refuses a job that it has deleted.
const Again = CountNack

// OfName, in a ReplJob: the answer to an AskName, before Named. This job takes the place of the receiver's. In a Named with Known: that ReplJob follows, for the sender still asks
// about the name, too.
const OfName = Full

// NewQueue, in a ReplJob: the job is now in the queue named, with these extras (ONBUSY dead).
const NewQueue = CountMore

// Reasons of Refused.
const (
	NoMemory = iota + 1
	IsLeaving
	IsPaused
	IsPassive
	WrongType
	Deleted // the job was deleted at the sender of Refused: don't hand it over to that node again
)

// Node names a node by the first 8 bytes of its ID, big endian, with the lowest bit 0. 0 is
// no node.
type Node uint64

// NodeID is a node's whole ID.
type NodeID [20]byte

// String is the ID in hex digits.
func (id NodeID) String() string { return hex.EncodeToString(id[:]) }

// ParseNodeID reads the 40 hex digits of an ID.
func ParseNodeID(s string) (NodeID, error) {
	var id NodeID
	if len(s) != 2*len(id) {
		return id, fmt.Errorf("a node ID has %d characters, not %d", 2*len(id), len(s))
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return NodeID{}, fmt.Errorf("a node ID is hexadecimal: %w", err)
	}
	return id, nil
}

// Node is the short name of the node with this ID.
func (id *NodeID) Node() Node { return Node(binary.BigEndian.Uint64(id[:]) &^ 1) }

// JobID is a job's ID in binary (package store).
type JobID = [24]byte

// Limits of what Parse accepts.
const (
	MaxHolders = 4096
	MaxPeers   = 4096
	MaxQueue   = 512 << 20 // bytes of a queue's name, and of a body
	MaxAddr    = 255
	MaxExtras  = 32 << 10 // bytes of a job's extras
	MaxMessage = 64 << 20 // bytes of a message

	MaxLockName = 4100 // bytes
	MaxOwner    = 1024
	MaxLocks    = 1024 // in a page

	MaxSiblings = 10_000 // in a ReplJobs
)

// Peer is what a Heartbeat says of a third node.
type Peer struct {
	ID    NodeID
	Addr  string
	State uint8 // 0 well, 1 suspected, 2 failed, 3 forgotten by the sender (Forgets)
}

// Job is a copy of a job on its way.
type Job struct {
	CTime             uint64 // creation, ms*1e6 plus a sequence
	Left              int64  // ms until it expires
	Retry, Delay      uint32 // seconds
	Repl              uint16
	Nacks, Deliveries uint16
	Body              []byte
	Extras            []byte // tagged attributes (store.CheckExtras)
}

// Sibling is a job of a ReplJobs beside the first. All but this is as in the first one.
type Sibling struct {
	ID    JobID // the node and the TTL in it are the first one's
	CTime uint64
	Body  []byte
}

// The bytes of a job's ID between the name of its node and its TTL.
const siblingFrom, siblingTo = 4, 22

// Lock is a vote for a lock, or a claim to one. If Job is zero, the holder is Owner.
type Lock struct {
	Name, Owner []byte
	Job         JobID
	Token       uint64 // below 2^63
	Lease       int64  // ms; 0: as long as the job waits, or runs
	Left        int64  // ms of the lease that are left; in a Deny for Abstains, until the node votes. In its place a Claim has Above, Verify and Verified have Question, Unlock has Times, and Do has its part of Debounce
	Flags       uint8  // of the lock (package lock)
}

// Above is how far the token of a Claim is above the first one that the claim tried.
func (l *Lock) Above() uint64 { return uint64(l.Left) }

// SetAbove sets [Lock.Above].
func (l *Lock) SetAbove(above uint64) { l.Left = int64(above) }

// Debounce is by how many ms a Do puts a delayed job off, and how many ms after its creation it is due at the latest. 0: the job's time stays.
func (l *Lock) Debounce() (span, bound int64) { return l.Lease, l.Left }

// SetDebounce sets [Lock.Debounce].
func (l *Lock) SetDebounce(span, bound int64) { l.Lease, l.Left = span, bound }

// Waits is for how many ms the sender of a Do waits if the job's own ADDJOB hasn't ended; 0: it is of a former release, and waits a second at most.
func (l *Lock) Waits() int64 { return int64(l.Token) }

// SetWaits sets [Lock.Waits].
func (l *Lock) SetWaits(ms int64) { l.Token = uint64(ms) }

// Times is how often a job had come back before it was given back at the sender of an Unlock, plus 1. 0: the Unlock doesn't say so.
func (l *Lock) Times() uint64 { return uint64(l.Left) }

// SetTimes sets [Lock.Times].
func (l *Lock) SetTimes(times uint64) { l.Left = int64(times) }

// Question is the number of the question that a Verify asks; Verified repeats it.
func (l *Lock) Question() int64 { return l.Left }

// SetQuestion sets [Lock.Question].
func (l *Lock) SetQuestion(number int64) { l.Left = number }

// Message is a message of any kind. Each kind uses some of the fields.
type Message struct {
	Kind    Kind
	Flags   uint8
	ID      JobID
	Count   uint32
	Span    int64 // ms
	Holders []Node
	Queue   []byte
	Job     Job
	Peers   []Peer
	Round   uint64
	Members uint64 // a sum over the nodes that the sender counts (package membership); Entries: over its entries
	Lock    Lock
	Locks   []Lock
	More    []Sibling
	Returns Returns
	Bounds  Bounds
}

// A message begins with its kind and its flags. Then come those of these fields that its kind
// has (parts), in this order.
const (
	hasID uint16 = 1 << iota
	hasCount
	hasSpan
	hasHolders
	hasQueue
	hasJob
	hasPeers
	hasRound
	hasMembers
	hasLock
	hasLocks
	hasMore
	hasExtras
	mayReturns // [Returns], or nothing
	mayBounds  // [Bounds], or nothing
)

var parts = [kinds]uint16{
	ReplJob:   hasID | hasSpan | hasHolders | hasQueue | hasJob,
	GotJob:    hasID,
	Refused:   hasID | hasCount,
	Holders:   hasID | hasHolders,
	Enqueue:   hasID | hasSpan,
	WillQueue: hasID | mayReturns,
	Queued:    hasID | mayReturns,
	Working:   hasID | mayReturns,
	SetAck:    hasID | hasHolders,
	GotAck:    hasID | hasHolders,
	DelJob:    hasID,
	NeedJobs:  hasCount | hasQueue,
	YourJob:   hasID | hasHolders | hasQueue | hasJob,
	Pause:     hasCount | hasQueue,
	Heartbeat: hasCount | hasPeers | mayBounds,
	Failed:    hasPeers,
	AskWork:   hasCount | hasSpan | hasQueue,
	Work:      hasSpan | hasQueue,

	Claim:      hasRound | hasMembers | hasLock,
	Grant:      hasRound,
	Deny:       hasCount | hasRound | hasLock,
	Unlock:     hasRound | hasLock,
	Verify:     hasID | hasLock,
	Verified:   hasID | hasCount | hasLock,
	LockPull:   hasRound,
	LockPage:   hasRound | hasLock | hasLocks,
	ClearLocks: hasLock,
	LockLost:   hasID | hasLock,
	Release:    hasID | hasCount | hasQueue,
	Released:   hasID | hasCount,
	AskOutcome: hasID | hasRound,
	Outcome:    hasID | hasCount | hasRound,

	Offer:    hasID | hasQueue | hasJob | hasRound,
	Taken:    hasID | hasRound,
	Declined: hasID | hasCount | hasRound,
	Settled:  hasID | hasRound,
	PutOff:   hasID | hasSpan | mayReturns,
	MovedTo:  hasID | hasCount | hasQueue,
	AskIdle:  hasID | hasSpan | hasRound,
	Idle:     hasID | hasRound,

	ReplJobs:  hasID | hasSpan | hasHolders | hasQueue | hasJob | hasMore,
	GotJobs:   hasID | hasCount,
	AskCounts: hasSpan | hasQueue,
	Counts:    hasSpan | hasQueue,
	AskQueues: hasCount | hasSpan | hasRound,
	Queues:    hasSpan | hasQueue | hasRound,
	Entries:   hasCount | hasQueue | hasRound | hasMembers,
	EntrySums: hasQueue | hasRound,
	AskCopies: hasSpan | hasQueue,
	Copies:    hasCount | hasSpan | hasQueue,
	AskFlush:  hasSpan | hasQueue,
	Flushed:   hasSpan | hasRound,
	AskJobs:   hasCount | hasSpan | hasQueue | hasRound | hasMembers,
	Jobs:      hasSpan | hasQueue | hasRound,
	AskMove:   hasCount | hasSpan | hasQueue,
	MovedJobs: hasSpan | hasRound | hasQueue,
	Marks:     hasQueue,
	AskName:   hasID,
	Named:     hasID,
	Publish:   hasQueue,

	AskDelayed:  hasCount | hasSpan | hasQueue,
	DelayedJobs: hasSpan | hasQueue,

	FlushReady: hasSpan,
	AskGiven:   hasSpan | hasQueue | hasMembers,
	Given:      hasSpan | hasQueue,
	Flushes:    hasQueue,

	Whereabouts: hasID | hasCount | hasSpan | hasQueue | hasExtras,

	SetEnd: hasID | hasSpan | hasHolders | hasQueue | hasExtras,
	GotEnd: hasID | hasHolders | hasExtras,
	Watch:  hasSpan | hasQueue,
	Ended:  hasSpan | hasQueue,
	Cancel: hasID | hasExtras,

	Do:      hasID | hasSpan | hasQueue | hasLock,
	Did:     hasSpan,
	NewCopy: hasID | hasSpan | hasHolders | hasQueue | hasJob | hasRound,
}

// OfJob says whether messages of this kind are about one job. Messages about the same job must
// arrive in the order sent.
func (k Kind) OfJob() bool { return k < kinds && parts[k]&hasID != 0 }

// Append appends a message's bytes.
func (m *Message) Append(b []byte) []byte {
	b = append(b, byte(m.Kind), m.Flags)
	has := parts[m.Kind]
	if has&hasID != 0 {
		b = append(b, m.ID[:]...)
	}
	if has&hasCount != 0 {
		b = binary.AppendUvarint(b, uint64(m.Count))
	}
	if has&hasSpan != 0 {
		b = binary.AppendUvarint(b, uint64(max(m.Span, 0)))
	}
	if has&hasHolders != 0 {
		b = binary.AppendUvarint(b, uint64(len(m.Holders)))
		for _, h := range m.Holders {
			b = binary.BigEndian.AppendUint64(b, uint64(h))
		}
	}
	if has&hasQueue != 0 {
		b = appendBytes(b, m.Queue)
	}
	if has&hasJob != 0 {
		j := &m.Job
		b = binary.LittleEndian.AppendUint64(b, j.CTime)
		for _, v := range [...]uint64{uint64(max(j.Left, 0)), uint64(j.Retry), uint64(j.Delay), uint64(j.Repl), uint64(j.Nacks), uint64(j.Deliveries)} {
			b = binary.AppendUvarint(b, v)
		}
		b = appendBytes(b, j.Body)
		b = appendBytes(b, j.Extras)
	}
	if has&hasPeers != 0 {
		b = binary.AppendUvarint(b, uint64(len(m.Peers)))
		for i := range m.Peers {
			p := &m.Peers[i]
			b = append(b, p.ID[:]...)
			b = append(b, p.State, byte(len(p.Addr)))
			b = append(b, p.Addr...)
		}
	}
	if has&hasRound != 0 {
		b = binary.AppendUvarint(b, m.Round)
	}
	if has&hasMembers != 0 {
		b = binary.BigEndian.AppendUint64(b, m.Members)
	}
	if has&hasLock != 0 {
		b = m.Lock.append(b)
	}
	if has&hasLocks != 0 {
		b = binary.AppendUvarint(b, uint64(len(m.Locks)))
		for i := range m.Locks {
			b = m.Locks[i].append(b)
		}
	}
	if has&hasMore != 0 {
		b = binary.AppendUvarint(b, uint64(len(m.More)))
		ctime := m.Job.CTime
		for i := range m.More {
			s := &m.More[i]
			b = append(b, s.ID[siblingFrom:siblingTo]...)
			b = binary.AppendUvarint(b, s.CTime-ctime)
			b = appendBytes(b, s.Body)
			ctime = s.CTime
		}
	}
	if has&hasExtras != 0 {
		b = appendBytes(b, m.Job.Extras)
	}
	if has&mayReturns != 0 && m.Returns.Told {
		b = binary.AppendUvarint(b, uint64(m.Returns.Nacks))
		b = binary.AppendUvarint(b, uint64(m.Returns.Deliveries))
	}
	if has&mayBounds != 0 && m.Bounds.Line != 0 {
		for _, v := range [...]uint64{m.Bounds.Line, m.Bounds.Told, m.Bounds.Made} {
			b = binary.AppendUvarint(b, v)
		}
	}
	return b
}

func (l *Lock) append(b []byte) []byte {
	b = appendBytes(b, l.Name)
	b = append(b, l.Flags)
	b = binary.AppendUvarint(b, l.Token)
	b = binary.AppendUvarint(b, uint64(max(l.Lease, 0)))
	b = binary.AppendUvarint(b, uint64(max(l.Left, 0)))
	if l.Job != (JobID{}) {
		b = append(b, 1)
		return append(b, l.Job[:]...)
	}
	b = append(b, 0)
	return appendBytes(b, l.Owner)
}

func (r *reader) lock(l *Lock) {
	*l = Lock{Name: r.take(r.uint(MaxLockName, "a lock's name's length"), "a lock's name")}
	if raw := r.take(1, "a lock's flags"); raw != nil {
		l.Flags = raw[0]
	}
	l.Token = r.uint(math.MaxInt64, "a token")
	l.Lease = int64(r.uint(math.MaxInt64/4, "a lease"))
	l.Left = int64(r.uint(math.MaxInt64/4, "the time left of a lease"))
	switch raw := r.take(1, "the kind of holder"); {
	case raw == nil:
	case raw[0] == 0:
		l.Owner = r.take(r.uint(MaxOwner, "an owner's length"), "an owner")
	case raw[0] == 1:
		if copy(l.Job[:], r.take(uint64(len(l.Job)), "a lock's job")); l.Job == (JobID{}) {
			r.fail("a lock's job")
		}
	default:
		r.fail("the kind of holder")
	}
}

func (r *reader) siblings(m *Message) {
	ctime := m.Job.CTime
	for n := r.uint(MaxSiblings, "the number of further jobs"); n > 0 && r.err == nil; n-- {
		s := Sibling{ID: m.ID}
		copy(s.ID[siblingFrom:siblingTo], r.take(siblingTo-siblingFrom, "a further job's ID"))
		ctime += r.uint(math.MaxUint64, "a further job's creation time")
		s.CTime, s.Body = ctime, r.take(r.uint(MaxQueue, "a further body's length"), "a further body")
		if r.err == nil && ctime == 0 {
			r.fail("a further job's creation time")
		}
		m.More = append(m.More, s)
	}
}

func appendBytes(b, v []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

// ErrMessage is the error of bytes that are no message.
var ErrMessage = errors.New("damaged message")

// reader takes a message apart. After the first error it returns zeros.
type reader struct {
	b   []byte
	at  int
	err error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s at byte %d of %d", ErrMessage, what, r.at, len(r.b))
	}
}

func (r *reader) take(n uint64, what string) []byte {
	if r.err != nil || n > uint64(len(r.b)-r.at) {
		r.fail(what + " is cut off")
		return nil
	}
	v := r.b[r.at : r.at+int(n) : r.at+int(n)]
	r.at += int(n)
	return v
}

func (r *reader) uint(limit uint64, what string) uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.at:])
	if n <= 0 || v > limit {
		r.fail(what + " is out of range")
		return 0
	}
	r.at += n
	return v
}

// Parse reads a message from b, and overwrites m with it. m's slices of bytes point into b;
// Holders, Peers, Locks and More reuse the memory that m had for them. Its errors wrap [ErrMessage].
func (m *Message) Parse(b []byte) error {
	r := reader{b: b}
	head := r.take(2, "the head")
	if r.err != nil {
		return r.err
	}
	*m = Message{Kind: Kind(head[0]), Flags: head[1], Holders: m.Holders[:0], Peers: m.Peers[:0], Locks: m.Locks[:0], More: m.More[:0]}
	if m.Kind >= kinds || parts[m.Kind] == 0 {
		r.at = 0
		r.fail(fmt.Sprintf("kind %d", m.Kind))
		return r.err
	}
	has := parts[m.Kind]
	if has&hasID != 0 {
		copy(m.ID[:], r.take(uint64(len(m.ID)), "the job's ID"))
	}
	if has&hasCount != 0 {
		m.Count = uint32(r.uint(math.MaxUint32, "the count"))
	}
	if has&hasSpan != 0 {
		m.Span = int64(r.uint(math.MaxInt64/2, "the span"))
	}
	if has&hasHolders != 0 {
		raw := r.take(8*r.uint(MaxHolders, "the number of holders"), "the list of holders")
		for ; len(raw) > 0; raw = raw[8:] {
			h := Node(binary.BigEndian.Uint64(raw))
			if h == 0 || h&1 != 0 {
				r.fail("a holder")
				break
			}
			m.Holders = append(m.Holders, h)
		}
	}
	if has&hasQueue != 0 {
		m.Queue = r.take(r.uint(MaxQueue, "the queue's length"), "the queue's name")
	}
	if has&hasJob != 0 {
		j := &m.Job
		if raw := r.take(8, "the creation time"); raw != nil {
			j.CTime = binary.LittleEndian.Uint64(raw)
		}
		j.Left = int64(r.uint(math.MaxInt64/2, "the time left"))
		j.Retry = uint32(r.uint(math.MaxInt32, "the retry time"))
		j.Delay = uint32(r.uint(math.MaxInt32, "the delay"))
		j.Repl = uint16(r.uint(math.MaxUint16, "the number of copies"))
		j.Nacks = uint16(r.uint(math.MaxUint16, "the NACKs"))
		j.Deliveries = uint16(r.uint(math.MaxUint16, "the deliveries"))
		j.Body = r.take(r.uint(MaxQueue, "the body's length"), "the body")
		j.Extras = r.take(r.uint(MaxExtras, "the extras' length"), "the extras")
		if r.err == nil && (j.Repl == 0 || j.CTime == 0 || (m.ID[23]&1 == 0) != (j.Retry == 0)) {
			r.fail("the job contradicts itself")
		}
	}
	if has&hasPeers != 0 {
		for n := r.uint(MaxPeers, "the number of nodes"); n > 0 && r.err == nil; n-- {
			var p Peer
			copy(p.ID[:], r.take(uint64(len(p.ID)), "a node's ID"))
			if raw := r.take(2, "a node's state"); raw != nil {
				p.State = raw[0]
				p.Addr = string(r.take(uint64(raw[1]), "a node's address"))
			}
			if p.State > Forgotten || p.ID.Node() == 0 {
				r.fail("a node's state")
			}
			m.Peers = append(m.Peers, p)
		}
		if m.Kind == Failed && len(m.Peers) != 1 {
			r.fail("the number of failed nodes")
		}
	}
	if has&hasRound != 0 {
		m.Round = r.uint(math.MaxUint64, "the round")
	}
	if has&hasMembers != 0 {
		if raw := r.take(8, "the sum of the nodes"); raw != nil {
			m.Members = binary.BigEndian.Uint64(raw)
		}
	}
	if has&hasLock != 0 {
		r.lock(&m.Lock)
	}
	if has&hasLocks != 0 {
		for n := r.uint(MaxLocks, "the number of locks"); n > 0 && r.err == nil; n-- {
			var l Lock
			r.lock(&l)
			m.Locks = append(m.Locks, l)
		}
	}
	if has&hasMore != 0 {
		r.siblings(m)
	}
	if has&hasExtras != 0 {
		m.Job.Extras = r.take(r.uint(MaxExtras, "the extras' length"), "the extras")
	}
	if has&mayReturns != 0 && r.err == nil && r.at < len(b) {
		m.Returns.Nacks = uint16(r.uint(math.MaxUint16, "the NACKs"))
		m.Returns.Deliveries = uint16(r.uint(math.MaxUint16, "the deliveries"))
		m.Returns.Told = true
	}
	if has&mayBounds != 0 && r.err == nil && r.at < len(b) {
		m.Bounds.Line = r.uint(math.MaxUint64, "the line of creation times")
		m.Bounds.Told = r.uint(math.MaxUint64, "the creation time of a promised job")
		m.Bounds.Made = r.uint(math.MaxUint64, "the last creation time")
	}
	if r.err == nil && r.at != len(b) {
		r.fail("bytes left over")
	}
	return r.err
}
