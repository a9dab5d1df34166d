package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/bus"
	"jobmesh/tests/harness"
)

// S10: a node of a former release is in the mesh. It would deliver without regard to limits, so these are refused, with its ID.
func TestLifeS10(t *testing.T) {
	t.Parallel()
	s := start(t, 1)[0]
	former := bus.NodeID{7}
	wake := make(chan struct{}, 1)
	b, err := bus.Open(bus.Config{Listen: "127.0.0.1:0", ID: former, Features: 127, Wake: func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}, Log: func(_, _ string) {}})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	b.Meet("127.0.0.1:" + ownBus(s))
	harness.Await(t, 20*time.Second, "the former node to be known", func() bool {
		select {
		case <-wake:
			b.Drain(func(bus.Event) {})
		default:
		}
		return known(s) == "2"
	})
	for _, refused := range [][]any{
		{"QCONFIG", "SET", "q", "CONCURRENCY", 2},
		{"QCONFIG", "SET", "q", "RATE", 2, 1},
		{"LOCK.ACQUIRE", "n", "o", 1000, "LIMIT", 2},
		{"ADDJOB", "q", "b", 1000, "UNIQUE", "until-processed", "LIMIT", 2},
		{"ADDJOBS", "q", 1000, "UNIQUE", "during-processing", "LIMIT", 2, "BODIES", "b"},
		{"QCONFIG", "SET", "q", "LIMIT", 2},
	} {
		v := s.Do(refused...)
		assert.True(t, v.Err("ERR node "+former.String()+" has a version without this"), "%v: %v", refused, v)
	}
	require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", former.String()).Str)
	assert.Equal(t, "OK", s.Do("QCONFIG", "SET", "q", "CONCURRENCY", 2).Str)
}
