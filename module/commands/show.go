package commands

import (
	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// A job as SHOW and JSCAN answer it.

// field is a field of SHOW that only some jobs have.
type field struct {
	name string
	put  func(c *rm.Ctx)
}

// maxKin is how many dependents of a job SHOW lists, and how many jobs that it was released
// to come after.
const maxKin = 1000

// putDetails answers a job as SHOW does: fields and values in Disque's order,
// a map under RESP3.
func (m *module) putDetails(c *rm.Ctx, j *store.Job) {
	now := m.node.Now()
	more := m.moreFields(j)
	c.Map(15 + len(more))
	c.Text("id")
	putID(c, j)
	nameless := m.node.Nameless(j)
	c.Text("queue")
	bulkOrNull(c, j.Queue.NameBytes(), !nameless)
	c.Text("state")
	name := stateName(m.node.StateOf(j))
	c.Text(name)
	_, ended := engine.EndingOf(j)
	for _, f := range [...]struct {
		name  string
		value int64
	}{
		{"repl", int64(j.Repl)},
		{"ttl", max(0, (j.ETime-now+999)/1000)},
		{"ctime", shownCTime(j.CTime)},
		{"delay", int64(j.Delay)},
		{"retry", int64(j.Retry)},
		{"nacks", int64(j.Nacks)},
		{"additional-deliveries", engine.Additional(j)},
	} {
		c.Text(f.name)
		c.Int(f.value)
	}
	m.putHolders(c, j)
	c.Text("next-requeue-within")
	if at := m.node.NextRequeue(j); at > 0 {
		c.Int(max(0, at-now))
	} else {
		c.Null()
	}
	c.Text("next-awake-within")
	c.Int(max(0, j.Awake()-now))
	c.Text("body")
	bulkOrNull(c, j.Body(), !nameless && !ended)
	for _, f := range more {
		c.Text(f.name)
		f.put(c)
	}
}

// moreFields lists the fields that only some jobs have.
func (m *module) moreFields(j *store.Job) (more []field) {
	add := func(has bool, name string, put func(c *rm.Ctx)) {
		if has {
			more = append(more, field{name, put})
		}
	}
	number := func(v int64) func(c *rm.Ctx) { return func(c *rm.Ctx) { c.Int(v) } }
	text := func(s string) func(c *rm.Ctx) { return func(c *rm.Ctx) { c.Text(s) } }
	bytes := func(b []byte) func(c *rm.Ctx) { return func(c *rm.Ctx) { bulkOrNull(c, b, len(b) > 0) } }
	list := func(ids []store.ID) func(c *rm.Ctx) { return func(c *rm.Ctx) { putIDs(c, ids) } }

	name := engine.NameOf(j)
	add(name != nil, "name", bytes(name))
	worker := m.node.Worker(j)
	add(worker != "", "worker", text(worker))
	add(j.Uncertain(), "delivered", text("maybe"))
	offered := m.node.OfferedTo(j)
	add(offered != 0, "offered-to", func(c *rm.Ctx) { c.Text(m.nodeName(offered)) })
	before, all := m.node.WaitsFor(j, maxKin)
	add(before != nil, "waits-for", list(before))
	add(len(before) >= maxKin && all > uint64(len(before)), "all-waits-for", number(int64(all)))
	dependents, all := m.node.Dependents(j, maxKin)
	add(dependents != nil, "dependents", list(dependents))
	add(all > uint64(len(dependents)), "all-dependents", number(int64(all)))

	ending, ended := engine.EndingOf(j)
	add(ended, "outcome", text(ending.Outcome.String()))
	add(ended, "finished", number(ending.At))
	add(ended, "kept-for", number(ending.For))
	detail := "result"
	if ending.Outcome != engine.OutcomeDone {
		detail = "reason"
	}
	add(ended, detail, func(c *rm.Ctx) { bulkOrNull(c, j.Body(), ending.HasDetail) })
	wish, asked := engine.CancelOf(j)
	add(asked, "cancel-asked", number(wish.At))
	add(asked && len(wish.Reason) > 0, "cancel-reason", func(c *rm.Ctx) { c.Bulk(wish.Reason) })
	progress, said := engine.ProgressOf(j)
	add(said, "progress", func(c *rm.Ctx) { c.Bulk(progress.Text) })
	add(said, "progress-at", number(progress.At))
	failure, failed := engine.FailureOf(j)
	add(failed, "failed-at", number(failure.At))
	add(failed, "failed-by", bytes(failure.Worker))
	add(failed, "reason", bytes(failure.Reason))
	death, dead := engine.DeathOf(j)
	add(dead, "died", number(death.At))
	add(dead, "why", text(death.Why.String()))
	add(dead, "from", bytes(death.From))
	deliveries, counted := engine.Tries(j)
	add(counted, "deliveries", number(deliveries))

	cron, slot, recurring := engine.SlotOfJob(j)
	add(recurring, "cron", bytes(cron))
	add(slot > 0, "slot", number(slot))
	add(j.Priority() != 0, "priority", number(int64(j.Priority())))
	queueSlot, slotted := m.node.SlotOf(j)
	add(slotted, "queue-slot", number(int64(queueSlot)))
	if u := j.Unique(); u != nil {
		add(true, "unique", text(strategyNames[u.Strategy()]))
		add(true, "key", func(c *rm.Ctx) { c.Bulk(j.UniqueKey(u)) })
		scope := "queue"
		if u.Has(store.UniqueMesh) {
			scope = "mesh"
		}
		add(true, "scope", text(scope))
		add(true, "lock", text(m.keyState(j, u)))
		slot, has := m.node.KeySlot(j)
		add(u.Limit() > 1, "limit", number(int64(u.Limit())))
		add(has, "key-slot", number(int64(slot)))
		add(true, "token", number(lock.ShownToken(m.node.Token(j))))
		add(true, "tries", number(int64(u.Tries())))
	}
	return more
}

// keyState says which lock a unique job has, or why it has none.
func (m *module) keyState(j *store.Job, u store.Unique) string {
	switch {
	case m.node.HasLock(j, store.LockRun):
		return "run"
	case j.Place == store.InKeyQueue: // it may have its waiting lock besides
		return "held-back"
	case m.node.HasLock(j, store.LockWait):
		return "wait"
	case u.Has(store.UniquePending):
		return "put-off"
	}
	return "none"
}

func putIDs(c *rm.Ctx, ids []store.ID) {
	c.Array(len(ids))
	for i := range ids {
		ids[i].Put((*[store.IDLen]byte)(c.BulkBuffer(store.IDLen)))
	}
}
