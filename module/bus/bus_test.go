package bus

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	patience = 8 * time.Second
	secret   = "correct horse battery staple, and more"
)

// mesh is a net of nodes. One goroutine, the test's, owns them all.
type mesh struct {
	t     *testing.T
	woken chan struct{}
	nodes []*node
}

type node struct {
	*Bus
	mesh *mesh
	cfg  Config

	up       map[NodeID]*Up
	ups      int
	downs    []*Down
	got      map[NodeID][]uint64 // numbers in messages
	met      []*Met
	twins    []*Duplicate
	onFrame  func(*Messages)
	noDrain  bool
	logMutex sync.Mutex
	lines    []string
}

func newMesh(t *testing.T) *mesh {
	before := runtime.NumGoroutine()
	t.Cleanup(func() { noneLeft(t, before) }) // after the nodes are closed
	return &mesh{t: t, woken: make(chan struct{}, 1)}
}

// testID is the n-th smallest of the IDs used in tests.
func testID(n int) (id NodeID) {
	binary.BigEndian.PutUint32(id[:], uint32(n))
	id[19] = 0xff
	return id
}

// open adds a node. It dials again soon, so that tests don't wait long.
func (m *mesh) open(n int, change func(*Config)) *node {
	m.t.Helper()
	v := &node{mesh: m, up: map[NodeID]*Up{}, got: map[NodeID][]uint64{}}
	v.cfg = Config{
		Listen: "127.0.0.1:0",
		ID:     testID(n),
		Secret: []byte(secret),
		Wake: func() {
			select {
			case m.woken <- struct{}{}:
			default:
			}
		},
		Log: func(level, text string) {
			v.logMutex.Lock()
			defer v.logMutex.Unlock()
			v.lines = append(v.lines, level+": "+text)
		},
		RedialMin: 5 * time.Millisecond,
		RedialMax: 50 * time.Millisecond,
	}
	if change != nil {
		change(&v.cfg)
	}
	b, err := Open(v.cfg)
	require.NoError(m.t, err)
	v.Bus = b
	m.nodes = append(m.nodes, v)
	m.t.Cleanup(b.Close)
	return v
}

// restart closes a node and opens it again, with the same ID and address.
func (v *node) restart() *node {
	v.Close()
	v.noDrain = true
	return v.mesh.open(0, func(c *Config) {
		log := c.Log
		listen := v.Addr().String()
		*c = v.cfg
		c.Log, c.Listen = log, listen
	})
}

func (v *node) logged(text string) bool {
	v.logMutex.Lock()
	defer v.logMutex.Unlock()
	for _, line := range v.lines {
		if strings.Contains(line, text) {
			return true
		}
	}
	return false
}

func (v *node) log() string {
	v.logMutex.Lock()
	defer v.logMutex.Unlock()
	return strings.Join(v.lines, "\n")
}

// handle records events, and checks that they alternate as promised.
func (v *node) handle(e Event) {
	t := v.mesh.t
	switch e := e.(type) {
	case *Up:
		require.Nil(t, v.up[e.ID], "Up twice")
		v.up[e.ID] = e
		v.ups++
	case *Down:
		require.NotNil(t, v.up[e.ID], "Down before Up")
		require.Error(t, e.Err)
		delete(v.up, e.ID)
		v.downs = append(v.downs, e)
	case *Messages:
		require.NotNil(t, v.up[e.ID], "Messages before Up")
		if v.onFrame != nil {
			v.onFrame(e)
			return
		}
		n := 0
		for msg := range e.All() {
			v.got[e.ID] = append(v.got[e.ID], binary.BigEndian.Uint64(msg))
			n++
		}
		require.Equal(t, e.Count, n)
	case *Met:
		v.met = append(v.met, e)
	case *Duplicate:
		v.twins = append(v.twins, e)
	}
}

