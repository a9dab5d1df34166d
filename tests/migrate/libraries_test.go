package migrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// need installs a library, or skips the test.
func need(t *testing.T, library string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "./setup.sh", library).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 3 {
		t.Skip(strings.TrimSpace(string(out)))
	}
	require.NoError(t, err, "%s", out)
}

// program prepares a program that finds the server at $PORT.
func program(t *testing.T, s *harness.Server, name string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "PORT="+strconv.Itoa(s.Port), "PYTHONDONTWRITEBYTECODE=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	return cmd, &out
}

// finish runs a program to its end.
func finish(t *testing.T, s *harness.Server, name string, args ...string) {
	t.Helper()
	cmd, out := program(t, s, name, args...)
	require.NoError(t, cmd.Start())
	timer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer timer.Stop()
	require.NoError(t, cmd.Wait(), "%s %v:\n%s", name, args, out)
}

// sidekiq runs Sidekiq's own process until a condition holds.
func sidekiq(t *testing.T, s *harness.Server, cond func() bool) {
	t.Helper()
	cmd, out := program(t, s, "/usr/bin/sidekiq", "-r", "./sidekiq.rb", "-q", "mail", "-c", "4", "-t", "2")
	require.NoError(t, cmd.Start())
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
		defer timer.Stop()
		err := cmd.Wait()
		if t.Failed() {
			t.Logf("%v\n%s", err, out)
		}
	}()
	harness.Await(t, 40*time.Second, "Sidekiq to work", cond)
}

// done returns the jobs that were run, sorted.
func done(c *harness.Conn) []string {
	list := c.Do("LRANGE", "done", 0, -1).Strings()
	slices.Sort(list)
	return list
}

// names returns what the jobs write when they are run.
func names(counts map[string]int) (list []string) {
	for name, n := range counts {
		for i := range n {
			list = append(list, fmt.Sprint(name, " ", i))
		}
	}
	slices.Sort(list)
	return list
}

// Sidekiq writes waiting, scheduled and failed jobs. They are moved to jobmesh and back, and
// are the same to the byte, and Sidekiq runs them. Then a worker for jobmesh runs jobs.
func TestSidekiq(t *testing.T) {
	need(t, "sidekiq")
	s, c := start(t)
	finish(t, s, "/usr/bin/ruby", "sidekiq.rb", "flaky")
	sidekiq(t, s, func() bool { return c.Do("ZCARD", "retry").Is(5) })
	finish(t, s, "/usr/bin/ruby", "sidekiq.rb", "push")
	require.Equal(t, int64(60), c.Do("LLEN", "queue:mail").Int())
	require.Equal(t, int64(18), c.Do("ZCARD", "schedule").Int())
	before := digest(t, c, "mail")
	in := func() {
		assert.Equal(t, 15, all(t, c, "sidekiq_import", "schedule", "mail"))
		assert.Equal(t, 5, all(t, c, "sidekiq_import", "retry", "mail"))
		assert.Equal(t, 60, all(t, c, "sidekiq_import", "queue:mail", "mail"))
		assert.Equal(t, int64(80), registered(c))
		assert.Equal(t, int64(3), c.Do("ZCARD", "schedule").Int())
	}
	in()
	harness.Await(t, 5*time.Second, "the jobs that are due soon", func() bool { return c.Do("QLEN", "mail").Is(65) })
	assert.Equal(t, 80, all(t, c, "sidekiq_export", "mail", "queue:mail"))
	require.Equal(t, before, digest(t, c, "mail"))

	want := names(map[string]int{"now": 40, "bulk": 20, "later": 10, "soon": 5, "flaky": 5})
	finish(t, s, "/usr/bin/ruby", "sidekiq.rb", "requeue")
	sidekiq(t, s, func() bool { return c.Do("LLEN", "done").Int() >= 80 })
	assert.Equal(t, want, done(c))

	c.Do("DEL", "done", "schedule", "retry")
	finish(t, s, "/usr/bin/ruby", "sidekiq.rb", "push")
	assert.Equal(t, 60, all(t, c, "sidekiq_import", "queue:mail", "mail"))
	assert.Equal(t, 15, all(t, c, "sidekiq_import", "schedule", "mail"))
	finish(t, s, "/usr/bin/ruby", "sidekiq.rb", "consume", "65")
	assert.Equal(t, names(map[string]int{"now": 40, "bulk": 20, "soon": 5}), done(c))
	assert.Equal(t, int64(10), registered(c))
}

