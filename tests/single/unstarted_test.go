package single

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// ENQUEUE … UNSTARTED takes a delivery back: it counts neither as an additional one, nor for MAXDELIVERIES. Restarts keep that.
func TestEnqueueUnstarted(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		id := add(t, c, "q", "b", 0, "MAXDELIVERIES", 2)
		other := add(t, c, "q", "b", 0)
		counts := func(deliveries, additional int64) {
			t.Helper()
			v := c.Do("SHOW", id)
			assert.Equal(t, deliveries, v.Field("deliveries").Int())
			assert.Equal(t, additional, v.Field("additional-deliveries").Int())
		}
		for i := range 3 {
			job := c.Do("GETJOB", "COUNT", 2, "WITHCOUNTERS", "WITHINFO", "FROM", "q").Elems[0].Elems
			assert.Equal(t, []string{id, "additional-deliveries"}, []string{job[1].Str, job[5].Str})
			assert.Equal(t, int64(0), job[6].Int())
			assert.Equal(t, int64(0), job[7].Field("deliveries").Int())
			assert.Equal(t, int64(1), c.Do("WIP", "q").Elems[0].Elems[3].Int())
			counts(1, 0)
			require.Equal(t, int64(2), c.Do("ENQUEUE", id, other, []string{"UNSTARTED", "unstarted", "Unstarted"}[i]).Int())
			counts(0, 0)
		}
		comeBack(t, s, mode)
		c = s.Dial()
		counts(0, 0)
		assert.Equal(t, int64(0), c.Do("ENQUEUE", id, "UNSTARTED").Int(), "it is in its queue")

		require.Len(t, c.Do("GETJOB", "COUNT", 2, "FROM", "q").Elems, 2)
		require.Equal(t, int64(1), c.Do("ENQUEUE", id).Int())
		counts(1, 1)
		require.Equal(t, id, get(t, c, "q"))
		require.Equal(t, int64(1), c.Do("NACK", id).Int())
		assert.Equal(t, "max-deliveries", c.Do("SHOW", id).Field("why").Str)
		require.Equal(t, int64(1), c.Do("MOVEJOB", id).Int())
		counts(0, 1)
	}, "aof", "rdb", "reload")
}

// A wrong call changes nothing; on jobs that nobody has it is ENQUEUE.
func TestEnqueueUnstartedErrors(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0)
	get(t, c, "q")
	for _, args := range [][]any{{"UNSTARTED"}, {id, "UNSTARTED", "UNSTARTED"}, {id, "UNSTARTED", id}} {
		require.Equal(t, "ERR syntax error", c.Do(append([]any{"ENQUEUE"}, args...)...).Str)
	}
	require.True(t, c.Do("ENQUEUE", id, "x", "UNSTARTED").Err("BADID"))
	assert.Len(t, c.Do("WIP", "q").Elems, 1)
	assert.Equal(t, int64(0), c.Do("ENQUEUE").Int())
	require.Equal(t, int64(1), c.Do("NACK", id, "DELAY", 1000).Int())
	require.Equal(t, int64(1), c.Do("ENQUEUE", id, "UNSTARTED").Int())
	delayed := add(t, c, "q", "b", 0, "DELAY", 1000)
	require.Equal(t, int64(1), c.Do("ENQUEUE", delayed, "UNSTARTED").Int())
	get(t, c, "q")
	get(t, c, "q")
	require.Equal(t, int64(1), c.Do("ENQUEUE", delayed).Int())
	assert.Equal(t, int64(1), c.Do("SHOW", delayed).Field("additional-deliveries").Int())
	once := add(t, c, "once", "b", 0, "RETRY", 0)
	get(t, c, "once")
	assert.Equal(t, int64(0), c.Do("ENQUEUE", once, "UNSTARTED").Int())
}
