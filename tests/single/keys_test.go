package single

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// strict makes a logged or replicated command that fails end the server at which it fails.
const strict = "propagation-error-behavior panic"

// keysOf lists the keys of databases 0 and 1, as "0 name" and "1 name".
func keysOf(s *harness.Server) (keys []string) {
	c := s.Dial()
	defer c.Close()
	for db := range 2 {
		c.Do("SELECT", db)
		for _, name := range c.Do("KEYS", "*").Strings() {
			keys = append(keys, fmt.Sprint(db, " ", name))
		}
	}
	slices.Sort(keys)
	return keys
}

// readLog starts a server with a copy of another's append-only file. It isn't a replica, and
// doesn't change what it reads.
func readLog(t *testing.T, s *harness.Server) *harness.Server {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "appendonlydir"), os.DirFS(filepath.Join(s.Dir, "appendonlydir"))))
	return harness.Start(t, harness.WithDir(dir), harness.WithConfig("appendonly yes", strict, fmt.Sprint("replicaof 127.0.0.1 ", harness.FreePort(t))))
}

// requireSameKeys checks that a master, its replica, the replica's log and the master's
// log have the same keys, and returns them.
func requireSameKeys(t *testing.T, what string, master, replica *harness.Server) []string {
	t.Helper()
	for {
		var keys []string
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			require.False(t, replica.Ended(), "%s: the replica has ended", what)
			keys = keysOf(master)
			have := keysOf(replica)
			if slices.Equal(keys, have) {
				break
			}
			require.True(t, time.Now().Before(end), "%s: the master has %v, its replica %v", what, keys, have)
		}
		for _, s := range []*harness.Server{master, replica} {
			c := s.Dial()
			awaitWritten(t, c)
			c.Close()
		}
		reader := readLog(t, master)
		logged := keysOf(reader)
		reader.Kill()
		reader = readLog(t, replica)
		followed := keysOf(reader)
		reader.Kill()
		if !slices.Equal(keys, keysOf(master)) {
			continue // an empty key went, or one expired
		}
		require.Equal(t, keys, logged, "%s: the keys that the log has", what)
		require.Equal(t, keys, followed, "%s: the keys that the replica's log has", what)
		return keys
	}
}

// pair starts a master and its replica.
func pair(t *testing.T, conf ...string) (master, replica *harness.Server) {
	t.Helper()
	conf = append(conf, "appendonly yes", "appendfsync always", strict)
	master = harness.Start(t, harness.WithConfig(conf...))
	replica = harness.Start(t, harness.WithConfig(conf...), harness.WithReplicaOf(master))
	replica.AwaitSync()
	return master, replica
}

