package compat

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func compatible(t *testing.T, lines ...string) *harness.Server {
	return harness.Start(t, harness.WithModuleArgs("disque-compat yes"), harness.WithConfig(lines...))
}

func TestHello(t *testing.T) {
	s := compatible(t)
	for name, c := range map[string]*harness.Conn{"RESP2": s.Dial(), "RESP3": s.Dial3()} {
		for _, hello := range []string{"HELLO", "hello", "hElLo"} {
			v := c.Do(hello)
			require.Len(t, v.Elems, 3, name)
			id := c.Do("CLUSTER", "MYID")
			assert.Equal(t, ":1", v.Elems[0].String())
			assert.Equal(t, id, v.Elems[1])
			assert.Equal(t, fmt.Sprintf(`*[$"%s" $"" $"%d" $"1"]`, id.Str, s.Port), v.Elems[2].String())
		}
	}
	// HELLO with a version is Redis's: it switches the protocol, and names the client.
	c := s.Dial()
	for _, version := range []string{"3", "2"} {
		v := c.Do("HELLO", version, "SETNAME", "me"+version)
		assert.Equal(t, version, strconv.FormatInt(v.Field("proto").Int(), 10))
		assert.Equal(t, "me"+version, c.Do("CLIENT", "GETNAME").Str)
	}
	assert.True(t, c.Do("HELLO", "4").Err("NOPROTO"))
	assert.Contains(t, c.Do("EVAL", "return redis.call('hello')", 0).Str, "not allowed from script", "nor is Redis' HELLO")
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "requirepass", "secret").Str)
	assert.True(t, s.Do("HELLO").Err("NOAUTH Authentication required."))
	assert.Equal(t, byte('*'), s.Do("HELLO", "2", "AUTH", "default", "secret").Kind)
}

func TestCluster(t *testing.T) {
	s := compatible(t)
	c := s.Dial()
	id := c.Do("CLUSTER", "MYID").Str
	require.Len(t, id, 40)
	assert.Equal(t, id, c.Do("JOBMESH", "CLUSTER", "MYID").Str)
	assert.Equal(t, fmt.Sprintf("%s :%d myself 0 0 connected\n", id, s.Port), c.Do("CLUSTER", "NODES").Str)
	info := c.Do("cluster", "info")
	assert.Equal(t, byte('$'), info.Kind)
	assert.Contains(t, info.Str, "cluster_state:ok\r\n")
	assert.Equal(t, `+"no"`, c.Do("CLUSTER", "LEAVING").String())
	assert.Equal(t, `+"OK"`, c.Do("CLUSTER", "LEAVING", "yes").String())
	assert.Equal(t, `+"yes"`, c.Do("CLUSTER", "LEAVING").String())
	assert.True(t, c.Do("CLUSTER", "LEAVING", "maybe").Err("ERR Wrong argument for CLUSTER LEAVING"))
	assert.Equal(t, `+"OK"`, c.Do("CLUSTER", "SAVECONFIG").String())
	assert.True(t, c.Do("CLUSTER", "FORGET", id).Err("ERR I tried hard but I can't forget myself..."))
	assert.True(t, c.Do("CLUSTER", "FORGET", "x").Err("ERR Invalid node identifier"))
	assert.True(t, c.Do("CLUSTER", "MEET").Err("ERR Wrong CLUSTER subcommand or number of arguments"))
	assert.Equal(t, `+"OK"`, c.Do("CLUSTER", "RESET", "HARD").String())
	assert.NotEqual(t, id, c.Do("CLUSTER", "MYID").Str)
	assert.Equal(t, `+"no"`, c.Do("CLUSTER", "LEAVING").String())
	// A subcommand that only Redis's CLUSTER has stays Redis's.
	assert.True(t, c.Do("CLUSTER", "SLOTS").Err("ERR This instance has cluster support disabled"))
}

