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

// The same name answers the same ID, and stands for one job as long as that is known.
func TestNames(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "q", "first", 0, "RETRY", 60, "NAME", "x")
	again := func(what string) {
		t.Helper()
		require.Equal(t, id, add(t, c, "other", "second", 0, "DELAY", 60, "NAME", "x"), what)
		require.Equal(t, ":0", c.Do("QLEN", "other").String(), what)
		require.Equal(t, "0", s.Info("jobmesh", "jobmesh_jobs_delayed"), what)
	}
	again("waiting")
	v := c.Do("SHOW", "NAME", "x")
	assert.Equal(t, []string{id, "x", "q", "first"}, []string{v.Field("id").Str, v.Field("name").Str, v.Field("queue").Str, v.Field("body").Str})
	assert.Equal(t, int64(60), v.Field("retry").Int())
	assert.InDelta(t, 86400, v.Field("ttl").Int(), 5)
	require.Equal(t, id, get(t, c, "q"))
	again("in progress")
	require.Equal(t, int64(1), c.Do("NACK", "NAME", "x", "DEAD", "REASON", "NAME").Int())
	again("dead")
	require.Equal(t, int64(1), c.Do("MOVEJOB", "NAME", "x", "TO", "q").Int())
	require.Equal(t, int64(1), c.Do("ACKJOB", "NAME", "x").Int())
	again("acknowledged")
	require.Equal(t, "4", s.Info("jobmesh", "jobmesh_names_known"))

	kept := add(t, c, "q", "b", 0, "NAME", "k", "KEEP", 600)
	require.Equal(t, int64(1), c.Do("ACKJOB", "NAME", "k", "RESULT", "NAME").Int())
	require.Equal(t, kept, add(t, c, "q", "b", 0, "NAME", "k"))
	v = c.Do("SHOW", "NAME", "k")
	assert.Equal(t, []string{"done", "NAME", "k"}, []string{v.Field("state").Str, v.Field("result").Str, v.Field("name").Str})
	require.Equal(t, ":0", c.Do("QLEN", "q").String())

	gone := add(t, c, "q", "b", 0, "NAME", "d", "DELAY", 60)
	require.Equal(t, gone, add(t, c, "q", "b", 0, "NAME", "d"), "delayed")
	require.Equal(t, int64(1), c.Do("DELJOB", "NAME", "d").Int())
	require.Equal(t, gone, add(t, c, "q", "b", 0, "NAME", "d"), "a deleted job's name is free")
	require.Equal(t, ":1", c.Do("QLEN", "q").String())
	add(t, c, "q", "b", 0, "NAME", "e", "TTL", 1)
	harness.Await(t, 20*time.Second, "the job to expire", func() bool { return c.Do("SHOW", "NAME", "e").NullString() })
	add(t, c, "q", "b", 0, "NAME", "e")
	assert.Equal(t, "queued", c.Do("SHOW", "NAME", "e").Field("state").Str)

	require.Equal(t, "in", c.Do("PAUSE", "q", "in").Str)
	require.Equal(t, gone, add(t, c, "q", "b", 0, "NAME", "d"), "paused")
	require.True(t, c.Do("ADDJOB", "q", "b", 0, "NAME", "new").Err("PAUSED"))
	require.Equal(t, "none", c.Do("PAUSE", "q", "none").Str)
	require.Equal(t, gone, add(t, c, "q", "b", 0, "NAME", "d", "MAXLEN", 1), "full")
}

