package commands

import (
	"bytes"
	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// Errors of the parser; the texts are Disque's.
const (
	errSyntax       engine.Refusal = "ERR syntax error"
	errInteger      engine.Refusal = "ERR value is not an integer or out of range"
	errTimeout      engine.Refusal = "ERR timeout is not an integer or out of range"
	errTimeoutNeg   engine.Refusal = "ERR timeout is negative"
	errBadID        engine.Refusal = "BADID Invalid Job ID format."
	errReplicate    engine.Refusal = "ERR REPLICATE must be between 1 and 65535"
	errTTL          engine.Refusal = "ERR TTL must be a number > 0, and at most 2147483647 (seconds)"
	errRetry        engine.Refusal = "ERR RETRY time must be a non negative number, at most 2147483647 (seconds)"
	errDelay        engine.Refusal = "ERR DELAY time must be a non negative number, at most 2147483647 (seconds)"
	errDueAt        engine.Refusal = "ERR AT must be a unix time in seconds, at most 2147483646 s ahead"
	errAtDelay      engine.Refusal = "ERR AT and DELAY exclude each other"
	errPriority     engine.Refusal = "ERR PRIORITY must be between -100 and 100"
	errPauseFor     engine.Refusal = "ERR FOR must be a number of seconds > 0, with in, out or all"
	errName         engine.Refusal = "ERR NAME must have 1 to 255 bytes"
	errNameOnce     engine.Refusal = "ERR NAME needs a RETRY time: two nodes may be told of the same name at once, and an at-most-once job must not be delivered twice"
	errNameUnique   engine.Refusal = "ERR NAME and UNIQUE exclude each other: in a queue whose settings have UNIQUE, say UNIQUE none, or leave out NAME"
	errNameFamily   engine.Refusal = "ERR a job with NAME can't have DEFERRED, BLOCKEDBY or AFTER; others can wait for it"
	errNameBulk     engine.Refusal = "ERR ADDJOBS takes no NAME: each job needs its own, so say ADDJOB for each, in a pipeline"
	errMaxLen       engine.Refusal = "ERR MAXLEN must be a positive number"
	errAtMostOnce   engine.Refusal = "ERR With RETRY set to 0 please explicitly set  REPLICATE to 1 (at-most-once delivery)"
	errDelayTTL     engine.Refusal = "ERR The specified DELAY is greater than TTL. Job refused since would never be delivered"
	errCount        engine.Refusal = "ERR COUNT must be a number greater than zero"
	errLease        engine.Refusal = "ERR LEASE must be a number of seconds > 0, at most 2147483647"
	errWorker       engine.Refusal = "ERR WORKER must be a name of 1 to 255 bytes"
	errWorkerFrom   engine.Refusal = "ERR WORKER can't be FROM: the server takes the first FROM for the beginning of the queues (COMMAND GETKEYS, ACL). Take another name"
	errCursor       engine.Refusal = "ERR invalid cursor or option name"
	errState        engine.Refusal = "ERR Invalid job state name"
	errReply        engine.Refusal = "ERR Invalid REPLY type, try ID or ALL"
	errInternalOp   engine.Refusal = "ERR LOADJOB is a special command only processed from AOF"
	errInternalSet  engine.Refusal = "ERR SETJOB is a special command only processed from AOF"
	errDamagedDrop  engine.Refusal = "ERR SETJOB is damaged: with an empty record it has two IDs"
	errInternalMake engine.Refusal = "ERR MAKEQUEUE is a special command only processed from AOF"
	errInternalDel  engine.Refusal = "ERR DELQUEUE is a special command only processed from AOF"
)

// is compares an option word with word, which is in capitals. The case of arg doesn't
// matter.
func is(arg []byte, word string) bool {
	if len(arg) != len(word) || string(arg) == word {
		return len(arg) == len(word)
	}
	for i := range len(word) {
		c := arg[i]
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		if c != word[i] {
			return false
		}
	}
	return true
}

// integer reads a decimal number. As Disque, it accepts a sign and leading zeros, but no
// empty text, spaces or NUL bytes.
func integer(b []byte) (v int64, ok bool) {
	i, neg := 0, false
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		neg, i = b[0] == '-', 1
	}
	if i == len(b) {
		return 0, false
	}
	var u uint64
	for ; i < len(b); i++ {
		d := uint64(b[i] - '0')
		if d > 9 || u > (1<<63)/10 {
			return 0, false
		}
		u = u*10 + d
	}
	if neg {
		if u > 1<<63 {
			return 0, false
		}
		return -int64(u), true
	}
	return int64(u), u < 1<<63
}

// between is integer, but accepts only numbers from lo to hi.
func between(b []byte, lo, hi int64) (int64, bool) {
	v, ok := integer(b)
	return v, ok && v >= lo && v <= hi
}

