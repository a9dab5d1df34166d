package single

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// B1: of a burst the last body runs, a delay after the last ADDJOB.
func TestLifeB1(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	debounce := until + "DELAY 3 ONCONFLICT debounce 60"
	id := addUnique(t, c, "q", "0", debounce)
	var last time.Time
	for i := range 5 {
		harness.Await(t, 10*time.Second, "a part of the delay to pass", func() bool { return due(c, id) < 2500 })
		last = time.Now()
		require.Equal(t, id, addUnique(t, c, "q", string('1'+rune(i)), debounce))
	}
	again := s.Info("jobmesh", "jobmesh_unique_debounced") == "5" // otherwise the machine stood still, and the job was due before
	v := c.Do("GETJOB", "TIMEOUT", 30_000, "FROM", "q")
	require.Len(t, v.Elems, 1)
	assert.Equal(t, []string{"q", id, "5"}, v.Elems[0].Strings())
	if again {
		assert.GreaterOrEqual(t, time.Since(last), 2600*time.Millisecond)
	}
	none(t, c, "q")
	assert.Equal(t, "5", s.Info("jobmesh", "jobmesh_unique_replaced"))
	assert.Equal(t, int64(0), c.Do("SHOW", id).Field("additional-deliveries").Int(), "its queueing isn't an additional delivery")
}

// B2: an endless burst puts a job off up to its bound, which counts from its creation.
func TestLifeB2(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	debounce := until + "DELAY 4 ONCONFLICT debounce 6"
	began := time.Now()
	id := addUnique(t, c, "q", "first", debounce)
	harness.Await(t, 10*time.Second, "the delay to pass nearly", func() bool { return due(c, id) < 1500 })
	require.Equal(t, id, addUnique(t, c, "q", "second", debounce))
	again := s.Info("jobmesh", "jobmesh_unique_debounced") == "1"
	harness.Await(t, 20*time.Second, "the job to be due in spite of the burst", func() bool {
		require.Equal(t, id, addUnique(t, c, "q", "more", debounce))
		return state(c, id) == "queued"
	})
	if again {
		assert.GreaterOrEqual(t, time.Since(began), 5600*time.Millisecond)
	}
	require.Equal(t, id, addUnique(t, c, "q", "last", debounce))
	assert.Equal(t, "queued", state(c, id), "it is due: only its body is replaced")
	assert.Equal(t, "last", c.Do("SHOW", id).Field("body").Str)
	// A bound that is over lets it run at once.
	other := addUnique(t, c, "q", "slow", "UNIQUE until-processed KEY b DELAY 1000")
	harness.Await(t, 10*time.Second, "a second to pass", func() bool { return due(c, other) < 998_900 })
	require.Equal(t, other, addUnique(t, c, "q", "now", "UNIQUE until-processed KEY b DELAY 1000 ONCONFLICT debounce 1"))
	harness.Await(t, 10*time.Second, "the job", func() bool { return state(c, other) == "queued" })
}

// B5: a job that was put off after a failure gets the body, and keeps its time. One that runs keeps its body.
func TestLifeB5(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		for _, conflict := range []string{"replace", "debounce 6000"} {
			key := "UNIQUE until-processed KEY " + conflict[:7] + " DELAY 1 "
			id := addUnique(t, c, "q", "first", key)
			require.Equal(t, id, c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q").Elems[0].Elems[1].Str)
			assert.True(t, tryUnique(c, "q", "no", key+"ONCONFLICT "+conflict).Err("DUPLICATE "+id), "it runs")
			require.Equal(t, int64(1), c.Do("NACK", id, "DELAY", 500, "REASON", "why").Int())
			require.Equal(t, id, addUnique(t, c, "q", "second", key+"DELAY 5000 ONCONFLICT "+conflict))
			comeBack(t, s, mode)
			c = s.Dial()
			shown := c.Do("SHOW", id)
			assert.Equal(t, "second", shown.Field("body").Str)
			assert.Equal(t, int64(1), shown.Field("nacks").Int())
			assert.InDelta(t, 480_000, shown.Field("next-requeue-within").Int(), 20_000, "it keeps its time")
			require.Equal(t, id, addUnique(t, c, "q", "third", key+"DELAY 5000 ONCONFLICT "+conflict))
			c.Do("ENQUEUE", id)
			assert.Equal(t, []string{"third"}, order(c, "q"))
			c.Do("ACKJOB", id)
		}
	}, "reload", "aof")
}

