package store

import (
	"encoding/binary"
	"fmt"
)

// Tag says what an extra is. Extras are attributes that few jobs have. They lie at the end
// of a job's parts: each is a tag, a length (16 bits) and as many bytes. They go with the
// job wherever it goes.
type Tag uint8

// The tags. A number, once released, keeps its meaning. Extras with an unknown tag are kept
// and passed on.
const (
	// TagUnique: what the job is unique by, and which locks it has ([Unique]).
	TagUnique Tag = iota + 1
	// TagFamily: what the job waits for, or which job waits for it ([Family]).
	TagFamily
	// TagWorker: the name of the worker that has the job.
	TagWorker
	// TagOffer: the node that an at-most-once job is offered to, or was offered to before it
	// became uncertain. This extra isn't sent to other nodes.
	TagOffer
	// TagShun: the nodes that have deleted their copy, and don't take the job again.
	TagShun
	// TagAskers: the nodes that asked for the job's outcome, because they hold jobs that wait
	// for it.
	TagAskers
	// TagMoved: how often the job was moved to another queue (package engine).
	TagMoved
	// TagFailure: when a worker gave the job back last, which one, and why (package engine).
	TagFailure
	// TagDead: when and why the job became a dead letter, and where it came from (package engine).
	TagDead
	// TagAsleep: what a dead letter was unique by. The value is that of TagUnique.
	TagAsleep
	// TagPolicy: what becomes of the job when it fails, if its ADDJOB said so (package engine).
	TagPolicy
	// TagTries: how often each node has delivered the job, and was given it back, if that counts (package engine).
	TagTries
	// TagLife: the job's own time to live, and when it was last revived: of a job that was a dead letter, or has got another time than its ADDJOB said
	// (package engine).
	TagLife
	// TagPriority: the job's priority, one signed byte ([Job.Priority]).
	TagPriority
	// TagAt: when the job is due, if its ADDJOB said that by the clock, or if it has got another time since (package engine).
	TagAt
	// TagProgress: how far the job is, as its worker has said last (package engine).
	TagProgress
	// TagLease: how long the current delivery lasts, if its GETJOB said that (package engine).
	TagLease
	// TagLapses: how often each node has seen a delivery of the job lapse, if that counts, and was given the job back unstarted (package engine).
	TagLapses
	// TagMaxLapses: how many lapses end the job, if its ADDJOB said so (package engine).
	TagMaxLapses
	// TagSlots: the slot that the job has of those of its queue, while it is in progress (package engine). This extra isn't sent to other
	// nodes.
	TagSlots
	// TagCron: the recurring job that the job was made for, and the slot (package engine).
	TagCron Tag = 23
)

// Further tags.
const (
	// TagEnd: for how long the job's outcome is kept, if its ADDJOB said so; of a job that has ended, how it ended, and until when that is
	// kept ([Job.Kept]; package engine).
	TagEnd Tag = 21
	// TagCancel: when a client has asked the worker to stop, and why (package engine).
	TagCancel Tag = 22
	// TagName: the name that the job's producer has given it (package engine).
	TagName Tag = 25
	// TagBody: how often the job's body was replaced, and where it was last (package engine).
	TagBody Tag = 28
	// TagStays: a client has given the job another time, so it doesn't go by a flush that comes late (package engine). It has no bytes.
	TagStays Tag = 29
	// TagAsks: whether the question about the job's name is open, one byte: 1 if it is, else 0 (package engine). This extra isn't sent to other nodes.
	TagAsks Tag = 30
)

// The lengths of a TagEnd: of a job that hasn't ended, and of one that has.
const (
	KeepLen = 4
	EndLen  = 30
)

// SlotsLen is the length of a TagSlots: a node, the slot, a token and a ticket.
const SlotsLen = slotsToken + 8 + len(ID{})

const slotsToken = 8 + 2 // where its token begins

const extraHead = 3

// AppendExtra appends an extra to extras. value has at most 65535 bytes.
func AppendExtra(extras []byte, tag Tag, value []byte) []byte {
	extras = append(extras, byte(tag))
	extras = binary.LittleEndian.AppendUint16(extras, uint16(len(value)))
	return append(extras, value...)
}

