package engine

import (
	"unsafe"

	"jobmesh/module/store"
)

// reclaimer is the store's allocator. It keeps each block that the store frees until the
// effects of that call are taken, and after that until the next call ([Node.SetNow]), or
// until effects are taken again.
//
// So an effect never names memory that has been reused, even if a job is handed to a client
// and ends in the same call, or a queue is touched and goes. And the caller can answer from a
// job, and log it, without a copy: memory that it saw before it took the effects isn't given
// back before its call returns.
type reclaimer struct {
	store.Allocator
	keys  store.KeyFreer // nil: queues' keys aren't freed
	watch watcher        // nil: nobody watches
	freed []freedBlock   // not given back yet
	named int            // the effects that were taken last may name freed[:named]
}

// watcher is an allocator that is told of each block as soon as the store frees it: nothing
// may write to the block any more. The allocator of the tests checks that.
type watcher interface {
	Freed(p unsafe.Pointer, size int)
}

type freedBlock struct {
	p    unsafe.Pointer
	size int // ofKey: p is a queue's key
}

const (
	ofKey       = -1
	freedKeeper = 1 << 14 // a longer list is not kept for the next use: 256 KB
)

func newReclaimer(a store.Allocator) *reclaimer {
	r := &reclaimer{Allocator: a}
	r.keys, _ = a.(store.KeyFreer)
	r.watch, _ = a.(watcher)
	return r
}

// Free implements [store.Allocator].
func (r *reclaimer) Free(p unsafe.Pointer, size int) {
	if r.watch != nil {
		r.watch.Freed(p, size)
	}
	r.freed = append(r.freed, freedBlock{p, size})
}

// FreeKey implements [store.KeyFreer].
func (r *reclaimer) FreeKey(key unsafe.Pointer) { r.freed = append(r.freed, freedBlock{key, ofKey}) }

// turn gives back the blocks that the effects taken before may have named.
func (r *reclaimer) turn() {
	if r.named > 0 {
		r.giveBack()
	}
	r.named = len(r.freed)
}

func (r *reclaimer) giveBack() {
	for _, b := range r.freed[:r.named] {
		switch {
		case b.size != ofKey:
			r.Allocator.Free(b.p, b.size)
		case r.keys != nil:
			r.keys.FreeKey(b.p)
		}
	}
	switch {
	case r.named < len(r.freed):
		r.freed = r.freed[:copy(r.freed, r.freed[r.named:])]
	case cap(r.freed) > freedKeeper:
		r.freed = nil
	default:
		r.freed = r.freed[:0]
	}
}
