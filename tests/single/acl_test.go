package single

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// limitedUser returns a connection of a user who may use only the queues a…, once the module
// knows that there are limited users.
func limitedUser(t *testing.T, s *harness.Server) *harness.Conn {
	t.Helper()
	c := s.Dial()
	require.Equal(t, "OK", c.Do("ACL", "SETUSER", "u", "on", ">p", "resetkeys", "~a*", "+@all").Str)
	u := s.Dial()
	require.Equal(t, "OK", u.Do("AUTH", "u", "p").Str)
	probe := c.Do("ADDJOB", "probe", "x", 0).Str
	harness.Await(t, 10*time.Second, "the module knows of limited users", func() bool {
		return u.Do("SHOW", probe).Err("NOPERM")
	})
	c.Do("DELJOB", probe)
	return u
}

// Key patterns also hold for a command that is given a job's ID: they are compared with the name
// of the job's queue.
func TestACLBindsIDs(t *testing.T) {
	s := harness.Start(t)
	c, u := s.Dial(), limitedUser(t, s)
	secret := c.Do("ADDJOB", "secret", "TOP", 0).Str
	deferred := c.Do("ADDJOB", "secret", "LATER", 0, "DEFERRED").Str
	own := u.Do("ADDJOB", "a1", "mine", 0).Str
	for _, command := range [][]any{
		{"ACKJOB", own, secret}, {"FASTACK", secret}, {"DELJOB", secret}, {"NACK", secret}, {"ENQUEUE", secret}, {"DEQUEUE", secret},
		{"CANCELJOB", secret}, {"WORKING", secret}, {"WORKING", own, secret, "PROGRESS", "x"}, {"SHOW", secret}, {"RELEASEJOB", deferred}, {"RELEASEJOB", deferred, "QUEUE", "a1"},
		{"ADDJOB", "a1", "x", 0, "AFTER", secret}, {"ADDJOB", "a1", "x", 0, "BLOCKEDBY", deferred},
	} {
		assert.True(t, u.Do(command...).Err("NOPERM "), "%v", command)
	}
	assert.Equal(t, int64(1), c.Do("QLEN", "secret").Int())
	assert.Equal(t, "deferred", c.Do("SHOW", deferred).Field("state").Str)
	assert.Equal(t, "mine", u.Do("SHOW", own).Field("body").Str, "ACKJOB did nothing to any of its jobs")
	assert.Equal(t, int64(1), u.Do("ACKJOB", own).Int())
	c.Do("ACL", "SETUSER", "r", "on", ">p", "resetkeys", "%R~secret", "+@all")
	reader := s.Dial()
	reader.Do("AUTH", "r", "p")
	assert.Equal(t, "TOP", reader.Do("SHOW", secret).Field("body").Str)
	assert.True(t, reader.Do("ACKJOB", secret).Err("NOPERM "))
	v := u.Do("EVAL", "return redis.pcall('ACKJOB', ARGV[1])", 0, secret)
	assert.True(t, v.Err("NOPERM "), "in a script: %v", v)
}

// A user that is off has the limits it had: who was logged in stays so.
func TestACLBindsUsersThatAreOff(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	require.Equal(t, "OK", c.Do("ACL", "SETUSER", "u", "on", ">p", "resetkeys", "~a*", "+@all").Str)
	u := s.Dial()
	require.Equal(t, "OK", u.Do("AUTH", "u", "p").Str)
	require.Equal(t, "OK", c.Do("ACL", "SETUSER", "u", "off").Str)
	require.Equal(t, "u", u.Do("ACL", "WHOAMI").Str)
	secret := c.Do("ADDJOB", "secret", "TOP", 0).Str
	harness.Await(t, 10*time.Second, "the module knows of limited users", func() bool {
		return u.Do("SHOW", secret).Err("NOPERM")
	})
	assert.True(t, u.Do("ACKJOB", secret).Err("NOPERM"))
}

// RELEASEJOB has one QUEUE: the server checks the first one.
func TestACLBindsRelease(t *testing.T) {
	s := harness.Start(t)
	c, u := s.Dial(), limitedUser(t, s)
	id := u.Do("ADDJOB", "a", "x", 0, "DEFERRED").Str
	assert.True(t, u.Do("RELEASEJOB", id, "QUEUE", "secret").Err("NOPERM"))
	assert.True(t, u.Do("RELEASEJOB", id, "QUEUE", "a2", "QUEUE", "secret").Err("ERR"))
	assert.Equal(t, int64(0), c.Do("QLEN", "secret").Int())
	assert.Equal(t, int64(1), u.Do("RELEASEJOB", id, "QUEUE", "a2").Int())
	assert.Equal(t, int64(1), c.Do("QLEN", "a2").Int())
}

