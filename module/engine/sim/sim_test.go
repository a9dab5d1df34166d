package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
)

var (
	seeds = flag.Int("sim.seeds", 0, "random seeds of each history, too")
	more  = flag.Int("sim.more", 0, "further fixed seeds of each history")
	first = flag.Uint64("sim.seed", 0, "play this seed alone, with a trace")
)

// A history needs little memory, and makes much garbage.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

// histories are kinds of trouble.
var histories = map[string]Config{
	"calm":       {PerTenSeconds: 75, Nodes: 3, Jobs: 200, Seconds: 60, AckShare: 1, Once: 0.2, Swift: true, MostExtra: 0.02, Faults: Faults{MinDelay: 1, MaxDelay: 5}},
	"names calm": {PerTenSeconds: 100, Nodes: 4, Jobs: 200, Named: 1, Seconds: 60, AckShare: 1, Async: 0.1, Swift: true, MostExtra: 0.001, Faults: Faults{MinDelay: 1, MaxDelay: 5}},
	"names delayed": {PerTenSeconds: 100, Nodes: 4, Jobs: 200, Named: 1, DelaySecs: 4, Seconds: 60, AckShare: 1, Replicate: 2, Swift: true, Faults: Faults{
		MinDelay: 1, MaxDelay: 5, Leaving: 300,
	}},
	"names": {PerTenSeconds: 400, Nodes: 5, Jobs: 150, Named: 0.7, Seconds: 180, AckShare: 0.8, Async: 0.1, Wiped: 1, Replicate: 3, Faults: Faults{
		MinDelay: 1, MaxDelay: 100, Crashes: 60, Wipes: 20, Resets: 60, Pauses: 20, Leaving: 20, Pressure: 20, PauseQueue: 20, Loss: 0.01, Duplicate: 0.01, Reorder: true, Skew: 500,
	}},
	"names apart": {PerTenSeconds: 400, Nodes: 5, Jobs: 150, Named: 0.7, Seconds: 180, AckShare: 0.9, Results: 0.3, Replicate: 2, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Partitions: 60, Resets: 20, Crashes: 20, Promotions: 20, Stops: 20,
	}},
	"asked": {PerTenSeconds: 150, Nodes: 4, Jobs: 200, Seconds: 120, AckShare: 1, Once: 0.5, Replicate: 2, Faults: Faults{
		MinDelay: 1, MaxDelay: 5, Pressure: 120, Leaving: 60, Pauses: 60, PauseQueue: 120,
	}},
	"deaths":  {PerTenSeconds: 150, Nodes: 5, Jobs: 300, Seconds: 90, AckShare: 0.5, Replicate: 3, Swift: true, MostExtra: 0.05, Faults: Faults{MinDelay: 1, MaxDelay: 4}},
	"backlog": {PerTenSeconds: 90, Nodes: 5, Jobs: 200, Seconds: 60, AckShare: 0.9, Replicate: 3, Lazy: true, Swift: true, MostExtra: 0.1, Faults: Faults{MinDelay: 1, MaxDelay: 5}},
	"elsewhere": {PerTenSeconds: 90, Nodes: 4, Jobs: 200, Seconds: 120, AckShare: 1, Once: 1, Replicate: 1, Patient: true, Faults: Faults{
		MinDelay: 100, MaxDelay: 1500, Pressure: 400, Leaving: 300, Crashes: 400, Resets: 400,
	}},
	"external": {PerTenSeconds: 120, Nodes: 5, Jobs: 200, Seconds: 90, AckShare: 1, Once: 0.3, Replicate: 2, Swift: true, Faults: Faults{
		MinDelay: 1, MaxDelay: 4, Pressure: 300, Leaving: 200,
	}},
	"late": {PerTenSeconds: 200, Nodes: 5, Jobs: 150, Seconds: 120, AckShare: 0.9, Once: 0.2, Replicate: 3, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Duplicate: 0.1, Late: 40_000,
	}},
	"slow": {PerTenSeconds: 300, Nodes: 5, Jobs: 200, Seconds: 120, AckShare: 0.9, Once: 0.6, Replicate: 2, Faults: Faults{
		MinDelay: 100, MaxDelay: 1500, Resets: 600, Pressure: 200, Leaving: 100, Crashes: 30,
	}},
	"patient": {PerTenSeconds: 100, Nodes: 3, Jobs: 150, Seconds: 120, AckShare: 0.9, Replicate: 3, Patient: true, Faults: Faults{
		MinDelay: 1, MaxDelay: 100, Resets: 600, Partitions: 30,
	}},
	"long": {PerTenSeconds: 300, Nodes: 5, Jobs: 100, Seconds: 600, AckShare: 0.9, Replicate: 3, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Partitions: 30, CutSecs: 400,
	}},
	"lossy": {PerTenSeconds: 300, Nodes: 5, Jobs: 150, Seconds: 120, AckShare: 0.8, Once: 0.2, Async: 0.1, Faults: Faults{
		MinDelay: 1, MaxDelay: 200, Loss: 0.05, Duplicate: 0.05, Reorder: true,
	}},
	"crashes": {PerTenSeconds: 200, Nodes: 5, Jobs: 150, Seconds: 180, AckShare: 0.8, Once: 0.2, Wiped: 2, Replicate: 3, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 60, Wipes: 60, Resets: 60, Skew: 500,
	}},
	"replaced": {PerTenSeconds: 200, Nodes: 5, Jobs: 150, Seconds: 180, AckShare: 0.8, Once: 0.2, Wiped: 2, Replicate: 3, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 30, Replaced: 60, Resets: 60,
	}},
	"partitions": {PerTenSeconds: 300, Nodes: 7, Jobs: 150, Seconds: 240, AckShare: 0.8, Once: 0.2, Replicate: 3, Fast: 0.1, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Partitions: 60, Resets: 20, Pauses: 20,
	}},
	"holders": {PerTenSeconds: 300, Nodes: 5, Jobs: 100, Seconds: 120, AckShare: 0.3, Replicate: 3, Converge: true, Faults: Faults{
		MinDelay: 1, MaxDelay: 40, Partitions: 60, Resets: 120, Crashes: 30,
	}},
	"moves": {PerTenSeconds: 100, Nodes: 4, Jobs: 200, Seconds: 180, AckShare: 0.8, Once: 0.7, Replicate: 2, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Pressure: 120, Leaving: 120, Resets: 240, Crashes: 60, PauseQueue: 120,
	}},
	"offers": {PerTenSeconds: 150, Nodes: 4, Jobs: 200, Seconds: 180, AckShare: 0.9, Once: 0.8, Replicate: 2, Faults: Faults{
		MinDelay: 100, MaxDelay: 1000, Resets: 240, Crashes: 200, Stops: 60, Rewrites: 60, Skew: 500,
	}},
	"offers everysec": {PerTenSeconds: 150, Nodes: 4, Jobs: 200, Seconds: 180, AckShare: 0.9, Once: 0.8, Replicate: 2, Fsync: EverySec, Faults: Faults{
		MinDelay: 100, MaxDelay: 1000, Resets: 240, Crashes: 200, Stops: 60, Rewrites: 60, Skew: 500,
	}},
	"choked": {PerTenSeconds: 300, Nodes: 4, Jobs: 300, Seconds: 120, AckShare: 0.9, Once: 0.5, Replicate: 2, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Refuse: 0.2, Resets: 240, Pauses: 10,
	}},
	"bulk": {PerTenSeconds: 150, Nodes: 4, Jobs: 40, Bulk: 12, Seconds: 120, AckShare: 0.9, Once: 0.1, Replicate: 3, Async: 0.2, Faults: Faults{
		MinDelay: 1, MaxDelay: 5, Pressure: 60, Leaving: 60, PauseQueue: 60, Pauses: 20,
	}},
	"bulk lossy": {PerTenSeconds: 300, Nodes: 5, Jobs: 40, Bulk: 12, Former: 1, Seconds: 180, AckShare: 0.8, Once: 0.1, Async: 0.1, Wiped: 1, Replicate: 3, Faults: Faults{
		MinDelay: 1, MaxDelay: 100, Loss: 0.02, Duplicate: 0.02, Refuse: 0.05, Reorder: true, Crashes: 30, Wipes: 20, Resets: 200,
		Partitions: 30, Pauses: 20, Pressure: 20, Leaving: 10, PauseQueue: 20, Promotions: 20, Skew: 500,
	}},
	"bulk calm": {PerTenSeconds: 75, Nodes: 3, Jobs: 30, Bulk: 12, Seconds: 60, AckShare: 1, Swift: true, MostExtra: 0.02, Faults: Faults{MinDelay: 1, MaxDelay: 5}},
	"families":  {PerTenSeconds: 100, Nodes: 3, Jobs: 50, Families: 60, Seconds: 120, AckShare: 0.9, Replicate: 2, Faults: Faults{MinDelay: 1, MaxDelay: 5}},
	"broken families": {PerTenSeconds: 300, Nodes: 4, Jobs: 50, Families: 60, Seconds: 180, AckShare: 0.9, Replicate: 2, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 60, Resets: 60, Pauses: 20, Partitions: 20,
	}},
	"families moved": {PerTenSeconds: 300, Nodes: 4, Jobs: 30, Families: 80, FamilyMoved: true, Seconds: 180, AckShare: 0.6, Replicate: 2, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 60, Resets: 60, Pauses: 20, Partitions: 40,
	}},
	"families deleted": {PerTenSeconds: 400, Nodes: 3, Jobs: 20, Families: 60, FamilyDeleted: 0.1, Seconds: 120, AckShare: 0.9, Replicate: 3, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 30, Resets: 60,
	}},
	"families in trouble": {PerTenSeconds: 400, Nodes: 5, Jobs: 50, Families: 60, Seconds: 240, AckShare: 0.8, Wiped: 2, Replicate: 3, Faults: Faults{
		MinDelay: 1, MaxDelay: 100, Loss: 0.01, Duplicate: 0.01, Reorder: true, Crashes: 30, Wipes: 20, Resets: 60, Partitions: 30, Pressure: 20, Skew: 500,
	}},
	"alone": {Nodes: 1, Jobs: 200, Seconds: 120, AckShare: 0.9, Once: 0.5, Replicate: 1, Fsync: EverySec, Faults: Faults{
		Stops: 200, Rewrites: 120, PauseQueue: 60,
	}},
	"blackouts": {PerTenSeconds: 200, Nodes: 5, Jobs: 150, Seconds: 180, AckShare: 0.8, Once: 0.2, Replicate: 3, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Blackouts: 60, Stops: 40, Crashes: 20, Rewrites: 120, NodesLate: true, Skew: 500,
	}},
	"everysec": {PerTenSeconds: 200, Nodes: 5, Jobs: 200, Seconds: 180, AckShare: 0.8, Once: 0.2, Replicate: 2, Fsync: EverySec, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 60, Stops: 30, Blackouts: 60, Rewrites: 60, NodesLate: true, Resets: 30,
	}},
	"steps": {PerTenSeconds: 300, Nodes: 4, Jobs: 150, Seconds: 180, AckShare: 0.8, Once: 0.3, Replicate: 2, Fsync: EverySec, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Steps: 60, StepMS: 60_000, Crashes: 60, Resets: 30,
	}},
	"joins": {PerTenSeconds: 300, Nodes: 3, Jobs: 150, Seconds: 240, AckShare: 0.8, Once: 0.2, Replicate: 2, Wiped: 1, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Joins: 60, MaxNodes: 7, Replaced: 10, ForgetSecs: 30, Partitions: 60, CutSecs: 60, Crashes: 10, NodesLate: true,
	}},
	"promotions": {PerTenSeconds: 300, Nodes: 4, Jobs: 150, Seconds: 180, AckShare: 0.8, Once: 0.3, Replicate: 2, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Promotions: 60, Crashes: 20, Resets: 30, Partitions: 20, CutSecs: 30,
	}},
	"promotions moves": {PerTenSeconds: 300, Nodes: 3, Jobs: 200, Seconds: 180, AckShare: 0.8, Once: 0.5, Replicate: 2, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Promotions: 100, Pressure: 120, Leaving: 120, PauseQueue: 60, Resets: 60,
	}},
	"families promoted": {PerTenSeconds: 300, Nodes: 4, Jobs: 50, Families: 60, Seconds: 180, AckShare: 0.9, Replicate: 2, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Promotions: 60, Crashes: 20, Resets: 30,
	}},
	"families restarted": {PerTenSeconds: 300, Nodes: 4, Jobs: 50, Families: 60, Seconds: 180, AckShare: 0.9, Replicate: 2, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Blackouts: 40, Stops: 40, Crashes: 20, Rewrites: 120,
	}},
	"families everysec": {PerTenSeconds: 300, Nodes: 4, Jobs: 50, Families: 60, Seconds: 180, AckShare: 0.9, Replicate: 2, Fsync: EverySec, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 60, Blackouts: 20, Rewrites: 60, Resets: 60,
	}},
	"repaired": {PerTenSeconds: 200, Nodes: 5, Jobs: 150, Seconds: 900, AckShare: 0.9, DelaySecs: 900, Once: 0.1, Wiped: 1, Replicate: 2, RepairAfter: 15_000, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Replaced: 60, Resets: 20,
	}},
	"repaired in trouble": {PerTenSeconds: 300, Nodes: 6, Jobs: 150, Seconds: 900, AckShare: 0.8, DelaySecs: 900, Once: 0.1, Wiped: 1, Replicate: 3, RepairAfter: 5000, Faults: Faults{
		MinDelay: 1, MaxDelay: 100, Loss: 0.01, Duplicate: 0.01, Reorder: true, Replaced: 30, Crashes: 30, Resets: 60, Partitions: 30, Pressure: 20, Skew: 1000,
	}},
	"settings": {PerTenSeconds: 400, Nodes: 5, Jobs: 40, Seconds: 240, AckShare: 0.9, Replicate: 2, Faults: Faults{
		MinDelay: 1, MaxDelay: 100, Settings: 900, Partitions: 60, CutSecs: 60, Crashes: 20, Stops: 20, Rewrites: 60, Resets: 120, PauseQueue: 60,
		Steps: 30, StepMS: 100_000, Skew: 5000,
	}},
	"settings lossy": {PerTenSeconds: 400, Nodes: 4, Jobs: 40, Seconds: 240, AckShare: 0.8, Wiped: 2, Replicate: 3, Fsync: EverySec, Faults: Faults{
		MinDelay: 1, MaxDelay: 300, Loss: 0.02, Duplicate: 0.02, Reorder: true, Settings: 900, Partitions: 40, Crashes: 30, Wipes: 10, Replaced: 10,
		Promotions: 20, Joins: 60, MaxNodes: 6, Resets: 120, PauseQueue: 60, Skew: 5000,
	}},
	"flushed": {PerTenSeconds: 300, Nodes: 4, Jobs: 400, Seconds: 240, AckShare: 0.8, Once: 0.1, Replicate: 2, DelaySecs: 30, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Flushes: 300, Partitions: 60, CutSecs: 40, Crashes: 20, Stops: 20, Rewrites: 60, Resets: 60, PauseQueue: 60,
	}},
	"flushed in trouble": {PerTenSeconds: 400, Nodes: 4, Jobs: 400, Seconds: 240, AckShare: 0.8, Once: 0.1, Wiped: 1, Replicate: 3, Async: 0.2, Fsync: EverySec, Faults: Faults{
		MinDelay: 1, MaxDelay: 300, Loss: 0.01, Duplicate: 0.01, Reorder: true, Flushes: 300, Partitions: 40, CutSecs: 40, Crashes: 30, Wipes: 10, Replaced: 10, Promotions: 20,
		Joins: 60, MaxNodes: 6, Resets: 60, Pressure: 20, Leaving: 20, PauseQueue: 60, Skew: 2000, Steps: 10, StepMS: 20_000,
	}},
	"flushed away": {PerTenSeconds: 500, Nodes: 3, Jobs: 500, Seconds: 300, AckShare: 0.8, Fast: 0.3, Replicate: 2, DelaySecs: 60, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Flushes: 600, Partitions: 120, CutSecs: 60, Stops: 60, Rewrites: 60, Resets: 60, PauseQueue: 120, Pauses: 20,
	}},
	"flushed away in trouble": {PerTenSeconds: 600, Nodes: 4, Jobs: 500, Seconds: 300, AckShare: 0.8, Fast: 0.3, Wiped: 1, Replicate: 2, DelaySecs: 60, Async: 0.2, Fsync: EverySec, Faults: Faults{
		MinDelay: 1, MaxDelay: 200, Loss: 0.01, Duplicate: 0.01, Reorder: true, Flushes: 600, Partitions: 120, CutSecs: 60, Stops: 60, Crashes: 20, Wipes: 5, Replaced: 5, Promotions: 10,
		Rewrites: 60, Resets: 60, PauseQueue: 120, Pauses: 20, Skew: 20_000, Steps: 30, StepMS: 60_000, NodesLate: true,
	}},
	"flushed and crashed": {PerTenSeconds: 500, Nodes: 3, Jobs: 500, Seconds: 300, AckShare: 0.2, Replicate: 2, Lazy: true, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Flushes: 900, Crashes: 150, Stops: 60, Rewrites: 60, Resets: 30, PauseQueue: 400, Skew: 5000, Steps: 30, StepMS: 60_000,
	}},
	"failing": {PerTenSeconds: 200, Nodes: 4, Jobs: 200, Seconds: 180, AckShare: 0.4, Once: 0.1, Replicate: 3, Failing: 0.8, Faults: Faults{
		MinDelay: 1, MaxDelay: 5, Pauses: 20, Leaving: 20, Crashes: 20, Stops: 20, Rewrites: 60, PauseQueue: 30,
	}},
	"failing in trouble": {PerTenSeconds: 400, Nodes: 5, Former: 1, Jobs: 200, Seconds: 240, AckShare: 0.4, Once: 0.1, Wiped: 1, Replicate: 3, Failing: 0.8, Fsync: EverySec, Faults: Faults{
		MinDelay: 1, MaxDelay: 200, Loss: 0.01, Duplicate: 0.01, Reorder: true, Crashes: 30, Wipes: 10, Resets: 60, Partitions: 30, Pauses: 20, Pressure: 20, Leaving: 10,
		PauseQueue: 20, Promotions: 20, Skew: 2000, Steps: 10, StepMS: 20_000,
	}},
	"terms": {PerTenSeconds: 400, Nodes: 4, Jobs: 200, Seconds: 180, AckShare: 0.6, Once: 0.1, Replicate: 3, Terms: 0.5, Gone: 0.1, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Pauses: 20, Leaving: 20, Crashes: 20, Stops: 20, Rewrites: 60, Resets: 60, Partitions: 30, PauseQueue: 30,
	}},
	"terms in trouble": {PerTenSeconds: 600, Nodes: 5, Former: 1, Jobs: 150, Seconds: 240, AckShare: 0.6, Once: 0.1, Wiped: 1, Replicate: 3, Terms: 0.5, Gone: 0.1, Failing: 0.3, Fsync: EverySec, Faults: Faults{
		MinDelay: 1, MaxDelay: 200, Loss: 0.01, Duplicate: 0.01, Reorder: true, Crashes: 30, Wipes: 10, Resets: 60, Partitions: 30, Pauses: 20, Pressure: 20, Leaving: 10,
		PauseQueue: 20, Promotions: 20, Skew: 2000,
	}},
	"rated": {PerTenSeconds: 800, Nodes: 3, Jobs: 200, Seconds: 120, AckShare: 0.8, Once: 0.1, Replicate: 2, Rate: engine.Rate{Count: 20, Seconds: 2}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 20, Stops: 20, Rewrites: 30, Resets: 60, Pauses: 20, Partitions: 20,
	}},
	"rated lossy": {PerTenSeconds: 800, Nodes: 5, Jobs: 60, Seconds: 180, AckShare: 0.6, Once: 0.1, Replicate: 3, Rate: engine.Rate{Count: 5, Seconds: 3}, Fsync: EverySec, Faults: Faults{
		MinDelay: 1, MaxDelay: 100, Loss: 0.02, Duplicate: 0.02, Reorder: true, Crashes: 30, Resets: 100, Partitions: 30, Pauses: 20, Promotions: 20, PauseQueue: 20, Skew: 500,
	}},
	"concurrency calm": {PerTenSeconds: 800, Nodes: 3, Jobs: 100, Seconds: 60, AckShare: 1, Once: 0.2, Loyal: true, Replicate: 2, AtOnce: 2, Faults: Faults{MinDelay: 1, MaxDelay: 5}},
	"concurrency": {PerTenSeconds: 800, Nodes: 3, Jobs: 100, Seconds: 180, AckShare: 0.8, Replicate: 2, AtOnce: 2, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 20, Stops: 20, Rewrites: 30, Resets: 60, Pauses: 20, Partitions: 20, Skew: 2000,
	}},
	"concurrency lossy": {PerTenSeconds: 800, Nodes: 5, Jobs: 60, Seconds: 240, AckShare: 0.8, Replicate: 3, AtOnce: 3, Fsync: EverySec, Faults: Faults{
		MinDelay: 1, MaxDelay: 100, Loss: 0.02, Duplicate: 0.02, Reorder: true, Crashes: 30, Resets: 100, Partitions: 30, Pauses: 20, Promotions: 10, PauseQueue: 20, Skew: 500,
	}},
	"recurring": {PerTenSeconds: 150, Nodes: 3, Jobs: 20, Seconds: 120, AckShare: 1, Replicate: 2, Swift: true, Crons: &Crons{Entries: 4, Every: 3}, Faults: Faults{MinDelay: 1, MaxDelay: 5}},
	"recurring once": {PerTenSeconds: 300, Nodes: 3, Jobs: 20, Seconds: 180, AckShare: 1, Replicate: 2, Crons: &Crons{Entries: 4, Every: 3, Once: 0.7}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 60, Stops: 30, Rewrites: 60, Resets: 60, Pauses: 20, Partitions: 60,
	}},
	"recurring apart": {PerTenSeconds: 400, Nodes: 5, Jobs: 20, Seconds: 240, AckShare: 0.9, Replicate: 3, Crons: &Crons{Entries: 4, Every: 5, Any: 0.3}, Faults: Faults{
		MinDelay: 1, MaxDelay: 20, Crashes: 60, Stops: 30, Rewrites: 60, Resets: 60, Pauses: 30, Partitions: 60, Blackouts: 20, NodesLate: true, Skew: 400,
	}},
	"recurring in trouble": {PerTenSeconds: 600, Nodes: 5, Jobs: 20, Seconds: 240, AckShare: 0.8, Wiped: 2, Replicate: 3, Fsync: EverySec, Crons: &Crons{Entries: 4, Every: 5, Once: 0.3, Any: 0.2}, Faults: Faults{
		MinDelay: 1, MaxDelay: 100, Loss: 0.02, Duplicate: 0.02, Reorder: true, Crashes: 30, Wipes: 10, Replaced: 10, Promotions: 20, Joins: 60, MaxNodes: 6, Resets: 100,
		Partitions: 30, Pauses: 20, Pressure: 20, Leaving: 20, PauseQueue: 20, Skew: 2000, Steps: 10, StepMS: 20_000,
	}},
	"results": {PerTenSeconds: 300, Nodes: 4, Jobs: 200, Seconds: 180, AckShare: 0.7, Once: 0.1, Replicate: 2, Results: 0.7, Faults: Faults{
		MinDelay: 1, MaxDelay: 50, Partitions: 60, CutSecs: 40, Crashes: 20, Stops: 20, Rewrites: 60, Resets: 60, PauseQueue: 30, Refuse: 0.02,
	}},
	"results in trouble": {PerTenSeconds: 500, Nodes: 5, Former: 1, Jobs: 200, Seconds: 240, AckShare: 0.6, Once: 0.1, Wiped: 1, Replicate: 3, Results: 0.5, Failing: 0.5, Fsync: EverySec, Faults: Faults{
		MinDelay: 1, MaxDelay: 200, Loss: 0.01, Duplicate: 0.01, Reorder: true, Crashes: 30, Wipes: 10, Resets: 60, Partitions: 30, Pauses: 20, Pressure: 20, Leaving: 10,
		PauseQueue: 20, Promotions: 20, Skew: 2000,
	}},
	"everything": {PerTenSeconds: 400, Nodes: 7, Jobs: 150, Seconds: 300, AckShare: 0.8, Once: 0.2, Wiped: 2, Replicate: 3, Fast: 0.05, Async: 0.1, Faults: Faults{
		MinDelay: 1, MaxDelay: 100, Loss: 0.01, Duplicate: 0.01, Reorder: true, Crashes: 30, Wipes: 10, Replaced: 10, Resets: 60,
		Partitions: 30, Pauses: 20, Pressure: 20, Leaving: 10, PauseQueue: 20, Skew: 2000,
	}},
}

