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

// order fetches all jobs of a queue, and returns their bodies.
func order(c *harness.Conn, queue string) (bodies []string) {
	for {
		v := c.Do("GETJOB", "NOHANG", "COUNT", 7, "FROM", queue)
		if v.NullArray() {
			return bodies
		}
		for _, j := range v.Elems {
			bodies = append(bodies, j.Elems[2].Str)
		}
	}
}

// P1: the most urgent job is fetched first, among equals the oldest. QPEEK shows that order.
func TestLifeP1(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	for i, p := range []int{5, 0, -5, 0, 100, -100, 5} {
		id := add(t, c, "q", fmt.Sprint(p, " ", i), 0, "PRIORITY", p)
		if p == 0 {
			assert.NotContains(t, fields(c.Do("SHOW", id)), "priority")
		} else {
			assert.EqualValues(t, p, c.Do("SHOW", id).Field("priority").Int())
		}
	}
	want := []string{"100 4", "5 0", "5 6", "0 1", "0 3", "-5 2", "-100 5"}
	var peeked, back []string
	for _, j := range c.Do("QPEEK", "q", 9).Elems {
		peeked = append(peeked, j.Elems[2].Str)
	}
	for _, j := range c.Do("QPEEK", "q", -9).Elems {
		back = append([]string{j.Elems[2].Str}, back...)
	}
	assert.Equal(t, want, peeked)
	assert.Equal(t, want, back)
	assert.Equal(t, want, order(c, "q"))

	for _, bad := range []string{"101", "-101", "x", "", "1.5", "99999999999999999999"} {
		require.True(t, c.Do("ADDJOB", "q", "b", 0, "PRIORITY", bad).Err("ERR PRIORITY must be between -100 and 100"), bad)
		require.True(t, c.Do("QCONFIG", "SET", "q", "PRIORITY", bad).Err("ERR PRIORITY must be between -100 and 100"), bad)
		require.True(t, c.Do("MOVEJOB", "FROM", "q", "PRIORITY", bad).Err("ERR PRIORITY must be between -100 and 100"), bad)
	}
	require.True(t, c.Do("ADDJOB", "q", "b", 0, "PRIORITY").Err("ERR syntax error"))
	assert.Zero(t, c.Do("QLEN", "q").Int())
}

// The priority of a queue's settings counts where ADDJOB and ADDJOBS say none.
func TestPriorityAsASetting(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	add(t, c, "q", "before", 0)
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "q", "PRIORITY", 7).Str)
	assert.Equal(t, "7", c.Do("QCONFIG", "GET", "q").Field("priority").Str)
	add(t, c, "q", "by setting", 0)
	add(t, c, "q", "least", 0, "PRIORITY", -1)
	c.Do("ADDJOBS", "q", 0, "BODIES", "many 1", "many 2")
	c.Do("ADDJOBS", "q", 0, "PRIORITY", 8, "UNIQUE", "until-processed", "PAIRS", "a", "most 1", "b", "most 2")
	require.Equal(t, int64(1), c.Do("QCONFIG", "UNSET", "q", "PRIORITY").Int())
	add(t, c, "q", "after", 0)
	assert.Equal(t, []string{"most 1", "most 2", "by setting", "many 1", "many 2", "before", "after", "least"}, order(c, "q"))
}

// P2: a job that comes back keeps its priority and its age.
func TestLifeP2(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	first := add(t, c, "q", "first", 0, "PRIORITY", 3)
	add(t, c, "q", "plain", 0)
	require.Equal(t, first, get(t, c, "q"))
	add(t, c, "q", "younger", 0, "PRIORITY", 3)
	add(t, c, "q", "most urgent", 0, "PRIORITY", 4)
	require.Equal(t, int64(1), c.Do("NACK", first).Int())
	assert.Equal(t, []string{"most urgent", "first", "younger", "plain"}, order(c, "q"))
}

// P3: restarts, RENAME, and DUMP and RESTORE keep the order.
func TestLifeP3(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		for i := range 60 {
			add(t, c, "q", fmt.Sprint(i), 0, "PRIORITY", i%7-3)
		}
		var want []string
		for p := 3; p >= -3; p-- {
			for i := range 60 {
				if i%7-3 == p {
					want = append(want, strconv.Itoa(i))
				}
			}
		}
		queue := "p"
		if mode == "move" {
			require.Equal(t, int64(60), c.Do("MOVEJOB", "FROM", "q", "TO", "p").Int())
		} else {
			c, queue = handOn(t, s, c, mode)
		}
		assert.Equal(t, want, order(c, queue))
	}, "aof", "rdb", "reload", "rename", "restore", "move")
}

