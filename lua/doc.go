// Package lua holds the Lua that jobmesh brings along, for the server's own
// interpreter: libraries of Redis functions, embedded in the module, which JOBMESH
// LUA LOAD gives to the server. It neither loads nor runs anything itself.
//
// The library jobmesh moves queues between the key layouts of Resque, resque-uniqueue,
// Sidekiq and rq, and jobmesh. Its functions use commands that clients have too;
// what they promise is in module/COMMANDS.md. Its files, in jobmesh/, are one text to
// the server, in the order in which [Libraries] has them: library.lua is the errors and
// options of all functions, move.lua how items go from a source to a target, import.lua
// what every way into jobmesh needs, export.lua every way out, and the others are a
// client library each.
//
// unique_queue.lua is the unique queue on plain Redis types. The native one is tested step by
// step, and measured, against it.
package lua
