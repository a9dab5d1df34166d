package engine

import (
	"slices"

	"jobmesh/module/lock"
	"jobmesh/module/store"
)

// EffectKind says what is to be done.
type EffectKind uint8

// The kinds of effect.
const (
	// None: what was to be done has been overtaken by a later effect.
	None EffectKind = iota
	// LogJob: the whole job is to be logged (LOADJOB).
	LogJob
	// LogState: a known job's state has changed (SETJOB).
	LogState
	// LogDelete: the job ID is gone (DELJOB).
	LogDelete
	// LogQueue: a queue's key was made, and no job of the queue is logged with it
	// (MAKEQUEUE). With LogJob the key is made where the log is read.
	LogQueue
	// LogLock: a lock or a vote, [Node.Message] is its record (SETLOCK).
	LogLock
	// LogUnlock: the end of one; [UnlockParts] reads [Node.Message] (DELLOCK).
	LogUnlock
	// LogFlush: all queues are condemned ([Node.ApplyFlush]). The end of their keys is
	// logged as they go.
	LogFlush
	// Touched: the queue has changed, for WATCH and client-side caching.
	Touched
	// Serve: Waiter gets Job.
	Serve
	// Release: Waiter gets Err, or the null array where that is nil.
	Release
	// Promise: Client's ADDJOB is answered by ID.
	Promise
	// Deny: Client's ADDJOB is answered by Err.
	Deny
	// Send: Peer gets [Node.Message].
	Send
	// Connect: a connection to Peer is to be kept.
	Connect
	// Disconnect: Peer is no longer one of the mesh.
	Disconnect
	// Dropped: the job ID of Queue was deleted because its key was busy.
	Dropped
	// NodesChanged: the nodes' file is to be written.
	NodesChanged
	// AnswerWIP: Client's WIP … MESH is answered by WIP.
	AnswerWIP
	// LockDone: Client's LOCK command has come to Outcome.
	LockDone
	// Worked: the lock of the job that Client is working on is extended, or Err says
	// why not, see [Node.Working].
	Worked
	// Released: Client's RELEASEJOB is answered by Nodes.
	Released
	// Cleared: Client's LOCK.CLEAR is answered by Nodes, the number of locks, or by Err.
	Cleared
	// KeepVotes: what [Node.Votes] has is to be written down durably, and
	// [Node.VotesKept] told of it then.
	KeepVotes
	// LeftOut: a unique job was dropped. Err says which, see [Node.SetVerbose].
	LeftOut
)

// Changes says whether the effect stands for a change of what is saved.
func (k EffectKind) Changes() bool { return k >= LogJob && k <= Touched }

// Effect is one thing for the caller to do, in order.
type Effect struct {
	Kind   EffectKind
	ID     store.ID
	Job    *store.Job   // LogJob, LogState; Serve: as it was handed out, it may have ended since
	Queue  *store.Queue // Touched, Dropped, LogQueue
	Waiter *Waiter
	Client any // Promise, Deny: Released, AnswerWIP: what [Node.Tie] was given; LockDone, Worked: what the call was
	WIP    *MeshWIP
	Nodes  int // Released: how many know of it; Cleared: how many locks were held
	Peer   *Peer
	Err    error

	Outcome *lock.Result // LockDone

	from, to int // Send, LogLock, LogUnlock: in the outbox
}

// Effects returns what there is to do since the last call. The slice is
// reused: carry it out before the node is called again. The jobs and queues that it names
// stay where they are until the next SetNow or Effects, even those that are gone
// (reclaim.go).
func (n *Node) Effects() []Effect {
	if len(n.unservedDemand)+len(n.made)+len(n.waiters.told) > 0 || n.locks.LinesWait() || n.store.AnyToPromote() {
		n.conclude()
	}
	e := n.effects
	for i := range e {
		if e[i].Kind == LogJob || e[i].Kind == LogState {
			clearLogged(e[i].Job)
		}
	}
	n.effects = n.effects[:0]
	n.memory.turn()
	n.deps.budget = followMost
	n.sent = true
	return e
}

