package cluster

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func addUnique(t *testing.T, s *harness.Server, queue, body string, options ...any) string {
	t.Helper()
	v := s.Do(append([]any{"ADDJOB", queue, body, 5000}, options...)...)
	require.Equal(t, byte('+'), v.Kind, "%v", v)
	return v.Str
}

// fetch gets a job. It doesn't use NOHANG, which gives up where the others haven't agreed
// within a second: then its answer would depend on how busy the machine is.
func fetch(t *testing.T, s *harness.Server, queue string) string {
	t.Helper()
	v := s.Do("GETJOB", "TIMEOUT", 20_000, "FROM", queue)
	require.Len(t, v.Elems, 1, "%v", v)
	return v.Elems[0].Elems[1].Str
}

// nobodyHolds waits until no node knows of a lock, or still has to tell others that one has ended.
func (m mesh) nobodyHolds(t *testing.T) {
	t.Helper()
	for _, s := range m {
		harness.Await(t, 20*time.Second, "no lock to be left", func() bool {
			return s.Info("jobmesh", "jobmesh_locks") == "0" && s.Info("jobmesh", "jobmesh_lock_claims") == "0"
		})
	}
}

// A key is taken at every node, for every ONCONFLICT, until its job is acknowledged at any node.
func TestUniqueOverTheMesh(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for _, replicate := range []any{1, 3} {
		opt := []any{"REPLICATE", replicate, "RETRY", 60, "UNIQUE", "until-processed", "KEY", "k"}
		more := func(s *harness.Server, o ...any) harness.Value {
			return s.Do(append(append([]any{"ADDJOB", "q", "other", 5000}, opt...), o...)...)
		}
		id := addUnique(t, m[0], "q", "first", opt...)
		for _, s := range m {
			assert.True(t, more(s).NullString(), "drop is the default")
			assert.True(t, more(s, "ONCONFLICT", "raise").Err("DUPLICATE "+id))
			assert.Equal(t, id, more(s, "ONCONFLICT", "return").Str)
			assert.True(t, more(s, "ASYNC").NullString())
		}
		addUnique(t, m[1], "another", "first", opt...)
		// Fetched on another node, acknowledged on the third: the key is free for all.
		for _, queue := range []string{"q", "another"} {
			v := m[1].Do("GETJOB", "TIMEOUT", 10_000, "FROM", queue)
			require.Len(t, v.Elems, 1, "%v", v)
			if queue == "q" {
				assert.True(t, more(m[2]).NullString(), "also while it is worked on")
			}
			m[2].Do("ACKJOB", v.Elems[0].Elems[1].Str)
		}
		m.nobodyHolds(t)
	}
	v := m[0].Do("EVAL", "return redis.pcall('ADDJOB', 'q', 'b', 0, 'REPLICATE', 1, 'UNIQUE', 'until-processed')", 0)
	assert.True(t, v.Err("NOQUORUM"), "%v", v)
	m.awaitNoJobs(t)
}

// A key is free at once when no node has its job any more, even if each node left the lock to
// the others.
func TestForgottenEverywhere(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for i, forget := range [][]any{{"FLUSHALL"}, {"DEL", "q"}, {"JOBMESH", "FLUSH"}, {"UNLINK", "q"}} {
		for _, replicate := range []int{1, 3} {
			key := fmt.Sprint(i, replicate)
			opt := []any{"REPLICATE", replicate, "UNIQUE", "until-processed", "KEY", key, "ONCONFLICT", "raise"}
			id := addUnique(t, m[i%3], "q", "b", opt...)
			harness.Await(t, 5*time.Second, "the copies", func() bool { return copies(m, id) == replicate })
			for _, s := range m {
				s.Do(forget...)
			}
			next := addUnique(t, m[(i+1)%3], "q", "b", opt...)
			for _, s := range m {
				v := s.Do("ADDJOB", "q", "b", 5000, "UNIQUE", "until-processed", "KEY", key, "ONCONFLICT", "return")
				assert.Equal(t, next, v.Str, "%v: %v", forget, v)
			}
		}
	}
}

