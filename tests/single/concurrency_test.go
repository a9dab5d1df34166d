package single

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// No more jobs of a queue with CONCURRENCY are in progress than that; whoever waits is served when one is done, given back, or lapses.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 2).Str)
	assert.Equal(t, "2", c.Do("QCONFIG", "GET", "q").Field("concurrency").Str)
	var ids []string
	for i := range 6 {
		ids = append(ids, add(t, c, "q", fmt.Sprint(i), 0, "RETRY", 60))
	}
	other := add(t, c, "other", "b", 0)
	v := c.Do("GETJOB", "NOHANG", "COUNT", 10, "FROM", "q", "other")
	require.Len(t, v.Elems, 3)
	assert.Equal(t, other, v.Elems[1].Elems[1].Str)
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
	assert.Equal(t, "slots", c.Do("QSTAT", "q").Field("limited").Str)
	assert.NotEqual(t, "0", s.Info("jobmesh", "jobmesh_slots_waited"))
	slots := []int64{c.Do("SHOW", ids[0]).Field("queue-slot").Int(), c.Do("SHOW", ids[1]).Field("queue-slot").Int()}
	assert.ElementsMatch(t, []int64{0, 1}, slots)

	w := s.Dial()
	wait := func() {
		t.Helper()
		w.Send("GETJOB", "TIMEOUT", 20_000, "FROM", "q")
		harness.Await(t, 10*time.Second, "the client to wait", func() bool { return c.Do("QSTAT", "q").Field("blocked").Int() == 1 })
	}
	wait()
	require.EqualValues(t, 1, c.Do("ACKJOB", ids[0]).Int())
	require.Equal(t, ids[2], w.Receive().Elems[0].Elems[1].Str)
	wait()
	require.EqualValues(t, 1, c.Do("NACK", ids[1]).Int())
	require.Equal(t, ids[1], w.Receive().Elems[0].Elems[1].Str)
	wait()
	require.EqualValues(t, 1, c.Do("NACK", ids[1], "DELAY", 1000).Int())
	require.Equal(t, ids[3], w.Receive().Elems[0].Elems[1].Str)
	wait()
	require.EqualValues(t, 1, c.Do("DELJOB", ids[3]).Int())
	require.Equal(t, ids[4], w.Receive().Elems[0].Elems[1].Str)
	require.EqualValues(t, 60, c.Do("WORKING", ids[4]).Int())
	wait()
	require.Equal(t, "OK", c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 3).Str)
	require.Equal(t, ids[5], w.Receive().Elems[0].Elems[1].Str)

	for _, bad := range []any{0, 65536, -1, "x"} {
		require.True(t, c.Do("QCONFIG", "SET", "q", "CONCURRENCY", bad).Err("ERR CONCURRENCY must be between 1 and 65535"), "%v", bad)
	}
}

// C3: a worker dies; its slot is free when the job comes back. An at-most-once job has its slot until it is done with.
func TestLifeC3(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
	first := add(t, c, "q", "1", 0, "RETRY", 1)
	require.Equal(t, first, get(t, c, "q"))
	second := add(t, c, "q", "2", 0, "RETRY", 0)
	require.Equal(t, first, waitFor(t, c, "q"), "after its retry time, and the second doesn't go before it")
	require.EqualValues(t, 1, c.Do("ACKJOB", first).Int())
	require.Equal(t, second, waitFor(t, c, "q"))
	third := add(t, c, "q", "3", 0)
	require.True(t, c.Do("GETJOB", "TIMEOUT", 1500, "FROM", "q").NullArray())
	require.EqualValues(t, 0, c.Do("NACK", second).Int())
	require.Equal(t, third, waitFor(t, c, "q"))
}

// C4, on one server: WORKING keeps the slot.
func TestLifeC4(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
	first := add(t, c, "q", "1", 0, "RETRY", 10)
	require.Equal(t, first, get(t, c, "q"))
	second := add(t, c, "q", "2", 0, "RETRY", 5)
	w := s.Dial()
	w.Send("GETJOB", "TIMEOUT", 60_000, "FROM", "q")
	for range 4 { // longer than its retry time in all
		harness.Await(t, 10*time.Second, "a part of its retry time to be over", func() bool { return c.Do("SHOW", first).Field("next-requeue-within").Int() < 7000 })
		require.True(t, w.Silent(time.Millisecond))
		require.EqualValues(t, 10, c.Do("WORKING", first).Int())
	}
	require.EqualValues(t, 1, c.Do("ACKJOB", first).Int())
	require.Equal(t, second, w.Receive().Elems[0].Elems[1].Str)
}

