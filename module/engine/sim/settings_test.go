package sim

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// A setting that is made at one of a hundred nodes counts at all within a second, and costs two messages for each.
func TestASettingAtAHundredNodes(t *testing.T) {
	s := newSim(7, Config{Nodes: 100, Seconds: 10, Faults: Faults{MinDelay: 1, MaxDelay: 5}})
	s.run(s.now + 20_000)
	for _, n := range s.nodes {
		require.Equal(t, 99, n.e.Mesh().Reachable())
	}
	before := s.Kinds[wire.Entries]
	s.nodes[3].call(func() { s.nodes[3].e.ChangeEntry(engine.EntrySettings, "q", []byte("value")) })
	s.run(s.now + 1000)
	for _, n := range s.nodes {
		require.NotNil(t, n.e.Entries().Get(engine.EntrySettings, "q"))
	}
	assert.True(t, s.nodes[3].e.EntriesInStep())
	assert.Equal(t, int64(2*99), s.Kinds[wire.Entries]-before)
}
