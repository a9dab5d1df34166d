package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// totalQueue is Jepsen's check of the same name: producers add numbered jobs at
// random nodes, consumers fetch and acknowledge them at other random nodes, and
// in the end every job whose ID was answered must have come out. A job that was
// refused, or whose answer was lost, may have come out.
type totalQueue struct {
	t       *testing.T
	m       mesh
	options []any
	atLeast int64 // jobs to add
	backlog int64 // promised jobs under way at most

	next, promised, unknown, refused atomic.Int64
	out, again, late                 atomic.Int64 // jobs that came out; deliveries after a job's first; those after its acknowledgement

	mu     sync.Mutex
	jobs   []fate // by number
	enough atomic.Bool
	done   chan struct{}
	group  sync.WaitGroup
}

// fate is what happened to a job.
type fate struct {
	promised, acked bool
	out             int32
}

const (
	producers = 12
	consumers = 12
	moveAfter = 50 // commands on a connection before its client tries another node
	linger    = 2 * time.Second
)

// newQueue starts the clients. Jobs are added until there are atLeast of them, and
// finish is called.
func newQueue(t *testing.T, m mesh, atLeast int, options ...any) *totalQueue {
	q := &totalQueue{t: t, m: m, options: options, atLeast: int64(atLeast), backlog: 1000, done: make(chan struct{})}
	for range producers {
		q.group.Go(func() { q.client(q.produce) })
	}
	for range consumers {
		q.group.Go(func() { q.client(q.consume) })
	}
	t.Cleanup(func() {
		q.stop()
		q.group.Wait()
	})
	return q
}

func (q *totalQueue) stop() {
	select {
	case <-q.done:
	default:
		close(q.done)
	}
}

func (q *totalQueue) over() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// client calls work on a connection to one random node after the other, also while
// nodes fail.
func (q *totalQueue) client(work func(*harness.Conn) bool) {
	for !q.over() {
		c, err := harness.Dial(q.m[rand.IntN(len(q.m))].Addr(), linger+time.Second)
		if err != nil {
			time.Sleep(5 * time.Millisecond) // it may be down
			continue
		}
		for n := 0; n < moveAfter && !q.over() && work(c); n++ {
		}
		c.Close()
	}
}

// produce adds one job. It returns false if the connection is of no more use.
func (q *totalQueue) produce(c *harness.Conn) bool {
	if q.enough.Load() && q.next.Load() >= q.atLeast {
		<-q.done
		return false
	}
	if q.promised.Load()-q.out.Load() > q.backlog {
		time.Sleep(time.Millisecond) // consumers lag behind
		return true
	}
	number := q.next.Add(1) - 1
	v := c.Do(append([]any{"ADDJOB", "q", number, linger.Milliseconds()}, q.options...)...)
	switch v.Kind {
	case '+':
		q.fate(number, func(f *fate) {
			f.promised = true
			q.promised.Add(1)
		})
		return true
	case '-':
		if !v.Err("NOREPL") && !v.Err("LOADING") {
			q.t.Errorf("ADDJOB answers %v", v)
		}
		q.refused.Add(1)
		return false // another node may accept a job
	}
	q.unknown.Add(1)
	return false
}

func (q *totalQueue) fate(number int64, change func(*fate)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for int64(len(q.jobs)) <= number {
		q.jobs = append(q.jobs, fate{})
	}
	change(&q.jobs[number])
}

func (q *totalQueue) consume(c *harness.Conn) bool {
	v := c.Do("GETJOB", "TIMEOUT", 300, "COUNT", 10, "FROM", "q")
	if v.Kind != '*' {
		if v.Kind == '-' && !v.Err("LOADING") {
			q.t.Errorf("GETJOB answers %v", v)
		}
		return false
	}
	if v.Null {
		return false // another node may have jobs
	}
	acks := []any{"ACKJOB"}
	var numbers []int64
	for _, job := range v.Elems {
		number, err := strconv.ParseInt(job.Elems[2].Str, 10, 64)
		assert.NoError(q.t, err)
		numbers = append(numbers, number)
		acks = append(acks, job.Elems[1].Str)
		q.fate(number, func(f *fate) {
			if f.out++; f.out == 1 {
				q.out.Add(1)
				return
			}
			q.again.Add(1)
			if f.acked {
				q.late.Add(1)
			}
		})
	}
	if c.Do(acks...).Kind != ':' {
		return false
	}
	for _, number := range numbers {
		q.fate(number, func(f *fate) { f.acked = true })
	}
	return true
}

