package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func (m mesh) id(i int) string { return m[i].Do("JOBMESH", "CLUSTER", "MYID").Str }

// spread adds jobs with three copies, each at the next node.
func (m mesh) spread(t *testing.T, jobs int, queue string, options ...any) (ids []string) {
	t.Helper()
	conns := m.dial()
	for i := range jobs {
		conns[i%len(m)].Later(append([]any{"ADDJOB", queue, "b", 20_000, "REPLICATE", 3}, options...)...)
	}
	for _, c := range conns {
		c.Flush()
	}
	for i := range jobs {
		v := conns[i%len(m)].Receive()
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		ids = append(ids, v.Str)
	}
	return ids
}

// awaitCount waits until a node's QSTAT … MESH has a value, and returns that QSTAT.
func awaitCount(t *testing.T, s *harness.Server, queue, field string, want int64) (v harness.Value) {
	t.Helper()
	harness.Await(t, 10*time.Second, fmt.Sprintf("%s of %s to be %d", field, queue, want), func() bool {
		v = s.Do("QSTAT", queue, "MESH")
		return v.Field(field).Int() == want
	})
	return v
}

// V1: jobs with three copies are counted once over the mesh, whichever node is asked.
func TestLifeV1(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.spread(t, 1000, "waiting", "RETRY", 1000)
	m.spread(t, 1000, "delayed", "RETRY", 1000, "DELAY", 1000)
	deferred := m.spread(t, 30, "deferred", "RETRY", 1000, "DEFERRED")
	m.spread(t, 60, "blocked", "RETRY", 1000, "BLOCKEDBY", deferred[0])
	for i, s := range m {
		v := s.Do("QLEN", "waiting", "MESH")
		assert.Equal(t, int64(1000), v.Field("len").Int(), "node %d: %v", i, v)
		assert.Empty(t, v.Field("unanswered").Elems)
		for queue, field := range map[string]string{"delayed": "delayed", "deferred": "deferred", "blocked": "jobs-blocked"} {
			v := s.Do("QSTAT", queue, "MESH")
			assert.Zero(t, v.Field("len").Int())
			assert.Equal(t, map[string]int64{"delayed": 1000, "deferred": 30, "blocked": 60}[queue], v.Field(field).Int(), "%s at node %d: %v", queue, i, v)
			assert.Len(t, v.Field("nodes").Elems, 3)
		}
	}
	assert.Equal(t, int64(30), m[0].Do("QSTAT", "deferred").Field("deferred").Int(), "without MESH: each copy")

	// All copies follow a release, and are counted anew after a restart.
	require.Equal(t, int64(3), m[1].Do("RELEASEJOB", deferred[0]).Int())
	require.Equal(t, int64(1), m[1].Do("ACKJOB", deferred[0]).Int())
	for _, s := range m {
		awaitCount(t, s, "deferred", "deferred", 29)
		awaitCount(t, s, "blocked", "jobs-blocked", 0)
		awaitCount(t, s, "blocked", "len", 60)
	}
}

