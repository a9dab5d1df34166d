package cluster

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// Each of these tests does something that crashed Disque, or made it lose a job or break
// a promise.

// held returns the IDs of all jobs that a node knows.
func held(s *harness.Server) []string {
	cursor, all := "0", []string(nil)
	for {
		v := s.Do("JSCAN", cursor, "COUNT", 1000)
		all = append(all, v.Elems[1].Strings()...)
		if cursor = v.Elems[0].Str; cursor == "0" {
			return all
		}
	}
}

// stop stops nodes for a while. The others still believe that they are there.
func (m mesh) stop() {
	for _, s := range m {
		s.Pause()
	}
}

func (m mesh) resume() {
	for _, s := range m {
		s.Resume()
	}
}

func (m mesh) noneToGet(t *testing.T) {
	t.Helper()
	for i, s := range m {
		v := s.Do("GETJOB", "NOHANG", "FROM", "q")
		assert.True(t, v.NullArray(), "node %d: %v", i, v)
	}
}

// Disque kept a pointer to a client that had gone.
func TestClientLeavesWhileItsJobIsReplicated(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "jobmesh.cluster-node-timeout 60000")
	m[1:].stop()
	var all []*harness.Conn
	for i := range 200 {
		c := m[0].Dial()
		c.Send("ADDJOB", "q", i, 0, "REPLICATE", 3, "RETRY", 1)
		all = append(all, c)
	}
	harness.Await(t, 10*time.Second, "the jobs to wait for their copies", func() bool { return jobs(m[0]) == "200" })
	for _, c := range all[:199] {
		c.Close()
	}
	harness.Await(t, 10*time.Second, "the jobs of those who left to be gone", func() bool { return jobs(m[0]) == "1" })
	m[1:].resume()
	id := all[199].Receive()
	require.Equal(t, byte('+'), id.Kind, "who stayed is answered: %v", id)
	for _, s := range m[1:] {
		harness.Await(t, 10*time.Second, "the copies to be taken back", func() bool { return jobs(s) == "1" })
	}
	v := m[2].Do("GETJOB", "TIMEOUT", 10000, "FROM", "q")
	require.Len(t, v.Elems, 1)
	assert.Equal(t, id.Str, v.Elems[0].Elems[1].Str)
	assert.Equal(t, int64(1), m[2].Do("ACKJOB", id.Str).Int())
	m.awaitNoJobs(t)
}

// Clients leave at any moment while their jobs are replicated, and the nodes answer.
func TestClientsLeaveAtAnyMoment(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for i := range 300 {
		c, err := harness.Dial(m[i%3].Addr(), time.Second)
		require.NoError(t, err)
		c.Send("ADDJOB", "q", i, 0, "REPLICATE", 3, "RETRY", 1)
		c.Silent(time.Duration(i%20) * 50 * time.Microsecond)
		c.Close()
	}
	// A job that got its copies in time stays. The others leave nothing behind.
	got := 0
	quiet := func() bool { return jobs(m[0]) == "0" && jobs(m[1]) == "0" && jobs(m[2]) == "0" }
	harness.Await(t, 20*time.Second, "all jobs to be gone", func() bool {
		for _, s := range m {
			for _, job := range s.Do("GETJOB", "NOHANG", "COUNT", 100, "FROM", "q").Elems {
				s.Do("ACKJOB", job.Elems[1].Str)
				got++
			}
		}
		return quiet()
	})
	t.Logf("%d of 300 were added", got)
}

// In Disque the client waited on, and was refused in the end.
func TestAcknowledgedElsewhereWhileItIsReplicated(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "jobmesh.cluster-node-timeout 60000")
	for name, at := range map[string]int{"at another holder": 1, "where it was added": 0} {
		m[2].Pause()
		c := m[0].Dial()
		c.Send("ADDJOB", "q", "body", 0, "REPLICATE", 3, "RETRY", 1)
		id := m.givenElsewhere(t)
		assert.Equal(t, "wait-repl", m[0].Do("SHOW", id).Field("state").Str, name)
		assert.True(t, c.Silent(10*time.Millisecond), name)
		assert.Equal(t, int64(1), m[at].Do("ACKJOB", id).Int(), name)
		assert.Equal(t, "+"+strconv.Quote(id), c.Receive().String(), "%s: its client is told", name)
		m[2].Resume()
		m.awaitNoJobs(t)
		m.noneToGet(t)
	}
}

