package store

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"
)

// The parts of a job are its holders, the other nodes that may hold a copy of it, and its
// extras (extras.go). They follow the body in the same allocation, so they are saved with it
// and need no pointer. A job without extras that no other node ever had has no parts.
//
// First comes a head of partsHead bytes:
//
//	0 number of holders (16 bits)
//	2 how often the holders were told of the acknowledgement (8 bits); in a deferred or blocked job whether this node
//	  counts it ([Store.CountHere]), which isn't loaded
//	3 number of holders that this node answers for, see [Job.AnswerFor] (8 bits)
//	4 length of the extras (16 bits)
//	6 [Job.Shift], ms (16 bits)
//
// Then comes room for some holders: 8 bytes each, the first 8 bytes of the node's ID, whose
// lowest bit is the holder's mark. The extras are at the end.
//
// The meaning of a holder's mark depends on the job. While the job waits for its copies: the
// node has confirmed its copy. When the job is acknowledged: the node knows that it is. In
// other jobs: this node has handed the job over to that node, and has given it to nobody since.
const (
	partsHead = 8
	holderLen = 8
	// MaxExtras is the most bytes of extras that a job can have. It leaves room for 4094
	// holders at least.
	MaxExtras = 32 << 10
)

func holderRoom(parts, extras int) int { return (parts - partsHead - extras) / holderLen }

func checkParts(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	extras := 0
	if len(p) >= partsHead {
		extras = int(binary.LittleEndian.Uint16(p[4:]))
	}
	if len(p) < partsHead+extras || extras > MaxExtras || (len(p)-partsHead-extras)%holderLen != 0 {
		return fmt.Errorf("%w: %d bytes of holders and extras", ErrRecord, len(p))
	}
	n := int(binary.LittleEndian.Uint16(p))
	if n > holderRoom(len(p), extras) {
		return fmt.Errorf("%w: %d holders in %d bytes", ErrRecord, n, len(p))
	}
	if err := CheckExtras(p[len(p)-extras:]); err != nil {
		return err
	}
	for i := range holderRoom(len(p), extras) {
		if node := binary.LittleEndian.Uint64(p[partsHead+i*holderLen:]) &^ 1; (node != 0) != (i < n) {
			return fmt.Errorf("%w: holder %d of %d", ErrRecord, i, n)
		}
	}
	return nil
}

// RawParts are the parts as they are saved; nil if there are none.
func (j *Job) RawParts() []byte {
	if j.Parts == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(j), jobSize+int(j.BodyLen))), int(j.Parts))
}

// Holders counts the other nodes that may hold a copy.
func (j *Job) Holders() int {
	if j.Parts == 0 {
		return 0
	}
	return int(binary.LittleEndian.Uint16(j.RawParts()))
}

// Holder is the name of the i-th holder (the first 8 bytes of its ID, with the lowest bit
// 0), and whether it is marked.
func (j *Job) Holder(i int) (node uint64, marked bool) {
	v := binary.LittleEndian.Uint64(j.RawParts()[partsHead+i*holderLen:])
	return v &^ 1, v&1 != 0
}

func (j *Job) setHolder(i int, v uint64) {
	binary.LittleEndian.PutUint64(j.RawParts()[partsHead+i*holderLen:], v)
}

func (j *Job) findHolder(node uint64) int {
	for i := range j.Holders() {
		if h, _ := j.Holder(i); h == node {
			return i
		}
	}
	return -1
}

// HeldBy says whether a node may hold a copy.
func (j *Job) HeldBy(node uint64) bool { return j.findHolder(node) >= 0 }

// Confirm marks a holder. It returns false if the node isn't a holder, or was marked before.
func (j *Job) Confirm(node uint64) bool {
	i := j.findHolder(node)
	if i < 0 {
		return false
	}
	_, was := j.Holder(i)
	j.setHolder(i, node|1)
	return !was
}

// Unconfirm takes a holder's mark away.
func (j *Job) Unconfirm(node uint64) {
	if i := j.findHolder(node); i >= 0 {
		j.setHolder(i, node)
	}
}

// ConfirmedBy says whether a holder is marked.
func (j *Job) ConfirmedBy(node uint64) bool {
	if i := j.findHolder(node); i >= 0 {
		_, yes := j.Holder(i)
		return yes
	}
	return false
}

// Confirmed counts the marked holders.
func (j *Job) Confirmed() (n int) {
	for i := range j.Holders() {
		if _, yes := j.Holder(i); yes {
			n++
		}
	}
	return n
}

// ClearConfirmed takes all the marks away.
func (j *Job) ClearConfirmed() {
	for i := range j.Holders() {
		node, _ := j.Holder(i)
		j.setHolder(i, node)
	}
}

// ConfirmAll marks all holders except the first ones, as many as but says.
func (j *Job) ConfirmAll(but int) {
	for i := but; i < j.Holders(); i++ {
		node, _ := j.Holder(i)
		j.setHolder(i, node|1)
	}
}

// Answers is how many holders this node answers for ([Job.AnswerFor]). They come first among
// the holders.
func (j *Job) Answers() int {
	if j.Parts == 0 {
		return 0
	}
	return min(int(j.RawParts()[3]), j.Holders())
}

// AnswerFor notes that this node answers for a holder: it has handed the job over to that
// holder, and must itself make sure that the holder learns of the acknowledgement. A node
// answers for at most 255 holders of a job.
func (j *Job) AnswerFor(node uint64) {
	if k, i := j.Answers(), j.findHolder(node); i >= k && k < 255 {
		j.swapHolders(i, k)
		j.RawParts()[3] = uint8(k + 1)
	}
}

