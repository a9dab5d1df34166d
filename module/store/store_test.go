package store_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"jobmesh/cgo/record"
	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
)

// C walks and frees what Go writes: both must mean the same bytes.
func TestLayoutIsThatOfC(t *testing.T) {
	var c []store.Field
	for _, f := range record.Layout() {
		c = append(c, store.Field(f))
	}
	assert.Equal(t, c, store.Layout())
}

func TestIDText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var id store.ID
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 24, 24).Draw(t, "id"))
		text := id.AppendText(nil)
		back, canonical, ok := store.ParseID(text)
		assert.True(t, ok && canonical)
		assert.Equal(t, id, back)
	})
	for _, bad := range []string{"", "D-", "d-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1", "D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a10"} {
		_, _, ok := store.ParseID([]byte(bad))
		assert.False(t, ok, bad)
	}
	_, canonical, ok := store.ParseID([]byte("D-DCB833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"))
	assert.True(t, ok && !canonical)
}

func TestMadeIDsAreDistinctAndTellTheTTL(t *testing.T) {
	s := store.New(storetest.New(), 7, 0)
	m := s.IDMaker([4]byte{1, 2, 3, 4})
	seen := map[store.ID]bool{}
	for range 10_000 {
		seen[m.Make(1, 1, 86400, true)] = true
	}
	assert.Len(t, seen, 10_000, "distinct even where the random part repeats")
	for _, tc := range []struct {
		ttl   int64
		retry bool
		want  uint16
	}{{86400, true, 1441}, {86400, false, 1440}, {59, true, 1}, {59, false, 0}, {math.MaxInt32, true, 65535}, {math.MaxInt32, false, 65534}} {
		id := m.Make(0, 0, tc.ttl, tc.retry)
		assert.Equal(t, tc.want, id.TTLMinutes())
		assert.Equal(t, !tc.retry, id.AtMostOnce())
	}
}

// world is a store beside a simple model of it.
type world struct {
	alloc  *storetest.Alloc
	s      *store.Store
	ids    *store.IDMaker
	r      *rand.Rand
	queues map[string]map[store.ID]*store.Job // by name: what is known
	ctime  uint64
	urgent int // half of the jobs have a priority, this at most
}

func newWorld(seed uint64) *world {
	w := &world{alloc: storetest.New(), r: rand.New(rand.NewPCG(seed, 1)), queues: map[string]map[store.ID]*store.Job{}}
	w.s = store.New(w.alloc, seed, 0)
	w.ids = w.s.IDMaker([4]byte{})
	return w
}

func (w *world) queue(name string) *store.Queue {
	if w.queues[name] == nil {
		w.queues[name] = map[store.ID]*store.Job{}
		return w.s.NewQueue([]byte(name), 0)
	}
	return w.s.Queue([]byte(name))
}

func (w *world) add(name string) *store.Job {
	q := w.queue(name)
	var extras []byte
	if w.urgent > 0 && w.r.IntN(2) == 0 {
		extras = store.AppendExtra(nil, store.TagPriority, store.PriorityValue(w.r.IntN(2*w.urgent+1)-w.urgent))
	}
	j := w.s.NewJob(w.r.IntN(50), w.r.IntN(3), extras)
	// Mostly new, sometimes of the past, sometimes of the same moment.
	w.ctime++
	j.CTime = w.ctime
	if w.r.IntN(3) == 0 {
		j.CTime = w.r.Uint64N(w.ctime) + 1
	}
	j.ID = w.ids.Make(w.r.Uint64(), w.r.Uint64(), 60, true)
	j.State, j.Retry, j.Repl, j.ETime = store.StateActive, 1, 1, 1+w.r.Int64N(1<<40)
	w.s.RegisterNew(q, j)
	w.s.Arm(j)
	w.queues[name][j.ID] = j
	return j
}

func (w *world) some(name string) *store.Job {
	ids := make([]store.ID, 0, len(w.queues[name]))
	for id := range w.queues[name] {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil
	}
	sort.Slice(ids, func(i, j int) bool { return bytes.Compare(ids[i][:], ids[j][:]) < 0 })
	return w.queues[name][ids[w.r.IntN(len(ids))]]
}

