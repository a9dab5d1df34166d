package store_test

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
)

func TestFamilyValue(t *testing.T) {
	alloc := storetest.New()
	s := store.New(alloc, 1, 1000)
	q := s.NewQueue([]byte("q"), 1000)
	j := s.NewJob(3, 0, nil)
	j.ID, j.ETime, j.Repl = store.ID{1}, 10_000, 1
	s.Register(q, j)
	_, ok := j.Family()
	require.False(t, ok)
	f := store.Family{Flags: store.FamilyDeferred | store.FamilyBlocked, OnDead: 2, Count: 7}
	f.Name(store.ID{2}, store.ID{2}, store.ID{3}) // once is enough
	j, ok = s.SetExtra(j, store.TagFamily, f.Value())
	require.True(t, ok)
	g, ok := j.Family()
	require.True(t, ok)
	assert.Equal(t, f.Value(), g.Value())
	assert.Equal(t, []store.ID{{2}, {3}}, []store.ID{g.ID(0), g.ID(1)})
	assert.True(t, g.Held() && g.Unreleased())
	assert.True(t, g.Drop(store.ID{2}))
	assert.False(t, g.Drop(store.ID{2}))
	assert.Equal(t, 1, g.IDs())
	several := store.Family{}
	several.Name(store.ID{1}, store.ID{2}, store.ID{3}, store.ID{4})
	assert.True(t, several.Drop(store.ID{1}, store.ID{3}, store.ID{4}))
	assert.Equal(t, []store.ID{{2}}, []store.ID{several.ID(0)})
	assert.Equal(t, 1, several.IDs())
	h, _ := j.Family()
	assert.Equal(t, 2, h.IDs(), "what was read is the job's, what is changed a copy")

	for flags, held := range map[uint8]bool{0: true, store.FamilyEarly: false, store.FamilyCancelled: true, store.FamilyBlocked: true} {
		g.Flags = flags
		assert.Equal(t, held, g.Held(), flags)
		assert.False(t, g.Empty())
	}
	assert.Nil(t, (&store.Family{OnDead: 1, Count: 3}).Value(), "there is nothing to keep")
	for _, bad := range [][]byte{{}, make([]byte, 7), make([]byte, 9), {0, 0, 2, 0, 0, 0, 0, 0, 1}, append([]byte{0, 0, 1, 0, 0, 0, 0, 0}, make([]byte, 23)...)} {
		j, ok = s.SetExtra(j, store.TagFamily, bad)
		require.True(t, ok)
		_, ok = j.Family()
		assert.False(t, ok, "%v", bad)
	}
	var many store.Family
	var ids []store.ID
	for i := range store.MaxFamilyIDs + 5 {
		ids = append(ids, store.ID{byte(i), byte(i >> 8)})
	}
	many.Name(ids...)
	assert.Equal(t, store.MaxFamilyIDs, many.IDs())
	assert.Less(t, testing.AllocsPerRun(3, func() { many.Name(ids...) }), 100.0, "each is looked for, and copied, once")
	j, ok = s.SetExtra(j, store.TagFamily, many.Value())
	require.True(t, ok)

	// The job moves to another queue, which counts its memory from then on.
	p := s.NewQueue([]byte("p"), 1000)
	s.MoveTo(j, p)
	assert.Equal(t, []uint64{0, 1}, []uint64{q.Held.Len, p.Held.Len})
	assert.Zero(t, q.Bytes)
	assert.EqualValues(t, j.Size(), p.Bytes)
	assert.Equal(t, p, j.Queue)
}

func TestDependents(t *testing.T) {
	alloc := storetest.New()
	s := store.New(alloc, 1, 1000)
	before := alloc.Blocks()
	q := s.NewQueue([]byte("q"), 1000)
	head := store.ID{99}
	assert.Nil(t, s.Dependents(&head))
	assert.False(t, s.RemoveEdge(&head, &store.ID{1}))
	var jobs []*store.Job
	for _, ctime := range []uint64{5, 2, 9, 1, 2} {
		j := s.NewJob(0, 0, nil)
		j.ID, j.CTime, j.ETime, j.Repl = store.ID{byte(len(jobs) + 1)}, ctime, 10_000, 1
		s.Register(q, j)
		f := store.Family{}
		f.Name(head)
		j, _ = s.SetExtra(j, store.TagFamily, f.Value())
		s.AddEdge(&head, j)
		s.AddEdge(&head, j) // twice is once
		jobs = append(jobs, j)
	}
	order := func() (ids []byte) {
		k := s.Dependents(&head)
		if k == nil {
			return nil
		}
		for tie := k.Head; tie != nil; tie = tie.Next {
			ids = append(ids, tie.Job[0])
		}
		require.EqualValues(t, len(ids), k.Len)
		return ids
	}
	assert.EqualValues(t, 5, s.Edges())
	assert.Equal(t, []byte{4, 2, 5, 1, 3}, order(), "the oldest first, then by ID")
	s.Remove(jobs[1])
	assert.Equal(t, []byte{4, 5, 1, 3}, order(), "who goes is untied")
	assert.True(t, s.RemoveEdge(&head, &jobs[2].ID))
	assert.False(t, s.RemoveEdge(&head, &jobs[2].ID))
	assert.Equal(t, []byte{4, 5, 1}, order())
	s.DropEdges()
	assert.Nil(t, order())
	s.ScheduleFree(q)
	for s.Reap(1, nil) {
	}
	assert.Empty(t, s.TakeLost())
	assert.Equal(t, before, alloc.Blocks())
}

