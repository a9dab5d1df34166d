package single

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// dies adds a job that is given up at once.
func dies(t *testing.T, c *harness.Conn, queue, body string, options ...any) string {
	t.Helper()
	id := add(t, c, append([]any{queue, body, 0}, options...)...)
	require.Equal(t, id, c.Do("GETJOB", "FROM", queue).Elems[0].Elems[1].Str)
	require.Equal(t, int64(1), c.Do("NACK", id, "DEAD").Int())
	return id
}

// D5: a dead letter that is moved lives again where it came from, as it was, and its tries begin anew.
func TestLifeD5(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		first := dies(t, c, "q", "first", "TTL", 100, "MAXNACKS", 2)
		second := add(t, c, "q", "second", 0)
		if mode != "" {
			comeBack(t, s, mode)
			c = s.Dial()
		}
		require.Equal(t, int64(1), c.Do("MOVEJOB", first).Int())
		if mode != "" {
			comeBack(t, s, mode)
			c = s.Dial()
		}
		v := c.Do("SHOW", first)
		assert.Equal(t, []string{"q", "queued"}, []string{v.Field("queue").Str, v.Field("state").Str})
		assert.InDelta(t, 100, v.Field("ttl").Int(), 10)
		for _, field := range []string{"died", "why", "from"} {
			assert.NotContains(t, fields(v), field)
		}
		require.Equal(t, first, get(t, c, "q"), "at its place by age")
		require.Equal(t, second, get(t, c, "q"))
		require.Equal(t, int64(1), c.Do("NACK", first).Int())
		assert.Equal(t, "q", c.Do("SHOW", first).Field("queue").Str, "its tries began anew")
		require.Equal(t, first, get(t, c, "q"))
		require.Equal(t, int64(1), c.Do("NACK", first).Int())
		assert.Equal(t, "q:dead", c.Do("SHOW", first).Field("queue").Str)
	}, "", "aof", "rdb", "reload")
}

// A job that moves is logged by one command, without its body, and without MULTI. A start and a replica know all the same where it is.
func TestAMoveIsLoggedByOneCommand(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	replica := harness.Start(t, harness.WithConfig("replicaof 127.0.0.1 "+strconv.Itoa(s.Port)))
	c := s.Dial()
	require.Equal(t, int64(1), c.Do("WAIT", 1, 10_000).Int())
	body := strings.Repeat("body", 1000)
	id := add(t, c, "q", body, 0)
	for _, move := range [][]any{{"NACK", id, "DEAD", "REASON", "why"}, {"MOVEJOB", id}, {"MOVEJOB", id, "TO", "other"}, {"MOVEJOB", id, "TO", "new", "PRIORITY", 5}} {
		if move[0] == "NACK" {
			require.Equal(t, id, get(t, c, "q"))
		}
		before := len(readAOF(t, s))
		require.Equal(t, int64(1), c.Do(move...).Int())
		logged := readAOF(t, s)[before:]
		assert.Equal(t, 1, strings.Count(logged, "SETJOB"), logged)
		for _, word := range []string{body, "MULTI", "LOADJOB", "DELJOB"} {
			assert.NotContains(t, logged, word)
		}
	}
	place := func(c *harness.Conn) (place []string) {
		for _, field := range []string{"queue", "body", "priority", "nacks", "reason"} {
			place = append(place, c.Do("SHOW", id).Field(field).Str)
		}
		return place
	}
	here := place(c)
	require.Equal(t, "new", here[0])
	require.Equal(t, int64(1), c.Do("WAIT", 1, 10_000).Int())
	assert.Equal(t, here, place(replica.Dial()))
	s.Kill()
	s.Restart()
	assert.Equal(t, here, place(s.Dial()))
	for _, queue := range []string{"q", "q:dead", "other"} {
		assert.Equal(t, int64(0), s.Dial().Do("QLEN", queue).Int(), queue)
	}
}

