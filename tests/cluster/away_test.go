package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A job is acknowledged or cancelled at another node while its queue lies in another database at
// the node where it waits. It doesn't come back with the queue.
func TestEndsReachJobsThatAreAway(t *testing.T) {
	m := start(t, 3)
	c := m[0].Dial()
	for _, verb := range []string{"ACKJOB", "FASTACK", "CANCELJOB"} {
		for _, who := range []string{"holder", "stranger"} {
			for _, swap := range []bool{false, true} {
				id := added(t, c, "q", "b", 2000, "RETRY", 100, "REPLICATE", 2)
				require.Equal(t, "queued", stateAt(m[0], id))
				with, without := m.others(id, m[0])
				at := with
				if who == "stranger" {
					at = without
				}
				take := func(from, to int) {
					if swap {
						require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
						return
					}
					c.Do("SELECT", from)
					require.Equal(t, int64(1), c.Do("MOVE", "q", to).Int())
					c.Do("SELECT", 0)
				}
				take(0, 1)
				size := func() int {
					c.Do("SELECT", 1)
					defer c.Do("SELECT", 0)
					return len(c.Do("DUMP", "q").Str)
				}
				before := size()
				at[0].Do(verb, id)
				harness.Await(t, 10*time.Second, verb+" at a "+who+" to reach it", func() bool { return size() < before-len("b") })
				take(1, 0)
				assert.True(t, c.Do("SHOW", id).Null, "%s at a %s, swapped: %v", verb, who, swap)
				assert.Equal(t, int64(0), c.Do("QLEN", "q").Int())
			}
		}
	}
}