// seconds reads a time in seconds, with or without a fraction, up to most ms. It returns ms, and rounds up.
func seconds(b []byte, most int64) (ms int64, ok bool) {
	if v, whole := integer(b); whole {
		return v * 1000, v >= 0 && v <= most/1000
	}
	if bytes.ContainsFunc(b, func(r rune) bool { return r != '.' && (r < '0' || r > '9') }) {
		return 0, false
	}
	ms, err := parseSeconds(b)
	return ms, err == nil && ms <= most
}

// readPriority reads a job's priority.
func readPriority(b []byte) (int, bool) {
	v, ok := between(b, -store.MaxPriority, store.MaxPriority)
	return int(v), ok
}

// maxTimeout keeps deadlines from overflowing: 146 million years.
const maxTimeout = 1 << 62

func timeout(b []byte) (int64, error) {
	v, ok := integer(b)
	switch {
	case !ok:
		return 0, errTimeout
	case v < 0:
		return 0, errTimeoutNeg
	}
	return min(v, maxTimeout), nil
}

// args is a command's arguments. The parser sees nothing else.
type args interface {
	NArgs() int
	Arg(i int) []byte
}

var _ args = (*rm.Ctx)(nil)

// defaults are what the options of a new job depend on.
type defaults struct {
	copies   int       // the default of REPLICATE
	now      int64     // unix ms
	settings *settings // of the queue; nil: it has none
	noAt     bool      // AT is refused: the job is a recurring one
}

// parseAdd reads ADDJOB's arguments into a. It checks the options first, then the timeout,
// then the options together: the first error in this order is the answer.
func parseAdd(c args, a *engine.Add, d *defaults) error {
	_, err := parseOptions(c, a, 4, d)
	a.Body = c.Arg(2)
	return err
}

// parseOptions reads what ADDJOB and ADDJOBS have in common: the queue, the options from argument first on, and the timeout, which
// is the argument before. ADDJOBS has no body before its timeout. For ADDJOBS it returns where the word BODIES or PAIRS is.
func parseOptions(c args, a *engine.Add, first int, d *defaults) (jobs int, err error) {
	*a = engine.Add{} // this clears it in place; another literal would be copied
	a.Queue, a.Retry = c.Arg(1), -1
	if d.settings != nil {
		d.settings.apply(a)
	}
	n, given, copied, delayed, delay, at := c.NArgs(), settingBits(0), false, false, int64(0), int64(-1)
	for i := first; i < n; i++ {
		if used, err := familyOption(c, i, a); err != nil {
			return 0, err
		} else if used > 0 {
			i += used - 1
			continue
		}
		opt, more, ok := c.Arg(i), i+1 < n, true
		switch {
		case is(opt, "ASYNC"):
			a.Async = true
			continue
		case !more:
			if first == bulkOptions && isBulk(opt) {
				return 0, errNoBodies
			}
			return 0, errSyntax
		case is(opt, "REPLICATE"):
			var v int64
			v, ok = between(c.Arg(i+1), 1, engine.MaxReplicate)
			a.Replicate, err, copied = int(v), errReplicate, true
		case is(opt, "TTL"):
			a.TTL, ok = between(c.Arg(i+1), 1, engine.MaxSeconds)
			err = errTTL
		case is(opt, "RETRY"):
			a.Retry, ok = between(c.Arg(i+1), 0, engine.MaxSeconds)
			err = errRetry
		case is(opt, "DELAY"):
			delay, ok = seconds(c.Arg(i+1), engine.MaxSeconds*1000)
			err, delayed = errDelay, true
		case is(opt, "AT") && d.noAt:
			return 0, errCronOption
		case is(opt, "AT"):
			at, ok = seconds(c.Arg(i+1), engine.MaxUnix)
			err = errDueAt
		case is(opt, "MAXLEN"):
			a.MaxLen, ok = between(c.Arg(i+1), 1, 1<<63-1)
			err = errMaxLen
		case isName(opt) && first == bulkOptions:
			return 0, errNameBulk
		case isName(opt):
			a.Name = c.Arg(i + 1)
			ok, err = len(a.Name) > 0 && len(a.Name) <= engine.MaxName, errName
		case is(opt, "PRIORITY"):
			a.Priority, ok = readPriority(c.Arg(i + 1))
			err = errPriority
		default:
			took, err := parseUnique(c, i, &a.Unique, &given)
			if took == 0 && err == nil {
				took, err = addPolicy(c, i, a)
			}
			if err != nil {
				return 0, err
			}
			if took == 0 {
				if first != bulkOptions || !isBulk(opt) {
					return 0, errSyntax
				}
				if jobs = i; is(opt, "PAIRS") {
					if given&gaveKey != 0 {
						return 0, errKeyPairs
					}
					given |= gaveKey
				}
				n = i
				continue
			}
			i += took - 1
			continue
		}
		if !ok {
			return 0, err
		}
		i++
	}
	if a.Timeout, err = timeout(c.Arg(first - 1)); err != nil {
		return 0, err
	}
	if err := checkFamily(a); err != nil {
		return 0, err
	}
	if a.Default = a.Replicate == 0; a.Default {
		a.Replicate = d.copies
	}
	switch {
	case at >= 0 && delayed:
		return 0, errAtDelay
	case delayed && delay%1000 == 0:
		a.Delay = delay / 1000
	case delayed:
		at = d.now + delay // a job's own delay has whole seconds
	}
	if at >= 0 && !a.DueAt(at, d.now) {
		if delayed {
			return 0, errDelay
		}
		return 0, errDueAt
	}
	if a.TTL == 0 {
		a.TTL = defaultTTL(a)
	} else if a.At > 0 { // it counts from that time
		a.TTL = min(a.TTL+a.Delay, engine.MaxSeconds)
	}
	if a.Retry < 0 {
		life := a.TTL
		if a.At > 0 {
			life -= a.Delay
		}
		a.Retry = max(1, min(life/10, engine.MaxRetry))
	}
	if a.Replicate > 1 && a.Retry == 0 {
		if copied {
			return 0, errAtMostOnce
		}
		a.Replicate = 1 // the default of REPLICATE gives way to RETRY 0
	}
	if a.Delay >= a.TTL {
		return 0, errDelayTTL
	}
	if err := checkPolicy(a); err != nil {
		return 0, err
	}
	if a.Unique.Strategy != 0 || given != 0 {
		if err := checkUnique(a, given, a.Delay > 0 && (at < 0 || delayed)); err != nil {
			return 0, err
		}
		if d.settings != nil && d.settings.exclude {
			a.Unique = engine.Unique{}
		}
	}
	if a.Name != nil {
		return jobs, checkName(a)
	}
	return jobs, nil
}

