package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// A publication is heard once at each node, in order. A node that is away misses it.
func TestPublishOverTheMesh(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	subs := m.dial()
	for _, c := range subs {
		c.Send("SUBSCRIBE", "chan")
		require.Equal(t, "subscribe", c.Receive().Elems[0].Str)
	}
	c := m[1].Dial()
	const many = 500
	for i := range many {
		c.Later("JOBMESH", "PUBLISH", "chan", fmt.Sprint("m", i))
	}
	for range many {
		require.Equal(t, ":3", c.Receive().String())
	}
	for _, s := range subs {
		for i := range many {
			require.Equal(t, []string{"message", "chan", fmt.Sprint("m", i)}, s.Receive().Strings())
		}
	}
	m[2].Kill()
	harness.Await(t, 20*time.Second, "the node to be missed", func() bool { return c.Do("JOBMESH", "PUBLISH", "other", "x").Is(2) })
	require.Equal(t, ":2", c.Do("JOBMESH", "PUBLISH", "chan", "two").String())
	assert.Equal(t, []string{"message", "chan", "two"}, subs[0].Receive().Strings())
	assert.Equal(t, []string{"message", "chan", "two"}, subs[1].Receive().Strings())
	m[2].Restart()
	harness.Await(t, 20*time.Second, "the node to be told again", func() bool { return c.Do("JOBMESH", "PUBLISH", "other", "x").Is(3) })
	again := m[2].Dial()
	again.Send("SUBSCRIBE", "chan")
	again.Receive()
	require.Equal(t, ":3", c.Do("JOBMESH", "PUBLISH", "chan", "three").String())
	assert.Equal(t, []string{"message", "chan", "three"}, again.Receive().Strings())
	assert.Equal(t, []string{"message", "chan", "three"}, subs[1].Receive().Strings())
}

// A node that doesn't read doesn't take the memory of others: beyond some megabytes it isn't told, and jobs still are.
func TestPublishToANodeThatDoesNotRead(t *testing.T) {
	t.Parallel()
	m := start(t, 2, "jobmesh.cluster-node-timeout 20000")
	c := m[0].Dial()
	m[1].Pause()
	text := string(make([]byte, 65536))
	told := 0
	for range 400 {
		if c.Do("JOBMESH", "PUBLISH", "chan", text).Is(2) {
			told++
		}
	}
	assert.Less(t, told, 300, "most of 25 MB isn't told")
	id := added(t, c, "q", "b", 0, "ASYNC", "REPLICATE", 2)
	m[1].Resume()
	harness.Await(t, 30*time.Second, "the copy", func() bool { return jobs(m[1]) == "1" })
	require.Equal(t, ":2", c.Do("JOBMESH", "PUBLISH", "chan", "x").String())
	assert.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
}