func TestInfo(t *testing.T) {
	s := compatible(t)
	c := s.Dial()
	for range 3 {
		require.Equal(t, byte('+'), c.Do("ADDJOB", "q", "b", 0).Kind)
	}
	assert.Equal(t, "# Jobs\r\nregistered_jobs:3\r\n", c.Do("INFO", "jobs").Str)
	assert.Equal(t, "# Queues\r\nregistered_queues:1\r\n", c.Do("info", "Queues").Str)
	for _, section := range []any{"default", "all", "everything", nil} {
		args := []any{"INFO"}
		if section != nil {
			args = append(args, section)
		}
		v := c.Do(args...)
		assert.Equal(t, byte('$'), v.Kind)
		assert.True(t, strings.HasPrefix(v.Str, "# Server\r\n"), "%v", section)
		for _, part := range []string{"\r\n# Server\r\ndisque_version:1.0-rc1\r\n", "\r\nredis_version:", "\r\nloading:0\r\n", "\r\naof_enabled:0\r\naof_state:off\r\n", "\r\n\r\n# Jobs\r\nregistered_jobs:3\r\n\r\n# Queues\r\nregistered_queues:1\r\n\r\n# Persistence\r\n"} {
			assert.Equal(t, 1, strings.Count("\r\n"+v.Str, part), "%v: %q", section, part)
		}
		assert.Equal(t, byte('='), s.Dial3().Do(args...).Kind, "as the server's")
	}
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "appendonly", "yes").Str)
	assert.Contains(t, c.Do("INFO", "persistence").Str, "aof_enabled:1\r\naof_state:on\r\n")
	harness.Await(t, 20*time.Second, "the first rewrite", func() bool { return s.Info("persistence", "aof_rewrite_in_progress") == "0" })
	assert.Contains(t, c.Do("INFO", "server").Str, "disque_version:")
	// Other sections are the server's, and so are several sections at once.
	assert.NotContains(t, c.Do("INFO", "server", "persistence").Str, "disque_version")
	assert.True(t, strings.HasPrefix(c.Do("INFO", "replication").Str, "# Replication\r\nrole:master\r\n"))
	assert.Equal(t, "", c.Do("INFO", "nosuch").Str)
}

func TestConfig(t *testing.T) {
	s := compatible(t)
	c := s.Dial()
	assert.Equal(t, `*[$"aof-enqueue-jobs-once" $"no"]`, c.Do("CONFIG", "GET", "aof-enqueue-jobs-once").String())
	assert.Equal(t, `+"OK"`, c.Do("config", "set", "AOF-enqueue-jobs-once", "yes").String())
	assert.Equal(t, `*[$"aof-enqueue-jobs-once" $"yes"]`, c.Do("CONFIG", "GET", "AOF-Enqueue-Jobs-Once").String())
	assert.Equal(t, `%[$"aof-enqueue-jobs-once" $"yes"]`, s.Dial3().Do("CONFIG", "GET", "aof-enqueue-jobs-once").String())
	assert.True(t, c.Do("CONFIG", "SET", "aof-enqueue-jobs-once", "perhaps").Err("ERR "))
	assert.True(t, c.Do("CONFIG", "SET", "aof-enqueue-jobs-once").Err("ERR wrong number of arguments for 'config|set' command"))
	assert.Equal(t, `*[$"jobmesh.aof-enqueue-jobs-once" $"yes"]`, c.Do("CONFIG", "GET", "jobmesh.aof-enqueue-jobs-once").String())
	assert.Equal(t, `*[$"hz" $"10"]`, c.Do("CONFIG", "GET", "hz").String())
}

// Disque's recipe of a controlled restart, word for word.
func TestControlledRestart(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("jobmesh.disque-compat yes", "appendonly yes"))
	c := s.Dial()
	for i := range 5 {
		require.Equal(t, byte('+'), c.Do("ADDJOB", "q", i, 0).Kind)
	}
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "aof-enqueue-jobs-once", "yes").Str)
	require.Equal(t, "OK", c.Do("CONFIG", "REWRITE").Str)
	s.Stop("SHUTDOWN", "REWRITE-AOF")
	s.Restart()
	assert.Equal(t, int64(5), s.Do("QLEN", "q").Int())
	assert.Equal(t, byte(':'), s.Do("HELLO").Elems[0].Kind)
	assert.Equal(t, `*[$"aof-enqueue-jobs-once" $"no"]`, s.Do("CONFIG", "GET", "aof-enqueue-jobs-once").String())
}

