package single

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// DEADMAX bounds a dead-letter queue: when a further dead letter comes, the oldest goes. Other jobs stay. Restarts keep the setting.
func TestDeadLetterQueuesAreBounded(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		require.Equal(t, "OK", c.Do("QCONFIG", "SET", "*:dead", "DEADMAX", 3).Str)
		if mode != "" {
			comeBack(t, s, mode)
			c = s.Dial()
		}
		assert.Equal(t, "3", c.Do("QCONFIG", "GET", "q:dead", "DEADMAX").Field("deadmax").Str)
		die := func(queue string) string {
			id := add(t, c, queue, "b", 0)
			get(t, c, queue)
			require.Equal(t, int64(1), c.Do("NACK", id, "DEAD").Int())
			return id
		}
		var ids []string
		for range 8 {
			ids = append(ids, die("q"))
			other := die("other")
			defer c.Do("ACKJOB", other)
		}
		harness.Await(t, 10*time.Second, "the oldest to go", func() bool { return c.Do("QLEN", "q:dead").Is(3) })
		for i, id := range ids {
			assert.Equal(t, i < 5, c.Do("SHOW", id).Null, i)
		}
		harness.Await(t, 10*time.Second, "those of the other queue to go, too", func() bool { return s.Info("jobmesh", "jobmesh_jobs_dropped") == "10" })

		// A job that is no dead letter isn't ended, and nothing behind it is.
		require.Equal(t, "OK", c.Do("QCONFIG", "SET", "*", "DEAD", "graves").Str)
		require.Equal(t, "OK", c.Do("QCONFIG", "SET", "graves", "DEADMAX", 1).Str)
		own := add(t, c, "graves", "b", 0)
		first, second := die("p"), die("p")
		add(t, c, "p", "a further step of the clock", 0)
		for _, id := range []string{own, first, second} {
			assert.False(t, c.Do("SHOW", id).Null)
		}
	}, "", "aof", "rdb", "reload")
	c := harness.Start(t).Dial()
	for _, bad := range []any{-1, "x", "", 1 << 31} {
		require.Equal(t, "ERR DEADMAX must be a number of jobs, 0 to 2147483647", c.Do("QCONFIG", "SET", "q", "DEADMAX", bad).Str, fmt.Sprint(bad))
	}
}
