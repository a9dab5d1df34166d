package commands

import (
	"encoding/hex"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

const (
	wipCount   = 100   // jobs that WIP lists without COUNT
	wipTimeout = 1_000 // ms that WIP MESH waits for the other nodes, without TIMEOUT or with 0
)

const (
	errWIPCount  engine.Refusal = "ERR COUNT must be between 1 and 1000000, with MESH 1000"
	errWIPAlone  engine.Refusal = "ERR TIMEOUT is for MESH: nobody else is asked without"
	errMeshWaits engine.Refusal = "ERR MESH has to wait for the other nodes, which MULTI and scripts can't: ask each node by itself"
)

// wip is a parsed WIP.
type wip struct {
	count         int
	overdue, mesh bool
	timeout       int64 // ms
}

func parseWIP(c args) (w wip, err error) {
	w.count, w.timeout = wipCount, -1
	for i := 2; i < c.NArgs(); i++ {
		opt, more := c.Arg(i), i+1 < c.NArgs()
		switch {
		case is(opt, "OVERDUE"):
			w.overdue = true
		case is(opt, "MESH"):
			w.mesh = true
		case is(opt, "COUNT") && more:
			i++
			v, ok := between(c.Arg(i), 1, engine.MaxWIP)
			if !ok {
				return w, errWIPCount
			}
			w.count = int(v)
		case is(opt, "TIMEOUT") && more:
			i++
			if w.timeout, err = timeout(c.Arg(i)); err != nil {
				return w, err
			}
		default:
			return w, errSyntax
		}
	}
	switch {
	case w.mesh && w.count > engine.MaxMeshWIP:
		return w, errWIPCount
	case w.timeout >= 0 && !w.mesh:
		return w, errWIPAlone
	case w.timeout <= 0:
		w.timeout = wipTimeout
	}
	return w, nil
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
	if !c.CanBlock() {
		fail(c, errMeshWaits)
		return
	}
	p, now := m.node.AskWIP(c.Arg(1), w.count, w.overdue, w.timeout)
	if now != nil {
		m.putMeshWIP(c, now)
		return
	}
	if err := m.await(c, p, func(c *rm.Ctx) { c.NullArray() }); err != nil {
		c.Error("ERR " + err.Error())
		return
	}
	m.carryOut(c)
}

func (m *module) answerWIP(e *engine.Effect) {
	if client, ok := e.Client.(*rm.Client); ok {
		got := e.WIP
		client.Answer(func(c *rm.Ctx) { m.putMeshWIP(c, got) }, nil)
	}
}

func (m *module) putMeshWIP(c *rm.Ctx, got *engine.MeshWIP) {
	c.Map(2)
	c.Text("jobs")
	c.Array(len(got.Jobs))
	for i := range got.Jobs {
		putProgress(c, &got.Jobs[i], true)
	}
	c.Text("unanswered")
	c.Array(len(got.Unanswered))
	for _, id := range got.Unanswered {
		c.Text(hex.EncodeToString(id[:]))
	}
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
