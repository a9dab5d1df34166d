package store

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"unsafe"

	"jobmesh/module/table"
)

// Store holds jobs and queues.
type Store struct {
	alloc      Allocator
	keys       keys
	jobs       table.Table // of Job
	queues     table.Table // of Queue
	rows       []*Queue    // the attached queues, mostly in the order in which they lie in memory: so a walk is faster
	moves      uint64      // how often queues were attached, or detached
	found      *Queue      // the queue that was found last, if no queue has moved since: moves is foundAt
	foundAt    uint64
	locks      table.Index // of Lock
	lockList   *LockList
	lockWalk   *Lock       // the next lock for [Store.WalkLock]
	LockAge    uint16      // the Age that new locks get (package lock)
	keyQueues  table.Index // of KeyQueue
	rings      table.Index // of the first of each ring; has no segments until there is a ring
	toPromote  []*KeyQueue
	waking     []*ring // the first of each ring that has some left to wake
	wakesAll   bool    // a slot above 0 is free: see Taken
	heldBack   uint64
	fetchable  uint64              // jobs in the lists of attached queues
	dead       uint64              // dead letters among them
	inserted   ID                  // the job that was put into the middle of a list last; it may be gone
	counted    [reasons - 1]uint64 // see Counted
	keptBytes  uint64              // see KeptBytes
	nameBuf    []byte
	extrasBuf  []byte // of SetExtra
	wheel      wheel
	generation uint32 // grows with each Forget
	freed      uint64 // see Freed
	flushes    *uint32
	parts      bool // see AnyParts
	condemned  []*condemned
	toFree     []*Queue
	hidden     *Queue

	working, overdue uint64 // in attached queues

	edges edgeTable
	done  *done
}

// keys are the keys of a store's hashes. No key may reveal another: any ID that a client sees gives away id, which only
// orders the IDs of an [IDMaker], and a client that had the key for names could make queue names that all fall into one
// bucket.
type keys struct {
	id, name, height uint64
	mix              [6]uint64 // for all of an ID; odd, since some multiply
}

func newKeys(seed uint64) (k keys) {
	var wide [32]byte
	binary.LittleEndian.PutUint64(wide[:], seed)
	r := rand.NewChaCha8(wide)
	k.id, k.name, k.height = r.Uint64(), r.Uint64(), r.Uint64()
	for i := range k.mix {
		k.mix[i] = r.Uint64() | 1
	}
	return k
}

// New makes an empty store. The keys of its hashes are made from seed, which should be
// random. now is the time in unix ms.
func New(alloc Allocator, seed uint64, now int64) *Store {
	s := &Store{alloc: alloc, keys: newKeys(seed), generation: 1}
	s.flushes = (*uint32)(alloc.Alloc(8))
	*s.flushes = 1 // 0 is for queues that were loaded empty, see CondemnEmpty
	s.begin(now)
	s.initLocks()
	return s
}

func (s *Store) begin(now int64) {
	s.jobs.Init(s.alloc, func(e *table.Entry) uint64 { return s.hashID(&jobOf(e).ID) })
	s.queues.Init(s.alloc, func(e *table.Entry) uint64 { return queueOf(e).hash })
	s.initKeyQueues()
	s.wheel.init(s.alloc, now)
	s.hidden = s.AllocQueue(now)
	s.hidden.state, s.hidden.flushes = queueAttached, *s.flushes
}

// Hidden is a queue for jobs of which only the ID is known. It is in no key, and no scan
// shows it.
func (s *Store) Hidden() *Queue { return s.hidden }

// IDMaker returns a maker of IDs. IDs that it makes one after the other lie one after the
// other in this store's table of jobs.
func (s *Store) IDMaker(node [4]byte) *IDMaker { return &IDMaker{Node: node, keys: s.keys} }

// NewJob allocates an unregistered job with room for a body of bodyLen bytes, at most
// [MaxBody], and for this many holders. It copies extras, at most [MaxExtras] bytes, which
// must come from [AppendExtra] or have passed [CheckExtras].
func (s *Store) NewJob(bodyLen, holders int, extras []byte) *Job {
	j := s.alloced(bodyLen, partsLen(holders, len(extras)))
	if p := j.RawParts(); p != nil {
		clear(p)
		j.putExtras(extras)
	}
	return j
}

