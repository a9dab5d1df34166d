package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// A step of the clock, either way, is nobody's failure, and heartbeats go on.
func TestClockJumpsAreNoSilence(t *testing.T) {
	for name, jump := range map[string]int64{"back": -3_600_000, "ahead": 3_600_000} {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			id := wire.NodeID{1, 2, 3}
			n.PeerUp(id, "10.0.0.1:1", false)
			n.Tick()
			n.Effects()
			beats := func() (c int) {
				for _, e := range n.Effects() {
					if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.Heartbeat) {
						c++
					}
				}
				return c
			}
			now += jump
			for range 5 {
				now += 1000
				n.SetNow(now)
				n.Tick()
				assert.Equal(t, 1, beats())
				assert.Equal(t, engine.Well, n.Peers()[0].Health)
			}
			for range 20 {
				now += 1000
				n.SetNow(now)
				n.Tick()
				n.Effects()
			}
			assert.Equal(t, engine.Suspected, n.Peers()[0].Health, "silence is still silence")
		})
	}
}