// Many at once: the oldest first.
func TestManyDeadLettersLiveAgain(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	var ids []string
	for i := range 150 {
		ids = append(ids, dies(t, c, fmt.Sprint("q", i%2), "b"))
	}
	c.Do("QCONFIG", "SET", "q*", "DEAD", "graves")
	for i := range 30 {
		ids = append(ids, dies(t, c, fmt.Sprint("q", i%2), "b"))
	}
	require.Equal(t, int64(75), c.Do("MOVEJOB", "FROM", "q0:dead").Int())
	require.Equal(t, int64(10), c.Do("MOVEJOB", "FROM", "q1:dead", "COUNT", 10).Int())
	require.Equal(t, int64(65), c.Do("MOVEJOB", "FROM", "q1:dead", "COUNT", 10_000).Int())
	require.Equal(t, int64(30), c.Do("MOVEJOB", "FROM", "graves").Int())
	require.Equal(t, int64(0), c.Do("MOVEJOB", "FROM", "graves").Int())
	for i := range ids {
		require.Equal(t, ids[i], get(t, c, fmt.Sprint("q", i%2)))
	}
}

// D6: a dead letter whose key another job has stays dead. When the key is free it lives again, and has the lock.
func TestLifeD6(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	for _, strategy := range []string{"until-processed", "before-processing", "before-and-during-processing"} {
		unique := []any{"UNIQUE", strategy, "KEY", "k"}
		dead := dies(t, c, strategy, "1", unique...)
		other := add(t, c, append([]any{strategy, "2", 0}, unique...)...)
		require.True(t, c.Do("MOVEJOB", dead).Err("DUPLICATE "+other))
		assert.Equal(t, strategy+":dead", c.Do("SHOW", dead).Field("queue").Str)
		require.Equal(t, int64(1), c.Do("QLEN", strategy+":dead").Int())
		require.Equal(t, int64(0), c.Do("MOVEJOB", "FROM", strategy+":dead").Int())
		require.Equal(t, other, get(t, c, strategy))
		require.Equal(t, int64(1), c.Do("ACKJOB", other).Int())
		require.Equal(t, int64(1), c.Do("MOVEJOB", dead).Int())
		assert.Equal(t, strategy, c.Do("SHOW", dead).Field("unique").Str)
		require.True(t, c.Do(append([]any{"ADDJOB", strategy, "3", 0}, unique...)...).Null, "it has the lock")
		require.Equal(t, dead, get(t, c, strategy))
	}
	during := dies(t, c, "run", "1", "UNIQUE", "during-processing", "KEY", "k")
	other := add(t, c, "run", "2", 0, "UNIQUE", "during-processing", "KEY", "k")
	require.Equal(t, int64(1), c.Do("MOVEJOB", during).Int())
	require.Equal(t, during, get(t, c, "run"))
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "run").NullArray())
	require.Equal(t, int64(1), c.Do("ACKJOB", during).Int())
	require.Equal(t, other, get(t, c, "run"))
}

// D7: a job that waits for one that dies, is revived and done, is queued then.
func TestLifeD7(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	parent := add(t, c, "q", "p", 0)
	child := add(t, c, "c", "c", 0, "AFTER", parent)
	require.Equal(t, parent, get(t, c, "q"))
	require.Equal(t, int64(1), c.Do("NACK", parent, "DEAD").Int())
	assert.Equal(t, "blocked", state(c, child))
	require.Equal(t, int64(1), c.Do("MOVEJOB", parent).Int())
	assert.Equal(t, "blocked", state(c, child))
	require.Equal(t, parent, get(t, c, "q"))
	require.Equal(t, int64(1), c.Do("ACKJOB", parent).Int())
	assert.Equal(t, "queued", state(c, child))
}

// Jobs that aren't dead move, too: those that wait at their place by age, delayed ones with their time, deferred ones held back.
func TestLivingJobsMove(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	old := add(t, c, "a", "old", 0)
	young := add(t, c, "b", "young", 0)
	delayed := add(t, c, "a", "delayed", 0, "DELAY", 1000)
	deferred := add(t, c, "a", "deferred", 0, "DEFERRED")
	rests := add(t, c, "r", "rests", 0)
	require.Equal(t, rests, get(t, c, "r"))
	require.Equal(t, int64(1), c.Do("NACK", rests, "DELAY", 1000).Int())
	w := s.Dial()
	w.Send("GETJOB", "COUNT", 2, "FROM", "elsewhere")
	awaitBlocked(t, s, 1)
	require.Equal(t, int64(4), c.Do("MOVEJOB", old, delayed, deferred, rests, "TO", "b").Int())
	check := func() {
		t.Helper()
		v := c.Do("QSTAT", "b")
		for field, want := range map[string]int64{"len": 2, "delayed": 2, "deferred": 1} {
			assert.Equal(t, want, v.Field(field).Int(), field)
		}
		assert.Equal(t, []string{old, young}, waiting(c, "b"))
		for _, id := range []string{delayed, rests} {
			assert.InDelta(t, 1_000_000, c.Do("SHOW", id).Field("next-requeue-within").Int(), 30_000)
		}
	}
	check()
	s.AwaitLogged()
	s.Kill()
	s.Restart()
	c = s.Dial()
	check()
	require.Equal(t, int64(2), c.Do("MOVEJOB", "FROM", "b", "TO", "elsewhere").Int())
	require.Equal(t, old, get(t, c, "elsewhere"))
}

