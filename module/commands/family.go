package commands

import (
	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// Errors of the options of families.
const (
	errOnDead     engine.Refusal = "ERR ONDEAD must be run, drop or dead"
	errAfterMany  engine.Refusal = "ERR a job can wait for 1000 others at most"
	errTwoParents engine.Refusal = "ERR BLOCKEDBY and AFTER exclude each other: the blocking job is one that it waits for already"
	errOnDeadOnly engine.Refusal = "ERR ONDEAD is for AFTER: a blocked job goes with the one that blocks it"
)

// familyOption reads an option of ADDJOB at argument i that says what the job waits for.
// used is how many arguments the option has, 0 if it is another option.
//
// After AFTER come one ID or several. An argument that begins with D- is an ID, since no
// option begins so.
func familyOption(c args, i int, a *engine.Add) (used int, err error) {
	opt, n := c.Arg(i), c.NArgs()
	switch {
	case is(opt, "DEFERRED"):
		a.Deferred = true
		return 1, nil
	case i+1 == n:
		return 0, nil
	case is(opt, "BLOCKEDBY"):
		id, err := jobID(c.Arg(i + 1))
		a.BlockedBy = &id
		return 2, err
	case is(opt, "AFTER"):
		for used = 1; i+used < n && (used == 1 || looksLikeID(c.Arg(i+used))); used++ {
			id, err := jobID(c.Arg(i + used))
			if err != nil {
				return 0, err
			}
			if len(a.After) == store.MaxFamilyIDs {
				return 0, errAfterMany
			}
			a.After = append(a.After, id)
		}
		return used, nil
	case is(opt, "ONDEAD"):
		word := c.Arg(i + 1)
		for do, name := range onDead {
			if is(word, name) {
				a.OnDead = uint8(do) + 1 // 0: not given
				return 2, nil
			}
		}
		return 0, errOnDead
	}
	return 0, nil
}

var onDead = [...]string{engine.OnDeadDrop: "DROP", engine.OnDeadRun: "RUN", engine.OnDeadDead: "DEAD"}

func looksLikeID(b []byte) bool { return len(b) > 2 && b[0] == 'D' && b[1] == '-' }

// jobID reads an ID, and refuses anything else. An ID that has the right form, but that no
// job can have, is unknown everywhere.
func jobID(b []byte) (store.ID, error) {
	id, canonical, ok := store.ParseID(b)
	switch {
	case !ok:
		return id, errBadID
	case !canonical:
		return id, engine.ErrNoJob
	}
	return id, nil
}

// checkFamily checks the options together.
func checkFamily(a *engine.Add) error {
	switch {
	case a.BlockedBy != nil && len(a.After) > 0:
		return errTwoParents
	case a.OnDead > 0 && len(a.After) == 0:
		return errOnDeadOnly
	case a.OnDead > 0:
		a.OnDead--
	}
	return nil
}

// kinCopies gives a job that waits for others as many copies as those have, if REPLICATE
// wasn't given. A blocked job gets at least as many as the job that blocks it.
func (m *module) kinCopies(a *engine.Add) {
	if a.Retry > 0 {
		switch copies := m.node.DependencyCopies(&a.Members); {
		case a.Default && copies > 0:
			a.Replicate = copies
		case a.BlockedBy != nil:
			a.Replicate = max(a.Replicate, copies)
		}
	}
}

// releaseJob is RELEASEJOB.
func (m *module) releaseJob(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	id, err := jobID(c.Arg(1))
	if err != nil {
		fail(c, err)
		return
	}
	if !m.mayUseJobs(c, rm.UseWrite, id) {
		return
	}
	var queue []byte // the server checks only the first QUEUE against the user's key patterns, so a second one is refused
	last := false
	for i := 2; i < c.NArgs(); i++ {
		switch {
		case is(c.Arg(i), "LAST"):
			last = true
		case is(c.Arg(i), "QUEUE") && i+1 < c.NArgs() && queue == nil:
			i++
			queue = c.Arg(i)
		default:
			fail(c, errSyntax)
			return
		}
	}
	m.watchMemory(0)
	if err := m.node.HasRoom(); err != nil {
		fail(c, err)
		m.carryOut(c)
		return
	}
	nodes, wait, err := m.node.Release(&id, queue, last, c.CanBlock())
	switch {
	case err != nil:
		fail(c, err)
		return
	case !wait:
		c.Int(int64(nodes))
		m.carryOut(c)
		return
	}
	if m.await(c, engine.PendingRelease(id), func(c *rm.Ctx) { c.Int(1) }) != nil {
		c.Int(int64(nodes))
	}
	m.carryOut(c)
}

func (m *module) answerRelease(e *engine.Effect) {
	if client, ok := e.Client.(*rm.Client); ok {
		nodes := int64(e.Nodes)
		client.Answer(func(c *rm.Ctx) { c.Int(nodes) }, nil)
	}
}

var heldNames = [...]string{"deferred", "blocked", "delayed", "done"}

// stateName is the name of a state that clients see.
func stateName(state uint8) string {
	if state < engine.StateDeferred {
		return stateNames[state]
	}
	return heldNames[state-engine.StateDeferred]
}

func heldNamed(b []byte) (uint8, bool) {
	for i, name := range heldNames {
		if is(b, upper(name)) {
			return engine.StateDeferred + uint8(i), true
		}
	}
	return 0, false
}
