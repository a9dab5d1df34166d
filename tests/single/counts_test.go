package single

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// QLEN, QSTAT and QSCAN with MESH at a node alone, which has nobody to ask.
func TestCountsAlone(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	add(t, c, "q", "b", 0)
	add(t, c, "q", "b", 0)
	add(t, c, "late", "b", 0, "DELAY", 100)
	deferred := add(t, c, "held", "b", 0, "DEFERRED")
	add(t, c, "held", "b", 0, "BLOCKEDBY", deferred)
	get(t, c, "q")

	v := c.Do("QLEN", "q", "MESH")
	assert.Equal(t, []string{"len", "unanswered"}, []string{v.Elems[0].Str, v.Elems[2].Str})
	assert.Equal(t, int64(1), v.Field("len").Int())
	assert.Empty(t, v.Field("unanswered").Elems)

	v = c.Do("QSTAT", "q", "mesh", "timeout", 5)
	require.Len(t, v.Elems, 2*20)
	var names []string
	for i := 0; i < len(v.Elems); i += 2 {
		names = append(names, v.Elems[i].Str)
	}
	assert.Equal(t, []string{"name", "len", "in-progress", "overdue", "held-back", "delayed", "deferred", "jobs-blocked", "blocked",
		"jobs-in", "jobs-out", "age", "idle", "oldest", "dead", "kept", "dead-letters", "pause", "nodes", "unanswered"}, names)
	for field, want := range map[string]int64{"len": 1, "in-progress": 1, "jobs-in": 2, "jobs-out": 1} {
		assert.Equal(t, want, v.Field(field).Int(), field)
	}
	require.Len(t, v.Field("nodes").Elems, 1)
	self := c.Do("JOBMESH", "CLUSTER", "MYID").Str
	assert.Equal(t, []string{self, "none"}, []string{v.Field("nodes").Elems[0].Elems[0].Str, v.Field("nodes").Elems[0].Elems[3].Str})
	assert.Equal(t, int64(1), c.Do("QSTAT", "late", "MESH").Field("delayed").Int())
	v = c.Do("QSTAT", "held", "MESH")
	assert.Equal(t, []int64{1, 1}, []int64{v.Field("deferred").Int(), v.Field("jobs-blocked").Int()})

	v = c.Do("QSCAN", "MESH")
	assert.Equal(t, "0", v.Field("cursor").Str)
	lengths := map[string]int64{}
	for _, q := range v.Field("queues").Elems {
		lengths[q.Elems[0].Str] = q.Elems[1].Int()
	}
	assert.Equal(t, map[string]int64{"q": 1, "late": 0, "held": 0}, lengths)
	assert.Len(t, c.Do("QSCAN", 0, "MESH", "MINLEN", 1).Field("queues").Elems, 1)

	m := s.Dial3()
	for _, args := range [][]any{{"QLEN", "q", "MESH"}, {"QSTAT", "q", "MESH"}, {"QSCAN", "0", "MESH"}} {
		assert.Equal(t, byte('%'), m.Do(args...).Kind, args)
	}

	// A release ends the count of the deferred job. The other one stays blocked until that one ends.
	require.Equal(t, int64(1), c.Do("RELEASEJOB", deferred).Int())
	v = c.Do("QSTAT", "held", "MESH")
	for field, want := range map[string]int64{"deferred": 0, "jobs-blocked": 1, "len": 1} {
		assert.Equal(t, want, v.Field(field).Int(), field)
	}
}

func TestCountsErrors(t *testing.T) {
	s := harness.Start(t)
	c := s.Dial()
	c.Do("SET", "s", "x")
	page := "ERR with MESH a call of QSCAN or JSCAN lists a page of one node's queues or jobs: COUNT must be between 1 and 1000, and BUSYLOOP, IMPORTRATE and REPLY all are for one node alone"
	for _, want := range []struct {
		text string
		args []any
	}{
		{"ERR wrong number of arguments for 'qlen' command", []any{"QLEN"}},
		{syntax, []any{"QLEN", "q", "LATE"}},
		{syntax, []any{"QSTAT", "q", "MESH", "TIMEOUT"}},
		{"ERR TIMEOUT is for MESH: nobody else is asked without", []any{"QLEN", "q", "TIMEOUT", 5}},
		{"ERR TIMEOUT is for MESH: nobody else is asked without", []any{"QSCAN", "TIMEOUT", 5}},
		{"ERR timeout is negative", []any{"QSTAT", "q", "MESH", "TIMEOUT", -1}},
		{"ERR timeout is not an integer or out of range", []any{"QSCAN", "MESH", "TIMEOUT", "x"}},
		{"WRONGTYPE Operation against a key holding the wrong kind of value", []any{"QSTAT", "s", "MESH"}},
		{"WRONGTYPE Operation against a key holding the wrong kind of value", []any{"QLEN", "s", "MESH"}},
		{page, []any{"QSCAN", "MESH", "COUNT", 1001}},
		{page, []any{"QSCAN", "MESH", "BUSYLOOP"}},
		{page, []any{"QSCAN", "MESH", "IMPORTRATE", 1}},
		{page, []any{"JSCAN", "MESH", "BUSYLOOP"}},
		{page, []any{"JSCAN", "MESH", "REPLY", "all"}},
		{"ERR TIMEOUT is for MESH: nobody else is asked without", []any{"JSCAN", "TIMEOUT", 5}},
	} {
		v := c.Do(want.args...)
		assert.True(t, v.Err(want.text), "%v: %v", want.args, v)
	}
	for _, args := range [][]any{{"QLEN", "q", "MESH"}, {"QSTAT", "q", "MESH"}, {"QSCAN", "MESH"}, {"JSCAN", "MESH"}} {
		c.Do("MULTI")
		c.Do(args...)
		v := c.Do("EXEC")
		assert.True(t, v.Elems[0].Err("ERR MESH has to wait for the other nodes"), "%v", v)
	}
	v := c.Do("EVAL", "return redis.call('QLEN','q','MESH')", 0)
	assert.Contains(t, v.Str, "ERR MESH has to wait for the other nodes")
}
