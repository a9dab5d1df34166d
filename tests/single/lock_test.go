package single

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func acquire(t *testing.T, c *harness.Conn, name, owner string, ttl int, more ...any) int64 {
	t.Helper()
	v := c.Do(append([]any{"LOCK.ACQUIRE", name, owner, ttl}, more...)...)
	require.Equal(t, byte(':'), v.Kind, "%v", v)
	require.Positive(t, v.Int())
	return v.Int()
}

func ok(t *testing.T, v harness.Value) {
	t.Helper()
	assert.Equal(t, "OK", v.Str, "%v", v)
}

// A lock has one holder, who renews it by acquiring it again.
func TestLockIsHeldByOne(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	first := acquire(t, c, "n", "a", 60_000)
	assert.True(t, c.Do("LOCK.ACQUIRE", "n", "b", 60_000).NullString())
	again := acquire(t, c, "n", "a", 90_000)
	assert.Equal(t, first, again, "who has it renews it")
	assert.Greater(t, c.Do("LOCK.SHOW", "n").Field("ttl").Int(), int64(80_000))
	assert.Greater(t, acquire(t, c, "other", "b", 60_000), first)
	assert.True(t, s.Dial3().Do("LOCK.ACQUIRE", "n", "b", 1).Null)
}

// Only the holder, by its token, extends and releases a lock.
func TestOnlyTheHolderExtendsAndReleases(t *testing.T) {
	c := harness.Start(t).Dial()
	assert.True(t, c.Do("LOCK.EXTEND", "n", "a", 1, 1000).Err("NOTHELD"))
	assert.True(t, c.Do("LOCK.RELEASE", "n", "a", 1).Err("NOTHELD"))
	token := acquire(t, c, "n", "a", 60_000)
	for _, verb := range []string{"EXTEND", "RELEASE"} {
		do := func(owner string, token int64) harness.Value {
			args := []any{"LOCK." + verb, "n", owner, token}
			if verb == "EXTEND" {
				args = append(args, 5000)
			}
			return c.Do(args...)
		}
		assert.True(t, do("b", token).Err("NOTHELD"), verb)
		assert.True(t, do("a", token-1).Err("STALETOKEN"), verb)
		assert.True(t, do("a", token+1).Err("NOTHELD"), verb)
		assert.Greater(t, c.Do("LOCK.SHOW", "n").Field("ttl").Int(), int64(50_000), "nothing has changed")
	}
	ok(t, c.Do("LOCK.EXTEND", "n", "a", token, 10_000))
	assert.InDelta(t, 10_000, c.Do("LOCK.SHOW", "n").Field("ttl").Int(), 1000)
	ok(t, c.Do("LOCK.RELEASE", "n", "a", token))
	assert.True(t, c.Do("LOCK.RELEASE", "n", "a", token).Err("NOTHELD"))
	assert.Greater(t, acquire(t, c, "n", "a", 60_000), token)
	assert.True(t, c.Do("LOCK.EXTEND", "n", "a", token, 10_000).Err("STALETOKEN"))
}

// A lock whose lease is over goes to the next owner. The former holder's token is refused.
func TestExpiredLockGoesToTheNext(t *testing.T) {
	c := harness.Start(t).Dial()
	token := acquire(t, c, "n", "a", 100)
	harness.Await(t, 2*time.Second, "the lease's end", func() bool { return c.Do("LOCK.SHOW", "n").Null })
	assert.True(t, c.Do("LOCK.EXTEND", "n", "a", token, 1000).Err("NOTHELD"))
	next := acquire(t, c, "n", "b", 60_000)
	assert.Greater(t, next, token)
	assert.True(t, c.Do("LOCK.EXTEND", "n", "a", token, 1000).Err("STALETOKEN"))
	assert.True(t, c.Do("LOCK.RELEASE", "n", "a", token).Err("STALETOKEN"))
	assert.Greater(t, c.Do("LOCK.SHOW", "n").Field("ttl").Int(), int64(50_000))
}

