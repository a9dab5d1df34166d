package store

import (
	"bytes"
	"encoding/binary"
	"iter"
	"math/bits"
	"unsafe"

	"jobmesh/module/table"
)

// Flags of a family.
const (
	// FamilyDeferred: the job waits for somebody to release it.
	FamilyDeferred uint8 = 1 << iota
	// FamilyBlocked: the one job that it waits for blocks it, and takes it along
	// when it ends before it was released. Else they are dependencies.
	FamilyBlocked
	// FamilyLast: it was released to come last, and waits for Count others to end.
	FamilyLast
	// FamilyEarly: it waits for nobody; the job named waits for it.
	FamilyEarly
	// FamilyCancelled: of an acknowledged job, that it wasn't done but cancelled.
	FamilyCancelled
	// FamilyLeaves: of an acknowledged job, that it only stays until those are followed
	// that wait for its end; other nodes need not be told.
	FamilyLeaves
	// FamilyUnblocking: it was released to come last, and some of those that it blocked aren't
	// let go yet. To all that look at them they are as FamilyEarly.
	FamilyUnblocking
	// FamilyAdding: its ADDJOB may still wait for copies, as far as is known here.
	FamilyAdding
)

// Family is what a job waits for, as its TagFamily extra has it: the flags and
// the option (8 bits each), how many IDs there are (16), Count (32), and the IDs.
type Family struct {
	Flags  uint8
	OnDead uint8  // what to do when a dependency ends undone; the engine's
	Count  uint32 // FamilyLast: how many have to end before it; FamilyDeferred: how many of those have
	ids    []byte
}

const familyHead = 8

// MaxFamilyIDs is how many jobs one can wait for: with them all there is room for
// other extras.
const MaxFamilyIDs = 1000

// Family reads a job's extra; false where it has none, or none that makes sense.
// It is valid until the job changes.
func (j *Job) Family() (f Family, ok bool) {
	if j.Parts == 0 {
		return f, false
	}
	return FamilyOf(j.Extras())
}

// FamilyOf is [Job.Family] of extras that are no job's yet.
func FamilyOf(extras []byte) (f Family, ok bool) {
	b := FindExtra(extras, TagFamily)
	if len(b) < familyHead || len(b) != familyHead+int(binary.LittleEndian.Uint16(b[2:]))*len(ID{}) {
		return f, false
	}
	return Family{Flags: b[0], OnDead: b[1], Count: binary.LittleEndian.Uint32(b[4:]), ids: b[familyHead:]}, true
}

// IDs counts the jobs it names.
func (f *Family) IDs() int { return len(f.ids) / len(ID{}) }

// ID is the i-th of them.
func (f *Family) ID(i int) ID { return ID(f.ids[i*len(ID{}):]) }

// Name has it name these jobs and no others, each once, and at most [MaxFamilyIDs].
func (f *Family) Name(ids ...ID) {
	f.ids = make([]byte, 0, len(ids)*len(ID{}))
	named := make(map[ID]bool, len(ids))
	for i := range ids {
		if id := &ids[i]; !named[*id] && len(named) < MaxFamilyIDs {
			named[*id] = true
			f.ids = append(f.ids, id[:]...)
		}
	}
}

// Drop takes jobs out, which are given in the order in which they are named; false where the
// first isn't named.
func (f *Family) Drop(ids ...ID) bool {
	left := make([]byte, 0, max(0, len(f.ids)-len(ids)*len(ID{})))
	for i := range f.IDs() {
		if id := f.ID(i); len(ids) > 0 && id == ids[0] {
			ids = ids[1:]
		} else {
			left = append(left, id[:]...)
		}
	}
	dropped := len(left) < len(f.ids)
	f.ids = left
	return dropped
}

// Held says whether the job may not be queued yet.
func (f *Family) Held() bool {
	return f.Flags&FamilyDeferred != 0 || f.Flags&FamilyLast != 0 && f.Count > 0 || len(f.ids) > 0 && f.Flags&FamilyEarly == 0
}

// Unreleased says whether it is held back, and not by having been released to
// come last.
func (f *Family) Unreleased() bool { return f.Held() && f.Flags&FamilyLast == 0 }

// Empty says whether there is nothing to keep.
func (f *Family) Empty() bool {
	return !f.Held() && len(f.ids) == 0 && f.Flags&(FamilyCancelled|FamilyLeaves|FamilyUnblocking) == 0
}

