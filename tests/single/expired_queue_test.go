package single

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// noActiveExpiry keeps the server from looking for keys whose time is over, as it does some ten
// times a second. Then it removes such a key only when somebody looks it up.
func noActiveExpiry(c *harness.Conn) { c.Do("DEBUG", "SET-ACTIVE-EXPIRE", "0") }

// expire gives a queue's key a time to live, and waits until that is over.
func expire(t *testing.T, c *harness.Conn, queue string) {
	require.Equal(t, int64(1), c.Do("PEXPIRE", queue, 1).Int())
	c.Do("DEBUG", "SLEEP", "0.01")
}

// When the time of a queue's key is over, the queue is gone for every command, although the server
// removes the key a little later. A job that is added then is the first one of a new queue.
func TestAddedBehindTheEndOfAQueuesTime(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	noActiveExpiry(c)
	for name, add := range map[string][]any{
		"ADDJOB":     {"ADDJOB", "q", "new", 0},
		"MAXLEN":     {"ADDJOB", "q", "new", 0, "MAXLEN", 1},
		"unique":     {"ADDJOB", "q", "new", 0, "UNIQUE", "until-processed", "KEY", "k", "ONCONFLICT", "raise"},
		"RELEASEJOB": {"RELEASEJOB", c.Do("ADDJOB", "deferred", "new", 0, "DEFERRED").Str, "QUEUE", "q"},
	} {
		old := addUnique(t, c, "q", "old", "UNIQUE until-processed KEY k")
		expire(t, c, "q")
		answer := c.Do(add...)
		id := answer.Str
		if name == "RELEASEJOB" {
			id = add[1].(string)
			require.NotEqual(t, byte('-'), answer.Kind, "%v", answer)
		}
		assert.Equal(t, int64(1), c.Do("EXISTS", "q").Int(), name)
		assert.False(t, c.Do("SHOW", id).Null, "%s: the job was acknowledged", name)
		assert.True(t, c.Do("SHOW", old).Null, name)
		assert.Equal(t, int64(-1), c.Do("PTTL", "q").Int(), name)
		s.Stop()
		s.Restart()
		c = s.Dial()
		noActiveExpiry(c)
		assert.Equal(t, int64(1), c.Do("QLEN", "q").Int(), "%s: what is in the log", name)
		v := c.Do("GETJOB", "NOHANG", "FROM", "q")
		if assert.Len(t, v.Elems, 1, name) {
			assert.Equal(t, id, v.Elems[0].Elems[1].Str, name)
		}
		c.Do("ACKJOB", id)
		c.Do("DEL", "q")
	}
}

// Nobody sees a queue whose time is over, however its key got that time. While writes are paused the
// server doesn't remove the key, and neither does a replica.
func TestNobodySeesAQueueBehindItsTime(t *testing.T) {
	t.Parallel()
	master := harness.Start(t)
	c := master.Dial()
	noActiveExpiry(c)
	replica := harness.Start(t, harness.WithReplicaOf(master))
	r := replica.Dial()
	replica.AwaitSync()
	noActiveExpiry(r)
	unseen := func(c *harness.Conn, id string) {
		t.Helper()
		assert.Zero(t, c.Do("QLEN", "q").Int())
		assert.Empty(t, c.Do("QPEEK", "q", 1).Elems)
		assert.True(t, c.Do("QSTAT", "q").Null)
		assert.Empty(t, c.Do("WIP", "q").Elems)
		assert.Empty(t, c.Do("QSCAN").Elems[1].Elems)
		assert.Empty(t, c.Do("JSCAN").Elems[1].Elems)
		assert.True(t, c.Do("SHOW", id).Null)
	}
	for name, give := range map[string]func(){
		"EXPIRE": func() { c.Do("PEXPIRE", "q", 500) },
		"RENAME": func() {
			c.Do("RENAME", "q", "p")
			c.Do("PEXPIRE", "p", 500)
			c.Do("RENAME", "p", "q")
		},
		"MOVE": func() {
			c.Do("PEXPIRE", "q", 500)
			c.Do("MOVE", "q", 1)
			c.Do("SELECT", 1)
			c.Do("MOVE", "q", 0)
			c.Do("SELECT", 0)
		},
		"RESTORE": func() {
			dump := c.Do("DUMP", "q").Str
			c.Do("DEL", "q")
			require.Equal(t, "OK", c.Do("RESTORE", "q", 500, dump).Str)
		},
		"loading": func() {
			c.Do("PEXPIRE", "q", 500)
			require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
			replica.AwaitSync()
		},
		"PERSIST before": func() {
			c.Do("PEXPIRE", "q", 1000)
			c.Do("PERSIST", "q")
			require.Equal(t, int64(1), c.Do("QLEN", "q").Int())
			c.Do("PEXPIRE", "q", 500)
		},
	} {
		id := add(t, c, "q", "body", 0)
		give()
		require.Equal(t, int64(1), c.Do("QLEN", "q").Int(), name)
		require.Equal(t, int64(1), c.Do("WAIT", 1, 5000).Int())
		require.Equal(t, "OK", c.Do("CLIENT", "PAUSE", 100_000, "WRITE").Str)
		c.Do("DEBUG", "SLEEP", "0.55") // the clock of either node may be behind a little
		unseen(c, id)
		unseen(r, id)
		require.Equal(t, "OK", c.Do("CLIENT", "UNPAUSE").Str)
		assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray(), name)
		require.Zero(t, c.Do("EXISTS", "q").Int(), name)
	}
}
