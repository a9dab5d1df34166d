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

// body is a job's body, as SHOW tells it.
func body(c *harness.Conn, id string) string { return c.Do("SHOW", id).Field("body").Str }

// A job that is given back with a body comes back with it, at its old place; the dead letter has it, too.
func TestNackWithABody(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "first", 0)
	add(t, c, "q", "other", 0)
	for i, text := range []string{"", "DEAD", "body", id, "\x00\xff\r\n", strings.Repeat("x", 100_000), "same", "same"} {
		require.Equal(t, id, get(t, c, "q"))
		require.Equal(t, int64(1), c.Do("NACK", id, "BODY", text).Int())
		v := c.Do("SHOW", id)
		assert.Equal(t, text, v.Field("body").Str)
		assert.Equal(t, int64(i+1), v.Field("nacks").Int())
	}
	v := c.Do("GETJOB", "FROM", "q").Elems[0]
	assert.Equal(t, []string{"q", id, "same"}, v.Strings())
	require.Equal(t, int64(1), c.Do("NACK", id, "body", "rested", "REASON", "BODY", "DELAY", 1).Int())
	assert.Equal(t, "BODY", c.Do("SHOW", id).Field("reason").Str)
	assert.Equal(t, int64(0), c.Do("NACK", id, "BODY", "ineffective").Int())
	assert.Equal(t, "rested", body(c, id))
	harness.Await(t, 10*time.Second, "the job to come back", func() bool { return state(c, id) == "queued" })
	assert.Equal(t, int64(0), c.Do("NACK", id, "BODY", "ineffective").Int(), "it is in its queue")
	v = c.Do("GETJOB", "FROM", "q").Elems[0]
	assert.Equal(t, []string{"q", id, "rested"}, v.Strings())
	require.Equal(t, int64(1), c.Do("NACK", id, "DEAD", "BODY", "dead").Int())
	assert.Equal(t, []string{"q:dead", id, "dead"}, c.Do("GETJOB", "FROM", "q:dead").Elems[0].Strings())

	once := add(t, c, "once", "kept", 0, "RETRY", 0)
	get(t, c, "once")
	assert.Equal(t, int64(0), c.Do("NACK", once, "BODY", "ineffective").Int())
	assert.Equal(t, "kept", body(c, once))
	limited := add(t, c, "limited", "b", 0, "MAXNACKS", 1)
	get(t, c, "limited")
	require.Equal(t, "OK", c.Do("MULTI").Str)
	c.Do("NACK", limited, "BODY", "limit")
	require.Len(t, c.Do("EXEC").Elems, 1)
	assert.Equal(t, "limited:dead limit", c.Do("SHOW", limited).Field("queue").Str+" "+body(c, limited))
	assert.Equal(t, int64(0), c.Do("NACK", strings.Replace(id, id[2:10], "00000000", 1), "BODY", "unknown").Int())
}

// A NACK with a wrong body changes nothing.
func TestNackWithAWrongBody(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	long := strings.Repeat("k", 5000)
	ids := []string{add(t, c, "q", "a", 0), add(t, c, "q", "b", 0), add(t, c, "q", long, 0, "UNIQUE", "until-processed")}
	for range ids {
		get(t, c, "q")
	}
	for _, args := range [][]any{{ids[0], ids[1], "BODY", "x"}, {ids[0], ids[0], "BODY", "x"}} {
		require.Equal(t, "ERR BODY goes with one ID", c.Do(append([]any{"NACK"}, args...)...).Str)
	}
	for _, args := range [][]any{{ids[0], "BODY"}, {"BODY", "x"}, {ids[0], "BODY", "x", "BODY", "y"}, {ids[0], "BODY", "x", "y"}} {
		require.Equal(t, "ERR syntax error", c.Do(append([]any{"NACK"}, args...)...).Str)
	}
	require.True(t, c.Do("NACK", "x", "BODY", "y").Err("BADID"))
	require.Equal(t, "ERR the job is unique by its body, which is too long to be kept as its key: give the job back without BODY",
		c.Do("NACK", ids[2], "BODY", "x").Str)
	for i, want := range []string{"a", "b", long} {
		assert.Equal(t, want, body(c, ids[i]))
		assert.Equal(t, int64(0), c.Do("SHOW", ids[i]).Field("nacks").Int())
	}
	assert.Len(t, c.Do("WIP", "q").Elems, 3)
	assert.Equal(t, int64(1), c.Do("NACK", ids[2], "BODY", long).Int(), "the same body")
}

