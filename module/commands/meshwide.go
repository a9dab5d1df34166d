package commands

import (
	"encoding/hex"
	"slices"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// Commands with MESH ask all nodes: WIP, QLEN, QSTAT, QSCAN, JSCAN and QFLUSH. They share the options, and the wait for the answers.

const meshTimeout = 1_000 // ms that MESH waits for the other nodes, without TIMEOUT or with 0

const (
	errAloneTimeout engine.Refusal = "ERR TIMEOUT is for MESH: nobody else is asked without"
	errMeshWaits    engine.Refusal = "ERR MESH has to wait for the other nodes, which MULTI and scripts can't: ask each node by itself"
	errMeshScan     engine.Refusal = "ERR with MESH a call of QSCAN or JSCAN lists a page of one node's queues or jobs: COUNT must be between 1 and 1000, and BUSYLOOP, IMPORTRATE and REPLY all are for one node alone"
)

// meshOptions are MESH and TIMEOUT.
type meshOptions struct {
	mesh    bool
	timeout int64 // ms
	given   bool  // TIMEOUT was given
}

// option reads option i of a command, if it is MESH or TIMEOUT, and says how many arguments it has. 0: it is another one.
func (o *meshOptions) option(c args, i int) (took int, err error) {
	switch opt := c.Arg(i); {
	case is(opt, "MESH") && !o.mesh:
		o.mesh = true
		return 1, nil
	case is(opt, "TIMEOUT") && i+1 < c.NArgs() && !o.given:
		o.given = true
		o.timeout, err = timeout(c.Arg(i + 1))
		return 2, err
	}
	return 0, nil
}

// complete is called behind the last option. It refuses TIMEOUT without MESH, and sets the default.
func (o *meshOptions) complete() error {
	if o.given && !o.mesh {
		return errAloneTimeout
	}
	if o.timeout == 0 {
		o.timeout = meshTimeout
	}
	return nil
}

// parseMesh reads a command that has a queue, and no other options than these.
func parseMesh(c args) (o meshOptions, err error) {
	for i := 2; i < c.NArgs(); {
		took, err := o.option(c, i)
		if err != nil {
			return o, err
		}
		if took == 0 {
			return o, errSyntax
		}
		i += took
	}
	return o, o.complete()
}

// asker is a client that waits for the answers of other nodes.
type asker struct {
	client *rm.Client
	put    func(*rm.Ctx, *engine.MeshAnswer)
}

// askMesh asks the other nodes, and answers the client by put: at once, or when they have answered.
func (m *module) askMesh(c *rm.Ctx, ask func() (engine.Pending, *engine.MeshAnswer), put func(*rm.Ctx, *engine.MeshAnswer)) {
	if !c.CanBlock() {
		fail(c, errMeshWaits)
		return
	}
	p, now := ask()
	m.answerOrAwait(c, p, now, func(c *rm.Ctx) { c.NullArray() }, put)
}

// answerOrAwait answers a client by put: at once if the answer is there (now), else as awaitMesh does.
func (m *module) answerOrAwait(c *rm.Ctx, p engine.Pending, now *engine.MeshAnswer, unblocked func(*rm.Ctx), put func(*rm.Ctx, *engine.MeshAnswer)) {
	if now == nil {
		m.awaitMesh(c, p, unblocked, put)
		return
	}
	put(c, now)
	m.carryOut(c)
}

// awaitMesh blocks a client until the other nodes have answered, and answers it by put; by unblocked at CLIENT UNBLOCK.
func (m *module) awaitMesh(c *rm.Ctx, p engine.Pending, unblocked func(*rm.Ctx), put func(*rm.Ctx, *engine.MeshAnswer)) {
	client, err := m.block(c, p, unblocked)
	if err != nil {
		c.Error("ERR " + err.Error())
		return
	}
	m.node.Tie(p, &asker{client, put})
	m.carryOut(c)
}

func (m *module) answerMesh(e *engine.Effect) {
	if a, ok := e.Client.(*asker); ok {
		answer := e.Answer
		a.client.Answer(func(c *rm.Ctx) { a.put(c, answer) }, nil)
	}
}

// putUnanswered is the end of each answer.
func putUnanswered(c *rm.Ctx, a *engine.MeshAnswer) {
	c.Text("unanswered")
	c.Array(len(a.Unanswered))
	for _, id := range a.Unanswered {
		c.Text(hex.EncodeToString(id[:]))
	}
}

// askCounts begins QLEN or QSTAT. With MESH it asks all nodes, and put answers. here is true if this node alone is to
// answer for its queue, which is nil if there is none. Otherwise the command is done.
func (m *module) askCounts(c *rm.Ctx, put func(*rm.Ctx, *engine.MeshAnswer)) (q *store.Queue, here bool) {
	if !m.enter(c) {
		return nil, false
	}
	o, err := parseMesh(c)
	if err != nil {
		fail(c, err)
		return nil, false
	}
	name := c.Arg(1)
	q, wrong := m.find(c, name)
	if !wrong && o.mesh {
		m.askMesh(c, func() (engine.Pending, *engine.MeshAnswer) { return m.node.AskCounts(name, o.timeout) }, put)
	}
	return q, !wrong && !o.mesh
}

func (m *module) queueLen(c *rm.Ctx) {
	q, here := m.askCounts(c, putMeshLen)
	switch {
	case !here:
	case q == nil:
		c.Int(0)
	default:
		c.Int(int64(q.Waiting()))
	}
}

func putMeshLen(c *rm.Ctx, a *engine.MeshAnswer) {
	c.Map(2)
	c.Text("len")
	c.Int(int64(a.Queues[0].Len))
	putUnanswered(c, a)
}

func (m *module) queueStat(c *rm.Ctx) {
	if _, here := m.askCounts(c, putMeshStat); !here {
		return
	}
	name := c.Arg(1)
	q, known := m.node.Counts(name)
	if !known {
		c.NullArray()
		return
	}
	c.Map(22)
	c.Text("name")
	c.Bulk(name)
	putCounts(c, count{"len", q.Len}, count{"age", q.Age}, count{"idle", q.Idle}, count{"blocked", q.Waiters})
	from, rate := m.node.Imports(name)
	c.Text("import-from")
	c.Array(len(from))
	for _, id := range from {
		c.Text(hex.EncodeToString(id[:]))
	}
	putCounts(c, count{"import-rate", uint64(rate)}, count{"jobs-in", q.JobsIn}, count{"jobs-out", q.JobsOut})
	c.Text("pause")
	c.Text(engine.PauseNames[q.Pause])
	putCounts(c, count{"in-progress", q.InProgress}, count{"overdue", q.Overdue}, count{"held-back", q.HeldBack},
		count{"delayed", q.Delayed}, count{"deferred", q.DeferredCopies}, count{"jobs-blocked", q.BlockedCopies}, count{"oldest", q.Oldest}, count{"dead", q.Dead})
	c.Text("pause-left")
	c.Int(m.node.PauseLeft(name, m.node.Queue(name)))
	c.Text("limited")
	c.Text(m.node.LimitOf(name).String())
	putCounts(c, count{"kept", q.Kept}, count{"dead-letters", q.Letters})
}

// count is a field of an answer.
type count struct {
	name  string
	value uint64
}

func putCounts(c *rm.Ctx, counts ...count) {
	for _, f := range counts {
		c.Text(f.name)
		c.Int(int64(f.value))
	}
}

func putMeshStat(c *rm.Ctx, a *engine.MeshAnswer) {
	q := &a.Queues[0]
	c.Map(20)
	c.Text("name")
	c.Text(string(q.Name))
	putCounts(c, count{"len", q.Len}, count{"in-progress", q.InProgress}, count{"overdue", q.Overdue}, count{"held-back", q.HeldBack},
		count{"delayed", q.Delayed}, count{"deferred", q.Deferred}, count{"jobs-blocked", q.Blocked}, count{"blocked", q.Waiters},
		count{"jobs-in", q.JobsIn}, count{"jobs-out", q.JobsOut}, count{"age", q.Age}, count{"idle", q.Idle}, count{"oldest", q.Oldest}, count{"dead", q.Dead}, count{"kept", q.Kept}, count{"dead-letters", q.Letters})
	c.Text("pause")
	c.Text(engine.PauseNames[q.Pause])
	c.Text("nodes")
	c.Array(len(q.Nodes))
	for i := range q.Nodes {
		n := &q.Nodes[i]
		c.Array(4)
		c.Text(n.Node.String())
		c.Int(int64(n.Len))
		c.Int(int64(n.InProgress))
		c.Text(engine.PauseNames[n.Pause])
	}
	putUnanswered(c, a)
}

// scanMesh is QSCAN with MESH. The user's rights and the bounds of the lengths are looked at when all nodes have answered.
func (m *module) scanMesh(c *rm.Ctx, s scan) {
	sight := newSight(c)
	ask := func() (engine.Pending, *engine.MeshAnswer) {
		return m.node.AskQueues(s.cursor, int(s.count), s.timeout)
	}
	m.askMesh(c, ask, func(c *rm.Ctx, a *engine.MeshAnswer) {
		var found []*engine.MeshCounts
		for i := range a.Queues {
			if q := &a.Queues[i]; q.Known && sight.name(q.Name) && s.within(int64(q.Len)) {
				found = append(found, q)
			}
		}
		c.Map(3)
		c.Text("cursor")
		c.Text(formatCursor(a.Next))
		c.Text("queues")
		c.Array(len(found))
		for _, q := range found {
			c.Array(2)
			c.Text(string(q.Name))
			c.Int(int64(q.Len))
		}
		putUnanswered(c, a)
	})
}

// scanMeshJobs is JSCAN with MESH. The user's rights are looked at when the node has answered.
func (m *module) scanMeshJobs(c *rm.Ctx, s scan) {
	sight := newSight(c)
	ask := func() (engine.Pending, *engine.MeshAnswer) {
		return m.node.AskJobs(s.cursor, int(s.count), engine.JobFilter{Queue: s.queue, ByQueue: s.byQueue, States: s.states}, s.timeout)
	}
	m.askMesh(c, ask, func(c *rm.Ctx, a *engine.MeshAnswer) {
		found := slices.DeleteFunc(a.Jobs, func(j engine.MeshJob) bool { return !sight.name(j.Queue) })
		c.Map(3)
		c.Text("cursor")
		c.Text(formatCursor(a.Next))
		c.Text("jobs")
		c.Array(len(found))
		for i := range found {
			j := &found[i]
			c.Array(4)
			c.Text(j.ID.String())
			c.Text(string(j.Queue))
			c.Text(stateName(j.State))
			c.Text(j.Node.String())
		}
		putUnanswered(c, a)
	})
}
