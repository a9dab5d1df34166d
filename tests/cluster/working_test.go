package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// K1: PROGRESS shows on all holders, and is still there after a redelivery.
func TestLifeK1(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	id := given(t, m[0], "q", "RETRY", 3, "REPLICATE", 3)
	require.Equal(t, int64(3), m[0].Do("WORKING", id, "PROGRESS", "10 %").Int())
	for _, s := range m {
		shows(t, s, id, "progress", "10 %")
	}
	require.Equal(t, int64(3), m[1].Do("WORKING", id, "PROGRESS", "9 %").Int(), "at a node that has a copy")
	at := m[1].Do("SHOW", id).Field("progress-at").Int()
	for _, s := range m {
		shows(t, s, id, "progress", "9 %")
		assert.Equal(t, at, s.Do("SHOW", id).Field("progress-at").Int())
	}
	v := m[2].Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
	require.NotEmpty(t, v.Elems, "it lapses")
	require.Equal(t, id, v.Elems[0].Elems[1].Str)
	for _, s := range m {
		shows(t, s, id, "progress", "9 %")
	}
	require.Equal(t, int64(1), m[2].Do("NACK", id, "DEAD", "REASON", "why").Int())
	for _, s := range m {
		shows(t, s, id, "queue", "q:dead")
		assert.Equal(t, []string{"9 %", "why"}, []string{s.Do("SHOW", id).Field("progress").Str, s.Do("SHOW", id).Field("reason").Str})
	}
	require.Equal(t, int64(1), m[0].Do("MOVEJOB", id).Int())
	for _, s := range m {
		shows(t, s, id, "queue", "q")
		shows(t, s, id, "progress", "9 %")
	}
}

// A node that was away when a text was said learns it when the job comes back.
func TestProgressIsMended(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes")
	id := given(t, m[0], "q", "RETRY", 300, "REPLICATE", 3)
	require.Equal(t, int64(300), m[0].Do("WORKING", id, "PROGRESS", "before").Int())
	shows(t, m[2], id, "progress", "before")
	m[2].Kill()
	require.Equal(t, int64(300), m[0].Do("WORKING", id, "PROGRESS", "after").Int())
	shows(t, m[1], id, "progress", "after")
	m[2].Restart()
	harness.Await(t, 20*time.Second, "the node to be back", func() bool { return m[0].Info("jobmesh", "jobmesh_reachable_nodes") == "2" })
	require.Equal(t, int64(1), m[0].Do("NACK", id).Int())
	shows(t, m[2], id, "progress", "after")
}

// An at-most-once job takes its text along when it is handed over to another node.
func TestProgressIsHandedOver(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	id := added(t, m[0].Dial(), "q", "b", 5000, "RETRY", 0)
	require.Equal(t, ":0", m[0].Do("WORKING", id, "PROGRESS", "none yet").String())
	require.Equal(t, id, fetched(t, m[1].Dial(), "q"))
	shows(t, m[1], id, "progress", "none yet")
	require.Equal(t, ":0", m[1].Do("WORKING", id, "PROGRESS", "half").String())
	shows(t, m[1], id, "progress", "half")
	assert.True(t, m[0].Do("WORKING", id, "PROGRESS", "x").Err("NOJOB"))
}

// WORKING of several jobs, some of which need a majority, is answered once, when all are decided. A job without a majority keeps no text.
func TestWorkingOnSeveralWaitsForAll(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	plain := given(t, m[0], "p", "RETRY", 60, "REPLICATE", 1)
	var all []any
	for i := range 5 {
		id := addUnique(t, m[0], "q", "b", "REPLICATE", 1, "RETRY", 300, "UNIQUE", "during-processing", "KEY", i)
		require.Equal(t, id, fetch(t, m[0], "q"))
		all = append(all, id)
	}
	leased := addUnique(t, m[0], "l", "b", "REPLICATE", 1, "RETRY", 200, "UNIQUE", "until-processed", "LOCKTTL", 300)
	require.Equal(t, leased, fetch(t, m[0], "l"))
	const unknown, noJob = "D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1", "-NOJOB Job not known in the context of this node."
	all = append(all, plain, unknown, leased, all[0]) // the first one twice
	working := func(more ...any) []any { return append(append([]any{"WORKING"}, all...), more...) }
	answer := func(v harness.Value) (texts []string) {
		require.Len(t, v.Elems, len(all), "%v", v)
		for _, e := range v.Elems {
			if e.Kind == ':' {
				texts = append(texts, fmt.Sprint(e.Int()))
			} else {
				texts = append(texts, e.Str)
			}
		}
		return texts
	}
	text := func(id any) string { return m[0].Do("SHOW", id).Field("progress").Str }
	want := []string{"300", "300", "300", "300", "300", "60", noJob, "200", "300"}
	assert.Equal(t, want, answer(m[0].Do(working("PROGRESS", "first")...)))
	for _, id := range append(all[:6:6], leased) {
		assert.Equal(t, "first", text(id))
	}
	assert.Equal(t, want, answer(m[0].Do(append([]any{"EVAL", "return redis.call('WORKING', unpack(ARGV))", 0}, all...)...)))

	m[1].Pause()
	m[2].Pause()
	c := m[0].Dial()
	c.Send(working("PROGRESS", "second")...)
	assert.Equal(t, "PONG", m[0].Do("PING").Str, "one that waits doesn't hold up others")
	got := answer(c.Receive())
	for i, id := range all {
		switch {
		case id == plain || id == unknown:
			assert.Equal(t, want[i], got[i])
		default:
			assert.Contains(t, got[i], "-NOQUORUM Not enough nodes could agree to extend")
			assert.Equal(t, "first", text(id))
		}
	}
	assert.Equal(t, "second", text(plain))

	// CLIENT UNBLOCK answers with what is known.
	id := c.Do("CLIENT", "ID").Int()
	c.Send(working()...)
	harness.Await(t, 10*time.Second, "the client to wait", func() bool { return m[0].Do("CLIENT", "UNBLOCK", id).Is(1) })
	got = answer(c.Receive())
	assert.Equal(t, []string{"60", noJob}, got[5:7])
	assert.Contains(t, got[0], "-NOQUORUM")
	gone := m[0].Dial()
	gone.Send(working("PROGRESS", "third")...)
	gone.Close()
	m[1].Resume()
	m[2].Resume()
	harness.Await(t, 20*time.Second, "a majority", func() bool { return c.Do(working()...).Elems[0].Is(300) })
	for _, id := range all {
		if id != unknown {
			m[0].Do("ACKJOB", id)
		}
	}
	m.nobodyHolds(t)
}

// A delayed job is queued early. A client gets it, says WORKING at another node, and dies, and so does the node that queued it. The job comes again
// when its retry time is over, and not when its former delay is.
func TestWorkingOnAJobThatWasQueuedEarly(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"ENQUEUE", "NACK"} {
		m := start(t, 2)
		id := added(t, m[0].Dial(), "q", "b", 5000, "RETRY", 2, "REPLICATE", 2, "DELAY", 3600)
		require.Equal(t, int64(1), m[0].Do(how, id).Int())
		v := m[0].Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q")
		require.NotEmpty(t, v.Elems)
		harness.Await(t, 10*time.Second, "the other node to hear that it isn't delayed", func() bool { return m[1].Do("SHOW", id).Field("delay").Int() == 0 })
		require.Equal(t, int64(2), m[1].Do("WORKING", id).Int())
		m[0].Kill()
		v = m[1].Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
		require.NotEmpty(t, v.Elems, how)
		assert.Equal(t, id, v.Elems[0].Elems[1].Str)
	}
}
