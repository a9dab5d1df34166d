package lock

import (
	"cmp"
	"slices"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// The holder of a bare lock may claim it anew by a greater token, through a node that doesn't know
// of the one that he has. A vote for him is raised to that token. Where the claim fails, he has
// the lock by the token before still: so the vote goes back to that.

const (
	raisedMost = 10_000 // votes; of another one the greater token stays
	beforeMost = 8      // tokens of each
)

// raised is what a vote goes back to. It counts as long as the vote has this token; a
// restart forgets it.
type raised struct {
	token  uint64
	before []before // ascending
}

// before is a token that a vote had before.
type before struct {
	token        uint64
	lease, until int64 // as the vote had them, see store.Lock
	flags        uint8 // FlagRenewed, FlagUnconfirmed
}

// unraised forgets that, as the holder counts on the token that the vote has, or the vote ends.
func (n *Node) unraised(name []byte) {
	if n.raised.Len() > 0 {
		n.raised.Remove(string(name))
	}
}

// raisedOf is what a vote goes back to; nil: it wasn't raised.
func (n *Node) raisedOf(l *store.Lock) *raised {
	if n.raised.Len() == 0 {
		return nil
	}
	if r := n.raised.Get(string(l.Name())); r != nil && r.token == l.Token {
		return r
	}
	return nil
}

// raise gives a bare lock's vote the greater token of a new claim for its holder.
func (n *Node) raise(l *store.Lock, token uint64) {
	for range 2 { // so that it gets shorter
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
		had.flags &^= FlagRenewed // he has that by what was before, if by anything
	}
	r := n.raised.Get(string(l.Name()))
	r.add(had)
	r.token, l.Token = token, token
}

// beforeOf is what a vote goes back to that is raised now.
func beforeOf(l *store.Lock) before {
	return before{l.Token, l.Lease, l.Until, l.Flags & (FlagRenewed | FlagUnconfirmed)}
}

// add keeps a token in its place. Where there are too many the vote goes back to the oldest no more:
// it stays by the next one, for as long.
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

// lengthen has it last as long as another node's vote by that token, if that is longer.
func (b *before) lengthen(lease, until int64) {
	if b.until != 0 && (until == 0 || until > b.until) {
		b.lease, b.until = lease, until
	}
}

// learnRaised learns a vote by another token, older or later, for the holder of this one. When the
// later claim fails the vote goes back to the older token, and lasts as long as that vote does.
func (n *Node) learnRaised(l *store.Lock, e *wire.Lock, until int64) {
	had, later := beforeOf(l), e.Token
	if e.Token < l.Token {
		had, later = before{e.Token, e.Lease, until, FlagUnconfirmed}, l.Token
	}
	n.raise(l, later)
	r := n.raised.Get(string(l.Name()))
	r.before = append(r.before[:0], had)
}

// learnBefore learns a vote by a token that this one may go back to. False: it can't.
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

// raiseAgain gives it the token of a later attempt of the claim that it has voted for.
func (n *Node) raiseAgain(l *store.Lock, token uint64) {
	if r := n.raisedOf(l); r != nil {
		r.token = token
	}
	l.Token = token
}

// fallBack takes back what a claim has raised that failed. False where nothing is left: the holder
// has given up what he had before, too, or had nothing.
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
		had.lengthen(older.lease, older.until) // the vote that he counts on may be one of these
	}
	flags := l.Flags&^(FlagRenewed|FlagUnconfirmed) | had.flags
	if last > 0 {
		flags |= FlagRenewed
	}
	if l.Flags&flagLogged != 0 {
		n.logEnd(l.Name(), l.Token) // who reads the log passes a smaller one over
	}
	n.SetFlags(l, flags)
	l.Token, l.Lease, l.Until = had.token, had.lease, had.until
	n.Note(l)
	n.Log(l)
	return true
}

// unraise hears that a holder has given a token up that a vote had before.
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

// keptForNothing is for a vote that was raised, and whose holder has none of the tokens before.
func (n *Node) keptForNothing(l *store.Lock) {
	n.raised.Remove(string(l.Name()))
	n.SetFlags(l, l.Flags&^FlagRenewed)
}

// clearRaised has a vote not go back to what was cleared, up to this token.
func (n *Node) clearRaised(l *store.Lock, upTo uint64) {
	if r := n.raisedOf(l); r != nil {
		r.before = slices.DeleteFunc(r.before, func(b before) bool { return b.token <= upTo })
	}
}
