package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// setting is a setting of a queue at a node; empty: there is none.
func setting(s *harness.Server, queue, option string) string {
	return s.Do("QCONFIG", "GET", queue, option).Field(option).Str
}

func set(t *testing.T, s *harness.Server, queue string, options ...any) {
	t.Helper()
	require.Equal(t, "OK", s.Do(append([]any{"QCONFIG", "SET", queue}, options...)...).Str)
}

// awaitSetting waits until nodes have a setting.
func awaitSetting(t *testing.T, queue, option, want string, nodes ...*harness.Server) {
	t.Helper()
	for i, s := range nodes {
		harness.Await(t, 40*time.Second, fmt.Sprintf("%s of %s to be %q at node %d", option, queue, want, i), func() bool { return setting(s, queue, option) == want })
	}
}

// awaitPause waits that a queue's pause is this at nodes.
func awaitPause(t *testing.T, queue, want string, nodes ...*harness.Server) {
	t.Helper()
	for i, s := range nodes {
		harness.Await(t, 20*time.Second, fmt.Sprintf("the pause of %s to be %q at node %d", queue, want, i), func() bool { return s.Do("PAUSE", queue, "STATE").Str == want })
	}
}

// inStep waits until all nodes know that they have the same settings, and returns their digest.
func (m mesh) inStep(t *testing.T) (digest string) {
	t.Helper()
	harness.Await(t, 40*time.Second, "all nodes to have the same settings", func() bool {
		for i, s := range m {
			info := s.Do("JOBMESH", "CLUSTER", "INFO").Str
			_, rest, _ := strings.Cut(info, "settings_digest:")
			mine, _, _ := strings.Cut(rest, "\r\n")
			if i == 0 {
				digest = mine
			}
			if mine != digest || !strings.Contains(info, "settings_in_step:yes\r\n") {
				return false
			}
		}
		return true
	})
	return digest
}

// S1: settings that are made at one node count at the others within a second, and at a node that was down when it is back.
func TestLifeS1(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes")
	set(t, m[0], "mail:*", "RETRY", 7, "UNIQUE", "until-processed", "KEY", "k")
	began := time.Now()
	awaitSetting(t, "mail:*", "retry", "7", m[1], m[2])
	harness.Took(t, began, 0)
	assert.Equal(t, "k", setting(m[2], "mail:ann", "key"))
	id := added(t, m[1].Dial(), "mail:ann", "b", 1000)
	assert.Equal(t, int64(7), m[1].Do("SHOW", id).Field("retry").Int())
	assert.True(t, m[2].Do("ADDJOB", "mail:ann", "b", 1000).NullString(), "the key is taken")

	m[2].Kill()
	set(t, m[0], "mail:*", "RETRY", 9)
	awaitSetting(t, "mail:*", "retry", "9", m[1])
	require.True(t, m[1].Do("QCONFIG", "UNSET", "mail:*", "KEY").Is(1))
	set(t, m[1], "other", "TTL", 5)
	m[2].Restart()
	awaitSetting(t, "mail:*", "retry", "9", m[2])
	awaitSetting(t, "mail:*", "key", "", m[2])
	awaitSetting(t, "other", "ttl", "5", m[2])
	m.inStep(t)
}

// S2: two sides of a mesh set the same name: the later change counts everywhere, and the earlier one is in a log. Different names: both.
func TestLifeS2(t *testing.T) {
	t.Parallel()
	m := mesh{node(t, "appendonly yes"), node(t, "appendonly yes")}
	set(t, m[0], "q", "RETRY", 1)
	set(t, m[0], "a", "RETRY", 11)
	set(t, m[1], "b", "RETRY", 12)
	time.Sleep(500 * time.Millisecond) // the nodes' clocks may differ by tens of ms, and this is to be the later change by them
	set(t, m[1], "q", "RETRY", 2)
	m.meet(t)
	awaitSetting(t, "q", "retry", "2", m...)
	awaitSetting(t, "a", "retry", "11", m...)
	awaitSetting(t, "b", "retry", "12", m...)
	m.inStep(t)
	harness.Await(t, 10*time.Second, "the loser to be logged", func() bool {
		return strings.Contains(m[0].Log()+m[1].Log(), `settings of "q": retry 1`)
	})
}