// A delay that began anew is saved, like the body, and so are the key and LOCKTTL, which counts from when the job is due.
func TestDebounceOverRestarts(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		id := addUnique(t, c, "q", "key", "UNIQUE until-processed DELAY 100 LOCKTTL 5")
		require.Equal(t, id, addUnique(t, c, "q", "body", "UNIQUE until-processed KEY key DELAY 5000.5 LOCKTTL 5 ONCONFLICT debounce 50000"))
		comeBack(t, s, mode)
		c = s.Dial()
		shown := c.Do("SHOW", id)
		assert.Equal(t, "body", shown.Field("body").Str)
		assert.InDelta(t, 4_980_000, shown.Field("next-requeue-within").Int(), 20_500)
		assert.Equal(t, "wait", shown.Field("lock").Str, "its key was the body")
		assert.Equal(t, int64(1), c.Do("QSTAT", "q").Field("delayed").Int())
		require.Equal(t, id, addUnique(t, c, "q", "x", "UNIQUE until-processed KEY key DELAY 1 ONCONFLICT debounce 50000"))
		harness.Await(t, 10*time.Second, "the job", func() bool { return state(c, id) == "queued" })
		harness.Await(t, 20*time.Second, "its LOCKTTL to end", func() bool { return c.Do("SHOW", id).Field("lock").Str != "wait" })
	}, "reload", "aof", "aof-kill")
}

