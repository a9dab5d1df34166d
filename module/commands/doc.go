// Package commands is what clients and the server see of jobmesh: the commands
// with their options, replies and errors, the data type, the configuration,
// INFO, and the carrying out of what package engine leaves to be done.
//
// A command is parsed, given to the engine, answered from what that returns;
// then [module.settle] carries out the engine's effects: logging to the AOF and
// the replicas, answers to blocked clients, touched keys. [New] is the only
// function for others.
//
// jobs.go has the commands on jobs and queues, unique.go, qconfig.go and lock.go those
// of unique jobs, of queue settings and of locks, family.go and wip.go those of jobs that wait for others
// and of work in progress, functions.go the Lua that JOBMESH LUA LOAD loads; parse.go
// their options. container.go, mesh.go and nodes.go have JOBMESH and the bus, shell.go,
// persist.go and torn.go the server's side.
//
// COMMANDS.md beside the code's parent is the reference; table.go holds the
// same facts for COMMAND DOCS, and a test compares them.
//
// Unique queues (uq.go) have nothing to do with the engine: their values are
// plain ones, on which package unique works.
//
// # Disque's names
//
// Commands whose names Redis has too are subcommands of JOBMESH. With
// jobmesh.disque-compat yes the server's filter rewrites them to those
// (compat.go); nothing else knows of it.
//
// # What is logged
//
// Effects, by internal commands that may be applied twice: LOADJOB queue record
// (a job as it lies in memory), SETJOB record-head (its changed state), DELJOB
// id; SETLOCK record and DELLOCK name token, and QCONFIG RESTORE for settings. Deliveries of at-least-once jobs are not logged, as in Disque: after a
// crash such a job comes again when its retry time is over. Every step of an
// at-most-once job is.
package commands
