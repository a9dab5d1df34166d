package single

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// words sends a command given as one line.
func words(c *harness.Conn, line string) harness.Value {
	var args []any
	for _, w := range strings.Fields(line) {
		args = append(args, w)
	}
	return c.Do(args...)
}

// expect runs lines "command -> reply as the harness prints it".
func expect(t *testing.T, c *harness.Conn, lines ...string) {
	t.Helper()
	for _, line := range lines {
		cmd, want, ok := strings.Cut(line, " -> ")
		require.True(t, ok, line)
		assert.Equal(t, want, words(c, cmd).String(), cmd)
	}
}

func awaitServerBlocked(t *testing.T, s *harness.Server, n int) {
	t.Helper()
	harness.Await(t, 3*time.Second, fmt.Sprint(n, " blocked clients"), func() bool {
		return s.Info("clients", "blocked_clients") == fmt.Sprint(n)
	})
}

func TestUniqueQueue(t *testing.T) {
	s := harness.Start(t)
	for db, c := range []*harness.Conn{s.Dial(), s.Dial3()} {
		none, nothing := "$null", "*null"
		if db == 1 {
			none, nothing = "_null", "_null"
		}
		c.Do("SELECT", db)
		expect(t, c,
			"UQ.LEN q -> :0", "UQ.HAS q x -> :0", "UQ.REM q x -> :0", "UQ.POP q -> "+nothing, "UQ.PEEK q -> "+nothing,
			"UQ.POP q COUNT 3 -> "+nothing, "UQ.PEEK q COUNT 3 -> "+nothing, "EXISTS q -> :0",
			"UQ.PUSH q x AT 7 -> :1", "UQ.PUSH q x AT 8 -> "+none, "UQ.LEN q -> :1", "TYPE q -> +\"jobmesh-u\"",
			"UQ.POP q -> *[$\"x\" :7]", "EXISTS q -> :0", "UQ.PUSH q x at +009 -> :1",
			"UQ.PUSH q y AT 0 -> :2", "UQ.PUSH q z AT 281474976710655 -> :3", "UQ.PUSH other x AT 1 -> :1",
			"UQ.HAS q y -> :1", "UQ.HAS q nope -> :0",
			"UQ.PEEK q -> *[$\"x\" :9]", "UQ.PEEK q COUNT 2 -> *[*[$\"x\" :9] *[$\"y\" :0]]", "UQ.LEN q -> :3",
			"UQ.REM q y nope y -> :1", "UQ.PEEK q COUNT 9223372036854775807 -> *[*[$\"x\" :9] *[$\"z\" :281474976710655]]",
			"UQ.PUSH q y AT 5 -> :3", "UQ.POP q COUNT 2 -> *[*[$\"x\" :9] *[$\"z\" :281474976710655]]",
			"UQ.POP q count 100 -> *[*[$\"y\" :5]]", "EXISTS q -> :0",
			"UQ.PUSH q a AT 1 -> :1", "UQ.PUSH q b AT 1 -> :2", "UQ.REM q b a -> :2", "EXISTS q -> :0",
			"UQ.PUSH q a AT 1 -> :1", "DEL q -> :1", "UQ.LEN q -> :0", "UQ.PUSH q a AT 1 -> :1", "UNLINK q -> :1",
			"UQ.POP other -> *[$\"x\" :1]", "DBSIZE -> :0")
	}
	c := s.Dial()
	before := time.Now().Unix()
	c.Do("UQ.PUSH", "q", "now")
	assert.InDelta(t, before, c.Do("UQ.POP", "q").Elems[1].Int(), 1)
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
}

// UQ.STAT counts the refused items since the queue was last empty.
func TestDuplicatesAreCounted(t *testing.T) {
	s := harness.Start(t)
	expect(t, s.Dial(), "UQ.STAT q -> *null", "UQ.PUSH q a -> :1", "UQ.STAT q -> *[$\"len\" :1 $\"duplicates\" :0]",
		"UQ.PUSH q a -> $null", "UQ.PUSH q b -> :2", "UQ.PUSH q a AT 5 -> $null", "UQ.STAT q -> *[$\"len\" :2 $\"duplicates\" :2]",
		"COPY q copy -> :1", "UQ.STAT copy -> *[$\"len\" :2 $\"duplicates\" :0]",
		"UQ.REM q a b -> :2", "UQ.STAT q -> *null", "UQ.PUSH q a -> :1", "UQ.STAT q -> *[$\"len\" :1 $\"duplicates\" :0]")
	expect(t, s.Dial3(), "UQ.STAT none -> _null", "UQ.STAT q -> %[$\"len\" :1 $\"duplicates\" :0]")
}