// checkName checks what doesn't go with a name.
func checkName(a *engine.Add) error {
	switch {
	case a.Retry == 0:
		return errNameOnce
	case a.Unique.Strategy != 0:
		return errNameUnique
	case a.Family():
		return errNameFamily
	}
	return nil
}

// addPolicy is parsePolicy for an option of ADDJOB.
func addPolicy(c args, i int, a *engine.Add) (took int, err error) {
	var p engine.Policy
	if a.Policy != nil {
		p = *a.Policy
	}
	if took, err = parsePolicy(c, i, &p); took > 0 {
		a.Policy = &p
	}
	return took, err
}

// defaultTTL is the time to live of a job that was added without TTL. It begins when the
// job is due, as far as that is known.
func defaultTTL(a *engine.Add) int64 {
	ttl := int64(engine.DefaultTTL)
	if a.Family() {
		ttl = engine.HeldTTL
	}
	return min(ttl+a.Delay+max(a.Unique.ConflictDelay, a.Unique.BusyDelay), engine.MaxSeconds)
}

// get is a parsed GETJOB; the queues' names are the arguments from first on.
type get struct {
	shape
	nohang  bool
	timeout int64 // ms; 0: without limit
	count   int
	lease   int64 // seconds; 0: the jobs' retry times
	first   int
	worker  []byte // the name the client gives itself; nil: none
}

func parseGet(c args) (g get, err error) {
	g.count = 1
	n := c.NArgs()
	for i := 1; i < n; i++ {
		opt, more := c.Arg(i), i+1 < n
		switch {
		case is(opt, "FROM"):
			if !more {
				return g, errSyntax
			}
			g.first = i + 1
			return g, nil
		case is(opt, "NOHANG"):
			g.nohang = true
		case is(opt, "WITHCOUNTERS"):
			g.counters = true
		case is(opt, "WITHTOKEN"):
			g.token = true
		case is(opt, "WITHINFO"):
			g.info = true
		case is(opt, "TIMEOUT") && more:
			i++
			if g.timeout, err = timeout(c.Arg(i)); err != nil {
				return g, err
			}
		case is(opt, "COUNT") && more:
			i++
			v, ok := between(c.Arg(i), 1, 1<<63-1)
			if !ok {
				return g, errCount
			}
			g.count = int(v)
		case is(opt, "LEASE") && more:
			i++
			var ok bool
			if g.lease, ok = between(c.Arg(i), 1, engine.MaxSeconds); !ok {
				return g, errLease
			}
		case is(opt, "WORKER") && more:
			i++
			if g.worker = c.Arg(i); len(g.worker) == 0 || len(g.worker) > engine.MaxWorker {
				return g, errWorker
			}
			if is(g.worker, "FROM") {
				return g, errWorkerFrom
			}
		default:
			return g, errSyntax
		}
	}
	return g, errSyntax
}

