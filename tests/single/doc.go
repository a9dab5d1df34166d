// Package single tests one node from outside: each command with its options,
// replies and errors, timers, blocking, persistence, replicas, memory; unique jobs and
// queues, locks, families, work in progress.
//
// The numbers in test names are those of specifications' scenarios: of jobs that exist
// once (unique_test.go, uq_test.go, scenarios_test.go, lock_test.go, family_test.go,
// wip_test.go) those of unique-semantics.md, section 7, and with an L those of
// unique-libraries.md; else those of disque-compat.md, section 11.
package single
