package uniquequeue_test

import "unsafe"

// slab is an allocator that keeps what is freed, by size.
type slab struct {
	free map[int][]unsafe.Pointer
	keep [][]uint64
}

func (s *slab) Alloc(size int) unsafe.Pointer {
	if list := s.free[size]; len(list) > 0 {
		s.free[size] = list[:len(list)-1]
		return list[len(list)-1]
	}
	b := make([]uint64, (size+15)/8)
	s.keep = append(s.keep, b)
	return unsafe.Pointer(&b[0])
}

func (s *slab) Free(p unsafe.Pointer, size int) {
	if s.free == nil {
		s.free = map[int][]unsafe.Pointer{}
	}
	s.free[size] = append(s.free[size], p)
}
