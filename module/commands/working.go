package commands

import (
	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// WORKING.

// Errors of WORKING.
const (
	errProgress    engine.Refusal = "ERR PROGRESS must have 1024 bytes at most"
	errManyWorking engine.Refusal = "ERR at most 1000 IDs at once"
)

// maxWorking bounds what one WORKING costs: in a mesh each of its jobs may have to ask all nodes for its lock.
const maxWorking = 1000

// parseWorking reads WORKING: the IDs into ids, and how far the jobs are, nil if that isn't said. An ID that no job can have becomes
// the zero ID.
func parseWorking(c args, ids []store.ID) (_ []store.ID, progress []byte, err error) {
	n := c.NArgs()
	count := leading(c, isProgress)
	switch at := count + 1; {
	case at == n: // no option
	case count == 0 || at+2 != n:
		return nil, nil, errSyntax
	case len(c.Arg(at+1)) > engine.MaxProgress:
		return nil, nil, errProgress
	default:
		progress = append([]byte{}, c.Arg(at+1)...)
	}
	if countJobs(c, count) > maxWorking {
		return nil, nil, errManyWorking
	}
	ids, err = appendJobs(c, ids, count)
	return ids, progress, err
}

func isProgress(arg []byte) bool { return is(arg, "PROGRESS") }

// worker is a client that says WORKING. It waits until other nodes have agreed that its jobs keep their locks, if they have to.
type worker struct {
	client *rm.Client
	beats  []beat // in the order of its IDs
	open   int    // how many aren't decided
	gone   bool
	one    [1]beat // the memory of beats, if it has one ID
}

// beat is what a worker says of one of its jobs.
type beat struct {
	by    *worker
	retry int64 // s, the answer if err is nil
	err   error
	open  bool // other nodes have to answer first
}

func (m *module) working(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	ids, progress, err := parseWorking(c, m.ids[:0])
	if err != nil {
		fail(c, err)
		return
	}
	if m.ids = ids; !m.mayChange(c) {
		return
	}
	w := &m.worker
	waits := !m.node.Mesh().Alone() && c.CanBlock()
	if waits {
		w = &worker{}
	}
	w.beats = w.one[:]
	if len(ids) > 1 {
		w.beats = make([]beat, len(ids))
	}
	for i := range ids {
		b := &w.beats[i]
		b.by = w
		work := engine.Work{Progress: progress}
		if waits {
			work.Client = b
		}
		if b.retry, b.open, b.err = m.node.Working(&ids[i], work); b.open {
			w.open++
		}
	}
	if w.open > 0 {
		if w.client, err = c.Block(0, w.left); err != nil {
			w.gone = true
			c.Error("ERR " + err.Error())
		}
	} else {
		w.answer(c)
	}
	m.carryOut(c)
}

// answer answers what became of each job.
func (w *worker) answer(c *rm.Ctx) {
	if len(w.beats) > 1 {
		c.Array(len(w.beats))
		for i := range w.beats {
			if b := &w.beats[i]; b.err != nil {
				putRefusal(c, b.err)
			} else {
				c.Int(b.retry)
			}
		}
		return
	}
	if b := &w.beats[0]; b.err != nil {
		fail(c, b.err)
	} else {
		c.Int(b.retry)
	}
}

// left notes that the client no longer waits. Other nodes still carry out the WORKING that
// this node sent them.
func (w *worker) left(c *rm.Ctx, gone bool) {
	w.gone = true
	if gone {
		return
	}
	for i := range w.beats { // CLIENT UNBLOCK
		if b := &w.beats[i]; b.open {
			b.err = engine.ErrNotExtended
		}
	}
	w.answer(c)
}

// worked answers a client whose WORKING waited when all of its jobs are decided.
func (m *module) worked(e *engine.Effect) {
	b := e.Client.(*beat)
	w := b.by
	if w.gone {
		return
	}
	b.err, b.open = e.Err, false
	if w.open--; w.open == 0 {
		w.client.Answer(w.answer, nil)
	}
}
