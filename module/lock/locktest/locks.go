package locktest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// bareName is the full name of the bare lock that the i-th word names.
func (w *World) bareName(i int) []byte { return store.AppendBareName(nil, []byte(w.Word(i))) }

// waitName is the full name of the waiting lock of the key that the i-th word names.
func (w *World) waitName(i int) []byte {
	return store.AppendLockName(nil, store.LockWait, nil, []byte(w.Word(i)))
}

// tokenAt is the token that the i-th word shows.
func (w *World) tokenAt(i int) uint64 {
	token, err := strconv.ParseInt(strings.TrimPrefix(w.Word(i), "#"), 10, 64)
	require.NoError(w.T, err)
	return FirstToken + uint64(token)
}

// acquire NODE NAME OWNER [lease=10s] [wait=…] [limit=n] claims a lock, or one of n slots of it, for an owner, or for a job: acquire NODE NAME JOB job [any].
func (w *World) acquire() {
	n, owner := w.Actor(0), w.Word(2)
	lease, wait := int64(10_000), int64(0)
	w.duration("lease", &lease)
	w.duration("wait", &wait)
	limit := 1
	w.Arg("limit", &limit)
	n.Do(func() {
		if !w.D.HasArg("job") {
			w.ended(n.Node.Locks().AcquireSlot(w.bareName(1), []byte(owner), lease, wait, limit, owner))
			return
		}
		id := w.NamedJob(owner)
		then := func(o lock.Result) { w.Say("  %s: the claim of %s ends: %s", n.Name, owner, w.outcome(&o)) }
		now, _ := n.Node.Locks().AcquireFor(lock.ForJob{Name: w.waitName(1), Slots: limit, Job: id, Lease: lease, Any: w.D.HasArg("any"), Timeout: wait}, then)
		if now != nil {
			then(*now)
		}
	})
}

// NamedJob returns the ID of the job of that name. A name that is new is for a job that no node knows yet.
func (w *World) NamedJob(name string) store.ID {
	id, yes := w.IDs[name]
	if !yes {
		id = store.ID{byte(len(w.IDs) + 1), 23: 1}
		w.IDs[name], w.Jobs[id] = id, name
	}
	return id
}

func (w *World) ended(o lock.Result, pending *lock.Acquisition) {
	if pending != nil {
		w.Say("asks")
		return
	}
	w.Say("%s", w.outcome(&o))
}

// extend NODE NAME OWNER TOKEN [lease=10s]; letgo NODE NAME OWNER TOKEN.
func (w *World) extend(release bool) {
	n, name, owner, token := w.Actor(0), w.bareName(1), w.Word(2), w.tokenAt(3)
	lease := int64(10_000)
	w.duration("lease", &lease)
	n.Do(func() {
		if release {
			w.ended(n.Node.Locks().Release(name, []byte(owner), token, owner))
		} else {
			w.ended(n.Node.Locks().Extend(name, []byte(owner), token, lease, owner))
		}
	})
}

// unheard NODE NAME OWNER TOKEN says that the client that was granted the lock had gone.
func (w *World) unheard() {
	n, name, owner, token := w.Actor(0), w.bareName(1), []byte(w.Word(2)), w.tokenAt(3)
	n.Do(func() {
		n.Node.Locks().Unhear(name, owner, &lock.Result{Kind: lock.Granted, Token: token, Kept: w.D.HasArg("kept")})
	})
}

// unlock NODE NAME JOB releases the job's lock.
func (w *World) unlock() {
	n, id := w.Actor(0), w.Job(2)
	n.Do(func() { w.Say("%v", n.Node.Locks().Free(w.waitName(1), &id)) })
}

// clearlock NODE NAME [prefix] [waiting] clears a bare lock, or with waiting the jobs' waiting lock of the key NAME.
func (w *World) clearLock() {
	n, name := w.Actor(0), w.bareName(1)
	if w.D.HasArg("waiting") {
		name = w.waitName(1)
	}
	n.Do(func() {
		count, _, err := n.Node.Locks().Clear(name, w.D.HasArg("prefix"), false)
		w.Say("%d %v", count, err)
	})
}

// distrust NODE says that the node's table may lack votes.
func (w *World) distrust() {
	n := w.Actor(0)
	n.Do(n.Node.Locks().MarkIncomplete)
}

// locks shows all nodes' tables.
func (w *World) locks() {
	for _, n := range w.Nodes {
		if n.Down {
			w.Say("%s: down", n.Name)
			continue
		}
		n.Node.SetNow(w.Now + n.Off)
		locks := n.Node.Locks()
		var list []*store.Lock
		for cursor := uint64(0); ; {
			if cursor = locks.Scan(cursor, &list); cursor == 0 {
				break
			}
		}
		slices.SortFunc(list, func(a, b *store.Lock) int { return strings.Compare(string(a.Name()), string(b.Name())) })
		text := n.Name + ":"
		if locks.Abstains() {
			text += " abstains"
		}
		for _, l := range list {
			text += " [" + strings.TrimSpace(w.lockOf(&wire.Lock{
				Name: l.Name(), Owner: l.Owner(), Job: l.Job, Token: l.Token, Left: max(locks.Left(l), 0), Flags: l.Flags &^ lock.FlagForeign,
			})) + "]"
		}
		if c := locks.Acquisitions(); c > 0 {
			text += fmt.Sprintf(" claims %d", c)
		}
		w.Say("%s", text)
	}
}

// --- a node's log, and its answers -------------------------------------------------

// LogLock writes a lock into a node's log.
func (n *Actor) LogLock(record []byte) {
	record = slices.Clone(record)
	r, err := store.ParseLock(record)
	require.NoError(n.W.T, err)
	if old, err := store.ParseLock(n.locks[string(r.Name)]); err == nil {
		require.GreaterOrEqual(n.W.T, r.Token, old.Token, "%s logs a lock which the reader of the log passes over: the end of the one before is missing", n.Name)
	}
	n.locks[string(r.Name)] = record
}

// LogUnlock writes the end of a lock into a node's log.
func (n *Actor) LogUnlock(name []byte, token uint64) {
	if string(name) == "table" {
		n.table = token
		return
	}
	if r, err := store.ParseLock(n.locks[string(name)]); err == nil && r.Token <= token {
		delete(n.locks, string(name))
	}
	n.floor = max(n.floor, token)
}

// KeepVotes writes down what a node is to remember of its votes, and then tells the node.
func (n *Actor) KeepVotes() { n.votes, n.keeps = n.Node.Locks().Votes(), true }

// Answers shows the outcome of a client's acquisition.
func (n *Actor) Answers(client any, o *lock.Result) {
	n.W.why = o.Why
	n.W.Say("  %s answers %v: %s", n.Name, client, n.W.outcome(o))
}

// LoadLocks makes a node load what it logged of locks.
func (n *Actor) LoadLocks() {
	locks := n.Node.Locks()
	locks.ApplyFloor(n.floor)
	locks.ApplyMark(n.table)
	for _, name := range slices.Sorted(maps.Keys(n.locks)) {
		require.NoError(n.W.T, locks.Apply(n.locks[name]))
	}
}

// CopyLog gives a node the log of locks of another, as a replica has it.
func (n *Actor) CopyLog(other *Actor) {
	n.locks, n.floor, n.table = maps.Clone(other.locks), other.floor, other.table
}
