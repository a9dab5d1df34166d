package single

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// slotsMade fetches all jobs of a queue, and returns their slots, in the order of the jobs, and their IDs.
func slotsMade(t *testing.T, c *harness.Conn, queue string) (slots []int64, ids []string) {
	t.Helper()
	for {
		v := c.Do("GETJOB", "NOHANG", "COUNT", 100, "FROM", queue)
		if v.NullArray() || len(v.Elems) == 0 {
			return slots, ids
		}
		for _, j := range v.Elems {
			id := j.Elems[1].Str
			slots, ids = append(slots, c.Do("SHOW", id).Field("slot").Int()), append(ids, id)
		}
	}
}

// awaitCron waits until a field of CRON GET has a value of at least so much.
func awaitCron(t *testing.T, c *harness.Conn, name, field string, least int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		v := c.Do("CRON", "GET", name).Field(field)
		return !v.Null && v.Int() >= least
	}, 30*time.Second, 20*time.Millisecond, "%s of %s", field, name)
}

// inARow checks that slots follow each other, each once.
func inARow(t *testing.T, slots []int64, every int64) {
	t.Helper()
	for i := 1; i < len(slots); i++ {
		require.Equal(t, slots[i-1]+every, slots[i], "%v", slots)
	}
}

// T1 on one node: EVERY 1 has one job for each second.
func TestLifeT1Alone(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	next := c.Do("CRON", "SET", "each", "EVERY", 1, "MISSED", "all", "JOB", "q", "body", "RETRY", 300).Int()
	awaitCron(t, c, "each", "made", 5)
	c.Do("CRON", "PAUSE", "each")
	slots, ids := slotsMade(t, c, "q")
	require.GreaterOrEqual(t, len(slots), 5)
	assert.Equal(t, next, slots[0])
	inARow(t, slots, 1)
	v := c.Do("CRON", "GET", "each")
	assert.Equal(t, ids[len(ids)-1], v.Field("last-id").Str)
	assert.Equal(t, slots[len(slots)-1], v.Field("last").Int())
	assert.Equal(t, "made", v.Field("last-outcome").Str)
	assert.Equal(t, int64(len(slots)), v.Field("made").Int())
	assert.True(t, v.Field("next").Null, "it is paused")
	assert.Equal(t, "each", c.Do("SHOW", ids[0]).Field("cron").Str)
	assert.Contains(t, c.Do("INFO", "jobmesh").Str, fmt.Sprintf("cron_made:%d", len(slots)))

	made := v.Field("made").Int()
	require.True(t, c.Do("CRON", "RESUME", "each").Is(1))
	require.True(t, c.Do("CRON", "RESUME", "each").Is(0))
	resumed := time.Now().Unix()
	awaitCron(t, c, "each", "made", made+1)
	slots, _ = slotsMade(t, c, "q")
	assert.GreaterOrEqual(t, slots[0], resumed, "slots of the pause aren't made")
}

// T5: the node is down over three slots: skip makes none of them, last one, all three.
func TestLifeT5(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		missed          string
		made, lateSlots int64
	}{{"skip", 0, 3}, {"last", 1, 2}, {"all", 3, 0}} {
		t.Run(tc.missed, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.WithConfig("appendonly yes"), harness.WithClock(t))
			c := s.Dial()
			// The next slot is a moment's away from a full hour, so no further one comes while the test runs.
			ahead := time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + 10*time.Minute))
			s.SetClock(ahead)
			next := c.Do("CRON", "SET", "hourly", "LINE", "@hourly", "MISSED", tc.missed, "JOB", "q", "body", "RETRY", 300).Int()
			s.Stop()
			s.SetClock(ahead + 3*time.Hour)
			s.Restart()
			c = s.Dial()
			v := c.Do("CRON", "GET", "hourly")
			assert.Equal(t, next+3*3600, v.Field("next").Int())
			if tc.made > 0 {
				awaitCron(t, c, "hourly", "made", tc.made)
			}
			require.Eventually(t, func() bool { return c.Do("CRON", "GET", "hourly").Field("missed-slots").Int() == tc.lateSlots }, 10*time.Second, 20*time.Millisecond)
			slots, _ := slotsMade(t, c, "q")
			var want []int64
			for i := 3 - tc.made; i < 3; i++ {
				want = append(want, next+i*3600)
			}
			assert.Equal(t, want, slots)
			assert.Equal(t, tc.made, c.Do("CRON", "GET", "hourly").Field("made").Int())
		})
	}
}

