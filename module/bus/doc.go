// Package bus is the TCP side channel between the nodes of a mesh. It moves opaque
// messages, in batches, and says which nodes are connected. It isn't a codec and knows
// nothing of jobs: only the engine knows what a message means. It keeps no list of
// members: the owner says to which nodes it keeps a connection.
//
// The protocol, with its security considerations, is in PROTOCOL.md.
//
// # Callers
//
// Only one thread may call, the owner. Except for [Open] and [Bus.Close], no call on the
// owner's way waits for a socket, a name server, a disk or a lock. The owner and the
// goroutines talk over lock-free stacks ([stack]), and the state that the owner reads is its
// own or atomic. A turn of its event loop is
//
//	bus.Drain(handle) // a slice of what arrived
//	bus.Send(id, msg) // any number of times
//	bus.Flush()       // everything sent this turn, one frame a peer
//
// Drain ends after Config.DrainBudget, and asks for another turn if something is left. An
// owner with timers uses [Bus.Mark] and [Bus.Reached] to handle what has arrived before its
// timers, even if that still lies in a socket.
//
// Config.Wake, called from a goroutine, asks for a turn. Nothing leaves before
// Flush: what the messages promise can be on disk by then.
//
// Flush writes small amounts itself, as far as the socket takes them at once. A frame that
// first wakes a goroutine, which wakes its thread, costs several times more and arrives
// later. The writers write large amounts, and the frames that a slow peer hasn't taken yet.
//
// # The goroutines
//
//   - the connection manager, one: only it knows which connections there are. It starts
//     dials, and decides which connection of a pair of nodes stays;
//   - the listener, one: if the address is taken, it tries again every second;
//   - one for each connection being made, which becomes the connection's reader; and one
//     more, the writer, once the connection is up.
//
// # Promises
//
// Messages of one connection arrive in the order sent, or not at all; but messages of
// [Bus.SendAbout] may overtake large ones. A message for which Send returned true is lost
// only if the connection closes. For each peer the events are Up, any Messages, Down, and so
// on from the beginning.
//
// Memory is bounded:
//
//   - outward, for each peer, by three times MaxQueued and a message;
//   - inward, for all peers together, by MaxInbox, and for each peer a frame and an
//     unfinished message;
//   - for peers that haven't proved themselves, by MaxPending small buffers.
package bus
