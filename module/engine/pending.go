package engine

import "jobmesh/module/store"

// Pending is the handle of a call whose answer comes later, as an effect for a client: of ADDJOB (Promise, Deny), ADDJOBS
// (AnswerBatch), RELEASEJOB (Released), WAITCOPIES, WAITJOB and the commands with MESH (AnswerMesh). The caller ties a client to it before it calls the node again. It is good
// until the effect, or [Node.Abandon]; afterwards it stands for nothing.
//
// Other calls need no Pending: a [Waiter] of GETJOB is itself in the lines of its queues, an Acquisition belongs to package
// lock, and a WORKING takes its client along and goes on without it.
type Pending struct {
	kind   pendingKind
	id     store.ID
	number int64
	batch  *Batch
}

type pendingKind uint8

const (
	addPending pendingKind = iota + 1
	releasePending
	meshPending
	batchPending
	copiesPending
	jobPending
)

// PendingAdd is that of an ADDJOB for which [Node.AddJob] has said wait.
func PendingAdd(id store.ID) Pending { return Pending{kind: addPending, id: id} }

// PendingBatch is that of an ADDJOBS for which [Node.AddJobs] has said wait.
func PendingBatch(b *Batch) Pending { return Pending{kind: batchPending, batch: b} }

// PendingRelease is that of a RELEASEJOB for which [Node.Release] has said wait.
func PendingRelease(id store.ID) Pending { return Pending{kind: releasePending, id: id} }

// Tie names the client that the answer is for.
func (n *Node) Tie(p Pending, client any) {
	switch p.kind {
	case addPending:
		if c := n.uniqueMesh.adds[p.id]; c != nil {
			c.client = client
		} else if ad := n.pendingAdds[p.id]; ad != nil {
			ad.client = client
		}
	case releasePending:
		if r := n.releaseOf(&p.id); r != nil {
			r.client = client
		}
	case meshPending:
		if q := n.questionOf(p.number); q != nil {
			q.client = client
		}
	case batchPending:
		p.batch.Client = client
	case copiesPending:
		if w := n.copiesWaitOf(p.number); w != nil {
			w.client = client
		}
	case jobPending:
		if w := n.jobWaits.by[p.number]; w != nil {
			w.client = client
		}
	}
}

// Deny notes that the client has gone, or was answered otherwise: from now on a job isn't promised to it,
// nor queued for its sake. Deny changes nothing that is saved, so it can be called while the server takes no writes.
// [Node.Abandon] follows when it does.
func (n *Node) Deny(p Pending) {
	if p.kind == batchPending {
		p.batch.denied = true
	}
	if p.kind != addPending {
		return
	}
	if ad := n.pendingAdds[p.id]; ad != nil {
		ad.denied = true
	} else if c := n.uniqueMesh.adds[p.id]; c != nil {
		c.denied = true
	}
}

// Abandon ends the wait for a client that has gone. An ADDJOB is undone, for nothing was promised, and
// so are the jobs of an ADDJOBS that aren't decided; a release stands.
func (n *Node) Abandon(p Pending) {
	switch p.kind {
	case addPending:
		if ad := n.pendingAddOf(&p.id); ad != nil {
			n.cleanUp(ad)
		} else {
			n.abandonUniqueAdd(&p.id)
		}
	case releasePending:
		n.Tie(p, nil)
	case meshPending:
		n.dropQuestion(p.number)
	case batchPending:
		n.abandonBatch(p.batch)
	case copiesPending:
		n.dropCopiesWait(p.number)
	case jobPending:
		n.dropJobWait(p.number)
	}
}