func TestUniqueItemsAreBytes(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	name := strings.Repeat("n\x00", 32<<10)
	items := []string{"", "\x00", "\x00\x00", "a\r\nb", `{"a":1,"b":2}`, `{"b":2,"a":1}`, strings.Repeat("x", 255), strings.Repeat("x", 256),
		strings.Repeat("x", 257), strings.Repeat("y", 1000), strings.Repeat("y", 1<<20), strings.Repeat("y", 1<<20) + "z"}
	for round := range 2 {
		for i, item := range items {
			require.Equal(t, int64(i+1), c.Do("UQ.PUSH", name, item, "AT", i).Int(), "%d: %.20q", round, item)
			require.True(t, c.Do("UQ.PUSH", name, item).NullString())
			require.Equal(t, int64(1), c.Do("UQ.HAS", name, item).Int())
		}
		require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
		for i, item := range items {
			v := c.Do("UQ.POP", name)
			require.True(t, v.Elems[0].Str == item && v.Elems[1].Is(int64(i)), "%d: %.20q", round, item)
		}
		w := s.Dial()
		w.Send("UQ.BPOP", name, 0)
		awaitServerBlocked(t, s, 1)
		c.Do("UQ.PUSH", name, items[len(items)-1])
		v := w.Receive()
		require.True(t, v.Elems[0].Str == name && v.Elems[1].Str == items[len(items)-1])
	}
}

// Errors of every command, each of which must change nothing.
func TestUniqueQueueErrors(t *testing.T) {
	s := harness.Start(t)
	for _, c := range []*harness.Conn{s.Dial(), s.Dial3()} {
		c.Do("FLUSHALL")
		c.Do("UQ.PUSH", "q", "x", "AT", 3)
		c.Do("SET", "text", "x")
		add(t, c, "jobs", "b", 0)
		before := c.Do("DEBUG", "DIGEST").Str
		const at, count = "ERR AT must be a unix time in seconds, 0 to 281474976710655", "ERR COUNT must be a number greater than zero"
		const float, long = "ERR timeout is not a float or out of range", "ERR timeout is out of range"
		for _, tc := range []struct{ cmd, err string }{
			{"UQ.PUSH q y AT", syntax}, {"UQ.PUSH q y WHEN 3", syntax}, {"UQ.PUSH q y AT 3 x", syntax}, {"UQ.PUSH q y z", syntax},
			{"UQ.PUSH q y AT -1", at}, {"UQ.PUSH q y AT x", at}, {"UQ.PUSH q y AT 1.5", at}, {"UQ.PUSH q y AT 281474976710656", at},
			{"UQ.PUSH q y AT 99999999999999999999", at}, {"UQ.PUSH q x AT -1", at}, {"UQ.PUSH text y AT -1", at},
			{"UQ.POP q COUNT 0", count}, {"UQ.POP q COUNT -1", count}, {"UQ.POP q COUNT x", count}, {"UQ.POP q COUNT 9223372036854775808", count},
			{"UQ.POP q COUNT", syntax}, {"UQ.POP q 5", syntax}, {"UQ.POP q COUNT 1 2", syntax}, {"UQ.POP none COUNT 0", count},
			{"UQ.PEEK q COUNT 0", count}, {"UQ.PEEK q COUNT -1", count}, {"UQ.PEEK q COUNT", syntax}, {"UQ.PEEK q x 1", syntax},
			{"UQ.BPOP q x", float}, {"UQ.BPOP q nan", float}, {"UQ.BPOP q inf", float}, {"UQ.BPOP q 0x10", float}, {"UQ.BPOP q 1_0", float}, {"UQ.BPOP q .", float},
			{"UQ.BPOP q 1e999", float}, {"UQ.BPOP q -1", "ERR timeout is negative"}, {"UQ.BPOP q -0.001", "ERR timeout is negative"},
			{"UQ.BPOP q 1e300", long}, {"UQ.BPOP q 9223372036854775807", long},
			{"UQ.BPOP none text q 1", "WRONGTYPE"}, {"UQ.BPOP jobs 1", "WRONGTYPE"},
			{"UQ.PUSH text y", "WRONGTYPE"}, {"UQ.PUSH jobs y", "WRONGTYPE"}, {"UQ.POP text", "WRONGTYPE"}, {"UQ.POP jobs", "WRONGTYPE"}, {"UQ.LEN text", "WRONGTYPE"},
			{"UQ.HAS text x", "WRONGTYPE"}, {"UQ.REM text x", "WRONGTYPE"}, {"UQ.PEEK text", "WRONGTYPE"}, {"UQ.STAT text", "WRONGTYPE"},
			{"LPUSH q x", "WRONGTYPE"}, {"ADDJOB q b 0", "WRONGTYPE"}, {"QLEN q", "WRONGTYPE"}, {"GETJOB NOHANG FROM q", "WRONGTYPE"},
		} {
			v := words(c, tc.cmd)
			assert.True(t, v.Err(tc.err), "%s: %v, want %s", tc.cmd, v, tc.err)
		}
		for cmd, most := range map[string]int{"UQ.PUSH": 2, "UQ.POP": 1, "UQ.BPOP": 2, "UQ.LEN": 1, "UQ.HAS": 2, "UQ.REM": 2, "UQ.PEEK": 1, "UQ.STAT": 1} {
			for n := range most {
				v := c.Do(append([]any{cmd}, []any{"q", "q"}[:n]...)...)
				assert.True(t, v.Err("ERR wrong number of arguments for '"+strings.ToLower(cmd)+"' command"), "%s: %v", cmd, v)
			}
		}
		assert.True(t, c.Do("UQ.LEN", "q", "q").Err("ERR wrong number"))
		assert.True(t, c.Do("UQ.HAS", "q", "x", "y").Err("ERR wrong number"))
		for _, blank := range []string{"", " 1", "1 ", "1\x00"} {
			assert.True(t, c.Do("UQ.BPOP", "none", blank).Err(float), "%q", blank)
			assert.True(t, c.Do("UQ.PUSH", "q", "y", "AT", blank).Err(at), "%q", blank)
		}
		assert.Equal(t, before, c.Do("DEBUG", "DIGEST").Str, "a refused command has changed something")
	}
	c := s.Dial()
	c.Do("CONFIG", "SET", "maxmemory", 1)
	assert.True(t, c.Do("UQ.PUSH", "q", "y").Err("OOM"))
	assert.Equal(t, int64(1), c.Do("UQ.LEN", "q").Int())
	assert.Equal(t, "x", c.Do("UQ.POP", "q").Elems[0].Str, "what frees memory is let through")
}

