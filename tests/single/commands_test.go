package single

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

const (
	syntax  = "ERR syntax error"
	integer = "ERR value is not an integer or out of range"
	badID   = "BADID Invalid Job ID format."
	unknown = "D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"
)

func add(t *testing.T, c *harness.Conn, args ...any) string {
	t.Helper()
	v := c.Do(append([]any{"ADDJOB"}, args...)...)
	require.Equal(t, byte('+'), v.Kind, "%v: %v", args, v)
	return v.Str
}

// get fetches one job and returns its ID.
func get(t *testing.T, c *harness.Conn, queue string) string {
	t.Helper()
	v := c.Do("GETJOB", "NOHANG", "FROM", queue)
	require.Len(t, v.Elems, 1, "%v", v)
	return v.Elems[0].Elems[1].Str
}

func state(c *harness.Conn, id string) string { return c.Do("SHOW", id).Field("state").Str }

func TestIDs(t *testing.T) {
	c := harness.Start(t).Dial()
	node := c.Do("JOBMESH", "CLUSTER", "MYID").Str
	for _, tc := range []struct {
		args []any
		ttl  string
	}{
		{[]any{}, "05a1"}, {[]any{"RETRY", 0}, "05a0"}, {[]any{"TTL", 59}, "0001"},
		{[]any{"TTL", 120, "RETRY", 0}, "0002"}, {[]any{"TTL", 59, "RETRY", 0}, "0000"}, {[]any{"TTL", 99999999}, "ffff"},
	} {
		id := add(t, c, append([]any{"q", "b", 0}, tc.args...)...)
		assert.Regexp(t, `^D-`+node[:8]+`-[A-Za-z0-9+/]{24}-`+tc.ttl+`$`, id)
	}
}

