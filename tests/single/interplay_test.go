package single

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// I3: what is new meets what there was: for each option or command (the rows) and each thing that it can meet (the columns) a test of that name. Each
// has a server of its own. A cell that isn't here is empty: the two have nothing to do with each other.
func TestLifeI3(t *testing.T) {
	t.Parallel()
	for row, cells := range map[string]map[string]func(*testing.T, *harness.Server, *harness.Conn){
		"NACK DELAY": nackMeets, "dying": dyingMeets, "MOVEJOB": moveMeets, "PRIORITY": priorityMeets, "limits": limitsMeet, "AT": timesMeet,
		"CRON": cronMeets, "KEEP": keepMeets, "SOFT": softMeets, "ADDJOBS": bulkMeets, "QFLUSH": flushMeets,
	} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			for column, test := range cells {
				t.Run(column, func(t *testing.T) {
					s := harness.Start(t)
					test(t, s, s.Dial())
				})
			}
		})
	}
}

type cells = map[string]func(*testing.T, *harness.Server, *harness.Conn)

// taken gets a job of a queue, which must be this one.
func taken(t *testing.T, c *harness.Conn, queue, id string) {
	t.Helper()
	require.Equal(t, id, get(t, c, queue))
}

// does sends a command, which must be answered with this number.
func does(t *testing.T, c *harness.Conn, want int64, args ...any) {
	t.Helper()
	v := c.Do(args...)
	require.True(t, v.Is(want), "%v: %v", args, v)
}

// family adds a deferred job, one that it blocks, and one that comes after another.
func family(t *testing.T, c *harness.Conn, queue string, options ...any) (deferred, blocked, parent, after string) {
	t.Helper()
	job := func(more ...any) string {
		return add(t, c, append(append([]any{queue, "b", 0}, more...), options...)...)
	}
	deferred = job("DEFERRED")
	parent = add(t, c, "parents", "b", 0)
	return deferred, job("BLOCKEDBY", deferred), parent, job("AFTER", parent)
}

var nackMeets = cells{
	"UNIQUE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		both := "UNIQUE before-and-during-processing KEY k "
		first := addUnique(t, c, "q", "1", both)
		taken(t, c, "q", first)
		second := addUnique(t, c, "q", "2", both)
		none(t, c, "q")
		does(t, c, 1, "NACK", first, "DELAY", 1000)
		taken(t, c, "q", second) // the run's lock was freed
		waits := addUnique(t, c, "w", "1", until)
		taken(t, c, "w", waits)
		does(t, c, 1, "NACK", waits, "DELAY", 1000)
		require.Empty(t, addUnique(t, c, "w", "2", until), "the waiting lock is kept")
		require.Equal(t, waits, addUnique(t, c, "w", "3", until+"ONCONFLICT replace"))
		v := c.Do("SHOW", waits)
		assert.Equal(t, "3", v.Field("body").Str)
		assert.Greater(t, v.Field("next-requeue-within").Int(), int64(900_000))
	},
	"DEFERRED": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		deferred, blocked, _, after := family(t, c, "q")
		does(t, c, 0, "NACK", deferred, blocked, after, "DELAY", 1)
		assert.Equal(t, []string{"deferred", "blocked", "blocked"}, []string{state(c, deferred), state(c, blocked), state(c, after)})
		assert.Zero(t, c.Do("SHOW", deferred).Field("nacks").Int())
	},
	"RETRY 0": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		c.Do("QCONFIG", "SET", "q", "BACKOFF", 1, 1)
		id := add(t, c, "q", "b", 0, "RETRY", 0)
		taken(t, c, "q", id)
		does(t, c, 0, "NACK", id, "DELAY", 0)
		does(t, c, 0, "NACK", id)
		assert.Zero(t, c.Do("QSTAT", "q").Field("delayed").Int())
	},
	"TTL": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := add(t, c, "q", "b", 0, "TTL", 1000, "RETRY", 100, "BACKOFF", 5000, 5000)
		taken(t, c, "q", id)
		does(t, c, 1, "NACK", id)
		assert.InDelta(t, 900_000, due(c, id), 5000, "its retry time is left then")
	},
	"MAXLEN": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := add(t, c, "q", "b", 0)
		taken(t, c, "q", id)
		does(t, c, 1, "NACK", id, "DELAY", 1)
		add(t, c, "q", "b", 0, "MAXLEN", 1)
		harness.Await(t, 10*time.Second, "it to come back in spite of that", func() bool { return c.Do("QLEN", "q").Is(2) })
	},
	"PAUSE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := add(t, c, "q", "b", 0, "BACKOFF", 1, 1)
		taken(t, c, "q", id)
		c.Do("PAUSE", "q", "in", "FOR", 3)
		began := time.Now()
		does(t, c, 1, "NACK", id)
		require.Equal(t, id, waitFor(t, c, "q"))
		assert.Greater(t, time.Since(began), 2500*time.Millisecond)
	},
}