func fill(c *harness.Conn, queue string, n int) {
	for i := range n {
		c.Later("UQ.PUSH", queue, fmt.Sprint("item ", i), "AT", 1000+i)
	}
	for range n {
		c.Receive()
	}
}

func filled(t *testing.T, c *harness.Conn, queue string, n int) {
	t.Helper()
	v := c.Do("UQ.PEEK", queue, "COUNT", n+1)
	require.Len(t, v.Elems, n, "%.100s", v)
	for i, e := range v.Elems {
		require.Equal(t, fmt.Sprintf(`*[$"item %d" :%d]`, i, 1000+i), e.String())
	}
	for i := range n {
		c.Later("UQ.HAS", queue, fmt.Sprint("item ", i))
	}
	for range n {
		require.Equal(t, int64(1), c.Receive().Int())
	}
}

func TestUniqueQueueIsAKey(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	const n = 3000
	fill(c, "q", n)
	digest := c.Do("DEBUG", "DIGEST-VALUE", "q").Elems[0].Str
	assert.Equal(t, []string{"q"}, c.Do("SCAN", 0, "TYPE", "jobmesh-u").Elems[1].Strings())
	assert.Greater(t, c.Do("MEMORY", "USAGE", "q").Int(), int64(n*(28+9)))
	same := func(key string) {
		t.Helper()
		filled(t, c, key, n)
		assert.Equal(t, digest, c.Do("DEBUG", "DIGEST-VALUE", key).Elems[0].Str)
	}
	expect(t, c, "COPY q copy -> :1", "UQ.POP copy -> *[$\"item 0\" :1000]", "UQ.PUSH copy new AT 1 -> :3000", "UQ.HAS q new -> :0")
	same("q")
	expect(t, c, "COPY q copy -> :0", "COPY q copy REPLACE -> :1")
	same("copy")
	expect(t, c, "RENAME copy renamed -> +\"OK\"", "EXISTS copy -> :0")
	same("renamed")
	expect(t, c, "MOVE renamed 5 -> :1", "SELECT 5 -> +\"OK\"")
	same("renamed")
	expect(t, c, "SWAPDB 5 6 -> +\"OK\"", "EXISTS renamed -> :0", "SELECT 6 -> +\"OK\"")
	same("renamed")
	// (Some releases of Valkey leave the client in another database: see rm's strays.)
	expect(t, c, "DEBUG RELOAD -> +\"OK\"", "SELECT 0 -> +\"OK\"")
	same("q")
	dump := []byte(c.Do("DUMP", "q").Str)
	assert.Equal(t, "OK", c.Do("RESTORE", "restored", 0, dump).Str)
	same("restored")
	assert.True(t, c.Do("RESTORE", "q", 0, dump).Err("BUSYKEY"))
	c.Do("UQ.POP", "restored")
	assert.NotEqual(t, digest, c.Do("DEBUG", "DIGEST-VALUE", "restored").Elems[0].Str)
	for _, how := range [][]any{{"UNLINK", "q"}, {"PEXPIRE", "restored", 1}, {"FLUSHALL", "ASYNC"}} {
		assert.NotEqual(t, byte('-'), c.Do(how...).Kind)
	}
	harness.Await(t, 3*time.Second, "the end of all keys", func() bool { return c.Do("DBSIZE").Is(0) })

	// An expired queue doesn't exist for any command, even before the server removes it.
	c.Do("DEBUG", "SET-ACTIVE-EXPIRE", 0)
	for _, cmd := range []string{"UQ.PUSH q x -> :1", "UQ.POP q -> *null", "UQ.HAS q old -> :0", "UQ.REM q old -> :0", "UQ.BPOP q 0.01 -> *null", "UQ.LEN q -> :0"} {
		c.Do("DEL", "q")
		c.Do("UQ.PUSH", "q", "old")
		c.Do("PEXPIRE", "q", 1)
		time.Sleep(3 * time.Millisecond) // looking at the key would remove it
		expect(t, c, cmd, "PTTL q -> "+map[bool]string{true: ":-1", false: ":-2"}[strings.HasPrefix(cmd, "UQ.PUSH")])
	}

	// The order counts in a digest, and so does the time.
	digests := map[string]bool{}
	for _, two := range [][]any{{"a", 1, "b", 2}, {"b", 2, "a", 1}, {"a", 2, "b", 1}} {
		c.Do("DEL", "q")
		c.Do("UQ.PUSH", "q", two[0], "AT", two[1])
		c.Do("UQ.PUSH", "q", two[2], "AT", two[3])
		digests[c.Do("DEBUG", "DIGEST").Str] = true
	}
	assert.Len(t, digests, 3)
}