// checkDelayed compares the order of a queue's delayed jobs with that of its held jobs.
func checkDelayed(t require.TestingT, q *store.Queue, held []*store.Job) {
	delayed := slices.DeleteFunc(slices.Clone(held), func(j *store.Job) bool { return j.Reason() != store.Delayed })
	slices.SortFunc(delayed, func(a, b *store.Job) int {
		return cmp.Or(cmp.Compare(a.QTime, b.QTime), cmp.Compare(a.CTime, b.CTime), bytes.Compare(a.ID[:], b.ID[:]))
	})
	j := q.FirstDelayed(store.DelayedPlace{At: math.MinInt64})
	for i, want := range delayed {
		require.Same(t, want, j)
		at := store.DelayedPlaceOf(want)
		if next := q.FirstDelayed(at); i+1 < len(delayed) {
			require.Same(t, delayed[i+1], next)
		} else {
			require.Nil(t, next)
		}
		at.ID[23]-- // a place that no job has
		if at.ID[23] != 255 {
			require.Same(t, want, q.FirstDelayed(at))
		}
		j = j.Next
	}
	require.Nil(t, j, "the delayed jobs are the last of the held ones")
	if _, last := q.Undelayed(); last != nil {
		require.NotEqual(t, store.Delayed, last.Reason())
	}
}

func (w *world) check(t require.TestingT) {
	var total [store.Kept + 1]uint64
	dead := uint64(0)
	for name, jobs := range w.queues {
		q := w.s.Queue([]byte(name))
		require.NotNil(t, q)
		var waiting, working, held []*store.Job
		var size, letters, unique uint64
		var counted [store.Kept + 1]uint64
		for id, j := range jobs {
			counted[j.Reason()]++
			if j.Unique() != nil {
				unique++
			}
			require.Same(t, j, w.s.Lookup(&id))
			if j.State == store.StateQueued {
				if waiting = append(waiting, j); j.DeadLetter() {
					letters++
				}
			} else if j.Place == store.InWorking {
				working = append(working, j)
			} else {
				held = append(held, j)
			}
			size += uint64(j.Size())
		}
		sort.Slice(waiting, func(i, k int) bool {
			a, b := waiting[i], waiting[k]
			if a.Priority() != b.Priority() {
				return a.Priority() > b.Priority()
			}
			if a.CTime != b.CTime {
				return a.CTime < b.CTime
			}
			return bytes.Compare(a.ID[:], b.ID[:]) < 0
		})
		sort.Slice(working, func(i, k int) bool {
			a, b := working[i], working[k]
			if a.Due() != b.Due() {
				return a.Due() < b.Due()
			}
			if a.CTime != b.CTime {
				return a.CTime < b.CTime
			}
			return bytes.Compare(a.ID[:], b.ID[:]) < 0
		})
		require.Equal(t, len(held), int(q.Held.Len))
		checkDelayed(t, q, held)
		for r := store.Delayed; r <= store.Blocked; r++ {
			require.Equal(t, counted[r], q.Counted(r))
			total[r] += counted[r]
		}
		require.Equal(t, counted[store.Delayed]+counted[store.Deferred]+counted[store.Blocked]+counted[store.Kept] > 0, q.AnyCounted())
		for l, all := range map[*store.List][]*store.Job{&q.List: waiting, &q.Working: working} {
			require.Equal(t, len(all), int(l.Len))
			j, last := l.Head, (*store.Job)(nil)
			for _, want := range all {
				require.Same(t, want, j)
				require.Same(t, last, j.Prev)
				j, last = j.Next, j
			}
			require.Nil(t, j)
			require.Same(t, last, l.Tail)
		}
		require.GreaterOrEqual(t, q.Bytes, size)
		require.Equal(t, letters, q.Dead())
		require.Equal(t, unique, q.Uniques)
		dead += letters
	}
	require.Equal(t, dead, w.s.Dead())
	for r := store.Delayed; r <= store.Blocked; r++ {
		require.Equal(t, total[r], w.s.Counted(r))
	}
}

