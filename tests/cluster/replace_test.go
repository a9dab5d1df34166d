package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// replacing is ADDJOB queue body ms options ONCONFLICT … at a node.
func replacing(s *harness.Server, queue, body string, ms int, options ...any) harness.Value {
	return s.Do(append([]any{"ADDJOB", queue, body, ms, "UNIQUE", "until-processed", "KEY", "k"}, options...)...)
}

func body(s *harness.Server, id string) string { return s.Do("SHOW", id).Field("body").Str }

// B3: a delay begins anew, and a body is replaced, at every node: one that has the job, one with a copy, and one that has neither.
func TestLifeB3(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	debounce := []any{"RETRY", 600, "ONCONFLICT", "debounce", 6000}
	id := addUnique(t, m[0], "q", "first", "RETRY", 600, "REPLICATE", 2, "DELAY", 600, "UNIQUE", "until-processed", "KEY", "k")
	holders := map[int]bool{}
	for i, s := range m {
		if holders[i] = !s.Do("SHOW", id).Null; !holders[i] {
			continue
		}
		assert.InDelta(t, 600, s.Do("SHOW", id).Field("delay").Int(), 0)
	}
	for i, s := range m {
		for again, text := range []string{"a", "b"} { // the second time the node knows the vote
			within := int64(1000*(i+2) + again) // in the same millisecond an equal delay is no change, and doesn't count as one
			require.Equal(t, id, replacing(s, "q", text, 5000, append(debounce, "DELAY", within)...).Str)
			for k, s := range m {
				if holders[k] {
					assert.Equal(t, text, body(s, id), "node %d has it before the answer by %d", k, i)
					assert.Equal(t, within, s.Do("SHOW", id).Field("delay").Int(), "node %d, as %d has said", k, i)
				}
			}
			due := m[0].Do("SHOW", id).Field("next-requeue-within").Int()
			assert.Greater(t, due, 1000*(within-60))
			assert.LessOrEqual(t, due, 1000*within)
		}
	}
	assert.Equal(t, "6", m[0].Info("jobmesh", "jobmesh_unique_replaced"))
	assert.Equal(t, "6", m[0].Info("jobmesh", "jobmesh_unique_debounced"))
	// Near its bound it is due by then.
	require.Equal(t, id, replacing(m[2], "q", "last", 5000, "RETRY", 600, "ONCONFLICT", "debounce", 60, "DELAY", 50_000).Str)
	assert.LessOrEqual(t, m[0].Do("SHOW", id).Field("next-requeue-within").Int(), int64(60_000))
	// A burst at all nodes: the last one runs, once.
	for i := range 9 {
		require.Equal(t, id, replacing(m[i%3], "q", string('0'+rune(i)), 5000, "RETRY", 600, "ONCONFLICT", "debounce", 60, "DELAY", 2).Str)
	}
	v := m[1].Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
	require.Len(t, v.Elems, 1, "%v", v)
	assert.Equal(t, []string{"q", id, "8"}, v.Elems[0].Strings())
	for _, s := range m {
		assert.True(t, replacing(s, "q", "late", 5000, append(debounce, "DELAY", 5)...).Err("DUPLICATE "+id), "it runs")
	}
	m[1].Do("ACKJOB", id)
	m.nobodyHolds(t)
	m.awaitNoJobs(t)
}

// Several producers begin a burst at the same moment, at one node and at all: each is answered with the one job's ID, though the job's own ADDJOB
// still waits for votes and copies when they come. So none of the bodies is refused, and the last one isn't lost.
func TestReplaceBurst(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for nodes := range 3 {
		var conns []*harness.Conn
		for i := range 6 {
			conns = append(conns, m[i%(nodes+1)].Dial())
		}
		for round := range 10 {
			key := string('a'+rune(nodes)) + string('0'+rune(round))
			for i, c := range conns {
				c.Send("ADDJOB", "q", i, 20_000, "DELAY", 600, "RETRY", 600, "REPLICATE", 2, "UNIQUE", "until-processed", "KEY", key, "ONCONFLICT", "debounce", 6000)
			}
			id := conns[0].Receive()
			require.Equal(t, byte('+'), id.Kind, "%v", id)
			for _, c := range conns[1:] {
				require.Equal(t, id.Str, c.Receive().Str)
			}
			var bodies []string
			for _, s := range m {
				if v := s.Do("SHOW", id.Str); !v.Null {
					bodies = append(bodies, v.Field("body").Str)
				}
			}
			require.GreaterOrEqual(t, len(bodies), 2)
			for _, b := range bodies[1:] {
				assert.Equal(t, bodies[0], b)
			}
		}
	}
}