// givenElsewhere makes the second node give the only job to a client, while the job is still being added at the
// first node. The first one stands still, so it doesn't object when the copy's retry time is over.
func (m mesh) givenElsewhere(t *testing.T) (id string) {
	t.Helper()
	harness.Await(t, 10*time.Second, "the copy", func() bool { return jobs(m[1]) == "1" })
	m[0].Pause()
	v := m[1].Do("GETJOB", "TIMEOUT", 10000, "FROM", "q")
	m[0].Resume()
	require.Len(t, v.Elems, 1)
	return v.Elems[0].Elems[1].Str
}

// The same at a node that keeps no copy itself, since it is short of memory.
func TestAcknowledgedWhileItIsReplicatedFromOutside(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "jobmesh.cluster-node-timeout 60000")
	m.short(t, 0)
	for _, at := range []int{1, 0} {
		m[2].Pause()
		c := m[0].Dial()
		c.Send("ADDJOB", "q", "body", 0, "REPLICATE", 2, "RETRY", 1)
		id := m.givenElsewhere(t)
		assert.Equal(t, int64(1), m[at].Do("ACKJOB", id).Int())
		assert.Equal(t, id, c.Receive().Str)
		m[2].Resume()
		m.awaitNoJobs(t)
		m.noneToGet(t)
	}
}

// short puts a node above 75 % of its memory, and waits until the others know.
func (m mesh) short(t *testing.T, which int) {
	t.Helper()
	s := m[which]
	memory(t, s, 0.85, "1")
	for i, other := range m {
		if i != which {
			harness.Await(t, 10*time.Second, "the others to know", func() bool {
				return other.Info("jobmesh", "jobmesh_reachable_nodes") == strconv.Itoa(len(m)-2)
			})
		}
	}
}

// memory sets maxmemory so that the memory in use is that share of it, and waits until the node's memory
// level is the given one.
func memory(t *testing.T, s *harness.Server, share float64, level string) {
	t.Helper()
	// Ballast, so that a client more or less makes no difference.
	s.Do("SETRANGE", "ballast", 20_000_000, "x")
	require.Equal(t, "OK", s.Do("CONFIG", "SET", "maxmemory", int64(float64(s.UsedMemory())/share)).Str)
	harness.Await(t, 5*time.Second, "memory level "+level, func() bool { return s.Info("jobmesh", "jobmesh_memory_level") == level })
}

func TestNodeRunsOutOfMemoryWhileItReplicates(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "jobmesh.cluster-node-timeout 60000")
	m[1:].stop()
	var waiting []*harness.Conn
	for range 50 {
		c := m[0].Dial()
		c.Send("ADDJOB", "q", strings.Repeat("x", 1000), 0, "REPLICATE", 3, "RETRY", 1)
		waiting = append(waiting, c)
	}
	harness.Await(t, 10*time.Second, "the jobs to wait for their copies", func() bool { return jobs(m[0]) == "50" })
	memory(t, m[0], 1.5, "2")
	// The node has nothing to evict: jobs that aren't promised yet are never evicted.
	assert.True(t, m[0].Do("ADDJOB", "q", "b", 1000, "REPLICATE", 1).Err("OOM"))
	m[1:].resume()
	for _, c := range waiting {
		v := c.Receive()
		assert.Equal(t, byte('+'), v.Kind, "%v", v)
	}
	got := map[string]bool{}
	harness.Await(t, 20*time.Second, "all jobs", func() bool {
		for _, s := range m {
			for _, job := range s.Do("GETJOB", "NOHANG", "COUNT", 100, "FROM", "q").Elems {
				got[job.Elems[1].Str] = true
				s.Do("ACKJOB", job.Elems[1].Str)
			}
		}
		return len(got) == 50
	})
	m.awaitNoJobs(t)
}