// await drains all nodes until cond holds.
func (m *mesh) await(what string, cond func() bool) {
	m.t.Helper()
	deadline := time.After(patience)
	// Counters and log lines change without an event: a ticker looks at them.
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for {
		for _, v := range m.nodes {
			if !v.noDrain {
				v.Drain(v.handle)
			}
		}
		if cond() {
			return
		}
		select {
		case <-m.woken:
		case <-look.C:
		case <-deadline:
			for _, v := range m.nodes {
				m.t.Logf("%v:\n%s", v.cfg.ID, v.log())
			}
			m.t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// settle turns the loop for a while, in which nothing is expected.
func (m *mesh) settle(d time.Duration) {
	end := time.Now().Add(d)
	m.await("the time to pass", func() bool { return time.Now().After(end) })
}

func (v *node) connect(to *node) { v.Connect(to.cfg.ID, to.Addr().String()) }

func (v *node) connected(to ...*node) bool {
	for _, w := range to {
		if v.up[w.cfg.ID] == nil {
			return false
		}
	}
	return true
}

// say sends a number as a message of sizeBytes, at least 8.
func (v *node) say(to *node, number uint64, sizeBytes int) bool {
	msg := make([]byte, max(sizeBytes, 8))
	binary.BigEndian.PutUint64(msg, number)
	return v.Send(to.cfg.ID, msg)
}

func inOrder(got []uint64, n int) bool {
	for i, v := range got {
		if v != uint64(i) {
			return false
		}
	}
	return len(got) == n
}

// pair returns two connected nodes.
func pair(t *testing.T, change func(*Config)) (a, b *node) {
	m := newMesh(t)
	a, b = m.open(1, change), m.open(2, change)
	a.connect(b)
	m.await("both up", func() bool { return a.connected(b) && b.connected(a) })
	return a, b
}

func TestTwoNodesTalk(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"secret":    nil,
		"no secret": func(c *Config) { c.Secret = nil },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, change)
			const turns, perTurn = 50, 100
			n := uint64(0)
			for range turns {
				for range perTurn {
					size := 8
					if n%97 == 0 {
						size = 200 << 10
					}
					require.True(t, a.say(b, n, size))
					require.True(t, b.say(a, n, 8))
					n++
				}
				a.Flush()
				b.Flush()
				a.mesh.await("this turn's messages", func() bool {
					return len(b.got[a.cfg.ID]) == int(n) && len(a.got[b.cfg.ID]) == int(n)
				})
			}
			require.True(t, inOrder(b.got[a.cfg.ID], turns*perTurn))
			require.True(t, inOrder(a.got[b.cfg.ID], turns*perTurn))

			up := b.up[a.cfg.ID]
			require.EqualValues(t, newestVersion, up.Version)
			require.False(t, up.Dialled)
			require.True(t, a.up[b.cfg.ID].Dialled)
			require.Equal(t, a.Addr().String(), up.Advertised)
			require.Equal(t, b.Addr().String(), a.up[b.cfg.ID].Remote)

			a.mesh.await("the queue's count to be zero", func() bool {
				s, ok := a.PeerStats(b.cfg.ID)
				return ok && s.QueuedBytes == 0
			})
			s, _ := a.PeerStats(b.cfg.ID)
			require.EqualValues(t, turns*perTurn, s.MessagesOut)
			require.EqualValues(t, turns*perTurn, s.MessagesIn)
			require.EqualValues(t, 0, s.Dropped)
			require.Greater(t, s.BytesOut, uint64(10<<20))
			require.Zero(t, b.Stats().InboxBytes)
			require.Equal(t, 1, b.Stats().Peers)
		})
	}
}

func TestFiveNodesTalkAllAtOnce(t *testing.T) {
	m := newMesh(t)
	for i := range 5 {
		m.open(i+1, nil)
	}
	each := func(f func(a, b *node)) {
		for _, a := range m.nodes {
			for _, b := range m.nodes {
				if a != b {
					f(a, b)
				}
			}
		}
	}
	all := func(cond func(a, b *node) bool) func() bool {
		return func() bool {
			ok := true
			each(func(a, b *node) { ok = ok && cond(a, b) })
			return ok
		}
	}
	each(func(a, b *node) { a.connect(b) })
	m.await("a full mesh", all(func(a, b *node) bool { return a.connected(b) }))
	const count = 500
	for i := range count {
		each(func(a, b *node) { require.True(t, a.say(b, uint64(i), 8+rand.IntN(100))) })
		if i%7 == 0 {
			for _, v := range m.nodes {
				v.Flush()
			}
		}
	}
	for _, v := range m.nodes {
		v.Flush()
	}
	m.await("all messages", all(func(a, b *node) bool { return len(a.got[b.cfg.ID]) == count }))
	require.True(t, all(func(a, b *node) bool { return inOrder(a.got[b.cfg.ID], count) })())
	for _, v := range m.nodes {
		require.Empty(t, v.downs)
		require.Equal(t, 4, v.ups)
	}
}

