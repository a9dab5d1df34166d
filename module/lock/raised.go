package lock

import (
	"cmp"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// The holder of a bare lock may acquire it again by a greater token, through a node that doesn't know its present one.
// A voter raises its vote for the holder to the greater token. If that acquisition fails, the holder still has the lock
// by the token before: so the vote falls back to it.

const (
	raisedMost = 10_000 // votes that are remembered as raised; others keep the greater token
	beforeMost = 8      // earlier tokens of each
)

// raised is what a vote falls back to. It counts while the vote has this token. A restart forgets it.
type raised struct {
	token  uint64
	before []before // ascending
}

// before is a token that a vote had before it was raised.
type before struct {
	token        uint64
	lease, until int64 // as the vote had them, see store.Lock
	flags        uint8 // FlagRenewed, FlagUnconfirmed
}

// unraised forgets what a vote falls back to: the holder counts on the vote's present token, or the vote ends.
func (n *Node) unraised(name []byte) {
	if n.raised.Len() > 0 {
		n.raised.Remove(string(name))
	}
}

// raisedOf is what a vote falls back to; nil: it wasn't raised.
func (n *Node) raisedOf(l *store.Lock) *raised {
	if n.raised.Len() == 0 {
		return nil
	}
	if r := n.raised.Get(string(l.Name())); r != nil && r.token == l.Token {
		return r
	}
	return nil
}

// Renewed says whether the holder of a vote is known to have had the lock before it was given the vote's token. For a
// vote that can fall back, that isn't known.
func (n *Node) Renewed(l *store.Lock) bool { return l.Flags&FlagRenewed != 0 && n.raisedOf(l) == nil }

// raise gives a bare lock's vote the greater token of a new acquisition for its holder.
func (n *Node) raise(l *store.Lock, token uint64) {
	for range 2 { // two for each new one, so that the roster can shrink
		if n.raised.Len() == 0 {
			break
		}
		name, r := n.raised.Next()
		if old := n.Live([]byte(name)); old == nil || old.Token != r.token || n.raised.Len() >= raisedMost {
			n.raised.Remove(name)
		}
	}
	had := beforeOf(l)
	if n.raisedOf(l) == nil {
		n.raised.Put(string(l.Name()), raised{})
	} else {
		had.flags &^= FlagRenewed // the vote has this flag since it was raised before; fallBack sets it while the list has an earlier token
	}
	r := n.raised.Get(string(l.Name()))
	r.add(had)
	r.token, l.Token = token, token
}

// beforeOf is what a vote falls back to if it is raised now.
func beforeOf(l *store.Lock) before {
	return before{l.Token, l.Lease, l.Until, l.Flags & (FlagRenewed | FlagUnconfirmed)}
}

// add inserts a token in its place. If there are too many tokens, the vote doesn't fall back to the oldest any more: it
// falls back to the next one, and lasts as long as by the oldest.
func (r *raised) add(had before) {
	at, _ := slices.BinarySearchFunc(r.before, had.token, func(b before, token uint64) int { return cmp.Compare(b.token, token) })
	r.before = slices.Insert(r.before, at, had)
	if len(r.before) > beforeMost {
		oldest := r.before[0]
		r.before = slices.Delete(r.before, 0, 1)
		r.before[0].flags |= FlagRenewed
		r.before[0].lengthen(oldest.lease, oldest.until)
	}
}

// lengthen makes b last as long as another vote for the holder, if that one lasts longer.
func (b *before) lengthen(lease, until int64) {
	if b.until != 0 && (until == 0 || until > b.until) {
		b.lease, b.until = lease, until
	}
}

// learnRaised learns a vote for the holder of l by another token, older or later. If the acquisition of the later token
// fails, the vote falls back to the older token, and lasts as long as the older vote does.
func (n *Node) learnRaised(l *store.Lock, e *wire.Lock, until int64) {
	n.raise(l, max(l.Token, e.Token))
	if e.Token < l.Token {
		r := n.raised.Get(string(l.Name()))
		r.before = append(r.before[:0], before{e.Token, e.Lease, until, FlagUnconfirmed | e.Flags&FlagRenewed})
	}
}

// learnBefore learns a vote by a token to which this one may fall back. False: it can't.
func (n *Node) learnBefore(l *store.Lock, e *wire.Lock, until int64) bool {
	r := n.raisedOf(l)
	if r == nil || e.Token >= l.Token {
		return false
	}
	for i := range r.before {
		if b := &r.before[i]; b.token == e.Token {
			b.lengthen(e.Lease, until)
			return true
		}
	}
	r.add(before{e.Token, e.Lease, until, FlagUnconfirmed | e.Flags&FlagRenewed})
	return true
}

// raiseAgain gives a vote the token of a later round of the acquisition for which it was given.
func (n *Node) raiseAgain(l *store.Lock, token uint64) {
	if r := n.raisedOf(l); r != nil {
		r.token = token
	}
	l.Token = token
}

// fallBack undoes what a failed acquisition has raised. False: there is nothing to fall back to. The vote wasn't
// raised, or its holder had nothing before, or has given that up, too.
func (n *Node) fallBack(l *store.Lock) bool {
	r := n.raisedOf(l)
	if r == nil {
		return false
	}
	last := len(r.before) - 1
	if last < 0 {
		n.keptForNothing(l)
		return false
	}
	had := r.before[last]
	if r.token, r.before = had.token, r.before[:last]; last == 0 {
		n.raised.Remove(string(l.Name()))
	}
	for _, older := range r.before[:last] {
		had.lengthen(older.lease, older.until) // the holder may count on one of these votes
	}
	flags := l.Flags&^(FlagRenewed|FlagUnconfirmed) | had.flags
	if last > 0 {
		flags |= FlagRenewed
	}
	if l.Flags&flagLogged != 0 {
		n.logEnd(l.Name(), l.Token) // otherwise a reader of the log skips the smaller token
	}
	n.SetFlags(l, flags)
	l.Token, l.Lease, l.Until = had.token, had.lease, had.until
	n.Note(l)
	n.Log(l)
	return true
}

// unraise notes that the holder has given up a token that the vote had before.
func (n *Node) unraise(l *store.Lock, token uint64, flags uint8) {
	if r := n.raisedOf(l); r != nil {
		r.before = slices.DeleteFunc(r.before, func(b before) bool {
			return b.token == token && (flags&wire.Fresh == 0 || b.flags&FlagRenewed == 0) || b.token < token && flags&wire.Committed != 0
		})
		if len(r.before) == 0 {
			n.keptForNothing(l)
		}
	}
}

// keptForNothing is for a raised vote whose holder has none of the earlier tokens any more.
func (n *Node) keptForNothing(l *store.Lock) {
	n.raised.Remove(string(l.Name()))
	n.SetFlags(l, l.Flags&^FlagRenewed)
}

// clearRaised removes the tokens that were cleared, up to this one, so that the vote doesn't fall back to them.
func (n *Node) clearRaised(l *store.Lock, upTo uint64) {
	if r := n.raisedOf(l); r != nil {
		r.before = slices.DeleteFunc(r.before, func(b before) bool { return b.token <= upTo })
	}
}
