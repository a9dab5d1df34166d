package store

import (
	"bytes"
	"encoding/binary"
	"iter"
	"unsafe"

	"jobmesh/module/table"
)

// Flags of a family.
const (
	// FamilyDeferred: the job waits for a client to release it.
	FamilyDeferred uint8 = 1 << iota
	// FamilyBlocked: the job waits for one job, which blocks it. If that one is cancelled
	// before it is released, this job is dropped with it. Without this flag the IDs are
	// dependencies.
	FamilyBlocked
	// FamilyLast: the job was released to come last, and waits for Count others to end.
	FamilyLast
	// FamilyEarly: the job waits for nothing. The job that it names was released to come
	// last, and waits for it.
	FamilyEarly
	// FamilyCancelled: the acknowledged job was cancelled, not done.
	FamilyCancelled
	// FamilyLeaves: the acknowledged job stays only until all jobs that wait for its end are
	// followed. Other nodes need not be told of it.
	FamilyLeaves
	// FamilyUnblocking: the job was released to come last, and some jobs that it blocked
	// aren't unblocked yet. Until they are, they count as FamilyEarly ([Store.Early]).
	FamilyUnblocking
	// FamilyAdding: as far as this node knows, the job's ADDJOB may still wait for copies.
	FamilyAdding
)

// Family says what a job waits for. It is stored as the job's TagFamily extra: Flags and
// OnDead (8 bits each), the number of IDs (16 bits), Count (32 bits), and the IDs.
type Family struct {
	Flags  uint8
	OnDead uint8  // what to do when a dependency ends undone (package engine)
	Count  uint32 // FamilyLast: how many jobs must end before this one; FamilyDeferred: how many that it blocks have ended
	ids    []byte
}

const familyHead = 8

// MaxFamilyIDs is the greatest number of jobs that a job can wait for. With as many there
// is still room for other extras.
const MaxFamilyIDs = 1000

// Family reads a job's TagFamily extra. ok is false if there is none, or if its length is
// wrong. The result is valid until the job changes.
func (j *Job) Family() (f Family, ok bool) {
	if j.Parts == 0 {
		return f, false
	}
	return FamilyOf(j.Extras())
}

// FamilyOf is [Job.Family] for extras that no job has yet.
func FamilyOf(extras []byte) (f Family, ok bool) {
	b := FindExtra(extras, TagFamily)
	if len(b) < familyHead || len(b) != familyHead+int(binary.LittleEndian.Uint16(b[2:]))*len(ID{}) {
		return f, false
	}
	return Family{Flags: b[0], OnDead: b[1], Count: binary.LittleEndian.Uint32(b[4:]), ids: b[familyHead:]}, true
}

// IDs is how many jobs the family names.
func (f *Family) IDs() int { return len(f.ids) / len(ID{}) }

// ID is the i-th job that the family names, from 0.
func (f *Family) ID(i int) ID { return ID(f.ids[i*len(ID{}):]) }

// Name makes the family name these jobs and no others: each once, and the first
// [MaxFamilyIDs] of them at most.
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

// Drop takes jobs out of the family. ids must be in the order in which the family names
// them. If it doesn't name the first one, Drop changes nothing and returns false.
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

// Unreleased says whether the job is held back, and wasn't released to come last.
func (f *Family) Unreleased() bool { return f.Held() && f.Flags&FamilyLast == 0 }

// Empty says whether the job needs no TagFamily extra.
func (f *Family) Empty() bool {
	return !f.Held() && len(f.ids) == 0 && f.Flags&(FamilyCancelled|FamilyLeaves|FamilyUnblocking) == 0
}

// Value is the extra's value; nil if the family is empty.
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

// Dependents lists the jobs that wait for the end of the job ID. If that job was released
// to come last, it waits for those with FamilyEarly instead. The jobs that Blocked counts
// come before all others, so that few of them are found among very many. Both groups are
// ordered by creation time, oldest first. This node need not know the job ID. Dependents
// and edges aren't saved: they follow from the jobs' extras.
type Dependents struct {
	table.Element[Dependents] // in the table of lists of dependents, and in edgeTable.all
	ID                        ID
	table.List[Edge]
	index   *table.SkipIndex[Edge] // nil until the list is long
	last    *Edge                  // the last edge that Blocked counts
	Blocked uint64                 // how many jobs ID blocks, or blocked before it was released to come last
	walk    *Edge                  // next for [Dependents.Walk]; the walk is over if Blocked doesn't count it
	walking bool                   // the walk has begun
	near    *Edge                  // the edge added last, or one near its place if it was removed
}

