package commands

import (
	"jobmesh/module/engine"
	"jobmesh/module/wire"
	"jobmesh/rm"
)

// JOBMESH PUBLISH.

const (
	errChannel       engine.Refusal = "ERR the channel must have 1024 bytes at most"
	errPublication   engine.Refusal = "ERR the message must have 65536 bytes at most: put a larger one into a key or a job, and publish its name"
	errMayNotPublish engine.Refusal = "NOPERM this user has no permissions to run the 'publish' command in this channel, and this does the same"
)

// publishRoom is how many bytes may wait for a node that is sent a publication. The bus holds four times as much: so publications leave room
// for what is said of jobs, which isn't said again.
const publishRoom = 4 << 20

// publish is JOBMESH PUBLISH.
func (m *module) publish(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	p := engine.Publication{Channel: c.Arg(2), Message: c.Arg(3)}
	switch {
	case len(p.Channel) > engine.MaxChannel:
		fail(c, errChannel)
		return
	case len(p.Message) > engine.MaxPublish:
		fail(c, errPublication)
		return
	}
	if may, _ := c.MayRun("PUBLISH", string(p.Channel), ""); !may {
		fail(c, errMayNotPublish)
		return
	}
	nodes := m.node.Publish(p, func(id wire.NodeID) bool {
		if m.mesh.bus == nil {
			return false
		}
		s, known := m.mesh.bus.PeerStats(id)
		return known && s.Connected && s.QueuedBytes < publishRoom
	})
	c.Publish(p.Channel, p.Message)
	c.Int(int64(nodes))
	m.carryOut(c)
}
