package sim

import (
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/wire"
)

var full = flag.Bool("sim.full", false, "measure with 10,000 jobs a mesh")

// A job's cost grows with the number of its copies, not with the number of
// nodes. A mesh is played faster than it would run.
func TestScale(t *testing.T) {
	jobs, seconds := 200, int64(10)
	if *full {
		jobs, seconds = 10_000, 60
	}
	perJob := map[[2]int]float64{}
	for _, copies := range []int{1, 3} {
		for _, nodes := range []int{3, 10, 30, 100} {
			if nodes == 100 && !*full && copies == 1 {
				continue
			}
			began := time.Now()
			r, err := Run(7, Config{
				Nodes: nodes, Jobs: jobs, Seconds: seconds, Replicate: copies, AckShare: 1, Loyal: true, Brief: true,
				Faults: Faults{MinDelay: 1, MaxDelay: 3},
			})
			took := time.Since(began)
			require.NoError(t, err)
			played := time.Duration(r.Simulated) * time.Millisecond
			asked := r.Messages - int64(r.PerJob*float64(r.Added)+0.5)
			t.Logf("%d copies, %3d nodes, %d jobs: %.1f messages and %.0f bytes a job; a second at a node, %.1f heartbeats and %.1f questions; at most %.0f KiB at a node; %v in %v (%.0f times as fast)",
				copies, nodes, r.Added, r.PerJob, float64(r.Bytes)/float64(r.Added), float64(r.Beats)/played.Seconds()/float64(nodes),
				float64(asked)/played.Seconds()/float64(nodes), float64(r.LargestNode)/1024, played, took.Round(time.Millisecond), played.Seconds()/took.Seconds())
			perJob[[2]int{copies, nodes}] = r.PerJob
			if *full {
				assert.Less(t, took, played, "slower than real time")
			}
		}
	}
	assert.InDelta(t, perJob[[2]int{3, 10}], perJob[[2]int{3, 100}], perJob[[2]int{3, 10}]*0.5)
}

// Clients that wait at all nodes, for jobs that don't come, cost few messages, however many nodes there are.
func TestIdleClients(t *testing.T) {
	sizes := []int{3, 10, 30}
	if *full {
		sizes = append(sizes, 100, 300)
	}
	for _, nodes := range sizes {
		s := newSim(7, Config{Nodes: nodes, Faults: Faults{MinDelay: 1, MaxDelay: 3}})
		s.work()
		s.run(s.now + 15_000)
		asked, beats, began := s.Kinds[wire.NeedJobs], s.Beats, s.now
		s.run(s.now + 90_000)
		seconds := float64(s.now-began) / 1000 * float64(nodes)
		demand := float64(s.Kinds[wire.NeedJobs]-asked) / seconds
		t.Logf("%d nodes: a second at a node, %.1f messages for jobs, and %.1f heartbeats", nodes, demand, float64(s.Beats-beats)/seconds)
		if nodes <= 100 {
			assert.Less(t, demand, 10.0)
		}
	}
}
