package engine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
)

// A job's life was over a second ago, and no tick has come to it yet: writes were paused (CLIENT PAUSE … WRITE, FAILOVER), the process stood still,
// or very many jobs end at once (1000 a tick). GETJOB gives it to nobody. An ADDJOB of its key is told that the job has the key, or gets its
// ID; then the job goes, and nothing is left of what was added.
func TestAnADDJOBIsntGivenAJobWhoseLifeIsOver(t *testing.T) {
	for name, conflict := range map[string]uint8{"drop": store.ConflictDrop, "raise": store.ConflictRaise, "return": store.ConflictReturn, "replace": store.ConflictReplace, "debounce": store.ConflictDebounce} {
		t.Run(name, func(t *testing.T) {
			n, _, _ := node(dawn)
			add := func(body string) (store.ID, error) {
				id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte(body), Replicate: 1, Retry: 1, TTL: 5,
					Unique: engine.Unique{Strategy: store.UniqueUntil, Keyed: true, Key: []byte("k"), Conflict: conflict}})
				n.Effects()
				return id, err
			}
			_, err := add("old")
			require.NoError(t, err)
			n.SetNow(dawn + 6000)
			assert.Empty(t, n.Fetch(nil, 1, false, nil))
			id, err := add("new")
			t.Logf("%v %v", id.String(), err)
			ticks(n, dawn+6000, 1000)
			if assert.EqualValues(t, 1, n.Jobs()) && assert.NotNil(t, n.Job(&id)) {
				assert.Equal(t, "new", string(n.Job(&id).Body()))
			}
		})
	}
}

// uniqueTo is ADDJOB queue body 0 UNIQUE until-processed KEY key ONCONFLICT conflict.
func uniqueTo(n *engine.Node, q, body, key string, conflict uint8) (store.ID, error) {
	id, _, err := n.AddJob(&engine.Add{Queue: []byte(q), Body: []byte(body), Replicate: 1, Retry: 100, TTL: 6000,
		Unique: engine.Unique{Strategy: store.UniqueUntil, Keyed: true, Key: []byte(key), Conflict: conflict}})
	return id, err
}

// MULTI, QFLUSH q, EXEC answers at once. An ADDJOB that comes after that answer is told that a job has its key, which the
// flush then cancels: nothing is left of what was added.
func TestAnADDJOBAfterAFlushIsntGivenAJobThatIsToGo(t *testing.T) {
	for name, conflict := range map[string]uint8{"drop": store.ConflictDrop, "raise": store.ConflictRaise, "return": store.ConflictReturn, "replace": store.ConflictReplace, "debounce": store.ConflictDebounce} {
		t.Run(name, func(t *testing.T) {
			n, _, _ := node(dawn)
			for i := range 20000 {
				_, err := uniqueTo(n, "q", "old", fmt.Sprint(i), store.ConflictRaise)
				require.NoError(t, err)
			}
			n.Effects()
			_, now := n.FlushQueue([]byte("q"), false, false) // in MULTI: it is answered now
			require.NotNil(t, now)
			assert.EqualValues(t, 20000, now.Flushed)
			n.Effects()

			id, err := uniqueTo(n, "q", "new", "19999", conflict) // the same client's next command
			n.Effects()
			t.Logf("ADDJOB after the answer of QFLUSH: id %v, error %v", id.String(), err)
			ticks(n, dawn, 3000)
			assert.EqualValues(t, 1, n.Jobs(), "the job that was added after QFLUSH's answer")
			if j := n.Job(&id); assert.NotNil(t, j, "the job whose ID ADDJOB has answered") {
				assert.Equal(t, "new", string(j.Body()))
			}
		})
	}
}

// QFLUSH from a client that waits, and the ADDJOB … ONCONFLICT replace of another one meanwhile: its ID is a promise.
func TestAReplacedBodyOutlivesAFlush(t *testing.T) {
	n, _, _ := node(dawn)
	for i := range 20000 {
		_, err := uniqueTo(n, "q", "old", fmt.Sprint(i), store.ConflictRaise)
		require.NoError(t, err)
	}
	n.Effects()
	p, now := n.FlushQueue([]byte("q"), false, true)
	require.Nil(t, now)
	n.Tie(p, "client")
	n.Effects()
	id, err := uniqueTo(n, "q", "new", "19999", store.ConflictReplace)
	require.NoError(t, err)
	n.Effects()
	ticks(n, dawn, 3000)
	assert.NotNil(t, n.Job(&id), "ADDJOB has answered its ID, with the new body, after the flush began")
}

// MULTI, QFLUSH q, EXEC; then ADDJOB other AFTER one of q's jobs, which is cancelled a moment later: it ends undone, and the new job is dropped with it.
// A client that asks a moment later is refused (NOJOB) instead.
func TestAnADDJOBAfterAFlushMayNotWaitForAJobThatIsToGo(t *testing.T) {
	n, _, _ := node(dawn)
	var last store.ID
	for range 20000 {
		last = addTo(t, n, "q", 1, 100)
	}
	n.Effects()
	_, now := n.FlushQueue([]byte("q"), false, false)
	require.NotNil(t, now)
	n.Effects()
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("other"), Body: []byte("x"), Replicate: 1, Retry: 100, TTL: 6000, Members: engine.Members{After: []store.ID{last}}})
	n.Effects()
	ticks(n, dawn, 3000)
	if err == nil {
		assert.NotNil(t, n.Job(&id), "ADDJOB has answered this ID")
	}
}

// DEQUEUE of a job that is to go keeps it from going: nothing of the flush is left, and the job comes again after its retry time.
func TestADequeuedJobGoesByAFlush(t *testing.T) {
	n, _, _ := node(dawn)
	var last store.ID
	for range 20000 {
		last = addTo(t, n, "q", 1, 100)
	}
	n.Effects()
	_, now := n.FlushQueue([]byte("q"), false, false)
	require.NotNil(t, now)
	n.Effects()
	n.Dequeue(&last)
	n.Effects()
	ticks(n, dawn, 3000)
	assert.EqualValues(t, 0, n.Jobs())
}

// ADDJOB … UNIQUE … KEY k AFTER P, where P's life is over and P becomes a dead letter (ONEXPIRE dead) by endDue: bury ends P's locks, whose
// name lies in the scratch memory in which AddJob has the name of the new job's lock.
func TestAnADDJOBAfterADyingUniqueParent(t *testing.T) {
	n, _, _ := node(dawn)
	p, _, err := n.AddJob(&engine.Add{Queue: []byte("parents"), Body: []byte("p"), Replicate: 1, Retry: 1, TTL: 5,
		Policy: &engine.Policy{Set: engine.SetOnExpire, ExpiredDies: true},
		Unique: engine.Unique{Strategy: store.UniqueUntil, Keyed: true, Key: []byte("parentkey")}})
	require.NoError(t, err)
	n.Effects()
	n.SetNow(dawn + 6000)
	add := func(after ...store.ID) (store.ID, error) {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("x"), Replicate: 1, Retry: 100, TTL: 6000, Members: engine.Members{After: after},
			Unique: engine.Unique{Strategy: store.UniqueUntil, Keyed: true, Key: []byte("k"), Conflict: store.ConflictRaise}})
		n.Effects()
		return id, err
	}
	a, err := add(p)
	require.NoError(t, err)
	b, err := add()
	t.Logf("%v %v %v", a.String(), b.String(), err)
	assert.Error(t, err, "the first job has the key k, and lives")
}
