package engine

import (
	"encoding/binary"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// ADDJOB: how a job is made, and becomes known. If other nodes are to have copies first, replicate.go goes on.

// Add is an ADDJOB whose options are parsed and in range.
type Add struct {
	Queue, Body []byte
	Replicate   int   // copies, 1 to 65535; 0 only while options are parsed: none was given
	Retry       int64 // seconds; 0 makes the job at-most-once
	TTL         int64 // seconds, > 0
	Delay       int64 // seconds, < TTL
	At          int64 // when the job is due, unix seconds, as Delay says less exactly (see DueAt); 0: it wasn't said
	MaxLen      int64 // 0: no limit
	Timeout     int64 // ms to wait for the copies; 0: without limit
	Async       bool  // don't wait for the copies
	CanWait     bool  // the client can be made to wait
	Unique      Unique
	Default     bool    // Replicate wasn't given, and is the default
	Policy      *Policy // nil: none was given
	Slot        *Slot   // of the recurring job that the job is made for; nil: none
	Name        []byte  // that the producer gives the job, at most MaxName bytes; nil: none
	Priority    int     // -store.MaxPriority to store.MaxPriority; the greater goes first

	// Sees says whether the client may know and change the jobs of a queue; with a nil queue,
	// those of every queue. If Sees itself is nil, the client may know and change all jobs.
	Sees func(queue []byte) bool
	Members

	batch *Batch // nil: the job isn't one of an ADDJOBS
	place int32  // among the Answers of batch
}

// Copies returns the default of REPLICATE: three, or as many nodes as can be
// reached if those are fewer, but at least one. This node counts if it keeps new jobs.
func (n *Node) Copies() int {
	if n.mesh.Alone() {
		return 1
	}
	return n.copies(n.External())
}

// copies is Copies in a mesh.
func (n *Node) copies(external bool) int {
	c := 1
	if external {
		c = 0
	}
	for _, p := range n.mesh.All() {
		if c == 3 {
			break
		}
		if p.Usable() {
			c++
		}
	}
	return max(c, 1)
}

// External says whether only other nodes keep the jobs that are added at this one: it is
// leaving, or it is above 75 % of maxmemory and can reach another node.
func (n *Node) External() bool {
	return n.leaving || n.MemoryLevel() > 0 && n.Mesh().Reachable() > 0
}

// MaxUnix is the greatest unix time, in ms, that an option takes.
const MaxUnix = (1<<48 - 1) * 1000

// DueAt sets the delay of a job that is due at a unix time; both times are in ms. If the time is past, the job is due now. DueAt
// returns false if the time is too far ahead.
func (a *Add) DueAt(at, now int64) bool {
	a.Delay, a.At = 0, 0
	if ahead := at - now; ahead > 0 {
		a.Delay, a.At = (ahead+999)/1000, at
	}
	return a.Delay < MaxSeconds
}

// placement is where the copies of a job that is being added are to be.
type placement struct {
	external  bool // this node keeps no copy
	elsewhere int
	family    []byte       // the extra that names dependencies
	queue     *store.Queue // nil: still to be looked up, because it is new, or may go before the job is enlisted
}

// AddJob adds a job and returns its ID. If wait is true, the job isn't promised yet:
// the answer follows as an effect, for the client that is tied to [PendingAdd].
func (n *Node) AddJob(a *Add) (id store.ID, wait bool, err error) {
	unique := a.Unique.Strategy != 0 && !n.notUnique
	waits := unique && a.Unique.Strategy != store.UniqueDuring
	where, err := n.addable(a)
	if err != nil {
		return id, false, err
	}
	var hash uint64
	if waits {
		hash = n.nameClaim(a) // not before: addable may end other jobs, whose locks' names take the same memory
		if a.Unique.Limit > 1 {
			hash = n.nameSlot(a.Unique.Limit)
		}
	}
	extras := n.extrasOf(a, where.family, unique)
	if waits && !n.mesh.Alone() && !n.knownHeld(n.scratch.lock) {
		return n.claimAdd(a)
	}
	j := n.newJob(a, extras, where.elsewhere)
	if waits {
		token, holder := n.locks.TakeHashed(n.scratch.lock, hash, &j.ID, n.waitLease(a))
		if holder != nil {
			other := holder.Job
			if a.Unique.Limit > 1 && n.endsDue(slices.Clone(n.scratch.lock), a.Unique.Limit) || n.endDue(&other) {
				n.store.FreeJob(j)
				return n.AddJob(a) // the key may be free
			}
		}
		u := j.Unique()
		if holder == nil {
			setLock(u, store.LockWait, token, n.scratch.lock)
			n.markWindow(u)
		} else if answer, wait, err, over := n.refused(a, j, &holder.Job); over {
			if !n.mesh.Alone() {
				n.locks.CheckOrphan(holder)
			}
			n.store.FreeJob(j)
			return answer, wait, err
		}
	}
	id = j.ID
	wait, err = n.enlist(a, j, where)
	if err != nil && waits {
		n.locks.Free(n.scratch.lock, &id)
	}
	return id, wait, err
}

// extrasOf makes the extras of a job that is being added, in scratch memory. family names its dependencies.
func (n *Node) extrasOf(a *Add, family []byte, unique bool) []byte {
	if a.Policy == nil && a.Priority == 0 && a.At == 0 && !unique && a.Slot == nil && a.Name == nil {
		return family
	}
	all := append(n.scratch.extras[:0], family...)
	if a.Policy != nil {
		all = a.Policy.extras(all)
	}
	if a.Priority != 0 {
		all = store.AppendExtra(all, store.TagPriority, store.PriorityValue(a.Priority))
	}
	if a.At != 0 {
		all = store.AppendExtra(all, store.TagAt, binary.LittleEndian.AppendUint64(nil, uint64(a.At)))
	}
	if a.Slot != nil {
		all = store.AppendExtra(all, store.TagCron, a.Slot.value())
	}
	if a.Name != nil {
		if all = store.AppendExtra(all, store.TagName, a.Name); !n.mesh.Alone() {
			all = store.AppendExtra(all, store.TagAsks, []byte{0})
		}
	}
	if unique {
		all = store.AppendExtra(all, store.TagUnique, n.attributes(a))
	}
	n.scratch.extras = all
	return all
}

// newJob makes the job of an ADDJOB. It isn't registered yet.
func (n *Node) newJob(a *Add, extras []byte, elsewhere int) *store.Job {
	j := n.store.NewJob(len(a.Body), elsewhere, extras)
	copy(j.Body(), a.Body)
	j.ID = n.idFor(a)
	becomeNew(j)
	return j
}

// addable refuses a job that can't be added. Otherwise it tells where the job's copies go.
func (n *Node) addable(a *Add) (w placement, err error) {
	if n.passive {
		return w, ErrReplica
	}
	if len(a.Body) > store.MaxBody {
		return w, ErrBody
	}
	if n.isSlotMade(a) {
		return w, errSlotMade
	}
	for i := range a.After {
		n.endDue(&a.After[i])
	}
	if a.BlockedBy != nil {
		n.endDue(a.BlockedBy)
	}
	q := n.Queue(a.Queue) // first, because the call may remove the queue, with jobs that are looked at below
	w.external = n.External()
	if w.external && a.Async {
		// The answer comes before others have confirmed their copies, so it promises this node's copy.
		if w.external = false; a.Default && a.Retry > 0 {
			a.Replicate = max(a.Replicate, n.copies(false))
		}
	}
	if a.BlockedBy != nil {
		err = n.beside(a, w.external)
	}
	w.elsewhere = a.Replicate - 1
	if w.external {
		w.elsewhere++
	}
	if err == nil && w.elsewhere > 0 && len(a.Body)+len(a.Queue) > n.mostBody {
		err = ErrTooBig
	}
	if err == nil && w.elsewhere > 0 {
		err = n.unreachable(a, w.elsewhere, w.external)
		if err == nil && !a.Async && !a.CanWait {
			err = ErrReplWait
		}
	}
	if err == nil && a.Family() {
		w.family, err = n.dependenciesOf(&a.Members)
	}
	if err == nil {
		switch {
		case q != nil && a.MaxLen > 0 && q.Waiting() >= uint64(a.MaxLen):
			err = ErrMaxLen
		case n.paused(a.Queue, q, PauseIn):
			err = ErrPaused
		}
		if a.Unique.Strategy == 0 {
			w.queue = q // adding a unique job may remove another job first
		}
	}
	if err != nil {
		n.Stats.Refused++
	}
	return w, err
}

// enlist makes a job known that addable has accepted. If it returns an error, the job is freed.
func (n *Node) enlist(a *Add, j *store.Job, w placement) (wait bool, err error) {
	q := w.queue
	if q == nil {
		q = n.store.Queue(a.Queue)
	}
	if q == nil {
		if q, err = n.queue(a.Queue); err != nil {
			n.store.FreeJob(j)
			return false, err
		}
	}
	n.register(a, j, q)
	if w.family != nil {
		n.join(j)
	}
	switch {
	case a.Name != nil:
		n.enlistNamed(j, w.elsewhere)
	case w.elsewhere == 0:
		n.queueNew(j)
	case a.Async:
		n.queueNew(n.place(j, w.elsewhere, wire.NoReply)) // the other copies aren't promised
	default:
		n.startPendingAdd(j, a, w.external, w.elsewhere)
		return true, nil
	}
	return false, nil
}

// register puts a new job into the table of jobs, and into its queue's held list.
func (n *Node) register(a *Add, j *store.Job, q *store.Queue) {
	j.CTime = n.nextCTime()
	if a.BlockedBy != nil {
		j.CTime = n.afterSiblings(a.BlockedBy, j.CTime)
	}
	if j.ETime = n.now + a.TTL*1000; a.At > 0 {
		j.ETime = a.At + (a.TTL-a.Delay)*1000
	}
	j.Retry, j.Delay, j.Repl = uint32(a.Retry), uint32(a.Delay), uint16(a.Replicate)
	n.store.RegisterNew(q, j)
	n.outliveFlush(j)
	if a.Name == nil { // else enlistNamed knows
		n.Stats.Added++
	}
}

// unreachable refuses a job if too few nodes can be reached for its copies. Above 75 % of
// maxmemory, and when this node is leaving, all copies have to be placed elsewhere.
// A client that waits for copies also waits for nodes that were connected a moment ago.
func (n *Node) unreachable(a *Add, extra int, external bool) error {
	reachable := n.Mesh().Reachable()
	switch {
	case extra <= reachable:
		return nil
	case !a.Async && a.CanWait && extra <= reachable+n.countReturning():
		return nil
	case external && extra-1 == reachable && n.leaving:
		return ErrNoReplLeaving
	case external && extra-1 == reachable:
		return ErrNoReplMemory
	}
	return ErrNoRepl
}

// countReturning counts the nodes whose connection was lost, and that may be back any moment.
func (n *Node) countReturning() (c int) {
	for _, p := range n.mesh.All() {
		if n.mesh.MayReturn(p.Base()) {
			c++
		}
	}
	return c
}

// nextCTime gives each job a creation time of its own, in ms*1e6, that only
// grows, whatever the clock does.
func (n *Node) nextCTime() uint64 {
	c := uint64(max(n.now, 0)) * 1_000_000
	if c <= n.ctime {
		c = n.ctime + 1
	}
	n.ctime = c
	return c
}

// sawCTime follows the creation time of another node's job: jobs that are added here from now
// on have a later one, also in the same millisecond. A clock that is a second or more ahead
// is not followed.
func (n *Node) sawCTime(c uint64) { n.followCTime(c, 1000) }

// followCTime gives jobs that are added from now on later creation times than c, unless c
// is most ms or more ahead.
func (n *Node) followCTime(c uint64, most int64) {
	if c > n.ctime && c < uint64(max(n.now+most, 0))*1_000_000 {
		n.ctime = c
	}
}
