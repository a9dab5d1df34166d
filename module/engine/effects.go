package engine

import (
	"fmt"
	"slices"

	"jobmesh/module/entries"
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
	// LogMove: a known job is in another queue (SETJOB with the queue's name). Its body is the same.
	LogMove
	// LogDelete: the job named by ID is gone (DELJOB).
	LogDelete
	// LogDrop: the job named by ID doesn't wait any more for another, whose ID is [Node.Message]; it still waits for others. (SETJOB with a
	// whole record would say so, too, with all that are left: with many jobs that wait for many, that is their square.)
	LogDrop
	// LogQueue: a queue's key was made, and no job of the queue is logged with it
	// (MAKEQUEUE). A LogJob or LogMove makes the key, too, where the log is read.
	LogQueue
	// LogLock: a lock or a vote is to be logged. [Node.Message] is its record (SETLOCK).
	LogLock
	// LogUnlock: the end of a lock or a vote is to be logged. [UnlockParts] reads
	// [Node.Message] (DELLOCK).
	LogUnlock
	// LogFlush: all queues are condemned ([Node.ApplyFlush]). The end of each key is logged
	// when the key goes.
	LogFlush
	// LogEntry: an entry that all nodes are to know alike is to be logged, and carried out
	// (QCONFIG RESTORE). If Lost isn't nil, that one doesn't count any more, though the maker of
	// Entry didn't know it. If Entry is nil, Lost was told of, and doesn't count.
	LogEntry
	// Touched: the queue has changed, for WATCH and client-side caching.
	Touched
	// Serve: Waiter gets Job. If it gets several jobs (COUNT), their effects follow each other.
	Serve
	// Release: Waiter gets Err, or the null array if Err is nil.
	Release
	// Promise: Client's ADDJOB is answered by ID.
	Promise
	// Deny: Client's ADDJOB is answered by Err.
	Deny
	// AnswerBatch: the Client of the [*Batch] in Client has all answers to its ADDJOBS.
	AnswerBatch
	// Send: Peer gets [Node.Message].
	Send
	// Connect: a connection to Peer is to be kept.
	Connect
	// Disconnect: Peer is no longer one of the mesh.
	Disconnect
	// Happened: an event is to be told, see [Happening].
	Happened
	// NodesChanged: the nodes' file is to be written.
	NodesChanged
	// AnswerMesh: Client's command with MESH is answered by Answer.
	AnswerMesh
	// LockDone: Client's LOCK command is answered by Outcome.
	LockDone
	// Worked: the lock of the job that Client is working on is extended, or Err says
	// why not, see [Node.Working].
	Worked
	// Released: Client's RELEASEJOB is answered by Nodes.
	Released
	// Cleared: Client's LOCK.CLEAR is answered by Nodes, the number of locks, or by Err.
	Cleared
	// KeepVotes: the caller is to store durably what [lock.Node.Votes] returns, and then call
	// [lock.Node.VotesKept].
	KeepVotes
	// LeftOut: a unique job was dropped. Err says which, see [Node.SetVerbose].
	LeftOut
	// Warn: Err is to be logged for the operator.
	Warn
	// Publish: the [*Publication] in Client is to be published to this server's subscribers.
	Publish
)

// Changes says whether the effect stands for a change of what is saved.
func (k EffectKind) Changes() bool { return k >= LogJob && k <= Touched }

// logsJob says whether the effect logs what its Job is like.
func (k EffectKind) logsJob() bool { return k == LogJob || k == LogState || k == LogMove }

// Effect is one thing for the caller to do, in order.
type Effect struct {
	Kind   EffectKind
	ID     store.ID
	Job    *store.Job   // LogJob, LogState, LogMove; Serve: the job as it was handed out, though it may have ended since
	Queue  *store.Queue // Touched, LogQueue
	Waiter *Waiter
	Client any // Promise, Deny, Released, AnswerMesh: the client that [Node.Tie] named; AnswerBatch: the *Batch; Happened: the *Happening; LockDone, Worked: what the call was given; Publish: a *Publication
	Answer *MeshAnswer
	Nodes  int // Released: how many nodes know of the release; Cleared: how many locks were held
	Peer   *Peer
	Err    error

	Outcome *lock.Result // LockDone

	Entry, Lost *entries.Entry // LogEntry

	from, to int // Send, LogLock, LogUnlock, LogDrop: where the message is in the outbox
}

