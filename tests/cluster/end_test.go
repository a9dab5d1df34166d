package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A node that ends in order, as in a rolling restart, takes back the copies and votes that others hold for ADDJOBs that it
// hasn't answered. Their clients ask again at another node, and aren't refused because of their own first attempts.
func TestUnansweredAddsEndWithTheirNode(t *testing.T) {
	for name, options := range map[string][]any{
		"until-processed":   {"UNIQUE", "until-processed", "KEY", "k"},
		"before-processing": {"UNIQUE", "before-processing", "KEY", "k"},
		"window":            {"UNIQUE", "window", "TTL", 3600, "KEY", "k"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := start(t, 3)
			add := func(replicate int) []any {
				return append([]any{"ADDJOB", "q", "b", 5000, "REPLICATE", replicate, "RETRY", 300}, options...)
			}
			m[2].Pause()
			c := m[0].Dial()
			c.Send(add(3)...)
			harness.Await(t, 5*time.Second, "a copy", func() bool { return jobs(m[1]) == "1" })
			m[0].Stop()
			m[2].Resume()
			harness.Await(t, 5*time.Second, "the copies to be gone", func() bool { return jobs(m[1]) == "0" && jobs(m[2]) == "0" })
			v := m[1].Do(add(2)...)
			require.Equal(t, byte('+'), v.Kind, "%v", v)
			require.Equal(t, v.Str, taken(t, m[1]))
		})
	}
}

// A node that ends in order while it asks for votes takes its own votes back, too, though its data are saved by then. When it
// is back its own vote stands against nobody, with an AOF or without.
func TestOwnVotesEndWithTheirNode(t *testing.T) {
	for name, conf := range map[string]string{"AOF": "appendonly yes\nappendfsync always", "RDB": "appendonly no\nsave 3600 1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := start(t, 2, conf)
			locks := func() int { return len(m[0].Do("LOCK.SCAN", 0, "TYPE", "waiting").Elems[1].Elems) }
			add := []any{"ADDJOB", "q", "b", 5000, "RETRY", 300, "UNIQUE", "window", "TTL", 3600, "KEY", "k"}
			m[1].Pause()
			c := m[0].Dial()
			c.Send(add...)
			harness.Await(t, 5*time.Second, "its own vote", func() bool { return m[0].Info("jobmesh", "jobmesh_locks") == "1" })
			m[0].Stop()
			m[1].Resume()
			m[0].Restart()
			awaitReachable(t, m[0], 1)
			awaitReachable(t, m[1], 1)
			require.Equal(t, 0, locks())
			v := m[1].Do(add...)
			require.Equal(t, byte('+'), v.Kind, "%v", v)
			if name == "AOF" {
				m[0].Kill()
				m[0].Restart()
				harness.Await(t, 15*time.Second, "the later vote, which the log has behind the end of that one", func() bool { return locks() == 1 })
			}
		})
	}
}
