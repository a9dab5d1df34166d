package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// given adds a job at a node and fetches it there.
func given(t *testing.T, s *harness.Server, queue string, options ...any) (id string) {
	t.Helper()
	id = added(t, s.Dial(), append([]any{queue, "b", 5000}, options...)...)
	v := s.Do("GETJOB", "TIMEOUT", 5000, "FROM", queue)
	require.NotEmpty(t, v.Elems)
	require.Equal(t, id, v.Elems[0].Elems[1].Str)
	return id
}

// shows waits until a node shows a field of a job.
func shows(t *testing.T, s *harness.Server, id, field, want string) {
	t.Helper()
	c := s.Dial()
	harness.Await(t, 20*time.Second, fmt.Sprintf("%s to be %q", field, want), func() bool { return c.Do("SHOW", id).Field(field).Str == want })
}

// F13: a job is put off, and the node where that was said ends. Another node queues it within a retry time after its time.
func TestLifeF13(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	id := given(t, m[0], "q", "RETRY", 3, "REPLICATE", 3)
	began := time.Now()
	require.Equal(t, int64(1), m[0].Do("NACK", id, "DELAY", 4, "REASON", "later").Int())
	for _, s := range m[1:] {
		shows(t, s, id, "reason", "later")
	}
	m[0].Kill()
	v := m[1].Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
	require.NotEmpty(t, v.Elems)
	assert.Equal(t, id, v.Elems[0].Elems[1].Str)
	took := time.Since(began).Seconds()
	assert.Greater(t, took, 4.0)
	assert.Less(t, took, 4.0+3+3)
}

// F9: tries at two nodes add up, at all of them.
func TestLifeF9(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m[0].Do("QCONFIG", "SET", "q", "MAXNACKS", 4)
	id := added(t, m[0].Dial(), "q", "b", 5000, "RETRY", 300, "REPLICATE", 3)
	for i := range 4 {
		s := m[i%2]
		v := s.Do("GETJOB", "TIMEOUT", 10_000, "WORKER", fmt.Sprint("w", i), "FROM", "q")
		require.NotEmpty(t, v.Elems, "at node %d", i%2)
		require.Equal(t, id, v.Elems[0].Elems[1].Str)
		require.Equal(t, int64(1), s.Do("NACK", id, "REASON", fmt.Sprint("failure ", i)).Int())
	}
	for _, s := range m {
		shows(t, s, id, "why", "max-nacks")
		v := s.Do("SHOW", id)
		assert.Equal(t, []string{"q:dead", "q", "failure 3", "w3"}, []string{v.Field("queue").Str, v.Field("from").Str, v.Field("reason").Str, v.Field("failed-by").Str})
		assert.InDelta(t, 7*86400, v.Field("ttl").Int(), 60)
	}
	assert.Equal(t, int64(1), m[2].Do("QLEN", "q:dead", "MESH").Field("len").Int(), "there once")
	v := m[2].Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q:dead")
	require.NotEmpty(t, v.Elems)
	require.Equal(t, int64(1), m[2].Do("ACKJOB", id).Int())
	m.awaitNoJobs(t)
}

// F9 with a partition: both sides deliver the job and give it back. When they have met, the count is the sum, at all nodes.
func TestLifeF9Apart(t *testing.T) {
	t.Parallel()
	w := namespaces(t, 3)
	m := w.mesh
	require.Equal(t, "OK", m[0].Do("QCONFIG", "SET", "q", "MAXNACKS", 6, "MAXDELIVERIES", 100).Str)
	awaitSetting(t, "q", "maxdeliveries", "100", m...)
	id := added(t, m[0].Dial(), "q", "b", 5000, "RETRY", 3, "REPLICATE", 3)
	fails := func(s *harness.Server) {
		t.Helper()
		v := s.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
		require.NotEmpty(t, v.Elems)
		require.Equal(t, id, v.Elems[0].Elems[1].Str)
		require.Equal(t, int64(1), s.Do("NACK", id).Int())
	}
	w.move(1, 2)
	for i, others := range []string{"1", "1", "0"} {
		harness.Await(t, 20*time.Second, "both sides to miss each other", func() bool { return m[i].Info("jobmesh", "jobmesh_reachable_nodes") == others })
	}
	fails(m[0])
	fails(m[2]) // when its retry time is over there
	fails(m[2])
	fails(m[0])
	for _, s := range []*harness.Server{m[0], m[2]} {
		assert.Equal(t, int64(2), s.Do("SHOW", id).Field("deliveries").Int(), "what this side knows")
	}
	w.move(0, 2)
	w.await(t, 3)
	fails(m[0])
	for _, s := range m {
		harness.Await(t, 20*time.Second, "the sum to be known", func() bool { return s.Do("SHOW", id).Field("deliveries").Int() == 5 })
		assert.Equal(t, "q", s.Do("SHOW", id).Field("queue").Str)
	}
	fails(m[0])
	for _, s := range m {
		shows(t, s, id, "why", "max-nacks")
		assert.Equal(t, int64(6), s.Do("SHOW", id).Field("deliveries").Int())
	}
}

