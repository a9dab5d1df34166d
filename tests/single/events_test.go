package single

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

const allEvents = "jobmesh.events all"

// entries are the entries of a server's stream of events, each with its ID as "stream-id".
func entries(s *harness.Server) (all []map[string]string) {
	for _, v := range s.Do("XRANGE", "jobmesh:events", "-", "+").Elems {
		e := map[string]string{"stream-id": v.Elems[0].Str}
		for f := v.Elems[1].Strings(); len(f) > 1; f = f[2:] {
			e[f[0]] = f[1]
		}
		all = append(all, e)
	}
	return all
}

// told are the names of the events of a job, or of a queue, in their order.
func told(s *harness.Server, of string) string {
	var names []string
	for _, e := range entries(s) {
		if e["id"] == of || e["id"] == "" && e["queue"] == of {
			names = append(names, e["event"])
		}
	}
	return strings.Join(names, " ")
}

// E1: each event is published once for its cause, with the right queue.
func TestLifeE1(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("notify-keyspace-events Ed"))
	c, sub := s.Dial(), s.Dial()
	sub.Do("PSUBSCRIBE", "*")
	const long = 600
	fetched := func(queue string, options ...any) string {
		id := add(t, c, append([]any{queue, "body", 0}, options...)...)
		require.Equal(t, id, get(t, c, queue))
		return id
	}
	is := func(id, state string) func() bool {
		return func() bool { return c.Do("SHOW", id).Field("state").Str == state }
	}
	lapsed := fetched("lapse", "RETRY", 1)
	add(t, c, "expire", "body", 0, "TTL", 1, "RETRY", 0)
	c.Do("ACKJOB", fetched("done", "RETRY", long))
	c.Do("NACK", fetched("nack", "RETRY", long))
	c.Do("NACK", fetched("putoff", "RETRY", long), "DELAY", long)
	c.Do("NACK", fetched("dead", "RETRY", long), "DEAD")
	c.Do("ENQUEUE", fetched("requeue", "RETRY", long))
	c.Do("MOVEJOB", add(t, c, "left", "body", 0), "TO", "move")
	c.Do("CANCELJOB", add(t, c, "cancel", "body", 0))
	c.Do("WORKING", fetched("progress", "RETRY", long), "PROGRESS", "half")
	c.Do("PAUSE", "pause", "in")
	c.Do("PAUSE", "pause", "in") // changes nothing
	add(t, c, "flush", "body", 0)
	c.Do("QFLUSH", "flush")
	const during = "UNIQUE during-processing KEY k"
	first := addUnique(t, c, "drop", "1", during)
	require.Equal(t, first, get(t, c, "drop"))
	addUnique(t, c, "drop", "2", during+" ONBUSY drop")
	none(t, c, "drop")
	c.Do("QCONFIG", "SET", "limited", "CONCURRENCY", 1)
	add(t, c, "limited", "1", 0)
	add(t, c, "limited", "2", 0)
	holder := get(t, c, "limited")
	none(t, c, "limited")
	c.Do("ACKJOB", holder)
	get(t, c, "limited")
	harness.Await(t, 20*time.Second, "the lapse", is(lapsed, "queued"))
	harness.Await(t, 20*time.Second, "the expiry", func() bool { return number(t, s, "jobmesh", "jobmesh_jobs_expired") == 1 })
	c.Do("PUBLISH", "end", "")
	seen := map[string]int{}
	for {
		m := sub.Receive().Strings()
		if m[2] == "end" {
			break
		}
		seen[strings.TrimPrefix(m[2], "__keyevent@0__:")+" of "+m[3]]++
	}
	for _, name := range []string{"lapse", "expire", "done", "nack", "putoff", "dead", "requeue", "move", "cancel", "progress", "pause", "flush", "drop", "limited"} {
		queue := name
		if name == "dead" {
			queue = "dead:dead"
		}
		assert.Equal(t, 1, seen[name+" of "+queue], "%s: %v", name, seen)
	}
	assert.Equal(t, 1, seen["unlimited of limited"])
	assert.Equal(t, 1, seen["requeue of lapse"])
	assert.Equal(t, 1, seen["nack of putoff"])
	assert.Equal(t, 1, seen["cancel of flush"])
	assert.Equal(t, 1, seen["add of done"])
	assert.Equal(t, 1, seen["deliver of done"])
	assert.Zero(t, seen["add of move"])
	assert.Equal(t, int64(0), c.Do("EXISTS", "jobmesh:events").Int(), "no stream was asked for")
	c.Do("CONFIG", "SET", "notify-keyspace-events", "")
	add(t, c, "q", "body", 0)
	assert.True(t, sub.Silent(100*time.Millisecond))
}