// Clients get a lock in the order of arrival. A client that has gone, or whose time is over, is
// passed over.
func TestLockWait(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	token := acquire(t, c, "n", "a", 60_000)
	waiters := make([]*harness.Conn, 4)
	for i := range waiters {
		waiters[i] = s.Dial()
		waiters[i].Send("LOCK.ACQUIRE", "n", fmt.Sprint("w", i), 60_000, "WAIT", 20_000)
		harness.Await(t, 5*time.Second, "the client to wait", func() bool { return c.Do("LOCK.SHOW", "n").Field("waiting").Is(int64(i + 1)) })
	}
	waiters[1].Close()
	harness.Await(t, 5*time.Second, "its end to be noticed", func() bool { return c.Do("LOCK.SHOW", "n").Field("waiting").Is(3) })
	ok(t, c.Do("LOCK.RELEASE", "n", "a", token))
	for _, i := range []int{0, 2, 3} {
		v := waiters[i].Receive()
		require.Greater(t, v.Int(), token, "%v", v)
		assert.Equal(t, fmt.Sprint("w", i), c.Do("LOCK.SHOW", "n").Field("owner").Str)
		if i != 3 {
			assert.True(t, waiters[3].Silent(50*time.Millisecond))
		}
		token = v.Int()
		ok(t, c.Do("LOCK.RELEASE", "n", fmt.Sprint("w", i), token))
	}
	assert.True(t, c.Do("LOCK.SHOW", "n").Null)

	// A client whose own time is over doesn't get the lock, and nothing stays claimed.
	token = acquire(t, c, "n", "a", 60_000)
	began := time.Now()
	assert.True(t, c.Do("LOCK.ACQUIRE", "n", "late", 60_000, "WAIT", 100).NullString())
	harness.Took(t, began, 100*time.Millisecond)
	ok(t, c.Do("LOCK.RELEASE", "n", "a", token))
	assert.True(t, c.Do("LOCK.SHOW", "n").Null)

	// The end of a lease serves the next client without any command.
	acquire(t, c, "n", "a", 200)
	began = time.Now()
	acquire(t, c, "n", "b", 60_000, "WAIT", 5000)
	harness.Took(t, began, 200*time.Millisecond)

	// CLIENT UNBLOCK ends the wait as its timeout would.
	w := s.Dial()
	id := w.Do("CLIENT", "ID").Int()
	w.Send("LOCK.ACQUIRE", "n", "c", 60_000, "WAIT", 20_000)
	harness.Await(t, 5*time.Second, "the client to wait", func() bool { return c.Do("CLIENT", "UNBLOCK", id).Is(1) })
	assert.True(t, w.Receive().NullString())
	harness.Await(t, 5*time.Second, "nobody to wait", func() bool { return s.Info("jobmesh", "jobmesh_lock_claims") == "0" })
}

// A client is granted a lock, but doesn't hear of it any more. The same owner is granted the lock
// on another connection as well. Then the lock isn't released.
func TestUnheardGrantOfAnOwnerWhoHasTheLock(t *testing.T) {
	s := harness.Start(t)
	y, gone, again := s.Dial(), s.Dial(), s.Dial()
	for i := range 3 {
		name := fmt.Sprint("n", i)
		token := acquire(t, y, name, "y", 60_000)
		for k, c := range []*harness.Conn{gone, again} {
			c.Send("LOCK.ACQUIRE", name, "x", 60_000, "WAIT", 60_000)
			harness.Await(t, 5*time.Second, "the client to wait", func() bool { return y.Do("LOCK.SHOW", name).Field("waiting").Is(int64(k + 1)) })
		}
		// The server sees the release and the client's end in one turn, the release first.
		s.Pause()
		y.Send("LOCK.RELEASE", name, "y", token)
		gone.Close()
		s.Resume()
		ok(t, y.Receive())
		v := again.Receive()
		require.Greater(t, v.Int(), token, "%v", v)
		harness.Await(t, 5*time.Second, "the answer to be known as unheard", func() bool { return s.Info("jobmesh", "jobmesh_blocked_clients") == "0" })
		v = y.Do("LOCK.ACQUIRE", name, "z", 60_000)
		require.True(t, v.NullString(), "x has it: %v", v)
		ok(t, y.Do("LOCK.RELEASE", name, "x", again.Do("LOCK.SHOW", name).Field("token").Int()))
		gone = s.Dial()
	}
}

