package single

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// awaitsJob makes a client wait for a job of a queue.
func awaitsJob(t *testing.T, s *harness.Server, c *harness.Conn, queue string) *harness.Conn {
	t.Helper()
	w := s.Dial()
	w.Send("GETJOB", "TIMEOUT", 60_000, "FROM", queue)
	harness.Await(t, 10*time.Second, "the client to wait", func() bool { return c.Do("QSTAT", queue).Field("blocked").Int() == 1 })
	return w
}

// keySlots are the slots that jobs have, in their order; -1: none.
func keySlots(c *harness.Conn, ids ...string) (slots []int64) {
	for _, id := range ids {
		if v := c.Do("SHOW", id).Field("key-slot"); v.Kind != 0 {
			slots = append(slots, v.Int())
		} else {
			slots = append(slots, -1)
		}
	}
	return slots
}

// C1: with LIMIT 2 two jobs of a key run at a time. The third waits until either of them is done, given back, deleted or lapses.
func TestLifeC1(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	var ids []string
	for i := range 8 {
		ids = append(ids, addUnique(t, c, "q", fmt.Sprint(i), "UNIQUE during-processing KEY k LIMIT 2 RETRY 600"))
	}
	require.Equal(t, ids[0], get(t, c, "q"))
	require.Equal(t, ids[1], get(t, c, "q"))
	none(t, c, "q")
	assert.Equal(t, []int64{0, 1, -1}, keySlots(c, ids[:3]...))
	assert.EqualValues(t, 2, c.Do("SHOW", ids[0]).Field("limit").Int())
	assert.Equal(t, "held-back", c.Do("SHOW", ids[2]).Field("lock").Str)
	other := addUnique(t, c, "q", "x", "UNIQUE during-processing KEY other LIMIT 2")
	require.Equal(t, other, get(t, c, "q"), "another key doesn't wait")

	next := func(of int, end ...any) {
		t.Helper()
		w := awaitsJob(t, s, c, "q")
		require.True(t, w.Silent(time.Millisecond))
		require.EqualValues(t, 1, c.Do(end...).Int())
		require.Equal(t, ids[of], w.Receive().Elems[0].Elems[1].Str)
	}
	next(2, "ACKJOB", ids[1]) // slot 1 is free
	assert.Equal(t, []int64{0, -1, 1}, []int64{keySlots(c, ids[0])[0], -1, keySlots(c, ids[2])[0]})
	next(3, "ACKJOB", ids[0]) // slot 0 is
	assert.Equal(t, []int64{0, 1}, keySlots(c, ids[3], ids[2]))
	next(4, "NACK", ids[2], "DELAY", 1000)
	next(5, "DELJOB", ids[3])
	next(6, "CANCELJOB", ids[4])
	next(7, "NACK", ids[5], "DEAD")
	assert.ElementsMatch(t, []int64{0, 1}, keySlots(c, ids[6], ids[7]))

	// A job whose worker is gone comes back, and is delivered again: nothing else waits.
	short := addUnique(t, c, "l", "1", "UNIQUE during-processing KEY k SCOPE mesh LIMIT 2 RETRY 1")
	long := addUnique(t, c, "l", "2", "UNIQUE during-processing KEY k SCOPE mesh LIMIT 2 RETRY 600")
	third := addUnique(t, c, "m", "3", "UNIQUE during-processing KEY k SCOPE mesh LIMIT 2 RETRY 600")
	require.Equal(t, short, get(t, c, "l"))
	require.Equal(t, long, get(t, c, "l"))
	none(t, c, "m")
	require.Equal(t, third, waitFor(t, c, "m"), "the first's slot is free when its retry time is over")
	none(t, c, "l")
	require.EqualValues(t, 1, c.Do("ACKJOB", long).Int())
	require.Equal(t, short, waitFor(t, c, "l"))
}