// The key of a queue without jobs is in the log, however it came to be. So commands on keys have
// the same outcome at the replica, and when the log is read.
func TestKeysOfEmptyQueues(t *testing.T) {
	do := func(t *testing.T, c *harness.Conn, want string, args ...any) {
		t.Helper()
		require.Equal(t, want, c.Do(args...).String(), "%v", args)
	}
	// Each leaves an empty queue in the key e. Those whose names have "rewritten" in them write the log anew.
	made := map[string]func(*testing.T, *harness.Conn){
		"PAUSE": func(t *testing.T, c *harness.Conn) { do(t, c, `+"in"`, "PAUSE", "e", "in") },
		"an acknowledged job": func(t *testing.T, c *harness.Conn) {
			do(t, c, ":1", "ACKJOB", add(t, c, "e", "b", 0))
		},
		"a moved job": func(t *testing.T, c *harness.Conn) {
			id := add(t, c, "e2", "b", 0, "DEFERRED")
			do(t, c, `+"in"`, "PAUSE", "e", "in", "bcast")
			do(t, c, `+"none"`, "PAUSE", "e", "none", "bcast")
			do(t, c, ":1", "DELJOB", id)
		},
		"RESTORE": func(t *testing.T, c *harness.Conn) {
			do(t, c, ":1", "ACKJOB", add(t, c, "e2", "b", 0))
			dump := []byte(c.Do("DUMP", "e2").Str)
			do(t, c, `+"OK"`, "RESTORE", "e", 0, dump)
		},
		"a rewritten log": func(t *testing.T, c *harness.Conn) {
			do(t, c, `+"out"`, "PAUSE", "e", "out")
			awaitRewrite(t, c)
		},
		"DEBUG LOADAOF": func(t *testing.T, c *harness.Conn) {
			add(t, c, "e", "b", 0)
			do(t, c, `+"OK"`, "DEBUG", "LOADAOF")
			do(t, c, ":1", "ACKJOB", c.Do("QPEEK", "e", 1).Elems[0].Elems[1].Str)
		},
		"another database, rewritten": func(t *testing.T, c *harness.Conn) {
			do(t, c, `+"all"`, "PAUSE", "e", "all")
			do(t, c, ":1", "MOVE", "e", 1)
			awaitRewrite(t, c)
			do(t, c, `+"OK"`, "SWAPDB", 0, 1)
			do(t, c, `+"OK"`, "SWAPDB", 1, 0)
			do(t, c, `+"OK"`, "SELECT", 1)
			do(t, c, ":1", "MOVE", "e", 0)
			do(t, c, `+"OK"`, "SELECT", 0)
		},
	}
	for _, preamble := range []string{"yes", "no"} {
		for name, before := range made {
			if preamble == "no" && !strings.Contains(name, "rewritten") {
				continue // the preamble is empty, either way
			}
			t.Run(fmt.Sprint("preamble ", preamble, " ", name), func(t *testing.T) {
				t.Parallel()
				master, replica := pair(t, "aof-use-rdb-preamble "+preamble)
				c := master.Dial()
				before(t, c)
				assert.Contains(t, requireSameKeys(t, "the empty queue", master, replica), "0 e")
				do(t, c, ":1", "RENAMENX", "e", "f")
				do(t, c, ":1", "MOVE", "f", 1)
				do(t, c, `+"in"`, "PAUSE", "f", "in")
				do(t, c, ":0", "MOVE", "f", 1)
				do(t, c, ":0", "RENAMENX", "f", "f")
				requireSameKeys(t, "MOVE", master, replica)
				var ids []string
				for i := range 4 {
					ids = append(ids, add(t, c, "c", i, 0, "RETRY", i%2))
				}
				do(t, c, `+"OK"`, "RENAME", "f", "c")
				do(t, c, ":1", "WAIT", 1, 5000)
				requireSameKeys(t, "RENAME", master, replica)
				for _, id := range ids {
					assert.True(t, c.Do("SHOW", id).Null, "the master has a job of the queue that was replaced")
					assert.True(t, replica.Do("SHOW", id).Null, "the replica has a job of the queue that was replaced")
				}
				c.Close()
				master.Kill()
				master.Restart()
				for _, id := range ids {
					assert.True(t, master.Do("SHOW", id).Null, "the log has a job of the queue that was replaced")
				}
				awaitNoJobs(t, master)
				assert.NotContains(t, master.Log(), "CRITICAL")
				assert.NotContains(t, replica.Log(), "CRITICAL")
				replica.AwaitSync()
				// The restart drops the empty queue of database 0, since its pause has ended.
				awaitKeys(t, master)
				requireSameKeys(t, "after the restart", master, replica)
			})
		}
	}
}

// awaitRewrite writes the append-only file anew.
func awaitRewrite(t *testing.T, c *harness.Conn) {
	t.Helper()
	awaitWritten(t, c)
	require.Equal(t, byte('+'), c.Do("BGREWRITEAOF").Kind)
	awaitWritten(t, c)
}

// awaitWritten waits until no append-only file is being written anew. A replica writes its file
// anew when it has its master's data.
func awaitWritten(t *testing.T, c *harness.Conn) {
	t.Helper()
	harness.Await(t, 20*time.Second, "the append-only file to be written anew", func() bool {
		info := c.Do("INFO", "persistence").Str
		return strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0")
	})
}

// A queue that stays empty loses its key at the master, in the log and at the replica.
func TestIdleQueueGoesEverywhere(t *testing.T) {
	master, replica := pair(t)
	c := master.Dial()
	c.Do("ACKJOB", add(t, c, "e", "b", 0))
	add(t, c, "q", "b", 0)
	c.Do("PAUSE", "p", "in")
	c.Do("PAUSE", "p", "none")
	require.Equal(t, []string{"0 e", "0 p", "0 q"}, requireSameKeys(t, "before", master, replica))
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "maxmemory", "1mb").Str) // such queues go after 2 s
	awaitKeys(t, master, "q")
	require.Equal(t, "OK", c.Do("CONFIG", "SET", "maxmemory", "0").Str)
	require.Equal(t, []string{"0 q"}, requireSameKeys(t, "after", master, replica))
}

