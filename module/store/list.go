package store

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"jobmesh/module/table"
)

// older is the order of a queue whose jobs have no priorities: creation time, then ID. It is the same on every node.
func older(a, b *Job) bool {
	if a.CTime != b.CTime {
		return a.CTime < b.CTime
	}
	return bytes.Compare(a.ID[:], b.ID[:]) < 0
}

// sooner is the order of jobs that are worked on: the time they are due. If two are due in
// the same millisecond, the older one goes first. Mostly it was fetched first, so a job that
// is fetched goes to the end of the list.
func sooner(a, b *Job) bool {
	if x, y := a.Due(), b.Due(); x != y {
		return x < y
	}
	return older(a, b)
}

// Due is when the result of a job that is being worked on is expected, unix ms:
// the time at which it is queued again, or its expiry where it never is.
func (j *Job) Due() int64 {
	if j.Retry == 0 || j.QTime == 0 {
		return j.ETime
	}
	return j.QTime
}

// order is the order of the list that a job is in.
func (j *Job) order() func(a, b *Job) bool {
	if j.Place == InWorking {
		return sooner
	}
	return j.Queue.order()
}

// listOf is the ordered list that a job is in; nil if the job is held.
func (s *Store) listOf(j *Job) *List {
	switch j.Place {
	case InWaiting:
		return &j.Queue.List
	case InWorking:
		return &j.Queue.Working
	case InKeyQueue:
		return s.keyQueueOf(j).list
	}
	return nil
}

// height is how many levels of its list's skip list a job is on. It comes from the ID and a
// seed, so a run can be repeated, and nobody can make IDs that are all on the same levels.
func (s *Store) height(j *Job) int {
	return table.SkipHeight(scramble(binary.LittleEndian.Uint64(j.ID[4:]) ^ s.keys.height))
}

// insert puts a job into l, the list of its place. A job that belongs at the end goes there
// at once, or behind the one that was inserted before it. For the others the skip list finds the
// place.
func (s *Store) insert(q *Queue, l *List, j *Job) {
	switch attached := q.state == queueAttached; {
	case l == &q.Working:
		q.working++
		if attached {
			s.working++
		}
	case l == &q.List && attached:
		s.fetchable++
	}
	if l == &q.List && q.ever&everDead != 0 && j.DeadLetter() {
		s.countDead(q, true)
	}
	less, height := j.order(), s.height(j)
	if q.AnyPriorities() && l == &q.List {
		if at, ok := s.enterLevel(q, j); ok && (height == 0 || at == l.Tail) {
			s.insertBehind(q, l, j, at, height, &l.index.Tail)
			return
		}
	} else if l.Tail == nil || less(l.Tail, j) {
		s.insertBehind(q, l, j, l.Tail, height, &l.index.Tail)
		return
	}
	if at := s.behindLast(j, less); at != nil && height == 0 {
		s.insertBehind(q, l, j, at, height, nil)
	} else {
		var path table.SkipPath[Job]
		at := l.index.Place(&l.List, j, less, &path)
		s.insertBehind(q, l, j, at, height, &path)
	}
	s.inserted = j.ID
}

// behindLast returns the job that was put into the middle of a list last, if this one belongs right
// behind it; nil otherwise. Jobs that come back, or move, mostly come in the order in which they
// were added. The skip list would miss the cache a dozen times for each.
func (s *Store) behindLast(j *Job, less func(a, b *Job) bool) *Job {
	at := s.Lookup(&s.inserted)
	if at == nil || at == j || at.Queue != j.Queue || at.Place != j.Place || at.Place == InKeyQueue || at.Next == nil || less(j, at) || less(at.Next, j) {
		return nil
	}
	return at
}

func (s *Store) insertBehind(q *Queue, l *List, j, at *Job, height int, path *table.SkipPath[Job]) {
	l.Insert(j, at)
	if height > 0 {
		s.addSkipNode(q, l, j, height, path)
	}
}

func (s *Store) addSkipNode(q *Queue, l *List, j *Job, height int, path *table.SkipPath[Job]) {
	q.Bytes += uint64(l.index.Add(s.alloc, j, height, path))
	j.Flags |= FlagIndexed
}

// Count sets the reason why a job is held, and counts it by that reason instead of the former
// one. The job stays counted until it leaves the held list. Count does nothing to a job that
// isn't held. Only the reason of an acknowledged job can be Kept; it must be counted by no other, and have another body only while it
// isn't counted.
func (s *Store) Count(j *Job, r Reason) {
	if j.Place == InHeld {
		s.recount(j.Queue, j, r)
	}
}

func (s *Store) recount(q *Queue, j *Job, r Reason) {
	was := j.Reason()
	if was == r {
		return
	}
	s.CountHere(j, false)
	if was == Delayed {
		s.leaveDelayed(q, j)
		q.Held.Insert(j, q.lastUnordered())
	}
	j.Flags = j.Flags&^flagsReason | reasonFlags[r]
	if r == Delayed {
		q.Held.Remove(j)
		s.enterDelayed(q, j)
	}
	attached := q.state == queueAttached
	if was != NoReason {
		q.counted[was-1]--
		if attached {
			s.counted[was-1]--
		}
	}
	if r != NoReason {
		q.counted[r-1]++
		if attached {
			s.counted[r-1]++
		}
	}
	if was != Kept && r != Kept {
		return
	}
	bytes := uint64(j.BodyLen)
	if was == Kept {
		bytes = -bytes
	}
	if q.keptBytes += bytes; attached {
		s.keptBytes += bytes
	}
}

