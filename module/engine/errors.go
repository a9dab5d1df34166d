package engine

import "jobmesh/module/lock"

// Refusal is an error that clients get as it stands: a code in capitals, a
// space, a sentence. The texts are Disque's where Disque has them.
type Refusal = lock.Refusal

// notExtended is ErrNotExtended with the reason. It is the only error of WORKING after which
// the delivery is postponed all the same.
type notExtended struct{ Refusal }

// Refusals of the engine.
const (
	ErrNoRepl          Refusal = "NOREPL Not enough reachable nodes for the requested replication level"
	ErrNoReplLeaving   Refusal = "NOREPL Not enough reachable nodes for the requested replication level, since I'm unable to hold a copy of the message for the following reason: I'm leaving the cluster"
	ErrNoReplMemory    Refusal = "NOREPL Not enough reachable nodes for the requested replication level, since I'm unable to hold a copy of the message for the following reason: I'm out of memory"
	ErrReplTimeout     Refusal = "NOREPL Timeout reached before replicating to the requested number of nodes"
	ErrReplRemoved     Refusal = "NOREPL job removed (expired?) before the requested replication level was achieved"
	ErrReplUnknown     Refusal = "NOREPL the connection to the node that was given the job broke: whether it has the job isn't known"
	ErrClaimWait       Refusal = "NOQUORUM a unique job's lock has to be claimed from other nodes, for which MULTI and scripts can't wait: add it by itself"
	ErrTooBig          Refusal = "TOOBIG the body and the queue's name have more than 66977792 bytes together, too many to send to another node: add it with REPLICATE 1, or in parts"
	ErrReplWait        Refusal = "NOREPL a job for several nodes has to wait for them, which MULTI and scripts can't: use ASYNC, or REPLICATE 1"
	ErrMaxLen          Refusal = "MAXLEN Queue is already longer than the specified MAXLEN count"
	ErrQueueOver       Refusal = "ERR the time to live of the queue's key is over, and the server can't remove it at the moment: try again"
	ErrManyPauses      Refusal = "ERR 10000 queues are paused with BCAST already: end some of these pauses first"
	ErrManyTimedPauses Refusal = "ERR 20000 queues are paused for a time already: end some of these pauses first"
	ErrLongPause       Refusal = "ERR FOR needs a queue whose name has 1024 bytes at most"
	ErrManyEntries     Refusal = "ERR the settings and pauses have 4 MB together already: delete some, or use patterns"
	ErrPaused          Refusal = "PAUSED Queue paused in input, try later"
	ErrLeaving         Refusal = "LEAVING This node is leaving the cluster, please connect to a different one"
	ErrOOM             Refusal = "OOM command not allowed when used memory > 'maxmemory'."
	ErrNoJob           Refusal = "NOJOB Job not known in the context of this node."
	ErrElsewhere       Refusal = "NOJOB The job was handed over to another node, and its lock is had there: say WORKING at the node that gave you the job"
	ErrNotDeferred     Refusal = "NOTDEFERRED The job isn't held back: it was never deferred nor blocked, or is released"
	ErrBlocked         Refusal = "NOTDEFERRED The job isn't deferred but blocked: it is let go when the jobs end that it waits for, which SHOW lists; RELEASEJOB is for deferred ones"
	ErrHeldBack        Refusal = "HELDBACK The job is deferred or blocked: nobody can be working on it"
	ErrKinApart        Refusal = "NOREPL a blocked job has to be on all nodes that hold the one that blocks it, and one of them can't be reached, or this one is short of memory or leaving"
	ErrKinOnce         Refusal = "ERR a blocked job has to be on all nodes that hold the one that blocks it: with RETRY 0 it has one copy, and that one must have REPLICATE 1 too"
	ErrAcked           Refusal = "ACKED The job is acknowledged already, there is nothing left to work on."
	ErrCancelled       Refusal = "CANCELLED The job was cancelled: stop"
	ErrTooLate         Refusal = "TOOLATE Half of job TTL already elapsed, you are no longer allowed to postpone the next delivery."
	ErrBody            Refusal = "ERR the job's body is too long"
	ErrBodyIsKey       Refusal = "ERR the job is unique by its body, which is too long to be kept as its key: give the job back without BODY"
	ErrNoQuorum                = lock.ErrNoQuorum
	ErrNotExtended     Refusal = "NOQUORUM Not enough nodes could agree to extend the job's lock: it ends when its time is over, the job's next delivery is postponed; try again, or see JOBMESH CLUSTER NODES"
	ErrNotHeld                 = lock.ErrNotHeld
	ErrStaleToken              = lock.ErrStaleToken
	ErrReplica                 = lock.ErrReplica
)