// Edges that are added out of order are put in their places at once. A walk that has begun meets
// them all.
func TestDependentsOutOfOrder(t *testing.T) {
	s := store.New(storetest.New(), 1, 1000)
	q := s.NewQueue([]byte("q"), 1000)
	head := store.ID{99}
	tie := func(ctime uint64) {
		j := s.NewJob(0, 0, nil)
		j.ID, j.CTime, j.ETime, j.Repl = store.ID{byte(ctime >> 8), byte(ctime)}, ctime, 10_000, 1
		s.Register(q, j)
		f := store.Family{Flags: store.FamilyBlocked}
		f.Name(head)
		j, _ = s.SetExtra(j, store.TagFamily, f.Value())
		s.AddEdge(&head, j)
	}
	met := func() map[uint64]bool {
		m := map[uint64]bool{}
		for {
			tie := s.Dependents(&head).Walk()
			if tie == nil {
				return m
			}
			m[uint64(tie.Job[0])<<8|uint64(tie.Job[1])] = true
		}
	}
	order := func() (list []uint64) {
		for tie := s.Dependents(&head).Head; tie != nil; tie = tie.Next {
			list = append(list, uint64(tie.Job[0])<<8|uint64(tie.Job[1]))
		}
		return list
	}
	for i := range uint64(300) {
		tie(1000 + 10*i)
	}
	first := s.Dependents(&head).Walk()
	assert.EqualValues(t, 1000>>8, first.Job[0])
	for i := range uint64(30) {
		tie(3985 - 10*i)
	}
	assert.Len(t, met(), 330)
	assert.True(t, slices.IsSorted(order()))
	tie(5)
	list := order()
	assert.True(t, slices.IsSorted(list))
	assert.Len(t, list, 331)
	assert.EqualValues(t, 5, list[0])
}

// The jobs that a deferred one blocks come before all others that wait for it, in whatever order
// edges are added and removed. A walk meets the blocked jobs alone, also those that are added
// behind the walk's place.
func TestBlockedJobsComeFirst(t *testing.T) {
	alloc := storetest.New()
	s := store.New(alloc, 1, 1000)
	before := alloc.Blocks()
	q := s.NewQueue([]byte("q"), 1000)
	head := store.ID{99, 99}
	random := rand.New(rand.NewPCG(1, 2))
	id := func(n uint64) store.ID { return store.ID{0: byte(n >> 8), 1: byte(n), 14: byte(n), 15: byte(n >> 8)} }
	blocks := func(n uint64) bool { return n%3 == 0 }
	tied := map[uint64]bool{}
	tie := func(n uint64) {
		j := s.NewJob(0, 0, nil)
		j.ID, j.CTime, j.ETime, j.Repl = id(n), 1000+n, 10_000, 1
		s.Register(q, j)
		f := store.Family{}
		if blocks(n) {
			f.Flags = store.FamilyBlocked
		}
		f.Name(head)
		j, _ = s.SetExtra(j, store.TagFamily, f.Value())
		s.AddEdge(&head, j)
		tied[n] = true
	}
	number := func(id *store.ID) uint64 { return uint64(id[0])<<8 | uint64(id[1]) }
	check := func() {
		var blocked, others, all, youngest []uint64
		for n := range tied {
			if youngest = append(youngest, 1000+n); blocks(n) {
				blocked = append(blocked, n)
			} else {
				others = append(others, n)
			}
		}
		slices.Sort(blocked)
		slices.Sort(others)
		k := s.Dependents(&head)
		require.EqualValues(t, len(blocked), k.Blocked)
		var met []uint64
		for id := range k.EachBlocked() {
			met = append(met, number(id))
		}
		require.Equal(t, blocked, met)
		met = nil
		for t := k.Others(); t != nil; t = t.Next {
			met = append(met, number(&t.Job))
		}
		require.Equal(t, others, met)
		for t := k.Head; t != nil; t = t.Next {
			all = append(all, number(&t.Job))
		}
		require.Equal(t, slices.Concat(blocked, others), all)
		require.Equal(t, slices.Max(youngest), k.Youngest())
	}
	for step := range 60_000 {
		n := random.Uint64N(20_000)
		if step < 500 {
			n = uint64(step)/10*10 + 9 - uint64(step)%10 // a little out of order
		}
		if tied[n] {
			s.Remove(s.Lookup(ptr(id(n))))
			delete(tied, n)
		} else {
			tie(n)
		}
		if len(tied) > 0 && (step < 20 || step < 3000 && step%50 == 0 || step%5000 == 0) {
			check()
		}
	}

	tie(30000)
	tie(30001)
	tie(30002)
	walk := func() (met []uint64) {
		for t := s.Dependents(&head).Walk(); t != nil; t = s.Dependents(&head).Walk() {
			met = append(met, number(&t.Job))
		}
		return met
	}
	var blocked []uint64
	for n := range tied {
		if blocks(n) {
			blocked = append(blocked, n)
		}
	}
	assert.EqualValues(t, slices.Min(blocked), number(&s.Dependents(&head).Walk().Job))
	tie(30003)
	tie(30004)
	assert.Len(t, walk(), len(blocked), "30003 too, but not the one that was met")
	assert.Empty(t, walk())
	for n := range tied {
		if n%2 == 0 {
			s.Remove(s.Lookup(ptr(id(n))))
		}
	}
	s.DropEdges()
	s.ScheduleFree(q)
	for s.Reap(100, nil) {
	}
	assert.Equal(t, before+1, alloc.Blocks(), "the table of jobs has grown")
}

