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

// A node that was started again in order opens its gate while clients wait in very many queues: no tick holds the main thread. Without the gate
// (a crash) none does.
func TestTheFlushGateWithVeryManyWaits(t *testing.T) {
	for _, inOrder := range []bool{false, true} {
		t.Run(fmt.Sprint("in order ", inOrder), func(t *testing.T) {
			now := int64(dawn)
			n, _, _ := node(now)
			peer := wire.NodeID{1, 2, 3}
			n.SetFeatures(peer, engine.Features{Bounds: true, Entries: true})
			n.Mesh().Up(peer, "10.0.0.1:1", true)
			n.Effects()
			_, _, err := n.AddJob(&engine.Add{Queue: []byte("j"), Body: []byte("b"), Replicate: 1, Retry: 100, TTL: 86400})
			require.NoError(t, err)
			n.Effects()
			n.SetKnown(engine.Known{All: true})
			n.Settle(engine.Trust{Exact: true, Clean: inOrder})
			n.Effects()
			ms := int64(0)
			runtime.LockOSThread() // its own CPU time counts: the machine may be busy
			defer runtime.UnlockOSThread()
			tick := func() time.Duration {
				ms++
				n.SetNow(now + ms)
				since := threadTime(t)
				n.Tick()
				n.Effects()
				return threadTime(t) - since
			}
			for i := range 100_000 {
				_, err := n.Wait([][]byte{fmt.Appendf(nil, "queue-of-a-client-%d", i*7919%100_000)}, i)
				require.NoError(t, err)
				if i%1000 == 0 {
					n.Effects()
					tick()
				}
			}
			n.Effects()
			for ms < 1500 {
				tick()
			}
			n.Mesh().Down(peer)
			n.Effects()
			var worst time.Duration
			for ms < 4000 {
				worst = max(worst, tick())
			}
			assert.Less(t, worst, 20*time.Millisecond)
		})
	}
}
