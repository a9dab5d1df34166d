// Package store holds jobs and queues in memory that an [Allocator] gives it. It has
// no cgo, no clock and no goroutine. Everything that lasts lies outside the Go heap, in
// the layout that cgo/record shares: so Redis counts it, a forked child can walk it,
// and Go's collector never looks at it.
//
// No operation takes time in proportion to what is stored:
//
//   - jobs by ID and queues by name: [Store.Lookup], [Store.Queue], in tables of
//     package table, which grow and shrink a few buckets at a time;
//   - a queue's waiting jobs: one doubly linked list in order of (CTime, ID),
//     with a sparse skip list over it for those that come back out of order;
//   - the next job to wake: a hierarchical timer wheel, [Store.Due];
//   - removing a whole queue: [Store.ScheduleFree], then [Store.Reap] bit by bit;
//   - removing all queues: [Store.Condemn], then their keys go bit by bit as well;
//   - attributes that few jobs have: extras behind the body (extras.go), such as what a
//     job is unique by (unique.go), which jobs it waits for (dependencies.go), and its worker;
//   - unique jobs that may not run yet: a per-key queue for each key, beside the waiting
//     list (keyqueue.go); locks by name (lock.go);
//   - the other nodes that hold a job (holders.go), and the saved form of a job (record.go);
//   - the jobs that wait for a job: an index of edges (dependencies.go).
//
// Only package engine calls methods that change anything; package commands reads. Only one
// thread may call at a time.
package store
