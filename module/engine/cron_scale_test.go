package engine_test

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// manyCrons makes a node with recurring jobs that have a line.
func manyCrons(t *testing.T, count int, line string) *engine.Node {
	n := maker(dawn)
	for i := range count {
		_, err := n.SetCron(fmt.Sprint(i), engine.Cron{Line: line, Zone: "Europe/Berlin", Queue: []byte("q"), Body: []byte("b"), Missed: engine.MissedSkip})
		require.NoError(t, err)
		n.Effects()
	}
	return n
}

// A server was suspended for a day, or its clock was set ahead: each of very many recurring jobs has missed slots. No tick takes long.
func TestCronsMissedByADay(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, line := range []string{"*/5 * * * *", "*/5 0-23 * * *"} {
		const count = 5000
		n := manyCrons(t, count, line)
		n.SetNow(dawn + 86_400_000)
		var took []time.Duration
		for range 30 {
			began := threadTime(t)
			n.Tick()
			took = append(took, threadTime(t)-began)
			n.Effects()
		}
		t.Log(line, took)
		assert.Less(t, median(took[:count/1000]), 5*time.Millisecond, line)
		for _, i := range []int{0, count - 1} {
			s, _ := n.CronNamed(fmt.Sprint(i))
			assert.InDelta(t, 288, s.LeftOut, 1, line)
		}
	}
}

// The clock is set ahead by decades, or very many recurring jobs are due at once. A tick makes the jobs of few slots, and looks at few
// entries. The slots of more than a hundred years aren't counted.
func TestCronsAreMadeInSlices(t *testing.T) {
	for _, tc := range []struct {
		name      string
		missed    engine.Missed
		line      string
		years     int64
		made, out int64
	}{
		{"a day", engine.MissedLast, "0 3 * * *", 0, 1, 0},
		{"63 years", engine.MissedAll, "0 3 * * *", 63, 100, 63*365 - 100},
		{"1000 years", engine.MissedSkip, "0 3 * * *", 1000, 0, 100 * 366},
	} {
		const count = 300
		n := maker(dawn)
		for i := range count {
			_, err := n.SetCron(fmt.Sprint(i), engine.Cron{Line: tc.line, Zone: "Europe/Berlin", Queue: []byte("q"), Body: []byte("b"), Missed: tc.missed})
			require.NoError(t, err)
			n.Effects()
		}
		now, most := int64(dawn)+tc.years*365*86_400_000+86_400_000, 0
		for range 400 + 12*int(tc.made)*count/100 {
			n.SetNow(now)
			n.Tick()
			jobs := 0
			for _, e := range n.Effects() {
				if e.Kind == engine.LogJob {
					jobs++
				}
			}
			most = max(most, jobs)
			now += 2
		}
		assert.LessOrEqual(t, most, 40, "%s: jobs made in a tick", tc.name)
		s, _ := n.CronNamed(fmt.Sprint(count - 1))
		assert.Equal(t, tc.made, s.Made, tc.name)
		assert.InDelta(t, tc.out, s.LeftOut, 2, tc.name)
	}
}

func median(took []time.Duration) time.Duration {
	least := time.Hour
	for _, d := range took {
		over := 0
		for _, other := range took {
			if other > d {
				over++
			}
		}
		if over <= len(took)/2 {
			least = min(least, d)
		}
	}
	return least
}

// A promotion doesn't go through all recurring jobs.
func TestCronsPromotion(t *testing.T) {
	n := manyCrons(t, 5000, "*/5 0-23 * * *")
	took := spent(t, func() func() {
		n.SetPassive(true)
		n.Effects()
		n.Tick()
		return func() {
			done, _ := n.Promote(nil)
			require.True(t, done)
		}
	})
	assert.Less(t, took, 3*time.Millisecond)
	n.SetNow(dawn + 86_400_000)
	for range 20 {
		n.Tick()
		n.Effects()
	}
	s, _ := n.CronNamed("77")
	assert.InDelta(t, 288, s.LeftOut, 1)
}

// CRON NEXT COUNT 1000 doesn't take long, however seldom the slots are.
func TestCronNextTakesLittle(t *testing.T) {
	for _, line := range []string{"* * * * *", "*/5 0-23 * * *", "5 3 29 2 *", "0 * 29 2 *", "30 2 * * mon", "0 0 1 1 *", "59 23 31 12 *"} {
		n := manyCrons(t, 1, line)
		assert.Less(t, spent(t, func() func() { return func() { n.CronSlots("0", 1000) } }), 8*time.Millisecond, line) // 2 ms where the caches are its own
	}
}

