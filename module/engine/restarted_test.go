package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// disk is what a node's log holds.
type disk struct {
	queue  map[store.ID][]byte
	record map[store.ID][]byte
	order  []store.ID
}

func (d *disk) take(n *engine.Node) {
	for _, e := range n.Effects() {
		switch e.Kind {
		case engine.LogJob:
			d.order = append(slices.DeleteFunc(d.order, func(id store.ID) bool { return id == e.Job.ID }), e.Job.ID)
			d.queue[e.Job.ID] = slices.Clone(e.Job.Queue.NameBytes())
			d.record[e.Job.ID] = slices.Clone(e.Job.Record())
		case engine.LogState:
			if d.record[e.Job.ID] == nil {
				panic("SETJOB of a job that isn't logged")
			}
			d.record[e.Job.ID] = slices.Clone(e.Job.Record())
		case engine.LogMove:
			d.queue[e.Job.ID] = slices.Clone(e.Job.Queue.NameBytes())
			d.record[e.Job.ID] = slices.Clone(e.Job.Record())
		case engine.LogDelete:
			delete(d.record, e.ID)
		}
	}
}

// restarted returns the node that results from an orderly end of n and a start at the same time. An orderly end
// logs the jobs that clients have.
func (d *disk) restarted(t *testing.T, n *engine.Node, now int64) *engine.Node {
	for id := range d.record {
		j := n.Job(&id)
		require.NotNil(t, j, "the log has a job that is gone")
		if j.Retry > 0 && j.Place == store.InWorking {
			d.record[id] = slices.Clone(j.Record())
		}
	}
	m, _, _ := node(now)
	m.BeginLoading()
	for _, id := range d.order {
		if rec := d.record[id]; rec != nil {
			require.NoError(t, m.ApplyJob(d.queue[id], rec))
		}
	}
	m.EndLoading()
	m.Settle(engine.Trust{Exact: true, Same: true})
	for range 5 {
		m.Effects()
		m.Tick()
	}
	return m
}

// standing describes what of a job must outlive a restart.
func standing(n *engine.Node, id store.ID) string {
	j := n.Job(&id)
	switch {
	case j == nil || j.State == store.StateAcked: // an acknowledged job may go
		return "done"
	case j.State == store.StateQueued:
		return fmt.Sprintf("queued in %s, %s", j.Queue.NameBytes(), counters(n, j))
	case j.Place == store.InWorking:
		return fmt.Sprintf("in progress until %d, of %s, %s", j.QTime, j.Queue.NameBytes(), counters(n, j))
	case j.Reason() == store.Deferred || j.Reason() == store.Blocked:
		return fmt.Sprintf("held back for %d, of %s, %s", len(waitsFor(n, j)), j.Queue.NameBytes(), counters(n, j))
	}
	return fmt.Sprintf("active until %d, delayed %v, of %s, %s", j.QTime, j.Reason() == store.Delayed, j.Queue.NameBytes(), counters(n, j))
}

func counters(n *engine.Node, j *store.Job) (text string) {
	text = fmt.Sprintf("%d nacks, %d additional, delivered %v", j.Nacks, j.Deliveries, j.Flags&store.FlagDelivered != 0)
	if j.Unique() != nil {
		text += fmt.Sprintf(", locks %v %v", n.HasLock(j, store.LockWait), n.HasLock(j, store.LockRun))
	}
	return text
}

// After random commands an orderly restart leaves each job as it was, and counts it as before.
func TestRandomRestarts(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 12))
		n, k, _ := node(dawn)
		now := int64(dawn)
		d := &disk{queue: map[store.ID][]byte{}, record: map[store.ID][]byte{}}
		var known []store.ID
		for range 40 {
			var id store.ID
			if len(known) > 0 {
				id = known[r.IntN(len(known))]
			}
			queue := fmt.Append(nil, "q", r.IntN(2))
			n.SetNow(now)
			switch r.IntN(17) {
			case 0, 1, 2, 3, 4:
				a := randomAdd(r, known)
				a.Queue = queue
				if id, _, err := n.AddJob(&a); err == nil {
					known = append(known, id)
				}
			case 5, 6, 7:
				n.Fetch([]*store.Queue{n.Queue(queue)}, 1+r.IntN(2), true, nil)
			case 8:
				n.Ack(&id)
			case 9:
				n.Nack(&id, &engine.Failure{})
			case 10:
				n.Enqueue(&id)
			case 11:
				n.Dequeue(&id)
			case 12:
				_, _, _ = n.Working(&id, engine.Work{})
			case 13:
				_, _, _ = n.Release(&id, nil, r.IntN(2) == 0, false)
			case 14:
				n.CancelJob(&id)
			case 15:
				now += int64(r.IntN(8000))
				n.SetNow(now)
				n.Tick()
			case 16:
				q := n.Queue(queue)
				if q == nil || r.IntN(4) > 0 {
					n.Delete(&id)
					break
				}
				k.Drop([]*store.Queue{q})
				for id := range d.record {
					if string(d.queue[id]) == string(queue) {
						delete(d.record, id)
					}
				}
			}
			d.take(n)
		}
		for range 20 { // until all dependents have been followed
			n.Tick()
			d.take(n)
		}
		m := d.restarted(t, n, now)
		for _, id := range known {
			require.Equal(t, standing(n, id), standing(m, id), "seed %d, now %d, %s", seed, now, id.String())
		}
		for _, r := range []store.Reason{store.Delayed, store.Deferred, store.Blocked} {
			require.Equal(t, n.Counted(r), m.Counted(r), "seed %d, reason %d", seed, r)
		}
	}
}

func randomAdd(r *rand.Rand, known []store.ID) engine.Add {
	a := engine.Add{Replicate: 1, Retry: []int64{0, 5, 30}[r.IntN(3)], TTL: 600}
	if r.IntN(3) == 0 {
		a.Delay = 20
	}
	switch kind := r.IntN(6); {
	case kind == 0:
		a.Deferred = true
	case len(known) == 0:
	case kind == 1:
		a.BlockedBy = &known[r.IntN(len(known))]
	case kind == 2:
		a.After, a.OnDead = []store.ID{known[r.IntN(len(known))]}, uint8(r.IntN(3))
	}
	if r.IntN(2) == 0 {
		a.Unique = engine.Unique{Strategy: uint8(1 + r.IntN(4)), Keyed: true, Key: []byte("k"), Conflict: []uint8{store.ConflictDrop, store.ConflictReschedule}[r.IntN(2)], ConflictDelay: 7}
		if a.Unique.Strategy == store.UniqueDuring || a.Unique.Strategy == store.UniqueBoth {
			a.Unique.Busy, a.Unique.BusyDelay = []uint8{store.BusyWait, store.BusyReschedule, store.BusyDead, store.BusyDrop}[r.IntN(4)], 9
		}
	}
	return a
}