// copies counts the nodes that have a job.
func copies(m mesh, id string) (n int) {
	for _, s := range m {
		if !s.Do("SHOW", id).Null {
			n++
		}
	}
	return n
}

// Many clients at all nodes add jobs of one key at the same time: exactly one is added.
func TestOneOfManyAdds(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for round := range 5 {
		var added, refused atomic.Int64
		var group sync.WaitGroup
		begin := make(chan struct{})
		for i := range 60 {
			c := m[i%3].Dial()
			group.Add(1)
			go func() {
				defer group.Done()
				defer c.Close()
				<-begin
				v := c.Do("ADDJOB", "q", "b", 10_000, "REPLICATE", 1, "UNIQUE", "until-processed", "KEY", round)
				switch {
				case v.Kind == '+':
					added.Add(1)
				case v.NullString():
					refused.Add(1)
				default:
					t.Errorf("%v", v)
				}
			}()
		}
		close(begin)
		group.Wait()
		assert.Equal(t, int64(1), added.Load())
		assert.Equal(t, int64(59), refused.Load())
	}
}

// Jobs of one key, added at all nodes and fetched at all nodes, run one at a time, and all of
// them run.
func TestRunsAreHeldBackOverNodes(t *testing.T) {
	t.Parallel()
	const each, keys = 12, 3
	m := start(t, 3)
	for i := range each * keys {
		addUnique(t, m[i%3], "q", fmt.Sprint(i%keys, ":", i), "REPLICATE", 1+i%2, "RETRY", 60, "UNIQUE", "during-processing", "KEY", i%keys, "SCOPE", "mesh")
	}
	var running [keys]atomic.Int32
	var done atomic.Int64
	var group sync.WaitGroup
	for i := range 6 {
		get, ack := m[i%3].Dial(), m[(i+1)%3].Dial()
		group.Add(1)
		go func() {
			defer group.Done()
			for done.Load() < each*keys {
				v := get.Do("GETJOB", "TIMEOUT", 500, "WITHTOKEN", "FROM", "q")
				if v.Null || len(v.Elems) == 0 {
					continue
				}
				e := v.Elems[0].Elems
				var key int
				_, _ = fmt.Sscan(strings.SplitN(e[2].Str, ":", 2)[0], &key)
				if !assert.Equal(t, int32(1), running[key].Add(1), "two run at once") {
					return
				}
				assert.Positive(t, e[4].Int())
				assert.Equal(t, int64(60), get.Do("WORKING", e[1].Str).Int())
				running[key].Add(-1)
				ack.Do("ACKJOB", e[1].Str)
				done.Add(1)
			}
		}()
	}
	group.Wait()
	assert.Equal(t, int64(each*keys), done.Load())
	m.awaitNoJobs(t)
	m.nobodyHolds(t)
}

// A client that waits at one node is served the moment the holder acknowledges at another. NOHANG
// waits no longer than the nodes need to agree.
func TestHeldBackIsServedAtOnce(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	opt := []any{"REPLICATE", 1, "RETRY", 60, "UNIQUE", "during-processing", "KEY", "k", "SCOPE", "mesh"}
	first := addUnique(t, m[0], "a", "1", opt...)
	addUnique(t, m[1], "b", "2", opt...)
	require.Equal(t, first, fetch(t, m[0], "a"))
	began := time.Now()
	assert.True(t, m[1].Do("GETJOB", "NOHANG", "FROM", "b").NullArray())
	assert.Less(t, time.Since(began), 900*time.Millisecond)
	c := m[1].Dial()
	c.Send("GETJOB", "TIMEOUT", 20_000, "FROM", "b")
	harness.Await(t, 5*time.Second, "the client to wait", func() bool { return m[1].Info("jobmesh", "jobmesh_blocked_clients") == "1" })
	began = time.Now()
	assert.Equal(t, int64(1), m[0].Do("ACKJOB", first).Int())
	v := c.Receive()
	require.Len(t, v.Elems, 1, "%v", v)
	assert.Less(t, time.Since(began), 900*time.Millisecond)
	m[1].Do("ACKJOB", v.Elems[0].Elems[1].Str)
	m.nobodyHolds(t)
}

