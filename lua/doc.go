// Package lua holds the Lua that jobmesh brings along, for the server's own
// interpreter: libraries of Redis functions, embedded in the module, which JOBMESH
// LUA LOAD gives to the server. It neither loads nor runs anything itself.
//
// jobmesh.lua moves queues between the key layouts of Resque, resque-uniqueue,
// Sidekiq and rq, and jobmesh. Its functions use commands that clients have too;
// what they promise is in module/COMMANDS.md.
//
// unique_queue.lua is the unique queue on plain Redis types: what the native one
// is tested step by step, and measured, against.
package lua