// Options that contradict each other are refused, and nothing has changed. In MULTI and scripts, and by ADDJOBS, it is as outside.
func TestDebounceOptions(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	id := addUnique(t, c, "q", "first", until+"DELAY 1000")
	before := c.Do("SHOW", id)
	for options, refusal := range map[string]string{
		until + "ONCONFLICT debounce 5":                                       "ERR ONCONFLICT debounce needs a DELAY",
		until + "DELAY 0 ONCONFLICT debounce 5":                               "ERR ONCONFLICT debounce needs a DELAY",
		until + "AT 2000000000 ONCONFLICT debounce 5":                         "ERR ONCONFLICT debounce needs a DELAY",
		until + "AT 1 ONCONFLICT debounce 5":                                  "ERR ONCONFLICT debounce needs a DELAY",
		until + "DELAY 1 ONCONFLICT debounce":                                 "ERR ONCONFLICT must be",
		until + "DELAY 1 ONCONFLICT debounce 0":                               "ERR ONCONFLICT must be",
		until + "DELAY 1 ONCONFLICT debounce x":                               "ERR ONCONFLICT must be",
		until + "DELAY 1 ONCONFLICT debounce 2147483648":                      "ERR ONCONFLICT must be",
		until + "DELAY 1 TTL 50 ONCONFLICT debounce 50":                       "ERR The specified debounce is greater than TTL.",
		"UNIQUE window TTL 5 KEY k DELAY 1 ONCONFLICT debounce 5":             "ERR ONCONFLICT debounce is for",
		"UNIQUE during-processing KEY k DELAY 1 ONCONFLICT debounce 5":        "ERR LOCKTTL and ONCONFLICT are",
		"UNIQUE none KEY k DELAY 1 ONCONFLICT debounce 5":                     "ERR KEY, SCOPE",
		until + "DELAY 1 ONCONFLICT debounce 5 RUNTTL 5":                      "ERR RUNTTL and ONBUSY",
		until + "DELAY 3000000000 ONCONFLICT debounce 5":                      "ERR",
		until + "DELAY 1 AT 2000000000 ONCONFLICT debounce 5":                 "ERR AT and DELAY exclude each other",
		until + "DELAY 1 MAXLEN 0 ONCONFLICT debounce 5":                      "ERR",
		"UNIQUE until-processed KEY k SCOPE no DELAY 1 ONCONFLICT debounce 5": "ERR SCOPE",
	} {
		assert.True(t, tryUnique(c, "q", "no", options).Err(refusal), "%s: %v", options, tryUnique(c, "q", "no", options))
	}
	assert.Equal(t, before.Field("body").Str, c.Do("SHOW", id).Field("body").Str)
	assert.InDelta(t, 980_000, due(c, id), 20_000)

	require.Equal(t, "OK", c.Do("MULTI").Str)
	c.Do("ADDJOB", "q", "multi", 0, "UNIQUE", "until-processed", "KEY", "k", "DELAY", 5000, "ONCONFLICT", "debounce", 50_000)
	assert.Equal(t, id, c.Do("EXEC").Elems[0].Str)
	assert.InDelta(t, 4_980_000, due(c, id), 20_000)
	script := "return redis.call('ADDJOB', 'q', 'script', 0, 'UNIQUE', 'until-processed', 'KEY', 'k', 'DELAY', 500, 'ONCONFLICT', 'debounce', 50000)"
	assert.Equal(t, id, c.Do("EVAL", script, 0).Str)
	assert.InDelta(t, 480_000, due(c, id), 20_000)
	v := c.Do("ADDJOBS", "q", 0, "UNIQUE", "until-processed", "DELAY", 5000, "ONCONFLICT", "debounce", 50_000, "PAIRS", "k", "bulk", "new", "one", "k", "again")
	require.Len(t, v.Elems, 3)
	assert.Equal(t, id, v.Elems[0].Str)
	assert.NotEqual(t, id, v.Elems[1].Str)
	assert.Equal(t, id, v.Elems[2].Str)
	assert.Equal(t, "again", c.Do("SHOW", id).Field("body").Str)
	assert.InDelta(t, 4_980_000, due(c, id), 20_000)

	// Settings that don't fit an ADDJOB count as replace; those of the ADDJOB are refused.
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "q", "UNIQUE", "until-processed", "ONCONFLICT", "debounce", 50_000, "DELAY", 300).Str)
	assert.Equal(t, "debounce 50000", c.Do("QCONFIG", "GET", "q").Field("onconflict").Str)
	require.Equal(t, id, addUnique(t, c, "q", "settings", "KEY k"))
	assert.InDelta(t, 280_000, due(c, id), 20_000)
	for _, options := range []string{"KEY k DELAY 0", "KEY k AT 2000000000", "KEY k ONCONFLICT replace DELAY 5"} {
		require.Equal(t, id, addUnique(t, c, "q", options, options))
		assert.InDelta(t, 280_000, due(c, id), 20_000, options)
		assert.Equal(t, options, c.Do("SHOW", id).Field("body").Str)
	}
	require.NotEmpty(t, addUnique(t, c, "q", "window", "UNIQUE window TTL 5 KEY w"))
	assert.True(t, c.Do("QCONFIG", "SET", "w", "UNIQUE", "window", "TTL", 5, "ONCONFLICT", "debounce", 5).Err("ERR ONCONFLICT debounce is for"))
	assert.True(t, c.Do("QCONFIG", "SET", "w", "UNIQUE", "until-processed", "TTL", 5, "ONCONFLICT", "debounce", 5).Err("ERR The specified debounce"))
}

