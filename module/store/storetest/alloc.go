// Package storetest has the allocator that tests of the store, and of what is
// built on it, run with.
package storetest

import (
	"fmt"
	"unsafe"
)

// Alloc hands out Go memory that the collector keeps alive and doesn't scan,
// counts it, poisons what is given back, and panics where a block is freed
// twice, or with another size than it was made with.
type Alloc struct {
	blocks map[unsafe.Pointer]block
	Bytes  int
}

type block struct {
	size int
	keep []uint64
}

// pattern is what memory is filled with.
type pattern [512]uint64

var rubbish, freed = patternOf(0xa5a5a5a5a5a5a5a5), patternOf(0xdbdbdbdbdbdbdbdb)

func patternOf(word uint64) (p pattern) {
	for i := range p {
		p[i] = word
	}
	return p
}

func fill(b []uint64, with *pattern) {
	for len(b) > 0 {
		b = b[copy(b, with[:]):]
	}
}

// New makes an allocator.
func New() *Alloc { return &Alloc{blocks: map[unsafe.Pointer]block{}} }

// Alloc implements store.Allocator; the memory is filled with rubbish.
func (a *Alloc) Alloc(size int) unsafe.Pointer {
	keep := make([]uint64, (size+15)/8)
	fill(keep, &rubbish)
	p := unsafe.Pointer(&keep[0])
	a.blocks[p] = block{size, keep}
	a.Bytes += size
	return p
}

// Free implements store.Allocator.
func (a *Alloc) Free(p unsafe.Pointer, size int) {
	b, ok := a.blocks[p]
	if !ok || b.size != size {
		panic(fmt.Sprintf("free of %d bytes: the block is known: %v, its size %d", size, ok, b.size))
	}
	fill(b.keep, &freed)
	delete(a.blocks, p)
	a.Bytes -= size
}

// Blocks counts the blocks in use.
func (a *Alloc) Blocks() int { return len(a.blocks) }
