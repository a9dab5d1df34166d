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

// Outcomes go with their queue: when it is renamed, moved, swapped, dumped and restored. Their count and their bytes are exact, and their time runs on.
func TestOutcomesGoWithTheirQueue(t *testing.T) {
	t.Parallel()
	trips := map[string]func(t *testing.T, c *harness.Conn){
		"RENAME": func(t *testing.T, c *harness.Conn) { require.Equal(t, "OK", c.Do("RENAME", "q", "other").Str) },
		"RENAME over another": func(t *testing.T, c *harness.Conn) {
			require.Equal(t, int64(1), c.Do("ACKJOB", add(t, c, "other", "b", 0), "RESULT", "12345").Int())
			require.Equal(t, "OK", c.Do("RENAME", "q", "other").Str)
		},
		"MOVE": func(t *testing.T, c *harness.Conn) {
			moveKey(t, c, "q", 0, 1)
			moveKey(t, c, "q", 1, 0)
		},
		"SWAPDB": func(t *testing.T, c *harness.Conn) {
			require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
			require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
		},
		"RESTORE": func(t *testing.T, c *harness.Conn) {
			dump := c.Do("DUMP", "q").Str
			require.Equal(t, int64(1), c.Do("DEL", "q").Int())
			require.Equal(t, "OK", c.Do("RESTORE", "q", 0, dump).Str)
		},
		"RESTORE in a new server": nil,
		"RESTORE over itself": func(t *testing.T, c *harness.Conn) {
			require.Equal(t, "OK", c.Do("RESTORE", "q", 0, c.Do("DUMP", "q").Str, "REPLACE").Str)
		},
		"DEBUG RELOAD": func(t *testing.T, c *harness.Conn) {
			require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
		},
	}
	for name, trip := range trips {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t)
			c := s.Dial()
			long, short := add(t, c, "q", "b", 0), add(t, c, "q", "b", 0)
			cancelled := add(t, c, "q", "b", 0, "KEEP", 1000)
			require.Equal(t, int64(1), c.Do("ACKJOB", long, "RESULT", "long", "KEEP", 1000).Int())
			require.Equal(t, int64(1), c.Do("ACKJOB", short, "RESULT", "short", "KEEP", 5).Int())
			require.Equal(t, int64(1), c.Do("CANCELJOB", cancelled, "REASON", "why").Int())
			jobs, bytes := kept(s)
			require.Equal(t, "3 12", jobs+" "+bytes)
			if trip == nil {
				dump := c.Do("DUMP", "q").Str
				s = harness.Start(t)
				c = s.Dial()
				require.Equal(t, "OK", c.Do("RESTORE", "q", 0, dump).Str)
			} else {
				trip(t, c)
			}
			assert.Equal(t, "long", c.Do("SHOW", long).Field("result").Str)
			assert.Equal(t, "why", c.Do("SHOW", cancelled).Field("reason").Str)
			assert.True(t, c.Do("SHOW", long).Field("body").Null)
			assert.Equal(t, []string{"done long", "cancelled why"}, harness.Ends(t, c.Do("WAITJOB", long, cancelled, 1000)))
			harness.Await(t, 20*time.Second, "the time to be over", func() bool { return c.Do("SHOW", short).Null })
			harness.Await(t, 20*time.Second, "two outcomes to be left", func() bool { jobs, bytes = kept(s); return jobs+" "+bytes == "2 7" })
			assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q", "other").NullArray())
		})
	}
}

// A queue that lies elsewhere counts in no figure; what ends its outcomes there goes with it.
func TestOutcomesOfAQueueElsewhereCountNowhere(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "q", "b", 0)
	require.Equal(t, int64(1), c.Do("ACKJOB", id, "RESULT", "r", "KEEP", 1000).Int())
	moveKey(t, c, "q", 0, 1)
	jobs, bytes := kept(s)
	assert.Equal(t, "0 0", jobs+" "+bytes)
	c.Do("ACKJOB", id, "RESULT", "another")
	moveKey(t, c, "q", 1, 0)
	assert.Equal(t, []string{"done r"}, harness.Ends(t, c.Do("WAITJOB", id, 100)))
	jobs, bytes = kept(s)
	assert.Equal(t, "1 1", jobs+" "+bytes)
	c.Do("SELECT", 1)
	require.Equal(t, "OK", c.Do("FLUSHDB").Str)
	c.Do("SELECT", 0)
	require.Equal(t, "OK", c.Do("FLUSHALL").Str)
	jobs, bytes = kept(s)
	assert.Equal(t, "0 0", jobs+" "+bytes)
	assert.True(t, c.Do("SHOW", id).Null)
}

