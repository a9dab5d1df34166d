package engine_test

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
	"jobmesh/module/wire"
)

// keys is a keyspace that holds nothing but queues.
type keys struct {
	n     *engine.Node
	boxes map[*store.Queue]unsafe.Pointer
	taken map[string]bool
	most  int // keys that were dropped in one call
}

func (k *keys) Free(name []byte) error {
	if k.taken[string(name)] {
		return engine.Refusal("WRONGTYPE taken")
	}
	return nil
}

func (k *keys) Adopt(q *store.Queue) error {
	box := unsafe.Pointer(&struct{ q *store.Queue }{q})
	k.boxes[q], q.Box = box, box
	return nil
}

func (k *keys) Lives(*store.Queue) (lives, expires bool) { return true, false }

func (k *keys) Drop(queues []*store.Queue) {
	k.most = max(k.most, len(queues))
	for _, q := range queues {
		box := k.boxes[q]
		delete(k.boxes, q)
		k.n.Unlinked(box, q)
	}
}

func node(now int64) (*engine.Node, *keys, *storetest.Alloc) { return steadyNode(now, nil) }

// giveBack makes the node give back the memory that was freed until now (reclaim.go).
func giveBack(n *engine.Node) {
	n.Effects()
	n.Effects()
}

// steadyNode makes a node with a monotonic clock besides the wall clock that SetNow sets.
func steadyNode(now int64, steady func() int64) (*engine.Node, *keys, *storetest.Alloc) {
	return namedNode("0123456789abcdef0123456789abcdef01234567", now, steady)
}

// namedNode is steadyNode for a node with this ID.
func namedNode(id string, now int64, steady func() int64) (*engine.Node, *keys, *storetest.Alloc) {
	alloc := storetest.New()
	k := &keys{boxes: map[*store.Queue]unsafe.Pointer{}, taken: map[string]bool{}}
	k.n = engine.New(engine.Config{Alloc: alloc, Keys: k, Random: rand.NewPCG(1, 2), NodeID: id, Now: now, Monotonic: steady})
	k.n.SetNow(now)
	return k.n, k, alloc
}

// model is what a node should be, as simply as can be.
type model struct {
	now  int64
	jobs map[store.ID]*mjob
	kept map[store.ID]mkept
	seq  int
}

// mkept is the outcome of a job.
type mkept struct {
	queue, result string
	until         int64
}

type mjob struct {
	id                   store.ID
	queue                string
	seq                  int
	queued, delivered    bool
	queuedOnce           bool
	retry, qtime, expiry int64 // seconds, ms, ms
	nacks, again         int
}

func (m *model) waiting(queue string) []*mjob {
	var out []*mjob
	for _, j := range m.jobs {
		if j.queued && j.queue == queue {
			out = append(out, j)
		}
	}
	sort.Slice(out, func(a, b int) bool { return out[a].seq < out[b].seq })
	return out
}

func (m *model) push(j *mjob) {
	j.queued, j.queuedOnce, j.delivered, j.qtime = true, true, false, 0
}

func (m *model) requeue(j *mjob, nack bool) bool {
	if j.queued || j.retry == 0 && j.delivered {
		return false
	}
	if nack {
		j.nacks++
	} else if j.queuedOnce {
		j.again++
	}
	m.push(j)
	return true
}

// deleteQueue deletes the jobs of a queue, and their outcomes.
func (m *model) deleteQueue(queue string) {
	for id, j := range m.jobs {
		if j.queue == queue {
			delete(m.jobs, id)
		}
	}
	for id, e := range m.kept {
		if e.queue == queue {
			delete(m.kept, id)
		}
	}
}

func (m *model) tick() {
	for id, e := range m.kept {
		if e.until <= m.now {
			delete(m.kept, id)
		}
	}
	for id, j := range m.jobs {
		switch {
		case j.expiry <= m.now:
			delete(m.jobs, id)
		case !j.queued && j.qtime > 0 && j.qtime <= m.now:
			m.requeue(j, false)
		}
	}
}

