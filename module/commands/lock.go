package commands

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"jobmesh/cgo/record"
	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// Errors of the LOCK commands.
const (
	errLockName    engine.Refusal = "ERR a lock's name has 1 to 4096 bytes"
	errOwner       engine.Refusal = "ERR an owner has 1 to 1024 bytes"
	errToken       engine.Refusal = "ERR a token is a number from 1 to 9007199254740991, as LOCK.ACQUIRE answers it"
	errWait        engine.Refusal = "ERR WAIT is not an integer or out of range"
	errWaitNeg     engine.Refusal = "ERR WAIT is negative"
	errLockType    engine.Refusal = "ERR TYPE is bare, waiting or running"
	errLimit       engine.Refusal = "ERR LIMIT must be between 1 and 256"
	errSlot        engine.Refusal = "ERR SLOT must be between 0 and 255"
	errAnySlot     engine.Refusal = "ERR SLOT must be between 0 and 65535"
	errSlotOfOne   engine.Refusal = "ERR SLOT goes with one name, not with PREFIX or ALL, which clear all slots"
	errLockQueue   engine.Refusal = "ERR QUEUE goes with TYPE waiting or running"
	errLongMatch   engine.Refusal = "ERR the pattern must have 4096 bytes at most"
	errLockCursor  engine.Refusal = "ERR invalid cursor"
	errLockBlock   engine.Refusal = "NOQUORUM A lock in a mesh has to be agreed on with other nodes, which MULTI and scripts can't wait for"
	errClearing    engine.Refusal = "UNBLOCKED the locks are free, or will be when others are that are cleared before, and aren't counted yet"
	errInternalLck engine.Refusal = "ERR SETLOCK and DELLOCK are special commands only processed from AOF"
)

const (
	maxLockKey   = 4096             // bytes
	mostLease    = 366 * 86_400_000 // ms
	scanCount    = 100
	hashedPrefix = "sha256:"
)

func (m *module) lockConfig() *rm.Config {
	return rm.IntConfig("lock-max-lease", lock.DefaultMaxLease, 1, mostLease, false,
		func() int64 { return m.node.Locks().MaxLease() },
		func(v int64) error { m.node.Locks().SetMaxLease(v); return nil })
}

