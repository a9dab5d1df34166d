package single

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func awaitBlocked(t *testing.T, s *harness.Server, n int) {
	t.Helper()
	harness.Await(t, 3*time.Second, fmt.Sprint(n, " blocked clients"), func() bool {
		return s.Info("jobmesh", "jobmesh_blocked_clients") == fmt.Sprint(n)
	})
}

func TestBlocked(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	first, second := s.Dial(), s.Dial()
	first.Send("GETJOB", "WITHCOUNTERS", "FROM", "z", "z", "y")
	awaitBlocked(t, s, 1)
	second.Send("GETJOB", "COUNT", 5, "FROM", "y")
	awaitBlocked(t, s, 2)
	assert.Equal(t, int64(1), c.Do("QSTAT", "z").Field("blocked").Int())
	assert.Equal(t, int64(2), c.Do("QSTAT", "y").Field("blocked").Int())
	a := add(t, c, "y", "one", 0)
	b := add(t, c, "y", "two", 0)
	v := first.Receive()
	require.Len(t, v.Elems, 1)
	require.Len(t, v.Elems[0].Elems, 7)
	assert.Equal(t, []string{"y", a, "one"}, v.Elems[0].Strings()[:3])
	assert.Equal(t, b, second.Receive().Elems[0].Elems[1].Str)
	assert.True(t, c.Do("QSTAT", "z").NullArray())
}

func TestBlockedClientGone(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	gone := s.Dial()
	gone.Send("GETJOB", "FROM", "q")
	awaitBlocked(t, s, 1)
	gone.Close()
	awaitBlocked(t, s, 0)
	id := add(t, c, "q", "b", 0)
	assert.Equal(t, "queued", state(c, id))
}

// A job given to a client that vanishes in the same turn of the event loop
// goes back to its queue, at its old place, and isn't counted.
func TestAnswerUnheard(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	for _, retry := range []int{0, 100} {
		gone := s.Dial()
		cid := gone.Do("CLIENT", "ID").Int()
		gone.Send("GETJOB", "FROM", "q")
		awaitBlocked(t, s, 1)
		// EXEC runs both in one turn: the answer is on its way when the client dies.
		c.Do("MULTI")
		c.Do("ADDJOB", "q", "b", 0, "RETRY", retry)
		c.Do("CLIENT", "KILL", "ID", cid)
		v := c.Do("EXEC")
		require.Len(t, v.Elems, 2, "%v", v)
		id := v.Elems[0].Str
		harness.Await(t, 2*time.Second, "the job to return", func() bool { return state(c, id) == "queued" })
		assert.Equal(t, id, get(t, c, "q"))
		assert.Equal(t, int64(0), c.Do("SHOW", id).Field("additional-deliveries").Int())
		c.Do("ACKJOB", id)
	}
	assert.Equal(t, "2", s.Info("jobmesh", "jobmesh_answers_unheard"))
}

func TestBlockedTimeoutAndUnblock(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	w := s.Dial()
	cid := w.Do("CLIENT", "ID").Int()
	w.Send("GETJOB", "TIMEOUT", 100, "FROM", "q")
	w.Send("PING")
	assert.True(t, w.Receive().NullArray())
	assert.Equal(t, "PONG", w.Receive().Str)
	for _, how := range []string{"TIMEOUT", "ERROR"} {
		w.Send("GETJOB", "FROM", "q")
		awaitBlocked(t, s, 1)
		assert.Equal(t, int64(1), c.Do("CLIENT", "UNBLOCK", cid, how).Int())
		if how == "ERROR" {
			assert.True(t, w.Receive().Err("UNBLOCKED"))
		} else {
			assert.True(t, w.Receive().NullArray())
		}
		awaitBlocked(t, s, 0)
	}
	w.Send("GETJOB", "FROM", "q")
	awaitBlocked(t, s, 1)
	assert.Equal(t, "OK", c.Do("JOBMESH", "FLUSH").Str)
	assert.True(t, w.Receive().NullArray())
	assert.Equal(t, "PONG", w.Do("PING").Str)
}

// A client that is served can be unblocked in the same turn: its answer is on its way then. It gets that answer, or with ERROR the error, and each further
// reply belongs to its command.
func TestUnblockedWhileAnswered(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	for _, protocol := range []int{2, 3} {
		w := s.Dial()
		w.Do("HELLO", protocol)
		cid := w.Do("CLIENT", "ID").Int()
		for _, retry := range []int{0, 100} {
			for _, how := range []string{"TIMEOUT", "ERROR"} {
				w.Send("GETJOB", "FROM", "q")
				awaitBlocked(t, s, 1)
				v := all(t, c, []any{"ADDJOB", "q", "b", 0, "RETRY", retry}, []any{"CLIENT", "UNBLOCK", cid, how})
				got := w.Receive()
				if how == "ERROR" {
					require.True(t, got.Err("UNBLOCKED"), "%v", got)
					require.Equal(t, v[0].Str, waitFor(t, c, "q"))
				} else if !got.NullArray() && !got.Null {
					require.Len(t, got.Elems, 1, "%v %v %v %v", protocol, retry, how, got)
					require.Equal(t, v[0].Str, got.Elems[0].Elems[1].Str)
					assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
				}
				require.Equal(t, "PONG", w.Do("PING").Str)
				c.Do("ACKJOB", v[0].Str)

				token := c.Do("LOCK.ACQUIRE", "l", "a", 60_000).Int()
				w.Send("LOCK.ACQUIRE", "l", "b", 60_000, "WAIT", 60_000)
				harness.Await(t, 5*time.Second, "the client to wait", func() bool { return s.Info("clients", "blocked_clients") == "1" })
				all(t, c, []any{"LOCK.RELEASE", "l", "a", token}, []any{"CLIENT", "UNBLOCK", cid, how})
				switch got = w.Receive(); {
				case how == "ERROR":
					require.True(t, got.Err("UNBLOCKED"), "%v", got)
				case !got.Null:
					require.Equal(t, byte(':'), got.Kind)
					require.Equal(t, "OK", w.Do("LOCK.RELEASE", "l", "b", got.Int()).Str)
				}
				require.Equal(t, "PONG", w.Do("PING").Str)
				harness.Await(t, 5*time.Second, "the lock to be free", func() bool { return c.Do("LOCK.ACQUIRE", "l", "c", 1).Kind == ':' })
				harness.Await(t, 5*time.Second, "the lock to end", func() bool { return c.Do("LOCK.SHOW", "l").Null })
			}
		}
	}
}

