package single

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A dead letter that is moved has its whole TTL anew, also if the job was given another time before it died. Restarts change nothing of that.
func TestRevivedHasItsWholeTTLAfterAnotherTime(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		const ttl = 1000
		now := time.Now().Unix()
		moves := func(at int64, options ...any) string {
			id := add(t, c, append([]any{"q", "b", 0, "TTL", ttl, "RETRY", 1}, options...)...)
			require.Equal(t, int64(1), c.Do("MOVEJOB", id, "AT", at).Int())
			return id
		}
		settles := []any{"q", "b", 0, "TTL", ttl, "RETRY", 1, "DELAY", 900, "UNIQUE", "until-processed", "KEY", "k"}
		jobs := map[string]string{
			"DELAY":                   add(t, c, "q", "b", 0, "TTL", ttl, "RETRY", 1, "DELAY", 900),
			"AT":                      add(t, c, "q", "b", 0, "TTL", ttl, "RETRY", 1, "AT", now+5000),
			"MOVEJOB AT":              moves(now + 900),
			"MOVEJOB AT of a DELAY":   moves(now+900, "DELAY", 500),
			"MOVEJOB AT, twice":       moves(now + 900),
			"MOVEJOB AT of an AT":     moves(now+900, "AT", now+500),
			"MOVEJOB AT now of an AT": moves(now-5, "AT", now+5000),
			"debounce":                add(t, c, settles...),
		}
		require.Equal(t, int64(1), c.Do("MOVEJOB", jobs["MOVEJOB AT, twice"], "AT", now+700).Int())
		settles[8] = 920
		require.Equal(t, jobs["debounce"], add(t, c, append(settles, "ONCONFLICT", "debounce", 950)...))
		require.Equal(t, int64(920), c.Do("SHOW", jobs["debounce"]).Field("delay").Int())
		comeBack(t, s, mode)
		c = s.Dial()
		for range 2 { // also when it dies once more
			for how, id := range jobs {
				c.Do("ENQUEUE", id)
				require.Equal(t, int64(1), c.Do("DEQUEUE", id).Int())
				require.Equal(t, int64(1), c.Do("NACK", id, "DEAD").Int())
				require.Equal(t, int64(1), c.Do("MOVEJOB", id).Int(), how)
				assert.InDelta(t, ttl, c.Do("SHOW", id).Field("ttl").Int(), 5, how)
			}
		}
	}, "aof", "rdb")
}