// Each command that takes IDs takes names, mixed with IDs, before its options. A name is the one argument behind NAME.
func TestNamesForIDs(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	plain := add(t, c, "q", "plain", 0, "RETRY", 60)
	for _, name := range []string{"NAME", "REASON", plain, strings.Repeat("x", 255), "\x00\r\n", "0"} {
		add(t, c, "q", name, 0, "RETRY", 60, "name", name)
	}
	require.Len(t, c.Do("GETJOB", "COUNT", 10, "FROM", "q").Elems, 7)
	v := c.Do("WORKING", "NAME", "NAME", plain, "NAME", "REASON", "NAME", "unknown", "PROGRESS", "NAME")
	require.Len(t, v.Elems, 4)
	assert.Equal(t, int64(180), v.Elems[0].Int()+v.Elems[1].Int()+v.Elems[2].Int())
	assert.Contains(t, v.Elems[3].Str, "-NOJOB")
	assert.Equal(t, "NAME", c.Do("SHOW", "NAME", "NAME").Field("progress").Str)
	assert.Equal(t, int64(3), c.Do("ENQUEUE", "NAME", "NAME", "name", "REASON", plain, "UNSTARTED").Int())
	assert.Equal(t, int64(2), c.Do("DEQUEUE", "NAME", "NAME", "NAME", "REASON").Int())
	assert.Equal(t, int64(2), c.Do("NACK", "NAME", "NAME", "NAME", "REASON", "REASON", "NAME").Int())
	assert.Equal(t, "NAME", c.Do("SHOW", "NAME", "REASON").Field("reason").Str)
	assert.Equal(t, int64(1), c.Do("NACK", "NAME", plain, "BODY", "NAME").Int(), "one job, whose name is an ID")
	assert.Equal(t, "NAME", c.Do("SHOW", "NAME", plain).Field("body").Str)
	assert.Equal(t, "plain", c.Do("SHOW", plain).Field("body").Str)
	assert.Equal(t, int64(2), c.Do("MOVEJOB", plain, "NAME", "REASON", "TO", "NAME").Int())
	assert.Equal(t, "1 1", fmt.Sprint(c.Do("WAITCOPIES", "NAME", "NAME", "NAME", "0", 100).Elems[0].Int(), c.Do("WAITCOPIES", "NAME", "0", 0).Elems[0].Int()))
	assert.Equal(t, int64(2), c.Do("CANCELJOB", "NAME", "NAME", "NAME", "0", "REASON", "NAME").Int())
	assert.Equal(t, int64(1), c.Do("FASTACK", "NAME", "\x00\r\n").Int())
	assert.Equal(t, int64(1), c.Do("DELJOB", "NAME", plain, "NAME", "unknown").Int())
	assert.Equal(t, int64(2), c.Do("ACKJOB", "NAME", strings.Repeat("x", 255), "NAME", "REASON").Int())
	v = c.Do("WAITJOB", "NAME", "REASON", plain, 100)
	assert.Equal(t, []string{"done", "waiting"}, []string{v.Elems[0].Elems[1].Str, v.Elems[1].Elems[1].Str})
	assert.True(t, c.Do("SHOW", "NAME", "unknown").NullString())
	assert.True(t, c.Do("WORKING", "NAME", "unknown").Err("NOJOB"))

	before := c.Do("DEBUG", "DIGEST").Str
	for _, wrong := range []struct {
		args []any
		want string
	}{
		{[]any{"ACKJOB", "NAME"}, "ERR syntax error"}, {[]any{"ACKJOB", plain, "NAME"}, "ERR syntax error"}, {[]any{"SHOW", "NAME"}, "ERR syntax error"},
		{[]any{"SHOW", plain, plain}, "ERR syntax error"}, {[]any{"SHOW", "NAME", "x", "y"}, "ERR syntax error"}, {[]any{"WAITJOB", "NAME", "x"}, "ERR syntax error"},
		{[]any{"DELJOB", plain, "NAME", ""}, "ERR NAME must have 1 to 255 bytes"}, {[]any{"NACK", "NAME", strings.Repeat("x", 256), "DEAD"}, "ERR NAME must have 1 to 255 bytes"},
		{[]any{"WORKING", "NAME", ""}, "ERR NAME must have 1 to 255 bytes"}, {[]any{"WAITCOPIES", "NAME", "", 0}, "ERR NAME must have 1 to 255 bytes"},
		{[]any{"CANCELJOB", plain, "bogus", "x"}, "BADID"}, {[]any{"CANCELJOB", "NAME", "x", "bogus"}, "BADID"}, {[]any{"NACK", "NAME", "a", "NAME", "b", "BODY", "x"}, "ERR BODY goes with one ID"},
	} {
		assert.True(t, c.Do(wrong.args...).Err(wrong.want), "%v: %v", wrong.args, c.Do(wrong.args...))
	}
	assert.Equal(t, before, c.Do("DEBUG", "DIGEST").Str, "a refused command changes nothing")
}

