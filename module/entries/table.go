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
// tombstones go first; then entries of other nodes aren't taken. Those who make changes limit them to less. Entries of
// ManyKinds are counted apart, and so are those of FewKinds, and a node's own. They have the other limits.
const (
	Most      = 40_000
	MostBytes = 8 << 20

	MostMany      = 150_000
	MostManyBytes = 64 << 20

	MostFew = 3000
)

// keepMS is how long a tombstone counts, ms. After that it goes as soon as no known node can have the entry.
const keepMS = 24 * 3600 * 1000

// sweepMost is how many tombstones one call looks at.
const sweepMost = 500

// Table is all entries that a node knows.
type Table struct {
	entries map[key]*Entry
	classes [8]class
	leaves  map[uint16][]*Entry // in the order of keys
	sums    [Levels][]uint64    // of each part, see Sums; nil while the table is empty
	last    Stamp               // the greatest one that was seen
	counts  map[Kind]int        // of entries that aren't tombstones
	dead    map[key]*Entry      // the tombstones
	changed map[uint16]struct{} // leaves that have changed since Changes was called last
	told    bool                // Changes was called before
}

// class is the entries that share a limit.
type class struct {
	sorted sorted // all of them
	bytes  int
	oldest table.Schedule[*tombstone]
}

// full says whether no entry of so many bytes can be added to class i.
func (c *class) full(i, size int) bool { return c.fullWithout(i, size, 0) }

// fullWithout is full where some entries were dropped, and are still among the sorted ones.
func (c *class) fullWithout(i, size, dropped int) bool {
	most, bytes := Most, MostBytes
	switch {
	case i&ManyKinds.class() != 0:
		most, bytes = MostMany, MostManyBytes
	case i&FewKinds.class() != 0:
		most = MostFew
	}
	return c.sorted.count-dropped >= most || c.bytes+size >= bytes
}

// tombstone is an entry in class.oldest, which has all tombstones, the least stamp first.
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
func (t *Table) Bytes() (bytes int) {
	for i := range t.classes {
		bytes += t.classes[i].bytes
	}
	return bytes
}

// Fits says whether entries of a kind may have so many bytes more. They may have half of what the limit allows.
func (t *Table) Fits(kind Kind, size int) bool {
	most := MostBytes
	if kind&ManyKinds != 0 {
		most = MostManyBytes
	}
	return t.classes[kind.class()].bytes+size <= most/2
}

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

// All are the entries, and the tombstones, in the order of kinds and names.
func (t *Table) All() []*Entry {
	all := make([]*Entry, 0, len(t.entries))
	for i := range t.classes {
		all = slices.AppendSeq(all, t.classes[i].sorted.from(&Entry{}))
	}
	return all
}

// AllOf are the entries of a kind, without tombstones, in the order of names.
func (t *Table) AllOf(kind Kind) iter.Seq[*Entry] {
	return t.From(kind, "")
}

// From is AllOf from a name on.
func (t *Table) From(kind Kind, name string) iter.Seq[*Entry] {
	all := t.classes[kind.class()].sorted.from(&Entry{Kind: kind, Name: name})
	return func(yield func(*Entry) bool) {
		for e := range all {
			if e.Kind != kind || !e.Deleted && !yield(e) {
				return
			}
		}
	}
}

// Text is all entries in bytes, with their tombstones: what [Parse] reads. before comes first.
func (t *Table) Text(before ...byte) []byte {
	b := append(make([]byte, 0, len(before)+t.Bytes()), before...)
	for i := range t.classes {
		for e := range t.classes[i].sorted.from(&Entry{}) {
			b = append(b, e.bytes...)
		}
	}
	return b
}

// Pages is how many pages [Table.Changes] tells.
const Pages = 1 << leafBits

// IsNew says whether [Table.Changes] was never called: what was told of another table counts no more.
func (t *Table) IsNew() bool { return !t.told }

