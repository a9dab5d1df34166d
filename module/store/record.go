package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// ErrRecord is the error of a saved job or lock that can't be read. The errors that wrap it
// say what is wrong, and where.
var ErrRecord = errors.New("damaged job record")

// ErrNewer is the error of a record made by a newer version.
var ErrNewer = errors.New("job record of a newer format")

// checkRecord reads a record's fixed part, and checks all of it: the record may come from a
// damaged file or a hostile RESTORE.
func checkRecord(rec []byte, withBody bool) (head Job, err error) {
	if len(rec) < recordHead {
		return head, fmt.Errorf("%w: %d bytes, at least %d are needed", ErrRecord, len(rec), recordHead)
	}
	copy(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&head), recordOffset)), recordHead), rec)
	body := 0
	if withBody {
		body = int(head.BodyLen) + int(head.Parts)
		if len(rec) == recordHead+body {
			if err := checkParts(rec[len(rec)-int(head.Parts):]); err != nil {
				return head, err
			}
		}
	}
	at := func(field uintptr) int { return int(field) - recordOffset }
	switch {
	case head.Format > RecordFormat:
		return head, fmt.Errorf("%w: %d at byte 0, this version reads %d", ErrNewer, head.Format, RecordFormat)
	case head.Format != RecordFormat:
		return head, fmt.Errorf("%w: format %d at byte 0", ErrRecord, head.Format)
	case head.State > StateAcked:
		return head, fmt.Errorf("%w: state %d at byte %d", ErrRecord, head.State, at(unsafe.Offsetof(head.State)))
	case head.Retry > 0 && head.Flags&FlagOffered != 0 || head.Retry == 0 && head.Flags&FlagUncertain != 0 && head.Flags&FlagDelivered == 0:
		return head, fmt.Errorf("%w: flags %#x at byte %d", ErrRecord, head.Flags, at(unsafe.Offsetof(head.Flags)))
	case head.Place >= places:
		return head, fmt.Errorf("%w: place %d at byte %d", ErrRecord, head.Place, at(unsafe.Offsetof(head.Place)))
	case len(rec) != recordHead+body:
		return head, fmt.Errorf("%w: %d bytes follow the head, %d are announced at byte %d", ErrRecord, len(rec)-recordHead, body, at(unsafe.Offsetof(head.BodyLen)))
	case head.BodyLen > MaxBody:
		return head, fmt.Errorf("%w: a body of %d bytes, at most %d are possible", ErrRecord, head.BodyLen, MaxBody)
	case head.ETime <= 0:
		return head, fmt.Errorf("%w: expiry time %d at byte %d", ErrRecord, head.ETime, at(unsafe.Offsetof(head.ETime)))
	case head.QTime < 0:
		return head, fmt.Errorf("%w: queueing time %d at byte %d", ErrRecord, head.QTime, at(unsafe.Offsetof(head.QTime)))
	case head.Retry > math.MaxInt32 || head.Delay > math.MaxInt32: // other nodes would refuse the job
		return head, fmt.Errorf("%w: a retry time of %d s, a delay of %d s", ErrRecord, head.Retry, head.Delay)
	case head.Repl == 0:
		return head, fmt.Errorf("%w: 0 copies at byte %d", ErrRecord, at(unsafe.Offsetof(head.Repl)))
	case head.ID.AtMostOnce() != (head.Retry == 0):
		return head, fmt.Errorf("%w: ID %s doesn't fit a retry time of %d s", ErrRecord, head.ID, head.Retry)
	}
	head.Flags &^= volatileFlags
	if head.Retry == 0 && head.State != StateActive {
		head.Flags &^= FlagOffered | FlagUncertain // they mean something for an active job alone
	}
	if head.Retry > 0 && head.Flags&FlagReturning != 0 {
		// The job was to be queued again, so it is loaded as queued. But one that was handed
		// over (FlagDelivered) stays active: its holders are asked anew.
		head.Flags &^= FlagReturning
		if head.State == StateActive && head.Flags&FlagDelivered == 0 {
			head.State = StateQueued
		}
	}
	head.Place = InHeld
	return head, nil
}

// JobFromRecord makes an unregistered job from a record. Its errors wrap [ErrRecord] or
// [ErrNewer].
func (s *Store) JobFromRecord(rec []byte) (*Job, error) {
	head, err := checkRecord(rec, true)
	if err != nil {
		return nil, err
	}
	j := s.alloced(int(head.BodyLen), int(head.Parts))
	copy(j.Record(), rec)
	j.State, j.Flags, j.Place = head.State, head.Flags, head.Place
	if j.Parts > 0 && j.State != StateAcked {
		j.setCountedHere(false)
	}
	return j, nil
}

// ApplyState gives a job the state that a record has. The job must be known, or
// [Store.Detached]; otherwise ApplyState returns nil and no error. The record may lack body and
// parts; parts, if not nil, are the parts then. The job goes to the held list. It may move:
// use the returned one from then on. Errors wrap [ErrRecord] or [ErrNewer].
func (s *Store) ApplyState(rec, parts []byte) (*Job, error) {
	head, parts, err := checkState(rec, parts)
	if err != nil {
		return nil, err
	}
	j := s.Lookup(&head.ID)
	if j == nil {
		j = s.LookupDetached(&head.ID)
	}
	if j == nil {
		return nil, nil
	}
	return s.applyState(j, &head, parts), nil
}

func checkState(rec, parts []byte) (Job, []byte, error) {
	head, err := checkRecord(rec, len(rec) > recordHead)
	if err != nil {
		return head, nil, err
	}
	if len(rec) > recordHead {
		parts = rec[len(rec)-int(head.Parts):]
	}
	return head, parts, checkParts(parts)
}

func (s *Store) applyState(j, head *Job, parts []byte) *Job {
	// Do this first: a job's list, above all its per-key queue's, is found by what the job
	// says before the change.
	if j.Place != InHeld {
		s.Hold(j)
	}
	if len(parts) > 0 {
		j.ClearConfirmed()
		for i := range int(binary.LittleEndian.Uint16(parts)) {
			h := binary.LittleEndian.Uint64(parts[partsHead+i*holderLen:])
			if j, _ = s.AddHolder(j, h&^1); h&1 != 0 {
				j.Confirm(h &^ 1)
			}
		}
		j.AnswerForNone()
		for i := range min(int(parts[3]), int(binary.LittleEndian.Uint16(parts))) {
			j.AnswerFor(binary.LittleEndian.Uint64(parts[partsHead+i*holderLen:]) &^ 1)
		}
		extras := parts[len(parts)-int(binary.LittleEndian.Uint16(parts[4:])):]
		if !bytes.Equal(extras, j.Extras()) {
			j = s.SetExtras(j, extras)
		}
	}
	if head.Parts == 0 && len(j.Extras()) > 0 {
		j = s.SetExtras(j, nil)
	}
	s.Count(j, NoReason) // the engine counts it anew when it settles the job
	j.State, j.Flags = head.State, head.Flags|j.Flags&volatileFlags
	j.QTime, j.ETime = head.QTime, head.ETime
	j.Nacks, j.Deliveries = head.Nacks, head.Deliveries
	if j.State == StateAcked {
		j = s.Shrink(j)
	}
	return j
}
