package engine

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"jobmesh/module/entries"
	"jobmesh/module/store"
	"jobmesh/module/table"
	"jobmesh/module/wire"
)

// A flush that comes late: QFLUSH … MESH was said while a node was away. When that node is back it hears of the flush, and cancels the jobs of the
// queue that it would queue. The invariant: no job goes that was promised after the flush began, or that any client was ever given. Where
// that isn't certain the job stays. Neither clocks nor silence make anything certain here:
//
//   - Each node tells with its heartbeats up to which creation time the jobs that were added at it are promised ([wire.Bounds]). Its later jobs
//     have later times, whatever its clock does, and over restarts, for the nodes' file has the time before it is told (goOnWithLine). The
//     flush notes these bounds of all nodes, so a job at or below that of its node was promised before (flushNote).
//   - The node that is back asks all nodes about each job (AskGiven). A node is sure of a job only if it has known all that became of the job
//     here since it was made (sureOf), counts no node that the asker doesn't, and has an idle copy of it, or none. It then leaves the job
//     to the asker for longer than the answers count.
//   - A job that waits for others, or for which others wait, is unique, has a name or was made for a slot, was moved, or got another body, stays.
//
// The flush is an entry of its queue, which says which nodes were away. Jobs that may go are out of their queue meanwhile, as after a restart
// (FlagReturning), and come back to it if they stay, also by their own timers.

const (
	lateMS        = 60_000  // so long a node waits for others that don't all answer
	asideMS       = 180_000 // jobs that are set aside come back by themselves then
	lateAnswerMS  = 3_000   // so long the answers to a question count, from when it was asked
	lateLeaveMS   = 6_000   // so long a node that is sure of a job leaves it to the asker
	lateLookMS    = 500     // between looks whether all nodes can be asked
	lateBatch     = 500     // jobs in a question
	lateAskMost   = 10_000  // jobs in a question that is answered
	lateBackSlice = 2_000   // jobs that come back in a tick when all stay
	gateMS        = 2_000   // so long a node waits, after its start, to hear of flushes
	flushesPage   = 50      // that a message tells
	flushesMost   = 1000    // flushes that are remembered
	flushKeepMS   = 24 * 3600 * 1000
	flushSpareMS  = 3600 * 1000 // so much later nodes drop a flush that another has noted
)

// --- which jobs may go ----------------------------------------------------------

// isPlain says whether nothing is known of a job that a flush which comes late must respect: no client was given it, and it is as it was added.
func (n *Node) isPlain(j *store.Job) bool {
	if j.Retry == 0 || j.Nacks > 0 || j.Deliveries > 0 || j.Flags&store.FlagDelivered != 0 || n.dummy(j) || n.hasDependents(j) ||
		n.store.Edges() > 0 && n.store.Dependents(&j.ID) != nil {
		return false
	}
	for i := range j.Holders() {
		if node, _ := j.Holder(i); n.mesh.ByName(wire.Node(node)) == nil {
			return false // a node that was forgotten may have given it to a client
		}
	}
	for rest := j.Extras(); len(rest) > 0; {
		tag, value, more := store.NextExtra(rest)
		switch rest = more; {
		case tag == store.TagPolicy, tag == store.TagPriority, tag == store.TagAt, tag == store.TagMaxLapses:
		case tag == store.TagEnd && len(value) == store.KeepLen:
		case tag == store.TagLife && len(value) == lifeLen && binary.LittleEndian.Uint32(value[lifeLen/2:]) == 0: // it wasn't revived, but has got another time
		default:
			return false
		}
	}
	return n.sureOf(&j.ID, j.CTime)
}

// isLeft says whether a copy of this node is one that it leaves to others, and will for a moment.
func (n *Node) isLeft(j *store.Job) bool {
	return j.State == store.StateActive && j.Place == store.InHeld && j.Reason() == store.NoReason && j.Flags&store.FlagAnnounced == 0 && !j.Returning() &&
		j.QTime > n.now+2*store.AnnounceMS
}