// V2: a node that is down is named, and what only it counts is missing. Deferred jobs that it counts aren't missing where
// another node has copies of all.
func TestLifeV2(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "appendfsync always")
	m.spread(t, 90, "q", "RETRY", 1000)
	m.spread(t, 9, "held", "RETRY", 1000, "DEFERRED")
	gone := m.id(0)
	m[0].Kill()
	var v harness.Value
	harness.Await(t, 10*time.Second, "the node to be missed", func() bool {
		v = m[1].Do("QLEN", "q", "MESH", "TIMEOUT", 5000)
		return slices.Contains(v.Field("unanswered").Strings(), gone)
	})
	assert.Equal(t, int64(60), v.Field("len").Int())
	v = m[2].Do("QSTAT", "held", "MESH")
	assert.Equal(t, int64(9), v.Field("deferred").Int())
	assert.Equal(t, []string{gone}, v.Field("unanswered").Strings())
	assert.Len(t, v.Field("nodes").Elems, 2)

	// It is back, with its jobs.
	m[0].Restart()
	m.await(t, 3)
	for _, s := range m {
		v = awaitCount(t, s, "q", "len", 90)
		assert.Empty(t, v.Field("unanswered").Elems)
		awaitCount(t, s, "held", "deferred", 9)
	}

	// When it is forgotten, nobody is missing.
	m[0].Kill()
	for _, s := range m[1:] {
		require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", gone).Str)
	}
	v = awaitCount(t, m[1], "held", "deferred", 9)
	assert.Empty(t, v.Field("unanswered").Elems)

	// A node that is stopped doesn't answer in time.
	stopped := m.id(2)
	m[2].Pause()
	began := time.Now()
	v = m[1].Do("QSTAT", "q", "MESH", "TIMEOUT", 300)
	harness.Took(t, began, 300*time.Millisecond)
	assert.Equal(t, []string{stopped}, v.Field("unanswered").Strings())
	v = m[1].Do("QLEN", "q", "MESH", "TIMEOUT", 300)
	assert.Equal(t, []string{stopped}, v.Field("unanswered").Strings())
	m[2].Resume()
}

// QSTAT says since when the oldest job waits, here and over the mesh.
func TestOldestJob(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	assert.Zero(t, m[0].Do("QSTAT", "q", "MESH").Field("oldest").Int())
	first := added(t, m[0].Dial(), "q", "b", 1000, "REPLICATE", 1)
	harness.Await(t, 10*time.Second, "the job to be a second old", func() bool { return m[0].Do("QSTAT", "q").Field("oldest").Int() >= 1 })
	added(t, m[1].Dial(), "q", "b", 1000, "REPLICATE", 1)
	assert.Zero(t, m[1].Do("QSTAT", "q").Field("oldest").Int())
	assert.GreaterOrEqual(t, m[1].Do("QSTAT", "q", "MESH").Field("oldest").Int(), int64(1))
	require.Equal(t, int64(1), m[0].Do("ACKJOB", first).Int())
	assert.Zero(t, m[0].Do("QSTAT", "q").Field("oldest").Int())
}

// V3: ten jobs are in progress at three nodes.
func TestLifeV3(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.spread(t, 15, "q", "RETRY", 1000)
	for i := range 10 {
		fetched(t, m[i%3].Dial(), "q")
	}
	require.Equal(t, "in", m[1].Do("PAUSE", "q", "in").Str)
	for _, s := range m {
		v := awaitCount(t, s, "q", "in-progress", 10)
		assert.Equal(t, int64(5), v.Field("len").Int())
		assert.Equal(t, int64(15), v.Field("jobs-in").Int())
		assert.Equal(t, int64(10), v.Field("jobs-out").Int())
		assert.Equal(t, "in", v.Field("pause").Str, "as at one of them")
		nodes := v.Field("nodes").Elems
		require.Len(t, nodes, 3)
		var sum int64
		for _, n := range nodes {
			sum += n.Elems[2].Int()
			want := "none"
			if n.Elems[0].Str == m.id(1) {
				want = "in"
			}
			assert.Equal(t, want, n.Elems[3].Str)
		}
		assert.Equal(t, int64(10), sum)
		assert.True(t, slices.IsSortedFunc(nodes, func(a, b harness.Value) int { return slices.Compare([]byte(a.Elems[0].Str), []byte(b.Elems[0].Str)) }))
	}

	// Nobody knows this one.
	v := m[0].Do("QSTAT", "none", "MESH")
	assert.Equal(t, "none", v.Field("name").Str)
	assert.Zero(t, v.Field("len").Int()+v.Field("age").Int()+v.Field("idle").Int())
	assert.Empty(t, v.Field("nodes").Elems)
	assert.Zero(t, m[0].Do("QLEN", "none", "MESH").Field("len").Int())
}

