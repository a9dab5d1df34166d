package commands

import (
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"jobmesh/cgo/api"
	"jobmesh/cgo/record"
	"jobmesh/module/engine"
	"jobmesh/module/membership"
	"jobmesh/module/schedule"
	"jobmesh/module/store"
	"jobmesh/rm"
)

// module is the one instance: the engine, and what connects it to the server.
type module struct {
	server *rm.Server
	ctx    *rm.Ctx // the call being served
	node   *engine.Node
	queue  *rm.DataType
	unique *uniqueQueues
	effect struct{ loadJob, setJob, deleteJob, makeQueue, deleteQueue, setLock, deleteLock, jobmesh, function, qconfig rm.Effect }

	timer         *rm.Timer
	timerAt       int64  // by the node's clock
	stalled       bool   // the tick was put off, because it came late
	idle          int    // calls since memory was checked
	deleted       uint64 // jobs that tellDeleted has not logged yet
	tellDeletedAt int64  // it logs them then at the earliest, by the node's clock
	grown         int    // bytes of bodies since memory was checked
	evicts        bool   // the maxmemory-policy may evict queues
	denied        string // why the server refuses its clients' writes; empty: it takes them
	doubted       int64  // count of jobs made uncertain by a handover, when the log last reported it
	exits         bool   // JOBMESH SHUTDOWN waits for writes in the background
	final         bool   // the log just replayed ended with an older release's JOBMESH SHUTDOWN
	phase         rm.LoadPhase
	logged        int64        // bytes of the AOF that is being loaded
	saved         record.Epoch // of the queue that was loaded last, or of the locks
	restart                    // what is known of the data before this process

	events      eventStream
	settings    queueSettings
	conflicts   int64 // changes of settings and the like that didn't know of each other
	ownSettings bool  // jobmesh.shared-settings no: the settings of queues are this node's own
	uniqueOff   bool
	mesh        mesh
	promoted    bool // the server is no longer a replica, but the node doesn't act on it yet
	keyless     bool // the AOF may have been rewritten without what is in no key, see tellAOF

	policyRead int64 // by the node's clock
	limits     limits
	abstains   abstention
	epoch      *record.Epoch

	nodesFile   string
	enqueueOnce bool
	compat      bool

	undone []*rm.Client // see whenDone

	// Reused by each command, so that none allocates.
	add       engine.Add
	byDefault defaults
	jobsToAdd jobs
	jobs      []*store.Job
	queues    []*store.Queue
	ids       []store.ID
	failure   engine.Failure
	result    engine.Result
	worker    worker // of a WORKING that needn't wait
	locks     []*store.Lock
	ops       struct {
		ack, fastAck, delete, enqueue, dequeue func(*store.ID) bool
	}
}

// box is the value in a queue's key (C: struct jm_box).
type box struct{ queue *store.Queue }

const boxSize = int(unsafe.Sizeof(box{}))

// queueEncoding is the version of a saved queue. It stands for the format of the record and
// of the epoch before it. From 3 on the locks have an epoch too.
const queueEncoding = 3

