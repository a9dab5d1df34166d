// Package engine is a node's state machine: jobs, queues, retries, delays,
// expiry, waiting clients, pauses, memory pressure, and what survives a
// restart. It does no I/O and knows no Redis: it is given the time, randomness,
// an allocator and one event at a time (a command, a tick, a loaded value),
// and leaves effects (answers to waiting clients, what to log, which keys were
// touched) for its caller to carry out. So it can be run anywhere, by the
// hundred, with a seed.
//
// # Who may call
//
// One thread. Package commands calls it for clients; the module's shell calls
// it for timers and for what happens to keys. Every call that can change
// something is followed by taking [Node.Effects].
//
// # States of a job (spec: "Disque state machine")
//
// active: known, not in a queue; it is queued again at QTime. queued: in its
// queue. acked: acknowledged, kept only where other nodes must still learn of
// it. wait-repl: not yet promised to anybody.
//
// # What differs from Disque on purpose
//
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
// What is loaded is known, not queued, until [Node.Settle] decides per job
// whether its queue position still holds; see [Trust].
package engine
