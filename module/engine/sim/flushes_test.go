package sim

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// X1: a flush of the whole mesh costs each node the same few messages, whatever the number of jobs. The end of a job costs messages to those
// that have copies alone, whatever the number of nodes.
func TestLifeX1Messages(t *testing.T) {
	const copies = 3
	for _, nodes := range []int{3, 10} {
		for _, jobs := range []int{90, 900} {
			t.Run(fmt.Sprint(nodes, " nodes ", jobs, " jobs"), func(t *testing.T) {
				s := newSim(7, Config{Nodes: nodes, Faults: Faults{MinDelay: 1, MaxDelay: 5}})
				s.run(s.now + 10_000)
				for i := range jobs {
					n := s.nodes[i%nodes]
					n.call(func() {
						_, wait, err := n.e.AddJob(&engine.Add{Queue: []byte("q0"), Body: []byte("b"), Replicate: copies, Retry: 1000, TTL: 6000, CanWait: true, Timeout: 5000})
						require.NoError(t, err)
						require.True(t, wait)
					})
				}
				s.run(s.now + 1000)
				before := s.Kinds
				sent := func(kinds ...wire.Kind) (sum int64) {
					for _, kind := range kinds {
						sum += s.Kinds[kind] - before[kind]
					}
					return sum
				}
				n, f := s.nodes[0], &flushing{}
				n.call(func() {
					p, now := n.e.FlushMesh([]byte("q0"), false, 5000)
					require.Nil(t, now)
					n.e.Tie(p, f)
				})
				s.run(s.now + 400)
				require.True(t, f.answered)
				assert.Equal(t, jobs, s.Flushed)
				others := int64(nodes - 1)
				assert.Equal(t, 3*others, sent(wire.AskFlush, wire.FlushReady))
				assert.Equal(t, others, sent(wire.Flushed))
				assert.Equal(t, int64(3*(copies-1)*jobs), sent(wire.SetAck, wire.GotAck, wire.DelJob))
				for _, n := range s.nodes {
					c, _ := n.e.Counts([]byte("q0"))
					assert.Zero(t, c.Len)
					assert.Zero(t, n.e.Jobs())
				}
			})
		}
	}
}
