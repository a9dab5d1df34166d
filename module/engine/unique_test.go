package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
	"jobmesh/module/wire"
)

// placeOfKeys is a keyspace with queues in it.
type placeOfKeys struct {
	n     *Node
	boxes map[string]*box
	over  map[string]bool // keys whose time is over, and that nobody has looked at since then
}

type box struct{ q *store.Queue }

func (p *placeOfKeys) Free([]byte) error { return nil }

func (p *placeOfKeys) Lives(q *store.Queue) (lives, expires bool) {
	name := string(q.NameBytes())
	if p.over[name] {
		p.remove(name)
		return false, false
	}
	return true, true
}

func (p *placeOfKeys) Adopt(q *store.Queue) error {
	b := &box{q}
	p.boxes[string(q.NameBytes())], q.Box = b, unsafe.Pointer(b)
	return nil
}

func (p *placeOfKeys) Drop(queues []*store.Queue) {
	for _, q := range queues {
		p.remove(string(q.NameBytes()))
	}
}

func (p *placeOfKeys) remove(name string) {
	b := p.boxes[name]
	delete(p.boxes, name)
	delete(p.over, name)
	q := b.q
	b.q = nil
	p.n.Unlinked(unsafe.Pointer(b), q)
}

// desk is a node under test, with its log.
type desk struct {
	n     *Node
	k     *placeOfKeys
	now   int64
	alloc *storetest.Alloc
	log   map[store.ID]logged
	order []store.ID
	given []store.ID
	lives uint64
}

type logged struct {
	queue  string
	record []byte
}

func newDesk() *desk {
	d := &desk{now: 1_700_000_000_000, log: map[store.ID]logged{}}
	d.start()
	return d
}

func (d *desk) start() {
	d.lives++
	d.alloc = storetest.New()
	d.k = &placeOfKeys{boxes: map[string]*box{}, over: map[string]bool{}}
	d.n = New(Config{Alloc: d.alloc, Keys: d.k, Random: rand.NewPCG(d.lives, 2), NodeID: "0123456789abcdef0123456789abcdef01234567", Now: d.now})
	d.k.n = d.n
}

// do runs an event, keeps the log, and checks the locks.
func (d *desk) do(t require.TestingT, f func()) {
	d.n.SetNow(d.now)
	f()
	var claims []wire.Message
	for _, e := range d.n.Effects() {
		switch e.Kind {
		case Send:
			var m wire.Message
			require.NoError(t, m.Parse(append([]byte(nil), d.n.Message(&e)...)))
			if m.Kind == wire.Claim || m.Kind == wire.Unlock {
				claims = append(claims, wire.Message{Kind: wire.Grant, Round: m.Round})
			}
		case LogJob, LogState, LogMove:
			if _, yes := d.log[e.Job.ID]; !yes {
				d.order = append(d.order, e.Job.ID)
			}
			d.log[e.Job.ID] = logged{string(e.Job.Queue.NameBytes()), append([]byte(nil), e.Job.Record()...)}
		case LogDelete:
			delete(d.log, e.ID)
		case Serve:
			d.given = append(d.given, e.Job.ID)
		}
	}
	if d.n.Load().Claims == 0 {
		checkLocks(t, d.n)
	}
	for i := range claims {
		d.do(t, func() { require.NoError(t, d.n.Receive(neighbour, claims[i].Append(nil))) })
	}
}

// neighbour is another node, which agrees to all claims.
var neighbour = wire.NodeID{1, 2, 3}

func (d *desk) meet(t require.TestingT) {
	d.do(t, func() {
		d.n.Mesh().Add(neighbour, "b:1")
		d.n.Mesh().Up(neighbour, "b:1", true)
		d.n.Locks().Trust()
	})
}

func (d *desk) add(t require.TestingT, a Add) (id store.ID, err error) {
	if a.TTL == 0 {
		a.TTL = 600
	}
	if a.Replicate == 0 {
		a.Replicate = 1
	}
	d.do(t, func() {
		var wait bool
		id, wait, err = d.n.AddJob(&a)
		require.False(t, wait)
	})
	return id, err
}

func (d *desk) get(t require.TestingT, count int, queues ...string) (ids []store.ID) {
	d.do(t, func() {
		var list []*store.Queue
		for _, name := range queues {
			list = append(list, d.n.Queue([]byte(name)))
		}
		for _, j := range d.n.Fetch(list, count, true, nil) {
			ids = append(ids, j.ID)
		}
	})
	return ids
}

