// Package table has the tables and lists that packages store, engine, lock and uniquequeue are made of. No operation on any of them takes
// long, however much is in it.
//
// Tables of elements that lie in memory of the server, outside Go's heap: jobs, queues, locks, per-key queues, edges between jobs. An
// element begins with an [Entry]. It is in one table at a time, and its memory is its owner's: the table never frees it.
//
//   - buckets.go: the arithmetic of linear hashing, which all tables share;
//   - table.go: a table for what is looked for and found;
//   - index.go: one for what is mostly looked for in vain;
//   - prefetch.go: cache lines that will be needed soon.
//
// What lies on Go's heap, since it is small or can be made anew:
//
//   - chain.go: a list that a member leaves in the same time, however long it is;
//   - schedule.go: a heap, the soonest first;
//   - roster.go: a map that is looked through bit by bit while it changes, and one that forgets.
package table
