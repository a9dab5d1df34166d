// Package uniquequeue is the unique queue: items in the order in which they came, each at most
// once, each with its start time. A queue is the value of a key. It knows neither the key nor
// the server, and has no state outside the value.
//
// One block of memory holds an item: its links in the queue's list and hash table, its time and
// its bytes. So list, set and times can't contradict each other. The block lies in memory that
// an [Allocator] gives, in the layout that cgo/unique shares: so Redis counts it, a forked child
// can save it, another thread can free it, and Go's collector never looks at it.
//
// No operation takes time in proportion to what is stored, except [Queues.Copy] and
// [Queues.Load]. The hash table grows and shrinks a few buckets at a time, by the arithmetic of
// package table. It isn't one of that package's tables, because those lie in part on the Go
// heap, and this one must not.
//
// Only package commands calls it, from one thread at a time.
package uniquequeue
