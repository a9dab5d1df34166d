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

// progressOf is how far a job is, as SHOW has it; "none" if nobody has said so.
func progressOf(c *harness.Conn, id string) string {
	v := c.Do("SHOW", id)
	if f := v.Field("progress"); f.Kind != 0 && v.Field("progress-at").Int() > 0 {
		return f.Str
	}
	return "none"
}

// WORKING keeps how far a job is, and when that was said. A text is the one argument behind PROGRESS, whatever it looks like.
func TestProgress(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 300)
	get(t, c, "q")
	require.Equal(t, "none", progressOf(c, id))
	require.NotContains(t, fields(c.Do("SHOW", id)), "progress")
	require.Equal(t, ":300", c.Do("WORKING", id).String())
	require.NotContains(t, fields(c.Do("SHOW", id)), "progress", "a WORKING without a text")
	for _, text := range []string{"half", "", "PROGRESS", id, "\x00\xff\r\n", strings.Repeat("x", 1024), "50 %"} {
		require.Equal(t, ":300", c.Do("WORKING", id, "progress", text).String())
		assert.Equal(t, text, progressOf(c, id))
		assert.InDelta(t, time.Now().UnixMilli(), c.Do("SHOW", id).Field("progress-at").Int(), 5000)
	}
	require.Equal(t, ":300", c.Do("WORKING", id).String())
	assert.Equal(t, "50 %", progressOf(c, id), "a WORKING without a text leaves it")

	before := c.Do("DEBUG", "DIGEST").Str
	for _, wrong := range []struct {
		args []any
		want string
	}{
		{[]any{id, "PROGRESS", strings.Repeat("x", 1025)}, "ERR PROGRESS must have 1024 bytes at most"},
		{[]any{id, "PROGRESS"}, "ERR syntax error"}, {[]any{id, "PROGRESS", "a", "b"}, "ERR syntax error"},
		{[]any{id, "PROGRESS", "a", "PROGRESS", "b"}, "ERR syntax error"}, {[]any{id, "PROGRESS", "a", id}, "ERR syntax error"},
		{[]any{"PROGRESS", "a"}, "ERR syntax error"}, {[]any{"PROGRESS"}, "ERR syntax error"},
		{[]any{id, "bogus"}, "BADID Invalid Job ID format."}, {[]any{id, "bogus", "PROGRESS", "a"}, "BADID Invalid Job ID format."},
		{[]any{unknown, "PROGRESS", "a"}, "NOJOB Job not known in the context of this node."},
	} {
		assert.True(t, c.Do(append([]any{"WORKING"}, wrong.args...)...).Err(wrong.want), "%v", wrong.args)
	}
	assert.Equal(t, before, c.Do("DEBUG", "DIGEST").Str, "a refused WORKING changes nothing")

	v := c.Do("JSCAN", "QUEUE", "q", "BUSYLOOP", "REPLY", "all").Elems[1].Elems
	require.Len(t, v, 1)
	assert.Equal(t, "50 %", v[0].Field("progress").Str)
}

// A WORKING that is refused keeps no text.
func TestRefusedProgress(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	deferred := add(t, c, "q", "deferred", 0, "DEFERRED")
	require.True(t, c.Do("WORKING", deferred, "PROGRESS", "x").Err("HELDBACK"))
	assert.Equal(t, "none", progressOf(c, deferred))

	lost := add(t, c, "u", "b", 0, "RETRY", 1, "UNIQUE", "during-processing", "KEY", "k")
	other := add(t, c, "u", "b", 0, "RETRY", 300, "UNIQUE", "during-processing", "KEY", "k")
	require.Equal(t, lost, get(t, c, "u"))
	require.Equal(t, "out", c.Do("PAUSE", "u", "out").Str)
	harness.Await(t, 10*time.Second, "it lapses", func() bool { return state(c, lost) == "queued" })
	require.Equal(t, int64(1), c.Do("DEQUEUE", lost).Int())
	require.Equal(t, "none", c.Do("PAUSE", "u", "none").Str)
	require.Equal(t, other, c.Do("GETJOB", "TIMEOUT", 5000, "FROM", "u").Elems[0].Elems[1].Str)
	require.True(t, c.Do("WORKING", lost, "PROGRESS", "x").Err("LOCKLOST"))
	assert.Equal(t, "none", progressOf(c, lost))

	require.Equal(t, "OK", c.Do("CONFIG", "SET", "jobmesh.disque-compat", "yes").Str)
	short := add(t, c, "s", "b", 0, "TTL", 4)
	harness.Await(t, 4*time.Second, "half of the TTL", func() bool { return c.Do("WORKING", short, "PROGRESS", "late").Err("TOOLATE") })
}

