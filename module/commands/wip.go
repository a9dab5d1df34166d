package commands

import (
	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

const wipCount = 100 // jobs that WIP lists without COUNT

const errWIPCount engine.Refusal = "ERR COUNT must be between 1 and 1000000, with MESH 1000"

// wip is a parsed WIP.
type wip struct {
	meshOptions
	count   int
	overdue bool
}

func parseWIP(c args) (w wip, err error) {
	w.count = wipCount
	for i := 2; i < c.NArgs(); i++ {
		opt, more := c.Arg(i), i+1 < c.NArgs()
		took, err := w.option(c, i)
		switch {
		case err != nil:
			return w, err
		case took > 0:
			i += took - 1
		case is(opt, "OVERDUE"):
			w.overdue = true
		case is(opt, "COUNT") && more:
			i++
			v, ok := between(c.Arg(i), 1, engine.MaxWIP)
			if !ok {
				return w, errWIPCount
			}
			w.count = int(v)
		default:
			return w, errSyntax
		}
	}
	if w.mesh && w.count > engine.MaxMeshWIP {
		return w, errWIPCount
	}
	return w, w.complete()
}

// workInProgress is WIP.
func (m *module) workInProgress(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	w, err := parseWIP(c)
	if err != nil {
		fail(c, err)
		return
	}
	q, wrong := m.find(c, c.Arg(1))
	if wrong {
		return
	}
	if !w.mesh {
		list := m.node.WIP(q, w.count, w.overdue)
		c.Array(len(list))
		for i := range list {
			putProgress(c, &list[i], false)
		}
		return
	}
	name := c.Arg(1)
	m.askMesh(c, func() (engine.Pending, *engine.MeshAnswer) { return m.node.AskWIP(name, w.count, w.overdue, w.timeout) }, putMeshWIP)
}

func putMeshWIP(c *rm.Ctx, got *engine.MeshAnswer) {
	c.Map(2)
	c.Text("jobs")
	c.Array(len(got.Work))
	for i := range got.Work {
		putProgress(c, &got.Work[i], true)
	}
	putUnanswered(c, got)
}

// putProgress answers one job of WIP.
func putProgress(c *rm.Ctx, p *engine.InProgress, withNode bool) {
	n := 5
	if withNode {
		n++
	}
	c.Array(n)
	p.ID.Put((*[store.IDLen]byte)(c.BulkBuffer(store.IDLen)))
	c.Int(p.Due)
	c.Int(p.Since)
	c.Int(int64(p.Deliveries))
	if p.Worker == "" {
		c.Null()
	} else {
		copy(c.BulkBuffer(len(p.Worker)), p.Worker)
	}
	if withNode {
		c.Text(p.Node.String())
	}
}

// employ sets the worker of m.jobs, which a client was just given.
func (m *module) employ(worker []byte) {
	for i, j := range m.jobs {
		m.jobs[i] = m.node.SetWorker(j, worker)
	}
}