// A job that is moved, runs or is held back is dealt with as by replace. Another user's job isn't changed.
func TestDebounceElsewhere(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	// before-processing: the key is free from the delivery on.
	before := "UNIQUE before-processing KEY k DELAY 1000 ONCONFLICT debounce 50000"
	id := addUnique(t, c, "q", "one", before)
	require.Equal(t, id, addUnique(t, c, "q", "two", before))
	c.Do("ENQUEUE", id)
	assert.Equal(t, []string{"two"}, order(c, "q"))
	next := addUnique(t, c, "q", "three", before)
	require.NotEqual(t, id, next)
	c.Do("ACKJOB", id)
	// The job has moved, and its time (MOVEJOB … AT) begins anew.
	require.Equal(t, int64(1), c.Do("MOVEJOB", next, "TO", "p", "AT", time.Now().Unix()+40_000).Int())
	require.Equal(t, next, addUnique(t, c, "p", "four", before))
	assert.InDelta(t, 980_000, due(c, next), 20_000)
	assert.Equal(t, "four", c.Do("SHOW", next).Field("body").Str)
	// A job that is blocked isn't delayed: only its body is replaced.
	kin := addUnique(t, c, "f", "blocked", "UNIQUE until-processed KEY f AFTER "+next)
	require.Equal(t, kin, addUnique(t, c, "f", "other", "UNIQUE until-processed KEY f DELAY 5 ONCONFLICT debounce 50"))
	assert.Equal(t, "other", c.Do("SHOW", kin).Field("body").Str)

	// A job with RETRY 0 gets another time as well, and is delivered once.
	once := addUnique(t, c, "r", "once", "UNIQUE until-processed KEY r RETRY 0 DELAY 1000")
	require.Equal(t, once, addUnique(t, c, "r", "soon", "UNIQUE until-processed KEY r RETRY 0 DELAY 1 ONCONFLICT debounce 50"))
	v := c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "r")
	require.Len(t, v.Elems, 1)
	assert.Equal(t, []string{"r", once, "soon"}, v.Elems[0].Strings())
	assert.True(t, tryUnique(c, "r", "late", "UNIQUE until-processed KEY r RETRY 0 DELAY 1 ONCONFLICT debounce 50").Err("DUPLICATE "+once))

	c.Do("ACL", "SETUSER", "u", "on", ">u", "+@all", "~mine", "%R~q")
	u := s.Dial()
	require.Equal(t, "OK", u.Do("AUTH", "u", "u").Str)
	mesh := "UNIQUE until-processed SCOPE mesh KEY acl DELAY 1000 ONCONFLICT debounce 50000"
	foreign := addUnique(t, c, "q", "foreign", mesh)
	assert.True(t, tryUnique(u, "mine", "bad", mesh).Err("DUPLICATE a job of a queue that the ACL excludes"))
	assert.Equal(t, "foreign", c.Do("SHOW", foreign).Field("body").Str)
	c.Do("PAUSE", "q", "in")
	assert.True(t, tryUnique(c, "q", "bad", mesh).Err("PAUSED"))
}

// A delay that begins anew is told by the event move, once, with the new delay. A body that is replaced alone tells nothing.
func TestDebounceIsTold(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("jobmesh.events all"))
	c := s.Dial()
	id := addUnique(t, c, "q", "first", until+"DELAY 600")
	require.Equal(t, id, addUnique(t, c, "q", "second", until+"DELAY 600 ONCONFLICT replace"))
	require.Equal(t, id, addUnique(t, c, "q", "third", until+"DELAY 900 ONCONFLICT debounce 6000"))
	entries := s.Do("XRANGE", "jobmesh:events", "-", "+").Elems
	require.Len(t, entries, 2)
	assert.Equal(t, "add", entries[0].Elems[1].Field("event").Str)
	e := entries[1].Elems[1]
	for field, want := range map[string]string{"event": "move", "id": id, "from": "q", "to": "q", "why": "debounce"} {
		assert.Equal(t, want, e.Field(field).Str, field)
	}
	delay, err := strconv.Atoi(e.Field("delay").Str)
	require.NoError(t, err)
	assert.InDelta(t, 900_000, delay, 1000)
}