// B4: one job of a key runs, one waits (before-and-during-processing). The waiting one's body is replaced at every node, its place stays. While
// its node is down it can't be replaced.
func TestLifeB4(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "appendfsync always")
	both := []any{"RETRY", 60, "REPLICATE", 3, "UNIQUE", "before-and-during-processing", "KEY", "k", "ONCONFLICT", "replace"}
	runs := addUnique(t, m[0], "q", "runs", both...)
	require.Equal(t, runs, fetch(t, m[0], "q"))
	waits := addUnique(t, m[0], "q", "waits", both...)
	require.NotEqual(t, runs, waits)
	behind := addUnique(t, m[0], "q", "behind", "RETRY", 60)
	for i, s := range m {
		text := "by node " + string('0'+rune(i))
		require.Equal(t, waits, addUnique(t, s, "q", text, both...))
		for k, s := range m {
			assert.Equal(t, text, body(s, waits), "node %d", k)
		}
	}
	b := m[1].Do("ADDJOBS", "q", 5000, "RETRY", 60, "REPLICATE", 3, "UNIQUE", "before-and-during-processing", "ONCONFLICT", "replace", "PAIRS", "k", "bulk", "another", "new")
	require.Len(t, b.Elems, 2, "%v", b)
	assert.Equal(t, waits, b.Elems[0].Str)
	assert.Equal(t, "bulk", body(m[0], waits))
	m[0].Kill()
	harness.Await(t, 20*time.Second, "the others to miss the node", func() bool {
		return m[1].Info("jobmesh", "jobmesh_reachable_nodes") == "1" && m[2].Info("jobmesh", "jobmesh_reachable_nodes") == "1"
	})
	for _, s := range m[1:] {
		v := s.Do(append([]any{"ADDJOB", "q", "refused", 5000}, both[4:]...)...)
		assert.True(t, v.Err("DUPLICATE "+waits), "%v", v)
		assert.Equal(t, "bulk", body(s, waits), "a refusal changes nothing")
	}
	m[0].Restart()
	m.await(t, 3)
	m.votes(t)
	require.Equal(t, waits, addUntilReplaced(t, m[2], "q", "after", both...))
	assert.Equal(t, "after", body(m[0], waits))
	m[0].Do("ACKJOB", runs)
	got := map[string]string{}
	for range 3 {
		v := m[0].Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
		require.Len(t, v.Elems, 1, "%v", v)
		got[v.Elems[0].Elems[1].Str] = v.Elems[0].Elems[2].Str
		m[0].Do("ACKJOB", v.Elems[0].Elems[1].Str)
	}
	assert.Equal(t, "after", got[waits])
	assert.Equal(t, "behind", got[behind])
}

// addUntilReplaced repeats an ADDJOB until it isn't refused as DUPLICATE. It is after a restart, for a node first asks the others about its jobs.
func addUntilReplaced(t *testing.T, s *harness.Server, queue, text string, options ...any) (id string) {
	t.Helper()
	harness.Await(t, 20*time.Second, "the job to be replaced", func() bool {
		v := s.Do(append([]any{"ADDJOB", queue, text, 5000}, options...)...)
		if v.Err("DUPLICATE") {
			return false
		}
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		id = v.Str
		return true
	})
	return id
}