// A hundred clients ask for a lock at the same time: exactly one gets it.
func TestLockRace(t *testing.T) {
	s := harness.Start(t)
	conns := make([]*harness.Conn, 100)
	for i := range conns {
		conns[i] = s.Dial()
	}
	for i, c := range conns {
		c.Send("LOCK.ACQUIRE", "n", i, 60_000)
	}
	got := 0
	for _, c := range conns {
		if c.Receive().Kind == ':' {
			got++
		}
	}
	assert.Equal(t, 1, got)
}

func scanLocks(t *testing.T, c *harness.Conn, args ...any) (names []string) {
	t.Helper()
	for cursor := "0"; ; {
		v := c.Do(append([]any{"LOCK.SCAN", cursor}, args...)...)
		require.Len(t, v.Elems, 2, "%v", v)
		names = append(names, v.Elems[1].Strings()...)
		if cursor = v.Elems[0].Str; cursor == "0" {
			slices.Sort(names)
			return slices.Compact(names)
		}
	}
}

// LOCK.SCAN MATCH finds all locks of long names, page by page, however large a page COUNT asks for.
func TestScanLocksOfLongNames(t *testing.T) {
	c := harness.Start(t).Dial()
	long := strings.Repeat("a", 4000)
	for i := range 600 {
		acquire(t, c, fmt.Sprint(long, i), "o", 60_000)
	}
	pattern := "*" + strings.Repeat("a?", 1000) + "*"
	assert.NotEqual(t, "0", c.Do("LOCK.SCAN", 0, "MATCH", pattern, "COUNT", 100_000).Elems[0].Str, "the first page ends early")
	assert.Len(t, scanLocks(t, c, "MATCH", pattern, "COUNT", 100_000), 600)
	assert.Empty(t, scanLocks(t, c, "MATCH", "*"+strings.Repeat("a?", 1000)+"x*", "COUNT", 100_000))
	assert.True(t, c.Do("LOCK.SCAN", 0, "MATCH", strings.Repeat("a", 4097)).Err("ERR"))
}

// LOCK.CLEAR counts the locks of jobs too. Without QUEUE it means those of SCOPE mesh, whether by
// name, PREFIX or ALL.
func TestClearLocksOfJobs(t *testing.T) {
	c := harness.Start(t).Dial()
	for _, scope := range []string{"queue", "mesh"} {
		for _, key := range []string{"x1", "x2", "y"} {
			require.Equal(t, byte('+'), c.Do("ADDJOB", "q", key, 0, "UNIQUE", "until-processed", "SCOPE", scope).Kind)
		}
	}
	for _, clear := range []struct {
		args  []any
		count int64
		left  int
	}{
		{[]any{"x1"}, 1, 5}, {[]any{"PREFIX", "x"}, 1, 4}, {[]any{"ALL"}, 1, 3}, {[]any{"PREFIX", "x"}, 0, 3}, {[]any{"ALL"}, 0, 3},
		{[]any{"PREFIX", "x", "QUEUE", "q"}, 2, 1}, {[]any{"ALL", "QUEUE", "q"}, 1, 0},
	} {
		assert.Equal(t, clear.count, c.Do(append(append([]any{"LOCK.CLEAR"}, clear.args...), "TYPE", "waiting")...).Int(), "%v", clear.args)
		assert.Len(t, c.Do("LOCK.SCAN", 0, "TYPE", "waiting", "COUNT", 1000).Elems[1].Elems, clear.left, "%v", clear.args)
	}
}

