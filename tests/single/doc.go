// Package single tests one node from outside: each command with its options,
// replies and errors, timers, blocking, persistence, replicas, memory; unique jobs and
// queues, locks, families, work in progress.
package single