// QFLUSH leaves outcomes; DEL deletes them.
func TestFlushLeavesOutcomes(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "q", "b", 0)
	require.Equal(t, int64(1), c.Do("ACKJOB", id, "RESULT", "r").Int())
	add(t, c, "q", "b", 0, "KEEP", 100)
	require.Equal(t, int64(1), c.Do("QFLUSH", "q").Int())
	require.Equal(t, int64(0), c.Do("QFLUSH", "q").Int())
	assert.Equal(t, []string{"done r"}, harness.Ends(t, c.Do("WAITJOB", id, 0)))
	harness.Await(t, 20*time.Second, "one outcome", func() bool { jobs, bytes := kept(s); return jobs+" "+bytes == "1 1" })
	require.Equal(t, int64(1), c.Do("DEL", "q").Int())
	jobs, bytes := kept(s)
	assert.Equal(t, "0 0", jobs+" "+bytes)
}

// A replica has the outcomes, answers WAITJOB at once, and goes on with their time when it is promoted. A master that becomes a replica
// ends the waits of its clients.
func TestOutcomesOverAFailover(t *testing.T) {
	t.Parallel()
	soon := harness.WithConfig("repl-diskless-sync-delay 0", "appendonly yes")
	a := harness.Start(t, soon)
	before := add(t, a.Dial(), "q", "b", 0)
	require.Equal(t, int64(1), a.Do("ACKJOB", before, "RESULT", "before").Int())
	b := harness.Start(t, soon, harness.WithReplicaOf(a))
	b.AwaitSync()
	ends1 := func(s *harness.Server, id string) string {
		return strings.Join(harness.Ends(t, s.Do("WAITJOB", id, 5000)), ",")
	}
	from, to := a, b
	for round := range 2 {
		c := from.Dial()
		long, short, open := add(t, c, "q", "b", 0), add(t, c, "q", "b", 0), add(t, c, "q", "b", 0)
		unique := []any{"u", 0, "UNIQUE", "until-processed", "KEY", "k", "KEEP", 1000}
		key := addTo(t, c, "q", unique)
		asked := add(t, c, "work", "b", 0, "RETRY", 1000)
		require.Equal(t, asked, get(t, c, "work"))
		require.Equal(t, int64(1), c.Do("CANCELJOB", asked, "SOFT", "REASON", "why").Int())
		require.Equal(t, int64(1), c.Do("ACKJOB", long, "RESULT", "long").Int())
		require.Equal(t, int64(1), c.Do("ACKJOB", short, "RESULT", "short", "KEEP", 5).Int())
		require.Equal(t, int64(1), c.Do("ACKJOB", key).Int())
		require.Equal(t, int64(1), c.Do("CANCELJOB", add(t, c, "q", "b", 0, "KEEP", 3)).Int())
		to.AwaitStream(from)
		assert.Equal(t, "done before", ends1(to, before))
		assert.Equal(t, "done long", ends1(to, long))
		assert.Equal(t, "long", to.Do("SHOW", long).Field("result").Str)
		assert.Equal(t, "cancelled why", ends1(to, asked))
		assert.Equal(t, "waiting", ends1(to, open))
		waits := from.Dial()
		waits.Send("WAITJOB", open, 0)
		awaitWaits(t, from, 1)
		require.Equal(t, "OK", from.Do("FAILOVER").Str)
		harness.Await(t, 20*time.Second, "the replica to be the master", func() bool { return to.Info("replication", "role") == "master" })
		assert.True(t, waits.Receive().Err("UNBLOCKED"))
		awaitWaits(t, from, 0)
		from.AwaitSync()
		c = to.Dial()
		harness.Await(t, 20*time.Second, "the promotion to be done", func() bool { return c.Do("WORKING", asked).Err("CANCELLED") })
		assert.Equal(t, "done long", ends1(to, long), round)
		addTo(t, c, "q", unique) // its key is free
		require.Equal(t, int64(1), c.Do("NACK", asked).Int())
		assert.True(t, c.Do("SHOW", asked).Null)
		harness.Await(t, 20*time.Second, "the time to be over", func() bool { return to.Do("SHOW", short).Null })
		harness.Await(t, 20*time.Second, "the time to be over, at the replica", func() bool { return from.Do("SHOW", short).Null })
		waits = to.Dial()
		waits.Send("WAITJOB", open, 0)
		awaitWaits(t, to, 1)
		require.Equal(t, int64(1), c.Do("ACKJOB", open, "RESULT", "r").Int())
		assert.Equal(t, []string{"done r"}, harness.Ends(t, waits.Receive()))
		for _, job := range c.Do("JSCAN", 0, "COUNT", 1000, "STATE", "queued").Elems[1].Strings() {
			c.Do("ACKJOB", job, "KEEP", 0)
		}
		from, to = to, from
	}
}