// Errors of every command, each of which must change nothing.
func TestErrors(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "full", "b", 0)
	require.Equal(t, "OK", c.Do("SET", "text", "x").Str)
	before := c.Do("DEBUG", "DIGEST").Str
	arity := func(cmd string) string {
		return "ERR wrong number of arguments for '" + strings.ToLower(cmd) + "' command"
	}
	for _, tc := range []struct{ cmd, err string }{
		{"ADDJOB", arity("addjob")}, {"ADDJOB q b", arity("addjob")},
		{"ADDJOB q b x", "ERR timeout is not an integer or out of range"},
		{"ADDJOB q b -1", "ERR timeout is negative"},
		{"ADDJOB q b 99999999999999999999", "ERR timeout is not an integer or out of range"},
		{"ADDJOB q b 0 REPLICATE 0", "ERR REPLICATE must be between 1 and 65535"},
		{"ADDJOB q b 0 REPLICATE 65536", "ERR REPLICATE must be between 1 and 65535"},
		{"ADDJOB q b x TTL 0", "ERR TTL must be a number > 0"},
		{"ADDJOB q b 0 TTL x", "ERR TTL must be a number > 0"},
		{"ADDJOB q b 0 TTL 2147483648", "ERR TTL must be a number > 0, and at most 2147483647 (seconds)"},
		{"ADDJOB q b 0 RETRY -1", "ERR RETRY time must be a non negative number"},
		{"ADDJOB q b 0 RETRY 5000000000", "ERR RETRY time must be a non negative number, at most 2147483647 (seconds)"},
		{"ADDJOB q b 0 DELAY 99999999999", "ERR DELAY time must be a non negative number, at most 2147483647 (seconds)"},
		{"QCONFIG SET q DELAY 100 TTL 50", "ERR DELAY must be less than TTL, or no job"},
		{"ADDJOB q b 0 DELAY -1", "ERR DELAY time must be a non negative number"},
		{"ADDJOB q b 0 MAXLEN 0", "ERR MAXLEN must be a positive number"},
		{"ADDJOB q b 0 ttl", syntax}, {"ADDJOB q b 0 foo", syntax}, {"ADDJOB q b 0 foo 1", syntax},
		{"ADDJOB q b 0 REPLICATE 2 RETRY 0", "ERR With RETRY set to 0 please explicitly set  REPLICATE to 1 (at-most-once delivery)"},
		{"ADDJOB q b 0 DELAY 10 TTL 10", "ERR The specified DELAY is greater than TTL. Job refused since would never be delivered"},
		{"ADDJOB q b 0 REPLICATE 2", "NOREPL Not enough reachable nodes for the requested replication level"},
		{"ADDJOB q b 0 REPLICATE 2 ASYNC", "NOREPL Not enough reachable nodes for the requested replication level"},
		{"ADDJOB full b 0 MAXLEN 1", "MAXLEN Queue is already longer than the specified MAXLEN count"},
		{"ADDJOB text b 0", "WRONGTYPE"}, {"GETJOB NOHANG FROM text", "WRONGTYPE"}, {"QLEN text", "WRONGTYPE"},
		{"QPEEK text 1", "WRONGTYPE"}, {"QSTAT text", "WRONGTYPE"}, {"PAUSE text in", "WRONGTYPE"},
		{"GETJOB", arity("getjob")}, {"GETJOB FROM", syntax}, {"GETJOB x", syntax}, {"GETJOB TIMEOUT", syntax}, {"GETJOB NOHANG", syntax},
		{"GETJOB COUNT 0 FROM q", "ERR COUNT must be a number greater than zero"},
		{"GETJOB COUNT x FROM q", "ERR COUNT must be a number greater than zero"},
		{"GETJOB COUNT FROM q", "ERR COUNT must be a number greater than zero"},
		{"GETJOB TIMEOUT x FROM q", "ERR timeout is not an integer or out of range"},
		{"GETJOB TIMEOUT -1 FROM q", "ERR timeout is negative"},
		{"WORKING", arity("working")}, {"WORKING a b", badID}, {"WORKING nope", badID},
		{"WORKING " + unknown, "NOJOB Job not known in the context of this node."},
		{"SHOW", arity("show")}, {"SHOW x", badID}, {"SHOW " + strings.ToLower(unknown), badID},
		{"QPEEK full x", integer}, {"QPEEK full", arity("qpeek")}, {"QLEN", arity("qlen")}, {"QSTAT", arity("qstat")},
		{"QSCAN foo", "ERR invalid cursor or option name"}, {"QSCAN COUNT", "ERR invalid cursor or option name"},
		{"QSCAN -1", "ERR invalid cursor or option name"}, {"QSCAN 0 0", syntax}, {"QSCAN COUNT x", integer}, {"QSCAN MINLEN x", integer},
		{"QSCAN 18446744073709551616", "ERR invalid cursor or option name"},
		{"JSCAN STATE foo", "ERR Invalid job state name"}, {"JSCAN REPLY x", "ERR Invalid REPLY type, try ID or ALL"},
		{"JSCAN foo", "ERR invalid cursor or option name"}, {"JSCAN 0 0", syntax},
		{"PAUSE q", arity("pause")}, {"PAUSE full in bogus", syntax},
		{"LOADJOB blob", "ERR LOADJOB is a special command only processed from AOF"},
		{"SETJOB blob", "ERR SETJOB is a special command only processed from AOF"},
		{"MAKEQUEUE q", "ERR MAKEQUEUE is a special command only processed from AOF"},
		{"DELQUEUE q", "ERR DELQUEUE is a special command only processed from AOF"},
		{"JOBMESH FINAL", "ERR FINAL is a special command only processed from AOF"},
		{"JOBMESH CLUSTER NOPE", "ERR Wrong CLUSTER subcommand or number of arguments"},
		{"JOBMESH CLUSTER FORGET x", "ERR Invalid node identifier"},
		{"JOBMESH CLUSTER FORGET " + strings.Repeat("a", 40), "ERR Unknown node " + strings.Repeat("a", 40)},
		{"JOBMESH CLUSTER LEAVING maybe", "ERR Wrong argument for CLUSTER LEAVING. Use 'yes' or 'no'"},
		{"JOBMESH CLUSTER RESET SOMEHOW", syntax},
		{"JOBMESH INFO a b", syntax},
	} {
		args := []any{}
		for _, w := range strings.Fields(tc.cmd) {
			args = append(args, w)
		}
		v := c.Do(args...)
		assert.True(t, v.Err(tc.err), "%s: %v, want %s", tc.cmd, v, tc.err)
	}
	for _, cmd := range []string{"ACKJOB", "FASTACK", "DELJOB", "ENQUEUE", "NACK", "DEQUEUE"} {
		assert.True(t, c.Do(cmd, id, "nope").Err(badID), cmd)
		assert.Equal(t, int64(0), c.Do(cmd).Int(), cmd)
		assert.Equal(t, int64(0), c.Do(cmd, unknown).Int(), cmd)
	}
	for _, blank := range []string{" 5", "5 ", "", "5\x00"} {
		assert.True(t, c.Do("ADDJOB", "q", "b", blank).Err("ERR timeout is not an integer"), "%q", blank)
	}
	assert.Equal(t, before, c.Do("DEBUG", "DIGEST").Str, "a refused command has changed something")
	assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_registered_jobs"))
	c.Do("SELECT", 1)
	for _, cmd := range []string{"ADDJOB q b 0", "GETJOB NOHANG FROM q", "ACKJOB " + id, "SHOW " + id, "QLEN q", "JSCAN", "PAUSE q in"} {
		args := []any{}
		for _, w := range strings.Fields(cmd) {
			args = append(args, w)
		}
		assert.True(t, c.Do(args...).Err("WRONGDB"), cmd)
	}
}