// S3: settings that are deleted stay so, also when a node comes back that was away; but a later SET counts.
func TestLifeS3(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes")
	set(t, m[0], "gone", "RETRY", 1)
	set(t, m[0], "again", "RETRY", 1)
	awaitSetting(t, "again", "retry", "1", m...)
	m.inStep(t)
	m[2].Stop()
	require.True(t, m[0].Do("QCONFIG", "DEL", "gone").Is(1))
	require.True(t, m[0].Do("QCONFIG", "DEL", "again").Is(1))
	awaitSetting(t, "again", "retry", "", m[1])
	set(t, m[1], "again", "RETRY", 3)
	// The node that deleted them is away when the other one comes back.
	m[0].Stop()
	m[2].Restart()
	awaitSetting(t, "again", "retry", "3", m[2])
	awaitSetting(t, "gone", "retry", "", m[2], m[1])
	m[0].Restart()
	m.await(t, 3)
	m.inStep(t)
	for _, s := range m {
		assert.Empty(t, setting(s, "gone", "retry"))
		assert.Equal(t, "3", setting(s, "again", "retry"))
	}
}

// S4: a node whose clock is a day ahead sets something. After that another node can still change it.
func TestLifeS4(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	ahead := harness.Start(t, busConfig(t), harness.WithClock(t))
	ahead.SetClock(24 * time.Hour)
	m = append(m, ahead)
	m.meet(t)
	set(t, ahead, "q", "RETRY", 1)
	awaitSetting(t, "q", "retry", "1", m...)
	set(t, m[0], "q", "RETRY", 2)
	awaitSetting(t, "q", "retry", "2", m...)
	ahead.SetClock(0)
	set(t, ahead, "q", "RETRY", 3)
	awaitSetting(t, "q", "retry", "3", m...)
	m.inStep(t)
}

// S5: after a restart of all nodes they have the same settings, from the AOF, a rewritten AOF, and an RDB; also in a replica.
func TestLifeS5(t *testing.T) {
	t.Parallel()
	m := mesh{node(t, "appendonly yes"), node(t, "appendonly yes", "aof-use-rdb-preamble no"), node(t, "save 3600 1")}
	m.meet(t)
	for i := range 30 {
		if i == 20 {
			m.inStep(t) // the others are later changes of what all know
		}
		set(t, m[i%3], fmt.Sprint("q", i%20), "RETRY", i+1)
	}
	m.inStep(t)
	require.True(t, m[1].Do("QCONFIG", "DEL", "q3").Is(1))
	require.Equal(t, "in", m[2].Do("PAUSE", "paused", "IN", "BCAST").Str)
	digest := m.inStep(t)
	m[1].RewriteAOF()
	set(t, m[0], "last", "RETRY", 5)
	assert.NotEqual(t, digest, m.inStep(t))
	digest = m.inStep(t)
	replica := harness.Start(t, busConfig(t), harness.WithReplicaOf(m[0]))
	replica.AwaitSync()
	require.Equal(t, "5", setting(replica, "last", "retry"))
	for _, s := range m {
		s.Stop()
	}
	for _, s := range m {
		s.Restart()
	}
	m.await(t, 3)
	assert.Equal(t, digest, m.inStep(t))
	for _, s := range m {
		assert.Equal(t, "5", setting(s, "last", "retry"))
		assert.Equal(t, "30", setting(s, "q9", "retry"))
		assert.Equal(t, "", setting(s, "q3", "retry"))
		assert.Equal(t, "in", s.Do("PAUSE", "paused", "STATE").Str)
	}
	replica.AwaitSync()
	set(t, m[0], "q3", "RETRY", 77)
	awaitSetting(t, "q3", "retry", "77", replica)
	replica.Do("REPLICAOF", "NO", "ONE")
	assert.Equal(t, "30", setting(replica, "q9", "retry"))
	awaitPause(t, "paused", "in", replica)
}

