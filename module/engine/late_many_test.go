package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/entries"
	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
	"jobmesh/module/wire"
)

// duo is two nodes, whose messages are carried by hand.
type duo struct {
	n     [2]*engine.Node
	id    [2]wire.NodeID
	now   int64
	cut   bool
	queue [2][][]byte // to each node
}

func newDuo() *duo {
	d := &duo{now: dawn}
	for i := range d.n {
		id := fmt.Sprintf("%040x", 0xabcdef00+i*0x11) // 40 hex digits
		id = fmt.Sprintf("%08x", 0x10000000*(i+1)) + id[8:]
		k := &keys{boxes: map[*store.Queue]unsafe.Pointer{}, taken: map[string]bool{}}
		k.n = engine.New(engine.Config{Alloc: storetest.New(), Keys: k, Random: rand.NewPCG(uint64(i), 2), NodeID: id, Now: d.now, NodeTimeout: 15_000})
		k.n.SetKnown(engine.Known{All: true})
		d.n[i] = k.n
		d.id[i], _ = wire.ParseNodeID(id)
	}
	d.join()
	return d
}

var allFeatures = engine.Features{Batches: true, Counts: true, Entries: true, Copies: true, Flushes: true, Jobs: true, Failures: true, Names: true, Delays: true, Results: true, Replaces: true, Bodies: true, Bounds: true, Returns: true}

func (d *duo) join() {
	d.cut = false
	for i, n := range d.n {
		d.do(i, func() {
			n.SetLife(d.id[1-i], 1)
			n.SetFeatures(d.id[1-i], allFeatures)
			n.Mesh().Up(d.id[1-i], fmt.Sprint("10.0.0.", i, ":1"), true)
		})
	}
}

func (d *duo) part() {
	d.cut = true
	d.queue = [2][][]byte{}
	for i, n := range d.n {
		d.do(i, func() { n.Mesh().Down(d.id[1-i]) })
	}
}

// do makes a node do something.
func (d *duo) do(i int, f func()) {
	n := d.n[i]
	n.SetNow(d.now)
	f()
	effects := n.Effects()
	for k := range effects {
		switch e := &effects[k]; {
		case e.Kind == engine.Send && !d.cut:
			d.queue[1-i] = append(d.queue[1-i], slices.Clone(n.Message(e)))
		case e.Kind == engine.NodesChanged:
			n.PastKept(n.Past())
		}
	}
}

func (d *duo) run(ms int) {
	for range ms {
		d.now++
		for i, n := range d.n {
			d.do(i, func() { n.Tick() })
			msgs := d.queue[i]
			d.queue[i] = nil
			for _, b := range msgs {
				d.do(i, func() { n.Receive(d.id[1-i], b) })
			}
		}
	}
}

// tombs makes the node forget flushes of so many queues: as if they had been flushed, and were the oldest of more than 1000.
func (d *duo) tombs(count int) {
	for q := range count {
		if q%50 == 0 {
			d.now++
		}
		d.do(0, func() {
			name := fmt.Sprint("mail-of-user-", q)
			d.n[0].ChangeEntry(engine.EntryFlush, name, []byte{1, 0})
			d.n[0].ChangeEntry(engine.EntryFlush, name, nil)
		})
	}
}

// A recurring job that was deleted while a node was away stays deleted, however many queues are flushed until that node is back.
func TestLateFlushesLeaveDeletedCrons(t *testing.T) {
	d := newDuo()
	d.run(1000)
	d.do(0, func() {
		_, err := d.n[0].SetCron("nightly", engine.Cron{Every: 3600, Queue: []byte("q"), Body: []byte("b"), Any: true})
		require.NoError(t, err)
	})
	d.run(3000)
	require.NotNil(t, d.n[1].Entries().Get(engine.EntryCron, "nightly"))
	d.part()
	d.run(10)
	d.do(0, func() { d.n[0].ChangeEntry(engine.EntryCron, "nightly", nil) })
	d.tombs(10_000)
	assert.LessOrEqual(t, d.n[0].Entries().Tombstones(), entries.MostFew+1)
	d.join()
	d.run(10_000)
	assert.Nil(t, d.n[0].Entries().Get(engine.EntryCron, "nightly"), "node 0")
	assert.Nil(t, d.n[1].Entries().Get(engine.EntryCron, "nightly"), "node 1")
}

func (d *duo) add(t *testing.T, i int, queue string, count int) {
	for range count {
		d.do(i, func() {
			_, _, err := d.n[i].AddJob(&engine.Add{Queue: []byte(queue), Body: []byte("b"), Replicate: 1, Retry: 10000, TTL: 86400})
			require.NoError(t, err)
		})
	}
}

// After JOBMESH CLUSTER RESET, HARD or SOFT, a node's new jobs go by a late flush as those of any node.
func TestLateFlushAfterAReset(t *testing.T) {
	for _, kind := range []string{"none", "soft, without jobs before", "soft", "hard"} {
		t.Run(kind, func(t *testing.T) {
			d := newDuo()
			d.run(1000)
			if kind == "soft" || kind == "hard" {
				d.add(t, 1, "q", 1)
			}
			d.part()
			if kind != "none" {
				d.do(1, func() { d.n[1].Reset() })
			}
			if kind == "hard" {
				id := fmt.Sprintf("%08x%032x", 0x77777777, 5)
				d.do(1, func() { d.n[1].SetNodeID(id) })
				d.do(0, func() { d.n[0].Mesh().Forget(d.id[1]) })
				d.id[1], _ = wire.ParseNodeID(id)
			}
			d.run(20_000)
			d.join()
			d.run(20_000)
			d.add(t, 1, "q", 10)
			d.run(8000)
			d.part()
			d.run(100)
			d.do(0, func() { d.n[0].FlushMesh([]byte("q"), false, 1000) })
			d.run(100)
			d.join()
			d.run(70_000)
			assert.Zero(t, d.n[1].Jobs())
		})
	}
}