// Nodes fill up while several clients add jobs. Every job that was promised is there, and no copy of
// a job that wasn't.
func TestNodesRunOutOfMemoryWhileTheyReplicate(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	for i, s := range m {
		used, err := strconv.Atoi(s.Info("memory", "used_memory"))
		require.NoError(t, err)
		require.Equal(t, "OK", s.Do("CONFIG", "SET", "maxmemory", used*3/2+(4+2*i)<<20).Str)
	}
	var promised sync.Map
	var group sync.WaitGroup
	var refused, added atomic.Int64
	body := strings.Repeat("x", 20_000)
	for i := range 6 {
		c := m[i%3].Dial()
		group.Go(func() {
			for refused.Load() < 60 {
				switch v := c.Do("ADDJOB", "q", body, 1000, "REPLICATE", 2, "RETRY", 1); {
				case v.Kind == '+':
					promised.Store(v.Str, true)
					added.Add(1)
				case v.Err("NOREPL"), v.Err("OOM"):
					refused.Add(1)
				default:
					t.Errorf("ADDJOB answers %v", v)
					return
				}
			}
		})
	}
	group.Wait()
	t.Logf("%d jobs were promised", added.Load())
	require.Positive(t, added.Load())
	left := int(added.Load())
	// An acknowledgement may have been evicted, so a job may come twice.
	for _, s := range m {
		require.Equal(t, "OK", s.Do("CONFIG", "SET", "maxmemory", 0).Str)
	}
	harness.Await(t, 30*time.Second, "all jobs, and no other", func() bool {
		for _, s := range m {
			for _, job := range s.Do("GETJOB", "NOHANG", "COUNT", 100, "FROM", "q").Elems {
				id := job.Elems[1].Str
				if _, yes := promised.LoadAndDelete(id); yes {
					left--
				}
				s.Do("ACKJOB", id)
			}
		}
		return left == 0 && jobs(m[0]) == "0" && jobs(m[1]) == "0" && jobs(m[2]) == "0"
	})
}

// An acknowledgement is kept until all nodes that may have a copy know of it, and no longer, whatever
// happens to these nodes meanwhile. (Partitions need network namespaces: see
// TestAcknowledgedDuringAPartition.)
func TestGarbageCollectionWhileANodeIsAway(t *testing.T) {
	t.Parallel()
	m := start(t, 3, durable...)
	add := func() (ids []any) {
		for range 20 {
			v := m[0].Do("ADDJOB", "q", "b", 5000, "REPLICATE", 3, "RETRY", 3)
			require.Equal(t, byte('+'), v.Kind, "%v", v)
			ids = append(ids, v.Str)
		}
		return ids
	}
	for name, away := range map[string]struct{ leave, back func() }{
		"the third is stopped":        {m[2].Pause, m[2].Resume},
		"the third is killed":         {m[2].Kill, m[2].Restart},
		"and who acknowledged is too": {m[2].Kill, func() { m[1].Kill(); m[2].Restart(); m[1].Restart() }},
	} {
		ids := add()
		away.leave()
		assert.Equal(t, int64(20), m[1].Do(append([]any{"ACKJOB"}, ids...)...).Int(), name)
		harness.Await(t, 10*time.Second, name+": all who are there to know", func() bool {
			return len(held(m[0])) == 20 && m[0].Do("SHOW", ids[0]).Field("state").Str == "acked" &&
				m[0].Do("SHOW", ids[19]).Field("state").Str == "acked"
		})
		away.back()
		// A node that hasn't heard of the acknowledgements would deliver the jobs now.
		for _, s := range m {
			harness.Await(t, 20*time.Second, name+": the jobs to be gone", func() bool { return jobs(s) == "0" })
		}
		m.noneToGet(t)
		m.await(t, 3)
	}
	// A node that never comes back is forgotten.
	ids := add()
	gone := m[2].Do("JOBMESH", "CLUSTER", "MYID").Str
	m[2].Kill()
	assert.Equal(t, int64(20), m[1].Do(append([]any{"ACKJOB"}, ids...)...).Int())
	for i, s := range m[:2] {
		assert.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "FORGET", gone).Str, fmt.Sprint(i))
	}
	m[:2].awaitNoJobs(t)
}