// Everything at once, against the model: order, lists, table, tombstones.
func TestStoreAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.Uint64().Draw(t, "seed"))
		w.urgent = rapid.SampledFrom([]int{0, 1, store.MaxPriority}).Draw(t, "priorities")
		for range rapid.IntRange(1, 600).Draw(t, "steps") {
			name := fmt.Sprint("q", w.r.IntN(3))
			j := w.some(name)
			switch op := w.r.IntN(25); {
			case op == 24 && j != nil:
				// To another queue, with other extras.
				w.s.Hold(j)
				other, holders := fmt.Sprint("q", w.r.IntN(3)), j.Holders()
				if other == name {
					break
				}
				extras := store.AppendExtra(nil, store.TagMoved, []byte{byte(w.r.IntN(2)), 1, 0, 0})
				if w.r.IntN(2) == 0 {
					extras = store.AppendExtra(extras, store.TagUnique, store.AppendUnique(nil, &store.UniqueBy{Strategy: store.UniqueBefore, Conflict: store.ConflictDrop}))
				}
				body := string(j.Body())
				delete(w.queues[name], j.ID)
				k := w.s.MoveAs(j, w.queue(other), extras)
				w.queues[other][k.ID] = k
				require.Equal(t, w.s.Queue([]byte(other)), k.Queue)
				require.Equal(t, []any{string(extras), body, holders}, []any{string(k.Extras()), string(k.Body()), k.Holders()})
			case op == 23 && j != nil && w.urgent > 0:
				w.s.Hold(j)
				p := w.r.IntN(3) - 1
				k, ok := w.s.SetExtra(j, store.TagPriority, store.PriorityValue(p))
				require.True(t, ok && k.Priority() == p)
				w.queues[name][k.ID] = k
				w.s.Push(k)
			case op == 22 && j != nil && w.r.IntN(3) == 0:
				// The same lengths again and again, so that the value is changed in place, too.
				k, ok := w.s.SetExtra(j, store.TagMoved, []byte{byte(w.r.IntN(2)), 1, 0, 0})
				require.True(t, ok)
				w.queues[name][k.ID] = k
			case op == 22 && j != nil:
				tag, value := store.Tag(2+w.r.IntN(3)), make([]byte, w.r.IntN(60))
				if w.r.IntN(4) == 0 {
					value = nil
				}
				others := map[store.Tag]string{}
				for k := store.Tag(2); k < 5; k++ {
					others[k] = string(j.Extra(k))
				}
				others[tag] = string(value)
				holders := j.Holders()
				k, ok := w.s.SetExtra(j, tag, value)
				require.True(t, ok)
				for tag, want := range others {
					require.Equal(t, want, string(k.Extra(tag)))
				}
				require.Equal(t, value == nil, k.Extra(tag) == nil)
				require.Equal(t, holders, k.Holders())
				w.queues[name][k.ID] = k
				restored, err := w.s.JobFromRecord(k.Record())
				require.NoError(t, err)
				require.Equal(t, k.RawParts(), restored.RawParts())
				w.s.FreeJob(restored)
			case op >= 20 && j != nil:
				node := 2 + 2*w.r.Uint64N(40)
				held, n := j.HeldBy(node), j.Holders()
				k, added := w.s.AddHolder(j, node)
				require.Equal(t, !held, added)
				if !held {
					n++
				}
				require.Equal(t, n, k.Holders())
				require.True(t, k.HeldBy(node))
				require.Equal(t, w.r.IntN(2) == 0 || k.Confirm(node) || k.Confirmed() > 0, true)
				w.queues[name][k.ID] = k
				if w.r.IntN(8) == 0 {
					require.True(t, k.DropHolder(node))
					require.False(t, k.HeldBy(node))
				}
				restored, err := w.s.JobFromRecord(k.Record())
				require.NoError(t, err)
				require.Equal(t, k.RawParts(), restored.RawParts())
				w.s.FreeJob(restored)
			case op < 9 || j == nil:
				j = w.add(name)
				if w.r.IntN(4) > 0 {
					w.s.Push(j)
				}
			case op < 12 && j.State == store.StateQueued:
				w.s.Hold(j)
			case op < 10:
				r := store.Reason(w.r.IntN(4))
				w.s.Count(j, r)
				require.True(t, j.Reason() == r || j.Reason() == store.NoReason && j.Place != store.InHeld)
				if j.Place == store.InHeld {
					w.s.SetTime(j, w.r.Int64N(20))
				}
			case op < 12 && w.r.IntN(2) == 0:
				w.s.Work(j, w.r.Int64N(1000))
				if w.r.IntN(2) == 0 {
					w.s.SetOverdue(j)
				}
			case op < 12:
				w.s.Push(j)
			case op < 17:
				delete(w.queues[name], j.ID)
				w.s.Remove(j)
			case op == 17:
				q := w.s.Queue([]byte(name))
				id := j.ID
				w.s.Detach(q)
				require.Nil(t, w.s.Lookup(&id))
				require.Zero(t, w.s.Attach(q, []byte(name)))
			case op == 18:
				id := j.ID
				w.s.ScheduleFree(w.s.Queue([]byte(name)))
				require.Nil(t, w.s.Lookup(&id))
				delete(w.queues, name)
			default:
				w.s.Reap(w.r.IntN(10), nil)
			}
		}
		w.check(t)
		for name := range w.queues {
			w.s.ScheduleFree(w.s.Queue([]byte(name)))
		}
		require.False(t, w.s.Reap(math.MaxInt, nil))
		require.Zero(t, w.s.Jobs())
		before := w.alloc.Blocks()
		require.Less(t, before, 13, "only tables and wheel are left")
	})
}

