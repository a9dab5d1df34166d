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
	Local      string // the host of this end: the address that the peer sees, unless it is translated on the way
	Advertised string // "host:port" where the peer says that it listens
	Version    uint16 // of the protocol, the highest both speak
	Features   uint32 // bits that are set on both sides
	Instance   uint64 // of the peer: another number after each Open; not 0
	Dialled    bool   // by us
}

// Down says that the connection ended. If the owner wants a connection to the peer
// ([Bus.Connect]), the bus dials it again.
type Down struct {
	ID  NodeID
	Err error
}

// Messages are messages of one frame, at least one. A large frame comes in several events.
type Messages struct {
	ID      NodeID
	Count   int
	payload []byte
	skip    bool
}

// Skip drops the rest of the frame: no further events come for it.
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

// Met is the outcome of [Bus.Meet]. If Err is nil, the node at the address has this ID and is
// connected, though its Up may come later.
type Met struct {
	Ticket uint64
	Addr   string
	ID     NodeID
	Err    error
}

// Duplicate says that two running nodes have this ID, which may be this node's own. It comes at
// most once a minute for an ID, and only if the other node knows the secret.
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