// LOCK.SCAN finds locks by prefix and pattern. LOCK.CLEAR frees locks by name and prefix, or all.
func TestClearLocks(t *testing.T) {
	c := harness.Start(t).Dial()
	all := []string{"job:1", "job:10", "job:1*", "job:[1]", "jo", "ALL", "PREFIX", "x"}
	for i, name := range all {
		acquire(t, c, name, fmt.Sprint(i), 60_000)
	}
	assert.Len(t, scanLocks(t, c, "COUNT", 1), len(all))
	assert.Equal(t, []string{"job:1", "job:1*", "job:10"}, scanLocks(t, c, "PREFIX", "job:1"))
	assert.Equal(t, []string{"job:1", "job:1*", "job:10"}, scanLocks(t, c, "MATCH", "job:1*"))
	assert.Equal(t, []string{"job:1*"}, scanLocks(t, c, "MATCH", `job:1\*`))
	assert.Equal(t, []string{"job:[1]"}, scanLocks(t, c, "MATCH", `*\[[0-9]?`, "PREFIX", "job:["))
	assert.Empty(t, scanLocks(t, c, "TYPE", "waiting"))

	assert.Equal(t, int64(1), c.Do("LOCK.CLEAR", "job:1").Int())
	assert.False(t, c.Do("LOCK.SHOW", "job:10").Null)
	assert.Equal(t, int64(0), c.Do("LOCK.CLEAR", "job:1").Int())
	assert.Equal(t, int64(1), c.Do("LOCK.CLEAR", "NAME", "ALL").Int())
	assert.Equal(t, int64(1), c.Do("LOCK.CLEAR", "PREFIX", "job:1*").Int(), "a star is a star")
	assert.Equal(t, int64(1), c.Do("LOCK.CLEAR", "PREFIX", "job:[").Int())
	assert.Equal(t, int64(2), c.Do("LOCK.CLEAR", "PREFIX", "jo").Int())
	assert.Equal(t, int64(1), c.Do("LOCK.CLEAR", "NAME", "PREFIX").Int())
	assert.Equal(t, int64(1), c.Do("LOCK.CLEAR", "ALL").Int())
	assert.Empty(t, scanLocks(t, c))
	for _, wrong := range [][]any{{"PREFIX"}, {"a", "b"}, {"a", "TYPE", "odd"}, {"a", "QUEUE", "q"}, {"ALL", "TYPE"}} {
		v := c.Do(append([]any{"LOCK.CLEAR"}, wrong...)...)
		assert.True(t, v.Err("ERR"), "%v: %v", wrong, v)
	}
}

// Very many locks are free at once, and are counted and removed in slices.
func TestClearVeryManyLocks(t *testing.T) {
	s := harness.Start(t, saving("aof-kill"))
	c, other := s.Dial(), s.Dial()
	const many = 20_000
	fill := func() {
		for i := range many {
			c.Later("LOCK.ACQUIRE", fmt.Sprint("n", i), "old", 3_600_000)
		}
		for range many {
			require.Positive(t, c.Receive().Int())
		}
	}
	last := fmt.Sprint("n", many-1)
	fill()
	c.Send("LOCK.CLEAR", "PREFIX", "n")
	harness.Await(t, 10*time.Second, "the command", func() bool { return other.Do("LOCK.SHOW", last).Null })
	token := acquire(t, other, last, "new", 3_600_000)
	require.Equal(t, int64(many), c.Receive().Int())
	assert.Equal(t, []string{last}, scanLocks(t, c))
	comeBack(t, s, "aof-kill")
	c = s.Dial()
	assert.Equal(t, []string{last}, scanLocks(t, c))
	ok(t, c.Do("LOCK.RELEASE", last, "new", token))

	fill()
	ok(t, c.Do("MULTI"))
	c.Do("LOCK.CLEAR", "ALL")
	assert.Equal(t, int64(many), c.Do("EXEC").Elems[0].Int())
	assert.Empty(t, scanLocks(t, c))

	fill()
	other = s.Dial()
	ok(t, other.Do("MULTI"))
	other.Do("LOCK.ACQUIRE", "more", "old", 3_600_000)
	other.Do("CLIENT", "PAUSE", 60_000, "WRITE")
	id := c.Do("CLIENT", "ID").Int()
	// The command runs before the pause. While writes are paused no slice follows.
	c.Send("LOCK.CLEAR", "ALL")
	harness.Await(t, 10*time.Second, "the command", func() bool { return other.Do("PING").Str == "QUEUED" && s.Dial().Do("LOCK.SHOW", last).Null })
	other.Do("EXEC")
	if s.Dial().Do("CLIENT", "UNBLOCK", id).Int() == 1 {
		assert.True(t, c.Receive().Err("UNBLOCKED"))
	} else {
		assert.Equal(t, int64(many), c.Receive().Int())
	}
	ok(t, s.Dial().Do("CLIENT", "UNPAUSE"))
	harness.Await(t, 10*time.Second, "the slices", func() bool { return s.Info("jobmesh", "jobmesh_locks") == "1" })
	assert.Equal(t, []string{"more"}, scanLocks(t, c))
}

