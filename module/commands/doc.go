// Package commands contains what clients and the server see of jobmesh: the
// commands with their options, replies and errors, the data type, the
// configuration and INFO. It also carries out the effects that package engine
// leaves.
//
// A command is parsed, given to the engine, and answered with what the engine
// returns. Then [module.carryOut] carries out the engine's effects: logging to the
// AOF and the replicas, answers to blocked clients, touched keys. [New] is the
// only function that other packages call.
//
//   - jobs.go: the commands on jobs and queues, parse.go: their options, acl.go: which jobs a
//     user may know and change;
//   - unique.go: ADDJOB UNIQUE; qconfig.go: QCONFIG, settings.go: the settings themselves; cron.go: CRON;
//     lock.go: taking and releasing locks, lockscan.go: listing and clearing them;
//     glob.go: patterns;
//   - meshwide.go: QLEN and QSTAT, and what all commands with MESH do;
//   - failure.go: NACK, and what becomes of jobs that fail, movejob.go: MOVEJOB;
//   - family.go, wip.go: jobs that wait for others, and work in progress; uq.go: unique
//     queues;
//   - container.go, mesh.go, nodes.go: JOBMESH and the bus; functions.go: JOBMESH LUA;
//   - shell.go, persist.go, torn.go: the server's side: the module and its configuration,
//     what is saved and logged, a log that ends within a write;
//   - table.go, help.go: what COMMAND DOCS and HELP say.
//
// COMMANDS.md in the parent folder is the reference. table.go holds the same
// facts for COMMAND DOCS, and a test compares the commands' names.
//
// The engine knows nothing of unique queues (uq.go): their values are plain
// ones, on which package uniquequeue works.
//
// # Disque's names
//
// Commands whose names Redis has too are subcommands of JOBMESH. With
// jobmesh.disque-compat yes the server's filter rewrites Disque's names to those
// subcommands (compat.go). No other code knows of the rewriting.
//
// # When the engine works
//
// The engine works in a client's command, or by [module.later], which waits while
// the server loads its data or has its writes paused. In a server event it only
// takes note: what follows from a promotion comes with the next call that may log
// ([module.begin]).
//
// # The log
//
// Effects are logged by internal commands that may be applied twice: LOADJOB queue record
// (a job as it lies in memory), SETJOB record-head [parts [queue]] (its changed state, and the queue to which it has moved; with an empty record: the job with this ID doesn't wait for another any more), DELJOB
// id, MAKEQUEUE queue (its key was made, without a job that is logged), DELQUEUE queue …,
// JOBMESH FLUSHED (all queues are empty from here on, their DELQUEUE follow); SETLOCK record
// and DELLOCK name token for locks, and QCONFIG RESTORE for settings. JOBMESH EVENT key ID length field value … is an entry of the stream of events
// (events.go).
// JOBMESH EPOCH process names the process that writes the log from there on.
// Deliveries of at-least-once jobs are not logged, as in Disque: after a crash such
// a job is queued, and comes again. Every step of an at-most-once job is logged.
// The state file (state.go) records facts about the process that wrote the log
// which the log itself can't show.
package commands
