package single

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// subscribed returns a connection that has subscribed.
func subscribed(t *testing.T, c *harness.Conn, command, channel string) *harness.Conn {
	t.Helper()
	c.Send(command, channel)
	require.Equal(t, strings.ToLower(command), c.Receive().Elems[0].Str)
	return c
}

// A publication comes to subscribers by channel and by pattern, in both protocols, from MULTI and from scripts.
func TestPublish(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	a, b := subscribed(t, s.Dial(), "SUBSCRIBE", "chan"), subscribed(t, s.Dial3(), "PSUBSCRIBE", "ch*")
	heard := func(what string) {
		t.Helper()
		assert.Equal(t, []string{"message", "chan", what}, a.Receive().Strings())
		assert.Equal(t, []string{"pmessage", "ch*", "chan", what}, b.Receive().Strings())
	}
	logged := s.Appended()
	for _, text := range []string{"hello", "", "\x00\r\n\xff", strings.Repeat("x", 65536)} {
		require.Equal(t, ":1", c.Do("JOBMESH", "PUBLISH", "chan", text).String())
		heard(text)
	}
	require.Equal(t, ":1", c.Do("JOBMESH", "PUBLISH", "", "nobody").String())
	require.Equal(t, ":1", c.Do("JOBMESH", "PUBLISH", strings.Repeat("c", 1024), "nobody").String())
	c.Do("MULTI")
	c.Do("JOBMESH", "PUBLISH", "chan", "multi")
	require.Equal(t, int64(1), c.Do("EXEC").Elems[0].Int())
	heard("multi")
	require.Equal(t, ":1", c.Do("EVAL", "return redis.call('JOBMESH', 'PUBLISH', 'chan', 'script')", 0).String())
	heard("script")
	require.Equal(t, byte('-'), c.Do("EVAL_RO", "return redis.call('JOBMESH', 'PUBLISH', 'chan', 'x')", 0).Kind)
	assert.Equal(t, logged, s.Appended(), "nothing is logged")

	for _, wrong := range []struct {
		args []any
		want string
	}{
		{[]any{"JOBMESH", "PUBLISH", strings.Repeat("c", 1025), "m"}, "ERR the channel must have 1024 bytes at most"},
		{[]any{"JOBMESH", "PUBLISH", "chan", strings.Repeat("m", 65537)}, "ERR the message must have 65536 bytes at most"},
		{[]any{"JOBMESH", "PUBLISH", "chan"}, "ERR wrong number of arguments"},
		{[]any{"JOBMESH", "PUBLISH", "chan", "a", "b"}, "ERR wrong number of arguments"},
	} {
		assert.True(t, c.Do(wrong.args...).Err(wrong.want), "%.60v", wrong.args)
	}
	require.Equal(t, ":1", c.Do("JOBMESH", "PUBLISH", "chan", "last").String())
	heard("last")
}

// A user publishes only where PUBLISH may.
func TestPublishAndACL(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	require.Equal(t, "OK", c.Do("ACL", "SETUSER", "u", "on", ">p", "~*", "resetchannels", "&own", "+@all").Str)
	require.Equal(t, "OK", c.Do("ACL", "SETUSER", "v", "on", ">p", "~*", "allchannels", "+@all", "-publish").Str)
	u, v := s.Dial(), s.Dial()
	require.Equal(t, "OK", u.Do("AUTH", "u", "p").Str)
	require.Equal(t, "OK", v.Do("AUTH", "v", "p").Str)
	own := subscribed(t, s.Dial(), "PSUBSCRIBE", "*")
	assert.True(t, u.Do("JOBMESH", "PUBLISH", "other", "m").Err("NOPERM"))
	assert.True(t, u.Do("EVAL", "return redis.pcall('JOBMESH', 'PUBLISH', 'other', 'm')", 0).Err("NOPERM"))
	assert.True(t, v.Do("JOBMESH", "PUBLISH", "own", "m").Err("NOPERM"))
	require.Equal(t, ":1", u.Do("JOBMESH", "PUBLISH", "own", "m").String())
	assert.Equal(t, []string{"pmessage", "*", "own", "m"}, own.Receive().Strings())
}

// The subscribers of a replica don't hear what a module publishes at its master. It publishes to its own.
func TestPublishAtAReplica(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	r := harness.Start(t, harness.WithReplicaOf(s))
	harness.Await(t, 20*time.Second, "the replica to follow", func() bool { return r.Info("replication", "master_link_status") == "up" })
	sub := subscribed(t, r.Dial(), "SUBSCRIBE", "chan")
	require.Equal(t, ":1", s.Do("JOBMESH", "PUBLISH", "chan", "module").String())
	require.Equal(t, ":0", s.Do("PUBLISH", "chan", "server").String())
	assert.Equal(t, []string{"message", "chan", "server"}, sub.Receive().Strings())
	require.Equal(t, ":1", r.Do("JOBMESH", "PUBLISH", "chan", "own").String())
	assert.Equal(t, []string{"message", "chan", "own"}, sub.Receive().Strings())
}