// Jobs of one key needn't agree on the limit: each takes a slot below its own. So a limit that is lowered drains.
func TestLimitsDiffer(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	for i := range 3 {
		addUnique(t, c, "a", fmt.Sprint(i), "UNIQUE during-processing KEY k SCOPE mesh LIMIT 3")
	}
	first, second, third := get(t, c, "a"), get(t, c, "a"), get(t, c, "a")
	one := addUnique(t, c, "b", "one", "UNIQUE during-processing KEY k SCOPE mesh")
	two := addUnique(t, c, "c", "two", "UNIQUE during-processing KEY k SCOPE mesh LIMIT 2")
	four := addUnique(t, c, "d", "four", "UNIQUE during-processing KEY k SCOPE mesh LIMIT 4")
	require.Equal(t, four, get(t, c, "d"))
	none(t, c, "b")
	none(t, c, "c")
	c.Do("ACKJOB", third) // slot 2
	none(t, c, "b")
	none(t, c, "c")
	w := awaitsJob(t, s, c, "c")
	c.Do("ACKJOB", second) // slot 1
	require.Equal(t, two, w.Receive().Elems[0].Elems[1].Str)
	w = awaitsJob(t, s, c, "b")
	c.Do("ACKJOB", first)
	require.Equal(t, one, w.Receive().Elems[0].Elems[1].Str)
	assert.Equal(t, []int64{-1, 1, 3}, keySlots(c, one, two, four))
}

// C6: with until-processed and LIMIT 3 three jobs of a key exist. The fourth is left out, or refused with the ID of the holder of the lowest slot.
func TestLifeC6(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	const options = "UNIQUE until-processed KEY k LIMIT 3"
	var ids []string
	for i := range 3 {
		ids = append(ids, addUnique(t, c, "q", fmt.Sprint(i), options))
	}
	assert.Equal(t, []int64{0, 1, 2}, keySlots(c, ids...))
	require.True(t, tryUnique(c, "q", "x", options).Null)
	require.True(t, tryUnique(c, "q", "x", options+" ONCONFLICT raise").Err("DUPLICATE "+ids[0]))
	require.True(t, tryUnique(c, "q", "x", "UNIQUE until-processed KEY k").Null, "without LIMIT only slot 0 will do")

	require.Equal(t, ids[0], get(t, c, "q"))
	require.True(t, tryUnique(c, "q", "x", options).Null, "it isn't done yet")
	require.EqualValues(t, 1, c.Do("CANCELJOB", ids[1]).Int())
	fourth := addUnique(t, c, "q", "4", options)
	assert.Equal(t, []int64{0, 1, 2}, keySlots(c, ids[0], fourth, ids[2]))
	require.True(t, tryUnique(c, "q", "x", options+" ONCONFLICT raise").Err("DUPLICATE "+ids[0]))
	require.EqualValues(t, 1, c.Do("ACKJOB", ids[0]).Int())
	fifth := addUnique(t, c, "q", "5", options)
	assert.Equal(t, []int64{0}, keySlots(c, fifth))
	require.True(t, tryUnique(c, "q", "x", options+" ONCONFLICT raise").Err("DUPLICATE "+fifth))

	v := tryUnique(c, "q", "later", options+" ONCONFLICT reschedule 1")
	require.EqualValues(t, 1, c.Do("ACKJOB", ids[2]).Int())
	harness.Await(t, 10*time.Second, "the job that was put off to be queued", func() bool { return c.Do("SHOW", v.Str).Field("state").Str == "queued" })
	assert.Equal(t, []int64{2}, keySlots(c, v.Str))

	// Those whose time is over stand in nobody's way.
	for i := range 3 {
		addUnique(t, c, "t", fmt.Sprint(i), options+" TTL 1")
	}
	harness.Await(t, 10*time.Second, "the keys to be free", func() bool { return !tryUnique(c, "t", "x", options).Null })

	// ADDJOBS: as many as there are slots.
	v = c.Do("ADDJOBS", "b", 0, "UNIQUE", "until-processed", "KEY", "k", "LIMIT", 2, "BODIES", "1", "2", "3")
	require.Len(t, v.Elems, 3)
	assert.True(t, v.Elems[2].Null, "%v", v)
	assert.Equal(t, []int64{0, 1}, keySlots(c, v.Elems[0].Str, v.Elems[1].Str))
}

// C7: a window with LIMIT 5 lets five jobs of a key in, whatever becomes of them, until the first one's window is over.
func TestLifeC7(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	options := "UNIQUE window TTL 60 KEY k LIMIT 5"
	for i := range 5 {
		id := addUnique(t, c, "q", fmt.Sprint(i), options)
		require.Equal(t, id, get(t, c, "q"))
		require.EqualValues(t, 1, c.Do("ACKJOB", id).Int())
	}
	require.True(t, tryUnique(c, "q", "x", options).Null)
	require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
	require.True(t, tryUnique(c, "q", "x", options).Null)
	for slot := range 5 {
		left := c.Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", "q", "SLOT", slot).Field("ttl").Int()
		assert.LessOrEqual(t, left, int64(60_000))
		assert.Positive(t, left)
	}
	options = "UNIQUE window TTL 1 KEY k LIMIT 2"
	addUnique(t, c, "s", "1", options)
	addUnique(t, c, "s", "2", options)
	harness.Await(t, 10*time.Second, "a window to be over", func() bool { return !tryUnique(c, "s", "x", options).Null })
}

