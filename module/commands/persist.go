package commands

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"jobmesh/cgo/record"
	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// loadQueue reads a saved queue. The queue becomes known when keyEvent tells the name of
// its key.
func (m *module) loadQueue(r *rm.Reader, version int) (unsafe.Pointer, error) {
	if version > queueEncoding {
		return nil, fmt.Errorf("it was saved by a newer jobmesh, this one reads versions up to %d", queueEncoding)
	}
	b := (*box)(memory{}.Alloc(boxSize))
	b.queue = m.node.NewQueueFor(unsafe.Pointer(b))
	epoch := record.Epoch{Process: r.Uint(), Changes: r.Uint(), Final: r.Uint()}
	for n := 0; ; n++ {
		end := false
		err := r.Bytes(func(rec []byte) error {
			if end = len(rec) == 0; end {
				return nil
			}
			return m.node.LoadRecord(b.queue, rec)
		})
		if err != nil {
			return unsafe.Pointer(b), fmt.Errorf("job %d: %w", n, err)
		}
		if end {
			break
		}
	}
	m.saved = epoch
	return unsafe.Pointer(b), nil
}

// fresh says whether this process saved the data that was just loaded, and nothing has
// changed since.
func (m *module) fresh() bool {
	return m.saved.Process == m.epoch.Process && m.saved.Changes == m.epoch.Changes
}

// restored settles a queue that RESTORE has made. A server that carries out the same
// RESTORE later, from the log, can't know whether anything had happened before it. So there
// all at-most-once jobs become uncertain, except those that are logged after the RESTORE.
// The at-most-once jobs of a queue in another database become uncertain, too: they may be
// delivered elsewhere before the queue comes to database 0.
func (m *module) restored(q *store.Queue) {
	if m.node.Loading() || m.node.Passive() || q.DB != 0 {
		m.node.DoubtQueue(q)
		return
	}
	m.tellUncertain(m.node.SettleQueue(q, engine.Trust{Exact: m.fresh(), Same: m.fresh()}))
	if ids := m.node.NotDelivered(q); len(ids) > 0 {
		m.later(0, func(*rm.Ctx) { m.node.LogAgain(ids) })
	}
}

// tellUncertain logs that n at-most-once jobs are not queued again.
func (m *module) tellUncertain(n int) {
	if n > 0 {
		m.server.Log(rm.Warning, "%d jobs with RETRY 0 may have been delivered, which what was saved can't tell, so they are not queued again: WIP lists them, ENQUEUE queues them, DELJOB deletes them", n)
	}
}

// tellDoubtedOffers logs how many at-most-once jobs have become uncertain in a handover
// since it last logged that.
func (m *module) tellDoubtedOffers() {
	all := m.node.Stats.UncertainHandingOver
	if more := all - m.doubted; more > 0 {
		m.doubted = all
		m.server.Log(rm.Warning, "%d jobs with RETRY 0 were being handed over to nodes that were restarted or forgotten before they answered. They may have been delivered, so they are not queued again: WIP lists them, SHOW says to which node they were offered, ENQUEUE queues them, DELJOB deletes them", more)
	}
}

// tellDeleted logs how many jobs were deleted with their queues although other nodes may go
// on with them. It logs at most once a minute, and counts all jobs since the last time.
func (m *module) tellDeleted() {
	const every = 60_000 // ms
	m.deleted += m.node.TakeDeleted()
	if now := m.node.Now(); m.deleted > 0 && now >= m.tellDeletedAt {
		m.server.Log(rm.Notice, "%d jobs are deleted with their queues at this node alone: other nodes that hold copies of some go on with them, and don't hand them to this node", m.deleted)
		m.deleted, m.tellDeletedAt = 0, now+every
	}
}

// settled follows Settle. If jobs became uncertain, the log must say so to its next reader.
func (m *module) settled(uncertain int) {
	m.tellUncertain(uncertain)
	if uncertain > 0 {
		m.doubt = doubt{at: m.node.Now(), last: m.node.LastCTime()}
		m.later(0, func(c *rm.Ctx) {
			if m.doubt.at != 0 {
				m.logProcess(c)
			}
		})
	}
}

