package single

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func jobs(s *harness.Server) string { return s.Info("jobmesh", "jobmesh_registered_jobs") }

func awaitNoJobs(t *testing.T, s *harness.Server) {
	t.Helper()
	harness.Await(t, 5*time.Second, "the jobs' memory to be reclaimed", func() bool { return jobs(s) == "0" })
}

func TestQueueIsAKey(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "q", "body", 0)
	assert.Equal(t, "jobmesh-q", c.Do("TYPE", "q").Str)
	assert.Equal(t, []string{"q"}, c.Do("SCAN", 0, "TYPE", "jobmesh-q").Elems[1].Strings())
	assert.Greater(t, c.Do("MEMORY", "USAGE", "q").Int(), int64(120))
	assert.True(t, c.Do("COPY", "q", "p").Kind == '-' || c.Do("EXISTS", "p").Is(0))
	assert.True(t, c.Do("LPUSH", "q", "x").Err("WRONGTYPE"))
	for _, del := range []string{"DEL", "UNLINK"} {
		assert.Equal(t, int64(1), c.Do(del, "q").Int())
		assert.True(t, c.Do("SHOW", id).Null)
		assert.Equal(t, int64(0), c.Do("ACKJOB", id).Int())
		awaitNoJobs(t, s)
		id = add(t, c, "q", "again", 0)
		assert.Equal(t, id, c.Do("QPEEK", "q", 1).Elems[0].Elems[1].Str)
	}
	c.Do("SET", "q", "overwritten")
	awaitNoJobs(t, s)
	c.Do("DEL", "q")
	add(t, c, "q", "b", 0)
	c.Do("PEXPIRE", "q", 20)
	harness.Await(t, 3*time.Second, "the key to expire", func() bool { return c.Do("EXISTS", "q").Is(0) })
	awaitNoJobs(t, s)
}

func TestRename(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	a, b := add(t, c, "a", "1", 0), add(t, c, "a", "2", 0, "RETRY", 1)
	lost := add(t, c, "new", "x", 0)
	w := s.Dial()
	w.Send("GETJOB", "FROM", "waited")
	awaitBlocked(t, s, 1)
	assert.Equal(t, "OK", c.Do("RENAME", "a", "new").Str)
	assert.True(t, c.Do("SHOW", lost).Null)
	assert.Equal(t, "new", c.Do("SHOW", a).Field("queue").Str)
	assert.Equal(t, int64(2), c.Do("QLEN", "new").Int())
	assert.Equal(t, int64(0), c.Do("QLEN", "a").Int())
	assert.Equal(t, "OK", c.Do("RENAME", "new", "waited").Str)
	assert.Equal(t, a, w.Receive().Elems[0].Elems[1].Str)
	assert.Equal(t, b, get(t, c, "waited"))
	harness.Await(t, 3*time.Second, "the retry under the new name", func() bool { return c.Do("QLEN", "waited").Is(1) })
}

func TestOtherDatabases(t *testing.T) {
	s := harness.Start(t)
	c, one := s.Dial(), s.Dial()
	one.Do("SELECT", 1)
	id := add(t, c, "q", "b", 0)
	assert.Equal(t, int64(1), c.Do("MOVE", "q", 1).Int())
	assert.True(t, c.Do("SHOW", id).Null, "a queue in another database sleeps")
	assert.Equal(t, int64(1), one.Do("MOVE", "q", 0).Int())
	assert.Equal(t, "queued", state(c, id))
	assert.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
	assert.True(t, c.Do("SHOW", id).Null)
	second := add(t, c, "q", "two", 0)
	assert.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
	assert.Equal(t, "queued", state(c, id))
	assert.True(t, c.Do("SHOW", second).Null)
	one.Do("FLUSHDB")
	assert.Equal(t, "queued", state(c, id))
	harness.Await(t, 3*time.Second, "the flushed sleeping queue", func() bool { return jobs(s) == "1" })
	assert.Equal(t, id, get(t, c, "q"))
}

