// Package table has the tables and lists that packages store, engine, lock and uniquequeue are made of. No operation on
// any of them takes long, however many elements there are.
//
// These tables are of elements in memory of the server, outside Go's heap: jobs, queues, locks, per-key queues, edges
// between jobs. An element begins with an [Entry]. It is in one table at a time. Its owner owns its memory: the table
// never frees it.
//
//   - buckets.go: the arithmetic of linear hashing, which all tables share;
//   - table.go: a table for lookups that mostly find something;
//   - index.go: a table for lookups that mostly find nothing;
//   - prefetch.go: loads cache lines that will be needed soon.
//
// These are on Go's heap, because they are small or can be made anew:
//
//   - chain.go: a list that a member leaves in constant time;
//   - schedule.go: a heap, the soonest first;
//   - roster.go: a map that is walked bit by bit while it changes, and one that forgets.
package table