// Very many marks are known to no majority. They are told page by page, and only while a node is connected that may lack them.
func TestMarksAreToldInPages(t *testing.T) {
	const many = 2000
	now, peer := int64(dawn), wire.NodeID{1, 2, 3}
	n := maker(now)
	for i := range many {
		_, err := n.SetCron(fmt.Sprint(i), engine.Cron{Every: 3600, Queue: []byte("q"), Body: []byte("b")})
		require.NoError(t, err)
		n.Effects()
	}
	for i := range byte(4) { // so two nodes aren't a majority
		n.Mesh().Add(wire.NodeID{1, 2, 4, i}, "")
	}
	n.Mesh().Add(peer, "")
	for i := range many {
		engine.SetMark(n, fmt.Sprint(i), 1_700_000_000)
	}
	n.Effects()
	told := func(ticks int) (most, marks int) {
		for range ticks {
			now += 50
			n.SetNow(now)
			n.Tick()
			messages := 0
			for _, e := range n.Effects() {
				var m wire.Message
				if e.Kind == engine.Send && m.Parse(n.Message(&e)) == nil && m.Kind == wire.Marks && m.Flags&wire.NoReply == 0 {
					messages++
					marks += engine.CountMarks(m.Queue)
				}
			}
			most = max(most, messages)
		}
		return most, marks
	}
	_, marks := told(50)
	assert.Zero(t, marks)
	n.SetFeatures(peer, engine.Features{Crons: true, Entries: true})
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	n.Effects()
	most, marks := told(50)
	assert.Equal(t, 1, most, "messages in a tick")
	assert.GreaterOrEqual(t, marks, many)
}

// A message has a page of marks at most, and the last mark of a recurring job counts.
func TestMarksInAMessage(t *testing.T) {
	peer := wire.NodeID{1, 2, 3}
	n := maker(dawn)
	_, err := n.SetCron("e", engine.Cron{Every: 3600, Queue: []byte("q"), Body: []byte("b")})
	require.NoError(t, err)
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	n.Effects()
	hear := func(count int) (logged int, err error) {
		var marks []byte
		for i := range count {
			marks = append(marks, engine.MarkAt(n, "e", dawn/1000+int64(i)*3600)...)
		}
		err = n.Receive(peer, (&wire.Message{Kind: wire.Marks, Queue: marks}).Append(nil))
		for _, e := range n.Effects() {
			if e.Kind == engine.LogEntry {
				logged++
			}
		}
		return logged, err
	}
	logged, err := hear(200)
	require.NoError(t, err)
	assert.Equal(t, 1, logged)
	s, _ := n.CronNamed("e")
	assert.Equal(t, int64(dawn/1000+199*3600), s.Last)
	_, err = hear(201)
	assert.ErrorIs(t, err, wire.ErrMessage)
}

// A node meets a mesh that has very many recurring jobs. No message takes long, at either end.
func TestCronsAreLearntInPages(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	const count = 40_000
	nodes := map[wire.NodeID]*engine.Node{}
	var all []*engine.Node
	for _, id := range []string{"1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222"} {
		n, _, _ := namedNode(id, dawn, nil)
		all = append(all, n)
		nodes[n.Self()] = n
	}
	for i := range count {
		_, err := all[0].SetCron(fmt.Sprint("entry", i), engine.Cron{Every: 3600, Queue: []byte("q"), Body: []byte("b")})
		require.NoError(t, err)
		all[0].Effects()
	}
	type letter struct {
		from, to wire.NodeID
		message  []byte
	}
	var mail []letter
	for i, n := range all {
		other := all[1-i].Self()
		n.SetFeatures(other, engine.Features{Crons: true, Entries: true})
		n.Mesh().Up(other, "10.0.0.1:1", true)
	}
	take := func() {
		for _, n := range all {
			for _, e := range n.Effects() {
				if e.Kind != engine.Send {
					continue
				}
				if b := n.Message(&e); wire.Kind(b[0]) == wire.Entries || wire.Kind(b[0]) == wire.EntrySums {
					mail = append(mail, letter{n.Self(), e.Peer.ID, bytes.Clone(b)})
				}
			}
		}
	}
	var took []time.Duration
	for take(); len(mail) > 0 && all[1].Crons() < count; take() {
		l := mail[0]
		mail = mail[1:]
		nodes[l.to].SetNow(dawn)
		began := threadTime(t)
		require.NoError(t, nodes[l.to].Receive(l.from, l.message))
		took = append(took, threadTime(t)-began)
	}
	require.Equal(t, count, all[1].Crons())
	slices.Sort(took)
	t.Log(len(took), "messages, the longest", took[len(took)-10:])
	assert.Less(t, took[len(took)*95/100], 5*time.Millisecond) // the longest takes 1 ms on a machine at rest
}