// Changes tells the pages that have changed since the last call, each with its whole text, which is valid during the call of do. The texts
// of all pages together, in any order, are what [Parse] reads.
func (t *Table) Changes(do func(page int, text []byte)) {
	t.told = true
	var text []byte
	for leaf := range t.changed {
		text = text[:0]
		for _, e := range t.leaves[leaf] {
			text = append(text, e.bytes...)
		}
		do(int(leaf), text)
	}
	clear(t.changed)
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
	i, size := e.Kind.class(), len(e.Name)+len(e.Value)
	c := &t.classes[i]
	var gone []*Entry
	for full := c.full(i, size); full && len(c.oldest) > 0; full = c.fullWithout(i, size, len(gone)) {
		gone = append(gone, t.dropOldest(c))
	}
	c.unsort(gone)
	return !c.full(i, size)
}

func (t *Table) dropOldest(c *class) *Entry {
	dead := (*Entry)(c.oldest[0])
	t.drop(dead)
	return dead
}

// DropTombstones forgets tombstones, some of them in one call: no other node is known, so none can have the entries.
func (t *Table) DropTombstones() {
	for i := range t.classes {
		c := &t.classes[i]
		var gone []*Entry
		for len(c.oldest) > 0 && len(gone) < sweepMost {
			gone = append(gone, t.dropOldest(c))
		}
		c.unsort(gone)
	}
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
		t.entries, t.leaves, t.dead, t.counts, t.changed = map[key]*Entry{}, map[uint16][]*Entry{}, map[key]*Entry{}, map[Kind]int{}, map[uint16]struct{}{}
	}
	k, c := e.key(), &t.classes[e.Kind.class()]
	t.saw(e.Stamp)
	old := t.entries[k]
	if e.Deleted && e.Kind.Own() { // no other node has it
		if old != nil {
			t.remove(old)
		}
		return
	}
	if old != nil {
		t.drop(old)
	}
	e.bytes = e.Append(nil)
	c.bytes += len(e.bytes)
	if !e.Deleted {
		t.counts[e.Kind]++
	}
	t.entries[k] = e
	c.sorted.put(e)
	if e.Deleted {
		t.dead[k] = e
		heap.Push(&c.oldest, (*tombstone)(e))
	}
	e.leaf, e.sum = hash(e)
	leaf := t.leaves[e.leaf]
	at, _ := slices.BinarySearchFunc(leaf, e, compareKeys)
	t.leaves[e.leaf] = slices.Insert(leaf, at, e)
	t.changed[e.leaf] = struct{}{}
	if !e.Kind.Own() {
		t.count(e.leaf, e.sum)
	}
}

func (t *Table) remove(e *Entry) {
	t.drop(e)
	t.classes[e.Kind.class()].unsort([]*Entry{e})
}

// unsort is the end of a removal: it takes entries that were dropped out of the sorted ones.
func (c *class) unsort(gone []*Entry) {
	for _, e := range gone {
		c.sorted.remove(e)
	}
}

// drop removes an entry, but leaves it among the sorted ones, see unsort.
func (t *Table) drop(e *Entry) {
	k, c := e.key(), &t.classes[e.Kind.class()]
	delete(t.entries, k)
	if e.Deleted {
		delete(t.dead, k)
		heap.Remove(&c.oldest, e.place)
	} else {
		t.counts[e.Kind]--
	}
	c.bytes -= len(e.bytes)
	if !e.Kind.Own() {
		t.retire(e)
	}
	t.changed[e.leaf] = struct{}{}
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
	var gone [len(t.classes)][]*Entry
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
			gone[e.Kind.class()] = append(gone[e.Kind.class()], e)
		}
	}
	for i := range t.classes {
		t.classes[i].unsort(gone[i])
	}
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
	return slices.DeleteFunc(slices.Clone(t.leaves[leaf.Prefix]), func(e *Entry) bool { return e.retired || e.Kind.Own() })
}