// C9: two slots, and keys that only one job may have at a time: one job of each key runs.
func TestLifeC9(t *testing.T) {
	t.Parallel()
	s := harness.Start(t)
	c := s.Dial()
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 2)
	a1 := add(t, c, "q", "1", 0, "UNIQUE", "during-processing", "KEY", "a")
	a2 := add(t, c, "q", "2", 0, "UNIQUE", "during-processing", "KEY", "a")
	b := add(t, c, "q", "3", 0, "UNIQUE", "during-processing", "KEY", "b")
	b2 := add(t, c, "q", "4", 0, "UNIQUE", "during-processing", "KEY", "b")
	last := add(t, c, "q", "5", 0)
	v := c.Do("GETJOB", "NOHANG", "COUNT", 5, "FROM", "q")
	require.Len(t, v.Elems, 2)
	assert.ElementsMatch(t, []string{a1, b}, []string{v.Elems[0].Elems[1].Str, v.Elems[1].Elems[1].Str})
	c.Do("ACKJOB", a1)
	require.Equal(t, a2, waitFor(t, c, "q"))
	c.Do("ACKJOB", b)
	c.Do("ACKJOB", a2)
	v = c.Do("GETJOB", "TIMEOUT", 5000, "COUNT", 5, "FROM", "q")
	require.Len(t, v.Elems, 2)
	assert.ElementsMatch(t, []string{b2, last}, []string{v.Elems[0].Elems[1].Str, v.Elems[1].Elems[1].Str})
}

// C10: when the limit becomes lower, no job is delivered before fewer are in progress.
func TestLifeC10(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 5)
	for i := range 12 {
		add(t, c, "q", fmt.Sprint(i), 0)
	}
	var out []string
	for _, e := range c.Do("GETJOB", "NOHANG", "COUNT", 12, "FROM", "q").Elems {
		out = append(out, e.Elems[1].Str)
	}
	require.Len(t, out, 5)
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 2)
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
	for range 20 { // whichever is acknowledged, there are never more than before
		if len(out) == 0 {
			break
		}
		c.Do("ACKJOB", out[0])
		out = out[1:]
		for _, e := range c.Do("GETJOB", "NOHANG", "COUNT", 12, "FROM", "q").Elems {
			out = append(out, e.Elems[1].Str)
		}
		require.LessOrEqual(t, len(out), 5)
	}
	require.Empty(t, out)
	assert.Zero(t, c.Do("QLEN", "q").Int())
}

// Slots are known after a restart: those that are out stay out.
func TestSlotsOfAQueueAfterARestart(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
		first, second := add(t, c, "q", "1", 0, "RETRY", 100), add(t, c, "q", "2", 0)
		require.Equal(t, first, get(t, c, "q"))
		if mode == "aof kill" {
			s.AwaitLogged()
		}
		comeBack(t, s, mode)
		c = s.Dial()
		require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray())
		require.EqualValues(t, 100, c.Do("WORKING", first).Int())
		require.EqualValues(t, 1, c.Do("ACKJOB", first).Int())
		require.Equal(t, second, waitFor(t, c, "q"))
	}, "aof", "aof kill", "rdb", "reload")
}

// twoWithOneSlot makes two jobs of a queue where one may be in progress. The first is delivered. retry is its RETRY, in seconds.
func twoWithOneSlot(t *testing.T, c *harness.Conn, retry int) (first, second string) {
	t.Helper()
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
	first = add(t, c, "q", "1", 0, "RETRY", retry)
	require.Equal(t, first, get(t, c, "q"))
	return first, add(t, c, "q", "2", 0, "RETRY", 100)
}

// A worker is late: its job is in its queue again, and another job has the slot. Its WORKING is refused, as often as it is said.
func TestConcurrencyLateWorking(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
	first := add(t, c, "q", "1", 0, "RETRY", 1)
	require.Equal(t, first, get(t, c, "q"))
	second := add(t, c, "q", "2", 0, "RETRY", 100, "PRIORITY", 1)
	require.EqualValues(t, 1, c.Do("DEQUEUE", second).Int())
	harness.Await(t, 10*time.Second, "the first to come back", func() bool { return state(c, first) == "queued" })
	require.EqualValues(t, 1, c.Do("ENQUEUE", second).Int())
	require.Equal(t, second, get(t, c, "q"))
	for range 3 {
		require.True(t, c.Do("WORKING", first).Err("LOCKLOST"), "the slot is another's")
		require.Equal(t, "queued", state(c, first))
	}
	assert.Len(t, c.Do("WIP", "q").Elems, 1)
	require.EqualValues(t, 1, c.Do("ACKJOB", second).Int())
	require.EqualValues(t, 1, c.Do("WORKING", first).Int(), "the slot is free")
	assert.Len(t, c.Do("WIP", "q").Elems, 1)
	require.EqualValues(t, 1, c.Do("ACKJOB", first).Int())
	third := add(t, c, "q", "3", 0)
	require.Equal(t, third, waitFor(t, c, "q"))
}

