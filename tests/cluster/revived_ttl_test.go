package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A job is given another time at one node, and dies and lives again at another that has a copy. It has its whole TTL anew, at both.
func TestRevivedAtAnotherNodeHasItsWholeTTL(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	c := m[0].Dial()
	const ttl = 1000
	now := time.Now().Unix()
	moved := added(t, c, "moved", "b", 5000, "REPLICATE", 2, "TTL", ttl, "RETRY", 60)
	require.Equal(t, int64(1), c.Do("MOVEJOB", moved, "AT", now+800).Int())
	at := added(t, c, "at", "b", 5000, "REPLICATE", 2, "TTL", ttl, "RETRY", 60, "AT", now+500)
	require.Equal(t, int64(1), c.Do("MOVEJOB", at, "AT", now+800).Int())
	settles := []any{"debounce", "b", 5000, "REPLICATE", 2, "TTL", ttl, "RETRY", 60, "DELAY", 700, "UNIQUE", "until-processed", "KEY", "k", "ONCONFLICT", "debounce", 950}
	settled := added(t, c, settles...)
	settles[10] = 800
	require.Equal(t, settled, added(t, c, settles...))
	for queue, id := range map[string]string{"moved": moved, "at": at, "debounce": settled} {
		harness.Await(t, 10*time.Second, "the copy to have the new time", func() bool {
			delay := m[1].Do("SHOW", id).Field("delay").Int()
			return delay > 790 && delay <= 800
		})
		require.Equal(t, int64(1), m[1].Do("ENQUEUE", id).Int())
		v := m[1].Do("GETJOB", "TIMEOUT", 10_000, "FROM", queue)
		require.NotEmpty(t, v.Elems)
		require.Equal(t, int64(1), m[1].Do("NACK", id, "DEAD").Int())
		require.Equal(t, int64(1), m[1].Do("MOVEJOB", id).Int())
		for _, s := range m {
			harness.Await(t, 10*time.Second, "the job to live again", func() bool { return s.Do("SHOW", id).Field("queue").Str == queue })
			assert.InDelta(t, ttl, s.Do("SHOW", id).Field("ttl").Int(), 10, queue)
		}
	}
}
