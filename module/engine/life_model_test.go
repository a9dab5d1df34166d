package engine_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// lifeModel is what becomes of jobs at a node that is alone, as simply as can be: failure, order, limits, time, results, names, moves. Jobs come again
// (RETRY above 0), and live long, but for those of the queue "brief", which nobody fetches.
type lifeModel struct {
	now     int64
	jobs    map[store.ID]*lifeJob
	kept    map[store.ID]lifeEnd
	done    map[store.ID]bool // acknowledged jobs
	seq, op int
	queues  map[string]*lifeQueue
}

// lifeQueue is what the settings say of a queue, and what it does by them.
type lifeQueue struct {
	policy  engine.Policy
	limits  engine.Limits
	deadMax int
	paused  int64   // until when, math.MaxInt64: without end
	times   []int64 // of deliveries
}

type lifeJob struct {
	id                             store.ID
	queue, body, reason, from, key string
	seq, prio, limit, slot, last   int // slot: of the key, -1: none; last: the one that it had last
	place                          lifePlace
	delivered, queuedOnce          bool
	retry, term, due, expiry, ttl  int64
	nacks, again                   int
	dead, stop                     bool
	why                            engine.Why
	policy                         engine.Policy
	// by exact count: deliveries and NACKs where a limit counts them, lapses, and returns that aren't counted
	tried, failed, lapsed, unstarted int64
}

// The operations of a step.
const (
	opAdd = iota
	opGet
	opNack
	opAck
	opWorking
	opEnqueue
	opMove
	opCancel
	opTime
	opAddNamed
	opPause
	opAddJobs
	opBrief
	opFlush
)

// lifeOps has the steps as often as they are to come.
var lifeOps = [32]int{
	opAdd, opAdd, opAdd, opAdd, opEnqueue, opGet, opGet, opGet, opGet, opGet, opNack, opNack, opNack, opNack, opNack, opNack, opAck, opAck, opWorking, opEnqueue, opMove, opMove, opMove, opCancel,
	opTime, opTime, opTime, opAddNamed, opPause, opAddJobs, opBrief, opFlush,
}

type lifePlace int

const (
	waits lifePlace = iota
	works
	delayed
)

// lifeEnd is a kept outcome.
type lifeEnd struct {
	detail string
	until  int64
}

var (
	lifePolicies = []engine.Policy{
		{},
		{Set: engine.SetBackoff, Base: 2, Max: 7},
		{Set: engine.SetMaxNacks, MaxNacks: 2},
		{Set: engine.SetMaxDeliveries, MaxDeliveries: 3},
		{Set: engine.SetMaxLapses, MaxLapses: 2},
		{Set: engine.SetDead | engine.SetMaxNacks, Dead: []byte("graves"), MaxNacks: 1},
		{Set: engine.SetDeadTTL, DeadTTL: 0},
		{Set: engine.SetKeep, Keep: 9},
		{Set: engine.SetBackoff | engine.SetMaxNacks | engine.SetMaxDeliveries | engine.SetMaxLapses | engine.SetKeep, Base: 1, Max: 4, MaxNacks: 3, MaxDeliveries: 4, MaxLapses: 3, Keep: 3},
	}
	lifeLimits = []engine.Limits{{}, {}, {}, {AtOnce: 1}, {AtOnce: 3}, {Rate: engine.Rate{Count: 3, Seconds: 10}}, {Rate: engine.Rate{Count: 40, Seconds: 5}}, {AtOnce: 2, Rate: engine.Rate{Count: 20, Seconds: 5}}}
)

func (m *lifeModel) queue(name string) *lifeQueue {
	if m.queues[name] == nil {
		m.queues[name] = &lifeQueue{}
	}
	return m.queues[name]
}

