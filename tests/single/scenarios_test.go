package single

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A window goes on when its job is done, and when the server is restarted or replaced. It lasts as
// long as it was meant to.
func TestWindowOutlivesJobAndServer(t *testing.T) {
	const window = "KEY k UNIQUE window TTL "
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		require.Equal(t, int64(1), c.Do("ACKJOB", addUnique(t, c, "over", "b", window+"1")).Int())
		began := time.Now()
		require.Equal(t, int64(1), c.Do("ACKJOB", addUnique(t, c, "done", "b", window+"5")).Int())
		require.Equal(t, int64(1), c.Do("ACKJOB", addUnique(t, c, "long", "b", window+"1000")).Int())
		waiting := addUnique(t, c, "waits", "b", window+"1000")
		addUnique(t, c, "deleted", "b", window+"1000")
		c.Do("DEL", "deleted")
		time.Sleep(1500 * time.Millisecond) // the shortest window ends, and there is less left of the others
		switch mode {
		case "replica":
			r := harness.Start(t, harness.WithReplicaOf(s))
			r.AwaitSync()
			c.Do("ACKJOB", addUnique(t, c, "late", "b", window+"1000"))
			require.Equal(t, int64(1), c.Do("WAIT", 1, 5000).Int())
			s.Kill()
			require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
			assert.Empty(t, addUnique(t, r.Dial(), "late", "b", window+"1000"))
			s = r
		default:
			comeBack(t, s, mode)
		}
		c = s.Dial()
		assert.NotEmpty(t, addUnique(t, c, "over", "b", window+"1"))
		for _, queue := range []string{"done", "long", "waits", "deleted"} {
			assert.Empty(t, addUnique(t, c, queue, "b", window+"5"), queue)
		}
		assert.Equal(t, "wait", c.Do("SHOW", waiting).Field("lock").Str)
		for _, queue := range []string{"long", "waits"} {
			assert.Less(t, c.Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", queue).Field("ttl").Int(), int64(999_000), "%s: what is left of it", queue)
		}
		harness.Await(t, 10*time.Second, "the window's end", func() bool { return addUnique(t, c, "done", "b", window+"5") != "" })
		harness.Took(t, began, 5*time.Second)
		// The window stays with the name of its queue.
		dump := c.Do("DUMP", "waits").Str
		require.Equal(t, "OK", c.Do("RENAME", "waits", "renamed").Str)
		assert.Equal(t, "none", c.Do("SHOW", waiting).Field("lock").Str)
		assert.Empty(t, addUnique(t, c, "waits", "b", window+"5"))
		assert.NotEmpty(t, addUnique(t, c, "renamed", "b", window+"5"))
		c.Do("DEL", "renamed")
		require.Equal(t, "OK", c.Do("RESTORE", "elsewhere", 0, []byte(dump)).Str)
		assert.NotEmpty(t, addUnique(t, c, "elsewhere", "b", window+"1000"))
		// A flush ends windows, in the log too.
		c.Do("FLUSHALL")
		assert.NotEmpty(t, addUnique(t, c, "long", "b", window+"1000"))
		c.Do("FLUSHALL")
		if strings.HasPrefix(mode, "aof") {
			s.Kill()
			s.Restart()
			c = s.Dial()
		}
		assert.NotEmpty(t, addUnique(t, c, "long", "b", window+"1000"))
	}, "rdb", "aof", "aof-kill", "aof-without-preamble", "reload", "replica")
}

// A job that a node evicts frees its keys.
func TestEvictedJobFreesItsKeys(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	body := strings.Repeat("x", 100_000)
	const n = 200
	for i := range n {
		require.NotEmpty(t, addUnique(t, c, "until", body, fmt.Sprint("RETRY 0 UNIQUE until-processed KEY ", i)))
		require.NotEmpty(t, addUnique(t, c, "during", body, fmt.Sprint("RETRY 0 UNIQUE during-processing KEY ", i)))
	}
	for _, queue := range []string{"until", "during"} {
		require.Len(t, c.Do("GETJOB", "COUNT", n, "FROM", queue).Elems, n)
	}
	used := number(t, s, "memory", "used_memory")
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "maxmemory", used*100/98).Str)
	harness.Await(t, 5*time.Second, "jobs to be evicted", func() bool { return s.Info("jobmesh", "jobmesh_jobs_evicted") != "0" })
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "maxmemory", 0).Str)
	harness.Await(t, 5*time.Second, "the limit to be gone", func() bool { return c.Do("ADDJOB", "q", "b", 0).Kind == '+' })
	free := n - len(c.Do("JSCAN", "COUNT", 10*n, "QUEUE", "until").Elems[1].Elems)
	require.Positive(t, free+n-len(c.Do("JSCAN", "COUNT", 10*n, "QUEUE", "during").Elems[1].Elems))
	added := 0
	for i := range n {
		if addUnique(t, c, "until", "b", fmt.Sprint("UNIQUE until-processed KEY ", i)) != "" {
			added++
		}
	}
	assert.Equal(t, free, added, "the keys of those that went, and no others")
	free = n - len(c.Do("JSCAN", "COUNT", 10*n, "QUEUE", "during").Elems[1].Elems)
	for i := range n {
		addUnique(t, c, "during", "b", fmt.Sprint("UNIQUE during-processing KEY ", i))
	}
	assert.Len(t, c.Do("GETJOB", "NOHANG", "COUNT", 2*n, "FROM", "during").Elems, free)
}

