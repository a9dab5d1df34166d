package engine

import "jobmesh/module/store"

// What the engine's other parts call of locks, for the scripts.

func (n *Node) ClaimLock(name []byte, id *store.ID, lease int64, any bool, timeout int64, then func(Outcome)) {
	if now, _ := n.claimLock(jobLock{name: name, job: *id, lease: lease, any: any, timeout: timeout}, then); now != nil {
		then(*now)
	}
}

func (n *Node) FreeLock(name []byte, id *store.ID) bool { return n.freeLock(name, id) }

func (n *Node) LockLost(id *store.ID) bool { return n.lockLost(id) }
