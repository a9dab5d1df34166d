package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

const second = time.Second

// unwritten is for how long before a server's end all that it did can be lost, if its log isn't
// synced at once: with everysec a write waits two seconds for a sync that is under way.
const unwritten = 2500 * time.Millisecond

// rounding is by how much the time that a server has in mind can be behind the clock. The server
// reads the clock once in a while. Where many servers share few processors, it may stand still
// between that and a command.
const rounding = 60 * time.Millisecond

// transit is for how long a copy of a job can be on its way, if a partition and a stopped node
// hold it up. Nodes tell each other how much of the job's time to live is left, and that time
// doesn't run while the message is on its way.
const transit = 13 * time.Second

// verdict is what the judge found, and counted.
type verdict struct {
	round
	lost     []*job // at-most-once jobs that never came
	findings []string
	note     map[string]int
}

func (v *verdict) find(format string, args ...any) {
	v.findings = append(v.findings, fmt.Sprintf(format, args...))
}

// excused says whether all nodes for whose copies a job was promised can have lost it then.
func excused(losses []loss, j *job) bool {
	nodes := map[int]bool{}
	for _, l := range losses {
		if l.to >= j.sent && l.at <= j.until+unwritten {
			nodes[l.node] = true
		}
	}
	return len(nodes) >= j.kind.copies
}

// judge compares what clients were promised with what they got, after a round
// that was healed and drained.
func judge(b *books, losses []loss, r round) *verdict {
	v := &verdict{note: map[string]int{}, round: r}
	for _, text := range b.odd {
		v.find("an answer that no fault explains:\n%s", text)
	}
	for _, j := range b.jobs {
		if at, yes := b.freed[j.id]; yes && (j.released == 0 || at < j.released) {
			j.released = at
		}
		v.job(j, losses)
		v.order(j, losses)
	}
	v.runs(b)
	v.waits(b, losses)
	v.locks(b)
	v.atMostOnce(b)
	return v
}

// round is what was done to the mesh in a round.
type round struct {
	faults bool // anything at all
	unsure bool // a server that doesn't write at once may have ended, or one may have changed its role
	steps  bool // wall clocks may have stepped
}

// atMostOnce accounts for at-most-once jobs that no client was given, and that no node says
// are uncertain. If all servers write at once and keep their roles, such a job can only have
// been in an answer that didn't come.
func (v *verdict) atMostOnce(b *books) {
	silent := 0
	for _, g := range b.silent {
		if g.once {
			silent++
		}
	}
	if !v.unsure && len(v.lost) > silent {
		v.find("%d at-most-once jobs were never delivered, no node says that they are uncertain, and only %d answers didn't come; the first:\n%v", len(v.lost), silent, v.lost[0])
	}
}

func (v *verdict) job(j *job, losses []loss) {
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
		if !v.steps && k.delay > 0 && j.id != "" && d.at < j.sent+k.delay-rounding {
			v.find("a job was delivered before its delay was over:\n%v", j)
		}
		if !v.steps && k.ttl > 0 && j.id != "" && d.sent > j.until+k.ttl+transit {
			v.find("a job was delivered after its time to live:\n%v", j)
		}
	}
	if j.id == "" || len(j.deliveries) > 0 {
		return
	}
	if k.ttl > 0 && v.faults {
		v.note["expired"]++
		return
	}
	for _, p := range j.parents {
		if excused(losses, p) { // its dependents are lost with it
			v.note["lost with its nodes"]++
			return
		}
	}
	switch {
	case k.once && v.faults && j.uncertain:
		v.note["at-most-once uncertain"]++
	case k.once && v.faults:
		v.note["at-most-once lost"]++
		v.lost = append(v.lost, j)
	case excused(losses, j):
		v.note["lost with its nodes"]++
	default:
		v.find("a promised job was never delivered:\n%v", j)
	}
}

// order looks for jobs that were delivered before their release, or before the end of a job
// that they wait for.
func (v *verdict) order(j *job, losses []loss) {
	if len(j.deliveries) == 0 || j.id == "" {
		return
	}
	first := never
	for _, d := range j.deliveries {
		first = min(first, d.at)
	}
	if j.kind.name == "deferred" && (j.released == 0 || first < j.released) {
		v.find("a deferred job was delivered before it was released:\n%v", j)
	}
	for _, p := range j.parents {
		if p.firstAck() > first && !excused(losses, p) {
			v.find("a job was delivered before the one that it waits for was done:\n%v\n%v", j, p)
		}
	}
}