// Effects returns the effects since the last call. The slice is reused: carry them out
// before the node is called again. The memory of the jobs and queues that they name stays
// valid until the next SetNow or Effects, even if those are gone (reclaim.go).
func (n *Node) Effects() []Effect {
	if len(n.unservedDemand)+len(n.made)+len(n.waiters.told) > 0 || n.jobWaits.anyToTell() || n.locks.LinesWait() || n.store.AnyToPromote() {
		n.conclude()
	}
	if n.wants(EventDeliver) {
		n.nameWorkers()
	}
	e := n.effects
	for i := range e {
		if e[i].Kind.logsJob() {
			clearLogged(e[i].Job)
		}
	}
	n.effects, n.touched = n.effects[:0], nil
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
		n.advanceKeyQueues()
	}
	if n.jobWaits.anyToTell() {
		n.tellEnds()
	}
	n.sendAway()
	if len(n.made) > 0 {
		n.logQueues()
	}
}

// logQueues logs each queue that was made since the last call, unless a job of it is
// logged. So a reader of the log has the same keys. Without that a RENAME that comes next
// in the log would find no key and fail, and the queue that it replaces would stay.
func (n *Node) logQueues() {
	for _, q := range n.made {
		q.Flags |= queueUnlogged
	}
	for i := range n.effects {
		if e := &n.effects[i]; e.Kind == LogJob || e.Kind == LogMove {
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

// HasEffects says whether there are effects that weren't taken yet.
func (n *Node) HasEffects() bool { return len(n.effects)+len(n.made) > 0 }

// effect adds an effect, for the caller to fill in at once. It isn't inlined: a command calls
// it at several places, and the command's code nearly fills the instruction cache.
//
//go:noinline
func (n *Node) effect(kind EffectKind) *Effect {
	i := len(n.effects)
	if i == cap(n.effects) {
		n.effects = slices.Grow(n.effects, 1)
	}
	n.effects = n.effects[:i+1]
	e := &n.effects[i]
	*e = Effect{} // cleared in place: a literal with a field would be made elsewhere, and copied
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

// logDrop logs that a job that waits for several doesn't wait for one of them any more.
func (n *Node) logDrop(j *store.Job, id *store.ID) {
	if n.dummy(j) || j.State == store.StateWaitRepl || j.Flags&store.FlagLogged != 0 {
		return
	}
	from := len(n.outbox)
	n.outbox = append(n.outbox, id[:]...)
	e := n.effect(LogDrop)
	e.ID, e.from, e.to = j.ID, from, len(n.outbox)
}

func (n *Node) touch(q *store.Queue) {
	if q == n.store.Hidden() || q.DB != 0 || q == n.touched {
		return // no key in database 0 has it, or an effect of this call tells it already
	}
	n.touched = q
	n.effect(Touched).Queue = q
}

// logAnew logs a job whose body has changed, or what else SETJOB can't say.
func (n *Node) logAnew(j *store.Job) {
	if n.unlog(j) {
		n.effect(LogDelete).ID = j.ID
	}
	n.log(LogJob, j)
}

// logMove logs a job that is in another queue.
func (n *Node) logMove(j *store.Job) {
	kind := LogMove
	if !n.unlog(j) {
		kind = LogJob
	}
	n.log(kind, j)
}

// unlog takes back the effect of this call that logs a job, if there is one. It says whether
// the log has the job from before.
func (n *Node) unlog(j *store.Job) (known bool) {
	if j.Flags&store.FlagLogged == 0 {
		return !n.dummy(j)
	}
	i := len(n.effects) - 1
	for n.effects[i].Job != j || !n.effects[i].Kind.logsJob() {
		i--
	}
	known = n.effects[i].Kind != LogJob
	n.effects[i] = Effect{}
	clearLogged(j)
	return known
}

// remove deletes a job for good.
func (n *Node) remove(j *store.Job) {
	// The job isn't logged any more. One that was never logged need not be deleted from
	// the log. A client to which this call handed the job gets it all the same.
	if n.unlog(j) {
		n.effect(LogDelete).ID = j.ID
	}
	if n.isMissed(j) {
		n.forgetsEarly(j)
	}
	n.touch(j.Queue)
	n.discard(j)
}

// moved makes the effects that log a job name its new address, and returns that. A Serve effect
// keeps the old one, because a client gets the job as it was handed out: an acknowledged job
// moves without its body.
func (n *Node) moved(from, to *store.Job) *store.Job {
	if from == to || to.Flags&store.FlagLogged == 0 {
		return to
	}
	for i := len(n.effects) - 1; i >= 0; i-- { // one effect names it; a call may have very many
		if e := &n.effects[i]; e.Job == from && e.Kind != Serve {
			e.Job = to
			break
		}
	}
	return to
}

// warn tells the operator, by the server's log, of what goes wrong again and again: once a minute at most.
func (n *Node) warn(format string, args ...any) {
	const each = 60_000
	if now := n.monotonic(); n.warned == 0 || now-n.warned >= each {
		n.warned = max(now, 1)
		n.effects = append(n.effects, Effect{Kind: Warn, Err: fmt.Errorf(format, args...)})
	}
}
