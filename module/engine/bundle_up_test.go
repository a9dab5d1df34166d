package engine_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// A node that is connected while very many jobs of ADDJOBS wait for their copies holds the main thread up no longer than any other event.
func TestANodeComesWhileVeryManyJobsWaitInBundles(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := int64(1_700_000_000_000)
	n, _, _ := steadyNode(now, func() int64 { return now })
	for i := range 2 {
		p := wire.NodeID{0: 'b', 5: byte(i)}
		n.Mesh().Up(p, fmt.Sprintf("10.0.0.%d:1", i), true)
		n.SetFeatures(p, engine.Features{Batches: true})
	}
	n.Effects()
	bodies := make([][]byte, engine.MaxBatch)
	for i := range bodies {
		bodies[i] = []byte("b")
	}
	for range 10 { // ten clients, within a few ms
		_, wait, err := n.AddJobs(&engine.Add{Queue: []byte("q"), Replicate: 3, Retry: 60, TTL: 3600, Timeout: 5000, CanWait: true}, bodies, nil)
		require.NoError(t, err)
		require.True(t, wait)
		n.Effects()
	}
	began := threadTime(t)
	n.Mesh().Up(wire.NodeID{0: 'c'}, "10.0.0.9:1", true)
	took := threadTime(t) - began
	effects := len(n.Effects())
	t.Logf("%d jobs: %v, %d effects", 10*engine.MaxBatch, took, effects)
	assert.Less(t, took, 5*time.Millisecond)
}