func TestScanMeetsWhatStays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.Uint64().Draw(t, "seed"))
		stay := map[store.ID]bool{}
		for range 200 {
			stay[w.add("stay").ID] = true
		}
		var passing []*store.Job
		cursor := uint64(0)
		for {
			var found []*store.Job
			cursor = w.s.ScanJobs(cursor, &found)
			for _, j := range found {
				delete(stay, j.ID)
			}
			if cursor == 0 {
				break
			}
			switch w.r.IntN(3) {
			case 0:
				for range w.r.IntN(100) {
					passing = append(passing, w.add("pass"))
				}
			case 1:
				for _, j := range passing {
					w.s.Remove(j)
				}
				passing = nil
			}
		}
		require.Empty(t, stay)
	})
}

// The wheel against a sorted model, with a clock that jumps.
func TestWheelAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.Uint64().Draw(t, "seed"))
		armed := map[store.ID]*store.Job{}
		now := int64(1_700_000_000_000)
		none := 0
		w.s.Due(now, &none)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch w.r.IntN(8) {
			case 0, 1, 2:
				j := w.add("q")
				j.ETime = now + w.r.Int64N(1<<uint(w.r.IntN(45))) - 5
				w.s.Arm(j)
				armed[j.ID] = j
			case 3:
				if j := w.some("q"); j != nil && armed[j.ID] != nil {
					j.ETime = now + w.r.Int64N(100_000)
					w.s.Arm(j)
				}
			case 4:
				if j := w.some("q"); j != nil {
					w.s.Disarm(j)
					delete(armed, j.ID)
				}
			case 5:
				now -= w.r.Int64N(1 << uint(w.r.IntN(34)))
			default:
				now += w.r.Int64N(1 << uint(w.r.IntN(40)))
			}
			// A clock that stepped back a little makes the wheel wait for it.
			for try := 0; ; try++ {
				budget := 1 + w.r.IntN(20)
				j := w.s.Due(now, &budget)
				if j == nil && budget > 0 {
					break
				}
				if j != nil {
					require.LessOrEqual(t, j.ETime, now, "too early")
					require.Same(t, armed[j.ID], j)
					delete(armed, j.ID)
				}
				require.Less(t, try, 100_000)
			}
			soonest := int64(math.MaxInt64)
			for _, j := range armed {
				soonest = min(soonest, j.ETime)
			}
			if soonest < math.MaxInt64 {
				require.LessOrEqual(t, w.s.NextWake(), max(soonest, now+1001), "a wake-up would be missed")
				require.Greater(t, soonest, now-1001, "a job is overdue")
			}
		}
	})
}