// Tokens grow, whatever happens to the server.
func TestTokensGrow(t *testing.T) {
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		held := acquire(t, c, "held", "a", 60_000)
		freed := acquire(t, c, "freed", "a", 60_000)
		ok(t, c.Do("LOCK.RELEASE", "freed", "a", freed))
		cleared := acquire(t, c, "cleared", "a", 60_000)
		require.Equal(t, int64(1), c.Do("LOCK.CLEAR", "cleared").Int())
		comeBack(t, s, mode)
		c = s.Dial()
		show := c.Do("LOCK.SHOW", "held")
		assert.Equal(t, held, show.Field("token").Int())
		assert.Equal(t, "a", show.Field("owner").Str)
		assert.InDelta(t, 60_000, show.Field("ttl").Int(), 3000, "the lease begins anew")
		assert.True(t, c.Do("LOCK.ACQUIRE", "held", "b", 1000).Null)
		ok(t, c.Do("LOCK.EXTEND", "held", "a", held, 60_000))
		for _, name := range []string{"freed", "cleared"} {
			assert.True(t, c.Do("LOCK.SHOW", name).Null)
			assert.Greater(t, acquire(t, c, name, "b", 60_000), max(freed, cleared))
		}
		ok(t, c.Do("LOCK.RELEASE", "held", "a", held))
		comeBack(t, s, mode)
		assert.Greater(t, acquire(t, s.Dial(), "held", "b", 60_000), held)
	}, "rdb", "aof", "aof-kill", "aof-without-preamble", "aof-without-preamble-kill")
}

// Floating point can hold tokens and creation times as exact numbers. So a script in the server's
// Lua gives back the token that it was given.
func TestNumbersFitFloatingPoint(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	const most = 1<<53 - 1
	last, ctime := int64(0), int64(0)
	for i := range 3000 {
		script := "return redis.call('LOCK.RELEASE', 'n', 'a', redis.call('LOCK.ACQUIRE', 'n', 'a', 60000))"
		ok(t, c.Do("EVAL", script, 0))
		if token := acquire(t, c, "m", "a", 60_000); assert.Greater(t, token, last) && assert.LessOrEqual(t, token, int64(most)) {
			last = token
		}
		ok(t, c.Do("LOCK.RELEASE", "m", "a", last))
		id := c.Do("ADDJOB", "q", i, 0, "UNIQUE", "during-processing", "KEY", "k").Str
		at := c.Do("SHOW", id).Field("ctime").Int()
		require.Greater(t, at, ctime)
		require.InDelta(t, time.Now().UnixMilli(), at>>11, 60_000)
		ctime = at
	}
	job := c.Do("GETJOB", "WITHTOKEN", "FROM", "q").Elems[0].Elems
	token := job[len(job)-1].Int()
	assert.Greater(t, token, last)
	assert.LessOrEqual(t, token, int64(most))
	assert.Equal(t, token, c.Do("SHOW", job[1].Str).Field("token").Int())
	assert.True(t, c.Do("LOCK.RELEASE", "m", "a", most+1).Err("ERR a token is a number from 1 to 9007199254740991"))
	assert.True(t, c.Do("LOCK.RELEASE", "m", "a", most).Err("NOTHELD"))
}

// Tokens grow also when the clock is set back: the server remembers the last token, and doesn't
// rely on the clock alone.
func TestTokensGrowWhenTheClockIsSetBack(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	// A floor an hour ahead is as good as a clock an hour back.
	ahead := time.Now().Add(time.Hour).UnixMilli() << 11
	s.Kill()
	appendToAOF(t, s, "DELLOCK", "", fmt.Sprint(ahead<<9))
	s.Restart()
	c := s.Dial()
	first := acquire(t, c, "n", "a", 60_000)
	assert.Greater(t, first, ahead)
	ok(t, c.Do("LOCK.RELEASE", "n", "a", first))
	assert.Greater(t, acquire(t, c, "n", "b", 60_000), first)
}

