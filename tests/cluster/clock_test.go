package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A node whose clock is set by an hour, either way, goes on sending heartbeats: the
// others never suspect it, and it takes part in all.
func TestANodesClockIsSet(t *testing.T) {
	const patience = "jobmesh.cluster-node-timeout 3000" // three heartbeats: machines that run tests are slow at times
	m := mesh{node(t, patience), node(t, patience)}
	stepped := harness.Start(t, harness.WithClock(t), harness.WithConfig("jobmesh.cluster-port "+busPort(t), patience))
	m = append(m, stepped)
	meet(t, m[1], m[0])
	meet(t, stepped, m[0])
	m.await(t, 3)
	id := stepped.Do("JOBMESH", "CLUSTER", "MYID").Str
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		stepped.SetClock(ahead)
		// Longer than the node timeout, and the suspicion of all.
		harness.During(7*time.Second, func() {
			for line := range strings.SplitSeq(m[0].Do("JOBMESH", "CLUSTER", "NODES").Str, "\n") {
				if strings.HasPrefix(line, id) {
					require.NotContains(t, line, "fail", "%v", ahead)
				}
			}
		})
		for _, s := range m {
			v := s.Do("ADDJOB", "q", "b", 3000, "REPLICATE", 3)
			require.Equal(t, byte('+'), v.Kind, "%v", v)
			assert.Equal(t, byte(':'), s.Do("LOCK.ACQUIRE", "n", s.Addr(), 1000, "WAIT", 5000).Kind)
		}
	}
}