// The other strategies: the slot of before-processing is free with the delivery, and taken again when the job comes back.
func TestLimitOfTheOtherStrategies(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	for _, strategy := range []string{"before-processing", "before-and-during-processing"} {
		options := "UNIQUE " + strategy + " KEY k LIMIT 2"
		one := addUnique(t, c, strategy, "1", options)
		two := addUnique(t, c, strategy, "2", options)
		require.True(t, tryUnique(c, strategy, "3", options).Null)
		require.Equal(t, one, get(t, c, strategy))
		three := addUnique(t, c, strategy, "3", options)
		require.True(t, tryUnique(c, strategy, "4", options).Null)
		require.Equal(t, two, get(t, c, strategy))
		require.EqualValues(t, 1, c.Do("NACK", two).Int())
		require.True(t, tryUnique(c, strategy, "4", options).Null, "the second is back")
		require.EqualValues(t, 1, c.Do("ACKJOB", one).Int())
		require.Equal(t, two, get(t, c, strategy))
		require.Equal(t, three, get(t, c, strategy))
		addUnique(t, c, strategy, "4", options)
		if strategy == "before-and-during-processing" {
			none(t, c, strategy)
		}
	}
	for busy, want := range map[string]string{"drop": "", "reschedule 100": "active", "dead": "queued"} {
		q := strings.Fields(busy)[0]
		options := "UNIQUE during-processing KEY k LIMIT 2 ONBUSY " + busy
		first := addUnique(t, c, q, "1", options)
		addUnique(t, c, q, "2", options)
		get(t, c, q)
		get(t, c, q)
		third := addUnique(t, c, q, "3", options)
		none(t, c, q)
		v := c.Do("SHOW", third)
		if want == "" {
			require.True(t, v.Null)
		} else {
			assert.Equal(t, want, v.Field("state").Str, q)
		}
		c.Do("ACKJOB", first)
		fourth := addUnique(t, c, q, "4", options)
		require.Equal(t, fourth, get(t, c, q))
	}
}

// Slots over restarts and other ways in which jobs move: those that had a slot have it, and no other job gets in.
func TestLimitOverRestarts(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		const waiting, running = "UNIQUE until-processed KEY w LIMIT 3", "UNIQUE during-processing KEY r LIMIT 3 RETRY 600"
		var ids []string
		for i := range 3 {
			ids = append(ids, addUnique(t, c, "q", fmt.Sprint(i), waiting))
		}
		for i := range 5 {
			ids = append(ids, addUnique(t, c, "q", fmt.Sprint(3+i), running))
		}
		for i := range 6 {
			require.Equal(t, ids[i], get(t, c, "q"))
		}
		for _, done := range []int{0, 3} {
			require.EqualValues(t, 1, c.Do("ACKJOB", ids[done]).Int())
		}
		ids = append(ids[1:3:3], ids[4:]...) // waiting: slots 1, 2; running: 1, 2, and two that wait
		c, queue := handOn(t, s, c, mode)
		runs := !c.Do("SHOW", ids[2]).Null && c.Do("SHOW", ids[2]).Field("lock").Str == "run"
		assert.Equal(t, []int64{1, 2}, keySlots(c, ids[0], ids[1]))
		addUnique(t, c, queue, "x", waiting)
		require.True(t, tryUnique(c, queue, "x", waiting).Null)
		if !runs {
			return // RESTORE queues jobs that were in progress
		}
		assert.Equal(t, []int64{1, 2, -1, -1}, keySlots(c, ids[2:]...))
		require.Equal(t, ids[4], get(t, c, queue))
		v := c.Do("GETJOB", "COUNT", 10, "NOHANG", "FROM", queue)
		for _, e := range v.Elems {
			require.NotEqual(t, ids[5], e.Elems[1].Str, "three of its key run")
		}
	}, "", "aof", "rdb", "reload", "rename", "restore")
}

