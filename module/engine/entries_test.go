package engine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/entries"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// pair is two nodes that can be connected, with their messages.
type pair struct {
	t     *testing.T
	nodes [2]*engine.Node
	bytes int // that were sent
}

func newPair(t *testing.T) *pair {
	p := &pair{t: t}
	for i := range p.nodes {
		p.nodes[i], _, _ = namedNode(fmt.Sprintf("%02x%038x", i+1, 7), 1_700_000_000_000, nil)
	}
	return p
}

// connect connects the nodes, and delivers messages until there are none.
func (p *pair) connect() {
	for i, n := range p.nodes {
		other := p.nodes[1-i].Self()
		n.SetFeatures(other, engine.Features{Batches: true, Counts: true, Entries: true})
		n.Mesh().Add(other, fmt.Sprintf("10.0.0.%d:1", 1-i))
		n.Mesh().Up(other, fmt.Sprintf("10.0.0.%d:1", 1-i), false)
	}
	p.settle()
}

func (p *pair) cut() {
	for i, n := range p.nodes {
		n.Mesh().Down(p.nodes[1-i].Self())
		n.Effects()
	}
}

func (p *pair) settle() {
	for again := true; again; {
		again = false
		for i, n := range p.nodes {
			for _, e := range n.Effects() {
				if e.Kind != engine.Send {
					continue
				}
				b := append([]byte(nil), n.Message(&e)...)
				if k := wire.Kind(b[0]); k == wire.Entries || k == wire.EntrySums {
					p.bytes += len(b)
					again = true
					require.NoError(p.t, p.nodes[1-i].Receive(n.Self(), b))
				}
			}
		}
	}
}

func (p *pair) inStep() {
	p.t.Helper()
	require.Equal(p.t, p.nodes[0].Entries().Text(), p.nodes[1].Entries().Text())
	require.True(p.t, p.nodes[0].EntriesInStep())
	require.True(p.t, p.nodes[1].EntriesInStep())
}

// S8: of 10,000 entries one has changed while the nodes were apart: few bytes find it. A change while they are connected
// costs one message, and its confirmation.
func TestLifeS8(t *testing.T) {
	for changer := range 2 {
		p := newPair(t)
		p.connect()
		for i := range 10_000 {
			p.nodes[0].ChangeEntry(engine.EntrySettings, fmt.Sprint("queue:", i), []byte("some settings"))
		}
		p.settle()
		p.inStep()

		p.cut()
		p.bytes = 0
		p.nodes[changer].ChangeEntry(engine.EntrySettings, "queue:77", []byte("other settings"))
		p.connect()
		p.inStep()
		assert.Equal(t, "other settings", string(p.nodes[1-changer].Entries().Get(engine.EntrySettings, "queue:77").Value))
		assert.Less(t, p.bytes, 1500)

		p.bytes = 0
		p.nodes[changer].ChangeEntry(engine.EntrySettings, "queue:78", []byte("other settings"))
		p.settle()
		p.inStep()
		assert.Less(t, p.bytes, 250)
	}
}

// Nodes that meet with very many entries each have them all after that.
func TestNodesMeetWithVeryManyEntries(t *testing.T) {
	p := newPair(t)
	for i := range 6000 {
		p.nodes[i%2].ChangeEntry(engine.EntrySettings, fmt.Sprint("queue:", i), []byte("some settings"))
		if i%100 == 0 {
			p.nodes[1-i%2].ChangeEntry(engine.EntrySettings, fmt.Sprint("queue:", i), []byte("others"))
		}
	}
	p.connect()
	p.inStep()
	assert.Equal(t, 6000, p.nodes[0].Entries().Len())
	assert.Less(t, p.bytes, 2_000_000)
}

// A kind that a node doesn't know is kept, and passed on.
func TestUnknownKindsOfEntries(t *testing.T) {
	p := newPair(t)
	p.nodes[0].ChangeEntry(99, "x", []byte("later"))
	p.nodes[0].ChangeEntry(engine.EntryOwn, "x", []byte("own"))
	p.connect()
	assert.Equal(t, "later", string(p.nodes[1].Entries().Get(99, "x").Value))
	assert.Nil(t, p.nodes[1].Entries().Get(engine.EntryOwn, "x"))
}

// Damaged messages, and a node's own entries of another node, are refused.
func TestHostileEntries(t *testing.T) {
	p := newPair(t)
	p.connect()
	own := entries.Entry{Kind: engine.EntryOwn, Name: "x", Stamp: entries.Stamp{MS: 1, Node: 2}}
	for _, m := range []wire.Message{
		{Kind: wire.Entries, Queue: []byte("x")},
		{Kind: wire.Entries, Queue: own.Append(nil)},
		{Kind: wire.Entries, Count: 1},
		{Kind: wire.Entries, Count: 1 << 16, Round: 2 << 16},
		{Kind: wire.Entries, Count: 1, Round: 2<<16 | 256},
		{Kind: wire.Entries, Count: 1, Round: 1 << 40},
		{Kind: wire.AskCopies, Queue: make([]byte, 25)},
		{Kind: wire.AskCopies, Queue: make([]byte, 24*1001)},
		{Kind: wire.Copies, Queue: make([]byte, 25)},
		{Kind: wire.EntrySums, Queue: make([]byte, 127)},
		{Kind: wire.EntrySums, Queue: make([]byte, 128), Round: 3 << 16},
		{Kind: wire.EntrySums, Queue: make([]byte, 128), Round: 1<<16 | 16},
	} {
		assert.Error(t, p.nodes[0].Receive(p.nodes[1].Self(), m.Append(nil)), "%v", m)
	}
	assert.True(t, p.nodes[0].Entries().Empty())
}