func (m *module) lockCommands() []rm.Command {
	name := rm.Arg{Name: "name", Kind: rm.ArgString}
	owner := rm.Arg{Name: "owner", Kind: rm.ArgString}
	token := rm.Arg{Name: "token", Kind: rm.ArgInteger}
	slot := number("SLOT", "slot")
	ttl := rm.Arg{Name: "ttl-ms", Kind: rm.ArgInteger}
	kind := rm.Arg{Name: "type", Kind: rm.ArgOneOf, Token: "TYPE", Optional: true, Sub: []rm.Arg{
		{Name: "bare", Kind: rm.ArgToken, Token: "bare"}, {Name: "waiting", Kind: rm.ArgToken, Token: "waiting"}, {Name: "running", Kind: rm.ArgToken, Token: "running"}}}
	queue := rm.Arg{Name: "queue", Kind: rm.ArgString, Token: "QUEUE", Optional: true}
	list := []rm.Command{
		{Name: "lock.acquire", Run: m.lockAcquire, Flags: "write deny-oom blocking", Categories: "write slow blocking", Info: rm.Info{
			Summary: "Takes a lock for a time, and answers its fencing token.", Complexity: "O(1), and one round trip to the other nodes", Arity: -4,
			Args: []rm.Arg{name, owner, ttl, number("WAIT", "milliseconds"), number("LIMIT", "holders")}}},
		{Name: "lock.extend", Run: m.lockExtend, Flags: "write blocking", Categories: "write slow blocking", Info: rm.Info{
			Summary: "Begins the time of a lock that one holds anew.", Complexity: "O(1), and one round trip to the other nodes", Arity: -5,
			Args: []rm.Arg{name, owner, token, ttl, slot}}},
		{Name: "lock.release", Run: m.lockRelease, Flags: "write blocking", Categories: "write slow blocking", Info: rm.Info{
			Summary: "Gives a lock that one holds back.", Complexity: "O(1), and one round trip to the other nodes", Arity: -4,
			Args: []rm.Arg{name, owner, token, slot}}},
		{Name: "lock.show", Run: m.lockShow, Flags: "readonly fast", Categories: "read fast", Info: rm.Info{
			Summary: "Describes a lock that is held, as far as this node knows.", Complexity: "O(1)", Arity: -2,
			Args: []rm.Arg{name, kind, queue, slot}}},
		{Name: "lock.scan", Run: m.lockScan, Flags: "readonly", Categories: "read slow", Info: rm.Info{
			Summary: "Walks through the locks that this node knows.", Complexity: "O(1) for each call, O(N) for all N locks", Arity: -2, Tips: "nondeterministic_output",
			Args: []rm.Arg{{Name: "cursor", Kind: rm.ArgInteger}, {Name: "pattern", Kind: rm.ArgString, Token: "MATCH", Optional: true},
				{Name: "prefix", Kind: rm.ArgString, Token: "PREFIX", Optional: true}, number("COUNT", "count"), kind, queue, slot}}},
		{Name: "lock.clear", Run: m.lockClear, Flags: "write", Categories: "write slow dangerous", Info: rm.Info{
			Summary: "Frees locks, whoever holds them.", Complexity: "O(1) for one, O(N) with N locks for a prefix or all", Arity: -2,
			Args: []rm.Arg{{Name: "which", Kind: rm.ArgOneOf, Sub: []rm.Arg{name, {Name: "exact", Kind: rm.ArgString, Token: "NAME"},
				{Name: "prefix", Kind: rm.ArgString, Token: "PREFIX"}, {Name: "all", Kind: rm.ArgToken, Token: "ALL"}}}, kind, queue, slot}}},
		{Name: "setlock", Run: m.setLock, Flags: "write", Categories: "admin", Info: rm.Info{
			Summary: "Internal: a logged lock.", Complexity: "O(1)", Arity: 2, Args: []rm.Arg{{Name: "record", Kind: rm.ArgString}}}},
		{Name: "dellock", Run: m.deleteLock, Flags: "write", Categories: "admin", Info: rm.Info{
			Summary: "Internal: the logged end of a lock.", Complexity: "O(1)", Arity: 3, Args: []rm.Arg{name, token}}},
	}
	for i := range list {
		list[i].Info.Since = since
	}
	return list
}

// --- taking and giving back ----------------------------------------------------

// lockCall is a parsed LOCK.ACQUIRE, EXTEND or RELEASE.
type lockCall struct {
	name, owner      []byte
	token            uint64
	lease, wait      int64 // ms
	slots, slot      int   // LIMIT and SLOT
	limited          bool  // LIMIT was said
	hasToken, hasTTL bool
}

// parseLock reads name and owner, then token and time if this command has them, and its options.
func parseLock(c args, call lockCall, maxLease int64) (lockCall, error) {
	call.name, call.owner, call.slots = c.Arg(1), c.Arg(2), 1
	at := 3
	switch {
	case len(call.name) == 0 || len(call.name) > maxLockKey:
		return call, errLockName
	case len(call.owner) == 0 || len(call.owner) > store.MaxOwner:
		return call, errOwner
	}
	if call.hasToken {
		v, ok := between(c.Arg(at), 1, lock.MaxShownToken)
		if !ok {
			return call, errToken
		}
		call.token = lock.BareToken(v)
		at++
	}
	if call.hasTTL {
		var ok bool
		if call.lease, ok = between(c.Arg(at), 1, maxLease); !ok {
			return call, engine.Refusal(fmt.Sprintf("ERR ttl-ms must be a number from 1 to %d (jobmesh.lock-max-lease)", maxLease))
		}
		at++
	}
	waits, slotted := false, false
	for ; at+1 < c.NArgs(); at += 2 {
		opt := c.Arg(at)
		v, ok := integer(c.Arg(at + 1))
		switch {
		case is(opt, "WAIT") && !call.hasToken && !waits:
			switch {
			case !ok:
				return call, errWait
			case v < 0:
				return call, errWaitNeg
			}
			call.wait, waits = min(v, maxTimeout), true
		case is(opt, "LIMIT") && !call.hasToken && !call.limited:
			if !ok || v < 1 || v > store.MaxLimit {
				return call, errLimit
			}
			call.slots, call.limited = int(v), true
		case is(opt, "SLOT") && call.hasToken && !slotted:
			if !ok || v < 0 || v >= store.MaxLimit {
				return call, errSlot
			}
			call.slot, slotted = int(v), true
		default:
			return call, errSyntax
		}
	}
	if at < c.NArgs() {
		return call, errSyntax
	}
	return call, nil
}