// A clock that is set ahead misses slots, and one that is set back makes none again.
func TestCronClockIsSet(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithClock(t))
	c := s.Dial()
	ahead := time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + 10*time.Minute))
	s.SetClock(ahead)
	next := c.Do("CRON", "SET", "hourly", "LINE", "@hourly", "JOB", "q", "body", "RETRY", 300).Int()
	s.SetClock(ahead + 2*time.Hour)
	awaitCron(t, c, "hourly", "made", 1)
	s.SetClock(ahead)
	s.SetClock(ahead + 50*time.Minute) // the slot that was left out
	awaitCron(t, c, "hourly", "next", next+2*3600)
	s.SetClock(ahead + 2*time.Hour)
	slots, _ := slotsMade(t, c, "q")
	assert.Equal(t, []int64{next + 3600}, slots)
}

// T6: after a restart with AOF no slot is made again. An RDB that is older than the job leads to a job with the same ID.
func TestLifeT6(t *testing.T) {
	t.Parallel()
	for _, aof := range []bool{true, false} {
		t.Run(fmt.Sprint("aof=", aof), func(t *testing.T) {
			t.Parallel()
			config := "appendonly no"
			if aof {
				config = "appendonly yes"
			}
			s := harness.Start(t, harness.WithConfig(config), harness.WithClock(t))
			c := s.Dial()
			before := time.Until(time.Now().Truncate(time.Hour).Add(time.Hour - time.Minute))
			s.SetClock(before)
			c.Do("CRON", "SET", "hourly", "LINE", "@hourly", "JOB", "q", "body", "RETRY", 300)
			if !aof {
				require.Equal(t, "OK", c.Do("SAVE").Str)
			}
			s.SetClock(before + time.Minute + time.Second)
			awaitCron(t, c, "hourly", "made", 1)
			id := c.Do("CRON", "GET", "hourly").Field("last-id").Str
			if aof {
				c.Do("ACKJOB", id)
				s.AwaitLogged()
			}
			s.Kill()
			s.Restart()
			c = s.Dial()
			if aof {
				assert.Equal(t, id, c.Do("CRON", "GET", "hourly").Field("last-id").Str)
				assert.True(t, c.Do("GETJOB", "TIMEOUT", 1500, "FROM", "q").NullArray(), "the slot was made again")
				return
			}
			v := c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
			require.False(t, v.NullArray())
			assert.Equal(t, id, v.Elems[0].Elems[1].Str)
		})
	}
}

// T8 on one node: an entry that is set again replaces the whole of the former one.
func TestLifeT8Alone(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	c.Do("CRON", "SET", "e", "EVERY", 1, "JOB", "q", "first", "RETRY", 300)
	awaitCron(t, c, "e", "made", 1)
	c.Do("CRON", "SET", "e", "EVERY", 1, "JOB", "q2", "second", "RETRY", 300)
	v := c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q2")
	require.False(t, v.NullArray())
	assert.Equal(t, "second", v.Elems[0].Elems[2].Str)
	assert.GreaterOrEqual(t, c.Do("CRON", "GET", "e").Field("made").Int(), int64(2), "it counts on")
	require.True(t, c.Do("CRON", "DEL", "e", "none").Is(1))
	assert.True(t, c.Do("CRON", "GET", "e").NullString() || c.Do("CRON", "GET", "e").Null)
	assert.Empty(t, c.Do("CRON", "LIST").Elems)
	for _, command := range []string{"NEXT", "RUN"} {
		assert.True(t, c.Do("CRON", command, "e").Err("NOCRON"), command)
	}
}