func TestLenientNumbers(t *testing.T) {
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", "+0", "RETRY", "007", "TTL", "+100")
	assert.Equal(t, int64(7), c.Do("SHOW", id).Field("retry").Int())
	add(t, c, "q", "b", "-0", "retry", 5, "Retry", 6)
}

func TestDefaultRetry(t *testing.T) {
	c := harness.Start(t).Dial()
	for ttl, retry := range map[int]int64{59: 5, 5: 1, 86400: 300} {
		assert.Equal(t, retry, c.Do("SHOW", add(t, c, "q", "b", 0, "TTL", ttl)).Field("retry").Int())
	}
}

func TestAnyBytes(t *testing.T) {
	c := harness.Start(t).Dial()
	for _, queue := range []string{"", "a\x00b\r\n", strings.Repeat("q", 64<<10)} {
		for _, body := range []string{"", "x\x00\r\ny", strings.Repeat("b", 3<<20)} {
			id := add(t, c, queue, body, 0)
			v := c.Do("GETJOB", "NOHANG", "FROM", queue)
			require.Len(t, v.Elems, 1)
			assert.Equal(t, []string{queue, id, body}, v.Elems[0].Strings())
			assert.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
		}
	}
}

// The protocol's own limit is 512 MiB. A body of that size goes in and out again. A body of one
// byte more is refused before it is sent, and changes nothing.
func TestLongBiggestBody(t *testing.T) {
	const limit = 512 << 20
	s := harness.Start(t)
	c := s.Dial()
	body := strings.Repeat("0123456789abcdef", limit/16)
	id := add(t, c, "q", body, 0)
	v := c.Do("GETJOB", "NOHANG", "FROM", "q")
	require.Len(t, v.Elems, 1)
	assert.Equal(t, id, v.Elems[0].Elems[1].Str)
	assert.True(t, body == v.Elems[0].Elems[2].Str, "the body has changed")
	assert.Equal(t, int64(1), c.Do("ACKJOB", id).Int())

	raw, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	defer raw.Close()
	_, err = fmt.Fprintf(raw, "*4\r\n$6\r\nADDJOB\r\n$1\r\nq\r\n$%d\r\n", limit+1)
	require.NoError(t, err)
	answer, err := io.ReadAll(raw)
	require.NoError(t, err)
	assert.Equal(t, "-ERR Protocol error: invalid bulk length\r\n", string(answer))
	assert.Equal(t, "0", jobs(s))
}

func TestDelay(t *testing.T) {
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0, "DELAY", 1, "RETRY", 2)
	once := add(t, c, "once", "b", 0, "DELAY", 1, "RETRY", 0)
	early := add(t, c, "early", "b", 0, "DELAY", 100, "RETRY", 0)
	assert.Equal(t, "active", state(c, id))
	assert.Equal(t, int64(0), c.Do("QLEN", "q").Int())
	assert.Equal(t, int64(1), c.Do("QSTAT", "q").Field("delayed").Int())
	assert.Equal(t, int64(1), c.Do("ENQUEUE", early).Int())
	assert.Equal(t, early, get(t, c, "early"))
	harness.Await(t, 3*time.Second, "the delayed jobs", func() bool { return state(c, id) == "queued" && state(c, once) == "queued" })
	assert.Equal(t, int64(0), c.Do("SHOW", id).Field("additional-deliveries").Int())
	assert.Equal(t, once, get(t, c, "once"))
	assert.Equal(t, int64(0), c.Do("ENQUEUE", once).Int())
}

