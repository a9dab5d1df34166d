package engine

import "jobmesh/module/store"

// States that only clients see, behind those of package store: to the engine such jobs are active.
const (
	StateDeferred = store.StateAcked + 1 + iota
	StateBlocked
	StateDelayed // SHOW calls such a job active, as in Disque
	StateDone    // its outcome is kept
	states
)

// StateOf is a job's state as clients see it; StateDelayed isn't among them.
func (n *Node) StateOf(j *store.Job) uint8 {
	switch deferred, blocked := n.Waits(j); {
	case j.Kept():
		return StateDone
	case deferred:
		return StateDeferred
	case blocked:
		return StateBlocked
	}
	return j.State
}

// InStates says whether a job is in one of some states. Each has its bit.
func (n *Node) InStates(j *store.Job, bits uint8) bool {
	return bits>>n.StateOf(j)&1 != 0 || j.Reason() == store.Delayed && bits>>StateDelayed&1 != 0
}
