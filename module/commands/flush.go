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
	case o.mesh && !c.CanBlock():
		fail(c, errMeshWaits)
		return
	}
	if _, wrong := m.find(c, name); wrong {
		return
	}
	if o.mesh {
		p, now := m.node.FlushMesh(name, all, o.timeout)
		m.answerFlush(c, p, now, func(c *rm.Ctx) { c.NullArray() }, putMeshFlushed)
		return
	}
	p, now := m.node.FlushQueue(name, all, c.CanBlock())
	m.answerFlush(c, p, now, func(c *rm.Ctx) { c.Int(int64(m.node.FlushedSoFar(p))) }, putFlushed)
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

// answerFlush answers a QFLUSH: now, or when it is done.
func (m *module) answerFlush(c *rm.Ctx, p engine.Pending, now *engine.MeshAnswer, unblocked func(*rm.Ctx), put func(*rm.Ctx, *engine.MeshAnswer)) {
	if now == nil {
		m.awaitMesh(c, p, unblocked, put)
		return
	}
	put(c, now)
	m.carryOut(c)
}

func putFlushed(c *rm.Ctx, a *engine.MeshAnswer) { c.Int(int64(a.Flushed)) }

func putMeshFlushed(c *rm.Ctx, a *engine.MeshAnswer) {
	c.Map(2)
	c.Text("flushed")
	c.Int(int64(a.Flushed))
	putUnanswered(c, a)
}
