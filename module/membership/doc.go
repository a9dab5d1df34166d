// Package membership is who is in the mesh, and how the nodes fare: a node's table of the others. It does no I/O. Its
// caller tells it what arrives and which connections there are. It tells its [Host] what to send, which nodes to
// connect to, and which came or went.
//
// A node knows others from the nodes' file ([Table.Add]), by an operator's word ([Table.Meet]), by a connection whose
// other end has proved the secret ([Table.Up]), and by gossip. The table only grows, except by [Table.Forget] and
// [Table.Reset], since a node that fails may come back, and its votes count.
//
// Each node sends a heartbeat every second, with its own state and what it knows of some others. A node that was silent
// for the node timeout is suspected; it has failed when a majority suspects it. Health steers where copies of jobs go,
// and what is recommended to clients. No majority depends on health: a majority counts all nodes that there are
// ([Table.CountsAll]).
package membership
