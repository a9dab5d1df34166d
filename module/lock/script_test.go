package lock_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"jobmesh/module/lock"
	"jobmesh/module/lock/locktest"
	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
	"jobmesh/module/wire"
)

// TestScripts plays testdata/*.txt: conversations between nodes that have locks and no jobs. "go test ./module/lock -run
// Scripts -rewrite" writes what the nodes do now into the files. Read and judge that before you keep it.
//
// Package locktest has the commands. These are added:
//
//	job NODE JOB [has=KEY] [done] [gone]  says what a node knows of a job
//	fill NODE COUNT                       acquires so many bare locks for two hours, and delivers all messages
//	relog NODE                            makes a node log all its locks again, as for a log that begins without them
func TestScripts(t *testing.T) {
	locktest.Run(t, func() *locktest.World { return newWorld(func(any, *lock.Result) {}) }, "testdata/*.txt")
}

// newWorld makes a world, and calls hear for each client that gets an answer.
func newWorld(hear func(client any, r *lock.Result)) *locktest.World {
	w := locktest.New(func(a *locktest.Actor, timeout int64) locktest.Node { return start(a, timeout, hear) })
	w.Commands["job"] = func() { jobCommand(w) }
	w.Commands["fill"] = func() { fillCommand(w) }
	w.Commands["relog"] = func() { n := w.Actor(0); n.Do(n.Node.Locks().Relog) }
	return w
}

func fillCommand(w *locktest.World) {
	n := w.Actor(0)
	count, err := strconv.Atoi(w.Word(1))
	require.NoError(w.T, err)
	for i := range count {
		name := store.AppendBareName(nil, fmt.Appendf(nil, "fill%d", i))
		n.Do(func() {
			_, pending := n.Node.Locks().AcquireSlot(name, []byte("filler"), 7_200_000, 0, 1, "filler")
			require.NotNil(w.T, pending)
		})
		w.Deliver()
	}
	w.Out.Reset()
}

// node is a node of a mesh that has locks and no jobs.
type node struct {
	a      *locktest.Actor
	random *rand.Rand
	table  membership.Table[*membership.Peer]
	store  *store.Store
	locks  *lock.Node
	jobs   jobs
	msg    wire.Message
	hear   func(client any, r *lock.Result)

	now     int64
	wake    int64    // the earliest time that was set since the last call of EarliestArmed
	todo    []func() // what the event brings about
	loading bool
	lossAt  int64 // what the node knew before may be lost
}

// start begins a life of a node's process.
func start(a *locktest.Actor, timeout int64, hear func(client any, r *lock.Result)) locktest.Node {
	random := rand.New(rand.NewPCG(uint64(a.ID[0]), a.Life))
	n := &node{a: a, hear: hear, random: random, now: a.W.Now + a.Off, wake: math.MaxInt64, lossAt: math.MaxInt64}
	n.store = store.New(storetest.New(), random.Uint64(), n.now)
	n.table = membership.New((*host)(n), timeout)
	n.jobs = jobs{n: n, known: map[store.ID]*job{}}
	n.locks = lock.New((*host)(n), &n.jobs, n.table.Mesh(), n.store, 0)
	n.locks.Lazy = true
	n.locks.SetVotes(lock.Votes{Longest: lock.LeasesUpTo(-1), Unleased: true})
	n.locks.SetSelf(a.ID)
	n.table.SetSelf(a.ID)
	return n
}

func (n *node) Locks() *lock.Node     { return n.locks }
func (n *node) Table() locktest.Table { return &n.table }
func (n *node) StartsNew()            { n.lossAt = 0 }
func (n *node) BeginLoading()         { n.loading = true }
func (n *node) EndLoading()           { n.loading = false }

// SetNow tells the node the time. After a jump the others don't seem to have been silent.
func (n *node) SetNow(wall int64) {
	before := n.now
	if n.now = wall; wall < before-1000 || wall > before+5000 {
		n.table.TimeJumped()
	}
}

func (n *node) Receive(from wire.NodeID, message []byte) error {
	p := n.table.ByID(from)
	if p == nil {
		return n.table.Admit(from, &n.msg, message)
	}
	m := &n.msg
	if err := m.Parse(message); err != nil {
		return err
	}
	n.table.Said(p)
	switch m.Kind {
	case wire.Heartbeat:
		n.table.OnHeartbeat(p, m)
	case wire.Failed:
		n.table.OnFailed(m)
	default:
		n.locks.Receive(p, m)
	}
	return nil
}

func (n *node) Tick() (next int64) {
	n.lossAt = min(n.lossAt, n.now)
	n.table.Tick()
	n.wake = math.MaxInt64
	n.locks.TickAcquisitions()
	n.locks.Tick()
	n.locks.TickClears()
	next = min(n.now+1000, n.EarliestArmed())
	if !n.table.Alone() {
		next = min(next, n.table.NextBeat())
	}
	return max(next, n.now+1)
}

func (n *node) EarliestArmed() int64 {
	at := n.wake
	n.wake = math.MaxInt64
	return at
}

func (n *node) CarryOut() {
	if n.locks.LinesWait() {
		n.locks.ServeLines()
	}
	todo := n.todo
	n.todo = nil
	for _, f := range todo {
		f()
	}
}

func (n *node) Loaded(exact bool) {
	if n.lossAt = 0; !exact {
		n.lossAt = n.now
	}
}

// Reset forgets all nodes, and all jobs.
func (n *node) Reset() {
	n.table.Reset()
	clear(n.jobs.known)
	n.locks.Reset()
	n.locks.Flushed()
}

// host is the node as its locks, and its table of nodes, see it.
type host node

