package store

import (
	"unsafe"

	"jobmesh/module/table"
)

// States of a job, with Disque's numbers.
const (
	StateWaitRepl uint8 = iota
	StateActive
	StateQueued
	StateAcked
)

// Flags of a job. Those in volatileFlags are cleared when a job is loaded.
const (
	// FlagDelivered: a client has been given the job, or may have been.
	FlagDelivered uint8 = 1 << iota
	// FlagQueuedOnce: the job has been in a queue before, here or, for a copy, elsewhere.
	FlagQueuedOnce
	// FlagIndexed: a skip-list node of its list's index points at the job. Volatile.
	FlagIndexed
	// FlagOverdue: the job is being worked on, the time it was due has passed, and it stays
	// in that list because its queue takes nothing back ([Store.SetOverdue]). Volatile.
	// A held job has no skip-list node and isn't worked on. So there FlagIndexed and
	// FlagOverdue together are its [Reason].
	FlagOverdue
	// FlagLogged: an effect that is still to be carried out logs the job. Volatile.
	FlagLogged
	// FlagAnnounced: the other holders were told that QTime draws near, or need
	// not be told. Volatile.
	FlagAnnounced
	// FlagOffered: the at-most-once job is being handed over to another node, which
	// TagOffer names. Nobody gets the job here meanwhile. FlagDelivered is set too, for code
	// that doesn't know FlagOffered.
	FlagOffered
	// FlagUncertain (see [Job.Uncertain]) and FlagReturning (see [Job.Returning]) are the
	// same bit. In at-most-once jobs it is FlagUncertain; in all others it is FlagReturning.
	// checkRecord clears FlagReturning, and makes the job StateQueued again unless it was
	// delivered.
	FlagUncertain
	FlagReturning = FlagUncertain

	// FlagUntold is the bit of FlagAnnounced, in a job that is acknowledged. This node heard of the end from one that doesn't know
	// the job, and left it to another holder to count and tell it. Volatile.
	FlagUntold = FlagAnnounced

	flagsReason   = FlagIndexed | FlagOverdue
	volatileFlags = FlagIndexed | FlagOverdue | FlagLogged | FlagAnnounced
)

// Place is the list of its queue that a job is in. It isn't loaded.
type Place uint8

// The places.
const (
	// InHeld: the job is known, and in none of the other lists. This list has no order, but for the jobs at its end: those that are
	// [Delayed], ordered by QTime (delayed.go).
	InHeld Place = iota
	// InWaiting: the job can be fetched. Ordered by priority, then by creation time.
	InWaiting
	// InWorking: somebody works on the job. Ordered by the time it is due.
	InWorking
	// InKeyQueue: the job is queued, but held back: another job with its key has precedence
	// (keyqueue.go). Ordered as those that wait.
	InKeyQueue
	places
)

// Reason says why a job is held; [Store.Count] counts held jobs by it.
type Reason uint8

// The reasons.
const (
	NoReason Reason = iota // not counted
	Delayed                // this node queues it when its time has come
	Deferred               // a client must release it
	Blocked                // the end of other jobs releases it
	Kept                   // it has ended, and its outcome is kept: of an acknowledged job alone
	reasons
)

var reasonFlags = [reasons]uint8{Delayed: FlagIndexed, Deferred: FlagOverdue, Blocked: flagsReason, Kept: FlagIndexed}

// AnnounceMS is how long before a job is queued again its other holders are
// told (WILLQUEUE), in ms, as in Disque.
const AnnounceMS = 500

// RecordFormat is the version of the record that this code writes and reads.
const RecordFormat = 2

