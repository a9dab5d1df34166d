package entries

import (
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"slices"
	"strings"

	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// Most is how many entries a table has, tombstones included, and MostBytes how many bytes. If there are more, the oldest
// tombstones go first; then entries of other nodes aren't taken. Those who make changes limit them to less.
const (
	Most      = 40_000
	MostBytes = 8 << 20
)

// keepMS is how long a tombstone counts, ms. After that it goes as soon as no known node can have the entry.
const keepMS = 24 * 3600 * 1000

// sweepMost is how many tombstones one call looks at.
const sweepMost = 500

// Table is all entries that a node knows.
type Table struct {
	entries map[key]*Entry
	sorted  []*Entry            // all of them, in the order of kinds and names
	leaves  map[uint16][]*Entry // in the order of keys
	sums    [Levels][]uint64    // of each part, see Sums; nil while the table is empty
	last    Stamp               // the greatest one that was seen
	bytes   int                 // of all entries
	counts  map[Kind]int        // of entries that aren't tombstones
	dead    map[key]*Entry      // the tombstones
	oldest  table.Schedule[*tombstone]
}

// tombstone is an entry in Table.oldest, which has all tombstones, the least stamp first.
type tombstone Entry

func (d *tombstone) Sooner(than *tombstone) bool { return d.Stamp.Compare(than.Stamp) < 0 }
func (d *tombstone) Position() *int              { return &d.place }

type key struct {
	kind Kind
	name string
}

func (e *Entry) key() key { return key{e.Kind, e.Name} }

// Len is how many entries there are, without tombstones. Tombstones is how many of these there are.
func (t *Table) Len() int { return len(t.entries) - len(t.dead) }

// Tombstones is how many tombstones there are.
func (t *Table) Tombstones() int { return len(t.dead) }

// Count is how many entries of a kind there are, without tombstones.
func (t *Table) Count(kind Kind) int { return t.counts[kind] }

// Bytes is the length of [Table.Text].
func (t *Table) Bytes() int { return t.bytes }

// Empty says whether there are neither entries nor tombstones.
func (t *Table) Empty() bool { return len(t.entries) == 0 }

// Get finds an entry; nil: there is none, or it is deleted.
func (t *Table) Get(kind Kind, name string) *Entry {
	if e := t.entries[key{kind, name}]; e != nil && !e.Deleted {
		return e
	}
	return nil
}

// Known finds an entry, or the tombstone of one; nil: the key isn't known.
func (t *Table) Known(kind Kind, name string) *Entry { return t.entries[key{kind, name}] }

// All are the entries, and the tombstones, in the order of kinds and names. The slice is the table's.
func (t *Table) All() []*Entry { return t.sorted }

// AllOf are the entries of a kind, without tombstones, in the order of names.
func (t *Table) AllOf(kind Kind) iter.Seq[*Entry] {
	at, _ := slices.BinarySearchFunc(t.sorted, &Entry{Kind: kind}, compareKeys)
	return func(yield func(*Entry) bool) {
		for ; at < len(t.sorted) && t.sorted[at].Kind == kind; at++ {
			if e := t.sorted[at]; !e.Deleted && !yield(e) {
				return
			}
		}
	}
}

// Text is all entries in bytes, with their tombstones: what [Parse] reads. before comes first.
func (t *Table) Text(before ...byte) []byte {
	size := len(before)
	for _, e := range t.sorted {
		size += len(e.bytes)
	}
	b := append(make([]byte, 0, size), before...)
	for _, e := range t.sorted {
		b = append(b, e.bytes...)
	}
	return b
}

func compareKeys(a, b *Entry) int {
	if a.Kind != b.Kind {
		return int(a.Kind) - int(b.Kind)
	}
	return strings.Compare(a.Name, b.Name)
}

// Change makes a change of this node, at a time in unix ms, and returns the new entry. Its stamp is greater than that of the entry
// that it replaces, and than all that the table has seen but those that no clock has made (see saw), whatever the clock says. A nil
// value deletes the entry, whether or not it is there.
func (t *Table) Change(kind Kind, name string, value []byte, node wire.Node, now, monotonic int64) *Entry {
	e := &Entry{Kind: kind, Name: name, Value: value, Deleted: value == nil, learnt: monotonic}
	last := t.last
	if old := t.entries[e.key()]; old != nil {
		e.Replaced = old.Stamp
		if old.Stamp.Compare(last) > 0 {
			last = old.Stamp
		}
	} else {
		t.room(e)
	}
	e.Stamp = last.next(node, now)
	t.put(e)
	return e
}

// Expire deletes an entry whose time is over by what it says itself; nil: there is none. The tombstone counts more than that entry, and
// less than any change that was made since, at whatever node. If several nodes expire the entry, it is the same to all.
func (t *Table) Expire(kind Kind, name string, node wire.Node, monotonic int64) *Entry {
	old := t.Get(kind, name)
	if old == nil {
		return nil
	}
	e := &Entry{Kind: kind, Name: name, Deleted: true, Replaced: old.Stamp, Stamp: old.Stamp.next(node, old.Stamp.MS), learnt: monotonic}
	t.put(e)
	return e
}

// Expired says whether [Table.Expire] has made a tombstone.
func (e *Entry) Expired() bool {
	return e.Deleted && e.Stamp.MS == e.Replaced.MS && e.Stamp.Count == e.Replaced.Count+1
}

// Learn takes an entry that another node, or a log, tells of. It returns the entry that isn't valid any more, or isn't
// valid at all: lost; nil: there was none. took says whether e is valid now. Nothing changes if the table knows e, or a
// later one.
func (t *Table) Learn(e *Entry, now, monotonic int64) (took bool, lost *Entry) {
	old := t.entries[e.key()]
	switch {
	case old != nil && old.compare(e) >= 0:
		if t.saw(e.Stamp); old.compare(e) > 0 {
			lost = e
		}
		return false, lost
	case old == nil && e.Deleted && now-e.Stamp.MS >= keepMS:
		return false, nil
	case old == nil && !t.room(e):
		return false, nil
	}
	e.learnt = monotonic
	t.put(e)
	return true, old
}

// Load takes an entry from this node's own log, unless the table has a later one.
func (t *Table) Load(e *Entry, monotonic int64) (took bool) {
	if old := t.entries[e.key()]; old != nil && old.compare(e) >= 0 {
		return false
	}
	e.learnt = monotonic
	t.put(e)
	return true
}

// room makes room for a new entry, at the cost of the oldest tombstones. False: there is none.
func (t *Table) room(e *Entry) bool {
	full := func() bool { return len(t.entries) >= Most || t.bytes+len(e.Name)+len(e.Value) >= MostBytes }
	if !full() {
		return true
	}
	var gone []*Entry
	for len(t.oldest) > 0 && full() {
		dead := (*Entry)(t.oldest[0])
		t.drop(dead)
		gone = append(gone, dead)
	}
	t.unsort(gone)
	return !full()
}

// DropTombstones forgets tombstones, some of them in one call: no other node is known, so none can have the entries.
func (t *Table) DropTombstones() {
	var gone []*Entry
	for len(t.oldest) > 0 && len(gone) < sweepMost {
		dead := (*Entry)(t.oldest[0])
		t.drop(dead)
		gone = append(gone, dead)
	}
	t.unsort(gone)
}

// Forget removes an entry, and leaves no tombstone.
func (t *Table) Forget(kind Kind, name string) {
	if e := t.entries[key{kind, name}]; e != nil {
		t.remove(e)
	}
}

// Force takes an entry whatever the table has: it comes from a log of an earlier release, which had no stamps.
func (t *Table) Force(e *Entry, monotonic int64) {
	e.learnt = monotonic
	t.put(e)
}

// saw notes the greatest stamp. It leaves out those that no clock has made: otherwise one of them would soon leave no room for later
// changes of any entry.
func (t *Table) saw(s Stamp) {
	if s.MS <= maxMS/2 && s.Compare(t.last) > 0 {
		t.last = s
	}
}

func (t *Table) put(e *Entry) {
	if t.entries == nil {
		t.entries, t.leaves, t.dead, t.counts = map[key]*Entry{}, map[uint16][]*Entry{}, map[key]*Entry{}, map[Kind]int{}
	}
	k := e.key()
	if old := t.entries[k]; old != nil {
		t.remove(old)
	}
	t.saw(e.Stamp)
	if e.Deleted && e.Kind.Own() {
		return // no other node has it
	}
	e.bytes = e.Append(nil)
	t.bytes += len(e.bytes)
	if !e.Deleted {
		t.counts[e.Kind]++
	}
	t.entries[k] = e
	at, _ := slices.BinarySearchFunc(t.sorted, e, compareKeys)
	t.sorted = slices.Insert(t.sorted, at, e)
	if e.gone = false; e.Deleted {
		t.dead[k] = e
		heap.Push(&t.oldest, (*tombstone)(e))
	}
	if e.Kind.Own() {
		return
	}
	e.leaf, e.sum = hash(e)
	leaf := t.leaves[e.leaf]
	at, _ = slices.BinarySearchFunc(leaf, e, compareKeys)
	t.leaves[e.leaf] = slices.Insert(leaf, at, e)
	t.count(e.leaf, e.sum)
}

func (t *Table) remove(e *Entry) {
	t.drop(e)
	t.unsort([]*Entry{e})
}

// unsort is the end of a removal: it takes entries that were dropped out of the sorted ones. If they are several, it does so in one pass.
func (t *Table) unsort(gone []*Entry) {
	switch len(gone) {
	case 0:
	case 1:
		if at, found := slices.BinarySearchFunc(t.sorted, gone[0], compareKeys); found {
			t.sorted = slices.Delete(t.sorted, at, at+1)
		}
	default:
		t.sorted = slices.DeleteFunc(t.sorted, func(e *Entry) bool { return e.gone })
	}
}

// drop removes an entry, but leaves it among the sorted ones, see unsort.
func (t *Table) drop(e *Entry) {
	k := e.key()
	delete(t.entries, k)
	if e.gone = true; e.Deleted {
		delete(t.dead, k)
		heap.Remove(&t.oldest, e.place)
	} else {
		t.counts[e.Kind]--
	}
	t.bytes -= len(e.bytes)
	if e.Kind.Own() {
		return
	}
	t.retire(e)
	leaf := slices.DeleteFunc(t.leaves[e.leaf], func(o *Entry) bool { return o == e })
	if t.leaves[e.leaf] = leaf; len(leaf) == 0 {
		delete(t.leaves, e.leaf)
	}
}

// retire takes an entry out of the sums.
func (t *Table) retire(e *Entry) {
	if !e.retired {
		t.count(e.leaf, -e.sum)
		e.retired = true
	}
}

// recall takes back what retire has done: the clock was ahead.
func (t *Table) recall(e *Entry) {
	if e.retired {
		t.count(e.leaf, e.sum)
		e.retired = false
	}
}

// Sweep lets old tombstones go, some of them in one call. agreed is since when (monotonic ms) all known nodes have had
// the same entries as this one: none of them has an entry whose tombstone came before that.
func (t *Table) Sweep(now, agreed int64) {
	var gone []*Entry
	looked := 0
	for _, e := range t.dead {
		if looked++; looked > sweepMost {
			break
		}
		if now-e.Stamp.MS < keepMS {
			t.recall(e)
			continue
		}
		t.retire(e)
		if e.learnt < agreed {
			t.drop(e)
			gone = append(gone, e)
		}
	}
	t.unsort(gone)
}

// The table's parts: a key's hash has 12 bits, of which the first four say in which of 16 parts the key is, the next
// four in which of 16 parts of that one, and so on.
const (
	Levels   = 3  // the level of the smallest parts
	Fan      = 16 // parts of each part
	fanBits  = 4
	leafBits = Levels * fanBits
)

// Part is a part of the table: the keys whose hash begins with Prefix, of which Level times four bits count. The zero
// Part is all of the table.
type Part struct {
	Level  uint8 // 0 to Levels
	Prefix uint16
}

// Valid says whether there is such a part.
func (p Part) Valid() bool { return p.Level <= Levels && p.Prefix < 1<<(fanBits*p.Level) }

// Child is one of a part's parts.
func (p Part) Child(i int) Part { return Part{p.Level + 1, p.Prefix<<fanBits | uint16(i)} }

// hash is an entry's leaf, by its key, and its sum, by all its bytes. All nodes compute the same.
func hash(e *Entry) (leaf uint16, sum uint64) {
	h := sha256.Sum256(append([]byte{byte(e.Kind)}, e.Name...))
	leaf = binary.BigEndian.Uint16(h[:]) >> (16 - leafBits)
	h = sha256.Sum256(e.bytes)
	return leaf, binary.BigEndian.Uint64(h[:])
}

// count adds to the sums of the parts in which a leaf is.
func (t *Table) count(leaf uint16, sum uint64) {
	for level := range t.sums {
		if t.sums[level] == nil {
			t.sums[level] = make([]uint64, 1<<(fanBits*(level+1)))
		}
		t.sums[level][leaf>>(fanBits*(Levels-1-level))] += sum
	}
}

// Sums are the sums of the parts of a part, which is no leaf.
func (t *Table) Sums(p Part) (sums [Fan]uint64) {
	if s := t.sums[p.Level]; s != nil {
		copy(sums[:], s[int(p.Prefix)<<fanBits:])
	}
	return sums
}

// Sum is the sum of all entries. Two tables with the same sum have the same entries.
func (t *Table) Sum() (sum uint64) {
	for _, s := range t.Sums(Part{}) {
		sum += s
	}
	return sum
}

// In are the entries of a leaf, with tombstones that count, in the order of keys.
func (t *Table) In(leaf Part) []*Entry {
	return slices.DeleteFunc(slices.Clone(t.leaves[leaf.Prefix]), func(e *Entry) bool { return e.retired })
}