func TestForgetTouchesNothing(t *testing.T) {
	w := newWorld(3)
	for i := range 5000 {
		j := w.add(fmt.Sprint("q", i%10))
		if i%2 == 0 {
			w.s.Push(j)
		}
	}
	w.s.ScheduleFree(w.s.Queue([]byte("q0")))
	blocks := w.alloc.Blocks()
	w.s.Forget()
	assert.Zero(t, w.s.Jobs())
	assert.Zero(t, w.s.Queues())
	assert.InDelta(t, blocks, w.alloc.Blocks(), 5, "jobs and queues belong to others now")
	assert.False(t, w.s.Reap(math.MaxInt, nil))
	assert.Equal(t, uint64(0), w.s.Jobs())
	assert.Less(t, w.alloc.Blocks(), blocks-400, "but the buried queue's were ours")
}

func TestSteadyStateAllocatesNothingInGo(t *testing.T) {
	s := store.New(&pool{}, 1, 0)
	ids := s.IDMaker([4]byte{})
	q := s.NewQueue([]byte("q"), 0)
	var n uint64
	cycle := func() {
		n++
		j := s.NewJob(100, 0, nil)
		j.ID, j.CTime, j.ETime = ids.Make(n, n, 60, true), n, 1<<40
		s.RegisterNew(q, j)
		s.Push(j)
		s.Arm(j)
		id := q.Head.ID
		s.Hold(q.Head)
		s.Remove(s.Lookup(&id))
	}
	for range 1000 {
		cycle()
	}
	assert.Zero(t, testing.AllocsPerRun(10_000, cycle))
}

func validRecord() []byte {
	s := store.New(storetest.New(), 1, 0)
	j := s.NewJob(3, 0, nil)
	copy(j.Body(), "abc")
	j.ID = s.IDMaker([4]byte{}).Make(1, 1, 60, true)
	j.State, j.Repl, j.Retry, j.ETime = store.StateQueued, 1, 5, 1000
	return append([]byte(nil), j.Record()...)
}

func TestRecords(t *testing.T) {
	good := validRecord()
	s := store.New(storetest.New(), 1, 0)
	j, err := s.JobFromRecord(good)
	require.NoError(t, err)
	assert.Equal(t, good, j.Record())
	for n := range good {
		_, err := s.JobFromRecord(good[:n])
		assert.ErrorIs(t, err, store.ErrRecord, "cut at %d", n)
	}
	for at, want := range map[int]error{0: store.ErrNewer, 1: store.ErrRecord, 2: store.ErrRecord, 3: store.ErrRecord, 4: store.ErrRecord, 70: store.ErrRecord} {
		bad := append([]byte(nil), good...)
		bad[at] = 0xff
		_, err := s.JobFromRecord(bad)
		assert.ErrorIs(t, err, want, "byte %d", at)
	}
}

func TestHolders(t *testing.T) {
	s := store.New(storetest.New(), 1, 0)
	q := s.NewQueue([]byte("q"), 0)
	j := s.NewJob(3, 2, nil)
	copy(j.Body(), "abc")
	j.ID = s.IDMaker([4]byte{}).Make(1, 1, 60, true)
	j.State, j.Repl, j.Retry, j.ETime = store.StateActive, 1, 5, 1000
	s.RegisterNew(q, j)
	assert.Zero(t, j.Holders())
	const many = 100
	for node := uint64(2); node <= 2*many; node += 2 {
		j, _ = s.AddHolder(j, node)
	}
	assert.Equal(t, many, j.Holders())
	assert.Same(t, j, s.Lookup(&j.ID), "wherever it has moved")
	assert.Equal(t, "abc", string(j.Body()))
	assert.True(t, j.Confirm(4))
	assert.False(t, j.Confirm(4), "again")
	assert.False(t, j.Confirm(1000), "a stranger")
	assert.Equal(t, 1, j.Confirmed())
	j.SetAttempts(300)
	assert.Equal(t, 255, j.Attempts())
	j.ClearConfirmed()
	assert.Zero(t, j.Confirmed())
	assert.True(t, j.DropHolder(2))
	assert.False(t, j.HeldBy(2))
	assert.Equal(t, many-1, j.Holders())
	restored, err := s.JobFromRecord(j.Record())
	require.NoError(t, err)
	assert.True(t, restored.HeldBy(200))
	for _, parts := range [][]byte{{1}, make([]byte, 9), {1, 0, 0, 0, 0, 0, 0, 0}, append(make([]byte, 8), 2, 0, 0, 0, 0, 0, 0, 0)} {
		_, err := s.ApplyState(j.StateRecord(), parts)
		assert.ErrorIs(t, err, store.ErrRecord, "%v", parts)
	}
	_, err = s.ApplyState(j.StateRecord(), restored.RawParts())
	assert.NoError(t, err)
}

