package single

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// T13: AT says by the clock when a job is due, and its TTL counts from then. A time that is past means now.
func TestLifeT13(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	tomorrow := time.Now().Add(24 * time.Hour).Unix()
	id := add(t, c, "q", "tomorrow", 0, "AT", tomorrow, "TTL", 60)
	v := c.Do("SHOW", id)
	assert.InDelta(t, 86400, v.Field("delay").Int(), 5)
	assert.InDelta(t, 86460, v.Field("ttl").Int(), 5)
	assert.EqualValues(t, 6, v.Field("retry").Int(), "a tenth of the TTL that counts from then")
	assert.InDelta(t, tomorrow*1000-time.Now().UnixMilli(), v.Field("next-requeue-within").Int(), 1000)

	past := add(t, c, "p", "past", 0, "AT", time.Now().Unix()-1000, "TTL", 60)
	assert.LessOrEqual(t, c.Do("SHOW", past).Field("ttl").Int(), int64(60))
	require.Equal(t, past, get(t, c, "p"))
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "p", "DELAY", 50).Str)
	now := add(t, c, "p", "in spite of the setting", 0, "AT", 0)
	require.Equal(t, now, get(t, c, "p"))

	for _, bad := range []any{-1, "x", "", 1 << 48, time.Now().Unix() + 1<<31, "99999999999999999999"} {
		require.True(t, c.Do("ADDJOB", "q", "b", 0, "AT", bad).Err("ERR AT must be a unix time in seconds, at most 2147483646 s ahead"), "%v", bad)
	}
	require.True(t, c.Do("ADDJOB", "q", "b", 0, "AT", tomorrow, "DELAY", 0).Err("ERR AT and DELAY exclude each other"))
	require.True(t, c.Do("ADDJOB", "q", "b", 0, "DELAY", 5, "AT", 0).Err("ERR AT and DELAY exclude each other"))
	require.True(t, c.Do("ADDJOB", "q", "b", 0, "AT").Err("ERR syntax error"))
	far := add(t, c, "q", "far", 0, "AT", time.Now().Unix()+1<<31-10)
	assert.InDelta(t, 1<<31, c.Do("SHOW", far).Field("ttl").Int(), 20)
}

// A job is due exactly at its time, whatever part of a second it was when it was added, and after restarts. It expires its TTL after that.
func TestJobsAreDueAtTheirTime(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		at := time.Now().Unix() + 3
		id := add(t, c, "q", "b", 0, "AT", at, "RETRY", 100, "TTL", 300)
		unique := c.Do("ADDJOBS", "u", 0, "AT", at, "UNIQUE", "until-processed", "PAIRS", "k", "b").Elems[0].Str
		short := add(t, c, "short", "b", 0, "AT", at, "TTL", 1)
		if mode != "" {
			comeBack(t, s, mode)
			c = s.Dial()
		}
		require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
		require.Equal(t, id, waitFor(t, c, "q"))
		late := time.Since(time.Unix(at, 0))
		assert.GreaterOrEqual(t, late, time.Duration(0))
		assert.Less(t, late, 500*time.Millisecond)
		require.Equal(t, unique, waitFor(t, c, "u"))
		harness.Await(t, 10*time.Second, "the job with a TTL of a second to expire", func() bool { return c.Do("SHOW", short).Null })
		assert.InDelta(t, 1, time.Since(time.Unix(at, 0)).Seconds(), 0.7)
	}, "", "aof", "rdb", "reload")
}

// DELAY, AT and NACK's DELAY take fractions of seconds: a job comes at that ms, also after restarts.
func TestFractionsOfSeconds(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		began := time.Now()
		id := add(t, c, "q", "b", 0, "DELAY", "2.25", "RETRY", 100, "TTL", 300)
		at := add(t, c, "at", "b", 0, "AT", fmt.Sprintf("%.3f", float64(began.UnixMilli()+2500)/1000), "RETRY", 100)
		back := add(t, c, "back", "b", 0, "RETRY", 100)
		get(t, c, "back")
		require.Equal(t, int64(1), c.Do("NACK", back, "DELAY", "2.75").Int())
		moved := add(t, c, "moved", "b", 0, "RETRY", 100)
		require.Equal(t, int64(1), c.Do("MOVEJOB", moved, "AT", fmt.Sprintf("%.3f", float64(began.UnixMilli()+3000)/1000)).Int())
		if mode != "" {
			comeBack(t, s, mode)
			c = s.Dial()
		}
		for i, x := range []struct{ queue, id string }{{"q", id}, {"at", at}, {"back", back}, {"moved", moved}} {
			require.Equal(t, x.id, waitFor(t, c, x.queue))
			assert.GreaterOrEqual(t, time.Since(began), 2250*time.Millisecond+time.Duration(i)*250*time.Millisecond-100*time.Millisecond, x.queue) // the server reads the clock once in a while
		}
		assert.Less(t, time.Since(began), 5*time.Second)
	}, "", "aof", "rdb", "reload")
	c := harness.Start(t).Dial()
	for _, bad := range []string{"-0.5", "1e3", "+1.5", "0x1.8", ".", "", "1.5.", "inf", "1e400"} {
		require.True(t, c.Do("ADDJOB", "q", "b", 0, "DELAY", bad).Err("ERR DELAY time must be a non negative number"), "%q", bad)
		require.True(t, c.Do("ADDJOB", "q", "b", 0, "AT", bad).Err("ERR AT must be a unix time"), "%q", bad)
		require.True(t, c.Do("NACK", unknown, "DELAY", bad).Err("ERR DELAY time must be a non negative number"), "%q", bad)
		require.True(t, c.Do("MOVEJOB", unknown, "AT", bad).Err("ERR AT must be a unix time"), "%q", bad)
	}
	for _, bad := range []string{"2147483647.5", "99999999999999999999.5"} {
		require.True(t, c.Do("ADDJOB", "q", "b", 0, "DELAY", bad).Err("ERR DELAY time must be a non negative number"), "%q", bad)
	}
	ms := add(t, c, "q", "b", 0, "DELAY", "0.0001")
	require.Equal(t, ms, waitFor(t, c, "q"))
}