func TestGetOrder(t *testing.T) {
	c := harness.Start(t).Dial()
	for i := range 3 {
		add(t, c, "a", fmt.Sprint("a", i), 0)
		add(t, c, "b", fmt.Sprint("b", i), 0)
	}
	v := c.Do("GETJOB", "COUNT", 4, "FROM", "a", "b")
	var bodies []string
	for _, e := range v.Elems {
		bodies = append(bodies, e.Elems[2].Str)
	}
	assert.Equal(t, []string{"a0", "b0", "a1", "b1"}, bodies)
	for i := range 100 {
		add(t, c, "f", i, 0)
	}
	v = c.Do("GETJOB", "COUNT", 1000, "WITHCOUNTERS", "FROM", "f")
	require.Len(t, v.Elems, 100)
	for i, e := range v.Elems {
		require.Len(t, e.Elems, 7)
		assert.Equal(t, fmt.Sprint(i), e.Elems[2].Str)
		assert.Equal(t, []string{"nacks", "additional-deliveries"}, []string{e.Elems[3].Str, e.Elems[5].Str})
		assert.Equal(t, byte(':'), e.Elems[4].Kind)
	}
}

func TestEmpty(t *testing.T) {
	c := harness.Start(t).Dial()
	assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
	start := time.Now()
	assert.True(t, c.Do("GETJOB", "TIMEOUT", 200, "FROM", "q").NullArray())
	assert.GreaterOrEqual(t, time.Since(start), 200*time.Millisecond)
	assert.Equal(t, int64(0), c.Do("EXISTS", "q").Int())
	assert.Empty(t, c.Do("QSCAN", "BUSYLOOP").Elems[1].Elems)
}

func TestAcks(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	for _, cmd := range []string{"ACKJOB", "FASTACK", "DELJOB"} {
		id := add(t, c, "q", "b", 0)
		other := add(t, c, "q", "b", 0)
		get(t, c, "q")
		assert.Equal(t, int64(2), c.Do(cmd, id, id, other).Int(), cmd)
		assert.True(t, c.Do("SHOW", id).NullString())
		assert.Equal(t, int64(0), c.Do(cmd, id).Int())
	}
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_registered_jobs"))
	assert.Equal(t, int64(0), c.Do("QLEN", "q").Int())
}

func TestRetry(t *testing.T) {
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "old", 0, "RETRY", 1)
	get(t, c, "q")
	start := time.Now()
	young := add(t, c, "q", "young", 0)
	harness.Await(t, 3*time.Second, "the retry", func() bool { return state(c, id) == "queued" })
	harness.Took(t, start, time.Second)
	assert.Equal(t, int64(1), c.Do("SHOW", id).Field("additional-deliveries").Int())
	assert.Equal(t, id, get(t, c, "q"), "the older job comes first")
	assert.Equal(t, int64(1), c.Do("NACK", id, id).Int())
	assert.Equal(t, int64(1), c.Do("SHOW", id).Field("nacks").Int())
	assert.Equal(t, int64(1), c.Do("DEQUEUE", young).Int())
	assert.Equal(t, int64(0), c.Do("DEQUEUE", young).Int())
	assert.Equal(t, int64(1), c.Do("ENQUEUE", young).Int())
	assert.Equal(t, int64(1), c.Do("SHOW", young).Field("additional-deliveries").Int())
	once := add(t, c, "once", "b", 0, "RETRY", 0)
	get(t, c, "once")
	assert.Equal(t, int64(0), c.Do("ENQUEUE", once).Int())
	assert.Equal(t, int64(0), c.Do("NACK", once).Int())
	v := c.Do("WORKING", once)
	assert.Equal(t, "0", strings.TrimPrefix(v.String(), ":"))
}