// A promoted node drops the empty queues that it has from its master. They are dropped at its
// replicas and in its log, too.
func TestEmptyQueuesOfAPromotedNode(t *testing.T) {
	first, second := pair(t)
	c := first.Dial()
	c.Do("PAUSE", "p", "in")
	add(t, c, "q", "b", 0)
	require.Equal(t, []string{"0 p", "0 q"}, requireSameKeys(t, "before", first, second))
	require.Equal(t, "OK", c.Do("FAILOVER").Str)
	harness.Await(t, 20*time.Second, "the replica to be the master", func() bool { return second.Info("replication", "role") == "master" })
	first.AwaitSync()
	awaitKeys(t, second, "q")
	require.Equal(t, []string{"0 q"}, requireSameKeys(t, "after", second, first))
	// A master that is a replica for a moment, and reaches no master, keeps its own empty queues.
	c = second.Dial()
	require.Equal(t, "+\"out\"", c.Do("PAUSE", "r", "out").String())
	require.Equal(t, "OK", c.Do("REPLICAOF", "127.0.0.1", harness.FreePort(t)).Str)
	require.Equal(t, "OK", c.Do("REPLICAOF", "NO", "ONE").Str)
	require.Equal(t, byte('+'), c.Do("PAUSE", "s", "in").Kind)
	first.AwaitSync()
	requireSameKeys(t, "at last", second, first)
}

// Whatever clients do, the master, its replica and both logs have the same keys.
func TestSameKeysEverywhere(t *testing.T) { sameKeys(t, 1) }

func TestLongSameKeysEverywhere(t *testing.T) { sameKeys(t, 2) }

// sameKeys plays as many histories as there are seeds, with each kind of log.
func sameKeys(t *testing.T, seeds uint64) {
	for _, preamble := range []string{"yes", "no"} {
		for seed := range seeds {
			t.Run(fmt.Sprint("preamble ", preamble, " seed ", seed), func(t *testing.T) {
				t.Parallel()
				p := &keyPlay{t: t, r: rand.New(rand.NewPCG(seed, 5))}
				p.master, p.replica = pair(t, "aof-use-rdb-preamble "+preamble)
				for round := range 8 {
					p.c, p.one = p.master.Dial(), p.master.Dial()
					p.one.Do("SELECT", 1)
					p.did = nil
					for range 40 {
						p.step()
					}
					requireSameKeys(t, fmt.Sprintf("seed %d, round %d: %s", seed, round, strings.Join(p.did, "; ")), p.master, p.replica)
					p.c.Close()
					p.one.Close()
					if round%3 == 2 {
						p.master.Kill()
						p.master.Restart()
						p.replica.AwaitSync()
					}
				}
				assert.NotContains(t, p.master.Log(), "CRITICAL")
				assert.NotContains(t, p.replica.Log(), "CRITICAL")
			})
		}
	}
}

// keyPlay is a client that does random things to queues and their keys.
type keyPlay struct {
	t               *testing.T
	r               *rand.Rand
	master, replica *harness.Server
	c, one          *harness.Conn // one is in database 1
	multi           bool
	ids             []string
	did             []string
}

func (p *keyPlay) name() string    { return string(rune('a' + p.r.IntN(5))) }
func (p *keyPlay) of(s ...any) any { return s[p.r.IntN(len(s))] }
func (p *keyPlay) id() string {
	if len(p.ids) == 0 {
		return "D-00000000-000000000000000000000000-0000"
	}
	return p.ids[p.r.IntN(len(p.ids))]
}

func (p *keyPlay) do(c *harness.Conn, args ...any) harness.Value {
	v := c.Do(args...)
	where := ""
	if c == p.one {
		where = "1: "
	}
	if slices.Contains(args, any("RESTORE")) {
		args = append(slices.Clone(args[:3]), args[4:]...)
	}
	p.did = append(p.did, where+strings.Trim(fmt.Sprint(args), "[]"))
	require.False(p.t, p.master.Ended(), "%s", p.did)
	if p.replica.Ended() {
		p.t.Fatalf("the replica has ended: %s", strings.Join(p.did, "; "))
	}
	if args[0] == "ADDJOB" && v.Kind == '+' && strings.HasPrefix(v.Str, "D-") {
		p.ids = append(p.ids, v.Str)
	}
	return v
}