// lockClient is a client that waits for the outcome of a LOCK command.
type lockClient struct {
	m           *module
	client      *rm.Client
	take        bool
	name, owner []byte // of the lock, or the slot, which is freed if the client doesn't hear that it has it
	gone        bool
	answer      func(*rm.Ctx, *lock.Result)
}

func (m *module) lockAcquire(c *rm.Ctx) {
	m.lockCommand(c, lockCall{hasTTL: true}, func(call *lockCall, w *lockClient) (lock.Result, *lock.Acquisition) {
		if w.take = true; call.limited {
			w.answer = answerSlot
		}
		return m.node.Locks().AcquireSlot(w.name, w.owner, call.lease, call.wait, call.slots, w)
	}, answerAcquire)
}

func (m *module) lockExtend(c *rm.Ctx) {
	m.lockCommand(c, lockCall{hasTTL: true, hasToken: true}, func(call *lockCall, w *lockClient) (lock.Result, *lock.Acquisition) {
		return m.node.Locks().Extend(w.name, w.owner, call.token, call.lease, w)
	}, answerOK)
}

func (m *module) lockRelease(c *rm.Ctx) {
	m.lockCommand(c, lockCall{hasToken: true}, func(call *lockCall, w *lockClient) (lock.Result, *lock.Acquisition) {
		return m.node.Locks().Release(w.name, w.owner, call.token, w)
	}, answerOK)
}

func answerAcquire(c *rm.Ctx, o *lock.Result) {
	switch err := o.Err(); {
	case err != nil:
		fail(c, err)
	case o.Kind == lock.Conflict:
		c.Null()
	default:
		c.Int(lock.ShownToken(o.Token))
	}
}

// answerSlot is answerAcquire for a client that said LIMIT.
func answerSlot(c *rm.Ctx, o *lock.Result) {
	if o.Kind != lock.Granted {
		answerAcquire(c, o)
		return
	}
	c.Array(2)
	c.Int(lock.ShownToken(o.Token))
	c.Int(int64(o.Slot))
}

func answerOK(c *rm.Ctx, o *lock.Result) {
	if err := o.Err(); err != nil {
		fail(c, err)
		return
	}
	c.Simple("OK")
}

func (m *module) lockCommand(c *rm.Ctx, call lockCall, begin func(*lockCall, *lockClient) (lock.Result, *lock.Acquisition), answer func(*rm.Ctx, *lock.Result)) {
	if !m.enter(c) {
		return
	}
	call, err := parseLock(c, call, m.node.Locks().MaxLease())
	if err != nil {
		fail(c, err)
		return
	}
	if call.slots > 1 {
		if err := lacking(m.node.LacksSlots()); err != nil {
			fail(c, err)
			return
		}
	}
	if !c.CanBlock() {
		if !m.node.Mesh().Alone() {
			fail(c, errLockBlock)
			return
		}
		call.wait = 0
	}
	w := &lockClient{m: m, name: store.AppendSlotName(nil, call.slot, store.AppendBareName(nil, call.name)), owner: append([]byte(nil), call.owner...), answer: answer}
	o, claim := begin(&call, w)
	if claim == nil {
		w.answer(c, &o)
		m.carryOut(c)
		return
	}
	w.client, err = c.Block(0, func(c *rm.Ctx, gone bool) {
		w.gone = true
		if !gone { // CLIENT UNBLOCK
			late := claim.Late()
			w.answer(c, &late)
		}
		m.later(0, func(*rm.Ctx) { m.node.Locks().Abandon(claim) })
	})
	if err != nil {
		m.node.Locks().Abandon(claim)
		c.Error("ERR " + err.Error())
	}
	m.carryOut(c)
}