// scanMesh goes through all queues of the mesh, and returns their lengths.
func scanMesh(t *testing.T, c *harness.Conn, options ...any) (lengths map[string]int64, unanswered []string, calls int) {
	t.Helper()
	lengths = map[string]int64{}
	for cursor := "0"; calls == 0 || cursor != "0"; calls++ {
		v := c.Do(append([]any{"QSCAN", cursor, "MESH"}, options...)...)
		cursor = v.Field("cursor").Str
		require.NotEmpty(t, cursor, "%v", v)
		for _, q := range v.Field("queues").Elems {
			name, length := q.Elems[0].Str, q.Elems[1].Int()
			if was, again := lengths[name]; again {
				require.Equal(t, was, length, name)
			}
			lengths[name] = length
		}
		unanswered = v.Field("unanswered").Strings()
		require.Less(t, calls, 10_000)
	}
	return lengths, unanswered, calls
}

// V4: a scan over the mesh has all names, with the right totals.
func TestLifeV4(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	want := map[string]int64{}
	for i, s := range m {
		c := s.Dial()
		for k := range 100 {
			for _, queue := range []string{fmt.Sprint("own", i, ".", k), fmt.Sprint("shared", k%10)} {
				require.Equal(t, byte('+'), c.Do("ADDJOB", queue, "b", 0, "REPLICATE", 1).Kind)
				want[queue]++
			}
		}
	}
	for i, s := range m {
		got, unanswered, _ := scanMesh(t, s.Dial())
		assert.Equal(t, want, got, "node %d", i)
		assert.Empty(t, unanswered)
	}
	c := m[1].Dial()
	got, _, calls := scanMesh(t, c, "COUNT", 7)
	assert.Equal(t, want, got)
	assert.Greater(t, calls, 30, "a page has about as many queues as COUNT says")
	long, _, _ := scanMesh(t, c, "MINLEN", 2, "MAXLEN", 30)
	assert.Len(t, long, 10, "the lengths of the mesh count")

	// The rights of the user count for each name.
	require.Equal(t, "OK", c.Do("ACL", "SETUSER", "limited", "on", ">secret", "~own0.*", "+@all").Str)
	limited := m[1].Dial()
	require.Equal(t, "OK", limited.Do("AUTH", "limited", "secret").Str)
	seen, _, _ := scanMesh(t, limited)
	assert.Len(t, seen, 100)
	assert.Contains(t, limited.Do("QLEN", "shared1", "MESH").Str, "NOPERM")

	// While a node is away its own queues are missing, and the scan names it.
	gone := m.id(0)
	m[0].Kill()
	harness.Await(t, 10*time.Second, "the scan to leave it out", func() bool {
		left, unanswered, _ := scanMesh(t, c, "TIMEOUT", 5000)
		return slices.Equal(unanswered, []string{gone}) && len(left) == 210 && left["shared1"] == 20
	})
}

// jobsOfMesh goes through all jobs of the mesh, and returns queue, state and node of each. No job comes twice.
func jobsOfMesh(t *testing.T, c *harness.Conn, options ...any) (jobs map[string][3]string, unanswered []string) {
	t.Helper()
	jobs = map[string][3]string{}
	for cursor, calls := "0", 0; calls == 0 || cursor != "0"; calls++ {
		v := c.Do(append([]any{"JSCAN", cursor, "MESH"}, options...)...)
		cursor = v.Field("cursor").Str
		require.NotEmpty(t, cursor, "%v", v)
		for _, j := range v.Field("jobs").Elems {
			require.NotContains(t, jobs, j.Elems[0].Str)
			jobs[j.Elems[0].Str] = [3]string{j.Elems[1].Str, j.Elems[2].Str, j.Elems[3].Str}
		}
		unanswered = v.Field("unanswered").Strings()
		require.Less(t, calls, 10_000)
	}
	return jobs, unanswered
}

