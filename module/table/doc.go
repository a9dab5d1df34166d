// Package table has the hash tables of elements that lie in memory of the server, outside Go's heap: jobs, queues, locks, per-key
// queues, edges between jobs. No operation on them takes long, however many elements there are.
//
//   - buckets.go: the arithmetic of linear hashing, which all tables share;
//   - table.go: a table for what is looked for and found;
//   - index.go: one for what is mostly looked for in vain;
//   - prefetch.go: cache lines that will be needed soon.
//
// An element begins with an [Entry]. It is in one table at a time, and its memory is its owner's: the table never frees it.
package table
