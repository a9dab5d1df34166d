package commands

import (
	"bytes"
	"fmt"
	"strconv"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

const wipCount = 100 // jobs that WIP lists without COUNT

const (
	errWIPCount       engine.Refusal = "ERR COUNT must be between 1 and 1000000, with MESH 1000"
	errDelayedCursor  engine.Refusal = "ERR invalid cursor: give one that WIP DELAYED has answered, a unix time in ms, or 0"
	errDelayedOverdue engine.Refusal = "ERR OVERDUE is for jobs in progress: delayed jobs are queued when they are due"
	errCursorAlone    engine.Refusal = "ERR CURSOR is for DELAYED: jobs in progress come in one list"
)

// wip is a parsed WIP.
type wip struct {
	meshOptions
	count   int
	overdue bool
	delayed bool
	from    []byte             // CURSOR; nil: none was given
	behind  store.DelayedPlace // what it means
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
		case is(opt, "DELAYED"):
			w.delayed = true
		case is(opt, "CURSOR") && more:
			i++
			if w.from = c.Arg(i); !w.readCursor() {
				return w, errDelayedCursor
			}
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
	switch {
	case w.delayed && w.overdue:
		return w, errDelayedOverdue
	case !w.delayed && w.from != nil:
		return w, errCursorAlone
	}
	return w, w.complete()
}

// readCursor reads CURSOR: a time in unix ms, and maybe the creation time and the ID of a job that is due then, with points between them.
func (w *wip) readCursor() (ok bool) {
	at, job, whole := bytes.Cut(w.from, []byte{'.'})
	ms, ok := between(at, 0, 1<<53)
	w.behind = store.DelayedPlace{At: ms}
	if !whole || !ok {
		return ok
	}
	ctime, name, _ := bytes.Cut(job, []byte{'.'})
	created, err := strconv.ParseUint(string(ctime), 10, 64)
	id, _, valid := store.ParseID(name)
	w.behind.CTime, w.behind.ID = created, id
	return err == nil && valid
}

// putDelayedCursor answers the place of the last job that is listed; 0: no other job follows.
func putDelayedCursor(c *rm.Ctx, jobs []engine.DelayedJob, more bool) {
	if !more || len(jobs) == 0 {
		c.Text("0")
		return
	}
	last := &jobs[len(jobs)-1]
	c.Text(fmt.Sprintf("%d.%d.%s", last.At, last.CTime, last.ID.String()))
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
	if !w.mesh && w.delayed {
		jobs, more := m.node.Delayed(q, w.behind, w.count)
		c.Array(2)
		putDelayedCursor(c, jobs, more)
		putDelayed(c, jobs, false)
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
	if w.delayed {
		m.askMesh(c, func() (engine.Pending, *engine.MeshAnswer) {
			return m.node.AskDelayed(name, w.behind, w.count, w.timeout)
		}, putMeshDelayed)
		return
	}
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

func putMeshDelayed(c *rm.Ctx, got *engine.MeshAnswer) {
	c.Map(3)
	c.Text("cursor")
	putDelayedCursor(c, got.Delayed, got.More)
	c.Text("jobs")
	putDelayed(c, got.Delayed, true)
	putUnanswered(c, got)
}

// putDelayed answers the jobs of WIP with DELAYED.
func putDelayed(c *rm.Ctx, jobs []engine.DelayedJob, withNode bool) {
	c.Array(len(jobs))
	for i := range jobs {
		d := &jobs[i]
		n := 4
		if withNode {
			n++
		}
		c.Array(n)
		d.ID.Put((*[store.IDLen]byte)(c.BulkBuffer(store.IDLen)))
		c.Int(d.At)
		c.Int(d.Created())
		c.Int(int64(d.Deliveries))
		if withNode {
			c.Text(d.Node.String())
		}
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
