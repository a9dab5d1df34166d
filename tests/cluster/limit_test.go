package cluster

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// C1: never more jobs of a key run at a time than its limit, in the whole mesh, whichever node has them and the workers, and all are done. Workers
// acknowledge, give back and extend at any node.
func TestLifeC1(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	const jobs, limit = 60, 2
	for i := range jobs {
		added(t, m[i%3].Dial(), "q", fmt.Sprint(i), 5000, "REPLICATE", 1+i%3, "RETRY", 600, "UNIQUE", "during-processing", "KEY", fmt.Sprint(i%2), "LIMIT", limit)
	}
	var mutex sync.Mutex
	var workers sync.WaitGroup
	running, most, done := map[string]int{}, 0, 0
	for i := range 10 {
		workers.Go(func() {
			c, other := m[i%3].Dial(), m[(i+1)%3].Dial()
			for k := 0; ; k++ {
				mutex.Lock()
				over := done == jobs
				mutex.Unlock()
				if over {
					return
				}
				v := c.Do("GETJOB", "TIMEOUT", 1000, "FROM", "q")
				if v.NullArray() {
					continue
				}
				id, key := v.Elems[0].Elems[1].Str, v.Elems[0].Elems[2].Str
				key = string('0' + (key[len(key)-1]-'0')%2)
				mutex.Lock()
				running[key]++
				most = max(most, running[key])
				mutex.Unlock()
				time.Sleep(5 * time.Millisecond) // the work
				if k%5 == 1 {
					other.Do("WORKING", id)
				}
				end := "ACKJOB"
				if k%7 == 3 {
					end = "NACK"
				}
				mutex.Lock()
				running[key]--
				if end == "ACKJOB" {
					done++
				}
				mutex.Unlock()
				if k%2 == 0 {
					other.Do(end, id)
				} else {
					c.Do(end, id)
				}
			}
		})
	}
	workers.Wait()
	assert.LessOrEqual(t, most, limit)
	m.awaitNoJobs(t)
	m.nobodyHolds(t)
}

// C6: of many ADDJOBs at all nodes as many are added as the limit says. The next is left out at every node, or names one of the holders, until one of
// them is done, at whatever node. It works while a node is down.
func TestLifeC6(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	const limit = 3
	options := []any{"REPLICATE", 2, "RETRY", 600, "UNIQUE", "until-processed", "KEY", "k", "LIMIT", limit}
	var mutex sync.Mutex
	var ids []string
	var clients sync.WaitGroup
	for i := range 30 {
		clients.Go(func() {
			v := m[i%3].Dial().Do(append([]any{"ADDJOB", "q", "b", 20_000}, options...)...)
			mutex.Lock()
			defer mutex.Unlock()
			if !v.NullString() && assert.Equal(t, byte('+'), v.Kind, "%v", v) {
				ids = append(ids, v.Str)
			}
		})
	}
	clients.Wait()
	require.Len(t, ids, limit)
	slots := map[int64]bool{}
	for _, id := range ids {
		for _, s := range m {
			if v := s.Do("SHOW", id).Field("key-slot"); v.Kind != 0 {
				slots[v.Int()] = true
			}
		}
	}
	assert.Len(t, slots, limit, "each has its own")
	again := func(s *harness.Server, more ...any) harness.Value {
		return s.Do(append(append([]any{"ADDJOB", "q", "b", 20_000}, options...), more...)...)
	}
	for _, s := range m {
		require.True(t, again(s).NullString())
		v := again(s, "ONCONFLICT", "raise")
		named := 0
		for _, id := range ids {
			if v.Err("DUPLICATE " + id) {
				named++
			}
		}
		require.Equal(t, 1, named, "%v", v)
	}
	for i, s := range m {
		s.Do("ACKJOB", ids[0]) // it may not know the job
		var v harness.Value
		harness.Await(t, 20*time.Second, "a slot to be free", func() bool {
			v = again(m[(i+1)%3])
			return !v.NullString()
		})
		ids = append(ids[1:], v.Str)
	}
	m[2].Pause()
	m[0].Do("ACKJOB", ids[0])
	var v harness.Value
	harness.Await(t, 20*time.Second, "a slot to be free, while a node is down", func() bool {
		v = again(m[1])
		return !v.NullString() && !v.Err("NOQUORUM") && !v.Err("NOREPL")
	})
	m[2].Resume()
	require.Equal(t, byte('+'), v.Kind, "%v", v)
	m.await(t, 3)
	for _, s := range m {
		s.Do("QFLUSH", "q", "ALL")
	}
	for _, id := range append(ids, v.Str) {
		m[0].Do("ACKJOB", id)
	}
	m.nobodyHolds(t)
}

// C7: a window with a limit lets as many jobs of a key in as it says, at whatever nodes.
func TestLifeC7(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	options := []any{"REPLICATE", 1, "UNIQUE", "window", "TTL", 600, "KEY", "k", "LIMIT", 5}
	got := 0
	for i := range 9 {
		v := m[i%3].Do(append([]any{"ADDJOB", "q", "b", 20_000}, options...)...)
		if v.NullString() {
			continue
		}
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		got++
		m[(i+1)%3].Do("ACKJOB", v.Str)
	}
	assert.Equal(t, 5, got)
}

// A job that is given back at a node which isn't the one that delivered it frees its slot, and so does DELJOB of its only copy.
func TestLimitEndsElsewhere(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m.votes(t)
	options := []any{"REPLICATE", 3, "RETRY", 600, "UNIQUE", "during-processing", "KEY", "k", "LIMIT", 2}
	for i := range 6 {
		addUnique(t, m[0], "q", fmt.Sprint(i), options...)
	}
	v := m[1].Do("SHOW", fetch(t, m[0], "q"))
	first, second := v.Field("id").Str, fetch(t, m[1], "q")
	require.True(t, m[2].Do("GETJOB", "TIMEOUT", 300, "FROM", "q").NullArray())
	w := m[2].Dial()
	w.Send("GETJOB", "TIMEOUT", 60_000, "FROM", "q")
	require.EqualValues(t, 1, m[2].Do("NACK", first, "DELAY", 1000).Int())
	third := w.Receive().Elems[0].Elems[1].Str
	require.NotContains(t, []string{first, second}, third)
	w.Send("GETJOB", "TIMEOUT", 60_000, "FROM", "q")
	require.EqualValues(t, 1, m[0].Do("NACK", second, "DELAY", 1000).Int())
	fourth := w.Receive().Elems[0].Elems[1].Str
	require.NotContains(t, []string{first, second, third}, fourth)
	for i, id := range []string{third, fourth} {
		w.Send("GETJOB", "TIMEOUT", 60_000, "FROM", "q")
		require.EqualValues(t, 1, m[i].Do("CANCELJOB", id).Int())
		require.NotContains(t, []string{first, second, third, fourth}, w.Receive().Elems[0].Elems[1].Str)
	}
}
