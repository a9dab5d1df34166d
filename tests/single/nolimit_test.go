package single

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"jobmesh/tests/harness"
)

// The log says once that maxmemory is unset, and not where it is set.
func TestLogTellsOfNoMaxmemory(t *testing.T) {
	const word = "maxmemory is unset"
	s := harness.Start(t)
	harness.Await(t, 10*time.Second, "a word in the log", func() bool { return strings.Contains(s.Log(), word) })
	s.Do("PING")
	assert.Equal(t, 1, strings.Count(s.Log(), word))
	limited := harness.Start(t, harness.WithConfig("maxmemory 1gb"))
	limited.AwaitService()
	assert.NotContains(t, limited.Log(), word)
}
