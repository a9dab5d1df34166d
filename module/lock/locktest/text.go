package locktest

import (
	"fmt"
	"strings"
	"time"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// How messages are shown. A lock's token is shown as its difference from the script's first token.

var lockKinds = map[wire.Kind]string{
	wire.Claim: "CLAIM", wire.Grant: "GRANT", wire.Deny: "DENY", wire.Unlock: "UNLOCK", wire.Verify: "VERIFY", wire.Verified: "VERIFIED",
	wire.LockPull: "LOCKPULL", wire.LockPage: "LOCKPAGE", wire.ClearLocks: "CLEARLOCKS", wire.LockLost: "LOCKLOST",
}

var meshKinds = map[wire.Kind]string{wire.Heartbeat: "HEARTBEAT", wire.Failed: "FAILED"}

// flagNames lists the flags of messages about locks: each has a meaning of its own in some kinds.
var flagNames = []struct {
	kind wire.Kind
	flag uint8
	name string
}{
	{wire.Claim, wire.Extend, "extend"},
	{wire.Claim, wire.Committed, "proven"},
	{wire.Unlock, wire.Fresh, "fresh"},
	{wire.Unlock, wire.Committed, "proven"},
	{wire.LockPage, wire.Partial, "partial"},
	{wire.LockPage, wire.Told, "told"},
	{wire.ClearLocks, wire.Prefix, "prefix"},
}

var whyNames = [...]string{"", "held", "token low", "not held", "token stale", "abstains", "unproven", "uncounted"}

var outcomeNames = map[lock.ResultKind]string{
	lock.Granted: "granted", lock.Conflict: "conflict", lock.NoQuorum: "no quorum", lock.NotHeld: "not held", lock.Stale: "stale token", lock.Aborted: "aborted",
}

// FirstToken is the token that is shown as #0.
const FirstToken = uint64(Dawn) << lock.TokenShift

// Read returns the message.
func (l Letter) Read() (m wire.Message) {
	if err := m.Parse(l.Bytes); err != nil {
		panic(err)
	}
	return m
}

func (w *World) kindName(k wire.Kind) string { return lockKinds[k] + meshKinds[k] + w.Kinds[k] }

func (l Letter) String() string {
	m, w := l.Read(), l.From.W
	text := fmt.Sprintf("%s->%s %s", l.From.Name, l.To.Name, w.kindName(m.Kind))
	switch {
	case lockKinds[m.Kind] != "":
		return text + w.lockText(&m)
	case meshKinds[m.Kind] != "":
		return text + w.meshText(&m)
	}
	return text + w.Text(l, &m)
}

// ShownName is a lock's name without its space, and its slot if that isn't 0.
func ShownName(name []byte) string {
	slot, base := store.SlotName(name)
	if slot == 0 {
		return string(base[1:])
	}
	return fmt.Sprintf("%s/%d", base[1:], slot)
}

// JobName is the script's name of a job.
func (w *World) JobName(id store.ID) string {
	if name := w.Jobs[id]; name != "" {
		return name
	}
	return "it" // the job that is just being added
}

// meshText shows a message about nodes.
func (w *World) meshText(m *wire.Message) (text string) {
	for i := range m.Peers {
		text += fmt.Sprintf(" %s:%s", w.ByID(m.Peers[i].ID).Name, healthNames[m.Peers[i].State])
	}
	if m.Flags&wire.Leaving != 0 {
		text += " leaving"
	}
	if m.Flags&wire.Full != 0 {
		text += " full"
	}
	return text
}

// Token shows a token.
func Token(t uint64) string {
	if t == 1 {
		return "#1" // no lock has this token
	}
	return fmt.Sprint("#", int64(t-FirstToken))
}

func (w *World) lockOf(l *wire.Lock) string {
	text := ""
	if len(l.Name) > 0 {
		text += " " + ShownName(l.Name)
	}
	if l.Token > 0 {
		text += " " + Token(l.Token)
	}
	switch {
	case l.Job != wire.JobID{}:
		text += " for " + w.JobName(l.Job)
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
func (w *World) lockText(m *wire.Message) string {
	text := ""
	for _, f := range flagNames {
		if m.Kind == f.kind && m.Flags&f.flag != 0 {
			text += " " + f.name
		}
	}
	switch m.Kind {
	case wire.Deny:
		text += " " + whyNames[m.Count]
	case wire.Verified:
		text += [...]string{"", " lives", " gone", " done"}[m.Count]
	}
	if m.ID != (wire.JobID{}) {
		text += " " + w.JobName(m.ID)
	}
	k := m.Lock
	if m.Kind == wire.Claim && k.Left > 0 {
		k.Left = 0
		text += " again"
	}
	switch m.Kind {
	case wire.Verify, wire.Verified:
		k.Left = 0 // this is the question's number
	case wire.Unlock:
		if times := k.Times(); times > 0 {
			text += fmt.Sprintf(" returns=%d", times-1)
		}
		k.Left = 0
	}
	if m.Kind == wire.Verified && k.Lease > 0 {
		whole := "whole"
		if k.Lease < store.MaxLease {
			whole = fmt.Sprint("whole for ", time.Duration(k.Lease)*time.Millisecond)
		}
		k.Lease = 0
		text += w.lockOf(&k) + " " + whole
	} else {
		text += w.lockOf(&k)
	}
	for i := range m.Locks {
		text += " [" + strings.TrimSpace(w.lockOf(&m.Locks[i])) + "]"
	}
	return text
}

func (w *World) outcome(o *lock.Result) string {
	text := outcomeNames[o.Kind]
	switch {
	case o.Kind == lock.Granted:
		text += " " + Token(o.Token)
		if o.Slot > 0 {
			text += fmt.Sprintf(" slot %d", o.Slot)
		}
	case o.Kind == lock.Conflict && o.Job != store.ID{}:
		text += " with " + w.JobName(o.Job)
	case o.Kind == lock.Conflict && o.Owner != nil:
		text += " with " + string(o.Owner)
	}
	return text
}