// Without a majority no unique job is added, and nothing stays claimed. With QUORUM any it is
// added all the same.
func TestUniqueWithoutMajority(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	m[1].Kill()
	id := addUnique(t, m[0], "q", "b", "REPLICATE", 1, "UNIQUE", "until-processed")
	assert.True(t, m[2].Do("ADDJOB", "q", "b", 5000, "REPLICATE", 1, "UNIQUE", "until-processed").NullString())
	assert.Equal(t, int64(1), m[0].Do("ACKJOB", id).Int())
	for _, s := range []*harness.Server{m[0], m[2]} {
		harness.Await(t, 10*time.Second, "the lock to be free", func() bool { return s.Info("jobmesh", "jobmesh_locks") == "0" })
	}
	m[2].Kill()
	harness.Await(t, 10*time.Second, "the node to be alone", func() bool { return m[0].Info("jobmesh", "jobmesh_reachable_nodes") == "0" })
	for _, strategy := range []string{"until-processed", "before-processing"} {
		assert.True(t, m[0].Do("ADDJOB", "q", "b", 300, "REPLICATE", 1, "UNIQUE", strategy).Err("NOQUORUM"))
	}
	assert.Equal(t, "0", m[0].Info("jobmesh", "jobmesh_locks"))
	assert.Equal(t, "0", m[0].Info("jobmesh", "jobmesh_registered_jobs"))
	addUnique(t, m[0], "q", "b", "REPLICATE", 1, "UNIQUE", "until-processed", "QUORUM", "any")
	assert.True(t, m[0].Do("ADDJOB", "q", "b", 300, "REPLICATE", 1, "UNIQUE", "until-processed", "QUORUM", "any").NullString())
}

// WORKING is answered when a majority has agreed that the run's lock begins anew; without
// one it is refused, and the job stays with its worker.
func TestWorkingNeedsAMajority(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	run := func(queue string, more ...any) string {
		id := addUnique(t, m[0], queue, "b", append([]any{"REPLICATE", 1, "RETRY", 300, "UNIQUE"}, more...)...)
		v := m[0].Do("GETJOB", "TIMEOUT", 10_000, "FROM", queue)
		require.Len(t, v.Elems, 1, "%v", v)
		require.Equal(t, id, v.Elems[0].Elems[1].Str)
		return id
	}
	id, until := run("q", "during-processing"), run("q", "until-processed", "KEY", "u")
	leased, any := run("q", "until-processed", "KEY", "l", "LOCKTTL", 300), run("q", "during-processing", "KEY", "a", "QUORUM", "any")
	all := []string{id, until, leased, any}
	for _, id := range all {
		assert.Equal(t, int64(300), m[0].Do("WORKING", id).Int())
	}
	left := func(s *harness.Server) int64 {
		return s.Do("LOCK.SHOW", "l", "TYPE", "waiting", "QUEUE", "q").Field("ttl").Int()
	}
	before := left(m[0])
	harness.Await(t, 5*time.Second, "time to pass", func() bool { return left(m[0]) < before-100 })
	for range 2 {
		assert.Equal(t, int64(300), m[0].Do("WORKING", leased).Int())
	}
	assert.Greater(t, left(m[0]), before-100)

	c := m[0].Dial()
	m[1].Pause()
	assert.Equal(t, int64(300), m[0].Do("WORKING", id).Int(), "two of three are enough")
	m[2].Pause()
	for _, id := range []string{id, leased} { // one that waits doesn't hold up others
		c.Send("WORKING", id)
		assert.Equal(t, "PONG", m[0].Do("PING").Str)
		assert.True(t, c.Receive().Err("NOQUORUM Not enough nodes could agree to extend"))
	}
	gone := m[0].Dial()
	gone.Send("WORKING", id)
	gone.Close()
	v := m[0].Do("EVAL", "return redis.call('WORKING', ARGV[1])", 0, id)
	assert.Equal(t, int64(300), v.Int(), "a script can't wait: %v", v)
	assert.Equal(t, int64(300), c.Do("WORKING", until).Int(), "its lock has no end")
	assert.Equal(t, "active", m[0].Do("SHOW", id).Field("state").Str)
	m[1].Resume()
	m[2].Resume()
	harness.Await(t, 20*time.Second, "a majority", func() bool { return c.Do("WORKING", id).Is(300) })
	for _, id := range all {
		assert.Equal(t, int64(300), m[0].Do("WORKING", id).Int())
		assert.Equal(t, int64(1), m[0].Do("ACKJOB", id).Int())
	}
	m.nobodyHolds(t)
}