// RESP3 has its null and its maps.
func TestResultsInRESP3(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial3()
	with, without := add(t, c, "q", "b", 0), add(t, c, "q", "b", 0)
	require.Equal(t, int64(1), c.Do("ACKJOB", with, "RESULT", "").Int())
	require.Equal(t, int64(1), c.Do("ACKJOB", without, "KEEP", 10).Int())
	v := c.Do("WAITJOB", with, without, "D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1", 0)
	require.Len(t, v.Elems, 3)
	assert.True(t, v.Elems[0].Elems[2].Kind == '$' && v.Elems[0].Elems[2].Str == "", "%v", v)
	assert.Equal(t, byte('_'), v.Elems[1].Elems[2].Kind)
	assert.Equal(t, "unknown", v.Elems[2].Elems[1].Str)
	assert.Equal(t, byte('%'), c.Do("SHOW", with).Kind)
	assert.Equal(t, byte('_'), c.Do("SHOW", without).Field("result").Kind)
	assert.Equal(t, byte('_'), c.Do("SHOW", without).Field("body").Kind)
	c.Do("MULTI")
	c.Do("WAITJOB", with, 0)
	assert.Equal(t, "done", c.Do("EXEC").Elems[0].Elems[0].Elems[1].Str)
}

// An at-most-once job keeps its outcome as any other, and is never delivered again.
func TestOutcomesOfAtMostOnceJobs(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		done, dropped, asked := add(t, c, "q", "b", 0, "RETRY", 0), add(t, c, "q", "b", 0, "RETRY", 0, "KEEP", 1000), add(t, c, "q", "b", 0, "RETRY", 0, "KEEP", 1000)
		for range 3 {
			get(t, c, "q")
		}
		require.Equal(t, int64(1), c.Do("ACKJOB", done, "RESULT", "r").Int())
		require.Equal(t, int64(1), c.Do("CANCELJOB", dropped).Int())
		require.Equal(t, int64(1), c.Do("CANCELJOB", asked, "SOFT").Int())
		comeBack(t, s, mode)
		c = s.Dial()
		require.Equal(t, int64(1), c.Do("ACKJOB", asked, "RESULT", "all the same").Int())
		assert.Equal(t, []string{"done r", "cancelled", "done all the same"}, harness.Ends(t, c.Do("WAITJOB", done, dropped, asked, 0)))
		assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
	}, "aof kill", "aof-rewritten", "aof-without-preamble", "rdb", "reload")
}

// An answer has 64 MB of results at most. The others are null: ask for them again.
func TestResultsOfAWaitAreBounded(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	ids := make([]any, 200)
	for i := range ids {
		ids[i] = add(t, c, "q", "b", 0)
	}
	result := strings.Repeat("r", 524_288)
	wait := append(append([]any{"WAITJOB"}, ids...), 0)
	waits := s.Dial()
	waits.Send(wait...)
	awaitWaits(t, s, 1)
	require.Equal(t, int64(200), c.Do(append(append([]any{"ACKJOB"}, ids...), "RESULT", result)...).Int())
	check := func(v harness.Value, of string) {
		require.Len(t, v.Elems, len(ids))
		results := 0
		for _, e := range v.Elems {
			assert.Equal(t, "done", e.Elems[1].Str)
			if !e.Elems[2].Null {
				results++
			}
		}
		assert.Equal(t, 128, results, of)
	}
	check(waits.Receive(), "a wait")
	check(c.Do(wait...), "at once")
	c.Do("MULTI")
	c.Do(wait...)
	check(c.Do("EXEC").Elems[0], "MULTI")
	twice := []any{"WAITJOB"}
	for range ids {
		twice = append(twice, ids[0])
	}
	check(c.Do(append(twice, 0)...), "one ID many times")
	assert.Equal(t, fmt.Sprint("done ", result), harness.Ends(t, c.Do("WAITJOB", ids[199], 0))[0])
}