func (d *desk) pass(t require.TestingT, ms int64) {
	d.now += ms
	for range 3 {
		d.do(t, func() { d.n.Tick() })
	}
}

// reload loads what was logged into a new node.
func (d *desk) reload(t require.TestingT, trust Trust) {
	d.start()
	d.do(t, func() {
		d.n.BeginLoading()
		kept := d.order[:0]
		for _, id := range d.order {
			if l, yes := d.log[id]; yes {
				kept = append(kept, id)
				require.NoError(t, d.n.ApplyJob([]byte(l.queue), l.record))
			}
		}
		d.order = kept
		d.n.EndLoading()
		d.n.Settle(trust)
	})
}

// checkLocks checks that every lock of a job has its job, which says that it has the lock, and the other way
// round; that no two jobs with one key are worked on; and that each job that is held back has a reason.
func checkLocks(t require.TestingT, n *Node) {
	now := n.monotonic()
	for l := n.store.Locks().Head; l != nil; l = l.Next {
		if l.Space() == store.LockBare || l.Flags&lock.FlagOutlives != 0 || l.Until != 0 && l.Until <= now {
			continue
		}
		if n.store.Lookup(&l.Job) == nil {
			require.NotZero(t, n.Locks().Sizes().Sweep, "lock %q has no job", l.Name())
			continue
		}
		require.True(t, (*owners)(n).Holds(l) || n.Locks().Sizes().Sweep > 0, "job %s doesn't know of its lock %q", l.Job, l.Name())
	}
	var jobs []*store.Job
	for cursor := uint64(0); ; {
		if cursor = n.store.ScanJobs(cursor, &jobs); cursor == 0 {
			break
		}
	}
	held := map[*store.Queue]uint64{}
	uniques := map[*store.Queue]uint64{}
	for _, j := range jobs {
		u := j.Unique()
		if u == nil {
			continue
		}
		uniques[j.Queue]++
		for _, space := range []store.Space{store.LockWait, store.LockRun} {
			if !u.Has(hasFlag(space)) || u.Strategy() == store.UniqueWindow {
				continue
			}
			l := n.store.Lock(j.AppendLock(nil, u, space))
			if l == nil || l.Job != j.ID {
				lease := u.LockTTL()
				if space == store.LockRun {
					lease = u.RunTTL()
				}
				if !n.mesh.Alone() {
					continue // a copy: its job got the lock by other nodes' votes
				}
				require.NotZero(t, lease, "job %s has lost its lock %c", j.ID, space)
				continue
			}
			token := u.WaitToken()
			if space == store.LockRun {
				token = u.RunToken()
				require.Equal(t, store.StateActive, j.State)
			}
			require.Equal(t, token, l.Token)
		}
		if u.Has(store.UniquePending) {
			require.False(t, u.Has(store.UniqueHasWait))
			require.NotEqual(t, store.StateQueued, j.State)
		}
		if j.Place == store.InKeyQueue {
			held[j.Queue]++
		}
	}
	var queues []*store.Queue
	for cursor := uint64(0); ; {
		if cursor = n.store.ScanQueues(cursor, &queues); cursor == 0 {
			break
		}
	}
	var all uint64
	for _, q := range queues {
		require.Equal(t, held[q], q.HeldBack)
		require.Equal(t, uniques[q], q.Uniques)
		all += q.HeldBack
		for l := q.KeyQueues.Head; l != nil; l = l.Next {
			require.True(t, l.Front() || l.Head() != nil, "a lane without jobs")
			if !l.Front() && !n.passive && !n.loading && n.Locks().Sizes().Sweep == 0 {
				require.NotNil(t, n.Locks().Live(l.AppendLock(nil)), "jobs are held back and their key is free")
			}
		}
	}
	require.Equal(t, all, n.HeldBack())
}

func unique(strategy uint8, key string) Unique {
	return Unique{Strategy: strategy, Keyed: true, Key: []byte(key)}
}

