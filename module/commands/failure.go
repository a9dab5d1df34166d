package commands

import (
	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// NACK, and what SHOW says of jobs that failed.

const errDelayDead engine.Refusal = "ERR DELAY and DEAD exclude each other"

// parseNack reads NACK: which of the first arguments are IDs, and the options behind them into f. A reason is the one argument behind
// REASON, whatever it looks like.
func parseNack(c args, f *engine.Failure) (ids int, err error) {
	*f = engine.Failure{}
	i, n := 1, c.NArgs()
	for i < n && !isFailureOption(c.Arg(i)) {
		i++
	}
	if ids = i - 1; ids == 0 && n > 1 {
		return 0, errSyntax
	}
	delayed := false
	for ; i < n; i++ {
		opt, more := c.Arg(i), i+1 < n
		switch {
		case is(opt, "DEAD") && !f.Dead:
			f.Dead = true
		case is(opt, "DELAY") && more && !delayed:
			i++
			v, ok := between(c.Arg(i), 0, engine.MaxSeconds)
			if !ok {
				return 0, errDelay
			}
			f.Delay, delayed = v*1000, true
		case is(opt, "REASON") && more && f.Reason == nil:
			i++
			f.Reason = append([]byte{}, c.Arg(i)...)
		default:
			return 0, errSyntax
		}
	}
	if f.Dead && delayed {
		return 0, errDelayDead
	}
	return ids, nil
}

func isFailureOption(arg []byte) bool {
	return is(arg, "DELAY") || is(arg, "DEAD") || is(arg, "REASON")
}

// nack is NACK.
func (m *module) nack(c *rm.Ctx) {
	ids, err := parseNack(c, &m.failure)
	m.requeue(c, ids, err, func(id *store.ID) bool { return m.node.Nack(id, &m.failure) })
	m.failure = engine.Failure{}
}

// putFailure answers SHOW's fields of a job that failed, or was given up.
func putFailure(c *rm.Ctx, j *store.Job) {
	if f, ok := engine.FailureOf(j); ok {
		c.Text("failed-at")
		c.Int(f.At)
		c.Text("failed-by")
		bulkOrNull(c, f.Worker, len(f.Worker) > 0)
		c.Text("reason")
		bulkOrNull(c, f.Reason, len(f.Reason) > 0)
	}
	if d, ok := engine.DeathOf(j); ok {
		c.Text("died")
		c.Int(d.At)
		c.Text("why")
		c.Text(d.Why.String())
		c.Text("from")
		bulkOrNull(c, d.From, len(d.From) > 0)
	}
}

// failureFields counts those fields.
func failureFields(j *store.Job) (n int) {
	if _, ok := engine.FailureOf(j); ok {
		n += 3
	}
	if _, ok := engine.DeathOf(j); ok {
		n += 3
	}
	return n
}