// A client that waits has sent further commands. Once it is answered, the server carries these out before it sleeps: one of them serves a second
// client, and the next unblocks that one.
func TestUnblockedByTheRestOfAPipeline(t *testing.T) {
	s := harness.Start(t)
	c, w, x := s.Dial(), s.Dial(), s.Dial()
	cid := w.Do("CLIENT", "ID").Int()
	w.Send("GETJOB", "FROM", "q")
	awaitBlocked(t, s, 1)
	x.Later("GETJOB", "FROM", "p")
	x.Later("ADDJOB", "q", "b", 0, "RETRY", 100)
	x.Later("CLIENT", "UNBLOCK", cid)
	x.Flush()
	awaitBlocked(t, s, 2)
	c.Do("ADDJOB", "p", "b", 0)
	require.Len(t, x.Receive().Elems, 1)
	x.Receive()
	x.Receive()
	w.Send("PING")
	require.NotEqual(t, "PONG", w.Receive().Str, "the reply to GETJOB")
	require.Equal(t, "PONG", w.Receive().Str)
}

func TestNeverBlocksInMultiOrLua(t *testing.T) {
	c := harness.Start(t).Dial()
	assert.True(t, c.Do("EVAL", "return redis.call('GETJOB','FROM','q')", 0).Null)
	c.Do("MULTI")
	c.Do("GETJOB", "FROM", "q")
	c.Do("ADDJOB", "q", "b", 0)
	c.Do("GETJOB", "FROM", "q")
	v := c.Do("EXEC")
	require.Len(t, v.Elems, 3)
	assert.True(t, v.Elems[0].NullArray())
	assert.Len(t, v.Elems[2].Elems, 1)
	assert.Len(t, c.Do("EVAL", "return redis.call('ADDJOB',KEYS[1],'b',0)", 1, "q").Str, 40)
}

// A script can't reset the node or end the server, one that may only read least of all.
func TestScriptsDoNotResetTheNode(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	id := add(t, c, "q", "b", 0)
	for _, command := range []string{"'CLUSTER','RESET'", "'CLUSTER','RESET','HARD'", "'CLUSTER','LEAVING','yes'", "'SHUTDOWN'"} {
		for _, eval := range []string{"EVAL", "EVAL_RO"} {
			v := c.Do(eval, "return redis.call('JOBMESH',"+command+")", 0)
			assert.Contains(t, v.Str, "not allowed from script", "%s %s: %v", eval, command, v)
		}
	}
	assert.Equal(t, byte('-'), c.Do("EVAL_RO", "return redis.call('JOBMESH','FLUSH')", 0).Kind)
	assert.Equal(t, "queued", state(c, id))
	c.Do("MULTI")
	c.Do("JOBMESH", "CLUSTER", "RESET")
	require.Len(t, c.Do("EXEC").Elems, 1)
	assert.True(t, c.Do("SHOW", id).Null, "a transaction can")
}

func TestWatch(t *testing.T) {
	s := harness.Start(t)
	c, other := s.Dial(), s.Dial()
	for _, change := range []func(){
		func() { add(t, other, "q", "b", 0) },
		func() { get(t, other, "q") },
		func() { other.Do("ACKJOB", other.Do("JSCAN", "BUSYLOOP").Elems[1].Elems[0].Str) },
	} {
		c.Do("WATCH", "q")
		change()
		c.Do("MULTI")
		c.Do("PING")
		assert.True(t, c.Do("EXEC").NullArray())
	}
	c.Do("WATCH", "q")
	other.Do("QLEN", "q")
	c.Do("MULTI")
	c.Do("PING")
	assert.Len(t, c.Do("EXEC").Elems, 1)
}

func TestShutdownWithBlockedClients(t *testing.T) {
	s := harness.Start(t)
	for range 5 {
		s.Dial().Send("GETJOB", "FROM", "q")
	}
	awaitBlocked(t, s, 5)
	v := s.Do("MODULE", "UNLOAD", "jobmesh")
	assert.True(t, v.Err("ERR Error unloading module"), "%v", v)
	s.Stop()
}
