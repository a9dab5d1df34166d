// Package bus is the TCP side channel between the nodes of a mesh. It moves
// opaque messages, in batches, and says who is connected. It isn't a codec and
// knows nothing of jobs: what a message holds is the engine's business. It
// keeps no member list: it is told whom to keep a connection to.
//
// The protocol, with its security considerations, is in PROTOCOL.md.
//
// # Callers
//
// Only one thread may call, the owner. None of its calls but [Open] and [Bus.Close]
// waits for a socket, a name server, a disk or a lock: what it says to the
// goroutines and what they say to it goes over lock-free stacks ([stack]),
// and the state it reads is its own or atomic. A turn of its event loop is
//
//	bus.Drain(handle) // a slice of what arrived
//	bus.Send(id, msg) // any number of times
//	bus.Flush()       // everything sent this turn, one frame a peer
//
// Drain ends after Config.DrainBudget, and asks for another turn where something
// is left. An owner with timers uses [Bus.Mark] and [Bus.Reached] to let what has
// arrived, even if it still lies in a socket, go before them.
//
// Config.Wake, called from a goroutine, asks for a turn. Nothing leaves before
// Flush: what the messages promise can be on disk by then.
//
// Flush writes small amounts itself, as far as the socket takes them at once:
// a frame that must first wake a goroutine, which must wake its thread, costs
// several times more and arrives later. The writers write large amounts, and
// the frames that a slow peer hasn't taken yet.
//
// # The goroutines
//
//   - the connection manager, one: it alone knows which connections there are. It starts
//     dials, and decides which connection of a pair of nodes stays;
//   - the listener, one: where the address is taken it tries again every second;
//   - one for each connection being made, which becomes its reader; and one
//     more, the writer, once it is up.
//
// # Promises
//
// Messages of one connection arrive in the order sent, or not at all, but that those of
// [Bus.SendAbout] may overtake large ones; a Send that returned true is lost only if the
// connection closes. For each peer the events are Up, any Messages, Down, and again.
// Memory is bounded: per peer outward by three times MaxQueued and a message; in total inward by MaxInbox, and a frame and an unfinished message for each
// peer; and before a peer has proved itself by MaxPending small buffers.
package bus
