package lock

// Refusal is an error that clients get as it stands: a code in capitals, a
// space, a sentence.
type Refusal string

// Error implements error.
func (r Refusal) Error() string { return string(r) }

// Refusals of locks.
const (
	ErrNoQuorum   Refusal = "NOQUORUM Not enough nodes could agree on the lock in time, nothing is claimed; try again, or see JOBMESH CLUSTER NODES"
	ErrNotHeld    Refusal = "NOTHELD The lock isn't held, or not by you: its time was over, or it was cleared; LOCK.SHOW tells who has it"
	ErrStaleToken Refusal = "STALETOKEN The lock has been given out by a greater token since: stop what it was for"
	ErrReplica    Refusal = "READONLY You can't write against a read only replica."
)
