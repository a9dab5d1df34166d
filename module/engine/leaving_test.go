package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
)

// A tick of a leaving node looks at a part of the table, even if no job in it can be left to another node.
func TestANodeWithVeryManyJobsInAnotherDatabaseLeaves(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, k, _ := node(now)
	for range 50_000 {
		lasting(t, n, "away", engine.Members{})
		n.Effects()
	}
	move(t, n, k, n.Queue([]byte("away")), 1)
	_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Delay: 3600, TTL: 86400})
	require.NoError(t, err)
	n.Effects()
	n.SetLeaving(true)
	passes := 0
	for wake := now + 1; wake == now+1; passes++ {
		now++
		n.SetNow(now)
		wake = n.Tick()
		n.Effects()
	}
	assert.Greater(t, passes, 20)
	assert.Less(t, passes, 200)
}