// scan is a parsed QSCAN or JSCAN.
type scan struct {
	meshOptions
	cursor         uint64
	count          int64
	busy           bool
	minLen, maxLen int64 // -1: no bound
	importRate     int64
	queue          []byte
	byQueue        bool
	states         uint8 // bit per state; 0: all
	all            bool  // REPLY all
}

// parseScan reads a scan's options. One argument that is no complete option is taken for
// the cursor.
func parseScan(c args, jobs bool) (s scan, err error) {
	s.count, s.minLen, s.maxLen, s.importRate = 100, -1, -1, -1
	seen := false
	n := c.NArgs()
	for i := 1; i < n; i++ {
		opt, more := c.Arg(i), i+1 < n
		var number *int64
		took, err := s.option(c, i)
		if err != nil {
			return s, err
		}
		if took > 0 {
			i += took - 1
			continue
		}
		switch {
		case is(opt, "BUSYLOOP"):
			s.busy = true
			continue
		case is(opt, "COUNT") && more:
			number = &s.count
		case is(opt, "MINLEN") && more && !jobs:
			number = &s.minLen
		case is(opt, "MAXLEN") && more && !jobs:
			number = &s.maxLen
		case is(opt, "IMPORTRATE") && more && !jobs:
			number = &s.importRate
		case is(opt, "QUEUE") && more && jobs:
			i++
			s.queue, s.byQueue = c.Arg(i), true
			continue
		case is(opt, "STATE") && more && jobs:
			i++
			state, ok := stateNamed(c.Arg(i))
			if !ok {
				return s, errState
			}
			s.states |= 1 << state
			continue
		case is(opt, "REPLY") && more && jobs:
			i++
			switch {
			case is(c.Arg(i), "ALL"):
				s.all = true
			case is(c.Arg(i), "ID"):
				s.all = false
			default:
				return s, errReply
			}
			continue
		case seen:
			return s, errSyntax
		default:
			seen = true
			var ok bool
			if s.cursor, ok = cursor(opt); !ok {
				return s, errCursor
			}
			continue
		}
		i++
		v, ok := integer(c.Arg(i))
		if !ok {
			return s, errInteger
		}
		*number = v
	}
	if s.mesh && (s.busy || s.importRate != -1 || s.all || s.count < 1 || s.count > engine.MaxMeshPage) {
		return s, errMeshScan
	}
	return s, s.complete()
}

// within says whether a queue of this length is wanted.
func (s *scan) within(length int64) bool {
	return (s.minLen == -1 || length >= s.minLen) && (s.maxLen == -1 || length <= s.maxLen)
}

// cursor reads an unsigned 64-bit number.
func cursor(b []byte) (v uint64, ok bool) {
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 || v > (1<<64-1-d)/10 {
			return 0, false
		}
		v = v*10 + d
	}
	return v, len(b) > 0
}

var stateNames = [...]string{
	store.StateWaitRepl: "wait-repl",
	store.StateActive:   "active",
	store.StateQueued:   "queued",
	store.StateAcked:    "acked",
}

func stateNamed(b []byte) (uint8, bool) {
	for state, name := range stateNames {
		if len(b) == len(name) && is(b, upper(name)) {
			return uint8(state), true
		}
	}
	return heldNamed(b)
}

func upper(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'a' <= c && c <= 'z' {
			b[i] = c - ('a' - 'A')
		}
	}
	return string(b)
}

// pausing is a parsed PAUSE.
type pausing struct {
	mask  uint8
	set   bool // mask is to be applied: STATE and BCAST alone change nothing
	bcast bool
	span  int64 // ms; 0: without end
}

func parsePause(c args) (p pausing, err error) {
	for i := 2; i < c.NArgs(); i++ {
		switch w := c.Arg(i); {
		case is(w, "IN"):
			p.mask, p.set = p.mask|engine.PauseIn, true
		case is(w, "OUT"):
			p.mask, p.set = p.mask|engine.PauseOut, true
		case is(w, "ALL"):
			p.mask, p.set = engine.PauseIn|engine.PauseOut, true
		case is(w, "NONE"):
			p.mask, p.set = 0, true
		case is(w, "BCAST"):
			p.bcast = true
		case is(w, "FOR"):
			seconds, ok := int64(0), i+1 < c.NArgs()
			if i++; ok {
				seconds, ok = between(c.Arg(i), 1, engine.MaxSeconds)
			}
			if !ok {
				return p, errPauseFor
			}
			p.span = seconds * 1000
		case is(w, "STATE"):
		default:
			return p, errSyntax
		}
	}
	if p.span > 0 && p.mask == 0 {
		return p, errPauseFor
	}
	p.bcast = p.bcast && p.set
	return p, nil
}
