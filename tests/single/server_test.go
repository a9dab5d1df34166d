package single

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// The server lists and describes the module's commands.
func TestServerKnowsTheCommands(t *testing.T) {
	s := harness.Start(t)
	c, three := s.Dial(), s.Dial3()
	names := c.Do("COMMAND", "LIST", "FILTERBY", "MODULE", "jobmesh").Strings()
	assert.Subset(t, names, []string{"addjob", "getjob", "ackjob", "uq.push", "jobmesh", "jobmesh|hello", "jobmesh|final"}, "those of the container too")
	for _, name := range names {
		for _, conn := range []*harness.Conn{c, three} {
			docs := conn.Do("COMMAND", "DOCS", name)
			require.Len(t, docs.Elems, 2, name)
			assert.Equal(t, "jobmesh", docs.Elems[1].Field("module").Str, name)
			assert.NotEmpty(t, docs.Elems[1].Field("summary").Str, name)
			info := conn.Do("COMMAND", "INFO", name)
			require.Len(t, info.Elems, 1)
			assert.Equal(t, name, info.Elems[0].Elems[0].Str)
		}
	}
	for _, container := range []string{"JOBMESH", "QCONFIG"} {
		assert.Contains(t, c.Do(container, "HELP").Elems[0].Str, container+" <subcommand>")
	}
	assert.Equal(t, "%", string(three.Do("COMMAND", "DOCS", "addjob").Kind))
	assert.Equal(t, s.Do("JOBMESH", "CLUSTER", "MYID").Str, s.Info("jobmesh", "jobmesh_node_id"))
	assert.Equal(t, "0", s.Info("everything", "jobmesh_panics"))
}

// The documentation names the fields of INFO with their prefix, as the server does, so that they
// can be found. The fields of JOBMESH INFO and CLUSTER INFO have no prefix.
func TestDocumentationNamesInfoFieldsInFull(t *testing.T) {
	s := harness.Start(t)
	text, err := os.ReadFile(filepath.Join(harness.Root(t), "module", "COMMANDS.md"))
	require.NoError(t, err)
	fields := 0
	for line := range strings.Lines(s.Do("INFO", "jobmesh").Str) {
		name, _, ok := strings.Cut(line, ":")
		short := strings.TrimPrefix(name, "jobmesh_")
		if !ok || short == "registered_jobs" || short == "registered_queues" || short == "settings_entries" {
			continue
		}
		fields++
		assert.NotContains(t, string(text), "`"+short+"`")
	}
	assert.Greater(t, fields, 30)
}

// The totals of INFO are the sums of what QSTAT says of each queue, whatever happens to the queues.
func TestTotalsOfWaitingJobs(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	totals := func(want ...int64) { // waiting, delayed, deferred, blocked
		t.Helper()
		queues := make([]int64, len(want))
		for _, q := range c.Do("QSCAN", 0, "BUSYLOOP").Elems[1].Strings() {
			stat := c.Do("QSTAT", q)
			for i, field := range []string{"len", "delayed", "deferred", "jobs-blocked"} {
				queues[i] += stat.Field(field).Int()
			}
		}
		assert.Equal(t, want, queues, "the queues'")
		for i, field := range []string{"waiting", "delayed", "deferred", "blocked"} {
			assert.Equal(t, want[i], number(t, s, "jobmesh", "jobmesh_jobs_"+field), field)
		}
	}
	totals(0, 0, 0, 0)
	var ids []string
	for _, q := range []string{"a", "b"} {
		for range 5 {
			ids = append(ids, add(t, c, q, "b", 0))
		}
		for range 3 {
			ids = append(ids, add(t, c, q, "b", 0, "DELAY", 1000))
		}
		for range 2 { // the second is held back
			add(t, c, q, "u", 0, "UNIQUE", "during-processing", "KEY", "k")
		}
		deferred := add(t, c, q, "b", 0, "DEFERRED")
		for range 2 {
			add(t, c, q, "b", 0, "BLOCKEDBY", deferred)
		}
	}
	totals(14, 6, 2, 4)
	get(t, c, "a")
	require.Equal(t, int64(1), c.Do("ACKJOB", ids[5]).Int(), "a delayed one")
	require.Equal(t, int64(1), c.Do("ENQUEUE", ids[6]).Int(), "another")
	require.Equal(t, int64(1), c.Do("DEQUEUE", ids[1]).Int())
	totals(13, 4, 2, 4)
	require.Len(t, c.Do("GETJOB", "COUNT", 5, "FROM", "a").Elems, 5)
	totals(8, 4, 2, 4)
	require.Equal(t, int64(1), c.Do("MOVE", "b", 1).Int())
	totals(1, 1, 1, 2)
	require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
	totals(7, 3, 1, 2)
	require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
	require.Equal(t, "OK", c.Do("SELECT", 1).Str)
	require.Equal(t, int64(1), c.Do("MOVE", "b", 0).Int())
	require.Equal(t, "OK", c.Do("SELECT", 0).Str)
	totals(8, 4, 2, 4)
	require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
	totals(8, 4, 2, 4)
	require.Equal(t, int64(1), c.Do("DEL", "b").Int())
	totals(1, 1, 1, 2)
	require.Equal(t, "OK", c.Do("JOBMESH", "FLUSH").Str)
	totals(0, 0, 0, 0)
}

