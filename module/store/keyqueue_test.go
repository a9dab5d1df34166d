package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
)

// The per-key queues of a key of the mesh are woken some at a time. Each one that was there when the
// key became free is woken, however often keys become free, and whatever is added and removed meanwhile.
func TestKeyQueuesOfAKeyOfTheMeshAreWokenBitByBit(t *testing.T) {
	s := store.New(storetest.New(), 1, 1000)
	random := rand.New(rand.NewPCG(1, 2))
	const queues = 60
	keys := []string{"k", "other", strings.Repeat("long", 100)}
	push := func(q *store.Queue, key string) {
		j := s.NewJob(0, 0, store.AppendExtra(nil, store.TagUnique, store.AppendUnique(nil, &store.UniqueBy{Strategy: store.UniqueDuring, Flags: store.UniqueKeyed | store.UniqueMesh, Key: []byte(key)})))
		j.ID, j.ETime, j.Repl = store.ID{byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32())}, 10_000, 1
		if s.Lookup(&j.ID) != nil {
			s.FreeJob(j)
			return
		}
		s.Register(q, j)
		s.PushKeyQueue(j, j.Unique(), false)
	}
	name := func(l *store.KeyQueue) string { return string(l.AppendLock(nil)) }
	lock := func(key string) []byte { return store.AppendLockName(nil, store.LockRun, nil, []byte(key)) }
	var attached, away []*store.Queue
	for i := range queues {
		attached = append(attached, s.NewQueue(fmt.Append(nil, i), 1000))
	}
	// The per-key queues that are still to be woken. One that ends, or leaves with its queue, is taken out.
	owed := map[string]map[*store.KeyQueue]bool{}
	gone := func(q *store.Queue) {
		for l := q.KeyQueues.Head; l != nil; l = l.Next {
			delete(owed[name(l)], l)
		}
	}
	lanes := func(key string) (list []*store.KeyQueue) {
		for _, q := range attached {
			for l := q.KeyQueues.Head; l != nil; l = l.Next {
				if name(l) == string(lock(key)) && l.Head() != nil && !l.Front() {
					list = append(list, l)
				}
			}
		}
		return list
	}
	heads := func(most int) (list []*store.KeyQueue) {
		for l := s.NextToPromote(&most); l != nil; l = s.NextToPromote(&most) {
			list = append(list, l)
		}
		return list
	}
	for range 20_000 {
		key := keys[random.IntN(len(keys))]
		i := random.IntN(len(attached))
		switch random.IntN(10) {
		case 0, 1, 2:
			push(attached[i], key)
			heads(0) // a per-key queue that lacks a front is returned at once: here only wake-ups count
		case 3, 4:
			if l := attached[i].KeyQueues.Head; l != nil {
				if l.Head().Next == nil && !l.Front() {
					delete(owed[name(l)], l)
				}
				s.Remove(l.Head())
			}
		case 5:
			if len(attached) > queues/2 {
				gone(attached[i])
				s.Detach(attached[i])
				away = append(away, attached[i])
				attached = slices.Delete(attached, i, i+1)
			}
		case 6:
			if len(away) > 0 {
				s.Attach(away[0], fmt.Append(nil, "again", random.Uint64()))
				attached, away = append(attached, away[0]), away[1:]
			}
		case 7:
			s.WakeKeyQueues(lock(key))
			owed[string(lock(key))] = map[*store.KeyQueue]bool{}
			for _, l := range lanes(key) {
				owed[string(lock(key))][l] = true
			}
		case 8:
			if l := attached[i].KeyQueues.Head; l != nil {
				s.Taken(l)
				delete(owed, name(l))
			}
		case 9:
			for _, l := range heads(10) {
				delete(owed[name(l)], l)
			}
		}
	}
	s.WakeKeyQueues(lock("k"))
	all := lanes("k")
	require.NotEmpty(t, all)
	for _, key := range keys {
		delete(owed, string(lock("k")))
		for l := range owed[string(lock(key))] {
			all = append(all, l)
		}
	}
	met := map[*store.KeyQueue]bool{}
	for _, l := range heads(queues * len(keys)) {
		met[l] = true
	}
	for _, l := range all {
		require.True(t, met[l])
	}
	assert.False(t, s.AnyToPromote())

	// However often a key becomes free before all of its per-key queues are woken, each has its turn.
	met = map[*store.KeyQueue]bool{}
	for range queues {
		s.WakeKeyQueues(lock("k"))
		for _, l := range heads(1) {
			met[l] = true
		}
	}
	for _, l := range lanes("k") {
		require.True(t, met[l])
	}

	s.WakeKeyQueues(lock("k"))
	for i, q := range append(attached, away...) {
		if i == 10 {
			break // the others belong to the keyspace, see Forget
		}
		s.ScheduleFree(q)
	}
	for s.Reap(100, nil) {
	}
	assert.True(t, s.AnyToPromote())
	s.Forget()
	assert.False(t, s.AnyToPromote())
	q := s.NewQueue([]byte("q"), 1000)
	push(q, "k")
	heads(0)
	s.WakeKeyQueues(lock("k"))
	assert.Equal(t, []*store.KeyQueue{q.KeyQueues.Head}, heads(10))
}

// The lock of a key in one queue wakes the per-key queue of that queue alone, whatever the length of
// the queue's name, and also after the queue was renamed.
func TestAKeyQueueOfAQueueIsWokenByItsLock(t *testing.T) {
	s := store.New(storetest.New(), 1, 1000)
	long := strings.Repeat("q", 300)
	lanes := map[string]*store.KeyQueue{}
	for i, name := range []string{"a", "b", long + "a", long + "b"} {
		q := s.NewQueue([]byte("old"+name), 1000)
		j := s.NewJob(0, 0, store.AppendExtra(nil, store.TagUnique, store.AppendUnique(nil, &store.UniqueBy{Strategy: store.UniqueDuring, Flags: store.UniqueKeyed, Key: []byte("k")})))
		j.ID, j.ETime, j.Repl = store.ID{byte(i + 1)}, 10_000, 1
		s.Register(q, j)
		s.PushKeyQueue(j, j.Unique(), false)
		s.Detach(q)
		s.Attach(q, []byte(name))
		require.Same(t, q, s.Queue([]byte(name)))
		lanes[name] = q.KeyQueues.Head
	}
	heads := func() (list []*store.KeyQueue) {
		most := 0
		for l := s.NextToPromote(&most); l != nil; l = s.NextToPromote(&most) {
			list = append(list, l)
		}
		return list
	}
	heads()
	for name, l := range lanes {
		lock := store.AppendLockName(nil, store.LockRun, []byte(name), []byte("k"))
		assert.Equal(t, lock, l.AppendLock(nil))
		s.WakeKeyQueues(lock)
		assert.Equal(t, []*store.KeyQueue{l}, heads())
		s.WakeKeyQueues(store.AppendLockName(nil, store.LockRun, []byte("old"+name), []byte("k")))
		s.WakeKeyQueues(store.AppendLockName(nil, store.LockWait, []byte(name), []byte("k")))
		assert.Empty(t, heads())
	}
}
