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

// details are the fields of SHOW that only some jobs have.
type details struct {
	worker string

	waitsFor    []store.ID // the first of them
	allWaitsFor uint64

	dependents    []store.ID // the oldest of them
	allDependents uint64

	uncertain bool   // nobody knows whether it was delivered
	offeredTo uint64 // the short name of a node; 0: none
}

// maxKin is how many dependents of a job SHOW lists, and how many jobs that it was released
// to come after.
const maxKin = 1000

// more says whether there are dependents that aren't listed.
func (d *details) more() bool { return d.allDependents > uint64(len(d.dependents)) }

// moreBefore says whether the job waits for others that aren't listed.
func (d *details) moreBefore() bool {
	return len(d.waitsFor) >= maxKin && d.allWaitsFor > uint64(len(d.waitsFor))
}

func (m *module) details(j *store.Job) details {
	d := details{worker: m.node.Worker(j), uncertain: j.Uncertain(), offeredTo: m.node.OfferedTo(j)}
	d.waitsFor, d.allWaitsFor = m.node.WaitsFor(j, maxKin)
	d.dependents, d.allDependents = m.node.Dependents(j, maxKin)
	return d
}

func (d *details) fields() (n int) {
	if d.worker != "" {
		n++
	}
	if d.waitsFor != nil {
		n++
	}
	if d.moreBefore() {
		n++
	}
	if d.uncertain {
		n++
	}
	if d.offeredTo != 0 {
		n++
	}
	if d.dependents != nil {
		n++
	}
	if d.more() {
		n++
	}
	return n
}

func (d *details) put(c *rm.Ctx, m *module) {
	if d.worker != "" {
		c.Text("worker")
		copy(c.BulkBuffer(len(d.worker)), d.worker)
	}
	if d.uncertain {
		c.Text("delivered")
		c.Text("maybe")
	}
	if d.offeredTo != 0 {
		c.Text("offered-to")
		c.Text(m.nodeName(d.offeredTo))
	}
	if d.waitsFor != nil {
		c.Text("waits-for")
		putIDs(c, d.waitsFor)
	}
	if d.moreBefore() {
		c.Text("all-waits-for")
		c.Int(int64(d.allWaitsFor))
	}
	if d.dependents != nil {
		c.Text("dependents")
		putIDs(c, d.dependents)
	}
	if d.more() {
		c.Text("all-dependents")
		c.Int(int64(d.allDependents))
	}
}

func putIDs(c *rm.Ctx, ids []store.ID) {
	c.Array(len(ids))
	for i := range ids {
		ids[i].Put((*[store.IDLen]byte)(c.BulkBuffer(store.IDLen)))
	}
}