// loading follows the loading of a data set. Nothing is delivered until the loading has
// ended and all that was loaded is settled.
func (m *module) loading(c *rm.Ctx, phase rm.LoadPhase) {
	m.begin(c)
	m.mendLog(phase)
	switch phase {
	case rm.LoadRDB, rm.LoadAOF, rm.LoadReplica:
		m.phase, m.final, m.saved, m.base, m.logExact = phase, false, record.Epoch{}, record.Epoch{}, false
		if phase == rm.LoadAOF {
			// The files are recorded before the server cuts or writes anything.
			m.inLog, m.files, m.inodes, m.unfit = 0, m.logFiles(), m.logInodes(), nil
			if m.last != nil && m.last.kind == ranSynced {
				m.rebased, m.unfit = m.isUnfit(m.last)
			}
		}
		// The data set brings its own settings, which replace the earlier ones.
		m.settings.reset()
		m.node.DropEntries()
		m.settings.loading = true
		m.node.BeginLoading()
		if phase == rm.LoadReplica {
			m.node.Locks().Drop()
		}
		return
	}
	m.node.EndLoading()
	m.settings.loading = false
	m.saveSettings()
	if m.phase == rm.LoadAOF && m.inLog == 0 {
		m.inLog = m.base.Process // it hadn't logged anything yet when it ended
	}
	m.logExact = phase == rm.LoadEnded && !m.node.Passive() && m.whole()
	m.locksLoaded(phase)
	if phase == rm.LoadFailed || m.phase == rm.LoadReplica {
		return
	}
	t := engine.Trust{Exact: m.logExact, Same: m.phase == rm.LoadRDB && m.fresh()}
	if m.enqueueOnce && (m.final || m.phase == rm.LoadRDB && m.saved.Final != 0) {
		t.Exact = true // an older release has ended by JOBMESH SHUTDOWN
	}
	if t.Clean = m.logExact && m.inOrder && !t.Same; t.Clean {
		m.node.SetKnown(m.known)
	}
	m.settled(m.node.Settle(t))
	m.endVotes()
	m.carryOut(c)
	if m.phase == rm.LoadAOF && m.inLog == m.epoch.Process && m.rewriting() { // DEBUG LOADAOF
		m.later(pausedEvery, m.rewriteAgain)
	}
	if m.phase == rm.LoadRDB && !t.Exact && m.node.Jobs() > 0 {
		m.server.Log(rm.Warning, "the jobs are those of an RDB that isn't the last word of the process before: jobs acknowledged since come again, jobs added since are missing. With appendonly yes that can't be")
	}
	if m.enqueueOnce {
		m.enqueueOnce = false
		m.server.Log(rm.Notice, "aof-enqueue-jobs-once is off from now on")
		// Rewrite the configuration only after the server has finished loading. Otherwise
		// the file would bring the option back at the next start.
		m.server.After(0, func(*rm.Ctx) {
			if _, err := m.server.CallStrings("CONFIG", "REWRITE"); err != nil {
				m.server.Log(rm.Warning, "set jobmesh.aof-enqueue-jobs-once to no in redis.conf before the next start: %v", err)
			}
		})
	}
}

// rewriting says whether a child is rewriting the AOF.
func (m *module) rewriting() bool {
	v, ok := m.server.InfoField("persistence", "aof_rewrite_in_progress")
	return ok && v != "0"
}

// rewriteAgain rewrites the AOF once more when the child that is rewriting it has ended.
// That child was made before the AOF was loaded, so it writes the jobs as they were then.
// The load has made the jobs what the log says: whatever is in no log, as most deliveries,
// is undone.
func (m *module) rewriteAgain(*rm.Ctx) {
	if m.rewriting() {
		m.later(pausedEvery, m.rewriteAgain)
		return
	}
	if _, err := m.server.CallStrings("BGREWRITEAOF"); err != nil {
		m.server.Log(rm.Warning, "the AOF can't be written anew, BGREWRITEAOF before the next start: %v", err)
	}
}

