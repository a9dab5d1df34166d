package commands

import (
	"bytes"
	"strconv"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// enter begins each command: it tells the engine the time. It refuses a command in a
// database other than 0, where jobs live, and a write to a node that is being promoted.
func (m *module) enter(c *rm.Ctx) bool {
	m.begin(c)
	if c.DB() != 0 {
		c.Error("WRONGDB jobs live in database 0, this connection has selected another: SELECT 0 first")
		return false
	}
	if m.promoted && c.Writes() {
		c.Error(errPromoted)
		return false
	}
	return true
}

const errPromoted = "LOADING this server was a replica until now, and looks at the jobs that it has: try again in a moment"

func fail(c *rm.Ctx, err error) { c.Error(err.Error()) }

// defaults are what the options of a new job in a queue depend on. The caller has looked at the memory, on which the default of
// REPLICATE depends. They are valid until the next call.
func (m *module) defaults(queue []byte) *defaults {
	d := &m.byDefault
	*d = defaults{copies: m.node.Copies(), now: m.node.Now()}
	if m.settings.any() {
		d.settings = m.settings.of(queue)
	}
	return d
}

func (m *module) addJob(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	a := &m.add
	m.watchMemory(len(c.Arg(2)))
	if err := parseAdd(c, a, m.defaults(c.Arg(1))); err != nil {
		fail(c, err)
		return
	}
	m.addParsed(c, a)
}

// addParsed adds a job whose options are parsed, and answers.
func (m *module) addParsed(c *rm.Ctx, a *engine.Add) {
	if !m.mayAdd(c, a) {
		return
	}
	if a.Name != nil {
		m.addNamed(c, a)
		return
	}
	id, wait, err := m.node.AddJob(a)
	switch {
	case err == engine.ErrDropped:
		c.Null()
	case err != nil:
		fail(c, err)
		m.carryOut(c) // the engine may have found locks that are over
		return
	case wait:
		m.awaitCopies(c, id)
	default:
		id.Put((*[store.IDLen]byte)(c.SimpleBuffer(store.IDLen)))
	}
	m.carryOut(c)
}

// addNamed adds a job with a name, or finds the one that has it, and answers its ID when it has as many copies as were asked for.
func (m *module) addNamed(c *rm.Ctx, a *engine.Add) {
	if !m.mayUseJobs(c, rm.UseRead, engine.NamedID(a.Name)) {
		return
	}
	id, err := m.node.AddNamed(a)
	if err != nil {
		fail(c, err)
		m.carryOut(c)
		return
	}
	least := int64(0) // copies; a job that is done by now needs none
	if !a.Default {
		least = int64(a.Replicate)
	}
	put := func(c *rm.Ctx, counts []int64) {
		if counts[0] >= 0 && counts[0] < least {
			fail(c, engine.ErrNamedTimeout)
			return
		}
		id.Put((*[store.IDLen]byte)(c.SimpleBuffer(store.IDLen)))
	}
	if a.Async || !c.CanBlock() {
		put(c, []int64{-1})
		m.carryOut(c)
		return
	}
	p, now := m.node.WaitNamed(id, a)
	if now != nil {
		put(c, now)
		m.carryOut(c)
		return
	}
	m.awaitMesh(c, p, func(c *rm.Ctx) { put(c, m.node.CopiesSoFar(p)) }, func(c *rm.Ctx, a *engine.MeshAnswer) { put(c, a.Copies) })
}

// mayAdd refuses an ADDJOB, or an ADDJOBS as a whole, if the server or the user's rights don't allow it. Otherwise it completes
// the options.
func (m *module) mayAdd(c *rm.Ctx, a *engine.Add) bool {
	if m.evicts {
		c.Error("EVICTION the maxmemory-policy in force may evict queues with the jobs in them: CONFIG SET maxmemory-policy noeviction, or a volatile one, first")
		return false
	}
	if a.Policy != nil && len(a.Policy.Dead) > 0 && !m.limits.none && !c.May(a.Policy.Dead, rm.UseWrite) {
		fail(c, errNoKey)
		return false
	}
	if a.Family() {
		m.kinCopies(a)
	}
	if a.Family() && !m.mayWaitFor(c, a) {
		return false
	}
	if a.Unique.Limit > 1 {
		if err := lacking(m.node.LacksLimits()); err != nil {
			fail(c, err)
			return false
		}
	}
	if a.Unique.Mesh && a.Unique.Conflict != store.ConflictDrop {
		hide(c, a)
	}
	if err := m.node.HasRoom(); err != nil {
		fail(c, err)
		m.carryOut(c)
		return false
	}
	a.CanWait = (a.Replicate > 1 || m.node.External() || a.Unique.Strategy != 0 && !m.node.Mesh().Alone()) && c.CanBlock()
	if a.Default && !a.CanWait {
		a.Async = true // the client didn't ask for copies, so it need not wait for them
	}
	return true
}

// awaitCopies blocks ADDJOB's client until the job has the copies that it was asked to
// have. The engine ends the wait at the timeout.
func (m *module) awaitCopies(c *rm.Ctx, id store.ID) {
	if err := m.await(c, engine.PendingAdd(id), func(c *rm.Ctx) { fail(c, engine.ErrReplTimeout) }); err != nil {
		c.Error("ERR " + err.Error())
	}
}

// await blocks the client until the engine answers what is pending. unblocked answers CLIENT UNBLOCK. Where the client can't
// be blocked, err says why, and the engine has forgotten what was pending.
func (m *module) await(c *rm.Ctx, p engine.Pending, unblocked func(*rm.Ctx)) error {
	client, err := m.block(c, p, unblocked)
	if err == nil {
		m.node.Tie(p, client)
	}
	return err
}

// block is await without the tie, which the caller makes.
func (m *module) block(c *rm.Ctx, p engine.Pending, unblocked func(*rm.Ctx)) (*rm.Client, error) {
	client, err := c.Block(0, func(c *rm.Ctx, gone bool) {
		if !gone {
			unblocked(c)
		}
		m.node.Deny(p) // words of other nodes that arrive before Abandon runs must not make the engine promise anything
		m.later(0, func(*rm.Ctx) { m.node.Abandon(p) })
	})
	if err != nil {
		m.node.Abandon(p)
	}
	return client, err
}

func (m *module) getJob(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	g, err := parseGet(c)
	if err != nil {
		fail(c, err)
		return
	}
	m.queues = m.queues[:0]
	for i := g.first; i < c.NArgs(); i++ {
		q := m.node.Queue(c.Arg(i))
		if q == nil {
			if err := m.Free(c.Arg(i)); err != nil {
				fail(c, err)
				return
			}
		}
		m.queues = append(m.queues, q)
	}
	m.jobs = m.node.FetchFor(m.queues, g.count, !m.node.Mesh().Alone() && c.CanBlock(), g.lease, m.jobs[:0])
	if len(m.jobs) > 0 {
		c.Array(len(m.jobs))
		if g.worker != nil {
			m.employ(g.worker)
		}
		for _, j := range m.jobs {
			m.putJob(c, j, g.shape, false)
		}
		m.carryOut(c)
		return
	}
	m.carryOut(c) // the engine may have moved jobs whose key is busy
	if !m.node.Mesh().Alone() && (g.nohang || !c.CanBlock()) {
		for i := g.first; i < c.NArgs(); i++ {
			m.node.Poll(c.Arg(i), g.count)
		}
	}
	if g.nohang && !m.node.Asks() {
		c.NullArray()
	} else {
		m.wait(c, &g)
	}
	m.carryOut(c)
}

// blocked is a client that waits in GETJOB.
type blocked struct {
	client *rm.Client
	shape
}

func (m *module) wait(c *rm.Ctx, g *get) {
	switch {
	case m.node.Leaving():
		fail(c, engine.ErrLeaving)
		return
	case m.node.Passive():
		fail(c, engine.ErrReplica)
		return
	case !c.CanBlock():
		c.NullArray()
		return
	}
	names := make([][]byte, 0, c.NArgs()-g.first)
	seen := make(map[string]bool, c.NArgs()-g.first)
	for i := g.first; i < c.NArgs(); i++ {
		if name := c.Arg(i); !seen[string(name)] {
			seen[string(name)] = true
			names = append(names, name)
		}
	}
	if g.nohang && !m.node.Asking(names) {
		c.NullArray()
		return
	}
	b := &blocked{shape: g.shape}
	wait, timeout := m.node.Wait, g.timeout
	if g.nohang {
		// Answers may be awaited for one job after the other, so this wait has an end of
		// its own.
		wait, timeout = m.node.WaitForAnswers, lock.TimeoutMS
		if g.timeout > 0 {
			timeout = min(timeout, g.timeout)
		}
	}
	w, err := wait(names, b)
	if err != nil {
		fail(c, err)
		return
	}
	w.Worker, w.Count, w.Lease = bytes.Clone(g.worker), g.count, g.lease
	b.client, err = c.Block(timeout, func(c *rm.Ctx, gone bool) {
		m.node.Cancel(w)
		if !gone {
			c.NullArray()
		}
	})
	if err != nil {
		m.node.Cancel(w)
		c.Error("ERR " + err.Error())
	}
}

// shape says what GETJOB answers of each job beside its queue, ID and body.
type shape struct {
	counters bool // WITHCOUNTERS
	token    bool // WITHTOKEN
	info     bool // WITHINFO
}

// elements is how many elements the answer for one job has.
func (s shape) elements() int {
	n := 3
	if s.counters {
		n += 4
	}
	if s.token {
		n += 2
	}
	if s.info {
		n++
	}
	return n
}

// putJob answers one job as GETJOB does. byCopy copies the job's bytes into the reply: for
// answers that are given after the call.
func (m *module) putJob(c *rm.Ctx, j *store.Job, s shape, byCopy bool) {
	c.Array(s.elements())
	name, body := j.Queue.NameBytes(), j.Body()
	if byCopy {
		copy(c.BulkBuffer(len(name)), name)
		putID(c, j)
		copy(c.BulkBuffer(len(body)), body)
	} else {
		c.Bulk(name)
		putID(c, j)
		c.Bulk(body)
	}
	if s.counters {
		c.Text("nacks")
		c.Int(int64(j.Nacks))
		c.Text("additional-deliveries")
		c.Int(engine.Additional(j))
	}
	if s.token {
		c.Text("token")
		c.Int(lock.ShownToken(m.node.Token(j)))
	}
	if s.info {
		putInfo(c, j)
	}
}

// putInfo answers what WITHINFO adds for a job that was just delivered.
func putInfo(c *rm.Ctx, j *store.Job) {
	fields := [...]struct {
		name  string
		value int64
	}{
		{"retry", engine.TermOf(j)},
		{"priority", int64(j.Priority())},
		{"created", int64(j.CTime / 1_000_000)},
		{"deliveries", engine.Additional(j)},
		{"nacks", int64(j.Nacks)},
	}
	c.Map(len(fields))
	for _, f := range fields {
		c.Text(f.name)
		c.Int(f.value)
	}
}

func putID(c *rm.Ctx, j *store.Job) { j.ID.Put((*[store.IDLen]byte)(c.BulkBuffer(store.IDLen))) }

// readID reads an ID. One that no job can have becomes the zero ID.
func readID(b []byte) (id store.ID, ok bool) {
	id, canonical, ok := store.ParseID(b)
	if !canonical {
		id = store.ID{}
	}
	return id, ok
}

// isName says whether an argument is the word NAME, behind which a job's name is.
func isName(arg []byte) bool { return is(arg, "NAME") }

// jobAt reads the job that argument i names: an ID, or NAME and a name. An ID that no job can have becomes the zero ID. used is how many
// arguments it took.
func jobAt(c args, i int) (id store.ID, used int, err error) {
	arg := c.Arg(i)
	if id, ok := readID(arg); ok { // nearly all arguments are IDs; the word NAME isn't one
		return id, 1, nil
	}
	if !isName(arg) {
		return id, 0, errBadID
	}
	if i+1 == c.NArgs() {
		return id, 0, errSyntax
	}
	name := c.Arg(i + 1)
	if len(name) == 0 || len(name) > engine.MaxName {
		return id, 0, errName
	}
	return engine.NamedID(name), 2, nil
}

// countJobs counts the jobs that the first count arguments name.
func countJobs(c args, count int) (jobs int) {
	for i := 1; i <= count; i++ {
		if isName(c.Arg(i)) {
			i++
		}
		jobs++
	}
	return jobs
}

// appendJobs appends the jobs that the first count arguments name, as jobAt reads them.
func appendJobs(c args, ids []store.ID, count int) ([]store.ID, error) {
	for i := 1; i <= count; {
		id, used, err := jobAt(c, i)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
		i += used
	}
	return ids, nil
}

// readIDs checks all IDs and names, which are the first count arguments, before the command changes any job. It leaves out IDs that no job
// can have.
func (m *module) readIDs(c *rm.Ctx, count int) bool {
	m.ids = m.ids[:0]
	for i := 1; i <= count; {
		id, used, err := jobAt(c, i)
		if err != nil {
			fail(c, err)
			return false
		}
		if id != (store.ID{}) {
			m.ids = append(m.ids, id)
		}
		i += used
	}
	return true
}

// enterIDs is enter for a command that changes the jobs that its first count arguments name.
func (m *module) enterIDs(c *rm.Ctx, count int) bool {
	return m.enter(c) && m.readIDs(c, count) && m.mayChange(c)
}

// mayChange refuses a command that changes the jobs m.ids at a replica, and to a user who may not.
func (m *module) mayChange(c *rm.Ctx) bool {
	if m.node.Passive() {
		fail(c, engine.ErrReplica)
		return false
	}
	return m.mayUseJobs(c, rm.UseWrite, m.ids...)
}

// each applies an operation to each of the IDs, and answers for how many it returned true.
func (m *module) each(c *rm.Ctx, do func(*store.ID) bool) { m.eachOf(c, c.NArgs()-1, do) }

// eachOf is each for a command that has options behind count IDs.
func (m *module) eachOf(c *rm.Ctx, count int, do func(*store.ID) bool) {
	if m.enterIDs(c, count) {
		m.doEach(c, do)
	}
}

// doEach applies an operation to each of m.ids, and answers for how many it returned true.
func (m *module) doEach(c *rm.Ctx, do func(*store.ID) bool) {
	var done int64
	for i := range m.ids {
		if do(&m.ids[i]) {
			done++
		}
	}
	c.Int(done)
	m.carryOut(c)
}

func (m *module) fastAck(c *rm.Ctx) { m.each(c, m.ops.fastAck) }
func (m *module) dequeue(c *rm.Ctx) { m.each(c, m.ops.dequeue) }

// enqueue is ENQUEUE.
func (m *module) enqueue(c *rm.Ctx) {
	ids, unstarted, err := parseEnqueue(c)
	do := m.ops.enqueue
	if unstarted {
		do = m.node.EnqueueUnstarted
	}
	if m.hasRoom(c, 0, err) {
		m.eachOf(c, ids, do)
	}
}

// parseEnqueue reads ENQUEUE: how many IDs it has, and whether UNSTARTED is behind them.
func parseEnqueue(c args) (ids int, unstarted bool, err error) {
	ids = leading(c, func(arg []byte) bool { return is(arg, "UNSTARTED") })
	if rest := c.NArgs() - ids - 1; rest > 1 || rest == 1 && ids == 0 {
		return 0, false, errSyntax
	}
	return ids, ids < c.NArgs()-1, nil
}

// hasRoom refuses a command that queues jobs where memory is short. size is how many bytes the command brings, err what is wrong with its
// options.
func (m *module) hasRoom(c *rm.Ctx, size int, err error) bool {
	m.watchMemory(size)
	m.node.SetNow(c.Now())
	if err == nil {
		err = m.node.HasRoom()
	}
	if err != nil {
		fail(c, err)
		m.carryOut(c)
	}
	return err == nil
}

// deleteJob is DELJOB, for clients and as the logged effect of any deletion.
func (m *module) deleteJob(c *rm.Ctx) {
	if (m.node.Passive() || m.node.Loading()) && c.FromPeer() {
		m.apply(c, func() error {
			if m.readIDs(c, c.NArgs()-1) {
				for i := range m.ids {
					m.node.ApplyDelete(&m.ids[i])
				}
				c.Int(int64(len(m.ids)))
			}
			return nil
		})
		return
	}
	m.each(c, m.ops.delete)
}

func (m *module) showJob(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	id, used, err := jobAt(c, 1)
	if err == nil && used+1 < c.NArgs() {
		err = errSyntax
	}
	if err != nil {
		fail(c, err)
		return
	}
	j := m.node.Job(&id)
	if j == nil {
		c.Null()
		return
	}
	if m.mayUseJobs(c, rm.UseRead, id) {
		m.putDetails(c, j)
	}
}

// shownCTime is a job's creation time as clients see it: ms times 2048, plus a sequence
// number. It is below 2^53, so the floating point of JavaScript and Lua keeps it whole.
func shownCTime(ctime uint64) int64 {
	return int64(ctime/1_000_000<<11 | min(ctime%1_000_000, 1<<11-1))
}

// bulkOrNull answers b, or null if b isn't known.
func bulkOrNull(c *rm.Ctx, b []byte, known bool) {
	if known {
		c.Bulk(b)
	} else {
		c.Null()
	}
}

// find looks a queue up for a reading command. If the key holds something else, find
// answers the error and returns wrong.
func (m *module) find(c *rm.Ctx, name []byte) (q *store.Queue, wrong bool) {
	if q = m.node.Queue(name); q == nil {
		if err := m.Free(name); err != nil {
			fail(c, err)
			return nil, true
		}
	}
	return q, false
}

func (m *module) queuePeek(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	count, ok := integer(c.Arg(2))
	if !ok {
		fail(c, errInteger)
		return
	}
	q, wrong := m.find(c, c.Arg(1))
	if wrong {
		return
	}
	newest := count < 0
	n := uint64(count)
	if newest {
		n = -n
	}
	if q == nil || q.Len == 0 {
		n = 0
	} else {
		n = min(n, q.Len)
	}
	c.Array(int(n))
	if n == 0 {
		return
	}
	j := q.Head
	if newest {
		j = q.Tail
	}
	for ; n > 0; n-- {
		m.putJob(c, j, shape{}, false)
		if newest {
			j = j.Prev
		} else {
			j = j.Next
		}
	}
}

func (m *module) pause(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	p, err := parsePause(c)
	if err != nil {
		fail(c, err)
		return
	}
	q, wrong := m.find(c, c.Arg(1))
	if wrong {
		return
	}
	mask := p.mask
	if q == nil && p.set && mask != 0 && !c.FromPeer() && !m.hasRoom(c, len(c.Arg(1)), nil) {
		return // there would be a queue more. One that is there can be paused, for then memory may get free
	}
	switch {
	case p.bcast:
		mask, err = m.node.PauseEverywhere(c.Arg(1), mask, p.span)
	case p.set:
		mask, err = m.node.SetPause(c.Arg(1), mask, p.span)
	default:
		mask = m.node.PauseOf(c.Arg(1), q)
	}
	if err != nil {
		fail(c, err)
		return
	}
	c.Simple(engine.PauseNames[mask])
	m.carryOut(c)
}

// stepsPerElement bounds a scan's work without BUSYLOOP: it visits at most that many
// buckets for each element that the client asks for.
const stepsPerElement = 10

func (s *scan) goesOn(step int64, found int, next uint64) bool {
	if next == 0 {
		return false
	}
	return s.busy || s.count < 0 || step < s.count*stepsPerElement && int64(found) < s.count
}

// search continues a scan. Each step adds elements to found; search keeps the wanted ones,
// and takes steps as long as goesOn says.
func search[T any](s *scan, found []T, step func(cursor uint64, emit *[]T) (next uint64), wanted func(T) bool) (_ []T, next uint64) {
	s.count = min(s.count, 1<<48)
	next = s.cursor
	for steps := int64(1); ; steps++ {
		at := len(found)
		next = step(next, &found)
		kept := found[:at]
		for _, x := range found[at:] {
			if wanted(x) {
				kept = append(kept, x)
			}
		}
		if found = kept; !s.goesOn(steps, len(found), next) {
			return found, next
		}
	}
}

func putCursor(c *rm.Ctx, cursor uint64) {
	c.Array(2)
	c.Text(formatCursor(cursor))
}

func formatCursor(cursor uint64) string { return strconv.FormatUint(cursor, 10) }

func (m *module) jobScan(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	s, err := parseScan(c, true)
	if err != nil {
		fail(c, err)
		return
	}
	if s.mesh {
		m.scanMeshJobs(c, s)
		return
	}
	sight := newSight(c)
	found, next := search(&s, m.jobs[:0], m.node.ScanJobs, func(j *store.Job) bool {
		return !m.node.Nameless(j) && sight.queue(j.Queue) && m.node.Lives(j.Queue) && (s.states == 0 || m.node.InStates(j, s.states)) && (!s.byQueue || string(j.Queue.NameBytes()) == string(s.queue))
	})
	m.jobs = found[:0]
	putCursor(c, next)
	c.Array(len(found))
	for _, j := range found {
		if s.all {
			m.putDetails(c, j)
		} else {
			j.ID.Put((*[store.IDLen]byte)(c.SimpleBuffer(store.IDLen)))
		}
	}
}

func (m *module) queueScan(c *rm.Ctx) {
	if !m.enter(c) {
		return
	}
	s, err := parseScan(c, false)
	if err != nil {
		fail(c, err)
		return
	}
	if s.mesh {
		m.scanMesh(c, s)
		return
	}
	sight := newSight(c)
	found, next := search(&s, m.queues[:0], m.node.ScanQueues, func(q *store.Queue) bool {
		return sight.queue(q) && m.node.Visible(q) && m.node.Lives(q) && s.within(int64(q.Waiting())) && m.imports(q) >= s.importRate
	})
	m.queues = found[:0]
	putCursor(c, next)
	c.Array(len(found))
	for _, q := range found {
		c.Bulk(q.NameBytes())
	}
}