// An ADDJOB whose question has no answer is refused when its time is over, or a second. In MULTI and scripts nobody is asked. A node of the
// version before isn't asked either, see TestScripts/replace_former.
func TestReplaceUnanswered(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes")
	id := addUnique(t, m[0], "q", "first", "RETRY", 600, "REPLICATE", 1, "UNIQUE", "until-processed", "KEY", "k")
	require.Equal(t, id, replacing(m[1], "q", "second", 5000, "RETRY", 600, "ONCONFLICT", "replace").Str)
	script := "return redis.pcall('ADDJOB', 'q', 'b', 0, 'REPLICATE', 1, 'UNIQUE', 'until-processed', 'KEY', 'k', 'ONCONFLICT', 'replace')"
	assert.True(t, m[1].Do("EVAL", script, 0).Err("NOQUORUM"), "the votes can't be waited for")
	assert.Equal(t, id, m[0].Do("EVAL", script, 0).Str, "the node that has it")
	assert.Equal(t, "b", body(m[0], id))
	c := m[1].Dial()
	m[0].Pause()
	c.Send("ADDJOB", "q", "late", 300, "RETRY", 600, "UNIQUE", "until-processed", "KEY", "k", "ONCONFLICT", "replace")
	v := c.Receive()
	assert.True(t, v.Err("DUPLICATE") || v.Err("NOQUORUM") || v.Err("NOREPL"), "%v", v)
	m[0].Resume()
	m.await(t, 3)
	harness.Await(t, 20*time.Second, "the mesh to work again", func() bool {
		return replacing(m[2], "q", "final", 5000, "RETRY", 600, "ONCONFLICT", "replace").Str == id && body(m[0], id) == "final"
	})
}

// A large body goes to the node that has the job, and to the copies.
func TestReplaceByALargeBody(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	id := addUnique(t, m[0], "q", "small", "RETRY", 600, "REPLICATE", 2, "UNIQUE", "until-processed", "KEY", "k")
	large := make([]byte, 1<<20)
	for i := range large {
		large[i] = byte('a' + i%26)
	}
	for i := range m {
		large[0] = byte('0' + i)
		// A slow machine needs more than the second that an answer may take.
		require.Equal(t, id, addUntilReplaced(t, m[i], "q", string(large), "RETRY", 600, "UNIQUE", "until-processed", "KEY", "k", "ONCONFLICT", "replace"))
		assert.True(t, string(large) == body(m[0], id), "node %d", i)
	}
	harness.Await(t, 20*time.Second, "the copy", func() bool {
		same := 0
		for _, s := range m {
			if body(s, id) == string(large) {
				same++
			}
		}
		return same == 2
	})
}

// A body that was replaced while a holder was away is the one that the holder delivers when all nodes are back, also if the node with the job
// was restarted, in order, meanwhile.
func TestReplacedWhileAway(t *testing.T) {
	t.Parallel()
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted %v", restarts), func(t *testing.T) {
			m := start(t, 3, "appendonly yes", "appendfsync always")
			id := addUnique(t, m[0], "q", "one", "RETRY", 600, "REPLICATE", 3, "UNIQUE", "until-processed", "KEY", "k")
			require.Equal(t, "one", body(m[2], id))
			m[2].Kill()
			harness.Await(t, 20*time.Second, "the others to miss the node", func() bool {
				return m[0].Info("jobmesh", "jobmesh_reachable_nodes") == "1" && m[1].Info("jobmesh", "jobmesh_reachable_nodes") == "1"
			})
			require.Equal(t, id, addUntilReplaced(t, m[0], "q", "two", "RETRY", 600, "UNIQUE", "until-processed", "KEY", "k", "ONCONFLICT", "replace"))
			require.Equal(t, "two", body(m[1], id))
			if restarts {
				m[0].Stop()
				m[0].Restart()
			}
			m[2].Restart()
			m.await(t, 3)
			v := m[2].Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
			require.Len(t, v.Elems, 1, "%v", v)
			require.Equal(t, []string{"q", id, "two"}, v.Elems[0].Strings())
			for _, s := range m { // the copies, too
				harness.Await(t, 20*time.Second, "the body to be everywhere", func() bool { return body(s, id) == "two" })
			}
		})
	}
}