func TestHistories(t *testing.T) { playAll(t, histories, 8) }

const mostFailures = 20 // of one kind of history: after that its other seeds are left out

// playAll plays histories of each kind: a fixed set, so that a failure comes from a change
// and not from chance; and as many new ones as -sim.seeds asks for.
func playAll(t *testing.T, kinds map[string]Config, fixed int) {
	fixed += *more
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if *first != 0 {
				c.Trace = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
				_, err := Run(*first, c)
				require.NoError(t, err)
				return
			}
			var all Report
			began, failed := time.Now(), 0
			for i := range fixed + *seeds {
				seed := uint64(i + 1)
				if i >= fixed {
					seed = rand.Uint64()
				}
				r, err := play(seed, c)
				if err != nil { // the other seeds' failures are worth knowing, too
					t.Errorf("%v\nplay it again: go test ./module/engine/sim -run '%s' -sim.seed %d", err, t.Name(), seed)
					if failed++; failed == mostFailures {
						break
					}
				}
				all.Added, all.Refused = all.Added+r.Added, all.Refused+r.Refused
				all.Delivered, all.Duplicates = all.Delivered+r.Delivered, all.Duplicates+r.Duplicates
				all.Granted += r.Granted
				all.Messages, all.LockMessages = all.Messages+r.Messages, all.LockMessages+r.LockMessages
				all.Busiest = max(all.Busiest, r.Busiest)
				all.Flushed, all.FlushedLate = all.Flushed+r.Flushed, all.FlushedLate+r.FlushedLate
			}
			took := time.Since(began)
			if all.Flushed > 0 {
				t.Logf("%d jobs were flushed, %d of them late", all.Flushed, all.FlushedLate)
			}
			t.Logf("%d seeds in %v; %d jobs, %d refused, %d deliveries, %d of them duplicates, %d messages, at most %d of one job in ten seconds; %d locks, %d messages about locks",
				fixed+*seeds, took.Round(time.Millisecond),
				all.Added, all.Refused, all.Delivered, all.Duplicates, all.Messages, all.Busiest, all.Granted, all.LockMessages)
		})
	}
}