func TestBothDialAtOnce(t *testing.T) {
	rounds := 60
	m := newMesh(t)
	a, b := m.open(1, nil), m.open(2, nil)
	for i := range rounds {
		a.ups, b.ups, a.downs, b.downs = 0, 0, nil, nil
		clear(a.got)
		clear(b.got)
		if i%2 == 0 {
			a.connect(b)
			b.connect(a)
		} else {
			b.connect(a)
			a.connect(b)
		}
		m.await("both up", func() bool { return a.connected(b) && b.connected(a) })
		for n := range uint64(20) {
			require.True(t, a.say(b, n, 8))
			require.True(t, b.say(a, n, 8))
			a.Flush()
			b.Flush()
		}
		m.await("messages", func() bool {
			return inOrder(a.got[b.cfg.ID], 20) && inOrder(b.got[a.cfg.ID], 20)
		})
		require.Equal(t, []int{1, 1}, []int{a.ups, b.ups}, "round %d, %v %v\n%s\n%s", i, reasons(a), reasons(b), a.log(), b.log())
		require.Empty(t, a.downs)
		require.Empty(t, b.downs)
		a.Forget(b.cfg.ID)
		b.Forget(a.cfg.ID)
		m.await("both down", func() bool { return !a.connected(b) && !b.connected(a) })
	}
}

func reasons(v *node) (list []string) {
	for _, d := range v.downs {
		list = append(list, d.Err.Error())
	}
	return list
}

func TestSmallerIDsDialWins(t *testing.T) {
	m := newMesh(t)
	a, b := m.open(1, nil), m.open(2, nil)
	smaller := 0
	for range 30 {
		a.connect(b)
		b.connect(a)
		m.await("both up", func() bool { return a.connected(b) && b.connected(a) })
		require.NotEqual(t, a.up[b.cfg.ID].Dialled, b.up[a.cfg.ID].Dialled, "they differ on which connection it is")
		if a.up[b.cfg.ID].Dialled {
			smaller++
		}
		a.Forget(b.cfg.ID)
		b.Forget(a.cfg.ID)
		m.await("both down", func() bool { return !a.connected(b) && !b.connected(a) })
	}
	// The connection that b dialled stays only if it was up before a's dialling reached b.
	require.Greater(t, smaller, 20)
}

func TestRestartOfAPeer(t *testing.T) {
	m := newMesh(t)
	for _, order := range [][2]int{{1, 2}, {4, 3}} {
		a, b := m.open(order[0], nil), m.open(order[1], nil)
		a.connect(b)
		b.connect(a)
		m.await("both up", func() bool { return a.connected(b) && b.connected(a) })
		for range 3 {
			b = b.restart()
			b.connect(a)
			ups := a.ups
			m.await("both up again", func() bool { return a.ups > ups && a.connected(b) && b.connected(a) })
			clear(a.got)
			// If both have dialled, one connection ends, and messages that were sent on it are lost. So each
			// side sends until a message arrives.
			said := func(from, to *node) bool {
				if len(to.got[from.cfg.ID]) > 0 {
					return true
				}
				from.say(to, 0, 8)
				from.Flush()
				return false
			}
			m.await("a message each way", func() bool {
				there, back := said(a, b), said(b, a)
				return there && back
			})
		}
		require.Empty(t, a.twins)
		require.ErrorIs(t, a.downs[0].Err, ErrClosing)
		a.Close()
		b.Close()
	}
}

func TestForgottenPeerStaysAway(t *testing.T) {
	a, b := pair(t, nil)
	a.Forget(b.cfg.ID)
	require.False(t, a.say(b, 1, 8))
	a.mesh.await("both down", func() bool { return !a.connected(b) && !b.connected(a) })
	require.ErrorIs(t, a.downs[0].Err, ErrForgot)
	require.ErrorIs(t, b.downs[0].Err, ErrForgot)
	a.mesh.settle(100 * time.Millisecond)
	require.False(t, a.connected(b))
	require.False(t, a.say(b, 1, 8))
}

func TestCloseLeavesNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	m := newMesh(t)
	for i := range 4 {
		m.open(i+1, nil)
	}
	for _, a := range m.nodes {
		for _, b := range m.nodes {
			a.connect(b)
		}
		a.Connect(testID(99), "127.0.0.1:1")
		a.Meet("127.0.0.1:1")
	}
	m.await("some connections", func() bool { return m.nodes[0].connected(m.nodes[1:]...) })
	for _, v := range m.nodes {
		v.Close()
	}
	noneLeft(t, before)
}

// noneLeft fails if there are more goroutines than before.
func noneLeft(t *testing.T, before int) {
	deadline := time.Now().Add(patience)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		t.Fatalf("%d goroutines before, %d after:\n%s", before, n, stacks)
	}
}