// appendToAOF appends a command to a stopped server's log.
func appendToAOF(t *testing.T, s *harness.Server, args ...string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*.incr.aof"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	f, err := os.OpenFile(files[0], os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	defer f.Close()
	fmt.Fprintf(f, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(f, "$%d\r\n%s\r\n", len(a), a)
	}
}

func TestLocksOnReplicas(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	before := acquire(t, c, "before", "a", 60_000)
	r := harness.Start(t, harness.WithReplicaOf(s))
	r.AwaitSync()
	after := acquire(t, c, "after", "a", 60_000)
	gone := acquire(t, c, "gone", "a", 60_000)
	ok(t, c.Do("LOCK.RELEASE", "gone", "a", gone))
	last := acquire(t, c, "last", "a", 60_000)
	harness.Await(t, 10*time.Second, "the replica to follow", func() bool { return r.Do("LOCK.SHOW", "last").Field("token").Is(last) })
	assert.Equal(t, before, r.Do("LOCK.SHOW", "before").Field("token").Int())
	assert.Equal(t, after, r.Do("LOCK.SHOW", "after").Field("token").Int())
	assert.True(t, r.Do("LOCK.SHOW", "gone").Null)
	assert.True(t, r.Do("LOCK.ACQUIRE", "x", "a", 1000).Err("READONLY"))
	assert.Len(t, scanLocks(t, r.Dial()), 3)
	s.Kill()
	ok(t, r.Do("REPLICAOF", "NO", "ONE"))
	c = r.Dial()
	assert.True(t, c.Do("LOCK.ACQUIRE", "before", "b", 1000).Null)
	ok(t, c.Do("LOCK.EXTEND", "before", "a", before, 60_000))
	ok(t, c.Do("LOCK.RELEASE", "last", "a", last))
	assert.Greater(t, acquire(t, c, "last", "b", 60_000), last)
	assert.Greater(t, acquire(t, c, "gone", "b", 60_000), last)
	// It becomes a replica again, and drops what it had for what the new master has.
	fresh := harness.Start(t)
	ok(t, r.Do("REPLICAOF", "127.0.0.1", fresh.Port))
	r.AwaitSync()
	assert.Empty(t, scanLocks(t, r.Dial()))
}

// The token of a holder that slept too long is refused.
func TestStoppedHolder(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	token := acquire(t, c, "n", "a", 300)
	s.Signal(syscall.SIGSTOP)
	time.Sleep(400 * time.Millisecond) // longer than the lease
	s.Signal(syscall.SIGCONT)
	next := acquire(t, c, "n", "b", 60_000)
	assert.Greater(t, next, token, "leases go on while the server is stopped")
	assert.True(t, c.Do("LOCK.EXTEND", "n", "a", token, 1000).Err("STALETOKEN"))
}