// An at-most-once job that is dequeued, and was never delivered, can be queued again. In Disque it can't.
func TestUndeliveredAtMostOnce(t *testing.T) {
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 0)
	assert.Equal(t, int64(1), c.Do("DEQUEUE", id).Int())
	assert.Equal(t, int64(1), c.Do("ENQUEUE", id).Int())
	assert.Equal(t, ":0", c.Do("WORKING", id).String())
	assert.Equal(t, id, get(t, c, "q"))
}

func TestWorking(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0, "RETRY", 1)
	get(t, c, "q")
	harness.During(2500*time.Millisecond, func() {
		require.Equal(t, ":1", c.Do("WORKING", id).String())
		require.Equal(t, "active", state(c, id))
	})
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "jobmesh.disque-compat", "yes").Str)
	short := add(t, c, "s", "b", 0, "TTL", 4)
	harness.Await(t, 4*time.Second, "half of the TTL", func() bool {
		return c.Do("WORKING", short).Err("TOOLATE Half of job TTL already elapsed, you are no longer allowed to postpone the next delivery.")
	})
}

// A job outlives its time to live while a client works on it: the client says WORKING, or its first
// retry time isn't over. The job's lock lasts as long. When the client says WORKING no more, the job
// comes once again.
func TestWorkingBeyondTheTimeToLive(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	opt := []any{"TTL", 2, "RETRY", 1, "UNIQUE", "during-processing", "KEY", "k"}
	id := add(t, c, append([]any{"q", "b", 0}, opt...)...)
	require.Equal(t, id, get(t, c, "q"))
	add(t, c, "q", "b", 0, "UNIQUE", "during-processing", "KEY", "k")
	harness.During(4*time.Second, func() {
		require.Equal(t, ":1", c.Do("WORKING", id).String())
		none(t, c, "q")
	})
	s.Kill()
	s.Restart()
	c = s.Dial()
	require.Equal(t, ":1", c.Do("WORKING", id).String(), "a restart keeps it")
	harness.Await(t, 5*time.Second, "it to come again", func() bool { return state(c, id) == "queued" })
	require.Equal(t, id, get(t, c, "q"))
	require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())

	late := add(t, c, "late", "b", 0, "TTL", 1, "RETRY", 3)
	require.Equal(t, late, get(t, c, "late"))
	began := time.Now()
	harness.Await(t, 10*time.Second, "its end", func() bool { return c.Do("SHOW", late).Null })
	harness.Took(t, began, 3*time.Second)
}

// No client works on a delayed job. So WORKING leaves its delay, and the start of its lease, as they are.
func TestWorkingOnADelayedJob(t *testing.T) {
	c := harness.Start(t).Dial()
	for _, unique := range [][]any{nil, {"UNIQUE", "until-processed", "LOCKTTL", 1}} {
		id := add(t, c, append([]any{"q", "b", 0, "DELAY", 600, "RETRY", 1}, unique...)...)
		require.Equal(t, ":1", c.Do("WORKING", id).String())
		assert.Empty(t, wip(t, c, "q"))
		assert.InDelta(t, 600_000, c.Do("SHOW", id).Field("next-requeue-within").Int(), 5000)
		if unique != nil {
			assert.Equal(t, int64(-1), c.Do("LOCK.SHOW", "b", "TYPE", "waiting", "QUEUE", "q").Field("ttl").Int(), "its lease hasn't begun")
		}
	}
}

func TestExpiry(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "q", "b", 0, "TTL", 1)
	held := add(t, c, "h", "b", 0, "TTL", 1)
	get(t, c, "h")
	harness.Await(t, 3*time.Second, "expiry", func() bool { return c.Do("SHOW", id).Null && c.Do("SHOW", held).Null })
	assert.Equal(t, "2", s.Info("jobmesh", "jobmesh_jobs_expired"))
}

