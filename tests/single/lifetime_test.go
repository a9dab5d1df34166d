package single

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// These tests end jobs and queues in the same call in which a client is given them, or in which
// they change. "make sanitize" checks the memory as well.

// One command unblocks jobs for which clients wait, and ends one of these jobs. Each client gets a
// job of its own, with its own body.
func TestServedAndEndedByOneCommand(t *testing.T) {
	for _, verb := range []string{"ACKJOB", "FASTACK", "DELJOB", "CANCELJOB"} {
		t.Run(verb, func(t *testing.T) {
			s := harness.Start(t)
			c := s.Dial()
			first, second := add(t, c, "p", "first", 0), add(t, c, "p", "second", 0)
			bodies := []string{strings.Repeat("A", 200), strings.Repeat("B", 200)}
			a := add(t, c, "kids", bodies[0], 0, "RETRY", 0, "AFTER", first, "ONDEAD", "run")
			b := add(t, c, "kids", bodies[1], 0, "RETRY", 0, "AFTER", second, "ONDEAD", "run")
			var clients []*harness.Conn
			for range 2 {
				w := s.Dial()
				w.Send("GETJOB", "FROM", "kids")
				clients = append(clients, w)
				awaitBlocked(t, s, len(clients))
			}
			assert.Equal(t, int64(3), c.Do(verb, first, a, second).Int())
			for i, id := range []string{a, b} {
				v := clients[i].Receive()
				require.Len(t, v.Elems, 1, "%v", v)
				assert.Equal(t, []string{"kids", id, bodies[i]}, v.Elems[0].Strings())
			}
			assert.True(t, c.Do("SHOW", a).Null)
			assert.Equal(t, "active", state(c, b))
		})
	}
}

// Above 95 % of maxmemory, an at-most-once job whose delay is over is given to a client
// and evicted by the same tick.
func TestServedAndEvictedByOneTick(t *testing.T) {
	t.Setenv("MALLOC_CONF", "junk:true") // jemalloc overwrites what is freed
	s := harness.Start(t)
	c, w := s.Dial(), s.Dial()
	for range 80 {
		add(t, c, "filler", strings.Repeat("x", 1_000_000), 0)
	}
	body := strings.Repeat("Q", 1<<20)
	id := add(t, c, "q", body, 0, "RETRY", 0, "DELAY", 2)
	w.Send("GETJOB", "FROM", "q")
	awaitBlocked(t, s, 1)
	setRatio(t, s, c, 0.965, "2")
	v := w.Receive()
	require.Len(t, v.Elems, 1, "%v", v.Kind)
	assert.Equal(t, []string{"q", id}, v.Elems[0].Strings()[:2])
	assert.True(t, v.Elems[0].Elems[2].Str == body)
	assert.Equal(t, "1", s.Info("jobmesh", "jobmesh_jobs_evicted"))
}

// A command is refused after jobs were evicted for it. The same command makes the eviction known,
// here to WATCH. One pipeline also removes the queue, and the next tick frees it.
func TestRefusedAfterEviction(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	var filler string
	for range 40 {
		filler = add(t, c, "filler", strings.Repeat("x", 1_000_000), 0)
	}
	for i, refused := range []string{"NACK D-nonsense", "ENQUEUE D-nonsense", "RELEASEJOB " + filler} {
		queue := fmt.Sprint("queue-", i, strings.Repeat("-", 50*i))
		add(t, c, queue, "b", 0, "RETRY", 0)
		get(t, c, queue)
		conn, err := net.Dial("tcp", s.Addr())
		require.NoError(t, err)
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		// In one piece: no tick comes between them.
		_, err = fmt.Fprintf(conn, "CONFIG SET maxmemory %d\r\nWATCH %s\r\n%s\r\nMULTI\r\nEXEC\r\nUNLINK %s\r\nCONFIG SET maxmemory 0\r\n",
			s.UsedMemory()*1000/965, queue, refused, queue)
		require.NoError(t, err)
		var replies []string
		for r := bufio.NewReader(conn); len(replies) < 7; {
			line, err := r.ReadString('\n')
			require.NoError(t, err)
			replies = append(replies, strings.TrimSpace(line))
		}
		conn.Close()
		assert.Equal(t, "-", replies[2][:1], "%s: %v", refused, replies)
		assert.Equal(t, "*-1", replies[4], "%s: the transaction on the queue goes on: %v", refused, replies)
		assert.Equal(t, fmt.Sprint(i+1), s.Info("jobmesh", "jobmesh_jobs_evicted"), refused)
		harness.Await(t, 5*time.Second, "the limit to be gone", func() bool { return s.Info("jobmesh", "jobmesh_memory_level") == "0" })
	}
	s.Stop()
	s.Restart()
	assert.Equal(t, "40", jobs(s))
}
