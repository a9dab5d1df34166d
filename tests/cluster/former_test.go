package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/bus"
	"jobmesh/module/wire"
	"jobmesh/tests/harness"
)

// former adds a node of a former release to a server's mesh: one that understands no more than these features, and answers nothing. heard
// returns the kinds of all messages that it has been sent, in their order.
func former(t *testing.T, s *harness.Server, features uint32) (id bus.NodeID, heard func() []wire.Kind) {
	t.Helper()
	id = bus.NodeID{7}
	wake := make(chan struct{}, 1)
	b, err := bus.Open(bus.Config{Listen: "127.0.0.1:0", ID: id, Features: features, Wake: func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}, Log: func(_, _ string) {}})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	b.Meet("127.0.0.1:" + ownBus(s))
	var kinds []wire.Kind
	heard = func() []wire.Kind {
		select {
		case <-wake:
			b.Drain(func(e bus.Event) {
				if m, ok := e.(*bus.Messages); ok {
					for text := range m.All() {
						kinds = append(kinds, wire.Kind(text[0]))
					}
				}
			})
		default:
		}
		return kinds
	}
	harness.Await(t, 20*time.Second, "the former node to be known", func() bool {
		return slices.Contains(heard(), wire.Heartbeat) && strings.Contains(s.Do("JOBMESH", "CLUSTER", "NODES").Str, id.String())
	})
	return id, heard
}

// S10: a node of a former release is in the mesh. It would deliver without regard to limits, so these are refused, with its ID.
func TestLifeS10(t *testing.T) {
	t.Parallel()
	s := start(t, 1)[0]
	former, _ := former(t, s, 127)
	for _, refused := range [][]any{
		{"QCONFIG", "SET", "q", "CONCURRENCY", 2},
		{"QCONFIG", "SET", "q", "RATE", 2, 1},
		{"LOCK.ACQUIRE", "n", "o", 1000, "LIMIT", 2},
		{"ADDJOB", "q", "b", 1000, "UNIQUE", "until-processed", "LIMIT", 2},
		{"ADDJOBS", "q", 1000, "UNIQUE", "during-processing", "LIMIT", 2, "BODIES", "b"},
		{"QCONFIG", "SET", "q", "LIMIT", 2},
		{"CRON", "SET", "e", "EVERY", 60, "JOB", "q", "b"},
	} {
		v := s.Do(refused...)
		assert.True(t, v.Err("ERR node "+former.String()+" has a version without this"), "%v: %v", refused, v)
	}
	require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", former.String()).Str)
	assert.Equal(t, "OK", s.Do("QCONFIG", "SET", "q", "CONCURRENCY", 2).Str)
}

// O6: a node of the release before this one isn't asked for its delayed jobs, and the reply names it.
func TestLifeO6(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	id, heard := former(t, m[0], 65535)
	job := added(t, m[0].Dial(), "q", "b", 5000, "DELAY", 600, "REPLICATE", 2)
	for range 3 {
		v := m[0].Do("WIP", "q", "DELAYED", "MESH")
		require.Len(t, v.Field("jobs").Elems, 1, "%v", v)
		assert.Equal(t, job, v.Field("jobs").Elems[0].Elems[0].Str)
		assert.Equal(t, []string{id.String()}, v.Field("unanswered").Strings())
	}
	m[0].Do("WIP", "q", "MESH", "TIMEOUT", 1) // this question it is asked, behind all others
	harness.Await(t, 20*time.Second, "a question that it knows", func() bool { return slices.Contains(heard(), wire.AskWork) })
	assert.NotContains(t, heard(), wire.AskDelayed)
	harness.Await(t, 20*time.Second, "the heartbeats to go on", func() bool {
		all := heard()
		return slices.Contains(all[slices.Index(all, wire.AskWork):], wire.Heartbeat)
	})
}

// A node of a former release isn't told what is published, and not counted. The others are.
func TestPublishWithAFormerNode(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	_, heard := former(t, m[0], 32767)
	c := m[1].Dial()
	c.Send("SUBSCRIBE", "chan")
	require.Equal(t, "subscribe", c.Receive().Elems[0].Str)
	for _, text := range []string{"one", "two"} {
		require.Equal(t, ":2", m[0].Do("JOBMESH", "PUBLISH", "chan", text).String())
		assert.Equal(t, []string{"message", "chan", text}, c.Receive().Strings())
	}
	m[0].Do("WIP", "q", "MESH", "TIMEOUT", 1)
	harness.Await(t, 20*time.Second, "a question that it knows", func() bool { return slices.Contains(heard(), wire.AskWork) })
	assert.NotContains(t, heard(), wire.Publish)
}
