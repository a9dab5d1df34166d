package single

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// I2, as far as a test can tell: a waiting job of 100 bytes takes 222 bytes with its part of the queue's skip list, and nothing for what it doesn't use.
func TestLifeI2(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	usage := func() int64 { return c.Do("MEMORY", "USAGE", "q", "SAMPLES", 0).Int() }
	body := strings.Repeat("x", 100)
	add(t, c, "q", body, 0)
	before := usage()
	const jobs = 1000
	for range jobs {
		c.Later("ADDJOB", "q", body, 0, "RETRY", 60)
	}
	for range jobs {
		require.Equal(t, byte('+'), c.Receive().Kind)
	}
	// 120 bytes of a job's own, 100 of its body, and for one of 16 a node of at least 24.
	assert.Less(t, float64(usage()-before)/jobs, 223.0)
	for _, used := range [][]any{{"PRIORITY", 1}, {"KEEP", 60}, {"MAXNACKS", 3}, {"NAME", "n"}} {
		before := usage()
		add(t, c, append([]any{"q", body, 0}, used...)...)
		assert.Less(t, usage()-before, int64(400), "%v", used)
	}
}

// I4: tries, places, priorities, outcomes and dead letters come through restarts, other names and DUMP as they were, and a replica has them.
func TestLifeI4(t *testing.T) {
	t.Parallel()
	fill := func(t *testing.T, c *harness.Conn) (ids []string) {
		tried := add(t, c, "q", "tried", 0, "MAXNACKS", 5, "MAXDELIVERIES", 9, "PRIORITY", 7)
		for range 3 {
			require.Equal(t, tried, get(t, c, "q"))
			require.Equal(t, int64(1), c.Do("NACK", tried, "REASON", "third").Int())
		}
		rests := add(t, c, "q", "rests", 0, "PRIORITY", 50)
		require.Equal(t, rests, get(t, c, "q"))
		require.Equal(t, int64(1), c.Do("NACK", rests, "DELAY", 5000).Int())
		done := add(t, c, "q", "done", 0, "PRIORITY", 50)
		require.Equal(t, done, get(t, c, "q"))
		require.Equal(t, int64(1), c.Do("ACKJOB", done, "RESULT", "42", "KEEP", 6000).Int())
		dead := dies(t, c, "w", "dead", "DEAD", "q", "PRIORITY", 3)
		revived := dies(t, c, "v", "revived")
		require.Equal(t, int64(1), c.Do("MOVEJOB", revived, "TO", "q").Int())
		plain := add(t, c, "q", "plain", 0, "PRIORITY", -4)
		return []string{tried, rests, done, dead, revived, plain}
	}
	// told is what SHOW says, but for what goes by the time of the call and the name of the queue.
	told := func(c *harness.Conn, ids []string) (all []string) {
		for _, id := range ids {
			v := c.Do("SHOW", id)
			text := ""
			for i := 0; i+1 < len(v.Elems); i += 2 {
				switch name := v.Elems[i].Str; name {
				case "queue", "ttl", "next-requeue-within", "next-awake-within", "nodes-delivered", "nodes-confirmed":
				default:
					text += name + "=" + v.Elems[i+1].String() + " "
				}
			}
			all = append(all, text)
		}
		return all
	}
	want := []string{"tried", "dead", "revived", "plain"}
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		ids := fill(t, c)
		before := told(c, ids)
		c, queue := handOn(t, s, c, mode)
		assert.Equal(t, before, told(c, ids))
		assert.Equal(t, want, order(c, queue))
	}, "aof", "rdb", "reload", "rename", "restore")
	t.Run("replica", func(t *testing.T) {
		t.Parallel()
		s := harness.Start(t)
		r := harness.Start(t, harness.WithReplicaOf(s))
		r.AwaitSync()
		ids := fill(t, s.Dial())
		before := told(s.Dial(), ids)
		r.AwaitStream(s)
		require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
		c := r.Dial()
		harness.Await(t, 20*time.Second, "the promoted node to have its queue", func() bool { return c.Do("QLEN", "q").Is(4) })
		assert.Equal(t, before, told(c, ids))
		assert.Equal(t, want, order(c, "q"))
	})
	t.Run("move", func(t *testing.T) {
		t.Parallel()
		c := harness.Start(t).Dial()
		ids := fill(t, c)
		before := told(c, ids)
		require.Equal(t, int64(1), c.Do("MOVE", "q", 1).Int())
		c.Do("SELECT", 1)
		require.Equal(t, int64(1), c.Do("MOVE", "q", 0).Int())
		c.Do("SELECT", 0)
		assert.Equal(t, before, told(c, ids))
		assert.Equal(t, want, order(c, "q"))
	})
}