// TestLocksAgainstAnyOperations does anything that can happen to unique jobs, and checks
// the locks after each step.
func TestLocksAgainstAnyOperations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDesk()
		var known []store.ID
		name := func() string { return fmt.Sprint("q", rapid.IntRange(0, 2).Draw(t, "queue")) }
		some := func() *store.ID {
			if len(known) == 0 {
				return &store.ID{}
			}
			return &known[rapid.IntRange(0, len(known)-1).Draw(t, "job")]
		}
		small := func(label string) int64 { return int64(rapid.IntRange(0, 3).Draw(t, label)) }
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 18).Draw(t, "op") {
			case 0, 1, 2, 3:
				a := Add{Queue: []byte(name()), Body: []byte(fmt.Sprint(small("body"))), Retry: small("retry"), Delay: small("delay"), TTL: 20 + small("ttl")}
				a.Unique = Unique{
					Strategy: uint8(rapid.IntRange(0, 5).Draw(t, "strategy")), Conflict: uint8(rapid.IntRange(0, 4).Draw(t, "conflict")),
					Busy: uint8(rapid.IntRange(0, 3).Draw(t, "busy")), Mesh: rapid.Bool().Draw(t, "mesh"),
					LockTTL: small("lockttl"), RunTTL: small("runttl"), ConflictDelay: 1 + small("wait"), BusyDelay: 1 + small("wait"),
				}
				if a.Unique.Strategy == store.UniqueWindow {
					a.Unique.LockTTL++
				}
				if rapid.Bool().Draw(t, "keyed") {
					a.Unique.Keyed, a.Unique.Key = true, []byte(fmt.Sprint(small("key")))
				}
				if id, err := d.add(t, a); err == nil {
					known = append(known, id)
				}
			case 4, 5, 6:
				d.get(t, rapid.IntRange(1, 3).Draw(t, "count"), name(), name())
			case 7:
				id := some()
				d.do(t, func() { d.n.Ack(id) })
			case 8:
				id := some()
				d.do(t, func() { d.n.Nack(id, &Failure{}) })
			case 9:
				id := some()
				d.do(t, func() { d.n.Enqueue(id) })
			case 10:
				id := some()
				d.do(t, func() { d.n.Dequeue(id) })
			case 11:
				id := some()
				d.do(t, func() { d.n.Delete(id) })
			case 12:
				id := some()
				d.do(t, func() { _, _, _ = d.n.Working(id, Work{}) })
			case 13:
				d.pass(t, int64(rapid.IntRange(1, 4000).Draw(t, "ms")))
			case 14: // DEL
				if q := name(); d.k.boxes[q] != nil {
					d.do(t, func() { d.k.remove(q) })
				}
			case 15: // RENAME
				from, to := name(), name()
				if b := d.k.boxes[from]; b != nil && from != to {
					d.do(t, func() {
						if d.k.boxes[to] != nil {
							d.k.remove(to)
						}
						d.k.remove(from)
						q := d.n.Reclaim(unsafe.Pointer(b))
						b.q = q
						d.k.boxes[to] = b
						d.n.Attached(q, []byte(to), 0)
					})
					// A real log would have RENAME itself.
					for id, l := range d.log {
						if j := d.n.Job(&id); j == nil {
							delete(d.log, id)
						} else {
							l.queue = string(j.Queue.NameBytes())
							l.record = append([]byte(nil), j.Record()...)
							d.log[id] = l
						}
					}
				}
			case 16: // a restart
				for id := range d.log {
					if d.n.Job(&id) == nil {
						delete(d.log, id) // DEL is in the log too
					}
				}
				d.reload(t, Trust{Exact: rapid.Bool().Draw(t, "exact")})
			case 18: // EXPIRE is over, and nobody has looked at the key yet
				if q := name(); d.k.boxes[q] != nil {
					d.n.MayExpire(d.n.store.Queue([]byte(q)))
					d.k.over[q] = true
				}
			case 17: // MOVE to another database, and back
				q := name()
				if b := d.k.boxes[q]; b != nil {
					d.do(t, func() {
						d.k.remove(q)
						b.q = d.n.Reclaim(unsafe.Pointer(b))
						d.n.Attached(b.q, []byte(q), 1)
					})
					d.pass(t, 100)
					d.do(t, func() {
						old := b.q
						b.q = nil
						d.n.Unlinked(unsafe.Pointer(b), old)
						b.q = d.n.Reclaim(unsafe.Pointer(b))
						if d.k.boxes[q] != nil {
							d.k.remove(q)
						}
						d.k.boxes[q] = b
						d.n.Attached(b.q, []byte(q), 0)
					})
				}
			}
		}
		// In the end all queues go, and every lock with them.
		for i := range 3 {
			if q := fmt.Sprint("q", i); d.k.boxes[q] != nil {
				d.do(t, func() { d.k.remove(q) })
			}
			if q := fmt.Sprint("q", i, DeadSuffix); d.k.boxes[q] != nil {
				d.do(t, func() { d.k.remove(q) })
			}
		}
		for range 200 {
			d.pass(t, 1000)
		}
		require.Zero(t, d.n.store.Locks().Len)
		require.Zero(t, d.n.Jobs())
	})
}

