package migrate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

const other = "#!lua name=jobmesh\nredis.register_function('f', function() return 1 end)"

// has says whether a server has the functions.
func has(c *harness.Conn) bool {
	v := call(c, "resque_import", "resque:queue:none", "none")
	return len(v.Elems) == 4
}

func TestLoad(t *testing.T) {
	s := harness.Start(t)
	for _, c := range []*harness.Conn{s.Dial(), s.Dial3()} {
		c.Do("FUNCTION", "FLUSH")
		list := func() (states []string) {
			for _, e := range c.Do("JOBMESH", "LUA", "LIST").Elems {
				states = append(states, e.Field("library").Str+" "+e.Field("loaded").Str)
			}
			return states
		}
		assert.Equal(t, []string{"jobmesh no", "unique_queue no"}, list())
		for _, args := range [][]any{{"LOAD"}, {"load", "replace"}, {"LOAD", "jobmesh"}, {"LOAD", "REPLACE", "jobmesh"}} {
			v := c.Do(append([]any{"JOBMESH", "LUA"}, args...)...)
			assert.Equal(t, `$"jobmesh"`, v.String())
			assert.True(t, has(c))
		}
		assert.Equal(t, []string{"jobmesh yes", "unique_queue no"}, list())
		assert.Equal(t, `$"unique_queue"`, c.Do("JOBMESH", "LUA", "LOAD", "unique_queue").String())
		assert.Equal(t, int64(1), c.Do("FCALL", "luq_push", 3, "l", "l:uniqueue", "l:start_at", "x", 7).Int())
		c.Do("DEL", "l", "l:uniqueue", "l:start_at")

		require.Equal(t, "jobmesh", c.Do("FUNCTION", "LOAD", "REPLACE", other).Str)
		assert.Equal(t, []string{"jobmesh another", "unique_queue yes"}, list())
		assert.True(t, c.Do("JOBMESH", "LUA", "LOAD").Err("ERR the server has another library 'jobmesh'"))
		assert.Equal(t, int64(1), c.Do("FCALL", "f", 0).Int(), "it is left alone")
		assert.Equal(t, "jobmesh", c.Do("JOBMESH", "LUA", "LOAD", "REPLACE").Str)
		assert.True(t, has(c))

		// Another library has a function of that name.
		c.Do("FUNCTION", "FLUSH")
		c.Do("FUNCTION", "LOAD", "#!lua name=mine\nredis.register_function('jobmesh_rq_export', function() return 1 end)")
		v := c.Do("JOBMESH", "LUA", "LOAD", "REPLACE")
		assert.True(t, v.Err("ERR ") && !has(c), "%v", v)
		c.Do("FUNCTION", "FLUSH")

		for _, args := range [][]any{{"LOAD", "nope"}, {"LOAD", "REPLACE", "nope"}, {"LOAD", "jobmesh", "REPLACE"}, {"LOAD", "jobmesh", "x"}, {"LIST", "x"}, {"x"}, {"DUMP", "jobmesh"}, {"LOAD", "REPLACE", "jobmesh", "x"}} {
			v := c.Do(append([]any{"JOBMESH", "LUA"}, args...)...)
			assert.True(t, v.Err("ERR "), "%v: %v", args, v)
		}
		assert.Equal(t, []string{"jobmesh no", "unique_queue no"}, list())
		assert.True(t, c.Do("JOBMESH", "LUA").Err("ERR wrong number of arguments"))
		assert.Equal(t, byte('-'), c.Do("EVAL", "return redis.call('JOBMESH', 'LUA', 'LOAD')", 0).Kind, "not from a script, as FUNCTION LOAD")
		c.Do("MULTI")
		c.Do("JOBMESH", "LUA", "LOAD")
		c.Do("FCALL", "jobmesh_resque_import", 2, "resque:queue:none", "none")
		assert.Len(t, c.Do("EXEC").Elems[1].Elems, 4)
	}
	assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
}

// A user who may not load functions can't load them by this command either.
func TestLoadNeedsTheRight(t *testing.T) {
	s := harness.Start(t)
	s.Do("ACL", "SETUSER", "w", "on", "nopass", "~*", "+@all", "-function|load")
	c := s.Dial()
	require.Equal(t, "OK", c.Do("AUTH", "w", "").Str)
	v := c.Do("JOBMESH", "LUA", "LOAD")
	assert.True(t, v.Err("NOPERM"), "%v", v)
	assert.Len(t, c.Do("JOBMESH", "LUA", "LIST").Elems, 2)
	s.Do("ACL", "SETUSER", "w", "+function|load", "-function|list")
	assert.True(t, c.Do("JOBMESH", "LUA", "LIST").Err("NOPERM"))
	assert.Equal(t, "jobmesh", c.Do("JOBMESH", "LUA", "LOAD").Str)
}

// The functions are saved and replicated, and outlive restarts.
func TestLoadLasts(t *testing.T) {
	t.Run("AOF", func(t *testing.T) {
		s, _ := start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
		s.Kill()
		s.Restart()
		c := s.Dial()
		assert.True(t, has(c))
		assert.Equal(t, "yes", c.Do("JOBMESH", "LUA", "LIST").Elems[0].Field("loaded").Str)
		s.RewriteAOF()
		s.Kill()
		s.Restart()
		assert.True(t, has(s.Dial()))
	})
	t.Run("RDB", func(t *testing.T) {
		s, c := start(t)
		require.Equal(t, "OK", c.Do("SAVE").Str)
		s.Kill()
		s.Restart()
		assert.True(t, has(s.Dial()))
	})
	t.Run("replica", func(t *testing.T) {
		s, c := start(t)
		r := harness.Start(t, harness.WithReplicaOf(s))
		rc := r.Dial()
		loaded := func() string {
			v := rc.Do("FUNCTION", "LIST", "LIBRARYNAME", "unique_queue")
			return v.String()
		}
		r.AwaitSync()
		assert.Len(t, rc.Do("FUNCTION", "LIST").Elems, 1)
		assert.True(t, rc.Do("JOBMESH", "LUA", "LOAD").Err("READONLY"))
		c.Do("JOBMESH", "LUA", "LOAD", "unique_queue")
		harness.Await(t, 10*time.Second, "the other library", func() bool { return loaded() != "*[]" })
		// The replica also gets what the functions do.
		c.Do("RPUSH", "resque:queue:mail", "a", "b")
		require.Equal(t, 1, all(t, c, "resque_import", "resque:queue:mail", "mail", "COUNT", 1)-1)
		harness.Await(t, 10*time.Second, "the jobs", func() bool {
			return registered(rc) == 2 && rc.Do("EXISTS", "resque:queue:mail").Is(0)
		})
		require.Equal(t, 2, all(t, c, "resque_export", "mail", "resque:queue:mail"))
		harness.Await(t, 10*time.Second, "the list", func() bool {
			return registered(rc) == 0 && rc.Do("LLEN", "resque:queue:mail").Is(2)
		})
	})
}
