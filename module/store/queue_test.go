package store_test

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
)

func copyOf(t *testing.T, w *world, j *store.Job) *store.Job {
	k, err := w.s.JobFromRecord(j.Record())
	require.NoError(t, err)
	return k
}

// A restored value may hold IDs that are known already, or one ID twice.
func TestAttachDropsWhatIsKnown(t *testing.T) {
	w := newWorld(1)
	known := w.add("a")
	blocks := w.alloc.Blocks()
	q := w.s.AllocQueue(0)
	w.s.LoadInto(q, copyOf(t, w, known))
	fresh := copyOf(t, w, known)
	fresh.ID[5]++
	w.s.LoadInto(q, fresh)
	w.s.LoadInto(q, copyOf(t, w, fresh))
	require.Nil(t, w.s.Lookup(&fresh.ID), "not known before it is attached")

	assert.Equal(t, 2, w.s.Attach(q, []byte("b")))
	assert.Same(t, known, w.s.Lookup(&known.ID))
	assert.Same(t, fresh, w.s.Lookup(&fresh.ID))
	assert.Equal(t, uint64(fresh.Size()), q.Bytes)
	due, _ := w.drive(t, fresh.ETime)
	assert.Contains(t, due, fresh, "what is attached is armed")

	w.s.Remove(fresh)
	assert.Zero(t, q.Bytes)
	w.s.RemoveQueue(q)
	assert.Equal(t, blocks, w.alloc.Blocks())
}

func TestRegisterKnowsDetachedIDs(t *testing.T) {
	w := newWorld(1)
	j := w.add("a")
	other := w.s.NewQueue([]byte("b"), 0)
	k := copyOf(t, w, j)
	w.s.Detach(w.s.Queue([]byte("a")))
	assert.Nil(t, w.s.Lookup(&j.ID))
	assert.False(t, w.s.Register(other, k), "detached jobs come back")
	assert.Zero(t, other.Held.Len)
	w.s.ScheduleFree(j.Queue)
	assert.True(t, w.s.Register(other, k), "buried ones don't")
	assert.Same(t, k, w.s.Lookup(&k.ID))
	assert.False(t, w.s.Reap(1, nil))
	assert.Same(t, k, w.s.Lookup(&k.ID))
}

func TestReapIsPiecemeal(t *testing.T) {
	w := newWorld(1)
	empty := w.alloc.Blocks()
	for range 10 {
		w.s.Push(w.add("q"))
	}
	w.s.ScheduleFree(w.s.Queue([]byte("q")))
	assert.Equal(t, uint64(10), w.s.Jobs())
	assert.True(t, w.s.Reap(4, nil))
	assert.Equal(t, uint64(6), w.s.Jobs())
	assert.False(t, w.s.Reap(6, nil))
	assert.Equal(t, empty, w.alloc.Blocks())
}

// A job that belongs right behind the one that came before it goes there at once. That one may have moved, or be gone, or be the
// same one.
func TestRunsOfJobsComeIntoTheirPlaces(t *testing.T) {
	const jobs, run = 2000, 40
	for _, change := range []string{"", "again", "move", "remove", "hold"} {
		t.Run(change, func(t *testing.T) {
			w := newWorld(1)
			var all []*store.Job
			for range jobs {
				all = append(all, w.add("q"))
			}
			slices.SortFunc(all, func(a, b *store.Job) int {
				return cmp.Or(cmp.Compare(a.CTime, b.CTime), bytes.Compare(a.ID[:], b.ID[:]))
			})
			q := all[0].Queue
			left := map[store.ID]bool{}
			for first := jobs - run; first >= 0; first -= run { // the last run comes first
				for i, j := range all[first : first+run] {
					w.s.Push(j)
					left[j.ID] = true
					switch id := j.ID; change {
					case "again":
						w.s.Push(j)
					case "move":
						_, _ = w.s.SetExtra(j, store.TagFailure, []byte("0123456789"))
					case "remove":
						if i%3 == 0 {
							w.s.Remove(j)
							delete(left, id)
						}
					case "hold":
						if i%3 == 0 {
							w.s.Hold(j)
							delete(left, id)
						}
					}
				}
			}
			var last *store.Job
			for j := q.Head; j != nil; last, j = j, j.Next {
				require.True(t, last == nil || last.Before(j))
				require.Same(t, last, j.Prev)
				require.True(t, left[j.ID])
				delete(left, j.ID)
			}
			assert.Same(t, last, q.Tail)
			assert.Empty(t, left)
			for j := q.Head; j != nil; j = q.Head {
				w.s.Remove(j)
			}
			for j := q.Held.Head; j != nil; j = q.Held.Head {
				w.s.Remove(j)
			}
			assert.Zero(t, q.Bytes)
		})
	}
}