func TestUniqueQueueDamaged(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	for i := range 20 {
		c.Do("UQ.PUSH", "q", fmt.Sprint("some item ", i), "AT", 1<<30+i)
	}
	dump := []byte(c.Do("DUMP", "q").Str)
	c.Do("CONFIG", "SET", "sanitize-dump-payload", "no")
	for i := range len(dump) {
		bad := append([]byte(nil), dump...)
		bad[i] ^= 0x41
		require.True(t, c.Do("RESTORE", "bad", 0, bad).Err("ERR"))
	}
	// If the server doesn't check the checksum, the module must refuse the value.
	// (Servers that can't leave out the check refuse all the values.)
	skips := c.Do("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1)
	for i := range len(dump) - 10 {
		bad := append([]byte(nil), dump...)
		bad[i] ^= 0x41
		if c.Do("RESTORE", "bad", 0, bad).Kind == '+' {
			v := c.Do("UQ.POP", "bad", "COUNT", 1000)
			require.NotEmpty(t, v.Elems, "%d", i)
			require.Equal(t, int64(0), c.Do("EXISTS", "bad").Int())
		}
	}
	// The version is in the lowest bits of the type's number, behind its length.
	for _, version := range []byte{0, 2, 3} {
		other := append([]byte(nil), dump...)
		other[9] += version - 1
		assert.True(t, c.Do("RESTORE", "bad", 0, other).Err("ERR"), "version %d", version)
		refused := strings.Contains(s.Log(), fmt.Sprintf("(encoding version %d) is refused", version))
		assert.Equal(t, skips.Str == "OK", refused, "version %d", version)
	}
	assert.Equal(t, "PONG", c.Do("PING").Str)
}

func TestUniqueQueueRestart(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"rdb", "aof", "aof-rewritten", "aof-without-preamble", "aof-kill"} {
		t.Run(mode, func(t *testing.T) {
			s := harness.Start(t, saving(mode))
			c := s.Dial()
			c.Do("SELECT", 3)
			for _, item := range []string{"removed", "popped", "popped too"} {
				c.Do("UQ.PUSH", "q", item)
			}
			fill(c, "q", 500)
			w := s.Dial()
			w.Do("SELECT", 3)
			w.Send("UQ.BPOP", "waited", 0)
			awaitServerBlocked(t, s, 1)
			c.Do("UQ.PUSH", "waited", "x")
			require.Equal(t, "x", w.Receive().Elems[1].Str)
			c.Do("UQ.PUSH", "clock", "x")
			started := c.Do("UQ.PEEK", "clock").String()
			c.Do("UQ.REM", "q", "removed")
			c.Do("UQ.POP", "q")
			w.Do("UQ.BPOP", "none", "q", 0)
			c.Do("UQ.PUSH", "q", "item 3")
			digest := c.Do("DEBUG", "DIGEST").Str
			pushed := time.Now().Unix()
			harness.Await(t, 5*time.Second, "another second: start times must not be of the replay", func() bool { return time.Now().Unix() > pushed })
			comeBack(t, s, mode)
			c = s.Dial()
			c.Do("SELECT", 3)
			filled(t, c, "q", 500)
			assert.Equal(t, started, c.Do("UQ.PEEK", "clock").String())
			assert.Equal(t, digest, c.Do("DEBUG", "DIGEST").Str)
			assert.Equal(t, int64(0), c.Do("EXISTS", "waited").Int())
		})
	}
}

