// Package rm is a Go binding of the Redis modules API: commands, replies, data types,
// timers, blocked clients, configuration, INFO, the rewriting of commands and the event
// loop. It knows nothing of queues; any module can be written on it. rm/example is one, in
// a few lines.
//
// It takes the place of github.com/wenerme/go-rm and keeps its shape: a [Module] value
// lists the commands and data types, and is registered in one place. That binding was
// written for the API of 2016 (no blocked clients, timers, event loop, configuration or
// command documentation), and its own dependencies are gone.
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
//   - Effects go to the AOF and the replicas only by [Ctx.Replicate]. If the present call
//     must not replicate (a server event, a pause of writes, the time of loading), Replicate
//     keeps the effects for the next call that may. Do work that changes much in a call
//     that may replicate: see [Ctx.MayReplicate] and [Server.WritesPaused].
//   - If the server can change a value without an event, the package asks for the value when
//     it needs it, and doesn't remember it. If rename-command may hide the value, the package
//     assumes the worst.
//   - A panic is recovered, logged with its stack, counted, and answered with
//     an error. State that a panic leaves half changed stays half changed:
//     check first, then change.
//   - Bytes given to [Ctx.Bulk] must lie outside the Go heap, or use [Ctx.Text].
package rm
