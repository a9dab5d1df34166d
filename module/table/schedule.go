package table

// Schedule is a heap, for container/heap, of what is to be looked at, the soonest first. A member knows its position, -1
// outside, so that it can leave or move.
type Schedule[T Scheduled[T]] []T

type Scheduled[T any] interface {
	Sooner(than T) bool
	Position() *int
}

func (s Schedule[T]) Len() int           { return len(s) }
func (s Schedule[T]) Less(i, j int) bool { return s[i].Sooner(s[j]) }
func (s Schedule[T]) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	*s[i].Position(), *s[j].Position() = i, j
}
func (s *Schedule[T]) Push(x any) {
	v := x.(T)
	*v.Position() = len(*s)
	*s = append(*s, v)
}
func (s *Schedule[T]) Pop() any {
	last := len(*s) - 1
	v := (*s)[last]
	clear((*s)[last:])
	*s = (*s)[:last]
	*v.Position() = -1
	return v
}