// A fetch past jobs that are held back takes as long as one past no job, and
// allocates nothing.
func TestHeldBackCostsNothing(t *testing.T) {
	d := newDesk()
	for range 2000 {
		_, err := d.add(noCheck{}, Add{Queue: []byte("q"), Retry: 100, Unique: unique(store.UniqueDuring, "busy")})
		require.NoError(t, err)
		if d.n.Jobs() == 1 {
			require.Len(t, d.get(t, 1, "q"), 1)
		}
	}
	q := d.n.Queue([]byte("q"))
	assert.EqualValues(t, 1999, q.Waiting())
	assert.EqualValues(t, 0, q.Len)
	checkLocks(t, d.n)
	assert.Empty(t, d.get(t, 1, "q"))

	id, _, err := d.n.AddJob(&Add{Queue: []byte("none"), Replicate: 1, Retry: 100, TTL: 600})
	require.NoError(t, err)
	d.n.Ack(&id)
	d.n.Effects()
	out := make([]*store.Job, 0, 1)
	fetch := func(queue string) (run func(), took func() time.Duration) {
		queues := []*store.Queue{d.n.Queue([]byte(queue))}
		run = func() { out = d.n.Fetch(queues, 1, true, out[:0]) }
		return run, func() time.Duration {
			shortest := time.Hour
			for range 20 {
				began := time.Now()
				for range 100 {
					run()
				}
				shortest = min(shortest, time.Since(began))
			}
			return shortest
		}
	}
	past, pastTook := fetch("q")
	_, nothingTook := fetch("none")
	assert.Zero(t, testing.AllocsPerRun(1000, past))
	// A walk past the jobs would take a thousand times as long.
	assert.Less(t, pastTook(), 50*nothingTook()+100*time.Microsecond)
}

// noCheck ignores what a helper requires.
type noCheck struct{}

func (noCheck) Errorf(string, ...any) {}
func (noCheck) FailNow()              {}

func TestUniqueAllocatesNothing(t *testing.T) {
	for strategy := store.UniqueBefore; strategy <= store.UniqueWindow; strategy++ {
		d := newDesk()
		queues, out := []*store.Queue{nil}, make([]*store.Job, 0, 4)
		key := []byte("k0000")
		a := Add{Queue: []byte("q"), Body: []byte("body"), Replicate: 1, Retry: 100, TTL: 600, Unique: Unique{Strategy: strategy, Keyed: true, Key: key, LockTTL: 1}}
		if strategy == store.UniqueDuring {
			a.Unique.LockTTL = 0
		}
		cycle := func() {
			for i := range 4 {
				key[i+1]++
			}
			id, _, err := d.n.AddJob(&a)
			if err != nil {
				t.Fatal(err)
			}
			queues[0] = d.n.Queue(a.Queue)
			out = d.n.Fetch(queues, 1, true, out[:0])
			d.n.Ack(&id)
			d.n.Effects()
			d.now += 2000
			d.n.SetNow(d.now)
		}
		for range 3000 {
			cycle()
		}
		// The test's allocator allocates; the engine allocates nothing besides.
		plain := a
		base := testing.AllocsPerRun(500, cycle)
		a.Unique = Unique{}
		assert.LessOrEqual(t, base, testing.AllocsPerRun(500, cycle)+3, "strategy %d", plain.Unique.Strategy)
	}
}

// An ADDJOB that times out while it waits for its copies leaves no lock.
func TestReplicationTimesOut(t *testing.T) {
	d := newDesk()
	d.meet(t)
	a := Add{Queue: []byte("q"), Replicate: 2, Retry: 10, TTL: 600, Timeout: 500, CanWait: true, Unique: unique(store.UniqueUntil, "k")}
	var first store.ID
	d.do(t, func() {
		id, wait, err := d.n.AddJob(&a)
		require.NoError(t, err)
		require.True(t, wait)
		first = id
		d.n.Tie(PendingAdd(id), "client")
	})
	a.Unique.Conflict = store.ConflictReturn
	d.do(t, func() {
		_, _, err := d.n.AddJob(&a)
		require.ErrorContains(t, err, "DUPLICATE "+first.String(), "an ID that isn't promised can't be answered")
	})
	d.pass(t, 600)
	require.Nil(t, d.n.Job(&first))
	require.Zero(t, liveLocks(d.n))
	d.do(t, func() {
		id, wait, err := d.n.AddJob(&a)
		require.NoError(t, err)
		require.True(t, wait)
		d.n.Tie(PendingAdd(id), "client")
		d.n.Abandon(PendingAdd(id))
	})
	require.Zero(t, liveLocks(d.n), "nor does one whose client has gone")
}