// FuzzOperations runs any sequence of operations on a node and on the model.
func FuzzOperations(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	f.Add([]byte{0, 16, 32, 1, 9, 255, 1, 4, 0, 9, 9, 1, 1, 1, 5, 6, 7})
	f.Add([]byte{2, 0, 0x12, 3, 3, 0x22, 5, 2, 4, 9, 9, 0x32, 1, 6})
	f.Add([]byte{0x80, 0x90, 9, 9, 9, 9, 1, 0x11, 9, 9, 9, 9, 9, 2})
	f.Add([]byte{0, 1, 0x46, 0x12, 0x56, 0x0d, 0x0e, 9, 100, 9, 255, 6, 15})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 400 {
			ops = ops[:400]
		}
		m := &model{now: 1_700_000_000_000, jobs: map[store.ID]*mjob{}, kept: map[store.ID]mkept{}}
		n, k, alloc := node(m.now)
		var known []store.ID
		at := 0
		next := func() int {
			if at >= len(ops) {
				return 0
			}
			at++
			return int(ops[at-1])
		}
		for at < len(ops) {
			op := next()
			arg := op >> 4
			queue := fmt.Sprint("q", arg&1)
			var j *mjob
			var id store.ID
			if len(known) > 0 {
				id = known[arg%len(known)]
				j = m.jobs[id]
			}
			n.SetNow(m.now)
			switch op & 15 {
			case 2:
				a := engine.Add{Queue: []byte(queue), Replicate: 1, TTL: 50, Retry: int64(arg & 3), Delay: int64(arg >> 2), MaxLen: int64(next() % 8)}
				bodies := make([][]byte, 1+at%7)
				b, wait, err := n.AddJobs(&a, bodies, nil)
				require.NoError(t, err)
				require.False(t, wait)
				require.True(t, b.Decided())
				require.Len(t, b.Answers, len(bodies))
				for _, answer := range b.Answers {
					if a.MaxLen > 0 && int64(len(m.waiting(queue))) >= a.MaxLen {
						require.Equal(t, engine.Answer{Err: engine.ErrMaxLen}, answer)
						continue
					}
					require.NoError(t, answer.Err)
					m.seq++
					j := &mjob{id: answer.ID, queue: queue, seq: m.seq, retry: a.Retry, expiry: m.now + 50_000}
					m.jobs[j.id] = j
					known = append(known, j.id)
					if a.Delay > 0 {
						j.qtime = m.now + a.Delay*1000
					} else {
						m.push(j)
					}
				}
			case 0, 1:
				a := engine.Add{Queue: []byte(queue), Body: ops[:at%7], Replicate: 1, TTL: 50, Retry: int64(arg & 3), Delay: int64(arg >> 2)}
				got, wait, err := n.AddJob(&a)
				require.NoError(t, err)
				require.False(t, wait)
				m.seq++
				j := &mjob{id: got, queue: queue, seq: m.seq, retry: a.Retry, expiry: m.now + 50_000}
				m.jobs[j.id] = j
				known = append(known, j.id)
				if a.Delay > 0 {
					j.qtime = m.now + a.Delay*1000
				} else {
					m.push(j)
				}
			case 3, 4, 5:
				got := n.Fetch([]*store.Queue{n.Queue([]byte(queue))}, 1+arg>>1, true, nil)
				want := m.waiting(queue)
				want = want[:min(len(want), 1+arg>>1)]
				require.Equal(t, len(want), len(got))
				for i, w := range want {
					require.Equal(t, w.id, got[i].ID)
					w.queued, w.delivered, w.qtime = false, true, 0
					if w.retry > 0 {
						w.qtime = m.now + w.retry*1000
						w.expiry = max(w.expiry, w.qtime)
					}
				}
			case 6:
				if arg&4 == 0 {
					require.Equal(t, j != nil, n.Ack(&id))
				} else {
					r := engine.Result{Has: true, Data: ops[:at%7], HasKeep: true, Keep: int64(arg & 3)}
					require.Equal(t, j != nil, n.Finish(&id, &r))
					if j != nil && r.Keep > 0 {
						m.kept[id] = mkept{j.queue, string(r.Data), m.now + r.Keep*1000}
					}
				}
				delete(m.jobs, id)
			case 7:
				require.Equal(t, j != nil && m.requeue(j, true), n.Nack(&id, &engine.Failure{}))
			case 8:
				require.Equal(t, j != nil && m.requeue(j, false), n.Enqueue(&id))
			case 9, 10, 11:
				m.now += int64(next()) * 20
				n.SetNow(m.now)
				n.Tick()
				m.tick()
			case 12:
				ok := n.Dequeue(&id)
				require.Equal(t, j != nil && j.queued, ok)
				if ok {
					j.queued = false
					j.qtime = n.Job(&id).QTime
				}
			case 13:
				_, _, err := n.Working(&id, engine.Work{})
				_, ended := m.kept[id]
				require.Equal(t, j != nil || ended, err != engine.ErrNoJob)
				require.Equal(t, ended, err == engine.ErrAcked)
				delayed := j != nil && !j.queued && !j.queuedOnce && j.qtime > m.now
				if err == nil && j.retry > 0 && !delayed {
					j.queued, j.delivered, j.qtime = false, true, m.now+j.retry*1000
					j.expiry = max(j.expiry, m.now+2*j.retry*1000)
				}
			case 14:
				_, ended := m.kept[id]
				require.Equal(t, j != nil || ended, n.Delete(&id))
				delete(m.jobs, id)
				delete(m.kept, id)
			case 15:
				if q := n.Queue([]byte(queue)); q != nil {
					k.Drop([]*store.Queue{q})
					m.deleteQueue(queue)
				}
			}
			n.Effects()
			for id, w := range m.jobs {
				got := n.Job(&id)
				require.NotNil(t, got)
				require.Equal(t, w.queued, got.State == store.StateQueued)
				require.Equal(t, w.delivered, got.Flags&store.FlagDelivered != 0)
				require.Equal(t, []int{w.nacks, w.again}, []int{int(got.Nacks), int(got.Deliveries)})
				if !w.queued {
					require.Equal(t, w.qtime, n.NextRequeue(got))
				}
			}
			bytes := 0
			for id, want := range m.kept {
				got := n.Job(&id)
				require.True(t, got != nil && got.Kept())
				require.Equal(t, want.result, string(got.Body()))
				bytes += len(want.result)
			}
			outcomes, size := n.Results()
			require.Equal(t, []uint64{uint64(len(m.kept)), uint64(bytes)}, []uint64{outcomes, size})
			for _, name := range []string{"q0", "q1"} {
				if q := n.Queue([]byte(name)); q != nil {
					require.Equal(t, len(m.waiting(name)), int(q.Len))
				}
			}
		}
		for _, name := range []string{"q0", "q1"} {
			if q := n.Queue([]byte(name)); q != nil {
				k.Drop([]*store.Queue{q})
			}
		}
		n.Tick()
		giveBack(n)
		require.Zero(t, n.Jobs())
		require.Less(t, alloc.Blocks(), 10, "memory is left behind")
	})
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	n, _, _ := node(1000)
	a := engine.Add{Queue: []byte("q"), Body: make([]byte, 100), Replicate: 1, TTL: 1000, Retry: 10}
	var out []*store.Job
	var queues []*store.Queue
	// The test's allocator allocates in Go, too: at most three blocks a cycle.
	mine := testing.AllocsPerRun(1000, func() {
		if _, _, err := n.AddJob(&a); err != nil {
			t.Fatal(err)
		}
		n.Effects()
		queues = append(queues[:0], n.Queue(a.Queue))
		out = n.Fetch(queues, 1, true, out[:0])
		n.Effects()
		n.Ack(&out[0].ID)
		n.Effects()
	})
	assert.LessOrEqual(t, mine, 2.0, "the job's block, and now and then a tower's")
}