// --- flushes as entries ---------------------------------------------------------

// bound is up to where a node's jobs were promised when a queue was flushed.
type bound struct {
	line uint64
	told uint64
}

// lateness is what an EntryFlush says.
type lateness struct {
	away   []wire.Node // nodes that weren't asked, or didn't answer
	bounds map[wire.Node]bound
}

const lateFormat = 1

func (l *lateness) value() []byte {
	b := binary.AppendUvarint([]byte{lateFormat}, uint64(len(l.away)))
	for _, node := range l.away {
		b = binary.BigEndian.AppendUint64(b, uint64(node))
	}
	for _, node := range slices.Sorted(maps.Keys(l.bounds)) {
		b = binary.BigEndian.AppendUint64(b, uint64(node))
		b = binary.AppendUvarint(b, l.bounds[node].line)
		b = binary.AppendUvarint(b, l.bounds[node].told)
	}
	return b
}

// readLateness reads a value. If it can't, nobody is away. If IDs of jobs can't tell two nodes apart, neither of them has a bound.
func readLateness(b []byte) (l lateness) {
	l.bounds = map[wire.Node]bound{}
	if len(b) == 0 || b[0] != lateFormat {
		return l
	}
	b = b[1:]
	count, used := binary.Uvarint(b)
	if used <= 0 || count > uint64(len(b)/8) {
		return l
	}
	b = b[used:]
	if uint64(len(b)) < 8*count {
		return l
	}
	var away []wire.Node
	for ; count > 0; count-- {
		away, b = append(away, wire.Node(binary.BigEndian.Uint64(b))), b[8:]
	}
	seen := map[prefix]wire.Node{}
	for len(b) > 0 {
		if len(b) < 8 {
			return lateness{}
		}
		node := wire.Node(binary.BigEndian.Uint64(b))
		line, used := binary.Uvarint(b[8:])
		if used <= 0 {
			return lateness{}
		}
		b = b[8+used:]
		told, used := binary.Uvarint(b)
		if used <= 0 {
			return lateness{}
		}
		b = b[used:]
		if other, twice := seen[prefixOf(node)]; twice {
			delete(l.bounds, other)
			continue
		}
		seen[prefixOf(node)] = node
		l.bounds[node] = bound{line, told}
	}
	l.away = away
	return l
}

// flushNote is a flush of the whole mesh that this node has begun: what it has to note if some node is away.
type flushNote struct {
	queue string
	lateness
}

// noteBounds begins a flush of the whole mesh: it notes what is known of each node's jobs before the flush.
func (n *Node) noteBounds(queue string) *flushNote {
	f := &flushNote{queue, lateness{bounds: map[wire.Node]bound{}}}
	add := func(node wire.Node, b wire.Bounds) {
		if b.Line != 0 && b.Told != 0 {
			f.bounds[node] = bound{b.Line, b.Told}
		}
	}
	add(n.self.Node(), n.bounds())
	for _, p := range n.mesh.All() {
		add(p.Node, p.bounds)
	}
	return f
}

// noteAway makes a flush an entry, if some nodes were away that weren't noted yet.
func (n *Node) noteAway(f *flushNote, isAway func(*Peer) bool) {
	news := false
	for _, p := range n.mesh.All() {
		if isAway(p) && !slices.Contains(f.away, p.Node) {
			f.away, news = append(f.away, p.Node), true
		}
	}
	if !news || len(f.queue) > entries.MaxName || n.passive {
		return
	}
	all := lateness{away: slices.Clone(f.away), bounds: maps.Clone(f.bounds)}
	if e := n.alike.Get(EntryFlush, f.queue); e != nil { // jobs that were promised before that flush were promised before this one
		before := readLateness(e.Value)
		for node, b := range before.bounds {
			if mine, yes := all.bounds[node]; !yes || mine.line == b.line {
				all.bounds[node] = bound{b.line, max(b.told, mine.told)}
			}
		}
		for _, node := range before.away {
			if !slices.Contains(all.away, node) && n.mesh.ByName(node) != nil {
				all.away = append(all.away, node)
			}
		}
	} else if n.alike.Count(EntryFlush) >= flushesMost {
		n.dropOldestFlush()
	}
	value := all.value()
	if len(value) > entries.MaxValue || n.EntryFits(EntryFlush, len(f.queue)+len(value)) != nil {
		return
	}
	n.ChangeEntry(EntryFlush, f.queue, value)
}

