package commands

import (
	"slices"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// MOVEJOB.

// Errors of MOVEJOB.
const (
	errMoveCount engine.Refusal = "ERR COUNT must be between 1 and 10000"
	errManyMoved engine.Refusal = "ERR at most 1000 IDs at once: cut the call in parts, or say FROM"
	errMoveBack  engine.Refusal = "NOPERM this user's key patterns (ACL) exclude some queues, and dead letters may come from any: say TO"
)

// moving is a parsed MOVEJOB: the first arguments are IDs, or there is a queue from which jobs are moved.
type moving struct {
	ids   int    // arguments
	jobs  int    // that these name
	from  []byte // nil: not given
	count int
	engine.Move
	meshOptions
}

const (
	defaultMove = 100   // the COUNT of a MOVEJOB FROM without one
	maxMoved    = 1_000 // IDs
	moveAwayMS  = 1_000 // how long a node waits for those where the jobs wait
)

func parseMove(c args) (v moving, err error) {
	v.ids = leading(c, isMoveOption)
	v.jobs = countJobs(c, v.ids)
	for i, n := v.ids+1, c.NArgs(); i < n; {
		opt, more := c.Arg(i), i+1 < n
		switch {
		case is(opt, "FROM") && more && i == 1:
			v.from = c.Arg(i + 1)
			i += 2
		case is(opt, "TO") && more && v.To == nil:
			v.To = c.Arg(i + 1)
			i += 2
		case is(opt, "PRIORITY") && more && !v.Ranks:
			if v.Priority, v.Ranks = readPriority(c.Arg(i + 1)); !v.Ranks {
				return v, errPriority
			}
			i += 2
		case is(opt, "AT") && more && v.ids > 0 && !v.HasAt:
			if v.At, v.HasAt = seconds(c.Arg(i+1), engine.MaxUnix); !v.HasAt {
				return v, errDueAt
			}
			i += 2
		case is(opt, "COUNT") && more && v.from != nil && v.count == 0:
			count, ok := between(c.Arg(i+1), 1, engine.MaxMove)
			if !ok {
				return v, errMoveCount
			}
			v.count = int(count)
			i += 2
		default:
			took, err := 0, error(nil)
			if v.from != nil {
				took, err = v.option(c, i)
			}
			if err != nil {
				return v, err
			}
			if took == 0 {
				return v, errSyntax
			}
			i += took
		}
	}
	switch {
	case v.ids == 0 && v.from == nil:
		return v, errSyntax
	case v.jobs > maxMoved:
		return v, errManyMoved
	}
	if v.count == 0 {
		v.count = defaultMove
	}
	return v, v.complete()
}

func isMoveOption(arg []byte) bool {
	return is(arg, "FROM") || is(arg, "TO") || is(arg, "PRIORITY") || is(arg, "AT") || is(arg, "COUNT") || is(arg, "MESH") || is(arg, "TIMEOUT")
}

// moveJob is MOVEJOB.
func (m *module) moveJob(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	v, err := parseMove(c)
	if err == nil {
		err = m.mayMove(c, &v)
	}
	if err != nil {
		fail(c, err)
		m.carryOut(c)
		return
	}
	switch {
	case v.from == nil:
		m.moveIDs(c, &v)
	case v.mesh:
		m.askMesh(c, func() (engine.Pending, *engine.MeshAnswer) {
			return m.node.MoveMesh(v.from, &v.Move, v.count, v.timeout)
		}, putMeshMoved)
	default:
		if _, wrong := m.find(c, v.from); wrong {
			return
		}
		p, now := m.node.MoveSome(v.from, &v.Move, v.count, c.CanBlock())
		m.answerOrAwait(c, p, now, func(c *rm.Ctx) { c.Int(int64(m.node.MovedSoFar(p))) }, func(c *rm.Ctx, a *engine.MeshAnswer) { c.Int(int64(a.Moved)) })
	}
}

// mayMove refuses a MOVEJOB as a whole. The server checks the user's rights to the queues that are named; dead letters may come from any.
func (m *module) mayMove(c *rm.Ctx, v *moving) error {
	if m.node.Passive() {
		return engine.ErrReplica
	}
	if !m.limits.none && !c.MayAll() {
		switch {
		case v.from != nil && v.To == nil:
			return errMoveBack
		case v.from != nil && !c.May(v.from, rm.UseWrite), v.To != nil && !c.May(v.To, rm.UseWrite):
			return errNoKey // the server takes the first TO for the word, also where it is the name of a queue
		}
	}
	if v.HasAt && v.At-m.node.Now() >= engine.MaxSeconds*1000 {
		return errDueAt
	}
	m.watchMemory(0)
	if err := m.node.HasRoom(); err != nil {
		return err
	}
	if v.To != nil && v.from != nil {
		return m.node.TakesJobs(v.To)
	}
	return nil
}

// moveIDs moves the jobs that are named. Those that wait at other nodes are moved there. With one ID the answer says why it can't be moved.
func (m *module) moveIDs(c *rm.Ctx, v *moving) {
	if !m.readIDs(c, v.ids) || !m.mayUseJobs(c, rm.UseWrite, m.ids...) || v.To == nil && !m.mayMoveBack(c) {
		return
	}
	m.dropRepeated()
	here, away, single := uint64(0), m.ids[:0:0], v.jobs == 1
	err := error(engine.ErrNoJob) // for an ID that no job can have
	for i := range m.ids {
		var moved bool
		switch moved, err = m.node.Move(&m.ids[i], &v.Move); {
		case moved && err == nil:
			here++
		case err == engine.ErrNotHere:
			away = append(away, m.ids[i])
		}
	}
	if len(away) == 0 || !c.CanBlock() {
		putMoved(c, here, single, err)
		m.carryOut(c)
		return
	}
	p, now := m.node.MoveAway(away, &v.Move, moveAwayMS)
	m.answerOrAwait(c, p, now, func(c *rm.Ctx) { putMoved(c, here, single, engine.ErrNotHere) },
		func(c *rm.Ctx, a *engine.MeshAnswer) { putMoved(c, here+a.Moved, single, a.Refused) })
}

// dropRepeated takes out the IDs that were given before, so that each job is moved, and counted, once.
func (m *module) dropRepeated() {
	if len(m.ids) < 2 {
		return
	}
	seen := make(map[store.ID]struct{}, len(m.ids))
	m.ids = slices.DeleteFunc(m.ids, func(id store.ID) bool {
		_, again := seen[id]
		seen[id] = struct{}{}
		return again
	})
}

// putMoved answers how many of the jobs that were named have been moved. refused is why one wasn't, which is the answer if it was the only one.
func putMoved(c *rm.Ctx, moved uint64, single bool, refused error) {
	if moved > 0 || !single || refused == nil {
		c.Int(int64(moved))
	} else {
		fail(c, refused)
	}
}

// mayMoveBack refuses dead letters that came from a queue that the client's user may not use.
func (m *module) mayMoveBack(c *rm.Ctx) bool {
	if m.limits.none {
		return true
	}
	for i := range m.ids {
		if j := m.node.Job(&m.ids[i]); j != nil {
			if d, dead := engine.DeathOf(j); dead && len(d.From) > 0 && !c.May(d.From, rm.UseWrite) {
				fail(c, errNoKey)
				return false
			}
		}
	}
	return true
}

func putMeshMoved(c *rm.Ctx, a *engine.MeshAnswer) {
	c.Map(2)
	c.Text("moved")
	c.Int(int64(a.Moved))
	putUnanswered(c, a)
}