// Value is the extra's value; nil where there is nothing to keep.
func (f *Family) Value() []byte {
	if f.Empty() {
		return nil
	}
	b := make([]byte, familyHead, familyHead+len(f.ids))
	b[0], b[1] = f.Flags, f.OnDead
	binary.LittleEndian.PutUint16(b[2:], uint16(f.IDs()))
	binary.LittleEndian.PutUint32(b[4:], f.Count)
	return append(b, f.ids...)
}

// Dependents is the jobs that wait for the end of one; or for which that one waits
// (FamilyEarly). Those that Blocked counts come before all others, so that few of them
// are found among very many; both are in order, the oldest first. The one needn't be
// known. Dependents and edges aren't saved: they follow from what the jobs' extras say.
type Dependents struct {
	table.Entry             // chain in the table of lists of dependents
	next, prev  *Dependents // neighbours in the list of all
	ID          ID
	head, tail  *Edge
	last        *Edge // of those that Blocked counts
	Len         uint64
	Blocked     uint64 // those that the one blocks, or did before it was released to come last
	walk        *Edge  // the next for [Dependents.Walk], which is over where Blocked doesn't count it
	walking     bool   // it has begun
	near        *Edge  // the one that was tied last, or is beside where that one was
	rungs       *[rungLevels]*rung
}

// Edge is one of a list of dependents.
type Edge struct {
	table.Entry // chain in the table of edges
	knot        *Dependents
	next, prev  *Edge
	Job         ID     // that waits
	ctime       uint64 // when it was created, ns; and edgeBlocked
}

// rung is a edge's place on one level above the list of all. Each level leads past most edges:
// the first one has every sixteenth of them, by chance, the next one every sixteenth of those.
// So the place of a edge among very many is found in few steps: a skip list.
type rung struct {
	tie  *Edge
	next *rung
	down *rung // the same edge's on the level below; nil on the first one
}

const (
	rungLevels = 5
	rungBits   = 4 // of a hash, for each level that a edge is on
)

// edgeBlocked marks a edge that Dependents.Blocked counts. No creation time before the year 2262
// has that bit.
const tieBlocked = 1 << 63

// blocked says whether Dependents.Blocked counts the edge; false for nil.
func (t *Edge) blocked() bool { return t != nil && t.ctime&tieBlocked != 0 }

func (t *Edge) created() uint64 { return t.ctime &^ tieBlocked }

// lists of dependents are all there is of families beside the jobs.
type knots struct {
	parents, edges table.Table
	all            *Dependents
	graves         []*Dependents // lists of lists of dependents to be freed
	lost           []Lost
}

const (
	knotSize  = int(unsafe.Sizeof(Dependents{}))
	tieSize   = int(unsafe.Sizeof(Edge{}))
	rungSize  = int(unsafe.Sizeof(rung{}))
	rungsSize = int(unsafe.Sizeof([rungLevels]*rung{}))
)

func dependentsOf(e *table.Entry) *Dependents { return (*Dependents)(unsafe.Pointer(e)) }
func edgeOf(e *table.Entry) *Edge             { return (*Edge)(unsafe.Pointer(e)) }

// initDependents makes the tables, when the first family does.
func (s *Store) initDependents() {
	s.knots.parents.Init(s.alloc, func(e *table.Entry) uint64 { return dependentsOf(e).ID.hash(s.keys.id) })
	s.knots.edges.Init(s.alloc, func(e *table.Entry) uint64 {
		t := edgeOf(e)
		return s.hashEdge(&t.knot.ID, &t.Job)
	})
}

func (s *Store) hashEdge(parent, child *ID) uint64 {
	return scramble(parent.hash(s.keys.id)) + child.hash(s.keys.id)
}

// Dependents finds the jobs that are tied to one; nil where there are none.
func (s *Store) Dependents(id *ID) *Dependents {
	if s.knots.parents.Len == 0 {
		return nil
	}
	for e := s.knots.parents.First(id.hash(s.keys.id)); e != nil; e = e.Next {
		if k := dependentsOf(e); k.ID == *id {
			return k
		}
	}
	return nil
}

func (s *Store) findEdge(parent, child *ID) *Edge {
	for e := s.knots.edges.First(s.hashEdge(parent, child)); e != nil; e = e.Next {
		if t := edgeOf(e); t.Job == *child && t.knot.ID == *parent {
			return t
		}
	}
	return nil
}