// A unique job takes its waiting lock along, and stays where another has its key there.
func TestAMovedJobTakesItsLockAlong(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	unique := []any{"UNIQUE", "until-processed", "KEY", "k"}
	a := add(t, c, append([]any{"a", "b", 0}, unique...)...)
	b := add(t, c, append([]any{"b", "b", 0}, unique...)...)
	require.True(t, c.Do("MOVEJOB", a, "TO", "b").Err("DUPLICATE "+b))
	require.Equal(t, []string{a}, waiting(c, "a"))
	require.Equal(t, int64(1), c.Do("MOVEJOB", a, "TO", "c").Int())
	require.True(t, c.Do(append([]any{"ADDJOB", "c", "b", 0}, unique...)...).Null)
	add(t, c, append([]any{"a", "b", 0}, unique...)...)
}

// D10, and what else is refused.
func TestLifeD10(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	works := add(t, c, "q", "b", 0)
	require.Equal(t, works, get(t, c, "q"))
	once := add(t, c, "q", "b", 0, "RETRY", 0)
	require.Equal(t, once, get(t, c, "q"))
	waits := add(t, c, "q", "b", 0)
	dead := dies(t, c, "paused", "b")
	c.Do("PAUSE", "paused", "in")
	c.Do("SET", "text", "x")
	unknown := "D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"
	for _, of := range []struct {
		args []any
		want string
	}{
		{[]any{works, "TO", "x"}, "INPROGRESS The job is being worked on"}, {[]any{once, "TO", "x"}, "INPROGRESS"}, {[]any{waits}, "NOTDEAD The job isn't dead"},
		{[]any{unknown, "TO", "x"}, "NOJOB"}, {[]any{unknown}, "NOJOB"}, {[]any{dead}, "PAUSED"}, {[]any{waits, "TO", "paused"}, "PAUSED"}, {[]any{waits, "TO", "text"}, "WRONGTYPE"},
		{[]any{"FROM", "q", "TO", "text"}, "WRONGTYPE"}, {[]any{"FROM", "text", "TO", "x"}, "WRONGTYPE"}, {[]any{"FROM", "q", "TO", "paused"}, "PAUSED"},
		{[]any{"FROM", "q", "COUNT", 0}, "ERR COUNT must be between 1 and 10000"}, {[]any{"FROM", "q", "COUNT", 10_001}, "ERR COUNT"}, {[]any{"FROM", "q", "COUNT", "x"}, "ERR COUNT"},
		{[]any{"bogus"}, "BADID"}, {[]any{waits, "bogus"}, "BADID"}, {[]any{waits, "TO"}, "ERR syntax error"}, {[]any{"TO", "x"}, "ERR syntax error"}, {[]any{"FROM"}, "ERR syntax error"},
		{[]any{waits, "FROM", "q"}, "ERR syntax error"}, {[]any{waits, "MESH"}, "ERR syntax error"}, {[]any{waits, "COUNT", 5}, "ERR syntax error"},
		{[]any{"FROM", "q", "TO", "x", "TO", "y"}, "ERR syntax error"}, {[]any{"FROM", "q", "TIMEOUT", 5}, "ERR TIMEOUT is for MESH"}, {[]any{"FROM", "q", "TO", "x", "bogus"}, "ERR syntax error"},
	} {
		v := c.Do(append([]any{"MOVEJOB"}, of.args...)...)
		assert.True(t, v.Err(of.want), "%v: %v", of.args, v)
	}
	require.Equal(t, int64(1), c.Do("MOVEJOB", works, once, waits, unknown, "TO", "x").Int())
	assert.Equal(t, []string{waits}, waiting(c, "x"))
	require.Equal(t, int64(0), c.Do("MOVEJOB", "FROM", "nothing", "TO", "x").Int())

	require.Equal(t, "OK", c.Do("MULTI").Str)
	c.Do("MOVEJOB", "FROM", "x", "TO", "y")
	c.Do("MOVEJOB", "FROM", "x", "MESH")
	v := c.Do("EXEC")
	assert.True(t, v.Elems[0].Is(1))
	assert.True(t, v.Elems[1].Err("ERR MESH has to wait"))
}

