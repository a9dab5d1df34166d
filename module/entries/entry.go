package entries

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"jobmesh/module/wire"
)

// Kind is what an entry is about. The kinds are their users' business; a number, once released, keeps its meaning. A
// kind that a node doesn't know is kept, and passed on.
type Kind uint8

// OwnKinds is the first of the kinds of entries that are a node's own: other nodes aren't told of them.
const OwnKinds Kind = 0x80

// Own says whether entries of the kind are a node's own.
func (k Kind) Own() bool { return k >= OwnKinds }

// ManyKinds is a bit of the kinds of which there may be very many entries, see [Most].
const ManyKinds Kind = 0x40

// FewKinds is a bit of the kinds whose entries come and go: they have a limit of their own, so that their tombstones push out no others.
const FewKinds Kind = 0x20

// class is which limit, and which list, entries of the kind are under. All kinds of a class are less than those of the next.
func (k Kind) class() int { return int(k >> 5) }

// Limits of entries, bytes.
const (
	MaxName  = 1024
	MaxValue = 32 << 10
)

// Stamp orders changes. The zero Stamp is less than that of any change.
type Stamp struct {
	MS    int64  // about when the change was made, unix ms
	Count uint32 // tells changes of one ms apart
	Node  wire.Node
}

// Compare returns -1, 0 or 1, as s is less than, the same as, or greater than o.
func (s Stamp) Compare(o Stamp) int {
	return cmp.Or(cmp.Compare(s.MS, o.MS), cmp.Compare(s.Count, o.Count), cmp.Compare(s.Node, o.Node))
}

// next is the stamp of a change that counts more than s, at a time in unix ms. No stamp is greater than those that parse takes: the
// greatest of them are the same but for the node.
func (s Stamp) next(node wire.Node, now int64) Stamp {
	next := Stamp{MS: max(min(now, maxMS), s.MS), Node: node}
	switch {
	case next.MS > s.MS:
	case s.Count < math.MaxUint32:
		next.Count = s.Count + 1
	case s.MS < maxMS:
		next.MS++
	default:
		next.Count = math.MaxUint32
	}
	return next
}

// Entry is an entry, or the tombstone of one.
type Entry struct {
	Kind     Kind
	Deleted  bool // it is a tombstone, and has no value
	Name     string
	Value    []byte
	Stamp    Stamp
	Replaced Stamp // of the entry that the maker of this one knew before; zero: none

	bytes   []byte // what Append appends; nil: it is in no table
	leaf    uint16 // see Table.Sums
	sum     uint64
	learnt  int64 // monotonic ms, when it came to this table
	retired bool  // a tombstone so old that it doesn't count in the sums
	place   int   // in class.oldest
}

// compare returns 1 if e is the one that counts of two entries of the same key, -1 if o is, and 0 if they are the same. Two entries
// with one stamp are those of a node that has lost the first one in a crash, and whose clock was set back: all nodes choose the same.
func (e *Entry) compare(o *Entry) int {
	return cmp.Or(e.Stamp.Compare(o.Stamp), bytes.Compare(e.Value, o.Value), e.Replaced.Compare(o.Replaced), bytes.Compare(e.Append(nil), o.Append(nil)))
}

// Saw says whether the maker of e knew the other one, of the same key, when it made e.
func (e *Entry) Saw(other *Entry) bool {
	return other.Stamp.Compare(e.Replaced) <= 0 || other.Stamp.Node == e.Stamp.Node && other.Stamp.Compare(e.Stamp) < 0
}

const deleted = 1 // flag

// Append appends the entry's bytes.
func (e *Entry) Append(b []byte) []byte {
	if e.bytes != nil {
		return append(b, e.bytes...)
	}
	flags := byte(0)
	if e.Deleted {
		flags = deleted
	}
	b = append(b, byte(e.Kind), flags)
	for _, s := range [...]Stamp{e.Stamp, e.Replaced} {
		b = binary.AppendUvarint(b, uint64(s.MS))
		b = binary.AppendUvarint(b, uint64(s.Count))
		b = binary.BigEndian.AppendUint64(b, uint64(s.Node))
	}
	b = binary.AppendUvarint(b, uint64(len(e.Name)))
	b = append(b, e.Name...)
	b = binary.AppendUvarint(b, uint64(len(e.Value)))
	return append(b, e.Value...)
}

// ErrDamaged is the error of bytes that are no entries.
var ErrDamaged = errors.New("damaged entry")

// Parse reads what Append wrote, and calls do for each entry until do returns an error. An entry's memory is its own.
// The errors of Parse itself wrap [ErrDamaged].
func Parse(b []byte, do func(*Entry) error) error {
	for len(b) > 0 {
		e := &Entry{}
		var err error
		if b, err = e.parse(b); err != nil {
			return err
		}
		if err = do(e); err != nil {
			return err
		}
	}
	return nil
}

func (e *Entry) parse(b []byte) (rest []byte, err error) {
	fail := func(what string) ([]byte, error) { return nil, fmt.Errorf("%w: %s", ErrDamaged, what) }
	if len(b) < 2 {
		return fail("it is cut off")
	}
	e.Kind, e.Deleted = Kind(b[0]), b[1]&deleted != 0
	if b[1]&^deleted != 0 {
		return fail("its flags")
	}
	b = b[2:]
	number := func(limit uint64) (v uint64, ok bool) {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > limit {
			return 0, false
		}
		b = b[n:]
		return v, true
	}
	for _, s := range [...]*Stamp{&e.Stamp, &e.Replaced} {
		ms, ok := number(maxMS)
		count, ok2 := number(1<<32 - 1)
		if !ok || !ok2 || len(b) < 8 {
			return fail("its stamp")
		}
		*s = Stamp{int64(ms), uint32(count), wire.Node(binary.BigEndian.Uint64(b))}
		b = b[8:]
	}
	size, ok := number(MaxName)
	if !ok || size > uint64(len(b)) {
		return fail("its name")
	}
	e.Name, b = string(b[:size]), b[size:]
	if size, ok = number(MaxValue); !ok || size > uint64(len(b)) || e.Deleted && size > 0 {
		return fail("its value")
	}
	e.Value = append([]byte(nil), b[:size]...)
	return b[size:], nil
}

// maxMS bounds a stamp's time, unix ms: the year 10889. A greater one would leave no room for later stamps.
const maxMS = 1 << 48