// AddEdge edges a job to another, of which nothing but the ID need be known. Twice is once.
func (s *Store) AddEdge(parent *ID, child *Job) {
	if s.knots.edges.Len > 0 && s.findEdge(parent, &child.ID) != nil {
		return
	}
	k := s.Dependents(parent)
	if k == nil {
		if !s.knots.parents.Made() {
			s.initDependents()
		}
		k = (*Dependents)(s.alloc.Alloc(knotSize))
		*k = Dependents{ID: *parent, next: s.knots.all}
		if k.next != nil {
			k.next.prev = k
		}
		s.knots.all = k
		s.knots.parents.Insert(&k.Entry, k.ID.hash(s.keys.id))
	}
	t := (*Edge)(s.alloc.Alloc(tieSize))
	*t = Edge{knot: k, Job: child.ID, ctime: child.CTime &^ tieBlocked}
	if f, _ := child.Family(); f.Flags&(FamilyBlocked|FamilyEarly) != 0 {
		t.ctime |= tieBlocked
		k.Blocked++
	}
	s.place(k, t)
	s.knots.edges.Insert(&t.Entry, s.hashEdge(parent, &child.ID))
}

// rungsOf is on how many levels a edge is. It follows from a hash that is secret: nobody
// outside can choose IDs that fill a level.
func (s *Store) rungsOf(t *Edge) int {
	h := scramble(s.hashEdge(&t.knot.ID, &t.Job))
	return min(bits.TrailingZeros64(h)/rungBits, rungLevels)
}

// place puts a edge where it belongs.
func (s *Store) place(k *Dependents, t *Edge) {
	var path [rungLevels]*rung
	var at *Edge
	levels := s.rungsOf(t)
	if found := false; levels == 0 {
		if at, found = k.beside(t); !found {
			at = k.before(t, &path)
		}
	} else {
		at = k.before(t, &path)
		s.addRungs(k, t, levels, &path)
	}
	if t.prev = at; at == nil {
		t.next, k.head = k.head, t
	} else {
		t.next, at.next = at.next, t
	}
	if t.next == nil {
		k.tail = t
	} else {
		t.next.prev = t
	}
	switch {
	case !t.blocked():
	case at == k.last:
		k.last = t
	case k.walk.blocked():
		k.walking = false // it begins anew
	}
	k.near = t
	k.Len++
}

// beside finds the edge behind which one belongs, nil for the first place, where that is at
// the end, or near the one that was tied last: jobs come in the order in which they were
// made, or a little out of it.
func (k *Dependents) beside(t *Edge) (at *Edge, found bool) {
	const near = 64
	end := k.tail
	if t.blocked() {
		end = k.last
	}
	if end == nil || compareEdges(end, t) < 0 {
		return end, true
	}
	at = k.near
	for range near {
		switch {
		case at != nil && compareEdges(at, t) > 0:
			at = at.prev
		case at == nil || at.next == nil || compareEdges(at.next, t) > 0:
			return at, true
		default:
			at = at.next
		}
	}
	return nil, false
}

// before finds the last edge that comes before one, nil where that is the first; on each
// level too.
func (k *Dependents) before(t *Edge, path *[rungLevels]*rung) (at *Edge) {
	if k.rungs != nil {
		var l *rung
		for i := rungLevels - 1; i >= 0; i-- {
			next := k.rungs[i]
			if l != nil {
				next = l.next
			}
			for ; next != nil && compareEdges(next.tie, t) < 0; next = l.next {
				l = next
			}
			path[i] = l
			if l != nil && i > 0 {
				l = l.down
			}
		}
		if l != nil {
			at = l.tie
		}
	}
	next := k.head
	if at != nil {
		next = at.next
	}
	for ; next != nil && compareEdges(next, t) < 0; next = at.next {
		at = next
	}
	return at
}

// behind is where a level goes on behind the rung of a path, or begins.
func (k *Dependents) behind(path *[rungLevels]*rung, level int) **rung {
	if l := path[level]; l != nil {
		return &l.next
	}
	return &k.rungs[level]
}

// addRungs puts a edge on the first levels, behind those of a path.
func (s *Store) addRungs(k *Dependents, t *Edge, levels int, path *[rungLevels]*rung) {
	if k.rungs == nil {
		k.rungs = (*[rungLevels]*rung)(s.alloc.Alloc(rungsSize))
		*k.rungs = [rungLevels]*rung{}
	}
	var down *rung
	for i := range levels {
		l, after := (*rung)(s.alloc.Alloc(rungSize)), k.behind(path, i)
		*l = rung{tie: t, next: *after, down: down}
		*after, down = l, l
	}
}

// leaveRungs takes a edge off its levels.
func (s *Store) leaveRungs(k *Dependents, t *Edge) {
	levels := s.rungsOf(t)
	if levels == 0 {
		return
	}
	var path [rungLevels]*rung
	k.before(t, &path)
	for i := range levels {
		after := k.behind(&path, i)
		l := *after
		*after = l.next
		s.alloc.Free(unsafe.Pointer(l), rungSize)
	}
}