func (m *lifeModel) policyOf(j *lifeJob) (p engine.Policy) {
	if j.dead {
		return p
	}
	p = m.queue(j.queue).policy
	own := &j.policy
	set := own.Set
	if set&engine.SetBackoff != 0 {
		p.Base, p.Max, p.Jitter = own.Base, own.Max, own.Jitter
	}
	if set&engine.SetMaxNacks != 0 {
		p.MaxNacks = own.MaxNacks
	}
	if set&engine.SetMaxDeliveries != 0 {
		p.MaxDeliveries = own.MaxDeliveries
	}
	if set&engine.SetMaxLapses != 0 {
		p.MaxLapses = own.MaxLapses
	}
	if set&engine.SetDead != 0 {
		p.Dead = own.Dead
	}
	if set&engine.SetDeadTTL != 0 {
		p.DeadTTL = own.DeadTTL
	}
	if set&engine.SetOnExpire != 0 {
		p.ExpiredDies = own.ExpiredDies
	}
	p.Set |= set
	return p
}

// in lists the jobs of a queue at a place, in their order.
func (m *lifeModel) in(queue string, place lifePlace) (list []*lifeJob) {
	for _, j := range m.jobs {
		if j.queue == queue && j.place == place {
			list = append(list, j)
		}
	}
	slices.SortFunc(list, func(a, b *lifeJob) int {
		if place == delayed {
			return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.seq, b.seq))
		}
		return cmp.Or(cmp.Compare(b.prio, a.prio), cmp.Compare(a.seq, b.seq))
	})
	return list
}

// some lists the jobs that are there, by age, or those that are worked on.
func (m *lifeModel) some(inHands bool) (list []*lifeJob) {
	for _, j := range m.jobs {
		if j.queue != "brief" && j.queue != "brief:dead" && (!inHands || j.place == works) {
			list = append(list, j)
		}
	}
	slices.SortFunc(list, func(a, b *lifeJob) int { return cmp.Compare(a.seq, b.seq) })
	return list
}

// slotFor is the slot of a key that a job can have in a queue: the one that it had last, or the lowest; -1: none is free.
func (m *lifeModel) slotFor(j *lifeJob, queue string) int {
	taken := map[int]bool{}
	for _, k := range m.jobs {
		if k != j && k.key == j.key && k.queue == queue && k.slot >= 0 {
			taken[k.slot] = true
		}
	}
	if !taken[j.last] {
		return j.last
	}
	for slot := range j.limit {
		if !taken[slot] {
			return slot
		}
	}
	return -1
}

// push queues a job. A dead letter may be one too many then: that is found out by overfull.
func (m *lifeModel) push(j *lifeJob) {
	j.place, j.delivered, j.queuedOnce, j.due = waits, false, true, 0
}

// overfull ends the oldest dead letters where there are too many.
func (m *lifeModel) overfull() {
	for name, q := range m.queues {
		for list := m.in(name, waits); q.deadMax > 0 && len(list) > q.deadMax && list[0].dead; list = list[1:] {
			m.end(list[0], list[0].reason, nil)
		}
	}
}

// end ends a job, whose outcome is kept as its ACKJOB, the job or its queue says.
func (m *lifeModel) end(j *lifeJob, detail string, r *engine.Result) {
	delete(m.jobs, j.id)
	keep := int64(0)
	switch q := m.queue(j.queue); {
	case r != nil && r.HasKeep:
		keep = r.Keep
	case j.policy.Set&engine.SetKeep != 0:
		keep = j.policy.Keep
	case q.policy.Set&engine.SetKeep != 0:
		keep = q.policy.Keep
	case r != nil && r.Has:
		keep = engine.DefaultKeep
	}
	if keep > 0 {
		m.kept[j.id] = lifeEnd{detail, m.now + keep*1000}
	}
}

// giveUp makes a job a dead letter.
func (m *lifeModel) giveUp(j *lifeJob, why engine.Why, failure *engine.Failure) {
	if failure != nil {
		j.nacks++
		j.reason = string(failure.Reason)
	}
	p := m.policyOf(j)
	if p.Set&engine.SetDeadTTL != 0 && p.DeadTTL == 0 {
		m.end(j, j.reason, nil)
		return
	}
	j.from, j.dead, j.why, j.slot = j.queue, true, why, -1
	if j.queue += ":dead"; len(p.Dead) > 0 {
		j.queue = string(p.Dead)
	}
	j.expiry = max(j.expiry, m.now+7*86_400_000)
	m.push(j)
}