// Options that don't go with NAME are refused, and nothing is added.
func TestNamesRefused(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	other := add(t, c, "other", "b", 0)
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "u", "UNIQUE", "until-processed").Str)
	before := c.Do("DEBUG", "DIGEST").Str
	for _, wrong := range []struct {
		args []any
		want string
	}{
		{[]any{"ADDJOB", "q", "b", 0, "NAME"}, "ERR syntax error"}, {[]any{"ADDJOB", "q", "b", 0, "NAME", ""}, "ERR NAME must have"},
		{[]any{"ADDJOB", "q", "b", 0, "NAME", strings.Repeat("x", 256)}, "ERR NAME must have"},
		{[]any{"ADDJOB", "q", "b", 0, "NAME", "x", "RETRY", 0}, "ERR NAME needs a RETRY time"},
		{[]any{"ADDJOB", "q", "b", 0, "NAME", "x", "UNIQUE", "during-processing"}, "ERR NAME and UNIQUE exclude"},
		{[]any{"ADDJOB", "u", "b", 0, "NAME", "x"}, "ERR NAME and UNIQUE exclude"},
		{[]any{"ADDJOB", "q", "b", 0, "NAME", "x", "DEFERRED"}, "ERR a job with NAME can't have"},
		{[]any{"ADDJOB", "q", "b", 0, "NAME", "x", "AFTER", other}, "ERR a job with NAME can't have"},
		{[]any{"ADDJOB", "q", "b", 0, "NAME", "x", "REPLICATE", 2}, "NOREPL"},
		{[]any{"ADDJOBS", "q", 0, "NAME", "x", "BODIES", "b"}, "ERR ADDJOBS takes no NAME"},
		{[]any{"CRON", "SET", "c", "EVERY", 60, "JOB", "q", "b", "NAME", "x"}, "ERR a recurring job can't have NAME"},
		{[]any{"QCONFIG", "SET", "q", "NAME", "x"}, "ERR"},
	} {
		assert.True(t, c.Do(wrong.args...).Err(wrong.want), "%v: %v", wrong.args, c.Do(wrong.args...))
	}
	assert.Equal(t, before, c.Do("DEBUG", "DIGEST").Str)
	assert.True(t, c.Do("SHOW", "NAME", "x").NullString())
	add(t, c, "u", "b", 0, "NAME", "x", "UNIQUE", "none")

	// Options that go with it.
	id := add(t, c, "q", "b", 0, "NAME", "y", "AT", time.Now().Unix()+60, "PRIORITY", 5, "BACKOFF", 1, 10, "KEEP", 60, "TTL", 600, "MAXLEN", 10, "ASYNC")
	assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_jobs_delayed"))
	after := add(t, c, "q", "b", 0, "AFTER", id)
	assert.Equal(t, "blocked", state(c, after))
	require.Equal(t, int64(1), c.Do("ACKJOB", "NAME", "y").Int())
	assert.Equal(t, "queued", state(c, after))
}

// Names survive restarts, and work in MULTI, in scripts, and at a replica.
func TestNamesAreKept(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	c := s.Dial()
	ids := []string{add(t, c, "q", "b", 0, "NAME", "a"), add(t, c, "q", "b", 0, "NAME", "b", "DELAY", 600)}
	require.Equal(t, "OK", c.Do("MULTI").Str)
	c.Do("ADDJOB", "q", "b", 0, "NAME", "m")
	c.Do("ADDJOB", "q", "b", 0, "NAME", "m")
	v := c.Do("EXEC")
	require.Equal(t, v.Elems[0].Str, v.Elems[1].Str)
	v = c.Do("EVAL", "return {redis.call('ADDJOB', KEYS[1], 'b', 0, 'NAME', 'l'), redis.call('SHOW', 'NAME', 'l')[2]}", 1, "q")
	require.Equal(t, v.Elems[0].Str, v.Elems[1].Str)
	r := harness.Start(t, harness.WithReplicaOf(s))
	check := func(s *harness.Server) {
		t.Helper()
		c := s.Dial()
		for i, name := range []string{"a", "b"} {
			assert.Equal(t, ids[i], c.Do("SHOW", "NAME", name).Field("id").Str)
			assert.Equal(t, name, c.Do("SHOW", ids[i]).Field("name").Str)
		}
	}
	harness.Await(t, 20*time.Second, "the replica to have them", func() bool { return r.Do("SHOW", "NAME", "l").Field("name").Str == "l" })
	check(r)
	require.True(t, r.Do("ADDJOB", "q", "b", 0, "NAME", "a").Kind == '-')
	require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
	check(s)
	s.Kill()
	s.Restart()
	check(s)
	c = s.Dial()
	assert.Equal(t, ids[0], add(t, c, "q", "b", 0, "NAME", "a"))
	assert.Equal(t, int64(3), c.Do("QLEN", "q").Int())
}

// A user who may not use the queue of a name's job learns nothing by it, and isn't told that the job is added.
func TestNamesAndACL(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c, u := s.Dial(), limitedUser(t, s)
	add(t, c, "secret", "b", 0, "NAME", "x")
	for _, command := range [][]any{
		{"ADDJOB", "a", "b", 0, "NAME", "x"}, {"SHOW", "NAME", "x"}, {"ACKJOB", "NAME", "x"}, {"CANCELJOB", "NAME", "x"}, {"WAITJOB", "NAME", "x", 10}, {"MOVEJOB", "NAME", "x", "TO", "a"},
	} {
		assert.True(t, u.Do(command...).Err("NOPERM"), "%v", command)
	}
	assert.Equal(t, byte('+'), u.Do("ADDJOB", "a", "b", 0, "NAME", "y").Kind)
	assert.Equal(t, byte('+'), u.Do("ADDJOB", "a", "b", 0, "NAME", "y").Kind)
}
