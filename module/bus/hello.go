package bus

import (
	"encoding/binary"

	"jobmesh/module/wire"
)

// NodeID is the ID of a node.
type NodeID = wire.NodeID

// instanceID is drawn at random by each Open. It distinguishes a node that restarted from two
// nodes with one ID.
type instanceID [16]byte

// magic opens both directions of a connection. It ends with a newline, so that a server of a
// text protocol answers at once and doesn't wait for more. Its first byte differs from that of
// a TLS record.
const magic = "jobmesh\n"

// Versions of the protocol that this code speaks. In version 1, which it doesn't speak any
// more, claims for locks didn't say which nodes they count.
const (
	oldestVersion = 2
	newestVersion = 2
)

const helloSize = 55 // without the advertised host

// maxHost is the longest advertised host, in bytes: with brackets and the port it has to fit the address in a heartbeat,
// whose length has one byte.
const maxHost = 255 - len("[]:65535")

// hello is what a node says of itself. Its layout is the same in all versions:
// later ones may only append to it.
type hello struct {
	oldest, newest uint16
	id             NodeID
	instance       instanceID
	maxFrame       uint32 // largest payload taken, bytes
	busFeatures    uint32 // featureParts
	features       uint32 // the owner's
	port           uint16 // where this node listens
	host           string // "": the address that the connection comes from
	maxMessage     uint32 // largest message taken, bytes; only sent with featureParts
}

// featureParts, in busFeatures: the node takes messages larger than a frame, in parts.
const featureParts = 1

func (h *hello) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, h.oldest)
	b = binary.BigEndian.AppendUint16(b, h.newest)
	b = append(b, h.id[:]...)
	b = append(b, h.instance[:]...)
	b = binary.BigEndian.AppendUint32(b, h.maxFrame)
	b = binary.BigEndian.AppendUint32(b, h.busFeatures)
	b = binary.BigEndian.AppendUint32(b, h.features)
	b = binary.BigEndian.AppendUint16(b, h.port)
	b = append(b, byte(len(h.host)))
	b = append(b, h.host...)
	if h.busFeatures&featureParts != 0 {
		b = binary.BigEndian.AppendUint32(b, h.maxMessage)
	}
	return b
}

// parseHello reads the payload of a hello frame. It skips the fields of later versions, which
// follow those that it knows.
func parseHello(b []byte) (hello, error) {
	if len(b) < helloSize || len(b) < helloSize+int(b[helloSize-1]) {
		return hello{}, protocolError("a hello of %d bytes is too short", len(b))
	}
	h := hello{
		oldest:      binary.BigEndian.Uint16(b),
		newest:      binary.BigEndian.Uint16(b[2:]),
		id:          NodeID(b[4:24]),
		instance:    instanceID(b[24:40]),
		maxFrame:    binary.BigEndian.Uint32(b[40:]),
		busFeatures: binary.BigEndian.Uint32(b[44:]),
		features:    binary.BigEndian.Uint32(b[48:]),
		port:        binary.BigEndian.Uint16(b[52:]),
		host:        string(b[helloSize : helloSize+int(b[helloSize-1])]),
	}
	if rest := b[helloSize+len(h.host):]; h.busFeatures&featureParts != 0 {
		if len(rest) < 4 {
			return hello{}, protocolError("a hello without the largest message that is taken")
		}
		h.maxMessage = binary.BigEndian.Uint32(rest)
	}
	switch {
	case h.oldest == 0 || h.oldest > h.newest:
		return hello{}, protocolError("a hello with versions %d to %d", h.oldest, h.newest)
	case h.maxFrame < minMaxFrame:
		return hello{}, protocolError("a hello that takes frames of %d bytes, fewer than %d", h.maxFrame, minMaxFrame)
	}
	if len(h.host) > maxHost {
		return hello{}, protocolError("a hello with a host that is too long")
	}
	for _, c := range []byte(h.host) {
		if c <= ' ' || c > '~' {
			return hello{}, protocolError("a hello with an unprintable host")
		}
	}
	return h, nil
}

// common returns the highest version that both speak.
func (h *hello) common(theirs *hello) (uint16, error) {
	if v := min(h.newest, theirs.newest); v >= max(h.oldest, theirs.oldest) {
		return v, nil
	}
	return 0, refuse(CodeVersion, "no common protocol version: this node speaks %d to %d, the peer %d to %d",
		h.oldest, h.newest, theirs.oldest, theirs.newest)
}