func (m *lifeModel) requeue(j *lifeJob, nack bool) {
	switch {
	case j.stop:
		m.end(j, "", nil)
		return
	case nack:
		j.nacks++
	case j.queuedOnce:
		j.again++
	}
	m.push(j)
}

// rest keeps a job out of its queue.
func (m *lifeModel) rest(j *lifeJob, due int64) {
	j.place, j.delivered, j.queuedOnce, j.due = delayed, false, false, due
}

func (j *lifeJob) rests() bool { return j.place == delayed && j.nacks > 0 }

func (m *lifeModel) nack(j *lifeJob, f *engine.Failure) bool {
	if j == nil || j.place == waits || j.rests() {
		return false
	}
	if j.stop {
		m.end(j, "", nil)
		return true
	}
	if f.HasBody {
		j.body = string(f.Body)
	}
	p := m.policyOf(j)
	if p.Base > 0 || p.MaxNacks > 0 || p.MaxDeliveries > 0 {
		j.failed++
	}
	switch {
	case j.dead:
	case f.Dead:
		m.giveUp(j, engine.WhyNacked, f)
		return true
	case p.MaxNacks > 0 && j.failed >= p.MaxNacks:
		m.giveUp(j, engine.WhyNacks, f)
		return true
	case p.MaxDeliveries > 0 && j.tried-j.unstarted >= p.MaxDeliveries:
		m.giveUp(j, engine.WhyDeliveries, f)
		return true
	}
	if f.Reason != nil {
		j.reason = string(f.Reason)
	}
	span := f.Delay
	if !f.HasDelay && p.Base > 0 {
		span = min(p.Max, p.Base<<(max(j.failed, 1)-1)) * 1000
	}
	if span > 0 {
		j.nacks++
		m.rest(j, m.now+span)
	} else {
		m.requeue(j, true)
	}
	return true
}

func (m *lifeModel) deliver(j *lifeJob, lease int64) {
	j.term = cmp.Or(lease, j.retry)
	j.place, j.delivered, j.due = works, true, m.now+j.term*1000
	if m.policyOf(j).MaxDeliveries > 0 {
		j.tried++
	}
}

func (m *lifeModel) tick() {
	for id, e := range m.kept {
		if e.until <= m.now {
			delete(m.kept, id)
		}
	}
	for _, j := range m.jobs {
		switch {
		case j.expiry <= m.now:
			if p := m.policyOf(j); p.ExpiredDies {
				m.giveUp(j, engine.WhyExpired, nil)
			} else {
				m.end(j, "", nil)
			}
		case j.due == 0 || j.due > m.now:
		case j.place == delayed:
			m.requeue(j, false)
		case j.place == works && j.stop:
			m.end(j, "", nil)
		case j.place == works:
			p := m.policyOf(j)
			if p.MaxLapses > 0 {
				j.lapsed++
			}
			switch {
			case p.MaxLapses > 0 && j.lapsed >= p.MaxLapses:
				m.giveUp(j, engine.WhyLapses, nil)
			case p.MaxDeliveries > 0 && j.tried-j.unstarted >= p.MaxDeliveries:
				m.giveUp(j, engine.WhyDeliveries, nil)
			default:
				m.requeue(j, false)
			}
		}
	}
	for _, q := range m.queues {
		if q.paused <= m.now {
			q.paused = 0
		}
	}
	m.overfull()
}