func TestAttachAfterForgetLearnsTheJobsAgain(t *testing.T) {
	w := newWorld(1)
	empty := w.alloc.Blocks()
	for range 100 {
		w.s.Push(w.add("q"))
	}
	q := w.s.Queue([]byte("q"))
	w.s.Detach(q)
	w.s.Forget()
	for id := range w.queues["q"] {
		require.Nil(t, w.s.Lookup(&id))
	}
	require.Zero(t, w.s.Attach(q, []byte("q")))
	w.check(t)
	assert.Equal(t, uint64(100), w.s.Jobs())
	w.s.ScheduleFree(q)
	assert.False(t, w.s.Reap(math.MaxInt, nil))
	assert.Equal(t, empty, w.alloc.Blocks())
}

func TestMisuse(t *testing.T) {
	w := newWorld(1)
	q := w.s.NewQueue([]byte("q"), 0)
	blocks := w.alloc.Blocks()
	for _, n := range []int{-1, store.MaxBody + 1, math.MaxInt} {
		assert.PanicsWithValue(t, fmt.Sprintf("store: a job's body can't have %d bytes", n), func() { w.s.NewJob(n, 0, nil) })
	}
	assert.Equal(t, blocks, w.alloc.Blocks())
	w.s.ScheduleFree(q)
	assert.PanicsWithValue(t, "store: the queue is buried already", func() { w.s.ScheduleFree(q) })
	assert.False(t, w.s.Reap(math.MaxInt, nil), "once")
}

// The table grows and shrinks by whole segments, and loses nothing on the way.
func TestTableOfSeveralSegments(t *testing.T) {
	w := newWorld(1)
	empty := w.alloc.Bytes
	const n = 40_000
	jobs := make([]*store.Job, 0, n)
	for range n {
		jobs = append(jobs, w.add("q"))
	}
	scan := func() (met map[store.ID]int) {
		met = map[store.ID]int{}
		var found []*store.Job
		var cursor uint64
		for {
			found = found[:0]
			cursor = w.s.ScanJobs(cursor, &found)
			for _, j := range found {
				met[j.ID]++
			}
			if cursor == 0 {
				return met
			}
		}
	}
	met := scan()
	assert.Len(t, met, n)
	for _, times := range met {
		require.Equal(t, 1, times, "a table that stands still gives each once")
	}
	for _, j := range jobs[:n-10] {
		delete(w.queues["q"], j.ID)
		w.s.Remove(j)
	}
	assert.Len(t, scan(), 10)
	w.check(t)
	w.s.ScheduleFree(w.s.Queue([]byte("q")))
	w.s.Reap(math.MaxInt, nil)
	assert.LessOrEqual(t, w.alloc.Bytes-empty, 2*8192*8, "its memory is given back, but for a reserve")
}

func TestScanQueues(t *testing.T) {
	w := newWorld(1)
	for i := range 500 {
		w.s.NewQueue(fmt.Append(nil, "queue number ", i), 0)
	}
	w.s.Detach(w.s.Queue([]byte("queue number 7")))
	var all []*store.Queue
	for cursor := w.s.ScanQueues(0, &all); cursor != 0; {
		cursor = w.s.ScanQueues(cursor, &all)
	}
	assert.Len(t, all, 499)
	assert.Equal(t, uint64(499), w.s.Queues())
	for _, q := range all {
		require.Same(t, q, w.s.Queue(q.NameBytes()))
	}
	assert.Nil(t, w.s.Queue([]byte("queue number 7")))
	assert.Nil(t, w.s.Queue(nil))
}

// All queues are detached at once, and come back one after the other under the names that
// they have, into a table that had room made for them.
func TestAllAreDetached(t *testing.T) {
	for _, others := range []int{-1, 0, 60_000} { // that stay away; -1: no room is made
		w := newWorld(1)
		const queues = 40_000
		empty := w.alloc.Bytes
		for i := range queues {
			j := w.s.NewJob(0, 0, nil)
			j.ID = w.ids.Make(w.r.Uint64(), w.r.Uint64(), 60, true)
			w.s.RegisterNew(w.s.NewQueue(fmt.Append(nil, i), 0), j)
			if i%2 == 0 {
				w.s.Work(j, 1)
				w.s.SetOverdue(j)
			} else {
				w.s.Count(j, store.Reason(i/2%4))
			}
		}
		seen := map[*store.Queue]bool{}
		all := w.s.DetachAll(func(q *store.Queue) { seen[q] = true })
		assert.Len(t, all, queues)
		assert.Len(t, seen, queues)
		assert.Zero(t, w.s.Queues())
		assert.Empty(t, w.s.AllQueues())
		assert.Nil(t, w.s.Queue([]byte("7")))
		working, overdue := w.s.Working()
		assert.Zero(t, working+overdue+w.s.Waiting()+w.s.Counted(store.Delayed)+w.s.Counted(store.Deferred)+w.s.Counted(store.Blocked))
		ended := slices.IndexFunc(all, func(q *store.Queue) bool { return q.Working.Len > 0 })
		w.s.Remove(all[ended].Working.Head) // meanwhile
		w.s.Rename(all[1], []byte("other"))

		away := store.Warmed(all, 1)
		list := slices.Clone(all)
		if others >= 0 {
			for range others {
				list = append(list, w.s.AllocQueue(0))
			}
			away = w.s.Returning(list)
		}
		back := 0
		for q := range away {
			if back++; back > queues {
				break
			}
			assert.True(t, w.s.Listed(q))
			require.Zero(t, w.s.Reattach(q))
		}
		assert.EqualValues(t, queues, w.s.Queues())
		working, overdue = w.s.Working()
		assert.EqualValues(t, queues/2-1, working)
		assert.EqualValues(t, queues/2-1, overdue)
		for r := store.Delayed; r <= store.Blocked; r++ {
			assert.EqualValues(t, queues/8, w.s.Counted(r))
		}
		var scanned []*store.Queue
		for cursor := w.s.ScanQueues(0, &scanned); cursor != 0; {
			cursor = w.s.ScanQueues(cursor, &scanned)
		}
		for _, list := range [][]*store.Queue{scanned, w.s.AllQueues()} {
			assert.Len(t, list, queues)
			missed := maps.Clone(seen)
			for _, q := range list {
				delete(missed, q)
			}
			assert.Empty(t, missed)
		}
		assert.Same(t, all[1], w.s.Queue([]byte("other")))
		for _, q := range all {
			require.Same(t, q, w.s.Queue(q.NameBytes()))
		}
		for _, q := range list {
			w.s.ScheduleFree(q)
		}
		w.s.Reap(math.MaxInt, nil)
		assert.LessOrEqual(t, w.alloc.Bytes-empty, 4*8192*8)
	}
}

