package engine_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// These are the scripts' commands about locks. A lock's token is shown as its
// difference from the script's first token.

var lockKinds = map[wire.Kind]string{
	wire.Claim: "CLAIM", wire.Grant: "GRANT", wire.Deny: "DENY", wire.Unlock: "UNLOCK", wire.Verify: "VERIFY", wire.Verified: "VERIFIED",
	wire.LockPull: "LOCKPULL", wire.LockPage: "LOCKPAGE", wire.ClearLocks: "CLEARLOCKS", wire.LockLost: "LOCKLOST",
}

var whyNames = [...]string{"", "held", "token low", "not held", "token stale", "abstains", "unproven", "uncounted"}

var outcomeNames = map[lock.ResultKind]string{
	lock.Granted: "granted", lock.Conflict: "conflict", lock.NoQuorum: "no quorum", lock.NotHeld: "not held", lock.Stale: "stale token", lock.Aborted: "aborted",
}

func (w *world) token(t uint64) string {
	if t == 1 {
		return "#1" // no lock has this token
	}
	return fmt.Sprint("#", int64(t-uint64(dawn)<<20))
}

func (w *world) lock(l *wire.Lock) string {
	text := ""
	if len(l.Name) > 0 {
		text += " " + string(l.Name[1:])
	}
	if l.Token > 0 {
		text += " " + w.token(l.Token)
	}
	switch {
	case l.Job != wire.JobID{}:
		text += " for " + w.job(l.Job)
	case len(l.Owner) > 0:
		text += " for " + string(l.Owner)
	}
	if l.Lease > 0 {
		text += fmt.Sprintf(" lease %v", time.Duration(l.Lease)*time.Millisecond)
	}
	if l.Left > 0 {
		text += fmt.Sprintf(" left %v", time.Duration(l.Left)*time.Millisecond)
	}
	for i, name := range [...]string{"any", "alone", "outlives", "kept", "", "", "", "soft"} {
		if name != "" && l.Flags&(1<<i) != 0 {
			text += " " + name
		}
	}
	return text
}

// lockText shows a message about locks.
func (w *world) lockText(m *wire.Message) string {
	text := ""
	for flag, kind := range map[uint8]wire.Kind{wire.Extend: wire.Claim, wire.Fresh: wire.Unlock, wire.Partial: wire.LockPage, wire.Told: wire.LockPage, wire.Prefix: wire.ClearLocks, wire.Committed: wire.Claim} {
		if (kind == m.Kind || flag == wire.Committed && m.Kind == wire.Unlock) && m.Flags&flag != 0 {
			text += map[uint8]string{wire.Extend: " extend", wire.Fresh: " fresh", wire.Partial: " partial", wire.Told: " told", wire.Prefix: " prefix", wire.Committed: " proven"}[flag]
		}
	}
	switch m.Kind {
	case wire.Deny:
		text += " " + whyNames[m.Count]
	case wire.Verified:
		text += [...]string{"", " lives", " gone", " done"}[m.Count]
	}
	if m.ID != (wire.JobID{}) {
		text += " " + w.job(m.ID)
	}
	k := m.Lock
	if m.Kind == wire.Claim && k.Left > 0 {
		k.Left = 0
		text += " again"
	}
	if m.Kind == wire.Verify || m.Kind == wire.Verified {
		k.Left = 0 // this is the question's number
	}
	if m.Kind == wire.Verified && k.Lease > 0 {
		whole := "whole"
		if k.Lease < store.MaxLease {
			whole = fmt.Sprint("whole for ", time.Duration(k.Lease)*time.Millisecond)
		}
		k.Lease = 0
		text += w.lock(&k) + " " + whole
	} else {
		text += w.lock(&k)
	}
	for i := range m.Locks {
		text += " [" + strings.TrimSpace(w.lock(&m.Locks[i])) + "]"
	}
	return text
}

func (w *world) outcome(o *lock.Result) string {
	text := outcomeNames[o.Kind]
	switch {
	case o.Kind == lock.Granted:
		text += " " + w.token(o.Token)
	case o.Kind == lock.Conflict && o.Job != store.ID{}:
		text += " with " + w.job(o.Job)
	case o.Kind == lock.Conflict && o.Owner != nil:
		text += " with " + string(o.Owner)
	}
	return text
}