// dropOldestFlush makes room for another one.
func (n *Node) dropOldestFlush() {
	var oldest *entries.Entry
	for e := range n.alike.AllOf(EntryFlush) {
		if oldest == nil || e.Stamp.Compare(oldest.Stamp) < 0 {
			oldest = e
		}
	}
	if oldest != nil {
		n.ChangeEntry(EntryFlush, oldest.Name, nil)
	}
}

// dropOldFlushes drops the flushes that are a day old.
func (n *Node) dropOldFlushes() {
	if n.alike.Count(EntryFlush) == 0 {
		return
	}
	var over []string
	for e := range n.alike.AllOf(EntryFlush) {
		age := n.now - e.Stamp.MS
		if age >= flushKeepMS+flushSpareMS || age >= flushKeepMS && e.Stamp.Node == n.self.Node() {
			over = append(over, e.Name)
		}
	}
	for _, name := range over {
		n.changed(n.alike.Expire(EntryFlush, name, n.self.Node(), n.monotonic()))
	}
}

// noteFlush follows a change of a flush.
func (n *Node) noteFlush(e *entries.Entry) {
	switch {
	case e.Kind != EntryFlush || n.loading || n.passive: // see lookAtFlushes
	case e.Deleted:
		if n.alike.Get(EntryFlushed, e.Name) != nil {
			n.ChangeEntry(EntryFlushed, e.Name, nil)
		}
	default:
		n.openLate(e)
	}
}

// lookAtFlushes looks at all flushes, after a start or a promotion.
func (n *Node) lookAtFlushes() {
	for _, e := range slices.Collect(n.alike.AllOf(EntryFlush)) {
		n.openLate(e)
	}
}

// tellFlushes tells a node that was connected of the flushes that this one knows of, before it compares entries: it may be about to give flushed jobs
// to clients.
func (n *Node) tellFlushes(p *Peer) {
	p.heard, p.flushes = false, !n.mesh.features[p.ID].Bounds
	if p.flushes {
		return
	}
	m := &wire.Message{Kind: wire.Flushes, Flags: wire.Follows}
	count := 0
	for e := range n.alike.AllOf(EntryFlush) {
		if count++; count%flushesPage == 0 {
			n.send(p, m)
			m.Queue = nil
		}
		m.Queue = e.Append(m.Queue)
	}
	m.Flags = 0
	n.send(p, m)
}

// askLateAgain is called when a connection begins or ends: no answer counts that came from a node's former process.
func (n *Node) askLateAgain() {
	for _, lf := range n.lateOnes.open {
		lf.batch, lf.open = nil, nil
	}
}

// onFlushes learns flushes.
func (n *Node) onFlushes(p *Peer, m *wire.Message) error {
	err := entries.Parse(m.Queue, func(e *entries.Entry) error {
		if e.Kind != EntryFlush {
			return wire.ErrMessage
		}
		if e.Stamp.MS-n.now > aheadMostMS {
			return nil
		}
		if took, lost := n.alike.Learn(e, n.now, n.monotonic()); took {
			n.learntEntry(e, lost)
		}
		return nil
	})
	p.flushes = p.flushes || m.Flags&wire.Follows == 0
	n.hurryTick()
	return err
}

// --- carrying them out -------------------------------------------------------------