// CountHere sets whether this node is the one that counts a deferred or blocked job for the mesh, in which others have the
// same copy. The mark stays until the reason changes. CountHere does nothing to other jobs.
func (s *Store) CountHere(j *Job, here bool) {
	if r := j.Reason(); (r == Deferred || r == Blocked) && j.Parts > 0 && here != j.CountedHere() {
		if j.setCountedHere(here); here {
			j.Queue.here[r-Deferred]++
		} else {
			j.Queue.here[r-Deferred]--
		}
	}
}

// Reason is why the job is held, as [Store.Count] has set it; NoReason if it isn't held.
func (j *Job) Reason() Reason {
	if j.Place != InHeld {
		return NoReason
	}
	switch j.Flags & flagsReason {
	case 0:
		return NoReason
	case FlagIndexed:
		if j.State == StateAcked {
			return Kept
		}
		return Delayed
	case FlagOverdue:
		return Deferred
	}
	return Blocked
}

// Counted counts the held jobs of a reason in all attached queues.
func (s *Store) Counted(r Reason) uint64 { return s.counted[r-1] }

// KeptBytes is the length of all results that are kept in attached queues.
func (s *Store) KeptBytes() uint64 { return s.keptBytes }

// withdraw takes a job out of the list of its place.
func (s *Store) withdraw(q *Queue, j *Job) {
	s.mustKnow(q)
	switch j.Place {
	case InWaiting:
		s.take(q, &q.List, j)
		if j.Parts != 0 {
			s.left(j)
		}
	case InWorking:
		s.take(q, &q.Working, j)
	case InKeyQueue:
		s.leaveKeyQueue(j, nil, true)
	default:
		if j.Flags&flagsReason != 0 { // few jobs have a reason
			s.recount(q, j, NoReason)
		}
		q.Held.Remove(j)
	}
}

// take takes a job out of an ordered list.
func (s *Store) take(q *Queue, l *List, j *Job) {
	if j.Flags&FlagIndexed != 0 {
		q.Bytes -= uint64(l.index.Remove(s.alloc, j, j.order()))
		j.Flags &^= FlagIndexed
	}
	switch {
	case l == &q.Working:
		s.countOut(q, j)
	case l == &q.List:
		if q.state == queueAttached {
			s.fetchable--
		}
		if q.ever&everDead != 0 && j.DeadLetter() {
			s.countDead(q, false)
		}
		if q.levels != nil {
			q.leaveLevel(j)
		}
	}
	l.Remove(j)
	// Jobs are mostly fetched, and acknowledged, in the order of their lists. So load the
	// next one into the cache now, for the next command.
	if j.Next != nil {
		table.Prefetch(unsafe.Pointer(j.Next), jobLines)
	}
}

// jobLines is how many cache lines of a job are loaded ahead: its head and some of its body.
const jobLines = 4

// countOut updates the counts when a job leaves the list of those that are worked on.
func (s *Store) countOut(q *Queue, j *Job) {
	s.ClearOverdue(j)
	q.working--
	if q.state == queueAttached {
		s.working--
	}
}

// MarkDead is the bit of a job's TagMoved that says that the job is a dead letter.
const MarkDead = 1

// DeadLetter says whether the job is a dead letter.
func (j *Job) DeadLetter() bool { return j.Parts != 0 && deadIn(j.Extras()) }

func deadIn(extras []byte) bool {
	e := FindExtra(extras, TagMoved)
	return len(e) == 4 && e[0]&MarkDead != 0
}

// countDead counts a dead letter that comes to the jobs that can be fetched, or leaves them.
func (s *Store) countDead(q *Queue, comes bool) {
	by := uint64(1)
	if !comes {
		by = -by
	}
	if q.dead += by; q.state == queueAttached {
		s.dead += by
	}
}

// recountDead is called when a job has got other extras. was says whether it was a dead letter before.
func (s *Store) recountDead(j *Job, was bool) {
	if is := j.DeadLetter(); is != was && j.Place == InWaiting {
		s.countDead(j.Queue, is)
	}
}

// Dead counts the dead letters that wait in all attached queues.
func (s *Store) Dead() uint64 { return s.dead }

// SetOverdue notes that the time at which a job that is being worked on was due has passed,
// and that the job isn't queued again for now. Until the job leaves the list, or Work gives it
// a new place there, only its expiry wakes it.
func (s *Store) SetOverdue(j *Job) {
	if j.Place == InWorking && j.Flags&FlagOverdue == 0 {
		j.Flags |= FlagOverdue
		j.Queue.Overdue++
		s.overdue++
	}
}

// ClearOverdue undoes SetOverdue. It returns false if the job isn't overdue.
func (s *Store) ClearOverdue(j *Job) bool {
	if !j.Overdue() {
		return false
	}
	j.Flags &^= FlagOverdue
	j.Queue.Overdue--
	if j.Queue.state == queueAttached {
		s.overdue--
	}
	return true
}

// Working counts the jobs of all attached queues that are being worked on, and
// how many of those are overdue.
func (s *Store) Working() (jobs, overdue uint64) { return s.working, s.overdue }

// Waiting counts the queued jobs of all attached queues.
func (s *Store) Waiting() uint64 { return s.fetchable + s.heldBack }

func (q *Queue) hold(j *Job) {
	j.Place = InHeld
	at := q.Held.Tail
	if at != nil && at.Reason() == Delayed { // delayed jobs stay the last ones
		at = q.lastUnordered()
	}
	q.Held.Insert(j, at)
}