func TestUniqueQueueOnReplica(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	c.Do("SELECT", 2)
	fill(c, "before", 1000)
	r := harness.Start(t, harness.WithReplicaOf(s))
	r.AwaitSync()
	w := s.Dial()
	w.Do("SELECT", 2)
	w.Send("UQ.BPOP", "a", "b", 0)
	awaitServerBlocked(t, s, 1)
	c.Do("MULTI")
	c.Do("UQ.PUSH", "b", "1")
	c.Do("UQ.PUSH", "b", "2")
	c.Do("EXEC")
	assert.Equal(t, "1", w.Receive().Elems[1].Str)
	c.Do("EVAL", "redis.call('UQ.PUSH', KEYS[1], 'from Lua'); return redis.call('UQ.POP', KEYS[1])", 1, "lua")
	c.Do("EVAL", "return redis.call('UQ.PUSH', KEYS[1], 'stays')", 1, "lua")
	c.Do("UQ.POP", "before", "COUNT", 10)
	c.Do("UQ.REM", "before", "item 500", "item 501")
	c.Do("COPY", "before", "copy")
	w.Do("UQ.BPOP", "none", "copy", 0)
	digest := c.Do("DEBUG", "DIGEST").Str
	harness.Await(t, 5*time.Second, "the same on the replica", func() bool { return r.Do("DEBUG", "DIGEST").Str == digest })
	assert.True(t, r.Do("UQ.PUSH", "q", "x").Err("READONLY"))
	assert.True(t, r.Do("UQ.BPOP", "q", 0).Err("READONLY"))
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
}

func TestUniqueBlockingOrder(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	wait := func(db int, args ...any) *harness.Conn {
		t.Helper()
		n, err := strconv.Atoi(s.Info("clients", "blocked_clients"))
		require.NoError(t, err)
		w := s.Dial()
		w.Do("SELECT", db)
		w.Send(append([]any{"UQ.BPOP"}, args...)...)
		awaitServerBlocked(t, s, n+1)
		return w
	}
	got := func(w *harness.Conn) string {
		t.Helper()
		return w.Receive().String()
	}
	first, second, third, elsewhere := wait(0, "a", "b", "a", "c", 0), wait(0, "b", 0), wait(0, "c", "b", 100), wait(1, "b", 0)
	c.Do("UQ.PUSH", "b", "1", "AT", 5)
	assert.Equal(t, `*[$"b" $"1" :5]`, got(first))
	// A key that becomes another type serves no client that waits.
	c.Do("SET", "b", "text")
	c.Do("DEL", "b")
	c.Do("RPUSH", "b", "x")
	c.Do("DEL", "b")
	add(t, c, "b", "job", 0)
	c.Do("DEL", "b")
	assert.True(t, second.Silent(20*time.Millisecond))
	// Clients are served after a transaction, as many as it has left items for.
	expect(t, c, "MULTI -> +\"OK\"", "UQ.PUSH b x AT 1 -> +\"QUEUED\"", "UQ.POP b -> +\"QUEUED\"", "EXEC -> *[:1 *[$\"x\" :1]]")
	assert.True(t, second.Silent(20*time.Millisecond))
	expect(t, c, "MULTI -> +\"OK\"", "UQ.PUSH b 2 AT 1 -> +\"QUEUED\"", "UQ.PUSH b 3 AT 2 -> +\"QUEUED\"", "UQ.PUSH b 4 AT 3 -> +\"QUEUED\"", "EXEC -> *[:1 :2 :3]")
	assert.Equal(t, []string{`*[$"b" $"2" :1]`, `*[$"b" $"3" :2]`}, []string{got(second), got(third)})
	expect(t, c, "UQ.POP b -> *[$\"4\" :3]")
	assert.True(t, elsewhere.Silent(20*time.Millisecond), "another database is another queue")
	assert.Equal(t, int64(1), c.Do("UQ.PUSH", "b", "5", "AT", 4).Int())
	assert.Equal(t, int64(1), c.Do("MOVE", "b", 1).Int())
	assert.Equal(t, `*[$"b" $"5" :4]`, got(elsewhere))

	// A client that waits is served by each command that brings the key.
	c.Do("UQ.PUSH", "from", "x", "AT", 1)
	dump := []byte(c.Do("DUMP", "from").Str)
	for name, bring := range map[string]func(){
		"RENAME":  func() { c.Do("RENAME", "from", "to") },
		"COPY":    func() { c.Do("COPY", "from", "to") },
		"RESTORE": func() { c.Do("RESTORE", "to", 0, dump) },
		"Lua":     func() { c.Do("EVAL", "redis.call('UQ.PUSH', KEYS[1], 'x', 'AT', 1)", 1, "to") },
		"SWAPDB": func() {
			two := s.Dial()
			two.Do("SELECT", 2)
			two.Do("UQ.PUSH", "to", "x", "AT", 1)
			c.Do("SWAPDB", 0, 2)
		},
	} {
		c.Do("UQ.PUSH", "from", "x", "AT", 1)
		w := wait(0, "to", 0)
		bring()
		assert.Equal(t, `*[$"to" $"x" :1]`, got(w), name)
		assert.Equal(t, int64(0), c.Do("EXISTS", "to").Int(), name)
	}
	// Deleting and flushing leave clients waiting.
	w := wait(0, "q", 0)
	c.Do("DEL", "q")
	c.Do("FLUSHALL")
	assert.True(t, w.Silent(20*time.Millisecond))
	c.Do("UQ.PUSH", "q", "x", "AT", 1)
	assert.Equal(t, `*[$"q" $"x" :1]`, got(w))

	// Gone clients take nothing.
	gone, stays := wait(0, "q", 0), wait(0, "q", 0)
	gone.Close()
	awaitServerBlocked(t, s, 1)
	c.Do("UQ.PUSH", "q", "y", "AT", 2)
	assert.Equal(t, `*[$"q" $"y" :2]`, got(stays))
	assert.Equal(t, "PONG", stays.Do("PING").Str)
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
}