// E2: nothing is written of events that nobody wants.
func TestLifeE2(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("appendonly yes"))
	c := s.Dial()
	c.Do("ACKJOB", func() string { add(t, c, "q", "body", 0); return get(t, c, "q") }())
	assert.Equal(t, "OK", c.Do("CONFIG", "SET", "jobmesh.events", "done  Dead").Str)
	id := add(t, c, "q", "body", 0)
	require.Equal(t, id, get(t, c, "q"))
	assert.NotContains(t, s.AwaitLogged(), "EVENT")
	assert.Equal(t, int64(0), c.Do("EXISTS", "jobmesh:events").Int())
	c.Do("ACKJOB", id)
	assert.Equal(t, "done", told(s, id))
	for _, wrong := range []string{"added", "add, done", "all of them"} {
		assert.True(t, c.Do("CONFIG", "SET", "jobmesh.events", wrong).Err("ERR"), wrong)
	}
	assert.True(t, c.Do("CONFIG", "SET", "jobmesh.events-key", "").Err("ERR"))
	assert.True(t, c.Do("CONFIG", "SET", "jobmesh.events-maxlen", 0).Err("ERR"))
	assert.Equal(t, "done  Dead", c.Do("CONFIG", "GET", "jobmesh.events").Elems[1].Str)
	assert.True(t, c.Do("JOBMESH", "EVENT", "k", "1-1", 0, "a", "b").Err("ERR EVENT is a special command"))
	c.Do("CONFIG", "SET", "jobmesh.events", "")
	add(t, c, "q", "body", 0)
	assert.Equal(t, int64(1), c.Do("XLEN", "jobmesh:events").Int())
}

// E3: the life of a job is in the stream, in its order, with what is known of each event.
func TestLifeE3(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig(allEvents, "appendonly yes"))
	c := s.Dial()
	fetch := func(id string) {
		t.Helper()
		v := c.Do("GETJOB", "TIMEOUT", 20_000, "WORKER", "ann", "FROM", "q")
		require.Len(t, v.Elems, 1)
		require.Equal(t, id, v.Elems[0].Elems[1].Str)
	}
	id := add(t, c, "q", "a secret body", 0, "RETRY", 600, "UNIQUE", "before-processing", "KEY", "k7")
	const wait = 60
	time.Sleep(wait * time.Millisecond)
	fetch(id)
	time.Sleep(wait * time.Millisecond)
	c.Do("NACK", id, "DELAY", 1, "REASON", "no route")
	fetch(id)
	time.Sleep(wait * time.Millisecond)
	c.Do("ACKJOB", id, "RESULT", "a secret result")
	assert.Equal(t, "add deliver nack putoff deliver done", told(s, id))
	all := entries(s)
	for _, e := range all {
		assert.Equal(t, "q", e["queue"])
		assert.Equal(t, "k7", e["key"])
		at, err := strconv.ParseInt(e["at"], 10, 64)
		require.NoError(t, err)
		assert.InDelta(t, time.Now().UnixMilli(), at, 60_000)
		assert.Empty(t, e["node"], "it is alone")
	}
	ms := func(i int, field string) int64 {
		v, err := strconv.ParseInt(all[i][field], 10, 64)
		require.NoError(t, err, "%s of %v", field, all[i])
		return v
	}
	const slack = 15 // of a coarse clock
	assert.GreaterOrEqual(t, ms(1, "lag"), int64(wait-slack))
	assert.GreaterOrEqual(t, ms(4, "lag"), int64(0))
	assert.GreaterOrEqual(t, ms(5, "ran"), int64(wait-slack))
	for i, want := range []string{"", "1", "1", "1", "2", "2"} {
		assert.Equal(t, want, all[i]["deliveries"], "%v", all[i])
	}
	for i := 1; i < 6; i++ {
		assert.Equal(t, "ann", all[i]["worker"], "%v", all[i])
	}
	assert.Equal(t, "no route", all[2]["reason"])
	assert.Equal(t, "1000", all[3]["delay"])
	assert.NotContains(t, fmt.Sprint(all), "secret")

	id = add(t, c, "q", "b", 0, "RETRY", 600, "MAXNACKS", 1)
	fetch(id)
	c.Do("NACK", id, "REASON", "again")
	c.Do("MOVEJOB", id)
	c.Do("PAUSE", "q", "out", "FOR", 100)
	list := entries(s)
	dead, moved, paused := list[len(list)-3], list[len(list)-2], list[len(list)-1]
	assert.Equal(t, []string{"dead", "q:dead", "q", "q:dead", "max-nacks", "again", "1"}, []string{dead["event"], dead["queue"], dead["from"], dead["to"], dead["why"], dead["reason"], dead["deliveries"]})
	assert.Equal(t, []string{"move", "q", "q:dead", "q"}, []string{moved["event"], moved["queue"], moved["from"], moved["to"]})
	assert.Equal(t, []string{"pause", "q", "none", "out", "100000", ""}, []string{paused["event"], paused["queue"], paused["from"], paused["to"], paused["delay"], paused["id"]})
}