// Job is a stored job. Its body, and then its parts, follow it in the same block
// (C: struct jm_job).
type Job struct {
	table.Element[Job] // in the table of jobs, and in the list of its place
	timerNext          *Job
	timerPrev          **Job // what points at us in a slot of the wheel; nil: not armed
	Queue              *Queue

	// The record begins here, and ends with the parts. It is saved as it lies.
	Format     uint8
	State      uint8
	Flags      uint8
	Place      Place
	BodyLen    uint32
	ID         ID
	CTime      uint64 // creation, ms*1e6 plus a sequence; the order in the queue
	QTime      int64  // when to queue it again, unix ms; 0: never
	ETime      int64  // expiry, unix ms
	Retry      uint32 // seconds; 0: at most once
	Delay      uint32 // seconds
	Repl       uint16 // copies asked for
	Nacks      uint16
	Deliveries uint16 // additional ones
	Parts      uint16 // bytes after the body: holders and extras, or 0
}

// List is an ordered list of jobs, with a skip list that finds a place in its middle
// (C: struct jm_list; its nodes: struct jm_skip_node).
type List struct {
	table.List[Job]
	index table.SkipIndex[Job]
}

// Queue is a stored queue (C: struct jm_queue). Operations that visit every queue miss the
// cache once for each line that they read, in each queue. So the fields that such operations
// read are in the first cache line (for SWAPDB), or in the first two.
type Queue struct {
	table.Entry        // chain in the table of queues
	hash        uint64 // of the name, where it has one
	DB          int32
	Waiters     uint32
	Pause       uint8
	Flags       uint8
	state       uint8
	ever        uint8  // everParts, everPriorities, everDead
	flushes     uint32 // Store.flushes when it was attached
	listed      uint32 // see Listed
	working     uint32 // Working.Len
	Overdue     uint32 // how many jobs in Working have FlagOverdue
	row         uint32 // its index in Store.rows, while it is attached
	HeldBack    uint64 // how many jobs are held back in per-key queues
	ATime       int64  // unix ms

	Held    table.List[Job] // the held jobs: those in no other list
	Uniques uint64          // how many jobs are unique
	List                    // the waiting jobs, the most urgent first, and of those the oldest

	Working         List  // jobs that are being worked on, ordered by when they are due
	Created         int64 // unix ms
	JobsIn, JobsOut uint64
	Bytes           uint64               // memory of jobs, skip lists and per-key queues
	KeyQueues       table.List[KeyQueue] // per-key queues, of unique jobs that run one at a time
	Box             unsafe.Pointer       // the key's value, which owns the queue; nil: detached
	Key             unsafe.Pointer       // the server's string of the name
	name            unsafe.Pointer
	nameLen         uint32
	counted         [reasons - 1]uint32     // see Count
	here            [Kept - Deferred]uint32 // see CountHere
	levels          *levels                 // see enterLevel; nil: no job ever had a priority
	keptBytes       uint64                  // of the results of jobs that are Kept
	Unrated         uint32                  // the generation of settings (package engine) that say no rate for the queue
	Flush           uint32                  // the number of the queue's last flush (package engine); 0: there was none
	delayed         *delayedOrder           // nil: no job is delayed
	dead            uint64                  // dead letters among the jobs that can be fetched
}

// These bits tell what a queue ever had: jobs with holders or extras (AnyParts), with a priority, and dead letters.
const (
	everParts uint8 = 1 << iota
	everPriorities
	everDead
)

// States of a queue, not saved.
const (
	queueLoose    uint8 = iota // not in the table of queues; Lookup doesn't find its jobs
	queueAttached              // in the table
	queueUnlinked              // to be freed, in Store.toFree
)

const (
	jobSize      = int(unsafe.Sizeof(Job{}))
	recordOffset = int(unsafe.Offsetof(Job{}.Format))
	recordHead   = jobSize - recordOffset
	queueSize    = int(unsafe.Sizeof(Queue{}))
)

// MaxBody is the greatest length of a body, in bytes. With it a record's length still
// fits into 32 bits. The server's own limit is lower, unless somebody raises
// proto-max-bulk-len.
const MaxBody = 1<<31 - 1

// Allocator is where the store takes memory from.
type Allocator = table.Allocator