// A job leaves its slot when it is moved, dies, lives again, is flushed, or its lock is cleared.
func TestLimitOfJobsThatMove(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	const options = "UNIQUE until-processed KEY k LIMIT 2"
	a, b := addUnique(t, c, "q", "1", options), addUnique(t, c, "q", "2", options)
	p1 := addUnique(t, c, "p", "1", options)
	require.EqualValues(t, 1, c.Do("MOVEJOB", b, "TO", "p").Int())
	assert.Equal(t, []int64{0, 0, 1}, keySlots(c, a, p1, b))
	require.True(t, c.Do("MOVEJOB", a, "TO", "p").Err("DUPLICATE"))
	assert.Equal(t, []int64{0}, keySlots(c, a))
	addUnique(t, c, "q", "3", options)
	require.True(t, tryUnique(c, "q", "4", options).Null)

	// A dead letter has no slot. It lives again in a free one.
	require.Equal(t, b, get(t, c, "p"), "the older one")
	require.EqualValues(t, 1, c.Do("NACK", b, "DEAD").Int())
	assert.Equal(t, []int64{-1}, keySlots(c, b))
	other := addUnique(t, c, "p", "5", options)
	assert.Equal(t, []int64{1}, keySlots(c, other))
	require.True(t, c.Do("MOVEJOB", b).Err("DUPLICATE "+p1))
	require.EqualValues(t, 1, c.Do("CANCELJOB", p1).Int())
	require.EqualValues(t, 1, c.Do("MOVEJOB", b, "TO", "p").Int())
	assert.Equal(t, []int64{0}, keySlots(c, b))
	require.True(t, tryUnique(c, "p", "6", options).Null)
	require.Positive(t, c.Do("QFLUSH", "p").Int())
	addUnique(t, c, "p", "7", options)
	addUnique(t, c, "p", "8", options)
	require.True(t, tryUnique(c, "p", "9", options).Null)
	require.EqualValues(t, 1, c.Do("DEL", "p").Int())
	addUnique(t, c, "p", "7", options)

	// LOCK.SHOW, SCAN and CLEAR.
	for i := range 3 {
		addUnique(t, c, "l", fmt.Sprint(i), "UNIQUE during-processing KEY k LIMIT 3")
	}
	ids := []string{get(t, c, "l"), get(t, c, "l"), get(t, c, "l")}
	for slot, id := range ids {
		v := c.Do("LOCK.SHOW", "k", "TYPE", "running", "QUEUE", "l", "SLOT", slot)
		assert.Equal(t, id, v.Field("job").Str)
		assert.Equal(t, "k", v.Field("name").Str)
	}
	assert.True(t, c.Do("LOCK.SHOW", "k", "TYPE", "running", "QUEUE", "l", "SLOT", 3).Null)
	assert.Len(t, c.Do("LOCK.SCAN", 0, "TYPE", "running").Elems[1].Elems, 3)
	assert.Len(t, c.Do("LOCK.SCAN", 0, "TYPE", "running", "SLOT", 2).Elems[1].Elems, 1)
	fourth := addUnique(t, c, "l", "4", "UNIQUE during-processing KEY k LIMIT 3")
	none(t, c, "l")
	require.EqualValues(t, 1, c.Do("LOCK.CLEAR", "k", "TYPE", "running", "QUEUE", "l", "SLOT", 1).Int())
	require.Equal(t, fourth, get(t, c, "l"))
	assert.Equal(t, []int64{0, -1, 2, 1}, keySlots(c, ids[0], ids[1], ids[2], fourth))
	require.True(t, c.Do("WORKING", ids[1]).Err("LOCKLOST"))
	require.EqualValues(t, 3, c.Do("LOCK.CLEAR", "k", "TYPE", "running", "QUEUE", "l").Int(), "all slots")
	assert.Empty(t, c.Do("LOCK.SCAN", 0, "TYPE", "running").Elems[1].Elems)
}

