package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A node counts the jobs that it has just handed over: it mustn't be forgotten while they are on their way. A node that is asked for a job by a client of
// another one hands it over, an at-most-once job as well.
func TestJobsOnTheirWayAreCounted(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	handing := func() string { return m[0].Info("jobmesh", "jobmesh_jobs_handing_over") }
	require.Equal(t, "0", handing())
	for _, retry := range []int{60, 0} {
		id := addUnique(t, m[0], "q", "b", "RETRY", retry, "REPLICATE", 1, "DELAY", 1)
		require.Equal(t, "OK", m[0].Do("JOBMESH", "CLUSTER", "LEAVING", "yes").Str)
		require.Equal(t, id, fetch(t, m[1], "q"))
		if retry > 0 {
			assert.Equal(t, "1", handing())
			assert.Equal(t, "0", m[0].Info("jobmesh", "jobmesh_jobs_waiting"))
		}
		harness.Await(t, 10*time.Second, "the job to have arrived for certain", func() bool { return handing() == "0" })
		require.Equal(t, int64(1), m[1].Do("ACKJOB", id).Int())
		require.Equal(t, "OK", m[0].Do("JOBMESH", "CLUSTER", "LEAVING", "no").Str)
	}
}