// play is Run, but returns a panic as an error that names the seed.
func play(seed uint64, c Config) (r Report, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("seed %d: panic: %v\n%s", seed, p, debug.Stack())
		}
	}()
	return Run(seed, c)
}

// The same seed gives the same history, to the last message.
func TestASeedRepeats(t *testing.T) {
	a, err := Run(42, histories["everything"])
	require.NoError(t, err)
	b, err := Run(42, histories["everything"])
	require.NoError(t, err)
	assert.Equal(t, a, b)
}

// An operator forgets no node while another is joining.
func TestOneChangeOfMembersAtATime(t *testing.T) {
	s := newSim(1, Config{Nodes: 3, Faults: Faults{MinDelay: 1, MaxDelay: 5}})
	assert.False(t, s.agrees(s.nodes[0]), "the others know nobody else yet")
	s.run(s.now + 1000)
	assert.True(t, s.agrees(s.nodes[0]))
}

// Many jobs end in one event. The next event gives their memory back.
func TestMemoryOfManyThatEndAtOnce(t *testing.T) {
	s := newSim(1, Config{Nodes: 1})
	n := s.nodes[0]
	n.call(func() {
		for range 200 {
			_, _, err := n.e.AddJob(&engine.Add{Queue: []byte("q"), TTL: 10, Retry: 1, Replicate: 1})
			require.NoError(t, err)
		}
	})
	s.sleep(20_000)
	s.run(s.now + 1)
	require.Zero(t, n.e.Jobs())
	assert.Greater(t, n.alloc.Pending(), 100)
	s.run(s.now + 2_000)
	assert.Zero(t, n.alloc.Pending())
	assert.Empty(t, s.failures)
}