// Tokens grow within a slot. RUNTTL frees a slot, and WORKING takes one again while there is one.
func TestLimitTokens(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	const options = "UNIQUE during-processing KEY k LIMIT 2 RUNTTL 1 RETRY 600"
	for i := range 4 {
		addUnique(t, c, "q", fmt.Sprint(i), options)
	}
	take := func() (id string, token int64) {
		v := c.Do("GETJOB", "TIMEOUT", 10_000, "WITHTOKEN", "FROM", "q")
		require.Len(t, v.Elems, 1)
		e := v.Elems[0].Elems
		return e[1].Str, e[len(e)-1].Int()
	}
	a, first := take()
	b, second := take()
	third, token := take() // when a run's time is over
	assert.Greater(t, token, min(first, second))
	fourth, _ := take()
	assert.ElementsMatch(t, []int64{0, 1}, keySlots(c, third, fourth))
	require.EqualValues(t, 600, c.Do("WORKING", third).Int())
	require.EqualValues(t, 600, c.Do("WORKING", fourth).Int())
	require.True(t, c.Do("WORKING", a).Err("LOCKLOST"))
	require.EqualValues(t, 1, c.Do("ACKJOB", third).Int())
	require.EqualValues(t, 600, c.Do("WORKING", b).Int(), "a slot is free")
	require.True(t, c.Do("WORKING", a).Err("LOCKLOST"))
}

// Options that don't go together, and settings.
func TestLimitOptions(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	for options, want := range map[string]string{
		"UNIQUE until-processed LIMIT 0":                                   "ERR LIMIT must be between 1 and 256",
		"UNIQUE until-processed LIMIT 257":                                 "ERR LIMIT must be between 1 and 256",
		"UNIQUE until-processed LIMIT x":                                   "ERR LIMIT must be between 1 and 256",
		"UNIQUE until-processed LIMIT":                                     "ERR syntax error",
		"LIMIT 2":                                                          "ERR KEY, SCOPE, LIMIT,",
		"UNIQUE until-processed LIMIT 2 ONCONFLICT return":                 "ERR ONCONFLICT return, replace and debounce need LIMIT 1",
		"UNIQUE until-processed ONCONFLICT replace LIMIT 2":                "ERR ONCONFLICT return, replace and debounce need LIMIT 1",
		"UNIQUE before-and-during-processing LIMIT 256 ONCONFLICT replace": "ERR ONCONFLICT return, replace and debounce need LIMIT 1",
	} {
		v := tryUnique(c, "q", "b", options)
		require.True(t, v.Err(want), "%s: %v", options, v)
		require.Zero(t, c.Do("QLEN", "q").Int())
	}
	one := addUnique(t, c, "q", "b", "UNIQUE until-processed LIMIT 1 ONCONFLICT return")
	assert.Equal(t, one, tryUnique(c, "q", "b", "UNIQUE until-processed LIMIT 1 ONCONFLICT return").Str)
	for i := range 256 {
		addUnique(t, c, "many", fmt.Sprint(i), "UNIQUE until-processed KEY k LIMIT 256")
	}
	require.True(t, tryUnique(c, "many", "x", "UNIQUE until-processed KEY k LIMIT 256").Null)

	ok(t, c.Do("QCONFIG", "SET", "s", "UNIQUE", "until-processed", "KEY", "k", "LIMIT", 2))
	assert.Equal(t, "2", c.Do("QCONFIG", "GET", "s").Field("limit").Str)
	add(t, c, "s", "1", 0)
	add(t, c, "s", "2", 0)
	require.True(t, c.Do("ADDJOB", "s", "3", 0).Null)
	add(t, c, "s", "3", 0, "LIMIT", 3)
	require.True(t, c.Do("QCONFIG", "SET", "s", "ONCONFLICT", "replace").Err("ERR ONCONFLICT return, replace and debounce need LIMIT 1"))
	require.True(t, c.Do("QCONFIG", "SET", "s", "LIMIT", "257").Err("ERR LIMIT must be between 1 and 256"))
	v := c.Do("ADDJOB", "s", "4", 0, "ONCONFLICT", "return")
	assert.False(t, v.Null, "the setting gives way to what the client says: %v", v)
	ok(t, c.Do("QCONFIG", "SET", "r", "UNIQUE", "until-processed", "KEY", "k", "ONCONFLICT", "return"))
	add(t, c, "r", "1", 0, "LIMIT", 2)
	add(t, c, "r", "2", 0, "LIMIT", 2)
	require.True(t, c.Do("ADDJOB", "r", "3", 0, "LIMIT", 2).Null)
	require.EqualValues(t, 1, c.Do("QCONFIG", "UNSET", "s", "LIMIT").Int())
	assert.Equal(t, "", c.Do("QCONFIG", "GET", "s").Field("limit").Str)
	require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
}