func TestUniqueBlockingEnds(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	for _, w := range []*harness.Conn{s.Dial(), s.Dial3()} {
		id := w.Do("CLIENT", "ID").Int()
		began := time.Now()
		assert.True(t, w.Do("UQ.BPOP", "q", "p", "0.1").Null)
		harness.Took(t, began, 100*time.Millisecond)
		assert.True(t, w.Do("UQ.BPOP", "q", "1e-9").Null, "not for ever")
		for _, how := range []string{"TIMEOUT", "ERROR"} {
			w.Send("UQ.BPOP", "q", 0)
			awaitServerBlocked(t, s, 1)
			assert.Equal(t, int64(1), c.Do("CLIENT", "UNBLOCK", id, how).Int())
			if v := w.Receive(); how == "ERROR" {
				assert.True(t, v.Err("UNBLOCKED"))
			} else {
				assert.True(t, v.Null)
			}
		}
		// In MULTI and in Lua nothing blocks.
		w.Do("MULTI")
		w.Do("UQ.BPOP", "q", 0)
		w.Do("UQ.PUSH", "q", "x", "AT", 4)
		w.Do("UQ.BPOP", "q", 0)
		v := w.Do("EXEC")
		require.Len(t, v.Elems, 3)
		assert.True(t, v.Elems[0].Null)
		assert.Equal(t, `*[$"q" $"x" :4]`, v.Elems[2].String())
		assert.True(t, w.Do("EVAL", "return redis.call('UQ.BPOP', KEYS[1], 0)", 1, "q").Null)
		// If any of the keys has items, the client is given one at once, from the first such key.
		c.Do("UQ.PUSH", "b", "x", "AT", 1)
		c.Do("UQ.PUSH", "c", "y", "AT", 2)
		assert.Equal(t, `*[$"b" $"x" :1]`, w.Do("UQ.BPOP", "a", "b", "c", 0).String())
		assert.Equal(t, `*[$"c" $"y" :2]`, w.Do("UQ.BPOP", "c", "b", 0).String())
	}
	w := s.Dial()
	w.Send("UQ.BPOP", "q", 0)
	awaitServerBlocked(t, s, 1)
	s.Stop() // with a client that waits
}

func TestUniqueQueueWatchACLAndDocs(t *testing.T) {
	s := harness.Start(t)
	c, other := s.Dial(), s.Dial()
	changes := []string{"UQ.PUSH q a", "UQ.PUSH q b", "UQ.REM q a", "UQ.POP q", "UQ.PUSH q c", "UQ.BPOP q 0"}
	for _, cmd := range changes {
		c.Do("WATCH", "q")
		words(other, cmd)
		c.Do("MULTI")
		c.Do("PING")
		assert.True(t, c.Do("EXEC").NullArray(), cmd)
	}
	other.Do("UQ.PUSH", "q", "a")
	dirty := s.Info("persistence", "rdb_changes_since_last_save")
	for _, cmd := range []string{"UQ.PUSH q a", "UQ.REM q b", "UQ.LEN q", "UQ.HAS q a", "UQ.PEEK q", "UQ.STAT q", "UQ.POP none", "UQ.REM none x"} {
		c.Do("WATCH", "q", "none")
		words(other, cmd)
		c.Do("MULTI")
		c.Do("PING")
		assert.Len(t, c.Do("EXEC").Elems, 1, cmd)
	}
	assert.Equal(t, dirty, s.Info("persistence", "rdb_changes_since_last_save"))

	c.Do("ACL", "SETUSER", "w", "on", ">p", "~mail:*", "+@all")
	u := s.Dial()
	require.Equal(t, "OK", u.Do("AUTH", "w", "p").Str)
	assert.Equal(t, int64(1), u.Do("UQ.PUSH", "mail:1", "b").Int())
	for _, cmd := range []string{"UQ.PUSH other b", "UQ.POP other", "UQ.BPOP mail:1 other 0", "UQ.LEN other", "UQ.HAS other x", "UQ.REM other x", "UQ.PEEK other", "UQ.STAT other"} {
		assert.True(t, words(u, cmd).Err("NOPERM"), cmd)
	}
	c.Do("ACL", "SETUSER", "r", "on", ">p", "%R~*", "+@all")
	require.Equal(t, "OK", u.Do("AUTH", "r", "p").Str)
	assert.Equal(t, int64(1), u.Do("UQ.LEN", "mail:1").Int())
	assert.True(t, u.Do("UQ.POP", "mail:1").Err("NOPERM"))
	assert.Equal(t, []string{"a", "b"}, c.Do("COMMAND", "GETKEYS", "UQ.BPOP", "a", "b", 0).Strings())
	for _, cmd := range []string{"UQ.PUSH q x", "UQ.POP q", "UQ.BPOP q 0", "UQ.LEN q", "UQ.HAS q x", "UQ.REM q x y", "UQ.PEEK q", "UQ.STAT q"} {
		assert.Equal(t, []string{"q"}, words(c, "COMMAND GETKEYS "+cmd).Strings())
		name, _, _ := strings.Cut(strings.ToLower(cmd), " ")
		d := c.Do("COMMAND", "DOCS", name).Elems[1]
		assert.NotEmpty(t, d.Field("summary").Str, name)
		assert.NotEmpty(t, d.Field("arguments").Elems, name)
	}
}

