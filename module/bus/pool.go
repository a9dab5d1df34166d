package bus

import (
	"math/bits"
	"sync"
)

const (
	smallestClass = 10 // 1 KiB
	largestClass  = 26 // 64 MiB
	classes       = largestClass - smallestClass + 1
)

// pool keeps items for reuse, in classes that double in size. With only one class, a queue of
// small frames could use the buffers of the largest frames, and a bound on queued bytes would
// say little about memory.
type pool struct {
	class [classes]sync.Pool
}

// get returns an empty item with room for a frame with a payload of sizeBytes. An item for more
// than 64 MiB isn't reused.
func (p *pool) get(sizeBytes int) *item {
	class := max(bits.Len(uint(max(sizeBytes, 1)-1)), smallestClass)
	if class > largestClass {
		return &item{data: make([]byte, 0, sizeBytes+headerSize)}
	}
	if got, _ := p.class[class-smallestClass].Get().(*item); got != nil {
		return got
	}
	return &item{data: make([]byte, 0, 1<<class+headerSize)}
}

// put takes an item back. The caller must keep no slice of it.
func (p *pool) put(old *item) {
	class := bits.Len(uint(cap(old.data)-headerSize)) - 1
	if class > largestClass || cap(old.data)-headerSize != 1<<class {
		return
	}
	old.next, old.data, old.count, old.at, old.kind, old.conn = nil, old.data[:0], 0, 0, 0, nil
	p.class[class-smallestClass].Put(old)
}
