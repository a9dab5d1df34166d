package sim

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// uniqueHistories are kinds of trouble for unique jobs.
var uniqueHistories = map[string]Config{
	"put off": {PerTenSeconds: 1600, Nodes: 3, Jobs: 5, Seconds: 180, AckShare: 0.7, Replicate: 3, Fsync: EverySec, Uniques: &Uniques{Jobs: 150, Keys: 3, PutOff: 0.7, Leases: true, Drift: LockDrift, MaxLease: 30_000}, Faults: Faults{
		MinDelay: 1, MaxDelay: 60, Crashes: 120, Stops: 30, Blackouts: 40, Pauses: 60, Resets: 60,
	}},
	"terms": {PerTenSeconds: 1600, Nodes: 4, Jobs: 20, Seconds: 180, AckShare: 0.7, Once: 0.1, Replicate: 3, Terms: 0.4, Gone: 0.1, Uniques: &Uniques{Jobs: 200, Keys: 4, PutOff: 0.2, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 40, Crashes: 60, Stops: 20, Pauses: 60, Resets: 60, Partitions: 30, CutSecs: 30,
	}},
	"calm": {PerTenSeconds: 300, Nodes: 3, Jobs: 20, Seconds: 90, AckShare: 1, Replicate: 2, Uniques: &Uniques{Jobs: 200, Keys: 4, Leases: true, Drift: LockDrift}, Faults: Faults{MinDelay: 1, MaxDelay: 5}},
	// Many jobs want one key, and the nodes are far apart: votes could be split for ever.
	"one key": {PerTenSeconds: 60_000, Nodes: 7, Jobs: 5, Seconds: 180, AckShare: 1, Replicate: 1, Uniques: &Uniques{Jobs: 300, Keys: 1, PutOff: 1}, Faults: Faults{MinDelay: 1, MaxDelay: 250}},
	"slow once": {PerTenSeconds: 6000, Nodes: 5, Jobs: 5, Seconds: 180, AckShare: 0.9, Once: 0.5, Replicate: 2, Uniques: &Uniques{Jobs: 300, Keys: 2, Leases: true}, Faults: Faults{
		MinDelay: 1, MaxDelay: 400, Crashes: 150, Resets: 60,
	}},
	"put off for long": {PerTenSeconds: 300, Nodes: 3, Jobs: 5, Seconds: 180, AckShare: 1, Loyal: true, Swift: true, Replicate: 3, MostExtra: 0.001, Uniques: &Uniques{Jobs: 150, Keys: 3, PutOff: 1, Long: true, Drift: LockDrift}, Faults: Faults{MinDelay: 1, MaxDelay: 5}},
	"put off for long in trouble": {PerTenSeconds: 600, Nodes: 5, Jobs: 10, Seconds: 180, AckShare: 0.9, Replicate: 3, Uniques: &Uniques{Jobs: 150, Keys: 6, PutOff: 0.7, Long: true, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 60, Resets: 60, Partitions: 60, CutSecs: 30,
	}},
	"once": {PerTenSeconds: 300, Nodes: 3, Jobs: 20, Seconds: 90, AckShare: 0.7, Once: 0.6, Replicate: 2, Uniques: &Uniques{Jobs: 200, Keys: 4, Leases: true, Drift: LockDrift}, Faults: Faults{MinDelay: 1, MaxDelay: 5}},
	"once in trouble": {PerTenSeconds: 600, Nodes: 3, Jobs: 10, Seconds: 180, AckShare: 0.8, Once: 0.6, Replicate: 2, Uniques: &Uniques{Jobs: 150, Keys: 4, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 60, Resets: 90,
	}},
	"deaths": {PerTenSeconds: 400, Nodes: 3, Jobs: 10, Seconds: 90, AckShare: 0.6, Replicate: 3, Uniques: &Uniques{Jobs: 100, Keys: 3, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20,
	}},
	"crashes": {PerTenSeconds: 600, Nodes: 3, Jobs: 10, Seconds: 180, AckShare: 0.9, Replicate: 3, Uniques: &Uniques{Jobs: 150, Keys: 4, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 90, Resets: 90,
	}},
	"partitions": {PerTenSeconds: 600, Nodes: 5, Jobs: 10, Seconds: 180, AckShare: 0.9, Replicate: 3, Uniques: &Uniques{Jobs: 150, Keys: 4, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Partitions: 90, CutSecs: 30, Resets: 30,
	}},
	"pauses": {PerTenSeconds: 600, Nodes: 3, Jobs: 10, Seconds: 180, AckShare: 0.9, Replicate: 2, Uniques: &Uniques{Jobs: 150, Keys: 4, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Pauses: 120,
	}},
	"lossy": {PerTenSeconds: 600, Nodes: 3, Jobs: 10, Seconds: 120, AckShare: 0.9, Replicate: 2, Uniques: &Uniques{Jobs: 100, Keys: 3, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Loss: 0.03,
	}},
	"wiped": {PerTenSeconds: 600, Nodes: 5, Jobs: 10, Seconds: 180, AckShare: 0.9, Wiped: 2, Replicate: 3, Uniques: &Uniques{Jobs: 120, Keys: 4, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Wipes: 60, Crashes: 30,
	}},
	"moves": {PerTenSeconds: 600, Nodes: 4, Jobs: 20, Seconds: 150, AckShare: 0.9, Replicate: 2, Uniques: &Uniques{Jobs: 120, Keys: 4, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Pressure: 100, Leaving: 60, PauseQueue: 100, Resets: 60,
	}},
	"any": {PerTenSeconds: 600, Nodes: 3, Jobs: 10, Seconds: 180, AckShare: 0.9, Replicate: 2, Uniques: &Uniques{Jobs: 150, Keys: 4, Any: 0.5, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Partitions: 90, CutSecs: 30, Crashes: 30,
	}},
	"deleted": {PerTenSeconds: 800, Nodes: 3, Jobs: 10, Seconds: 150, AckShare: 0.8, Replicate: 3, Uniques: &Uniques{Jobs: 150, Keys: 4, Deleted: 0.3, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Resets: 90, Crashes: 30,
	}},
	"harsh": {PerTenSeconds: 800, Nodes: 3, Jobs: 10, Seconds: 150, AckShare: 0.8, Replicate: 3, Uniques: &Uniques{Jobs: 200, Keys: 4, Harsh: true, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Resets: 60, Crashes: 30, Partitions: 30, CutSecs: 30,
	}},
	"renamed": {PerTenSeconds: 800, Nodes: 3, Jobs: 10, Seconds: 150, AckShare: 0.9, Replicate: 2, Uniques: &Uniques{Jobs: 150, Keys: 4, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Renames: 300, Resets: 30, Crashes: 30,
	}},
	"blackouts": {PerTenSeconds: 600, Nodes: 3, Jobs: 10, Seconds: 180, AckShare: 0.9, Replicate: 3, Uniques: &Uniques{Jobs: 150, Keys: 4, Leases: true, Drift: LockDrift, MaxLease: 30_000}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Blackouts: 40, Stops: 60, Crashes: 20, Rewrites: 120, NodesLate: true,
	}},
	"everysec": {PerTenSeconds: 600, Nodes: 3, Jobs: 10, Seconds: 180, AckShare: 0.9, Replicate: 3, Fsync: EverySec, Uniques: &Uniques{Jobs: 150, Keys: 4, Leases: true, Drift: LockDrift, MaxLease: 30_000}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 60, Stops: 30, Blackouts: 20, Rewrites: 60, Resets: 30,
	}},
	"steps": {PerTenSeconds: 600, Nodes: 3, Jobs: 10, Seconds: 180, AckShare: 0.9, Replicate: 2, Uniques: &Uniques{Jobs: 150, Keys: 4, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Steps: 60, StepMS: 30_000, Crashes: 30, Resets: 30,
	}},
	"joins": {PerTenSeconds: 800, Nodes: 3, Jobs: 10, Seconds: 180, AckShare: 0.9, Replicate: 3, Uniques: &Uniques{Jobs: 150, Keys: 4, Leases: true, Drift: LockDrift, MaxLease: 30_000}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Joins: 60, MaxNodes: 7, Partitions: 60, CutSecs: 40, NodesLate: true,
	}},
	"promotions": {PerTenSeconds: 800, Nodes: 3, Jobs: 10, Seconds: 180, AckShare: 0.9, Replicate: 2, Uniques: &Uniques{Jobs: 150, Keys: 4, Leases: true, Drift: LockDrift, MaxLease: 30_000}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Promotions: 60, Crashes: 20, Resets: 30,
	}},
	"failing": {PerTenSeconds: 800, Nodes: 3, Jobs: 10, Seconds: 150, AckShare: 0.5, Replicate: 3, Failing: 0.7, Uniques: &Uniques{Jobs: 200, Keys: 4, Harsh: true, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 20, Resets: 30, Pauses: 20, Partitions: 20,
	}},
	"under a limit": {PerTenSeconds: 1200, Nodes: 3, Jobs: 40, Seconds: 150, AckShare: 0.9, Replicate: 2, AtOnce: 2, Uniques: &Uniques{Jobs: 120, Keys: 6, Leases: true}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 10, Resets: 30, Partitions: 10, Pauses: 10,
	}},
	"rated": {PerTenSeconds: 1200, Nodes: 3, Jobs: 40, Seconds: 150, AckShare: 0.9, Replicate: 2, Rate: engine.Rate{Count: 20, Seconds: 2}, Uniques: &Uniques{Jobs: 120, Keys: 6, Leases: true}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 10, Resets: 30, Partitions: 10, Pauses: 10,
	}},
	"everything": {PerTenSeconds: 800, Nodes: 5, Jobs: 20, Seconds: 240, AckShare: 0.8, Wiped: 2, Replicate: 3, Fast: 0.05, Uniques: &Uniques{Jobs: 150, Keys: 5, Any: 0.1, Leases: true, Harsh: true, Deleted: 0.05, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 100, Loss: 0.01, Crashes: 30, Wipes: 10, Resets: 60, Partitions: 30, CutSecs: 40, Pauses: 20, Pressure: 20, Leaving: 10, PauseQueue: 20, Renames: 20,
	}},
}

