package engine

// chain is a list in the order in which its members came, which one leaves in the same
// time however long it is. A member has a link for each chain that it can be in at a time;
// links finds the one of this chain.
type chain[T any] struct {
	head, tail *T
	len        int
}

// link is a member's neighbours in a chain.
type link[T any] struct{ prev, next *T }

func (c *chain[T]) add(x *T, links func(*T) *link[T]) {
	*links(x) = link[T]{prev: c.tail}
	if c.tail != nil {
		links(c.tail).next = x
	} else {
		c.head = x
	}
	c.tail = x
	c.len++
}

func (c *chain[T]) remove(x *T, links func(*T) *link[T]) {
	l := links(x)
	if l.prev != nil {
		links(l.prev).next = l.next
	} else {
		c.head = l.next
	}
	if l.next != nil {
		links(l.next).prev = l.prev
	} else {
		c.tail = l.prev
	}
	*l = link[T]{}
	c.len--
}