// T9 on one node.
func TestLifeT9Alone(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial3()
	next := c.Do("CRON", "SET", "b", "LINE", "30 2 * * mon-fri", "ZONE", "Europe/Berlin", "UNTIL", 4102444800, "JOB", "q", "body", "PRIORITY", 5, "QUORUM", "any").Int()
	c.Do("CRON", "SET", "a", "EVERY", 86400, "OFFSET", 3600, "MISSED", "skip", "FROM", 4102444800, "JOB", "q2", "other")
	var slots []int64
	for _, v := range c.Do("CRON", "NEXT", "b", "COUNT", 5).Elems {
		slots = append(slots, v.Int())
	}
	require.Len(t, slots, 5)
	assert.Equal(t, next, slots[0])
	for i, slot := range slots {
		at := time.Unix(slot, 0).UTC()
		assert.True(t, at.Hour() == 0 || at.Hour() == 1, "2:30 in Berlin: %v", at)
		assert.Equal(t, 30, at.Minute())
		assert.True(t, i == 0 || slot > slots[i-1])
	}
	assert.Len(t, c.Do("CRON", "NEXT", "b").Elems, 1)
	v := c.Do("CRON", "GET", "b")
	for field, want := range map[string]string{"name": "b", "line": "30 2 * * mon-fri", "zone": "Europe/Berlin", "missed": "last", "paused": "no", "queue": "q", "body": "body", "last-outcome": "none"} {
		assert.Equal(t, want, v.Field(field).Str, field)
	}
	assert.Equal(t, []string{"PRIORITY", "5", "QUORUM", "any"}, v.Field("options").Strings())
	assert.Equal(t, int64(4102444800), v.Field("until").Int())
	assert.True(t, v.Field("from").Null)
	v = c.Do("CRON", "GET", "a")
	assert.Equal(t, int64(86400), v.Field("every").Int())
	assert.Equal(t, int64(3600), v.Field("offset").Int())
	assert.Equal(t, int64(4102444800), v.Field("from").Int())
	assert.Equal(t, int64(4102444800+3600), v.Field("next").Int())
	list := c.Do("CRON", "LIST").Elems
	require.Len(t, list, 2)
	assert.Equal(t, "a", list[0].Elems[0].Str)
	assert.Equal(t, "every 86400 offset 3600", list[0].Elems[2].Str)
	assert.Equal(t, "q", list[1].Elems[1].Str)
	assert.Equal(t, "30 2 * * mon-fri Europe/Berlin", list[1].Elems[2].Str)
	assert.Equal(t, next, list[1].Elems[3].Int())
	assert.True(t, list[1].Elems[4].Null)
	assert.Len(t, c.Do("CRON", "LIST", "MATCH", "b*").Elems, 1)
}

// T10: RUN adds a job that is that of no slot.
func TestLifeT10(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	c.Do("CRON", "SET", "e", "EVERY", 86400, "JOB", "q", "body", "PRIORITY", 7)
	before := c.Do("CRON", "GET", "e").Field("last")
	id := c.Do("CRON", "RUN", "e").Str
	v := c.Do("SHOW", id)
	assert.Equal(t, "e", v.Field("cron").Str)
	assert.Equal(t, int64(7), v.Field("priority").Int())
	assert.NotContains(t, v.Strings(), "slot")
	assert.Equal(t, before, c.Do("CRON", "GET", "e").Field("last"))
	assert.NotEqual(t, id, c.Do("CRON", "RUN", "e").Str)
	assert.Equal(t, int64(2), c.Do("QLEN", "q").Int())
}

// T11: a slot whose job would meet another with its key makes none, and that is counted.
func TestLifeT11(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	c.Do("CRON", "SET", "e", "EVERY", 1, "JOB", "q", "body", "RETRY", 300, "UNIQUE", "until-processed", "KEY", "e")
	v := c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
	require.False(t, v.NullArray())
	require.Eventually(t, func() bool { return c.Do("CRON", "GET", "e").Field("last-outcome").Str == "dropped" }, 20*time.Second, 20*time.Millisecond)
	assert.Equal(t, int64(1), c.Do("CRON", "GET", "e").Field("made").Int())
	assert.True(t, c.Do("CRON", "GET", "e").Field("last-id").Null)
	assert.NotContains(t, c.Do("INFO", "jobmesh").Str, "cron_dropped:0")
	c.Do("ACKJOB", v.Elems[0].Elems[1].Str)
	assert.False(t, c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q").NullArray(), "the next one")
}

// T12: an entry that is deleted and set again has other jobs.
func TestLifeT12(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithClock(t))
	c := s.Dial()
	var ids []string
	for range 2 {
		before := time.Until(time.Now().Truncate(time.Hour).Add(time.Hour - time.Minute))
		s.SetClock(before)
		// The second time the clock is set back to before the slot.
		c.Do("CRON", "SET", "e", "LINE", "@hourly", "JOB", "q", "body", "RETRY", 300)
		s.SetClock(before + time.Minute + time.Second)
		awaitCron(t, c, "e", "made", 1)
		ids = append(ids, c.Do("CRON", "GET", "e").Field("last-id").Str)
		require.True(t, c.Do("CRON", "DEL", "e").Is(1))
	}
	assert.NotEqual(t, ids[0], ids[1])
	assert.Equal(t, int64(2), c.Do("QLEN", "q").Int())
}