// lockDone answers a client that waited for its LOCK command.
func (m *module) lockDone(e *engine.Effect) {
	w, o := e.Client.(*lockClient), e.Outcome
	if w.gone {
		w.unheard(o)
		return
	}
	w.client.Answer(func(c *rm.Ctx) { w.answer(c, o) }, func(*rm.Ctx) { w.unheard(o) })
}

// unheard frees a lock whose client went before it got the answer.
func (w *lockClient) unheard(o *lock.Result) {
	m := w.m
	if !w.take || o.Kind != lock.Granted {
		return
	}
	m.later(0, func(*rm.Ctx) { m.node.Locks().Unhear(store.AppendSlotName(nil, o.Slot, w.name), w.owner, o) })
}

var spaceNames = map[store.Space]string{store.LockBare: "bare", store.LockWait: "waiting", store.LockRun: "running"}

// --- what is logged and loaded -----------------------------------------------------

func (m *module) replicateLock(c *rm.Ctx, e *engine.Effect) {
	b := m.node.Message(e)
	if e.Kind == engine.LogLock {
		copy(c.Replicate(m.effect.setLock, 1).Buffer(len(b)), b)
		return
	}
	name, token := lock.UnlockParts(b)
	args := c.Replicate(m.effect.deleteLock, 2)
	copy(args.Buffer(len(name)), name)
	args.Text(strconv.FormatUint(token, 10))
}

func (m *module) setLock(c *rm.Ctx) {
	m.internal(c, errInternalLck, func() error { return m.node.Locks().Apply(c.Arg(1)) })
}

func (m *module) deleteLock(c *rm.Ctx) {
	m.internal(c, errInternalLck, func() error {
		token, ok := between(c.Arg(2), 0, store.MaxToken)
		if !ok {
			return errToken
		}
		m.node.Locks().ApplyEnd(c.Arg(1), uint64(token))
		return nil
	})
}

// loadLocks reads the locks that were saved (cgo/record).
func (m *module) loadLocks(r *rm.Reader, version int) error {
	if version > queueEncoding {
		return fmt.Errorf("it was saved by a newer jobmesh, this one reads versions up to %d", queueEncoding)
	}
	if version >= 3 {
		m.saved = record.Epoch{Process: r.Uint(), Changes: r.Uint(), Final: r.Uint()}
		m.base = m.saved
	}
	m.node.Locks().ApplyFloor(r.Uint())
	m.node.Locks().ApplyMark(r.Uint())
	for n, end := 0, false; !end; n++ {
		err := r.Bytes(func(rec []byte) error {
			if end = len(rec) == 0; end {
				return nil
			}
			return m.node.Locks().Apply(rec)
		})
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			return fmt.Errorf("lock %d: %w", n, err)
		}
	}
	return nil
}

// distrustLocks makes a node that comes back to its mesh abstain, because it may have lost
// votes. A node that hasn't met any other yet gave votes only to itself.
func (m *module) distrustLocks() {
	if len(m.node.Mesh().All()) > 0 {
		m.node.Locks().MarkIncomplete()
	}
}