// AnswerNotFor undoes AnswerFor.
func (j *Job) AnswerNotFor(node uint64) {
	if k, i := j.Answers(), j.findHolder(node); i >= 0 && i < k {
		j.swapHolders(i, k-1)
		j.RawParts()[3] = uint8(k - 1)
	}
}

// AnswerForNone undoes AnswerFor for all holders.
func (j *Job) AnswerForNone() {
	if j.Parts > 0 {
		j.RawParts()[3] = 0
	}
}

func (j *Job) swapHolders(a, b int) {
	p := j.RawParts()[partsHead:]
	x, y := p[a*holderLen:], p[b*holderLen:]
	v, w := binary.LittleEndian.Uint64(x), binary.LittleEndian.Uint64(y)
	binary.LittleEndian.PutUint64(x, w)
	binary.LittleEndian.PutUint64(y, v)
}

// DropHolder removes a node from the holders. It returns false if the node isn't one.
func (j *Job) DropHolder(node uint64) bool {
	if !j.HeldBy(node) {
		return false
	}
	j.AnswerNotFor(node) // the other holders that this node answers for must stay the first
	last := j.Holders() - 1
	j.swapHolders(j.findHolder(node), last)
	j.setHolder(last, 0)
	binary.LittleEndian.PutUint16(j.RawParts(), uint16(last))
	return true
}

// Attempts is how often the holders were told of the acknowledgement.
func (j *Job) Attempts() int {
	if j.Parts == 0 {
		return 0
	}
	return int(j.RawParts()[2])
}

// SetAttempts sets Attempts, to at most 255. It does nothing in jobs without parts.
func (j *Job) SetAttempts(n int) {
	if j.Parts > 0 {
		j.RawParts()[2] = uint8(min(n, 255))
	}
}

// CountedHere says whether this node counts the deferred or blocked job for the mesh ([Store.CountHere]).
func (j *Job) CountedHere() bool {
	r := j.Reason()
	return j.Parts > 0 && (r == Deferred || r == Blocked) && j.RawParts()[2] != 0
}

func (j *Job) setCountedHere(here bool) {
	j.RawParts()[2] = 0
	if here {
		j.RawParts()[2] = 1
	}
}

// Shift is by how many ms a delivery moved the time that the job is due, compared with the
// delivery plus the retry time. It is 0 in jobs without parts.
func (j *Job) Shift() int64 {
	if j.Parts == 0 {
		return 0
	}
	return int64(int16(binary.LittleEndian.Uint16(j.RawParts()[6:])))
}

// SetShift sets Shift, which must fit into 16 bits. It does nothing in jobs without parts.
func (j *Job) SetShift(ms int64) {
	if j.Parts > 0 {
		binary.LittleEndian.PutUint16(j.RawParts()[6:], uint16(int16(ms)))
	}
}

// AddHolder notes that another node may hold a copy. This may move the job: use the returned
// one from then on. added is false if the node is a holder already, or if there is no room
// for another one (there is for 4094 nodes at least).
func (s *Store) AddHolder(j *Job, node uint64) (moved *Job, added bool) {
	n, extras := j.Holders(), j.Extras()
	most := holderRoom(math.MaxUint16, len(extras))
	if j.HeldBy(node) || n >= most {
		return j, false
	}
	if j.Parts == 0 || n >= holderRoom(int(j.Parts), len(extras)) {
		j = s.reshape(j, min(max(2*n, 2), most), j.Body(), extras)
	}
	j.setHolder(n, node)
	binary.LittleEndian.PutUint16(j.RawParts(), uint16(n+1))
	return j, true
}

// reshape moves a job to a block with room for this many holders, this body and these
// extras. body and extras may be the job's own memory. The job must be in a list of its queue.
func (s *Store) reshape(j *Job, holders int, body, extras []byte) *Job {
	q := j.Queue
	s.mustKnow(q)
	parts := partsLen(holders, len(extras))
	if parts == 0 {
		s.CountHere(j, false) // the mark goes with the parts
	}
	k := s.copied(j, parts, body, extras)
	if parts > 0 {
		s.noteParts(q, extras)
	}
	if l := s.listOf(j); l == nil {
		if q.Held.Replace(j, k); j.Reason() == Delayed {
			s.replaceInDelayed(q, j, k)
		}
	} else {
		l.Replace(j, k)
		if j.Flags&FlagIndexed != 0 {
			l.index.Replace(j, k, j.order())
		}
		if l == &q.List {
			q.replaceInLevel(j, k)
		}
	}
	if j.Place == InWaiting { // else it isn't counted
		s.recountDead(k, j.DeadLetter())
	}
	q.Bytes += uint64(k.Size() - j.Size())
	s.supplant(j, k)
	return k
}

// copied copies a job to a new block with so many bytes of parts, this body and these extras.
func (s *Store) copied(j *Job, parts int, body, extras []byte) *Job {
	k := (*Job)(s.alloc.Alloc(jobSize + len(body) + parts))
	*k = *j
	k.BodyLen, k.Parts = uint32(len(body)), uint16(parts)
	copy(k.Body(), body)
	if p := k.RawParts(); p != nil {
		clear(p)
		copy(p, j.RawParts()[:min(int(j.Parts), partsHead+j.Holders()*holderLen)])
		k.putExtras(extras)
	}
	return k
}

// supplant puts a job's copy in its place, in the table of jobs and among the timers, and frees the job.
func (s *Store) supplant(j, k *Job) {
	if j.timerPrev != nil {
		*j.timerPrev = k
		if k.timerNext != nil {
			k.timerNext.timerPrev = &k.timerNext
		}
	}
	s.jobs.Replace(&j.Entry, &k.Entry, s.hashID(&j.ID))
	s.FreeJob(j)
}
