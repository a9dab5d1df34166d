package single

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// The server crashes while it logs a script. The script's beginning must not come back together with
// what is logged later, as it does on servers that leave an open MULTI in the log.
func TestTornLog(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always", "auto-aof-rewrite-percentage 0"))
	const three = "for i = 1, 3 do redis.call('ADDJOB', 'q', ARGV[1] .. i, 0) end"
	jobs := func() (n int) {
		fmt.Sscanf(s.Do("JOBMESH", "INFO", "jobs").Str, "# Jobs\r\nregistered_jobs:%d", &n)
		return n
	}
	again := func() {
		s.Kill()
		s.Restart()
	}
	add(t, s.Dial(), "q", "first", 0)
	s.Do("EVAL", three, 0, "torn ")
	s.Kill()
	logs, err := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*.incr.aof"))
	require.NoError(t, err)
	require.Len(t, logs, 1)
	log, err := os.Stat(logs[0])
	require.NoError(t, err)
	require.NoError(t, os.Truncate(logs[0], log.Size()-20))
	s.Restart()
	assert.Equal(t, 1, jobs())
	assert.NotContains(t, s.Appended(), "MULTI")
	s.Do("EVAL", three, 0, "whole ")
	assert.Equal(t, 4, jobs())
	again()
	assert.Equal(t, 4, jobs())
	again()
	assert.Equal(t, 4, jobs())
	assert.LessOrEqual(t, strings.Count(s.Log(), "the AOF ended in the middle of a transaction"), 1, "only once")
}