// Size is the memory a job takes.
func (j *Job) Size() int { return jobSize + int(j.BodyLen) + int(j.Parts) }

// Body is the job's body; valid as long as the job.
func (j *Job) Body() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(j), jobSize)), int(j.BodyLen))
}

// Record is the job as it is saved; valid as long as the job.
func (j *Job) Record() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(j), recordOffset)), recordHead+int(j.BodyLen)+int(j.Parts))
}

// StateRecord is the record without body and parts.
func (j *Job) StateRecord() []byte { return j.Record()[:recordHead] }

// Awake is when the job next needs attention, in unix ms: its expiry, or QTime if that is
// earlier. At QTime the job is queued, or the next step of its replication or of the
// collection of its acknowledgements is due. Where other holders must first be told of the
// queueing, it is AnnounceMS before QTime.
func (j *Job) Awake() int64 {
	if j.State == StateQueued || j.QTime == 0 || j.State == StateActive && j.neverAgain() {
		return j.ETime
	}
	at := j.QTime
	if j.Parts > 0 && j.State == StateActive && j.Flags&FlagAnnounced == 0 && j.Retry > 0 && j.Holders() > 0 {
		at -= AnnounceMS
	}
	return min(at, j.ETime)
}

// neverAgain says whether no timer queues an active job. It is so for an at-most-once job
// that was delivered (its QTime is when that was), and for an overdue job.
func (j *Job) neverAgain() bool {
	return j.Retry == 0 && j.Flags&FlagDelivered != 0 || j.Overdue()
}

// Overdue says whether the job was marked by [Store.SetOverdue].
func (j *Job) Overdue() bool { return j.Place == InWorking && j.Flags&FlagOverdue != 0 }

// Uncertain says whether an at-most-once job may have been delivered without this node
// knowing it: its saved state may lack the delivery, or another node may have delivered it.
// An uncertain job counts as delivered.
func (j *Job) Uncertain() bool { return j.Retry == 0 && j.Flags&FlagUncertain != 0 }

// Returning says whether the job was queued when it was saved, and is to be queued again
// once its other holders have been asked. That queueing isn't counted as a delivery.
func (j *Job) Returning() bool { return j.Retry > 0 && j.Flags&FlagReturning != 0 }

// Jobs counts the queue's jobs, in any state.
func (q *Queue) Jobs() uint64 { return q.Len + q.Working.Len + q.Held.Len + q.HeldBack }

// Waiting counts the queued jobs: those that can be fetched, and those held back.
func (q *Queue) Waiting() uint64 { return q.Len + q.HeldBack }

// Counted is how many of the queue's held jobs have this reason ([Store.Count]). It must
// not be NoReason.
func (q *Queue) Counted(r Reason) uint64 { return uint64(q.counted[r-1]) }

// CountedHere is how many of the queue's jobs with this reason, Deferred or Blocked, this node counts for the mesh
// ([Store.CountHere]).
func (q *Queue) CountedHere(r Reason) uint64 { return uint64(q.here[r-Deferred]) }

// Dead counts the dead letters among the queue's jobs that can be fetched.
func (q *Queue) Dead() uint64 { return q.dead }

// AnyCounted says whether any held job of the queue is counted by a [Reason].
func (q *Queue) AnyCounted() bool { return q.counted != [len(q.counted)]uint32{} }

// Kept says whether the job has ended, and its outcome is kept. Its body is then its result.
func (j *Job) Kept() bool {
	return j.State == StateAcked && j.Parts != 0 && len(j.Extra(TagEnd)) >= EndLen
}

// NameBytes is the queue's name; valid until it is renamed.
func (q *Queue) NameBytes() []byte { return unsafe.Slice((*byte)(q.name), int(q.nameLen)) }

// Field is one field of a structure, for the comparison with C.
type Field struct {
	Name         string
	Offset, Size uintptr
}