func TestFlush(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	for _, how := range [][]any{{"FLUSHALL"}, {"FLUSHALL", "ASYNC"}, {"FLUSHDB"}, {"FLUSHDB", "ASYNC"}, {"JOBMESH", "FLUSH"}} {
		var ids []string
		for range 500 {
			ids = append(ids, add(t, c, "q", "b", 0), add(t, c, "p", "b", 0, "DELAY", 1))
		}
		get(t, c, "q")
		assert.Equal(t, "OK", c.Do(how...).Str)
		assert.Equal(t, int64(0), c.Do("DBSIZE").Int())
		assert.True(t, c.Do("SHOW", ids[3]).Null)
		awaitNoJobs(t, s)
		w := s.Dial()
		w.Send("GETJOB", "FROM", "q")
		awaitBlocked(t, s, 1)
		id := add(t, c, "q", "after", 0)
		assert.Equal(t, id, w.Receive().Elems[0].Elems[1].Str)
		assert.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
	}
}

func TestDumpRestore(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	queued, held := add(t, c, "q", "1", 0, "RETRY", 0), add(t, c, "q", "2", 0)
	dump := []byte(c.Do("DUMP", "q").Str)
	assert.Equal(t, "OK", c.Do("RESTORE", "copy", 0, dump).Str)
	assert.Equal(t, int64(0), c.Do("QLEN", "copy").Int(), "IDs that exist are left out")
	assert.Equal(t, "queued", state(c, queued))
	c.Do("DEL", "q", "copy")
	assert.Equal(t, "OK", c.Do("RESTORE", "back", 0, dump).Str)
	assert.Equal(t, int64(2), c.Do("QLEN", "back").Int(), "nothing was delivered since")
	assert.Equal(t, "back", c.Do("SHOW", held).Field("queue").Str)
	dump = []byte(c.Do("DUMP", "back").Str)
	assert.Equal(t, queued, get(t, c, "back"))
	assert.Equal(t, "OK", c.Do("RESTORE", "back", 0, dump, "REPLACE").Str)
	assert.Equal(t, []string{"active", "queued"}, []string{state(c, queued), state(c, held)}, "a delivered at-most-once job must not come again")
	assert.Equal(t, "maybe", c.Do("SHOW", queued).Field("delivered").Str)
	assert.Equal(t, int64(1), c.Do("QLEN", "back").Int())
	for i := 12; i < len(dump)-10; i += 7 {
		bad := append([]byte(nil), dump...)
		bad[i] ^= 0x40
		require.True(t, c.Do("RESTORE", "bad", 0, bad).Err("ERR"))
	}
}

func TestACLOnQueues(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	c.Do("ACL", "SETUSER", "w", "on", ">p", "~mail:*", "+@all")
	u := s.Dial()
	require.Equal(t, "OK", u.Do("AUTH", "w", "p").Str)
	assert.Equal(t, byte('+'), u.Do("ADDJOB", "mail:1", "b", 0).Kind)
	assert.True(t, u.Do("ADDJOB", "other", "b", 0).Err("NOPERM"))
	assert.True(t, u.Do("GETJOB", "NOHANG", "FROM", "mail:1", "other").Err("NOPERM"))
	assert.True(t, u.Do("QPEEK", "other", 1).Err("NOPERM"))
	assert.Equal(t, []string{"a", "b"}, c.Do("COMMAND", "GETKEYS", "GETJOB", "NOHANG", "FROM", "a", "b").Strings())
}

func TestClusterModeIsRefused(t *testing.T) {
	s := harness.New(t, harness.WithConfig("cluster-enabled yes", fmt.Sprint("cluster-port ", harness.FreePort(t))))
	s.Launch()
	s.AwaitEnd()
	assert.Contains(t, s.Log(), "Set cluster-enabled no")
}