// A copy is confirmed, and a job is promised, only once the log has it: so a node that is killed then
// comes back with it. The log is a full pipe here.
func TestNothingIsConfirmedBeforeItIsLogged(t *testing.T) {
	t.Parallel()
	for which, name := range []string{"the promise", "the copy"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := start(t, 2, "appendonly yes", "appendfsync no") // a pipe can't be synced
			log := pipedLog(t, m[which])
			log.fill(t)
			c := m[0].Dial()
			c.Send("ADDJOB", "q", "body", 0, "REPLICATE", 2, "RETRY", 60)
			require.True(t, c.Silent(300*time.Millisecond), "a job was promised that isn't in the log")
			written := log.await(t, "LOADJOB")
			v := c.Receive()
			require.Equal(t, byte('+'), v.Kind, "%v", v)
			assert.Contains(t, written, "body")
		})
	}
}

// aofPipe is a pipe in the place of the file that a server logs to.
type aofPipe int

// pipedLog makes a server that has an AOF go on logging to a pipe.
func pipedLog(t *testing.T, s *harness.Server) aofPipe {
	path := filepath.Join(s.Dir, "appendonlydir", "appendonly.aof.2.incr.aof")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { syscall.Close(fd) })
	s.RewriteAOF()
	return aofPipe(fd)
}

// fill fills the pipe, so that the server's next write to it waits.
func (p aofPipe) fill(t *testing.T) {
	for _, size := range []int{4096, 1} {
		err := error(nil)
		for err == nil {
			_, err = syscall.Write(int(p), make([]byte, size))
		}
		require.Equal(t, syscall.EAGAIN, err)
	}
}

// await empties the pipe until text comes, and returns all that came.
func (p aofPipe) await(t *testing.T, text string) string {
	var all []byte
	buf := make([]byte, 64<<10)
	harness.Await(t, 10*time.Second, text+" in the log", func() bool {
		if n, err := syscall.Read(int(p), buf); err == nil {
			all = append(all, buf[:n]...)
		}
		return bytes.Contains(all, []byte(text))
	})
	return string(all)
}

// If a node that is away must still hear of an acknowledged job, the other holders keep the job without
// its body, across saves and restarts. They tell that node as soon as it is back.
func TestAcknowledgedJobsKeepNoBodies(t *testing.T) {
	t.Parallel()
	m := start(t, 3, durable...)
	const jobs, size = 300, 100_000
	used := func(s *harness.Server) int {
		n, err := strconv.Atoi(s.Info("memory", "used_memory"))
		require.NoError(t, err)
		return n
	}
	var ids []any
	for range jobs {
		v := m[0].Do("ADDJOB", "q", strings.Repeat("x", size), 5000, "REPLICATE", 3)
		require.Equal(t, byte('+'), v.Kind, "%v", v)
		ids = append(ids, v.Str)
	}
	m[2].Kill()
	require.Equal(t, int64(jobs), m[1].Do(append([]any{"ACKJOB"}, ids...)...).Int())
	for i, s := range m[:2] {
		harness.Await(t, 10*time.Second, fmt.Sprint("the bodies to be gone from node ", i), func() bool { return used(s) < jobs*size/2 })
		assert.Len(t, held(s), jobs)
		assert.Equal(t, "acked", s.Do("SHOW", ids[0]).Field("state").Str)
	}
	// The jobs without bodies can be loaded: from a log, from a log written anew, and from a dump.
	m[0].RewriteAOF()
	for _, s := range m[:2] {
		s.Kill()
		s.Restart()
		assert.Less(t, used(s), jobs*size/2)
		assert.Len(t, held(s), jobs)
		require.Equal(t, "OK", s.Do("DEBUG", "RELOAD").Str)
		assert.Len(t, held(s), jobs)
		assert.Equal(t, "acked", s.Do("SHOW", ids[jobs-1]).Field("state").Str)
	}
	m[2].Restart()
	m.awaitNoJobs(t)
}