func partsLen(holders, extras int) int {
	if holders+extras == 0 {
		return 0
	}
	return partsHead + min(holders, holderRoom(math.MaxUint16, extras))*holderLen + extras
}

func (s *Store) alloced(bodyLen, parts int) *Job {
	if bodyLen < 0 || bodyLen > MaxBody {
		panic(fmt.Sprintf("store: a job's body can't have %d bytes", bodyLen))
	}
	j := (*Job)(s.alloc.Alloc(jobSize + bodyLen + parts))
	*j = Job{Format: RecordFormat, BodyLen: uint32(bodyLen), Parts: uint16(parts)}
	return j
}

// FreeJob frees a job that isn't registered.
func (s *Store) FreeJob(j *Job) {
	s.freed++
	s.alloc.Free(unsafe.Pointer(j), j.Size())
}

// Freed counts the jobs that were freed, or moved to other memory, since the start. While
// the count stays the same, every pointer to a job stays valid.
func (s *Store) Freed() uint64 { return s.freed }

func (s *Store) find(id *ID) *Job {
	for e := s.jobs.First(s.hashID(id)); e != nil; e = e.Next {
		if j := jobOf(e); j.ID == *id {
			return j
		}
	}
	return nil
}

// Lookup finds a job; nil if it isn't known, or its queue isn't attached.
func (s *Store) Lookup(id *ID) *Job {
	if j := s.find(id); j != nil && j.Queue.state == queueAttached {
		return j
	}
	return nil
}

// Detached says whether a job is in the table, and its queue is detached.
func (s *Store) Detached(id *ID) bool { return s.LookupDetached(id) != nil }

// LookupDetached finds a job that is [Store.Detached].
func (s *Store) LookupDetached(id *ID) *Job {
	if j := s.find(id); j != nil && j.Queue.state == queueLoose {
		return j
	}
	return nil
}

// Oust frees a job that is [Store.Detached], to make room for another with the same ID. It says
// whether there was one.
func (s *Store) Oust(id *ID) bool {
	j := s.LookupDetached(id)
	if j == nil {
		return false
	}
	s.Remove(j)
	return true
}

// Listed says whether the jobs of a detached queue are in the table of jobs. They aren't if
// the queue was loaded and never attached, or was detached when [Store.Forget] was called.
func (s *Store) Listed(q *Queue) bool { return q.listed == s.generation }

// Jobs counts the jobs in the table.
func (s *Store) Jobs() uint64 { return s.jobs.Len }

// Queues counts the attached queues.
func (s *Store) Queues() uint64 { return s.queues.Len }

// Register makes a job known and puts it at the end of the queue's held list. If its ID is
// known already, Register does nothing and returns false.
func (s *Store) Register(q *Queue, j *Job) bool {
	if !s.enter(j) {
		return false
	}
	s.LoadInto(q, j)
	return true
}

// RegisterNew is Register for a job whose ID was just made. No other job has that ID (see
// [IDMaker]), and looking for one would cost a cache miss.
func (s *Store) RegisterNew(q *Queue, j *Job) {
	s.jobs.Insert(&j.Entry, s.hashID(&j.ID))
	s.LoadInto(q, j)
}

// enter puts a job into the table of jobs. It returns false if a job with the same ID is
// there; but one in a queue that is to be freed makes room.
func (s *Store) enter(j *Job) bool {
	if old := s.find(&j.ID); old != nil {
		if old.Queue.state != queueUnlinked {
			return false
		}
		s.Remove(old)
	}
	s.jobs.Insert(&j.Entry, s.hashID(&j.ID))
	return true
}

// LoadInto puts a job into the held list of a queue. It doesn't make the job known.
func (s *Store) LoadInto(q *Queue, j *Job) {
	j.Queue = q
	q.Bytes += uint64(j.Size())
	if j.Unique() != nil {
		q.Uniques++
	}
	if j.Parts > 0 {
		s.noteParts(q, j.Extras())
	}
	q.hold(j)
}