// Very many jobs wait for one. A few older ones that are added late cost time for themselves alone,
// and not for all the others.
func TestLateEdgesOfALongList(t *testing.T) {
	s := store.New(storetest.New(), 1, 1000)
	q := s.NewQueue([]byte("q"), 1000)
	head := store.ID{255}
	jobs := uint32(0)
	tie := func(ctime uint64) {
		j := s.NewJob(0, 0, nil)
		jobs++
		binary.LittleEndian.PutUint32(j.ID[14:], jobs)
		j.CTime, j.ETime, j.Repl = ctime, 10_000, 1
		s.Register(q, j)
		f := store.Family{}
		f.Name(head)
		j, _ = s.SetExtra(j, store.TagFamily, f.Value())
		s.AddEdge(&head, j)
	}
	const many = 300_000
	for i := range uint64(many) {
		tie(1000 + 10*i)
	}
	fastest := time.Hour
	for range 5 {
		began := time.Now()
		for i := range uint64(100) {
			tie(1001 + i*7919*10%many)
		}
		require.EqualValues(t, 1000, s.Lookup(&s.Dependents(&head).Head.Job).CTime)
		fastest = min(fastest, time.Since(began))
	}
	assert.Less(t, fastest, 10*time.Millisecond)
	before := uint64(0)
	for tie := s.Dependents(&head).Head; tie != nil; tie = tie.Next {
		j := s.Lookup(&tie.Job)
		require.GreaterOrEqual(t, j.CTime, before)
		before = j.CTime
	}
}

func ptr[T any](v T) *T { return &v }

func TestLostWithItsQueue(t *testing.T) {
	s := store.New(storetest.New(), 1, 1000)
	q, p := s.NewQueue([]byte("q"), 1000), s.NewQueue([]byte("p"), 1000)
	add := func(q *store.Queue, id byte, f store.Family) *store.Job {
		j := s.NewJob(0, 0, nil)
		j.ID, j.ETime, j.Repl = store.ID{id}, 10_000, 1
		s.Register(q, j)
		j, _ = s.SetExtra(j, store.TagFamily, f.Value())
		for i := range f.IDs() {
			other := f.ID(i)
			s.AddEdge(&other, j)
		}
		return j
	}
	add(q, 1, store.Family{Flags: store.FamilyDeferred})
	blocked := store.Family{Flags: store.FamilyBlocked}
	blocked.Name(store.ID{1})
	add(p, 2, blocked)
	early := store.Family{Flags: store.FamilyEarly}
	early.Name(store.ID{7})
	add(q, 3, early)
	s.ScheduleFree(q)
	for s.Reap(10, nil) {
	}
	assert.ElementsMatch(t, []store.Lost{{ID: store.ID{1}, Unreleased: true}, {ID: store.ID{3}, Early: true, Of: store.ID{7}}}, s.TakeLost())
	assert.Empty(t, s.TakeLost())
	assert.EqualValues(t, 1, s.Edges())
}

func TestDoneIsRemembered(t *testing.T) {
	alloc := storetest.New()
	s := store.New(alloc, 1, 1000)
	maker := s.IDMaker([4]byte{1})
	first := maker.Make(1, 2, 60, true)
	assert.False(t, s.Done(&first))
	s.SetDone(&first)
	blocks := alloc.Blocks()
	var ids []store.ID
	for i := range 100_000 {
		id := maker.Make(uint64(i), 2, 60, true)
		ids = append(ids, id)
		s.SetDone(&id)
	}
	assert.Equal(t, blocks, alloc.Blocks())
	for i := range 2000 {
		require.True(t, s.Done(&ids[len(ids)-1-i]), "%d acknowledgements ago", i)
	}
	assert.False(t, s.Done(&first), "it isn't for ever")
	fresh := maker.Make(7, 7, 60, true)
	assert.False(t, s.Done(&fresh))
}