// limitHistories are unique jobs of which several may have a key at a time.
var limitHistories = map[string]Config{
	"calm": {PerTenSeconds: 600, Nodes: 3, Jobs: 20, Seconds: 90, AckShare: 1, Replicate: 2, Uniques: &Uniques{Jobs: 300, Keys: 2, Limit: 3, Leases: true, Drift: LockDrift}, Faults: Faults{MinDelay: 1, MaxDelay: 5}},
	"trouble": {PerTenSeconds: 1600, Nodes: 3, Jobs: 10, Seconds: 180, AckShare: 0.8, Once: 0.2, Replicate: 3, Uniques: &Uniques{Jobs: 250, Keys: 2, Limit: 3, PutOff: 0.2, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 40, Crashes: 90, Resets: 60, Pauses: 60,
	}},
	"partitions": {PerTenSeconds: 1600, Nodes: 5, Jobs: 10, Seconds: 180, AckShare: 0.9, Replicate: 3, Uniques: &Uniques{Jobs: 250, Keys: 2, Limit: 4, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Loss: 0.01, Partitions: 90, CutSecs: 30, Resets: 30,
	}},
	"everysec": {PerTenSeconds: 1600, Nodes: 3, Jobs: 10, Seconds: 180, AckShare: 0.9, Replicate: 3, Fsync: EverySec, Uniques: &Uniques{Jobs: 250, Keys: 2, Limit: 3, Deleted: 0.1, Leases: true, Drift: LockDrift, MaxLease: 30_000}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 60, Stops: 30, Blackouts: 20, Rewrites: 60, Resets: 30,
	}},
	"moves": {PerTenSeconds: 1600, Nodes: 4, Jobs: 20, Seconds: 150, AckShare: 0.7, Replicate: 2, Failing: 0.3, Uniques: &Uniques{Jobs: 200, Keys: 3, Limit: 3, Harsh: true, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Pressure: 100, Leaving: 60, PauseQueue: 100, Resets: 60, Renames: 60,
	}},
	"promotions": {PerTenSeconds: 1600, Nodes: 3, Jobs: 10, Seconds: 180, AckShare: 0.9, Replicate: 2, Uniques: &Uniques{Jobs: 250, Keys: 2, Limit: 3, Leases: true, Drift: LockDrift, MaxLease: 30_000}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Promotions: 60, Crashes: 20, Resets: 30,
	}},
	"everything": {PerTenSeconds: 1600, Nodes: 5, Jobs: 20, Seconds: 240, AckShare: 0.8, Wiped: 2, Replicate: 3, Fast: 0.05, Uniques: &Uniques{Jobs: 250, Keys: 3, Limit: 4, Any: 0.1, Leases: true, Harsh: true, Deleted: 0.05, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 100, Loss: 0.01, Crashes: 30, Wipes: 10, Resets: 60, Partitions: 30, CutSecs: 40, Pauses: 20, Pressure: 20, Leaving: 10, PauseQueue: 20, Renames: 20,
	}},
}

