package engine

import (
	"bytes"
	"encoding/binary"

	"jobmesh/module/wire"
)

// JOBMESH PUBLISH: a message for the subscribers at all nodes. It is told once to the nodes that are connected, and neither kept nor repeated.

// Limits of a publication, in bytes. Both fit one frame between nodes with room to spare, so that words about jobs aren't held up.
const (
	MaxChannel = 1024
	MaxPublish = 64 << 10
)

// Publication is a message for the subscribers of a channel.
type Publication struct{ Channel, Message []byte }

// Publish tells a publication to the other nodes, but for those of which hasRoom says that too much waits for them. It returns how many nodes
// have it, this one included. The caller publishes it here.
func (n *Node) Publish(p Publication, hasRoom func(wire.NodeID) bool) (nodes int) {
	m := &wire.Message{Kind: wire.Publish, Queue: append(appendText(nil, p.Channel), p.Message...)}
	nodes = 1
	n.tellWhere(m, func(peer *Peer) bool {
		told := peer.Connected && n.mesh.features[peer.ID].Names && hasRoom(peer.ID)
		if told {
			nodes++
		}
		return told
	})
	return nodes
}

// onPublish publishes what another node tells.
func (n *Node) onPublish(m *wire.Message) error {
	length, used := binary.Uvarint(m.Queue)
	if used <= 0 || length > MaxChannel || length > uint64(len(m.Queue)-used) || uint64(len(m.Queue)-used)-length > MaxPublish {
		return wire.ErrMessage
	}
	text := bytes.Clone(m.Queue[used:])
	n.effects = append(n.effects, Effect{Kind: Publish, Client: &Publication{Channel: text[:length], Message: text[length:]}})
	return nil
}
