package engine

import (
	"encoding/binary"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Policies: when a job that failed comes again, how often it is tried, and what becomes of it then. A job's own words count more than the
// settings of its queue, which are read when they are needed: so they count for jobs that wait already, too.

// Policy says what becomes of jobs that fail. Set tells which of its parts were said.
type Policy struct {
	Set                     PolicySet
	Base, Max               int64 // BACKOFF, seconds; both 0: none
	Jitter                  int64 // percent by which a back-off is shortened at most, at random
	MaxNacks, MaxDeliveries int64 // 0: none
	MaxLapses               int64 // 0: none
	DeadTTL                 int64 // seconds; 0: the job ends instead of becoming a dead letter
	ExpiredDies             bool  // ONEXPIRE dead
	Dead                    []byte
	Keep                    int64 // seconds that a job's outcome is kept after its end; 0: it isn't
}

// PolicySet is a set of parts of a [Policy]. The bits are saved.
type PolicySet uint8

// The parts.
const (
	SetBackoff PolicySet = 1 << iota
	SetMaxNacks
	SetMaxDeliveries
	SetDead
	SetDeadTTL
	SetOnExpire
	SetMaxLapses
	SetKeep

	// SetRetries are those that need a retry time: an at-most-once job is never tried again.
	SetRetries = SetBackoff | SetMaxNacks | SetMaxDeliveries | SetMaxLapses
)

// Limits of a policy.
const (
	MaxTries      = 65535 // of MAXNACKS, MAXDELIVERIES and MAXLAPSES
	DefaultJitter = 20    // percent
	MaxDeadQueue  = 1024  // bytes of a dead-letter queue's name that is said
)

// Policies are the policies that settings say for queues. The caller of the node keeps them up to date.
type Policies struct {
	Of       func(queue []byte) *Policy // nil: the settings say nothing for this queue
	Any      bool                       // whether they say anything for any queue
	Counting bool                       // whether any says MAXDELIVERIES
	Keeping  bool                       // whether any says KEEP

	LimitsOf   func(queue []byte) Limits // the zero Limits: the settings say none for this queue
	Rated      bool                      // whether any says a limit
	DeadMaxOf  func(queue []byte) int64  // how many dead letters a queue keeps; 0: all
	DeadMaxed  bool                      // whether any says that
	Generation uint32                    // another one after each change, never 0

	// AddCron makes the ADDJOB of a recurring job: it reads the options, and the settings of the queue. Nil: nothing can be made.
	AddCron func(c *Cron, a *Add) error
}

// override puts what p says over q.
func (p *Policy) override(q *Policy) {
	if p.Set&SetBackoff != 0 {
		q.Base, q.Max, q.Jitter = p.Base, p.Max, p.Jitter
	}
	if p.Set&SetMaxNacks != 0 {
		q.MaxNacks = p.MaxNacks
	}
	if p.Set&SetMaxDeliveries != 0 {
		q.MaxDeliveries = p.MaxDeliveries
	}
	if p.Set&SetMaxLapses != 0 {
		q.MaxLapses = p.MaxLapses
	}
	if p.Set&SetDead != 0 {
		q.Dead = p.Dead
	}
	if p.Set&SetDeadTTL != 0 {
		q.DeadTTL = p.DeadTTL
	}
	if p.Set&SetOnExpire != 0 {
		q.ExpiredDies = p.ExpiredDies
	}
	q.Set |= p.Set
}

// A policy's TagPolicy has the set, 1 if ONEXPIRE is dead, the jitter, and then, little endian, base and max (32 bits), the limits of
// NACKs and deliveries (16 bits), DEADTTL (32 bits), and the name of the dead-letter queue. MAXLAPSES is younger, and has an extra of its own, with
// 16 bits: nodes of a former release take all that follows in a TagPolicy for the name.
const (
	policyHead   = 19
	maxLapsesLen = 2
)

// extras appends the extras of a job whose ADDJOB said this policy.
func (p *Policy) extras(b []byte) []byte {
	if p.Set&^apart != 0 {
		b = store.AppendExtra(b, store.TagPolicy, p.append(nil))
	}
	if p.Set&SetMaxLapses != 0 {
		b = store.AppendExtra(b, store.TagMaxLapses, binary.LittleEndian.AppendUint16(nil, uint16(p.MaxLapses)))
	}
	if p.Set&SetKeep != 0 {
		b = store.AppendExtra(b, store.TagEnd, binary.LittleEndian.AppendUint32(nil, uint32(p.Keep)))
	}
	return b
}

// apart are the parts that have extras of their own.
const apart = SetMaxLapses | SetKeep

func (p *Policy) append(b []byte) []byte {
	expired := byte(0)
	if p.ExpiredDies {
		expired = 1
	}
	b = append(b, byte(p.Set&^apart), expired, byte(p.Jitter))
	b = binary.LittleEndian.AppendUint32(b, uint32(p.Base))
	b = binary.LittleEndian.AppendUint32(b, uint32(p.Max))
	b = binary.LittleEndian.AppendUint16(b, uint16(p.MaxNacks))
	b = binary.LittleEndian.AppendUint16(b, uint16(p.MaxDeliveries))
	b = binary.LittleEndian.AppendUint32(b, uint32(p.DeadTTL))
	return append(b, p.Dead...)
}

// readPolicy reads a TagPolicy. Dead is memory of e.
func readPolicy(e []byte) (p Policy) {
	if len(e) < policyHead {
		return p
	}
	return Policy{
		Set: PolicySet(e[0]) &^ apart, ExpiredDies: e[1]&1 != 0, Jitter: min(int64(e[2]), 100),
		Base: int64(binary.LittleEndian.Uint32(e[3:])), Max: int64(binary.LittleEndian.Uint32(e[7:])),
		MaxNacks: int64(binary.LittleEndian.Uint16(e[11:])), MaxDeliveries: int64(binary.LittleEndian.Uint16(e[13:])),
		DeadTTL: int64(binary.LittleEndian.Uint32(e[15:])), Dead: e[policyHead:],
	}
}

// PolicyOf returns what a job's ADDJOB said of failures. Dead is the job's memory.
func PolicyOf(j *store.Job) (p Policy, ok bool) {
	if j.Parts == 0 {
		return p, false
	}
	e := j.Extra(store.TagPolicy)
	p = readPolicy(e)
	if lapses := j.Extra(store.TagMaxLapses); len(lapses) == maxLapsesLen {
		p.MaxLapses = int64(binary.LittleEndian.Uint16(lapses))
		p.Set |= SetMaxLapses
	}
	return p, p.Set != 0 || e != nil
}

// policyOf returns what counts for a job. Dead is memory of the job, or of the settings. A dead letter has no policy. That of an
// at-most-once job has no part that needs a retry time.
func (n *Node) policyOf(j *store.Job) (p Policy) {
	if j.Parts == 0 && !n.policies.Any || j.DeadLetter() {
		return p
	}
	p = n.policyFor(j.Queue.NameBytes())
	if own, ok := PolicyOf(j); ok {
		own.override(&p)
	}
	if j.Retry == 0 {
		p.Base, p.Max, p.MaxNacks, p.MaxDeliveries, p.MaxLapses = 0, 0, 0, 0, 0
	}
	return p
}

// policyFor returns what the settings say for a queue. Dead is their memory.
func (n *Node) policyFor(queue []byte) (p Policy) {
	if n.policies.Any {
		if q := n.policies.Of(queue); q != nil {
			p = *q
		}
	}
	return p
}

// buriesNone says whether jobs end instead of becoming dead letters (DEADTTL 0).
func (p *Policy) buriesNone() bool { return p.Set&SetDeadTTL != 0 && p.DeadTTL == 0 }

// counts says whether a job's failures are counted for what the policy says.
func (p *Policy) counts() bool { return p.Base > 0 || p.MaxNacks > 0 || p.MaxDeliveries > 0 }

// appendDead appends the name of the dead-letter queue for jobs of a queue.
func (p *Policy) appendDead(b, queue []byte) []byte {
	if len(p.Dead) > 0 && string(p.Dead) != string(queue) {
		return append(b, p.Dead...)
	}
	return append(append(b, queue...), DeadSuffix...)
}

// backoff returns for how long a job rests that has failed so often, ms.
func (n *Node) backoff(p *Policy, failures int) int64 {
	span := p.Max
	if shift := max(failures-1, 0); shift < 31 {
		span = min(p.Max, p.Base<<shift)
	}
	span *= 1000
	if most := span * p.Jitter / 100; most > 0 {
		span -= n.below(most + 1)
	}
	return span
}

// Tries: the deliveries and NACKs of a job that has a limit, or a back-off, counted exactly. Each node counts the deliveries that it
// answered, and the NACKs that it was sent. The greater numbers of two nodes' lists count, so a message that is lost, or comes twice,
// changes nothing.
//
// A TagTries has the count of the job's moves when it was last revived, 0 if it never was (32 bits, little endian), and for each node 8 bytes with
// its name and two numbers of 16 bits: deliveries and NACKs. A TagLapses has the same form, and its numbers are the lapses, and
// how often the job was given back unstarted.
const (
	triesHead = 4
	triesNode = nodeLen + 4
	triesMost = 64 // nodes; what further ones do isn't counted
)

// tries counts a job's NACKs, and its deliveries without those that were given back unstarted.
func tries(j *store.Job) (deliveries, nacks int64) {
	deliveries, nacks = sumTries(j, store.TagTries)
	if deliveries > 0 {
		deliveries = max(0, deliveries-unstarted(j))
	}
	return deliveries, nacks
}

// unstarted is how often a job was given back unstarted.
func unstarted(j *store.Job) int64 {
	_, n := sumTries(j, store.TagLapses)
	return n
}

// Additional is how often a job came back without a NACK, but for those times when it was given back unstarted.
func Additional(j *store.Job) int64 { return max(0, int64(j.Deliveries)-unstarted(j)) }

// lapses counts a job's deliveries that have lapsed.
func lapses(j *store.Job) int64 {
	n, _ := sumTries(j, store.TagLapses)
	return n
}

// sumTries sums up the two numbers of all nodes in a TagTries or TagLapses.
func sumTries(j *store.Job, tag store.Tag) (first, second int64) {
	if j.Parts == 0 {
		return 0, 0
	}
	e := j.Extra(tag)
	if len(e) < triesHead {
		return 0, 0
	}
	for e = e[triesHead:]; len(e) >= triesNode; e = e[triesNode:] {
		first += int64(binary.LittleEndian.Uint16(e[nodeLen:]))
		second += int64(binary.LittleEndian.Uint16(e[nodeLen+2:]))
	}
	return first, second
}

// Tries returns how often a job was delivered by exact count; counted is false if nobody counts.
func Tries(j *store.Job) (deliveries int64, counted bool) {
	if j.Parts == 0 || j.Extra(store.TagTries) == nil {
		return 0, false
	}
	deliveries, _ = tries(j)
	return deliveries, true
}

// ofNode finds a node's numbers in a TagTries; nil: it has none.
func ofNode(e []byte, node wire.Node) []byte {
	for at := triesHead; at+triesNode <= len(e); at += triesNode {
		if wire.Node(binary.BigEndian.Uint64(e[at:])) == node {
			return e[at+nodeLen : at+triesNode]
		}
	}
	return nil
}

// countTry adds to the deliveries and NACKs that this node counts of a job. The job may move.
func (n *Node) countTry(j *store.Job, deliveries, nacks int) *store.Job {
	return n.count(j, store.TagTries, deliveries, nacks)
}

// count adds to the two numbers that this node counts in a TagTries or TagLapses. The job may move.
func (n *Node) count(j *store.Job, tag store.Tag, first, second int) *store.Job {
	e := slices.Clone(j.Extra(tag))
	if len(e) < triesHead {
		_, revived := lifeOf(j)
		e = binary.LittleEndian.AppendUint32(nil, revived)
	}
	mine := ofNode(e, n.self.Node())
	if mine == nil {
		if len(e) >= triesHead+triesMost*triesNode {
			return j
		}
		e = binary.BigEndian.AppendUint64(e, uint64(n.self.Node()))
		e = append(e, 0, 0, 0, 0)
		mine = e[len(e)-4:]
	}
	binary.LittleEndian.PutUint16(mine, counted(binary.LittleEndian.Uint16(mine), first))
	binary.LittleEndian.PutUint16(mine[2:], counted(binary.LittleEndian.Uint16(mine[2:]), second))
	j, _ = n.setExtra(j, tag, e)
	n.log(LogState, j)
	return j
}

// counted returns v plus more, within the bounds of a uint16.
func counted(v uint16, more int) uint16 { return saturated(v, max(more, -int(v))) }

// learnTries takes over what other nodes count of a job. The job may move.
func (n *Node) learnTries(j *store.Job, extras []byte) *store.Job {
	return n.learnNumbers(n.learnNumbers(j, extras, store.TagTries), extras, store.TagLapses)
}

// learnNumbers is learnTries for a TagTries or TagLapses.
func (n *Node) learnNumbers(j *store.Job, extras []byte, tag store.Tag) *store.Job {
	theirs := store.FindExtra(extras, tag)
	if len(theirs) < triesHead {
		return j
	}
	mine := slices.Clone(j.Extra(tag))
	switch {
	case len(mine) < triesHead || binary.LittleEndian.Uint32(mine) < binary.LittleEndian.Uint32(theirs):
		mine = slices.Clone(theirs)
	case binary.LittleEndian.Uint32(mine) > binary.LittleEndian.Uint32(theirs):
		return j
	}
	for at := triesHead; at+triesNode <= len(theirs); at += triesNode {
		node := wire.Node(binary.BigEndian.Uint64(theirs[at:]))
		if k := ofNode(mine, node); k != nil {
			for i := 0; i < 4; i += 2 {
				binary.LittleEndian.PutUint16(k[i:], max(binary.LittleEndian.Uint16(k[i:]), binary.LittleEndian.Uint16(theirs[at+nodeLen+i:])))
			}
		} else if len(mine) < triesHead+triesMost*triesNode {
			mine = append(mine, theirs[at:at+triesNode]...)
		}
	}
	if string(mine) == string(j.Extra(tag)) {
		return j
	}
	j, _ = n.setExtra(j, tag, mine)
	n.log(LogState, j)
	return j
}

// limit is how often a job may be delivered; 0: there is no limit, and its deliveries aren't counted. It is asked for each delivery.
func (n *Node) limit(j *store.Job) int64 {
	if !n.policies.Counting && (j.Parts == 0 || j.Extra(store.TagPolicy) == nil) || j.Retry == 0 {
		return 0
	}
	return n.policyOf(j).MaxDeliveries
}

// lapse counts that the retry time of a job's delivery by this node has ended. The job may move.
func (n *Node) lapse(j *store.Job) *store.Job {
	if j.Place != store.InWorking || j.Retry == 0 {
		return j
	}
	n.Stats.Lapsed++
	n.tellsLapse(j)
	if n.maxLapses(j) == 0 {
		return j
	}
	return n.count(j, store.TagLapses, 1, 0)
}

// maxLapses is how many lapses end a job; 0: they aren't counted.
func (n *Node) maxLapses(j *store.Job) int64 {
	if j.Retry == 0 || !n.policies.Any && (j.Parts == 0 || j.Extra(store.TagMaxLapses) == nil) {
		return 0
	}
	return n.policyOf(j).MaxLapses
}

// hasLapsed says whether a job's deliveries have lapsed as often as they may.
func (n *Node) hasLapsed(j *store.Job) bool {
	limit := n.maxLapses(j)
	return limit > 0 && lapses(j) >= limit
}

// isExhausted says whether a job that comes back without a NACK was delivered as often as its limit says.
func (n *Node) isExhausted(j *store.Job) bool {
	if j.Flags&store.FlagQueuedOnce == 0 || j.Returning() {
		return false
	}
	deliveries, _ := tries(j)
	limit := n.limit(j)
	return limit > 0 && deliveries >= limit
}
