package migrate

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

const jobs = 10_000

// start starts a server that has the functions.
func start(t *testing.T, opts ...harness.Option) (*harness.Server, *harness.Conn) {
	t.Helper()
	s := harness.Start(t, opts...)
	require.Equal(t, "jobmesh", s.Do("JOBMESH", "LUA", "LOAD").Str)
	return s, s.Dial()
}

// startTwo starts two servers that have met. The first has the functions, and c speaks
// to it.
func startTwo(t *testing.T) (a, b *harness.Server, c *harness.Conn) {
	t.Helper()
	port := harness.FreePort(t)
	a, c = start(t, harness.WithConfig(fmt.Sprint("jobmesh.cluster-port ", harness.FreePort(t))))
	b = harness.Start(t, harness.WithConfig(fmt.Sprint("jobmesh.cluster-port ", port)))
	require.Equal(t, "OK", c.Do("JOBMESH", "CLUSTER", "MEET", "127.0.0.1", b.Port, port).Str)
	harness.Await(t, 20*time.Second, "the two to meet", func() bool {
		return a.Info("jobmesh", "jobmesh_reachable_nodes") == "1" && b.Info("jobmesh", "jobmesh_reachable_nodes") == "1"
	})
	return a, b, c
}

// call calls a function once.
func call(c *harness.Conn, function, from, to string, options ...any) harness.Value {
	return c.Do(append([]any{"FCALL", "jobmesh_" + function, 2, from, to}, options...)...)
}

// numbers returns the numbers in a reply: moved, left, dropped.
func numbers(t *testing.T, v harness.Value) (n [3]int64) {
	t.Helper()
	require.Len(t, v.Elems, 4, "%v", v)
	for i := range n {
		n[i] = v.Elems[i].Int()
	}
	return n
}

// step calls a function until nothing is left, or the connection ends, with batches of
// random sizes. It returns how many items were moved and dropped.
func step(c *harness.Conn, function, from, to string, options ...any) (moved, dropped int64, err error) {
	place := "0"
	for calls := 0; ; calls++ {
		v := call(c, function, from, to, append([]any{"COUNT", 1 + rand.IntN(1500), "FROM", place}, options...)...)
		if v.Kind == 0 {
			return moved, dropped, nil // the server has gone
		}
		if len(v.Elems) != 4 || calls > 100_000 {
			return moved, dropped, fmt.Errorf("%s %s %s: %v after %d calls", function, from, to, v, calls)
		}
		moved, dropped, place = moved+v.Elems[0].Int(), dropped+v.Elems[2].Int(), v.Elems[3].Str
		if v.Elems[1].Int() == 0 {
			return moved, dropped, nil
		}
	}
}

// all is step for a server that isn't killed. It returns how many items were moved.
func all(t *testing.T, c *harness.Conn, function, from, to string, options ...any) int {
	t.Helper()
	moved, dropped, err := step(c, function, from, to, options...)
	require.NoError(t, err)
	require.Zero(t, dropped)
	return int(moved)
}

// digest returns the digest of all keys, with their order and expiry. It deletes the queue,
// which must be empty: otherwise the server would forget it at some later time.
func digest(t *testing.T, c *harness.Conn, queue string) string {
	t.Helper()
	if c.Do("TYPE", queue).Str == "jobmesh-q" {
		require.Zero(t, c.Do("QLEN", queue).Int())
		c.Do("DEL", queue)
	}
	return c.Do("DEBUG", "DIGEST").Str
}

// body returns a payload as careful and careless producers write it.
func body(i int, queue string) string {
	switch i % 5 {
	case 0:
		return fmt.Sprintf(`{"class":"Mail","args":[%d],"queue":%q,"jid":"%024x","created_at":1763712000.%06d}`, i, queue, i, i)
	case 1:
		return fmt.Sprintf(`{ "queue" : %q , "args":[1.0, 1e2, %d, "\u00e4ä\/"],"class":"Mail" }`, queue, i)
	case 2:
		return fmt.Sprintf(`{"b":{},"a":[],"n":12345678901234567890,"queue":%q,"i":%d}`, queue, i)
	case 3:
		return fmt.Sprintf(`{"queue":%q,"i":%d,"raw":"%s"}`, queue, i, "\xff\xfe")
	}
	return fmt.Sprintf(`{"queue":%q,"i":%d,"long":"%0500d"}`, queue, i, 0)
}

// many sends commands in a pipeline.
func many(t *testing.T, c *harness.Conn, n int, command func(i int) []any) {
	t.Helper()
	const batch = 500
	for first := 0; first < n; first += batch {
		last := min(n, first+batch)
		for i := first; i < last; i++ {
			c.Send(command(i)...)
		}
		for range last - first {
			v := c.Receive()
			require.True(t, v.Kind != '-' && v.Kind != 0, "%v", v)
		}
	}
}