// A user whose key patterns exclude queues can't move a job into one of them, nor dead letters back into it.
func TestMovingNeedsTheRightToTheQueue(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	u := limitedUser(t, s)
	mine, dead := add(t, c, "a1", "b", 0), dies(t, c, "theirs", "b", "DEAD", "adead")
	assert.True(t, u.Do("MOVEJOB", mine, "TO", "theirs").Err("NOPERM"))
	assert.True(t, u.Do("MOVEJOB", dead).Err("NOPERM"))
	assert.True(t, u.Do("MOVEJOB", "FROM", "adead").Err("NOPERM"))
	assert.True(t, u.Do("MOVEJOB", "FROM", "theirs:x", "TO", "a1").Err("NOPERM"))
	assert.Equal(t, int64(1), u.Do("MOVEJOB", dead, "TO", "a2").Int())
	assert.Equal(t, int64(1), u.Do("MOVEJOB", "FROM", "a1", "TO", "a3").Int())
}

// Very many jobs are moved bit by bit, each once, in their order, and the client has the count. In MULTI a thousand are moved.
func TestVeryManyJobsAreMoved(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	bodies := []any{"ADDJOBS", "q", 0, "BODIES"}
	for i := range 5000 {
		bodies = append(bodies, i)
	}
	require.Len(t, c.Do(bodies...).Elems, 5000)
	c.Do("MULTI")
	c.Do("MOVEJOB", "FROM", "q", "TO", "p", "COUNT", 10_000)
	require.Equal(t, int64(1000), c.Do("EXEC").Elems[0].Int())
	require.Equal(t, int64(4000), c.Do("MOVEJOB", "FROM", "q", "TO", "p", "COUNT", 10_000).Int())
	got := order(c, "p")
	require.Len(t, got, 5000)
	for i := range got {
		require.Equal(t, fmt.Sprint(i), got[i])
	}
}

// A job that is named twice, or is there already, isn't counted.
func TestMovedJobsAreCountedOnce(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	id := add(t, c, "q", "b", 0)
	require.Equal(t, int64(1), c.Do("MOVEJOB", id, id, "TO", "p").Int())
	require.Equal(t, int64(0), c.Do("MOVEJOB", id, "TO", "p").Int())
	require.Equal(t, int64(0), c.Do("MOVEJOB", "FROM", "p", "TO", "p").Int())
	require.Equal(t, int64(1), c.Do("MOVEJOB", "FROM", "p", "TO", "p", "PRIORITY", 1).Int())
	require.Equal(t, int64(1), c.Do("MOVEJOB", id, id, "AT", time.Now().Unix()+5000).Int())
	other := add(t, c, "p", "b", 0)
	require.Equal(t, int64(2), c.Do("MOVEJOB", id, other, id, other, "AT", time.Now().Unix()+6000).Int())
}

// Two clients move all jobs of a queue at once, bit by bit: each job goes with one of them, and both are told the right count.
func TestJobsAreMovedByOneOfTwo(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	c.Do("EVAL", "for i=1,8000 do redis.call('ADDJOB','q',i,0) end", 0)
	one, other := s.Dial(), s.Dial()
	one.Send("MOVEJOB", "FROM", "q", "COUNT", 10_000, "TO", "a")
	other.Send("MOVEJOB", "FROM", "q", "COUNT", 10_000, "TO", "b")
	byOne, byOther := one.Receive().Int(), other.Receive().Int()
	assert.Equal(t, byOne, c.Do("QLEN", "a").Int())
	assert.Equal(t, byOther, c.Do("QLEN", "b").Int())
	assert.EqualValues(t, 8000, byOne+byOther)
	ids := []any{"MOVEJOB"}
	for range 1001 {
		ids = append(ids, unknown)
	}
	require.True(t, c.Do(append(ids, "TO", "a")...).Err("ERR at most 1000 IDs at once"))
}