// S6: nodes of a former release had different settings. After the upgrade all have one of them, and a log has the others.
func TestLifeS6(t *testing.T) {
	t.Parallel()
	var m mesh
	for i := range 2 {
		s := harness.New(t, busConfig(t, "appendonly yes"))
		dir := filepath.Join(s.Dir, "appendonlydir")
		require.NoError(t, os.MkdirAll(dir, 0o755))
		var log strings.Builder
		command := func(args ...string) {
			fmt.Fprintf(&log, "*%d\r\n", len(args))
			for _, a := range args {
				fmt.Fprintf(&log, "$%d\r\n%s\r\n", len(a), a)
			}
		}
		command("SELECT", "0")
		command("QCONFIG", "SET", "both", "RETRY", fmt.Sprint(100+i))
		command("QCONFIG", "SET", fmt.Sprint("only", i), "RETRY", "5")
		command("QCONFIG", "SET", "twice", "RETRY", "5")
		command("QCONFIG", "SET", "twice", "TTL", "50")
		command("QCONFIG", "SET", "no", "TTL", "50")
		command("QCONFIG", "DEL", "no")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "appendonly.aof.1.incr.aof"), []byte(log.String()), 0o644))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "appendonly.aof.manifest"), []byte("file appendonly.aof.1.incr.aof seq 1 type i\n"), 0o644))
		s.Restart()
		m = append(m, s)
		require.Equal(t, fmt.Sprint(100+i), setting(s, "both", "retry"))
		require.Equal(t, "5", setting(s, "twice", "retry"))
		require.Equal(t, "50", setting(s, "twice", "ttl"))
		require.Empty(t, setting(s, "no", "ttl"))
	}
	m.meet(t)
	m.inStep(t)
	first := setting(m[0], "both", "retry")
	assert.Contains(t, []string{"100", "101"}, first)
	for _, s := range m {
		assert.Equal(t, first, setting(s, "both", "retry"))
		assert.Equal(t, "5", setting(s, "only0", "retry"))
		assert.Equal(t, "5", setting(s, "only1", "retry"))
	}
	assert.Contains(t, m[0].Log()+m[1].Log(), `settings of "both": retry`)
	set(t, m[0], "both", "RETRY", 7)
	awaitSetting(t, "both", "retry", "7", m...)
}

// S7: a new node has all settings of the mesh that it meets, and the mesh has its own.
func TestLifeS7(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	for i := range 300 {
		set(t, m[i%2], fmt.Sprint("q", i), "RETRY", i+1)
	}
	m.inStep(t)
	fresh := node(t)
	set(t, fresh, "mine", "RETRY", 5)
	m = append(m, fresh)
	m.meet(t)
	awaitSetting(t, "q299", "retry", "300", fresh)
	awaitSetting(t, "mine", "retry", "5", m...)
	m.inStep(t)
	assert.Len(t, fresh.Do("QCONFIG", "LIST").Elems, 2*301)
}

// S9: a pause with BCAST lasts over restarts, also at nodes that were away, until NONE BCAST. Without BCAST it is one node's.
func TestLifeS9(t *testing.T) {
	t.Parallel()
	m := start(t, 3, "appendonly yes")
	m[2].Kill()
	require.Equal(t, "out", m[0].Do("PAUSE", "q", "OUT", "BCAST").Str)
	require.Equal(t, "in", m[0].Do("PAUSE", "here", "IN").Str)
	awaitPause(t, "q", "out", m[1])
	m[2].Restart()
	awaitPause(t, "q", "out", m[2])
	m[0].Stop()
	m[0].Restart()
	m.await(t, 3)
	awaitPause(t, "q", "out", m...)
	awaitPause(t, "here", "none", m...)

	// One node's own: until it is started again.
	require.Equal(t, "none", m[1].Do("PAUSE", "q", "NONE").Str)
	added(t, m[1].Dial(), "q", "b", 1000)
	assert.Equal(t, "out", m[0].Do("PAUSE", "q", "STATE").Str)
	assert.Equal(t, "none", m[1].Do("PAUSE", "q", "STATE").Str)

	// A queue that is deleted and made again is paused.
	m[0].Do("DEL", "q")
	added(t, m[0].Dial(), "q", "b", 1000)
	assert.Equal(t, "out", m[0].Do("PAUSE", "q", "STATE").Str)

	m[2].Kill()
	require.Equal(t, "none", m[0].Do("PAUSE", "q", "NONE", "BCAST").Str)
	m[2].Restart()
	awaitPause(t, "q", "none", m...)
	m.inStep(t)
}