func (w *world) duration(key string, dest *int64) {
	text := ""
	if w.arg(key, &text); text != "" {
		*dest = w.span(text)
	}
}

// unique reads by what a job is unique: unique=until, before, during, both or window,
// lockttl=…, runttl=…, key=…, unkeyed, any, conflict=raise, return, reschedule or replace, busy=drop, dead or reschedule.
func (w *world) unique(a *engine.Add) {
	how, conflict := "", ""
	if w.arg("unique", &how); how == "" {
		return
	}
	w.arg("conflict", &conflict)
	u := &a.Unique
	u.Strategy = map[string]uint8{"before": store.UniqueBefore, "during": store.UniqueDuring, "both": store.UniqueBoth, "until": store.UniqueUntil, "window": store.UniqueWindow}[how]
	u.Conflict = map[string]uint8{"raise": store.ConflictRaise, "return": store.ConflictReturn, "reschedule": store.ConflictReschedule, "replace": store.ConflictReplace}[conflict]
	u.Mesh, u.Any, u.Keyed, u.Key, u.ConflictDelay, u.BusyDelay = !w.d.HasArg("own"), w.d.HasArg("any"), true, []byte("k"), 5, 5
	w.arg("lockttl", &u.LockTTL) // s
	w.arg("runttl", &u.RunTTL)   // s
	busy := ""
	w.arg("busy", &busy)
	u.Busy = map[string]uint8{"drop": store.BusyDrop, "dead": store.BusyDead, "reschedule": store.BusyReschedule}[busy]
	key := "k"
	w.arg("key", &key)
	u.Key = []byte(key)
	if w.d.HasArg("unkeyed") {
		u.Keyed, u.Key = false, nil
	}
}

// acquire NODE NAME OWNER [lease=10s] [wait=…] claims a lock for an owner, or for a job: acquire NODE NAME JOB job [any].
func (w *world) acquire() {
	n, name, owner := w.actor(0), w.word(1), w.word(2)
	lease, wait, job := int64(10_000), int64(0), w.d.HasArg("job")
	w.duration("lease", &lease)
	w.duration("wait", &wait)
	n.do(func() {
		if job {
			id, yes := w.ids[owner]
			if !yes {
				id = store.ID{byte(len(w.ids) + 1), 23: 1}
				w.ids[owner], w.jobs[id] = id, owner
			}
			n.e.ClaimLock(store.AppendLockName(nil, store.LockWait, nil, []byte(name)), &id, lease, w.d.HasArg("any"), wait, func(o lock.Result) {
				w.say("  %s: the claim of %s ends: %s", n.name, owner, w.outcome(&o))
			})
			return
		}
		w.ended(n.e.Locks().Acquire(store.AppendBareName(nil, []byte(name)), []byte(owner), lease, wait, owner))
	})
}

func (w *world) ended(o lock.Result, pending *lock.Acquisition) {
	if pending != nil {
		w.say("asks")
		return
	}
	w.say("%s", w.outcome(&o))
}

// extend NODE NAME OWNER TOKEN [lease=10s]; release NODE NAME OWNER TOKEN.
func (w *world) extend(release bool) {
	n, name, owner := w.actor(0), store.AppendBareName(nil, []byte(w.word(1))), []byte(w.word(2))
	token, err := strconv.ParseInt(strings.TrimPrefix(w.word(3), "#"), 10, 64)
	require.NoError(w.t, err)
	lease, absolute := int64(10_000), uint64(dawn)<<20+uint64(token)
	w.duration("lease", &lease)
	n.do(func() {
		if release {
			w.ended(n.e.Locks().Release(name, owner, absolute, string(owner)))
		} else {
			w.ended(n.e.Locks().Extend(name, owner, absolute, lease, string(owner)))
		}
	})
}

// unheard NODE NAME OWNER TOKEN says that the client that was granted the lock had gone.
func (w *world) unheard() {
	n, name, owner := w.actor(0), store.AppendBareName(nil, []byte(w.word(1))), []byte(w.word(2))
	token, err := strconv.ParseInt(strings.TrimPrefix(w.word(3), "#"), 10, 64)
	require.NoError(w.t, err)
	n.do(func() {
		n.e.Locks().Unhear(name, owner, &lock.Result{Kind: lock.Granted, Token: uint64(dawn)<<20 + uint64(token), Kept: w.d.HasArg("kept")})
	})
}