var dyingMeets = cells{
	"UNIQUE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := dies(t, c, "q", "b", "UNIQUE", "until-processed", "KEY", "k")
		other := addUnique(t, c, "q", "2", until)
		require.NotEmpty(t, other, "the key is free")
		require.True(t, c.Do("MOVEJOB", id).Err("DUPLICATE "+other), "it is remembered")
		does(t, c, 1, "ACKJOB", other)
		does(t, c, 1, "MOVEJOB", id)
		require.Empty(t, addUnique(t, c, "q", "2", until))
	},
	"AFTER": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		parent := add(t, c, "q", "b", 0)
		child := add(t, c, "c", "b", 0, "AFTER", parent, "ONDEAD", "run")
		taken(t, c, "q", parent)
		does(t, c, 1, "NACK", parent, "DEAD")
		assert.Equal(t, "blocked", state(c, child))
		does(t, c, 1, "CANCELJOB", parent)
		taken(t, c, "c", child) // as ONDEAD says
	},
	"RETRY 0": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		waits := add(t, c, "q", "b", 0, "RETRY", 0, "TTL", 1, "ONEXPIRE", "dead")
		given := add(t, c, "g", "b", 0, "RETRY", 0)
		taken(t, c, "g", given)
		does(t, c, 0, "NACK", given, "DEAD")
		harness.Await(t, 10*time.Second, "the other to die", func() bool { return c.Do("SHOW", waits).Field("why").Str == "expired" })
		assert.Zero(t, c.Do("QLEN", "g:dead").Int())
	},
	"TTL": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := dies(t, c, "q", "b", "TTL", 1000, "DEADTTL", 5000)
		assert.InDelta(t, 5000, c.Do("SHOW", id).Field("ttl").Int(), 5)
	},
	"MAXLEN": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		c.Do("QCONFIG", "SET", "q:dead", "MAXLEN", 1)
		dies(t, c, "q", "1")
		dies(t, c, "q", "2")
		assert.Equal(t, int64(2), c.Do("QLEN", "q:dead").Int())
	},
	"PAUSE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		c.Do("PAUSE", "q:dead", "all")
		id := dies(t, c, "q", "1")
		assert.Equal(t, "q:dead", c.Do("SHOW", id).Field("queue").Str)
		assert.Equal(t, int64(1), c.Do("QLEN", "q:dead").Int())
	},
}

