package single

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// MOVEJOB … AT gives a waiting, delayed or put-off job, and a dead letter that lives again, another time. Restarts keep it.
func TestMoveJobAt(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		soon, later := time.Now().Unix()+6, time.Now().Unix()+5000
		waits := add(t, c, "q", "waits", 0)
		delayed := add(t, c, "q", "delayed", 0, "DELAY", 1000)
		rests := add(t, c, "q", "rests", 0)
		far := add(t, c, "q", "far", 0, "PRIORITY", 5)
		unique := add(t, c, "u", "unique", 0, "UNIQUE", "until-processed", "DELAY", 5000)
		dead := dies(t, c, "d", "dead", "UNIQUE", "until-processed")
		require.Equal(t, far, get(t, c, "q"))
		require.Equal(t, int64(1), c.Do("ENQUEUE", far).Int())
		require.Equal(t, waits, c.Do("GETJOB", "COUNT", 2, "FROM", "q").Elems[1].Elems[1].Str)
		require.Equal(t, int64(2), c.Do("NACK", waits, far).Int())
		require.Equal(t, int64(1), c.Do("DEQUEUE", far).Int())
		require.Equal(t, waits, get(t, c, "q"))
		require.Equal(t, int64(1), c.Do("ENQUEUE", waits).Int())
		require.Equal(t, waits, get(t, c, "q"))
		require.Equal(t, int64(1), c.Do("NACK", waits).Int())
		require.Equal(t, waits, get(t, c, "q"))
		require.Equal(t, rests, get(t, c, "q"))
		require.Equal(t, int64(2), c.Do("NACK", rests, waits, "DELAY", 2000).Int())
		require.Equal(t, int64(1), c.Do("ENQUEUE", waits).Int())
		before := c.Do("SHOW", waits)

		require.Equal(t, int64(4), c.Do("MOVEJOB", waits, delayed, rests, unique, "AT", soon).Int())
		require.Equal(t, int64(1), c.Do("MOVEJOB", far, "AT", later, "PRIORITY", 9, "TO", "p").Int())
		require.Equal(t, int64(1), c.Do("MOVEJOB", dead, "AT", soon, "TO", "d").Int())
		comeBack(t, s, mode)
		c = s.Dial()
		assert.Equal(t, int64(0), c.Do("QLEN", "q").Int())
		assert.Equal(t, int64(3), c.Do("QSTAT", "q").Field("delayed").Int())
		assert.InDelta(t, 5_000_000, due(c, far), 20_000)
		assert.True(t, c.Do("ADDJOB", "u", "unique", 0, "UNIQUE", "until-processed").Null, "it keeps its key")
		assert.True(t, c.Do("ADDJOB", "d", "dead", 0, "UNIQUE", "until-processed").Null, "so does one that lives again")
		for _, id := range []string{waits, delayed, rests, unique, dead} {
			harness.Await(t, 20*time.Second, "the job to be due", func() bool { return state(c, id) == "queued" })
		}
		assert.InDelta(t, soon, time.Now().Unix(), 3)
		assert.Equal(t, before.Field("additional-deliveries").Int(), c.Do("SHOW", waits).Field("additional-deliveries").Int())
		assert.Equal(t, []string{"waits", "delayed", "rests"}, order(c, "q"))

		require.Equal(t, int64(1), c.Do("MOVEJOB", far, "AT", 5).Int(), "a time that is past")
		harness.Await(t, 10*time.Second, "the job to be queued", func() bool { return state(c, far) == "queued" })
		require.Equal(t, int64(1), c.Do("MOVEJOB", far, "AT", 5).Int(), "it waits already")
		assert.Equal(t, "queued", state(c, far))
		assert.Equal(t, int64(9), c.Do("SHOW", far).Field("priority").Int())
	}, "aof", "aof-kill", "rdb", "reload")
}

// AT is refused where it means nothing. ENQUEUE brings a job before its time.
func TestMoveJobAtErrors(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 10, "TTL", 100)
	deferred := add(t, c, "q", "b", 0, "DEFERRED")
	dead := dies(t, c, "d", "dead")
	soon := time.Now().Unix() + 1000
	const wrong = "ERR AT must be a unix time in seconds, at most 2147483646 s ahead"
	for _, bad := range []any{-1, "x", "", "1.5.", soon + 2147483647} {
		require.Equal(t, wrong, c.Do("MOVEJOB", id, "AT", bad).Str)
	}
	for _, args := range [][]any{{id, "AT"}, {id, "AT", soon, "AT", soon}, {"FROM", "q", "AT", soon}, {"AT", soon}} {
		require.Equal(t, "ERR syntax error", c.Do(append([]any{"MOVEJOB"}, args...)...).Str)
	}
	require.True(t, c.Do("MOVEJOB", deferred, "AT", soon).Err("HELDBACK The job is deferred or blocked: it comes when it is released"))
	require.Equal(t, "ERR a dead letter gets a time only where it is to live again: say TO", c.Do("MOVEJOB", dead, "AT", soon).Str)
	assert.Equal(t, "queued", state(c, id))

	require.Equal(t, int64(1), c.Do("MOVEJOB", id, deferred, dead, "AT", soon).Int())
	assert.InDelta(t, 90_000, due(c, id), 5000, "a retry time of its life is left")
	assert.Equal(t, int64(0), c.Do("QLEN", "q").Int())
	require.Equal(t, int64(1), c.Do("ENQUEUE", id).Int())
	require.Equal(t, id, get(t, c, "q"))
	require.True(t, c.Do("MOVEJOB", id, "AT", soon).Err("INPROGRESS"))
	assert.Equal(t, int64(10), c.Do("WORKING", id).Int())
}