// noteParts notes what a queue has to look at from now on, because a job of it has parts with these extras.
func (s *Store) noteParts(q *Queue, extras []byte) {
	s.parts = true
	q.ever |= everParts
	if q.ever&everPriorities == 0 && PriorityIn(extras) != 0 {
		q.ever |= everPriorities
	}
	if q.ever&everDead == 0 && deadIn(extras) {
		q.ever |= everDead
	}
}

// AnyParts says whether any job ever had holders or extras. If not, no job is unique or
// waits for another.
func (s *Store) AnyParts() bool { return s.parts }

// AnyParts is [Store.AnyParts] for one queue.
func (q *Queue) AnyParts() bool { return q.ever&everParts != 0 }

// AnyPriorities says whether any of the queue's jobs ever had a priority.
func (q *Queue) AnyPriorities() bool { return q.ever&everPriorities != 0 }

// Remove forgets a job and frees it.
func (s *Store) Remove(j *Job) {
	s.Disarm(j)
	s.removeEdges(j)
	s.jobs.Remove(&j.Entry, s.hashID(&j.ID))
	s.free(j)
}

// free takes a job out of its queue and frees it.
func (s *Store) free(j *Job) {
	q := j.Queue
	s.withdraw(q, j)
	s.discard(q, j)
}

// discard frees a job that is in none of its queue's lists.
func (s *Store) discard(q *Queue, j *Job) {
	q.Bytes -= uint64(j.Size())
	if j.Unique() != nil {
		q.Uniques--
	}
	s.FreeJob(j)
}

// Push moves a job into the waiting list, at the place that its creation time
// gives it, and makes its state queued.
func (s *Store) Push(j *Job) {
	s.withdraw(j.Queue, j)
	j.State, j.Place = StateQueued, InWaiting
	s.insert(j.Queue, &j.Queue.List, j)
}

// Work moves a job into the list of jobs that are worked on, at the place that the time it
// is due gives it, and makes its state active. A job that is there already moves to its new
// place. While a job is there, only Work may change its QTime.
func (s *Store) Work(j *Job, qtime int64) {
	s.withdraw(j.Queue, j)
	j.State, j.Place, j.QTime = StateActive, InWorking, qtime
	s.insert(j.Queue, &j.Queue.Working, j)
}

// Hold moves a job into the held list, and makes a queued one active. A job that is held
// already stays as it is: a loaded one may be in the state queued.
func (s *Store) Hold(j *Job) {
	if j.Place == InHeld {
		return
	}
	s.withdraw(j.Queue, j)
	j.Queue.hold(j)
	if j.State == StateQueued {
		j.State = StateActive
	}
}

// HoldAll moves all jobs of a queue into its held list, where none is counted as delayed. They keep their states, as jobs that
// were loaded do. It stops when pause says so, and says whether all are held.
func (s *Store) HoldAll(q *Queue, pause func() bool) (done bool) {
	hold := func(j *Job) {
		state := j.State
		s.Hold(j)
		j.State = state
	}
	for q.Head != nil {
		if hold(q.Head); pause() {
			return false
		}
	}
	for l := q.KeyQueues.Head; l != nil; {
		next := l.Next
		if l.list != nil {
			for n := l.list.Len; n > 0; n-- { // with the last one the per-key queue is gone
				if hold(l.Head()); pause() {
					return false
				}
			}
		}
		l = next
	}
	for q.Working.Head != nil {
		if hold(q.Working.Head); pause() {
			return false
		}
	}
	return s.UncountDelayed(q, pause)
}

// UncountDelayed takes the reason from all delayed jobs of a queue, which the engine is to settle anew. It stops when pause says so, and says
// whether none is left.
func (s *Store) UncountDelayed(q *Queue, pause func() bool) (done bool) {
	for q.delayed != nil {
		if s.Count(q.delayed.first, NoReason); pause() {
			return false
		}
	}
	return true
}

// MoveTo moves a job to another attached queue, where it is held.
func (s *Store) MoveTo(j *Job, q *Queue) {
	s.leaveQueue(j)
	s.LoadInto(q, j)
}