// A worker is late, and says WORKING before its job is given to another: it has the slot again.
func TestConcurrencyLateWorkingFirst(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	first, _ := twoWithOneSlot(t, c, 20)
	require.EqualValues(t, 1, c.Do("ENQUEUE", first).Int())
	require.EqualValues(t, 20, c.Do("WORKING", first).Int())
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").NullArray(), "the first is in progress")
	assert.Len(t, c.Do("WIP", "q").Elems, 1)
}

// The slot has lapsed, while the job stays with its worker because the queue is paused, and another job has got it.
func TestConcurrencyWorkingAfterLockLost(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	first, second := twoWithOneSlot(t, c, 2)
	c.Do("PAUSE", "q", "in")
	v := c.Do("GETJOB", "TIMEOUT", 30_000, "FROM", "q")
	require.Equal(t, second, v.Elems[0].Elems[1].Str)
	for range 3 {
		require.True(t, c.Do("WORKING", first).Err("LOCKLOST"))
	}
	require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
	require.True(t, c.Do("WORKING", first).Err("LOCKLOST"), "that is known after a restart, too")
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 2)
	require.EqualValues(t, 2, c.Do("WORKING", first).Int(), "there is a free slot")
	require.EqualValues(t, 1, c.Do("SHOW", first).Field("queue-slot").Int())
}

// A job that is in progress when the limit comes has no slot, and needs none.
func TestConcurrencyBeganBefore(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	first := add(t, c, "q", "1", 0, "RETRY", 100)
	require.Equal(t, first, get(t, c, "q"))
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
	second := add(t, c, "q", "2", 0, "RETRY", 100)
	require.Equal(t, second, get(t, c, "q"))
	require.EqualValues(t, 100, c.Do("WORKING", first).Int())
	require.EqualValues(t, 100, c.Do("WORKING", second).Int())
}

// A replica that is promoted has another node ID. Slots belong to their jobs all the same: WORKING extends them, and ACKJOB gives them back.
func TestConcurrencyAfterAPromotion(t *testing.T) {
	for _, how := range []string{"REPLICAOF", "FAILOVER"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			master := harness.Start(t, harness.WithConfig("appendonly yes"))
			c := master.Dial()
			replica := harness.Start(t, harness.WithReplicaOf(master), harness.WithConfig("appendonly yes"))
			replica.AwaitSync()
			first, second := twoWithOneSlot(t, c, 10)
			c.Do("QCONFIG", "SET", "once", "CONCURRENCY", 1)
			once := add(t, c, "once", "1", 0, "RETRY", 0)
			next := add(t, c, "once", "2", 0, "RETRY", 60)
			require.Equal(t, once, get(t, c, "once"))
			require.Equal(t, int64(1), c.Do("WAIT", 1, 5000).Int())
			if how == "FAILOVER" {
				require.Equal(t, "OK", c.Do("FAILOVER").Str)
			} else {
				require.Equal(t, "OK", replica.Do("REPLICAOF", "NO", "ONE").Str)
			}
			r := replica.Dial()
			harness.Await(t, 10*time.Second, "the queue to be back", func() bool { return r.Do("QLEN", "q").Int() == 1 && r.Do("WORKING", first).Int() == 10 })
			w := replica.Dial()
			w.Send("GETJOB", "TIMEOUT", 60_000, "FROM", "q")
			for range 6 { // longer than the lease in all
				harness.Await(t, 10*time.Second, "a part of its retry time to be over", func() bool { return r.Do("SHOW", first).Field("next-requeue-within").Int() < 7000 })
				require.True(t, w.Silent(time.Millisecond), "the first is in progress")
				require.EqualValues(t, 10, r.Do("WORKING", first).Int())
			}
			require.EqualValues(t, 1, r.Do("ACKJOB", first).Int())
			require.Equal(t, second, w.Receive().Elems[0].Elems[1].Str)
			require.EqualValues(t, 1, r.Do("ACKJOB", once).Int())
			require.Equal(t, next, waitFor(t, r, "once"))
		})
	}
}

