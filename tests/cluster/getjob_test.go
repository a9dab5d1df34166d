package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A client has its job for as long as it said, though the node that gave it dies meanwhile, and WORKING may be said at any holder.
func TestLeaseOutlivesTheNode(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	c := m[0].Dial()
	const lease = 8
	id := added(t, c, "q", "b", 5000, "REPLICATE", 3, "RETRY", 2)
	unique := added(t, c, "u", "b", 5000, "REPLICATE", 3, "RETRY", 2, "UNIQUE", "during-processing")
	for _, queue := range []string{"q", "u"} {
		v := c.Do("GETJOB", "LEASE", lease, "WITHINFO", "TIMEOUT", 10_000, "FROM", queue)
		require.NotEmpty(t, v.Elems)
		assert.Equal(t, int64(lease), v.Elems[0].Elems[3].Field("retry").Int())
	}
	began := time.Now()
	for _, s := range m[1:] {
		harness.Await(t, 5*time.Second, "the node to hear of the leases", func() bool {
			return s.Do("SHOW", id).Field("next-requeue-within").Int() > 4000 && s.Do("SHOW", unique).Field("next-requeue-within").Int() > 4000
		})
	}
	m[0].Kill()
	b, d := m[1].Dial(), m[2].Dial()
	assert.True(t, b.Do("GETJOB", "TIMEOUT", 4500, "FROM", "q", "u").NullArray(), "the job's retry time is over, and its lease isn't")
	assert.Equal(t, int64(lease), d.Do("WORKING", unique).Int())
	v := b.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
	require.NotEmpty(t, v.Elems)
	assert.InDelta(t, lease, time.Since(began).Seconds(), 3)
	require.Equal(t, id, v.Elems[0].Elems[1].Str)
	require.Equal(t, int64(1), b.Do("ACKJOB", id).Int())
	began = time.Now()
	assert.Equal(t, int64(lease), d.Do("WORKING", unique).Int())
	v = b.Do("GETJOB", "TIMEOUT", 30_000, "FROM", "u")
	require.NotEmpty(t, v.Elems)
	assert.InDelta(t, lease, time.Since(began).Seconds(), 4)
	assert.Equal(t, int64(2), b.Do("WORKING", unique).Int(), "the next delivery has the job's retry time")
	require.Equal(t, int64(1), b.Do("ACKJOB", unique).Int())
}

// A job that is given back with another body, at whatever holder, has it at all of them: also when the node where the client got it dies.
func TestNackWithABodyOverAMesh(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	c := m[0].Dial()
	id := added(t, c, "q", "old", 5000, "REPLICATE", 3, "RETRY", 3, "UNIQUE", "until-processed")
	v := c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q")
	require.NotEmpty(t, v.Elems)
	require.Equal(t, int64(1), m[1].Do("NACK", id, "BODY", "new").Int())
	bodies := func(want string) {
		t.Helper()
		for _, s := range m {
			harness.Await(t, 10*time.Second, "the new body", func() bool { return s.Do("SHOW", id).Field("body").Str == want })
			assert.Equal(t, "old", s.Do("SHOW", id).Field("key").Str)
		}
	}
	bodies("new")
	v = c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q")
	require.NotEmpty(t, v.Elems)
	assert.Equal(t, []string{"q", id, "new"}, v.Elems[0].Strings())
	require.Equal(t, int64(1), c.Do("NACK", id, "DELAY", 2, "BODY", "newest").Int())
	bodies("newest")
	assert.True(t, c.Do("ADDJOB", "q", "old", 5000, "UNIQUE", "until-processed").Null)
	m[0].Kill()
	v = m[2].Do("GETJOB", "TIMEOUT", 30_000, "FROM", "q")
	require.NotEmpty(t, v.Elems)
	assert.Equal(t, []string{"q", id, "newest"}, v.Elems[0].Strings())
	require.Equal(t, int64(1), m[2].Do("ACKJOB", id).Int())
}