var moveMeets = cells{
	"UNIQUE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id, other := addUnique(t, c, "q", "1", until), addUnique(t, c, "p", "1", until)
		require.True(t, c.Do("MOVEJOB", id, "TO", "p").Err("DUPLICATE "+other))
		assert.Equal(t, []string{id}, waiting(c, "q"), "it stays")
		does(t, c, 1, "MOVEJOB", id, "TO", "r")
		require.Empty(t, addUnique(t, c, "r", "2", until), "it is claimed there")
		require.NotEmpty(t, addUnique(t, c, "q", "2", until))
	},
	"DEFERRED": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		deferred, blocked, parent, after := family(t, c, "q")
		does(t, c, 3, "MOVEJOB", deferred, blocked, after, "TO", "p")
		assert.Equal(t, []string{"deferred", "blocked", "blocked"}, []string{state(c, deferred), state(c, blocked), state(c, after)})
		c.Do("RELEASEJOB", deferred)
		does(t, c, 1, "ACKJOB", parent)
		does(t, c, 1, "ACKJOB", deferred)
		assert.ElementsMatch(t, []string{blocked, after}, waiting(c, "p"))
	},
	"RETRY 0": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		given, waits := add(t, c, "q", "1", 0, "RETRY", 0), add(t, c, "q", "2", 0, "RETRY", 0)
		taken(t, c, "q", given)
		does(t, c, 1, "MOVEJOB", given, waits, "TO", "p")
		require.True(t, c.Do("MOVEJOB", given, "TO", "p").Err("INPROGRESS"))
		taken(t, c, "p", waits)
	},
	"TTL": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		dead := dies(t, c, "q", "b", "TTL", 1000, "DEADTTL", 50)
		does(t, c, 1, "MOVEJOB", dead)
		assert.InDelta(t, 1000, c.Do("SHOW", dead).Field("ttl").Int(), 5, "whole again")
		does(t, c, 1, "MOVEJOB", dead, "TO", "p")
		assert.LessOrEqual(t, c.Do("SHOW", dead).Field("ttl").Int(), int64(1000))
	},
	"MAXLEN": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		c.Do("QCONFIG", "SET", "p", "MAXLEN", 1)
		add(t, c, "p", "b", 0)
		does(t, c, 1, "MOVEJOB", add(t, c, "q", "b", 0), "TO", "p")
		assert.Equal(t, int64(2), c.Do("QLEN", "p").Int())
	},
	"PAUSE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := add(t, c, "q", "b", 0)
		c.Do("PAUSE", "p", "in")
		require.True(t, c.Do("MOVEJOB", id, "TO", "p").Err("PAUSED"))
		require.True(t, c.Do("MOVEJOB", "FROM", "q", "TO", "p").Err("PAUSED"))
		assert.Equal(t, []string{id}, waiting(c, "q"))
	},
}

var priorityMeets = cells{
	"UNIQUE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		const run = "UNIQUE during-processing KEY k "
		first := addUnique(t, c, "q", "1", run)
		taken(t, c, "q", first)
		late, urgent := addUnique(t, c, "q", "2", run), addUnique(t, c, "q", "3", run+"PRIORITY 7")
		none(t, c, "q")
		does(t, c, 1, "ACKJOB", first)
		taken(t, c, "q", urgent) // it orders those that are held back
		does(t, c, 1, "ACKJOB", urgent)
		taken(t, c, "q", late)
	},
	"DEFERRED": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		deferred, blocked, parent, after := family(t, c, "q", "PRIORITY", 7)
		plain := add(t, c, "q", "b", 0)
		assert.Equal(t, []string{plain}, waiting(c, "q"))
		c.Do("RELEASEJOB", deferred)
		does(t, c, 1, "ACKJOB", parent)
		assert.Equal(t, []string{deferred, after, plain}, waiting(c, "q"), "from when they are let go")
		does(t, c, 1, "ACKJOB", deferred)
		assert.Equal(t, []string{blocked, after, plain}, waiting(c, "q"))
	},
	"RETRY 0": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		add(t, c, "q", "1", 0, "RETRY", 0)
		add(t, c, "q", "2", 0, "RETRY", 0, "PRIORITY", 7)
		assert.Equal(t, []string{"2", "1"}, order(c, "q"))
	},
}