func TestDebugFlushall(t *testing.T) {
	s := compatible(t, "enable-debug-command no")
	c, waiting := s.Dial(), s.Dial()
	c.Do("SET", "k", "v")
	require.Equal(t, byte('+'), c.Do("ADDJOB", "q", "b", 0).Kind)
	waiting.Send("GETJOB", "FROM", "empty")
	harness.Await(t, 5*time.Second, "a waiting client", func() bool { return s.Info("clients", "blocked_clients") == "1" })
	assert.Equal(t, `+"OK"`, c.Do("DEBUG", "FLUSHALL").String())
	assert.True(t, waiting.Receive().NullArray())
	harness.Await(t, 5*time.Second, "the jobs to be freed", func() bool { return c.Do("INFO", "jobs").Str == "# Jobs\r\nregistered_jobs:0\r\n" })
	assert.Equal(t, "v", c.Do("GET", "k").Str, "Disque knows no other keys")
	assert.True(t, c.Do("DEBUG", "SLEEP", "0").Err("ERR DEBUG command not allowed"))
}

// To use a command by Disque's name, a user needs the right to the command to which it is
// rewritten, and to the server's command of the same kind. So an ACL holds, whichever of the two
// it was written for.
func TestACL(t *testing.T) {
	s := compatible(t)
	admin := s.Dial()
	all := []string{
		"HELLO", "INFO", "INFO jobs", "INFO persistence", "CLUSTER NODES", "CLUSTER RESET", "CLUSTER LEAVING", "CLUSTER LEAVING no",
		"DEBUG FLUSHALL", "CONFIG GET aof-enqueue-jobs-once", "CONFIG SET aof-enqueue-jobs-once no", "SHUTDOWN REWRITE-AOF",
	}
	for _, tt := range []struct {
		rules, allowed string // of the twelve, numbered from 0
		either         string // depends on the categories of modules' commands: none before 7.4
	}{
		{"-@all +ping", "", ""},
		{"-@all +hello +info +cluster +debug +shutdown +config|get", "", ""},
		{"+@all -jobmesh", "10", ""},
		{"+@all -@dangerous", "0", "4"},
		{"+@all -@admin", "0 1 2 3", "4 8"},
		{"+@all -info -config -shutdown -cluster -flushall", "0", ""},
		{"+@all -shutdown -jobmesh|info -cluster|reset", "0 4 8 9 10", ""},
		{"-@all +jobmesh|hello +jobmesh|info +info", "0 1 2 3", ""},
		{"-@all +jobmesh", "0", ""},
		{"+@all -shutdown", "0 1 2 3 4 5 6 7 8 9 10", ""},
	} {
		set := []any{"ACL", "SETUSER", "u", "reset", "on", "nopass", "~*"}
		for rule := range strings.FieldsSeq(tt.rules) {
			set = append(set, rule)
		}
		require.Equal(t, "OK", admin.Do(set...).Str)
		c := s.Dial()
		require.Equal(t, "OK", c.Do("AUTH", "u", "").Str)
		for i, line := range all {
			var args []any
			for word := range strings.FieldsSeq(line) {
				args = append(args, word)
			}
			n := strconv.Itoa(i)
			if slices.Contains(strings.Fields(tt.either), n) {
				continue
			}
			v := c.Do(args...)
			if slices.Contains(strings.Fields(tt.allowed), n) {
				assert.NotEqual(t, byte('-'), v.Kind, "%s: %s: %v", tt.rules, line, v)
			} else {
				assert.True(t, v.Err("NOPERM"), "%s: %s: %v", tt.rules, line, v)
			}
		}
	}
}

