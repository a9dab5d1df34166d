package single

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// The mesh's secret is in no answer to a pattern, and CONFIG REWRITE keeps it.
func TestSecretIsHidden(t *testing.T) {
	const secret = "the secret of all nodes"
	s := harness.Start(t, harness.WithConfig(`jobmesh.cluster-secret "`+secret+`"`))
	c := s.Dial()
	for _, pattern := range []string{"*", "jobmesh.*", "jobmesh.cluster*", "*secret"} {
		assert.NotContains(t, c.Do("CONFIG", "GET", pattern).Strings(), secret, pattern)
	}
	assert.NotEmpty(t, c.Do("CONFIG", "GET", "jobmesh.cluster-*").Elems)
	for range 2 {
		require.Equal(t, "OK", s.Do("CONFIG", "REWRITE").Str)
		s.Stop()
		s.Restart()
		assert.Equal(t, []string{"jobmesh.cluster-secret", secret}, s.Do("CONFIG", "GET", "jobmesh.cluster-secret").Strings())
	}
}
