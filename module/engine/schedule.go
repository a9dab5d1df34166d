package engine

// schedule is a heap, for container/heap, of what is to be looked at, the soonest first.
// Each member knows its position, -1 outside, so that it can leave, or be moved.
type schedule[T scheduled[T]] []T

type scheduled[T any] interface {
	sooner(than T) bool
	position() *int
}

func (s schedule[T]) Len() int           { return len(s) }
func (s schedule[T]) Less(i, j int) bool { return s[i].sooner(s[j]) }
func (s schedule[T]) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	*s[i].position(), *s[j].position() = i, j
}
func (s *schedule[T]) Push(x any) {
	v := x.(T)
	*v.position() = len(*s)
	*s = append(*s, v)
}
func (s *schedule[T]) Pop() any {
	last := len(*s) - 1
	v := (*s)[last]
	clear((*s)[last:])
	*s = (*s)[:last]
	*v.position() = -1
	return v
}
