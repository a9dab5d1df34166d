package store_test

import (
	"testing"
	"unsafe"

	"jobmesh/module/store"
)

// pool is an allocator that costs next to nothing: free lists by size.
type pool struct {
	free [300][]unsafe.Pointer
	keep [][]uint64
}

func (p *pool) Alloc(size int) unsafe.Pointer {
	k := (size + 15) / 16
	if k >= len(p.free) {
		b := make([]uint64, k*2)
		p.keep = append(p.keep, b)
		return unsafe.Pointer(&b[0])
	}
	if n := len(p.free[k]); n > 0 {
		b := p.free[k][n-1]
		p.free[k] = p.free[k][:n-1]
		return b
	}
	const many = 256
	b := make([]uint64, k*2*many)
	p.keep = append(p.keep, b)
	for i := range many - 1 {
		p.free[k] = append(p.free[k], unsafe.Pointer(&b[k*2*(i+1)]))
	}
	return unsafe.Pointer(&b[0])
}

func (p *pool) Free(b unsafe.Pointer, size int) {
	if k := (size + 15) / 16; k < len(p.free) {
		p.free[k] = append(p.free[k], b)
	}
}

// BenchmarkCycle adds, takes and removes jobs with a million others waiting.
func BenchmarkCycle(b *testing.B) {
	s := store.New(&pool{}, 1, 0)
	ids := s.IDMaker([4]byte{})
	q := s.NewQueue([]byte("q"), 0)
	var n uint64
	add := func() {
		n++
		j := s.NewJob(100, 0, nil)
		j.ID, j.CTime, j.ETime = ids.Make(n*0x9e3779b97f4a7c15, n*0x9e3779b97f4a7c15, 60, true), n, 1<<40
		s.RegisterNew(q, j)
		s.Push(j)
		s.Arm(j)
	}
	for range 1_000_000 {
		add()
	}
	for b.Loop() {
		add()
		id := q.Head.ID
		s.Work(q.Head, 1)
		s.Remove(s.Lookup(&id))
	}
}

// BenchmarkComeBack queues old jobs among a million younger ones.
func BenchmarkComeBack(b *testing.B) {
	s := store.New(&pool{}, 1, 0)
	ids := s.IDMaker([4]byte{})
	q := s.NewQueue([]byte("q"), 0)
	var all []*store.Job
	for n := range uint64(1_000_000) {
		j := s.NewJob(100, 0, nil)
		j.ID, j.CTime, j.ETime = ids.Make(n*0x9e3779b97f4a7c15, n*0x9e3779b97f4a7c15, 60, true), n+1, 1<<40
		s.RegisterNew(q, j)
		s.Push(j)
		all = append(all, j)
	}
	i := 0
	for b.Loop() {
		i = (i + 611953) % len(all)
		s.Hold(all[i])
		s.Push(all[i])
	}
}

func BenchmarkID(b *testing.B) {
	text := []byte("D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1")
	b.Run("parse", func(b *testing.B) {
		for b.Loop() {
			store.ParseID(text)
		}
	})
	b.Run("put", func(b *testing.B) {
		id, _, _ := store.ParseID(text)
		var out [store.IDLen]byte
		for b.Loop() {
			id.Put(&out)
		}
	})
}

// BenchmarkLookup finds jobs all over a table of a million.
func BenchmarkLookup(b *testing.B) {
	s := store.New(&pool{}, 1, 0)
	ids := s.IDMaker([4]byte{})
	q := s.NewQueue([]byte("q"), 0)
	all := make([]store.ID, 1_000_000)
	for n := range all {
		j := s.NewJob(100, 0, nil)
		j.ID = ids.Make(uint64(n), uint64(n), 60, true)
		s.RegisterNew(q, j)
		all[n] = j.ID
	}
	for _, tc := range []struct {
		name string
		step int
	}{{"inOrder", 1}, {"scattered", 611953}} {
		b.Run(tc.name, func(b *testing.B) {
			i := 0
			for b.Loop() {
				i = (i + tc.step) % len(all)
				if s.Lookup(&all[i]) == nil {
					b.Fatal("lost")
				}
			}
		})
	}
}

// BenchmarkDelayed delays jobs by a random time and queues them, with a million others delayed; "end" delays each for longer than all others.
func BenchmarkDelayed(b *testing.B) {
	for _, end := range []bool{true, false} {
		b.Run(map[bool]string{true: "end", false: "anywhere"}[end], func(b *testing.B) {
			s := store.New(&pool{}, 1, 0)
			ids := s.IDMaker([4]byte{})
			q := s.NewQueue([]byte("q"), 0)
			var n uint64
			add := func() *store.Job {
				n++
				j := s.NewJob(100, 0, nil)
				random := n * 0x9e3779b97f4a7c15
				j.ID, j.CTime, j.ETime = ids.Make(random, n, 60, true), n, 1<<40
				if s.RegisterNew(q, j); end {
					s.SetTime(j, int64(n))
				} else {
					s.SetTime(j, int64(random>>32))
				}
				s.Count(j, store.Delayed)
				return j
			}
			for range 1_000_000 {
				add()
			}
			for b.Loop() {
				j := add()
				s.Push(j)
				s.Remove(j)
			}
		})
	}
}

// BenchmarkLookupSmall finds jobs in a table that is in the cache: its IDs, and those of another store.
func BenchmarkLookupSmall(b *testing.B) {
	for name, seed := range map[string]uint64{"own": 1, "foreign": 2} {
		b.Run(name, func(b *testing.B) {
			s := store.New(&pool{}, 1, 0)
			ids := store.New(&pool{}, seed, 0).IDMaker([4]byte{})
			q := s.NewQueue([]byte("q"), 0)
			var all [256]store.ID
			for n := range all {
				j := s.NewJob(100, 0, nil)
				j.ID = ids.Make(uint64(n), uint64(n), 60, true)
				s.RegisterNew(q, j)
				all[n] = j.ID
			}
			i := 0
			for b.Loop() {
				i = (i + 1) % len(all)
				if s.Lookup(&all[i]) == nil {
					b.Fatal("lost")
				}
			}
		})
	}
}