// Scripts and transactions see the same commands. So do clients that look on by MONITOR.
func TestEverywhere(t *testing.T) {
	s := compatible(t)
	c, monitor := s.Dial(), s.Dial()
	require.Equal(t, "OK", monitor.Do("MONITOR").Str)
	id := c.Do("CLUSTER", "MYID").Str
	assert.Equal(t, c.Do("INFO", "jobs").Str, c.Do("EVAL", "return redis.call('info', 'jobs')", 0).Str)
	assert.Contains(t, c.Do("EVAL", "return redis.call('cluster', 'myid')", 0).Str, "not allowed from script")
	c.Do("MULTI")
	for _, args := range [][]any{{"HELLO"}, {"INFO", "jobs"}, {"CLUSTER", "LEAVING"}} {
		assert.Equal(t, "QUEUED", c.Do(args...).Str)
	}
	v := c.Do("EXEC")
	require.Len(t, v.Elems, 3)
	assert.Equal(t, id, v.Elems[0].Elems[1].Str)
	c.Do("JOBMESH", "INFO", "queues")
	for seen := ""; !strings.Contains(seen, `"queues"`); {
		seen = monitor.Receive().Str
		require.NotEmpty(t, seen)
		assert.NotContains(t, seen, `] "HELLO"`)
	}
}

// Clients that ask INFO whether the server is ready get their answer while it
// loads.
func TestInfoWhileLoading(t *testing.T) {
	s := compatible(t, "key-load-delay 20000", "loading-process-events-interval-bytes 1024")
	c := s.Dial()
	for i := range 300 {
		c.Do("SET", i, strings.Repeat("x", 100))
		c.Do("ADDJOB", fmt.Sprint("q", i%10), "b", 0)
	}
	s.Stop("SHUTDOWN", "SAVE")
	s.Launch()
	var info harness.Value
	harness.Await(t, 20*time.Second, "the port to be served", func() bool {
		if c, err := net.Dial("tcp", s.Addr()); err != nil {
			return false
		} else {
			c.Close()
		}
		info = s.Do("INFO")
		return true
	})
	assert.Contains(t, info.Str, "\r\nloading:1\r\n")
	assert.Contains(t, info.Str, "\r\nregistered_jobs:")
	assert.Equal(t, byte('$'), s.Do("INFO", "jobs").Kind)
	assert.True(t, s.Do("HELLO").Err("LOADING"), "as Disque does")
	assert.True(t, s.Do("GETJOB", "FROM", "q").Err("LOADING"))
}

// The names are switched on and off while the server runs. When they are off, nothing is left of them.
func TestSwitch(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	stock := func() {
		t.Helper()
		assert.Equal(t, "server", c.Do("HELLO").Elems[0].Str)
		assert.True(t, c.Do("CLUSTER", "NODES").Err("ERR This instance has cluster support disabled"))
		assert.Equal(t, "", c.Do("INFO", "jobs").Str)
	}
	assert.Equal(t, "no", c.Do("CONFIG", "GET", "jobmesh.disque-compat").Field("jobmesh.disque-compat").Str)
	for range 3 {
		stock()
		require.Equal(t, "OK", c.Do("CONFIG", "SET", "jobmesh.disque-compat", "yes").Str)
		require.Equal(t, "OK", c.Do("CONFIG", "SET", "jobmesh.disque-compat", "yes").Str)
		assert.Equal(t, int64(1), c.Do("HELLO").Elems[0].Int())
		require.Equal(t, "OK", c.Do("CONFIG", "SET", "jobmesh.disque-compat", "no").Str)
	}
	stock()
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "jobmesh.disque-compat", "yes").Str)
	require.Equal(t, "OK", c.Do("CONFIG", "REWRITE").Str)
	s.Stop()
	s.Restart()
	c = s.Dial()
	assert.Equal(t, int64(1), c.Do("HELLO").Elems[0].Int())
}

