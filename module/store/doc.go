// Package store holds jobs and queues in memory that it is given: no cgo, no
// clock, no goroutine. Everything that lasts lies outside the Go heap, in the
// layout that cgo/record shares, so Redis counts it, a forked child can walk
// it, and Go's collector never looks at it.
//
// No operation takes time in proportion to what is stored:
//
//   - jobs by ID and queues by name: [Store.Lookup], [Store.Queue], in tables of
//     package table, which grow and shrink a few buckets at a time;
//   - a queue's waiting jobs: one doubly linked list in order of (CTime, ID),
//     with a sparse skip list over it for those that come back out of order;
//   - the next job to wake: a hierarchical timer wheel, [Store.Due];
//   - whole queues that go: [Store.Bury], then [Store.Reap] bit by bit; all of them:
//     [Store.Condemn], whose keys go bit by bit as well;
//   - what few jobs have, extras behind the body (extras.go): what one is unique by
//     (unique.go), whom it waits for (dependencies.go), who works on it;
//   - unique jobs that may not run yet: a per-key queue for each key, out of the way of
//     the list (keyqueue.go); locks by name (lock.go);
//   - who else holds a job (holders.go), and what is saved of it (record.go);
//   - who waits for a job: an index of edges (dependencies.go).
//
// Package engine alone calls what changes anything; package commands reads. One thread
// at a time.
package store
