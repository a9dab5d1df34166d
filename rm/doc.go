// Package rm is a Go binding of the Redis modules API: commands, replies, data
// types, timers, blocked clients, configuration, INFO, the rewriting of commands
// and the event loop. It knows nothing of queues; any module can be written on
// it. rm/example is one, in a few lines.
//
// It stands where github.com/wenerme/go-rm would have stood, and keeps the
// shape of that: a [Module] value that lists its commands and data types and
// is registered in one place. That binding was written for the API of 2016
// (no blocked clients, timers, event loop, configuration or command
// documentation) and its own dependencies are gone.
//
// # Use
//
//	func init() { rm.Register(&rm.Module{Name: "hello", Version: 1, Commands: …}) }
//	func main() {}
//
// built with -buildmode=c-shared gives a file for redis.conf's loadmodule.
//
// # Rules
//
//   - Everything runs on Redis' main thread: a command's function, a timer's,
//     an event's. The only function for other goroutines is [Server.Post].
//   - No Go runs in a child that Redis forked to save. The callbacks that a data type
//     needs there are C: the type's own, or those that [NewFlatType] brings.
//   - Effects go to the AOF and the replicas by [Ctx.Replicate] alone. It keeps those
//     that the call at hand must not replicate (a server event, a pause of writes, the
//     time of loading) for the next call that may. Work that changes much should come
//     when writes may: see [Ctx.MayReplicate] and [Server.WritesPaused].
//   - A value that the server can change without an event is asked for when it is needed, and
//     not remembered; where rename-command may hide it, the package assumes the worst.
//   - A panic is recovered, logged with its stack, counted, and answered with
//     an error. State that a panic leaves half changed stays half changed:
//     check first, then change.
//   - Bytes given to [Ctx.Bulk] must lie outside the Go heap, or use [Ctx.Text].
package rm