// role follows the server's role. A replica's node does nothing by itself. The node of a
// promoted server begins to act, and to log that, in a call after this event
// ([module.begin]).
func (m *module) role(c *rm.Ctx, replica bool) {
	if m.promoted = !replica; m.promoted {
		if m.mesh.left {
			m.closeBus() // a replica and promoted again in one turn
		}
		m.later(0, m.goOnPromoting)
		return
	}
	m.begin(c)
	m.unsync() // from now on its data are its master's
	m.node.SetPassive(true)
	m.carryOut(c)
	m.leave(c)
	m.hurry()
}

// following is called when a replica has reached its master. That may be by a partial
// resynchronization, which loads nothing.
func (m *module) following(c *rm.Ctx) {
	m.begin(c)
	m.node.Follow()
	m.carryOut(c)
}

// begin begins each call that lets the engine work: it tells the time, makes the log name this process if it doesn't yet, and ends the
// passive role of a node that was promoted.
func (m *module) begin(c *rm.Ctx) {
	m.node.SetNow(c.Now())
	m.ctx = c
	m.carryOutRest(c)
	if m.starting && c.MayReplicate() && c.DB() == 0 && m.takesWrites() {
		m.firstTurn(c)
	}
	if m.promoted {
		m.promote(c)
	}
}

// promote ends the node's passive role, in calls that may replicate, in database 0. Each
// call does a part, since there may be a million jobs to look at. In between the server
// does everything else, but refuses commands that write ([module.enter]).
func (m *module) promote(c *rm.Ctx) {
	if !c.MayReplicate() || c.DB() != 0 {
		return
	}
	c.CopyEffects() // more engine calls follow
	since := time.Now()
	done, uncertain := m.node.Promote(func() bool { return time.Since(since) > promoteFor })
	if !done {
		m.carryOut(c)
		return
	}
	m.promoted = false
	m.keepTokens()
	m.settled(uncertain)
	m.later(0, m.relog) // its AOF may name its master's process, or nobody's
	m.later(0, func(*rm.Ctx) { m.openBus() })
	m.carryOut(c)
	m.hurry()
}

// promoteFor is how long one call of promote works.
const promoteFor = 2 * time.Millisecond

// goOnPromoting is called every millisecond until the node is promoted. [module.begin] does
// the work.
func (m *module) goOnPromoting(*rm.Ctx) {
	if m.promoted {
		m.later(1, m.goOnPromoting)
	}
}

// later runs engine work outside a client's command: after ms milliseconds, or once the
// server takes writes. All such work uses later, or is done by the tick, because its
// changes have to be logged.
func (m *module) later(ms int64, run func(*rm.Ctx)) {
	m.server.After(ms, func(c *rm.Ctx) { m.nowOrLater(c, run) })
}

// nowOrLater is later for a timer: it runs the work at once if the server takes writes.
func (m *module) nowOrLater(c *rm.Ctx, run func(*rm.Ctx)) {
	if !m.takesWrites() {
		m.later(pausedEvery, run)
		return
	}
	m.begin(c)
	run(c)
	m.carryOut(c)
}

// takesWrites says whether the server takes writes. It doesn't while it loads data, nor
// while writes are paused (CLIENT PAUSE, FAILOVER, a shutdown that waits for replicas).
func (m *module) takesWrites() bool { return !m.node.Loading() && !m.server.WritesPaused() }

// pausedEvery is how often later checks whether the server takes writes again, ms.
const pausedEvery = 50

// apply carries out a logged effect, from the log or the master, and passes it on
// unchanged.
func (m *module) apply(c *rm.Ctx, do func() error) {
	m.begin(c)
	m.final = false
	m.epoch.Changes++
	err := do()
	// The node that logged this effect has also logged what follows from it.
	for _, e := range m.node.Effects() {
		if e.Kind == engine.Touched {
			c.Touch(rm.StringAt(e.Queue.Key))
		}
	}
	if err != nil {
		var refused engine.Refusal
		text := err.Error()
		if !errors.As(err, &refused) {
			m.server.Log(rm.Warning, "%s: %v", c.Arg(0), err)
			text = "ERR " + text
		}
		c.Error(text)
		return
	}
	c.Dirty()
}