// A unique job without KEY keeps its key with another body: as long as it lives, and when it lives again.
func TestNackWithABodyKeepsTheKey(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	for _, strategy := range []string{"until-processed", "before-processing", "before-and-during-processing"} {
		id := add(t, c, strategy, "old", 0, "UNIQUE", strategy)
		get(t, c, strategy)
		require.Equal(t, int64(1), c.Do("NACK", id, "BODY", "new").Int())
		assert.Equal(t, "old", c.Do("SHOW", id).Field("key").Str)
		assert.True(t, c.Do("ADDJOB", strategy, "old", 0, "UNIQUE", strategy).Null, strategy)
		other := add(t, c, strategy, "new", 0, "UNIQUE", strategy)
		require.Equal(t, int64(1), c.Do("ACKJOB", other).Int())

		get(t, c, strategy)
		require.Equal(t, int64(1), c.Do("NACK", id, "DEAD").Int())
		get(t, c, strategy+":dead")
		require.Equal(t, int64(1), c.Do("NACK", id, "BODY", "newest").Int())
		require.Equal(t, int64(1), c.Do("MOVEJOB", id).Int())
		assert.Equal(t, []string{"old", "newest"}, []string{c.Do("SHOW", id).Field("key").Str, body(c, id)})

		// A dead letter that keeps its first body until then.
		id = add(t, c, strategy, "dies", 0, "UNIQUE", strategy)
		require.Len(t, c.Do("GETJOB", "COUNT", 9, "FROM", strategy).Elems, 2)
		require.Equal(t, int64(1), c.Do("NACK", id, "DEAD").Int())
		get(t, c, strategy+":dead")
		require.Equal(t, int64(1), c.Do("NACK", id, "BODY", "lives").Int())
		require.Equal(t, int64(1), c.Do("MOVEJOB", id).Int())
		assert.Equal(t, []string{"dies", "lives"}, []string{c.Do("SHOW", id).Field("key").Str, body(c, id)})
	}
}

// Restarts, replicas and copied keys have the new body.
func TestNackWithABodyIsSaved(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		var ids []string
		for i, options := range [][]any{nil, {"DELAY", 1000}, {"DEAD"}, {"REASON", "why"}} {
			id := add(t, c, fmt.Sprint("q", i), "old", 0, "UNIQUE", "until-processed")
			get(t, c, fmt.Sprint("q", i))
			require.Equal(t, int64(1), c.Do(append([]any{"NACK", id, "BODY", "a longer new one"}, options...)...).Int())
			ids = append(ids, id)
		}
		after := add(t, c, "after", "b", 0, "AFTER", ids[0])
		comeBack(t, s, mode)
		c = s.Dial()
		for i, id := range ids {
			assert.Equal(t, "a longer new one", body(c, id))
			assert.Equal(t, int64(1), c.Do("SHOW", id).Field("nacks").Int())
			if i != 2 {
				assert.Equal(t, "old", c.Do("SHOW", id).Field("key").Str)
				assert.True(t, c.Do("ADDJOB", fmt.Sprint("q", i), "old", 0, "UNIQUE", "until-processed").Null)
			}
		}
		require.Equal(t, ids[0], get(t, c, "q0"))
		require.Equal(t, int64(1), c.Do("NACK", ids[0], "BODY", "with dependents").Int())
		comeBack(t, s, mode)
		c = s.Dial()
		assert.Equal(t, "with dependents", body(c, ids[0]))
		assert.NotEqual(t, "queued", state(c, after))
		require.Equal(t, int64(1), c.Do("ACKJOB", ids[0]).Int())
		assert.Equal(t, "queued", state(c, after))
	}, "aof", "aof-kill", "aof-without-preamble", "rdb", "reload")
}
