package chaos

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

var (
	nodes  = flag.Int("nodes", 3, "nodes of the mesh")
	lasts  = flag.Duration("time", 45*time.Second, "how long to begin new rounds")
	seed   = flag.Uint64("seed", 1, "the first plan's; 0 draws one")
	only   = flag.String("faults", "", "these alone: "+faultNames())
	roundd = flag.Duration("round", 12*time.Second, "how long there are faults, before all is healed and accounted for")
)

// rounds is how many rounds the servers of one plan live, if there is time for many
// plans.
const rounds = 4

func TestChaos(t *testing.T) {
	some, err := chosen(*only)
	require.NoError(t, err)
	first := *seed
	if first == 0 {
		first = rand.Uint64N(1_000_000_000)
	}
	each := rounds
	if *lasts <= 2*time.Minute {
		each = 1
	}
	began := time.Now()
	for i := uint64(0); time.Since(began) < *lasts; i++ {
		ok := t.Run(fmt.Sprint("seed=", first+i), func(t *testing.T) {
			play(t, newPlan(first+i, *nodes, each, *roundd, some), began.Add(*lasts))
		})
		if !ok {
			return
		}
	}
}

// play carries out a plan until the time is over.
func play(t *testing.T, p plan, end time.Time) {
	folder, err := os.MkdirTemp("", "chaos-")
	require.NoError(t, err)
	var m *mesh
	state := ""
	t.Cleanup(func() {
		if !t.Failed() {
			os.RemoveAll(folder)
			return
		}
		t.Logf("again: make chaos NODES=%d SEED=%d\nthe servers' logs and append-only files are in %s", len(p.fsync), p.seed, folder)
		if m != nil {
			name := filepath.Join(folder, "diary")
			os.WriteFile(name, []byte(strings.Join(m.diary, "\n")+"\n"), 0o644)
			t.Logf("what was done to them, the last of it:\n%s", strings.Join(m.diary[max(0, len(m.diary)-60):], "\n"))
			t.Logf("and how they were then:\n%s", state)
		}
	})
	m = startMesh(t, p, folder)
	t.Cleanup(func() { // before they are ended
		if t.Failed() {
			state = m.state()
		}
	})
	t.Logf("%d nodes, appendfsync %v, aof-use-rdb-preamble %s, replicas %v, Sentinel %v, clocks that step %v",
		len(p.fsync), p.fsync, p.preamble, p.replicas, p.sentinel, p.clocks)
	for i, steps := range p.rounds {
		if i > 0 && time.Now().Add(*roundd).After(end) {
			return
		}
		m.round(steps)
		m.logs()
	}
}