var limitsMeet = cells{
	"UNIQUE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		for name, limit := range map[string][]any{"slots": {"CONCURRENCY", 2}, "rate": {"RATE", 2, 3600}} {
			c.Do(append([]any{"QCONFIG", "SET", name}, limit...)...)
			run := "UNIQUE during-processing KEY k "
			first, second := addUnique(t, c, name, "1", run), addUnique(t, c, name, "2", run)
			other := addUnique(t, c, name, "3", "UNIQUE during-processing KEY l")
			last := add(t, c, name, "4", 0)
			taken(t, c, name, first)
			taken(t, c, name, other) // the second of the key took no slot away
			none(t, c, name)
			does(t, c, 1, "ACKJOB", first)
			if name == "slots" {
				taken(t, c, name, second)
				none(t, c, name)
				does(t, c, 1, "ACKJOB", other)
				taken(t, c, name, last)
			}
		}
	},
	"DEFERRED": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
		deferred, _, _, after := family(t, c, "q")
		plain := add(t, c, "q", "b", 0)
		taken(t, c, "q", plain) // what is held back has no slot
		assert.NotContains(t, fields(c.Do("SHOW", deferred)), "queue-slot")
		assert.NotContains(t, fields(c.Do("SHOW", after)), "queue-slot")
		c.Do("RELEASEJOB", deferred)
		none(t, c, "q")
		does(t, c, 1, "ACKJOB", plain)
		require.Equal(t, deferred, waitFor(t, c, "q"))
	},
	"RETRY 0": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		for i, end := range []string{"ACKJOB", "NACK", "TTL"} {
			queue := fmt.Sprint("q", i)
			c.Do("QCONFIG", "SET", queue, "CONCURRENCY", 1)
			first := add(t, c, queue, "1", 0, "RETRY", 0, "TTL", 2)
			taken(t, c, queue, first)
			second := add(t, c, queue, "2", 0)
			none(t, c, queue)
			if end != "TTL" {
				c.Do(end, first)
			}
			require.Equal(t, second, waitFor(t, c, queue), end)
		}
	},
	"TTL": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
		first := add(t, c, "q", "1", 0, "RETRY", 0, "TTL", 1)
		taken(t, c, "q", first)
		second := add(t, c, "q", "2", 0)
		require.Equal(t, second, waitFor(t, c, "q"), "the slot ends with the job")
		a := addUnique(t, c, "u", "1", until+"LIMIT 2 TTL 1")
		addUnique(t, c, "u", "2", until+"LIMIT 2")
		require.NotEmpty(t, a)
		harness.Await(t, 10*time.Second, "the key's slot to be free", func() bool { return addUnique(t, c, "u", "3", until+"LIMIT 2") != "" })
	},
	"PAUSE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		c.Do("QCONFIG", "SET", "*", "RATE", 1, 3600, "CONCURRENCY", 1)
		id := add(t, c, "q", "b", 0)
		c.Do("PAUSE", "q", "out")
		none(t, c, "q")
		assert.Empty(t, c.Do("LOCK.SCAN", 0, "TYPE", "waiting").Elems[1].Elems, "nothing is claimed")
		c.Do("PAUSE", "q", "none")
		taken(t, c, "q", id)
	},
}