func compareEdges(a, b *Edge) int {
	switch {
	case a.blocked() != b.blocked():
		if a.blocked() {
			return -1
		}
		return 1
	case a.created() < b.created():
		return -1
	case a.created() > b.created():
		return 1
	}
	return bytes.Compare(a.Job[:], b.Job[:])
}

// RemoveEdge undoes Tie; false where there is nothing to undo.
func (s *Store) RemoveEdge(parent, child *ID) bool {
	if s.knots.edges.Len == 0 {
		return false
	}
	t := s.findEdge(parent, child)
	if t == nil {
		return false
	}
	s.knots.edges.Remove(&t.Entry, s.hashEdge(parent, child))
	k := t.knot
	s.leaveRungs(k, t)
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		k.head = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		k.tail = t.prev
	}
	if k.walk == t {
		k.walk = t.next
	}
	if k.last == t {
		k.last = t.prev
	}
	if k.near == t {
		k.near = t.prev
	}
	if t.blocked() {
		k.Blocked--
	}
	s.alloc.Free(unsafe.Pointer(t), tieSize)
	if k.Len--; k.Len > 0 {
		return true
	}
	if k.prev != nil {
		k.prev.next = k.next
	} else {
		s.knots.all = k.next
	}
	if k.next != nil {
		k.next.prev = k.prev
	}
	s.knots.parents.Remove(&k.Entry, k.ID.hash(s.keys.id))
	s.freeDependents(k)
	return true
}

// freeRung frees one rung of a list of dependents whose edges are gone; false where there is none.
func (s *Store) freeRung(k *Dependents) bool {
	if k.rungs == nil {
		return false
	}
	for i, l := range k.rungs {
		if l != nil {
			k.rungs[i] = l.next
			s.alloc.Free(unsafe.Pointer(l), rungSize)
			return true
		}
	}
	return false
}

// freeDependents frees a list of dependents that has no edges and no rungs.
func (s *Store) freeDependents(k *Dependents) {
	if k.rungs != nil {
		s.alloc.Free(unsafe.Pointer(k.rungs), rungsSize)
	}
	s.alloc.Free(unsafe.Pointer(k), knotSize)
}

// First is the first job of a list of dependents.
func (k *Dependents) First() *Edge { return k.head }

// EachBlocked yields the jobs that Blocked counts. The list of dependents mayn't change meanwhile.
func (k *Dependents) EachBlocked() iter.Seq[*ID] {
	return func(yield func(*ID) bool) {
		for t := k.head; t.blocked() && yield(&t.Job); {
			t = t.next
		}
	}
}

// Others is the first job of a list of dependents that Blocked doesn't count; nil where there is none.
func (k *Dependents) Others() *Edge {
	if k.last != nil {
		return k.last.next
	}
	return k.head
}

// Youngest is the greatest creation time of a job's dependents' jobs.
func (k *Dependents) Youngest() uint64 {
	if k.last != nil {
		return max(k.last.created(), k.tail.created())
	}
	return k.tail.created()
}

// Walk is the next job that Blocked counts and wasn't met yet, oldest first; nil at the
// end. The list of dependents may change meanwhile. Where a job was tied before others, the walk begins anew.
func (k *Dependents) Walk() *Edge {
	if !k.walking {
		k.walking, k.walk = true, k.head
	}
	t := k.walk
	if !t.blocked() {
		return nil
	}
	k.walk = t.next
	return t
}

// After is the one behind a job of a list of dependents, nil at the end; the first, where that job is
// none of it.
func (s *Store) After(k *Dependents, id *ID) *Edge {
	if t := s.findEdge(&k.ID, id); t != nil {
		return t.next
	}
	return k.head
}

// Next is the one after it; nil at the end.
func (t *Edge) Next() *Edge { return t.next }

// Edges counts all edges.
func (s *Store) Edges() uint64 { return s.knots.edges.Len }

// removeEdges takes away a job's edges to others, before it is freed.
func (s *Store) removeEdges(j *Job) {
	if s.knots.edges.Len == 0 {
		return
	}
	f, _ := j.Family()
	for i := range f.IDs() {
		id := f.ID(i)
		s.RemoveEdge(&id, &j.ID)
	}
}

// Early says whether the job that a blocked one names waits for it: it was released to
// come last.
func (s *Store) Early(f *Family) bool {
	switch {
	case f.IDs() == 0:
		return false
	case f.Flags&FamilyEarly != 0:
		return true
	case f.Flags&FamilyBlocked == 0:
		return false
	}
	id := f.ID(0)
	p := s.Lookup(&id)
	if p == nil {
		return false
	}
	g, _ := p.Family()
	return g.Flags&FamilyUnblocking != 0
}

