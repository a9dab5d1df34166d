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