// lateFlush is a flush that this node carries out, because it was away when that was said.
type lateFlush struct {
	flushing
	stamp  entries.Stamp
	bounds map[prefix]bound
	nodes  map[prefix]wire.Node
	began  int64                            // monotonic: since when not all have answered
	walks  bool                             // the walk that is under way is for it, too
	walked bool                             // all jobs were met
	ids    []store.ID                       // those that may go, and aren't decided,
	due    table.Roster[store.ID, struct{}] // of them the ones that were delayed: they may come into the queue before that
	ranked int                              // how many have come back since it was known that all stay

	batch  []store.ID // the others are asked about them, the last ones of ids
	doubt  []bool     // whether some node isn't sure
	number int64      // of the question
	asked  int64      // monotonic
	open   []wire.Node
	look   int64 // monotonic: when it is looked next whether all can be asked
}

// lateFlushes are those that are under way.
type lateFlushes struct {
	any     bool // some are, or the gate is shut: jobs that may go aren't given to anybody
	open    map[string]*lateFlush
	walking bool
	at      uint64
	gate    int64                          // monotonic: until then this node, which has just started, waits to hear of flushes; 0: it is open
	upTo    uint64                         // creation time of the jobs that wait
	shut    table.Roster[string, struct{}] // queues in which some wait, and somebody has asked for them
}

func (n *Node) lateChanged() { n.lateOnes.any = len(n.lateOnes.open) > 0 || n.lateOnes.gate != 0 }

// shutFlushGate makes a node that has just started wait until the others have told it of flushes, before it gives jobs to anybody that may go by one.
func (n *Node) shutFlushGate() {
	if n.mesh.Alone() || n.store.Jobs() == 0 {
		return
	}
	n.lateOnes.gate, n.lateOnes.upTo = max(n.monotonic(), 1)+gateMS, n.ctime
	n.lateChanged()
	n.hurryTick()
}

// tickGate opens it.
func (n *Node) tickGate() {
	l := &n.lateOnes
	if l.gate == 0 {
		if l.shut.Len() > 0 {
			n.serveShut()
		}
		return
	}
	if left := l.gate - n.monotonic(); left > 0 && slices.ContainsFunc(n.mesh.All(), func(p *Peer) bool { return !p.flushes || !p.Connected }) {
		n.wake = min(n.wake, n.now+left)
		return
	}
	l.gate = 0
	n.lateChanged()
	n.serveDemandsSoon()
	n.serveShut()
}

// serveShut serves those that wait for jobs which the gate has held up, some in a tick.
func (n *Node) serveShut() {
	l := &n.lateOnes
	for range min(l.shut.Len(), tickBudget) {
		name, _ := l.shut.At(l.shut.Len() - 1)
		l.shut.Remove(name)
		n.unserved = append(n.unserved, name)
	}
	n.hurryTick()
}

// mayGoLate says whether a job that waits in its queue may go by a flush that comes late.
func (n *Node) mayGoLate(j *store.Job) bool {
	l := &n.lateOnes
	if l.gate != 0 && j.CTime <= l.upTo && n.isPlain(j) {
		l.shut.Make(string(j.Queue.NameBytes()), struct{}{})
		return true
	}
	lf := l.open[string(j.Queue.NameBytes())]
	return lf != nil && (!lf.walked || lf.due.Get(j.ID) != nil) && n.goesLate(j, lf)
}

// makesWay sets a job aside that has come into its queue while it isn't known yet whether it goes by a flush that comes late: those behind it
// don't wait for that. False: all jobs of the queue wait, for some may not have been met yet.
func (n *Node) makesWay(j *store.Job) bool {
	if n.lateOnes.gate != 0 {
		return false
	}
	lf := n.lateOnes.open[string(j.Queue.NameBytes())]
	if lf == nil || !lf.walked || lf.due.Get(j.ID) == nil {
		return false
	}
	n.setBack(j)
	return true
}

// waitsLate says whether a job is out of its queue because of a flush that comes late, and not decided.
func (n *Node) waitsLate(j *store.Job) bool {
	if len(n.lateOnes.open) == 0 || j.State != store.StateActive || !j.Returning() {
		return false
	}
	lf := n.lateOnes.open[string(j.Queue.NameBytes())]
	return lf != nil && n.goesLate(j, lf)
}