// However many push, an item waits once.
func TestLongUniqueQueueManyClients(t *testing.T) {
	s := harness.Start(t)
	const clients, pushes, distinct = 50, 20_000, 1000 // a million
	var wg sync.WaitGroup
	taken := make(chan string, clients*pushes)
	accepted := make([]int, clients)
	for who := range clients {
		c := s.Dial()
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(who), 1))
			for i := range pushes {
				c.Send("UQ.PUSH", "q", r.IntN(distinct))
				if i%2 == 0 {
					c.Send("UQ.POP", "q")
				}
			}
			for i := range pushes {
				if !c.Receive().Null {
					accepted[who]++
				}
				if i%2 == 0 {
					if v := c.Receive(); !v.Null {
						taken <- v.Elems[0].Str
					}
				}
			}
		})
	}
	wg.Wait()
	close(taken)
	sum := 0
	for _, n := range accepted {
		sum += n
	}
	v := s.Do("UQ.PEEK", "q", "COUNT", distinct+1)
	seen := map[string]bool{}
	for _, e := range v.Elems {
		assert.False(t, seen[e.Elems[0].Str])
		seen[e.Elems[0].Str] = true
	}
	assert.Equal(t, sum, len(taken)+len(seen))
}

// The native type and the one in Lua agree, step by step.
func TestUniqueQueueAgreesWithLua(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	require.Equal(t, "unique_queue", c.Do("JOBMESH", "LUA", "LOAD", "unique_queue").Str)
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	const steps, batch = 100_000, 200
	item := func() string {
		if r.IntN(20) == 0 {
			return strings.Repeat("long ", 50+r.IntN(10))
		}
		return string([]byte{byte(r.IntN(4)), byte(r.IntN(256))}[:r.IntN(3)])
	}
	lua := func(name string, more ...any) []any {
		return append([]any{"FCALL", "luq_" + name, 3, "l", "l:uniqueness", "l:start_at"}, more...)
	}
	for done := 0; done < steps; done += batch {
		var sent [][]any
		pushes := 3 + done/1000%2*5 // the queue grows and shrinks
		for range batch {
			var native, oracle []any
			switch op := r.IntN(10 + pushes); {
			case op == 0:
				native, oracle = []any{"UQ.LEN", "u"}, lua("len")
			case op == 1:
				x := item()
				native, oracle = []any{"UQ.HAS", "u", x}, lua("has", x)
			case op == 2:
				x, y := item(), item()
				native, oracle = []any{"UQ.REM", "u", x, y}, lua("rem", x, y)
			case op == 3:
				n := 1 + r.IntN(5)
				native, oracle = []any{"UQ.POP", "u", "COUNT", n}, lua("popn", n)
			case op == 4:
				n := 1 + r.IntN(5)
				native, oracle = []any{"UQ.PEEK", "u", "COUNT", n}, lua("peek", n)
			case op < 7:
				native, oracle = []any{"UQ.POP", "u"}, lua("pop")
			default:
				x, at := item(), r.Int64N(1<<48)
				native, oracle = []any{"UQ.PUSH", "u", x, "AT", at}, lua("push", x, at)
			}
			c.Send(native...)
			c.Send(oracle...)
			sent = append(sent, native)
		}
		for i := range sent {
			native, oracle := c.Receive(), c.Receive()
			require.NotEqual(t, byte('-'), native.Kind, "%q: %v", sent[i], native)
			if native.Null && oracle.Null {
				continue // a script has but one of the two nulls
			}
			require.Equal(t, oracle.String(), native.String(), "seed %d, after %d steps: %q", seed, done+i, sent[i])
		}
	}
}

