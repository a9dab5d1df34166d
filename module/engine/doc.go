// Package engine is a node's state machine: jobs, queues, retries, delays,
// expiry, waiting clients, pauses, memory pressure, what survives a restart,
// and what the node is to others in a mesh. It does no I/O and knows no Redis:
// it is given the time, randomness, an allocator and one event at a time (a
// command, a message, a tick, a loaded value), and leaves effects (answers to
// waiting clients, messages to send, what to log, which keys were touched) for
// its caller to carry out. So it can be run anywhere, by the hundred, with a
// seed: package sim does.
//
// module/DESIGN.md explains the whole: each state of a job and each event, the protocols of
// copies, handing over and locks, restarts, and where this differs from Disque.
//
// # Callers
//
// Only one thread may call the engine. Package commands calls it for clients; the module's
// shell calls it for timers and when something happens to keys. Every call that can change
// something is followed by taking [Node.Effects].
//
// # Jobs and locks
//
// A job is wait-repl (promised to nobody yet), active (known, in no queue; QTime says when it
// is queued), queued, or acked (kept only where others must still learn of it). A copy can lie
// on several nodes; each keeps in the record whom else it believes to hold one (its holders).
// Messages may be lost with a connection; whatever must not be lost is repeated by a timer until
// it is answered, or put right by the next step (a copy of which nobody speaks is queued again).
// A node remembers for a minute or two which jobs are gone (tombstones), so that a copy that was
// under way can't bring one back.
//
// Locks are package lock's. A job's locks are what the job says. On a node alone one whose job is gone, or says otherwise,
// is free: there is nothing to reap. In a mesh what lies in the table of locks is this node's
// vote, and more than half of all nodes make a lock.
//
// # Time
//
// Time goes on evenly, whatever is done to the server's clock (clock.go). No event, tick or
// command takes more than a few milliseconds, whatever the node holds: long work is cut into
// slices, of which [Node.Tick] does one a millisecond. Work that is half done leaves a state that
// every command, a restart and a change of role can meet. A walk through a map can't be
// interrupted, see package table. COMMANDS.md lists the operations that still take time for each
// queue, lock or job at once.
//
// # Files
//
//   - node.go, effects.go, reclaim.go, errors.go, tick.go: the node, what it leaves to be
//     done, when what that names is given back, its refusals, its timer;
//   - pending.go: answers that come later;
//   - jobs.go, wait.go, keys.go, load.go: commands on jobs, clients that wait, queues
//     as keys, what was saved;
//   - unique.go: what a unique job locks, and when; unique_mesh.go: the same where other
//     nodes have a say; wip.go: who works on what;
//   - dependencies.go: jobs that wait for others; outcome.go: what follows for them from a job's
//     end; release.go: the release of deferred ones;
//   - job_locks.go: what package lock is told of jobs, and what it has the node do; begin.go: leases
//     that begin when a job is due;
//   - mesh.go: what arrives of one job; replicate.go, requeue.go, ack.go: its copies, its
//     coming back, its end; moves.go: how it goes to another queue; federate.go: how jobs move to where clients wait, agenda.go: queues that are looked at later, leaving.go: and away from a node that leaves, handover.go:
//     at-most-once ones, of which there is one copy; idle.go: jobs that all leave to each other; gone.go: what was deleted at this node
//     alone, and doesn't come back; peers.go: what follows when
//     nodes come and go (package membership says who is there), holders.go: who has copies of a job.
package engine
