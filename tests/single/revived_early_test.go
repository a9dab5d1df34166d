package single

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A dead letter that is moved is queued, whatever its DELAY was: also a unique one that was queued early, or died, before that was over. A restart
// doesn't bring the delay back.
func TestRevivedIsQueuedThoughItsDelayIsntOver(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		var ids []string
		for _, options := range [][]any{{"RETRY", 50}, {"UNIQUE", "until-processed", "KEY", "k"}, {"UNIQUE", "during-processing", "KEY", "l"}} {
			early := add(t, c, append([]any{"q", "b", 0, "DELAY", 3600}, options...)...)
			require.Equal(t, int64(1), c.Do("ENQUEUE", early).Int())
			assert.Equal(t, int64(0), c.Do("SHOW", early).Field("delay").Int())
			delayed := add(t, c, append([]any{"p", "b", 0, "DELAY", 3600}, options...)...)
			require.Equal(t, int64(1), c.Do("NACK", delayed, "DEAD").Int())
			ids = append(ids, early, delayed)
		}
		comeBack(t, s, mode)
		c = s.Dial()
		for i, id := range ids {
			if i%2 == 0 {
				require.Equal(t, id, get(t, c, "q"))
				require.Equal(t, int64(1), c.Do("NACK", id, "DEAD").Int())
			}
			require.Equal(t, int64(1), c.Do("MOVEJOB", id).Int())
			assert.Equal(t, "queued", state(c, id), i)
			require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
		}
	}, "aof", "rdb", "reload")
}
