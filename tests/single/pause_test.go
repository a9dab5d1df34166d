package single

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A pause with BCAST holds for a queue's name, also if it begins or ends while the queue lies in another database, and if the server is
// started again meanwhile. A pause without BCAST that was made before the queue went stays until the next PAUSE with BCAST.
func TestPausesOfQueuesThatAreAway(t *testing.T) {
	ways := map[string]struct{ away, back [][]any }{
		"SWAPDB": {[][]any{{"SWAPDB", 0, 1}}, [][]any{{"SWAPDB", 0, 1}}},
		"MOVE":   {[][]any{{"MOVE", "q", 1}}, [][]any{{"DEL", "q"}, {"SELECT", 1}, {"MOVE", "q", 0}, {"SELECT", 0}}},
	}
	for name, tc := range map[string]struct {
		before, meanwhile []any
		is                string
		lasts             bool // over a restart
	}{
		"begins":               {nil, []any{"PAUSE", "q", "OUT", "BCAST"}, "out", true},
		"changes":              {[]any{"PAUSE", "q", "IN", "BCAST"}, []any{"PAUSE", "q", "OUT", "BCAST"}, "out", true},
		"ends":                 {[]any{"PAUSE", "q", "OUT", "BCAST"}, []any{"PAUSE", "q", "NONE", "BCAST"}, "none", true},
		"of one node":          {[]any{"PAUSE", "q", "OUT"}, []any{"PAUSE", "other", "NONE", "BCAST"}, "out", false},
		"of one node, ends":    {[]any{"PAUSE", "q", "OUT"}, []any{"PAUSE", "q", "NONE", "BCAST"}, "none", true},
		"of one node, of all":  {[]any{"PAUSE", "q", "IN"}, []any{"PAUSE", "q", "OUT", "BCAST"}, "out", true},
		"stays what it was":    {[]any{"PAUSE", "q", "OUT", "BCAST"}, []any{"PING"}, "out", true},
		"none, and none began": {nil, []any{"PAUSE", "q", "NONE", "BCAST"}, "none", true},
	} {
		for way, w := range ways {
			for _, mode := range []string{"", "rdb", "aof", "aof-rewritten", "aof-without-preamble"} {
				if mode != "" && !tc.lasts {
					continue
				}
				t.Run(name+" "+way+" "+mode, func(t *testing.T) {
					t.Parallel()
					s := harness.Start(t, saving(mode))
					c := s.Dial()
					do := func(commands ...[]any) {
						for _, command := range commands {
							if command != nil {
								require.NotEqual(t, byte('-'), c.Do(command...).Kind, "%v", command)
							}
						}
					}
					id := add(t, c, "q", "b", 0)
					do(tc.before)
					do(w.away...)
					do(tc.meanwhile)
					if mode != "" {
						comeBack(t, s, mode)
						c = s.Dial()
					}
					do(w.back...)
					assert.Equal(t, tc.is, c.Do("PAUSE", "q", "STATE").Str)
					if tc.is == "none" {
						assert.Equal(t, id, get(t, c, "q"))
					} else {
						assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").Null)
					}
				})
			}
		}
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