var timesMeet = cells{
	"UNIQUE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		at := addUnique(t, c, "at", "b", fmt.Sprint(until, "LOCKTTL 60 AT ", time.Now().Unix()+4))
		delayed := addUnique(t, c, "delay", "1", until+"LOCKTTL 60 DELAY 1")
		require.Equal(t, delayed, addUnique(t, c, "delay", "2", until+"LOCKTTL 60 DELAY 4 ONCONFLICT debounce 1000"))
		ids := map[string]string{"at": at, "delay": delayed}
		ttl := func(queue string) int64 {
			return c.Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", queue).Field("ttl").Int()
		}
		for queue := range ids {
			assert.EqualValues(t, -1, ttl(queue), "it has no end before the job is due")
		}
		for queue, id := range ids {
			harness.Await(t, 10*time.Second, "the job to be due", func() bool { return state(c, id) == "queued" })
			assert.InDelta(t, 55_000, ttl(queue), 5_000, "LOCKTTL counts from then")
		}
	},
	"AFTER": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		parent := add(t, c, "p", "b", 0)
		at := time.Now().Unix() + 3
		child := add(t, c, "q", "b", 0, "AFTER", parent, "AT", at)
		deferred := add(t, c, "q", "b", 0, "DEFERRED", "AT", at-100)
		does(t, c, 1, "ACKJOB", parent)
		none(t, c, "q")
		require.Equal(t, child, waitFor(t, c, "q"))
		assert.GreaterOrEqual(t, time.Now().UnixMilli(), at*1000-100)
		assert.Equal(t, "deferred", state(c, deferred), "not before its release either")
	},
	"RETRY 0": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		at := time.Now().Unix() + 2
		id := add(t, c, "q", "b", 0, "RETRY", 0, "AT", at)
		none(t, c, "q")
		require.Equal(t, id, waitFor(t, c, "q"))
		assert.GreaterOrEqual(t, time.Now().UnixMilli(), at*1000-100)
		first := addUnique(t, c, "d", "1", until+"RETRY 0 DELAY 500")
		require.Equal(t, first, addUnique(t, c, "d", "2", until+"RETRY 0 DELAY 900 ONCONFLICT debounce 5000"))
		assert.InDelta(t, 900_000, due(c, first), 5000)
	},
	"TTL": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := add(t, c, "q", "b", 0, "AT", time.Now().Unix()+500, "TTL", 60)
		assert.InDelta(t, 560, c.Do("SHOW", id).Field("ttl").Int(), 3)
	},
	"MAXLEN": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		for range 3 {
			add(t, c, "q", "b", 0, "AT", time.Now().Unix()+500, "MAXLEN", 1)
		}
		add(t, c, "q", "b", 0, "MAXLEN", 1)
		require.True(t, c.Do("ADDJOB", "q", "b", 0, "MAXLEN", 1).Err("MAXLEN"), "what is queued counts")
	},
	"PAUSE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := addUnique(t, c, "q", "1", until+"DELAY 100")
		c.Do("PAUSE", "q", "in")
		require.True(t, c.Do("ADDJOB", "q", "b", 0, "AT", time.Now().Unix()+5).Err("PAUSED"))
		require.True(t, tryUnique(c, "q", "2", until+"DELAY 300 ONCONFLICT debounce 1000").Err("PAUSED"))
		assert.Equal(t, "1", c.Do("SHOW", id).Field("body").Str)
		assert.LessOrEqual(t, due(c, id), int64(100_000))
	},
}

// recurs makes a recurring job of each second.
func recurs(t *testing.T, c *harness.Conn, options ...any) {
	t.Helper()
	require.Positive(t, c.Do(append([]any{"CRON", "SET", "e", "EVERY", 1, "JOB", "q", "b"}, options...)...).Int())
}

// cronEnds waits for the outcome of a slot.
func cronEnds(t *testing.T, c *harness.Conn, outcome string) {
	t.Helper()
	harness.Await(t, 20*time.Second, "a slot to be "+outcome, func() bool { return c.Do("CRON", "GET", "e").Field("last-outcome").Str == outcome })
}

var cronMeets = cells{
	"UNIQUE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		recurs(t, c, "UNIQUE", "until-processed", "KEY", "e")
		cronEnds(t, c, "dropped")
		does(t, c, 1, "QLEN", "q")
	},
	"DEFERRED": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := add(t, c, "q", "b", 0, "DEFERRED")
		for _, option := range [][]any{{"DEFERRED"}, {"BLOCKEDBY", id}, {"AFTER", id}} {
			v := c.Do(append([]any{"CRON", "SET", "e", "EVERY", 1, "JOB", "q", "b"}, option...)...)
			assert.True(t, v.Err("ERR a recurring job can't have"), "%v: %v", option, v)
		}
	},
	"RETRY 0": func(t *testing.T, s *harness.Server, c *harness.Conn) {
		recurs(t, c, "RETRY", 0)
		awaitCron(t, c, "e", "made", 3)
		c.Do("CRON", "PAUSE", "e")
		slots, _ := slotsMade(t, c, "q")
		inARow(t, slots, 1)
		assert.Empty(t, order(c, "q"), "none twice")
	},
	"TTL": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		recurs(t, c, "TTL", 2, "RETRY", 1)
		awaitCron(t, c, "e", "made", 1)
		c.Do("CRON", "PAUSE", "e")
		harness.Await(t, 20*time.Second, "each job to expire", func() bool { return c.Do("QLEN", "q").Is(0) })
	},
	"MAXLEN": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		recurs(t, c, "MAXLEN", 1)
		cronEnds(t, c, "refused")
		does(t, c, 1, "QLEN", "q")
	},
	"PAUSE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		c.Do("PAUSE", "q", "in")
		recurs(t, c)
		cronEnds(t, c, "refused")
		does(t, c, 0, "QLEN", "q")
	},
}

