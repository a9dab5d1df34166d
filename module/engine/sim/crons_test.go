package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A month of hourly jobs, with crashes and partitions: each slot is made, and none twice.
func TestLongRecurringMonth(t *testing.T) {
	r, err := Run(1, Config{
		Nodes: 3, Jobs: 20, Seconds: 30 * 86400, AckShare: 1, Replicate: 2, Crons: &Crons{Entries: 6, Days: true},
		Faults: Faults{MinDelay: 1, MaxDelay: 20, Crashes: 0.05, Stops: 0.05, Blackouts: 0.02, Partitions: 0.1, CutSecs: 7200, Resets: 0.1, Pauses: 0.1, Rewrites: 2},
	})
	require.NoError(t, err)
	require.Greater(t, r.Added, 6*24*24) // they are set in the first six days
}
