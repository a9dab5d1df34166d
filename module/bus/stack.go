package bus

import "sync/atomic"

// item is an element of a stack: a frame on its way out, a frame that came in, or a note (an
// event for the owner, or an order for the connection manager).
type item struct {
	next  *item
	data  []byte
	count int   // messages in data
	at    int   // how much of data was handed to the owner
	kind  byte  // of a frame of the bulk
	conn  *conn // the connection of the frame or event; nil for others
	note  any
}

// stack hands items from any number of goroutines to one, without a lock: the owner must never
// wait for a goroutine that was preempted while it held one. A stack is only taken as a whole.
// So a push is right even if the head that it has seen was taken and came back meanwhile: it
// links to nothing but that head.
type stack struct {
	head atomic.Pointer[item]
}

// push adds p and says whether the stack was empty.
func (s *stack) push(p *item) (first bool) {
	for {
		head := s.head.Load()
		p.next = head
		if s.head.CompareAndSwap(head, p) {
			return head == nil
		}
	}
}

// take empties the stack and returns what was on it, oldest first.
func (s *stack) take() *item {
	var list *item
	for p := s.head.Swap(nil); p != nil; {
		next := p.next
		p.next = list
		list, p = p, next
	}
	return list
}