// TestAnswers: after each change of a job's holders, those for which this node answers are right.
// Loaded over another state of the job, they and the confirmations are as they were saved.
func TestAnswers(t *testing.T) {
	s := store.New(storetest.New(), 1, 0)
	q := s.NewQueue([]byte("q"), 0)
	make := func(seq uint64, nodes ...uint64) *store.Job {
		j := s.NewJob(0, 0, nil)
		j.ID = s.IDMaker([4]byte{}).Make(seq, 1, 60, true)
		j.State, j.Repl, j.Retry, j.ETime = store.StateAcked, 1, 5, 1000
		s.RegisterNew(q, j)
		for _, node := range nodes {
			j, _ = s.AddHolder(j, node)
		}
		return j
	}
	answered := func(j *store.Job) (list []uint64) {
		for i := range j.Answers() {
			node, _ := j.Holder(i)
			list = append(list, node)
		}
		return list
	}
	j := make(1)
	j.AnswerFor(2)
	j.AnswerForNone()
	assert.Zero(t, j.Answers(), "nobody to answer for")
	rapid.Check(t, func(t *rapid.T) {
		nodes := []uint64{2, 4, 6, 8, 10, 12}
		j := make(rapid.Uint64Range(2, 1<<40).Draw(t, "seq"), nodes...)
		var held, want, marked []uint64
		held = append(held, nodes...)
		without := func(list []uint64, node uint64) []uint64 {
			return slices.DeleteFunc(list, func(n uint64) bool { return n == node })
		}
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			node := rapid.SampledFrom(nodes).Draw(t, "node")
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				if j.AnswerFor(node); slices.Contains(held, node) && !slices.Contains(want, node) {
					want = append(want, node)
				}
			case 1:
				j.DropHolder(node)
				held, want, marked = without(held, node), without(want, node), without(marked, node)
			case 2:
				if j.Confirm(node) {
					marked = append(marked, node)
				}
			case 3:
				j.Unconfirm(node)
				marked = without(marked, node)
			case 4:
				j.AnswerNotFor(node)
				want = without(want, node)
			}
			k := make(1<<41+j.CTime, 12, 4, 14)
			k.AnswerFor(14)
			k.Confirm(14)
			k.Confirm(12)
			state := append([]byte(nil), j.StateRecord()...)
			parts := append([]byte(nil), j.RawParts()...)
			k, err := s.ApplyState(bytes.Replace(state, j.ID[:], k.ID[:], 1), parts)
			require.NoError(t, err)
			for _, job := range []*store.Job{j, k} {
				assert.ElementsMatch(t, want, answered(job))
				assert.Equal(t, len(marked), job.Confirmed())
				for _, node := range held {
					assert.True(t, job.HeldBy(node))
					assert.Equal(t, slices.Contains(marked, node), job.ConfirmedBy(node))
				}
			}
			s.Remove(k)
		}
		j.ConfirmAll(j.Answers())
		for _, node := range held {
			assert.Equal(t, slices.Contains(marked, node) || !slices.Contains(want, node), j.ConfirmedBy(node))
		}
		s.Remove(j)
	})
}

func FuzzJobFromRecord(f *testing.F) {
	f.Add(validRecord())
	f.Add([]byte{})
	f.Add(make([]byte, 72))
	f.Fuzz(func(t *testing.T, rec []byte) {
		alloc := storetest.New()
		s := store.New(alloc, 1, 0)
		base := alloc.Blocks()
		j, err := s.JobFromRecord(rec)
		if err != nil {
			require.Nil(t, j)
			require.Equal(t, base, alloc.Blocks(), "a refused record leaves nothing behind")
			return
		}
		again, err := s.JobFromRecord(j.Record())
		require.NoError(t, err)
		require.Equal(t, j.Record(), again.Record())
		q := s.NewQueue([]byte("q"), 0)
		require.True(t, s.Register(q, j))
		require.False(t, s.Register(q, again))
		s.Push(j)
		s.Arm(j)
		s.Remove(j)
	})
}

