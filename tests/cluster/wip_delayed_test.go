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

// meshDelayed lists the delayed jobs of a mesh's queue, as [id node due …], by pages of size jobs.
func meshDelayed(t *testing.T, s *harness.Server, queue string, size int) (list []string, unanswered []string) {
	t.Helper()
	cursor := "0"
	last := int64(0)
	for {
		v := s.Do("WIP", queue, "DELAYED", "COUNT", size, "CURSOR", cursor, "MESH", "TIMEOUT", 5000)
		for _, j := range v.Field("jobs").Elems {
			require.Len(t, j.Elems, 5)
			list = append(list, fmt.Sprint(j.Elems[0].Str, " ", j.Elems[4].Str, " ", j.Elems[1].Int()))
			require.GreaterOrEqual(t, j.Elems[1].Int(), last)
			last = j.Elems[1].Int()
		}
		unanswered = v.Field("unanswered").Strings()
		if cursor = v.Field("cursor").Str; cursor == "0" {
			return list, unanswered
		}
	}
}

// O5: the list of the mesh is the same at each node, with each job once. It lacks the jobs of a node that is down, which is named.
func TestLifeO5(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	now := time.Now().Unix()
	own := map[string]string{} // by job: its node
	for i := range 60 {
		s := m[i%3]
		id := added(t, s.Dial(), "q", "b", 5000, "AT", now+1000+int64(i*37%60/2), "RETRY", 600, "REPLICATE", 1+i/3%3)
		own[id] = s.Do("JOBMESH", "CLUSTER", "MYID").Str
	}
	for i, s := range m { // put off where it was fetched
		c := s.Dial()
		id := added(t, c, "p", "b", 5000, "RETRY", 600, "REPLICATE", 3)
		require.Equal(t, id, fetched(t, m[(i+1)%3].Dial(), "p"))
		require.Equal(t, int64(1), m[(i+1)%3].Do("NACK", id, "DELAY", 500+i).Int())
		harness.Await(t, 20*time.Second, "the job to be put off at one node", func() bool {
			list, _ := meshDelayed(t, s, "p", 10)
			return len(list) == i+1
		})
	}
	whole, unanswered := meshDelayed(t, m[0], "q", 1000)
	assert.Empty(t, unanswered)
	require.Len(t, whole, 60)
	seen := map[string]bool{}
	for _, line := range whole {
		var id, node string
		var at int64
		_, err := fmt.Sscan(line, &id, &node, &at)
		require.NoError(t, err)
		assert.Equal(t, own[id], node)
		seen[id] = true
	}
	require.Len(t, seen, 60)
	for _, s := range m {
		for _, size := range []int{1, 7, 1000} {
			list, _ := meshDelayed(t, s, "q", size)
			assert.Equal(t, whole, list)
		}
		for _, d := range []string{"q", "p"} {
			list, _ := meshDelayed(t, s, d, 3)
			assert.Equal(t, s.Do("QSTAT", d, "MESH").Field("delayed").Int(), int64(len(list)))
		}
	}
	away := m[2].Do("JOBMESH", "CLUSTER", "MYID").Str
	m[2].Kill()
	rest := slices.DeleteFunc(slices.Clone(whole), func(line string) bool { return own[line[:40]] == away })
	require.Len(t, rest, 40)
	for _, s := range m[:2] {
		list, unanswered := meshDelayed(t, s, "q", 7)
		assert.Equal(t, rest, list)
		assert.Equal(t, []string{away}, unanswered)
	}
}