// More jobs can be in progress than slots are looked at in one go.
func TestConcurrencyOfMany(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	const most, jobs = 5000, 5200
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", most)
	args := []any{"ADDJOBS", "q", 0, "BODIES"}
	for range jobs {
		args = append(args, "x")
	}
	c.Do(args...)
	fetch := func() (ids []string) {
		for {
			v := c.Do("GETJOB", "NOHANG", "COUNT", 100, "FROM", "q")
			if len(v.Elems) == 0 {
				return ids
			}
			for _, e := range v.Elems {
				ids = append(ids, e.Elems[1].Str)
			}
		}
	}
	ids := fetch()
	require.Len(t, ids, most)
	require.EqualValues(t, 1, c.Do("ACKJOB", ids[4500]).Int())
	require.EqualValues(t, 1, c.Do("ACKJOB", ids[10]).Int())
	for range 2 {
		require.False(t, c.Do("GETJOB", "TIMEOUT", 20_000, "FROM", "q").NullArray())
	}
	require.Empty(t, fetch())
	require.Equal(t, "slots", c.Do("QSTAT", "q").Field("limited").Str)
}

// The queue gets another name, where its slot's number is another job's. The worker goes on with a free slot, if there is one.
func TestConcurrencyRenamed(t *testing.T) {
	t.Parallel()
	c := harness.Start(t).Dial()
	c.Do("QCONFIG", "SET", "a", "CONCURRENCY", 2)
	c.Do("QCONFIG", "SET", "b", "CONCURRENCY", 2)
	ja := add(t, c, "a", "1", 0, "RETRY", 60)
	require.Equal(t, ja, get(t, c, "a"))
	require.Equal(t, "OK", c.Do("RENAME", "a", "b").Str)
	jb := add(t, c, "b", "1", 0, "RETRY", 60)
	require.Equal(t, jb, get(t, c, "b"))
	require.EqualValues(t, 60, c.Do("WORKING", ja).Int())
	require.EqualValues(t, 1, c.Do("SHOW", ja).Field("queue-slot").Int())
	third := add(t, c, "b", "1", 0, "RETRY", 60)
	require.True(t, c.Do("GETJOB", "NOHANG", "FROM", "b").NullArray())
	require.EqualValues(t, 1, c.Do("ACKJOB", ja).Int())
	require.Equal(t, third, waitFor(t, c, "b"))
}

// A job with RETRY 0 comes by RESTORE, and lives for ever: the lease of its slot can be loaded all the same.
func TestConcurrencyRestoredForEver(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("rdbcompression no", "appendonly yes"))
	c := s.Dial()
	const ttl = 4_000_000
	before := time.Now().UnixMilli()
	id := add(t, c, "q", "b", 0, "RETRY", 0, "TTL", ttl)
	after := time.Now().UnixMilli()
	d := []byte(c.Do("DUMP", "q").Str)
	found := 0
	for i := 0; i+8 <= len(d); i++ {
		if v := int64(binary.LittleEndian.Uint64(d[i:])); v >= before+ttl*1000-1000 && v <= after+ttl*1000+1000 {
			binary.LittleEndian.PutUint64(d[i:], math.MaxInt64/2)
			found++
		}
	}
	require.Equal(t, 1, found)
	signDump(d)
	c.Do("DEL", "q")
	require.Equal(t, "OK", c.Do("RESTORE", "q", 0, string(d)).Str)
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
	c.Do("ENQUEUE", id)
	require.Equal(t, id, get(t, c, "q"))
	s.RewriteAOF()
	s.Stop()
	s.Restart()
	require.Equal(t, "active", state(s.Dial(), id))
}

// A slot without a ticket is refused: its WORKING would take a lock without a holder.
func TestConcurrencyRestoredTicket(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.WithConfig("rdbcompression no")).Dial()
	c.Do("QCONFIG", "SET", "q", "CONCURRENCY", 1)
	id := add(t, c, "q", "b", 0, "RETRY", 60)
	require.Equal(t, id, get(t, c, "q"))
	d := []byte(c.Do("DUMP", "q").Str)
	at := lastTicket(d)
	require.Positive(t, at)
	clear(d[at : at+24])
	signDump(d)
	c.Do("DEL", "q")
	require.True(t, c.Do("RESTORE", "q", 0, string(d)).Err("ERR"))
}

// lastTicket finds where 16 bytes of a dump are repeated: a job's ID begins so, and so does the ticket of its slot.
func lastTicket(d []byte) int {
	for i := 0; i+16 <= len(d); i++ {
		if bytes.Count(d[i:i+16], []byte{0}) > 3 {
			continue
		}
		if k := bytes.Index(d[i+16:], d[i:i+16]); k >= 0 {
			return i + 16 + k
		}
	}
	return -1
}

// signDump makes the checksum at the end of a dump right.
func signDump(d []byte) {
	table := crc64.MakeTable(0x95AC9329AC4BC9B5)
	binary.LittleEndian.PutUint64(d[len(d)-8:], ^crc64.Update(^uint64(0), table, d[:len(d)-8]))
}