// The data of a unique queue lies in the server's memory. A command is one crossing, and leaves
// no garbage.
func TestUniqueQueueCostsOneCrossing(t *testing.T) {
	harness.NotSanitized(t, "the pool, which saves crossings, is for names alone")
	s := harness.Start(t)
	c := s.Dial()
	const rounds, n = 20, 1000
	cycle := func() {
		for i := range n {
			c.Later("UQ.PUSH", "q", fmt.Sprintf("%0100d", i))
			c.Later("UQ.PUSH", "q", fmt.Sprintf("%0100d", i))
			c.Later("UQ.HAS", "q", "x")
			if i%2 == 0 {
				c.Later("UQ.BPOP", "q", 0)
			} else {
				c.Later("UQ.POP", "q")
			}
		}
		for range 4 * n {
			c.Receive()
		}
		fill(c, "p", n)
		for range n {
			c.Later("UQ.POP", "p")
		}
		for range n {
			c.Receive()
		}
	}
	cycle()
	calls, allocs := number(t, s, "jobmesh", "jobmesh_go_calls_to_c"), number(t, s, "jobmesh", "jobmesh_go_allocations")
	for range rounds {
		cycle()
	}
	assert.Less(t, number(t, s, "jobmesh", "jobmesh_go_calls_to_c")-calls, int64(rounds*n*6/20))
	assert.Less(t, number(t, s, "jobmesh", "jobmesh_go_allocations")-allocs, int64(rounds*n*6/100))

	used, heap := number(t, s, "memory", "used_memory"), number(t, s, "jobmesh", "jobmesh_go_heap_bytes")
	fill(c, "big", 100_000)
	assert.Greater(t, number(t, s, "memory", "used_memory")-used, int64(100_000*38))
	assert.Less(t, number(t, s, "jobmesh", "jobmesh_go_heap_bytes")-heap, int64(1<<20))
	c.Do("DEL", "big")
	harness.Await(t, 3*time.Second, "the memory", func() bool { return number(t, s, "memory", "used_memory")-used < 1<<20 })
}

// Saving, rewriting and freeing a unique queue needs no Go.
func TestLongUniqueQueueSavesWhileGoIsBusy(t *testing.T) {
	harness.NotSanitized(t, harness.ForksHang)
	so := harness.Build(t, "-tags", "jobmesh_busy", "./module")
	s := harness.Start(t, harness.WithModule(so), harness.WithConfig("appendonly yes", "aof-use-rdb-preamble no"))
	c := s.Dial()
	fill(c, "q", 1000)
	for range 20 {
		s.SaveOften(1)
		c.Do("COPY", "q", "p")
		c.Do("UNLINK", "p")
	}
	require.Equal(t, "ok", s.Info("persistence", "rdb_last_bgsave_status"))
	require.Equal(t, "ok", s.Info("persistence", "aof_last_bgrewrite_status"))
}

// In MULTI and scripts, together with other commands, others see all of it or nothing.
func TestUniqueQueueInMultiAndLua(t *testing.T) {
	s := harness.Start(t)
	c, other := s.Dial(), s.Dial()
	expect(t, c, "MULTI -> +\"OK\"", "UQ.PUSH q x AT 1 -> +\"QUEUED\"", "UQ.PUSH q x AT 2 -> +\"QUEUED\"", "SET pushed 1 -> +\"QUEUED\"", "UQ.PUSH pushed x -> +\"QUEUED\"", "UQ.BPOP none 0 -> +\"QUEUED\"")
	expect(t, other, "UQ.LEN q -> :0", "EXISTS pushed -> :0")
	v := c.Do("EXEC")
	require.Len(t, v.Elems, 5)
	assert.Equal(t, []string{":1", "$null", `+"OK"`}, []string{v.Elems[0].String(), v.Elems[1].String(), v.Elems[2].String()})
	assert.True(t, v.Elems[3].Err("WRONGTYPE"))
	assert.True(t, v.Elems[4].NullArray(), "it doesn't wait")
	expect(t, c, "MULTI -> +\"OK\"", "UQ.POP q -> +\"QUEUED\"", "DISCARD -> +\"OK\"", "UQ.LEN q -> :1")
	// A script makes a job of an item: others see either the item or the job.
	const move = `local item = redis.call('UQ.POP', KEYS[1])
		if not item then return false end
		return {redis.call('ADDJOB', KEYS[2], item[1], 0).ok, item[2], redis.call('UQ.PUSH', KEYS[1], item[1], 'AT', 9)}`
	v = c.Do("EVAL", move, 2, "q", "jobs")
	require.Len(t, v.Elems, 3, "%v", v)
	assert.Equal(t, []int64{1, 1}, []int64{v.Elems[1].Int(), v.Elems[2].Int()})
	assert.Equal(t, v.Elems[0].Str, get(t, c, "jobs"))
	expect(t, c, "UQ.POP q -> *[$\"x\" :9]")
	assert.True(t, c.Do("EVAL", move, 2, "q", "jobs").Null)
}