func TestLockBadInput(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	long := strings.Repeat("n", 4096)
	token := acquire(t, c, long, strings.Repeat("o", 1024), 60_000)
	assert.True(t, c.Do("LOCK.ACQUIRE", long, "b", 1000).Null)
	assert.Equal(t, long, c.Do("LOCK.SHOW", long).Field("name").Str)
	ok(t, c.Do("LOCK.RELEASE", long, strings.Repeat("o", 1024), token))
	binary := "a\x00\xff\r\n"
	token = acquire(t, c, binary, binary, 60_000)
	ok(t, c.Do("LOCK.RELEASE", binary, binary, token))
	for want, calls := range map[string][][]any{
		"ERR a lock's name":       {{"LOCK.ACQUIRE", "", "a", 1}, {"LOCK.ACQUIRE", long + "n", "a", 1}, {"LOCK.RELEASE", "", "a", 1}, {"LOCK.CLEAR", strings.Repeat("n", 1<<16)}},
		"ERR an owner":            {{"LOCK.ACQUIRE", "n", "", 1}, {"LOCK.EXTEND", "n", strings.Repeat("o", 1025), 1, 1}},
		"ERR ttl-ms must be":      {{"LOCK.ACQUIRE", "n", "a", 0}, {"LOCK.ACQUIRE", "n", "a", -1}, {"LOCK.ACQUIRE", "n", "a", "x"}, {"LOCK.ACQUIRE", "n", "a", 3_600_001}, {"LOCK.EXTEND", "n", "a", 1, "1.5"}, {"LOCK.ACQUIRE", "n", "a", "99999999999999999999"}},
		"ERR a token is a number": {{"LOCK.EXTEND", "n", "a", "x", 1}, {"LOCK.RELEASE", "n", "a", 0}, {"LOCK.RELEASE", "n", "a", -1}, {"LOCK.RELEASE", "n", "a", "9223372036854775808"}, {"LOCK.RELEASE", "n", "a", ""}},
		"ERR WAIT is not":         {{"LOCK.ACQUIRE", "n", "a", 1, "WAIT", "x"}},
		"ERR WAIT is negative":    {{"LOCK.ACQUIRE", "n", "a", 1, "WAIT", -1}},
		"ERR syntax error":        {{"LOCK.EXTEND", "n", "a", 1, 1, 1}, {"LOCK.ACQUIRE", "n", "a", 1, "WAIT"}, {"LOCK.ACQUIRE", "n", "a", 1, "NOW", 1}, {"LOCK.ACQUIRE", "n", "a", 1, "WAIT", 1, "x"}, {"LOCK.SHOW", "n", "x"}, {"LOCK.SCAN", 0, "COUNT"}, {"LOCK.SCAN", 0, "ODD", 1}},
		"ERR TYPE is":             {{"LOCK.SHOW", "n", "TYPE", "x"}, {"LOCK.SCAN", 0, "TYPE", ""}},
		"ERR QUEUE goes":          {{"LOCK.SHOW", "n", "QUEUE", "q"}, {"LOCK.SCAN", 0, "QUEUE", "q"}},
		"ERR COUNT":               {{"LOCK.SCAN", 0, "COUNT", 0}},
		"ERR invalid cursor":      {{"LOCK.SCAN", "x"}, {"LOCK.SCAN", "-1"}},
		"ERR wrong number":        {{"LOCK.ACQUIRE", "n", "a"}, {"LOCK.EXTEND", "n", "a", 1}, {"LOCK.RELEASE", "n", "a"}, {"LOCK.SHOW"}, {"LOCK.CLEAR"}, {"LOCK.SCAN"}},
		"ERR SETLOCK and DELLOCK": {{"SETLOCK", "x"}, {"DELLOCK", "n", 1}},
	} {
		for _, call := range calls {
			v := c.Do(call...)
			assert.True(t, v.Err(want), "%.80v: %.200v", call, v)
		}
	}
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "jobmesh.lock-max-lease", 10).Str)
	assert.True(t, c.Do("LOCK.ACQUIRE", "n", "a", 11).Err("ERR ttl-ms must be a number from 1 to 10 (jobmesh.lock-max-lease)"))
	require.Equal(t, "OK", c.Do("SELECT", 1).Str)
	assert.True(t, c.Do("LOCK.ACQUIRE", "n", "a", 1).Err("WRONGDB"))
	assert.Empty(t, scanLocks(t, s.Dial()), "nothing has changed")
}

func TestLocksInMultiAndLua(t *testing.T) {
	c := harness.Start(t).Dial()
	ok(t, c.Do("MULTI"))
	c.Do("LOCK.ACQUIRE", "n", "a", 60_000)
	c.Do("LOCK.ACQUIRE", "n", "b", 60_000, "WAIT", 60_000)
	v := c.Do("EXEC")
	require.Len(t, v.Elems, 2)
	assert.Positive(t, v.Elems[0].Int())
	assert.True(t, v.Elems[1].Null, "it doesn't wait")
	assert.True(t, c.Do("EVAL", "return redis.call('LOCK.ACQUIRE', 'n', 'b', 1000, 'WAIT', 1000)", 0).Null)
	ok(t, c.Do("EVAL", "return redis.call('LOCK.RELEASE', 'n', 'a', ARGV[1])", 0, v.Elems[0].Int()))
}

