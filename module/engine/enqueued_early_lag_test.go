package engine_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// A job with a copy elsewhere, and a delay of an hour, is queued by hand after ten minutes, and delivered at once: it was due for no longer than a moment.
func TestLagOfAJobThatWasQueuedEarly(t *testing.T) {
	d := newDuo()
	d.run(1000)
	var id store.ID
	d.do(0, func() {
		var err error
		id, _, err = d.n[0].AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 2, Async: true, Retry: 300, TTL: 86400, Delay: 3600})
		require.NoError(t, err)
	})
	d.run(100)
	d.now += 600_000
	d.run(100)
	d.n[0].SetNow(d.now)
	d.n[0].SetEvents(engine.AllEvents, 0)
	require.True(t, d.n[0].Enqueue(&id))
	d.n[0].Effects()
	d.now += 10
	d.n[0].SetNow(d.now)
	require.Len(t, d.n[0].Fetch([]*store.Queue{d.n[0].Queue([]byte("q"))}, 1, true, nil), 1)
	told := false
	for _, e := range d.n[0].Effects() {
		if e.Kind != engine.Happened || e.Client.(*engine.Happening).Event != engine.EventDeliver {
			continue
		}
		told = true
		if lag := e.Client.(*engine.Happening).Field("lag"); lag != "" {
			ms, err := strconv.Atoi(lag)
			require.NoError(t, err)
			assert.Less(t, ms, 1000)
		}
	}
	assert.True(t, told)
}