// unlock NODE NAME JOB releases the job's lock.
func (w *world) unlock() {
	n, id := w.actor(0), w.id(2)
	n.do(func() {
		w.say("%v", n.e.FreeLock(store.AppendLockName(nil, store.LockWait, nil, []byte(w.word(1))), &id))
	})
}

// clearlock NODE NAME [prefix] [waiting] clears a bare lock, or with waiting the jobs' waiting lock of the key NAME.
func (w *world) clearLock() {
	n, name := w.actor(0), store.AppendBareName(nil, []byte(w.word(1)))
	if w.d.HasArg("waiting") {
		name = store.AppendLockName(nil, store.LockWait, nil, []byte(w.word(1)))
	}
	n.do(func() {
		count, _, err := n.e.Locks().Clear(name, w.d.HasArg("prefix"), false)
		w.say("%d %v", count, err)
	})
}

// distrust NODE says that the node's table may lack votes.
func (w *world) distrust() {
	n := w.actor(0)
	n.do(n.e.Locks().MarkIncomplete)
}

// lostlock JOB shows at which nodes it is known that a job has lost a lock.
func (w *world) lostLock() {
	id := w.id(0)
	for _, n := range w.nodes {
		w.say("%s: %v", n.name, n.e.LockLost(&id))
	}
}

// locks shows all nodes' tables.
func (w *world) locks() {
	for _, n := range w.nodes {
		if n.down {
			w.say("%s: down", n.name)
			continue
		}
		n.e.SetNow(w.now + n.off)
		var list []*store.Lock
		for cursor := uint64(0); ; {
			if cursor = n.e.Locks().Scan(cursor, &list); cursor == 0 {
				break
			}
		}
		slices.SortFunc(list, func(a, b *store.Lock) int { return strings.Compare(string(a.Name()), string(b.Name())) })
		text := n.name + ":"
		if n.e.Locks().Abstains() {
			text += " abstains"
		}
		for _, l := range list {
			text += " [" + strings.TrimSpace(w.lock(&wire.Lock{
				Name: l.Name(), Owner: l.Owner(), Job: l.Job, Token: l.Token, Left: max(n.e.Locks().Left(l), 0), Flags: l.Flags &^ 16,
			})) + "]"
		}
		if c := n.e.Locks().Acquisitions(); c > 0 {
			text += fmt.Sprintf(" claims %d", c)
		}
		w.say("%s", text)
	}
}

// lockEffect carries out an effect about locks.
func (n *actor) lockEffect(e *engine.Effect) {
	w := n.w
	switch e.Kind {
	case engine.LogLock:
		rec := slices.Clone(n.e.Message(e))
		r, err := store.ParseLock(rec)
		require.NoError(w.t, err)
		if old, err := store.ParseLock(n.locks[string(r.Name)]); err == nil {
			require.GreaterOrEqual(w.t, r.Token, old.Token, "%s logs a lock which the reader of the log passes over: the end of the one before is missing", n.name)
		}
		n.locks[string(r.Name)] = rec
	case engine.LogUnlock:
		name, token := lock.UnlockParts(n.e.Message(e))
		if string(name) == "table" {
			n.table = token
			return
		}
		if r, err := store.ParseLock(n.locks[string(name)]); err == nil && r.Token <= token {
			delete(n.locks, string(name))
		}
		n.floor = max(n.floor, token)
	case engine.KeepVotes:
		n.votes = n.e.Locks().Votes()
		n.keeps = true
	case engine.LockDone:
		w.why = e.Outcome.Why
		w.say("  %s answers %v: %s", n.name, e.Client, w.outcome(e.Outcome))
	case engine.Worked:
		w.say("  %s answers WORKING %v: %v", n.name, e.Client, e.Err)
	}
}

// loadLocks makes a node that restarts load what it logged of locks.
func (n *actor) loadLocks() {
	n.e.Locks().ApplyFloor(n.floor)
	n.e.Locks().ApplyMark(n.table)
	for _, name := range sortedKeys(n.locks) {
		require.NoError(n.w.t, n.e.Locks().Apply(n.locks[name]))
	}
}

func sortedKeys(m map[string][]byte) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
