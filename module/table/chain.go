package table

// Chain is a list in the order in which its members came. A member leaves it in constant time. A member has a link for
// each chain that it can be in at a time; links finds the link of this chain.
type Chain[T any] struct {
	Head, Tail *T
	Len        int
}

// Link is the neighbours of a member in a chain.
type Link[T any] struct{ Prev, Next *T }

// Add puts x, which isn't in the chain, at its end.
func (c *Chain[T]) Add(x *T, links func(*T) *Link[T]) {
	*links(x) = Link[T]{Prev: c.Tail}
	if c.Tail != nil {
		links(c.Tail).Next = x
	} else {
		c.Head = x
	}
	c.Tail = x
	c.Len++
}

// Remove takes x out, which is in the chain.
func (c *Chain[T]) Remove(x *T, links func(*T) *Link[T]) {
	l := links(x)
	if l.Prev != nil {
		links(l.Prev).Next = l.Next
	} else {
		c.Head = l.Next
	}
	if l.Next != nil {
		links(l.Next).Prev = l.Prev
	} else {
		c.Tail = l.Prev
	}
	*l = Link[T]{}
	c.Len--
}
