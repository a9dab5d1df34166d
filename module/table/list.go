package table

import "unsafe"

// Element is the [Entry] of an element that is in a [List], too. Next and Prev are its neighbours in the list.
type Element[T any] struct {
	Entry
	Next, Prev *T
}

// List is a doubly linked list of elements outside Go's heap. T begins with an [Element] of its own type, so an element
// is in one list at a time. ([Chain] is for members on Go's heap, which may be in several at a time. It calls a function
// for each link, which would cost time here.)
type List[T any] struct {
	Head, Tail *T
	Len        uint64
}

func elementOf[T any](x *T) *Element[T] { return (*Element[T])(unsafe.Pointer(x)) }

// Insert puts x, which is in no list, behind at, or at the beginning if at is nil.
func (l *List[T]) Insert(x, at *T) {
	forward, back, e := &l.Head, &l.Tail, elementOf(x)
	if at != nil {
		forward = &elementOf(at).Next
	}
	e.Next, e.Prev = *forward, at
	if e.Next != nil {
		back = &elementOf(e.Next).Prev
	}
	*forward, *back = x, x
	l.Len++
}

// Remove takes x out, which is in the list. x keeps its links: a walk can go on behind it.
func (l *List[T]) Remove(x *T) {
	forward, back, e := &l.Head, &l.Tail, elementOf(x)
	if e.Prev != nil {
		forward = &elementOf(e.Prev).Next
	}
	if e.Next != nil {
		back = &elementOf(e.Next).Prev
	}
	*forward, *back = e.Next, e.Prev
	l.Len--
}

// Replace puts by in the place of x.
func (l *List[T]) Replace(x, by *T) {
	at := elementOf(x).Prev
	l.Remove(x)
	l.Insert(by, at)
}
