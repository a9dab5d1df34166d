package cluster

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// some returns n random nodes.
func (m mesh) some(n int) mesh {
	out := make(mesh, n)
	for i, k := range rand.Perm(len(m))[:n] {
		out[i] = m[k]
	}
	return out
}

func (m mesh) kill() {
	for _, s := range m {
		s.Kill()
	}
}

// rewrite makes the nodes write their logs anew, and waits until they have.
func (m mesh) rewrite() {
	for _, s := range m {
		s.RewriteAOF()
	}
}

func (m mesh) restart() {
	for _, s := range m {
		s.Launch()
	}
	for _, s := range m {
		s.AwaitService()
	}
	// A node that has started anew logs what it is given from now on.
	for _, s := range m {
		if s.Do("CONFIG", "GET", "appendonly").Elems[1].Str == "yes" {
			s.Do("DELJOB", s.AwaitLogged())
		}
	}
}

func TestLongTotalQueueKilled(t *testing.T) {
	t.Parallel()
	m := start(t, nodes, durable...)
	q := newQueue(t, m, 3000, "REPLICATE", 3, "RETRY", 1)
	for range 3 {
		q.more(300)
		dead := m.some(2)
		dead.rewrite()
		dead.kill()
		q.more(300)
		dead.restart()
	}
	m.await(t, nodes)
	q.more(300)
	q.finish()
}

func TestLongTotalQueueStopped(t *testing.T) {
	t.Parallel()
	m := start(t, nodes)
	q := newQueue(t, m, 3000, "REPLICATE", 3, "RETRY", 1)
	for range 3 {
		q.more(300)
		still := m.some(2)
		still.stop()
		q.more(300)
		still.resume()
	}
	m.await(t, nodes)
	q.more(300)
	q.finish()
}

func TestLongTotalQueueAllRestarted(t *testing.T) {
	t.Parallel()
	m := start(t, nodes, durable...)
	q := newQueue(t, m, 3000, "REPLICATE", 3, "RETRY", 1)
	for range 2 {
		q.more(500)
		m.rewrite()
		m.kill()
		m.restart()
	}
	m.await(t, nodes)
	q.more(500)
	q.finish()
}

// If the log says that a job is done, the job is done after a restart, and at a replica too.
func TestDoneJobsStayGone(t *testing.T) {
	t.Parallel()
	m := start(t, 2, durable...)
	replica := harness.Start(t, harness.WithReplicaOf(m[0]))
	c := m[0].Dial()
	for i := range 20 {
		id := added(t, c, "q", "b", 2000, "REPLICATE", 2)
		got := c.Do("GETJOB", "TIMEOUT", 10_000, "FROM", "q")
		require.Len(t, got.Elems, 1, "job %d", i)
		require.Equal(t, int64(1), m[1].Do("ACKJOB", id).Int())
	}
	m.awaitNoJobs(t)
	harness.Await(t, 5*time.Second, "the replica to hear that the jobs are gone", func() bool { return jobs(replica) == "0" })
	m.kill()
	m[0].Restart() // alone: it has nobody to tell of what it knows
	assert.Equal(t, "0", jobs(m[0]))
}