// MoveAs is MoveTo for a job that gets other extras, as by [Store.Rewrite]. The job moves in memory: use the returned one from then on.
func (s *Store) MoveAs(j *Job, q *Queue, extras []byte) *Job {
	s.leaveQueue(j)
	k := s.copied(j, partsLen(j.Holders(), len(extras)), j.Body(), extras)
	s.supplant(j, k)
	s.LoadInto(q, k)
	return k
}

// leaveQueue takes a job out of its queue, which doesn't count it any more.
func (s *Store) leaveQueue(j *Job) {
	s.withdraw(j.Queue, j)
	j.Queue.Bytes -= uint64(j.Size())
	if j.Unique() != nil {
		j.Queue.Uniques--
	}
}

// Queue finds an attached queue; nil where there is none of that name.
func (s *Store) Queue(name []byte) *Queue {
	if s.foundAt == s.moves && s.found != nil && string(s.found.NameBytes()) == string(name) {
		return s.found
	}
	h := s.hashQueue(name)
	for e := s.queues.First(h); e != nil; e = e.Next {
		if q := queueOf(e); q.hash == h && string(q.NameBytes()) == string(name) {
			s.found, s.foundAt = q, s.moves
			return q
		}
	}
	return nil
}

// hashQueue hashes a queue's name. A long name is hashed by its SHA-256, because the name of
// a lock has only that of it (lockQueue).
func (s *Store) hashQueue(name []byte) uint64 {
	if len(name) >= longKey {
		sum := sha256.Sum256(name)
		name = sum[:]
	}
	return s.hashName(name)
}

// lockQueue finds the attached queue whose lock has this name; nil where there is none.
func (s *Store) lockQueue(lock []byte) *Queue {
	if lock[1] == 'q' {
		return s.Queue(lock[3:][:lock[2]])
	}
	sum := [sha256.Size]byte(lock[2:])
	h := s.hashName(sum[:])
	for e := s.queues.First(h); e != nil; e = e.Next {
		if q := queueOf(e); q.hash == h && len(q.NameBytes()) >= longKey && sha256.Sum256(q.NameBytes()) == sum {
			return q
		}
	}
	return nil
}

// AllocQueue makes a loose queue without a name.
func (s *Store) AllocQueue(now int64) *Queue {
	q := (*Queue)(s.alloc.Alloc(queueSize))
	*q = Queue{Created: now, ATime: now}
	return q
}

// NewQueue makes a queue and attaches it; there must be none of that name.
func (s *Store) NewQueue(name []byte, now int64) *Queue {
	q := s.AllocQueue(now)
	s.Attach(q, name)
	return q
}

// Rename gives a queue that isn't attached another name.
func (s *Store) Rename(q *Queue, name []byte) {
	if q.name != nil && string(q.NameBytes()) == string(name) {
		return
	}
	p := s.alloc.Alloc(max(len(name), 1))
	copy(unsafe.Slice((*byte)(p), len(name)), name)
	s.freeName(q)
	q.name, q.nameLen, q.hash = p, uint32(len(name)), s.hashQueue(name)
}

func (s *Store) freeName(q *Queue) {
	if q.name != nil {
		s.alloc.Free(q.name, max(int(q.nameLen), 1))
	}
}

// Attach makes a loose queue and its jobs known under a name. It drops jobs whose IDs are
// known already, and returns how many. It takes O(1) time for a queue that was only
// detached, and walks through the jobs of one that was loaded.
func (s *Store) Attach(q *Queue, name []byte) (dropped int) {
	s.Rename(q, name)
	return s.Reattach(q)
}

// Reattach is Attach for a queue that has its name.
func (s *Store) Reattach(q *Queue) (dropped int) {
	known := s.Listed(q)
	q.state, q.flushes = queueAttached, *s.flushes
	s.heldBack += q.HeldBack
	s.queues.Insert(&q.Entry, q.hash)
	q.row = uint32(len(s.rows))
	s.rows = append(s.rows, q)
	s.moves++
	s.working += uint64(q.working)
	s.overdue += uint64(q.Overdue)
	s.fetchable += q.Len
	s.dead += q.dead
	for i, n := range q.counted {
		s.counted[i] += uint64(n)
	}
	s.keptBytes += q.keptBytes
	if known {
		return 0
	}
	return s.enterQueue(q)
}

