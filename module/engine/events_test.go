package engine_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// account is a node whose jobs are accounted for.
type account struct {
	*testing.T
	n      *engine.Node
	keys   *keys
	r      *rand.Rand
	ids    []store.ID // of all jobs that were added, some of which have ended
	counts map[string]int64
}

// carryOut counts the events of the last call.
func (a *account) carryOut() {
	effects := a.n.Effects()
	for i := range effects {
		h, ok := effects[i].Client.(*engine.Happening)
		if !ok {
			continue
		}
		require.LessOrEqual(a, len(h.Fields), 58, "the stream takes no more")
		require.Zero(a, len(h.Fields)%2)
		names := map[string]bool{}
		for f := h.Fields; len(f) > 0; f = f[2:] {
			require.NotEmpty(a, f[1], f[0])
			require.False(a, names[f[0]], "%s twice in %q", f[0], h.Fields)
			names[f[0]] = true
		}
		name := h.Event.String()
		switch {
		case name == "requeue" && h.Field("why") != "":
			name = "unheard"
		case name == "cancel" && h.Field("why") == "flush":
			name = "flushed"
		}
		a.counts[name]++
	}
}

// any is one of the jobs, of the later ones rather than the first.
func (a *account) any() *store.ID {
	if len(a.ids) == 0 {
		return &store.ID{}
	}
	return &a.ids[len(a.ids)-1-a.r.IntN(min(len(a.ids), 60))]
}

func (a *account) queue() []byte { return fmt.Append(nil, "q", a.r.IntN(3)) }

func (a *account) add() {
	r := a.r
	add := engine.Add{Queue: a.queue(), Body: fmt.Append(nil, "body", len(a.ids)), Replicate: 1, Retry: int64(r.IntN(4)) * 20, TTL: 30 + r.Int64N(1200)}
	if r.IntN(4) == 0 {
		add.Delay = r.Int64N(30)
	}
	switch r.IntN(6) {
	case 0:
		add.Unique = engine.Unique{
			Strategy: []uint8{store.UniqueBefore, store.UniqueDuring, store.UniqueUntil}[r.IntN(3)], Keyed: true, Key: fmt.Append(nil, "k", r.IntN(4)),
			Busy: []uint8{store.BusyWait, store.BusyDrop, store.BusyDead, store.BusyReschedule}[r.IntN(4)], BusyDelay: 5,
			Conflict: []uint8{store.ConflictDrop, store.ConflictReplace, store.ConflictReschedule}[r.IntN(3)], ConflictDelay: 5,
		}
	case 1:
		add.Members = engine.Members{After: []store.ID{*a.any()}, OnDead: uint8(r.IntN(3))}
	case 2:
		add.Members = engine.Members{Deferred: true}
	case 3:
		p := &engine.Policy{}
		for _, set := range []engine.PolicySet{engine.SetBackoff, engine.SetMaxNacks, engine.SetMaxDeliveries, engine.SetDeadTTL, engine.SetOnExpire, engine.SetMaxLapses, engine.SetKeep} {
			if r.IntN(2) == 0 {
				p.Set |= set
			}
		}
		p.Base, p.Max, p.MaxNacks, p.MaxDeliveries, p.MaxLapses, p.DeadTTL, p.ExpiredDies, p.Keep = 5, 60, 2, 3, 2, int64(r.IntN(2))*300, true, int64(r.IntN(100))
		if add.Retry == 0 {
			p.Set &= engine.SetDeadTTL | engine.SetOnExpire | engine.SetKeep
		}
		add.Policy = p
	}
	if id, _, err := a.n.AddJob(&add); err == nil {
		a.ids = append(a.ids, id)
	}
}

func (a *account) failure() *engine.Failure {
	return &engine.Failure{HasDelay: a.r.IntN(2) == 0, Delay: a.r.Int64N(20_000), Dead: a.r.IntN(6) == 0, Reason: []byte("a reason")}
}