// span is a time in which a job, or a client, has something alone.
type span struct {
	from, to moment
	job      *job
}

// apart looks for two spans of one key that overlap by more than by.
func (v *verdict) apart(what string, all map[string][]span, by time.Duration) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		spans := all[key]
		slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
		for i, a := range spans {
			for _, b := range spans[i+1:] {
				if b.from+by < a.to && !(v.steps && a.job == b.job) { // a clock that jumps ends a retry time
					v.find("%s, key %s, %.3f to %.3f and %.3f to %.3f:\n%v\n%v", what, key,
						a.from.Seconds(), a.to.Seconds(), b.from.Seconds(), b.to.Seconds(), a.job, b.job)
				}
			}
		}
	}
}

// runs looks for two jobs of one key that were processed at the same time. A run begins when
// the client has the job. It ends when the client says that the job is done, or when the time
// of the lock is over, counted from when the client asked.
func (v *verdict) runs(b *books) {
	all := map[string][]span{}
	for _, j := range b.jobs {
		if j.kind.alone == 0 || j.key == "" {
			continue
		}
		for _, d := range j.deliveries {
			parts := []span{{from: d.at, to: d.sent + j.kind.alone, job: j}}
			for _, w := range d.working {
				last := &parts[len(parts)-1]
				if w > last.to { // it had lapsed meanwhile, and begins anew
					parts = append(parts, span{from: w, to: w + j.kind.alone, job: j})
					continue
				}
				last.to = max(last.to, w+j.kind.alone)
			}
			for _, s := range parts {
				for _, e := range j.ends {
					// A command that wasn't answered before this delivery may take effect at any time after it.
					if e.until >= d.at || e.command != "NACK" {
						s.to = min(s.to, max(e.sent, d.at))
					}
				}
				if s.from <= s.to {
					all[j.key] = append(all[j.key], s)
				}
			}
		}
	}
	v.apart("two runs at a time", all, early)
}

// early is by how much a job that several nodes hold may come back before its retry time is
// over.
const early = 300 * time.Millisecond

// waits looks for two jobs of one key that waited at the same time.
func (v *verdict) waits(b *books, losses []loss) {
	all := map[string][]span{}
	for _, j := range b.jobs {
		if j.kind.waits == "" || j.id == "" || excused(losses, j) {
			continue
		}
		s := span{from: j.until, job: j}
		switch j.kind.waits {
		case "done":
			s.to = j.firstAck()
		case "delivered":
			s.to = j.firstGet()
			for _, g := range b.silent { // it may have been in an answer that didn't come
				if g.until >= j.sent {
					s.to = min(s.to, max(g.sent, j.until))
				}
			}
		case "window":
			if v.steps { // after a restart the wall clock says how much of the window is left
				continue
			}
			s.to = j.sent + window
		}
		all[j.key] = append(all[j.key], s)
	}
	for key, spans := range all {
		slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
		for i, s := range spans {
			for _, next := range spans[i+1:] {
				if next.job.sent >= s.from && next.from <= s.to {
					v.find("two jobs wait at a time, key %s:\n%v\n%v", key, s.job, next.job)
				}
			}
		}
	}
}

// locks looks for locks that two clients had at the same time, and for tokens that don't grow.
func (v *verdict) locks(b *books) {
	names := map[string][]*holding{}
	for _, h := range b.locks {
		v.note["locks"]++
		names[h.name] = append(names[h.name], h)
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		all := names[name]
		slices.SortFunc(all, func(a, b *holding) int { return cmp.Compare(a.at, b.at) })
		for i, a := range all {
			for _, b := range all[i+1:] {
				if b.at < a.end {
					v.find("two clients have a lock at a time:\n%v\n%v", a, b)
				}
				if b.sent > a.at && b.token <= a.token || b.token == a.token {
					v.find("a token doesn't grow:\n%v\n%v", a, b)
				}
			}
		}
	}
}
