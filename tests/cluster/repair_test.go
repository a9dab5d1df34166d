package cluster

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// repaired waits until each job is held by so many nodes, of those that can be asked.
func (m mesh) repaired(t *testing.T, ids []string, copies int) {
	t.Helper()
	conns := m.dial()
	harness.Await(t, 90*time.Second, fmt.Sprintf("%d jobs to have %d copies", len(ids), copies), func() bool {
		have := 0
		for _, c := range conns {
			for _, id := range ids {
				c.Later("SHOW", id)
			}
			for range ids {
				if v := c.Receive(); !v.Null && v.Field("state").Str != "acked" {
					have++
				}
			}
		}
		return have >= copies*len(ids)
	})
}

// infoNumber is a number of INFO jobmesh.
func infoNumber(t *testing.T, s *harness.Server, field string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s.Info("jobmesh", field), 10, 64)
	require.NoError(t, err)
	return n
}

// Delayed jobs outlive three nodes, one after the other, though each has two copies: lost copies are made again, when a node is
// forgotten, or is away for as long as repair-after says.
func TestLostCopiesAreMadeAgain(t *testing.T) {
	t.Parallel()
	m := start(t, 5, "jobmesh.repair-after 2")
	var ids []string
	for i := range 60 {
		ids = append(ids, added(t, m[i%5].Dial(), "q", "b", 20_000, "REPLICATE", 2, "DELAY", 400, "RETRY", 600))
	}
	once := added(t, m[4].Dial(), "once", "b", 20_000, "RETRY", 0, "REPLICATE", 1, "DELAY", 400)
	for i := range 2 {
		id := m.id(0)
		m[0].Kill()
		rest := m[1:]
		if i == 0 {
			for _, s := range rest {
				require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", id).Str)
			}
		}
		m = rest
		m.repaired(t, ids, 2)
	}
	m[0].Kill()
	m = m[1:]
	m.repaired(t, ids, 1)
	repaired := int64(0)
	for _, s := range m {
		repaired += infoNumber(t, s, "jobmesh_copies_repaired")
		if s != m[len(m)-1] {
			assert.True(t, s.Do("SHOW", once).Null, "an at-most-once job gets no second copy")
		}
	}
	assert.Positive(t, repaired)
}

// With repair-after 0 nothing is made again. Without a node to give a copy to, INFO says how many jobs lack copies.
func TestCopiesThatCannotBeMadeAgain(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for _, s := range m {
		require.Equal(t, "OK", s.Do("CONFIG", "SET", "jobmesh.repair-after", 0).Str)
	}
	var ids []string
	for i := range 20 {
		ids = append(ids, added(t, m[i%2].Dial(), "q", "b", 20_000, "REPLICATE", 3, "DELAY", 400, "RETRY", 600))
	}
	gone := m.id(2)
	m[2].Kill()
	for _, s := range m[:2] {
		require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", gone).Str)
	}
	lacking := func() (sum int64) {
		for _, s := range m[:2] {
			sum += infoNumber(t, s, "jobmesh_jobs_lacking_copies")
		}
		return sum
	}
	assert.Zero(t, lacking())
	for _, s := range m[:2] {
		require.Equal(t, "OK", s.Do("CONFIG", "SET", "jobmesh.repair-after", 1).Str)
	}
	harness.Await(t, 150*time.Second, "the lack of copies to be seen", func() bool { return lacking() >= 20 })
	for _, s := range m[:2] {
		assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_copies_repaired"))
	}
	other := node(t)
	meet(t, other, m[0])
	m[2] = other
	m.await(t, 3)
	m.repaired(t, ids, 3)
}

// A copy that is made again is of a delayed job: the node that gets it leaves the job to others for as long as the delay lasts, also if it
// got the copy from a node that only held one itself, and was started again since.
func TestARepairedJobKeepsItsDelay(t *testing.T) {
	t.Parallel()
	m := start(t, 4, "jobmesh.repair-after 2", "appendonly yes", "appendfsync always")
	ids := make([]string, 30)
	for i := range ids {
		ids[i] = added(t, m[0].Dial(), "q", "b", 20_000, "REPLICATE", 2, "DELAY", 1000, "RETRY", 5)
	}
	for range 2 {
		gone := m.id(0)
		m[0].Kill()
		m = m[1:]
		for _, s := range m {
			require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", gone).Str)
		}
		m.repaired(t, ids, 2)
		for _, s := range m {
			s.Kill()
			s.Restart()
		}
		m.await(t, len(m))
		for i, s := range m {
			for _, id := range ids {
				if v := s.Do("SHOW", id); !v.Null {
					assert.Greater(t, v.Field("next-requeue-within").Int(), int64(800_000), "node %d: %v", i, v)
				}
			}
		}
	}
}