// No window begins for a job that wasn't promised.
func TestNoWindowOfARefusedJob(t *testing.T) {
	d := newDesk()
	d.meet(t)
	a := Add{Queue: []byte("q"), Replicate: 2, Retry: 10, TTL: 600, Timeout: 500, CanWait: true, Unique: unique(store.UniqueWindow, "k")}
	a.Unique.LockTTL = 100
	d.do(t, func() {
		id, wait, err := d.n.AddJob(&a)
		require.NoError(t, err)
		require.True(t, wait)
		d.n.Tie(PendingAdd(id), "client")
	})
	d.pass(t, 600)
	require.Zero(t, liveLocks(d.n))
}

// A client that was refused gets no promise any more. If a copy's confirmation or votes arrive before Abandon, they
// delete the job instead, and free its lock.
func TestDeniedAddIsNotPromised(t *testing.T) {
	for _, tc := range []struct {
		name string
		add  Add
	}{
		{"waits for a copy", Add{Replicate: 2, Retry: 10}},
		{"waits for a copy, unique", Add{Replicate: 2, Retry: 10, Unique: unique(store.UniqueUntil, "k")}},
		{"waits for votes", Add{Replicate: 1, Retry: 10, Unique: unique(store.UniqueUntil, "k")}},
		{"waits for votes, window", Add{Replicate: 1, Retry: 10, Unique: unique(store.UniqueWindow, "k")}},
		{"waits for votes to be put off", Add{Replicate: 1, Retry: 10, Unique: Unique{Strategy: store.UniqueUntil, Keyed: true, Key: []byte("k"), Conflict: store.ConflictReschedule, ConflictDelay: 5}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDesk()
			d.meet(t)
			a := tc.add
			a.Queue, a.TTL, a.CanWait = []byte("q"), 600, true
			var id store.ID
			add := func() {
				var wait bool
				var err error
				id, wait, err = d.n.AddJob(&a)
				require.NoError(t, err)
				require.True(t, wait)
				d.n.Tie(PendingAdd(id), "client")
			}
			confirm := func() {
				m := wire.Message{Kind: wire.GotJob, ID: id}
				d.do(t, func() { require.NoError(t, d.n.Receive(neighbour, m.Append(nil))) })
			}
			d.do(t, func() {
				add()
				d.n.Deny(PendingAdd(id)) // the votes come after this
			})
			confirm()
			require.Nil(t, d.n.Job(&id))
			require.Zero(t, liveLocks(d.n))
			d.do(t, add) // here the votes come first
			d.do(t, func() { d.n.Deny(PendingAdd(id)) })
			if a.Replicate > 1 {
				confirm()
				require.Nil(t, d.n.Job(&id))
				require.Zero(t, liveLocks(d.n))
			}
			d.do(t, func() { d.n.Abandon(PendingAdd(id)) })
			require.Equal(t, d.n.Job(&id) != nil, a.Replicate == 1, "what was promised before stays")
		})
	}
	t.Run("is given back", func(t *testing.T) { // an at-most-once job that only the other node was to hold
		d := newDesk()
		d.meet(t)
		d.n.SetMemory(0.8)
		a := Add{Queue: []byte("q"), Replicate: 1, TTL: 600, CanWait: true}
		var id store.ID
		d.do(t, func() {
			var err error
			id, _, err = d.n.AddJob(&a)
			require.NoError(t, err)
			d.n.Tie(PendingAdd(id), "client")
			d.n.Deny(PendingAdd(id))
		})
		m := wire.Message{Kind: wire.YourJob, ID: id, Queue: []byte("q"), Holders: []wire.Node{neighbour.Node()}, Job: wire.Job{CTime: uint64(d.now) * 1_000_000, Left: 600_000, Repl: 1, Body: []byte("b")}}
		d.do(t, func() { require.NoError(t, d.n.Receive(neighbour, m.Append(nil))) })
		require.Nil(t, d.n.Job(&id))
	})
}