// A queue that takes no job refuses a slot.
func TestCronRefused(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	c.Do("PAUSE", "q", "in")
	c.Do("CRON", "SET", "e", "EVERY", 1, "JOB", "q", "body")
	require.Eventually(t, func() bool { return c.Do("CRON", "GET", "e").Field("last-outcome").Str == "refused" }, 20*time.Second, 20*time.Millisecond)
	c.Do("PAUSE", "q", "none")
	awaitCron(t, c, "e", "made", 1)
	c.Do("CRON", "SET", "e", "EVERY", 1, "JOB", "q2", "body", "MAXLEN", 1)
	require.Eventually(t, func() bool { return c.Do("CRON", "GET", "e").Field("last-outcome").Str == "refused" }, 20*time.Second, 20*time.Millisecond)
	assert.Equal(t, int64(1), c.Do("QLEN", "q2").Int())
	assert.True(t, c.Do("SET", "string", "x").Str == "OK")
	c.Do("CRON", "SET", "e", "EVERY", 1, "JOB", "string", "body")
	require.Eventually(t, func() bool { return c.Do("CRON", "GET", "e").Field("last-outcome").Str == "refused" }, 20*time.Second, 20*time.Millisecond)
}

func TestCronErrors(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	set := func(args ...any) harness.Value { return c.Do(append([]any{"CRON", "SET"}, args...)...) }
	for text, args := range map[string][]any{
		"ERR EVERY must be":                  {"e", "EVERY", 0, "JOB", "q", "b"},
		"ERR OFFSET must be":                 {"e", "EVERY", 5, "OFFSET", 5, "JOB", "q", "b"},
		"ERR MISSED must be":                 {"e", "EVERY", 5, "MISSED", "some", "JOB", "q", "b"},
		"ERR LINE has a wrong minute":        {"e", "LINE", "61 * * * *", "JOB", "q", "b"},
		"ERR LINE has a wrong weekday":       {"e", "LINE", "1 * * * 9", "JOB", "q", "b"},
		"ERR LINE has a wrong minute, \"*/9": {"e", "LINE", "*/9223372036854775807 * * * *", "JOB", "q", "b"},
		"ERR LINE has a wrong hour, \"3,0-5": {"e", "LINE", "0 3,0-5/25 * * *", "JOB", "q", "b"},
		"ERR LINE must have five fields":     {"e", "LINE", "", "JOB", "q", "b"},
		"ERR there is no time zone":          {"e", "LINE", "1 * * * *", "ZONE", "Mars", "JOB", "q", "b"},
		"ERR the line never comes":           {"e", "LINE", "0 0 30 2 *", "JOB", "q", "b"},
		"ERR no slot lies":                   {"e", "EVERY", 5, "UNTIL", 100, "JOB", "q", "b"},
		"ERR FROM and UNTIL":                 {"e", "EVERY", 5, "FROM", 200, "UNTIL", 100, "JOB", "q", "b"},
		"ERR syntax error":                   {"e", "EVERY", 5, "LINE", "* * * * *", "JOB", "q", "b"},
		"ERR a recurring job can't":          {"e", "EVERY", 5, "JOB", "q", "b", "ASYNC"},
		"ERR the name of a":                  {"", "EVERY", 5, "JOB", "q", "b"},
		"ERR KEY, SCOPE":                     {"e", "EVERY", 5, "JOB", "q", "b", "KEY", "k"},
		"ERR PRIORITY must":                  {"e", "EVERY", 5, "JOB", "q", "b", "PRIORITY", 1000},
		"ERR body, options":                  {"e", "EVERY", 5, "JOB", "q", string(make([]byte, 40_000))},
		"ERR a recurring job has at most":    append([]any{"e", "EVERY", 5, "JOB", "q", "b"}, make100()...),
		"ERR wrong number of arguments":      {"e", "EVERY", 5, "JOB", "q"},
		"ERR With RETRY set to 0":            {"e", "EVERY", 5, "JOB", "q", "b", "RETRY", 0, "REPLICATE", 2},
		"ERR The specified DELAY is greate":  {"e", "EVERY", 5, "JOB", "q", "b", "DELAY", 9, "TTL", 5},
	} {
		v := set(args...)
		assert.True(t, v.Err(text), "%v: %v", args, v)
	}
	assert.Empty(t, c.Do("CRON", "LIST").Elems, "a refusal changes nothing")
	assert.True(t, c.Do("CRON", "NEXT", "e", "COUNT", 0).Err("ERR COUNT"))
	for _, option := range [][]any{{"DEFERRED"}, {"AT", time.Now().Unix() + 100}} {
		assert.True(t, set(append([]any{"e", "EVERY", 5, "JOB", "q", "b"}, option...)...).Err("ERR a recurring job can't"), "%v", option)
	}
	assert.Contains(t, c.Do("CRON", "HELP").Strings()[0], "CRON <subcommand>")
	assert.Equal(t, []string{"q"}, c.Do("COMMAND", "GETKEYS", "CRON", "SET", "JOB", "EVERY", 5, "JOB", "q", "b").Strings())
}

