// Package uniquequeue is the unique queue: items in the order in which they came,
// each at most once, each with its start time. A queue is the value of a key;
// it knows neither the key nor the server, and nothing lies outside it.
//
// One block of memory holds an item: its places in the queue's list and hash
// table, its time, its bytes. So list, set and times can't contradict each other.
// The block lies in memory that an [Allocator] gives, in the layout that cgo/unique
// shares, so Redis counts it, a forked child can save it, another thread can free
// it, and Go's collector never looks at it.
//
// No operation takes time in proportion to what is stored, but for [Queues.Copy]
// and [Queues.Load]: the table grows and shrinks a few buckets at a time, by the arithmetic of
// package table. It isn't one of that package's tables, which lie in part on the Go heap: this one must not.
//
// Package commands is the only caller. One thread at a time.
package uniquequeue