// A queue that all nodes have paused is so whatever becomes of its key: it takes no job when it is made anew, or gets the name by RENAME
// or RESTORE. Its end counts also at a node that knew nothing of it.
func TestPausesOfQueuesMadeAnew(t *testing.T) {
	t.Parallel()
	m := start(t, 2, "appendonly yes")
	s, c := m[0], m[0].Dial()
	added(t, c, "x", "b", 1000)
	added(t, c, "d", "b", 1000)
	dump := []byte(c.Do("DUMP", "d").Str)
	require.Equal(t, "all", c.Do("PAUSE", "q", "ALL", "BCAST").Str)
	for _, end := range [][]any{{"DEL", "q"}, {"JOBMESH", "FLUSH"}} {
		require.NotEqual(t, byte('-'), c.Do(end...).Kind)
		assert.Equal(t, "all", c.Do("PAUSE", "q", "STATE").Str)
		assert.True(t, c.Do("ADDJOB", "q", "b", 1000).Err("PAUSED"), "%v", end)
		assert.True(t, c.Do("ADDJOBS", "q", 1000, "BODIES", "a", "b").Err("PAUSED"), "%v", end)
		id := added(t, c, "deferred", "b", 1000, "DEFERRED")
		assert.True(t, c.Do("RELEASEJOB", id, "QUEUE", "q").Err("PAUSED"), "%v", end)
	}
	added(t, c, "x", "b", 1000)
	c.Do("DEL", "q")
	require.Equal(t, "OK", c.Do("RENAME", "x", "q").Str)
	assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").Null)
	c.Do("DEL", "q")
	require.Equal(t, "OK", c.Do("RESTORE", "q", 0, dump).Str)
	assert.True(t, c.Do("GETJOB", "NOHANG", "FROM", "q").Null)
	s.Stop()
	s.Restart()
	assert.True(t, s.Do("GETJOB", "NOHANG", "FROM", "q").Null)

	// A is away when B ends a pause of which B never heard.
	m.await(t, 2)
	m[1].Stop()
	require.Equal(t, "in", s.Do("PAUSE", "unheard", "IN", "BCAST").Str)
	s.Stop()
	m[1].Restart()
	require.Equal(t, "none", m[1].Do("PAUSE", "unheard", "NONE", "BCAST").Str)
	s.Restart()
	m.await(t, 2)
	awaitPause(t, "unheard", "none", m...)
	m.inStep(t)
}

// A node that has settings of its own neither takes those of the mesh nor tells its own. It passes on what it hears, and
// goes back to those of the mesh.
func TestOwnSettings(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	own := node(t, "appendonly yes", "jobmesh.shared-settings no")
	set(t, own, "q", "RETRY", 5)
	set(t, own, "mine", "RETRY", 5)
	set(t, m[0], "q", "RETRY", 6)
	m = append(m, own)
	m.meet(t)
	set(t, m[1], "theirs", "RETRY", 7)
	m.inStep(t)
	assert.Equal(t, "5", setting(own, "q", "retry"))
	assert.Empty(t, setting(own, "theirs", "retry"))
	assert.Equal(t, "6", setting(m[0], "q", "retry"))
	assert.Empty(t, setting(m[1], "mine", "retry"))
	require.True(t, own.Do("QCONFIG", "DEL", "mine").Is(1))
	own.Stop()
	own.Restart()
	m.await(t, 3)
	assert.Equal(t, "5", setting(own, "q", "retry"))
	assert.Empty(t, setting(own, "mine", "retry"))
	require.Equal(t, "OK", own.Do("CONFIG", "SET", "jobmesh.shared-settings", "yes").Str)
	assert.Equal(t, "6", setting(own, "q", "retry"))
	assert.Equal(t, "7", setting(own, "theirs", "retry"))
	set(t, own, "q", "RETRY", 8)
	awaitSetting(t, "q", "retry", "8", m...)
	require.Equal(t, "OK", own.Do("CONFIG", "SET", "jobmesh.shared-settings", "no").Str)
	assert.Equal(t, "5", setting(own, "q", "retry"))
}

// Settings that are made in MULTI or a script, or while a node saves, are logged and told as others are.
func TestSettingsInTransactions(t *testing.T) {
	t.Parallel()
	m := start(t, 2, "appendonly yes")
	c := m[0].Dial()
	c.Do("MULTI")
	c.Do("QCONFIG", "SET", "q", "RETRY", 5)
	c.Do("QCONFIG", "SET", "q", "TTL", 50)
	c.Do("PAUSE", "p", "IN", "BCAST")
	require.Equal(t, "OK", c.Do("EXEC").Elems[1].Str)
	require.Equal(t, "OK", c.Do("EVAL", "return redis.call('QCONFIG','SET','s','RETRY','9')", 0).Str)
	awaitSetting(t, "q", "ttl", "50", m...)
	awaitSetting(t, "s", "retry", "9", m...)
	awaitPause(t, "p", "in", m...)
	m[0].Stop()
	m[0].Restart()
	assert.Equal(t, "5", setting(m[0], "q", "retry"))
	assert.Equal(t, "9", setting(m[0], "s", "retry"))
	long := strings.Repeat("x", 40_000)
	assert.True(t, m[0].Do("QCONFIG", "SET", "q", "KEY", long).Err("ERR"))
	assert.Equal(t, "5", setting(m[0], "q", "retry"))
}
