package single

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func paused(c *harness.Conn, queue string) string { return c.Do("PAUSE", queue, "STATE").Str }

func pauseLeft(c *harness.Conn, queue string) int64 {
	return c.Do("QSTAT", queue).Field("pause-left").Int()
}

// waitFor waits for a job of a queue, for ten seconds.
func waitFor(t *testing.T, c *harness.Conn, queue string) string {
	t.Helper()
	v := c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", queue)
	require.Len(t, v.Elems, 1)
	return v.Elems[0].Elems[1].Str
}

// Z1: a pause in output ends by itself, also for a client that waits already.
func TestLifeZ1(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	for _, bcast := range []bool{false, true} {
		id := add(t, c, "q", "b", 0)
		assert.Zero(t, pauseLeft(c, "q"))
		args := []any{"PAUSE", "q", "out", "FOR", 1}
		if bcast {
			args = append(args, "BCAST")
		}
		began := time.Now()
		require.Equal(t, "out", c.Do(args...).Str)
		assert.InDelta(t, 1000, pauseLeft(c, "q"), 500)
		require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
		require.Equal(t, id, waitFor(t, c, "q"))
		assert.InDelta(t, 1.0, time.Since(began).Seconds(), 0.5)
		assert.Equal(t, "none", paused(c, "q"))
		assert.Zero(t, pauseLeft(c, "q"))
	}
}

// Z2: what PAUSE says last counts: its end, or that it has none.
func TestLifeZ2(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	require.Equal(t, "in", c.Do("PAUSE", "q", "in", "FOR", 5).Str)
	require.True(t, c.Do("ADDJOB", "q", "b", 0).Err("PAUSED"))
	require.Equal(t, "none", c.Do("PAUSE", "q", "none").Str)
	add(t, c, "q", "at once", 0)

	require.Equal(t, "in", c.Do("PAUSE", "q", "in", "FOR", 1).Str)
	require.Equal(t, "in", c.Do("PAUSE", "q", "in").Str)
	assert.EqualValues(t, -1, pauseLeft(c, "q"))
	require.Equal(t, "out", c.Do("PAUSE", "p", "out", "FOR", 1).Str)
	require.Equal(t, "all", c.Do("PAUSE", "p", "all", "BCAST").Str)
	require.Equal(t, "out", c.Do("PAUSE", "r", "out", "BCAST", "FOR", 1).Str)
	require.Equal(t, "out", c.Do("PAUSE", "r", "out", "BCAST", "FOR", 100).Str)
	require.Equal(t, "out", c.Do("PAUSE", "s", "out", "BCAST").Str)
	require.Equal(t, "in", c.Do("PAUSE", "s", "in", "FOR", 1).Str)
	harness.Await(t, 10*time.Second, "the pause of this node alone to end", func() bool { return paused(c, "s") == "out" })
	assert.Equal(t, []string{"in", "all", "out"}, []string{paused(c, "q"), paused(c, "p"), paused(c, "r")})
	assert.InDelta(t, 100_000, pauseLeft(c, "r"), 10_000)
	assert.EqualValues(t, -1, pauseLeft(c, "s"))

	for _, bad := range [][]any{{"FOR", 1}, {"none", "FOR", 1}, {"state", "FOR", 1}, {"in", "FOR"}, {"in", "FOR", 0}, {"in", "FOR", -1}, {"in", "FOR", "x"}, {"in", "FOR", 2147483648}, {"in", "FOR", "none"}} {
		require.True(t, c.Do(append([]any{"PAUSE", "t"}, bad...)...).Err("ERR FOR must be a number of seconds > 0, with in, out or all"), "%v", bad)
	}
	require.Equal(t, int64(0), c.Do("EXISTS", "t").Int())
	require.Equal(t, "in", c.Do("PAUSE", "t", "in", "FOR", 2147483647).Str)
}

// Z4: a pause of one node is over after a restart; one of all nodes ends at its time, restart or not, and also at a replica that becomes the master.
func TestLifeZ4(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		for _, q := range []string{"one", "all", "past"} {
			add(t, c, q, "b", 0)
		}
		c.Do("PAUSE", "one", "out", "FOR", 100)
		c.Do("PAUSE", "all", "out", "FOR", 4, "BCAST")
		c.Do("PAUSE", "past", "out", "FOR", 1, "BCAST")
		began := time.Now()
		s.Stop()
		time.Sleep(time.Until(began.Add(1100 * time.Millisecond))) // the time itself is what counts
		s.Restart()
		c = s.Dial()
		assert.Equal(t, []string{"none", "out", "none"}, []string{paused(c, "one"), paused(c, "all"), paused(c, "past")})
		waitFor(t, c, "one")
		waitFor(t, c, "past")
		waitFor(t, c, "all")
		assert.InDelta(t, 4, time.Since(began).Seconds(), 0.7)
		harness.Await(t, 10*time.Second, "the ended pauses to be forgotten", func() bool {
			return strings.Contains(c.Do("JOBMESH", "CLUSTER", "INFO").Str, "settings_entries:0\r\n")
		})
	}, "aof", "rdb")
}

// A pause is of a queue's name: RENAME takes none along, and no end is lost. Neither does a queue that is made anew have that of the one before.
func TestPausesAndNames(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	for _, bcast := range [][]any{nil, {"BCAST"}} {
		for _, span := range [][]any{nil, {"FOR", 100}} {
			id := add(t, c, "a", "b", 0)
			require.Equal(t, "all", c.Do(append(append([]any{"PAUSE", "a", "all"}, bcast...), span...)...).Str)
			require.Equal(t, "OK", c.Do("RENAME", "a", "b").Str)
			assert.Equal(t, "none", paused(c, "b"))
			require.Equal(t, id, get(t, c, "b"))
			c.Do("RENAME", "b", "a")
			want := "none"
			if bcast != nil {
				want = "all"
			}
			assert.Equal(t, want, paused(c, "a"))
			c.Do("PAUSE", "a", "none", "BCAST")
			c.Do("DEL", "a")
		}
	}
	c.Do("PAUSE", "q", "out", "BCAST")
	c.Do("PAUSE", "q", "in", "FOR", 50)
	c.Do("DEL", "q")
	add(t, c, "q", "b", 0)
	assert.Equal(t, "out", paused(c, "q"))
	assert.EqualValues(t, -1, pauseLeft(c, "q"))
	require.True(t, c.Do("PAUSE", strings.Repeat("n", 1025), "in", "FOR", 5).Err("ERR FOR needs a queue whose name has 1024 bytes at most"))
}