func TestLimitHistories(t *testing.T) { playAll(t, limitHistories, 6) }

func TestUniqueHistories(t *testing.T) { playAll(t, uniqueHistories, 6) }

// bodyHistories are kinds of trouble for jobs whose bodies are replaced at any node.
var bodyHistories = map[string]Config{
	"calm": {PerTenSeconds: 2000, Nodes: 3, Jobs: 5, Seconds: 90, AckShare: 0.9, Replicate: 3, Uniques: &Uniques{Jobs: 300, Keys: 4, Bodies: true, Leases: true, Drift: LockDrift}, Faults: Faults{MinDelay: 1, MaxDelay: 20}},
	"crashes": {PerTenSeconds: 2000, Nodes: 3, Jobs: 5, Seconds: 150, AckShare: 0.9, Replicate: 3, Uniques: &Uniques{Jobs: 300, Keys: 4, Bodies: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 30, Crashes: 90, Resets: 60, Pauses: 60,
	}},
	"everysec": {PerTenSeconds: 2000, Nodes: 3, Jobs: 5, Seconds: 150, AckShare: 0.9, Replicate: 3, Fsync: EverySec, Uniques: &Uniques{Jobs: 300, Keys: 4, Bodies: true, Drift: LockDrift, MaxLease: 30_000}, Faults: Faults{
		MinDelay: 1, MaxDelay: 30, Crashes: 60, Stops: 30, Blackouts: 20,
	}},
	"partitions": {PerTenSeconds: 2000, Nodes: 5, Jobs: 5, Seconds: 150, AckShare: 0.9, Replicate: 3, Uniques: &Uniques{Jobs: 300, Keys: 4, Bodies: true, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Partitions: 60, CutSecs: 30, Resets: 60, Loss: 0.005,
	}},
	"upgrade": {PerTenSeconds: 2000, Nodes: 4, Former: 2, Jobs: 5, Seconds: 120, AckShare: 0.9, Replicate: 3, Uniques: &Uniques{Jobs: 250, Keys: 3, Bodies: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 30, Resets: 60, Partitions: 30, CutSecs: 20,
	}},
	"moves": {PerTenSeconds: 2000, Nodes: 4, Jobs: 5, Seconds: 120, AckShare: 0.9, Replicate: 2, Uniques: &Uniques{Jobs: 250, Keys: 4, Bodies: true, Leases: true, Drift: LockDrift}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Pressure: 100, Leaving: 60, PauseQueue: 60, Promotions: 30,
	}},
}

