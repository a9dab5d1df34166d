package engine_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/entries"
	"jobmesh/module/lock"
	"jobmesh/module/store"
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

// started makes a node with the entries of a log, as a server that is started again has. past is what the nodes' file keeps.
func started(t *testing.T, now int64, policies *engine.Policies, log []byte, past engine.Past, trust engine.Trust) *engine.Node {
	n, _, _ := node(now)
	n.SetPolicies(policies)
	n.SetPast(past)
	n.BeginLoading()
	require.NoError(t, entries.Parse(log, func(e *entries.Entry) error { n.LoadEntry(e); return nil }))
	n.EndLoading()
	n.Settle(trust)
	return n
}

// firstOf is the first job of queue q that a node delivers from a time on, unix ms, for some seconds; nil: there is none.
func firstOf(n *engine.Node, now, seconds int64) (*store.Job, int64) {
	for end := now + seconds*1000; now < end; now++ {
		n.SetNow(now)
		n.Tick()
		n.Effects()
		if q := n.Queue([]byte("q")); q != nil {
			if jobs := n.Fetch([]*store.Queue{q}, 1, true, nil); len(jobs) > 0 {
				return jobs[0], now
			}
		}
	}
	return nil, now
}

// A crash loses the end of the log, with a job and its mark. With RETRY 0 the job isn't delivered again, whether CRON SET said so, or the
// queue's settings since; nor after a later start with whole data.
func TestCronOnceAfterCrash(t *testing.T) {
	for _, once := range []bool{true, false} {
		const now = 1_700_000_000_000
		retry := int64(60)
		policies := &engine.Policies{Generation: 1, AddCron: func(c *engine.Cron, a *engine.Add) error {
			*a = engine.Add{Queue: c.Queue, Body: c.Body, TTL: 3600, Retry: retry, Replicate: 1}
			return nil
		}}
		n, _, _ := node(now)
		n.SetPolicies(policies)
		_, err := n.SetCron("e", engine.Cron{Every: 60, Once: once, Queue: []byte("q"), Body: []byte("b")})
		require.NoError(t, err)
		log := n.Entries().Text() // what is on disk when the server is killed
		retry = 0                 // QCONFIG SET q RETRY 0
		first, at := firstOf(n, now, 70)
		require.NotNil(t, first)
		id := first.ID
		n = started(t, at+500, policies, log, engine.Past{}, engine.Trust{})
		again, _ := firstOf(n, at+501, 5)
		assert.Nil(t, again, "said by CRON SET: %v", once)
		n = started(t, at+6000, policies, n.Entries().Text(), n.Past(), engine.Trust{Exact: true})
		next, _ := firstOf(n, at+6001, 60)
		require.NotNil(t, next)
		assert.NotEqual(t, id, next.ID, "said by CRON SET: %v", once)
		c, _ := n.CronNamed("e")
		assert.Equal(t, int64(1_700_000_040+60), c.Last)
	}
}

// A node that may have lost its marks gives no vote for the slots until then, where the queue's settings say RETRY 0.
func TestCronOnceVoteAfterCrash(t *testing.T) {
	for retry, denied := range map[int64]bool{0: true, 60: false} {
		const now = 1_700_000_000_000
		policies := &engine.Policies{Generation: 1, AddCron: func(c *engine.Cron, a *engine.Add) error {
			*a = engine.Add{Queue: c.Queue, Body: c.Body, TTL: 3600, Retry: retry, Replicate: 1}
			return nil
		}}
		n, _, _ := node(now)
		_, err := n.SetCron("e", engine.Cron{Every: 60, Queue: []byte("q"), Body: []byte("b")})
		require.NoError(t, err)
		const slot = 1_700_000_040
		n = started(t, slot*1000+500, policies, n.Entries().Text(), engine.Past{}, engine.Trust{})
		id := wire.NodeID{1, 2, 3}
		n.Mesh().Up(id, "10.0.0.1:1", false)
		n.SetFeatures(id, engine.Features{Crons: true, Entries: true})
		n.Locks().Trust()
		n.Effects()
		require.NoError(t, n.Receive(id, (&wire.Message{Kind: wire.Claim, Round: 1, Lock: wire.Lock{Name: engine.SlotName(n, "e", slot), Token: 1 << 60, Job: wire.JobID{1}, Lease: 1000}}).Append(nil)))
		served := false
		for _, e := range n.Effects() {
			var m wire.Message
			if e.Kind == engine.Send && m.Parse(n.Message(&e)) == nil && m.Kind == wire.Deny && m.Count == wire.Served {
				served = true
			}
		}
		assert.Equal(t, denied, served, "RETRY %d", retry)
	}
}

