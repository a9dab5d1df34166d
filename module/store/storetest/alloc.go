// Package storetest has the allocator that tests of the store, and of what is
// built on it, run with.
package storetest

import (
	"fmt"
	"unsafe"
)

// Alloc hands out Go memory that the collector keeps alive and doesn't scan,
// counts it, poisons what is given back, and panics where a block is freed
// twice, or with another size than it was made with, or was written to between
// [Alloc.Freed] and [Alloc.Free].
type Alloc struct {
	blocks map[unsafe.Pointer]block
	freed  int // of them, those of which Freed was told
	Bytes  int
}

type block struct {
	size  int
	keep  []uint64
	freed bool // Freed has been told
	sum   uint64
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
	a.blocks[p] = block{size: size, keep: keep}
	a.Bytes += size
	return p
}

// Freed is told that a block is going to be freed: from now on it is only read.
func (a *Alloc) Freed(p unsafe.Pointer, size int) {
	b, ok := a.blocks[p]
	if !ok || b.size != size || b.freed {
		panic(fmt.Sprintf("free of %d bytes: the block is known: %v, its size %d, it was freed before: %v", size, ok, b.size, b.freed))
	}
	b.freed, b.sum = true, sum(b.keep)
	a.blocks[p] = b
	a.freed++
}

// sum is FNV-1a by words.
func sum(words []uint64) uint64 {
	h := uint64(14695981039346656037)
	for _, w := range words {
		h = (h ^ w) * 1099511628211
	}
	return h
}

// Free implements store.Allocator.
func (a *Alloc) Free(p unsafe.Pointer, size int) {
	b, ok := a.blocks[p]
	if !ok || b.size != size {
		panic(fmt.Sprintf("free of %d bytes: the block is known: %v, its size %d", size, ok, b.size))
	}
	if b.freed {
		if b.sum != sum(b.keep) {
			panic(fmt.Sprintf("a block of %d bytes was written to after it was freed", size))
		}
		a.freed--
	}
	fill(b.keep, &freed)
	delete(a.blocks, p)
	a.Bytes -= size
}

// Blocks counts the blocks that weren't given back.
func (a *Alloc) Blocks() int { return len(a.blocks) }

// Pending counts those of them that are freed: they are given back soon.
func (a *Alloc) Pending() int { return a.freed }