// The category is there where the server lets modules have one, from 7.4 on.
func TestACLCategory(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	var major, minor int
	fmt.Sscanf(s.Info("server", "redis_version"), "%d.%d", &major, &minor)
	if categories := c.Do("ACL", "CAT").Strings(); !slices.Contains(categories, "jobmesh") {
		require.True(t, major == 7 && minor < 4 && s.Info("server", "valkey_version") == "", "%v", categories)
		return
	}
	assert.Contains(t, c.Do("COMMAND", "INFO", "getjob").Elems[0].Elems[6].Strings(), "@jobmesh")
	assert.Contains(t, c.Do("COMMAND", "INFO", "getjob").Elems[0].Elems[6].Strings(), "@blocking")
	// Valkey before 8.1 shows no module's commands here.
	if names := c.Do("ACL", "CAT", "jobmesh").Strings(); len(names) > 0 {
		assert.Subset(t, names, []string{"addjob", "jobmesh|flush"})
	}
	c.Do("ACL", "SETUSER", "w", "on", "nopass", "~*", "-@all", "+@jobmesh", "-jobmesh|flush")
	u := s.Dial()
	require.Equal(t, "OK", u.Do("AUTH", "w", "").Str)
	id := add(t, u, "q", "b", 0)
	assert.Equal(t, id, get(t, u, "q"))
	assert.Equal(t, byte('*'), u.Do("JOBMESH", "HELLO").Kind)
	assert.True(t, u.Do("JOBMESH", "FLUSH").Err("NOPERM"))
	assert.True(t, u.Do("GET", "q").Err("NOPERM"))
}

// Saves in the background and full syncs end well while jobs come and go, and
// replicas count the same bytes as their master.
func TestBackgroundWork(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "auto-aof-rewrite-percentage 0"))
	c := s.Dial()
	work := func() {
		for i := range 200 {
			id := add(t, c, fmt.Sprint("q", i%7), i, 0)
			if i%3 == 0 {
				c.Do("ACKJOB", id)
			}
		}
		get(t, c, "q1")
	}
	for _, how := range []struct{ cmd, busy, status string }{
		{"BGSAVE", "rdb_bgsave_in_progress", "rdb_last_bgsave_status"},
		{"BGREWRITEAOF", "aof_rewrite_in_progress", "aof_last_bgrewrite_status"},
	} {
		work()
		require.Equal(t, byte('+'), c.Do(how.cmd).Kind)
		work()
		harness.Await(t, 20*time.Second, how.cmd, func() bool { return s.Info("persistence", how.busy) == "0" })
		assert.Equal(t, "ok", s.Info("persistence", how.status))
	}
	replica := harness.Start(t, harness.WithReplicaOf(s))
	sub := harness.Start(t, harness.WithReplicaOf(replica))
	for _, r := range []*harness.Server{replica, sub} {
		r.AwaitSync()
	}
	work()
	require.Equal(t, int64(1), c.Do("MOVE", "q2", 5).Int())
	work()
	for _, r := range []*harness.Server{replica, sub} {
		r.AwaitStream(s)
		assert.Equal(t, jobs(s), jobs(r))
		assert.Equal(t, s.Info("keyspace", "db5"), r.Info("keyspace", "db5"))
	}
	before := jobs(s)
	s.Stop()
	s.Restart()
	assert.Equal(t, before, jobs(s))
}