func (h *host) later(f func())         { h.todo = append(h.todo, f) }
func (h *host) Now() int64             { return h.now }
func (h *host) Monotonic() int64       { return h.now }
func (h *host) WakeIn(ms int64)        { h.wake = min(h.wake, h.now+ms) }
func (h *host) Below(span int64) int64 { return int64(h.random.Uint64() % uint64(span)) }
func (h *host) Passive() bool          { return false }
func (h *host) Loading() bool          { return h.loading }
func (h *host) Mark() int              { return len(h.todo) }
func (h *host) Cost(mark, _ int) int   { return len(h.todo) - mark }

func (h *host) WholeFor() int64 {
	if h.lossAt == 0 {
		return store.MaxLease
	}
	return min(max(h.now-h.lossAt, 0), store.MaxLease)
}

func (h *host) LogLock(l *store.Lock) {
	record := slices.Clone(l.Record())
	h.later(func() { h.a.LogLock(record) })
}

func (h *host) LogUnlock(name []byte, token uint64) {
	name = slices.Clone(name)
	h.later(func() { h.a.LogUnlock(name, token) })
}

func (h *host) KeepVotes()              { h.later(h.a.KeepVotes) }
func (h *host) Cleared(any, int, error) {} // no script waits for it

func (h *host) Done(client any, r *lock.Result) {
	h.later(func() {
		h.a.Answers(client, r)
		h.hear(client, r)
	})
}

func (h *host) Receive(from wire.NodeID, message []byte) error {
	return (*node)(h).Receive(from, message)
}

func (h *host) New(p membership.Peer) *membership.Peer { return &p }
func (h *host) State() membership.State                { return membership.State{} }
func (h *host) Connect(p *membership.Peer)             { h.later(func() { h.a.Connects(p.ID) }) }
func (h *host) Disconnect(p *membership.Peer)          { h.later(func() { h.a.Disconnects(p.ID) }) }
func (h *host) TurnAway(p *membership.Peer)            { h.Disconnect(p) }
func (h *host) Added(*membership.Peer)                 { h.locks.Joins() }
func (h *host) Returning(*membership.Peer)             {}
func (h *host) Up(p *membership.Peer)                  { h.locks.Up(p) }
func (h *host) Down(*membership.Peer)                  { h.locks.Down() }
func (h *host) Silent(*membership.Peer)                {}
func (h *host) Back(*membership.Peer)                  {}
func (h *host) Gone(p *membership.Peer)                { h.locks.Gone(p) }

func (h *host) Changed() {
	h.later(h.a.NodesChanged)
	h.WakeIn(1)
}

func (h *host) Send(m *wire.Message, to ...*membership.Peer) {
	for _, p := range to {
		if p != nil && p.Connected {
			message := m.Append(nil)
			h.later(func() { h.a.Sends(p.ID, message) })
		}
	}
}

// jobs is what a node knows of jobs.
type jobs struct {
	n     *node
	known map[store.ID]*job
}

type job struct {
	done  bool
	lock  string // its full name; empty: it has none
	token uint64
}

// jobCommand is the command "job".
func jobCommand(w *locktest.World) {
	n, name := w.Actor(0).Node.(*node), w.Word(1)
	id := w.NamedJob(name)
	if w.D.HasArg("gone") {
		delete(n.jobs.known, id)
		return
	}
	j := &job{done: w.D.HasArg("done")}
	key := ""
	if w.Arg("has", &key); key != "" {
		j.lock = string(store.AppendLockName(nil, store.LockWait, nil, []byte(key)))
		j.token = n.store.Lock([]byte(j.lock)).Token
	}
	n.jobs.known[id] = j
}

func (j *jobs) Holds(l *store.Lock) bool { return j.Has(l.Job, l.Name(), l.Token) }

func (j *jobs) Has(id store.ID, name []byte, token uint64) bool {
	k := j.known[id]
	return k != nil && !k.done && k.lock == string(name) && k.token == token
}

func (j *jobs) Lapsed(l *store.Lock) {
	if j.Holds(l) {
		j.HasNoMore(l.Job, l.Space())
	}
}

func (j *jobs) HasNoMore(id store.ID, _ store.Space) {
	if k := j.known[id]; k != nil {
		k.lock, k.token = "", 0
	}
}

func (j *jobs) Loses(id store.ID) {
	if j.Knows(id) {
		j.n.a.W.Say("  %s: %s has lost a lock", j.n.a.Name, j.n.a.W.JobName(id))
	}
}

func (j *jobs) Knows(id store.ID) bool                     { return j.known[id] != nil }
func (j *jobs) Lives(id store.ID) bool                     { return j.CountsOn(id) || j.n.locks.Asks(&id) }
func (j *jobs) Done(id store.ID) bool                      { return j.Knows(id) && j.known[id].done }
func (j *jobs) CountsOn(id store.ID) bool                  { return j.Knows(id) && !j.known[id].done }
func (j *jobs) LivesElsewhere(store.ID) bool               { return false }
func (j *jobs) IsPutOff(store.ID) bool                     { return false }
func (j *jobs) Over([]byte, store.ID) bool                 { return false }
func (j *jobs) MayBeLapsed([]byte, store.ID) bool          { return false }
func (j *jobs) EndLapsed([]byte, store.ID) bool            { return false }
func (j *jobs) RunLease(store.ID) int64                    { return 0 }
func (j *jobs) GivenBack([]byte, store.ID, uint64, uint64) {}

func (j *jobs) EndPastRun([]byte, store.ID, *wire.Message) {}
func (j *jobs) Freed([]byte)                               {}
func (j *jobs) BackoffOver([]byte) bool                    { return false }
func (j *jobs) ResetBackoff([]byte)                        {}
func (j *jobs) HasBackoff(string) bool                     { return false }
func (j *jobs) HasSlot([]byte, store.ID) bool              { return true }
func (j *jobs) BeforeAsking()                              {}
