// Package single tests one node from outside: each command with its options,
// replies and errors, timers, blocking, persistence, replicas, memory. The
// numbers in test names are those of the specification's scenarios (section 11).
package single
