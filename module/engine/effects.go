package engine

import "jobmesh/module/store"

// EffectKind says what is to be done.
type EffectKind uint8

// The kinds of effect.
const (
	// LogJob: the whole job is to be logged (LOADJOB).
	LogJob EffectKind = iota
	// LogState: a known job's state has changed (SETJOB).
	LogState
	// LogDelete: the job ID is gone (DELJOB).
	LogDelete
	// Touched: the queue has changed, for WATCH and client-side caching.
	Touched
	// Serve: Waiter gets Job.
	Serve
	// Release: Waiter gets Err, or the null array where that is nil.
	Release
)

// Effect is one thing for the caller to do, in order.
type Effect struct {
	Kind   EffectKind
	ID     store.ID
	Job    *store.Job   // LogJob, LogState, Serve; valid until the next call
	Queue  *store.Queue // Touched
	Waiter *Waiter
	Err    error
}

// Effects returns what there is to do since the last call. The slice is
// reused: carry it out before the node is called again.
func (n *Node) Effects() []Effect {
	e := n.effects
	n.effects = n.effects[:0]
	return e
}

func (n *Node) log(kind EffectKind, j *store.Job) {
	n.effects = append(n.effects, Effect{Kind: kind, Job: j})
}

func (n *Node) touch(q *store.Queue) {
	n.effects = append(n.effects, Effect{Kind: Touched, Queue: q})
}

// remove deletes a job for good.
func (n *Node) remove(j *store.Job) {
	n.effects = append(n.effects, Effect{Kind: LogDelete, ID: j.ID})
	n.touch(j.Queue)
	n.store.Remove(j)
}