// A job that is held back isn't given to other nodes.
func TestHeldBackIsNotExported(t *testing.T) {
	d := newDesk()
	d.meet(t)
	for range 3 {
		_, err := d.add(t, Add{Queue: []byte("q"), Retry: 10, Unique: unique(store.UniqueDuring, "k")})
		require.NoError(t, err)
	}
	require.Empty(t, d.get(t, 1, "q"), "the other node has to agree first")
	d.do(t, func() {
		_, err := d.n.Wait([][]byte{[]byte("q")}, nil)
		require.NoError(t, err)
		d.n.serve(d.n.Queue([]byte("q")))
	})
	running := d.given
	require.Len(t, running, 1)
	ask := func() {
		m := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: 10}
		d.do(t, func() { require.NoError(t, d.n.Receive(neighbour, m.Append(nil))) })
	}
	ask()
	require.Zero(t, d.n.Stats.Exported)
	d.do(t, func() { d.n.Ack(&running[0]) })
	require.Positive(t, d.n.Stats.Exported, "the key is free: who asked gets some, and holds back what must not run")
}

// A job that another node hands over brings its waiting lock along.
func TestLocksOfAcceptedJobs(t *testing.T) {
	d := newDesk()
	d.meet(t)
	value := store.AppendUnique(nil, &store.UniqueBy{Strategy: store.UniqueUntil, Flags: store.UniqueKeyed, Key: []byte("k")})
	store.Unique(value).SetWait(7)
	m := wire.Message{Kind: wire.ReplJob, ID: store.ID{9, 23: 1}, Queue: []byte("q"), Holders: []wire.Node{neighbour.Node()}}
	m.Job = wire.Job{CTime: 1, Left: 100_000, Retry: 10, Repl: 2, Extras: store.AppendExtra(nil, store.TagUnique, value)}
	d.do(t, func() { require.NoError(t, d.n.Receive(neighbour, m.Append(nil))) })
	id := store.ID(m.ID)
	m.Kind, m.Flags, m.Job.Body = wire.ReplJob, wire.NewBody|wire.NoReply, []byte("new")
	d.do(t, func() { require.NoError(t, d.n.Receive(neighbour, m.Append(nil))) })
	require.Equal(t, "new", string(d.n.Job(&id).Body()))
	m = wire.Message{Kind: wire.YourJob, ID: store.ID{8}, Queue: []byte("q")}
	m.Job = wire.Job{CTime: 1, Left: 100_000, Repl: 1, Extras: store.AppendExtra(nil, store.TagUnique, value)}
	d.do(t, func() { require.NoError(t, d.n.Receive(neighbour, m.Append(nil))) })
	id = store.ID(m.ID)
	require.True(t, d.n.Job(&id).Unique().Has(store.UniqueHasWait))
}

// A client has gone before its job reached it. Meanwhile another client has given the job back, and
// a third one has it.
func TestUndeliveredAfterANack(t *testing.T) {
	d := newDesk()
	id, err := d.add(t, Add{Queue: []byte("q"), Retry: 10})
	require.NoError(t, err)
	require.Len(t, d.get(t, 1, "q"), 1)
	gone := DeliveryOf(d.n.Job(&id))
	d.do(t, func() { d.n.Nack(&id, &Failure{}) })
	require.Len(t, d.get(t, 1, "q"), 1)
	d.do(t, func() { d.n.Undeliver(gone) })
	require.Empty(t, d.get(t, 1, "q"), "it is given to two at once")
}

// A client has gone before its job reached it: the locks are as before.
func TestUndeliveredJobsLocks(t *testing.T) {
	d := newDesk()
	a := Add{Queue: []byte("q"), Retry: 10, Unique: unique(store.UniqueBoth, "k")}
	first, err := d.add(t, a)
	require.NoError(t, err)
	require.Len(t, d.get(t, 1, "q"), 1)
	require.True(t, d.n.Job(&first).Unique().Has(store.UniqueHasRun))
	d.do(t, func() { d.n.Undeliver(DeliveryOf(d.n.Job(&first))) })
	u := d.n.Job(&first).Unique()
	require.True(t, u.Has(store.UniqueHasWait) && !u.Has(store.UniqueHasRun))
	_, err = d.add(t, a)
	require.ErrorIs(t, err, ErrDropped)
}