// The text stays over a redelivery, NACK, a move, the job's death and revival, and ends with the job.
func TestProgressGoesWithTheJob(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 1)
	get(t, c, "q")
	require.Equal(t, ":1", c.Do("WORKING", id, "PROGRESS", "half").String())
	at := c.Do("SHOW", id).Field("progress-at").Int()
	stays := func(when string) {
		t.Helper()
		assert.Equal(t, "half", progressOf(c, id), when)
		assert.Equal(t, at, c.Do("SHOW", id).Field("progress-at").Int(), when)
	}
	harness.Await(t, 10*time.Second, "the job comes back", func() bool { return state(c, id) == "queued" })
	stays("after a lapse")
	require.Equal(t, id, get(t, c, "q"))
	stays("at the second delivery")
	require.Equal(t, int64(1), c.Do("NACK", id, "DELAY", 1000, "REASON", "why").Int())
	stays("after NACK")
	require.Equal(t, ":1", c.Do("WORKING", id).String())
	require.Equal(t, int64(1), c.Do("MOVEJOB", id, "TO", "p").Int())
	stays("in another queue")
	require.Equal(t, int64(1), c.Do("ENQUEUE", id).Int())
	require.Equal(t, id, get(t, c, "p"))
	require.Equal(t, int64(1), c.Do("NACK", id, "DEAD").Int())
	stays("when it is dead")
	require.Equal(t, int64(1), c.Do("MOVEJOB", id).Int())
	stays("when it lives again")
	require.Equal(t, id, get(t, c, "p"))
	require.Equal(t, ":1", c.Do("WORKING", id, "PROGRESS", "more").String())
	assert.Equal(t, "more", progressOf(c, id))
	require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
	assert.True(t, c.Do("SHOW", id).Null)
	assert.True(t, c.Do("WORKING", id, "PROGRESS", "x").Err("NOJOB"))
}

// The text of a job that nobody has is kept, and of one with RETRY 0: the answer is the same as without.
func TestProgressOfOtherJobs(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		texts := map[string]string{}
		says := func(id, want string) {
			t.Helper()
			texts[id] = fmt.Sprint("text ", len(texts))
			require.Equal(t, want, c.Do("WORKING", id, "PROGRESS", "before").String())
			require.Equal(t, want, c.Do("WORKING", id, "PROGRESS", texts[id]).String())
		}
		once := add(t, c, "once", "b", 0, "RETRY", 0)
		says(once, ":0")
		require.Equal(t, once, get(t, c, "once"))
		says(once, ":0")
		running := add(t, c, "once", "b", 0, "RETRY", 0, "UNIQUE", "during-processing", "KEY", "k")
		require.Equal(t, running, get(t, c, "once"))
		says(running, ":0")
		in := add(t, c, "q", "b", 0, "RETRY", 300)
		get(t, c, "q")
		says(in, ":300")
		unique := add(t, c, "u", "b", 0, "RETRY", 300, "UNIQUE", "until-processed", "LOCKTTL", 300)
		get(t, c, "u")
		says(unique, ":300")
		says(add(t, c, "q", "b", 0, "RETRY", 300, "DELAY", 1000), ":300")
		put := add(t, c, "f", "b", 0, "RETRY", 300)
		get(t, c, "f")
		require.Equal(t, int64(1), c.Do("NACK", put, "DELAY", 1000).Int())
		says(put, ":300")
		says(add(t, c, "w", "b", 0, "RETRY", 300), ":300")

		comeBack(t, s, mode)
		c = s.Dial()
		for id, text := range texts {
			assert.Equal(t, text, progressOf(c, id))
		}
		c.Do("MULTI")
		c.Do("WORKING", in, "PROGRESS", "multi")
		assert.Equal(t, int64(300), c.Do("EXEC").Elems[0].Int())
		assert.Equal(t, "multi", progressOf(c, in))
		assert.Equal(t, int64(300), c.Do("EVAL", "return redis.call('WORKING', ARGV[1], 'PROGRESS', 'script')", 0, in).Int())
		assert.Equal(t, "script", progressOf(c, in))
	}, "aof", "rdb", "reload", "aof-kill", "aof-rewritten", "aof-without-preamble")
}