// move is MOVEJOB of a job.
func (m *lifeModel) move(j *lifeJob, to *engine.Move) (moved bool, refused bool) {
	target := string(to.To)
	switch {
	case j == nil, j.place == works, to.To == nil && !to.HasAt && !j.dead, to.HasAt && to.To == nil && j.dead:
		return false, true
	case to.To == nil && j.dead:
		target = j.from
	case to.To == nil:
		target = j.queue
	}
	queued, timed := j.place == waits, to.HasAt
	due := max(to.At, m.now)
	if !j.dead && target == j.queue && (!to.Ranks || to.Priority == j.prio) {
		if timed && !(queued && due <= m.now) {
			m.rest(j, due)
		}
		return timed, false
	}
	if j.dead || target != j.queue {
		if j.key != "" {
			slot := m.slotFor(j, target)
			if slot < 0 {
				return false, true
			}
			j.slot, j.last = slot, slot
		}
		if j.dead {
			j.again -= int(min(j.unstarted, int64(j.again)))
			j.dead, j.from, j.why, j.tried, j.failed, j.lapsed, j.unstarted = false, "", 0, 0, 0, 0, 0
			j.expiry, queued = m.now+j.ttl*1000, true
		}
		j.queue = target
	}
	if to.Ranks {
		j.prio = to.Priority
	}
	switch {
	case timed && (due > m.now || !queued):
		m.rest(j, due)
	case queued:
		m.push(j)
	}
	return true, false
}

// FuzzLife runs any sequence of operations on a node and on the model: those that say what becomes of jobs that fail, repeat, or must not run too often.
// The first bytes choose the settings of the queues.
func FuzzLife(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 2, 2, 5, 1, 3, 3, 6, 1, 4, 10, 9, 50, 2, 2, 7, 0, 0, 8, 0})
	f.Add([]byte{1, 2, 0, 0, 3, 0, 0, 0, 0, 0, 0, 2, 0, 0, 3, 0, 0, 3, 0, 9, 30, 2, 0, 0, 3, 0, 0, 6, 0, 0, 9, 99, 12, 0, 0})
	f.Add([]byte{0x38, 4, 2, 1, 0, 1, 17, 0, 33, 49, 2, 7, 0, 9, 255, 9, 255, 2, 0, 0, 9, 255, 9, 255, 6, 2, 1, 6, 3, 2, 5, 5, 5})
	f.Add([]byte{0x18, 0x29, 1, 1, 1, 9, 1, 0, 25, 1, 0, 41, 1, 3, 2, 1, 0, 3, 0, 16, 6, 0, 17, 6, 1, 33, 4, 0, 0, 1, 9, 1, 13, 1, 1, 9, 40})
	f.Add([]byte{5, 6, 0, 3, 11, 0, 11, 0, 14, 7, 0, 1, 10, 0, 2, 8, 0, 2, 3, 0, 4, 0, 64, 9, 200, 9, 200, 9, 200})
	f.Fuzz(playTheModel)
}

// TestLifeModel plays random operations as FuzzLife does: the same ones each time, and with -walk.seeds others.
func TestLifeModel(t *testing.T) {
	play := func(seed uint64) {
		r := rand.New(rand.NewPCG(seed, 3))
		ops := make([]byte, 600)
		for i := range ops {
			ops[i] = byte(r.Uint32())
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) { playTheModel(t, ops) })
	}
	if *walkSeed != 0 {
		play(*walkSeed)
		return
	}
	for i := range uint64(40) {
		play(i + 1)
	}
	for range *walkSeeds {
		play(rand.Uint64())
	}
}