// conclude does what was put off until the call is over. Few calls put anything off.
func (n *Node) conclude() {
	n.serveDemands()
	n.locks.ServeLines()
	if n.store.AnyToPromote() {
		n.settleKeyQueues()
	}
	n.sendAway()
	if len(n.made) > 0 {
		n.logQueues()
	}
}

// logQueues logs each queue that was made since the last call, where no job of it is
// logged. So a reader of the log has the same keys, whatever is done to keys next: a
// RENAME that finds none there would fail, and the queue that it replaces would stay.
func (n *Node) logQueues() {
	for _, q := range n.made {
		q.Flags |= queueUnlogged
	}
	for i := range n.effects {
		if e := &n.effects[i]; e.Kind == LogJob {
			e.Job.Queue.Flags &^= queueUnlogged
		}
	}
	for _, q := range n.made {
		if q.Flags&queueUnlogged != 0 {
			q.Flags &^= queueUnlogged
			n.effects = append(n.effects, Effect{Kind: LogQueue, Queue: q})
		}
	}
	n.made = n.made[:0]
}

// Unsettled says whether there are effects that weren't taken yet.
func (n *Node) Unsettled() bool { return len(n.effects)+len(n.made) > 0 }

// effect adds an effect, for the caller to fill in at once. It isn't inlined: a command
// has several callers, and its code nearly fills the instruction cache.
//
//go:noinline
func (n *Node) effect(kind EffectKind) *Effect {
	i := len(n.effects)
	if i == cap(n.effects) {
		n.effects = slices.Grow(n.effects, 1)
	}
	n.effects = n.effects[:i+1]
	e := &n.effects[i]
	*e = Effect{} // in place; a literal with a field would be made elsewhere, and copied
	e.Kind = kind
	return e
}

func (n *Node) log(kind EffectKind, j *store.Job) {
	// The log gets the job as it is when the effects are carried out, so one effect is enough.
	// A job that isn't promised isn't in the log yet.
	if n.dummy(j) || j.State == store.StateWaitRepl || j.Flags&store.FlagLogged != 0 {
		return
	}
	setLogged(j)
	n.effect(kind).Job = j
}

func (n *Node) touch(q *store.Queue) {
	if q == n.store.Hidden() || q.DB != 0 {
		return // no key in database 0 has it
	}
	n.effect(Touched).Queue = q
}

// logAnew logs a job whose queue or body has changed, which SETJOB can't say.
func (n *Node) logAnew(j *store.Job) {
	if n.unlog(j) {
		n.effect(LogDelete).ID = j.ID
	}
	n.log(LogJob, j)
}

// unlog takes back what this call was to log of a job, and says whether the log
// has the job from before.
func (n *Node) unlog(j *store.Job) (known bool) {
	if j.Flags&store.FlagLogged == 0 {
		return !n.dummy(j)
	}
	i := len(n.effects) - 1
	for n.effects[i].Job != j || n.effects[i].Kind != LogJob && n.effects[i].Kind != LogState {
		i--
	}
	known = n.effects[i].Kind == LogState
	n.effects[i] = Effect{}
	clearLogged(j)
	return known
}

// remove deletes a job for good.
func (n *Node) remove(j *store.Job) {
	// It isn't logged any more; a job that was never logged need not be deleted from
	// the log. A client that it was handed to in this call gets it all the same.
	if n.unlog(j) {
		n.effect(LogDelete).ID = j.ID
	}
	n.touch(j.Queue)
	n.discard(j)
}

// moved has what is to be logged of a job follow it to where it is now. A client gets it
// as it was when it was handed out: an acknowledged one moves without its body.
func (n *Node) moved(from, to *store.Job) *store.Job {
	if from != to {
		for i := range n.effects {
			if e := &n.effects[i]; e.Job == from && e.Kind != Serve {
				e.Job = to
			}
		}
	}
	return to
}