// Lost is a job that was freed with its queue, while others waited for its end.
type Lost struct {
	ID         ID
	Unreleased bool // it was held back, and not released
	Copies     bool // other nodes may hold it
	Ended      bool // it was acknowledged before, or with Undone cancelled
	Undone     bool
	Early      bool // Of, which was released to come last, waits for it
	Of         ID
}

// TakeLost gives those that [Store.Reap] came upon since.
func (s *Store) TakeLost() []Lost {
	lost := s.knots.lost
	s.knots.lost = nil
	return lost
}

// onFreed notes that a buried job goes, where others wait for it.
func (s *Store) onFreed(j *Job) {
	if s.knots.edges.Len == 0 {
		return
	}
	f, _ := j.Family()
	l := Lost{ID: j.ID, Unreleased: f.Unreleased(), Copies: j.Holders() > 0, Ended: j.State == StateAcked, Undone: f.Flags&FamilyCancelled != 0}
	if l.Early = s.Early(&f); l.Early {
		l.Of = f.ID(0)
		l.Early = s.RemoveEdge(&l.Of, &j.ID)
	}
	if l.Early || s.Dependents(&j.ID) != nil {
		s.knots.lost = append(s.knots.lost, l)
	}
}

// DropEdges forgets all edges; [Store.Reap] frees them. It takes time for the
// tables' segments only.
func (s *Store) DropEdges() {
	if s.knots.all != nil {
		s.knots.graves = append(s.knots.graves, s.knots.all)
		s.knots.all = nil
	}
	s.knots.lost = nil
	s.knots.parents.Drop()
	s.knots.edges.Drop()
	s.knots.parents, s.knots.edges = table.Table{}, table.Table{}
}

// reapEdges frees up to n edges that were dropped, and says how many more it could have.
func (s *Store) reapEdges(n int) int {
	for len(s.knots.graves) > 0 && n > 0 {
		last := len(s.knots.graves) - 1
		k := s.knots.graves[last]
		for ; k.head != nil && n > 0; n-- {
			t := k.head
			k.head = t.next
			s.alloc.Free(unsafe.Pointer(t), tieSize)
		}
		for n > 0 && s.freeRung(k) {
			n--
		}
		if n <= 0 {
			break
		}
		if s.knots.graves[last] = k.next; k.next == nil {
			s.knots.graves = s.knots.graves[:last]
		}
		s.freeDependents(k)
		n--
	}
	return n
}

// --- jobs that are done ------------------------------------------------------------

// done remembers which jobs were acknowledged lately. Each acknowledgement writes
// here and few are ever asked for: so they are only written down one after the other,
// and are put where they can be found when somebody asks.
type done struct {
	count  uint64 // acknowledgements
	sorted uint64 // as many of them are in buckets
	hashes [doneMost]uint64
	// Buckets of four, each of which forgets the oldest for a new one.
	buckets [doneMost / 4][4]struct{ hash, at uint64 }
}

const (
	doneMost  = 16384
	doneBytes = int(unsafe.Sizeof(done{}))
)

// SetDone remembers for a while that a job is acknowledged: for the next few thousand.
func (s *Store) SetDone(id *ID) {
	d := s.done
	if d == nil {
		d = (*done)(s.alloc.Alloc(doneBytes))
		*d = done{}
		s.done = d
	}
	d.hashes[d.count%doneMost] = scramble(id.hash(s.keys.id))
	d.count++
}

// Done says whether a job is remembered as acknowledged.
func (s *Store) Done(id *ID) bool {
	d := s.done
	if d == nil {
		return false
	}
	if d.count-d.sorted > doneMost {
		d.sorted = d.count - doneMost
	}
	for ; d.sorted < d.count; d.sorted++ {
		d.sort(d.hashes[d.sorted%doneMost])
	}
	h := scramble(id.hash(s.keys.id))
	for _, x := range d.buckets[h%uint64(len(d.buckets))] {
		if x.hash == h && x.at > 0 {
			return true
		}
	}
	return false
}

// sort puts the next acknowledgement into its bucket.
func (d *done) sort(h uint64) {
	b := &d.buckets[h%uint64(len(d.buckets))]
	oldest := 0
	for i := range b {
		if b[i].hash == h && b[i].at > 0 {
			return
		}
		if b[i].at < b[oldest].at {
			oldest = i
		}
	}
	b[oldest].hash, b[oldest].at = h, d.sorted+1
}