// Unique jobs that depend on others, or are deferred: they are cancelled, become dead letters, or are
// released into another queue.
func TestUniqueJobsInFamilies(t *testing.T) {
	c := harness.Start(t).Dial()
	d := addUnique(t, c, "q", "d", until+"DEFERRED")
	b := addUnique(t, c, "q", "b", "UNIQUE until-processed KEY b BLOCKEDBY "+d)
	assert.Empty(t, addUnique(t, c, "q", "x", until), "also while it is held back")
	assert.Equal(t, int64(2), c.Do("CANCELJOB", d).Int())
	assert.True(t, c.Do("SHOW", b).Null)
	again := addUnique(t, c, "q", "x", until)
	assert.NotEmpty(t, again)
	assert.NotEmpty(t, addUnique(t, c, "q", "x", "UNIQUE until-processed KEY b"))

	// A dead letter keeps no key, neither in its first queue nor in the dead-letter queue.
	for _, scope := range []string{"queue", "mesh"} {
		p := add(t, c, "p", "p", 0)
		options := "UNIQUE until-processed KEY dead SCOPE " + scope
		dead := addUnique(t, c, "r", "b", options+" ONDEAD dead AFTER "+p)
		require.Empty(t, addUnique(t, c, "r", "b", options))
		c.Do("DELJOB", p)
		require.Equal(t, "r:dead", c.Do("SHOW", dead).Field("queue").Str)
		assert.NotEmpty(t, addUnique(t, c, "r", "b", options), scope)
		assert.NotEmpty(t, addUnique(t, c, "r:dead", "b", "UNIQUE until-processed KEY dead"), scope)
		assert.Equal(t, dead, get(t, c, "r:dead"))
		c.Do("DEL", "r", "r:dead")
	}

	// A job that is released into another queue has its key there, and no longer in its first queue.
	d = addUnique(t, c, "from", "d", until+"DEFERRED")
	other := addUnique(t, c, "taken", "o", until)
	v := c.Do("RELEASEJOB", d, "QUEUE", "taken")
	assert.True(t, v.Err("DUPLICATE "+other), "%v", v)
	assert.Equal(t, "deferred", state(c, d), "nothing has changed")
	assert.Empty(t, addUnique(t, c, "from", "x", until))
	require.Equal(t, int64(1), c.Do("RELEASEJOB", d, "QUEUE", "to").Int())
	assert.NotEmpty(t, addUnique(t, c, "from", "x", until))
	assert.Empty(t, addUnique(t, c, "to", "x", until))
	require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
	assert.Equal(t, "wait", c.Do("SHOW", d).Field("lock").Str)
	assert.Empty(t, addUnique(t, c, "to", "x", until))
	assert.Equal(t, int64(1), c.Do("ACKJOB", d).Int())
	assert.NotEmpty(t, addUnique(t, c, "to", "x", until))
}

// A job without RETRY is due by the queue's setting, or else by the default: a tenth of the TTL,
// 300 s at most. (The rq fork has 180 s.)
func TestDefaultDueTime(t *testing.T) {
	c := harness.Start(t).Dial()
	c.Do("QCONFIG", "SET", "rq:*", "RETRY", 180)
	for queue, want := range map[string]int64{"q": 300_000, "rq:q": 180_000} {
		add(t, c, queue, "b", 0)
		get(t, c, queue)
		list := wip(t, c, queue)
		require.Len(t, list, 1)
		assert.Equal(t, want, list[0].due-list[0].since, queue)
	}
	add(t, c, "short", "b", 0, "TTL", 50)
	get(t, c, "short")
	assert.Equal(t, int64(5000), wip(t, c, "short")[0].due-wip(t, c, "short")[0].since)
}