// With QUORUM any each side of a partition makes the slots, but not where the queue's settings say RETRY 0.
func TestCronOnceAnyQuorum(t *testing.T) {
	for retry, made := range map[int64]bool{0: false, 60: true} {
		now := int64(1_700_000_000_000)
		n, _, _ := node(now)
		n.SetPolicies(&engine.Policies{Generation: 1, AddCron: func(c *engine.Cron, a *engine.Add) error {
			*a = engine.Add{Queue: c.Queue, Body: c.Body, TTL: 3600, Retry: retry, Replicate: 1}
			return nil
		}})
		_, err := n.SetCron("e", engine.Cron{Every: 60, Any: true, Queue: []byte("q"), Body: []byte("b")})
		require.NoError(t, err)
		for i := range byte(2) {
			n.Mesh().Add(wire.NodeID{1, 2, 3, i}, "")
		}
		n.Locks().Trust()
		n.Locks().VotesKept(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
		n.Effects()
		for end := now + 50_000; now < end; now++ {
			n.SetNow(now)
			n.Tick()
			n.Effects()
			if now%1000 == 0 {
				n.Locks().VotesKept(n.Locks().Votes())
			}
		}
		c, _ := n.CronNamed("e")
		assert.Equal(t, made, c.Made == 1, "RETRY %d: %+v", retry, c)
		if !made {
			assert.Equal(t, engine.SlotNone, c.Outcome, "it has no lock, so it reserves nothing")
		}
	}
}

// promoted makes a node of its own of a replica of one that has the entries of a log.
func promoted(t *testing.T, now int64, policies *engine.Policies, log []byte) *engine.Node {
	n, _, _ := namedNode("7777777777777777777777777777777777777777", now, nil)
	n.SetPolicies(policies)
	n.SetPassive(true)
	n.BeginLoading()
	require.NoError(t, entries.Parse(log, func(e *entries.Entry) error { n.LoadEntry(e); return nil }))
	n.EndLoading()
	n.Follow()
	n.SetPassive(false)
	n.Effects()
	return n
}

// A replica is promoted in the place of a mesh's node, and has met nobody yet. The mesh makes the slots of the recurring jobs, so the promoted
// node makes none that may be delivered once only, or for which a majority is asked.
func TestCronPromotedApart(t *testing.T) {
	for _, tc := range []struct {
		retry     int64
		any, mesh bool
		made      bool
	}{{0, false, true, false}, {60, false, true, false}, {0, true, true, false}, {60, true, true, true}, {0, false, false, true}, {60, false, false, true}} {
		now := int64(1_700_000_000_000)
		policies := &engine.Policies{Generation: 1, AddCron: func(c *engine.Cron, a *engine.Add) error {
			*a = engine.Add{Queue: c.Queue, Body: c.Body, TTL: 3600, Retry: tc.retry, Replicate: 1}
			return nil
		}}
		master, _, _ := node(now)
		if tc.mesh {
			master.Mesh().Up(wire.NodeID{1, 2, 3}, "10.0.0.1:1", false)
		}
		c := engine.Cron{Every: 60, Any: tc.any, Queue: []byte("q"), Body: []byte("b")}
		_, err := master.SetCron("e", c)
		require.NoError(t, err)
		master.Tick()
		n := promoted(t, now, policies, master.Entries().Text())
		made := func(n *engine.Node) bool {
			before, _ := n.CronNamed("e")
			for end := now + 80_000; now < end; now += 10 {
				n.SetNow(now)
				n.Tick()
				n.Effects()
			}
			after, _ := n.CronNamed("e")
			return after.Made > before.Made
		}
		assert.Equal(t, tc.made, made(n), "%+v", tc)

		// It is started again.
		n = started(t, now, policies, n.Entries().Text(), n.Past(), engine.Trust{Exact: true})
		assert.Equal(t, tc.made, made(n), "%+v, after a restart", tc)

		// An entry that is deleted and set anew is this node's own.
		require.True(t, n.DeleteCron("e"))
		now++
		n.SetNow(now)
		_, err = n.SetCron("e", c)
		require.NoError(t, err)
		assert.True(t, made(n), "%+v, set anew", tc)

		// It is told that it is alone.
		n = promoted(t, now, policies, master.Entries().Text())
		n.SetNow(now)
		n.Tick()
		id := wire.NodeID{1, 2, 3}
		n.Mesh().Add(id, "")
		require.True(t, n.Mesh().Forget(id))
		assert.True(t, made(n), "%+v, told that it is alone", tc)
	}
}

// An entry of another node, or of a log, has times far beyond those that CRON SET takes.
func TestCronFarTimes(t *testing.T) {
	for _, at := range []int64{1 << 48, 1 << 50, 1 << 53, 1 << 55, 1 << 57, 1 << 60, 1<<61 - 1} {
		for _, line := range []string{"", "*/5 * * * *", "5 3 29 2 *"} {
			for _, c := range []engine.Cron{{From: at}, {From: at, Until: 1<<61 - 1}, {Until: at}} {
				n := maker(1_700_000_000_000)
				c.Line, c.Zone, c.Queue, c.Body = line, "Europe/Berlin", []byte("q"), []byte("b")
				if line == "" {
					c.Every, c.Zone = 1, ""
				}
				n.ChangeEntry(engine.EntryCron, "e", engine.CronValue(&c))
				_, known := n.CronNamed("e")
				assert.False(t, known, "%+v", c)
			}
		}
	}
	n := maker(1_700_000_000_000)
	next, err := n.SetCron("e", engine.Cron{Line: "0 0 * * *", From: engine.MaxSlot - 86400*366, Until: engine.MaxSlot, Queue: []byte("q"), Body: []byte("b")})
	require.NoError(t, err)
	assert.Greater(t, next, int64(engine.MaxSlot-86400*367))
	tickAt(n, 1_700_000_000_000)
	s, _ := n.CronNamed("e")
	assert.Zero(t, s.Made+s.LeftOut)
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

// A majority of five nodes has the mark of an at-most-once job's slot, and the job waits for its key. The last node confirms the mark, too:
// the ADDJOB isn't begun anew. So the job has its key, and is made, and counted, once.
func TestCronOnceWaitsForItsKey(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	n.SetPolicies(&engine.Policies{Generation: 1, AddCron: func(c *engine.Cron, a *engine.Add) error {
		*a = engine.Add{Queue: c.Queue, Body: c.Body, TTL: 3600, Replicate: 1, Unique: engine.Unique{Strategy: store.UniqueUntil, Keyed: true, Key: []byte("k")}}
		return nil
	}})
	_, err := n.SetCron("e", engine.Cron{Every: 60, Queue: []byte("q"), Body: []byte("b")})
	require.NoError(t, err)
	var peers []wire.NodeID
	for i := range byte(4) {
		peers = append(peers, wire.NodeID{1, 2, 3, i})
		n.Mesh().Add(peers[i], "")
		n.Mesh().Up(peers[i], "10.0.0.1:1", true)
	}
	n.Locks().Trust()
	n.Locks().VotesKept(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
	n.Effects()
	grant := func(round uint64) {
		for _, p := range peers[:3] {
			require.NoError(t, n.Receive(p, (&wire.Message{Kind: wire.Grant, Round: round}).Append(nil)))
		}
		n.Effects()
		n.Locks().VotesKept(n.Locks().Votes())
	}
	slots, keys := map[uint64]bool{}, map[uint64]bool{}
	claims := func() {
		for _, e := range n.Effects() {
			var m wire.Message
			if e.Kind != engine.Send || m.Parse(n.Message(&e)) != nil || m.Kind != wire.Claim {
				continue
			}
			if strings.Contains(string(m.Lock.Name), "\x00cron") {
				slots[m.Round] = true
			} else {
				keys[m.Round] = true
			}
		}
	}
	run := func(ms int64) {
		for end := now + ms; now < end; now += 10 {
			n.SetNow(now)
			n.Tick()
			claims()
		}
	}
	for len(slots) == 0 {
		run(10)
	}
	for round := range slots {
		grant(round)
	}
	claims()
	mark := func() (m []byte) {
		require.NoError(t, entries.Parse(n.Entries().Text(), func(e *entries.Entry) error {
			if e.Kind == engine.EntryMark {
				m = append([]byte{1, 'e'}, e.Value...)
			}
			return nil
		}))
		return m
	}
	for i, p := range peers {
		require.NoError(t, n.Receive(p, (&wire.Message{Kind: wire.Marks, Flags: wire.NoReply, Queue: mark()}).Append(nil)))
		claims()
		require.Len(t, keys, min(i, 1), "%d others have the mark", i+1)
	}
	run(100)
	for round := range keys {
		grant(round)
	}
	claims()
	c, _ := n.CronNamed("e")
	assert.EqualValues(t, 1, c.Made)
	assert.Equal(t, engine.SlotMade, c.Outcome)
	j := n.Job(&c.ID)
	require.NotNil(t, j)
	assert.True(t, j.Unique().Has(store.UniqueHasWait))
	assert.EqualValues(t, 1, n.Stats.Added)
}