// List puts the jobs of a detached queue into the table of jobs, unless it is [Store.Listed].
// It drops jobs whose IDs are known already, and returns how many.
func (s *Store) List(q *Queue) (dropped int) {
	if s.Listed(q) {
		return 0
	}
	q.listed = s.generation
	return s.enterQueue(q)
}

// enterQueue makes all jobs and per-key queues of a queue known.
func (s *Store) enterQueue(q *Queue) (dropped int) {
	for l := q.KeyQueues.Head; l != nil; l = l.Next {
		s.enterKeyQueue(l)
	}
	for _, first := range []*Job{q.Head, q.Working.Head, q.Held.Head} {
		dropped += s.enterAll(first)
	}
	var next *KeyQueue
	for l := q.KeyQueues.Head; l != nil; l = next {
		next = l.Next
		dropped += s.enterAll(l.Head())
	}
	return dropped
}

// enterAll makes the jobs of a list known and arms their timers. It drops jobs whose IDs are
// known already, and returns how many.
func (s *Store) enterAll(first *Job) (dropped int) {
	var next *Job
	for j := first; j != nil; j = next {
		next = j.Next
		j.timerPrev = nil
		if !s.enter(j) {
			s.free(j)
			dropped++
			continue
		}
		s.Arm(j)
	}
	return dropped
}

// Detach makes an attached queue and its jobs unknown, until it is attached again. It takes
// O(1) time.
func (s *Store) Detach(q *Queue) {
	s.moves++
	s.queues.Remove(&q.Entry, q.hash)
	last := len(s.rows) - 1
	s.rows[q.row] = s.rows[last]
	s.rows[q.row].row = q.row
	if s.rows = s.rows[:last]; last > 1024 && last < cap(s.rows)/4 {
		s.rows = slices.Clone(s.rows)
	}
	s.detach(q)
}

// DetachAll detaches all attached queues, calls visit for each, and returns them.
func (s *Store) DetachAll(visit func(*Queue)) []*Queue {
	all := s.rows
	s.moves++
	for q := range Warmed(all, 1) {
		q.state, q.listed = queueLoose, s.generation
		visit(q)
	}
	s.rows = nil
	s.working, s.overdue, s.heldBack, s.fetchable, s.dead = 0, 0, 0, 0, 0
	s.counted, s.keptBytes = [reasons - 1]uint64{}, 0
	s.queues.Clear()
	return all
}

// Returning makes room for queues, and yields them. No queue may be attached when it is
// called. It yields a queue only after the memory that [Store.Reattach] reads had time to
// come into the cache.
func (s *Store) Returning(queues []*Queue) iter.Seq[*Queue] {
	s.queues.Expect(uint64(len(queues)))
	s.rows = slices.Grow(s.rows, len(queues))
	return func(yield func(*Queue) bool) {
		i := 0
		for q := range Warmed(queues, 1) {
			if i++; i+warmAhead/2 < len(queues) {
				s.queues.Warm(queues[i+warmAhead/2].hash)
			}
			if !yield(q) {
				return
			}
		}
	}
}

// Moves counts how often queues were attached, or detached.
func (s *Store) Moves() uint64 { return s.moves }

// QueuesBelow yields the attached queues in the rows below row, the last row first, with
// their rows. A walk may go on later from the row that it has reached. It then misses only
// queues that were attached since: the place of a queue that is detached is filled from the
// end, with a queue that was yielded before.
func (s *Store) QueuesBelow(row int) iter.Seq2[int, *Queue] {
	return func(yield func(int, *Queue) bool) {
		for row = min(row, len(s.rows)) - 1; row >= 0; row-- {
			if row >= warmAhead {
				table.Prefetch(unsafe.Pointer(s.rows[row-warmAhead]), 2)
			}
			if !yield(row, s.rows[row]) {
				return
			}
		}
	}
}

