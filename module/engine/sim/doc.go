// Package sim runs a mesh of many nodes in one process, on a simulated clock
// and network, driven by a seed: what happens once happens again with the same
// seed. It is the real engine that runs; the sockets, the disk and the clients
// are made up, and go wrong as often as they are told to.
//
// [Run] plays one history and judges it. What can go wrong is in [Faults].
//
//   - clock.go: simulated time, and messages under way; sim.go: the nodes, their disks and connections;
//   - play.go: clients with jobs, and trouble; check.go: what must hold of jobs;
//   - family.go, unique.go, locks.go: the clients of families, unique jobs and locks,
//     each with what must hold of them.
//
// The histories that are played are tables in the tests of the same names.
package sim