// The alias names the embedded field: Alloc would hide the method.
type counted = storetest.Alloc

// keyed is an allocator that is told of freed keys.
type keyed struct {
	*counted
	freed []unsafe.Pointer
}

func (k *keyed) FreeKey(p unsafe.Pointer) { k.freed = append(k.freed, p) }

func TestAQueueTakesItsKeyAlong(t *testing.T) {
	a := &keyed{counted: storetest.New()}
	s := store.New(a, 1, 0)
	blocks := a.Blocks()
	q := s.NewQueue(nil, 0)
	q.Key = unsafe.Pointer(q)
	s.Detach(q)
	s.Rename(q, []byte("another"))
	s.Attach(q, []byte("another"))
	assert.Same(t, q, s.Queue([]byte("another")))
	s.RemoveQueue(q)
	assert.Len(t, a.freed, 1)
	assert.Equal(t, blocks, a.Blocks())
}

func TestApplyState(t *testing.T) {
	w := newWorld(1)
	j := w.add("q")
	w.s.Push(j)
	saved := append([]byte(nil), j.Record()...)
	body := append([]byte(nil), j.Body()...)

	k := copyOf(t, w, j)
	k.State, k.Flags, k.QTime, k.ETime, k.Nacks, k.Deliveries = store.StateActive, store.FlagDelivered, 5, 77, 3, 4
	k.CTime, k.Repl = 1<<60, 9 // not state: fixed when the job was made
	for _, rec := range [][]byte{k.Record(), k.StateRecord()} {
		got, err := w.s.ApplyState(rec, nil)
		require.NoError(t, err)
		require.Same(t, j, got)
		assert.Equal(t, store.FlagDelivered, j.Flags&(store.FlagDelivered|store.FlagQueuedOnce))
		assert.Equal(t, []any{store.StateActive, int64(5), int64(77), uint16(3), uint16(4), int64(5)},
			[]any{j.State, j.QTime, j.ETime, j.Nacks, j.Deliveries, j.Awake()})
		assert.NotEqual(t, uint64(1<<60), j.CTime)
		assert.Equal(t, uint16(1), j.Repl)
		assert.Equal(t, body, j.Body())
	}
	w.s.Hold(j) // still in the waiting list, whatever its state says
	assert.Equal(t, uint64(1), j.Queue.Held.Len)

	unknown := copyOf(t, w, j)
	unknown.ID[4]++
	got, err := w.s.ApplyState(unknown.StateRecord(), nil)
	assert.NoError(t, err)
	assert.Nil(t, got)
	for n := range len(saved) {
		if n == len(k.StateRecord()) {
			continue
		}
		_, err := w.s.ApplyState(saved[:n], nil)
		assert.ErrorIs(t, err, store.ErrRecord)
	}
}

// All queues that are attached are listed, in whatever order they come and go.
func TestAllQueuesAreListed(t *testing.T) {
	w := newWorld(1)
	attached := map[*store.Queue]bool{}
	var all []*store.Queue
	for i := range 5000 {
		all = append(all, w.s.AllocQueue(0))
		w.s.Rename(all[i], fmt.Append(nil, i))
	}
	for i := range 50_000 {
		q := all[w.r.IntN(len(all))]
		if i > 40_000 && !attached[q] {
			continue // there are fewer and fewer
		}
		if attached[q] = !attached[q]; attached[q] {
			w.s.Reattach(q)
		} else {
			w.s.Detach(q)
			delete(attached, q)
		}
		if i%5000 == 4999 {
			listed := w.s.AllQueues()
			require.Len(t, listed, len(attached))
			for _, q := range listed {
				require.True(t, attached[q])
			}
		}
	}
}