func TestPause(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	for _, tc := range [][2]string{{"state", "none"}, {"none", "none"}} {
		assert.Equal(t, "+\""+tc[1]+"\"", c.Do("PAUSE", "new", tc[0]).String())
	}
	assert.Equal(t, int64(0), c.Do("EXISTS", "new").Int())
	for _, tc := range [][2]string{{"in", "in"}, {"out", "out"}, {"in out", "all"}, {"none in", "in"}, {"in none", "none"}, {"ALL BCAST", "all"}, {"state", "all"}} {
		args := []any{"PAUSE", "q"}
		for _, w := range strings.Fields(tc[0]) {
			args = append(args, w)
		}
		assert.Equal(t, tc[1], c.Do(args...).Str)
	}
	c.Do("PAUSE", "q", "none")
	id := add(t, c, "q", "b", 0, "RETRY", 1)
	get(t, c, "q")
	c.Do("PAUSE", "q", "in")
	assert.True(t, c.Do("ADDJOB", "q", "b", 0).Err("PAUSED Queue paused in input, try later"))
	next := func() int64 { return c.Do("SHOW", id).Field("next-requeue-within").Int() }
	low := next()
	harness.Await(t, 4*time.Second, "the retry to be put off", func() bool {
		n := next()
		if n > low {
			return true
		}
		low = n
		return false
	})
	assert.Equal(t, "active", state(c, id))
	assert.Equal(t, int64(1), c.Do("ENQUEUE", id).Int(), "ENQUEUE works on a queue paused in input")
	c.Do("PAUSE", "q", "out")
	assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
	assert.Len(t, c.Do("QPEEK", "q", 1).Elems, 1)
	w := s.Dial()
	w.Send("GETJOB", "FROM", "q")
	harness.Await(t, 2*time.Second, "the client to block", func() bool { return c.Do("QSTAT", "q").Field("blocked").Is(1) })
	c.Do("PAUSE", "q", "none")
	assert.Equal(t, id, w.Receive().Elems[0].Elems[1].Str)
}

func TestIntrospection(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "q", "body", 0, "RETRY", 0)
	v := c.Do("SHOW", id)
	names := []string{"id", "queue", "state", "repl", "ttl", "ctime", "delay", "retry", "nacks", "additional-deliveries", "nodes-delivered", "nodes-confirmed", "next-requeue-within", "next-awake-within", "body"}
	require.Len(t, v.Elems, 30)
	for i, n := range names {
		assert.Equal(t, n, v.Elems[2*i].Str)
	}
	assert.True(t, v.Field("next-requeue-within").NullString())
	assert.Equal(t, int64(86400), v.Field("ttl").Int())
	assert.Equal(t, "body", v.Field("body").Str)
	assert.Len(t, v.Field("nodes-delivered").Elems, 1)
	assert.True(t, c.Do("QSTAT", "none").NullArray())
	v = c.Do("QSTAT", "q")
	require.Len(t, v.Elems, 44)
	for i, n := range []string{"name", "len", "age", "idle", "blocked", "import-from", "import-rate", "jobs-in", "jobs-out", "pause", "in-progress", "overdue", "held-back", "delayed", "deferred", "jobs-blocked", "oldest", "dead", "pause-left", "limited", "kept", "dead-letters"} {
		assert.Equal(t, n, v.Elems[2*i].Str)
	}
	second := add(t, c, "q", "2", 0)
	for count, want := range map[string][]string{"0": nil, "1": {id}, "-1": {second}, "5": {id, second}, "-5": {second, id}, "-9223372036854775808": {second, id}} {
		var ids []string
		for _, e := range c.Do("QPEEK", "q", count).Elems {
			require.Len(t, e.Elems, 3)
			ids = append(ids, e.Elems[1].Str)
		}
		assert.Equal(t, want, ids, count)
	}
	m := s.Dial3()
	assert.Equal(t, byte('%'), m.Do("SHOW", id).Kind)
	assert.Equal(t, byte('%'), m.Do("QSTAT", "q").Kind)
	assert.Equal(t, byte('_'), m.Do("GETJOB", "NOHANG", "FROM", "none").Kind)
	assert.Equal(t, byte('_'), m.Do("SHOW", unknown).Kind)
	assert.Equal(t, byte('+'), m.Do("ADDJOB", "q", "b", 0).Kind)
}