// While another process has its port, a bus can't be dialled. All else works, and it listens as
// soon as the port is free.
func TestTheAddressIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	m := newMesh(t)
	a := m.open(1, nil)
	b := m.open(2, func(c *Config) {
		c.Listen = taken.Addr().String()
		c.RelistenInterval = 5 * time.Millisecond
	})
	require.Nil(t, b.Addr())
	require.Contains(t, b.Deaf(), "in use")
	require.Empty(t, a.Deaf())
	b.connect(a)
	m.await("the one that can't listen to dial", func() bool { return a.connected(b) && b.connected(a) })
	require.Equal(t, taken.Addr().String(), a.up[b.cfg.ID].Advertised, "where it will listen")
	m.settle(50 * time.Millisecond) // some attempts
	require.NotEmpty(t, b.Deaf())
	require.NoError(t, taken.Close())
	m.await("it to listen", func() bool { return b.Deaf() == "" })
	require.Equal(t, taken.Addr().String(), b.Addr().String())
	require.Equal(t, 1, strings.Count(b.log(), "can't listen"))
	b.awaitLog("listening on")

	c := m.open(3, nil)
	c.connect(b)
	m.await("it to be dialled", func() bool { return c.connected(b) && b.connected(c) })
}

// A bus that is closed before it could listen leaves nothing behind.
func TestClosedBeforeItListens(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	m := newMesh(t)
	b := m.open(1, func(c *Config) { c.Listen, c.RelistenInterval = taken.Addr().String(), time.Millisecond })
	b.noDrain = true
	b.Close()
	require.NoError(t, taken.Close())
	again, err := net.Listen("tcp", taken.Addr().String())
	require.NoError(t, err, "the port is free")
	require.NoError(t, again.Close())
}

// One Drain handles no more than a slice of what has arrived, and asks for another turn. The
// messages of each peer stay in order.
func TestDrainInSlices(t *testing.T) {
	m := newMesh(t)
	a, c := m.open(1, nil), m.open(3, nil)
	b := m.open(2, func(cfg *Config) { cfg.DrainBudget = 1 })
	a.connect(b)
	c.connect(b)
	m.await("up", func() bool { return a.connected(b) && c.connected(b) && b.connected(a, c) })
	b.noDrain = true
	const messages = 1000
	for n := range uint64(messages) {
		require.True(t, a.say(b, n, 8))
		require.True(t, c.say(b, n, 1000))
	}
	a.Flush()
	c.Flush()
	m.await("all to arrive", func() bool {
		return a.sentTo(b) == messages && c.sentTo(b) == messages && b.Stats().InboxBytes >= messages*1000
	})
	turns := 0
	for ; len(b.got[a.cfg.ID])+len(b.got[c.cfg.ID]) < 2*messages; turns++ {
		before := len(b.got[a.cfg.ID]) + len(b.got[c.cfg.ID])
		if turns > 0 {
			select {
			case <-m.woken:
			case <-time.After(patience):
				t.Fatal("nobody asked for another turn")
			}
		}
		b.Drain(b.handle)
		require.LessOrEqual(t, len(b.got[a.cfg.ID])+len(b.got[c.cfg.ID])-before, sliceMessages)
	}
	require.GreaterOrEqual(t, turns, 2*messages/sliceMessages)
	require.True(t, inOrder(b.got[a.cfg.ID], messages))
	require.True(t, inOrder(b.got[c.cfg.ID], messages))
	require.Zero(t, b.Stats().InboxBytes)
}

func (v *node) sentTo(to *node) uint64 {
	s, _ := v.PeerStats(to.cfg.ID)
	return s.MessagesOut
}

// Once Reached returns true, all messages that had arrived at the time of Mark are drained, also
// those that still lay in the socket then.
func TestMarkAndReached(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"secret":    nil,
		"no secret": func(c *Config) { c.Secret = nil },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			a := m.open(1, change)
			b := m.open(2, func(c *Config) {
				if change != nil {
					change(c)
				}
				c.MaxInbox = 1 // the reader stops after one frame
			})
			a.connect(b)
			m.await("up", func() bool { return a.connected(b) && b.connected(a) })
			b.Mark()
			m.await("nothing to be behind", b.Reached)
			b.noDrain = true
			for n := range uint64(20) {
				require.True(t, a.say(b, n, 8))
				a.Flush()
			}
			m.await("all to be written, and the first to arrive", func() bool { return a.sentTo(b) == 20 && b.Stats().InboxBytes > 0 })
			b.Mark()
			require.False(t, b.Reached())
			require.True(t, a.say(b, 20, 8), "what comes later doesn't count")
			for end := time.Now().Add(patience); !b.Reached(); {
				require.True(t, time.Now().Before(end), "it is never reached")
				b.Drain(b.handle)
			}
			require.True(t, inOrder(b.got[a.cfg.ID], 20), "%v", b.got[a.cfg.ID])
			b.noDrain = false
		})
	}
}

