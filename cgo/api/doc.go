// Package api is the C half of the binding to the Redis modules API: the table of
// API functions, the module's entry point, the C functions through which Redis
// calls Go, the playing back of replies, and the command filter. Its Go functions
// are thin and unsafe; use package rm instead.
//
// # One crossing
//
// A command crosses from C into Go once. Before the crossing, C lays the arguments
// flat (struct slice). After it, C plays back the operations that Go left in the
// frame (struct op): the reply, what to replicate, which key was touched.
// Memory blocks pass between C and Go through the pool, without a crossing. If a
// command works on a key's value ([SetKey]), C looks that up before the call, and
// sets or removes the key after it, if Go says so.
//
// # Rules that callers must keep
//
// Everything here runs on Redis' main thread, except [Post], [Log] and
// [Alloc]/[Free] of blocks that no pool holds. A pointer put into a frame has
// to stay valid until the command returns.
//
// # Learned the hard way
//
//   - RedisModule_Replicate from an event-loop callback kills the server at the
//     next blocked client (Redis 7.0 to 8.0, Valkey 8 and 9). From [Post], call
//     a command of the module's own with [Call]; that command replicates.
//   - RedisModule_ReplicateVerbatim costs a few nanoseconds if there is neither an
//     AOF nor a replica, and it makes the server count the change (server.dirty, on
//     which "save 60 1000" rests). In a timer there is no command to repeat: with an
//     AOF it writes an empty one, "*0", and the next start fails there.
//   - While the server loads an AOF its own AOF is off, and the context's flags say so.
//     Don't remember what they said at that time.
//   - If a change is counted inside a server event, the server counts it as a change by
//     the command that caused the event. After REPLICAOF NO ONE, or PSYNC … FAILOVER, it
//     then logs and replicates that very command: replicas that carry it out end by an
//     assertion, and a restart repeats a REPLICAOF that was taken back.
//   - Persistence events fire in the forked child. C handles the one that this package
//     subscribes to, and every function that calls Go returns at once in a child.
//   - The "loaded" key event passes a name that lies on the server's stack. Opening
//     the key with it aborts the server ("You tried to retain an object allocated in
//     the stack"). So C passes a copy to Go.
//   - In free_privdata of a blocked client that has gone, the context has no
//     client: Replicate and SignalModifiedKey there crash the server.
//   - While writes are paused (CLIENT PAUSE, FAILOVER) only a client's write command may
//     replicate: anything else that does ends the server by an assertion. Package rm keeps
//     such effects until later ([WritesPaused]).
//   - The Go compiler's nil check reads the first byte of a block before
//     anything is written to it. On a fresh page that read maps the zero page,
//     and the write behind it faults once more and flushes other cores' TLBs: a
//     tenth of ADDJOB. So C writes to a block before it gives the block to Go.
//   - If a key-ready callback says "not served", a reply that it makes still reaches the
//     client, which goes on waiting. So package api plays no reply then. A panic counts
//     as served, because its error is an answer.
//   - A key that is opened for writing counts as changed when it is closed, whatever was
//     done to it. So look a key up with a key opened for reading.
//   - A module that fails to load leaves its command filters behind, with pointers to
//     memory that is gone. So register filters last.
//   - In a transaction GetSelectedDb returns the client's database in Valkey 9.1.2. It
//     does so in the callback of a key event, too, when another database is selected, as
//     in MOVE. Only OpenKey shows which database is selected.
//   - RENAME and MOVE call a value's unlink method although the value lives on. Code that
//     lets go of a value there must be able to take it back at the rename_to and move_to
//     events.
package api