// Edge is one entry of a list of dependents.
type Edge struct {
	table.Element[Edge] // in the table of edges, and in the list of dependents
	dependents          *Dependents
	Job                 ID     // the dependent
	ctime               uint64 // when Job was created, ns; and edgeBlocked
}

// edgeBlocked, in Edge.ctime, marks an edge that Dependents.Blocked counts. No creation time
// before the year 2262 has that bit.
const edgeBlocked = 1 << 63

// blocked says whether Dependents.Blocked counts the edge; false for nil.
func (e *Edge) blocked() bool { return e != nil && e.ctime&edgeBlocked != 0 }

func (e *Edge) created() uint64 { return e.ctime &^ edgeBlocked }

// edgeTable has the lists of dependents and their edges. Nothing else is known of families
// beside what the jobs' extras say.
type edgeTable struct {
	parents, edges table.Table
	all            table.List[Dependents]
	toFree         []*Dependents // chains of lists that are to be freed
	lost           []Lost
}

const (
	dependentsSize = int(unsafe.Sizeof(Dependents{}))
	edgeSize       = int(unsafe.Sizeof(Edge{}))
	edgeIndexSize  = int(unsafe.Sizeof(table.SkipIndex[Edge]{}))

	// edgesWithoutIndex is how many edges a list has before it gets a skip list. Most lists
	// stay shorter.
	edgesWithoutIndex = 16
)

func dependentsOf(e *table.Entry) *Dependents { return (*Dependents)(unsafe.Pointer(e)) }
func edgeOf(e *table.Entry) *Edge             { return (*Edge)(unsafe.Pointer(e)) }

// initDependents makes the tables, before the first edge is added.
func (s *Store) initDependents() {
	s.edges.parents.Init(s.alloc, func(e *table.Entry) uint64 { return s.hashID(&dependentsOf(e).ID) })
	s.edges.edges.Init(s.alloc, func(x *table.Entry) uint64 {
		e := edgeOf(x)
		return s.hashEdge(&e.dependents.ID, &e.Job)
	})
}

func (s *Store) hashEdge(parent, child *ID) uint64 {
	return scramble(s.hashID(parent)) + s.hashID(child)
}

// Dependents finds the list of a job's dependents; nil if there is none.
func (s *Store) Dependents(id *ID) *Dependents {
	if s.edges.parents.Len == 0 {
		return nil
	}
	for x := s.edges.parents.First(s.hashID(id)); x != nil; x = x.Next {
		if d := dependentsOf(x); d.ID == *id {
			return d
		}
	}
	return nil
}

func (s *Store) findEdge(parent, child *ID) *Edge {
	for x := s.edges.edges.First(s.hashEdge(parent, child)); x != nil; x = x.Next {
		if e := edgeOf(x); e.Job == *child && e.dependents.ID == *parent {
			return e
		}
	}
	return nil
}

// AddEdge adds an edge from parent to child. This node need not know the parent. If the
// edge exists, nothing changes.
func (s *Store) AddEdge(parent *ID, child *Job) {
	if s.edges.edges.Len > 0 && s.findEdge(parent, &child.ID) != nil {
		return
	}
	d := s.Dependents(parent)
	if d == nil {
		if !s.edges.parents.Made() {
			s.initDependents()
		}
		d = (*Dependents)(s.alloc.Alloc(dependentsSize))
		*d = Dependents{ID: *parent}
		s.edges.all.Insert(d, nil)
		s.edges.parents.Insert(&d.Entry, s.hashID(&d.ID))
	}
	e := (*Edge)(s.alloc.Alloc(edgeSize))
	*e = Edge{dependents: d, Job: child.ID, ctime: child.CTime &^ edgeBlocked}
	if f, _ := child.Family(); f.Flags&(FamilyBlocked|FamilyEarly) != 0 {
		e.ctime |= edgeBlocked
		d.Blocked++
	}
	s.place(d, e)
	s.edges.edges.Insert(&e.Entry, s.hashEdge(parent, &child.ID))
}

// edgeHeight is how many levels of the skip list an edge is on.
func (s *Store) edgeHeight(e *Edge) int {
	return table.SkipHeight(scramble(s.hashEdge(&e.dependents.ID, &e.Job)))
}

