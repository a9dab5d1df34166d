// Package sim runs a mesh of many nodes in one process, on a simulated clock
// and network, driven by a seed: what happens once happens again with the same
// seed. It is the real engine that runs; the sockets, the disk and the clients
// are made up, and go wrong as often as they are told to.
//
// [Run] plays one history and judges it. What it checks is in check.go, what
// can go wrong in [Faults].
package sim
