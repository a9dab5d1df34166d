package commands

import (
	"fmt"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// ADDJOBS: several jobs with the same options.

// Errors of ADDJOBS that ADDJOB doesn't have.
const (
	errNoBodies engine.Refusal = "ERR ADDJOBS ends with the jobs: BODIES body [body ...], or PAIRS key body [key body ...]"
	errPairs    engine.Refusal = "ERR PAIRS needs a key and a body for each"
	errKeyPairs engine.Refusal = "ERR KEY goes with BODIES: PAIRS gives each job its own"
)

var (
	errManyJobs  = engine.Refusal(fmt.Sprintf("ERR at most %d jobs at once", engine.MaxBatch))
	errManyWaits = engine.Refusal(fmt.Sprintf("ERR at most %d waits at once: the jobs times the IDs of AFTER", maxWaits))
)

// maxWaits bounds what one ADDJOBS adds with AFTER: each job waits for each ID, which takes some microseconds and 130 bytes.
const maxWaits = 100_000

// bulkOptions is the first argument of ADDJOBS that may be an option.
const bulkOptions = 3

// isBulk says whether an argument is the word after which the jobs of ADDJOBS come.
func isBulk(arg []byte) bool { return is(arg, "BODIES") || is(arg, "PAIRS") }

// jobs are the bodies of an ADDJOBS, and with PAIRS the keys.
type jobs struct {
	bodies, keys [][]byte
}

// parseJobs reads ADDJOBS' arguments: the options into a, as parseAdd does, and the jobs. It returns errors in the same order; those
// about the jobs come last.
func parseJobs(c args, a *engine.Add, d *defaults, into *jobs) error {
	into.bodies, into.keys = into.bodies[:0], into.keys[:0]
	at, err := parseOptions(c, a, bulkOptions, d)
	if err != nil {
		return err
	}
	if at == 0 {
		return errNoBodies
	}
	n, pairs := c.NArgs(), is(c.Arg(at), "PAIRS")
	count := n - at - 1
	if pairs {
		if count%2 != 0 {
			return errPairs
		}
		count /= 2
	}
	switch {
	case count > engine.MaxBatch:
		return errManyJobs
	case count*len(a.After) > maxWaits:
		return errManyWaits
	}
	for i := at + 1; i < n; i++ {
		if pairs {
			key := c.Arg(i)
			if len(key) > store.MaxUniqueKey {
				return errKey
			}
			into.keys = append(into.keys, key)
			i++
		}
		into.bodies = append(into.bodies, c.Arg(i))
	}
	return nil
}

func (m *module) addJobs(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	a, bytes := &m.add, 0
	for i := bulkOptions; i < c.NArgs(); i++ {
		bytes += len(c.Arg(i))
	}
	m.watchMemory(bytes)
	if err := parseJobs(c, a, m.defaults(c.Arg(1)), &m.jobsToAdd); err != nil {
		fail(c, err)
		return
	}
	if !m.mayAdd(c, a) {
		return
	}
	keys := m.jobsToAdd.keys
	if len(keys) == 0 {
		keys = nil
	}
	b, wait, err := m.node.AddJobs(a, m.jobsToAdd.bodies, keys)
	switch {
	case err != nil:
		fail(c, err)
	case wait:
		if err := m.await(c, engine.PendingBatch(b), func(c *rm.Ctx) { putAnswers(c, b) }); err != nil {
			c.Error("ERR " + err.Error())
		}
	default:
		putAnswers(c, b)
	}
	m.carryOut(c)
}

// putAnswers answers what became of each job. Where that isn't known yet (CLIENT UNBLOCK), the job is taken back, as at the timeout.
func putAnswers(c *rm.Ctx, b *engine.Batch) {
	c.Array(len(b.Answers))
	for i := range b.Answers {
		switch a := &b.Answers[i]; a.Err {
		case nil:
			a.ID.Put((*[store.IDLen]byte)(c.SimpleBuffer(store.IDLen)))
		case engine.ErrDropped:
			c.Null()
		default:
			putRefusal(c, a.Err)
		}
	}
}

// putRefusal answers an error inside an array by a text that begins with "-": several clients stop reading an array at an error
// reply. No ID begins so.
func putRefusal(c *rm.Ctx, err error) { c.Text("-" + err.Error()) }

// answerBatch answers a client that waited.
func answerBatch(b *engine.Batch) {
	if client, ok := b.Client.(*rm.Client); ok {
		client.Answer(func(c *rm.Ctx) { putAnswers(c, b) }, nil)
	}
}

// Errors of WAITCOPIES.
const (
	errCopies  engine.Refusal = "ERR COPIES must be between 1 and 65535"
	errManyIDs engine.Refusal = "ERR at most 10000 IDs at once"
)

const maxIDs = 10_000

// parseWaitCopies reads WAITCOPIES: the IDs into ids, how long to wait (ms; 0: without limit), and for how many copies (0: as many as
// each job's REPLICATE says). An ID that no job can have becomes the zero ID.
func parseWaitCopies(c args, ids []store.ID) (_ []store.ID, wait int64, copies int, err error) {
	ids, i, err := idsBeforeTimeout(c, ids)
	if err != nil {
		return nil, 0, 0, err
	}
	n := c.NArgs()
	if wait, err = timeout(c.Arg(i)); err != nil {
		return nil, 0, 0, err
	}
	if i++; i < n {
		if i+2 != n || !is(c.Arg(i), "COPIES") {
			return nil, 0, 0, errSyntax
		}
		v, ok := between(c.Arg(i+1), 1, engine.MaxReplicate)
		if !ok {
			return nil, 0, 0, errCopies
		}
		copies = int(v)
	}
	if len(ids) > maxIDs {
		return nil, 0, 0, errManyIDs
	}
	return ids, wait, copies, nil
}

// waitCopies is WAITCOPIES: the barrier for jobs that were added with ASYNC.
func (m *module) waitCopies(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	ids, wait, copies, err := parseWaitCopies(c, m.ids[:0])
	if err != nil {
		fail(c, err)
		return
	}
	if m.ids = ids; !m.mayChange(c) {
		return
	}
	if !c.CanBlock() {
		putCopies(c, m.node.KnownCopies(ids))
		return
	}
	p, now := m.node.WaitCopies(ids, copies, wait)
	if now != nil {
		putCopies(c, now)
		m.carryOut(c)
		return
	}
	m.awaitMesh(c, p, func(c *rm.Ctx) { putCopies(c, m.node.CopiesSoFar(p)) }, func(c *rm.Ctx, a *engine.MeshAnswer) { putCopies(c, a.Copies) })
}

// putCopies answers how many nodes hold each job.
func putCopies(c *rm.Ctx, counts []int64) {
	c.Array(len(counts))
	for _, n := range counts {
		if n < 0 {
			c.Null()
		} else {
			c.Int(n)
		}
	}
}