func (p *keyPlay) step() {
	switch n := p.r.IntN(100); {
	case n < 18:
		p.do(p.c, "ADDJOB", p.name(), "body", 0, "RETRY", p.of(0, 1, 300), "DELAY", p.of(0, 0, 1000), "TTL", 5000)
	case n < 21:
		p.do(p.c, "ADDJOB", p.name(), "body", 0, "UNIQUE", p.of("until-processed", "during-processing"), "KEY", p.name(), "ONBUSY", p.of("wait", "dead", "drop"))
	case n < 24:
		p.do(p.c, "ADDJOB", p.name(), "body", 0, "DEFERRED", "AFTER", p.id(), "ONDEAD", p.of("run", "drop", "dead"))
	case n < 32:
		for _, j := range p.do(p.c, "GETJOB", "NOHANG", "COUNT", 3, "FROM", p.name(), p.name()).Elems {
			p.do(p.c, p.of("ACKJOB", "FASTACK", "NACK", "CANCELJOB"), j.Elems[1].Str)
		}
	case n < 38:
		p.do(p.c, p.of("ACKJOB", "DELJOB", "DEQUEUE", "ENQUEUE", "CANCELJOB"), p.id())
	case n < 41:
		p.do(p.c, "RELEASEJOB", p.id(), "QUEUE", p.name())
	case n < 50:
		p.do(p.c, "PAUSE", p.name(), p.of("in", "out", "all", "none", "none"))
	case n < 64:
		p.do(p.of(p.c, p.c, p.c, p.one).(*harness.Conn), p.of("RENAME", "RENAME", "RENAMENX", "COPY"), p.name(), p.name())
	case n < 70:
		p.do(p.c, "MOVE", p.name(), 1)
	case n < 76:
		p.do(p.one, "MOVE", p.name(), 0)
	case n < 79:
		p.do(p.of(p.c, p.one).(*harness.Conn), p.of("DEL", "UNLINK"), p.name())
	case n < 82:
		if v := p.do(p.c, "DUMP", p.name()); !v.Null {
			p.do(p.of(p.c, p.one).(*harness.Conn), "RESTORE", p.name(), 0, []byte(v.Str), "REPLACE")
		}
	case n < 84:
		p.do(p.of(p.c, p.one).(*harness.Conn), "PEXPIRE", p.name(), p.of(-1, 1, 20, 1_000_000))
	case n < 86:
		p.do(p.c, "SET", p.name(), "other")
	case n < 89:
		p.do(p.of(p.c, p.one).(*harness.Conn), p.of("UQ.PUSH", "UQ.REM"), p.name(), p.name())
	case n < 91:
		if p.multi {
			return
		}
		p.multi = true
		p.do(p.c, "MULTI")
		for range 4 {
			p.step()
		}
		p.do(p.c, "EXEC")
		p.multi = false
	case n < 93:
		p.do(p.c, "SWAPDB", 0, 1)
	case n < 97 && p.multi:
	case n < 95:
		// A key whose time is over isn't loaded, and the server tells nobody.
		time.Sleep(25 * time.Millisecond)
		for _, c := range []*harness.Conn{p.c, p.one} {
			c.Do("EXISTS", "a", "b", "c", "d", "e")
		}
		p.do(p.c, "DEBUG", p.of("RELOAD", "LOADAOF"))
	case n < 97:
		awaitRewrite(p.t, p.c)
		p.did = append(p.did, "BGREWRITEAOF")
	case n < 98:
		p.do(p.c, "JOBMESH", "FLUSH")
	case n < 99:
		p.do(p.of(p.c, p.one).(*harness.Conn), p.of("FLUSHDB", "FLUSHALL"))
	default:
		p.do(p.c, "QCONFIG", "SET", p.name(), "RETRY", 5)
	}
}

// The first job of a queue brings its key to the log: nothing else is logged for it.
func TestAJobsQueueIsLoggedWithIt(t *testing.T) {
	s := harness.Start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
	c := s.Dial()
	id := add(t, c, "q", "b", 0)
	add(t, c, "q", "b", 0, "RETRY", 0)
	add(t, c, "d", "b", 0, "DELAY", 100)
	add(t, c, "u", "b", 0, "UNIQUE", "until-processed")
	add(t, c, "f", "b", 0, "AFTER", id, "DEFERRED")
	commands, err := s.AOF()
	require.NoError(t, err)
	var names []string
	for _, command := range commands {
		names = append(names, command[0])
	}
	assert.Contains(t, names, "LOADJOB")
	assert.NotContains(t, names, "MAKEQUEUE")
}