// step does something at random.
func (a *account) step() {
	n, r := a.n, a.r
	switch r.IntN(22) {
	case 0, 1, 2, 3, 4:
		a.add()
	case 5, 6, 7, 8, 9, 10:
		queue := a.queue()
		if r.IntN(5) == 0 {
			queue = append(queue, engine.DeadSuffix...)
		}
		for _, j := range n.Fetch([]*store.Queue{n.Queue(queue)}, 1+r.IntN(2), false, nil) {
			if r.IntN(3) == 0 {
				j = n.SetWorker(j, []byte("ann"))
			}
			d, id := engine.DeliveryOf(j), j.ID
			switch r.IntN(8) {
			case 0:
				n.Undeliver(d)
			case 1, 2:
				n.Ack(&id)
			case 3, 4:
				n.Nack(&id, a.failure())
			}
			a.carryOut()
		}
	case 11:
		n.Finish(a.any(), &engine.Result{Has: true, Data: []byte("result"), HasKeep: r.IntN(2) == 0, Keep: r.Int64N(60)})
	case 12:
		n.FastAck(a.any())
	case 13, 14:
		n.Nack(a.any(), a.failure())
	case 15:
		if r.IntN(2) == 0 {
			n.CancelFor(a.any(), []byte("a reason"))
		} else {
			n.CancelSoftly(a.any(), nil)
		}
	case 16:
		if r.IntN(4) == 0 {
			n.Delete(a.any())
		}
	case 17:
		if r.IntN(6) == 0 {
			n.FlushQueue(a.queue(), r.IntN(2) == 0, false)
		}
	case 18:
		m := &engine.Move{}
		if r.IntN(2) == 0 {
			m.To = a.queue()
		}
		_, _ = n.Move(a.any(), m)
	case 19:
		if r.IntN(2) == 0 {
			n.Enqueue(a.any())
		} else {
			n.Dequeue(a.any())
		}
	case 20:
		_, _, _ = n.Working(a.any(), engine.Work{Progress: []byte("half")})
		_, _, _ = n.Release(a.any(), nil, false, false)
	case 21:
		switch r.IntN(8) {
		case 0:
			n.SetMemory(0.96)
			_ = n.HasRoom()
			n.SetMemory(0)
		case 1:
			if q := n.Queue(a.queue()); q != nil {
				a.carryOut()
				a.keys.Drop([]*store.Queue{q})
			}
		case 2:
			_, _ = n.SetPause(a.queue(), uint8(r.IntN(4)), 0)
		}
	}
}

// E9: on a node alone the counters of INFO account for each job, and each counter has as many events.
func TestLifeE9(t *testing.T) {
	for range 6 {
		seed := uint64(time.Now().UnixNano())
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, k, _ := node(now)
			a := &account{T: t, n: n, keys: k, r: rand.New(rand.NewPCG(seed, 0)), counts: map[string]int64{}}
			n.SetEvents(engine.AllEvents, 0)
			for end := now + time.Hour.Milliseconds(); now < end; now += a.r.Int64N(2_000) {
				n.SetNow(now)
				a.step()
				a.carryOut()
				n.Tick()
				a.carryOut()
			}
			for range 20 { // what goes bit by bit is gone
				now++
				n.SetNow(now)
				n.Tick()
				a.carryOut()
			}
			st := &n.Stats
			kept, _ := n.Results()
			t.Logf("%+v, kept %d, there %d, events %v", *st, kept, n.Jobs(), a.counts)
			assert.Equal(t, st.Added, st.Acked+st.Cancelled+st.Flushed+st.Expired+st.Dropped+st.Deleted+st.Evicted+int64(n.Jobs()-kept))
			for name, count := range map[string]int64{
				"add": st.Added, "deliver": st.Delivered + st.Abandoned, "done": st.Acked, "nack": st.Nacked, "putoff": st.FailedPutOff, "lapse": st.Lapsed,
				"requeue": st.Requeued, "unheard": st.Abandoned, "dead": st.Dead, "move": st.Moved, "cancel": st.Cancelled, "flushed": st.Flushed, "expire": st.Expired, "drop": st.Dropped,
			} {
				assert.Equal(t, count, a.counts[name], name)
			}
		})
	}
}
