package engine

import "jobmesh/module/store"

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
	// LogLock: a lock or a vote, [Node.Message] is its record (SETLOCK).
	LogLock
	// LogUnlock: the end of one; [UnlockParts] reads [Node.Message] (DELLOCK).
	LogUnlock
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
	// KeepVotes: what [Node.Votes] has is to be written down durably, and
	// [Node.VotesKept] told of it then.
	KeepVotes
)

// Changes says whether the effect stands for a change of what is saved.
func (k EffectKind) Changes() bool { return k >= LogJob && k <= Touched }

// Effect is one thing for the caller to do, in order.
type Effect struct {
	Kind   EffectKind
	ID     store.ID
	Job    *store.Job   // LogJob, LogState, Serve; valid until the next call
	Queue  *store.Queue // Touched
	Waiter *Waiter
	Client any // Promise, Deny: what [Node.Adder] was given; AnswerWIP; LockDone, Worked: what the call was
	WIP    *MeshWIP
	Nodes  int // Released: how many know of it
	Peer   *Peer
	Err    error

	Outcome *Outcome // LockDone

	from, to int // Send, LogLock, LogUnlock: in the outbox
}

// Effects returns what there is to do since the last call. The slice is
// reused: carry it out before the node is called again.
func (n *Node) Effects() []Effect {
	n.serveLines()
	if n.store.AnyHeadless() {
		n.settleLanes()
	}
	e := n.effects
	for i := range e {
		if e[i].Kind == LogJob || e[i].Kind == LogState {
			e[i].Job.Flags &^= store.FlagLogged
		}
	}
	n.effects = n.effects[:0]
	n.sent = true
	return e
}

func (n *Node) log(kind EffectKind, j *store.Job) {
	// What is logged is the job as it is in the end: once is enough. A job that
	// isn't promised isn't in the log yet.
	if n.dummy(j) || j.State == store.StateWaitRepl || j.Flags&store.FlagLogged != 0 {
		return
	}
	j.Flags |= store.FlagLogged
	n.effects = append(n.effects, Effect{Kind: kind, Job: j})
}

func (n *Node) touch(q *store.Queue) {
	if q == n.store.Hidden() {
		return
	}
	n.effects = append(n.effects, Effect{Kind: Touched, Queue: q})
}

// logAnew logs a job whose queue or body has changed, which SETJOB can't say.
func (n *Node) logAnew(j *store.Job) {
	if n.unlog(j) {
		n.effects = append(n.effects, Effect{Kind: LogDelete, ID: j.ID})
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
	j.Flags &^= store.FlagLogged
	return known
}

// remove deletes a job for good.
func (n *Node) remove(j *store.Job) {
	// An effect of the same call must not name it any more; a job that was never
	// logged need not be deleted from the log.
	if n.unlog(j) {
		n.effects = append(n.effects, Effect{Kind: LogDelete, ID: j.ID})
	}
	n.touch(j.Queue)
	n.discard(j)
}