// The jobs of an ADDJOBS cost no memory but their own.
func TestAddJobsAllocatesNothing(t *testing.T) {
	n, _, _ := node(1000)
	a := engine.Add{Queue: []byte("q"), Replicate: 1, TTL: 1000, Retry: 10}
	bodies := make([][]byte, 32)
	mine := testing.AllocsPerRun(200, func() {
		if _, _, err := n.AddJobs(&a, bodies, nil); err != nil {
			t.Fatal(err)
		}
		n.Effects()
	})
	// The test's allocator allocates in Go, too: the blocks of the jobs, now and then a tower's, and the growing table's.
	assert.LessOrEqual(t, mine, 45.0)
}

func TestWrongTypeIsRefused(t *testing.T) {
	n, k, _ := node(1000)
	k.taken["s"] = true
	_, _, err := n.AddJob(&engine.Add{Queue: []byte("s"), Replicate: 1, TTL: 1})
	assert.EqualError(t, err, "WRONGTYPE taken")
	assert.Zero(t, n.Jobs())
}

// Above 95 % of its memory a node forgets ends of jobs that it doesn't know, acknowledged and cancelled, as others come: nobody
// can fill its memory with them while a node is away. An end that a job here waits for stays.
func TestEndsOfUnknownJobsMakeRoom(t *testing.T) {
	n, _, _ := node(1000)
	n.Mesh().Add(wire.NodeID{9}, "10.0.0.1:1")
	ids := &store.IDMaker{}
	end := func(i int) {
		id := ids.Make(uint64(i), 7, 60, true)
		if i%2 == 0 {
			n.CancelFor(&id, []byte("a reason"))
		} else {
			n.Finish(&id, nil)
		}
		n.Effects()
	}
	for i := range 1000 {
		end(i)
	}
	require.EqualValues(t, 1000, n.Jobs())
	n.SetMemory(0.96)
	for i := range 5000 {
		n.SetNow(1000 + int64(i/100))
		end(1000 + i)
	}
	assert.Less(t, n.Jobs(), uint64(1000))
}

