package single

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// SWAPDB with equal numbers changes nothing.
func TestSwapDBWithItself(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	id := add(t, c, "s", "x", 0, "RETRY", 1)
	require.Equal(t, "OK", c.Do("SWAPDB", 0, 0).Str)
	c.Do("MULTI")
	c.Do("SWAPDB", 1, 1)
	c.Do("SWAPDB", 0, 0)
	require.Len(t, c.Do("EXEC").Elems, 2)
	assert.Equal(t, "queued", state(c, id))
	assert.Equal(t, int64(1), c.Do("QLEN", "s").Int())
	s.Kill()
	s.Restart()
	c = s.Dial()
	assert.False(t, c.Do("SHOW", id).Null)
	assert.Equal(t, int64(1), c.Do("DEL", "s").Int())
	assert.True(t, c.Do("SHOW", id).Null)
}

// statePath is the state file's.
func statePath(s *harness.Server) string { return filepath.Join(s.Dir, "jobmesh-nodes.state") }

// What is known of the jobs, by how the server ended and what it saves: the table in
// COMMANDS.md, "After a restart".
func TestAfterARestart(t *testing.T) {
	always, everysec := []string{"appendonly yes", "appendfsync always"}, []string{"appendonly yes"}
	rdb := []string{"save 3600 1000000"}
	without := "aof-use-rdb-preamble no"
	kill := func(s *harness.Server) { s.Kill() }
	stop := func(s *harness.Server) { s.Stop() }
	term := func(s *harness.Server) {
		s.Signal(syscall.SIGTERM)
		s.AwaitEnd()
	}
	rewritten := func(end func(*harness.Server)) func(*harness.Server) {
		return func(s *harness.Server) {
			s.RewriteAOF()
			end(s)
		}
	}
	set := func(param, value string, end func(*harness.Server)) func(*harness.Server) {
		return func(s *harness.Server) {
			require.Equal(t, "OK", s.Do("CONFIG", "SET", param, value).Str)
			end(s)
		}
	}
	// Where the data is exact at-most-once jobs that wait are queued again; where what was
	// in somebody's hands is known, that stays there.
	for name, c := range map[string]struct {
		conf         []string
		end          func(*harness.Server)
		exact, hands bool
	}{
		"always, SHUTDOWN":                  {always, stop, true, true},
		"always, kill":                      {always, kill, true, false},
		"always, rewritten, kill":           {always, rewritten(kill), true, true},
		"always, no preamble, kill":         {append(always, without), rewritten(kill), true, true},
		"always, everysec in between, kill": {always, set("appendfsync", "everysec", set("appendfsync", "always", kill)), false, false},
		"always, not while rewriting, kill": {always, set("no-appendfsync-on-rewrite", "yes", kill), false, false},
		"always, everysec, SHUTDOWN":        {always, set("appendfsync", "everysec", stop), true, true},
		"everysec, SHUTDOWN":                {everysec, stop, true, true},
		"everysec, SIGTERM":                 {everysec, term, true, true},
		"everysec, rewritten, SHUTDOWN":     {everysec, rewritten(stop), true, true},
		"everysec, no preamble, SHUTDOWN":   {append(everysec, without), rewritten(stop), true, true},
		"everysec, JOBMESH SHUTDOWN":        {everysec, func(s *harness.Server) { s.Stop("JOBMESH", "SHUTDOWN") }, true, true},
		"everysec, kill":                    {everysec, kill, false, false},
		"everysec, then always, kill":       {everysec, set("appendfsync", "always", kill), false, false},
		"everysec, NOSAVE":                  {everysec, func(s *harness.Server) { s.Stop("SHUTDOWN", "NOSAVE") }, true, true},
		"RDB, SHUTDOWN":                     {rdb, stop, true, true},
		"RDB, SIGTERM":                      {rdb, term, true, true},
		"RDB, JOBMESH SHUTDOWN":             {nil, func(s *harness.Server) { s.Stop("JOBMESH", "SHUTDOWN") }, true, true},
		"RDB, kill after SAVE": {rdb, func(s *harness.Server) {
			require.Equal(t, "OK", s.Do("SAVE").Str)
			s.Kill()
		}, false, true},
		"RDB, NOSAVE after SAVE": {rdb, func(s *harness.Server) {
			require.Equal(t, "OK", s.Do("SAVE").Str)
			require.Equal(t, byte('+'), s.Do("ADDJOB", "other", "b", 0).Kind)
			s.Stop("SHUTDOWN", "NOSAVE")
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := harness.Start(t, harness.WithConfig(c.conf...))
			if strings.Contains(strings.Join(c.conf, ";"), "always") {
				harness.Await(t, 5*time.Second, "the log to be known as whole", func() bool {
					_, err := os.Stat(statePath(s))
					return err == nil
				})
			}
			d := s.Dial()
			var waiting []string
			for range 3 {
				waiting = append(waiting, add(t, d, "q", "b", 0))
			}
			again := add(t, d, "a", "b", 0)
			get(t, d, "a")
			d.Do("NACK", again)
			once, gone := add(t, d, "once", "b", 0, "RETRY", 0), add(t, d, "gone", "b", 0, "RETRY", 0)
			get(t, d, "gone")
			plain, named := add(t, d, "h", "plain", 0, "RETRY", 100), add(t, d, "h", "named", 0, "RETRY", 200)
			get(t, d, "h")
			require.Len(t, d.Do("GETJOB", "WORKER", "ada", "FROM", "h").Elems, 1)
			before := wip(t, d, "h")
			ctime := d.Do("SHOW", once).Field("ctime").Int()
			c.end(s)
			s.Restart()
			d = s.Dial()

			assert.Equal(t, int64(3), d.Do("QLEN", "q").Int())
			for _, id := range waiting {
				assert.Equal(t, id, get(t, d, "q"), "in its place")
				assert.Equal(t, int64(0), d.Do("SHOW", id).Field("additional-deliveries").Int())
			}
			assert.Equal(t, "queued", state(d, again))
			assert.Equal(t, int64(1), d.Do("SHOW", again).Field("nacks").Int())

			after := wip(t, d, "h")
			if c.hands {
				assert.Equal(t, before, after)
			} else {
				assert.Equal(t, before[1:], after)
				assert.Equal(t, plain, get(t, d, "h"), "whoever has it had it without a name")
			}
			assert.Equal(t, "active", state(d, named))

			assert.Equal(t, "active", state(d, gone))
			assert.Equal(t, int64(0), d.Do("ENQUEUE", gone).Int(), "it was delivered")
			assert.True(t, d.Do("SHOW", gone).Field("delivered").Null || d.Do("SHOW", gone).Field("delivered").Str == "")
			assert.Equal(t, ctime, d.Do("SHOW", once).Field("ctime").Int())
			if c.exact {
				assert.Equal(t, once, get(t, d, "once"))
				assert.Equal(t, int64(0), d.Do("ENQUEUE", once).Int())
				assert.NotContains(t, s.Log(), "may have been delivered")
				return
			}
			assert.Equal(t, "active", state(d, once))
			assert.Equal(t, "maybe", d.Do("SHOW", once).Field("delivered").Str)
			assert.Contains(t, s.Log(), "1 jobs with RETRY 0 may have been delivered")
			list := wip(t, d, "once")
			require.Len(t, list, 1)
			assert.Equal(t, int64(0), list[0].deliveries, "nobody is known to have had it")
			assert.Equal(t, int64(0), d.Do("NACK", once).Int())
			assert.True(t, d.Do("GETJOB", "NOHANG", "FROM", "once").NullArray())
			// A clean restart makes it no more certain.
			s.Stop()
			s.Restart()
			d = s.Dial()
			assert.Equal(t, "maybe", d.Do("SHOW", once).Field("delivered").Str)
			require.Equal(t, int64(1), d.Do("ENQUEUE", once).Int(), "by hand")
			assert.Equal(t, int64(0), d.Do("SHOW", once).Field("additional-deliveries").Int())
			assert.Equal(t, once, get(t, d, "once"))
			assert.Equal(t, int64(0), d.Do("ENQUEUE", once).Int())
		})
	}
}
