package commands

import (
	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// Results of jobs: ACKJOB with RESULT and KEEP, WAITJOB, and CANCELJOB, which has a worker hear that its result isn't wanted.

// Errors of these commands.
const (
	errResult   engine.Refusal = "ERR RESULT must have 524288 bytes at most"
	errManyWait engine.Refusal = "ERR at most 1000 IDs at once"
)

// parseAck reads ACKJOB: how many of the first arguments are IDs, and the options behind them into r. A result is the one argument behind RESULT,
// whatever it looks like.
func parseAck(c args, r *engine.Result) (ids int, err error) {
	*r = engine.Result{}
	n := c.NArgs()
	if ids = leading(c, isResultOption); ids == 0 && n > 1 {
		return 0, errSyntax
	}
	for i := ids + 1; i < n; i += 2 {
		opt, more := c.Arg(i), i+1 < n
		switch {
		case is(opt, "RESULT") && more && !r.Has:
			if r.Data, r.Has = c.Arg(i+1), true; len(r.Data) > engine.MaxResult {
				return 0, errResult
			}
		case is(opt, "KEEP") && more && !r.HasKeep:
			var ok bool
			if r.Keep, ok = between(c.Arg(i+1), 0, engine.MaxSeconds); !ok {
				return 0, errKeep
			}
			r.HasKeep = true
		default:
			return 0, errSyntax
		}
	}
	return ids, nil
}

func isResultOption(arg []byte) bool { return is(arg, "RESULT") || is(arg, "KEEP") }

// ackJob is ACKJOB.
func (m *module) ackJob(c *rm.Ctx) {
	if leading(c, isResultOption)+1 == c.NArgs() {
		m.each(c, m.ops.ack)
		return
	}
	m.ackWith(c)
}

// ackWith is ACKJOB with options.
func (m *module) ackWith(c *rm.Ctx) {
	r := &m.result
	ids, err := parseAck(c, r)
	defer func() { *r = engine.Result{} }()
	if err != nil {
		m.begin(c)
		fail(c, err)
		return
	}
	m.watchMemory(ids * len(r.Data))
	m.eachOf(c, ids, func(id *store.ID) bool { return m.node.Finish(id, r) })
}

// cancelling is a parsed CANCELJOB.
type cancelling struct {
	soft   bool
	reason []byte // nil: none was given
}

// parseCancel reads CANCELJOB: how many of the first arguments are IDs, and the options behind them.
func parseCancel(c args) (ids int, o cancelling, err error) {
	n := c.NArgs()
	if ids = leading(c, isCancelOption); ids == 0 && n > 1 {
		return 0, o, errSyntax
	}
	for i := ids + 1; i < n; i++ {
		switch opt := c.Arg(i); {
		case is(opt, "SOFT") && !o.soft:
			o.soft = true
		case is(opt, "REASON") && i+1 < n && o.reason == nil:
			i++
			o.reason = append([]byte{}, c.Arg(i)...)
		default:
			return 0, o, errSyntax
		}
	}
	return ids, o, nil
}

func isCancelOption(arg []byte) bool { return is(arg, "SOFT") || is(arg, "REASON") }

// cancelJob is CANCELJOB.
func (m *module) cancelJob(c *rm.Ctx) {
	ids, o, err := parseCancel(c)
	if err != nil {
		m.begin(c)
		fail(c, err)
		return
	}
	m.watchMemory(ids * len(o.reason))
	if !m.enterIDs(c, ids) {
		return
	}
	cancel := m.node.CancelFor
	if o.soft {
		cancel = m.node.CancelSoftly
	}
	var done int64
	for i := range m.ids {
		done += int64(cancel(&m.ids[i], o.reason))
	}
	c.Int(done)
	m.carryOut(c)
}

// parseWaitJob reads WAITJOB: the IDs into ids, how long to wait (ms; 0: without limit), and whether for any of the jobs. An ID that no job can
// have becomes the zero ID.
func parseWaitJob(c args, ids []store.ID) (_ []store.ID, wait int64, one bool, err error) {
	ids, i, err := idsBeforeTimeout(c, ids)
	if err != nil {
		return nil, 0, false, err
	}
	if wait, err = timeout(c.Arg(i)); err != nil {
		return nil, 0, false, err
	}
	if i++; i < c.NArgs() {
		if i+1 != c.NArgs() || !is(c.Arg(i), "ANY") {
			return nil, 0, false, errSyntax
		}
		one = true
	}
	if len(ids) > engine.MaxWaitIDs {
		return nil, 0, false, errManyWait
	}
	return ids, wait, one, nil
}

// idsBeforeTimeout reads the IDs of a command that has a timeout behind them, and returns where that is.
func idsBeforeTimeout(c args, ids []store.ID) (_ []store.ID, at int, err error) {
	i, n := 1, c.NArgs()
	for i < n {
		id, used, err := jobAt(c, i)
		if err == errBadID {
			break
		}
		if err != nil {
			return nil, 0, err
		}
		ids = append(ids, id)
		i += used
	}
	switch {
	case len(ids) == 0:
		return nil, 0, errBadID
	case i == n:
		return nil, 0, errSyntax
	}
	if _, number := integer(c.Arg(i)); !number {
		return nil, 0, errBadID
	}
	return ids, i, nil
}

// waitJob is WAITJOB.
func (m *module) waitJob(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	ids, wait, one, err := parseWaitJob(c, m.ids[:0])
	if err != nil {
		fail(c, err)
		return
	}
	if m.ids = ids; !m.mayUseJobs(c, rm.UseRead, ids...) {
		return
	}
	if !c.CanBlock() || m.node.Passive() {
		putEnds(c, m.node.JobEnds(ids), c.Bulk)
		return
	}
	p, now := m.node.WaitJobs(ids, one, wait)
	if now != nil {
		putEnds(c, now, c.Bulk) // without a copy: what is known at once is the jobs' memory
		m.carryOut(c)
		return
	}
	m.awaitMesh(c, p, func(c *rm.Ctx) { putEndsLater(c, m.node.JobEndsSoFar(p)) }, func(c *rm.Ctx, a *engine.MeshAnswer) { putEndsLater(c, a.Ends) })
}

// putEndsLater is putEnds for a client that has waited. The server takes the answer when the jobs may be gone.
func putEndsLater(c *rm.Ctx, ends []engine.JobEnd) {
	bytes := 0
	for i := range ends {
		bytes += len(ends[i].Detail) + textsOfEnd
	}
	c.Room(bytes)
	putEnds(c, ends, func(detail []byte) { copy(c.BulkBuffer(len(detail)), detail) })
}

// textsOfEnd is how many bytes of an end the answer has beside the detail, at most.
const textsOfEnd = store.IDLen + 16

// putEnds answers how each job has ended. put answers a detail.
func putEnds(c *rm.Ctx, ends []engine.JobEnd, put func(detail []byte)) {
	c.Array(len(ends))
	for i := range ends {
		e := &ends[i]
		c.Array(3)
		e.ID.Put((*[store.IDLen]byte)(c.BulkBuffer(store.IDLen)))
		c.Text(e.Outcome.String())
		if e.HasDetail {
			put(e.Detail)
		} else {
			c.Null()
		}
	}
}
