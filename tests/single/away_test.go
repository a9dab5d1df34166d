package single

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// moveKey moves a key between databases, the connection's being 0 before and after.
func moveKey(t *testing.T, c *harness.Conn, key string, from, to int) {
	t.Helper()
	c.Do("SELECT", from)
	require.Equal(t, int64(1), c.Do("MOVE", key, to).Int())
	c.Do("SELECT", 0)
}

// A queue lies in another database while the server restarts, or is a replica for a moment. Its
// jobs don't count as ended: jobs that wait for them wait on. When the queue is back, its jobs
// learn how the jobs that they wait for have ended.
func TestFamiliesAreApartOverARestart(t *testing.T) {
	for _, mode := range []string{"rdb", "aof", "aof-kill", "aof-rewritten", "reload", "loadaof", "demoted"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			kept := "aof"
			if mode == "rdb" {
				kept = mode
			}
			s := harness.Start(t, saving(kept))
			c := s.Dial()
			back := func() {
				t.Helper()
				switch mode {
				case "loadaof":
					require.Equal(t, "OK", c.Do("DEBUG", "LOADAOF").Str)
				case "demoted":
					require.Equal(t, "OK", c.Do("REPLICAOF", "127.0.0.1", 1).Str)
					harness.Await(t, 5*time.Second, "the server to be a replica", func() bool { return s.Info("replication", "role") == "slave" })
					require.Equal(t, "OK", c.Do("REPLICAOF", "NO", "ONE").Str)
				default:
					comeBack(t, s, mode)
				}
				c = s.Dial()
			}
			// These jobs are away, and others wait for them.
			parent := add(t, c, "away", "b", 0)
			head := add(t, c, "away", "b", 0, "DEFERRED")
			last := add(t, c, "away", "b", 0, "DEFERRED")
			child := add(t, c, "q", "b", 0, "AFTER", parent)
			dead := add(t, c, "q", "b", 0, "AFTER", parent, "ONDEAD", "dead")
			blocked := add(t, c, "q", "b", 0, "BLOCKEDBY", head)
			late := add(t, c, "q", "b", 0, "BLOCKEDBY", last)
			waits := map[string]string{child: parent, dead: parent, blocked: head, late: last}
			// These are away, and wait for others, which end meanwhile.
			done1 := add(t, c, "here", "b", 0)
			after := add(t, c, "away", "after", 0, "AFTER", done1)
			cancelled := add(t, c, "never", "b", 0, "DEFERRED")
			falls := add(t, c, "away", "falls", 0, "BLOCKEDBY", cancelled)
			released := add(t, c, "released", "b", 0, "DEFERRED")
			alone := add(t, c, "away", "alone", 0, "BLOCKEDBY", released)
			letsGo := add(t, c, "letsgo", "b", 0, "DEFERRED")
			early := add(t, c, "away", "early", 0, "BLOCKEDBY", letsGo)

			moveKey(t, c, "away", 0, 1)
			back()
			pending := func() {
				t.Helper()
				time.Sleep(100 * time.Millisecond) // the ticks that looked into it took some ms
				for id, other := range waits {
					assert.Equal(t, "blocked", state(c, id))
					assert.Equal(t, []string{other}, waitsFor(c, id))
				}
				assert.Empty(t, waiting(c, "q:dead"))
			}
			pending()
			done(t, c, "here", done1)
			require.Equal(t, int64(1), c.Do("CANCELJOB", cancelled).Int())
			require.Equal(t, int64(1), c.Do("RELEASEJOB", released).Int())
			require.Equal(t, released, get(t, c, "released"))
			require.Equal(t, int64(1), c.Do("DELJOB", released).Int()) // after its release: the blocked job goes on
			require.Equal(t, int64(1), c.Do("RELEASEJOB", letsGo, "LAST").Int())
			assert.Equal(t, "blocked", state(c, letsGo), "the other one is to come before it")
			back()
			pending()
			moveKey(t, c, "away", 1, 0)
			pending()
			harness.Await(t, 5*time.Second, "those that were away to hear of it", func() bool {
				return state(c, after) == "queued" && state(c, alone) == "queued" && state(c, early) == "queued" && c.Do("SHOW", falls).Null
			})
			assert.Equal(t, "blocked", state(c, letsGo))
			for range 4 { // parent, and the three that were unblocked
				id := get(t, c, "away")
				require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
			}
			require.Equal(t, int64(1), c.Do("RELEASEJOB", head).Int())
			done(t, c, "away", head)
			require.Equal(t, int64(1), c.Do("RELEASEJOB", last, "LAST").Int())
			for range 4 {
				id := get(t, c, "q")
				require.Contains(t, waits, id)
				delete(waits, id)
				require.Equal(t, int64(1), c.Do("ACKJOB", id).Int())
			}
			done(t, c, "away", last)
			done(t, c, "letsgo", letsGo)
			harness.Await(t, 15*time.Second, "all to be gone", func() bool { return jobs(s) == "0" })
		})
	}
}