// locksLoaded ends the abstaining if no vote can be missing: each vote was in the data
// before it was given, or before the process ended, and the data say that the table was
// whole.
func (m *module) locksLoaded(phase rm.LoadPhase) {
	if phase == rm.LoadFailed || !m.node.Locks().Abstains() || m.node.Passive() {
		return
	}
	if m.logExact && m.node.Locks().IsComplete() {
		m.node.Locks().TrustLoaded()
		return
	}
	m.node.Locks().MarkIncomplete()
}

// relogLocks logs all locks again.
func (m *module) relogLocks() {
	if t := m.node.Locks().Table(); t.Len > 0 || t.Floor > 0 || t.Complete > 0 {
		m.node.Locks().Relog()
	}
}

func (m *module) lockInfo(w *rm.InfoWriter) {
	w.Section("locks")
	w.Int("locks", int64(m.node.Locks().Count()))
	w.Int("lock_claims", int64(m.node.Locks().Acquisitions()))
	w.Text("locks_abstaining", yesNo(m.node.Locks().Abstains()))
	if a := m.node.Locks().Abstaining(); a != nil {
		w.Int("locks_abstaining_ms", a.Left)
		w.Text("locks_abstaining_because", m.abstainingText(a))
	}
}

// lockState returns the lines of CLUSTER INFO about the node's votes for locks.
func (m *module) lockState() string {
	a := m.node.Locks().Abstaining()
	if a == nil {
		return "cluster_locks:voting\r\n"
	}
	return fmt.Sprintf("cluster_locks:abstaining\r\ncluster_locks_abstaining_ms:%d\r\ncluster_locks_abstaining_because:%s\r\n", a.Left, m.abstainingText(a))
}

// abstainingText says why the node doesn't vote for locks, and until when.
func (m *module) abstainingText(a *lock.Abstaining) string {
	var awaited []string
	for _, node := range a.Awaited {
		awaited = append(awaited, m.nodeName(uint64(node)))
	}
	others := strings.Join(awaited, " ")
	missing := "; not heard of: " + others
	if others == "" {
		missing = "; all have told theirs, but too many are new to the mesh"
	}
	switch {
	case a.New:
		return "it is new to the mesh, until it has the tables of enough others" + missing
	case a.Jobs:
		return "it may have lost votes for locks of jobs, until these nodes have told theirs, or are forgotten: " + others
	case a.Left > 0 && slices.Min(a.Lefts[:]) < a.Left:
		return fmt.Sprintf("it may have lost votes that it gave, for up to %d s (bare locks), %d s (of jobs that run), %d s (of jobs that wait, and windows), the longest lease of one, or until enough others have told theirs%s",
			(a.Lefts[0]+999)/1000, (a.Lefts[1]+999)/1000, (a.Lefts[2]+999)/1000, missing)
	case a.Left > 0:
		return fmt.Sprintf("it may have lost votes that it gave, for up to %d s, the longest lease of one, or until enough others have told theirs%s", (a.Left+999)/1000, missing)
	}
	return "it may have lost votes that it gave, until enough others have told theirs" + missing
}

// abstention is what was last logged about the node's abstaining.
type abstention struct {
	told, jobs bool
	since      int64 // unix ms, when the node was first seen to abstain; 0: it doesn't
}

// abstainingLater is how long a new node abstains before that is logged, ms. Most new nodes
// abstain for a shorter time.
const abstainingLater = 2_000

// tellAbstaining logs that the node doesn't vote for locks, and when it votes again.
func (m *module) tellAbstaining() {
	a, t := m.node.Locks().Abstaining(), &m.abstains
	switch {
	case a == nil:
		if t.told {
			m.server.Log(rm.Notice, "this node votes for locks again")
		}
		*t = abstention{}
	case t.since == 0:
		t.since = max(m.node.Now(), 1)
		if a.New {
			return
		}
		fallthrough
	case !t.told && (!a.New || m.node.Now()-t.since >= abstainingLater), t.told && a.Jobs != t.jobs:
		t.told, t.jobs = true, a.Jobs
		m.server.Log(rm.Warning, "this node doesn't vote for locks: %s", m.abstainingText(a))
	}
}