// Messages of every size up to the limit arrive whole and in order. Only messages about another
// thing, or about nothing, overtake a large one.
func TestLargeMessages(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"secret":       nil,
		"no secret":    noSecret,
		"small frames": func(c *Config) { c.MaxFrame = minMaxFrame },
		"full inbox":   func(c *Config) { c.MaxInbox = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			const most = 8 << 20
			a, b := pair(t, func(c *Config) {
				c.MaxMessage = most
				if change != nil {
					change(c)
				}
			})
			var sizes []int
			b.onFrame = func(m *Messages) {
				for msg := range m.All() {
					sizes = append(sizes, len(msg))
					for i, v := range msg {
						if v != byte(i*7+len(msg)) {
							require.Fail(t, "damaged", "byte %d of %d", i, len(msg))
						}
					}
				}
			}
			message := func(size int) []byte {
				msg := make([]byte, size)
				for i := range msg {
					msg[i] = byte(i*7 + size)
				}
				return msg
			}
			var want []int
			for _, size := range []int{1, maxPart, 2, maxPart + 1, 3, 64 << 10, 1<<20 - 3, 1<<20 - 2, 1 << 20, 4, most, 5, 0, 3 << 20, 6} {
				require.True(t, a.Send(b.cfg.ID, message(size)))
				a.Flush()
				want = append(want, size)
			}
			require.False(t, a.Send(b.cfg.ID, message(most+1)))
			a.mesh.await("all", func() bool { return len(sizes) == len(want) })
			require.Equal(t, want, sizes)

			sizes = nil
			require.True(t, a.SendAbout(b.cfg.ID, 5, message(9)))
			require.True(t, a.SendAbout(b.cfg.ID, 5, message(1<<20)))
			require.True(t, a.SendAbout(b.cfg.ID, 5, message(7)))
			require.True(t, a.SendAbout(b.cfg.ID, 6, message(10)))
			require.True(t, a.SendAbout(b.cfg.ID, nothing, message(8)))
			require.True(t, a.Send(b.cfg.ID, message(11)))
			a.Flush()
			a.mesh.await("all", func() bool { return len(sizes) == 6 })
			require.Equal(t, []int{9, 10, 8, 1 << 20, 7, 11}, sizes)
			a.mesh.await("nothing to be left", func() bool { s, _ := a.PeerStats(b.cfg.ID); return s.QueuedBytes == 0 })
		})
	}
}

// A slow peer takes long to read a message of many megabytes. Heartbeats, and messages about other
// things, don't wait for it.
func TestLargeMessageKeepsNobodyWaiting(t *testing.T) {
	const size = 48 << 20 // more than sockets hold
	m := newMesh(t)
	a := m.open(1, noSecret)
	b := m.open(2, func(c *Config) { c.Secret, c.MaxInbox = nil, 1 }) // the reader stops after one message
	a.connect(b)
	m.await("up", func() bool { return a.connected(b) && b.connected(a) })
	var sizes []int
	b.onFrame = func(m *Messages) {
		for msg := range m.All() {
			sizes = append(sizes, len(msg))
		}
	}
	b.noDrain = true
	require.True(t, a.Send(b.cfg.ID, make([]byte, 1)))
	a.Flush()
	m.await("the reader to stop", func() bool { return b.Stats().InboxBytes > 0 })
	require.True(t, a.SendAbout(b.cfg.ID, 5, make([]byte, size)))
	a.Flush()
	queued := func() int64 { s, _ := a.PeerStats(b.cfg.ID); return s.QueuedBytes }
	m.await("the sockets to be full", func() bool { return queued() < size })
	m.settle(50 * time.Millisecond)
	require.Greater(t, queued(), int64(size/2), "most of it is still here")
	for n := range 1000 {
		require.True(t, a.SendAbout(b.cfg.ID, 5, make([]byte, 1000)), "the queue isn't full for what is small: %d", n)
	}
	require.True(t, a.SendAbout(b.cfg.ID, 6, make([]byte, 2)))
	require.True(t, a.SendAbout(b.cfg.ID, nothing, make([]byte, 3)))
	a.Flush()
	b.noDrain = false
	m.await("all", func() bool { return len(sizes) == 1004 })
	require.Equal(t, []int{1, 2, 3, size, 1000}, sizes[:5])
}
