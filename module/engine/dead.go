package engine

import (
	"encoding/binary"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Dead letters. A job that was given up moves to the dead-letter queue of its queue, where it waits like any job. It keeps its ID,
// body, counters and place by age. It is unique by nothing there, and remembers what it was unique by, where it came from, when, and
// why.

// Why says why a job was given up. The numbers are saved.
type Why uint8

// The reasons.
const (
	WhyNacked     Why = iota + 1 // a worker said so
	WhyBusy                      // its key was being worked on (ONBUSY dead)
	WhyParent                    // a job that it waited for ended undone (ONDEAD dead)
	WhyNacks                     // it was given back as often as MAXNACKS says
	WhyDeliveries                // it was delivered as often as MAXDELIVERIES says
	WhyExpired                   // its life was over (ONEXPIRE dead)
	WhyLapses                    // its deliveries have lapsed as often as MAXLAPSES says
	whys
)

var whyNames = [whys]string{
	WhyNacked: "nacked", WhyBusy: "busy", WhyParent: "parent", WhyNacks: "max-nacks", WhyDeliveries: "max-deliveries", WhyExpired: "expired",
	WhyLapses: "max-lapses",
}

// String is the reason as SHOW has it; of a later release's reason, "unknown".
func (w Why) String() string {
	if w == 0 || w >= whys {
		return "unknown"
	}
	return whyNames[w]
}

const (
	deadHead   = 13        // bytes of a TagDead before the queue's name: when (unix ms, 8), why (1), the job's own TTL (seconds, 4)
	deadTTL    = 7 * 86400 // seconds that a dead letter lives at least
	buryAgain  = 60_000    // ms until a job is given up again that couldn't be
	maxFrom    = 1024      // bytes of a queue's name that is remembered
	DeadSuffix = ":dead"   // appended to a queue's name, it makes the name of its dead-letter queue
)

// Death is what is known of a dead letter.
type Death struct {
	At   int64 // unix ms
	Why  Why
	TTL  int64  // the job's own time to live, seconds
	From []byte // the queue that it was in; empty: that isn't known
}

// A TagLife has the job's own time to live, seconds, and the count of its moves when it was last revived, each in 32 bits, little endian.
const lifeLen = 8

// lifeOf reads a TagLife; zeros: there is none.
func lifeOf(j *store.Job) (ttl int64, revived uint32) {
	if j.Parts == 0 {
		return 0, 0
	}
	e := j.Extra(store.TagLife)
	if len(e) != lifeLen {
		return 0, 0
	}
	return int64(binary.LittleEndian.Uint32(e)), binary.LittleEndian.Uint32(e[4:])
}

func lifeValue(ttl int64, revived uint32) (e [lifeLen]byte) {
	binary.LittleEndian.PutUint32(e[:], uint32(min(ttl, MaxSeconds)))
	binary.LittleEndian.PutUint32(e[4:], revived)
	return e
}

// lifeSeconds is lifetime in seconds. A copy's time to live may be wrong by the time that the message took.
func lifeSeconds(j *store.Job) int64 { return (lifetime(j) + 500) / 1000 }

// cameFrom returns the queue that a dead letter was in, by its extras; nil: that isn't known.
func cameFrom(extras []byte) []byte {
	if e := store.FindExtra(extras, store.TagDead); len(e) > deadHead {
		return e[deadHead:]
	}
	return nil
}

// DeathOf returns what is known of a dead letter. From is the job's memory. ok is false if the job is none, or nothing is known.
func DeathOf(j *store.Job) (d Death, ok bool) {
	e := j.Extra(store.TagDead)
	if len(e) < deadHead || !j.DeadLetter() {
		return d, false
	}
	return Death{
		At: int64(binary.LittleEndian.Uint64(e)), Why: Why(e[8]), TTL: int64(binary.LittleEndian.Uint32(e[9:])), From: e[deadHead:],
	}, true
}

// isDying says whether a job was given up, and couldn't go to its dead-letter queue: the key holds something else.
func isDying(j *store.Job) bool {
	return j.Parts != 0 && j.Extra(store.TagDead) != nil && moves(j)&deadLetter == 0
}

// dyingOf is why a job is to become a dead letter.
func dyingOf(j *store.Job) Why {
	if e := j.Extra(store.TagDead); len(e) >= deadHead && e[8] > 0 && Why(e[8]) < whys {
		return Why(e[8])
	}
	return WhyNacked // a later release's reason
}

// whyOf is why a job became a dead letter, by the extras that a message says of it; 0: they don't say so.
func whyOf(extras []byte) Why {
	if e := store.FindExtra(extras, store.TagDead); len(e) >= deadHead {
		return Why(e[8])
	}
	return 0
}

// giveUp makes a job a dead letter that is in no queue, or about to be delivered, and queues it there. failure is its TagFailure if a worker gives the
// job back, else nil. If there can't be such a queue, the job stays in its own, and is tried again in a minute.
func (n *Node) giveUp(j *store.Job, why Why, failure []byte) {
	p := n.policyOf(j)
	n.giveUpBy(&p, j, why, failure)
}

// giveUpBy is giveUp for a caller that knows the job's policy.
func (n *Node) giveUpBy(p *Policy, j *store.Job, why Why, failure []byte) {
	if failure != nil {
		n.countNack(j, failure)
	}
	if p.buriesNone() {
		j = n.noteFailure(j, failure)
		n.Stats.Dropped++
		n.tellsDropped(j, why.String())
		n.cancel(j, OutcomeDropped, reasonOf(j))
		return
	}
	n.clearWorker(j)
	n.endLease(j)
	n.leaveTo(j)
	n.store.Hold(j)
	clearDelivered(j)
	j, err := n.bury(j, why, p, failure)
	if err != nil {
		n.stayDying(n.noteFailure(j, failure), why, err)
		return
	}
	n.hasDied(j, why)
	n.setTime(j, n.now) // it is queued now, and the copies wait for no time that it had
	n.tellChanged(j, wire.NewQueue)
	n.pushLeft(j)
	n.serve(j.Queue)
}

// noteFailure keeps a TagFailure with a job, if it isn't nil and the job has room for it. The job may move.
func (n *Node) noteFailure(j *store.Job, failure []byte) *store.Job {
	if failure != nil {
		j, _ = n.setExtra(j, store.TagFailure, failure)
	}
	return j
}

// expiresDead makes a job a dead letter whose life is over, if the policy says so (ONEXPIRE dead). Each holder does so by its own clock.
// The one that would have queued the job next queues it there.
func (n *Node) expiresDead(j *store.Job) bool {
	if j.State != store.StateActive && j.State != store.StateQueued || j.DeadLetter() || held(j) || j.Retry == 0 && j.Flags&(store.FlagDelivered|store.FlagOffered|store.FlagUncertain) != 0 {
		return false
	}
	p := n.policyOf(j)
	switch {
	case !p.ExpiredDies || p.buriesNone():
		return false
	case isAskedToStop(j): // it was to be cancelled when it comes back, so nobody is to find it among the dead
		if !n.isNextToQueue(j) {
			return false
		}
		n.stop(j)
		return true
	case n.isNextToQueue(j):
		n.giveUp(j, WhyExpired, nil)
		return true
	}
	// Its life was perhaps made longer at another node, where a client works on it: its locks are that node's to end.
	if n.heldElsewhere(j) {
		n.delegate(j)
	}
	j, err := n.bury(j, WhyExpired, &p, nil)
	if err == nil {
		n.arm(j)
		n.demote(j, 0)
	}
	return err == nil
}

// isNextToQueue says whether it is this node that has a job, or would queue it next, and not another holder.
func (n *Node) isNextToQueue(j *store.Job) bool {
	return j.State == store.StateQueued || j.Place == store.InWorking || j.Flags&store.FlagQueuedOnce == 0 && (!held(j) || n.CountsHere(j)) || j.Holders() == 0
}

// bury moves a held job to its dead-letter queue, and notes why, and its failure, if that isn't nil: all in one, since the job's record is made anew
// for it. p is the job's policy. It fails if there can't be such a queue. The job may move in memory. The caller arms its timer.
func (n *Node) bury(j *store.Job, why Why, p *Policy, failure []byte) (*store.Job, error) {
	from := j.Queue.NameBytes() // which stays until the job has moved
	q, err := n.deadQueue(p, from)
	if err != nil {
		return j, err
	}
	if j.Parts != 0 {
		n.endLocks(j) // a dead letter stands in nobody's way
		if q, err = n.deadQueue(p, from); err != nil {
			return j, err // others were served, and the key holds something else by now
		}
	}
	origin := from
	if len(origin) > maxFrom {
		origin = nil
	}
	changes := [...]extra{
		{store.TagMoved, movedValue(moves(j)&^deadLetter + 2 | deadLetter)}, {store.TagUnique, nil},
		{store.TagAsleep, j.Extra(store.TagUnique)}, {store.TagDead, n.deathValue(why, lifeSeconds(j), origin)}, {store.TagFailure, failure},
	}
	if failure == nil { // it keeps an earlier one
		j = n.intoAs(j, q, changes[:len(changes)-1]...)
	} else {
		j = n.intoAs(j, q, changes[:]...)
	}
	n.endDelay(j)
	if n.endsAwaited() {
		reason := reasonOf(j)
		n.noteEnd(j.ID, OutcomeDead, reason, reason != nil)
	}
	if p.Set&SetDeadTTL != 0 {
		j.ETime = n.now + p.DeadTTL*1000
	} else {
		j.ETime = max(j.ETime, n.now+deadTTL*1000)
	}
	return j, nil
}

// hasDied counts a job that has become a dead letter, and tells that. One of several holders that find out by themselves calls it.
func (n *Node) hasDied(j *store.Job, why Why) {
	n.Stats.Dead++
	n.Stats.DeadFor[why]++
	n.tellsDead(j, why)
}

// boundDead sees to it that a queue keeps no more dead letters than its settings say (DEADMAX), when one has come. This node counts those
// that wait here. The oldest go in ticks: whoever brings the dead letter may be walking over jobs.
func (n *Node) boundDead(q *store.Queue) {
	if most := n.policies.DeadMaxOf(q.NameBytes()); most > 0 && q.Len > uint64(most) {
		n.overfull[string(q.NameBytes())] = most
		n.hurryTick()
	}
}

// tickDead ends the dead letters that are too many. A job that is none stops that: it isn't known for how long it is to wait.
func (n *Node) tickDead() {
	budget := tickBudget
	for name, most := range n.overfull {
		for q := n.Queue([]byte(name)); q != nil && q.Len > uint64(most) && q.Head.DeadLetter(); {
			if budget <= 0 {
				n.hurryTick()
				return
			}
			from := len(n.effects)
			n.Stats.Dropped++
			n.tellsDropped(q.Head, "too-many")
			n.cancel(q.Head, OutcomeDropped, reasonOf(q.Head))
			budget -= 1 + n.cost(from)
			q = n.Queue([]byte(name))
		}
		delete(n.overfull, name)
	}
}

// deathValue makes a TagDead. It is scratch memory.
func (n *Node) deathValue(why Why, ttl int64, from []byte) []byte {
	e := binary.LittleEndian.AppendUint64(n.scratch.death[:0], uint64(n.now))
	e = append(e, byte(why))
	e = append(binary.LittleEndian.AppendUint32(e, uint32(min(ttl, MaxSeconds))), from...)
	n.scratch.death = e
	return e
}

// stayDying keeps a job in its queue that is to become a dead letter and can't.
func (n *Node) stayDying(j *store.Job, why Why, err error) {
	j, _ = n.setExtra(j, store.TagDead, n.deathValue(why, 0, nil))
	j.ETime = max(j.ETime, n.now+buryAgain+int64(j.Retry)*1000) // else it would expire before, or be due in each tick
	n.restAgain(j, buryAgain)
	n.tellResting(j, buryAgain)
	n.warn("a job of the queue %s can't become a dead letter, and is tried again in a minute: the key %s: %v", shown(j.Queue.NameBytes()), shown(n.deadQueueOf(j)), err)
}

// deadQueue finds or makes the dead-letter queue for jobs of a queue.
func (n *Node) deadQueue(p *Policy, of []byte) (*store.Queue, error) {
	n.scratch.dead = p.appendDead(n.scratch.dead[:0], of)
	return n.queue(n.scratch.dead)
}

// deadQueueFor returns the name of a queue's dead-letter queue, if a job doesn't say another one.
func (n *Node) deadQueueFor(queue []byte) []byte {
	p := n.policyFor(queue)
	return p.appendDead(nil, queue)
}

func (n *Node) deadQueueOf(j *store.Job) []byte {
	p := n.policyOf(j)
	return p.appendDead(nil, j.Queue.NameBytes())
}

// learnDeath takes over what another node says of a job that it has moved, when this node's copy is in that queue. left is what is
// left of the job's life, ms. The job may move in memory.
func (n *Node) learnDeath(j *store.Job, extras []byte, left int64) *store.Job {
	for _, tag := range [...]store.Tag{store.TagDead, store.TagAsleep} {
		if e := store.FindExtra(extras, tag); e != nil {
			j, _ = n.setExtra(j, tag, e)
		}
	}
	if j.DeadLetter() {
		n.endDelay(j)
		if left > 0 {
			j.ETime = n.now + min(left, MaxSeconds*1000)
			n.arm(j)
		}
	}
	return n.learnWords(j, extras)
}