// E4: whenever the server is killed, the stream and the jobs agree. That no command XADD is there changes nothing.
func TestLifeE4(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig(allEvents, "appendonly yes", "appendfsync always", `rename-command XADD ""`))
	for range 3 {
		var clients sync.WaitGroup
		for i := range 3 {
			conn, err := harness.Dial(s.Addr(), time.Second)
			require.NoError(t, err)
			clients.Go(func() {
				defer conn.Close()
				queue := fmt.Sprint("q", i)
				for conn.Do("ADDJOB", queue, "body", 0, "RETRY", 600).Kind == '+' {
					v := conn.Do("GETJOB", "NOHANG", "FROM", queue)
					if len(v.Elems) == 1 && v.Elems[0].Elems[1].Str[11]%2 == 0 {
						conn.Do("ACKJOB", v.Elems[0].Elems[1].Str)
					}
				}
			})
		}
		before := number(t, s, "jobmesh", "jobmesh_events_written")
		harness.Await(t, 20*time.Second, "some jobs", func() bool { return number(t, s, "jobmesh", "jobmesh_events_written") > before+200 })
		s.Kill()
		clients.Wait()
		s.Restart()
		there := map[string]bool{}
		for _, id := range s.Do("JSCAN", 0, "BUSYLOOP").Elems[1].Strings() {
			there[id] = true
		}
		agree := map[string]bool{}
		for _, e := range entries(s) {
			switch e["event"] {
			case "add":
				agree[e["id"]] = true
			case "done":
				delete(agree, e["id"])
			}
		}
		assert.Equal(t, agree, there)
		assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_events_written"), "what is read from the log isn't written anew")
	}
}

// Commands in MULTI and in scripts tell their events, which the log and a Redis replica have as they are.
func TestEventsInMultiAndScripts(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig(allEvents, "appendonly yes", "appendfsync always", "repl-diskless-sync-delay 0"))
	r := harness.Start(t, harness.WithConfig(allEvents), harness.WithReplicaOf(s))
	r.AwaitSync()
	c := s.Dial()
	c.Do("MULTI")
	c.Do("ADDJOB", "q", "1", 0)
	c.Do("GETJOB", "NOHANG", "FROM", "q")
	first := c.Do("EXEC").Elems[0].Str
	v := c.Do("EVAL", "local id = redis.call('ADDJOB', 'q', '2', 0).ok; redis.call('GETJOB', 'NOHANG', 'FROM', 'q'); redis.call('ACKJOB', id); return id", 1, "q")
	assert.Equal(t, "add deliver", told(s, first))
	assert.Equal(t, "add deliver done", told(s, v.Str))
	c.Do("SELECT", 5)
	c.Do("ACKJOB", first) // refused: jobs live in database 0
	c.Do("SELECT", 0)
	c.Do("EVAL", "redis.call('SELECT', 5); return redis.call('QLEN', 'q')", 0)
	c.Do("DEL", "q")
	id := add(t, c, "q", "3", 0)
	want := entries(s)
	harness.Await(t, 20*time.Second, "the replica to have the events", func() bool { return len(entries(r)) == len(want) })
	assert.Equal(t, want, entries(r))
	assert.Equal(t, "0", r.Info("jobmesh", "jobmesh_events_written"))
	s.Kill()
	s.Restart()
	assert.Equal(t, want, entries(s))
	assert.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
	harness.Await(t, 20*time.Second, "the promotion", func() bool { return r.Do("ACKJOB", id).Is(1) })
	assert.Equal(t, "add done", told(r, id))
}