func playTheModel(t *testing.T, ops []byte) {
	if len(ops) > 600 {
		ops = ops[:600]
	}
	at := 0
	next := func() int {
		if at >= len(ops) {
			return 0
		}
		at++
		return int(ops[at-1])
	}
	m := &lifeModel{now: 1_700_000_000_000, jobs: map[store.ID]*lifeJob{}, kept: map[store.ID]lifeEnd{}, done: map[store.ID]bool{}, queues: map[string]*lifeQueue{}}
	names := []string{"q0", "q1"}
	for _, name := range names {
		q, b := m.queue(name), next()
		q.policy, q.limits = lifePolicies[b%16%len(lifePolicies)], lifeLimits[b>>4%len(lifeLimits)]
	}
	m.queue("q0:dead").deadMax = next() % 4
	m.queue("brief").policy = engine.Policy{Set: engine.SetOnExpire, ExpiredDies: true}
	settings := func(queue []byte) *lifeQueue { return m.queue(string(queue)) }
	n, _, _ := steadyNode(m.now, func() int64 { return m.now })
	n.SetPolicies(&engine.Policies{
		Generation: 1, Any: true, Counting: true, Keeping: true, Rated: true, DeadMaxed: true,
		Of: func(queue []byte) *engine.Policy {
			if p := &settings(queue).policy; p.Set != 0 {
				return p
			}
			return nil
		},
		LimitsOf: func(queue []byte) engine.Limits { return settings(queue).limits }, DeadMaxOf: func(queue []byte) int64 { return int64(settings(queue).deadMax) },
		AddCron: func(c *engine.Cron, a *engine.Add) error {
			*a = engine.Add{Queue: c.Queue, Body: c.Body, TTL: 1_000_000, Retry: 60, Replicate: 1}
			return nil
		},
	})
	every := int64(1 + next()%7)
	first, err := n.SetCron("e", engine.Cron{Every: every, Missed: engine.MissedAll, Queue: []byte("cron"), Body: []byte("b")})
	require.NoError(t, err)
	all := append(names, "q0:dead", "q1:dead", "graves", "brief", "brief:dead")
	var known []store.ID
	made := func(id store.ID, j *lifeJob) *lifeJob {
		m.seq++
		j.id, j.seq, j.slot = id, m.seq, -1
		if j.ttl == 0 {
			j.ttl = 1_000_000
		}
		j.expiry = m.now + j.ttl*1000
		m.jobs[id] = j
		known = append(known, id)
		return j
	}
	for at < len(ops) {
		op := next()
		arg := next()
		m.op = lifeOps[op%len(lifeOps)]
		queue := names[op>>5&1]
		var j *lifeJob
		var id store.ID
		if len(known) > 0 {
			id = known[len(known)-1-arg%min(len(known), 16)]
			if list := m.some(m.op >= opNack && m.op <= opEnqueue && arg&2 == 0); arg&1 == 0 && len(list) > 0 { // mostly one of those that are there
				id = list[(arg>>2)%len(list)].id
			}
			j = m.jobs[id]
		}
		switch m.op {
		case opAdd:
			a := engine.Add{
				Queue: []byte(queue), Body: []byte{byte(arg)}, Replicate: 1, TTL: 1_000_000, Retry: int64(5 + arg&31), Priority: []int{0, 0, 0, 7, -7}[next()%5], MaxLen: 0,
			}
			like := &lifeJob{queue: queue, body: string(a.Body), retry: a.Retry, prio: a.Priority, limit: 1}
			kind := next()
			if p := lifePolicies[kind%32%len(lifePolicies)]; kind&32 != 0 {
				a.Policy, like.policy = &p, p
			}
			switch kind >> 6 {
			case 1:
				require.True(t, a.DueAt(m.now+int64(next())*37, m.now)) // AT, with a fraction of a second
				like.due = a.At
				a.TTL += a.Delay
			case 2:
				a.Delay = int64(next() % 20)
				if like.due = 0; a.Delay > 0 {
					like.due = m.now + a.Delay*1000
				}
			case 3:
				like.key, like.limit = fmt.Sprint("k", next()%3), 1+arg%3
				a.Unique = engine.Unique{Strategy: store.UniqueUntil, Conflict: store.ConflictDrop, Keyed: true, Key: []byte(like.key), Limit: like.limit}
			}
			got, wait, err := n.AddJob(&a)
			require.False(t, wait)
			if like.key != "" {
				slot := m.slotFor(like, queue)
				require.Equal(t, slot < 0, err == engine.ErrDropped, "%v", err)
				if slot < 0 {
					break
				}
				require.NoError(t, err)
				made(got, like).slot, like.last = slot, slot
			} else {
				require.NoError(t, err)
				made(got, like)
			}
			if like.place = delayed; like.due == 0 {
				m.push(like)
			}
		case opGet: // with and without LEASE
			count, lease := 1+arg%5, int64(arg>>4)
			if op>>6 == 3 {
				queue += ":dead"
			}
			q := m.queue(queue)
			got := n.FetchFor([]*store.Queue{n.Queue([]byte(queue))}, count, true, lease, nil)
			want := m.in(queue, waits)
			want = want[:min(len(want), count)]
			free := math.MaxInt
			if q.limits.AtOnce > 0 {
				free = max(0, int(q.limits.AtOnce)-len(m.in(queue, works)))
			}
			switch {
			case q.paused > m.now:
				want = nil
			case q.limits.Count == 0:
				want = want[:min(len(want), free)]
			default: // how many there are depends on when its blocks were claimed
				require.LessOrEqual(t, len(got), min(len(want), free))
				idle := m.now - int64(q.limits.Seconds)*1125
				if len(q.times) == 0 || q.times[len(q.times)-1] < idle {
					require.Equal(t, len(want) > 0 && free > 0, len(got) > 0, "nothing was delivered for long")
				}
				want = want[:len(got)]
			}
			require.Len(t, got, len(want))
			for i, w := range want {
				require.Equal(t, w.id, got[i].ID)
				m.deliver(w, lease)
				q.times = append(q.times, m.now)
			}
			if most := int(q.limits.Count); most > 0 && len(q.times) > most {
				require.GreaterOrEqual(t, m.now-q.times[len(q.times)-1-most], q.limits.Seconds*1000, "more than the rate")
			}
		case opNack:
			var f engine.Failure
			switch arg >> 4 {
			case 1, 2:
				f.HasDelay, f.Delay = true, int64(next())*113
			case 3:
				f.Dead = true
			case 4:
				f.HasBody, f.Body = true, []byte(fmt.Sprint("body ", next()))
			}
			if arg&8 != 0 {
				f.Reason = []byte(fmt.Sprint("reason ", next()))
			}
			if f.HasBody {
				require.NoError(t, n.TakesBody(&id, f.Body))
			}
			want := m.nack(j, &f)
			require.Equal(t, want, n.Nack(&id, &f))
		case opAck: // with a result
			var r *engine.Result
			if arg&16 != 0 {
				r = &engine.Result{Has: arg&32 != 0, HasKeep: arg&64 != 0, Keep: int64(arg & 3)}
				if r.Has {
					r.Data = []byte(fmt.Sprint("result ", arg))
				}
			}
			require.Equal(t, j != nil, n.Finish(&id, r))
			if j != nil {
				detail := ""
				if r != nil {
					detail = string(r.Data)
				}
				m.end(j, detail, r)
				m.done[id] = true
			} else if e, kept := m.kept[id]; kept && r != nil { // a second word changes nothing
				m.kept[id] = e
			}
		case opWorking:
			term, _, err := n.Working(&id, engine.Work{})
			_, kept := m.kept[id]
			switch {
			case kept:
				require.Error(t, err)
			case j == nil:
				require.Error(t, err)
			case j.stop:
				require.Equal(t, engine.ErrCancelled, err)
			case j.place == delayed && (j.nacks > 0 || j.again == 0), j.place == waits && j.nacks+j.again == 0 && !j.queuedOnce:
				require.NoError(t, err)
			default:
				q := m.queue(j.queue)
				if j.place != works && q.limits.AtOnce > 0 && len(m.in(j.queue, works)) >= int(q.limits.AtOnce) {
					require.Equal(t, engine.ErrLockLost, err)
					break
				}
				require.NoError(t, err)
				if j.place != works {
					j.term = j.retry
				}
				require.Equal(t, j.term, term)
				j.place, j.delivered, j.queuedOnce, j.due = works, true, true, m.now+j.term*1000
				j.expiry = max(j.expiry, m.now+2*j.term*1000)
			}
		case opEnqueue: // and UNSTARTED
			want := j != nil && j.place != waits
			if arg&64 != 0 {
				require.Equal(t, want, n.EnqueueUnstarted(&id))
				if want && j.place == works && j.queuedOnce {
					j.unstarted++
				}
			} else {
				require.Equal(t, want, n.Enqueue(&id))
			}
			if want {
				if j.rests() {
					j.queuedOnce = true
				}
				m.requeue(j, false)
			}
		case opMove:
			var to engine.Move
			if arg&64 == 0 {
				to.To = []byte(names[arg>>4&1])
			}
			if to.Ranks = arg&32 != 0; to.Ranks {
				to.Priority = next()%5 - 2
			}
			if to.HasAt = arg&128 != 0; to.HasAt {
				to.At = m.now - 500 + int64(next())*53
			}
			before := fmt.Sprintf("%+v %+v at %d", j, to, m.now)
			moved, err := n.Move(&id, &to)
			want, refused := m.move(j, &to)
			require.Equal(t, refused, err != nil, "%s: %v", before, err)
			require.Equal(t, want, moved, before)
		case opCancel: // and SOFT
			soft := arg&64 != 0
			var got int
			if j == nil {
				break // an end of a job that isn't known takes memory
			} else if soft {
				got = n.CancelSoftly(&id, nil)
			} else {
				got = n.CancelJob(&id)
			}
			require.Equal(t, 1, got)
			if soft && j.place == works {
				j.stop = true
			} else {
				m.end(j, "", nil)
			}
		case opTime:
			m.now += int64(arg) * 41
		case opAddNamed:
			name := fmt.Sprint("name ", arg%5)
			id := engine.NamedID([]byte(name))
			_, kept := m.kept[id]
			there := m.jobs[id] != nil || kept || m.done[id]
			a := engine.Add{Queue: []byte(queue), Body: []byte(name), Replicate: 1, TTL: 1_000_000, Retry: 10, Name: []byte(name)}
			added := n.Stats.Added
			got, err := n.AddNamed(&a)
			require.NoError(t, err)
			require.Equal(t, id, got)
			isNew := n.Stats.Added > added
			if there {
				require.False(t, isNew, "the job is known")
			}
			if isNew {
				m.push(made(id, &lifeJob{queue: queue, body: name, retry: 10, limit: 1}))
			}
		case opPause: // with an end and without
			q := m.queue(queue)
			mask, span := uint8(engine.PauseOut), int64(0)
			switch arg % 4 {
			case 0:
				mask, q.paused = 0, 0
			case 1:
				q.paused = math.MaxInt64
			default:
				span = int64(1+arg) * 50
				q.paused = m.now + span
			}
			_, err := n.SetPause([]byte(queue), mask, span)
			require.NoError(t, err)
		case opAddJobs:
			bodies := make([][]byte, 1+arg%5)
			for i := range bodies {
				bodies[i] = []byte{byte(i)}
			}
			a := engine.Add{Queue: []byte(queue), Replicate: 1, TTL: 1_000_000, Retry: 20, Delay: int64(arg >> 5), Priority: arg&1 - arg>>1&1}
			b, wait, err := n.AddJobs(&a, bodies, nil)
			require.NoError(t, err)
			require.False(t, wait)
			require.Len(t, b.Answers, len(bodies))
			for i, answer := range b.Answers {
				require.NoError(t, answer.Err)
				j := made(answer.ID, &lifeJob{queue: queue, body: string(bodies[i]), retry: 20, limit: 1, prio: a.Priority})
				if j.place = delayed; a.Delay == 0 {
					m.push(j)
				} else {
					j.due = m.now + a.Delay*1000
				}
			}
		case opBrief: // a job that expires before anybody gets it
			a := engine.Add{Queue: []byte("brief"), Replicate: 1, TTL: int64(1 + arg%9), Retry: 1}
			if arg&64 != 0 {
				a.Policy = &engine.Policy{Set: engine.SetOnExpire}
			}
			got, _, err := n.AddJob(&a)
			require.NoError(t, err)
			j := made(got, &lifeJob{queue: "brief", retry: 1, limit: 1, ttl: a.TTL})
			if known = known[:len(known)-1]; a.Policy != nil {
				j.policy = *a.Policy
			}
			m.push(j)
		case opFlush:
			if arg%8 == 0 {
				n.FlushQueue([]byte(queue), arg&16 != 0, false)
				for _, place := range []lifePlace{waits, delayed, works} {
					if place == works && arg&16 == 0 {
						continue
					}
					for _, j := range m.in(queue, place) {
						delete(m.jobs, j.id) // KEEP isn't obeyed
					}
				}
			}
		}
		for range 4 {
			n.SetNow(m.now)
			n.Tick()
			n.Effects()
		}
		m.tick()
		m.compare(t, n, all)
	}
	// The recurring job has one job for each of its slots.
	for range 5 {
		m.now += 1000
		n.SetNow(m.now)
		for range 3 {
			n.Tick()
			n.Effects()
		}
	}
	s, ok := n.CronNamed("e")
	require.True(t, ok)
	slots := (m.now/1000-first)/every + 1
	require.InDelta(t, slots, s.Made+s.LeftOut, 2)
}