// New returns the module, ready to be registered.
func New() *rm.Module {
	m := &module{unique: newUniqueQueues(), events: eventStream{stream: rm.Stream{Command: "JOBMESH", Sub: "EVENT"}}}
	own := slices.Concat(m.commands(), m.lockCommands())
	m.carryOutAfter(own)
	m.queue = &rm.DataType{
		Name:    "jobmesh-q",
		Version: queueEncoding,
		Load:    m.loadQueue,
		Drop:    record.FreeValue,
		Unlink:  m.unlinked,
		LoadAux: m.loadLocks,
	}
	return &rm.Module{
		Name:     "jobmesh",
		Version:  1,
		Commands: slices.Concat(own, m.unique.commands()),
		Types:    []*rm.DataType{m.queue, m.unique.kind, m.newSettingsType()},
		Configs: []*rm.Config{
			rm.BoolConfig("aof-enqueue-jobs-once", false,
				func() bool { return m.enqueueOnce },
				func(v bool) error { m.enqueueOnce = v; return nil }),
			rm.TextConfig("cluster-config-file", "jobmesh-nodes.conf", true,
				func() string { return m.nodesFile },
				m.setNodesFile),
			rm.SecretConfig("cluster-secret", true,
				func() string { return m.mesh.secret },
				func(v string) error { m.mesh.secret = v; return nil }),
			rm.TextConfig("cluster-bind", "", true,
				func() string { return m.mesh.bind },
				func(v string) error { m.mesh.bind = v; return nil }),
			rm.TextConfig("cluster-announce", "", true,
				func() string { return m.mesh.announce },
				m.setAnnounce),
			rm.IntConfig("cluster-port", 0, 0, 65535, true,
				func() int64 { return m.mesh.port },
				func(v int64) error { m.mesh.port = v; return nil }),
			rm.IntConfig("cluster-node-timeout", membership.DefaultTimeout, 100, 1<<31, false,
				func() int64 { return m.mesh.timeout },
				func(v int64) error { m.setNodeTimeout(v); return nil }),
			m.lockConfig(),
			rm.TextConfig("zone", "", false,
				func() string { return m.node.Zone() },
				m.setZone),
			rm.IntConfig("repair-after", engine.DefaultRepairAfter/1000, 0, 1<<31, false,
				func() int64 { return m.node.RepairAfter() / 1000 },
				func(v int64) error { m.node.SetRepairAfter(v * 1000); return nil }),
			m.uniqueConfig(),
			rm.BoolConfig("shared-settings", true,
				func() bool { return !m.ownSettings },
				func(v bool) error { m.setOwnSettings(!v); return nil }),
			rm.TextConfig("events", "", false,
				func() string { return m.events.names },
				m.setEvents),
			rm.TextConfig("events-key", eventsKey, false,
				func() string { return m.events.stream.Key },
				m.setEventsKey),
			rm.IntConfig("events-maxlen", eventsMaxLen, 1, 1<<31, false,
				func() int64 { return m.events.stream.Most },
				func(v int64) error { m.events.stream.Most = v; return nil }),
			rm.BoolConfig("disque-compat", false,
				func() bool { return m.compat },
				m.setCompat),
		},
		Events: rm.Events{
			Flush:     m.flushed,
			Loading:   m.loading,
			Role:      m.role,
			Following: m.following,
			Turn:      m.turn,
			Swap:      func(c *rm.Ctx, a, b int) { m.begin(c); m.epoch.Changes++; m.node.Swapped(a, b); m.carryOut(c) },
			Config:    func(*rm.Ctx) { m.idle = memoryEvery; m.readPolicy(); m.readLogLevel(); m.readEvents(); m.watchSync() },
			Fork:      m.forked,
			ForkEnded: func(*rm.Ctx) { m.watchLog(rewrite{}) },
			Shutdown:  m.ended,
			Key:       m.keyEvent,
		},
		Info:   m.info,
		Before: m.before,
		Start:  m.start,
	}
}

func (m *module) setNodesFile(name string) error {
	if name == "" || strings.ContainsAny(name, "/\x00") {
		return errors.New("the file's name must not be empty nor hold a slash: it lies in the server's dir")
	}
	m.nodesFile = name
	return nil
}

func (m *module) setZone(name string) error {
	if len(name) > maxZone || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == ',' || r == '=' || r == 0x7f }) {
		return fmt.Errorf("the name of a zone has at most %d bytes, and no space, comma or equals sign", maxZone)
	}
	m.node.SetZone(name)
	m.hurry()
	return nil
}

func (m *module) setAnnounce(address string) error {
	if host, text, err := net.SplitHostPort(address); address != "" {
		port, err2 := strconv.Atoi(text)
		if err != nil || err2 != nil || host == "" || port < 1 || port > 65535 {
			return fmt.Errorf("%q is no address of a bus: give host:port, the port from 1 to 65535", address)
		}
	}
	m.mesh.announce = address
	return nil
}