// NextExtra takes the first extra off some.
func NextExtra(extras []byte) (tag Tag, value, rest []byte) {
	end := extraHead + int(binary.LittleEndian.Uint16(extras[1:]))
	return Tag(extras[0]), extras[extraHead:end:end], extras[end:]
}

// ExtraSize is how many bytes an extra with this value takes.
func ExtraSize(value []byte) int { return extraHead + len(value) }

// AppendExtrasBut appends to extras all extras of from, except those with this tag.
func AppendExtrasBut(extras, from []byte, tag Tag) []byte {
	for len(from) > 0 {
		t, value, rest := NextExtra(from)
		if t != tag {
			extras = AppendExtra(extras, t, value)
		}
		from = rest
	}
	return extras
}

// CheckExtras checks extras that come from outside. Its errors wrap [ErrRecord].
func CheckExtras(extras []byte) error {
	if len(extras) > MaxExtras {
		return fmt.Errorf("%w: %d bytes of extras, at most %d are possible", ErrRecord, len(extras), MaxExtras)
	}
	for at := 0; at < len(extras); {
		rest := extras[at:]
		if len(rest) < extraHead || len(rest)-extraHead < int(binary.LittleEndian.Uint16(rest[1:])) {
			return fmt.Errorf("%w: an extra is cut off at byte %d of %d", ErrRecord, at, len(extras))
		}
		end := extraHead + int(binary.LittleEndian.Uint16(rest[1:]))
		var err error
		switch Tag(rest[0]) {
		case TagUnique, TagAsleep:
			err = checkUnique(rest[extraHead:end])
		case TagPriority:
			err = checkPriority(rest[extraHead:end])
		case TagSlots:
			err = checkSlots(rest[extraHead:end])
		case TagEnd:
			if n := end - extraHead; n != KeepLen && n < EndLen {
				err = fmt.Errorf("%w: an end of %d bytes, %d or at least %d are needed", ErrRecord, n, KeepLen, EndLen)
			}
		}
		if err != nil {
			return err
		}
		at += end
	}
	return nil
}

// checkSlots checks a TagSlots that comes from outside. A slot is that of somebody: it has a token and a ticket.
func checkSlots(e []byte) error {
	if len(e) != SlotsLen {
		return fmt.Errorf("%w: the slot of a job in progress has %d bytes, %d are needed", ErrRecord, len(e), SlotsLen)
	}
	token := binary.LittleEndian.Uint64(e[slotsToken:])
	if token > MaxToken || (token == 0) != (ID(e[slotsToken+8:]) == ID{}) {
		return fmt.Errorf("%w: the slot of a job in progress has token %d and ticket %s", ErrRecord, token, ID(e[slotsToken+8:]))
	}
	return nil
}

// Extras are all of a job's extras; nil if there are none. They are valid until the job
// changes.
func (j *Job) Extras() []byte {
	if j.Parts == 0 {
		return nil
	}
	p := j.RawParts()
	n := int(binary.LittleEndian.Uint16(p[4:]))
	if n == 0 {
		return nil
	}
	return p[len(p)-n:]
}

func (j *Job) putExtras(extras []byte) {
	p := j.RawParts()
	binary.LittleEndian.PutUint16(p[4:], uint16(len(extras)))
	copy(p[len(p)-len(extras):], extras)
}

// Extra is the value of the job's extra with this tag; nil if there is none. The caller may
// write to it. It is valid until the job changes otherwise.
func (j *Job) Extra(tag Tag) []byte {
	if j.Parts == 0 {
		return nil
	}
	return FindExtra(j.Extras(), tag)
}

// FindExtra is [Job.Extra] for extras that no job has yet.
func FindExtra(extras []byte, tag Tag) []byte {
	for at := 0; at+extraHead <= len(extras); { // NextExtra, which also makes the rest, costs more
		value := at + extraHead
		end := value + int(binary.LittleEndian.Uint16(extras[at+1:]))
		if Tag(extras[at]) == tag {
			return extras[value:end:end]
		}
		at = end
	}
	return nil
}

