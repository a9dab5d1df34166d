package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// priority is that of a job, as SHOW has answered it.
func priority(job harness.Value) int64 {
	if f := job.Field("priority"); f.Kind != 0 {
		return f.Int()
	}
	return 0
}

// P7: a node without jobs is given the most urgent one.
func TestLifeP7(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	c := m[0].Dial()
	added(t, c, "q", "plain", 5000, "REPLICATE", 1)
	for i, body := range []string{"least", "most", "middle"} {
		added(t, c, "q", body, 5000, "REPLICATE", 1+i%2, "PRIORITY", []int{-1, 9, 4}[i])
	}
	for _, want := range []string{"most", "middle", "plain", "least"} {
		v := m[1].Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q")
		require.NotEmpty(t, v.Elems)
		assert.Equal(t, want, v.Elems[0].Elems[2].Str)
	}
}

// MOVEJOB changes the priority at all holders, also at a node that only has a copy. A node that takes the job over has the new one.
func TestPrioritiesOfMovedJobs(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	c := m[0].Dial()
	first := added(t, c, "q", "first", 5000, "REPLICATE", 3, "RETRY", 2)
	second := added(t, c, "q", "second", 5000, "REPLICATE", 3, "RETRY", 2, "PRIORITY", 3)
	third := added(t, c, "q", "third", 5000, "REPLICATE", 3, "RETRY", 2)
	require.Equal(t, int64(1), c.Do("MOVEJOB", first, "TO", "q", "PRIORITY", 5).Int())
	require.Equal(t, int64(1), m[1].Do("MOVEJOB", second, "TO", "q", "PRIORITY", 0).Int(), "where it is no more than a copy")
	require.Equal(t, int64(1), m[2].Do("MOVEJOB", "FROM", "q", "TO", "p", "PRIORITY", 7, "COUNT", 1, "MESH").Field("moved").Int())
	for _, s := range m {
		c := s.Dial()
		harness.Await(t, 10*time.Second, "the priorities", func() bool {
			a, b := c.Do("SHOW", first), c.Do("SHOW", second)
			return a.Field("queue").Str == "p" && priority(a) == 7 && priority(b) == 0
		})
	}
	require.Equal(t, int64(1), m[1].Do("MOVEJOB", third, "TO", "q", "PRIORITY", 1).Int())
	harness.Await(t, 10*time.Second, "the third one's priority", func() bool { return priority(c.Do("SHOW", third)) == 1 })
	m[0].Kill()
	for _, want := range []string{first, third, second} {
		queue := "q"
		if want == first {
			queue = "p"
		}
		v := m[2].Do("GETJOB", "TIMEOUT", 20_000, "FROM", queue)
		require.NotEmpty(t, v.Elems)
		if want == first {
			require.Equal(t, want, v.Elems[0].Elems[1].Str)
		}
		require.Equal(t, int64(1), m[2].Do("ACKJOB", v.Elems[0].Elems[1].Str).Int())
	}
}

// A unique job keeps in a mesh, too, what ADDJOB says of its priority and failures, where the job is added when it has its key.
func TestUniqueJobsOfAMeshKeepWhatADDJOBSays(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	c := m[0].Dial()
	added(t, c, "q", "plain", 5000)
	id := added(t, c, "q", "unique", 5000, "UNIQUE", "until-processed", "KEY", "k", "PRIORITY", 3, "MAXNACKS", 1, "DEAD", "graves")
	assert.EqualValues(t, 3, priority(c.Do("SHOW", id)))
	v := c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q")
	require.NotEmpty(t, v.Elems)
	require.Equal(t, id, v.Elems[0].Elems[1].Str)
	require.Equal(t, int64(1), c.Do("NACK", id).Int())
	assert.Equal(t, []string{"graves", "max-nacks"}, []string{c.Do("SHOW", id).Field("queue").Str, c.Do("SHOW", id).Field("why").Str})
	other := c.Do("ADDJOBS", "q", 5000, "UNIQUE", "until-processed", "PRIORITY", -4, "PAIRS", "a", "b").Elems[0].Str
	assert.EqualValues(t, -4, priority(c.Do("SHOW", other)))
}
