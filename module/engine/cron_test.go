package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// maker makes a node that makes recurring jobs by itself.
func maker(now int64) *engine.Node {
	n, _, _ := node(now)
	n.SetPolicies(&engine.Policies{Generation: 1, AddCron: func(c *engine.Cron, a *engine.Add) error {
		*a = engine.Add{Queue: c.Queue, Body: c.Body, TTL: 3600, Retry: 60, Replicate: 1}
		return nil
	}})
	return n
}

// tickAt ticks from a time on, for half a second.
func tickAt(n *engine.Node, now int64) {
	for i := range int64(500) {
		n.SetNow(now + i)
		n.Tick()
		n.Effects()
	}
}

// However many slots were missed, a tick goes through some only, and the right ones are left.
func TestMissedSlotsBitByBit(t *testing.T) {
	const year = 365 * 86400
	for missed, made := range map[engine.Missed]int64{engine.MissedSkip: 0, engine.MissedLast: 1, engine.MissedAll: 100} {
		n := maker(1_700_000_000_000)
		for name, c := range map[string]engine.Cron{"every": {Every: 3600}, "line": {Line: "0 * * * *", Zone: "Europe/Berlin"}, "second": {Every: 1}} {
			c.Missed, c.Queue, c.Body = missed, []byte(name), []byte("b")
			_, err := n.SetCron(name, c)
			require.NoError(t, err)
		}
		tickAt(n, (1_700_000_000+year)*1000+1)
		for _, name := range []string{"every", "line"} {
			s, _ := n.CronNamed(name)
			assert.Equal(t, made, s.Made, "%s %d", name, missed)
			assert.Equal(t, int64(8760)-made, s.LeftOut, "%s %d", name, missed)
		}
		s, _ := n.CronNamed("second")
		assert.LessOrEqual(t, s.Made, made+2, "the last slots aren't late")
		assert.InDelta(t, year, s.Made+s.LeftOut, 2)
	}
}

// A slot that is made late, because all nodes were down, is tried for as long as any other one.
func TestMissedSlotThatLacksMemory(t *testing.T) {
	const start = 1_700_000_000_000
	n := maker(start)
	_, err := n.SetCron("c", engine.Cron{Every: 3600, Missed: engine.MissedLast, Queue: []byte("q"), Body: []byte("b")})
	require.NoError(t, err)
	n.SetMemory(0.99)
	const late = start + 3*3600_000
	ticks := func(from, to int64) {
		for now := late + from; now < late+to; now += 500 {
			n.SetNow(now)
			n.Tick()
			n.Effects()
		}
	}
	ticks(0, 50_000)
	s, _ := n.CronNamed("c")
	require.Equal(t, engine.SlotNone, s.Outcome, "it is tried on")
	n.SetMemory(0)
	ticks(50_000, 70_000)
	s, _ = n.CronNamed("c")
	assert.Equal(t, engine.SlotMade, s.Outcome)
}

func TestManyCrons(t *testing.T) {
	n := maker(1_700_000_000_000)
	c := engine.Cron{Every: 86400, Queue: []byte("q"), Body: []byte("b")}
	for i := range 100_000 {
		_, err := n.SetCron(string([]byte{byte(i), byte(i >> 8), byte(i >> 16)}), c)
		require.NoError(t, err)
		n.Effects()
	}
	_, err := n.SetCron("more", c)
	assert.Equal(t, engine.ErrManyCrons, err)
	_, err = n.SetCron(string([]byte{1, 0, 0}), c)
	require.NoError(t, err, "it is there already")
	c.Body = make([]byte, 40_000)
	_, err = n.SetCron(string([]byte{1, 0, 0}), c)
	assert.Equal(t, engine.ErrLongCron, err)
}

// FuzzCron: other nodes' entries and marks may have any content.
func FuzzCron(f *testing.F) {
	f.Add(engine.CronValue(&engine.Cron{Every: 60, Offset: 5, Queue: []byte("q"), Body: []byte("b"), Options: [][]byte{[]byte("TTL"), []byte("60")}}))
	f.Add(engine.CronValue(&engine.Cron{Line: "* * * * *", Zone: "Europe/Berlin", Paused: true, Any: true, Once: true, Missed: engine.MissedAll}))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := maker(1_700_000_000_000)
		n.ChangeEntry(engine.EntryCron, "e", append([]byte{}, b...))
		n.ChangeEntry(engine.EntryMark, "e", append([]byte{}, b...))
		n.Tick()
		id := wire.NodeID{1, 2, 3}
		n.Mesh().Add(id, "")
		n.SetFeatures(id, engine.Features{Crons: true, Entries: true})
		_ = n.Receive(id, (&wire.Message{Kind: wire.Marks, Queue: b}).Append(nil))
		_ = n.Receive(id, (&wire.Message{Kind: wire.Claim, Round: 1, Lock: wire.Lock{Name: append([]byte("Wq\x01ek\x00cron"), b...), Token: 1, Job: wire.JobID{1}, Lease: 1000}}).Append(nil))
		c, err := engine.ReadCron(b)
		if err != nil {
			return
		}
		again, err := engine.ReadCron(engine.CronValue(&c))
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
}