// A scan over the mesh has each job once, with its queue, its state, and the node that counts it.
func TestAScanOfTheMeshsJobs(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	want := map[string][3]string{}
	for i, s := range m {
		c := s.Dial()
		for range 100 {
			want[added(t, c, "q", "b", 20_000, "REPLICATE", 3, "RETRY", 1000)] = [3]string{"q", "queued", m.id(i)}
		}
		want[added(t, c, "later", "b", 20_000, "REPLICATE", 3, "RETRY", 1000, "DELAY", 1000)] = [3]string{"later", "delayed", m.id(i)}
		deferred := added(t, c, "held", "b", 20_000, "REPLICATE", 3, "RETRY", 1000, "DEFERRED")
		want[deferred] = [3]string{"held", "deferred", m.id(i)}
		want[added(t, c, "held", "b", 20_000, "REPLICATE", 3, "RETRY", 1000, "BLOCKEDBY", deferred)] = [3]string{"held", "blocked", m.id(i)}
		want[added(t, c, "once", "b", 20_000, "REPLICATE", 1, "RETRY", 0)] = [3]string{"once", "active", m.id(i)}
		fetched(t, c, "once")
		id := fetched(t, c, "q")
		want[id] = [3]string{"q", "active", m.id(i)}
		done := fetched(t, c, "q")
		require.Equal(t, int64(1), c.Do("ACKJOB", done).Int())
		delete(want, done)
	}
	for _, s := range m {
		got, unanswered := jobsOfMesh(t, s.Dial())
		assert.Equal(t, want, got)
		assert.Empty(t, unanswered)
	}
	c := m[1].Dial()
	count := func(options ...any) int {
		got, _ := jobsOfMesh(t, c, options...)
		return len(got)
	}
	assert.Equal(t, len(want), count("COUNT", 7))
	assert.Equal(t, 3, count("QUEUE", "once"))
	assert.Equal(t, 6, count("STATE", "deferred", "STATE", "blocked"))
	assert.Equal(t, 3, count("STATE", "delayed", "QUEUE", "later", "COUNT", 1))
	assert.Equal(t, 6, count("STATE", "active", "COUNT", 1000))
	for _, bad := range [][]any{{"BUSYLOOP"}, {"REPLY", "all"}, {"COUNT", 0}, {"COUNT", 1001}} {
		assert.Contains(t, c.Do(append([]any{"JSCAN", 0, "MESH"}, bad...)...).Str, "ERR with MESH a call", "%v", bad)
	}

	// The rights of the user count for each queue.
	require.Equal(t, "OK", c.Do("ACL", "SETUSER", "limited", "on", ">secret", "~later", "+@all").Str)
	limited := m[1].Dial()
	require.Equal(t, "OK", limited.Do("AUTH", "limited", "secret").Str)
	seen, _ := jobsOfMesh(t, limited)
	assert.Len(t, seen, 3)

	// While a node is away its own jobs are missing, and the scan names it.
	gone := m.id(0)
	m[0].Kill()
	harness.Await(t, 10*time.Second, "the scan to leave it out", func() bool {
		left, unanswered := jobsOfMesh(t, c, "TIMEOUT", 5000, "QUEUE", "later")
		return slices.Equal(unanswered, []string{gone}) && len(left) == 2
	})
}

// QSTAT counts the jobs in a queue's dead-letter queue, at this node and over the mesh.
func TestDeadLettersAreCounted(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for range 2 {
		for i, s := range m {
			parent := added(t, s.Dial(), fmt.Sprint("p", i), "b", 20_000, "REPLICATE", 1, "RETRY", 1000)
			added(t, s.Dial(), "q", "b", 20_000, "REPLICATE", 1, "RETRY", 1000, "AFTER", parent, "ONDEAD", "dead")
			require.Equal(t, int64(1), s.Do("CANCELJOB", parent).Int())
		}
	}
	for _, s := range m {
		harness.Await(t, 10*time.Second, "all to be dead", func() bool { return s.Do("QSTAT", "q", "MESH").Field("dead").Int() == 6 })
		assert.Equal(t, int64(2), s.Do("QSTAT", "q").Field("dead").Int())
		assert.Zero(t, s.Do("QSTAT", "q:dead").Field("dead").Int())
	}
}
