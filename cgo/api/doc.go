// Package api is the C half of the binding to the Redis modules API: the table
// of API functions, the module's entry point, the trampolines through which
// Redis calls, the playing back of replies, and the command filter. Its Go functions are thin and
// unsafe; package rm is the one to use.
//
// # One crossing
//
// A command crosses from C into Go once. Before it, C lays the arguments flat
// (struct slice); after it, C plays back the operations that Go left in the
// frame (struct op): the reply, what to replicate, which key was touched.
// Memory blocks pass between the two through the pool, without a crossing. Where
// a command works on a key's value ([SetKey]), C has looked that up before, and
// sets or removes the key after, if Go says so.
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
//     a command of one's own with [Call]; that command replicates.
//   - RedisModule_ReplicateVerbatim costs a few nanoseconds where there is
//     neither AOF nor replica, and has the change counted (server.dirty, on which
//     "save 60 1000" rests). In a timer there is no command to repeat: with an AOF it
//     writes an empty one, "*0", at which the next start ends.
//   - While the server loads an AOF its own AOF is off, and the context's flags say so.
//     An answer from then must not be remembered.
//   - A change that is counted inside a server event counts as the command's that
//     caused the event. After REPLICAOF NO ONE, or PSYNC … FAILOVER, the server then
//     logs and replicates that very command: replicas that carry it out end by an
//     assertion, and a restart repeats a REPLICAOF that was taken back.
//   - Persistence events fire in the forked child. The one that is subscribed to is
//     served in C, and every trampoline returns at once in a child.
//   - The "loaded" key event passes a name that lies on the server's stack: to
//     open the key with it aborts the server ("You tried to retain an object
//     allocated in the stack"). The trampoline passes a copy on.
//   - In free_privdata of a blocked client that has gone, the context has no
//     client: Replicate and SignalModifiedKey there crash the server.
//   - While writes are paused (CLIENT PAUSE, FAILOVER) only a client's write command may
//     replicate: anything else that does ends the server by an assertion. Package rm keeps
//     such effects until later ([WritesPaused]).
//   - The Go compiler's nil check reads the first byte of a block before
//     anything is written to it. On a fresh page that read maps the zero page,
//     and the write behind it faults once more and flushes other cores' TLBs: a
//     tenth of ADDJOB. Blocks are handed over touched.
//   - A reply that a key-ready callback makes while it says "not served" reaches the
//     client, which goes on waiting. So package api plays no reply then; and a panic
//     counts as served, because its error is an answer.
//   - A key opened for writing counts as changed when it is closed, whatever was
//     done to it: look up with a key opened to be read.
//   - A module that fails to load leaves its command filters behind, and with
//     them pointers to what is gone: register them last.
//   - In a transaction GetSelectedDb names the client's database in Valkey 9.1.2, also
//     in the callback of a key event that has another one selected, as MOVE's: what
//     OpenKey opens is the truth.
//   - RENAME and MOVE call a value's unlink method although the value lives
//     on: whoever lets go of a value there must be able to take it back at the
//     rename_to and move_to events.
package api
