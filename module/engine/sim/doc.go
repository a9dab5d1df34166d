// Package sim runs a mesh of many nodes in one process, on a simulated clock
// and network, driven by a seed: what happens once happens again with the same
// seed. The real engine runs. The sockets, disks and clients are simulated, and
// fail as often as they are told to.
//
// [Run] plays one history and judges it. [Faults] says how often each thing goes wrong.
//
// # Playing seeds
//
// The histories are tables in sim_test.go, unique_test.go and locks_test.go. "go test"
// plays a fixed set of seeds of each, and with -sim.seeds also random ones that nobody has seen
// yet. "make sim SEEDS=3000" plays so many random ones, goes on after a failure, and says how long
// each kind took. A seed that fails is printed with the command that plays it again, with a trace:
//
//	go test ./module/engine/sim -run 'TestLockHistories/joins' -sim.seed 9173847749186897664
//
// A seed gives the same history only with the same engine and simulator: after a change of either
// it may draw other random numbers. So a failure that has been understood becomes a script in
// module/engine/testdata.
//
// # Simulated
//
//   - Connections: messages are late, lost, doubled, overtaken; connections break; the mesh
//     falls into two sides, or one direction fails. A node that is paused reads what has
//     arrived when it goes on.
//   - Disks: each node has a log of entries. The node reads its log again when it starts, in
//     the order in which package commands does so; the log is written anew at times. With
//     [EverySec] a crash loses the last entries, up to a second of them, and a clean stop
//     doesn't. The nodes' file can be late. A disk can be lost.
//   - Restarts: of one node, clean or crashed; of all at once; a node that is replaced by a
//     new one and forgotten by the others, at once or one after the other.
//   - Replicas: each node has one that follows its log, a little behind, and at times takes its
//     place, with or without the last entries; the node ends, or follows it from then on
//     (FAILOVER). The operator makes the new node meet the others, and they forget the old one.
//   - Joins: a new node meets any other, whichever nodes can be reached just then.
//   - Clocks: wall clocks differ, and are set; monotonic clocks begin with each life and are
//     fast or slow.
//   - Clients: workers that acknowledge, give back, extend or vanish; jobs with copies, at
//     most once, deferred, blocked, unique; locks that are waited for, extended, given back,
//     used too long; clients that leave while they wait.
//
// # Not simulated
//
// The simulation leaves out the module and the server: commands, blocked clients, events, the
// bus and its encryption, the bytes of the AOF and RDB, FLUSHALL, SWAPDB, RESTORE,
// MULTI. A turn of a node's event loop is one step: what it logs, answers and sends happens at
// once, and a crash never falls into its middle. A disk is never full, and never gives back
// other bytes than it was given. tests/cluster and tests/chaos test these.
//
// When all has healed and its clients have gone, a mesh that has nothing under way sleeps
// most of the time until its last job expires, as if all machines were suspended; then
// nothing may be left.
//
// # Files
//
//   - clock.go: simulated time, and messages under way; disk.go: logs; sim.go: the nodes and
//     their connections;
//   - replica.go: replicas, and how they take their nodes' places;
//   - play.go: clients with jobs, and trouble; check.go: what must hold of jobs;
//   - family.go, unique.go, locks.go, results.go: the clients of families, unique jobs, locks and results,
//     each with what must hold of them.
package sim