// more waits until n more jobs have come out, so that a fault has lasted for a while under load.
func (q *totalQueue) more(n int64) {
	q.t.Helper()
	until := q.out.Load() + n
	harness.Await(q.t, 40*time.Second, fmt.Sprint(n, " more jobs"), func() bool { return q.out.Load() >= until })
}

// lost returns the numbers of the promised jobs that haven't come out.
func (q *totalQueue) lost() (numbers []int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for number, f := range q.jobs {
		if f.promised && f.out == 0 {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// finish drains the mesh, and accounts for every job. It returns the number of
// deliveries, without the first of each job.
func (q *totalQueue) finish() int64 {
	t := q.t
	t.Helper()
	q.enough.Store(true)
	// No node holds a job any more, be it promised or not.
	limit, quiet := 60*time.Second, 0
	if q.atLeast > 100_000 {
		limit = time.Hour
	}
	harness.Await(t, limit, "the last jobs to be drained from every node", func() bool {
		quiet++
		if q.next.Load() < q.atLeast {
			quiet = 0
			return false
		}
		for _, s := range q.m {
			if jobs(s) != "0" {
				quiet = 0
			}
		}
		return quiet > 1 || t.Failed()
	})
	q.stop()
	q.group.Wait()
	for i, s := range q.m {
		assert.True(t, s.Do("GETJOB", "NOHANG", "FROM", "q").Null, "node %d has some still", i)
	}
	lost := q.lost()
	assert.Empty(t, lost, "lost, of %d that were promised", q.promised.Load())
	t.Logf("%d nodes: %d jobs promised, %d refused, %d without an answer; %d came out, lost %d, duplicates %d (%d of them after an answered acknowledgement)",
		len(q.m), q.promised.Load(), q.refused.Load(), q.unknown.Load(), q.out.Load(), len(lost), q.again.Load(), q.late.Load())
	return q.again.Load()
}

// size is how many jobs a test without faults adds: JOBMESH_JOBS=1000000 for
// the million.
func size(t *testing.T) int {
	text := os.Getenv("JOBMESH_JOBS")
	if text == "" {
		return 20_000
	}
	n, err := strconv.Atoi(strings.ReplaceAll(text, "_", ""))
	require.NoError(t, err)
	return n
}

const nodes = 7

var durable = []string{"appendonly yes", "appendfsync always"}

func TestLongTotalQueue(t *testing.T) {
	m := start(t, nodes)
	began := time.Now()
	q := newQueue(t, m, size(t), "REPLICATE", 3, "RETRY", 2)
	assert.Zero(t, q.finish(), "duplicates without a fault")
	t.Logf("%.0f jobs a second", float64(q.out.Load())/time.Since(began).Seconds())
}

// The node where a job waits deletes the job's queue. The other holders leave the job to that node until they ask each
// other. So the job comes within half a minute, and not only after its retry time.
func TestJobThatNobodyHasIsFound(t *testing.T) {
	t.Parallel()
	m := start(t, 3)
	// A node that has just come may have lost what it had.
	harness.Await(t, 20*time.Second, "the nodes' age", func() bool {
		return !slices.ContainsFunc(m, func(s *harness.Server) bool {
			seconds, err := strconv.Atoi(s.Info("server", "uptime_in_seconds"))
			return err != nil || seconds < 4
		})
	})
	v := m[0].Do("ADDJOB", "q", "body", 5000, "REPLICATE", 3, "RETRY", 300)
	require.Equal(t, byte('+'), v.Kind, "%v", v)
	require.True(t, m[0].Do("DEL", "q").Is(1))
	began := time.Now()
	c := m[1].Dial()
	defer c.Close()
	c.Send("GETJOB", "TIMEOUT", 60_000, "WITHCOUNTERS", "FROM", "q")
	found := func(s *harness.Server) int {
		n, err := strconv.Atoi(s.Info("jobmesh", "jobmesh_jobs_found_idle"))
		require.NoError(t, err)
		return n
	}
	harness.Await(t, 60*time.Second, "the job that nobody has", func() bool { return found(m[1])+found(m[2]) == 1 })
	got := c.Receive()
	require.Len(t, got.Elems, 1, "%v", got)
	assert.Less(t, time.Since(began), 60*time.Second)
	assert.Equal(t, v.Str, got.Elems[0].Elems[1].Str)
	assert.True(t, got.Elems[0].Elems[6].Is(0), "%v", got) // additional deliveries
}
