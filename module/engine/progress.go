package engine

import (
	"encoding/binary"

	"jobmesh/module/store"
)

// How far a job is. Its worker says so with WORKING, and the job keeps the last text until its end. The other holders hear of each text
// by a Whereabouts. One that is lost is made up for by the next message that tells of the job.

// Work is what a client says of a job that it works on.
type Work struct {
	Progress []byte // how far the job is, at most MaxProgress bytes; nil: the client doesn't say. It must stay as it is until the answer
	Client   any    // who can wait until other nodes have answered; nil: nobody
}

// MaxProgress is the greatest length of a text that says how far a job is, in bytes.
const MaxProgress = 1024

// Progress is what a worker said last of how far its job is.
type Progress struct {
	At   int64 // unix ms
	Text []byte
}

// A job's TagProgress has 8 bytes for its time (unix ms) and the text. The later text counts.
const (
	progressHead    = 8
	progressTimeEnd = 1 << 53 // what clients read as a floating-point number is exact below it
)

// ProgressOf returns how far a job is. The text is the job's memory. ok is false if nobody has said so.
func ProgressOf(j *store.Job) (p Progress, ok bool) { return progressOf(j.Extra(store.TagProgress)) }

func progressOf(e []byte) (p Progress, ok bool) {
	if len(e) < progressHead || len(e) > progressHead+MaxProgress {
		return p, false
	}
	at := binary.LittleEndian.Uint64(e)
	if at >= progressTimeEnd {
		return p, false
	}
	return Progress{At: int64(at), Text: e[progressHead:]}, true
}

// noteProgress keeps how far a job is, and tells the other holders; nil says nothing. Its time is later than that of the text before, whatever the clock of the
// node that heard that one: so the last text counts at all holders. If the job has no room for it, the text before stays.
func (n *Node) noteProgress(id *store.ID, text []byte) {
	if text == nil {
		return
	}
	j := n.store.Lookup(id)
	if j == nil || j.State == store.StateAcked {
		return
	}
	at := n.now
	if before, ok := ProgressOf(j); ok {
		at = min(max(at, before.At+1), progressTimeEnd-1)
	}
	e := append(binary.LittleEndian.AppendUint64(n.scratch.extras[:0], uint64(at)), text...)
	n.scratch.extras = e
	j, ok := n.setExtra(j, store.TagProgress, e)
	if !ok {
		return
	}
	n.tellsProgress(j)
	n.log(LogState, j)
	if j.Holders() > 0 {
		n.tellWhereabouts(j)
	}
}