// An AOF without an RDB at its head is written anew while queues lie in another database. One
// of them has the name of a queue in database 0. When the AOF is loaded the queues are where they
// were, and they have their jobs when they come home.
func TestAnAOFIsRewrittenWhileQueuesAreAway(t *testing.T) {
	for _, end := range []string{"kill", "shutdown", "loadaof"} {
		for _, move := range []bool{true, false} {
			for _, homeBefore := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, MOVE %v, home before the end %v", end, move, homeBefore), func(t *testing.T) {
					t.Parallel()
					s := harness.Start(t, saving("aof-without-preamble"))
					if end != "loadaof" {
						s.AwaitMark()
					}
					c := s.Dial()
					var away, here []string
					for i := range 3 {
						away = append(away, add(t, c, "q", i, 0), add(t, c, "q", i, 0, "RETRY", 0))
					}
					away = append(away, add(t, c, "q", "k", 0, "UNIQUE", "until-processed"))
					there := add(t, c, "p", "b", 0)
					waits := add(t, c, "q2", "b", 0, "AFTER", away[0])
					go2 := func(from, to int) {
						if move {
							moveKey(t, c, "q", from, to)
							moveKey(t, c, "q2", from, to)
						} else {
							require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
						}
					}
					go2(0, 1)
					for i := range 2 {
						here = append(here, add(t, c, "q", i, 0))
					}
					s.RewriteAOF()
					home := func() {
						if move {
							require.Equal(t, "OK", c.Do("RENAME", "q", "mine").Str)
						}
						go2(1, 0)
					}
					if homeBefore {
						home()
					}
					keys := func() (list [][]string) {
						for db := range 2 {
							c.Do("SELECT", db)
							k := c.Do("KEYS", "*").Strings()
							slices.Sort(k)
							list = append(list, k)
						}
						c.Do("SELECT", 0)
						return list
					}
					before := keys()
					if end == "loadaof" {
						require.Equal(t, "OK", c.Do("DEBUG", "LOADAOF").Str)
					} else {
						comeBack(t, s, map[string]string{"kill": "aof-kill", "shutdown": "aof"}[end])
					}
					c = s.Dial()
					assert.Equal(t, before, keys())
					if !homeBefore {
						assert.Equal(t, here, waiting(c, "q"))
						home()
					}
					assert.Equal(t, away, waiting(c, "q"))
					assert.Equal(t, "blocked", state(c, waits))
					if move {
						assert.Equal(t, here, waiting(c, "mine"))
					} else {
						require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
						assert.Equal(t, here, waiting(c, "q"))
						require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
					}
					for _, id := range away {
						done(t, c, "q", id)
					}
					done(t, c, "p", there)
					done(t, c, "q2", waits)
				})
			}
		}
	}
}

// A server ends in order while a queue lies in another database. A job of this queue that a
// client was given stays with the client, and doesn't come again before its time.
func TestJobsOfAQueueThatIsAwayStayInHands(t *testing.T) {
	for _, mode := range []string{"aof", "aof-without-preamble", "aof-rewritten", "rdb", "reload"} {
		for _, move := range []bool{true, false} {
			for _, times := range []int{1, 2} {
				t.Run(fmt.Sprintf("%s, MOVE %v, %d times", mode, move, times), func(t *testing.T) {
					t.Parallel()
					s := harness.Start(t, saving(mode))
					c := s.Dial()
					plain := add(t, c, "q", "b", 0)
					worked := add(t, c, "q", "b", 0)
					nacked := add(t, c, "q", "b", 0, "RETRY", 200)
					unique := add(t, c, "q", "b", 0, "UNIQUE", "until-processed", "KEY", "u")
					runs := add(t, c, "q", "b", 0, "UNIQUE", "during-processing", "KEY", "r")
					held := add(t, c, "q", "b", 0, "UNIQUE", "during-processing", "KEY", "r")
					had := []string{plain, worked, nacked, unique, runs}
					require.Equal(t, plain, get(t, c, "q"))
					require.Equal(t, worked, c.Do("GETJOB", "NOHANG", "WORKER", "ada", "FROM", "q").Elems[0].Elems[1].Str)
					require.Equal(t, nacked, get(t, c, "q"))
					require.Equal(t, int64(1), c.Do("NACK", nacked).Int())
					require.Equal(t, nacked, get(t, c, "q"))
					for _, id := range []string{unique, runs} {
						require.Equal(t, id, get(t, c, "q"))
					}
					waits := add(t, c, "q", "b", 0)
					before := wip(t, c, "q")
					require.Len(t, before, len(had))
					trip := func(from, to int) {
						if move {
							moveKey(t, c, "q", from, to)
						} else {
							require.Equal(t, "OK", c.Do("SWAPDB", 0, 1).Str)
						}
					}
					trip(0, 1)
					for range times {
						comeBack(t, s, mode)
					}
					c = s.Dial()
					trip(1, 0)
					for _, id := range had {
						assert.Equal(t, "active", state(c, id))
					}
					after := wip(t, c, "q")
					slices.SortFunc(before, func(a, b progress) int { return cmp.Compare(a.id, b.id) })
					slices.SortFunc(after, func(a, b progress) int { return cmp.Compare(a.id, b.id) })
					if assert.Len(t, after, len(before)) {
						for i := range before {
							assert.Equal(t, before[i].id, after[i].id)
							assert.Equal(t, before[i].worker, after[i].worker)
							assert.Equal(t, before[i].deliveries, after[i].deliveries)
							assert.InDelta(t, before[i].since, after[i].since, 3000)
						}
					}
					assert.Equal(t, int64(1), c.Do("SHOW", nacked).Field("nacks").Int())
					assert.Equal(t, waits, get(t, c, "q"))
					assert.Empty(t, c.Do("GETJOB", "NOHANG", "COUNT", 10, "FROM", "q").Elems)
					require.Equal(t, int64(1), c.Do("ACKJOB", runs).Int())
					assert.Equal(t, held, get(t, c, "q"))
				})
			}
		}
	}
}