// The node that gave a job to a client is killed. When the retry time is over, the job runs
// elsewhere, and so do the jobs that were held back behind it.
func TestHolderIsKilled(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	opt := []any{"REPLICATE", 2, "RETRY", 2, "UNIQUE", "during-processing", "KEY", "k", "SCOPE", "mesh"}
	first := addUnique(t, m[0], "q", "1", opt...)
	require.Equal(t, first, fetch(t, m[0], "q"))
	// A queue of its own: the node that is killed may have asked the others for jobs of the first one's.
	second := addUnique(t, m[1], "other", "2", "REPLICATE", 1, "RETRY", 60, "UNIQUE", "during-processing", "KEY", "k", "SCOPE", "mesh")
	assert.True(t, m[1].Do("GETJOB", "NOHANG", "FROM", "q", "other").NullArray())
	m[0].Kill()
	got := map[string]bool{}
	for len(got) < 2 {
		v := m[1].Do("GETJOB", "TIMEOUT", 30_000, "FROM", "q", "other")
		require.Len(t, v.Elems, 1, "%v", v)
		id := v.Elems[0].Elems[1].Str
		got[id] = true
		m[2].Do("ACKJOB", id)
	}
	assert.True(t, got[first] && got[second])
}

// A queue that is deleted, or flushed, leaves no lock behind at any node. The locks end without
// an ADDJOB that is refused first.
func TestDeletedQueueFreesItsKeys(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for _, end := range [][]any{{"DEL", "q"}, {"FLUSHALL"}} {
		for i := range 5 {
			addUnique(t, m[0], "q", "b", "REPLICATE", 1, "RETRY", 60, "UNIQUE", "until-processed", "KEY", i)
			addUnique(t, m[0], "q", "b", "REPLICATE", 1, "RETRY", 60, "UNIQUE", "during-processing", "KEY", i)
		}
		for range 7 {
			fetch(t, m[0], "q")
		}
		require.NotEqual(t, "0", m[1].Info("jobmesh", "jobmesh_locks"))
		m[0].Do(end...)
		m.nobodyHolds(t)
		for i := range 5 {
			id := addUnique(t, m[1+i%2], "q", "b", "REPLICATE", 1, "UNIQUE", "until-processed", "KEY", i)
			m[0].Do("ACKJOB", id)
		}
	}
}

// A queue that comes by RESTORE, or under another name, brings its jobs' keys: the other nodes are asked for
// them, so that none gives one to another job.
func TestKeysOfAQueueThatComesOverTheMesh(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	options := []any{"REPLICATE", 1, "RETRY", 600, "UNIQUE", "until-processed", "KEY", "k"}
	id := addUnique(t, m[0], "q", "first", options...)
	dump := m[0].Do("DUMP", "q").Str
	require.Equal(t, int64(1), m[0].Do("DEL", "q").Int())
	m.nobodyHolds(t)
	require.Equal(t, "OK", m[0].Do("RESTORE", "q", 0, dump).Str)
	for _, queue := range []string{"q", "other"} {
		if queue != "q" {
			require.Equal(t, "OK", m[0].Do("RENAME", "q", queue).Str)
		}
		for _, s := range m {
			harness.Await(t, 30*time.Second, "the vote", func() bool {
				return s.Do("LOCK.SHOW", "k", "TYPE", "waiting", "QUEUE", queue).Field("job").Str == id
			})
			v := s.Do(append([]any{"ADDJOB", queue, "second", 5000}, options...)...)
			assert.True(t, v.NullString(), "%s: %v", queue, v)
		}
	}
	require.Equal(t, int64(1), m[0].Do("ACKJOB", id).Int())
	addUnique(t, m[1], "other", "next", options...)
}