func TestScans(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	want := map[string]bool{}
	queues := map[string]bool{}
	for i := range 512 {
		queue := fmt.Sprint("q", i)
		want[add(t, c, queue, "b", 0)] = true
		queues[queue] = true
	}
	walk := func(args ...any) map[string]bool {
		seen := map[string]bool{}
		for cursor := "0"; ; {
			v := c.Do(append([]any{args[0], cursor, "COUNT", 10}, args[1:]...)...)
			for _, e := range v.Elems[1].Elems {
				seen[e.Str] = true
			}
			if cursor = v.Elems[0].Str; cursor == "0" {
				return seen
			}
		}
	}
	assert.Equal(t, want, walk("JSCAN"))
	assert.Equal(t, queues, walk("QSCAN"))
	assert.Equal(t, queues, walk("QSCAN", "MINLEN", 1, "MAXLEN", 1))
	assert.Empty(t, walk("QSCAN", "MINLEN", 2))
	assert.Empty(t, walk("QSCAN", "IMPORTRATE", 1))
	get(t, c, "q7")
	assert.Len(t, walk("JSCAN", "STATE", "active"), 1)
	assert.Len(t, walk("JSCAN", "STATE", "active", "STATE", "queued"), 512)
	assert.Len(t, walk("JSCAN", "QUEUE", "q9"), 1)
	v := c.Do("JSCAN", "BUSYLOOP", "QUEUE", "q9", "REPLY", "all")
	assert.Equal(t, "0", v.Elems[0].Str)
	require.Len(t, v.Elems[1].Elems, 1)
	assert.Len(t, v.Elems[1].Elems[0].Elems, 30)
	assert.Equal(t, byte('+'), c.Do("JSCAN", "BUSYLOOP").Elems[1].Elems[0].Kind)
	assert.Contains(t, c.Do("JOBMESH", "INFO", "jobs").Str, "registered_jobs:512\r\n")
	assert.Contains(t, c.Do("JOBMESH", "INFO", "queues").Str, "registered_queues:512\r\n")
	assert.Equal(t, "", c.Do("JOBMESH", "INFO", "nope").Str)
}

// Jobs that are there for the whole of a scan are met, whatever comes and goes.
func TestScanWhileTableGrowsAndShrinks(t *testing.T) {
	c := harness.Start(t).Dial()
	stay := map[string]bool{}
	for range 300 {
		stay[add(t, c, "stay", "b", 0)] = true
	}
	var passing []string
	round := 0
	for cursor := "0"; ; round++ {
		v := c.Do("JSCAN", cursor, "COUNT", 5)
		for _, e := range v.Elems[1].Elems {
			delete(stay, e.Str)
		}
		if cursor = v.Elems[0].Str; cursor == "0" {
			break
		}
		if round%2 == 0 {
			for range 200 {
				passing = append(passing, add(t, c, "pass", "b", 0))
			}
		} else {
			for _, id := range passing {
				c.Do("DELJOB", id)
			}
			passing = nil
		}
	}
	assert.Empty(t, stay)
}

func TestContainer(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	id := c.Do("JOBMESH", "CLUSTER", "MYID").Str
	assert.Regexp(t, "^[0-9a-f]{40}$", id)
	v := c.Do("JOBMESH", "HELLO")
	require.Len(t, v.Elems, 3)
	assert.Equal(t, ":1", v.Elems[0].String())
	assert.Equal(t, id, v.Elems[1].Str)
	assert.Equal(t, []string{id, "", fmt.Sprint(s.Port), "1"}, v.Elems[2].Strings())
	assert.Contains(t, c.Do("JOBMESH", "CLUSTER", "NODES").Str, id+" :")
	assert.Contains(t, c.Do("JOBMESH", "CLUSTER", "INFO").Str, "cluster_size:1")
	assert.True(t, c.Do("JOBMESH", "CLUSTER", "FORGET", id).Err("ERR I tried hard but I can't forget myself..."))
	s.Stop()
	s.Restart()
	c = s.Dial()
	assert.Equal(t, id, c.Do("JOBMESH", "CLUSTER", "MYID").Str, "the node keeps its name")
	job := add(t, c, "q", "b", 0)
	assert.Equal(t, "OK", c.Do("JOBMESH", "CLUSTER", "RESET", "HARD").Str)
	assert.NotEqual(t, id, c.Do("JOBMESH", "CLUSTER", "MYID").Str)
	assert.True(t, c.Do("SHOW", job).Null)
}