// Above 75 % of its memory a node takes no job. Above 95 %
// it removes first what it can do without.
func TestMemoryLevels(t *testing.T) {
	n, _, _ := node(1000)
	add := func(retry int64) (store.ID, error) {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, TTL: 1000, Retry: retry})
		return id, err
	}
	once, err := add(0)
	require.NoError(t, err)
	waiting, err := add(0)
	require.NoError(t, err)
	kept, err := add(10)
	require.NoError(t, err)
	ids := []store.ID{once, waiting, kept}
	n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil)
	n.SetMemory(0.75)
	assert.Equal(t, 0, n.MemoryLevel())
	n.SetMemory(0.76)
	assert.NoError(t, n.HasRoom())
	_, err = add(10)
	assert.NoError(t, err, "there is nobody else to hold it")
	n.SetMemory(0.96)
	assert.NoError(t, n.HasRoom(), "a delivered at-most-once job can be spared")
	assert.Nil(t, n.Job(&ids[0]))
	assert.NotNil(t, n.Job(&ids[1]))
	assert.NotNil(t, n.Job(&ids[2]))
	assert.Equal(t, engine.ErrOOM, n.HasRoom(), "and then nothing more")
	n.SetMemory(0)
	_, err = add(10)
	assert.NoError(t, err)
}

func TestIdleQueuesGo(t *testing.T) {
	n, _, _ := node(1000)
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, TTL: 10_000, Retry: 10})
	require.NoError(t, err)
	_, err = n.SetPause([]byte("paused"), engine.PauseIn, 0)
	require.NoError(t, err)
	n.Ack(&id)
	n.SetNow(1000 + 299_000)
	n.Tick()
	assert.NotNil(t, n.Queue([]byte("q")))
	n.SetNow(1000 + 301_000)
	n.Tick()
	assert.Nil(t, n.Queue([]byte("q")))
	assert.NotNil(t, n.Queue([]byte("paused")))
	assert.Equal(t, int64(1), n.Queues())
}