// goesLate says whether this node would queue a job, or has it queued, and knows no reason why it mustn't go by a flush.
func (n *Node) goesLate(j *store.Job, lf *lateFlush) bool {
	switch {
	case j.State == store.StateQueued && j.Place == store.InWaiting:
	case j.State == store.StateActive && j.Place == store.InHeld && (j.Returning() || j.Reason() == store.Delayed):
	default:
		return false
	}
	b, yes := lf.bounds[addedAt(&j.ID)]
	return yes && j.CTime <= b.told && n.isPlain(j)
}

// openLate begins to carry out a flush, if this node was away.
func (n *Node) openLate(e *entries.Entry) {
	said := readLateness(e.Value)
	if !slices.Contains(said.away, n.self.Node()) {
		return
	}
	if done := n.alike.Get(EntryFlushed, e.Name); done != nil && bytes.Equal(done.Value, stampValue(e.Stamp)) {
		return
	}
	lf := &lateFlush{flushing: flushing{queue: e.Name}, stamp: e.Stamp, bounds: map[prefix]bound{}, nodes: map[prefix]wire.Node{}, began: n.monotonic()}
	for node, b := range said.bounds {
		lf.bounds[prefixOf(node)], lf.nodes[prefixOf(node)] = b, node
	}
	if former := n.lateOnes.open[e.Name]; former != nil {
		lf.jobs = former.jobs // the walk meets the jobs that it has set aside
	}
	if n.lateOnes.open == nil {
		n.lateOnes.open = map[string]*lateFlush{}
	}
	n.lateOnes.open[e.Name] = lf
	n.lateChanged()
	n.hurryTick()
}

func stampValue(s entries.Stamp) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(s.MS))
	b = binary.BigEndian.AppendUint32(b, s.Count)
	return binary.BigEndian.AppendUint64(b, uint64(s.Node))
}

// tickLate goes on with the flushes that are carried out late.
func (n *Node) tickLate() {
	n.tickGate()
	l := &n.lateOnes
	if len(l.open) == 0 {
		return
	}
	n.walkLate()
	for _, name := range slices.Sorted(maps.Keys(l.open)) { // in order, so that a seeded run repeats
		if lf := l.open[name]; lf.walked {
			n.stepLate(lf)
		}
	}
}

// walkLate sets the jobs aside that may go: they are out of their queues until it is known.
func (n *Node) walkLate() {
	l := &n.lateOnes
	if !l.walking {
		for _, lf := range l.open {
			if lf.walks = !lf.walked; lf.walks {
				l.walking, l.at = true, 0
			}
		}
		if !l.walking {
			return
		}
	}
	for budget := flushSlice; budget > 0; budget-- {
		n.scratch.jobs = n.scratch.jobs[:0]
		l.at = n.store.ScanJobs(l.at, &n.scratch.jobs)
		for _, j := range n.scratch.jobs {
			if lf := l.open[string(j.Queue.NameBytes())]; lf != nil && lf.walks && n.goesLate(j, lf) {
				if j.Reason() == store.Delayed {
					lf.due.Put(j.ID, struct{}{})
				}
				n.setBack(j)
				lf.ids = append(lf.ids, j.ID)
				budget -= flushCost
			}
		}
		if l.at == 0 {
			l.walking = false
			for _, name := range slices.Sorted(maps.Keys(l.open)) {
				lf := l.open[name]
				if !lf.walks {
					continue
				}
				lf.walks, lf.walked = false, true
				if q := n.store.Queue([]byte(lf.queue)); q != nil {
					n.serveBehind(q) // the jobs that may go made others wait
				}
			}
			break
		}
	}
	n.hurryTick()
}

// setBack takes a job out of its queue that may go. It comes back like a job that was queued when its node was started again, also by
// itself if nothing decides about it. A delayed job stays where it is.
func (n *Node) setBack(j *store.Job) {
	if j.State == store.StateQueued {
		n.store.Hold(j)
		becomeReturning(j)
		setQueuedOnce(j)
		n.touch(j.Queue)
	}
	if j.Returning() {
		clearAnnounced(j)
		n.wakeAt(j, n.now+asideMS)
	}
}

