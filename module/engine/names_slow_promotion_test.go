package engine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/wire"
)

// A replica is promoted in the place of a node whose question about a name is open. It has very many jobs, so the promotion takes eight seconds. Half a second
// after it the other node is connected. It has the name's job with a client, so it must be asked before the replica queues its own.
func TestANameIsAskedForAfterASlowPromotion(t *testing.T) {
	const queue = "q"
	d := newDuo()
	d.run(1000)
	n := d.n[0]
	id := engine.NamedID([]byte("name"))
	for i := range 1000 {
		d.do(0, func() {
			_, _, err := n.AddJob(&engine.Add{Queue: []byte(fmt.Sprint("r", i%10)), Body: []byte("b"), Replicate: 1, Retry: 10000, TTL: 86400, Delay: 5000})
			require.NoError(t, err)
		})
	}
	d.do(0, func() {
		_, err := n.AddNamed(&engine.Add{Name: []byte("name"), Queue: []byte(queue), Body: []byte("mine"), Retry: 300, TTL: 86400, Async: true, Replicate: 1})
		require.NoError(t, err)
	})
	d.part() // the answer is lost
	d.do(0, func() { n.SetPassive(true); n.Follow() })
	d.queue = [2][][]byte{}
	calls := 0
	for done := false; !done; calls++ {
		d.now += 250
		d.do(0, func() { done, _ = n.Promote(func() bool { return true }) })
		require.Less(t, calls, 1000)
	}
	t.Logf("promoted in %d ms", 250*calls)
	asked := false
	for ms := range 5000 {
		if ms == 500 {
			d.join()
		}
		d.now++
		d.do(0, func() { n.Tick() })
		for _, b := range d.queue[1] {
			var m wire.Message
			require.NoError(t, m.Parse(b))
			if m.Kind == wire.AskName && m.ID == wire.JobID(id) {
				asked = true
			}
		}
		d.queue[1] = nil
		if q := n.Queue([]byte(queue)); q != nil && q.Len > 0 {
			t.Logf("queued %d ms after the promotion", ms)
			break
		}
	}
	assert.True(t, asked, "the other node is asked before the job is queued")
}
