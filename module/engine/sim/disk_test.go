package sim

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// A queue that is empty when a node starts is removed later. A job that takes the queue's key before that
// stays, in memory and in the log, as with the server's own keys.
func TestAJobTakesTheKeyOfAnEmptyQueue(t *testing.T) {
	s := newSim(1, Config{Nodes: 1})
	n := s.nodes[0]
	add := func() (id store.ID) {
		n.call(func() {
			var err error
			id, _, err = n.e.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 10, TTL: 100})
			require.NoError(t, err)
		})
		return id
	}
	restart := func() {
		n.end(false)
		n.start()
	}
	first := add()
	n.call(func() { n.e.Ack(&first) })
	restart()
	second := add()
	s.run(s.now + 2000)
	restart()
	require.NotNil(t, n.e.Job(&second))
	assert.Contains(t, n.disk.jobs, second)
	assert.Empty(t, s.failures)
}