func TestLeaving(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	add(t, c, "q", "b", 0)
	w := s.Dial()
	w.Send("GETJOB", "FROM", "none")
	harness.Await(t, 2*time.Second, "a blocked client", func() bool { return s.Info("jobmesh", "jobmesh_blocked_clients") == "1" })
	assert.Equal(t, "OK", c.Do("JOBMESH", "CLUSTER", "LEAVING", "yes").Str)
	const leaving = "LEAVING This node is leaving the cluster, please connect to a different one"
	assert.True(t, w.Receive().Err(leaving))
	assert.Equal(t, "+\"yes\"", c.Do("JOBMESH", "CLUSTER", "LEAVING").String())
	assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "none").NullArray())
	assert.True(t, c.Do("GETJOB", "FROM", "none").Err(leaving))
	assert.Len(t, c.Do("GETJOB", "FROM", "q").Elems, 1)
	assert.True(t, c.Do("ADDJOB", "q", "b", 0).Err("NOREPL Not enough reachable nodes for the requested replication level, since I'm unable to hold a copy of the message for the following reason: I'm leaving the cluster"))
	assert.Equal(t, "100", c.Do("JOBMESH", "HELLO").Elems[2].Elems[3].Str)
	s.Stop()
	s.Restart()
	assert.Equal(t, "yes", s.Do("JOBMESH", "CLUSTER", "LEAVING").Str, "leaving survives a restart")
	assert.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "RESET").Str)
	assert.Equal(t, "no", s.Do("JOBMESH", "CLUSTER", "LEAVING").Str)
}

// A default time to live ends no job before it is due.
func TestDefaultTimeToLive(t *testing.T) {
	const day = 86_400
	c := harness.Start(t).Dial()
	deferred := add(t, c, "q", "b", 0, "DEFERRED")
	for id, want := range map[string]int64{
		add(t, c, "q", "b", 0):                                  day,
		add(t, c, "q", "b", 0, "DELAY", 10*day):                 11 * day,
		deferred:                                                30 * day,
		add(t, c, "q", "b", 0, "BLOCKEDBY", deferred):           30 * day,
		add(t, c, "q", "b", 0, "AFTER", deferred, "DELAY", day): 31 * day,
		add(t, c, "q", "b", 0, "TTL", 5):                        5,
		add(t, c, "q", "b", 0, "UNIQUE", "until-processed", "KEY", "k", "ONCONFLICT", "reschedule", 100_000):         day + 100_000,
		add(t, c, "q", "b", 0, "UNIQUE", "during-processing", "KEY", "k", "ONBUSY", "reschedule", 2*day, "DELAY", 1): 3*day + 1,
	} {
		assert.InDelta(t, want, c.Do("SHOW", id).Field("ttl").Int(), 3)
		assert.LessOrEqual(t, c.Do("SHOW", id).Field("retry").Int(), int64(300))
	}
	assert.True(t, c.Do("ADDJOB", "q", "b", 0, "DELAY", 10, "TTL", 10).Err("ERR The specified DELAY is greater than TTL"))
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "late", "DELAY", 2*day).Str)
	assert.InDelta(t, 3*day, c.Do("SHOW", add(t, c, "late", "b", 0)).Field("ttl").Int(), 3)
}

// A client still works on a job when the job's time to live is over, and the server restarts. The job
// comes again: the time of its run begins anew, and so does the time that is left of its life.
func TestRestartBeyondTheTimeToLive(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	c := s.Dial()
	id := add(t, c, "q", "b", 0, "TTL", 2, "RETRY", 2, "UNIQUE", "during-processing", "KEY", "k")
	require.Equal(t, id, get(t, c, "q"))
	time.Sleep(1200 * time.Millisecond)
	require.Equal(t, ":2", c.Do("WORKING", id).String(), "due in 2 s, its life is over in 4")
	s.Kill()
	time.Sleep(2500 * time.Millisecond)
	s.Restart()
	c = s.Dial()
	harness.Await(t, 10*time.Second, "it to come again", func() bool {
		v := c.Do("SHOW", id)
		require.False(t, v.Null, "it is gone")
		return v.Field("state").Str == "queued"
	})
	assert.Equal(t, id, get(t, c, "q"))
}
