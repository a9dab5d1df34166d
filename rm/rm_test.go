package rm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// The example runs once as modules are built, and once under the C compiler's sanitizers. The latter is
// a long test, since the compiler builds all of Go for them.
func TestExample(t *testing.T) {
	example(t, harness.WithModule(harness.Build(t, "./rm/example")))
}

func TestLongExampleSanitized(t *testing.T) {
	example(t, harness.Sanitized(t, "./rm/example"))
}

func example(t *testing.T, module harness.Option) {
	t.Run("command and type", func(t *testing.T) {
		s := harness.Start(t, module)
		c := s.Dial()
		assert.Equal(t, int64(5), c.Do("COUNTER.ADD", "n", 5).Int())
		assert.Equal(t, int64(3), c.Do("COUNTER.ADD", "n", -2).Int())
		assert.Equal(t, "counter-t", c.Do("TYPE", "n").Str)
		c.Do("SET", "text", "x")
		assert.True(t, c.Do("COUNTER.ADD", "text", 1).Err("WRONGTYPE"))
		assert.True(t, c.Do("COUNTER.ADD", "n").Err("ERR wrong number of arguments for 'counter.add' command"))
		dump := []byte(c.Do("DUMP", "n").Str)
		assert.Equal(t, "OK", c.Do("RESTORE", "m", 0, dump).Str)
		assert.Equal(t, int64(4), c.Do("COUNTER.ADD", "m", 1).Int())
		assert.GreaterOrEqual(t, c.Do("MEMORY", "USAGE", "n").Int(), int64(24))
		digest := c.Do("DEBUG", "DIGEST").Str
		require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
		assert.Equal(t, digest, c.Do("DEBUG", "DIGEST").Str)
		assert.Equal(t, []string{"n"}, c.Do("COMMAND", "GETKEYS", "COUNTER.ADD", "n", 1).Strings())
		assert.Equal(t, "Adds to a counter.", c.Do("COMMAND", "DOCS", "counter.add").Elems[1].Field("summary").Str)
	})

	t.Run("rewrites", func(t *testing.T) {
		c := harness.Start(t, module).Dial()
		unknown := func(args ...any) { assert.True(t, c.Do(args...).Err("ERR unknown command"), "%v", args) }
		unknown("COUNT", "n", 5)
		require.Equal(t, "OK", c.Do("COUNTER.SHORT", "yes").Str)
		assert.Equal(t, int64(5), c.Do("count", "n", 5).Int())
		assert.Equal(t, int64(6), c.Do("uP", "ONE").Int(), "more words in place of fewer")
		assert.Equal(t, int64(13), c.Do("COUNT", "UP", "IN", "STEPS", "n", 7).Int(), "fewer in place of more")
		assert.True(t, c.Do("COUNT", "n").Err("ERR wrong number of arguments for 'counter.add' command"))
		assert.Equal(t, int64(14), c.Do("EVAL", "return redis.call('count', KEYS[1], 1)", 1, "n").Int())
		c.Do("MULTI")
		assert.Equal(t, "QUEUED", c.Do("COUNT", "n", 1).Str)
		assert.Equal(t, int64(15), c.Do("EXEC").Elems[0].Int())
		for _, args := range [][]any{{"COUNT", "n", 1, "and more"}, {"UP"}, {"UP", "ones"}, {"UP", "one", "n"}, {"UQ", "one"}, {"COUNTS", "n", 1}, {"5OUNT", "n", 1}, {""}} {
			unknown(args...)
		}
		require.Equal(t, "OK", c.Do("COUNTER.SHORT", "no").Str)
		unknown("COUNT", "n", 5)
	})

	t.Run("rights", func(t *testing.T) {
		s := harness.Start(t, module)
		c, u := s.Dial(), s.Dial()
		c.Do("ACL", "SETUSER", "u", "on", "nopass", "+@all", "-shutdown", "-config|set")
		require.Equal(t, "OK", u.Do("AUTH", "u", "").Str)
		asked := func(c *harness.Conn, args ...any) string {
			return c.Do(append([]any{"COUNTER.MAY"}, args...)...).String()
		}
		yes, no := `*[:1 $":1\r\n"]`, `*[:0 $":1\r\n"]`
		assert.Equal(t, yes, asked(c, "SHUTDOWN"))
		assert.Equal(t, no, asked(u, "SHUTDOWN"))
		assert.Equal(t, yes, asked(u, "config", "get"))
		assert.Equal(t, no, asked(u, "config", "set"))
		assert.Equal(t, no, asked(c, "nosuch"), "what there isn't")
		c.Do("ACL", "DELUSER", "u")
	})

	t.Run("restart", func(t *testing.T) {
		for _, preamble := range []string{"yes", "no"} {
			s := harness.Start(t, module, harness.WithConfig("appendonly yes", "aof-use-rdb-preamble "+preamble))
			c := s.Dial()
			c.Do("COUNTER.ADD", "n", 5)
			c.Do("BGREWRITEAOF")
			harness.Await(t, 10*time.Second, "the rewrite", func() bool {
				return s.Info("persistence", "aof_rewrite_in_progress") == "0" && s.Info("persistence", "aof_rewrite_scheduled") == "0"
			})
			c.Do("COUNTER.ADD", "n", 1)
			s.Stop()
			s.Restart()
			assert.Equal(t, int64(7), s.Do("COUNTER.ADD", "n", 1).Int())
		}
	})

	t.Run("blocking", func(t *testing.T) {
		s := harness.Start(t, module)
		c := s.Dial()
		assert.Equal(t, "now", c.Do("COUNTER.LATER", 20).Str)
		gone := s.Dial()
		gone.Send("COUNTER.LATER", 50)
		gone.Close()
		assert.Equal(t, "now", c.Do("COUNTER.LATER", 100).Str)
		assert.Equal(t, byte('-'), c.Do("EVAL", "return redis.call('COUNTER.LATER','1')", 0).Kind)
	})

	t.Run("waiting for keys", func(t *testing.T) {
		s := harness.Start(t, module, harness.WithPanics())
		c, first, second := s.Dial(), s.Dial(), s.Dial()
		await := func(n int) {
			harness.Await(t, 3*time.Second, "blocked clients", func() bool { return s.Info("clients", "blocked_clients") == fmt.Sprint(n) })
		}
		c.Do("COUNTER.ADD", "n", 5)
		assert.Equal(t, int64(5), first.Do("COUNTER.TAKE", "n", 0).Int())
		assert.Equal(t, int64(0), c.Do("EXISTS", "n").Int())
		assert.True(t, first.Do("COUNTER.TAKE", "n", 20).NullArray())
		first.Send("COUNTER.TAKE", "m", "n", 0)
		await(1)
		second.Send("COUNTER.TAKE", "n", 0)
		await(2)
		c.Do("RPUSH", "n", "other")
		c.Do("DEL", "n")
		assert.True(t, first.Silent(20*time.Millisecond))
		c.Do("COUNTER.ADD", "n", 6)
		assert.Equal(t, int64(6), first.Receive().Int())
		c.Do("COUNTER.ADD", "elsewhere", 13)
		assert.Equal(t, int64(1), c.Do("COPY", "elsewhere", "n").Int())
		assert.True(t, second.Receive().Err("ERR internal error: thirteen"))
		assert.True(t, c.Do("COUNTER.TAKE", "n", 0).Err("ERR internal error: thirteen"))
		assert.Equal(t, int64(14), c.Do("COUNTER.ADD", "n", 1).Int(), "the copy is one of its own")
		assert.Equal(t, int64(14), c.Do("COUNTER.ADD", "elsewhere", 1).Int())
		c.Do("SET", "text", "x")
		assert.True(t, c.Do("COUNTER.TAKE", "text", 0).Err("WRONGTYPE"))
		assert.Equal(t, int64(2), c.Do("COUNTER.PANICS").Int())
	})

	// One thread owns the state. Functions that goroutines post run on it, and one wake-up at
	// a time serves any number of them.
	t.Run("posts", func(t *testing.T) {
		c := harness.Start(t, module).Dial()
		for range 20 {
			v := c.Do("COUNTER.POST", 50)
			require.Len(t, v.Elems, 2)
			assert.Equal(t, int64(5000), v.Elems[0].Int(), "all of them, on the main thread")
			assert.LessOrEqual(t, v.Elems[1].Int(), int64(2), "calls into C: one that wakes, and what else the runtime does")
		}
	})

	// A panic never takes the server down.
	t.Run("panics", func(t *testing.T) {
		s := harness.Start(t, module, harness.WithPanics())
		c := s.Dial()
		assert.True(t, c.Do("COUNTER.PANIC").Err("ERR internal error: asked for"))
		assert.Equal(t, "OK", c.Do("COUNTER.GOPANIC").Str)
		harness.Await(t, 5*time.Second, "both panics to be counted", func() bool { return c.Do("COUNTER.PANICS").Int() == 2 })
		assert.Contains(t, s.Log(), "panic (recovered; please report it): in a goroutine")
		assert.Contains(t, s.Log(), "rm/example/main.go")
	})
}

// No Go runs in a forked child. Saves, rewrites and full syncs end while goroutines and the
// collector are busy. With Go in the child they would hang.
func TestForks(t *testing.T) {
	harness.NotSanitized(t, harness.ForksHang)
	module := harness.WithModule(harness.Build(t, "./rm/example"))
	s := harness.Start(t, module, harness.WithConfig("appendonly yes", "aof-use-rdb-preamble no"))
	c := s.Dial()
	for i := range 2000 {
		c.Do("COUNTER.ADD", fmt.Sprint("n", i), i)
	}
	require.Equal(t, "OK", c.Do("COUNTER.BUSY", 3).Str)
	s.SaveOften(25)
	for range 3 {
		r := harness.Start(t, module, harness.WithConfig(fmt.Sprint("replicaof 127.0.0.1 ", s.Port)))
		harness.Await(t, 30*time.Second, "a full sync", func() bool { return r.Info("replication", "master_link_status") == "up" })
		assert.Equal(t, int64(2000), r.Do("DBSIZE").Int())
	}
}