var keepMeets = cells{
	"UNIQUE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := addUnique(t, c, "q", "1", until)
		does(t, c, 1, "ACKJOB", id, "RESULT", "r", "KEEP", 100)
		require.NotEmpty(t, addUnique(t, c, "q", "2", until), "free at the end")
		assert.Equal(t, "done", state(c, id))
	},
	"AFTER": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		parent := add(t, c, "p", "b", 0, "KEEP", 100)
		early := add(t, c, "q", "1", 0, "AFTER", parent)
		does(t, c, 1, "ACKJOB", parent, "RESULT", "r")
		late := add(t, c, "q", "2", 0, "AFTER", parent)
		assert.Equal(t, []string{early, late}, waiting(c, "q"))
	},
	"RETRY 0": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := add(t, c, "q", "b", 0, "RETRY", 0, "KEEP", 100)
		taken(t, c, "q", id)
		does(t, c, 1, "ACKJOB", id, "RESULT", "r")
		assert.Equal(t, "r", c.Do("SHOW", id).Field("result").Str)
	},
	"TTL": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := add(t, c, "q", "b", 0, "TTL", 1)
		does(t, c, 1, "ACKJOB", id, "RESULT", "r", "KEEP", 100)
		other := add(t, c, "q", "b", 0, "TTL", 2)
		harness.Await(t, 10*time.Second, "the longer life to be over", func() bool { return c.Do("SHOW", other).Null })
		assert.Equal(t, "r", c.Do("SHOW", id).Field("result").Str)
	},
	"MAXLEN": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		for range 3 {
			does(t, c, 1, "ACKJOB", add(t, c, "q", "b", 0, "MAXLEN", 1), "KEEP", 100)
		}
		assert.Equal(t, int64(3), c.Do("QSTAT", "q").Field("kept").Int())
	},
}

var softMeets = cells{
	"UNIQUE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
		id := addUnique(t, c, "q", "1", until)
		taken(t, c, "q", id)
		add(t, c, "q", "waits for a slot", 0)
		does(t, c, 1, "CANCELJOB", id, "SOFT")
		require.Empty(t, addUnique(t, c, "q", "2", until), "its lock stays")
		none(t, c, "q")
		does(t, c, 1, "NACK", id)
		require.NotEmpty(t, addUnique(t, c, "q", "2", until))
		get(t, c, "q")
	},
	"AFTER": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		parent := add(t, c, "p", "b", 0)
		taken(t, c, "p", parent)
		goes, runs := add(t, c, "q", "b", 0, "AFTER", parent), add(t, c, "q", "b", 0, "AFTER", parent, "ONDEAD", "run")
		does(t, c, 1, "CANCELJOB", parent, "SOFT")
		assert.Equal(t, []string{"blocked", "blocked"}, []string{state(c, goes), state(c, runs)})
		does(t, c, 1, "NACK", parent)
		assert.True(t, c.Do("SHOW", goes).Null, "the child goes when it ends")
		taken(t, c, "q", runs)
	},
	"RETRY 0": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := add(t, c, "q", "b", 0, "RETRY", 0)
		taken(t, c, "q", id)
		does(t, c, 1, "CANCELJOB", id, "SOFT")
		assert.True(t, c.Do("WORKING", id).Err("CANCELLED"))
		does(t, c, 1, "ACKJOB", id)
	},
	"TTL": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		id := add(t, c, "q", "b", 0, "RETRY", 0, "TTL", 2)
		taken(t, c, "q", id)
		does(t, c, 1, "CANCELJOB", id, "SOFT")
		assert.Equal(t, "active", state(c, id))
		harness.Await(t, 10*time.Second, "the TTL to end it", func() bool { return c.Do("SHOW", id).Null })
	},
}