// The same with rq.
func TestRq(t *testing.T) {
	need(t, "rq")
	s, c := start(t)
	finish(t, s, "/usr/bin/python3", "rq_app.py", "push")
	require.Equal(t, int64(41), c.Do("LLEN", "rq:queue:mail").Int())
	before := digest(t, c, "mail")
	in := func() {
		assert.Equal(t, 15, all(t, c, "rq_import", "rq:scheduled:mail", "mail"))
		assert.Equal(t, 42, all(t, c, "rq_import", "rq:queue:mail", "mail"), "with the one that waits for another")
		assert.Equal(t, int64(57), registered(c))
		assert.Zero(t, c.Do("EXISTS", "rq:deferred:mail").Int())
	}
	in()
	harness.Await(t, 5*time.Second, "the jobs that are due soon", func() bool { return c.Do("QLEN", "mail").Is(46) })
	assert.Equal(t, 57, all(t, c, "rq_export", "mail", "rq:queue:mail"))
	require.Equal(t, before, digest(t, c, "mail"))

	finish(t, s, "/usr/bin/python3", "rq_app.py", "work")
	want := append(names(map[string]int{"now": 40, "later": 10, "soon": 5}), "first", "second")
	slices.Sort(want)
	assert.Equal(t, want, done(c), "the job that depends on another, too")

	c.Do("FLUSHALL")
	finish(t, s, "/usr/bin/python3", "rq_app.py", "push")
	in()
	finish(t, s, "/usr/bin/python3", "rq_app.py", "consume", "47")
	want = append(names(map[string]int{"now": 40, "soon": 5}), "first", "second")
	slices.Sort(want)
	assert.Equal(t, want, done(c))
}

// Jobs that depend on several others in two queues, and a job that runs.
func TestRqFamily(t *testing.T) {
	need(t, "rq")
	s, c := start(t)
	finish(t, s, "/usr/bin/python3", "rq_app.py", "family")
	before := digest(t, c, "mail")
	assert.Equal(t, 1, all(t, c, "rq_import", "rq:wip:mail", "mail"))
	assert.Equal(t, 4, all(t, c, "rq_import", "rq:queue:mail", "mail"))
	require.Len(t, c.Do("KEYS", "rq:*").Elems, 1, "but rq:queues")
	assert.Equal(t, 5, all(t, c, "rq_export", "mail", "rq:queue:mail"))
	c.Do("DEL", "reports")
	require.Equal(t, before, digest(t, c, "mail"))
	finish(t, s, "/usr/bin/python3", "rq_app.py", "work")
	assert.Equal(t, []string{"first", "second", "third"}, done(c))
	assert.Equal(t, int64(1), c.Do("LLEN", "rq:queue:reports").Int())

	c.Do("FLUSHALL")
	finish(t, s, "/usr/bin/python3", "rq_app.py", "family")
	assert.Equal(t, 4, all(t, c, "rq_import", "rq:queue:mail", "mail"))
	finish(t, s, "/usr/bin/python3", "rq_app.py", "consume", "3")
	assert.Equal(t, []string{"first", "second", "third"}, done(c))
	assert.Equal(t, int64(1), c.Do("QLEN", "reports").Int(), "it is in its own queue")
}

// Resque's layout, with resque-uniqueue's, through the Ruby client of both.
func TestResque(t *testing.T) {
	need(t, "sidekiq")
	s, c := start(t)
	finish(t, s, "/usr/bin/ruby", "resque.rb", "push")
	before := digest(t, c, "mail")
	assert.Equal(t, 50, all(t, c, "resque_import", "resque:queue:mail", "mail"))
	assert.Equal(t, 50, all(t, c, "resque_export", "mail", "resque:queue:mail"))
	assert.Equal(t, before, digest(t, c, "mail"))
	finish(t, s, "/usr/bin/ruby", "resque.rb", "work")
	finish(t, s, "/usr/bin/ruby", "resque.rb", "push")
	assert.Equal(t, 50, all(t, c, "resque_import", "resque:queue:mail", "mail"))
	finish(t, s, "/usr/bin/ruby", "resque.rb", "consume")
	assert.Zero(t, c.Do("EXISTS", "mail").Int())
}
