// Package table has the tables and lists that packages store, engine, lock and uniquequeue are made of. No operation on
// any of them takes long, however many elements there are.
//
// These tables and lists are of elements in memory of the server, outside Go's heap: jobs, queues, locks, per-key queues,
// edges between jobs. An element begins with an [Entry], or with an [Element] if it is in a list, too. It is in one table
// and in one list at a time. Its owner owns its memory: tables and lists never free it. No pointer in that memory points
// to Go's heap, which Go's collector couldn't see.
//
//   - buckets.go: the arithmetic of linear hashing, which all tables share;
//   - table.go: a table for lookups that mostly find something;
//   - index.go: a table for lookups that mostly find nothing;
//   - list.go: a doubly linked list of such elements;
//   - skiplist.go: finds a place in the middle of a list that is in order;
//   - prefetch.go: loads cache lines that will be needed soon.
//
// These are on Go's heap, because they are small or can be made anew:
//
//   - chain.go: a list that a member leaves in constant time;
//   - schedule.go: a heap, the soonest first;
//   - roster.go: a map that is walked bit by bit while it changes, and one that forgets.
package table
