package cluster

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

var createdLine = regexp.MustCompile(`(?m)^created (\d+)$`)

// awaitTold waits until the other nodes know that the jobs which were added at a node by now were promised: the nodes' file has their times, and
// the node's heartbeats have told that.
func awaitTold(t *testing.T, s *harness.Server) {
	t.Helper()
	time.Sleep(5 * time.Millisecond) // so that no other job is of the same ms
	marker := added(t, s.Dial(), "marker", "b", 10_000, "REPLICATE", 1, "RETRY", 1000)
	now := s.Do("SHOW", marker).Field("ctime").Int() >> 11 * 1_000_000 // ms, and a sequence
	harness.Await(t, 20*time.Second, "the nodes' file to have the jobs' times", func() bool {
		text, err := os.ReadFile(filepath.Join(s.Dir, "jobmesh-nodes.conf"))
		if err != nil {
			return false
		}
		m := createdLine.FindSubmatch(text)
		if m == nil {
			return false
		}
		created, err := strconv.ParseInt(string(m[1]), 10, 64)
		return err == nil && created >= now
	})
	require.Equal(t, int64(1), s.Do("ACKJOB", marker).Int())
	time.Sleep(2500 * time.Millisecond) // nothing shows what a heartbeat has told, and there is one each second
}

// X2: a node is stopped in order, and a queue is flushed while it is away. When it is back it cancels the jobs that it would itself queue, those that
// no other node has included, and no client gets one of them. A job that a client had stays, and so does one that is added afterwards.
func TestLifeX2Stopped(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes")
	c := m[2].Dial()
	inHands := added(t, c, "q", "first", 10_000, "REPLICATE", 3, "RETRY", 1000)
	require.Equal(t, inHands, fetched(t, c, "q"))
	var ids []string
	for range 30 {
		ids = append(ids, added(t, c, "q", "b", 10_000, "REPLICATE", 3, "RETRY", 1000),
			added(t, c, "q", "b", 10_000, "REPLICATE", 1, "RETRY", 1000),
			added(t, c, "q", "b", 10_000, "REPLICATE", 3, "RETRY", 1000, "DELAY", 1000))
	}
	other := added(t, c, "other", "b", 10_000, "REPLICATE", 1, "RETRY", 1000)
	awaitTold(t, m[2])
	away := id(m[2])
	m[2].Stop()
	v := m[1].Do("QFLUSH", "q", "MESH")
	require.Equal(t, []string{away}, v.Field("unanswered").Strings(), "%v", v)
	later := added(t, m[1].Dial(), "q", "b", 10_000, "REPLICATE", 1, "RETRY", 1000)
	m[2].Restart()
	w := m[2].Dial()
	w.Send("GETJOB", "TIMEOUT", 60_000, "FROM", "q")
	v = w.Receive()
	require.Len(t, v.Elems, 1, "%v", v)
	assert.Equal(t, later, v.Elems[0].Elems[1].Str, "the job that was added after the flush comes first")
	m.noCopies(t, ids...)
	assert.Equal(t, strconv.Itoa(len(ids)), m[2].Info("jobmesh", "jobmesh_jobs_flushed"))
	assert.Equal(t, other, fetched(t, m[2].Dial(), "other"))
	require.Equal(t, int64(1), m[2].Do("NACK", inHands).Int(), "the job that its client had is still there")
	assert.Equal(t, inHands, fetched(t, m[2].Dial(), "q"))

	// A further start doesn't do it again, and a job that was given back stays.
	require.Equal(t, int64(1), m[2].Do("NACK", inHands).Int())
	m[2].Stop()
	m[2].Restart()
	m.await(t, 3)
	w = m[2].Dial()
	w.Send("GETJOB", "TIMEOUT", 60_000, "FROM", "q")
	v = w.Receive()
	require.Len(t, v.Elems, 1, "%v", v)
	assert.Equal(t, inHands, v.Elems[0].Elems[1].Str)
}

// A node that was killed doesn't know which jobs its clients had got: its jobs stay.
func TestLifeX2Killed(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes", "appendfsync always")
	c := m[2].Dial()
	job := added(t, c, "q", "b", 10_000, "REPLICATE", 1, "RETRY", 1000)
	require.Equal(t, job, fetched(t, c, "q"))
	awaitTold(t, m[2])
	m[2].Kill()
	require.Len(t, m[1].Do("QFLUSH", "q", "MESH").Field("unanswered").Elems, 1)
	m[2].Restart()
	m.await(t, 3)
	w := m[2].Dial()
	assert.Equal(t, job, fetched(t, w, "q"))
}

// X2: a node is cut off. Its jobs of before the flush go when the two sides meet, and those that were promised or given to a client meanwhile stay.
func TestLifeX2CutOff(t *testing.T) {
	t.Parallel()
	w := namespaces(t, 3)
	m := w.mesh
	c := m[2].Dial()
	var ids []string
	for range 50 {
		ids = append(ids, added(t, c, "q", "b", 10_000, "REPLICATE", 3, "RETRY", 1000), added(t, c, "q", "b", 10_000, "REPLICATE", 1, "RETRY", 1000))
	}
	awaitTold(t, m[2])
	w.move(1, 2)
	harness.Await(t, 20*time.Second, "the connections to be given up", func() bool { return links(m[1]) == 1 && links(m[2]) == 0 })
	v := m[1].Do("QFLUSH", "q", "MESH")
	require.Len(t, v.Field("unanswered").Elems, 1, "%v", v)
	c = m[2].Dial()
	inHands, back := fetched(t, c, "q"), fetched(t, c, "q")
	require.Equal(t, int64(1), c.Do("NACK", back).Int())
	later := added(t, c, "q", "b", 10_000, "REPLICATE", 1, "RETRY", 1000)
	w.move(0, 2)
	w.await(t, 3)
	var gone []string
	for _, id := range ids {
		if id != inHands && id != back {
			gone = append(gone, id)
		}
	}
	m.noCopies(t, gone...)
	assert.Equal(t, int64(2), awaitCount(t, m[0], "q", "len", 2).Field("len").Int())
	assert.Equal(t, back, fetched(t, m[2].Dial(), "q"))
	assert.Equal(t, later, fetched(t, m[2].Dial(), "q"))
	assert.Equal(t, int64(1000), m[2].Do("WORKING", inHands).Int())
}