// layout is the data of a library, and how it is moved.
type layout struct {
	name  string
	write func(t *testing.T, c *harness.Conn)
	in    [][]any // function, keys, options; each moves a part
	out   []any
	total int
	kept  int                         // items beside total that stay where they are
	here  func(c *harness.Conn) int64 // counts what has arrived
	there func(c *harness.Conn) int64 // counts what hasn't
}

func count(command string, keys ...string) func(*harness.Conn) int64 {
	return func(c *harness.Conn) (n int64) {
		for _, k := range keys {
			n += c.Do(command, k).Int()
		}
		return n
	}
}

func registered(c *harness.Conn) int64 {
	var n int64
	fmt.Sscanf(c.Do("JOBMESH", "INFO", "jobs").Str, "# Jobs\r\nregistered_jobs:%d", &n)
	return n
}

func sum(counts ...func(*harness.Conn) int64) func(*harness.Conn) int64 {
	return func(c *harness.Conn) (n int64) {
		for _, count := range counts {
			n += count(c)
		}
		return n
	}
}

func layouts() []layout {
	soon := time.Now().Unix()
	score := func(i int) string {
		return strconv.FormatFloat(float64(soon+3600)+float64(i%977)+0.1234567, 'f', -1, 64)
	}
	unique := func(t *testing.T, c *harness.Conn) {
		c.Do("SADD", "resque:queues", "mail")
		many(t, c, jobs, func(i int) []any { return []any{"RPUSH", "resque:queue:mail", body(i, "mail")} })
		many(t, c, jobs, func(i int) []any { return []any{"SADD", "resque:queue:mail:uniqueue", body(i, "mail")} })
		many(t, c, jobs, func(i int) []any { return []any{"RPUSH", "resque:queue:mail:start_at", 1370213794 + i/3} })
	}
	const scheduled, retried, others, few = 2000, 1000, 300, 2000
	inRq := sum(count("LLEN", "rq:queue:mail"), count("ZCARD", "rq:scheduled:mail", "rq:deferred:mail", "rq:wip:mail"))
	return []layout{
		{
			name: "resque",
			write: func(t *testing.T, c *harness.Conn) {
				c.Do("SADD", "resque:queues", "mail")
				many(t, c, jobs, func(i int) []any { return []any{"RPUSH", "resque:queue:mail", body(i%8000, "mail")} })
			},
			in:    [][]any{{"resque_import", "resque:queue:mail", "mail"}},
			out:   []any{"resque_export", "mail", "resque:queue:mail"},
			total: jobs, here: registered, there: count("LLEN", "resque:queue:mail"),
		},
		{
			name: "resque-uniqueue", write: unique,
			in:    [][]any{{"resque_import", "resque:queue:mail", "mail"}},
			out:   []any{"resque_export", "mail", "resque:queue:mail"},
			total: jobs, here: count("UQ.LEN", "mail"), there: count("LLEN", "resque:queue:mail"),
		},
		{
			name: "resque-uniqueue into jobs", write: unique,
			in:    [][]any{{"resque_import", "resque:queue:mail", "mail", "JOBS"}},
			out:   []any{"resque_export", "mail", "resque:queue:mail", "UNIQUEUE"},
			total: jobs, here: registered, there: count("LLEN", "resque:queue:mail"),
		},
		{
			name: "sidekiq",
			write: func(t *testing.T, c *harness.Conn) {
				c.Do("SADD", "app:queues", "mail", "other")
				const waiting = jobs - scheduled - retried
				many(t, c, waiting, func(i int) []any { return []any{"LPUSH", "app:queue:mail", body(i, "mail")} })
				many(t, c, scheduled, func(i int) []any { return []any{"ZADD", "app:schedule", score(i), body(waiting+i, "mail")} })
				many(t, c, retried, func(i int) []any { return []any{"ZADD", "app:retry", score(i), body(waiting+scheduled+i, "mail")} })
				many(t, c, others, func(i int) []any { return []any{"ZADD", "app:schedule", score(i * 7), body(i, "other")} })
				c.Do("ZADD", "app:schedule", score(3), "no JSON", score(4), `["queue","mail"]`, score(5), "7")
				// Jobs that are due while they are moved also go back to where they were.
				c.Do("ZADD", "app:schedule", "XX", "1.5", body(waiting, "mail"), "1763712000.0000001", body(waiting+1, "mail"))
			},
			in: [][]any{
				{"sidekiq_import", "app:schedule", "mail"}, {"sidekiq_import", "app:retry", "mail"},
				{"sidekiq_import", "app:queue:mail", "mail"},
			},
			out:   []any{"sidekiq_export", "mail", "app:queue:mail"},
			total: jobs, kept: others + 3, here: registered,
			there: sum(count("LLEN", "app:queue:mail"), count("ZCARD", "app:schedule", "app:retry")),
		},
		{
			name: "rq",
			write: func(t *testing.T, c *harness.Conn) {
				c.Do("SADD", "rq:queues", "rq:queue:mail")
				many(t, c, jobs, func(i int) []any {
					fields := []any{"HSET", fmt.Sprintf("rq:job:%06d", i), "data", "x\x9c\x00\xff" + body(i, "mail"), "origin", "mail", "status", "queued",
						"created_at", "2026-01-02T03:04:05.678901Z", "timeout", 180, "", "a field without a name", fmt.Sprint("n", i), i}
					if i%10 == 0 {
						for k := range 300 {
							fields = append(fields, fmt.Sprint("more", k), k)
						}
					}
					return fields
				})
				many(t, c, jobs/100, func(i int) []any {
					return []any{"PEXPIREAT", fmt.Sprintf("rq:job:%06d", i*100), (soon+7200)*1000 + int64(i)}
				})
				many(t, c, jobs, func(i int) []any {
					id := fmt.Sprintf("%06d", i)
					if i < scheduled {
						return []any{"ZADD", "rq:scheduled:mail", soon + 60 + int64(i%50), id}
					}
					return []any{"RPUSH", "rq:queue:mail", id}
				})
			},
			in:    [][]any{{"rq_import", "rq:scheduled:mail", "mail"}, {"rq_import", "rq:queue:mail", "mail"}},
			out:   []any{"rq_export", "mail", "rq:queue:mail"},
			total: jobs, here: registered, there: inRq,
		},
		{
			name: "rq's families",
			write: func(t *testing.T, c *harness.Conn) {
				const queued, children = few / 4, few / 2
				many(t, c, few, func(i int) []any {
					fields := []any{"HSET", fmt.Sprint("rq:job:f", i), "data", body(i, "mail"), "origin", "mail", "created_at", fmt.Sprintf("%05d", i)}
					if queued <= i && i < queued+children {
						fields = append(fields, "status", "deferred", "dependency_id", fmt.Sprint("f", i%200))
					}
					return fields
				})
				many(t, c, queued, func(i int) []any { return []any{"RPUSH", "rq:queue:mail", fmt.Sprint("f", i)} })
				many(t, c, children, func(i int) []any {
					return []any{"SADD", fmt.Sprintf("rq:job:f%d:dependents", (queued+i)%200), fmt.Sprint("f", queued+i)}
				})
				many(t, c, children, func(i int) []any { return []any{"ZADD", "rq:deferred:mail", score(i), fmt.Sprint("f", queued+i)} })
				many(t, c, children, func(i int) []any {
					return []any{"SADD", fmt.Sprintf("rq:job::f%d:dependencies", queued+i), fmt.Sprint("f", (queued+i)%200)}
				})
				const deferred = few / 8
				many(t, c, deferred, func(i int) []any {
					return []any{"ZADD", "rq:deferred:mail", score(i), fmt.Sprint("f", queued+children+i)}
				})
				many(t, c, few/8, func(i int) []any {
					return []any{"ZADD", "rq:wip:mail", score(i), fmt.Sprint("f", queued+children+deferred+i)}
				})
				c.Do("SADD", "rq:queues", "rq:queue:mail")
			},
			in: [][]any{
				{"rq_import", "rq:wip:mail", "mail"}, {"rq_import", "rq:queue:mail", "mail"}, {"rq_import", "rq:deferred:mail", "mail"},
			},
			out:   []any{"rq_export", "mail", "rq:queue:mail"},
			total: few, here: registered, there: inRq,
		},
		{
			name: "sidekiq_unicity",
			write: func(t *testing.T, c *harness.Conn) {
				c.Do("SADD", "app:queues", "mail")
				many(t, c, few, func(i int) []any {
					resource, _ := locked("A::Mail", []string{"until", "before", "before_bd"}[i%3], fmt.Sprint(i), "", "")
					return []any{"SET", "app:" + resource, fmt.Sprint("t", i), "PXAT", (soon+7200)*1000 + int64(i)}
				})
				many(t, c, few, func(i int) []any {
					_, body := locked("A::Mail", []string{"until", "before", "before_bd"}[i%3], fmt.Sprint(i), fmt.Sprint("t", i), "")
					if i%4 == 0 {
						return []any{"ZADD", "app:schedule", score(i), body}
					}
					return []any{"LPUSH", "app:queue:mail", body}
				})
			},
			in:    [][]any{{"sidekiq_import", "app:queue:mail", "mail"}, {"sidekiq_import", "app:schedule", "mail"}},
			out:   []any{"sidekiq_export", "mail", "app:queue:mail"},
			total: few, here: registered, there: sum(count("LLEN", "app:queue:mail"), count("ZCARD", "app:schedule")),
		},
	}
}