// AllQueues lists the attached queues.
func (s *Store) AllQueues() []*Queue { return slices.Clone(s.rows) }

// warmAhead is how many queues are being loaded into the cache at a time: about as many
// misses as a processor has under way at once.
const warmAhead = 16

// Warmed yields queues, each after its first cache lines had time to be loaded.
func Warmed(queues []*Queue, lines int) iter.Seq[*Queue] {
	return func(yield func(*Queue) bool) {
		for i, q := range queues {
			if i+warmAhead < len(queues) {
				table.Prefetch(unsafe.Pointer(queues[i+warmAhead]), lines)
			}
			if !yield(q) {
				return
			}
		}
	}
}

func (s *Store) detach(q *Queue) {
	s.working -= uint64(q.working)
	s.overdue -= uint64(q.Overdue)
	s.fetchable -= q.Len
	s.dead -= q.dead
	for i, n := range q.counted {
		s.counted[i] -= uint64(n)
	}
	s.keptBytes -= q.keptBytes
	s.heldBack -= q.HeldBack
	q.state, q.listed = queueLoose, s.generation
}

// ScheduleFree gives up a queue and its jobs; [Store.Reap] frees them. From then on only the
// store may use the queue.
func (s *Store) ScheduleFree(q *Queue) {
	switch q.state {
	case queueAttached:
		s.Detach(q)
	case queueUnlinked:
		panic("store: the queue is buried already")
	}
	q.state = queueUnlinked
	s.toFree = append(s.toFree, q)
}

// Reap frees up to n jobs and queues that were given up, and says whether any are left.
// Before it frees a job that was known, or condemned, it calls farewell, unless that is nil.
// farewell returns how many further jobs the call counts as.
func (s *Store) Reap(n int, farewell func(*Job) int) bool {
	if n = s.reapEdges(n); n == 0 {
		return true
	}
	for len(s.toFree) > 0 {
		q := s.toFree[len(s.toFree)-1]
		known := s.Listed(q)
		tell := farewell
		if !known && q.listed != wasCondemned {
			tell = nil
		}
		for ; n > 0 && q.Jobs() > 0; n-- {
			j := q.Head
			if j == nil {
				j = q.Working.Head
			}
			if j == nil {
				j = q.Held.Head
			}
			if j == nil {
				n -= s.reapKeyQueue(q, known, tell)
				continue
			}
			if tell != nil {
				n -= tell(j)
			}
			if known {
				s.onFreed(j)
				s.Remove(j)
			} else {
				s.free(j)
			}
		}
		if q.Jobs() > 0 {
			return true
		}
		s.freeQueue(q)
		s.toFree = s.toFree[:len(s.toFree)-1]
		if n--; n <= 0 && len(s.toFree) > 0 {
			return true
		}
	}
	return false
}

// reapKeyQueue frees one job that a per-key queue holds back, of a queue that was given up.
func (s *Store) reapKeyQueue(q *Queue, known bool, farewell func(*Job) int) (cost int) {
	l := q.KeyQueues.Head
	for l.Head() == nil {
		l = l.Next
	}
	j := l.Head()
	if farewell != nil {
		cost = farewell(j)
	}
	if known {
		s.onFreed(j)
		s.Disarm(j)
		s.removeEdges(j)
		s.jobs.Remove(&j.Entry, s.hashID(&j.ID))
	}
	s.leaveKeyQueue(j, l, known)
	s.discard(q, j)
	return cost
}

// RemoveQueue frees an attached queue that has no jobs.
func (s *Store) RemoveQueue(q *Queue) {
	s.Detach(q)
	s.freeQueue(q)
}

// DropQueue frees a loose queue that has no jobs.
func (s *Store) DropQueue(q *Queue) { s.freeQueue(q) }

func (s *Store) freeQueue(q *Queue) {
	for q.KeyQueues.Head != nil {
		s.freeKeyQueue(q.KeyQueues.Head, false) // Forget has dropped their table
	}
	s.freeName(q)
	if q.levels != nil {
		s.freeLevels(q, q.levels)
	}
	if q.Key != nil {
		s.keyFree(q.Key)
	}
	s.alloc.Free(unsafe.Pointer(q), queueSize)
}