// E6: where the key holds something else, jobs go on, and the log says so once.
func TestLifeE6(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig(allEvents, "jobmesh.events-key e:v", "appendonly yes"))
	c := s.Dial()
	complaints := func() int { return strings.Count(s.Log(), "events are lost") }
	for round := 1; round <= 2; round++ {
		c.Do("HSET", "e:v", "a", "b")
		lost := number(t, s, "jobmesh", "jobmesh_events_lost")
		add(t, c, "q", "body", 0)
		harness.Await(t, 20*time.Second, "the line in the log", func() bool { return complaints() == round })
		c.Do("ACKJOB", get(t, c, "q"))
		assert.Equal(t, lost+3, number(t, s, "jobmesh", "jobmesh_events_lost"))
		c.Do("DEL", "e:v")
		id := add(t, c, "q", "body", 0)
		assert.Equal(t, int64(1), c.Do("XLEN", "e:v").Int())
		assert.Equal(t, lost+3, number(t, s, "jobmesh", "jobmesh_events_lost"))
		c.Do("ACKJOB", id)
		harness.Await(t, 20*time.Second, "a tick", func() bool { return complaints() == round })
		time.Sleep(1100 * time.Millisecond) // a tick sees that it is well again
		c.Do("DEL", "e:v")
	}
}

// E8: the stream has about as many entries as it may, and as many after a restart, and at a replica with nodes of another size.
func TestLifeE8(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig(allEvents, "jobmesh.events-maxlen 100", "appendonly yes", "stream-node-max-entries 20", "repl-diskless-sync-delay 0"))
	r := harness.Start(t, harness.WithConfig("stream-node-max-entries 7"), harness.WithReplicaOf(s))
	r.AwaitSync()
	c := s.Dial()
	for range 200 {
		c.Do("ACKJOB", func() string { add(t, c, "q", "body", 0); return get(t, c, "q") }())
		n := c.Do("XLEN", "jobmesh:events").Int()
		require.LessOrEqual(t, n, int64(120))
	}
	want := entries(s)
	assert.GreaterOrEqual(t, len(want), 100)
	harness.Await(t, 20*time.Second, "the replica to have the events", func() bool {
		last := entries(r)
		return len(last) > 0 && last[len(last)-1]["stream-id"] == want[len(want)-1]["stream-id"]
	})
	assert.Equal(t, want, entries(r))
	s.Kill()
	s.Restart()
	assert.Equal(t, want, entries(s))
}

// Above 95 % of maxmemory no event is written, and jobs are acknowledged all the same.
func TestNoEventsWithoutMemory(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig(allEvents))
	c := s.Dial()
	var ids []string
	for range 3 {
		ids = append(ids, add(t, c, "q", strings.Repeat("b", 1000), 0))
	}
	written := number(t, s, "jobmesh", "jobmesh_events_written")
	require.Equal(t, int64(3), written)
	c.Do("CONFIG", "SET", "maxmemory", s.UsedMemory()*100/97)
	harness.Await(t, 20*time.Second, "the memory to be short", func() bool { return s.Info("jobmesh", "jobmesh_memory_level") == "2" })
	require.Equal(t, int64(1), c.Do("ACKJOB", ids[0]).Int())
	assert.Equal(t, written, number(t, s, "jobmesh", "jobmesh_events_written"))
	assert.Equal(t, int64(1), number(t, s, "jobmesh", "jobmesh_events_lost"))
	c.Do("CONFIG", "SET", "maxmemory", 0)
	harness.Await(t, 20*time.Second, "the memory to suffice", func() bool { return s.Info("jobmesh", "jobmesh_memory_level") == "0" })
	require.Equal(t, int64(1), c.Do("ACKJOB", ids[1]).Int())
	assert.Equal(t, written+1, number(t, s, "jobmesh", "jobmesh_events_written"))
}