// letBack puts a job back into its queue, soon, unless another node has it.
func (n *Node) letBack(j *store.Job, rank int) {
	if j.State != store.StateActive || j.Place != store.InHeld || !j.Returning() || j.QTime <= n.now+store.AnnounceMS {
		return
	}
	clearAnnounced(j)
	n.wakeAt(j, n.now+store.AnnounceMS+1+int64(rank)/askRate)
}

// stepLate asks the others about the next jobs.
func (n *Node) stepLate(lf *lateFlush) {
	now := n.monotonic()
	if len(lf.batch) > 0 && now <= lf.asked+lateAnswerMS {
		n.wake = min(n.wake, n.now+lf.asked+lateAnswerMS+1-now)
		return
	}
	lf.batch, lf.open = nil, nil
	switch {
	case len(lf.ids) == 0:
		n.endLate(lf)
		return
	case now >= lf.began+lateMS || slices.ContainsFunc(n.mesh.All(), func(p *Peer) bool { return p.Connected && !n.mesh.features[p.ID].Bounds }):
		from := max(0, len(lf.ids)-lateBackSlice)
		for i := range lf.ids[from:] {
			if j := n.store.Lookup(&lf.ids[from+i]); j != nil {
				n.letBack(j, lf.ranked)
			}
			lf.due.Remove(lf.ids[from+i])
			lf.ranked++
		}
		lf.ids = lf.ids[:from]
		n.hurryTick()
		return
	case now < lf.look:
		n.wake = min(n.wake, n.now+lf.look-now)
		return
	}
	lf.look = now + lateLookMS
	if slices.ContainsFunc(n.mesh.All(), func(p *Peer) bool { return !p.Connected || !p.heard || n.mesh.IsAbsent(p.Base()) }) {
		n.wake = min(n.wake, n.now+lateLookMS)
		return
	}
	lf.batch = slices.Clone(lf.ids[max(0, len(lf.ids)-lateBatch):])
	lf.doubt, lf.asked, lf.number = make([]bool, len(lf.batch)), now, n.newQuestion(0).number
	m := &wire.Message{Kind: wire.AskGiven, Span: lf.number, Members: n.mesh.Sum()}
	m.Queue = append(binary.AppendUvarint(nil, uint64(len(lf.queue))), lf.queue...)
	for i := range lf.batch {
		ctime := uint64(math.MaxUint64)
		if j := n.store.Lookup(&lf.batch[i]); j != nil {
			ctime = j.CTime
		}
		m.Queue = binary.BigEndian.AppendUint64(append(m.Queue, lf.batch[i][:]...), ctime)
	}
	s := sending{n: n, m: m}
	for _, p := range n.mesh.All() {
		lf.open = append(lf.open, p.Node)
		s.to(p)
	}
	n.wake = min(n.wake, n.now+lateAnswerMS+1)
	if len(lf.open) == 0 {
		n.decideLate(lf)
	}
}

// onAskGiven answers of which jobs this node is sure that it has given them to nobody. It leaves those to the asker for a while.
func (n *Node) onAskGiven(p *Peer, m *wire.Message) error {
	length, used := binary.Uvarint(m.Queue)
	if used <= 0 || length > uint64(len(m.Queue)-used) {
		return wire.ErrMessage
	}
	name, jobs := m.Queue[used:used+int(length)], m.Queue[used+int(length):]
	const each = len(store.ID{}) + 8
	if len(jobs)%each != 0 || len(jobs)/each > lateAskMost {
		return wire.ErrMessage
	}
	counts := n.mesh.CountsAll(p.Base(), m.Members)
	answer := make([]byte, 0, len(jobs)/each)
	for ; len(jobs) > 0; jobs = jobs[each:] {
		id, sure := store.ID(jobs[:each-8]), byte(0)
		if counts && n.surelyGaveNobody(p, &id, name, binary.BigEndian.Uint64(jobs[each-8:])) {
			sure = 1
		}
		answer = append(answer, sure)
	}
	n.send(p, &wire.Message{Kind: wire.Given, Span: m.Span, Queue: answer})
	return nil
}