func (s *Store) keyFree(key unsafe.Pointer) {
	if k, ok := s.alloc.(KeyFreer); ok {
		k.FreeKey(key)
	}
}

// KeyFreer is an Allocator that also frees the server's string in [Queue].Key.
type KeyFreer interface{ FreeKey(key unsafe.Pointer) }

// Forget drops all that is known, and touches no queue and no job. They belong to the
// keyspace, whose owner frees them, maybe on another thread. Queues in toFree belong to the
// store, and are reaped as before. Its time grows with the number of the tables' segments
// alone.
func (s *Store) Forget() {
	s.queues.Drop()
	s.forget()
}

// forget is Forget, but leaves the table of queues as it is.
func (s *Store) forget() {
	now := s.wheel.base
	s.hidden.state, s.hidden.listed = queueUnlinked, s.generation
	s.toFree = append(s.toFree, s.hidden)
	s.rows, s.found = nil, nil
	s.jobs.Drop()
	s.keyQueues.Drop()
	s.rings.Drop()
	s.wheel.drop(s.alloc)
	s.begin(now)
	s.working, s.overdue, s.fetchable, s.dead = 0, 0, 0, 0
	s.counted, s.keptBytes = [reasons - 1]uint64{}, 0
	s.DropEdges()
	s.generation++
}

// ScanJobs appends one bucket's jobs to emit and returns the next cursor. A scan begins with
// cursor 0, and ends when 0 is returned. It meets each job that is known during the whole
// scan at least once.
func (s *Store) ScanJobs(cursor uint64, emit *[]*Job) uint64 {
	return s.scanJobs(cursor, emit, false)
}

// ScanAllJobs is ScanJobs, and also meets the jobs that are [Store.Detached].
func (s *Store) ScanAllJobs(cursor uint64, emit *[]*Job) uint64 {
	return s.scanJobs(cursor, emit, true)
}

func (s *Store) scanJobs(cursor uint64, emit *[]*Job, away bool) uint64 {
	e, next := s.jobs.Scan(cursor)
	for ; e != nil; e = e.Next {
		if j := jobOf(e); j.Queue.state == queueAttached || away && j.Queue.state == queueLoose {
			*emit = append(*emit, j)
		}
	}
	return next
}

// ScanQueues is ScanJobs for queues.
func (s *Store) ScanQueues(cursor uint64, emit *[]*Queue) uint64 {
	e, next := s.queues.Scan(cursor)
	for ; e != nil; e = e.Next {
		*emit = append(*emit, queueOf(e))
	}
	return next
}

// hashName hashes a name, eight bytes at a time. In a long name it hashes two groups of
// eight bytes at a time, which don't wait for each other.
func (s *Store) hashName(b []byte) uint64 {
	h := s.keys.name ^ uint64(len(b))*0x9e3779b97f4a7c15
	if len(b) >= 32 {
		g := bits.RotateLeft64(s.keys.name, 32)
		for len(b) >= 16 {
			p := unsafe.Pointer(unsafe.SliceData(b))
			h = mix(h^*(*uint64)(p), 0xa0761d6478bd642f)
			g = mix(g^*(*uint64)(unsafe.Add(p, 8)), 0x8ebc6af09c88c6e3)
			b = b[16:]
		}
		h = mix(h^g, 0x589965cc75374cc3)
	}
	for len(b) >= 8 {
		h = mix(h^*(*uint64)(unsafe.Pointer(unsafe.SliceData(b))), 0xa0761d6478bd642f)
		b = b[8:]
	}
	var tail uint64
	for i, c := range b {
		tail |= uint64(c) << (8 * i)
	}
	return mix(h^tail, 0xe7037ed1a0b428db)
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

func jobOf(e *table.Entry) *Job     { return (*Job)(unsafe.Pointer(e)) }
func queueOf(e *table.Entry) *Queue { return (*Queue)(unsafe.Pointer(e)) }