// A Redis replica, and a value that DUMP gives, have the text.
func TestProgressIsReplicated(t *testing.T) {
	t.Parallel()
	master := harness.Start(t)
	replica := harness.Start(t, harness.WithReplicaOf(master))
	replica.AwaitSync()
	c, r := master.Dial(), replica.Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 300)
	get(t, c, "q")
	require.Equal(t, ":300", c.Do("WORKING", id, "PROGRESS", "half").String())
	harness.Await(t, 10*time.Second, "the replica has it", func() bool { return progressOf(r, id) == "half" })
	assert.True(t, r.Do("WORKING", id, "PROGRESS", "x").Err(""), "a replica takes none")
	dump := c.Do("DUMP", "q").Str
	require.Equal(t, int64(1), c.Do("DEL", "q").Int())
	require.Equal(t, "OK", c.Do("RESTORE", "q", 0, dump).Str)
	assert.Equal(t, "half", progressOf(c, id))
}

// A job without a text pays nothing.
func TestNoProgressCostsNothing(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 300)
	get(t, c, "q")
	usage := func() int64 { return c.Do("MEMORY", "USAGE", "q", "SAMPLES", 0).Int() }
	require.Equal(t, ":300", c.Do("WORKING", id).String()) // the first one may change what the job's record notes of the delivery
	before := usage()
	require.Equal(t, ":300", c.Do("WORKING", id).String())
	assert.Equal(t, before, usage())
	require.Equal(t, ":300", c.Do("WORKING", id, "PROGRESS", "half").String())
	assert.LessOrEqual(t, usage()-before, int64(3+8+4+40), "the extra, and where a job's extras begin")
}

// WORKING of several jobs answers for each in its order. Errors are texts.
func TestWorkingOnSeveral(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	a, b := add(t, c, "q", "a", 0, "RETRY", 300), add(t, c, "q", "b", 0, "RETRY", 60)
	once := add(t, c, "q", "c", 0, "RETRY", 0)
	deferred := add(t, c, "q", "d", 0, "DEFERRED")
	require.Len(t, c.Do("GETJOB", "COUNT", 3, "FROM", "q").Elems, 3)
	noJob := "-NOJOB Job not known in the context of this node."
	all := []any{"WORKING", a, unknown, b, once, deferred, a}
	check := func(v harness.Value) {
		t.Helper()
		require.Len(t, v.Elems, 6)
		assert.Equal(t, []string{":300", ":60", ":0", ":300"}, []string{v.Elems[0].String(), v.Elems[2].String(), v.Elems[3].String(), v.Elems[5].String()})
		assert.Equal(t, byte('$'), v.Elems[1].Kind)
		assert.Equal(t, noJob, v.Elems[1].Str)
		assert.Equal(t, byte('$'), v.Elems[4].Kind)
		assert.Equal(t, "-HELDBACK The job is deferred or blocked: nobody can be working on it", v.Elems[4].Str)
	}
	check(c.Do(all...))
	require.Equal(t, []string{"none", "none"}, []string{progressOf(c, a), progressOf(c, b)})
	check(c.Do(append(all, "progress", "one text")...))
	assert.Equal(t, []string{"one text", "one text", "one text", "none"}, []string{progressOf(c, a), progressOf(c, b), progressOf(c, once), progressOf(c, deferred)})

	d := s.Dial()
	d.Do("HELLO", 3)
	check(d.Do(all...))
	c.Do("MULTI")
	c.Do(all...)
	check(c.Do("EXEC").Elems[0])
	check(c.Do(append([]any{"EVAL", "return redis.call('WORKING', unpack(ARGV))", 0}, all[1:]...)...))

	before := c.Do("DEBUG", "DIGEST").Str
	assert.True(t, c.Do("WORKING", a, "nope", b).Err("BADID Invalid Job ID format."))
	many := []any{"WORKING"}
	for range 1000 {
		many = append(many, a)
	}
	assert.True(t, c.Do(append(many, a)...).Err("ERR at most 1000 IDs at once"))
	assert.Equal(t, before, c.Do("DEBUG", "DIGEST").Str, "nothing was done to any job")
	assert.Len(t, c.Do(many...).Elems, 1000)
}