// before refuses servers on which the module would not keep its promises. It also makes
// what the data type needs, before the type is registered.
func (m *module) before(s *rm.Server) error {
	if s.ClusterMode() {
		return errors.New("cluster-enabled is yes: Redis Cluster would send each queue's commands to one node, while any node of a job mesh serves any queue. Set cluster-enabled no")
	}
	m.server = s
	methods := record.Init(api.Symbol)
	m.queue.Methods = rm.Methods(methods)
	m.unique.before(api.Symbol)
	m.settings.before()
	m.settings.policies.AddCron = m.addCron
	m.effect.loadJob, m.effect.setJob = rm.NewEffect("LOADJOB"), rm.NewEffect("SETJOB")
	m.effect.deleteJob, m.effect.jobmesh = rm.NewEffect("DELJOB"), rm.NewEffect("JOBMESH")
	m.effect.makeQueue = rm.NewEffect("MAKEQUEUE")
	m.effect.deleteQueue, m.effect.function = rm.NewEffect("DELQUEUE"), rm.NewEffect("FUNCTION")
	m.effect.setLock, m.effect.deleteLock = rm.NewEffect("SETLOCK"), rm.NewEffect("DELLOCK")
	m.effect.qconfig = rm.NewEffect("QCONFIG")
	var seed [32]byte
	if _, err := crand.Read(seed[:]); err != nil {
		return fmt.Errorf("no randomness: %w", err)
	}
	random := rand.NewChaCha8(seed)
	m.epoch = record.Now()
	m.epoch.Process = random.Uint64()
	m.node = engine.New(engine.Config{
		Alloc:     memory{},
		Keys:      m,
		Random:    random,
		NodeID:    newNodeID(),
		Now:       s.Now(),
		Monotonic: func() int64 { return s.Steady().Milliseconds() },

		NodeTimeout: m.mesh.timeout,
		Policies:    &m.settings.policies,
	})
	record.SetLocks(unsafe.Pointer(m.node.Locks().Table()))
	record.SetFlushes(m.node.Flushes())
	m.node.SetUnique(!m.uniqueOff)
	m.node.SetExpiresInHands(m.compat)
	m.ops.ack, m.ops.fastAck, m.ops.delete, m.ops.dequeue, m.ops.enqueue = m.node.Ack, m.node.FastAck, m.node.Delete, m.node.Dequeue, m.node.Enqueue
	return nil
}

func (m *module) start(s *rm.Server) error {
	if err := m.loadNodes(); err != nil {
		return err
	}
	m.distrustLocks()
	m.readState()
	m.readPolicy()
	m.readLogLevel()
	m.readEvents()
	m.tellAOF()
	m.node.SetPassive(s.Replica())
	m.schedule(m.node.Now() + 100)
	// This runs after the data set is loaded, since the event loop turns only then. A client may be heard before.
	m.starting = true
	s.After(0, func(c *rm.Ctx) {
		m.readUsers() // the server reads its users after it loads the module
		m.tellNoLimit()
		m.nowOrLater(c, m.firstTurn)
		m.openBus()
	})
	return nil
}

// memory is the engine's allocator.
type memory struct{ rm.Memory }

// FreeKey implements store.KeyFreer.
func (memory) FreeKey(key unsafe.Pointer) { rm.StringAt(key).Free() }

// --- keyspace (engine.Keyspace) ------------------------------------------

// Free implements engine.Keyspace.
func (m *module) Free(name []byte) error {
	key := rm.NewString(name)
	defer key.Free()
	_, err := m.queue.Value(m.ctx, key)
	return err
}

// Lives implements engine.Keyspace.
func (m *module) Lives(q *store.Queue) (lives, expires bool) {
	key := rm.NewString(q.NameBytes())
	defer key.Free()
	return m.ctx.Lives(key)
}

// Adopt implements engine.Keyspace.
func (m *module) Adopt(q *store.Queue) error {
	b := (*box)(memory{}.Alloc(boxSize))
	b.queue = q
	q.Box = unsafe.Pointer(b)
	q.Key = rm.NewString(q.NameBytes()).Pointer()
	if err := m.queue.Set(m.ctx, rm.StringAt(q.Key), q.Box); err != nil {
		q.Box = nil
		memory{}.Free(unsafe.Pointer(b), boxSize)
		return errors.New("ERR the queue's key can't be made: " + err.Error())
	}
	return nil
}

// Drop implements engine.Keyspace. The server reports each deletion to unlinked.
func (m *module) Drop(queues []*store.Queue) {
	if m.ctx.Listened() {
		args := m.ctx.Replicate(m.effect.deleteQueue, len(queues))
		for _, q := range queues {
			name := q.NameBytes()
			copy(args.Buffer(len(name)), name)
		}
	}
	for _, q := range queues {
		m.drop(q)
	}
}

func (m *module) drop(q *store.Queue) {
	// A copy of the name: the queue's own string is freed with the queue, while the server
	// still uses it.
	key := rm.NewString(q.NameBytes())
	defer key.Free()
	if err := m.ctx.Delete(key); err != nil {
		m.server.Log(rm.Warning, "queue %q can't be removed: %v", q.NameBytes(), err)
	}
}

