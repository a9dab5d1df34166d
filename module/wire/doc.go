// Package wire has the messages between the nodes of a mesh, in their binary form. It knows
// no sockets (package bus moves the bytes) and no state (package engine decides what a
// message does).
//
// The messages follow Disque's, but have a form of their own: a kind, flags, and the fields
// that the kind has. Integers are varints. Times are spans from the moment of sending,
// because clocks differ. A node is named by the first eight bytes of its ID ([Node]), except
// where it is introduced ([Peer]).
package wire