func TestBodyTooLong(t *testing.T) {
	n, _, alloc := node(1000)
	blocks := alloc.Blocks()
	// This reserves addresses alone: memory is used only where it is touched.
	body, err := syscall.Mmap(-1, 0, store.MaxBody+1, syscall.PROT_READ, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	require.NoError(t, err)
	defer syscall.Munmap(body)
	_, _, err = n.AddJob(&engine.Add{Queue: []byte("q"), Body: body, Replicate: 1, TTL: 10})
	assert.Equal(t, engine.ErrBody, err)
	assert.Nil(t, n.Queue([]byte("q")))
	assert.Equal(t, blocks, alloc.Blocks())
}

// A queue counts as limited for as long as somebody may still want its jobs, also where the first tick that sees its settings comes after them.
func TestLimitedFromTheFirstTick(t *testing.T) {
	n, _, _ := node(1000)
	n.SetPolicies(&engine.Policies{Generation: 1, Rated: true, LimitsOf: func([]byte) engine.Limits { return engine.Limits{Rate: engine.Rate{Count: 1, Seconds: 3600}} }})
	for range 2 {
		_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, TTL: 1000, Retry: 500})
		require.NoError(t, err)
	}
	require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 10, true, nil), 1)
	require.Equal(t, 1, n.LimitedQueues())
	n.Tick()
	require.Equal(t, 1, n.LimitedQueues())
	n.SetNow(1000 + 2000)
	n.Tick()
	require.Zero(t, n.LimitedQueues(), "nobody has asked again")
}

// R5, by counts: while a queue is limited by RATE, and its jobs and a client wait, the jobs of other queues cost what they cost without that: the
// same allocations, the same effects, and their settings aren't looked up again.
func TestLifeR5(t *testing.T) {
	type work struct {
		allocs          float64
		effects, lookUp int
	}
	measure := func(limited bool) (w work) {
		n, _, _ := node(1000)
		free, slow := engine.Add{Queue: []byte("free"), Body: []byte("b"), Replicate: 1, TTL: 1000, Retry: 10}, engine.Add{Queue: []byte("slow"), Replicate: 1, TTL: 1000, Retry: 500}
		n.SetPolicies(&engine.Policies{Generation: 1, Rated: limited, LimitsOf: func(queue []byte) (l engine.Limits) {
			if w.lookUp++; string(queue) == "slow" {
				l.Rate = engine.Rate{Count: 1, Seconds: 60}
			}
			return l
		}})
		for range 10 {
			_, _, err := n.AddJob(&slow)
			require.NoError(t, err)
		}
		if got := n.Fetch([]*store.Queue{n.Queue(slow.Queue)}, 10, true, nil); limited {
			require.Len(t, got, 1)
		}
		_, err := n.Wait([][]byte{slow.Queue}, new(bool))
		require.NoError(t, err)
		stays := free
		stays.Delay = 500 // so the queue stays
		_, _, err = n.AddJob(&stays)
		require.NoError(t, err)
		n.Effects()
		var out []*store.Job
		var queues []*store.Queue
		cycle := func() {
			if _, _, err := n.AddJob(&free); err != nil {
				t.Fatal(err)
			}
			w.effects += len(n.Effects())
			queues = append(queues[:0], n.Queue(free.Queue))
			out = n.Fetch(queues, 1, true, out[:0])
			w.effects += len(n.Effects())
			n.Ack(&out[0].ID)
			w.effects += len(n.Effects())
		}
		for range 100 {
			cycle()
		}
		w.effects, w.lookUp = 0, 0
		w.allocs = testing.AllocsPerRun(1000, cycle)
		return w
	}
	without, with := measure(false), measure(true)
	assert.LessOrEqual(t, with.allocs, without.allocs)
	assert.Equal(t, without.effects, with.effects)
	assert.Zero(t, with.lookUp)
}
