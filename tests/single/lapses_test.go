package single

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// lapse fetches a job whose worker then vanishes, and waits until the job is in a queue again.
func lapse(t *testing.T, c *harness.Conn, queue, id, in string) {
	t.Helper()
	require.Equal(t, id, c.Do("GETJOB", "LEASE", 1, "FROM", queue).Elems[0].Elems[1].Str)
	harness.Await(t, 20*time.Second, "the lapse", func() bool { return state(c, id) == "queued" })
	require.Equal(t, in, c.Do("SHOW", id).Field("queue").Str)
}

// MAXLAPSES counts the deliveries that ended without a word, and no others. Restarts keep the count; a dead letter that lives again
// begins anew.
func TestMaxLapses(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		id := add(t, c, "q", "b", 0, "RETRY", 100, "MAXLAPSES", 2)
		lapse(t, c, "q", id, "q")
		for _, orderly := range []string{"NACK", "ENQUEUE", "NACK"} {
			get(t, c, "q")
			require.Equal(t, int64(1), c.Do(orderly, id).Int())
		}
		require.Len(t, c.Do("GETJOB", "LEASE", 1, "FROM", "q").Elems, 1)
		for range 4 {
			time.Sleep(400 * time.Millisecond) // the worker's own pace
			require.Equal(t, int64(1), c.Do("WORKING", id).Int())
		}
		require.Equal(t, int64(1), c.Do("NACK", id).Int())
		comeBack(t, s, mode)
		c = s.Dial()
		require.Equal(t, "q", c.Do("SHOW", id).Field("queue").Str)
		lapse(t, c, "q", id, "q:dead")
		assert.Equal(t, "max-lapses", c.Do("SHOW", id).Field("why").Str)
		assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_dead_max-lapses"))

		lapse(t, c, "q:dead", id, "q:dead")
		require.Equal(t, int64(1), c.Do("MOVEJOB", id).Int())
		lapse(t, c, "q", id, "q")
		lapse(t, c, "q", id, "q:dead")
	}, "aof", "rdb", "reload")
}

// MAXLAPSES is a setting, too, also for jobs that wait already. ADDJOB's word counts more.
func TestMaxLapsesAsASetting(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, saving("rdb"))
	c := s.Dial()
	id := add(t, c, "q", "b", 0)
	own := add(t, c, "p", "b", 0, "MAXLAPSES", 0)
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "*", "MAXLAPSES", 1).Str)
	assert.Equal(t, "1", c.Do("QCONFIG", "GET", "q").Field("maxlapses").Str)
	comeBack(t, s, "rdb")
	c = s.Dial()
	lapse(t, c, "q", id, "q:dead")
	lapse(t, c, "p", own, "p")
	once := add(t, c, "once", "b", 0, "RETRY", 0)
	require.Equal(t, once, get(t, c, "once"))
	ids := c.Do("ADDJOBS", "many", 0, "MAXLAPSES", 1, "DEAD", "graves", "BODIES", "a", "b").Strings()
	lapse(t, c, "many", ids[0], "graves")
	assert.Equal(t, ids[1], get(t, c, "many"))

	for _, bad := range []any{-1, 65536, "x", ""} {
		require.Equal(t, "ERR MAXLAPSES must be between 0 and 65535", c.Do("ADDJOB", "q", "b", 0, "MAXLAPSES", bad).Str)
		require.Equal(t, "ERR MAXLAPSES must be between 0 and 65535", c.Do("QCONFIG", "SET", "q", "MAXLAPSES", bad).Str)
	}
	require.Equal(t, "ERR MAXLAPSES needs a RETRY time: an at-most-once job is never tried again", c.Do("ADDJOB", "q", "b", 0, "RETRY", 0, "MAXLAPSES", 1).Str)
	require.True(t, c.Do("ADDJOB", "q", "b", 0, "RETRY", 0, "MAXLAPSES", 0).Kind == '+')
}
