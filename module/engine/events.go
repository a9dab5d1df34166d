package engine

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"jobmesh/module/store"
)

// Events tell others what happens to jobs and queues: as keyspace notifications, and as entries of a stream. An event is an effect (Happened)
// of the step in which it happens. So it is logged with that step, or not at all.
//
// Over a mesh each event is told by one node: the one where it happened. If several nodes find out for themselves, as when a job's life
// is over, it is the one that would have queued the job.
//
// Nothing of an event is made that nobody wants: that is one comparison for each.

// Event is a kind of event.
type Event uint8

// The kinds.
const (
	EventAdd       Event = iota // a job was added
	EventDeliver                // a client got it
	EventDone                   // it was acknowledged
	EventNack                   // its worker gave it back as failed
	EventPutOff                 // it comes again later for that
	EventLapse                  // its retry time ended while somebody had it
	EventRequeue                // it is queued again, and that counts as an additional delivery; or its client was gone before it got the job
	EventDead                   // it became a dead letter
	EventMove                   // it was moved to another queue, or has got another time (also by ONCONFLICT debounce) or priority
	EventCancel                 // it was cancelled, by itself or with its queue (QFLUSH)
	EventExpire                 // its life was over
	EventDrop                   // it was dropped
	EventProgress               // its worker said how far it is
	EventPause                  // a queue was paused, or isn't paused any more
	EventFlush                  // the jobs of a queue were cancelled (QFLUSH)
	EventLimited                // a queue's jobs wait for its rate, or for a slot
	EventUnlimited              // they don't any more
	events
)

var eventNames = [events]string{
	"add", "deliver", "done", "nack", "putoff", "lapse", "requeue", "dead", "move", "cancel", "expire", "drop", "progress", "pause", "flush", "limited", "unlimited",
}

// String is the event's name.
func (e Event) String() string { return eventNames[e] }

// EventSet is a set of kinds of event.
type EventSet uint32

// AllEvents are all kinds of event.
const AllEvents EventSet = 1<<events - 1

// Has says whether the set has an event.
func (s EventSet) Has(e Event) bool { return s&(1<<e) != 0 }

// ParseEvents reads names of events, with spaces between them; "all" stands for all.
func ParseEvents(names string) (s EventSet, err error) {
next:
	for _, name := range strings.Fields(names) {
		if strings.EqualFold(name, "all") {
			s = AllEvents
			continue
		}
		if strings.EqualFold(name, "none") {
			continue
		}
		for e, known := range eventNames {
			if strings.EqualFold(name, known) {
				s |= 1 << e
				continue next
			}
		}
		return 0, fmt.Errorf("there is no event %.32q: name some of %s, with spaces between them, all, or none", name, strings.Join(eventNames[:], " "))
	}
	return s, nil
}

// Happening is what an event tells.
type Happening struct {
	Event  Event
	Queue  []byte
	Fields []string // names and values, each name once, if the event is wanted with its fields
	job    store.ID // zero: the event is of a queue alone
}

// Field returns the value of a field; empty: the event hasn't got it.
func (h *Happening) Field(name string) string {
	for i := 0; i < len(h.Fields); i += 2 {
		if h.Fields[i] == name {
			return h.Fields[i+1]
		}
	}
	return ""
}

// wanted are the events that somebody wants.
type wanted struct {
	any    EventSet // these are made
	detail EventSet // these of them have fields
}

// SetEvents says which events are made from now on: those with all that is known of them, and those of which the queue is enough.
func (n *Node) SetEvents(detailed, bare EventSet) {
	n.events = wanted{any: detailed | bare, detail: detailed}
}

// wants says whether somebody wants an event.
func (n *Node) wants(e Event) bool { return n.events.any&(1<<e) != 0 }

// eventMaker is an event that is being made. Its methods add fields, and return it.
type eventMaker struct {
	h *Happening
	n *Node
}

// happens begins the event of a queue.
func (n *Node) happens(e Event, queue []byte) eventMaker {
	h := &Happening{Event: e, Queue: bytes.Clone(queue)}
	n.effect(Happened).Client = h
	t := eventMaker{h: h, n: n}
	if n.events.detail.Has(e) {
		h.Fields = make([]string, 0, 16)
		t.text("event", e.String())
		t.text("queue", string(queue))
		t.number("at", n.now)
		if !n.mesh.Alone() {
			t.text("node", n.nodeID)
		}
	}
	return t
}