func (n *Node) surelyGaveNobody(p *Peer, id *store.ID, name []byte, ctime uint64) bool {
	if !n.sureOf(id, ctime) || n.maybeDormant(id) || n.pendingAddOf(id) != nil {
		return false
	}
	j := n.store.Lookup(id)
	switch {
	case j == nil && (n.tombstones.has(id) || n.store.Done(id)):
		n.sendAck(p, n.tombstones.ack(id))
		return false
	case j == nil:
		return ctime > n.knows.gone[addedAt(id)] && n.now >= n.idling.deleted && (n.store.Edges() == 0 || n.store.Dependents(id) == nil)
	case j.State == store.StateAcked:
		n.correct(p, j, nil)
		return false
	case j.CTime != ctime || string(j.Queue.NameBytes()) != string(name) || !n.isPlain(j) || !n.isLeft(j):
		return false
	}
	if j.QTime < n.now+lateLeaveMS {
		n.wakeAt(j, n.now+lateLeaveMS+n.jitter())
	}
	return true
}

// onGiven takes such an answer.
func (n *Node) onGiven(p *Peer, m *wire.Message) {
	for _, lf := range n.lateOnes.open {
		if lf.number != m.Span || len(lf.batch) == 0 || len(m.Queue) != len(lf.batch) {
			continue
		}
		at := slices.Index(lf.open, p.Node)
		if at < 0 {
			return
		}
		for i, sure := range m.Queue {
			lf.doubt[i] = lf.doubt[i] || sure != 1
		}
		if lf.open = slices.Delete(lf.open, at, at+1); len(lf.open) == 0 {
			n.decideLate(lf)
		}
		return
	}
}

// decideLate cancels the jobs of which all nodes are sure. The others stay.
func (n *Node) decideLate(lf *lateFlush) {
	if n.monotonic() > lf.asked+lateAnswerMS || slices.ContainsFunc(n.mesh.All(), func(p *Peer) bool { return !p.Connected || !p.heard }) {
		n.hurryTick()
		return // they are asked again
	}
	for i := range lf.batch {
		lf.due.Remove(lf.batch[i])
		j := n.store.Lookup(&lf.batch[i])
		switch {
		case j == nil || j.State == store.StateAcked:
		case !lf.doubt[i] && n.goesLate(j, lf) && string(j.Queue.NameBytes()) == lf.queue && n.holdsLine(lf, &lf.batch[i]):
			n.Stats.FlushedLate++
			n.flushJob(&lf.flushing, j)
		default:
			n.letBack(j, i)
		}
	}
	lf.ids = lf.ids[:len(lf.ids)-len(lf.batch)]
	lf.batch, lf.look, lf.began = nil, 0, n.monotonic()
	n.hurryTick()
}

// holdsLine says whether the node where a job was added still makes later creation times than those that it had told before the flush.
func (n *Node) holdsLine(lf *lateFlush, id *store.ID) bool {
	node, line := lf.nodes[addedAt(id)], lf.bounds[addedAt(id)].line
	if node == n.self.Node() {
		return n.bounds().Line == line
	}
	p := n.mesh.ByName(node)
	return p != nil && p.heard && p.bounds.Line == line
}

// endLate notes that this node has carried a flush out.
func (n *Node) endLate(lf *lateFlush) {
	delete(n.lateOnes.open, lf.queue)
	n.lateChanged()
	n.tellsFlush(&lf.flushing)
	n.ChangeEntry(EntryFlushed, lf.queue, stampValue(lf.stamp))
	if q := n.store.Queue([]byte(lf.queue)); q != nil {
		n.serveBehind(q)
	}
}