// Scans show a user the queues of its key patterns, their jobs and their locks.
func TestACLBindsScans(t *testing.T) {
	s := harness.Start(t)
	c, u := s.Dial(), limitedUser(t, s)
	c.Do("ADDJOB", "secret", "TOP", 0, "UNIQUE", "until-processed")
	own := u.Do("ADDJOB", "a1", "mine", 0, "UNIQUE", "until-processed").Str
	scanned := func(command ...any) []harness.Value { return u.Do(command...).Elems[1].Elems }
	if jobs := scanned("JSCAN", 0, "BUSYLOOP"); assert.Len(t, jobs, 1) {
		assert.Equal(t, own, jobs[0].Str)
	}
	if jobs := scanned("JSCAN", 0, "BUSYLOOP", "REPLY", "all"); assert.Len(t, jobs, 1) {
		assert.Equal(t, "mine", jobs[0].Field("body").Str)
	}
	if queues := scanned("QSCAN", 0, "BUSYLOOP"); assert.Len(t, queues, 1) {
		assert.Equal(t, "a1", queues[0].Str)
	}
	if locks := scanned("LOCK.SCAN", 0, "TYPE", "waiting", "COUNT", 1000); assert.Len(t, locks, 1) {
		assert.Equal(t, "a1", locks[0].Elems[0].Str)
	}
	assert.Len(t, c.Do("JSCAN", 0, "BUSYLOOP").Elems[1].Elems, 2)
	assert.Len(t, c.Do("LOCK.SCAN", 0, "TYPE", "waiting", "COUNT", 1000).Elems[1].Elems, 2)

	assert.Equal(t, own, u.Do("LOCK.SHOW", "mine", "TYPE", "waiting", "QUEUE", "a1").Field("job").Str)
	assert.True(t, u.Do("LOCK.SHOW", "TOP", "TYPE", "waiting", "QUEUE", "secret").Err("NOPERM "))
	assert.True(t, u.Do("LOCK.CLEAR", "TOP", "TYPE", "waiting", "QUEUE", "secret").Err("NOPERM "))
	assert.True(t, u.Do("LOCK.CLEAR", "ALL", "TYPE", "waiting").Err("NOPERM "))
	assert.Equal(t, int64(1), u.Do("LOCK.CLEAR", "ALL", "TYPE", "waiting", "QUEUE", "a1").Int())
	assert.NotEqual(t, byte('-'), c.Do("LOCK.SHOW", "TOP", "TYPE", "waiting", "QUEUE", "secret").Kind)
	assert.False(t, c.Do("LOCK.SHOW", "TOP", "TYPE", "waiting", "QUEUE", "secret").Null, "it is held still")
}

// A key of SCOPE mesh tells no more of another queue's job than that the key is taken.
func TestACLBindsKeysOfTheMesh(t *testing.T) {
	s := harness.Start(t)
	c, u := s.Dial(), limitedUser(t, s)
	add := func(by *harness.Conn, queue, body, conflict string) harness.Value {
		return by.Do("ADDJOB", queue, body, 0, "UNIQUE", "until-processed", "KEY", "k", "SCOPE", "mesh", "ONCONFLICT", conflict)
	}
	secret := add(c, "secret", "TOP", "raise").Str
	for _, conflict := range []string{"return", "raise", "replace"} {
		v := add(u, "a1", "EVIL", conflict)
		assert.True(t, v.Err("DUPLICATE "), "%s: %v", conflict, v)
		assert.NotContains(t, v.Str, secret)
	}
	assert.True(t, add(u, "a1", "x", "drop").NullString())
	assert.Equal(t, "TOP", c.Do("SHOW", secret).Field("body").Str)
	assert.True(t, u.Do("LOCK.SHOW", "k", "TYPE", "waiting").Err("NOPERM "))
	assert.True(t, u.Do("LOCK.CLEAR", "k", "TYPE", "waiting").Err("NOPERM "))
	assert.Equal(t, secret, add(c, "a1", "x", "return").Str)

	require.Equal(t, int64(1), c.Do("DELJOB", secret).Int())
	own := add(u, "a2", "mine", "raise").Str
	assert.Equal(t, own, add(u, "a1", "x", "return").Str)
	assert.Contains(t, add(u, "a1", "x", "raise").Str, own)
	assert.Equal(t, own, add(u, "a1", "new", "replace").Str)
	assert.Equal(t, "new", u.Do("SHOW", own).Field("body").Str)
}