var bulkMeets = cells{
	"UNIQUE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		addUnique(t, c, "q", "there", "UNIQUE until-processed KEY b")
		v := c.Do("ADDJOBS", "q", 0, "UNIQUE", "until-processed", "PAIRS", "a", "1", "b", "2", "c", "3", "a", "4")
		require.Len(t, v.Elems, 4)
		for i, want := range []bool{true, false, true, false} {
			assert.Equal(t, want, v.Elems[i].Kind == '+', "%d: %v", i, v)
		}
	},
	"AFTER": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		parent, deferred := add(t, c, "p", "b", 0), add(t, c, "p", "b", 0, "DEFERRED")
		idsOf(t, c.Do("ADDJOBS", "q", 0, "AFTER", parent, "BODIES", "1", "2"))
		none(t, c, "q")
		does(t, c, 1, "ACKJOB", parent)
		assert.Equal(t, []string{"1", "2"}, order(c, "q"))
		blocked := c.Do("ADDJOBS", "b", 0, "BLOCKEDBY", deferred, "BODIES", "1", "2")
		for _, e := range blocked.Elems {
			assert.Equal(t, "blocked", state(c, e.Str), "%v", blocked)
		}
	},
	"RETRY 0": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		ids := idsOf(t, c.Do("ADDJOBS", "q", 0, "RETRY", 0, "BODIES", "1", "2"))
		assert.Equal(t, []string{"1", "2"}, order(c, "q"))
		does(t, c, 0, "NACK", ids[0], ids[1])
	},
	"MAXLEN": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		v := c.Do("ADDJOBS", "q", 0, "MAXLEN", 2, "BODIES", "1", "2", "3")
		assert.Equal(t, []string{"1", "2"}, order(c, "q"))
		assert.Contains(t, v.Elems[2].Str, "-MAXLEN")
	},
	"PAUSE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		c.Do("PAUSE", "q", "in")
		require.True(t, c.Do("ADDJOBS", "q", 0, "BODIES", "1", "2").Err("PAUSED"))
		does(t, c, 0, "QLEN", "q")
	},
}

var flushMeets = cells{
	"UNIQUE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		addUnique(t, c, "q", "1", until)
		const window = "UNIQUE window TTL 1000 KEY w"
		addUnique(t, c, "q", "2", window)
		does(t, c, 2, "QFLUSH", "q")
		require.NotEmpty(t, addUnique(t, c, "q", "1", until), "freed")
		require.Empty(t, addUnique(t, c, "q", "2", window), "windows stay")
	},
	"DEFERRED": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		deferred := add(t, c, "q", "b", 0, "DEFERRED")
		blocked := add(t, c, "other", "b", 0, "BLOCKEDBY", deferred)
		parent := add(t, c, "q", "b", 0)
		runs, drops := add(t, c, "other", "b", 0, "AFTER", parent, "ONDEAD", "run"), add(t, c, "other", "b", 0, "AFTER", parent)
		does(t, c, 2, "QFLUSH", "q")
		for _, id := range []string{deferred, blocked, parent, drops} {
			assert.True(t, c.Do("SHOW", id).Null)
		}
		taken(t, c, "other", runs)
	},
	"RETRY 0": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		given := add(t, c, "q", "b", 0, "RETRY", 0)
		taken(t, c, "q", given)
		add(t, c, "q", "b", 0, "RETRY", 0)
		does(t, c, 1, "QFLUSH", "q")
		assert.Equal(t, "active", state(c, given))
		does(t, c, 1, "QFLUSH", "q", "ALL")
		assert.True(t, c.Do("WORKING", given).Err("CANCELLED"))
	},
	"PAUSE": func(t *testing.T, _ *harness.Server, c *harness.Conn) {
		add(t, c, "q", "b", 0)
		c.Do("PAUSE", "q", "all")
		does(t, c, 1, "QFLUSH", "q")
		assert.Equal(t, "all", paused(c, "q"))
	},
}