// One fetch gets a thousand jobs that are to be dropped out of the way. If there are more,
// the next fetch goes on.
func TestManyToDrop(t *testing.T) {
	d := newDesk()
	a := Add{Queue: []byte("q"), Retry: 10, Unique: unique(store.UniqueDuring, "k")}
	_, err := d.add(t, a)
	require.NoError(t, err)
	require.Len(t, d.get(t, 1, "q"), 1)
	a.Unique.Busy = store.BusyDrop
	for range busySteps + 10 {
		_, _, err := d.n.AddJob(&Add{Queue: a.Queue, Replicate: 1, Retry: 10, TTL: 600, Unique: a.Unique})
		require.NoError(t, err)
	}
	plain, err := d.add(t, Add{Queue: a.Queue, Retry: 10})
	require.NoError(t, err)
	require.Empty(t, d.get(t, 1, "q"))
	require.Equal(t, []store.ID{plain}, d.get(t, 1, "q"))
	require.EqualValues(t, busySteps+10, d.n.Stats.BusyDropped)
}

func liveLocks(n *Node) (live int) {
	for l := n.store.Locks().Head; l != nil; l = l.Next {
		if n.Locks().IsLive(l) {
			live++
		}
	}
	return live
}

// A window that was agreed upon in a mesh lasts when the node is alone again, also
// if the node was flushed before.
func TestWindowOutlivesTheMesh(t *testing.T) {
	d := newDesk()
	d.do(t, func() { d.n.Flush() })
	d.meet(t)
	window := Add{Queue: []byte("q"), Retry: 10, TTL: 600, Replicate: 1, CanWait: true, Unique: unique(store.UniqueWindow, "k")}
	window.Unique.LockTTL = 60
	d.do(t, func() {
		_, _, err := d.n.AddJob(&window)
		require.NoError(t, err)
	})
	require.EqualValues(t, 1, d.n.Jobs())
	d.do(t, func() { require.True(t, d.n.Mesh().Forget(neighbour)) })
	require.True(t, d.n.Mesh().Alone())
	_, err := d.add(t, window)
	require.Equal(t, ErrDropped, err)
}

// If a lock became free while the node was loading, the first client that waits for the lock
// gets it when loading is over.
func TestLineIsCalledAfterLoading(t *testing.T) {
	d := newDesk()
	name := store.AppendBareName(nil, []byte("n"))
	o, _ := d.n.Locks().Acquire(name, []byte("a"), 60_000, 0, nil)
	require.Equal(t, lock.Granted, o.Kind)
	_, second := d.n.Locks().Acquire(name, []byte("b"), 60_000, 50_000, "b")
	_, third := d.n.Locks().Acquire(name, []byte("c"), 60_000, 50_000, "c")
	require.NotNil(t, third)
	d.n.Effects()
	d.n.BeginLoading()
	d.n.Locks().Abandon(second)
	_, _ = d.n.Locks().Release(name, []byte("a"), o.Token, nil)
	d.n.Effects()
	d.n.EndLoading()
	for _, e := range d.n.Effects() {
		if e.Kind == LockDone {
			require.Equal(t, lock.Granted, e.Outcome.Kind)
			require.Equal(t, "c", e.Client)
			return
		}
	}
	t.Fatal("nobody was called")
}

// However many jobs have to be moved out of the way, a client that waits gets the job behind them.
func TestManyMakeWay(t *testing.T) {
	d := newDesk()
	busy := unique(store.UniqueDuring, "k")
	_, err := d.add(noCheck{}, Add{Queue: []byte("q"), Retry: 100, Unique: busy})
	require.NoError(t, err)
	require.Len(t, d.get(t, 1, "q"), 1)
	busy.Busy = store.BusyDrop
	d.do(t, func() {
		for range 2*busySteps + 10 {
			_, _, err := d.n.AddJob(&Add{Queue: []byte("q"), Retry: 100, TTL: 600, Replicate: 1, Unique: busy})
			require.NoError(t, err)
		}
	})
	last, err := d.add(t, Add{Queue: []byte("q"), Retry: 100})
	require.NoError(t, err)
	require.Empty(t, d.get(t, 1, "q"))
	d.do(t, func() {
		_, err := d.n.Wait([][]byte{[]byte("q")}, "client")
		require.NoError(t, err)
	})
	for range 3 {
		d.pass(t, 1)
	}
	require.Equal(t, []store.ID{last}, d.given)
}

