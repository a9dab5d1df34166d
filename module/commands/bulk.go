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

var errManyJobs = engine.Refusal(fmt.Sprintf("ERR at most %d jobs at once", engine.MaxBatch))

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
func parseJobs(c args, a *engine.Add, copies int, defaults *settings, into *jobs) error {
	into.bodies, into.keys = into.bodies[:0], into.keys[:0]
	at, err := parseOptions(c, a, bulkOptions, copies, defaults)
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
	if count > engine.MaxBatch {
		return errManyJobs
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
	a, defaults := &m.add, (*settings)(nil)
	if m.settings.any() {
		defaults = m.settings.of(c.Arg(1))
	}
	bytes := 0
	for i := bulkOptions; i < c.NArgs(); i++ {
		bytes += len(c.Arg(i))
	}
	m.watchMemory(bytes) // the default of REPLICATE depends on it
	if err := parseJobs(c, a, m.node.Copies(), defaults, &m.jobsToAdd); err != nil {
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

// putAnswers answers what became of each job. A refusal is a text that begins with "-": several clients stop reading an array at
// an error reply. An ID never begins so. Where that isn't known yet (CLIENT UNBLOCK), the job is taken back, as at the timeout.
func putAnswers(c *rm.Ctx, b *engine.Batch) {
	c.Array(len(b.Answers))
	for i := range b.Answers {
		switch a := &b.Answers[i]; a.Err {
		case nil:
			a.ID.Put((*[store.IDLen]byte)(c.SimpleBuffer(store.IDLen)))
		case engine.ErrDropped:
			c.Null()
		default:
			c.Text("-" + a.Err.Error())
		}
	}
}

// answerBatch answers a client that waited.
func answerBatch(b *engine.Batch) {
	if client, ok := b.Client.(*rm.Client); ok {
		client.Answer(func(c *rm.Ctx) { putAnswers(c, b) }, nil)
	}
}