// A job is acknowledged or cancelled while its queue lies in another database. It doesn't come
// back with the queue, whatever has happened to the server meanwhile.
func TestEndsReachJobsThatAreAway(t *testing.T) {
	inModes(t, func(t *testing.T, s *harness.Server, c *harness.Conn, mode string) {
		verbs := []string{"ACKJOB", "FASTACK", "CANCELJOB"}
		ids := map[string]string{}
		for _, verb := range verbs {
			ids[verb] = add(t, c, "q", verb, 0)
			ids[verb+" parent"] = add(t, c, "q", verb, 0, "RETRY", 0)
			ids[verb+" child"] = add(t, c, "child", verb, 0, "AFTER", ids[verb+" parent"])
		}
		stays := add(t, c, "q", "stays", 0)
		moveKey(t, c, "q", 0, 1)
		var r *harness.Server
		if mode == "replica" {
			r = harness.Start(t, harness.WithReplicaOf(s)) // it loads the queue where it is
			r.AwaitSync()
		}
		for _, verb := range verbs {
			c.Do(verb, ids[verb], ids[verb+" parent"])
		}
		harness.Await(t, 5*time.Second, "two to go on", func() bool { return c.Do("QLEN", "child").Int() == 2 })
		switch mode {
		case "":
		case "replica":
			r.AwaitStream(s)
			require.Equal(t, "OK", r.Do("REPLICAOF", "NO", "ONE").Str)
			s = r
		default:
			comeBack(t, s, mode)
		}
		c = s.Dial()
		c.Do("SELECT", 1)
		harness.Await(t, 5*time.Second, "the queue to be moved", func() bool { return c.Do("MOVE", "q", 0).Is(1) })
		c.Do("SELECT", 0)
		for _, verb := range verbs {
			assert.True(t, c.Do("SHOW", ids[verb]).Null, verb)
			assert.True(t, c.Do("SHOW", ids[verb+" parent"]).Null, verb)
		}
		assert.Equal(t, int64(1), c.Do("QLEN", "q").Int())
		assert.Equal(t, "queued", state(c, stays))
		assert.Equal(t, int64(2), c.Do("QLEN", "child").Int())
		assert.True(t, c.Do("SHOW", ids["CANCELJOB child"]).Null)
	}, "", "rdb", "aof", "aof-kill", "aof-rewritten", "replica")
}

// Each end of a job whose queue lies in another database is counted once, where the end is said, and told once.
func TestAwayEndsAreCounted(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.WithConfig("jobmesh.events all"))
	counts := func() string {
		line := ""
		for _, k := range []string{"added", "acked", "cancelled", "deleted", "flushed"} {
			line += k + "=" + s.Info("jobmesh", "jobmesh_jobs_"+k) + " "
		}
		return line
	}
	add := func(queue string) string {
		id := s.Do("ADDJOB", queue, "body", 0).Str
		require.Equal(t, int64(1), s.Do("MOVE", queue, 1).Int())
		return id
	}
	for _, command := range []string{"ACKJOB", "FASTACK", "CANCELJOB"} {
		id := add(command)
		s.Do(command, id)
		s.Do(command, id)
	}
	soft := add("soft")
	s.Do("CANCELJOB", soft, "SOFT")
	want := "added=4 acked=2 cancelled=2 deleted=0 flushed=0 "
	require.Equal(t, want, counts())
	c := s.Dial()
	c.Do("SELECT", 1)
	for _, queue := range []string{"ACKJOB", "FASTACK", "CANCELJOB", "soft"} {
		c.Do("MOVE", queue, 0)
	}
	harness.Await(t, 10*time.Second, "the jobs to be gone", func() bool { return s.Info("jobmesh", "jobmesh_registered_jobs") == "0" })
	assert.Equal(t, want, counts())
	told := map[string]int{}
	for _, v := range s.Do("XRANGE", "jobmesh:events", "-", "+").Elems {
		told[v.Elems[1].Field("event").Str]++
	}
	assert.Equal(t, map[string]int{"add": 4, "done": 2, "cancel": 2}, told)
}