// When a queue is deleted, the locks of its jobs are freed at all nodes, unless
// other nodes still have the jobs.
func TestDeletedQueueFreesItsLocksInAMesh(t *testing.T) {
	d := newDesk()
	d.meet(t)
	for _, strategy := range []uint8{store.UniqueUntil, store.UniqueDuring} {
		var unlocked bool
		d.do(noCheck{}, func() {
			_, _, err := d.n.AddJob(&Add{Queue: []byte("q"), Retry: 100, TTL: 600, Replicate: 1, CanWait: true, Unique: unique(strategy, "k")})
			require.NoError(t, err)
		})
		require.EqualValues(t, 1, d.n.Jobs())
		if strategy == store.UniqueDuring {
			d.do(noCheck{}, func() {
				_, err := d.n.Wait([][]byte{[]byte("q")}, "x")
				require.NoError(t, err)
			})
			d.do(noCheck{}, func() { d.n.serve(d.n.Queue([]byte("q"))) })
			require.Len(t, d.given, 1)
		}
		require.NotZero(t, d.n.store.Locks().Len)
		d.do(noCheck{}, func() { d.k.remove("q") })
		for range 10 {
			d.now += 100
			d.n.SetNow(d.now)
			d.n.Tick()
			for _, e := range d.n.Effects() {
				if e.Kind == Send {
					var m wire.Message
					require.NoError(t, m.Parse(d.n.Message(&e)))
					unlocked = unlocked || m.Kind == wire.Unlock
				}
			}
		}
		require.True(t, unlocked, "strategy %d", strategy)
		d.now += lock.EndedMS
		d.pass(noCheck{}, 100)
	}
}

// A client that waits for two queues is served once, although the search for a job in one queue
// moves a job to the other.
func TestServedWhileAJobIsChosen(t *testing.T) {
	d := newDesk()
	q, dead := []byte("q"), []byte("q"+DeadSuffix)
	add := func(u Unique) (id store.ID) {
		d.do(t, func() {
			var err error
			id, _, err = d.n.AddJob(&Add{Queue: q, Body: []byte("body"), Replicate: 1, Retry: 10, TTL: 600, Unique: u})
			require.NoError(t, err)
		})
		return id
	}
	wait := func() {
		d.do(t, func() {
			_, err := d.n.Wait([][]byte{q, dead}, nil)
			require.NoError(t, err)
		})
	}
	pause := func(mask uint8) {
		d.do(t, func() {
			_, err := d.n.SetPause(q, mask, 0)
			require.NoError(t, err)
		})
	}
	alone := Unique{Strategy: store.UniqueDuring, Busy: store.BusyDead, Keyed: true, Key: []byte("k")}
	add(alone)
	d.do(t, func() { require.Len(t, d.n.Fetch([]*store.Queue{d.n.Queue(q)}, 1, true, nil), 1) })
	pause(PauseOut)
	busy, other := add(alone), add(Unique{})
	wait()
	pause(0)
	require.Equal(t, []store.ID{other}, d.given)
	wait()
	d.now += 2
	d.do(t, func() { d.n.Tick() })
	require.Equal(t, []store.ID{other, busy}, d.given)
}

// A worker on a job with RETRY 0 takes its key back by WORKING when RUNTTL is over, and
// keeps it over a restart. After a NACK it can't, because then nobody works on the job.
func TestAtMostOnceRunIsTakenBack(t *testing.T) {
	for _, mesh := range []bool{false, true} {
		d := newDesk()
		if mesh {
			d.meet(t)
		}
		u := unique(store.UniqueDuring, "k")
		u.RunTTL = 1
		deliver := func() store.ID {
			d.do(t, func() {
				_, err := d.n.Wait([][]byte{[]byte("q")}, "client")
				require.NoError(t, err)
			})
			id, err := d.add(t, Add{Queue: []byte("q"), Unique: u})
			require.NoError(t, err)
			require.Equal(t, id, d.given[len(d.given)-1])
			return id
		}
		id := deliver()
		has := func() bool { return d.n.HasLock(d.n.Job(&id), store.LockRun) }
		work := func() { _, _, _ = d.n.Working(&id, Work{Client: "worker"}) }
		d.pass(t, 10_000)
		require.False(t, has(), "mesh %v", mesh)
		d.do(t, work)
		require.True(t, has(), "mesh %v", mesh)
		d.reload(t, Trust{Exact: true})
		require.True(t, has(), "it was logged")
		if mesh {
			d.meet(t)
		}
		d.pass(t, 10_000)
		d.do(t, func() {
			work() // the other nodes answer after the NACK
			d.n.Nack(&id, &Failure{})
		})
		require.False(t, has())
		d.do(t, work)
		require.False(t, has())
		require.NotEqual(t, id, deliver(), "the key is free")
	}
}
