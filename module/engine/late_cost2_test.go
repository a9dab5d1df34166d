package engine_test

import (
	"fmt"
	"testing"
	"time"
	"math/rand/v2"
	"unsafe"
	"slices"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
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
	worst [2]time.Duration
	what  [2]string
	logs  [2]int
	all   map[string][]time.Duration
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
		d.do(i, "up", func() {
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
		d.do(i, "down", func() { n.Mesh().Down(d.id[1-i]) })
	}
}

// do makes a node do something, and takes the time. A logged effect counts.
func (d *duo) do(i int, what string, f func()) {
	n := d.n[i]
	since := time.Now()
	n.SetNow(d.now)
	f()
	effects := n.Effects()
	took := time.Since(since)
	logs := 0
	for k := range effects {
		e := &effects[k]
		switch e.Kind {
		case engine.Send:
			if !d.cut {
				d.queue[1-i] = append(d.queue[1-i], slices.Clone(n.Message(e)))
			}
		case engine.NodesChanged:
			n.PastKept(n.Past())
		default:
			logs++
		}
	}
	if d.all == nil {
		d.all = map[string][]time.Duration{}
	}
	if key := fmt.Sprint(i, " ", what); took > 500*time.Microsecond {
		d.all[key] = append(d.all[key], took)
	}
	if took > d.worst[i] {
		d.worst[i], d.what[i] = took, fmt.Sprintf("%s at %d ms, %d other effects", what, d.now-dawn, logs)
	}
	d.logs[i] = max(d.logs[i], logs)
}

func (d *duo) run(ms int) {
	for range ms {
		d.now++
		for i, n := range d.n {
			d.do(i, "tick", func() { n.Tick() })
			msgs := d.queue[i]
			d.queue[i] = nil
			for _, b := range msgs {
				d.do(i, fmt.Sprint("message ", b[0], " of ", len(b), " bytes"), func() { n.Receive(d.id[1-i], b) })
			}
		}
	}
}

func (d *duo) add(t *testing.T, i int, queue string, count int) {
	for range count {
		d.do(i, "add", func() {
			_, _, err := d.n[i].AddJob(&engine.Add{Queue: []byte(queue), Body: []byte("b"), Replicate: 1, Retry: 10000, TTL: 86400})
			require.NoError(t, err)
		})
	}
}

func TestLateFlushesCost(t *testing.T) {
	for _, c := range []struct{ queues, jobs int }{{1000, 0}, {1000, 1}, {1000, 20}, {1, 50000}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			d := newDuo()
			d.run(1000)
			for q := range c.queues {
				d.add(t, 1, fmt.Sprint("q", q), c.jobs)
			}
			d.run(8000)
			d.part()
			d.run(100)
			for q := range c.queues {
				d.do(0, "flush", func() { d.n[0].FlushMesh(fmt.Append(nil, "q", q), false, 1000) })
			}
			d.run(100)
			t.Logf("%d jobs", d.n[1].Jobs())
			d.worst, d.logs, d.all = [2]time.Duration{}, [2]int{}, nil
			d.join()
			for range 100 {
				d.run(100)
				if d.n[1].Jobs() == 0 {
					d.run(3000)
					break
				}
			}
			t.Logf("%d jobs left after %d ms, %d flushed late, most effects in a call %v", d.n[1].Jobs(), d.now-dawn, d.n[1].Stats.FlushedLate, d.logs)
			for k, v := range d.all {
				slices.Sort(v)
				t.Logf("%s: %d, quartiles %v %v %v", k, len(v), v[len(v)/4], v[len(v)/2], v[len(v)*3/4])
			}
			for i := range d.worst {
				t.Logf("node %d: %v for %s", i, d.worst[i], d.what[i])
			}
			assert.Less(t, d.worst[1], 5*time.Millisecond)
		})
	}
}