// P4: one urgent job among many costs the extra of that one alone, and is fetched next.
func TestLifeP4(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	const jobs = 50_000
	bodies := make([]any, 10_000)
	for i := range bodies {
		bodies[i] = "0123456789"
	}
	for range jobs / len(bodies) {
		c.Do(append([]any{"ADDJOBS", "q", 0, "BODIES"}, bodies...)...)
	}
	usage := func() int64 { return c.Do("MEMORY", "USAGE", "q", "SAMPLES", 0).Int() }
	before := usage()
	urgent := add(t, c, "q", "urgent", 0, "PRIORITY", 1)
	assert.Less(t, usage()-before, int64(400), "a job, its extra, and where two priorities end")
	require.Equal(t, urgent, get(t, c, "q"))
	require.EqualValues(t, jobs, c.Do("QLEN", "q").Int())
}

// P5: of two jobs that are held back for one key the more urgent one goes first, though it is younger.
func TestLifeP5(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		unique := []any{"UNIQUE", "during-processing", "KEY", "k"}
		runs := add(t, c, append([]any{"q", "runs", 0}, unique...)...)
		require.Equal(t, runs, get(t, c, "q"))
		for i, p := range []int{0, 2, 1, 2} {
			add(t, c, append([]any{"q", fmt.Sprint(p, " ", i), 0, "PRIORITY", p}, unique...)...)
		}
		if mode != "" {
			comeBack(t, s, mode)
			c = s.Dial()
		}
		require.Equal(t, int64(1), c.Do("ACKJOB", runs).Int())
		var bodies []string
		for range 4 {
			j := c.Do("GETJOB", "FROM", "q").Elems[0]
			bodies = append(bodies, j.Elems[2].Str)
			require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray(), "one at a time")
			if len(bodies) == 1 { // a more urgent one overtakes the one that is about to go
				c.Do("ACKJOB", j.Elems[1].Str)
				add(t, c, append([]any{"q", "9", 0, "PRIORITY", 9}, unique...)...)
				j = c.Do("GETJOB", "FROM", "q").Elems[0]
				require.Equal(t, "9", j.Elems[2].Str)
			}
			require.Equal(t, int64(1), c.Do("ACKJOB", j.Elems[1].Str).Int())
		}
		assert.Equal(t, []string{"2 1", "2 3", "1 2", "0 0"}, bodies)
	}, "", "aof")
}

// P6: MOVEJOB changes the priority of a waiting job, of one that is delayed or dead, and of many.
func TestLifeP6(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		dead := dies(t, c, "q", "dead")
		add(t, c, "q", "1", 0)
		add(t, c, "q", "2", 0, "PRIORITY", 5)
		third := add(t, c, "q", "3", 0)
		delayed := add(t, c, "q", "delayed", 0, "DELAY", 2)
		require.Equal(t, int64(1), c.Do("MOVEJOB", third, "TO", "q", "PRIORITY", 9).Int())
		require.Equal(t, int64(1), c.Do("MOVEJOB", delayed, "TO", "q", "PRIORITY", 10).Int())
		require.Equal(t, int64(1), c.Do("MOVEJOB", dead, "PRIORITY", 8).Int())
		assert.EqualValues(t, 9, c.Do("SHOW", third).Field("priority").Int())
		assert.Equal(t, "active", state(c, delayed), "it keeps its time")
		if mode != "" {
			comeBack(t, s, mode)
			c = s.Dial()
		}
		harness.Await(t, 10*time.Second, "the delayed job is queued", func() bool { return state(c, delayed) == "queued" })
		assert.Equal(t, []string{"delayed", "3", "dead", "2", "1"}, order(c, "q"))
	}, "", "aof", "rdb")
	c := harness.Start(t).Dial()
	for i := range 10 {
		add(t, c, "q", strconv.Itoa(i), 0, "PRIORITY", i)
	}
	require.Equal(t, int64(4), c.Do("MOVEJOB", "FROM", "q", "TO", "q", "COUNT", 4, "PRIORITY", -1).Int())
	require.Equal(t, int64(3), c.Do("MOVEJOB", "FROM", "q", "TO", "p", "COUNT", 3, "PRIORITY", 0).Int())
	assert.Equal(t, []string{"2", "1", "0", "6", "7", "8", "9"}, order(c, "q"))
	assert.Equal(t, []string{"3", "4", "5"}, order(c, "p"), "in the order of their age")
}
