package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// Z3: a node that was away for a part of a pause has it when it is back, and is free at the same time as the others. So it is if the node
// that made the pause ends meanwhile.
func TestLifeZ3(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"": false, "its maker ends": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := start(t, 3, "appendonly yes")
			maker := m.id(0)
			m[2].Stop()
			began := time.Now()
			require.Equal(t, "out", m[0].Do("PAUSE", "q", "out", "BCAST", "FOR", 6).Str)
			m[2].Restart()
			c := m[2].Dial()
			harness.Await(t, 5*time.Second, "the pause to be known", func() bool { return c.Do("PAUSE", "q", "STATE").Str == "out" })
			added(t, c, "q", "b", 5000, "REPLICATE", 1)
			if lost {
				m[0].Kill()
			}
			v := c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
			require.NotEmpty(t, v.Elems)
			assert.InDelta(t, 6, time.Since(began).Seconds(), 2)
			if lost {
				harness.Await(t, 5*time.Second, "the pause to end by the other clock", func() bool { return m[1].Do("PAUSE", "q", "STATE").Str == "none" })
				for _, s := range m[1:] { // else the pause is remembered for an hour: its maker may be back
					require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", maker).Str)
				}
			}
			for i, s := range m {
				if lost && i == 0 {
					continue
				}
				c := s.Dial()
				harness.Await(t, 30*time.Second, "the pause to be forgotten", func() bool {
					return c.Do("PAUSE", "q", "STATE").Str == "none" && strings.Contains(c.Do("JOBMESH", "CLUSTER", "INFO").Str, "settings_entries:0\r\n")
				})
			}
		})
	}
}