// A node that knows no other keeps no tombstones, also if it has loaded some.
func TestTombstonesOfALoneNode(t *testing.T) {
	n, _, _ := node(1_700_000_000_000)
	for i := range 100 {
		name := fmt.Append(nil, "tenant", i)
		_, err := n.PauseEverywhere(name, engine.PauseOut, 0)
		require.NoError(t, err)
		_, err = n.PauseEverywhere(name, 0, 0)
		require.NoError(t, err)
	}
	assert.True(t, n.Entries().Empty())
	n.LoadEntry(&entries.Entry{Kind: engine.EntryPause, Name: "q", Deleted: true, Stamp: entries.Stamp{MS: 1, Node: 2}})
	n.Tick()
	assert.True(t, n.Entries().Empty())
}

// A node doesn't take a setting of the far future: nothing could replace it.
func TestAStampOfTheFarFuture(t *testing.T) {
	n, mate := bulkAdder(t)
	for _, tc := range []struct {
		ms    int64
		taken bool
	}{{1 << 48, false}, {n.Now() + 1000*366*24*3600*1000, false}, {n.Now() + 900*365*24*3600*1000, true}} {
		e := entries.Entry{Kind: engine.EntrySettings, Name: "q", Value: []byte("v"), Stamp: entries.Stamp{MS: tc.ms, Count: 1<<32 - 1, Node: 7}}
		require.NoError(t, n.Receive(mate, (&wire.Message{Kind: wire.Entries, Queue: e.Append(nil)}).Append(nil)))
		assert.Equal(t, tc.taken, n.Entries().Get(engine.EntrySettings, "q") != nil, "%d", tc.ms)
	}
}

// Very many pauses end while the queues lie in another database. Another queue's own pause stays.
func TestVeryManyPausesEndWhileTheQueuesAreAway(t *testing.T) {
	const many = 2500
	n, _, _ := node(1_700_000_000_000)
	for i := range many {
		_, err := n.PauseEverywhere(fmt.Append(nil, i), engine.PauseIn, 0)
		require.NoError(t, err)
	}
	_, err := n.SetPause([]byte("own"), engine.PauseIn, 0)
	require.NoError(t, err)
	n.Swapped(0, 1)
	for i := range many {
		_, err := n.PauseEverywhere(fmt.Append(nil, i), 0, 0)
		require.NoError(t, err)
	}
	n.Swapped(0, 1)
	for i := range many {
		require.Zero(t, n.Queue(fmt.Append(nil, i)).Pause)
	}
	assert.Equal(t, engine.PauseIn, n.Queue([]byte("own")).Pause)
}

func TestPausesAreLimited(t *testing.T) {
	n, _, _ := node(1_700_000_000_000)
	for i := range 10_000 {
		_, err := n.PauseEverywhere(fmt.Append(nil, i), engine.PauseIn, 0)
		require.NoError(t, err)
	}
	_, err := n.PauseEverywhere([]byte("more"), engine.PauseIn, 0)
	assert.Equal(t, engine.ErrManyPauses, err)
	_, err = n.PauseEverywhere([]byte("7"), engine.PauseOut, 0)
	require.NoError(t, err, "it is paused already")
	_, err = n.PauseEverywhere([]byte("more"), 0, 0)
	require.NoError(t, err)
	require.NoError(t, n.EntryFits(engine.EntryPause, 1000))
	assert.Equal(t, engine.ErrManyEntries, n.EntryFits(engine.EntryPause, entries.MostBytes/2))
}

// However many clients wait by WAITCOPIES, a tick asks about some jobs only, and all in turn.
func TestWaitCopiesAsksBitByBit(t *testing.T) {
	n, mate := bulkAdder(t)
	n.SetFeatures(mate, engine.Features{Batches: true, Counts: true, Copies: true})
	const jobs = 10_000
	b, _ := addMany(t, n, jobs, engine.Add{Replicate: 2, Async: true})
	ids := make([]store.ID, jobs)
	for i := range ids {
		ids[i] = b.Answers[i].ID
	}
	n.Effects()
	for range 20 {
		p, now := n.WaitCopies(ids, 0, 0)
		require.Nil(t, now)
		n.Tie(p, 1)
	}
	n.Effects()
	asked := map[int64]int{}
	for range 300 {
		n.SetNow(n.Now() + 2)
		n.Tick()
		tick := 0
		for _, e := range n.Effects() {
			var m wire.Message
			if e.Kind == engine.Send && m.Parse(n.Message(&e)) == nil && m.Kind == wire.AskCopies {
				asked[m.Span] += len(m.Queue) / 24
				tick += len(m.Queue) / 24
			}
		}
		require.LessOrEqual(t, tick, 1500)
	}
	assert.Len(t, asked, 20)
	for span, count := range asked {
		assert.GreaterOrEqual(t, count, jobs, "%d", span)
	}
}
