package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// formerReleases are commits whose module a mesh is upgraded from.
var formerReleases = map[string]struct {
	commit string
	rates  bool // it obeys RATE
}{
	"before ADDJOBS": {"d09d55e0b5ef66a44e4af1b180d4ff7d364d01e0", false}, // it has none of the features that were added later
	"before NAME":    {"2396c15dacac7bc7096c3610265775fca66fea43", true},
}

// I5: the nodes of a mesh are upgraded one after the other, under load, each with the data that the former release has saved. No job is lost, and none
// comes back that is done. What only the new release knows works at the nodes that have it; a limit waits until all have.
func TestLongLifeI5(t *testing.T) {
	for name, former := range formerReleases {
		t.Run(name, func(t *testing.T) {
			so := harness.BuildFormer(t, former.commit)
			t.Parallel()
			upgrade(t, so, former.rates)
		})
	}
}

func upgrade(t *testing.T, former string, rates bool) {
	m := make(mesh, 3)
	for i := range m {
		m[i] = harness.Start(t, harness.WithModule(former), busConfig(t, durable...))
	}
	m.meet(t)

	// Jobs of each kind from before the upgrade.
	c := m[0].Dial()
	const long = 600
	delayed := added(t, c, "delayed", "b", 5000, "REPLICATE", 3, "RETRY", long, "DELAY", 100_000)
	deferred := added(t, c, "deferred", "b", 5000, "REPLICATE", 3, "RETRY", long, "DEFERRED")
	parent := added(t, c, "parent", "b", 5000, "REPLICATE", 3, "RETRY", long)
	child := added(t, c, "child", "b", 5000, "REPLICATE", 3, "RETRY", long, "AFTER", parent)
	once := added(t, c, "once", "b", 5000, "RETRY", 0)
	unique := []any{"unique", "b", 5000, "REPLICATE", 3, "RETRY", long, "UNIQUE", "until-processed", "KEY", "k"}
	keyed := added(t, c, unique...)
	failed := added(t, c, "failed", "b", 5000, "REPLICATE", 3, "RETRY", long)
	require.Equal(t, failed, fetched(t, m[1].Dial(), "failed"))
	require.Equal(t, int64(1), m[1].Do("NACK", failed).Int())
	inHands := added(t, c, "hands", "b", 5000, "REPLICATE", 3, "RETRY", long)
	require.Equal(t, inHands, fetched(t, m[2].Dial(), "hands"))
	done := added(t, c, "done", "b", 5000, "REPLICATE", 3, "RETRY", long)
	require.Equal(t, done, fetched(t, c, "done"))
	require.Equal(t, int64(1), c.Do("ACKJOB", done).Int())

	kept := map[string]string{delayed: "delayed", deferred: "deferred", parent: "parent", child: "child", keyed: "unique", failed: "failed", inHands: "hands", once: "once"}
	q := newQueue(t, m, 2000, "REPLICATE", 2, "RETRY", 2)
	q.more(200)
	var ids []string
	for i, s := range m {
		if i == 1 {
			s.Kill() // a crash of the old release leaves as much as its end
		} else {
			s.Stop()
		}
		s.LoadInstead(harness.Module(t))
		s.Restart()
		m.await(t, 3)
		q.more(200)

		// New options at a new node, while there are old ones.
		c := s.Dial()
		queue := fmt.Sprint("new", i)
		plain := added(t, c, queue, "plain", 5000, "REPLICATE", 3, "RETRY", long)
		urgent := added(t, c, queue, "urgent", 5000, "REPLICATE", 3, "RETRY", long, "PRIORITY", 5, "MAXNACKS", 1)
		require.Equal(t, urgent, fetched(t, c, queue))
		require.Equal(t, int64(1), c.Do("NACK", urgent, "REASON", "bad").Int())
		assert.Equal(t, []string{"max-nacks", "bad"}, []string{c.Do("SHOW", urgent).Field("why").Str, c.Do("SHOW", urgent).Field("reason").Str})
		require.Equal(t, plain, fetched(t, c, queue))
		require.Equal(t, int64(1), c.Do("NACK", plain, "DELAY", 1000).Int())
		require.Equal(t, int64(2), c.Do("ACKJOB", plain, urgent).Int())
		some, refused := promised(t, c.Do(bulk("bulk 5000 REPLICATE 3 RETRY 600", 20)...), "")
		require.Zero(t, refused)
		ids = append(ids, some...)
		if v := c.Do("QCONFIG", "SET", "slow", "RATE", 5, 1); i < 2 && !rates {
			assert.True(t, v.Err("ERR node "), "an old node would take no notice: %v", v)
		} else {
			assert.Equal(t, "OK", v.Str)
		}
	}

	// The jobs from before the upgrade are there, and can be done.
	for id, queue := range kept {
		v := m[0].Do("SHOW", id)
		assert.Equal(t, queue, v.Field("queue").Str, "%v", v)
	}
	assert.True(t, m[1].Do(append([]any{"ADDJOB"}, unique...)...).NullString(), "its key is taken")
	assert.Equal(t, int64(1), m[0].Do("SHOW", failed).Field("nacks").Int())
	next := m[0].Do("SHOW", delayed).Field("next-requeue-within").Int()
	assert.InDelta(t, 99_900_000, next, 100_000)
	fetchedOnce := func(id, queue string) {
		t.Helper()
		require.Equal(t, id, fetched(t, m[1].Dial(), queue))
		require.Equal(t, int64(1), m[2].Do("ACKJOB", id).Int(), queue)
	}
	require.Equal(t, int64(long), m[2].Do("WORKING", inHands).Int())
	require.Equal(t, int64(1), m[2].Do("ACKJOB", inHands).Int())
	fetchedOnce(parent, "parent")
	fetchedOnce(child, "child")
	fetchedOnce(keyed, "unique")
	fetchedOnce(failed, "failed")
	require.Equal(t, int64(3), m[0].Do("RELEASEJOB", deferred).Int())
	fetchedOnce(deferred, "deferred")
	require.Equal(t, int64(1), m[0].Do("ENQUEUE", delayed).Int())
	fetchedOnce(delayed, "delayed")
	require.Equal(t, once, fetched(t, m[0].Dial(), "once"))
	require.Equal(t, int64(1), m[0].Do("ACKJOB", once).Int())
	require.Equal(t, int64(len(ids)), m[1].Do("QLEN", "bulk", "MESH").Field("len").Int())
	require.Equal(t, int64(len(ids)), flushedMesh(t, m[0], "bulk"))
	for _, queue := range []string{"done", "parent", "child", "unique", "failed", "deferred", "delayed", "once", "hands"} {
		for _, s := range m {
			assert.True(t, s.Do("GETJOB", "NOHANG", "FROM", queue).Null, queue)
		}
	}
	q.finish()
	for _, s := range m {
		harness.Await(t, 20*time.Second, "the setting", func() bool { return s.Do("QCONFIG", "GET", "slow").Field("rate").Str == "5 1" })
		assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
	}
}
