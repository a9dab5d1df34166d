// Package engine is a node's state machine: jobs, queues, retries, delays,
// expiry, waiting clients, pauses, memory pressure, what survives a restart,
// and the node's part in a mesh. It does no I/O and knows no Redis. The caller
// gives it the time, randomness, an allocator and one event at a time (a
// command, a message, a tick, a loaded value). The engine leaves effects (answers
// to waiting clients, messages to send, what to log, which keys were touched),
// and the caller carries them out. So package sim can run hundreds of nodes in one
// process, and repeat a run by its seed.
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
// is queued), queued, or acked (kept only where others must still learn of it). Several nodes
// can have copies of a job; each records which others it believes to have one (the job's holders).
// Messages may be lost with a connection. A message that must not be lost is repeated by a timer
// until it is answered, or the next step makes up for it (a copy that no node mentions is queued
// again). A node remembers for a minute or two which jobs are gone (tombstones), so that a copy
// that was under way can't bring one back.
//
// Package lock has the locks. A job's record says which locks the job has. On a node that is
// alone, a lock is free if its job is gone, or if the record says otherwise: no lock has to be
// reaped. In a mesh the table of locks has this node's votes, and the votes of more than half of
// all nodes make a lock.
//
// # Time
//
// The node's time goes on evenly, whatever is done to the server's clock (clock.go). No event, tick
// or command takes more than a few milliseconds, whatever the node holds: long work is cut into
// slices, and [Node.Tick] does one slice a millisecond. Work that is half done leaves a state that
// every command, a restart and a change of role can deal with. A walk through a map can't be
// interrupted, see package table. COMMANDS.md lists the operations that still take time for each
// queue, lock or job at once.
//
// # Files
//
//   - node.go: the node; effects.go: its effects; reclaim.go: when memory that effects name is
//     freed; errors.go: its refusals; tick.go: its timer; clock.go: its time;
//   - state.go: the transitions of a job, checked in builds with the tag check (state_check.go);
//   - pending.go: answers that come later;
//   - add.go: ADDJOB; jobs.go: other commands on jobs; wait.go: clients that wait, and the job that one
//     gets; keys.go: queues as keys; load.go: saved data;
//   - unique.go: what a unique job says of its locks, and how they end; unique_add.go: its ADDJOB;
//     reschedule.go: how it is put off, and tries again; run_lock.go: the lock while it is worked on;
//     key_slots.go: keys that several jobs may have at a time; keyqueues.go: how it waits for that lock in
//     its queue; backoff.go: for how long a key isn't asked for; lease.go: the leases of its locks;
//     delegate.go: its locks where other nodes have it, too;
//     farewell.go: its locks when it is deleted with its queue; relock.go: the same when it is loaded;
//   - wip.go: which client works on which job; counts.go: counts of queues over the mesh; question.go: how
//     commands with MESH ask all nodes; entries.go: settings and pauses that all nodes are to know alike;
//     copies.go: WAITCOPIES; repair.go: lost copies are made again; flush.go: QFLUSH; late.go: the same at a node that was away; sight.go: of which jobs a node knows all;
//   - dependencies.go: jobs that wait for others; outcome.go: what a job's end means for those that
//     wait for it; unblock.go: which node queues one of them then; eviction.go: the end of a copy alone;
//     ask_outcome.go: the end of a job that isn't known here; release.go: the release of deferred jobs;
//   - job_locks.go: what package lock asks about jobs, and what it makes the node do;
//   - mesh.go: messages about one job; replicate.go: the copies of a job; requeue.go: how it
//     comes back; ack.go: its end; moves.go: how it goes to another queue; movejob.go: MOVEJOB;
//   - failure.go: jobs that fail, and come again later; policy.go: how often, and how much later; dead.go: dead
//     letters; progress.go: how far jobs are;
//   - cron.go: recurring jobs; slots.go: how each slot gets one job;
//   - federate.go: how jobs move to where clients wait; agenda.go: queues that are looked at later;
//     leaving.go: how jobs move away from a node that leaves; handover.go: how at-most-once jobs
//     move, which have one copy; given.go: jobs that were handed over and may not have arrived;
//   - idle.go: jobs that all nodes leave to each other; gone.go: jobs that were deleted at this
//     node alone, and don't come back;
//   - peers.go: what follows when nodes come and go (package membership says who is there);
//     holders.go: which nodes have copies of a job.
package engine