// FLUSHALL and DEBUG RELOAD leave the locks as they are, since locks are leases, not data.
func TestLocksStayWhenDataGoes(t *testing.T) {
	for _, aof := range []string{"no", "yes"} {
		s := harness.Start(t, harness.WithConfig("appendonly "+aof))
		c := s.Dial()
		token := acquire(t, c, "n", "a", 60_000)
		ok(t, c.Do("FLUSHALL"))
		assert.Equal(t, token, c.Do("LOCK.SHOW", "n").Field("token").Int())
		ok(t, c.Do("DEBUG", "RELOAD"))
		assert.Equal(t, token, c.Do("LOCK.SHOW", "n").Field("token").Int())
		if aof == "yes" {
			ok(t, c.Do("DEBUG", "LOADAOF"))
			assert.Equal(t, token, c.Do("LOCK.SHOW", "n").Field("token").Int())
		}
		ok(t, c.Do("LOCK.RELEASE", "n", "a", token))
	}
}

func TestShowLock(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial3()
	before := time.Now().UnixMilli()
	token := acquire(t, c, "n", "a", 5000)
	v := c.Do("LOCK.SHOW", "n")
	assert.Equal(t, byte('%'), v.Kind)
	assert.Equal(t, []string{"n", "bare", "a"}, []string{v.Field("name").Str, v.Field("type").Str, v.Field("owner").Str})
	assert.Equal(t, token, v.Field("token").Int())
	assert.Equal(t, int64(5000), v.Field("lease").Int())
	assert.InDelta(t, before, v.Field("since").Int(), 1000)
	assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_locks"))
	assert.Equal(t, "no", s.Info("jobmesh", "jobmesh_locks_abstaining"))
	assert.True(t, c.Do("LOCK.SHOW", "m").Null)
	assert.True(t, c.Do("LOCK.SHOW", "n", "TYPE", "running", "QUEUE", "q").Null)
}

// Tokens grow over a crash that loses the end of the log, also right after a start, when they
// are ahead of the clock.
func TestTokensGrowOverALostEndOfTheLog(t *testing.T) {
	for name, start := range map[string]func(s *harness.Server){
		"after SHUTDOWN": func(s *harness.Server) { s.Stop() }, "after kill -9": func(s *harness.Server) { s.AwaitLogged(); s.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			s := harness.Start(t, harness.WithConfig("appendonly yes", "auto-aof-rewrite-percentage 0"))
			last := acquire(t, s.Dial(), "n", "a", 1)
			start(s)
			for range 3 {
				s.Restart()
				s.AwaitLogged()
				file := lastOfLog(t, s)
				before, err := os.Stat(file)
				require.NoError(t, err)
				token := acquire(t, s.Dial(), "n", "b", 1)
				require.Greater(t, token, last)
				last = token
				s.Kill()
				require.NoError(t, os.Truncate(file, before.Size()))
			}
		})
	}
}

// The tokens of a promoted replica grow over such a crash too. They go on from its master's.
func TestTokensGrowOverALostEndOfTheLogOfOnePromoted(t *testing.T) {
	t.Parallel()
	config := harness.WithConfig("appendonly yes", "auto-aof-rewrite-percentage 0")
	master := harness.Start(t, config)
	s := harness.Start(t, config)
	require.Equal(t, "OK", s.Do("REPLICAOF", "127.0.0.1", master.Port).Str)
	s.AwaitSync()
	acquire(t, master.Dial(), "n", "a", 1)
	require.Equal(t, int64(1), master.Do("WAIT", 1, 5000).Int())
	require.Equal(t, "OK", s.Do("REPLICAOF", "NO", "ONE").Str)
	harness.Await(t, 5*time.Second, "the promotion", func() bool { return s.Do("ADDJOB", "q", "b", 0).Kind == '+' })
	s.AwaitLogged()
	file := lastOfLog(t, s)
	before, err := os.Stat(file)
	require.NoError(t, err)
	token := acquire(t, s.Dial(), "n", "b", 1)
	s.Kill()
	require.NoError(t, os.Truncate(file, before.Size()))
	s.Restart()
	assert.Greater(t, acquire(t, s.Dial(), "n", "c", 1), token)
}

// lastOfLog is the file to which the AOF is written.
func lastOfLog(t *testing.T, s *harness.Server) string {
	files, err := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*.incr.aof"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files[len(files)-1]
}