// round causes a round's faults under load, heals the mesh, drains it, and judges.
func (m *mesh) round(steps []step) {
	t := m.t
	t.Helper()
	b := newBooks()
	c := startCrowd(m, b)
	defer c.stop()
	if m.plan.sentinel {
		m.sentinelWaits(sentinelPatience)
	}
	began := m.now()
	for _, s := range steps {
		time.Sleep(began + s.at - m.now())
		m.do(s)
	}
	m.heal(began)
	m.drain(c, b)
	c.stop()
	m.mu.Lock()
	v := judge(b, m.losses, m.plan.about(steps))
	m.mu.Unlock()
	var counts []string
	for _, name := range slices.Sorted(maps.Keys(v.note)) {
		counts = append(counts, fmt.Sprint(v.note[name], " ", name))
	}
	t.Logf("%d faults: %s; %v", len(steps), strings.Join(counts, ", "), b.counts)
	for i, text := range v.findings {
		if i == 10 {
			t.Errorf("and %d findings more", len(v.findings)-i)
			break
		}
		t.Error(text)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// drainTime is how long a mesh has for that. A job whose node started after its clock was set back may live
// as long as its ID says, which has whole minutes, and a minute more, see the engine's withinTerms.
func (p *plan) drainTime() time.Duration {
	if p.clocks {
		return 150 * time.Second
	}
	return 60 * time.Second
}

// drain waits until no node has a job or a lock any more.
func (m *mesh) drain(c *crowd, b *books) {
	m.t.Helper()
	c.adds.Store(false)
	for _, s := range m.masters() {
		// The probes end. A promoted replica may bring one back, if it didn't hear of its end before.
		s.Do("DEL", harness.LoggedQueue)
		s.probe = ""
	}
	began := time.Now()
	end := began.Add(m.plan.drainTime())
	left, stirred := map[string]string{}, time.Duration(0)
	for {
		m.alive()
		m.release(b)
		if time.Since(began) > 5*time.Second {
			m.setAside(b)
		}
		if len(left) > 0 && time.Since(began) > (1+stirred)*10*time.Second {
			stirred++
			m.stir(c)
		}
		left = map[string]string{}
		for _, s := range m.masters() {
			for _, field := range []string{"registered_jobs", "locks", "lock_claims"} {
				n := s.Info("jobmesh", "jobmesh_"+field)
				if n != "0" {
					left[s.name] += " " + field + " " + n
				}
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			c.stop()
			m.t.Errorf("something is left over after the mesh is healed and drained, at nodes %v", left)
			m.leftovers(b)
			m.t.FailNow()
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// release releases all deferred jobs that no client has acknowledged. Their client, or the
// nodes that knew of a release, may be gone, or ADDJOB was never answered.
func (m *mesh) release(b *books) {
	waiting := map[string]bool{}
	b.change(func() {
		for _, j := range b.jobs {
			if j.kind.name == "deferred" && j.id != "" && j.firstAck() == never {
				waiting[j.id] = true
				if j.released == 0 {
					j.released = m.now()
				}
			}
		}
	})
	for _, s := range m.masters() {
		for _, e := range s.Do("JSCAN", 0, "COUNT", 1000, "BUSYLOOP", "STATE", "deferred").Elems[1].Elems {
			waiting[e.Str] = true
		}
	}
	b.change(func() {
		for id := range waiting { // the answer to ADDJOB may still come
			if _, known := b.freed[id]; !known {
				b.freed[id] = m.now()
			}
		}
	})
	for id := range waiting {
		for _, s := range m.masters() {
			m.tell(s, "RELEASEJOB", id)
		}
	}
}

// stir adds a job for each key whose lock is left although no node has its job: a vote for a
// job that is done may have come late. No node looks for such a lock before somebody wants
// the key, and then the lock must not stand in the way.
func (m *mesh) stir(c *crowd) {
	for _, s := range m.masters() {
		for _, kind := range []string{"waiting", "running"} {
			for _, e := range s.Do("LOCK.SCAN", 0, "COUNT", 1000, "TYPE", kind).Elems[1].Elems {
				key := e.Elems[1].Str
				name, _, _ := strings.Cut(key, "-")
				conn, err := harness.Dial(s.addr, patience)
				require.NoError(m.t, err)
				(&session{conn, c, s.name}).addJob(&job{kind: named(name), key: key}, "KEY", key)
				conn.Close()
				c.b.change(func() { c.b.counts["locks of jobs that are done"]++ })
			}
		}
	}
}

// setAside deletes at-most-once jobs that a restart has left undelivered. The server can't
// know whether a client was given them, and keeps them until they expire.
func (m *mesh) setAside(b *books) {
	byID := b.byID()
	for _, s := range m.masters() {
		for _, e := range s.Do("JSCAN", 0, "COUNT", 1000, "BUSYLOOP", "STATE", "active").Elems[1].Elems {
			j := byID[e.Str] // nil: its client had no answer
			if j != nil && !j.kind.once {
				continue
			}
			v := s.Do("SHOW", e.Str)
			if v.Null || v.Field("retry").Int() > 0 {
				continue
			}
			maybe := v.Field("delivered").Str == "maybe"
			if v.Field("offered-to").Kind != 0 && !maybe {
				continue // it is being handed over, which ends, since both nodes are up
			}
			if s.Do("DELJOB", e.Str).Is(1) {
				b.change(func() {
					b.counts["at-most-once set aside"]++
					if j != nil {
						j.uncertain = j.uncertain || maybe
					}
				})
			}
		}
	}
}

// leftovers tells of the locks that are left, and of some jobs, with their histories.
func (m *mesh) leftovers(b *books) {
	byID := b.byID()
	for _, s := range m.masters() {
		for _, kind := range []string{"bare", "waiting", "running"} {
			args := []any{"LOCK.SCAN", 0, "COUNT", 1000}
			if kind != "bare" {
				args = append(args, "TYPE", kind)
			}
			for _, e := range s.Do(args...).Elems[1].Elems {
				show := []any{"LOCK.SHOW"}
				if kind == "bare" {
					show = append(show, e.Str)
				} else if show = append(show, e.Elems[1].Str, "TYPE", kind); !e.Elems[0].Null {
					show = append(show, "QUEUE", e.Elems[0].Str)
				}
				lock := s.Do(show...)
				m.t.Logf("%s lock at node %s: %v\n%v", kind, s.name, lock, byID[lock.Field("job").Str])
			}
		}
	}
	told := 0
	for _, s := range m.masters() {
		for _, e := range s.Do("JSCAN", 0, "COUNT", 1000, "BUSYLOOP").Elems[1].Elems {
			if told++; told > 10 {
				return
			}
			m.t.Logf("%v", byID[e.Str])
			for _, s := range m.masters() {
				m.t.Logf("  at node %s: %.1000v", s.name, s.Do("SHOW", e.Str))
			}
		}
	}
}