// happensTo begins the event of a job. The caller adds what is known of it besides, before the node does anything else.
func (n *Node) happensTo(j *store.Job, e Event) eventMaker {
	t := n.happens(e, j.Queue.NameBytes())
	t.h.job = j.ID
	if t.h.Fields == nil {
		return t
	}
	t.text("id", j.ID.String())
	if u := j.Unique(); u != nil && u.Has(store.UniqueKeyed) { // else the key is the body, which isn't told
		t.text("key", string(u.Key()))
	}
	if name, _, ok := SlotOfJob(j); ok {
		t.text("cron", string(name))
	}
	if worker := n.Worker(j); worker != "" {
		t.text("worker", worker)
	}
	return t
}

// text adds a field, if the event has fields and the value isn't empty.
func (t eventMaker) text(name, value string) eventMaker {
	if t.h.Fields != nil && value != "" {
		t.h.Fields = append(t.h.Fields, name, value)
	}
	return t
}

func (t eventMaker) number(name string, v int64) eventMaker {
	return t.text(name, strconv.FormatInt(v, 10))
}

// span adds a time in ms; below 0: it isn't known.
func (t eventMaker) span(name string, ms int64) eventMaker {
	if ms < 0 {
		return t
	}
	return t.number(name, ms)
}

// delay adds for how many ms something waits, if it does.
func (t eventMaker) delay(ms int64) eventMaker {
	if ms == 0 {
		return t
	}
	return t.number("delay", ms)
}

// deliveries adds how often a job was delivered. The counters have those of which it came back; more is how many there are besides.
func (t eventMaker) deliveries(j *store.Job, more int64) eventMaker {
	return t.number("deliveries", int64(j.Nacks)+Additional(j)+more)
}

// nameWorkers adds the workers of jobs that this call has delivered. They are known only after the delivery.
func (n *Node) nameWorkers() {
	for i := range n.effects {
		h, ok := n.effects[i].Client.(*Happening)
		if !ok || h.Event != EventDeliver {
			continue
		}
		if j := n.store.Lookup(&h.job); j != nil {
			eventMaker{h: h}.text("worker", n.Worker(j))
		}
	}
}

// lagOf is for how long a queued job has been due, ms; -1: that isn't known. Its QTime tells when it was queued. If other nodes hold the
// job, that has an error; but then a job that is new, and waited for nothing, was due when its delay was over, or is only now, for it was queued
// by hand.
func (n *Node) lagOf(j *store.Job) int64 {
	due := int64(0)
	switch {
	case j.Retry > 0 && j.Holders() == 0 && j.QTime > 0:
		due = j.QTime - int64(j.Retry)*1000
	case j.Nacks == 0 && j.Deliveries == 0 && moves(j) == 0 && j.Unique() == nil && !isOfFamily(j):
		if due = firstDue(j); j.Retry > 0 {
			due = max(due, j.QTime-int64(j.Retry)*1000-jitterMS)
		}
	default:
		return -1
	}
	return max(0, n.now-due)
}

func isOfFamily(j *store.Job) bool {
	_, ok := j.Family()
	return ok
}

// The functions below tell one event each, where it happens, if it is wanted.
//
// tellAdded, tellDelivery and tellDone have that question at their callers instead, which every job passes: a call costs more than the
// comparison.
func (n *Node) tellAdded(j *store.Job) {
	n.happensTo(j, EventAdd).delay(delayFrom(j, n.now))
}

// tellDelivery is called before the delivery begins.
func (n *Node) tellDelivery(j *store.Job) {
	n.happensTo(j, EventDeliver).deliveries(j, 1).span("lag", n.lagOf(j))
}

func (n *Node) tellDone(j *store.Job) {
	t := n.happensTo(j, EventDone)
	if j.Place == store.InWorking {
		t.deliveries(j, 1).span("ran", max(0, n.now-since(j)))
	}
}

// endsDone counts a job that is acknowledged, and tells that.
func (n *Node) endsDone(j *store.Job) {
	n.Stats.Acked++
	if n.wants(EventDone) {
		n.tellDone(j)
	}
}

// endsElsewhere counts and tells the end of a job that a client said at another node, which doesn't know the job: the node that has the job does so in its
// place. Holders don't all know of each other, so they couldn't agree on one of them. It returns false at a node that leaves it to another. If that one hears
// of the end from this node first, it must hear also that it is to tell it ([becomeUntold]).
func (n *Node) endsElsewhere(j *store.Job) bool {
	if j.State != store.StateQueued && j.Place != store.InWorking && j.Reason() != store.Delayed && !(held(j) && n.CountsHere(j)) {
		return false
	}
	n.nameEnds(&j.ID)
	if cancelled(j) {
		n.Stats.Cancelled++
		n.tellsCancelled(j, nil)
	} else {
		n.endsDone(j)
	}
	return true
}

