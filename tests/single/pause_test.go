package single

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A pause with BCAST holds for a queue's name, also if it begins or ends while the queue lies in another database, and if the server is
// started again meanwhile. A pause without BCAST that was made before the queue went stays until the next PAUSE with BCAST.
func TestPausesOfQueuesThatAreAway(t *testing.T) {
	ways := map[string]struct {
		away, back string // for one queue
		all        bool   // for all queues at once
	}{
		"SWAPDB": {"SWAPDB 0 1", "SWAPDB 0 1", true},
		"MOVE":   {"MOVE %s 1", "DEL %[1]s; SELECT 1; MOVE %[1]s 0; SELECT 0", false},
	}
	cases := []struct {
		name, before, meanwhile, is string
		lasts                       bool // over a restart
	}{
		{"begins", "", "PAUSE %s OUT BCAST", "out", true},
		{"changes", "PAUSE %s IN BCAST", "PAUSE %s OUT BCAST", "out", true},
		{"ends", "PAUSE %s OUT BCAST", "PAUSE %s NONE BCAST", "none", true},
		{"of one node", "PAUSE %s OUT", "PAUSE other NONE BCAST", "out", false},
		{"of one node, ends", "PAUSE %s OUT", "PAUSE %s NONE BCAST", "none", true},
		{"of one node, of all", "PAUSE %s IN", "PAUSE %s OUT BCAST", "out", true},
		{"stays what it was", "PAUSE %s OUT BCAST", "PING", "out", true},
		{"none, and none began", "", "PAUSE %s NONE BCAST", "none", true},
	}
	for way, w := range ways {
		t.Run(way, func(t *testing.T) {
			inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
				queue := func(i int) string { return fmt.Sprint("q", i) }
				do := func(commands string, i int) {
					for command := range strings.SplitSeq(commands, "; ") {
						if strings.Contains(command, "%") {
							command = fmt.Sprintf(command, queue(i))
						}
						if command != "" {
							require.NotEqual(t, byte('-'), c.Do(split(command)...).Kind, "%s", command)
						}
					}
				}
				travel := func(commands string) {
					for i := range cases {
						if i == 0 || !w.all {
							do(commands, i)
						}
					}
				}
				var ids []string
				for i, tc := range cases {
					ids = append(ids, add(t, c, queue(i), "b", 0))
					do(tc.before, i)
				}
				travel(w.away)
				for i, tc := range cases {
					do(tc.meanwhile, i)
				}
				if mode != "" {
					comeBack(t, s, mode)
					c = s.Dial()
				}
				travel(w.back)
				for i, tc := range cases {
					if mode != "" && !tc.lasts {
						continue
					}
					assert.Equal(t, tc.is, c.Do("PAUSE", queue(i), "STATE").Str, tc.name)
					if tc.is == "none" {
						assert.Equal(t, ids[i], get(t, c, queue(i)), tc.name)
					} else {
						assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", queue(i)).Null, tc.name)
					}
				}
			}, "", "rdb", "aof", "aof-rewritten", "aof-without-preamble")
		})
	}
}

// A queue goes after a pause of all nodes has ended, while another queue of that name is away: its own pause stays.
func TestAPauseOfAQueueThatGoesLater(t *testing.T) {
	c := harness.Start(t).Dial()
	add(t, c, "q", "first", 0)
	moveKey(t, c, "q", 0, 1)
	require.Equal(t, "none", c.Do("PAUSE", "q", "NONE", "BCAST").Str)
	add(t, c, "q", "second", 0)
	require.Equal(t, "out", c.Do("PAUSE", "q", "OUT").Str)
	moveKey(t, c, "q", 0, 2)
	moveKey(t, c, "q", 1, 0)
	assert.Equal(t, "none", c.Do("PAUSE", "q", "STATE").Str)
	c.Do("DEL", "q")
	moveKey(t, c, "q", 2, 0)
	assert.Equal(t, "out", c.Do("PAUSE", "q", "STATE").Str)
}

// A log has a pause of all nodes, a queue that was made during it, and the end of the pause. It is over for who reads that log.
func TestAPauseThatEndsInTheLog(t *testing.T) {
	s := harness.Start(t, saving("aof"))
	r := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	require.Equal(t, "OK", r.Do("REPLICAOF", "127.0.0.1", s.Port).Str)
	r.AwaitSync()
	require.Equal(t, "out", c.Do("PAUSE", "q", "OUT", "BCAST").Str)
	c.Do("DEL", "q")
	id := add(t, c, "q", "b", 0)
	require.Equal(t, "none", c.Do("PAUSE", "q", "NONE", "BCAST").Str)
	r.AwaitStream(s)
	s.Stop()
	s.Restart()
	assert.Equal(t, "none", s.Do("PAUSE", "q", "STATE").Str)
	assert.Equal(t, id, get(t, s.Dial(), "q"))
	s.Stop()
	require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
	assert.Equal(t, "none", r.Do("PAUSE", "q", "STATE").Str)
}