// Tags is a set of tags: each has the bit of its number. No set has a tag from 64 on, of which there is none yet.
type Tags uint64

// Has says whether a tag is in the set.
func (s Tags) Has(tag Tag) bool { return s&(1<<tag) != 0 }

// HasAny says whether the job has an extra with one of these tags. It costs no more than looking for one.
func (j *Job) HasAny(tags Tags) bool {
	extras := j.Extras()
	for at := 0; at+extraHead <= len(extras); at += extraHead + int(binary.LittleEndian.Uint16(extras[at+1:])) {
		if tags.Has(Tag(extras[at])) {
			return true
		}
	}
	return false
}

// SetExtras replaces all of a job's extras. This may move the job: use the returned one from
// then on. The job must be in a list of its queue. extras must be valid, and must not be the
// job's own memory. Only that of a held job may have another priority.
func (s *Store) SetExtras(j *Job, extras []byte) *Job {
	if len(extras) == len(j.Extras()) {
		was := j.DeadLetter()
		copy(j.Extras(), extras)
		s.noteParts(j.Queue, extras)
		s.recountDead(j, was)
		return j
	}
	return s.Rewrite(j, j.Body(), extras)
}

// Rewrite is SetExtras, and also replaces the body.
func (s *Store) Rewrite(j *Job, body, extras []byte) *Job {
	had := j.Unique() != nil
	j = s.reshape(j, j.Holders(), body, extras)
	switch has := j.Unique() != nil; {
	case has && !had:
		j.Queue.Uniques++
	case had && !has:
		j.Queue.Uniques--
	}
	return j
}

// Shrink reduces an acknowledged job to what is needed to tell other nodes of it. It keeps
// the extras TagFamily, TagAskers, TagCancel, and, while the job still has locks, TagUnique with the body,
// which may be the locks' key. Of a job whose outcome is kept, it also keeps that, its name, what it was unique by,
// and the body, which is its result. The job may move, as with SetExtras.
func (s *Store) Shrink(j *Job) *Job {
	var keep []byte
	for rest := j.Extras(); len(rest) > 0; {
		end := extraHead + int(binary.LittleEndian.Uint16(rest[1:]))
		if tag := Tag(rest[0]); tag == TagFamily || tag == TagAskers || tag == TagCancel || tag == TagUnique && (j.Unique().Has(UniqueHasWait) || j.Unique().Has(UniqueHasRun)) || (tag == TagEnd || tag == TagName || tag == TagUnique) && j.Kept() {
			keep = append(keep, rest[:end]...)
		}
		rest = rest[end:]
	}
	var body []byte
	if FindExtra(keep, TagUnique) != nil || FindExtra(keep, TagEnd) != nil {
		body = j.Body() // it may be the locks' key
	}
	if int(j.BodyLen) == len(body) && len(keep) == len(j.Extras()) {
		return j
	}
	return s.Rewrite(j, body, keep)
}

// SetExtra sets the job's extra with this tag, or removes it if value is nil. As with
// SetExtras, the job may move. If the job would have more than [MaxExtras] bytes of extras,
// SetExtra does nothing, and ok is false.
func (s *Store) SetExtra(j *Job, tag Tag, value []byte) (moved *Job, ok bool) {
	if old := j.Extra(tag); old != nil && value != nil && len(old) == len(value) {
		was := tag == TagMoved && j.DeadLetter()
		if copy(old, value); tag == TagPriority || tag == TagMoved {
			s.noteParts(j.Queue, j.Extras())
		}
		if tag == TagMoved {
			s.recountDead(j, was)
		}
		return j, true
	}
	all := AppendExtrasBut(s.extrasBuf[:0], j.Extras(), tag)
	if value != nil {
		if len(all)+extraHead+len(value) > MaxExtras {
			return j, false
		}
		all = AppendExtra(all, tag, value)
	}
	s.extrasBuf = all
	return s.SetExtras(j, all), true
}