// tellsNack tells the reason by a TagFailure, which the job may not have yet.
func (n *Node) tellsNack(j *store.Job, failure []byte) {
	if n.wants(EventNack) {
		t := n.happensTo(j, EventNack).deliveries(j, 1)
		if f, ok := failureOf(failure); ok && f.At == n.now {
			t.text("reason", string(f.Reason))
		}
	}
}

func (n *Node) tellsPutOff(j *store.Job, span int64) {
	if n.wants(EventPutOff) {
		n.happensTo(j, EventPutOff).deliveries(j, 0).delay(span)
	}
}

func (n *Node) tellsLapse(j *store.Job) {
	if n.wants(EventLapse) {
		n.happensTo(j, EventLapse).deliveries(j, 1)
	}
}

// tellsRequeued tells that a job is queued again. why is empty if that is counted.
func (n *Node) tellsRequeued(j *store.Job, why string) {
	if n.wants(EventRequeue) {
		n.happensTo(j, EventRequeue).deliveries(j, 0).text("why", why)
	}
}

func (n *Node) tellsDead(j *store.Job, why Why) {
	if n.wants(EventDead) {
		more := int64(0)
		if why == WhyDeliveries || why == WhyLapses {
			more = 1 // a lapse counts when the job is queued again
		}
		t := n.happensTo(j, EventDead).deliveries(j, more).text("why", why.String()).text("to", string(j.Queue.NameBytes())).text("reason", string(reasonOf(j)))
		t.text("from", string(cameFrom(j.Extras())))
	}
}

// tellsMove tells that a job has moved. from is what nameToTell returned before.
func (n *Node) tellsMove(j *store.Job, from []byte) {
	if n.wants(EventMove) {
		n.tellsMoveBy(j, from, delayFrom(j, n.now))
	}
}

// tellsMoveBy is tellsMove for a job that is due in left ms.
func (n *Node) tellsMoveBy(j *store.Job, from []byte, left int64) {
	if n.wants(EventMove) {
		n.happensTo(j, EventMove).text("from", string(from)).text("to", string(j.Queue.NameBytes())).delay(left)
	}
}

// tellsDebounced tells that the delay of a job has begun anew.
func (n *Node) tellsDebounced(j *store.Job) {
	if n.wants(EventMove) {
		queue := string(j.Queue.NameBytes())
		n.happensTo(j, EventMove).text("from", queue).text("to", queue).delay(delayFrom(j, n.now)).text("why", "debounce")
	}
}

// tellsCancelled tells that a job was cancelled, because of its queue's flush if that is under way.
func (n *Node) tellsCancelled(j *store.Job, reason []byte) {
	if n.wants(EventCancel) {
		t := n.happensTo(j, EventCancel).text("reason", string(reason))
		if n.flushes.now != nil {
			t.text("why", "flush")
		}
	}
}

func (n *Node) tellsExpired(j *store.Job) {
	if n.wants(EventExpire) {
		n.happensTo(j, EventExpire).deliveries(j, 0)
	}
}

func (n *Node) tellsDropped(j *store.Job, why string) {
	if n.wants(EventDrop) {
		n.happensTo(j, EventDrop).text("why", why).text("reason", string(reasonOf(j)))
	}
}

func (n *Node) tellsProgress(j *store.Job) {
	if n.wants(EventProgress) {
		n.happensTo(j, EventProgress)
	}
}

// tellsPause tells that a queue's pause has changed. span is for how long it is meant, ms; 0: without end.
func (n *Node) tellsPause(name []byte, was, mask uint8, span int64) {
	if n.wants(EventPause) && (was != mask || span > 0) {
		n.happens(EventPause, name).text("from", PauseNames[was]).text("to", PauseNames[mask]).delay(span)
	}
}

// PauseNames are what the sets of pause bits are called.
var PauseNames = [...]string{"none", PauseIn: "in", PauseOut: "out", PauseIn | PauseOut: "all"}

func (n *Node) tellsFlush(fl *flushing) {
	if n.wants(EventFlush) && fl.jobs > 0 {
		n.happens(EventFlush, []byte(fl.queue)).number("jobs", int64(fl.jobs))
	}
}

func (n *Node) tellsLimit(queue string, e Event, why Limited) {
	if n.wants(e) {
		t := n.happens(e, []byte(queue))
		if why != NotLimited {
			t.text("why", why.String())
		}
	}
}