func make100() (words []any) {
	for range 51 {
		words = append(words, "TTL", 60)
	}
	return words
}

// A user needs the right to the queue of a recurring job, and to its dead-letter queue.
func TestCronRights(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	c.Do("ACL", "SETUSER", "u", "on", ">pw", "~mine*", "+@all")
	u := s.Dial()
	require.Equal(t, "OK", u.Do("AUTH", "u", "pw").Str)
	assert.True(t, u.Do("CRON", "SET", "e", "EVERY", 60, "JOB", "others", "b").Err("NOPERM"))
	assert.True(t, u.Do("CRON", "SET", "e", "EVERY", 60, "JOB", "mine", "b", "DEAD", "others").Err("NOPERM"))
	assert.True(t, u.Do("CRON", "SET", "e", "EVERY", 60, "JOB", "mine", "b", "UNIQUE", "until-processed", "SCOPE", "mesh", "ONCONFLICT", "replace").Err("NOPERM"))
	assert.Positive(t, u.Do("CRON", "SET", "e", "EVERY", 60, "JOB", "mine", "b").Int())
	c.Do("CRON", "SET", "f", "EVERY", 60, "JOB", "others", "b")
	assert.True(t, u.Do("CRON", "RUN", "f").Err("NOPERM"))
}

// Recurring jobs, and how far they are, come back from each kind of file, and go to replicas, which make no jobs until they are promoted.
func TestCronIsSaved(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, config, preamble string }{{"rdb", "appendonly no", "yes"}, {"aof", "appendonly yes", "yes"}, {"aof of commands", "appendonly yes", "no"}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.WithConfig(tc.config, "aof-use-rdb-preamble "+tc.preamble))
			c := s.Dial()
			for i := range 50 {
				c.Do("CRON", "SET", "far"+strconv.Itoa(i), "LINE", "0 0 1 1 *", "JOB", "q", "body")
			}
			c.Do("CRON", "DEL", "far7")
			c.Do("CRON", "SET", "e", "EVERY", 1, "JOB", "q", "body", "RETRY", 300)
			awaitCron(t, c, "e", "made", 2)
			c.Do("CRON", "PAUSE", "e")
			state, list := c.Do("CRON", "GET", "e").String(), c.Do("CRON", "LIST").String()
			if tc.name == "rdb" {
				require.Equal(t, "OK", c.Do("SAVE").Str)
			} else {
				s.RewriteAOF()
			}
			s.Stop()
			s.Restart()
			c = s.Dial()
			assert.Equal(t, state, c.Do("CRON", "GET", "e").String())
			assert.Equal(t, list, c.Do("CRON", "LIST").String())

			r := harness.Start(t, harness.WithReplicaOf(s))
			r.AwaitSync()
			rc := r.Dial()
			assert.Equal(t, state, rc.Do("CRON", "GET", "e").String())
			assert.True(t, rc.Do("CRON", "RUN", "e").Err("READONLY"))
			c.Do("CRON", "RESUME", "e")
			made := c.Do("CRON", "GET", "e").Field("made").Int()
			awaitCron(t, c, "e", "made", made+1)
			awaitCron(t, rc, "e", "made", made+1)
			s.Stop()
			rc.Do("REPLICAOF", "NO", "ONE")
			made = rc.Do("CRON", "GET", "e").Field("made").Int()
			awaitCron(t, rc, "e", "made", made+1)
		})
	}
}

// In a transaction all but RUN of a unique job of a mesh works as outside.
func TestCronInMulti(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	c.Do("MULTI")
	c.Do("CRON", "SET", "e", "EVERY", 86400, "JOB", "q", "body")
	c.Do("CRON", "RUN", "e")
	c.Do("CRON", "PAUSE", "e")
	v := c.Do("EXEC").Elems
	require.Len(t, v, 3)
	assert.Positive(t, v[0].Int())
	assert.True(t, v[2].Is(1))
	assert.Equal(t, int64(1), c.Do("QLEN", "q").Int())
	assert.Positive(t, c.Do("EVAL", "return redis.call('CRON', 'SET', 'l', 'EVERY', '60', 'JOB', KEYS[1], 'b')", 1, "q").Int())
}