// place puts an edge into the list at the place that its order gives it.
func (s *Store) place(d *Dependents, e *Edge) {
	if d.index == nil && d.Len >= edgesWithoutIndex {
		d.index = (*table.SkipIndex[Edge])(s.alloc.Alloc(edgeIndexSize))
		*d.index = table.SkipIndex[Edge]{}
	}
	height := 0
	if d.index != nil {
		height = s.edgeHeight(e)
	}
	var at *Edge
	found := false
	if height == 0 {
		at, found = d.beside(e)
	}
	if !found {
		var path table.SkipPath[Edge]
		if at = d.index.Place(&d.List, e, earlier, &path); height > 0 {
			d.index.Add(s.alloc, e, height, &path)
		}
	}
	d.Insert(e, at)
	switch {
	case !e.blocked():
	case at == d.last:
		d.last = e
	case d.walk.blocked():
		d.walking = false // the walk begins anew
	}
	d.near = e
}

// beside finds the edge behind which e belongs; nil means the first place. It looks only at
// the end, and near the edge that was added last, because jobs come in the order of their
// creation, or a little out of it. found is false if the place is elsewhere.
func (d *Dependents) beside(e *Edge) (at *Edge, found bool) {
	const near = 64
	end := d.Tail
	if e.blocked() {
		end = d.last
	}
	if end == nil || earlier(end, e) {
		return end, true
	}
	at = d.near
	for range near {
		switch {
		case at != nil && earlier(e, at):
			at = at.Prev
		case at == nil || at.Next == nil || earlier(e, at.Next):
			return at, true
		default:
			at = at.Next
		}
	}
	return nil, false
}

// earlier is the order of a list of dependents.
func earlier(a, b *Edge) bool {
	switch {
	case a.blocked() != b.blocked():
		return a.blocked()
	case a.created() != b.created():
		return a.created() < b.created()
	}
	return bytes.Compare(a.Job[:], b.Job[:]) < 0
}

// RemoveEdge undoes AddEdge. It returns false if there is no such edge.
func (s *Store) RemoveEdge(parent, child *ID) bool {
	if s.edges.edges.Len == 0 {
		return false
	}
	e := s.findEdge(parent, child)
	if e == nil {
		return false
	}
	s.edges.edges.Remove(&e.Entry, s.hashEdge(parent, child))
	d := e.dependents
	if d.walk == e {
		d.walk = e.Next
	}
	if d.last == e {
		d.last = e.Prev
	}
	if d.near == e {
		d.near = e.Prev
	}
	if e.blocked() {
		d.Blocked--
	}
	if s.freeEdge(e); d.Len == 0 {
		s.edges.all.Remove(d)
		s.edges.parents.Remove(&d.Entry, s.hashID(&d.ID))
		s.freeDependents(d)
	}
	return true
}

// freeEdge takes an edge out of its list and frees it.
func (s *Store) freeEdge(e *Edge) {
	d := e.dependents
	if d.index != nil && s.edgeHeight(e) > 0 {
		d.index.Remove(s.alloc, e, earlier)
	}
	d.Remove(e)
	s.alloc.Free(unsafe.Pointer(e), edgeSize)
}

// freeDependents frees a list of dependents that has no edges.
func (s *Store) freeDependents(d *Dependents) {
	if d.index != nil {
		s.alloc.Free(unsafe.Pointer(d.index), edgeIndexSize)
	}
	s.alloc.Free(unsafe.Pointer(d), dependentsSize)
}

// EachBlocked yields the jobs that Blocked counts. The list must not change meanwhile.
func (d *Dependents) EachBlocked() iter.Seq[*ID] {
	return func(yield func(*ID) bool) {
		for e := d.Head; e.blocked() && yield(&e.Job); {
			e = e.Next
		}
	}
}

// Others is the first edge that Blocked doesn't count; nil if there is none.
func (d *Dependents) Others() *Edge {
	if d.last != nil {
		return d.last.Next
	}
	return d.Head
}

// Youngest is the latest creation time of the jobs in the list.
func (d *Dependents) Youngest() uint64 {
	if d.last != nil {
		return max(d.last.created(), d.Tail.created())
	}
	return d.Tail.created()
}

