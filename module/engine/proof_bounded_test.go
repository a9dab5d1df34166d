package engine_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// Very many jobs with names wait for the answer of a node that stands still. Their questions end bit by bit.
func TestProofNamesEndBitByBit(t *testing.T) {
	const many = 100_000
	n, _, _ := node(dawn)
	other := wire.NodeID{1, 2, 3}
	n.Mesh().Add(other, "b:1")
	n.SetFeatures(other, engine.Features{Names: true})
	n.Mesh().Up(other, "b:1", true)
	n.SetEvents(engine.AllEvents, 0)
	for i := range many {
		_, err := n.AddNamed(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Name: fmt.Append(nil, i), Replicate: 1, Retry: 60, TTL: 600, Default: true})
		require.NoError(t, err)
		n.Effects()
	}
	longest, most := time.Duration(0), 0
	for ms := int64(500); ms < 1500; ms++ {
		n.SetNow(dawn + ms)
		began := time.Now()
		n.Tick()
		took := time.Since(began)
		told := 0
		for _, e := range n.Effects() {
			if e.Kind == engine.Happened {
				told++
			}
		}
		longest, most = max(longest, took), max(most, told)
	}
	t.Logf("the longest tick took %v, and told %d events", longest, most)
	assert.Less(t, most, 5000, "events that one tick tells")
}

// The settings change while clients wait in very many queues that are limited.
func TestProofLimitsChange(t *testing.T) {
	const many = 100_000
	n, _, _ := node(dawn)
	limits := func(count int64) *engine.Policies {
		l := engine.Limits{Rate: engine.Rate{Count: count, Seconds: 86_400}}
		return &engine.Policies{Generation: uint32(count), Rated: true, LimitsOf: func([]byte) engine.Limits { return l }}
	}
	n.SetPolicies(limits(1))
	for i := range many {
		q := fmt.Append(nil, "q", i)
		for range 2 {
			_, err := n.Wait([][]byte{q}, i)
			require.NoError(t, err)
		}
		for range 2 {
			_, _, err := n.AddJob(&engine.Add{Queue: q, Body: []byte("b"), Replicate: 1, Retry: 60, TTL: 600})
			require.NoError(t, err)
		}
		n.Effects()
	}
	for ms := int64(1); ms < 3000; ms++ {
		n.SetNow(dawn + ms)
		n.Tick()
		n.Effects()
	}
	t.Log(n.LimitedQueues(), "queues are limited")
	n.SetPolicies(limits(2))
	n.PoliciesChanged()
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.LockOSThread()
	cpu := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(1, &u) // of this thread
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	var took []time.Duration
	for ms := int64(3000); ms < 3300; ms++ {
		n.SetNow(dawn + ms)
		began := cpu()
		n.Tick()
		took = append(took, cpu()-began)
		n.Effects()
	}
	t.Logf("the first ticks took %v, the others %v at most", took[:3], slices.Max(took[3:]))
}