// deleteQueue is DELQUEUE, the logged end of queues. Keys that hold something
// else are left alone.
func (m *module) deleteQueue(c *rm.Ctx) {
	m.internal(c, errInternalDel, func() error {
		for i := 1; i < c.NArgs(); i++ {
			if err := m.deleteNamed(c, c.Arg(i)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (m *module) deleteNamed(c *rm.Ctx, name []byte) error {
	key := rm.NewString(name)
	defer key.Free()
	if value, err := m.queue.Value(c, key); err != nil || value == nil {
		return nil
	}
	return c.Delete(key)
}

// unlinked handles a value that leaves its key. C frees the box. The queue in it is taken
// out, to be freed bit by bit, or to be taken back by another key (RENAME, MOVE).
func (m *module) unlinked(value unsafe.Pointer) {
	b := (*box)(value)
	if q := b.queue; q != nil {
		b.queue = nil
		m.node.Unlinked(value, q)
		m.hurry()
	}
}

func (m *module) keyEvent(c *rm.Ctx, event string, key rm.String, t *rm.DataType, value unsafe.Pointer) {
	if t != m.queue {
		return
	}
	b := (*box)(value)
	if event == "expire" {
		if b.queue != nil {
			m.node.MayExpire(b.queue)
		}
		return
	}
	m.begin(c)
	if event == "loaded" {
		m.base = m.saved
	}
	if b.queue == nil {
		b.queue = m.node.Reclaim(value)
	}
	q := b.queue
	m.node.MayExpire(q)
	if q.Key != nil {
		rm.StringAt(q.Key).Free()
	}
	q.Key = rm.NewString(key.Bytes()).Pointer()
	attach := m.node.Attached
	if event == "restore" {
		attach = m.node.Restored
	}
	dropped := attach(q, key.Bytes(), c.DB())
	if dropped > 0 {
		m.server.Log(rm.Warning, "queue %q: %d of its jobs are left out, because jobs of the same IDs exist", key.Bytes(), dropped)
	}
	if event == "restore" {
		m.restored(q)
	} else if !m.node.Loading() {
		m.epoch.Changes++ // RESTORE of a dump made before this would bring its jobs twice
	}
	m.carryOut(c)
}

// --- effects ---------------------------------------------------------------

// carryOut carries out the engine's effects, and sets the timer.
func (m *module) carryOut(c *rm.Ctx) {
	effects := m.node.Effects()
	listened := len(effects) > 0 && c.Listened()
	changed := false
	for i := range effects {
		e := &effects[i]
		changed = changed || e.Kind.Changes()
		switch e.Kind {
		case engine.LogJob:
			if listened {
				args := c.Replicate(m.effect.loadJob, 2)
				args.Bulk(e.Job.Queue.NameBytes())
				args.Bulk(e.Job.Record())
			}
		case engine.LogState:
			if listened {
				m.replicateState(c, e.Job)
			}
		case engine.LogMove:
			if listened {
				m.replicateMove(c, e.Job)
			}
		case engine.LogDrop:
			if listened {
				args := c.Replicate(m.effect.setJob, 3)
				args.Buffer(0)
				copy(args.Buffer(len(e.ID)), e.ID[:])
				other := m.node.Message(e)
				copy(args.Buffer(len(other)), other)
			}
		case engine.LogDelete:
			if listened {
				e.ID.Put((*[store.IDLen]byte)(c.Replicate(m.effect.deleteJob, 1).Buffer(store.IDLen)))
			}
		case engine.LogQueue:
			if listened {
				c.Replicate(m.effect.makeQueue, 1).Bulk(e.Queue.NameBytes())
			}
		case engine.LogFlush:
			if listened {
				c.Replicate(m.effect.jobmesh, 1).Text("FLUSHED")
			}
		case engine.LogLock, engine.LogUnlock:
			if listened {
				m.replicateLock(c, e)
			}
		case engine.LogEntry:
			m.entryChanged(c, e, listened)
		case engine.LockDone:
			m.lockDone(e)
		case engine.Worked:
			m.worked(e)
		case engine.Cleared:
			m.cleared(e)
		case engine.Touched:
			c.Touch(rm.StringAt(e.Queue.Key))
		case engine.Happened:
			m.happened(c, e.Client.(*engine.Happening))
		case engine.LeftOut:
			m.server.Log(rm.Verbose, "%v", e.Err)
		case engine.Warn:
			m.server.Log(rm.Warning, "%v", e.Err)
		case engine.Publish:
			p := e.Client.(*engine.Publication)
			c.Publish(p.Channel, p.Message)
		case engine.Serve:
			m.serve(effects[i:])
		case engine.Release:
			b, err := e.Waiter.Client.(*blocked), e.Err
			b.client.Answer(func(c *rm.Ctx) {
				if err != nil {
					fail(c, err)
				} else {
					c.NullArray()
				}
			}, nil)
		default:
			m.meshEffect(e)
		}
	}
	if m.settings.dirty {
		m.saveSettings()
	}
	if changed {
		m.epoch.Changes++
		if !listened {
			c.Dirty()
		}
	}
	if at := m.node.EarliestArmed(); at < m.timerAt {
		m.schedule(at)
	}
}

// carryOutAfter makes each command carry out its effects, whichever way the command ends. If the
// engine evicts something for a command that is then refused, the eviction must be logged
// as well.
func (m *module) carryOutAfter(commands []rm.Command) {
	for i := range commands {
		if run := commands[i].Run; run != nil {
			commands[i].Run = func(c *rm.Ctx) {
				run(c)
				m.carryOutRest(c)
			}
		}
		m.carryOutAfter(commands[i].Sub)
	}
}

// carryOutRest carries out effects that a call left behind, as after a panic. It does so
// before anything else happens to the jobs and queues that the effects name.
func (m *module) carryOutRest(c *rm.Ctx) {
	if m.node.HasEffects() {
		m.carryOutOld(c)
	}
}

// carryOutOld is carryOutRest for the case that effects are left.
func (m *module) carryOutOld(c *rm.Ctx) {
	if c.DB() == 0 || !c.MayReplicate() {
		c.CopyEffects() // more engine calls may follow
		m.carryOut(c)
	}
}

// serve answers a client that has waited with the jobs of the first effects that are for it.
func (m *module) serve(effects []engine.Effect) {
	w, jobs := effects[0].Waiter, 0
	for jobs < len(effects) && effects[jobs].Kind == engine.Serve && effects[jobs].Waiter == w {
		effects[jobs].Kind = engine.None
		jobs++
	}
	effects = effects[:jobs]
	deliveries := make([]engine.Delivery, jobs)
	for i := range effects {
		deliveries[i] = engine.DeliveryOf(effects[i].Job)
	}
	b := w.Client.(*blocked)
	b.client.Answer(func(c *rm.Ctx) {
		c.Array(jobs)
		for i := range effects {
			m.putJob(c, effects[i].Job, b.shape, true)
		}
	}, func(*rm.Ctx) {
		m.later(0, func(*rm.Ctx) {
			for _, d := range deliveries {
				m.node.Undeliver(d)
			}
		})
	})
}

// --- time --------------------------------------------------------------------

// schedule sets the one timer.
func (m *module) schedule(at int64) {
	if m.timer != nil {
		m.timer.Stop()
	}
	m.timerAt = at
	m.timer = m.server.After(at-m.node.Now(), m.tick)
}

// hurry makes the next tick come at once.
func (m *module) hurry() {
	if m.server != nil && m.timerAt > m.node.Now()+1 {
		m.schedule(m.node.Now() + 1)
	}
}

func (m *module) tick(c *rm.Ctx) {
	m.node.SetNow(c.Now())
	now := m.node.Now()
	late := now-m.timerAt >= stalledMS && !m.stalled
	// The next tick must come even if the engine panics.
	m.timer, m.timerAt = nil, math.MaxInt64
	if !m.takesWrites() {
		m.schedule(now + pausedEvery)
		return
	}
	m.schedule(now + 1000)
	m.begin(c)
	// After a standstill timers can fire before the server has read what clients sent
	// meanwhile. The event loop reads that first.
	if m.stalled = late; late || !m.caughtUp(c) {
		m.schedule(now + 1)
		return
	}
	m.idle = memoryEvery
	m.watchMemory(0)
	if m.node.Now()-m.policyRead >= 1000 {
		m.readPolicy()
		m.node.SetPort(m.clientPort())
		m.readUsers()
		m.readEvents()
		m.watchSync() // some servers don't report a CONFIG SET: then it is noticed here
	}
	next := m.node.Tick()
	m.tellAbstaining()
	m.tellDoubtedOffers()
	m.tellDeleted()
	m.tellFlushed()
	m.tellEvents()
	m.carryOut(c)
	m.answerDone()
	m.schedule(min(next, m.timerAt)) // carryOut may have found something that is due before
}

// Memory is checked once in memoryEvery commands that need some, or after memoryBytes of
// bodies. Asking the server costs more than all the other checks of ADDJOB.
const (
	memoryEvery = 64
	memoryBytes = 64 << 10
)

func (m *module) watchMemory(body int) {
	m.idle++
	m.grown += body
	if m.idle >= memoryEvery || m.grown >= memoryBytes {
		m.idle, m.grown = 0, 0
		m.node.SetMemory(m.server.MemoryRatio())
	}
}

// readPolicy finds out whether the server may evict queues. Without a limit it evicts
// nothing. If the server doesn't tell, readPolicy assumes that it may.
func (m *module) readPolicy() {
	m.policyRead = m.node.Now()
	policy, ok := m.server.InfoField("memory", "maxmemory_policy")
	limit, ok2 := m.server.InfoField("memory", "maxmemory")
	m.evicts = !ok || !ok2 || limit != "0" && strings.HasPrefix(policy, "allkeys-")
	why := m.deniesWrites()
	if why != m.denied {
		if m.denied = why; why != "" {
			m.server.Log(rm.Warning, "this node takes no copies of other nodes' jobs, since the server refuses what its own clients write: %s", why)
		} else {
			m.server.Log(rm.Notice, "this node takes copies of other nodes' jobs again")
		}
	}
	m.node.SetUnsafe(m.evicts || why != "")
}

// deniesWrites says why the server refuses commands that write (MISCONF, NOREPLICAS), although it can read; empty: it refuses none. What
// such a server takes from other nodes is on no disk, or on fewer servers than its operator wants.
func (m *module) deniesWrites() string {
	is := func(section, field, value string) bool {
		v, ok := m.server.InfoField(section, field)
		return ok && v == value
	}
	set := func(parameter string) string {
		v, _ := m.server.ConfigValue(parameter)
		return v
	}
	switch good, limited := m.server.InfoField("replication", "min_slaves_good_slaves"); {
	case is("persistence", "aof_last_write_status", "err") && is("persistence", "aof_enabled", "1"):
		return "its append-only file can't be written"
	case is("persistence", "rdb_last_bgsave_status", "err") && set("stop-writes-on-bgsave-error") == "yes" && set("save") != "":
		return "its RDB file can't be written"
	case limited:
		have, err := strconv.Atoi(good)
		least, err2 := strconv.Atoi(set("min-replicas-to-write"))
		if err == nil && err2 == nil && have < least {
			return fmt.Sprintf("%d of the %d replicas of min-replicas-to-write are there", have, least)
		}
	}
	return ""
}

// readLogLevel finds out whether the log takes messages at level verbose.
func (m *module) readLogLevel() {
	level, err := m.server.ConfigValue("loglevel")
	m.node.SetVerbose(err == nil && (level == "verbose" || level == "debug"))
}

// tellNoLimit logs, once at the start, that jobs may fill the machine's memory.
func (m *module) tellNoLimit() {
	if limit, ok := m.server.InfoField("memory", "maxmemory"); ok && limit == "0" {
		m.server.Log(rm.Notice, "maxmemory is unset: this node takes jobs until the machine's memory is full, and the kernel may end it then. With a maxmemory other nodes hold new jobs above 75 %% of that, where some can be reached, and none are taken above 95 %%")
	}
}

// --- INFO -----------------------------------------------------------------

func (m *module) info(w *rm.InfoWriter) {
	st := &m.node.Stats
	w.Section("node")
	w.Text("node_id", m.node.NodeID())
	w.Text("leaving", yesNo(m.node.Leaving()))
	w.Int("panics", m.server.Panics())
	w.Int("clock_ahead_ms", m.node.Ahead())
	w.Section("jobs")
	w.Int("registered_jobs", int64(m.node.Jobs()))
	w.Int("jobs_waiting", int64(m.node.Queued()))
	w.Int("jobs_delayed", int64(m.node.Counted(store.Delayed)))
	w.Int("jobs_handing_over", int64(m.node.HandingOver()))
	w.Int("jobs_dead_now", int64(m.node.DeadNow()))
	w.Int("jobs_deferred", int64(m.node.Counted(store.Deferred)))
	w.Int("jobs_blocked", int64(m.node.Counted(store.Blocked)))
	working, overdue := m.node.InProgress()
	w.Int("jobs_in_progress", int64(working))
	w.Int("jobs_overdue", int64(overdue))
	w.Section("queues")
	w.Int("registered_queues", m.node.Queues())
	w.Int("blocked_clients", int64(m.node.Blocked()))
	w.Section("stats")
	w.Int("jobs_added", st.Added)
	w.Int("jobs_delivered", st.Delivered)
	w.Int("jobs_acked", st.Acked)
	w.Int("jobs_deleted", st.Deleted)
	w.Int("jobs_expired", st.Expired)
	w.Int("jobs_lapsed", st.Lapsed)
	w.Int("jobs_put_off", st.FailedPutOff)
	w.Int("jobs_flushed", st.Flushed)
	w.Int("jobs_requeued", st.Requeued)
	w.Int("jobs_nacked", st.Nacked)
	w.Int("jobs_evicted", st.Evicted)
	w.Int("jobs_cancelled", st.Cancelled)
	w.Int("jobs_soft_cancelled", st.SoftCancelled)
	w.Int("jobs_dropped", st.Dropped)
	w.Int("jobs_moved", st.Moved)
	w.Int("jobs_revived", st.Revived)
	w.Int("names_known", st.NamesKnown)
	w.Int("rate_waited", st.RateWaited)
	w.Int("slots_waited", st.SlotsWaited)
	w.Int("queues_limited", int64(m.node.LimitedQueues()))
	w.Int("settings_entries", int64(m.node.Entries().Len()))
	w.Int("entries_conflicts", m.conflicts)
	w.Int("cron_entries", int64(m.node.Crons()))
	w.Int("cron_made", st.CronMade)
	w.Int("cron_missed", st.CronMissed)
	w.Int("cron_dropped", st.CronDropped)
	w.Int("cron_refused", st.CronRefused)
	w.Text("cron_tzdata", schedule.Zones)
	w.Int("jobs_dead", st.Dead)
	for why, count := range st.DeadFor {
		if why > 0 {
			w.Int("dead_"+engine.Why(why).String(), count)
		}
	}
	results, bytes := m.node.Results()
	w.Int("results_kept", int64(results))
	w.Int("results_bytes", int64(bytes))
	w.Int("wait_clients", int64(m.node.WaitingForJobs()))
	m.eventInfo(w)
	w.Int("adds_refused", st.Refused)
	w.Int("answers_unheard", st.Abandoned)
	m.lockInfo(w)
	w.Section("unique")
	w.Int("unique_conflicts", st.Duplicates)
	w.Int("unique_replaced", st.Replaced)
	w.Int("unique_debounced", st.Debounced)
	w.Int("unique_put_off", st.PutOff)
	w.Int("unique_dropped", st.BusyDropped)
	w.Int("unique_dead", st.Dead)
	w.Int("held_back", int64(m.node.HeldBack()))
	w.Section("mesh")
	w.Int("known_nodes", int64(len(m.node.Mesh().All())+1))
	w.Int("reachable_nodes", int64(m.node.Mesh().Reachable()))
	w.Int("messages_sent", st.Sent)
	w.Int("messages_received", st.Received)
	w.Int("jobs_exported", st.Exported)
	w.Int("jobs_imported", st.Imported)
	w.Int("jobs_uncertain_handing_over", st.UncertainHandingOver)
	w.Int("jobs_found_idle", st.Idle)
	w.Int("jobs_lacking_copies", int64(m.node.LackingCopies()))
	w.Int("copies_repaired", st.Repaired)
	out, in := m.traffic()
	w.Int("bus_bytes_sent", out)
	w.Int("bus_bytes_received", in)
	w.Section("memory")
	w.Int("memory_level", int64(m.node.MemoryLevel()))
	heap := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/total:bytes"},
		{Name: "/gc/heap/allocs:objects"}, {Name: "/cgo/go-to-c-calls:calls"},
	}
	metrics.Read(heap)
	for i, name := range []string{"go_heap_bytes", "go_total_bytes", "go_allocations", "go_calls_to_c"} {
		w.Int(name, int64(heap[i].Value.Uint64()))
	}
}

func yesNo(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}

func newNodeID() string {
	var b [20]byte
	// Read never fails on the systems that the module runs on. [module.before] has refused
	// a server without randomness.
	_, _ = crand.Read(b[:])
	return fmt.Sprintf("%x%x", binary.BigEndian.Uint32(b[:4])|1<<31, b[4:])
}
