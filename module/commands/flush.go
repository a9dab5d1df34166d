package commands

import (
	"jobmesh/module/engine"
	"jobmesh/rm"
)

const flushTimeout = 10_000 // ms that QFLUSH … MESH waits, without TIMEOUT or with 0

// flushQueue is QFLUSH.
func (m *module) flushQueue(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	o, all, err := parseFlush(c)
	name := c.Arg(1)
	switch {
	case err != nil:
		fail(c, err)
		return
	case m.node.Passive():
		fail(c, engine.ErrReplica)
		return
	}
	if _, wrong := m.find(c, name); wrong {
		return
	}
	if o.mesh {
		m.askMesh(c, func() (engine.Pending, *engine.MeshAnswer) { return m.node.FlushMesh(name, all, o.timeout) }, putMeshFlushed)
		return
	}
	p, now := m.node.FlushQueue(name, all, c.CanBlock())
	m.answerOrAwait(c, p, now, func(c *rm.Ctx) { c.Int(int64(m.node.FlushedSoFar(p))) }, putFlushed)
}

// parseFlush reads QFLUSH.
func parseFlush(c args) (o meshOptions, all bool, err error) {
	for i := 2; i < c.NArgs(); {
		if is(c.Arg(i), "ALL") {
			all = true
			i++
			continue
		}
		took, err := o.option(c, i)
		if err != nil {
			return o, all, err
		}
		if took == 0 {
			return o, all, errSyntax
		}
		i += took
	}
	if o.timeout == 0 {
		o.timeout = flushTimeout
	}
	return o, all, o.complete()
}

func putFlushed(c *rm.Ctx, a *engine.MeshAnswer) { c.Int(int64(a.Flushed)) }

func putMeshFlushed(c *rm.Ctx, a *engine.MeshAnswer) {
	c.Map(2)
	c.Text("flushed")
	c.Int(int64(a.Flushed))
	putUnanswered(c, a)
}
