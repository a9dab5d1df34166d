package table

// Chain is a list in the order in which its members came, which one leaves in the same
// time however long it is. A member has a link for each chain that it can be in at a time;
// links finds the one of this chain.
type Chain[T any] struct {
	Head, Tail *T
	Len        int
}

// Link is a member's neighbours in a chain.
type Link[T any] struct{ Prev, Next *T }

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
