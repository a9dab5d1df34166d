package chaos

import (
	"fmt"
	"time"
)

// unwritten is how much of the last that a server did can be lost with it where
// its log isn't synced at once: the write of everysec waits two seconds for a
// sync that is under way.
const unwritten = 2500 * time.Millisecond

// promises is what the judge goes by: doc.go has the same as a table.
type verdict struct {
	findings []string
	note     map[string]int
}

func (v *verdict) find(format string, args ...any) {
	v.findings = append(v.findings, fmt.Sprintf(format, args...))
}

// excused says whether so many nodes can have lost what was promised then.
func excused(losses []loss, j *job) bool {
	nodes := map[int]bool{}
	for _, l := range losses {
		if l.at >= j.sent && l.at <= j.until+unwritten {
			nodes[l.node] = true
		}
	}
	return len(nodes) >= j.kind.copies
}

// judge compares what clients were promised with what they got, after a round
// that was healed and drained.
func judge(b *books, losses []loss, faults bool) *verdict {
	v := &verdict{note: map[string]int{}}
	for _, text := range b.odd {
		v.find("an answer that no fault explains:\n%s", text)
	}
	for _, j := range b.jobs {
		v.job(j, losses, faults)
	}
	return v
}

func (v *verdict) job(j *job, losses []loss, faults bool) {
	k := j.kind
	v.note["deliveries"] += len(j.deliveries)
	switch {
	case j.id != "":
		v.note["promised"]++
	case j.answer == "none":
		v.note["unanswered"]++
	default:
		v.note["refused"]++
	}
	if k.once && len(j.deliveries) > 1 {
		v.find("an at-most-once job was delivered twice:\n%v", j)
	}
	if len(j.deliveries) > 1 {
		v.note["again"] += len(j.deliveries) - 1
	}
	for _, d := range j.deliveries {
		if k.delay > 0 && j.id != "" && d.at < j.sent+k.delay {
			v.find("a job was delivered before its delay was over:\n%v", j)
		}
	}
	if j.id == "" || len(j.deliveries) > 0 {
		return
	}
	switch {
	case k.once && faults:
		v.note["at-most-once lost"]++
	case excused(losses, j):
		v.note["lost with its nodes"]++
	default:
		v.find("a promised job was never delivered:\n%v", j)
	}
}
