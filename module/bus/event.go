package bus

import (
	"iter"
	"time"
)

// Event is something that [Bus.Drain] tells the owner: an *[Up], *[Down],
// *[Messages], *[Met] or *[Duplicate].
type Event interface{ event() }

// Up says that there is a connection to a peer, from now until its Down.
type Up struct {
	ID         NodeID
	Remote     string // "host:port" of the connection's other end
	Local      string // the host of this end: the address that the peer sees, but for a translation between
	Advertised string // "host:port" where the peer says that it listens
	Version    uint16 // of the protocol, the highest both speak
	Features   uint32 // bits that are set on both sides
	Instance   uint64 // of the peer: another number after each Open; not 0
	Dialled    bool   // by us
}

// Down says that the connection ended. If the peer is one to keep a connection
// to, it is being dialled again.
type Down struct {
	ID  NodeID
	Err error
}

// Messages are messages of one frame, at least one. A large frame comes in several
// such events.
type Messages struct {
	ID      NodeID
	Count   int
	payload []byte
	skip    bool
}

// Skip drops what is left of the frame: its next events don't come.
func (m *Messages) Skip() { m.skip = true }

// All yields the messages in the order sent. They, and m, are valid until the
// callback returns.
func (m *Messages) All() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for rest := m.payload; len(rest) > 0; {
			var msg []byte
			// The reader has checked the lengths.
			msg, rest, _ = nextMessage(rest)
			if !yield(msg) {
				return
			}
		}
	}
}

// Met is the outcome of [Bus.Meet]. With a nil Err the node at the address is
// the one with this ID, and connected, though its Up may come later.
type Met struct {
	Ticket uint64
	Addr   string
	ID     NodeID
	Err    error
}

// Duplicate says that two running nodes have this ID, which may be our own. It
// comes at most once a minute for an ID, and only from nodes that know the
// secret.
type Duplicate struct {
	ID   NodeID
	Addr string // of the other one
}

func (*Up) event()        {}
func (*Down) event()      {}
func (*Messages) event()  {}
func (*Met) event()       {}
func (*Duplicate) event() {}

// PeerStats counts since the peer was first known, over all its connections.
type PeerStats struct {
	ID        NodeID
	Connected bool
	Remote    string
	Version   uint16
	LastError string // of the last dial or connection, "" if none failed

	BytesIn, BytesOut       uint64 // on the wire, encryption included
	FramesIn, FramesOut     uint64 // of all kinds
	MessagesIn, MessagesOut uint64
	Dropped                 uint64 // messages that Send refused, or that were sent but not flushed when the connection ended
	Connections             uint64

	QueuedBytes int64         // buffers waiting to be written
	RTT         time.Duration // of the last ping, 0 before
	Heard       time.Time     // when anything last came from the peer
}