func FuzzParseID(f *testing.F) {
	f.Add([]byte("D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, canonical, ok := store.ParseID(b)
		if canonical {
			require.True(t, ok)
			require.Equal(t, string(b), id.String())
		} else if ok {
			require.NotEqual(t, string(b), id.String())
		}
	})
}

// An acknowledged job keeps its ID, times and holders, and what its dependents or a lock still
// need.
func TestShrink(t *testing.T) {
	s := store.New(storetest.New(), 1, 0)
	q := s.NewQueue([]byte("q"), 0)
	unique := func(flags uint8) []byte {
		return store.AppendUnique(nil, &store.UniqueBy{Strategy: store.UniqueBefore, Flags: flags, Conflict: store.ConflictDrop})
	}
	for name, tc := range map[string]struct {
		extras []byte
		left   []byte
		body   string
	}{
		"plain":                  {},
		"a worker":               {extras: store.AppendExtra(nil, store.TagWorker, []byte("w"))},
		"unique":                 {extras: store.AppendExtra(nil, store.TagUnique, unique(0))},
		"unique, it has a lock":  {extras: store.AppendExtra(nil, store.TagUnique, unique(store.UniqueHasWait)), left: store.AppendExtra(nil, store.TagUnique, unique(store.UniqueHasWait)), body: "the body"},
		"a member of a family":   {extras: store.AppendExtra(store.AppendExtra(nil, store.TagWorker, []byte("w")), store.TagFamily, []byte("fam")), left: store.AppendExtra(nil, store.TagFamily, []byte("fam"))},
		"unique, it is kept":     {extras: store.AppendExtra(store.AppendExtra(nil, store.TagUnique, unique(0)), store.TagEnd, make([]byte, store.EndLen)), left: store.AppendExtra(store.AppendExtra(nil, store.TagUnique, unique(0)), store.TagEnd, make([]byte, store.EndLen)), body: "the body"},
		"what isn't known is no": {extras: store.AppendExtra(nil, 200, []byte("later"))},
	} {
		j := s.NewJob(len("the body"), 2, tc.extras)
		copy(j.Body(), "the body")
		j.ID = s.IDMaker([4]byte{}).Make(uint64(len(name)), 1, 60, true)
		j.CTime, j.State, j.Repl, j.Retry, j.ETime = 1, store.StateActive, 1, 5, 1000
		s.RegisterNew(q, j)
		j, _ = s.AddHolder(j, 4)
		j, _ = s.AddHolder(j, 8)
		j.Confirm(8)
		s.Arm(j)
		before, uniques := q.Bytes-uint64(j.Size()), q.Uniques
		if j.Unique() != nil {
			uniques--
		}
		j.State = store.StateAcked
		logged := append([]byte(nil), j.StateRecord()...)
		parts := append([]byte(nil), j.RawParts()...)
		j, err := s.ApplyState(logged, parts) // as a replica and a log do
		require.NoError(t, err, name)
		require.Same(t, j, s.Shrink(j), name)
		assert.Same(t, j, s.Lookup(&j.ID), name)
		assert.Equal(t, tc.body, string(j.Body()), name)
		assert.Equal(t, string(tc.left), string(j.Extras()), name)
		assert.True(t, j.HeldBy(4) && j.ConfirmedBy(8) && !j.ConfirmedBy(4), name)
		assert.Equal(t, before+uint64(j.Size()), q.Bytes, name)
		if tc.left == nil {
			assert.Less(t, j.Size(), 160, name)
			assert.Equal(t, uniques, q.Uniques, name)
		}
		again, err := s.JobFromRecord(j.Record())
		require.NoError(t, err, "%s: it can be loaded", name)
		s.FreeJob(again)
		s.Remove(j)
	}
}