// A body that doesn't fit a message between nodes is refused where other nodes have the job.
func TestNackWithABodyTooBigForOthers(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	c := m[0].Dial()
	here := added(t, c, "q", "here", 5000, "REPLICATE", 1, "RETRY", 100)
	both := added(t, c, "q", "both", 5000, "REPLICATE", 2, "RETRY", 100)
	require.Len(t, c.Do("GETJOB", "COUNT", 2, "FROM", "q").Elems, 2)
	big := make([]byte, 66_977_793)
	v := c.Do("NACK", both, "BODY", big)
	assert.True(t, v.Err("TOOBIG the body and the queue's name have more than 66977792 bytes"), "%.100s", v.Str)
	assert.Equal(t, "both", c.Do("SHOW", both).Field("body").Str)
	assert.Equal(t, int64(0), c.Do("SHOW", both).Field("nacks").Int())
	assert.Equal(t, int64(1), c.Do("NACK", here, "BODY", big).Int())
	assert.Len(t, c.Do("SHOW", here).Field("body").Str, len(big))
}

// The lapses of all nodes count together.
func TestMaxLapsesOverAMesh(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	id := added(t, m[0].Dial(), "q", "b", 5000, "REPLICATE", 2, "RETRY", 3, "MAXLAPSES", 3)
	for i := range 3 {
		v := m[i%2].Do("GETJOB", "TIMEOUT", 30_000, "FROM", "q")
		require.NotEmpty(t, v.Elems)
		require.Equal(t, id, v.Elems[0].Elems[1].Str)
		if i == 1 {
			require.Equal(t, int64(1), m[1].Do("NACK", id).Int(), "an orderly end")
			v = m[1].Do("GETJOB", "TIMEOUT", 30_000, "FROM", "q")
			require.NotEmpty(t, v.Elems)
		}
	}
	for _, s := range m {
		shows(t, s, id, "why", "max-lapses")
	}
}

// A job that is given back unstarted, at whatever holder, has no delivery more at any of them.
func TestUnstartedOverAMesh(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	id := added(t, m[0].Dial(), "q", "b", 5000, "REPLICATE", 2, "RETRY", 60, "MAXDELIVERIES", 1)
	for i := range 4 {
		v := m[i%2].Do("GETJOB", "TIMEOUT", 30_000, "WITHINFO", "FROM", "q")
		require.NotEmpty(t, v.Elems)
		assert.Equal(t, int64(0), v.Elems[0].Elems[3].Field("deliveries").Int())
		require.Equal(t, int64(1), m[(i+i/2)%2].Do("ENQUEUE", id, "UNSTARTED").Int())
		for _, s := range m {
			harness.Await(t, 10*time.Second, "the counts", func() bool {
				v := s.Do("SHOW", id)
				return v.Field("deliveries").Is(0) && v.Field("additional-deliveries").Is(0)
			})
		}
	}
	v := m[0].Do("GETJOB", "TIMEOUT", 30_000, "FROM", "q")
	require.NotEmpty(t, v.Elems)
	require.Equal(t, int64(1), m[0].Do("NACK", id).Int())
	for _, s := range m {
		shows(t, s, id, "why", "max-deliveries")
	}
}

// The node where a job waits gives it another time, also if a node is asked that only has a copy. A unique dead letter that lives again keeps its time
// until it has its key.
func TestMoveJobAtOverAMesh(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	c := m[0].Dial()
	id := added(t, c, "q", "b", 5000, "REPLICATE", 3, "RETRY", 2)
	at := time.Now().Unix() + 5
	require.Equal(t, int64(1), m[1].Do("MOVEJOB", id, "AT", at).Int(), "where it is no more than a copy")
	dead := added(t, c, "u", "b", 5000, "REPLICATE", 2, "UNIQUE", "until-processed")
	v := c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "u")
	require.NotEmpty(t, v.Elems)
	require.Equal(t, int64(1), c.Do("NACK", dead, "DEAD").Int())
	require.Equal(t, int64(1), c.Do("MOVEJOB", dead, "TO", "u", "AT", at).Int())
	v = m[2].Do("GETJOB", "TIMEOUT", 30_000, "FROM", "q")
	require.NotEmpty(t, v.Elems)
	assert.InDelta(t, at, time.Now().Unix(), 2)
	require.Equal(t, int64(1), m[2].Do("ACKJOB", id).Int())
	v = m[1].Do("GETJOB", "TIMEOUT", 30_000, "FROM", "u")
	require.NotEmpty(t, v.Elems)
	assert.GreaterOrEqual(t, time.Now().Unix(), at)
	require.Equal(t, int64(1), m[1].Do("ACKJOB", dead).Int())
}