// compare compares the node with the model.
func (m *lifeModel) compare(t *testing.T, n *engine.Node, queues []string) {
	for id, w := range m.jobs {
		j := n.Job(&id)
		require.NotNil(t, j, "%+v", w)
		require.Equal(t, w.queue, string(j.Queue.NameBytes()), "%+v", w)
		require.Equal(t, w.place == waits, j.State == store.StateQueued, "%+v", w)
		require.Equal(t, w.place == works, j.Place == store.InWorking, "%+v", w)
		require.Equal(t, w.place == delayed, j.Reason() == store.Delayed, "%+v", w)
		require.Equal(t, w.nacks, int(j.Nacks), "%+v", w)
		require.Equal(t, max(0, w.again-int(w.unstarted)), int(engine.Additional(j)), "%+v", w)
		require.Equal(t, w.prio, j.Priority())
		require.Equal(t, w.body, string(j.Body()))
		require.Equal(t, w.dead, j.DeadLetter())
		if slot, has := n.KeySlot(j); w.limit > 1 && w.key != "" {
			require.Equal(t, w.slot >= 0, has, "%+v", w)
			require.Equal(t, max(w.slot, 0), slot, "operation %d: %+v", m.op, w)
		}
		if w.place != waits {
			require.Equal(t, w.due, n.NextRequeue(j), "%+v", w)
		}
		f, _ := engine.FailureOf(j)
		require.Equal(t, w.reason, string(f.Reason), "%+v", w)
		if d, _ := engine.DeathOf(j); w.dead {
			require.Equal(t, w.why, d.Why)
			require.Equal(t, w.from, string(d.From))
		}
	}
	for id, want := range m.kept {
		j := n.Job(&id)
		require.True(t, j != nil && j.Kept(), "operation %d %+v", m.op, want)
		require.Equal(t, want.detail, string(j.Body()))
	}
	here, dead := len(m.jobs)+len(m.kept), 0
	if q := n.Queue([]byte("cron")); q != nil {
		here += int(q.Len)
	}
	require.EqualValues(t, here, n.Jobs())
	for _, name := range queues {
		q := n.Queue([]byte(name))
		want := m.in(name, waits)
		for _, w := range want {
			if w.dead {
				dead++
			}
		}
		if q == nil {
			require.Empty(t, want, name)
			require.Empty(t, m.in(name, delayed), name)
			continue
		}
		require.EqualValues(t, len(want), q.Len, name)
		i := 0
		for j := q.Head; j != nil; j = j.Next {
			require.Equal(t, want[i].id, j.ID, "%s: %d", name, i)
			i++
		}
		left := max(0, m.queue(name).paused-m.now)
		if m.queue(name).paused == math.MaxInt64 {
			left = -1
		}
		require.Equal(t, left, n.PauseLeft([]byte(name), q), name)
		// WIP DELAYED, by pages.
		late := m.in(name, delayed)
		behind, more := store.DelayedPlace{At: math.MinInt64}, true
		var page []engine.DelayedJob
		for more {
			page, more = n.Delayed(q, behind, 3)
			require.LessOrEqual(t, len(page), min(3, len(late)), name)
			for i := range page {
				w := late[i]
				require.Equal(t, w.id, page[i].ID, name)
				require.Equal(t, []int64{w.due, int64(w.nacks + max(0, w.again-int(w.unstarted)))}, []int64{page[i].At, int64(page[i].Deliveries)}, name)
			}
			if late = late[len(page):]; more {
				behind = page[len(page)-1].DelayedPlace
			}
		}
		require.Empty(t, late, name)
	}
	require.EqualValues(t, dead, n.DeadNow())
}
