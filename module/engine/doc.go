// Package engine is a node's state machine: jobs, queues, retries, delays,
// expiry, waiting clients, pauses, memory pressure, what survives a restart,
// and what the node is to others in a mesh. It does no I/O and knows no Redis:
// it is given the time, randomness, an allocator and one event at a time (a
// command, a message, a tick, a loaded value), and leaves effects (answers to
// waiting clients, messages to send, what to log, which keys were touched) for
// its caller to carry out. So it can be run anywhere, by the hundred, with a
// seed: package sim does.
//
// # Callers
//
// Only one thread may call the engine. Package commands calls it for clients; the module's
// shell calls it for timers and when something happens to keys. Every call that can change
// something is followed by taking [Node.Effects].
//
// # States of a job (spec: "Disque state machine")
//
// active: known, not in a queue; it is queued again at QTime. queued: in its
// queue. acked: acknowledged, kept only where other nodes must still learn of
// it. wait-repl: not yet promised to anybody.
//
// # The mesh
//
// A copy of a job can lie on several nodes; each keeps in the job's record whom
// else it believes to hold one (its holders). Lists are told on wherever one
// turns out to know more than another, so they come to agree. Messages may be lost with a connection;
// whatever must not be lost is repeated by a timer until it is answered, or put
// right by the next step (a copy of which nobody speaks is queued again). A
// node remembers for a minute or two which jobs are gone (graves), so that a
// copy that was under way can't bring one back.
//
// # Unique jobs and locks
//
// A job's locks are what the job says, so there is nothing to reap: one whose job
// is gone, or says otherwise, is free. In a mesh what lies in the table of locks is
// this node's vote, and more than half of all nodes make a lock.
//
// # Time
//
// Time goes on evenly, whatever is done to the server's clock (clock.go).
//
// No event, tick or command takes more than a few milliseconds, whatever the node holds:
// long work is cut into slices, of which [Node.Tick] does one a millisecond (tickBudget,
// reapBudget, followMost, waitSlice, placeSlice, askSlice, lockSteps, lockMost, lockSlice, claimSlice, clearBudget, sweepSlice,
// idleSteps, suspectMost). Work that is half done leaves a state that every command, a restart and a
// change of role can meet: a job for whose end others wait stays, as acknowledged, until
// all are followed. A walk through a map can't be interrupted, see roster.go. COMMANDS.md lists
// the operations that still take time for each queue, lock or job at once.
//
// # Files
//
//   - node.go, effects.go, reclaim.go, errors.go, tick.go: the node, what it leaves to be
//     done, when what that names is given back, its refusals, its timer;
//   - jobs.go, wait.go, keys.go, load.go: commands on jobs, clients that wait, queues
//     as keys, what was saved;
//   - unique.go: what a unique job locks, and when; consent.go: the same where other
//     nodes have a say; wip.go: who works on what;
//   - family.go: jobs that wait for others; fate.go: what follows for them from a job's
//     end; release.go: the release of deferred ones;
//   - lock.go: the table of locks; claim.go: asking for one, attempt.go: asking all nodes
//     once, vote.go: giving a vote, raised.go: what it goes back to, votes.go: what is remembered of votes, debt.go: votes that are to be taken back; claimsync.go:
//     what a node asks the others that may have lost votes it gave, dispute.go: of which of
//     them it hears different things; suspect.go: votes that stand for nothing any more;
//     begin.go: leases that begin when a job is due;
//   - mesh.go: what arrives of one job; replicate.go, requeue.go, ack.go: its copies, its
//     coming back, its end; federate.go: how jobs move to where clients wait, handover.go:
//     at-most-once ones, of which there is one copy; gone.go: what was deleted at this node
//     alone, and doesn't come back; peers.go: who is in the mesh and how
//     it fares.
//
// # Intended differences from Disque
//
//   - A node remembers the nodes that asked it for jobs in vain, and gives them the next job at
//     once: Disque's nodes ask again and again.
//   - A node that has given a job to a client objects when another wants to queue it.
//   - A refused copy is answered, and the next node asked.
//   - A node that stood still past a job's time announces (WILLQUEUE) before it queues
//     the job, and the caller applies messages that have arrived before it calls Tick.
//   - The retry time runs anew from each delivery, not from the queueing: a
//     job that waited long isn't delivered twice in a row (spec 11.4, 58).
//   - QTime of a queued job is not kept up by a timer; it is worked out when
//     asked for. A queued job's timer is its expiry alone.
//   - On a single node no random error is added to the retry time: it only
//     keeps nodes from queueing at the same moment.
//   - An at-most-once job remembers whether it was delivered (FlagDelivered),
//     so DEQUEUE and ENQUEUE of an undelivered one lose nothing (spec 9.1, B7).
//
// # Restarts
//
// A loaded job is known, not queued, until [Node.Settle] puts it back: one that was
// queued into its queue, one that somebody had to those that are worked on. An
// at-most-once job needs an exact [Trust] for that; without it it becomes uncertain
// (store.FlagUncertain), and only ENQUEUE by hand queues it. With it, the handing over of
// such a job goes on (handover.go). A job that other nodes hold is queued when they were
// asked (askHolders).
package engine