// D3 over a mesh: each holder makes a job that expires a dead letter, and one of them queues it.
func TestLifeD3(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for round := range 3 {
		id := added(t, m[round].Dial(), "q", "b", 5000, "REPLICATE", 3, "RETRY", 1, "TTL", 2, "ONEXPIRE", "dead")
		for _, s := range m {
			shows(t, s, id, "why", "expired")
			assert.Equal(t, []string{"q:dead", "q"}, []string{s.Do("SHOW", id).Field("queue").Str, s.Do("SHOW", id).Field("from").Str})
		}
		awaitCount(t, m[1], "q:dead", "len", 1)
		for range 5 { // as long as holders might think of queueing it, too
			time.Sleep(300 * time.Millisecond)
			require.Equal(t, int64(1), m[2].Do("QLEN", "q:dead", "MESH").Field("len").Int(), "queued once")
		}
		v := m[(round+1)%3].Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q:dead")
		require.NotEmpty(t, v.Elems)
		require.Equal(t, id, v.Elems[0].Elems[1].Str)
		require.Equal(t, int64(1), m[(round+1)%3].Do("ACKJOB", id).Int())
		m.awaitNoJobs(t)
	}
}

// D9: a job is revived while a node with a copy is away. That node's copy follows, and the job is in one queue.
func TestLifeD9(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes")
	id := given(t, m[0], "q", "RETRY", 300, "REPLICATE", 3)
	require.Equal(t, int64(1), m[0].Do("NACK", id, "DEAD", "REASON", "x").Int())
	for _, s := range m {
		shows(t, s, id, "queue", "q:dead")
	}
	mark := m[2].AwaitLogged()
	m[2].Kill()
	require.Equal(t, int64(1), m[0].Do("MOVEJOB", id).Int())
	shows(t, m[1], id, "queue", "q")
	m[2].Restart()
	m.await(t, 3)
	v := m[2].Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
	require.NotEmpty(t, v.Elems)
	require.Equal(t, id, v.Elems[0].Elems[1].Str)
	require.Equal(t, int64(2), m[2].Do("ACKJOB", id, mark).Int())
	m.awaitNoJobs(t)
	for _, s := range m {
		assert.Equal(t, int64(0), s.Do("QLEN", "q:dead").Int())
		assert.Equal(t, int64(0), s.Do("QLEN", "q").Int())
	}
}

// D10: at a node that only has a copy a job that waits elsewhere can be moved, and a dead one revived.
func TestLifeD10(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	waits := added(t, m[0].Dial(), "q", "b", 5000, "RETRY", 300, "REPLICATE", 2)
	require.Equal(t, int64(1), m[1].Do("MOVEJOB", waits, "TO", "other").Int())
	awaitCount(t, m[0], "other", "len", 1)
	v := m[0].Do("GETJOB", "TIMEOUT", 5000, "FROM", "other")
	require.NotEmpty(t, v.Elems)
	require.Equal(t, int64(1), m[0].Do("NACK", waits, "DEAD").Int())
	shows(t, m[1], waits, "queue", "other:dead")
	require.Equal(t, int64(1), m[1].Do("MOVEJOB", waits).Int())
	shows(t, m[0], waits, "queue", "other")
	v = m[0].Do("GETJOB", "TIMEOUT", 10_000, "FROM", "other")
	require.NotEmpty(t, v.Elems)
	require.Equal(t, int64(1), m[0].Do("ACKJOB", waits).Int())
	m.awaitNoJobs(t)
}

// D12: dead letters of all nodes live again by one command, which names the node that is away.
func TestLifeD12(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for i, s := range m {
		for range 5 {
			id := given(t, s, fmt.Sprint("q", i), "RETRY", 300, "REPLICATE", 1, "DEAD", "graves")
			require.Equal(t, int64(1), s.Do("NACK", id, "DEAD").Int())
		}
	}
	away := m.id(2)
	m[2].Kill()
	v := m[1].Do("MOVEJOB", "FROM", "graves", "COUNT", 4, "MESH")
	assert.Equal(t, int64(8), v.Field("moved").Int())
	assert.Equal(t, []string{away}, v.Field("unanswered").Strings())
	v = m[1].Do("MOVEJOB", "FROM", "graves", "TO", "one", "MESH", "TIMEOUT", 5000)
	assert.Equal(t, int64(2), v.Field("moved").Int())
	assert.Equal(t, int64(4), m[0].Do("QLEN", "q0").Int())
	assert.Equal(t, int64(1), m[0].Do("QLEN", "one").Int())
}

// D6 over a mesh: a unique dead letter that is revived waits for its key, and is queued when it has it.
func TestLifeD6(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	unique := []any{"UNIQUE", "until-processed", "KEY", "k", "RETRY", 300, "REPLICATE", 2}
	dead := given(t, m[0], "q", unique...)
	require.Equal(t, int64(1), m[0].Do("NACK", dead, "DEAD").Int())
	m.free(t, "k")
	other := given(t, m[1], "q", unique...)
	if v := m[0].Do("MOVEJOB", dead); v.Kind == '-' {
		assert.True(t, v.Err("DUPLICATE "+other), "%v", v)
		require.Equal(t, int64(1), m[1].Do("ACKJOB", other).Int())
		harness.Await(t, 20*time.Second, "its key to be free", func() bool { return m[0].Do("MOVEJOB", dead).Is(1) })
	} else {
		require.Equal(t, int64(0), m[0].Do("QLEN", "q").Int(), "it waits for its key")
		require.Equal(t, int64(1), m[1].Do("ACKJOB", other).Int())
	}
	v := m[0].Do("GETJOB", "TIMEOUT", 30_000, "FROM", "q")
	require.NotEmpty(t, v.Elems)
	require.Equal(t, dead, v.Elems[0].Elems[1].Str)
	assert.True(t, m[2].Do(append([]any{"ADDJOB", "q", "b", 5000}, unique...)...).Null, "it has the lock")
	require.Equal(t, int64(1), m[0].Do("ACKJOB", dead).Int())
	m.awaitNoJobs(t)
}
