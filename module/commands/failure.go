package commands

import (
	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// NACK, and the options of ADDJOB and QCONFIG that say what becomes of jobs that fail.

// Errors of NACK, and of what ADDJOB and QCONFIG say of failures.
const (
	errBodyOnce      engine.Refusal = "ERR BODY goes with one ID"
	errDelayDead     engine.Refusal = "ERR DELAY and DEAD exclude each other"
	errBackoff       engine.Refusal = "ERR BACKOFF must be followed by base and max, 1 to 2147483647 seconds, base not above max"
	errJitter        engine.Refusal = "ERR JITTER must be between 0 and 100, behind BACKOFF base max"
	errMaxNacks      engine.Refusal = "ERR MAXNACKS must be between 0 and 65535"
	errMaxDeliveries engine.Refusal = "ERR MAXDELIVERIES must be between 0 and 65535"
	errMaxLapses     engine.Refusal = "ERR MAXLAPSES must be between 0 and 65535"
	errDead          engine.Refusal = "ERR DEAD must name another queue, in 1 to 1024 bytes"
	errDeadTTL       engine.Refusal = "ERR DEADTTL must be a non negative number, at most 2147483647 (seconds)"
	errDeadMax       engine.Refusal = "ERR DEADMAX must be a number of jobs, 0 to 2147483647"
	errKeep          engine.Refusal = "ERR KEEP must be a non negative number, at most 2147483647 (seconds)"
	errOnExpire      engine.Refusal = "ERR ONEXPIRE must be drop or dead"
	errLapsesOnce    engine.Refusal = "ERR MAXLAPSES needs a RETRY time: an at-most-once job is never tried again"
	errOnce          engine.Refusal = "ERR BACKOFF, MAXNACKS and MAXDELIVERIES need a RETRY time: an at-most-once job is never tried again"
)

// parsePolicy reads an option at argument i that says what becomes of jobs that fail. took is how many arguments the option has, 0 if
// it is another one.
func parsePolicy(c args, i int, p *engine.Policy) (took int, err error) {
	opt, more := c.Arg(i), c.NArgs()-i-1
	if more == 0 {
		return 0, nil
	}
	number := func(set engine.PolicySet, into *int64, most int64, refusal error) (int, error) {
		v, ok := between(c.Arg(i+1), 0, most)
		if !ok {
			return 0, refusal
		}
		*into = v
		p.Set |= set
		return 2, nil
	}
	switch {
	case is(opt, "BACKOFF"):
		return parseBackoff(c, i, p)
	case is(opt, "JITTER"):
		return 0, errJitter
	case is(opt, "MAXNACKS"):
		return number(engine.SetMaxNacks, &p.MaxNacks, engine.MaxTries, errMaxNacks)
	case is(opt, "MAXDELIVERIES"):
		return number(engine.SetMaxDeliveries, &p.MaxDeliveries, engine.MaxTries, errMaxDeliveries)
	case is(opt, "MAXLAPSES"):
		return number(engine.SetMaxLapses, &p.MaxLapses, engine.MaxTries, errMaxLapses)
	case is(opt, "DEADTTL"):
		return number(engine.SetDeadTTL, &p.DeadTTL, engine.MaxSeconds, errDeadTTL)
	case is(opt, "KEEP"):
		return number(engine.SetKeep, &p.Keep, engine.MaxSeconds, errKeep)
	case is(opt, "DEAD"):
		name := c.Arg(i + 1)
		if len(name) == 0 || len(name) > engine.MaxDeadQueue {
			return 0, errDead
		}
		p.Dead = append([]byte{}, name...)
		p.Set |= engine.SetDead
		return 2, nil
	case is(opt, "ONEXPIRE"):
		if p.ExpiredDies = same(c.Arg(i+1), "dead"); !p.ExpiredDies && !same(c.Arg(i+1), "drop") {
			return 0, errOnExpire
		}
		p.Set |= engine.SetOnExpire
		return 2, nil
	}
	return 0, nil
}

// parseBackoff reads BACKOFF base max [JITTER pct] at argument i.
func parseBackoff(c args, i int, p *engine.Policy) (took int, err error) {
	if i+2 >= c.NArgs() {
		return 0, errBackoff
	}
	base, ok := between(c.Arg(i+1), 0, engine.MaxSeconds)
	most, ok2 := between(c.Arg(i+2), 0, engine.MaxSeconds)
	if !ok || !ok2 || base > most || base == 0 && most > 0 {
		return 0, errBackoff
	}
	took, jitter := 3, int64(engine.DefaultJitter)
	if i+3 < c.NArgs() && is(c.Arg(i+3), "JITTER") {
		if i+4 == c.NArgs() {
			return 0, errJitter
		}
		if jitter, ok = between(c.Arg(i+4), 0, 100); !ok {
			return 0, errJitter
		}
		took = 5
	}
	p.Base, p.Max, p.Jitter = base, most, jitter
	p.Set |= engine.SetBackoff
	return took, nil
}

// checkPolicy checks what ADDJOB says with its other options.
func checkPolicy(a *engine.Add) error {
	p := a.Policy
	switch {
	case p == nil:
		return nil
	case a.Retry == 0 && (p.Base > 0 || p.MaxNacks > 0 || p.MaxDeliveries > 0):
		return errOnce
	case a.Retry == 0 && p.MaxLapses > 0:
		return errLapsesOnce
	case string(p.Dead) == string(a.Queue):
		return errDead
	}
	return nil
}

// parseNack reads NACK: which of the first arguments are IDs, and the options behind them into f. A reason is the one argument behind
// REASON, whatever it looks like, and a body the one behind BODY.
func parseNack(c args, f *engine.Failure) (ids int, err error) {
	*f = engine.Failure{}
	n := c.NArgs()
	if ids = leading(c, isFailureOption); ids == 0 && n > 1 {
		return 0, errSyntax
	}
	for i := ids + 1; i < n; i++ {
		opt, more := c.Arg(i), i+1 < n
		switch {
		case is(opt, "DEAD") && !f.Dead:
			f.Dead = true
		case is(opt, "DELAY") && more && !f.HasDelay:
			i++
			if f.Delay, f.HasDelay = seconds(c.Arg(i), engine.MaxSeconds*1000); !f.HasDelay {
				return 0, errDelay
			}
		case is(opt, "REASON") && more && f.Reason == nil:
			i++
			if f.Reason = c.Arg(i); f.Reason == nil {
				f.Reason = []byte{} // it is empty, and was given
			}
		case is(opt, "BODY") && more && !f.HasBody:
			i++
			f.Body, f.HasBody = c.Arg(i), true
		default:
			return 0, errSyntax
		}
	}
	switch {
	case f.Dead && f.HasDelay:
		return 0, errDelayDead
	case f.HasBody && countJobs(c, ids) > 1:
		return 0, errBodyOnce
	}
	return ids, nil
}

// leading counts the arguments before the first option: those that should be IDs, or names behind NAME, which may look like options.
func leading(c args, isOption func([]byte) bool) (ids int) {
	n := c.NArgs() - 1
	for ids < n {
		if arg := c.Arg(ids + 1); len(arg) != store.IDLen { // no word is as long as an ID
			if isOption(arg) {
				break
			}
			if isName(arg) {
				ids++
			}
		}
		ids++
	}
	return min(ids, n)
}

func isFailureOption(arg []byte) bool {
	return is(arg, "DELAY") || is(arg, "DEAD") || is(arg, "REASON") || is(arg, "BODY")
}

// nack is NACK.
func (m *module) nack(c *rm.Ctx) {
	f := &m.failure
	ids, err := parseNack(c, f)
	defer func() { *f = engine.Failure{} }()
	if !m.hasRoom(c, len(f.Body), err) || !m.enterIDs(c, ids) {
		return
	}
	if f.HasBody && len(m.ids) > 0 {
		if err := m.node.TakesBody(&m.ids[0], f.Body); err != nil {
			fail(c, err)
			m.carryOut(c)
			return
		}
	}
	m.doEach(c, func(id *store.ID) bool { return m.node.Nack(id, f) })
}
