package table

import (
	"math/bits"
	"unsafe"
)

// SkipIndex is a skip list (Pugh 1990) over a [List] that is in order. It finds a place in the middle of the list. Only
// one of 16 elements has a node. So the others take no memory for it, and few elements are passed to find them. less is
// the order, in which no two elements are equal; it must be the same in all calls. The zero SkipIndex is
// empty.
type SkipIndex[T any] struct{ Head, Tail SkipPath[T] }

// SkipPath is a node of each level, from the lowest level on; nil means the beginning of the level.
type SkipPath[T any] [skipLevels]*SkipNode[T]

// SkipNode is an element's node. It is on Height levels: as many pointers, to the next node of each level, follow it in
// the same block.
type SkipNode[T any] struct {
	Of     *T
	Height uint32
	_      uint32
}

const (
	skipLevels   = 10
	skipNodeSize = int(unsafe.Sizeof(SkipNode[byte]{}))
)

// SkipHeight is how many levels an element is on: none for 15 of 16, then one more with a chance of 1 in 4. random must
// follow from the element and a secret key: so nobody can make elements that are all on the same levels.
func SkipHeight(random uint64) int {
	if random&15 != 0 {
		return 0
	}
	return min(1+bits.TrailingZeros64(random>>4|1<<40)/2, skipLevels)
}

func (n *SkipNode[T]) size() int { return skipNodeSize + 8*int(n.Height) }

// after is the link behind a node of a level.
func (x *SkipIndex[T]) after(n *SkipNode[T], level int) **SkipNode[T] {
	if n == nil {
		return &x.Head[level]
	}
	return (**SkipNode[T])(unsafe.Add(unsafe.Pointer(n), skipNodeSize+8*level))
}

// before finds the last node before e on each level. It compares no node twice.
func (x *SkipIndex[T]) before(e *T, less func(a, b *T) bool, path *SkipPath[T]) {
	var n, end *SkipNode[T] // e is behind n and not behind end
	for level := skipLevels - 1; level >= 0; level-- {
		for next := *x.after(n, level); next != end; next = *x.after(n, level) {
			if less(next.Of, e) {
				n = next
			} else {
				end = next
			}
		}
		path[level] = n
	}
}

// Place finds the last element of the list before e, nil if e comes first. It fills path for [SkipIndex.Add]. If x is
// nil it walks from the list's beginning.
func (x *SkipIndex[T]) Place(l *List[T], e *T, less func(a, b *T) bool, path *SkipPath[T]) (at *T) {
	next := l.Head
	if x != nil {
		if x.before(e, less, path); path[0] != nil {
			at = path[0].Of
			next = elementOf(at).Next
		}
	}
	for next != nil && less(next, e) {
		at, next = next, elementOf(next).Next
	}
	return at
}

// Add gives e a node on height levels, behind the nodes of path. The path of an element at the list's end is &x.Tail.
// Add returns the node's size in bytes.
func (x *SkipIndex[T]) Add(alloc Allocator, e *T, height int, path *SkipPath[T]) int {
	n := (*SkipNode[T])(alloc.Alloc(skipNodeSize + 8*height))
	*n = SkipNode[T]{Of: e, Height: uint32(height)}
	for level := range height {
		link, next := x.after(path[level], level), x.after(n, level)
		*next = *link
		if *link = n; *next == nil {
			x.Tail[level] = n
		}
	}
	return n.size()
}

// find finds the node of e, nil if it has none. It puts the nodes before it into path, which is empty before.
func (x *SkipIndex[T]) find(e *T, less func(a, b *T) bool, path *SkipPath[T]) *SkipNode[T] {
	n := x.Head[0]
	if n == nil || n.Of != e {
		x.before(e, less, path)
		if n = *x.after(path[0], 0); n != nil && n.Of != e {
			n = nil
		}
	}
	return n
}

// Remove frees the node of e, if it has one, and returns its size in bytes.
func (x *SkipIndex[T]) Remove(alloc Allocator, e *T, less func(a, b *T) bool) int {
	var path SkipPath[T]
	n := x.find(e, less, &path)
	if n == nil {
		return 0
	}
	for level := range int(n.Height) {
		if *x.after(path[level], level) = *x.after(n, level); x.Tail[level] == n {
			x.Tail[level] = path[level]
		}
	}
	size := n.size()
	alloc.Free(unsafe.Pointer(n), size)
	return size
}

// Replace makes the node of e, which has one, that of its copy.
func (x *SkipIndex[T]) Replace(e, by *T, less func(a, b *T) bool) {
	var path SkipPath[T]
	x.find(e, less, &path).Of = by
}
