package store

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"
)

// The parts of a job: the other nodes that may hold a copy of it, and extras
// (extras.go). They follow the body in the same allocation, so they are saved
// with it and need no pointer; a plain job that no other node ever had has none.
// A head of partsHead bytes (how many holders, 16 bits; how often was tried to
// tell them of the acknowledgement, 8; for how many of them this node answers, see
// [Job.AnswerFor], 8; the length of the extras, 16; by how many ms its delivery shifted the time
// it is due, 16), room for some holders (the first 8 bytes of a node's ID, with the lowest bit
// for its mark), and the extras at the end.
//
// A holder's mark says, of a job that waits for its copies, that the node has confirmed its copy;
// of an acknowledged one, that the node knows of that; of others, that this node has handed the
// job over to it, and has given it to nobody since.
const (
	partsHead = 8
	holderLen = 8
	// MaxExtras leaves room for 4095 holders at least.
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

// RawParts are the parts as they are saved; nil where there are none.
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

// Holder is the i-th holder's name (the first 8 bytes of its ID, the lowest bit
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

// Confirm marks a holder. False where it isn't one, or was marked.
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

// ConfirmAll marks all holders, but for the first ones.
func (j *Job) ConfirmAll(but int) {
	for i := but; i < j.Holders(); i++ {
		node, _ := j.Holder(i)
		j.setHolder(i, node|1)
	}
}

// Answers is for how many holders this node answers. They are the first.
func (j *Job) Answers() int {
	if j.Parts == 0 {
		return 0
	}
	return min(int(j.RawParts()[3]), j.Holders())
}

// AnswerFor has this node answer for a holder, one of 255 at most: it has handed the job over
// to it, and makes sure itself that it knows of the acknowledgement.
func (j *Job) AnswerFor(node uint64) {
	if k, i := j.Answers(), j.findHolder(node); i >= k && k < 255 {
		j.swapHolders(i, k)
		j.RawParts()[3] = uint8(k + 1)
	}
}

// AnswerNotFor ends that.
func (j *Job) AnswerNotFor(node uint64) {
	if k, i := j.Answers(), j.findHolder(node); i >= 0 && i < k {
		j.swapHolders(i, k-1)
		j.RawParts()[3] = uint8(k - 1)
	}
}

// AnswerForNone ends it for all holders.
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

// DropHolder takes a node out of the holders.
func (j *Job) DropHolder(node uint64) bool {
	if !j.HeldBy(node) {
		return false
	}
	j.AnswerNotFor(node) // the others are to stay the first
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

// SetAttempts sets that, at most 255. Jobs without parts ignore it.
func (j *Job) SetAttempts(n int) {
	if j.Parts > 0 {
		j.RawParts()[2] = uint8(min(n, 255))
	}
}

// Shift is by how many ms the time that a job is due was moved at its delivery
// from what its retry time says. 0 for jobs without parts.
func (j *Job) Shift() int64 {
	if j.Parts == 0 {
		return 0
	}
	return int64(int16(binary.LittleEndian.Uint16(j.RawParts()[6:])))
}

// SetShift sets that, within 16 bits. Jobs without parts ignore it.
func (j *Job) SetShift(ms int64) {
	if j.Parts > 0 {
		binary.LittleEndian.PutUint16(j.RawParts()[6:], uint16(int16(ms)))
	}
}

// AddHolder notes that another node may hold a copy. The job may have to move
// for that: use the returned one from then on. added is false where the node
// was noted before, or where there is no more room (4095 nodes).
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

// reshape moves a job to a block with room for so many holders, with this body and
// these extras, which may be its own. It must be in a queue's list.
func (s *Store) reshape(j *Job, holders int, body, extras []byte) *Job {
	q := j.Queue
	parts := partsLen(holders, len(extras))
	k := (*Job)(s.alloc.Alloc(jobSize + len(body) + parts))
	*k = *j
	k.BodyLen, k.Parts = uint32(len(body)), uint16(parts)
	copy(k.Body(), body)
	if p := k.RawParts(); p != nil {
		q.parts, s.parts = true, true
		clear(p)
		copy(p, j.RawParts()[:min(int(j.Parts), partsHead+j.Holders()*holderLen)])
		k.putExtras(extras)
	}
	head, tail := &q.HeldHead, &q.HeldTail
	l := s.listOf(j)
	if l != nil {
		head, tail = &l.Head, &l.Tail
	}
	if j.Prev != nil {
		head = &j.Prev.Next
	}
	if j.Next != nil {
		tail = &j.Next.Prev
	}
	*head, *tail = k, k
	if j.timerPrev != nil {
		*j.timerPrev = k
		if k.timerNext != nil {
			k.timerNext.timerPrev = &k.timerNext
		}
	}
	if j.Place != InHeld && j.Flags&FlagIndexed != 0 {
		l.skipNodeOf(j).job = k
	}
	s.jobs.Replace(&j.Entry, &k.Entry, j.ID.hash(s.keys.id))
	q.Bytes += uint64(k.Size() - j.Size())
	s.FreeJob(j)
	return k
}

// skipNodeOf finds the index's skip-list node of a job that has one.
func (l *List) skipNodeOf(j *Job) *SkipNode {
	if t := l.index[0]; t.job == j {
		return t
	}
	preds := l.before(j)
	return *l.after(preds[0], 0)
}
