// Package membership is who is in the mesh, and how they fare: a node's table of the others. It does no I/O: it is told what
// arrives and which connections there are, and tells its [Host] what to send, whom to connect, and who came or went.
//
// A node knows others by what was saved ([Table.Add]), by an operator's word ([Table.Meet]), by a connection whose other end
// has proved the secret ([Table.Up]), and by gossip. The table only grows, but for [Table.Forget], since a node that fails may
// come back, and its votes count.
//
// Each node sends a heartbeat every second, with its own state and what it knows of some others. One that was silent for the node
// timeout is suspected; it has failed when a majority suspects it. Health steers where copies of jobs go, and what is recommended to clients: no majority
// depends on it. For that counts which nodes there are ([Table.CountsAll]).
package membership