// The differences in COMMANDS.md's "Coming from Disque" that one node can show.
func TestDifferencesFromDisque(t *testing.T) {
	s := compatible(t)
	c := s.Dial()
	add := func(queue string, options ...any) string {
		t.Helper()
		v := c.Do(append([]any{"ADDJOB", queue, "b", 0}, options...)...)
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		return v.Str
	}
	do := func(want int64, command ...any) {
		t.Helper()
		assert.Equal(t, want, c.Do(command...).Int(), "%v", command)
	}
	stat := func(queue, field string) int64 { return c.Do("QSTAT", queue).Field(field).Int() }

	assert.Contains(t, []int64{186_399, 186_400}, c.Do("SHOW", add("delayed", "DELAY", 100_000)).Field("ttl").Int())
	assert.Equal(t, int64(0), stat("delayed", "len"))
	for _, option := range []string{"TTL", "RETRY", "DELAY"} {
		assert.True(t, strings.HasSuffix(c.Do("ADDJOB", "q", "b", 0, option, 1<<31).Str, "at most 2147483647 (seconds)"), option)
	}

	ctime := c.Do("SHOW", add("aged")).Field("ctime").Int()
	assert.InDelta(t, time.Now().UnixMilli(), ctime>>11, 60_000)

	// An at-most-once job that is dequeued can be queued again.
	once := add("once", "RETRY", 0)
	do(0, "WORKING", once)
	do(1, "QLEN", "once")
	do(1, "DEQUEUE", once)
	do(1, "ENQUEUE", once)
	do(1, "QLEN", "once")

	// A queue that is paused in input takes back the jobs that clients put back.
	job := add("q")
	require.Equal(t, job, c.Do("GETJOB", "FROM", "q").Elems[0].Elems[1].Str)
	assert.Equal(t, "in", c.Do("PAUSE", "q", "in").Str)
	do(1, "NACK", job)
	do(1, "DEQUEUE", job)
	do(1, "ENQUEUE", job)
	assert.Equal(t, []int64{3, 1}, []int64{stat("q", "jobs-in"), stat("q", "jobs-out")}, "DEQUEUE counts in neither")

	info := c.Do("INFO").Str
	for _, lacks := range []string{"disque_git_sha1", "disque_git_dirty", "disque_build_id", "client_longest_output_list", "client_biggest_input_buf"} {
		assert.NotContains(t, info, lacks)
	}
	assert.True(t, c.Do("CLUSTER", "MEET", "localhost", 7712).Err("ERR Invalid node address specified: localhost:7712"))
	assert.True(t, c.Do("CLUSTER", "MEET").Err("ERR Wrong CLUSTER subcommand or number of arguments"))
	assert.True(t, c.Do("CLUSTER", "nosuch").Err("ERR unknown subcommand"))
	assert.True(t, c.Do("CONFIG", "SET", "maxmemory-policy", "acks").Err("ERR"))
}

// LOCK.CLEAR ALL clears the locks of jobs of one queue, or those of SCOPE mesh, and no others.
func TestClearAllLeavesOtherQueues(t *testing.T) {
	c := harness.Start(t).Dial()
	for _, add := range [][]any{{"a", "SCOPE", "queue"}, {"b", "SCOPE", "mesh"}} {
		require.Equal(t, byte('+'), c.Do("ADDJOB", add[0], "b", 0, "UNIQUE", "until-processed", add[1], add[2]).Kind)
	}
	assert.Equal(t, int64(1), c.Do("LOCK.CLEAR", "ALL", "TYPE", "waiting").Int())
	left := c.Do("LOCK.SCAN", 0, "TYPE", "waiting").Elems[1].Elems
	if assert.Len(t, left, 1) {
		assert.Equal(t, []string{"a", "b"}, left[0].Strings())
	}
	assert.Equal(t, int64(1), c.Do("LOCK.CLEAR", "ALL", "TYPE", "waiting", "QUEUE", "a").Int())
	assert.Empty(t, c.Do("LOCK.SCAN", 0, "TYPE", "waiting").Elems[1].Elems)
}
