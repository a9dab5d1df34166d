package engine

import (
	"jobmesh/module/lock"
	"jobmesh/module/store"
)

// Backoff: a node that couldn't have a lock of a key doesn't ask for it again for a while.

// Times, ms.
const (
	backoffFirstMS = 4   // first backoff of a key that was taken elsewhere,
	backoffLastMS  = 500 // which doubles up to here
	backoffKeptMS  = 5_000
	backoffSplitMS = 8_000 // the longest backoff after split votes: several nodes got some, and none a majority
)

type backoff struct {
	until  int64 // monotonic, ms
	tries  int
	splits int   // how often the votes were split
	split  int64 // how long it took to learn of the last split, ms
	over   bool  // it is over, and the jobs that wait for the key were woken
}

// backOff keeps this node from asking for a key for a while, after it couldn't be had. o is how the
// acquisition ended, or nil. An acquisition that took long gets the longest backoff, so that jobs that
// weren't asked for meanwhile have their turn.
//
// If several nodes ask for a key at a time, and none gets enough votes, each backs off for longer each time,
// until one asks alone. When the key becomes free, the count of such splits doesn't begin anew.
func (n *Node) backOff(name string, o *lock.Result) {
	r := n.uniqueMesh.backoffs[name]
	if r == nil {
		r = &backoff{}
		n.uniqueMesh.backoffs[name] = r
	}
	now := n.monotonic()
	span := min(int64(backoffFirstMS)<<min(r.tries, 10), backoffLastMS)
	switch r.tries++; {
	case o == nil:
	case o.IsSplit():
		r.splits, r.split = r.splits+1, max(now-o.Began, backoffFirstMS)
	case o.Kind == lock.Conflict:
		r.splits = max(r.splits-1, 0)
	case o.Began > 0 && now-o.Began >= lock.ResendMS:
		span = backoffLastMS
	}
	span = max(span, r.afterSplit())
	span += n.below(span)
	r.until, r.over = now+span, false
	n.locks.Await([]byte(name), r.until)
}

// afterSplit is how long a key is backed off at least after the votes were split, ms.
func (r *backoff) afterSplit() int64 {
	if r.splits == 0 {
		return 0
	}
	return min(r.split<<min(r.splits-1, 10), backoffSplitMS)
}

// isBackedOff says whether a key isn't to be asked for now: it was refused just before, or this node still
// awaits answers.
func (n *Node) isBackedOff(name []byte) bool {
	if len(n.uniqueMesh.runs)+len(n.uniqueMesh.backoffs) == 0 {
		return false
	}
	if _, yes := n.uniqueMesh.runs[string(name)]; yes {
		return true
	}
	r := n.uniqueMesh.backoffs[string(name)]
	return r != nil && r.until > n.monotonic()
}

// ResetBackoff ends a key's backoff, since the key may be free. After split votes it picks a new time at
// random instead.
func (o *owners) ResetBackoff(name []byte) {
	_, name = store.SlotName(name)
	r := o.uniqueMesh.backoffs[string(name)]
	if r == nil {
		return
	}
	r.tries = 0
	if span := r.afterSplit(); span > 0 {
		now := o.node().monotonic()
		at := now + o.node().below(span)
		if r.until > now {
			at = min(at, r.until)
		}
		r.until, r.over = at, false
		o.locks.Await(name, at)
		return
	}
	r.until, r.over = 0, true
	o.store.WakeKeyQueues(name)
}

// BackoffOver looks at a key's backoff when a deadline has passed. It returns true if the key may be asked
// for again. A backoff is forgotten if the key isn't asked for within backoffKeptMS of its end.
func (o *owners) BackoffOver(name []byte) (woken bool) {
	r := o.uniqueMesh.backoffs[string(name)]
	now := o.node().monotonic()
	switch {
	case r == nil:
	case r.until > now:
		o.locks.Await(name, r.until)
	case !r.over:
		r.over = true
		o.store.WakeKeyQueues(name)
		o.locks.Await(name, now+backoffKeptMS)
		return true
	case now-r.until >= backoffKeptMS:
		delete(o.uniqueMesh.backoffs, string(name))
	default:
		o.locks.Await(name, r.until+backoffKeptMS)
	}
	return false
}

// HasBackoff says whether this node remembers a backoff of a key.
func (o *owners) HasBackoff(name string) bool { return o.uniqueMesh.backoffs[name] != nil }