func TestBodyHistories(t *testing.T) { playAll(t, bodyHistories, 6) }

// If clocks are set, a run may end early by a hundredth of its own time, however long
// the next run of its key is to be.
func TestARunEndsEarlyByAShareOfItsOwnTime(t *testing.T) {
	taken := func(c Config, first, next int64, after int64) bool {
		s := newSim(1, c)
		s.uniques = &uniqueWorld{running: map[string][]*working{}}
		for i, runTTL := range []int64{first, next} {
			u := &uniqueJob{Unique: engine.Unique{Strategy: store.UniqueDuring, RunTTL: runTTL}, run: "q k"}
			s.uniqueTaken(s.nodes[0], &job{id: store.ID{byte(i)}, unique: u})
			s.now += after
		}
		return len(s.failures) == 0
	}
	even, set := Config{Nodes: 1}, Config{Nodes: 1, Faults: Faults{Steps: 1, StepMS: 1}}
	assert.True(t, taken(set, 0, 1, retrySecs*990))
	assert.False(t, taken(set, 0, 1, retrySecs*990-1))
	assert.True(t, taken(set, 1, 0, 990))
	assert.False(t, taken(set, 1, 0, 989))
	assert.True(t, taken(even, 0, 1, retrySecs*1000))
	assert.False(t, taken(even, 0, 1, retrySecs*1000-1))
}
