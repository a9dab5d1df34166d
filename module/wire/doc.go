// Package wire is what nodes say to each other: the messages of a mesh in
// their binary form. It knows no sockets (package bus moves the bytes) and no
// state (package engine says what a message means).
//
// Messages are Disque's, in a form of our own: a kind,
// flags, and what the kind needs, integers as varints, times as spans relative
// to the moment of sending, since clocks differ. Nodes are named by the first
// eight bytes of their ID ([Node]), but where they are introduced.
package wire