// Walk is the next edge that Blocked counts, oldest first; nil at the end. The list may
// change during the walk. If such an edge is added before others, the walk begins anew.
func (d *Dependents) Walk() *Edge {
	if !d.walking {
		d.walking, d.walk = true, d.Head
	}
	e := d.walk
	if !e.blocked() {
		return nil
	}
	d.walk = e.Next
	return e
}

// After is the edge behind that of the job id, nil at the end. If the list doesn't have
// that job, After is the first edge.
func (s *Store) After(d *Dependents, id *ID) *Edge {
	if e := s.findEdge(&d.ID, id); e != nil {
		return e.Next
	}
	return d.Head
}

// Edges counts all edges.
func (s *Store) Edges() uint64 { return s.edges.edges.Len }

// removeEdges removes the edges from the jobs that j names, before j is freed.
func (s *Store) removeEdges(j *Job) {
	if s.edges.edges.Len == 0 {
		return
	}
	f, _ := j.Family()
	for i := range f.IDs() {
		id := f.ID(i)
		s.RemoveEdge(&id, &j.ID)
	}
}

// Early says whether the job that f names was released to come last, and so waits for the
// job that has f.
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
	Unreleased bool // it was held back, and not released to come last
	Copies     bool // other nodes may hold it
	Ended      bool // it was acknowledged before; with Undone: cancelled
	Undone     bool
	Early      bool // the job Of, which was released to come last, waits for it
	Of         ID
}

// TakeLost returns the lost jobs that [Store.Reap] has freed since the last call.
func (s *Store) TakeLost() []Lost {
	lost := s.edges.lost
	s.edges.lost = nil
	return lost
}

// onFreed notes that a job is about to be freed with its queue, if another job waits for its end.
func (s *Store) onFreed(j *Job) {
	if s.edges.edges.Len == 0 {
		return
	}
	f, _ := j.Family()
	l := Lost{ID: j.ID, Unreleased: f.Unreleased(), Copies: j.Holders() > 0, Ended: j.State == StateAcked, Undone: f.Flags&FamilyCancelled != 0}
	if l.Early = s.Early(&f); l.Early {
		l.Of = f.ID(0)
		l.Early = s.RemoveEdge(&l.Of, &j.ID)
	}
	if l.Early || s.Dependents(&j.ID) != nil {
		s.edges.lost = append(s.edges.lost, l)
	}
}

// DropEdges forgets all edges; [Store.Reap] frees them. Its time grows with the number of
// the tables' segments alone.
func (s *Store) DropEdges() {
	if first := s.edges.all.Head; first != nil {
		s.edges.toFree = append(s.edges.toFree, first)
	}
	s.edges.all = table.List[Dependents]{}
	s.edges.lost = nil
	s.edges.parents.Drop()
	s.edges.edges.Drop()
	s.edges.parents, s.edges.edges = table.Table{}, table.Table{}
}

// reapEdges frees up to n dropped edges and lists, and returns what is left of n.
func (s *Store) reapEdges(n int) int {
	for len(s.edges.toFree) > 0 && n > 0 {
		last := len(s.edges.toFree) - 1
		d := s.edges.toFree[last]
		for ; d.Head != nil && n > 0; n-- {
			s.freeEdge(d.Head)
		}
		if n <= 0 {
			break
		}
		if s.edges.toFree[last] = d.Next; d.Next == nil {
			s.edges.toFree = s.edges.toFree[:last]
		}
		s.freeDependents(d)
		n--
	}
	return n
}

// --- jobs that are done ------------------------------------------------------------

// done remembers which jobs were acknowledged lately. Each acknowledgement writes here, and
// few are ever looked up. So a write only appends a hash, and a look-up first puts the
// hashes that came since into buckets.
type done struct {
	count  uint64 // acknowledgements
	sorted uint64 // how many of them were put into buckets
	hashes [doneMost]uint64
	// Buckets of four. A full bucket forgets its oldest entry for a new one.
	buckets [doneMost / 4][4]struct{ hash, at uint64 }
}

const (
	doneMost  = 16384
	doneBytes = int(unsafe.Sizeof(done{}))
)

// SetDone remembers that a job is acknowledged, for the next few thousand acknowledgements.
func (s *Store) SetDone(id *ID) {
	d := s.done
	if d == nil {
		d = (*done)(s.alloc.Alloc(doneBytes))
		*d = done{}
		s.done = d
	}
	d.hashes[d.count%doneMost] = s.digest(id)
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
	h := s.digest(id)
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