// internal is apply for a command that clients may not give. It answers them with wrong.
func (m *module) internal(c *rm.Ctx, wrong error, do func() error) {
	if !c.FromPeer() {
		fail(c, wrong)
		return
	}
	m.apply(c, func() error {
		err := do()
		if err == nil {
			c.Simple("OK")
		}
		return err
	})
}

func (m *module) loadJob(c *rm.Ctx) {
	m.internal(c, errInternalOp, func() error {
		if c.DB() == 0 {
			return m.node.ApplyJob(c.Arg(1), c.Arg(2))
		}
		q, err := m.away(c)
		if err != nil {
			return err
		}
		return m.node.ApplyDormantJob(c.DB(), q, c.Arg(1), c.Arg(2))
	})
}

// makeQueue is MAKEQUEUE, the logged beginning of a queue of which no job is logged yet.
func (m *module) makeQueue(c *rm.Ctx) {
	m.internal(c, errInternalMake, func() error {
		if c.DB() == 0 {
			return m.node.ApplyQueue(c.Arg(1))
		}
		q, err := m.away(c)
		if err != nil {
			return err
		}
		return m.node.ApplyDormantQueue(c.DB(), q, c.Arg(1))
	})
}

// away finds the queue in the key that the first argument names, in a database other than
// 0. Such entries are in the log if the AOF was rewritten while the queue lay there. Nil:
// there is no such key.
func (m *module) away(c *rm.Ctx) (*store.Queue, error) {
	value, err := m.queue.Value(c, c.ArgString(1))
	if err != nil || value == nil {
		return nil, err
	}
	return (*box)(value).queue, nil
}

func (m *module) setJob(c *rm.Ctx) {
	m.internal(c, errInternalSet, func() error {
		switch more := c.NArgs() == 4; {
		case more && len(c.Arg(1)) > 0:
			return m.node.ApplyMove(c.Arg(3), c.Arg(1), c.Arg(2))
		case more: // an empty record, and two IDs
			var id, other store.ID
			if copy(id[:], c.Arg(2)) < len(id) || copy(other[:], c.Arg(3)) < len(other) {
				return errDamagedDrop
			}
			return m.node.ApplyDrop(&id, &other)
		}
		var holders []byte
		if c.NArgs() > 2 {
			holders = c.Arg(2)
		}
		return m.node.ApplyState(c.Arg(1), holders)
	})
}

// forked is called when the server has made a child that saves. A rewritten AOF doesn't say
// which process writes it, so that is logged again after it.
func (m *module) forked(*rm.Ctx) {
	m.keyless = !m.tellAOF() || m.keyless
	m.watchLog(m.begun()) // a rewrite begins another file
	m.later(0, m.relog)
}

// tellAOF tells C (cgo/record) whether the server rewrites the AOF as commands. If so, the
// children that are made from now on also write what is in no key. tellAOF returns whether
// a child that was just made writes all of it: because C was told before, or because the
// child writes an RDB. If rename-command hides the parameter, nobody knows. If one CONFIG
// SET changes the parameter and turns on the AOF, C is told too late. In both cases what is
// in no key is logged after the child was made, all at once: after a restart between two
// slices, locks that are held could be given again.
func (m *module) tellAOF() (all bool) {
	v, err := m.server.ConfigValue("aof-use-rdb-preamble")
	told := m.server.AOFOfCommands(err == nil && v == "no")
	return told || err == nil && v != "no"
}

// relog logs what a rewritten AOF lacks. A replica logs nothing; it calls relog when it is
// promoted.
func (m *module) relog(c *rm.Ctx) {
	if m.node.Passive() {
		return
	}
	m.logProcess(c)
	if c.Listened() {
		m.node.Locks().LogReserved()
		if m.keyless {
			m.relogLocks()
			m.relogSettings(c)
		}
	}
	m.keyless = false
}