// Layout lists the fields of the structures that C shares, under their C names.
func Layout() []Field {
	var j Job
	var t table.SkipNode[Job]
	var l List
	var q Queue
	var k Lock
	var all LockList
	var n KeyQueue
	var d delayedOrder
	return []Field{
		{"jm_job", 0, unsafe.Sizeof(j)},
		{"jm_job.hash_next", unsafe.Offsetof(j.Entry), unsafe.Sizeof(j.Entry)},
		{"jm_job.next", unsafe.Offsetof(j.Next), unsafe.Sizeof(j.Next)},
		{"jm_job.prev", unsafe.Offsetof(j.Prev), unsafe.Sizeof(j.Prev)},
		{"jm_job.timer_next", unsafe.Offsetof(j.timerNext), unsafe.Sizeof(j.timerNext)},
		{"jm_job.timer_prev", unsafe.Offsetof(j.timerPrev), unsafe.Sizeof(j.timerPrev)},
		{"jm_job.queue", unsafe.Offsetof(j.Queue), unsafe.Sizeof(j.Queue)},
		{"jm_job.format", unsafe.Offsetof(j.Format), unsafe.Sizeof(j.Format)},
		{"jm_job.state", unsafe.Offsetof(j.State), unsafe.Sizeof(j.State)},
		{"jm_job.flags", unsafe.Offsetof(j.Flags), unsafe.Sizeof(j.Flags)},
		{"jm_job.place", unsafe.Offsetof(j.Place), unsafe.Sizeof(j.Place)},
		{"jm_job.body_len", unsafe.Offsetof(j.BodyLen), unsafe.Sizeof(j.BodyLen)},
		{"jm_job.id", unsafe.Offsetof(j.ID), unsafe.Sizeof(j.ID)},
		{"jm_job.ctime", unsafe.Offsetof(j.CTime), unsafe.Sizeof(j.CTime)},
		{"jm_job.qtime", unsafe.Offsetof(j.QTime), unsafe.Sizeof(j.QTime)},
		{"jm_job.etime", unsafe.Offsetof(j.ETime), unsafe.Sizeof(j.ETime)},
		{"jm_job.retry", unsafe.Offsetof(j.Retry), unsafe.Sizeof(j.Retry)},
		{"jm_job.delay", unsafe.Offsetof(j.Delay), unsafe.Sizeof(j.Delay)},
		{"jm_job.repl", unsafe.Offsetof(j.Repl), unsafe.Sizeof(j.Repl)},
		{"jm_job.nacks", unsafe.Offsetof(j.Nacks), unsafe.Sizeof(j.Nacks)},
		{"jm_job.deliveries", unsafe.Offsetof(j.Deliveries), unsafe.Sizeof(j.Deliveries)},
		{"jm_job.parts", unsafe.Offsetof(j.Parts), unsafe.Sizeof(j.Parts)},
		{"jm_skip_node", 0, unsafe.Sizeof(t)},
		{"jm_skip_node.job", unsafe.Offsetof(t.Of), unsafe.Sizeof(t.Of)},
		{"jm_skip_node.level", unsafe.Offsetof(t.Height), unsafe.Sizeof(t.Height)},
		{"jm_list", 0, unsafe.Sizeof(l)},
		{"jm_list.head", unsafe.Offsetof(l.Head), unsafe.Sizeof(l.Head)},
		{"jm_list.tail", unsafe.Offsetof(l.Tail), unsafe.Sizeof(l.Tail)},
		{"jm_list.len", unsafe.Offsetof(l.Len), unsafe.Sizeof(l.Len)},
		{"jm_list.index", unsafe.Offsetof(l.index) + unsafe.Offsetof(l.index.Head), unsafe.Sizeof(l.index.Head)},
		{"jm_list.index_tail", unsafe.Offsetof(l.index) + unsafe.Offsetof(l.index.Tail), unsafe.Sizeof(l.index.Tail)},
		{"jm_key_queue", 0, unsafe.Sizeof(n)},
		{"jm_key_queue.hash_next", unsafe.Offsetof(n.Entry), unsafe.Sizeof(n.Entry)},
		{"jm_key_queue.next", unsafe.Offsetof(n.Next), unsafe.Sizeof(n.Next)},
		{"jm_key_queue.prev", unsafe.Offsetof(n.Prev), unsafe.Sizeof(n.Prev)},
		{"jm_key_queue.queue", unsafe.Offsetof(n.Queue), unsafe.Sizeof(n.Queue)},
		{"jm_key_queue.hash", unsafe.Offsetof(n.hash), unsafe.Sizeof(n.hash)},
		{"jm_key_queue.list", unsafe.Offsetof(n.list), unsafe.Sizeof(n.list)},
		{"jm_queue", 0, unsafe.Sizeof(q)},
		{"jm_queue.hash_next", unsafe.Offsetof(q.Entry), unsafe.Sizeof(q.Entry)},
		{"jm_queue.hash", unsafe.Offsetof(q.hash), unsafe.Sizeof(q.hash)},
		{"jm_queue.box", unsafe.Offsetof(q.Box), unsafe.Sizeof(q.Box)},
		{"jm_queue.key", unsafe.Offsetof(q.Key), unsafe.Sizeof(q.Key)},
		{"jm_queue.waiting", unsafe.Offsetof(q.List), unsafe.Sizeof(q.List)},
		{"jm_queue.working", unsafe.Offsetof(q.Working), unsafe.Sizeof(q.Working)},
		{"jm_queue.held", unsafe.Offsetof(q.Held), unsafe.Sizeof(q.Held)},
		{"jm_queue.key_queues", unsafe.Offsetof(q.KeyQueues), unsafe.Sizeof(q.KeyQueues)},
		{"jm_queue.held_back", unsafe.Offsetof(q.HeldBack), unsafe.Sizeof(q.HeldBack)},
		{"jm_queue.uniques", unsafe.Offsetof(q.Uniques), unsafe.Sizeof(q.Uniques)},
		{"jm_queue.bytes", unsafe.Offsetof(q.Bytes), unsafe.Sizeof(q.Bytes)},
		{"jm_queue.overdue", unsafe.Offsetof(q.Overdue), unsafe.Sizeof(q.Overdue)},
		{"jm_queue.created", unsafe.Offsetof(q.Created), unsafe.Sizeof(q.Created)},
		{"jm_queue.atime", unsafe.Offsetof(q.ATime), unsafe.Sizeof(q.ATime)},
		{"jm_queue.jobs_in", unsafe.Offsetof(q.JobsIn), unsafe.Sizeof(q.JobsIn)},
		{"jm_queue.jobs_out", unsafe.Offsetof(q.JobsOut), unsafe.Sizeof(q.JobsOut)},
		{"jm_queue.waiters", unsafe.Offsetof(q.Waiters), unsafe.Sizeof(q.Waiters)},
		{"jm_queue.db", unsafe.Offsetof(q.DB), unsafe.Sizeof(q.DB)},
		{"jm_queue.pause", unsafe.Offsetof(q.Pause), unsafe.Sizeof(q.Pause)},
		{"jm_queue.flags", unsafe.Offsetof(q.Flags), unsafe.Sizeof(q.Flags)},
		{"jm_queue.state", unsafe.Offsetof(q.state), unsafe.Sizeof(q.state)},
		{"jm_queue.flushes", unsafe.Offsetof(q.flushes), unsafe.Sizeof(q.flushes)},
		{"jm_queue.name_len", unsafe.Offsetof(q.nameLen), unsafe.Sizeof(q.nameLen)},
		{"jm_queue.name", unsafe.Offsetof(q.name), unsafe.Sizeof(q.name)},
		{"jm_queue.counted", unsafe.Offsetof(q.counted), unsafe.Sizeof(q.counted)},
		{"jm_queue.here", unsafe.Offsetof(q.here), unsafe.Sizeof(q.here)},
		{"jm_queue.levels", unsafe.Offsetof(q.levels), unsafe.Sizeof(q.levels)},
		{"jm_queue.kept_bytes", unsafe.Offsetof(q.keptBytes), unsafe.Sizeof(q.keptBytes)},
		{"jm_queue.unrated", unsafe.Offsetof(q.Unrated), unsafe.Sizeof(q.Unrated)},
		{"jm_queue.delayed", unsafe.Offsetof(q.delayed), unsafe.Sizeof(q.delayed)},
		{"jm_queue.dead", unsafe.Offsetof(q.dead), unsafe.Sizeof(q.dead)},
		{"jm_delayed", 0, unsafe.Sizeof(d)},
		{"jm_delayed.first", unsafe.Offsetof(d.first), unsafe.Sizeof(d.first)},
		{"jm_delayed.index", unsafe.Offsetof(d.index) + unsafe.Offsetof(d.index.Head), unsafe.Sizeof(d.index.Head)},
		{"jm_delayed.index_tail", unsafe.Offsetof(d.index) + unsafe.Offsetof(d.index.Tail), unsafe.Sizeof(d.index.Tail)},
		{"jm_lock", 0, unsafe.Sizeof(k)},
		{"jm_lock.hash_next", unsafe.Offsetof(k.Entry), unsafe.Sizeof(k.Entry)},
		{"jm_lock.next", unsafe.Offsetof(k.Next), unsafe.Sizeof(k.Next)},
		{"jm_lock.prev", unsafe.Offsetof(k.Prev), unsafe.Sizeof(k.Prev)},
		{"jm_lock.token", unsafe.Offsetof(k.Token), unsafe.Sizeof(k.Token)},
		{"jm_lock.until", unsafe.Offsetof(k.Until), unsafe.Sizeof(k.Until)},
		{"jm_lock.lease", unsafe.Offsetof(k.Lease), unsafe.Sizeof(k.Lease)},
		{"jm_lock.job", unsafe.Offsetof(k.Job), unsafe.Sizeof(k.Job)},
		{"jm_lock.flags", unsafe.Offsetof(k.Flags), unsafe.Sizeof(k.Flags)},
		{"jm_lock.format", unsafe.Offsetof(k.format), unsafe.Sizeof(k.format)},
		{"jm_lock.name_len", unsafe.Offsetof(k.nameLen), unsafe.Sizeof(k.nameLen)},
		{"jm_lock.owner_len", unsafe.Offsetof(k.ownerLen), unsafe.Sizeof(k.ownerLen)}, {"jm_lock.by", unsafe.Offsetof(k.By), unsafe.Sizeof(k.By)},
		{"jm_lock.era", unsafe.Offsetof(k.Era), unsafe.Sizeof(k.Era)},
		{"jm_lock_list", 0, unsafe.Sizeof(all)},
		{"jm_lock_list.head", unsafe.Offsetof(all.Head), unsafe.Sizeof(all.Head)},
		{"jm_lock_list.tail", unsafe.Offsetof(all.Tail), unsafe.Sizeof(all.Tail)},
		{"jm_lock_list.len", unsafe.Offsetof(all.Len), unsafe.Sizeof(all.Len)},
		{"jm_lock_list.bytes", unsafe.Offsetof(all.Bytes), unsafe.Sizeof(all.Bytes)},
		{"jm_lock_list.floor", unsafe.Offsetof(all.Floor), unsafe.Sizeof(all.Floor)},
		{"jm_lock_list.complete", unsafe.Offsetof(all.Complete), unsafe.Sizeof(all.Complete)},
		{"jm_lock_list.epoch", unsafe.Offsetof(all.Epoch), unsafe.Sizeof(all.Epoch)},
		{"jm_lock_list.others", unsafe.Offsetof(all.Others), unsafe.Sizeof(all.Others)},
	}
}
